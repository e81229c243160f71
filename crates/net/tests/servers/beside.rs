//! What an application does to itself harms no other one: each harm is done while another application of the same servers
//! transfers bytes both ways, and each of these arrives.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use area::ring::SLOT_BYTES;
use net::control::Wire;
use net::slot::{Completion, Request, SPANS, Span, completion, request};
use net::socket::{TcpListener, TcpStream};
use rustix::fs::{FallocateFlags, fallocate};

use super::common::{REGION_BYTES, Raw, pair};
use super::hostile::connected;

/// Bytes that the other application transfers in each direction while harm is done, at least.
const BYTES_MIN: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(30);
const CHUNK: usize = 50_000;

/// The byte at a place of the stream of one direction.
fn content(at: u64, direction: u8) -> u8 {
    (at % 251) as u8 ^ direction
}

fn send(mut stream: &TcpStream, direction: u8, is_over: &AtomicBool) -> u64 {
    let mut sent = 0;
    while !is_over.load(Ordering::Relaxed) {
        let chunk: Vec<u8> = (sent..).take(CHUNK).map(|at| content(at, direction)).collect();
        stream.write_all(&chunk).unwrap();
        sent += CHUNK as u64;
    }
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    sent
}

fn receive(mut stream: &TcpStream, direction: u8, received: &AtomicU64) -> u64 {
    let (mut at, mut bytes) = (0, vec![0; CHUNK]);
    loop {
        let count = stream.read(&mut bytes).unwrap();
        for &byte in &bytes[..count] {
            assert_eq!(byte, content(at, direction), "byte {at} of direction {direction}");
            at += 1;
        }
        received.store(at, Ordering::Relaxed);
        if count == 0 {
            return at;
        }
    }
}

/// Ends the transfer, also when a test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `harm` on machine one beside a transfer of another application there, again and again until enough has been
/// transferred. `harm` has a connection of its own, whose peer it gets, and says whether it goes on.
fn beside(mut harm: impl FnMut(&mut Raw, Request, &mut TcpStream) -> bool) {
    let [one, two] = pair(Wire::default(), 3);
    let ((client, _), (server, _)) = (one.stack(), two.stack());
    let listener = TcpListener::bind(&server, (two.address, 7)).unwrap();
    let ours = TcpStream::connect(&client, (two.address, 7)).unwrap();
    let (theirs, _) = listener.accept().unwrap();
    for stream in [&ours, &theirs] {
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.set_write_timeout(Some(LIMIT)).unwrap();
    }
    let mut raw = one.raw();
    let (open, mut peer) = connected(&mut raw, &listener);
    let is_over = AtomicBool::new(false);
    let received = [AtomicU64::new(0), AtomicU64::new(0)];
    std::thread::scope(|scope| {
        let threads = [(1, &ours, &theirs), (2, &theirs, &ours)].map(|(direction, from, to)| {
            let (is_over, received) = (&is_over, &received[usize::from(direction) - 1]);
            (
                scope.spawn(move || send(from, direction, is_over)),
                scope.spawn(move || receive(to, direction, received)),
            )
        });
        let over = Over(&is_over);
        let until = Instant::now() + LIMIT;
        let has_enough = || received.iter().all(|bytes| bytes.load(Ordering::Relaxed) > BYTES_MIN);
        while harm(&mut raw, open, &mut peer) || !has_enough() {
            assert!(Instant::now() < until, "the other application is kept from its transfer: {received:?}");
        }
        drop(over);
        for (sender, receiver) in threads {
            assert_eq!(sender.join().unwrap(), receiver.join().unwrap());
        }
    });
    assert!(one.counters.bytes_out.load(Ordering::Relaxed) > BYTES_MIN);
}

/// A repeatable sequence of numbers.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 16
    }

    fn below(&mut self, most: u32) -> u32 {
        (self.next() % u64::from(most)) as u32
    }
}

fn drain(raw: &mut Raw) -> Vec<Completion> {
    std::iter::from_fn(|| raw.take(Duration::ZERO)).collect()
}

/// Pushes a request if the ring has room.
fn try_ask(raw: &mut Raw, asked: Request) -> bool {
    let has_room = raw.requests.room().unwrap() > 0;
    if has_room {
        raw.ask(asked);
    }
    has_room
}

