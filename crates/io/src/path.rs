//! What the kernel knows of the path of a TCP connection, and what a socket may be asked for: tcp(7), `TCP_INFO`.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::LazyLock;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt;
use socket2::{Domain, Protocol, SockRef, Type};

/// State of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Path {
    /// Smoothed round-trip time, the queues of the path included.
    pub round_trip: Duration,
    /// Least round-trip time of the last minutes; the smoothed one where the kernel has none.
    pub round_trip_least: Duration,
    /// Congestion window in bytes.
    pub window_bytes: u64,
    /// The send buffer, as the kernel counts it: payload and what surrounds it (`SO_SNDBUF`).
    pub buffer_bytes: u64,
    /// The receive buffer, counted in the same way (`SO_RCVBUF`).
    pub receive_buffer_bytes: u64,
    /// The window that this end offers; 0: unknown, before Linux 6.2.
    pub receive_window_bytes: u64,
    /// The window that the peer offers; 0: unknown, before Linux 5.4.
    pub peer_window_bytes: u64,
    /// Segments that this end sent a second time.
    pub retransmitted: u32,
    /// Segments that arrived behind a gap: the path lost or reordered what the peer sent. 0 before Linux 5.4.
    pub out_of_order: u32,
    /// Bytes that were sent and not acknowledged, and bytes that were not sent.
    pub unacknowledged_bytes: u64,
    pub unsent_bytes: u64,
    /// Bytes that have reached the peer so far, those behind a gap included; 0: unknown, before Linux 4.18.
    pub delivered_bytes: u64,
}

/// Least bytes that the congestion window holds back; fewer may be on their way to the network device.
const CONGESTED_BYTES: u64 = 128 << 10;

impl Path {
    /// Whether the congestion window holds data back. Where the send buffer is the bound all of it is in flight, and where
    /// the peer's window is, that is full.
    pub fn is_congested(&self) -> bool {
        let is_of_peer =
            self.peer_window_bytes > 0 && self.unacknowledged_bytes >= self.peer_window_bytes / 10 * 9;
        self.unsent_bytes >= CONGESTED_BYTES && !is_of_peer
    }

    /// Whether the peer is far enough away for the kernel's own bounds of buffers to be an obstacle.
    pub fn is_far(&self) -> bool {
        self.round_trip_least >= NEAR
    }

    /// Whether data waits for a congestion window that is in use. One that losses keep small leaves the send buffer small as
    /// well, so less may wait than [`Self::is_congested`] asks for.
    pub fn is_window_full(&self) -> bool {
        self.unsent_bytes > 0 && self.unacknowledged_bytes >= self.window_bytes / 4 * 3
    }

    /// Whether the path has lost or reordered segments since `before`, an earlier state of this connection.
    pub fn has_lost_since(&self, before: &Self) -> bool {
        (self.retransmitted, self.out_of_order) != (before.retransmitted, before.out_of_order)
    }
}

/// A round-trip time above the least one by this factor, and [`QUEUE_MIN`], is that of a queue.
const QUEUED: f64 = 1.125;
const QUEUE_MIN: Duration = Duration::from_millis(1);

/// Whether a smoothed round-trip time shows a queue on a path with this least one.
pub fn is_queued(round_trip: Duration, least: Duration) -> bool {
    round_trip > least.mul_f64(QUEUED) + QUEUE_MIN
}

/// A buffer of a TCP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketBuffer {
    Send,
    Receive,
}

impl SocketBuffer {
    pub fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Receive => "receive",
        }
    }

    /// What the kernel grows it to, the third number of `tcp_wmem` or `tcp_rmem`; `None`: not known.
    pub fn bytes_max(self) -> Option<u64> {
        let setting = match self {
            Self::Send => "tcp_wmem",
            Self::Receive => "tcp_rmem",
        };
        let numbers = fs::read_to_string(format!("/proc/sys/net/ipv4/{setting}")).ok()?;
        numbers.split_whitespace().nth(2)?.parse().ok()
    }

    /// What a user reads where the buffer is too small for a path that needs `bytes`, with the command that permits them.
    pub fn is_too_small(self, bytes: u64) -> String {
        let setting = match self {
            Self::Send => format!("tcp_wmem='4096 65536 {bytes}'"),
            Self::Receive => format!("tcp_rmem='4096 131072 {bytes}'"),
        };
        let name = self.name();
        format!("the {name} buffer of this host is too small for this path: sysctl -w net.ipv4.{setting}")
    }
}

