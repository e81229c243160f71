//! Which answers storage may give, when all that it was asked and answered is known.
//!
//! The caller tells every operation when it is submitted and when it is over, in the order in which that happens;
//! each such moment has a number. For each sector the history keeps the *versions* that it may hold:
//!
//! - **current**: what a read may return now. A write may take effect at any moment from its submission to its
//!   completion, and, as initiators repeat what a lost connection left open, more than once. When it is complete, the
//!   versions that were settled before it was submitted are gone. A read that returned one version disposes of those
//!   that were settled before the read was submitted: what was seen as new does not go back to old.
//! - **kept**: what may be there after a power cut. A version leaves when one that is *stable* follows it: a write
//!   completed as durable, or what was current when a flush was submitted that succeeded.
//!
//! An operation that failed, or whose connection was lost, has an *unknown* outcome: it may take effect at any later
//! time, until a read shows that it did, or until [`History::fence`] says that its client's old requests are over.
//!
//! A cut is certain (everything volatile may be gone, what is read afterwards is on the medium) or only possible (a
//! connection was lost, and the power with it or not). Flushes that were in flight at a cut promise nothing.
//!
//! Where the medium tells of what it lost ([`Rules::losses_told`]), a flush that succeeds does speak for its client: all
//! that had been acknowledged to it is on the medium, cut or not, but for what it was told of ([`Outcome::CacheLost`]).
//!
//! Memory: a sector holds the versions that it may still show, in quiet times one. Beyond [`VERSIONS_MAX`] it forgets
//! the oldest and becomes lenient after a cut until the next flush.

mod operation;
mod sector;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::ops::Range;

use crate::Client;
use crate::stamp::{Content, Stamp};

use operation::{Operation, What};
use sector::Sector;

/// Versions that a sector remembers; a workload that flushes now and then stays far below.
pub const VERSIONS_MAX: usize = 64;

/// The caller's name for an operation in flight.
pub type OperationId = u64;

/// Number of a moment; later ones are greater.
type Moment = u64;

/// Not yet.
const NEVER: Moment = Moment::MAX;

/// What a write leaves in each of its sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// Zeroes: a discard, or zeroes written.
    Zero,
    /// Stamped by this write.
    Stamp(Stamp),
    /// What was there before the run: anything.
    Unknown,
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Acknowledged.
    Done,
    /// Failed, withdrawn or lost with its connection: it may have taken effect, or do so later.
    Unknown,
    /// Failed, because what was acknowledged before the last cut and not flushed may be gone.
    CacheLost,
}

/// What is known of a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The power failed: the cache is empty now.
    Certain,
    /// It may have failed.
    Possible,
}

/// What the medium promises beyond SBC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Sectors are read and written whole even when requests that overlap are in flight together.
    pub atomic_sectors: bool,
    /// A flush fails if a cut may have taken what was acknowledged to its client, until the client was told once.
    pub losses_told: bool,
}

/// What was wrong with an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A version that was superseded, or one that was never there.
    Wrong,
    /// Parts of several versions within a sector.
    Torn,
    /// Data of another address.
    Misdirected,
    /// Data of nobody.
    Foreign,
}

/// A sector that does not hold what it must.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Address of the sector, in units of 512 bytes.
    pub lba: u64,
    /// What kind of fault.
    pub fault: Fault,
    /// What was read.
    pub found: Content,
    /// What the read was allowed to return, with how each came to be.
    pub expected: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sector {}: found {}, expected {}", self.lba, self.found, self.expected.join(" or "))
    }
}

/// A cut, applied to each sector when it is next looked at.
#[derive(Clone, Copy, Debug)]
struct CutMark {
    at: Moment,
    /// The horizon then.
    horizon: Moment,
    cut: Cut,
}

/// A write that was acknowledged and is not known to be durable.
#[derive(Clone, Debug)]
struct Volatile {
    range: Range<u64>,
    submitted: Moment,
    settled: Moment,
}

