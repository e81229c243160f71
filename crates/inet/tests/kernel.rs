//! An interface with Linux at the other end of a TAP, in a network namespace of the test: ping, ARP, neighbour
//! discovery, ICMP errors, the handshake of TCP. Run by `cargo test -p hikyaku-inet -- --ignored` as root.

use std::collections::{HashMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use inet::iface::{INTERFACES_MAX, Iface, Lookup, Neighbour, Route, State, Verdict};
use inet::packet::{Flags, Mac, TcpHeader};
use inet::{Address, Arrived, FrameId, HEADER_BYTES, Link, SeqNumber, Source, Time, Transmit, VNET_BYTES};
use socket2::{Domain, Protocol, Socket, Type};

// linux/if_tun.h and linux/virtio_net.h.
const TUNSETIFF: u64 = 0x4004_54ca;
const TUNSETOFFLOAD: u64 = 0x4004_54d0;
const TUNSETVNETHDRSZ: u64 = 0x4004_54d8;
const OFFLOADS: u64 = 7;
const NEEDS_CHECKSUM: u8 = 1;

const WAIT_MAX: Duration = Duration::from_secs(5);
const US: Mac = [2, 0, 0, 0, 0, 2];
const KERNEL: Mac = [2, 0, 0, 0, 0, 1];
const MTU: u16 = 9000;
const OURS: [&str; 2] = ["10.9.0.2", "fd00:9::2"];
const THEIRS: [&str; 2] = ["10.9.0.1", "fd00:9::1"];

/// `ip` of iproute2 with these words.
fn ip(words: &str) -> String {
    let output = Command::new("ip").args(words.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {words}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a test on a thread of its own in a new network namespace, which ends with it.
fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(|| {
        // SAFETY: moves the calling thread, and nothing else, into a new namespace.
        let result = unsafe { libc::unshare(libc::CLONE_NEWNET) };
        assert_eq!(result, 0, "a network namespace: {}", std::io::Error::last_os_error());
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn open_tap(name: &str) -> File {
    // SAFETY: plain numbers, for which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as i16;
    let tap = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")
        .unwrap();
    let mut header_bytes = VNET_BYTES as i32;
    // SAFETY: the requests read struct ifreq, an int, and a number.
    let results = unsafe {
        [
            libc::ioctl(tap.as_raw_fd(), TUNSETIFF as _, &raw mut request),
            libc::ioctl(tap.as_raw_fd(), TUNSETVNETHDRSZ as _, &raw mut header_bytes),
            libc::ioctl(tap.as_raw_fd(), TUNSETOFFLOAD as _, OFFLOADS),
        ]
    };
    assert_eq!(results, [0; 3], "a TAP interface: {}", std::io::Error::last_os_error());
    tap
}

/// An interface and its driver: whole frames, one at a time.
struct Station {
    tap: File,
    state: State,
    neighbours: Vec<Neighbour>,
    frames: HashMap<FrameId, Vec<u8>>,
    next_frame: FrameId,
    positions: [u64; INTERFACES_MAX],
    segments: VecDeque<TcpHeader>,
    begin: Instant,
    /// Added to the clock.
    skipped_us: u64,
}

impl Station {
    fn new() -> Self {
        let tap = open_tap("inet0");
        ip(&format!("link set dev inet0 address 02:00:00:00:00:01 mtu {MTU} up"));
        for (address, bits) in THEIRS.into_iter().zip([24, 64]) {
            let nodad = if bits == 64 { " nodad" } else { "" };
            ip(&format!("addr add {address}/{bits} dev inet0{nodad}"));
        }
        // Ping by sockets: the kernel verifies checksums before it delivers a reply to them.
        std::fs::write("/proc/sys/net/ipv4/ping_group_range", "0 2147483647").unwrap();
        let mut station = Self {
            tap,
            state: State::default(),
            neighbours: vec![Neighbour::default(); 64],
            frames: HashMap::new(),
            next_frame: 0,
            positions: [0; INTERFACES_MAX],
            segments: VecDeque::new(),
            begin: Instant::now(),
            skipped_us: 0,
        };
        let addresses = [(0, OURS[0].parse().unwrap(), 24), (0, OURS[1].parse().unwrap(), 64)];
        Iface::format(&mut station.state, &mut station.neighbours, &addresses, &[], [3; 16]);
        station.iface().on_attached(0, Link { mac: US, mtu: MTU, segments: true });
        station.wait_for("link", |_| {
            // Nothing is delivered before the kernel has noticed the carrier.
            ip("-o link show dev inet0").contains("LOWER_UP").then_some(())
        });
        station
    }

    fn iface(&mut self) -> Iface<'_> {
        Iface::attach(&mut self.state, &mut self.neighbours)
    }

    fn now(&self) -> Time {
        Time(1 + self.begin.elapsed().as_micros() as u64 + self.skipped_us)
    }

    fn wait_for<T>(&mut self, what: &str, mut wanted: impl FnMut(&mut Self) -> Option<T>) -> T {
        let begin = Instant::now();
        loop {
            self.turn();
            if let Some(found) = wanted(self) {
                return found;
            }
            assert!(begin.elapsed() < WAIT_MAX, "no {what}: {:?}", self.iface().counters());
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Takes all frames, then timers, then sends all that is to be sent.
    fn turn(&mut self) {
        let mut buffer = vec![0; 66_000];
        loop {
            match self.tap.read(&mut buffer) {
                Ok(bytes) => self.receive(&buffer[..bytes]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        let now = self.now();
        self.iface().on_timer(now);
        let mut slot = [0; HEADER_BYTES];
        let mut positions = self.positions;
        while let Some(transmit) = self.iface().poll_transmit(&mut slot, &positions) {
            self.send(&slot, &transmit);
            positions = self.positions;
        }
        while let Some(frame) = self.iface().poll_free() {
            assert!(self.frames.remove(&frame).is_some(), "a frame that was not held");
        }
    }

    fn receive(&mut self, read: &[u8]) {
        let (header, frame) = read.split_at(VNET_BYTES);
        let id = self.next_frame;
        self.next_frame += 1;
        let now = self.now();
        let arrived = Arrived {
            interface: 0,
            frame: id,
            header: &frame[..frame.len().min(HEADER_BYTES)],
            length: frame.len() as u32,
            is_checked: header[0] & NEEDS_CHECKSUM != 0 || is_icmp_right(frame),
            segment_bytes: 0,
        };
        match self.iface().on_frame(&arrived, now) {
            Verdict::Tcp(header) => self.segments.push_back(header),
            Verdict::Held => {
                self.frames.insert(id, frame.to_vec());
            }
            Verdict::Done | Verdict::Error(_) => {}
        }
    }

    fn send(&mut self, slot: &[u8; HEADER_BYTES], transmit: &Transmit) {
        let mut header = [0; VNET_BYTES];
        if transmit.checksum_offset != 0 {
            header[0] = NEEDS_CHECKSUM;
            header[6..8].copy_from_slice(&transmit.checksum_start.to_le_bytes());
            header[8..10].copy_from_slice(&transmit.checksum_offset.to_le_bytes());
        }
        let mut frame = [&header, &slot[VNET_BYTES..][..transmit.header_bytes.into()]].concat();
        for source in transmit.sources.into_iter().flatten() {
            let Source::Frame { frame: id, start, length } = source else { panic!("{source:?}") };
            frame.extend_from_slice(&self.frames[&id][start as usize..][..length as usize]);
        }
        self.tap.write_all(&frame).unwrap();
        self.positions[0] += 1;
        let position = self.positions[0];
        self.iface().on_transmitted(0, position);
    }

    fn route(&mut self, remote: &str) -> Route {
        self.iface().route(remote.parse::<IpAddr>().unwrap().into(), None).unwrap()
    }

    fn neighbour(&mut self, remote: &str) -> Lookup {
        let (route, now) = (self.route(remote), self.now());
        self.iface().neighbour(&route, now)
    }

    /// What the kernel thinks of our address.
    fn neighbour_state(&self, ours: &str) -> String {
        ip(&format!("neigh show {ours} dev inet0")).trim().to_owned()
    }
}

/// The checksum of a whole ICMP message, which the kernel computes and does not vouch for.
fn is_icmp_right(frame: &[u8]) -> bool {
    let sum = |bytes: &[u8]| -> u32 {
        bytes
            .chunks(2)
            .map(|word| u32::from(word[0]) << 8 | word.get(1).map_or(0, |&low| u32::from(low)))
            .sum()
    };
    let total = match frame.get(12..14) {
        Some([0x08, 0x00]) if frame[23] == 1 => sum(&frame[34..]),
        Some([0x86, 0xdd]) => {
            // Behind the hop-by-hop header of a report of group members there is nothing for this interface.
            sum(&frame[22..]) + u32::from(frame[20]) + (frame.len() - 54) as u32
        }
        _ => return false,
    };
    let folded = (total >> 16) + (total & 0xffff);
    (folded >> 16) + (folded & 0xffff) == 0xffff
}

fn ping(station: &mut Station, target: &str, bytes: usize) {
    let ip: IpAddr = target.parse().unwrap();
    let (domain, protocol, request, reply) = match ip {
        IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4, 8, 0),
        IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6, 128, 129),
    };
    let socket = Socket::new(domain, Type::DGRAM, Some(protocol)).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket.connect(&SocketAddr::new(ip, 0).into()).unwrap();
    for sequence in 1..=3u8 {
        let mut message = vec![request, 0, 0, 0, 0, 0, 0, sequence];
        message.extend((0..bytes).map(|byte| (byte * 7) as u8 ^ sequence));
        socket.send(&message).unwrap();
        let answer = station.wait_for("echo reply", |_| {
            let mut buffer = vec![0; 10_000];
            let length = (&socket).read(&mut buffer).ok()?;
            buffer.truncate(length);
            Some(buffer)
        });
        assert_eq!((answer[0], &answer[6..]), (reply, &message[6..]), "{target} {bytes}");
    }
}

#[test]
#[ignore = "needs root and /dev/net/tun"]
fn the_kernel_pings_and_resolves_us() {
    in_namespace(|| {
        let mut station = Station::new();
        for target in OURS {
            for bytes in [0, 1, 56, 1400, 8000] {
                ping(&mut station, target, bytes);
            }
            let state = station.neighbour_state(target);
            assert!(state.contains("lladdr 02:00:00:00:00:02"), "{state}");
            // Its probes of reachability are answered, which TCP would make unnecessary.
            ip(&format!("neigh change {target} dev inet0 lladdr 02:00:00:00:00:02 nud delay"));
            ip(&format!("neigh change {target} dev inet0 lladdr 02:00:00:00:00:02 nud probe"));
            station.wait_for("reachability", |station| {
                station.neighbour_state(target).contains("REACHABLE").then_some(())
            });
        }
        // To the link-local address, and to all nodes.
        let local = "fe80::ff:fe00:2";
        let socket = Socket::new(Domain::IPV6, Type::DGRAM, Some(Protocol::ICMPV6)).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket.set_multicast_if_v6(2).unwrap();
        let index = ip("-o link show dev inet0").split(':').next().unwrap().parse().unwrap();
        for target in [local, "ff02::1"] {
            let to = std::net::SocketAddrV6::new(target.parse().unwrap(), 0, 0, index);
            station.wait_for("echo reply", |_| {
                let _ = socket.send_to(&[128, 0, 0, 0, 0, 0, 0, 9], &SocketAddr::from(to).into());
                let mut buffer = [std::mem::MaybeUninit::uninit(); 100];
                let (_, from) = socket.recv_from(&mut buffer).ok()?;
                (from.as_socket().unwrap().ip() == local.parse::<IpAddr>().unwrap()).then_some(())
            });
        }
        assert_eq!(station.iface().counters().replies_lost, 0);
        assert!(station.frames.is_empty());
    });
}

#[test]
#[ignore = "needs root and /dev/net/tun"]
fn we_resolve_the_kernel() {
    in_namespace(|| {
        let mut station = Station::new();
        for (target, absent) in THEIRS.into_iter().zip(["10.9.0.77", "fd00:9::77"]) {
            assert_eq!(station.neighbour(target), Lookup::Asked);
            let changes = station.iface().changes();
            station.wait_for("resolution", |station| (station.iface().changes() != changes).then_some(()));
            assert_eq!(station.neighbour(target), Lookup::Known(KERNEL));
            // Long after that it is used, probed and confirmed.
            station.skipped_us += 60_000_000;
            assert_eq!(station.neighbour(target), Lookup::Known(KERNEL));
            station.skipped_us += 5_000_000;
            let sent = station.iface().counters().sent_frames;
            station
                .wait_for("probe", |station| (station.iface().counters().sent_frames > sent).then_some(()));
            station.wait_for("confirmation", |station| {
                (station.iface().poll_timeout() == Time::NEVER).then_some(())
            });
            station.iface().on_timer(Time::NEVER);
            assert_eq!(station.neighbour(absent), Lookup::Asked);
            for _ in 0..4 {
                station.skipped_us += 1_000_000;
                station.turn();
            }
            assert_eq!(station.neighbour(absent), Lookup::Failed);
        }
        // The kernel gets another MAC address, and says so.
        std::fs::write("/proc/sys/net/ipv4/conf/inet0/arp_notify", "1").unwrap();
        ip("link set dev inet0 address 02:00:00:00:00:07");
        let changed = Lookup::Known([2, 0, 0, 0, 0, 7]);
        station.wait_for("gratuitous ARP", |station| (station.neighbour(THEIRS[0]) == changed).then_some(()));
    });
}

/// The checksum of an error is partial, over bytes that only the driver reads: the kernel believes it.
#[test]
#[ignore = "needs root and /dev/net/tun"]
fn the_kernel_understands_our_errors() {
    in_namespace(|| {
        let mut station = Station::new();
        for (ours, theirs) in OURS.into_iter().zip(THEIRS) {
            for bytes in [1, 1000, 8000] {
                let socket = std::net::UdpSocket::bind((theirs, 0)).unwrap();
                socket.set_nonblocking(true).unwrap();
                socket.connect((ours, 5000)).unwrap();
                socket.send(&vec![9; bytes]).unwrap();
                let error = station.wait_for("port unreachable", |_| match socket.recv(&mut [0; 8]) {
                    Err(error) if error.kind() != ErrorKind::WouldBlock => Some(error.kind()),
                    _ => None,
                });
                assert_eq!(error, ErrorKind::ConnectionRefused);
            }
        }
        // A next header that is not implemented (RFC 4443 §3.4, code 1).
        let socket = Socket::new(Domain::IPV6, Type::RAW, Some(Protocol::from(253))).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket.connect(&SocketAddr::new(OURS[1].parse().unwrap(), 0).into()).unwrap();
        socket.send(b"eight bytes").unwrap();
        let error = station.wait_for("parameter problem", |_| socket.take_error().unwrap());
        assert_eq!(error.raw_os_error(), Some(libc::EPROTO));
    });
}

#[test]
#[ignore = "needs root and /dev/net/tun"]
fn headers_of_tcp_pass_in_both_directions() {
    in_namespace(|| {
        let mut station = Station::new();
        for (ours, theirs) in OURS.into_iter().zip(THEIRS) {
            let ours = SocketAddr::new(ours.parse().unwrap(), 3260);
            let socket = Socket::new(Domain::for_address(ours), Type::STREAM, None).unwrap();
            socket.set_nonblocking(true).unwrap();
            let _ = socket.connect(&ours.into());
            let syn = station.wait_for("SYN", |station| station.segments.pop_front());
            assert_eq!(syn.destination, ours.into());
            assert_eq!(syn.flags, Flags::SYN);
            let headers = if ours.is_ipv4() { 40 } else { 60 };
            assert_eq!((syn.mss, syn.has_sack_permitted), (Some(MTU - headers), true));
            assert!(syn.window_scale.is_some() && syn.timestamps.is_some() && syn.payload_bytes == 0);
            let answer = TcpHeader {
                source: syn.destination,
                destination: syn.source,
                seq: SeqNumber(1000),
                ack: syn.seq + 1,
                flags: Flags::SYN | Flags::ACK,
                window: 20_000,
                mss: Some(1400),
                window_scale: Some(3),
                has_sack_permitted: true,
                timestamps: syn.timestamps.map(|(value, _)| (77, value)),
                ..TcpHeader::default()
            };
            emit(&mut station, theirs, &answer, &[]);
            let ack = station.wait_for("ACK", |station| station.segments.pop_front());
            assert_eq!((ack.flags, ack.seq, ack.ack), (Flags::ACK, syn.seq + 1, SeqNumber(1001)));
            assert_eq!(ack.timestamps.map(|(_, echo)| echo), Some(77));
            let data = TcpHeader {
                seq: SeqNumber(1001),
                flags: Flags::ACK | Flags::PSH,
                mss: None,
                window_scale: None,
                has_sack_permitted: false,
                payload_bytes: 3,
                ..answer
            };
            // Behind a hole: the acknowledgement has a range.
            let behind = TcpHeader { seq: SeqNumber(1004), ..data };
            emit(&mut station, theirs, &behind, b"def");
            let ack = station.wait_for("SACK", |station| station.segments.pop_front());
            assert_eq!(
                (ack.ack, ack.sack_count, ack.sack[0]),
                (SeqNumber(1001), 1, (SeqNumber(1004), SeqNumber(1007)))
            );
            emit(&mut station, theirs, &data, b"abc");
            let mut received = [0; 6];
            station.wait_for("data", |_| (&socket).read_exact(&mut received).ok());
            assert_eq!(&received, b"abcdef");
            (&socket).write_all(b"xyz").unwrap();
            let segment = station.wait_for("data", |station| {
                station.segments.pop_front().filter(|segment| segment.payload_bytes > 0)
            });
            assert_eq!((segment.payload_bytes, segment.ack), (3, SeqNumber(1007)));
            let reset =
                TcpHeader { seq: SeqNumber(1007), flags: Flags::RST | Flags::ACK, payload_bytes: 0, ..data };
            emit(&mut station, theirs, &reset, &[]);
            let error = station.wait_for("reset", |_| socket.take_error().unwrap());
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        }
    });
}

/// Sends a segment with a partial checksum to the kernel.
fn emit(station: &mut Station, theirs: &str, tcp: &TcpHeader, payload: &[u8]) {
    let route = station.route(theirs);
    let mac = station.wait_for("neighbour", |station| match station.neighbour(theirs) {
        Lookup::Known(mac) => Some(mac),
        _ => None,
    });
    let mut slot = [0; HEADER_BYTES];
    let emitted = station.iface().emit_tcp(&mut slot, &route, mac, tcp);
    let end = VNET_BYTES + usize::from(emitted.header_bytes);
    slot[end..end + payload.len()].copy_from_slice(payload);
    let transmit = Transmit {
        interface: 0,
        header_bytes: emitted.header_bytes + payload.len() as u16,
        sources: [None; inet::GATHER_MAX],
        checksum_start: emitted.checksum_start,
        checksum_offset: emitted.checksum_offset,
        segment_bytes: 0,
        submitted: None,
    };
    station.send(&slot, &transmit);
    assert_eq!(route.next_hop, Address::from(theirs.parse::<IpAddr>().unwrap()));
}
