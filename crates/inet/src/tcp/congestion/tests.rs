use super::*;

const MSS: u32 = 1000;
const NEXT: SeqNumber = SeqNumber(77);
const RTT_US: u64 = 100_000;

/// A window that is always full, and the time.
struct Flow {
    congestion: Congestion,
    now: Time,
    una: SeqNumber,
}

impl Flow {
    fn new(algorithm: Algorithm, cwnd: u32) -> Self {
        let mut congestion = Congestion::new(algorithm, MSS, NEXT);
        congestion.cwnd = cwnd * MSS;
        Self { congestion, now: Time(1_000_000), una: NEXT }
    }

    /// In congestion avoidance after a loss at a window of `cwnd` segments.
    fn after_loss(algorithm: Algorithm, cwnd: u32) -> Self {
        let mut flow = Self::new(algorithm, cwnd);
        flow.congestion.on_loss();
        flow.congestion.set_cwnd(flow.congestion.ssthresh);
        flow
    }

    fn ack(&mut self, segments: u32, rtt_us: u64) {
        let nxt = self.una + self.congestion.cwnd;
        self.congestion.on_sent(self.congestion.cwnd, nxt);
        self.una = self.una + segments * MSS;
        let acked =
            Acked { bytes: segments * MSS, una: self.una, nxt, rtt_us: Some(rtt_us), srtt_us: rtt_us };
        self.congestion.on_acked(&acked, self.now);
    }

    /// All of a window is acknowledged, segment by segment, within `rtt_us`.
    fn round(&mut self, rtt_us: u64) {
        let segments = self.congestion.cwnd / MSS;
        for _ in 0..segments {
            self.now = self.now.after(rtt_us / u64::from(segments));
            self.ack(1, rtt_us);
        }
    }

    fn segments(&self) -> f64 {
        f64::from(self.congestion.cwnd) / f64::from(MSS)
    }
}

fn is_near(value: f64, expected: f64, tolerance: f64) -> bool {
    (value - expected).abs() <= tolerance * expected
}

#[test]
fn rfc6928_2_initial_window() {
    for (mss, bytes) in
        [(536, 5_360), (1000, 10_000), (1448, 14_480), (1460, 14_600), (4000, 14_600), (8948, 17_896)]
    {
        assert_eq!(Congestion::new(Algorithm::Cubic, mss, NEXT).cwnd(), bytes, "{mss}");
    }
}

#[test]
fn rfc5681_3_1_slow_start_doubles_the_window_up_to_ssthresh() {
    let mut flow = Flow::new(Algorithm::NewReno, 10);
    flow.round(RTT_US);
    assert_eq!(flow.congestion.cwnd(), 20 * MSS);
    flow.congestion.ssthresh = 25 * MSS;
    flow.round(RTT_US);
    // 5 segments up to ssthresh, and then 1 in a round trip.
    assert!((25.0..26.0).contains(&flow.segments()), "{}", flow.segments());
}

#[test]
fn rfc5681_3_1_congestion_avoidance_adds_a_segment_per_window() {
    let mut flow = Flow::after_loss(Algorithm::NewReno, 100);
    assert_eq!(flow.congestion.cwnd(), 50 * MSS);
    for round in 1..=20 {
        flow.round(RTT_US);
        assert!(is_near(flow.segments(), 50.0 + f64::from(round), 0.01), "{}", flow.segments());
    }
}

#[test]
fn rfc5681_3_1_ssthresh_is_two_segments_at_least() {
    for algorithm in [Algorithm::NewReno, Algorithm::Cubic] {
        assert_eq!(Flow::after_loss(algorithm, 2).congestion.ssthresh(), 2 * MSS);
    }
}

#[test]
fn rfc5681_3_1_timeouts_in_a_row_keep_ssthresh() {
    let mut flow = Flow::new(Algorithm::NewReno, 40);
    flow.congestion.on_timeout(0, true);
    assert_eq!((flow.congestion.cwnd(), flow.congestion.ssthresh()), (MSS, 20 * MSS));
    flow.congestion.on_timeout(0, false);
    assert_eq!((flow.congestion.cwnd(), flow.congestion.ssthresh()), (MSS, 20 * MSS));
}

#[test]
fn slow_start_opens_by_a_super_segment_per_ack_at_most() {
    let mut flow = Flow::new(Algorithm::NewReno, 500);
    flow.ack(400, RTT_US);
    assert_eq!(flow.congestion.cwnd(), 500 * MSS + SLOW_START_BYTES_MAX);
}

#[test]
fn rfc7661_4_3_window_that_is_not_used_does_not_grow() {
    for algorithm in [Algorithm::NewReno, Algorithm::Cubic] {
        let mut flow = Flow::after_loss(algorithm, 100);
        for _ in 0..50 {
            flow.now = flow.now.after(RTT_US);
            flow.congestion.on_sent(10 * MSS, flow.una + 10 * MSS);
            flow.una = flow.una + 10 * MSS;
            let (una, srtt_us) = (flow.una, RTT_US);
            let acked = Acked { bytes: 10 * MSS, una, nxt: una, rtt_us: None, srtt_us };
            flow.congestion.on_acked(&acked, flow.now);
        }
        assert_eq!(flow.congestion.cwnd(), flow.congestion.ssthresh());
    }
}

