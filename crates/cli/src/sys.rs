//! The few system calls that the standard library lacks.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// Processor time of this process so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct CpuTime {
    /// In user mode.
    pub(crate) user: Duration,
    /// In the kernel.
    pub(crate) system: Duration,
}

impl CpuTime {
    /// What all threads of this process have used.
    pub(crate) fn now() -> Self {
        let usage = own_usage();
        let duration = |time: libc::timeval| {
            Duration::from_secs(time.tv_sec.max(0) as u64) + Duration::from_micros(time.tv_usec.max(0) as u64)
        };
        Self { user: duration(usage.ru_utime), system: duration(usage.ru_stime) }
    }

    /// What was used since `earlier`.
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            user: self.user.saturating_sub(earlier.user),
            system: self.system.saturating_sub(earlier.system),
        }
    }
}

/// Context switches of this process so far: voluntary and involuntary.
pub(crate) fn context_switches() -> [u64; 2] {
    let usage = own_usage();
    [usage.ru_nvcsw, usage.ru_nivcsw].map(|count| count.max(0) as u64)
}

fn own_usage() -> libc::rusage {
    // SAFETY: `rusage` is plain data for which all zeroes is a value, and the call only fills it.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    }
}

/// No core dump holds what this process knows from now on. Done when the first secret is read.
pub(crate) fn forbid_core_dumps() {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls take plain values and change only this process; failure leaves things as they were.
    unsafe {
        libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
    }
}

/// As many open descriptors as the system lets this process have: a session is one, and the usual limit, 1024, is
/// there for programs that use `select`.
pub(crate) fn raise_descriptor_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls take a plain value and change only this process; failure leaves things as they were.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}

/// Who this is, as far as files are concerned.
pub(crate) fn user() -> u32 {
    // SAFETY: takes nothing, cannot fail.
    unsafe { libc::geteuid() }
}

/// Whether this is root.
pub(crate) fn is_root() -> bool {
    user() == 0
}

/// The user that this process acts as.
pub(crate) fn own_uid() -> u32 {
    // SAFETY: takes nothing, cannot fail.
    unsafe { libc::geteuid() }
}

/// Longest entry of a user that is read.
const USER_ENTRY_BYTES: usize = 16 << 10;

/// The number of a user by its name, wherever this system keeps its users. `None`: there is no such user.
pub(crate) fn uid_of(name: &str) -> io::Result<Option<u32>> {
    let name = std::ffi::CString::new(name).map_err(io::Error::other)?;
    let mut text = vec![0; USER_ENTRY_BYTES];
    let mut found = std::ptr::null_mut();
    // SAFETY: `passwd` is plain data for which all zeroes is a value; name, entry, buffer and result live through the call, which
    // is told the buffer's length; of the entry only the number is read, and only if the call says that it filled it.
    unsafe {
        let mut entry: libc::passwd = std::mem::zeroed();
        let (buffer, length) = (text.as_mut_ptr(), text.len());
        match libc::getpwnam_r(name.as_ptr(), &raw mut entry, buffer, length, &raw mut found) {
            0 if found.is_null() => Ok(None),
            0 => Ok(Some(entry.pw_uid)),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

/// How a byte of a lock file is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// Nobody else may hold it.
    Exclusive,
    /// Others may hold it the same way.
    Shared,
}

/// Locks one byte of `file` until the file is closed; `Ok(false)` if somebody else holds it. Locks belong to the
/// open file, so two opens by one process exclude each other too.
pub(crate) fn lock_byte(file: &File, offset: u64, hold: Hold) -> io::Result<bool> {
    let kind = if hold == Hold::Exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
    // SAFETY: `flock` is plain data for which all zeroes is a value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as _;
    lock.l_whence = libc::SEEK_SET as _;
    lock.l_start = offset as _;
    lock.l_len = 1;
    // SAFETY: the descriptor is open and `lock` lives through the call.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    if result == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Ok(false),
        _ => Err(error),
    }
}

/// What the kernel shows of a process's own memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    /// `/proc/PID/cmdline`, to every user.
    Arguments,
    /// `/proc/PID/environ`, to this user; commands that this process starts get a copy.
    Environment,
}

