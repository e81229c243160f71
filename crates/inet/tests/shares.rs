//! Peers and applications that use up what they can: connections that are never accepted, connections that are closed and
//! do not end, frames of bytes that are not read. Others go on, and each drop is counted.

use std::collections::VecDeque;
use std::net::IpAddr;

use inet::packet::{self, Flags, TcpHeader};
use inet::{
    Address, Arrived, Capacity, ConnectionId, Drops, Ended, Endpoint, Engine, Event, FrameId, HEADER_BYTES,
    Link, ListenerId, Options, Owned, PayloadRef, Refusal, SeqNumber, Settings, Time, VNET_BYTES,
};

const OURS: [u8; 6] = [2, 0, 0, 0, 0, 1];
const THEIRS: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// An equal share is 32 connections: 8 orphans, a backlog of 16, and 5 connections of room while there are orphans.
const CAPACITY: Capacity = Capacity {
    connections: 64,
    listeners: 8,
    pieces: 512,
    segments: 512,
    time_waits: 4,
    neighbours: 4,
    frames: 256,
    tails: 32,
    clients: 2,
};
const SHARE: u32 = 32;
const ORPHANS: u32 = 8;
const ATTACKED: u32 = 0;
const OTHER: u32 = 1;
const MSS: u16 = 1000;

fn endpoint(host: u8, port: u16) -> Endpoint {
    Endpoint { address: Address::from(IpAddr::from([10, 0, 0, host])), port }
}

/// The stack, and the host 10.0.0.2 with all peers.
struct World<'m> {
    engine: Engine<'m>,
    now: Time,
    sent: VecDeque<TcpHeader>,
    frames_sent: u64,
}

/// A connection of the peer.
#[derive(Clone, Copy)]
struct Peer {
    local: Endpoint,
    remote: Endpoint,
    snd_nxt: SeqNumber,
    rcv_nxt: SeqNumber,
}

