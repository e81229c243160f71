//! `cargo xtask soak`: hours of copies, comparisons, load and session churn against one target, with its memory, descriptors and areas
//! recorded.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Parser as _;
use rand::RngExt;
use rand::rngs::StdRng;
use serde_json::{Value, json};

use harness::files::{empty_file, patchy_file, random_file, same_file};
use harness::load::{Load, busy};
use harness::pdu::{Session, connect};
use harness::process::Surroundings;
use harness::procfs::{descriptors, resident_bytes};
use harness::target::{MEMORY_LOG, Memory};
use harness::{Against, Context, Disk, Running, Served, Target, Tier, Url, scratch};
use harness::{evidence, random};
use steps::packages::{self, Purpose};

const BYTES: u64 = 64 << 20;
const COPY_LIMIT: Duration = Duration::from_secs(120);
/// Threads that open and close sessions, and the length of one round.
const CHURNERS: u8 = 4;
const CHURN_TIME: Duration = Duration::from_secs(2);
/// The LUN whose content never changes: sessions continuously read and rewrite it.
const STEADY_LUN: usize = 2;
const STEADY_SESSIONS: u8 = 8;
const STEADY_LOADS: [Load; 4] = [
    Load { name: "read-4k", writes: false, bytes: 4 << 10, depth: 8 },
    Load { name: "write-4k", writes: true, bytes: 4 << 10, depth: 8 },
    Load { name: "read-256k", writes: false, bytes: 256 << 10, depth: 4 },
    Load { name: "write-256k", writes: true, bytes: 256 << 10, depth: 4 },
];
/// Time limit for the target to release the sessions of a round.
const REST_LIMIT: Duration = Duration::from_secs(10);
/// Maximum number of samples; every second one is dropped at that number.
const SAMPLES_MAX: usize = 2000;
/// Permitted growth of the target's memory from the first quarter of the samples to the last, bytes.
const RESIDENT_GROWTH_MAX: u64 = 32 << 20;
const DESCRIPTOR_GROWTH_MAX: usize = 4;
/// A shorter run without findings is not recorded. The file states the length of the run.
const KEPT_HOURS_MIN: f64 = 0.25;
/// Rounds before the first counted sample.
const WARM_UP_ROUNDS: usize = 8;

/// Copies, comparisons and sessions for hours, watching the target's memory and descriptors
#[derive(Debug, clap::Parser)]
#[command(name = "cargo xtask soak")]
struct Args {
    /// How long; fractions are fine
    #[arg(long)]
    hours: f64,
    #[arg(long)]
    seed: Option<u64>,
    /// Use this program instead of building one
    #[arg(long, value_name = "PATH")]
    hikyaku: Option<std::path::PathBuf>,
}

struct Sample {
    seconds: f64,
    resident: u64,
    descriptors: usize,
    memory: Memory,
}

struct Scene<'a> {
    context: &'a Context,
    dir: &'a Path,
    served: Served,
    steady: Vec<u8>,
}

const INITIATOR: &str = "iqn.2026-11.org.example:soak";

/// Opens sessions and closes them in orderly and disorderly ways, as fast as possible. Returns their number.
fn churn(url: &Url, thread: u8, until: Instant, mut rng: StdRng) -> Result<usize> {
    let mut count = 0_usize;
    while Instant::now() < until {
        let isid = [0x80, 5, 5, thread, (count >> 8) as u8, count as u8];
        let mut session = Session::login(url, INITIATOR, isid)?;
        session.read(url.lun, rng.random_range(0..1000), 8)?;
        match rng.random_range(0..6) {
            // The connection is closed without a logout.
            0 => {}
            // The connection is closed during a command.
            1 => {
                let command = session.command(url.lun, &[0x28, 0, 0, 0, 0, 0, 0, 1, 0, 0], 256 * 512, &[]);
                session.send(&command)?;
            }
            // A second login with the same name and ISID replaces the session (RFC 7143 §6.3.5).
            2 => Session::login(url, INITIATOR, isid)?.logout()?,
            // A connection that never logs in.
            3 => {
                drop(connect(url, REST_LIMIT)?);
                session.logout()?;
            }
            _ => session.logout()?,
        }
        count += 1;
    }
    Ok(count)
}

fn copy_and_compare(scene: &Scene<'_>, url: &Url, rng: &mut StdRng) -> Result<()> {
    let (source, back) = (scene.dir.join("source.img"), scene.dir.join("back.img"));
    let (from, to, url) = (source.display().to_string(), back.display().to_string(), url.to_string());
    if rng.random() {
        random_file(&source, BYTES, rng.random())?;
    } else {
        patchy_file(&source, BYTES, rng.random())?;
    }
    let context = scene.context;
    context.ours(&["copy", "--force", "--verify", &from, &url], COPY_LIMIT)?.success()?;
    context.ours(&["compare", &from, &url], COPY_LIMIT)?.success()?;
    empty_file(&back, BYTES)?;
    context.ours(&["copy", "--force", &url, &to], COPY_LIMIT)?.success()?;
    same_file(&source, &back)
}

