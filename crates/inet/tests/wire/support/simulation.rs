//! Connections between two hosts carry bytes both ways, over a wire that delays, loses, repeats, reorders and damages
//! frames, with drivers that are slow and die. Each byte is checked where it arrives.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::net::SocketAddr;

use inet::{
    Algorithm, Capacity, ConnectionId, Ended, Endpoint, Event, FrameId, Link, ListenerId, Options,
    PayloadRef, Refusal, Time,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::device::{self, Packet};
use super::host::{Host, POISON};

/// What the wire and the hosts are like. Shares are per mille.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) seed: u64,
    pub(crate) v6: bool,
    pub(crate) mtu: u16,
    /// The drivers take long segments, and the wire divides them or passes them on whole.
    pub(crate) segments: bool,
    pub(crate) divides: bool,
    pub(crate) delay_us: u64,
    /// Longest time that a frame may be late and so be overtaken.
    pub(crate) reordering_us: u64,
    pub(crate) reordering: u32,
    pub(crate) loss: u32,
    pub(crate) duplication: u32,
    pub(crate) corruption: u32,
    /// Slots of the transmit rings, and the longest time for which a driver leaves one.
    pub(crate) ring: usize,
    pub(crate) driver_us: u64,
    /// Drivers die this often, us; 0 for never.
    pub(crate) restart_us: u64,
    pub(crate) capacity: Capacity,
    pub(crate) connections: usize,
    /// Of each direction of each connection, at most.
    pub(crate) bytes: u64,
    pub(crate) receive_bytes_max: u32,
    /// Longest time for which applications keep frames.
    pub(crate) hold_us: u64,
}

impl Scenario {
    /// A scenario of everything that can go wrong.
    pub(crate) fn from_seed(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut rare =
            |share: u32, most: u32| if rng.random_ratio(share, 10) { rng.random_range(1..=most) } else { 0 };
        let (loss, reordering, duplication, corruption) =
            (rare(6, 80), rare(5, 200), rare(4, 100), rare(4, 50));
        let connections = rng.random_range(1..=4);
        let small = rng.random_ratio(1, 3);
        let capacity = Capacity {
            connections: 32,
            listeners: 2,
            pieces: if small { 64 } else { 512 },
            segments: if small { 64 } else { 1024 },
            time_waits: 4,
            neighbours: 8,
            frames: if small { 24 } else { 256 },
            tails: if small { 4 } else { 32 },
            clients: 2,
        };
        let segments = rng.random();
        Self {
            seed,
            v6: rng.random_ratio(1, 3),
            mtu: *[576, 1280, 1500, 1500, 9000, 65_535].get(rng.random_range(0..6)).unwrap(),
            segments,
            divides: rng.random(),
            delay_us: *[0, 50, 1000, 20_000, 100_000].get(rng.random_range(0..5)).unwrap(),
            reordering_us: rng.random_range(1..30_000),
            reordering,
            loss,
            duplication,
            corruption,
            ring: *[1, 4, 64, 256].get(rng.random_range(0..4)).unwrap(),
            driver_us: *[0, 10, 500].get(rng.random_range(0..3)).unwrap(),
            restart_us: if rng.random_ratio(1, 3) { rng.random_range(50_000..2_000_000) } else { 0 },
            capacity,
            connections,
            bytes: rng.random_range(1..400_000),
            receive_bytes_max: *[1000, 20_000, 300_000, 4 << 20].get(rng.random_range(0..4)).unwrap(),
            hold_us: *[0, 0, 1000, 200_000].get(rng.random_range(0..4)).unwrap(),
        }
        .plausible()
    }

