//! `analyze`: what limits the iSCSI connections of a capture.

mod object;
mod text;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use job::shell::quoted;
use monitor::analysis::{Analyzer, Options, Report};
use monitor::capture::{CaptureError, Reader};

use crate::context::Context;
use crate::error::{Exit, Failure};
use crate::output;

/// Say what limits an iSCSI connection, from a packet capture
///
/// Reads pcap and pcapng, also compressed by gzip, or from a pipe (`-`), and prints one sentence for each iSCSI connection: what the
/// limit is, what removing it gains, what limits next, and what to type. Then the figures that it rests on: round trip, windows,
/// losses, and three times of every command: data (Ta), last data to the response (Tb), response to the next command (Tc). Headers
/// are enough: capture with `tcpdump -s 200`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tcpdump -i eth0 -s 200 -w slow.pcap port 3260
  hikyaku analyze slow.pcap
  ssh root@host tcpdump -U -s 200 -w - port 3260 | hikyaku analyze -
  hikyaku analyze slow.pcap --json | jq '.flows[0].verdict'")]
pub(crate) struct Args {
    /// Captures, in the order of their time; - is standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// A port of targets, besides 3260 and connections that begin with an iSCSI login
    #[arg(long, value_name = "PORT")]
    port: Vec<u16>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<Exit, Failure> {
    let _orderly = context.stop.orderly();
    let report = analyze(context, args, &args.files)?;
    if args.json {
        output::json(&object::report(&report));
    } else if report.flows.is_empty() {
        return Err(nothing(args, &report));
    } else {
        text::print(&report);
    }
    Ok(context.stop.signal().map_or(Exit::Done, Exit::Interrupted))
}

/// Reads `files` as one capture. A signal ends the reading: what was read until then is analysed.
fn analyze(context: &Context, args: &Args, files: &[PathBuf]) -> Result<Report, Failure> {
    let mut analyzer = Analyzer::new(Options { ports: args.port.clone(), ..Options::default() });
    let mut reader: Option<Reader> = None;
    for file in files {
        let failed = |error: CaptureError| unreadable(file, &error);
        let source = open(file)?;
        let reader = match &mut reader {
            Some(reader) => {
                reader.then(source).map_err(failed)?;
                reader
            }
            none => none.insert(Reader::new(source).map_err(failed)?),
        };
        while let Some(packet) = reader.next().map_err(failed)? {
            analyzer.handle(&packet);
            if context.stop.is_requested() {
                break;
            }
        }
    }
    let names: Vec<_> = files.iter().map(|file| shown(file)).collect();
    let (counts, notes) = reader.map(|reader| (reader.counts(), reader.notes())).unwrap_or_default();
    Ok(analyzer.finish(&names.join(" "), counts, &notes))
}

fn is_stdin(file: &Path) -> bool {
    file == Path::new("-")
}

fn shown(file: &Path) -> String {
    if is_stdin(file) { "standard input".to_owned() } else { file.display().to_string() }
}

fn open(file: &Path) -> Result<Box<dyn Read + Send>, Failure> {
    if is_stdin(file) {
        return Ok(Box::new(io::stdin()));
    }
    let opened = File::open(file).map_err(|error| {
        Failure::failed("open the capture", shown(file), error)
            .hint("tcpdump -i any -s 200 -w FILE.pcap port 3260 makes one")
    })?;
    if opened.metadata().is_ok_and(|metadata| metadata.is_dir()) {
        return Err(Failure::usage("open the capture", shown(file), "it is a directory").hint("name a file"));
    }
    Ok(Box::new(opened))
}

fn unreadable(file: &Path, error: &CaptureError) -> Failure {
    Failure::failed("read the capture", shown(file), error)
}

/// A capture without iSCSI is a failure: what is in it, and what to capture.
fn nothing(args: &Args, report: &Report) -> Failure {
    let files: Vec<_> = args.files.iter().map(|file| shown(file)).collect();
    let cause =
        format!("no iSCSI connection in {} frames, {} of them TCP", report.frames.frames, report.frames.tcp);
    let first = args.files.first().map(|file| file.display().to_string()).unwrap_or_default();
    let hint = format!("name the target's port: hikyaku analyze --port N {}", quoted(&first));
    Failure::failed("analyze", files.join(" "), cause).hint(hint)
}
