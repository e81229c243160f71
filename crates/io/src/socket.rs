//! Scatter and gather lists for stream sockets, in the shape the kernel wants them.

use std::mem::zeroed;
use std::net::SocketAddr;

use area::Span;

/// Spans one receive may fill: the rest of a payload, its padding and digest, and the stream buffer.
pub const SPANS_PER_RECEIVE: usize = 3;
/// Pieces one send may gather, below the kernel's `UIO_MAXIOV` (1024).
const PIECES_PER_SEND: usize = 512;

/// Where the next bytes of a stream go.
#[derive(Debug)]
pub struct Incoming {
    spans: Vec<Span>,
    vectors: [libc::iovec; SPANS_PER_RECEIVE],
    header: libc::msghdr,
    /// The last receive left room: the socket had no more.
    pub(crate) took_everything: bool,
}

impl Default for Incoming {
    fn default() -> Self {
        // SAFETY: iovec and msghdr are plain C data for which all zeroes is a valid value.
        let (vectors, header) = unsafe { (zeroed(), zeroed()) };
        Self { spans: Vec::with_capacity(SPANS_PER_RECEIVE), vectors, header, took_everything: false }
    }
}

impl Incoming {
    /// Appends a place to receive into. At most [`SPANS_PER_RECEIVE`].
    pub fn push(&mut self, span: Span) {
        assert!(self.spans.len() < SPANS_PER_RECEIVE, "too many spans for one receive");
        self.spans.push(span);
    }

    /// Forgets all places.
    pub fn clear(&mut self) {
        self.spans.clear();
    }

    pub(crate) fn on_received(&mut self, result: i32) {
        let room: usize = self.spans.iter().map(Span::len).sum();
        self.took_everything = usize::try_from(result).is_ok_and(|count| count < room);
    }

    pub(crate) fn spans(&self) -> impl Iterator<Item = &Span> {
        self.spans.iter()
    }

    pub(crate) fn message(&mut self) -> *mut libc::msghdr {
        for (vector, span) in self.vectors.iter_mut().zip(&self.spans) {
            *vector = libc::iovec { iov_base: span.as_ptr().cast(), iov_len: span.len() };
        }
        self.header.msg_iov = self.vectors.as_mut_ptr();
        self.header.msg_iovlen = self.spans.len();
        &raw mut self.header
    }
}

#[derive(Debug)]
enum Piece {
    /// Part of `bytes`.
    Bytes { start: usize, end: usize },
    /// Payload by reference.
    Span(Span),
}

/// What a stream still has to send: small bytes (headers) that are copied in, and spans that are referred to.
#[derive(Debug)]
pub struct Outgoing {
    bytes: Vec<u8>,
    pieces: Vec<Piece>,
    /// Pieces already sent in full, and bytes of the next one already sent.
    sent: (usize, usize),
    vectors: Vec<libc::iovec>,
    header: libc::msghdr,
}

impl Default for Outgoing {
    fn default() -> Self {
        // SAFETY: msghdr is plain C data for which all zeroes is a valid value.
        let header = unsafe { zeroed() };
        Self { bytes: Vec::new(), pieces: Vec::new(), sent: (0, 0), vectors: Vec::new(), header }
    }
}

impl Outgoing {
    /// Appends bytes, copied: headers, digests, padding, text.
    pub fn bytes(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        let end = self.bytes.len();
        match self.pieces.last_mut() {
            Some(Piece::Bytes { end: last, .. }) if *last == start => *last = end,
            _ => self.pieces.push(Piece::Bytes { start, end }),
        }
    }

    /// Appends payload by reference; the span is kept until the bytes are sent.
    pub fn span(&mut self, span: Span) {
        self.pieces.push(Piece::Span(span));
    }

    /// Bytes left to send.
    pub(crate) fn len(&self) -> usize {
        let pieces = self.sent.0..self.pieces.len();
        pieces.map(|piece| self.length(piece)).sum::<usize>() - self.sent.1
    }

    /// The bytes that come next, as far as they lie together in a buffer; `None` when nothing is left, or they are the
    /// storage's own ([`Span::steady`]).
    pub fn front(&self) -> Option<&[u8]> {
        let bytes = match self.pieces.get(self.sent.0)? {
            Piece::Bytes { start, end } => &self.bytes[*start..*end],
            Piece::Span(span) => span.steady()?,
        };
        Some(&bytes[self.sent.1..])
    }

    /// Moves the bytes that come next, at most `count` and as far as they lie together, to the end of `into`. Errors are
    /// those of [`Span::fetch`].
    pub fn fetch(&mut self, into: &mut Vec<u8>, count: usize) -> std::io::Result<()> {
        let (piece, skip) = self.sent;
        let count = count.min(self.length(piece) - skip);
        match &self.pieces[piece] {
            Piece::Bytes { start, .. } => into.extend_from_slice(&self.bytes[start + skip..][..count]),
            Piece::Span(span) => {
                let begin = into.len();
                into.resize(begin + count, 0);
                span.fetch(skip, &mut into[begin..])?;
            }
        }
        self.advance(count);
        Ok(())
    }

    /// Whether nothing is left to send.
    pub fn is_empty(&self) -> bool {
        self.sent.0 == self.pieces.len()
    }

    /// Whether another PDU (a header piece and a payload piece) should wait for the next batch.
    pub fn is_full(&self) -> bool {
        self.pieces.len() + 2 > PIECES_PER_SEND
    }

    /// Notes that `count` more bytes were sent; when all are, the queue is empty and its memory is reused.
    pub fn advance(&mut self, mut count: usize) {
        while count > 0 {
            let left = self.length(self.sent.0) - self.sent.1;
            if count < left {
                self.sent.1 += count;
                return;
            }
            count -= left;
            self.sent = (self.sent.0 + 1, 0);
        }
        if self.is_empty() {
            self.bytes.clear();
            self.pieces.clear();
            self.sent = (0, 0);
        }
    }

    fn length(&self, piece: usize) -> usize {
        match &self.pieces[piece] {
            Piece::Bytes { start, end } => end - start,
            Piece::Span(span) => span.len(),
        }
    }

    /// Those that are not sent in full.
    pub(crate) fn spans(&self) -> impl Iterator<Item = &Span> {
        self.pieces[self.sent.0..].iter().filter_map(|piece| match piece {
            Piece::Span(span) => Some(span),
            Piece::Bytes { .. } => None,
        })
    }

    pub(crate) fn message(&mut self) -> *const libc::msghdr {
        self.vectors.clear();
        let mut skip = self.sent.1;
        for piece in &self.pieces[self.sent.0..] {
            let (base, length) = match piece {
                Piece::Bytes { start, end } => (self.bytes[*start..*end].as_ptr(), end - start),
                Piece::Span(span) => (span.as_ptr().cast_const(), span.len()),
            };
            // SAFETY: `skip` is less than the length of the first piece (kept by `advance`), zero after it.
            let base = unsafe { base.add(skip) };
            self.vectors.push(libc::iovec { iov_base: base.cast_mut().cast(), iov_len: length - skip });
            skip = 0;
        }
        self.header.msg_iov = self.vectors.as_mut_ptr();
        self.header.msg_iovlen = self.vectors.len();
        &raw const self.header
    }
}

/// A socket address in the kernel's form.
#[derive(Debug)]
pub struct Address {
    storage: socket2::SockAddr,
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self { storage: address.into() }
    }
}

impl Address {
    pub(crate) fn as_raw(&self) -> (*const libc::sockaddr, u32) {
        (self.storage.as_ptr().cast(), self.storage.len())
    }
}
