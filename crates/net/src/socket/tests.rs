//! The library's machine against a scripted `inet`, without threads: refusals, releases and ends in any order.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use area::ring::{Consumer, Producer};
use libc::{EAGAIN, EALREADY, ECONNRESET, EPIPE};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::area::{Arena, Lease};
use super::state::{Id, State};
use crate::layout::{self, Channel};
use crate::slot::{Completion, Request, Returned, completion, request};

const ID: Id = Id { number: 3, generation: 9 };

struct Rig {
    state: State,
    requests: Consumer,
    completions: Producer,
    direct: Producer,
    arena: Arc<Arena>,
}

fn memory(bytes: usize) -> OwnedFd {
    let memfd = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&memfd, bytes as u64).unwrap();
    memfd
}

/// Both sides of a channel.
fn sides(bytes: [usize; 2]) -> [Channel; 2] {
    let memory = bytes.map(memory);
    [[0, 1], [1, 0]].map(|[own, peer]| {
        Channel::map(memory[own].as_fd(), bytes[own], memory[peer].as_fd(), bytes[peer]).unwrap()
    })
}

impl Rig {
    fn new() -> Self {
        let [own, inet] = sides([layout::client::CLIENT_BYTES, layout::client::INET_BYTES]);
        let [direct, nic] = sides([layout::direct::CLIENT_BYTES, layout::direct::NIC_BYTES]);
        let (requests, completions) = layout::client::application(&own);
        let mut state = State::new(requests, completions, layout::direct::application(&direct));
        let at: SocketAddr = "10.0.0.1:7".parse().unwrap();
        state.add_flow(ID, at, at);
        let (requests, completions) = layout::client::inet(&inet);
        let arena = Arc::new(Arena::default());
        let direct = layout::direct::nic(&nic);
        Self { state, requests, completions, direct, arena }
    }

    fn lease(&self) -> Arc<Lease> {
        let lease = self.arena.take(4096).or_else(|| {
            assert!(self.arena.grow(4096, &mut |_, _| Ok((0, 1))).unwrap());
            self.arena.take(4096)
        });
        Arc::new(lease.unwrap())
    }

    /// Sends `length` bytes of a new area; its ticket, and the area to count its references.
    fn send(&mut self, length: usize) -> (u64, Arc<Lease>) {
        let lease = self.lease();
        (self.state.send(ID, lease.span(0, length), Arc::clone(&lease)).unwrap(), lease)
    }

    /// All requests that are visible.
    fn taken(&mut self) -> Vec<Request> {
        let _ = self.state.publish();
        let taken = std::iter::from_fn(|| self.requests.take().unwrap()).map(Request::from).collect();
        self.requests.consume();
        taken
    }

    fn codes(&mut self) -> Vec<(u32, u64)> {
        let number =
            |asked: &Request| if asked.code == request::SEND { asked.ticket } else { asked.value.into() };
        self.taken().iter().map(|asked| (asked.code, number(asked))).collect()
    }

    fn say(&mut self, code: u32, ticket: u64, status: i32) {
        let completion = Completion {
            code,
            socket: ID.number,
            generation: ID.generation,
            ticket,
            status: status as u32,
            ..Completion::default()
        };
        assert!(self.completions.room().unwrap() > 0);
        self.completions.push(&completion.into());
        let _ = self.completions.publish();
        self.state.look();
    }
}

#[test]
fn a_send_behind_a_refused_one_is_repeated_in_order() {
    let mut rig = Rig::new();
    let areas: Vec<_> = (0..3).map(|_| rig.send(100)).collect();
    rig.state.shutdown(ID);
    let all = [(request::SEND, 1), (request::SEND, 2), (request::SEND, 3), (request::SHUTDOWN, 3)];
    let asked = rig.taken();
    assert_eq!(asked.iter().map(|asked| asked.code).collect::<Vec<_>>(), all.map(|(code, _)| code));
    rig.say(completion::REFUSED, 2, EAGAIN);
    rig.say(completion::REFUSED, 3, EAGAIN);
    rig.say(completion::DONE, asked[3].ticket, EAGAIN);
    assert_eq!(rig.codes(), [], "no repetition before there is room");
    rig.say(completion::ROOM, 0, 0);
    assert_eq!(rig.codes(), all[1..]);
    rig.say(completion::REFUSED, 2, EALREADY);
    rig.say(completion::RELEASED, 3, 0);
    assert_eq!(rig.codes(), []);
    assert!(areas.iter().all(|(_, area)| Arc::strong_count(area) == 1));
    assert_eq!(rig.state.flow(ID).unwrap().flight_bytes, 0);
}

#[test]
fn a_close_waits_for_the_sends_and_for_the_last_release() {
    let mut rig = Rig::new();
    let (_, area) = rig.send(10);
    rig.state.close(ID);
    let asked = rig.taken();
    assert_eq!((asked.len(), asked[1].code, asked[1].value), (2, request::CLOSE, 1));
    assert!(rig.state.lingers());
    rig.say(completion::DONE, asked[1].ticket, 0);
    rig.say(completion::ENDED, 0, 0);
    assert!(rig.state.flow(ID).is_some(), "the driver may still have the bytes");
    rig.say(completion::RELEASED, 1, 0);
    assert!(rig.state.flow(ID).is_none() && !rig.state.lingers());
    assert_eq!(Arc::strong_count(&area), 1);
}

