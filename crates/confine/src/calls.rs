//! The system calls.

use std::io::{Error, Result};

use seccompiler::sock_filter;

fn check(result: libc::c_long) -> Result<libc::c_long> {
    if result < 0 { Err(Error::last_os_error()) } else { Ok(result) }
}

fn prctl(option: libc::c_int, argument: libc::c_ulong) -> Result<libc::c_long> {
    // SAFETY: the options used here take numbers, and change only this thread.
    check(
        unsafe { libc::prctl(option, argument, 0 as libc::c_ulong, 0 as libc::c_ulong, 0 as libc::c_ulong) }
            .into(),
    )
}

/// No program that is started can have more rights than this thread.
pub(crate) fn no_new_privileges() -> Result<()> {
    prctl(libc::PR_SET_NO_NEW_PRIVS, 1).map(drop)
}

/// Takes a capability from the bounding set. `false`: the kernel does not know it.
pub(crate) fn drop_from_bounding_set(capability: u32) -> Result<bool> {
    match prctl(libc::PR_CAPBSET_DROP, capability.into()) {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Empties the ambient set.
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

/// The permitted capabilities of this thread.
pub(crate) fn permitted() -> Result<u64> {
    let mut header = Header { version: VERSION_3, pid: 0 };
    let mut data = [Data::default(); 2];
    // SAFETY: version 3 means two parts of data, which the call fills.
    check(unsafe { libc::syscall(libc::SYS_capget, &raw mut header, data.as_mut_ptr()) })?;
    Ok(u64::from(data[0].permitted) | u64::from(data[1].permitted) << 32)
}

/// Makes these the permitted and effective capabilities of this thread, none inheritable.
pub(crate) fn set_capabilities(kept: u64) -> Result<()> {
    let part = |bits: u32| Data { effective: bits, permitted: bits, inheritable: 0 };
    let mut header = Header { version: VERSION_3, pid: 0 };
    let data = [part(kept as u32), part((kept >> 32) as u32)];
    // SAFETY: version 3 means two parts of data, which the call reads.
    check(unsafe { libc::syscall(libc::SYS_capset, &raw mut header, data.as_ptr()) }).map(drop)
}

/// Adds a filter to this thread. Refusals are logged by the kernel's audit; speculation stays as it is: what runs here is our
/// own code, and the mitigation that old kernels add costs time.
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
    // SAFETY: the program's instructions live through the call, which copies and checks them.
    check(unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, FLAGS, &raw const program)
    })
    .map(drop)
}
