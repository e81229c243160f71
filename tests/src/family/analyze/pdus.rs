//! Captures of real connections on loopback: every PDU that tshark finds in them is found by `monitor::flow`, with equal
//! fields.

use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use monitor::capture::Reader;
use monitor::event::{Event, Kind};
use monitor::flow::Table;

use crate::files::empty_file;
use crate::process::wait_until;
use crate::{Cases, Context, Disk, Running, Url, program, random, run, scratch};

const LIMIT: Duration = Duration::from_secs(60);
const BYTES: usize = 6 << 20;
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
fn by_flows(file: &Path) -> Result<[Vec<[u8; BHS_BYTES]>; 2]> {
    let mut reader = Reader::new(File::open(file)?)?;
    let mut table = Table::new(&[]);
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
    command.args(["-i", "lo", "-s", "0", "-B", "65536", "-U", "-Z", "root", "-w"]).arg(to);
    let dump = Running::start(command.args(["tcp", "port", &port.to_string()]))?;
    wait_until(LIMIT, || Ok(dump.stderr().contains("listening on")))
        .with_context(|| format!("tcpdump does not begin: {}", dump.stderr_tail()))?;
    Ok(dump)
}

/// Captures what `load` does with a LUN, and compares.
fn compared(context: &Context, load: impl FnOnce(&Context, &Path, &Url) -> Result<()>) -> Result<()> {
    let dir = scratch()?;
    let (stored, capture) = (dir.path().join("lun.img"), dir.path().join("all.pcap"));
    std::fs::write(&stored, random::bytes(&mut context.rng("analyze"), BYTES))?;
    let served = context.serve(&[Disk::file(&stored)], None)?;
    let url = served.url(0);
    let port = url.port()?;
    let mut dump = dump(port, &capture)?;
    load(context, dir.path(), url)?;
    dump.signal(libc::SIGINT)?;
    dump.finish(LIMIT)?.success()?;
    let (expected, headers) = (by_tshark(&capture, port)?, by_flows(&capture)?);
    ensure!(expected.len() > 20, "tshark finds {} PDUs", expected.len());
    let mut at = [0; 2];
    for pdu in &expected {
        let direction = usize::from(pdu.opcode & 0x20 != 0);
        let rest = headers[direction].get(at[direction]..).unwrap_or(&[]);
        let found = rest.iter().position(|header| pdu.fits(header));
        at[direction] +=
            1 + found.with_context(|| format!("{pdu:x?} is not among the PDUs behind {at:?}"))?;
    }
    Ok(())
}

fn write(context: &Context, dir: &Path, url: &Url) -> Result<()> {
    let source = dir.join("source.img");
    std::fs::write(&source, random::bytes(&mut context.rng("analyze/write"), BYTES))?;
    let words = ["copy", "--force", &source.display().to_string(), &url.to_string()].map(str::to_owned);
    context.ours(&words, LIMIT)?.success().map(drop)
}

fn read(context: &Context, dir: &Path, url: &Url) -> Result<()> {
    let words = ["copy", &url.to_string(), &dir.join("back.img").display().to_string()].map(str::to_owned);
    context.ours(&words, LIMIT)?.success().map(drop)
}

fn read_with_digests(_: &Context, dir: &Path, url: &Url) -> Result<()> {
    let back = empty_file(dir.join("back.img"), BYTES as u64)?;
    let image = format!(
        "driver=raw,file.driver=iscsi,file.transport=tcp,file.portal={},file.target={},file.lun={},\
         file.header-digest=crc32c",
        url.portal, url.iqn, url.lun
    );
    let mut command = program("qemu-img")?;
    command.args(["convert", "-n", "--image-opts", "-O", "raw", &image]).arg(back);
    run(&mut command, LIMIT)?.success().map(drop)
}

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    cases.check("tshark-write", || compared(context, write));
    cases.check("tshark-read", || compared(context, read));
    cases.check("tshark-qemu-header-digests", || compared(context, read_with_digests));
    Ok(())
}
