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
    Ok(match how {
        How::Stored => {
            let mut sealed = vec![0; stored.len()];
            let block = reading.block as usize;
            let mut descriptors = Vec::new();
            for (plain, sealed) in stored.chunks(block).zip(sealed.chunks_mut(block)) {
                for (plain, sealed) in plain.chunks(unit).zip(sealed.chunks_mut(unit)) {
                    descriptors.push(sealing.units.seal_into(plain, sealed));
                }
            }
            Box::new(Stored { reading, unit, sealed, descriptors, heads: sealing.heads, head: Vec::new() })
        }
        How::Late => Box::new(Late {
            reading,
            unit,
            stored,
            units: sealing.units,
            heads: sealing.heads,
            sealed: vec![0; unit * DESCRIPTORS_MAX],
            descriptors: Vec::new(),
            head: Vec::new(),
        }),
        How::Packet => {
            let (units, heads) = (sealing.units, sealing.heads);
            Box::new(Packets {
                reading,
                unit,
                stored,
                units,
                heads,
                packet: Vec::new(),
                sealed: vec![0; unit],
            })
        }
        How::Ahead => {
            let ring = Ahead::start(reading, unit, stored, sealing.units)?;
            Box::new(Aheads {
                reading,
                unit,
                ring,
                heads: sealing.heads,
                taken: Vec::new(),
                head: Vec::new(),
            })
        }
    })
}

/// Sends units sealed before the measurement; only heads are sealed at the request, as their nonces are counted.
struct Stored {
    reading: Reading,
    unit: usize,
    sealed: Vec<u8>,
    descriptors: Vec<Descriptor>,
    heads: Sealer,
    head: Vec<u8>,
}

impl Sender for Stored {
    fn send(&mut self, socket: &mut TcpStream, index: u64) -> io::Result<()> {
        let (block, range) = (self.reading.block as usize, self.reading.range(index));
        let per_block = block.div_ceil(self.unit);
        let first = range.start / block * per_block;
        let slices = self.sealed[range].chunks(self.unit * DESCRIPTORS_MAX);
        let descriptors = self.descriptors[first..first + per_block].chunks(DESCRIPTORS_MAX);
        for (slice, descriptors) in slices.zip(descriptors) {
            self.head.clear();
            self.heads.seal_head(&HEADER, descriptors, &mut self.head);
            write_all(socket, &mut [IoSlice::new(&self.head), IoSlice::new(slice)])?;
        }
        Ok(())
    }
}

/// Seals at the request, one record at a time, and sends it.
struct Late {
    reading: Reading,
    unit: usize,
    stored: Vec<u8>,
    units: Units,
    heads: Sealer,
    sealed: Vec<u8>,
    descriptors: Vec<Descriptor>,
    head: Vec<u8>,
}

impl Sender for Late {
    fn send(&mut self, socket: &mut TcpStream, index: u64) -> io::Result<()> {
        for record in self.stored[self.reading.range(index)].chunks(self.unit * DESCRIPTORS_MAX) {
            self.descriptors.clear();
            for (plain, sealed) in record.chunks(self.unit).zip(self.sealed.chunks_mut(self.unit)) {
                self.descriptors.push(self.units.seal_into(plain, &mut sealed[..plain.len()]));
            }
            self.head.clear();
            self.heads.seal_head(&HEADER, &self.descriptors, &mut self.head);
            write_all(socket, &mut [IoSlice::new(&self.head), IoSlice::new(&self.sealed[..record.len()])])?;
        }
        Ok(())
    }
}

/// Seals and sends one packet's payload at a time, as IPsec does.
struct Packets {
    reading: Reading,
    unit: usize,
    stored: Vec<u8>,
    units: Units,
    heads: Sealer,
    packet: Vec<u8>,
    sealed: Vec<u8>,
}

impl Sender for Packets {
    fn send(&mut self, socket: &mut TcpStream, index: u64) -> io::Result<()> {
        for plain in self.stored[self.reading.range(index)].chunks(self.unit) {
            let sealed = &mut self.sealed[..plain.len()];
            let descriptor = self.units.seal_into(plain, sealed);
            self.packet.clear();
            self.heads.seal_head(&HEADER, &[descriptor], &mut self.packet);
            self.packet.extend_from_slice(sealed);
            socket.write_all(&self.packet)?;
        }
        Ok(())
    }
}

/// Sends units that another thread sealed before the request: all ready units form a record.
struct Aheads {
    reading: Reading,
    unit: usize,
    ring: Ahead,
    heads: Sealer,
    taken: Vec<Sealed>,
    head: Vec<u8>,
}

impl Sender for Aheads {
    fn send(&mut self, socket: &mut TcpStream, _index: u64) -> io::Result<()> {
        // The ring contains blocks in the order of requests.
        let mut left = (self.reading.block as usize).div_ceil(self.unit);
        while left > 0 {
            let most = (RECORD_BYTES / self.unit).clamp(1, DESCRIPTORS_MAX);
            self.ring.take(left.min(most), &mut self.taken);
            left -= self.taken.len();
            let descriptors: Vec<Descriptor> = self.taken.iter().map(|sealed| sealed.descriptor).collect();
            self.head.clear();
            self.heads.seal_head(&HEADER, &descriptors, &mut self.head);
            let units = self.taken.iter().map(|sealed| IoSlice::new(&sealed.bytes));
            let mut slices: Vec<IoSlice<'_>> =
                std::iter::once(IoSlice::new(&self.head)).chain(units).collect();
            write_all(socket, &mut slices)?;
            self.ring.give(&mut self.taken);
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
