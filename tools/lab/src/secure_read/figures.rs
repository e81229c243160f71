//! Figures that the sides of a reading report.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::socket::RING_BYTES;
use crate::capture::Transfer;
use crate::stats::percentile;
use crate::sys::Cpu;

/// Maximum number of blocks with recorded moments.
const MOMENTS_MAX: usize = 1 << 18;

/// Minimum of a reading, in blocks and bytes. More than the target seals before it begins, so that some sealing takes
/// place during the reading on any machine.
const BLOCKS_MIN: u64 = 4;
const BYTES_MIN: u64 = 2 << 20;
const _: () = assert!(BYTES_MIN > RING_BYTES as u64);

/// The moments of one block, since the reading began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Moments {
    pub(super) requested: Duration,
    /// Its first bytes arrived.
    pub(super) first: Duration,
    /// Its last bytes arrived.
    pub(super) last: Duration,
    /// It was usable.
    pub(super) ready: Duration,
    /// Time of opening, between `first` and `ready`.
    pub(super) opening: Duration,
}

#[derive(Debug)]
pub(super) struct Notes {
    moments: Vec<Moments>,
    blocks: u64,
    blocks_min: u64,
}

impl Notes {
    pub(super) fn new(block: u32) -> Self {
        let blocks_min = BYTES_MIN.div_ceil(block.into()).max(BLOCKS_MIN);
        Self { moments: Vec::new(), blocks: 0, blocks_min }
    }

    /// Whether there are too few blocks for figures, regardless of the time.
    pub(super) fn is_short(&self) -> bool {
        self.blocks < self.blocks_min
    }

    pub(super) fn block(&mut self, moments: Moments) {
        self.blocks += 1;
        if self.moments.len() < MOMENTS_MAX {
            self.moments.push(moments);
        }
    }

    /// The figures of a reading from `start` until now.
    pub(super) fn figures(self, start: Instant, cpu: Cpu, transfers: Vec<Transfer>) -> Figures {
        let column = |value: &dyn Fn(&Moments) -> Duration, share: f64| {
            let mut values: Vec<u64> =
                self.moments.iter().map(|moments| value(moments).as_nanos() as u64).collect();
            percentile(&mut values, share).unwrap_or(0) as f64 / 1e3
        };
        let cycle = |moments: &Moments| moments.ready.saturating_sub(moments.requested);
        Figures {
            blocks: self.blocks,
            seconds: start.elapsed().as_secs_f64(),
            cpu,
            cycle_us: column(&cycle, 0.5),
            cycle_p99_us: column(&cycle, 0.99),
            wait_us: column(&|moments| moments.first.saturating_sub(moments.requested), 0.5),
            opening_us: column(&|moments| moments.opening, 0.5),
            opening_gap_us: column(&|moments| moments.ready.saturating_sub(moments.last), 0.5),
            transfers,
        }
    }
}

/// The figures of an initiator. Times are medians over blocks, in microseconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Figures {
    pub(super) blocks: u64,
    /// Seconds from the first request to the last block.
    pub(super) seconds: f64,
    pub(super) cpu: Cpu,
    /// From the request of a block until it is usable.
    pub(super) cycle_us: f64,
    pub(super) cycle_p99_us: f64,
    /// From the request to the first bytes.
    pub(super) wait_us: f64,
    pub(super) opening_us: f64,
    /// From the last bytes until the block is usable.
    pub(super) opening_gap_us: f64,
    /// The initiator's calls that moved data, if recorded.
    pub(super) transfers: Vec<Transfer>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Mark {
    pub(super) cpu: Cpu,
    pub(super) sealing: f64,
    /// The part of `sealing` while the socket had unacknowledged data. Counted only if instrumented.
    pub(super) hidden: f64,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Listening {
    /// On the loopback interface.
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
