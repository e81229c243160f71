//! `bench path`: equal requests to one endpoint at a fixed depth, without pauses.

use std::time::Duration;

use block::remote::Links;
use block::{Location, Medium, OpenOptions};
use host::Kernel;
use io::Io;
use job::{mb_per_s, request_alignment};
use mover::{Load, LoadError, LoadFigures, LoadPlan, Until};
use serde_json::{Value, json};

use super::forecast::{self, Forecast, Question};
use super::usage::Usage;
use crate::command::copy::parse_links;
use crate::context::Context;
use crate::endpoint::{self, Named};
use crate::error::{Exit, Failure};
use crate::output::{self, Table};
use crate::{protection, units};

/// Block sizes in bytes and depths, if no option names them.
const BLOCKS: [u64; 3] = [4 << 10, 64 << 10, 1 << 20];
const DEPTHS: [u32; 2] = [1, 32];
/// Rows with at least this request size serve for the expected rate of a copy.
const LARGE_BYTES: u32 = 64 << 10;
/// Warm-up before the measurement, for connections and caches: time and number of requests.
const WARM_UP: Duration = Duration::from_millis(100);
const WARM_UP_OPERATIONS: u64 = 32;
/// Bytes of the copy that is predicted, without `--size`.
const PREDICTED_BYTES: u64 = 1 << 30;
/// Maximum range in bytes without `--range`.
const RANGE_DEFAULT_MAX: u64 = 1 << 30;

/// Measure an endpoint by equal requests: how many a second, how long each takes, what they cost
///
/// One connection, driven as a copy drives it. Reads, unless --write; writes destroy what the endpoint holds.
/// Without --block-size and --depth, a row each for 4 KiB, 64 KiB and 1 MiB, one at a time and 32 in flight. Writes
/// end with a flush, and its time counts.
///
/// Then, over a network, what the path is and what limits it, and what `copy` would take. Without --write that is a copy
/// from the endpoint: the other direction may have other limits.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hikyaku bench path iscsi://host/iqn.2026-11.example:disks/0
  hikyaku bench path iscsi://host/iqn.2026-11.example:disks/0 \\
      --block-size 4K --depth 32 --random --json
  hikyaku bench path iscsi://host/iqn.2026-11.example:scratch/0 \\
      --write --destroy --verify

With --verify, reads are compared with what this wrote:
  hikyaku copy --force pattern:1G iscsi://host/iqn.2026-11.example:scratch/0")]
pub(crate) struct Args {
    /// The endpoint to measure
    #[arg(value_name = "ENDPOINT")]
    endpoint: String,

    /// Bytes of one request [default: 4K, 64K and 1M in turn]
    #[arg(long, value_name = "SIZE", value_parser = parse_block)]
    block_size: Option<u32>,

    /// Requests in flight [default: 1 and 32 in turn]
    #[arg(long, value_name = "N")]
    depth: Option<u32>,

    /// Seconds of each row
    #[arg(long, value_name = "S", default_value = "1", value_parser = parse_seconds, conflicts_with = "operations")]
    seconds: Duration,

    /// Requests of each row, instead of a time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    operations: Option<u64>,

    /// Bytes from the start that requests touch [default: all, at most 1 GiB]
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    range: Option<u64>,

    /// Write instead of reading
    #[arg(long)]
    write: bool,

    /// Predict a copy of that many bytes, also with --block-size or --depth [default: 1G]
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    size: Option<u64>,

    /// Sessions of the copy that is predicted: `auto`, or a number from 1 to 8
    #[arg(long, default_value = "auto", value_name = "auto|N", value_parser = parse_links)]
    connections: Links,

    /// Yes, what the endpoint holds may be overwritten
    #[arg(long, requires = "write")]
    destroy: bool,

    /// In random order instead of one after the other
    #[arg(long)]
    random: bool,

    /// Compare the data: a word of every 4 KiB read while the clock runs, then all of it. Writes are stamped and
    /// read back after the flush; reads expect what `copy pattern:SIZE` wrote
    #[arg(long)]
    verify: bool,

    /// The seed of that pattern
    #[arg(long, value_name = "SEED", default_value = "0", requires = "verify")]
    pattern: u64,

    /// Also report what this process of the same machine, for example the target, used during the measurement
    #[arg(long, value_name = "PID")]
    target_pid: Option<u32>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

fn parse_block(text: &str) -> Result<u32, String> {
    let bytes = units::parse_size(text)?;
    u32::try_from(bytes).ok().filter(|bytes| *bytes > 0).ok_or_else(|| "a size from 512 to 16M".to_owned())
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text} is not a number of seconds"))?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(time) if !time.is_zero() && seconds <= 86_400.0 => Ok(time),
        _ => Err("more than 0 and at most 86400".to_owned()),
    }
}

