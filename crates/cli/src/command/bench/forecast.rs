//! What `copy` would take over the path to a remote end.
//!
//! ```text
//! time(bytes) = set-up + round trips + ramp + bytes / rate
//! ```
//!
//! The copy engine itself moves data over a connection of its own until its rate is steady, from the endpoint to nothing
//! or, where writing is permitted, from a pattern to it. So the rate has in it whatever limits a copy there: the path,
//! buffers, rounds of R2Ts, the target, this processor. *Ramp* is the time that was lost until the rate was steady: slow
//! start, and the search of the depth. Storage at the other end of a copy that is slower than the path is not in it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use block::{Endpoint, Medium, OpenOptions, Spec};
use io::{Io, Tap};
use job::EndPath;
use mover::{Control, CopyError, Phase, Plan, Progress};
use serde_json::{Value, json};

use crate::context::Context;
use crate::endpoint::{self, Named};
use crate::error::Failure;
use crate::units;

/// Most time of the measurement.
const TIME_MAX: Duration = Duration::from_secs(15);
/// Least length of it over a distance: a congestion control that lost packets in slow start takes seconds to recover.
const FAR_TIME_MIN: Duration = Duration::from_secs(5);
const FAR: Duration = Duration::from_millis(1);
/// Least length of it in round trips: a session with too small a buffer is steady, too, until further ones are tried, which
/// has taken up to 80.
const ROUND_TRIPS_MIN: u32 = 80;
/// Two successive periods with rates that differ by less than this part are steady.
const STEADY: f64 = 0.03;
/// Length of such a period: this time and this many round trips at least.
const PERIOD_MIN: Duration = Duration::from_millis(600);
const PERIOD_ROUND_TRIPS: u32 = 6;
/// The range is a multiple of this, as of every block size.
const GRAIN_BYTES: u64 = 4096;
/// Round trips of a copy besides set-up and data: its logout, to a destination also the look for known signatures and
/// the flush.
const ROUND_TRIPS_READ: u32 = 1;
const ROUND_TRIPS_WRITE: u32 = 3;

/// Bytes that were moved, over time.
#[derive(Debug, Default)]
struct Curve(Vec<(f64, u64)>);

impl Curve {
    fn push(&mut self, seconds: f64, bytes: u64) {
        self.0.push((seconds, bytes));
    }

    fn last(&self) -> (f64, u64) {
        self.0.last().copied().unwrap_or_default()
    }

    /// Bytes that were moved by `at`, between two points on the line between them.
    fn bytes_at(&self, at: f64) -> f64 {
        let after = self.0.partition_point(|(seconds, _)| *seconds < at);
        let (t0, b0) = after.checked_sub(1).map_or((0.0, 0), |before| self.0[before]);
        let Some((t1, b1)) = self.0.get(after) else { return b0 as f64 };
        if *t1 > t0 { b0 as f64 + (b1 - b0) as f64 * (at - t0) / (t1 - t0) } else { *b1 as f64 }
    }

    /// Bytes per second from `from` to `to`.
    fn rate(&self, from: f64, to: f64) -> f64 {
        if to > from { (self.bytes_at(to) - self.bytes_at(from)) / (to - from) } else { 0.0 }
    }

    /// Whether the rate of the last `period` is that of the period before. Nothing at all is a pause: requests that wait for
    /// each other's data end together.
    fn is_steady(&self, period: f64) -> bool {
        let (end, _) = self.last();
        if end < 2.0 * period {
            return false;
        }
        let (late, early) = (self.rate(end - period, end), self.rate(end - 2.0 * period, end - period));
        late > 0.0 && (late - early).abs() <= STEADY * late
    }

    /// The rate of the last two periods, of the last half if it is not steady, and the time that was lost before it was
    /// reached.
    fn rate_and_ramp(&self, period: f64) -> (f64, f64) {
        let (end, bytes) = self.last();
        let from = if self.is_steady(period) { end - 2.0 * period } else { end / 2.0 };
        let rate = match self.rate(from, end) {
            0.0 => self.rate(0.0, end),
            rate => rate,
        };
        let ramp = if rate > 0.0 { (end - bytes as f64 / rate).max(0.0) } else { 0.0 };
        (rate, ramp)
    }

