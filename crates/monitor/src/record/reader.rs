//! Reads a recording from any bytes.

use std::collections::HashMap;
use std::io::{self, Read};

use super::bytes::Cursor;
use super::columns::Row;
use super::{CPU, EVENT, Entry, FLOW, Flow, HEADER_BYTES, MAGIC, RecordError, SAMPLE, START, VERSION, event};
use crate::event::Side;
use crate::limits::{RECORD_BLOCK_BYTES_MAX, RECORD_DAMAGE_BYTES_MAX, RECORD_FLOWS_MAX};
use crate::model::Cpu;

/// Entries of a recording in their order. Damaged parts are skipped and counted.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    /// Bytes of the input that are not consumed.
    pending: Vec<u8>,
    /// The block that is read, and the place in it.
    block: Vec<u8>,
    at: usize,
    rows: HashMap<u32, Row>,
    clock: Clock,
    has_begun: bool,
    damaged_bytes: u64,
    /// Bytes that were searched, and whose checksum was computed, for nothing.
    checked_bytes: u64,
}

/// From the clock of a block's samples to time since the start of the recording.
#[derive(Clone, Copy, Debug, Default)]
struct Clock {
    first_unix_ns: Option<u64>,
    start_ns: u64,
    offset_ns: u64,
}

impl Clock {
    fn start(&mut self, now_ns: u64, unix_ns: u64) {
        let first = *self.first_unix_ns.get_or_insert(unix_ns);
        (self.start_ns, self.offset_ns) = (now_ns, unix_ns.saturating_sub(first));
    }

    fn since_start(&self, at_ns: u64) -> u64 {
        // A record may be older than the first one of its block.
        self.offset_ns.saturating_add_signed(at_ns.wrapping_sub(self.start_ns).cast_signed())
    }
}

impl<R: Read> Reader<R> {
    pub fn new(input: R) -> Self {
        Self {
            input,
            pending: Vec::new(),
            block: Vec::new(),
            at: 0,
            rows: HashMap::new(),
            clock: Clock::default(),
            has_begun: false,
            damaged_bytes: 0,
            checked_bytes: 0,
        }
    }

    /// Bytes that were skipped: a damaged block, or one that was cut off when its writer died.
    pub fn damaged_bytes(&self) -> u64 {
        self.damaged_bytes
    }

    /// Time of the first block in nanoseconds since 1970; `None` before it was read.
    pub fn started_unix_ns(&self) -> Option<u64> {
        self.clock.first_unix_ns
    }

