//! The rate limit of handshakes: one token bucket shared by all sources, in which the share of a source depends on its
//! recent use.
//!
//! The bucket bounds the CPU time. A source is refused below a fill level that rises with the handshakes it made
//! recently: a source that floods leaves half of the bucket to others, and a source without recent handshakes is served
//! immediately.
//!
//! A source is an address for handshakes that prove nothing, and a key of the list of peers for handshakes made with
//! that key.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

/// Interval at which sources without recent handshakes are removed from the table.
const SWEEP: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    /// Fill rate, handshakes per second; `at_once` is the capacity.
    pub(super) per_second: u32,
    pub(super) at_once: u32,
}

/// Enquiries for the target's key: three scalar multiplications each, 0.15 ms.
pub(super) const ENQUIRIES: Rate = Rate { per_second: 500, at_once: 1000 };
/// First messages with a valid MAC, refused after one or two DH: 0.05 to 0.1 ms, as much as the rest of it.
pub(super) const OPENINGS: Rate = Rate { per_second: 2000, at_once: 4000 };
/// Responses to peers: three DH and one encapsulation, 0.3 ms.
pub(super) const ANSWERS: Rate = Rate { per_second: 500, at_once: 1000 };

impl Rate {
    /// The recorded count of a source decays by this per second and is capped at `count_max`. So all hosts of a
    /// rack behind one address can reconnect at once, and a source that keeps above a hundredth of the fill rate counts
    /// as a flood.
    fn decay_per_second(self) -> f64 {
        f64::from(self.per_second) / 100.0
    }

    fn count_max(self) -> f64 {
        f64::from(self.at_once) / 10.0
    }

    /// The fill level below which a source with the highest count is refused.
    fn reserve(self) -> f64 {
        f64::from(self.at_once) / 2.0
    }

    /// Bound of the sources in the table: those admitted since the last sweep, and earlier ones whose count has not
    /// decayed to 0. Staying in the table costs a hundredth of the fill rate, so the rate of one second sustains
    /// 100 (1 + 1/2 + .. + 1/100) sources. The bound follows from the bucket: no source can fill the table at the expense
    /// of others.
    const fn sources_max(self) -> usize {
        (self.at_once + 3 * self.per_second) as usize
    }
}

#[derive(Debug)]
pub(super) struct Allowance<S> {
    rate: Rate,
    left: f64,
    at: Duration,
    /// Recent use by source. A source without an entry has none.
    sources: HashMap<S, Usage>,
    swept: Duration,
}

/// The use of a source, decayed up to the time `at`.
#[derive(Debug)]
struct Usage {
    count: f64,
    at: Duration,
}

impl Usage {
    fn current(&self, rate: Rate, now: Duration) -> f64 {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        (self.count - passed * rate.decay_per_second()).max(0.0)
    }
}

impl<S: Copy + Eq + Hash> Allowance<S> {
    pub(super) fn new(rate: Rate) -> Self {
        let left = f64::from(rate.at_once);
        Self { rate, left, at: Duration::ZERO, sources: HashMap::new(), swept: Duration::ZERO }
    }

    /// Whether `source` may make a handshake at `now` (time since a common epoch); charged only if it may.
    pub(super) fn admit(&mut self, source: S, now: Duration) -> bool {
        // The clock of another thread may be behind.
        let now = now.max(self.at);
        self.refill(now);
        self.sweep(now);
        let rate = self.rate;
        let usage = self.sources.get(&source).map_or(0.0, |usage| usage.current(rate, now));
        let reserved = rate.reserve() * usage / rate.count_max();
        if self.left < reserved + 1.0 {
            return false;
        }
        self.left -= 1.0;
        let count = (usage + 1.0).min(rate.count_max());
        self.sources.insert(source, Usage { count, at: now });
        debug_assert!(self.sources.len() <= rate.sources_max(), "{} sources", self.sources.len());
        true
    }

    /// Refunds an admission charged to another bucket; removes a source without other charges from the table.
    pub(super) fn give_back(&mut self, source: S) {
        self.left = (self.left + 1.0).min(f64::from(self.rate.at_once));
        if let Entry::Occupied(mut entry) = self.sources.entry(source) {
            entry.get_mut().count -= 1.0;
            if entry.get().count <= 0.0 {
                entry.remove();
            }
        }
    }

    fn refill(&mut self, now: Duration) {
        let passed = (now - self.at).as_secs_f64();
        let full = f64::from(self.rate.at_once);
        self.left = (self.left + passed * f64::from(self.rate.per_second)).min(full);
        self.at = now;
    }

    fn sweep(&mut self, now: Duration) {
        if now - self.swept >= SWEEP {
            let rate = self.rate;
            self.sources.retain(|_, usage| usage.current(rate, now) > 0.0);
            self.swept = now;
        }
    }
}