    /// Seconds in which the first `bytes` were moved; `None` if not so many were.
    fn time_of(&self, bytes: u64) -> Option<f64> {
        let after = self.0.partition_point(|(_, moved)| *moved < bytes);
        let (t1, b1) = *self.0.get(after)?;
        let (t0, b0) = after.checked_sub(1).map_or((0.0, 0), |before| self.0[before]);
        Some(t0 + (t1 - t0) * (bytes - b0) as f64 / (b1 - b0).max(1) as f64)
    }
}

/// What is measured: the endpoint, whether it may be written, and of how many bytes the copy is predicted.
pub(super) struct Question<'a> {
    pub(super) named: &'a Named,
    pub(super) medium: &'a Arc<dyn Medium>,
    pub(super) write: bool,
    pub(super) bytes: u64,
    /// Bytes from the start that requests touch, at most.
    pub(super) range_bytes: u64,
    pub(super) time_min: Duration,
}

#[derive(Debug)]
pub(super) struct Forecast {
    path: EndPath,
    write: bool,
    bytes: u64,
    setup: Duration,
    /// Before data flowed, and the median while it did.
    idle: Duration,
    loaded: Duration,
    rate: f64,
    ramp: f64,
    is_steady: bool,
    measured_bytes: u64,
    /// Seconds from the start of the process to its end.
    seconds: f64,
}

/// `None` where there is no network.
pub(super) fn forecast(
    context: &Context,
    io: &mut Io,
    question: &Question<'_>,
) -> Result<Option<Forecast>, Failure> {
    let Question { named, medium, write, bytes, range_bytes, time_min } = *question;
    let began = Instant::now();
    let mut endpoint = endpoint::attach(io, &[(named, medium)])?.remove(0);
    let setup = began.elapsed();
    let Some(fresh) = endpoint.inspect().path() else {
        job::close(io, [endpoint]);
        return Ok(None);
    };
    let idle = fresh.connection.round_trip_least;
    let range = bytes.max(GRAIN_BYTES).min(range_bytes).min(endpoint.capability().size_bytes);
    let range = range / GRAIN_BYTES * GRAIN_BYTES;
    let period = PERIOD_MIN.max(idle * PERIOD_ROUND_TRIPS).as_secs_f64();
    let far_min = if idle >= FAR { FAR_TIME_MIN } else { Duration::ZERO };
    let least = time_min.max(far_min).max(idle * ROUND_TRIPS_MIN).min(TIME_MAX).as_secs_f64();
    let measured = measure(context, io, named, &mut *endpoint, write, range, |curve| {
        let (end, _) = curve.last();
        end >= TIME_MAX.as_secs_f64() || (end >= least && curve.is_steady(period))
    })?;
    let path = EndPath::of(if write { "destination" } else { "source" }, &*endpoint);
    job::close(io, [endpoint]);
    let Some(path) = path else { return Ok(None) };
    let (rate, ramp) = measured.curve.rate_and_ramp(period);
    let trips = idle * if write { ROUND_TRIPS_WRITE } else { ROUND_TRIPS_READ };
    let data = measured.curve.time_of(bytes).unwrap_or_else(|| ramp + bytes as f64 / rate.max(1.0));
    Ok(Some(Forecast {
        path,
        write,
        bytes,
        setup,
        idle,
        loaded: measured.loaded.unwrap_or(idle),
        rate,
        ramp,
        is_steady: measured.curve.is_steady(period),
        measured_bytes: measured.curve.last().1,
        seconds: (setup + trips).as_secs_f64() + data,
    }))
}

struct Measured {
    curve: Curve,
    loaded: Option<Duration>,
}

