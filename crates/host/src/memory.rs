//! How much memory this process may take.

use std::fs;
use std::path::Path;

/// Control groups with a limit of memory: of version 2, of version 1.
struct Hierarchy {
    controller: &'static str,
    /// Below `/sys/fs/cgroup`.
    directory: &'static str,
    limit: &'static str,
    usage: &'static str,
    /// Names in `memory.stat` of what the kernel takes back when a process needs memory.
    cached: [&'static str; 2],
}

const HIERARCHIES: [Hierarchy; 2] = [
    Hierarchy {
        controller: "",
        directory: "",
        limit: "memory.max",
        usage: "memory.current",
        cached: ["inactive_file", "active_file"],
    },
    Hierarchy {
        controller: "memory",
        directory: "memory",
        limit: "memory.limit_in_bytes",
        usage: "memory.usage_in_bytes",
        cached: ["total_inactive_file", "total_active_file"],
    },
];

impl Hierarchy {
    /// What a group leaves to this process: its limit less what its processes have. `None` without a limit.
    fn left(&self, group: &Path) -> Option<u64> {
        let number = |file| fs::read_to_string(group.join(file)).ok()?.trim().parse::<u64>().ok();
        let limit = number(self.limit)?;
        let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
        let lines = stat.lines().filter_map(|line| line.split_once(' '));
        let cached = lines.filter(|(name, _)| self.cached.contains(name));
        let cached: u64 = cached.filter_map(|(_, bytes)| bytes.parse::<u64>().ok()).sum();
        Some(limit.saturating_sub(number(self.usage).unwrap_or(0).saturating_sub(cached)))
    }
}

/// Bytes of memory that this process can take: all of the machine's or, if less, what is left of a control group that
/// contains it, beyond which the kernel kills a process. `None` if the kernel shows neither.
pub fn memory_bytes_max() -> Option<u64> {
    bytes_max(Path::new("/proc"), Path::new("/sys/fs/cgroup"))
}

fn bytes_max(proc: &Path, root: &Path) -> Option<u64> {
    let text = fs::read_to_string(proc.join("meminfo")).ok();
    let total = text.as_deref().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
    });
    let own = fs::read_to_string(proc.join("self/cgroup")).unwrap_or_default();
    let mut limits = Vec::new();
    for hierarchy in &HIERARCHIES {
        // `ID:CONTROLLERS:/PATH`; the hierarchy of version 2 names no controller.
        let path = own.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(":/")?;
            controllers.split(',').any(|name| name == hierarchy.controller).then_some(path)
        });
        // Each group limits those in it; a path that leads elsewhere is none of the kernel's.
        let groups = Path::new(path.unwrap_or_default()).ancestors().filter(|path| !path.starts_with(".."));
        limits.extend(groups.filter_map(|path| hierarchy.left(&root.join(hierarchy.directory).join(path))));
    }
    total.into_iter().chain(limits).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_of_machine_and_groups_counts() {
        let root = tempfile::tempdir().unwrap();
        let [proc, groups] = ["proc", "groups"].map(|name| root.path().join(name));
        fs::create_dir_all(proc.join("self")).unwrap();
        fs::create_dir_all(groups.join("a/b")).unwrap();
        assert_eq!(bytes_max(&proc, &groups), None);
        fs::write(proc.join("meminfo"), "MemTotal:       2048 kB\nMemFree: 5 kB\n").unwrap();
        assert_eq!(bytes_max(&proc, &groups), Some(2 << 20));
        fs::write(proc.join("self/cgroup"), "1:name=x:/else\n0::/a/b\n").unwrap();
        fs::write(groups.join("a/b/memory.max"), "max\n").unwrap();
        assert_eq!(bytes_max(&proc, &groups), Some(2 << 20));
        fs::write(groups.join("a/memory.max"), "1048576\n").unwrap();
        assert_eq!(bytes_max(&proc, &groups), Some(1 << 20));
        // What processes have is not left, but for what the kernel takes back from its caches.
        fs::write(groups.join("a/memory.current"), "1000000\n").unwrap();
        fs::write(groups.join("a/memory.stat"), "anon 700000\nactive_file 100000\ninactive_file 200000\n")
            .unwrap();
        assert_eq!(bytes_max(&proc, &groups), Some((1 << 20) - 700_000));
        fs::write(groups.join("memory.max"), "4096\n").unwrap();
        assert_eq!(bytes_max(&proc, &groups), Some(4096));
        // Version 1 beside version 2, which has no such controller then.
        fs::remove_file(groups.join("memory.max")).unwrap();
        fs::write(proc.join("self/cgroup"), "4:cpu,memory:/c\n1:name=memory:/a\n0::/\n").unwrap();
        fs::create_dir_all(groups.join("memory/c")).unwrap();
        fs::write(groups.join("memory/memory.limit_in_bytes"), "9223372036854771712\n").unwrap();
        assert_eq!(bytes_max(&proc, &groups), Some(2 << 20));
        fs::write(groups.join("memory/c/memory.limit_in_bytes"), "8192\n").unwrap();
        assert_eq!(bytes_max(&proc, &groups), Some(8192));
    }
}
