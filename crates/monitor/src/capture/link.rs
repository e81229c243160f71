//! From the first byte of a frame to its network header.

use crate::limits::VLAN_TAGS_MAX;

/// Network header and where it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Network {
    /// IPv4 or IPv6, as its first four bits say.
    Ip {
        at: usize,
        interface: Option<u32>,
    },
    Arp,
    /// Another protocol: LLC, MPLS, PPPoE, ...
    Other,
    /// The frame is cut within its link header.
    Cut,
    /// A link type that is not read.
    Unknown,
}

const NULL: u16 = 0;
const ETHERNET: u16 = 1;
const RAW_OF_BSD: u16 = 12;
const RAW_OF_OPENBSD: u16 = 14;
const RAW: u16 = 101;
const LOOP: u16 = 108;
const LINUX_SLL: u16 = 113;
const IPV4: u16 = 228;
const IPV6: u16 = 229;
const LINUX_SLL2: u16 = 276;

/// What a capture without payload holds: IP headers without any before them.
pub(super) const LINK_TYPE_RAW: u16 = RAW;

#[inline]
pub(super) fn network(link_type: u16, frame: &[u8]) -> Network {
    match link_type {
        ETHERNET => by_type(frame, 12, 14, None),
        RAW | RAW_OF_BSD | RAW_OF_OPENBSD | IPV4 | IPV6 => by_version(frame, 0),
        // Four bytes of address family, whose numbers and byte order are those of the capturing system.
        NULL | LOOP => by_version(frame, 4),
        LINUX_SLL => by_type(frame, 14, 16, None),
        LINUX_SLL2 => {
            let index = frame.get(4..8).map(|four| u32::from_be_bytes(four.try_into().expect("four bytes")));
            by_type(frame, 0, 20, index)
        }
        _ => Network::Unknown,
    }
}

fn by_version(frame: &[u8], at: usize) -> Network {
    match frame.get(at).map(|byte| byte >> 4) {
        Some(4 | 6) => Network::Ip { at, interface: None },
        Some(_) => Network::Other,
        None => Network::Cut,
    }
}

/// By the Ethernet type at `type_at`; VLAN tags lie between the link header, which ends at `at`, and the network's.
#[inline]
fn by_type(frame: &[u8], type_at: usize, mut at: usize, interface: Option<u32>) -> Network {
    let Some(mut kind) = type_of(frame, type_at) else { return Network::Cut };
    for _ in 0..=VLAN_TAGS_MAX {
        match kind {
            // IPv4, IPv6.
            0x0800 | 0x86dd if frame.len() > at => return Network::Ip { at, interface },
            0x0800 | 0x86dd => return Network::Cut,
            0x0806 => return Network::Arp,
            // 802.1Q, 802.1ad, and the two numbers used before it.
            0x8100 | 0x88a8 | 0x9100 | 0x9200 => match type_of(frame, at + 2) {
                Some(inner) => kind = inner,
                None => return Network::Cut,
            },
            _ => return Network::Other,
        }
        at += 4;
    }
    Network::Other
}

#[inline]
fn type_of(frame: &[u8], at: usize) -> Option<u16> {
    frame.get(at..at + 2).map(|two| u16::from_be_bytes(two.try_into().expect("two bytes")))
}
