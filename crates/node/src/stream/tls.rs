//! TLS 1.3 around the whole stream, by rustls: iSCSI inside is what it is without.
//!
//! rustls opens records where the socket has put them, in an area of ours, and seals records into areas that go to the
//! socket. It copies each byte once more on either way, through memory of its own of a record's size. It never sees the
//! socket, so nothing here waits.
//!
//! The bytes of a connection are not believed before its handshake has ended: there is nothing to hand over until then.

use std::time::Duration;

use area::{Pool, Span};
use io::Outgoing;
use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedStatus, WriteTraffic};
use rustls::{ContentType, Error};

use crate::reassembly::Reassembly;

/// Plaintext of a full record (RFC 8446 §5.1).
const RECORD_BYTES: usize = 16 << 10;
/// What protection adds to one: header, content type, tag.
const RECORD_OVERHEAD: usize = 5 + 1 + 16;
/// What rustls may put before the records it is asked for: a key update.
const SLACK_BYTES: usize = 256;
/// Receive area of a busy connection.
const BUFFER_BYTES: usize = 256 << 10;
/// Receive area of a connection that waits: room for one record.
const IDLE_BUFFER_BYTES: usize = 32 << 10;
/// How long a connection counts as busy after a receive of more than a record.
const BUSY: Duration = Duration::from_secs(1);
/// Area of records to send, and how many of them make one send: together they stay in the cache.
const SEND_AREA_BYTES: usize = 256 << 10;
const SEND_AREAS: usize = 2;

const _: () = assert!(IDLE_BUFFER_BYTES > RECORD_BYTES + 256 + 5, "a record fits, as long as it may be");

/// Why TLS ends a connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    /// Not even the first byte is one of TLS.
    #[error("the peer does not speak TLS, which this connection wants: it seems to be plain iSCSI")]
    NotTls,
    /// The certificate does not lead to what we trust.
    #[error("the certificate of the peer is not trusted: {0}")]
    Untrusted(String),
    /// Anything else.
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

/// Either end of the handshake; the same from then on.
pub(crate) enum End {
    /// An initiator.
    Client(Box<UnbufferedClientConnection>),
    /// A target.
    Server(Box<UnbufferedServerConnection>),
}

/// What rustls says to the records it was shown.
enum Step {
    /// It goes on; show them again.
    Again,
    /// A record of plaintext was handed over.
    Plain,
    /// It needs more, to end the handshake.
    Blocked,
    /// It has opened all there is, and seals.
    Open,
    /// The peer has ended its direction.
    Closed,
}

/// TLS of one connection.
pub(crate) struct Tls {
    end: End,
    open: bool,
    /// The peer has said that nothing follows.
    closed: bool,
    /// Records that have arrived lie in `start..end_of`.
    buffer: Span,
    start: usize,
    end_of: usize,
    /// So many bytes from `start` hold no record that could be opened: an incomplete one, parts of a handshake message.
    settled: usize,
    large: bool,
    filled: bool,
    busy_until: Duration,
    /// Plaintext that the reassembly had no place for yet: less than a record.
    plain: Vec<u8>,
    taken: usize,
    /// Records that rustls makes by itself: handshake, key update, alert.
    control: Vec<u8>,
    /// What is to be sealed. At most what one gathering adds.
    pub(super) queue: Outgoing,
    /// A record in the making, of several pieces.
    record: Vec<u8>,
}

