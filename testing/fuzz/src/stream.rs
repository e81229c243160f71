//! PDUs on a stream that arrives in parts of any size: headers, AHS and data must come out unchanged, and data must be
//! placed in the task's buffer and nowhere else.

use std::ops::Range;
use std::time::Duration;

use area::{Pool, PoolLimits, Span};
use iscsi::digest;
use iscsi::machine::{Digests, Fatal, Machine, Placement, Received, TaskId, Transmit};
use iscsi_test::NOW;
use node::reassembly::{Advance, Reassembly};

use crate::{Source, heap};

const HEAP_MAX: usize = 16 << 20;
const PDUS_MAX: usize = 24;
const SEGMENT_MAX: u32 = 70_000;
/// Bytes of a task's buffer before and behind the placed data.
const MARGIN: usize = 5;
const UNTOUCHED: u8 = 0xee;
/// From `LARGE` bytes on a placement counts as large; at most `LITTLE` bytes behind it are read with it.
const LARGE: usize = 16 << 10;
const LITTLE: usize = 2 << 10;

thread_local! {
    static POOL: Pool = Pool::new(PoolLimits::default());
}

pub fn stream(bytes: &[u8]) {
    heap::within(HEAP_MAX, || POOL.with(|pool| run(&mut Source::new(bytes), pool)));
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Defect {
    None,
    HeaderDigest,
    DataDigest,
    TooLong,
}

struct Pdu {
    bhs: [u8; 48],
    ahs: Vec<u8>,
    data: Vec<u8>,
    placement: Placement,
    digests: Digests,
    defect: Defect,
    buffer: Option<Span>,
    /// Range on the wire of the bytes placed in the buffer.
    kept: Range<usize>,
}

impl Pdu {
    fn new(source: &mut Source<'_>, index: usize, digests: Digests, pool: &Pool) -> Self {
        let defect = match source.byte() {
            252 if digests.header => Defect::HeaderDigest,
            253 | 254 if digests.data => Defect::DataDigest,
            255 => Defect::TooLong,
            _ => Defect::None,
        };
        let length = if source.rarely(4) { 0 } else { source.number() % (SEGMENT_MAX + 1) };
        let ahs_words = if source.rarely(8) { source.byte() } else { 0 };
        let content = |salt: usize, length: usize| -> Vec<u8> {
            (0..length).map(|at| (at * 31 + (at >> 8) + salt * 73) as u8).collect()
        };
        let mut bhs: [u8; 48] = content(index, 48).try_into().expect("48 bytes");
        bhs[4] = ahs_words;
        let announced = if defect == Defect::TooLong { SEGMENT_MAX + 1 } else { length };
        bhs[5..8].copy_from_slice(&announced.to_be_bytes()[1..]);
        let placement = match source.byte() % 4 {
            _ if length == 0 => Placement::Nothing,
            0 => Placement::Inline,
            1 => Placement::Discard,
            _ => {
                let keep = if source.rarely(4) { source.number().clamp(1, length) } else { length };
                Placement::Task { task: TaskId(index as u32), offset: MARGIN as u32, length: keep }
            }
        };
        let buffer = match placement {
            Placement::Task { length, .. } => {
                let buffer = pool.take(length as usize + 2 * MARGIN).expect("memory");
                buffer.fill(0, &vec![UNTOUCHED; buffer.len()]);
                Some(buffer)
            }
            _ => None,
        };
        let (ahs, data) =
            (content(index + 99, usize::from(ahs_words) * 4), content(index + 7, length as usize));
        Self { bhs, ahs, data, placement, digests, defect, buffer, kept: 0..0 }
    }

    fn emit(&mut self, wire: &mut Vec<u8>) {
        wire.extend_from_slice(&self.bhs);
        wire.extend_from_slice(&self.ahs);
        if self.digests.header {
            wire.extend_from_slice(&digest::header(&self.bhs, &self.ahs));
            *wire.last_mut().expect("a digest") ^= u8::from(self.defect == Defect::HeaderDigest);
        }
        if self.data.is_empty() {
            return;
        }
        let start = wire.len();
        if let Placement::Task { length, .. } = self.placement {
            self.kept = start..start + length as usize;
        }
        wire.extend_from_slice(&self.data);
        // A peer may pad with any bytes.
        wire.resize(start + self.data.len().next_multiple_of(4), 0x5a);
        if self.digests.data {
            let digest = digest::of(&wire[start..]);
            wire.extend_from_slice(&digest);
            *wire.last_mut().expect("a digest") ^= u8::from(self.defect == Defect::DataDigest);
        }
    }
}

struct Expected<'a> {
    pdus: &'a [Pdu],
    at: usize,
    headed: bool,
}

impl Expected<'_> {
    fn next(&mut self) {
        self.at += 1;
        self.headed = false;
    }
}

