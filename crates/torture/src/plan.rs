//! The workload: each action is a pure function of seed, client and action number, so no journal need contain it.

use std::ops::Range;

use crate::Client;
use crate::random::Random;
use crate::stamp::Stamp;

/// Number of regions with frequent access, and sectors of each.
const HOT_SPOTS: u64 = 8;
const HOT_SECTORS: u64 = 64;

/// Properties of the storage, in sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ability {
    pub sectors: u64,
    /// Addresses and lengths are multiples of this: 1 or 8.
    pub block: u64,
    /// Longest request, in sectors.
    pub longest: u64,
    /// Discarded sectors read as zeroes.
    pub discard: bool,
    /// Zeroes can be written without transferring them.
    pub write_zeroes: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Plan {
    seed: u64,
    ability: Ability,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Write {
        range: Range<u64>,
        stamp: Stamp,
        /// Durable before completion (FUA).
        durable: bool,
    },
    Read(Range<u64>),
    Flush,
    Discard(Range<u64>),
    WriteZeroes(Range<u64>),
}

impl Action {
    /// The sectors of the action; empty for a flush.
    pub fn range(&self) -> Range<u64> {
        match self {
            Self::Write { range, .. }
            | Self::Read(range)
            | Self::Discard(range)
            | Self::WriteZeroes(range) => range.clone(),
            Self::Flush => 0..0,
        }
    }
}

impl Plan {
    /// The workload of `seed`.
    ///
    /// # Panics
    /// If the ability is invalid: no sectors, or requests shorter than a block.
    pub fn new(seed: u64, ability: Ability) -> Self {
        assert!(ability.block > 0 && ability.longest >= ability.block, "requests of no block");
        assert!(ability.sectors >= ability.block, "a medium without a block");
        Self { seed, ability }
    }

    /// Action `number` of `client`. The stamp of a write holds both numbers and is unique in the run.
    pub fn action(&self, client: Client, number: u64) -> Action {
        let mut random = Random::of(&[self.seed, client.into(), number]);
        let verb = random.below(100);
        let range = self.range(&mut random);
        match verb {
            0..4 => Action::Flush,
            4..34 => Action::Read(range),
            34..38 if self.ability.discard => Action::Discard(range),
            38..42 if self.ability.write_zeroes => Action::WriteZeroes(range),
            verb => {
                let stamp = Stamp { sequence: number, writer: client };
                Action::Write { range, stamp, durable: verb >= 90 }
            }
        }
    }

    fn range(&self, random: &mut Random) -> Range<u64> {
        let Ability { sectors, block, longest, .. } = self.ability;
        let length = match random.below(20) {
            0..8 => 1,
            8..16 => 1 + random.below(16),
            16..19 => 1 + random.below(256),
            _ => 1 + random.below(longest),
        };
        let last = sectors / block * block;
        let length = length.next_multiple_of(block).min(longest / block * block).min(last);
        let room = last - length;
        let hot = random.one_in(3);
        let start = if hot {
            let spot = Random::of(&[self.seed, random.below(HOT_SPOTS)]).below(sectors);
            spot + random.below(HOT_SECTORS)
        } else {
            random.below(sectors)
        };
        // Half of the requests are aligned to 4 KiB, as those of file systems.
        let align = if random.one_in(2) { 8u64.max(block) } else { block };
        let start = (start / align * align).min(room / block * block);
        start..start + length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABILITY: Ability =
        Ability { sectors: 10_000, block: 1, longest: 2048, discard: true, write_zeroes: true };

    #[test]
    fn steps_fit_the_medium_and_repeat() {
        for ability in [
            ABILITY,
            Ability { block: 8, sectors: 10_008, ..ABILITY },
            Ability { sectors: 9, discard: false, write_zeroes: false, ..ABILITY },
            Ability { sectors: 8, block: 8, longest: 8, ..ABILITY },
        ] {
            let plan = Plan::new(7, ability);
            for number in 0..20_000 {
                let action = plan.action(1, number);
                assert_eq!(action, plan.action(1, number));
                let range = action.range();
                assert!(range.end <= ability.sectors, "{action:?}");
                assert!(range.end - range.start <= ability.longest, "{action:?}");
                assert!((range.start | range.end).is_multiple_of(ability.block), "{action:?}");
                assert!(action == Action::Flush || !range.is_empty(), "{action:?}");
                let unasked = matches!(action, Action::Discard(_) if !ability.discard)
                    || matches!(action, Action::WriteZeroes(_) if !ability.write_zeroes);
                assert!(!unasked, "{action:?}");
            }
        }
    }

    #[test]
    fn clients_meet() {
        let plan = Plan::new(7, Ability { sectors: 1 << 20, ..ABILITY });
        let actions: Vec<_> = (0..2)
            .map(|client| (0..32).map(|n| plan.action(client, n).range()).collect::<Vec<_>>())
            .collect();
        let meets = |a: &Range<u64>, b: &Range<u64>| a.start < b.end && b.start < a.end;
        let met = actions[0].iter().filter(|a| actions[1].iter().any(|b| meets(a, b))).count();
        assert!(met >= 2, "{met} of 32 requests overlap");
    }
}
