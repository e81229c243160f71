//! The data path of `luks2` over memory, against AES-XTS of the whole.

use std::sync::Arc;

use area::{PoolLimits, Span};
use io::Io;
use xts::Xts;
use zeroize::Zeroizing;

use super::areas::PIECE_BYTES;
use super::luks2::{Luks2Medium, Side, Unlocked};
use crate::{
    Completion, Endpoint, IoError, IoErrorKind, Kind, Medium, MemoryMedium, OpenOptions, Request, Spec, open,
};

const MIB: usize = 1 << 20;
const OFFSET: u64 = 64 << 10;
const OPTIONS: OpenOptions = OpenOptions { writable: true, request_alignment: 4096, allow_in_use: false };

fn key() -> Zeroizing<Vec<u8>> {
    Zeroizing::new((0..64).collect())
}

fn volume(inner: Arc<dyn Medium>, sector_bytes: u32) -> Luks2Medium {
    of_side(inner, sector_bytes, Side::Volume)
}

fn of_side(inner: Arc<dyn Medium>, sector_bytes: u32, side: Side) -> Luks2Medium {
    let unlocked = Unlocked {
        key: key(),
        data_offset: OFFSET,
        size_bytes: None,
        sector_bytes,
        first_tweak: 0,
        name: "of a test".to_owned(),
    };
    Luks2Medium::new(inner, unlocked, side)
}

fn run(io: &mut Io, endpoint: &mut dyn Endpoint, kinds: Vec<Kind>) -> Vec<Option<IoErrorKind>> {
    let kind = |result: Result<(), IoError>| result.err().map(|error| error.kind);
    results(io, endpoint, kinds).into_iter().map(kind).collect()
}

/// All requests at once, and their results by id.
fn results(io: &mut Io, endpoint: &mut dyn Endpoint, kinds: Vec<Kind>) -> Vec<Result<(), IoError>> {
    let (mut done, mut events): (Vec<Completion>, _) = (Vec::new(), Vec::new());
    let count = kinds.len();
    for (id, kind) in kinds.into_iter().enumerate() {
        endpoint.submit(io, Request { id: id as u64, kind }, &mut done);
    }
    while done.len() < count {
        io.turn(&mut events).unwrap();
        for event in events.drain(..) {
            endpoint.on_event(io, event, &mut done);
        }
    }
    done.sort_by_key(|completion| completion.id);
    done.into_iter().map(|completion| completion.result).collect()
}

fn filled(io: &Io, length: usize, seed: u64) -> Span {
    let span = io.pool().take(length).unwrap();
    let bytes: Vec<u8> = (0..length).map(|at| ((at as u64 / 3).wrapping_mul(seed) >> 2) as u8).collect();
    span.fill(0, &bytes);
    span
}

fn read(io: &mut Io, endpoint: &mut dyn Endpoint, offset: u64, length: usize) -> Vec<u8> {
    let into = io.pool().take(length).unwrap();
    assert_eq!(run(io, endpoint, vec![Kind::Read { offset, into: into.clone() }]), [None]);
    into.as_slice().to_vec()
}

fn write(offset: u64, from: &Span) -> Kind {
    Kind::Write { offset, from: from.clone(), durable: false }
}

#[test]
fn what_lies_beneath_is_aes_xts_of_what_was_written() {
    for (sector_bytes, delay) in [(512, ""), (512, ",delay=1ms"), (4096, ""), (4096, ",delay=1ms")] {
        let mut io = Io::new(PoolLimits::default()).unwrap();
        let inner = open(&Spec::parse(&format!("mem:8M{delay}")).unwrap(), &OPTIONS).unwrap();
        let mut endpoint = volume(Arc::clone(&inner), sector_bytes).attach(&mut io).unwrap();
        let mut beneath = inner.attach(&mut io).unwrap();
        assert_eq!(endpoint.capability().size_bytes, (8 << 20) - OFFSET);
        // More than one piece, and no whole number of them.
        let from = filled(&io, 3 * PIECE_BYTES + 8192, 77);
        let other = filled(&io, 4096, 5);
        let kinds = vec![write(4096, &from), write(4 << 20, &other), Kind::Flush];
        assert_eq!(run(&mut io, &mut *endpoint, kinds), [None; 3]);
        assert_eq!(read(&mut io, &mut *endpoint, 4096, from.len()), from.as_slice());
        assert_eq!(read(&mut io, &mut *endpoint, 4 << 20, other.len()), other.as_slice());
        let mut sealed = read(&mut io, &mut *beneath, OFFSET + 4096, from.len());
        assert_ne!(sealed, from.as_slice());
        Xts::new(&key(), sector_bytes as usize).unwrap().open(8, &mut sealed);
        assert_eq!(sealed, from.as_slice());
    }
}

