//! Frames of any bytes, and built ones with altered fields, through `packet` and `iface`, with lookups, time and a driver
//! that is slow or starts again between them.

use std::collections::VecDeque;

use inet::iface::{INTERFACES_MAX, Iface, Neighbour, State, Verdict};
use inet::packet::{self, Parsed, TcpHeader};
use inet::{
    Address, Arrived, FrameId, HEADER_BYTES, Link, SEGMENT_BYTES_MAX, Source as Bytes, Time, Transmit,
    VNET_BYTES,
};

use crate::{Source, heap};

const HEAP_MAX: usize = 1 << 20;
const US: [u8; 6] = [2, 0, 0, 0, 0, 1];
const NEIGHBOURS: usize = 8;
/// Frames that replies may refer to at once: the bound of `iface`.
const HELD_MAX: usize = 16;
const V4: [[u8; 4]; 8] = [
    [10, 0, 0, 1],
    [10, 0, 0, 2],
    [10, 0, 0, 254],
    [8, 8, 8, 8],
    [10, 0, 0, 255],
    [0, 0, 0, 0],
    [224, 0, 0, 1],
    [127, 0, 0, 1],
];
const V6: [&str; 8] = [
    "fd00::1",
    "fd00::2",
    "fe80::ff:fe00:1",
    "ff02::1",
    "ff02::1:ff00:1",
    "::",
    "2a00::1",
    "::ffff:10.0.0.1",
];

pub fn inet_parse(bytes: &[u8]) {
    heap::within(HEAP_MAX, || World::new().run(&mut Source::new(bytes)));
}

