use std::io::{self, Cursor, Read};

use super::build::*;
use crate::capture::{CaptureError, Note, Reader};
use crate::limits::{CAPTURE_INTERFACES_MAX, CAPTURE_RECORD_BYTES_MAX};

const AT: u64 = 1_700_000_000_123_456_000;
const TCP: u8 = 6;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;

fn plain() -> Vec<u8> {
    ethernet(IPV4, &ipv4(&[], TCP, &tcp(&[], b"payload!")))
}

/// What `read` yields for `plain()`.
fn line(frame: u64, interface: u32, at_ns: u64) -> String {
    format!(
        "{frame} if{interface} 10.1.2.3:40000>10.4.5.6:3260 at {at_ns} seq 1000 ack 2000 18 win 4660 id Some(77) hops 63 \
         ecn 3 mss None ws None sp 0 ts None sack [] 8+\"payload!\""
    )
}

#[test]
fn every_container_yields_the_same() {
    let frames = [Stamped::whole(AT, plain()), Stamped::whole(AT + 1000, plain())];
    let mut files = Vec::new();
    for big in [false, true] {
        for nanoseconds in [false, true] {
            files.push(pcap(big, nanoseconds, 1, &frames));
        }
        // if_tsresol, if_tsoffset, and the ticks of AT and AT + 1000.
        let offset = 1_600_000_000;
        let clocks = [
            (None, None, [AT / 1000, AT / 1000 + 1]),
            (Some(6), None, [AT / 1000, AT / 1000 + 1]),
            (Some(9), Some(0), [AT, AT + 1000]),
            (Some(9), Some(offset as i64), [AT - offset * 1_000_000_000, AT + 1000 - offset * 1_000_000_000]),
            (Some(10), None, [AT * 10, (AT + 1000) * 10]),
        ];
        for (unit, offset_s, ticks) in clocks {
            let mut file = [section(big), interface(big, 1, unit, offset_s)].concat();
            for (ticks, frame) in ticks.into_iter().zip(&frames) {
                // A block of a kind that is not known.
                file.extend(block(77, big, b"anything"));
                file.extend(enhanced(big, 0, ticks, frame));
            }
            files.push(file);
        }
    }
    for (index, file) in files.iter().enumerate() {
        for file in [file, &gzip(file)] {
            let (found, counts, notes) = read(file).unwrap();
            assert_eq!(found, [line(1, 0, AT), line(2, 0, AT + 1000)], "file {index}");
            assert_eq!((counts.frames, counts.tcp, notes), (2, 2, vec![]), "file {index}");
        }
    }
}

#[test]
fn binary_units_and_impossible_times_are_bounded() {
    // if_tsresol, if_tsoffset, ticks, nanoseconds.
    let cases = [
        (0x80 | 10, 0, 1536, 1_500_000_000),
        (0xff, 0, u64::MAX, 0),
        (0x7f, 0, u64::MAX, 0),
        (0, 0, 3, 3_000_000_000),
        (0, 0, u64::MAX, i64::MAX as u64),
        (9, 0, u64::MAX, i64::MAX as u64),
        (6, 0, u64::MAX, i64::MAX as u64),
        (9, -1, 2_000_000_000, 1_000_000_000),
        (9, -3, 2_000_000_000, 0),
        (6, i64::MAX, 5, i64::MAX as u64),
        (6, i64::MIN, 5, 0),
    ];
    for (unit, offset, ticks, at_ns) in cases {
        let frame = Stamped::whole(0, plain());
        let file =
            [section(true), interface(true, 1, Some(unit), Some(offset)), enhanced(true, 0, ticks, &frame)];
        assert_eq!(read(&file.concat()).unwrap().0, [line(1, 0, at_ns)], "{unit} {offset} {ticks}");
    }
}

#[test]
fn interfaces_belong_to_their_section() {
    let frame = Stamped::whole(AT, plain());
    let raw = Stamped::whole(AT, plain()[14..].to_vec());
    let file = [
        section(false),
        interface(false, 101, Some(9), None),
        interface(false, 1, Some(6), None),
        enhanced(false, 1, AT / 1000, &frame),
        enhanced(false, 0, AT, &raw),
        // No such interface: skipped, with its number.
        enhanced(false, 2, AT, &raw),
        section(true),
        interface(true, 1, None, None),
        enhanced(true, 0, AT / 1000, &frame),
    ];
    let (found, _, notes) = read(&file.concat()).unwrap();
    assert_eq!(found, [line(1, 1, AT), line(2, 0, AT), line(4, 0, AT)]);
    assert_eq!(notes, [Note::Skipped(1)]);
}

