//! `watch` with the feature `bpf`: losses on an emulated path are counted one by one, and the congestion window at each
//! segment is the one that samples show.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lab::wan::{ADDRESSES, Options, Settings, Wan, obstacle};
use monitor::Sample;
use monitor::event::Side;
use monitor::record::{Entry, Reader};
use serde_json::Value;
use steps::build::{must, target_directory};
use steps::cargo;

use super::{BYTES, LIMIT, objects};
use crate::process::Surroundings;
use crate::{Context, Running, Server, run, scratch};

const TYPES: &str = "/sys/kernel/btf/vmlinux";
const RTT: Duration = Duration::from_millis(20);
const BITS_PER_S: f64 = 100e6;
const RATE: &str = "4MB/s";
const PORT: u16 = 3260;
/// The command watches before, while and after segments are lost.
const WATCHED: &str = "9s";
const BEFORE: Duration = Duration::from_secs(3);
const LOSSY: Duration = Duration::from_secs(3);
const LOSS: f64 = 0.01;
const LOST_MIN: u64 = 20;
/// Share of samples that have the window of a segment before or after them. A window also changes by time alone.
const EQUAL_MIN: f64 = 0.99;
/// A sample is taken up to this time after its time stamp.
const STAMP_NS: u64 = 300_000;
const EVENTS_PER_SAMPLE_MIN: usize = 2;

/// Why nothing can be examined here.
pub(super) fn missing() -> Option<String> {
    obstacle().or_else(|| (!Path::new(TYPES).exists()).then(|| format!("this kernel has no {TYPES}")))
}

fn has_feature(hikyaku: &Path) -> Result<bool> {
    let output = run(Command::new(hikyaku).args(["watch", "--help"]), LIMIT)?.success()?;
    Ok(output.stdout.contains("--events"))
}

/// A program with the feature: the one that is examined, or one that is built for this.
fn program(context: &Context, dir: &Path) -> Result<PathBuf> {
    if has_feature(&context.hikyaku)? {
        return Ok(context.hikyaku.clone());
    }
    must(&mut cargo(&["build", "--quiet", "--package", "hikyaku", "--features", "bpf"]))?;
    // The next build without the feature replaces the file there. The state of servers is in `hikyaku` beside it.
    let programs = dir.join("bin");
    std::fs::create_dir(&programs)?;
    let copy = programs.join("hikyaku");
    std::fs::copy(target_directory()?.join("debug/hikyaku"), &copy)?;
    Ok(copy)
}

pub(super) fn losses(context: &Context) -> Result<()> {
    let dir = scratch()?;
    let hikyaku = program(context, dir.path())?;
    let options = Options {
        seed: context.seed_for("watch-events"),
        ..Options::new(Settings::new(RTT, Some(BITS_PER_S)))
    };
    let wan = Wan::start(&options.ipv4("tcp_congestion_control", "cubic"))?;
    let within = |side: usize| {
        let mut command = Command::new(&hikyaku);
        command.current_dir(dir.path()).env("XDG_STATE_HOME", dir.path()).env("XDG_RUNTIME_DIR", dir.path());
        Surroundings::network(wan.side(side).name()).apply(&mut command);
        command
    };
    let portal = format!("{}:{PORT}", ADDRESSES[1]);
    let mut command = within(1);
    let server = Server::start(
        command.args(["serve", &format!("mem:{BYTES}"), "--listen", &portal, "--seal", "off"]),
        1,
    )?;
    let mut command = within(0);
    let (source, url) = (format!("pattern:{BYTES}"), server.url.to_string());
    command.args(["copy", &source, &url, "--rate", RATE, "--force", "--quiet"]);
    let copy = Running::start(&mut command)?;
    let mut command = within(0);
    command.args(["watch", &portal, "--json", "--interval", "100ms", "--for", WATCHED, "--record", "a.rec"]);
    let watch = Running::start(&mut command)?;
    std::thread::sleep(BEFORE);
    for (loss, time) in [(LOSS, LOSSY), (0.0, Duration::ZERO)] {
        let settings = Settings { loss, ..wan.line().settings(0) };
        wan.line().set(0, settings);
        std::thread::sleep(time);
    }
    let output = watch.finish(LIMIT)?.success()?;
    drop(copy);
    counted(&objects(&output)?)?;
    windows(&dir.path().join("a.rec"))
}

/// The retransmissions of the events are those of `tcp_info`.
fn counted(objects: &[Value]) -> Result<()> {
    let first = objects.first().context("no connection")?;
    let last = objects.last().context("no connection")?;
    let number = |object: &Value, path: &str| {
        object.pointer(path).and_then(Value::as_u64).with_context(|| format!("{path} in {object}"))
    };
    ensure!(number(first, "/events/retransmissions")? == 0, "nothing was lost yet: {first}");
    let total = number(last, "/sample/total_retrans")? - number(first, "/sample/total_retrans")?;
    ensure!(total >= LOST_MIN, "{total} segments of {LOSS} were lost");
    let found = number(last, "/events/retransmitted_segments")?;
    ensure!(found == total && number(last, "/events/dropped")? == 0, "{found} of {total} in {last}");
    let bytes = number(last, "/sample/bytes_retrans")? - number(first, "/sample/bytes_retrans")?;
    ensure!(number(last, "/events/retransmitted_bytes")? == bytes, "{bytes} in {last}");
    ensure!(number(last, "/events/recoveries")? > 0, "{last}");
    let latest = last["events"]["latest_retransmissions"].as_array().context("no list")?;
    demand!(latest.len() == 16 && latest.iter().all(|one| one["bytes"].as_u64() > Some(0)), "{latest:?}")
}

/// Each sample has the congestion window of the last segment before it or the first one after it: a program in the kernel
/// sees the window before its segment changes it.
fn windows(recording: &Path) -> Result<()> {
    let mut reader = Reader::new(File::open(recording)?);
    let (mut samples, mut segments): (Vec<Sample>, Vec<Sample>) = (Vec::new(), Vec::new());
    while let Some(entry) = reader.next_entry()? {
        match entry {
            Entry::Flow(_, flow) => ensure!(flow.side == Side::Initiator, "{flow:?}"),
            Entry::Sample(_, segment) if segment.is_of_event() => segments.push(segment),
            Entry::Sample(_, sample) => samples.push(sample),
            Entry::Cpu(..) | Entry::Event(..) => {}
        }
    }
    ensure!(segments.is_sorted_by_key(|segment| segment.at_ns));
    let (first, last) = segments.first().zip(segments.last()).context("no segments")?;
    samples.retain(|sample| (first.at_ns..last.at_ns).contains(&sample.at_ns));
    ensure!(
        samples.len() > 100 && segments.len() > EVENTS_PER_SAMPLE_MIN * samples.len(),
        "{} samples, {} segments",
        samples.len(),
        segments.len()
    );
    let known = |sample: &Sample| (sample.cwnd_segments, sample.ssthresh_segments);
    let is_equal = |sample: &&Sample| {
        let before = segments.partition_point(|segment| segment.at_ns <= sample.at_ns).saturating_sub(1);
        let until = segments.partition_point(|segment| segment.at_ns <= sample.at_ns + STAMP_NS);
        segments[before..=until.min(segments.len() - 1)].iter().any(|segment| known(segment) == known(sample))
    };
    let equal = samples.iter().filter(is_equal).count();
    let different: std::collections::BTreeSet<_> =
        samples.iter().map(|sample| sample.cwnd_segments).collect();
    ensure!(different.len() >= 5, "the window has {different:?}");
    demand!(equal as f64 >= EQUAL_MIN * samples.len() as f64, "{equal} of {} samples", samples.len())
}
