//! The plan of a copy, and the checks that refuse it before anything is read or written.

use std::ops::Range;

use area::Pool;
use block::Capability;
use thiserror::Error;

use crate::error::End;
use crate::impact::Impact;
use crate::map::Map;
use crate::rate::RateLimit;

pub const CHUNK_BYTES_DEFAULT_MIN: u32 = 512 << 10;
pub const CHUNK_BYTES_DEFAULT_MAX: u32 = 1 << 20;
/// Largest chunk that can be requested, in bytes: one area.
pub const CHUNK_BYTES_MAX: u32 = 16 << 20;
/// Chunks and holes begin and end on multiples of this many bytes (or of a larger granularity) from the start of the
/// range, except at its end: so no two requests share a page, which `block` relies on where it mixes O_DIRECT and the
/// page cache.
pub const UNIT_BYTES_MIN: u32 = 4096;
/// Unreadable ranges are examined in blocks of this many bytes (or of a larger granularity).
pub const BLOCK_BYTES_MIN: u32 = 512;
/// Chunks in flight by default; the search starts with this.
pub const DEPTH_DEFAULT: u32 = 4;
/// Bound of the chunks in flight that can be requested.
pub const DEPTH_MAX: u32 = 512;

const _: () = assert!(CHUNK_BYTES_MAX as usize <= Pool::AREA_BYTES_MAX);
const _: () = assert!(CHUNK_BYTES_DEFAULT_MIN <= CHUNK_BYTES_DEFAULT_MAX);
const _: () = assert!(CHUNK_BYTES_DEFAULT_MAX <= CHUNK_BYTES_MAX);
const _: () = assert!(DEPTH_DEFAULT <= DEPTH_MAX);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub src_offset: u64,
    pub dst_offset: u64,
    /// Bytes to copy; `None`: all of the source after `src_offset`.
    pub size: Option<u64>,
    /// Bytes of one chunk; `None`: chosen automatically.
    pub chunk: Option<u32>,
    /// Chunks in flight; `None`: chosen automatically.
    pub depth: Option<u32>,
    /// Read the destination back after the flush and compare it with the data read from the source.
    pub verify: bool,
    /// With `verify`, fill in [`Report::sums`](crate::Report::sums).
    pub sums: bool,
    /// Bound of the read rate; may be changed during the copy.
    pub rate: RateLimit,
    /// How far the copy gives way to other programs that read its disks. A comparison and a copy with a stream do not.
    pub impact: Impact,
    /// Zero holes, zero chunks and ranges of at least 64 KiB of zeroes without transferring zeroes.
    pub sparse: bool,
    pub allow_block_size: bool,
    /// The claims of an earlier copy of this range: finished parts are neither read nor written.
    pub map: Option<Map>,
    /// The ranges in which source and destination may differ, counted from the start of the range, in order; the caller
    /// guarantees that the rest is equal, and it is neither read nor written. `None`: everywhere. A comparison ignores
    /// it.
    pub only: Option<Vec<Range<u64>>>,
    /// Read the destination as well, and write only what differs. A hole at both ends is not read. The destination is
    /// flushed first, so that data found equal is durable.
    pub differing: bool,
    /// Continue where the source's medium cannot be read: retry in small steps at the end, and report what stays
    /// unreadable. No data is written there.
    pub skip_bad: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            src_offset: 0,
            dst_offset: 0,
            size: None,
            chunk: None,
            depth: None,
            verify: false,
            sums: false,
            rate: RateLimit::default(),
            impact: Impact::Full,
            sparse: true,
            allow_block_size: false,
            map: None,
            only: None,
            differing: false,
            skip_bad: false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checked {
    pub bytes: u64,
    /// Bytes of one chunk, a multiple of `unit`.
    pub chunk: u32,
    pub depth: u32,
    /// Every request but the last ends on a multiple of this, which [`UNIT_BYTES_MIN`] and both granularities divide.
    pub unit: u32,
    /// Unreadable ranges are examined in steps of this many bytes, which [`BLOCK_BYTES_MIN`] and both granularities
    /// divide; it divides the unit.
    pub block: u32,
}

