//! A larger send buffer for a live socket of another process: the only part of this crate that changes a connection.
//!
//! The socket is duplicated (`pidfd_getfd`, Linux 5.6), which needs the right to trace its process. The kernel counts a
//! buffer in `sk_sndbuf`, twice the value given to `SO_SNDBUF`. Setting it turns off the kernel's own sizing of the
//! buffer (`SOCK_SNDBUF_LOCK`); `SO_BUF_LOCK` (Linux 5.14) turns it on again at restoring.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use socket2::SockRef;

use super::process::text;
use super::{Ends, Owner, sys};
use crate::sample::Sample;

/// Largest buffer that is set.
pub const SEND_BUFFER_BYTES_MAX: u64 = 256 << 20;
/// `SOCK_SNDBUF_LOCK` of `SO_BUF_LOCK`.
const SEND_LOCK: i32 = 1;

/// Why a socket was not tuned.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    #[error("no process is known to have this socket open")]
    NoOwner,
    #[error("the socket of process {pid} cannot be duplicated: {error}")]
    Duplicating { pid: u32, error: io::Error },
    #[error("descriptor {0} is another socket now")]
    Other(i32),
    #[error("the buffer cannot be set: {0}")]
    Setting(#[from] io::Error),
    #[error(
        "no process has this socket open, and from within the kernel its buffer can have {allowed} bytes at most (net.core.wmem_max), it has {present}"
    )]
    #[cfg(feature = "bpf")]
    Capped { allowed: u64, present: u64 },
    #[cfg(feature = "bpf")]
    #[error("no process has this socket open, and it cannot be reached from within the kernel: {0}")]
    Reaching(#[from] super::bpf::BpfError),
    #[error(
        "without CAP_NET_ADMIN the buffer can have {allowed} bytes at most (net.core.wmem_max), it has {present}"
    )]
    Allowed { allowed: u64, present: u64 },
}

/// `sk_sndbuf` for a product of rate and round trip in bytes. The queue's memory exceeds its payload: at 1.5 times the
/// product the payload still fills the path.
pub fn wanted_bytes(in_flight_bytes: u64) -> u64 {
    in_flight_bytes.saturating_mul(3).div_euclid(2).min(SEND_BUFFER_BYTES_MAX)
}

/// Bytes that may be in flight if the send buffer does not limit them, as far as a sample shows: what BBR measured of
/// the path, else the peer's window.
pub fn in_flight_possible(sample: &Sample) -> Option<u64> {
    let measured = sample
        .bbr_bytes_per_s
        .zip(sample.min_rtt_us)
        .map(|(rate, rtt)| u64::try_from(u128::from(rate) * u128::from(rtt) / 1_000_000).unwrap_or(u64::MAX));
    let window = sample.peer_window_bytes.map(u64::from);
    match (measured, window) {
        (Some(measured), Some(window)) => Some(measured.min(window)),
        (measured, window) => measured.or(window),
    }
}

/// A socket whose send buffer was enlarged.
#[derive(Debug)]
pub struct Tuned {
    socket: OwnedFd,
    /// `sk_sndbuf` in bytes.
    pub before_bytes: u64,
    pub after_bytes: u64,
    /// The kernel sized the buffer itself; `None` if it does not tell (before Linux 5.14).
    pub was_automatic: Option<bool>,
    lock_before: Option<i32>,
}

/// What restoring achieved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restored {
    pub bytes: u64,
    /// The kernel does not size the buffer itself any more, which it may have done before: until the connection ends.
    pub stays_fixed: bool,
}

impl Tuned {
    /// Enlarges the send buffer of the owner's socket to `wanted` bytes of `sk_sndbuf`. `None`: it is as large already.
    pub fn enlarge(owner: &Owner, ends: &Ends, wanted: u64) -> Result<Option<Self>, TuneError> {
        let socket = duplicate(owner, ends)?;
        Self::enlarge_socket(socket, wanted)
    }

    fn enlarge_socket(socket: OwnedFd, wanted: u64) -> Result<Option<Self>, TuneError> {
        let before_bytes = send_buffer(&socket)?;
        if wanted <= before_bytes {
            return Ok(None);
        }
        let lock_before = sys::buffer_lock(socket.as_fd()).ok();
        let value = usize::try_from(wanted.min(SEND_BUFFER_BYTES_MAX) / 2).unwrap_or(usize::MAX);
        if rustix::net::sockopt::set_socket_send_buffer_size_force(&socket, value).is_err() {
            // The kernel caps a request without the right, so that it may end lower than before.
            let allowed = text("/proc/sys/net/core/wmem_max").and_then(|text| text.parse::<u64>().ok());
            let allowed = allowed.unwrap_or(0).saturating_mul(2);
            if allowed <= before_bytes {
                return Err(TuneError::Allowed { allowed, present: before_bytes });
            }
            rustix::net::sockopt::set_socket_send_buffer_size(&socket, value).map_err(io::Error::from)?;
        }
        let after_bytes = send_buffer(&socket)?;
        let was_automatic = lock_before.map(|lock| lock & SEND_LOCK == 0);
        Ok(Some(Self { socket, before_bytes, after_bytes, was_automatic, lock_before }))
    }

