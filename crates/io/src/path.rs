//! What the kernel knows of the path of a TCP connection: `TCP_INFO`, tcp(7).

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::net::sockopt;
use socket2::SockRef;

/// State of a connection's sending half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Smoothed round-trip time, the queues of the path included.
    pub round_trip: Duration,
    /// Congestion window in bytes.
    pub window_bytes: u64,
    /// The send buffer, as the kernel counts it: payload and what surrounds it (`SO_SNDBUF`).
    pub buffer_bytes: u64,
}

/// Send buffer of the connections that a listening socket accepts: 1 Gbit/s at 200 ms. Memory is used as far as the
/// congestion window of a connection goes.
pub(crate) const ACCEPTED_BUFFER_BYTES: u64 = 64 << 20;
/// Bytes of a forced buffer that wait for the window: a small command is not behind megabytes.
const UNSENT_BYTES: u32 = 1 << 20;

/// Lets the send buffer hold `bytes`, as the kernel counts them, beyond what `tcp_wmem` permits, of which at most
/// [`UNSENT_BYTES`] wait for the window. Needs CAP_NET_ADMIN.
pub(crate) fn force_buffer(socket: &OwnedFd, bytes: u64) -> io::Result<()> {
    // The kernel doubles the number (socket(7)).
    let half = usize::try_from(bytes / 2).unwrap_or(usize::MAX).min(i32::MAX as usize / 2);
    sockopt::set_socket_send_buffer_size_force(socket, half)?;
    SockRef::from(socket).set_tcp_notsent_lowat(UNSENT_BYTES)
}

/// `None`: not a TCP connection, or it has not measured a round trip yet.
pub(crate) fn of(socket: &OwnedFd) -> Option<Path> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
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
    // SAFETY: all fields are integers, for which zeroes and whatever the kernel writes are valid values.
    let info = unsafe { info.assume_init() };
    (result == 0 && info.tcpi_rtt > 0).then(|| Path {
        round_trip: Duration::from_micros(info.tcpi_rtt.into()),
        window_bytes: u64::from(info.tcpi_snd_cwnd) * u64::from(info.tcpi_snd_mss),
        buffer_bytes: sockopt::socket_send_buffer_size(socket).unwrap_or(0) as u64,
    })
}
