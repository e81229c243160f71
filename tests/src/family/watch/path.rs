//! Over a path of 40 ms with small buffers: `copy` names the limit of its own connections, and `watch --tune` enlarges the
//! send buffer of initiators in user space (QEMU's of libiscsi, ours) and restores it.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lab::wan::{ADDRESSES, Options, Settings, Wan, obstacle};
use serde_json::Value;
use tempfile::TempDir;

use super::{LIMIT, NOBODY, objects};
use crate::files::random_file;
use crate::process::Surroundings;
use crate::schema::Schema;
use crate::{Cases, Context, Output, Running, Scene, Server, program, run, scratch};

const RTT: Duration = Duration::from_millis(40);
const BITS_PER_S: f64 = 800e6;
/// Caps of the buffers as `tcp_wmem` and `tcp_rmem` have them, and one that does not limit.
const SMALL: &str = "4096 65536 262144";
const AMPLE: &str = "4096 131072 33554432";
const BYTES: u64 = 24 << 20;
/// Cap of a buffer that this path exceeds, and that the kernel's growth reaches.
const SHORT: &str = "4096 65536 2621440";
/// A copy that is predicted, and how far from the truth the prediction may be: a busy machine and losses in slow start let
/// two copies differ by 15 %. Without either 3 % were measured.
const PREDICTED_BYTES: u64 = 512 << 20;
const PREDICTED_WITHIN: f64 = 0.2;
/// Each takes half a minute.
const SAMPLE: (&str, usize) = ("path", 1);
/// A copy that lasts longer than a case.
const LONG_BYTES: u64 = 1 << 30;

struct Place {
    // Declared before the path and therefore dropped first.
    server: Server,
    wan: Wan,
    dir: TempDir,
}

impl Place {
    fn new(context: &Context) -> Result<Self> {
        let settings = Settings::new(RTT, Some(BITS_PER_S));
        let options = Options::new(settings).ipv4("tcp_congestion_control", "cubic");
        let wan = Wan::start(&options.ipv4("tcp_wmem", AMPLE).ipv4("tcp_rmem", AMPLE))?;
        let dir = scratch()?;
        // With CAP_NET_ADMIN the target's receive buffers would follow the path, whatever `tcp_rmem` is.
        let mut command = program("setpriv")?;
        command.args(["--bounding-set", "-net_admin", "--inh-caps", "-net_admin"]).arg(&context.hikyaku);
        let ours = context.command_in(dir.path());
        command.envs(ours.get_envs().filter_map(|(name, value)| Some((name, value?))));
        Surroundings::network(wan.side(1).name()).apply(&mut command);
        command.args(["serve", &format!("mem:{LONG_BYTES}"), "--listen", &format!("{}:3260", ADDRESSES[1])]);
        let server = Server::start(command.args(["--seal", "off"]), 1)?;
        Ok(Self { server, wan, dir })
    }

    /// Buffers of later connections: what the initiator's end sends, and what the target's end takes.
    fn buffers(&self, send: &str, receive: &str) -> Result<()> {
        self.wan.side(0).sysctl("net/ipv4/tcp_wmem", send)?;
        Ok(self.wan.side(1).sysctl("net/ipv4/tcp_rmem", receive)?)
    }

    fn ours(&self, context: &Context) -> Command {
        let mut command = context.command_in(self.dir.path());
        Surroundings::network(self.wan.side(0).name()).apply(&mut command);
        command.current_dir(self.dir.path());
        command
    }

    fn url(&self) -> String {
        format!("{},seal=off", self.server.url)
    }

    fn watch(&self, context: &Context, arguments: &[&str]) -> Result<Output> {
        let mut command = self.ours(context);
        run(command.arg("watch").args(arguments), LIMIT)?.orderly()
    }

    /// Copies, with a report; returns the object of `--json` and the report.
    fn copy(&self, context: &Context, options: &[&str]) -> Result<(Value, String)> {
        let report = self.dir.path().join("report.html");
        let mut command = self.ours(context);
        command.args(["copy", &format!("pattern:{BYTES}"), &self.url(), "--force", "--json", "--report"]);
        let output = run(command.arg(&report).args(options), LIMIT)?.success()?;
        let object: Value =
            serde_json::from_str(output.stdout.trim()).with_context(|| output.stdout.clone())?;
        Schema::load("copy")?.check(&object)?;
        Ok((object, std::fs::read_to_string(&report)?))
    }

