//! Hours of copies, comparisons and session churn against one target, with its memory and descriptors recorded.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rand::RngExt;
use serde_json::{Value, json};

use crate::harness::files::{empty_file, patchy_file, random_file, same_file};
use crate::harness::pdu::Session;
use crate::harness::procfs::{descriptors, resident_bytes};
use crate::harness::{Against, Context, Disk, Running, Served, Tier, scratch};
use crate::{evidence, install, suite};

const BYTES: u64 = 64 << 20;
const COPY_LIMIT: Duration = Duration::from_secs(120);
/// Sessions opened and closed in one round of churn.
const CHURN: usize = 100;
/// Samples kept; when there are more, every second one is dropped.
const SAMPLES_MAX: usize = 2000;
/// Growth of the target's memory from the first quarter of the samples to the last that is no leak.
const RESIDENT_GROWTH_MAX: u64 = 32 << 20;
const DESCRIPTOR_GROWTH_MAX: usize = 4;
/// A shorter run that found nothing is no evidence.
const KEPT_HOURS_MIN: f64 = 1.0;
/// Rounds before the first sample counts.
const WARM_UP_ROUNDS: usize = 8;

/// Options of `cargo xtask soak`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
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
}

fn round(
    context: &Context,
    served: &mut Served,
    number: usize,
    dir: &std::path::Path,
) -> Result<&'static str> {
    let mut rng = context.rng(&format!("soak/{number}"));
    let seed = rng.random();
    let (source, back) = (dir.join("source.img"), dir.join("back.img"));
    let lun = rng.random_range(0..2);
    let url = served.url(lun).to_string();
    let (from, to) = (source.display().to_string(), back.display().to_string());
    match rng.random_range(0..5) {
        0 => {
            let isid = |index: usize| [0x80, 5, 5, 5, (index >> 8) as u8, index as u8];
            for index in 0..CHURN {
                let mut session =
                    Session::login(served.url(lun), "iqn.2026-11.org.example:soak", isid(index))?;
                session.read(lun as u64, rng.random_range(0..1000), 8)?;
                // Every third leaves without a word.
                if index % 3 > 0 {
                    session.logout()?;
                }
            }
            Ok("churn")
        }
        1 => {
            random_file(&source, BYTES, seed)?;
            let mut command = context.command();
            command.args(["copy", "--force", "--rate", "40MB/s", &from, &url]);
            let mut copy = Running::start(&mut command)?;
            std::thread::sleep(Duration::from_millis(rng.random_range(50..1000)));
            copy.signal(libc::SIGKILL)?;
            copy.finish(COPY_LIMIT)?;
            Ok("killed copy")
        }
        _ => {
            if rng.random() {
                random_file(&source, BYTES, seed)?;
            } else {
                patchy_file(&source, BYTES, seed)?;
            }
            context.ours(&["copy", "--force", "--verify", &from, &url], COPY_LIMIT)?.success()?;
            context.ours(&["compare", &from, &url], COPY_LIMIT)?.success()?;
            empty_file(&back, BYTES)?;
            context.ours(&["copy", "--force", &url, &to], COPY_LIMIT)?.success()?;
            same_file(&source, &back)?;
            Ok("copy, compare, copy back")
        }
    }
}

/// `cargo xtask soak`.
pub(crate) fn run(args: &Args) -> Result<bool> {
    ensure!(args.hours > 0.0 && args.hours < 1000.0, "--hours wants a number between 0 and 1000");
    install::ensure(install::Purpose::Test)?;
    let seed = args.seed.unwrap_or_else(suite::fresh_seed);
    println!("seed {seed}");
    let hikyaku = suite::binary(args.hikyaku.as_ref())?;
    let context = suite::context(hikyaku, seed, Tier::Full, Against::Ours)?;
    let dir = scratch()?;
    let stored = dir.path().join("stored.img");
    empty_file(&stored, BYTES)?;
    let mut served = context.serve(&[Disk::file(&stored), Disk::endpoint(format!("mem:{BYTES}"))], None)?;
    let pid = served.pid();
    let started = Instant::now();
    let until = started + Duration::from_secs_f64(args.hours * 3600.0);
    let mut samples: Vec<Sample> = Vec::new();
    let (mut rounds, mut failure) = (0usize, None);
    let mut stride = 1;
    while Instant::now() < until {
        let result = round(&context, &mut served, rounds, dir.path());
        match served.blame(result).with_context(|| format!("round {rounds} (seed {seed})")) {
            Ok(what) => {
                let sample = Sample {
                    seconds: started.elapsed().as_secs_f64(),
                    resident: resident_bytes(pid)?,
                    descriptors: descriptors(pid)?,
                };
                println!(
                    "{:>8.0} s  round {rounds:<6} {:>6.1} MiB  {:>4} descriptors  {what}",
                    sample.seconds,
                    sample.resident as f64 / 1048576.0,
                    sample.descriptors
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
    let mut content = evidence::header("soak");
    content.insert("seeds".into(), json!([seed]));
    content.insert("hours".into(), json!(started.elapsed().as_secs_f64() / 3600.0));
    content.insert("rounds".into(), json!(rounds));
    content.insert(
        "failure".into(),
        verdict.as_ref().err().map_or(Value::Null, |error| json!(format!("{error:#}"))),
    );
    let rows: Vec<Value> =
        samples.iter().map(|s| json!([s.seconds.round(), s.resident, s.descriptors])).collect();
    content.insert("columns".into(), json!(["seconds", "resident_bytes", "descriptors"]));
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

/// Compares the last quarter with the first.
fn judge(samples: &[Sample]) -> Result<()> {
    if samples.len() < 8 {
        bail!("only {} samples after warming up: too short to judge growth", samples.len());
    }
    let quarter = samples.len() / 4;
    let (first, last) = (&samples[..quarter], &samples[samples.len() - quarter..]);
    let resident = |part: &[Sample]| part.iter().map(|sample| sample.resident).max().unwrap_or(0);
    let open = |part: &[Sample]| part.iter().map(|sample| sample.descriptors).min().unwrap_or(0);
    let (before, after) = (resident(first), resident(last));
    ensure!(after <= before + RESIDENT_GROWTH_MAX, "memory grew from {before} to {after} bytes");
    let (before, after) = (open(first), open(last));
    ensure!(after <= before + DESCRIPTOR_GROWTH_MAX, "descriptors grew from {before} to {after}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_judged() {
        let series = |resident: fn(u64) -> u64, open: fn(usize) -> usize| -> Vec<Sample> {
            (0..100)
                .map(|at| Sample { seconds: 0.0, resident: resident(at), descriptors: open(at as usize) })
                .collect()
        };
        assert!(judge(&series(|_| 50 << 20, |_| 10)).is_ok());
        assert!(judge(&series(|at| at << 20, |_| 10)).is_err());
        assert!(judge(&series(|_| 50 << 20, |at| at)).is_err());
        assert!(judge(&[]).is_err());
    }
}
