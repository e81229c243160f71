use super::*;
use crate::event::{Ack, Duplicate, Kind, Opaque, Order, PduEnd, PduStart, Segment};
use crate::limits::RECORD_BLOCK_BYTES_MAX;
use crate::sample::CaState;

fn flow(port: u16) -> Flow {
    Flow {
        local: ([10, 0, 0, 1], port).into(),
        remote: "[2001:db8::1]:3260".parse().unwrap(),
        side: Side::Initiator,
        congestion: "cubic".into(),
        process: "a\u{1b}[2J".into(),
        target: "iqn.2026-11.example:disks".into(),
    }
}

/// Samples as an ordinary connection has them: few fields change, some become known or unknown.
fn sample(number: u64) -> Sample {
    Sample {
        at_ns: 1_000_000_000 + number * 10_000_000,
        state: 1,
        ca_state: Some(if number.is_multiple_of(7) { CaState::Recovery } else { CaState::Open }),
        cwnd_segments: Some(1200 - number as u32 % 100),
        unacked_segments: Some(number as u32 * 3 % 700),
        bytes_sent: Some(number * 1_000_000),
        bytes_retrans: (number > 5).then_some(number),
        pacing_bytes_per_s: Some(u64::MAX - number),
        app_limited: Some(number.is_multiple_of(2)),
        outstanding: number.is_multiple_of(4).then_some(32),
        ..Sample::default()
    }
}

fn events() -> Vec<Event> {
    let ack = Ack {
        acknowledged: 77,
        window_bytes: None,
        sacked_bytes: 3,
        duplicate: Duplicate::Data,
        congestion_echo: true,
        is_bare: true,
        round_trip_ns: Some(0),
    };
    let segment = Segment {
        offset: 1 << 40,
        bytes: 65535,
        repeated_bytes: 9,
        mss: 1448,
        push: true,
        order: Order::Again,
    };
    let kinds = [
        Kind::Segment(segment),
        Kind::Segment(Segment { order: Order::Next, push: false, ..segment }),
        Kind::Ack(ack),
        Kind::Ack(Ack { window_bytes: Some(0), is_bare: false, round_trip_ns: None, ..ack }),
        Kind::PduStart(PduStart { offset: 48, bytes: 4096 + 48, header: [0x41; 48] }),
        Kind::PduEnd(PduEnd { offset: 48 }),
        Kind::CaptureLost { offset: 1, bytes: 2 },
        Kind::HeadersUnseen { offset: 3, bytes: 4 },
        Kind::Opaque(Opaque::Unframed),
        Kind::Ended { by_reset: true },
    ];
    let event = |(frame, kind)| Event { at_ns: 2_000_000_000, frame, from: Side::Target, kind };
    (0..).zip(kinds).map(event).collect()
}

fn read(bytes: &[u8]) -> (Vec<Entry>, u64) {
    let mut reader = Reader::new(bytes);
    let mut entries = Vec::new();
    while let Some(entry) = reader.next_entry().unwrap() {
        entries.push(entry);
    }
    (entries, reader.damaged_bytes())
}

/// A recording of `blocks` blocks with ten samples each.
fn recording(blocks: u64) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), 0);
    for block in 0..blocks {
        for number in 0..10 {
            writer.sample(1, &flow(40_000), &sample(block * 10 + number)).unwrap();
        }
        writer.flush().unwrap();
    }
    writer.into_inner()
}

fn samples(entries: &[Entry]) -> Vec<Sample> {
    let sample = |entry: &Entry| match entry {
        Entry::Sample(_, sample) => Some(sample.clone()),
        _ => None,
    };
    entries.iter().filter_map(sample).collect()
}

#[test]
fn everything_is_read_as_it_was_written() {
    let mut writer = Writer::new(Vec::new(), 0);
    let cpu = Cpu { busiest_thread: 0.5, waiting: 0.0, cipher: None };
    for number in 0..200 {
        writer.sample(1, &flow(40_000), &sample(number)).unwrap();
        writer.sample(9, &flow(40_001), &sample(number / 2)).unwrap();
    }
    for event in events() {
        writer.event(9, &flow(40_001), &event).unwrap();
    }
    writer.cpu(1, &flow(40_000), 3_000_000_000, &cpu).unwrap();
    writer.flush().unwrap();
    let bytes = writer.into_inner();
    assert!(is_recording(&bytes) && bytes.len() < 400 * 45, "{} bytes", bytes.len());

    let (entries, damaged) = read(&bytes);
    assert_eq!(damaged, 0);
    assert_eq!(entries[0], Entry::Flow(1, flow(40_000)));
    assert_eq!(entries[2], Entry::Flow(9, flow(40_001)));
    let since_start = |mut sample: Sample| {
        sample.at_ns -= 1_000_000_000;
        sample
    };
    let expected: Vec<Sample> =
        (0..200).flat_map(|number| [sample(number), sample(number / 2)]).map(since_start).collect();
    assert_eq!(samples(&entries), expected);
    let found = entries.iter().filter_map(|entry| match entry {
        Entry::Event(9, event) => Some(event.clone()),
        _ => None,
    });
    let expected = events().into_iter().map(|event| Event { at_ns: 1_000_000_000, ..event });
    assert!(found.eq(expected));
    assert_eq!(entries.last(), Some(&Entry::Cpu(1, cpu)));
}

