//! TLS 1.3 around the whole stream, by rustls; the iSCSI inside is unchanged.
//!
//! rustls opens records in the receive area that the socket filled, and seals records into areas that the socket sends.
//! It copies each byte once more in either direction, through its own memory of the size of a record. It does no I/O,
//! so no call here blocks.
//!
//! Until the handshake is complete, no plaintext exists to be processed.

use std::time::Duration;

use area::{Pool, Span};
use io::Outgoing;
use iscsi::machine::{Fatal, Machine, TaskId};
use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedStatus, WriteTraffic};
use rustls::{ContentType, Error};

use super::plain;
use crate::reassembly::{Advance, Reassembly};

/// Plaintext of a full record, in bytes (RFC 8446 §5.1).
const RECORD_BYTES: usize = 16 << 10;
/// Bytes that protection adds to a record: header, content type, tag.
const RECORD_OVERHEAD: usize = 5 + 1 + 16;
/// Bytes of a record that rustls may put before the requested ones: a key update.
const SLACK_BYTES: usize = 256;
const BUFFER_BYTES: usize = 256 << 10;
/// Bytes of the receive area of an idle connection: room for one record.
const IDLE_BUFFER_BYTES: usize = 32 << 10;
/// How long a connection counts as busy after a receive of more than a record.
const BUSY: Duration = Duration::from_secs(1);
/// Bytes of an area for records to send, and the number of areas of one send: together they stay in the cache.
const SEND_AREA_BYTES: usize = 256 << 10;
const SEND_AREAS: usize = 2;

const _: () = assert!(IDLE_BUFFER_BYTES > RECORD_BYTES + 256 + 5, "a record fits, as long as it may be");

#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    #[error("the peer does not speak TLS, which this connection requires: it seems to speak plain iSCSI")]
    NotTls,
    #[error("the certificate of the peer is not trusted: {0}")]
    Untrusted(String),
    #[error("TLS: {0}")]
    Failed(String),
}

impl From<Error> for TlsError {
    fn from(error: Error) -> Self {
        match error {
            Error::InvalidCertificate(cause) => Self::Untrusted(cause.to_string()),
            Error::AlertReceived(alert) => Self::Failed(format!("the peer ends it with the alert {alert:?}")),
            other => Self::Failed(other.to_string()),
        }
    }
}

impl From<TlsError> for Fatal {
    fn from(error: TlsError) -> Self {
        match error {
            TlsError::Untrusted(_) => Self::Untrusted(error.to_string()),
            _ => Self::Protection(error.to_string()),
        }
    }
}

/// One side of the handshake; afterwards both sides behave the same.
pub(crate) enum End {
    Client(Box<UnbufferedClientConnection>),
    Server(Box<UnbufferedServerConnection>),
}

enum Progress {
    /// Progress: pass the remaining records again.
    Again,
    /// A record was opened to plaintext.
    Plain,
    /// More bytes are needed to complete the handshake.
    Blocked,
    /// All complete records are opened, and rustls can seal.
    Open,
    /// The peer has closed its direction by a close_notify.
    Closed,
}

pub(crate) struct Tls {
    end: End,
    open: bool,
    closed: bool,
    /// Received bytes that are not opened are in `start..end_of`.
    buffer: Span,
    start: usize,
    end_of: usize,
    /// Bytes from `start` without a complete record: an incomplete one, or parts of a handshake message.
    settled: usize,
    large: bool,
    filled: bool,
    busy_until: Duration,
    /// Plaintext for which the reassembly had no room yet: less than a record.
    plain: Vec<u8>,
    taken: usize,
    /// Records that rustls generates itself: handshake, key update, alert.
    control: Vec<u8>,
    /// Bytes to be sealed; at most those of one call of `gather`.
    queue: Outgoing,
    /// The plaintext of a record that is collected from several spans.
    record: Vec<u8>,
    reassembly: Reassembly,
}

impl Tls {
    /// `None` if the pool has no memory for a receive area.
    pub(super) fn new(end: End, reassembly: Reassembly, pool: &Pool) -> Option<Self> {
        Some(Self {
            end,
            open: false,
            closed: false,
            buffer: pool.take(IDLE_BUFFER_BYTES)?,
            start: 0,
            end_of: 0,
            settled: 0,
            large: false,
            filled: false,
            busy_until: Duration::ZERO,
            plain: Vec::new(),
            taken: 0,
            control: Vec::new(),
            queue: Outgoing::default(),
            record: Vec::with_capacity(RECORD_BYTES),
            reassembly,
        })
    }

