//! Plain sending: headers and spans, with the digests of RFC 7143.

use area::Span;
use io::Outgoing;
use iscsi::digest::Digest;
use iscsi::machine::{Machine, Payload, TaskId, Transmit};

/// Appends PDUs of the machine, until `bytes` of payload are gathered.
pub(super) fn gather(
    outgoing: &mut Outgoing,
    machine: &mut impl Machine,
    bytes: usize,
    buffer_of: &impl Fn(TaskId) -> Option<Span>,
) {
    let mut payload = 0;
    while !outgoing.is_full() && payload < bytes {
        let Some(transmit) = machine.poll_transmit() else { break };
        payload += append(outgoing, &transmit, buffer_of);
    }
}

/// Appends one PDU; returns its payload bytes.
fn append(
    outgoing: &mut Outgoing,
    transmit: &Transmit,
    buffer_of: &impl Fn(TaskId) -> Option<Span>,
) -> usize {
    outgoing.bytes(&transmit.header);
    if transmit.digests.header {
        outgoing.bytes(&iscsi::digest::header(&transmit.header, &[]));
    }
    let mut digest = transmit.digests.data.then(Digest::new);
    let length = match &transmit.payload {
        Payload::None => return 0,
        Payload::Bytes(bytes) => {
            outgoing.bytes(bytes);
            if let Some(digest) = &mut digest {
                digest.update(bytes);
            }
            bytes.len()
        }
        Payload::Task { task, offset, length, .. } => {
            let buffer = buffer_of(*task).expect("a task that sends has a buffer");
            let span = buffer.slice(*offset as usize, *length as usize);
            // Without a digest this process does not read the bytes, so they may be stored ones (`Endpoint::borrow`).
            if let Some(digest) = &mut digest {
                digest.update(span.as_slice());
            }
            outgoing.span(span);
            *length as usize
        }
    };
    outgoing.bytes(&[0; 3][..length.next_multiple_of(4) - length]);
    if let Some(mut digest) = digest {
        digest.pad();
        outgoing.bytes(&digest.finish());
    }
    length
}
