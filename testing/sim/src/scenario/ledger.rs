//! The permitted content of the destination of copies. Every effect on its disk is checked against the copies in
//! progress at that time, so that an error is detected where it happens, by value and by time.
//!
//! Sectors are filled with one word. Commands other than copies write values with the bit [`OTHERS`]; copies can write
//! only values of the source, without that bit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::disk::{Disk, MIXED, SECTOR};
use crate::world::Context;

/// Bit of values that no copy writes.
pub(super) const OTHERS: u64 = 1 << 63;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) count: u64,
}

/// A copy in progress, as its initiator sees it.
#[derive(Debug)]
struct CopyState {
    client: u64,
    role: Role,
    lun: u16,
    /// Whether the target has certainly received the command.
    is_taken: bool,
    extents: Vec<Extent>,
    /// Values that it may write, by sector of the destination.
    values: BTreeMap<u64, Vec<u64>>,
    /// Sectors of the destination that another writer has changed meanwhile.
    crossed: BTreeSet<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// A command on a session: it ends with the target at the latest.
    Command,
    /// A copy of several commands, some of them in later sessions.
    Commands,
    /// Writes nothing, and only records the writes of others.
    Watch,
}

#[derive(Debug)]
struct Book {
    copies: BTreeMap<u64, CopyState>,
    copy_last: u64,
    /// Number of effects processed, of the source and of the destination.
    seen: [usize; 2],
    now: Vec<u64>,
    /// Values of each sector that a power cut may leave.
    left: Vec<Vec<u64>>,
    ends: u64,
}

/// The state at the start of a flush.
pub(super) struct Mark {
    now: Vec<u64>,
    seen: usize,
    ends: u64,
}

/// See the module. The scenario reports the events of copies and of the target; every method first processes the
/// effects since the last call. Failures go to [`Context::fail`].
pub(super) struct Ledger {
    context: Context,
    source: Disk,
    destination: Disk,
    write_through: bool,
    book: Mutex<Book>,
}

impl Ledger {
    pub(super) fn new(context: &Context, source: &Disk, destination: &Disk, write_through: bool) -> Self {
        source.record();
        destination.record();
        let now = destination.values();
        let left = now.iter().map(|value| vec![*value]).collect();
        let book = Book { copies: BTreeMap::new(), copy_last: 0, seen: [0; 2], now, left, ends: 0 };
        let (source, destination) = (source.clone(), destination.clone());
        Self { context: context.clone(), source, destination, write_through, book: Mutex::new(book) }
    }

