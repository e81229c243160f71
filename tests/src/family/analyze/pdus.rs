//! Captures of real connections on loopback, of several programs: every PDU that tshark finds in them is found by
//! `monitor::flow`, with equal fields.

use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use monitor::capture::Reader;
use monitor::event::{Event, Kind};
use monitor::flow::Table;

use crate::family::FULL_ONLY;
use crate::files::empty_file;
use crate::process::wait_until;
use crate::{Cases, Context, Disk, Running, Served, Target, Tgt, Url, program, random, run, scratch};

const LIMIT: Duration = Duration::from_secs(60);
const BYTES: usize = 2 << 20;
/// tshark must find at least so many PDUs.
const PDUS_MIN: usize = 20;
const BHS_BYTES: usize = 48;

/// Fields of tshark and where their bytes are in the header (RFC 7143 section 11).
const FIELDS: [(&str, Range<usize>); 15] = [
    ("iscsi.totalahslength", 4..5),
    ("iscsi.datasegmentlength", 5..8),
    ("iscsi.lun", 8..16),
    ("iscsi.initiatortasktag", 16..20),
    ("iscsi.targettransfertag", 20..24),
    ("iscsi.scsicommand.expecteddatatransferlength", 20..24),
    ("iscsi.cmdsn", 24..28),
    ("iscsi.statsn", 24..28),
    ("iscsi.expstatsn", 28..32),
    ("iscsi.expcmdsn", 28..32),
    ("iscsi.maxcmdsn", 32..36),
    ("iscsi.datasn", 36..40),
    ("iscsi.r2tsn", 36..40),
    ("iscsi.bufferOffset", 40..44),
    ("iscsi.desireddatalength", 44..48),
];

#[derive(Debug)]
struct Pdu {
    opcode: u8,
    fields: Vec<(&'static str, Range<usize>, Vec<u8>)>,
}

impl Pdu {
    fn fits(&self, header: &[u8; BHS_BYTES]) -> bool {
        header[0] & 0x3f == self.opcode
            && self.fields.iter().all(|(_, range, bytes)| header[range.clone()] == bytes[..])
    }
}

fn attribute<'a>(element: &'a str, name: &str) -> Option<&'a str> {
    element.split_once(&format!("{name}=\""))?.1.split('"').next()
}

fn hex(text: &str) -> Option<Vec<u8>> {
    // A field of less than a byte has one digit.
    let text = if text.len() % 2 == 1 { format!("0{text}") } else { text.to_owned() };
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok()).collect()
}

/// PDUs in the order in which tshark shows them.
fn by_tshark(file: &Path, port: u16) -> Result<Vec<Pdu>> {
    let mut command = program("tshark")?;
    command.arg("-n").arg("-r").arg(file).args(["-T", "pdml", "-J", "iscsi", "-Y", "iscsi"]);
    let text = run(command.args(["-d", &format!("tcp.port=={port},iscsi")]), LIMIT)?.success()?.stdout;
    let protocols = text.split("<proto ").filter(|part| part.starts_with("name=\"iscsi\""));
    let pdus = protocols.filter_map(|protocol| {
        let elements: Vec<_> = protocol.split("<field ").skip(1).collect();
        let value = |name: &str| {
            let element = elements.iter().find(|element| attribute(element, "name") == Some(name))?;
            hex(attribute(element, " value")?)
        };
        let opcode = *value("iscsi.opcode")?.first()? & 0x3f;
        let fields = FIELDS.into_iter().filter_map(|(name, range)| {
            let bytes = value(name).filter(|bytes| bytes.len() == range.len())?;
            Some((name, range, bytes))
        });
        Some(Pdu { opcode, fields: fields.collect() })
    });
    Ok(pdus.collect())
}

/// Headers by sender.
fn by_flows(file: &Path, port: u16) -> Result<[Vec<[u8; BHS_BYTES]>; 2]> {
    let mut reader = Reader::new(File::open(file)?)?;
    let mut table = Table::new(&[port]);
    let mut headers: [Vec<[u8; BHS_BYTES]>; 2] = Default::default();
    while let Some(packet) = reader.next()? {
        table.push(&packet, &mut |_, event: &Event| {
            if let Kind::PduStart(start) = &event.kind {
                headers[event.from as usize].push(start.header);
            }
        });
    }
    Ok(headers)
}

fn dump(port: u16, to: &Path) -> Result<Running> {
    let mut command = program("tcpdump")?;
    command
        .args(["-i", "lo", "-s", "0", "-B", "65536", "--immediate-mode", "-U", "-Z", "root", "-w"])
        .arg(to);
    let dump = Running::start(command.args(["tcp", "port", &port.to_string()]))?;
    wait_until(LIMIT, || Ok(dump.stderr().contains("listening on")))
        .with_context(|| format!("tcpdump does not begin: {}", dump.stderr_tail()))?;
    Ok(dump)
}

/// Captures until tshark can read one: on a busy machine packets of the loopback are captured out of order, or are cut so
/// that it looks for digests at the wrong places, and then it takes data for headers.
const RUNS_MAX: usize = 5;

/// Opcodes of RFC 7143 section 11.1, of which no program here sends others.
const OPCODES: [u8; 18] = [
    0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x10, 0x20, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x31, 0x32,
    0x3f,
];

/// Whether tshark sees a gap, a repetition or packets out of order.
fn is_disordered(file: &Path, port: u16) -> Result<bool> {
    let mut command = program("tshark")?;
    let port = format!("tcp.port=={port},iscsi");
    command.arg("-n").arg("-r").arg(file).args(["-d", &port, "-Y"]).arg(
        "tcp.analysis.out_of_order || tcp.analysis.retransmission || tcp.analysis.lost_segment || \
         tcp.analysis.ack_lost_segment",
    );
    Ok(!run(&mut command, LIMIT)?.success()?.stdout.trim().is_empty())
}

