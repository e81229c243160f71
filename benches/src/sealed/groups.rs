//! The groups and the bars of their rows.

use std::time::Duration;

use super::link::Kind;
use super::rig::Protection;
use super::tunnels::Peer;
use crate::bars::Bound;
use crate::claims::{Claim, Compare};
use crate::peers::Shape;

/// Factor of the length of runs over a path with delay: TCP needs some round trips to reach the rate of the path.
const WAN_LONGER: f64 = 4.0;
const WAN_RTT: Duration = Duration::from_millis(32);
const AHEAD_BLOCKS: [u64; 4] = [4 << 10, 32 << 10, 256 << 10, 1 << 20];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The session's own protection only.
    Own(Protection),
    /// A plain session through a tunnel.
    Through(Peer),
}

impl Way {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Own(protection) => protection.name(),
            Self::Through(peer) => peer.name(),
        }
    }

    pub(super) fn protection(self) -> Protection {
        match self {
            Self::Own(protection) => protection,
            Self::Through(_) => Protection::Plain,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Place {
    Loopback,
    OneCore,
    Link(Kind),
}

pub(super) struct Group {
    pub(super) name: String,
    pub(super) place: Place,
    pub(super) shape: Shape,
    pub(super) rows: Vec<Way>,
    pub(super) claims: Vec<Claim>,
    /// Factor of the length of the group's runs.
    pub(super) longer: f64,
}

pub(super) const PLAIN: Way = Way::Own(Protection::Plain);
pub(super) const GCM: Way = Way::Own(Protection::GCM);
pub(super) const TLS: Way = Way::Own(Protection::Tls);
const FAST: [Way; 2] = [Way::Own(Protection::AEGIS_256), Way::Own(Protection::AEGIS_128)];

fn at_least(row: Way, peer: Way, what: &'static str, least: f64) -> Claim {
    Claim::new(row.name(), peer.name(), what, Compare::Speed, Bound::AtLeast(least))
}

fn at_most(row: Way, peer: Way, what: &'static str, compare: Compare, most: f64) -> Claim {
    Claim::new(row.name(), peer.name(), what, compare, Bound::AtMost(most))
}

fn group(name: impl Into<String>, place: Place, shape: Shape, rows: Vec<Way>, claims: Vec<Claim>) -> Group {
    Group { name: name.into(), place, shape, rows, claims, longer: 1.0 }
}

pub(super) fn groups() -> Vec<Group> {
    let mut groups = Vec::new();
    for write in [false, true] {
        for block in [256 << 10, 1 << 20] {
            groups.push(loopback(Shape::new(write, block, 16)));
        }
    }
    groups.extend([one_core(false), one_core(true), link_5g(), wan(), peers()]);
    for write in [false, true] {
        groups.extend(AHEAD_BLOCKS.map(|block| ahead(Shape::new(write, block, 1))));
    }
    groups
}

fn loopback(shape: Shape) -> Group {
    let digests = Way::Own(Protection::Digests);
    let mut rows = vec![PLAIN, digests, GCM];
    rows.extend(FAST);
    rows.extend([Way::Own(Protection::CHACHA), TLS]);
    let mut claims = vec![
        at_least(GCM, PLAIN, "of plain", 0.7),
        at_most(GCM, PLAIN, "CPU s/GB more than plain", Compare::MoreCpu, 0.22),
        at_least(GCM, TLS, "of TLS", 1.15),
        at_most(GCM, TLS, "of the CPU of TLS", Compare::Cpu, 0.9),
    ];
    for fast in FAST {
        claims.push(at_least(fast, PLAIN, "of plain", 0.85));
        claims.push(at_most(fast, PLAIN, "CPU s/GB more than plain", Compare::MoreCpu, 0.12));
        claims.push(at_least(fast, digests, "of plain with digests", 1.0));
        claims.push(at_least(fast, TLS, "of TLS", 1.4));
    }
    group(format!("loopback-{}", shape.name()), Place::Loopback, shape, rows, claims)
}

fn one_core(write: bool) -> Group {
    let shape = Shape::new(write, 4 << 10, 1);
    let rows = vec![PLAIN, GCM, FAST[0], TLS];
    let more = |row| at_most(row, PLAIN, "us more than plain", Compare::MoreMicroseconds, 3.0);
    let claims = vec![more(GCM), more(FAST[0])];
    group(format!("one-core-{}", shape.name()), Place::OneCore, shape, rows, claims)
}

fn link_5g() -> Group {
    let rows = vec![PLAIN, GCM, FAST[0], TLS];
    let claims = [GCM, FAST[0]].map(|row| at_least(row, PLAIN, "of plain", 0.98)).into();
    let place = Place::Link(Kind::Rate { mbit: 5000 });
    group("link-5G", place, Shape::new(false, 1 << 20, 16), rows, claims)
}

fn wan() -> Group {
    let rows = vec![PLAIN, GCM, FAST[0]];
    let claims = [GCM, FAST[0]].map(|row| at_least(row, PLAIN, "of plain", 0.98)).into();
    let place = Place::Link(Kind::Wan { mbit: 1000, rtt: WAN_RTT });
    let group = group("wan-1G-32ms", place, Shape::new(false, 1 << 20, 16), rows, claims);
    Group { longer: WAN_LONGER, ..group }
}

fn peers() -> Group {
    let [stunnel, wireguard, esp] = [Peer::Stunnel, Peer::WireguardGo, Peer::Esp].map(Way::Through);
    let rows = vec![PLAIN, GCM, FAST[0], TLS, stunnel, wireguard, esp];
    let mut claims = Vec::new();
    for row in [GCM, FAST[0]] {
        claims.push(at_least(row, stunnel, "of stunnel", 2.5));
        claims.push(at_least(row, wireguard, "of wireguard-go", 8.0));
        claims.push(at_least(row, esp, "of user-space ESP", 15.0));
    }
    let place = Place::Link(Kind::Direct);
    group("peers", place, Shape::new(false, 1 << 20, 16), rows, claims)
}

/// Sealing ahead at the sender: each suite with and without it, one sequential request at a time.
fn ahead(shape: Shape) -> Group {
    let mut rows = vec![PLAIN];
    let mut claims = Vec::new();
    for suite in [Protection::GCM, Protection::AEGIS_256, Protection::CHACHA] {
        let [with, without] = [Way::Own(suite), Way::Own(suite.without_ahead())];
        rows.extend([with, without]);
        // Fast suites are not sealed ahead where the sealed data would leave the cache.
        let gains = with == GCM && !shape.write && shape.block < 1 << 20;
        claims.push(at_least(with, without, "of not ahead", if gains { 1.05 } else { 0.98 }));
    }
    group(format!("ahead-{}", shape.name()), Place::Loopback, shape, rows, claims)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::all_differ;

    #[test]
    fn every_claim_names_rows_that_exist() {
        for group in groups() {
            for claim in &group.claims {
                let exists = |name: &str| group.rows.iter().any(|row| row.name() == name);
                assert!(exists(&claim.row) && exists(&claim.peer), "{}", group.name);
            }
        }
    }

    #[test]
    fn names_of_groups_and_of_their_rows_differ() {
        let groups = groups();
        assert!(all_differ(groups.iter().map(|group| group.name.as_str())));
        for group in &groups {
            assert!(all_differ(group.rows.iter().map(|row| row.name())), "{}", group.name);
        }
    }
}
