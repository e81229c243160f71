//! The events that a remote endpoint arms for itself: at most one of each kind is pending.

use std::time::Duration;

use io::{Event, Io, Owner, Token};

use super::TICK;

const KEY_TICK: u32 = 0;
const KEY_FEED: u32 = 1;
const KEY_IDLE: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// Comes [`TICK`] after it was armed.
    Tick,
    /// Comes in the next turn of the loop.
    Feed,
    /// Comes in a turn of the loop without other events.
    Idle,
}

#[derive(Debug)]
pub(super) struct Clock {
    owner: Owner,
    is_ticking: bool,
    is_feeding: bool,
    is_idling: bool,
}

impl Clock {
    pub(super) fn new(owner: Owner) -> Self {
        Self { owner, is_ticking: false, is_feeding: false, is_idling: false }
    }

    pub(super) fn owner(&self) -> Owner {
        self.owner
    }

    pub(super) fn tick(&mut self, io: &mut Io) {
        if !std::mem::replace(&mut self.is_ticking, true) {
            io.timer(Token { owner: self.owner, key: KEY_TICK }, io.now() + TICK);
        }
    }

    /// One more [`Moment::Tick`], at this time.
    pub(super) fn tick_at(&self, io: &mut Io, at: Duration) {
        io.timer(Token { owner: self.owner, key: KEY_TICK }, at);
    }

    pub(super) fn feed(&mut self, io: &mut Io) {
        if !std::mem::replace(&mut self.is_feeding, true) {
            io.soon(Token { owner: self.owner, key: KEY_FEED });
        }
    }

    pub(super) fn idle(&mut self, io: &mut Io) {
        if !std::mem::replace(&mut self.is_idling, true) {
            io.idle(Token { owner: self.owner, key: KEY_IDLE });
        }
    }

    pub(super) fn on_event(&mut self, event: &Event) -> Moment {
        let (flag, moment) = match event.token.key {
            KEY_FEED => (&mut self.is_feeding, Moment::Feed),
            KEY_IDLE => (&mut self.is_idling, Moment::Idle),
            _ => (&mut self.is_ticking, Moment::Tick),
        };
        *flag = false;
        moment
    }
}
