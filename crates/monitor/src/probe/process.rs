//! Processes: which one owns a socket, what its threads do. Everything is read from `/proc`, where other users' processes
//! show less.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::limits::{DESCRIPTORS_MAX, PROC_FILE_BYTES_MAX, PROCESSES_MAX, THREADS_MAX};
use crate::model::Cpu;

/// A process that has a socket open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    pub pid: u32,
    /// `comm`: chosen by the process, to be escaped where it is shown.
    pub name: String,
    /// Its descriptor of the socket.
    pub descriptor: i32,
}

/// The text of a small file; `None` if it cannot be read.
pub(super) fn text(path: impl AsRef<Path>) -> Option<String> {
    let mut bytes = Vec::new();
    fs::File::open(path).ok()?.take(PROC_FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).trim_end().to_owned())
}

/// `/proc`, or a tree like it.
#[derive(Clone, Debug)]
pub struct Processes {
    root: PathBuf,
}

impl Default for Processes {
    fn default() -> Self {
        Self { root: "/proc".into() }
    }
}

impl Processes {
    #[cfg(test)]
    fn at(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    fn of(&self, pid: u32, name: &str) -> PathBuf {
        self.root.join(pid.to_string()).join(name)
    }

    pub fn name(&self, pid: u32) -> Option<String> {
        text(self.of(pid, "comm"))
    }

    fn numbers(&self) -> Vec<u32> {
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        numbers.take(PROCESSES_MAX).collect()
    }

    /// Processes whose name passes.
    pub fn named(&self, passes: impl Fn(&str) -> bool) -> Vec<u32> {
        self.numbers().into_iter().filter(|pid| self.name(*pid).is_some_and(|name| passes(&name))).collect()
    }

    /// Inodes of the sockets that a process has open, with its descriptor; none of a process of another user.
    pub fn sockets(&self, pid: u32) -> HashMap<u32, i32> {
        let entries = fs::read_dir(self.of(pid, "fd")).into_iter().flatten().flatten().take(DESCRIPTORS_MAX);
        let socket = |entry: fs::DirEntry| {
            let descriptor = entry.file_name().to_str()?.parse().ok().filter(|number| *number >= 0)?;
            let link = fs::read_link(entry.path()).ok()?;
            let inode = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()?;
            Some((inode, descriptor))
        };
        entries.filter_map(socket).collect()
    }

    /// The processes that have these sockets open. A socket that several have belongs to the one that was found first.
    pub fn owners(&self, inodes: &HashSet<u32>) -> HashMap<u32, Owner> {
        let mut found = HashMap::new();
        for pid in self.numbers() {
            if found.len() == inodes.len() {
                break;
            }
            for (inode, descriptor) in self.sockets(pid) {
                if inodes.contains(&inode) {
                    let name = self.name(pid).unwrap_or_default();
                    found.entry(inode).or_insert(Owner { pid, name, descriptor });
                }
            }
        }
        found
    }
}

/// Processor time of one thread in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Thread {
    running_ns: u64,
    /// Ready to run, and not running.
    delayed_ns: u64,
}

/// Follows the processor use of one process.
#[derive(Debug, Default)]
pub struct Usage {
    processes: Processes,
    before: Option<(u64, HashMap<u32, Thread>, Option<u64>)>,
}

impl Usage {
    #[cfg(test)]
    fn at(root: &Path) -> Self {
        Self { processes: Processes::at(root), before: None }
    }

    /// The use since the last call, and where the busiest thread sleeps now (its `wchan`; `None` where that is not shown,
    /// or while it runs). `None` at the first call, and without a process.
    pub fn update(&mut self, pid: u32, now_ns: u64) -> Option<(Cpu, Option<String>)> {
        let threads = self.threads(pid);
        if threads.is_empty() {
            self.before = None;
            return None;
        }
        let throttled = self.throttled_us(pid);
        let (then_ns, before, throttled_before) =
            self.before.replace((now_ns, threads.clone(), throttled))?;
        let period = now_ns.saturating_sub(then_ns);
        if period == 0 {
            return None;
        }
        let grown = |(tid, thread): (&u32, &Thread)| {
            let earlier = before.get(tid).copied().unwrap_or_default();
            let running = thread.running_ns.saturating_sub(earlier.running_ns);
            (running, thread.delayed_ns.saturating_sub(earlier.delayed_ns), *tid)
        };
        let (running, delayed, tid) = threads.iter().map(grown).max()?;
        let share = |ns: u64| (ns as f64 / period as f64).clamp(0.0, 1.0);
        let throttled = throttled.unwrap_or(0).saturating_sub(throttled_before.unwrap_or(0));
        let waiting = share(delayed).max(share(throttled.saturating_mul(1000)));
        let cpu = Cpu { busiest_thread: share(running), waiting, cipher: None };
        Some((cpu, self.sleeps_in(pid, tid)))
    }