struct World {
    state: State,
    neighbours: [Neighbour; NEIGHBOURS],
    now: Time,
    positions: [u64; INTERFACES_MAX],
    /// Frames that the interface holds, and their lengths.
    held: Vec<(FrameId, u32)>,
    /// Frames to which the driver has references, with the positions of its slots.
    at_driver: VecDeque<(u64, FrameId)>,
    next_frame: FrameId,
    /// Frames that were neither dropped nor merely used.
    others: u64,
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            state: State::default(),
            neighbours: [Neighbour::default(); NEIGHBOURS],
            now: Time(1_000_000_000),
            positions: [0; INTERFACES_MAX],
            held: Vec::new(),
            at_driver: VecDeque::new(),
            next_frame: 0,
            others: 0,
        };
        let addresses = [(0, [10, 0, 0, 1].into(), 24), (0, V6[0].parse().expect("an address"), 64)];
        Iface::format(
            &mut world.state,
            &mut world.neighbours,
            &addresses,
            &[[10, 0, 0, 254].into()],
            [1; 16],
        );
        world.iface().on_attached(0, Link { mac: US, mtu: 1500, segments: true });
        world
    }

    /// As after a restart of the process, each time.
    fn iface(&mut self) -> Iface<'_> {
        Iface::attach(&mut self.state, &mut self.neighbours)
    }

    fn run(mut self, source: &mut Source<'_>) {
        while !source.is_empty() {
            match source.below(16) {
                0 => {
                    let header = source.some(HEADER_BYTES + 1);
                    let length = (header.len() as u32).wrapping_add(source.number() % 66_000);
                    self.receive(source, header, length);
                }
                1..=9 => {
                    let mut frame = frame(source);
                    let length =
                        frame.len() as u32 + if source.rarely(8) { source.number() % 66_000 } else { 0 };
                    while source.rarely(4) {
                        let at = source.below(frame.len());
                        frame[at] = source.byte();
                    }
                    frame.truncate(HEADER_BYTES);
                    self.receive(source, &frame, length);
                }
                10 => {
                    let (remote, now) = (address(source), self.now);
                    let local = source.rarely(4).then(|| address(source));
                    let is_progress = source.rarely(4);
                    let mut iface = self.iface();
                    if let Ok(route) = iface.route(remote, local) {
                        assert!(iface.is_local(route.local) && !iface.is_local(route.next_hop));
                        iface.neighbour(&route, now);
                        if is_progress {
                            iface.confirm(&route, now);
                        }
                    }
                }
                11 | 12 => self.pass(u64::from(source.number())),
                13 => {
                    for _ in 0..source.below(8) {
                        self.transmit();
                    }
                }
                14 => {
                    let frames = source.below(8);
                    self.consume(frames);
                }
                _ => {
                    let link = Link { mac: US, mtu: source.number() as u16, segments: source.flag() };
                    self.iface().on_attached(0, link);
                }
            }
        }
        // In the end nothing is held and nothing waits.
        while self.transmit() {}
        self.consume(usize::MAX);
        assert!(self.held.is_empty(), "{} frames are held for ever", self.held.len());
        for _ in 0..8 {
            self.pass(1_000_000);
            while self.transmit() {}
        }
        assert_eq!(self.iface().poll_timeout(), Time::NEVER, "an idle interface has a timer");
        let counters = *self.iface().counters();
        let dropped: u64 = counters.dropped.iter().sum();
        assert!(dropped + self.others <= counters.received_frames);
    }

    fn receive(&mut self, source: &mut Source<'_>, header: &[u8], length: u32) {
        let frame = self.next_frame;
        self.next_frame += 1;
        let is_checked = !source.rarely(16);
        let arrived = Arrived { interface: 0, frame, header, length, is_checked, segment_bytes: 0 };
        let parsed = packet::parse(&arrived);
        let (start, bytes) = match parsed {
            Parsed::Tcp(tcp) => (tcp.payload_start, tcp.payload_bytes),
            Parsed::Icmp(ip) | Parsed::Refused(ip, _) => (ip.payload_start, ip.payload_bytes),
            Parsed::Arp | Parsed::Dropped(_) => (0, 0),
        };
        assert!(start.checked_add(bytes).is_some_and(|end| end <= length), "payload beyond the frame");
        let now = self.now;
        match self.iface().on_frame(&arrived, now) {
            Verdict::Tcp(tcp) => {
                assert_eq!(parsed, Parsed::Tcp(tcp));
                assert!(self.iface().is_local(tcp.destination.address));
                assert!(!self.iface().is_local(tcp.source.address));
                self.others += 1;
                round(&tcp);
            }
            Verdict::Error(error) => {
                assert!(self.iface().is_local(error.local.address));
                self.others += 1;
            }
            Verdict::Held => {
                self.held.push((frame, length));
                assert!(self.held.len() <= HELD_MAX, "more frames held than allowed");
                self.others += 1;
            }
            Verdict::Done => {}
        }
    }

    fn transmit(&mut self) -> bool {
        let mut slot = [0xaa; HEADER_BYTES];
        let positions = self.positions;
        let Some(transmit) = self.iface().poll_transmit(&mut slot, &positions) else { return false };
        self.positions[usize::from(transmit.interface)] += 1;
        let Transmit { header_bytes, sources, .. } = transmit;
        let mut length = u32::from(header_bytes);
        let mut refers = None;
        for bytes in sources.into_iter().flatten() {
            let Bytes::Frame { frame, start, length: count } = bytes else { panic!("bytes of a client") };
            let (_, whole) = self.held.iter().find(|(held, _)| *held == frame).expect("a frame that is held");
            assert!(start + count <= *whole, "bytes beyond the frame");
            length += count;
            refers = Some(frame);
        }
        // An echo without payload holds its frame too: the next one that is not referred to yet.
        let header = &slot[VNET_BYTES..][..usize::from(header_bytes)];
        let sent = Arrived { interface: 0, frame: 0, header, length, is_checked: true, segment_bytes: 0 };
        match packet::parse(&sent) {
            Parsed::Icmp(ip) if header[ip.payload_start as usize] < 135 || header[12] == 8 => {
                let is_known = |frame: &FrameId| self.at_driver.iter().any(|(_, known)| known == frame);
                let frame = refers.or_else(|| self.held.iter().map(|held| held.0).find(|it| !is_known(it)));
                self.at_driver.push_back((positions[0], frame.expect("a reply to a frame")));
            }
            Parsed::Icmp(_) | Parsed::Arp => assert_eq!(refers, None),
            other => panic!("sent {other:?}"),
        }
        true
    }

    /// The driver consumes its next `frames` frames that refer to others, and all that lie before them.
    fn consume(&mut self, frames: usize) {
        let mut consumed: Vec<_> = self.at_driver.drain(..frames.min(self.at_driver.len())).collect();
        let Some(&(last, _)) = consumed.last() else { return };
        self.iface().on_transmitted(0, last + 1);
        while let Some(frame) = self.iface().poll_free() {
            let place = self.held.iter().position(|held| held.0 == frame).expect("a frame that is held");
            self.held.remove(place);
            let place = consumed.iter().position(|(_, it)| *it == frame).expect("a frame that was consumed");
            consumed.swap_remove(place);
        }
        assert!(consumed.is_empty(), "a frame does not come back");
    }

    fn pass(&mut self, us: u64) {
        self.now = self.now.after(us);
        let now = self.now;
        self.iface().on_timer(now);
        assert!(self.iface().poll_timeout() > now, "a timer goes off for ever");
    }
}

