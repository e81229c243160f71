//! The engine of TCP/IP against a peer, a driver and applications that do what the bytes say, with copies of its records
//! to another address in between.
//!
//! Holds: memory of an application that was released is referred to by no frame, sent or at the driver; bytes are
//! delivered in order, each once; a frame comes back once, and not while an application has it; nothing follows the end
//! of a connection; a copy of the records goes on as the engine would have. When all connections are gone, everything
//! is free.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use inet::packet::{self, Flags, Parsed, TcpHeader};
use inet::{
    Address, Algorithm, Arrived, Capacity, ClientId, ConnectionId, Endpoint, Engine, Event, HEADER_BYTES,
    Link, ListenerId, Options, Owned, PayloadRef, Refusal, SeqNumber, Settings, Source as Bytes, Time,
    VNET_BYTES,
};

use crate::{Source, heap};

const HEAP_MAX: usize = 4 << 20;
const CAPACITY: Capacity = Capacity {
    connections: 4,
    listeners: 2,
    pieces: 24,
    segments: 16,
    time_waits: 2,
    neighbours: 4,
    frames: 24,
    tails: 4,
    clients: CLIENTS,
};
const CLIENTS: u32 = 2;
const OURS: [u8; 6] = [2, 0, 0, 0, 0, 1];
const THEIRS: [u8; 6] = [2, 0, 0, 0, 0, 2];
const PORT: u16 = 80;
/// Of one call, until the harness takes it for an endless loop.
const FRAMES_MAX: usize = 20_000;
const TIMERS_MAX: usize = 1000;
/// Largest piece, so that a piece's offset names its ticket.
const PIECE_BYTES_MAX: u32 = 1 << 16;

pub fn inet_engine(bytes: &[u8]) {
    heap::within(HEAP_MAX, || run(&mut Source::new(bytes)));
}

