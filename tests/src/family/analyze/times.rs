//! Ta, Tb and Tc of every command beside those that follow from tshark's fields, at one command at a time.
//!
//! Data packets of a command are those with new payload of its sender between the command and its end; tshark names the
//! frames in which commands and responses begin.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::run;
use crate::{Cases, Context, Running, Server, program, scratch, wait_until};

const LIMIT: Duration = Duration::from_secs(60);
/// Times must agree within 1 % or this many milliseconds.
const CLOSE_MS: f64 = 0.05;
/// Share of the commands that must agree.
const AGREE: f64 = 0.95;
const COMMAND: u8 = 0x01;
const RESPONSE: u8 = 0x21;

/// A frame with payload, by tshark.
#[derive(Debug)]
struct Frame {
    at_s: f64,
    is_from_target: bool,
    /// Opcodes and tags of the PDUs that begin in it.
    pdus: Vec<(u8, u32)>,
}

fn frames(capture: &Path, port: u16) -> Result<Vec<Frame>> {
    let mut command = program("tshark")?;
    command.arg("-r").arg(capture).args([
        "-Y",
        "tcp.len>0 && !tcp.analysis.retransmission && !tcp.analysis.spurious_retransmission",
        "-o",
        "tcp.desegment_tcp_streams:FALSE",
    ]);
    command.args(["-d", &format!("tcp.port=={port},iscsi"), "-T", "fields", "-E", "occurrence=a"]);
    for field in ["frame.time_epoch", "tcp.srcport", "iscsi.opcode", "iscsi.initiatortasktag"] {
        command.args(["-e", field]);
    }
    let output = crate::run(&mut command, LIMIT)?.success()?;
    output.stdout.lines().map(|line| frame(line, port).with_context(|| line.to_owned())).collect()
}

fn frame(line: &str, port: u16) -> Result<Frame> {
    let mut fields = line.split('\t');
    let mut next = || fields.next().unwrap_or_default();
    let (at_s, source, opcodes, tags) = (next().parse()?, next().parse::<u16>()?, next(), next());
    let number = |text: &str| u32::from_str_radix(text.trim_start_matches("0x"), 16);
    let opcodes = opcodes.split(',').filter(|text| !text.is_empty()).map(number);
    let tags = tags.split(',').filter(|text| !text.is_empty()).map(number);
    let pdus = opcodes.zip(tags).map(|(opcode, tag)| Ok((opcode? as u8 & 0x3f, tag?)));
    Ok(Frame { at_s, is_from_target: source == port, pdus: pdus.collect::<Result<_>>()? })
}

/// Milliseconds.
#[derive(Debug)]
struct Times {
    ta: f64,
    tb: f64,
    tc: Option<f64>,
}

/// What the frames tell of the command with this tag.
fn times(frames: &[Frame], tag: u32, is_write: bool) -> Option<Times> {
    let start = frames.iter().position(|frame| frame.pdus.contains(&(COMMAND, tag)))?;
    let rest = &frames[start..];
    let next = rest.iter().skip(1).find(|frame| frame.pdus.iter().any(|(opcode, _)| *opcode == COMMAND));
    let until = next.map_or(f64::MAX, |frame| frame.at_s);
    let end = if is_write {
        rest.iter().find(|frame| frame.pdus.contains(&(RESPONSE, tag)))?.at_s
    } else {
        rest.iter().rfind(|frame| frame.is_from_target && frame.at_s < until)?.at_s
    };
    let data = rest.iter().filter(|frame| frame.is_from_target != is_write && frame.at_s <= end);
    let data: Vec<f64> = data.map(|frame| frame.at_s).collect();
    let (first, last) = (*data.first()?, *data.last()?);
    let ms = |from: f64, to: f64| (to - from) * 1e3;
    Some(Times {
        ta: ms(first, last),
        tb: if is_write { ms(last, end) } else { ms(rest[0].at_s, first) },
        tc: next.map(|frame| ms(end, frame.at_s)),
    })
}

fn is_close(found: &Value, expected: f64) -> bool {
    found.as_f64().is_some_and(|found| (found - expected).abs() <= CLOSE_MS.max(expected.abs() / 100.0))
}

/// Loads a LUN of ours over loopback and compares.
fn compare(context: &Context, is_write: bool, block: &str) -> Result<()> {
    let dir = scratch()?;
    let mut command = context.command_in(dir.path());
    // No faster than tcpdump writes: it drops packets otherwise.
    command.args(["serve", "mem:64M,limit=100MB/s", "--listen", "127.0.0.1:0"]).current_dir(dir.path());
    let server = Server::start(&mut command, 1)?;
    let port =
        server.url.portal.rsplit(':').next().and_then(|port| port.parse::<u16>().ok()).context("port")?;
    let capture = dir.path().join("load.pcap");
    let mut tcpdump = program("tcpdump")?;
    tcpdump.args(["-i", "lo", "-s", "0", "-B", "65536", "-U", "--time-stamp-precision=nano", "-w"]);
    tcpdump.arg(&capture).args(["tcp", "port", &port.to_string()]);
    let mut tcpdump = Running::start(&mut tcpdump)?;
    wait_until(LIMIT, || Ok(capture.metadata().is_ok_and(|file| file.len() >= 24)))?;
    let url = server.url.to_string();
    let mut load = vec!["bench", "path", &url, "--block-size", block, "--depth", "1", "--operations", "200"];
    if is_write {
        load.extend(["--write", "--destroy"]);
    }
    let mut bench = context.command_in(dir.path());
    crate::run(bench.args(load), LIMIT)?.success()?;
    std::thread::sleep(Duration::from_millis(500));
    tcpdump.signal(libc::SIGTERM)?;
    tcpdump.finish(LIMIT)?.success()?;
    let port_text = port.to_string();
    let name = capture.display().to_string();
    let value = run(context, dir.path(), &[&name, "--json", "--port", &port_text])?.success()?.json()?;
    let frames = frames(&capture, port)?;
    let list = if is_write { "writes" } else { "reads" };
    let commands = value["flows"][0][list].as_array().cloned().unwrap_or_default();
    let (mut compared, mut differ) = (0, Vec::new());
    // Of commands whose packets tcpdump dropped, the times are rough.
    for command in commands.iter().filter(|command| command["inferred"] == false) {
        let tag = command["itt"].as_u64().and_then(|tag| u32::try_from(tag).ok()).context("itt")?;
        let Some(times) = times(&frames, tag, is_write) else { continue };
        compared += 1;
        let agrees = is_close(&command["ta_ms"], times.ta)
            && is_close(&command["tb_ms"], times.tb)
            && times.tc.is_none_or(|tc| is_close(&command["tc_ms"], tc));
        if !agrees {
            differ.push(format!("{times:?} {command}"));
        }
    }
    // tcpdump may drop packets of a fast load.
    ensure!(
        compared >= 100 && compared * 10 >= commands.len() * 9,
        "{compared} of {} commands compared",
        commands.len()
    );
    ensure!(
        differ.len() as f64 <= (1.0 - AGREE) * compared as f64,
        "{} of {compared} commands differ, the first: {}",
        differ.len(),
        differ[0]
    );
    Ok(())
}

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    for (name, is_write, block) in [
        ("write-4k", true, "4K"),
        ("write-1m", true, "1M"),
        ("read-4k", false, "4K"),
        ("read-1m", false, "1M"),
    ] {
        cases.check(&format!("times-{name}"), || compare(context, is_write, block));
    }
    Ok(())
}
