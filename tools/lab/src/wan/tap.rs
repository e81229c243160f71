//! A capture at one place of the path, as a pcap file with nanoseconds and IP packets.
//!
//! Frames are recorded with the time at which they pass that place, which is later than the time at which they are
//! handled; so they are sorted before they are written.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::direction::Passage;
use super::line::now_ns;

/// Magic number of pcap files with nanoseconds; LINKTYPE_RAW: packets begin with their IP header.
const MAGIC: u32 = 0xa1b2_3c4d;
const LINKTYPE_RAW: u32 = 101;
/// Records younger than this wait for others that pass before them but are handled later.
const SETTLE_NS: u64 = 200_000_000;
const WRITE_INTERVAL: Duration = Duration::from_millis(50);
/// Bytes of records that wait at most; further ones are left out and counted.
const WAITING_BYTES_MAX: usize = 256 << 20;

/// Where a capture is taken, and what it holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Tap {
    pub path: PathBuf,
    /// Share of the delay between side 0 and the tap: 0 is beside side 0, 1 beside side 1.
    pub place: f64,
    /// Bytes kept of each packet.
    pub snap_bytes: usize,
    /// Whether losses happen behind the tap, so that it sees the lost packets; otherwise before it.
    pub sees_lost: bool,
}

impl Tap {
    /// Whole packets, in the middle of the path, losses behind it.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), place: 0.5, snap_bytes: 256 << 10, sees_lost: true }
    }
}

type Record = (u64, u64, u32, Vec<u8>);

#[derive(Debug, Default)]
struct Waiting {
    /// Time, number, length of the packet, and its captured bytes; the earliest first.
    records: BinaryHeap<Reverse<Record>>,
    bytes: usize,
    number: u64,
    left_out: u64,
    is_over: bool,
}

/// A running capture. [`Recorder::finish`] ends it.
#[derive(Debug)]
pub(super) struct Recorder {
    shared: Arc<(Mutex<Waiting>, Condvar)>,
    tap: Tap,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Recorder {
    pub(super) fn start(tap: &Tap) -> io::Result<Self> {
        let mut file = BufWriter::new(File::create(&tap.path)?);
        file.write_all(&file_header(tap.snap_bytes as u32))?;
        let shared = Arc::new((Mutex::default(), Condvar::new()));
        let epoch_ns = epoch_ns();
        let theirs = Arc::clone(&shared);
        let write = move || write_records(&mut file, &theirs, epoch_ns);
        let thread = std::thread::Builder::new().name("wan tap".to_owned()).spawn(write)?;
        Ok(Self { shared, tap: tap.clone(), thread: Some(thread) })
    }

    /// Records a frame that travels from `side`.
    pub(super) fn record(&self, side: usize, passage: &Passage<'_>) {
        if passage.is_lost && !self.tap.sees_lost {
            return;
        }
        let share = if side == 0 { self.tap.place } else { 1.0 - self.tap.place };
        let at_ns = passage.left_ns + ((passage.due_ns - passage.left_ns) as f64 * share) as u64;
        let kept = &passage.packet[..passage.packet.len().min(self.tap.snap_bytes)];
        let mut waiting = self.shared.0.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.bytes + kept.len() > WAITING_BYTES_MAX {
            waiting.left_out += 1;
            return;
        }
        waiting.bytes += kept.len();
        waiting.number += 1;
        let number = waiting.number;
        waiting.records.push(Reverse((at_ns, number, passage.packet.len() as u32, kept.to_vec())));
    }

    /// Writes what is left; returns the number of frames that were left out because the file was too slow.
    pub(super) fn finish(&mut self) -> io::Result<u64> {
        let Some(thread) = self.thread.take() else { return Ok(0) };
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner).is_over = true;
        self.shared.1.notify_all();
        thread.join().map_err(|_| io::Error::other("the writer of the capture panicked"))??;
        Ok(self.shared.0.lock().unwrap_or_else(PoisonError::into_inner).left_out)
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // An error was not asked for.
        let _ = self.finish();
    }
}

