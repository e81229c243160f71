//! ICMP for IPv4 (RFC 792) and IPv6 (RFC 4443): echo, and errors in both directions.
//!
//! Replies go to the MAC address that the packet came from: no entry of the neighbours' table is made or waited for.

use smoltcp::wire::{Icmpv4DstUnreachable, Icmpv4Message, Icmpv6DstUnreachable, Icmpv6Message};

use super::discovery::ALL_NODES;
use super::records::{IcmpReply, Kind, Reply};
use super::reply::ICMP_BYTES;
use super::route::is_unicast;
use super::{Ethernet, IcmpError, IcmpErrorKind, Iface, Outcome, Verdict};
use crate::packet::{
    DropReason, ETHERNET_BYTES, IpHeader, Refused, V4_BYTES, V6_BYTES, be16, be32, endpoint, fold, protocol,
    seq, sum, v4_address,
};
use crate::{Address, Arrived, Time};

/// At most 10,000 echo replies a second, 64 at once.
const ECHO_INTERVAL_US: u64 = 100;
const ECHO_BURST: u64 = 64;
/// At most 1,000 errors a second, 50 at once, as Linux allows a host by default (RFC 1812 §4.3.2.8, RFC 4443 §2.4 (f)).
const ERROR_INTERVAL_US: u64 = 1000;
const ERROR_BURST: u64 = 50;
/// Of an error with its IP header (RFC 1812 §4.3.2.3).
const ERROR_V4_BYTES_MAX: u32 = 576;
/// The least MTU of IPv6 (RFC 4443 §2.4 (c)).
const ERROR_V6_BYTES_MAX: u32 = 1280;
/// Reports of a smaller path MTU count as this, so that a forged one cannot make segments tiny: what Linux takes.
const PATH_MTU_V4_MIN: u32 = 552;
/// RFC 8201 §4.
const PATH_MTU_V6_MIN: u32 = 1280;
/// RFC 1191 §7.1: MTUs to try below that of a packet for which a router has said no MTU.
const PLATEAUS: [u16; 9] = [32_000, 17_914, 8166, 4352, 2002, 1492, 1006, 508, 296];
/// Source and destination port, sequence number.
const QUOTED_TCP_BYTES: usize = 8;

