//! What samples of one socket say to a reader: rates between two of them, the parts of the send queue in bytes.

use crate::sample::Sample;

/// Figures at a moment, rates over the time before it. What the kernel does not tell is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Time that the rates are of.
    pub seconds: f64,
    /// New payload: without retransmissions, as far as the kernel counts them.
    pub sent_bytes_per_s: Option<f64>,
    pub received_bytes_per_s: Option<f64>,
    pub retransmitted_bytes_per_s: Option<f64>,
    pub rtt_us: Option<u32>,
    pub rtt_least_us: Option<u32>,
    /// Sent and not acknowledged: the waiting-ACK part of the send queue, in whole segments.
    pub waiting_ack_bytes: Option<u64>,
    /// Written and not sent.
    pub unsent_bytes: Option<u64>,
    pub congestion_window_bytes: Option<u64>,
    pub peer_window_bytes: Option<u64>,
    /// Memory of the send queue, with overhead, and its cap.
    pub queue_bytes: Option<u64>,
    pub buffer_bytes: Option<u64>,
    pub outstanding: Option<u32>,
}

impl Figures {
    /// Figures at `now`, with rates since `before`, an earlier sample of the same socket.
    pub fn of(before: &Sample, now: &Sample) -> Self {
        let seconds = now.at_ns.saturating_sub(before.at_ns) as f64 / 1e9;
        let rate = |field: fn(&Sample) -> Option<u64>| {
            let grown = field(now)?.checked_sub(field(before)?)?;
            (seconds > 0.0).then(|| grown as f64 / seconds)
        };
        let fresh = |sample: &Sample| match sample.bytes_sent {
            Some(sent) => Some(sent.saturating_sub(sample.bytes_retrans.unwrap_or(0))),
            // Before Linux 4.19.
            None => sample.bytes_acked,
        };
        let segments = |count: Option<u32>| Some(u64::from(count?) * u64::from(now.mss_bytes?));
        Self {
            seconds,
            sent_bytes_per_s: rate(fresh),
            received_bytes_per_s: rate(|sample| sample.bytes_received),
            retransmitted_bytes_per_s: rate(|sample| sample.bytes_retrans),
            rtt_us: now.rtt_us,
            rtt_least_us: now.min_rtt_us,
            waiting_ack_bytes: segments(now.unacked_segments),
            unsent_bytes: now.notsent_bytes.map(u64::from),
            congestion_window_bytes: segments(now.cwnd_segments),
            peer_window_bytes: now.peer_window_bytes.map(u64::from),
            queue_bytes: now.send_queue_bytes.map(u64::from),
            buffer_bytes: now.send_buffer_bytes.map(u64::from),
            outstanding: now.outstanding,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_new_payload() {
        let sample = |at_ns, sent, retrans| Sample {
            at_ns,
            bytes_sent: Some(sent),
            bytes_retrans: Some(retrans),
            mss_bytes: Some(1448),
            unacked_segments: Some(700),
            ..Sample::default()
        };
        let figures = Figures::of(&sample(0, 100, 0), &sample(500_000_000, 3100, 1000));
        assert_eq!((figures.seconds, figures.sent_bytes_per_s), (0.5, Some(4000.0)));
        assert_eq!(figures.retransmitted_bytes_per_s, Some(2000.0));
        assert_eq!((figures.waiting_ack_bytes, figures.unsent_bytes), (Some(700 * 1448), None));
        assert_eq!(figures.received_bytes_per_s, None);
        // Another socket's counters, or the same sample twice.
        assert_eq!(Figures::of(&sample(0, 5000, 0), &sample(1, 10, 0)).sent_bytes_per_s, None);
        assert_eq!(Figures::of(&sample(7, 10, 0), &sample(7, 10, 0)).sent_bytes_per_s, None);
    }
}
