//! Commands on the medium (SBC-3 clause 5). This module checks fields, limits and capacity; the storage executes.

use super::{Call, LogicalUnit, Stop};
use crate::cdb::{self, Access};
use crate::limits::{
    PARAMETER_LIST_MAX_BYTES, UNMAP_BLOCKS_MAX, UNMAP_DESCRIPTORS_MAX, WRITE_SAME_BLOCKS_MAX,
};
use crate::{Compare, Media, MediaOp, Outcome, Range, Sense, Step};

/// READ (6), (10), (12), (16): SBC-3 5.10 to 5.13.
pub(super) fn read(unit: &mut LogicalUnit, call: Call<'_>) -> Result<Step, Stop> {
    let access = unprotected(call.cdb)?;
    unit.check_transfer(call.cdb, &access)?;
    unit.media(Media {
        dpo: access.dpo,
        ..Media::new(MediaOp::Read { fua: access.fua }, access.lba, access.blocks)
    })
}

/// WRITE (6), (10), (12), (16): SBC-3 5.36 to 5.39.
pub(super) fn write(unit: &mut LogicalUnit, call: Call<'_>) -> Result<Step, Stop> {
    let access = unprotected(call.cdb)?;
    unit.check_transfer(call.cdb, &access)?;
    let durable = access.fua || !unit.write_cache();
    unit.media(Media { dpo: access.dpo, ..Media::new(MediaOp::Write { durable }, access.lba, access.blocks) })
}

/// VERIFY (10), (12), (16): SBC-3 5.33 to 5.35.
pub(super) fn verify(unit: &mut LogicalUnit, call: Call<'_>) -> Result<Step, Stop> {
    let access = unprotected(call.cdb)?;
    let compare = match (call.cdb[1] >> 1) & 0x03 {
        0b00 => Compare::None,
        0b01 => Compare::Each,
        0b11 => Compare::One,
        _ => return Err(Sense::field_in_cdb(1, Some(2)).into()),
    };
    unit.check_transfer(call.cdb, &access)?;
    // BYTCHK 11b with zero blocks must not request a block of data-out.
    let compare = if access.blocks == 0 { Compare::None } else { compare };
    unit.media(Media {
        dpo: access.dpo,
        ..Media::new(MediaOp::Verify { compare }, access.lba, access.blocks)
    })
}

/// WRITE AND VERIFY (10), (12), (16): SBC-3 5.40 to 5.42.
pub(super) fn write_verify(unit: &mut LogicalUnit, call: Call<'_>) -> Result<Step, Stop> {
    let access = unprotected(call.cdb)?;
    let compare = match (call.cdb[1] >> 1) & 0x03 {
        0b00 => Compare::None,
        0b01 => Compare::Each,
        _ => return Err(Sense::field_in_cdb(1, Some(2)).into()),
    };
    unit.check_transfer(call.cdb, &access)?;
    unit.media(Media {
        dpo: access.dpo,
        ..Media::new(MediaOp::WriteVerify { compare }, access.lba, access.blocks)
    })
}

/// PRE-FETCH (10), (16): SBC-3 5.8, 5.9. GOOD, unlike CONDITION MET, makes no statement about the cache.
pub(super) fn pre_fetch(unit: &mut LogicalUnit, call: Call<'_>) -> Result<Step, Stop> {
    let access = Access::parse(call.cdb).ok_or(Sense::INVALID_OPCODE)?;
    unit.check_range(access.lba, access.blocks)?;
    Ok(Step::Done(Outcome::good()))
}

/// SYNCHRONIZE CACHE (10), (16): SBC-3 5.22, 5.23. Zero blocks means to the end. IMMED does not make the status early:
/// a later failure of the flush could only be reported as a deferred error.
pub(super) fn synchronize_cache(unit: &mut LogicalUnit, call: Call<'_>) -> Result<Step, Stop> {
    let Access { lba, blocks, .. } = Access::parse(call.cdb).ok_or(Sense::INVALID_OPCODE)?;
    unit.check_range(lba, blocks)?;
    let blocks = if blocks == 0 { unit.config.blocks - lba } else { blocks };
    unit.media(Media::new(MediaOp::Flush, lba, blocks))
}

/// WRITE SAME (10), (16): SBC-3 5.43, 5.44.
pub(super) fn write_same(unit: &mut LogicalUnit, call: Call<'_>) -> Result<Step, Stop> {
    let Access { lba, blocks, protect, .. } = Access::parse(call.cdb).ok_or(Sense::INVALID_OPCODE)?;
    let flags = call.cdb[1];
    let (anchor, unmap) = (flags & 0x10 != 0, flags & 0x08 != 0);
    // NDOB exists only in the 16-byte CDB; the 10-byte CDB has the obsolete bits LBDATA and PBDATA there.
    let zero = call.cdb[0] == cdb::opcode::WRITE_SAME_16 && flags & 0x01 != 0;
    if protect != 0 {
        return Err(Sense::field_in_cdb(1, Some(7)).into());
    }
    // ANCHOR without ANC_SUP, or without UNMAP (SBC-3 table 110).
    if anchor {
        return Err(Sense::field_in_cdb(1, Some(4)).into());
    }
    if unmap && !unit.config.thin {
        return Err(Sense::field_in_cdb(1, Some(3)).into());
    }
    if flags & 0x06 != 0 {
        return Err(Sense::field_in_cdb(1, Some(2)).into());
    }
    unit.check_range(lba, blocks)?;
    // WSNZ: zero blocks would mean to the end of the unit. The bound is MAXIMUM WRITE SAME LENGTH.
    if blocks == 0 || blocks > u64::from(WRITE_SAME_BLOCKS_MAX) {
        return Err(Sense::field_in_cdb(cdb::blocks_field(call.cdb), None).into());
    }
    let durable = !unit.write_cache();
    unit.media(Media::new(MediaOp::WriteSame { unmap, zero, durable }, lba, blocks))
}

