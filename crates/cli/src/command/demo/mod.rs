//! `demo`: serve, copy and compare on loopback, sealed, in under a minute. Installs nothing and leaves nothing behind.
//! With `--wan` a relay between both ends delays what passes (`relay.rs`).

mod relay;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use block::{Endpoint, Medium, OpenOptions};
use io::Io;
use job::cpu::CpuTime;
use job::{cpu_s_per_gb, mb_per_s};
use mover::{CopyError, Plan};
use node::SealPolicy;
use node::initiator::InitiatorSealing;
use node::target::{Access, LocalUsers, LunConfig, Peer, Sealing, Server, ServerConfig, TargetConfig};
use serde_json::{Value, json};

use relay::{Relay, Wan};

use crate::command::serve;
use crate::context::Context;
use crate::endpoint::{self, Named};
use crate::error::{Exit, Failure};
use crate::progress::Progress;
use crate::state::Identity;
use crate::trust::identity;
use crate::{output, protection, units};

const SAMPLE_BYTES: u64 = 256 << 20;
/// Maximum bytes read from a given file, so that the demonstration takes at most about a minute.
const SAMPLE_BYTES_MAX: u64 = 1 << 30;
const BLOCK_BYTES: u64 = 512;
const TARGET: &str = "iqn.2026-11.example.hikyaku:demo";
/// Bound of the final drain. Without sessions a drain takes no time.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
const STEPS: u32 = 5;
/// Time that the reads of the last step may take over a path, and their least number.
const READS_TIME: Duration = Duration::from_secs(2);
const READS_MIN: u64 = 8;

/// Try it on loopback in a minute: serve, copy, verify, compare
///
/// The sessions are sealed (encrypted and authenticated) under keys made for this run. Nothing needs to be installed or
/// configured, no root, no kernel module; nothing is left behind.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  hikyaku demo\n  hikyaku demo disk.img\n  hikyaku demo --wan 50ms\n  hikyaku demo --wan 50ms,0.1%,20MB/s"
)]
pub(crate) struct Args {
    /// What to use as the sample, at most 1 GiB of it; it is only read [default: 256 MiB of made-up data]
    #[arg(value_name = "FILE")]
    file: Option<String>,

    /// Put a long path between both ends: a relay that delays all bytes by half of RTT each way
    ///
    /// RTT as 50ms; LOSS is the share of segments that take a round trip more, as 0.1% [default: 0]; RATE as 20MB/s
    /// [default: 125MB/s]. It shows what round trips cost. It shows no congestion control: the relay's two connections
    /// lose no packets.
    #[arg(long, value_name = "RTT[,LOSS[,RATE]]")]
    wan: Option<Wan>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<Exit, Failure> {
    let _orderly = context.stop.orderly();
    let words = args.file.clone().unwrap_or_else(|| format!("pattern:{SAMPLE_BYTES}:1"));
    let sample = Named::parse(context, &words, &[])?;
    let mut io = job::event_loop()?;
    let sample_medium = sample.open(context, &options(false))?;
    let all = endpoint::attach(&mut io, &[(&sample, &sample_medium)])?.remove(0).capability().size_bytes;
    let bytes = all.min(SAMPLE_BYTES_MAX) / BLOCK_BYTES * BLOCK_BYTES;
    if bytes == 0 {
        return Err(Failure::usage(
            "demonstrate with",
            sample.text,
            "it is smaller than one block of 512 bytes",
        ));
    }
    let (sealing, own) = keys()?;
    let server = start(context, bytes, sealing)?;
    let target = server.addresses()[0];
    let relay = args.wan.map(|wan| Relay::start(target, wan)).transpose();
    let relay = relay.map_err(|error| Failure::failed("start a relay to", target.to_string(), error))?;
    let url = format!("iscsi://{}/{TARGET}/0", relay.as_ref().map_or(target, Relay::address));
    let mut lun = Named::parse(context, &url, &[])?;
    lun.seal(own);
    let mut demo = Demo { context, io, sample, sample_medium, lun, bytes, wan: args.wan };
    let result = demo.steps();
    drop(relay);
    server.handle().drain();
    let ended = server.wait().map_err(|error| serve::failure(&error));
    let steps = result?;
    ended?;
    if args.json {
        output::json(&json!({ "schema": output::SCHEMA, "bytes": bytes, "steps": steps }));
    }
    Ok(Exit::Done)
}

fn options(writable: bool) -> OpenOptions {
    OpenOptions { writable, request_alignment: BLOCK_BYTES as u32, allow_in_use: false }
}

/// Sealing of both sides, with random keys that are not stored.
fn keys() -> Result<(Sealing, InitiatorSealing), Failure> {
    let random = || identity::random().map(Arc::new);
    let failed = |error| Failure::failed("make up keys", "", error);
    let (target, initiator) = (random().map_err(failed)?, random().map_err(failed)?);
    let public_key = initiator.public();
    let peer = Peer { name: "demo".to_owned(), public_key, initiator: None, luns: None, psk: None };
    let own = InitiatorSealing::new(SealPolicy::Require, initiator, target.public());
    let suites = own.suites.clone();
    Ok((
        Sealing { policy: SealPolicy::Require, identity: target, peers: vec![peer], suites, next: None },
        own,
    ))
}

/// Starts a target on a free port of the loopback interface, over an unlinked file.
fn start(context: &Context, bytes: u64, sealing: Sealing) -> Result<Server, Failure> {
    let identity = Identity::random().map_err(|error| Failure::failed("make up an identity", "", error))?;
    let lun = LunConfig::new(0, nameless_file(context, bytes)?, identity.serial, identity.naa);
    let target = TargetConfig { iqn: TARGET.to_owned(), luns: vec![lun], access: Access::default() };
    Server::start(ServerConfig {
        listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
        advertise: None,
        sealing: Some(sealing),
        targets: vec![target],
        local_users: LocalUsers::Any,
        tls: None,
        drain_timeout: DRAIN_TIMEOUT,
        threads: None,
    })
    .map_err(|error| serve::failure(&error))
}

/// A temporary file of zeroes, unlinked immediately after its open, so that it disappears however the process ends.
fn nameless_file(context: &Context, bytes: u64) -> Result<Arc<dyn Medium>, Failure> {
    let failed = |error: std::io::Error| {
        Failure::failed("make a temporary file in", std::env::temp_dir().display().to_string(), error)
            .hint("set TMPDIR to a directory with room")
    };
    let file = tempfile::Builder::new().prefix("hikyaku-demo-").tempfile().map_err(failed)?;
    file.as_file().set_len(bytes).map_err(failed)?;
    let words = format!("file:{}", file.path().display().to_string().replace(',', ",,"));
    Named::parse(context, &words, &[])?.open(context, &options(true))
}

struct Demo<'a> {
    context: &'a Context,
    io: Io,
    sample: Named,
    sample_medium: Arc<dyn Medium>,
    lun: Named,
    bytes: u64,
    wan: Option<Wan>,
}