#[test]
fn rfc2861_3_1_window_decays_while_idle_down_to_the_initial_one() {
    for (rtos, bytes) in [(1, 50_000), (3, 12_500), (4, 10_000), (1000, 10_000)] {
        let mut flow = Flow::new(Algorithm::Cubic, 100);
        flow.congestion.ssthresh = 20 * MSS;
        flow.congestion.on_idle(rtos);
        assert_eq!((flow.congestion.cwnd(), flow.congestion.ssthresh()), (bytes, 75 * MSS));
    }
    let mut flow = Flow::new(Algorithm::Cubic, 3);
    flow.congestion.on_idle(9);
    assert_eq!(flow.congestion.cwnd(), 3 * MSS);
}

#[test]
fn rfc9438_4_2_window_is_a_cubic_function_of_time() {
    let mut cubic = Cubic::default();
    cubic.on_loss(100 * MSS);
    cubic.begin(70 * MSS, MSS, Time(1));
    // K = cbrt(30 / 0.4) = 4.217 s.
    assert_eq!(cubic.k_ms, 4217);
    for t_ms in [0u64, 1000, 3000, 4217, 6000, 10_000, 100_000] {
        let t = t_ms as f64 / 1000.0;
        let expected = (0.4 * (t - 4.21716).powi(3) + 100.0) * f64::from(MSS);
        let window = cubic.window(t_ms * 1000, MSS) as f64;
        assert!(is_near(window, expected, 0.001), "{t_ms} ms: {window} {expected}");
    }
}

#[test]
fn rfc9438_4_4_concave_and_4_5_convex_growth_follow_the_function() {
    let mut flow = Flow::after_loss(Algorithm::Cubic, 1000);
    let start = flow.now;
    for _ in 0..150 {
        flow.round(RTT_US);
        let t = flow.now.since(start) as f64 / 1e6;
        let expected = 0.4 * (t - 9.0856).powi(3) + 1000.0;
        assert!(is_near(flow.segments(), expected, 0.02), "{t} s: {} {expected}", flow.segments());
    }
    assert!(flow.segments() > 1070.0);
}

#[test]
fn rfc9438_4_2_window_grows_by_half_per_round_trip_at_most() {
    let mut flow = Flow::after_loss(Algorithm::Cubic, 100);
    flow.round(RTT_US);
    flow.now = flow.now.after(60_000_000);
    let before = flow.segments();
    flow.round(RTT_US);
    assert!((before * 1.3..before * 1.66).contains(&flow.segments()), "{before} {}", flow.segments());
}

#[test]
fn rfc9438_4_3_short_round_trips_grow_as_reno_would() {
    let mut flow = Flow::after_loss(Algorithm::Cubic, 20);
    assert_eq!(flow.congestion.cwnd(), 14 * MSS);
    // α = 3 (1 - 0.7) / (1 + 0.7) = 0.529 until the window before the loss, 6 / 0.529 = 11.3 rounds; then 1.
    for _ in 0..11 {
        flow.round(1_000);
    }
    assert!(is_near(flow.segments(), 14.0 + 11.0 * 0.529, 0.01), "{}", flow.segments());
    for _ in 0..11 {
        flow.round(1_000);
    }
    assert!(is_near(flow.segments(), 30.5, 0.02), "{}", flow.segments());
}

#[test]
fn rfc9438_4_6_window_is_multiplied_by_seven_tenths() {
    assert_eq!(Flow::after_loss(Algorithm::Cubic, 100).congestion.cwnd(), 70 * MSS);
}

#[test]
fn rfc9438_4_7_fast_convergence() {
    let mut cubic = Cubic::default();
    for (cwnd, w_max) in [(100_000, 100_000), (80_000, 68_000), (90_000, 90_000)] {
        cubic.on_loss(cwnd);
        assert_eq!((cubic.w_max, cubic.cwnd_prior), (w_max, cwnd));
    }
}

#[test]
fn rfc9438_4_8_after_a_timeout_growth_begins_convex() {
    let mut flow = Flow::new(Algorithm::Cubic, 100);
    flow.congestion.on_timeout(0, true);
    assert_eq!(flow.congestion.ssthresh(), 70 * MSS);
    while flow.congestion.cwnd() < 70 * MSS {
        flow.round(RTT_US);
    }
    flow.round(RTT_US);
    let cubic = &flow.congestion.cubic;
    assert_eq!((cubic.k_ms, cubic.w_max >= 70 * MSS && cubic.w_max < 72 * MSS), (0, true));
}

#[test]
fn rfc9438_4_9_spurious_loss_restores_the_window_and_what_it_depends_on() {
    let mut flow = Flow::after_loss(Algorithm::Cubic, 100);
    for _ in 0..10 {
        flow.round(RTT_US);
    }
    let before = flow.congestion;
    flow.congestion.on_loss();
    flow.congestion.set_cwnd(5 * MSS);
    flow.congestion.undo();
    let after = &flow.congestion;
    assert_eq!((after.cwnd, after.ssthresh), (before.cwnd, before.ssthresh));
    let of = |cubic: &Cubic| (cubic.w_max, cubic.k_ms, cubic.epoch_start, cubic.w_est, cubic.cwnd_prior);
    assert_eq!(of(&after.cubic), of(&before.cubic));
}

