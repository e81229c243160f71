//! The commands of a connection that have no response yet.

use std::collections::{HashMap, VecDeque};

use super::open::{Open, Phase, Share};
use super::{Standing, Transfer};
use crate::limits::COMMANDS_OPEN_MAX;

/// Refers to an open command; another command in the same place has another generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    index: usize,
    generation: u64,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    slots: Vec<Option<(u64, Open)>>,
    free: Vec<usize>,
    by_itt: HashMap<u32, Key>,
    /// Keys in the order of their commands, those of ended ones included until they come to the front.
    order: VecDeque<Key>,
    generation: u64,
    totals: Totals,
}

/// Sums over the open commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Totals {
    sending: u32,
    awaiting_r2t: u32,
    awaiting_response: u32,
    awaiting_data: u32,
    receiving: u32,
    permitted_write_bytes: u64,
    permitted_read_bytes: u64,
}

impl Totals {
    fn count(&mut self, phase: Phase) -> &mut u32 {
        match phase {
            Phase::Sending => &mut self.sending,
            Phase::AwaitingR2t => &mut self.awaiting_r2t,
            Phase::AwaitingResponse => &mut self.awaiting_response,
            Phase::AwaitingData => &mut self.awaiting_data,
            Phase::Receiving => &mut self.receiving,
        }
    }

    fn add(&mut self, share: Share) {
        *self.count(share.phase) += 1;
        self.permitted_write_bytes += share.permitted_write_bytes;
        self.permitted_read_bytes += share.permitted_read_bytes;
    }

    fn remove(&mut self, share: Share) {
        *self.count(share.phase) -= 1;
        self.permitted_write_bytes -= share.permitted_write_bytes;
        self.permitted_read_bytes -= share.permitted_read_bytes;
    }
}

impl Table {
    pub(super) fn len(&self) -> usize {
        self.by_itt.len()
    }

    /// Adds a command. Returns the ones that it displaces: an open one with the same tag, and the oldest if the table is
    /// full.
    pub(super) fn insert(&mut self, open: Open) -> (Key, usize) {
        let mut displaced = usize::from(self.remove_itt(open.itt).is_some());
        while self.len() >= COMMANDS_OPEN_MAX {
            let Some(oldest) = self.order.pop_front() else { break };
            displaced += usize::from(self.remove(oldest).is_some());
        }
        self.generation += 1;
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        let key = Key { index, generation: self.generation };
        self.totals.add(open.share());
        self.by_itt.insert(open.itt, key);
        self.slots[index] = Some((key.generation, open));
        while self.order.front().is_some_and(|key| self.get(*key).is_none()) {
            self.order.pop_front();
        }
        self.order.push_back(key);
        // Ended commands behind an old one that stays open.
        if self.order.len() > 2 * COMMANDS_OPEN_MAX {
            let slots = &self.slots;
            self.order.retain(|key| slots[key.index].as_ref().is_some_and(|(g, _)| *g == key.generation));
        }
        (key, displaced)
    }

    /// Memory that the commands take, about.
    pub(super) fn held_bytes(&self) -> usize {
        let bursts: usize =
            self.slots.iter().flatten().map(|(_, open)| size_of_val(open.bursts.as_slice())).sum();
        size_of_val(self.slots.as_slice()) + self.order.len() * size_of::<Key>() + bursts
    }

    pub(super) fn find(&self, itt: u32) -> Option<Key> {
        self.by_itt.get(&itt).copied()
    }

    pub(super) fn get(&self, key: Key) -> Option<&Open> {
        let (generation, open) = self.slots.get(key.index)?.as_ref()?;
        (*generation == key.generation).then_some(open)
    }

    /// The oldest command whose data `transfer` moves and that has some left to move.
    pub(super) fn first_moving(&self, transfer: Transfer) -> Option<Key> {
        let is_moving = |open: &Open| open.transfer == Some(transfer) && open.left() > 0;
        self.order.iter().copied().find(|key| self.get(*key).is_some_and(is_moving))
    }

    /// The oldest command.
    pub(super) fn first(&self) -> Option<&Open> {
        self.order.iter().find_map(|key| self.get(*key))
    }

    /// Changes a command and keeps the totals right.
    pub(super) fn update<R>(&mut self, key: Key, change: impl FnOnce(&mut Open) -> R) -> Option<R> {
        let (generation, open) = self.slots.get_mut(key.index)?.as_mut()?;
        if *generation != key.generation {
            return None;
        }
        let before = open.share();
        let result = change(open);
        let after = open.share();
        if before != after {
            self.totals.remove(before);
            self.totals.add(after);
        }
        Some(result)
    }

    pub(super) fn remove(&mut self, key: Key) -> Option<Open> {
        self.get(key)?;
        let (_, open) = self.slots[key.index].take()?;
        self.free.push(key.index);
        self.by_itt.remove(&open.itt);
        self.totals.remove(open.share());
        Some(open)
    }

    pub(super) fn remove_itt(&mut self, itt: u32) -> Option<Open> {
        self.find(itt).and_then(|key| self.remove(key))
    }

    /// Removes all commands that `is_gone` selects. Returns how many.
    pub(super) fn remove_where(&mut self, is_gone: impl Fn(&Open) -> bool) -> u64 {
        let gone: Vec<Key> =
            self.by_itt.values().copied().filter(|key| self.get(*key).is_some_and(&is_gone)).collect();
        gone.into_iter().filter_map(|key| self.remove(key)).count() as u64
    }

    pub(super) fn for_each(&mut self, mut change: impl FnMut(&mut Open)) {
        let keys: Vec<Key> = self.by_itt.values().copied().collect();
        for key in keys {
            self.update(key, &mut change);
        }
    }

    /// Everything that the table knows of the standing; the command window stays unknown.
    pub(super) fn standing(&self) -> Standing {
        let totals = self.totals;
        Standing {
            outstanding: u32::try_from(self.len()).unwrap_or(u32::MAX),
            command_window: None,
            permitted_bytes: totals.permitted_write_bytes,
            permitted_read_bytes: totals.permitted_read_bytes,
            awaiting_r2t: totals.awaiting_r2t,
            awaiting_response: totals.awaiting_response,
            awaiting_data: totals.awaiting_data,
            receiving: totals.receiving,
        }
    }
}
