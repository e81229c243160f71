//! A driver that lies about frames to send: what applications own is neither released nor changed by it, and when the
//! driver, or its successor, works again, the bytes arrive as they were.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use area::Region;
use area::ring::{Consumer, Producer};
use inet::{Endpoint, Owned, Settings, Time, VNET_BYTES};
use net::layout::{self, Channel, FRAMES_BYTES, direct, head_offset};
use net::server::{Server, capacity};
use net::slot::{
    Completion, Fill, Input, NO_TAIL, Request, Returned, SPANS, Span, Transmit, completion, input, request,
};

use super::common::{Shared, memory, new_counters, ringer};

const REGION_BYTES: usize = 64 << 10;
const GENERATION: u32 = 1;
const TURN_US: u64 = 1000;
/// Shorter than the shortest RTO.
const LYING_TURNS: usize = 100;
/// Long enough for repetitions.
const HONEST_TURNS: usize = 5000;

/// A server with one application, and the driver's view of both.
struct Side<'m> {
    server: Server<'m>,
    memory: Shared,
    channel: Channel,
    transmits: Consumer,
    fills: Consumer,
    inputs: Producer,
    frames: Region,
    heads: Vec<u32>,
    epoch: u32,
    /// Of the application: what it sends from, its rings, and the driver's ring to it.
    region: Region,
    requests: Producer,
    completions: Consumer,
    returns: Producer,
    returned: Consumer,
}

impl<'m> Side<'m> {
    fn new(owned: &'m mut Owned, number: u8) -> Self {
        let capacity = capacity(1, 1);
        let addresses = vec![([10, 0, 0, number].into(), 24)];
        let settings = Settings { addresses, gateways: Vec::new(), secret: [number; 16] };
        let mut server = Server::new(owned.memory(), &capacity, &settings, new_counters(), Time(1));
        let shared = Shared::new([layout::driver::INET_BYTES, layout::driver::NIC_BYTES]);
        let frames = memory(FRAMES_BYTES);
        let map = |writable| Region::shared(frames.as_fd(), FRAMES_BYTES, writable).unwrap();
        server.add_interface(0, shared.side(0), Arc::new(map(false)), ringer());
        let application = Shared::new([layout::client::CLIENT_BYTES, layout::client::INET_BYTES]);
        server.add_client(0, &application.side(1), ringer(), None);
        assert!(server.add_region(0, 0, GENERATION, REGION_BYTES as u32));
        let (requests, completions) = layout::client::application(&application.side(0));
        let ring = Shared::new([direct::NIC_BYTES, direct::CLIENT_BYTES]);
        let channel = shared.side(1);
        let (transmits, fills, inputs) = layout::driver::nic(&channel);
        let mut side = Self {
            server,
            channel,
            transmits,
            fills,
            inputs,
            frames: map(true),
            heads: Vec::new(),
            epoch: 0,
            region: Region::shared(memory(REGION_BYTES).as_fd(), REGION_BYTES, true).unwrap(),
            requests,
            completions,
            returns: direct::nic(&ring.side(0)),
            returned: direct::application(&ring.side(1)),
            memory: shared,
        };
        side.attach(number);
        side
    }

    fn attach(&mut self, number: u8) {
        self.epoch += 1;
        self.heads.clear();
        let mac = [2, 0, 0, 0, 0, number];
        let (code, mtu, epoch) = (input::ATTACH, 1500, self.epoch);
        self.inputs.push(&Input { code, mac, mtu, epoch, ..Input::default() }.into());
        let _ = self.inputs.publish();
    }

    fn turn(&mut self, now: Time) {
        self.server.turn(now);
        while let Some(fill) = self.fills.take().unwrap().map(Fill::from) {
            self.fills.consume();
            if fill.epoch == self.epoch {
                self.heads.extend(&fill.numbers[..usize::from(fill.heads)]);
            }
        }
    }

    /// The next frame to send, which is not consumed yet.
    fn take(&mut self) -> Option<(Transmit, Vec<u8>)> {
        let position = self.transmits.position();
        let transmit: Transmit = self.transmits.take().unwrap()?.into();
        let header = layout::driver::header(&self.channel, position, false);
        let mut frame = vec![0; transmit.header_bytes.into()];
        // SAFETY: a header slot, whose bytes behind VNET_BYTES are `header_bytes` many; the server writes none meanwhile.
        unsafe { std::ptr::copy_nonoverlapping(header.add(VNET_BYTES), frame.as_mut_ptr(), frame.len()) };
        for span in transmit.spans.iter().filter(|span| span.length > 0) {
            assert_eq!((span.region, span.generation), (0, GENERATION), "{span:?}");
            frame.extend(&self.bytes()[span.offset as usize..][..span.length as usize]);
        }
        Some((transmit, frame))
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the whole region, which only this thread writes, and not while the reference lives.
        unsafe { std::slice::from_raw_parts(self.region.as_ptr(), REGION_BYTES) }
    }