impl Args {
    fn until(&self) -> Until {
        self.operations.map_or(Until::Time(self.seconds), Until::Operations)
    }

    fn warm_up(&self) -> Until {
        match self.operations {
            Some(_) => Until::Operations(WARM_UP_OPERATIONS),
            None => Until::Time(WARM_UP.min(self.seconds)),
        }
    }

    /// Bytes of the copy that is predicted: a single row is measured alone.
    fn predicted(&self) -> Option<u64> {
        let is_table = self.block_size.is_none() && self.depth.is_none();
        self.size.or(is_table.then_some(PREDICTED_BYTES))
    }

    /// What a user waits for.
    fn takes(&self, rows: usize, is_iscsi: bool) -> String {
        let rows = units::counted(rows as u64, "row");
        let each = match self.operations {
            Some(operations) => format!("{operations} requests"),
            None => units::duration(self.seconds),
        };
        let copy = match self.predicted().filter(|_| is_iscsi) {
            Some(_) => "; then, for the prediction, a copy of up to 15 s",
            None => "",
        };
        format!("measuring {rows} of {each}{copy}")
    }

    fn shapes(&self) -> Vec<(u32, u32)> {
        let blocks =
            self.block_size.map_or_else(|| BLOCKS.map(|bytes| bytes as u32).to_vec(), |one| vec![one]);
        let depths = self.depth.map_or_else(|| DEPTHS.to_vec(), |one| vec![one]);
        blocks.iter().flat_map(|block| depths.iter().map(|depth| (*block, *depth))).collect()
    }
}

pub(super) fn run(context: &Context, args: &Args) -> Result<Exit, Failure> {
    let _orderly = context.stop.orderly();
    let named = Named::parse(context, &args.endpoint, &[])?;
    if args.write {
        may_be_destroyed(&named, args)?;
    }
    let mut io = job::event_loop()?;
    let shapes = args.shapes();
    let alignment = shapes.iter().map(|(block, _)| request_alignment(0, Some(*block))).min();
    let options = OpenOptions {
        writable: args.write,
        request_alignment: alignment.unwrap_or(512),
        allow_in_use: false,
    };
    let medium = named.open(context, &options)?;
    let mut rows = Vec::new();
    context.remark(&args.takes(shapes.len(), named.is_iscsi()));
    for (block, depth) in shapes {
        rows.push(measure(context, args, &mut io, &named, &medium, block, depth)?);
    }
    let forecast = match args.predicted().filter(|_| named.is_iscsi()) {
        None => None,
        Some(bytes) => {
            let named = named.clone().with_sessions(args.connections);
            let medium = named.open(context, &options)?;
            let range_bytes = args.range.unwrap_or(RANGE_DEFAULT_MAX);
            let (write, time_min) = (args.write, args.seconds);
            let question = Question { named: &named, medium: &medium, write, bytes, range_bytes, time_min };
            forecast::forecast(context, &mut io, &question)?
        }
    };
    let words = expect(&rows, args.write);
    if args.json {
        output::json(&json!({
            "schema": output::SCHEMA,
            "endpoint": named.text,
            "backend": io.backend_name(),
            "write": args.write,
            "random": args.random,
            "protection": rows.first().map(|row| &row.protection),
            "rows": rows.iter().map(Row::object).collect::<Vec<_>>(),
            "expect": words,
            "path": forecast.as_ref().map(Forecast::path_object),
            "copy": forecast.as_ref().map(Forecast::copy_object),
        }));
        return Ok(Exit::Done);
    }
    let mut table = Table::new(&[
        "block", "depth", "per s", "rate", "p50 us", "p99 us", "max us", "cpu-s/gb", "switches",
    ]);
    rows.iter().for_each(|row| table.row(row.cells()));
    table.print();
    context.remark(&words);
    forecast.iter().flat_map(Forecast::lines).for_each(|line| context.remark(&line));
    Ok(Exit::Done)
}

/// Refuses writes without `--destroy`, and writes to storage in use.
fn may_be_destroyed(named: &Named, args: &Args) -> Result<(), Failure> {
    let refused = |cause: String| Failure::refused("measure writes to", named.text.clone(), cause);
    let harmless = matches!(named.spec.location, Location::Memory { .. } | Location::Null { .. });
    if !harmless && !args.destroy {
        return Err(refused("they destroy what it holds".to_owned())
            .hint("--destroy if that is meant; without --write it is only read"));
    }
    let users = named.path().map(|path| Kernel::default().users(path)).unwrap_or_default();
    match users.into_iter().next() {
        Some(user) => Err(refused(user).hint("end that use")),
        None => Ok(()),
    }
}

struct Row {
    block: u32,
    depth: u32,
    figures: LoadFigures,
    own: Usage,
    target: Option<Usage>,
    compared: Option<u64>,
    protection: Value,
}

