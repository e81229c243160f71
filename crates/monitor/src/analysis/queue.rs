//! What packets showed, until the connections handle it.
//!
//! Packets of a thousand connections take turns in a capture, and what an analysis keeps of one connection does not stay in
//! the processor's cache until its next packet. So the events of each wait here, and are handled together. No result depends
//! on the order of connections among each other.

use iscsi::wire::Opcode;

use crate::command::Keys;
use crate::event::{Distances, Event, Kind, Side};
use crate::flow::FlowId;
use crate::limits::EVENTS_QUEUED_MAX;

/// What a connection handles.
#[derive(Debug)]
pub(super) enum Item {
    Event(Event),
    /// Round trips to both ends, as known from here on.
    Distances(Distances),
    /// What the login agreed on.
    Keys(Keys),
}

/// Whether the keys of a connection are queued: they are all known when the first command starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Login {
    Open,
    Complete,
    Queued,
}

/// The connection in one place of the flow table.
#[derive(Clone, Copy, Debug)]
struct Slot {
    id: FlowId,
    /// Index of the connection's last item.
    last: Option<u32>,
    /// The last ones that were queued.
    distances: Distances,
    login: Login,
}

/// Items of all connections, in the order of capture: memory that is written from one end to the other is faster than a
/// list for each connection.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Each with the index of the same connection's next one.
    items: Vec<(Item, Option<u32>)>,
    slots: Vec<Option<Slot>>,
    /// Connections that have items, with the index of the first.
    waiting: Vec<(FlowId, u32)>,
}

/// The items of one connection.
#[derive(Debug)]
pub(super) struct Items<'a> {
    items: &'a [(Item, Option<u32>)],
    next: Option<u32>,
}

impl<'a> Iterator for Items<'a> {
    type Item = &'a Item;

    fn next(&mut self) -> Option<Self::Item> {
        let (item, next) = self.items.get(self.next? as usize)?;
        self.next = *next;
        Some(item)
    }
}

impl Queue {
    /// Returns whether this is the connection's first item ever.
    pub(super) fn push(&mut self, id: FlowId, item: Item) -> bool {
        let place = id.slot();
        if self.slots.len() <= place {
            self.slots.resize(place + 1, None);
        }
        let known = self.slots[place].filter(|slot| slot.id == id);
        let is_new = known.is_none();
        let new = Slot { id, last: None, distances: Distances::default(), login: Login::Open };
        let mut slot = known.unwrap_or(new);
        match &item {
            Item::Event(Event { from: Side::Initiator, kind: Kind::PduStart(start), .. })
                if slot.login == Login::Open
                    && matches!(Opcode::parse(start.header[0]), Ok(Opcode::ScsiCommand)) =>
            {
                slot.login = Login::Complete;
            }
            Item::Distances(distances) => slot.distances = *distances,
            Item::Keys(_) => slot.login = Login::Queued,
            Item::Event(_) => {}
        }
        // At most the events of one frame beyond the bound.
        let index = u32::try_from(self.items.len()).unwrap_or(u32::MAX);
        match slot.last.replace(index).and_then(|last| self.items.get_mut(last as usize)) {
            Some((_, next)) => *next = Some(index),
            None => self.waiting.push((id, index)),
        }
        self.items.push((item, None));
        self.slots[place] = Some(slot);
        is_new
    }

    /// Queues round trips that are new to a connection which has shown something.
    pub(super) fn set_distances(&mut self, id: FlowId, distances: Distances) {
        if self.slot(id).is_some_and(|slot| slot.distances != distances) {
            self.push(id, Item::Distances(distances));
        }
    }

    /// Whether commands have begun and the keys were not queued.
    pub(super) fn wants_keys(&self, id: FlowId) -> bool {
        self.slot(id).is_some_and(|slot| slot.login == Login::Complete)
    }

    fn slot(&self, id: FlowId) -> Option<&Slot> {
        self.slots.get(id.slot())?.as_ref().filter(|slot| slot.id == id)
    }

    pub(super) fn is_full(&self) -> bool {
        self.items.len() >= EVENTS_QUEUED_MAX
    }

    /// Gives `handle` the items of each connection, in the order of the first ones, and removes them.
    pub(super) fn drain(&mut self, mut handle: impl FnMut(FlowId, Items<'_>)) {
        for (id, first) in self.waiting.drain(..) {
            // The place may have another connection by now.
            if let Some(Some(slot)) = self.slots.get_mut(id.slot())
                && slot.id == id
            {
                slot.last = None;
            }
            handle(id, Items { items: &self.items, next: Some(first) });
        }
        self.items.clear();
        self.items.shrink_to(2 * EVENTS_QUEUED_MAX);
    }
}
