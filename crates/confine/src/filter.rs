//! Seccomp: the system calls that stay allowed.
//!
//! The filter is a list of allowed calls; any other call fails with EPERM, and the kernel's audit logs it. The process
//! is not killed: a call missing from this list must not interrupt the service of storage.
//!
//! The kernel keeps a bitmap of the calls that are allowed with any arguments; for those it does not run the filter.

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};

use crate::calls;

const ANY: &[c_long] = &[
    // Files and descriptors.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_fcntl,
    libc::SYS_ioctl,
    libc::SYS_flock,
    libc::SYS_lseek,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_sync_file_range,
    libc::SYS_fallocate,
    libc::SYS_fadvise64,
    libc::SYS_ftruncate,
    libc::SYS_copy_file_range,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fstatfs,
    libc::SYS_statfs,
    libc::SYS_openat,
    libc::SYS_readlinkat,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    libc::SYS_mkdirat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_unlinkat,
    libc::SYS_linkat,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_umask,
    libc::SYS_pipe2,
    libc::SYS_eventfd2,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    // Sockets; for the families see `restricted`.
    libc::SYS_socketpair,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendmmsg,
    libc::SYS_sendfile,
    libc::SYS_recvmmsg,
    libc::SYS_shutdown,
    // Existing rings.
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    // Memory.
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_mincore,
    libc::SYS_mlock,
    libc::SYS_munlock,
    libc::SYS_brk,
    libc::SYS_membarrier,
    // Threads; for `clone` see `restricted`.
    libc::SYS_clone3,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_get_robust_list,
    libc::SYS_rseq,
    libc::SYS_set_tid_address,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_getcpu,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_tgkill,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sigaltstack,
    // Identity and time.
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getresuid,
    libc::SYS_getresgid,
    libc::SYS_getgroups,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_times,
    libc::SYS_getrusage,
    libc::SYS_getrandom,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_prlimit64,
];

/// Older calls, which only some architectures have.
#[cfg(target_arch = "x86_64")]
const OLD: &[c_long] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_getdents,
    libc::SYS_mkdir,
    libc::SYS_rename,
    libc::SYS_unlink,
    libc::SYS_chmod,
    libc::SYS_pipe,
    libc::SYS_dup2,
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_epoll_wait,
    libc::SYS_eventfd,
    libc::SYS_time,
    libc::SYS_getrlimit,
    libc::SYS_setrlimit,
    libc::SYS_arch_prctl,
];
#[cfg(not(target_arch = "x86_64"))]
const OLD: &[c_long] = &[];

/// Address families of sockets: for portals and remote storage, for name services, and for the kernel's information
/// about sockets, addresses and devices.
const FAMILIES: [i32; 4] = [libc::AF_INET, libc::AF_INET6, libc::AF_UNIX, libc::AF_NETLINK];

/// `PR_SET_VMA`: the C library names memory mappings with it.
const PR_SET_VMA: i32 = 0x5356_4d41;
const PRCTL: [i32; 5] =
    [libc::PR_SET_NAME, libc::PR_GET_NAME, libc::PR_SET_DUMPABLE, libc::PR_GET_DUMPABLE, PR_SET_VMA];

/// Flags of `clone` that create namespaces: NEWTIME, NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET.
const NAMESPACES: u64 = 0x7e02_0080;

fn restricted() -> Result<Vec<(c_long, Vec<SeccompRule>)>, seccompiler::BackendError> {
    let first_is = |value: i32| {
        let equals =
            SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, u64::from(value as u32))?;
        SeccompRule::new(vec![equals])
    };
    // A thread of this process in its namespaces, never another process.
    let mask = libc::CLONE_THREAD as u64 | NAMESPACES;
    let is_thread = SeccompCmpOp::MaskedEq(mask);
    let thread = SeccompCondition::new(0, SeccompCmpArgLen::Qword, is_thread, libc::CLONE_THREAD as u64)?;
    Ok(vec![
        (libc::SYS_clone, vec![SeccompRule::new(vec![thread])?]),
        (libc::SYS_socket, FAMILIES.into_iter().map(first_is).collect::<Result<_, _>>()?),
        (libc::SYS_prctl, PRCTL.into_iter().map(first_is).collect::<Result<_, _>>()?),
    ])
}

