//! Applications that write what they like into memory that they share with `inet`: each field of each request wrong,
//! slots that change while they are read, counters that cannot be, more than their share.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use area::Region;
use inet::{Endpoint, Owned, Settings, Time, VNET_BYTES};
use libc::{EAGAIN, EALREADY, EBADF, EINVAL, EMFILE, ENOTCONN};
use net::control::Wire;
use net::layout::{self, FRAMES_BYTES, HEADS, TAILS, driver};
use net::server::{Server, capacity};
use net::slot::{Completion, Fill, Input, NO_TAIL, Request, SPANS, Span, completion, input, option, request};
use net::socket::{Stack, TcpListener, TcpStream};

use super::common::{Machine, REGION_BYTES, Raw, Shared, memory, new_counters, pair, ringer};

const SHORT: Duration = Duration::from_millis(100);
const LONG: Duration = Duration::from_secs(10);
/// Of all applications: connections and listeners.
const SOCKETS: usize = 1024 + 64;

/// The other applications of both machines are served as if nothing happened.
fn assert_serves(one: &Stack, two: &Stack, machine: &Machine, port: u16) {
    let listener = TcpListener::bind(two, (machine.address, port)).unwrap();
    let mut stream = TcpStream::connect(one, (machine.address, port)).unwrap();
    let (mut accepted, _) = listener.accept().unwrap();
    stream.write_all(b"question").unwrap();
    let mut eight = [0; 8];
    accepted.read_exact(&mut eight).unwrap();
    accepted.write_all(b"response").unwrap();
    stream.read_exact(&mut eight).unwrap();
    assert_eq!(&eight, b"response");
}

fn socket(raw: &mut Raw) -> Request {
    let answer = raw.answer(Request { code: request::SOCKET, ticket: 1, ..Request::default() });
    assert_eq!((answer.code, answer.status, answer.ticket), (completion::DONE, 0, 1));
    Request { socket: answer.socket, generation: answer.generation, ..Request::default() }
}

/// An established connection of a raw application to a listener of an orderly one.
pub(crate) fn connected(raw: &mut Raw, listener: &TcpListener) -> (Request, TcpStream) {
    let at = listener.local_addr().unwrap();
    let socket = socket(raw);
    let answer = raw.answer(to(at, Request { code: request::CONNECT, ticket: 2, ..socket }));
    assert_eq!((answer.status, answer.ticket), (0, 2));
    (socket, listener.accept().unwrap().0)
}

fn to(at: SocketAddr, request: Request) -> Request {
    let Endpoint { address, port } = at.into();
    Request { address: address.0, port, ..request }
}

fn span(raw: &Raw, offset: u32, length: u32) -> Span {
    Span { region: raw.region.0, generation: raw.region.1, offset, length }
}

fn spans(first: Span) -> [Span; SPANS] {
    [first, Span::default(), Span::default(), Span::default()]
}

fn status(answer: &Completion) -> i32 {
    answer.status.cast_signed()
}

