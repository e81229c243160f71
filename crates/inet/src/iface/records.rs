//! Where interfaces, addresses, neighbours and replies are kept. All records are plain numbers and valid with all bits 0.

use super::rate::Bucket;
use crate::packet::{DropReason, Mac};
use crate::{Address, FrameId, InterfaceId, Link, Time};

pub const INTERFACES_MAX: usize = 4;
/// Of all interfaces, without the link-local ones.
pub const ADDRESSES_MAX: usize = 8;
pub const GATEWAYS_MAX: usize = 2;
/// Frames of ARP, neighbour discovery and ICMP that wait to be sent.
pub(super) const REPLIES_MAX: usize = 64;
/// Received frames that replies refer to.
pub(super) const HELD_MAX: usize = 16;
const _: () = assert!(HELD_MAX < REPLIES_MAX && 2 * (ADDRESSES_MAX + INTERFACES_MAX) < REPLIES_MAX);

/// What `net status` shows.
#[derive(Clone, Copy, Debug, Default, zerocopy::FromZeros)]
#[repr(C)]
pub struct Counters {
    pub received_frames: u64,
    pub received_bytes: u64,
    pub sent_frames: u64,
    pub sent_bytes: u64,
    /// TCP segments to addresses of ours; one that the driver put together counts once.
    pub received_segments: u64,
    pub echo_replies: u64,
    pub icmp_errors_received: u64,
    pub icmp_errors_sent: u64,
    pub arp_received: u64,
    pub arp_sent: u64,
    pub neighbour_discovery_received: u64,
    pub neighbour_discovery_sent: u64,
    pub neighbours_resolved: u64,
    pub neighbours_failed: u64,
    /// ARP or advertisements in which another host claims an address of ours.
    pub address_conflicts: u64,
    /// Frames of ours that found no room among those that wait.
    pub replies_lost: u64,
    /// Received frames by [`DropReason`].
    pub dropped: [u64; DropReason::ALL.len()],
}

impl Counters {
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.dropped[reason as usize]
    }
}

/// All but the table of neighbours.
#[derive(Clone, Copy, Debug, zerocopy::FromZeros)]
#[repr(C)]
pub struct State {
    pub(super) counters: Counters,
    pub(super) interfaces: [Interface; INTERFACES_MAX],
    pub(super) addresses: [LocalAddress; ADDRESSES_MAX],
    pub(super) gateways: [Address; GATEWAYS_MAX],
    pub(super) replies: [Reply; REPLIES_MAX],
    pub(super) held: [Held; HELD_MAX],
    pub(super) echo_rate: Bucket,
    pub(super) error_rate: Bucket,
    /// Earliest timer of a neighbour, or earlier.
    pub(super) deadline: Time,
    /// Key of the neighbours' hash.
    pub(super) key: [u64; 2],
    pub(super) address_count: u32,
    pub(super) gateway_count: u32,
    pub(super) reply_first: u32,
    pub(super) reply_count: u32,
    /// Replies that wait and refer to a frame.
    pub(super) held_waiting: u32,
    /// Entries of `held` that are in use.
    pub(super) held_count: u32,
    pub(super) changes: u32,
}

impl Default for State {
    fn default() -> Self {
        Self {
            counters: Counters::default(),
            interfaces: [Interface::default(); INTERFACES_MAX],
            addresses: [LocalAddress::default(); ADDRESSES_MAX],
            gateways: [Address::default(); GATEWAYS_MAX],
            replies: [Reply::default(); REPLIES_MAX],
            held: [Held::default(); HELD_MAX],
            echo_rate: Bucket::default(),
            error_rate: Bucket::default(),
            deadline: Time::NEVER,
            key: [0; 2],
            address_count: 0,
            gateway_count: 0,
            reply_first: 0,
            reply_count: 0,
            held_waiting: 0,
            held_count: 0,
            changes: 0,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, zerocopy::FromZeros)]
#[repr(C)]
pub(super) struct Interface {
    pub link: Link,
    pub is_attached: bool,
    /// fe80::/64 of the MAC address (RFC 4291, appendix A); unspecified unless the interface has an IPv6 address.
    pub link_local: Address,
    /// A query of multicast listeners is to be answered, of an attached interface.
    pub report_at: Time,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, zerocopy::FromZeros)]
#[repr(C)]
pub(super) struct LocalAddress {
    pub address: Address,
    /// The first and the last address of an IPv4 prefix; of others `::`. They are sources of no packet to one host.
    pub reserved: [Address; 2],
    /// Of the link, in bits of the 16 bytes.
    pub prefix_bits: u8,
    pub interface: InterfaceId,
}

/// RFC 4861 §7.3.2. Entries for IPv4 follow the same rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, zerocopy::FromZeros)]
#[repr(u8)]
pub(super) enum Reachability {
    /// The record is free.
    #[default]
    None,
    Incomplete,
    Reachable,
    Stale,
    Delay,
    Probe,
    /// Resolution got no answer a moment ago. (The RFC removes the entry, and the next packet would ask again at once.)
    Failed,
}

/// What is known of a host on a link (RFC 4861 §5.1).
#[derive(Clone, Copy, Debug, Default, zerocopy::FromZeros)]
#[repr(C)]
pub struct Neighbour {
    pub(super) address: Address,
    /// Of ours: the source of solicitations (RFC 4861 §7.2.2).
    pub(super) local: Address,
    /// End of the present state, but for `None` and `Stale`.
    pub(super) deadline: Time,
    pub(super) used_at: Time,
    pub(super) mac: Mac,
    pub(super) interface: InterfaceId,
    pub(super) reachability: Reachability,
    /// Solicitations sent in the present state.
    pub(super) probes: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, zerocopy::FromZeros)]
#[repr(u8)]
pub(super) enum Kind {
    #[default]
    ArpRequest,
    ArpReply,
    Solicitation,
    Advertisement,
    /// Of a multicast listener, about the group `target`.
    Report,
    /// Behind eight bytes of ICMP follow bytes of the frame.
    Icmp,
}

/// A frame of ours that waits to be sent.
#[derive(Clone, Copy, Debug, Default, zerocopy::FromZeros)]
#[repr(C)]
pub(super) struct Reply {
    pub source: Address,
    pub destination: Address,
    /// Asked for or advertised.
    pub target: Address,
    pub mac: Mac,
    pub interface: InterfaceId,
    pub kind: Kind,
    pub icmp: IcmpReply,
    /// Of an advertisement: it answers a solicitation (RFC 4861 §4.4).
    pub is_solicited: bool,
    /// Type of the record of a report.
    pub record: u8,
}

#[derive(Clone, Copy, Debug, Default, zerocopy::FromZeros)]
#[repr(C)]
pub(super) struct IcmpReply {
    pub frame: FrameId,
    /// Bytes of the frame behind the ICMP header.
    pub start: u32,
    pub length: u32,
    /// Second word of the ICMP header.
    pub rest: u32,
    pub message: u8,
    pub code: u8,
    /// Of the whole message, or, if `is_partial`, to be completed by the driver.
    pub checksum: u16,
    pub is_partial: bool,
}

/// A frame to which the driver has been given a reference.
#[derive(Clone, Copy, Debug, Default, zerocopy::FromZeros)]
#[repr(C)]
pub(super) struct Held {
    /// Number of the frame that refers to it, among those of its interface.
    pub position: u64,
    pub frame: FrameId,
    pub interface: InterfaceId,
    pub is_done: bool,
}
