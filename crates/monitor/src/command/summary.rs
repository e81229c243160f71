//! Statistics over all commands of a connection, in bounded memory.

use std::collections::BTreeMap;

use super::{Command, Counts, Transfer};
use crate::event::Side;
use crate::limits::TALLY_VALUES_MAX;
use crate::model::Protocol;
use crate::spread::Spread;

/// Sums and distributions of the commands of one connection; [`Summary::add`] each that ended.
#[derive(Debug, Default)]
pub struct Summary {
    writes: Direction,
    reads: Direction,
    command_window_min: Option<u32>,
}

impl Summary {
    pub fn add(&mut self, command: &Command) {
        match command.transfer {
            Transfer::Write => self.writes.add(command),
            Transfer::Read => self.reads.add(command),
        }
    }

    /// Commands that MaxCmdSN allowed at a moment.
    pub fn add_window(&mut self, commands: u32) {
        self.command_window_min = Some(self.command_window_min.map_or(commands, |least| least.min(commands)));
    }

    pub fn direction(&self, transfer: Transfer) -> &Direction {
        match transfer {
            Transfer::Write => &self.writes,
            Transfer::Read => &self.reads,
        }
    }

    /// How iSCSI was used by the commands whose data `sender` sends; `None` without such commands.
    pub fn protocol(&self, sender: Side, counts: &Counts) -> Option<Protocol> {
        let direction = match sender {
            Side::Initiator => &self.writes,
            Side::Target => &self.reads,
        };
        if direction.count == 0 {
            return None;
        }
        let narrow = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        Some(Protocol {
            commands: direction.count,
            inferred: direction.inferred,
            block_bytes: direction.sizes.median(),
            depth: narrow(direction.depths.median()),
            depth_max: narrow(direction.depths.most()),
            command_window: self.command_window_min.unwrap_or(0),
            unsolicited_bytes: direction.unsolicited.median(),
            r2t_bytes: direction.r2t_bytes.median(),
            r2ts_outstanding: counts.r2ts_outstanding_max,
            r2t_rounds: narrow(direction.r2t_rounds.median()),
            ta_s: direction.ta.seconds(0.5),
            tb_s: direction.tb.seconds(0.5),
            tc_s: direction.tc.seconds(0.5),
            target_s: direction.target.seconds(0.5),
        })
    }
}

/// All writes, or all reads.
#[derive(Debug, Default)]
pub struct Direction {
    pub count: u64,
    pub bytes: u64,
    /// Commands that ended with another status than GOOD.
    pub failed: u64,
    /// Commands of which a part was not captured; they are in no time but `latency`.
    pub inferred: u64,
    pub ta: Times,
    pub tb: Times,
    pub tc: Times,
    /// Command to the response's end.
    pub latency: Times,
    /// What the target took itself.
    pub target: Times,
    pub sizes: Tally,
    pub depths: Tally,
    pub unsolicited: Tally,
    /// Of commands with an R2T.
    pub r2t_bytes: Tally,
    pub r2t_rounds: Tally,
    first_ns: Option<u64>,
    last_ns: u64,
}

impl Direction {
    fn add(&mut self, command: &Command) {
        self.count = self.count.saturating_add(1);
        self.bytes = self.bytes.saturating_add(command.bytes);
        self.failed += u64::from(command.status.is_some_and(|status| status != 0));
        if !command.is_inferred {
            self.ta.add(command.ta_ns);
            self.tb.add(command.tb_ns);
            self.target.add(command.target_ns);
            if let Some(tc_ns) = command.tc_ns {
                self.tc.add(tc_ns);
            }
        }
        self.inferred += u64::from(command.is_inferred);
        if command.latency_ns > 0 {
            self.latency.add(command.latency_ns);
        }
        self.sizes.add(command.bytes);
        self.depths.add(command.depth.into());
        self.unsolicited.add(command.unsolicited_bytes.into());
        if command.r2t_bytes > 0 {
            self.r2t_bytes.add(command.r2t_bytes.into());
        }
        self.r2t_rounds.add(command.r2t_rounds.into());
        self.first_ns = Some(self.first_ns.map_or(command.at_ns, |first| first.min(command.at_ns)));
        self.last_ns = self.last_ns.max(command.at_ns.saturating_add(command.latency_ns));
    }