#[test]
fn every_field_of_a_request_wrong_is_answered_and_changes_nothing() {
    let [one, two] = pair(Wire::default(), 2);
    let ((client, _), (server, _)) = (one.stack(), two.stack());
    let listener = TcpListener::bind(&server, (two.address, 7)).unwrap();
    let mut raw = one.raw();
    let (open, mut peer) = connected(&mut raw, &listener);
    let fresh = socket(&mut raw);
    let good = span(&raw, 0, 100);
    let end = REGION_BYTES as u32;
    let send = |spans| Request { code: request::SEND, ticket: 1, spans, ..open };
    let mut gap = spans(good);
    gap[2] = good;
    let cases = [
        ("code 0", Request { code: 0, ..open }, EINVAL),
        ("code 12", Request { code: 12, ..open }, EINVAL),
        ("code", Request { code: u32::MAX, ..open }, EINVAL),
        ("socket", Request { code: request::CLOSE, socket: 1000, ..open }, EBADF),
        ("socket", Request { code: request::LISTEN, socket: u32::MAX, ..open }, EBADF),
        ("generation", Request { code: request::CLOSE, generation: open.generation + 1, ..open }, EBADF),
        ("generation", Request { code: request::CLOSE, generation: 0, ..open }, EBADF),
        ("bind of a connection", Request { code: request::BIND, ..open }, EINVAL),
        ("listen of a connection", Request { code: request::LISTEN, ..open }, EINVAL),
        ("accept of a connection", Request { code: request::ACCEPT, ..open }, EINVAL),
        ("connect to port 0", Request { code: request::CONNECT, address: [1; 16], ..fresh }, EINVAL),
        ("connect to ::", Request { code: request::CONNECT, port: 7, ..fresh }, EINVAL),
        ("shutdown without connection", Request { code: request::SHUTDOWN, ..fresh }, ENOTCONN),
        ("abort without connection", Request { code: request::ABORT, ..fresh }, ENOTCONN),
        ("option 0", Request { code: request::OPTION, ..open }, EINVAL),
        ("option 4", Request { code: request::OPTION, value: 4, ..open }, EINVAL),
        (
            "algorithm 2",
            Request { code: request::OPTION, value: option::CONGESTION, ticket: 2, ..open },
            EINVAL,
        ),
        ("17 frames", Request { code: request::RECEIVE, value: 17, ..open }, EINVAL),
        ("frames", Request { code: request::RECEIVE, value: u32::MAX, ..open }, EINVAL),
        ("a frame never delivered", Request { code: request::RECEIVE, value: 1, ..open }, EINVAL),
        (
            "a frame that does not exist",
            Request {
                code: request::RECEIVE,
                value: 4,
                spans: [Span { region: u32::MAX, ..good }; 4],
                ..open
            },
            EINVAL,
        ),
        (
            "send without connection",
            Request { socket: fresh.socket, generation: fresh.generation, ..send(spans(good)) },
            ENOTCONN,
        ),
        ("send of nothing", send([Span::default(); SPANS]), EINVAL),
        ("send with a gap", send(gap), EINVAL),
        ("region of another", send(spans(Span { region: good.region + 1, ..good })), EINVAL),
        ("region", send(spans(Span { region: u32::MAX, ..good })), EINVAL),
        ("generation of the region", send(spans(Span { generation: 2, ..good })), EINVAL),
        ("behind the region", send(spans(Span { offset: end, length: 1, ..good })), EINVAL),
        ("across its end", send(spans(Span { offset: end - 1, length: 2, ..good })), EINVAL),
        ("overflow", send(spans(Span { offset: u32::MAX, length: u32::MAX, ..good })), EINVAL),
        ("the last span", send([good, good, good, Span { length: end + 1, ..good }]), EINVAL),
        ("ticket 0", Request { ticket: 0, ..send(spans(good)) }, EALREADY),
        ("ticket 2", Request { ticket: 2, ..send(spans(good)) }, EAGAIN),
        ("shutdown before a send", Request { code: request::SHUTDOWN, value: 1, ..open }, EAGAIN),
    ];
    // An orderly application, whose region the raw one names, and whose frames.
    drop(client.alloc(10).unwrap());
    for (why, asked, errno) in cases {
        let answer = raw.answer(asked);
        let is_send = asked.code == request::SEND;
        assert_eq!(answer.code, if is_send { completion::REFUSED } else { completion::DONE }, "{why}");
        assert_eq!((status(&answer), answer.ticket), (errno, asked.ticket), "{why}");
    }
    raw.ask(send(spans(good)));
    let released = raw.take(LONG).unwrap();
    assert_eq!((released.code, released.ticket), (completion::RELEASED, 1));
    assert_eq!(status(&raw.answer(send(spans(good)))), EALREADY, "taken before");
    let mut received = [1; 100];
    peer.read_exact(&mut received).unwrap();
    assert_eq!(received, [0; 100], "one send, of new memory");
    assert_serves(&client, &server, &two, 70);
}