impl Row {
    fn bytes(&self) -> u64 {
        self.figures.operations * u64::from(self.block)
    }

    fn per_second(&self) -> f64 {
        let seconds = self.figures.duration.as_secs_f64();
        if seconds > 0.0 { self.figures.operations as f64 / seconds } else { 0.0 }
    }

    fn rate(&self) -> f64 {
        mb_per_s(self.bytes(), self.figures.duration.as_secs_f64())
    }

    fn each(&self, amount: f64) -> f64 {
        if self.figures.operations == 0 { 0.0 } else { amount / self.figures.operations as f64 }
    }

    fn cpu_s_per_gb(&self, usage: Usage) -> f64 {
        self.each(usage.cpu.as_secs_f64()) * 1e9 / f64::from(self.block)
    }

    fn cells(&self) -> Vec<String> {
        let latency = self.figures.latency;
        vec![
            units::bytes(self.block.into()),
            self.depth.to_string(),
            format!("{:.0}", self.per_second()),
            units::rate(self.rate() * 1e6),
            latency.p50_us.to_string(),
            latency.p99_us.to_string(),
            latency.max_us.to_string(),
            format!("{:.2}", self.cpu_s_per_gb(self.own)),
            format!("{:.2}", self.each((self.own.voluntary + self.own.involuntary) as f64)),
        ]
    }

    fn usage(&self, usage: Usage) -> Value {
        json!({
            "cpu_s_per_gb": units::rounded(self.cpu_s_per_gb(usage)),
            "cpu_us_per_operation": units::rounded(self.each(usage.cpu.as_secs_f64() * 1e6)),
            "voluntary_switches_per_operation": units::rounded(self.each(usage.voluntary as f64)),
            "involuntary_switches_per_operation": units::rounded(self.each(usage.involuntary as f64)),
        })
    }

    fn object(&self) -> Value {
        let LoadFigures { operations, duration, flush, latency, spin } = self.figures;
        json!({
            "block": self.block,
            "block_bytes": self.block,
            "depth": self.depth,
            "operations": operations,
            "bytes": self.bytes(),
            "seconds": duration.as_secs_f64(),
            "flush_s": flush.as_secs_f64(),
            "operations_per_s": units::rounded(self.per_second()),
            "mb_per_s": units::rounded(self.rate()),
            "latency_us": {
                "mean": units::rounded(latency.mean_us),
                "p50": latency.p50_us,
                "p99": latency.p99_us,
                "max": latency.max_us,
            },
            "initiator": self.usage(self.own),
            "initiator_spin": { "seconds": spin.time.as_secs_f64(), "hits": spin.hits, "misses": spin.misses },
            "target": self.target.map(|usage| self.usage(usage)),
            "verified": self.compared.is_some(),
            "bytes_compared": self.compared.unwrap_or(0),
        })
    }
}

fn measure(
    context: &Context,
    args: &Args,
    io: &mut Io,
    named: &Named,
    medium: &std::sync::Arc<dyn Medium>,
    block: u32,
    depth: u32,
) -> Result<Row, Failure> {
    let mut endpoint = endpoint::attach(io, &[(named, medium)])?.remove(0);
    let size = endpoint.capability().size_bytes;
    let protection = protection::of(&endpoint.inspect().facts());
    let plan = LoadPlan {
        block_bytes: block,
        depth,
        range_bytes: args.range.unwrap_or(RANGE_DEFAULT_MAX).min(size),
        write: args.write,
        random: args.random.then_some(1),
        verify: args.verify.then_some(args.pattern),
    };
    let target = || match args.target_pid.map(Usage::of) {
        None => Ok(None),
        Some(Ok(usage)) => Ok(Some(usage)),
        Some(Err(cause)) => Err(Failure::failed("look at the process of", "--target-pid", cause)),
    };
    let mut stop = || context.stop.is_requested();
    let failed = |error: LoadError| failure(context, named, error);
    let row = {
        let mut load = Load::new(io, &mut *endpoint, plan).map_err(failed)?;
        load.run(args.warm_up(), &mut stop).map_err(failed)?;
        let before = (Usage::own(), target()?);
        let figures = load.run(args.until(), &mut stop).map_err(failed)?;
        let after = (Usage::own(), target()?);
        let compared = if args.verify { Some(load.verify(&mut stop).map_err(failed)?) } else { None };
        Row {
            block,
            depth,
            figures,
            own: after.0.since(before.0),
            target: after.1.zip(before.1).map(|(after, before)| after.since(before)),
            compared,
            protection,
        }
    };
    job::close(io, [endpoint]);
    Ok(row)
}