fn with_world(test: impl FnOnce(World<'_>)) {
    let mut owned = Owned::new(&CAPACITY);
    let addresses = vec![(IpAddr::from([10, 0, 0, 1]), 24)];
    let settings = Settings { addresses, gateways: Vec::new(), secret: [9; 16] };
    let engine = Engine::new(owned.memory(), &settings, Time::ZERO);
    let mut world = World { engine, now: Time(5_000_000), sent: VecDeque::new(), frames_sent: 0 };
    world.engine.on_attached(0, Link { mac: OURS, mtu: 1500, segments: true }, world.now);
    world.transmit();
    test(world);
}

impl World<'_> {
    /// Returns whether the driver had a frame.
    fn arrive(&mut self, header: &[u8], length: u32) -> bool {
        let Some(frame) = (0..CAPACITY.frames).find(|&frame| !self.engine.holds(frame)) else { return false };
        let arrived = Arrived { interface: 0, frame, header, length, is_checked: true, segment_bytes: 0 };
        self.engine.on_frame(&arrived, self.now);
        while self.engine.poll_free().is_some() {}
        true
    }

    /// All that the engine has to send goes, and questions for the peer's MAC address are answered.
    fn transmit(&mut self) {
        let mut header = [0; HEADER_BYTES];
        while let Some(transmit) = self.engine.poll_transmit(&mut header, self.now) {
            self.frames_sent += 1;
            self.engine.on_transmitted(0, self.frames_sent, self.now);
            let bytes = &header[VNET_BYTES..][..usize::from(transmit.header_bytes)];
            if bytes[12..14] == [8, 6] {
                let mut reply = bytes.to_vec();
                reply.copy_within(22..32, 32);
                reply[21] = 2;
                reply[..6].copy_from_slice(&OURS);
                reply[6..12].copy_from_slice(&THEIRS);
                reply[22..28].copy_from_slice(&THEIRS);
                reply[28..32].copy_from_slice(&bytes[38..42]);
                let length = reply.len() as u32;
                self.arrive(&reply, length);
                continue;
            }
            let length = transmit.sources.iter().flatten().map(|source| match source {
                inet::Source::Client(it) => it.length,
                inet::Source::Frame { length, .. } => *length,
            });
            let length = bytes.len() as u32 + length.sum::<u32>();
            let arrived =
                Arrived { interface: 0, frame: 0, header: bytes, length, is_checked: true, segment_bytes: 0 };
            if let packet::Parsed::Tcp(tcp) = packet::parse(&arrived) {
                self.sent.push_back(tcp);
            }
        }
    }

    fn segment(&mut self, tcp: &TcpHeader) -> bool {
        let mut header = [0; HEADER_BYTES];
        let emitted = packet::emit_tcp(&mut header, THEIRS, OURS, tcp);
        let bytes = header[VNET_BYTES..][..usize::from(emitted.header_bytes)].to_vec();
        let has_frame = self.arrive(&bytes, bytes.len() as u32 + tcp.payload_bytes);
        self.transmit();
        has_frame
    }

    /// The answer to a peer, if one was sent since the last question.
    fn answer(&mut self, peer: &Peer) -> Option<TcpHeader> {
        let answers = std::mem::take(&mut self.sent);
        answers.into_iter().rfind(|tcp| tcp.destination == peer.local && tcp.source == peer.remote)
    }

    fn syn(&mut self, from: u16, to: u16) -> Option<Peer> {
        let mut peer = Peer {
            local: endpoint(2, from),
            remote: endpoint(1, to),
            snd_nxt: SeqNumber(1000),
            rcv_nxt: SeqNumber(0),
        };
        let syn = TcpHeader { flags: Flags::SYN, window: 60_000, mss: Some(MSS), ..peer.header() };
        self.segment(&syn);
        let answer = self.answer(&peer)?;
        assert!(answer.flags.has(Flags::SYN | Flags::ACK));
        (peer.snd_nxt, peer.rcv_nxt) = (peer.snd_nxt + 1, answer.seq + 1);
        Some(peer)
    }

    /// A whole handshake, if the SYN is answered.
    fn open(&mut self, from: u16, to: u16, window: u16) -> Option<Peer> {
        let peer = self.syn(from, to)?;
        self.segment(&TcpHeader { window, ..peer.header() });
        Some(peer)
    }

    fn accepted(&mut self, listener: ListenerId, from: u16, to: u16, window: u16) -> (Peer, ConnectionId) {
        let peer = self.open(from, to, window).unwrap_or_else(|| panic!("no answer to the SYN of {from}"));
        (peer, self.engine.accept(listener).expect("a connection to accept"))
    }

    fn listen(&mut self, client: u32, port: u16, backlog: u16) -> ListenerId {
        let local = Endpoint { port, ..endpoint(1, 0) };
        self.engine.listen(client, local, backlog, Options::default()).expect("a listener")
    }

    fn connect(&mut self, client: u32, port: u16) -> Result<ConnectionId, Refusal> {
        let id =
            self.engine.connect(client, Endpoint::default(), endpoint(2, port), Options::default(), self.now);
        self.transmit();
        id
    }

    fn events(&mut self, client: u32) -> Vec<Event> {
        std::iter::from_fn(|| self.engine.poll_event(client)).collect()
    }

    /// The frames that were delivered to a client.
    fn received(&mut self, client: u32) -> Vec<(ConnectionId, FrameId)> {
        let events = self.events(client).into_iter();
        events
            .filter_map(|event| match event {
                Event::Received { connection, frame, .. } => Some((connection, frame)),
                _ => None,
            })
            .collect()
    }

    /// Timers run until `us` have passed; `answer` is the peer.
    fn wait(&mut self, us: u64, mut answer: impl FnMut(&TcpHeader) -> Option<TcpHeader>) {
        let end = self.now.after(us);
        while let Some(at) = self.engine.poll_timeout().filter(|&at| at <= end) {
            self.now = self.now.max(at);
            self.engine.on_timer(self.now);
            self.transmit();
            for tcp in std::mem::take(&mut self.sent) {
                if let Some(reply) = answer(&tcp) {
                    self.segment(&reply);
                }
            }
        }
        self.now = end;
    }
}

impl Peer {
    fn header(&self) -> TcpHeader {
        TcpHeader {
            source: self.local,
            destination: self.remote,
            seq: self.snd_nxt,
            ack: self.rcv_nxt,
            flags: Flags::ACK,
            window: 60_000,
            ..TcpHeader::default()
        }
    }
}

