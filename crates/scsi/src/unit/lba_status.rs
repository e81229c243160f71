//! GET LBA STATUS (SBC-3 5.4): reports which blocks are mapped.

use super::{Call, LogicalUnit, NexusId, Stop};
use crate::limits::LBA_STATUS_DESCRIPTORS_MAX;
use crate::media::Then;
use crate::{LbaExtent, Media, MediaOp, Outcome, Step};

/// Bytes of the header of the parameter data; `DESCRIPTOR_BYTES` of one LBA status descriptor.
const HEADER_BYTES: u32 = 8;
const DESCRIPTOR_BYTES: u32 = 16;

/// PROVISIONING STATUS: mapped or unknown; deallocated. Anchored does not occur.
const MAPPED: u8 = 0x00;
const DEALLOCATED: u8 = 0x01;

/// GET LBA STATUS. An allocation length below one descriptor truncates the data without an error (SPC-4 4.2.5.6);
/// PARAMETER DATA LENGTH still counts one descriptor, since there always is one.
pub(super) fn run(unit: &mut LogicalUnit, call: Call<'_>) -> Result<Step, Stop> {
    let &[_, _, a, b, c, d, e, f, g, h, i, j, k, l, ..] = call.cdb else {
        return Err(crate::Sense::INVALID_OPCODE.into());
    };
    let lba = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
    let allocation = u32::from_be_bytes([i, j, k, l]);
    unit.check_range(lba, 0)?;
    let descriptors_max =
        (allocation.saturating_sub(HEADER_BYTES) / DESCRIPTOR_BYTES).clamp(1, LBA_STATUS_DESCRIPTORS_MAX);
    let blocks = (unit.config.blocks - lba).min(u64::from(descriptors_max) * u64::from(u32::MAX));
    let media = Media {
        then: Then::Cut { allocation },
        ..Media::new(MediaOp::LbaStatus { descriptors_max }, lba, blocks)
    };
    match unit.media(media)? {
        // Fully provisioned: every block is mapped, without a request to the storage.
        Step::Media(media) if !unit.config.thin => Ok(Step::Done(unit.lba_status(call.nexus, &media, &[]))),
        step => Ok(step),
    }
}

impl LogicalUnit {
    /// Ends GET LBA STATUS with the extents that the storage reports, contiguous from `media.lba` on. They may end
    /// early: the initiator continues there with another command. Blocks beyond `media.blocks` are ignored. Without any
    /// blocks the state is unknown and reported as mapped, as [`LogicalUnit::finish`] does.
    pub fn lba_status(&mut self, nexus: NexusId, media: &Media, extents: &[LbaExtent]) -> Outcome {
        let mut outcome = self.finish(nexus, media, Ok(()));
        if let Some(data) = parameter_data(media, extents, self.config.thin) {
            outcome.data = data;
        }
        outcome
    }
}

/// GET LBA STATUS parameter data (SBC-3 5.4.2); `None` for another operation. On a fully provisioned unit every status
/// is 0h.
pub(super) fn parameter_data(media: &Media, extents: &[LbaExtent], thin: bool) -> Option<Vec<u8>> {
    let (&MediaOp::LbaStatus { descriptors_max }, &Then::Cut { allocation }) = (&media.op, &media.then)
    else {
        return None;
    };
    let unknown = [LbaExtent { blocks: media.blocks, mapped: true }];
    let extents = if extents.iter().all(|extent| extent.blocks == 0) { &unknown } else { extents };

    let mut descriptors = Descriptors { data: vec![0; HEADER_BYTES as usize], max: descriptors_max };
    let (mut lba, mut left) = (media.lba, media.blocks);
    let mut extents = extents.iter().filter(|extent| extent.blocks > 0).peekable();
    while let Some(extent) = extents.next() {
        let mapped = |extent: &LbaExtent| extent.mapped || !thin;
        let mut blocks = extent.blocks;
        // Adjacent extents of the same state share a descriptor.
        while let Some(next) = extents.next_if(|next| mapped(next) == mapped(extent)) {
            blocks = blocks.saturating_add(next.blocks);
        }
        let blocks = blocks.min(left);
        left -= blocks;
        if !descriptors.push(&mut lba, blocks, if mapped(extent) { MAPPED } else { DEALLOCATED }) {
            break;
        }
    }

    let mut data = descriptors.data;
    let length = data.len() as u32 - 4;
    data[..4].copy_from_slice(&length.to_be_bytes());
    data.truncate(allocation as usize);
    Some(data)
}

struct Descriptors {
    data: Vec<u8>,
    max: u32,
}

impl Descriptors {
    /// Adds descriptors of at most 2^32-1 blocks each and advances `lba` past them; `false` once `max` is 0.
    fn push(&mut self, lba: &mut u64, mut blocks: u64, status: u8) -> bool {
        while blocks > 0 && self.max > 0 {
            let count = u32::try_from(blocks).unwrap_or(u32::MAX);
            self.data.extend(lba.to_be_bytes());
            self.data.extend(count.to_be_bytes());
            self.data.extend([status, 0, 0, 0]);
            self.max -= 1;
            *lba += u64::from(count);
            blocks -= u64::from(count);
        }
        self.max > 0
    }
}
