//! `tcp_info` and `SO_MEMINFO` as bytes of the kernel, which gives as many of them as its version has.

use crate::sample::{CaState, Sample};

/// Bytes of `tcp_info` that this program reads; newer kernels have more.
pub(super) const INFO_BYTES: usize = 248;
/// `SK_MEMINFO_VARS` words.
pub(super) const MEMORY_BYTES: usize = 9 * 4;
/// The part of `struct tcp_bbr_info` that is read.
pub(super) const BBR_BYTES: usize = 8;

struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn u8(&self, at: usize) -> Option<u8> {
        self.0.get(at).copied()
    }

    fn u16(&self, at: usize) -> Option<u16> {
        Some(u16::from_ne_bytes(self.0.get(at..at + 2)?.try_into().ok()?))
    }

    fn u32(&self, at: usize) -> Option<u32> {
        Some(u32::from_ne_bytes(self.0.get(at..at + 4)?.try_into().ok()?))
    }

    fn u64(&self, at: usize) -> Option<u64> {
        Some(u64::from_ne_bytes(self.0.get(at..at + 8)?.try_into().ok()?))
    }
}

/// Fills in what `struct tcp_info` of include/uapi/linux/tcp.h tells. Fields beyond the end stay `None`.
pub(super) fn fill(bytes: &[u8], sample: &mut Sample) {
    let info = Words(bytes);
    let Some(state) = info.u8(0) else { return };
    sample.state = state;
    sample.ca_state = info.u8(1).and_then(ca_state);
    let scales = info.u8(6).map(u32::from);
    sample.peer_window_scale = scales.map(|scales| scales & 15);
    sample.receive_window_scale = scales.map(|scales| scales >> 4);
    sample.mss_bytes = info.u32(16);
    sample.unacked_segments = info.u32(24);
    sample.sacked_segments = info.u32(28);
    sample.lost_segments = info.u32(32);
    sample.retrans_segments = info.u32(36);
    // 0: no acknowledgement has been timed yet.
    sample.rtt_us = info.u32(68).filter(|us| *us > 0);
    sample.rttvar_us = info.u32(72).filter(|_| sample.rtt_us.is_some());
    sample.ssthresh_segments = info.u32(76);
    sample.cwnd_segments = info.u32(80);
    sample.total_retrans = info.u32(100);
    sample.pacing_bytes_per_s = info.u64(104).filter(|rate| *rate != u64::MAX);
    sample.bytes_acked = info.u64(120);
    sample.bytes_received = info.u64(128);
    sample.segs_out = info.u32(136);
    sample.segs_in = info.u32(140);
    sample.notsent_bytes = info.u32(144);
    sample.min_rtt_us = info.u32(148).filter(|us| *us != u32::MAX);
    sample.data_segs_in = info.u32(152);
    sample.data_segs_out = info.u32(156);
    sample.delivery_bytes_per_s = info.u64(160).filter(|rate| *rate > 0);
    // A bit beside the window scales, older kernels leave it 0: known since there is a delivery rate (4.9).
    sample.app_limited = info.u8(7).filter(|_| info.u64(160).is_some()).map(|bits| bits & 1 == 1);
    sample.busy_us = info.u64(168);
    sample.rwnd_limited_us = info.u64(176);
    sample.sndbuf_limited_us = info.u64(184);
    sample.delivered_ce = info.u32(196);
    sample.bytes_sent = info.u64(200);
    sample.bytes_retrans = info.u64(208);
    sample.dsack_dups = info.u32(216);
    sample.reord_seen = info.u32(220);
    sample.peer_window_bytes = info.u32(228);
    sample.receive_window_bytes = info.u32(232);
    sample.total_rto = info.u16(240).map(u32::from);
}

/// Fills in the words of `SO_MEMINFO` (include/uapi/linux/sock_diag.h).
pub(super) fn fill_memory(bytes: &[u8], sample: &mut Sample) {
    let words = Words(bytes);
    sample.receive_queue_bytes = words.u32(0);
    sample.receive_buffer_bytes = words.u32(4);
    sample.send_buffer_bytes = words.u32(12);
    sample.send_queue_bytes = words.u32(20);
    sample.drops = words.u32(32);
}