#[test]
fn zeroes_are_written_and_a_discard_changes_nothing() {
    let mut io = Io::new(PoolLimits::default()).unwrap();
    let mut endpoint =
        volume(Arc::new(MemoryMedium::new(8 << 20, false).unwrap()), 4096).attach(&mut io).unwrap();
    let capability = endpoint.capability();
    assert!(!capability.discard && !capability.write_zeroes);
    let from = filled(&io, MIB, 3);
    assert_eq!(run(&mut io, &mut *endpoint, vec![write(0, &from)]), [None]);
    let length = MIB as u64 / 2;
    let zeroes = Kind::WriteZeroes { offset: 4096, length, may_unmap: true };
    let discard = Kind::Discard { offset: length + 4096, length: 4096 };
    assert_eq!(run(&mut io, &mut *endpoint, vec![zeroes, discard]), [None; 2]);
    let now = read(&mut io, &mut *endpoint, 0, MIB);
    let end = 4096 + MIB / 2;
    assert_eq!(now[..4096], from.as_slice()[..4096]);
    assert!(now[4096..end].iter().all(|byte| *byte == 0));
    assert_eq!(now[end..], from.as_slice()[end..]);
    assert!(endpoint.extent(0).data);
}

#[test]
fn writes_go_on_while_the_pool_is_full() {
    let mut io = Io::new(PoolLimits { bytes_max: 8 << 20 }).unwrap();
    let inner = open(&Spec::parse("mem:32M,delay=1ms").unwrap(), &OPTIONS).unwrap();
    let mut endpoint = volume(inner, 4096).attach(&mut io).unwrap();
    let mut held: Vec<Span> = Vec::new();
    while let Some(span) = io.pool().take(MIB) {
        held.push(span);
    }
    let others: Vec<Span> = std::iter::from_fn(|| io.pool().take(PIECE_BYTES)).collect();
    let kinds: Vec<_> = held.iter().enumerate().map(|(at, span)| write((at * MIB) as u64, span)).collect();
    let count = kinds.len();
    assert_eq!(run(&mut io, &mut *endpoint, kinds), vec![None; count]);
    assert!(
        io.pool().take(PIECE_BYTES).is_none(),
        "the pool is full, with {} areas of a piece",
        others.len()
    );
}

#[test]
fn errors_are_those_of_the_storage_and_requests_are_whole_sectors_inside() {
    let mut io = Io::new(PoolLimits::default()).unwrap();
    let words = "mem:8M,fault=write-error@1M+4K:count=1,fault=read-error@2M+4K:count=1";
    let inner = open(&Spec::parse(words).unwrap(), &OPTIONS).unwrap();
    let mut endpoint = volume(inner, 4096).attach(&mut io).unwrap();
    let size = endpoint.capability().size_bytes;
    let (page, sector) = (filled(&io, 4096, 1), filled(&io, 512, 1));
    let kinds = vec![write(size, &page), write(512, &page), write(0, &sector), write(size - 4096, &page)];
    let errors = [Some(IoErrorKind::OutOfRange), Some(IoErrorKind::Other), Some(IoErrorKind::Other), None];
    assert_eq!(run(&mut io, &mut *endpoint, kinds), errors);
    // One piece of many fails: so does the write, once.
    let (from, into) = (filled(&io, 2 * MIB, 9), io.pool().take(2 * MIB).unwrap());
    assert_eq!(run(&mut io, &mut *endpoint, vec![write(0, &from)]), [Some(IoErrorKind::Medium)]);
    let both = vec![write(0, &from), Kind::Read { offset: MIB as u64, into }];
    assert_eq!(run(&mut io, &mut *endpoint, both), [None, Some(IoErrorKind::Medium)]);
}

/// A flush that fails while a write is between two of its pieces leaves the first one in doubt: the write completes later, and
/// so the flush after it fails too.
#[test]
fn a_flush_that_fails_within_a_write_is_followed_by_one_that_fails_after_it() {
    let failed = Some(IoErrorKind::FlushFailed);
    for (length, next) in [(4 * PIECE_BYTES, failed), (4096, None)] {
        let mut io = Io::new(PoolLimits::default()).unwrap();
        let inner = open(&Spec::parse("mem:8M,fault=flush-error:count=1").unwrap(), &OPTIONS).unwrap();
        let mut endpoint = volume(inner, 4096).attach(&mut io).unwrap();
        // Zeroes, which no helper thread encrypts: the first piece has completed when the flush comes.
        let zeroes = Kind::WriteZeroes { offset: 0, length: length as u64, may_unmap: true };
        assert_eq!(run(&mut io, &mut *endpoint, vec![zeroes, Kind::Flush]), [None, failed], "{length} bytes");
        assert_eq!(run(&mut io, &mut *endpoint, vec![Kind::Flush]), [next], "{length} bytes");
        assert_eq!(run(&mut io, &mut *endpoint, vec![Kind::Flush]), [None], "{length} bytes");
    }
    // A read leaves nothing in doubt.
    let mut io = Io::new(PoolLimits::default()).unwrap();
    let inner = open(&Spec::parse("mem:8M,fault=flush-error:count=1").unwrap(), &OPTIONS).unwrap();
    let mut endpoint = volume(inner, 4096).attach(&mut io).unwrap();
    let into = io.pool().take(4 * PIECE_BYTES).unwrap();
    let both = vec![Kind::Read { offset: 0, into }, Kind::Flush];
    assert_eq!(run(&mut io, &mut *endpoint, both), [None, failed]);
    assert_eq!(run(&mut io, &mut *endpoint, vec![Kind::Flush]), [None]);
}

