//! Samples the connections at their times, and keeps what the views show. One thread: a view calls [`Engine::step`] and
//! sleeps no longer than [`Engine::pause`].

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use monitor::Verdict;
use monitor::probe::{Figures, Live, Session, Sessions, judge_samples, now_ns};
use monitor::record::{Flow, RecordError, Writer};

use super::events::Precise;
use super::own::{self, Own};
use crate::error::Failure;

/// Between two searches for new connections.
const REFRESH_NS: u64 = 1_000_000_000;
/// Between two points of a chart, and how many are kept: two minutes.
const POINT_NS: u64 = 200_000_000;
const POINTS_MAX: usize = 600;
/// Rates are of this time.
const RATE_NS: u64 = 1_000_000_000;

/// Verdicts are of this time; those at the end of the command, and of a connection that ends before its first one, of at
/// least [`PERIOD_LEAST`].
pub(super) const PERIOD: Duration = Duration::from_secs(4);
pub(super) const PERIOD_LEAST: Duration = Duration::from_secs(1);

/// A file that samples are appended to.
struct Recorder {
    path: PathBuf,
    writer: Writer<File>,
}

impl Recorder {
    fn failed(&self, error: &RecordError) -> Failure {
        Failure::failed("record into", self.path.display().to_string(), error)
    }
}

/// What is kept of a connection beside its samples.
#[derive(Default)]
pub(super) struct Kept {
    /// Seconds since the start, and the figures then.
    pub(super) points: VecDeque<(f64, Figures)>,
    pub(super) verdict: Option<Verdict>,
    /// The copy of this program that keeps to a rate, which is what limits it.
    pub(super) own: Option<Own>,
    point_next_ns: u64,
}

pub(super) struct Engine {
    pub(super) sessions: Sessions,
    kept: HashMap<u32, Kept>,
    recorder: Option<Recorder>,
    interval_ns: u64,
    pub(super) started_ns: u64,
    sample_next_ns: u64,
    refresh_next_ns: u64,
    seen_any: bool,
    /// Whether [`Kept::points`] are wanted.
    keeps_points: bool,
    /// Connections that had ended without a verdict at the last sample.
    ended_unjudged: usize,
    packets: Packets,
    pub(super) precise: Precise,
    /// Start of the period that the next verdicts are of; `None` before the first connection.
    period_ns: Option<u64>,
    /// Whether the last verdicts are made.
    pub(super) is_concluded: bool,
    /// Whether send buffers are enlarged: then nothing is to be typed for that.
    pub(super) is_tuning: bool,
}

/// Whether the packets of the connections are seen.
pub(super) enum Packets {
    Off,
    /// Not permitted, or not possible.
    Unseen(std::io::Error),
    Seen(Box<Live>),
}

