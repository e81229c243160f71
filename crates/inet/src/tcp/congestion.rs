//! Congestion window of one path: NewReno (RFC 5681) and CUBIC (RFC 9438), slow start by HyStart++ (RFC 9406), and
//! validation of a window that is not used (RFC 2861, RFC 7661).
//!
//! The window counts bytes. While a fast recovery lasts, its window is computed by `recovery`, by PRR (RFC 6937).

use zerocopy::FromZeros;

use crate::{Algorithm, SEGMENT_BYTES_MAX, SeqNumber, Time};

/// Segments of the initial window (RFC 6928 §2).
const INITIAL_SEGMENTS: u32 = 10;
/// RFC 6928 §2
const INITIAL_BYTES: u32 = 14_600;
/// The largest window that RFC 7323 §2.3 allows.
const CWND_MAX: u32 = 1 << 30;
/// Most bytes by which one ACK opens the window in slow start. RFC 9406 §4.3 advises 8 segments without pacing; but a
/// receiver that puts segments together acknowledges a super-segment at once, and must not be slower for that.
const SLOW_START_BYTES_MAX: u32 = SEGMENT_BYTES_MAX;

/// Congestion control of one connection.
#[derive(Clone, Copy, Debug, Default, FromZeros)]
#[repr(C)]
pub(crate) struct Congestion {
    cwnd: u32,
    ssthresh: u32,
    mss: u32,
    algorithm: Algorithm,
    /// The window was full at some time of this round.
    is_limited: bool,
    /// Remainder of the window's growth: numerator of a fraction with the denominator `cwnd`.
    credit: u64,
    /// Most bytes in flight in this round.
    flight_max: u32,
    /// The round of `is_limited` and `flight_max` ends when this is acknowledged.
    usage_end: SeqNumber,
    cubic: Cubic,
    hystart: HyStart,
    undo: Undo,
}

/// What a reduction that was spurious restores (RFC 9438 §4.9).
#[derive(Clone, Copy, Debug, Default, FromZeros)]
#[repr(C)]
struct Undo {
    cwnd: u32,
    ssthresh: u32,
    cubic: Cubic,
}

/// An ACK as congestion control sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acked {
    /// Bytes for which the window may grow.
    pub(super) bytes: u32,
    pub(super) una: SeqNumber,
    pub(super) nxt: SeqNumber,
    /// Of a segment that was sent once.
    pub(super) rtt_us: Option<u64>,
    pub(super) srtt_us: u64,
}

impl Congestion {
    pub(super) fn new(algorithm: Algorithm, mss: u32, next: SeqNumber) -> Self {
        let mut new = Self { algorithm, mss, ssthresh: CWND_MAX, usage_end: next, ..Self::default() };
        new.cwnd = new.initial();
        new.hystart.begin(next);
        new
    }

    /// RFC 6928 §2
    fn initial(&self) -> u32 {
        (INITIAL_SEGMENTS * self.mss).min(INITIAL_BYTES.max(2 * self.mss))
    }

    /// RFC 5681 §3.1: the SYN was lost.
    pub(super) fn on_late_handshake(&mut self) {
        self.cwnd = self.mss;
    }

    /// The window stays the same number of bytes, but one segment at least.
    pub(super) fn set_mss(&mut self, mss: u32) {
        self.mss = mss;
        self.cwnd = self.cwnd.max(mss);
    }

    pub(super) fn cwnd(&self) -> u32 {
        self.cwnd
    }

    pub(super) fn ssthresh(&self) -> u32 {
        self.ssthresh
    }

    pub(super) fn set_cwnd(&mut self, bytes: u32) {
        self.cwnd = bytes.clamp(self.mss, CWND_MAX);
    }

    /// `flight` bytes are in the network, those included that are just being sent.
    pub(super) fn on_sent(&mut self, flight: u32, nxt: SeqNumber) {
        // An engine that waits until a longer segment fits leaves a part of the window unused.
        let unused = self.mss.max((self.cwnd / 8).min(SEGMENT_BYTES_MAX));
        if flight.saturating_add(unused) > self.cwnd {
            self.is_limited = true;
            self.usage_end = nxt;
        }
        self.flight_max = self.flight_max.max(flight);
    }