#[test]
fn link_types() {
    let ip = &plain()[14..];
    let vlan = [&[0, 7][..], &IPV4.to_be_bytes(), ip].concat();
    let double = [&[0, 7, 0x81, 0][..], &vlan].concat();
    let sll = |kind: u16, inner: &[u8]| [&[0; 14][..], &kind.to_be_bytes(), inner].concat();
    let sll2 = |kind: u16, inner: &[u8]| {
        [&kind.to_be_bytes()[..], &[0, 0, 0, 0, 0, 9, 0, 1, 0, 6], &[0; 8], inner].concat()
    };
    let family = |bytes: [u8; 4]| [&bytes[..], ip].concat();
    let cases = [
        (1, plain(), 0),
        (1, ethernet(0x8100, &vlan), 0),
        (1, ethernet(0x88a8, &double), 0),
        (101, ip.to_vec(), 0),
        (12, ip.to_vec(), 0),
        (14, ip.to_vec(), 0),
        (228, ip.to_vec(), 0),
        (0, family([2, 0, 0, 0]), 0),
        (0, family([0, 0, 0, 2]), 0),
        (108, family([0, 0, 0, 2]), 0),
        (113, sll(IPV4, ip), 0),
        (113, sll(0x8100, &vlan), 0),
        (276, sll2(IPV4, ip), 9),
        (276, sll2(0x8100, &vlan), 9),
    ];
    for (link, bytes, interface) in cases {
        let (found, ..) = read(&pcapng(link, &[Stamped::whole(AT, bytes)])).unwrap();
        assert_eq!(found, [line(1, interface, AT)], "link type {link}");
    }
}

#[test]
fn what_is_no_segment_is_counted_by_kind() {
    let segment = tcp(&[], b"x");
    let mut fragment = ipv4(&[], TCP, &segment);
    fragment[6..8].copy_from_slice(&[0x20, 0]);
    let mut last = fragment.clone();
    last[6..8].copy_from_slice(&[0, 5]);
    let mut short = ipv4(&[], TCP, &segment);
    short[3] = 30;
    let tagged = [[0, 1, 0x81, 0]; 8].concat();
    let frames = [
        ethernet(IPV4, &ipv4(&[], 17, &[0; 8])),
        ethernet(IPV4, &ipv4(&[], 1, &[0; 8])),
        ethernet(IPV6, &ipv6(58, &[0; 8])),
        ethernet(IPV4, &ipv4(&[], 50, &[0; 8])),
        ethernet(IPV6, &ipv6(59, &[])),
        ethernet(0x0806, &[0; 28]),
        ethernet(100, &[0x42, 0x42, 3]),
        ethernet(0x8100, &tagged),
        ethernet(IPV4, &fragment),
        ethernet(IPV4, &last),
        ethernet(IPV6, &ipv6(44, &[&[6, 0, 0, 1, 0, 0, 0, 0][..], &segment].concat())),
        ethernet(IPV4, &short),
        ethernet(IPV4, &[0x44; 20]),
        ethernet(IPV4, &ipv4(&[], TCP, &[0; 20])),
        ethernet(IPV6, &ipv6(0, &[0; 400])),
        ethernet(IPV4, &ipv4(&[], TCP, &segment[..10])),
        vec![1, 2, 3],
    ];
    let frames: Vec<_> = frames.into_iter().map(|bytes| Stamped::whole(AT, bytes)).collect();
    let (found, counts, notes) = read(&pcap(false, false, 1, &frames)).unwrap();
    assert_eq!(found, [""; 0]);
    let expected = [
        ("UDP", 1),
        ("ICMP", 2),
        ("other IP protocols", 2),
        ("ARP", 1),
        ("other protocols", 2),
        ("IP fragments", 3),
        ("cut within their headers", 2),
        ("malformed", 4),
    ];
    assert_eq!(counts.others().collect::<Vec<_>>(), expected);
    assert_eq!(counts.frames, 17);
    assert_eq!(notes, [Note::HeadersCut(2), Note::Fragments(3)]);
    let (_, counts, notes) = read(&pcap(false, false, 147, &frames)).unwrap();
    assert_eq!((counts.unknown_link, notes), (17, vec![Note::LinkType(17)]));
}

