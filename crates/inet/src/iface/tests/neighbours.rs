use super::*;

const REQUEST: u16 = 1;
const REPLY: u16 = 2;

#[test]
fn an_attached_interface_announces_its_addresses() {
    let mut bench = Bench::new();
    bench.iface().on_attached(0, Link { mac: US, mtu: 1500, segments: true });
    assert_eq!(
        bench.sent(),
        [
            format!("group 00000016: {LOCAL} > ff02::16: report 4 of ff02::1:ff00:1"),
            // RFC 5227 §2.3.
            "all: who has 10.0.0.1? 10.0.0.1 asks".to_owned(),
            // RFC 4861 §7.2.6.
            "group 00000001: fd00::1 > ff02::1: fd00::1 is at us 0x20".to_owned(),
            format!("group 00000001: {LOCAL} > ff02::1: {LOCAL} is at us 0x20"),
        ]
    );
}

/// RFC 826, RFC 5227.
#[test]
fn arp_messages() {
    use DropReason::*;
    let asked = |bench: &mut Bench| bench.lookup("10.0.0.2");
    let known = Lookup::Known(PEER);
    let answer = "m2: 10.0.0.1 is at us, 10.0.0.2";
    type Case = (&'static str, Vec<u8>, Option<DropReason>, Option<&'static str>, Lookup);
    let cases: [Case; 12] = [
        ("request for us", arp(ALL, REQUEST, (PEER, "10.0.0.2"), "10.0.0.1"), None, Some(answer), known),
        ("unicast request", arp(US, REQUEST, (PEER, "10.0.0.2"), "10.0.0.1"), None, Some(answer), known),
        ("request for another", arp(ALL, REQUEST, (PEER, "10.0.0.2"), "10.0.0.9"), None, None, Lookup::Asked),
        (
            "reply without a request",
            arp(US, REPLY, (PEER, "10.0.0.2"), "10.0.0.1"),
            None,
            None,
            Lookup::Asked,
        ),
        ("gratuitous", arp(ALL, REQUEST, (PEER, "10.0.0.2"), "10.0.0.2"), None, None, Lookup::Asked),
        (
            "probe (RFC 5227 §2.1.1)",
            arp(ALL, REQUEST, (PEER, "0.0.0.0"), "10.0.0.1"),
            None,
            Some("m2: 10.0.0.1 is at us, 0.0.0.0"),
            Lookup::Asked,
        ),
        (
            "from a group MAC",
            arp(ALL, REQUEST, ([3; 6], "10.0.0.2"), "10.0.0.1"),
            Some(NotForUs),
            None,
            Lookup::Asked,
        ),
        (
            "from the broadcast address",
            arp(ALL, REQUEST, (PEER, "10.0.0.255"), "10.0.0.1"),
            Some(Neighbour),
            None,
            Lookup::Asked,
        ),
        (
            "from a multicast address",
            arp(ALL, REQUEST, (PEER, "224.0.0.1"), "10.0.0.1"),
            Some(Neighbour),
            None,
            Lookup::Asked,
        ),
        (
            "from our address (RFC 5227 §2.4)",
            arp(ALL, REQUEST, (PEER, "10.0.0.1"), "10.0.0.1"),
            Some(Neighbour),
            None,
            Lookup::Asked,
        ),
        (
            "to another MAC",
            arp(OTHER, REQUEST, (PEER, "10.0.0.2"), "10.0.0.1"),
            Some(NotForUs),
            None,
            Lookup::Asked,
        ),
        ("operation 3", arp(US, 3, (PEER, "10.0.0.2"), "10.0.0.1"), Some(Unsupported), None, Lookup::Asked),
    ];
    for (name, frame, reason, answer, then) in cases {
        let mut bench = Bench::new();
        assert_eq!(bench.drop_reason(frame), reason, "{name}");
        assert_eq!(bench.sent(), answer.as_slice(), "{name}");
        assert_eq!(asked(&mut bench), then, "{name}");
    }
    let good = arp(ALL, REQUEST, (PEER, "10.0.0.2"), "10.0.0.1");
    let mut bench = Bench::new();
    assert_eq!(bench.drop_reason(good[..41].to_vec()), Some(Malformed), "cut");
    let mut other = good.clone();
    other[15] = 6;
    assert_eq!(bench.drop_reason(other), Some(Unsupported), "another hardware type");
    bench.receive(arp(ALL, REQUEST, (PEER, "10.0.0.1"), "10.0.0.2"));
    assert_eq!(bench.state.counters.address_conflicts, 1);
    // One that is not on the link gets an answer and no entry.
    bench.receive(arp(ALL, REQUEST, (PEER, "10.9.9.9"), "10.0.0.1"));
    assert_eq!(bench.sent(), ["m2: 10.0.0.1 is at us, 10.9.9.9"]);
    assert!(bench.neighbours.iter().all(|entry| entry.address != address("10.9.9.9")));
}

