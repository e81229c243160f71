//! `sock_diag`: requests for one TCP socket or for the table, and what the kernel answers
//! (include/uapi/linux/inet_diag.h).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::netlink::{self, HEADER_BYTES, REQUEST, u32_at};
use super::raw::Reply;

/// `SOCK_DIAG_BY_FAMILY`.
pub(super) const BY_FAMILY: u16 = 20;
const REQUEST_BYTES: usize = 56;
/// Bytes of a whole request for one socket.
pub(super) const MESSAGE_BYTES: usize = HEADER_BYTES + REQUEST_BYTES;
/// Bytes of `struct inet_diag_msg`, before the attributes.
const REPLY_BYTES: usize = 72;

/// Attributes of a reply; bit `number - 1` of a request asks for one.
pub(super) const INFO: u16 = 2;
const VEGASINFO: u16 = 3;
const CONG: u16 = 4;
pub(super) const SKMEMINFO: u16 = 7;
pub(super) const BBRINFO: u16 = 16;

const fn ask(attribute: u16) -> u8 {
    1 << (attribute - 1)
}

/// TCP states as the kernel numbers them.
pub const ESTABLISHED: u8 = 1;
pub const LISTEN: u8 = 10;
pub(super) const FIN_WAIT2: u8 = 5;
pub(super) const TIME_WAIT: u8 = 6;
/// States in which a socket may still send or receive: ESTABLISHED, FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT, LAST_ACK, CLOSING.
const STATES_OPEN: u32 = 1 << 1 | 1 << 4 | 1 << 5 | 1 << 8 | 1 << 9 | 1 << 11;
const STATES_ALL: u32 = u32::MAX;

/// The two ends of a TCP socket as it sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ends {
    pub local: SocketAddr,
    pub remote: SocketAddr,
}

/// A socket in the kernel's table.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    pub ends: Ends,
    pub state: u8,
    /// Number of the socket's file; 0 if no process has it open.
    pub inode: u32,
    pub uid: u32,
    /// Tells this socket from a later one with the same ends.
    pub cookie: [u32; 2],
    /// Interface that the socket is bound to; 0: none.
    pub interface: u32,
    /// Algorithm of congestion control.
    pub congestion: Option<String>,
}

/// A socket to be sampled, with its request.
#[derive(Clone, Debug)]
pub struct Watched {
    pub ends: Ends,
    pub(super) message: [u8; MESSAGE_BYTES],
}

impl Watched {
    pub fn new(found: &Found) -> Self {
        let is_bbr = found.congestion.as_deref() == Some("bbr");
        let attributes = ask(INFO) | ask(SKMEMINFO) | if is_bbr { ask(VEGASINFO) } else { 0 };
        let payload = request(&found.ends, attributes, STATES_ALL, found.interface, found.cookie);
        let mut bytes = Vec::with_capacity(MESSAGE_BYTES);
        netlink::push(&mut bytes, BY_FAMILY, REQUEST, 0, &payload);
        let mut message = [0; MESSAGE_BYTES];
        message.copy_from_slice(&bytes);
        Self { ends: found.ends, message }
    }
}

/// What asks for the table of one address family: the open sockets, or the listening ones.
pub(super) fn of_table(family: i32, listening: bool) -> [u8; REQUEST_BYTES] {
    let states = if listening { 1 << LISTEN } else { STATES_OPEN };
    let any: IpAddr =
        if family == libc::AF_INET { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let any = SocketAddr::new(any, 0);
    request(&Ends { local: any, remote: any }, ask(CONG), states, 0, [0; 2])
}

/// `struct inet_diag_req_v2`.
fn request(
    ends: &Ends,
    attributes: u8,
    states: u32,
    interface: u32,
    cookie: [u32; 2],
) -> [u8; REQUEST_BYTES] {
    let mut bytes = [0; REQUEST_BYTES];
    bytes[0] = if ends.local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 } as u8;
    bytes[1] = libc::IPPROTO_TCP as u8;
    bytes[2] = attributes;
    bytes[4..8].copy_from_slice(&states.to_ne_bytes());
    bytes[8..10].copy_from_slice(&ends.local.port().to_be_bytes());
    bytes[10..12].copy_from_slice(&ends.remote.port().to_be_bytes());
    for (at, address) in [(12, ends.local), (28, ends.remote)] {
        match address.ip() {
            IpAddr::V4(v4) => bytes[at..at + 4].copy_from_slice(&v4.octets()),
            IpAddr::V6(v6) => bytes[at..at + 16].copy_from_slice(&v6.octets()),
        }
    }
    bytes[44..48].copy_from_slice(&interface.to_ne_bytes());
    bytes[48..52].copy_from_slice(&cookie[0].to_ne_bytes());
    bytes[52..56].copy_from_slice(&cookie[1].to_ne_bytes());
    bytes
}