#[test]
fn ip_headers_of_every_length() {
    let segment = tcp(&[], b"payload!");
    // Hop-by-hop (16 bytes), routing, destination options, authentication, a fragment header of an unfragmented packet.
    let chain = [
        &[43, 1, 5, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..],
        &[60, 0, 0, 0, 0, 0, 0, 0],
        &[51, 0, 0, 0, 0, 0, 0, 0],
        &[44, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[6, 0, 0, 0, 0, 0, 0, 1],
        &segment,
    ]
    .concat();
    let six = "1 if0 [fe80::1]:40000>[fe80::2]:3260 at 0 seq 1000 ack 2000 18 win 4660 id None hops 61 ecn 2 mss None ws None \
               sp 0 ts None sack [] 8+\"payload!\"";
    let cases = [
        (ethernet(IPV4, &ipv4(&[7, 7, 4, 0, 0, 0, 0, 0], TCP, &segment)), line(1, 0, 0)),
        (ethernet(IPV6, &ipv6(TCP, &segment)), six.to_owned()),
        (ethernet(IPV6, &ipv6(0, &chain)), six.to_owned()),
        // The padding of short Ethernet frames is no payload.
        ([plain(), vec![0; 20]].concat(), line(1, 0, 0)),
    ];
    for (bytes, expected) in cases {
        let (found, ..) = read(&pcap(false, true, 1, &[Stamped::whole(0, bytes)])).unwrap();
        assert_eq!(found, [expected]);
    }
}

#[test]
fn tcp_options() {
    let sacks = [[0, 0, 0, 1, 0, 0, 0, 2], [0, 0, 0, 3, 0, 0, 0, 4], [0, 0, 0, 5, 0, 0, 0, 6]].concat();
    let stamps = [8, 10, 0, 0, 0, 7, 0, 0, 0, 8];
    let cases: [(&[&[u8]], &str); 9] = [
        (&[&[1, 1], &stamps], "mss None ws None sp 0 ts Some((7, 8)) sack []"),
        (&[&stamps, &[1, 1]], "mss None ws None sp 0 ts Some((7, 8)) sack []"),
        (
            &[&[2, 4, 5, 0xb4, 4, 2], &stamps, &[1, 3, 3, 7]],
            "mss Some(1460) ws Some(7) sp 1 ts Some((7, 8)) sack []",
        ),
        // An unknown option (Fast Open) hides nothing.
        (&[&[34, 4, 0xab, 0xcd, 3, 3, 9, 0]], "mss None ws Some(9) sp 0 ts None sack []"),
        (&[&[1, 1, 5, 26], &sacks], "mss None ws None sp 0 ts None sack [(1, 2), (3, 4), (5, 6)]"),
        (&[&[1, 1, 5, 34], &sacks, &[0, 0, 0, 7, 0, 0, 0, 8]], "sack [(1, 2), (3, 4), (5, 6), (7, 8)]"),
        // The end of the list, a length of 0, one beyond the header, wrong lengths of known options.
        (&[&[0, 3, 3, 7]], "ws None"),
        (&[&[5, 0, 3, 3, 7, 0, 0, 0]], "ws None"),
        (&[&[2, 3, 9, 3, 3, 7, 5, 200]], "mss None ws Some(7) sp 0 ts None sack []"),
    ];
    for (options, expected) in cases {
        let bytes = ethernet(IPV4, &ipv4(&[], TCP, &tcp(&options.concat(), b"p")));
        let (found, ..) = read(&pcap(false, true, 1, &[Stamped::whole(0, bytes)])).unwrap();
        assert!(found[0].contains(expected) && found[0].ends_with("1+\"p\""), "{options:?}: {}", found[0]);
    }
}

#[test]
fn a_snap_length_cuts_payload_and_not_its_length() {
    let stamps = [1, 1, 8, 10, 0, 0, 0, 7, 0, 0, 0, 8];
    for (bytes, headers) in [
        (ethernet(IPV4, &ipv4(&[], TCP, &tcp(&stamps, &[b'p'; 100]))), 54),
        (ethernet(IPV6, &ipv6(TCP, &tcp(&stamps, &[b'p'; 100]))), 74),
    ] {
        for snap in 0..=bytes.len() {
            let frame = Stamped::whole(0, bytes.clone()).cut(snap);
            let (found, counts, _) = read(&pcap(false, true, 1, &[frame])).unwrap();
            if snap < headers {
                assert_eq!((found.len(), counts.cut), (0, 1), "{snap}");
                continue;
            }
            let payload = "p".repeat(snap.saturating_sub(headers + 12));
            assert!(found[0].ends_with(&format!(" 100+{payload:?}")), "{snap}: {}", found[0]);
            assert_eq!(found[0].contains("ts Some((7, 8))"), snap >= headers + 12, "{snap}");
        }
    }
}

#[test]
fn frames_before_segmentation_are_as_long_as_the_frame() {
    let payload = vec![0; 200_000];
    let segment = tcp(&[], &payload);
    // IPv4 with total length 0, IPv6 with payload length 0, IPv6 with a jumbo payload option (RFC 2675).
    let jumbo = [&[6, 0, 0xc2, 4, 0, 3, 13, 92][..], &segment].concat();
    for bytes in [ipv4(&[], TCP, &segment), ipv6(TCP, &segment), ipv6(0, &jumbo)] {
        let kind = if bytes[0] >> 4 == 4 { IPV4 } else { IPV6 };
        for snap in [90, 300_000] {
            let frame = Stamped::whole(0, ethernet(kind, &bytes)).cut(snap);
            let mut reader = Reader::new(Cursor::new(pcapng(1, &[frame]))).unwrap();
            let packet = reader.next().unwrap().unwrap();
            assert_eq!(packet.payload_bytes, 200_000);
            assert!(packet.payload.len() == 200_000 || snap == 90 && packet.payload.len() < 40);
        }
    }
}

#[test]
fn a_capture_cut_at_any_byte_yields_what_is_whole() {
    let frames = [Stamped::whole(AT, plain()), Stamped::whole(AT, plain())];
    for (file, first) in [(pcap(false, false, 1, &frames), 24), (pcapng(1, &frames), 28)] {
        let whole = file.len();
        let mut seen = 0;
        for length in 0..=whole {
            match read(&file[..length]) {
                Ok((found, _, notes)) => {
                    assert!(found.len() >= seen, "{length}");
                    seen = found.len();
                    assert!(length >= 12);
                    assert!(notes.len() <= 1 && (length < whole || notes.is_empty()), "{notes:?}");
                    assert!(notes.iter().all(|note| *note == Note::Cut { frames: seen as u64 }), "{notes:?}");
                }
                Err(error) => {
                    let in_frame = matches!(error, CaptureError::NoFrame(Note::Cut { frames: 0 }));
                    assert!(seen == 0 && (length < first || in_frame), "{length}: {error}");
                }
            }
            // Compressed, the end of the stream is missing: always a note or an error.
            let compressed = gzip(&file);
            let part = &compressed[..compressed.len() * length / (whole + 1)];
            assert!(read(part).map_or(true, |(_, _, notes)| notes.len() == 1), "{length}");
        }
        assert_eq!(seen, 2);
    }
}

#[test]
fn damage_ends_the_capture_with_a_note() {
    let frames = [Stamped::whole(AT, plain()), Stamped::whole(AT, plain())];
    let (pcap, ng) = (pcap(false, false, 1, &frames), pcapng(1, &frames));
    let (second_pcap, second_ng) = ((pcap.len() - 24) / 2 + 24, ng.len() - (ng.len() - 28 - 44) / 2);
    let cases: [(&[u8], usize, &[u8], &str); 4] = [
        (&pcap, second_pcap + 8, &[0xff; 4], "the length of a frame is impossible"),
        (&ng, second_ng + 4, &[13, 0, 0, 0], "the length of a block is impossible"),
        (&ng, ng.len() - 4, &[1], "the two lengths of a block differ"),
        (&ng, second_ng, &[0x0a, 0x0d, 0x0d, 0x0a], "a section has no byte order"),
    ];
    for (file, at, bytes, what) in cases {
        let mut file = file.to_vec();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        let (found, _, notes) = read(&file).unwrap();
        let [Note::Damaged { frames: 1, what: found_what, .. }] = notes[..] else {
            panic!("{what}: {notes:?}")
        };
        assert_eq!((found.len(), found_what), (1, what));
    }
    // A frame whose captured length exceeds its block is skipped alone.
    let mut file = ng.clone();
    let first = ng.len() - 2 * (ng.len() - second_ng);
    file[first + 20] = 0xff;
    let (found, _, notes) = read(&file).unwrap();
    assert_eq!((found, notes), (vec![line(2, 0, AT)], vec![Note::Skipped(1)]));
}

#[test]
fn what_is_no_capture_says_what_to_do() {
    let cases: [(&[u8], &str); 9] = [
        (b"", "empty"),
        (b"\xa1\xb2", "begins with \\xa1\\xb2;"),
        (b"GET / HTTP/1.0\r\n\r\n", "begins with GET / HT;"),
        (b"\xfd7zXZ\0anything", "xz -dc FILE | hikyaku analyze -"),
        (b"\x28\xb5\x2f\xfdanything", "zstd -dc"),
        (b"\xa1\xb2\xc3\xd4\0\x02\0\x04", "within its header, after 8 bytes"),
        (b"\x0a\x0d\x0d\x0a\0\0", "within its header, after 6 bytes"),
        (b"\x0a\x0d\x0d\x0a\0\0\0\x1c\x11\x11\x11\x11", "this is no capture"),
        (b"\x1f\x8b\x08\0garbage that is no deflate stream", "cannot read the capture"),
    ];
    for (file, expected) in cases {
        let error = read(file).unwrap_err().to_string();
        assert!(error.contains(expected), "{}: {error}", file.escape_ascii());
    }
}

/// A source that gives one byte at a time, is interrupted between them, and fails at the end.
struct Slow(Vec<u8>, usize);

impl Read for Slow {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.1 += 1;
        if self.1.is_multiple_of(2) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let Some(byte) = self.0.get(self.1 / 2) else { return Err(io::Error::other("disk on fire")) };
        buffer[0] = *byte;
        Ok(1)
    }
}

