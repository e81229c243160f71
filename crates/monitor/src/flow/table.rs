//! All connections of a capture.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, SocketAddr};

use super::connection::{Connection, Standing, vantage};
use super::{Belongs, Flow, FlowId};
use crate::event::{Distances, Event, Vantage};
use crate::limits::{FLOWS_FINISHED_MAX, FLOWS_IGNORED_MAX, FLOWS_MAX};
use crate::packet::{Flags, Packet};

/// Registered for iSCSI, and the system port of older targets (RFC 7143 section 15).
const PORTS: [u16; 2] = [3260, 860];

/// Both ends, the lesser first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key(SocketAddr, SocketAddr);

impl Hash for Key {
    /// In few words, because each packet is looked up: addresses of IPv4 in one, ports in one.
    fn hash<H: Hasher>(&self, state: &mut H) {
        match (self.0.ip(), self.1.ip()) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                state.write_u64(u64::from(a.to_bits()) << 32 | u64::from(b.to_bits()));
            }
            (a, b) => (a, b).hash(state),
        }
        state.write_u32(u32::from(self.0.port()) << 16 | u32::from(self.1.port()));
    }
}

fn key(packet: &Packet<'_>) -> Key {
    let (a, b) = (packet.source, packet.destination);
    if a <= b { Key(a, b) } else { Key(b, a) }
}

#[derive(Debug)]
struct Slot {
    key: Key,
    connection: Box<Connection>,
    /// Number of the packet of this table that belonged to it last.
    used: u64,
}

/// Follows TCP connections: [`Table::push`] each packet in the order of capture, [`Table::finish`] at the end, and
/// collect the finished with [`Table::poll_finished`] now and then. Holds at most
/// [`crate::limits::FLOWS_MAX`] connections.
#[derive(Debug)]
pub struct Table {
    ports: Vec<u16>,
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
    index: HashMap<Key, usize>,
    /// Slot of the last packet.
    last: Option<usize>,
    ignored: HashSet<Key>,
    /// Shift of the windows that the first end announces to the second.
    scales: HashMap<(SocketAddr, SocketAddr), u8>,
    finished: VecDeque<Flow>,
    packets: u64,
    created: u64,
    /// Connections that are not iSCSI.
    others: u64,
    forgotten: u64,
}

impl Table {
    /// `ports` are those of targets, besides 3260 and 860.
    #[must_use]
    pub fn new(ports: &[u16]) -> Self {
        Self {
            ports: PORTS.iter().chain(ports).copied().collect(),
            slots: Vec::new(),
            free: Vec::new(),
            index: HashMap::new(),
            last: None,
            ignored: HashSet::new(),
            scales: HashMap::new(),
            finished: VecDeque::new(),
            packets: 0,
            created: 0,
            others: 0,
            forgotten: 0,
        }
    }

    /// Tells the shift of the windows that `from` announces to `to`, for a connection whose start is not captured. Call it
    /// before the connection's first packet.
    pub fn set_window_scale(&mut self, from: SocketAddr, to: SocketAddr, scale: u8) {
        if self.scales.len() < 2 * FLOWS_MAX {
            self.scales.insert((from, to), scale);
        }
    }

    /// Takes the next packet. What it shows of iSCSI connections goes to `sink`, in the order of [`Event`].
    pub fn push(&mut self, packet: &Packet<'_>, sink: &mut impl FnMut(FlowId, &Event)) -> Belongs {
        self.packets += 1;
        let Some(index) = self.find(packet) else { return Belongs::Other };
        let Some(slot) = self.slots[index].as_mut() else { return Belongs::Other };
        slot.used = self.packets;
        let direction = usize::from(!slot.connection.is_from(packet.source));
        let id = slot.connection.id();
        match slot.connection.push(direction, packet, sink) {
            Standing::Iscsi => Belongs::To(id),
            Standing::Candidate => Belongs::Undecided(id),
            Standing::Other => {
                self.ignore(index);
                Belongs::Other
            }
        }
    }

    /// The slot of the packet's connection; `None` if it is known not to be iSCSI.
    #[inline]
    fn find(&mut self, packet: &Packet<'_>) -> Option<usize> {
        if let Some(index) = self.last
            && let Some(slot) = &self.slots[index]
            && !packet.flags.has(Flags::SYN)
            && slot.key == key(packet)
        {
            return Some(index);
        }
        self.find_or_add(packet)
    }

    fn find_or_add(&mut self, packet: &Packet<'_>) -> Option<usize> {
        let key = key(packet);
        let is_syn = packet.flags.has(Flags::SYN);
        if let Some(&index) = self.index.get(&key) {
            let is_reused = self.slots[index].as_ref().is_none_or(|slot| {
                let direction = usize::from(!slot.connection.is_from(packet.source));
                slot.connection.is_reused_by(direction, packet)
            });
            if !is_reused {
                self.last = Some(index);
                return Some(index);
            }
            self.remove(index);
        } else if !self.ignored.is_empty() {
            if is_syn {
                self.ignored.remove(&key);
            } else if self.ignored.contains(&key) {
                return None;
            }
        }
        if packet.flags.has(Flags::RST) {
            return None;
        }
        let index = self.add(key, packet);
        self.last = Some(index);
        Some(index)
    }

