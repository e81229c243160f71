//! Somebody else who uses one of the devices: a request of 4 KiB every millisecond, past the page cache, beside what is copied. All
//! that is read is compared, and all that was written is read back.

use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::Duration;

use area::{Pool, PoolLimits};
use serde::{Deserialize, Serialize};

use crate::part::bystander::{Fared, paced};
use crate::part::{Order, Talk};
use crate::{Attempted, LabError};

/// Bytes of its requests.
const BLOCK: u64 = 4096;

/// Reads and writes blocks of a stretch in some order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Neighbour {
    pub(super) path: PathBuf,
    /// Writes what it reads later, instead of only reading.
    pub(super) write: bool,
    /// First byte of the stretch, and its length; multiples of a block.
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

impl Neighbour {
    pub(crate) fn run(self, mut talk: Talk) -> Result<(), LabError> {
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
        // What every block holds, told by eight bytes of it; of all of them, so that what was never read is compared too.
        let mut held = Vec::with_capacity(count as usize);
        for block in 0..count {
            read(block).attempted(&doing)?;
            held.push(digest(area.as_slice()));
        }
        let mut random = 1u64;
        talk.say(&())?;
        while let Some(order) = talk.next()? {
            let ms = match order {
                Order::Go { ms } => ms,
                Order::Mark => 0,
            };
            let fared: Fared = paced(Duration::from_millis(ms), || {
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
            talk.say(&fared)?;
        }
        Ok(())
    }
}

fn digest(bytes: &[u8]) -> u64 {
    // FNV-1a by words.
    bytes.chunks_exact(8).fold(0xCBF2_9CE4_8422_2325, |sum, word| {
        (sum ^ u64::from_le_bytes(word.try_into().expect("eight bytes"))).wrapping_mul(0x0100_0000_01B3)
    })
}

fn compare(found: u64, held: u64, offset: u64, doing: &str) -> Result<(), LabError> {
    let cause = format!("the 4096 bytes at {offset} are not what was there before");
    if found == held { Ok(()) } else { Err(LabError::new(doing, &cause)) }
}
