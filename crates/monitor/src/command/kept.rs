//! A part of the commands of a connection, when all are too many: the first ones, the slowest, and a sample of the rest.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};

use super::Command;

/// How many commands are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    pub first: usize,
    pub slowest: usize,
    pub sample: usize,
    /// Bursts of all of them together; commands beyond are kept without bursts.
    pub bursts: usize,
}

/// Keeps [`Shares`] of the commands that it is given; the same seed and commands give the same sample.
#[derive(Debug)]
pub struct Kept {
    shares: Shares,
    seed: u64,
    seen: u64,
    bursts: usize,
    first: Vec<Command>,
    slowest: BinaryHeap<Slow>,
    /// With the number of each command, from 0.
    sample: Vec<(u64, Command)>,
}

impl Kept {
    pub fn new(shares: Shares, seed: u64) -> Self {
        let (first, slowest, sample) = (Vec::new(), BinaryHeap::new(), Vec::new());
        Self { shares, seed, seen: 0, bursts: 0, first, slowest, sample }
    }

    pub fn add(&mut self, command: Command) {
        let number = self.seen;
        self.seen += 1;
        if self.first.len() < self.shares.first {
            let command = self.fitted(command);
            self.first.push(command);
            return;
        }
        let is_slow = self.slowest.len() < self.shares.slowest
            || self.slowest.peek().is_some_and(|least| command.latency_ns > least.command.latency_ns);
        if is_slow && self.shares.slowest > 0 {
            if self.slowest.len() == self.shares.slowest
                && let Some(least) = self.slowest.pop()
            {
                self.bursts -= least.command.bursts.len();
            }
            let command = self.fitted(command.clone());
            self.slowest.push(Slow { number, command });
        }
        // Algorithm R: each command after the first ones has the same chance.
        let place = self.random(number + 1 - self.first.len() as u64);
        if self.sample.len() < self.shares.sample {
            let command = self.fitted(command);
            self.sample.push((number, command));
        } else if let Some(slot) = usize::try_from(place).ok().filter(|place| *place < self.sample.len()) {
            self.bursts -= self.sample[slot].1.bursts.len();
            let command = self.fitted(command);
            self.sample[slot] = (number, command);
        }
    }

    fn fitted(&mut self, mut command: Command) -> Command {
        if self.bursts + command.bursts.len() > self.shares.bursts {
            command.bursts = Vec::new();
        }
        command.bursts.shrink_to_fit();
        self.bursts += command.bursts.len();
        command
    }

    /// A number below `bound`, by SplitMix64.
    fn random(&mut self, bound: u64) -> u64 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.seed;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % bound.max(1)
    }

    /// Commands that were given.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// The kept commands in the order of their start, none twice.
    pub fn into_commands(self) -> Vec<Command> {
        let first = self.first.into_iter().enumerate().map(|(number, command)| (number as u64, command));
        let slowest = self.slowest.into_iter().map(|slow| (slow.number, slow.command));
        let by_number: BTreeMap<u64, Command> = first.chain(slowest).chain(self.sample).collect();
        let mut commands: Vec<Command> = by_number.into_values().collect();
        commands.sort_by_key(|command| (command.at_ns, command.frame));
        commands
    }
}

/// Ordered so that the heap's top is the fastest.
#[derive(Debug)]
struct Slow {
    number: u64,
    command: Command,
}

impl Ord for Slow {
    fn cmp(&self, other: &Self) -> Ordering {
        other.command.latency_ns.cmp(&self.command.latency_ns).then(self.number.cmp(&other.number))
    }
}

impl PartialOrd for Slow {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Slow {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Slow {}

#[cfg(test)]
mod tests {
    use super::super::{Burst, Transfer, Trigger};
    use super::*;

    fn command(number: u64, latency_ns: u64) -> Command {
        let burst = Burst { packets: 1, bytes: 512, gap_ns: 0, trigger: Trigger::Command };
        Command {
            frame: number,
            at_ns: number,
            itt: 0,
            lun: 0,
            operation: 0x2a,
            transfer: Transfer::Write,
            bytes: 512,
            ta_ns: 0,
            tb_ns: 0,
            tc_ns: None,
            latency_ns,
            target_ns: 0,
            r2t_rounds: 0,
            r2t_bytes: 0,
            unsolicited_bytes: 0,
            depth: 1,
            bursts: vec![burst],
            status: Some(0),
            is_inferred: false,
        }
    }

    const SHARES: Shares = Shares { first: 3, slowest: 2, sample: 4, bursts: 6 };

    fn frames(count: u64, seed: u64) -> Vec<u64> {
        let mut kept = Kept::new(SHARES, seed);
        // The slowest are the 20th and the 40th.
        (0..count)
            .for_each(|number| kept.add(command(number, if number % 20 == 19 { 900 + number } else { 10 })));
        assert_eq!(kept.seen(), count);
        let commands = kept.into_commands();
        assert!(commands.iter().map(|command| command.bursts.len()).sum::<usize>() <= SHARES.bursts);
        commands.iter().map(|command| command.frame).collect()
    }

    #[test]
    fn first_slowest_and_a_sample_that_the_seed_repeats() {
        assert_eq!(frames(5, 1), [0, 1, 2, 3, 4]);
        let some = frames(41, 7);
        assert!(some.starts_with(&[0, 1, 2]) && some.contains(&19) && some.contains(&39), "{some:?}");
        assert!((7..=9).contains(&some.len()) && some.is_sorted(), "{some:?}");
        assert_eq!(some, frames(41, 7));
        assert_ne!(frames(1000, 7), frames(1000, 8));
    }

    #[test]
    fn every_command_has_the_same_chance() {
        let mut hits = [0; 10];
        for seed in 0..400 {
            for frame in frames(103, seed).into_iter().skip(3) {
                hits[usize::try_from(frame - 3).unwrap() / 10] += 1;
            }
        }
        // 4 of 100 in each of 10 groups, 400 times: 160; the slow ones come on top in two groups.
        assert!(hits.iter().filter(|hit| (110..=210).contains(*hit)).count() >= 8, "{hits:?}");
    }
}
