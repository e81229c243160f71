//! The kernel as the stack under test: a TAP interface in a network namespace of its own, and ordinary socket calls.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};

use crate::script::{Call, Failure, Settings, SocketOptions, Special, Version};
use crate::stack::{Ports, Slack, Stack, peer_byte, stack_byte};
use crate::{PEER_MAC, PREFIX_V4, PREFIX_V6, STACK_MAC, Script, Variation, peer_ip, play, stack_ip};

// linux/if_tun.h
const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
const FRAME_BYTES_MAX: usize = 65_600;
/// A state of a socket that follows a frame may need so long on a busy machine.
const SOCKET_WAIT: Duration = Duration::from_millis(60);
const SETTLE_WAIT: Duration = Duration::from_secs(3);
/// Jiffies of 4 ms, and threads that wait for a core.
const SLACK: Slack = Slack { early: 8_000, late: 35_000, late_share: 20 };
/// Differences between two runs come from the machine's load; a script may be played so often.
const ATTEMPTS: usize = 3;
const INTERFACE: &str = "script0";

/// Why the kernel cannot be played at on this machine.
pub fn obstacle() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("network namespaces and TAP interfaces need root");
    }
    (!std::path::Path::new("/dev/net/tun").exists()).then_some("there is no /dev/net/tun")
}

/// Plays a script at the kernel, again if it fails: another play passes if the machine was only slow.
///
/// # Errors
/// The report of the last play.
pub fn run(script: &Script, variation: &Variation) -> Result<(), String> {
    let mut result = Ok(());
    for _ in 0..ATTEMPTS {
        // A thread of its own, whose network namespace ends with it.
        result = std::thread::scope(|scope| {
            let attempt = scope.spawn(|| {
                let mut kernel = Kernel::new(variation.version, script.settings)
                    .map_err(|error| format!("the kernel's side cannot be made: {error}"))?;
                play(script, variation, &mut kernel).map_err(|failed| failed.0)
            });
            attempt.join().unwrap_or_else(|_| Err("the player panicked".to_owned()))
        });
        if result.is_ok() {
            break;
        }
    }
    result
}

struct Kernel {
    version: Version,
    tap: File,
    start: Instant,
    listener: Option<Socket>,
    sockets: BTreeMap<char, Connection>,
}

struct Connection {
    /// `None` after `close`.
    socket: Option<Socket>,
    sent: u64,
    received: u64,
}

impl Kernel {
    /// Enters a new network namespace with the calling thread.
    fn new(version: Version, settings: Settings) -> io::Result<Self> {
        enter_namespace()?;
        let tap = open_tap(INTERFACE)?;
        let text = |bytes: [u8; 6]| bytes.map(|byte| format!("{byte:02x}")).join(":");
        let sysctl = |key: &str, value: &str| std::fs::write(format!("/proc/sys/net/{key}"), value);
        // No announcements of IPv6 that scripts would have to ignore, and no wait for duplicate addresses.
        sysctl("ipv6/conf/default/accept_dad", "0")?;
        sysctl("ipv6/conf/default/router_solicitations", "0")?;
        ip(&format!(
            "link set lo up\nlink set {INTERFACE} address {} mtu {} gso_max_segs 1 up\naddr add {}/{PREFIX_V4} dev {INTERFACE}\n\
             addr add {}/{PREFIX_V6} dev {INTERFACE} nodad\n",
            text(STACK_MAC),
            settings.mtu,
            stack_ip(Version::V4),
            stack_ip(Version::V6),
        ))?;
        if !settings.is_stranger {
            let peer = text(PEER_MAC);
            for address in [peer_ip(Version::V4), peer_ip(Version::V6)] {
                ip(&format!("neigh replace {address} lladdr {peer} dev {INTERFACE}\n"))?;
            }
        }
        for (key, value) in [
            // Nothing is remembered between connections.
            ("tcp_no_metrics_save", "1"),
            // Answers that RFCs allow to be limited are not, and SACKs are not held back.
            ("tcp_invalid_ratelimit", "0"),
            ("tcp_comp_sack_nr", "0"),
            ("icmp_ratelimit", "0"),
            // Room for what scripts send and receive without waiting.
            ("tcp_wmem", "4096 4194304 4194304"),
            ("tcp_rmem", "4096 1048576 8388608"),
        ] {
            sysctl(&format!("ipv4/{key}"), value)?;
        }
        settled()?;
        Ok(Self { version, tap, start: Instant::now(), listener: None, sockets: BTreeMap::new() })
    }