    /// The next entry; `None` at the end. A file that is no recording, or of a later version, fails at the first call.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, RecordError> {
        loop {
            while self.at < self.block.len() {
                if let Some(entry) = self.next_record() {
                    return Ok(Some(entry));
                }
            }
            if !self.next_block()? {
                return Ok(None);
            }
        }
    }

    /// Reads the next whole block, past damaged bytes; `false` at the end.
    fn next_block(&mut self) -> Result<bool, RecordError> {
        self.rows.clear();
        loop {
            self.fill(HEADER_BYTES)?;
            if !self.has_begun && !self.pending.starts_with(&MAGIC) {
                return Err(RecordError::Foreign);
            }
            if self.pending.len() < HEADER_BYTES || self.checked_bytes > RECORD_DAMAGE_BYTES_MAX {
                return self.leave_rest().map(|()| false);
            }
            if let Some(length) = self.payload_length()? {
                self.fill(HEADER_BYTES + length)?;
                let digest = self.pending[12..16].to_vec();
                let payload = self.pending.get(HEADER_BYTES..HEADER_BYTES + length);
                if payload.is_some_and(|payload| iscsi::digest::of(payload)[..] == digest[..]) {
                    self.block.clear();
                    self.block.extend(self.pending.drain(..HEADER_BYTES + length).skip(HEADER_BYTES));
                    self.at = 0;
                    return Ok(true);
                }
            }
            self.checked_bytes = self.checked_bytes.saturating_add(self.pending.len() as u64);
            // Another block may begin within this one.
            let next = (1..self.pending.len()).find(|at| {
                let rest = &self.pending[*at..];
                MAGIC.starts_with(&rest[..rest.len().min(MAGIC.len())])
            });
            let skipped = next.unwrap_or(self.pending.len());
            self.pending.drain(..skipped);
            self.damaged_bytes = self.damaged_bytes.saturating_add(skipped as u64);
        }
    }

    /// The payload's length, if a block of this version begins here.
    fn payload_length(&mut self) -> Result<Option<usize>, RecordError> {
        let header = &self.pending[..HEADER_BYTES];
        if !header.starts_with(&MAGIC) {
            return Ok(None);
        }
        let version = u16::from_le_bytes([header[4], header[5]]);
        if version != VERSION && !self.has_begun {
            return Err(RecordError::Version(version));
        }
        self.has_begun = true;
        let length = u32::from_le_bytes([header[8], header[9], header[10], header[11]]) as usize;
        Ok((version == VERSION && length <= RECORD_BLOCK_BYTES_MAX).then_some(length))
    }

    fn leave_rest(&mut self) -> Result<(), RecordError> {
        let rest = io::copy(&mut self.input, &mut io::sink())?;
        let left = rest.saturating_add(self.pending.len() as u64);
        self.damaged_bytes = self.damaged_bytes.saturating_add(left);
        self.pending.clear();
        Ok(())
    }

    /// Reads until `length` bytes are pending or the input ends.
    fn fill(&mut self, length: usize) -> io::Result<()> {
        let wanted = length.saturating_sub(self.pending.len()) as u64;
        self.input.by_ref().take(wanted).read_to_end(&mut self.pending).map(drop)
    }

    /// The next record of the block. One that is unknown or does not parse is passed over.
    fn next_record(&mut self) -> Option<Entry> {
        let block = std::mem::take(&mut self.block);
        let mut cursor = Cursor(&block[self.at..]);
        let record = (|| {
            let (kind, length) = (cursor.u8()?, cursor.length()?);
            Some((kind, cursor.take(length)?))
        })();
        // Without a whole record the rest of the block means nothing.
        self.at = if record.is_some() { block.len() - cursor.0.len() } else { block.len() };
        let entry = record.and_then(|(kind, body)| self.entry(kind, Cursor(body)));
        self.block = block;
        entry
    }

    fn entry(&mut self, kind: u8, mut body: Cursor<'_>) -> Option<Entry> {
        match kind {
            START => {
                let mut word = || Some(u64::from_le_bytes(body.take(8)?.try_into().ok()?));
                let (now_ns, unix_ns) = (word()?, word()?);
                self.clock.start(now_ns, unix_ns);
                None
            }
            FLOW => {
                let id = body.small()?;
                let flow = flow(&mut body)?;
                if self.rows.len() >= RECORD_FLOWS_MAX {
                    return None;
                }
                self.rows.insert(id, Row::default());
                Some(Entry::Flow(id, flow))
            }
            SAMPLE => {
                let id = body.small()?;
                let mut sample = self.rows.get_mut(&id)?.take(&mut body)?;
                sample.at_ns = self.clock.since_start(sample.at_ns);
                Some(Entry::Sample(id, sample))
            }
            CPU => {
                let id = self.known(&mut body)?;
                let mut share =
                    || Some(body.number()?.checked_sub(1).map(|millionths| millionths as f64 / 1e6));
                let (busiest, waiting, cipher) = (share()?, share()?, share()?);
                Some(Entry::Cpu(id, Cpu { busiest_thread: busiest?, waiting: waiting?, cipher }))
            }
            EVENT => {
                let id = self.known(&mut body)?;
                let at_ns = u64::from_le_bytes(body.take(8)?.try_into().ok()?);
                Some(Entry::Event(id, event::take(self.clock.since_start(at_ns), &mut body)?))
            }
            _ => None,
        }
    }

    fn known(&self, body: &mut Cursor<'_>) -> Option<u32> {
        body.small().filter(|id| self.rows.contains_key(id))
    }
}

fn flow(body: &mut Cursor<'_>) -> Option<Flow> {
    Some(Flow {
        side: if body.u8()? == 0 { Side::Initiator } else { Side::Target },
        local: body.address()?,
        remote: body.address()?,
        congestion: body.name()?,
        process: body.name()?,
        target: body.name()?,
    })
}