    fn plausible(mut self) -> Self {
        if self.v6 {
            self.mtu = self.mtu.max(1280);
        }
        self
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Arrive(u64),
    Consume,
    Restart,
    Application,
}

/// One end of a connection, as its application knows it.
struct Stream {
    key: u16,
    direction: u8,
    to_send: u64,
    queued: u64,
    ticket: u64,
    submitted: u64,
    released: u64,
    is_full: bool,
    is_shut: bool,
    received: u64,
    has_end: bool,
    ended: Option<Ended>,
    regions: VecDeque<(u64, u32)>,
}

struct Application {
    streams: BTreeMap<(u32, u32), Stream>,
    finished: usize,
    held: BinaryHeap<Reverse<(Time, FrameId)>>,
    next_region: u32,
    rng: StdRng,
    listener: Option<ListenerId>,
    totals: VecDeque<u64>,
}

pub(crate) struct Simulation {
    pub(crate) scenario: Scenario,
    pub(crate) now: Time,
    pub(crate) hosts: [Host; 2],
    applications: [Application; 2],
    events: BinaryHeap<Reverse<(Time, u64, usize, What)>>,
    count: u64,
    packets: BTreeMap<u64, Packet>,
    consuming: [bool; 2],
    rng: StdRng,
    opened: usize,
    timeouts: [Option<Time>; 2],
}

/// The byte at a place of a stream; never `POISON`.
pub(crate) fn content(at: u64, key: u16, direction: u8) -> u8 {
    ((at * 31 + (at >> 8) * 17 + u64::from(key) * 7 + u64::from(direction) * 101) % 229) as u8
}

fn endpoint(text: &str) -> Endpoint {
    text.parse::<SocketAddr>().expect("an address").into()
}

/// Frames are overtaken no more, and nothing is damaged, after so long: what stalls then would stall for ever.
const LIMIT: Time = Time(40 * 60 * 1_000_000);

impl Simulation {
    pub(crate) fn new(scenario: &Scenario, moves: bool, log: bool) -> Self {
        let s = scenario;
        let host = |number: u8| {
            let mac = [2, 0, 0, 0, 0, number];
            let link = Link { mac, mtu: s.mtu, segments: s.segments };
            let addresses = if s.v6 {
                vec![(format!("fd00::{number}").parse().unwrap(), 64)]
            } else {
                vec![(format!("10.0.0.{number}").parse().unwrap(), 24)]
            };
            Host::new(&s.capacity, &addresses, link, moves, log)
        };
        let application = |number: u64| Application {
            streams: BTreeMap::new(),
            finished: 0,
            held: BinaryHeap::new(),
            next_region: 0,
            rng: StdRng::seed_from_u64(s.seed ^ number << 32),
            listener: None,
            totals: VecDeque::new(),
        };
        let mut simulation = Self {
            scenario: s.clone(),
            now: Time(1_000_000),
            hosts: [host(1), host(2)],
            applications: [application(1), application(2)],
            events: BinaryHeap::new(),
            count: 0,
            packets: BTreeMap::new(),
            consuming: [false; 2],
            rng: StdRng::seed_from_u64(s.seed),
            opened: 0,
            timeouts: [None; 2],
        };
        for host in 0..2 {
            simulation.hosts[host].attach_driver(Time(1_000_000));
            if s.restart_us > 0 {
                simulation.later(s.restart_us * (host as u64 + 1), host, What::Restart);
            }
        }
        simulation
    }

    fn options(&mut self) -> Options {
        Options {
            no_delay: self.rng.random(),
            algorithm: if self.rng.random() { Algorithm::Cubic } else { Algorithm::NewReno },
            keep_alive_s: if self.rng.random_ratio(1, 4) { 1 } else { 0 },
            receive_bytes_max: self.scenario.receive_bytes_max,
        }
    }

    fn later(&mut self, us: u64, host: usize, what: What) {
        self.count += 1;
        self.events.push(Reverse((self.now.after(us), self.count, host, what)));
    }

