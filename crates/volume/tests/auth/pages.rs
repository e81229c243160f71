//! Pages of contexts that cannot be read, or that the ledger refuses: every request that needs one fails, and none is left
//! incomplete, which the driver asserts.

use super::Random;
use super::disk::{Disk, Image};
use super::file::File;
use super::machine::{Error, Machine, SEGMENT, formatted, formatted_ledger};
use volume::auth::{BLOCK_BYTES, Cipher, DISCARDS_MAX, Failure, Layout, PAGE_BYTES, Request, Unit};

const CIPHER: Cipher = Cipher::Aegis256X4;
const UNIT: Unit = Unit::Bytes4096;
const BLOCK: u64 = BLOCK_BYTES as u64;
/// Blocks of a page, and pages of a group.
const PAGE: u64 = 40;
const PAGES: u64 = 4;
const GROUP: u64 = PAGE * PAGES;
const BLOCKS: u64 = 4 * GROUP;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    Discard,
}

const KINDS: [Kind; 3] = [Kind::Read, Kind::Write, Kind::Discard];

impl Kind {
    fn request(self, first: u64, end: u64) -> (Request, Vec<u8>) {
        let (offset, length) = (first * BLOCK, (end - first) * BLOCK);
        match self {
            Self::Read => (Request::Read { offset, length }, Vec::new()),
            Self::Write => (Request::Write { offset, length }, vec![2; length as usize]),
            Self::Discard => (Request::Discard { offset, length }, Vec::new()),
        }
    }

    /// Whether a request for these blocks needs the page: a discard, only of groups that it covers in part.
    fn needs(self, first: u64, end: u64, page: u64) -> bool {
        let (start, group) = (page * PAGE, page / PAGES * GROUP);
        let is_whole = first <= group && group + GROUP <= end;
        start < end && first < start + PAGE && (self != Self::Discard || !is_whole)
    }
}

/// How a page is lost.
#[derive(Clone, Copy, Debug)]
enum Loss {
    Unreadable,
    /// Changed in storage; the ledger notices.
    Refused,
}

/// A volume all of whose groups have blocks, and its ledger.
fn written(has_ledger: bool) -> (Image, Option<Vec<u8>>) {
    let file = has_ledger.then(|| File::new(formatted_ledger(CIPHER, UNIT, BLOCKS)));
    let disk = Disk::new(UNIT, formatted(CIPHER, UNIT, BLOCKS));
    let mut machine = Machine::with_file(CIPHER, disk, file, false, Random(1));
    for block in (0..BLOCKS).step_by(PAGE as usize) {
        machine.write(block, vec![1; BLOCK_BYTES]).expect("nothing fails");
    }
    machine.perform(Request::Close, Vec::new()).expect("nothing fails");
    (machine.disk.image([]), machine.file.map(|file| file.kept()))
}

fn open((image, file): &(Image, Option<Vec<u8>>), seed: u64) -> Machine {
    let file = file.clone().map(File::new);
    let mut machine = Machine::with_file(CIPHER, Disk::new(UNIT, image.clone()), file, false, Random(seed));
    machine.run();
    machine.is_ordered = false;
    machine
}

fn offset(page: u64) -> u64 {
    let layout = Layout::new(CIPHER, UNIT, SEGMENT, BLOCKS).expect("a layout");
    layout.pair(page * PAGE).start / PAGE_BYTES as u64 * PAGE_BYTES as u64
}

/// The volume with these pages lost.
fn with_lost(volume: &(Image, Option<Vec<u8>>), lost: &[u64], loss: Loss, seed: u64) -> Machine {
    let (mut image, file) = volume.clone();
    if let Loss::Refused = loss {
        for page in lost {
            let mut bytes = [0; PAGE_BYTES];
            image.read(offset(*page), &mut bytes);
            bytes[100] ^= 1;
            image.write(offset(*page), &bytes);
        }
    }
    let mut machine = open(&(image, file), seed);
    if let Loss::Unreadable = loss {
        machine.unreadable =
            lost.iter().map(|page| offset(*page)..offset(*page) + PAGE_BYTES as u64).collect();
    }
    machine
}

