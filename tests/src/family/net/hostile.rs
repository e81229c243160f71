//! Applications that lie to the supervisor harm themselves alone.

use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use net::control::{FromClient, MESSAGE_BYTES_MAX, ToClient, VERSION};
use net::control_socket::{receive, send};

use super::Net;
use super::place::{LIMIT, transfers_work};
use crate::{Cases, Context, wait_until};

const REGION_BYTES: u32 = 1 << 20;

pub(super) fn examine(context: &Context, cases: &mut Cases) {
    cases.check("hostile-memory", || memory(context));
    cases.check("hostile-messages", || messages(context));
    cases.check("hostile-log", || log(context));
    cases.check("hostile-silence", || silence(context));
    cases.check("hostile-quota", || quota(context));
    cases.check("hostile-bells", || bells(context));
}

/// Bells of an application that makes them block, fills them, and takes rings back.
fn bells(context: &Context) -> Result<()> {
    let net = Net::up(context, "bells", &["--clients", "2"])?;
    let liar = Liar::new(&net)?;
    liar.send(&FromClient::Hello { version: VERSION }, &[])?;
    let welcome = receive(&liar.0)?;
    let Some((ToClient::Welcome { .. }, descriptors)) = welcome else { bail!("not let in") };
    // The last two: its own bell, and that of `inet`.
    let [.., own, inet] = &descriptors[..] else { bail!("{} descriptors", descriptors.len()) };
    for bell in [own, inet] {
        // SAFETY: a plain system call on a descriptor that lives.
        unsafe { libc::fcntl(bell.as_raw_fd(), libc::F_SETFL, 0) };
    }
    let mut byte = 0u8;
    // SAFETY: the kernel writes one byte of this frame, if any.
    let read = unsafe { libc::read(inet.as_raw_fd(), (&raw mut byte).cast(), 1) };
    ensure!(read < 0, "an application reads the bell of inet");
    for bell in [own, inet] {
        fill(bell)?;
    }
    let stack = net.join()?;
    for _ in 0..20 {
        transfers_work(context, &net, &stack)?;
    }
    // A message for `inet` and the driver, by way of the supervisor.
    liar.send(&FromClient::Region { bytes: REGION_BYTES }, &[sealed(REGION_BYTES.into())?.as_fd()])?;
    net.status(context)?;
    transfers_work(context, &net, &stack)
}

/// Rings a bell until it takes no more.
fn fill(bell: &OwnedFd) -> Result<()> {
    let flags = libc::O_NONBLOCK;
    // SAFETY: plain system calls on a descriptor that lives; the kernel reads what this frame holds.
    unsafe {
        libc::fcntl(bell.as_raw_fd(), libc::F_SETFL, flags);
        let bytes = [1u8; 4096];
        while libc::write(bell.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) > 0 {}
        ensure!(libc::fcntl(bell.as_raw_fd(), libc::F_SETFL, 0) == 0, "F_SETFL");
    }
    Ok(())
}

/// A connection to the supervisor.
struct Liar(OwnedFd);

