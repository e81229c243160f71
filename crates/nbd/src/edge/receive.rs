//! The receiving half of a connection, without I/O: a stream buffer for headers and short data; the rest of long data
//! is received directly into the request's span.

use area::{Pool, Span};

use crate::limits::{OPTION_REPLY_BYTES_MAX, STRING_BYTES_MAX};
use crate::transmission::Data;

/// Size of the stream buffer, in bytes.
const BUFFER_BYTES: usize = 64 << 10;
/// Read-ahead behind long data, in bytes: one header or two, so that the next data is also received in place.
const SHORT_READ_AHEAD: usize = 512;
/// Bytes from which data is long.
const LARGE: usize = 16 << 10;
/// Bytes that a machine may need contiguously.
const UNIT_BYTES_MAX: usize = OPTION_REPLY_BYTES_MAX + 64;

const _: () = assert!(UNIT_BYTES_MAX < BUFFER_BYTES && STRING_BYTES_MAX + 64 < UNIT_BYTES_MAX);

/// The bytes received and not consumed, and the destination of the next ones.
#[derive(Debug)]
pub(super) struct Receiver {
    span: Span,
    start: usize,
    end: usize,
    /// Bytes of the receive in flight that go directly into the request's span.
    direct: usize,
    is_large: bool,
}

impl Receiver {
    pub(super) fn new(pool: &Pool) -> Option<Self> {
        Some(Self { span: pool.take(BUFFER_BYTES)?, start: 0, end: 0, direct: 0, is_large: false })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.span.range(self.start..self.end)
    }

    pub(super) fn take(&mut self, count: usize) {
        assert!(count <= self.end - self.start, "took more than there is");
        self.start += count;
    }

    /// Where the next receive writes, in this order: the rest of `data` into its `buffer`, then the stream buffer.
    pub(super) fn places(&mut self, data: Option<(Data, &Span)>) -> (Option<Span>, Span) {
        self.direct = 0;
        let mut place = None;
        if let Some((data, buffer)) = data {
            debug_assert_eq!(self.start, self.end, "what was here has been placed");
            self.direct = data.length as usize;
            self.is_large = self.direct >= LARGE;
            place = Some(buffer.slice(data.offset as usize, self.direct));
        }
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.span.len() - self.start < UNIT_BYTES_MAX {
            let rest = self.span.slice(self.start, self.end - self.start);
            self.span.fill(0, rest.as_slice());
            (self.start, self.end) = (0, rest.len());
        }
        let room = self.span.len() - self.end;
        // Enough to complete the unit that is partly in the buffer, whatever it is.
        let length = if self.is_large && self.start == self.end { SHORT_READ_AHEAD } else { room };
        (place, self.span.slice(self.end, length.min(room)))
    }

    /// Accounts for `count` bytes received into the places. Returns how many of them are in the task's buffer.
    pub(super) fn on_received(&mut self, count: usize) -> usize {
        let placed = count.min(self.direct);
        self.end += count - placed;
        self.direct = 0;
        placed
    }

    pub(super) fn on_data(&mut self, length: u32) {
        self.is_large = length as usize >= LARGE;
    }
}
