//! Reachability of a next hop, confirmed by connections (RFC 4861 §7.3.1): two engines, a clock in steps of one second.

use std::net::SocketAddr;

use inet::{Capacity, ConnectionId, Endpoint, Event, Link, Options, PayloadRef, Time};

use super::support::device::{Packet, tcp_at};
use super::support::host::Host;

const CAPACITY: Capacity = Capacity {
    connections: 4,
    listeners: 1,
    pieces: 256,
    segments: 256,
    time_waits: 2,
    neighbours: 8,
    frames: 64,
    tails: 8,
    clients: 1,
};
const RING: usize = 64;
const SECOND_US: u64 = 1_000_000;
/// REACHABLE_TIME and DELAY_FIRST_PROBE_TIME of RFC 4861 §10, s, and one second for the look.
const UNTIL_PROBE_S: u64 = 30 + 5 + 1;

/// Who asks for the neighbour of a frame: ARP or a neighbour solicitation.
fn is_question(packet: &Packet) -> bool {
    let frame = &packet.bytes;
    match frame[12..14] {
        [0x08, 0x06] => frame[20..22] == [0, 1],
        [0x86, 0xdd] => frame[20] == 58 && frame[54] == 135,
        _ => false,
    }
}

/// The client is host 0.
struct Pair {
    hosts: [Host; 2],
    connections: [ConnectionId; 2],
    now: Time,
    tickets: [u64; 2],
    questions: [usize; 2],
    /// Frames of this host do not arrive.
    silent: Option<usize>,
}

impl Pair {
    fn connected(is_v6: bool) -> Self {
        let hosts = [1u8, 2].map(|number| {
            let address = if is_v6 { format!("fd00::{number}") } else { format!("10.0.0.{number}") };
            let link = Link { mac: [2, 0, 0, 0, 0, number], mtu: 1500, segments: false };
            let addresses = [(address.parse().unwrap(), if is_v6 { 64 } else { 24 })];
            Host::new(&CAPACITY, &addresses, link, false, false)
        });
        let mut pair = Self {
            hosts,
            connections: [ConnectionId::default(); 2],
            now: Time(1_000_000_000),
            tickets: [0; 2],
            questions: [0; 2],
            silent: None,
        };
        let now = pair.now;
        for host in &mut pair.hosts {
            host.attach_driver(now);
            host.memory.insert(1, vec![7; 100]);
        }
        let server: SocketAddr = if is_v6 { "[fd00::2]:80" } else { "10.0.0.2:80" }.parse().unwrap();
        let server = Endpoint::from(server);
        let options = Options::default();
        let listener = pair.hosts[1].with(now, |engine| engine.listen(0, server, 1, options)).unwrap();
        let client =
            pair.hosts[0].with(now, |engine| engine.connect(0, Endpoint::default(), server, options, now));
        pair.settle();
        let accepted = pair.hosts[1].with(now, |engine| engine.accept(listener)).unwrap();
        pair.connections = [client.unwrap(), accepted];
        pair
    }

    /// Delivers all frames until none is left.
    fn settle(&mut self) {
        let now = self.now;
        loop {
            let mut is_quiet = true;
            for from in 0..2 {
                self.hosts[from].transmit(RING, now);
                while let Some(packet) = self.hosts[from].consume(now) {
                    is_quiet = false;
                    self.questions[from] += usize::from(is_question(&packet));
                    if self.silent != Some(from) {
                        self.hosts[1 - from].receive(&packet, now);
                    }
                }
                while let Some(event) = self.hosts[from].event(now) {
                    if let Event::Received { frame, .. } = event {
                        self.hosts[from].with(now, |engine| engine.release(0, frame, now)).unwrap();
                    }
                }
                self.hosts[from].take_free(now);
            }
            if is_quiet {
                return;
            }
        }
    }