    fn socket(&self, options: SocketOptions) -> io::Result<Socket> {
        let domain = if self.version == Version::V4 { Domain::IPV4 } else { Domain::IPV6 };
        let socket = Socket::new(domain, Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        set_options(&socket, options)?;
        if options.receive_bytes > 0 {
            socket.set_recv_buffer_size(options.receive_bytes as usize)?;
        }
        Ok(socket)
    }

    fn live(&mut self, flow: char) -> Result<(&Socket, &mut u64, &mut u64), String> {
        let connection = self.sockets.get_mut(&flow).ok_or("no such connection")?;
        let socket = connection.socket.as_ref().ok_or("the socket was closed")?;
        Ok((socket, &mut connection.sent, &mut connection.received))
    }

    fn keep(&mut self, flow: char, socket: Socket) {
        self.sockets.insert(flow, Connection { socket: Some(socket), sent: 0, received: 0 });
    }
}

impl Stack for Kernel {
    fn slack(&self) -> Slack {
        SLACK
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    fn inject(&mut self, frame: &[u8], _: u16) {
        // A frame that the interface refuses is one that the stack does not see.
        let _ = self.tap.write(frame);
    }

    fn frame(&mut self, until: u64) -> Option<(u64, Vec<u8>)> {
        let mut buffer = vec![0; FRAME_BYTES_MAX];
        loop {
            if let Ok(bytes) = self.tap.read(&mut buffer) {
                buffer.truncate(bytes);
                return Some((self.now(), buffer));
            }
            let left = until.checked_sub(self.now()).filter(|&left| left > 0)?;
            let timeout =
                Timespec { tv_sec: (left / 1_000_000) as i64, tv_nsec: (left % 1_000_000 * 1000) as i64 };
            let _ = poll(&mut [PollFd::from_borrowed_fd(self.tap.as_fd(), PollFlags::IN)], Some(&timeout));
        }
    }

    fn call(&mut self, flow: char, call: &Call, ports: Ports) -> Result<(), String> {
        let io = |error: io::Error| error.to_string();
        let stack_end = |port: u16| SockAddr::from(SocketAddr::new(stack_ip(self.version), port));
        match call {
            Call::Listen { backlog, options } => {
                let socket = self.socket(*options).map_err(io)?;
                socket.bind(&stack_end(ports.local.unwrap_or(0))).map_err(io)?;
                socket.listen(i32::from(*backlog)).map_err(io)?;
                self.listener = Some(socket);
            }
            Call::CloseListener => self.listener = None,
            Call::Connect { from, options } => {
                let socket = self.socket(*options).map_err(io)?;
                if let Some(port) = from {
                    socket.bind(&stack_end(*port)).map_err(io)?;
                }
                let peer = SocketAddr::new(peer_ip(self.version), ports.peer);
                match socket.connect(&peer.into()) {
                    Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
                    result => return result.map_err(io),
                }
                self.keep(flow, socket);
            }
            Call::Accept => {
                let listener = self.listener.as_ref().ok_or("nothing listens")?;
                let (socket, _) = patiently(SOCKET_WAIT, || listener.accept()).map_err(io)?;
                socket.set_nonblocking(true).map_err(io)?;
                self.keep(flow, socket);
            }
            Call::AcceptNothing => {
                let listener = self.listener.as_ref().ok_or("nothing listens")?;
                if listener.accept().is_ok() {
                    return Err("a connection was accepted".to_owned());
                }
            }
            Call::Connected => {
                let (socket, ..) = self.live(flow)?;
                patiently(SOCKET_WAIT, || match socket.peer_addr() {
                    Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => {
                        Err(io::ErrorKind::WouldBlock.into())
                    }
                    result => result,
                })
                .map_err(io)?;
            }
            Call::Send(bytes) => {
                let (socket, sent, _) = self.live(flow)?;
                let data: Vec<u8> = (*sent..*sent + *bytes as u64).map(stack_byte).collect();
                let taken = socket.send(&data).map_err(io)?;
                *sent += taken as u64;
                if taken < *bytes {
                    return Err(format!("{taken} bytes were taken"));
                }
            }
            Call::SendRefused(bytes) => {
                let (socket, ..) = self.live(flow)?;
                if let Ok(taken) = socket.send(&vec![0; *bytes]) {
                    return Err(format!("{taken} bytes were taken"));
                }
            }
            Call::Receive(bytes) => {
                let (socket, _, received) = self.live(flow)?;
                let mut left = *bytes;
                while left > 0 {
                    let data = patiently(SOCKET_WAIT, || receive(socket, left)).map_err(io)?;
                    if data.is_empty() {
                        return Err("the end of the stream came".to_owned());
                    }
                    let is_right = (*received..).map(peer_byte).zip(&data).all(|(want, &byte)| want == byte);
                    if !is_right {
                        return Err("other bytes came".to_owned());
                    }
                    left -= data.len();
                    *received += data.len() as u64;
                }
            }
            Call::ReceiveNothing => {
                let (socket, ..) = self.live(flow)?;
                match receive(socket, 1) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    other => return Err(format!("{other:?}")),
                }
            }
            Call::EndOfStream => {
                let (socket, ..) = self.live(flow)?;
                let data = patiently(SOCKET_WAIT, || receive(socket, 1)).map_err(io)?;
                if !data.is_empty() {
                    return Err("bytes came".to_owned());
                }
            }
            Call::Failed(failure) => {
                let (socket, ..) = self.live(flow)?;
                let error = patiently(SOCKET_WAIT, || {
                    socket.take_error().and_then(|error| error.ok_or(io::ErrorKind::WouldBlock.into()))
                })
                .map_err(|_| "no error came")?;
                if errno(*failure).is_none_or(|errnos| !errnos.contains(&error.raw_os_error().unwrap_or(0))) {
                    return Err(error.to_string());
                }
            }
            Call::Shutdown => {
                let (socket, ..) = self.live(flow)?;
                socket.shutdown(std::net::Shutdown::Write).map_err(io)?;
            }
            Call::Close => {
                self.live(flow)?;
                self.sockets.entry(flow).and_modify(|connection| connection.socket = None);
            }
            Call::Abort => {
                let (socket, ..) = self.live(flow)?;
                socket.set_linger(Some(Duration::ZERO)).map_err(io)?;
                self.sockets.entry(flow).and_modify(|connection| connection.socket = None);
            }
            Call::Options(options) => {
                let (socket, ..) = self.live(flow)?;
                set_options(socket, *options).map_err(io)?;
            }
            // No socket call returns this at the kernel.
            Call::Ended(_) => {}
        }
        Ok(())
    }

