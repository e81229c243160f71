//! Checks that an edge makes of a machine before it moves a byte.

use iscsi::machine::{Machine, Payload, Placement, Received, Transmit};
use iscsi::wire::Bhs;

use crate::Source;

/// The placement of an announced segment, checked to lie inside the buffer of its task. `buffer` returns the buffer's
/// length.
pub(crate) fn placement(machine: &impl Machine, length: u32, buffer: impl Fn(u32) -> u32) -> Placement {
    let placement = machine.placement();
    assert_eq!(length == 0, placement == Placement::Nothing, "{placement:?} for {length} bytes");
    if let Placement::Task { task, offset, length: keep } = placement {
        assert!((1..=length).contains(&keep));
        let end = u64::from(offset) + u64::from(keep);
        assert!(end <= buffer(task.0).into(), "placed outside the buffer");
    }
    placement
}

/// The argument of `on_data` for a segment that has arrived completely.
pub(crate) fn received(placement: Placement, inline: &[u8]) -> Received<'_> {
    match placement {
        Placement::Task { .. } => Received::Placed,
        Placement::Inline => Received::Inline(inline),
        Placement::Discard | Placement::Nothing => Received::Discarded,
    }
}

/// Flips one bit of a header, rarely.
pub(crate) fn flip(header: &mut [u8; 48], source: &mut Source<'_>, one_in: u8) {
    if source.rarely(one_in) {
        let (at, bit) = (source.below(48), source.byte() % 8);
        header[at] ^= 1 << bit;
    }
}

/// Asserts that header and payload agree, and that all sent data lies inside the task's buffer.
pub(crate) fn check_payload(transmit: &Transmit, buffer: impl Fn(u32) -> u32) {
    let length = Bhs(&transmit.header).data_segment_length();
    match &transmit.payload {
        Payload::None => assert_eq!(length, 0),
        Payload::Bytes(bytes) => assert_eq!(length as usize, bytes.len()),
        Payload::Task { task, offset, length: bytes, end } => {
            assert_eq!(length, *bytes);
            assert!(offset + bytes <= *end, "sends beyond the end of its transfer");
            assert!(*end <= buffer(task.0), "the transfer ends beyond the buffer");
        }
    }
}
