//! A disk with a volatile cache and several clients, driven by a seed. Its behaviour is legal by construction, unless
//! it has a [`Lie`].

use std::ops::Range;

use super::*;
use crate::random::Random;
use crate::stamp::Stamp;

const SECTORS: u64 = 6;
const CLIENTS: u64 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lie {
    None,
    /// Acknowledges flushes without executing them.
    DropsFlushes,
    /// Durable writes stay in the cache.
    IgnoresFua,
    /// Acknowledges writes before they take effect.
    AcknowledgesEarly,
    /// A write takes effect again after its acknowledgement.
    Repeats,
    /// Reads return the content before the last write.
    ReadsStale,
    Tears,
    /// Lost requests of a client take effect after its session was replaced.
    IgnoresFences,
}

#[derive(Clone, Debug)]
enum What {
    Write { range: Range<u64>, value: Value, durable: bool },
    Read { range: Range<u64>, found: Vec<Content> },
    Flush,
}

#[derive(Clone, Debug)]
struct Pending {
    id: OperationId,
    client: Client,
    what: What,
    /// Number of sectors completed, in order.
    done: u64,
    /// The client's connection is lost.
    lost: bool,
}

impl Pending {
    fn length(&self) -> u64 {
        match &self.what {
            What::Write { range, .. } | What::Read { range, .. } => range.end - range.start,
            What::Flush => 1,
        }
    }
}

pub(super) struct Model {
    random: Random,
    lie: Lie,
    cut: Cut,
    history: History,
    medium: Vec<Value>,
    cache: Vec<Vec<Value>>,
    before: Vec<Value>,
    pending: Vec<Pending>,
    next: u64,
}

fn content(value: Value) -> Content {
    match value {
        Value::Zero => Content::Zero,
        Value::Stamp(stamp) => Content::Stamp(stamp),
        Value::Unknown => Content::Foreign,
    }
}

impl Model {
    pub(super) fn new(seed: u64, lie: Lie) -> Self {
        let mut random = Random::new(seed);
        let initial = if random.one_in(2) { Value::Zero } else { Value::Unknown };
        let cut = if random.one_in(2) { Cut::Certain } else { Cut::Possible };
        Self {
            random,
            lie,
            cut,
            history: History::new(SECTORS, initial, Rules { atomic_sectors: true, losses_reported: false }),
            medium: vec![initial; SECTORS as usize],
            cache: vec![Vec::new(); SECTORS as usize],
            before: vec![initial; SECTORS as usize],
            pending: Vec::new(),
            next: 0,
        }
    }

    /// Violations found in `steps` steps and in a final read of all sectors.
    pub(super) fn run(mut self, steps: u64) -> Vec<Violation> {
        let mut violations = Vec::new();
        for _ in 0..steps {
            match self.random.below(40) {
                0 => self.power_cut(),
                1 => self.lose_connection(),
                2..=14 if self.pending.len() < 6 => self.submit(),
                _ => self.advance(&mut violations),
            }
        }
        while !self.pending.is_empty() {
            self.advance(&mut violations);
        }
        let found = (0..SECTORS as usize).map(|index| content(self.visible(index))).collect::<Vec<_>>();
        self.history.read(self.next, 0, 0..SECTORS);
        violations.extend(self.history.complete_read(self.next, &found));
        assert!(self.history.versions() < 200, "memory is bounded");
        violations
    }

    fn visible(&self, index: usize) -> Value {
        self.cache[index].last().copied().unwrap_or(self.medium[index])
    }

    fn submit(&mut self) {
        let (id, client) = (self.next, self.random.below(CLIENTS) as Client);
        self.next += 1;
        let start = self.random.below(SECTORS);
        let range = start..start + 1 + self.random.below((SECTORS - start).min(3));
        let what = match self.random.below(10) {
            0 => What::Flush,
            1..=3 => What::Read { range, found: Vec::new() },
            kind => {
                let value = if kind == 4 {
                    Value::Zero
                } else {
                    Value::Stamp(Stamp { sequence: id, writer: client })
                };
                What::Write { range, value, durable: kind == 9 }
            }
        };
        match &what {
            What::Flush => self.history.flush(id, client),
            What::Read { range, .. } => self.history.read(id, client, range.clone()),
            What::Write { range, value, durable } => {
                self.history.write(id, client, range.clone(), *value, *durable);
            }
        }
        self.pending.push(Pending { id, client, what, done: 0, lost: false });
    }