    /// Locks the book and processes all effects so far.
    fn book(&self) -> MutexGuard<'_, Book> {
        let mut book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        let [read, written] = book.seen;
        let (read, written) = (self.source.effects(read), self.destination.effects(written));
        book.seen = [book.seen[0] + read.len(), book.seen[1] + written.len()];
        let crossed = book.on_source(&read) + book.on_destination(&written, |text| self.context.fail(text));
        self.context.count(|counters| counters.sectors_crossed += crossed);
        book
    }

    /// Registers a copy before its request is sent; returns its number.
    pub(super) fn begin(&self, role: Role, client: u64, lun: u16, extents: Vec<Extent>) -> u64 {
        let mut book = self.book();
        let source = self.source.values();
        let sectors = |extent: &Extent| {
            (0..extent.count).map(move |at| (at, extent.from, extent.to)).collect::<Vec<_>>()
        };
        let of_sector = |(at, from, to): (u64, u64, u64)| (to + at, vec![source[(from + at) as usize]]);
        let values = extents.iter().flat_map(sectors).map(of_sector).collect();
        book.copy_last += 1;
        let number = book.copy_last;
        self.context.note("copy begins", &[number, client, lun.into()]);
        for Extent { from, to, count } in &extents {
            self.context.note("of it", &[number, *from, *to, *count]);
        }
        let copy =
            CopyState { client, role, lun, is_taken: false, extents, values, crossed: BTreeSet::new() };
        book.copies.insert(number, copy);
        number
    }

    /// The target has certainly received the command.
    pub(super) fn taken(&self, number: u64) {
        if let Some(copy) = self.book().copies.get_mut(&number) {
            copy.is_taken = true;
        }
    }

    /// No further command of the copy will follow; the last may still be in progress.
    pub(super) fn lost(&self, number: u64) {
        if let Some(copy) = self.book().copies.get_mut(&number) {
            copy.role = Role::Command;
        }
    }

    /// The copy has ended; `good` is the target's status. False if it had ended before, together with its target.
    pub(super) fn end(&self, number: u64, good: bool) -> bool {
        let mut book = self.book();
        let Some(copy) = book.copies.remove(&number) else { return false };
        self.context.note("copy ends", &[number, good.into()]);
        if good {
            let all = copy.values.keys().copied().collect::<Vec<_>>();
            self.hold(&mut book, &copy, &all, self.write_through);
        }
        true
    }

    /// The target reports these sectors of the destination as copied and durable.
    pub(super) fn claim(&self, number: u64, sectors: &[u64]) {
        let mut book = self.book();
        let Some(copy) = book.copies.remove(&number) else { return };
        self.hold(&mut book, &copy, sectors, true);
        book.copies.insert(number, copy);
    }

    /// Fails the run unless the destination holds the values of a copy.
    fn hold(&self, book: &mut Book, copy: &CopyState, sectors: &[u64], durable: bool) {
        for sector in sectors.iter().filter(|sector| !copy.crossed.contains(sector)) {
            let (found, values) = (book.now[*sector as usize], &copy.values[sector]);
            if !values.contains(&found) {
                let text =
                    format!("a copy reported success, and sector {sector} holds {found:x}, not {values:x?}");
                return self.context.fail(text);
            }
            if durable {
                book.left[*sector as usize].clone_from(values);
            }
        }
    }

    /// A client has logged in again: the copies of its old session have ended.
    pub(super) fn logged_in(&self, client: u64) {
        self.book().copies.retain(|_, copy| copy.client != client);
    }

    /// Copies that a reset of this LUN must end, if requested now.
    pub(super) fn exposed(&self, lun: u16) -> Vec<u64> {
        let book = self.book();
        let exposed = book.copies.iter().filter(|(_, copy)| copy.lun == lun && copy.is_taken);
        exposed.map(|(number, _)| *number).collect()
    }

    /// The state to remember before a flush is sent.
    pub(super) fn flush(&self) -> Mark {
        let book = self.book();
        Mark { now: book.now.clone(), seen: book.seen[1], ends: book.ends }
    }

    /// The flush of `mark` has succeeded.
    pub(super) fn flushed(&self, mark: Mark) {
        let mut book = self.book();
        if book.ends != mark.ends {
            return;
        }
        book.left = mark.now.into_iter().map(|value| vec![value]).collect();
        for (sector, value) in self.destination.effects(mark.seen) {
            book.left[sector as usize].push(value);
        }
    }

    /// Processes the effects so far; to be called before the target ends.
    pub(super) fn settle(&self) {
        drop(self.book());
    }

    pub(super) fn killed(&self, power: bool) {
        let mut book = self.book();
        if book.copies.values().any(|copy| copy.role != Role::Watch) {
            self.context.count(|counters| counters.target_copies_cut += 1);
        }
        book.stop();
        if power {
            book.now = self.destination.values();
            let Book { now, left, .. } = &mut *book;
            let wrong = now.iter().zip(&*left).position(|(value, left)| !left.contains(value));
            if let Some(sector) = wrong {
                let (found, left) = (now[sector], &left[sector]);
                self.context
                    .fail(format!("a power cut left {found:x} in sector {sector}, not one of {left:x?}"));
            }
            *left = now.iter().map(|value| vec![*value]).collect();
        }
    }

    /// The target has ended in order: no copy continues, and everything is durable.
    pub(super) fn ended(&self) {
        let mut book = self.book();
        book.stop();
        book.left = book.now.iter().map(|value| vec![*value]).collect();
    }
}

impl Book {
    fn stop(&mut self) {
        self.copies.retain(|_, copy| copy.role != Role::Command);
        self.ends += 1;
    }

    /// Processes effects on the source. Returns the number of affected sectors of copies.
    fn on_source(&mut self, effects: &[(u64, u64)]) -> u64 {
        let mut crossed = 0;
        for (sector, value) in effects {
            for copy in self.copies.values_mut() {
                let extent = copy
                    .extents
                    .iter()
                    .find(|extent| (extent.from..extent.from + extent.count).contains(sector));
                if let Some(extent) = extent {
                    let to = extent.to + (sector - extent.from);
                    copy.values.get_mut(&to).expect("every sector of it").push(*value);
                    crossed += 1;
                }
            }
        }
        crossed
    }

    /// Processes effects on the destination. Returns the number of sectors of copies that another writer has changed.
    fn on_destination(&mut self, effects: &[(u64, u64)], mut fail: impl FnMut(String)) -> u64 {
        let mut crossed = 0;
        for (sector, value) in effects {
            let mut is_permitted = *value & OTHERS != 0 && *value != MIXED;
            for copy in self.copies.values_mut() {
                match copy.values.get(sector) {
                    Some(values) if values.contains(value) => is_permitted |= copy.role != Role::Watch,
                    Some(_) => crossed += u64::from(copy.crossed.insert(*sector)),
                    None => {}
                }
            }
            if !is_permitted {
                fail(format!(
                    "{value:x} was written to sector {sector}, and no copy in progress writes it there"
                ));
            }
            self.now[*sector as usize] = *value;
            self.left[*sector as usize].push(*value);
        }
        crossed
    }
}

pub(super) fn sector(value: u64) -> Vec<u8> {
    value.to_le_bytes().repeat(SECTOR / 8)
}
