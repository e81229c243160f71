//! What `watch` reads: replies of the kernel's netlink, and recordings with any content and a correct checksum.

use monitor::event::{Event, Kind, PduEnd, Side};
use monitor::probe::fuzz_replies;
use monitor::record::{Entry, Flow, Reader, Writer};
use monitor::sample::Sample;

use crate::{Source, heap};

const HEAP_MAX: usize = 4 << 20;
/// Bytes of a block's header; the checksum lies in its last four.
const HEADER_BYTES: usize = 16;

/// The first byte selects replies, a recording of any bytes, or an altered recording of this program.
pub fn watch(bytes: &[u8]) {
    let mut source = Source::new(bytes);
    heap::within(HEAP_MAX, || match source.byte() % 4 {
        0 => fuzz_replies(source.rest()),
        1 => drop(read(source.rest())),
        2 => any_payload(source.rest()),
        _ => altered(&mut source),
    });
}

/// The entries of a recording, and how many bytes were damaged.
fn read(bytes: &[u8]) -> (Vec<Entry>, u64) {
    let mut reader = Reader::new(bytes);
    let mut entries = Vec::new();
    while let Ok(Some(entry)) = reader.next_entry() {
        entries.push(entry);
    }
    assert!(reader.damaged_bytes() <= bytes.len() as u64);
    (entries, reader.damaged_bytes())
}

/// A block with this payload, and the checksum that belongs to it.
fn block(payload: &[u8]) -> Vec<u8> {
    let mut bytes = b"HKWR\x01\0\0\0".to_vec();
    bytes.extend((payload.len() as u32).to_le_bytes());
    bytes.extend(iscsi::digest::of(payload));
    bytes.extend(payload);
    bytes
}

/// The records of any block end within it, and the next block is read.
fn any_payload(payload: &[u8]) {
    let (following, written) = recording(3);
    let (entries, damaged) = read(&[block(payload), following].concat());
    assert_eq!(damaged, 0);
    let samples = entries.iter().filter(|entry| matches!(entry, Entry::Sample(..))).count();
    assert!(samples >= written, "{samples} of {written} samples");
}

fn flow() -> Flow {
    Flow {
        local: ([10, 0, 0, 1], 40_000).into(),
        remote: ([10, 0, 0, 2], 3260).into(),
        side: Side::Initiator,
        congestion: "cubic".into(),
        process: String::new(),
        target: String::new(),
    }
}

/// One block, and its number of samples.
fn recording(seed: u64) -> (Vec<u8>, usize) {
    let mut writer = Writer::new(Vec::new(), 0);
    let count = seed % 7 + 1;
    for number in 0..count {
        let sample = Sample {
            at_ns: seed.wrapping_mul(number),
            rtt_us: (number % 2 == 0).then_some(seed as u32),
            bytes_sent: Some(seed.rotate_left(number as u32)),
            ..Sample::default()
        };
        writer.sample(1, &flow(), &sample).expect("memory");
    }
    let kind = Kind::PduEnd(PduEnd { offset: seed });
    writer.event(1, &flow(), &Event { at_ns: 5, frame: seed, from: Side::Target, kind }).expect("memory");
    writer.flush().expect("memory");
    (writer.into_inner(), count as usize)
}

/// Bytes of a block are changed, with a correct checksum or without; the block behind it stays whole.
fn altered(source: &mut Source<'_>) {
    let (mut first, _) = recording(source.u64());
    let (second, written) = recording(source.u64());
    let length = first.len();
    while !source.is_empty() {
        let at = HEADER_BYTES + source.below(length - HEADER_BYTES);
        first[at] = source.byte();
    }
    if first.len() % 2 == 0 {
        let digest = iscsi::digest::of(&first[HEADER_BYTES..]);
        first[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&digest);
    }
    let (entries, _) = read(&[first, second].concat());
    let samples = entries.iter().filter(|entry| matches!(entry, Entry::Sample(..))).count();
    assert!(samples >= written, "{samples} of {written} samples");
}
