//! The test vectors of `vectors/auth.json`: this code generates them, reads them, and rejects the failing ones.
//! `vectors/auth.py` is a reader that shares no code with the crate.

use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};
use volume::auth::{BLOCK_BYTES, Cipher, Failure, Keys, Layout, LedgerError, Request, Unit, Volume};

use super::disk::{Disk, Image};
use super::file::File;
use super::machine::{Machine, SEGMENT, STORAGE_BYTES, UUID, VOLUME_KEY, formatted};

mod ledger;

/// With this environment variable the file is written anew.
const WRITE: &str = "HIKYAKU_WRITE_VECTORS";
const BLOCKS: u64 = 6;
/// Of the first blocks, the byte that fills each; block 3 was discarded.
const CONTENTS: [u8; BLOCKS as usize] = [1, 22, 0, 0, 5, 0];
const OTHER_UUID: &str = "6e8f2d1c-0000-4000-8000-00000000ffff";

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("vectors")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex")).collect()
}

fn bytes_at(image: &Image, range: std::ops::Range<u64>) -> Vec<u8> {
    let start = range.start / 512 * 512;
    let mut bytes = vec![0; (range.end.next_multiple_of(512) - start) as usize];
    image.read(start, &mut bytes);
    bytes.drain(..(range.start - start) as usize);
    bytes.truncate((range.end - range.start) as usize);
    bytes
}

fn write_at(image: &mut Image, offset: u64, with: &[u8]) {
    let start = offset / 512 * 512;
    let mut bytes = bytes_at(image, start..(offset + with.len() as u64).next_multiple_of(512));
    bytes[(offset - start) as usize..][..with.len()].copy_from_slice(with);
    image.write(start, &bytes);
}

/// A volume after a crash: block 1 was overwritten before, block 4 while the power failed.
fn crashed(cipher: Cipher, unit: Unit) -> Image {
    let layout = Layout::new(cipher, unit, SEGMENT, BLOCKS).expect("a layout");
    let fill = |byte| vec![byte; BLOCK_BYTES];
    let mut machine = Machine::on(cipher, unit, formatted(cipher, unit, BLOCKS));
    for (block, byte) in [(0, 1), (1, 2), (3, 4), (4, if unit == Unit::Bytes4096 { 5 } else { 7 })] {
        machine.write(block, fill(byte)).expect("nothing fails");
    }
    machine.flush().expect("nothing fails");
    machine.write(1, fill(22)).expect("nothing fails");
    let length = BLOCK_BYTES as u64;
    machine.perform(Request::Discard { offset: 3 * length, length }, Vec::new()).expect("nothing fails");
    machine.perform(Request::Close, Vec::new()).expect("nothing fails");
    let before = machine.disk.image([]);
    machine.write(4, fill(if unit == Unit::Bytes4096 { 6 } else { 5 })).expect("nothing fails");
    machine.flush().expect("nothing fails");
    let mut image = machine.disk.image([]);
    let data = layout.data_offset(4);
    if unit == Unit::Bytes4096 {
        // The context arrived, the data did not.
        image.write(data, &bytes_at(&before, data..data + length));
    } else {
        // The journal arrived, the block is torn.
        image.write(data, &bytes_at(&before, data..data + 1024));
        let pair = layout.pair(4);
        write_at(&mut image, pair.start, &bytes_at(&before, pair));
    }
    image
}

fn unit_of(vector: &Value) -> Unit {
    Unit::from_bytes(vector["unit"].as_u64().expect("a number") as u32).expect("a unit")
}

