//! Which connections are followed, and how many.

use super::streams;
use crate::event::{Event, Kind, Opaque, Side};
use crate::flow::{Belongs, FlowId, Framing, Table};
use crate::limits::FLOWS_MAX;
use crate::packet::{Flags, Options, Packet};

struct Wire {
    table: Table,
    frame: u64,
    events: Vec<(FlowId, Event)>,
}

/// Ports of both ends.
type Ports = (u16, u16);

impl Wire {
    fn new(ports: &[u16]) -> Self {
        Self { table: Table::new(ports), frame: 0, events: Vec::new() }
    }

    /// A packet of the first or the second port, each 1 ms after the one before.
    fn packet(
        &mut self,
        ports: Ports,
        from_first: bool,
        seq: u32,
        ack: u32,
        flags: u8,
        payload: &[u8],
    ) -> Belongs {
        self.frame += 1;
        let ends = [("10.0.0.1", ports.0), ("10.0.0.2", ports.1)]
            .map(|(address, port)| (address.parse::<std::net::IpAddr>().expect("an address"), port).into());
        let (source, destination) = if from_first { (ends[0], ends[1]) } else { (ends[1], ends[0]) };
        let packet = Packet {
            at_ns: self.frame * 1_000_000,
            frame: self.frame,
            interface: 0,
            source,
            destination,
            seq,
            ack,
            flags: Flags(flags),
            window: 1000,
            options: Options::default(),
            ip_id: Some(self.frame as u16),
            hops: 64,
            ecn: 0,
            payload_bytes: payload.len() as u32,
            payload,
        };
        let events = &mut self.events;
        self.table.push(&packet, &mut |id, event: &Event| events.push((id, event.clone())))
    }

    fn handshake(&mut self, ports: Ports, isn: u32) {
        self.packet(ports, true, isn, 0, Flags::SYN, &[]);
        self.packet(ports, false, 900, isn + 1, Flags::SYN | Flags::ACK, &[]);
        self.packet(ports, true, isn + 1, 901, Flags::ACK, &[]);
    }

    fn opaque(&self) -> Vec<(Side, Opaque)> {
        let opaque = self.events.iter().filter_map(|(_, event)| match event.kind {
            Kind::Opaque(opaque) => Some((event.from, opaque)),
            _ => None,
        });
        opaque.collect()
    }
}

fn login() -> Vec<u8> {
    let (header, mut text) = streams::login(Side::Initiator, (false, false));
    text.resize(text.len().next_multiple_of(4), 0);
    [&header[..], &text].concat()
}