    fn enter(&mut self, frame: &[u8]) {
        let head = self.heads.pop().expect("a free head");
        let at = head_offset(head) + VNET_BYTES;
        assert!(frame.len() <= layout::HEAD_BYTES - VNET_BYTES);
        // SAFETY: inside of a head, which this driver holds.
        unsafe { std::ptr::copy_nonoverlapping(frame.as_ptr(), self.frames.as_ptr().add(at), frame.len()) };
        let (length, is_checked) = (frame.len() as u32, 1);
        let input = Input { code: input::FRAME, head, tail: NO_TAIL, length, is_checked, ..Input::default() };
        self.inputs.push(&input.into());
        let _ = self.inputs.publish();
    }

    fn ask(&mut self, asked: Request) {
        self.requests.push(&asked.into());
        let _ = self.requests.publish();
    }

    fn completions(&mut self) -> Vec<Completion> {
        let taken = std::iter::from_fn(|| self.completions.take().unwrap().map(Completion::from)).collect();
        self.completions.consume();
        taken
    }

    /// The driver's counter of consumed frames.
    fn consumed(&self) -> impl Fn(u64) + use<> {
        let region = Region::shared(self.memory.memory[1].as_fd(), layout::driver::NIC_BYTES, true).unwrap();
        let (memory, offset) = layout::driver::RINGS[0].consumed;
        assert_eq!(memory, 1, "the driver's");
        move |value| {
            // SAFETY: an aligned word inside of the mapping, written as all processes do.
            unsafe { &*region.as_ptr().add(offset).cast::<AtomicU64>() }.store(value, Ordering::Release);
        }
    }
}

/// A client and a server, and an honest driver between them.
struct Pair<'m> {
    sides: [Side<'m>; 2],
    now: Time,
    /// The connection at the client.
    open: Request,
}