    /// SND.UNA advanced while no fast recovery was under way.
    pub(super) fn on_acked(&mut self, acked: &Acked, now: Time) {
        let in_slow_start = self.cwnd < self.ssthresh;
        // RFC 7661 §4.3: a window that was not used is not known to be valid, and does not grow. In slow start one
        // that was half used may, as a round trip lies between use and growth.
        let may_grow = self.is_limited || (in_slow_start && self.cwnd / 2 < self.flight_max);
        if !acked.una.is_before(self.usage_end) {
            self.is_limited = false;
            self.flight_max = 0;
            self.usage_end = acked.nxt;
        }
        if !may_grow {
            self.cubic.pause(now);
            return;
        }
        let mut bytes = acked.bytes;
        if in_slow_start {
            let divisor = self.hystart.on_acked(acked);
            let opening = bytes.min(SLOW_START_BYTES_MAX) / divisor;
            let room = self.ssthresh - self.cwnd;
            self.cwnd += opening.min(room);
            if self.hystart.is_over() {
                // RFC 9406 §4.2: after CSS_ROUNDS the exit stands.
                self.ssthresh = self.cwnd;
            }
            if opening <= room {
                return;
            }
            bytes = opening - room;
        }
        self.avoid(bytes, acked.srtt_us, now);
    }

    /// Congestion avoidance: RFC 5681 §3.1 by bytes, or RFC 9438 §4.2 to §4.5.
    fn avoid(&mut self, bytes: u32, srtt_us: u64, now: Time) {
        let cwnd = u64::from(self.cwnd);
        let towards = match self.algorithm {
            Algorithm::NewReno => self.mss,
            Algorithm::Cubic => {
                let target = self.cubic.target(self.cwnd, self.mss, bytes, srtt_us, now);
                match target {
                    Target::Concave(target) => target - self.cwnd,
                    Target::Friendly(window) => {
                        self.credit = 0;
                        self.cwnd = window.min(CWND_MAX);
                        return;
                    }
                }
            }
        };
        let credit = self.credit + u64::from(bytes) * u64::from(towards);
        self.credit = credit % cwnd;
        self.cwnd = ((cwnd + credit / cwnd).min(u64::from(CWND_MAX))) as u32;
    }

    /// Loss was detected, by RACK, duplicate ACKs or a probe: once per window of data. `ssthresh` is the window that
    /// recovery ends with. RFC 9438 §4.6 allows the window in place of FlightSize, as it is validated.
    pub(super) fn on_loss(&mut self) {
        self.undo = Undo { cwnd: self.cwnd, ssthresh: self.ssthresh, cubic: self.cubic };
        self.ssthresh = match self.algorithm {
            // RFC 5681 §3.1, equation 4.
            Algorithm::NewReno => self.cwnd / 2,
            Algorithm::Cubic => {
                self.cubic.on_loss(self.cwnd);
                (u64::from(self.cwnd) * BETA.0 / BETA.1) as u32
            }
        }
        .max(2 * self.mss);
        self.credit = 0;
        self.hystart.finish();
    }

    /// The retransmission timer has expired, `flight` bytes are not counted as lost. `is_first`: of a timeout after
    /// forward progress; `ssthresh` is kept by the following ones (RFC 5681 §3.1).
    pub(super) fn on_timeout(&mut self, flight: u32, is_first: bool) {
        if is_first {
            self.on_loss();
        }
        self.cubic.on_timeout();
        self.set_cwnd(flight.saturating_add(self.mss));
    }

    /// The latest `on_loss` was spurious.
    pub(super) fn undo(&mut self) {
        self.cwnd = self.cwnd.max(self.undo.cwnd);
        self.ssthresh = self.ssthresh.max(self.undo.ssthresh);
        self.cubic = self.undo.cubic;
        self.hystart.is_finished = self.ssthresh < CWND_MAX;
    }

    /// Nothing was sent for `rtos` times the RTO: half the window for each, not below the restart window (RFC 5681 §4.1,
    /// RFC 2861 §3.1).
    pub(super) fn on_idle(&mut self, rtos: u64) {
        let restart = self.initial().min(self.cwnd);
        self.ssthresh = self.ssthresh.max(self.cwnd / 4 * 3);
        self.cwnd = (u64::from(self.cwnd) >> rtos.min(31)).max(u64::from(restart)) as u32;
        self.cubic.restart();
    }
}

