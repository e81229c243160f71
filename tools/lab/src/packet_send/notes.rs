//! Steps of sends, noted by each process with the time. All clocks are CLOCK_MONOTONIC, which the processes share.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use area::Region;
use area::ring::{Mapped, Words};
use inet::step::{self, Step};
use rustix::time::{ClockId, clock_gettime};

use super::rig::memory;

/// Steps that a process notes; the last ones.
const NOTES: usize = 1 << 16;
const NOTES_BYTES: usize = (FIRST + NOTES) * 8;
/// Words: the number of notes; a [`Mode`]; two results of a trace, floats; then the notes, each a time above the four bits
/// of its step.
const COUNT: usize = 0;
const MODE: usize = 1;
const TRACED: usize = 2;
const FIRST: usize = 4;
const STEP_BITS: u32 = 4;
const _: () = assert!(Step::ALL.len() <= 1 << STEP_BITS);

pub(super) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum Mode {
    Quiet,
    Noting,
    /// The driver traces its system calls.
    Tracing,
    /// The process that notes is to end.
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Note {
    pub(super) step: Step,
    pub(super) at_ns: u64,
}

/// Notes of one process, written by it; the application reads them and sets the mode.
#[derive(Clone)]
pub(super) struct Notes(Mapped);

/// Of this process.
static OWN: OnceLock<Notes> = OnceLock::new();

impl Notes {
    pub(super) fn new() -> io::Result<Self> {
        let memory = memory(NOTES_BYTES)?;
        Ok(Self(Mapped::new(Arc::new(Region::shared(memory.as_fd(), NOTES_BYTES, true)?), 0, NOTES_BYTES)))
    }

    /// Notes the steps of this process.
    pub(super) fn take_steps(&self) {
        // A process takes the steps of one send after another; its first notes stay.
        let _ = OWN.set(self.clone());
        step::set(|step| {
            if let Some(notes) = OWN.get().filter(|notes| notes.is(Mode::Noting)) {
                notes.add(step, now_ns());
            }
        });
    }

    fn add(&self, step: Step, at_ns: u64) {
        let count = self.0.load(COUNT, Ordering::Relaxed);
        self.0.store(FIRST + count as usize % NOTES, at_ns << STEP_BITS | step as u64, Ordering::Relaxed);
        self.0.store(COUNT, count + 1, Ordering::Release);
    }

    fn mode(&self) -> u64 {
        self.0.load(MODE, Ordering::Acquire)
    }

    pub(super) fn set(&self, mode: Mode) {
        self.0.store(MODE, mode as u64, Ordering::Release);
    }

    pub(super) fn is(&self, mode: Mode) -> bool {
        self.mode() == mode as u64
    }

    pub(super) fn set_traced(&self, us: [f64; 2]) {
        for (word, us) in us.into_iter().enumerate() {
            self.0.store(TRACED + word, us.to_bits(), Ordering::Release);
        }
    }

    /// Zeroes if there was no trace.
    pub(super) fn traced(&self) -> [f64; 2] {
        [0, 1].map(|word| f64::from_bits(self.0.load(TRACED + word, Ordering::Acquire)))
    }

    /// In the order of time.
    pub(super) fn read(&self) -> Vec<Note> {
        let count = self.0.load(COUNT, Ordering::Acquire) as usize;
        (count.saturating_sub(NOTES)..count)
            .filter_map(|note| {
                let word = self.0.load(FIRST + note % NOTES, Ordering::Relaxed);
                let step = Step::ALL.get((word & ((1 << STEP_BITS) - 1)) as usize)?;
                Some(Note { step: *step, at_ns: word >> STEP_BITS })
            })
            .collect()
    }

    /// What a note takes, nanoseconds; a part between two notes is longer by this. This process takes steps.
    pub(super) fn cost_ns(&self) -> f64 {
        const TIMES: u32 = 20_000;
        self.set(Mode::Noting);
        let begin = Instant::now();
        for _ in 0..TIMES {
            step::mark(Step::ReturnTaken);
        }
        let ns = begin.elapsed().as_nanos() as f64 / f64::from(TIMES);
        self.set(Mode::Quiet);
        self.0.store(COUNT, 0, Ordering::Release);
        ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_keep_step_and_time_and_only_the_last_ones() {
        assert!(Step::ALL.iter().enumerate().all(|(number, step)| *step as usize == number));
        let notes = Notes::new().unwrap();
        for turn in 0..NOTES as u64 + 3 {
            notes.add(Step::ALL[turn as usize % 14], 1_000_000_000_000 + turn);
        }
        let read = notes.read();
        assert_eq!(read.len(), NOTES);
        assert_eq!(read[0], Note { step: Step::ALL[3], at_ns: 1_000_000_000_003 });
        notes.set(Mode::Over);
        assert!(notes.is(Mode::Over));
        notes.set_traced([1.5, 2.5]);
        assert_eq!((notes.traced(), notes.read()[0]), ([1.5, 2.5], read[0]));
    }
}