    /// `qemu-img`, which writes by libiscsi, several requests at once.
    fn qemu(&self, context: &Context) -> Result<Running> {
        let source = self.dir.path().join("source.img");
        if !source.exists() {
            random_file(&source, LONG_BYTES / 2, context.seed_for("watch-path"))?;
        }
        let mut command = program("qemu-img")?;
        Surroundings::network(self.wan.side(0).name()).apply(&mut command);
        command.args(["convert", "-n", "-W", "-m", "16", "-f", "raw", "-O", "raw"]).arg(&source);
        let running = Running::start(command.arg(self.server.url.to_string()))?;
        std::thread::sleep(Duration::from_secs(2));
        Ok(running)
    }

    fn our_copy(&self, context: &Context) -> Result<Running> {
        let mut command = self.ours(context);
        // The sizes of one socket are followed.
        let source = format!("pattern:{LONG_BYTES}");
        command.args(["copy", &source, &self.url(), "--force", "--quiet", "--connections", "1"]);
        let running = Running::start(&mut command)?;
        std::thread::sleep(Duration::from_secs(2));
        Ok(running)
    }
}

/// The destination's connection of a copy.
fn destination(object: &Value) -> Result<&Value> {
    let network = object["network"].as_array().context("no network")?;
    ensure!(network.len() == 1 && network[0]["end"] == "destination", "{object}");
    let rtt = network[0]["rtt_least_ms"].as_f64().context("no round trip")?;
    // The timers of the emulated path are not exact.
    ensure!((0.9 * RTT.as_secs_f64() * 1e3..100.0).contains(&rtt), "{rtt} ms");
    Ok(&network[0])
}

fn copy_names_the_send_buffer(context: &Context, place: &Place) -> Result<()> {
    place.buffers(SMALL, AMPLE)?;
    let (object, report) = place.copy(context, &[])?;
    let verdict = &destination(&object)?["verdict"];
    ensure!(verdict["limit"] == "send_buffer", "{verdict}");
    // Without the rate of the path any figure would be a guess.
    ensure!(verdict["expected_mb_per_s"].is_null(), "{verdict}");
    ensure!(report.contains("Network of the destination"), "no section in the report");
    let pictures = report.matches("src=\"data:image/svg+xml;base64,").count();
    ensure!(pictures == 3, "{pictures} pictures of the connection");
    let mut command = place.ours(context);
    command.args(["copy", &format!("pattern:{BYTES}"), &place.url(), "--force"]);
    let output = run(&mut command, LIMIT)?.success()?;
    let words = [
        "limited by the network of the destination",
        "network of the destination: while data moved ",
        "the send buffer of the initiator",
    ];
    demand!(words.iter().all(|words| output.stdout.contains(words)), "{}", output.stdout)
}

fn copy_names_the_window(context: &Context, place: &Place) -> Result<()> {
    place.buffers(AMPLE, SMALL)?;
    let (object, _) = place.copy(context, &[])?;
    let verdict = &destination(&object)?["verdict"];
    demand!(verdict["limit"] == "receive_window", "{verdict}")
}

/// A rate that was asked for is no fault of the connection.
fn copy_with_a_rate_blames_nothing(context: &Context, place: &Place) -> Result<()> {
    place.buffers(AMPLE, AMPLE)?;
    let (object, _) = place.copy(context, &["--rate", "6MB/s"])?;
    let verdict = &destination(&object)?["verdict"];
    ensure!(object["limited_by"] == "rate" && verdict["limit"] == "think_time", "{verdict}");
    ensure!(verdict["advice"].as_array().is_some_and(Vec::is_empty), "{verdict}");
    let sentence = verdict["sentence"].as_str().context("no sentence")?;
    demand!(sentence.contains("the rate that it was given, not by this connection"), "{sentence}")
}

/// The path of the end of that name in the object of a copy.
fn path_of<'a>(object: &'a Value, end: &str) -> Result<&'a Value> {
    let paths = object["path"].as_array().context("no path")?;
    paths.iter().find(|path| path["end"] == end).with_context(|| object.to_string())
}