/// Buffers for a distance, as the kernel counts them: 5 Gbit/s at 100 ms. Memory is used as far as the windows of a
/// connection go.
const FAR_BYTES: u64 = 96 << 20;
/// With a shorter round trip the kernel's own bounds are no obstacle.
const NEAR: Duration = Duration::from_millis(4);
const RETRANSMISSION_PAUSE_MS: libc::c_int = 2000;
/// What the kernel begins with, `tcp_rmem`; it doubles the number that it is given (socket(7)).
const FIRST_RECEIVE_BYTES: usize = 131_072 / 2;
/// Bytes of a forced buffer that wait for the window: a small command is not behind megabytes.
const UNSENT_BYTES: u32 = 512 << 10;
/// Bytes of `struct tcp_info` that are read; newer kernels have more, older ones leave the rest 0.
const INFO_BYTES: usize = 240;
/// `TCP_CA_NAME_MAX` less its NUL: the kernel cuts longer names off.
const CONGESTION_BYTES_MAX: usize = 15;

/// Lets the send buffer hold `bytes`, as the kernel counts them, beyond what `tcp_wmem` permits, of which at most
/// [`UNSENT_BYTES`] wait for the window. Needs CAP_NET_ADMIN.
pub(crate) fn force_buffer(socket: &OwnedFd, bytes: u64) -> io::Result<()> {
    // The kernel doubles the number (socket(7)).
    let half = usize::try_from(bytes / 2).unwrap_or(usize::MAX).min(i32::MAX as usize / 2);
    sockopt::set_socket_send_buffer_size_force(socket, half)?;
    SockRef::from(socket).set_tcp_notsent_lowat(UNSENT_BYTES)
}

/// Prepares the connections that a listening socket accepts, which inherit its options, for a distance: with buffers, if
/// this process has CAP_NET_ADMIN, which a server gives up before it serves.
pub(crate) fn reach_far(listening: &OwnedFd) {
    let _ = force_buffer(listening, FAR_BYTES);
    widen_window(listening);
    retransmit_often(listening);
    begin_unpaced(listening);
}

/// Lets the receive window exceed what `tcp_rmem` permits. To be called before the socket connects or listens, as the
/// scale of the window is agreed on with the first packets (RFC 7323 2.2). [`settle`] takes back what is not needed.
pub(crate) fn widen_window(socket: &OwnedFd) {
    let _ = sockopt::set_socket_recv_buffer_size_force(socket, FAR_BYTES as usize / 2);
}

/// After the handshake, which has measured the round trip: a peer that is near gets the kernel's receive buffer back, which
/// grows by itself; a large one would only let data leave the processor's cache before it is read.
pub(crate) fn settle(socket: &OwnedFd) -> io::Result<()> {
    let is_wide = sockopt::socket_recv_buffer_size(socket)? as u64 >= FAR_BYTES;
    let is_near = of(socket).is_some_and(|path| !path.is_far());
    if is_wide && is_near {
        // An older kernel would keep the small buffer for good: there the large one stays.
        unlock_buffers(socket)?;
        sockopt::set_socket_recv_buffer_size(socket, FIRST_RECEIVE_BYTES)?;
        unlock_buffers(socket)?;
    }
    Ok(())
}

/// Lets the kernel choose the sizes again (`SO_BUF_LOCK`, Linux 5.14).
fn unlock_buffers(socket: &OwnedFd) -> io::Result<()> {
    set(socket, libc::SOL_SOCKET, libc::SO_BUF_LOCK, 0)
}

/// Bounds the pause between two retransmissions, which otherwise doubles up to 120 s: a path that comes back after half a
/// minute is used again at once. Older kernels than Linux 6.15 do not know the option.
pub(crate) fn retransmit_often(socket: &OwnedFd) {
    const TCP_RTO_MAX_MS: libc::c_int = 44;
    let _ = set(socket, libc::IPPROTO_TCP, TCP_RTO_MAX_MS, RETRANSMISSION_PAUSE_MS);
}

/// Sets an option that the crates for sockets do not know.
fn set(socket: &OwnedFd, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let (value, length) = ((&raw const value).cast(), size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: the kernel reads one int, which lives through the call.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value, length) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// `None`: not a TCP connection, or it has not measured a round trip yet.
pub(crate) fn of(socket: &OwnedFd) -> Option<Path> {
    let mut info = [0; INFO_BYTES];
    let mut length = INFO_BYTES as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `info`, which has as many and lives through the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return None;
    }
    let buffers = (
        sockopt::socket_send_buffer_size(socket).unwrap_or(0) as u64,
        sockopt::socket_recv_buffer_size(socket).unwrap_or(0) as u64,
    );
    parse(&info, buffers)
}