    fn threads(&self, pid: u32) -> HashMap<u32, Thread> {
        let entries = fs::read_dir(self.processes.of(pid, "task")).into_iter().flatten().flatten();
        let thread = |entry: fs::DirEntry| {
            let tid = entry.file_name().to_str()?.parse().ok()?;
            let times = text(entry.path().join("schedstat"))?;
            let mut times = times.split_ascii_whitespace().map(str::parse::<u64>);
            let (running_ns, delayed_ns) = (times.next()?.ok()?, times.next()?.ok()?);
            Some((tid, Thread { running_ns, delayed_ns }))
        };
        entries.take(THREADS_MAX).filter_map(thread).collect()
    }

    /// Time in which the control group's quota stopped its processes (`cpu.stat` of cgroup 2).
    fn throttled_us(&self, pid: u32) -> Option<u64> {
        let groups = text(self.processes.of(pid, "cgroup"))?;
        let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
        if Path::new(group).components().any(|part| part == std::path::Component::ParentDir) {
            return None;
        }
        let stat = text(Path::new("/sys/fs/cgroup").join(group).join("cpu.stat"))?;
        stat.lines().find_map(|line| line.strip_prefix("throttled_usec ")?.parse().ok())
    }

    fn sleeps_in(&self, pid: u32, tid: u32) -> Option<String> {
        let function = text(self.processes.of(pid, "task").join(tid.to_string()).join("wchan"))?;
        let is_name = function.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        is_name.then_some(function)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::super::tests::pair;
    use super::*;

    fn tree() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (pid, name, inodes) in [(7, "tgtd", &[100, 101][..]), (8, "a\u{1b}[2J", &[102, 100])] {
            let dir = root.path().join(pid.to_string());
            fs::create_dir_all(dir.join("fd")).unwrap();
            fs::write(dir.join("comm"), format!("{name}\n")).unwrap();
            for (descriptor, inode) in inodes.iter().enumerate() {
                symlink(format!("socket:[{inode}]"), dir.join("fd").join(descriptor.to_string())).unwrap();
            }
            symlink("/dev/null", dir.join("fd/9")).unwrap();
        }
        fs::create_dir(root.path().join("self")).unwrap();
        root
    }

    fn schedstat(root: &Path, threads: &[(u32, &str)]) {
        for (tid, times) in threads {
            let dir = root.join("7/task").join(tid.to_string());
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("schedstat"), times).unwrap();
            fs::write(dir.join("wchan"), if *tid == 72 { "sk_stream_wait_memory" } else { "0" }).unwrap();
        }
    }

    #[test]
    fn sockets_belong_to_processes() {
        let root = tree();
        let processes = Processes::at(root.path());
        assert_eq!(processes.named(|name| name == "tgtd"), [7]);
        let owners = processes.owners(&HashSet::from([101, 102, 999]));
        assert_eq!(owners[&101], Owner { pid: 7, name: "tgtd".into(), descriptor: 1 });
        assert_eq!((owners[&102].pid, owners.len()), (8, 2));
        assert!(processes.sockets(4711).is_empty());
    }

    #[test]
    fn the_busiest_thread_counts() {
        let root = tree();
        let mut usage = Usage::at(root.path());
        schedstat(root.path(), &[(71, "1000 0 5"), (72, "500 100 7")]);
        assert_eq!(usage.update(7, 1000), None);
        schedstat(root.path(), &[(71, "1100 900 6"), (72, "1250 300 9"), (73, "nonsense")]);
        let cpu = Cpu { busiest_thread: 0.75, waiting: 0.2, cipher: None };
        assert_eq!(usage.update(7, 2000), Some((cpu, Some("sk_stream_wait_memory".to_owned()))));
        assert_eq!(usage.update(9, 3000), None);
    }

    #[test]
    fn ones_own_socket_is_found() {
        let (near, _far) = pair("127.0.0.1:0");
        let ends = |found: &super::super::Found| found.ends.local == near.local_addr().unwrap();
        let table = super::super::Prober::new().unwrap().table(false).unwrap();
        let inode = table.into_iter().find(ends).unwrap().inode;
        let owners = Processes::default().owners(&HashSet::from([inode]));
        assert_eq!(owners[&inode].pid, std::process::id());
    }
}