/// Why a plan is refused. Nothing was read or written.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Refusal {
    #[error("the source has {size} bytes; {bytes} bytes at offset {offset} are not all there")]
    SourceTooSmall { offset: u64, bytes: u64, size: u64 },
    #[error(
        "the destination has {size} bytes; {bytes} bytes at offset {offset} need {}",
        u128::from(*.offset) + u128::from(*.bytes)
    )]
    DestinationTooSmall { offset: u64, bytes: u64, size: u64 },
    #[error("the destination is read-only")]
    ReadOnly,
    #[error("logical block sizes differ: source {source_bytes} bytes, destination {destination_bytes} bytes")]
    BlockSize { source_bytes: u32, destination_bytes: u32 },
    #[error("offset {offset} of the {end} is not a multiple of its granularity, {granularity} bytes")]
    OffsetMisaligned { end: End, offset: u64, granularity: u32 },
    #[error(
        "{bytes} bytes are not a multiple of the {end}'s granularity, {granularity} bytes: the last {} would be \
         part of a block (give a size that is)",
        .bytes % u64::from(*.granularity)
    )]
    TailMisaligned { end: End, bytes: u64, granularity: u32 },
    #[error("source and destination are the same storage")]
    Same,
    /// An endpoint is still opening, or has failed.
    #[error("the {0} is not ready")]
    NotReady(End),
    /// The granularities have no common multiple within the largest chunk.
    #[error(
        "granularities of {source_bytes} bytes (source) and {destination_bytes} bytes (destination) have no \
         common multiple up to {CHUNK_BYTES_MAX} bytes"
    )]
    Granularity { source_bytes: u32, destination_bytes: u32 },
    #[error(
        "a chunk of {chunk} bytes; it must be a multiple of {unit}, at least that and at most {CHUNK_BYTES_MAX}"
    )]
    Chunk {
        chunk: u32,
        /// Smallest chunk, in bytes.
        unit: u32,
    },
    #[error("a depth of {depth} chunks; it must be 1 to {DEPTH_MAX}")]
    Depth { depth: u32 },
    #[error(
        "the map is of {map_bytes} bytes, and {bytes} are to be copied: give the offsets and the size of that copy"
    )]
    Map { map_bytes: u64, bytes: u64 },
    #[error("what is to be copied is not a list of ranges in the {bytes} bytes of the range")]
    Only { bytes: u64 },
    #[error("a rate of 0 bytes per second never ends")]
    Rate,
}

impl Refusal {
    /// Whether parameters are invalid (chunk, depth, rate), as opposed to a danger to data.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Chunk { .. } | Self::Depth { .. } | Self::Rate)
    }
}

/// Makes the checks of a copy that need only capabilities, and chooses the parameters.
pub fn plan_check(source: &Capability, destination: &Capability, plan: &Plan) -> Result<Checked, Refusal> {
    let bytes = bytes_from(source, plan.src_offset, plan.size)?;
    let (offset, size) = (plan.dst_offset, destination.size_bytes);
    if size.checked_sub(offset).is_none_or(|room| room < bytes) {
        return Err(Refusal::DestinationTooSmall { offset, bytes, size });
    }
    if destination.read_only {
        return Err(Refusal::ReadOnly);
    }
    if source.block_size != destination.block_size && !plan.allow_block_size {
        let (source_bytes, destination_bytes) = (source.block_size, destination.block_size);
        return Err(Refusal::BlockSize { source_bytes, destination_bytes });
    }
    offsets_aligned(source, destination, plan)?;
    if !bytes.is_multiple_of(granularity(destination).into()) {
        let granularity = granularity(destination);
        return Err(Refusal::TailMisaligned { end: End::Destination, bytes, granularity });
    }
    tail_readable(End::Source, source, plan.src_offset, bytes)?;
    if let Some(map_bytes) = plan.map.as_ref().map(Map::size).filter(|size| *size != bytes) {
        return Err(Refusal::Map { map_bytes, bytes });
    }
    if let Some(only) = &plan.only {
        let ends = only.iter().flat_map(|range| [range.start, range.end]);
        if !ends.chain([bytes]).is_sorted() {
            return Err(Refusal::Only { bytes });
        }
    }
    shape(source, destination, plan, bytes)
}

/// As [`plan_check`] for a comparison, which writes nothing. Without a size the shorter endpoint ends the range.
pub(crate) fn compare_check(a: &Capability, b: &Capability, plan: &Plan) -> Result<Checked, Refusal> {
    let mut bytes = bytes_from(a, plan.src_offset, plan.size)?;
    let (offset, size) = (plan.dst_offset, b.size_bytes);
    let room = size.checked_sub(offset).ok_or(Refusal::DestinationTooSmall { offset, bytes, size })?;
    match plan.size {
        Some(_) if room < bytes => return Err(Refusal::DestinationTooSmall { offset, bytes, size }),
        Some(_) => {}
        None => bytes = bytes.min(room),
    }
    offsets_aligned(a, b, plan)?;
    tail_readable(End::Source, a, plan.src_offset, bytes)?;
    tail_readable(End::Destination, b, plan.dst_offset, bytes)?;
    shape(a, b, plan, bytes)
}