    /// At the end of the stream: why this is not an orderly end. Only a close_notify distinguishes the peer's close
    /// from truncation by an attacker (RFC 8446 §6.1).
    pub(crate) fn cut_short(&self) -> Option<&'static str> {
        match (self.closed, self.open) {
            (true, _) => None,
            (false, true) => Some("the connection was cut: the peer did not end TLS"),
            (false, false) => {
                Some("the peer closed the connection during the TLS handshake; it may not speak TLS")
            }
        }
    }

    pub(crate) fn suite(&self) -> Option<&'static str> {
        let suite = match &self.end {
            End::Client(client) => client.negotiated_cipher_suite(),
            End::Server(server) => server.negotiated_cipher_suite(),
        };
        suite.and_then(|suite| suite.suite().as_str())
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.queue.is_empty() && self.control.is_empty()
    }

    /// Where the next receive writes. Empty only if the area is full without a whole record: an invalid peer.
    pub(crate) fn room(&mut self, pool: &Pool, now: Duration) -> Span {
        self.fit_buffer(pool, now);
        let pending = self.end_of - self.start;
        if pending == 0 {
            (self.start, self.end_of) = (0, 0);
        } else if self.start > 0 {
            // The start of a record or of a handshake message.
            let rest = self.buffer.slice(self.start, pending);
            self.buffer.fill(0, rest.as_slice());
            (self.start, self.end_of) = (0, pending);
        }
        self.buffer.slice(self.end_of, self.buffer.len() - self.end_of)
    }

    fn fit_buffer(&mut self, pool: &Pool, now: Duration) {
        if std::mem::take(&mut self.filled) {
            self.busy_until = now + BUSY;
        }
        let pending = self.end_of - self.start;
        // A handshake message may be as long as four records.
        let large = now < self.busy_until || pending > IDLE_BUFFER_BYTES / 2;
        if large == self.large {
            return;
        }
        // If the pool has no memory for the larger area, the small one stays in use.
        let Some(buffer) = pool.take(if large { BUFFER_BYTES } else { IDLE_BUFFER_BYTES }) else { return };
        buffer.fill(0, self.buffer.range(self.start..self.end_of));
        (self.buffer, self.start, self.end_of, self.large) = (buffer, 0, pending, large);
    }

    pub(crate) fn on_received(&mut self, count: usize) {
        self.end_of += count;
        self.filled = count > RECORD_BYTES;
    }

    /// Payload bytes copied into their place after decryption.
    pub(super) fn copied(&self) -> u64 {
        self.reassembly.copied()
    }

    pub(super) fn advance(
        &mut self,
        machine: &mut impl Machine,
        buffer_of: impl Fn(TaskId) -> Option<Span>,
        pool: &Pool,
        now: Duration,
    ) -> Result<Advance, Fatal> {
        loop {
            match self.reassembly.advance(machine, &buffer_of, now)? {
                Advance::Starved if self.feed(pool, now)? => {}
                advance => return Ok(advance),
            }
        }
    }

    /// Passes at most one record of plaintext to the reassembly. False: no plaintext until more bytes are received.
    fn feed(&mut self, pool: &Pool, now: Duration) -> Result<bool, TlsError> {
        if self.taken < self.plain.len() {
            self.taken += put(&mut self.reassembly, pool, now, &self.plain[self.taken..]);
            if self.taken == self.plain.len() {
                self.plain.clear();
                self.taken = 0;
            }
            return Ok(true);
        }
        if self.end_of > self.start && !self.open && !self.looks_like_tls() {
            return Err(TlsError::NotTls);
        }
        loop {
            let (plain, control) = (&mut self.plain, &mut self.control);
            let reassembly = &mut self.reassembly;
            let hand_over = |bytes: &[u8]| {
                let count = if plain.is_empty() { put(reassembly, pool, now, bytes) } else { 0 };
                plain.extend_from_slice(&bytes[count..]);
            };
            let (start, length, end) = (self.start, self.end_of - self.start, &mut self.end);
            let (discard, progress) = self.buffer.change(start, length, |records| match end {
                End::Client(client) => {
                    progress(client.process_tls_records(records), control, hand_over, |_| ())
                }
                End::Server(server) => {
                    progress(server.process_tls_records(records), control, hand_over, |_| ())
                }
            });
            self.start += discard;
            // Plaintext was returned, so no record is incomplete up to here; the bytes after it were not examined.
            self.settled = 0;
            match progress.map_err(|error| self.fail(error))? {
                Progress::Again => {}
                Progress::Plain => return Ok(true),
                // Bytes after a close_notify are ignored (RFC 8446 §6.1).
                Progress::Closed => {
                    (self.closed, self.start) = (true, self.end_of);
                    return Ok(false);
                }
                other => {
                    self.settled = self.end_of - self.start;
                    self.open |= matches!(other, Progress::Open);
                    return Ok(false);
                }
            }
        }
    }

    /// Stops opening and sealing; the alert of rustls is still sent.
    fn fail(&mut self, error: TlsError) -> TlsError {
        self.open = false;
        // rustls has a record to be written, so it does not examine the records passed to it.
        loop {
            let control = &mut self.control;
            let _ = match &mut self.end {
                End::Client(client) if client.wants_write() => {
                    progress(client.process_tls_records(&mut []), control, |_| (), |_| ())
                }
                End::Server(server) if server.wants_write() => {
                    progress(server.process_tls_records(&mut []), control, |_| (), |_| ())
                }
                _ => return error,
            };
        }
    }

    fn looks_like_tls(&self) -> bool {
        let first = self.buffer.range(self.start..self.start + 1)[0];
        [
            ContentType::Handshake,
            ContentType::Alert,
            ContentType::ChangeCipherSpec,
            ContentType::ApplicationData,
        ]
        .into_iter()
        .any(|known| u8::from(known) == first)
    }

    pub(super) fn gather(
        &mut self,
        pool: &Pool,
        outgoing: &mut Outgoing,
        machine: &mut impl Machine,
        bytes: usize,
        buffer_of: &impl Fn(TaskId) -> Option<Span>,
    ) -> Result<(), Fatal> {
        // The queue must be empty before it is filled, which bounds it.
        if self.queue.is_empty() {
            plain::gather(&mut self.queue, machine, bytes, buffer_of);
        }
        Ok(self.seal(outgoing, pool)?)
    }

    /// Appends records to be sent: first those of rustls itself, then a bounded part of the queue.
    fn seal(&mut self, outgoing: &mut Outgoing, pool: &Pool) -> Result<(), TlsError> {
        for _ in 0..SEND_AREAS {
            outgoing.bytes(&self.control);
            self.control.clear();
            if !self.open || self.queue.is_empty() {
                break;
            }
            if let Some(area) = pool.take(SEND_AREA_BYTES) {
                let used = area.change(0, SEND_AREA_BYTES, |area| self.seal_into(area))?;
                outgoing.span(area.slice(0, used));
            } else if outgoing.is_empty() {
                // Without memory from the pool, one record at a time is sealed on the heap and copied.
                let mut area = vec![0; RECORD_BYTES + RECORD_OVERHEAD + SLACK_BYTES];
                let used = self.seal_into(&mut area)?;
                outgoing.bytes(&area[..used]);
            }
        }
        Ok(())
    }

    /// Seals as much of the queue as fits; nothing if rustls has a record of its own that must be sent first.
    fn seal_into(&mut self, area: &mut [u8]) -> Result<usize, TlsError> {
        loop {
            let (queue, record) = (&mut self.queue, &mut self.record);
            let mut used = Ok(0);
            let seal = |traffic: &mut dyn Traffic| used = seal_queue(traffic, queue, record, area);
            let (plain, control) = (&mut self.plain, &mut self.control);
            let hand_over = |bytes: &[u8]| plain.extend_from_slice(bytes);
            let end = &mut self.end;
            let (discard, progress) = self.buffer.change(self.start, self.settled, |settled| match end {
                End::Client(client) => {
                    progress(client.process_tls_records(settled), control, hand_over, seal)
                }
                End::Server(server) => {
                    progress(server.process_tls_records(settled), control, hand_over, seal)
                }
            });
            self.start += discard;
            self.settled -= discard;
            match progress.map_err(|error| self.fail(error))? {
                Progress::Again if self.control.is_empty() => {}
                Progress::Closed => return Err(TlsError::Failed("the peer has ended it".into())),
                _ => return used,
            }
        }
    }

    /// The last record to be sent, a close_notify. Empty if there is no key to seal it.
    pub(super) fn close_notify(&mut self) -> Vec<u8> {
        let mut last = std::mem::take(&mut self.control);
        if self.open && !self.closed {
            let mut notice = [0; SLACK_BYTES];
            let mut used = 0;
            let close = |traffic: &mut dyn Traffic| used = traffic.close(&mut notice);
            let end = &mut self.end;
            let _ = self.buffer.change(self.start, self.settled, |settled| match end {
                End::Client(client) => {
                    progress(client.process_tls_records(settled), &mut last, |_| (), close)
                }
                End::Server(server) => {
                    progress(server.process_tls_records(settled), &mut last, |_| (), close)
                }
            });
            last.extend_from_slice(&notice[..used]);
        }
        last
    }
}

