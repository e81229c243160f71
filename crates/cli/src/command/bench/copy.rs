//! `bench copy`: the copy engine with several chunk sizes and depths.

use std::sync::Arc;

use block::{Medium, OpenOptions};
use io::Io;
use job::cpu::CpuTime;
use job::{cpu_s_per_gb, engine_failure, mb_per_s, request_alignment};
use mover::{CopyError, Plan, Report};
use serde_json::{Value, json};

use crate::context::Context;
use crate::endpoint::{self, Named};
use crate::error::{Exit, Failure};
use crate::output::{self, Table};
use crate::progress::Progress;
use crate::units;

/// Chunk sizes in bytes, and depths.
const CHUNKS: [u32; 3] = [64 << 10, 512 << 10, 1 << 20];
const DEPTHS: [u32; 3] = [1, 8, 32];

/// Copy from one endpoint to another, once for each of several chunk sizes and depths
///
/// Without endpoints: a temporary file of random data to another, in the temporary directory. The numbers
/// include the flush that ends each copy; the first row pays for whatever was not cached.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hikyaku bench copy
  hikyaku bench copy --size 4G --json
  hikyaku bench copy pattern:1G null:1G
  hikyaku bench copy disk.img null:100G --size 2G")]
pub(crate) struct Args {
    /// Where from [default: a temporary file]
    #[arg(value_name = "SRC", requires = "destination")]
    source: Option<String>,

    /// Where to; it is overwritten: only mem: and null: are accepted without --force
    #[arg(value_name = "DST")]
    destination: Option<String>,

    /// Bytes of each copy
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = units::parse_size)]
    size: u64,

    /// Overwrite the destination whatever it is
    #[arg(long)]
    force: bool,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(super) fn run(context: &Context, args: &Args) -> Result<Exit, Failure> {
    let _orderly = context.stop.orderly();
    let mut bench = Bench::new(context, args)?;
    let mut rows = Vec::new();
    for chunk in CHUNKS {
        for depth in DEPTHS {
            rows.push(bench.measure(chunk, depth)?);
        }
    }
    if args.json {
        let rows: Vec<Value> = rows.iter().map(Row::object).collect();
        output::json(&json!({
            "schema": output::SCHEMA,
            "source": bench.source.text,
            "destination": bench.destination.text,
            "bytes": args.size,
            "rows": rows,
        }));
    } else {
        context.remark(&format!(
            "{} -> {}, {} each, flush included",
            bench.source.text,
            bench.destination.text,
            units::bytes(args.size)
        ));
        let mut table =
            Table::new(&["chunk", "depth", "rate", "user cpu-s/gb", "system cpu-s/gb", "limited by"]);
        rows.iter().for_each(|row| table.row(row.cells()));
        table.print();
    }
    Ok(Exit::Done)
}

struct Row {
    chunk: u32,
    depth: u32,
    report: Report,
    cpu: CpuTime,
}

impl Row {
    fn cells(&self) -> Vec<String> {
        let (user, system) = cpu_s_per_gb(self.cpu, self.report.bytes);
        vec![
            units::bytes(self.chunk.into()),
            self.depth.to_string(),
            units::rate(mb_per_s(self.report.bytes, self.report.seconds) * 1e6),
            format!("{user:.2}"),
            format!("{system:.2}"),
            self.report.limited_by.name().to_owned(),
        ]
    }

    fn object(&self) -> Value {
        let mut object = job::object(&self.report, self.cpu, true);
        object["chunk"] = json!(self.chunk);
        object["chunk_bytes"] = json!(self.chunk);
        object["depth"] = json!(self.depth);
        object
    }
}

struct Bench<'a> {
    context: &'a Context,
    io: Io,
    bytes: u64,
    source: Named,
    destination: Named,
    media: [Arc<dyn Medium>; 2],
}

