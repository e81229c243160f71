//! GET LBA STATUS (SBC-3 5.4): which blocks are mapped.

use super::{Call, LogicalUnit, NexusId, Stop};
use crate::limits::LBA_STATUS_DESCRIPTORS_MAX;
use crate::media::Then;
use crate::{LbaExtent, Media, MediaOp, Outcome, Step};

/// Header of the parameter data, and one LBA status descriptor, in bytes.
const HEADER_BYTES: u32 = 8;
const DESCRIPTOR_BYTES: u32 = 16;

/// PROVISIONING STATUS: mapped or unknown; deallocated. Nothing is ever anchored.
const MAPPED: u8 = 0x00;
const DEALLOCATED: u8 = 0x01;

/// GET LBA STATUS. An allocation length without room for a descriptor is no error, it cuts the answer (SPC-4
/// 4.2.5.6), whose PARAMETER DATA LENGTH counts one descriptor all the same: there is always one to be had.
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
        // Fully provisioned: every block is mapped, so there is nothing to ask the storage.
        Step::Media(media) if !unit.config.thin => Ok(Step::Done(unit.lba_status(call.nexus, &media, &[]))),
        step => Ok(step),
    }
}

impl LogicalUnit {
    /// Ends GET LBA STATUS with what the storage knows: extents that follow each other from `media.lba` on. They
    /// may end early, then the initiator asks again from there; what goes beyond `media.blocks` is left out. No
    /// blocks at all means that nothing is known, which is told as mapped, as [`LogicalUnit::finish`] does.
    pub fn lba_status(&mut self, nexus: NexusId, media: &Media, extents: &[LbaExtent]) -> Outcome {
        let mut outcome = self.finish(nexus, media, Ok(()));
        if let Some(data) = parameter_data(media, extents, self.config.thin) {
            outcome.data = data;
        }
        outcome
    }
}

/// GET LBA STATUS parameter data (SBC-3 5.4.2); `None` for other work. On a fully provisioned unit every status is 0h.
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
        // The largest descriptors that can be had.
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
    /// How many more may be added.
    max: u32,
}

impl Descriptors {
    /// Adds descriptors of at most 2^32-1 blocks each and moves `lba` behind them; `false` when there is no more
    /// room.
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