/// What was read is written and read again as the same.
fn round(tcp: &TcpHeader) {
    let tcp = TcpHeader { payload_bytes: tcp.payload_bytes.min(SEGMENT_BYTES_MAX), ..*tcp };
    let mut slot = [0xaa; HEADER_BYTES];
    let emitted = packet::emit_tcp(&mut slot, US, US, &tcp);
    let header = &slot[VNET_BYTES..][..usize::from(emitted.header_bytes)];
    let length = header.len() as u32 + tcp.payload_bytes;
    let arrived = Arrived { interface: 0, frame: 0, header, length, is_checked: true, segment_bytes: 0 };
    let Parsed::Tcp(again) = packet::parse(&arrived) else { panic!("{:?}", packet::parse(&arrived)) };
    let ranges = usize::from(again.sack_count);
    assert!(again.sack_count <= tcp.sack_count && again.sack[..ranges] == tcp.sack[..ranges]);
    let TcpHeader { sack, sack_count, payload_start, .. } = again;
    assert_eq!(again, TcpHeader { sack, sack_count, payload_start, ..tcp });
}

fn address(source: &mut Source<'_>) -> Address {
    if source.flag() { v6(source) } else { Address::from(std::net::IpAddr::from(source.pick(&V4))) }
}

fn v6(source: &mut Source<'_>) -> Address {
    let ip: std::net::Ipv6Addr = source.pick(&V6).parse().expect("an address");
    Address(ip.octets())
}

fn mac(source: &mut Source<'_>) -> [u8; 6] {
    source.pick(&[US, [0xff; 6], [0x33, 0x33, 0, 0, 0, 1], [2, 0, 0, 0, 0, 9]])
}

/// A frame that is right, but for what its addresses mean.
fn frame(source: &mut Source<'_>) -> Vec<u8> {
    let mut frame = [mac(source), [2, 0, 0, 0, 0, 2]].concat();
    match source.below(3) {
        0 => {
            frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0]);
            frame.push(1 + source.byte() % 3);
            frame.extend([2, 0, 0, 0, 0, 2]);
            frame.extend(source.pick(&V4));
            frame.extend([0; 6]);
            frame.extend(source.pick(&V4));
        }
        1 => {
            let (protocol, payload) = match source.below(4) {
                0 => (6, segment(source)),
                1 => (1, icmp_v4(source)),
                2 => (1, vec![8, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3]),
                _ => (source.pick(&[17, 2, 99]), source.some(16).to_vec()),
            };
            let options = source.some(3);
            frame.extend([8, 0]);
            frame.extend(header_v4(source, protocol, options, &payload));
            frame.extend(payload);
        }
        _ => {
            let (mut next, mut payload) = match source.below(4) {
                0 => (6, segment(source)),
                1 => (58, icmp_v6(source)),
                2 => (58, discovery(source)),
                _ => (source.pick(&[17, 59, 99, 0]), source.some(16).to_vec()),
            };
            while source.rarely(3) && payload.len() < 1000 {
                let body = source.array::<6>();
                payload = [&[next, 0][..], &body, &payload].concat();
                next = source.pick(&[0, 60, 43, 44]);
            }
            frame.extend([0x86, 0xdd]);
            frame.extend(header_v6(source, next, &payload));
            frame.extend(payload);
        }
    }
    frame
}