/// The number of memory that is gone names other memory: a request with the former generation is refused, and moves no byte
/// of either.
#[test]
fn a_number_that_was_used_again_names_the_new_memory_alone() {
    let [one, two] = pair(Wire::default(), 2);
    let ((client, _), (server, _)) = (one.stack(), two.stack());
    let listener = TcpListener::bind(&server, (two.address, 7)).unwrap();
    let mut raw = one.raw();
    let (open, mut peer) = connected(&mut raw, &listener);
    let former = span(&raw, 0, 100);
    let new = memory(REGION_BYTES);
    rustix::io::pwrite(&new, &[2; 100], 0).unwrap();
    raw.region = one.replace(raw.region.0, new, REGION_BYTES as u32);
    assert_eq!(raw.region, (former.region, former.generation + 1));
    let send = Request { code: request::SEND, ticket: 1, ..open };
    let answer = raw.answer(Request { spans: spans(former), ..send });
    assert_eq!((answer.code, status(&answer)), (completion::REFUSED, EINVAL));
    raw.ask(Request { spans: spans(span(&raw, 0, 100)), ..send });
    let released = raw.take(LONG).unwrap();
    assert_eq!((released.code, released.ticket), (completion::RELEASED, 1));
    let mut received = [0; 100];
    peer.read_exact(&mut received).unwrap();
    assert_eq!(received, [2; 100]);
    assert_serves(&client, &server, &two, 70);
}

#[test]
fn a_frame_is_given_back_once_and_by_its_owner() {
    let [one, two] = pair(Wire::default(), 2);
    let (server, _) = two.stack();
    let listener = TcpListener::bind(&server, (two.address, 7)).unwrap();
    let mut raw = one.raw();
    let (open, mut peer) = connected(&mut raw, &listener);
    peer.write_all(&[3; 500]).unwrap();
    let received = raw.take(LONG).unwrap();
    assert_eq!((received.code, received.ranges[0][1], received.offset), (completion::RECEIVED, 500, 0));
    let mut back = Request { code: request::RECEIVE, value: 1, ticket: 9, ..open };
    let mut numbers = back.frames();
    numbers[0] = received.frame;
    back.set_frames(numbers);
    raw.ask(back);
    assert!(raw.take(SHORT).is_none(), "no answer");
    assert_eq!(status(&raw.answer(back)), EINVAL, "twice");
    let mut other = one.raw();
    peer.write_all(&[4; 500]).unwrap();
    let again = raw.take(LONG).unwrap();
    numbers[0] = again.frame;
    back.set_frames(numbers);
    assert_eq!(status(&other.answer(back)), EINVAL, "of another");
    raw.ask(back);
    assert!(raw.take(SHORT).is_none(), "still the owner's");
}

#[test]
fn a_client_whose_counters_cannot_be_is_disconnected_alone() {
    let [one, two] = pair(Wire::default(), 3);
    let ((client, _), (server, _)) = (one.stack(), two.stack());
    for (port, break_ring) in [(70, Raw::publish_too_much as fn(&mut Raw)), (71, Raw::consume_too_much)] {
        let listener = TcpListener::bind(&server, (two.address, 7)).unwrap();
        let mut raw = one.raw();
        let (_, mut peer) = connected(&mut raw, &listener);
        break_ring(&mut raw);
        let mut none = Vec::new();
        assert!(peer.read_to_end(&mut none).is_err(), "reset");
        assert_serves(&client, &server, &two, port);
    }
    let counters: std::collections::HashMap<_, _> = one.counters.read().into_iter().collect();
    assert_eq!(counters["clients_faulty"], 2);
}

/// Slots whose words another core writes all the time: whatever is read, each request is answered or ignored, and the
/// server and its other applications live on.
#[test]
fn slots_that_change_under_the_reader_harm_nobody_else() {
    let [one, two] = pair(Wire::default(), 2);
    let ((client, _), (server, _)) = (one.stack(), two.stack());
    let mut raw = one.raw();
    let seed = 0x5EED_u64;
    println!("seed {seed}");
    let mut random = seed;
    for round in 0..20_000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Small numbers find sockets and codes that exist.
        let slot = std::array::from_fn(|word| {
            let value = random.rotate_left(word as u32 * 7);
            if value & 1 == 0 { (value >> 60) | (value >> 40 & 0xF) << 32 } else { value }
        });
        raw.scribble(&slot, round % 3 == 0);
        while let Some(completion) = raw.take(Duration::ZERO) {
            assert!(completion.code != 0);
        }
    }
    assert_serves(&client, &server, &two, 70);
    one.gone(raw.client);
    assert_serves(&client, &server, &two, 71);
}

