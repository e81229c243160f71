//! The rows of the experiment.

use super::copier::{Method, Program, Speed};
use crate::stats::distinct;
use crate::{LabError, Options};

/// Bytes of a buffer in the paper.
pub(super) const BLOCK: u32 = 512 << 10;
/// Number of buffers in the paper.
pub(super) const BUFFERS: u32 = 4;
pub(super) const BYTES: u64 = 256 << 20;
const BYTES_QUICK: u64 = 8 << 20;
/// Bytes of the smaller copies of the paper's figure 3.
const SIZES: [u64; 2] = [16 << 20, 64 << 20];
const BLOCKS: [u32; 6] = [64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 4 << 20];
const DEPTHS: [u32; 8] = [1, 2, 3, 4, 5, 6, 8, 16];
/// Chunks of a copy with one buffer at the longest delay: enough to measure the time of each.
const CHUNKS_OF_ONE: u64 = 128;
/// Chunks per buffer: enough that start and end have little weight.
const CHUNKS_OF_EACH: u64 = 32;

/// The device as it is, and three slower ones: one without a rate limit, and two with rate limits that the buffers can
/// reach. So the knee is at three places.
pub(super) const SPEEDS: [Speed; 4] = [
    Speed { delay_us: 0, limit: 0 },
    Speed { delay_us: 500, limit: 1_000_000_000 },
    Speed { delay_us: 2000, limit: 500_000_000 },
    Speed { delay_us: 2000, limit: 0 },
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) speed: Speed,
    pub(super) method: Method,
    pub(super) block: u32,
    pub(super) bytes: u64,
}

impl Row {
    pub(super) fn who(&self) -> String {
        match self.method {
            Method::UserLevel => "user level, as dd".to_owned(),
            Method::Direct => "user level, direct".to_owned(),
            Method::Mover(Some(1)) => "mover, 1 buffer".to_owned(),
            Method::Mover(Some(count)) => format!("mover, {count} buffers"),
            Method::Mover(None) => "mover".to_owned(),
            Method::Program(program) => program.name().to_owned(),
        }
    }

    /// The row's name in messages and `Options::rows`.
    pub(super) fn name(&self) -> String {
        format!("{}, blocks of {}, {} bytes, {}", self.who(), self.block, self.bytes, self.speed.name())
    }
}

#[derive(Clone, Debug)]
pub(super) struct Sizes {
    pub(super) bytes: u64,
    /// Minimum duration of a measurement, milliseconds.
    pub(super) ms: u64,
    pub(super) rounds: usize,
    pub(super) beside_ms: u64,
    pub(super) beside_rounds: usize,
    /// Maximum bytes that a neighbour uses.
    pub(super) beside_bytes: u64,
}

impl Sizes {
    pub(super) fn new(options: &Options) -> Self {
        if options.quick {
            let (ms, rounds, beside_ms, beside_rounds, beside_bytes) = (0, 1, 60, 1, 1 << 20);
            Self { bytes: BYTES_QUICK, ms, rounds, beside_ms, beside_rounds, beside_bytes }
        } else {
            let (ms, rounds, beside_ms, beside_rounds, beside_bytes) = (250, 5, 1000, 3, 16 << 20);
            Self { bytes: BYTES, ms, rounds, beside_ms, beside_rounds, beside_bytes }
        }
    }
}

/// All rows that `options` selects, with copies of at most `bytes`, without duplicates.
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
    let blocks = options.values(&options.blocks, &[BLOCK], &BLOCKS);
    let depths = options.values(&options.depths, &[1, 2, BUFFERS], &DEPTHS);
    let speeds: Vec<Speed> = if options.quick { vec![SPEEDS[0], SPEEDS[3]] } else { SPEEDS.to_vec() };
    let four = Method::Mover(Some(BUFFERS));
    let mut rows: Vec<Row> = Vec::new();
    let mut add = |row: Row| rows.push(row);
    // Figure 4: number of buffers, at every speed, with the paper's block size if it is selected.
    let block = if blocks.contains(&BLOCK) { BLOCK } else { blocks[0] };
    for speed in speeds {
        let mut methods = vec![Method::UserLevel, Method::Direct];
        methods.extend(depths.iter().map(|count| Method::Mover(Some(*count))));
        methods.push(Method::Mover(None));
        if speed == Speed::default() && !options.quick {
            methods.extend(
                Program::ALL.into_iter().filter(|program| program.is_installed()).map(Method::Program),
            );
        }
        for method in methods {
            add(Row { speed, method, block, bytes: bytes_for(speed, method, block, bytes) });
        }
    }
    // Figure 3: by bytes and by block size.
    for method in [Method::UserLevel, Method::Direct, four] {
        let speed = SPEEDS[0];
        if !options.quick {
            SIZES
                .iter()
                .filter(|size| **size < bytes)
                .for_each(|size| add(Row { speed, method, block, bytes: *size }));
        }
        blocks.iter().for_each(|block| add(Row { speed, method, block: *block, bytes }));
    }
    let mut rows = distinct(rows);
    rows.retain(|row| options.selects(&row.name()));
    Ok(rows)
}

/// Bytes of a copy. Slow devices get fewer: enough to measure their rate.
fn bytes_for(speed: Speed, method: Method, block: u32, bytes: u64) -> u64 {
    let buffers = match method {
        Method::UserLevel | Method::Direct | Method::Program(_) => 1,
        Method::Mover(buffers) => buffers.unwrap_or(mover::DEPTH_DEFAULT),
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
        let slow =
            all.iter().find(|row| row.speed == SPEEDS[3] && row.method == Method::Mover(Some(8))).unwrap();
        assert_eq!(slow.bytes, 8 * CHUNKS_OF_EACH * u64::from(BLOCK));
        for wrong in [
            Options { blocks: vec![100], ..Options::default() },
            Options { depths: vec![0], ..Options::default() },
        ] {
            assert!(matches!(rows(&wrong, BYTES), Err(LabError::Usage(_))));
        }
    }
}
