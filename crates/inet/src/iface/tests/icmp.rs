use proptest::prelude::*;

use super::*;

/// RFC 1122 §3.2.2.6, RFC 4443 §4.2: the same bytes come back; the checksum is right although none of them was read.
#[test]
fn echoes_have_the_bytes_of_their_request() {
    let mut bench = Bench::new();
    bench.iface().on_attached(0, Link { mac: US, mtu: 9000, segments: true });
    bench.sent();
    for (source, destination, kind) in
        [("10.0.0.2", "10.0.0.1", 0), ("fd00::2", "fd00::1", 129), ("fe80::2", LOCAL, 129)]
    {
        for bytes in [0, 1, 56, 1400, 8000] {
            let request = echo(source, destination, bytes);
            assert_eq!(bench.receive(request.clone()), Verdict::Held);
            let sent = bench.sent_frames();
            let expected = format!("m2: {destination} > {source}: icmp {kind}.0 [18, 52, 0, 1] {bytes}");
            assert_eq!(line(&sent[0]), expected);
            assert_eq!(sent[0][sent[0].len() - bytes..], request[request.len() - bytes..]);
            assert_eq!(bench.iface().poll_free(), None, "the driver has not written it");
            let position = bench.positions[0];
            bench.iface().on_transmitted(0, position - 1);
            assert_eq!(bench.iface().poll_free(), None);
            bench.iface().on_transmitted(1, position);
            assert_eq!(bench.iface().poll_free(), None, "another interface");
            bench.iface().on_transmitted(0, position);
            let last = bench.next_frame - 1;
            assert_eq!((bench.iface().poll_free(), bench.iface().poll_free()), (Some(last), None));
        }
    }
}

proptest! {
    /// RFC 1624 §3: whatever the sum of the request is.
    #[test]
    fn checksums_of_echoes(payload in proptest::collection::vec(any::<u8>(), 0..64), edge in 0u8..3) {
        let mut bench = Bench::new();
        let mut message = vec![128, 0, 0, 0, 0, 0, 0, 0];
        // Also sums of almost all ones and all zeroes.
        message.extend(payload.iter().map(|&byte| match edge { 0 => byte, 1 => 0xff, _ => 0 }));
        for (source, destination, kind) in [("fd00::2", "fd00::1", 128), ("fd00::2", "ff02::1", 128), ("10.0.0.2", "10.0.0.1", 8)] {
            message[0] = kind;
            let to = if destination == "ff02::1" { [0x33, 0x33, 0, 0, 0, 1] } else { US };
            prop_assert_eq!(bench.receive(icmp(to, source, destination, 64, &message)), Verdict::Held);
            let sent = bench.sent();
            prop_assert_eq!(sent.len(), 1);
            prop_assert!(sent[0].starts_with("m2: fd00::1 > ") || kind == 8, "{}", sent[0]);
        }
    }
}

#[test]
fn echo_requests_that_get_no_answer() {
    use DropReason::*;
    let request = [8, 0, 0, 0, 0, 0, 0, 1];
    let mut code = request;
    code[1] = 1;
    let cases = [
        ("to the broadcast address", icmp(ALL, "10.0.0.2", "10.0.0.255", 64, &request), NotForUs),
        ("to all hosts", icmp(ALL, "10.0.0.2", "224.0.0.1", 64, &request), NotForUs),
        ("in a broadcast frame", icmp(ALL, "10.0.0.2", "10.0.0.1", 64, &request), NotForUs),
        ("to another", icmp(US, "10.0.0.2", "10.0.0.3", 64, &request), NotForUs),
        ("from us", icmp(US, "10.0.0.1", "10.0.0.1", 64, &request), Martian),
        ("from the broadcast address", icmp(US, "10.0.0.255", "10.0.0.1", 64, &request), Martian),
        ("source_unspecified", icmp(US, "::", "fd00::1", 64, &[128, 0, 0, 0, 0, 0, 0, 1]), Martian),
        (
            "to our solicited-node group",
            icmp(ALL, "fd00::2", "ff02::1:ff00:1", 64, &[128, 0, 0, 0, 0, 0, 0, 1]),
            NotForUs,
        ),
        ("code 1", icmp(US, "10.0.0.2", "10.0.0.1", 64, &code), Unsupported),
        ("cut", icmp(US, "10.0.0.2", "10.0.0.1", 64, &request[..7]), Malformed),
        ("empty", icmp(US, "10.0.0.2", "10.0.0.1", 64, &[]), Malformed),
        ("a reply", icmp(US, "10.0.0.2", "10.0.0.1", 64, &[0, 0, 0, 0, 0, 0, 0, 1]), Unsupported),
        ("timestamp", icmp(US, "10.0.0.2", "10.0.0.1", 64, &[13, 0, 0, 0, 0, 0, 0, 1]), Unsupported),
        ("longer than the MTU", echo("10.0.0.2", "10.0.0.1", 1473), TooLong),
    ];
    for (name, frame, reason) in cases {
        let mut bench = Bench::new();
        assert_eq!((bench.drop_reason(frame), bench.sent()), (Some(reason), vec![]), "{name}");
    }
    assert_eq!(Bench::new().receive(echo("10.0.0.2", "10.0.0.1", 1472)), Verdict::Held);
}