#[test]
fn rfc9438_5_8_time_without_data_does_not_count() {
    let mut flow = Flow::after_loss(Algorithm::Cubic, 100);
    flow.round(RTT_US);
    let epoch = flow.congestion.cubic.epoch_start;
    flow.now = flow.now.after(5_000_000);
    (flow.congestion.is_limited, flow.congestion.flight_max) = (false, 0);
    let acked = Acked { bytes: MSS, una: flow.una, nxt: flow.una, rtt_us: None, srtt_us: RTT_US };
    flow.congestion.on_acked(&acked, flow.now);
    assert_eq!(flow.congestion.cubic.epoch_start, epoch.after(5_000_000));
}

#[test]
fn cube_roots_are_exact() {
    for root in [0, 1, 2, 3, 9, 10, 999, 4217, 65_535, 1 << 20, 2_642_245] {
        let cube = u64::from(root).pow(3);
        assert_eq!(cube_root(cube), root);
        if cube > 0 {
            assert_eq!((cube_root(cube - 1), cube_root(cube + 1)), (root - 1, root.max(1)));
        }
    }
    assert_eq!(cube_root(u64::MAX), 2_642_245);
}

/// A round of slow start with these round trip times.
fn slow_start(flow: &mut Flow, rtt_us: u64) -> f64 {
    let before = flow.segments();
    flow.round(rtt_us);
    flow.segments() / before
}

#[test]
fn rfc9406_4_2_growing_round_trips_end_slow_start_after_five_conservative_rounds() {
    let mut flow = Flow::new(Algorithm::Cubic, 16);
    for _ in 0..3 {
        assert!(is_near(slow_start(&mut flow, RTT_US), 2.0, 0.01));
    }
    // RttThresh = 100 / 8 = 12.5 ms: less does not count.
    assert!(is_near(slow_start(&mut flow, RTT_US + 12_000), 2.0, 0.01));
    // The first samples of a round are of segments that were sent in the round before.
    slow_start(&mut flow, RTT_US + 40_000);
    // The eighth sample decides.
    assert!(slow_start(&mut flow, RTT_US + 40_000) < 1.4);
    // The round in which it began is one of the five.
    for _ in 0..3 {
        assert!(is_near(slow_start(&mut flow, RTT_US + 40_000), 1.25, 0.02));
        assert_eq!(flow.congestion.ssthresh(), CWND_MAX);
    }
    flow.round(RTT_US + 40_000);
    flow.round(RTT_US + 40_000);
    assert!(flow.congestion.ssthresh() < CWND_MAX && flow.congestion.hystart.is_finished);
}

#[test]
fn rfc9406_4_2_shorter_round_trips_end_conservative_slow_start() {
    let mut flow = Flow::new(Algorithm::Cubic, 16);
    for rtt_us in [RTT_US, RTT_US, RTT_US + 20_000] {
        slow_start(&mut flow, rtt_us);
    }
    assert!(slow_start(&mut flow, RTT_US + 20_000) < 1.4);
    slow_start(&mut flow, RTT_US);
    assert!(is_near(slow_start(&mut flow, RTT_US), 2.0, 0.01));
}

#[test]
fn rfc9406_4_3_later_slow_starts_do_without() {
    let mut flow = Flow::new(Algorithm::Cubic, 200);
    flow.congestion.on_timeout(0, true);
    flow.congestion.set_cwnd(16 * MSS);
    slow_start(&mut flow, RTT_US);
    assert!(is_near(slow_start(&mut flow, 2 * RTT_US), 2.0, 0.01));
    // But a loss that was none does not end the first one.
    let mut flow = Flow::new(Algorithm::Cubic, 200);
    flow.congestion.on_loss();
    flow.congestion.undo();
    assert!(!flow.congestion.hystart.is_finished);
}

#[test]
fn extreme_values_neither_overflow_nor_leave_the_bounds() {
    for algorithm in [Algorithm::NewReno, Algorithm::Cubic] {
        for mss in [1, 536, 65_160] {
            let mut congestion = Congestion::new(algorithm, mss, NEXT);
            let mut now = Time(1);
            for step in 0..200u64 {
                congestion.on_sent(congestion.cwnd, NEXT + 5);
                let rtt_us = if step % 3 == 0 { 1 } else { 60_000_000 };
                let acked =
                    Acked { bytes: 1 << 30, una: NEXT, nxt: NEXT + 5, rtt_us: Some(rtt_us), srtt_us: rtt_us };
                now = now.after(rtt_us * step);
                congestion.on_acked(&acked, now);
                match step % 50 {
                    30 => congestion.on_loss(),
                    40 => congestion.on_timeout(0, true),
                    _ => {}
                }
                assert!((mss..=CWND_MAX).contains(&congestion.cwnd()), "{algorithm:?} {mss} {step}");
            }
        }
    }
}