/// Overwrites every occurrence of `secret` in what the kernel shows of the arguments or the environment.
///
/// Goes through `/proc/self/mem`, and touches only bytes which it has just read there as equal to the secret,
/// within the range that the kernel says holds them. To the program they stay text of the same length: of the
/// arguments the standard library hands out copies, and a variable is taken out by [`take_variable`] afterwards.
pub(crate) fn scrub(shown: Shown, secret: &str) -> io::Result<()> {
    if secret.is_empty() {
        return Ok(());
    }
    let stat = fs::read_to_string("/proc/self/stat")?;
    // The name in parentheses may contain anything; fields are counted after it: arg_start, arg_end, env_start and
    // env_end are fields 48 to 51 of proc_pid_stat(5), the state after the name is field 3.
    let first = if shown == Shown::Arguments { 48 } else { 50 };
    let after_name = stat.rfind(')').map_or("", |at| &stat[at + 1..]);
    let mut fields = after_name.split_ascii_whitespace().skip(first - 3).map(str::parse::<u64>);
    let (Some(Ok(start)), Some(Ok(end))) = (fields.next(), fields.next()) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let memory = OpenOptions::new().read(true).write(true).open("/proc/self/mem")?;
    let mut arguments = vec![0u8; end.saturating_sub(start) as usize];
    memory.read_exact_at(&mut arguments, start)?;
    let needle = secret.as_bytes();
    let mut at = 0;
    while at + needle.len() <= arguments.len() {
        if &arguments[at..at + needle.len()] == needle {
            memory.write_all_at(&vec![b'*'; needle.len()], start + at as u64)?;
            at += needle.len();
        } else {
            at += 1;
        }
    }
    arguments.fill(0);
    Ok(())
}

/// Takes a variable out of the environment, so that commands which this process starts do not get it; its value, if it
/// is text and not empty. The caller is `main` before anything else.
pub(crate) fn take_variable(name: &str) -> Option<String> {
    let value = std::env::var(name).ok().filter(|value| !value.is_empty())?;
    if let Err(error) = scrub(Shown::Environment, &value) {
        crate::output::note(&format!("warning: ${name} stays visible in /proc/PID/environ: {error}"));
    }
    // SAFETY: there is one thread yet, so no other reads or changes the environment.
    unsafe { std::env::remove_var(name) };
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_is_overwritten() {
        // The test runner's own name stands in for a password; the last letters of it are enough.
        let line = fs::read("/proc/self/cmdline").unwrap();
        let first = line.split(|byte| *byte == 0).next().unwrap();
        let tail = String::from_utf8(first[first.len() - 4..].to_vec()).unwrap();
        scrub(Shown::Arguments, &tail).unwrap();
        let after = fs::read("/proc/self/cmdline").unwrap();
        assert!(!String::from_utf8_lossy(&after).contains(&tail));
        assert_eq!(line.len(), after.len());
    }

    #[test]
    fn locked_byte_excludes_and_shares() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = || OpenOptions::new().read(true).write(true).open(file.path()).unwrap();
        let (first, second, third) = (open(), open(), open());
        assert!(lock_byte(&first, 7, Hold::Exclusive).unwrap());
        assert!(!lock_byte(&second, 7, Hold::Exclusive).unwrap());
        assert!(!lock_byte(&second, 7, Hold::Shared).unwrap());
        assert!(lock_byte(&second, 8, Hold::Shared).unwrap());
        assert!(lock_byte(&third, 8, Hold::Shared).unwrap());
        drop(first);
        assert!(lock_byte(&second, 7, Hold::Exclusive).unwrap());
    }

    #[test]
    fn processor_time_grows() {
        let before = CpuTime::now();
        let mut sum = 0u64;
        while CpuTime::now().since(before) == CpuTime::default() {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(CpuTime::now().since(before).user + CpuTime::now().since(before).system > Duration::ZERO);
    }
}
