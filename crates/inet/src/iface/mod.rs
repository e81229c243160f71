//! Interfaces and what lies between them and TCP: addresses, routes, neighbours (ARP, neighbour discovery), ICMP,
//! and which groups are listened to.
//!
//! Driven by the engine: [`Iface::on_frame`] takes every frame first and returns segments of TCP and ICMP errors about
//! them; what it wants to send itself comes from [`Iface::poll_transmit`], frames that it has held from
//! [`Iface::poll_free`]. Replies to ICMP refer to the frame that was received, so that its payload is not read.
//!
//! Left out: duplicate address detection and router discovery (addresses and gateways are given), fragments, redirects,
//! and packets to our own addresses (no loop-back).

mod arp;
mod discovery;
mod icmp;
mod listener;
mod neighbour;
mod rate;
mod records;
mod reply;
mod route;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use crate::packet::{self, DropReason, Emitted, IpHeader, Mac, Parsed, TcpHeader};
use crate::{Address, Arrived, Endpoint, HEADER_BYTES, InterfaceId, Link, SeqNumber, Time};

pub use records::{ADDRESSES_MAX, Counters, GATEWAYS_MAX, INTERFACES_MAX, Neighbour, State};
use records::{Interface, Kind, LocalAddress, Reply};

/// How packets to a remote address leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, zerocopy::FromZeros)]
#[repr(C)]
pub struct Route {
    pub local: Address,
    /// The remote address itself if it is on the link, or a gateway.
    pub next_hop: Address,
    /// Largest IP packet of the interface, bytes.
    pub mtu: u16,
    pub interface: InterfaceId,
    /// The driver divides TCP segments that are longer than the MTU.
    pub segments: bool,
}

/// What is known of a next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    Known(Mac),
    /// Resolution is under way: look again when [`Iface::changes`] has changed.
    Asked,
    /// No answer. A lookup after a few seconds starts again.
    Failed,
}

/// An ICMP error about a segment that we may have sent. The caller checks that such a connection exists and that `seq`
/// lies within what it has sent and not acknowledged (RFC 5927 §4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpError {
    pub local: Endpoint,
    pub remote: Endpoint,
    pub seq: SeqNumber,
    pub kind: IcmpErrorKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpErrorKind {
    /// Largest IP packet of the path, plausible for its family (RFC 1191, RFC 8201).
    PacketTooBig(u16),
    /// Protocol or port unreachable: ends a connection that is being opened (RFC 1122 §4.2.3.9, RFC 5927 §6).
    Hard,
    /// Network or host unreachable, time exceeded, parameter problem: ends no established connection.
    Soft,
}

/// What a frame was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// To one of our addresses, with a plausible source. The frame is the caller's.
    Tcp(TcpHeader),
    /// The frame is of no more use.
    Error(IcmpError),
    /// The frame is of no more use.
    Done,
    /// The frame stays here until `poll_free` returns it.
    Held,
}

type Outcome = Result<Verdict, DropReason>;

/// Who sent a frame to whom on its link.
#[derive(Clone, Copy)]
struct Ethernet {
    source: Mac,
    destination: Mac,
}

/// Interfaces, addresses, routes, neighbours over the records that hold them.
#[derive(Debug)]
pub struct Iface<'m> {
    state: &'m mut State,
    neighbours: &'m mut [Neighbour],
}

impl<'m> Iface<'m> {
    /// Formats the records. Addresses beyond [`ADDRESSES_MAX`] and gateways beyond [`GATEWAYS_MAX`] are ignored.
    pub fn format(
        state: &'m mut State,
        neighbours: &'m mut [Neighbour],
        addresses: &[(InterfaceId, IpAddr, u8)],
        gateways: &[IpAddr],
        secret: [u8; 16],
    ) -> Self {
        *state = State::default();
        neighbours.fill(Neighbour::default());
        let (low, high) = secret.split_at(8);
        state.key = [low, high].map(|half| half.iter().fold(0, |key, &byte| key << 8 | u64::from(byte)));
        for (place, &(interface, ip, prefix_bits)) in state.addresses.iter_mut().zip(addresses) {
            let before = if ip.is_ipv4() { 128 - 32 } else { 0 };
            let prefix_bits = prefix_bits.saturating_add(before).min(128);
            *place = LocalAddress::new(interface, ip.into(), prefix_bits);
            state.address_count += 1;
        }
        for (place, &gateway) in state.gateways.iter_mut().zip(gateways) {
            *place = gateway.into();
            state.gateway_count += 1;
        }
        Self { state, neighbours }
    }

    /// Over records that another one has left.
    pub fn attach(state: &'m mut State, neighbours: &'m mut [Neighbour]) -> Self {
        Self { state, neighbours }
    }

    pub fn counters(&self) -> &Counters {
        &self.state.counters
    }

    /// A driver has started. What its predecessor was given waits until `on_transmitted` says that it is consumed. An
    /// interface beyond [`INTERFACES_MAX`] is ignored.
    pub fn on_attached(&mut self, interface: InterfaceId, link: Link) {
        let has_v6 = self
            .state
            .configured()
            .iter()
            .any(|local| local.interface == interface && !local.address.is_v4());
        let Some(record) = self.state.interfaces.get_mut(usize::from(interface)) else { return };
        let link_local = if has_v6 { link_local(link.mac) } else { Address::UNSPECIFIED };
        *record = Interface { link, is_attached: true, link_local, report_at: Time::NEVER };
        self.report_groups(interface, listener::TO_EXCLUDE);
        self.announce(interface);
    }