/// Fills in BBR's estimate of the path (`struct tcp_bbr_info`).
pub(super) fn fill_bbr(bytes: &[u8], sample: &mut Sample) {
    let words = Words(bytes);
    if let (Some(low), Some(high)) = (words.u32(0), words.u32(4)) {
        // 0: nothing has been delivered yet.
        sample.bbr_bytes_per_s = Some(u64::from(high) << 32 | u64::from(low)).filter(|rate| *rate > 0);
    }
}

pub(super) fn ca_state(number: u8) -> Option<CaState> {
    Some(match number {
        0 => CaState::Open,
        1 => CaState::Disorder,
        2 => CaState::Cwr,
        3 => CaState::Recovery,
        4 => CaState::Loss,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `tcp_info` whose every word is its own offset.
    fn numbered(bytes: usize) -> Vec<u8> {
        let words = (0..bytes as u32).step_by(4).flat_map(u32::to_ne_bytes);
        words.take(bytes).collect()
    }

    fn of(bytes: &[u8]) -> Sample {
        let mut sample = Sample::default();
        fill(bytes, &mut sample);
        sample
    }

    #[test]
    fn fields_lie_where_the_kernel_has_them() {
        let sample = of(&numbered(248));
        let low = |at: u64| Some(at | (at + 4) << 32);
        assert_eq!(sample.mss_bytes, Some(16));
        assert_eq!([sample.unacked_segments, sample.rtt_us, sample.cwnd_segments], [24, 68, 80].map(Some));
        assert_eq!([sample.notsent_bytes, sample.min_rtt_us], [144, 148].map(Some));
        assert_eq!([sample.bytes_acked, sample.delivery_bytes_per_s], [low(120), low(160)]);
        assert_eq!([sample.busy_us, sample.sndbuf_limited_us], [low(168), low(184)]);
        assert_eq!([sample.peer_window_bytes, sample.receive_window_bytes], [228, 232].map(Some));
        assert_eq!([sample.delivered_ce, sample.total_rto], [196, 240].map(Some));
    }

    /// Linux release, bytes of its `tcp_info`, and how many of the fields below it has.
    const RELEASES: &[(&str, usize, [bool; 5])] = &[
        ("2.6", 104, [false, false, false, false, false]),
        ("4.1", 136, [true, false, false, false, false]),
        ("4.18", 200, [true, true, false, false, false]),
        ("4.19", 224, [true, true, true, false, false]),
        ("5.4", 232, [true, true, true, true, false]),
        ("6.7", 248, [true, true, true, true, true]),
        ("6.18", 280, [true, true, true, true, true]),
    ];

    #[test]
    fn what_an_older_kernel_lacks_is_unknown_and_not_zero() {
        for (release, bytes, known) in RELEASES {
            let sample = of(&numbered(*bytes));
            let found = [
                sample.bytes_acked.is_some(),
                sample.delivered_ce.is_some() && sample.app_limited.is_some(),
                sample.bytes_sent.is_some(),
                sample.peer_window_bytes.is_some(),
                sample.total_rto.is_some(),
            ];
            assert_eq!(found, *known, "Linux {release}");
            assert!(sample.cwnd_segments.is_some());
        }
    }

    #[test]
    fn any_length_is_read() {
        let all = numbered(280);
        for length in 0..=all.len() {
            let sample = of(&all[..length]);
            assert_eq!(sample.rtt_us.is_some(), length >= 72, "{length}");
            assert_eq!(sample.notsent_bytes.is_some(), length >= 148, "{length}");
            fill_memory(&all[..length], &mut Sample::default());
            fill_bbr(&all[..length], &mut Sample::default());
        }
    }

    #[test]
    fn unlimited_and_unmeasured_values_are_unknown() {
        let mut bytes = numbered(280);
        bytes[104..112].fill(0xff);
        bytes[148..152].fill(0xff);
        bytes[68..72].fill(0);
        let sample = of(&bytes);
        assert_eq!((sample.pacing_bytes_per_s, sample.min_rtt_us), (None, None));
        assert_eq!((sample.rtt_us, sample.rttvar_us), (None, None));
    }
}
