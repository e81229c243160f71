//! The stream buffer of a connection: bytes received and not yet consumed.

use std::time::Duration;

use area::{Pool, Span};

/// Size of the stream buffer of a busy connection: one receive can return many small PDUs.
pub(crate) const BUSY_BYTES: usize = 64 << 10;
/// Size of the stream buffer of an idle connection: the pending receive holds this memory.
pub(crate) const IDLE_BYTES: usize = area::PAGE_BYTES;
/// How long a connection counts as busy after a receive that filled the small buffer.
pub(crate) const BUSY: Duration = Duration::from_secs(1);

const _: () = assert!(IDLE_BYTES < BUSY_BYTES);

/// The received bytes are contiguous; the next receive writes after them.
#[derive(Clone, Debug)]
pub struct Buffer {
    span: Span,
    start: usize,
    end: usize,
    /// The last receive filled at least the size of the small buffer.
    filled: bool,
    busy_until: Duration,
}

impl Buffer {
    pub fn new(pool: &Pool) -> Option<Self> {
        Some(Self {
            span: pool.take(IDLE_BYTES)?,
            start: 0,
            end: 0,
            filled: false,
            busy_until: Duration::ZERO,
        })
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.end - self.start
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        self.span.range(self.start..self.end)
    }

    #[inline]
    pub(crate) fn take(&mut self, count: usize) {
        debug_assert!(count <= self.len(), "more taken than is here");
        self.start += count;
    }

    /// Accounts for `count` bytes received into the [room](Self::room).
    pub(crate) fn on_received(&mut self, count: usize) {
        self.end += count;
        self.filled = self.end >= IDLE_BYTES;
    }

    /// The free space for the next receive; together with the bytes present at least `unit` bytes long.
    pub(crate) fn room(&mut self, pool: &Pool, now: Duration, unit: usize) -> Span {
        debug_assert!(unit < IDLE_BYTES, "what is taken at once fits in");
        self.fit(pool, now);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.span.len() - self.start < unit {
            // The start of a PDU is at the end of the buffer: moves it to the front. At most a few kilobytes.
            let rest = self.span.slice(self.start, self.len());
            self.span.fill(0, rest.as_slice());
            (self.start, self.end) = (0, rest.len());
        }
        self.span.slice(self.end, self.span.len() - self.end)
    }

    /// Changes to the large buffer after a receive filled the small one, and back once the busy time is over. An idle
    /// session gets here at the latest with the reply to its next NOP.
    fn fit(&mut self, pool: &Pool, now: Duration) {
        if std::mem::take(&mut self.filled) {
            self.busy_until = now + BUSY;
        }
        let fitting = if now < self.busy_until { BUSY_BYTES } else { IDLE_BYTES };
        if fitting == self.span.len() {
            return;
        }
        // If the pool has no memory for the larger buffer, the small one stays in use.
        let Some(span) = pool.take(fitting) else { return };
        // The bytes present are fewer than a header.
        let rest = self.bytes();
        span.fill(0, rest);
        (self.start, self.end) = (0, rest.len());
        self.span = span;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: usize = 48;

    /// Receives `count` bytes at `now`, consumes them, and requests room.
    fn pass(buffer: &mut Buffer, pool: &Pool, now: Duration, count: usize) {
        let mut left = count;
        while left > 0 {
            let room = buffer.room(pool, now, HEAD);
            buffer.on_received(left.min(room.len()));
            left -= buffer.len();
            buffer.take(buffer.len());
        }
        buffer.room(pool, now, HEAD);
    }

    #[test]
    fn the_large_buffer_is_held_only_while_busy() {
        let pool = Pool::new(area::PoolLimits::default());
        let mut buffer = Buffer::new(&pool).unwrap();
        let now = Duration::from_secs(100);
        pass(&mut buffer, &pool, now, HEAD);
        assert_eq!(buffer.span.len(), IDLE_BYTES, "a PDU now and then");
        pass(&mut buffer, &pool, now, 3 * IDLE_BYTES);
        assert_eq!(buffer.span.len(), BUSY_BYTES, "a batch");
        pass(&mut buffer, &pool, now + BUSY / 2, HEAD);
        assert_eq!(buffer.span.len(), BUSY_BYTES, "shortly after a batch");
        pass(&mut buffer, &pool, now + BUSY, HEAD);
        assert_eq!(buffer.span.len(), IDLE_BYTES, "long after it");
        assert_eq!(pool.borrowed(), 1, "the other is back");
    }

    #[test]
    fn the_head_of_a_pdu_moves_to_the_other_buffer() {
        let pool = Pool::new(area::PoolLimits::default());
        let mut buffer = Buffer::new(&pool).unwrap();
        let head: Vec<u8> = (1..40).collect();
        buffer.start = IDLE_BYTES - head.len();
        buffer.end = IDLE_BYTES;
        buffer.span.fill(buffer.start, &head);
        buffer.filled = true;
        buffer.fit(&pool, Duration::ZERO);
        assert_eq!(buffer.span.len(), BUSY_BYTES);
        assert_eq!(buffer.bytes(), head);
    }
}
