//! One end: an engine, its driver and its application. What the engine returns is logged, so that two runs compare.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

use inet::{
    Arrived, Capacity, ConnectionId, Engine, Event, FrameId, HEAD_BYTES, HEADER_BYTES, Link, Owned, Settings,
    Source, Time, Transmit,
};

use super::device::{self, Packet};

/// The engine of a host: one that lives, or one that is made anew from a copy of its records for each event.
enum Machine {
    Lives(Box<Engine<'static>>),
    Moves(Box<Owned>),
}

pub(crate) struct Host {
    machine: Machine,
    /// Every output: two runs that differ only in `Machine` must agree.
    pub(crate) log: DefaultHasher,
    pub(crate) log_lines: Option<Vec<String>>,
    frames: Vec<Vec<u8>>,
    pub(crate) free: Vec<FrameId>,
    tails_free: u32,
    /// Memory of the application, region by region.
    pub(crate) memory: BTreeMap<u32, Vec<u8>>,
    pub(crate) ring: VecDeque<([u8; HEADER_BYTES], Transmit)>,
    pub(crate) consumed: u64,
    pub(crate) link: Link,
}

/// What is written over memory that was released: it never is a byte of a stream.
pub(crate) const POISON: u8 = 0xee;

impl Host {
    pub(crate) fn new(
        capacity: &Capacity,
        addresses: &[(IpAddr, u8)],
        link: Link,
        moves: bool,
        log: bool,
    ) -> Self {
        let settings =
            Settings { addresses: addresses.to_vec(), gateways: Vec::new(), secret: [link.mac[5]; 16] };
        let mut owned = Owned::new(capacity);
        let machine = if moves {
            Engine::new(owned.memory(), &settings, Time::ZERO);
            Machine::Moves(Box::new(owned))
        } else {
            let owned = Box::leak(Box::new(owned));
            Machine::Lives(Box::new(Engine::new(owned.memory(), &settings, Time::ZERO)))
        };
        Self {
            machine,
            log: DefaultHasher::new(),
            log_lines: log.then(Vec::new),
            frames: vec![Vec::new(); capacity.frames as usize],
            free: (0..capacity.frames).rev().collect(),
            tails_free: capacity.tails,
            memory: BTreeMap::new(),
            ring: VecDeque::new(),
            consumed: 0,
            link,
        }
    }

    /// One event.
    pub(crate) fn with<R>(&mut self, now: Time, event: impl FnOnce(&mut Engine<'_>) -> R) -> R {
        match &mut self.machine {
            Machine::Lives(engine) => event(engine),
            Machine::Moves(owned) => {
                *owned = owned.clone();
                event(&mut Engine::attach(owned.memory(), now))
            }
        }
    }

    pub(crate) fn note(&mut self, what: &str, value: &impl std::fmt::Debug) {
        let line = format!("{what} {value:?}");
        line.hash(&mut self.log);
        if let Some(lines) = &mut self.log_lines {
            lines.push(line);
        }
    }

    pub(crate) fn hash(&self) -> u64 {
        self.log.finish()
    }

    pub(crate) fn attach_driver(&mut self, now: Time) {
        let link = self.link;
        self.with(now, |engine| engine.on_attached(0, link, now));
    }

    /// A packet has arrived at the device.
    pub(crate) fn receive(&mut self, packet: &Packet, now: Time) {
        let has_tail = packet.bytes.len() > HEAD_BYTES as usize;
        let is_checked = !packet.was_on_wire || device::is_right(&packet.bytes);
        if self.free.is_empty() || has_tail && self.tails_free == 0 {
            return;
        }
        let frame = self.free.pop().expect("not empty");
        self.tails_free -= u32::from(has_tail);
        self.frames[frame as usize] = packet.bytes.clone();
        let bytes = packet.bytes.len().min(HEADER_BYTES);
        let header = packet.bytes[..bytes].to_vec();
        let (length, segment_bytes) = (packet.bytes.len() as u32, packet.segment_bytes);
        let arrived = Arrived { interface: 0, frame, header: &header, length, is_checked, segment_bytes };
        self.with(now, |engine| engine.on_frame(&arrived, now));
    }

    pub(crate) fn payload(&self, frame: FrameId, start: u32, length: u32) -> &[u8] {
        &self.frames[frame as usize][start as usize..(start + length) as usize]
    }

    /// Takes frames until the ring has `room` slots.
    pub(crate) fn transmit(&mut self, room: usize, now: Time) {
        while self.ring.len() < room {
            let mut header = [0; HEADER_BYTES];
            let Some(transmit) = self.with(now, |engine| engine.poll_transmit(&mut header, now)) else {
                break;
            };
            self.note("transmit", &(now, &header[..], transmit));
            self.ring.push_back((header, transmit));
        }
    }

    /// The driver writes the oldest frame of its ring.
    pub(crate) fn consume(&mut self, now: Time) -> Option<Packet> {
        let (header, transmit) = self.ring.pop_front()?;
        let mut payload = Vec::new();
        for source in transmit.sources.into_iter().flatten() {
            match source {
                Source::Client(it) => {
                    let region = &self.memory[&it.region];
                    let bytes = &region[it.offset as usize..(it.offset + it.length) as usize];
                    assert!(!bytes.contains(&POISON), "memory was released before the driver had read it");
                    payload.extend(bytes);
                }
                Source::Frame { frame, start, length } => payload.extend(self.payload(frame, start, length)),
            }
        }
        self.consumed += 1;
        let consumed = self.consumed;
        self.with(now, |engine| engine.on_transmitted(0, consumed, now));
        Some(device::gather(&header, &transmit, &payload))
    }

    pub(crate) fn take_free(&mut self, now: Time) {
        #[expect(clippy::redundant_closure_for_method_calls, reason = "the method is of one lifetime only")]
        while let Some(frame) = self.with(now, |engine| engine.poll_free()) {
            assert!(!self.free.contains(&frame), "a frame twice");
            self.tails_free += u32::from(self.frames[frame as usize].len() > HEAD_BYTES as usize);
            self.note("free", &frame);
            self.free.push(frame);
        }
    }

    pub(crate) fn event(&mut self, now: Time) -> Option<Event> {
        let event = self.with(now, |engine| engine.poll_event(0))?;
        self.note("event", &event);
        Some(event)
    }

    pub(crate) fn timeout(&mut self, now: Time) -> Option<Time> {
        let at = self.with(now, |engine| engine.poll_timeout());
        self.note("timeout", &at);
        at
    }

    pub(crate) fn ends(
        &mut self,
        connection: ConnectionId,
        now: Time,
    ) -> Option<(inet::Endpoint, inet::Endpoint)> {
        self.with(now, |engine| engine.ends(connection))
    }
}
