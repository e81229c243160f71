//! A mapped file in memory (tmpfs): its stored bytes are sent without a read.
//!
//! Only the kernel reads through the mapping: if another process shrinks the file, the kernel fails with EFAULT, while
//! an access by this process would raise SIGBUS. Bytes that this process must read itself (to seal them) it fetches
//! from the file, one unit at a time: a copy into the cache costs half of a page fault per page. Only ranges that are
//! data are borrowed: an access to a hole through a mapping would allocate it.

use std::fs::File;
use std::io::Result;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use area::{Region, Span};
use io::Handle;
use rustix::fs::SeekFrom;

use crate::endpoint::Reader;

/// Granularity of the record of data ranges; the kernel maps as much around each page that it accesses.
const UNIT_BYTES: u64 = 64 << 10;
/// After this many borrowed bytes the page table is emptied: bounds the resident size that the system reports.
const MAPPED_BYTES_MAX: u64 = 8 << 20;
/// Fewer bytes are copied sooner than they are referred to.
const REFERRED_BYTES_MIN: usize = 32 << 10;

#[derive(Debug)]
pub(super) struct Mapping {
    region: Arc<Region>,
    /// Bytes borrowed since the page table was emptied.
    borrowed_bytes: AtomicU64,
}

impl Mapping {
    pub(super) fn new(file: &File, size_bytes: u64) -> Result<Self> {
        let length = usize::try_from(size_bytes).map_err(std::io::Error::other)?;
        let region = Arc::new(Region::of_file(file.as_fd(), length)?);
        Ok(Self { region, borrowed_bytes: AtomicU64::new(0) })
    }
}

/// The mapping as one thread uses it.
#[derive(Debug)]
pub(super) struct Mapped {
    mapping: Arc<Mapping>,
    stored: Span,
    fetched: Span,
    size_bytes: u64,
    /// End of the file, and the turn of the loop that looked.
    seen: Option<(Duration, u64)>,
    /// One bit per unit, set if the unit is known to be data. Valid as long as `punched` ranges were punched.
    data: Vec<u64>,
    punched: u64,
}

impl Mapped {
    pub(super) fn new(mapping: Arc<Mapping>, file: Handle, size_bytes: u64) -> Self {
        let stored = Span::stored(Arc::clone(&mapping.region));
        let fetched = Span::of_file(file, stored.len());
        Self { mapping, stored, fetched, size_bytes, seen: None, data: Vec::new(), punched: 0 }
    }

    /// The bytes of a range that is data. `punched`: number of ranges punched so far by any thread. The size of the file is
    /// looked at once in a turn, which `now` names.
    pub(super) fn borrow(
        &mut self,
        file: impl AsFd,
        now: Duration,
        range: Range<u64>,
        punched: u64,
        reader: Reader,
    ) -> Option<Span> {
        let Range { start: offset, end } = range;
        if range.is_empty() || end > self.size_bytes {
            return None;
        }
        let size = match self.seen {
            Some((turn, size)) if turn == now => size,
            _ => size_now(file)?,
        };
        self.seen = Some((now, size));
        if end > size {
            return None;
        }
        if self.punched != punched {
            self.punched = punched;
            self.data.clear();
        }
        let units = offset / UNIT_BYTES..end.div_ceil(UNIT_BYTES);
        if !units.clone().all(|unit| self.is_data(unit)) {
            let start = units.start * UNIT_BYTES;
            let stop = (units.end * UNIT_BYTES).min(self.size_bytes);
            if !self.mapping.region.is_resident(start as usize, (stop - start) as usize) {
                return None;
            }
            units.clone().for_each(|unit| self.note_data(unit));
        }
        let (offset, length) = (offset as usize, (end - offset) as usize);
        let bytes = (units.end - units.start) * UNIT_BYTES;
        match reader {
            Reader::Peer if length >= REFERRED_BYTES_MIN => Some(self.fetched.slice(offset, length)),
            Reader::Process => Some(self.fetched.slice(offset, length)),
            Reader::Peer | Reader::Kernel => {
                if self.mapping.borrowed_bytes.fetch_add(bytes, Ordering::Relaxed) > MAPPED_BYTES_MAX {
                    self.mapping.borrowed_bytes.store(0, Ordering::Relaxed);
                    self.mapping.region.forget();
                }
                Some(self.stored.slice(offset, length))
            }
        }
    }

    fn is_data(&self, unit: u64) -> bool {
        self.data.get((unit / 64) as usize).is_some_and(|word| word >> (unit % 64) & 1 == 1)
    }

    fn note_data(&mut self, unit: u64) {
        let word = (unit / 64) as usize;
        if self.data.len() <= word {
            self.data.resize(word + 1, 0);
        }
        self.data[word] |= 1 << (unit % 64);
    }
}

/// The present size of the file; the call moves the file position, which no code uses.
fn size_now(file: impl AsFd) -> Option<u64> {
    rustix::fs::seek(file, SeekFrom::End(0)).ok()
}
