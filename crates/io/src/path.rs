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

/// Buffers for a distance, as the kernel counts them: 5 Gbit/s at 100 ms. Memory is used as far as the windows of a
/// connection go.
const FAR_BYTES: u64 = 96 << 20;
/// With a shorter round trip the kernel's own bounds are no obstacle.
const NEAR: Duration = Duration::from_millis(4);
const RETRANSMISSION_PAUSE_MS: libc::c_int = 2000;
/// What the kernel begins with, `tcp_rmem`; it doubles the number that it is given (socket(7)).
const FIRST_RECEIVE_BYTES: usize = 131_072 / 2;
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

/// Prepares the connections that a listening socket accepts, which inherit its options, for a distance: with buffers, if
/// this process has CAP_NET_ADMIN, which a server gives up before it serves.
pub(crate) fn reach_far(listening: &OwnedFd) {
    let _ = force_buffer(listening, FAR_BYTES);
    widen_window(listening);
    retransmit_often(listening);
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
    let is_near = of(socket).is_some_and(|path| path.round_trip < NEAR);
    if is_wide && is_near {
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
}