/// The socket of a reply; `None` if it is too short or of another address family.
pub(super) fn found(payload: &[u8]) -> Option<Found> {
    let fixed = payload.get(..REPLY_BYTES)?;
    let port = |at: usize| u16::from_be_bytes([fixed[at], fixed[at + 1]]);
    let address = |at: usize| -> Option<IpAddr> {
        Some(match i32::from(fixed[0]) {
            libc::AF_INET => IpAddr::from(<[u8; 4]>::try_from(&fixed[at..at + 4]).ok()?),
            libc::AF_INET6 => IpAddr::from(<[u8; 16]>::try_from(&fixed[at..at + 16]).ok()?),
            _ => return None,
        })
    };
    let local = SocketAddr::new(address(8)?, port(4));
    let remote = SocketAddr::new(address(24)?, port(6));
    let mut attributes = netlink::attributes(&payload[REPLY_BYTES..]);
    Some(Found {
        ends: Ends { local, remote },
        state: fixed[1],
        interface: u32_at(fixed, 40)?,
        cookie: [u32_at(fixed, 44)?, u32_at(fixed, 48)?],
        uid: u32_at(fixed, 64)?,
        inode: u32_at(fixed, 68)?,
        congestion: attributes.find(|(number, _)| *number == CONG).map(|(_, value)| netlink::named(value)),
    })
}

/// The figures of a reply; `None` if it is too short.
pub(super) fn reply(payload: &[u8], at_ns: u64) -> Option<Reply<'_>> {
    let (fixed, attributes) = payload.split_at_checked(REPLY_BYTES)?;
    Some(Reply { at_ns, state: fixed[1], attributes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(local: &str, remote: &str) -> Ends {
        Ends { local: local.parse().unwrap(), remote: remote.parse().unwrap() }
    }

    /// The kernel's reply begins with the fields of the request's `inet_diag_sockid`, four bytes earlier.
    fn reply(ends: &Ends) -> Vec<u8> {
        let request = request(ends, 0, 0, 3, [5, 6]);
        let mut bytes = vec![0; REPLY_BYTES];
        bytes[0] = request[0];
        bytes[1] = ESTABLISHED;
        bytes[4..52].copy_from_slice(&request[8..56]);
        bytes[64..68].copy_from_slice(&1000_u32.to_ne_bytes());
        bytes[68..72].copy_from_slice(&4711_u32.to_ne_bytes());
        bytes
    }

    #[test]
    fn a_reply_names_the_socket() {
        for ends in [ends("10.0.0.1:40000", "192.0.2.7:3260"), ends("[fe80::1]:860", "[2001:db8::7]:40000")] {
            let bytes = [&reply(&ends)[..], &[8, 0, 4, 0], b"bbr\0"].concat();
            let socket = found(&bytes).unwrap();
            assert_eq!((socket.ends, socket.inode, socket.uid), (ends, 4711, 1000));
            assert_eq!((socket.cookie, socket.interface, socket.state), ([5, 6], 3, ESTABLISHED));
            assert_eq!(socket.congestion.as_deref(), Some("bbr"));
            for length in 0..REPLY_BYTES {
                assert!(found(&bytes[..length]).is_none() && super::reply(&bytes[..length], 0).is_none());
            }
        }
    }

    #[test]
    fn only_bbr_is_asked_for_its_estimate() {
        let mut found = found(&reply(&ends("10.0.0.1:1", "10.0.0.2:3260"))).unwrap();
        let asked = |found: &Found| Watched::new(found).message[HEADER_BYTES + 2];
        assert_eq!(asked(&found), 0b0100_0010);
        found.congestion = Some("bbr".to_owned());
        assert_eq!(asked(&found), 0b0100_0110);
    }

    #[test]
    fn another_family_is_no_socket() {
        let mut bytes = reply(&ends("10.0.0.1:1", "10.0.0.2:3260"));
        bytes[0] = 1;
        assert_eq!(found(&bytes), None);
    }
}
