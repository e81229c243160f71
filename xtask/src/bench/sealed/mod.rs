//! What sealing costs, and what the alternatives cost: both ends ours over one connection, the same LUN under every
//! protection, runs interleaved. Every byte read is verified in every run, every write is read back.
//!
//! `loopback-*` shows it where nothing but memory and cipher is in the way; `one-core` what it adds to the smallest request;
//! `link-5G` and `wan` what is left of that on a link; `peers` what others put around a session; `logins` the handshake.

mod delay;
mod link;
mod logins;
mod rig;
mod tunnels;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::bars::{Bar, Bound, verdict};
use super::ends::run::{Sample, Used};
use super::peers::{Shape, seconds};
use super::{Common, Spread, filter_rows};
use crate::evidence;
use crate::harness::process::Surroundings;
use crate::harness::{Against, Context, Tier, scratch};
use link::{Kind, Link, TARGET};
use rig::{Protection, Rig};
use tunnels::{Peer, Tunnel};

/// The processor that both ends share where they share one.
const CORE: usize = 0;
/// A run over a path with delay takes longer: TCP needs some round trips until it carries what the path does.
const WAN_LONGER: f64 = 4.0;
const WAN_RTT: Duration = Duration::from_millis(32);

/// What goes around the session of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Nothing but its own protection.
    Own(Protection),
    /// A plain session through a tunnel.
    Through(Peer),
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Own(protection) => protection.name(),
            Self::Through(peer) => peer.name(),
        }
    }

    fn protection(self) -> Protection {
        match self {
            Self::Own(protection) => protection,
            Self::Through(_) => Protection::Plain,
        }
    }
}

/// Where a group runs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Loopback,
    OneCore,
    Link(Kind),
}

/// How a row is compared with another.
#[derive(Clone, Copy, Debug)]
enum Compare {
    /// Throughput by throughput.
    Speed,
    /// CPU seconds per GB of both ends together, more than the other's.
    MoreCpu,
    /// The same, by the other's.
    Cpu,
    /// Microseconds of one operation more, on average.
    MoreMicroseconds,
}

/// What a row must reach.
struct Claim {
    row: Way,
    peer: Way,
    what: &'static str,
    compare: Compare,
    bound: Bound,
}

/// Rows that are interleaved, and what they must reach.
struct Group {
    name: String,
    place: Place,
    shape: Shape,
    rows: Vec<Way>,
    claims: Vec<Claim>,
    /// How much longer than others its runs take.
    longer: f64,
}

const PLAIN: Way = Way::Own(Protection::Plain);
const GCM: Way = Way::Own(Protection::GCM);
const TLS: Way = Way::Own(Protection::Tls);
/// The suites that are made for speed.
const FAST: [Way; 2] = [Way::Own(Protection::AEGIS_256), Way::Own(Protection::AEGIS_128)];

fn shape(write: bool, block: u64, depth: u32) -> Shape {
    Shape { write, block, depth }
}

fn at_least(row: Way, peer: Way, what: &'static str, least: f64) -> Claim {
    Claim { row, peer, what, compare: Compare::Speed, bound: Bound::AtLeast(least) }
}

fn at_most(row: Way, peer: Way, what: &'static str, compare: Compare, most: f64) -> Claim {
    Claim { row, peer, what, compare, bound: Bound::AtMost(most) }
}

fn groups() -> Vec<Group> {
    let mut groups = Vec::new();
    for write in [false, true] {
        for block in [256 << 10, 1 << 20] {
            groups.push(loopback(shape(write, block, 16)));
        }
    }
    groups.extend([one_core(false), one_core(true), link_5g(), wan(), peers()]);
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
    Group {
        name: format!("loopback-{}", shape.name()),
        place: Place::Loopback,
        shape,
        rows,
        claims,
        longer: 1.0,
    }
}

fn one_core(write: bool) -> Group {
    let shape = shape(write, 4 << 10, 1);
    let rows = vec![PLAIN, GCM, FAST[0], TLS];
    let more = |row| at_most(row, PLAIN, "us more than plain", Compare::MoreMicroseconds, 3.0);
    let claims = vec![more(GCM), more(FAST[0])];
    Group {
        name: format!("one-core-{}", shape.name()),
        place: Place::OneCore,
        shape,
        rows,
        claims,
        longer: 1.0,
    }
}

fn link_5g() -> Group {
    let rows = vec![PLAIN, GCM, FAST[0], TLS];
    let claims = [GCM, FAST[0]].map(|row| at_least(row, PLAIN, "of plain", 0.98)).into();
    let place = Place::Link(Kind::Rate { mbit: 5000 });
    Group { name: "link-5G".into(), place, shape: shape(false, 1 << 20, 16), rows, claims, longer: 1.0 }
}

fn wan() -> Group {
    let rows = vec![PLAIN, GCM, FAST[0]];
    let claims = [GCM, FAST[0]].map(|row| at_least(row, PLAIN, "of plain", 0.98)).into();
    let place = Place::Link(Kind::Wan { mbit: 1000, rtt: WAN_RTT });
    Group {
        name: "wan-1G-32ms".into(),
        place,
        shape: shape(false, 1 << 20, 16),
        rows,
        claims,
        longer: WAN_LONGER,
    }
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
    Group { name: "peers".into(), place, shape: shape(false, 1 << 20, 16), rows, claims, longer: 1.0 }
}