impl Iface<'_> {
    /// A message to one of our addresses or groups.
    pub(super) fn on_icmp(
        &mut self,
        arrived: &Arrived<'_>,
        ethernet: Ethernet,
        ip: &IpHeader,
        now: Time,
    ) -> Outcome {
        let start = ip.payload_start as usize;
        let end = (start + ip.payload_bytes as usize).min(arrived.header.len());
        let message = arrived.header.get(start..end).ok_or(DropReason::TooLong)?;
        let header: &[u8; ICMP_BYTES] = message.first_chunk().ok_or(DropReason::Malformed)?;
        if ip.source.is_v4() {
            match Icmpv4Message::from(header[0]) {
                Icmpv4Message::EchoRequest => self.on_echo_request(arrived, ethernet, ip, header, now),
                Icmpv4Message::DstUnreachable | Icmpv4Message::TimeExceeded | Icmpv4Message::ParamProblem => {
                    self.on_error(ip, message, error_v4(header, message))
                }
                // Redirects: gateways are given. Source quench: RFC 6633.
                _ => Err(DropReason::Unsupported),
            }
        } else {
            match Icmpv6Message::from(header[0]) {
                Icmpv6Message::NeighborSolicit | Icmpv6Message::NeighborAdvert => {
                    if message.len() < ip.payload_bytes as usize {
                        return Err(DropReason::TooLong);
                    }
                    self.on_neighbour_discovery(arrived.interface, ethernet, ip, message, now)
                }
                Icmpv6Message::MldQuery => self.on_listener_query(arrived, ip, message, now),
                _ if ip.source.is_unspecified() => Err(DropReason::Martian),
                Icmpv6Message::EchoRequest => self.on_echo_request(arrived, ethernet, ip, header, now),
                Icmpv6Message::DstUnreachable
                | Icmpv6Message::PktTooBig
                | Icmpv6Message::TimeExceeded
                | Icmpv6Message::ParamProblem => self.on_error(ip, message, error_v6(header)),
                _ => Err(DropReason::Unsupported),
            }
        }
    }

    /// RFC 1122 §3.2.2.6, RFC 4443 §4.2. The reply has the bytes of the request, by reference.
    fn on_echo_request(
        &mut self,
        arrived: &Arrived<'_>,
        ethernet: Ethernet,
        ip: &IpHeader,
        request: &[u8; ICMP_BYTES],
        now: Time,
    ) -> Outcome {
        let interface = arrived.interface;
        let is_v4 = ip.source.is_v4();
        // A request to all nodes is answered from an address of the interface.
        let source = if ip.destination == ALL_NODES {
            self.state.source_for(interface, ip.source).ok_or(DropReason::NotForUs)?
        } else if self.state.is_local_at(interface, ip.destination) {
            ip.destination
        } else {
            return Err(DropReason::NotForUs);
        };
        if request[1] != 0 {
            return Err(DropReason::Unsupported);
        }
        let mtu = self.state.interfaces[usize::from(interface)].link.mtu;
        // Without the options of the request, so the reply may be shorter.
        let headers = if is_v4 { V4_BYTES } else { V6_BYTES } as u32;
        if headers + ip.payload_bytes > u32::from(mtu) {
            return Err(DropReason::TooLong);
        }
        if !self.can_hold() || !self.state.echo_rate.take(ECHO_INTERVAL_US, ECHO_BURST, now) {
            return Err(DropReason::Busy);
        }
        let message: u8 =
            if is_v4 { Icmpv4Message::EchoReply.into() } else { Icmpv6Message::EchoReply.into() };
        // RFC 1624, equation 3. Of the pseudo-header only the source may be another address than in the request.
        let changed = if is_v4 { 0 } else { difference(&ip.destination.0, &source.0) };
        let kind = difference(&[request[0], 0], &[message, 0]);
        let checksum = match !fold(u64::from(!be16(request, 2)) + changed + kind) {
            // Either form of zero is right, but for a message of zeroes alone only this one.
            0 => 0xffff,
            checksum => checksum,
        };
        self.reply(Reply {
            source,
            destination: ip.source,
            mac: ethernet.source,
            interface,
            kind: Kind::Icmp,
            icmp: IcmpReply {
                frame: arrived.frame,
                start: ip.payload_start + ICMP_BYTES as u32,
                length: ip.payload_bytes - ICMP_BYTES as u32,
                rest: be32(request, 4),
                message,
                code: 0,
                checksum,
                is_partial: false,
            },
            ..Reply::default()
        });
        self.state.counters.echo_replies += 1;
        Ok(Verdict::Held)
    }

    /// Reports a packet to one of our addresses to its sender, if RFC 1122 §3.2.2 and RFC 4443 §2.4 (e) permit it.
    pub(super) fn on_refused(
        &mut self,
        arrived: &Arrived<'_>,
        ethernet: Ethernet,
        ip: &IpHeader,
        refused: Refused,
        now: Time,
    ) -> Outcome {
        let interface = arrived.interface;
        // Not about a packet to several hosts.
        if !self.state.is_local_at(interface, ip.destination) {
            return Err(DropReason::NotForUs);
        }
        if !is_unicast(ip.source) {
            return Err(DropReason::Martian);
        }
        let is_v4 = ip.source.is_v4();
        let (message, code, rest): (u8, u8, u32) = match refused {
            // No port of UDP is open here, which clients of UDP understand better than that there is no UDP.
            Refused::Protocol if !is_v4 => {
                (Icmpv6Message::DstUnreachable.into(), Icmpv6DstUnreachable::PortUnreachable.into(), 0)
            }
            Refused::Protocol if ip.protocol == protocol::UDP => {
                (Icmpv4Message::DstUnreachable.into(), Icmpv4DstUnreachable::PortUnreachable.into(), 0)
            }
            Refused::Protocol => {
                (Icmpv4Message::DstUnreachable.into(), Icmpv4DstUnreachable::ProtoUnreachable.into(), 0)
            }
            Refused::Parameter { code, pointer } => (Icmpv6Message::ParamProblem.into(), code, pointer),
        };
        if !self.can_hold() || !self.state.error_rate.take(ERROR_INTERVAL_US, ERROR_BURST, now) {
            return Err(DropReason::Busy);
        }
        let mtu = u32::from(self.state.interfaces[usize::from(interface)].link.mtu);
        let (headers, most) =
            if is_v4 { (V4_BYTES, ERROR_V4_BYTES_MAX) } else { (V6_BYTES, ERROR_V6_BYTES_MAX) };
        let room = most.min(mtu).saturating_sub((headers + ICMP_BYTES) as u32);
        self.reply(Reply {
            source: ip.destination,
            destination: ip.source,
            mac: ethernet.source,
            interface,
            kind: Kind::Icmp,
            icmp: IcmpReply {
                frame: arrived.frame,
                start: ETHERNET_BYTES as u32,
                length: ip.packet_bytes().min(room),
                rest,
                message,
                code,
                checksum: 0,
                is_partial: true,
            },
            ..Reply::default()
        });
        self.state.counters.icmp_errors_sent += 1;
        Ok(Verdict::Held)
    }

    /// An error that a router or the peer reports. What it quotes must be a TCP segment from one of our addresses.
    fn on_error(&mut self, ip: &IpHeader, message: &[u8], kind: IcmpErrorKind) -> Outcome {
        self.state.counters.icmp_errors_received += 1;
        let quoted = &message[ICMP_BYTES..];
        let (local, remote, tcp) = if ip.source.is_v4() { quoted_v4(quoted) } else { quoted_v6(quoted) }
            .ok_or(DropReason::Malformed)?;
        if !self.is_local(local) {
            return Err(DropReason::Martian);
        }
        Ok(Verdict::Error(IcmpError {
            local: endpoint(local, tcp, 0),
            remote: endpoint(remote, tcp, 2),
            seq: seq(tcp, 4),
            kind,
        }))
    }
}