    /// Sets the size that the buffer had, and lets the kernel size it again if it did.
    pub fn restore(self) -> io::Result<Restored> {
        let value = usize::try_from(self.before_bytes / 2).unwrap_or(usize::MAX);
        if rustix::net::sockopt::set_socket_send_buffer_size_force(&self.socket, value).is_err() {
            rustix::net::sockopt::set_socket_send_buffer_size(&self.socket, value)?;
        }
        let unlocked = match self.lock_before {
            Some(lock) => sys::set_buffer_lock(self.socket.as_fd(), lock).is_ok(),
            None => false,
        };
        let stays_fixed = !unlocked && self.was_automatic != Some(false);
        Ok(Restored { bytes: send_buffer(&self.socket)?, stays_fixed })
    }
}

/// `sk_sndbuf`, as `SO_SNDBUF` returns it.
fn send_buffer(socket: &OwnedFd) -> io::Result<u64> {
    Ok(SockRef::from(socket).send_buffer_size()? as u64)
}

fn duplicate(owner: &Owner, ends: &Ends) -> Result<OwnedFd, TuneError> {
    let duplicating =
        |error: rustix::io::Errno| TuneError::Duplicating { pid: owner.pid, error: error.into() };
    let pid = i32::try_from(owner.pid).ok().and_then(Pid::from_raw).ok_or(TuneError::NoOwner)?;
    let process = pidfd_open(pid, PidfdFlags::empty()).map_err(duplicating)?;
    let socket = pidfd_getfd(&process, owner.descriptor, PidfdGetfdFlags::empty()).map_err(duplicating)?;
    // The process may have closed it and opened another one under its number.
    let reference = SockRef::from(&socket);
    let address = |address: io::Result<socket2::SockAddr>| address.ok()?.as_socket();
    let same = |found: Option<SocketAddr>, expected: SocketAddr| {
        found.is_some_and(|found| {
            found.ip().to_canonical() == expected.ip().to_canonical() && found.port() == expected.port()
        })
    };
    if same(address(reference.local_addr()), ends.local) && same(address(reference.peer_addr()), ends.remote)
    {
        Ok(socket)
    } else {
        Err(TuneError::Other(owner.descriptor))
    }
}

/// What to type for a larger send buffer of later connections: system and line.
pub fn lines(wanted: u64, kernel_target: Option<&str>) -> Vec<(&'static str, String)> {
    let least = text("/proc/sys/net/ipv4/tcp_wmem").unwrap_or_default();
    let mut words = least.split_ascii_whitespace();
    let (low, middle) = (words.next().unwrap_or("4096"), words.next().unwrap_or("16384"));
    let mut lines = vec![("Linux", format!("sysctl -w net.ipv4.tcp_wmem='{low} {middle} {wanted}'"))];
    if let Some(target) = kernel_target {
        let window = wanted / 2;
        lines.push(("Linux", format!("sysctl -w net.core.wmem_max={window}")));
        lines.push((
            "open-iscsi",
            format!(
                "iscsiadm -m node -T {target} -o update -n 'node.conn[0].tcp.window_size' -v {window}, then log in again"
            ),
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::super::tests::pair;
    use super::*;

    #[test]
    fn the_wanted_size_follows_the_path() {
        let mut sample = Sample { peer_window_bytes: Some(4_000_000), ..Sample::default() };
        assert_eq!(in_flight_possible(&sample), Some(4_000_000));
        (sample.bbr_bytes_per_s, sample.min_rtt_us) = (Some(125_000_000), Some(20_000));
        assert_eq!(in_flight_possible(&sample), Some(2_500_000));
        sample.bbr_bytes_per_s = Some(u64::MAX);
        assert_eq!(in_flight_possible(&sample), Some(4_000_000));
        assert_eq!(in_flight_possible(&Sample::default()), None);
        assert_eq!([2_500_000, u64::MAX].map(wanted_bytes), [3_750_000, SEND_BUFFER_BYTES_MAX]);
    }

    #[test]
    fn a_buffer_grows_and_shrinks_again_and_the_kernel_sizes_it_as_before() {
        let (near, _far) = pair("127.0.0.1:0");
        let copy = || near.try_clone().unwrap().into();
        let before = send_buffer(&copy()).unwrap();
        let Some(tuned) = Tuned::enlarge_socket(copy(), before + 300_000).unwrap() else { panic!("larger") };
        assert_eq!((tuned.before_bytes, tuned.after_bytes), (before, before + 300_000));
        assert!(Tuned::enlarge_socket(copy(), before).unwrap().is_none(), "never lower");
        let has_lock = tuned.was_automatic.is_some();
        assert_ne!(tuned.was_automatic, Some(false));
        let restored = tuned.restore().unwrap();
        assert_eq!(restored, Restored { bytes: before, stays_fixed: !has_lock });
    }

    #[test]
    fn another_socket_under_the_number_is_left_alone() {
        use std::os::fd::AsRawFd;
        let ((near, _far), (other, _)) = (pair("127.0.0.1:0"), pair("127.0.0.1:0"));
        let ends = Ends { local: near.local_addr().unwrap(), remote: near.peer_addr().unwrap() };
        let owner = |descriptor| Owner { pid: std::process::id(), name: String::new(), descriptor };
        assert!(duplicate(&owner(near.as_raw_fd()), &ends).is_ok());
        assert!(matches!(duplicate(&owner(other.as_raw_fd()), &ends), Err(TuneError::Other(_))));
        assert!(matches!(duplicate(&owner(1_000_000), &ends), Err(TuneError::Duplicating { .. })));
    }

    #[test]
    fn lines_to_type_name_the_setting_of_the_initiator() {
        let lines = lines(3_000_000, Some("iqn.2026-11.example:a"));
        assert!(lines[0].1.ends_with(" 3000000'"), "{lines:?}");
        assert!(lines[2].1.contains("tcp.window_size' -v 1500000"), "{lines:?}");
    }
}
