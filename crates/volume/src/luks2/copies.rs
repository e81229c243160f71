//! The two copies on the storage: found, one of them chosen, written.

use serde_json::{Map, Value};

use super::Random;
use super::binary::{BINARY_BYTES, Binary, BinaryError, COPY_SALT_BYTES, HEADER_BYTES, Which, header_bytes};
use super::error::{ReadError, Refusal};
use super::header::Copies;
use super::metadata::Metadata;
use super::object;
use crate::Storage;

/// A copy with the right magic, offset and checksum, and JSON that the format allows.
pub(super) struct Copy {
    pub(super) binary: Binary,
    pub(super) json: Map<String, Value>,
    /// An error if the header is valid and not accepted.
    pub(super) metadata: Result<Metadata, Refusal>,
}

impl Copy {
    fn parse(which: Which, bytes: &[u8]) -> Result<Self, Refusal> {
        let binary = Binary::parse(which, bytes).map_err(damage)?;
        let json = object::parse(&bytes[BINARY_BYTES..])?;
        let metadata = Metadata::parse(&json, binary.header_bytes);
        if let Err(malformed @ Refusal::Malformed(_)) = metadata {
            return Err(malformed);
        }
        Ok(Self { binary, json, metadata })
    }
}

fn damage(error: BinaryError) -> Refusal {
    match error {
        BinaryError::Magic => Refusal::NotLuks,
        BinaryError::Version(1) => Refusal::Luks1,
        BinaryError::Version(version) => Refusal::Version(version),
        BinaryError::Size => Refusal::Damaged("a size that the format does not allow"),
        BinaryError::Offset => Refusal::Damaged("an offset that is not its own"),
        BinaryError::ChecksumAlgorithm => Refusal::Damaged("a checksum of an unknown type"),
        BinaryError::Checksum => Refusal::Damaged("a wrong checksum"),
    }
}

/// Reads both copies and returns the one that counts: the primary one, unless it is invalid or its sequence number is
/// lower. The secondary copy lies behind the primary one; without that, at one of the offsets that the format allows.
pub(super) fn read<S: Storage>(storage: &mut S) -> Result<(Copy, Copies), ReadError<S::Error>> {
    let primary = read_copy(storage, Which::Primary, 0)?;
    // A program that knows LUKS1 opens this header as LUKS1: an older secondary copy of LUKS2 does not count.
    if let Err(refusal @ Refusal::Luks1) = primary {
        return Err(refusal.into());
    }
    let secondary = match &primary {
        Ok(primary) => read_copy(storage, Which::Secondary, primary.binary.header_bytes)?,
        Err(_) => search_secondary(storage)?,
    };
    Ok(match (primary, secondary) {
        (Ok(primary), Ok(secondary)) if secondary.binary.seqid > primary.binary.seqid => {
            (secondary, Copies::PrimaryOlder)
        }
        (Ok(primary), Ok(secondary)) if secondary.binary.seqid < primary.binary.seqid => {
            (primary, Copies::SecondaryOlder)
        }
        (Ok(primary), Ok(_)) => (primary, Copies::Both),
        (Ok(primary), Err(_)) => (primary, Copies::PrimaryOnly),
        (Err(_), Ok(secondary)) => (secondary, Copies::SecondaryOnly),
        (Err(refusal), Err(_)) => return Err(refusal.into()),
    })
}

fn search_secondary<S: Storage>(storage: &mut S) -> Result<Result<Copy, Refusal>, ReadError<S::Error>> {
    let mut first_refusal = None;
    for offset in HEADER_BYTES {
        match read_copy(storage, Which::Secondary, offset)? {
            Ok(copy) => return Ok(Ok(copy)),
            Err(refusal) => _ = first_refusal.get_or_insert(refusal),
        }
    }
    Ok(Err(first_refusal.unwrap_or(Refusal::NotLuks)))
}

fn read_copy<S: Storage>(
    storage: &mut S,
    which: Which,
    offset: u64,
) -> Result<Result<Copy, Refusal>, ReadError<S::Error>> {
    let mut binary = [0; BINARY_BYTES];
    if !read_if_inside(storage, offset, &mut binary)? {
        return Ok(Err(Refusal::NotLuks));
    }
    let bytes = match header_bytes(which, &binary) {
        Ok(bytes) if offset == which.offset(bytes) => bytes,
        Ok(_) => return Ok(Err(damage(BinaryError::Offset))),
        Err(error) => return Ok(Err(damage(error))),
    };
    let mut copy = vec![0; bytes as usize];
    if !read_if_inside(storage, offset, &mut copy)? {
        return Ok(Err(Refusal::Damaged("an end beyond the storage")));
    }
    Ok(Copy::parse(which, &copy))
}

/// Whether the storage has the bytes; `into` is filled only then.
fn read_if_inside<S: Storage>(
    storage: &mut S,
    offset: u64,
    into: &mut [u8],
) -> Result<bool, ReadError<S::Error>> {
    if offset + into.len() as u64 > storage.size_bytes() {
        return Ok(false);
    }
    storage.read(offset, into).map_err(ReadError::Storage)?;
    Ok(true)
}

/// Writes both copies, each durable before the other is touched, the secondary one first. `json` fits.
pub(super) fn write<S: Storage>(
    storage: &mut S,
    binary: &Binary,
    json: &[u8],
    random: Random<'_>,
) -> Result<(), S::Error> {
    for which in [Which::Secondary, Which::Primary] {
        let mut salt = [0; COPY_SALT_BYTES];
        random(&mut salt);
        storage.write(which.offset(binary.header_bytes), &binary.emit(which, &salt, json))?;
        storage.flush()?;
    }
    Ok(())
}

/// Makes every copy invalid, of a header with any size, and flushes.
pub(super) fn erase<S: Storage>(storage: &mut S) -> Result<(), S::Error> {
    let zeros = [0; BINARY_BYTES];
    let size = storage.size_bytes();
    for offset in [0].into_iter().chain(HEADER_BYTES) {
        if offset + zeros.len() as u64 <= size {
            storage.write(offset, &zeros)?;
        }
    }
    storage.flush()
}