    /// First byte of the first command to the end of the last response.
    pub fn seconds(&self) -> f64 {
        self.last_ns.saturating_sub(self.first_ns.unwrap_or(self.last_ns)) as f64 / 1e9
    }

    /// Data over [`Direction::seconds`]; 0 without time.
    pub fn bytes_per_s(&self) -> f64 {
        let seconds = self.seconds();
        if seconds > 0.0 { self.bytes as f64 / seconds } else { 0.0 }
    }
}

/// Nanoseconds of one unit of the histograms.
const UNIT_NS: u64 = 100;

/// A distribution of times, within 1 % or 100 ns.
#[derive(Debug, Default)]
pub struct Times(Spread);

impl Times {
    fn add(&mut self, ns: u64) {
        self.0.add(ns / UNIT_NS, 1);
    }

    /// The value below which `quantile` (0 to 1) of the times lie, in seconds; 0 without times.
    pub fn seconds(&self, quantile: f64) -> f64 {
        let Some((least, greatest)) = self.0.quantile(quantile) else { return 0.0 };
        // The middle of the values that are counted as one; of the least of all, its lower bound.
        let middle = if quantile > 0.0 { (least + greatest) as f64 / 2.0 } else { least as f64 };
        middle * UNIT_NS as f64 / 1e9
    }

    pub fn count(&self) -> u64 {
        self.0.total()
    }
}

/// Counts of exact values. Beyond [`TALLY_VALUES_MAX`] different ones, a new value counts as the next smaller known one.
#[derive(Debug, Default)]
pub struct Tally(BTreeMap<u64, u64>);

impl Tally {
    fn add(&mut self, value: u64) {
        if let Some(count) = self.0.get_mut(&value) {
            *count += 1;
        } else if self.0.len() < TALLY_VALUES_MAX {
            self.0.insert(value, 1);
        } else if let Some((_, count)) = self.0.range_mut(..value).next_back() {
            *count += 1;
        } else if let Some((_, count)) = self.0.iter_mut().next() {
            *count += 1;
        }
    }

    /// 0 without values.
    pub fn median(&self) -> u64 {
        let total: u64 = self.0.values().sum();
        let mut passed = 0;
        for (value, count) in &self.0 {
            passed += count;
            if passed * 2 >= total {
                return *value;
            }
        }
        0
    }

    pub fn most(&self) -> u64 {
        self.0.last_key_value().map_or(0, |(value, _)| *value)
    }

    pub fn least(&self) -> u64 {
        self.0.first_key_value().map_or(0, |(value, _)| *value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_sizes_are_exact_and_of_times_within_a_hundredth() {
        let (mut tally, mut times) = (Tally::default(), Times::default());
        for (size, ns) in
            [(4096, 1_000_000), (65_536, 20_123_456), (65_536, 20_123_456), (1 << 20, 5_000_000_000)]
        {
            tally.add(size);
            times.add(ns);
        }
        assert_eq!((tally.least(), tally.median(), tally.most()), (4096, 65_536, 1 << 20));
        assert!((times.seconds(0.5) - 0.020_123_456).abs() < 0.000_2, "{}", times.seconds(0.5));
        assert_eq!(times.count(), 4);
        assert_eq!(Tally::default().median(), 0);
        assert_eq!(Times::default().seconds(0.99).to_bits(), 0);
    }

    #[test]
    fn a_tally_is_bounded() {
        let mut tally = Tally::default();
        (0..10 * TALLY_VALUES_MAX as u64).rev().for_each(|value| tally.add(value));
        assert_eq!(tally.0.len(), TALLY_VALUES_MAX);
        assert_eq!(tally.0.values().sum::<u64>(), 10 * TALLY_VALUES_MAX as u64);
    }
}
