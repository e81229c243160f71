//! `analyze`: what limits the iSCSI connections of a capture.

mod object;
mod text;
mod written;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use job::shell::quoted;
use monitor::analysis::{Analyzer, Options, Report};
use monitor::capture::{CaptureError, Reader};

use self::written::Outputs;
use crate::advice;
use crate::context::Context;
use crate::error::{Exit, Failure};
use crate::output;

/// Say what limits an iSCSI connection, from a packet capture
///
/// Reads pcap and pcapng, also compressed by gzip, or from a pipe (`-`), and prints one sentence for each iSCSI connection: what the
/// limit is, what removing it gains, what limits next, and what to type. Then the figures that it rests on: round trip, windows,
/// losses, and three times of every command: data (Ta), last data to the response (Tb), response to the next command (Tc). Headers
/// are enough: capture with `tcpdump -s 256`. Of two files the second is compared with the first (before and after a change), unless it
/// continues it; more files are one capture.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tcpdump -i eth0 -s 256 -w slow.pcap port 3260
  hikyaku analyze slow.pcap
  ssh root@host tcpdump -U -s 256 -w - port 3260 | hikyaku analyze -
  hikyaku analyze slow.pcap --html slow.html
  hikyaku analyze slow.pcap --slim to-send.pcapng
  hikyaku analyze slow.pcap tuned.pcap                  what changed?
  hikyaku analyze slow.pcap --json | jq '.flows[0].verdict'")]
pub(crate) struct Args {
    /// Captures, in the order of their time; - is standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// A port of targets, besides 3260 and connections that begin with an iSCSI login
    #[arg(long, value_name = "PORT")]
    port: Vec<u16>,

    /// Write one page with charts; it needs no network
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Write the charts as files
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,

    /// Write time-sequence graphs for xplot, named as tcptrace does
    #[arg(long, value_name = "DIR")]
    xpl: Option<PathBuf>,

    /// Write the capture with a comment for each PDU, for Wireshark
    #[arg(long, value_name = "FILE")]
    pcapng: Option<PathBuf>,

    /// Write the capture without payload, addresses and names, for someone else's eyes; it gives the same verdict
    #[arg(long, value_name = "FILE")]
    slim: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<Exit, Failure> {
    check(args)?;
    let _orderly = context.stop.orderly();
    let mut outputs = Outputs::new(args)?;
    let run = Run { context, args };
    let (before, report) = match args.files.as_slice() {
        [first, second] => {
            let before = run.analyze(&[first], None)?;
            if !is_stdin(first) && continues(second, &before)? {
                (None, run.analyze(&[first, second], Some(&mut outputs))?)
            } else {
                (Some(before), run.analyze(&[second], Some(&mut outputs))?)
            }
        }
        files => (None, run.analyze(&files.iter().collect::<Vec<_>>(), Some(&mut outputs))?),
    };
    if !args.json && report.flows.is_empty() {
        return Err(nothing(args, &report));
    }
    outputs.finish(context, before.as_ref(), &report)?;
    match (args.json, before) {
        (true, before) => output::json(&object::report(before.as_ref(), &report)),
        (false, Some(before)) => text::print_change(&before, &report),
        (false, None) => text::print(&report),
    }
    Ok(context.stop.signal().map_or(Exit::Done, Exit::Interrupted))
}

/// Standard input can be read once, and cannot be looked into.
fn check(args: &Args) -> Result<(), Failure> {
    let inputs = args.files.iter().filter(|file| is_stdin(file)).count();
    if inputs > 1 {
        return Err(Failure::usage("read the captures", "-", "standard input is named twice"));
    }
    Ok(())
}

struct Run<'a> {
    context: &'a Context,
    args: &'a Args,
}

impl Run<'_> {
    /// Reads `files` as one capture. A signal ends the reading: what was read until then is analysed.
    fn analyze(&self, files: &[&PathBuf], mut outputs: Option<&mut Outputs>) -> Result<Report, Failure> {
        let has_pictures = outputs.as_ref().is_some_and(|outputs| outputs.has_pictures())
            || self.args.html.is_some() && self.args.files.len() == 2;
        let options = Options { ports: self.args.port.clone(), has_pictures, ..Options::default() };
        let mut analyzer = Analyzer::new(options);
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
            while reader.advance().map_err(failed)? {
                let packet = reader.packet();
                match &mut outputs {
                    Some(outputs) if outputs.sees() => {
                        if let Some(packet) = &packet {
                            analyzer.handle_seen(packet, |seen| outputs.see(seen));
                        }
                        outputs.frame(&reader.frame(), packet.as_ref())?;
                    }
                    _ => {
                        if let Some(packet) = &packet {
                            analyzer.handle(packet);
                        }
                    }
                }
                if self.context.stop.is_requested() {
                    break;
                }
            }
        }
        let names: Vec<_> = files.iter().map(|file| shown(file)).collect();
        let (counts, notes) = reader.map(|reader| (reader.counts(), reader.notes())).unwrap_or_default();
        Ok(analyzer.finish(&names.join(" "), counts, &notes))
    }
}

/// Packets of a second capture that are looked at to find whether it continues the first one.
const CONTINUED_PACKETS_MAX: u32 = 1000;
/// Longest time between the end of a capture and the beginning of the one that continues it.
const CONTINUED_WITHIN_NS: u64 = 1_000_000_000;

/// Whether the capture begins where the first one ended, within one of its connections.
fn continues(file: &Path, first: &Report) -> Result<bool, Failure> {
    // A pipe is read once.
    if is_stdin(file) || std::fs::metadata(file).is_ok_and(|metadata| !metadata.is_file()) {
        return Ok(false);
    }
    let failed = |error: CaptureError| unreadable(file, &error);
    let mut reader = Reader::new(open(file)?).map_err(failed)?;
    for _ in 0..CONTINUED_PACKETS_MAX {
        let Some(packet) = reader.next().map_err(failed)? else { break };
        if packet.at_ns < first.ended_ns || packet.at_ns - first.ended_ns > CONTINUED_WITHIN_NS {
            return Ok(false);
        }
        let ends = [packet.source.to_string(), packet.destination.to_string()];
        let is_known = first
            .flows
            .iter()
            .any(|flow| ends.contains(&flow.flow.initiator) && ends.contains(&flow.flow.target));
        if is_known {
            return Ok(true);
        }
    }
    Ok(false)
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
        let hint = match error.kind() {
            io::ErrorKind::NotFound => advice::missing(file),
            io::ErrorKind::PermissionDenied => advice::denied(file, false),
            _ => String::new(),
        };
        Failure::failed("open the capture", shown(file), error).hint(hint)
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