/// RFC 826 updates an entry that exists whatever the operation is.
#[test]
fn arp_updates_what_is_known() {
    for (operation, to, target) in
        [(REQUEST, ALL, "10.0.0.2"), (REPLY, US, "10.0.0.1"), (REQUEST, ALL, "10.0.0.77")]
    {
        let mut bench = Bench::new();
        bench.receive(arp(ALL, REQUEST, (PEER, "10.0.0.2"), "10.0.0.1"));
        bench.receive(arp(to, operation, (OTHER, "10.0.0.2"), target));
        assert_eq!(bench.lookup("10.0.0.2"), Lookup::Known(OTHER), "{operation} {target}");
    }
}

/// RFC 4861 §7.2.2, for both families: three solicitations, a second apart.
#[test]
fn resolution_without_answer_fails_and_is_tried_again_later() {
    for (remote, question) in [
        ("10.0.0.2", "all: who has 10.0.0.2? 10.0.0.1 asks"),
        ("fd00::2", "group ff000002: ff02::1:ff00:2, who has fd00::2? fd00::1 asks"),
        ("192.0.2.1", "all: who has 10.0.0.254? 10.0.0.1 asks"),
    ] {
        let mut bench = Bench::new();
        assert_eq!((bench.lookup(remote), bench.sent()), (Lookup::Asked, vec![question.to_owned()]));
        assert_eq!((bench.lookup(remote), bench.sent()), (Lookup::Asked, vec![]), "once a second");
        let changes = bench.iface().changes();
        assert_eq!(bench.wait(2), [(1, question.to_owned()), (2, question.to_owned())]);
        assert_eq!((bench.lookup(remote), bench.iface().changes()), (Lookup::Asked, changes));
        assert_eq!(bench.wait(1), []);
        assert_eq!((bench.lookup(remote), bench.iface().changes()), (Lookup::Failed, changes + 1));
        assert_eq!(bench.iface().poll_timeout(), Time::NEVER, "no timer without a waiting resolution");
        assert_eq!(bench.wait(2), []);
        assert_eq!((bench.lookup(remote), bench.sent()), (Lookup::Failed, vec![]));
        bench.wait(1);
        assert_eq!((bench.lookup(remote), bench.sent()), (Lookup::Asked, vec![question.to_owned()]));
    }
}

fn advertisement(
    source: &str,
    to: Mac,
    destination: &str,
    flags: u8,
    target: &str,
    mac: Option<Mac>,
) -> Vec<u8> {
    icmp(to, source, destination, 255, &discovery(136, flags, target, mac))
}

const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;

/// Both peers known and reachable.
fn reachable() -> Bench {
    let mut bench = Bench::new();
    bench.lookup("10.0.0.2");
    bench.lookup("fd00::2");
    let changes = bench.iface().changes();
    bench.receive(arp(US, REPLY, (PEER, "10.0.0.2"), "10.0.0.1"));
    bench.receive(advertisement("fd00::2", US, "fd00::1", SOLICITED | OVERRIDE, "fd00::2", Some(PEER)));
    assert_eq!(bench.iface().changes(), changes + 2);
    bench.sent();
    bench
}

