//! `analyze`: what limits the iSCSI connections of a capture.

mod input;
mod object;
mod text;
mod written;

use std::path::{Path, PathBuf};

use monitor::analysis::{Analyzer, Options, Report};
use monitor::capture::{COMMAND, CaptureError, Reader};
use monitor::record;

use self::input::{Source, is_stdin, open, shown, unreadable};
use self::written::Outputs;
use crate::context::Context;
use crate::error::{Exit, Failure};
use crate::output;

/// Say what limits an iSCSI connection, from a packet capture
///
/// Reads pcap and pcapng, also compressed by gzip, recordings of `hikyaku watch --record`, or either from a pipe (`-`), and prints one sentence for each iSCSI connection: what the
/// limit is, what removing it gains, what limits next, and what to type. Then the figures that it rests on: round trip, windows,
/// losses, and three times of every command: data (Ta), last data to the response (Tb), response to the next command (Tc). Headers
/// are enough: capture with `tcpdump -s 700`. A recording has samples of the socket and no packets: it shows windows and buffers,
/// and not what iSCSI waits for. Of two files the second is compared with the first (before and after a change), unless it
/// continues it; more files are one capture.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tcpdump -i any -s 700 -w slow.pcap tcp port 3260
  hikyaku analyze slow.pcap
  ssh root@host tcpdump -i any -U -s 700 -w - tcp port 3260 | hikyaku analyze -
  hikyaku analyze slow.pcap --html slow.html
  hikyaku analyze slow.pcap --slim to-send.pcapng
  hikyaku analyze slow.pcap tuned.pcap                  what changed?
  hikyaku analyze slow.rec                              of watch --record
  hikyaku analyze slow.pcap --json | jq '.flows[0].verdict'")]
pub(crate) struct Args {
    /// Captures, in the order of their time, or recordings; - is standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// A port of targets, besides 3260 and connections that begin with an iSCSI login
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
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

    /// Write the capture without payload, addresses and names, to be sent to others; its verdict is the same
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
    let (before, read) = match args.files.as_slice() {
        [first, second] => {
            let before = run.analyze(&[first], None)?;
            if context.stop.is_requested() {
                (None, before)
            } else if !is_stdin(first) && continues(context, second, &before)? {
                (None, run.analyze(&[first, second], Some(&mut outputs))?)
            } else {
                (Some(before), run.analyze(&[second], Some(&mut outputs))?)
            }
        }
        files => (None, run.analyze(&files.iter().collect::<Vec<_>>(), Some(&mut outputs))?),
    };
    if read.report.flows.is_empty() {
        if context.stop.is_requested() {
            return Err(context.stop.failure("analyze", shown(&args.files[0])));
        }
        return Err(input::nothing(&args.files, read.is_recording, &read.report, &context.stop));
    }
    let remark = before.as_ref().and_then(|before| order(before, &read));
    let (before, mut report) = (before.map(|read| read.report), read.report);
    report.notes.extend(remark.map(str::to_owned));
    outputs.finish(context, before.as_ref(), &report)?;
    match (args.json, before) {
        (true, before) => output::json_parts(object::report(before.as_ref(), &report)),
        (false, Some(before)) => text::print_change(&before, &report, remark),
        (false, None) => text::print(&report),
    }
    Ok(context.stop.signal().map_or(Exit::Done, Exit::Interrupted))
}

/// What is said of two files that are not a capture before a change and one after it.
fn order(before: &Analysed, after: &Analysed) -> Option<&'static str> {
    let of = |read: &Analysed| {
        let flow = read.report.flows.first();
        flow.map(|flow| {
            (flow.flow.initiator.clone(), flow.flow.target.clone(), flow.payload_bytes, flow.seconds)
        })
    };
    let (first, second) = (of(before)?, of(after)?);
    let (before_ns, after_ns) = (before.report.ended_ns, after.report.ended_ns);
    if first == second && before_ns == after_ns {
        return Some("both files hold the same connection at the same time: there is no change to show");
    }
    // The clock of a recording begins with the machine.
    let first_began_s = before_ns as f64 / 1e9 - first.3;
    let is_older = after_ns as f64 / 1e9 <= first_began_s && !before.is_recording && !after.is_recording;
    is_older.then_some(
        "the second file was captured before the first: if a setting was changed between them, name the older capture first",
    )
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

/// What one or several files hold.
struct Analysed {
    report: Report,
    is_recording: bool,
}