/// Everything a group needs while it runs.
struct Scene<'a> {
    // Before the link: whoever is in its namespaces ends first.
    tunnels: Vec<(Peer, Tunnel)>,
    rig: Rig<'a>,
    link: Option<Link>,
}

impl<'a> Scene<'a> {
    fn new(context: &'a Context, group: &Group) -> Result<Self> {
        let mut protections: Vec<Protection> = group.rows.iter().map(|row| row.protection()).collect();
        protections.dedup();
        let link = match group.place {
            Place::Link(kind) => Some(Link::new(kind)?),
            _ => None,
        };
        let (target, initiator) = match (&link, group.place) {
            (Some(link), _) => (link.target(), link.initiator()),
            (None, Place::OneCore) => {
                let pinned = Surroundings { core: Some(CORE), ..Surroundings::default() };
                (pinned.clone(), pinned)
            }
            (None, _) => Default::default(),
        };
        let rig = Rig::start(context, &protections, &target, &initiator)?;
        let mut scene = Self { tunnels: Vec::new(), rig, link };
        for row in &group.rows {
            match (row, &scene.link) {
                (Way::Through(peer), Some(link)) => {
                    let tunnel = peer.start(link, &scene.rig.certificate(), scene.rig.folder())?;
                    scene.tunnels.push((*peer, tunnel));
                }
                (Way::Through(_), None) => unreachable!("tunnels go between namespaces"),
                (Way::Own(protection), _) => {
                    let portal = scene.portal(*row);
                    scene.rig.check(*protection, portal.as_deref())?;
                }
            }
        }
        Ok(scene)
    }

    /// Where the initiator finds the target, if that is not where it listens.
    fn portal(&self, row: Way) -> Option<String> {
        match row {
            Way::Through(peer) => {
                self.tunnels.iter().find(|(known, _)| *known == peer).map(|(_, tunnel)| tunnel.portal.clone())
            }
            Way::Own(protection) => {
                self.link.as_ref().map(|_| format!("{TARGET}:{}", self.rig.port(protection)))
            }
        }
    }

    fn measure(&mut self, row: Way, shape: Shape, seconds: f64) -> Result<Sample> {
        let portal = self.portal(row);
        self.rig.measure(row.protection(), shape, seconds, portal.as_deref())
    }
}

fn column(runs: &[Sample], value: impl Fn(&Sample) -> f64) -> Spread {
    Spread::of(&runs.iter().map(value).collect::<Vec<_>>())
}

fn cpu(end: Option<Used>) -> f64 {
    end.map_or(f64::NAN, |used| used.cpu_s_per_gb)
}

fn both_cpu(sample: &Sample) -> f64 {
    cpu(sample.initiator) + cpu(sample.target)
}

fn judge(claim: &Claim, rows: &[Way], runs: &[Vec<Sample>]) -> Bar {
    let median = |way: Way, value: fn(&Sample) -> f64| {
        rows.iter().position(|row| *row == way).map_or(f64::NAN, |at| column(&runs[at], value).median)
    };
    let (row, peer) = (claim.row, claim.peer);
    let value = match claim.compare {
        Compare::Speed => median(row, |run| run.mb_per_s) / median(peer, |run| run.mb_per_s),
        Compare::MoreCpu => median(row, both_cpu) - median(peer, both_cpu),
        Compare::Cpu => median(row, both_cpu) / median(peer, both_cpu),
        Compare::MoreMicroseconds => {
            1e6 / median(row, |run| run.per_second) - 1e6 / median(peer, |run| run.per_second)
        }
    };
    Bar::new(claim.what, value, claim.bound)
}

