//! The user of the peer's socket for a connection from this host, by `NETLINK_SOCK_DIAG` (sock_diag(7), which needs no
//! privileges).
//!
//! The kernel records with every socket the user that created it. One request names the peer's socket by its addresses
//! and ports; the response is accepted only for a socket that is ESTABLISHED and has an inode: a socket that its
//! process has closed has inode 0, and on older kernels uid 0. Everything that the kernel returns is compared with the
//! request.

use std::io::{Error, Read, Result as IoResult};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Mutex;

use socket2::{Domain, Protocol, Socket, Type};
use thiserror::Error as ThisError;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const TCP_ESTABLISHED: u8 = 1;
/// Sizes of `nlmsghdr` and `inet_diag_req_v2`.
const HEADER_BYTES: usize = 16;
const REQUEST_BYTES: usize = HEADER_BYTES + 56;
/// Size of `inet_diag_msg`.
const ANSWER_BYTES: usize = 72;
/// Bytes read of a response: the message and its attributes, none of which is requested.
const READ_BYTES: usize = 4096;
/// Bound of the stale responses to earlier requests that are skipped.
const STALE_MAX: usize = 8;
/// The uid that stands for uids without a mapping in the user namespace.
const OVERFLOW_UID_DEFAULT: u32 = 65534;

#[derive(Debug, ThisError)]
pub(super) enum Unknown {
    /// No established socket of a living process has these addresses.
    #[error("its socket is closed or is not of this host")]
    NoSocket,
    #[error("its user is outside this user namespace")]
    Outside,
    #[error("the kernel does not report the socket's owner (sock_diag: {0})")]
    Unavailable(Error),
}

#[derive(Debug)]
pub(super) struct LocalUsers {
    /// Opened at server start: later it may not be allowed. The number is the sequence number of the last request.
    socket: IoResult<Mutex<(Socket, u32)>>,
    /// The overflow uid, where some uids have no mapping.
    overflow: Option<u32>,
}

impl LocalUsers {
    /// Opens the netlink socket. Where that is forbidden, every query returns [`Unknown::Unavailable`].
    pub(super) fn open() -> Self {
        let socket = Socket::new(
            Domain::from(libc::AF_NETLINK),
            Type::DGRAM,
            Some(Protocol::from(libc::NETLINK_SOCK_DIAG)),
        )
        .and_then(|socket| socket.set_nonblocking(true).map(|()| Mutex::new((socket, 0))));
        Self { socket, overflow: overflow() }
    }

    /// The user whose process holds the socket at `peer` that is connected to the local address `local`.
    pub(super) fn of(&self, peer: SocketAddr, local: SocketAddr) -> Result<u32, Unknown> {
        let unavailable = |error: &Error| Unknown::Unavailable(Error::new(error.kind(), error.to_string()));
        let mut locked = self.socket.as_ref().map_err(unavailable)?.lock().expect("no panic while locked");
        let (socket, sequence) = &mut *locked;
        let (peer, local) = (canonical(peer), canonical(local));
        for mapped in [false, true] {
            if mapped && peer.is_ipv6() {
                break;
            }
            *sequence = sequence.wrapping_add(1);
            let message = request(peer, local, mapped, *sequence);
            if let Some(answer) = query(socket, &message, *sequence).map_err(|error| unavailable(&error))? {
                return parse(&answer, peer, local).and_then(|uid| self.mapped(uid));
            }
        }
        Err(Unknown::NoSocket)
    }

    fn mapped(&self, uid: u32) -> Result<u32, Unknown> {
        if self.overflow == Some(uid) { Err(Unknown::Outside) } else { Ok(uid) }
    }
}

