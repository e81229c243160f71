//! System calls that the standard library lacks, and files that are replaced as a whole.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::process::{
    DumpableBehavior, Resource, Rlimit, geteuid, getrlimit, set_dumpable_behavior, setrlimit,
};

/// Context switches of this process: voluntary and involuntary.
pub(crate) fn context_switches() -> [u64; 2] {
    let usage = job::cpu::usage();
    [usage.ru_nvcsw, usage.ru_nivcsw].map(|count| count.max(0) as u64)
}

/// Forbids core dumps of this process. Called when the first secret is read. On failure nothing changes.
pub(crate) fn forbid_core_dumps() {
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}

/// Raises the soft limit of open descriptors to the hard limit: each session needs one, and the usual soft limit of
/// 1024 exists for programs that use `select`.
pub(crate) fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Replaces a file as a whole: after a crash it has the old content or the new. The caller holds a lock that excludes
/// other writers. The new file has one name, `path` with `.new` behind it: what a killed process has left is overwritten.
pub(crate) fn replace_file(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    let directory = path.parent().expect("a file in a directory");
    let write = || {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let mut file = options.open(&new)?;
        file.set_permissions(Permissions::from_mode(mode))?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&new, path)
    };
    write().inspect_err(|_| drop(fs::remove_file(&new)))?;
    File::open(directory)?.sync_all()
}

/// The effective user ID, which file permissions apply to.
pub(crate) fn user() -> u32 {
    geteuid().as_raw()
}

pub(crate) fn is_root() -> bool {
    user() == 0
}

/// The name of a group in `/etc/group`, where the groups of devices are.
pub(crate) fn group_name(gid: u32) -> Option<String> {
    let groups = fs::read_to_string("/etc/group").ok()?;
    let number = gid.to_string();
    let mut names = groups.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1) == Some(&*number)).then(|| name.to_owned())
    });
    names.next()
}

/// The version of Landlock that the kernel supports.
pub(crate) fn landlock_abi() -> io::Result<i32> {
    /// `LANDLOCK_CREATE_RULESET_VERSION`: no rule set is created, the version is returned.
    const VERSION: libc::c_uint = 1;
    let (none, size) = (std::ptr::null::<libc::c_void>(), 0usize);
    // SAFETY: with this flag the call takes no attribute and no size, and creates nothing.
    let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, none, size, VERSION) };
    if version < 0 { Err(io::Error::last_os_error()) } else { Ok(version as i32) }
}

/// Whether the kernel has seccomp filters that make a call fail with an error.
pub(crate) fn can_filter_calls() -> bool {
    /// `SECCOMP_GET_ACTION_AVAIL` and `SECCOMP_RET_ERRNO`.
    const IS_AVAILABLE: libc::c_ulong = 2;
    let errno: u32 = 0x0005_0000;
    let flags: libc::c_ulong = 0;
    // SAFETY: the operation reads the action that lives through the call, and changes nothing.
    unsafe { libc::syscall(libc::SYS_seccomp, IS_AVAILABLE, flags, &raw const errno) == 0 }
}

const USER_ENTRY_BYTES: usize = 16 << 10;

/// The user ID of a name, from the system's user database. `None`: there is no such user.
pub(crate) fn uid_of(name: &str) -> io::Result<Option<u32>> {
    let name = std::ffi::CString::new(name).map_err(io::Error::other)?;
    let mut text = vec![0; USER_ENTRY_BYTES];
    let mut found = std::ptr::null_mut();
    // SAFETY: `passwd` is plain data for which all zeroes is a valid value; name, entry, buffer and result live through
    // the call, which gets the buffer's length; of the entry only the number is read, and only if the call reports that
    // it filled it.
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

/// A part of a process's memory that the kernel shows in `/proc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    /// `/proc/PID/cmdline`, readable by every user.
    Arguments,
    /// `/proc/PID/environ`, readable by this user; child processes get a copy.
    Environment,
}

/// Overwrites every occurrence of `secret` in the arguments or the environment as shown by the kernel.
///
/// Writes through `/proc/self/mem`, only to bytes just read there as equal to the secret, within the range that the
/// kernel reports. The strings keep their length: the standard library returns copies of the arguments, and
/// [`take_variable`] removes a variable afterwards.
pub(crate) fn scrub(shown: Shown, secret: &str) -> io::Result<()> {
    if secret.is_empty() {
        return Ok(());
    }
    let stat = fs::read_to_string("/proc/self/stat")?;
    // The name in parentheses may contain any character, so fields are counted after it: arg_start, arg_end, env_start
    // and env_end are fields 48 to 51 of proc_pid_stat(5); the state after the name is field 3.
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

/// Removes a variable from the environment, so that child processes do not get it. Returns its value if that is valid
/// text and not empty. To be called by `main` before anything else.
pub(crate) fn take_variable(name: &str) -> Option<String> {
    let value = std::env::var(name).ok().filter(|value| !value.is_empty())?;
    if let Err(error) = scrub(Shown::Environment, &value) {
        crate::output::note(&format!("warning: ${name} stays visible in /proc/PID/environ: {error}"));
    }
    // SAFETY: the process has only one thread yet, so no other thread reads or changes the environment.
    unsafe { std::env::remove_var(name) };
    Some(value)
}

/// Whether this process ignores a signal. `false` where /proc does not tell.
pub(crate) fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_left_by_a_killed_replacement_is_overwritten() {
        let home = tempfile::tempdir().unwrap();
        let (path, new) = (home.path().join("list"), home.path().join("list.new"));
        fs::write(&path, "old").unwrap();
        fs::write(&new, "half of a longer text").unwrap();
        fs::set_permissions(&new, Permissions::from_mode(0o666)).unwrap();
        for mode in [0o600, 0o644] {
            replace_file(&path, b"text", mode).unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"text");
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode);
            assert!(!new.exists());
        }
        // A link is not followed.
        std::os::unix::fs::symlink(&path, &new).unwrap();
        replace_file(&path, b"other", 0o600).unwrap_err();
        assert_eq!(fs::read(&path).unwrap(), b"text");
    }

    #[test]
    fn command_line_is_overwritten() {
        // The test runner's own name stands for a password; its last letters are enough.
        let line = fs::read("/proc/self/cmdline").unwrap();
        let first = line.split(|byte| *byte == 0).next().unwrap();
        let tail = String::from_utf8(first[first.len() - 4..].to_vec()).unwrap();
        scrub(Shown::Arguments, &tail).unwrap();
        let after = fs::read("/proc/self/cmdline").unwrap();
        assert!(!String::from_utf8_lossy(&after).contains(&tail));
        assert_eq!(line.len(), after.len());
    }
}