fn run_group(context: &Context, group: &Group, reps: usize, seconds: f64) -> Result<Value> {
    let mut scene = Scene::new(context, group).with_context(|| group.name.clone())?;
    let mut runs: Vec<Vec<Sample>> = group.rows.iter().map(|_| Vec::new()).collect();
    for rep in 0..reps {
        for at in 0..group.rows.len() {
            // Whoever goes second may profit from the first: take turns.
            let index = (at + rep) % group.rows.len();
            let row = group.rows[index];
            let sample = scene.measure(row, group.shape, seconds * group.longer);
            runs[index].push(sample.with_context(|| format!("{}, {}", group.name, row.name()))?);
        }
    }
    println!(
        "\n{}, {}:\n\n| row | MB/s | of plain | p50 us | p99 us | initiator CPU s/GB | target CPU s/GB | both, more than plain \
         |\n|---|---|---|---|---|---|---|---|",
        group.name,
        group.shape.name()
    );
    let plain = group.rows.iter().position(|row| *row == PLAIN).map_or(&[] as &[_], |at| &runs[at]);
    let (plain_speed, plain_cpu) = (column(plain, |run| run.mb_per_s).median, column(plain, both_cpu).median);
    let mut rows = Vec::new();
    for (row, runs) in group.rows.iter().zip(&runs) {
        let (speed, both) = (column(runs, |run| run.mb_per_s), column(runs, both_cpu));
        let (initiator, target) =
            (column(runs, |run| cpu(run.initiator)), column(runs, |run| cpu(run.target)));
        println!(
            "| {} | {} | {:.2} | {:.0} | {:.0} | {:.3} | {:.3} | {:+.3} |",
            row.name(),
            speed.show(0),
            speed.median / plain_speed,
            column(runs, |run| run.p50_us).median,
            column(runs, |run| run.p99_us).median,
            initiator.median,
            target.median,
            both.median - plain_cpu,
        );
        rows.push(json!({
            "row": row.name(), "mb_per_s": speed, "operations_per_s": column(runs, |run| run.per_second),
            "p50_us": column(runs, |run| run.p50_us), "p99_us": column(runs, |run| run.p99_us),
            "initiator_cpu_s_per_gb": initiator, "target_cpu_s_per_gb": target, "cpu_s_per_gb": both,
        }));
    }
    println!("\n| row | figure | bar | verdict |\n|---|---|---|---|");
    let mut bars = Vec::new();
    for claim in &group.claims {
        let bar = judge(claim, &group.rows, &runs);
        let word = verdict(std::slice::from_ref(&bar));
        println!("| {} | {:.3} | {} | {word} |", claim.row.name(), bar.value, bar.show());
        let mut object = bar.object();
        object["row"] = json!(claim.row.name());
        object["peer"] = json!(claim.peer.name());
        bars.push(object);
    }
    let Shape { write, block, depth } = group.shape;
    Ok(json!({
        "group": group.name, "write": write, "block_bytes": block, "depth": depth, "rows": rows, "bars": bars,
    }))
}

pub(super) fn run_table(common: &Common, hikyaku: PathBuf) -> Result<bool> {
    let context = Context {
        repository: crate::steps::repository(),
        hikyaku,
        seed: 1,
        tier: Tier::Full,
        against: Against::Ours,
        home: scratch()?,
    };
    let seconds = seconds(common.quick);
    let groups = groups();
    let mut names: Vec<&str> = groups.iter().map(|group| group.name.as_str()).collect();
    names.push("logins");
    let chosen = filter_rows(names, common.rows.as_deref(), |name| (*name).to_owned())?;
    let mut tables = Vec::new();
    for group in groups.iter().filter(|group| chosen.contains(&group.name.as_str())) {
        tables.push(run_group(&context, group, common.reps, seconds)?);
    }
    let mut logins = Value::Null;
    if chosen.contains(&"logins") {
        logins = logins::row(&context, common.reps, common.quick)?;
    }
    println!(
        "\nmedian of {} interleaved runs [least-greatest]; one connection, both ends ours, LUNs of {} MiB in files in memory, \
         every byte verified; CPU is that of our two processes, without stunnel's, WireGuard's and charon's; the tunnels carry \
         plain sessions, wireguard-go is {}",
        common.reps,
        rig::LUN_BYTES >> 20,
        std::env::var("WGGO").unwrap_or_else(|_| "Debian's".to_owned())
    );
    // A look, or a part of the tables, must not replace the kept figures.
    if common.quick || common.rows.is_some() {
        println!("not kept: --quick or --rows");
        return Ok(true);
    }
    let mut content = evidence::header("bench-sealed");
    content.insert("reps".into(), json!(common.reps));
    content.insert("seconds".into(), json!(seconds));
    content.insert("groups".into(), Value::Array(tables));
    content.insert("logins".into(), logins);
    evidence::write("bench-sealed", &content)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_claim_names_rows_that_exist() {
        for group in groups() {
            for claim in &group.claims {
                assert!(
                    group.rows.contains(&claim.row) && group.rows.contains(&claim.peer),
                    "{}",
                    group.name
                );
            }
        }
    }

    #[test]
    fn claims_are_judged_by_medians() {
        let sample = |mb_per_s: f64, cpu_s_per_gb: f64| {
            let used = Used { cpu_s_per_gb, ..Used::default() };
            Sample {
                mb_per_s,
                per_second: mb_per_s * 1e6 / 4096.0,
                initiator: Some(used),
                target: Some(used),
                ..Sample::default()
            }
        };
        let runs = vec![
            vec![sample(409.6, 0.2), sample(1.0, 0.3), sample(9e9, 0.1)],
            vec![sample(4.096, 0.1), sample(204.8, 0.1), sample(999.0, 0.1)],
        ];
        let value = |compare| {
            let claim = Claim { row: GCM, peer: PLAIN, what: "x", compare, bound: Bound::AtLeast(0.0) };
            judge(&claim, &[GCM, PLAIN], &runs).value
        };
        let near = |value: f64, expected: f64| (value - expected).abs() < 1e-9;
        assert!(near(value(Compare::Speed), 2.0));
        assert!(near(value(Compare::MoreCpu), 0.2));
        assert!(near(value(Compare::Cpu), 2.0));
        assert!(near(value(Compare::MoreMicroseconds), 10.0 - 20.0));
    }
}