/// The granularity in bytes; never 0, even if an endpoint reports that.
pub(crate) fn granularity(capability: &Capability) -> u32 {
    capability.granularity.max(1)
}

fn bytes_from(source: &Capability, offset: u64, bytes: Option<u64>) -> Result<u64, Refusal> {
    let size = source.size_bytes;
    let left = size.checked_sub(offset);
    match (left, bytes) {
        (Some(left), None) => Ok(left),
        (Some(left), Some(bytes)) if bytes <= left => Ok(bytes),
        _ => Err(Refusal::SourceTooSmall { offset, bytes: bytes.unwrap_or(0), size }),
    }
}

fn offsets_aligned(source: &Capability, destination: &Capability, plan: &Plan) -> Result<(), Refusal> {
    let pairs = [(End::Source, source, plan.src_offset), (End::Destination, destination, plan.dst_offset)];
    for (end, capability, offset) in pairs {
        let granularity = granularity(capability);
        if !offset.is_multiple_of(granularity.into()) {
            return Err(Refusal::OffsetMisaligned { end, offset, granularity });
        }
    }
    Ok(())
}

/// A read may end within a block (the rest of which is read and ignored) if the endpoint has the whole block.
fn tail_readable(end: End, capability: &Capability, offset: u64, bytes: u64) -> Result<(), Refusal> {
    let granularity = granularity(capability);
    let whole = bytes.checked_next_multiple_of(granularity.into());
    match whole.and_then(|whole| offset.checked_add(whole)) {
        Some(stop) if stop <= capability.size_bytes => Ok(()),
        _ => Err(Refusal::TailMisaligned { end, bytes, granularity }),
    }
}

fn shape(source: &Capability, destination: &Capability, plan: &Plan, bytes: u64) -> Result<Checked, Refusal> {
    let (a, b) = (granularity(source), granularity(destination));
    let unit = common_multiple(a, b)
        .and_then(|unit| common_multiple(unit, UNIT_BYTES_MIN))
        .filter(|unit| *unit <= CHUNK_BYTES_MAX)
        .ok_or(Refusal::Granularity { source_bytes: a, destination_bytes: b })?;
    // Both granularities divide the unit, so this multiple exists and is at most the unit.
    let block =
        common_multiple(a, b).and_then(|block| common_multiple(block, BLOCK_BYTES_MIN)).unwrap_or(unit);
    let chunk = match plan.chunk {
        Some(chunk) if chunk == 0 || chunk > CHUNK_BYTES_MAX || !chunk.is_multiple_of(unit) => {
            return Err(Refusal::Chunk { chunk, unit });
        }
        Some(chunk) => chunk,
        None => {
            let wish = source.optimal_transfer_bytes.max(destination.optimal_transfer_bytes);
            let wish = wish.clamp(CHUNK_BYTES_DEFAULT_MIN, CHUNK_BYTES_DEFAULT_MAX);
            (wish / unit).max(1) * unit
        }
    };
    // A chunk longer than the range would waste memory.
    let whole = bytes.max(1).checked_next_multiple_of(unit.into()).unwrap_or(u64::MAX);
    let chunk = u32::try_from(whole).map_or(chunk, |whole| chunk.min(whole));
    let depth = match plan.depth {
        Some(depth) if depth == 0 || depth > DEPTH_MAX => return Err(Refusal::Depth { depth }),
        Some(depth) => depth,
        None => source.queue_depth.saturating_add(destination.queue_depth).clamp(1, DEPTH_DEFAULT),
    };
    if plan.rate.get() == Some(0) {
        return Err(Refusal::Rate);
    }
    Ok(Checked { bytes, chunk, depth, unit, block })
}

