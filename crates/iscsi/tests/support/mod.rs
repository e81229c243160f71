//! What the tests of the machines share: a seeded generator, an edge in memory, and sessions of one side only.
#![allow(dead_code, unreachable_pub)]

use std::collections::HashMap;
use std::time::Duration;

use iscsi::digest::Digest;
use iscsi::machine::{Digests, Fatal, Machine, Payload, Placement, Received, Transmit};
use iscsi::name::IscsiName;
use iscsi::wire::{Bhs, padded};

pub const NOW: Duration = Duration::from_secs(100);

/// splitmix64: enough for a schedule, and the same everywhere.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    pub fn chance(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }

    pub fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize].clone()
    }
}

/// The bytes that a task with this tag carries: position-dependent, so that nothing lands elsewhere unseen.
pub fn content(tag: u32, length: usize) -> Vec<u8> {
    let mut random = Random(u64::from(tag));
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&random.next().to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

pub fn name(text: &str) -> IscsiName {
    IscsiName::parse(text).unwrap()
}

pub type Buffers = HashMap<u32, Vec<u8>>;

/// A PDU as bytes, with padding and digests.
pub fn encode(transmit: &Transmit, buffers: &Buffers, wire: &mut Vec<u8>) {
    let data = match &transmit.payload {
        Payload::None => Vec::new(),
        Payload::Bytes(bytes) => bytes.clone(),
        Payload::Task { task, offset, length } => {
            let (start, end) = (*offset as usize, (*offset + *length) as usize);
            buffers[&task.0][start..end].to_vec()
        }
    };
    encode_parts(&transmit.header, &[], &data, transmit.digests, wire);
}

pub fn encode_parts(header: &[u8; 48], ahs: &[u8], data: &[u8], digests: Digests, wire: &mut Vec<u8>) {
    assert_eq!(Bhs(header).data_segment_length() as usize, data.len(), "header and payload disagree");
    wire.extend_from_slice(header);
    wire.extend_from_slice(ahs);
    if digests.header {
        let mut digest = Digest::new();
        digest.update(header);
        digest.update(ahs);
        wire.extend_from_slice(&digest.finish());
    }
    if !data.is_empty() {
        let start = wire.len();
        wire.extend_from_slice(data);
        wire.resize(start + data.len().next_multiple_of(4), 0);
        if digests.data {
            let mut digest = Digest::new();
            digest.update(&wire[start..]);
            wire.extend_from_slice(&digest.finish());
        }
    }
}

enum Expect {
    Header,
    Data { placement: Placement, length: usize, digest: bool },
}

/// The edge of one connection: cuts a byte stream into PDUs and keeps the tasks' buffers.
pub struct Edge<M> {
    pub machine: M,
    pub buffers: Buffers,
    pub inbox: Vec<u8>,
    pub pdus: u64,
    expect: Expect,
}

impl<M: Machine> Edge<M> {
    pub fn new(machine: M) -> Self {
        Self { machine, buffers: HashMap::new(), inbox: Vec::new(), pdus: 0, expect: Expect::Header }
    }

    /// Takes what has arrived, as far as whole parts go. `drain` drains the machine's events.
    pub fn receive(
        &mut self,
        now: Duration,
        mut drain: impl FnMut(&mut M, &mut Buffers),
    ) -> Result<(), Fatal> {
        loop {
            match self.expect {
                Expect::Header => {
                    let Some(header) = self.inbox.first_chunk::<48>().copied() else { return Ok(()) };
                    let digests = self.machine.receive_digests();
                    let ahs_end = 48 + Bhs(&header).total_ahs_length();
                    let end = ahs_end + if digests.header { 4 } else { 0 };
                    if self.inbox.len() < end {
                        return Ok(());
                    }
                    let bytes: Vec<u8> = self.inbox.drain(..end).collect();
                    if digests.header {
                        let mut digest = Digest::new();
                        digest.update(&bytes[..ahs_end]);
                        if !digest.matches(bytes[ahs_end..].try_into().unwrap()) {
                            return Err(self.machine.on_header_digest_error());
                        }
                    }
                    let length = Bhs(&header).data_segment_length();
                    if length > self.machine.data_segment_max() {
                        return Err(Fatal::Protocol("too long"));
                    }
                    self.pdus += 1;
                    let result = self.machine.on_header(&header, &bytes[48..ahs_end], now);
                    drain(&mut self.machine, &mut self.buffers);
                    result?;
                    let placement = self.machine.placement();
                    assert_eq!(
                        length == 0,
                        placement == Placement::Nothing,
                        "placement {placement:?} for {length}"
                    );
                    if length > 0 {
                        self.expect =
                            Expect::Data { placement, length: length as usize, digest: digests.data };
                    }
                }
                Expect::Data { placement, length, digest } => {
                    let padded = padded(length as u32) as usize;
                    let end = padded + if digest { 4 } else { 0 };
                    if self.inbox.len() < end {
                        return Ok(());
                    }
                    let bytes: Vec<u8> = self.inbox.drain(..end).collect();
                    self.expect = Expect::Header;
                    let mut sound = true;
                    if digest {
                        let mut sum = Digest::new();
                        sum.update(&bytes[..padded]);
                        sound = sum.matches(bytes[padded..].try_into().unwrap());
                    }
                    let received = match placement {
                        _ if !sound => Received::DigestError,
                        Placement::Nothing => unreachable!(),
                        Placement::Discard => Received::Discarded,
                        Placement::Inline => Received::Inline(&bytes[..length]),
                        Placement::Task { task, offset, length: keep } => {
                            assert!((1..=length).contains(&(keep as usize)));
                            let (start, keep) = (offset as usize, keep as usize);
                            let buffer =
                                self.buffers.get_mut(&task.0).expect("placement into a task with a buffer");
                            buffer[start..start + keep].copy_from_slice(&bytes[..keep]);
                            Received::Placed
                        }
                    };
                    let result = self.machine.on_data(received, now);
                    drain(&mut self.machine, &mut self.buffers);
                    result?;
                }
            }
        }
    }

    /// Hands out up to `count` PDUs as bytes.
    pub fn send(
        &mut self,
        count: usize,
        wire: &mut Vec<u8>,
        mut drain: impl FnMut(&mut M, &mut Buffers),
    ) -> usize {
        for sent in 0..count {
            let Some(transmit) = self.machine.poll_transmit() else { return sent };
            encode(&transmit, &self.buffers, wire);
            drain(&mut self.machine, &mut self.buffers);
        }
        count
    }
}
