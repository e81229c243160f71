//! Interfaces and what lies between them and TCP: addresses, routes, neighbours (ARP, neighbour discovery), ICMP.
//!
//! Driven by the engine: [`Iface::on_frame`] takes every frame first and returns segments of TCP and ICMP errors about
//! them; what it wants to send itself comes from [`Iface::poll_transmit`], frames that it has held from
//! [`Iface::poll_free`]. Replies to ICMP refer to the frame that was received, so that its payload is not read.
//!
//! Left out: duplicate address detection and router discovery (addresses and gateways are given), fragments, redirects,
//! and packets to our own addresses (no loop-back).

mod records;

use std::net::IpAddr;

use crate::packet::{Emitted, Mac, TcpHeader};
use crate::{
    Address, Arrived, Endpoint, FrameId, HEADER_BYTES, InterfaceId, Link, Refusal, SeqNumber, Time, Transmit,
};

pub use records::{ADDRESSES_MAX, Counters, GATEWAYS_MAX, INTERFACES_MAX, Neighbour, State};

/// How packets to a remote address leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
        let _ = (addresses, gateways, secret);
        Self { state, neighbours }
    }

    /// Over records that another one has left.
    pub fn attach(state: &'m mut State, neighbours: &'m mut [Neighbour]) -> Self {
        Self { state, neighbours }
    }

    pub fn counters(&self) -> &Counters {
        todo!()
    }

    /// A driver has started. Frames that its predecessor was given count as consumed.
    pub fn on_attached(&mut self, interface: InterfaceId, link: Link, now: Time) {
        let _ = (interface, link, now);
        todo!()
    }

    /// `address` is one of ours.
    pub fn is_local(&self, address: Address) -> bool {
        let _ = address;
        todo!()
    }

    /// How packets from `local`, or from the best address of ours, leave for `remote`.
    pub fn route(&self, remote: Address, local: Option<Address>) -> Result<Route, Refusal> {
        let _ = (remote, local);
        todo!()
    }

    /// The MAC address of a route's next hop; asks for it if it is not known or has not been confirmed for long.
    pub fn neighbour(&mut self, route: &Route, now: Time) -> Lookup {
        let _ = (route, now);
        todo!()
    }

    /// Progress of a connection shows that its next hop is reachable (RFC 4861 §7.3.1).
    pub fn confirm(&mut self, route: &Route, now: Time) {
        let _ = (route, now);
        todo!()
    }

    /// Counts resolutions that have ended, well or not.
    pub fn changes(&self) -> u32 {
        todo!()
    }

    pub fn on_frame(&mut self, arrived: &Arrived<'_>, now: Time) -> Verdict {
        let _ = (arrived, now);
        todo!()
    }

    /// Writes the headers of a segment to a known neighbour; see [`crate::packet::emit_tcp`].
    pub fn emit_tcp(
        &mut self,
        header: &mut [u8; HEADER_BYTES],
        route: &Route,
        neighbour: Mac,
        tcp: &TcpHeader,
    ) -> Emitted {
        let _ = (header, route, neighbour, tcp);
        todo!()
    }

    /// The next frame of ARP, neighbour discovery or ICMP. `positions` are the numbers of frames that all of the engine
    /// has sent so far, one of each interface.
    pub fn poll_transmit(
        &mut self,
        header: &mut [u8; HEADER_BYTES],
        positions: &[u64; INTERFACES_MAX],
        now: Time,
    ) -> Option<Transmit> {
        let _ = (header, positions, now);
        todo!()
    }

    /// The driver has consumed the first `frames` frames of the interface.
    pub fn on_transmitted(&mut self, interface: InterfaceId, frames: u64) {
        let _ = (interface, frames);
        todo!()
    }

    /// The next frame that was held and is of no more use.
    pub fn poll_free(&mut self) -> Option<FrameId> {
        todo!()
    }

    /// [`Time::NEVER`] while nothing waits. May be early.
    pub fn poll_timeout(&self) -> Time {
        todo!()
    }

    pub fn on_timer(&mut self, now: Time) {
        let _ = now;
        todo!()
    }
}
