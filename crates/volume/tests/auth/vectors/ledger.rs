//! Vectors of volumes with a ledger: one that was closed, one of which the last tags are only in the log, and two that were
//! cut within a round; each with older parts that a provider returns, and with changed ledgers.
//!
//! `stored` leaves out the pages of contexts that no examined block is on, and what the discarded group has.

use std::ops::Range;

use serde_json::{Value, json};
use volume::auth::{BLOCK_BYTES, Cipher, Layout, PAGE_BYTES, Request, Unit, format_ledger, ledger_bytes};

use super::super::Random;
use super::super::disk::{Disk, Image};
use super::super::file::File;
use super::super::machine::{Machine, SEGMENT, UUID, VOLUME_KEY, formatted, formatted_ledger, keys_of};
use super::{OTHER_UUID, bytes_at, hex, write_at};

/// Two groups, or a whole and a part of one.
const BLOCKS: u64 = 320;
/// On the first page of contexts, on the second, and in the second group.
const EXAMINED: [u64; 6] = [0, 1, 2, 3, 70, 300];
const FIRST_PAGE: [u64; 4] = [0, 1, 2, 3];
/// Changed bytes are stored in runs of chunks of this length.
const CHUNK: usize = 64;
const LENGTH: u64 = BLOCK_BYTES as u64;
const SECTOR: u64 = 512;
/// Of the ledger's header.
const SERIAL: Range<usize> = 24..32;
/// Of the ledger's log: its number of pages; its head.
const LOG_PAGES: Range<usize> = 44..48;
const LOG_HEAD_BYTES: usize = 48;

/// Storage and ledger at one time.
#[derive(Clone)]
struct State {
    image: Image,
    file: Vec<u8>,
}

impl State {
    fn of(machine: &Machine) -> Self {
        let image = machine.disk.image(machine.disk.volatile().into_iter().flatten());
        Self { image, file: machine.file.as_ref().expect("a file").kept() }
    }

    /// What a crash of storage and client certainly keeps.
    fn durable(machine: &Machine) -> Self {
        let file = machine.file.as_ref().expect("a file").image([]);
        Self { image: machine.disk.image([]), file }
    }

    fn take(&mut self, from: &Image, range: Range<u64>) {
        write_at(&mut self.image, range.start, &bytes_at(from, range));
    }
}

/// One volume that is being made.
struct Maker {
    cipher: Cipher,
    unit: Unit,
    layout: Layout,
    machine: Machine,
}

impl Maker {
    fn new(cipher: Cipher, unit: Unit) -> Self {
        let layout = Layout::new(cipher, unit, SEGMENT, BLOCKS).expect("a layout");
        let (image, file) = (formatted(cipher, unit, BLOCKS), formatted_ledger(cipher, unit, BLOCKS));
        let machine = open(cipher, unit, &State { image, file }, 1);
        Self { cipher, unit, layout, machine }
    }

    /// Another process opens the volume.
    fn open(&mut self, state: &State) {
        self.machine = open(self.cipher, self.unit, state, 2);
    }

    fn write(&mut self, block: u64, byte: u8) {
        self.machine.write(block, vec![byte; BLOCK_BYTES]).expect("nothing fails");
    }

    fn discard(&mut self, blocks: Range<u64>) {
        let request =
            Request::Discard { offset: blocks.start * LENGTH, length: (blocks.end - blocks.start) * LENGTH };
        self.machine.perform(request, Vec::new()).expect("nothing fails");
    }

    fn flush(&mut self) -> State {
        self.machine.flush().expect("nothing fails");
        State::of(&self.machine)
    }

    fn close(&mut self) -> State {
        self.machine.perform(Request::Close, Vec::new()).expect("nothing fails");
        State::of(&self.machine)
    }

    /// Flushes; also what is durable after the round's first barrier.
    fn flush_with_cut(&mut self) -> (State, State) {
        let barriers = self.machine.disk.barriers;
        self.machine.submit(Request::Flush, Vec::new());
        while self.machine.disk.barriers == barriers {
            assert!(self.machine.step(), "a flush has a barrier");
        }
        let cut = State::durable(&self.machine);
        self.machine.run();
        (cut, State::of(&self.machine))
    }

    fn superblocks(&self) -> [Range<u64>; 2] {
        [0, 1].map(|copy| self.layout.superblock(copy)..self.layout.superblock(copy) + SECTOR)
    }

