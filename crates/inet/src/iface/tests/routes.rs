use super::*;

fn text(bench: &mut Bench, remote: &str, local: Option<&str>) -> Result<String, Refusal> {
    let route = bench.iface().route(address(remote), local.map(address))?;
    Ok(format!("{} from {} at {}", route.next_hop.ip(), route.local.ip(), route.interface))
}

#[test]
fn routes_and_sources() {
    let mut bench = Bench::with(
        &[
            (0, "10.0.0.1", 24),
            (0, "10.0.0.9", 24),
            (0, "fd00::1", 64),
            (0, "2001:db8::1", 32),
            (1, "10.0.0.129", 25),
            (1, "172.16.0.1", 31),
            (2, "192.168.0.1", 24),
        ],
        &["172.16.0.0", "fe80::fe"],
    );
    bench.iface().on_attached(1, Link { mac: OTHER, mtu: 9000, segments: false });
    let cases: [(&str, Option<&str>, Result<&str, Refusal>); 24] = [
        ("10.0.0.2", None, Ok("10.0.0.2 from 10.0.0.1 at 0")),
        ("10.0.0.2", Some("10.0.0.9"), Ok("10.0.0.2 from 10.0.0.9 at 0")),
        ("10.0.0.2", Some("0.0.0.0"), Ok("10.0.0.2 from 10.0.0.1 at 0")),
        // RFC 6724 rule 8: the longest common prefix.
        ("10.0.0.10", None, Ok("10.0.0.10 from 10.0.0.9 at 0")),
        // The longer prefix has the route.
        ("10.0.0.130", None, Ok("10.0.0.130 from 10.0.0.129 at 1")),
        ("10.0.0.130", Some("10.0.0.1"), Err(Refusal::NoRoute)),
        // RFC 3021.
        ("172.16.0.0", None, Ok("172.16.0.0 from 172.16.0.1 at 1")),
        ("8.8.8.8", None, Ok("172.16.0.0 from 10.0.0.129 at 1")),
        ("8.8.8.8", Some("172.16.0.1"), Ok("172.16.0.0 from 172.16.0.1 at 1")),
        ("8.8.8.8", Some("10.0.0.1"), Err(Refusal::NoRoute)),
        ("8.8.8.8", Some("10.0.0.77"), Err(Refusal::NotOurs)),
        ("8.8.8.8", Some("fd00::1"), Err(Refusal::NoRoute)),
        // RFC 6724 rule 2: no link-local source beyond the link, and one for the link.
        ("fd00::2", None, Ok("fd00::2 from fd00::1 at 0")),
        ("2001:db8:ffff::2", None, Ok("2001:db8:ffff::2 from 2001:db8::1 at 0")),
        ("2a00::1", None, Ok("fe80::fe from 2001:db8::1 at 0")),
        ("fe80::2", None, Ok("fe80::2 from fe80::ff:fe00:1 at 0")),
        ("fe80::2", Some("fd00::1"), Ok("fe80::2 from fd00::1 at 0")),
        ("10.0.0.0", None, Err(Refusal::NoRoute)),
        ("10.0.0.255", None, Err(Refusal::NoRoute)),
        ("224.0.0.1", None, Err(Refusal::NoRoute)),
        ("127.0.0.1", None, Err(Refusal::NoRoute)),
        ("ff02::1", None, Err(Refusal::NoRoute)),
        ("10.0.0.9", None, Err(Refusal::NoRoute)),
        // Its interface has no driver.
        ("192.168.0.2", Some("192.168.0.1"), Err(Refusal::NotOurs)),
    ];
    for (remote, local, expected) in cases {
        assert_eq!(text(&mut bench, remote, local), expected.map(str::to_owned), "{remote} {local:?}");
    }
    let route = bench.iface().route(address("172.16.0.0"), None).unwrap();
    assert_eq!((route.mtu, route.segments), (9000, false));
}

#[test]
fn without_gateway_nothing_leaves_the_link() {
    let mut bench = Bench::with(&[(0, "10.0.0.1", 24)], &[]);
    assert_eq!(text(&mut bench, "8.8.8.8", None), Err(Refusal::NoRoute));
    assert_eq!(text(&mut bench, "fd00::1", None), Err(Refusal::NoRoute));
    let mut bench = Bench::with(&[(0, "10.0.0.1", 24)], &["10.1.0.1"]);
    assert_eq!(text(&mut bench, "8.8.8.8", None), Err(Refusal::NoRoute), "a gateway that is not on the link");
}