    fn add(&mut self, key: Key, packet: &Packet<'_>) -> usize {
        if self.index.len() >= FLOWS_MAX {
            self.evict();
        }
        let is_target = |end: SocketAddr| self.ports.contains(&end.port());
        let initiator = match (is_target(packet.destination), is_target(packet.source)) {
            (true, _) => Some(0),
            (false, true) => Some(1),
            (false, false) => None,
        };
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        let id = FlowId::new(self.created, index);
        self.created += 1;
        let mut connection = Box::new(Connection::new(id, packet, initiator));
        let known = |from, to| self.scales.get(&(from, to)).copied();
        connection.set_known_scales([
            known(packet.source, packet.destination),
            known(packet.destination, packet.source),
        ]);
        self.slots[index] = Some(Slot { key, connection, used: self.packets });
        self.index.insert(key, index);
        index
    }

    /// Finishes the connection that is idle longest, one of those that are not known to be iSCSI first.
    fn evict(&mut self) {
        let slots = self.slots.iter().enumerate().filter_map(|(index, slot)| Some((index, slot.as_ref()?)));
        let idle = slots.min_by_key(|(_, slot)| (!slot.connection.is_candidate(), slot.used));
        if let Some((index, _)) = idle {
            self.remove(index);
        }
    }

    fn ignore(&mut self, index: usize) {
        let Some(slot) = self.take(index) else { return };
        self.others += 1;
        if self.ignored.len() >= FLOWS_IGNORED_MAX {
            // They are examined once more.
            self.ignored.clear();
        }
        self.ignored.insert(slot.key);
    }

    fn remove(&mut self, index: usize) {
        let Some(flow) = self.take(index).and_then(|slot| slot.connection.flow()) else { return };
        if self.finished.len() == FLOWS_FINISHED_MAX {
            self.finished.pop_front();
            self.forgotten += 1;
        }
        self.finished.push_back(flow);
    }

    fn take(&mut self, index: usize) -> Option<Slot> {
        let slot = self.slots[index].take()?;
        self.index.remove(&slot.key);
        self.free.push(index);
        self.last = None;
        Some(slot)
    }

    fn connection(&self, id: FlowId) -> Option<&Connection> {
        let slot = self.slots.get(id.slot())?.as_ref()?;
        (slot.connection.id() == id).then_some(&*slot.connection)
    }

    /// The next connection that has left the table: its ports were used again, it was idle longest, or
    /// [`Table::finish`] was called. It yields no events any more.
    pub fn poll_finished(&mut self) -> Option<Flow> {
        self.finished.pop_front()
    }

    /// The end of the capture: finishes all connections, in the order of their start.
    pub fn finish(&mut self) {
        let slots = self.slots.iter().enumerate();
        let mut left: Vec<_> =
            slots.filter_map(|(index, slot)| Some((slot.as_ref()?.connection.id(), index))).collect();
        left.sort_unstable();
        for (_, index) in left {
            self.remove(index);
        }
    }

    /// iSCSI connections that are in the table, in the order of their start.
    pub fn flows(&self) -> Vec<Flow> {
        let slots = self.slots.iter().flatten();
        let mut flows: Vec<_> = slots.filter_map(|slot| slot.connection.flow()).collect();
        flows.sort_unstable_by_key(|flow| flow.id);
        flows
    }

    /// What is known of a connection now; `None` after it has left the table.
    pub fn flow(&self, id: FlowId) -> Option<Flow> {
        self.connection(id)?.flow()
    }

    /// Round trips between the vantage and the ends, cheap enough to be asked after each packet. From the handshake on
    /// they are within the delay of a host or two. Without it, an end is `None` until it has acknowledged data, and
    /// too far until it has done so at once: wait for a few acknowledgements from both.
    pub fn distances(&self, id: FlowId) -> Distances {
        self.connection(id).map(Connection::distances).unwrap_or_default()
    }

    /// Connections, also those that may not be iSCSI, with the memory that [`Table::leave`] frees, about.
    pub(crate) fn held(&self) -> impl Iterator<Item = (FlowId, usize)> {
        let slots = self.slots.iter().flatten();
        slots.map(|slot| (slot.connection.id(), slot.connection.held_bytes()))
    }

    /// Follows a connection no further: it keeps its place and yields no events.
    pub(crate) fn leave(&mut self, id: FlowId) {
        if let Some(slot) = self.slots.get_mut(id.slot()).and_then(Option::as_mut)
            && slot.connection.id() == id
        {
            slot.connection.leave();
        }
    }

    /// Where the packets were captured.
    pub fn vantage(&self, id: FlowId) -> Vantage {
        vantage(self.distances(id))
    }

    /// TCP connections that are not iSCSI.
    pub fn others(&self) -> u64 {
        self.others
    }

    /// Finished connections that were forgotten because they were not collected.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }
}
