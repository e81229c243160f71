//! The library's own thread. Sends that were refused, or found no room in the ring, are requested again by whichever
//! thread is in a call of the library; where none is, by this one, so that what a call took leaves without another call.
//!
//! It looks every [`TICK`] while anything is unfinished, and for a while after; then it sleeps until there is something
//! again. A round of request and answer, which ends within a tick, so does not wake it.

use std::io;
use std::sync::{Arc, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::stack::Core;

const TICK: Duration = Duration::from_millis(10);
/// Ticks with nothing new before it sleeps.
const IDLE_TICKS: u32 = 20;

/// Ends with [`State::is_over`](super::state::State::is_over).
pub(super) fn start(core: Arc<Core>) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name("hikyaku-net".to_owned()).spawn(move || attend(&core))
}

fn attend(core: &Core) {
    let (mut idle, mut sends) = (0, 0);
    let mut state = core.lock();
    while !state.is_over && !state.is_gone {
        if idle >= IDLE_TICKS {
            state.is_attendant_asleep = true;
            state = core.unfinished.wait(state).unwrap_or_else(PoisonError::into_inner);
            idle = 0;
            continue;
        }
        // A send that is not released, or one that was released since the last tick.
        let is_active = state.is_busy() || state.sends != sends;
        (idle, sends) = if is_active { (0, state.sends) } else { (idle + 1, sends) };
        state = core.unfinished.wait_timeout(state, TICK).unwrap_or_else(PoisonError::into_inner).0;
        if state.is_busy() {
            core.look(&mut state);
            state.retry();
            core.publish(&mut state);
        }
    }
}
