//! What is to be copied, and what is refused before anything is touched.

use std::ops::Range;

use area::Pool;
use block::Capability;
use thiserror::Error;

use crate::error::End;
use crate::map::Map;

/// Smallest chunk chosen from the devices' wishes, in bytes.
pub const CHUNK_BYTES_DEFAULT_MIN: u32 = 512 << 10;
/// Largest chunk chosen from the devices' wishes, in bytes.
pub const CHUNK_BYTES_DEFAULT_MAX: u32 = 1 << 20;
/// Largest chunk that may be asked for, in bytes: one area.
pub const CHUNK_BYTES_MAX: u32 = 16 << 20;
/// Chunks and holes begin and end on multiples of this many bytes (or more, if a granularity says so) from the
/// start of the range, except at its end: requests then never share a page, which `block` relies on where it
/// mixes O_DIRECT and the page cache.
pub const UNIT_BYTES_MIN: u32 = 4096;
/// What cannot be read is looked at in blocks of this many bytes (or more, if a granularity says so).
pub const BLOCK_BYTES_MIN: u32 = 512;
/// Chunks in flight unless asked otherwise, or to begin the search with.
pub const DEPTH_DEFAULT: u32 = 4;
/// Most chunks in flight that may be asked for.
pub const DEPTH_MAX: u32 = 256;

const _: () = assert!(CHUNK_BYTES_MAX as usize <= Pool::AREA_BYTES_MAX);
const _: () = assert!(CHUNK_BYTES_DEFAULT_MIN <= CHUNK_BYTES_DEFAULT_MAX);
const _: () = assert!(CHUNK_BYTES_DEFAULT_MAX <= CHUNK_BYTES_MAX);
const _: () = assert!(DEPTH_DEFAULT <= DEPTH_MAX);

/// What to copy (or compare) and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// First byte in the source.
    pub src_offset: u64,
    /// First byte in the destination.
    pub dst_offset: u64,
    /// Bytes; `None` is all of the source after `src_offset`.
    pub size: Option<u64>,
    /// Bytes of one chunk; `None` chooses.
    pub chunk: Option<u32>,
    /// Chunks in flight; `None` chooses.
    pub depth: Option<u32>,
    /// Read the destination back after the flush and compare it with what was read from the source.
    pub verify: bool,
    /// With `verify`, have [`Report::sums`](crate::Report::sums) made of it.
    pub sums: bool,
    /// Bytes read per second at most.
    pub rate: Option<u64>,
    /// Make holes, zero chunks and stretches of 64 KiB of zeroes and more zero, instead of moving their zeroes.
    pub sparse: bool,
    /// Copy between different logical block sizes.
    pub allow_block_size: bool,
    /// What an earlier copy of this range has claimed: what is finished is neither read nor written.
    pub map: Option<Map>,
    /// Where source and destination may differ, counted from the start of the range, in order: what lies between is
    /// neither read nor written, on the caller's word that it is the same. `None` is everywhere. Means nothing to a
    /// comparison.
    pub only: Option<Vec<Range<u64>>>,
    /// Read the destination as well, and write only what differs. Where both have a hole nothing is read.
    pub differing: bool,
    /// Go on where the source's medium cannot be read: try again in small steps at the end, and report what stays
    /// unreadable. Nothing is written there.
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
            rate: None,
            sparse: true,
            allow_block_size: false,
            map: None,
            only: None,
            differing: false,
            skip_bad: false,
        }
    }
}

/// A plan that can be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Bytes in all.
    pub bytes: u64,
    /// Bytes of one chunk, a multiple of `unit`.
    pub chunk: u32,
    /// Chunks in flight.
    pub depth: u32,
    /// Every request but the last ends on a multiple of this: [`UNIT_BYTES_MIN`] and both granularities divide
    /// it.
    pub unit: u32,
    /// What cannot be read is looked at in steps of this many bytes: [`BLOCK_BYTES_MIN`] and both granularities divide
    /// it, and it divides the unit.
    pub block: u32,
}