#[test]
fn settings_beyond_the_tables_are_ignored() {
    let many = [(0, "10.0.0.1", 24); 12];
    let mut bench = Bench::with(&many, &["10.0.0.2"; 9]);
    assert_eq!(text(&mut bench, "8.8.8.8", None), Ok("10.0.0.2 from 10.0.0.1 at 0".to_owned()));
    let mut bench = Bench::with(&[(0, "10.0.0.1", 200), (200, "10.0.0.3", 24), (0, "fd00::1", 255)], &[]);
    assert_eq!(text(&mut bench, "10.0.0.2", None), Err(Refusal::NoRoute));
    bench.iface().on_attached(200, Link { mac: OTHER, mtu: 1500, segments: false });
    assert_eq!(text(&mut bench, "10.0.0.2", None), Err(Refusal::NoRoute));
}

/// RFC 1122 §3.2.1.3 and §3.3.4.2.
#[test]
fn segments_for_us_and_not() {
    use DropReason::*;
    let frame = |to, source, destination| ip(to, source, destination, 6, &segment());
    let mut bench = Bench::new();
    let cases = [
        ("for us", frame(US, "10.0.0.2", "10.0.0.1"), None),
        ("for us, IPv6", frame(US, "fd00::2", "fd00::1"), None),
        ("for us, link-local", frame(US, "fe80::2", LOCAL), None),
        ("from beyond the gateway", frame(US, "8.8.8.8", "10.0.0.1"), None),
        ("to another MAC", frame(OTHER, "10.0.0.2", "10.0.0.1"), Some(NotForUs)),
        ("to another address", frame(US, "10.0.0.2", "10.0.0.7"), Some(NotForUs)),
        ("to the broadcast address", frame(US, "10.0.0.2", "10.0.0.255"), Some(NotForUs)),
        ("to a group", frame(US, "fd00::2", "ff02::1"), Some(NotForUs)),
        ("from us", frame(US, "10.0.0.1", "10.0.0.1"), Some(Martian)),
        ("from us, link-local", frame(US, LOCAL, "fd00::1"), Some(Martian)),
        ("from the broadcast address", frame(US, "10.0.0.255", "10.0.0.1"), Some(Martian)),
        ("from the network", frame(US, "10.0.0.0", "10.0.0.1"), Some(Martian)),
    ];
    for (name, frame, reason) in cases {
        let before = bench.state.counters.received_segments;
        assert_eq!(bench.drop_reason(frame), reason, "{name}");
        let is_segment = bench.state.counters.received_segments > before;
        assert_eq!(is_segment, reason.is_none(), "{name}");
    }
    let Verdict::Tcp(header) = bench.receive(frame(US, "10.0.0.2", "10.0.0.1")) else { panic!("no segment") };
    assert_eq!((header.source.port, header.seq), (1000, SeqNumber(77)));
    let route = bench.iface().route(address("10.0.0.2"), None).unwrap();
    let (mut slot, sent) = ([0; HEADER_BYTES], bench.state.counters.sent_frames);
    let back =
        TcpHeader { source: header.destination, destination: header.source, payload_bytes: 9, ..header };
    let emitted = bench.iface().emit_tcp(&mut slot, &route, PEER, &back);
    assert_eq!((emitted.header_bytes, emitted.checksum_start, emitted.checksum_offset), (54, 34, 16));
    assert_eq!(slot[VNET_BYTES..][..12], [PEER, US].concat());
    assert_eq!(bench.state.counters.sent_frames, sent + 1);
}

#[test]
fn before_its_driver_an_interface_takes_nothing() {
    let mut bench = Bench::with(&[(1, "10.0.0.1", 24)], &[]);
    assert!(!bench.iface().is_local(address("10.0.0.1")));
    assert_eq!(bench.drop_reason(ip(US, "10.0.0.2", "10.0.0.1", 6, &segment())), Some(DropReason::NotForUs));
}
