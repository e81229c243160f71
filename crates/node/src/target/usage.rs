//! What commands have done: counters and service times of a session, and of a unit on one thread.
//!
//! A command's service time is from its header, received in full, to its response in the send queue. To
//! read the clock less often than twice for every command, only some are timed ([`Sampler`]), each with the number of
//! commands that it stands for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;
use scsi::SenseKey;

/// Of the commands that arrive while others are in progress, one in this many is timed.
const TIMED_ONE_IN: u64 = 8;
/// Greatest service time that is distinguished.
const MICROSECONDS_MAX: u64 = 100_000_000;

/// The classes of commands, in the order of the arrays below.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Class {
    Read,
    Write,
    #[default]
    Other,
}

impl Class {
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Other];

    pub fn name(self) -> &'static str {
        ["read", "write", "other"][self as usize]
    }
}

/// Counters of one writer, read by any thread.
#[derive(Debug, Default)]
pub(super) struct Usage {
    commands: [AtomicU64; 3],
    bytes: [AtomicU64; 3],
    errors: AtomicU64,
    refused: AtomicU64,
    /// Created by the first timed command: 3 KiB each.
    times: [Mutex<Option<Times>>; 3],
}

#[derive(Debug)]
struct Times {
    histogram: Histogram<u64>,
    sum: Duration,
}

/// The counters of a session, or of a unit on all threads, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsageStatus {
    /// Commands that got a response, by [`Class`].
    pub commands: [u64; 3],
    /// Bytes of data transferred by them.
    pub bytes: [u64; 3],
    /// Of them: MEDIUM ERROR, HARDWARE ERROR, DATA PROTECT and ABORTED COMMAND.
    pub errors: u64,
    /// Of them: BUSY and TASK SET FULL, which the initiator retries.
    pub refused: u64,
    /// Service times: upper bounds of the intervals in microseconds, ascending, and the estimated number of commands.
    pub times_us: [Vec<(u64, u64)>; 3],
    /// Estimated sum of the service times.
    pub times_sum: [Duration; 3],
}

/// The end of a command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    pub(super) class: Class,
    pub(super) bytes: u64,
    pub(super) status: scsi::Status,
    pub(super) sense_key: Option<SenseKey>,
    /// The service time, and the number of commands that it stands for.
    pub(super) time: Option<(Duration, u64)>,
}

impl Usage {
    /// Adds a command; called by one thread only.
    pub(super) fn add(&self, ended: Ended) {
        let class = ended.class as usize;
        add(&self.commands[class], 1);
        add(&self.bytes[class], ended.bytes);
        match ended.status {
            scsi::Status::CheckCondition if ended.sense_key.is_some_and(is_error) => add(&self.errors, 1),
            scsi::Status::Busy | scsi::Status::TaskSetFull => add(&self.refused, 1),
            _ => {}
        }
        if let Some((time, count)) = ended.time {
            let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX).clamp(1, MICROSECONDS_MAX);
            let mut times = lock(&self.times[class]);
            let times = times.get_or_insert_with(|| {
                let histogram = Histogram::new_with_bounds(1, MICROSECONDS_MAX, 1);
                Times { histogram: histogram.expect("bounds and digits in range"), sum: Duration::ZERO }
            });
            times.histogram.record_n(micros, count).expect("within the bounds");
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            times.sum = times.sum.saturating_add(time.saturating_mul(count));
        }
    }

    /// Adds the counters to `status`. A command that ends meanwhile may be counted in part.
    pub(super) fn add_to(&self, status: &mut UsageStatus) {
        for class in 0..3 {
            status.commands[class] += self.commands[class].load(Ordering::Relaxed);
            status.bytes[class] += self.bytes[class].load(Ordering::Relaxed);
            if let Some(times) = &*lock(&self.times[class]) {
                status.times_sum[class] = status.times_sum[class].saturating_add(times.sum);
                let recorded = times.histogram.iter_recorded();
                let recorded = recorded.map(|step| (step.value_iterated_to(), step.count_at_value()));
                merge(&mut status.times_us[class], recorded);
            }
        }
        status.errors += self.errors.load(Ordering::Relaxed);
        status.refused += self.refused.load(Ordering::Relaxed);
    }

    pub(super) fn status(&self) -> UsageStatus {
        let mut status = UsageStatus::default();
        self.add_to(&mut status);
        status
    }
}

/// Whether an operator should know of it: not the answers to questions that a unit does not support, nor unit attentions.
fn is_error(key: SenseKey) -> bool {
    use SenseKey::{AbortedCommand, DataProtect, HardwareError, MediumError};
    matches!(key, MediumError | HardwareError | DataProtect | AbortedCommand)
}

