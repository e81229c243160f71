//! Which copies there are.

use super::copier::{Program, Speed, Way};
use crate::{LabError, Options};

/// The paper's buffer.
pub(super) const BLOCK: u32 = 512 << 10;
/// The paper's number of buffers.
pub(super) const BUFFERS: u32 = 4;
/// Bytes of a copy.
pub(super) const BYTES: u64 = 256 << 20;
const BYTES_QUICK: u64 = 8 << 20;
/// Bytes of the smaller copies of the paper's figure 3.
const SIZES: [u64; 2] = [16 << 20, 64 << 20];
/// Block sizes, bytes.
const BLOCKS: [u32; 6] = [64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 4 << 20];
/// Numbers of buffers.
const DEPTHS: [u32; 8] = [1, 2, 3, 4, 5, 6, 8, 16];
/// Requests one after the other, with the longest delay: so many are enough to tell what each takes.
const CHUNKS_OF_ONE: u64 = 128;
/// Chunks for each buffer, so that the beginning and the end do not count.
const CHUNKS_OF_EACH: u64 = 32;

/// The device as it is, and three that are slower: one without an end to what it does at once, and two at whose rate the buffers
/// are enough. So the knee can be at three places.
pub(super) const SPEEDS: [Speed; 4] = [
    Speed { delay_us: 0, limit: 0 },
    Speed { delay_us: 500, limit: 1_000_000_000 },
    Speed { delay_us: 2000, limit: 500_000_000 },
    Speed { delay_us: 2000, limit: 0 },
];

/// One kind of copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) speed: Speed,
    pub(super) way: Way,
    pub(super) block: u32,
    pub(super) bytes: u64,
}

impl Row {
    /// Who copies, for tables.
    pub(super) fn who(&self) -> String {
        match self.way {
            Way::UserLevel => "user level, as dd".to_owned(),
            Way::Direct => "user level, direct".to_owned(),
            Way::Mover(Some(1)) => "mover, 1 buffer".to_owned(),
            Way::Mover(Some(count)) => format!("mover, {count} buffers"),
            Way::Mover(None) => "mover".to_owned(),
            Way::Program(program) => program.name().to_owned(),
        }
    }

    /// For messages and `Options::rows`.
    pub(super) fn name(&self) -> String {
        format!("{}, blocks of {}, {} bytes, {}", self.who(), self.block, self.bytes, self.speed.name())
    }
}

/// How it is to be done.
#[derive(Clone, Debug)]
pub(super) struct Sizes {
    /// Bytes of a copy.
    pub(super) bytes: u64,
    /// How long a measurement goes on at least, milliseconds.
    pub(super) ms: u64,
    pub(super) rounds: usize,
    /// How long a neighbour is watched, milliseconds.
    pub(super) beside_ms: u64,
    /// How often.
    pub(super) beside_rounds: usize,
    /// Most bytes that a neighbour uses.
    pub(super) beside_bytes: u64,
}

impl Sizes {
    pub(super) fn new(options: &Options) -> Self {
        if options.quick {
            Self {
                bytes: BYTES_QUICK,
                ms: 0,
                rounds: 1,
                beside_ms: 60,
                beside_rounds: 1,
                beside_bytes: 1 << 20,
            }
        } else {
            Self {
                bytes: BYTES,
                ms: 250,
                rounds: 5,
                beside_ms: 1000,
                beside_rounds: 3,
                beside_bytes: 16 << 20,
            }
        }
    }
}

