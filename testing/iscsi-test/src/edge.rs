//! An edge in memory: divides a byte stream into PDUs, and owns the tasks' buffers.

use std::collections::HashMap;

use iscsi::digest::{self, DIGEST_LENGTH};
use iscsi::machine::{Fatal, Machine, Payload, Placement, Received, Transmit};
use iscsi::wire::{Bhs, padded};

use crate::NOW;

pub(crate) type Buffers = HashMap<u32, Vec<u8>>;

/// Appends a PDU with padding and digests to the wire.
fn encode(transmit: &Transmit, buffers: &Buffers, wire: &mut Vec<u8>) {
    let data = match &transmit.payload {
        Payload::None => &[][..],
        Payload::Bytes(bytes) => bytes,
        Payload::Task { task, offset, length, end } => {
            assert!(offset + length <= *end, "sends beyond the end of its transfer");
            &buffers[&task.0][*offset as usize..(*offset + *length) as usize]
        }
    };
    let told = Bhs(&transmit.header).data_segment_length() as usize;
    assert_eq!(told, data.len(), "header and payload disagree");
    wire.extend_from_slice(&transmit.header);
    if transmit.digests.header {
        wire.extend_from_slice(&digest::header(&transmit.header, &[]));
    }
    if !data.is_empty() {
        let start = wire.len();
        wire.extend_from_slice(data);
        wire.resize(start + data.len().next_multiple_of(4), 0);
        if transmit.digests.data {
            let digest = digest::of(&wire[start..]);
            wire.extend_from_slice(&digest);
        }
    }
}

#[derive(Debug)]
pub(crate) struct Edge<M> {
    pub(crate) machine: M,
    pub(crate) buffers: Buffers,
    pub(crate) inbox: Vec<u8>,
    /// Placement and length of the segment in progress, and whether a digest follows.
    segment: Option<(Placement, usize, bool)>,
}

impl<M: Machine> Edge<M> {
    pub(crate) fn new(machine: M) -> Self {
        Self { machine, buffers: HashMap::new(), inbox: Vec::new(), segment: None }
    }

    /// Consumes all complete parts of the inbox. `drain` handles the machine's events.
    pub(crate) fn receive(&mut self, mut drain: impl FnMut(&mut M, &mut Buffers)) -> Result<(), Fatal> {
        let inbox = std::mem::take(&mut self.inbox);
        let mut rest = &inbox[..];
        loop {
            let taken = match self.segment {
                None => self.header(rest, &mut drain)?,
                Some((placement, length, digest)) => {
                    self.data(rest, placement, length, digest, &mut drain)?
                }
            };
            let Some(taken) = taken else { break };
            rest = &rest[taken..];
        }
        self.inbox.extend_from_slice(rest);
        Ok(())
    }

    /// Consumes one header if it is complete; returns its bytes on the wire.
    fn header(
        &mut self,
        inbox: &[u8],
        drain: &mut impl FnMut(&mut M, &mut Buffers),
    ) -> Result<Option<usize>, Fatal> {
        let Some(header) = inbox.first_chunk::<48>() else { return Ok(None) };
        let digests = self.machine.receive_digests();
        let ahs_end = 48 + Bhs(header).total_ahs_length();
        let end = ahs_end + if digests.header { DIGEST_LENGTH } else { 0 };
        let Some(bytes) = inbox.get(..end) else { return Ok(None) };
        if digests.header && digest::header(header, &bytes[48..ahs_end]) != bytes[ahs_end..] {
            return Err(self.machine.on_header_digest_error());
        }
        let length = Bhs(header).data_segment_length();
        if length > self.machine.data_segment_max() {
            return Err(Fatal::Protocol("too long"));
        }
        let result = self.machine.on_header(header, &bytes[48..ahs_end], NOW);
        drain(&mut self.machine, &mut self.buffers);
        result?;
        let placement = self.machine.placement();
        assert_eq!(length == 0, placement == Placement::Nothing, "{placement:?} for {length} bytes");
        self.segment = (length > 0).then_some((placement, length as usize, digests.data));
        Ok(Some(end))
    }

    /// Consumes one segment if it is complete; returns its bytes on the wire.
    fn data(
        &mut self,
        inbox: &[u8],
        placement: Placement,
        length: usize,
        digest: bool,
        drain: &mut impl FnMut(&mut M, &mut Buffers),
    ) -> Result<Option<usize>, Fatal> {
        let padded = padded(u32::try_from(length).expect("24 bits")) as usize;
        let end = padded + if digest { DIGEST_LENGTH } else { 0 };
        let Some(bytes) = inbox.get(..end) else { return Ok(None) };
        self.segment = None;
        let received = match placement {
            _ if digest && digest::of(&bytes[..padded]) != bytes[padded..] => Received::DigestError,
            Placement::Nothing | Placement::Discard => Received::Discarded,
            Placement::Inline => Received::Inline(&bytes[..length]),
            Placement::Task { task, offset, length: keep } => {
                assert!((1..=length).contains(&(keep as usize)));
                let (start, keep) = (offset as usize, keep as usize);
                let buffer = self.buffers.get_mut(&task.0).expect("placement into a task with a buffer");
                buffer[start..start + keep].copy_from_slice(&bytes[..keep]);
                Received::Placed
            }
        };
        let result = self.machine.on_data(received, NOW);
        drain(&mut self.machine, &mut self.buffers);
        result?;
        Ok(Some(end))
    }

    /// Appends up to `count` PDUs to the wire; returns their number.
    pub(crate) fn send(
        &mut self,
        count: usize,
        wire: &mut Vec<u8>,
        mut drain: impl FnMut(&mut M, &mut Buffers),
    ) -> usize {
        let mut sent = 0;
        while sent < count
            && let Some(transmit) = self.machine.poll_transmit()
        {
            encode(&transmit, &self.buffers, wire);
            drain(&mut self.machine, &mut self.buffers);
            sent += 1;
        }
        drain(&mut self.machine, &mut self.buffers);
        sent
    }
}