/// All that was asked of one medium and answered, as far as it still matters.
#[derive(Debug)]
pub struct History {
    rules: Rules,
    now: Moment,
    sectors: Vec<Sector>,
    operations: HashMap<OperationId, Operation>,
    /// When the reads in flight were submitted.
    reads: BTreeSet<Moment>,
    /// Latest submission of a flush that succeeded: what was overwritten before it is gone for good.
    horizon: Moment,
    cuts: Vec<CutMark>,
    /// Writes of unknown outcome that are not fenced, by client: first sector, count, moment of submission.
    unknown: HashMap<Client, Vec<(Range<u64>, Moment)>>,
    /// What a flush has to speak for, by client; only where losses are told.
    volatile: HashMap<Client, Vec<Volatile>>,
}

impl History {
    /// A medium of `sectors` sectors of 512 bytes that hold `initial`, durably.
    pub fn new(sectors: u64, initial: Value, rules: Rules) -> Self {
        let count = usize::try_from(sectors).expect("as many sectors as memory can name");
        Self {
            rules,
            now: 1,
            sectors: vec![Sector::new(initial); count],
            operations: HashMap::new(),
            reads: BTreeSet::new(),
            horizon: 0,
            cuts: Vec::new(),
            unknown: HashMap::new(),
            volatile: HashMap::new(),
        }
    }

    /// Sectors in all.
    pub fn sectors(&self) -> u64 {
        self.sectors.len() as u64
    }

    /// Operations in flight.
    pub fn in_flight(&self) -> usize {
        self.operations.len()
    }

    fn tick(&mut self) -> Moment {
        self.now += 1;
        self.now
    }

    /// A write, discard or write of zeroes is submitted.
    ///
    /// # Panics
    /// If `id` is in flight already, or the range lies outside the medium.
    pub fn write(&mut self, id: OperationId, client: Client, range: Range<u64>, value: Value, durable: bool) {
        let at = self.tick();
        for lba in range.clone() {
            self.settle(lba).submit(value, at, durable);
        }
        self.begin(id, Operation { client, at, what: What::Write { range, durable } });
    }

    /// A read is submitted.
    ///
    /// # Panics
    /// As [`History::write`].
    pub fn read(&mut self, id: OperationId, client: Client, range: Range<u64>) {
        let at = self.tick();
        assert!(range.end <= self.sectors(), "a read beyond the end");
        self.reads.insert(at);
        self.begin(id, Operation { client, at, what: What::Read { range } });
    }

    /// A flush is submitted.
    ///
    /// # Panics
    /// As [`History::write`].
    pub fn flush(&mut self, id: OperationId, client: Client) {
        let at = self.tick();
        self.begin(id, Operation { client, at, what: What::Flush });
    }

    fn begin(&mut self, id: OperationId, operation: Operation) {
        let before = self.operations.insert(id, operation);
        assert!(before.is_none(), "operation {id} is in flight already");
    }

    /// A write, discard or flush is over, or a read failed. Reads that succeeded: [`History::complete_read`].
    ///
    /// # Panics
    /// If `id` is not in flight.
    pub fn complete(&mut self, id: OperationId, outcome: Outcome) {
        let now = self.tick();
        let Operation { client, at, what } = self.operations.remove(&id).expect("an operation in flight");
        if outcome == Outcome::CacheLost {
            let cut = self.cuts.last().map_or(0, |cut| cut.at);
            self.volatile.entry(client).or_default().retain(|write| write.submitted > cut);
        }
        match (what, outcome) {
            (What::Read { .. }, _) => {
                self.reads.remove(&at);
            }
            (What::Flush, Outcome::Done) => {
                // One that was repeated after a power cut found an empty cache.
                if self.cuts.last().is_none_or(|cut| cut.at < at) {
                    self.horizon = self.horizon.max(at);
                }
                self.vouch(client, at, now);
            }
            (What::Flush, _) => {}
            (What::Write { range, durable }, Outcome::Done) => {
                for lba in range.clone() {
                    self.settle(lba).complete(at, now, durable);
                    self.prune(lba);
                }
                if self.rules.losses_told && !durable {
                    let write = Volatile { range, submitted: at, settled: now };
                    self.volatile.entry(client).or_default().push(write);
                }
            }
            (What::Write { range, .. }, _) => {
                for lba in range.clone() {
                    self.settle(lba).doubt(at);
                    self.prune(lba);
                }
                self.unknown.entry(client).or_default().push((range, at));
            }
        }
    }

