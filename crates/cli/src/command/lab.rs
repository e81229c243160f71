//! `lab`: the papers' experiments.

use std::path::{Path, PathBuf};

use block::OpenOptions;
use block::device::{Kernel, Node};
use lab::{Experiment, LabError, Observer, Options, Report};

use crate::command::copy::refusals;
use crate::context::Context;
use crate::endpoint::{self, Named};
use crate::error::{Exit, Failure};
use crate::output::{self, Table};
use crate::units;

/// What `--json` means without a file.
const STDOUT: &str = "-";
/// The name of a side of an experiment: a process that an experiment starts, not a person.
const PART: &str = "part";

/// Run an experiment of the papers this program comes from, or list them
///
/// Sides run in processes of their own, on this machine, with memory as storage unless told otherwise; nothing is left behind.
/// A run takes minutes and wants the machine for itself.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hikyaku lab list
  hikyaku lab secure-read --quick
  hikyaku lab secure-read --json secure-read.json --svg figures
  hikyaku lab secure-read --block 32K --block 1M --depth 1 --row plain --row 3DES
  hikyaku lab device-copy --json device-copy.json --svg figures
  hikyaku lab device-copy --source /dev/sdx --destination /dev/sdy
  hikyaku lab secure-read --modes tests/kernel-lab/modes/run")]
pub(crate) struct Args {
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
    /// Whether programs read stdout.
    pub(crate) fn is_json(&self) -> bool {
        self.json.as_deref() == Some(Path::new(STDOUT))
    }
}

/// Shows on stderr what is going on.
struct Onlooker<'a> {
    context: &'a Context,
    /// A line for each tenth that is done; a bar would be part of what is measured.
    tenths: u32,
}

impl Observer for Onlooker<'_> {
    fn tell(&mut self, doing: &str, done: f64) {
        let tenths = (done * 10.0) as u32;
        if tenths > self.tenths {
            self.tenths = tenths;
            self.context.remark(&format!("{} % done; now {doing}", tenths * 10));
        }
    }

    fn is_stopped(&self) -> bool {
        self.context.stop.is_asked()
    }
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<Exit, Failure> {
    match args.name.as_str() {
        "list" => {
            let mut table = Table::new(&["name", "about"]);
            for experiment in Experiment::ALL {
                table.row(vec![experiment.name.to_owned(), experiment.about.to_owned()]);
            }
            table.print();
            Ok(Exit::Done)
        }
        PART => {
            // Ends with whoever started it: its stdin ends then.
            let _orderly = context.stop.orderly();
            lab::part::run().map_err(|error| failure(context, "be a part of an experiment", PART, &error))?;
            Ok(Exit::Done)
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
            let _orderly = context.stop.orderly();
            let options = Options {
                quick: args.quick,
                blocks: args.block.clone(),
                depths: args.depth.clone(),
                rows: args.row.clone(),
                modes: args.modes.clone(),
                devices: devices(context, args)?,
            };
            let mut onlooker = Onlooker { context, tenths: 0 };
            let report = experiment.run(&options, &mut onlooker);
            let report = report.map_err(|error| failure(context, "run the experiment", name, &error))?;
            deliver(args, &report)?;
            Ok(Exit::Done)
        }
    }
}

/// The storage that the user named, fit to be copied from and to.
fn devices(context: &Context, args: &Args) -> Result<Option<[PathBuf; 2]>, Failure> {
    let (Some(source), Some(destination)) = (&args.source, &args.destination) else { return Ok(None) };
    let ends = [Named::parse(context, source, &[])?, Named::parse(context, destination, &[])?];
    let mut paths = Vec::new();
    for named in &ends {
        match named.path().filter(|_| named.spec.options.is_empty()) {
            Some(path) => paths.push(path.to_owned()),
            None => {
                let cause = "it is no path of a device or file without options, which is what all who copy here understand";
                return Err(Failure::usage("run the experiment on", named.text.clone(), cause));
            }
        }
    }
    let [source, destination] = &ends;
    if !paths[1].exists() {
        return Err(Failure::refused("copy to", destination.text.clone(), "it does not exist"));
    }
    let nodes = Node::of(&paths[0]).zip(Node::of(&paths[1]));
    if nodes.is_some_and(|(one, other)| Kernel::default().is_same(one, other)) {
        let cause = format!("it is the same storage as the source {}", source.text);
        return Err(Failure::refused("copy to", destination.text.clone(), cause));
    }
    refusals::spoil_path(destination)?;
    let mut io = endpoint::event_loop()?;
    let options = OpenOptions { writable: true, request_alignment: 4096, allow_in_use: false };
    let medium = destination.open(context, &options)?;
    let mut attached = endpoint::attach(&mut io, &[(destination, &medium)])?.remove(0);
    refusals::spoil(&mut io, destination, &mut *attached)?;
    Ok(paths.try_into().ok())
}

fn failure(context: &Context, attempted: &str, name: &str, error: &LabError) -> Failure {
    match error {
        LabError::Usage(_) => Failure::usage(attempted, name, error).hint("hikyaku lab --help"),
        LabError::Failed { .. } => Failure::failed(attempted, name, error),
        LabError::Interrupted => context.stop.failure("finish", name),
    }
}

fn deliver(args: &Args, report: &Report) -> Result<(), Failure> {
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
    match &args.json {
        Some(_) if args.is_json() => {
            output::json(&report.json);
            return Ok(());
        }
        Some(path) => write(path, &format!("{:#}\n", report.json))?,
        None => {}
    }
    output::line(report.text.trim_end());
    Ok(())
}