/// Counts are right after every statement: poisoning is ignored.
fn lock(times: &Mutex<Option<Times>>) -> MutexGuard<'_, Option<Times>> {
    times.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Not an atomic addition: there is one writer.
fn add(counter: &AtomicU64, value: u64) {
    counter.store(counter.load(Ordering::Relaxed) + value, Ordering::Relaxed);
}

fn merge(all: &mut Vec<(u64, u64)>, more: impl Iterator<Item = (u64, u64)>) {
    for (bound, count) in more {
        match all.binary_search_by_key(&bound, |(bound, _)| *bound) {
            Ok(at) => all[at].1 += count,
            Err(at) => all.insert(at, (bound, count)),
        }
    }
}

/// Chooses the commands that are timed: each that arrives alone, one in [`TIMED_ONE_IN`] of the others.
#[derive(Debug, Default)]
pub(super) struct Sampler {
    arrived: u64,
}

impl Sampler {
    /// For a new command. `Some`: to be timed, with the number of commands that it stands for.
    pub(super) fn arrive(&mut self, is_alone: bool) -> Option<u64> {
        if is_alone {
            return Some(1);
        }
        self.arrived += 1;
        self.arrived.is_multiple_of(TIMED_ONE_IN).then_some(TIMED_ONE_IN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(class: Class, bytes: u64, micros: u64, count: u64) -> Ended {
        let time = Some((Duration::from_micros(micros), count));
        Ended { class, bytes, status: scsi::Status::Good, sense_key: None, time }
    }

    #[test]
    fn counters_of_several_threads_add_up() {
        let (one, other) = (Usage::default(), Usage::default());
        one.add(ended(Class::Read, 4096, 10, 1));
        one.add(ended(Class::Read, 4096, 1000, 8));
        other.add(ended(Class::Read, 512, 10, 2));
        other.add(ended(Class::Write, 100, 0, 1));
        other.add(Ended { status: scsi::Status::TaskSetFull, time: None, ..ended(Class::Other, 0, 0, 0) });
        for sense_key in [SenseKey::MediumError, SenseKey::UnitAttention, SenseKey::IllegalRequest] {
            let status = scsi::Status::CheckCondition;
            let refused = ended(Class::Other, 0, 0, 0);
            other.add(Ended { status, sense_key: Some(sense_key), time: None, ..refused });
        }
        let mut status = one.status();
        other.add_to(&mut status);
        assert_eq!((status.commands, status.bytes), ([3, 1, 4], [8704, 100, 0]));
        assert_eq!((status.errors, status.refused), (1, 1));
        assert_eq!(status.times_sum[0], Duration::from_micros(10 + 8 * 1000 + 2 * 10));
        let [reads, writes, others] = status.times_us;
        assert_eq!(reads[0], (10, 3));
        assert!((1000..1064).contains(&reads[1].0) && reads[1].1 == 8, "{reads:?}");
        assert_eq!((writes, others), (vec![(1, 1)], vec![]));
    }

    #[test]
    fn times_without_end_are_bounded() {
        let usage = Usage::default();
        usage.add(ended(Class::Write, 0, u64::MAX / 2, 1));
        let bound = usage.status().times_us[1][0].0;
        assert!((MICROSECONDS_MAX..2 * MICROSECONDS_MAX).contains(&bound), "{bound}");
    }

    #[test]
    fn a_sample_stands_for_all_commands() {
        let mut sampler = Sampler::default();
        let timed: u64 = (0..800).filter_map(|_| sampler.arrive(false)).sum();
        let alone: u64 = (0..10).filter_map(|_| sampler.arrive(true)).sum();
        assert_eq!((timed, alone), (800, 10));
    }

    #[test]
    #[ignore = "prints a measurement: cargo test --release -p hikyaku-node --lib cost_of_counters -- --ignored --nocapture"]
    fn cost_of_counters() {
        const COMMANDS: u32 = 1_000_000;
        for (name, is_alone) in [("commands that overlap", false), ("commands alone", true)] {
            let (unit, session, mut sampler) = (Usage::default(), Usage::default(), Sampler::default());
            let started = std::time::Instant::now();
            for _ in 0..COMMANDS {
                let timed = sampler.arrive(is_alone).map(|count| (std::time::Instant::now(), count));
                let time = timed.map(|(from, count)| (from.elapsed(), count));
                let ended = Ended { time, ..ended(Class::Read, 4096, 0, 0) };
                unit.add(std::hint::black_box(ended));
                session.add(std::hint::black_box(ended));
            }
            let each = started.elapsed() / COMMANDS;
            println!("{name}: {each:?} of CPU for counters and clock, each");
            assert_eq!(unit.status().commands[0], u64::from(COMMANDS));
        }
    }
}
