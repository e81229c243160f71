//! `watch --tune`: larger send buffers for connections that they limit, until the end.

use std::collections::HashSet;
use std::time::Duration;

use monitor::probe::tune::{self, Restored, TuneError, Tuned, in_flight_possible, wanted_bytes};
use monitor::probe::{Figures, Session};
use monitor::{Cause, Sample};

use super::engine::{Engine, figures};
use super::words;
use crate::context::Context;
use crate::units;

/// Time of observation before anything is changed.
const LOOK_S: f64 = 2.0;
/// Between two looks.
const LOOK_EACH: Duration = Duration::from_millis(200);
/// Part of the buffer that the queue of a sender takes if the buffer stops it: data of a full queue counts less than its
/// cap, by the kernel's overhead (measured: 0.67 to 0.85).
const FULL_SHARE: f64 = 0.6;
/// Windows that are this much larger than what is in flight do not stop the sender.
const OPEN: f64 = 1.1;
/// Unsent data beyond this part of what is in flight waits for a window, not for the buffer.
const UNSENT_SHARE: f64 = 0.25;
/// A buffer limits if it is full in this share of the samples.
const FULL_SAMPLES: f64 = 0.5;

pub(super) struct Tuning {
    keep: bool,
    done: Vec<Done>,
    /// Next look at the connections.
    look_next: Duration,
    /// Connections that were tuned or refused.
    tried: HashSet<u32>,
    /// What was done, for the views.
    pub(super) messages: Vec<String>,
}

struct Done {
    name: String,
    enlarged: Enlarged,
}

/// A socket with a larger buffer.
enum Enlarged {
    /// By a descriptor of its process.
    Held(Tuned),
    /// No process holds it: from within the kernel.
    #[cfg(feature = "bpf")]
    Unheld(monitor::probe::bpf::Enlarged),
}

impl Enlarged {
    /// `None`: it has `wanted` bytes already.
    fn enlarge(session: &Session, wanted: u64) -> Result<Option<Self>, TuneError> {
        match &session.owner {
            Some(owner) => Ok(Tuned::enlarge(owner, &session.ends, wanted)?.map(Self::Held)),
            #[cfg(feature = "bpf")]
            None => Ok(monitor::probe::bpf::Enlarged::enlarge(session.cookie(), wanted)?.map(Self::Unheld)),
            #[cfg(not(feature = "bpf"))]
            None => Err(TuneError::NoOwner),
        }
    }

    /// Bytes before and after.
    fn bytes(&self) -> (u64, u64) {
        match self {
            Self::Held(tuned) => (tuned.before_bytes, tuned.after_bytes),
            #[cfg(feature = "bpf")]
            Self::Unheld(enlarged) => (enlarged.before_bytes, enlarged.after_bytes),
        }
    }

    fn restore(self) -> Result<Restored, TuneError> {
        match self {
            Self::Held(tuned) => Ok(tuned.restore()?),
            #[cfg(feature = "bpf")]
            Self::Unheld(enlarged) => Ok(Restored { bytes: enlarged.restore()?, stays_fixed: true }),
        }
    }
}

impl Tuning {
    pub(super) fn new(keep: bool) -> Self {
        Self {
            keep,
            done: Vec::new(),
            look_next: Duration::ZERO,
            tried: HashSet::new(),
            messages: Vec::new(),
        }
    }

    /// Tunes the connections that have been observed long enough and whose send buffer limits them.
    pub(super) fn step(&mut self, context: &Context, engine: &Engine) {
        let elapsed = engine.elapsed();
        if elapsed < self.look_next {
            return;
        }
        self.look_next = elapsed + LOOK_EACH;
        for session in engine.sessions.all() {
            if !session.ended && !self.tried.contains(&session.id) && limits(engine, session) {
                self.tried.insert(session.id);
                let message = self.tune(engine, session);
                context.remark(&message);
                self.messages.push(message);
            }
        }
    }

    fn tune(&mut self, engine: &Engine, session: &Session) -> String {
        let name = words::name(session);
        let wanted = wanted(engine, session);
        match Enlarged::enlarge(session, wanted) {
            Ok(Some(enlarged)) => {
                let rate = figures(session).and_then(|figures| figures.sent_bytes_per_s);
                let (before, after) = enlarged.bytes();
                let message = format!(
                    "{name}: send buffer {} -> {}, at {} before",
                    units::bytes(before),
                    units::bytes(after),
                    words::rate(rate),
                );
                self.done.push(Done { name, enlarged });
                message
            }
            Ok(None) => format!("{name}: the send buffer has {} already", units::bytes(wanted)),
            Err(error) => {
                let target = session.kernel.as_ref().map(|kernel| &*kernel.target);
                let typed = tune::lines(wanted, target);
                let typed: Vec<String> =
                    typed.into_iter().map(|(system, line)| format!("\n  {system}: {line}")).collect();
                format!("{name}: {error}; for later connections type:{}", typed.concat())
            }
        }
    }