#[test]
fn sockets_and_sends_of_one_client_are_bounded() {
    let [one, two] = pair(Wire { delay_us: 200_000, ..Wire::default() }, 2);
    let ((client, _), (server, _)) = (one.stack(), two.stack());
    let listener = TcpListener::bind(&server, (two.address, 7)).unwrap();
    let mut raw = one.raw();
    let (open, _peer) = connected(&mut raw, &listener);
    let mut refused = None;
    for ticket in 1..100_000 {
        let spans = [span(&raw, 0, 1); SPANS];
        raw.ask(Request { code: request::SEND, ticket, spans, ..open });
        if let Some(answer) = raw.take(Duration::ZERO)
            && answer.code == completion::REFUSED
        {
            refused = Some((answer.ticket, status(&answer)));
            break;
        }
    }
    assert!(matches!(refused, Some((ticket, EAGAIN)) if ticket > 100), "{refused:?}");
    let mut full = None;
    for count in 0..100_000 {
        let answer = raw.answer_of(Request { code: request::SOCKET, ticket: 77, ..Request::default() }, 77);
        if answer.status != 0 {
            full = Some((count, status(&answer)));
            break;
        }
    }
    assert!(matches!(full, Some((count, EMFILE)) if count > 100), "{full:?}");
    assert_serves(&client, &server, &two, 70);
}

/// The peer does not read, so that the connections do not end; their sockets are free when they are needed.
#[test]
fn sockets_that_are_closed_and_not_ended_give_way_to_new_ones() {
    const CLOSED: u64 = 8;
    let [one, two] = pair(Wire::default(), 2);
    let (server, _) = two.stack();
    let listener = TcpListener::bind(&server, (two.address, 7)).unwrap();
    let mut raw = one.raw();
    let spans = [span(&raw, 0, REGION_BYTES as u32); SPANS];
    let mut peers = Vec::new();
    for _ in 0..CLOSED {
        let (open, peer) = connected(&mut raw, &listener);
        peers.push(peer);
        // More than the window of a peer that does not read.
        for ticket in 1..=8 {
            raw.ask(Request { code: request::SEND, ticket, spans, ..open });
        }
        let answer = raw.answer_of(Request { code: request::CLOSE, ticket: 99, value: 8, ..open }, 99);
        assert_eq!(status(&answer), 0);
    }
    let opened = (0..100_000)
        .take_while(|_| {
            raw.answer_of(Request { code: request::SOCKET, ticket: 77, ..Request::default() }, 77).status == 0
        })
        .count();
    assert_eq!(opened, SOCKETS / 2);
}

/// A client that takes no completions keeps nobody waiting.
#[test]
fn a_client_that_does_not_read_its_completions_blocks_itself() {
    let [one, two] = pair(Wire::default(), 2);
    let ((client, _), (server, _)) = (one.stack(), two.stack());
    let mut raw = one.raw();
    for ticket in 0..400 {
        if raw.requests.room().unwrap() == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        if raw.requests.room().unwrap() > 0 {
            raw.ask(Request { code: request::SOCKET, ticket, ..Request::default() });
        }
    }
    assert_serves(&client, &server, &two, 70);
    let answers = std::iter::from_fn(|| raw.take(SHORT)).count();
    assert!(answers >= 256, "{answers} answers");
}

