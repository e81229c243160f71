//! The policy as data, and a bound thread that attempts forbidden calls.

use std::fs::File;
use std::io::{Error, ErrorKind, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;

use super::*;

fn access(policy: &Policy, path: &str) -> Option<Access> {
    policy.grants.iter().filter(|grant| grant.path == Path::new(path)).map(|grant| grant.access).max()
}

#[test]
fn files_of_an_ordinary_server_need_no_capability_and_no_directory() {
    let needs = Needs {
        storage: vec!["/srv/disk.img".into()],
        state: vec!["/var/lib/hikyaku".into()],
        configuration: vec!["/etc/hikyaku/hikyaku.toml".into(), "peers.toml".into()],
        ..Needs::default()
    };
    let policy = Policy::of(&needs);
    assert_eq!(policy.capabilities, Capabilities::NONE);
    assert!(!policy.makes_rings);
    assert_eq!(access(&policy, "/srv/disk.img"), Some(Access::Storage));
    assert_eq!(access(&policy, "/srv"), None);
    assert_eq!(access(&policy, "/var/lib/hikyaku"), Some(Access::State));
    assert_eq!(access(&policy, "/etc/hikyaku"), Some(Access::Read));
    assert_eq!(access(&policy, "."), Some(Access::Read));
    assert_eq!(access(&policy, "/etc"), None);
    assert_eq!(access(&policy, "/dev/null"), Some(Access::Storage));
}

#[test]
fn each_need_adds_what_it_needs_and_no_more() {
    let base = Policy::of(&Needs::default());
    let capabilities = |needs: Needs| Policy::of(&needs).capabilities;
    assert_eq!(capabilities(Needs { scsi: true, ..Needs::default() }), Capabilities::SYS_RAWIO);
    let nvme = Policy::of(&Needs { nvme: true, ..Needs::default() });
    assert_eq!((nvme.capabilities, nvme.makes_rings), (Capabilities::SYS_ADMIN, true));
    let directories = Needs { storage_directories: vec!["/srv".into()], ..Needs::default() };
    assert_eq!(access(&Policy::of(&directories), "/srv"), Some(Access::Storage));
    assert_eq!(capabilities(directories), Capabilities::DAC_OVERRIDE);
    let resolves = Policy::of(&Needs { resolves: true, ..Needs::default() });
    assert_eq!(access(&resolves, "/etc"), Some(Access::Read));
    assert_eq!((access(&base, "/etc"), resolves.capabilities), (None, Capabilities::NONE));
}

#[test]
fn no_call_that_makes_programs_processes_or_power_is_on_the_list() {
    let never = [
        libc::SYS_execve,
        libc::SYS_execveat,
        libc::SYS_ptrace,
        libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev,
        libc::SYS_mount,
        libc::SYS_bpf,
        libc::SYS_keyctl,
        libc::SYS_userfaultfd,
        libc::SYS_perf_event_open,
        libc::SYS_kexec_load,
        libc::SYS_init_module,
        libc::SYS_finit_module,
        libc::SYS_setns,
        libc::SYS_unshare,
        libc::SYS_io_uring_setup,
        libc::SYS_pidfd_getfd,
        libc::SYS_kill,
        libc::SYS_setuid,
        libc::SYS_capset,
        libc::SYS_chroot,
    ];
    for call in never {
        assert!(!filter::allows(call), "system call {call}");
    }
}

fn call(number: libc::c_long) -> Option<i32> {
    // SAFETY: with zero arguments none of these calls has an effect: the filter or the kernel rejects it.
    let result = unsafe { libc::syscall(number, 0, 0, 0, 0, 0, 0) };
    if result < 0 { Error::last_os_error().raw_os_error() } else { None }
}

/// One thread is bound, attempts the calls, and ends; the other threads of this test are not bound.
#[test]
fn a_bound_thread_serves_and_does_nothing_else() {
    let inside = tempfile::tempdir().unwrap();
    let outside = tempfile::tempdir().unwrap();
    let (image, secret) = (inside.path().join("disk.img"), outside.path().join("secret"));
    std::fs::write(&image, [0; 4096]).unwrap();
    std::fs::write(&secret, "secret").unwrap();
    let state = inside.path().join("state");
    std::fs::create_dir(&state).unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let needs = Needs { storage: vec![image.clone()], state: vec![state.clone()], ..Needs::default() };
    let already_open = File::open(&secret).unwrap();
    let body = move || {
        let report = Policy::of(&needs).apply();
        let lacks = |part: &str| report.missing.iter().any(|missing| missing.starts_with(part));
        // Allowed actions.
        let mut file = File::options().read(true).write(true).open(&image).unwrap();
        file.write_all(b"data").unwrap();
        file.sync_data().unwrap();
        file.set_len(8192).unwrap();
        std::fs::write(state.join("new"), "state").unwrap();
        std::fs::rename(state.join("new"), state.join("old")).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        listener.accept().unwrap();
        drop(client);
        assert_eq!(std::thread::spawn(|| 7).join().unwrap(), 7, "threads");
        assert_eq!(already_open.metadata().unwrap().len(), 6, "what was open stays open");
        assert!(!std::fs::read_to_string("/proc/self/status").unwrap().is_empty());
        // Forbidden actions.
        if !lacks("Landlock") {
            let denied = |result: std::io::Result<()>| {
                assert_eq!(result.unwrap_err().kind(), ErrorKind::PermissionDenied);
            };
            denied(File::open(&secret).map(drop));
            denied(File::open(outside.path()).map(drop));
            denied(File::create(outside.path().join("new")).map(drop));
            denied(File::create(inside.path().join("new")).map(drop));
            denied(std::fs::remove_file(&image));
            denied(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map(drop));
        }
        if !lacks("seccomp") {
            assert!(Command::new("/bin/true").status().is_err());
            for number in [
                libc::SYS_execve,
                libc::SYS_ptrace,
                libc::SYS_io_uring_setup,
                libc::SYS_unshare,
                libc::SYS_setns,
                libc::SYS_bpf,
                libc::SYS_keyctl,
                libc::SYS_userfaultfd,
                libc::SYS_mount,
                libc::SYS_kill,
            ] {
                assert_eq!(call(number), Some(libc::EPERM), "system call {number}");
            }
            assert_eq!(call(libc::SYS_clone3), Some(libc::ENOSYS));
        }
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        for line in [
            "NoNewPrivs:\t1",
            "CapEff:\t0000000000000000",
            "CapPrm:\t0000000000000000",
            "CapAmb:\t0000000000000000",
        ] {
            assert!(status.contains(line), "no {line} in {status}");
        }
        report
    };
    let report = std::thread::spawn(body).join().unwrap();
    println!("missing here: {:?}", report.missing);
    // Other threads are not bound.
    assert!(File::open("/proc/self/exe").is_ok());
}

/// What an isolated process may not do any more, by name; run in the process itself.
fn attempts(has_device: bool, [one, other]: [i32; 2]) -> Vec<(&'static str, bool)> {
    let errno = |result: isize| if result < 0 { Error::last_os_error().raw_os_error() } else { None };
    // SAFETY: plain system calls on a pair of sockets; the message and the address are zeroed plain data that live through
    // the calls.
    let (with_address, message, without) = unsafe {
        let address: libc::sockaddr_ll = std::mem::zeroed();
        let length = size_of_val(&address) as libc::socklen_t;
        let header: libc::msghdr = std::mem::zeroed();
        let byte = (&raw const address).cast();
        (
            errno(libc::sendto(one, byte, 1, 0, (&raw const address).cast(), length)),
            errno(libc::sendmsg(one, &raw const header, 0)),
            errno(libc::send(one, byte, 1, 0)).is_none()
                && libc::read(other, [0u8; 8].as_mut_ptr().cast(), 8) == 1,
        )
    };
    let denied =
        |result: Result<(), Error>| result.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied);
    // SAFETY: plain system calls; the mapping, if there is one, is never used.
    let (socket, code, killed) = unsafe {
        let code = libc::PROT_READ | libc::PROT_EXEC;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        (
            libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0),
            libc::mmap(std::ptr::null_mut(), 4096, code, flags, -1, 0) == libc::MAP_FAILED,
            libc::kill(libc::getppid(), 0) == 0,
        )
    };
    vec![
        ("open a file", denied(File::open("/proc/self/exe").map(drop))),
        ("make a socket", socket < 0),
        ("map code", code),
        ("signal its parent", !killed),
        ("write frames", (call(libc::SYS_writev) == Some(libc::EPERM)) != has_device),
        ("send to an address", with_address == Some(libc::EPERM)),
        ("send a message with an address of its own", message == Some(libc::EPERM)),
        ("still send to its peer", without),
        ("set a user", call(libc::SYS_setuid) == Some(libc::EPERM)),
        ("still allocate memory", vec![7u8; 1 << 20].iter().all(|&byte| byte == 7)),
    ]
}

