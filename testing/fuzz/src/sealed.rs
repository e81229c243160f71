//! Records from a peer with an authorised key, and arbitrary bytes, through `node/stream/sealed`: units across PDUs,
//! PDUs across units, several sequences of a transfer at once, rekeys, tasks that end early, and descriptors that do
//! not fit. A violation must be refused in the PDU that shows it; all other data comes out as it was sealed.

mod sender;

use std::cell::Cell;
use std::time::Duration;

use area::{Pool, PoolLimits, Span};
use iscsi::machine::{Digests, Fatal, Machine, Placement, Received, TaskId, Transmit};
use iscsi_test::NOW;
use node::reassembly::Advance;
use node::{Buffer, SealedReceive};
use seal::{Channel, Renewal, Sealer};

use crate::record::{ENTROPY, channels};
use crate::{Source, heap};
use sender::{MARGIN, Pdu, SEGMENT_MAX, Sender, UNTOUCHED, Verdict, content};

const HEAP_MAX: usize = 16 << 20;
const UNITS: [usize; 4] = [512, 1024, 4096, 65_536];

thread_local! {
    static POOL: Pool = Pool::new(PoolLimits::default());
}

pub fn sealed(bytes: &[u8]) {
    heap::within(HEAP_MAX, || POOL.with(|pool| run(&mut Source::new(bytes), pool)));
}

fn run(source: &mut Source<'_>, pool: &Pool) {
    let unit = source.pick(&UNITS);
    let mut again = source.clone();
    let ((initiator, Channel { sealer, opener, renewal, .. }), (_, twin)) =
        (channels(source), channels(&mut again));
    let buffer = Buffer::new(pool).expect("memory");
    let receive = SealedReceive::new(opener, unit, buffer);
    let keys = (sealer, renewal);
    // Arbitrary bytes from a peer without a key, or records.
    if source.rarely(16) {
        let chunks = source.clone();
        return Receiver::new(&[], receive, keys, pool).run(source.rest(), chunks);
    }
    let pdus = Sender::new(initiator, twin, unit).records(source, pool);
    let wire: Vec<u8> = pdus.iter().flat_map(|pdu| pdu.wire.iter().copied()).collect();
    Receiver::new(&pdus, receive, keys, pool).run(&wire, source.clone());
}

struct Expected<'a> {
    pdus: &'a [Pdu],
    at: &'a Cell<usize>,
    headed: bool,
}

impl<'a> Expected<'a> {
    fn pdu(&self) -> &'a Pdu {
        self.pdus.get(self.at.get()).expect("more PDUs come out than were sent")
    }

    fn next(&mut self) {
        self.at.set(self.at.get() + 1);
        self.headed = false;
    }
}