/// RFC 4861 §7.3.3: reachable for 30 s, delay of 5 s once used, three probes to the host, then unknown.
#[test]
fn a_neighbour_in_use_is_probed_when_it_was_not_confirmed() {
    for (remote, probe, question) in [
        ("10.0.0.2", "m2: who has 10.0.0.2? 10.0.0.1 asks", "all: who has 10.0.0.2? 10.0.0.1 asks"),
        (
            "fd00::2",
            "m2: fd00::2, who has fd00::2? fd00::1 asks",
            "group ff000002: ff02::1:ff00:2, who has fd00::2? fd00::1 asks",
        ),
    ] {
        let mut bench = reachable();
        assert_eq!(bench.wait(29), []);
        assert_eq!(bench.lookup(remote), Lookup::Known(PEER));
        assert!(bench.iface().poll_timeout() > bench.now);
        assert_eq!(bench.wait(600), [], "an idle entry wakes nothing");
        assert_eq!(bench.iface().poll_timeout(), Time::NEVER);
        assert_eq!(bench.lookup(remote), Lookup::Known(PEER));
        let probe = |second| (second, probe.to_owned());
        assert_eq!(bench.wait(7), [probe(5), probe(6), probe(7)]);
        assert_eq!(bench.lookup(remote), Lookup::Known(PEER), "until the last probe has had its second");
        assert_eq!(bench.wait(1), []);
        assert_eq!((bench.lookup(remote), bench.sent()), (Lookup::Asked, vec![question.to_owned()]));
    }
}

#[test]
fn progress_or_an_answer_confirms_a_neighbour() {
    let mut bench = reachable();
    bench.wait(40);
    bench.lookup("10.0.0.2");
    bench.wait(4);
    let now = bench.now;
    let route = bench.iface().route(address("10.0.0.2"), None).unwrap();
    bench.iface().confirm(&route, now);
    assert_eq!(bench.wait(29), [], "RFC 4861 §7.3.1");
    let mut bench = reachable();
    bench.wait(40);
    bench.lookup("10.0.0.2");
    bench.lookup("fd00::2");
    bench.wait(5);
    bench.receive(arp(US, REPLY, (PEER, "10.0.0.2"), "10.0.0.1"));
    bench.receive(advertisement("fd00::2", US, "fd00::1", SOLICITED, "fd00::2", None));
    assert_eq!(bench.wait(20), []);
    let route = bench.iface().route(address("10.0.0.9"), None).unwrap();
    let now = bench.now;
    bench.iface().confirm(&route, now);
    assert_eq!(bench.lookup("10.0.0.9"), Lookup::Asked, "nothing to confirm");
}

/// RFC 4861 §7.2.5 and appendix C.
#[test]
fn advertisements_change_what_is_known() {
    /// Whether probes follow a use: the entry is not taken as reachable.
    fn is_probed(bench: &mut Bench) -> bool {
        bench.lookup("fd00::2");
        bench.wait(5).iter().any(|(_, line)| line.contains("who has fd00::2?"))
    }
    let both = SOLICITED | OVERRIDE;
    let cases = [
        ("solicited, same", SOLICITED, Some(PEER), PEER, false),
        ("solicited, without address", SOLICITED, None, PEER, false),
        ("solicited, other, no override: suspect", SOLICITED, Some(OTHER), PEER, true),
        ("solicited, other, override", both, Some(OTHER), OTHER, false),
        ("unsolicited, other, override", OVERRIDE, Some(OTHER), OTHER, true),
        ("unsolicited, same", OVERRIDE, Some(PEER), PEER, false),
        ("unsolicited, other, no override: suspect", 0, Some(OTHER), PEER, true),
    ];
    for (name, flags, mac, then, probed) in cases {
        let mut bench = reachable();
        bench.receive(advertisement("fd00::2", US, "fd00::1", flags, "fd00::2", mac));
        assert_eq!((bench.lookup("fd00::2"), is_probed(&mut bench)), (Lookup::Known(then), probed), "{name}");
    }
    let incomplete = [
        ("without address", both, None, Lookup::Asked, true),
        ("solicited", SOLICITED, Some(PEER), Lookup::Known(PEER), false),
        ("unsolicited", 0, Some(PEER), Lookup::Known(PEER), true),
    ];
    for (name, flags, mac, then, probed) in incomplete {
        let mut bench = Bench::new();
        bench.lookup("fd00::2");
        bench.receive(advertisement("fd00::2", US, "fd00::1", flags, "fd00::2", mac));
        bench.sent();
        assert_eq!((bench.lookup("fd00::2"), is_probed(&mut bench)), (then, probed), "{name}");
    }
    let mut bench = Bench::new();
    bench.receive(advertisement("fd00::2", US, "fd00::1", both, "fd00::2", Some(PEER)));
    assert_eq!(bench.lookup("fd00::2"), Lookup::Asked, "no entry is made of an advertisement");
}