/// The address that identifies a source: for IPv6 the /64, within which a host can choose its address (RFC 4291
/// §2.5.4).
pub(super) fn address(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATES: [Rate; 2] = [OPENINGS, ANSWERS];
    const SECOND: Duration = Duration::from_secs(1);
    const START: Duration = Duration::from_secs(1000);

    /// Counts the admissions of `sources` that request in turn as fast as they can.
    fn drain(allowance: &mut Allowance<u32>, sources: std::ops::Range<u32>, now: Duration) -> u32 {
        let mut admitted = 0;
        loop {
            let round = sources.clone().filter(|source| allowance.admit(*source, now)).count();
            admitted += round as u32;
            if round == 0 {
                return admitted;
            }
        }
    }

    /// A flood that lasts `seconds`: the number admitted, and the time of its end.
    fn flood(allowance: &mut Allowance<u32>, sources: std::ops::Range<u32>, seconds: u32) -> (u32, Duration) {
        let mut now = START;
        let mut admitted = 0;
        for _ in 0..seconds * 20 {
            admitted += drain(allowance, sources.clone(), now);
            now += SECOND / 20;
        }
        (admitted, now)
    }

    #[test]
    fn all_together_are_so_many_at_once_and_so_many_a_second() {
        for rate in RATES {
            for sources in [1, 10, 99, 1500] {
                let (admitted, _) = flood(&mut Allowance::new(rate), 0..sources, 5);
                let most = rate.at_once + 5 * rate.per_second;
                let least = most - rate.at_once / 2 - rate.per_second / 16;
                assert!((least..=most).contains(&admitted), "{sources}: {admitted} of {most}");
            }
        }
    }

    #[test]
    fn one_alone_gets_what_nobody_else_wants() {
        for rate in RATES {
            let mut allowance = Allowance::new(rate);
            assert_eq!(drain(&mut allowance, 0..1, START), rate.at_once / 2);
            assert_eq!(drain(&mut allowance, 0..1, START + SECOND), rate.per_second);
            assert_eq!(drain(&mut allowance, 0..1, START), 0, "another thread's clock may be behind");
        }
    }

    #[test]
    fn a_quiet_source_gets_in_beside_floods_from_others() {
        for (rate, sources) in RATES.into_iter().flat_map(|rate| [1, 10, 80].map(|sources| (rate, sources))) {
            let mut allowance = Allowance::new(rate);
            let (_, mut now) = flood(&mut allowance, 0..sources, 10);
            // Repeated for longer than any use is remembered.
            for _ in 0..100 {
                for _ in 0..rate.per_second / 100 {
                    assert!(allowance.admit(9999, now), "beside {sources}");
                }
                drain(&mut allowance, 0..sources, now);
                now += SECOND;
            }
        }
    }

    #[test]
    fn a_rack_that_comes_back_gets_in_beside_a_flood() {
        let mut allowance = Allowance::new(ANSWERS);
        let (_, now) = flood(&mut allowance, 0..1, 10);
        let rack = (0..80).filter(|_| allowance.admit(9999, now)).count();
        assert_eq!(rack, 80, "through one address, at once");
    }

    #[test]
    fn a_flood_is_forgotten() {
        for rate in RATES {
            let mut allowance = Allowance::new(rate);
            let (_, now) = flood(&mut allowance, 0..1, 10);
            let quiet = SECOND * 20 + SWEEP;
            assert!(allowance.admit(7, now + quiet));
            assert_eq!(allowance.sources.len(), 1);
            assert_eq!(drain(&mut allowance, 0..1, now + quiet), rate.at_once / 2 - 1);
        }
    }

    #[test]
    fn what_is_given_back_was_never_charged() {
        let mut allowance = Allowance::new(OPENINGS);
        let (_, now) = flood(&mut allowance, 0..1, 10);
        drain(&mut allowance, 0..1, now);
        // Any number from one address, beside a flood that leaves half of the bucket.
        for _ in 0..10 * OPENINGS.at_once {
            assert!(allowance.admit(7, now));
            allowance.give_back(7);
        }
        assert_eq!(allowance.sources.len(), 1, "nothing is kept of it");
        assert_eq!(drain(&mut allowance, 0..1, now), 0, "and the flood has no more of it");
        // Earlier charges remain.
        assert!(allowance.admit(7, now) && allowance.admit(7, now));
        allowance.give_back(7);
        assert_eq!(allowance.sources.len(), 2);
    }

    #[test]
    fn the_table_stays_small_whoever_asks() {
        for rate in RATES {
            let mut allowance = Allowance::new(rate);
            let (mut now, mut next, mut most) = (START, 0, 0);
            for _ in 0..4000 {
                while allowance.admit(next, now) {
                    next += 1;
                }
                most = most.max(allowance.sources.len());
                now += SECOND / 1000;
            }
            assert!(next > 2 * rate.at_once, "sources that were never here before");
            let bounds = rate.at_once as usize..=rate.sources_max();
            assert!(bounds.contains(&most), "{most} entries");
        }
    }

    #[test]
    fn an_address_is_one_of_ipv4_or_a_64_of_ipv6() {
        let same = |one: &str, other: &str| {
            address(one.parse().expect("an address")) == address(other.parse().expect("an address"))
        };
        assert!(same("2001:db8:1:2::1", "2001:db8:1:2:ffff:ffff:ffff:ffff"));
        assert!(!same("2001:db8:1:2::1", "2001:db8:1:3::1"));
        assert!(!same("192.0.2.1", "192.0.2.2"));
        assert!(!same("::ffff:192.0.2.1", "::ffff:192.0.2.2"), "IPv4 at a listener for both");
        assert!(same("::ffff:192.0.2.1", "192.0.2.1"));
    }
}