#[test]
fn a_source_that_fails_keeps_what_was_read() {
    let file = pcap(false, false, 1, &[Stamped::whole(AT, plain())]);
    let mut reader = Reader::new(Slow(file, 0)).unwrap();
    assert!(reader.next().unwrap().is_some());
    assert!(reader.next().unwrap().is_none());
    assert!(reader.next().unwrap().is_none());
    assert_eq!(reader.notes(), [Note::ReadFailed { frames: 1, cause: "disk on fire".into() }]);
    assert!(matches!(Reader::new(Slow(vec![0xa1], 0)), Err(CaptureError::Read(_))));
    let mut reader = Reader::new(Slow(pcap(false, false, 1, &[]), 0)).unwrap();
    assert!(matches!(reader.next(), Err(CaptureError::NoFrame(Note::ReadFailed { frames: 0, .. }))));
    assert!(reader.next().unwrap().is_none());
}

#[test]
fn several_files_count_on() {
    let file = pcap(false, false, 1, &[Stamped::whole(AT, plain())]);
    let mut reader = Reader::new(Cursor::new(file[..file.len() - 1].to_vec())).unwrap();
    assert!(matches!(reader.next(), Err(CaptureError::NoFrame(_))));
    assert!(reader.then(Cursor::new(b"nothing".to_vec())).is_err());
    assert!(reader.next().unwrap().is_none());
    for number in 1..=2 {
        reader.then(Cursor::new(file.clone())).unwrap();
        assert_eq!(reader.next().unwrap().unwrap().frame, number);
        assert!(reader.next().unwrap().is_none());
    }
    reader.then(Cursor::new([&file[..], &[0; 5]].concat())).unwrap();
    assert_eq!(reader.next().unwrap().unwrap().frame, 3);
    assert!(reader.next().unwrap().is_none());
    assert_eq!(reader.notes(), [Note::Cut { frames: 3 }]);
    assert_eq!(reader.counts().frames, 3);
}

