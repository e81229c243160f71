use std::net::SocketAddr;

use super::*;
use crate::packet::{Flags, Options as TcpOptions};

/// Packet `number` of the initiator at `port`, without any answer.
fn packet(port: u16, number: u32, payload: &[u8]) -> Packet<'_> {
    let end = |host: u8, port: u16| SocketAddr::from(([10, 0, 0, host], port));
    Packet {
        at_ns: u64::from(number) * 1_000,
        frame: u64::from(number) + 1,
        interface: 0,
        source: end(1, port),
        destination: end(2, 3260),
        seq: number.wrapping_mul(payload.len() as u32),
        ack: 1,
        flags: Flags(Flags::ACK),
        window: 1000,
        options: TcpOptions::default(),
        ip_id: None,
        hops: 64,
        ecn: 0,
        payload_bytes: payload.len() as u32,
        payload,
    }
}

#[test]
fn those_that_hold_most_are_folded_and_reported() {
    // Ports with the packets of each.
    let connections = [(1001, 5000), (1002, 50), (1003, 500)];
    let payload = [0; 1000];
    let mut analyzer = Analyzer::new(Options::default());
    for (port, packets) in connections {
        (0..packets).for_each(|number| analyzer.handle(&packet(port, number, &payload)));
    }
    let held = |analyzer: &mut Analyzer| {
        analyzer.release(|_| {});
        let mut held: Vec<_> = analyzer.held().into_iter().map(|(bytes, _)| bytes).collect();
        held.sort_unstable();
        held
    };
    let before = held(&mut analyzer);
    assert!(before[0] > 0 && before[0] < before[1] && before[1] < before[2], "{before:?}");
    analyzer.fold(before.iter().sum());
    assert_eq!((held(&mut analyzer), analyzer.folded), (before.clone(), 0));
    analyzer.fold(before[0] + before[1]);
    assert_eq!((held(&mut analyzer), analyzer.folded), (vec![before[0], before[1]], 1));
    // What comes later takes nothing.
    analyzer.handle(&packet(connections[0].0, connections[0].1, &payload));
    assert_eq!(held(&mut analyzer).len(), 2);
    let report = analyzer.finish("", capture::Counts::default(), &[]);
    assert_eq!(report.flows.len(), connections.len());
    assert!(report.flows.iter().any(|flow| flow.flow.frames == 5001), "its packets are counted");
    assert!(
        report.notes.iter().any(|note| note.starts_with("1 connections had too much")),
        "{:?}",
        report.notes
    );
}

/// Segments that are never acknowledged wait to be timed, and each other one is missing: whether it is iSCSI or not.
#[test]
fn what_the_table_of_connections_holds_counts() {
    for (target, commands) in [(3260, "iSCSI"), (9999, "undecided")] {
        let mut analyzer = Analyzer::new(Options::default());
        for number in 0..4000 {
            let payload = [0xff; 100];
            let mut packet = packet(1001, 2 * number, &payload);
            packet.destination.set_port(target);
            analyzer.handle(&packet);
        }
        analyzer.release(|_| {});
        let [(bytes, id)] = analyzer.held()[..] else { panic!("{commands}") };
        let above = analyzer.connections.get(&id).map_or(0, Connection::held_bytes);
        assert!(bytes > above + 20_000, "{commands}: {bytes} {above}");
        analyzer.fold(bytes - 1);
        assert_eq!((analyzer.held(), analyzer.folded), (Vec::new(), 1), "{commands}");
    }
}

#[test]
fn memory_is_looked_at_again_and_again() {
    // Frames of many commands come to it sooner than packets without payload: starts and ends of PDUs count, too.
    let looks_with = |payload: &[u8]| {
        let mut analyzer = Analyzer::new(Options::default());
        let mut looks = 0;
        for number in 0..2 * HELD_CHECK_EVENTS {
            let before = analyzer.unchecked;
            analyzer.handle(&packet(1001, number, payload));
            looks += u32::from(analyzer.unchecked > before);
        }
        assert_eq!(analyzer.folded, 0);
        looks
    };
    // SCSI Commands (TEST UNIT READY) with tags and CmdSN of their own.
    let commands: Vec<u8> = (1..=8_u8)
        .flat_map(|number| {
            let mut header = [0; 48];
            (header[0], header[1], header[19], header[27]) = (0x01, 0x81, number, number);
            header
        })
        .collect();
    let (few, many) = (looks_with(&[]), looks_with(&commands));
    assert!(few >= 2 && many > 4 * few, "{few} {many}");
}

#[test]
fn results_do_not_depend_on_when_events_are_handled() {
    let command = |number: u32| {
        let mut bytes = vec![0; 48 + 512];
        (bytes[0], bytes[1], bytes[6], bytes[32], bytes[40]) = (0x01, 0xa1, 2, 0x2a, 1);
        for at in [16, 24] {
            bytes[at..at + 4].copy_from_slice(&number.to_be_bytes());
        }
        bytes[22] = 2;
        bytes
    };
    let report = |is_seen: bool| {
        let mut analyzer = Analyzer::new(Options::default());
        for number in 0..400 {
            for port in 1001..1004 {
                let payload = command(number);
                let packet = packet(port, number, &payload);
                if is_seen {
                    analyzer.handle_seen(&packet, |_| {});
                } else {
                    analyzer.handle(&packet);
                }
            }
        }
        let report = analyzer.finish("", capture::Counts::default(), &[]);
        let flows = report.flows.iter();
        flows
            .map(|flow| format!("{:?} {:?} {:?}", flow.counts, flow.evidence, flow.commands))
            .collect::<Vec<_>>()
    };
    let seen = report(true);
    assert!(seen.len() == 3 && seen[0].contains("commands: 400"), "{seen:?}");
    assert_eq!(report(false), seen);
}
