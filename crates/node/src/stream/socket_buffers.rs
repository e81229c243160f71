//! The socket buffers of a connection over a distance.
//!
//! A path of rate R and round-trip time T needs R x T bytes of buffer at each end. A sender keeps what was not
//! acknowledged: with less the congestion window is not used. A receiver offers at most what its buffer holds. The kernel
//! grows both with use, up to `tcp_wmem` (4 MiB on most systems, which is 1 Gbit/s at 28 ms) and `tcp_rmem`.
//!
//! A send buffer that no longer grows although the window needs more is grown here, where the process has the right. It
//! never shrinks. What may wait for the window is bounded apart. A buffer that stays too small is remembered, with the
//! size that would do.

use std::sync::Once;
use std::time::Duration;

use io::{Path, SocketBuffer};

/// Interval between two looks at a connection that moves data; short beside the time in which slow start fills 4 MiB.
const LOOK: Duration = Duration::from_millis(50);
/// Kernel's memory for each byte of window: what surrounds payload, and room for the window to double.
const PER_WINDOW_BYTE: f64 = 2.7;
/// Bound of the buffer: 5 Gbit/s at 100 ms.
const BYTES_MAX: u64 = 192 << 20;
/// Below this the kernel's own limit is no obstacle worth a look.
const BYTES_MIN: u64 = 2 << 20;
/// A setting that is advised serves at least this rate, bytes per second: 1 Gbit/s.
const ADVISED_RATE: f64 = 125e6;
/// Bound of a setting that is advised.
const ADVISED_BYTES_MAX: u64 = 256 << 20;
/// Part of the largest window that arrives in each round trip where the window is the limit; while the kernel can still
/// grow the buffer it is half.
const WINDOW_USED: f64 = 0.75;
/// Successive round trips of that kind after which the receive buffer counts as too small.
const ROUND_TRIPS: u32 = 4;

/// What the buffers of a connection have come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BufferState {
    /// The send buffer was grown beyond `tcp_wmem`.
    pub(crate) is_send_forced: bool,
    /// Bytes that `tcp_wmem` and `tcp_rmem` would have to permit, where a buffer is too small for the path.
    pub(crate) send_wanted: Option<u64>,
    pub(crate) receive_wanted: Option<u64>,
}

/// The setting for a buffer of `bytes` on this path.
fn advised(bytes: u64, path: &Path) -> u64 {
    let ample = ADVISED_RATE * path.round_trip_least.as_secs_f64() * PER_WINDOW_BYTE;
    bytes.max(ample as u64).min(ADVISED_BYTES_MAX).next_power_of_two()
}

#[derive(Debug, Default)]
pub(super) struct SendBuffer {
    next: Duration,
    /// As of the last look.
    bytes: u64,
    /// The process lacks the right.
    is_refused: bool,
    is_forced: bool,
    wanted: Option<u64>,
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
        let grows = is_stuck && path.buffer_bytes >= BYTES_MIN && wanted > path.buffer_bytes;
        self.wanted = grows.then(|| advised(wanted, &path));
        grows.then_some(wanted)
    }

    /// `is_refused`: growing failed. Returns the setting that would have permitted it.
    pub(super) fn on_grown(&mut self, bytes: u64, is_refused: bool) -> Option<u64> {
        self.is_refused = is_refused;
        if is_refused {
            return self.wanted;
        }
        (self.bytes, self.is_forced, self.wanted) = (bytes / 2 * 2, true, None);
        None
    }
}

/// Watches whether the window that this end offers is what limits the sender.
#[derive(Debug, Default)]
pub(super) struct ReceiveBuffer {
    next: Duration,
    since: Duration,
    received: u64,
    /// As of the last look.
    bytes: u64,
    window_max: u64,
    /// Successive round trips in which the window was used up.
    full: u32,
    wanted: Option<u64>,
}

impl ReceiveBuffer {
    pub(super) fn is_due(&self, now: Duration) -> bool {
        now >= self.next && self.wanted.is_none()
    }

