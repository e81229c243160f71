//! The properties that a device reports, as capabilities for the mover and the target.

use area::Pool;
use block::Capability;
use host::Limits;

/// Longest command, bytes, even if a device accepts longer ones.
const TRANSFER_BYTES_MAX: u32 = 8 << 20;
/// Most bytes zeroed by one command, so that it completes within its timeout.
const ZERO_BYTES_MAX: u64 = 64 << 20;
/// Blocks that the count field of either family can hold.
const BLOCKS_MAX: u64 = 1 << 16;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Disk {
    pub(crate) blocks: u64,
    /// 512 or 4096: see [`Disk::check`].
    pub(crate) block_size: u32,
    pub(crate) physical_block_size: u32,
    /// Most blocks of one transfer; `None`: not reported.
    pub(crate) transfer_blocks_max: Option<u64>,
    /// How a range is zeroed without transferring zeroes.
    pub(crate) zeroing: Option<Zeroing>,
    pub(crate) fua: bool,
    /// Writes may complete in a volatile cache.
    pub(crate) write_cache: bool,
    pub(crate) write_protected: bool,
    pub(crate) rotational: bool,
    /// Identifier that does not depend on the connection; empty if not reported.
    pub(crate) designator: String,
    pub(crate) facts: Vec<(&'static str, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Zeroing {
    /// Most blocks of one command; 0: not reported.
    pub(crate) blocks_max: u64,
    /// Also zeroes blocks without deallocating them.
    pub(crate) keeps: bool,
}

impl Disk {
    pub(crate) fn check(&self) -> Result<(), String> {
        if ![512, 4096].contains(&self.block_size) {
            let text = format!(
                "its blocks have {} bytes; only 512 and 4096 are supported: format it with one of these",
                self.block_size
            );
            return Err(text);
        }
        match self.blocks.checked_mul(self.block_size.into()) {
            Some(bytes) if bytes <= i64::MAX as u64 => Ok(()),
            _ => Err(format!("it reports an impossible size: {} blocks", self.blocks)),
        }
    }

    /// Number of blocks that hold the first `bytes`, at most all blocks.
    pub(crate) fn head_blocks(&self, bytes: u32) -> u32 {
        bytes.div_ceil(self.block_size).min(self.blocks.try_into().unwrap_or(u32::MAX))
    }

    /// The capability of the endpoint. `limits` are the kernel's for the device, which also apply to passthrough
    /// commands; `depth` is the most commands of a channel.
    pub(crate) fn capability(&self, limits: &Limits, depth: u32, read_only: bool) -> Capability {
        let block = u64::from(self.block_size);
        let reported = self.transfer_blocks_max.map_or(u64::MAX, |blocks| blocks.saturating_mul(block));
        let kernel = limits.transfer_bytes_max.unwrap_or(u64::MAX);
        let longest = reported.min(kernel).min(BLOCKS_MAX * block).min(TRANSFER_BYTES_MAX.into());
        let max_transfer_bytes = (longest / block * block).max(block) as u32;
        // The optimum of the kernel assumes huge pages; without them a command proves too long and is halved.
        let optimal = limits.optimal_transfer_bytes(Pool::large_page_bytes());
        Capability {
            size_bytes: self.blocks * block,
            block_size: self.block_size,
            physical_block_size: self.physical_block_size.clamp(self.block_size, 65536),
            granularity: self.block_size,
            alignment: self.block_size,
            max_transfer_bytes,
            optimal_transfer_bytes: optimal.min(max_transfer_bytes),
            queue_depth: limits.queue_depth.clamp(1, depth),
            read_only: read_only || self.write_protected,
            sole_writer: false,
            discard: self.zeroing.is_some(),
            write_zeroes: self.zeroing.is_some(),
            volatile_cache: self.write_cache,
            rotational: self.rotational,
        }
    }
}

impl Zeroing {
    /// Number of blocks, at most `left`, that one command zeroes.
    pub(crate) fn blocks(&self, left: u64, block_size: u32) -> u64 {
        let reported = if self.blocks_max == 0 { u64::MAX } else { self.blocks_max };
        left.min(reported).min(ZERO_BYTES_MAX / u64::from(block_size))
    }
}

#[cfg(test)]
pub(crate) fn example() -> Disk {
    Disk {
        blocks: 1 << 20,
        block_size: 512,
        physical_block_size: 4096,
        zeroing: Some(Zeroing { blocks_max: 100, keeps: false }),
        fua: true,
        write_cache: true,
        ..Disk::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_cannot_be_are_refused() {
        let disk = example();
        assert_eq!(disk.check(), Ok(()));
        for (blocks, block_size) in
            [(1, 0), (1, 513), (1, 520), (1, 1 << 31), (u64::MAX, 512), (1 << 55, 512)]
        {
            assert!(Disk { blocks, block_size, ..disk.clone() }.check().is_err(), "{blocks} of {block_size}");
        }
    }

    #[test]
    fn a_transfer_is_bounded_by_device_kernel_and_command() {
        let longest = |reported, kernel, block_size| {
            let disk = Disk { block_size, transfer_blocks_max: reported, ..example() };
            let limits = Limits { transfer_bytes_max: kernel, ..Limits::default() };
            let capability = disk.capability(&limits, 16, false);
            assert!(capability.optimal_transfer_bytes <= capability.max_transfer_bytes);
            capability.max_transfer_bytes
        };
        assert_eq!(longest(None, None, 512), TRANSFER_BYTES_MAX);
        assert_eq!(longest(Some(8), None, 512), 4096);
        assert_eq!(longest(Some(8), Some(1000), 512), 512, "whole blocks");
        assert_eq!(longest(Some(0), Some(0), 4096), 4096, "never nothing");
        assert_eq!(longest(Some(u64::MAX), Some(u64::MAX), 4096), TRANSFER_BYTES_MAX);
    }
}
