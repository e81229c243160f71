//! Captures: any bytes, files built of frames whose headers are altered, what is written of them, and their analysis.

use std::io::Cursor;

use monitor::analysis::{Analyzer, Options};
use monitor::capture::pcapng::Writer;
use monitor::capture::slim::Slim;
use monitor::capture::{Comments, Counts, Reader};
use monitor::event::{Event, Kind, Opaque, Order, PduEnd, PduStart, Segment, Side};
use monitor::packet::Packet;

use crate::{Source, heap};

/// The reader's largest record twice, while it grows, and what the writers hold of a short input.
const HEAP_MAX: usize = 16 << 20;
/// What an analysis of a short input holds.
const ANALYSIS_HEAP_MAX: usize = 64 << 20;
/// Frames of a file that is built.
const FRAMES_MAX: usize = 12;

/// Reads a file, writes it again, with comments and without payload, and analyses it.
pub fn capture(bytes: &[u8]) {
    let mut source = Source::new(bytes);
    let file = match source.byte() % 4 {
        // The rest is the file, so that the fuzzer sees which of its bytes matter.
        0 => source.rest().to_vec(),
        1 => pcap(&mut source),
        _ => pcapng(&mut source),
    };
    heap::within(HEAP_MAX, || read(file.clone(), &mut source));
    heap::within(ANALYSIS_HEAP_MAX, || analyze(file));
}

/// Shares of time are shares, whatever the times of the packets.
fn analyze(file: Vec<u8>) {
    let Ok(mut reader) = Reader::new(Cursor::new(file)) else { return };
    let mut analyzer = Analyzer::new(Options { ports: vec![3260], ..Options::default() });
    while let Ok(Some(packet)) = reader.next() {
        analyzer.handle(&packet);
    }
    for flow in analyzer.finish("a file", reader.counts(), &reader.notes()).flows {
        let verdict = &flow.subject().verdict;
        assert!((0.0..=1.0).contains(&verdict.confidence), "{verdict:?}");
        assert!((0.0..=1.000_001).contains(&verdict.share), "{verdict:?}");
    }
}

/// What identifies a segment, and its payload on the wire.
type Seen = (u32, u32, u8, u32);

fn seen(packet: &Packet<'_>) -> Seen {
    (packet.seq, packet.ack, packet.flags.0, packet.payload_bytes)
}

fn read(file: Vec<u8>, source: &mut Source<'_>) {
    let Ok(mut reader) = Reader::new(Cursor::new(file)) else { return };
    let mut writer = Writer::new(Vec::new()).expect("memory takes everything");
    let mut slim = Slim::new(Vec::new()).expect("memory takes everything");
    let mut comments = Comments::default();
    let (mut packets, mut frames, mut number) = (Vec::new(), 0, 0);
    while let Ok(true) = reader.advance() {
        let frame = reader.frame();
        assert!(frame.number > number, "frames are numbered in their order");
        number = frame.number;
        assert!(frame.bytes.len() <= frame.original_bytes as usize);
        frames += 1;
        let mut events = Vec::new();
        if let Some(packet) = reader.packet() {
            check(&packet, frame.bytes);
            events = events_of(&packet, source);
            slim.packet(&packet, &events).expect("memory takes everything");
            packets.push(seen(&packet));
        }
        events.iter().for_each(|event| comments.event(0, event));
        writer.write(&frame, &comments.take()).expect("memory takes everything");
    }
    let counts = reader.counts();
    let kinds: u64 = counts.others().map(|(_, count)| count).sum();
    assert_eq!((counts.frames, counts.tcp), (frames, packets.len() as u64));
    assert_eq!(counts.frames, counts.tcp + kinds);
    for note in reader.notes() {
        assert!(!note.to_string().chars().any(char::is_control), "{note:?}");
    }

    let (written, again) = read_again(writer.finish().expect("memory takes everything"));
    assert_eq!((written, again), (packets.clone(), counts), "what is written is what was read");
    let (file, summary) = slim.finish().expect("memory takes everything");
    let (slimmed, _) = read_again(file);
    assert_eq!(slimmed.len() as u64, summary.packets);
    assert_eq!(summary.packets + summary.left_out, packets.len() as u64);
    let mut all = packets.iter();
    assert!(slimmed.iter().all(|one| all.any(|other| other == one)), "in the same order");
}