#[test]
fn a_cut_end_costs_the_last_block_only() {
    let bytes = recording(3);
    let block = bytes.len() / 3;
    for cut in [1, 10, block / 2, block - 1] {
        let (entries, damaged) = read(&bytes[..bytes.len() - cut]);
        assert_eq!(samples(&entries).len(), 20, "{cut} bytes less");
        assert!(damaged > 0 && damaged < block as u64 + 8);
    }
}

#[test]
fn a_damaged_block_is_skipped_wherever_the_damage_is() {
    let bytes = recording(3);
    let second = bytes[1..].windows(4).position(|window| window == MAGIC).unwrap() + 1;
    for at in second..second + 200 {
        let mut bytes = bytes.clone();
        bytes[at] ^= 0x55;
        let (entries, damaged) = read(&bytes);
        // Byte 6 and 7 of a header are reserved.
        let expected = if [6, 7].contains(&(at - second)) { 30 } else { 20 };
        assert_eq!(samples(&entries).len(), expected, "byte {}", at - second);
        assert_eq!(damaged > 0, expected == 20);
    }
}

#[test]
fn a_recording_is_continued_on_the_clock_of_its_start() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("r");
    for _ in 0..2 {
        let mut writer = Writer::append(&path).unwrap();
        writer.sample(1, &flow(40_000), &sample(0)).unwrap();
        writer.flush().unwrap();
    }
    let (entries, damaged) = read(&std::fs::read(&path).unwrap());
    let times: Vec<u64> = samples(&entries).iter().map(|sample| sample.at_ns).collect();
    assert_eq!((times.len(), times[0], damaged), (2, 0, 0));
    assert!(times[1] > 0, "{times:?}");
    std::fs::write(&path, "no recording").unwrap();
    assert!(matches!(Writer::append(&path), Err(RecordError::Foreign)));
    let (link, absent) = (home.path().join("link"), home.path().join("absent"));
    std::os::unix::fs::symlink(&absent, &link).unwrap();
    assert!(matches!(Writer::append(&link), Err(RecordError::Foreign)));
    assert!(!absent.exists());
    assert!(matches!(Writer::append(std::path::Path::new("/dev/null")), Err(RecordError::Foreign)));
}

#[test]
fn what_is_no_recording_is_named() {
    assert!(matches!(Reader::new(&b"\xd4\xc3\xb2\xa1"[..]).next_entry(), Err(RecordError::Foreign)));
    assert!(matches!(Reader::new(&b""[..]).next_entry(), Err(RecordError::Foreign)));
    let mut later = recording(1);
    later[4] = 2;
    assert!(matches!(Reader::new(&later[..]).next_entry(), Err(RecordError::Version(2))));
}

#[test]
fn a_recording_ends_at_its_bound() {
    let mut writer = Writer::new(Vec::new(), 0).limited(300);
    let mut result = Ok(());
    for number in 0..100 {
        writer.sample(1, &flow(40_000), &sample(number)).unwrap();
        result = writer.flush();
        if result.is_err() {
            break;
        }
    }
    assert!(matches!(result, Err(RecordError::Full(300))), "{result:?}");
    assert!(writer.into_inner().len() <= 300);
}

/// Each magic announces a block of the largest size: the time that a reader spends on it is bounded.
#[test]
fn blocks_that_announce_too_much_end_soon() {
    let mut bytes = recording(1);
    let mut lie = MAGIC.to_vec();
    lie.extend([1, 0, 0, 0]);
    lie.extend((RECORD_BLOCK_BYTES_MAX as u32).to_le_bytes());
    lie.extend([0; 4]);
    bytes.extend(lie.repeat(3 * RECORD_BLOCK_BYTES_MAX / lie.len()));
    let (entries, damaged) = read(&bytes);
    assert_eq!(samples(&entries).len(), 10);
    assert!(damaged > 0);
}

#[test]
fn items_come_with_their_connection() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("r");
    // The second run gives the number 1 to another connection.
    for ports in [[40_000, 40_001], [40_001, 40_002]] {
        let mut writer = Writer::append(&path).unwrap();
        for (id, port) in (1..).zip(ports) {
            writer.sample(id, &flow(port), &sample(0)).unwrap();
        }
        writer.flush().unwrap();
    }
    let mut found = Vec::new();
    let file = std::fs::File::open(&path).unwrap();
    let ended = super::read(file, |number, flow, item| {
        assert!(matches!(item, Item::Sample(_)));
        found.push((number, flow.local.port()));
    });
    assert_eq!(found, [(0, 40_000), (1, 40_001), (1, 40_001), (2, 40_002)]);
    let ended = ended.unwrap();
    assert!(ended.damaged_bytes == 0 && ended.started_unix_ns.is_some());
}

/// Blocks whose first record is some milliseconds old, and a record that is older than the first one of its block.
#[test]
fn times_of_several_blocks_are_of_one_clock() {
    let mut bytes = Vec::new();
    let mut writer = Writer::new(&mut bytes, 0);
    let times = [1_000, 9_000_000, 4_000_000, 12_000_000];
    for (number, at_ns) in times.into_iter().enumerate() {
        let sample = Sample { at_ns: 5_000_000_000 + at_ns, ..sample(1) };
        writer.sample(1, &flow(1), &sample).unwrap();
        if number != 1 {
            writer.flush().unwrap();
        }
    }
    let found: Vec<u64> = read(&bytes)
        .0
        .into_iter()
        .filter_map(|entry| match entry {
            Entry::Sample(_, sample) => Some(sample.at_ns),
            _ => None,
        })
        .collect();
    assert_eq!(found, times.map(|at_ns| at_ns - times[0]));
}
