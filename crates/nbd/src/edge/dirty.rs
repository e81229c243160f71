//! What a dirty bitmap of QEMU marks (`qemu:dirty-bitmap:NAME`): for a copy of what has changed.

use std::ops::Range;

use block::{Endpoint, OpenError, State, close_all, wait_ready};
use io::Io;

use super::endpoint::NbdEndpoint;
use super::medium::NbdMedium;
use super::status::Subject;

/// Ranges that are told at most. Beyond that, what lies between two of them counts as dirty too.
const RANGES_MAX: usize = 1 << 20;

/// The ranges that the bitmap called `bitmap` marks as dirty, in order and not touching. Events of others wait for a turn
/// of theirs.
pub fn dirty(io: &mut Io, medium: &NbdMedium, bitmap: &str) -> Result<Vec<Range<u64>>, OpenError> {
    let mut endpoint = NbdEndpoint::open(io, medium, Subject::Dirty(bitmap.to_owned()))?;
    wait_ready(io, &mut [&mut endpoint])?;
    let ranges = walk(io, &mut endpoint, bitmap);
    close_all(io, &mut [&mut endpoint]);
    ranges
}

fn walk(io: &mut Io, endpoint: &mut NbdEndpoint, bitmap: &str) -> Result<Vec<Range<u64>>, OpenError> {
    let size = endpoint.capability().size_bytes;
    let mut owners = Vec::new();
    endpoint.owners(&mut owners);
    let (mut ranges, mut at): (Vec<Range<u64>>, u64) = (Vec::new(), 0);
    let (mut events, mut done) = (Vec::new(), Vec::new());
    while at < size {
        match endpoint.ask(io, at) {
            Ok(Some((end, is_dirty))) => {
                let end = end.min(size);
                let is_full = ranges.len() == RANGES_MAX;
                match ranges.last_mut() {
                    Some(last) if is_dirty && (last.end == at || is_full) => last.end = end,
                    _ if is_dirty => ranges.push(at..end),
                    _ => {}
                }
                at = end;
                continue;
            }
            Ok(None) => {}
            Err(cause) => return Err(OpenError::Failed(format!("reading the bitmap {bitmap}: {cause}"))),
        }
        io.turn_for(|owner| owners.contains(&owner), None, &mut events)
            .map_err(|error| OpenError::Failed(format!("reading the bitmap {bitmap}: {error}")))?;
        for event in events.drain(..) {
            endpoint.on_event(io, event, &mut done);
        }
        if let State::Failed(error) = endpoint.state() {
            return Err(error);
        }
    }
    Ok(ranges)
}
