//! What the destination of copies may hold. Every effect that its disk has seen is held against the copies under way then,
//! so that what is wrong is found where it happens: by the value and by the time.
//!
//! Sectors are filled with one word. Values of [`OTHERS`] are written by commands other than copies; all that copies can
//! bring is a source's, and without that bit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::disk::{Disk, MIXED, SECTOR};
use crate::world::Context;

/// Values that no copy brings.
pub(super) const OTHERS: u64 = 1 << 63;

/// A stretch of sectors that is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) count: u64,
}

/// A copy under way, as far as its initiator can know.
#[derive(Debug)]
struct Job {
    client: u64,
    role: Role,
    /// The LUN that its command went to.
    lun: u16,
    /// The target has certainly taken the command.
    is_taken: bool,
    pieces: Vec<Piece>,
    /// What it may bring, by sector of the destination.
    values: BTreeMap<u64, Vec<u64>>,
    /// Sectors of the destination that something else has changed meanwhile.
    crossed: BTreeSet<u64>,
}

/// What a job is in the ledger for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// A command on a session: it ends with the target at the latest.
    Command,
    /// Commands of sessions yet to come.
    Errand,
    /// It brings nothing, and only sees what others do.
    Watch,
}

#[derive(Debug)]
struct Book {
    jobs: BTreeMap<u64, Job>,
    job_last: u64,
    /// Effects that were looked at, of the source and of the destination.
    seen: [usize; 2],
    now: Vec<u64>,
    /// What a power cut may leave of each sector.
    left: Vec<Vec<u64>>,
    /// Number of times that the target ended.
    ends: u64,
}

/// What was there when a flush began.
pub(super) struct Mark {
    now: Vec<u64>,
    seen: usize,
    ends: u64,
}