/// UNMAP: SBC-3 5.28.
pub(super) fn unmap(_: &mut LogicalUnit, call: Call<'_>) -> Result<Step, Stop> {
    // ANCHOR without ANC_SUP.
    if call.cdb[1] & 0x01 != 0 {
        return Err(Sense::field_in_cdb(1, Some(0)).into());
    }
    match unmap_list_bytes(call.cdb) {
        0 => Ok(Step::Done(Outcome::good())),
        1..8 => Err(Sense::LIST_LENGTH.into()),
        // More descriptors than the Block Limits page allows: those beyond the maximum would not be used.
        bytes => Ok(Step::Collect { list_bytes: bytes, bytes: bytes.min(PARAMETER_LIST_MAX_BYTES) }),
    }
}

/// The parameter list of UNMAP: SBC-3 table 84.
pub(super) fn unmap_list(unit: &mut LogicalUnit, call: Call<'_>, list: &[u8]) -> Result<Step, Stop> {
    let requested = unmap_list_bytes(call.cdb).min(PARAMETER_LIST_MAX_BYTES) as usize;
    let Some(list) = list.get(..requested).filter(|list| list.len() >= 8) else {
        return Err(Sense::LIST_LENGTH.into());
    };
    // UNMAP BLOCK DESCRIPTOR DATA LENGTH: a partial descriptor is ignored, one beyond the list is an error.
    let bytes = usize::from(u16::from_be_bytes([list[2], list[3]]));
    let descriptors = bytes / 16;
    if descriptors > UNMAP_DESCRIPTORS_MAX as usize {
        return Err(Sense::field_in_list(2, None).into());
    }
    let Some(body) = list.get(8..8 + descriptors * 16) else {
        return Err(Sense::LIST_LENGTH.into());
    };
    let mut ranges = Vec::with_capacity(descriptors);
    let mut total = 0;
    for (index, descriptor) in body.chunks_exact(16).enumerate() {
        let lba = be64(&descriptor[..8]);
        let blocks = u64::from(be32(&descriptor[8..12]));
        // Zero blocks at the end of the unit are no error (SBC-3 5.28.2: "shall not be considered an error").
        if lba > unit.config.blocks || blocks > unit.config.blocks - lba {
            return Err(Sense::OUT_OF_RANGE.into());
        }
        total += blocks;
        if total > u64::from(UNMAP_BLOCKS_MAX) {
            return Err(Sense::field_in_list((8 + 16 * index + 8) as u16, None).into());
        }
        if blocks != 0 {
            ranges.push(Range { lba, blocks });
        }
    }
    if ranges.is_empty() {
        return Ok(Step::Done(Outcome::good()));
    }
    let durable = !unit.write_cache();
    unit.media(Media::new(MediaOp::Unmap { ranges, durable }, 0, total))
}

/// Parses a CDB whose RDPROTECT, WRPROTECT or VRPROTECT must be zero: the medium is not formatted with protection
/// information (SBC-3 table 49).
fn unprotected(cdb: &[u8]) -> Result<Access, Stop> {
    let access = Access::parse(cdb).ok_or(Sense::INVALID_OPCODE)?;
    if access.protect != 0 {
        return Err(Sense::field_in_cdb(1, Some(7)).into());
    }
    Ok(access)
}

fn unmap_list_bytes(cdb: &[u8]) -> u32 {
    u32::from(u16::from_be_bytes([cdb[7], cdb[8]]))
}

fn be64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

fn be32(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |value, byte| value << 8 | u32::from(*byte))
}

impl LogicalUnit {
    /// Returns the operation as a step, unless accepted data was lost: no block of the unit is reliable then.
    pub(super) fn media(&self, media: Media) -> Result<Step, Stop> {
        if self.lost_data {
            return Err(if media.writes() || media.op == MediaOp::Flush {
                Sense::WRITE_ERROR
            } else {
                Sense::READ_ERROR
            }
            .into());
        }
        Ok(Step::Media(media))
    }

    /// Checks that the blocks exist, and with zero blocks that `lba` does (SBC-3 5.11: "if the specified LBA exceeds
    /// the capacity of the medium").
    pub(super) fn check_range(&self, lba: u64, blocks: u64) -> Result<(), Stop> {
        let capacity = self.config.blocks;
        if lba >= capacity || blocks > capacity - lba {
            return Err(Sense::OUT_OF_RANGE.into());
        }
        Ok(())
    }

    /// [`LogicalUnit::check_range`] and MAXIMUM TRANSFER LENGTH (SBC-3 6.5.3).
    fn check_transfer(&self, cdb: &[u8], access: &Access) -> Result<(), Stop> {
        self.check_range(access.lba, access.blocks)?;
        let max = self.transfer_max_blocks();
        if max != 0 && access.blocks > max {
            return Err(Sense::field_in_cdb(cdb::blocks_field(cdb), None).into());
        }
        Ok(())
    }

    /// MAXIMUM TRANSFER LENGTH in blocks; 0 means no limit.
    pub(super) fn transfer_max_blocks(&self) -> u64 {
        u64::from(self.config.max_transfer_bytes / self.config.block_size)
    }
}