    /// Until all connections have ended as they should.
    pub(crate) fn run(&mut self) {
        let server = endpoint(if self.scenario.v6 { "[fd00::2]:80" } else { "10.0.0.2:80" });
        let options = self.options();
        let now = self.now;
        let listener =
            self.hosts[1].with(now, |engine| engine.listen(0, server, 8, options)).expect("listens");
        self.applications[1].listener = Some(listener);
        self.turn(0);
        self.turn(1);
        loop {
            while self.opened < self.scenario.connections {
                self.connect(server);
            }
            if self.applications.iter().map(|it| it.finished).min() == Some(self.scenario.connections) {
                break;
            }
            let due = |host: usize| self.timeouts[host].map(|at| (at.max(self.now), host));
            let timer = due(0).into_iter().chain(due(1)).min();
            let next = self.events.peek().map(|Reverse((at, ..))| *at);
            match (next, timer) {
                (None, None) => panic!("nothing more happens"),
                (next, Some((at, host))) if next.is_none_or(|next| at < next) => {
                    self.now = at;
                    self.hosts[host].with(at, |engine| engine.on_timer(at));
                    self.turn(host);
                }
                _ => {
                    let Reverse((at, _, host, what)) = self.events.pop().expect("there is one");
                    self.now = at;
                    self.on_event(host, what);
                    self.turn(host);
                }
            }
            assert!(self.now < LIMIT, "seed {} stalled: {}", self.scenario.seed, self.describe());
        }
        self.finish();
    }

    fn describe(&self) -> String {
        let streams = self.applications.iter().flat_map(|it| it.streams.values());
        streams
            .map(|it| {
                format!(
                    "[{} {}: queued {}/{}, released {} of {}, received {}, end {}, ended {:?}, full {}] ",
                    it.key,
                    it.direction,
                    it.queued,
                    it.to_send,
                    it.released,
                    it.ticket,
                    it.received,
                    it.has_end,
                    it.ended,
                    it.is_full
                )
            })
            .collect()
    }

    /// All frames come back once TIME-WAIT is over.
    fn finish(&mut self) {
        for host in 0..2 {
            while let Some(Reverse((_, frame))) = self.applications[host].held.pop() {
                let now = self.now;
                self.hosts[host].with(now, |engine| engine.release(0, frame, now)).expect("was held");
            }
            self.hosts[host].take_free(self.now);
            let all = self.scenario.capacity.frames as usize;
            assert_eq!(self.hosts[host].free.len(), all, "frames are missing");
        }
    }

    fn connect(&mut self, server: Endpoint) {
        let options = self.options();
        let any = endpoint(if self.scenario.v6 { "[::]:0" } else { "0.0.0.0:0" });
        let now = self.now;
        let id =
            self.hosts[0].with(now, |engine| engine.connect(0, any, server, options, now)).expect("connects");
        self.opened += 1;
        let (local, _) = self.hosts[0].ends(id, now).expect("is there");
        self.add_stream(0, id, local.port);
        self.turn(0);
    }

    fn add_stream(&mut self, host: usize, id: ConnectionId, key: u16) {
        let most = self.scenario.bytes;
        let application = &mut self.applications[host];
        let to_send =
            if application.rng.random_ratio(1, 5) { 0 } else { application.rng.random_range(0..=most) };
        let stream = Stream {
            key,
            direction: host as u8,
            to_send,
            queued: 0,
            ticket: 0,
            submitted: 0,
            released: 0,
            is_full: false,
            is_shut: false,
            received: 0,
            has_end: false,
            ended: None,
            regions: VecDeque::new(),
        };
        application.totals.push_back(to_send);
        application.streams.insert((id.index, id.generation), stream);
    }

    fn on_event(&mut self, host: usize, what: What) {
        let now = self.now;
        match what {
            What::Arrive(number) => {
                let packet = self.packets.remove(&number).expect("is on the wire");
                self.hosts[host].receive(&packet, now);
            }
            What::Consume => {
                self.consuming[host] = false;
                if let Some(packet) = self.hosts[host].consume(now) {
                    self.send_over_wire(1 - host, &packet);
                }
            }
            What::Restart => {
                // Half of the drivers' successors go on with the ring, half throw away what is in it.
                if self.rng.random() {
                    while self.hosts[host].consume(now).is_some() {}
                }
                self.hosts[host].attach_driver(now);
                self.later(self.scenario.restart_us, host, What::Restart);
            }
            What::Application => {}
        }
    }