/// A driver that says what it likes: numbers that it does not hold, lengths, codes, frames of random bytes, attachments
/// in between. The server goes on, and posts no head or tail that it has posted and not got back.
#[test]
fn a_driver_that_lies_neither_stops_the_server_nor_gets_a_frame_twice() {
    const ETHERNET_ARP: [u8; 14] = [255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 9, 8, 6];
    let seed = 0xD21_u64;
    println!("seed {seed}");
    let mut random = seed;
    let mut draw = move |below: u32| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((random >> 33) % u64::from(below)) as u32
    };
    let capacity = capacity(1, 1);
    let mut owned = Owned::new(&capacity);
    let settings =
        Settings { addresses: vec![([10, 0, 0, 1].into(), 24)], gateways: Vec::new(), secret: [1; 16] };
    let counters = new_counters();
    let mut server = Server::new(owned.memory(), &capacity, &settings, counters.clone(), Time(1));
    let shared = Shared::new([driver::INET_BYTES, driver::NIC_BYTES]);
    let frames = memory(FRAMES_BYTES);
    let [seen, written] = [false, true]
        .map(|writable| Arc::new(Region::shared(frames.as_fd(), FRAMES_BYTES, writable).unwrap()));
    server.add_interface(0, shared.side(0), seen, ringer());
    let (mut transmits, mut fills, mut inputs) = driver::nic(&shared.side(1));
    // The epoch's heads and tails that this driver holds.
    let (mut epoch, mut heads, mut tails) = (0, BTreeSet::new(), BTreeSet::new());
    for step in 1..200_000u64 {
        let some = |set: &BTreeSet<u32>, draw: &mut dyn FnMut(u32) -> u32, count: usize| match draw(3) {
            0 => set.iter().next().copied().unwrap_or(0),
            1 => draw(count as u32 + 2),
            _ => draw(u32::MAX),
        };
        let is_attach = step == 1 || draw(1000) == 0;
        let input = Input {
            code: if is_attach { input::ATTACH } else { input::FRAME + 2 * u32::from(draw(50) == 0) },
            head: some(&heads, &mut draw, HEADS),
            tail: if draw(2) == 0 { NO_TAIL } else { some(&tails, &mut draw, TAILS) },
            length: if draw(4) == 0 { draw(u32::MAX) } else { draw(3000) },
            is_checked: draw(2),
            segment_bytes: draw(u32::MAX),
            mac: [2; 6],
            mtu: if step == 1 { 1500 } else { draw(1 << 16) as u16 },
            segments: draw(2),
            epoch: epoch + u32::from(is_attach),
            ..Input::default()
        };
        if inputs.room().unwrap() > 0 {
            if let Some(at) = (input.head as usize).checked_mul(layout::HEAD_BYTES)
                && input.head < HEADS as u32
            {
                let mut bytes: Vec<u8> = (0..256).map(|_| draw(256) as u8).collect();
                if draw(2) == 0 {
                    bytes[VNET_BYTES..][..14].copy_from_slice(&ETHERNET_ARP);
                    bytes[VNET_BYTES + 13] = [6, 0][draw(2) as usize];
                    bytes[VNET_BYTES + 14..][..2].copy_from_slice(&[0x45, 0]);
                }
                // SAFETY: a head inside of the region; the server copies it out whole or mixed.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), written.as_ptr().add(at), 256) };
            }
            inputs.push(&input.into());
            let _ = inputs.publish();
            if is_attach && input.mtu >= 576 {
                epoch += 1;
                heads.clear();
                tails.clear();
            } else if input.code == input::FRAME {
                heads.remove(&input.head);
                tails.remove(&input.tail);
            }
        }
        if draw(4) == 0 {
            server.turn(Time(step * 50));
        }
        while let Some(fill) = fills.take().unwrap().map(Fill::from) {
            fills.consume();
            if fill.epoch != epoch {
                continue;
            }
            let (some, others) =
                fill.numbers[..usize::from(fill.heads + fill.tails)].split_at(fill.heads.into());
            assert!(some.iter().all(|&head| head < HEADS as u32 && heads.insert(head)), "a head twice");
            assert!(others.iter().all(|&tail| tail < TAILS as u32 && tails.insert(tail)), "a tail twice");
        }
        while transmits.take().unwrap().is_some() {
            transmits.consume();
        }
    }
    let counted: std::collections::HashMap<_, _> = counters.read().into_iter().collect();
    for reason in ["dropped_code", "dropped_head", "dropped_tail", "dropped_length", "frames_in"] {
        assert!(counted[reason] > 1000, "{reason}: {}", counted[reason]);
    }
    // Counters that cannot be: dropped at each look, and nothing else happens.
    let before = counted["dropped_corrupt"];
    let nic = Region::shared(shared.memory[1].as_fd(), driver::NIC_BYTES, true).unwrap();
    for word in 0..driver::NIC_BYTES / 8 {
        // SAFETY: an aligned word of the mapping, written as all processes do.
        unsafe { &*nic.as_ptr().add(word * 8).cast::<AtomicU64>() }.store(u64::MAX / 3, Ordering::Relaxed);
    }
    for step in 0..10 {
        server.turn(Time(20_000_000 + step));
    }
    assert!(counters.dropped_corrupt.load(Ordering::Relaxed) > before);
}