/// Offsets are those of `struct tcp_info` in include/uapi/linux/tcp.h.
fn parse(info: &[u8; INFO_BYTES], (send, receive): (u64, u64)) -> Option<Path> {
    let word = |at: usize| {
        let (words, _) = info.as_chunks::<4>();
        u32::from_ne_bytes(words[at / 4])
    };
    let (smoothed_us, least_us) = (word(68), word(148));
    let is_measured = least_us > 0 && least_us != u32::MAX;
    (smoothed_us > 0).then(|| Path {
        round_trip: Duration::from_micros(smoothed_us.into()),
        round_trip_least: Duration::from_micros(if is_measured { least_us } else { smoothed_us }.into()),
        window_bytes: u64::from(word(80)) * u64::from(word(16)),
        buffer_bytes: send,
        receive_buffer_bytes: receive,
        receive_window_bytes: word(232).into(),
        peer_window_bytes: word(228).into(),
        retransmitted: word(100),
        out_of_order: word(224),
        unacknowledged_bytes: u64::from(word(24)) * u64::from(word(16)),
        unsent_bytes: word(144).into(),
        delivered_bytes: u64::from(word(192)) * u64::from(word(16)),
    })
}

/// Name of the congestion control of a TCP socket.
pub(crate) fn congestion_control(socket: &OwnedFd) -> Option<String> {
    sockopt::tcp_congestion(socket).ok()
}

/// See [`crate::host::prefer_bbr`].
pub(crate) fn prefer_bbr(socket: &OwnedFd) -> bool {
    let is_loss_based = congestion_control(socket).is_some_and(|name| matches!(&*name, "cubic" | "reno"));
    is_loss_based && sockopt::set_tcp_congestion(socket, "bbr").is_ok()
}

/// Whether this host's sockets send by BBR, which paces each send by a timer.
fn host_paces() -> bool {
    static PACES: LazyLock<bool> = LazyLock::new(|| {
        let socket = socket2::Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP));
        socket.is_ok_and(|socket| is_paced(&socket.into()))
    });
    *PACES
}

fn is_paced(socket: &OwnedFd) -> bool {
    congestion_control(socket).is_some_and(|name| name == "bbr")
}

/// To be called before a socket connects or listens: where the host's congestion control is BBR the connection begins with
/// Reno, until [`settle_pace`] knows the peer. A socket that has begun with BBR would keep the timers for good.
pub(crate) fn begin_unpaced(socket: &OwnedFd) {
    if host_paces() && is_paced(socket) {
        let _ = sockopt::set_tcp_congestion(socket, "reno");
    }
}

/// Once connected: a connection to another host goes on with the host's BBR. One within this host has no path that could be
/// measured, and there the timers cost an interrupt for each send, in a virtual machine several exits.
pub(crate) fn settle_pace(socket: &OwnedFd) {
    let is_within = |socket: SockRef<'_>| {
        let (peer, own) = (socket.peer_addr().ok()?.as_socket()?, socket.local_addr().ok()?.as_socket()?);
        Some(peer.ip() == own.ip())
    };
    let has_begun_unpaced = || congestion_control(socket).is_some_and(|name| name == "reno");
    if host_paces() && is_within(SockRef::from(socket)) != Some(true) && has_begun_unpaced() {
        let _ = sockopt::set_tcp_congestion(socket, "bbr");
    }
}

/// See [`crate::host::send_by_reference`].
pub(crate) fn send_by_reference(socket: &OwnedFd) -> bool {
    !is_paced(socket) && SockRef::from(socket).set_nonblocking(true).is_ok()
}