#[test]
fn connections_that_are_not_accepted_count_in_the_share_of_their_listener() {
    for (what, ports, backlog) in [("one backlog", 1, u16::MAX), ("many backlogs", 6, 128)] {
        with_world(|mut world| {
            world.listen(OTHER, 80, 16);
            let mut opened = 0;
            for port in 1000..1000 + ports {
                world.listen(ATTACKED, port, backlog);
                opened +=
                    (0..100).filter(|from| world.open(2000 + from, port, 60_000).is_some()).count() as u32;
            }
            let most = if ports == 1 { SHARE / 2 } else { SHARE };
            assert_eq!(opened, most, "{what}");
            let syns = u64::from(100 * u32::from(ports) - opened);
            assert_eq!(world.engine.drops(), Drops { syns, ..Drops::default() }, "{what}");
            assert!(ports == 1 || world.connect(ATTACKED, 9) == Err(Refusal::Full), "{what}");
            // All of the other client's share is there.
            for from in 0..SHARE as u16 / 2 {
                assert!(world.open(5000 + from, 80, 60_000).is_some(), "{what}: SYN {from}");
                world
                    .connect(OTHER, 6000 + from)
                    .unwrap_or_else(|it| panic!("{what}: connect {from}: {it:?}"));
            }
        });
    }
}

#[test]
fn a_flood_of_syns_displaces_its_own_half_open_connections() {
    with_world(|mut world| {
        let listener = world.listen(OTHER, 80, 16);
        world.listen(ATTACKED, 81, 16);
        world.listen(ATTACKED, 82, 16);
        let honest = world.syn(999, 80).expect("an answer");
        for from in 0..200 {
            assert!(world.syn(2000 + from, 81 + from % 2).is_some(), "a SYN of the flood is answered");
        }
        // A quarter of all may be half-open: 16.
        assert_eq!(world.engine.drops(), Drops { half_open: 1 + 200 - 16, ..Drops::default() });
        world.segment(&honest.header());
        assert!(world.engine.accept(listener).is_some(), "the handshake that began before the flood ends");
        // The client itself may open as many as its share has: half-open ones give way.
        for port in 0..SHARE as u16 {
            world.connect(ATTACKED, 6000 + port).expect("room for a connection");
        }
    });
}

/// Connections that the client closed with bytes that the peer does not take: its window is 0. Returns how many RSTs left.
fn close_orphans(world: &mut World<'_>, listener: ListenerId, count: u16) -> usize {
    let mut resets = 0;
    for from in 0..count {
        let (_, id) = world.accepted(listener, 2000 + from, 80, 0);
        let payload = PayloadRef { length: 50, ..PayloadRef::default() };
        world.engine.send(id, 1, &[payload], world.now).expect("room to send");
        world.engine.close(id, world.now).expect("a connection to close");
        world.transmit();
        resets += world.sent.iter().filter(|tcp| tcp.flags.has(Flags::RST)).count();
        world.events(ATTACKED);
    }
    resets
}

#[test]
fn orphans_are_bounded_and_the_oldest_is_reset() {
    with_world(|mut world| {
        let listener = world.listen(ATTACKED, 80, 16);
        let resets = close_orphans(&mut world, listener, 100);
        assert_eq!(resets as u32, 100 - ORPHANS);
        assert_eq!(world.engine.drops(), Drops { orphans: resets as u64, ..Drops::default() });
        assert!(world.open(999, 80, 60_000).is_some(), "a SYN is answered");
        world.connect(ATTACKED, 9).expect("room for a connection");
    });
}

#[test]
fn orphans_give_way_to_new_connections() {
    with_world(|mut world| {
        let listener = world.listen(ATTACKED, 80, 16);
        close_orphans(&mut world, listener, ORPHANS as u16);
        assert_eq!(world.engine.drops(), Drops::default());
        let first = Peer {
            local: endpoint(2, 2000),
            remote: endpoint(1, 80),
            snd_nxt: SeqNumber(0),
            rcv_nxt: SeqNumber(0),
        };
        for from in 0..SHARE as u16 {
            if from % 2 == 0 {
                world.accepted(listener, 5000 + from, 80, 60_000);
            } else {
                world.connect(ATTACKED, 6000 + from).expect("room for a connection");
            }
            world.events(ATTACKED);
        }
        assert_eq!(world.engine.drops(), Drops { orphans: ORPHANS.into(), ..Drops::default() });
        assert_eq!(world.connect(ATTACKED, 9), Err(Refusal::Full), "all are used by the client itself");
        // The reset orphan has no record any more: a segment of its peer is answered by RST.
        world.segment(&TcpHeader { flags: Flags::ACK, ..first.header() });
        assert!(world.answer(&first).is_some_and(|tcp| tcp.flags.has(Flags::RST)));
    });
}

