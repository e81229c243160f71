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

#[cfg(test)]
mod tests {
    use area::{Pool, PoolLimits};
    use iscsi::machine::Digests;

    use super::*;

    fn gathered(payload: Payload, digests: Digests) -> Vec<u8> {
        let span = Pool::new(PoolLimits::default()).take(64).unwrap();
        span.fill(0, &[0; 64]);
        let mut outgoing = Outgoing::default();
        append(&mut outgoing, &Transmit { header: [7; 48], payload, digests }, &|_| Some(span.clone()));
        let mut bytes = Vec::new();
        while let Some(front) = outgoing.front().map(<[u8]>::to_vec) {
            outgoing.advance(front.len());
            bytes.extend(front);
        }
        bytes
    }

    /// The digest of 32 zero bytes (RFC 7143 Appendix A.4): of a segment of 29 to 32 with its padding.
    #[test]
    fn a_segment_is_padded_and_its_digest_covers_the_padding() {
        const ZEROES: [u8; 4] = [0xaa, 0x36, 0x91, 0x8a];
        let data = |data| Digests { header: false, data };
        for length in 29..=32u32 {
            let task = Payload::Task { task: TaskId(0), offset: 5, length, end: 64 };
            for payload in [Payload::Bytes(vec![0; length as usize]), task] {
                let bytes = gathered(payload.clone(), data(true));
                assert_eq!(bytes[..48], [7; 48]);
                assert_eq!(bytes[48..], [&[0; 32][..], &ZEROES].concat(), "{length}");
                assert_eq!(gathered(payload, data(false)), bytes[..80], "{length}");
            }
        }
        assert_eq!(gathered(Payload::None, data(true)), [7; 48], "no digest of an empty segment");
    }
}