/// β of RFC 9438 §4.6.
const BETA: (u64, u64) = (7, 10);
/// α of RFC 9438 §4.3: 3 (1 - β) / (1 + β).
const ALPHA: (u64, u64) = (9, 17);
/// Fractions of a byte in `w_est`.
const W_EST_SCALE: u64 = 1 << 10;
/// Longest time of which W_cubic is computed, milliseconds: 17 minutes.
const CUBIC_MS_MAX: i64 = 1 << 20;

/// RFC 9438. Windows are in bytes, and C in segments: a window of w bytes is w / SMSS segments.
#[derive(Clone, Copy, Debug, Default, FromZeros)]
#[repr(C)]
struct Cubic {
    /// Start of the current congestion avoidance; zero before its first ACK.
    epoch_start: Time,
    /// The latest ACK of the epoch.
    latest: Time,
    /// W_max; 0 before the first loss.
    w_max: u32,
    /// The window just before the latest loss.
    cwnd_prior: u32,
    /// K in milliseconds.
    k_ms: u32,
    /// W_est in bytes / [`W_EST_SCALE`].
    w_est: u64,
}

enum Target {
    /// The window grows by (target - cwnd) / cwnd for each segment acknowledged (RFC 9438 §4.4, §4.5).
    Concave(u32),
    /// What Reno would have by now (RFC 9438 §4.3).
    Friendly(u32),
}

impl Cubic {
    fn target(&mut self, cwnd: u32, mss: u32, bytes: u32, srtt_us: u64, now: Time) -> Target {
        if self.epoch_start == Time::ZERO {
            self.begin(cwnd, mss, now);
        }
        self.latest = now;
        // RFC 9438 §4.3: α = 1 once W_est has reached the window before the loss.
        let alpha = if self.w_est >= u64::from(self.cwnd_prior) * W_EST_SCALE { (1, 1) } else { ALPHA };
        self.w_est +=
            u64::from(bytes) * u64::from(mss) * (W_EST_SCALE * alpha.0) / (u64::from(cwnd) * alpha.1);
        let elapsed = now.since(self.epoch_start);
        let w_est = (self.w_est / W_EST_SCALE).min(u64::from(CWND_MAX)) as u32;
        if self.window(elapsed, mss) < i64::from(w_est) {
            return Target::Friendly(w_est.max(cwnd));
        }
        // RFC 9438 §4.2: within cwnd..=1.5 cwnd.
        let target = self.window(elapsed.saturating_add(srtt_us), mss);
        let most = i64::from(cwnd) + i64::from(cwnd / 2);
        Target::Concave(target.clamp(i64::from(cwnd), most) as u32)
    }

    /// W_cubic(t) = C (t - K)^3 + W_max (RFC 9438 §4.2), in bytes.
    fn window(&self, t_us: u64, mss: u32) -> i64 {
        let t_ms = (t_us / 1000).min(CUBIC_MS_MAX as u64) as i64;
        let d = t_ms - i64::from(self.k_ms);
        // C = 0.4 / s^3 = 4e-10 / ms^3. |d|^3 < 2^60; / 10^6 < 2^41; * mss * 4 < 2^59.
        i64::from(self.w_max) + d * d * d / 1_000_000 * i64::from(mss) * 4 / 10_000
    }

    /// Congestion avoidance begins.
    fn begin(&mut self, cwnd: u32, mss: u32, now: Time) {
        self.epoch_start = now;
        self.w_est = u64::from(cwnd) * W_EST_SCALE;
        if cwnd < self.w_max {
            // K = cbrt((W_max - cwnd) / C): in milliseconds, (W_max - cwnd) / mss * 2.5 * 10^9 is cubed. < 2^64.
            let cube = u64::from(self.w_max - cwnd) * 2_500_000_000 / u64::from(mss);
            self.k_ms = cube_root(cube).min(CUBIC_MS_MAX as u32);
        } else {
            // Also after a timeout, and after a slow start that ended without loss (RFC 9438 §4.8, §4.10).
            self.k_ms = 0;
            self.w_max = cwnd;
        }
    }

