//! What a server's process has used, from /proc.

use std::fs;

use rustix::param::clock_ticks_per_second;

/// CPU time of a process, seconds.
pub(super) fn cpu_s(pid: u32) -> Option<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(ticks(&text)? as f64 / clock_ticks_per_second() as f64)
}

/// Fields 14 and 15 of proc_pid_stat(5). The second, the program's name in parentheses, may hold any character.
fn ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let [user, system] = [fields.next()?, fields.next()?].map(str::parse::<u64>);
    user.ok()?.checked_add(system.ok()?)
}

/// Memory that no other process maps, bytes. `None` where this process may not look: without root, servers are not
/// traceable by their own user.
pub(super) fn private_bytes(pid: u32) -> Option<u64> {
    private(&fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?)
}

fn private(rollup: &str) -> Option<u64> {
    let kib = |key: &str| {
        let line = rollup.lines().find_map(|line| line.strip_prefix(key))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    Some((kib("Private_Clean:")? + kib("Private_Dirty:")?) << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_memory_are_read() {
        let stat = "7 (a) R (b) S 1 7 7 0 -1 4194560 166 0 0 0 123 45 0 0 20 0 1 0 9 1 2";
        assert_eq!((ticks(stat), ticks("7 (a) S 1 7"), ticks("")), (Some(168), None, None));
        let rollup = "Rss: 900 kB\nPrivate_Clean:        4 kB\nPrivate_Dirty:       12 kB\n";
        assert_eq!((private(rollup), private("Rss: 900 kB")), (Some(16 << 10), None));
        let pid = std::process::id();
        assert!(cpu_s(pid).is_some() && private_bytes(pid) > Some(0));
    }
}
