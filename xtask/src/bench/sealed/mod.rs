//! What sealing costs, and what the alternatives cost: both ends ours over one connection, the same LUN under every
//! protection, runs interleaved. Every byte read is verified in every run, every write is read back.
//!
//! `loopback-*` shows it where nothing but memory and cipher is in the way; `one-core` what it adds to the smallest request;
//! `link-5G` and `wan` what is left of that on a link; `peers` what others put around a session; `ahead-*` what sealing ahead
//! gains; `logins` the handshake. Every group by itself takes less than a minute and a half.

mod ahead;
mod delay;
mod groups;
mod link;
mod logins;
pub(super) mod rig;
mod tunnels;

use std::time::Instant;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::bars::{Bar, verdict};
use super::ends::run::{Sample, Used};
use super::peers::{Shape, seconds};
use super::{Common, Spread, filter_rows, record};
use crate::harness::Context;
use crate::harness::process::Surroundings;
use groups::{Claim, Compare, Group, PLAIN, Place, Way, groups};
use link::{Link, TARGET};
use rig::{Protection, Rig};
use tunnels::{Peer, Tunnel};

/// The processor that both ends share where they share one.
const CORE: usize = 0;
/// Fewer runs than these are a look, not a figure to keep.
const KEPT_REPS_MIN: usize = 5;

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
        "write": write, "block_bytes": block, "depth": depth, "seconds": seconds * group.longer, "rows": rows, "bars": bars,
    }))
}

pub(super) fn run_table(common: &Common, context: &Context) -> Result<bool> {
    let seconds = seconds(common.quick);
    let groups = groups();
    let mut names: Vec<&str> = groups.iter().map(|group| group.name.as_str()).collect();
    names.push("logins");
    let chosen = filter_rows(names.clone(), common.rows.as_deref(), |name| (*name).to_owned())?;
    let keeps = !common.quick && common.reps >= KEPT_REPS_MIN;
    let mut kept = Vec::new();
    for name in chosen {
        let begun = Instant::now();
        let mut measured = match groups.iter().find(|group| group.name == name) {
            Some(group) => run_group(context, group, common.reps, seconds)?,
            None => logins::row(context, common.reps, common.quick)?,
        };
        measured["group"] = json!(name);
        measured["reps"] = json!(common.reps);
        println!("\n{name} took {:.0} s", begun.elapsed().as_secs_f64());
        if keeps {
            kept = record::keep("bench-sealed", measured, &names)?;
        } else {
            kept.push(measured);
        }
    }
    for write in [false, true] {
        print!("{}", ahead::table(&kept, &groups, write));
    }
    println!(
        "\nmedian of {} interleaved runs [least-greatest]; one connection, both ends ours, LUNs of {} MiB in files in memory, \
         every byte verified; CPU is that of our two processes, without stunnel's, WireGuard's and charon's; the tunnels carry \
         plain sessions, wireguard-go is {}",
        common.reps,
        rig::LUN_BYTES >> 20,
        std::env::var("WGGO").unwrap_or_else(|_| "Debian's".to_owned())
    );
    if !keeps {
        println!("not kept: --quick, or fewer than {KEPT_REPS_MIN} --reps");
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::super::bars::Bound;
    use super::groups::GCM;
    use super::*;

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