    /// Tells the hosts and bridges of a link where our addresses are (RFC 5227 §2.3, RFC 4861 §7.2.6).
    fn announce(&mut self, interface: InterfaceId) {
        let state = &*self.state;
        let mut announced = [None; ADDRESSES_MAX + 1];
        let ours = state.local_addresses().filter(|local| local.interface == interface);
        for (place, local) in announced.iter_mut().zip(ours) {
            *place = Some(local.address);
        }
        for source in announced.into_iter().flatten() {
            let (kind, destination, mac) = if source.is_v4() {
                (Kind::ArpRequest, source, [0xff; 6])
            } else {
                (Kind::Advertisement, discovery::ALL_NODES, neighbour::multicast_mac(discovery::ALL_NODES))
            };
            self.reply(Reply {
                source,
                destination,
                target: source,
                mac,
                interface,
                kind,
                ..Reply::default()
            });
        }
    }

    /// Takes a frame first.
    #[inline]
    pub fn on_frame(&mut self, arrived: &Arrived<'_>, now: Time) -> Verdict {
        self.state.counters.received_frames += 1;
        self.state.counters.received_bytes += u64::from(arrived.length);
        self.dispatch(arrived, now).unwrap_or_else(|reason| {
            self.state.counters.dropped[reason as usize] += 1;
            Verdict::Done
        })
    }

    #[inline]
    fn dispatch(&mut self, arrived: &Arrived<'_>, now: Time) -> Outcome {
        let parsed = packet::parse(arrived);
        if let Parsed::Dropped(reason) = parsed {
            return Err(reason);
        }
        let interface = self.state.attached(arrived.interface).ok_or(DropReason::NotForUs)?;
        let macs: &[u8; 12] = arrived.header.first_chunk().ok_or(DropReason::Malformed)?;
        let [destination, source] = [0, 6].map(|at| std::array::from_fn(|byte| macs[at + byte]));
        let ethernet = Ethernet { source, destination };
        let is_to_group = destination[0] & 1 != 0;
        if (!is_to_group && destination != interface.link.mac) || source[0] & 1 != 0 {
            return Err(DropReason::NotForUs);
        }
        match parsed {
            Parsed::Tcp(tcp) => {
                self.check_addresses(arrived.interface, tcp.source.address, tcp.destination.address)?;
                self.state.counters.received_segments += 1;
                Ok(Verdict::Tcp(tcp))
            }
            Parsed::Arp => self.on_arp(arrived, ethernet, now),
            Parsed::Icmp(ip) => {
                self.check_group(arrived.interface, ethernet, &ip)?;
                self.on_icmp(arrived, ethernet, &ip, now)
            }
            Parsed::Refused(ip, refused) => {
                self.check_group(arrived.interface, ethernet, &ip)?;
                self.on_refused(arrived, ethernet, &ip, refused, now)
            }
            Parsed::Dropped(reason) => Err(reason),
        }
    }

    /// A packet to one host must come in a frame to one host (RFC 1122 §3.3.6), and one to a group must be to one of ours.
    fn check_group(
        &self,
        interface: InterfaceId,
        ethernet: Ethernet,
        ip: &IpHeader,
    ) -> Result<(), DropReason> {
        if !packet::is_multicast(ip.destination) {
            let is_to_group = ethernet.destination[0] & 1 != 0;
            self.check_addresses(interface, ip.source, ip.destination)?;
            return if is_to_group { Err(DropReason::NotForUs) } else { Ok(()) };
        }
        let is_ours = ip.destination == discovery::ALL_NODES
            || self.state.local_addresses().any(|local| {
                local.interface == interface
                    && !local.address.is_v4()
                    && neighbour::solicited_node(local.address) == ip.destination
            });
        if !is_ours {
            return Err(DropReason::NotForUs);
        }
        if self.state.is_local_at(interface, ip.source) { Err(DropReason::Martian) } else { Ok(()) }
    }

    /// From a host that is none of ours to an address of the interface.
    fn check_addresses(
        &self,
        interface: InterfaceId,
        source: Address,
        destination: Address,
    ) -> Result<(), DropReason> {
        let (mut is_for_us, mut is_martian) = (false, false);
        for local in self.state.configured() {
            is_for_us |= local.interface == interface && local.address == destination;
            is_martian |= local.address == source || local.reserved.contains(&source);
        }
        let link_local = self.state.interfaces[usize::from(interface)].link_local;
        is_for_us |= link_local == destination && !destination.is_unspecified();
        is_martian |= link_local == source && !source.is_unspecified();
        match (is_for_us, is_martian) {
            (true, false) => Ok(()),
            (true, true) => Err(DropReason::Martian),
            (false, _) => Err(DropReason::NotForUs),
        }
    }

    /// Writes the headers of a segment to a known neighbour; see [`packet::emit_tcp`].
    pub fn emit_tcp(
        &mut self,
        header: &mut [u8; HEADER_BYTES],
        route: &Route,
        neighbour: Mac,
        tcp: &TcpHeader,
    ) -> Emitted {
        let own = self.state.interfaces[usize::from(route.interface)].link.mac;
        let emitted = packet::emit_tcp(header, own, neighbour, tcp);
        self.state.counters.sent_frames += 1;
        self.state.counters.sent_bytes += u64::from(emitted.header_bytes) + u64::from(tcp.payload_bytes);
        emitted
    }
}

/// fe80::/64 with the modified EUI-64 of the MAC address (RFC 4291, appendix A).
fn link_local([a, b, c, d, e, f]: Mac) -> Address {
    Address([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}
