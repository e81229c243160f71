//! The table of neighbours: reachability as RFC 4861 §7.3 has it, for IPv4 and IPv6.
//!
//! An entry lies at one of [`WINDOW`] places behind the one that a keyed hash of its address names. If all are taken, the
//! least useful gives way: so hosts of a link, or who pretends to be many of them, displace only each other's entries
//! and never fill more than the table.

use super::records::{Kind, Neighbour, Reachability, Reply};
use super::{Iface, Lookup, Route};
use crate::packet::Mac;
use crate::{Address, InterfaceId, Time};

/// Places where the entry of an address may lie.
const WINDOW: usize = 16;
/// RETRANS_TIMER of RFC 4861 §10.
const RETRANSMIT_US: u64 = 1_000_000;
/// MAX_MULTICAST_SOLICIT and MAX_UNICAST_SOLICIT.
const PROBES_MAX: u8 = 3;
/// REACHABLE_TIME.
const REACHABLE_US: u64 = 30_000_000;
/// DELAY_FIRST_PROBE_TIME.
const DELAY_US: u64 = 5_000_000;
/// After an unanswered resolution nothing is asked for this long.
const FAILED_US: u64 = 3_000_000;
/// Rank of the entries that are displaced last.
const IN_USE: u8 = 4;

/// What an advertisement or an ARP packet says of its sender.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub interface: InterfaceId,
    pub address: Address,
    /// An advertisement in answer to a unicast solicitation may lack it.
    pub mac: Option<Mac>,
    /// It answers a question of ours: the host is reachable in both directions.
    pub is_solicited: bool,
    /// A MAC address that differs is to be used (RFC 4861 §4.4).
    pub is_override: bool,
}

