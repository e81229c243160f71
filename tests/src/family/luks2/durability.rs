//! What was flushed through a volume survives kills and power cuts, and a cut while the header changes leaves the old
//! passphrase or the new one.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use rand::RngExt;

use super::desk::{BYTES, CHEAP, Desk, VOLUME};
use crate::family::torture::scene::{CUT, KILL, Opener, POWER, Scene, TWO_CLIENTS};
use crate::family::torture::{Sums, judge};
use crate::files::same_file;
use crate::{Cases, Context, Running};

/// Writes of a header's change, at most: a case that meets more of them does not end.
const WRITES_MAX: u64 = 2000;

const TARGET: Scene = Scene { volume: Some(Opener::Target), ..POWER };
const SCENES: &[Scene] = &[
    Scene { name: "power", ..TARGET },
    Scene { name: "power-portable", portable: true, ..TARGET },
    Scene { name: "power-initiator", volume: Some(Opener::Initiator), ..POWER },
    Scene { name: "kill", volume: Some(Opener::Target), ..KILL },
    Scene { name: "kill-initiator", volume: Some(Opener::Initiator), arguments: TWO_CLIENTS, ..KILL },
    Scene { name: "kill-initiator-portable", volume: Some(Opener::Initiator), portable: true, ..KILL },
    Scene { name: "cut-initiator", volume: Some(Opener::Initiator), arguments: TWO_CLIENTS, ..CUT },
    Scene {
        name: "kill-4096-byte-blocks",
        options: ",block-size=4096",
        volume: Some(Opener::Target),
        ..KILL
    },
    // Control: losses without an announcement are detected through the volume too.
    Scene { name: "power-unannounced-is-caught", arguments: TWO_CLIENTS, expect: 3, ..TARGET },
];

/// A change of the header: its arguments behind the endpoint, and the passphrases before and after it.
struct Change {
    name: &'static str,
    command: &'static str,
    arguments: &'static str,
    before: &'static [&'static str],
    after: &'static [&'static str],
}

const CHANGES: &[Change] = &[
    Change {
        name: "passwd",
        command: "passwd",
        arguments: "--password-file pw --new-password-file new",
        before: &["pw"],
        after: &["new"],
    },
    Change {
        name: "key-add",
        command: "key add",
        arguments: "--password-file pw --new-password-file new",
        before: &["pw"],
        after: &["pw", "new"],
    },
    Change {
        name: "key-remove",
        command: "key remove",
        arguments: "--password-file new",
        before: &["pw", "new"],
        after: &["pw"],
    },
];

/// The power fails at writes of a change, drawn from all of them. Both programs then open the volume by the passphrases
/// of before or of after the change; `passwd` may leave both.
fn cut_header(context: &Context, change: &Change, unit: u32) -> Result<()> {
    let Change { name, command, arguments, before, after } = change;
    let desk = Desk::new(context)?;
    desk.random("plain.img", BYTES)?;
    desk.format("kept.img", BYTES, "")?;
    desk.ours(&format!("copy plain.img kept.img,{VOLUME}"))?;
    if before.len() == 2 {
        desk.ours(&format!("volume key add kept.img --password-file pw --new-password-file new {CHEAP}"))?;
    }
    let costs = if name.ends_with("remove") { "" } else { CHEAP };
    let mut rng = context.rng(&format!("luks2/cut/{name}"));
    let mut run = |after: u64| -> Result<bool> {
        fs::copy(desk.path("kept.img"), desk.path("x.img"))?;
        let crash = format!("crash=after={after}:seed={}:unit={unit}", rng.random_range(0..1_000_000));
        let line = format!("volume {command} x.img,{crash} {arguments} {costs}");
        let output = desk.try_ours(&line)?;
        let is_cut = output.code == Some(137);
        if !is_cut {
            output.success()?;
        }
        Ok(is_cut)
    };
    // The number of writes, by bisection: a cut at the last one is the last that happens.
    ensure!(!run(WRITES_MAX)?, "more than {WRITES_MAX} writes");
    let (mut cut, mut whole) = (0, WRITES_MAX);
    while whole - cut > 1 {
        let middle = u64::midpoint(cut, whole);
        if run(middle)? {
            cut = middle;
        } else {
            whole = middle;
        }
    }
    ensure!(cut >= 3, "a change of {cut} writes: a slot and two headers are three");
    let mut places: Vec<u64> = (1..=cut).collect();
    rand::seq::SliceRandom::shuffle(&mut places[..], &mut context.rng("luks2/cut/places"));
    for number in places.iter().cycle().take(context.amount(6, 200)) {
        let told = format!("cut at write {number} of {cut}");
        ensure!(run(*number)?, "{told}: it was not");
        let opened: Vec<&str> =
            ["pw", "new"].into_iter().filter(|secret| desk.opens("x.img", secret).unwrap_or(false)).collect();
        let is_kept = opened == *before || opened == *after || (*name == "passwd" && opened == ["pw", "new"]);
        ensure!(is_kept, "{told}: cryptsetup opens it with {opened:?}");
        desk.opens_with("x.img", &opened).context(told)?;
        desk.ours(&format!("compare plain.img x.img,volume=luks2,password-file={}", opened[0]))?;
        // The change is made again.
        if opened == *before {
            desk.ours(&format!("volume {command} x.img {arguments} {costs}"))?;
            desk.opens_with("x.img", after)?;
        }
    }
    Ok(())
}

/// A copy into a volume is killed at any moment. The volume opens, and the next copy completes it.
fn copy_killed(context: &Context) -> Result<()> {
    const LONG: u64 = 24 << 20;
    let desk = Desk::new(context)?;
    let plain = desk.random("plain.img", LONG)?;
    desk.format("x.img", LONG, "")?;
    let mut rng = context.rng("luks2/killed");
    for _ in 0..context.amount(3, 40) {
        let mut copy =
            Running::start(&mut desk.command(&format!("copy plain.img x.img,{VOLUME} --rate 100MB/s")))?;
        std::thread::sleep(std::time::Duration::from_millis(rng.random_range(20..250)));
        // It may have ended already.
        let _ = copy.signal(libc::SIGKILL);
        copy.finish(super::desk::LIMIT)?;
        desk.ours(&format!("info x.img,{VOLUME}"))?;
    }
    desk.ours(&format!("copy plain.img x.img,{VOLUME} --verify --force"))?;
    desk.ours(&format!("copy x.img,{VOLUME} back.img"))?;
    same_file(&plain, &desk.path("back.img"))
}

pub(super) fn examine(context: &Context, cases: &mut Cases) {
    for change in CHANGES {
        for unit in [512, 4096] {
            let name = format!("cut-{}-unit-{unit}", change.name);
            cases.check_some(("cuts", 2), &name, || cut_header(context, change, unit));
        }
    }
    cases.check("copy-killed", || copy_killed(context));
    let seconds = context.amount(2, 30) as u64;
    let mut sums = Sums::default();
    for scene in SCENES {
        cases.check_some(("torture", 2), &format!("torture-{}", scene.name), || {
            judge(context, scene, seconds, &mut sums)
        });
    }
    cases.fact("power_cuts", sums.power_cuts);
    cases.fact("kills", sums.kills);
    cases.fact("connections_cut", sums.cuts);
    cases.fact("sectors_judged", sums.sectors_judged);
}
