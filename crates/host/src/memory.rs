//! How much memory this process may take.

use std::fs;
use std::path::Path;

/// Where control groups are mounted below `/sys/fs/cgroup`, and their file with the limit: version 2, version 1.
const HIERARCHIES: [(&str, &str, &str); 2] =
    [("", "", "memory.max"), ("memory", "memory", "memory.limit_in_bytes")];

/// Bytes of memory that this process may have in all: of the machine or, if less, of the control groups that contain it.
/// `None` if the kernel shows neither.
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
    for (controller, directory, file) in HIERARCHIES {
        // `ID:CONTROLLERS:/PATH`; the hierarchy of version 2 names no controller.
        let path = own.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(":/")?;
            controllers.split(',').any(|name| name == controller).then_some(path)
        });
        // Each group limits those in it; a path that leads elsewhere is none of the kernel's.
        let groups = Path::new(path.unwrap_or_default()).ancestors().filter(|path| !path.starts_with(".."));
        limits.extend(groups.filter_map(|path| {
            let text = fs::read_to_string(root.join(directory).join(path).join(file)).ok()?;
            text.trim().parse::<u64>().ok()
        }));
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
