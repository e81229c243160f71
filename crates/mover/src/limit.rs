//! The resource that limited a copy, derived from the distribution of its time.

use std::fmt;
use std::time::Duration;

/// Of the time spent waiting for devices, one device is the limit only from this share on; below it they are balanced.
const DEVICE_SHARE: f64 = 0.6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    Source,
    /// The destination: writes, or reads in a verification.
    Destination,
    /// Source and destination, about equally.
    Balanced,
    Rate,
    /// What the copy leaves of a disk to other programs: [`Impact`](crate::Impact).
    Impact,
    Memory,
    /// The CPU time of the loop thread: it was busy rather than waiting.
    Cpu,
}

impl Limit {
    /// A single word, for JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Destination => "destination",
            Self::Balanced => "balanced",
            Self::Rate => "rate",
            Self::Impact => "impact",
            Self::Memory => "memory",
            Self::Cpu => "cpu",
        }
    }
}

/// For a sentence: "limited by ...".
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Balanced => "source and destination alike",
            Self::Impact => "what other programs are left of the disk",
            _ => self.name(),
        })
    }
}

/// Shares of the time, each from 0 to 1; their sum is 1 (or 0 if no time passed).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shares {
    /// Waiting, with chunks at the source.
    pub source: f64,
    /// Waiting, with chunks at the destination.
    pub destination: f64,
    pub rate: f64,
    /// Waiting, with less in flight than there would be without other programs on the disk.
    pub impact: f64,
    pub memory: f64,
    /// Not waiting.
    pub cpu: f64,
}

/// Why a slot stayed free although runs were left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blocked {
    Rate,
    Impact,
    Memory,
}

/// The time of a copy by what the loop waited for, in seconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Occupancy {
    source: f64,
    destination: f64,
    rate: f64,
    impact: f64,
    memory: f64,
    cpu: f64,
}

impl Occupancy {
    /// Adds a turn: the loop ran for `awake`, then waited for `asleep` with `waiting` chunks at the source and at the
    /// destination. The waiting time is divided in proportion to these numbers.
    pub(crate) fn add(
        &mut self,
        awake: Duration,
        asleep: Duration,
        waiting: [usize; 2],
        blocked: Option<Blocked>,
    ) {
        self.cpu += awake.as_secs_f64();
        let asleep = asleep.as_secs_f64();
        let [source, destination] = waiting.map(|count| count as f64);
        match blocked {
            Some(Blocked::Rate) => self.rate += asleep,
            Some(Blocked::Impact) => self.impact += asleep,
            Some(Blocked::Memory) => self.memory += asleep,
            None if source + destination > 0.0 => {
                self.source += asleep * source / (source + destination);
                self.destination += asleep * destination / (source + destination);
            }
            None => self.cpu += asleep,
        }
    }

    pub(crate) fn shares(&self) -> Shares {
        let all = self.source + self.destination + self.rate + self.impact + self.memory + self.cpu;
        if all <= 0.0 {
            return Shares::default();
        }
        Shares {
            source: self.source / all,
            destination: self.destination / all,
            rate: self.rate / all,
            impact: self.impact / all,
            memory: self.memory / all,
            cpu: self.cpu / all,
        }
    }

    /// The largest share, where both devices count as one; between those, the device with 60 % or more.
    pub(crate) fn limit(&self) -> Limit {
        let devices = self.source + self.destination;
        let others = [
            (self.rate, Limit::Rate),
            (self.impact, Limit::Impact),
            (self.memory, Limit::Memory),
            (self.cpu, Limit::Cpu),
        ];
        let (largest, limit) = others
            .into_iter()
            .fold((0.0, Limit::Cpu), |best, this| if this.0 > best.0 { this } else { best });
        if largest > devices || devices <= 0.0 {
            limit
        } else if self.source >= DEVICE_SHARE * devices {
            Limit::Source
        } else if self.destination >= DEVICE_SHARE * devices {
            Limit::Destination
        } else {
            Limit::Balanced
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(rows: &[(u64, u64, [usize; 2], Option<Blocked>)]) -> Limit {
        let mut occupancy = Occupancy::default();
        for (awake, asleep, waiting, blocked) in rows {
            let (awake, asleep) = (Duration::from_millis(*awake), Duration::from_millis(*asleep));
            occupancy.add(awake, asleep, *waiting, *blocked);
        }
        let shares = occupancy.shares();
        let sum =
            shares.source + shares.destination + shares.rate + shares.impact + shares.memory + shares.cpu;
        assert!((sum - 1.0).abs() < 1e-9 || rows.is_empty());
        occupancy.limit()
    }

    #[test]
    fn the_rule() {
        assert_eq!(limit(&[(1, 99, [7, 1], None)]), Limit::Source);
        assert_eq!(limit(&[(1, 99, [1, 7], None)]), Limit::Destination);
        assert_eq!(limit(&[(1, 99, [4, 4], None)]), Limit::Balanced);
        assert_eq!(limit(&[(1, 50, [8, 0], None), (1, 48, [0, 8], None)]), Limit::Balanced);
        assert_eq!(limit(&[(60, 40, [8, 0], None)]), Limit::Cpu);
        // Both devices count together against the rest.
        assert_eq!(limit(&[(40, 30, [8, 0], None), (0, 30, [0, 8], None)]), Limit::Balanced);
        assert_eq!(limit(&[(1, 60, [0, 1], Some(Blocked::Rate)), (1, 38, [8, 0], None)]), Limit::Rate);
        assert_eq!(limit(&[(1, 60, [2, 0], Some(Blocked::Memory)), (1, 38, [8, 0], None)]), Limit::Memory);
        assert_eq!(limit(&[(1, 60, [1, 0], Some(Blocked::Impact)), (1, 38, [8, 0], None)]), Limit::Impact);
        assert_eq!(limit(&[]), Limit::Cpu);
    }
}