#[test]
fn sends_of_memory_that_is_not_its_own() {
    let (mut draw, mut ticket, mut count) = (Draw(1), 1, 0);
    beside(|raw, open, _| {
        let end = REGION_BYTES as u32;
        let spans: [Span; SPANS] = std::array::from_fn(|_| Span {
            region: draw.below(4),
            generation: draw.below(3),
            offset: draw.below(2) * draw.below(end + 10),
            length: draw.below(3) * draw.below(end),
        });
        try_ask(raw, Request { code: request::SEND, ticket, spans, ..open });
        for completion in drain(raw) {
            if completion.code == completion::RELEASED {
                ticket = ticket.max(completion.ticket + 1);
            }
        }
        count += 1;
        count < 20_000
    });
}

#[test]
fn slots_and_spans_that_change_under_the_reader() {
    let (mut draw, mut count) = (Draw(2), 0);
    beside(|raw, open, _| {
        let slot: [u64; SLOT_BYTES / 8] = if count % 2 == 0 {
            let spans = [Span { region: raw.region.0, generation: 1, offset: 0, length: 64 }; SPANS];
            Request { code: request::SEND, ticket: draw.next() % 8, spans, ..open }.into()
        } else {
            std::array::from_fn(|_| draw.next() >> draw.below(48))
        };
        raw.scribble(&slot, false);
        drain(raw);
        count += 1;
        count < 20_000
    });
}

/// A hole in a memfd reads as zeroes: the driver, which maps it, is not stopped by a signal.
#[test]
fn memory_that_is_punched_while_it_is_sent() {
    let (mut ticket, mut released, mut count) = (1, 0, 0);
    beside(|raw, open, peer| {
        peer.set_nonblocking(true).unwrap();
        let mut bytes = vec![0; REGION_BYTES];
        while peer.read(&mut bytes).is_ok_and(|count| count > 0) {}
        let spans = std::array::from_fn(|span| Span {
            region: raw.region.0,
            generation: raw.region.1,
            offset: (span * REGION_BYTES / SPANS) as u32,
            length: (REGION_BYTES / SPANS) as u32,
        });
        if ticket <= released + 2 && try_ask(raw, Request { code: request::SEND, ticket, spans, ..open }) {
            ticket += 1;
        }
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(raw.memory.as_fd(), hole, 0, REGION_BYTES as u64).unwrap();
        rustix::io::pwrite(&raw.memory, &[count as u8; 5000], 70_000).unwrap();
        for completion in drain(raw) {
            match completion.code {
                completion::RELEASED => released = completion.ticket,
                completion::REFUSED => ticket = ticket.min(completion.ticket),
                _ => {}
            }
        }
        count += 1;
        count < 300 || released < 4
    });
}

/// Each byte pins a head of 2 KiB; those of one application, that gives none back, are a share.
#[test]
fn frames_pinned_by_segments_of_one_byte() {
    for takes_completions in [true, false] {
        let mut count = 0;
        beside(|raw, _, peer| {
            if count == 0 {
                peer.set_nodelay(true).unwrap();
            }
            peer.set_nonblocking(true).unwrap();
            let _ = peer.write(&[1]);
            if takes_completions {
                drain(raw);
            }
            count += 1;
            count < 5000
        });
    }
}

#[test]
fn requests_beyond_its_share() {
    let (mut ticket, mut count) = (1, 0);
    beside(|raw, open, _| {
        // The peer reads nothing, so nothing is acknowledged beyond its window.
        let span = Span { region: raw.region.0, generation: raw.region.1, offset: 0, length: 60_000 };
        let is_asked = match count % 3 {
            0 => try_ask(raw, Request { code: request::SOCKET, ticket: 1 << 40, ..Request::default() }),
            _ => try_ask(raw, Request { code: request::SEND, ticket, spans: [span; SPANS], ..open }),
        };
        ticket += u64::from(is_asked && count % 3 != 0);
        for completion in drain(raw) {
            if completion.code == completion::REFUSED {
                ticket = ticket.min(completion.ticket);
            }
        }
        count += 1;
        count < 20_000
    });
}

#[test]
fn a_broken_ring() {
    beside(|raw, _, _| {
        raw.publish_too_much();
        std::thread::sleep(Duration::from_millis(2));
        false
    });
}
