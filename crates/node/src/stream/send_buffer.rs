//! The send buffer of a connection over a distance.
//!
//! A sender keeps what was not acknowledged: on a path of rate R and round-trip time T its buffer must hold R x T, or the
//! congestion window is not used. The kernel grows the buffer with the window, up to `tcp_wmem`: 4 MiB, which is 1 Gbit/s
//! at 28 ms. A buffer that no longer grows although the window needs more is grown here, where the process has the right.
//! It never shrinks. What may wait for the window is bounded apart.

use std::time::Duration;

use io::Path;

/// Interval between two looks at a connection that sends; short beside the time in which slow start fills 4 MiB.
const LOOK: Duration = Duration::from_millis(50);
/// Kernel's memory for each byte of window: what surrounds payload, and room for the window to double.
const PER_WINDOW_BYTE: f64 = 2.7;
/// Bound of the buffer: 5 Gbit/s at 100 ms.
const BYTES_MAX: u64 = 192 << 20;
/// Below this the kernel's own limit is no obstacle worth a look.
const BYTES_MIN: u64 = 2 << 20;

#[derive(Debug, Default)]
pub(super) struct SendBuffer {
    next: Duration,
    /// As of the last look.
    bytes: u64,
    /// The process lacks the right.
    is_refused: bool,
}

impl SendBuffer {
    pub(super) fn is_due(&self, now: Duration) -> bool {
        now >= self.next && !self.is_refused
    }

    /// The number of bytes to grow to, if that is necessary.
    pub(super) fn look(&mut self, now: Duration, path: Option<Path>) -> Option<u64> {
        self.next = now + LOOK;
        let path = path?;
        let wanted = ((path.window_bytes as f64 * PER_WINDOW_BYTE) as u64).min(BYTES_MAX);
        let is_stuck = path.buffer_bytes == std::mem::replace(&mut self.bytes, path.buffer_bytes);
        (is_stuck && path.buffer_bytes >= BYTES_MIN && wanted > path.buffer_bytes).then_some(wanted)
    }

    /// `is_refused`: growing failed.
    pub(super) fn on_grown(&mut self, bytes: u64, is_refused: bool) {
        self.is_refused = is_refused;
        if !is_refused {
            self.bytes = bytes / 2 * 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn path(window_bytes: u64, buffer_bytes: u64) -> Option<Path> {
        Some(Path { round_trip: Duration::from_millis(100), window_bytes, buffer_bytes, ..Path::default() })
    }

    #[test]
    fn a_buffer_grows_only_where_the_kernel_has_stopped() {
        let mut buffer = SendBuffer::default();
        assert!(buffer.is_due(Duration::ZERO));
        for (window, bytes, wanted, why) in [
            (MIB, MIB, None, "small"),
            (2 * MIB, 3 * MIB, None, "the kernel still grows it"),
            (3 * MIB, 4 * MIB, None, "it has just grown"),
            (3 * MIB, 4 * MIB, Some(8_493_465), "stuck"),
            (MIB, 4 * MIB, None, "enough"),
        ] {
            assert_eq!(buffer.look(Duration::ZERO, path(window, bytes)), wanted, "{why}");
        }
        assert!(!buffer.is_due(LOOK / 2) && buffer.is_due(LOOK));
    }

    #[test]
    fn it_ends_at_its_bound_and_without_the_right() {
        let mut buffer = SendBuffer::default();
        let wide = path(1 << 40, BYTES_MAX - 2);
        assert_eq!(buffer.look(Duration::ZERO, wide), None);
        assert_eq!(buffer.look(Duration::ZERO, wide), Some(BYTES_MAX));
        buffer.on_grown(BYTES_MAX, false);
        assert_eq!(buffer.look(Duration::ZERO, path(1 << 40, BYTES_MAX)), None);
        buffer.on_grown(BYTES_MAX, true);
        assert!(!buffer.is_due(Duration::MAX));
        assert_eq!(SendBuffer::default().look(Duration::ZERO, None), None);
    }
}
