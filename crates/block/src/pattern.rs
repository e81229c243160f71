//! `pattern:`: reproducible, incompressible data without storage.

use area::Span;
use io::{Event, Io, Owner};

use crate::memory::{check, synthetic_capability};
use crate::{
    Capability, Completion, Endpoint, Fingerprint, Identity, Inspect, Kind, Medium, OpenError, Request,
};

/// The eight bytes at word `index`: one step of SplitMix64, so that each word is computed independently of the others.
fn word(seed: u64, index: u64) -> u64 {
    let mut z = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Fills `bytes` with the pattern of `seed` from byte `offset` of the pattern.
pub fn fill(seed: u64, offset: u64, bytes: &mut [u8]) {
    let skip = (offset % 8) as usize;
    let head = if skip == 0 { 0 } else { (8 - skip).min(bytes.len()) };
    let (first, rest) = bytes.split_at_mut(head);
    first.copy_from_slice(&word(seed, offset / 8).to_le_bytes()[skip..skip + head]);
    let mut index = (offset + head as u64) / 8;
    let mut words = rest.chunks_exact_mut(8);
    for eight in &mut words {
        eight.copy_from_slice(&word(seed, index).to_le_bytes());
        index += 1;
    }
    let last = words.into_remainder();
    let length = last.len();
    last.copy_from_slice(&word(seed, index).to_le_bytes()[..length]);
}

/// Read-only storage whose data is computed from a seed.
#[derive(Debug)]
pub struct PatternMedium {
    seed: u64,
    capability: Capability,
}

impl PatternMedium {
    pub fn new(size: u64, seed: u64) -> Self {
        let capability =
            Capability { read_only: true, discard: false, write_zeroes: false, ..synthetic_capability(size) };
        Self { seed, capability }
    }
}

impl Medium for PatternMedium {
    fn attach(&self, _io: &mut Io) -> Result<Box<dyn Endpoint>, OpenError> {
        Ok(Box::new(PatternEndpoint {
            seed: self.seed,
            capability: self.capability.clone(),
            scratch: Vec::new(),
        }))
    }

    fn name(&self) -> String {
        format!("pattern:{}:{}", self.capability.size_bytes, self.seed)
    }
}

struct PatternEndpoint {
    seed: u64,
    capability: Capability,
    scratch: Vec<u8>,
}

impl PatternEndpoint {
    fn generate(&mut self, offset: u64, into: &Span) {
        const PART: usize = 16 << 10;
        self.scratch.resize(PART, 0);
        for start in (0..into.len()).step_by(PART) {
            let part = &mut self.scratch[..PART.min(into.len() - start)];
            fill(self.seed, offset + start as u64, part);
            into.fill(start, part);
        }
    }
}

impl Endpoint for PatternEndpoint {
    fn capability(&self) -> &Capability {
        &self.capability
    }

    fn submit(&mut self, _io: &mut Io, request: Request, done: &mut Vec<Completion>) {
        let result = check(&self.capability, &request.kind);
        if let (Ok(()), Kind::Read { offset, into }) = (&result, &request.kind) {
            self.generate(*offset, into);
        }
        done.push(Completion { id: request.id, result });
    }

    fn on_event(&mut self, _io: &mut Io, _event: Event, _done: &mut Vec<Completion>) {}

    fn owners(&self, _owners: &mut Vec<Owner>) {}

    fn inspect(&self) -> &dyn Inspect {
        self
    }
}

impl Inspect for PatternEndpoint {
    fn identity(&self) -> Identity {
        Identity::Unique
    }

    fn fingerprint(&self) -> Fingerprint {
        let storage = format!("pattern {} of {} bytes", self.seed, self.capability.size_bytes);
        Fingerprint { storage, contents: String::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_offset_gives_the_same_bytes_as_the_whole() {
        let mut whole = vec![0; 1000];
        fill(42, 0, &mut whole);
        for (start, length) in [(0, 1), (3, 17), (3, 2), (8, 8), (999, 1), (5, 995), (6, 0)] {
            let mut part = vec![0; length];
            fill(42, start as u64, &mut part);
            assert_eq!(part, whole[start..start + length]);
        }
        let mut other = vec![0; 1000];
        fill(43, 0, &mut other);
        assert_ne!(whole, other);
    }
}
