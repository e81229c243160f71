//! Volumes with a ledger: what the provider returns of earlier flushes, and files that are not the volume's.

use super::Random;
use super::disk::{Disk, Image};
use super::file::File;
use super::machine::{Error, Machine, SEGMENT, formatted, formatted_ledger, keys_of};
use volume::auth::{
    BLOCK_BYTES, Cipher, Failure, Layout, LedgerError, PAGE_BYTES, Request, Unit, format_ledger, ledger_bytes,
};

const BLOCKS: u64 = 700;
const KINDS: [(Cipher, Unit); 3] = [
    (Cipher::Aegis256X4, Unit::Bytes4096),
    (Cipher::Aes256GcmSiv, Unit::Bytes4096),
    (Cipher::Aegis256X4, Unit::Bytes512),
];

fn content(version: u8) -> Vec<u8> {
    vec![version; BLOCK_BYTES]
}

fn layout(cipher: Cipher, unit: Unit) -> Layout {
    Layout::new(cipher, unit, SEGMENT, BLOCKS).expect("a layout")
}

/// A volume with a ledger on this disk.
fn open(cipher: Cipher, unit: Unit, image: &Image, file: &[u8]) -> Machine {
    let file = Some(File::new(file.to_vec()));
    let mut machine = Machine::with_file(cipher, Disk::new(unit, image.clone()), file, false, Random(1));
    machine.run();
    machine
}

fn state(machine: &Machine) -> (Image, Vec<u8>) {
    let file = machine.file.as_ref().expect("a file");
    (machine.disk.image(machine.disk.volatile().into_iter().flatten()), file.kept())
}

/// A volume whose blocks 0, 100 and 300 have version 1.
fn written(cipher: Cipher, unit: Unit) -> (Image, Vec<u8>) {
    let empty = formatted(cipher, unit, BLOCKS);
    let mut machine = open(cipher, unit, &empty, &formatted_ledger(cipher, unit, BLOCKS));
    for block in [0, 100, 300] {
        machine.write(block, content(1)).expect("nothing fails");
    }
    machine.flush().expect("nothing fails");
    machine.perform(Request::Close, Vec::new()).expect("nothing fails");
    state(&machine)
}

fn copy(from: &Image, into: &mut Image, range: std::ops::Range<u64>) {
    let mut bytes = [0; PAGE_BYTES];
    for offset in range.step_by(PAGE_BYTES) {
        from.read(offset, &mut bytes);
        into.write(offset, &bytes);
    }
}

fn page_of_contexts(layout: &Layout, block: u64) -> std::ops::Range<u64> {
    let start = layout.pair(block).start / PAGE_BYTES as u64 * PAGE_BYTES as u64;
    start..start + PAGE_BYTES as u64
}

#[test]
fn volume_of_an_earlier_session_is_refused() {
    for (cipher, unit) in KINDS {
        let (image, file) = written(cipher, unit);
        let mut machine = open(cipher, unit, &image, &file);
        machine.write(0, content(2)).expect("nothing fails");
        machine.flush().expect("nothing fails");
        let (_, file) = state(&machine);
        let machine = open(cipher, unit, &image, &file);
        assert_eq!(machine.volume.failure(), Some(&Failure::OldVolume), "{cipher:?} {unit:?}");
        let machine = open(cipher, unit, &formatted(cipher, unit, BLOCKS), &file);
        assert_eq!(machine.volume.failure(), Some(&Failure::OldVolume), "{cipher:?} {unit:?}");
    }
}

#[test]
fn volume_from_before_its_closing_is_refused() {
    for (cipher, unit) in KINDS {
        let (image, file) = written(cipher, unit);
        let mut machine = open(cipher, unit, &image, &file);
        machine.write(0, content(2)).expect("nothing fails");
        machine.flush().expect("nothing fails");
        let (image, _) = state(&machine);
        machine.perform(Request::Close, Vec::new()).expect("nothing fails");
        let (_, file) = state(&machine);
        let machine = open(cipher, unit, &image, &file);
        assert_eq!(machine.volume.failure(), Some(&Failure::OldVolume), "{cipher:?} {unit:?}");
    }
}