/// Copies between the first `range` bytes of the endpoint and memory, until `is_enough`.
fn measure(
    context: &Context,
    io: &mut Io,
    named: &Named,
    endpoint: &mut dyn Endpoint,
    write: bool,
    range: u64,
    is_enough: impl Fn(&Curve) -> bool,
) -> Result<Measured, Failure> {
    let failed = |cause: String| Failure::failed("measure", named.text.clone(), cause);
    let other = format!("{}:{range}", if write { "pattern" } else { "null" });
    let spec = Spec::parse(&other).map_err(|error| failed(error.0))?;
    let options = OpenOptions { writable: !write, request_alignment: 512, allow_in_use: false };
    let medium = block::open(&spec, &options).map_err(|error| failed(error.to_string()))?;
    let mut other = job::attach(io, &medium).map_err(|error| failed(error.to_string()))?;
    let tap = endpoint.inspect().tap();
    // Zeroes, too, are moved: a copy of data is what is predicted.
    let plan = Plan { size: Some(range), sparse: false, allow_block_size: true, ..Plan::default() };
    let (mut curve, mut round_trips) = (Curve::default(), Vec::new());
    let (began, mut is_over) = (Instant::now(), false);
    let mut observer = |now: &Progress| {
        // Once no more requests begin, those in flight end faster than others followed them.
        if now.phase == Phase::Copy && !is_over {
            curve.push(began.elapsed().as_secs_f64(), now.data_bytes);
            round_trips.extend(tap.as_ref().and_then(Tap::socket).and_then(|socket| io::path(&socket)));
        }
        is_over |= context.stop.is_requested() || is_enough(&curve);
        if is_over { Control::Stop } else { Control::Continue }
    };
    let result = if write {
        mover::copy(io, &mut *other, endpoint, &plan, &mut observer)
    } else {
        mover::copy(io, endpoint, &mut *other, &plan, &mut observer)
    };
    job::close(io, [other]);
    if context.stop.is_requested() {
        return Err(context.stop.failure("finish", "the measurement"));
    }
    match result {
        Ok(_) | Err(CopyError::Interrupted { .. }) => {}
        Err(error) => return Err(job::engine_failure(&error, "measure", &named.text, &named.text)),
    }
    let mut round_trips: Vec<_> = round_trips.iter().map(|path| path.round_trip).collect();
    round_trips.sort_unstable();
    Ok(Measured { curve, loaded: round_trips.get(round_trips.len() / 2).copied() })
}

impl Forecast {
    fn setup_round_trips(&self) -> f64 {
        self.setup.as_secs_f64() / self.idle.as_secs_f64().max(1e-6)
    }

    fn setup_words(&self) -> String {
        let time = units::duration(self.setup);
        // On shorter paths the time is that of the two ends.
        match self.idle >= FAR {
            true => format!("{time}, {:.1} round trips", self.setup_round_trips()),
            false => time,
        }
    }

    /// `path` of the final object.
    pub(super) fn path_object(&self) -> Value {
        let ms = |time: Duration| units::rounded(time.as_secs_f64() * 1e3);
        let mut object = self.path.object(None);
        object["rtt_idle_ms"] = ms(self.idle).into();
        object["rtt_loaded_ms"] = ms(self.loaded).into();
        object["setup_ms"] = ms(self.setup).into();
        object["setup_round_trips"] = units::rounded(self.setup_round_trips()).into();
        for buffer in [io::SocketBuffer::Send, io::SocketBuffer::Receive] {
            object[format!("{}_buffer_max_bytes", buffer.name())] = buffer.bytes_max().into();
        }
        object
    }

    /// `copy` of the final object.
    pub(super) fn copy_object(&self) -> Value {
        json!({
            "bytes": self.bytes,
            "seconds": units::rounded(self.seconds),
            "mb_per_s": units::rounded(self.bytes as f64 / 1e6 / self.seconds.max(1e-6)),
            "rate_mb_per_s": units::rounded(self.rate / 1e6),
            "setup_s": units::rounded(self.setup.as_secs_f64()),
            "ramp_s": units::rounded(self.ramp),
            "steady": self.is_steady,
            "measured_bytes": self.measured_bytes,
        })
    }

