//! The stream buffer of a connection: bytes that have arrived and were not taken yet.

use std::time::Duration;

use area::{Pool, Span};

/// Stream buffer of a busy connection: batches of small PDUs.
pub(crate) const BUSY_BYTES: usize = 64 << 10;
/// Stream buffer of a connection that waits: a receive holds it for as long as nothing comes.
pub(crate) const IDLE_BYTES: usize = area::PAGE_BYTES;
/// How long a connection counts as busy after a receive that filled the small buffer.
pub(crate) const BUSY: Duration = Duration::from_secs(1);

const _: () = assert!(IDLE_BYTES < BUSY_BYTES);

/// What has arrived lies in one piece; what comes next goes behind it.
#[derive(Clone, Debug)]
pub struct Buffer {
    span: Span,
    start: usize,
    end: usize,
    /// The last receive brought more than the small buffer holds.
    filled: bool,
    busy_until: Duration,
}

impl Buffer {
    /// Nothing received yet. `None` when the pool has no memory.
    pub fn new(pool: &Pool) -> Option<Self> {
        Some(Self {
            span: pool.take(IDLE_BYTES)?,
            start: 0,
            end: 0,
            filled: false,
            busy_until: Duration::ZERO,
        })
    }

    /// Bytes that are here.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.end - self.start
    }

    /// The bytes that are here.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        self.span.range(self.start..self.end)
    }

    /// The first `count` of them have been taken.
    #[inline]
    pub(crate) fn take(&mut self, count: usize) {
        debug_assert!(count <= self.len(), "more taken than is here");
        self.start += count;
    }

    /// `count` more were received into the [room](Self::room).
    pub(crate) fn on_received(&mut self, count: usize) {
        self.end += count;
        self.filled = self.end >= IDLE_BYTES;
    }

    /// Where the next bytes go: all that is free, and at least `unit` bytes with those that are here.
    pub(crate) fn room(&mut self, pool: &Pool, now: Duration, unit: usize) -> Span {
        debug_assert!(unit < IDLE_BYTES, "what is taken at once fits in");
        self.fit(pool, now);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.span.len() - self.start < unit {
            // The head of a PDU at the end of the buffer: move it to the front. At most a few kilobytes.
            let rest = self.span.slice(self.start, self.len());
            self.span.fill(0, rest.as_slice());
            (self.start, self.end) = (0, rest.len());
        }
        self.span.slice(self.end, self.span.len() - self.end)
    }

    /// Changes to the large buffer when the small one was filled, and back when that is a while ago: the answer to a
    /// ping brings an idle session here.
    fn fit(&mut self, pool: &Pool, now: Duration) {
        if std::mem::take(&mut self.filled) {
            self.busy_until = now + BUSY;
        }
        let fitting = if now < self.busy_until { BUSY_BYTES } else { IDLE_BYTES };
        if fitting == self.span.len() {
            return;
        }
        // Without memory for a larger one, the small one does.
        let Some(span) = pool.take(fitting) else { return };
        // What is here is less than a header.
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

    /// Receives `count` bytes at `now`, takes them out, and asks for more.
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
        assert_eq!(pool.lent(), 1, "the other is back");
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