impl Tls {
    /// `None` when the pool has no memory for a receive area.
    pub(crate) fn new(end: End, pool: &Pool) -> Option<Self> {
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
        })
    }

    /// Where the stream has ended: why that is not the end the peer meant. Nothing but a close_notify tells it from an
    /// attacker's cut (RFC 8446 §6.1).
    pub(crate) fn cut_short(&self) -> Option<&'static str> {
        match (self.closed, self.open) {
            (true, _) => None,
            (false, true) => Some("the connection was cut: the peer did not end TLS"),
            (false, false) => {
                Some("the peer closed the connection during the TLS handshake; it may not speak TLS")
            }
        }
    }

    /// How records are sealed, once that is agreed on.
    pub(crate) fn suite(&self) -> Option<&'static str> {
        let suite = match &self.end {
            End::Client(client) => client.negotiated_cipher_suite(),
            End::Server(server) => server.negotiated_cipher_suite(),
        };
        suite.and_then(|suite| suite.suite().as_str())
    }

    /// Nothing waits to be sealed.
    pub(crate) fn is_drained(&self) -> bool {
        self.queue.is_empty() && self.control.is_empty()
    }

    /// Where the socket puts what comes. Empty only when the peer sends what no record can be.
    pub(crate) fn room(&mut self, pool: &Pool, now: Duration) -> Span {
        self.fit_buffer(pool, now);
        let pending = self.end_of - self.start;
        if pending == 0 {
            (self.start, self.end_of) = (0, 0);
        } else if self.start > 0 {
            // The head of a record, or of a message of the handshake.
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
        // A message of the handshake may have as much as four records.
        let large = now < self.busy_until || pending > IDLE_BUFFER_BYTES / 2;
        if large == self.large {
            return;
        }
        // Without memory for a larger one, the small one does.
        let Some(buffer) = pool.take(if large { BUFFER_BYTES } else { IDLE_BUFFER_BYTES }) else { return };
        buffer.fill(0, self.buffer.range(self.start..self.end_of));
        (self.buffer, self.start, self.end_of, self.large) = (buffer, 0, pending, large);
    }

    /// Takes the `count` bytes that were received into the [room](Self::room).
    pub(crate) fn on_received(&mut self, count: usize) {
        self.end_of += count;
        self.filled = count > RECORD_BYTES;
    }

    /// Hands plaintext to the reassembly, a record of it at most. False: there is none until more is received.
    pub(crate) fn feed(
        &mut self,
        reassembly: &mut Reassembly,
        pool: &Pool,
        now: Duration,
    ) -> Result<bool, TlsError> {
        if self.taken < self.plain.len() {
            self.taken += put(reassembly, pool, now, &self.plain[self.taken..]);
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
            let hand_over = |bytes: &[u8]| {
                let count = if plain.is_empty() { put(reassembly, pool, now, bytes) } else { 0 };
                plain.extend_from_slice(&bytes[count..]);
            };
            let (start, length, end) = (self.start, self.end_of - self.start, &mut self.end);
            let (discard, step) = self.buffer.change(start, length, |records| match end {
                End::Client(client) => step(client.process_tls_records(records), control, hand_over, |_| ()),
                End::Server(server) => step(server.process_tls_records(records), control, hand_over, |_| ()),
            });
            self.start += discard;
            // After plaintext nothing is half done; what follows was not looked at.
            self.settled = 0;
            match step.map_err(|error| self.fail(error))? {
                Step::Again => {}
                Step::Plain => return Ok(true),
                // What follows a close_notify is ignored (RFC 8446 §6.1).
                Step::Closed => {
                    (self.closed, self.start) = (true, self.end_of);
                    return Ok(false);
                }
                other => {
                    self.settled = self.end_of - self.start;
                    self.open |= matches!(other, Step::Open);
                    return Ok(false);
                }
            }
        }
    }

    /// Nothing is opened or sealed any more; what rustls has to say of it is still sent.
    fn fail(&mut self, error: TlsError) -> TlsError {
        self.open = false;
        // It has a record to be written, so it does not look at the ones it is shown.
        loop {
            let control = &mut self.control;
            let _ = match &mut self.end {
                End::Client(client) if client.wants_write() => {
                    step(client.process_tls_records(&mut []), control, |_| (), |_| ())
                }
                End::Server(server) if server.wants_write() => {
                    step(server.process_tls_records(&mut []), control, |_| (), |_| ())
                }
                _ => return error,
            };
        }
    }

    /// The first byte is the type of a record.
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

    /// Adds records to be sent: those of rustls's own, then what is queued, a bounded part of it.
    pub(crate) fn seal(&mut self, outgoing: &mut Outgoing, pool: &Pool) -> Result<(), TlsError> {
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
                // Without memory a record at a time, copied.
                let mut area = vec![0; RECORD_BYTES + RECORD_OVERHEAD + SLACK_BYTES];
                let used = self.seal_into(&mut area)?;
                outgoing.bytes(&area[..used]);
            }
        }
        Ok(())
    }

    /// Seals of the queue what fits; nothing where rustls has a record of its own to be sent first.
    fn seal_into(&mut self, area: &mut [u8]) -> Result<usize, TlsError> {
        loop {
            let (queue, record) = (&mut self.queue, &mut self.record);
            let mut used = Ok(0);
            let seal = |traffic: &mut dyn Traffic| used = seal_queue(traffic, queue, record, area);
            let (plain, control) = (&mut self.plain, &mut self.control);
            let hand_over = |bytes: &[u8]| plain.extend_from_slice(bytes);
            let end = &mut self.end;
            let (discard, step) = self.buffer.change(self.start, self.settled, |settled| match end {
                End::Client(client) => step(client.process_tls_records(settled), control, hand_over, seal),
                End::Server(server) => step(server.process_tls_records(settled), control, hand_over, seal),
            });
            self.start += discard;
            self.settled -= discard;
            match step.map_err(|error| self.fail(error))? {
                Step::Again if self.control.is_empty() => {}
                Step::Closed => return Err(TlsError::Failed("the peer has ended it".into())),
                _ => return used,
            }
        }
    }

    /// Says that nothing follows: the record to be sent last. Empty where there is no key to say it with.
    pub(crate) fn farewell(&mut self) -> Vec<u8> {
        let mut last = std::mem::take(&mut self.control);
        if self.open && !self.closed {
            let mut notice = [0; SLACK_BYTES];
            let mut used = 0;
            let close = |traffic: &mut dyn Traffic| used = traffic.close(&mut notice);
            let end = &mut self.end;
            let _ = self.buffer.change(self.start, self.settled, |settled| match end {
                End::Client(client) => step(client.process_tls_records(settled), &mut last, |_| (), close),
                End::Server(server) => step(server.process_tls_records(settled), &mut last, |_| (), close),
            });
            last.extend_from_slice(&notice[..used]);
        }
        last
    }
}

