//! A client that lets the initiator of this project request copies by the target (`copy --remote-copy`): one command
//! after another, resumed by a journal, until all is copied.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use area::PoolLimits;
use io::Io;
use node::initiator::{RemoteCopyError, RemoteObserver, RemotePlan, Url, remote_copy};

use super::host::pause;
use super::ledger::{Extent, Role};
use super::target::{ADDRESS, IQN, options};
use super::xcopies::{Board, KEPT, SECTORS, SOURCE};
use crate::disk::SECTOR;
use crate::random::Random;

const COMMAND_SECTORS_MAX: u64 = 64;

/// The range to copy, and its journal, which outlives processes.
pub(super) struct CopyJournal {
    extent: Extent,
    done: Vec<bool>,
    /// The ledger's number of the watch on this range.
    watch: Option<u64>,
}

pub(super) struct Remote {
    pub(super) board: Arc<Board>,
    pub(super) number: u64,
    pub(super) random: Random,
    pub(super) journal: Arc<Mutex<CopyJournal>>,
}

struct Claims<'a> {
    board: &'a Board,
    watch: u64,
    extent: Extent,
    journal: &'a Mutex<CopyJournal>,
    random: &'a mut Random,
    every: Duration,
}

impl RemoteObserver for Claims<'_> {
    fn on_progress(&mut self, _: u64) -> bool {
        !self.random.one_in(30)
    }

    fn claims_every(&self) -> Option<Duration> {
        Some(self.every)
    }

    fn on_durable(&mut self, ranges: &[(u64, u64)]) -> Result<(), String> {
        for (begin, end) in ranges {
            let sectors = begin / SECTOR as u64..end / SECTOR as u64;
            lock(self.journal).done[sectors.start as usize..sectors.end as usize].fill(true);
            let written: Vec<_> = sectors.map(|sector| self.extent.to + sector).collect();
            self.board.ledger.claim(self.watch, &written);
        }
        Ok(())
    }
}

fn lock(journal: &Mutex<CopyJournal>) -> MutexGuard<'_, CopyJournal> {
    journal.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl CopyJournal {
    pub(super) fn new(random: &mut Random) -> Self {
        let count = random.within(1..KEPT.end - KEPT.start + 1);
        let from = random.within(KEPT.start..KEPT.end - count + 1);
        let extent = Extent { from, to: random.within(0..SECTORS - count + 1), count };
        Self { extent, done: vec![false; count as usize], watch: None }
    }

    /// The ranges that are not durable yet, one per command.
    fn open(&self, random: &mut Random) -> Vec<(u64, u64)> {
        let (mut open, mut at) = (Vec::new(), 0);
        while let Some(begin) = (at..self.extent.count).find(|sector| !self.done[*sector as usize]) {
            let most = self.extent.count.min(begin + random.within(1..COMMAND_SECTORS_MAX + 1));
            at = (begin..most).find(|sector| self.done[*sector as usize]).unwrap_or(most);
            open.push((begin * SECTOR as u64, at * SECTOR as u64));
        }
        open
    }
}

impl Remote {
    pub(super) fn run(mut self) {
        while !self.board.is_over()
            && pause(Duration::from_micros(self.random.magnitude(1000..2_000_000))).is_some()
        {
            let resumed = lock(&self.journal).done.contains(&true);
            if self.attempt() {
                return self.board.context.count(|counters| {
                    counters.target_copies += 1;
                    counters.target_copies_resumed += u64::from(resumed);
                });
            }
        }
    }

    /// Resumes by the journal; true when the copy is complete.
    fn attempt(&mut self) -> bool {
        let Ok(mut io) = Io::new(PoolLimits { bytes_max: 64 << 20 }) else { return false };
        let Self { board, number, random, journal } = self;
        let url = Url::parse(&format!("iscsi://{ADDRESS}/{IQN}/0")).expect("a URL");
        let options = options(&format!("remote-{number}"), random);
        let bytes = |sectors: u64| sectors * SECTOR as u64;
        let (extent, open, watch) = {
            let mut kept = lock(journal);
            let extent = kept.extent;
            let watch =
                *kept.watch.get_or_insert_with(|| board.ledger.begin(Role::Watch, *number, 0, vec![extent]));
            (extent, kept.open(random), watch)
        };
        let plan = RemotePlan {
            source: SOURCE,
            destination: 0,
            src_offset: bytes(extent.from),
            dst_offset: bytes(extent.to),
            bytes: bytes(extent.count),
            open,
        };
        let copy = board.ledger.begin(Role::Commands, *number, 0, vec![extent]);
        let every = Duration::from_micros(random.magnitude(1..500_000));
        let mut claims = Claims { board, watch, extent, journal, random, every };
        let result = remote_copy(&mut io, &url, &options, &plan, &mut claims);
        match &result {
            Ok(_) => {
                let all: Vec<_> = (extent.to..extent.to + extent.count).collect();
                board.ledger.claim(watch, &all);
                board.ledger.end(copy, false);
            }
            // A command may still be in progress at the target.
            Err(RemoteCopyError::Lost(_)) => {
                board.ledger.lost(copy);
                board.context.count(|counters| counters.target_copies_lost += 1);
            }
            Err(_) => {
                board.ledger.end(copy, false);
                board.context.count(|counters| counters.target_copies_ended += 1);
            }
        }
        result.is_ok()
    }
}