/// The overflow uid, if this process is in a user namespace that does not map every uid to itself.
fn overflow() -> Option<u32> {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let fields: Vec<&str> = map.split_whitespace().collect();
    if fields == ["0", "0", "4294967295"] {
        return None;
    }
    let text = std::fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap_or_default();
    Some(text.trim().parse().unwrap_or(OVERFLOW_UID_DEFAULT))
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// An address in the form of `inet_diag_sockid`; `mapped`: an IPv4 address in IPv4-mapped IPv6 form.
fn bytes_of(address: IpAddr, mapped: bool) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) if mapped => v4.to_ipv6_mapped().octets(),
        IpAddr::V4(v4) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&v4.octets());
            bytes
        }
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// The request for one socket. The source address is the socket's own, which is the peer's.
fn request(peer: SocketAddr, local: SocketAddr, mapped: bool, sequence: u32) -> [u8; REQUEST_BYTES] {
    let family = if mapped || peer.is_ipv6() { libc::AF_INET6 } else { libc::AF_INET };
    let mut bytes = [0; REQUEST_BYTES];
    let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
    put(0, &(REQUEST_BYTES as u32).to_ne_bytes());
    put(4, &SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    put(6, &NLM_F_REQUEST.to_ne_bytes());
    put(8, &sequence.to_ne_bytes());
    put(16, &[family as u8, libc::IPPROTO_TCP as u8]);
    // All states, so that `parse` can detect a socket in another state.
    put(20, &u32::MAX.to_ne_bytes());
    put(24, &peer.port().to_be_bytes());
    put(26, &local.port().to_be_bytes());
    put(28, &bytes_of(peer.ip(), mapped));
    put(44, &bytes_of(local.ip(), mapped));
    // INET_DIAG_NOCOOKIE.
    put(64, &[0xff; 8]);
    bytes
}

/// One exchange with the kernel, which responds before `write` returns. `None`: no such socket.
fn query(socket: &Socket, request: &[u8], sequence: u32) -> IoResult<Option<Vec<u8>>> {
    if socket.send(request)? != request.len() {
        return Err(Error::other("a short request"));
    }
    let mut answer = vec![0; READ_BYTES];
    for _ in 0..STALE_MAX {
        let length = (&mut &*socket).read(&mut answer)?;
        let message = &answer[..length];
        let short = || Error::other("a short answer");
        let field = |at: usize| -> Option<u32> {
            Some(u32::from_ne_bytes(message.get(at..at + 4)?.try_into().ok()?))
        };
        let (announced, of) = (field(0).ok_or_else(short)?, field(8).ok_or_else(short)?);
        if of != sequence {
            continue;
        }
        let kind = u16::from_ne_bytes([message[4], message[5]]);
        if kind == NLMSG_ERROR {
            let code = field(HEADER_BYTES).ok_or_else(short)?.cast_signed();
            return if code == -libc::ENOENT { Ok(None) } else { Err(Error::from_raw_os_error(-code)) };
        }
        if kind != SOCK_DIAG_BY_FAMILY || (announced as usize) < HEADER_BYTES + ANSWER_BYTES {
            return Err(Error::other("an answer of another kind"));
        }
        let body = message.get(HEADER_BYTES..announced as usize).ok_or_else(short)?;
        return Ok(Some(body.to_vec()));
    }
    Err(Error::other("no answer to this request"))
}

/// The uid of an `inet_diag_msg`, if it describes the requested socket, which is established and held by a process.
fn parse(message: &[u8], peer: SocketAddr, local: SocketAddr) -> Result<u32, Unknown> {
    let message: &[u8; ANSWER_BYTES] = message.first_chunk().ok_or(Unknown::NoSocket)?;
    let word =
        |at: usize| u32::from_ne_bytes([message[at], message[at + 1], message[at + 2], message[at + 3]]);
    let port = |at: usize| u16::from_be_bytes([message[at], message[at + 1]]);
    let address = |at: usize| -> Option<IpAddr> {
        let bytes: [u8; 16] = message[at..at + 16].try_into().ok()?;
        match i32::from(message[0]) {
            libc::AF_INET => Some(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]).into()),
            libc::AF_INET6 => Some(IpAddr::from(Ipv6Addr::from(bytes)).to_canonical()),
            _ => None,
        }
    };
    let same = (port(4), port(6)) == (peer.port(), local.port())
        && address(8) == Some(peer.ip())
        && address(24) == Some(local.ip());
    let (state, uid, inode) = (message[1], word(64), word(68));
    if same && state == TCP_ESTABLISHED && inode != 0 { Ok(uid) } else { Err(Unknown::NoSocket) }
}

