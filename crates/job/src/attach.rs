//! Attaching media to a thread's completion loop, reading from the endpoints, and closing them.

use std::sync::Arc;

use area::Span;
use block::{Endpoint, IoError, IoErrorKind, Kind, Medium, OpenError, Request, Router};
use io::Io;

use crate::Failure;

/// Bytes of the longest request of [`read`].
const READ_BYTES_MAX: usize = 128 * 1024;
/// Requests of a read that are in flight at once.
const READS_MAX: usize = 16;

pub fn event_loop() -> Result<Io, Failure> {
    Io::new(area::PoolLimits::default())
        .map_err(|error| Failure::failed("start the completion loop", "", error))
}

/// Attaches a medium to the loop and waits until the endpoint is ready for requests. A remote medium is logged in when
/// this returns.
pub fn attach(io: &mut Io, medium: &Arc<dyn Medium>) -> Result<Box<dyn Endpoint>, OpenError> {
    let mut endpoint = medium.attach(io)?;
    block::wait_ready(io, &mut [&mut *endpoint])?;
    Ok(endpoint)
}

/// Closes the endpoints: sessions are logged out as far as the peers answer. Then the endpoints are dropped.
pub fn close<const N: usize>(io: &mut Io, mut endpoints: [Box<dyn Endpoint>; N]) {
    let mut borrowed = endpoints.each_mut().map(|endpoint| &mut **endpoint as &mut dyn Endpoint);
    block::close_all(io, &mut borrowed);
}

/// Reads `length` bytes at `offset`. Both must be multiples of the endpoint's granularity.
pub fn read(
    io: &mut Io,
    endpoint: &mut dyn Endpoint,
    offset: u64,
    length: usize,
) -> Result<Vec<u8>, IoError> {
    let mut read = read_parts(io, endpoint, &[(offset, length)])?;
    Ok(read.pop().expect("one part"))
}

/// Reads several parts, in as few round trips as [`READS_MAX`] requests at a time allow.
pub(crate) fn read_parts(
    io: &mut Io,
    endpoint: &mut dyn Endpoint,
    parts: &[(u64, usize)],
) -> Result<Vec<Vec<u8>>, IoError> {
    let mut router = Router::new();
    router.add_endpoint(endpoint, ());
    let mut read: Vec<Vec<u8>> = parts.iter().map(|(_, length)| vec![0; *length]).collect();
    let chunk_max = READ_BYTES_MAX.min(endpoint.capability().max_transfer_bytes as usize);
    // (part, start in the part, length)
    let mut chunks = parts.iter().enumerate().flat_map(|(part, (_, length))| {
        (0..*length).step_by(chunk_max).map(move |start| (part, start, chunk_max.min(length - start)))
    });
    let failed = |error: &std::io::Error| IoError::new(IoErrorKind::Other, error.to_string());
    let mut in_flight: Vec<Option<(Span, usize, usize)>> = vec![None; READS_MAX];
    let (mut events, mut done, mut failure) = (Vec::new(), Vec::new(), None);
    loop {
        for (id, slot) in in_flight.iter_mut().enumerate().filter(|(_, slot)| slot.is_none()) {
            let Some((part, start, length)) = chunks.next().filter(|_| failure.is_none()) else { break };
            let Some(span) = io.pool().take(length) else {
                failure = Some(failed(&std::io::ErrorKind::OutOfMemory.into()));
                break;
            };
            let span = span.slice(0, length);
            let kind = Kind::Read { offset: parts[part].0 + start as u64, into: span.clone() };
            *slot = Some((span, part, start));
            endpoint.submit(io, Request { id: id as u64, kind }, &mut done);
        }
        // A failed endpoint, too, completes every request, and none of them may be left to those who use it next.
        if in_flight.iter().all(Option::is_none) {
            return failure.map_or(Ok(read), Err);
        }
        while done.is_empty() {
            io.turn_for(|owner| router.route(owner).is_some(), None, &mut events)
                .map_err(|error| failed(&error))?;
            for event in events.drain(..) {
                endpoint.on_event(io, event, &mut done);
            }
        }
        for completion in done.drain(..) {
            let (span, part, start) = in_flight[completion.id as usize].take().expect("completes once");
            match completion.result {
                Ok(()) => span.read(0, &mut read[part][start..start + span.len()]),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
    }
}
