//! The extents that a dirty bitmap of QEMU marks (`qemu:dirty-bitmap:NAME`), for an incremental copy.

use std::fmt::Display;
use std::ops::Range;

use block::remote::Remote;
use block::{Endpoint, OpenError, State, close_all, wait_ready};
use io::Io;

use super::endpoint::{self, NbdPeer};
use super::medium::NbdMedium;
use super::status::Subject;
use crate::limits::STATUS_REPLIES_MAX;

/// Bound of the ranges returned. Beyond it, the gap between two ranges counts as dirty too.
const RANGES_MAX: usize = 1 << 20;

/// The parts of `range` that the bitmap `bitmap` marks as dirty, in order and not adjacent. Fails if the server needs
/// more than [`STATUS_REPLIES_MAX`] replies, or sends none for the medium's timeout. Blocking: events of the loop's
/// other owners are not dispatched meanwhile.
pub fn dirty(
    io: &mut Io,
    medium: &NbdMedium,
    bitmap: &str,
    range: Range<u64>,
) -> Result<Vec<Range<u64>>, OpenError> {
    let mut endpoint = endpoint::open(io, medium, Subject::Dirty(bitmap.to_owned()), range.clone())?;
    wait_ready(io, &mut [&mut endpoint])?;
    let ranges = walk(io, &mut endpoint, medium, bitmap, range);
    close_all(io, &mut [&mut endpoint]);
    ranges
}

fn walk(
    io: &mut Io,
    endpoint: &mut Remote<NbdPeer>,
    medium: &NbdMedium,
    bitmap: &str,
    range: Range<u64>,
) -> Result<Vec<Range<u64>>, OpenError> {
    let failed = |cause: &dyn Display| OpenError::Failed(format!("reading the bitmap {bitmap}: {cause}"));
    let size = endpoint.capability().size_bytes.min(range.end);
    let mut owners = Vec::new();
    endpoint.owners(&mut owners);
    let (mut ranges, mut at): (Vec<Range<u64>>, u64) = (Vec::new(), range.start);
    let (mut events, mut done) = (Vec::new(), Vec::new());
    let (mut replies, mut deadline) = (0, io.now() + medium.timeout);
    while at < size {
        match endpoint.peer_mut().at(at) {
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
            Ok(None) => endpoint.feed_soon(io),
            Err(cause) => return Err(failed(&cause)),
        }
        let so_far = endpoint.peer_mut().replies();
        if so_far > STATUS_REPLIES_MAX {
            return Err(failed(&format_args!(
                "after {STATUS_REPLIES_MAX} replies {} bytes are not described",
                size - at
            )));
        }
        if std::mem::replace(&mut replies, so_far) != so_far {
            deadline = io.now() + medium.timeout;
        } else if io.now() >= deadline {
            let text = format!("{}: no answer in {} s", medium.uri, medium.timeout.as_secs());
            return Err(OpenError::Unreachable(text));
        }
        io.turn_for(|owner| owners.contains(&owner), Some(deadline), &mut events)
            .map_err(|error| failed(&error))?;
        for event in events.drain(..) {
            endpoint.on_event(io, event, &mut done);
        }
        if let State::Failed(error) = endpoint.state() {
            return Err(error);
        }
    }
    Ok(ranges)
}
