//! What one direction of a path does to frames.

use std::time::Duration;

/// Least size of the default queue.
const QUEUE_BYTES_MIN: u64 = 2 << 20;

/// Settings of one direction. Probabilities are from 0 to 1 and apply to segments.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Rate of the bottleneck in bit/s, Ethernet framing and gaps included; `None` for no limit.
    pub rate_bits_per_s: Option<f64>,
    /// Bytes that wait at the bottleneck at most; a segment beyond is dropped.
    pub queue_bytes: u64,
    /// From the bottleneck to the other side.
    pub delay: Duration,
    /// Greatest addition to the delay. Frames stay in order.
    pub jitter: Duration,
    /// Probability that a segment is lost.
    pub loss: f64,
    /// Every so manieth segment is lost; 0 for none.
    pub drop_nth: u64,
    /// Probability that a segment arrives later by `reorder_by`, out of order.
    pub reorder: f64,
    pub reorder_by: Duration,
    /// Probability that a segment arrives twice.
    pub duplicate: f64,
    /// Whether large frames are always split into their segments, as a network without offloads would carry them.
    pub in_segments: bool,
    /// Whether every arriving frame is lost. Frames that are already on the way arrive.
    pub down: bool,
}

impl Settings {
    /// One direction of a path with this round-trip time and rate. The queue has the size of the bandwidth-delay
    /// product, at least 2 MiB.
    pub fn new(rtt: Duration, rate_bits_per_s: Option<f64>) -> Self {
        let product = rate_bits_per_s.unwrap_or(0.0) * rtt.as_secs_f64() / 8.0;
        Self {
            rate_bits_per_s,
            queue_bytes: (product as u64).max(QUEUE_BYTES_MIN),
            delay: rtt / 2,
            jitter: Duration::ZERO,
            loss: 0.0,
            drop_nth: 0,
            reorder: 0.0,
            reorder_by: Duration::from_millis(1),
            duplicate: 0.0,
            in_segments: false,
            down: false,
        }
    }
}
