//! A peer, a driver and a client that do whatever they can: nothing panics, and what they held comes back.

use inet::packet::{self, Flags, TcpHeader};
use inet::{
    Address, Arrived, Capacity, ConnectionId, Endpoint, Engine, Event, HEADER_BYTES, Link, ListenerId,
    Options, Owned, PayloadRef, SeqNumber, Settings, Time, VNET_BYTES,
};
use proptest::prelude::*;

const OURS: [u8; 6] = [2, 0, 0, 0, 0, 1];
const THEIRS: [u8; 6] = [2, 0, 0, 0, 0, 2];
const CAPACITY: Capacity = Capacity {
    connections: 8,
    listeners: 2,
    pieces: 48,
    segments: 16,
    time_waits: 2,
    neighbours: 4,
    frames: 24,
    tails: 4,
    clients: 2,
};

#[derive(Clone, Debug)]
enum Act {
    /// A segment that fits the connection's numbers but for `seq` and `ack`.
    Segment {
        connection: u8,
        flags: u8,
        seq: i32,
        ack: i32,
        window: u16,
        payload: u32,
        options: u8,
        sack: i32,
    },
    /// The same with bytes overwritten, and a frame number, length and checksum state of the driver's choice.
    Damaged {
        bytes: Vec<(u8, u8)>,
        frame: u32,
        length: i32,
        cut: u8,
        is_checked: bool,
        segment_bytes: u16,
    },
    Wait(u64),
    Send {
        connection: u8,
        pieces: Vec<u32>,
    },
    Receive,
    Release {
        frame: u32,
        client: u32,
    },
    Shutdown(u8),
    Close(u8),
    Abort(u8),
    Accept,
    Connect {
        port: u16,
    },
    Listen {
        port: u16,
    },
    CloseListener,
    SetOptions(u8, u32),
    Transmit(u8),
    Transmitted(u64),
    Attached {
        mtu: u16,
        segments: bool,
    },
    ClientGone(u32),
}

fn acts() -> impl Strategy<Value = Act> {
    let near = prop_oneof![12 => Just(0), 2 => -3..3_i32, 1 => -3000..3000_i32, 1 => -70_000..70_000_i32, 1 => any::<i32>()];
    let flags = prop_oneof![16 => Just(0x10_u8), 2 => Just(0x11), 1 => Just(0x02), 1 => Just(0x12), 1 => Just(0x14), 1 => any::<u8>()];
    let options = prop_oneof![6 => Just(1_u8), 2 => Just(0x31), 1 => any::<u8>()];
    let payload = prop_oneof![3 => Just(0_u32), 3 => 1..1500_u32, 1 => 0..65_000_u32];
    prop_oneof![
        24 => (0..3_u8, flags, near.clone(), near.clone(), any::<u16>(), payload, options, near)
            .prop_map(|(connection, flags, seq, ack, window, payload, options, sack)| {
                Act::Segment { connection, flags, seq, ack, window, payload, options, sack }
            }),
        3 => (
            prop::collection::vec((any::<u8>(), any::<u8>()), 0..4),
            prop_oneof![3 => 0..24_u32, 1 => any::<u32>()],
            prop_oneof![Just(0), -100..100_i32, any::<i32>()],
            any::<u8>(),
            any::<bool>(),
            any::<u16>(),
        )
            .prop_map(|(bytes, frame, length, cut, is_checked, segment_bytes)| {
                Act::Damaged { bytes, frame, length, cut, is_checked, segment_bytes }
            }),
        4 => prop_oneof![8 => 0..1000_u64, 4 => 0..1_000_000_u64, 1 => 0..400_000_000_u64].prop_map(Act::Wait),
        4 => (0..3_u8, prop::collection::vec(prop_oneof![9 => 1..3000_u32, 1 => any::<u32>()], 1..5))
            .prop_map(|(connection, pieces)| Act::Send { connection, pieces }),
        4 => Just(Act::Receive),
        3 => (prop_oneof![3 => 0..24_u32, 1 => any::<u32>()], 0..3_u32)
            .prop_map(|(frame, client)| Act::Release { frame, client }),
        1 => any::<u8>().prop_map(Act::Shutdown),
        1 => any::<u8>().prop_map(Act::Close),
        1 => any::<u8>().prop_map(Act::Abort),
        2 => Just(Act::Accept),
        2 => any::<u16>().prop_map(|port| Act::Connect { port }),
        1 => any::<u16>().prop_map(|port| Act::Listen { port }),
        1 => Just(Act::CloseListener),
        1 => (any::<u8>(), any::<u32>()).prop_map(|(connection, bytes)| Act::SetOptions(connection, bytes)),
        8 => any::<u8>().prop_map(Act::Transmit),
        3 => prop_oneof![4 => 0..4_u64, 1 => any::<u64>()].prop_map(Act::Transmitted),
        1 => (any::<u16>(), any::<bool>()).prop_map(|(mtu, segments)| Act::Attached { mtu, segments }),
        1 => (0..3_u32).prop_map(Act::ClientGone),
    ]
}