fn killed_copy(scene: &Scene<'_>, url: &Url, rng: &mut StdRng) -> Result<()> {
    let source = scene.dir.join("source.img");
    random_file(&source, BYTES, rng.random())?;
    let mut command = scene.context.command();
    command.args(["copy", "--force", "--rate", "40MB/s"]).arg(&source).arg(url.to_string());
    let mut copy = Running::start(&mut command)?;
    std::thread::sleep(Duration::from_millis(rng.random_range(50..1000)));
    copy.signal(libc::SIGKILL)?;
    copy.finish(COPY_LIMIT).map(|_| ())
}

/// Runs sessions that read and rewrite the steady LUN, sessions that are opened and closed, and with `copies` a copy.
fn mixed(scene: &Scene<'_>, url: &Url, rng: &mut StdRng, copies: bool) -> Result<String> {
    let until = Instant::now() + CHURN_TIME;
    let steady = scene.served.url(STEADY_LUN);
    std::thread::scope(|scope| {
        let mut busy_ones = Vec::new();
        for (number, load) in (0..STEADY_SESSIONS).zip(STEADY_LOADS.iter().cycle()) {
            let rng = random::seeded(rng.random());
            busy_ones.push(scope.spawn(move || {
                let mut session = Session::login(steady, INITIATOR, [0x80, 6, 6, 6, 0, number])?;
                session.read(steady.lun, 0, 8)?;
                let done =
                    busy(&mut session, steady.lun, *load, &scene.steady, until, rng).context(load.name)?;
                session.logout().map(|()| done.commands)
            }));
        }
        let churners: Vec<_> = (0..CHURNERS)
            .map(|thread| {
                let rng = random::seeded(rng.random());
                scope.spawn(move || churn(url, thread, until, rng).context("churn"))
            })
            .collect();
        let copied = if copies { copy_and_compare(scene, url, rng) } else { Ok(()) };
        let (mut commands, mut sessions) = (0, 0);
        for busy in busy_ones {
            commands += busy.join().expect("a session's thread panicked")?;
        }
        for churner in churners {
            sessions += churner.join().expect("a churning thread panicked")?;
        }
        copied?;
        let what = if copies { "copy, compare, copy back; " } else { "" };
        Ok(format!("{what}{commands} commands, {sessions} sessions"))
    })
}

fn round(scene: &Scene<'_>, number: usize) -> Result<String> {
    let mut rng = scene.context.rng(&format!("soak/{number}"));
    let url = scene.served.url(rng.random_range(0..2));
    match rng.random_range(0..5) {
        0 => mixed(scene, url, &mut rng, false),
        1 => killed_copy(scene, url, &mut rng).map(|()| "killed copy".into()),
        2 => copy_and_compare(scene, url, &mut rng).map(|()| "copy, compare, copy back".into()),
        _ => mixed(scene, url, &mut rng, true),
    }
}