impl<'m> Pair<'m> {
    fn connected(owned: [&'m mut Owned; 2]) -> Self {
        let [one, two] = owned;
        let sides = [Side::new(one, 1), Side::new(two, 2)];
        let mut pair = Self { sides, now: Time(1_000_000), open: Request::default() };
        let Endpoint { address, port } = "10.0.0.2:7".parse::<std::net::SocketAddr>().unwrap().into();
        let at = Request { address: address.0, port, ..Request::default() };
        let made = pair.answer(1, Request { code: request::SOCKET, ..at });
        for (code, ticket) in [(request::BIND, 1), (request::LISTEN, 2)] {
            assert_eq!(pair.answer(1, of(&at, &made, code, ticket)).status, 0);
        }
        pair.sides[1].ask(of(&at, &made, request::ACCEPT, 3));
        let made = pair.answer(0, Request { code: request::SOCKET, ..at });
        assert_eq!(pair.answer(0, of(&at, &made, request::CONNECT, 4)).status, 0);
        pair.open = Request { address: [0; 16], port: 0, ..of(&at, &made, 0, 0) };
        pair.settle(10);
        pair
    }

    /// Turns of the servers without a driver.
    fn turn(&mut self) {
        self.now = self.now.after(TURN_US);
        for side in &mut self.sides {
            side.turn(self.now);
        }
    }

    /// Turns with an honest driver.
    fn settle(&mut self, turns: usize) {
        for _ in 0..turns {
            self.turn();
            for from in 0..2 {
                while let Some((_, frame)) = self.sides[from].take() {
                    self.sides[1 - from].enter(&frame);
                    self.sides[from].transmits.consume();
                }
            }
        }
    }

    fn answer(&mut self, side: usize, asked: Request) -> Completion {
        self.sides[side].ask(asked);
        for _ in 0..10 {
            self.settle(1);
            if let Some(answer) = self.sides[side].completions().pop() {
                return answer;
            }
        }
        panic!("no answer")
    }
}

/// A request for a socket that was made.
fn of(at: &Request, made: &Completion, code: u32, ticket: u64) -> Request {
    Request { code, ticket, socket: made.socket, generation: made.generation, ..*at }
}

/// What a driver does with the frame that carries an application's bytes, and the turns that it lasts.
type Lie = fn(&mut Pair<'_>);

const LIES: [(&str, Lie); 6] = [
    ("it consumes frames and sends none", |pair| {
        while pair.sides[0].take().is_some() {}
        pair.sides[0].transmits.consume();
    }),
    ("it has consumed more than there is", |pair| {
        let honest = pair.sides[0].transmits.position();
        let set = pair.sides[0].consumed();
        for count in [honest + 2, honest + 1000, 1 << 63, u64::MAX] {
            set(count);
            pair.turn();
        }
        set(honest);
    }),
    ("it has consumed less than before", |pair| {
        let honest = pair.sides[0].transmits.position();
        let set = pair.sides[0].consumed();
        for count in [honest - 1, 0] {
            set(count);
            pair.turn();
        }
        set(honest);
    }),
    ("it attaches again and again", |pair| {
        for _ in 0..10 {
            pair.sides[0].attach(1);
            pair.turn();
            while pair.sides[0].take().is_some() {}
            pair.sides[0].transmits.consume();
        }
    }),
    ("it returns directly what was never sent", |pair| {
        let Request { socket, generation, .. } = pair.open;
        for (socket, generation, ticket) in [
            (socket, generation, 1),
            (socket, generation, u64::MAX),
            (socket, generation + 1, 1),
            (u32::MAX, 0, 1),
        ] {
            let returned = Returned { socket, generation, ticket, ..Returned::default() };
            pair.sides[0].returns.push(&returned.into());
            let _ = pair.sides[0].returns.publish();
        }
        while pair.sides[0].take().is_some() {}
        pair.sides[0].transmits.consume();
    }),
    ("it returns frames that it does not have", |pair| {
        for head in [0, 5, layout::HEADS as u32 - 1, layout::HEADS as u32, u32::MAX] {
            let input = Input { code: input::FRAME, head, tail: head, length: 60, ..Input::default() };
            pair.sides[0].inputs.push(&input.into());
        }
        let _ = pair.sides[0].inputs.publish();
        pair.turn();
        pair.sides[0].attach(1);
        pair.turn();
        while pair.sides[0].take().is_some() {}
        pair.sides[0].transmits.consume();
    }),
];

#[test]
fn a_driver_that_lies_releases_nothing_and_forges_nothing() {
    for (name, lie) in LIES {
        let mut owned = [Owned::new(&capacity(1, 1)), Owned::new(&capacity(1, 1))];
        let mut pair = Pair::connected(owned.each_mut());
        let content: Vec<u8> = (0..REGION_BYTES).map(|at| (at % 251) as u8).collect();
        // SAFETY: the whole region; no reference to it exists.
        unsafe {
            std::ptr::copy_nonoverlapping(content.as_ptr(), pair.sides[0].region.as_ptr(), REGION_BYTES);
        }
        let mut spans = [Span::default(); SPANS];
        spans[0] = Span { region: 0, generation: GENERATION, offset: 100, length: 3000 };
        let open = pair.open;
        pair.sides[0].ask(Request { code: request::SEND, ticket: 1, spans, ..open });
        pair.turn();
        lie(&mut pair);
        for _ in 0..LYING_TURNS {
            pair.turn();
        }
        let early = pair.sides[0].completions();
        assert!(early.is_empty(), "{name}: {early:?}");
        assert!(pair.sides[0].bytes() == content, "{name}");
        // Repetitions arrive, by a driver that works.
        pair.settle(HONEST_TURNS);
        let released: Vec<_> =
            pair.sides[0].completions().iter().map(|it| (it.code, it.ticket, it.status)).collect();
        assert_eq!(released, [(completion::RELEASED, 1, 0)], "{name}");
        let mut received: Vec<u8> = Vec::new();
        for delivery in pair.sides[1].completions() {
            assert!(matches!(delivery.code, completion::DONE | completion::RECEIVED), "{name}: {delivery:?}");
            for [offset, length] in delivery.ranges {
                assert!(offset as usize + length as usize <= FRAMES_BYTES);
                // SAFETY: checked; the frame is the application's.
                received.extend(unsafe {
                    let bytes = pair.sides[1].frames.as_ptr().add(offset as usize);
                    std::slice::from_raw_parts(bytes, length as usize)
                });
            }
        }
        assert!(received == content[100..3100], "{name}: {} bytes", received.len());
        // Its word counts for what it is: the library takes no ticket beyond those sent (`socket::tests`).
        let returned = std::iter::from_fn(|| pair.sides[0].returned.take().unwrap()).count();
        assert!(returned <= 4, "{name}");
    }
}