    fn page_of(&self, block: u64) -> Range<u64> {
        let start = self.layout.pair(block).start / PAGE_BYTES as u64 * PAGE_BYTES as u64;
        start..start + PAGE_BYTES as u64
    }

    fn data(&self, block: u64) -> Range<u64> {
        self.layout.data_offset(block)..self.layout.data_offset(block + 1)
    }

    /// The vector of a state with these blocks of data, and its failing variants.
    fn vector(&self, state: &State, written: &[u64], filled_with: [u8; 6], failing: Vec<Value>) -> Value {
        let mut ranges = self.superblocks().to_vec();
        ranges.extend([self.layout.map(), self.page_of(0), self.page_of(70)]);
        if self.unit == Unit::Bytes512 {
            for (header, data) in self.layout.journal_halves() {
                ranges.extend([header..header + PAGE_BYTES as u64, data..data + LENGTH]);
            }
        }
        ranges.extend(written.iter().map(|block| self.data(*block)));
        let stored = ranges.into_iter().flat_map(|range| changes(range, &Image::default(), &state.image));
        let zeroes = vec![0; state.file.len()];
        json!({
            "cipher": self.cipher.name(),
            "unit": self.unit.bytes(),
            "segment": SEGMENT,
            "uuid": UUID,
            "volume_key": hex(&VOLUME_KEY),
            "blocks": BLOCKS,
            "examined": EXAMINED,
            "filled_with": filled_with,
            "stored": stored.collect::<Vec<Value>>(),
            "ledger_bytes": state.file.len(),
            "ledger": runs(0, &zeroes, &state.file),
            "failing": Value::Array(failing),
        })
    }

    /// The parts of an older state that the provider returns.
    fn returned(&self, ranges: &[Range<u64>], now: &State, older: &Image) -> Vec<Value> {
        ranges.iter().flat_map(|range| changes(range.clone(), &now.image, older)).collect()
    }