/// See the module.
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
        let book = Book { jobs: BTreeMap::new(), job_last: 0, seen: [0; 2], now, left, ends: 0 };
        let (source, destination) = (source.clone(), destination.clone());
        Self { context: context.clone(), source, destination, write_through, book: Mutex::new(book) }
    }

    /// Everything that has happened so far is looked at.
    fn book(&self) -> MutexGuard<'_, Book> {
        let mut book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        let [read, written] = book.seen;
        let (read, written) = (self.source.effects(read), self.destination.effects(written));
        book.seen = [book.seen[0] + read.len(), book.seen[1] + written.len()];
        let crossed = book.on_source(&read) + book.on_destination(&written, |text| self.context.fail(text));
        self.context.count(|counters| counters.sectors_crossed += crossed);
        book
    }

    /// A copy is about to be asked for.
    pub(super) fn begin(&self, role: Role, client: u64, lun: u16, pieces: Vec<Piece>) -> u64 {
        let mut book = self.book();
        let source = self.source.values();
        let sectors =
            |piece: &Piece| (0..piece.count).map(move |at| (at, piece.from, piece.to)).collect::<Vec<_>>();
        let of_sector = |(at, from, to): (u64, u64, u64)| (to + at, vec![source[(from + at) as usize]]);
        let values = pieces.iter().flat_map(sectors).map(of_sector).collect();
        book.job_last += 1;
        let number = book.job_last;
        self.context.note("copy begins", &[number, client, lun.into()]);
        for Piece { from, to, count } in &pieces {
            self.context.note("of it", &[number, *from, *to, *count]);
        }
        let job = Job { client, role, lun, is_taken: false, pieces, values, crossed: BTreeSet::new() };
        book.jobs.insert(number, job);
        number
    }

    /// The target has certainly begun it.
    pub(super) fn taken(&self, number: u64) {
        if let Some(job) = self.book().jobs.get_mut(&number) {
            job.is_taken = true;
        }
    }

    /// No command of it will come any more; the last may still be at work.
    pub(super) fn lost(&self, number: u64) {
        if let Some(job) = self.book().jobs.get_mut(&number) {
            job.role = Role::Command;
        }
    }

    /// It has ended, and `good` is what the target says. False: it had ended already, with its target.
    pub(super) fn end(&self, number: u64, good: bool) -> bool {
        let mut book = self.book();
        let Some(job) = book.jobs.remove(&number) else { return false };
        self.context.note("copy ends", &[number, good.into()]);
        if good {
            let all = job.values.keys().copied().collect::<Vec<_>>();
            self.hold(&mut book, &job, &all, self.write_through);
        }
        true
    }

    /// The target says that these sectors of the destination are copied and durable.
    pub(super) fn claim(&self, number: u64, sectors: &[u64]) {
        let mut book = self.book();
        let Some(job) = book.jobs.remove(&number) else { return };
        self.hold(&mut book, &job, sectors, true);
        book.jobs.insert(number, job);
    }

    /// Sees that the destination holds what it should of a copy.
    fn hold(&self, book: &mut Book, job: &Job, sectors: &[u64], durable: bool) {
        for sector in sectors.iter().filter(|sector| !job.crossed.contains(sector)) {
            let (found, values) = (book.now[*sector as usize], &job.values[sector]);
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

    /// A client has logged in again: what its old session asked for has ended.
    pub(super) fn logged_in(&self, client: u64) {
        self.book().jobs.retain(|_, job| job.client != client);
    }

    /// Copies that a reset of this LUN has to end, if it is asked for now.
    pub(super) fn exposed(&self, lun: u16) -> Vec<u64> {
        let book = self.book();
        let exposed = book.jobs.iter().filter(|(_, job)| job.lun == lun && job.is_taken);
        exposed.map(|(number, _)| *number).collect()
    }

    /// A flush is about to be asked for.
    pub(super) fn flush(&self) -> Mark {
        let book = self.book();
        Mark { now: book.now.clone(), seen: book.seen[1], ends: book.ends }
    }

    /// It has succeeded.
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

    /// Looks at what happened until now; to be called before the target ends.
    pub(super) fn settle(&self) {
        drop(self.book());
    }

    /// The target has been killed, or its power cut.
    pub(super) fn killed(&self, power: bool) {
        let mut book = self.book();
        if book.jobs.values().any(|job| job.role != Role::Watch) {
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

    /// The target has ended in order: no copy goes on, and everything is durable.
    pub(super) fn ended(&self) {
        let mut book = self.book();
        book.stop();
        book.left = book.now.iter().map(|value| vec![*value]).collect();
    }
}

impl Book {
    /// The target has ended, and with it every copy.
    fn stop(&mut self) {
        self.jobs.retain(|_, job| job.role != Role::Command);
        self.ends += 1;
    }

    /// What the source has become. Sectors of copies that this concerns.
    fn on_source(&mut self, effects: &[(u64, u64)]) -> u64 {
        let mut crossed = 0;
        for (sector, value) in effects {
            for job in self.jobs.values_mut() {
                let piece =
                    job.pieces.iter().find(|piece| (piece.from..piece.from + piece.count).contains(sector));
                if let Some(piece) = piece {
                    let to = piece.to + (sector - piece.from);
                    job.values.get_mut(&to).expect("every sector of it").push(*value);
                    crossed += 1;
                }
            }
        }
        crossed
    }

    /// What the destination has become. Sectors of copies that something else has written.
    fn on_destination(&mut self, effects: &[(u64, u64)], mut fail: impl FnMut(String)) -> u64 {
        let mut crossed = 0;
        for (sector, value) in effects {
            let mut brought = *value & OTHERS != 0 && *value != MIXED;
            for job in self.jobs.values_mut() {
                match job.values.get(sector) {
                    Some(values) if values.contains(value) => brought |= job.role != Role::Watch,
                    Some(_) => crossed += u64::from(job.crossed.insert(*sector)),
                    None => {}
                }
            }
            if !brought {
                fail(format!(
                    "{value:x} was written to sector {sector}, and no copy under way brings it there"
                ));
            }
            self.now[*sector as usize] = *value;
            self.left[*sector as usize].push(*value);
        }
        crossed
    }
}

/// A sector's bytes of one value.
pub(super) fn sector(value: u64) -> Vec<u8> {
    value.to_le_bytes().repeat(SECTOR / 8)
}
