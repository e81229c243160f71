//! Waiting until endpoints can be used.

use io::Io;

use crate::endpoint::READY_TIMEOUT;
use crate::{Endpoint, OpenError, Router, State};

/// Drives the loop until every endpoint is ready, or one has failed (its error), or nothing answered for a
/// minute. Events of others are lost: call it before anything else is in flight.
pub fn wait_ready(io: &mut Io, endpoints: &mut [&mut dyn Endpoint]) -> Result<(), OpenError> {
    let mut router = Router::new();
    for (index, endpoint) in endpoints.iter().enumerate() {
        router.add_endpoint(*endpoint, index);
    }
    let deadline = io.now() + READY_TIMEOUT;
    let (mut events, mut done) = (Vec::new(), Vec::new());
    loop {
        let mut opening = false;
        for endpoint in endpoints.iter() {
            match endpoint.state() {
                State::Ready => {}
                State::Opening => opening = true,
                State::Failed(error) => return Err(error),
            }
        }
        if !opening {
            return Ok(());
        }
        if io.now() >= deadline {
            return Err(OpenError::Unreachable(format!("no answer in {} s", READY_TIMEOUT.as_secs())));
        }
        io.turn_until(Some(deadline), &mut events)
            .map_err(|error| OpenError::Failed(format!("waiting for the endpoint: {error}")))?;
        for event in events.drain(..) {
            if let Some(index) = router.route(event.token.owner) {
                endpoints[index].on_event(io, event, &mut done);
            }
        }
        debug_assert!(done.is_empty(), "nothing was submitted yet");
    }
}
