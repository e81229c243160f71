//! A transport without a socket, for tests: two byte queues, and a [`Wire`] that moves bytes under a seed. Receives and
//! sends are short, and any of them may be delayed.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::Result;
use std::rc::Rc;

use area::{Access, Span};
use block::Reader;
use io::{Event, Io, Item, Outgoing, Token};

use super::transport::{Places, Transport};

/// Bytes that one direction holds at most; a send is delayed while the queue is full.
const QUEUE_BYTES_MAX: usize = 200_000;

#[derive(Default)]
struct Direction {
    bytes: VecDeque<u8>,
    ended: bool,
    sending: Option<(Token, Box<Outgoing>)>,
    receiving: Option<(Token, Places)>,
}

/// Both directions; side 0 sends into the first.
type Directions = [Direction; 2];

pub(crate) struct Memory {
    side: usize,
    directions: Rc<RefCell<Directions>>,
}

pub(crate) struct Wire {
    directions: Rc<RefCell<Directions>>,
    random: u64,
    /// Receives and sends that moved fewer bytes than possible, and turns in which one moved none.
    pub(crate) short: usize,
    pub(crate) stalls: usize,
}

pub(crate) fn pair(seed: u64) -> ([Memory; 2], Wire) {
    let directions = Rc::new(RefCell::new(Directions::default()));
    let ends = [0, 1].map(|side| Memory { side, directions: Rc::clone(&directions) });
    (ends, Wire { directions, random: seed, short: 0, stalls: 0 })
}

impl Wire {
    /// Splitmix64.
    fn below(&mut self, bound: usize) -> usize {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }

    fn part(&mut self, most: usize) -> usize {
        let part = match self.below(4) {
            0 => 1 + self.below(most.min(100)),
            1 => 1 + self.below(most),
            _ => most,
        };
        self.short += usize::from(part < most);
        part
    }

    /// Moves bytes of a random part of the operations in flight. Returns the events of those that completed.
    pub(crate) fn turn(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        let directions = Rc::clone(&self.directions);
        for direction in &mut *directions.borrow_mut() {
            if self.below(3) == 0 {
                self.stalls += usize::from(direction.sending.is_some() || !direction.bytes.is_empty());
                continue;
            }
            events.extend(self.send(direction));
            events.extend(self.receive(direction));
        }
        events
    }

    fn send(&mut self, direction: &mut Direction) -> Option<Event> {
        let (token, mut outgoing) = direction.sending.take()?;
        if direction.ended {
            return Some(Event { token, result: -libc::EPIPE, item: Item::Outgoing(outgoing) });
        }
        let room = QUEUE_BYTES_MAX.saturating_sub(direction.bytes.len());
        if room == 0 {
            direction.sending = Some((token, outgoing));
            return None;
        }
        let (most, mut bytes) = (self.part(room), Vec::new());
        while bytes.len() < most && !outgoing.is_empty() {
            let left = most - bytes.len();
            outgoing.fetch(&mut bytes, left).unwrap();
        }
        let result = bytes.len() as i32;
        direction.bytes.extend(bytes);
        Some(Event { token, result, item: Item::Outgoing(outgoing) })
    }

    fn receive(&mut self, direction: &mut Direction) -> Option<Event> {
        if direction.bytes.is_empty() && !direction.ended {
            return None;
        }
        let (token, (place, room)) = direction.receiving.take()?;
        let spans: Vec<Span> = place.into_iter().chain(room).collect();
        spans.iter().for_each(Span::end_flight);
        let most = spans.iter().map(Span::len).sum::<usize>().min(direction.bytes.len());
        let count = if most == 0 { 0 } else { self.part(most) };
        let bytes: Vec<u8> = direction.bytes.drain(..count).collect();
        let mut rest = &bytes[..];
        for span in spans {
            let (here, behind) = rest.split_at(rest.len().min(span.len()));
            span.fill(0, here);
            rest = behind;
        }
        Some(Event { token, result: count as i32, item: Item::None })
    }
}

impl Transport for Memory {
    fn receive(&mut self, _: &mut Io, token: Token, places: Places) {
        let direction = &mut self.directions.borrow_mut()[1 - self.side];
        assert!(direction.receiving.is_none(), "one receive at a time");
        places.0.iter().chain(&places.1).for_each(|span| span.begin_flight(Access::Write));
        direction.receiving = Some((token, places));
    }

    fn on_received(&mut self, event: Event) -> Result<usize> {
        event.bytes()
    }

    fn send(&mut self, _: &mut Io, token: Token, outgoing: Box<Outgoing>) {
        let direction = &mut self.directions.borrow_mut()[self.side];
        assert!(direction.sending.is_none() && !outgoing.is_empty(), "one send at a time, of something");
        direction.sending = Some((token, outgoing));
    }

    fn on_sent(&mut self, event: Event) -> (Box<Outgoing>, Result<usize>) {
        let count = event.bytes();
        let Item::Outgoing(outgoing) = event.item else { unreachable!("as the wire has made it") };
        (outgoing, count)
    }

    fn close(&mut self, last: &[u8]) {
        let mut directions = self.directions.borrow_mut();
        if !directions[self.side].ended {
            directions[self.side].bytes.extend(last);
        }
        directions.iter_mut().for_each(|direction| direction.ended = true);
    }

    fn reader(&self) -> Reader {
        Reader::Process
    }
}