pub(super) fn name_of(uid: u32) -> Option<String> {
    let text = std::fs::read_to_string("/etc/passwd").ok()?;
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// Both ends of a connection, and the peer and local address of the accepted end.
    fn pair(listen: &str, through: &str) -> Option<(TcpStream, TcpStream, SocketAddr, SocketAddr)> {
        let listener = TcpListener::bind(listen).ok()?;
        let port = listener.local_addr().ok()?.port();
        let client = TcpStream::connect(SocketAddr::new(through.parse().ok()?, port)).ok()?;
        let (server, peer) = listener.accept().ok()?;
        let local = server.local_addr().ok()?;
        Some((client, server, peer, local))
    }

    fn own_uid() -> u32 {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata("/proc/self").unwrap().uid()
    }

    #[test]
    fn the_user_of_an_open_socket_is_known_in_every_family() {
        let users = LocalUsers::open();
        for (listen, through) in [
            ("127.0.0.1:0", "127.0.0.1"),
            ("[::1]:0", "::1"),
            ("[::ffff:127.0.0.1]:0", "::ffff:127.0.0.1"),
            ("[::ffff:127.0.0.1]:0", "127.0.0.1"),
            ("127.0.0.1:0", "::ffff:127.0.0.1"),
        ] {
            // A host without IPv6 has no such pair.
            let Some((client, _server, peer, local)) = pair(listen, through) else { continue };
            assert_eq!(users.of(peer, local).unwrap(), own_uid(), "{listen} {through}");
            drop(client);
            assert!(matches!(users.of(peer, local), Err(Unknown::NoSocket)), "{listen} {through}: closed");
        }
    }

    #[test]
    fn a_listener_is_not_a_peer() {
        let users = LocalUsers::open();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let unused = "127.0.0.1:1".parse().unwrap();
        assert!(matches!(users.of(listener.local_addr().unwrap(), unused), Err(Unknown::NoSocket)));
    }

    #[test]
    fn what_was_not_asked_for_does_not_count() {
        let (peer, local): (SocketAddr, SocketAddr) =
            ("127.0.0.1:7".parse().unwrap(), "127.0.0.1:9".parse().unwrap());
        let mut good = [0; ANSWER_BYTES];
        good[..2].copy_from_slice(&[libc::AF_INET as u8, TCP_ESTABLISHED]);
        good[4..8].copy_from_slice(&[0, 7, 0, 9]);
        good[8..12].copy_from_slice(&[127, 0, 0, 1]);
        good[24..28].copy_from_slice(&[127, 0, 0, 1]);
        good[64..68].copy_from_slice(&1000u32.to_ne_bytes());
        good[68] = 5;
        assert_eq!(parse(&good, peer, local).unwrap(), 1000);
        // (defect, byte, value)
        for (defect, at, value) in [
            ("close_wait", 1, 8),
            ("family_unknown", 0, 1),
            ("peer_port", 5, 8),
            ("local_port", 7, 8),
            ("peer_address", 11, 2),
            ("local_address", 27, 2),
            ("inode_0", 68, 0),
        ] {
            let mut bad = good;
            bad[at] = value;
            assert!(parse(&bad, peer, local).is_err(), "{defect}");
        }
        assert!(parse(&good[..ANSWER_BYTES - 1], peer, local).is_err(), "short");
        let inside = LocalUsers { socket: Err(Error::other("none")), overflow: Some(1000) };
        assert!(matches!(inside.mapped(1000), Err(Unknown::Outside)));
        assert_eq!(inside.mapped(0).unwrap(), 0);
    }
}
