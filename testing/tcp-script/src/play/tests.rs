//! The player against a stack that says what the test tells it to.

use super::*;
use crate::script::{Special, Version};
use crate::stack::{Ports, Slack, stack_byte};
use crate::wire::Opt;
use crate::{parse, stack_ip};
use std::net::SocketAddr;

const VARIATION: Variation = Variation { version: Version::V4, iss: 100, ts_base: 0 };
const IRS: u32 = 5000;

/// Answers the first frame by SYN-ACK; the second one, the ACK, starts what follows, with times after it.
#[derive(Default)]
struct Puppet {
    now: u64,
    injected: usize,
    says: Vec<(u64, Segment)>,
    queue: VecDeque<(u64, Vec<u8>)>,
}

fn segment(flags: u8, seq: u32, bytes: u64) -> Segment {
    Segment {
        source: SocketAddr::new(stack_ip(Version::V4), 8080),
        destination: SocketAddr::new(peer_ip(Version::V4), 40_000),
        flags,
        seq: IRS + seq,
        ack: 101,
        window: 1000,
        urgent: 0,
        options: if flags & SYN == 0 { Vec::new() } else { vec![Opt::Mss(1460)] },
        payload: (0..bytes).map(|at| stack_byte(u64::from(seq) - 1 + at)).collect(),
    }
}

impl Stack for Puppet {
    fn slack(&self) -> Slack {
        Slack { early: 0, late: 10, late_share: 1000 }
    }

    fn now(&self) -> u64 {
        self.now
    }

    fn inject(&mut self, _: &[u8], _: u16) {
        self.injected += 1;
        match self.injected {
            1 => self
                .queue
                .push_back((self.now, wire::tcp(&segment(SYN | ACK, 0, 0), PEER_MAC, STACK_MAC, &[]))),
            2 => {
                for (after, segment) in self.says.drain(..) {
                    let frame = wire::tcp(&segment, PEER_MAC, STACK_MAC, &[]);
                    self.queue.push_back((self.now + after, frame));
                }
            }
            _ => {}
        }
    }

    fn frame(&mut self, until: u64) -> Option<(u64, Vec<u8>)> {
        let next = self.queue.pop_front_if(|(at, _)| *at <= until);
        self.now = self.now.max(next.as_ref().map_or(until, |(at, _)| *at));
        next
    }

    fn call(&mut self, _: char, call: &Call, _: Ports) -> Result<(), String> {
        if *call == Call::ReceiveNothing { Err("something came".to_owned()) } else { Ok(()) }
    }

    fn special(&mut self, _: char, _: &Special) -> Result<(), String> {
        Ok(())
    }

    fn sysctl(&mut self, _: &str, _: &str) -> Result<(), String> {
        Ok(())
    }
}

fn played(steps: &str, says: &[(u64, Segment)]) -> Result<(), String> {
    let text = format!("script x\nclause y\nas-server mss 1000\n{steps}\n");
    let script = &parse::scripts("group", &text).unwrap()[0];
    let mut puppet = Puppet { says: says.to_vec(), ..Puppet::default() };
    play(script, &VARIATION, &mut puppet).map_err(|failed| failed.0)
}

#[test]
fn what_a_script_expects_passes() {
    let says = [(0, segment(ACK, 1, 100)), (0, segment(ACK, 101, 50)), (5_000, segment(ACK, 151, 0))];
    assert_eq!(played("> . 1:101\n> . 101:151\n+5ms > . 151\n", &says), Ok(()));
    assert_eq!(played("> more 2\n< . 1 ack all/50\n+4ms..5ms > . 151", &says), Ok(()));
    assert_eq!(played("> flight 1:151 frames 2\n+2ms..6ms > acks 1 frames 1", &says), Ok(()));
    assert_eq!(played("ignore 6ms", &says), Ok(()));
    assert_eq!(played("> . 1:101\nmaybe . 5\nmaybe . 101:151\nquiet 4ms\n+1ms > probe 152", &says), Ok(()));
}

#[test]
fn what_it_does_not_expect_fails() {
    let data = [(0, segment(ACK, 1, 100))];
    let late = [(5_000, segment(ACK, 1, 100))];
    let two = [(0, segment(ACK, 1, 100)), (0, segment(ACK, 151, 50))];
    let ack = [(0, segment(ACK, 1, 0))];
    type Case<'a> = (&'a str, &'a str, &'a [(u64, Segment)]);
    let cases: [Case<'_>; 19] = [
        ("nothing came", "> . 1:101", &[]),
        ("nothing came", "> . 1:101", &late),
        ("after the step", "+6ms > . 1:101", &late),
        ("nothing came", "+1ms..4ms > . 1:101", &late),
        ("not expected", "quiet 6ms", &late),
        ("not expected", "+6ms < . 1 ack 1", &late),
        ("not expected", "recv 0", &data),
        ("another range", "> . 1:100", &data),
        ("other flags", "> F. 1:102", &data),
        ("the flight ended at 101", "> flight 1:151", &data),
        ("does not continue", "> flight 1:201", &two),
        ("1 segments", "> flight 1:101 frames 2", &data),
        ("2 segments came", "> more 1", &[(0, segment(ACK, 1, 10)), (0, segment(ACK, 11, 10))]),
        ("does not follow", "> more 2", &two),
        ("no pure ACK", "> acks 1", &data),
        ("acknowledgements came", "> acks 1 frames 2", &ack),
        ("no probe", "> probe 1", &data),
        ("not expected", "maybe . 1:100", &data),
        ("something came", "recv nothing", &[]),
    ];
    for (expected, steps, says) in cases {
        let found = played(steps, says).unwrap_err();
        assert!(found.contains(expected), "{steps}: {found}");
    }
}

#[test]
fn defects_count_wherever_they_are() {
    let mut bad = segment(ACK, 1, 100);
    bad.payload[50] ^= 1;
    assert!(played("ignore 1ms", &[(0, bad)]).unwrap_err().contains("byte 50"));
}