#[test]
fn a_login_on_any_port_is_iscsi_and_others_are_dropped() {
    let login = login();
    let table: [(Ports, &[u8], bool, bool); 6] = [
        ((40_000, 3260), &login, true, true),
        ((40_001, 12_345), &login, true, true),
        ((40_002, 12_345), b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n 0123456789 0123456789", true, false),
        // The server begins.
        ((40_003, 12_345), &login, false, false),
        ((40_004, 443), &[0x16, 3, 1, 2, 0], true, false),
        ((40_005, 9999), b"whatever it is, it is on a port of a target, as the user said", true, true),
    ];
    let mut wire = Wire::new(&[9999]);
    for (ports, payload, from_first, is_iscsi) in table {
        wire.handshake(ports, 100);
        let (seq, ack) = if from_first { (101, 901) } else { (901, 101) };
        let belongs = wire.packet(ports, from_first, seq, ack, Flags::ACK, payload);
        assert_eq!(matches!(belongs, Belongs::To(_)), is_iscsi, "{ports:?}");
        assert_eq!(belongs == Belongs::Other, !is_iscsi, "{ports:?}");
        let again = wire.packet(ports, true, 500, 901, Flags::ACK, &login);
        assert_eq!(again == Belongs::Other, !is_iscsi, "{ports:?}");
    }
    assert_eq!((wire.table.flows().len(), wire.table.others()), (3, 3));
}

#[test]
fn a_new_syn_begins_another_connection() {
    let (mut wire, ports) = (Wire::new(&[]), (40_000, 3260));
    wire.handshake(ports, 100);
    let first = wire.packet(ports, true, 101, 901, Flags::ACK, &login());
    // The SYN once more is a retransmission.
    assert_eq!(wire.packet(ports, true, 100, 0, Flags::SYN, &[]), first);
    wire.handshake(ports, 5000);
    let second = wire.packet(ports, true, 5001, 901, Flags::ACK, &login());
    assert_ne!(first, second);
    assert_eq!(wire.table.poll_finished().map(|flow| Belongs::To(flow.id)), Some(first));
    wire.packet(ports, true, 5001, 901, Flags::RST, &[]);
    assert_eq!(wire.events.last().map(|(_, event)| event.kind.clone()), Some(Kind::Ended { by_reset: true }));
}

#[test]
fn sealed_and_tls_connections_are_opaque() {
    let mut wire = Wire::new(&[]);
    let (sealed, tls) = ((40_000, 3260), (40_001, 3260));
    wire.handshake(sealed, 100);
    let mut login = login();
    // An outer login never ends by a transit.
    login[1] = 0;
    let length = login.len() as u32;
    wire.packet(sealed, true, 101, 901, Flags::ACK, &login);
    let mut record = vec![0x5a; 200];
    record[..4].copy_from_slice(&[1, 0, 0, 76]);
    wire.packet(sealed, true, 101 + length, 901, Flags::ACK, &record);
    wire.handshake(tls, 100);
    let mut hello = vec![0x77; 200];
    hello[..3].copy_from_slice(&[0x16, 3, 1]);
    wire.packet(tls, true, 101, 901, Flags::ACK, &hello);
    assert_eq!(wire.opaque(), [(Side::Initiator, Opaque::Sealed), (Side::Initiator, Opaque::Tls)]);
    let framing: Vec<_> =
        wire.table.flows().iter().map(|flow| flow.of(Side::Initiator, flow.framing)).collect();
    assert_eq!(framing, [Framing::Sealed, Framing::Tls]);
}

#[test]
fn the_table_is_bounded_and_keeps_what_is_in_use() {
    let mut wire = Wire::new(&[]);
    let used = (39_999, 3260);
    wire.handshake(used, 100);
    for port in 0..3 * FLOWS_MAX as u16 {
        wire.handshake((port, 3260), 100);
        wire.packet(used, true, 101 + u32::from(port) * 48, 901, Flags::ACK, &login()[..48]);
    }
    let flows = wire.table.flows();
    assert_eq!(flows.len(), FLOWS_MAX);
    assert_eq!(flows[0].initiator.port(), used.0);
    let finished = std::iter::from_fn(|| wire.table.poll_finished()).count();
    assert_eq!(finished, 2 * FLOWS_MAX + 1);
    // Connections that are not known to be iSCSI go first.
    for port in 0..2 * FLOWS_MAX as u16 {
        wire.packet((port, 22), true, 100, 0, Flags::SYN, &[]);
    }
    assert_eq!(wire.table.flows().len(), FLOWS_MAX - 1);
}

#[test]
fn probes_are_no_data() {
    let (mut wire, ports) = (Wire::new(&[]), (40_000, 3260));
    wire.handshake(ports, 100);
    let login = login();
    let next = 101 + login.len() as u32;
    wire.packet(ports, true, 101, 901, Flags::ACK, &login);
    wire.packet(ports, false, 901, next, Flags::ACK, &[]);
    for _ in 0..3 {
        wire.packet(ports, true, next - 1, 901, Flags::ACK, &[0]);
        wire.packet(ports, true, next - 1, 901, Flags::ACK, &[]);
        wire.packet(ports, false, 901, next, Flags::ACK, &[]);
    }
    let flow = &wire.table.flows()[0];
    assert_eq!(flow.total(|counts| counts.retransmissions), 0);
    assert_eq!(flow.total(|counts| counts.duplicate_acks), 0);
    assert_eq!(flow.total(|counts| counts.bytes), login.len() as u64);
}