#[test]
fn bytes_that_were_never_taken_are_free_when_the_connection_ends() {
    let mut rig = Rig::new();
    let areas: Vec<_> = (0..4).map(|_| rig.send(100)).collect();
    let counts = |areas: &[(u64, Arc<Lease>)]| -> Vec<_> {
        areas.iter().map(|(_, area)| Arc::strong_count(area) - 1).collect()
    };
    rig.taken();
    rig.say(completion::REFUSED, 3, EAGAIN);
    rig.say(completion::REFUSED, 4, EAGAIN);
    rig.say(completion::ENDED, 0, ECONNRESET);
    assert_eq!(counts(&areas), [1, 1, 0, 0]);
    rig.say(completion::RELEASED, 2, 0);
    assert_eq!(counts(&areas), [0; 4]);
    let mut rig = Rig::new();
    let areas: Vec<_> = (0..2).map(|_| rig.send(100)).collect();
    rig.taken();
    rig.say(completion::REFUSED, 1, EPIPE);
    rig.say(completion::REFUSED, 2, EPIPE);
    assert_eq!(counts(&areas), [0; 2]);
    assert_eq!(rig.state.flow(ID).unwrap().ended, Some(EPIPE));
}

#[test]
fn received_bytes_of_a_closed_socket_go_back() {
    let mut rig = Rig::new();
    let received = |frame| Completion {
        code: completion::RECEIVED,
        socket: ID.number,
        generation: ID.generation,
        frame,
        ranges: [[0, 100_000], [0, 0]],
        ..Completion::default()
    };
    rig.completions.push(&received(5).into());
    let _ = rig.completions.publish();
    rig.state.look();
    rig.state.close(ID);
    rig.completions.push(&received(6).into());
    let _ = rig.completions.publish();
    rig.state.look();
    rig.state.flush_returns();
    let returned: Vec<_> = rig
        .taken()
        .iter()
        .filter(|asked| asked.code == request::RECEIVE)
        .flat_map(|asked| asked.frames()[..asked.value as usize].to_vec())
        .collect();
    assert_eq!(returned, [5, 6]);
}

#[test]
fn direct_returns_are_taken_at_their_word_only_within_what_was_sent() {
    let mut rig = Rig::new();
    rig.send(10);
    for (generation, ticket, submitted) in [(8, 1, 0), (9, 1, 1), (9, 1 << 60, 1)] {
        let returned = Returned { socket: ID.number, generation, ticket, ..Returned::default() };
        rig.direct.push(&returned.into());
        let _ = rig.direct.publish();
        rig.state.look();
        assert_eq!(rig.state.flow(ID).unwrap().submitted, submitted);
    }
}

/// An `inet` with few places, which takes, refuses and releases as the seed says: bytes are taken in order and once,
/// each area comes back once, and no sooner than its release.
#[test]
fn sends_are_taken_in_order_and_areas_return_once_under_any_refusals() {
    for seed in 1..100u64 {
        let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut draw = move |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let mut rig = Rig::new();
        let mut areas = VecDeque::new();
        let (mut sent, mut taken, mut released) = (0u64, 0u64, 0u64);
        let (mut wants_room, mut is_closed, mut refusals) = (false, false, 0);
        let mut backlog: VecDeque<Request> = VecDeque::new();
        for step in 0..30_000 {
            if is_closed {
                break;
            }
            match draw(5) {
                0 | 1 if step < 1500 => {
                    areas.push_back(rig.send(1 + draw(50) as usize).1);
                    sent += 1;
                }
                2 if taken > released => {
                    released += 1 + draw(taken - released);
                    rig.say(completion::RELEASED, released, 0);
                }
                3 if wants_room => {
                    wants_room = false;
                    rig.say(completion::ROOM, 0, 0);
                }
                _ => {}
            }
            if step == 1500 {
                rig.state.close(ID);
            }
            if backlog.len() < layout::REQUESTS {
                backlog.extend(rig.taken());
            }
            for _ in 0..draw(4) {
                let Some(asked) = backlog.pop_front() else { break };
                let has_room = taken - released < 6;
                let status = match asked.code {
                    request::SEND if asked.ticket <= taken => EALREADY,
                    request::SEND if asked.ticket != taken + 1 || !has_room => EAGAIN,
                    request::SEND => {
                        taken += 1;
                        continue;
                    }
                    request::CLOSE if u64::from(asked.value) != taken => EAGAIN,
                    request::CLOSE => {
                        is_closed = true;
                        0
                    }
                    code => panic!("code {code}, seed {seed}"),
                };
                wants_room |= status == EAGAIN;
                refusals += u64::from(status != 0);
                let code = if asked.code == request::SEND { completion::REFUSED } else { completion::DONE };
                rig.say(code, asked.ticket, status);
            }
            while areas.len() as u64 > sent - released {
                let area = areas.pop_front().unwrap();
                assert_eq!(Arc::strong_count(&area), 1, "a released area, seed {seed}");
            }
            assert!(areas.iter().all(|area| Arc::strong_count(area) == 2), "lost an area, seed {seed}");
        }
        assert!(is_closed && taken == sent, "{taken} of {sent}, seed {seed}");
        assert!(refusals < 4 * sent, "{refusals} refusals of {sent} sends, seed {seed}");
        rig.say(completion::RELEASED, sent, 0);
        rig.say(completion::ENDED, 0, 0);
        assert!(rig.state.flow(ID).is_none(), "seed {seed}");
    }
}
