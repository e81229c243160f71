//! How many handshakes a server makes, and for whom. One is about half a millisecond of a core, for anybody who asks.
//!
//! All addresses share one bucket: that is the ceiling on processor time. How low it may be emptied depends on who asks: the
//! more an address has had lately, the fuller the bucket must be. So one that floods leaves half of it to others, takes what nobody else
//! wants, and whoever comes from a quiet address is served at once.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

/// Handshakes of a whole server, in the long run per second, and at once.
const HANDSHAKES_PER_SECOND: u32 = 500;
const HANDSHAKES_AT_ONCE: u32 = 1000;
/// Of what an address has had, so many are forgotten in a second, and no more are remembered. A rack behind one address may come back at
/// once; who goes on with more than 5 a second counts as a flood. A hundred such addresses use up the whole.
const FORGOTTEN_PER_SECOND: u32 = 5;
const REMEMBERED_MAX: u32 = 100;
/// What an address that has had that many leaves to others.
const RESERVE: u32 = HANDSHAKES_AT_ONCE / 2;
/// How often addresses that have had nothing lately are dropped.
const SWEEP: Duration = Duration::from_secs(1);
/// Addresses remembered: those let through since the last sweep, 1500 at most, and those that had something before and still have. To stay one of
/// these costs 5 handshakes a second, so of a second's 500 that is 100 (1 + 1/2 + .. + 1/100) addresses. It follows from the bucket: nobody
/// can fill the table at another's expense.
const SOURCES_MAX: usize = (HANDSHAKES_AT_ONCE + 3 * HANDSHAKES_PER_SECOND) as usize;

/// What of the handshakes is left.
#[derive(Debug)]
pub(super) struct Allowance {
    left: f64,
    at: Duration,
    /// What addresses have had lately. Those without an entry have had nothing.
    sources: HashMap<IpAddr, Had>,
    swept: Duration,
}

/// Handshakes that an address has had at a time, but for those forgotten.
#[derive(Debug)]
struct Had {
    handshakes: f64,
    at: Duration,
}

impl Had {
    fn lately(&self, now: Duration) -> f64 {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        (self.handshakes - passed * f64::from(FORGOTTEN_PER_SECOND)).max(0.0)
    }
}

impl Default for Allowance {
    fn default() -> Self {
        let left = f64::from(HANDSHAKES_AT_ONCE);
        Self { left, at: Duration::ZERO, sources: HashMap::new(), swept: Duration::ZERO }
    }
}

impl Allowance {
    /// Whether there may be another one for `peer` at `now`, the time since any point that all callers share.
    pub(super) fn admit(&mut self, peer: IpAddr, now: Duration) -> bool {
        // Another thread's clock may be behind.
        let now = now.max(self.at);
        self.refill(now);
        self.sweep(now);
        let source = source(peer);
        let had = self.sources.get(&source).map_or(0.0, |had| had.lately(now));
        let reserved = f64::from(RESERVE) * had / f64::from(REMEMBERED_MAX);
        if self.left < reserved + 1.0 {
            return false;
        }
        self.left -= 1.0;
        let handshakes = (had + 1.0).min(f64::from(REMEMBERED_MAX));
        self.sources.insert(source, Had { handshakes, at: now });
        debug_assert!(self.sources.len() <= SOURCES_MAX, "{} addresses", self.sources.len());
        true
    }

    fn refill(&mut self, now: Duration) {
        let passed = (now - self.at).as_secs_f64();
        let full = f64::from(HANDSHAKES_AT_ONCE);
        self.left = (self.left + passed * f64::from(HANDSHAKES_PER_SECOND)).min(full);
        self.at = now;
    }

    fn sweep(&mut self, now: Duration) {
        if now - self.swept >= SWEEP {
            self.sources.retain(|_, had| had.lately(now) > 0.0);
            self.swept = now;
        }
    }
}