fn check(packet: &Packet<'_>, frame: &[u8]) {
    assert!(packet.payload.len() as u64 <= u64::from(packet.payload_bytes), "{packet:?}");
    assert!(usize::from(packet.options.sack_count) <= packet.options.sacks.len());
    let (payload, frame) = (packet.payload.as_ptr_range(), frame.as_ptr_range());
    assert!(packet.payload.is_empty() || payload.start >= frame.start && payload.end <= frame.end);
}

/// Everything of a file that was written here, which has no defect.
fn read_again(file: Vec<u8>) -> (Vec<Seen>, Counts) {
    let mut reader = Reader::new(Cursor::new(file)).expect("what is written can be read");
    let mut packets = Vec::new();
    while let Some(packet) = reader.next().expect("what is written can be read") {
        packets.push(seen(&packet));
    }
    (packets, reader.counts())
}

/// Events that need not fit together.
fn events_of(packet: &Packet<'_>, source: &mut Source<'_>) -> Vec<Event> {
    let mut events = Vec::new();
    for _ in 0..source.below(4) {
        let offset = u64::from(source.number());
        let kind = match source.byte() % 8 {
            0..=2 => Kind::Segment(Segment {
                offset,
                bytes: packet.payload_bytes,
                repeated_bytes: 0,
                mss: 1448,
                push: false,
                order: Order::default(),
            }),
            3 | 4 => {
                let bytes = if source.rarely(8) { source.u64() } else { source.number().into() };
                Kind::PduStart(PduStart { offset, bytes, header: source.array() })
            }
            5 if source.flag() => Kind::HeadersUnseen { offset, bytes: source.number().into() },
            5 => Kind::PduEnd(PduEnd { offset }),
            6 => Kind::Opaque(source.pick(&[Opaque::Sealed, Opaque::Tls, Opaque::Unframed])),
            _ => Kind::Ended { by_reset: source.flag() },
        };
        let from = source.pick(&[Side::Initiator, Side::Target]);
        events.push(Event { at_ns: packet.at_ns, frame: packet.frame, from, kind });
    }
    events
}

/// A frame of a link type that is read, with a segment in it, and some of its bytes altered.
fn frame(link: u16, source: &mut Source<'_>) -> Vec<u8> {
    let is_6 = source.flag();
    let kind: [u8; 2] = if is_6 { [0x86, 0xdd] } else { [8, 0] };
    let mut bytes = match link {
        1 => [&[2; 12][..], &kind].concat(),
        0 | 108 => vec![2, 0, 0, 0],
        113 => [&[0; 14][..], &kind].concat(),
        276 => [&kind[..], &[0; 18]].concat(),
        _ => Vec::new(),
    };
    let options = source.some(41);
    let tcp = 20 + options.len().next_multiple_of(4);
    let payload = source.below(300);
    let length = (tcp + payload) as u16;
    if is_6 {
        bytes.extend([0x60, 0, 0, 0]);
        bytes.extend(length.to_be_bytes());
        bytes.extend([6, 64]);
        bytes.extend([source.byte() & 3; 32]);
    } else {
        bytes.extend([0x45, 0]);
        bytes.extend((length + 20).to_be_bytes());
        bytes.extend([0, 1, 0x40, 0, 64, 6, 0, 0]);
        bytes.extend([10, 0, 0, source.byte() & 3, 10, 0, 0, 2]);
    }
    bytes.extend(source.pick(&[[0x9c, 0x40, 0x0c, 0xbc], [0x0c, 0xbc, 0x9c, 0x40]]));
    bytes.extend(source.array::<8>());
    bytes.extend([((tcp / 4) << 4) as u8, source.byte(), 1, 0, 0, 0, 0, 0]);
    bytes.extend(options);
    bytes.resize(bytes.len() + tcp - 20 - options.len() + payload, 0);
    while source.rarely(4) {
        let (at, byte) = (source.below(bytes.len().max(1)), source.byte());
        bytes.iter_mut().skip(at).take(1).for_each(|place| *place = byte);
    }
    if source.rarely(4) {
        bytes.truncate(source.below(bytes.len() + 1));
    }
    bytes
}