fn run(source: &mut Source<'_>) {
    let mut owned = Owned::new(&CAPACITY);
    let settings = Settings {
        addresses: vec![(ip("10.0.0.1"), 24), (ip("fd00::1"), 64)],
        gateways: vec![ip("10.0.0.254")],
        secret: [9; 16],
    };
    let mut world = World::new();
    let mut engine = Engine::new(owned.memory(), &settings, world.now);
    world.open(&mut engine);
    loop {
        let is_over = world.steps(&mut engine, source);
        let timeout = engine.poll_timeout();
        drop(engine);
        // Another address, and all that an engine derives from its records is derived again.
        owned = owned.clone();
        engine = Engine::attach(owned.memory(), world.now);
        assert_eq!(engine.poll_timeout(), timeout, "timers of a copy");
        if is_over {
            break;
        }
    }
    world.end(&mut engine, source.flag());
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn at(text: &str, port: u16) -> Endpoint {
    Endpoint { address: ip(text).into(), port }
}

/// A connection as its client sees it.
#[derive(Default)]
struct Conversation {
    client: ClientId,
    /// Length of each piece by ticket, the first ticket being 1.
    tickets: Vec<Vec<u32>>,
    released: u64,
    received: u64,
    is_connected: bool,
    has_ended: bool,
}

struct World {
    now: Time,
    sent: u64,
    consumed: u64,
    /// Bytes of frames that the engine has.
    given: HashMap<u32, u32>,
    /// Of them, those that a client has.
    delivered: HashMap<u32, ClientId>,
    /// Slots of the driver: position, and the memory to which each refers.
    at_driver: VecDeque<(u64, Vec<PayloadRef>)>,
    conversations: Vec<Conversation>,
    /// Conversations by connection, those that have ended too.
    ids: HashMap<ConnectionId, u32>,
    /// The last of our segments between two ends.
    seen: Vec<TcpHeader>,
    listener: Option<ListenerId>,
    last: Vec<u8>,
    /// The peer answers questions for its MAC address.
    answers: bool,
}

impl World {
    fn new() -> Self {
        Self {
            now: Time(5_000_000),
            sent: 0,
            consumed: 0,
            given: HashMap::new(),
            delivered: HashMap::new(),
            at_driver: VecDeque::new(),
            conversations: Vec::new(),
            ids: HashMap::new(),
            seen: Vec::new(),
            listener: None,
            last: Vec::new(),
            answers: true,
        }
    }

    /// A driver, a listener, a connection that the engine opened and one that the peer opened.
    fn open(&mut self, engine: &mut Engine<'_>) {
        engine.on_attached(0, Link { mac: OURS, mtu: 1500, segments: true }, self.now);
        self.listen(engine, 0);
        self.connect(engine, 1, at("10.0.0.2", 7), Options::default());
        self.transmit(engine, FRAMES_MAX);
        let answer = |ours: &TcpHeader, flags| TcpHeader {
            source: ours.destination,
            destination: ours.source,
            seq: SeqNumber(9000),
            ack: ours.seq + 1,
            flags,
            window: 60_000,
            mss: Some(1460),
            window_scale: Some(7),
            has_sack_permitted: true,
            timestamps: ours.timestamps.map(|(value, _)| (1, value)),
            ..TcpHeader::default()
        };
        let syn = *self.seen.last().expect("a SYN");
        self.arrive(engine, &answer(&syn, Flags::SYN | Flags::ACK));
        let remote = TcpHeader {
            source: at("fd00::1", PORT),
            destination: at("fd00::2", 1000),
            timestamps: Some((0, 0)),
            ..TcpHeader::default()
        };
        self.arrive(engine, &answer(&remote, Flags::SYN));
        self.transmit(engine, FRAMES_MAX);
        let syn = *self.seen.last().expect("a SYN");
        let last = answer(&syn, Flags::ACK);
        self.arrive(engine, &TcpHeader { seq: SeqNumber(9001), mss: None, window_scale: None, ..last });
        self.accept(engine);
        self.events(engine, FRAMES_MAX);
        assert_eq!(self.ids.len(), 2, "two open connections");
    }

    /// Until the bytes are used up (true), or the records are to be copied.
    fn steps(&mut self, engine: &mut Engine<'_>, source: &mut Source<'_>) -> bool {
        while !source.is_empty() {
            let choice = source.byte();
            match choice {
                0..=79 => self.segment(engine, source),
                80..=91 => self.damaged(engine, source),
                92..=99 => {
                    let bytes = source.some(HEADER_BYTES);
                    let length = (bytes.len() as u32).wrapping_add(source.number() % 3000);
                    let frame = self.frame(engine);
                    self.give(engine, frame, bytes, length, 0);
                }
                100..=119 => self.send(engine, source),
                120..=143 => {
                    let count = source.below(32);
                    self.transmit(engine, count);
                }
                144..=159 => {
                    let count = source.below(16);
                    self.events(engine, count);
                }
                160..=171 => self.release(engine, source),
                172..=183 => self.consume(engine, source),
                184..=203 => self.wait(engine, source),
                204..=207 => self.accept(engine),
                208..=211 => {
                    let (remote, port) =
                        (source.pick(&["10.0.0.2", "fd00::2", "8.8.8.8", "10.0.0.9"]), source.byte());
                    let options = options(source);
                    self.connect(engine, u32::from(port) % CLIENTS, at(remote, port.into()), options);
                }
                212..=214 => self.listen(engine, u32::from(source.byte()) % CLIENTS),
                215..=217 => {
                    let id = self.id(source);
                    let _ = engine.shutdown(id, self.now);
                }
                218..=220 => {
                    let id = self.id(source);
                    let _ = engine.close(id, self.now);
                    self.forget(engine, id);
                }
                221..=222 => {
                    let id = self.id(source);
                    let _ = engine.abort(id, self.now);
                }
                223..=226 => {
                    let (id, options) = (self.id(source), options(source));
                    let _ = engine.set_options(id, options);
                }
                227..=230 => {
                    // Never below what `net nic` accepts for an interface; larger and smaller ones come from the peer.
                    let mtu = source.pick(&[1500, 9000, 1280, 576, 68]);
                    let segments = source.flag();
                    engine.on_attached(0, Link { mac: OURS, mtu, segments }, self.now);
                }
                231 => self.client_gone(engine, u32::from(source.byte()) % CLIENTS),
                232..=235 => self.answers = !self.answers,
                _ => return false,
            }
            self.take_free(engine);
        }
        true
    }

    /// A connection that there is or was, or one that there never was.
    fn id(&self, source: &mut Source<'_>) -> ConnectionId {
        let choice = u32::from(source.byte());
        let key = choice % (self.conversations.len() as u32 + 1);
        let known = self.ids.iter().find(|(_, it)| **it == key).map(|(id, _)| *id);
        known.unwrap_or(ConnectionId { index: choice, generation: choice })
    }

    /// A frame that the driver has.
    fn frame(&self, engine: &Engine<'_>) -> u32 {
        let free = (0..CAPACITY.frames).find(|frame| !self.given.contains_key(frame));
        let free = free.unwrap_or(0);
        assert_eq!(engine.holds(free), self.given.contains_key(&free));
        free
    }

    fn give(&mut self, engine: &mut Engine<'_>, frame: u32, header: &[u8], length: u32, segment_bytes: u16) {
        // What no driver says is ignored, and the frame stays the driver's.
        if frame < CAPACITY.frames && header.len() <= length as usize {
            self.given.entry(frame).or_insert(length);
        }
        let arrived = Arrived { interface: 0, frame, header, length, is_checked: true, segment_bytes };
        engine.on_frame(&arrived, self.now);
        self.take_free(engine);
    }

    fn arrive(&mut self, engine: &mut Engine<'_>, tcp: &TcpHeader) {
        let mut header = [0; HEADER_BYTES];
        let emitted = packet::emit_tcp(&mut header, THEIRS, OURS, tcp);
        self.last = header[VNET_BYTES..][..usize::from(emitted.header_bytes)].to_vec();
        let (bytes, length) = (self.last.clone(), self.last.len() as u32 + tcp.payload_bytes);
        let frame = self.frame(engine);
        self.give(engine, frame, &bytes, length, if tcp.payload_bytes > 1448 { 1448 } else { 0 });
    }

    /// A segment that continues what was seen, with some fields beside the point.
    fn segment(&mut self, engine: &mut Engine<'_>, source: &mut Source<'_>) {
        let choice = source.byte();
        let ours = self.seen.get(usize::from(choice) % (self.seen.len() + 1)).copied().unwrap_or(TcpHeader {
            source: at("10.0.0.1", PORT),
            destination: at("10.0.0.2", 1000 + u16::from(choice)),
            ..TcpHeader::default()
        });
        let near = |source: &mut Source<'_>| match source.byte() {
            0..=191 => 0,
            192..=223 => u32::from(source.byte()).wrapping_sub(128),
            224..=247 => u32::from(source.u16()).wrapping_sub(1 << 15),
            _ => source.u32(),
        };
        let flags = source.pick(&[0x10, 0x18, 0x10, 0x11, 0x02, 0x12, 0x14, 0x04, 0x30, 0x00, 0x29, 0x06]);
        let (seq, ack) = (near(source), near(source));
        let window = source.pick(&[60_000, 1000, 0, 1, 65_535]);
        let payload_bytes = if source.flag() { source.number() % 65_000 } else { 0 };
        let mut tcp = TcpHeader {
            source: ours.destination,
            destination: ours.source,
            seq: SeqNumber(ours.ack.0.wrapping_add(seq)),
            ack: SeqNumber((ours.seq + ours.sequence_length()).0.wrapping_add(ack)),
            flags: Flags(flags),
            window,
            payload_bytes,
            ..TcpHeader::default()
        };
        if !source.rarely(16) {
            let clock = (self.now.0 / 1000) as u32;
            tcp.timestamps = ours.timestamps.map(|(value, _)| (clock.wrapping_add(near(source)), value));
        }
        if tcp.flags.has(Flags::SYN) {
            tcp.mss = Some(source.pick(&[1460, 536, 48, 1, 0, 65_535])).filter(|_| !source.rarely(8));
            tcp.window_scale = Some(source.byte() % 15).filter(|_| !source.rarely(8));
            tcp.has_sack_permitted = !source.rarely(8);
            tcp.timestamps = Some((1, 0)).filter(|_| !source.rarely(8));
        } else {
            tcp.sack_count = source.byte().saturating_sub(200) % 4;
            for range in &mut tcp.sack[..usize::from(tcp.sack_count)] {
                let start =
                    SeqNumber(ours.seq.0.wrapping_sub(u32::from(source.u16())).wrapping_add(near(source)));
                *range = (start, start + source.number() % 70_000);
            }
        }
        self.arrive(engine, &tcp);
    }

    /// The last segment again, as a driver might deliver it that is broken.
    fn damaged(&mut self, engine: &mut Engine<'_>, source: &mut Source<'_>) {
        let mut header = self.last.clone();
        while source.flag() {
            let at = usize::from(source.byte());
            if let Some(byte) = header.get_mut(at) {
                *byte = source.byte();
            }
        }
        if source.rarely(4) {
            header.truncate(usize::from(source.byte()));
        }
        let length = (header.len() as u32).wrapping_add(source.number());
        let frame = if source.rarely(4) { source.number() } else { self.frame(engine) };
        self.give(engine, frame, &header, length, source.number() as u16);
    }

    fn send(&mut self, engine: &mut Engine<'_>, source: &mut Source<'_>) {
        let id = self.id(source);
        let Some(&key) = self.ids.get(&id) else {
            let payload = PayloadRef { length: 9, ..PayloadRef::default() };
            assert!(engine.send(id, 1, &[payload], self.now).is_err());
            return;
        };
        let conversation = &mut self.conversations[key as usize];
        let ticket = conversation.tickets.len() as u64 + 1;
        let lengths: Vec<u32> =
            (0..1 + source.below(4)).map(|_| 1 + source.number() % PIECE_BYTES_MAX).collect();
        let pieces: Vec<_> = (0..)
            .zip(&lengths)
            .map(|(number, &length)| PayloadRef {
                region: key,
                generation: number,
                offset: (ticket as u32) << 16,
                length: length.min(PIECE_BYTES_MAX - 1),
            })
            .collect();
        match engine.send(id, ticket, &pieces, self.now) {
            Ok(()) => {
                assert!(!conversation.has_ended, "sent behind the end");
                conversation.tickets.push(pieces.iter().map(|piece| piece.length).collect());
            }
            Err(refusal) => assert!(refusal != Refusal::Invalid),
        }
    }

    fn transmit(&mut self, engine: &mut Engine<'_>, count: usize) {
        for number in 0..count {
            assert!(number + 1 < FRAMES_MAX, "frames without end");
            let mut header = [0xaa; HEADER_BYTES];
            let Some(transmit) = engine.poll_transmit(&mut header, self.now) else { return };
            self.sent += 1;
            assert_eq!(transmit.interface, 0);
            let bytes = &header[VNET_BYTES..][..usize::from(transmit.header_bytes)];
            let mut length = bytes.len() as u32;
            let mut references = Vec::new();
            for it in transmit.sources.into_iter().flatten() {
                match it {
                    Bytes::Client(payload) => {
                        assert!(payload.length > 0);
                        self.check_reference(&payload);
                        length += payload.length;
                        references.push(payload);
                    }
                    Bytes::Frame { frame, start, length: count } => {
                        assert!(start + count <= self.given[&frame], "bytes beyond a frame");
                        length += count;
                    }
                }
            }
            if let Some(submitted) = transmit.submitted {
                let conversation = &self.conversations[self.ids[&submitted.connection] as usize];
                assert_eq!(submitted.client, conversation.client);
                assert!((1..=conversation.tickets.len() as u64).contains(&submitted.ticket));
            }
            self.at_driver.push_back((self.sent, references));
            let arrived =
                Arrived { interface: 0, frame: 0, header: bytes, length, is_checked: true, segment_bytes: 0 };
            match packet::parse(&arrived) {
                Parsed::Tcp(tcp) => {
                    self.seen.retain(|it| (it.source, it.destination) != (tcp.source, tcp.destination));
                    if self.seen.len() == 8 {
                        self.seen.remove(0);
                    }
                    self.seen.push(tcp);
                }
                Parsed::Arp | Parsed::Icmp(_) if self.answers => self.answer(engine, bytes),
                Parsed::Arp | Parsed::Icmp(_) => {}
                other => panic!("sent {other:?}"),
            }
        }
    }

    /// Memory that is referred to belongs to the engine.
    fn check_reference(&self, payload: &PayloadRef) {
        let conversation = &self.conversations[payload.region as usize];
        let ticket = u64::from(payload.offset >> 16);
        assert!(ticket > conversation.released, "memory that was released is sent");
        let pieces = &conversation.tickets[ticket as usize - 1];
        let end = (payload.offset & 0xffff) + payload.length;
        assert!(end <= pieces[payload.generation as usize], "bytes beyond a piece");
    }

    /// The peer answers questions for MAC addresses.
    fn answer(&mut self, engine: &mut Engine<'_>, question: &[u8]) {
        let mut reply = question.to_vec();
        reply[..6].copy_from_slice(&OURS);
        reply[6..12].copy_from_slice(&THEIRS);
        if question[12..14] == [8, 6] {
            if question[21] != 1 || question[28..32] == question[38..42] {
                return;
            }
            reply[21] = 2;
            reply[22..28].copy_from_slice(&THEIRS);
            reply[28..32].copy_from_slice(&question[38..42]);
            reply[32..38].copy_from_slice(&OURS);
            reply[38..42].copy_from_slice(&question[28..32]);
        } else {
            // A solicitation becomes an advertisement, solicited, from its target.
            if question[12..14] != [0x86, 0xdd] || question[54] != 135 {
                return;
            }
            reply[22..38].copy_from_slice(&question[62..78]);
            reply[38..54].copy_from_slice(&question[22..38]);
            reply[54] = 136;
            reply[58] = 0x60;
            reply[78] = 2;
            reply[80..86].copy_from_slice(&THEIRS);
        }
        let frame = self.frame(engine);
        let length = reply.len() as u32;
        self.give(engine, frame, &reply, length, 0);
    }

    fn consume(&mut self, engine: &mut Engine<'_>, source: &mut Source<'_>) {
        let frames = match source.byte() {
            // What a driver may not say: less than before, and more than there are.
            0..=15 => self.consumed.saturating_sub(1),
            16..=31 => self.sent + u64::from(source.byte()) + 1,
            count => (self.consumed + u64::from(count) - 31).min(self.sent),
        };
        engine.on_transmitted(0, frames, self.now);
        if (self.consumed..=self.sent).contains(&frames) {
            self.consumed = frames;
        }
        self.at_driver.retain(|(position, _)| *position > self.consumed);
    }

    fn events(&mut self, engine: &mut Engine<'_>, count: usize) {
        for client in 0..CLIENTS {
            for number in 0..count {
                assert!(number + 1 < FRAMES_MAX, "events without end");
                let Some(event) = engine.poll_event(client) else { break };
                self.on_event(client, event);
            }
        }
    }

    fn on_event(&mut self, client: ClientId, event: Event) {
        let connection = match event {
            Event::Incoming { .. } => return,
            Event::Connected { connection }
            | Event::Received { connection, .. }
            | Event::PeerClosed { connection }
            | Event::Released { connection, .. }
            | Event::Room { connection }
            | Event::Ended { connection, .. } => connection,
        };
        let key = *self.ids.get(&connection).expect("a connection of a client");
        let conversation = &mut self.conversations[key as usize];
        assert_eq!(conversation.client, client, "an event of another client");
        assert!(!conversation.has_ended, "{event:?} behind the end");
        match event {
            Event::Connected { .. } => {
                assert!(!conversation.is_connected, "connected again");
                conversation.is_connected = true;
            }
            Event::Received { frame, start, length, offset, .. } => {
                assert_eq!(offset, conversation.received, "bytes out of order");
                conversation.received += u64::from(length);
                assert!(length > 0 && start + length <= self.given[&frame], "bytes beyond a frame");
                let before = self.delivered.insert(frame, client);
                assert!(before.is_none_or(|before| before == client), "a frame of two clients");
            }
            Event::Released { ticket, .. } => {
                assert!(ticket > conversation.released && ticket <= conversation.tickets.len() as u64);
                conversation.released = ticket;
                let mut references = self.at_driver.iter().flat_map(|(_, references)| references);
                let is_referred =
                    references.any(|it| it.region == key && u64::from(it.offset >> 16) <= ticket);
                assert!(!is_referred, "memory was released to which the driver has a reference");
            }
            Event::Ended { .. } => conversation.has_ended = true,
            Event::PeerClosed { .. } | Event::Room { .. } | Event::Incoming { .. } => {}
        }
    }

    fn release(&mut self, engine: &mut Engine<'_>, source: &mut Source<'_>) {
        let client = u32::from(source.byte()) % (CLIENTS + 1);
        let frame =
            if source.rarely(8) { source.number() } else { u32::from(source.byte()) % CAPACITY.frames };
        let is_its = self.delivered.get(&frame) == Some(&client);
        let result = engine.release(client, frame, self.now);
        assert_eq!(result.is_ok(), is_its, "{result:?}");
        if is_its {
            self.delivered.remove(&frame);
        }
    }

    fn take_free(&mut self, engine: &mut Engine<'_>) {
        while let Some(frame) = engine.poll_free() {
            assert!(self.given.remove(&frame).is_some(), "a frame comes back that the driver has");
            assert!(!self.delivered.contains_key(&frame), "a frame comes back that a client has");
        }
    }

    fn wait(&mut self, engine: &mut Engine<'_>, source: &mut Source<'_>) {
        let us = match source.byte() {
            0..=63 => u64::from(source.byte()),
            64..=159 => 100 * u64::from(source.u16()),
            160..=239 => 10_000 * u64::from(source.u16()),
            _ => engine.poll_timeout().map_or(1, |at| at.since(self.now)),
        };
        self.now = self.now.after(us);
        for _ in 0..TIMERS_MAX {
            if engine.poll_timeout().is_none_or(|at| at > self.now) {
                return;
            }
            engine.on_timer(self.now);
            self.transmit(engine, FRAMES_MAX);
        }
        panic!("a timer goes off for ever");
    }

    fn accept(&mut self, engine: &mut Engine<'_>) {
        let Some(listener) = self.listener else { return };
        let Some(id) = engine.accept(listener) else { return };
        self.insert(id, 0, true);
    }

    fn insert(&mut self, id: ConnectionId, client: ClientId, is_connected: bool) {
        let key = self.conversations.len() as u32;
        assert!(self.ids.insert(id, key).is_none(), "a name that was used before");
        self.conversations.push(Conversation { client, is_connected, ..Conversation::default() });
    }

    fn connect(&mut self, engine: &mut Engine<'_>, client: ClientId, remote: Endpoint, options: Options) {
        if let Ok(id) = engine.connect(client, Endpoint::default(), remote, options, self.now) {
            self.insert(id, client, false);
        }
    }

    /// Of client 0, whose connections `accept` takes; another one's is closed again.
    fn listen(&mut self, engine: &mut Engine<'_>, client: ClientId) {
        if let Some(listener) = self.listener.take() {
            engine.close_listener(listener, self.now);
        }
        let unspecified = |text| at(text, PORT);
        for text in ["0.0.0.0", "::"] {
            if let Ok(listener) = engine.listen(client, unspecified(text), 2, Options::default()) {
                if client == 0 && text == "::" {
                    self.listener = Some(listener);
                } else {
                    engine.close_listener(listener, self.now);
                }
            }
        }
    }

    /// `close` says that the client wants nothing more: what was delivered stays its own.
    fn forget(&mut self, engine: &mut Engine<'_>, id: ConnectionId) {
        if self.ids.contains_key(&id) {
            assert!(engine.send(id, u64::MAX, &[], self.now).is_err(), "sent behind close");
        }
    }

    fn client_gone(&mut self, engine: &mut Engine<'_>, client: ClientId) {
        engine.on_client_gone(client, self.now);
        self.delivered.retain(|_, its| *its != client);
        self.take_free(engine);
        assert!(engine.poll_event(client).is_none(), "an event of a client that is gone");
        for conversation in self.conversations.iter_mut().filter(|it| it.client == client) {
            conversation.has_ended = true;
        }
        if client == 0 {
            self.listener = None;
        }
        let is_referred = |payload: &PayloadRef| self.conversations[payload.region as usize].client == client;
        let is_waiting = self.at_driver.iter().any(|(_, references)| references.iter().any(is_referred));
        assert!(
            !(engine.is_drained(client) && is_waiting),
            "a client that is drained has memory at the driver"
        );
    }

    /// All clients go, or abort and take what is left; then all records are free.
    fn end(&mut self, engine: &mut Engine<'_>, is_abrupt: bool) {
        self.answers = true;
        if is_abrupt {
            (0..CLIENTS).for_each(|client| self.client_gone(engine, client));
        } else {
            self.accept(engine);
            if let Some(listener) = self.listener.take() {
                engine.close_listener(listener, self.now);
            }
        }
        for _ in 0..TIMERS_MAX {
            let ids: Vec<_> = self.ids.keys().copied().collect();
            for id in ids {
                let _ = engine.abort(id, self.now);
            }
            self.transmit(engine, FRAMES_MAX);
            engine.on_transmitted(0, self.sent, self.now);
            self.consumed = self.sent;
            self.at_driver.clear();
            self.events(engine, FRAMES_MAX);
            let delivered: Vec<_> = self.delivered.drain().collect();
            for (frame, client) in delivered {
                engine.release(client, frame, self.now).expect("a frame of the client");
            }
            self.take_free(engine);
            let Some(at) = engine.poll_timeout() else { break };
            self.now = self.now.max(at);
            engine.on_timer(self.now);
        }
        assert_eq!(engine.poll_timeout(), None, "a timer without a connection");
        assert!(self.given.is_empty(), "frames that do not come back: {:?}", self.given);
        assert!((0..CLIENTS).all(|client| engine.is_drained(client)));
        // As many connections as there can be, an equal share of each client, each with its reserved pieces.
        engine.on_attached(0, Link { mac: OURS, mtu: 1500, segments: true }, self.now);
        for number in 0..CAPACITY.connections {
            let (client, remote) = (number % CLIENTS, at("10.0.0.2", number as u16 + 1));
            let id = engine.connect(client, Endpoint::default(), remote, Options::default(), self.now);
            let payload = PayloadRef { length: 1, ..PayloadRef::default() };
            engine.send(id.expect("a free record"), 1, &[payload; 4], self.now).expect("free pieces");
        }
        assert!(engine.is_local(Address::from(ip("10.0.0.1"))));
    }
}

fn options(source: &mut Source<'_>) -> Options {
    Options {
        no_delay: source.flag(),
        algorithm: source.pick(&[Algorithm::Cubic, Algorithm::NewReno]),
        keep_alive_s: source.pick(&[0, 20, 1]),
        receive_bytes_max: source.pick(&[4 << 20, 65_535, 1, 0, u32::MAX]),
    }
}