/// The program that serves.
#[derive(Clone, Copy, Debug)]
enum Server {
    Ours,
    Tgt,
}

/// What another program, or this one, does with a LUN; the directory is for its files.
type Load = fn(&Context, &Path, &Url) -> Result<()>;

const CASES: [(&str, Server, Load, bool); 7] = [
    ("ours", Server::Ours, copies, true),
    ("ours-digests", Server::Ours, copies_with_digests, true),
    ("qemu", Server::Ours, qemu, false),
    ("qemu-header-digest", Server::Ours, qemu_with_digests, false),
    ("tgt", Server::Tgt, copies, false),
    ("qemu-tgt", Server::Tgt, qemu, false),
    ("libiscsi-tools", Server::Tgt, tools, false),
];

/// Captures what `load` does with a LUN, and compares. False: tshark cannot read the capture.
fn compare(context: &Context, server: Server, load: Load) -> Result<bool> {
    let dir = scratch()?;
    let (stored, capture) = (dir.path().join("lun.img"), dir.path().join("all.pcap"));
    std::fs::write(&stored, random::bytes(&mut context.rng("analyze"), BYTES))?;
    let disks = [Disk::file(&stored)];
    let served = match server {
        Server::Ours => Served::Ours(Target::serve(context, &disks, None, &[])?),
        Server::Tgt => Served::Tgt(Tgt::serve(&disks, None)?),
    };
    let url = served.url(0);
    let port = url.port()?;
    let mut dump = dump(port, &capture)?;
    load(context, dir.path(), url)?;
    dump.signal(libc::SIGINT)?;
    dump.finish(LIMIT)?.success()?;
    let expected = by_tshark(&capture, port)?;
    if is_disordered(&capture, port)? || expected.iter().any(|pdu| !OPCODES.contains(&pdu.opcode)) {
        return Ok(false);
    }
    let headers = by_flows(&capture, port)?;
    ensure!(expected.len() > PDUS_MIN, "tshark finds {} PDUs", expected.len());
    let mut at = [0; 2];
    for pdu in &expected {
        let direction = usize::from(pdu.opcode & 0x20 != 0);
        let rest = headers[direction].get(at[direction]..).unwrap_or(&[]);
        let found = rest.iter().position(|header| pdu.fits(header));
        at[direction] +=
            1 + found.with_context(|| format!("{pdu:x?} is not among the PDUs behind {at:?}"))?;
    }
    Ok(true)
}

/// A copy to the LUN and back.
fn copies_at(context: &Context, dir: &Path, url: &str, options: &[&str]) -> Result<()> {
    let source = dir.join("source.img");
    std::fs::write(&source, random::bytes(&mut context.rng("analyze/write"), BYTES))?;
    let (source, back) = (source.display().to_string(), dir.join("back.img").display().to_string());
    let copy = |arguments: &[&str]| context.ours(&[&["copy"], options, arguments].concat(), LIMIT)?.success();
    copy(&["--force", &source, url])?;
    copy(&[url, &back]).map(drop)
}

fn copies(context: &Context, dir: &Path, url: &Url) -> Result<()> {
    copies_at(context, dir, &url.to_string(), &[])
}

/// Each PDU within a segment of the loopback: tshark loses PDUs with a data digest that begin within a segment and end in
/// another, and takes data for headers.
fn copies_with_digests(context: &Context, dir: &Path, url: &Url) -> Result<()> {
    let url = format!("{url}?header_digest=crc32c&data_digest=crc32c");
    copies_at(context, dir, &url, &["--chunk", "32K", "--depth", "1"])
}

fn qemu_at(dir: &Path, url: &Url, digest: &str) -> Result<()> {
    let back = empty_file(dir.join("back.img"), BYTES as u64)?;
    let image = format!(
        "driver=raw,file.driver=iscsi,file.transport=tcp,file.portal={},file.target={},file.lun={},\
         file.header-digest={digest}",
        url.portal, url.iqn, url.lun
    );
    let convert = |arguments: &[&str]| -> Result<()> {
        run(program("qemu-img")?.args(["convert", "-n"]).args(arguments), LIMIT)?.success().map(drop)
    };
    let back = back.display().to_string();
    convert(&["--image-opts", "-O", "raw", &image, &back])?;
    convert(&["-f", "raw", "--target-image-opts", &back, &image])
}

fn qemu(_: &Context, dir: &Path, url: &Url) -> Result<()> {
    qemu_at(dir, url, "none")
}

fn qemu_with_digests(_: &Context, dir: &Path, url: &Url) -> Result<()> {
    qemu_at(dir, url, "crc32c")
}

/// Discovery, REPORT LUNS, INQUIRY.
fn tools(_: &Context, _: &Path, url: &Url) -> Result<()> {
    run(program("iscsi-ls")?.args(["-s", &format!("iscsi://{}", url.portal)]), LIMIT)?.success()?;
    run(program("iscsi-inq")?.arg(url.to_string()), LIMIT)?.success().map(drop)
}

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    for (name, server, load, is_sampled) in CASES {
        let body = || {
            let mut runs = (0..RUNS_MAX).map(|_| compare(context, server, load));
            let is_read = runs.find(|run| !matches!(run, Ok(false))).transpose()?.is_some();
            ensure!(is_read, "tshark takes data for headers in each of {RUNS_MAX} captures");
            Ok(())
        };
        let name = format!("pdus-{name}");
        if is_sampled {
            cases.check(&name, body);
        } else {
            cases.check_some(FULL_ONLY, &name, body);
        }
    }
    Ok(())
}
