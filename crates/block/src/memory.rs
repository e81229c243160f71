//! `mem:` and `null:`: storage that completes inside `submit`.

use std::sync::Arc;
use std::time::Duration;

use area::{Pool, Region, Span};
use io::{Event, Io, Owner};

use crate::{
    Capability, Completion, Endpoint, Fingerprint, Identity, Inspect, IoError, IoErrorKind, Kind, Medium,
    OpenError, Reader, Request,
};

pub(crate) fn synthetic_capability(size_bytes: u64) -> Capability {
    Capability {
        size_bytes,
        block_size: 512,
        physical_block_size: 4096,
        granularity: 1,
        alignment: 1,
        max_transfer_bytes: Pool::AREA_BYTES_MAX as u32,
        optimal_transfer_bytes: 512 << 10,
        queue_depth: 32,
        read_only: false,
        sole_writer: true,
        discard: true,
        write_zeroes: true,
        volatile_cache: false,
        rotational: false,
    }
}

/// Refuses a request beyond the end, and a write to read-only storage.
pub(crate) fn check(capability: &Capability, kind: &Kind) -> Result<(), IoError> {
    if let Some((offset, length)) = kind.range()
        && offset.checked_add(length).is_none_or(|end| end > capability.size_bytes)
    {
        let text = format!(
            "{} of {length} bytes at {offset} is beyond the end at {}",
            kind.verb(),
            capability.size_bytes
        );
        return Err(IoError::new(IoErrorKind::OutOfRange, text));
    }
    if kind.is_write() && capability.read_only {
        return Err(IoError::new(IoErrorKind::ReadOnly, "opened read-only"));
    }
    Ok(())
}

#[derive(Debug)]
pub struct MemoryMedium {
    region: Arc<Region>,
    capability: Capability,
}

impl MemoryMedium {
    /// `size` bytes of zeroes; the kernel allocates a page at its first write.
    pub fn new(size: u64, read_only: bool) -> Result<Self, OpenError> {
        let length =
            usize::try_from(size).map_err(|_| OpenError::Usage(format!("{size} bytes of memory")))?;
        let region = Region::new(length, false)
            .map_err(|error| OpenError::Failed(format!("allocating {size} bytes of memory: {error}")))?;
        // Nothing outlives the process: a server that was killed and started again has lost what it acknowledged, which
        // initiators look for only where writes are volatile.
        let capability = Capability { read_only, volatile_cache: true, ..synthetic_capability(size) };
        Ok(Self { region: Arc::new(region), capability })
    }
}

impl Medium for MemoryMedium {
    fn attach(&self, _io: &mut Io) -> Result<Box<dyn Endpoint>, OpenError> {
        Ok(Box::new(MemoryEndpoint {
            region: Arc::clone(&self.region),
            stored: Span::stored(Arc::clone(&self.region)),
            capability: self.capability.clone(),
        }))
    }

    fn name(&self) -> String {
        format!("mem:{}", self.capability.size_bytes)
    }
}

struct MemoryEndpoint {
    region: Arc<Region>,
    /// The whole region; `borrow` returns slices of it.
    stored: Span,
    capability: Capability,
}