    fn on_loss(&mut self, cwnd: u32) {
        self.cwnd_prior = cwnd;
        // Fast convergence (RFC 9438 §4.7): W_max = cwnd (1 + β) / 2.
        self.w_max = if cwnd < self.w_max {
            (u64::from(cwnd) * (BETA.0 + BETA.1) / (2 * BETA.1)) as u32
        } else {
            cwnd
        };
        self.restart();
    }

    /// RFC 9438 §4.8
    fn on_timeout(&mut self) {
        self.w_max = 0;
        self.restart();
    }

    fn restart(&mut self) {
        self.epoch_start = Time::ZERO;
    }

    /// Time in which the application limits the rate does not count (RFC 9438 §5.8).
    fn pause(&mut self, now: Time) {
        if self.epoch_start != Time::ZERO {
            self.epoch_start = self.epoch_start.after(now.since(self.latest));
            self.latest = now;
        }
    }
}

/// The largest r with r^3 <= `value`.
fn cube_root(value: u64) -> u32 {
    let mut root = 0u64;
    for bit in (0..22).rev() {
        let next = root | 1 << bit;
        if (next * next).checked_mul(next).is_some_and(|cube| cube <= value) {
            root = next;
        }
    }
    root as u32
}

/// RFC 9406 §4.2
const N_RTT_SAMPLE: u8 = 8;
const MIN_RTT_THRESH_US: u32 = 4_000;
const MAX_RTT_THRESH_US: u32 = 16_000;
const MIN_RTT_DIVISOR: u32 = 8;
const CSS_GROWTH_DIVISOR: u32 = 4;
const CSS_ROUNDS: u8 = 5;

/// The first slow start of a connection ends when round trip times grow (RFC 9406).
#[derive(Clone, Copy, Debug, Default, FromZeros)]
#[repr(C)]
struct HyStart {
    window_end: SeqNumber,
    last_round_min_us: u32,
    current_round_min_us: u32,
    /// Baseline of conservative slow start; 0 outside of it.
    css_baseline_us: u32,
    css_rounds: u8,
    samples: u8,
    /// Only the initial slow start uses it (RFC 9406 §4.3).
    is_finished: bool,
}

impl HyStart {
    fn begin(&mut self, next: SeqNumber) {
        self.window_end = next;
        self.last_round_min_us = u32::MAX;
        self.current_round_min_us = u32::MAX;
    }

    fn finish(&mut self) {
        self.is_finished = true;
    }

    /// By what the growth of slow start is divided.
    fn on_acked(&mut self, acked: &Acked) -> u32 {
        if self.is_finished {
            return 1;
        }
        if let Some(us) = acked.rtt_us {
            self.current_round_min_us =
                self.current_round_min_us.min(us.clamp(1, u64::from(u32::MAX)) as u32);
            self.samples = self.samples.saturating_add(1);
        }
        if self.samples >= N_RTT_SAMPLE {
            let current = self.current_round_min_us;
            if self.css_baseline_us != 0 {
                if current < self.css_baseline_us {
                    // The growth was a fluctuation: slow start again.
                    self.css_baseline_us = 0;
                    self.css_rounds = 0;
                }
            } else if self.last_round_min_us != u32::MAX {
                let threshold =
                    (self.last_round_min_us / MIN_RTT_DIVISOR).clamp(MIN_RTT_THRESH_US, MAX_RTT_THRESH_US);
                if current >= self.last_round_min_us.saturating_add(threshold) {
                    self.css_baseline_us = current;
                    self.css_rounds = 0;
                }
            }
        }
        if !acked.una.is_before(self.window_end) {
            self.window_end = acked.nxt;
            self.last_round_min_us = self.current_round_min_us;
            self.current_round_min_us = u32::MAX;
            self.samples = 0;
            if self.css_baseline_us != 0 {
                self.css_rounds += 1;
            }
        }
        if self.css_baseline_us == 0 { 1 } else { CSS_GROWTH_DIVISOR }
    }

    fn is_over(&mut self) -> bool {
        let is_over = !self.is_finished && self.css_rounds >= CSS_ROUNDS;
        self.is_finished |= is_over;
        is_over
    }
}

#[cfg(test)]
mod tests;
