//! Files that `analyze` reads: what they are, and what to do about one that cannot be read.

use std::fs::{self, File};
use std::io::{self, Cursor, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use job::Stop;
use job::shell::quoted;
use monitor::analysis::Report;
use monitor::capture::{COMMAND as CAPTURE, CaptureError, Reader};
use monitor::record::{self, RecordError};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::advice;
use crate::error::Failure;

/// How long a read of a pipe waits before it looks whether a signal has come.
const WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// First bytes of a file that tell a recording.
const BEGINNING_BYTES: usize = 4;
/// Entries of a directory that are looked at.
const ENTRIES_MAX: usize = 4096;
/// Packets that are looked at to name the port of an unknown connection.
const LOOKED_AT_PACKETS_MAX: u32 = 100_000;

pub(super) enum Source {
    Capture(Box<dyn Read + Send>),
    Recording(Box<dyn Read + Send>),
}

pub(super) fn is_stdin(file: &Path) -> bool {
    file == Path::new("-")
}

pub(super) fn shown(file: &Path) -> String {
    if is_stdin(file) { "standard input".to_owned() } else { file.display().to_string() }
}

/// Opens a file and looks at its beginning. The source ends when `stop` is requested.
pub(super) fn open(file: &Path, stop: &Stop) -> Result<Source, Failure> {
    let failed = |error: io::Error| Failure::failed("read the capture", shown(file), error);
    let opened = if is_stdin(file) {
        File::from(io::stdin().as_fd().try_clone_to_owned().map_err(failed)?)
    } else {
        // The open of a FIFO without a writer would wait, whatever signal comes.
        let mut options = File::options();
        let opened = options.read(true).custom_flags(libc::O_NONBLOCK).open(file);
        opened.map_err(|error| unopened(file, error))?
    };
    let metadata = opened.metadata().map_err(failed)?;
    if metadata.is_dir() {
        return Err(directory(file));
    }
    let mut input = Input { file: opened, waits: !metadata.is_file(), stop: stop.clone() };
    let mut beginning = Vec::new();
    input.by_ref().take(BEGINNING_BYTES as u64).read_to_end(&mut beginning).map_err(failed)?;
    let is_recording = record::is_recording(&beginning);
    let whole = Box::new(Cursor::new(beginning).chain(input));
    Ok(if is_recording { Source::Recording(whole) } else { Source::Capture(whole) })
}

/// Bytes of a file until a signal comes.
struct Input {
    file: File,
    /// A read may block: of a pipe, a socket or a terminal.
    waits: bool,
    stop: Stop,
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.stop.is_requested() {
                return Ok(0);
            }
            if self.waits && !is_ready(&self.file)? {
                continue;
            }
            match self.file.read(buffer) {
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
                result => return result,
            }
        }
    }
}

fn is_ready(file: &File) -> io::Result<bool> {
    let mut polled = [PollFd::new(file, PollFlags::IN)];
    match rustix::event::poll(&mut polled, Some(&WAIT)) {
        Ok(count) => Ok(count > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn unopened(file: &Path, error: io::Error) -> Failure {
    let text = file.display().to_string();
    let hint = match error.kind() {
        _ if text.contains("://") => live(&text),
        io::ErrorKind::NotFound if text.parse::<std::net::SocketAddr>().is_ok() => live(&text),
        io::ErrorKind::NotFound => advice::missing(file),
        io::ErrorKind::PermissionDenied => advice::denied(file, false),
        _ => String::new(),
    };
    Failure::failed("open the capture", text, error).hint(hint)
}

/// For a live connection in the place of a file.
fn live(address: &str) -> String {
    format!("analyze reads files: hikyaku watch {}, or {CAPTURE}", quoted(address))
}

fn directory(file: &Path) -> Failure {
    let is_capture = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
        [".pcap", ".pcapng", ".cap", ".pcap.gz", ".pcapng.gz", ".rec"].iter().any(|end| name.ends_with(end))
    };
    let entries = fs::read_dir(file).into_iter().flatten().take(ENTRIES_MAX);
    let found = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_capture).min();
    let hint = match found {
        Some(path) => format!("hikyaku analyze {}", quoted(&path.display().to_string())),
        None => format!("name a file; to make one: {CAPTURE}"),
    };
    Failure::usage("open the capture", shown(file), "it is a directory").hint(hint)
}

pub(super) fn unreadable(file: &Path, error: &CaptureError) -> Failure {
    Failure::failed("read the capture", shown(file), error)
}

pub(super) fn unreadable_recording(file: &Path, error: &RecordError) -> Failure {
    Failure::failed("read the recording", shown(file), error)
}

/// A capture without iSCSI is a failure: what is in it, and what to capture.
pub(super) fn nothing(files: &[PathBuf], is_recording: bool, report: &Report, stop: &Stop) -> Failure {
    let names: Vec<_> = files.iter().map(|file| shown(file)).collect();
    if is_recording {
        let failure =
            Failure::failed("analyze", names.join(" "), "no connection of the recording carried data");
        return failure.hint("record while the slow load runs: hikyaku watch --record FILE --for 60s");
    }
    let frames = &report.frames;
    let cause = format!("no iSCSI connection in {} frames, {} of them TCP", frames.frames, frames.tcp);
    let failure = |cause| Failure::failed("analyze", names.join(" "), cause);
    if frames.frames == 0 {
        return failure("the capture holds no frame".to_owned())
            .hint(format!(
                "capture while the slow load runs, on the interface that carries it (-i any: all of them): {CAPTURE}"
            ));
    }
    if frames.tcp == 0 {
        let kinds: Vec<_> = frames.others().map(|(kind, count)| format!("{kind}: {count}")).collect();
        return failure(format!("{cause}; {}", kinds.join(", ")))
            .hint(format!(
                "capture on the interface of the connection (ip route get ADDRESS OF THE TARGET names it; -i any: all of them): {CAPTURE}"
            ));
    }
    let first = files.last().filter(|file| !is_stdin(file));
    let name = first.map_or_else(|| "FILE".to_owned(), |file| quoted(&file.display().to_string()));
    let hint = match first.and_then(|file| busiest_port(file, stop)) {
        Some(port) => format!(
            "most data is of port {port}: if an iSCSI target has it, hikyaku analyze --port {port} {name}; otherwise {CAPTURE}"
        ),
        None => format!("name the target's port: hikyaku analyze --port N {name}"),
    };
    failure(cause).hint(hint)
}

/// The lower port of the connection with most data among the first packets.
fn busiest_port(file: &Path, stop: &Stop) -> Option<u16> {
    // A pipe is read once.
    if !fs::metadata(file).is_ok_and(|metadata| metadata.is_file()) {
        return None;
    }
    let Ok(Source::Capture(source)) = open(file, stop) else { return None };
    let mut reader = Reader::new(source).ok()?;
    let mut bytes = vec![0u64; usize::from(u16::MAX) + 1];
    for _ in 0..LOOKED_AT_PACKETS_MAX {
        let Ok(Some(packet)) = reader.next() else { break };
        let port = packet.source.port().min(packet.destination.port());
        let sum = &mut bytes[usize::from(port)];
        *sum = sum.saturating_add(packet.payload_bytes.into());
    }
    let (port, most) = bytes.into_iter().enumerate().max_by_key(|(_, sum)| *sum)?;
    u16::try_from(port).ok().filter(|port| most > 0 && *port > 0)
}
