//! The bounded log of connections without a session. Any host can cause thousands per second, so that each address has
//! a budget: in each second its first [`REASONS_MAX`] distinct reasons are logged in full, and the others are counted.
//! At the end of the second one line for each of the [`COUNTED_MAX`] most frequent addresses reports its count.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::handshake::ENQUIRY;
use crate::sealing::ENQUIRY_NAME;

const SECOND: Duration = Duration::from_secs(1);
const REASONS_MAX: usize = 4;
/// Bound of the addresses with a budget in one second, and of the lines of all addresses together; what exceeds either
/// is counted.
const ADDRESSES_MAX: usize = 256;
const LINES_MAX: usize = 512;
const COUNTED_MAX: usize = 16;

/// Why a connection got no session, and what it claimed to be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Refused {
    pub(super) reason: String,
    /// InitiatorName and TargetName as received; not authenticated.
    pub(super) initiator: Option<String>,
    pub(super) target_name: Option<String>,
    /// CHAP_N as received, where the refusal is about CHAP.
    pub(super) chap_user: Option<String>,
    /// Name of the peer whose key was proven.
    pub(super) listed_as: Option<String>,
}

impl Refused {
    /// Whether this is an enquiry about the key to a server without one. A CHAP name or a target's name under the same
    /// InitiatorName is not: attempts at a secret are warned about.
    fn is_unsealed_enquiry(&self) -> bool {
        self.initiator.as_deref() == Some(ENQUIRY_NAME)
            && self.chap_user.is_none()
            && self.target_name.is_none()
            && self.listed_as.is_none()
    }
}

impl From<&str> for Refused {
    fn from(reason: &str) -> Self {
        Self { reason: reason.to_owned(), ..Self::default() }
    }
}

#[derive(Debug, Default)]
pub(super) struct RefusalLog(Mutex<Refusals>);

impl RefusalLog {
    /// Logs a connection that got no session. Returns when to call [`Self::log_summary`], for the first of a second.
    pub(super) fn log(&self, now: Duration, peer: SocketAddr, refusal: &Refused) -> Option<Duration> {
        let added = self.refusals().add(now, peer.ip(), refusal);
        if added.is_logged {
            let Refused { reason, initiator, target_name, chap_user, listed_as } = refusal;
            match reason.as_str() {
                ENQUIRY => tracing::info!(%peer, "sent this server's public key"),
                // The refused login that the enquiry is to explain has its own line.
                _ if refusal.is_unsealed_enquiry() => {
                    tracing::info!(%peer, "was asked for a public key; this server seals no session");
                }
                _ => {
                    tracing::warn!(%peer, initiator, target_name, chap_user, listed_as, reason, "no session");
                }
            }
        }
        added.summary_at
    }

    pub(super) fn log_summary(&self) {
        let summary = self.refusals().summary();
        for (address, more) in summary.by_address {
            tracing::warn!(%address, more, "connections of this address came to no session within a second");
        }
        if summary.others > 0 {
            tracing::warn!(
                more = summary.others,
                "connections of other addresses came to no session within a second"
            );
        }
    }

    /// Total number of connections without a session, enquiries about the key not counted.
    pub(super) fn total(&self) -> u64 {
        self.refusals().total
    }

    /// Counters, usable in any state a panic leaves: poisoning is ignored.
    fn refusals(&self) -> MutexGuard<'_, Refusals> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default)]
struct Refusals {
    until: Duration,
    lines: usize,
    by_address: HashMap<IpAddr, OfAddress>,
    /// Not logged, of addresses without a budget.
    others: u64,
    total: u64,
}

#[derive(Debug, Default)]
struct OfAddress {
    logged: Vec<Refused>,
    unlogged: u64,
}

#[derive(Debug, PartialEq, Eq)]
struct Added {
    is_logged: bool,
    summary_at: Option<Duration>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Summary {
    /// Most frequent first.
    by_address: Vec<(IpAddr, u64)>,
    others: u64,
}

impl Refusals {
    fn add(&mut self, now: Duration, address: IpAddr, refusal: &Refused) -> Added {
        self.total += u64::from(refusal.reason != ENQUIRY);
        let mut summary_at = None;
        if now >= self.until {
            self.until = now + SECOND;
            summary_at = Some(self.until);
            self.lines = 0;
            // Counts whose summary is late stay.
            self.by_address.retain(|_, of| {
                of.logged.clear();
                of.unlogged > 0
            });
        }
        let is_full = self.by_address.len() >= ADDRESSES_MAX;
        let address = budgeted(address);
        if is_full && !self.by_address.contains_key(&address) {
            self.others += 1;
            return Added { is_logged: false, summary_at };
        }
        let of = self.by_address.entry(address).or_default();
        let is_logged =
            self.lines < LINES_MAX && of.logged.len() < REASONS_MAX && !of.logged.contains(refusal);
        if is_logged {
            self.lines += 1;
            of.logged.push(refusal.clone());
        } else {
            of.unlogged += 1;
        }
        Added { is_logged, summary_at }
    }

