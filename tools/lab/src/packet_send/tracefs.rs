//! Events of the kernel in one thread, by an instance of tracefs of its own: other users of tracing are not disturbed.

use std::io;
use std::path::{Path, PathBuf};

use super::notes::now_ns;

const TRACEFS: &str = "/sys/kernel/tracing";
/// Of an instance; the number of its thread follows.
const PREFIX: &str = "hikyaku-lab-";
/// Of each core's buffer.
const BUFFER_KIB: usize = 4096;

pub(super) struct Trace {
    instance: PathBuf,
    /// Of the first mark, by this process's clock.
    begun_ns: u64,
}

/// An event of the thread, outside of interrupts.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Event {
    pub(super) name: String,
    /// From the first mark.
    pub(super) at_ns: f64,
}

const FIRST_MARK: &str = "hikyaku first";
const LAST_MARK: &str = "hikyaku last";

impl Trace {
    /// Of the calling thread; needs root and a mounted tracefs whose clock counts cycles, because text has only
    /// microseconds otherwise.
    pub(super) fn start(events: &[&str]) -> io::Result<Self> {
        let thread = rustix::thread::gettid().as_raw_nonzero();
        remove_leftovers();
        let instance = Path::new(TRACEFS).join(format!("instances/{PREFIX}{thread}"));
        std::fs::create_dir(&instance)?;
        let mut trace = Self { instance, begun_ns: 0 };
        trace.write("tracing_on", "0")?;
        trace.write("trace_clock", "x86-tsc")?;
        trace.write("buffer_size_kb", &BUFFER_KIB.to_string())?;
        trace.write("set_event_pid", &thread.to_string())?;
        for event in events {
            trace.write(&format!("events/{event}/enable"), "1")?;
        }
        trace.write("tracing_on", "1")?;
        trace.write("trace_marker", FIRST_MARK)?;
        trace.begun_ns = now_ns();
        Ok(trace)
    }

    fn write(&self, file: &str, text: &str) -> io::Result<()> {
        std::fs::write(self.instance.join(file), text)
    }

    /// The events since the start.
    pub(super) fn finish(self) -> io::Result<Vec<Event>> {
        self.write("trace_marker", LAST_MARK)?;
        let elapsed_ns = now_ns() - self.begun_ns;
        self.write("tracing_on", "0")?;
        let text = std::fs::read_to_string(self.instance.join("trace"))?;
        parse(&text, elapsed_ns as f64).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        // rmdir(2) of an instance ends its events; what is left is seen in tracefs.
        let _ = std::fs::remove_dir(&self.instance);
    }
}

/// Instances of threads that were killed.
fn remove_leftovers() {
    let instances = Path::new(TRACEFS).join("instances");
    for instance in std::fs::read_dir(instances).into_iter().flatten().flatten() {
        let name = instance.file_name();
        let thread = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        if thread.is_some_and(|thread| !Path::new("/proc").join(thread).exists()) {
            // Another one may do the same.
            let _ = std::fs::remove_dir(instance.path());
        }
    }
}

/// Lines as `name-pid [cpu] flags cycles: event: fields`; the third flag tells interrupts apart. `None` without the marks.
fn parse(text: &str, elapsed_ns: f64) -> Option<Vec<Event>> {
    let mut events = Vec::new();
    let (mut first, mut last) = (None, None);
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((_, line)) = line.split_once("] ") else { continue };
        let mut words = line.split_whitespace();
        let (Some(flags), Some(cycles), Some(name)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let Ok(cycles) = cycles.trim_end_matches(':').parse::<u64>() else { continue };
        if line.ends_with(FIRST_MARK) {
            first = Some(cycles);
        } else if line.ends_with(LAST_MARK) {
            last = Some(cycles);
        } else if matches!(flags.as_bytes().get(2), Some(b'.')) {
            // "sys_sendto(fd: 3, ...": a system call has no name of its own in text.
            events
                .push((name.trim_end_matches(':').split('(').next().unwrap_or_default().to_owned(), cycles));
        }
    }
    let (first, last) = (first?, last?);
    let ns = elapsed_ns / last.checked_sub(first).filter(|cycles| *cycles > 0)? as f64;
    let since = |cycles: u64| cycles.saturating_sub(first) as f64 * ns;
    Some(events.into_iter().map(|(name, cycles)| Event { name, at_ns: since(cycles) }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_interrupts_are_left_out_and_cycles_become_time() {
        let text = "\
# tracer: nop
        hikyaku-lab-7 [000] ...1. 1000: tracing_mark_write: hikyaku first
        hikyaku-lab-7 [000] ..... 1200: sys_sendto(fd: 3, buff: 7f, len: 100, flags: 4000, addr: 0, addr_len: 0)
        hikyaku-lab-7 [000] b.... 1300: net_dev_queue: dev=hkveth skbaddr=0 len=322
        hikyaku-lab-7 [000] b.s2. 1400: net_dev_queue: dev=hkveth skbaddr=0 len=66
        hikyaku-lab-7 [000] ..... 1500: sys_sendto -> 0x100
        hikyaku-lab-7 [000] ...1. 3000: tracing_mark_write: hikyaku last
";
        let events = parse(text, 1000.0).unwrap();
        let seen: Vec<_> = events.iter().map(|event| (event.name.as_str(), event.at_ns)).collect();
        assert_eq!(seen, [("sys_sendto", 100.0), ("net_dev_queue", 150.0), ("sys_sendto", 250.0)]);
        assert!(parse("", 1.0).is_none());
    }
}