/// The disk of an earlier flush, which has the same superblock: blocks beside the one written since are errors too, as
/// they share its page of contexts.
#[test]
fn blocks_of_an_earlier_flush_are_errors() {
    for (cipher, unit) in KINDS {
        let (image, file) = written(cipher, unit);
        let mut machine = open(cipher, unit, &image, &file);
        machine.write(100, content(2)).expect("nothing fails");
        machine.flush().expect("nothing fails");
        let (earlier, _) = state(&machine);
        machine.write(100, content(3)).expect("nothing fails");
        machine.flush().expect("nothing fails");
        let (now, file) = state(&machine);
        let mut returned = open(cipher, unit, &earlier, &file);
        let what = format!("{cipher:?} {unit:?}");
        assert_eq!(returned.read(100), Err(Failure::OldBlock { block: 100 }), "{what}");
        assert_eq!(returned.read(101), Err(Failure::OldBlock { block: 101 }), "{what}");
        assert_eq!(returned.read(0), Ok(content(1)), "{what}");
        assert_eq!(returned.read(300), Ok(content(1)), "{what}");
        // Nothing is written beside contexts that are not known: once the provider has those again, all is there.
        assert_eq!(returned.write(101, content(9)), Err(Failure::OldBlock { block: 101 }), "{what}");
        returned.disk = Disk::new(unit, now);
        assert_eq!(returned.read(100), Ok(content(3)), "{what}");
        assert_eq!(returned.write(101, content(9)), Ok(()), "{what}");
        assert_eq!(returned.flush(), Ok(()), "{what}");
    }
}

#[test]
fn old_data_old_contexts_and_both_are_errors() {
    for (cipher, unit) in KINDS {
        let layout = layout(cipher, unit);
        let (image, file) = written(cipher, unit);
        let mut machine = open(cipher, unit, &image, &file);
        machine.write(0, content(2)).expect("nothing fails");
        machine.perform(Request::Close, Vec::new()).expect("nothing fails");
        let (now, file) = state(&machine);
        let data = layout.data_offset(0)..layout.data_offset(1);
        let contexts = page_of_contexts(&layout, 0);
        for (ranges, failure) in [
            (vec![data.clone()], Failure::Unverified { block: 0 }),
            (vec![contexts.clone()], Failure::OldBlock { block: 0 }),
            (vec![data, contexts], Failure::OldBlock { block: 0 }),
        ] {
            let mut returned = now.clone();
            ranges.iter().for_each(|range| copy(&image, &mut returned, range.clone()));
            let mut machine = open(cipher, unit, &returned, &file);
            assert_eq!(machine.read(0), Err(failure), "{cipher:?} {unit:?} {ranges:?}");
        }
    }
}

/// A session that does not close makes both versions of its blocks possible; which one was flushed, the file knows.
#[test]
fn old_data_is_an_error_after_an_unclean_end() {
    for (cipher, unit) in KINDS {
        let layout = layout(cipher, unit);
        let (image, file) = written(cipher, unit);
        let mut machine = open(cipher, unit, &image, &file);
        machine.write(0, content(2)).expect("nothing fails");
        machine.flush().expect("nothing fails");
        let (mut now, file) = state(&machine);
        assert_eq!(open(cipher, unit, &now, &file).read(0), Ok(content(2)));
        copy(&image, &mut now, layout.data_offset(0)..layout.data_offset(1));
        let mut machine = open(cipher, unit, &now, &file);
        assert_eq!(machine.read(0), Err(Failure::Unverified { block: 0 }), "{cipher:?} {unit:?}");
    }
}

