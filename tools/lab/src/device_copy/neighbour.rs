//! Another user of one of the devices: one request of 4 KiB per millisecond with O_DIRECT, beside the copied range.
//! Compares all data that it reads, and reads back all data that it wrote.

use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;

use area::{Pool, PoolLimits};
use serde::{Deserialize, Serialize};

use crate::part::bystander::paced;
use crate::part::{Orders, send};
use crate::{Attempted, LabError};

const BLOCK: u64 = 4096;

/// Reads or writes blocks of a range in random order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Neighbour {
    pub(super) path: PathBuf,
    /// Whether it writes blocks and reads them back later, instead of only reading.
    pub(super) write: bool,
    /// First byte of the range, and its length; multiples of a block.
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

impl Neighbour {
    pub(crate) fn run(self, orders: Orders) -> Result<(), LabError> {
        let doing = format!("use {} beside the copy", self.path.display());
        let file = OpenOptions::new()
            .read(true)
            .write(self.write)
            .custom_flags(libc::O_DIRECT)
            .open(&self.path)
            .attempted(&doing)?;
        let pool = Pool::new(PoolLimits::default());
        let area = pool.take(BLOCK as usize).ok_or_else(|| LabError::new(&doing, &"no memory"))?;
        let count = self.bytes / BLOCK;
        let offset = |block: u64| self.offset + block * BLOCK;
        let read =
            |block: u64| area.change(0, BLOCK as usize, |into| file.read_exact_at(into, offset(block)));
        // A digest of 8 bytes for every block, read at the start, so that blocks that no request reads are compared
        // too.
        let mut held = Vec::with_capacity(count as usize);
        for block in 0..count {
            read(block).attempted(&doing)?;
            held.push(digest(area.as_slice()));
        }
        let mut random = 1u64;
        send(&())?;
        orders.serve(|time| {
            let pacing = paced(time, || {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let block = (random >> 33) % count;
                if self.write {
                    area.change(0, BLOCK as usize, |bytes| block::fill_pattern(random, 0, bytes));
                    file.write_all_at(area.as_slice(), offset(block)).attempted(&doing)?;
                    held[block as usize] = digest(area.as_slice());
                    return Ok(());
                }
                read(block).attempted(&doing)?;
                compare(digest(area.as_slice()), held[block as usize], offset(block), &doing)
            })?;
            for block in 0..count {
                read(block).attempted(&doing)?;
                compare(digest(area.as_slice()), held[block as usize], offset(block), &doing)?;
            }
            Ok(pacing)
        })
    }
}

fn digest(bytes: &[u8]) -> u64 {
    // FNV-1a over 64-bit words.
    bytes.chunks_exact(8).fold(0xCBF2_9CE4_8422_2325, |sum, word| {
        (sum ^ u64::from_le_bytes(word.try_into().expect("eight bytes"))).wrapping_mul(0x0100_0000_01B3)
    })
}

fn compare(found: u64, held: u64, offset: u64, doing: &str) -> Result<(), LabError> {
    let cause = format!("the 4096 bytes at {offset} are not what was there before");
    if found == held { Ok(()) } else { Err(LabError::new(doing, &cause)) }
}
