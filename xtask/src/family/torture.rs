//! `hikyaku torture` while its target is killed, its connections are cut and its power fails, again and again.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rand::RngExt;
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::files::empty_file;
use crate::harness::relay::Relay;
use crate::harness::{Cases, Context, Disk, Output, Running, Tgt, Tier, find_program, free_port, scratch};

const BYTES: u64 = 8 << 20;
const IQN: &str = "iqn.2026-11.org.example:torture";
/// Patience of the sessions, in seconds.
const TIMEOUT: &str = "timeout=20s";
const READY_LIMIT: Duration = Duration::from_secs(20);
/// Beyond the time that the clients work, for filling, checking and coming back.
const SLACK: Duration = Duration::from_secs(120);
/// How long a target lives until it is disturbed, in milliseconds.
const LIFE_MS: std::ops::Range<u64> = 100..400;
/// Until the sessions are there; a login that fails at once is another test.
const LOGIN: Duration = Duration::from_secs(1);
/// Kills of a full run.
const KILLS_MIN: u64 = 1000;

/// What happens to the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disturbance {
    /// SIGKILL, and a new one on the same port.
    Kill,
    /// Its connections are cut.
    Cut,
    /// The crash layer ends it like a machine without power.
    Power,
}

/// One way to torture.
#[derive(Clone, Copy, Debug)]
struct Scene {
    name: &'static str,
    disturbance: Disturbance,
    /// Of the LUN.
    options: &'static str,
    arguments: &'static [&'static str],
    portable: bool,
    /// Share of the family's time.
    weight: u64,
    /// Exit code of `torture`.
    expect: i32,
}

const KILL: Scene = Scene {
    name: "kill",
    disturbance: Disturbance::Kill,
    options: "",
    arguments: &[],
    portable: false,
    weight: 1,
    expect: 0,
};
const POWER: Scene = Scene {
    name: "power",
    disturbance: Disturbance::Power,
    arguments: &["--clients", "2", "--cuts"],
    ..KILL
};

const SCENES: &[Scene] = &[
    Scene { weight: 3, ..KILL },
    Scene { name: "kill-three-clients", arguments: &["--clients", "3"], weight: 3, ..KILL },
    Scene { name: "kill-writethrough", options: ",cache=writethrough", weight: 2, ..KILL },
    Scene { name: "kill-4096-byte-blocks", options: ",block-size=4096", ..KILL },
    Scene { name: "kill-portable", portable: true, arguments: &["--clients", "2"], weight: 2, ..KILL },
    Scene { name: "cut", disturbance: Disturbance::Cut, arguments: &["--clients", "2"], ..KILL },
    Scene { name: "cut-portable", disturbance: Disturbance::Cut, portable: true, ..KILL },
    POWER,
    Scene { name: "power-writethrough", options: ",cache=writethrough", ..POWER },
    Scene { name: "power-portable", portable: true, ..POWER },
    // The test of the test: losses that nobody announced are found.
    Scene { name: "power-unannounced-is-caught", arguments: &["--clients", "2"], expect: 3, ..POWER },
];

/// Sums over all scenes.
#[derive(Debug, Default)]
struct Sums {
    kills: u64,
    cuts: u64,
    power_cuts: u64,
    tgt_kills: u64,
    torture_kills: u64,
    connections_lost: u64,
    sectors_judged: u64,
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

/// A directory, a file in it, and a target that can be started on it again and again.
struct Stand {
    dir: TempDir,
    file: PathBuf,
    port: u16,
    portable: bool,
}

impl Stand {
    fn new(portable: bool) -> Result<Self> {
        let dir = scratch()?;
        let file = dir.path().join("disk.img");
        empty_file(&file, BYTES)?;
        Ok(Self { dir, file, port: free_port()?, portable })
    }

    fn command(&self, context: &Context) -> std::process::Command {
        let mut command = context.command_in(self.dir.path());
        if self.portable {
            command.env("HIKYAKU_IO", "portable");
        }
        command
    }

    fn serve(&self, context: &Context, options: &str) -> Result<Running> {
        let mut command = self.command(context);
        command.args(["serve", "--iqn", IQN, "--listen", &format!("127.0.0.1:{}", self.port)]);
        command.arg(format!("{}{options}", self.file.display()));
        let mut running = Running::start(&mut command)?;
        running.wait_stdout("URL", READY_LIMIT, |text| text.contains('\n').then_some(()))?;
        Ok(running)
    }

