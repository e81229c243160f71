use super::*;

/// What reports of the first two interface addresses look like: both have the same last three bytes.
const GROUP: &str = "ff02::1:ff00:1";

fn report(record: u8, group: &str) -> String {
    format!("group 00000016: {LOCAL} > ff02::16: report {record} of {group}")
}

/// An MLD message behind a hop-by-hop header.
fn listener(source: &str, destination: &str, hops: u8, options: &[u8], message: &[u8]) -> Vec<u8> {
    let mut message = message.to_vec();
    let (from, at) = (address(source), address(destination));
    let pseudo = pseudo_header_sum(from, at, 58, message.len() as u32);
    let checksum = !fold(sum(&message) + pseudo);
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    let next = if options.is_empty() { 58 } else { 0 };
    let [.., a, b, c, d] = at.0;
    ip_with([0x33, 0x33, a, b, c, d], source, destination, next, hops, &[options, &message].concat())
}

const ALERT: [u8; 8] = [58, 0, 5, 2, 0, 0, 1, 0];

/// A query of the second version, or, shorter, of the first.
fn query(code: u16, group: &str, is_first: bool) -> Vec<u8> {
    let [high, low] = code.to_be_bytes();
    let mut message = [&[130, 0, 0, 0, high, low, 0, 0][..], &v6_octets(group)].concat();
    if !is_first {
        message.extend([2, 125, 0, 0]);
    }
    message
}

/// RFC 3810 §6.1: what an interface listens to is reported when a driver has started; each group once.
#[test]
fn groups_of_solicitations_are_reported_by_an_attached_interface() {
    let addresses = [(0, "10.0.0.1", 24), (0, "fd00::1", 64), (0, "fd00::5:6:7", 64), (1, "fd01::9", 64)];
    let mut bench = Bench::with(&addresses, &[]);
    bench.iface().on_attached(0, Link { mac: US, mtu: 1500, segments: true });
    let sent = bench.sent();
    assert_eq!(sent[..2], [report(4, GROUP), report(4, "ff02::1:ff06:7")], "{sent:?}");
    assert!(!sent[2..].iter().any(|line| line.contains("report")), "{sent:?}");
    let mut bench = Bench::with(&[(0, "10.0.0.1", 24)], &[]);
    bench.iface().on_attached(0, Link { mac: US, mtu: 1500, segments: true });
    assert!(!bench.sent().iter().any(|line| line.contains("report")), "without IPv6 there are none");
}

/// RFC 3810 §6.2, §5.1.3, RFC 2710 §4: within the time that the query allows.
#[test]
fn queries_are_answered_in_time_and_once() {
    for (name, message, to, most) in [
        ("general", query(2000, "::", false), "ff02::1", 2),
        ("general, first version", query(2000, "::", true), "ff02::1", 2),
        ("of our group", query(2000, GROUP, false), GROUP, 2),
        ("at once", query(0, "::", false), "ff02::1", 1),
        ("exponent: (0x1000 | 0x100) << 3 ms", query(0x8100, "::", false), "ff02::1", 35),
    ] {
        let mut bench = Bench::new();
        for _ in 0..3 {
            let query = listener("fe80::2", to, 1, &ALERT, &message);
            assert_eq!(bench.drop_reason(query), None, "{name}");
        }
        assert_eq!(bench.sent(), Vec::<String>::new(), "{name}: not at once, other hosts answer too");
        let sent = bench.wait(most);
        assert!(sent.len() == 1 && sent[0].1 == report(2, GROUP), "{name}: {sent:?}");
        assert_eq!((bench.wait(60), bench.iface().poll_timeout()), (vec![], Time::NEVER), "{name}: once");
    }
}

#[test]
fn queries_that_could_come_from_elsewhere_are_ignored() {
    let general = query(1000, "::", false);
    for (name, source, hops, options, message) in [
        ("hop limit", "fe80::2", 64, &ALERT[..], &general[..]),
        ("a source that is not of the link", "fd00::2", 1, &ALERT, &general),
        ("no source", "::", 1, &ALERT, &general),
        ("no router alert", "fe80::2", 1, &[58, 0, 1, 4, 0, 0, 0, 0], &general),
        ("no hop-by-hop header", "fe80::2", 1, &[], &general),
        ("short", "fe80::2", 1, &ALERT, &general[..20]),
    ] {
        let mut bench = Bench::new();
        let reason = bench.drop_reason(listener(source, "ff02::1", hops, options, message));
        assert_eq!(reason, Some(DropReason::Neighbour), "{name}");
        assert_eq!(bench.wait(10), [], "{name}");
    }
    let mut bench = Bench::new();
    let other = listener("fe80::2", "ff02::1:ff00:99", 1, &ALERT, &query(1000, "ff02::1:ff00:99", false));
    assert_eq!(bench.drop_reason(other), Some(DropReason::NotForUs), "a group of others");
}