fn copy_shows_its_path(context: &Context, place: &Place) -> Result<()> {
    place.buffers(AMPLE, AMPLE)?;
    let mut command = place.ours(context);
    command.args(["copy", &format!("pattern:{BYTES}"), &format!("{},congestion=reno", place.url())]);
    let object = run(command.args(["--force", "--json"]), LIMIT)?.success()?.json()?;
    let path = path_of(&object, "destination")?;
    let least = path["rtt_least_ms"].as_f64().context("no round trip")?;
    ensure!((0.9 * RTT.as_secs_f64() * 1e3..100.0).contains(&least), "{least} ms");
    // A chunk is longer than what is sent unasked, and one round of R2Ts asks for the rest.
    ensure!(path["congestion_control"] == "reno" && path["r2t_rounds_max"] == 1, "{path}");
    let product = (RTT.as_secs_f64() * BITS_PER_S / 8.0) as u64;
    ensure!(path["in_flight_max_bytes"].as_u64() > Some(product), "{path}");
    demand!(path["sessions"] == 1 && path["missing"] == Value::Array(Vec::new()), "{path}")
}

/// Without the right to grow its buffer beyond the system's limit, a copy that needs it says the setting, once.
fn copy_says_what_is_missing(context: &Context, place: &Place) -> Result<()> {
    for (setting, side, is_write) in [("tcp_wmem", "destination", true), ("tcp_rmem", "source", false)] {
        for (name, value) in [("tcp_wmem", AMPLE), ("tcp_rmem", AMPLE), (setting, SHORT)] {
            place.wan.side(0).sysctl(&format!("net/ipv4/{name}"), value)?;
        }
        let mut command = context.command_in(place.dir.path());
        let network = Surroundings::network(place.wan.side(0).name());
        Surroundings { without_net_admin: true, ..network }.apply(&mut command);
        let ends = match is_write {
            true => [format!("pattern:{}", 8 * BYTES), place.url()],
            false => [place.url(), format!("null:{LONG_BYTES}")],
        };
        command.arg("copy").args(ends).args(["--force", "--sparse", "off", "--size", "192M"]);
        let output = run(&mut command, LIMIT)?.success()?;
        let line = format!("network of the {side}: ");
        ensure!(output.stdout.matches(&line).count() == 1, "{}", output.stdout);
        let advice = format!("sysctl -w net.ipv4.{setting}='4096 ");
        ensure!(output.stdout.matches(&advice).count() == 1, "{}", output.stdout);
    }
    Ok(())
}

/// What `bench path` predicts, over what a copy then takes, from the start of the process to its end; less 1.
fn error_of_prediction(context: &Context, place: &Place, is_write: bool) -> Result<f64> {
    let (bytes, null) = (PREDICTED_BYTES.to_string(), format!("null:{LONG_BYTES}"));
    let pattern = format!("pattern:{PREDICTED_BYTES}");
    let (options, ends) = match is_write {
        true => (&["--write", "--destroy"][..], [pattern, place.url()]),
        false => (&[][..], [place.url(), null]),
    };
    let mut command = place.ours(context);
    command.args(["bench", "path", &place.url(), "--block-size", "4K", "--operations", "20"]);
    let output = run(command.args(["--size", &bytes, "--json"]).args(options), LIMIT)?.success()?;
    let object = output.json()?;
    Schema::load("bench-path")?.check(&object)?;
    let predicted = object["copy"]["seconds"].as_f64().context("no prediction")?;
    let mut command = place.ours(context);
    command.arg("copy").args(ends).args(["--force", "--sparse", "off", "--size", &bytes, "--json"]);
    Ok(predicted / run(&mut command, LIMIT)?.success()?.seconds - 1.0)
}

/// One of three times: a copy that loses packets while it starts differs from the next by more.
fn bench_predicts_a_copy(context: &Context, place: &Place) -> Result<()> {
    place.wan.side(0).sysctl("net/ipv4/tcp_rmem", AMPLE)?;
    place.buffers(AMPLE, AMPLE)?;
    for is_write in [true, false] {
        let mut errors = Vec::new();
        while !errors.iter().any(|error: &f64| error.abs() < PREDICTED_WITHIN) {
            ensure!(errors.len() < 3, "write {is_write}: predicted over actual, less 1: {errors:?}");
            errors.push(error_of_prediction(context, place, is_write)?);
        }
    }
    Ok(())
}

/// Sizes of the initiator's send buffer, in the order of time.
fn sizes(output: &Output) -> Result<Vec<u64>> {
    let all = objects(output)?;
    let ours = all.iter().filter(|object| object["session"]["side"] == "initiator");
    Ok(ours.filter_map(|object| object["sample"]["send_buffer_bytes"].as_u64()).collect())
}

