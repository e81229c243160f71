use std::io::Cursor;

use iscsi::digest;

use super::build::*;
use super::framer::{Framer, PORT};
use super::verdict;
use crate::capture::Reader;
use crate::capture::slim::{Slim, Summary};
use crate::event::{Event, Kind, Opaque};
use crate::limits::SLIM_QUEUE_BYTES_MAX;

/// A byte that stands for what must not remain.
const SECRET: u8 = 0xee;

/// A connection whose packets are cut anywhere.
struct Talk {
    frames: Vec<Stamped>,
    port: u16,
    seq: [u32; 2],
    at_ns: u64,
}

impl Talk {
    fn new(port: u16) -> Self {
        let mut talk = Self { frames: Vec::new(), port, seq: [100, 900], at_ns: 1_000 };
        for (from, flags) in [(0, 2), (1, 0x12), (0, 0x10)] {
            talk.packet(from, flags, &[2, 4, 5, 0xb4, 1, 3, 3, 7], &[]);
            talk.seq[from] += u32::from(flags != 0x10);
        }
        talk
    }

    fn packet(&mut self, from: usize, flags: u8, options: &[u8], payload: &[u8]) {
        let mut segment = tcp(options, payload);
        let ports = [40_000_u16.to_be_bytes(), self.port.to_be_bytes()];
        segment[0..2].copy_from_slice(&ports[from]);
        segment[2..4].copy_from_slice(&ports[1 - from]);
        segment[4..8].copy_from_slice(&self.seq[from].to_be_bytes());
        segment[8..12].copy_from_slice(&self.seq[1 - from].to_be_bytes());
        segment[13] = flags;
        self.seq[from] += payload.len() as u32;
        let mut packet = ipv4(&[], 6, &segment);
        if from == 1 {
            packet[12..20].rotate_left(4);
        }
        self.at_ns += 1_000;
        self.frames.push(Stamped::whole(self.at_ns, ethernet(0x0800, &packet)));
    }

    /// Bytes of one side, `cut` in a packet at most.
    fn send(&mut self, from: usize, bytes: &[u8], cut: usize) {
        let stamps = [1, 1, 8, 10, 0, 0, 0, 7, 0, 0, 0, 8];
        bytes.chunks(cut).for_each(|part| self.packet(from, 0x18, &stamps, part));
    }
}