impl Run<'_> {
    /// Reads `files` as one capture, or one recording. A signal ends the reading: what was read until then is analysed.
    fn analyze(&self, files: &[&PathBuf], outputs: Option<&mut Outputs>) -> Result<Analysed, Failure> {
        let stop = &self.context.stop;
        let has_pictures = outputs.as_ref().is_some_and(|outputs| outputs.has_pictures())
            || self.args.html.is_some() && self.args.files.len() == 2;
        let mut captures = Captures {
            analyzer: Analyzer::new(Options {
                ports: self.args.port.clone(),
                has_pictures,
                ..Options::default()
            }),
            reader: None,
            outputs,
        };
        for file in files {
            match open(file, stop)? {
                Source::Recording(source) => {
                    self.check_recording(file, files.len(), captures.outputs.is_some())?;
                    let report = record::analyze(source, &shown(file), has_pictures);
                    let report = report.map_err(|error| input::unreadable_recording(file, &error))?;
                    return Ok(Analysed { report, is_recording: true });
                }
                Source::Capture(source) => {
                    let read = captures.read(source, self.context);
                    let read = read.map_err(|error| match error {
                        ReadError::Capture(_) if stop.is_requested() => {
                            stop.failure("read the capture", shown(file))
                        }
                        ReadError::Capture(error) => unreadable(file, &error),
                        ReadError::Output(failure) => failure,
                    });
                    read?;
                }
            }
            if stop.is_requested() {
                break;
            }
        }
        let names: Vec<_> = files.iter().map(|file| shown(file)).collect();
        let mut report = captures.finish(&names.join(" "));
        if stop.is_requested() {
            report.notes.push("interrupted: only what was read until then is analysed".to_owned());
        }
        Ok(Analysed { report, is_recording: false })
    }

    /// A recording has no packets, and is one file.
    fn check_recording(&self, file: &Path, count: usize, is_written: bool) -> Result<(), Failure> {
        let refused = |cause: String| Failure::usage("analyze the recording", shown(file), cause);
        if count > 1 {
            return Err(refused("a recording is read alone, or compared with one other file".to_owned())
                .hint("name one or two files"));
        }
        let Args { pcapng, slim, xpl, .. } = self.args;
        for (option, is_wanted) in
            [("--pcapng", pcapng.is_some()), ("--slim", slim.is_some()), ("--xpl", xpl.is_some())]
        {
            if is_wanted && is_written {
                let cause = format!("it has samples of a socket and no packets, which {option} needs");
                return Err(refused(cause).hint(format!(
                    "--html or --svg show a recording; for {option} capture the packets: {COMMAND}"
                )));
            }
        }
        Ok(())
    }
}

/// Captures that are read one after another.
struct Captures<'a> {
    analyzer: Analyzer,
    reader: Option<Reader>,
    outputs: Option<&'a mut Outputs>,
}

enum ReadError {
    Capture(CaptureError),
    Output(Failure),
}

impl From<CaptureError> for ReadError {
    fn from(error: CaptureError) -> Self {
        Self::Capture(error)
    }
}

impl Captures<'_> {
    fn read(&mut self, source: Box<dyn std::io::Read + Send>, context: &Context) -> Result<(), ReadError> {
        let Self { analyzer, reader, outputs } = self;
        let reader = match reader {
            Some(reader) => {
                reader.then(source)?;
                reader
            }
            none => none.insert(Reader::new(source)?),
        };
        while reader.advance()? {
            let packet = reader.packet();
            match outputs {
                Some(outputs) if outputs.sees() => {
                    if let Some(packet) = &packet {
                        analyzer.handle_seen(packet, |seen| outputs.see(seen));
                    }
                    outputs.frame(&reader.frame(), packet.as_ref()).map_err(ReadError::Output)?;
                }
                _ => {
                    if let Some(packet) = &packet {
                        analyzer.handle(packet);
                    }
                }
            }
            if context.stop.is_requested() {
                break;
            }
        }
        Ok(())
    }

    fn finish(self, names: &str) -> Report {
        let (counts, notes) = self.reader.map(|reader| (reader.counts(), reader.notes())).unwrap_or_default();
        self.analyzer.finish(names, counts, &notes)
    }
}

/// Packets of a second capture that are looked at to find whether it continues the first one.
const CONTINUED_PACKETS_MAX: u32 = 1000;
/// Longest time between the end of a capture and the beginning of the one that continues it.
const CONTINUED_WITHIN_NS: u64 = 1_000_000_000;

/// Whether the capture begins where the first one ended, within one of its connections.
fn continues(context: &Context, file: &Path, first: &Analysed) -> Result<bool, Failure> {
    // A pipe is read once.
    let is_file = !is_stdin(file) && std::fs::metadata(file).is_ok_and(|metadata| metadata.is_file());
    if first.is_recording || !is_file {
        return Ok(false);
    }
    let first = &first.report;
    let failed = |error: CaptureError| unreadable(file, &error);
    let Source::Capture(source) = open(file, &context.stop)? else { return Ok(false) };
    let mut reader = Reader::new(source).map_err(failed)?;
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

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::Args as _;
    use monitor::capture::{COMMAND, SNAP_BYTES};

    use super::Args;

    /// A capture by the command that is documented gets no note that it is too short.
    #[test]
    fn one_capture_command_is_documented() {
        assert!(COMMAND.contains(&format!(" -s {SNAP_BYTES} ")), "{COMMAND}");
        let mut texts = vec![(
            "help".to_owned(),
            Args::augment_args(clap::Command::new("analyze")).render_long_help().to_string(),
        )];
        for page in ["README.md", "docs/guides/slow.md"] {
            let path = format!("{}/../../{page}", env!("CARGO_MANIFEST_DIR"));
            texts.push((page.to_owned(), fs::read_to_string(path).unwrap()));
        }
        for (page, text) in texts {
            assert!(text.contains(COMMAND), "{page}");
            let lengths =
                text.match_indices(" -s ").filter_map(|(at, _)| text[at + 4..].split_whitespace().next());
            let lengths: Vec<_> =
                lengths.filter_map(|word| word.trim_matches('`').parse::<u32>().ok()).collect();
            assert!(lengths.iter().all(|bytes| *bytes == SNAP_BYTES), "{page}: {lengths:?}");
        }
    }
}
