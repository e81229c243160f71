//! Round trip times of one path, and the retransmission timeout (RFC 6298).

use zerocopy::FromZeros;

use crate::Time;

/// RTO before the first sample (RFC 6298 §2.1).
const RTO_INITIAL_US: u32 = 1_000_000;
/// RTO before the first sample if the SYN was sent twice (RFC 6298 §5.7).
const RTO_INITIAL_LATE_US: u32 = 3_000_000;
/// What is added to SRTT at least, as Linux does. RFC 6298 §2.4 wants an RTO of 1 s; 200 ms above SRTT still exceed the
/// delay of a delayed ACK.
const RTO_MARGIN_US_MIN: u32 = 200_000;
/// RFC 6298 §2.5 and §5.5
const RTO_US_MAX: u64 = 60_000_000;
/// A larger sample counts as this one.
const SAMPLE_US_MAX: u64 = 60_000_000;
/// The smallest sample is forgotten after one to two such times.
const MIN_WINDOW_US: u64 = 150_000_000;

/// Estimates of one path, in microseconds.
#[derive(Clone, Copy, Debug, Default, FromZeros)]
#[repr(C)]
pub(crate) struct Rtt {
    /// SRTT * 8; 0 before the first sample.
    srtt_x8: u32,
    /// Mean deviation * 4.
    deviation_x4: u32,
    /// Largest `deviation_x4` of this round.
    deviation_max_x4: u32,
    /// RTTVAR * 4.
    rttvar_x4: u32,
    round_end: Time,
    /// Smallest sample of this window and of the one before.
    min: [u32; 2],
    min_window_end: Time,
    initial_rto: u32,
    /// Doublings of the RTO (RFC 6298 §5.5).
    backoff: u8,
}

impl Rtt {
    pub(crate) fn new() -> Self {
        Self { min: [u32::MAX; 2], initial_rto: RTO_INITIAL_US, ..Self::default() }
    }

    /// The SYN was sent twice, so its sample is not used.
    pub(crate) fn on_late_handshake(&mut self) {
        self.initial_rto = RTO_INITIAL_LATE_US;
    }

    /// RFC 6298 §2.2, §2.3, with any number of samples per round trip. RFC 7323 appendix G divides the gains by the
    /// expected number of samples, lest the history be lost within one round trip; here RTTVAR follows the deviation
    /// upwards at once, and downwards once per round trip only.
    pub(crate) fn on_sample(&mut self, us: u64, now: Time) {
        let sample = us.clamp(1, SAMPLE_US_MAX) as u32;
        // Karn's algorithm: the back-off ends by a sample (RFC 6298 §5.7, last paragraph).
        self.backoff = 0;
        if self.srtt_x8 == 0 {
            self.srtt_x8 = sample * 8;
            self.deviation_x4 = sample * 2;
            self.rttvar_x4 = sample * 2;
            self.begin_round(now);
            return;
        }
        let error = sample.abs_diff(self.srtt_x8 / 8);
        self.deviation_x4 = self.deviation_x4 - self.deviation_x4 / 4 + error;
        self.srtt_x8 = self.srtt_x8 - self.srtt_x8 / 8 + sample;
        self.deviation_max_x4 = self.deviation_max_x4.max(self.deviation_x4);
        self.rttvar_x4 = self.rttvar_x4.max(self.deviation_max_x4);
        if now >= self.round_end {
            self.rttvar_x4 -= (self.rttvar_x4 - self.deviation_max_x4) / 4;
            self.begin_round(now);
        }
    }

    fn begin_round(&mut self, now: Time) {
        self.round_end = now.after(self.srtt_us());
        self.deviation_max_x4 = 0;
    }

    /// A time between a transmission and its arrival at the sender as ACK, delayed ACKs left out where possible.
    pub(crate) fn on_min_sample(&mut self, us: u64, now: Time) {
        let sample = us.clamp(1, SAMPLE_US_MAX) as u32;
        if now >= self.min_window_end {
            self.min = [u32::MAX, self.min[0]];
            self.min_window_end = now.after(MIN_WINDOW_US);
        }
        self.min[0] = self.min[0].min(sample);
    }

    /// 0 before the first sample.
    pub(crate) fn srtt_us(&self) -> u64 {
        u64::from(self.srtt_x8 / 8)
    }

    /// Smallest sample of the last minutes; 0 before the first one.
    pub(crate) fn min_us(&self) -> u64 {
        let min = self.min[0].min(self.min[1]);
        if min == u32::MAX { 0 } else { u64::from(min) }
    }