    fn special(&mut self, _: char, special: &Special) -> Result<(), String> {
        Err(format!("{special:?} is of the engine only"))
    }

    fn sysctl(&mut self, key: &str, value: &str) -> Result<(), String> {
        std::fs::write(format!("/proc/sys/net/ipv4/{key}"), value).map_err(|error| format!("{key}: {error}"))
    }
}

fn set_options(socket: &Socket, options: SocketOptions) -> io::Result<()> {
    socket.set_tcp_nodelay(options.no_delay)?;
    // Of the socket: a namespace may not have every one as its default.
    socket.set_tcp_congestion(if options.is_reno { b"reno" } else { b"cubic" })?;
    if options.keep_alive_s > 0 {
        let seconds = Duration::from_secs(options.keep_alive_s.into());
        let keepalive = TcpKeepalive::new().with_time(seconds).with_interval(Duration::from_secs(1));
        socket.set_tcp_keepalive(&keepalive.with_retries(3))?;
    } else {
        socket.set_keepalive(false)?;
    }
    Ok(())
}

fn errno(failure: Failure) -> Option<&'static [i32]> {
    Some(match failure {
        Failure::Reset => &[libc::ECONNRESET, libc::EPIPE],
        Failure::Refused => &[libc::ECONNREFUSED],
        Failure::TimedOut => &[libc::ETIMEDOUT],
        Failure::Unreachable => {
            &[libc::EHOSTUNREACH, libc::ENETUNREACH, libc::EACCES, libc::ENOPROTOOPT, libc::EPROTO]
        }
        Failure::Closed | Failure::Aborted => return None,
    })
}