/// The filters: the list of allowed calls, and one that makes `clone3` fail with ENOSYS. The flags of `clone3` are in
/// memory, which a filter cannot read; on ENOSYS the C library uses `clone`.
fn programs(makes_rings: bool) -> Result<[BpfProgram; 2], String> {
    let text = |error: seccompiler::BackendError| error.to_string();
    let arch: TargetArch = std::env::consts::ARCH.try_into().map_err(text)?;
    let rings = makes_rings.then_some(libc::SYS_io_uring_setup);
    let mut rules: BTreeMap<c_long, Vec<SeccompRule>> =
        ANY.iter().chain(OLD).copied().chain(rings).map(|call| (call, Vec::new())).collect();
    rules.extend(restricted().map_err(text)?);
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    let allowed = SeccompFilter::new(rules, refuse, SeccompAction::Allow, arch).map_err(text)?;
    let absent = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let lacks = SeccompAction::Errno(libc::ENOSYS as u32);
    let absent = SeccompFilter::new(absent, SeccompAction::Allow, lacks, arch).map_err(text)?;
    Ok([BpfProgram::try_from(allowed).map_err(text)?, BpfProgram::try_from(absent).map_err(text)?])
}

pub(crate) fn restrict(makes_rings: bool) -> Result<(), String> {
    let [allowed, absent] = programs(makes_rings)?;
    // `absent` first: `allowed` does not allow the call that adds a filter.
    for program in [absent, allowed] {
        calls::add_filter(&program).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Calls of a loop over memory and descriptors that it was given: [`crate::Isolation`].
const LOOP: &[c_long] = &[
    // Bells, timers, the control socket; the log. For `sendto` see `isolated`.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_recvmsg,
    libc::SYS_ppoll,
    libc::SYS_timerfd_settime,
    libc::SYS_close,
    // Memory; for `mmap` and `mprotect` see `isolated`.
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    // Waiting and time.
    libc::SYS_sched_yield,
    libc::SYS_clock_gettime,
    libc::SYS_futex,
    libc::SYS_restart_syscall,
    // Orderly and other ends.
    libc::SYS_exit_group,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_tgkill,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    // Keys of hash tables.
    libc::SYS_getrandom,
];

#[cfg(target_arch = "x86_64")]
const LOOP_OLD: &[c_long] = &[libc::SYS_poll];
#[cfg(not(target_arch = "x86_64"))]
const LOOP_OLD: &[c_long] = &[];

/// Calls on frames of a device: TAP, packet socket, wire.
const DEVICE: &[c_long] = &[libc::SYS_readv, libc::SYS_writev, libc::SYS_getsockname];

/// Debug builds of the standard library look at the flags of each descriptor that they close.
const FCNTL: [i32; 2] = [libc::F_GETFD, libc::F_DUPFD_CLOEXEC];

fn isolated(has_device: bool) -> Result<BpfProgram, String> {
    let text = |error: seccompiler::BackendError| error.to_string();
    let arch: TargetArch = std::env::consts::ARCH.try_into().map_err(text)?;
    let device = if has_device { DEVICE } else { &[] };
    let mut rules: BTreeMap<c_long, Vec<SeccompRule>> =
        LOOP.iter().chain(LOOP_OLD).chain(device).map(|&call| (call, Vec::new())).collect();
    // Memory never becomes code: argument 2 is the protection.
    let is_data = SeccompCmpOp::MaskedEq(libc::PROT_EXEC as u64);
    let is_data = SeccompCondition::new(2, SeccompCmpArgLen::Dword, is_data, 0).map_err(text)?;
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        rules.insert(call, vec![SeccompRule::new(vec![is_data.clone()]).map_err(text)?]);
    }
    // To the peer of a connected or bound socket only: argument 4 is the address. With one, a packet socket sends on any
    // interface of its network namespace; that of `sendmsg` lies in memory, which a filter cannot read.
    let is_null = SeccompCondition::new(4, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0).map_err(text)?;
    rules.insert(libc::SYS_sendto, vec![SeccompRule::new(vec![is_null]).map_err(text)?]);
    let command = |value: i32| {
        let equals = SeccompCmpOp::Eq;
        SeccompRule::new(vec![SeccompCondition::new(1, SeccompCmpArgLen::Dword, equals, value as u64)?])
    };
    let commands = FCNTL.into_iter().map(command).collect::<Result<_, _>>().map_err(text)?;
    rules.insert(libc::SYS_fcntl, commands);
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    let allowed = SeccompFilter::new(rules, refuse, SeccompAction::Allow, arch).map_err(text)?;
    BpfProgram::try_from(allowed).map_err(text)
}

pub(crate) fn isolate(has_device: bool) -> Result<(), String> {
    calls::add_filter(&isolated(has_device)?).map_err(|error| error.to_string())
}

#[cfg(test)]
pub(crate) fn allows(call: c_long) -> bool {
    ANY.contains(&call) || OLD.contains(&call)
}