fn run(args: &Args) -> Result<bool> {
    ensure!(args.hours > 0.0 && args.hours < 1000.0, "--hours wants a number between 0 and 1000");
    packages::ensure(Purpose::Test)?;
    let seed = args.seed.unwrap_or_else(steps::fresh_seed);
    println!("seed {seed}");
    let hikyaku = steps::build::binary(args.hikyaku.as_ref())?;
    // The commit and the date of the start: the tree may change during the run.
    let mut content = evidence::header("soak");
    let context = Context::new(hikyaku, seed, Tier::Full, Against::Ours)?;
    let dir = scratch()?;
    let (stored, steady) = (dir.path().join("stored.img"), dir.path().join("steady.img"));
    empty_file(&stored, BYTES)?;
    random_file(&steady, BYTES, context.seed_for("soak/steady"))?;
    let disks = [Disk::file(&stored), Disk::endpoint(format!("mem:{BYTES}")), Disk::file(&steady)];
    let surroundings = Surroundings::variable("HIKYAKU_LOG", MEMORY_LOG);
    let target = Target::serve_with(&context, &disks, None, &[], &surroundings)?;
    let mut scene = Scene {
        context: &context,
        dir: dir.path(),
        served: Served::Ours(target),
        steady: std::fs::read(&steady)?,
    };
    let pid = scene.served.pid();
    let started = Instant::now();
    let until = started + Duration::from_secs_f64(args.hours * 3600.0);
    let mut samples: Vec<Sample> = Vec::new();
    let (mut rounds, mut failure) = (0usize, None);
    let mut stride = 1;
    while Instant::now() < until {
        let result = round(&scene, rounds)
            .and_then(|what| Ok((what, scene.served.memory_at_rest(REST_LIMIT)?)))
            .with_context(|| format!("round {rounds} (seed {seed})"));
        match scene.served.blame(result) {
            Ok((what, memory)) => {
                let sample = Sample {
                    seconds: started.elapsed().as_secs_f64(),
                    resident: resident_bytes(pid)?,
                    descriptors: descriptors(pid)?,
                    memory,
                };
                println!(
                    "{:>8.0} s  round {rounds:<6} {:>6.1} MiB  {:>4} descriptors  {:>3} areas  {:>6.1} MiB mapped  {what}",
                    sample.seconds,
                    mib(sample.resident),
                    sample.descriptors,
                    memory.areas,
                    mib(memory.mapped_bytes),
                );
                if rounds >= WARM_UP_ROUNDS && rounds.is_multiple_of(stride) {
                    samples.push(sample);
                }
            }
            Err(error) => {
                println!("FAIL {error:#}");
                failure = Some(format!("{error:#}"));
                break;
            }
        }
        if samples.len() > SAMPLES_MAX {
            let mut index = 0;
            samples.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            stride *= 2;
        }
        rounds += 1;
    }
    let verdict = match failure {
        Some(failure) => Err(anyhow::anyhow!(failure)),
        None => judge(&samples),
    };
    content.insert("seeds".into(), json!([seed]));
    content.insert("hours".into(), json!(started.elapsed().as_secs_f64() / 3600.0));
    content.insert("rounds".into(), json!(rounds));
    content.insert("io".into(), json!(std::env::var("HIKYAKU_IO").unwrap_or_else(|_| "chosen".into())));
    content.insert(
        "failure".into(),
        verdict.as_ref().err().map_or(Value::Null, |error| json!(format!("{error:#}"))),
    );
    let row = |s: &Sample| {
        json!([s.seconds.round(), s.resident, s.descriptors, s.memory.areas, s.memory.mapped_bytes])
    };
    let rows: Vec<Value> = samples.iter().map(row).collect();
    let columns = ["seconds", "resident_bytes", "descriptors", "areas_lent", "pool_bytes"];
    content.insert("columns".into(), json!(columns));
    content.insert("rows".into(), Value::Array(rows));
    if args.hours >= KEPT_HOURS_MIN || verdict.is_err() {
        evidence::write("soak", &content)?;
    } else {
        println!("not kept: shorter than {KEPT_HOURS_MIN} hours");
    }
    match verdict {
        Ok(()) => println!("{rounds} rounds, nothing lost, nothing grew"),
        Err(ref error) => println!("FAIL {error:#}"),
    }
    Ok(verdict.is_ok())
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Compares the last quarter with the first. At rest the only borrowed areas are those that the threads keep.
fn judge(samples: &[Sample]) -> Result<()> {
    ensure!(samples.len() >= 8, "only {} samples after warming up: too short to judge growth", samples.len());
    let quarter = samples.len() / 4;
    let (first, last) = (&samples[..quarter], &samples[samples.len() - quarter..]);
    let resident = |part: &[Sample]| part.iter().map(|sample| sample.resident).max().unwrap_or(0);
    let open = |part: &[Sample]| part.iter().map(|sample| sample.descriptors).min().unwrap_or(0);
    let (before, after) = (resident(first), resident(last));
    ensure!(after <= before + RESIDENT_GROWTH_MAX, "memory grew from {before} to {after} bytes");
    let areas = |part: &[Sample]| part.iter().map(|sample| sample.memory.areas).min().unwrap_or(0);
    let (before, after) = (areas(first), areas(last));
    ensure!(after <= before, "areas borrowed at rest grew from {before} to {after}");
    let (before, after) = (open(first), open(last));
    ensure!(after <= before + DESCRIPTOR_GROWTH_MAX, "descriptors grew from {before} to {after}");
    Ok(())
}

fn main() -> ExitCode {
    steps::exit("soak", run(&Args::parse()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_judged() {
        let series = |grow: fn(&mut Sample, u64)| -> Vec<Sample> {
            let flat = |_| Sample {
                seconds: 0.0,
                resident: 50 << 20,
                descriptors: 10,
                memory: Memory { areas: 2, mapped_bytes: 8 << 20 },
            };
            let mut samples: Vec<Sample> = (0..100).map(flat).collect();
            (0..).zip(&mut samples).for_each(|(at, sample)| grow(sample, at));
            samples
        };
        assert!(judge(&series(|_, _| ())).is_ok());
        assert!(judge(&series(|sample, at| sample.resident += at << 20)).is_err());
        assert!(judge(&series(|sample, at| sample.descriptors += at as usize)).is_err());
        assert!(judge(&series(|sample, at| sample.memory.areas += at / 50)).is_err());
        assert!(judge(&[]).is_err());
    }
}
