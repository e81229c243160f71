//! A client that lets our initiator ask for the copy (`copy --remote-copy`): command after command, with a journal by which it
//! goes on, until all is copied.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use area::PoolLimits;
use io::Io;
use node::initiator::{RemoteCopyError, RemoteObserver, RemotePlan, Url, remote_copy};

use super::host::pause;
use super::ledger::{Piece, Role};
use super::target::{ADDRESS, IQN, options};
use super::xcopies::{Board, KEPT, SECTORS, SOURCE};
use crate::disk::SECTOR;
use crate::random::Random;

/// Sectors that one command copies at most.
const COMMAND_SECTORS_MAX: u64 = 64;

/// What is copied, and the journal of it, which outlives processes.
pub(super) struct Paper {
    piece: Piece,
    /// Sectors that are durable.
    done: Vec<bool>,
    /// The ledger's number for what others do to it.
    watch: Option<u64>,
}

/// See the module.
pub(super) struct Remote {
    pub(super) board: Arc<Board>,
    pub(super) number: u64,
    pub(super) random: Random,
    pub(super) journal: Arc<Mutex<Paper>>,
}

struct Claims<'a> {
    board: &'a Board,
    watch: u64,
    piece: Piece,
    journal: &'a Mutex<Paper>,
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

    fn on_durable(&mut self, stretches: &[(u64, u64)]) -> Result<(), String> {
        for (begin, end) in stretches {
            let sectors = begin / SECTOR as u64..end / SECTOR as u64;
            paper(self.journal).done[sectors.start as usize..sectors.end as usize].fill(true);
            let written: Vec<_> = sectors.map(|sector| self.piece.to + sector).collect();
            self.board.ledger.claim(self.watch, &written);
        }
        Ok(())
    }
}

fn paper(journal: &Mutex<Paper>) -> MutexGuard<'_, Paper> {
    journal.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Paper {
    pub(super) fn new(random: &mut Random) -> Self {
        let count = random.within(1..KEPT.end - KEPT.start + 1);
        let from = random.within(KEPT.start..KEPT.end - count + 1);
        let piece = Piece { from, to: random.within(0..SECTORS - count + 1), count };
        Self { piece, done: vec![false; count as usize], watch: None }
    }

    /// What is not durable yet, in stretches of which each is a command.
    fn open(&self, random: &mut Random) -> Vec<(u64, u64)> {
        let (mut open, mut at) = (Vec::new(), 0);
        while let Some(begin) = (at..self.piece.count).find(|sector| !self.done[*sector as usize]) {
            let most = self.piece.count.min(begin + random.within(1..COMMAND_SECTORS_MAX + 1));
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
            let resumed = paper(&self.journal).done.contains(&true);
            if self.attempt() {
                return self.board.context.count(|counters| {
                    counters.target_copies += 1;
                    counters.target_copies_resumed += u64::from(resumed);
                });
            }
        }
    }

    /// Goes on by the journal; true when the copy is done.
    fn attempt(&mut self) -> bool {
        let Ok(mut io) = Io::new(PoolLimits { bytes_max: 64 << 20 }) else { return false };
        let Self { board, number, random, journal } = self;
        let url = Url::parse(&format!("iscsi://{ADDRESS}/{IQN}/0")).expect("a URL");
        let options = options(&format!("remote-{number}"), random);
        let bytes = |sectors: u64| sectors * SECTOR as u64;
        let (piece, open, watch) = {
            let mut paper = paper(journal);
            let piece = paper.piece;
            let watch =
                *paper.watch.get_or_insert_with(|| board.ledger.begin(Role::Watch, *number, 0, vec![piece]));
            (piece, paper.open(random), watch)
        };
        let plan = RemotePlan {
            source: SOURCE,
            destination: 0,
            src_offset: bytes(piece.from),
            dst_offset: bytes(piece.to),
            bytes: bytes(piece.count),
            open,
        };
        let job = board.ledger.begin(Role::Errand, *number, 0, vec![piece]);
        let every = Duration::from_micros(random.magnitude(1..500_000));
        let mut claims = Claims { board, watch, piece, journal, random, every };
        let result = remote_copy(&mut io, &url, &options, &plan, &mut claims);
        match &result {
            Ok(_) => {
                let all: Vec<_> = (piece.to..piece.to + piece.count).collect();
                board.ledger.claim(watch, &all);
                board.ledger.end(job, false);
            }
            // A command of it may still be at work.
            Err(RemoteCopyError::Lost(_)) => {
                board.ledger.lost(job);
                board.context.count(|counters| counters.target_copies_lost += 1);
            }
            Err(_) => {
                board.ledger.end(job, false);
                board.context.count(|counters| counters.target_copies_ended += 1);
            }
        }
        result.is_ok()
    }
}