fn header_v4(source: &mut Source<'_>, protocol: u8, options: &[u8], payload: &[u8]) -> Vec<u8> {
    let words = options.len() as u8;
    let total = (20 + 4 * usize::from(words) + payload.len()) as u16;
    let mut header = vec![0x45 + words, 0, 0, 0, 0, 0, 0x40, 0, 64, protocol, 0, 0];
    header[2..4].copy_from_slice(&total.to_be_bytes());
    header.extend(if source.rarely(4) { source.pick(&V4) } else { V4[1] });
    header.extend(if source.rarely(4) { source.pick(&V4) } else { V4[0] });
    options.iter().for_each(|&byte| header.extend([byte, 4, 0, 0]));
    let sum: u32 = header.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    let checksum = !((sum >> 16) + (sum & 0xffff)) as u16;
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    header
}

fn header_v6(source: &mut Source<'_>, next: u8, payload: &[u8]) -> Vec<u8> {
    let [high, low] = (payload.len() as u16).to_be_bytes();
    let mut header = vec![0x60, 0, 0, 0, high, low, next, if source.rarely(8) { 64 } else { 255 }];
    let known = |source: &mut Source<'_>, usual: &str| {
        if source.rarely(3) {
            v6(source).0
        } else {
            usual.parse::<std::net::Ipv6Addr>().expect("one").octets()
        }
    };
    header.extend(known(source, V6[1]));
    header.extend(known(source, V6[0]));
    header
}

fn segment(source: &mut Source<'_>) -> Vec<u8> {
    let options = source.some(41);
    let mut bytes = [&source.array::<12>()[..], &[0, source.byte(), 1, 0, 0, 0, 0, 0], options].concat();
    bytes.resize(bytes.len().next_multiple_of(4).min(60), 1);
    bytes[12] = ((bytes.len() / 4) as u8) << 4;
    bytes.extend(source.some(4));
    bytes
}

fn icmp_v4(source: &mut Source<'_>) -> Vec<u8> {
    let mut bytes = vec![source.pick(&[3, 11, 12, 5, 4]), source.byte() % 16, 0, 0, 0, 0];
    bytes.extend(source.array::<2>());
    let tcp = source.array::<8>();
    // Reversed addresses: it quotes what we sent.
    let mut quoted = header_v4(&mut Source::new(&[]), 6, &[], &tcp);
    quoted.copy_within(12..16, 16);
    quoted[12..16].copy_from_slice(&source.pick(&V4));
    bytes.extend(quoted);
    bytes.extend(tcp);
    bytes
}

fn icmp_v6(source: &mut Source<'_>) -> Vec<u8> {
    let mut bytes = vec![source.pick(&[128, 1, 2, 3, 4, 129, 137]), source.byte() % 8, 0, 0];
    bytes.extend(source.array::<4>());
    let tcp = source.array::<8>();
    let mut quoted = header_v6(&mut Source::new(&[]), 6, &tcp);
    quoted.copy_within(8..24, 24);
    quoted[8..24].copy_from_slice(&v6(source).0);
    bytes.extend(quoted);
    bytes.extend(tcp);
    bytes
}

fn discovery(source: &mut Source<'_>) -> Vec<u8> {
    let mut bytes = vec![source.pick(&[135, 136]), 0, 0, 0, source.byte(), 0, 0, 0];
    bytes.extend(v6(source).0);
    while source.flag() {
        bytes.extend([source.byte() % 4, 1, 2]);
        bytes.extend(source.array::<5>());
    }
    bytes
}