/// In a process of its own: limits, namespaces and the death signal belong to processes.
#[test]
fn an_isolated_process_computes_and_does_nothing_else() {
    for has_device in [false, true] {
        isolated(has_device);
    }
}

fn isolated(has_device: bool) {
    let mut pair = [0; 2];
    // SAFETY: the call fills the pair; its descriptors live as long as this process.
    assert_eq!(unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0, pair.as_mut_ptr()) }, 0);
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    // SAFETY: the child allocates, which the C library allows after a fork, takes no lock of another thread, and ends
    // without returning.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let report = Isolation { user: 65_520, has_device }.apply();
        let mut text = format!("{:?}\n", report.missing);
        for (name, is_right) in attempts(has_device, pair) {
            text += &format!("{name}: {is_right}\n");
        }
        let _ = writer.write_all(text.as_bytes());
        // SAFETY: ends this process at once.
        unsafe { libc::_exit(0) };
    }
    drop(writer);
    let mut text = String::new();
    std::io::Read::read_to_string(&mut reader, &mut text).unwrap();
    // SAFETY: waits for the child made above.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    println!("missing here: {text}");
    assert_eq!(text.lines().count(), 11, "{text}");
    if text.starts_with("[]") {
        assert!(!text.contains("false"), "{text}");
    }
}