impl Machine for Expected<'_> {
    fn receive_digests(&self) -> Digests {
        self.pdus[self.at].digests
    }

    fn data_segment_max(&self) -> u32 {
        SEGMENT_MAX
    }

    fn on_header(&mut self, bhs: &[u8; 48], ahs: &[u8], _: Duration) -> Result<(), Fatal> {
        let pdu = &self.pdus[self.at];
        assert!(!self.headed && pdu.bhs == *bhs && pdu.ahs == ahs, "header of PDU {}", self.at);
        assert!(matches!(pdu.defect, Defect::None | Defect::DataDigest), "PDU {} was taken", self.at);
        self.headed = true;
        if pdu.data.is_empty() {
            self.next();
        }
        Ok(())
    }

    fn on_header_digest_error(&mut self) -> Fatal {
        assert!(self.pdus[self.at].defect == Defect::HeaderDigest, "header digest of PDU {}", self.at);
        Fatal::HeaderDigest
    }

    fn placement(&self) -> Placement {
        assert!(self.headed, "placement of nothing");
        self.pdus[self.at].placement
    }

    fn on_data(&mut self, received: Received<'_>, _: Duration) -> Result<(), Fatal> {
        let pdu = &self.pdus[self.at];
        let intact = pdu.defect == Defect::None || !pdu.digests.data;
        match (received, pdu.placement) {
            (Received::DigestError, _) => assert!(!intact, "PDU {} arrived broken", self.at),
            (Received::Inline(bytes), Placement::Inline) => assert!(intact && bytes == pdu.data),
            (Received::Discarded, Placement::Discard) => assert!(intact),
            (Received::Placed, Placement::Task { length, .. }) => {
                let bytes = pdu.buffer.as_ref().expect("its buffer").as_slice();
                let end = MARGIN + length as usize;
                assert!(intact && bytes[MARGIN..end] == pdu.data[..length as usize], "PDU {}", self.at);
            }
            (received, placement) => panic!("{received:?} after {placement:?}"),
        }
        if let Some(buffer) = &pdu.buffer {
            let bytes = buffer.as_slice();
            let margins = [&bytes[..MARGIN], &bytes[bytes.len() - MARGIN..]];
            assert_eq!(margins, [[UNTOUCHED; MARGIN]; 2], "PDU {} went beyond its place", self.at);
        }
        self.next();
        Ok(())
    }

    fn poll_transmit(&mut self) -> Option<Transmit> {
        None
    }

    fn poll_timeout(&self) -> Option<Duration> {
        None
    }

    fn on_timeout(&mut self, _: Duration) -> Result<(), Fatal> {
        Ok(())
    }
}

fn run(source: &mut Source<'_>, pool: &Pool) {
    let digests = Digests { header: source.flag(), data: source.flag() };
    // Digests are negotiated after the first PDUs.
    let plain = source.below(4);
    let mut pdus = Vec::new();
    let mut wire = Vec::new();
    for index in 0..=source.below(PDUS_MAX) {
        let digests = if index < plain { Digests::default() } else { digests };
        let mut pdu = Pdu::new(source, index, digests, pool);
        pdu.emit(&mut wire);
        pdus.push(pdu);
    }
    let end = end_of(&pdus);
    let mut machine = Expected { pdus: &pdus, at: 0, headed: false };
    let mut stream = Reassembly::new(pool).expect("memory");
    let (mut given, mut now) = (0, NOW);
    loop {
        while machine.at < pdus.len() {
            match stream.advance(&mut machine, |task| pdus[task.index()].buffer.clone(), now) {
                Ok(Advance::Events) => {}
                Ok(Advance::Starved) => break,
                Err(error) => return assert_eq!((machine.at, Some(error)), end),
            }
        }
        if given == wire.len() {
            break;
        }
        let (place, room) = stream.places(pool, now);
        let kept = pdus.iter().map(|pdu| &pdu.kept).find(|kept| kept.contains(&given));
        let missing = kept.map_or(0, |kept| kept.end - given);
        assert_eq!(place.as_ref().map_or(0, Span::len), missing, "what is missing goes to its place");
        assert!(!room.is_empty() && (missing < LARGE || room.len() <= LITTLE), "{} read ahead", room.len());
        let capacity = (missing + room.len()).min(wire.len() - given);
        let count = match source.byte() {
            0..=63 => capacity,
            // To the end of the placement and slightly beyond.
            64..=95 => (missing + source.below(60)).clamp(1, capacity),
            _ => (source.number() as usize).clamp(1, capacity),
        };
        let bytes = &wire[given..given + count];
        let (direct, behind) = bytes.split_at(count.min(missing));
        if let Some(place) = place {
            place.fill(0, direct);
        }
        room.fill(0, behind);
        stream.on_received(count);
        given += count;
        now += Duration::from_millis(u64::from(source.byte()) * 8);
    }
    assert_eq!((machine.at, None), end, "all was given, not all has come out");
}

/// Number of PDUs that come out, and the error that ends the stream if not all do.
fn end_of(pdus: &[Pdu]) -> (usize, Option<Fatal>) {
    let fatal = |defect| match defect {
        Defect::HeaderDigest => Some(Fatal::HeaderDigest),
        Defect::TooLong => Some(Fatal::Protocol("data segment longer than MaxRecvDataSegmentLength")),
        Defect::None | Defect::DataDigest => None,
    };
    let first = pdus.iter().enumerate().find_map(|(at, pdu)| fatal(pdu.defect).map(|fatal| (at, fatal)));
    first.map_or((pdus.len(), None), |(at, fatal)| (at, Some(fatal)))
}