    fn torture(&self, context: &Context, url: &str, arguments: &[&str], seed: u64) -> Result<Running> {
        let mut command = self.command(context);
        command.args(["torture", url, "--destroy", "--json", "--seed", &seed.to_string()]).args(arguments);
        Running::start(&mut command)
    }
}

fn url(portal: &str) -> String {
    format!("iscsi://{portal}/{IQN}/0,{TIMEOUT}")
}

/// The verdict, which must be `expect`.
fn verdict(output: Output, expect: i32, sums: &mut Sums) -> Result<()> {
    let output = output.expect(expect)?;
    let line = output.stdout.lines().last().context("no verdict")?;
    let object: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
    let kept = object["kept"].as_bool() == Some(true);
    ensure!(kept == (expect == 0), "the verdict contradicts the exit code: {line}");
    if expect == 0 {
        sums.add(&object);
        ensure!(object["connections_lost"].as_u64() > Some(0), "it was never disturbed: {line}");
    }
    Ok(())
}

fn play(context: &Context, scene: &Scene, seconds: u64, sums: &mut Sums) -> Result<()> {
    let mut rng = context.rng(&format!("torture/{}", scene.name));
    let stand = Stand::new(scene.portable)?;
    let options = |rng: &mut rand::rngs::StdRng| match scene.disturbance {
        Disturbance::Power => {
            format!("{},crash=every=300:seed={}", scene.options, rng.random_range(0..1_000_000u32))
        }
        _ => scene.options.to_owned(),
    };
    let mut target = stand.serve(context, &options(&mut rng))?;
    let relay = Relay::start(stand.port)?;
    let portal = match scene.disturbance {
        Disturbance::Cut => relay.portal(),
        _ => format!("127.0.0.1:{}", stand.port),
    };
    let seed = rng.random_range(0..u64::from(u32::MAX));
    let time = seconds.to_string();
    let arguments = [&["--seconds", &time], scene.arguments].concat();
    let mut torture = stand.torture(context, &url(&portal), &arguments, seed)?;
    // Near the end it is left alone, to come to an end at all.
    let calm = Instant::now() + Duration::from_secs(seconds) + SLACK / 4;
    let mut next = Instant::now() + LOGIN;
    while !torture.ended() && Instant::now() < calm {
        std::thread::sleep(Duration::from_millis(2));
        if scene.disturbance == Disturbance::Power {
            if target.ended() {
                target.finish(READY_LIMIT)?.expect(137)?;
                sums.power_cuts += u64::from(scene.expect == 0);
                target = stand.serve(context, &options(&mut rng))?;
            }
            continue;
        }
        if Instant::now() < next {
            continue;
        }
        next = Instant::now() + Duration::from_millis(rng.random_range(LIFE_MS));
        if scene.disturbance == Disturbance::Cut {
            sums.cuts += relay.cut() as u64;
            continue;
        }
        target.signal(libc::SIGKILL)?;
        target.finish(READY_LIMIT)?;
        sums.kills += 1;
        target = stand.serve(context, scene.options)?;
    }
    if target.ended() {
        let log = target.finish(READY_LIMIT)?;
        target = stand.serve(context, scene.options).with_context(|| log.stderr)?;
    }
    let result = verdict(torture.finish(SLACK)?, scene.expect, sums);
    drop(target);
    result
}

/// The program itself dies, with its target or without; what it wrote down must be true.
fn torture_killed(context: &Context, rounds: usize, sums: &mut Sums) -> Result<()> {
    let mut rng = context.rng("torture/torture-killed");
    for round in 0..rounds {
        let stand = Stand::new(false)?;
        let mut target = stand.serve(context, "")?;
        let (url, journal) = (url(&format!("127.0.0.1:{}", stand.port)), stand.dir.path().join("journal"));
        let journal = journal.display().to_string();
        let arguments = ["--seconds", "60", "--clients", "2", "--journal", &journal];
        let mut torture = stand.torture(context, &url, &arguments, rng.random_range(0..1 << 32))?;
        std::thread::sleep(Duration::from_millis(rng.random_range(300..1500)));
        ensure!(!torture.ended(), "it ended by itself\n{}", torture.stderr_tail());
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
        let output = crate::harness::run(&mut command, SLACK)?.success()?;
        let object: Value = serde_json::from_str(output.stdout.lines().last().context("no verdict")?)?;
        sums.add(&object);
        drop(target);
    }
    Ok(())
}

fn tgt(context: &Context, seconds: u64, sums: &mut Sums) -> Result<()> {
    let mut rng = context.rng("torture/tgt");
    let dir = scratch()?;
    let file = dir.path().join("disk.img");
    empty_file(&file, BYTES)?;
    let disks = [Disk::file(Path::new(&file))];
    let mut target = Tgt::serve(&disks, None)?;
    let mut command = context.command();
    let seed = rng.random_range(0..u64::from(u32::MAX)).to_string();
    command.args([
        "torture",
        &format!("{},{TIMEOUT}", target.url(0)),
        "--destroy",
        "--json",
        "--seed",
        &seed,
    ]);
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
    let unit = context.amount(3, 36) as u64;
    let mut sums = Sums::default();
    for scene in SCENES {
        let weight = if context.tier == Tier::Full { scene.weight } else { 1 };
        cases.check(scene.name, || play(context, scene, unit * weight, &mut sums));
    }
    cases.check("torture-killed-its-journal-holds", || {
        torture_killed(context, context.amount(2, 20), &mut sums)
    });
    if find_program("tgtd").is_some() {
        cases.check("tgt-kill", || tgt(context, context.amount(3, 60) as u64, &mut sums));
    }
    if context.tier == Tier::Full {
        cases.check("a-thousand-kills", || {
            if sums.kills < KILLS_MIN {
                bail!("the target was killed {} times only", sums.kills);
            }
            Ok(())
        });
    }
    println!(
        "  {} kills of our target, {} of tgt, {} of torture; {} connections cut, {} power cuts; {} connections lost, \
         {} sectors judged, {} lost",
        sums.kills,
        sums.tgt_kills,
        sums.torture_kills,
        sums.cuts,
        sums.power_cuts,
        sums.connections_lost,
        sums.sectors_judged,
        sums.lost
    );
    for (name, value) in [
        ("kills", sums.kills),
        ("tgt_kills", sums.tgt_kills),
        ("torture_kills", sums.torture_kills),
        ("cuts", sums.cuts),
        ("power_cuts", sums.power_cuts),
        ("connections_lost", sums.connections_lost),
        ("sectors_judged", sums.sectors_judged),
        ("lost", sums.lost),
    ] {
        cases.fact(name, value);
    }
    Ok(())
}
