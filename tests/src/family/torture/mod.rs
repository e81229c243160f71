//! `hikyaku torture` while its target is killed or stopped, its connections are cut and its power fails, repeatedly.

pub(super) mod scene;

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rand::RngExt;
use serde_json::Value;

use self::scene::{
    BYTES, CUT, Disturbance, KILL, LIFE_MS, LOGIN, POWER, READY_LIMIT, SLACK, STOP, Scene, Stand, TIMEOUT,
    TWO_CLIENTS,
};
use crate::files::empty_file;
use crate::process::Surroundings;
use crate::{Cases, Context, Disk, Output, Running, Tgt, Tier, find_program, scratch, wait_until};

const KILLS_MIN: usize = 1000;
/// A control that was not caught runs once more, longer by this factor.
const CONTROL_FACTOR: u64 = 8;

const SEVERAL_SESSIONS: &[&str] = &["--clients", "2", "--connections", "4"];
const SCENES: &[Scene] = &[
    Scene { weight: 3, ..KILL },
    Scene { name: "kill-three-clients", arguments: &["--clients", "3"], weight: 3, ..KILL },
    Scene { name: "kill-writethrough", options: ",cache=writethrough", weight: 2, ..KILL },
    Scene { name: "kill-4096-byte-blocks", options: ",block-size=4096", ..KILL },
    Scene { name: "kill-portable", portable: true, arguments: TWO_CLIENTS, weight: 2, ..KILL },
    Scene { arguments: TWO_CLIENTS, ..STOP },
    // The delay prolongs the checks before the clients' work, so that waiting clients can miss events meanwhile.
    Scene { name: "stop-slow", options: ",crash=never,delay=60ms", arguments: TWO_CLIENTS, ..STOP },
    Scene { arguments: TWO_CLIENTS, ..CUT },
    Scene { name: "cut-portable", portable: true, ..CUT },
    Scene { name: "kill-several-sessions", arguments: SEVERAL_SESSIONS, ..KILL },
    Scene { name: "cut-several-sessions", arguments: SEVERAL_SESSIONS, ..CUT },
    POWER,
    Scene { name: "power-writethrough", options: ",cache=writethrough", ..POWER },
    Scene { name: "power-portable", portable: true, ..POWER },
    Scene { name: "kill-sealed", seal: Some("AES-256-GCM"), arguments: TWO_CLIENTS, weight: 2, ..KILL },
    Scene { name: "kill-sealed-portable", seal: Some("AEGIS-128X2"), portable: true, ..KILL },
    Scene { name: "cut-sealed", seal: Some("AEGIS-256X4"), arguments: TWO_CLIENTS, ..CUT },
    Scene { name: "cut-sealed-portable", seal: Some("AES-256-GCM"), portable: true, ..CUT },
    Scene {
        name: "cut-several-sealed-sessions",
        seal: Some("AES-256-GCM"),
        arguments: SEVERAL_SESSIONS,
        ..CUT
    },
    Scene {
        name: "power-several-sessions",
        arguments: &["--clients", "2", "--cuts", "--connections", "4"],
        ..POWER
    },
    Scene { name: "stop-sealed", seal: Some("AES-256-GCM"), ..STOP },
    Scene { name: "power-sealed", seal: Some("ChaCha20-Poly1305"), ..POWER },
    // Control: losses without an announcement are detected.
    Scene { name: "power-unannounced-is-caught", arguments: TWO_CLIENTS, expect: 3, ..POWER },
];

/// Counts of all cases, which are the facts of the family.
#[derive(Debug, Default, serde::Serialize)]
pub(super) struct Sums {
    pub(super) kills: u64,
    stops: u64,
    pub(super) cuts: u64,
    pub(super) power_cuts: u64,
    tgt_kills: u64,
    torture_kills: u64,
    connections_lost: u64,
    pub(super) sectors_judged: u64,
    lost: u64,
}

impl Sums {
    fn add(&mut self, object: &Value) {
        let number = |name: &str| object[name].as_u64().unwrap_or(0);
        self.connections_lost += number("connections_lost");
        self.sectors_judged += number("sectors_judged");
        self.lost += number("violations");
    }
}

/// Demands the exit code `expect` and adds the counts of the report to `sums`.
fn verdict(output: Output, expect: i32, sums: &mut Sums) -> Result<()> {
    let output = output.expect(expect)?;
    let object = output.json().context("no verdict")?;
    let kept = object["kept"].as_bool() == Some(true);
    ensure!(kept == (expect == 0), "the verdict contradicts the exit code: {object}");
    if expect == 0 {
        sums.add(&object);
        ensure!(object["connections_lost"].as_u64() > Some(0), "it was never disturbed: {object}");
    }
    Ok(())
}