fn receive(socket: &Socket, bytes: usize) -> io::Result<Vec<u8>> {
    let mut buffer = vec![MaybeUninit::uninit(); bytes];
    let taken = socket.recv(&mut buffer)?;
    // SAFETY: the kernel has written the first `taken` bytes.
    Ok(buffer[..taken].iter().map(|byte| unsafe { byte.assume_init() }).collect())
}

/// Repeats what would block, for a limited time.
fn patiently<T>(limit: Duration, mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let start = Instant::now();
    loop {
        match attempt() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && start.elapsed() < limit => {
                std::thread::sleep(Duration::from_millis(2));
            }
            result => return result,
        }
    }
}

fn enter_namespace() -> io::Result<()> {
    // SAFETY: only the calling thread changes its network namespace, no memory is involved.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn open_tap(name: &str) -> io::Result<File> {
    let mut options = File::options();
    let file = options.read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
    // SAFETY: the request is plain data, for which all zeroes is a valid value, filled before the kernel reads it; the
    // name is shorter than its field, so a zero byte ends it.
    unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        for (to, from) in request.ifr_name.iter_mut().take(libc::IFNAMSIZ - 1).zip(name.bytes()) {
            *to = from.cast_signed();
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
        if libc::ioctl(file.as_raw_fd(), TUNSETIFF, &raw mut request) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(file)
}

/// Waits until the kernel takes packets for its IPv6 address: addresses become usable in the background.
fn settled() -> io::Result<()> {
    /// RTF_LOCAL and RTF_UP of linux/route.h and linux/ipv6_route.h.
    const LOCAL: u32 = 0x8000_0001;
    let IpAddr::V6(own) = stack_ip(Version::V6) else { unreachable!("an IPv6 address") };
    let own: String = own.octets().iter().map(|byte| format!("{byte:02x}")).collect();
    patiently(SETTLE_WAIT, || {
        let table = std::fs::read_to_string("/proc/thread-self/net/ipv6_route")?;
        let is_there = table.lines().any(|line| {
            let mut words = line.split_whitespace();
            let flags = words.clone().nth(8).and_then(|flags| u32::from_str_radix(flags, 16).ok());
            words.next() == Some(own.as_str()) && flags.is_some_and(|flags| flags & LOCAL == LOCAL)
        });
        if is_there { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
    })
}

/// Runs commands of iproute2 in the network namespace of the calling thread.
fn ip(commands: &str) -> io::Result<()> {
    let mut child = Command::new("ip").args(["-batch", "-"]).stdin(Stdio::piped()).spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(commands.as_bytes())?;
    }
    if child.wait()?.success() { Ok(()) } else { Err(io::Error::other("ip failed")) }
}