/// Why a plan is not carried out. Nothing was read or written.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Refusal {
    /// The range leaves the source.
    #[error("the source has {size} bytes; {bytes} bytes at offset {offset} are not all there")]
    SourceTooSmall {
        /// First byte asked for.
        offset: u64,
        /// Bytes asked for.
        bytes: u64,
        /// Bytes of the source.
        size: u64,
    },
    /// The range leaves the destination.
    #[error(
        "the destination has {size} bytes; {bytes} bytes at offset {offset} need {}",
        u128::from(*.offset) + u128::from(*.bytes)
    )]
    DestinationTooSmall {
        /// First byte to be written.
        offset: u64,
        /// Bytes to be written.
        bytes: u64,
        /// Bytes of the destination.
        size: u64,
    },
    /// The destination refuses writes.
    #[error("the destination is read-only")]
    ReadOnly,
    /// Logical block sizes differ and that was not allowed.
    #[error("logical block sizes differ: source {source_bytes} bytes, destination {destination_bytes} bytes")]
    BlockSize {
        /// Of the source.
        source_bytes: u32,
        /// Of the destination.
        destination_bytes: u32,
    },
    /// An offset is not on a block of its endpoint.
    #[error("offset {offset} of the {end} is not a multiple of its granularity, {granularity} bytes")]
    OffsetMisaligned {
        /// Which endpoint.
        end: End,
        /// The offset.
        offset: u64,
        /// What it should be a multiple of.
        granularity: u32,
    },
    /// The last bytes do not fill a block of the destination.
    #[error(
        "{bytes} bytes are not a multiple of the {end}'s granularity, {granularity} bytes: the last {} would be \
         part of a block (give a size that is)",
        .bytes % u64::from(*.granularity)
    )]
    TailMisaligned {
        /// Which endpoint.
        end: End,
        /// Bytes to be copied.
        bytes: u64,
        /// What they should be a multiple of.
        granularity: u32,
    },
    /// Both are the same storage.
    #[error("source and destination are the same storage")]
    Same,
    /// An endpoint is still opening, or failed.
    #[error("the {0} is not ready")]
    NotReady(End),
    /// The granularities have no usable common multiple.
    #[error(
        "granularities of {source_bytes} bytes (source) and {destination_bytes} bytes (destination) have no \
         common multiple up to {CHUNK_BYTES_MAX} bytes"
    )]
    Granularity {
        /// Of the source.
        source_bytes: u32,
        /// Of the destination.
        destination_bytes: u32,
    },
    /// The chunk asked for is impossible.
    #[error(
        "a chunk of {chunk} bytes; it must be a multiple of {unit}, at least that and at most {CHUNK_BYTES_MAX}"
    )]
    Chunk {
        /// As asked.
        chunk: u32,
        /// Smallest chunk.
        unit: u32,
    },
    /// The depth asked for is impossible.
    #[error("a depth of {depth} chunks; it must be 1 to {DEPTH_MAX}")]
    Depth {
        /// As asked.
        depth: u32,
    },
    /// The map is another range's.
    #[error(
        "the map is of {map_bytes} bytes, and {bytes} are to be copied: give the offsets and the size of that copy"
    )]
    Map {
        /// Of the map.
        map_bytes: u64,
        /// Of the range.
        bytes: u64,
    },
    /// Stretches that overlap, are out of order or leave the range.
    #[error("what is to be copied is not a list of stretches in the {bytes} bytes of the range")]
    Only {
        /// Of the range.
        bytes: u64,
    },
    /// A rate of nothing.
    #[error("a rate of 0 bytes per second never ends")]
    Rate,
}

impl Refusal {
    /// Whether the words of the plan are wrong (chunk, depth, rate), rather than data in danger.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Chunk { .. } | Self::Depth { .. } | Self::Rate)
    }
}

/// The refusals of a copy that need only capabilities, and the numbers chosen.
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

/// As [`plan_check`] for a comparison: nothing is written, so less is refused. Without a size, the range ends
/// where the shorter one does.
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

/// The granularity, never zero whatever an endpoint says.
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

/// A read may end in the middle of a block (the rest of it is read and ignored) if the block is all there.
fn tail_readable(end: End, capability: &Capability, offset: u64, bytes: u64) -> Result<(), Refusal> {
    let granularity = granularity(capability);
    let whole = bytes.checked_next_multiple_of(granularity.into());
    match whole.and_then(|whole| offset.checked_add(whole)) {
        Some(stop) if stop <= capability.size_bytes => Ok(()),
        _ => Err(Refusal::TailMisaligned { end, bytes, granularity }),
    }
}