/// A PDU with digests, if there are any.
fn pdu(opcode: u8, data: &[u8], digests: bool) -> Vec<u8> {
    let mut header = [SECRET; 48];
    header[..4].copy_from_slice(&[opcode, 0x80, 0, 0]);
    header[4] = 0;
    header[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
    header[16..32].copy_from_slice(&[7; 16]);
    // What is reserved is zero, as all senders have it.
    match opcode {
        0x43 | 0x44 => header[22..24].fill(0),
        0x05 => header[24..28].fill(0),
        0x23 => header[20..24].fill(0),
        _ => {}
    }
    if opcode != 1 {
        header[32..].fill(9);
        // Reserved, or MaxCmdSN not far beyond ExpCmdSN.
        header[32..36].fill(if opcode & 0x20 == 0 { 0 } else { 7 });
    } else {
        header[32..42].copy_from_slice(&[0x2a, SECRET, 1, 2, 3, 4, SECRET, 5, 6, SECRET]);
    }
    let is_login = matches!(opcode & 0x3f, 3 | 0x23);
    if is_login {
        header[14..16].copy_from_slice(&[0, 3]);
    }
    let digests = digests && !is_login;
    let mut out = header.to_vec();
    if digests {
        out.extend(digest::of(&header));
    }
    out.extend(data);
    out.resize(out.len().next_multiple_of(4), 0);
    if digests && !data.is_empty() {
        out.extend([SECRET; 4]);
    }
    out
}

const LOGIN: &[u8] = b"InitiatorName=iqn.secret\0MaxBurstLength=262144\0CHAP_R=0xsecret\0InitialR2T=No\0";

/// A login, writes and reads, in packets of `cut` bytes.
fn session(cut: usize, digests: bool) -> Talk {
    let mut talk = Talk::new(PORT);
    let chosen: &[u8] = if digests { b"HeaderDigest=CRC32C\0DataDigest=CRC32C\0" } else { b"" };
    let text = [LOGIN, chosen].concat();
    talk.send(0, &pdu(0x43, &text, digests), cut);
    talk.send(1, &pdu(0x23, &text, digests), cut);
    let data = vec![SECRET; 2046];
    let out = [
        pdu(1, &[], digests),
        pdu(5, &data, digests),
        pdu(5, &data, digests),
        pdu(5, &data[..1], digests),
        pdu(1, &[], digests),
    ];
    talk.send(0, &out.concat(), cut);
    talk.send(
        1,
        &[pdu(0x31, &[], digests), pdu(0x25, &data, digests), pdu(0x21, &[], digests)].concat(),
        cut,
    );
    talk.packet(0, 0x11, &[], &[]);
    talk
}

fn slimmed(frames: &[Stamped], framer: &mut Framer, extra: impl Fn(u64) -> Vec<Event>) -> (Vec<u8>, Summary) {
    let mut reader = Reader::new(Cursor::new(pcapng(1, frames))).unwrap();
    let mut slim = Slim::new(Vec::new()).unwrap();
    while let Some(packet) = reader.next().unwrap() {
        let mut events = framer.events(&packet);
        events.extend(extra(packet.frame));
        slim.packet(&packet, &events).unwrap();
    }
    slim.finish().unwrap()
}

/// What does not depend on addresses and payload.
fn transport(file: &[u8]) -> Vec<String> {
    let (lines, ..) = read(file).unwrap();
    lines
        .into_iter()
        .map(|line| {
            let from_port = line.split_once(':').unwrap().1;
            let (rest, _) = from_port.split_once("+\"").unwrap();
            let (source, rest) = rest.split_once('>').unwrap();
            format!("{source} {}", rest.split_once(':').unwrap().1)
        })
        .collect()
}

/// Headers by direction, each with the bytes after it that a digest would take.
fn headers(file: &[u8], framer: &mut Framer) -> Vec<(u64, [u8; 48])> {
    let mut reader = Reader::new(Cursor::new(file.to_vec())).unwrap();
    let mut found = Vec::new();
    while let Some(packet) = reader.next().unwrap() {
        found.extend(framer.events(&packet).into_iter().filter_map(|event| match event.kind {
            Kind::PduStart(start) => Some((start.offset, start.header)),
            _ => None,
        }));
    }
    found
}

/// The payload of both directions, one after the other.
fn payload(file: &[u8]) -> Vec<u8> {
    let mut reader = Reader::new(Cursor::new(file.to_vec())).unwrap();
    let mut streams = [Vec::new(), Vec::new()];
    while let Some(packet) = reader.next().unwrap() {
        let stream = &mut streams[usize::from(packet.source.port() == PORT)];
        stream.extend(packet.payload);
        stream.resize(stream.len() - packet.payload.len() + packet.payload_bytes as usize, 0);
    }
    streams.concat()
}

#[test]
fn headers_stay_and_payload_does_not() {
    for digests in [false, true] {
        let framer = || Framer::new(digests);
        for cut in [1, 47, 100, 1448, 65_000] {
            let talk = session(cut, digests);
            let whole = pcapng(1, &talk.frames);
            let (file, summary) = slimmed(&talk.frames, &mut framer(), |_| vec![]);
            assert_eq!(summary, Summary { packets: talk.frames.len() as u64, ..Summary::default() });
            assert_eq!(transport(&file), transport(&whole), "{cut}");
            let (before, after) = (headers(&whole, &mut framer()), headers(&file, &mut framer()));
            assert_eq!(before.len(), 10);
            assert_eq!(after.len(), 10, "{cut}");
            for ((offset, old), (same, new)) in before.iter().zip(&after) {
                assert_eq!((offset, &old[..8], &old[16..32]), (same, &new[..8], &new[16..32]));
            }
            let stream = payload(&file);
            assert!(!stream.windows(4).any(|part| part == [SECRET; 4]), "{cut}");
            assert!(!stream.windows(6).any(|part| part == b"secret"), "{cut}");
            assert!(payload(&whole).windows(4).any(|part| part == [SECRET; 4]));
            for address in [[10, 1, 2, 3], [10, 4, 5, 6]] {
                assert!(!file.windows(4).any(|word| word == address));
            }
        }
    }
}

#[test]
fn negotiated_numbers_and_digests_stay_readable() {
    let talk = session(1448, true);
    let mut framer = Framer::new(true);
    let (file, _) = slimmed(&talk.frames, &mut framer, |_| vec![]);
    let text = b"InitiatorName=xxxxxxxxxx\0MaxBurstLength=262144\0CHAP_R=xxxxxxxx\0InitialR2T=No\0";
    assert_eq!(file.windows(text.len()).filter(|part| part == text).count(), 2);

    let mut reader = Reader::new(Cursor::new(file)).unwrap();
    let mut checked = 0;
    while let Some(packet) = reader.next().unwrap() {
        if let Some((header, rest)) = packet.payload.split_first_chunk::<48>()
            && header[0] == 1
        {
            assert_eq!(header[32..48], [0x2a, 0, 1, 2, 3, 4, 0, 5, 6, 0, 0, 0, 0, 0, 0, 0]);
            assert_eq!(digest::of(header), rest[..4]);
            checked += 1;
        }
    }
    assert_eq!(checked, 1);
}

#[test]
fn other_connections_are_left_out() {
    let iscsi = session(1448, false);
    let mut other = Talk::new(80);
    other.send(0, b"GET / HTTP/1.0\r\n\r\n", 1448);
    // The other connection comes before, and is known late.
    let mut frames = other.frames.clone();
    frames.extend(iscsi.frames.clone());
    let last = frames.len() as u64;
    let opaque = |frame| {
        let kind = Kind::Opaque(Opaque::Unframed);
        let from = crate::event::Side::Initiator;
        if frame == last { vec![Event { at_ns: 0, frame, from, kind }] } else { vec![] }
    };
    let (file, summary) = slimmed(&frames, &mut Framer::default(), opaque);
    assert_eq!(summary.left_out, 4);
    assert_eq!(transport(&file), transport(&pcapng(1, &iscsi.frames)));
}

#[test]
fn a_queue_that_is_full_lets_its_first_packet_go() {
    // A connection that never shows what it is, with more bytes than the queue holds, among packets of a session.
    let session = session(1448, false);
    let mut quiet = Talk::new(81);
    let mut frames = session.frames[..6].to_vec();
    for _ in 0..=SLIM_QUEUE_BYTES_MAX / 32_000 + 10 {
        quiet.packet(0, 0x10, &[], &[0; 32_000]);
    }
    frames.extend(quiet.frames);
    frames.extend(session.frames[6..].to_vec());
    let (file, summary) = slimmed(&frames, &mut Framer::default(), |_| vec![]);
    assert_eq!(summary.packets, session.frames.len() as u64);
    assert_eq!(summary.packets + summary.left_out, frames.len() as u64);
    assert_eq!(transport(&file), transport(&pcapng(1, &session.frames)));
}

#[test]
fn a_new_connection_of_the_same_ends_is_another() {
    let talk = session(1448, false);
    let again: Vec<_> = talk.frames.iter().chain(&talk.frames).cloned().collect();
    // The framer of the test knows one connection: one each.
    let mut reader = Reader::new(Cursor::new(pcapng(1, &again))).unwrap();
    let mut slim = Slim::new(Vec::new()).unwrap();
    let mut framers = [Framer::default(), Framer::default()];
    while let Some(packet) = reader.next().unwrap() {
        let second = packet.frame > talk.frames.len() as u64;
        slim.packet(&packet, &framers[usize::from(second)].events(&packet)).unwrap();
    }
    let (file, summary) = slim.finish().unwrap();
    assert_eq!((summary.packets, summary.incomplete), (again.len() as u64, 0));
    let text = b"MaxBurstLength=262144\0";
    assert_eq!(file.windows(text.len()).filter(|part| part == text).count(), 4);
}

#[test]
fn tls_keeps_what_shows_that_it_is_tls() {
    let mut talk = Talk::new(PORT);
    talk.packet(0, 0x18, &[], &[&[0x16, 3, 1, 0, 0xc8, 1][..], &[SECRET; 200]].concat());
    talk.packet(0, 0x18, &[], &[SECRET; 100]);
    let mut reader = Reader::new(Cursor::new(pcapng(1, &talk.frames))).unwrap();
    let mut slim = Slim::new(Vec::new()).unwrap();
    while let Some(packet) = reader.next().unwrap() {
        let mut events = Framer::default().events(&packet);
        events.retain(|event| !matches!(event.kind, Kind::PduStart(_) | Kind::PduEnd(_)));
        if packet.frame == 5
            && let Some(Event { kind: Kind::Segment(segment), .. }) = events.last_mut()
        {
            segment.offset = 206;
        }
        if packet.frame == 4 {
            events.push(Event { kind: Kind::Opaque(Opaque::Tls), ..events[0].clone() });
        }
        slim.packet(&packet, &events).unwrap();
    }
    let (file, _) = slim.finish().unwrap();
    let (lines, ..) = read(&file).unwrap();
    assert!(lines[3].ends_with("206+\"\\\\x16\\\\x03\\\\x01\\\\x00\\\\xc8\\\\x01\""), "{}", lines[3]);
    assert!(lines[4].ends_with("100+\"\""), "{}", lines[4]);
}

#[test]
fn the_table_of_connections_sees_the_same() {
    let cases = [
        (1448, false, 9999),
        (65_000, false, 70_000),
        (1448, false, 128),
        (52, true, 9999),
        (1448, true, 9999),
        (1448, true, 128),
        (65_000, true, 70_000),
    ];
    for (cut, digests, snap) in cases {
        let mut talk = session(cut, digests);
        talk.frames.iter_mut().for_each(|frame| frame.bytes.truncate(snap));
        same_events(&talk.frames, 4, &format!("{cut} {digests} {snap}"));
        // Without handshake and login, where PDUs begin shows whether there are digests.
        let first = talk.frames.iter().position(|frame| frame.bytes.get(66) == Some(&1)).unwrap();
        same_events(&talk.frames[first..], 1, &format!("{cut} {digests} {snap} from the middle"));
    }
}

/// The capture shows at least so many PDUs.
fn same_events(frames: &[Stamped], pdus: usize, what: &str) {
    let whole = pcapng(1, frames);
    let (file, _) = verdict::slimmed(Cursor::new(whole.clone()));
    let (before, after) = (verdict::events(Cursor::new(whole)), verdict::events(Cursor::new(file)));
    assert!(before.iter().filter(|event| event.contains("PduStart")).count() >= pdus, "{what}");
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(before, after, "{what}");
    }
    assert_eq!(before.len(), after.len(), "{what}");
}