impl Liar {
    fn new(net: &Net) -> Result<Self> {
        let path = net.socket();
        let path = path.to_str().context("a path of text")?.as_bytes();
        // SAFETY: plain system calls; the address is zeroed plain data with a path that fits, as checked.
        unsafe {
            let socket = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
            ensure!(socket >= 0, "socket: {}", std::io::Error::last_os_error());
            let socket = OwnedFd::from_raw_fd(socket);
            let limit = libc::timeval { tv_sec: 5, tv_usec: 0 };
            let size = size_of_val(&limit) as libc::socklen_t;
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVTIMEO,
                (&raw const limit).cast(),
                size,
            );
            let mut address: libc::sockaddr_un = std::mem::zeroed();
            address.sun_family = libc::AF_UNIX as u16;
            ensure!(path.len() < address.sun_path.len(), "a path that is too long");
            for (to, from) in address.sun_path.iter_mut().zip(path) {
                *to = *from as libc::c_char;
            }
            let size = size_of_val(&address) as libc::socklen_t;
            let result = libc::connect(socket.as_raw_fd(), (&raw const address).cast(), size);
            ensure!(result == 0, "connect: {}", std::io::Error::last_os_error());
            Ok(Self(socket))
        }
    }

    fn joined(net: &Net) -> Result<Self> {
        let mut liar = None;
        // A former one may not be drained yet.
        wait_until(LIMIT, || {
            let new = Self::new(net)?;
            send(&new.0, &FromClient::Hello { version: VERSION }, &[])?;
            let is_in = matches!(receive(&new.0)?, Some((ToClient::Welcome { .. }, _)));
            liar = is_in.then_some(new);
            Ok(is_in)
        })?;
        liar.context("not let in")
    }

    fn send(&self, message: &FromClient, descriptors: &[BorrowedFd<'_>]) -> Result<()> {
        Ok(send(&self.0, message, descriptors)?)
    }

    fn send_bytes(&self, bytes: &[u8]) -> Result<()> {
        // SAFETY: the bytes live through the call.
        let sent =
            unsafe { libc::send(self.0.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
        demand!(sent == bytes.len() as isize, "send: {}", std::io::Error::last_os_error())
    }

    /// Why it is refused.
    fn refusal(&self) -> Result<String> {
        match receive(&self.0)? {
            Some((ToClient::Refused { why }, _)) => Ok(why),
            other => bail!("{:?} instead of a refusal", other.map(|(message, _)| message)),
        }
    }

    fn is_disconnected(&self) -> Result<()> {
        match receive::<ToClient>(&self.0) {
            Ok(None) => Ok(()),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(()),
            other => {
                bail!("{:?} instead of the end", other.map(|message| message.map(|(message, _)| message)))
            }
        }
    }
}

fn memfd(bytes: u64, flags: libc::c_uint, seals: libc::c_int) -> Result<OwnedFd> {
    // SAFETY: plain system calls on a name that lives, and on the descriptor that was made.
    unsafe {
        let memfd = libc::memfd_create(c"liar".as_ptr(), flags | libc::MFD_CLOEXEC);
        ensure!(memfd >= 0, "memfd_create: {}", std::io::Error::last_os_error());
        let memfd = OwnedFd::from_raw_fd(memfd);
        ensure!(libc::ftruncate(memfd.as_raw_fd(), bytes as libc::off_t) == 0, "ftruncate");
        if seals != 0 {
            ensure!(libc::fcntl(memfd.as_raw_fd(), libc::F_ADD_SEALS, seals) == 0, "F_ADD_SEALS");
        }
        Ok(memfd)
    }
}

fn sealed(bytes: u64) -> Result<OwnedFd> {
    memfd(bytes, libc::MFD_ALLOW_SEALING, libc::F_SEAL_SHRINK)
}

fn memory(context: &Context) -> Result<()> {
    let net = Net::up(context, "memory", &[])?;
    let liar = Liar::joined(&net)?;
    let bytes = u64::from(REGION_BYTES);
    let file: OwnedFd = File::open("/proc/self/exe")?.into();
    let cases = [
        (memfd(bytes, libc::MFD_ALLOW_SEALING, 0)?, REGION_BYTES, "can shrink"),
        (memfd(bytes, libc::MFD_ALLOW_SEALING, libc::F_SEAL_GROW)?, REGION_BYTES, "can shrink"),
        (memfd(bytes, 0, 0)?, REGION_BYTES, "can shrink"),
        (sealed(bytes - 4096)?, REGION_BYTES, "fewer than the 1048576 announced"),
        (sealed(bytes)?, 0, "of 0 bytes"),
        (sealed(bytes)?, 4095, "no whole number of pages"),
        (sealed(bytes)?, u32::MAX, "fewer than"),
        (file, 4096, "no memfd"),
        (liar.0.try_clone()?, 4096, "no memfd"),
    ];
    for (memory, bytes, reason) in cases {
        liar.send(&FromClient::Region { bytes }, &[memory.as_fd()])?;
        let why = liar.refusal()?;
        ensure!(why.contains(reason), "refused because '{why}', not '{reason}'");
    }
    // One that is right, and is punched afterwards.
    let memory = sealed(bytes)?;
    liar.send(&FromClient::Region { bytes: REGION_BYTES }, &[memory.as_fd()])?;
    ensure!(matches!(receive(&liar.0)?, Some((ToClient::Region { .. }, _))), "refused");
    let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: a plain system call on a live descriptor.
    ensure!(unsafe { libc::fallocate(memory.as_raw_fd(), hole, 0, bytes as libc::off_t) } == 0, "fallocate");
    drop(liar);
    still_works(context, &net)
}

fn messages(context: &Context) -> Result<()> {
    let net = Net::up(context, "messages", &[])?;
    let long = vec![b'['; MESSAGE_BYTES_MAX + 1];
    for garbage in [&b"{"[..], b"null", b"{\"hello\":{\"version\":-1}}", b"\xff\xfe", &long[..60_000], &long]
    {
        let liar = Liar::new(&net)?;
        liar.send_bytes(garbage)?;
        liar.is_disconnected()?;
    }
    let liar = Liar::new(&net)?;
    liar.send(&FromClient::Hello { version: VERSION + 1 }, &[])?;
    ensure!(liar.refusal()?.contains("version"), "another reason");
    let liar = Liar::new(&net)?;
    let memory = sealed(4096)?;
    liar.send(&FromClient::Region { bytes: 4096 }, &[memory.as_fd()])?;
    ensure!(liar.refusal()?.contains("after Hello"), "another reason");
    liar.is_disconnected()?;
    for count in [0, 2, 8] {
        let liar = Liar::joined(&net)?;
        liar.send(&FromClient::Region { bytes: 4096 }, &vec![memory.as_fd(); count])?;
        ensure!(liar.refusal()?.contains("one descriptor"), "another reason");
        liar.is_disconnected()?;
    }
    let liar = Liar::joined(&net)?;
    liar.send(&FromClient::Hello { version: VERSION }, &[])?;
    ensure!(liar.refusal()?.contains("once"), "another reason");
    still_works(context, &net)
}

/// Connections that say nothing, and one that asks and does not read.
fn silence(context: &Context) -> Result<()> {
    let net = Net::up(context, "silence", &[])?;
    let stack = net.join()?;
    let silent: Vec<_> = (0..40).map_while(|_| Liar::new(&net).ok()).collect();
    ensure!(silent.len() > 16, "only {} connections", silent.len());
    // They are closed in time, and then others are answered.
    net.status(context)?;
    transfers_work(context, &net, &stack)?;
    drop((silent, stack));
    let deaf = Liar::joined(&net)?;
    for _ in 0..10_000 {
        if deaf.send(&FromClient::Status, &[]).is_err() {
            break;
        }
    }
    std::thread::sleep(Duration::from_millis(100));
    net.status(context)?;
    drop(deaf);
    still_works(context, &net)
}

fn quota(context: &Context) -> Result<()> {
    let net = Net::up(context, "quota", &[])?;
    let liar = Liar::joined(&net)?;
    let memory = sealed(4096)?;
    let mut taken = 0;
    let why = loop {
        liar.send(&FromClient::Region { bytes: 4096 }, &[memory.as_fd()])?;
        match receive(&liar.0)? {
            Some((ToClient::Region { .. }, _)) if taken < 1000 => taken += 1,
            Some((ToClient::Refused { why }, _)) => break why,
            _ => bail!("no answer after {taken} regions"),
        }
    };
    ensure!(taken == 64 && why.contains("more than 64"), "{taken} regions, then: {why}");
    drop(liar);
    let liar = Liar::joined(&net)?;
    let huge = sealed(3 << 30)?;
    liar.send(&FromClient::Region { bytes: 3 << 30 }, &[huge.as_fd()])?;
    ensure!(liar.refusal()?.contains("bytes of memory"), "another reason");
    drop(liar);
    still_works(context, &net)
}

fn still_works(context: &Context, net: &Net) -> Result<()> {
    let mut stack = None;
    wait_until(LIMIT, || {
        stack = net.join().ok();
        Ok(stack.is_some())
    })?;
    transfers_work(context, net, &stack.context("not let in")?)?;
    let status = net.status(context)?;
    for server in ["inet", "nic"] {
        ensure!(super::place::of(&status, server)["restarts"] == 0, "a server died: {status}");
    }
    Ok(())
}

/// What applications send reaches the log as one line without control characters, and a flood of it as a few lines.
fn log(context: &Context) -> Result<()> {
    const MESSAGES: usize = 60;
    let net = Net::up(context, "log", &[])?;
    for _ in 0..MESSAGES {
        let liar = Liar::new(&net)?;
        let message = br#"{"\n2026-11-27T11:31:00Z ERROR forged\u001b[31m":1}"#;
        // SAFETY: the kernel reads the message, which lives through the call.
        let sent = unsafe {
            libc::send(liar.0.as_raw_fd(), message.as_ptr().cast(), message.len(), libc::MSG_NOSIGNAL)
        };
        ensure!(sent == message.len() as isize, "send: {}", std::io::Error::last_os_error());
        ensure!(receive::<ToClient>(&liar.0)?.is_none(), "it is not disconnected");
    }
    const MORE: &str = "more within a second: processes that sent no message of ours";
    wait_until(LIMIT, || Ok(net.supervisor.stderr().contains(MORE)))?;
    let log = net.supervisor.stderr();
    let lines = log.lines().filter(|line| line.contains("sent no message of ours: ")).count();
    // Ten a second; the messages may take more than one.
    ensure!((10..MESSAGES).contains(&lines), "{lines} lines: {log}");
    ensure!(log.contains("`\\n2026"), "{log}");
    demand!(
        !log.contains('\u{1b}') && !log.lines().any(|line| line.starts_with("2026-11-27T11:31:00Z")),
        "{log}"
    )
}