fn make(cipher: Cipher, unit: Unit) -> Value {
    let layout = Layout::new(cipher, unit, SEGMENT, BLOCKS).expect("a layout");
    let image = crashed(cipher, unit);
    let page = layout.pair(0).start..layout.pair(0).start + 4096;
    let mut ranges = vec![
        layout.superblock(0)..layout.superblock(0) + 512,
        layout.superblock(1)..layout.superblock(1) + 512,
        layout.map(),
        page,
    ];
    if unit == Unit::Bytes512 {
        for (header, data) in layout.journal_halves() {
            ranges.extend([header..header + 4096, data..data + 4096]);
        }
    }
    ranges.extend((0..BLOCKS).map(|block| layout.data_offset(block)..layout.data_offset(block) + 4096));
    let stored: Vec<Value> = ranges
        .into_iter()
        .map(|range| (range.start, bytes_at(&image, range)))
        .filter(|(_, bytes)| bytes.iter().any(|byte| *byte != 0))
        .map(|(offset, bytes)| json!([offset, hex(&bytes)]))
        .collect();
    let flipped = |offset: u64| {
        let byte = bytes_at(&image, offset..offset + 1)[0] ^ 0x10;
        json!([offset, hex(&[byte])])
    };
    let moved = |from: std::ops::Range<u64>, to: u64| json!([to, hex(&bytes_at(&image, from))]);
    let (first, second) = (layout.pair(0), layout.pair(1));
    let data = |block| layout.data_offset(block)..layout.data_offset(block) + 4096;
    let slot = (first.end - first.start) / 2;
    let block = |defect: &str, writes: Vec<Value>, unverified: &[u64]| json!({"defect": defect, "writes": writes, "unverified": unverified});
    let volume =
        |defect: &str, writes: Vec<Value>| json!({"defect": defect, "writes": writes, "damaged": true});
    let failing = vec![
        block("data_first_byte", vec![flipped(data(0).start)], &[0]),
        block("data_last_byte", vec![flipped(data(0).end - 1)], &[0]),
        block("generation_changed", vec![flipped(first.start + 1)], &[0]),
        block("nonce_changed", vec![flipped(first.start + 4)], &[0]),
        block("tag_changed", vec![flipped(first.start + slot - 1)], &[0]),
        block("context_void", vec![json!([first.start, hex(&vec![0; 2 * slot as usize])])], &[0]),
        block(
            "contexts_exchanged",
            vec![moved(first.clone(), second.start), moved(second.clone(), first.start)],
            &[0, 1],
        ),
        block("data_exchanged", vec![moved(data(0), data(1).start), moved(data(1), data(0).start)], &[0, 1]),
        block(
            "data_and_contexts_exchanged",
            vec![
                moved(first.clone(), second.start),
                moved(second.clone(), first.start),
                moved(data(0), data(1).start),
                moved(data(1), data(0).start),
            ],
            &[0, 1],
        ),
        block("context_of_an_unwritten_block", vec![moved(layout.pair(2), first.start)], &[0]),
        block("unwritten_tag_changed", vec![flipped(layout.pair(2).start + slot - 1)], &[2]),
        block("unwritten_second_slot_not_void", vec![flipped(layout.pair(2).start + slot + 8)], &[2]),
        block("context_of_a_written_block", vec![moved(first.clone(), layout.pair(2).start)], &[2]),
        volume("map_bit_cleared", vec![json!([layout.map().start, "00"])]),
        volume("map_tag_changed", vec![flipped(layout.map().start + 511)]),
        volume(
            "superblock_size_changed",
            vec![flipped(layout.superblock(0) + 16), flipped(layout.superblock(1) + 16)],
        ),
        volume(
            "superblock_tags_changed",
            vec![flipped(layout.superblock(0) + 511), flipped(layout.superblock(1) + 511)],
        ),
        json!({"defect": "uuid_of_another_volume", "writes": [], "uuid": OTHER_UUID, "damaged": true}),
        json!({"defect": "other_unit", "writes": [], "unit": 4608 - unit.bytes(), "damaged": true}),
    ];
    json!({
        "cipher": cipher.name(),
        "unit": unit.bytes(),
        "segment": SEGMENT,
        "uuid": UUID,
        "volume_key": hex(&VOLUME_KEY),
        "blocks": BLOCKS,
        "filled_with": CONTENTS,
        "stored": stored,
        "failing": failing,
    })
}

fn generated() -> Value {
    let kinds = [
        (Cipher::Aes256GcmSiv, Unit::Bytes4096),
        (Cipher::Aegis256X4, Unit::Bytes4096),
        (Cipher::Aegis256X4, Unit::Bytes512),
    ];
    let volumes = kinds.into_iter().map(|(cipher, unit)| make(cipher, unit));
    json!({"volumes": volumes.chain(ledger::make()).collect::<Vec<Value>>()})
}

fn stored() -> Value {
    let text = std::fs::read_to_string(folder().join("auth.json")).expect("the vectors");
    serde_json::from_str(&text).expect("JSON")
}

fn list<'a>(value: &'a Value, name: &str) -> &'a Vec<Value> {
    value[name].as_array().expect("a list")
}

fn apply(image: &mut Image, writes: &[Value]) {
    for write in writes {
        let offset = write[0].as_u64().expect("an offset");
        write_at(image, offset, &unhex(write[1].as_str().expect("hex")));
    }
}

/// The ledger of a volume that has one; bytes that are not in the list are zero.
fn ledger_of(vector: &Value, failing: &Value) -> Option<Vec<u8>> {
    let length = vector["ledger_bytes"].as_u64()?;
    let mut bytes = vec![0; length as usize];
    for write in list(vector, "ledger").iter().chain(failing["ledger"].as_array().into_iter().flatten()) {
        let (offset, with) = (write[0].as_u64().expect("an offset"), write[1].as_str().expect("hex"));
        let with = unhex(with);
        bytes[offset as usize..][..with.len()].copy_from_slice(&with);
    }
    bytes.truncate(failing["ledger_bytes"].as_u64().unwrap_or(length) as usize);
    Some(bytes)
}

