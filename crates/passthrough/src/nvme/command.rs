//! Steps as commands of the NVM Command Set.

use crate::disk_command::{DiskCommand, Verb};

/// Time after which the kernel aborts a command, ms.
const TIMEOUT_MS: u32 = 60_000;
/// Bits of dword 12: Force Unit Access, and Deallocate of Write Zeroes.
const FUA: u32 = 1 << 30;
const DEALLOCATE: u32 = 1 << 25;

const FLUSH: u8 = 0x00;
const WRITE: u8 = 0x01;
const READ: u8 = 0x02;
const WRITE_ZEROES: u8 = 0x08;
const COPY: u8 = 0x19;
const IDENTIFY: u8 = 0x06;
const SET_FEATURES: u8 = 0x09;
const GET_FEATURES: u8 = 0x0a;
/// Feature Identifier of Host Behavior Support, and the length of its data.
const HOST_BEHAVIOR: u32 = 0x16;
pub(super) const HOST_BEHAVIOR_BYTES: usize = 512;

/// Bytes of an entry in Copy's list of source ranges, formats 0h and 2h.
pub(super) const RANGE_BYTES: usize = 32;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Command {
    pub(super) opcode: u8,
    pub(super) namespace: u32,
    /// Bytes of data; 0 without data.
    pub(super) length: u32,
    /// Dwords 10 to 12.
    pub(super) dwords: [u32; 3],
}

impl Command {
    /// Base 5.17: Identify. `what` is CNS: 0 a namespace, 1 the controller.
    pub(super) fn identify(namespace: u32, what: u32, length: u32) -> Self {
        Self { opcode: IDENTIFY, namespace, length, dwords: [what, 0, 0] }
    }

    /// NVM 3.2.4 and following. Flush covers the whole namespace.
    pub(super) fn new(namespace: u32, command: &DiskCommand) -> Self {
        let (low, high) = (command.lba as u32, (command.lba >> 32) as u32);
        // NLB is zero-based.
        let blocks = command.blocks.saturating_sub(1);
        let (opcode, flags) = match command.verb {
            Verb::Flush => return Self::flush(namespace),
            Verb::Read => (READ, 0),
            Verb::Write { fua } => (WRITE, if fua { FUA } else { 0 }),
            Verb::Zero { unmap } => (WRITE_ZEROES, if unmap { DEALLOCATE } else { 0 }),
        };
        let moves = matches!(command.verb, Verb::Read | Verb::Write { .. });
        let length = command.data.as_ref().filter(|_| moves).map_or(0, |span| span.len() as u32);
        Self { opcode, namespace, length, dwords: [low, high, blocks | flags] }
    }

    /// Base 5.12 and 5.25: Get Features and Set Features, Host Behavior Support.
    pub(super) fn host_behavior(is_set: bool) -> Self {
        let opcode = if is_set { SET_FEATURES } else { GET_FEATURES };
        Self { opcode, length: HOST_BEHAVIOR_BYTES as u32, dwords: [HOST_BEHAVIOR, 0, 0], ..Self::default() }
    }

    /// NVM 3.2.2: Copy to `lba` and following from `ranges` source range entries of `format`, which are its data.
    pub(super) fn copy(namespace: u32, lba: u64, ranges: usize, format: u32) -> Self {
        // NR is zero-based.
        let dwords = [lba as u32, (lba >> 32) as u32, (ranges as u32 - 1) | (format << 8)];
        Self { opcode: COPY, namespace, length: (ranges * RANGE_BYTES) as u32, dwords }
    }

    /// Base 7.1: Flush.
    pub(super) fn flush(namespace: u32) -> Self {
        Self { opcode: FLUSH, namespace, ..Self::default() }
    }

    /// The 72 bytes common to `struct nvme_uring_cmd` and `struct nvme_passthru_cmd`.
    pub(super) fn emit(&self, address: u64) -> [u8; 72] {
        let mut bytes = [0; 72];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &[self.opcode]);
        put(4, &self.namespace.to_ne_bytes());
        if self.length > 0 {
            put(24, &address.to_ne_bytes());
            put(36, &self.length.to_ne_bytes());
        }
        for (index, dword) in self.dwords.iter().enumerate() {
            put(40 + 4 * index, &dword.to_ne_bytes());
        }
        put(64, &TIMEOUT_MS.to_ne_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use area::{Pool, PoolLimits};

    use super::*;

    fn command(verb: Verb, blocks: u32) -> Command {
        let pool = Pool::new(PoolLimits::default());
        let data = pool.take(4096);
        Command::new(7, &DiskCommand { verb, lba: 0x0102_0304_0506_0708, blocks, data })
    }

    #[test]
    fn nvm_3_2_4_read_and_3_2_6_write() {
        let address = [0x0506_0708, 0x0102_0304];
        let read = command(Verb::Read, 8);
        assert_eq!((read.opcode, read.namespace, read.length), (2, 7, 4096));
        assert_eq!(read.dwords, [address[0], address[1], 7], "blocks count from zero");
        let write = command(Verb::Write { fua: true }, 8);
        assert_eq!((write.opcode, write.dwords[2]), (1, 7 | 1 << 30));
        assert_eq!(command(Verb::Write { fua: false }, 1).dwords[2], 0);
        assert_eq!(command(Verb::Read, 1 << 16).dwords[2], 0xffff);
    }

    #[test]
    fn nvm_3_2_8_write_zeroes_and_base_7_1_flush() {
        let zero = command(Verb::Zero { unmap: true }, 16);
        assert_eq!((zero.opcode, zero.length, zero.dwords[2]), (8, 0, 15 | 1 << 25), "nothing travels");
        assert_eq!(command(Verb::Zero { unmap: false }, 16).dwords[2], 15);
        assert_eq!(command(Verb::Flush, 0), Command { namespace: 7, ..Command::default() });
    }

    #[test]
    fn base_5_27_1_18_host_behavior_support() {
        let [get, set] = [false, true].map(Command::host_behavior);
        assert_eq!((get.opcode, get.namespace, get.length, get.dwords), (0x0a, 0, 512, [0x16, 0, 0]));
        assert_eq!((set.opcode, set.namespace, set.length, set.dwords), (0x09, 0, 512, [0x16, 0, 0]));
    }

    #[test]
    fn nvme_ioctl_h_layout() {
        let bytes = command(Verb::Read, 8).emit(0x1122_3344_5566_7788);
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!((bytes[0], word(4), word(36)), (2, 7, 4096), "opcode, nsid, data_len");
        assert_eq!(bytes[24..32], 0x1122_3344_5566_7788u64.to_ne_bytes(), "addr");
        let dwords = [word(40), word(44), word(48), word(52)];
        assert_eq!(dwords, [0x0506_0708, 0x0102_0304, 7, 0], "cdw10 to cdw13");
        assert_eq!((word(8), word(12), word(16), word(32), word(64), word(68)), (0, 0, 0, 0, TIMEOUT_MS, 0));
        assert_eq!(command(Verb::Flush, 0).emit(5)[24..40], [0; 16], "no data, no address");
    }
}
