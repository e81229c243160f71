//! `hikyaku-lab`: the papers' experiments as a program. `hikyaku lab` runs it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use block::OpenOptions;
use clap::Parser;
use host::{Kernel, Node};
use job::{Address, Ending, Failure, Local, Stop, refusals, units};
use lab::{Experiment, LabError, Observer, Options, Report};
use serde_json::Value;

/// The value of `--json` without a file.
const STDOUT: &str = "-";
/// Name of a side of an experiment: only experiments start it, not users.
const PART: &str = "part";

/// Run an experiment of the papers that hikyaku comes from, or list them
///
/// Sides run in processes of their own, on this machine, with memory as storage unless told otherwise; nothing is left behind.
/// A run takes minutes and wants the machine for itself.
#[derive(Debug, Parser)]
#[command(
    name = "hikyaku lab",
    version,
    after_help = "\
Examples:
  hikyaku lab list
  hikyaku lab secure-read --quick
  hikyaku lab secure-read --json secure-read.json --svg figures
  hikyaku lab secure-read --block 32K --block 1M --depth 1 --row plain --row 3DES
  hikyaku lab device-copy --json device-copy.json --svg figures
  hikyaku lab device-copy --source /dev/sdx --destination /dev/sdy
  hikyaku lab wan-write --quick
  hikyaku lab wan-write --json wan-write.json --svg figures
  hikyaku lab wan-write --row 'copy by hikyaku' --row 'copy by a raw socket' --reps 5
  hikyaku lab wan-write --row 'packets of as open-iscsi' --svg figures
  hikyaku lab packet-send --json packet-send.json --svg figures
  hikyaku lab packet-send --row 'a send taken apart' --block 256 --block 64K
  hikyaku lab secure-read --modes tests/kernel-lab/modes/run"
)]
struct Args {
    /// No remarks: results, warnings and errors only
    #[arg(short, long)]
    quiet: bool,

    /// Which one, or `list`
    #[arg(value_name = "NAME")]
    name: String,

    /// device-copy: copy from the beginning of this device or file instead of from memory
    #[arg(long, value_name = "PATH", requires = "destination")]
    source: Option<String>,

    /// device-copy: copy to the beginning of this one; what it holds is lost, refused as `copy` refuses it
    #[arg(long, value_name = "PATH", requires = "source")]
    destination: Option<String>,

    /// One short round of one size: shows that it works, not what is true
    #[arg(long)]
    quick: bool,

    /// Only blocks of this size; may be repeated [default: the experiment's sizes]
    #[arg(long, value_name = "SIZE", value_parser = parse_block)]
    block: Vec<u32>,

    /// Only with so many requests or buffers in flight; may be repeated [default: the experiment's depths]
    #[arg(long, value_name = "N")]
    depth: Vec<u32>,

    /// wan-write, packet-send: measure so often, in turn [default: 3 copies, 5 rounds; with --quick 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    reps: Option<u8>,

    /// Only rows whose name contains this; may be repeated
    #[arg(long, value_name = "TEXT")]
    row: Vec<String>,

    /// Only the papers' appendix, one work in kernel mode and in user mode, by this program: tests/kernel-lab/modes/run of the sources
    #[arg(long, value_name = "PROGRAM", conflicts_with_all = ["quick", "block", "depth", "row", "svg", "source"])]
    modes: Option<PathBuf>,

    /// Write everything as JSON to this file, or to stdout instead of the tables
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = STDOUT)]
    json: Option<PathBuf>,

    /// Draw the figures into this folder
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
}

fn parse_block(text: &str) -> Result<u32, String> {
    u32::try_from(units::parse_size(text)?).map_err(|_| "too large".to_owned())
}

impl Args {
    /// Whether stdout gets JSON.
    fn is_json(&self) -> bool {
        self.json.as_deref() == Some(Path::new(STDOUT))
    }
}

/// Prints progress on stderr: one line per tenth. A progress bar would add load to the measurement.
struct Progress {
    stop: Stop,
    prints: bool,
    tenths: u32,
}

impl Observer for Progress {
    fn on_progress(&mut self, doing: &str, done: f64) {
        let tenths = (done * 10.0) as u32;
        if tenths > self.tenths {
            self.tenths = tenths;
            if self.prints {
                eprintln!("{} % done; now {doing}", tenths * 10);
            }
        }
    }

    fn is_stopped(&self) -> bool {
        self.stop.is_requested()
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let stop = Stop::default();
    if let Err(error) = catch_signals(&stop) {
        eprintln!("warning: signals cannot be caught ({error}): an interruption will not be orderly");
    }
    match run(&args, &stop) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if args.is_json() {
                eprintln!("{}", failure.to_json());
            } else {
                eprintln!("error: {failure}");
            }
            ExitCode::from(failure.ending.code())
        }
    }
}

fn catch_signals(stop: &Stop) -> std::io::Result<()> {
    let mut signals = signal_hook::iterator::Signals::new([libc::SIGINT, libc::SIGTERM])?;
    let stop = stop.clone();
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for number in signals.forever() {
            if !stop.request(number) {
                std::process::exit(128 + number);
            }
        }
    })?;
    Ok(())
}