/// Blocks that are read: those that the vector names, else all.
fn examined(vector: &Value) -> Vec<u64> {
    match vector["examined"].as_array() {
        Some(blocks) => blocks.iter().map(|block| block.as_u64().expect("a block")).collect(),
        None => (0..vector["blocks"].as_u64().expect("a number")).collect(),
    }
}

/// The byte that fills each examined block, or `None`; why the volume does not open.
fn read(vector: &Value, failing: &Value, is_read_only: bool) -> Result<Vec<Option<u8>>, &'static str> {
    let mut image = Image::default();
    apply(&mut image, list(vector, "stored"));
    if let Some(writes) = failing["writes"].as_array() {
        apply(&mut image, writes);
    }
    let uuid = failing["uuid"].as_str().or(vector["uuid"].as_str()).expect("a UUID");
    let unit = unit_of(if failing["unit"].is_null() { vector } else { failing });
    let cipher = Cipher::from_name(vector["cipher"].as_str().expect("a name")).expect("a cipher");
    let key = unhex(vector["volume_key"].as_str().expect("hex"));
    let keys = Keys::new(&key, uuid, cipher, unit, SEGMENT);
    let volume = Volume::new(keys, (cipher, unit, SEGMENT), STORAGE_BYTES, [1; 16], is_read_only);
    let mut volume = volume.expect("a volume");
    let file = ledger_of(vector, failing);
    if let Some(bytes) = &file {
        volume = volume.with_ledger(bytes.len() as u64);
    }
    let mut machine = Machine::of(volume, cipher, Disk::new(unit, image));
    machine.file = file.map(File::new);
    machine.run();
    if let Some(failure) = machine.volume.failure() {
        return Err(match failure {
            Failure::Damaged => "damaged",
            Failure::OldVolume => "older",
            Failure::Ledger(LedgerError::Behind) => "behind",
            Failure::Ledger(LedgerError::Damaged) => "header",
            Failure::Ledger(LedgerError::OtherVolume) => "other",
            Failure::Ledger(LedgerError::Truncated) => "truncated",
            other => panic!("{other:?}"),
        });
    }
    let contents = examined(vector).into_iter().map(|block| {
        let data = machine.read(block).ok()?;
        assert!(data.iter().all(|byte| *byte == data[0]), "block {block}");
        Some(data[0])
    });
    Ok(contents.collect())
}

/// What [`read`] should return.
fn expected(vector: &Value, failing: &Value) -> Result<Vec<Option<u8>>, &'static str> {
    if failing["damaged"] == true {
        let reasons = ["older", "behind", "header", "other", "truncated"];
        return Err(reasons.into_iter().find(|reason| failing["reason"] == *reason).unwrap_or("damaged"));
    }
    let unverified = failing["unverified"].as_array();
    let filled_with = list(if failing["filled_with"].is_null() { vector } else { failing }, "filled_with");
    let blocks = examined(vector).into_iter().zip(filled_with);
    let contents = blocks.map(|(block, byte)| {
        let is_unverified = unverified.into_iter().flatten().any(|number| *number == block);
        (!is_unverified).then(|| byte.as_u64().expect("a byte") as u8)
    });
    Ok(contents.collect())
}

#[test]
fn vectors_are_what_this_code_writes() {
    if std::env::var_os(WRITE).is_some() {
        let text = serde_json::to_string_pretty(&generated()).expect("JSON");
        std::fs::write(folder().join("auth.json"), text + "\n").expect("a file");
    }
    assert!(generated() == stored(), "{WRITE}=1 writes them anew");
}

#[test]
fn stored_volumes_read_as_they_were_written() {
    for vector in list(&stored(), "volumes") {
        for is_read_only in [false, true] {
            let what = format!("{} {} {is_read_only}", vector["cipher"], vector["unit"]);
            assert_eq!(read(vector, &Value::Null, is_read_only), expected(vector, &Value::Null), "{what}");
        }
    }
}

#[test]
fn failing_volumes_fail_where_they_should() {
    for vector in list(&stored(), "volumes") {
        for failing in list(vector, "failing") {
            for is_read_only in [false, true] {
                let what =
                    format!("{} {} {} {is_read_only}", vector["cipher"], vector["unit"], failing["defect"]);
                assert_eq!(read(vector, failing, is_read_only), expected(vector, failing), "{what}");
            }
        }
    }
}

/// Debian's python3 has the module after `cargo xtask test` installed it; another python3 may precede it in the path.
#[test]
fn an_independent_reader_agrees() {
    let imports = |python: &&str| {
        let output = Command::new(python).args(["-c", "import cryptography"]).output();
        output.is_ok_and(|output| output.status.success())
    };
    let python = ["python3", "/usr/bin/python3"].into_iter().find(imports);
    let python = python.expect("auth.py needs python3-cryptography: apt-get install -y python3-cryptography");
    let output =
        Command::new(python).arg(folder().join("auth.py")).arg("--self-test").output().expect("python");
    let said =
        [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
    assert!(output.status.success(), "{said}");
}