/// Chunk, depth and unit.
fn shape(source: &Capability, destination: &Capability, plan: &Plan, bytes: u64) -> Result<Checked, Refusal> {
    let (a, b) = (granularity(source), granularity(destination));
    let unit = common_multiple(a, b)
        .and_then(|unit| common_multiple(unit, UNIT_BYTES_MIN))
        .filter(|unit| *unit <= CHUNK_BYTES_MAX)
        .ok_or(Refusal::Granularity { source_bytes: a, destination_bytes: b })?;
    // Both divide the unit, so that this is there and not greater.
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
    // A chunk longer than the whole would only waste memory.
    let whole = bytes.max(1).checked_next_multiple_of(unit.into()).unwrap_or(u64::MAX);
    let chunk = u32::try_from(whole).map_or(chunk, |whole| chunk.min(whole));
    let depth = match plan.depth {
        Some(depth) if depth == 0 || depth > DEPTH_MAX => return Err(Refusal::Depth { depth }),
        Some(depth) => depth,
        None => source.queue_depth.saturating_add(destination.queue_depth).clamp(1, DEPTH_DEFAULT),
    };
    if plan.rate == Some(0) {
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
        assert_eq!(
            checked,
            Checked { bytes: (10 << 20) - 512, chunk: 512 << 10, depth: 4, unit: 4096, block: 512 }
        );
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
        assert!(
            compare_check(&capability(u64::MAX, 1), &capability(u64::MAX, 512), &Plan::default()).is_err()
        );
        assert!(compare_check(&capability(u64::MAX, 1), &capability(u64::MAX, 1), &Plan::default()).is_ok());
    }

    #[test]
    fn each_refusal() {
        let (a, b) = (capability(1 << 20, 1), capability(1 << 20, 512));
        let check = |a: &Capability, b: &Capability, plan: Plan| plan_check(a, b, &plan).unwrap_err();
        let small = capability((1 << 20) - 512, 512);
        assert_eq!(
            check(&a, &small, Plan::default()),
            Refusal::DestinationTooSmall { offset: 0, bytes: 1 << 20, size: (1 << 20) - 512 }
        );
        assert_eq!(
            check(&a, &Capability { read_only: true, ..b.clone() }, Plan::default()),
            Refusal::ReadOnly
        );
        let other = Capability { block_size: 4096, ..b.clone() };
        assert_eq!(
            check(&a, &other, Plan::default()),
            Refusal::BlockSize { source_bytes: 512, destination_bytes: 4096 }
        );
        assert!(plan_check(&a, &other, &Plan { allow_block_size: true, ..Plan::default() }).is_ok());
        assert_eq!(
            check(&a, &b, Plan { dst_offset: 100, size: Some(512), ..Plan::default() }),
            Refusal::OffsetMisaligned { end: End::Destination, offset: 100, granularity: 512 }
        );
        let refused = check(&a, &b, Plan { size: Some(1000), ..Plan::default() });
        assert_eq!(refused, Refusal::TailMisaligned { end: End::Destination, bytes: 1000, granularity: 512 });
        assert!(refused.to_string().contains("the last 488 would"), "{refused}");
        // The other way round the rest of the block is read and ignored.
        assert!(plan_check(&b, &a, &Plan { size: Some(1000), ..Plan::default() }).is_ok());
        for chunk in [0, 100, CHUNK_BYTES_MAX + 512] {
            let refused = check(&a, &b, Plan { chunk: Some(chunk), ..Plan::default() });
            assert_eq!(refused, Refusal::Chunk { chunk, unit: 4096 });
            assert!(refused.is_usage());
        }
        assert!(check(&a, &b, Plan { depth: Some(0), ..Plan::default() }).is_usage());
        assert!(check(&a, &b, Plan { rate: Some(0), ..Plan::default() }).is_usage());
        let odd = capability(1 << 20, (1 << 20) - 1);
        let plan = Plan { size: Some(0), ..Plan::default() };
        assert!(matches!(check(&odd, &b, plan), Refusal::Granularity { .. }));
    }
}