/// Requests across two and three groups, of which some wait for the same pages and some for each other, beside pages that
/// are in memory already and so split what is read.
#[test]
fn requests_across_groups_complete_whichever_page_is_lost() {
    let ranges = [(150, 330), (100, 149), (290, 350), (200, 210), (340, 500)];
    let lost: [&[u64]; 9] = [&[2], &[3], &[4], &[5], &[7], &[8], &[3, 8], &[4, 7, 9], &[2, 3, 4, 5, 7, 8, 9]];
    for (has_ledger, loss) in [(false, Loss::Unreadable), (true, Loss::Unreadable), (true, Loss::Refused)] {
        let volume = written(has_ledger);
        for (case, lost) in lost.into_iter().enumerate() {
            for (index, kind) in KINDS.into_iter().enumerate() {
                for seed in 0..3 {
                    let what =
                        format!("{loss:?}, ledger {has_ledger}, pages {lost:?}, {kind:?}, seed {seed}");
                    let mut machine = with_lost(&volume, lost, loss, seed);
                    if (case + index) % 2 == 1 {
                        machine.read(6 * PAGE).expect("this page is there");
                    }
                    let mut expected = Vec::new();
                    for (nth, (first, end)) in ranges.into_iter().enumerate() {
                        // The first and the last are of the kind; between, all kinds.
                        let this = if nth == 0 || nth == 4 { kind } else { KINDS[(index + nth) % 3] };
                        let (request, data) = this.request(first, end);
                        let id = machine.submit(request, data);
                        let mut needed = lost.iter().filter(|page| this.needs(first, end, **page));
                        let may_fail = needed.clone().next().is_some();
                        // Pages of group 1, once the first request has discarded it, may be needed no more.
                        let fails = needed.any(|page| kind != Kind::Discard || page / PAGES != 1);
                        expected.push((id, request, may_fail, fails));
                    }
                    machine.run();
                    for (id, request, may_fail, fails) in expected {
                        let completed = machine.completed.iter().find(|completed| completed.id == id);
                        let result = &completed.expect("it completes").result;
                        let is_expected = match (result, loss) {
                            (Ok(()), _) => !fails,
                            // Pages that are read together fail together.
                            (Err(Failure::Storage(Error::Injected)), Loss::Unreadable) => true,
                            (Err(Failure::OldBlock { .. }), Loss::Refused) => may_fail,
                            _ => false,
                        };
                        assert!(is_expected, "{request:?} fails: {fails}; {result:?}: {what}");
                    }
                    machine.flush().unwrap_or_else(|failure| panic!("{failure:?}: {what}"));
                }
            }
        }
    }
}

/// Turns and pins end with the requests that failed: once the pages can be read again, all is as if nothing had been.
#[test]
fn pages_that_can_be_read_again_serve_all_requests() {
    for has_ledger in [false, true] {
        let volume = written(has_ledger);
        for kind in KINDS {
            let mut machine = with_lost(&volume, &[4], Loss::Unreadable, 1);
            for _ in 0..2 {
                let (request, data) = kind.request(150, 330);
                let _ = machine.submit(request, data);
            }
            machine.run();
            machine.unreadable.clear();
            for kind in [Kind::Write, Kind::Discard, Kind::Read] {
                let (request, data) = kind.request(150, 330);
                machine.perform(request, data).unwrap_or_else(|failure| panic!("{kind:?}: {failure:?}"));
            }
            assert_eq!(machine.read(PAGE * 5), Ok(vec![0; BLOCK_BYTES]));
            assert_eq!(machine.flush(), Ok(()));
        }
    }
}

/// A discard that waits for a round, since one batch has no room for it, loses the second page that it needs.
#[test]
fn a_discard_that_waits_for_room_fails_with_its_page() {
    for has_ledger in [false, true] {
        let volume = written(has_ledger);
        for seed in 0..20 {
            let mut machine = with_lost(&volume, &[8], Loss::Unreadable, seed);
            machine.read(0).expect("this page is there");
            machine.read(6 * PAGE).expect("this page is there");
            for nth in 0..DISCARDS_MAX as u64 + 20 {
                let (first, end) =
                    if nth + 2 == DISCARDS_MAX as u64 { (150, 350) } else { (nth % 40, nth % 40 + 1) };
                let (request, data) = Kind::Discard.request(first, end);
                machine.submit(request, data);
            }
            machine.run();
            let failed = machine.completed.iter().filter(|completed| completed.result.is_err()).count();
            assert_eq!(failed, 1, "seed {seed}, ledger {has_ledger}");
        }
    }
}