    fn send(&mut self, from: usize) {
        let (now, connection) = (self.now, self.connections[from]);
        self.tickets[from] += 1;
        let ticket = self.tickets[from];
        let bytes = PayloadRef { region: 1, generation: 1, offset: 0, length: 100 };
        self.hosts[from].with(now, |engine| engine.send(connection, ticket, &[bytes], now)).unwrap();
    }

    /// The number of questions of both hosts in so many seconds, in each of which `act` is called.
    fn questions_in(&mut self, seconds: u64, mut act: impl FnMut(&mut Self, u64)) -> [usize; 2] {
        self.questions = [0; 2];
        for second in 0..seconds {
            self.now = self.now.after(SECOND_US);
            let now = self.now;
            for host in &mut self.hosts {
                while host.timeout(now).is_some_and(|at| at <= now) {
                    host.with(now, |engine| engine.on_timer(now));
                }
            }
            act(self, second);
            self.settle();
        }
        self.questions
    }
}

#[test]
fn a_neighbour_in_constant_use_is_not_probed() {
    for is_v6 in [false, true] {
        for (name, senders) in [("one way", &[0][..]), ("the other way", &[1]), ("both ways", &[0, 1])] {
            let mut pair = Pair::connected(is_v6);
            let questions =
                pair.questions_in(300, |pair, _| senders.iter().for_each(|&from| pair.send(from)));
            assert_eq!(questions, [0, 0], "{name}, v6 {is_v6}");
        }
    }
}

/// The first bytes after a long silence go to the known address, and their ACK confirms it before a probe is due.
#[test]
fn a_connection_that_wakes_up_confirms_its_neighbour() {
    let mut pair = Pair::connected(false);
    let questions = pair.questions_in(600, |pair, second| {
        if second % 100 == 0 {
            pair.send(0);
        }
    });
    // The peer's ACK is the last of each exchange: its next hop is in DELAY, and nothing comes to confirm it.
    assert_eq!(questions[0], 0);
}

#[test]
fn a_neighbour_that_acknowledges_nothing_is_probed() {
    let mut pair = Pair::connected(false);
    pair.silent = Some(1);
    assert_ne!(pair.questions_in(UNTIL_PROBE_S, |pair, _| pair.send(0))[0], 0);
}

/// Segments that a host off the path can make without knowing the numbers of the connection confirm nothing.
#[test]
fn forged_segments_confirm_nothing() {
    const CASES: [(&str, u32, u32); 4] = [
        ("an acknowledgement of what was acknowledged before", 0, 0),
        ("an acknowledgement of what was never sent", 0, 1 << 24),
        ("a number far behind the window", 1 << 30, 50),
        ("a number before the window", 1 << 31, 50),
    ];
    for (name, seq_offset, ack_offset) in CASES {
        let mut pair = Pair::connected(false);
        // The pattern of the forged ones: an ACK of the peer.
        let now = pair.now;
        pair.send(0);
        pair.hosts[0].transmit(RING, now);
        let sent = pair.hosts[0].consume(now).expect("a segment");
        pair.hosts[1].receive(&sent, now);
        pair.hosts[1].transmit(RING, now);
        let mut forged = pair.hosts[1].consume(now).expect("an ACK");
        pair.hosts[0].receive(&forged, now);
        pair.settle();
        pair.silent = Some(1);
        let tcp = tcp_at(&forged.bytes).expect("TCP");
        for (at, offset) in [(tcp + 4, seq_offset), (tcp + 8, ack_offset)] {
            let number = u32::from_be_bytes(forged.bytes[at..at + 4].try_into().unwrap());
            forged.bytes[at..at + 4].copy_from_slice(&number.wrapping_add(offset).to_be_bytes());
        }
        let questions = pair.questions_in(UNTIL_PROBE_S, |pair, _| {
            pair.send(0);
            let now = pair.now;
            pair.hosts[0].receive(&forged, now);
        });
        assert_ne!(questions[0], 0, "{name}");
    }
}