impl Engine {
    pub(super) fn new(
        mut sessions: Sessions,
        interval: Duration,
        sees_packets: bool,
        wants_events: bool,
    ) -> Self {
        let started_ns = now_ns();
        let packets = match sessions.take_packets().filter(|_| sees_packets) {
            None => Packets::Off,
            Some(Err(error)) => Packets::Unseen(error),
            Some(Ok(prober)) => Packets::Seen(Box::new(Live::new(prober))),
        };
        Self {
            sessions,
            kept: HashMap::new(),
            recorder: None,
            interval_ns: u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX).max(1),
            started_ns,
            sample_next_ns: started_ns,
            refresh_next_ns: started_ns,
            seen_any: false,
            keeps_points: false,
            ended_unjudged: 0,
            packets,
            precise: Precise::new(wants_events),
            period_ns: None,
            is_concluded: false,
            is_tuning: false,
        }
    }

    pub(super) fn record(&mut self, path: &Path) -> Result<(), Failure> {
        let writer = Writer::append(path).map_err(|error| {
            let failure = Failure::failed("record into", path.display().to_string(), &error);
            match error {
                RecordError::Foreign => {
                    failure.hint("name a file that does not exist, or an earlier recording")
                }
                _ => failure,
            }
        })?;
        self.recorder = Some(Recorder { path: path.to_owned(), writer });
        Ok(())
    }

    /// Keeps figures of the last minutes for charts and for [`Tuning`](super::tune::Tuning).
    pub(super) fn keep_points(&mut self) {
        self.keeps_points = true;
    }

    pub(super) fn has_seen_any(&self) -> bool {
        self.seen_any
    }

    /// Why the packets are not seen, if that was wanted.
    pub(super) fn unseen(&self) -> Option<&std::io::Error> {
        match &self.packets {
            Packets::Unseen(error) => Some(error),
            _ => None,
        }
    }

    /// Time since the start.
    pub(super) fn elapsed(&self) -> Duration {
        Duration::from_nanos(now_ns().saturating_sub(self.started_ns))
    }

    /// How long nothing is to do.
    pub(super) fn pause(&self) -> Duration {
        let is_watching = self.sessions.all().iter().any(|session| !session.ended);
        let next = if is_watching { self.sample_next_ns } else { self.refresh_next_ns };
        Duration::from_nanos(next.saturating_sub(now_ns()))
    }

    /// Whether what is to happen at a moment happens with the present sample, so that nothing wakes up in between.
    pub(super) fn is_due(&self, at_ns: u64) -> bool {
        now_ns().saturating_add(self.interval_ns / 2) >= at_ns
    }

    /// Does what is due.
    pub(super) fn step(&mut self) -> Result<(), Failure> {
        let failed = |error: std::io::Error| Failure::failed("ask for", "the kernel's sockets", error);
        let now = now_ns();
        if self.is_due(self.refresh_next_ns) {
            self.sessions.refresh(now).map_err(failed)?;
            self.precise.watch(self.sessions.all());
            self.record_slow(now)?;
            self.refresh_next_ns = self.refresh_next_ns.saturating_add(REFRESH_NS).max(now);
        }
        if let (Packets::Seen(live), Some(_)) = (&mut self.packets, self.period_ns) {
            live.read().map_err(failed)?;
        }
        self.read_events()?;
        if now >= self.sample_next_ns {
            let mut written = Ok(());
            let (recorder, kept) = (&mut self.recorder, &mut self.kept);
            let (started_ns, keeps_points) = (self.started_ns, self.keeps_points);
            let seen_any = &mut self.seen_any;
            let sampled = self.sessions.sample(|session, at_ns| {
                *seen_any = true;
                if let (Some(recorder), Ok(())) = (&mut *recorder, &written)
                    && let Some(sample) = session.latest()
                {
                    written = recorder.writer.sample(session.id, &flow(session), &sample);
                }
                if keeps_points {
                    kept.entry(session.id).or_default().add(session, at_ns, started_ns);
                }
            });
            sampled.map_err(failed)?;
            let ended = self.unjudged_ends();
            let has_ended = ended > std::mem::replace(&mut self.ended_unjudged, ended);
            if let (Some(recorder), Err(error)) = (&self.recorder, written) {
                return Err(recorder.failed(&error));
            }
            self.judge(now, if has_ended { PERIOD_LEAST } else { PERIOD }).map_err(failed)?;
            // After a stop of the machine the missed samples are not made up for.
            self.sample_next_ns = self.sample_next_ns.saturating_add(self.interval_ns).max(now);
        }
        Ok(())
    }

    /// Connections that ended before their first verdict.
    fn unjudged_ends(&self) -> usize {
        let ended = self.sessions.all().iter().filter(|session| session.ended);
        ended.filter(|session| !self.has_verdict(session)).count()
    }

    fn has_verdict(&self, session: &Session) -> bool {
        self.kept(session).is_some_and(|kept| kept.verdict.is_some())
    }

    /// Counts the events since the last step, and records the state of sockets at each.
    fn read_events(&mut self) -> Result<(), Failure> {
        let (recorder, mut written) = (&mut self.recorder, Ok(()));
        self.precise.read(self.sessions.all(), |session, sample| {
            if let (Some(recorder), Ok(())) = (&mut *recorder, &written) {
                written = recorder.writer.sample(session.id, &flow(session), sample);
            }
        });
        match (&self.recorder, written) {
            (Some(recorder), Err(error)) => Err(recorder.failed(&error)),
            _ => Ok(()),
        }
    }

    /// At the end of a period: a verdict for each connection, of its packets and samples, or of samples alone where no
    /// packet with data was seen; the next period begins. Nothing happens before the period has lasted `least`.
    fn judge(&mut self, now: u64, least: Duration) -> std::io::Result<()> {
        let sessions = self.sessions.all();
        let Some(began) = self.period_ns else {
            if sessions.iter().any(Session::is_sampled) {
                if let Packets::Seen(live) = &mut self.packets {
                    live.begin(sessions)?;
                }
                self.period_ns = Some(now);
            }
            return Ok(());
        };
        if Duration::from_nanos(now.saturating_sub(began)) < least {
            return Ok(());
        }
        let mut verdicts: HashMap<usize, Verdict> = HashMap::new();
        if let Packets::Seen(live) = &mut self.packets {
            live.read()?;
            verdicts.extend(live.judge(sessions)?);
        }
        let own_rates = own::rates(sessions);
        for (place, session) in sessions.iter().enumerate() {
            // One that has ended keeps its last verdict.
            if session.ended && (self.has_verdict(session) || session.sampled_for() < PERIOD_LEAST) {
                continue;
            }
            if let Some(mut verdict) = verdicts.remove(&place).or_else(|| judge_samples(session, sessions)) {
                let own = Own::find(&own_rates, session, sessions);
                own.inspect(|own| own.amend(&mut verdict));
                let kept = self.kept.entry(session.id).or_default();
                (kept.verdict, kept.own) = (Some(verdict), own);
            }
        }
        self.period_ns = Some(now);
        Ok(())
    }

    /// Records processor use, and writes what was recorded in the last second.
    fn record_slow(&mut self, now: u64) -> Result<(), Failure> {
        let Some(recorder) = &mut self.recorder else { return Ok(()) };
        let mut write = || {
            for session in self.sessions.all().iter().filter(|session| !session.ended) {
                if let Some(cpu) = &session.cpu {
                    recorder.writer.cpu(session.id, &flow(session), now, cpu)?;
                }
            }
            recorder.writer.flush()
        };
        write().map_err(|error| recorder.failed(&error))
    }

    /// Judges what there is, where there is no verdict yet: called once, at the end.
    pub(super) fn conclude(&mut self) {
        let is_missing = |session: &Session| {
            self.kept.get(&session.id).is_none_or(|kept| kept.verdict.is_none()) && !session.ended
        };
        if self.sessions.all().iter().any(is_missing) {
            // Without it the view says that there is none.
            let _ = self.judge(now_ns(), PERIOD_LEAST);
        }
        self.is_concluded = true;
    }

    /// Writes the rest of the recording.
    pub(super) fn finish(&mut self) -> Result<(), Failure> {
        let Some(recorder) = &mut self.recorder else { return Ok(()) };
        recorder.writer.flush().map_err(|error| recorder.failed(&error))
    }

    pub(super) fn kept(&self, session: &Session) -> Option<&Kept> {
        self.kept.get(&session.id)
    }

    /// Forgets connections that have ended.
    pub(super) fn forget_ended(&mut self) {
        if self.sessions.all().iter().any(|session| session.ended) {
            self.sessions.forget_ended();
            let live: HashSet<u32> = self.sessions.all().iter().map(|session| session.id).collect();
            self.kept.retain(|id, _| live.contains(id));
        }
    }
}

impl Kept {
    fn add(&mut self, session: &Session, at_ns: u64, started_ns: u64) {
        if at_ns < self.point_next_ns {
            return;
        }
        self.point_next_ns = at_ns.saturating_add(POINT_NS);
        let Some(figures) = figures_over(session, POINT_NS) else { return };
        if self.points.len() == POINTS_MAX {
            self.points.pop_front();
        }
        let seconds = at_ns.saturating_sub(started_ns) as f64 / 1e9;
        self.points.push_back((seconds, figures));
    }
}

/// The present figures, with rates of the last second; `None` before the second sample.
pub(super) fn figures(session: &Session) -> Option<Figures> {
    figures_over(session, RATE_NS)
}

fn figures_over(session: &Session, period_ns: u64) -> Option<Figures> {
    Some(Figures::of(&session.before(period_ns)?, &session.latest()?))
}

fn flow(session: &Session) -> Flow {
    Flow {
        local: session.ends.local,
        remote: session.ends.remote,
        side: session.side,
        congestion: session.congestion.clone().unwrap_or_default(),
        process: session.owner.as_ref().map_or_else(String::new, |owner| owner.name.clone()),
        target: session.kernel.as_ref().map_or_else(String::new, |kernel| kernel.target.clone()),
    }
}
