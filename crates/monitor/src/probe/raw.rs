//! Samples as the kernel's bytes: a sample that no view shows costs a copy of 300 bytes, and is read into the fields of
//! [`Sample`] only for a view, a verdict or a recording. Earlier samples are kept as differences from those before them:
//! the ring of all connections stays in the processor's cache, and an idle connection takes 20 bytes a sample.

use std::collections::VecDeque;

use super::{diag, info, netlink};
use crate::limits::{HISTORY_MAX, HISTORY_NS};
use crate::sample::Sample;

/// Words of a [`Raw`]: where each part begins.
const AT: usize = 0;
const STATE: usize = 2;
/// Bytes of the three attributes, each in a byte.
const LENGTHS: usize = 3;
/// 0: not known; else one more than the number.
const OUTSTANDING: usize = 4;
const DROPS: usize = 5;
const INFO: usize = 7;
const MEMORY: usize = INFO + info::INFO_BYTES / 4;
const BBR: usize = MEMORY + info::MEMORY_BYTES / 4;
const WORDS: usize = BBR + info::BBR_BYTES / 4;
/// A bit for each word that differs.
const MASKS: usize = WORDS.div_ceil(32);
/// Times since the last packets, in milliseconds: they change with every sample, and nothing reads them.
const AGES: std::ops::Range<usize> = INFO + 11..INFO + 15;

const _: () = assert!(info::INFO_BYTES < 256 && info::INFO_BYTES.is_multiple_of(4));

/// The kernel's figures of one socket at a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Raw([u32; WORDS]);

impl Raw {
    const EMPTY: Self = Self([0; WORDS]);

    fn u64(&self, at: usize) -> u64 {
        u64::from(self.0[at]) | u64::from(self.0[at + 1]) << 32
    }

    fn set_u64(&mut self, at: usize, value: u64) {
        (self.0[at], self.0[at + 1]) = (value as u32, (value >> 32) as u32);
    }

    /// Nanoseconds of the monotonic clock.
    pub(super) fn at_ns(&self) -> u64 {
        self.u64(AT)
    }

    pub(super) fn set_beside(&mut self, outstanding: Option<u32>, device_drops: Option<u64>) {
        self.0[OUTSTANDING] = outstanding.map_or(0, |count| count.saturating_add(1));
        self.set_u64(DROPS, device_drops.map_or(0, |count| count.saturating_add(1)));
    }

    /// Takes the first bytes of an attribute.
    fn set(&mut self, part: usize, words: usize, value: &[u8]) {
        let length = value.len().min(4 * words) & !3;
        for (word, bytes) in self.0[part..part + words].iter_mut().zip(value[..length].chunks_exact(4)) {
            *word = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        let place = [INFO, MEMORY, BBR].into_iter().position(|start| start == part).unwrap_or(0);
        self.0[LENGTHS] |= (length as u32) << (8 * place);
    }

    pub(super) fn sample(&self) -> Sample {
        let mut sample = Sample {
            at_ns: self.at_ns(),
            state: self.0[STATE] as u8,
            outstanding: self.0[OUTSTANDING].checked_sub(1),
            device_drops: self.u64(DROPS).checked_sub(1),
            ..Sample::default()
        };
        let mut bytes = [0; 4 * (WORDS - INFO)];
        for (place, word) in bytes.chunks_exact_mut(4).zip(&self.0[INFO..]) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        let part = |start: usize, number: usize| {
            let length = usize::from(self.0[LENGTHS].to_le_bytes()[number]);
            bytes.get(4 * (start - INFO)..).and_then(|rest| rest.get(..length)).unwrap_or_default()
        };
        info::fill(part(INFO, 0), &mut sample);
        info::fill_memory(part(MEMORY, 1), &mut sample);
        info::fill_bbr(part(BBR, 2), &mut sample);
        sample
    }
}

/// A reply for one socket, which lies in the prober's buffer.
#[derive(Clone, Copy, Debug)]
pub struct Reply<'a> {
    pub(super) at_ns: u64,
    pub(super) state: u8,
    pub(super) attributes: &'a [u8],
}

impl Reply<'_> {
    /// Reads the figures.
    pub fn sample(&self) -> Sample {
        self.keep().sample()
    }

    /// Whether the socket only waits for the end of its time: both ends have sent all. The kernel keeps no figures of such a
    /// socket, and its state is TIME_WAIT, or FIN_WAIT2 where the peer has not closed.
    pub(super) fn has_ended(&self) -> bool {
        let has_figures = || netlink::attributes(self.attributes).any(|(number, _)| number == diag::INFO);
        self.state == diag::TIME_WAIT || self.state == diag::FIN_WAIT2 && !has_figures()
    }

    pub(super) fn keep(&self) -> Raw {
        let mut raw = Raw::EMPTY;
        self.keep_in(&mut raw);
        raw
    }

    /// Replaces an earlier reply.
    pub(super) fn keep_in(&self, raw: &mut Raw) {
        raw.set_u64(AT, self.at_ns);
        (raw.0[STATE], raw.0[LENGTHS]) = (self.state.into(), 0);
        for (number, value) in netlink::attributes(self.attributes) {
            match number {
                diag::INFO => raw.set(INFO, MEMORY - INFO, value),
                diag::SKMEMINFO => raw.set(MEMORY, BBR - MEMORY, value),
                diag::BBRINFO => raw.set(BBR, WORDS - BBR, value),
                _ => {}
            }
        }
        raw.0[AGES].fill(0);
    }
}