/// Every row that `options` asks for, of copies of at most `bytes`; none twice.
pub(super) fn rows(options: &Options, bytes: u64) -> Result<Vec<Row>, LabError> {
    let longest = mover::CHUNK_BYTES_MAX;
    if let Some(block) =
        options.blocks.iter().find(|block| !block.is_multiple_of(4096) || **block == 0 || **block > longest)
    {
        let text = format!("blocks of {block} bytes; multiples of 4096 up to {longest} can be copied");
        return Err(LabError::Usage(text));
    }
    if let Some(depth) = options.depths.iter().find(|depth| !(1..=mover::DEPTH_MAX).contains(*depth)) {
        return Err(LabError::Usage(format!("{depth} buffers; there can be 1 to {}", mover::DEPTH_MAX)));
    }
    let blocks = match (&options.blocks[..], options.quick) {
        ([], true) => vec![BLOCK],
        ([], false) => BLOCKS.to_vec(),
        (blocks, _) => blocks.to_vec(),
    };
    let depths = match (&options.depths[..], options.quick) {
        ([], true) => vec![1, 2, BUFFERS],
        ([], false) => DEPTHS.to_vec(),
        (depths, _) => depths.to_vec(),
    };
    let speeds: Vec<Speed> = if options.quick { vec![SPEEDS[0], SPEEDS[3]] } else { SPEEDS.to_vec() };
    let four = Way::Mover(Some(BUFFERS));
    let mut rows: Vec<Row> = Vec::new();
    let mut add = |row: Row| {
        if !rows.contains(&row) {
            rows.push(row);
        }
    };
    // Figure 4: buffers, at every speed. In the paper's block, where it is among those asked for.
    let block = if blocks.contains(&BLOCK) { BLOCK } else { blocks[0] };
    for speed in speeds {
        let mut ways = vec![Way::UserLevel, Way::Direct];
        ways.extend(depths.iter().map(|count| Way::Mover(Some(*count))));
        ways.push(Way::Mover(None));
        if speed == Speed::default() && !options.quick {
            ways.extend(Program::ALL.into_iter().filter(|program| program.is_installed()).map(Way::Program));
        }
        for way in ways {
            add(Row { speed, way, block, bytes: bytes_for(speed, way, block, bytes) });
        }
    }
    // Figure 3: bytes; and blocks.
    for way in [Way::UserLevel, Way::Direct, four] {
        let speed = SPEEDS[0];
        if !options.quick {
            SIZES
                .iter()
                .filter(|size| **size < bytes)
                .for_each(|size| add(Row { speed, way, block, bytes: *size }));
        }
        blocks.iter().for_each(|block| add(Row { speed, way, block: *block, bytes }));
    }
    rows.retain(|row| {
        options.rows.is_empty() || options.rows.iter().any(|part| row.name().contains(part.as_str()))
    });
    Ok(rows)
}

/// Slow devices are copied from as long as it takes to tell how slow.
fn bytes_for(speed: Speed, way: Way, block: u32, bytes: u64) -> u64 {
    let buffers = match way {
        Way::UserLevel | Way::Direct | Way::Program(_) => 1,
        Way::Mover(buffers) => buffers.unwrap_or(mover::DEPTH_DEFAULT),
    };
    let chunks = CHUNKS_OF_ONE.max(CHUNKS_OF_EACH * u64::from(buffers));
    if speed.delay_us == 0 { bytes } else { bytes.min(chunks * u64::from(block)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_there_once_and_can_be_chosen() {
        let all = rows(&Options::default(), BYTES).unwrap();
        assert!(all.iter().enumerate().all(|(at, row)| !all[..at].contains(row)));
        let names: Vec<_> = all.iter().map(Row::name).collect();
        assert!(names.iter().enumerate().all(|(at, name)| !names[..at].contains(name)), "{names:?}");
        let one = Options { rows: vec!["mover, 8 buffers".to_owned()], ..Options::default() };
        assert_eq!(rows(&one, BYTES).unwrap().len(), SPEEDS.len());
        let slow = all.iter().find(|row| row.speed == SPEEDS[3] && row.way == Way::Mover(Some(8))).unwrap();
        assert_eq!(slow.bytes, 8 * CHUNKS_OF_EACH * u64::from(BLOCK));
        for wrong in [
            Options { blocks: vec![100], ..Options::default() },
            Options { depths: vec![0], ..Options::default() },
        ] {
            assert!(matches!(rows(&wrong, BYTES), Err(LabError::Usage(_))));
        }
    }
}
