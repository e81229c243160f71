//! A file that is memory (tmpfs), mapped: what is read from it can be sent from where it lies.
//!
//! Only the kernel looks at the mapping: if the file shrinks behind our back it answers EFAULT, where this process would be
//! killed. What this process must look at itself (to seal it) it fetches from the file, a unit at a time: a copy into the
//! cache costs half of what a page fault for each page does. And only ranges that are data are lent: looking at a hole through a mapping would allocate it.

use std::fs::File;
use std::io::Result;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use area::{Region, Span};
use io::Handle;

use crate::endpoint::Looks;

/// Granularity at which is remembered what is data; the kernel maps as much around each page that is looked at.
const UNIT_BYTES: u64 = 64 << 10;
/// Bytes lent until the page table is emptied: bounds what this process seems to use.
const MAPPED_BYTES_MAX: u64 = 8 << 20;

/// The mapping, shared by the threads that use the file.
#[derive(Debug)]
pub(super) struct Mapping {
    region: Arc<Region>,
    /// Since the page table was emptied.
    lent: AtomicU64,
}

impl Mapping {
    pub(super) fn new(file: &File, size_bytes: u64) -> Result<Self> {
        let length = usize::try_from(size_bytes).map_err(std::io::Error::other)?;
        let region = Arc::new(Region::of_file(file.as_fd(), length)?);
        Ok(Self { region, lent: AtomicU64::new(0) })
    }
}

/// One thread's view.
#[derive(Debug)]
pub(super) struct Mapped {
    mapping: Arc<Mapping>,
    stored: Span,
    /// The file itself, to be fetched from.
    fetched: Span,
    size_bytes: u64,
    /// Units known to be data, a bit each, as of this count of punched ranges.
    data: Vec<u64>,
    punched: u64,
}

impl Mapped {
    pub(super) fn new(mapping: Arc<Mapping>, file: Handle, size_bytes: u64) -> Self {
        let stored = Span::stored(Arc::clone(&mapping.region));
        let fetched = Span::of_file(file, stored.len());
        Self { mapping, stored, fetched, size_bytes, data: Vec::new(), punched: 0 }
    }

    /// The bytes of a range that is data. `punched`: ranges punched so far, by anyone.
    pub(super) fn lend(
        &mut self,
        file: &impl AsRawFd,
        offset: u64,
        length: usize,
        punched: u64,
        looks: Looks,
    ) -> Option<Span> {
        let end = offset.checked_add(length as u64)?;
        if length == 0 || end > self.size_bytes || end > size_now(file)? {
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
        let (offset, bytes) = (offset as usize, (units.end - units.start) * UNIT_BYTES);
        match looks {
            Looks::Process => Some(self.fetched.slice(offset, length)),
            Looks::Kernel => {
                if self.mapping.lent.fetch_add(bytes, Ordering::Relaxed) > MAPPED_BYTES_MAX {
                    self.mapping.lent.store(0, Ordering::Relaxed);
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

/// The file's size at this moment; the file position is nobody's.
fn size_now(file: &impl AsRawFd) -> Option<u64> {
    // SAFETY: a plain system call on a live descriptor.
    u64::try_from(unsafe { libc::lseek(file.as_raw_fd(), 0, libc::SEEK_END) }).ok()
}