/// RFC 4861 §7.1 and §7.2.4.
#[test]
fn solicitations() {
    use DropReason::*;
    let group = [0x33, 0x33, 0xff, 0, 0, 1];
    let with = Some(PEER);
    let solicit = |to, source, destination, target, mac| {
        icmp(to, source, destination, 255, &discovery(135, 0, target, mac))
    };
    let cases: [(&str, Vec<u8>, Option<&str>, Lookup); 5] = [
        (
            "to the group",
            solicit(group, "fd00::2", "ff02::1:ff00:1", "fd00::1", with),
            Some("m2: fd00::1 > fd00::2: fd00::1 is at us 0x60"),
            Lookup::Known(PEER),
        ),
        (
            "to us, without address",
            solicit(US, "fd00::2", "fd00::1", "fd00::1", None),
            Some("m2: fd00::1 > fd00::2: fd00::1 is at us 0x60"),
            Lookup::Asked,
        ),
        (
            "link-local",
            solicit(group, "fd00::2", "ff02::1:ff00:1", LOCAL, with),
            Some("m2: fe80::ff:fe00:1 > fd00::2: fe80::ff:fe00:1 is at us 0x60"),
            Lookup::Known(PEER),
        ),
        (
            "duplicate address detection",
            solicit(group, "::", "ff02::1:ff00:1", "fd00::1", None),
            Some("group 00000001: fd00::1 > ff02::1: fd00::1 is at us 0x20"),
            Lookup::Asked,
        ),
        (
            "from another link",
            solicit(group, "fd77::2", "ff02::1:ff00:1", "fd00::1", with),
            Some("m2: fd00::1 > fd77::2: fd00::1 is at us 0x60"),
            Lookup::Asked,
        ),
    ];
    for (name, frame, answer, then) in cases {
        let mut bench = Bench::new();
        assert_eq!(bench.drop_reason(frame), None, "{name}");
        assert_eq!(bench.sent(), answer.as_slice(), "{name}");
        assert_eq!(bench.lookup("fd00::2"), then, "{name}");
        assert!(bench.neighbours.iter().all(|entry| entry.address != address("fd77::2")));
    }
    let message = discovery(135, 0, "fd00::1", with);
    let changed = |at: usize, value: u8| {
        let mut message = message.clone();
        message[at] = value;
        icmp(US, "fd00::2", "fd00::1", 255, &message)
    };
    let dropped = [
        ("hop limit 254", icmp(US, "fd00::2", "fd00::1", 254, &message), Neighbour),
        ("code 1", changed(1, 1), Neighbour),
        ("target a group", changed(8, 0xff), Neighbour),
        ("option of length 0", changed(25, 0), Neighbour),
        ("option beyond the message", changed(25, 2), Neighbour),
        ("a group's MAC address", changed(26, 3), Neighbour),
        ("cut", icmp(US, "fd00::2", "fd00::1", 255, &message[..23]), Neighbour),
        ("half an option", icmp(US, "fd00::2", "fd00::1", 255, &message[..28]), Neighbour),
        ("from :: with an address", solicit(group, "::", "ff02::1:ff00:1", "fd00::1", with), Neighbour),
        ("from :: to us", solicit(US, "::", "fd00::1", "fd00::1", None), Martian),
        ("for another", solicit(group, "fd00::2", "ff02::1:ff00:1", "fd00::5:0:1", with), NotForUs),
        ("to another group", solicit(group, "fd00::2", "ff02::1:ff00:9", "fd00::1", with), NotForUs),
        ("from us", solicit(group, "fd00::1", "ff02::1:ff00:1", "fd00::1", with), Martian),
        (
            "advertisement, solicited, to a group",
            advertisement("fd00::2", group, "ff02::1", SOLICITED, "fd00::2", with),
            Neighbour,
        ),
        (
            "advertisement of our address",
            advertisement("fd00::2", US, "fd00::1", 0, "fd00::1", with),
            Neighbour,
        ),
        (
            "advertisement, hop limit 254",
            icmp(US, "fd00::2", "fd00::1", 254, &discovery(136, 0, "fd00::2", with)),
            Neighbour,
        ),
        ("redirect", icmp(US, "fd00::2", "fd00::1", 255, &discovery(137, 0, "fd00::2", with)), Unsupported),
    ];
    for (name, frame, reason) in dropped {
        let mut bench = Bench::new();
        bench.lookup("fd00::2");
        bench.sent();
        assert_eq!(bench.drop_reason(frame), Some(reason), "{name}");
        assert_eq!(bench.sent(), [""; 0], "{name}");
        assert_eq!(bench.lookup("fd00::2"), Lookup::Asked, "{name}");
    }
}