/// Earlier samples of a socket, [`HISTORY_NS`] apart; at most [`HISTORY_MAX`].
#[derive(Debug, Default)]
pub(super) struct History {
    /// The first and the last one.
    ends: Option<Box<[Raw; 2]>>,
    /// For each one after the first: [`MASKS`] words, then the words that differ from the one before.
    changes: VecDeque<u32>,
    count: usize,
    next_ns: u64,
}

impl History {
    /// Keeps a sample if it is due.
    pub(super) fn offer(&mut self, raw: &Raw) {
        if raw.at_ns() < self.next_ns {
            return;
        }
        self.next_ns = raw.at_ns().saturating_add(HISTORY_NS);
        let Some(ends) = &mut self.ends else {
            self.ends = Some(Box::new([raw.clone(), raw.clone()]));
            self.count = 1;
            return;
        };
        let [first, last] = &mut **ends;
        let mut masks = [0; MASKS];
        for (at, (now, before)) in raw.0.iter().zip(&last.0).enumerate() {
            masks[at / 32] |= u32::from(now != before) << (at % 32);
        }
        self.changes.extend(masks);
        self.changes.extend(places(masks).map(|at| raw.0[at]));
        *last = raw.clone();
        if self.count < HISTORY_MAX {
            self.count += 1;
        } else {
            let used = change(first, &mut self.changes.iter().copied());
            self.changes.drain(..used);
        }
    }

    /// Calls `on` for each in the order of time, until it returns `false`.
    pub(super) fn each(&self, mut on: impl FnMut(&Raw) -> bool) {
        let Some(ends) = &self.ends else { return };
        let mut raw = ends[0].clone();
        let mut changes = self.changes.iter().copied();
        for number in 0..self.count {
            if number > 0 {
                change(&mut raw, &mut changes);
            }
            if !on(&raw) {
                return;
            }
        }
    }
}

/// The words whose bits are set.
fn places(masks: [u32; MASKS]) -> impl Iterator<Item = usize> {
    masks.into_iter().enumerate().flat_map(|(number, mask)| {
        let bits = std::iter::successors(Some(mask), |mask| Some(mask & mask.wrapping_sub(1)));
        bits.take_while(|mask| *mask != 0).map(move |mask| 32 * number + mask.trailing_zeros() as usize)
    })
}

/// Makes a sample the one after it; returns the words that this took.
fn change(raw: &mut Raw, changes: &mut impl Iterator<Item = u32>) -> usize {
    let masks = std::array::from_fn(|_| changes.next().unwrap_or(0));
    let mut used = MASKS;
    for at in places(masks) {
        if let (Some(word), Some(new)) = (raw.0.get_mut(at), changes.next()) {
            *word = new;
        }
        used += 1;
    }
    used
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sample at `at` intervals whose words are chosen by a number.
    fn raw(at: u64, number: u32) -> Raw {
        let mut raw = Raw::EMPTY;
        raw.set_u64(AT, at * HISTORY_NS);
        for (place, word) in raw.0.iter_mut().enumerate().skip(STATE) {
            *word = if number.wrapping_mul(2_654_435_761).wrapping_add(place as u32) % 7 < 2 {
                number
            } else {
                9
            };
        }
        raw
    }

    fn all(history: &History) -> Vec<Raw> {
        let mut all = Vec::new();
        history.each(|raw| {
            all.push(raw.clone());
            true
        });
        all
    }

    #[test]
    fn the_last_samples_come_back_as_they_were() {
        let mut history = History::default();
        assert_eq!(all(&history), []);
        let mut kept = Vec::new();
        for at in 0..3 * HISTORY_MAX as u64 {
            // The second half is of an idle connection.
            let raw = raw(at, if at < 200 { at as u32 } else { 3 });
            history.offer(&raw);
            let mut early = raw.clone();
            early.set_u64(AT, raw.at_ns() + HISTORY_NS / 2);
            history.offer(&early);
            kept.push(raw);
            assert_eq!(all(&history), kept[kept.len().saturating_sub(HISTORY_MAX)..], "{at}");
        }
        let idle = history.changes.len() / HISTORY_MAX;
        assert!(idle <= MASKS + 2, "{idle} words for a sample in which only the time differs");
        let mut seen = 0;
        history.each(|_| {
            seen += 1;
            seen < 5
        });
        assert_eq!(seen, 5);
    }

    #[test]
    fn what_a_reply_lacks_is_not_taken_from_the_one_before() {
        let attribute = |number: u16, value: &[u8]| {
            let mut bytes = ((value.len() + 4) as u16).to_ne_bytes().to_vec();
            bytes.extend(number.to_ne_bytes());
            bytes.extend(value);
            bytes
        };
        let full = [attribute(diag::INFO, &[3; 280]), attribute(diag::SKMEMINFO, &[5; 36])].concat();
        let mut kept = Reply { at_ns: 1, state: 1, attributes: &full }.keep();
        let sample = kept.sample();
        assert_eq!((sample.rtt_us, sample.send_buffer_bytes), (Some(0x0303_0303), Some(0x0505_0505)));
        assert_eq!((sample.state, sample.outstanding, sample.device_drops), (3, None, None));
        kept.set_beside(Some(0), Some(7));
        assert_eq!((kept.sample().outstanding, kept.sample().device_drops), (Some(0), Some(7)));
        // Linux 2.6, and one that is shorter than any.
        for length in [104, 7] {
            Reply { at_ns: 2, state: 1, attributes: &attribute(diag::INFO, &[4; 280][..length]) }
                .keep_in(&mut kept);
            let sample = kept.sample();
            assert_eq!((sample.rtt_us.is_some(), sample.notsent_bytes), (length > 72, None), "{length}");
            assert_eq!((sample.send_buffer_bytes, sample.at_ns), (None, 2));
        }
    }
}