impl Demo<'_> {
    fn print(&self, number: u32, name: &str, text: &str) {
        if !self.context.json {
            output::line(&format!("  {number}/{STEPS} {name:<8} {text}"));
        }
    }

    fn steps(&mut self) -> Result<Vec<Value>, Failure> {
        let size = units::bytes(self.bytes);
        let relay = self.wan.map(|wan| format!(", behind a relay: {}", wan.text())).unwrap_or_default();
        self.print(1, "target", &format!("{}    {size}, loopback only, sealed{relay}", self.lun.text));
        let mut target = json!({ "step": "target", "url": self.lun.text, "bytes": self.bytes });
        if let Some(wan) = self.wan {
            target["wan"] = json!({
                "rtt_ms": units::rounded(wan.rtt.as_secs_f64() * 1e3),
                "loss": wan.loss,
                "mb_per_s": units::rounded(wan.bytes_per_s as f64 / 1e6),
                "congestion_control": false,
            });
        }
        let steps = vec![target, self.copy()?, self.compare()?, self.read()?];
        if self.wan.is_some() && !self.context.json {
            output::line(
                "  The relay delays the bytes of two loopback connections: it shows what round trips cost, and no congestion control.\n  \
                 The kernel measures the round trip to the relay only: the copy starts more slowly here than on a real path.\n  \
                 `hikyaku lab wan-write` (root) has a path with packets.",
            );
        }
        Ok(steps)
    }

    fn sample_name(&self) -> &str {
        if self.sample.path().is_some() { &self.sample.text } else { "made-up sample" }
    }

    /// Endpoints of the sample and of the LUN, the latter in a new session.
    fn sample_and_lun(&mut self, writable: bool) -> Result<[Box<dyn Endpoint>; 2], Failure> {
        let lun = self.lun.open(self.context, &options(writable))?;
        let pair = [(&self.sample, &self.sample_medium), (&self.lun, &lun)];
        let mut endpoints = endpoint::attach(&mut self.io, &pair)?;
        let lun = endpoints.remove(1);
        Ok([endpoints.remove(0), lun])
    }

    fn copy(&mut self) -> Result<Value, Failure> {
        let [mut from, mut to] = self.sample_and_lun(true)?;
        let plan = Plan { verify: true, size: Some(self.bytes), allow_block_size: true, ..Plan::default() };
        let before = CpuTime::now();
        let mut progress = Progress::new(self.context);
        let mut observer = |now: &mover::Progress| progress.observe(now, &self.context.stop);
        let result = mover::copy(&mut self.io, &mut *from, &mut *to, &plan, &mut observer);
        progress.finish();
        let report = result.map_err(|error| self.failure(&error, "copy"))?;
        let protection = protection::of(&to.inspect().facts());
        job::close(&mut self.io, [from, to]);
        let cpu = CpuTime::now().since(before);
        let text = format!(
            "{} -> LUN   {} in {}, flush included; {}",
            self.sample_name(),
            units::rate(mb_per_s(report.bytes, report.seconds) * 1e6),
            units::duration(Duration::from_secs_f64(report.seconds)),
            match self.wan {
                None => format!("limited by {}", report.limited_by),
                Some(wan) => beyond_the_rate(wan, report.bytes, report.seconds),
            },
        );
        self.print(2, "copy", &text);
        let (user, system) = cpu_s_per_gb(cpu, 2 * report.bytes);
        let text = format!(
            "BLAKE3 of the sample = BLAKE3 of the LUN read back   {}; {:.2} CPU-s/GB both ways, target included",
            units::rate(mb_per_s(report.bytes, report.verify_seconds) * 1e6),
            user + system,
        );
        self.print(3, "verify", &text);
        let mut object = job::object(&report, cpu, true);
        object["step"] = json!("copy");
        object["protection"] = protection;
        Ok(object)
    }

    /// Step 4: compares byte by byte, in a new session.
    fn compare(&mut self) -> Result<Value, Failure> {
        let [mut sample, mut lun] = self.sample_and_lun(false)?;
        let plan = Plan { size: Some(self.bytes), ..Plan::default() };
        let mut progress = Progress::new(self.context);
        let mut observer = |now: &mover::Progress| progress.observe(now, &self.context.stop);
        let result = mover::compare(&mut self.io, &mut *sample, &mut *lun, &plan, &mut observer);
        progress.finish();
        let comparison = result.map_err(|error| self.failure(&error, "compare"))?;
        job::close(&mut self.io, [sample, lun]);
        if let Some(offset) = comparison.first_difference {
            let cause = format!("it differs from {} at offset {offset}", self.sample.text);
            return Err(Failure::new(Exit::Mismatch, "verify", self.lun.text.clone(), cause));
        }
        let rate = mb_per_s(comparison.bytes, comparison.duration.as_secs_f64());
        let text =
            format!("sample = LUN, byte by byte, through a second session   {}", units::rate(rate * 1e6));
        self.print(4, "compare", &text);
        Ok(json!({ "step": "compare", "equal": true, "mb_per_s": units::rounded(rate) }))
    }

    /// Step 5: copies from the LUN to a null endpoint, one request at a time, to measure the round-trip time.
    fn read(&mut self) -> Result<Value, Failure> {
        const CHUNK: u32 = 4096;
        const READS: u64 = 2048;
        let round_trips =
            self.wan.filter(|wan| !wan.rtt.is_zero()).map(|wan| READS_TIME.as_nanos() / wan.rtt.as_nanos());
        let reads = round_trips.map_or(READS, |count| (count as u64).clamp(READS_MIN, READS));
        let null = Named::parse(self.context, &format!("null:{}", self.bytes), &[])?;
        let (nothing, lun) =
            (null.open(self.context, &options(true))?, self.lun.open(self.context, &options(false))?);
        let mut endpoints = endpoint::attach(&mut self.io, &[(&self.lun, &lun), (&null, &nothing)])?;
        let (mut to, mut from) = (endpoints.remove(1), endpoints.remove(0));
        let plan = Plan {
            sparse: false,
            allow_block_size: true,
            size: Some(self.bytes.min(reads * u64::from(CHUNK))),
            chunk: Some(CHUNK.min(self.bytes as u32)),
            depth: Some(1),
            ..Plan::default()
        };
        let mut progress = Progress::new(self.context);
        let mut observer = |now: &mover::Progress| progress.observe(now, &self.context.stop);
        let result = mover::copy(&mut self.io, &mut *from, &mut *to, &plan, &mut observer);
        let report = result.map_err(|error| self.failure(&error, "read"))?;
        job::close(&mut self.io, [from, to]);
        let latency = report.read.latency;
        let text = format!("4 KiB, one at a time   p50 {} us, p99 {} us", latency.p50_us, latency.p99_us);
        self.print(5, "latency", &text);
        Ok(json!({ "step": "latency", "p50_us": latency.p50_us, "p99_us": latency.p99_us }))
    }

    fn failure(&self, error: &CopyError, verb: &str) -> Failure {
        match error {
            CopyError::Interrupted { .. } => self.context.stop.failure("finish", "the demonstration"),
            error => job::engine_failure(error, verb, &self.sample.text, &self.lun.text),
        }
    }
}

/// How much longer a copy took than its bytes at the rate of the path, in round trips.
fn beyond_the_rate(wan: Wan, bytes: u64, seconds: f64) -> String {
    let at_rate = bytes as f64 / wan.bytes_per_s as f64;
    let rest = (seconds - at_rate).max(0.0);
    let rtt = wan.rtt.as_secs_f64();
    let rest = if rtt > 0.0 { format!("{:.1} round trips", rest / rtt) } else { format!("{rest:.2} s") };
    format!("{} of it at the path's rate, and {rest}", units::duration(Duration::from_secs_f64(at_rate)))
}
