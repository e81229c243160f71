//! Waits until endpoints are ready, and until they are closed.

use io::Io;

use crate::endpoint::{CLOSE_TIMEOUT, READY_TIMEOUT};
use crate::{Endpoint, OpenError, Router, State};

/// Drives the loop until every endpoint is ready. Fails with the error of the first failed endpoint, or after
/// `READY_TIMEOUT`. Events of other owners stay queued in the loop for a later turn.
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
        io.turn_for(|owner| router.route(owner).is_some(), Some(deadline), &mut events)
            .map_err(|error| OpenError::Failed(format!("waiting for the endpoint: {error}")))?;
        for event in events.drain(..) {
            if let Some(index) = router.route(event.token.owner) {
                endpoints[index].on_event(io, event, &mut done);
            }
        }
        debug_assert!(done.is_empty(), "nothing was submitted yet");
    }
}

/// Closes endpoints (for iSCSI: logout) and drives the loop until all are closed, at most for `CLOSE_TIMEOUT`.
pub fn close_all(io: &mut Io, endpoints: &mut [&mut dyn Endpoint]) {
    let mut router = Router::new();
    for (index, endpoint) in endpoints.iter_mut().enumerate() {
        router.add_endpoint(*endpoint, index);
        endpoint.close(io);
    }
    let deadline = io.now() + CLOSE_TIMEOUT;
    let (mut events, mut done) = (Vec::new(), Vec::new());
    while endpoints.iter().any(|endpoint| !endpoint.is_closed()) && io.now() < deadline {
        if io.turn_for(|owner| router.route(owner).is_some(), Some(deadline), &mut events).is_err() {
            return;
        }
        for event in events.drain(..) {
            if let Some(index) = router.route(event.token.owner) {
                endpoints[index].on_event(io, event, &mut done);
            }
        }
        done.clear();
    }
}
