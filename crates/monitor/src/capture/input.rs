//! The bytes of a capture: decompressed, in one buffer that holds a whole record at a time.

use std::io::{self, BufReader, Cursor, Read};

use flate2::bufread::MultiGzDecoder;

use crate::limits::{CAPTURE_BUFFER_BYTES, CAPTURE_RECORD_BYTES_MAX};

const GZIP_MAGIC: [u8; 3] = [0x1f, 0x8b, 8];

/// Why no more bytes come.
#[derive(Debug)]
pub(super) enum Ended {
    Not,
    Whole,
    /// Compressed bytes end too early.
    Cut,
    /// Reported once; afterwards the input is as if whole.
    Failed(io::Error),
}

pub(super) struct Input {
    source: Box<dyn Read + Send>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    ended: Ended,
    /// Bytes before `start` since the input began, decompressed.
    consumed: u64,
}

impl Input {
    /// Begins to read `source`; gzip is found by its magic number. Blocks until the first bytes come.
    pub(super) fn new(mut source: Box<dyn Read + Send>) -> io::Result<Self> {
        let mut first = [0; GZIP_MAGIC.len()];
        let mut have = 0;
        while have < first.len() {
            match read(&mut source, &mut first[have..])? {
                0 => break,
                count => have += count,
            }
        }
        let compressed = first == GZIP_MAGIC;
        let whole = Cursor::new(first).take(have as u64).chain(source);
        let source: Box<dyn Read + Send> = if compressed {
            Box::new(MultiGzDecoder::new(BufReader::with_capacity(CAPTURE_BUFFER_BYTES / 4, whole)))
        } else {
            Box::new(whole)
        };
        let buffer = vec![0; CAPTURE_BUFFER_BYTES];
        Ok(Self { source, buffer, start: 0, end: 0, ended: Ended::Not, consumed: 0 })
    }

    /// What is in the buffer and not consumed.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Bytes consumed since the beginning.
    pub(super) fn position(&self) -> u64 {
        self.consumed
    }

    /// Whether `bytes()` has `count` bytes or more, after reading as long as it must. `count` must be within
    /// [`CAPTURE_RECORD_BYTES_MAX`].
    #[inline]
    pub(super) fn has(&mut self, count: usize) -> bool {
        self.end - self.start >= count || self.fill(count)
    }

    fn fill(&mut self, count: usize) -> bool {
        debug_assert!(count <= CAPTURE_RECORD_BYTES_MAX);
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        if count > self.buffer.len() {
            self.buffer.resize(count.next_power_of_two().min(CAPTURE_RECORD_BYTES_MAX).max(count), 0);
        }
        while self.end - self.start < count && matches!(self.ended, Ended::Not) {
            match read(&mut self.source, &mut self.buffer[self.end..]) {
                Ok(0) => self.ended = Ended::Whole,
                Ok(count) => self.end += count,
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => self.ended = Ended::Cut,
                Err(error) => self.ended = Ended::Failed(error),
            }
        }
        self.end - self.start >= count
    }

    /// `count` must be within `bytes()`.
    #[inline]
    pub(super) fn consume(&mut self, count: usize) {
        debug_assert!(count <= self.end - self.start);
        self.start += count;
        self.consumed += count as u64;
    }

    /// Consumes `count` bytes, however many; false if the input ends before.
    pub(super) fn skip(&mut self, mut count: u64) -> bool {
        while count > 0 {
            if !self.has(1) {
                return false;
            }
            let now = usize::try_from(count).unwrap_or(usize::MAX).min(self.end - self.start);
            self.consume(now);
            count -= now as u64;
        }
        true
    }

    /// Whether compressed bytes end too early.
    pub(super) fn is_cut(&self) -> bool {
        matches!(self.ended, Ended::Cut)
    }

    /// The error that ended the input, once.
    pub(super) fn take_error(&mut self) -> Option<io::Error> {
        if !matches!(self.ended, Ended::Failed(_)) {
            return None;
        }
        match std::mem::replace(&mut self.ended, Ended::Whole) {
            Ended::Failed(error) => Some(error),
            _ => None,
        }
    }
}

fn read(source: &mut dyn Read, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match source.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
