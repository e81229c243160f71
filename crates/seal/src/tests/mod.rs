//! Tests by clause of docs/SEAL.md.

mod handshake;
mod limits;
mod noise;
mod primitives;
mod records;
mod renewal;
mod secrets;
mod suites;
mod vectors;

use super::*;
use crate::schedule::Fresh;
use std::time::Duration;

fn suites() -> Vec<Suite> {
    #[cfg(feature = "lab")]
    let lab = [Suite::TripleDes];
    #[cfg(not(feature = "lab"))]
    let lab = [];
    Suite::ALL.into_iter().chain(lab).collect()
}

/// Bytes that differ for each seed.
fn entropy<const N: usize>(seed: u8) -> [u8; N] {
    std::array::from_fn(|n| (n as u8).wrapping_mul(31).wrapping_add(seed).rotate_left(3))
}

fn identities() -> (Identity, Identity) {
    (Identity::generate(entropy(1)), Identity::generate(entropy(2)))
}

/// The initiator's channel and the target's.
fn pair(suite: Suite) -> (Channel, Channel) {
    pair_from(suite, 3)
}

fn pair_from(suite: Suite, seed: u8) -> (Channel, Channel) {
    let (initiator, target) = identities();
    let (start, m1) = Initiator::start(&initiator, target.public(), b"prologue", None, suite, &entropy(seed));
    let responder = Responder::read(&target, b"prologue", &m1).unwrap();
    let (answer, theirs) = responder.finish(None, suite, &entropy(seed ^ 0x80)).unwrap();
    (start.finish(&answer).unwrap(), theirs)
}

fn plain(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|n| (n ^ (n >> 8)) as u8).collect()
}

/// A record in transit, and the units that begin in it.
#[derive(Clone, Debug)]
struct Sealed {
    prefix: [u8; PREFIX_BYTES],
    head: Vec<u8>,
    units: Vec<Vec<u8>>,
}

/// A BHS that identifies a record by number.
fn header(number: u8) -> [u8; BHS_BYTES] {
    let mut header = [0; BHS_BYTES];
    header[47] = number;
    header
}

fn head_of(sealer: &mut Sealer, header: &[u8], descriptors: &[Descriptor]) -> ([u8; PREFIX_BYTES], Vec<u8>) {
    let mut out = Vec::new();
    sealer.seal_head(header, descriptors, &mut out);
    let head = out.split_off(PREFIX_BYTES);
    (out.try_into().unwrap(), head)
}

/// Seals a record with units of these plaintexts.
fn seal(sealer: &mut Sealer, number: u8, plains: &[&[u8]]) -> Sealed {
    let mut units = Vec::new();
    let mut descriptors = Vec::new();
    for plain in plains {
        let mut unit = vec![0; plain.len()];
        descriptors.push(sealer.seal_into(plain, &mut unit));
        units.push(unit);
    }
    let (prefix, head) = head_of(sealer, &header(number), &descriptors);
    Sealed { prefix, head, units }
}

/// Opens a record: its header and the plaintexts of its units.
fn open(opener: &mut Opener, sealed: &Sealed) -> Result<(Vec<u8>, Vec<Vec<u8>>), Broken> {
    let mut sealed = sealed.clone();
    if opener.sealed_head_bytes(sealed.prefix)? != sealed.head.len() {
        return Err(Broken);
    }
    let Head { kind: Kind::Pdu, bytes: head_bytes } = opener.open_head(sealed.prefix, &mut sealed.head)?
    else {
        return Err(Broken);
    };
    let (header, descriptors) = parse_head(&sealed.head[..head_bytes])?;
    assert_eq!(descriptors.len(), sealed.units.len());
    for (descriptor, unit) in descriptors.zip(&mut sealed.units) {
        opener.open_unit(&descriptor, unit)?;
    }
    Ok((header.to_vec(), sealed.units))
}

/// The secrets of an exchange, without the exchange.
fn fresh(number: u8) -> Fresh {
    Fresh { dh: entropy(number).into(), shared: entropy(number ^ 0x40).into(), hash: entropy(number ^ 0x80) }
}

/// One direction steps, as after an answer.
fn step(sealer: &mut Sealer, opener: &mut Opener, now: Duration) {
    let fresh = fresh(sealer.generation() as u8);
    sealer.step(&fresh, now);
    opener.expect_step(&fresh, now);
}

/// A control record of `ours`, opened by `theirs`.
fn control(ours: &mut Channel, theirs: &mut Channel, seed: u8, now: Duration) -> Result<(), Broken> {
    let mut wire = Vec::new();
    ours.renewal.seal(&mut ours.sealer, &mut ours.opener, &entropy(seed), now, &mut wire)?;
    take_control(theirs, &wire, now)
}

/// Opens a control record and passes it to the renewal.
fn take_control(theirs: &mut Channel, wire: &[u8], now: Duration) -> Result<(), Broken> {
    let (prefix, sealed) = wire.split_first_chunk().unwrap();
    let mut head = sealed.to_vec();
    if theirs.opener.sealed_head_bytes(*prefix)? != head.len() {
        return Err(Broken);
    }
    let Head { kind, bytes } = theirs.opener.open_head(*prefix, &mut head)?;
    theirs.renewal.open(kind, &head[..bytes], &mut theirs.sealer, &mut theirs.opener, now)
}

/// Steps both directions to the next generation.
fn exchange(initiator: &mut Channel, target: &mut Channel, seed: u8) {
    control(initiator, target, seed, Duration::ZERO).unwrap();
    control(target, initiator, seed ^ 0x55, Duration::ZERO).unwrap();
}

/// Every single-bit change of `bytes`, one after the other.
fn bit_flips(bytes: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    (0..bytes.len() * 8).map(move |bit| {
        let mut flipped = bytes.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        flipped
    })
}