    /// `received`: bytes of the connection so far. Returns the setting that the path needs, once.
    pub(super) fn look(&mut self, now: Duration, received: u64, path: Option<Path>) -> Option<u64> {
        let passed = now.saturating_sub(self.since).as_secs_f64();
        let bytes = received - self.received;
        (self.next, self.since, self.received) = (now + LOOK, now, received);
        let path = path?;
        self.next = now + path.round_trip.max(LOOK);
        let is_stuck =
            path.receive_buffer_bytes == std::mem::replace(&mut self.bytes, path.receive_buffer_bytes);
        let window = match path.receive_window_bytes {
            0 => path.receive_buffer_bytes / 2,
            window => window,
        };
        // The window shrinks while this process is slow to read.
        self.window_max = if is_stuck { self.window_max.max(window) } else { window };
        let held = bytes as f64 / passed * path.round_trip.as_secs_f64();
        let is_full = is_stuck
            && path.receive_buffer_bytes >= BYTES_MIN
            && held >= WINDOW_USED * self.window_max as f64;
        self.full = if is_full { self.full + 1 } else { 0 };
        if self.full >= ROUND_TRIPS {
            self.wanted = Some(advised(2 * path.receive_buffer_bytes, &path));
        }
        self.wanted
    }
}

/// Logs the setting that a path needs, once in this process for each direction.
pub(super) fn say_once(buffer: SocketBuffer, bytes: u64) {
    static SAID: [Once; 2] = [const { Once::new() }; 2];
    SAID[buffer as usize].call_once(|| tracing::info!("{}", buffer.is_too_small(bytes)));
}

/// The state of both.
pub(super) fn state(send: &SendBuffer, receive: &ReceiveBuffer) -> BufferState {
    BufferState {
        is_send_forced: send.is_forced,
        send_wanted: send.wanted.filter(|_| send.is_refused),
        receive_wanted: receive.wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const RTT: Duration = Duration::from_millis(100);

    fn path(window_bytes: u64, buffer_bytes: u64) -> Option<Path> {
        Some(Path { round_trip: RTT, round_trip_least: RTT, window_bytes, buffer_bytes, ..Path::default() })
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
        assert_eq!(buffer.on_grown(BYTES_MAX, false), None);
        assert_eq!(buffer.look(Duration::ZERO, path(1 << 40, BYTES_MAX)), None);
        assert!(state(&buffer, &ReceiveBuffer::default()).is_send_forced);
        assert_eq!(SendBuffer::default().look(Duration::ZERO, None), None);
    }

    #[test]
    fn without_the_right_the_setting_for_the_path_is_known() {
        let mut buffer = SendBuffer::default();
        buffer.look(Duration::ZERO, path(3 * MIB, 4 * MIB));
        let bytes = buffer.look(Duration::ZERO, path(3 * MIB, 4 * MIB)).unwrap();
        // 1 Gbit/s at 100 ms are 12.5 MB, and the kernel counts what surrounds them.
        assert_eq!(buffer.on_grown(bytes, true), Some(64 * MIB));
        assert!(!buffer.is_due(Duration::MAX));
        let found = state(&buffer, &ReceiveBuffer::default());
        assert_eq!((found.is_send_forced, found.send_wanted), (false, Some(64 * MIB)));
    }

    /// Looks once in each round trip; `bytes` arrive in each. Returns the setting and after how many round trips.
    fn receive(buffers: &[u64], window: u64, bytes: u64) -> Option<(u64, usize)> {
        let mut buffer = ReceiveBuffer::default();
        buffers.iter().enumerate().find_map(|(index, receive_buffer_bytes)| {
            let path = Path {
                round_trip: RTT,
                round_trip_least: RTT,
                receive_buffer_bytes: *receive_buffer_bytes,
                receive_window_bytes: window,
                ..Path::default()
            };
            let index = index + 1;
            let now = RTT * index as u32;
            assert!(buffer.is_due(now));
            buffer.look(now, index as u64 * bytes, Some(path)).map(|wanted| (wanted, index))
        })
    }

    #[test]
    fn a_window_that_is_used_up_and_does_not_grow_is_too_small() {
        let stuck = [6 * MIB; 20];
        let growing: Vec<u64> = (2..22).map(|size| size * MIB).collect();
        for (buffers, window, bytes, expected, why) in [
            (&stuck[..], 3 * MIB, 3 * MIB, Some((64 * MIB, 5)), "used up"),
            (&stuck, 0, 3 * MIB, Some((64 * MIB, 5)), "half of the buffer, if unknown"),
            (&stuck, 3 * MIB, 3 * MIB / 2, None, "half is free"),
            (&growing, 3 * MIB, 3 * MIB, None, "the kernel grows it"),
            (&[MIB; 20], MIB / 2, MIB / 2, None, "small"),
            (&[80 * MIB; 20], 40 * MIB, 40 * MIB, Some((256 * MIB, 5)), "beyond the least"),
        ] {
            assert_eq!(receive(buffers, window, bytes), expected, "{why}");
        }
    }
}
