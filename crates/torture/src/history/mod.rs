//! Determines which answers storage may give after all earlier requests and answers.
//!
//! The caller reports each operation when it is submitted and when it completes, in order of occurrence; each such
//! event has a number, its *moment*. For each sector the history keeps the *versions* that it may hold:
//!
//! - **current**: a read may return it now. A write may take effect at any moment from its submission to its
//!   completion, and more than once, because initiators repeat requests that a lost connection left open. Its
//!   completion removes the versions that were settled before its submission. A read that returned one version removes
//!   those that were settled before the read was submitted: a later read must not return older data.
//! - **kept**: it may remain after a power failure. A version is no longer kept when a *stable* one follows it: a write
//!   completed as durable, or one that was current when a successful flush was submitted.
//!
//! An operation that failed, or whose connection was lost, has an *unknown* outcome: it may take effect at any later
//! moment, until a read shows that it did, or until [`History::fence`] ends the old requests of its client.
//!
//! A cut is certain (all volatile data may be lost, and later reads return the medium) or possible (a connection was
//! lost, with or without power). Flushes in flight at a cut guarantee nothing.
//!
//! If the medium reports its losses ([`Rules::losses_reported`]), a successful flush also covers writes before a cut: all
//! writes that were acknowledged to its client are on the medium, except losses already reported to it
//! ([`Outcome::CacheLost`]).
//!
//! Memory: a sector holds the versions that it may still return, one if idle. Beyond [`VERSIONS_MAX`] it discards the
//! oldest, and then accepts any content from a cut until the next flush.

mod operation;
mod sector;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::ops::Range;

use crate::Client;
use crate::stamp::{Content, Stamp};

use operation::{Operation, What};
use sector::Sector;

/// Most versions of a sector; a workload with occasional flushes stays far below.
pub const VERSIONS_MAX: usize = 64;

/// Number that the caller gives an operation in flight.
pub type OperationId = u64;

/// Number of an event; later ones are greater.
type Moment = u64;

const NEVER: Moment = Moment::MAX;

/// The content that a write leaves in each of its sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// Zeroes: a discard, or a write of zeroes.
    Zero,
    Stamp(Stamp),
    /// Unknown content from before the run.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// Failed, cancelled or lost with its connection: it may have taken effect, or may do so later.
    Unknown,
    /// Failed, because writes acknowledged before the last cut and not flushed may be lost.
    CacheLost,
}

/// Certainty of a power failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The power failed: the cache is empty.
    Certain,
    /// The power may have failed.
    Possible,
}

/// Guarantees of the medium beyond SBC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Sectors are read and written atomically, even by overlapping requests in flight.
    pub atomic_sectors: bool,
    /// A flush fails, once per client, if a cut may have lost writes acknowledged to that client.
    pub losses_reported: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A version that was superseded or never written.
    Wrong,
    /// Parts of several versions within a sector.
    Torn,
    /// Data of another address.
    Misdirected,
    /// Content that no write of this run produced.
    Foreign,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Address of the sector, in units of 512 bytes.
    pub lba: u64,
    pub fault: Fault,
    pub found: Content,
    /// Versions that the read could return, with their history.
    pub expected: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sector {}: found {}, expected {}", self.lba, self.found, self.expected.join(" or "))
    }
}

/// A cut, applied to each sector at its next access.
#[derive(Clone, Copy, Debug)]
struct CutMark {
    at: Moment,
    /// [`History::horizon`] at the cut.
    horizon: Moment,
    cut: Cut,
}

/// An acknowledged write that is not known to be durable.
#[derive(Clone, Debug)]
struct Volatile {
    range: Range<u64>,
    submitted: Moment,
    settled: Moment,
}

/// The requests and answers of one medium, as far as they affect later answers.
///
/// The caller reports each submission ([`write`](Self::write), [`read`](Self::read), [`flush`](Self::flush)), each
/// completion ([`complete`](Self::complete), [`complete_read`](Self::complete_read)), and each [`cut`](Self::cut) and
/// [`fence`](Self::fence), in order of occurrence. Violations are returned by `complete_read`.
#[derive(Debug)]
pub struct History {
    rules: Rules,
    now: Moment,
    sectors: Vec<Sector>,
    operations: HashMap<OperationId, Operation>,
    /// Moments of submission of the reads in flight.
    reads: BTreeSet<Moment>,
    /// Latest submission of a successful flush: versions overwritten before it cannot return.
    horizon: Moment,
    cuts: Vec<CutMark>,
    /// Writes of unknown outcome that are not fenced, by client: sectors and moment of submission.
    unknown: HashMap<Client, Vec<(Range<u64>, Moment)>>,
    /// Writes that the next flush of a client covers; only with `losses_reported`.
    volatile: HashMap<Client, Vec<Volatile>>,
}

impl History {
    /// A medium of `sectors` sectors of 512 bytes that durably hold `initial`.
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

    pub fn sectors(&self) -> u64 {
        self.sectors.len() as u64
    }

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
    /// If `id` is already in flight, or the range lies outside the medium.
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

    /// A write, discard or flush completed, or a read failed. For successful reads: [`History::complete_read`].
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
                // A flush that was repeated after a power failure found an empty cache.
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
                if self.rules.losses_reported && !durable {
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

    /// A flush of `client`, submitted `at`, succeeded: no write acknowledged to it before is lost.
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

    /// A read completed with `contents`, one for each of its sectors. Returns the sectors with wrong content; the
    /// history then continues from the content found.
    ///
    /// # Panics
    /// If `id` is not a read in flight, or the number of sectors differs from the request.
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

    /// Unanswered requests of `client` have no further effect: the storage has accepted a new session in place of the
    /// old one, or was restarted.
    pub fn fence(&mut self, client: Client) {
        let now = self.tick();
        for (range, at) in self.unknown.remove(&client).unwrap_or_default() {
            for lba in range {
                self.settle(lba).fence(at, now);
            }
        }
    }

    /// The power of the storage failed, or may have. Operations in flight remain so until the caller completes them.
    pub fn cut(&mut self, cut: Cut) {
        let at = self.tick();
        self.cuts.push(CutMark { at, horizon: self.horizon, cut });
    }

    pub fn describe(&mut self, lba: u64) -> Vec<String> {
        let horizon = self.horizon;
        self.settle(lba).describe(horizon)
    }

    pub fn versions(&self) -> usize {
        self.sectors.iter().map(Sector::versions).sum()
    }

    /// The sector `lba`, after cuts that were not yet applied to it.
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
