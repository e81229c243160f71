//! Copies while the path or the target changes: the data is right, and the copy goes on or says how to.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lab::wan::Settings;

use super::place::{Place, Protection, Way, finish};
use crate::family::FULL_ONLY;
use crate::{Cases, Context};

const RTT: Duration = Duration::from_millis(50);
const RTT_SHORT: Duration = Duration::from_millis(10);
const RTT_LONG: Duration = Duration::from_millis(200);
const BYTES: u64 = 192 << 20;
/// Bytes after which the change comes: within the copy, behind its slow start.
const MOVED_BYTES: u64 = 48 << 20;
/// Copies above 1 GiB keep a journal.
const JOURNAL_BYTES: u64 = (1 << 30) + (64 << 20);
const RESTART_PAUSE: Duration = Duration::from_secs(1);

type Fault = fn(&Context, Way) -> Result<()>;

fn place(context: &Context, rtt: Duration) -> Result<Place> {
    Place::new(context, rtt, BYTES, Protection::Plain, None)
}

/// A link that carries nothing for a while.
fn link_down(context: &Context, way: Way, outage: Duration) -> Result<()> {
    let place = place(context, RTT)?;
    let mut copy = place.start_copy(context, way, "")?;
    place.wait_moved(&mut copy, way, MOVED_BYTES)?;
    place.line().change(|settings| settings.down = true);
    std::thread::sleep(outage);
    copy.alive().context("while the link is down")?;
    place.line().change(|settings| settings.down = false);
    finish(copy)?;
    place.compare(way)
}

/// The path becomes longer by far, and short again.
fn rtt_changes(context: &Context, way: Way) -> Result<()> {
    let place = place(context, RTT_SHORT)?;
    let mut copy = place.start_copy(context, way, "")?;
    for (bytes, rtt) in [(MOVED_BYTES / 2, RTT_LONG), (2 * MOVED_BYTES, RTT_SHORT)] {
        place.wait_moved(&mut copy, way, bytes)?;
        place.line().change(|settings| settings.delay = rtt / 2);
    }
    finish(copy)?;
    place.compare(way)
}

fn reordering(context: &Context, way: Way) -> Result<()> {
    let place = place(context, RTT)?;
    place.line().change(|settings| *settings = Settings { reorder: 0.01, ..*settings });
    let copy = place.start_copy(context, way, "")?;
    finish(copy)?;
    let reordered = [0, 1].map(|side| place.line().counters(side).reordered).iter().sum::<u64>();
    ensure!(reordered > 100, "only {reordered} segments were reordered");
    place.compare(way)
}

fn target_restarts(context: &Context, way: Way) -> Result<()> {
    let mut place = place(context, RTT)?;
    let mut copy = place.start_copy(context, way, "")?;
    place.wait_moved(&mut copy, way, MOVED_BYTES)?;
    place.kill_server();
    std::thread::sleep(RESTART_PAUSE);
    copy.alive().context("while the target is down")?;
    place.serve(context)?;
    let object = finish(copy)?.json()?;
    ensure!(object["retries"].as_u64() > Some(0), "no request was repeated: {object}");
    place.compare(way)
}

/// An outage longer than the endpoint's timeout: exit code 5, and the printed line ends the copy.
fn outage_outlasts_timeout(context: &Context, way: Way) -> Result<()> {
    let mut place = place(context, RTT)?;
    place.extend(JOURNAL_BYTES)?;
    if way == Way::Write {
        place.empty_lun()?;
    }
    place.serve(context)?;
    let mut copy = place.start_copy(context, way, ",timeout=3s")?;
    place.wait_moved(&mut copy, way, MOVED_BYTES)?;
    place.line().change(|settings| settings.down = true);
    let output = copy.finish(Duration::from_secs(60))?.orderly()?.expect(5)?;
    let error = output.json_error()?;
    let hint = error["hint"].as_str().context("no hint")?.to_owned();
    let start = hint.find("hikyaku copy ").with_context(|| format!("no command in the hint: {hint}"))?;
    ensure!(hint.contains("--resume"), "{hint}");
    place.line().change(|settings| settings.down = false);
    place.type_line(context, hint[start..].trim_end())?;
    place.compare(way)
}

pub(super) fn examine(context: &Context, cases: &mut Cases) {
    let rows: &[(&str, Fault)] = &[
        ("down-1-s", |context, way| link_down(context, way, Duration::from_secs(1))),
        ("down-10-s", |context, way| link_down(context, way, Duration::from_secs(10))),
        ("rtt-changes", rtt_changes),
        ("reordering", reordering),
        ("target-restarts", target_restarts),
        ("outage-outlasts-timeout", outage_outlasts_timeout),
    ];
    for (name, fault) in rows {
        for way in [Way::Write, Way::Read] {
            // A sample has one of the faults.
            let group = if *name == "down-10-s" { FULL_ONLY } else { ("faults", 1) };
            cases.check_some(group, &format!("{name}/{}", way.name()), || fault(context, way));
        }
    }
}