trait Traffic {
    fn seal(&mut self, plain: &[u8], into: &mut [u8]) -> Result<usize, TlsError>;
    fn close(&mut self, into: &mut [u8]) -> usize;
}

impl<Data> Traffic for WriteTraffic<'_, Data> {
    fn seal(&mut self, plain: &[u8], into: &mut [u8]) -> Result<usize, TlsError> {
        self.encrypt(plain, into).map_err(|error| TlsError::Failed(error.to_string()))
    }

    fn close(&mut self, into: &mut [u8]) -> usize {
        self.queue_close_notify(into).unwrap_or(0)
    }
}

/// Processes the status that rustls returns for records; also returns how many of their bytes are consumed.
fn progress<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    control: &mut Vec<u8>,
    mut hand_over: impl FnMut(&[u8]),
    open: impl FnOnce(&mut dyn Traffic),
) -> (usize, Result<Progress, TlsError>) {
    let mut discard = status.discard;
    let progress = match status.state {
        Err(error) => Err(error.into()),
        Ok(ConnectionState::EncodeTlsData(mut record)) => {
            let start = control.len();
            let mut length = RECORD_OVERHEAD + SLACK_BYTES;
            loop {
                control.resize(start + length, 0);
                match record.encode(&mut control[start..]) {
                    Ok(used) => break control.truncate(start + used),
                    Err(EncodeError::InsufficientSize(error)) => length = error.required_size,
                    Err(EncodeError::AlreadyEncoded) => break control.truncate(start),
                }
            }
            Ok(Progress::Again)
        }
        Ok(ConnectionState::TransmitTlsData(records)) => {
            // The handshake records are in `control`, which is sent before all else.
            records.done();
            Ok(Progress::Again)
        }
        Ok(ConnectionState::ReadTraffic(mut traffic)) => {
            let mut result = Ok(Progress::Plain);
            while let Some(record) = traffic.next_record() {
                match record {
                    Ok(record) => {
                        hand_over(record.payload);
                        discard += record.discard;
                    }
                    Err(error) => result = Err(error.into()),
                }
            }
            result
        }
        Ok(ConnectionState::WriteTraffic(mut traffic)) => {
            open(&mut traffic);
            Ok(Progress::Open)
        }
        Ok(ConnectionState::BlockedHandshake) => Ok(Progress::Blocked),
        Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Ok(Progress::Closed),
        Ok(other) => Err(TlsError::Failed(format!("unexpected state {other:?}"))),
    };
    (discard, progress)
}

