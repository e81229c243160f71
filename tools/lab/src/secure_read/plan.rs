//! The rows of the experiment.

use super::cipher::Cipher;
use super::shape::{How, Over, Protection, Reading, UNIT_BYTES};
use super::volumes::Volume;
use crate::{LabError, Options};

/// Block sizes in bytes: the paper's range.
const BLOCKS: [u32; 6] = [512, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20];
/// Block size of the paper's packet plots, and of `--quick`.
pub(super) const BLOCK_OF_PLOTS: u32 = 32 << 10;
const DEPTH_MAX: u32 = 64;
/// One at a time, as in the paper, and several.
const DEPTHS: [u32; 2] = [1, 8];
const BLOCK_MAX: u32 = 4 << 20;

#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) over: Over,
    pub(super) reading: Reading,
}

impl Row {
    /// The row's name in messages and `Options::rows`.
    pub(super) fn name(&self) -> String {
        let Reading { block, depth, protection } = self.reading;
        format!("{} {}, {block} bytes, depth {depth}", self.over.name(), protection.name())
    }
}

/// All rows that `options` selects. Rows to be compared are adjacent, and are measured in that order.
pub(super) fn rows(options: &Options) -> Result<Vec<Row>, LabError> {
    for block in &options.blocks {
        if !block.is_multiple_of(512) || !(512..=BLOCK_MAX).contains(block) {
            let text = format!("blocks of {block} bytes; multiples of 512 up to {BLOCK_MAX} can be read");
            return Err(LabError::Usage(text));
        }
    }
    let blocks = options.values(&options.blocks, &[BLOCK_OF_PLOTS], &BLOCKS);
    if let Some(depth) = options.depths.iter().find(|depth| !(1..=DEPTH_MAX).contains(*depth)) {
        return Err(LabError::Usage(format!("a depth of {depth}; it can be 1 to {DEPTH_MAX}")));
    }
    let depths = options.values(&options.depths, &[1], &DEPTHS);
    let mut rows = Vec::new();
    for over in [Over::Sockets, Over::Iscsi] {
        for &depth in &depths {
            for &block in &blocks {
                let protections = protections(over, depth);
                let readings = protections.into_iter().map(|protection| Reading { block, depth, protection });
                rows.extend(readings.map(|reading| Row { over, reading }));
            }
        }
    }
    rows.retain(|row| options.selects(&row.name()));
    if rows.is_empty() {
        return Err(LabError::Usage("no row has such a name".to_owned()));
    }
    Ok(rows)
}

/// Payload of a packet of 1500 bytes with ESP headers.
pub(super) const PACKET_BYTES: u32 = 1400;
/// Bytes of a unit of about one packet.
const UNIT_BYTES_SMALL: u32 = 1024;

fn protections(over: Over, depth: u32) -> Vec<Protection> {
    let mut all = vec![Protection::Plain, Protection::Tls];
    let sealed = |cipher, unit, how| Protection::Sealed { cipher, unit, how };
    for cipher in Cipher::ALL {
        if depth == 1 {
            all.push(sealed(cipher, UNIT_BYTES, How::Stored));
        }
        let hows: &[How] = match over {
            Over::Sockets => &[How::Ahead, How::Late],
            Over::Iscsi if cipher == Cipher::Delayed => &[],
            Over::Iscsi => &[How::Ahead, How::Late],
        };
        all.extend(hows.iter().map(|how| sealed(cipher, UNIT_BYTES, *how)));
        if cipher == Cipher::Aes256Gcm {
            all.push(sealed(cipher, UNIT_BYTES_SMALL, hows[0]));
        }
        if over == Over::Sockets && matches!(cipher, Cipher::Aes256Gcm | Cipher::TripleDes) {
            all.push(sealed(cipher, PACKET_BYTES, How::Packet));
        }
        // Beside the ideal, whose role a volume has.
        if over == Over::Iscsi && cipher == Cipher::Aes256Gcm {
            all.extend(Volume::ALL.map(Protection::Volume));
        }
    }
    all
}
