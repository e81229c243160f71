//! Who holds which head and tail of an interface's frames. A driver names them by number, and may lie.

use crate::layout::{FILLS, HEADS, TAIL_BYTES, TAILS};
use crate::slot::{FILL_NUMBERS, Fill, Input, NO_TAIL};

/// Bytes of a frame, from its Ethernet header on, that lie in its head.
pub(super) const IN_HEAD: u32 = inet::HEAD_BYTES;
/// Shortest frame that is taken: an Ethernet header.
const FRAME_BYTES_MIN: u32 = 14;
/// Free heads below this number are not posted while the driver has enough: a `Fill` carries several.
const FILL_HEADS: usize = 16;
const HEADS_ENOUGH: usize = HEADS / 2;
/// So many free tails are posted, though the driver has others: 512 KiB, which are still in the cache when it uses them.
const FILL_TAILS: usize = 8;

// All heads and tails fit into the ring of fills at once, each `Fill` with at least `FILL_HEADS` of them.
const _: () = assert!(FILLS * FILL_NUMBERS >= HEADS + TAILS && FILL_HEADS <= FILL_NUMBERS);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    /// In the list of free ones.
    Free,
    Driver,
    /// The engine, or an application.
    Engine,
}

/// Why an input was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Head,
    Tail,
    Length,
}

/// The frames of one interface: each head and tail has exactly one holder.
#[derive(Debug)]
pub(super) struct Frames {
    heads: Vec<Holder>,
    tails: Vec<Holder>,
    /// The tail of a head that the engine holds.
    tail_of: Vec<u32>,
    free_heads: Vec<u32>,
    free_tails: Vec<u32>,
    at_driver: usize,
}

impl Frames {
    pub(super) fn new() -> Self {
        Self {
            heads: vec![Holder::Free; HEADS],
            tails: vec![Holder::Free; TAILS],
            tail_of: vec![NO_TAIL; HEADS],
            free_heads: (0..HEADS as u32).rev().collect(),
            free_tails: (0..TAILS as u32).rev().collect(),
            at_driver: 0,
        }
    }

    /// A driver has started, and holds nothing: what its predecessor held is free.
    pub(super) fn on_attached(&mut self) {
        for (number, holder) in (0..).zip(&mut self.heads) {
            if *holder == Holder::Driver {
                *holder = Holder::Free;
                self.free_heads.push(number);
            }
        }
        for (number, holder) in (0..).zip(&mut self.tails) {
            if *holder == Holder::Driver {
                *holder = Holder::Free;
                self.free_tails.push(number);
            }
        }
        self.at_driver = 0;
    }

    /// The driver gives back a head, perhaps with a tail, that hold a frame. Every field is checked; a head or tail that
    /// the driver did hold is free again if the rest is wrong.
    pub(super) fn on_input(&mut self, input: &Input) -> Result<u32, Fault> {
        let Input { head, tail, length, .. } = *input;
        let has_head = self.heads.get(head as usize) == Some(&Holder::Driver);
        let has_tail = tail != NO_TAIL && self.tails.get(tail as usize) == Some(&Holder::Driver);
        if has_head {
            self.at_driver -= 1;
            self.heads[head as usize] = Holder::Engine;
        }
        if has_tail {
            self.tails[tail as usize] = Holder::Engine;
        }
        let room = IN_HEAD + if has_tail { TAIL_BYTES as u32 } else { 0 };
        let fault = if !has_head {
            Fault::Head
        } else if tail != NO_TAIL && !has_tail {
            Fault::Tail
        } else if !(FRAME_BYTES_MIN..=room).contains(&length) {
            Fault::Length
        } else {
            self.tail_of[head as usize] = tail;
            return Ok(head);
        };
        if has_tail {
            self.free_tail(tail);
        }
        if has_head {
            self.tail_of[head as usize] = NO_TAIL;
            self.free(head);
        }
        Err(fault)
    }

    /// The engine needs a frame no more.
    pub(super) fn free(&mut self, head: u32) {
        assert_eq!(self.heads[head as usize], Holder::Engine, "a frame that the engine did not hold");
        self.heads[head as usize] = Holder::Free;
        self.free_heads.push(head);
        let tail = std::mem::replace(&mut self.tail_of[head as usize], NO_TAIL);
        if tail != NO_TAIL {
            self.free_tail(tail);
        }
    }

    fn free_tail(&mut self, tail: u32) {
        self.tails[tail as usize] = Holder::Free;
        self.free_tails.push(tail);
    }

