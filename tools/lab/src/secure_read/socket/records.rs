//! Records of docs/SEAL.md section 5 on a bare connection: a head in place of a Data-In, and the units of a block.

use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use seal::{BHS_BYTES, Broken, DESCRIPTORS_MAX, Descriptor, HEAD_BYTES_MAX, PREFIX_BYTES, Sealer, TAG_BYTES};

use super::ahead::{Ahead, RECORD_BYTES, Sealed};
use super::target::Sender;
use crate::secure_read::cipher::{Opening, Sealing, Units};
use crate::secure_read::shape::{How, Reading};

/// Header in a head: all zeroes is a header without an AHS; it carries no information here.
const HEADER: [u8; BHS_BYTES] = [0; BHS_BYTES];

pub(super) fn broken(error: Broken) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

fn write_all(socket: &mut TcpStream, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
    while !slices.is_empty() {
        let count = socket.write_vectored(slices)?;
        if count == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        IoSlice::advance_slices(&mut slices, count);
    }
    Ok(())
}

pub(super) fn sender(
    reading: Reading,
    how: How,
    unit: u32,
    mut sealing: Sealing,
) -> io::Result<Box<dyn Sender + Send>> {
    let (stored, unit) = (reading.contents(), (unit.min(reading.block)) as usize);
    let at_request = |record: usize, stored, units| {
        let (sealed, descriptors) = (vec![0; record], Vec::new());
        Source::AtRequest { stored, units, sealed, descriptors }
    };
    let source = match how {
        How::Stored => {
            let mut sealed = vec![0; stored.len()];
            let block = reading.block as usize;
            let mut descriptors = Vec::new();
            for (plain, sealed) in stored.chunks(block).zip(sealed.chunks_mut(block)) {
                for (plain, sealed) in plain.chunks(unit).zip(sealed.chunks_mut(unit)) {
                    descriptors.push(sealing.units.seal_into(plain, sealed));
                }
            }
            Source::Before { sealed, descriptors }
        }
        How::Late => at_request(unit * DESCRIPTORS_MAX, stored, Box::new(sealing.units)),
        How::Packet => at_request(unit, stored, Box::new(sealing.units)),
        How::Ahead => {
            let ring = Ahead::start(reading, unit, stored, sealing.units)?;
            Source::Ahead { ring, taken: Vec::new() }
        }
    };
    Ok(Box::new(Records { reading, unit, heads: Heads { sealer: sealing.heads, head: Vec::new() }, source }))
}

/// Sends blocks as records; heads are always sealed at the request, as their nonces are counted.
struct Records {
    reading: Reading,
    unit: usize,
    heads: Heads,
    source: Source,
}

/// The origin of sealed units.
enum Source {
    /// Sealed before the measurement.
    Before { sealed: Vec<u8>, descriptors: Vec<Descriptor> },
    /// Sealed at the request, one record with the length of `sealed` at a time: as many units as a head describes, or
    /// one packet's payload, as IPsec does.
    AtRequest { stored: Vec<u8>, units: Box<Units>, sealed: Vec<u8>, descriptors: Vec<Descriptor> },
    /// Sealed by another thread before the request: all ready units form a record.
    Ahead { ring: Ahead, taken: Vec<Sealed> },
}

struct Heads {
    sealer: Sealer,
    head: Vec<u8>,
}

impl Heads {
    /// Sends a record with these units in one call.
    fn send<'a>(
        &'a mut self,
        socket: &mut TcpStream,
        descriptors: &[Descriptor],
        units: impl Iterator<Item = &'a [u8]>,
    ) -> io::Result<()> {
        self.head.clear();
        self.sealer.seal_head(&HEADER, descriptors, &mut self.head);
        let mut slices: Vec<IoSlice<'_>> =
            std::iter::once(&self.head[..]).chain(units).map(IoSlice::new).collect();
        write_all(socket, &mut slices)
    }
}

impl Sender for Records {
    fn send(&mut self, socket: &mut TcpStream, index: u64) -> io::Result<()> {
        let Self { reading, unit, heads, source } = self;
        let (block, range) = (reading.block as usize, reading.range(index));
        let per_block = block.div_ceil(*unit);
        match source {
            Source::Before { sealed, descriptors } => {
                let first = range.start / block * per_block;
                let records = sealed[range].chunks(*unit * DESCRIPTORS_MAX);
                let descriptors = descriptors[first..first + per_block].chunks(DESCRIPTORS_MAX);
                for (record, descriptors) in records.zip(descriptors) {
                    heads.send(socket, descriptors, std::iter::once(record))?;
                }
            }
            Source::AtRequest { stored, units, sealed, descriptors } => {
                for record in stored[range].chunks(sealed.len()) {
                    descriptors.clear();
                    for (plain, sealed) in record.chunks(*unit).zip(sealed.chunks_mut(*unit)) {
                        descriptors.push(units.seal_into(plain, &mut sealed[..plain.len()]));
                    }
                    heads.send(socket, descriptors, std::iter::once(&sealed[..record.len()]))?;
                }
            }
            Source::Ahead { ring, taken } => {
                // The ring contains blocks in the order of requests.
                let mut left = per_block;
                while left > 0 {
                    let most = (RECORD_BYTES / *unit).clamp(1, DESCRIPTORS_MAX);
                    ring.take(left.min(most), taken);
                    left -= taken.len();
                    let descriptors: Vec<_> = taken.iter().map(|sealed| sealed.descriptor).collect();
                    heads.send(socket, &descriptors, taken.iter().map(|sealed| &sealed.bytes[..]))?;
                    ring.give(taken);
                }
            }
        }
        Ok(())
    }
}

/// Receives the records of a block into `block`, and opens each unit on its arrival; returns the time of opening.
pub(super) fn receive(
    stream: &mut impl Read,
    opening: &mut Opening,
    block: &mut [u8],
) -> io::Result<Duration> {
    let mut head = [0; HEAD_BYTES_MAX + TAG_BYTES];
    let (mut at, mut time) = (0, Duration::ZERO);
    while at < block.len() {
        let mut prefix = [0; PREFIX_BYTES];
        stream.read_exact(&mut prefix)?;
        let sealed = &mut head[..opening.heads.sealed_head_bytes(prefix).map_err(broken)?];
        stream.read_exact(sealed)?;
        let bytes = opening.heads.open_head(prefix, sealed).map_err(broken)?.bytes;
        let (_, descriptors) = seal::parse_head(&head[..bytes]).map_err(broken)?;
        for descriptor in descriptors {
            let room = block.get_mut(at..).and_then(|rest| rest.get_mut(..descriptor.length as usize));
            let unit = room.ok_or_else(|| broken(Broken))?;
            stream.read_exact(unit)?;
            time += opening.open(&descriptor, unit).map_err(broken)?;
            at += unit.len();
        }
    }
    Ok(time)
}
