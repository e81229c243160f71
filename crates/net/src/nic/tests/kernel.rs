//! The driver with Linux at the other end of the cable, in a network namespace of the test.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Instant;

use super::frames::{ACK, FIN, Flow, SYN, Tcp, V4, V6, echo_frame};
use super::*;
use crate::nic::{packet, tap};
use crate::slot::input;

const PATIENCE: Duration = Duration::from_secs(10);
const PORT: u16 = 80;

/// Runs a test on a thread of its own in a new network namespace, which ends with it.
pub(super) fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(|| {
        // SAFETY: only this thread moves, and it shares no descriptors' namespace with others by that.
        let result = unsafe { libc::unshare(libc::CLONE_NEWNET) };
        assert_eq!(result, 0, "a network namespace: {}", io::Error::last_os_error());
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// `ip` of iproute2 with these words.
pub(super) fn ip(words: &str) {
    let output = Command::new("ip").args(words.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {words}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Gives the kernel's end the addresses of [`V4`] and [`V6`].
fn address(name: &str) {
    ip(&format!("link set dev {name} address 02:00:00:00:00:02 up"));
    ip(&format!("addr add 10.9.0.1/24 dev {name}"));
    ip(&format!("addr add fd00:9::1/64 dev {name} nodad"));
    neighbours(name);
}

/// Neighbours of the kernel's end; they go when the interface goes down.
fn neighbours(name: &str) {
    ip(&format!("neigh replace 10.9.0.2 lladdr 02:00:00:00:00:01 dev {name} nud permanent"));
    ip(&format!("neigh replace fd00:9::2 lladdr 02:00:00:00:00:01 dev {name} nud permanent"));
}

fn tap_device() -> Opened {
    let opened = tap::open("hk0").unwrap();
    address("hk0");
    opened
}

fn packet_device() -> Opened {
    ip("link add hka type veth peer name hkb");
    address("hkb");
    packet::open("hka", LINK.mac).unwrap()
}

/// A stack that a test plays by hand.
struct Station {
    rig: Rig,
    driver: Option<Driver>,
    descriptor: OwnedFd,
    kind: control::Device,
    epoch: u32,
    arrived: VecDeque<(Input, Vec<u8>)>,
}

impl Station {
    fn new(opened: Opened, kind: control::Device) -> Self {
        assert_eq!(opened.mtu, 1500);
        let mut station = Self {
            rig: Rig::new(),
            driver: None,
            descriptor: opened.descriptor,
            kind,
            epoch: 0,
            arrived: VecDeque::new(),
        };
        station.restart();
        station
    }

    /// The next driver, over the same memory and device. All memory is free: frames were read.
    fn restart(&mut self) {
        self.read();
        self.epoch += 1;
        self.driver = None;
        let device = Device::new(self.descriptor.try_clone().unwrap(), &self.kind, LINK.mtu);
        self.driver = Some(self.rig.driver(device, self.epoch));
        self.rig.fill(self.epoch, &(0..16).collect::<Vec<_>>(), &(0..12).collect::<Vec<_>>());
    }

    /// Takes all frames out of their memory.
    fn read(&mut self) {
        while let Some(input) = self.rig.input() {
            if input.code == input::FRAME {
                self.arrived.push_back((input, self.rig.bytes(&input)));
                let tails = if input.tail == NO_TAIL { &[][..] } else { &[input.tail] };
                self.rig.fill(self.epoch, &[input.head], tails);
            }
        }
    }

    /// The next frame that arrives, if there is one.
    fn poll(&mut self) -> Option<(Input, Vec<u8>)> {
        if self.arrived.is_empty() {
            self.driver.as_mut().unwrap().turn().unwrap();
            self.read();
        }
        self.arrived.pop_front()
    }

    fn wait_for<T>(&mut self, what: &str, mut wanted: impl FnMut(&Input, &[u8]) -> Option<T>) -> T {
        let begin = Instant::now();
        loop {
            if let Some(found) = self.poll().and_then(|(input, bytes)| wanted(&input, &bytes)) {
                return found;
            }
            assert!(begin.elapsed() < PATIENCE, "no {what}: {:?}", self.driver.as_ref().unwrap().counts());
            std::thread::yield_now();
        }
    }
}

/// Sends echo requests until one is answered: the kernel sends nothing until it has noticed that the link is up.
fn wait_for_link(station: &mut Station) {
    let begin = Instant::now();
    let mut submitted = None;
    while station.poll().is_none_or(|(_, bytes)| bytes.get(23) != Some(&1)) {
        assert!(begin.elapsed() < PATIENCE, "no echo reply");
        if submitted.is_none_or(|at: Instant| at.elapsed() > Duration::from_millis(20)) {
            station.rig.submit(&echo_frame(&V4, b"link"), plain(&[]));
            submitted = Some(Instant::now());
        }
    }
}

fn echo(station: &mut Station) {
    wait_for_link(station);
    for flow in [V4, V6] {
        for length in [0, 1, 1400] {
            let frame = echo_frame(&flow, &noise(length, 8));
            let header = flow.header_bytes();
            let payload = frame[header + 8..].to_vec();
            station.rig.write_region(0, &payload);
            station.rig.submit(&frame[..header + 8], plain(&[(0, length as u32)]));
            let reply = if flow.is_v6() { 129 } else { 0 };
            station.wait_for("echo reply", |input, bytes| {
                let is_reply = bytes.get(header) == Some(&reply) && bytes[header + 8..] == payload;
                is_reply.then(|| assert_eq!(input.is_checked, 1))
            });
        }
    }
}

/// What the test reads of a TCP frame.
#[derive(Clone, Copy, Debug)]
struct Segment {
    source_port: u16,
    seq: u32,
    ack: u32,
    flags: u8,
    window: u32,
    /// Of a SYN: how far windows are shifted (RFC 7323 §2.2).
    scale: u8,
    start: usize,
}

fn segment(flow: &Flow, frame: &[u8]) -> Option<Segment> {
    let tcp = frame.get(flow.header_bytes()..)?;
    let protocol = if flow.is_v6() { frame[20] } else { frame[23] };
    let kind = if flow.is_v6() { [0x86, 0xdd] } else { [8, 0] };
    if frame[12..14] != kind || protocol != 6 || tcp[2..4] != PORT.to_be_bytes() {
        return None;
    }
    let options = &tcp[20..usize::from(tcp[12] >> 4) * 4];
    let scale =
        options.windows(3).find_map(|option| (option[..2] == [3, 3]).then_some(option[2])).unwrap_or(0);
    let word = |at: usize| u32::from_be_bytes(*tcp[at..].first_chunk().unwrap());
    Some(Segment {
        source_port: u16::from_be_bytes([tcp[0], tcp[1]]),
        seq: word(4),
        ack: word(8),
        flags: tcp[13],
        window: u16::from_be_bytes([tcp[14], tcp[15]]).into(),
        scale,
        start: flow.header_bytes() + usize::from(tcp[12] >> 4) * 4,
    })
}

/// A TCP connection that the kernel opens, with bytes both ways in frames of up to 64 KiB, while drivers follow one
/// another.
fn stream(station: &mut Station, flow: Flow, to: SocketAddr) {
    const UP: usize = 8 << 20;
    const DOWN: usize = 4 << 20;
    const SCALE: u32 = 7;
    let up = noise(UP, 1);
    let down = noise(DOWN, 2);
    let (sent, expected) = (up.clone(), down.clone());
    let kernel = std::thread::spawn(move || {
        let mut stream = TcpStream::connect(to).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&sent).unwrap();
        let mut received = vec![0; DOWN];
        stream.read_exact(&mut received).unwrap();
        assert!(received == expected, "what the kernel received");
        // RST: a connection that waits for the answer to its FIN would keep the namespace for minutes.
        rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    });
    let syn =
        station.wait_for("SYN", |_, frame| segment(&flow, frame).filter(|segment| segment.flags & SYN != 0));
    let ports = [PORT, syn.source_port];
    let mut tcp = Tcp {
        seq: 1000,
        ack: syn.seq.wrapping_add(1),
        flags: SYN | ACK,
        options: &[2, 4, 5, 180, 1, 3, 3, SCALE as u8],
    };
    let send = |station: &mut Station, tcp: &Tcp<'_>, offset: usize, length: usize| {
        let header = flow.tcp(ports, tcp, length);
        let mss = 1500 - (header.len() - 14);
        let transmit = Transmit {
            checksum_start: flow.header_bytes() as u16,
            checksum_offset: 16,
            segment_bytes: if length > mss { mss as u16 } else { 0 },
            ..plain(&[(offset as u32, length as u32)])
        };
        station.rig.submit(&header, transmit);
    };
    send(station, &tcp, 0, 0);
    tcp = Tcp { seq: 1001, flags: ACK, options: &[], ..tcp };

    // From the kernel.
    let (mut received, mut longest, mut restarts) = (0, 0, 0);
    while received < UP {
        let (frame, found) = station.wait_for("data", |input, frame| {
            let found = segment(&flow, frame).filter(|segment| frame.len() > segment.start)?;
            assert_eq!(input.is_checked, 1);
            let is_long = frame.len() > 1514;
            assert_eq!(input.segment_bytes > 0, is_long, "{} bytes", frame.len());
            Some((frame.to_vec(), found))
        });
        if found.seq == tcp.ack {
            let payload = &frame[found.start..];
            assert!(*payload == up[received..][..payload.len()], "at {received}");
            received += payload.len();
            longest = longest.max(frame.len());
            tcp.ack = tcp.ack.wrapping_add(payload.len() as u32);
        }
        send(station, &tcp, 0, 0);
        if received > UP / 4 * (restarts + 1) {
            // The acknowledgement waits in the ring for the next driver.
            restarts += 1;
            station.restart();
        }
    }
    assert!(longest > 60_000, "the longest frame from the kernel has {longest} bytes");

    // To the kernel.
    let (mut acked, mut written, mut window, mut longest, mut restarts) = (0, 0, 20_000, 0, 0);
    while acked < DOWN {
        let length = (DOWN - written).min(65_160).min((acked + window).saturating_sub(written));
        // The region has room for what is not acknowledged.
        let has_room = written - acked + length <= REGION_BYTES / 2;
        if length > 0 && (written == acked || length == 65_160 && has_room) {
            let slot = written % (REGION_BYTES / 2);
            station.rig.write_region(slot, &down[written..][..length]);
            let tcp = Tcp { seq: 1001 + written as u32, ..tcp };
            send(station, &tcp, slot, length);
            longest = longest.max(length);
            written += length;
            if written > DOWN / 4 * (restarts + 1) {
                restarts += 1;
                station.restart();
            }
            continue;
        }
        let ack = station.wait_for("ACK", |_, frame| segment(&flow, frame));
        assert_eq!(ack.flags & !FIN & ACK, ACK);
        acked = acked.max(ack.ack.wrapping_sub(1001) as usize);
        window = (ack.window << syn.scale) as usize;
    }
    assert_eq!(longest, 65_160, "the longest frame to the kernel");
    kernel.join().unwrap();
    let counts = station.driver.as_ref().unwrap().counts();
    assert_eq!((counts.bad_frames, counts.bad_fills, counts.bad_checksums, counts.refused), (0, 0, 0, 0));
}

fn all(station: &mut Station) {
    echo(station);
    for (flow, ip) in [(V4, V4.source), (V6, V6.source)] {
        stream(station, flow, SocketAddr::new(ip, PORT));
    }
}

#[test]
#[ignore = "needs root: makes a network namespace and a TAP interface"]
fn tap_carries_echoes_and_streams_while_drivers_follow_one_another() {
    in_namespace(|| all(&mut Station::new(tap_device(), control::Device::Tap)));
}

#[test]
#[ignore = "needs root: makes a network namespace and a pair of veth interfaces"]
fn packet_carries_echoes_and_streams_while_drivers_follow_one_another() {
    in_namespace(|| all(&mut Station::new(packet_device(), control::Device::Packet)));
}

#[test]
#[ignore = "needs root: makes a network namespace"]
fn devices_that_cannot_be_opened_say_why() {
    in_namespace(|| {
        let why = |result: io::Result<Opened>| result.unwrap_err().to_string();
        let _held = tap_device();
        let taken = why(tap::open("hk0"));
        assert!(taken.contains("has it open: "), "{taken}");
        ip("link add hka type veth peer name hkb");
        assert!(why(tap::open("hka")).starts_with("it exists and is not a TAP interface, "));
        assert!(why(tap::open("a name that is too long")).contains("has 1 to 15 bytes"));
        assert!(why(tap::open("")).contains("has 1 to 15 bytes"));
        assert_eq!(why(packet::open("absent", LINK.mac)), "no such interface");
    });
}

#[test]
#[ignore = "needs root: makes a network namespace and interfaces"]
fn an_interface_that_is_down_loses_frames_and_one_that_is_deleted_ends_the_driver() {
    for (open, kind, name, kernels_end) in [
        (tap_device as fn() -> Opened, control::Device::Tap, "hk0", "hk0"),
        (packet_device, control::Device::Packet, "hka", "hkb"),
    ] {
        in_namespace(move || {
            let mut station = Station::new(open(), kind);
            echo(&mut station);
            let frame = echo_frame(&V4, &[]);
            let turn = |station: &mut Station| {
                station.rig.submit(&frame, plain(&[]));
                let driver = station.driver.as_mut().unwrap();
                (driver.turn().map(|_| ()), driver.counts().refused)
            };
            ip(&format!("link set dev {name} down"));
            assert!(matches!(turn(&mut station), (Ok(()), 1)));
            assert!(matches!(turn(&mut station), (Ok(()), 2)));
            ip(&format!("link set dev {name} up"));
            if name == kernels_end {
                ip("addr replace fd00:9::1/64 dev hk0 nodad");
            }
            neighbours(kernels_end);
            assert!(matches!(turn(&mut station), (Ok(()), 2)));
            wait_for_link(&mut station);
            ip(&format!("link del {name}"));
            assert!(matches!(turn(&mut station), (Err(Fault::Gone(_)), _)));
        });
    }
    // Where the socket has reported that it is down, only sending says that it is deleted.
    in_namespace(|| {
        let mut station = Station::new(packet_device(), control::Device::Packet);
        ip("link set dev hka down");
        settle(station.driver.as_mut().unwrap());
        ip("link del hka");
        settle(station.driver.as_mut().unwrap());
        station.rig.submit(&echo_frame(&V4, &[]), plain(&[]));
        assert!(matches!(station.driver.as_mut().unwrap().turn(), Err(Fault::Gone(_))));
    });
}

#[test]
#[ignore = "needs root: makes a network namespace and a pair of veth interfaces"]
fn packet_takes_frames_for_its_station_and_groups_only() {
    in_namespace(|| {
        let mut station = Station::new(packet_device(), control::Device::Packet);
        wait_for_link(&mut station);
        // What the host sends on the interface is for the network.
        ip("link set dev hka address 02:00:00:00:00:07");
        ip("addr add 10.8.0.1/24 dev hka");
        let host = std::net::UdpSocket::bind("10.8.0.1:0").unwrap();
        host.set_broadcast(true).unwrap();
        for _ in 0..10 {
            host.send_to(b"to all", "10.8.0.255:9").unwrap();
            std::thread::sleep(Duration::from_millis(5));
        }
        let raw = packet::open("hkb", V4.destination_mac).unwrap().descriptor;
        let to = |destination: [u8; 6], mark: u8| {
            [&[0; 10][..], &destination, &V4.destination_mac, &[0x88, 0xb5], &[mark; 46]].concat()
        };
        let tagged = |destination: [u8; 6], mark: u8| {
            let mut frame = to(destination, mark);
            frame.splice(22..22, [0x81, 0, 0, 5]);
            frame
        };
        let frames = [
            to(LINK.mac, 1),
            to([2, 0, 0, 0, 0, 9], 2),
            to([0xff; 6], 3),
            to([0x33, 0x33, 0xff, 0, 0, 2], 4),
            to([LINK.mac[0], 0, 0, 0, 1, LINK.mac[5]], 5),
            tagged(LINK.mac, 6),
            to(LINK.mac, 7),
        ];
        for frame in &frames {
            assert_eq!(rustix::io::write(&raw, frame), Ok(frame.len()));
        }
        let mut marks = Vec::new();
        while marks.last() != Some(&7) {
            let mark = station.wait_for("frame", |_, frame| {
                assert_ne!(frame[6..12], [2, 0, 0, 0, 0, 7], "a frame of the host");
                (frame[12..14] == [0x88, 0xb5]).then_some(frame[20])
            });
            marks.push(mark);
        }
        assert_eq!(marks, [1, 3, 4, 7]);
    });
}