/// Sealing, of either end.
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

/// Acts on what rustls says to the records it was shown. Returns how many bytes of them are done with, whatever else is.
fn step<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    control: &mut Vec<u8>,
    mut hand_over: impl FnMut(&[u8]),
    open: impl FnOnce(&mut dyn Traffic),
) -> (usize, Result<Step, TlsError>) {
    let mut discard = status.discard;
    let step = match status.state {
        Err(error) => Err(error.into()),
        Ok(ConnectionState::EncodeTlsData(mut record)) => {
            let start = control.len();
            let mut wanted = RECORD_OVERHEAD + SLACK_BYTES;
            loop {
                control.resize(start + wanted, 0);
                match record.encode(&mut control[start..]) {
                    Ok(used) => break control.truncate(start + used),
                    Err(EncodeError::InsufficientSize(error)) => wanted = error.required_size,
                    Err(EncodeError::AlreadyEncoded) => break control.truncate(start),
                }
            }
            Ok(Step::Again)
        }
        Ok(ConnectionState::TransmitTlsData(records)) => {
            // They are in `control`, which goes before anything else.
            records.done();
            Ok(Step::Again)
        }
        Ok(ConnectionState::ReadTraffic(mut traffic)) => {
            let mut result = Ok(Step::Plain);
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
            Ok(Step::Open)
        }
        Ok(ConnectionState::BlockedHandshake) => Ok(Step::Blocked),
        Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Ok(Step::Closed),
        Ok(other) => Err(TlsError::Failed(format!("unexpected state {other:?}"))),
    };
    (discard, step)
}

/// Seals what is queued, in full records where there is enough, until the area is full. Returns the bytes used of it.
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
            // From where it lies.
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

/// Puts plaintext where the reassembly wants it, as far as it has room.
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