/// Plays a scene, and once more if it is a control that was not caught: a power cut may hit a moment without unflushed
/// writes, so that nothing is lost.
pub(super) fn judge(context: &Context, scene: &Scene, seconds: u64, sums: &mut Sums) -> Result<()> {
    let judged = judge_once(context, scene, seconds, sums);
    if scene.expect == 0 || judged.is_ok() {
        return judged;
    }
    judge_once(context, scene, CONTROL_FACTOR * seconds, sums)
}

fn judge_once(context: &Context, scene: &Scene, seconds: u64, sums: &mut Sums) -> Result<()> {
    let (output, disturbed) = scene::play(context, scene, seconds, &Surroundings::default())?;
    match scene.disturbance {
        Disturbance::None => {}
        Disturbance::Kill => sums.kills += disturbed,
        Disturbance::Stop => sums.stops += disturbed,
        Disturbance::Cut => sums.cuts += disturbed,
        Disturbance::Power => sums.power_cuts += if scene.expect == 0 { disturbed } else { 0 },
    }
    verdict(output, scene.expect, sums)
}

/// The program itself is killed, with its target or without; its log must be true.
fn torture_killed(context: &Context, rounds: usize, sums: &mut Sums) -> Result<()> {
    let mut rng = context.rng("torture/torture-killed");
    for round in 0..rounds {
        let stand = Stand::new(&Surroundings::default())?;
        let mut target = stand.serve(context, "")?;
        let (url, journal) = (stand.url(), stand.dir.path().join("journal"));
        let journal = journal.display().to_string();
        let arguments = ["--seconds", "60", "--clients", "2", "--journal", &journal];
        let mut torture = stand.torture(context, &url, &arguments, rng.random_range(0..1 << 32))?;
        let begun = wait_until(READY_LIMIT, || {
            torture.alive()?;
            Ok(fs::metadata(&journal).is_ok_and(|found| found.len() > 0))
        });
        begun.with_context(|| format!("it writes no journal\n{}", torture.stderr_tail()))?;
        std::thread::sleep(Duration::from_millis(rng.random_range(300..1500)));
        torture.alive()?;
        torture.signal(libc::SIGKILL)?;
        torture.finish(READY_LIMIT)?;
        sums.torture_kills += 1;
        if round % 2 == 1 {
            target.signal(libc::SIGKILL)?;
            target.finish(READY_LIMIT)?;
            sums.kills += 1;
            target = stand.serve(context, "")?;
        }
        let mut command = stand.command(context);
        command.args(["torture", &url, "--check", &journal, "--json"]);
        sums.add(&crate::run(&mut command, SLACK)?.success()?.json()?);
        drop(target);
    }
    Ok(())
}

fn tgt(context: &Context, seconds: u64, sums: &mut Sums) -> Result<()> {
    let mut rng = context.rng("torture/tgt");
    let dir = scratch()?;
    let file = empty_file(dir.path().join("disk.img"), BYTES)?;
    let disks = [Disk::file(&file)];
    let mut target = Tgt::serve(&disks, None)?;
    let mut command = context.command();
    let seed = rng.random_range(0..u64::from(u32::MAX)).to_string();
    let url = format!("{},{TIMEOUT}", target.url(0));
    command.args(["torture", &url, "--destroy", "--json", "--seed", &seed]);
    command.args(["--seconds", &seconds.to_string(), "--clients", "2"]);
    let mut torture = Running::start(&mut command)?;
    let calm = Instant::now() + Duration::from_secs(seconds) + SLACK / 4;
    std::thread::sleep(LOGIN);
    while !torture.ended() && Instant::now() < calm {
        std::thread::sleep(Duration::from_millis(rng.random_range(LIFE_MS)));
        target = target.killed_and_restarted(&disks)?;
        sums.tgt_kills += 1;
    }
    verdict(torture.finish(SLACK)?, 0, sums)
}

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    let unit = context.amount(2, 36) as u64;
    let (mut sums, mut complete) = (Sums::default(), 0);
    for scene in SCENES {
        let weight = if context.tier == Tier::Full { scene.weight } else { 1 };
        cases.check(scene.name, || {
            complete += 1;
            judge(context, scene, unit * weight, &mut sums)
        });
    }
    cases.check("torture-killed-its-journal-holds", || {
        complete += 1;
        torture_killed(context, context.amount(2, 20), &mut sums)
    });
    if find_program("tgtd").is_some() {
        cases.check("tgt-kill", || tgt(context, context.amount(3, 60) as u64, &mut sums));
    }
    cases.check_sum("a-thousand-kills", complete == SCENES.len() + 1, || {
        let least = context.amount(0, KILLS_MIN) as u64;
        demand!(sums.kills >= least, "the target was killed {} times only", sums.kills)
    });
    for (name, count) in serde_json::to_value(&sums)?.as_object().into_iter().flatten() {
        cases.fact(name, count.clone());
    }
    Ok(())
}