#[test]
fn frames_held_are_bounded_and_wait_for_the_next_driver() {
    let mut bench = Bench::new();
    for number in 0..HELD_MAX + 5 {
        let reason = (number >= HELD_MAX).then_some(DropReason::Busy);
        assert_eq!(bench.drop_reason(echo("10.0.0.2", "10.0.0.1", 56)), reason);
    }
    assert_eq!(bench.sent().len(), HELD_MAX);
    assert_eq!(bench.drop_reason(echo("10.0.0.2", "10.0.0.1", 56)), Some(DropReason::Busy));
    bench.iface().on_attached(0, Link { mac: US, mtu: 1500, segments: true });
    assert_eq!(bench.iface().poll_free(), None, "its slots still refer to them");
    let position = bench.positions[0];
    bench.iface().on_transmitted(0, position);
    let mut freed: Vec<_> = std::iter::from_fn(|| bench.iface().poll_free()).collect();
    freed.sort_unstable();
    assert_eq!(freed, (100..100 + HELD_MAX as u32).collect::<Vec<_>>(), "each once");
    assert_eq!(bench.receive(echo("10.0.0.2", "10.0.0.1", 56)), Verdict::Held);
}

#[test]
fn echoes_and_errors_are_limited_in_rate() {
    let mut bench = Bench::new();
    let udp = ip(US, "10.0.0.2", "10.0.0.1", 17, &[0; 8]);
    for (frame, burst, in_a_second) in [(echo("10.0.0.2", "10.0.0.1", 0), 64, 10_000), (udp, 50, 1000)] {
        let mut answered = |pause_us: u64, times: usize| {
            let mut count = 0;
            for _ in 0..times {
                bench.now = bench.now.after(pause_us);
                count += usize::from(bench.receive(frame.clone()) == Verdict::Held);
                let _ = bench.sent();
                let position = bench.positions[0];
                bench.iface().on_transmitted(0, position);
                while bench.iface().poll_free().is_some() {}
            }
            count
        };
        assert_eq!(answered(0, 200), burst);
        assert_eq!(answered(50, 20_000), in_a_second);
    }
}