fn failure(context: &Context, named: &Named, error: LoadError) -> Failure {
    let object = named.text.clone();
    match error {
        LoadError::Refused(cause) => Failure::usage("measure", object, cause),
        LoadError::Request { verb, offset, length, error } => {
            Failure::io(format!("{verb} {length} bytes at offset {offset} of"), object, &error)
        }
        LoadError::Flush(error) => Failure::io("flush", object, &error),
        LoadError::Difference { .. } => Failure::new(Exit::Mismatch, "verify", object, error).hint(
            "reads expect what `hikyaku copy pattern:SIZE:SEED` wrote there (option --pattern SEED); if that is \
             so and nothing else writes to it, suspect the medium",
        ),
        LoadError::Interrupted => context.stop.failure("finish", "the measurement"),
        LoadError::Loop(_) => Failure::failed("measure", object, error),
    }
}

/// A sentence about the rates that the rows predict.
fn expect(rows: &[Row], write: bool) -> String {
    let way = if write { "writes" } else { "reads" };
    let mut parts = Vec::new();
    let large = rows.iter().filter(|row| row.block >= LARGE_BYTES);
    if let Some(row) = large.max_by(|a, b| a.rate().total_cmp(&b.rate())) {
        parts.push(format!(
            "large {way} move about {} ({} each, {} in flight)",
            units::rate(row.rate() * 1e6),
            units::bytes(row.block.into()),
            row.depth
        ));
    }
    if let Some(row) = rows.iter().filter(|row| row.depth == 1).min_by_key(|row| row.block) {
        parts.push(format!(
            "one of {} at a time takes {} us (one in a hundred over {} us)",
            units::bytes(row.block.into()),
            row.figures.latency.p50_us,
            row.figures.latency.p99_us
        ));
    }
    if let Some(row) = rows.iter().max_by(|a, b| a.per_second().total_cmp(&b.per_second())) {
        parts.push(format!(
            "at most about {:.0} requests a second ({} each, {} in flight)",
            row.per_second(),
            units::bytes(row.block.into()),
            row.depth
        ));
    }
    format!("expect: {}", parts.join("; "))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn parse(words: &[&str]) -> Result<Args, clap::Error> {
        Line::try_parse_from([&["path"], words].concat()).map(|line| line.args)
    }

    #[test]
    fn shapes_are_those_named_or_the_short_table() {
        assert_eq!(parse(&["null:1G"]).unwrap().shapes().len(), 6);
        let one = parse(&["null:1G", "--block-size", "256K", "--depth", "8"]).unwrap();
        assert_eq!(one.shapes(), [(256 << 10, 8)]);
        let column = parse(&["null:1G", "--depth", "8"]).unwrap();
        assert_eq!(column.shapes(), [(4096, 8), (65536, 8), (1 << 20, 8)]);
    }

    #[test]
    fn time_or_a_number_of_requests() {
        assert_eq!(parse(&["x"]).unwrap().until(), Until::Time(Duration::from_secs(1)));
        let short = parse(&["x", "--seconds", "0.05"]).unwrap();
        assert_eq!(short.until(), Until::Time(Duration::from_millis(50)));
        assert_eq!(short.warm_up(), Until::Time(Duration::from_millis(50)));
        assert_eq!(parse(&["x", "--operations", "9"]).unwrap().until(), Until::Operations(9));
        for wrong in [
            &["x", "--operations", "0"][..],
            &["x", "--operations", "5", "--seconds", "1"],
            &["x", "--seconds", "0"],
            &["x", "--seconds", "-1"],
            &["x", "--seconds", "NaN"],
            &["x", "--block-size", "0"],
            &["x", "--block-size", "8G"],
            &["x", "--destroy"],
            &["x", "--pattern", "3"],
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn expectations_are_taken_from_the_right_rows() {
        let row = |block: u32, depth: u32, operations: u64, p50: u64| {
            let latency = mover::Latency { p50_us: p50, p99_us: 2 * p50, ..Default::default() };
            let figures =
                LoadFigures { operations, duration: Duration::from_secs(1), latency, ..Default::default() };
            Row {
                block,
                depth,
                figures,
                own: Usage::default(),
                target: None,
                compared: None,
                protection: Value::Null,
            }
        };
        let rows = [row(4096, 1, 10_000, 95), row(4096, 32, 100_000, 300), row(1 << 20, 32, 2000, 9000)];
        assert_eq!(
            expect(&rows, false),
            "expect: large reads move about 2.10 GB/s (1 MiB each, 32 in flight); one of 4 KiB at a time takes \
             95 us (one in a hundred over 190 us); at most about 100000 requests a second (4 KiB each, 32 in flight)"
        );
        let usage = Usage { cpu: Duration::from_millis(4096), ..Default::default() };
        assert_eq!(rows[0].cpu_s_per_gb(usage), 100.0);
    }
}
