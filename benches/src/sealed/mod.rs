//! The cost of sealing and of its alternatives: `hikyaku` at both ends of one connection, the same LUN under every
//! protection, runs interleaved. Every byte read is verified in every run; every write is read back.
//!
//! `loopback-*` measures memory and cipher alone; `one-core` the cost for the smallest request; `link-5G` and `wan` the
//! cost on a link; `peers` tunnels around a session; `ahead-*` the gain by sealing ahead; `logins` the handshake. Each
//! group takes less than 90 seconds.

mod ahead;
mod groups;
pub(super) mod link;
mod logins;
pub(super) mod rig;
mod tunnels;

use std::time::Instant;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::claims::{both_cpu, judge};
use super::ends::run::{LUN_BYTES, Sample, Used};
use super::peers::{Shape, seconds};
use super::{CORE, Common, KEPT_REPS_MIN, Spread, filter_rows, interleaved, record};
use groups::{Group, PLAIN, Place, Way, groups};
use harness::Context;
use harness::process::Surroundings;
use link::{Link, TARGET};
use rig::{Protection, Rig};
use tunnels::{Peer, Tunnel};

struct Scene<'a> {
    // Declared before the link and therefore dropped first: the processes in its namespaces end before it.
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
        let (initiator, target) = match (&link, group.place) {
            (Some(link), _) => link.sides().into(),
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

    /// The portal at which the initiator reaches the target, if it is not the listening address.
    fn portal(&self, row: Way) -> Option<String> {
        match row {
            Way::Through(peer) => Some(self.tunnels.iter().find(|one| one.0 == peer)?.1.portal.clone()),
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

fn cpu(end: Option<Used>) -> f64 {
    end.map_or(f64::NAN, |used| used.cpu_s_per_gb)
}

fn run_group(context: &Context, group: &Group, reps: usize, seconds: f64) -> Result<Value> {
    let mut scene = Scene::new(context, group).with_context(|| group.name.clone())?;
    let runs = interleaved(reps, group.rows.len(), |index| {
        let row = group.rows[index];
        let sample = scene.measure(row, group.shape, seconds * group.longer);
        sample.with_context(|| format!("{}, {}", group.name, row.name()))
    })?;
    println!(
        "\n{}, {}:\n\n| row | MB/s | of plain | p50 us | p99 us | initiator CPU s/GB | target CPU s/GB | both, more than plain \
         |\n|---|---|---|---|---|---|---|---|",
        group.name,
        group.shape.name()
    );
    let plain = group.rows.iter().position(|row| *row == PLAIN).map_or(&[] as &[_], |at| &runs[at]);
    let (plain_speed, plain_cpu) =
        (Spread::column(plain, |run| run.mb_per_s).median, Spread::column(plain, both_cpu).median);
    let mut rows = Vec::new();
    for (row, runs) in group.rows.iter().zip(&runs) {
        let (speed, both) = (Spread::column(runs, |run| run.mb_per_s), Spread::column(runs, both_cpu));
        let (initiator, target) =
            (Spread::column(runs, |run| cpu(run.initiator)), Spread::column(runs, |run| cpu(run.target)));
        let (p50, p99) = (Spread::column(runs, |run| run.p50_us), Spread::column(runs, |run| run.p99_us));
        let (ratio, more) = (speed.median / plain_speed, both.median - plain_cpu);
        print!("| {} | {} | {ratio:.2} | {:.0} | {:.0} |", row.name(), speed.show(0), p50.median, p99.median);
        println!(" {:.3} | {:.3} | {more:+.3} |", initiator.median, target.median);
        rows.push(json!({
            "row": row.name(), "mb_per_s": speed, "operations_per_s": Spread::column(runs, |run| run.per_second),
            "p50_us": p50, "p99_us": p99,
            "initiator_cpu_s_per_gb": initiator, "target_cpu_s_per_gb": target, "cpu_s_per_gb": both,
        }));
    }
    let names: Vec<&str> = group.rows.iter().map(|row| row.name()).collect();
    let bars = judge(&group.claims, &names, &runs, |_| 3);
    let Shape { write, block, depth } = group.shape;
    Ok(json!({
        "write": write, "block_bytes": block, "depth": depth, "seconds": seconds * group.longer, "rows": rows, "bars": bars,
    }))
}

pub(super) fn run_table(common: &Common, context: &Context) -> Result<()> {
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
        LUN_BYTES >> 20,
        std::env::var("WGGO").unwrap_or_else(|_| "Debian's".to_owned())
    );
    if !keeps {
        println!("not kept: --quick, or fewer than {KEPT_REPS_MIN} --reps");
    }
    Ok(())
}