/// RFC 1122 §3.2.2.1, RFC 4443 §3.1 and §3.4.
#[test]
fn errors_are_sent_about_what_is_refused() {
    let long = [0; 1400];
    let option = [17, 0, 0x9e, 4, 0, 0, 0, 0];
    let cases: [(&str, Vec<u8>, &str); 7] = [
        (
            "UDP",
            ip(US, "10.0.0.2", "10.0.0.1", 17, &[0; 8]),
            "m2: 10.0.0.1 > 10.0.0.2: icmp 3.3 [0, 0, 0, 0] 28",
        ),
        (
            "protocol 99",
            ip(US, "10.0.0.2", "10.0.0.1", 99, &[]),
            "m2: 10.0.0.1 > 10.0.0.2: icmp 3.2 [0, 0, 0, 0] 20",
        ),
        (
            "long",
            ip(US, "10.0.0.2", "10.0.0.1", 17, &long),
            "m2: 10.0.0.1 > 10.0.0.2: icmp 3.3 [0, 0, 0, 0] 548",
        ),
        (
            "UDP, IPv6",
            ip(US, "fd00::2", "fd00::1", 17, &[0; 8]),
            "m2: fd00::1 > fd00::2: icmp 1.4 [0, 0, 0, 0] 48",
        ),
        (
            "long, IPv6",
            ip(US, "fd00::2", "fd00::1", 17, &long),
            "m2: fd00::1 > fd00::2: icmp 1.4 [0, 0, 0, 0] 1232",
        ),
        (
            "next header 99",
            ip(US, "fd00::2", "fd00::1", 99, &[]),
            "m2: fd00::1 > fd00::2: icmp 4.1 [0, 0, 0, 6] 40",
        ),
        (
            "option",
            ip(US, "fd00::2", "fd00::1", 60, &option),
            "m2: fd00::1 > fd00::2: icmp 4.2 [0, 0, 0, 42] 48",
        ),
    ];
    for (name, frame, expected) in cases {
        let mut bench = Bench::new();
        assert_eq!(bench.receive(frame.clone()), Verdict::Held, "{name}");
        let sent = bench.sent_frames();
        assert_eq!(line(&sent[0]), expected, "{name}");
        let quoted = &sent[0][14 + if expected.contains("::") { 48 } else { 28 }..];
        assert_eq!(quoted, &frame[14..14 + quoted.len()], "{name}");
    }
    use DropReason::*;
    let silent = [
        ("to the broadcast address", ip(ALL, "10.0.0.2", "10.0.0.255", 17, &[0; 8]), NotForUs),
        ("to a group", ip(ALL, "10.0.0.2", "224.0.0.251", 17, &[0; 8]), NotForUs),
        ("to all nodes", ip(ALL, "fd00::2", "ff02::1", 17, &[0; 8]), NotForUs),
        ("in a broadcast frame", ip(ALL, "10.0.0.2", "10.0.0.1", 17, &[0; 8]), NotForUs),
        ("to another", ip(US, "10.0.0.2", "10.0.0.3", 17, &[0; 8]), NotForUs),
        ("source_unspecified", ip(US, "::", "fd00::1", 17, &[0; 8]), Martian),
        ("from us", ip(US, "fd00::1", "fd00::1", 17, &[0; 8]), Martian),
    ];
    for (name, frame, reason) in silent {
        let mut bench = Bench::new();
        assert_eq!((bench.drop_reason(frame), bench.sent()), (Some(reason), vec![]), "{name}");
    }
}

fn quoted(source: &str, destination: &str, protocol: u8, tcp: &[u8]) -> Vec<u8> {
    ip(US, source, destination, protocol, tcp)[14..].to_vec()
}

/// RFC 1122 §4.2.3.9, RFC 1191, RFC 8201, RFC 5461.
#[test]
fn errors_that_arrive() {
    use IcmpErrorKind::*;
    let message = |kind: u8, code: u8, rest: u32, quoted: &[u8]| {
        [&[kind, code, 0, 0][..], &rest.to_be_bytes(), quoted].concat()
    };
    // From us to a remote host, with as much of TCP as RFC 792 demands.
    let v4 = quoted("10.0.0.1", "8.8.8.8", 6, &segment()[..8]);
    let v6 = quoted("fd00::1", "2a00::1", 6, &segment());
    let long = |length: u16| {
        let mut v4 = v4.clone();
        v4[2..4].copy_from_slice(&length.to_be_bytes());
        v4
    };
    let cases: [(&str, Vec<u8>, IcmpErrorKind); 19] = [
        ("network", message(3, 0, 0, &v4), Soft),
        ("host", message(3, 1, 0, &v4), Soft),
        ("protocol", message(3, 2, 0, &v4), Hard),
        ("port", message(3, 3, 0, &v4), Hard),
        ("prohibited", message(3, 13, 0, &v4), Hard),
        ("fragmentation needed", message(3, 4, 1400, &v4), PacketTooBig(1400)),
        ("fragmentation needed, forged", message(3, 4, 68, &v4), PacketTooBig(552)),
        ("fragmentation needed, no MTU (RFC 1191 §5)", message(3, 4, 0, &long(1500)), PacketTooBig(1492)),
        ("fragmentation needed, no MTU, short", message(3, 4, 0, &long(100)), PacketTooBig(552)),
        ("time exceeded", message(11, 0, 0, &v4), Soft),
        ("parameter problem", message(12, 0, 0, &v4), Soft),
        ("no route, IPv6", message(1, 0, 0, &v6), Soft),
        ("prohibited, IPv6", message(1, 1, 0, &v6), Hard),
        ("address, IPv6", message(1, 3, 0, &v6), Soft),
        ("port, IPv6", message(1, 4, 0, &v6), Hard),
        ("too big, IPv6", message(2, 0, 1400, &v6), PacketTooBig(1400)),
        ("too big, below the least MTU", message(2, 0, 1000, &v6), PacketTooBig(1280)),
        ("too big, above all", message(2, 0, u32::MAX, &v6), PacketTooBig(65535)),
        ("time exceeded, IPv6", message(3, 0, 0, &v6), Soft),
    ];
    let mut bench = Bench::new();
    for (name, message, kind) in cases {
        let is_v6 = name.contains("IPv6") || name.contains("too big");
        let (router, us, remote) =
            if is_v6 { ("fd00::fe", "fd00::1", "2a00::1") } else { ("10.0.0.254", "10.0.0.1", "8.8.8.8") };
        let expected = Verdict::Error(IcmpError {
            local: Endpoint { address: address(us), port: 1000 },
            remote: Endpoint { address: address(remote), port: 3260 },
            seq: SeqNumber(77),
            kind,
        });
        assert_eq!(bench.receive(icmp(US, router, us, 64, &message)), expected, "{name}");
    }
    use DropReason::*;
    let mut fragment = v4.clone();
    fragment[7] = 1;
    let unusable: [(&str, &[u8], DropReason); 7] = [
        ("cut", &v4[..27], Malformed),
        ("without a packet", &[], Malformed),
        ("about UDP", &quoted("10.0.0.1", "8.8.8.8", 17, &segment()), Malformed),
        ("about a fragment", &fragment, Malformed),
        ("about IPv6", &v6, Malformed),
        ("header of 16 bytes", &[&[0x44], &v4[1..]].concat(), Malformed),
        ("from another host", &quoted("10.0.0.7", "8.8.8.8", 6, &segment()), Martian),
    ];
    for (name, quoted, reason) in unusable {
        let frame = icmp(US, "10.0.0.254", "10.0.0.1", 64, &message(3, 3, 0, quoted));
        assert_eq!(bench.drop_reason(frame), Some(reason), "{name}");
    }
    let ignored = [("source quench (RFC 6633)", 4), ("redirect", 5), ("router advertisement", 9)];
    for (name, kind) in ignored {
        let frame = icmp(US, "10.0.0.254", "10.0.0.1", 64, &message(kind, 0, 0, &v4));
        assert_eq!(bench.drop_reason(frame), Some(Unsupported), "{name}");
    }
    assert_eq!(bench.sent(), [""; 0]);
}