    /// A flush of `client`, submitted `at`, succeeded: nothing that was acknowledged to it before was lost.
    fn vouch(&mut self, client: Client, at: Moment, now: Moment) {
        let writes = self.volatile.remove(&client).unwrap_or_default();
        let (covered, beside): (Vec<_>, _) = writes.into_iter().partition(|write| write.settled < at);
        for write in covered {
            for lba in write.range {
                self.settle(lba).vouch(write.submitted, now);
                self.prune(lba);
            }
        }
        self.volatile.insert(client, beside);
    }

    /// A read is over and returned `contents`, one for each of its sectors. The sectors that hold what they must not
    /// are returned; the history then goes on from what was found.
    ///
    /// # Panics
    /// If `id` is not a read in flight, or the number of sectors is not what was asked.
    pub fn complete_read(&mut self, id: OperationId, contents: &[Content]) -> Vec<Violation> {
        let now = self.tick();
        let Some(Operation { at, what: What::Read { range }, .. }) = self.operations.remove(&id) else {
            panic!("operation {id} is not a read in flight");
        };
        assert_eq!(contents.len() as u64, range.end - range.start, "an answer for each sector");
        let mut violations = Vec::new();
        for (lba, found) in range.zip(contents) {
            let (rules, horizon) = (self.rules, self.horizon);
            let sector = self.settle(lba);
            if let Err(fault) = sector.answer(*found, at, now, horizon, rules) {
                let expected = sector.expected(at, horizon);
                violations.push(Violation { lba, fault, found: *found, expected });
                sector.accept(*found, now);
            }
        }
        self.reads.remove(&at);
        violations
    }

    /// Requests of `client` that ended without an answer take no effect any more: its session was replaced by one
    /// that the storage answered, or the storage was started anew.
    pub fn fence(&mut self, client: Client) {
        let now = self.tick();
        for (range, at) in self.unknown.remove(&client).unwrap_or_default() {
            for lba in range {
                self.settle(lba).fence(at, now);
            }
        }
    }

    /// The power of the storage failed, or may have. Operations in flight stay so: complete them as their clients learn
    /// what became of them.
    pub fn cut(&mut self, cut: Cut) {
        let at = self.tick();
        self.cuts.push(CutMark { at, horizon: self.horizon, cut });
    }

    /// What `lba` may hold, in words.
    pub fn describe(&mut self, lba: u64) -> Vec<String> {
        let horizon = self.horizon;
        self.settle(lba).describe(horizon)
    }

    /// Versions that the sectors remember in all.
    pub fn versions(&self) -> usize {
        self.sectors.iter().map(Sector::versions).sum()
    }

    /// The sector `lba`, after the cuts that it has not seen.
    fn settle(&mut self, lba: u64) -> &mut Sector {
        let Self { sectors, cuts, .. } = self;
        let index = usize::try_from(lba).expect("as many sectors as memory can name");
        assert!(index < sectors.len(), "sector {lba} is beyond the end at {}", sectors.len());
        let sector = &mut sectors[index];
        let unseen = cuts.iter().rposition(|cut| cut.at <= sector.seen()).map_or(0, |last| last + 1);
        for mark in &cuts[unseen..] {
            sector.cut(mark.at, mark.horizon, mark.cut);
        }
        sector
    }

    fn prune(&mut self, lba: u64) {
        let (horizon, oldest_read) = (self.horizon, self.reads.first().copied().unwrap_or(NEVER));
        self.settle(lba).prune(horizon, oldest_read);
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