/// RFC 792; RFC 1122 §4.2.3.9. `message` is `header` and what follows.
fn error_v4(header: &[u8; ICMP_BYTES], message: &[u8]) -> IcmpErrorKind {
    if Icmpv4Message::from(header[0]) != Icmpv4Message::DstUnreachable {
        return IcmpErrorKind::Soft;
    }
    match Icmpv4DstUnreachable::from(header[1]) {
        Icmpv4DstUnreachable::FragRequired => {
            let mut mtu = be16(header, 6);
            if mtu == 0 {
                // RFC 1191 §5: a router that does not know of path MTU discovery.
                let length = message
                    .get(ICMP_BYTES + 2..)
                    .and_then(<[u8]>::first_chunk)
                    .map_or(0, |b| u16::from_be_bytes(*b));
                mtu = PLATEAUS.into_iter().find(|&plateau| plateau < length).unwrap_or(0);
            }
            IcmpErrorKind::PacketTooBig(path_mtu(u32::from(mtu), PATH_MTU_V4_MIN))
        }
        Icmpv4DstUnreachable::ProtoUnreachable
        | Icmpv4DstUnreachable::PortUnreachable
        | Icmpv4DstUnreachable::NetProhibited
        | Icmpv4DstUnreachable::HostProhibited
        | Icmpv4DstUnreachable::CommProhibited => IcmpErrorKind::Hard,
        _ => IcmpErrorKind::Soft,
    }
}

/// RFC 4443 §3; RFC 5461 §3.
fn error_v6(header: &[u8; ICMP_BYTES]) -> IcmpErrorKind {
    match Icmpv6Message::from(header[0]) {
        Icmpv6Message::PktTooBig => IcmpErrorKind::PacketTooBig(path_mtu(be32(header, 4), PATH_MTU_V6_MIN)),
        Icmpv6Message::DstUnreachable => match Icmpv6DstUnreachable::from(header[1]) {
            Icmpv6DstUnreachable::AdminProhibit
            | Icmpv6DstUnreachable::PortUnreachable
            | Icmpv6DstUnreachable::FailedPolicy
            | Icmpv6DstUnreachable::RejectRoute => IcmpErrorKind::Hard,
            _ => IcmpErrorKind::Soft,
        },
        _ => IcmpErrorKind::Soft,
    }
}

fn path_mtu(reported: u32, least: u32) -> u16 {
    reported.clamp(least, u32::from(u16::MAX)) as u16
}

type Quoted<'a> = Option<(Address, Address, &'a [u8; QUOTED_TCP_BYTES])>;

/// Source, destination and TCP header of a quoted packet: at least eight bytes of its payload are there (RFC 792).
fn quoted_v4(quoted: &[u8]) -> Quoted<'_> {
    let ip: &[u8; V4_BYTES] = quoted.first_chunk()?;
    let header_bytes = usize::from(ip[0] & 0x0f) * 4;
    // The first fragment of a packet that a router has fragmented in spite of Don't Fragment would do as well.
    let is_first = be16(ip, 6) & 0x1fff == 0;
    if ip[0] >> 4 != 4 || header_bytes < V4_BYTES || ip[9] != protocol::TCP || !is_first {
        return None;
    }
    let address = |at: usize| v4_address(ip, at);
    Some((address(12), address(16), quoted.get(header_bytes..)?.first_chunk()?))
}

/// Our packets have no extension headers.
fn quoted_v6(quoted: &[u8]) -> Quoted<'_> {
    let (ip, behind) = quoted.split_first_chunk::<V6_BYTES>()?;
    if ip[0] >> 4 != 6 || ip[6] != protocol::TCP {
        return None;
    }
    let address = |at: usize| ip[at..].first_chunk().copied().map(Address);
    Some((address(8)?, address(24)?, behind.first_chunk()?))
}

/// ~m + m' of RFC 1624, not folded.
fn difference(before: &[u8], after: &[u8]) -> u64 {
    u64::from(!fold(sum(before))) + sum(after)
}