struct World<'m> {
    engine: Engine<'m>,
    now: Time,
    sent: u64,
    consumed: u64,
    /// The last segment of ours per connection, by remote port.
    seen: Vec<TcpHeader>,
    ids: Vec<ConnectionId>,
    listener: Option<ListenerId>,
    last: Vec<u8>,
}

fn at(host: u8, port: u16) -> Endpoint {
    let address = Address::from(std::net::IpAddr::from([10, 0, 0, host]));
    Endpoint { address, port }
}

impl World<'_> {
    fn id(&self, choice: u8) -> ConnectionId {
        let made_up = ConnectionId { index: u32::from(choice), generation: 0 };
        self.ids.get(usize::from(choice) % (self.ids.len() + 1)).copied().unwrap_or(made_up)
    }

    /// A frame number that the driver holds, if there is one.
    fn frame(&self) -> u32 {
        (0..CAPACITY.frames).find(|&frame| !self.engine.holds(frame)).unwrap_or(0)
    }

    fn arrive(&mut self, header: &[u8], length: u32, frame: u32, is_checked: bool, segment_bytes: u16) {
        let arrived = Arrived { interface: 0, frame, header, length, is_checked, segment_bytes };
        self.engine.on_frame(&arrived, self.now);
        while self.engine.poll_free().is_some() {}
    }

    fn segment(&mut self, tcp: &TcpHeader) {
        let mut header = [0; HEADER_BYTES];
        let emitted = packet::emit_tcp(&mut header, THEIRS, OURS, tcp);
        self.last = header[VNET_BYTES..][..usize::from(emitted.header_bytes)].to_vec();
        let (bytes, length) = (self.last.clone(), self.last.len() as u32 + tcp.payload_bytes);
        let frame = self.frame();
        self.arrive(&bytes, length, frame, true, 0);
    }

    fn transmit(&mut self) -> bool {
        let mut header = [0; HEADER_BYTES];
        let Some(transmit) = self.engine.poll_transmit(&mut header, self.now) else { return false };
        self.sent += 1;
        let bytes = &header[VNET_BYTES..][..usize::from(transmit.header_bytes)];
        if bytes[12..14] == [8, 6] {
            // A question for our MAC address.
            let mut reply = bytes.to_vec();
            reply.copy_within(22..32, 32);
            reply[21] = 2;
            reply[..6].copy_from_slice(&OURS);
            reply[6..12].copy_from_slice(&THEIRS);
            reply[22..28].copy_from_slice(&THEIRS);
            reply[28..32].copy_from_slice(&bytes[38..42]);
            let (frame, length) = (self.frame(), reply.len() as u32);
            self.arrive(&reply, length, frame, true, 0);
        } else {
            let length: u32 = transmit
                .sources
                .iter()
                .flatten()
                .map(|source| match source {
                    inet::Source::Client(it) => it.length,
                    inet::Source::Frame { length, .. } => *length,
                })
                .sum();
            let arrived = Arrived {
                interface: 0,
                frame: 0,
                header: bytes,
                length: bytes.len() as u32 + length,
                is_checked: true,
                segment_bytes: 0,
            };
            if let packet::Parsed::Tcp(tcp) = packet::parse(&arrived) {
                self.seen.retain(|it| (it.source, it.destination) != (tcp.source, tcp.destination));
                self.seen.push(tcp);
            }
        }
        true
    }

    fn act(&mut self, act: &Act) {
        let now = self.now;
        match *act {
            Act::Segment { connection, flags, seq, ack, window, payload, options, sack } => {
                let ours = self.seen.get(usize::from(connection) % (self.seen.len() + 1)).copied();
                let ours = ours.unwrap_or(TcpHeader {
                    source: at(1, 80),
                    destination: at(2, 1000 + u16::from(connection)),
                    ..TcpHeader::default()
                });
                let shift = |number: SeqNumber, by: i32| SeqNumber(number.0.wrapping_add(by.cast_unsigned()));
                let next = ours.seq + ours.sequence_length();
                let has = |bit: u8| options & bit != 0;
                let timestamps = match (has(1), ours.timestamps) {
                    (true, Some((value, _))) if has(0x80) => Some((u32::from(options) << 24, value)),
                    (true, Some((value, _))) => Some((1 + (now.0 / 1000) as u32, value)),
                    (true, None) => Some((1, 0)),
                    (false, _) => None,
                };
                let mut tcp = TcpHeader {
                    source: ours.destination,
                    destination: ours.source,
                    seq: shift(ours.ack, seq),
                    ack: shift(next, ack),
                    flags: Flags(flags),
                    window,
                    mss: has(2).then_some(window),
                    window_scale: has(4).then_some(options >> 4),
                    has_sack_permitted: has(8),
                    timestamps,
                    payload_bytes: payload,
                    ..TcpHeader::default()
                };
                if has(16) && !has(2) {
                    let start = shift(ours.seq, sack);
                    tcp.sack = [(start, start + u32::from(window) % 3000); 4];
                    tcp.sack[1] = (shift(start, -2000), shift(start, ack));
                    tcp.sack_count = 1 + options % 3;
                }
                self.segment(&tcp);
            }
            Act::Damaged { ref bytes, frame, length, cut, is_checked, segment_bytes } => {
                let mut header = self.last.clone();
                header.truncate(if cut < 200 { header.len() } else { usize::from(cut - 200) });
                for &(at, value) in bytes {
                    if let Some(byte) = header.get_mut(usize::from(at)) {
                        *byte = value;
                    }
                }
                let length = (header.len() as u32).wrapping_add_signed(length);
                self.arrive(&header, length, frame, is_checked, segment_bytes);
            }
            Act::Wait(us) => {
                self.now = now.after(us);
                for _ in 0..1000 {
                    if self.engine.poll_timeout().is_none_or(|at| at > self.now) {
                        return;
                    }
                    self.engine.on_timer(self.now);
                    while self.transmit() {}
                }
                panic!("timers go on for ever");
            }
            Act::Send { connection, ref pieces } => {
                let pieces: Vec<_> =
                    pieces.iter().map(|&length| PayloadRef { length, ..PayloadRef::default() }).collect();
                let _ = self.engine.send(self.id(connection), self.now.0, &pieces, now);
                self.now = now.after(1);
            }
            Act::Receive => {
                for client in 0..3 {
                    while let Some(event) = self.engine.poll_event(client) {
                        if let Event::Received { frame, start, length, .. } = event {
                            assert!(self.engine.holds(frame) && length > 0 && start < 66_000);
                        }
                    }
                }
            }
            Act::Release { frame, client } => {
                let _ = self.engine.release(client, frame, now);
            }
            Act::Shutdown(choice) => {
                let _ = self.engine.shutdown(self.id(choice), now);
            }
            Act::Close(choice) => {
                let _ = self.engine.close(self.id(choice), now);
            }
            Act::Abort(choice) => {
                let _ = self.engine.abort(self.id(choice), now);
            }
            Act::Accept => {
                let accepted = self.listener.and_then(|listener| self.engine.accept(listener));
                self.ids.extend(accepted);
            }
            Act::Connect { port } => {
                let options = Options { keep_alive_s: 20, ..Options::default() };
                if let Ok(id) = self.engine.connect(0, Endpoint::default(), at(2, port), options, now) {
                    self.ids.push(id);
                }
            }
            Act::Listen { port } => {
                let _ =
                    self.engine.listen(1, Endpoint { port, ..Endpoint::default() }, port, Options::default());
            }
            Act::CloseListener => {
                if let Some(listener) = self.listener {
                    self.engine.close_listener(listener, now);
                }
                let options = Options { no_delay: true, ..Options::default() };
                self.listener = self.engine.listen(0, at(1, 80), 2, options).ok();
            }
            Act::SetOptions(choice, receive_bytes_max) => {
                let options = Options { receive_bytes_max, no_delay: choice > 99, ..Options::default() };
                let _ = self.engine.set_options(self.id(choice), options);
            }
            Act::Transmit(count) => {
                for _ in 0..count % 16 {
                    self.transmit();
                }
            }
            Act::Transmitted(frames) => {
                let frames = if frames < 4 { self.consumed + frames } else { frames };
                if frames <= self.sent {
                    self.consumed = self.consumed.max(frames);
                }
                self.engine.on_transmitted((frames % 5) as u8, frames, now);
                self.engine.on_transmitted(0, self.consumed, now);
            }
            Act::Attached { mtu, segments } => {
                self.engine.on_attached(0, Link { mac: OURS, mtu, segments }, now);
            }
            Act::ClientGone(client) => {
                self.engine.on_client_gone(client, now);
                assert_eq!(self.engine.poll_event(client), None, "an event of a client that is gone");
                self.ids.clear();
            }
        }
        while self.engine.poll_free().is_some() {}
    }
}

