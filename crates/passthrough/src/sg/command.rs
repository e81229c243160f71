//! Steps as SCSI commands (SBC-3 clause 5).

use scsi::cdb::{self, Cdb};

use super::header::Direction;
use crate::disk_command::{DiskCommand, Verb};

/// Time after which the kernel aborts a command, ms. A disk may read a failing sector for many seconds.
const TIMEOUT_MS: u32 = 60_000;
/// The same for commands that act on more blocks than they transfer.
const TIMEOUT_LONG_MS: u32 = 300_000;

#[derive(Clone, Copy, Debug)]
pub(super) struct Command {
    pub(super) cdb: Cdb,
    pub(super) direction: Direction,
    pub(super) timeout_ms: u32,
}

/// `long`: the disk supports 16-byte commands, as every disk that answers READ CAPACITY (16).
pub(super) fn command(disk_command: &DiskCommand, long: bool) -> Command {
    let DiskCommand { verb, lba, blocks, .. } = *disk_command;
    let (short_lba, short_blocks) = (lba as u32, blocks as u16);
    let (cdb, direction, timeout_ms) = match verb {
        Verb::Read if long => (cdb::read_16(lba, blocks, false), Direction::FromDevice, TIMEOUT_MS),
        Verb::Read => (cdb::read_10(short_lba, short_blocks, false), Direction::FromDevice, TIMEOUT_MS),
        Verb::Write { fua } if long => (cdb::write_16(lba, blocks, fua), Direction::ToDevice, TIMEOUT_MS),
        Verb::Write { fua } => (cdb::write_10(short_lba, short_blocks, fua), Direction::ToDevice, TIMEOUT_MS),
        // Also supported by disks with 16-byte commands.
        Verb::Flush => (cdb::synchronize_cache_10(), Direction::None, TIMEOUT_LONG_MS),
        Verb::Zero { unmap } => {
            (cdb::write_same_16(lba, blocks, unmap, false), Direction::ToDevice, TIMEOUT_LONG_MS)
        }
    };
    Command { cdb, direction, timeout_ms }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(verb: Verb, long: bool) -> Vec<u8> {
        let disk_command = DiskCommand { verb, lba: 0x0102_0304, blocks: 0x0506, data: None };
        command(&disk_command, long).cdb.as_bytes().to_vec()
    }

    #[test]
    fn sbc3_5_16_read_16_and_5_34_write_16() {
        let address = [0, 0, 0, 0, 1, 2, 3, 4, 0, 0, 5, 6, 0, 0];
        assert_eq!(bytes(Verb::Read, true), [&[0x88, 0][..], &address].concat());
        assert_eq!(bytes(Verb::Write { fua: false }, true), [&[0x8a, 0][..], &address].concat());
        assert_eq!(bytes(Verb::Write { fua: true }, true), [&[0x8a, 8][..], &address].concat());
    }

    #[test]
    fn sbc3_5_14_read_10_and_5_32_write_10() {
        assert_eq!(bytes(Verb::Read, false), [0x28, 0, 1, 2, 3, 4, 0, 5, 6, 0]);
        assert_eq!(bytes(Verb::Write { fua: true }, false), [0x2a, 8, 1, 2, 3, 4, 0, 5, 6, 0]);
    }

    #[test]
    fn sbc3_5_45_write_same_16_and_5_22_synchronize_cache() {
        let same = bytes(Verb::Zero { unmap: true }, true);
        assert_eq!(same, [0x93, 8, 0, 0, 0, 0, 1, 2, 3, 4, 0, 0, 5, 6, 0, 0]);
        assert_eq!(bytes(Verb::Zero { unmap: false }, true)[1], 0);
        assert_eq!(bytes(Verb::Flush, true), [0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
}
