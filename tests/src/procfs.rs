//! Resource usage of other processes and of this machine, from `/proc`.

use std::fs;

use anyhow::{Context as _, Result};

/// User and system time of a process with all its threads, in seconds.
pub fn cpu_seconds(pid: u32) -> Result<(f64, f64)> {
    let path = format!("/proc/{pid}/stat");
    let stat = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    // proc(5): after the parenthesised name, utime and stime are the 12th and 13th fields.
    let fields: Vec<&str> = stat.rsplit_once(')').context("no name in stat")?.1.split_whitespace().collect();
    let ticks =
        |index: usize| -> Result<f64> { Ok(fields.get(index).context("short stat")?.parse::<f64>()?) };
    Ok((ticks(11)? / ticks_per_second(), ticks(12)? / ticks_per_second()))
}

fn ticks_per_second() -> f64 {
    // SAFETY: the call takes a constant and touches no memory.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    if ticks > 0 { ticks as f64 } else { 100.0 }
}

/// A number of `/proc/PID/status`.
fn status(pid: u32, key: &str) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let value = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    let value = value.with_context(|| format!("no {key} in {path}"))?;
    Ok(value.split_whitespace().next().context("no value")?.parse()?)
}

/// Resident memory of a process, in bytes, shared memory and mapped files included.
pub fn resident_bytes(pid: u32) -> Result<u64> {
    Ok(status(pid, "VmRSS")? << 10)
}

/// Maximum resident memory of a process so far, in bytes.
pub fn resident_bytes_peak(pid: u32) -> Result<u64> {
    Ok(status(pid, "VmHWM")? << 10)
}

/// Names of the threads that the process started. The kernel's io_uring workers (`iou-wrk-PID`) are tasks of the
/// process too, but the kernel starts them when an operation would block and ends them after idle seconds.
pub fn threads(pid: u32) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end between the listing and the reading.
        let Ok(name) = fs::read_to_string(task?.path().join("comm")) else { continue };
        if !name.starts_with("iou-") {
            names.push(name.trim_end().to_owned());
        }
    }
    Ok(names)
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Memory {
    /// `VmRSS`: the sum of the next three.
    pub resident: u64,
    pub anonymous: u64,
    /// `RssFile`: mapped files, including the program itself.
    pub file: u64,
    /// `RssShmem`: shared memory.
    pub shared: u64,
    /// `VmHWM`: the maximum of `VmRSS` so far.
    pub resident_max: u64,
}

pub fn memory(pid: u32) -> Result<Memory> {
    let bytes = |key: &str| -> Result<u64> { Ok(status(pid, key)? << 10) };
    Ok(Memory {
        resident: resident_bytes(pid)?,
        anonymous: bytes("RssAnon")?,
        file: bytes("RssFile")?,
        shared: bytes("RssShmem")?,
        resident_max: resident_bytes_peak(pid)?,
    })
}

pub fn descriptors(pid: u32) -> Result<usize> {
    let path = format!("/proc/{pid}/fd");
    Ok(fs::read_dir(&path).with_context(|| format!("read {path}"))?.count())
}

pub fn cpu_model() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = info.lines().find(|line| line.starts_with("model name") || line.starts_with("CPU part"));
    line.and_then(|line| line.split_once(':'))
        .map_or("unknown".to_owned(), |(_, name)| name.trim().to_owned())
}

pub fn kernel_release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}

pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Busy time of the whole machine, in seconds.
pub fn machine_busy_seconds() -> Result<f64> {
    let stat = fs::read_to_string("/proc/stat").context("read /proc/stat")?;
    let line = stat.lines().next().context("empty /proc/stat")?;
    let values: Vec<f64> = line.split_whitespace().skip(1).take(8).filter_map(|v| v.parse().ok()).collect();
    let idle = values.get(3).copied().unwrap_or(0.0) + values.get(4).copied().unwrap_or(0.0);
    Ok((values.iter().sum::<f64>() - idle) / ticks_per_second())
}

/// CPU time of the live threads of a process, in seconds, at a finer resolution than ticks. Ended threads are not
/// counted.
pub fn thread_cpu_seconds(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/task");
    let mut sum = 0.0;
    for task in fs::read_dir(&path).with_context(|| format!("read {path}"))? {
        let schedstat = fs::read_to_string(task?.path().join("schedstat"))?;
        sum += schedstat.split_whitespace().next().context("empty schedstat")?.parse::<f64>()? / 1e9;
    }
    Ok(sum)
}

fn children_usage() -> libc::rusage {
    // SAFETY: `usage` is plain data that the call fills in.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage);
        usage
    }
}

/// Context switches of all reaped children.
pub fn children_context_switches() -> i64 {
    let usage = children_usage();
    usage.ru_nvcsw + usage.ru_nivcsw
}

/// User and system time of all reaped children, in seconds.
pub fn children_cpu_seconds() -> (f64, f64) {
    let usage = children_usage();
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    (seconds(usage.ru_utime), seconds(usage.ru_stime))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_process_is_readable() {
        let pid = std::process::id();
        assert!(cpu_seconds(pid).unwrap().0 >= 0.0);
        // Read before the peak: other tests of this process allocate. Both are sums of inexact counters per processor.
        let resident = resident_bytes(pid).unwrap();
        assert!(resident > 1 << 20);
        assert!(resident_bytes_peak(pid).unwrap() >= resident / 2);
        assert!(!threads(pid).unwrap().is_empty());
        let memory = memory(pid).unwrap();
        assert!(memory.resident_max >= memory.anonymous && memory.file > 0, "{memory:?}");
        assert!(descriptors(pid).unwrap() >= 3);
        assert!(machine_busy_seconds().unwrap() > 0.0);
    }
}
