//! Where interfaces, addresses, neighbours and replies are kept. All records are valid with all bits 0.

use crate::Address;
use crate::packet::Mac;

pub const INTERFACES_MAX: usize = 4;
pub const ADDRESSES_MAX: usize = 8;
pub const GATEWAYS_MAX: usize = 2;

/// What `net status` shows.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Counters {
    pub received_frames: u64,
    pub received_bytes: u64,
}

/// All but the table of neighbours.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct State {
    pub(super) counters: Counters,
}

/// What is known of a host on a link (RFC 4861 §5.1, for IPv4 too).
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Neighbour {
    pub(super) address: Address,
    pub(super) mac: Mac,
}