impl<'a> Bench<'a> {
    fn new(context: &'a Context, args: &Args) -> Result<Self, Failure> {
        if args.size == 0 {
            return Err(Failure::usage("measure", "", "a copy of nothing takes no time").hint("--size 256M"));
        }
        let mut io = job::event_loop()?;
        let files;
        let (source, destination) = match (&args.source, &args.destination) {
            (Some(source), Some(destination)) => (source.clone(), destination.clone()),
            _ => {
                files = [temporary(args.size)?, temporary(args.size)?];
                fill(context, &mut io, &files[0].1, args.size)?;
                (files[0].1.clone(), files[1].1.clone())
            }
        };
        let source = Named::parse(context, &source, &[])?;
        let destination = Named::parse(context, &destination, &[])?;
        let harmless = matches!(
            destination.spec.location,
            block::Location::Memory { .. } | block::Location::Null { .. }
        );
        if args.destination.is_some() && !harmless && !args.force {
            let cause = "a measurement overwrites it";
            return Err(
                Failure::refused("measure copies to", destination.text, cause).hint("null:SIZE, or --force")
            );
        }
        // The temporary files are unlinked when this returns; the media keep them open.
        let media = [open(context, &source, false)?, open(context, &destination, true)?];
        Ok(Self { context, io, bytes: args.size, source, destination, media })
    }

    fn measure(&mut self, chunk: u32, depth: u32) -> Result<Row, Failure> {
        let [source, destination] = &self.media;
        let pair = [(&self.source, source), (&self.destination, destination)];
        let mut endpoints = endpoint::attach(&mut self.io, &pair)?;
        let (mut to, mut from) = (endpoints.remove(1), endpoints.remove(0));
        let plan = Plan {
            size: Some(self.bytes),
            chunk: Some(chunk),
            depth: Some(depth),
            sparse: false,
            allow_block_size: true,
            ..Plan::default()
        };
        let before = CpuTime::now();
        let mut progress = Progress::new(self.context);
        let mut observer = |now: &mover::Progress| progress.observe(now, &self.context.stop);
        let result = mover::copy(&mut self.io, &mut *from, &mut *to, &plan, &mut observer);
        progress.finish();
        let cpu = CpuTime::now().since(before);
        let report = result.map_err(|error| match &error {
            CopyError::Interrupted { .. } => self.context.stop.failure("finish", "the measurement"),
            CopyError::Refused(refusal) => {
                Failure::usage("measure copies to", self.destination.text.clone(), refusal)
            }
            error => engine_failure(error, "copy", &self.source.text, &self.destination.text),
        })?;
        job::close(&mut self.io, [from, to]);
        Ok(Row { chunk, depth, report, cpu })
    }
}

fn open(context: &Context, named: &Named, writable: bool) -> Result<Arc<dyn Medium>, Failure> {
    let request_alignment = request_alignment(0, None);
    named.open(context, &OpenOptions { writable, request_alignment, allow_in_use: false })
}

fn temporary(bytes: u64) -> Result<(tempfile::NamedTempFile, String), Failure> {
    let failed = |error: std::io::Error| {
        Failure::failed("make a temporary file in", std::env::temp_dir().display().to_string(), error)
            .hint("set TMPDIR to a directory with room")
    };
    let file = tempfile::Builder::new().prefix("hikyaku-bench-").tempfile().map_err(failed)?;
    file.as_file().set_len(bytes).map_err(failed)?;
    let words = format!("file:{}", file.path().display().to_string().replace(',', ",,"));
    Ok((file, words))
}

/// Fills a file with data that no file system can compress.
fn fill(context: &Context, io: &mut Io, words: &str, bytes: u64) -> Result<(), Failure> {
    let pattern = Named::parse(context, &format!("pattern:{bytes}:1"), &[])?;
    let file = Named::parse(context, words, &[])?;
    let media = [open(context, &pattern, false)?, open(context, &file, true)?];
    let mut endpoints = endpoint::attach(io, &[(&pattern, &media[0]), (&file, &media[1])])?;
    let (mut to, mut from) = (endpoints.remove(1), endpoints.remove(0));
    let stop = &context.stop;
    let mut observer = |_: &mover::Progress| {
        if stop.is_requested() { mover::Control::Stop } else { mover::Control::Continue }
    };
    let plan = Plan { allow_block_size: true, ..Plan::default() };
    mover::copy(io, &mut *from, &mut *to, &plan, &mut observer).map_err(|error| match &error {
        CopyError::Interrupted { .. } => stop.failure("finish", "the measurement"),
        error => engine_failure(error, "fill", &pattern.text, &file.text),
    })?;
    Ok(())
}
