//! Definition of a row: transport, block size, depth and protection.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::cipher::Cipher;
use super::volumes::Volume;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Over {
    /// A request of 8 bytes and a block in response: the first experiment of the paper.
    Sockets,
    /// Target and initiator of this project: the second experiment.
    Iscsi,
}

impl Over {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sockets => "sockets",
            Self::Iscsi => "iSCSI",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Protection {
    Plain,
    /// Units of blocks are sealed above TCP.
    Sealed {
        cipher: Cipher,
        /// Bytes of a unit.
        unit: u32,
        how: How,
    },
    /// TLS 1.3 with AES-256-GCM, by rustls.
    Tls,
    /// Storage that is encrypted as a volume; over iSCSI only.
    Volume(Volume),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum How {
    /// Before the measurement: the target only sends. The ideal.
    Stored,
    /// Before the request, while other units are in transit.
    Ahead,
    /// After the request.
    Late,
    /// After the request, each packet separately.
    Packet,
}

pub(super) const UNIT_BYTES: u32 = seal::UNIT_BYTES;

impl Protection {
    pub(crate) fn name(self) -> String {
        match self {
            Self::Plain => "plain".to_owned(),
            Self::Tls => "TLS 1.3 AES-256-GCM (rustls)".to_owned(),
            Self::Volume(volume) => volume.name().to_owned(),
            Self::Sealed { cipher, unit, how } => {
                let when = match how {
                    How::Stored => "stored sealed (ideal)",
                    How::Ahead => "ahead",
                    How::Late => "no overlap",
                    How::Packet => "per packet",
                };
                let units = if unit == UNIT_BYTES || how == How::Packet {
                    String::new()
                } else {
                    format!(", units of {unit} bytes")
                };
                format!("{} {when}{units}", cipher.name())
            }
        }
    }

    pub(crate) fn obtained(self, over: Over) -> String {
        match (self, over) {
            (Self::Plain, Over::Sockets) => "measured: sent from memory as it is".to_owned(),
            (Self::Sealed { how, unit, .. }, Over::Sockets) => match how {
                How::Stored => {
                    "measured: sealed before the clock runs, the target only sends (and seals heads)"
                        .to_owned()
                }
                How::Ahead => {
                    "measured: another thread of the target seals the next units into a ring of 1 MiB"
                        .to_owned()
                }
                How::Late => "measured: sealed when requested, then sent, by one thread".to_owned(),
                How::Packet => format!(
                    "measured: {unit} bytes at a time sealed and sent, a record and a call each; a model of the granularity of IPsec, in user mode"
                ),
            },
            (Self::Sealed { how: How::Stored, .. }, Over::Iscsi) => {
                "measured: a plain session to a file that holds sealed units; the program that reads opens them".to_owned()
            }
            (Self::Sealed { how: How::Ahead, .. }, Over::Iscsi) => {
                "measured: a sealed session, SEAL/1; the target guesses the next READ and seals it ahead".to_owned()
            }
            (Self::Sealed { .. }, Over::Iscsi) => "measured: a sealed session, SEAL/1, HIKYAKU_SEAL_AHEAD=0".to_owned(),
            (Self::Tls, Over::Sockets) => {
                "measured: rustls in both processes, its blocking stream".to_owned()
            }
            (Self::Tls, Over::Iscsi) => "measured: our TLS mode, by rustls in both processes".to_owned(),
            (Self::Volume(volume), _) => volume.obtained().to_owned(),
            (Self::Plain, Over::Iscsi) => "measured: file on tmpfs, session without digests".to_owned(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reading {
    /// Bytes of a block: the length of a request.
    pub(crate) block: u32,
    /// Blocks requested and not yet opened.
    pub(crate) depth: u32,
    pub(crate) protection: Protection,
}

/// The blocks read in rotation have at least this many bytes together, so that they exceed a first-level cache; and not
/// much more, so that 3DES seals them all quickly.
const RANGE_BYTES_MIN: u32 = 1 << 20;
const SEED: u64 = 2004;

impl Reading {
    /// Number of blocks read in rotation.
    pub(crate) fn blocks(&self) -> u64 {
        u64::from((RANGE_BYTES_MIN / self.block).max(2))
    }

    pub(crate) fn range_bytes(&self) -> u64 {
        self.blocks() * u64::from(self.block)
    }

    pub(crate) fn contents(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.range_bytes() as usize];
        block::fill_pattern(SEED, 0, &mut bytes);
        bytes
    }

    /// Whether these are the bytes of block `index`, which counts on over repetitions of the range.
    pub(crate) fn is_block(&self, index: u64, bytes: &[u8]) -> bool {
        let mut expected = vec![0; self.block as usize];
        block::fill_pattern(SEED, self.offset(index), &mut expected);
        bytes == expected
    }

    /// Byte range of block `index` in [`Self::contents`].
    pub(crate) fn range(&self, index: u64) -> Range<usize> {
        let start = self.offset(index) as usize;
        start..start + self.block as usize
    }

    pub(crate) fn offset(&self, index: u64) -> u64 {
        index % self.blocks() * u64::from(self.block)
    }
}