    fn send_over_wire(&mut self, to: usize, packet: &Packet) {
        let s = self.scenario.clone();
        let packets = if s.divides { device::divide(packet) } else { vec![packet.clone()] };
        for mut packet in packets {
            if self.rng.random_ratio(s.loss, 1000) {
                continue;
            }
            // Damage that no checksum of ours finds is found by Ethernet's: only TCP is damaged.
            let may_break = packet.segment_bytes == 0 && device::tcp_at(&packet.bytes).is_some();
            if self.rng.random_ratio(s.corruption, 1000) && may_break {
                let most = packet.bytes.len().min(90);
                let at = self.rng.random_range(14..most);
                packet.bytes[at] ^= 1 << self.rng.random_range(0..8);
                packet.was_on_wire = true;
            }
            let copies = 1 + u64::from(self.rng.random_ratio(s.duplication, 1000));
            for _ in 0..copies {
                let late = self.rng.random_ratio(s.reordering, 1000);
                let late = if late { self.rng.random_range(0..=s.reordering_us) } else { 0 };
                self.count += 1;
                let number = self.count;
                self.packets.insert(number, packet.clone());
                self.later(s.delay_us + late, to, What::Arrive(number));
            }
        }
    }

    /// What a server does after each event: applications first, then frames to send.
    fn turn(&mut self, host: usize) {
        let now = self.now;
        loop {
            while let Some(event) = self.hosts[host].event(now) {
                self.on_engine_event(host, event);
            }
            if !self.act(host) {
                break;
            }
        }
        let ring = self.scenario.ring;
        let before = self.hosts[host].ring.len();
        self.hosts[host].transmit(ring, now);
        for slot in before..self.hosts[host].ring.len() {
            let submitted = self.hosts[host].ring[slot].1.submitted;
            if let Some(it) = submitted {
                let id = (it.connection.index, it.connection.generation);
                let stream = self.applications[host].streams.get_mut(&id).expect("is there");
                assert!(it.ticket > stream.submitted && it.ticket <= stream.ticket, "submitted twice");
                stream.submitted = it.ticket;
            }
        }
        if !self.hosts[host].ring.is_empty() && !self.consuming[host] {
            self.consuming[host] = true;
            let us = self.rng.random_range(0..=self.scenario.driver_us);
            self.later(us, host, What::Consume);
        }
        self.hosts[host].take_free(now);
        self.timeouts[host] = self.hosts[host].timeout(now);
    }

    fn on_engine_event(&mut self, host: usize, event: Event) {
        let now = self.now;
        let application = &mut self.applications[host];
        let key = |id: ConnectionId| (id.index, id.generation);
        match event {
            Event::Incoming { listener } => {
                assert_eq!(Some(listener), application.listener);
                let Some(id) = self.hosts[host].with(now, |engine| engine.accept(listener)) else { return };
                let (_, remote) = self.hosts[host].ends(id, now).expect("is there");
                self.add_stream(host, id, remote.port);
            }
            Event::Connected { .. } => {}
            Event::Received { connection, frame, start, length, offset } => {
                let stream = application.streams.get_mut(&key(connection)).expect("is there");
                assert_eq!(offset, stream.received, "bytes out of order");
                assert!(!stream.has_end && length > 0);
                let bytes = self.hosts[host].payload(frame, start, length);
                for (at, &byte) in (offset..).zip(bytes) {
                    assert_eq!(byte, content(at, stream.key, 1 - stream.direction), "byte {at}");
                }
                stream.received += u64::from(length);
                let hold = application.rng.random_range(0..=self.scenario.hold_us);
                application.held.push(Reverse((now.after(hold), frame)));
                if hold > 0 {
                    self.later(hold, host, What::Application);
                }
            }
            Event::PeerClosed { connection } => {
                let stream = application.streams.get_mut(&key(connection)).expect("is there");
                assert!(!std::mem::replace(&mut stream.has_end, true));
            }
            Event::Released { connection, ticket } => {
                let stream = application.streams.get_mut(&key(connection)).expect("is there");
                assert!(ticket > stream.released && ticket <= stream.ticket);
                stream.released = ticket;
                while let Some(&(last, region)) = stream.regions.front()
                    && last <= ticket
                {
                    stream.regions.pop_front();
                    self.hosts[host].memory.insert(region, vec![POISON; 1]);
                }
            }
            Event::Room { connection } => {
                let stream = application.streams.get_mut(&key(connection)).expect("is there");
                assert!(std::mem::replace(&mut stream.is_full, false), "room that nobody waited for");
            }
            Event::Ended { connection, why } => self.on_ended(host, connection, why),
        }
    }