/// Nanoseconds of the system's clock at the origin of the monotonic one.
fn epoch_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    now.saturating_sub(now_ns())
}

fn write_records(file: &mut impl Write, shared: &(Mutex<Waiting>, Condvar), epoch_ns: u64) -> io::Result<()> {
    loop {
        let mut waiting = shared.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !waiting.is_over {
            let waited = shared.1.wait_timeout(waiting, WRITE_INTERVAL);
            waiting = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let is_over = waiting.is_over;
        let settled = if is_over { u64::MAX } else { now_ns().saturating_sub(SETTLE_NS) };
        let mut ready = Vec::new();
        while waiting.records.peek().is_some_and(|Reverse(first)| first.0 <= settled) {
            ready.extend(waiting.records.pop().map(|Reverse(record)| record));
        }
        waiting.bytes -= ready.iter().map(|record| record.3.len()).sum::<usize>();
        drop(waiting);
        for (at_ns, _, length, kept) in ready {
            file.write_all(&record_header(epoch_ns + at_ns, kept.len() as u32, length))?;
            file.write_all(&kept)?;
        }
        if is_over {
            return file.flush();
        }
    }
}

/// draft-ietf-opsawg-pcap, section 4, in the machine's byte order.
fn file_header(snap_bytes: u32) -> [u8; 24] {
    let mut header = [0; 24];
    header[..4].copy_from_slice(&MAGIC.to_ne_bytes());
    header[4..6].copy_from_slice(&2u16.to_ne_bytes());
    header[6..8].copy_from_slice(&4u16.to_ne_bytes());
    header[16..20].copy_from_slice(&snap_bytes.to_ne_bytes());
    header[20..24].copy_from_slice(&LINKTYPE_RAW.to_ne_bytes());
    header
}

/// Section 5.
fn record_header(at_ns: u64, captured: u32, length: u32) -> [u8; 16] {
    let mut header = [0; 16];
    let fields = [(at_ns / 1_000_000_000) as u32, (at_ns % 1_000_000_000) as u32, captured, length];
    for (to, field) in header.chunks_exact_mut(4).zip(fields) {
        to.copy_from_slice(&field.to_ne_bytes());
    }
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_sorted_by_the_time_at_the_tap() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("between.pcap");
        let tap = Tap { place: 0.25, snap_bytes: 4, sees_lost: false, ..Tap::new(&path) };
        let mut recorder = Recorder::start(&tap).unwrap();
        let passage = |left_ns, is_lost, packet| Passage { left_ns, due_ns: left_ns + 100, is_lost, packet };
        let base = now_ns();
        // From side 1 the tap is three quarters of the way: at base + 75; from side 0 at base + 10 + 25.
        recorder.record(1, &passage(base, false, b"fromB"));
        recorder.record(0, &passage(base + 10, false, b"fromA"));
        recorder.record(0, &passage(base + 10, true, b"lost"));
        assert_eq!(recorder.finish().unwrap(), 0);
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes[..4], MAGIC.to_ne_bytes());
        assert_eq!(bytes[20..24], LINKTYPE_RAW.to_ne_bytes());
        let records: Vec<_> = bytes[24..].chunks(20).collect();
        assert_eq!(records.len(), 2);
        let time = |record: &[u8]| {
            let field = |at: usize| u64::from(u32::from_ne_bytes(record[at..at + 4].try_into().unwrap()));
            field(0) * 1_000_000_000 + field(4)
        };
        assert_eq!((&records[0][16..], &records[1][16..]), (&b"from"[..], &b"from"[..]));
        assert_eq!(time(records[1]) - time(records[0]), 40);
        assert_eq!(records[0][8..16], [4u32.to_ne_bytes(), 5u32.to_ne_bytes()].concat());
    }
}
