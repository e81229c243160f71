//! Writes a recording.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use super::bytes::{put_address, put_name, put_number};
use super::columns::Row;
use super::{CPU, EVENT, FLOW, Flow, HEADER_BYTES, MAGIC, RecordError, SAMPLE, START, VERSION, event};
use crate::event::{Event, Side};
use crate::limits::{RECORD_BLOCK_BYTES_MAX, RECORDING_BYTES_MAX};
use crate::model::Cpu;
use crate::sample::Sample;

/// Bytes after which a block is written; a record is far shorter than what remains.
const BLOCK_BYTES: usize = RECORD_BLOCK_BYTES_MAX / 2;

/// Clocks that have moved further apart than this are read again: the machine slept, or its time was set.
const CLOCKS_APART_NS_MAX: u64 = 1_000_000_000;

/// Appends blocks to a file. What has been recorded since the last [`Writer::flush`] is lost if the process dies.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    /// Bytes of the file.
    length: u64,
    block: Vec<u8>,
    /// Each connection of this block, with the last row.
    rows: HashMap<u32, Row>,
    body: Vec<u8>,
    bytes_max: u64,
    /// A moment in the records' clock and in nanoseconds since 1970.
    clocks: Option<(u64, u64)>,
}

impl Writer<File> {
    /// Appends to a recording, or begins one that only its user can read. Fails if the file is something else.
    pub fn append(path: &Path) -> Result<Self, RecordError> {
        // A link is something else, whether or not its file exists.
        if std::fs::symlink_metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
            return Err(RecordError::Foreign);
        }
        let mut options = File::options();
        options.read(true).append(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let mut file = options.open(path)?;
        let mut beginning = [0; HEADER_BYTES];
        let length = file.seek(SeekFrom::End(0))?;
        if length > 0 {
            use std::os::unix::fs::FileExt;
            let read = file.read_at(&mut beginning, 0)?;
            if !super::is_recording(&beginning[..read]) {
                return Err(RecordError::Foreign);
            }
        }
        Ok(Self::new(file, length))
    }
}

impl<W: Write> Writer<W> {
    /// Writes to `out`, which has `length` bytes already.
    pub fn new(out: W, length: u64) -> Self {
        let (block, body) = (Vec::new(), Vec::new());
        Self { out, length, block, rows: HashMap::new(), body, bytes_max: RECORDING_BYTES_MAX, clocks: None }
    }

    #[cfg(test)]
    pub(super) fn limited(self, bytes_max: u64) -> Self {
        Self { bytes_max, ..self }
    }

    fn record(&mut self, kind: u8) {
        self.block.push(kind);
        put_number(&mut self.block, self.body.len() as u64);
        self.block.append(&mut self.body);
    }

    /// Nanoseconds since 1970 at a moment of the records' clock. The two clocks are read together once, and again when they
    /// have moved apart: a block's first record may be some milliseconds old.
    fn unix_ns(&mut self, now_ns: u64) -> u64 {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let unix_ns = u64::try_from(unix.as_nanos()).unwrap_or(u64::MAX);
        if let Some((before_ns, before_unix_ns)) = self.clocks {
            let expected = before_unix_ns.saturating_add_signed(now_ns.wrapping_sub(before_ns).cast_signed());
            if expected.abs_diff(unix_ns) < CLOCKS_APART_NS_MAX {
                return expected;
            }
        }
        self.clocks = Some((now_ns, unix_ns));
        unix_ns
    }

    /// Begins a block if there is none, and names the connection in it.
    fn begin(&mut self, id: u32, flow: &Flow, now_ns: u64) -> Result<(), RecordError> {
        if self.block.len() >= BLOCK_BYTES {
            self.flush()?;
        }
        if self.block.is_empty() {
            self.body.extend(now_ns.to_le_bytes());
            let unix_ns = self.unix_ns(now_ns);
            self.body.extend(unix_ns.to_le_bytes());
            self.record(START);
        }
        if let Entry::Vacant(vacant) = self.rows.entry(id) {
            vacant.insert(Row::default());
            put_number(&mut self.body, id.into());
            self.body.push(u8::from(flow.side == Side::Target));
            put_address(&mut self.body, flow.local);
            put_address(&mut self.body, flow.remote);
            for name in [&flow.congestion, &flow.process, &flow.target] {
                put_name(&mut self.body, name);
            }
            self.record(FLOW);
        }
        Ok(())
    }

    /// Records a sample of the connection `id`. Its time is of the clock that all records of this writer are of.
    pub fn sample(&mut self, id: u32, flow: &Flow, sample: &Sample) -> Result<(), RecordError> {
        self.begin(id, flow, sample.at_ns)?;
        put_number(&mut self.body, id.into());
        if let Some(row) = self.rows.get_mut(&id) {
            row.put(sample, &mut self.body);
        }
        self.record(SAMPLE);
        Ok(())
    }

    /// Records processor use, of the time up to now.
    pub fn cpu(&mut self, id: u32, flow: &Flow, now_ns: u64, cpu: &Cpu) -> Result<(), RecordError> {
        self.begin(id, flow, now_ns)?;
        put_number(&mut self.body, id.into());
        for share in [Some(cpu.busiest_thread), Some(cpu.waiting), cpu.cipher] {
            // Millionths; 0: unknown.
            put_number(&mut self.body, share.map_or(0, |share| (share.clamp(0.0, 1.0) * 1e6) as u64 + 1));
        }
        self.record(CPU);
        Ok(())
    }

    /// Records what a packet showed.
    pub fn event(&mut self, id: u32, flow: &Flow, event: &Event) -> Result<(), RecordError> {
        self.begin(id, flow, event.at_ns)?;
        put_number(&mut self.body, id.into());
        self.body.extend(event.at_ns.to_le_bytes());
        event::put(event, &mut self.body);
        self.record(EVENT);
        Ok(())
    }

    /// Writes what has been recorded as a block. [`RecordError::Full`]: the recording has ended before this block.
    pub fn flush(&mut self) -> Result<(), RecordError> {
        if self.block.is_empty() {
            return Ok(());
        }
        let payload = std::mem::take(&mut self.block);
        self.rows.clear();
        let end = self.length.saturating_add((HEADER_BYTES + payload.len()) as u64);
        if end > self.bytes_max {
            return Err(RecordError::Full(self.bytes_max));
        }
        let mut block = Vec::with_capacity(HEADER_BYTES + payload.len());
        block.extend(MAGIC);
        block.extend(VERSION.to_le_bytes());
        block.extend([0; 2]);
        block.extend((payload.len() as u32).to_le_bytes());
        block.extend(iscsi::digest::of(&payload));
        block.extend(&payload);
        let written: io::Result<()> = self.out.write_all(&block).and_then(|()| self.out.flush());
        written?;
        self.length = end;
        Ok(())
    }

    pub fn into_inner(self) -> W {
        self.out
    }
}