fn link(source: &mut Source<'_>) -> u16 {
    source.pick(&[1, 101, 276, 113, 0, 108, 228, 229, 12, 14, 147])
}

fn altered(mut file: Vec<u8>, source: &mut Source<'_>) -> Vec<u8> {
    while source.rarely(4) {
        let (at, byte) = (source.below(file.len()), source.byte());
        file[at] = byte;
    }
    file
}

fn pcap(source: &mut Source<'_>) -> Vec<u8> {
    let big = source.flag();
    let word = |value: u32| if big { value.to_be_bytes() } else { value.to_le_bytes() };
    let magic = source.pick(&[0xa1b2_c3d4, 0xa1b2_3c4d]);
    let link = link(source);
    let mut file = [word(magic), [0; 4], [0; 4], [0; 4], word(0xffff), word(link.into())].concat();
    for _ in 0..source.below(FRAMES_MAX) {
        let frame = frame(link, source);
        let original =
            (frame.len() as u32).saturating_add(if source.rarely(4) { source.number() } else { 0 });
        file.extend(
            [word(source.u32()), word(source.u32()), word(frame.len() as u32), word(original)].concat(),
        );
        file.extend(frame);
    }
    altered(file, source)
}

fn pcapng(source: &mut Source<'_>) -> Vec<u8> {
    let mut big = source.flag();
    let (mut file, mut links) = (Vec::new(), Vec::new());
    for step in 0..source.below(2 * FRAMES_MAX) + 2 {
        let word = |value: u32| if big { value.to_be_bytes() } else { value.to_le_bytes() };
        let half = |value: u16| if big { value.to_be_bytes() } else { value.to_le_bytes() };
        let choice = if step < 2 { step as u8 * 8 } else { source.byte() % 64 };
        let (kind, mut body) = match choice {
            0 => (0x0a0d_0d0a, [&word(0x1a2b_3c4d)[..], &half(1), &half(0), &[0xff; 8]].concat()),
            1..=3 => (u32::from(source.byte() % 12), source.some(64).to_vec()),
            4..=12 => {
                let link = link(source);
                links.push(link);
                let mut body = [&half(link)[..], &half(0), &word(0)].concat();
                if source.flag() {
                    body.extend([&half(9)[..], &half(1), &[source.byte(), 0, 0, 0]].concat());
                    body.extend([&half(14)[..], &half(8), &source.array::<8>()].concat());
                }
                (1, body)
            }
            _ => {
                let interface = source.below(links.len().max(1));
                let frame = frame(links.get(interface).copied().unwrap_or(1), source);
                let original =
                    (frame.len() as u32).saturating_add(if source.rarely(8) { source.number() } else { 0 });
                let mut body = [word(interface as u32), word(source.u32()), word(source.u32())].concat();
                body.extend([word(frame.len() as u32), word(original)].concat());
                body.extend(frame);
                (6, body)
            }
        };
        body.resize(body.len().next_multiple_of(4), 0);
        let length = word(body.len() as u32 + 12);
        file.extend([word(kind), length].concat());
        file.extend(body);
        file.extend(length);
        if choice == 0 {
            links.clear();
            big = big != source.rarely(8);
        }
    }
    altered(file, source)
}