    /// The numbers not logged; resets them.
    fn summary(&mut self) -> Summary {
        let mut by_address: Vec<(IpAddr, u64)> = self
            .by_address
            .iter_mut()
            .map(|(address, of)| (*address, std::mem::take(&mut of.unlogged)))
            .filter(|(_, more)| *more > 0)
            .collect();
        by_address.sort_unstable_by_key(|(address, more)| (std::cmp::Reverse(*more), *address));
        let rest = by_address.split_off(by_address.len().min(COUNTED_MAX));
        let others = std::mem::take(&mut self.others) + rest.iter().map(|(_, more)| more).sum::<u64>();
        Summary { by_address, others }
    }
}

/// The address that has the budget: for IPv6 its /64, of which one host may use every address.
fn budgeted(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u32) -> IpAddr {
        IpAddr::from((0x0a00_0000 + number).to_be_bytes())
    }

    fn add(refusals: &mut Refusals, now: Duration, from: u32, reason: &str) -> bool {
        refusals.add(now, address(from), &reason.into()).is_logged
    }

    #[test]
    fn the_first_of_a_second_is_logged_and_its_repetitions_are_counted() {
        let mut refusals = Refusals::default();
        let start = 100 * SECOND;
        let summary_at = start + SECOND;
        let first = refusals.add(start, address(1), &"a".into());
        assert_eq!(first, Added { is_logged: true, summary_at: Some(summary_at) });
        for number in 0..5000 {
            assert!(!add(&mut refusals, start + SECOND * number / 5000, 1, "a"));
        }
        assert!(!add(&mut refusals, start - SECOND, 1, "a"), "another thread's clock may be behind");
        assert_eq!(refusals.summary(), Summary { by_address: vec![(address(1), 5001)], others: 0 });
        let next = refusals.add(summary_at, address(1), &"a".into());
        assert_eq!(next, Added { is_logged: true, summary_at: Some(summary_at + SECOND) });
        assert_eq!(refusals.summary(), Summary::default());
        assert_eq!(refusals.total, 5003);
    }

    #[test]
    fn a_flood_of_one_address_hides_no_other_address() {
        let mut refusals = Refusals::default();
        let logged = (0..10_000).filter(|number| add(&mut refusals, SECOND, 1, &number.to_string())).count();
        assert_eq!(logged, REASONS_MAX);
        assert!(add(&mut refusals, SECOND, 2, "its key is not among the peers"));
        assert!(
            add(&mut refusals, SECOND, 2, "wrong secret") && !add(&mut refusals, SECOND, 2, "wrong secret")
        );
        let counted = vec![(address(1), 10_000 - REASONS_MAX as u64), (address(2), 1)];
        assert_eq!(refusals.summary().by_address, counted);
    }

    #[test]
    fn addresses_and_lines_of_a_second_are_bounded() {
        let mut refusals = Refusals::default();
        let mut lines = 0;
        for from in 0..5000 {
            for reason in ["a", "b", "c"] {
                lines += u64::from(add(&mut refusals, SECOND, from, reason));
            }
        }
        assert_eq!((lines, refusals.by_address.len()), (LINES_MAX as u64, ADDRESSES_MAX));
        let summary = refusals.summary();
        let counted = summary.by_address.iter().map(|(_, more)| more).sum::<u64>();
        assert_eq!(summary.by_address.len(), COUNTED_MAX);
        assert_eq!(lines + counted + summary.others, 15_000);
        add(&mut refusals, 3 * SECOND, 1, "a");
        assert_eq!(refusals.by_address.len(), 1, "addresses without a count are forgotten");
    }

    #[test]
    fn none_is_lost_when_the_summary_is_late() {
        let mut refusals = Refusals::default();
        let at = |number| SECOND + SECOND * number / 10;
        let logged = (0..100).filter(|number| add(&mut refusals, at(*number), 1, "a")).count();
        assert_eq!((logged, refusals.summary().by_address), (10, vec![(address(1), 90)]));
    }

    #[test]
    fn an_enquiry_without_a_claim_is_no_attempt_to_log_in() {
        let enquiry = Refused { initiator: Some(ENQUIRY_NAME.into()), ..Refused::default() };
        let named = |target: &str| Refused { target_name: Some(target.into()), ..enquiry.clone() };
        let user = |name: &str| Refused { chap_user: Some(name.into()), ..enquiry.clone() };
        let all = [
            (enquiry.clone(), true),
            (Refused { initiator: Some("iqn.2026-11.example:a".into()), ..enquiry.clone() }, false),
            (named("iqn.2026-11.example:t"), false),
            (user("me"), false),
        ];
        for (refused, expected) in all {
            assert_eq!(refused.is_unsealed_enquiry(), expected, "{refused:?}");
        }
    }

    #[test]
    fn the_addresses_of_an_ipv6_network_have_one_budget() {
        let of = |text: &str| budgeted(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
    }
}
