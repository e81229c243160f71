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
/// lower. The secondary copy lies behind the primary one; without that, at one of the offsets that the format allows. A
/// copy that the storage cannot read is invalid.
pub(super) fn read<S: Storage>(storage: &mut S) -> Result<(Copy, Copies), ReadError<S::Error>> {
    let primary = read_copy(storage, Which::Primary, 0);
    // A program that knows LUKS1 opens this header as LUKS1: an older secondary copy of LUKS2 does not count.
    if let Err(ReadError::Refused(Refusal::Luks1)) = primary {
        return Err(Refusal::Luks1.into());
    }
    let secondary = match &primary {
        Ok(primary) => read_copy(storage, Which::Secondary, primary.binary.header_bytes),
        Err(_) => search_secondary(storage),
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
        // The error that says more: that nothing is there says least, and what cannot be read may be valid.
        (Err(primary), Err(ReadError::Refused(Refusal::NotLuks))) => return Err(primary),
        (Err(ReadError::Refused(Refusal::NotLuks)), Err(secondary)) => return Err(secondary),
        (Err(ReadError::Refused(_)), Err(secondary @ ReadError::Storage(_))) => return Err(secondary),
        (Err(primary), Err(_)) => return Err(primary),
    })
}

/// The search ends where the storage cannot be read: each attempt may take as long as its time limit.
fn search_secondary<S: Storage>(storage: &mut S) -> Result<Copy, ReadError<S::Error>> {
    let mut refused = Refusal::NotLuks;
    for offset in HEADER_BYTES {
        match read_copy(storage, Which::Secondary, offset) {
            Err(ReadError::Refused(Refusal::NotLuks)) => {}
            Err(ReadError::Refused(refusal)) => refused = refusal,
            found_or_unreadable => return found_or_unreadable,
        }
    }
    Err(refused.into())
}

fn read_copy<S: Storage>(storage: &mut S, which: Which, offset: u64) -> Result<Copy, ReadError<S::Error>> {
    let mut binary = [0; BINARY_BYTES];
    if offset + binary.len() as u64 > storage.size_bytes() {
        return Err(Refusal::NotLuks.into());
    }
    storage.read(offset, &mut binary).map_err(ReadError::Storage)?;
    let bytes = header_bytes(which, &binary).map_err(damage)?;
    if offset != which.offset(bytes) {
        return Err(damage(BinaryError::Offset).into());
    }
    if offset + bytes > storage.size_bytes() {
        return Err(Refusal::Damaged("an end beyond the storage").into());
    }
    let mut copy = vec![0; bytes as usize];
    storage.read(offset, &mut copy).map_err(ReadError::Storage)?;
    Ok(Copy::parse(which, &copy)?)
}

/// Writes both copies, each durable before the other is touched, last the one that counts among `present`: until a new
/// copy is durable, it is the one that opens. `json` fits.
pub(super) fn write<S: Storage>(
    storage: &mut S,
    present: Copies,
    binary: &Binary,
    json: &[u8],
    random: Random<'_>,
) -> Result<(), S::Error> {
    let order = match present {
        Copies::Both | Copies::SecondaryOlder | Copies::PrimaryOnly => [Which::Secondary, Which::Primary],
        Copies::PrimaryOlder | Copies::SecondaryOnly => [Which::Primary, Which::Secondary],
    };
    for which in order {
        let mut salt = [0; COPY_SALT_BYTES];
        random(&mut salt);
        storage.write(which.offset(binary.header_bytes), &binary.emit(which, &salt, json))?;
        storage.flush()?;
    }
    Ok(())
}

/// Makes every copy in the first `within` bytes invalid, of a header with any size, and flushes. Nothing else is
/// changed, so that a cut leaves the header whole or none.
pub(super) fn erase<S: Storage>(storage: &mut S, within: u64) -> Result<(), S::Error> {
    let mut binary = [0; BINARY_BYTES];
    for offset in [0].into_iter().chain(HEADER_BYTES) {
        if offset + binary.len() as u64 > within {
            break;
        }
        storage.read(offset, &mut binary)?;
        if [Which::Primary, Which::Secondary].into_iter().any(|which| which.begins(&binary)) {
            storage.write(offset, &[0; BINARY_BYTES])?;
        }
    }
    storage.flush()
}
