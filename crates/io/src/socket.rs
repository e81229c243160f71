//! Scatter and gather lists for stream sockets, in the form of `msghdr`.

use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use area::Span;
use rustix::net::sockopt;

/// Most spans of one receive: the rest of a payload, its padding and digest, and the stream buffer.
pub const SPANS_PER_RECEIVE: usize = 3;
/// Most segments that one send gathers, below the kernel's `UIO_MAXIOV` (1024).
const SEGMENTS_PER_SEND: usize = 512;

/// The memory for the next bytes of a stream. The owner pushes spans, passes the list to
/// [`Io::receive`](crate::Io::receive), and gets it back with the event; it clears the list before reuse.
#[derive(Debug)]
pub struct Incoming {
    spans: Vec<Span>,
    vectors: [libc::iovec; SPANS_PER_RECEIVE],
    header: libc::msghdr,
    /// The last receive did not fill the spans: the socket was empty.
    pub(crate) emptied_socket: bool,
}

impl Default for Incoming {
    fn default() -> Self {
        // SAFETY: iovec and msghdr are plain C data for which all zeroes is a valid value.
        let (vectors, header) = unsafe { (zeroed(), zeroed()) };
        Self { spans: Vec::with_capacity(SPANS_PER_RECEIVE), vectors, header, emptied_socket: false }
    }
}

impl Incoming {
    pub fn push(&mut self, span: Span) {
        assert!(self.spans.len() < SPANS_PER_RECEIVE, "too many spans for one receive");
        self.spans.push(span);
    }

    pub fn clear(&mut self) {
        self.spans.clear();
    }

    pub(crate) fn on_received(&mut self, result: i32) {
        let room: usize = self.spans.iter().map(Span::len).sum();
        self.emptied_socket = usize::try_from(result).is_ok_and(|count| count < room);
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
enum Segment {
    Bytes { start: usize, end: usize },
    Span(Span),
}

impl Segment {
    fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        match self {
            Self::Span(span) => span.file(),
            Self::Bytes { .. } => None,
        }
    }
}

/// The unsent data of a stream: small bytes (headers), which are copied in, and spans, which are referenced.
///
/// The owner appends data, passes the queue to [`Io::send`](crate::Io::send), gets it back with the event, and calls
/// [`Self::advance`] with the count of the event. A span is released once all of the queue is sent.
#[derive(Debug)]
pub struct Outgoing {
    bytes: Vec<u8>,
    segments: Vec<Segment>,
    /// Parts of files among them.
    files: usize,
    /// Segments sent completely, and bytes sent of the next segment.
    sent: (usize, usize),
    vectors: Vec<libc::iovec>,
    header: libc::msghdr,
}

impl Default for Outgoing {
    fn default() -> Self {
        // SAFETY: msghdr is plain C data for which all zeroes is a valid value.
        let header = unsafe { zeroed() };
        Self { bytes: Vec::new(), segments: Vec::new(), files: 0, sent: (0, 0), vectors: Vec::new(), header }
    }
}

impl Outgoing {
    pub fn bytes(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        let end = self.bytes.len();
        match self.segments.last_mut() {
            Some(Segment::Bytes { end: last, .. }) if *last == start => *last = end,
            _ => self.segments.push(Segment::Bytes { start, end }),
        }
    }

    /// Appends payload by reference; the span is kept until the bytes are sent.
    pub fn span(&mut self, span: Span) {
        self.files += usize::from(span.file().is_some());
        self.segments.push(Segment::Span(span));
    }

    pub fn len(&self) -> usize {
        let segments = self.sent.0..self.segments.len();
        segments.map(|segment| self.length(segment)).sum::<usize>() - self.sent.1
    }

    /// The next bytes that are contiguous in memory; `None` if nothing is left, or if the storage may change them
    /// ([`Span::steady`]).
    pub fn front(&self) -> Option<&[u8]> {
        let bytes = match self.segments.get(self.sent.0)? {
            Segment::Bytes { start, end } => &self.bytes[*start..*end],
            Segment::Span(span) => span.steady()?,
        };
        Some(&bytes[self.sent.1..])
    }

    /// Moves the next contiguous bytes, at most `count`, to the end of `into`. Errors are those of [`Span::fetch`].
    pub fn fetch(&mut self, into: &mut Vec<u8>, count: usize) -> io::Result<()> {
        let (segment, skip) = self.sent;
        let count = count.min(self.length(segment) - skip);
        match &self.segments[segment] {
            Segment::Bytes { start, .. } => into.extend_from_slice(&self.bytes[start + skip..][..count]),
            Segment::Span(span) => {
                let begin = into.len();
                into.resize(begin + count, 0);
                span.fetch(skip, &mut into[begin..])?;
            }
        }
        self.advance(count);
        Ok(())
    }

    pub fn is_empty(&self) -> bool {
        self.sent.0 == self.segments.len()
    }

    /// Whether the next PDU (a header segment and a payload segment) must wait for the next send.
    pub fn is_full(&self) -> bool {
        self.segments.len() + 2 > SEGMENTS_PER_SEND
    }