    /// What every ledger refuses. `older` is the volume after its first session.
    fn refused(&self, now: &State, older: &State) -> Vec<Value> {
        let superblocks = self.superblocks();
        let empty = formatted(self.cipher, self.unit, BLOCKS);
        let mut other = vec![0; now.file.len()];
        let keys = keys_of(self.cipher, self.unit, OTHER_UUID);
        for (offset, bytes) in format_ledger(&self.layout, &keys, BLOCKS) {
            other[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
        let log = ledger_bytes(&self.layout) as usize;
        other[log..].copy_from_slice(&now.file[log..]);
        let headers = [header_at(&now.file, 0), header_at(&now.file, 1)];
        vec![
            refused("superblock_older", "older", self.returned(&superblocks, now, &older.image)),
            refused("map_older", "older", self.returned(&[self.layout.map()], now, &empty)),
            refused(
                "written_without_ledger",
                "behind",
                self.returned(&superblocks, now, &written_without(self.cipher, self.unit, &now.image)),
            ),
            refused_ledger("ledger_of_another_volume", "other", runs(0, &now.file, &other)),
            refused_ledger("ledger_older", "behind", runs(0, &now.file[..log], &older.file[..log])),
            refused_ledger(
                "ledger_headers_changed",
                "header",
                headers.map(|at| flipped(&now.file, at + 100)).to_vec(),
            ),
            json!({"defect": "ledger_truncated", "ledger_bytes": log - 1, "damaged": true, "reason": "truncated"}),
        ]
    }

    /// Offset in the ledger of the tag of a page of contexts.
    fn page_tag(&self, page: usize) -> usize {
        let (tag_bytes, map_sectors) =
            (if self.cipher == Cipher::Aegis256X4 { 10 } else { 16 }, self.layout.map().count() / 512);
        2 * PAGE_BYTES + 16 * map_sectors + page * tag_bytes
    }
}

fn open(cipher: Cipher, unit: Unit, state: &State, seed: u64) -> Machine {
    let file = File::new(state.file.clone());
    let disk = Disk::new(unit, state.image.clone());
    let mut machine = Machine::with_file(cipher, disk, Some(file), false, Random(seed));
    machine.run();
    machine
}

/// The storage after another session, which did not have the ledger.
fn written_without(cipher: Cipher, unit: Unit, image: &Image) -> Image {
    let mut machine = Machine::on(cipher, unit, image.clone());
    machine.write(2, vec![9; BLOCK_BYTES]).expect("nothing fails");
    machine.flush().expect("nothing fails");
    machine.disk.image([])
}

/// Of the ledger's header copies, the offset of that with the `nth` highest serial number.
fn header_at(file: &[u8], nth: usize) -> usize {
    let serial = |at: usize| u64::from_le_bytes(file[at..][SERIAL].try_into().expect("8 bytes"));
    let newest = if serial(0) > serial(PAGE_BYTES) { 0 } else { PAGE_BYTES };
    if nth == 0 { newest } else { PAGE_BYTES - newest }
}

/// Runs of chunks that differ, with their bytes in `to`.
fn runs(offset: u64, from: &[u8], to: &[u8]) -> Vec<Value> {
    let mut runs: Vec<(usize, &[u8])> = Vec::new();
    for start in (0..to.len()).step_by(CHUNK) {
        let end = (start + CHUNK).min(to.len());
        if from[start..end] == to[start..end] {
            continue;
        }
        match runs.last_mut() {
            Some((first, bytes)) if *first + bytes.len() == start => *bytes = &to[*first..end],
            _ => runs.push((start, &to[start..end])),
        }
    }
    runs.into_iter().map(|(at, bytes)| json!([offset + at as u64, hex(bytes)])).collect()
}

fn changes(range: Range<u64>, from: &Image, to: &Image) -> Vec<Value> {
    runs(range.start, &bytes_at(from, range.clone()), &bytes_at(to, range))
}

fn flipped(bytes: &[u8], at: usize) -> Value {
    json!([at, hex(&[bytes[at] ^ 0x10])])
}

fn refused(defect: &str, reason: &str, writes: Vec<Value>) -> Value {
    json!({"defect": defect, "writes": Value::Array(writes), "damaged": true, "reason": reason})
}

fn refused_ledger(defect: &str, reason: &str, ledger: Vec<Value>) -> Value {
    json!({"defect": defect, "ledger": Value::Array(ledger), "damaged": true, "reason": reason})
}

fn blocks(defect: &str, writes: Vec<Value>, unverified: &[u64]) -> Value {
    json!({"defect": defect, "writes": Value::Array(writes), "unverified": unverified})
}

fn blocks_of_ledger(defect: &str, ledger: Vec<Value>, unverified: &[u64]) -> Value {
    json!({"defect": defect, "ledger": Value::Array(ledger), "unverified": unverified})
}

/// The second session overwrote block 0 twice and was not closed; the third one, without a round, was.
fn closed(cipher: Cipher, unit: Unit) -> Value {
    let mut maker = Maker::new(cipher, unit);
    maker.write(0, 1);
    let older = maker.close();
    maker.write(0, 3);
    let flushed = maker.flush();
    maker.write(0, 4);
    let last = maker.flush();
    maker.open(&last);
    maker.discard(1..2);
    let claimed = maker.flush();
    let now = maker.close();
    let (page, data) = (maker.page_of(0), maker.data(0));
    let mut all = maker.superblocks().to_vec();
    all.extend([maker.layout.map(), page.clone(), maker.page_of(70), data.clone()]);
    let mut failing = maker.refused(&now, &older);
    let file = &now.file;
    failing.extend([
        refused("all_older", "older", maker.returned(&all, &now, &older.image)),
        refused(
            "superblock_before_closing",
            "older",
            maker.returned(&maker.superblocks(), &now, &claimed.image),
        ),
        blocks("page_older", maker.returned(&[page], &now, &flushed.image), &FIRST_PAGE),
        // The pair has this version too, and its session was not closed.
        blocks("data_older", maker.returned(&[data], &now, &flushed.image), &[0]),
        blocks_of_ledger("ledger_header_changed", vec![flipped(file, header_at(file, 0) + 100)], &[]),
        blocks_of_ledger("ledger_older_header_changed", vec![flipped(file, header_at(file, 1) + 100)], &[]),
        blocks_of_ledger("ledger_page_tag_changed", vec![flipped(file, maker.page_tag(0))], &FIRST_PAGE),
        blocks_of_ledger("ledger_next_page_tag_changed", vec![flipped(file, maker.page_tag(1))], &[70]),
        refused_ledger("ledger_map_tag_changed", "older", vec![flipped(file, 2 * PAGE_BYTES)]),
        blocks_of_ledger("ledger_log_changed", vec![flipped(file, log_at(&maker) + 8)], &[]),
    ]);
    maker.vector(&now, &[0], [4, 0, 0, 0, 0, 0], failing)
}

fn log_at(maker: &Maker) -> usize {
    ledger_bytes(&maker.layout) as usize
}

/// Offset in the ledger of the images of the only page of a log, whose lists end in its first 4096 bytes.
fn images_at(maker: &Maker, file: &[u8]) -> usize {
    let log = log_at(maker);
    let pages = u32::from_le_bytes(file[log..][LOG_PAGES].try_into().expect("4 bytes"));
    assert_eq!(pages, 1, "a round that changes one page");
    log + PAGE_BYTES
}

/// Unit 4096: the first round of the second session was cut. It overwrote blocks 0 and 1, of which only 0 arrived, wrote
/// block 2 for the first time, and discarded block 3 and the second group.
fn cut(cipher: Cipher) -> Value {
    let mut maker = Maker::new(cipher, Unit::Bytes4096);
    for (block, byte) in [(0, 7), (1, 2), (3, 8), (300, 9)] {
        maker.write(block, byte);
    }
    let first = maker.flush();
    maker.write(0, 1);
    let older = maker.close();
    for (block, byte) in [(0, 3), (1, 4), (2, 5)] {
        maker.write(block, byte);
    }
    maker.discard(3..4);
    maker.discard(BLOCKS / 2..BLOCKS);
    let (mut now, after) = maker.flush_with_cut();
    now.take(&after.image, maker.data(0));
    now.take(&after.image, maker.layout.map());
    let page = maker.page_of(0);
    let mut failing = maker.refused(&now, &older);
    let file = &now.file;
    let log = log_at(&maker);
    let images = images_at(&maker, file);
    let void = json!([page.start, hex(&[0; 512])]);
    failing.extend([
        blocks("page_older", maker.returned(std::slice::from_ref(&page), &now, &older.image), &[]),
        blocks("page_void", vec![void], &[]),
        blocks("page_after", maker.returned(&[page], &now, &after.image), &[]),
        blocks("data_older", maker.returned(&[maker.data(0)], &now, &first.image), &[0]),
        json!({
            "defect": "data_before",
            "writes": maker.returned(&[maker.data(0)], &now, &older.image),
            "filled_with": [1, 2, 5, 0, 0, 0],
            "unverified": [],
        }),
        // A block that was unwritten before the round stays so.
        json!({
            "defect": "first_data_void",
            "writes": [[maker.data(2).start, hex(&[0; 64])]],
            "filled_with": [3, 2, 0, 0, 0, 0],
            "unverified": [],
        }),
        refused_ledger("ledger_header_changed", "behind", vec![flipped(file, header_at(file, 0) + 100)]),
        blocks_of_ledger("ledger_older_header_changed", vec![flipped(file, header_at(file, 1) + 100)], &[]),
        blocks_of_ledger("ledger_page_tag_changed", vec![flipped(file, maker.page_tag(0))], &[]),
        blocks_of_ledger("ledger_next_page_tag_changed", vec![flipped(file, maker.page_tag(1))], &[70]),
        refused_ledger("ledger_log_changed", "older", vec![flipped(file, log + LOG_HEAD_BYTES)]),
        blocks_of_ledger("ledger_image_before_changed", vec![flipped(file, images)], &FIRST_PAGE),
        blocks_of_ledger("ledger_image_after_changed", vec![flipped(file, images + PAGE_BYTES)], &FIRST_PAGE),
    ]);
    maker.vector(&now, &[0, 1, 2, 3], [3, 2, 5, 0, 0, 0], failing)
}

/// Unit 512: a round was cut that overwrote block 0, which is torn. The journal also has the batch before, of block 1.
fn torn(cipher: Cipher) -> Value {
    let mut maker = Maker::new(cipher, Unit::Bytes512);
    maker.write(0, 1);
    maker.write(1, 2);
    maker.flush();
    let older = maker.close();
    maker.write(1, 5);
    maker.flush();
    maker.write(0, 3);
    let (mut now, after) = maker.flush_with_cut();
    let data = maker.data(0);
    now.take(&after.image, data.start..data.start + 1024);
    now.take(&after.image, maker.page_of(0));
    let [_, (header, entries)] = maker.layout.journal_halves();
    let lost = json!([header, hex(&[0; 64])]);
    let mut lost_and_before = maker.returned(&[data], &now, &older.image);
    lost_and_before.push(lost.clone());
    let mut failing = maker.refused(&now, &older);
    let file = &now.file;
    let entry = bytes_at(&now.image, entries..entries + 1)[0] ^ 0x10;
    failing.extend([
        blocks("page_older", maker.returned(&[maker.page_of(0)], &now, &older.image), &[]),
        blocks("data_older", maker.returned(&[maker.data(0)], &now, &older.image), &[]),
        // The batch before has the right data, and does not count.
        blocks("data_of_the_batch_before_older", maker.returned(&[maker.data(1)], &now, &older.image), &[1]),
        blocks("journal_void", vec![lost], &[0]),
        blocks("journal_data_changed", vec![json!([entries, hex(&[entry])])], &[0]),
        json!({
            "defect": "journal_void_and_data_before",
            "writes": lost_and_before,
            "filled_with": [1, 5, 0, 0, 0, 0],
            "unverified": [],
        }),
        blocks_of_ledger("ledger_header_changed", vec![flipped(file, header_at(file, 0) + 100)], &FIRST_PAGE),
        blocks_of_ledger("ledger_older_header_changed", vec![flipped(file, header_at(file, 1) + 100)], &[]),
        blocks_of_ledger(
            "ledger_image_after_changed",
            vec![flipped(file, images_at(&maker, file) + PAGE_BYTES)],
            &FIRST_PAGE,
        ),
        blocks_of_ledger("ledger_next_page_tag_changed", vec![flipped(file, maker.page_tag(1))], &[70]),
        blocks_of_ledger(
            "ledger_log_changed",
            vec![flipped(file, log_at(&maker) + LOG_HEAD_BYTES)],
            &FIRST_PAGE,
        ),
    ]);
    maker.vector(&now, &[0, 1], [3, 5, 0, 0, 0, 0], failing)
}

/// Unit 512: a round was committed that overwrote block 0 and discarded the second group, and of the file the header is
/// durable while the tags are those of before.
fn redo(cipher: Cipher) -> Value {
    let mut maker = Maker::new(cipher, Unit::Bytes512);
    for (block, byte) in [(0, 1), (300, 9)] {
        maker.write(block, byte);
    }
    maker.flush();
    let older = maker.close();
    maker.write(0, 3);
    maker.discard(256..BLOCKS);
    let mut now = maker.flush();
    let tags = 2 * PAGE_BYTES..log_at(&maker);
    now.file[tags.clone()].copy_from_slice(&older.file[tags]);
    let mut failing = maker.refused(&now, &older);
    let file = &now.file;
    failing.extend([
        // The tags in their places are those of this state.
        refused("map_before", "older", maker.returned(&[maker.layout.map()], &now, &older.image)),
        blocks("page_before", maker.returned(&[maker.page_of(0)], &now, &older.image), &FIRST_PAGE),
        // The journal has the right data, and does not count.
        blocks("data_before", maker.returned(&[maker.data(0)], &now, &older.image), &[0]),
        // As the other copy says, the round was cut.
        blocks_of_ledger("ledger_header_changed", vec![flipped(file, header_at(file, 0) + 100)], &[]),
        blocks_of_ledger("ledger_older_header_changed", vec![flipped(file, header_at(file, 1) + 100)], &[]),
        blocks_of_ledger("ledger_page_tag_changed", vec![flipped(file, maker.page_tag(0))], &[]),
        blocks_of_ledger("ledger_next_page_tag_changed", vec![flipped(file, maker.page_tag(1))], &[70]),
        refused_ledger("ledger_log_changed", "older", vec![flipped(file, log_at(&maker) + LOG_HEAD_BYTES)]),
    ]);
    maker.vector(&now, &[0], [3, 0, 0, 0, 0, 0], failing)
}

pub(super) fn make() -> Vec<Value> {
    vec![
        closed(Cipher::Aes256GcmSiv, Unit::Bytes4096),
        cut(Cipher::Aegis256X4),
        redo(Cipher::Aes256GcmSiv),
        torn(Cipher::Aegis256X4),
    ]
}
