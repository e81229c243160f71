//! What the sides of a reading tell.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::socket::RING_BYTES;
use crate::capture::Seen;
use crate::stats::percentile;
use crate::sys::Cpu;

/// Blocks whose moments are kept.
const MOMENTS_MAX: usize = 1 << 18;

/// The shortest reading: blocks, and bytes. More than a target has sealed before it begins, so that however busy the machine
/// is, some is sealed while it goes on.
const BLOCKS_MIN: u64 = 4;
const BYTES_MIN: u64 = 2 << 20;
const _: () = assert!(BYTES_MIN > RING_BYTES as u64);

/// The moments of one block, since the reading began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Moments {
    /// It was asked for.
    pub(super) asked: Duration,
    /// Its first bytes came.
    pub(super) first: Duration,
    /// Its last bytes came.
    pub(super) last: Duration,
    /// It could be used.
    pub(super) ready: Duration,
    /// What opening took of that, wherever between `first` and `ready`.
    pub(super) opening: Duration,
}

/// An initiator's notes.
#[derive(Debug)]
pub(super) struct Notes {
    moments: Vec<Moments>,
    blocks: u64,
    /// Of the shortest reading.
    blocks_min: u64,
}

impl Notes {
    /// Of a reading in blocks of so many bytes.
    pub(super) fn new(block: u32) -> Self {
        let blocks_min = BYTES_MIN.div_ceil(block.into()).max(BLOCKS_MIN);
        Self { moments: Vec::new(), blocks: 0, blocks_min }
    }

    /// Too few blocks to say anything, however long they took.
    pub(super) fn is_short(&self) -> bool {
        self.blocks < self.blocks_min
    }

    pub(super) fn block(&mut self, moments: Moments) {
        self.blocks += 1;
        if self.moments.len() < MOMENTS_MAX {
            self.moments.push(moments);
        }
    }

    /// Sums up a reading from `start` until now.
    pub(super) fn figures(self, start: Instant, cpu: Cpu, seen: Vec<Seen>) -> Figures {
        let column = |value: &dyn Fn(&Moments) -> Duration, share: f64| {
            let mut values: Vec<u64> =
                self.moments.iter().map(|moments| value(moments).as_nanos() as u64).collect();
            percentile(&mut values, share).unwrap_or(0) as f64 / 1e3
        };
        let cycle = |moments: &Moments| moments.ready.saturating_sub(moments.asked);
        Figures {
            blocks: self.blocks,
            seconds: start.elapsed().as_secs_f64(),
            cpu,
            cycle_us: column(&cycle, 0.5),
            cycle_p99_us: column(&cycle, 0.99),
            wait_us: column(&|moments| moments.first.saturating_sub(moments.asked), 0.5),
            opening_us: column(&|moments| moments.opening, 0.5),
            opening_gap_us: column(&|moments| moments.ready.saturating_sub(moments.last), 0.5),
            seen,
        }
    }
}

/// What an initiator saw of a reading. Times are medians over its blocks, microseconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Figures {
    /// Blocks read.
    pub(super) blocks: u64,
    /// From the first request to the last block.
    pub(super) seconds: f64,
    /// Used by the initiator.
    pub(super) cpu: Cpu,
    /// From the request of a block until it can be used.
    pub(super) cycle_us: f64,
    /// The same, one in a hundred.
    pub(super) cycle_p99_us: f64,
    /// From the request to the first bytes.
    pub(super) wait_us: f64,
    /// Spent on opening.
    pub(super) opening_us: f64,
    /// From the last bytes until it can be used.
    pub(super) opening_gap_us: f64,
    /// Its calls that moved data, where asked for.
    pub(super) seen: Vec<Seen>,
}

/// What a target used and did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Mark {
    /// Processor time.
    pub(super) cpu: Cpu,
    /// Sealing, seconds.
    pub(super) sealing: f64,
    /// Of that, while the socket held what the peer had not acknowledged. Counted only when instrumented.
    pub(super) hidden: f64,
}

/// A target that can be reached.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Listening {
    /// On the loopback.
    pub(super) port: u16,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_goes_on_beyond_what_was_sealed_before_it() {
        for block in [512, 32 << 10, 4 << 20] {
            let mut notes = Notes::new(block);
            let mut blocks = 0;
            while notes.is_short() {
                notes.block(Moments::default());
                blocks += 1;
            }
            assert!(blocks >= BLOCKS_MIN && blocks * u64::from(block) > RING_BYTES as u64, "{block}");
        }
    }
}