#[test]
fn large_blocks_are_passed_and_interfaces_are_bounded() {
    let names = block(4, false, &vec![0; CAPTURE_RECORD_BYTES_MAX]);
    let frame = enhanced(false, 0, AT, &Stamped::whole(AT, plain()));
    let interfaces = interface(false, 1, Some(9), None).repeat(CAPTURE_INTERFACES_MAX + 5);
    let file = [section(false), interfaces, names, frame].concat();
    let (found, _, notes) = read(&file).unwrap();
    assert_eq!((found, notes), (vec![line(1, 0, AT)], vec![Note::Skipped(5)]));
}

#[test]
fn statistics_and_simple_packets_are_told() {
    let counters = [
        &[0, 0, 0, 0][..],
        &[0; 8],
        &[5, 0, 8, 0],
        &7_u64.to_le_bytes(),
        &[7, 0, 8, 0],
        &2_u64.to_le_bytes(),
        &[0; 4],
    ]
    .concat();
    let simple = block(3, false, &[&[60, 0, 0, 0][..], &plain()].concat());
    let mut file = pcapng(1, &[Stamped::whole(AT, plain())]);
    file.extend([simple, block(5, false, &counters), block(5, false, &counters)].concat());
    let frame = Stamped::whole(AT, plain());
    file.extend([section(true), interface(true, 1, Some(9), None), enhanced(true, 0, AT, &frame)].concat());
    let (found, _, notes) = read(&file).unwrap();
    assert_eq!(found, [line(1, 0, AT), line(3, 0, AT)]);
    assert_eq!(notes, [Note::Untimed(1), Note::Dropped(9)]);
}