impl MemoryEndpoint {
    fn perform(&self, kind: &Kind) -> Result<(), IoError> {
        check(&self.capability, kind)?;
        // SAFETY: `check` bounded offset + length by the region's size. Several threads may write the same bytes of one
        // memory LUN at once, as several initiators may write a disk's sectors: the initiators must order such a race;
        // the copy itself touches only mapped memory.
        let at = |offset: u64| unsafe { self.region.as_ptr().add(offset as usize) };
        match kind {
            Kind::Read { offset, into } => {
                // SAFETY: both ranges are valid for `into.len()` bytes and never overlap.
                unsafe { std::ptr::copy_nonoverlapping(at(*offset), into.as_ptr(), into.len()) };
            }
            Kind::Write { offset, from, .. } => {
                // SAFETY: as for reads.
                unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), at(*offset), from.len()) };
            }
            Kind::Flush => {}
            Kind::Discard { offset, length } | Kind::WriteZeroes { offset, length, .. } => {
                self.zero(*offset as usize, *length as usize)?;
            }
        }
        Ok(())
    }

    fn zero(&self, offset: usize, length: usize) -> Result<(), IoError> {
        let first = offset.next_multiple_of(area::PAGE_BYTES).min(offset + length);
        let last = ((offset + length) / area::PAGE_BYTES * area::PAGE_BYTES).max(first);
        for (start, end) in [(offset, first), (last, offset + length)] {
            // SAFETY: `check` bounded the range by the region's size.
            unsafe { std::ptr::write_bytes(self.region.as_ptr().add(start), 0, end - start) };
        }
        self.region.punch(first, last - first).map_err(IoError::from)
    }
}

impl Endpoint for MemoryEndpoint {
    fn capability(&self) -> &Capability {
        &self.capability
    }

    fn submit(&mut self, _io: &mut Io, request: Request, done: &mut Vec<Completion>) {
        done.push(Completion { id: request.id, result: self.perform(&request.kind) });
    }

    fn on_event(&mut self, _io: &mut Io, _event: Event, _done: &mut Vec<Completion>) {}

    fn owners(&self, _owners: &mut Vec<Owner>) {}

    fn borrow(&mut self, _now: Duration, offset: u64, length: usize, _reader: Reader) -> Option<Span> {
        let end = offset.checked_add(length as u64)?;
        (end <= self.capability.size_bytes).then(|| self.stored.slice(offset as usize, length))
    }

    fn write_now(&mut self, _io: &Io, offset: u64, from: &Span) -> bool {
        self.perform(&Kind::Write { offset, from: from.clone(), durable: false }).is_ok()
    }

    fn inspect(&self) -> &dyn Inspect {
        self
    }
}

impl Inspect for MemoryEndpoint {
    fn identity(&self) -> Identity {
        Identity::Remote(format!("mem:{:p}", self.region.as_ptr()))
    }

    fn fingerprint(&self) -> Fingerprint {
        self.identity().fingerprint(self.capability().size_bytes)
    }
}

/// Discards writes and reads as zeroes, to measure everything except storage.
#[derive(Debug)]
pub struct NullMedium {
    capability: Capability,
}

impl NullMedium {
    pub fn new(size: u64, read_only: bool) -> Self {
        Self { capability: Capability { read_only, ..synthetic_capability(size) } }
    }
}

impl Medium for NullMedium {
    fn attach(&self, _io: &mut Io) -> Result<Box<dyn Endpoint>, OpenError> {
        Ok(Box::new(NullEndpoint { capability: self.capability.clone() }))
    }

    fn name(&self) -> String {
        format!("null:{}", self.capability.size_bytes)
    }
}

struct NullEndpoint {
    capability: Capability,
}

impl Endpoint for NullEndpoint {
    fn capability(&self) -> &Capability {
        &self.capability
    }

    fn submit(&mut self, _io: &mut Io, request: Request, done: &mut Vec<Completion>) {
        let result = check(&self.capability, &request.kind);
        if let (Ok(()), Kind::Read { into, .. }) = (&result, &request.kind) {
            into.zero(0, into.len());
        }
        done.push(Completion { id: request.id, result });
    }

    fn on_event(&mut self, _io: &mut Io, _event: Event, _done: &mut Vec<Completion>) {}

    fn owners(&self, _owners: &mut Vec<Owner>) {}

    fn inspect(&self) -> &dyn Inspect {
        self
    }
}

impl Inspect for NullEndpoint {
    fn identity(&self) -> Identity {
        Identity::Unique
    }

    fn fingerprint(&self) -> Fingerprint {
        self.identity().fingerprint(self.capability().size_bytes)
    }
}