#[test]
fn an_orphan_ends_though_its_peer_answers_each_window_probe() {
    for is_closed in [true, false] {
        with_world(|mut world| {
            let listener = world.listen(ATTACKED, 80, 16);
            let (peer, id) = world.accepted(listener, 2000, 80, 0);
            let payload = PayloadRef { length: 50, ..PayloadRef::default() };
            world.engine.send(id, 1, &[payload], world.now).expect("room to send");
            if is_closed {
                world.engine.close(id, world.now).expect("a connection to close");
            }
            world.transmit();
            let (mut probes, mut resets) = (0, 0);
            let answers = |tcp: &TcpHeader| {
                let is_reset = tcp.flags.has(Flags::RST);
                (probes, resets) = (probes + u32::from(!is_reset), resets + u32::from(is_reset));
                (!is_reset).then(|| TcpHeader { window: 0, ..peer.header() })
            };
            world.wait(150_000_000, answers);
            let why = world.events(ATTACKED).into_iter().find_map(|event| match event {
                Event::Ended { why, .. } => Some(why),
                _ => None,
            });
            // RFC 9293 §3.8.6.1: a connection that has a user lives.
            let expected = is_closed.then_some(Ended::TimedOut);
            assert_eq!((why, resets), (expected, u32::from(is_closed)), "after {probes} probes");
            assert_eq!(world.engine.drops().orphans, u64::from(is_closed));
        });
    }
}

/// Sends as many segments of a byte as fit into the window, each in a frame. Returns how many were kept.
fn fill(world: &mut World<'_>, peer: &mut Peer, segments: u32) -> u32 {
    let start = peer.snd_nxt;
    for _ in 0..segments {
        assert!(world.segment(&TcpHeader { payload_bytes: 1, ..peer.header() }), "the driver has a frame");
        if world.received(ATTACKED).is_empty() {
            break;
        }
        peer.snd_nxt = peer.snd_nxt + 1;
    }
    peer.snd_nxt.distance(start).cast_unsigned()
}

#[test]
fn connections_that_are_not_read_leave_frames_to_those_that_are() {
    with_world(|mut world| {
        let listener = world.listen(ATTACKED, 80, 16);
        let (mut read, read_id) = world.accepted(listener, 999, 80, 60_000);
        let mut kept = Vec::new();
        for from in 0..20 {
            let (mut peer, _) = world.accepted(listener, 2000 + from, 80, 60_000);
            kept.push(fill(&mut world, &mut peer, CAPACITY.frames));
            // The connection that is read goes on.
            for _ in 0..10 {
                assert!(world.segment(&TcpHeader { payload_bytes: 1, ..read.header() }));
                read.snd_nxt = read.snd_nxt + 1;
                let frames = world.received(ATTACKED);
                let [(id, frame)] = frames[..] else { panic!("{frames:?} behind {kept:?}") };
                assert_eq!(id, read_id);
                world.engine.release(ATTACKED, frame, world.now).expect("a frame of the client");
            }
        }
        // 3/4 of what is not the driver's are the client's; a connection gets 2/3 of what others left of that, or two.
        assert_eq!(kept[..6], [120, 40, 13, 4, 2, 2]);
        assert!(kept.iter().all(|&kept| kept >= 2), "{kept:?}");
        assert!(world.engine.drops().segments >= kept.len() as u64, "{:?}", world.engine.drops());
    });
}

#[test]
fn frames_are_left_to_the_driver_though_many_connections_are_not_read() {
    with_world(|mut world| {
        let listeners = [(ATTACKED, world.listen(ATTACKED, 80, 16)), (OTHER, world.listen(OTHER, 81, 16))];
        for (client, listener) in listeners {
            for from in 0..SHARE as u16 {
                let (mut peer, _) = world.accepted(listener, 2000 + from, 80 + client as u16, 60_000);
                for _ in 0..CAPACITY.frames {
                    assert!(world.segment(&TcpHeader { payload_bytes: 1, ..peer.header() }));
                    peer.snd_nxt = peer.snd_nxt + 1;
                }
                world.events(client);
            }
        }
        let held = (0..CAPACITY.frames).filter(|&frame| world.engine.holds(frame)).count() as u32;
        assert_eq!(held, CAPACITY.frames - CAPACITY.frames / 16);
    });
}