    pub(super) fn tail_of(&self, head: u32) -> u32 {
        self.tail_of[head as usize]
    }

    /// Heads that the engine or applications hold.
    pub(super) fn held(&self) -> usize {
        HEADS - self.at_driver - self.free_heads.len()
    }

    /// Free heads and tails are overdue: the ring of fills had no room for them.
    pub(super) fn is_overdue(&self) -> bool {
        self.wants_fill() && !(self.free_heads.is_empty() && self.free_tails.is_empty())
    }

    /// Whether free heads and tails are worth a [`Fill`] now.
    pub(super) fn wants_fill(&self) -> bool {
        let has_enough = self.at_driver >= HEADS_ENOUGH && self.free_tails.len() < FILL_TAILS;
        !has_enough || self.free_heads.len() >= FILL_HEADS
    }

    /// The next free heads and tails for the driver of an epoch, which holds them from now on.
    pub(super) fn fill(&mut self, epoch: u32) -> Option<Fill> {
        let tails = self.free_tails.len().min(FILL_NUMBERS - FILL_HEADS);
        let heads = self.free_heads.len().min(FILL_NUMBERS - tails);
        if heads + tails == 0 {
            return None;
        }
        let mut fill = Fill { epoch, heads: heads as u16, tails: tails as u16, ..Fill::default() };
        let (to_heads, to_tails) = fill.numbers[..heads + tails].split_at_mut(heads);
        for number in to_heads {
            *number = self.free_heads.pop().expect("counted");
            self.heads[*number as usize] = Holder::Driver;
        }
        for number in to_tails {
            *number = self.free_tails.pop().expect("counted");
            self.tails[*number as usize] = Holder::Driver;
        }
        self.at_driver += heads;
        Some(fill)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(head: u32, tail: u32, length: u32) -> Input {
        Input { head, tail, length, ..Input::default() }
    }

    /// Posts all there is to a driver; its heads and tails.
    fn posted(frames: &mut Frames) -> (Vec<u32>, Vec<u32>) {
        let (mut heads, mut tails) = (Vec::new(), Vec::new());
        while let Some(fill) = frames.fill(1) {
            let (some, others) =
                fill.numbers[..usize::from(fill.heads + fill.tails)].split_at(fill.heads.into());
            heads.extend(some);
            tails.extend(others);
        }
        (heads, tails)
    }

    #[test]
    fn every_head_and_tail_is_posted_once() {
        let mut frames = Frames::new();
        let (mut heads, mut tails) = posted(&mut frames);
        heads.sort_unstable();
        tails.sort_unstable();
        assert_eq!(heads, (0..HEADS as u32).collect::<Vec<_>>());
        assert_eq!(tails, (0..TAILS as u32).collect::<Vec<_>>());
    }

    #[test]
    fn inputs_that_name_what_the_driver_does_not_hold_are_dropped() {
        let mut frames = Frames::new();
        posted(&mut frames);
        assert_eq!(frames.on_input(&input(3, NO_TAIL, 60)), Ok(3));
        let cases = [
            (input(3, NO_TAIL, 60), Fault::Head, "twice"),
            (input(HEADS as u32, NO_TAIL, 60), Fault::Head, "behind the last"),
            (input(u32::MAX, 1, 60), Fault::Head, "with a tail, which is free again"),
            (input(4, TAILS as u32, 60), Fault::Tail, "behind the last"),
            (input(5, NO_TAIL, IN_HEAD + 1), Fault::Length, "longer than the head"),
            (input(6, 2, IN_HEAD + TAIL_BYTES as u32 + 1), Fault::Length, "longer than both"),
            (input(7, NO_TAIL, 13), Fault::Length, "no Ethernet header"),
            (input(8, 3, u32::MAX), Fault::Length, "overflow"),
        ];
        for (input, fault, why) in cases {
            assert_eq!(frames.on_input(&input), Err(fault), "{why}");
        }
        assert_eq!(frames.on_input(&input(9, 4, 9000)), Ok(9));
        assert_eq!(frames.on_input(&input(10, 4, 9000)), Err(Fault::Tail), "a tail twice");
        assert_eq!(frames.held(), 2, "3 and 9");
        assert_eq!(frames.tail_of(9), 4);
        frames.on_attached();
        let (heads, tails) = posted(&mut frames);
        assert_eq!((heads.len(), tails.len()), (HEADS - 2, TAILS - 1));
        assert!(!heads.contains(&3) && !heads.contains(&9) && !tails.contains(&4), "still held");
        frames.free(9);
        frames.free(3);
        assert_eq!(frames.held(), 0);
    }
}
