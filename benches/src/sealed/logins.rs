//! Cost of a handshake at each side: logins of idle sessions, sealed and plain, interleaved.

use anyhow::Result;
use serde_json::{Value, json};

use super::rig::{Protection, Rig};
use crate::bars::{Bar, verdict};
use crate::{Spread, interleaved};
use harness::process::Surroundings;
use harness::procfs::{children_cpu_seconds, thread_cpu_seconds};
use harness::{Context, Output};

const LOGINS: usize = 40;
const LOGINS_QUICK: usize = 10;
const PROTECTIONS: [Protection; 3] = [Protection::Plain, Protection::GCM, Protection::Tls];
/// Maximum difference between a sealed and a plain login, CPU milliseconds at each side.
const MORE_MS_MAX: f64 = 2.0;

/// CPU milliseconds of one login: initiator, target.
fn logins(rig: &mut Rig<'_>, protection: Protection, count: usize) -> Result<[f64; 2]> {
    let endpoint = rig.endpoint(protection, false, None)?;
    let pid = rig.pid(protection)?;
    let own = || {
        let (user, system) = children_cpu_seconds();
        user + system
    };
    let before = [own(), thread_cpu_seconds(pid)?];
    for _ in 0..count {
        rig.ours(protection, &["info", &endpoint, "--json"]).and_then(Output::success)?;
    }
    let after = [own(), thread_cpu_seconds(pid)?];
    Ok([0, 1].map(|side| (after[side] - before[side]) * 1e3 / count as f64))
}

pub(super) fn row(context: &Context, reps: usize, quick: bool) -> Result<Value> {
    let here = Surroundings::default();
    let mut rig = Rig::start(context, &PROTECTIONS, &here, &here)?;
    let count = if quick { LOGINS_QUICK } else { LOGINS };
    for protection in PROTECTIONS {
        rig.check(protection, None)?;
    }
    let runs = interleaved(reps, PROTECTIONS.len(), |index| logins(&mut rig, PROTECTIONS[index], count))?;
    println!("\n| CPU of one login, ms | initiator, its process included | target |\n|---|---|---|");
    let spread = |index: usize, side: usize| Spread::column(&runs[index], |run| run[side]);
    let mut rows = Vec::new();
    for (index, protection) in PROTECTIONS.iter().enumerate() {
        let [initiator, target] = [0, 1].map(|side| spread(index, side));
        println!("| {} | {} | {} |", protection.name(), initiator.show(2), target.show(2));
        rows.push(json!({ "row": protection.name(), "initiator_ms": initiator, "target_ms": target }));
    }
    let more = |side: usize| spread(1, side).median - spread(0, side).median;
    let bars = [
        Bar::at_most("initiator ms more than plain", more(0), MORE_MS_MAX),
        Bar::at_most("target ms more than plain", more(1), MORE_MS_MAX),
    ];
    println!("\nhandshake of gcm: {:.2} ms, {:.2} ms; {}", more(0), more(1), verdict(&bars));
    Ok(json!({ "logins": count, "rows": rows, "bars": bars.each_ref().map(Bar::object) }))
}