    pub(super) fn lines(&self) -> Vec<String> {
        let report = &self.path.report;
        let (seconds, path) = (Duration::from_secs_f64, &report.connection);
        let cap = |buffer: io::SocketBuffer, is_forced: bool| match buffer.bytes_max() {
            Some(bytes) if !is_forced => format!(" of at most {}", units::bytes(bytes)),
            Some(_) => " (beyond the sysctl)".to_owned(),
            None => String::new(),
        };
        let send_cap = cap(io::SocketBuffer::Send, report.is_send_buffer_forced);
        let receive_cap = cap(io::SocketBuffer::Receive, self.path.is_receive_buffer_forced());
        let key = |name: &str, bytes: Option<u64>| Some(format!("{name} {}", units::bytes(bytes?)));
        let keys = [
            key("FirstBurstLength", self.path.first_burst_bytes),
            key("MaxBurstLength", self.path.max_burst_bytes),
            self.path.outstanding_r2t_max.map(|count| format!("MaxOutstandingR2T {count}")),
            Some(format!("{} commands", report.window_max_commands)),
        ];
        let mut lines = vec![
            format!(
                "path: round trip {}, {} under load; {}; {} packets sent again, {} arrived out of order; set-up {}",
                units::duration(self.idle),
                units::duration(self.loaded),
                units::rate(self.rate),
                path.retransmitted,
                path.out_of_order,
                self.setup_words(),
            ),
            format!(
                "limits: send buffer {}{send_cap}, receive buffer {}{receive_cap}, {}; target: {}",
                units::bytes(path.buffer_bytes),
                units::bytes(path.receive_buffer_bytes),
                report.congestion_control.as_deref().unwrap_or("congestion control unknown"),
                keys.into_iter().flatten().collect::<Vec<_>>().join(", "),
            ),
            format!(
                "copy of {} {} here: about {} (set-up {}, ramp {}, then {}{})",
                units::bytes(self.bytes),
                if self.write { "to" } else { "from" },
                units::duration(seconds(self.seconds)),
                units::duration(self.setup),
                units::duration(seconds(self.ramp)),
                units::rate(self.rate),
                match (report.sessions, self.is_steady) {
                    (..=1, true) => String::new(),
                    (..=1, false) => ", not steady yet".to_owned(),
                    (sessions, true) => format!(" in {sessions} sessions"),
                    (sessions, false) => format!(" in {sessions} sessions, not steady yet"),
                },
            ),
        ];
        lines.extend(report.missing());
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: f64 = 100e6;

    /// Seen five times a second: nothing before `delay`, then twice as much in each `round_trip` up to [`RATE`], with
    /// pauses of 50 ms every second if it is `rough`.
    fn curve(delay: f64, round_trip: f64, seconds: f64, rough: bool) -> Curve {
        let mut curve = Curve::default();
        let (mut bytes, mut rate, step) = (0.0, RATE / 64.0, 0.001);
        for tick in 0..(seconds / step) as u64 {
            let now = tick as f64 * step;
            if now >= delay && !(rough && now.fract() < 0.05) {
                bytes += rate * step;
                rate = (rate * 2.0f64.powf(step / round_trip)).min(RATE);
            }
            if tick % 200 == 199 {
                curve.push(now, bytes as u64);
            }
        }
        curve
    }

    #[test]
    fn what_was_seen_of_a_copy_predicts_the_rest_of_it() {
        for (delay, round_trip, rough) in
            [(0.0, 0.02, false), (0.05, 0.05, false), (0.2, 0.2, false), (0.1, 0.1, true)]
        {
            let period = f64::max(6.0 * round_trip, 0.6);
            let whole = curve(delay, round_trip, 30.0, rough);
            let (mut seen, mut points) = (Curve::default(), whole.0.iter());
            while !seen.is_steady(period) {
                let (seconds, bytes) = points.next().expect("it becomes steady");
                seen.push(*seconds, *bytes);
            }
            let (rate, ramp) = seen.rate_and_ramp(period);
            assert!(seen.last().0 < 10.0, "{seen:?}");
            for bytes in [256 << 20, 1 << 30] {
                let actual = whole.time_of(bytes).expect("it was moved");
                let predicted = ramp + bytes as f64 / rate;
                assert!((predicted / actual - 1.0).abs() < 0.05, "{predicted} s, {actual} s: {delay}");
            }
        }
    }

    #[test]
    fn a_rate_that_grows_or_is_short_is_not_steady() {
        let mut growing = Curve::default();
        (1..=20)
            .for_each(|index| growing.push(0.2 * f64::from(index), u64::from((index * index) as u32) << 20));
        assert!(!growing.is_steady(0.6) && !Curve::default().is_steady(0.6));
        assert!(!curve(0.0, 0.001, 1.0, false).is_steady(0.6));
        assert!(curve(0.0, 0.001, 2.0, false).is_steady(0.6));
    }

    #[test]
    fn within_what_was_moved_the_curve_is_read() {
        let mut curve = Curve::default();
        curve.push(1.0, 100);
        curve.push(2.0, 300);
        for (bytes, seconds) in
            [(0, Some(0.0)), (50, Some(0.5)), (100, Some(1.0)), (200, Some(1.5)), (301, None)]
        {
            assert_eq!(curve.time_of(bytes), seconds, "{bytes}");
        }
        assert_eq!((curve.bytes_at(1.5), curve.bytes_at(9.0)), (200.0, 300.0));
        assert_eq!(Curve::default().rate_and_ramp(0.6), (0.0, 0.0));
        curve.push(6.0, 300);
        assert!(!curve.is_steady(0.6), "a pause");
        assert_eq!(curve.rate_and_ramp(0.6), (50.0, 0.0));
    }
}