    /// Records that `count` more bytes were sent; after the last byte the queue is empty and keeps its memory.
    pub fn advance(&mut self, mut count: usize) {
        while count > 0 {
            let left = self.length(self.sent.0) - self.sent.1;
            if count < left {
                self.sent.1 += count;
                return;
            }
            count -= left;
            self.files -= usize::from(self.segments[self.sent.0].file().is_some());
            self.sent = (self.sent.0 + 1, 0);
        }
        if self.is_empty() {
            self.bytes.clear();
            self.segments.clear();
            (self.sent, self.files) = ((0, 0), 0);
        }
    }

    fn length(&self, segment: usize) -> usize {
        match &self.segments[segment] {
            Segment::Bytes { start, end } => end - start,
            Segment::Span(span) => span.len(),
        }
    }

    /// Spans that are not sent completely.
    pub(crate) fn spans(&self) -> impl Iterator<Item = &Span> {
        self.segments[self.sent.0..].iter().filter_map(|segment| match segment {
            Segment::Span(span) => Some(span),
            Segment::Bytes { .. } => None,
        })
    }

    /// Whether a part of what is not sent is a file's, which has no address.
    pub(crate) fn has_files(&self) -> bool {
        self.files > 0
    }

    pub(crate) fn message(&mut self) -> *const libc::msghdr {
        self.gather(self.sent);
        &raw const self.header
    }

    /// Makes the message of the bytes in memory from a place on, up to the next file. Returns their number, and the segment
    /// behind them.
    fn gather(&mut self, (first, mut skip): (usize, usize)) -> (usize, usize) {
        self.vectors.clear();
        let (mut total, mut behind) = (0, first);
        for segment in &self.segments[first..] {
            let (base, length) = match segment {
                Segment::Bytes { start, end } => (self.bytes[*start..*end].as_ptr(), end - start),
                Segment::Span(span) if span.file().is_some() => break,
                Segment::Span(span) => (span.as_ptr().cast_const(), span.len()),
            };
            // SAFETY: `skip` is less than the length of the first segment (kept by `advance`), zero after it.
            let base = unsafe { base.add(skip) };
            self.vectors.push(libc::iovec { iov_base: base.cast_mut().cast(), iov_len: length - skip });
            (total, behind, skip) = (total + length - skip, behind + 1, 0);
        }
        self.header.msg_iov = self.vectors.as_mut_ptr();
        self.header.msg_iovlen = self.vectors.len();
        (total, behind)
    }

    /// Sends what the socket takes without blocking; returns bytes sent. The pages of a file are not copied: the socket
    /// refers to them until the peer has the bytes, and sends what is stored there then. `WouldBlock`: it takes nothing.
    /// EFAULT: the file has shrunk, as for a mapping of it. `socket` is one of [`crate::send_by_reference`].
    pub(crate) fn send_now(&mut self, socket: &OwnedFd) -> io::Result<usize> {
        // Without it the end of each file's part would leave as a short segment of its own.
        let is_corked = self.files > 1;
        if is_corked {
            sockopt::set_tcp_cork(socket, true)?;
        }
        let result = self.send_parts(socket);
        if is_corked {
            sockopt::set_tcp_cork(socket, false)?;
        }
        result
    }

    fn send_parts(&mut self, socket: &OwnedFd) -> io::Result<usize> {
        let (mut at, mut total) = (self.sent, 0);
        while let Some(segment) = self.segments.get(at.0) {
            let (length, behind, sent) = match segment.file() {
                Some((file, offset)) => {
                    let length = self.length(at.0) - at.1;
                    (length, at.0 + 1, send_file(socket, file, offset + at.1 as u64, length))
                }
                None => {
                    let (length, behind) = self.gather(at);
                    // SAFETY: the message, its vectors and their bytes live through the call.
                    (length, behind, unsafe {
                        send_message(socket, &raw const self.header, behind < self.segments.len())
                    })
                }
            };
            match sent {
                Ok(count) => total += count,
                Err(error) if total == 0 => return Err(error),
                // The next send meets it again.
                Err(_) => {}
            }
            if !matches!(sent, Ok(count) if count == length) {
                break;
            }
            at = (behind, 0);
        }
        Ok(total)
    }
}

/// `sendmsg` without blocking. `has_more`: more bytes follow at once.
///
/// # Safety
/// The message, its vectors and their bytes are live.
unsafe fn send_message(socket: &OwnedFd, message: *const libc::msghdr, has_more: bool) -> io::Result<usize> {
    let more = if has_more { libc::MSG_MORE } else { 0 };
    // SAFETY: the caller guarantees the message.
    let count =
        unsafe { libc::sendmsg(socket.as_raw_fd(), message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | more) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// Sends bytes of a file that lie in memory.
fn send_file(socket: &OwnedFd, file: BorrowedFd<'_>, mut offset: u64, length: usize) -> io::Result<usize> {
    match rustix::fs::sendfile(socket, file, Some(&mut offset), length)? {
        0 => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        count => Ok(count),
    }
}