/// Seals the queue, in full records where possible, until the area is full. Returns the bytes used of it.
fn seal_queue(
    traffic: &mut dyn Traffic,
    queue: &mut Outgoing,
    record: &mut Vec<u8>,
    area: &mut [u8],
) -> Result<usize, TlsError> {
    let mut used = 0;
    while !queue.is_empty() {
        let records = (area.len() - used).saturating_sub(SLACK_BYTES) / (RECORD_BYTES + RECORD_OVERHEAD);
        if records == 0 {
            break;
        }
        if record.is_empty()
            && let Some(front) = queue.front()
            && front.len() >= RECORD_BYTES
        {
            // Full records are sealed directly from the span.
            let count = records.min(front.len() / RECORD_BYTES) * RECORD_BYTES;
            used += traffic.seal(&front[..count], &mut area[used..])?;
            queue.advance(count);
        } else {
            let room = RECORD_BYTES - record.len();
            let fetched = queue.fetch(record, room);
            fetched.map_err(|error| TlsError::Failed(format!("reading what is to be sent: {error}")))?;
            if record.len() == RECORD_BYTES || queue.is_empty() {
                used += traffic.seal(record, &mut area[used..])?;
                record.clear();
            }
        }
    }
    debug_assert!(record.is_empty(), "there was room for a record when it was begun");
    Ok(used)
}

/// Copies plaintext into the places of the reassembly, as far as they have room.
fn put(reassembly: &mut Reassembly, pool: &Pool, now: Duration, bytes: &[u8]) -> usize {
    let (place, room) = reassembly.places(pool, now);
    let mut count = 0;
    for span in place.iter().chain([&room]) {
        let part = span.len().min(bytes.len() - count);
        span.fill(0, &bytes[count..count + part]);
        count += part;
    }
    reassembly.on_received(count);
    count
}
