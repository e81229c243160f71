//! The binary header: the first 4096 bytes of each copy (LUKS2 on-disk format §2.1). Numbers are big-endian.

use std::ops::Range;

use super::hash::{DIGEST_BYTES_MAX, Hash};

/// Bytes of the binary header; the JSON follows.
pub(super) const BINARY_BYTES: usize = 4096;
/// The sizes of a copy that the format allows. They are also the offsets at which a secondary copy is searched.
pub(super) const HEADER_BYTES: [u64; 9] =
    [16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20];

type Field = Range<usize>;
const MAGIC: Field = 0..6;
const VERSION: Field = 6..8;
const HDR_SIZE: Field = 8..16;
const SEQID: Field = 16..24;
const LABEL: Field = 24..72;
const CHECKSUM_ALG: Field = 72..104;
const SALT: Field = 104..168;
const UUID: Field = 168..208;
const SUBSYSTEM: Field = 208..256;
const HDR_OFFSET: Field = 256..264;
const CSUM: Field = 448..512;

pub(super) const LABEL_BYTES_MAX: usize = 47;
pub(super) const UUID_BYTES_MAX: usize = 39;
pub(super) const COPY_SALT_BYTES: usize = 64;

/// One of the two copies of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    Primary,
    Secondary,
}

impl Which {
    fn magic(self) -> &'static [u8; 6] {
        match self {
            Self::Primary => b"LUKS\xba\xbe",
            Self::Secondary => b"SKUL\xba\xbe",
        }
    }

    pub(super) fn begins(self, bytes: &[u8; BINARY_BYTES]) -> bool {
        bytes[MAGIC] == self.magic()[..]
    }

    /// Where this copy lies, of headers with `header_bytes` each.
    pub(super) fn offset(self, header_bytes: u64) -> u64 {
        match self {
            Self::Primary => 0,
            Self::Secondary => header_bytes,
        }
    }
}

/// What the binary headers of both copies share. Text ends at its first zero byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Binary {
    pub(super) header_bytes: u64,
    pub(super) seqid: u64,
    pub(super) label: Vec<u8>,
    pub(super) subsystem: Vec<u8>,
    pub(super) uuid: Vec<u8>,
    pub(super) checksum: Hash,
}

/// Why bytes are no valid copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BinaryError {
    Magic,
    Version(u16),
    Size,
    Offset,
    ChecksumAlgorithm,
    Checksum,
}

/// The size of a copy by its first 4096 bytes, before its checksum is known to match.
pub(super) fn header_bytes(which: Which, bytes: &[u8; BINARY_BYTES]) -> Result<u64, BinaryError> {
    if !which.begins(bytes) {
        return Err(BinaryError::Magic);
    }
    let version = u16::from_be_bytes([bytes[VERSION][0], bytes[VERSION][1]]);
    if version != 2 {
        return Err(BinaryError::Version(version));
    }
    let header_bytes = number(bytes, HDR_SIZE);
    if !HEADER_BYTES.contains(&header_bytes) {
        return Err(BinaryError::Size);
    }
    if number(bytes, HDR_OFFSET) != which.offset(header_bytes) {
        return Err(BinaryError::Offset);
    }
    Ok(header_bytes)
}

impl Binary {
    /// Parses `copy`, the bytes of a whole copy, and verifies its checksum.
    pub(super) fn parse(which: Which, copy: &[u8]) -> Result<Self, BinaryError> {
        let (binary, json) = copy.split_first_chunk::<BINARY_BYTES>().ok_or(BinaryError::Size)?;
        let header_bytes = header_bytes(which, binary)?;
        if header_bytes != copy.len() as u64 {
            return Err(BinaryError::Size);
        }
        let name = std::str::from_utf8(text(&binary[CHECKSUM_ALG])).ok();
        let checksum = name.and_then(Hash::from_name).ok_or(BinaryError::ChecksumAlgorithm)?;
        if sum(checksum, binary, json) != binary[CSUM] {
            return Err(BinaryError::Checksum);
        }
        Ok(Self {
            header_bytes,
            seqid: number(binary, SEQID),
            label: text(&binary[LABEL]).to_vec(),
            subsystem: text(&binary[SUBSYSTEM]).to_vec(),
            uuid: text(&binary[UUID]).to_vec(),
            checksum,
        })
    }

    /// The bytes of a whole copy. The salt makes the checksums of the copies differ; `json` leaves room for a zero byte.
    pub(super) fn emit(&self, which: Which, salt: &[u8; COPY_SALT_BYTES], json: &[u8]) -> Vec<u8> {
        assert!(json.len() < self.json_bytes(), "JSON that fits, and a zero byte");
        let mut copy = vec![0; self.header_bytes as usize];
        copy[MAGIC].copy_from_slice(which.magic());
        copy[VERSION].copy_from_slice(&2_u16.to_be_bytes());
        copy[HDR_SIZE].copy_from_slice(&self.header_bytes.to_be_bytes());
        copy[SEQID].copy_from_slice(&self.seqid.to_be_bytes());
        copy[HDR_OFFSET].copy_from_slice(&which.offset(self.header_bytes).to_be_bytes());
        copy[SALT].copy_from_slice(salt);
        let name = self.checksum.name().as_bytes();
        let texts = [
            (LABEL, &self.label[..]),
            (CHECKSUM_ALG, name),
            (UUID, &self.uuid),
            (SUBSYSTEM, &self.subsystem),
        ];
        for (field, value) in texts {
            copy[field.start..][..value.len()].copy_from_slice(value);
        }
        copy[BINARY_BYTES..][..json.len()].copy_from_slice(json);
        let (binary, json) = copy.split_first_chunk_mut::<BINARY_BYTES>().expect("no header is shorter");
        let sum = sum(self.checksum, binary, json);
        binary[CSUM].copy_from_slice(&sum);
        copy
    }

    /// Bytes of the JSON area.
    pub(super) fn json_bytes(&self) -> usize {
        self.header_bytes as usize - BINARY_BYTES
    }
}

/// The checksum field: the digest over the copy with this field zero, then zeros.
fn sum(hash: Hash, binary: &[u8; BINARY_BYTES], json: &[u8]) -> [u8; DIGEST_BYTES_MAX] {
    let mut sum = [0; DIGEST_BYTES_MAX];
    let parts = [&binary[..CSUM.start], &[0; DIGEST_BYTES_MAX], &binary[CSUM.end..], json];
    hash.digest(&parts, &mut sum[..hash.bytes()]);
    sum
}

fn number(bytes: &[u8; BINARY_BYTES], field: Field) -> u64 {
    u64::from_be_bytes(bytes[field].try_into().expect("a field of 8 bytes"))
}

/// The bytes before the first zero byte. The last byte of a field is taken for zero.
fn text(field: &[u8]) -> &[u8] {
    let field = &field[..field.len() - 1];
    &field[..field.iter().position(|byte| *byte == 0).unwrap_or(field.len())]
}