    /// Restores what was changed, and prints what cannot be.
    pub(super) fn end(self, context: &Context) {
        for Done { name, enlarged } in self.done {
            if self.keep {
                context.remark(&format!(
                    "{name}: the send buffer stays at {}",
                    units::bytes(enlarged.bytes().1)
                ));
                continue;
            }
            match enlarged.restore() {
                Ok(restored) => {
                    let fixed = "; the kernel does not size it itself any more while the connection lasts";
                    context.remark(&format!(
                        "{name}: send buffer {} again{}",
                        units::bytes(restored.bytes),
                        if restored.stays_fixed { fixed } else { "" },
                    ));
                }
                Err(error) => context.warn(&format!("{name}: the send buffer is not restored: {error}")),
            }
        }
    }
}

/// Whether the send buffer limits the connection: by its verdict, or by its samples where there is none.
fn limits(engine: &Engine, session: &Session) -> bool {
    let Some(kept) = engine.kept(session) else { return false };
    let times = kept.points.front().zip(kept.points.back());
    if times.is_none_or(|(first, last)| last.0 - first.0 < LOOK_S) {
        return false;
    }
    if let Some(verdict) = &kept.verdict
        && verdict.limit != Cause::Unknown
    {
        return verdict.limit == Cause::SendBuffer || verdict.also == Some(Cause::SendBuffer);
    }
    let samples = session.samples();
    let full = samples.iter().filter(|sample| is_full(sample));
    full.count() as f64 >= FULL_SAMPLES * samples.len() as f64
}

/// The queue has reached its cap, nearly all of it is in flight, and neither window would stop more.
fn is_full(sample: &Sample) -> bool {
    let figures = Figures::of(sample, sample);
    let known = (figures.queue_bytes, figures.buffer_bytes, figures.waiting_ack_bytes, figures.unsent_bytes);
    let (Some(queue), Some(buffer), Some(in_flight), Some(unsent)) = known else { return false };
    let is_open = |window: Option<u64>| window.is_none_or(|window| window as f64 > OPEN * in_flight as f64);
    queue as f64 >= FULL_SHARE * buffer as f64
        && unsent as f64 <= UNSENT_SHARE * in_flight as f64
        && is_open(figures.congestion_window_bytes)
        && is_open(figures.peer_window_bytes)
}

/// The buffer for what the path may hold: the rate that is expected without the limit, or what windows permit.
fn wanted(engine: &Engine, session: &Session) -> u64 {
    let Some(sample) = &session.latest() else { return 0 };
    let verdict = engine.kept(session).and_then(|kept| kept.verdict.as_ref());
    let expected = verdict.and_then(|verdict| verdict.expected_bytes_per_s).zip(sample.min_rtt_us);
    let expected = expected.map_or(0, |(rate, rtt)| (rate * f64::from(rtt) / 1e6) as u64);
    wanted_bytes(expected.max(in_flight_possible(sample).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_buffer_is_told_from_a_full_window() {
        // The measured case of a 4 MiB buffer at 100 ms, and what differs from it.
        let full = Sample {
            mss_bytes: Some(1448),
            cwnd_segments: Some(5441),
            unacked_segments: Some(2445),
            notsent_bytes: Some(0),
            peer_window_bytes: Some(18_800_000),
            send_queue_bytes: Some(3_600_000),
            send_buffer_bytes: Some(4_194_304),
            ..Sample::default()
        };
        assert!(is_full(&full));
        for (what, sample) in [
            ("queue", Sample { send_queue_bytes: Some(1_000_000), ..full.clone() }),
            ("cwnd", Sample { cwnd_segments: Some(2445), ..full.clone() }),
            ("window", Sample { peer_window_bytes: Some(3_600_000), ..full.clone() }),
            ("unsent", Sample { notsent_bytes: Some(2_000_000), ..full.clone() }),
            ("unknown", Sample { notsent_bytes: None, ..full.clone() }),
        ] {
            assert!(!is_full(&sample), "{what}");
        }
        // Kernels before 5.4 do not tell the peer's window.
        assert!(is_full(&Sample { peer_window_bytes: None, ..full }));
    }
}