    /// RTO without back-off.
    pub(crate) fn rto_us(&self) -> u64 {
        if self.srtt_x8 == 0 {
            return u64::from(self.initial_rto);
        }
        (self.srtt_us() + u64::from(self.rttvar_x4.max(RTO_MARGIN_US_MIN))).min(RTO_US_MAX)
    }

    /// RTO with back-off.
    pub(crate) fn backed_off_us(&self) -> u64 {
        (self.rto_us() << self.backoff).min(RTO_US_MAX)
    }

    /// RFC 6298 §5.5
    pub(crate) fn back_off(&mut self) {
        if self.backed_off_us() < RTO_US_MAX {
            self.backoff += 1;
        }
    }

    /// The timeout was spurious.
    pub(crate) fn restore(&mut self) {
        self.backoff = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampled(samples: &[u64]) -> Rtt {
        let mut rtt = Rtt::new();
        let mut now = Time(1_000_000);
        for &us in samples {
            now = now.after(us);
            rtt.on_sample(us, now);
        }
        rtt
    }

    #[test]
    fn rfc6298_2_1_and_5_7_initial_rto() {
        let mut rtt = Rtt::new();
        assert_eq!((rtt.rto_us(), rtt.srtt_us(), rtt.min_us()), (1_000_000, 0, 0));
        rtt.on_late_handshake();
        assert_eq!(rtt.rto_us(), 3_000_000);
        rtt.on_sample(50_000, Time(1));
        assert_eq!(rtt.rto_us(), 250_000);
    }

    #[test]
    fn rfc6298_2_2_first_sample_and_2_3_later_ones() {
        // SRTT = R, RTTVAR = R/2: RTO = 3 R.
        assert_eq!((sampled(&[400_000]).srtt_us(), sampled(&[400_000]).rto_us()), (400_000, 1_200_000));
        // SRTT = 7/8 400 + 1/8 800 = 450; RTTVAR = 3/4 200 + 1/4 400 = 250 ms.
        assert_eq!((sampled(&[400_000, 800_000]).srtt_us()), 450_000);
        assert_eq!(sampled(&[400_000, 800_000]).rto_us(), 450_000 + 1_000_000);
    }

    #[test]
    fn rfc6298_2_4_margin_and_2_5_maximum() {
        assert_eq!(sampled(&[100; 100]).rto_us(), 200_100);
        assert_eq!(sampled(&[50_000; 100]).rto_us(), 250_000);
        assert_eq!(sampled(&[90_000_000]).rto_us(), 60_000_000);
    }

    /// RFC 7323 appendix G: a hundred samples within one round trip do not erase what an earlier one has taught.
    #[test]
    fn rfc7323_g_variance_outlives_one_round() {
        let mut rtt = sampled(&[400_000, 800_000]);
        let before = rtt.rto_us();
        for _ in 0..100 {
            rtt.on_sample(400_000, Time(1_000_000 + 1_200_000 + 1));
        }
        assert!(rtt.rto_us() - rtt.srtt_us() >= (before - 450_000) * 3 / 4, "{} of {before}", rtt.rto_us());
    }

    #[test]
    fn rfc6298_5_5_back_off_doubles_up_to_the_maximum_and_ends_by_a_sample() {
        let mut rtt = sampled(&[50_000; 100]);
        let expected = [250_000, 500_000, 1_000_000, 2_000_000, 4_000_000, 8_000_000, 16_000_000, 32_000_000];
        for us in expected {
            assert_eq!(rtt.backed_off_us(), us);
            rtt.back_off();
        }
        for _ in 0..300 {
            assert_eq!(rtt.backed_off_us(), 60_000_000);
            rtt.back_off();
        }
        rtt.on_sample(50_000, Time(9));
        assert_eq!(rtt.backed_off_us(), 250_000);
    }

    #[test]
    fn smallest_sample_is_forgotten_when_the_path_has_become_longer() {
        let mut rtt = Rtt::new();
        rtt.on_min_sample(10_000, Time(1));
        for second in 1..149 {
            rtt.on_min_sample(50_000, Time(second * 1_000_000));
            assert_eq!(rtt.min_us(), 10_000);
        }
        for second in 149..302 {
            rtt.on_min_sample(50_000, Time(second * 1_000_000));
        }
        assert_eq!(rtt.min_us(), 50_000);
    }
}