proptest! {
    /// Random bytes behind an Ethernet header to us, and good frames with some bytes changed: no panic, and what is sent
    /// is well-formed (`line` checks it) and at most one frame for each.
    #[test]
    fn nothing_is_sent_for_garbage(
        frames in proptest::collection::vec((0usize..9, proptest::collection::vec((12usize..90, any::<u8>()), 0..3), proptest::collection::vec(any::<u8>(), 0..90)), 1..40),
    ) {
        let mut bench = Bench::new();
        bench.lookup("10.0.0.2");
        bench.lookup("fd00::2");
        bench.sent();
        for (which, changes, random) in frames {
            let is_garbage = which > 6;
            let mut frame = match which {
                0 => arp(ALL, 1, (PEER, "10.0.0.2"), "10.0.0.1"),
                1 => icmp(US, "fd00::2", "fd00::1", 255, &discovery(135, 0, "fd00::1", Some(PEER))),
                2 => icmp(US, "fd00::2", "fd00::1", 255, &discovery(136, 0x60, "fd00::2", Some(PEER))),
                3 => echo("10.0.0.2", "10.0.0.1", 20),
                4 => echo("fd00::2", "fd00::1", 20),
                5 => icmp(US, "10.0.0.2", "10.0.0.1", 9, &[&[3, 4, 0, 0, 0, 0, 0, 0][..], &quoted("10.0.0.1", "8.8.8.8", 6, &segment())].concat()),
                6 => ip(US, "10.0.0.2", "10.0.0.1", 6, &segment()),
                // No version of IP, no ARP for Ethernet.
                7 => ethernet(US, PEER, 0x0800, &[&[0x16], &random[..]].concat()),
                _ => ethernet(US, PEER, 0x0806, &[&[9, 9], &random[..]].concat()),
            };
            if !is_garbage {
                for (at, value) in changes {
                    if let Some(byte) = frame.get_mut(at) {
                        *byte = value;
                    }
                }
            }
            let verdict = bench.receive(frame);
            // An incremental checksum is as wrong as that of a request which was changed: not looked at here.
            let sent = bench.sent_frames();
            prop_assert!(sent.len() <= usize::from(!is_garbage), "{verdict:?} {sent:?}");
            prop_assert_eq!(verdict == Verdict::Held, !bench.frames.is_empty());
            bench.frames.clear();
            let position = bench.positions[0];
            bench.iface().on_transmitted(0, position);
            while bench.iface().poll_free().is_some() {}
        }
    }
}