fn common_multiple(a: u32, b: u32) -> Option<u32> {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    (a / x).checked_mul(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capability(size_bytes: u64, granularity: u32) -> Capability {
        Capability {
            size_bytes,
            block_size: 512,
            physical_block_size: 4096,
            granularity,
            alignment: 1,
            max_transfer_bytes: 1 << 20,
            optimal_transfer_bytes: 512 << 10,
            queue_depth: 32,
            read_only: false,
            sole_writer: false,
            discard: false,
            write_zeroes: false,
            volatile_cache: true,
            rotational: false,
        }
    }

    #[test]
    fn all_of_the_source_by_default() {
        let plan = Plan { src_offset: 512, ..Plan::default() };
        let checked = plan_check(&capability(10 << 20, 512), &capability(1 << 30, 512), &plan).unwrap();
        let expected =
            Checked { bytes: (10 << 20) - 512, chunk: 512 << 10, depth: 4, unit: 4096, block: 512 };
        assert_eq!(checked, expected);
    }

    #[test]
    fn sizes_at_the_end_of_the_number_range() {
        let big = u64::MAX / 4096 * 4096;
        let (a, b) = (capability(big, 4096), capability(big, 512));
        let plan = Plan::default();
        assert_eq!(plan_check(&a, &b, &plan).unwrap().bytes, big);
        let plan = Plan { dst_offset: 4096, ..plan };
        let refused = plan_check(&a, &b, &plan).unwrap_err();
        assert_eq!(refused, Refusal::DestinationTooSmall { offset: 4096, bytes: big, size: big });
        assert!(refused.to_string().ends_with("need 18446744073709551616"), "{refused}");
        let plan = Plan { src_offset: 8192, size: Some(big), ..Plan::default() };
        assert!(matches!(plan_check(&a, &b, &plan), Err(Refusal::SourceTooSmall { .. })));
        let plan = Plan { src_offset: u64::MAX, ..Plan::default() };
        assert!(matches!(plan_check(&a, &b, &plan), Err(Refusal::SourceTooSmall { .. })));
        let checked = compare_check(&capability(u64::MAX, 1), &capability(u64::MAX, 512), &Plan::default());
        assert!(checked.is_err());
        assert!(compare_check(&capability(u64::MAX, 1), &capability(u64::MAX, 1), &Plan::default()).is_ok());
    }

    #[test]
    fn each_refusal() {
        let (a, b) = (capability(1 << 20, 1), capability(1 << 20, 512));
        let check = |a: &Capability, b: &Capability, plan: Plan| plan_check(a, b, &plan).unwrap_err();
        let small = capability((1 << 20) - 512, 512);
        let expected = Refusal::DestinationTooSmall { offset: 0, bytes: 1 << 20, size: (1 << 20) - 512 };
        assert_eq!(check(&a, &small, Plan::default()), expected);
        let read_only = Capability { read_only: true, ..b.clone() };
        assert_eq!(check(&a, &read_only, Plan::default()), Refusal::ReadOnly);
        let other = Capability { block_size: 4096, ..b.clone() };
        let expected = Refusal::BlockSize { source_bytes: 512, destination_bytes: 4096 };
        assert_eq!(check(&a, &other, Plan::default()), expected);
        assert!(plan_check(&a, &other, &Plan { allow_block_size: true, ..Plan::default() }).is_ok());
        assert_eq!(
            check(&a, &b, Plan { dst_offset: 100, size: Some(512), ..Plan::default() }),
            Refusal::OffsetMisaligned { end: End::Destination, offset: 100, granularity: 512 }
        );
        let refused = check(&a, &b, Plan { size: Some(1000), ..Plan::default() });
        assert_eq!(refused, Refusal::TailMisaligned { end: End::Destination, bytes: 1000, granularity: 512 });
        assert!(refused.to_string().contains("the last 488 would"), "{refused}");
        // In the other direction, the rest of the block is read and ignored.
        assert!(plan_check(&b, &a, &Plan { size: Some(1000), ..Plan::default() }).is_ok());
        for chunk in [0, 100, CHUNK_BYTES_MAX + 512] {
            let refused = check(&a, &b, Plan { chunk: Some(chunk), ..Plan::default() });
            assert_eq!(refused, Refusal::Chunk { chunk, unit: 4096 });
            assert!(refused.is_usage());
        }
        assert!(check(&a, &b, Plan { depth: Some(0), ..Plan::default() }).is_usage());
        assert!(check(&a, &b, Plan { rate: Some(0).into(), ..Plan::default() }).is_usage());
        let odd = capability(1 << 20, (1 << 20) - 1);
        let plan = Plan { size: Some(0), ..Plan::default() };
        assert!(matches!(check(&odd, &b, plan), Refusal::Granularity { .. }));
    }
}