/// Each has pieces of its own that helper threads work on.
#[test]
fn a_volume_within_a_volume_is_read_as_it_was_written() {
    for delay in ["", ",delay=1ms"] {
        let mut io = Io::new(PoolLimits::default()).unwrap();
        let storage = open(&Spec::parse(&format!("mem:16M{delay}")).unwrap(), &OPTIONS).unwrap();
        let outer: Arc<dyn Medium> = Arc::new(volume(storage, 4096));
        let mut endpoint = volume(outer, 4096).attach(&mut io).unwrap();
        let spans: Vec<Span> = (0..8).map(|seed| filled(&io, MIB, 77 + seed)).collect();
        let places = || spans.iter().zip((0..).step_by(MIB));
        let kinds: Vec<_> = places().map(|(span, at)| write(at, span)).collect();
        assert_eq!(run(&mut io, &mut *endpoint, kinds), vec![None; spans.len()]);
        let copies: Vec<Span> = spans.iter().map(|_| io.pool().take(MIB).unwrap()).collect();
        let kinds = copies.iter().zip((0..).step_by(MIB));
        let kinds = kinds.map(|(into, offset)| Kind::Read { offset, into: into.clone() }).collect();
        assert_eq!(run(&mut io, &mut *endpoint, kinds), vec![None; spans.len()]);
        assert!(spans.iter().zip(&copies).all(|(span, copy)| span.as_slice() == copy.as_slice()));
    }
}

#[test]
fn an_error_of_the_storage_names_the_place_in_the_volume_or_the_view() {
    let at = 2 * MIB as u64;
    let words = format!("mem:8M,fault=write-error@{at}+4K,fault=read-error@{at}+4K");
    let inner = open(&Spec::parse(&words).unwrap(), &OPTIONS).unwrap();
    for (side, expected) in [(Side::Volume, at - OFFSET), (Side::View(Arc::new([])), at + OFFSET)] {
        let mut io = Io::new(PoolLimits::default()).unwrap();
        let mut endpoint = of_side(Arc::clone(&inner), 4096, side).attach(&mut io).unwrap();
        let (from, into) = (filled(&io, 4 * MIB, 9), io.pool().take(4 * MIB).unwrap());
        for kind in [write(OFFSET, &from), Kind::Read { offset: OFFSET, into }] {
            let error = results(&mut io, &mut *endpoint, vec![kind]).remove(0).unwrap_err();
            assert_eq!((error.kind, error.offset), (IoErrorKind::Medium, Some(expected)));
        }
    }
}

/// A volume over a view of storage is that storage.
#[test]
fn a_view_shows_the_volume_that_its_storage_would_be() {
    for sector_bytes in [512, 4096] {
        let mut io = Io::new(PoolLimits::default()).unwrap();
        let plain: Arc<dyn Medium> = Arc::new(MemoryMedium::new(8 << 20, false).unwrap());
        let header: Vec<u8> = (0..20_000).map(|at| (at / 5) as u8).collect();
        let side = Side::View(header.clone().into());
        let view: Arc<dyn Medium> = Arc::new(of_side(Arc::clone(&plain), sector_bytes, side));
        let mut above = volume(Arc::clone(&view), sector_bytes).attach(&mut io).unwrap();
        let mut shown = view.attach(&mut io).unwrap();
        let mut beneath = plain.attach(&mut io).unwrap();
        assert_eq!(above.capability().size_bytes, 8 << 20);
        let from = filled(&io, 2 * PIECE_BYTES + 4096, 21);
        assert_eq!(run(&mut io, &mut *above, vec![write(8192, &from)]), [None]);
        assert_eq!(read(&mut io, &mut *beneath, 8192, from.len()), from.as_slice());
        // Across the end of the header: its bytes, zeroes, then ciphertext.
        let mut across = read(&mut io, &mut *shown, 0, OFFSET as usize + 65_536);
        assert_eq!(across[..header.len()], header);
        assert!(across[header.len()..OFFSET as usize].iter().all(|byte| *byte == 0));
        let sealed = &mut across[OFFSET as usize..];
        Xts::new(&key(), sector_bytes as usize).unwrap().open(0, sealed);
        assert_eq!(sealed[8192..], from.as_slice()[..65_536 - 8192]);
        let page = filled(&io, 4096, 1);
        let refused = run(&mut io, &mut *shown, vec![write(OFFSET - 4096, &page)]);
        assert_eq!(refused, [Some(IoErrorKind::ReadOnly)]);
    }
}
