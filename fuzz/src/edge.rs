//! What an edge checks of a machine before it moves a byte.

use iscsi::machine::{Machine, Payload, Placement, Received, Transmit};
use iscsi::wire::Bhs;

/// Where the segment that was announced belongs: inside the buffer of its task, whose length `buffer` tells.
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

/// What the machine is told of a segment that has arrived whole.
pub(crate) fn received(placement: Placement, inline: &[u8]) -> Received<'_> {
    match placement {
        Placement::Task { .. } => Received::Placed,
        Placement::Inline => Received::Inline(inline),
        Placement::Discard | Placement::Nothing => Received::Discarded,
    }
}

/// Header and payload agree, and nothing is sent that lies outside the buffer of the task.
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