#[test]
fn old_map_is_refused() {
    for (cipher, unit) in KINDS {
        let layout = layout(cipher, unit);
        let (image, file) = written(cipher, unit);
        let mut machine = open(cipher, unit, &image, &file);
        let all = Request::Discard { offset: 0, length: BLOCKS * BLOCK_BYTES as u64 };
        machine.perform(all, Vec::new()).expect("nothing fails");
        machine.perform(Request::Close, Vec::new()).expect("nothing fails");
        let (mut now, file) = state(&machine);
        assert_eq!(open(cipher, unit, &now, &file).read(100), Ok(content(0)));
        copy(&image, &mut now, layout.map());
        let machine = open(cipher, unit, &now, &file);
        assert_eq!(machine.volume.failure(), Some(&Failure::OldVolume), "{cipher:?} {unit:?}");
    }
}

/// A file, changed, and why it is refused.
type Case = (&'static str, fn(&mut Vec<u8>), LedgerError);

#[test]
fn files_that_are_not_the_ledger() {
    let (cipher, unit) = KINDS[0];
    let (image, file) = written(cipher, unit);
    let cases: [Case; 4] = [
        ("empty", |file| file.clear(), LedgerError::Truncated),
        ("shorter", |file| file.truncate(8192), LedgerError::Truncated),
        ("zeroes", |file| file.fill(0), LedgerError::Damaged),
        (
            "both headers changed",
            |file| {
                file[100] ^= 1;
                file[PAGE_BYTES + 100] ^= 1;
            },
            LedgerError::Damaged,
        ),
    ];
    for (name, change, error) in cases {
        let mut file = file.clone();
        change(&mut file);
        let machine = open(cipher, unit, &image, &file);
        assert_eq!(machine.volume.failure(), Some(&Failure::<Error>::Ledger(error)), "{name}");
    }
    let mut other = vec![0; file.len()];
    let other_keys = keys_of(cipher, unit, "6e8f2d1c-0000-4000-8000-000000000002");
    for (offset, bytes) in format_ledger(&layout(cipher, unit), &other_keys, BLOCKS) {
        other[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
    }
    let machine = open(cipher, unit, &image, &other);
    assert_eq!(machine.volume.failure(), Some(&Failure::Ledger(LedgerError::OtherVolume)));
}

/// The volume is written without its file, and the file is exchanged for an older copy of it.
#[test]
fn file_that_is_behind_is_refused() {
    let (cipher, unit) = KINDS[0];
    let (image, file) = written(cipher, unit);
    let mut without = Machine::on(cipher, unit, image.clone());
    without.write(0, content(2)).expect("nothing fails");
    without.perform(Request::Close, Vec::new()).expect("nothing fails");
    let image = without.disk.image([]);
    let machine = open(cipher, unit, &image, &file);
    assert_eq!(machine.volume.failure(), Some(&Failure::Ledger(LedgerError::Behind)));
}

#[test]
fn a_flush_is_two_syncs_of_the_file_and_none_where_nothing_was_written() {
    for (cipher, unit) in KINDS {
        let (image, file) = written(cipher, unit);
        let mut machine = open(cipher, unit, &image, &file);
        machine.write(0, content(2)).expect("nothing fails");
        machine.flush().expect("nothing fails");
        let syncs = |machine: &Machine| machine.file.as_ref().map(|file| file.syncs).expect("a file");
        let (before, barriers) = (syncs(&machine), machine.disk.barriers);
        machine.write(0, content(3)).expect("nothing fails");
        machine.flush().expect("nothing fails");
        assert_eq!((syncs(&machine) - before, machine.disk.barriers - barriers), (2, 2));
        machine.flush().expect("nothing fails");
        assert_eq!(syncs(&machine) - before, 2);
    }
}

#[test]
fn a_file_has_64_bytes_for_a_mib() {
    for cipher in Cipher::ALL {
        for mib in [1, 100, 1 << 20] {
            let layout = Layout::new(cipher, Unit::Bytes4096, 16 << 20, mib << 8).expect("a layout");
            let extra = ledger_bytes(&layout) - 64 * mib;
            // Headers, tags of the map, and the groups at the end.
            assert!(extra <= 16384 + mib / 100, "{cipher:?} {mib} MiB: {extra}");
        }
    }
}
