//! Wrappers of the system calls.

use std::io::{Error, Result};

use seccompiler::sock_filter;

fn check(result: libc::c_long) -> Result<libc::c_long> {
    if result < 0 { Err(Error::last_os_error()) } else { Ok(result) }
}

fn prctl(option: libc::c_int, argument: libc::c_ulong) -> Result<libc::c_long> {
    // SAFETY: the options used here take integers, and affect only this thread.
    check(
        unsafe { libc::prctl(option, argument, 0 as libc::c_ulong, 0 as libc::c_ulong, 0 as libc::c_ulong) }
            .into(),
    )
}

/// No program executed later can gain rights beyond this thread's.
pub(crate) fn no_new_privileges() -> Result<()> {
    prctl(libc::PR_SET_NO_NEW_PRIVS, 1).map(drop)
}

/// Other processes of this user cannot trace this one or open its files in `/proc`; it leaves no core dump.
pub(crate) fn forbid_tracing() -> Result<()> {
    prctl(libc::PR_SET_DUMPABLE, 0).map(drop)
}

/// The kernel kills this process when the thread that started it ends.
pub(crate) fn die_with_parent() -> Result<()> {
    prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong).map(drop)
}

/// Moves this thread into new namespaces.
pub(crate) fn unshare(namespaces: libc::c_int) -> Result<()> {
    // SAFETY: a plain system call without pointers; it changes what this thread sees of the system, not its memory.
    check(unsafe { libc::unshare(namespaces) }.into()).map(drop)
}

/// Sets all user and group numbers of this thread, and leaves all other groups.
pub(crate) fn set_user(user: u32) -> Result<()> {
    // SAFETY: plain system calls; the list of groups is empty, so its pointer is not read.
    unsafe {
        check(libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()))?;
        check(libc::syscall(libc::SYS_setresgid, user, user, user))?;
        check(libc::syscall(libc::SYS_setresuid, user, user, user)).map(drop)
    }
}

/// Lowers a limit of this process; one that is lower already stays.
pub(crate) fn limit(resource: libc::__rlimit_resource_t, most: u64) -> Result<()> {
    let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure lives through both calls.
    unsafe {
        check(libc::getrlimit(resource, &raw mut limits).into())?;
        let most = most.min(limits.rlim_max);
        limits = libc::rlimit { rlim_cur: most, rlim_max: most };
        check(libc::setrlimit(resource, &raw const limits).into()).map(drop)
    }
}

/// Removes a capability from the bounding set. `false`: unknown to the kernel.
pub(crate) fn drop_from_bounding_set(capability: u32) -> Result<bool> {
    match prctl(libc::PR_CAPBSET_DROP, capability.into()) {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
        Err(error) => Err(error),
    }
}

pub(crate) fn clear_ambient_set() -> Result<()> {
    prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong).map(drop)
}

/// `struct __user_cap_header_struct`.
#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

/// `struct __user_cap_data_struct`: 32 capabilities.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Data {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// `_LINUX_CAPABILITY_VERSION_3`: 64 capabilities, in two parts.
const VERSION_3: u32 = 0x2008_0522;

pub(crate) fn permitted() -> Result<u64> {
    let mut header = Header { version: VERSION_3, pid: 0 };
    let mut data = [Data::default(); 2];
    // SAFETY: version 3 has two elements of data, which the call fills.
    check(unsafe { libc::syscall(libc::SYS_capget, &raw mut header, data.as_mut_ptr()) })?;
    Ok(u64::from(data[0].permitted) | u64::from(data[1].permitted) << 32)
}

/// Sets the permitted and effective capabilities of this thread; the inheritable set is emptied.
pub(crate) fn set_capabilities(kept: u64) -> Result<()> {
    let part = |bits: u32| Data { effective: bits, permitted: bits, inheritable: 0 };
    let mut header = Header { version: VERSION_3, pid: 0 };
    let data = [part(kept as u32), part((kept >> 32) as u32)];
    // SAFETY: version 3 has two elements of data, which the call reads.
    check(unsafe { libc::syscall(libc::SYS_capset, &raw mut header, data.as_ptr()) }).map(drop)
}

/// Adds a filter to this thread. The kernel's audit logs refused calls. Speculation mitigations stay off: only this
/// program's code runs here, and the mitigation of old kernels costs time.
pub(crate) fn add_filter(program: &[sock_filter]) -> Result<()> {
    /// `SECCOMP_FILTER_FLAG_LOG | SECCOMP_FILTER_FLAG_SPEC_ALLOW`.
    const FLAGS: libc::c_ulong = 1 << 1 | 1 << 2;
    /// `struct sock_fprog`.
    #[repr(C)]
    struct Program {
        length: libc::c_ushort,
        filter: *const sock_filter,
    }
    let length = libc::c_ushort::try_from(program.len()).map_err(Error::other)?;
    let program = Program { length, filter: program.as_ptr() };
    // SAFETY: the instructions of the program live through the call, which copies and checks them.
    check(unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, FLAGS, &raw const program)
    })
    .map(drop)
}