    fn on_ended(&mut self, host: usize, connection: ConnectionId, why: Ended) {
        let application = &mut self.applications[host];
        let stream =
            application.streams.remove(&(connection.index, connection.generation)).expect("is there");
        if why == Ended::Unreachable && stream.queued == 0 {
            // All questions for the neighbour were lost.
            self.opened -= 1;
            return;
        }
        assert_eq!(why, Ended::Closed, "{}: {}", stream.key, self.describe());
        assert!(stream.has_end && stream.is_shut && stream.queued == stream.to_send);
        let tickets = (stream.submitted, stream.released);
        assert_eq!(tickets, (stream.ticket, stream.ticket), "memory was not submitted, or not released");
        application.finished += 1;
        let (sender, total) = (stream.key, stream.received);
        self.hosts[host].note("ended", &(sender, total));
    }

    /// What applications do on their own. Returns whether there may be more to do.
    fn act(&mut self, host: usize) -> bool {
        let now = self.now;
        let (hosts, application) = (&mut self.hosts, &mut self.applications[host]);
        let host = &mut hosts[host];
        let mut acted = false;
        while let Some(&Reverse((at, frame))) = application.held.peek()
            && at <= now
        {
            application.held.pop();
            host.with(now, |engine| engine.release(0, frame, now)).expect("was held");
            acted = true;
        }
        let ids: Vec<_> = application.streams.keys().copied().collect();
        for (index, generation) in ids {
            let id = ConnectionId { index, generation };
            let stream = application.streams.get_mut(&(index, generation)).expect("is there");
            if stream.is_shut || stream.is_full {
                continue;
            }
            if stream.queued == stream.to_send {
                let closes = stream.has_end && application.rng.random();
                let result = host.with(now, |engine| match closes {
                    true => engine.close(id, now),
                    false => engine.shutdown(id, now),
                });
                match result {
                    Ok(()) => (stream.is_shut, acted) = (true, true),
                    // SYN-SENT.
                    Err(Refusal::NotConnected) => {}
                    Err(refusal) => panic!("{refusal:?}"),
                }
                continue;
            }
            let most = *[1, 100, 3000, 200_000].get(application.rng.random_range(0..4)).unwrap();
            let length = application.rng.random_range(1..=most).min(stream.to_send - stream.queued) as u32;
            let region = application.next_region;
            application.next_region += 1;
            let (mut bytes, mut pieces, mut left) = (Vec::new(), Vec::new(), length);
            while left > 0 {
                let part = if pieces.len() == 3 { left } else { application.rng.random_range(1..=left) };
                if application.rng.random() {
                    bytes.extend([POISON; 3]);
                }
                let offset = bytes.len() as u32;
                let at = stream.queued + u64::from(length - left);
                bytes.extend((at..at + u64::from(part)).map(|at| content(at, stream.key, stream.direction)));
                pieces.push(PayloadRef { region, generation: 1, offset, length: part });
                left -= part;
            }
            host.memory.insert(region, bytes);
            let ticket = stream.ticket + 1;
            match host.with(now, |engine| engine.send(id, ticket, &pieces, now)) {
                Ok(()) => {
                    stream.ticket = ticket;
                    stream.queued += u64::from(length);
                    stream.regions.push_back((ticket, region));
                    acted = true;
                }
                Err(Refusal::Full) => stream.is_full = true,
                // Reset meanwhile: the event follows.
                Err(refusal) => {
                    panic!("{refusal:?} {index} {} {} {}", stream.key, stream.queued, stream.to_send)
                }
            }
        }
        acted
    }
}