#[test]
fn an_interface_with_ipv4_only_has_no_ipv6() {
    let mut bench = Bench::with(&[(0, "10.0.0.1", 24)], &[]);
    let solicitation = icmp(US, "fe80::2", LOCAL, 255, &discovery(135, 0, LOCAL, Some(PEER)));
    assert_eq!(bench.drop_reason(solicitation), Some(DropReason::NotForUs));
    assert_eq!(bench.sent(), [""; 0]);
}

/// The table is full of hosts that pretend to be: those in use stay.
#[test]
fn entries_in_use_are_displaced_last() {
    let mut bench = Bench::with(&[(0, "10.0.0.1", 16)], &[]);
    bench.neighbours.truncate(16);
    bench.lookup("10.0.0.2");
    bench.receive(arp(US, REPLY, (PEER, "10.0.0.2"), "10.0.0.1"));
    for host in 0..=255 {
        bench.receive(arp(ALL, REQUEST, (OTHER, &format!("10.0.1.{host}")), "10.0.0.1"));
        bench.lookup(&format!("10.0.2.{host}"));
        bench.sent();
    }
    assert_eq!(bench.lookup("10.0.0.2"), Lookup::Known(PEER));
    assert_eq!(bench.lookup("10.0.2.255"), Lookup::Asked);
}

#[test]
fn a_table_without_entries_resolves_nothing() {
    let mut bench = Bench::new();
    bench.neighbours.clear();
    assert_eq!(bench.lookup("10.0.0.2"), Lookup::Failed);
    bench.receive(arp(ALL, REQUEST, (PEER, "10.0.0.2"), "10.0.0.1"));
    assert_eq!(bench.sent(), ["m2: 10.0.0.1 is at us, 10.0.0.2"]);
}

#[test]
fn answers_are_bounded() {
    let mut bench = Bench::new();
    for _ in 0..100 {
        bench.receive(arp(ALL, REQUEST, (PEER, "10.0.0.2"), "10.0.0.1"));
    }
    assert_eq!((bench.sent().len(), bench.state.counters.replies_lost), (64, 36));
}