impl Iface<'_> {
    /// The MAC address of a route's next hop; asks for it if it is not known or was not confirmed for long.
    pub fn neighbour(&mut self, route: &Route, now: Time) -> Lookup {
        let Some(index) = self.find(route.interface, route.next_hop) else { return self.resolve(route, now) };
        let entry = &mut self.neighbours[index];
        entry.used_at = now;
        match entry.reachability {
            Reachability::Reachable if now < entry.deadline => Lookup::Known(entry.mac),
            Reachability::Reachable | Reachability::Stale => {
                entry.reachability = Reachability::Delay;
                entry.local = route.local;
                entry.deadline = now.after(DELAY_US);
                self.state.deadline = self.state.deadline.min(entry.deadline);
                Lookup::Known(entry.mac)
            }
            Reachability::Delay | Reachability::Probe => Lookup::Known(entry.mac),
            Reachability::Incomplete => Lookup::Asked,
            Reachability::Failed if now < entry.deadline => Lookup::Failed,
            Reachability::Failed | Reachability::None => self.resolve(route, now),
        }
    }

    /// Progress of a connection shows that the next hop takes what we send (RFC 4861 §7.3.1).
    pub fn confirm(&mut self, route: &Route, now: Time) {
        if let Some(index) = self.find(route.interface, route.next_hop) {
            let entry = &mut self.neighbours[index];
            if entry.has_mac() {
                entry.reachability = Reachability::Reachable;
                entry.deadline = now.after(REACHABLE_US);
            }
        }
    }

    /// Counts resolutions that have ended, well or not.
    pub fn changes(&self) -> u32 {
        self.state.changes
    }

    /// When `on_timer` must be called: [`Time::NEVER`] while nothing waits. May be early.
    pub fn poll_timeout(&self) -> Time {
        self.state.deadline
    }

    pub fn on_timer(&mut self, now: Time) {
        if now < self.state.deadline {
            return;
        }
        for index in 0..self.neighbours.len() {
            if self.neighbours[index].timer() <= now {
                self.on_neighbour_timer(index, now);
            }
        }
        self.report_if_due(now);
        let neighbours = self.neighbours.iter().map(Neighbour::timer).min().unwrap_or(Time::NEVER);
        self.state.deadline = neighbours.min(self.state.report_at());
    }

    /// RFC 4861 §7.2.2 and §7.3.3.
    fn on_neighbour_timer(&mut self, index: usize, now: Time) {
        let entry = &mut self.neighbours[index];
        let has_ended = entry.probes >= PROBES_MAX;
        match entry.reachability {
            Reachability::Incomplete if has_ended => {
                entry.reachability = Reachability::Failed;
                entry.deadline = now.after(FAILED_US);
            }
            // The next packet resolves the address anew, by multicast.
            Reachability::Probe if has_ended => *entry = Neighbour::default(),
            Reachability::Incomplete | Reachability::Probe => return self.solicit(index, now),
            Reachability::Delay => {
                entry.reachability = Reachability::Probe;
                entry.probes = 0;
                return self.solicit(index, now);
            }
            _ => return,
        }
        self.state.changes = self.state.changes.wrapping_add(1);
        self.state.counters.neighbours_failed += 1;
    }

    fn resolve(&mut self, route: &Route, now: Time) -> Lookup {
        let Some(index) = self.place(route.interface, route.next_hop) else { return Lookup::Failed };
        self.neighbours[index] = Neighbour {
            address: route.next_hop,
            local: route.local,
            interface: route.interface,
            reachability: Reachability::Incomplete,
            used_at: now,
            ..Neighbour::default()
        };
        self.solicit(index, now);
        Lookup::Asked
    }

    /// Asks for the address of an entry: all hosts of the link if it has no MAC address, else the host itself.
    fn solicit(&mut self, index: usize, now: Time) {
        let entry = &mut self.neighbours[index];
        entry.probes += 1;
        entry.deadline = now.after(RETRANSMIT_US);
        self.state.deadline = self.state.deadline.min(entry.deadline);
        let is_unicast = entry.reachability == Reachability::Probe;
        let target = entry.address;
        let (kind, destination, mac) = if target.is_v4() {
            (Kind::ArpRequest, target, [0xff; 6])
        } else {
            let group = solicited_node(target);
            (Kind::Solicitation, group, multicast_mac(group))
        };
        let (destination, mac) = if is_unicast { (target, entry.mac) } else { (destination, mac) };
        let (source, interface) = (entry.local, entry.interface);
        self.reply(Reply { source, destination, target, mac, interface, kind, ..Reply::default() });
    }

    /// Takes over what a neighbour says of itself (RFC 4861 §7.2.5; RFC 826, "merge").
    pub(super) fn on_claim(&mut self, claim: &Claim, now: Time) {
        let Some(index) = self.find(claim.interface, claim.address) else { return };
        let entry = &mut self.neighbours[index];
        let differs = claim.mac.is_some_and(|mac| mac != entry.mac);
        match entry.reachability {
            Reachability::None => return,
            Reachability::Incomplete | Reachability::Failed => {
                let Some(mac) = claim.mac else { return };
                entry.mac = mac;
                entry.reachability = Reachability::Stale;
                self.state.changes = self.state.changes.wrapping_add(1);
                self.state.counters.neighbours_resolved += 1;
            }
            // A second host with the address: suspect what is known, and keep it.
            Reachability::Reachable if differs && !claim.is_override => {
                entry.reachability = Reachability::Stale;
                return;
            }
            _ if differs && !claim.is_override => return,
            _ if differs => {
                entry.mac = claim.mac.unwrap_or(entry.mac);
                entry.reachability = Reachability::Stale;
            }
            _ => {}
        }
        if claim.is_solicited {
            entry.reachability = Reachability::Reachable;
            entry.deadline = now.after(REACHABLE_US);
        }
    }

    /// A host of the link has asked for an address of ours, and will get an answer (RFC 826; RFC 4861 §7.2.3).
    pub(super) fn on_asked_by(&mut self, interface: InterfaceId, address: Address, mac: Mac, now: Time) {
        if self.find(interface, address).is_some() {
            let claim = Claim { interface, address, mac: Some(mac), is_solicited: false, is_override: true };
            return self.on_claim(&claim, now);
        }
        if !self.state.is_on_link(interface, address) {
            return;
        }
        // One that is in use does not give way to one that may never be.
        let place = self.place(interface, address);
        if let Some(index) = place.filter(|&index| self.neighbours[index].usefulness() < IN_USE) {
            self.neighbours[index] = Neighbour {
                address,
                mac,
                interface,
                reachability: Reachability::Stale,
                used_at: now,
                ..Neighbour::default()
            };
        }
    }

    fn window(&self, interface: InterfaceId, address: Address) -> impl Iterator<Item = usize> + use<> {
        let count = self.neighbours.len();
        let bits = u128::from_be_bytes(address.0);
        let folded = (bits as u64 ^ self.state.key[0])
            .wrapping_mul((bits >> 64) as u64 ^ u64::from(interface) ^ self.state.key[1] | 1);
        let start = (folded ^ (folded >> 32)) as usize;
        (0..WINDOW.min(count)).map(move |step| start.wrapping_add(step) % count)
    }

    fn find(&self, interface: InterfaceId, address: Address) -> Option<usize> {
        self.window(interface, address).find(|&index| {
            let entry = &self.neighbours[index];
            entry.address == address
                && entry.interface == interface
                && entry.reachability != Reachability::None
        })
    }

    /// Where an entry for the address is to be written: in its own place, or in that of the least useful one.
    fn place(&self, interface: InterfaceId, address: Address) -> Option<usize> {
        self.find(interface, address).or_else(|| {
            self.window(interface, address).min_by_key(|&index| {
                let entry = &self.neighbours[index];
                (entry.usefulness(), entry.used_at)
            })
        })
    }
}

impl Neighbour {
    fn has_mac(&self) -> bool {
        use Reachability::{Delay, Probe, Reachable, Stale};
        matches!(self.reachability, Reachable | Stale | Delay | Probe)
    }

    /// When something is to be done without being asked for.
    fn timer(&self) -> Time {
        match self.reachability {
            Reachability::Incomplete | Reachability::Delay | Reachability::Probe => self.deadline,
            _ => Time::NEVER,
        }
    }

    fn usefulness(&self) -> u8 {
        match self.reachability {
            Reachability::None => 0,
            Reachability::Failed => 1,
            Reachability::Stale => 2,
            Reachability::Incomplete => 3,
            Reachability::Reachable | Reachability::Delay | Reachability::Probe => IN_USE,
        }
    }
}

/// RFC 4291 §2.7.1: ff02::1:ff00:0/104 with the last three bytes of the address.
pub(super) fn solicited_node(address: Address) -> Address {
    let mut group = [0xff, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x01, 0xff, 0, 0, 0];
    group[13..].copy_from_slice(&address.0[13..]);
    Address(group)
}

/// RFC 2464 §7.
pub(super) fn multicast_mac(group: Address) -> Mac {
    let [.., a, b, c, d] = group.0;
    [0x33, 0x33, a, b, c, d]
}
