//! Copy commands of a controller (NVM 3.2.2, Copy).

use super::command::{Command, RANGE_BYTES};

/// Most bytes of one command, so that it completes in time and several can be in flight.
const COMMAND_BYTES_MAX: u32 = 8 << 20;

/// Limits of Copy for a namespace. Every number is at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Copying {
    pub(super) block_size: u32,
    /// Most blocks of one source range.
    pub(super) range_blocks: u32,
    /// Most source ranges of one command.
    pub(super) ranges: u32,
    /// Most blocks of one command, over all ranges.
    pub(super) command_blocks: u32,
    /// The namespace may be shared by controllers, so its number is valid at each of the subsystem.
    pub(super) is_shared: bool,
}

/// Formats of source range entries: 0h, within a namespace, and 2h, which also contains the source namespace.
pub(super) const WITHIN: u32 = 0;
pub(super) const BETWEEN: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) blocks: u32,
}

impl Copying {
    pub(super) fn parts(&self, from: u64, to: u64, blocks: u64) -> Vec<Part> {
        let by_ranges = self.range_blocks.saturating_mul(self.ranges);
        let by_time = (COMMAND_BYTES_MAX / self.block_size).max(1);
        let longest = u64::from(self.command_blocks.min(by_ranges).min(by_time));
        let part = |done: u64| {
            let blocks = (blocks - done).min(longest) as u32;
            Part { from: from + done, to: to + done, blocks }
        };
        (0..blocks.div_ceil(longest)).map(|index| part(index * longest)).collect()
    }

    pub(super) fn meet(self, other: Self) -> Self {
        Self {
            range_blocks: self.range_blocks.min(other.range_blocks),
            ranges: self.ranges.min(other.ranges),
            command_blocks: self.command_blocks.min(other.command_blocks),
            ..self
        }
    }

    /// The command for a part, and its source range entries: figures "Source Range Entries, Descriptor Format 0h" and
    /// "2h". `source`: the source namespace, if it differs from the destination.
    pub(super) fn command(&self, namespace: u32, source: Option<u32>, part: &Part) -> (Command, Vec<u8>) {
        let mut entries = Vec::new();
        let mut done = 0;
        while done < part.blocks {
            let blocks = (part.blocks - done).min(self.range_blocks);
            let mut entry = [0; RANGE_BYTES];
            // SNSID; reserved in format 0h.
            entry[0..4].copy_from_slice(&source.unwrap_or(0).to_le_bytes());
            entry[8..16].copy_from_slice(&(part.from + u64::from(done)).to_le_bytes());
            // NLB is zero-based.
            entry[16..18].copy_from_slice(&((blocks - 1) as u16).to_le_bytes());
            entries.extend(entry);
            done += blocks;
        }
        let format = if source.is_some() { BETWEEN } else { WITHIN };
        (Command::copy(namespace, part.to, entries.len() / RANGE_BYTES, format), entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Copying =
        Copying { block_size: 512, range_blocks: 128, ranges: 4, command_blocks: 300, is_shared: false };

    #[test]
    fn nvm_3_2_2_copy() {
        let part = Part { from: 0x0102_0304_0506_0708, to: 0x1112_1314_1516_1718, blocks: 300 };
        let (command, entries) = SMALL.command(7, None, &part);
        assert_eq!((command.opcode, command.namespace, command.length), (0x19, 7, 3 * 32));
        assert_eq!(command.dwords, [0x1516_1718, 0x1112_1314, 2], "SDLBA; NR counts from zero, format 0h");
        let entries: Vec<_> = entries.chunks(32).collect();
        let slba = |entry: &[u8]| u64::from_le_bytes(entry[8..16].try_into().unwrap());
        assert_eq!(entries.iter().map(|entry| slba(entry) - part.from).collect::<Vec<_>>(), [0, 128, 256]);
        let nlb: Vec<_> = entries.iter().map(|entry| [entry[16], entry[17]]).collect();
        assert_eq!(nlb, [[127, 0], [127, 0], [43, 0]], "NLB counts from zero");
        assert!(entries.iter().all(|entry| entry[..8] == [0; 8] && entry[18..] == [0; 14]), "reserved");
        let (command, between) = SMALL.command(7, Some(0x0102_0304), &part);
        assert_eq!((command.namespace, command.dwords[2]), (7, 2 | 2 << 8), "format 2h");
        assert_eq!((&between[32..40], &between[40..64]), (&[4, 3, 2, 1, 0, 0, 0, 0][..], &entries[1][8..]));
        // The largest values of the fields.
        let large = Copying { range_blocks: 65_536, ranges: 256, command_blocks: u32::MAX, ..SMALL };
        let (command, entries) = large.command(1, None, &Part { from: 0, to: 0, blocks: 256 * 65_536 });
        assert_eq!((command.dwords[2], entries.len()), (255, 8192));
        assert_eq!(entries[16..18], [0xff, 0xff]);
    }

    #[test]
    fn commands_follow_each_other_within_the_limits() {
        let blocks_of = |copying: Copying, blocks| {
            let parts = copying.parts(1000, 5000, blocks);
            let mut done = 0;
            for part in &parts {
                assert_eq!((part.from, part.to), (1000 + done, 5000 + done));
                done += u64::from(part.blocks);
            }
            assert_eq!(done, blocks);
            parts.iter().map(|part| part.blocks).collect::<Vec<_>>()
        };
        assert_eq!(blocks_of(SMALL, 700), [300, 300, 100], "MCL");
        assert_eq!(blocks_of(Copying { ranges: 1, ..SMALL }, 200), [128, 72], "MSSRL and MSRC");
        assert_eq!(blocks_of(Copying { range_blocks: 1, ranges: 2, ..SMALL }, 3), [2, 1]);
        let large = Copying { range_blocks: 65_536, ranges: 256, command_blocks: u32::MAX, ..SMALL };
        assert_eq!(blocks_of(large, 16_385), [16_384, 1], "8 MiB");
        assert_eq!(blocks_of(Copying { block_size: 1 << 31, ..large }, 2), [1, 1]);
        assert!(blocks_of(SMALL, 0).is_empty());
        assert_eq!(large.meet(SMALL), SMALL, "two namespaces");
    }
}