/// Sets the congestion control (`TCP_CONGESTION`). The error says what may be chosen here.
pub(crate) fn set_congestion_control(socket: &OwnedFd, name: &str) -> io::Result<()> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    let result = match name.len() {
        1..=CONGESTION_BYTES_MAX if name.chars().all(is_name) => sockopt::set_tcp_congestion(socket, name),
        _ => Err(Errno::NOENT),
    };
    result.map_err(|errno| {
        let list = |which: &str| {
            let names = fs::read_to_string(format!("/proc/sys/net/ipv4/tcp_{which}_congestion_control"));
            names.map_or_else(|_| "unknown".to_owned(), |names| names.trim().to_owned())
        };
        let name = name.escape_debug();
        let text = match errno {
            Errno::NOENT => {
                let names = list("available");
                format!("this system has no congestion control '{name}'; it has: {names} (others are modules: modprobe tcp_NAME)")
            }
            Errno::PERM => {
                let names = list("allowed");
                format!(
                    "congestion control '{name}' is reserved for root; allowed: {names}; as root: sysctl -w \
                     net.ipv4.tcp_allowed_congestion_control='{names} {name}'"
                )
            }
            errno => format!("congestion control '{name}': {errno}"),
        };
        io::Error::new(io::Error::from(errno).kind(), text)
    })
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_near_peer_gets_the_kernels_receive_buffer_back() {
        let listener = OwnedFd::from(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
        reach_far(&listener);
        let wide = sockopt::socket_recv_buffer_size(&listener).unwrap();
        if (wide as u64) < FAR_BYTES {
            println!("without CAP_NET_ADMIN nothing changes: {wide} bytes");
            return;
        }
        let listener = TcpListener::from(listener);
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let accepted = OwnedFd::from(listener.accept().unwrap().0);
        assert_eq!(sockopt::socket_recv_buffer_size(&accepted).unwrap(), wide);
        settle(&accepted).unwrap();
        assert_eq!(sockopt::socket_recv_buffer_size(&accepted).unwrap(), 2 * FIRST_RECEIVE_BYTES);
        // A socket that was not widened stays as it is.
        let client = OwnedFd::from(client);
        let before = sockopt::socket_recv_buffer_size(&client).unwrap();
        settle(&client).unwrap();
        assert_eq!(sockopt::socket_recv_buffer_size(&client).unwrap(), before);
    }

    /// Whether a connected pair begins with the host's BBR depends on the host; where it does, none of it is left within it.
    #[test]
    fn within_a_host_nothing_is_paced_unless_the_user_asks_for_it() {
        let listener = OwnedFd::from(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
        reach_far(&listener);
        assert!(!host_paces() || congestion_control(&listener).as_deref() == Some("reno"));
        let listener = TcpListener::from(listener);
        let client = OwnedFd::from(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        let accepted = OwnedFd::from(listener.accept().unwrap().0);
        settle_pace(&accepted);
        assert!(!is_paced(&accepted) && send_by_reference(&accepted));
        if set_congestion_control(&client, "bbr").is_ok() {
            assert!(is_paced(&client) && !send_by_reference(&client), "each send would wait for a timer");
        }
    }

    #[test]
    fn fields_lie_where_the_kernel_has_them() {
        let mut info = [0; INFO_BYTES];
        for (at, word) in info.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            *word = (at as u32 * 4).to_ne_bytes();
        }
        let path = Path {
            round_trip: Duration::from_micros(68),
            round_trip_least: Duration::from_micros(148),
            window_bytes: 80 * 16,
            buffer_bytes: 1,
            receive_buffer_bytes: 2,
            receive_window_bytes: 232,
            peer_window_bytes: 228,
            retransmitted: 100,
            out_of_order: 224,
            unacknowledged_bytes: 24 * 16,
            unsent_bytes: 144,
            delivered_bytes: 192 * 16,
        };
        assert_eq!(parse(&info, (1, 2)), Some(path));
        info[148..152].fill(0xff);
        assert_eq!(parse(&info, (1, 2)).unwrap().round_trip_least, path.round_trip, "none measured");
        info[68..72].fill(0);
        assert_eq!(parse(&info, (1, 2)), None);
    }

    #[test]
    fn the_congestion_window_is_told_from_buffers() {
        let path = |unsent_bytes, unacknowledged_bytes, peer_window_bytes| Path {
            unsent_bytes,
            unacknowledged_bytes,
            peer_window_bytes,
            ..Path::default()
        };
        for (path, expected, why) in [
            (path(0, 4 << 20, 6 << 20), false, "the send buffer: all of it is in flight"),
            (path(1 << 20, 1 << 20, 6 << 20), true, "the congestion window"),
            (path(1 << 20, 3 << 20, 3 << 20), false, "the peer's window"),
            (path(1 << 20, 3 << 20, 0), true, "an old kernel does not tell of the peer's window"),
            (path(65_536, 0, 65_536), false, "a command that is about to leave"),
        ] {
            assert_eq!(path.is_congested(), expected, "{why}");
        }
    }

    #[test]
    fn a_small_window_may_be_full() {
        for (unsent_bytes, unacknowledged_bytes, expected) in
            [(1, 15_000, true), (0, 20_000, false), (1, 14_999, false)]
        {
            let path = Path { window_bytes: 20_000, unsent_bytes, unacknowledged_bytes, ..Path::default() };
            assert_eq!(path.is_window_full(), expected, "{unsent_bytes}, {unacknowledged_bytes}");
        }
    }

    #[test]
    fn a_congestion_control_is_set_or_the_error_lists_those_that_can_be() {
        let socket: OwnedFd = socket2::Socket::new(Domain::IPV4, Type::STREAM, None).unwrap().into();
        set_congestion_control(&socket, "reno").unwrap();
        assert_eq!(congestion_control(&socket).as_deref(), Some("reno"));
        for (name, shown) in [
            ("", "''"),
            ("nosuch", "'nosuch'"),
            ("reno/", "'reno/'"),
            ("longer_than_the_kernel_keeps", "'longer_than_the_kernel_keeps'"),
            ("a\nb\t\u{1b}", "'a\\nb\\t\\u{1b}'"),
        ] {
            let error = set_congestion_control(&socket, name).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
            let text = error.to_string();
            assert!(text.contains(shown) && text.contains("reno"), "{text}");
        }
    }
}