fn play(acts: &[Act]) {
    let mut owned = Owned::new(&CAPACITY);
    let settings = Settings {
        addresses: vec![("10.0.0.1".parse().unwrap(), 24)],
        gateways: Vec::new(),
        secret: [9; 16],
    };
    let engine = Engine::new(owned.memory(), &settings, Time::ZERO);
    let mut world = World {
        engine,
        now: Time(5_000_000),
        sent: 0,
        consumed: 0,
        seen: Vec::new(),
        ids: Vec::new(),
        listener: None,
        last: Vec::new(),
    };
    for act in [Act::Attached { mtu: 1500, segments: true }, Act::CloseListener, Act::Connect { port: 7 }] {
        world.act(&act);
    }
    while world.transmit() {}
    // One connection that we opened, and one that the peer opened, with all options.
    let segment = |connection, flags, options| Act::Segment {
        connection,
        flags,
        seq: 0,
        ack: 0,
        window: 1400,
        payload: 0,
        options,
        sack: 0,
    };
    world.act(&segment(0, 0x12, 0x2f));
    while world.transmit() {}
    world.act(&segment(1, 0x02, 0x2f));
    while world.transmit() {}
    world.act(&segment(1, 0x10, 1));
    world.act(&Act::Accept);
    world.act(&Act::Receive);
    assert_eq!(world.ids.len(), 2, "two open connections");
    for act in acts {
        world.act(act);
    }
    // All clients go: all frames come back at once, and all memory when the driver has consumed what it was given.
    for client in 0..2 {
        world.engine.on_client_gone(client, world.now);
    }
    while world.transmit() {}
    world.engine.on_transmitted(0, world.sent, world.now);
    while world.engine.poll_free().is_some() {}
    assert!((0..2).all(|client| world.engine.is_drained(client)), "memory of a client is referred to");
    assert!((0..CAPACITY.frames).all(|frame| !world.engine.holds(frame)), "a frame is held");
    assert!(
        (0..2).all(|client| world.engine.poll_event(client).is_none()),
        "an event of a client that is gone"
    );
    // All records are free: as many connections as there can be may be opened, each with its reserved pieces.
    world.engine.on_attached(0, Link { mac: OURS, mtu: 1500, segments: true }, world.now);
    for port in 1..=CAPACITY.connections as u16 {
        let client = u32::from(port) % CAPACITY.clients;
        let id =
            world.engine.connect(client, Endpoint::default(), at(2, port), Options::default(), world.now);
        let payload = PayloadRef { length: 1, ..PayloadRef::default() };
        world
            .engine
            .send(id.expect("room for a connection"), 1, &[payload; 4], world.now)
            .expect("room for pieces");
    }
}

#[test]
fn events_of_a_client_that_is_gone_are_gone() {
    play(&[Act::Abort(0), Act::ClientGone(0)]);
}

/// `HIKYAKU_INET_SEEDS=100000 cargo test --release -p hikyaku-inet --test hostile` takes minutes.
fn cases() -> u32 {
    std::env::var("HIKYAKU_INET_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(400)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn nothing_panics_and_everything_comes_back(acts in prop::collection::vec(acts(), 0..120)) {
        play(&acts);
    }
}