impl Machine for Expected<'_> {
    fn receive_digests(&self) -> Digests {
        Digests::default()
    }

    fn data_segment_max(&self) -> u32 {
        SEGMENT_MAX as u32
    }

    fn on_header(&mut self, bhs: &[u8; 48], ahs: &[u8], _: Duration) -> Result<(), Fatal> {
        let (at, pdu) = (self.at.get(), self.pdu());
        assert!(pdu.verdict != Verdict::HeaderRefused, "the head of PDU {at} was accepted");
        assert!(!self.headed && pdu.header == [bhs, ahs].concat(), "the header of PDU {at}");
        self.headed = true;
        if pdu.placement == Placement::Nothing {
            self.next();
        }
        Ok(())
    }

    fn on_header_digest_error(&mut self) -> Fatal {
        unreachable!("there are no digests")
    }

    fn placement(&self) -> Placement {
        assert!(self.headed, "placement of nothing");
        self.pdu().placement
    }

    fn on_data(&mut self, received: Received<'_>, _: Duration) -> Result<(), Fatal> {
        let (at, pdu) = (self.at.get(), self.pdu());
        assert!(self.headed && pdu.verdict != Verdict::DataRefused, "the data of PDU {at} was accepted");
        match (received, pdu.placement) {
            (Received::Inline(bytes), Placement::Inline) => assert!(bytes == pdu.inline, "PDU {at}"),
            (Received::Discarded, Placement::Discard) | (Received::Placed, Placement::Task { .. }) => {}
            (received, placement) => panic!("{received:?} after {placement:?}"),
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

/// The edge: feeds the bytes in parts and checks the results.
struct Receiver<'a> {
    pdus: &'a [Pdu],
    receive: SealedReceive,
    keys: (Sealer, Renewal),
    pool: &'a Pool,
}

impl<'a> Receiver<'a> {
    fn new(pdus: &'a [Pdu], receive: SealedReceive, keys: (Sealer, Renewal), pool: &'a Pool) -> Self {
        Self { pdus, receive, keys, pool }
    }

    fn on_control(&mut self) {
        let Some((kind, message, opener)) = self.receive.control() else { return };
        let (sealer, renewal) = &mut self.keys;
        renewal.open(kind, message, sealer, opener, Duration::ZERO).expect("one offer at a time");
        renewal.seal(sealer, opener, &ENTROPY, Duration::ZERO, &mut Vec::new()).expect("a right offer");
    }

    fn run(mut self, wire: &[u8], mut source: Source<'_>) {
        let at = Cell::new(0);
        let mut machine = Expected { pdus: self.pdus, at: &at, headed: false };
        let (mut given, mut now) = (0, NOW);
        loop {
            loop {
                let (index, pdus) = (at.get(), self.pdus);
                let buffer_of = |task: TaskId| {
                    let task_of = |pdu: &Pdu| matches!(pdu.placement, Placement::Task { task: known, .. } if known == task);
                    pdus.get(at.get()).filter(|pdu| task_of(pdu))?.buffer.clone()
                };
                match self.receive.advance(&mut machine, buffer_of, now) {
                    Ok(Advance::Events) if at.get() > index => self.check(&self.pdus[index], index),
                    Ok(Advance::Events) => {}
                    Ok(Advance::Starved) => break,
                    Err(_) => return self.check_refused(at.get()),
                }
                self.on_control();
                for pdu in self.pdus.get(index..at.get()).unwrap_or_default() {
                    pdu.ended.iter().for_each(|task| self.receive.end_task(*task));
                }
            }
            if given == wire.len() {
                return self.check_end(at.get(), wire);
            }
            let places = self.receive.places(self.pool, now);
            let places: Vec<Span> = [places.0, places.1].into_iter().flatten().collect();
            let room: usize = places.iter().map(Span::len).sum();
            assert!(room > 0 && places.iter().all(|place| !place.is_empty()), "nowhere to receive");
            let most = room.min(wire.len() - given);
            let count = match source.byte() {
                0..=127 => most,
                _ => (source.number() as usize).clamp(1, most),
            };
            let mut bytes = &wire[given..given + count];
            for place in &places {
                let (here, rest) = bytes.split_at(bytes.len().min(place.len()));
                place.fill(0, here);
                bytes = rest;
            }
            self.receive.on_received(count);
            given += count;
            now += Duration::from_millis(u64::from(source.byte()) * 8);
        }
    }

    fn check(&self, pdu: &Pdu, index: usize) {
        let (Placement::Task { task, .. }, Some(buffer)) = (pdu.placement, &pdu.buffer) else { return };
        let (bytes, is_whole) = (buffer.as_slice(), self.receive.is_whole(task));
        // The units must be as sealed, unless a wrong descriptor may be undetected (`!is_sure`) and the task is not
        // whole.
        if pdu.is_sure || is_whole {
            for unit in &pdu.whole {
                let is_right = unit.clone().all(|at| bytes[at] == content(pdu.serial, at));
                assert!(is_right, "{unit:?} of PDU {index} is not what was sealed");
            }
        }
        if let Some(expected) = pdu.is_whole.filter(|_| pdu.is_sure) {
            assert_eq!(is_whole, expected, "whether PDU {index} leaves a unit open");
        }
        let behind = &bytes[pdu.end.min(bytes.len())..];
        let kept = behind.len() <= MARGIN && behind.iter().all(|byte| *byte == UNTOUCHED);
        assert!(kept, "PDU {index} went too far");
    }

    /// Checks the state after PDU `index` ended the connection.
    fn check_refused(&self, index: usize) {
        let reason = self.pdus.iter().take(index + 1).position(|pdu| pdu.verdict != Verdict::Accepted);
        assert!(reason.is_some() || self.pdus.is_empty(), "PDU {index} was refused without a reason");
        let Some(Pdu { wiped: Some(unit), buffer: Some(buffer), .. }) = self.pdus.get(index) else { return };
        if reason == Some(index) {
            let cleared = buffer.as_slice()[unit.clone()].iter().all(|byte| *byte == 0);
            assert!(cleared, "what does not open is left");
        }
    }

    /// Checks the state after all bytes were fed and the connection lives: `index` PDUs have come out.
    fn check_end(&self, index: usize, wire: &[u8]) {
        let stop = self
            .pdus
            .iter()
            .position(|pdu| [Verdict::DataRefused, Verdict::HeaderRefused].contains(&pdu.verdict));
        match stop {
            None => {
                assert!(index == self.pdus.len(), "PDU {index} has not come out, {} bytes given", wire.len());
            }
            // An altered length may make the receiver wait for more bytes.
            Some(stop) => assert!(
                index == stop && self.pdus[stop].verdict == Verdict::HeaderRefused,
                "PDU {stop} was not refused"
            ),
        }
    }
}