/// What `--tune` does to a connection that its send buffer limits: enlarges it, never lowers it, and restores it.
fn tunes(context: &Context, place: &Place, start: impl Fn() -> Result<Running>, name: &str) -> Result<()> {
    let initiator = start()?;
    let tuned = place.watch(context, &["--tune", "--for", "7s", "--json"])?.success()?;
    let sizes_tuned = sizes(&tuned)?;
    ensure!(sizes_tuned.windows(2).all(|pair| pair[0] <= pair[1]), "{sizes_tuned:?}");
    let (before, during) = (sizes_tuned.first(), sizes_tuned.last());
    let (before, during) = before.zip(during).context("no sizes")?;
    ensure!(during > &(2 * before), "{sizes_tuned:?}");
    let after = sizes(&place.watch(context, &["--json", "--for", "2s"])?.success()?)?;
    ensure!(after.last() == Some(before), "{before} before, then {after:?}");

    drop(initiator);

    // A reader that has had enough ends the command, not what it has to undo.
    let initiator = start()?;
    let mut command = Command::new("sh");
    let line = format!("{} watch --tune --json --for 20s | head -n 7", context.hikyaku.display());
    Surroundings::network(place.wan.side(0).name()).apply(command.args(["-c", &line]));
    let tuned = sizes(&run(command.env("HOME", place.dir.path()), LIMIT)?.success()?)?;
    ensure!(tuned.last() > Some(before), "{before} before, then {tuned:?}");
    let after = sizes(&place.watch(context, &["--json", "--for", "2s"])?.success()?)?;
    ensure!(after.last() == Some(before), "{before} before, then {after:?}");
    drop(initiator);

    // What stays: the end of the command leaves it as it is.
    let initiator = start()?;
    let kept = place.watch(context, &["--tune", "--keep", "--for", "7s"])?.success()?;
    let process = format!("{name} {}", initiator.pid());
    kept.says_all(&[&process, "send buffer ", " -> ", "the send buffer stays at "])?;
    let after = sizes(&place.watch(context, &["--json", "--for", "2s"])?.success()?)?;
    ensure!(after.last() > Some(before), "{before} before, then {after:?}");
    drop(initiator);
    Ok(())
}

fn tunes_qemu(context: &Context, place: &Place) -> Result<()> {
    place.buffers(SMALL, AMPLE)?;
    tunes(context, place, || place.qemu(context), "qemu-img")
}

fn tunes_ours(context: &Context, place: &Place) -> Result<()> {
    place.buffers(SMALL, AMPLE)?;
    tunes(context, place, || place.our_copy(context), "hikyaku")
}

/// Without the right to trace the process nothing changes, and the lines to type are printed.
fn tune_without_rights(context: &Context, place: &Place) -> Result<()> {
    place.buffers(SMALL, AMPLE)?;
    let initiator = place.qemu(context)?;
    let mut command = place.wan.side(0).command(program("setpriv")?.get_program());
    command.args([&format!("--reuid={NOBODY}"), &format!("--regid={NOBODY}"), "--clear-groups"]);
    command.arg(&context.hikyaku).args(["watch", "--tune", "--for", "7s"]).current_dir("/");
    let before = sizes(&place.watch(context, &["--json", "--for", "2s"])?.success()?)?;
    let output = run(&mut command, LIMIT)?.success()?;
    output.says_all(&["for later connections type:", "sysctl -w net.ipv4.tcp_wmem="])?;
    let after = sizes(&place.watch(context, &["--json", "--for", "2s"])?.success()?)?;
    ensure!(before.last().is_some() && before.last() == after.last(), "{before:?}, then {after:?}");
    drop(initiator);
    Ok(())
}

pub(super) fn examine(context: &Context, cases: &mut Cases) {
    if let Some(obstacle) = obstacle() {
        return cases.note(format!("a path of 40 ms: not run, {obstacle}"));
    }
    let place = Scene::new(|| Place::new(context));
    type Case = fn(&Context, &Place) -> Result<()>;
    let rows: &[(&str, Case)] = &[
        ("path-copy-names-the-send-buffer", copy_names_the_send_buffer),
        ("path-copy-names-the-window", copy_names_the_window),
        ("path-copy-with-a-rate", copy_with_a_rate_blames_nothing),
        ("path-copy-shows-its-path", copy_shows_its_path),
        ("path-copy-says-what-is-missing", copy_says_what_is_missing),
        ("path-bench-predicts-a-copy", bench_predicts_a_copy),
        ("path-tune-qemu", tunes_qemu),
        ("path-tune-ours", tunes_ours),
        ("path-tune-without-rights", tune_without_rights),
    ];
    for (name, case) in rows {
        cases.check_some(SAMPLE, name, || case(context, place.get()?));
    }
}
