//! The disks that a copy shares with other programs: counts its own reads, submits probes, and sets the timer of the
//! [`Regulator`].

use std::time::Duration;

use area::Span;
use block::RequestId;
use io::{Io, Token};

use crate::error::End;
use crate::impact::{Disk, Impact, Yielded};
use crate::regulator::{Regulator, SAMPLE_EVERY, Window};

/// Id of a probe's request; no slot has this number.
pub(crate) const PROBE_ID: RequestId = RequestId::MAX - 1;
/// Bytes of a probe, or the granularity of its endpoint.
pub(crate) const PROBE_BYTES: u32 = 4096;

/// The part of a copy that follows its [`Impact`]. The engine calls [`Sharing::attend`] before each turn and submits
/// the probe that it asks for.
#[derive(Debug)]
pub(crate) struct Sharing {
    mode: Mode,
    token: Token,
    /// The time of the earliest timer that has not fired.
    timer_at: Option<Duration>,
}

#[derive(Debug)]
enum Mode {
    Full,
    Least { window: Window, rest_until: Duration, rested: Duration },
    Auto(Box<Auto>),
}

#[derive(Debug)]
struct Auto {
    disks: Vec<Disk>,
    regulator: Regulator,
    /// Reads of each disk when the copy began.
    before: Vec<u64>,
    /// Reads of the copy that have ended, by end, probes included.
    own: [u64; 2],
    sample_at: Duration,
    /// Index of the disk with most reads of others, and those of each disk at that time.
    busiest: usize,
    foreign: Vec<i64>,
    probe: Option<Probe>,
    random: u64,
}

#[derive(Debug)]
struct Probe {
    end: End,
    /// Clock at its submission.
    since: Duration,
    /// Kept until the request has ended.
    _span: Span,
}

impl Sharing {
    /// `chunk` and `unit` are those of the checked plan; `token` is for the event of the timer.
    pub(crate) fn new(impact: &Impact, chunk: u32, unit: u32, now: Duration, token: Token) -> Self {
        let mode = match impact {
            Impact::Full => Mode::Full,
            Impact::Least => Mode::Least {
                window: Window::least(chunk, unit),
                rest_until: Duration::ZERO,
                rested: Duration::ZERO,
            },
            Impact::Auto(disks) => match disks.iter().map(|disk| disk.counter.reads()).collect() {
                Some(before) if !disks.is_empty() => Mode::Auto(Box::new(Auto {
                    disks: disks.clone(),
                    regulator: Regulator::new(chunk, unit, now),
                    foreign: vec![0; disks.len()],
                    before,
                    own: [0; 2],
                    sample_at: now + SAMPLE_EVERY,
                    busiest: 0,
                    probe: None,
                    random: 1,
                })),
                _ => Mode::Full,
            },
        };
        Self { mode, token, timer_at: None }
    }

    /// What may be in flight; `None`: no bound.
    pub(crate) fn window(&self) -> Option<Window> {
        match &self.mode {
            Mode::Full => None,
            Mode::Least { window, .. } => Some(*window),
            Mode::Auto(auto) => auto.regulator.window(),
        }
    }

    /// No run may begin. [`Sharing::attend`] sets the timer that ends this.
    pub(crate) fn is_stopped(&self, now: Duration) -> bool {
        match &self.mode {
            Mode::Full => false,
            Mode::Least { rest_until, .. } => now < *rest_until,
            Mode::Auto(auto) => auto.regulator.is_stopped(),
        }
    }

    pub(crate) fn is_probing(&self) -> bool {
        matches!(&self.mode, Mode::Auto(auto) if auto.probe.is_some())
    }

    /// A read of the copy has ended.
    pub(crate) fn on_read(&mut self, end: End) {
        if let Mode::Auto(auto) = &mut self.mode {
            auto.own[end.index()] += 1;
        }
    }

    /// A run that began at `since` is finished.
    pub(crate) fn on_finished(&mut self, since: Duration, now: Duration) {
        if let Mode::Least { rest_until, rested, .. } = &mut self.mode {
            let rest = now.saturating_sub(since);
            *rest_until = now + rest;
            *rested += rest;
        }
    }