fn run(args: &Args, stop: &Stop) -> Result<(), Failure> {
    match args.name.as_str() {
        "list" => Experiment::ALL
            .iter()
            .try_for_each(|experiment| line(&format!("{}\t{}", experiment.name, experiment.about))),
        PART => {
            // A part ends when its stdin is closed, at the latest with the process that started it.
            let _orderly = stop.orderly();
            lab::part::run().map_err(|error| failure(stop, "be a part of an experiment", PART, &error))
        }
        name => {
            let found = Experiment::ALL.iter().find(|experiment| experiment.name == name);
            let experiment = found.ok_or_else(|| {
                let names: Vec<_> = Experiment::ALL.iter().map(|experiment| experiment.name).collect();
                let cause = format!("there is no such experiment; there is: {}", names.join(", "));
                Failure::usage("run the experiment", name, cause).hint("hikyaku lab list")
            })?;
            if args.source.is_some() && !experiment.copies {
                let cause = "it copies nothing, so it takes no --source and --destination";
                return Err(Failure::usage("run the experiment", name, cause));
            }
            let _orderly = stop.orderly();
            let options = Options {
                quick: args.quick,
                blocks: args.block.clone(),
                depths: args.depth.clone(),
                reps: args.reps.map(usize::from),
                rows: args.row.clone(),
                modes: args.modes.clone(),
                devices: devices(args)?,
            };
            let prints = !args.quiet && !args.is_json();
            let mut progress = Progress { stop: stop.clone(), prints, tenths: 0 };
            let report = experiment.run(&options, &mut progress);
            write_results(args, &report.map_err(|error| failure(stop, "run the experiment", name, &error))?)
        }
    }
}

/// The given source and destination, after the checks of `copy`.
fn devices(args: &Args) -> Result<Option<[PathBuf; 2]>, Failure> {
    let (Some(source), Some(destination)) = (&args.source, &args.destination) else { return Ok(None) };
    let [(source, from), (destination, to)] = [plain(source)?, plain(destination)?];
    let (text, paths) = (destination.text(), [from, to]);
    if !paths[1].exists() {
        return Err(Failure::refused("copy to", text, "it does not exist"));
    }
    let nodes = Node::of(&paths[0]).zip(Node::of(&paths[1]));
    if nodes.is_some_and(|(one, other)| Kernel::default().is_same(one, other)) {
        let cause = format!("it is the same storage as the source {}", source.text());
        return Err(Failure::refused("copy to", text, cause));
    }
    refusals::spoil_path(text, destination.spec())?;
    let mut io = job::event_loop()?;
    let options = OpenOptions { writable: true, request_alignment: 4096, allow_in_use: false };
    let medium = destination.open(&options)?;
    let attached = job::attach(&mut io, &medium);
    let mut attached = attached.map_err(|error| Failure::open("open", text, &error))?;
    refusals::spoil(&mut io, text, &mut *attached)?;
    Ok(Some(paths))
}

/// A device or file without options, and its path.
fn plain(words: &str) -> Result<(Local, PathBuf), Failure> {
    let local = Local::parse(words).ok().filter(|local| local.spec().options.is_empty());
    let path = local.as_ref().and_then(|local| (local as &dyn Address).path().map(Path::to_owned));
    local.zip(path).ok_or_else(|| {
        let cause =
            "it is no path of a device or file without options, which is what all who copy here understand";
        Failure::usage("run the experiment on", words, cause)
    })
}

fn failure(stop: &Stop, attempted: &str, name: &str, error: &LabError) -> Failure {
    match error {
        LabError::Usage(_) => Failure::usage(attempted, name, error).hint("hikyaku lab --help"),
        LabError::Failed { .. } => Failure::failed(attempted, name, error),
        LabError::Interrupted => stop.failure("finish", name),
    }
}

/// Prints a line of the result. If the reader has closed the pipe, the program ends without a message.
fn line(text: &str) -> Result<(), Failure> {
    writeln!(std::io::stdout(), "{text}")
        .map_err(|error| Failure::new(Ending::Failed, "write", "stdout", error))
}

fn write_results(args: &Args, report: &Report) -> Result<(), Failure> {
    let write = |path: &Path, text: &str| {
        std::fs::write(path, text)
            .map_err(|error| Failure::failed("write", path.display().to_string(), error))
    };
    if let Some(folder) = &args.svg {
        std::fs::create_dir_all(folder)
            .map_err(|error| Failure::failed("make the folder", folder.display().to_string(), error))?;
        for (name, figure) in &report.figures {
            write(&folder.join(name), figure)?;
        }
    }
    let json: &Value = &report.json;
    match &args.json {
        Some(_) if args.is_json() => return line(&json.to_string()),
        Some(path) => write(path, &format!("{json:#}\n"))?,
        None => {}
    }
    line(report.text.trim_end())
}