    /// Executes one sector of an operation, or completes an operation.
    fn advance(&mut self, violations: &mut Vec<Violation>) {
        if self.pending.is_empty() {
            return;
        }
        let index = self.random.below(self.pending.len() as u64) as usize;
        let early = self.lie == Lie::AcknowledgesEarly && self.random.one_in(4);
        let is_write = matches!(self.pending[index].what, What::Write { .. });
        if self.pending[index].done == self.pending[index].length()
            || (early && is_write && !self.pending[index].lost)
        {
            let over = self.pending.swap_remove(index);
            self.finish(over, early, violations);
            return;
        }
        let at = self.pending[index].done;
        self.pending[index].done += 1;
        let mut what = self.pending[index].what.clone();
        self.perform(&mut what, at);
        self.pending[index].what = what;
    }

    fn perform(&mut self, what: &mut What, at: u64) {
        match what {
            What::Flush => {
                for index in 0..SECTORS as usize {
                    if self.lie != Lie::DropsFlushes {
                        self.medium[index] = self.visible(index);
                        self.cache[index].clear();
                    }
                }
            }
            What::Read { range, found } => {
                let index = (range.start + at) as usize;
                let stale = self.lie == Lie::ReadsStale && self.random.one_in(8);
                let value = if stale { self.before[index] } else { self.visible(index) };
                let torn = self.lie == Lie::Tears && self.random.one_in(20);
                found.push(if torn { Content::Torn } else { content(value) });
            }
            What::Write { range, value, durable } => {
                let index = (range.start + at) as usize;
                self.before[index] = self.visible(index);
                if *durable && self.lie != Lie::IgnoresFua {
                    self.medium[index] = *value;
                    self.cache[index].clear();
                } else {
                    self.cache[index].push(*value);
                }
            }
        }
    }

    fn finish(&mut self, over: Pending, early: bool, violations: &mut Vec<Violation>) {
        if over.lost {
            return;
        }
        // Sometimes the write is repeated before its answer, as over a lost connection.
        let again = self.random.one_in(8);
        let repeats = self.lie == Lie::Repeats && self.random.one_in(4);
        if let (What::Write { .. }, true) = (&over.what, again && !early) {
            for at in 0..over.length() {
                self.perform(&mut over.what.clone(), at);
            }
        }
        match &over.what {
            What::Read { found, .. } => violations.extend(self.history.complete_read(over.id, found)),
            _ => self.history.complete(over.id, Outcome::Done),
        }
        if matches!(over.what, What::Write { .. }) && (early || repeats) {
            // The write continues after its answer.
            self.pending.push(Pending { done: if repeats { 0 } else { over.done }, lost: true, ..over });
        }
    }

    fn lose_connection(&mut self) {
        let client = self.random.below(CLIENTS) as Client;
        for pending in self.pending.iter_mut().filter(|pending| pending.client == client && !pending.lost) {
            pending.lost = true;
            self.history.complete(pending.id, Outcome::Unknown);
        }
        let fenced = self.random.one_in(2);
        if fenced || self.lie == Lie::IgnoresFences {
            if self.lie != Lie::IgnoresFences {
                self.pending.retain(|pending| pending.client != client);
            }
            self.history.fence(client);
        }
    }

    fn power_cut(&mut self) {
        let happens = self.cut == Cut::Certain || self.random.one_in(2);
        let gone: Vec<_> =
            self.pending.iter().filter(|pending| !pending.lost).map(|pending| pending.id).collect();
        if happens {
            for index in 0..SECTORS as usize {
                let count = self.cache[index].len() as u64;
                if let Some(chosen) = self.random.below(count + 1).checked_sub(1) {
                    self.medium[index] = self.cache[index][chosen as usize];
                }
                self.cache[index].clear();
                self.before[index] = self.medium[index];
            }
        }
        if happens && self.random.one_in(2) {
            // The clients detect the failure at once.
            gone.iter().for_each(|id| self.history.complete(*id, Outcome::Unknown));
            (0..CLIENTS as Client).for_each(|client| self.history.fence(client));
            self.pending.clear();
        } else if happens {
            // The clients repeat open requests.
            self.pending.retain(|pending| !pending.lost);
            for pending in &mut self.pending {
                pending.done = 0;
                if let What::Read { found, .. } = &mut pending.what {
                    found.clear();
                }
            }
        }
        self.history.cut(self.cut);
    }
}