    /// Called before a turn: `reads` of the copy are in flight at each end, `is_quiet` if nothing of it is, and `natural`
    /// chunks would be without a bound. Sets the timer, and returns the end at which a probe is due.
    pub(crate) fn attend(
        &mut self,
        io: &mut Io,
        now: Duration,
        reads: [u64; 2],
        is_quiet: bool,
        natural: usize,
    ) -> Option<End> {
        let (wake, due) = match &mut self.mode {
            Mode::Full => return None,
            Mode::Least { rest_until, .. } => (Some(*rest_until), None),
            Mode::Auto(auto) => {
                auto.advance(now, reads, is_quiet, natural);
                let (probe_at, regulator) = (auto.regulator.probe_at(), &auto.regulator);
                let is_due = probe_at.is_some_and(|at| at <= now) && auto.probe.is_none();
                (
                    regulator.learned_at().into_iter().chain(probe_at.filter(|at| now < *at)).min(),
                    is_due.then(|| auto.probe_end()),
                )
            }
        };
        // Timers cannot be cancelled: a further one only if it is earlier.
        if let Some(at) = wake.filter(|at| now < *at && self.timer_at.is_none_or(|set| *at < set)) {
            io.timer(self.token, at);
            self.timer_at = Some(at);
        }
        due
    }

    pub(crate) fn on_timer(&mut self) {
        self.timer_at = None;
    }

    /// A random number for the place of a probe.
    pub(crate) fn random(&mut self) -> u64 {
        let Mode::Auto(auto) = &mut self.mode else { return 0 };
        // Weyl sequence with the golden ratio: places spread evenly.
        auto.random = auto.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        auto.random ^ auto.random >> 31
    }

    /// The probe is submitted now, by the clock.
    pub(crate) fn probing(&mut self, end: End, span: Span, since: Duration) {
        if let Mode::Auto(auto) = &mut self.mode {
            auto.probe = Some(Probe { end, since, _span: span });
        }
    }

    /// No probe could be submitted.
    pub(crate) fn no_probe(&mut self, now: Duration) {
        if let Mode::Auto(auto) = &mut self.mode {
            auto.regulator.probed(now, None);
        }
    }

    /// The probe has ended, at some moment of the time `unseen` before `now`.
    pub(crate) fn on_probe(&mut self, now: Duration, is_ok: bool, unseen: Duration) {
        let Mode::Auto(auto) = &mut self.mode else { return };
        let Some(probe) = auto.probe.take() else { return };
        auto.own[probe.end.index()] += 1;
        // The middle of that time: on average it is right.
        let latency = now.saturating_sub(probe.since).saturating_sub(unseen / 2);
        auto.regulator.probed(now, is_ok.then_some(latency));
    }

    /// What the copy left to others, if it did.
    pub(crate) fn yielded(&self) -> Option<Yielded> {
        match &self.mode {
            Mode::Full => None,
            Mode::Least { rested, .. } => {
                Some(Yielded { seconds: rested.as_secs_f64(), ..Yielded::default() })
            }
            Mode::Auto(auto) => {
                let figures = auto.regulator.figures;
                (figures.idle_us > 0.0).then(|| Yielded {
                    disk: auto.disks[auto.busiest].counter.name().to_owned(),
                    seconds: figures.bounded.as_secs_f64(),
                    reads: figures.reads,
                    idle_us: figures.idle_us,
                    beside_us: figures.beside_us,
                })
            }
        }
    }
}

impl Auto {
    fn advance(&mut self, now: Duration, reads: [u64; 2], is_quiet: bool, natural: usize) {
        let drained = self.regulator.is_draining() && is_quiet;
        let learned = self.regulator.learned_at().is_some_and(|at| at <= now) && self.probe.is_none();
        if !drained && !learned && now < self.sample_at {
            return;
        }
        // Without a disk there is nothing to share: its endpoint reports what is wrong.
        let Some(foreign) = self.count() else { return };
        if drained {
            self.regulator.drained(now, foreign);
        } else if learned {
            self.regulator.learned(now, foreign);
        }
        if now >= self.sample_at {
            self.sample_at = now + SAMPLE_EVERY;
            let in_flight = self.disks.iter().map(|disk| at(disk, reads)).sum();
            self.regulator.sample(now, foreign, in_flight, natural);
        }
    }

    /// Reads of others in all since the copy began.
    fn count(&mut self) -> Option<i64> {
        let mut most = 0;
        let counts: Option<Vec<i64>> = self
            .disks
            .iter()
            .zip(&self.before)
            .map(|(disk, before)| {
                Some(disk.counter.reads()?.wrapping_sub(*before) as i64 - at(disk, self.own) as i64)
            })
            .collect();
        let counts = counts?;
        for (index, (count, before)) in counts.iter().zip(&self.foreign).enumerate() {
            if count - before > most {
                (most, self.busiest) = (count - before, index);
            }
        }
        let sum = counts.iter().sum();
        self.foreign = counts;
        Some(sum)
    }

    fn probe_end(&self) -> End {
        if self.disks[self.busiest].ends[End::Source.index()] { End::Source } else { End::Destination }
    }
}

/// The part of a number for each end that concerns a disk.
fn at(disk: &Disk, ends: [u64; 2]) -> u64 {
    disk.ends.iter().zip(ends).filter(|(is_there, _)| **is_there).map(|(_, count)| count).sum()
}