/// What counts as one address: of IPv6 a /64, which is what one host is given to choose from (RFC 4291 §2.5.4).
fn source(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const START: Duration = Duration::from_secs(1000);

    fn address(number: u32) -> IpAddr {
        Ipv4Addr::from_bits(0x0a00_0000 + number).into()
    }

    /// As many as there are for these who ask in turn, again and again, as fast as they can.
    fn drain(allowance: &mut Allowance, addresses: std::ops::Range<u32>, now: Duration) -> u32 {
        let mut admitted = 0;
        loop {
            let round = addresses.clone().filter(|number| allowance.admit(address(*number), now)).count();
            admitted += round as u32;
            if round == 0 {
                return admitted;
            }
        }
    }

    /// A flood that lasts for so many seconds: how many it got, and when it was over.
    fn flood(allowance: &mut Allowance, addresses: std::ops::Range<u32>, seconds: u32) -> (u32, Duration) {
        let mut now = START;
        let mut admitted = 0;
        for _ in 0..seconds * 20 {
            admitted += drain(allowance, addresses.clone(), now);
            now += SECOND / 20;
        }
        (admitted, now)
    }

    #[test]
    fn all_together_are_so_many_at_once_and_so_many_a_second() {
        for addresses in [1, 10, 99, 1500] {
            let mut allowance = Allowance::default();
            let (admitted, _) = flood(&mut allowance, 0..addresses, 5);
            let most = HANDSHAKES_AT_ONCE + 5 * HANDSHAKES_PER_SECOND;
            assert!((most - RESERVE - 30..=most).contains(&admitted), "{addresses}: {admitted} of {most}");
        }
    }

    #[test]
    fn one_alone_gets_what_nobody_else_wants() {
        let mut allowance = Allowance::default();
        assert_eq!(drain(&mut allowance, 0..1, START), HANDSHAKES_AT_ONCE - RESERVE);
        assert_eq!(drain(&mut allowance, 0..1, START + SECOND), HANDSHAKES_PER_SECOND);
        assert_eq!(drain(&mut allowance, 0..1, START), 0, "another thread's clock may be behind");
    }

    #[test]
    fn a_quiet_address_gets_in_beside_floods_from_others() {
        for addresses in [1, 10, 80] {
            let mut allowance = Allowance::default();
            let (_, mut now) = flood(&mut allowance, 0..addresses, 10);
            // Again and again, for longer than anything is remembered.
            for _ in 0..100 {
                for _ in 0..FORGOTTEN_PER_SECOND {
                    assert!(allowance.admit(address(9999), now), "beside {addresses}");
                }
                drain(&mut allowance, 0..addresses, now);
                now += SECOND;
            }
        }
    }

    #[test]
    fn a_rack_that_comes_back_gets_in_beside_a_flood() {
        let mut allowance = Allowance::default();
        let (_, now) = flood(&mut allowance, 0..1, 10);
        let rack = (0..80).filter(|_| allowance.admit(address(9999), now)).count();
        assert_eq!(rack, 80, "through one address, at once");
    }

    #[test]
    fn a_flood_is_forgotten() {
        let mut allowance = Allowance::default();
        let (_, now) = flood(&mut allowance, 0..1, 10);
        let quiet = SECOND * (REMEMBERED_MAX / FORGOTTEN_PER_SECOND) + SWEEP;
        assert!(allowance.admit(address(7), now + quiet));
        assert_eq!(allowance.sources.len(), 1);
        assert_eq!(drain(&mut allowance, 0..1, now + quiet), HANDSHAKES_AT_ONCE - RESERVE - 1);
    }

    #[test]
    fn the_table_stays_small_whoever_asks() {
        let mut allowance = Allowance::default();
        let (mut now, mut next, mut most) = (START, 0, 0);
        for _ in 0..4000 {
            while allowance.admit(address(next), now) {
                next += 1;
            }
            most = most.max(allowance.sources.len());
            now += SECOND / 1000;
        }
        assert!(next > 2000, "addresses that were never here before");
        assert!((1000..=SOURCES_MAX).contains(&most), "{most} entries");
    }

    #[test]
    fn an_address_is_one_of_ipv4_or_a_64_of_ipv6() {
        let same = |one: &str, other: &str| {
            source(one.parse().expect("an address")) == source(other.parse().expect("an address"))
        };
        assert!(same("2001:db8:1:2::1", "2001:db8:1:2:ffff:ffff:ffff:ffff"));
        assert!(!same("2001:db8:1:2::1", "2001:db8:1:3::1"));
        assert!(!same("192.0.2.1", "192.0.2.2"));
        assert!(!same("::ffff:192.0.2.1", "::ffff:192.0.2.2"), "IPv4 at a listener for both");
        assert!(same("::ffff:192.0.2.1", "192.0.2.1"));
    }
}
