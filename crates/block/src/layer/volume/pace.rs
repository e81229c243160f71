//! Encryption in turns: after `TURN_BYTES` the loop takes completions, so that the storages at both ends work while this
//! thread encrypts. Without turns, a copy that has read eight chunks encrypts all of them before it reads the next one.

use io::{Event, Io, Owner, Token};

/// Bytes that an endpoint encrypts or decrypts before the loop takes completions.
const TURN_BYTES: usize = 256 << 10;
/// Of [`Pace::is_turn`]; other tokens of the owner are its user's.
const KEY: u32 = 2;
/// From here on, keys are free for pieces that helpers do.
pub(super) const FIRST_KEY: u32 = 3;

#[derive(Debug)]
pub(super) struct Pace {
    owner: Owner,
    left: usize,
    is_called: bool,
}

impl Pace {
    pub(super) fn new(owner: Owner) -> Self {
        Self { owner, left: TURN_BYTES, is_called: false }
    }

    pub(super) fn owner(&self) -> Owner {
        self.owner
    }

    /// Whether work may go on; else the loop delivers the event of the next turn.
    pub(super) fn may_work(&mut self, io: &mut Io) -> bool {
        if self.left > 0 {
            return true;
        }
        if !std::mem::replace(&mut self.is_called, true) {
            io.soon(Token { owner: self.owner, key: KEY });
        }
        false
    }

    pub(super) fn worked(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(bytes);
    }

    /// Whether the event begins the next turn.
    pub(super) fn is_turn(&mut self, event: &Event) -> bool {
        let is_turn = event.token == Token { owner: self.owner, key: KEY };
        if is_turn {
            (self.left, self.is_called) = (TURN_BYTES, false);
        }
        is_turn
    }
}
