//! `analyze`: PDUs and times of commands beside what tshark finds in the same packets; results in every form; hostile names; what is
//! refused.

mod inputs;
mod limits;
mod pdus;
mod recordings;
mod story;
mod times;

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::made::connection;
use crate::{Cases, Context, Output, scratch};

const LIMIT: Duration = Duration::from_secs(60);
/// What would clear a terminal, and what would end an HTML element.
const HOSTILE: &str = "iqn.2026-11.example:\u{1b}[2J</script><b>";

fn run(context: &Context, dir: &Path, arguments: &[&str]) -> Result<Output> {
    let mut command = context.command_in(dir);
    crate::run(command.arg("analyze").args(arguments).current_dir(dir), LIMIT)?.orderly()
}

/// The times are those by which the capture was made.
fn made_by_hand(context: &Context) -> Result<()> {
    let dir = scratch()?;
    connection("iqn.2026-11.example:initiator", 40).save(&dir.path().join("made.pcap"))?;
    let value = run(context, dir.path(), &["made.pcap", "--json"])?.success()?.json()?;
    let flow = &value["flows"][0];
    let of = |key: &str| &flow["negotiated"][key];
    ensure!((of("FirstBurstLength"), of("InitialR2T")) == (&16_384.into(), &"No".into()), "{flow}");
    ensure!(*of("MaxBurstLength") == 262_144, "the default of a key that was not sent: {flow}");
    ensure!(flow["rtt_ms"] == 10.0 && flow["vantage"] == "initiator", "{flow}");
    let writes: &[Value] = flow["writes"].as_array().map_or(&[], Vec::as_slice);
    ensure!(writes.len() == 40 && flow["write"]["commands"] == 40, "{flow}");
    for (number, write) in writes.iter().enumerate() {
        let times = ["ta_ms", "tb_ms", "tc_ms", "latency_ms", "target_ms"].map(|key| write[key].as_f64());
        let tc = if number == 39 { None } else { Some(1.0) };
        ensure!(times == [Some(0.0), Some(12.0), tc, Some(12.0), Some(2.0)], "{write}");
    }
    Ok(())
}

fn forms(context: &Context) -> Result<()> {
    let dir = scratch()?;
    let path = |name: &str| dir.path().join(name);
    connection(HOSTILE, 40).save(&path("made.pcap"))?;
    let all =
        ["--html", "a.html", "--svg", "svg", "--xpl", "xpl", "--pcapng", "c.pcapng", "--slim", "s.pcapng"];
    let text = run(context, dir.path(), &[&["made.pcap"][..], &all].concat())?.success()?;
    ensure!(text.stdout.contains("\\u{1b}[2J") && !text.stdout.contains('\u{1b}'), "{}", text.stdout);
    let page = fs::read_to_string(path("a.html"))?;
    ensure!(!page.contains("2J</script><b>"), "the name of the initiator ends the script of the page");
    for name in ["svg/1-sequence.svg", "xpl/a2b_tsg.xpl", "xpl/b2a_tsg.xpl", "c.pcapng", "s.pcapng"] {
        ensure!(fs::metadata(path(name))?.len() > 100, "{name}");
    }
    let verdict = |file: &str| -> Result<Value> {
        let value = run(context, dir.path(), &[file, "--json"])?.success()?.json()?;
        let mut verdict = value["flows"][0]["verdict"].clone();
        // Advice has the name of the target, which a capture for others lacks.
        let lines = verdict
            .as_object_mut()
            .and_then(|verdict| Some((verdict.remove("advice")?, verdict.remove("advice_lines")?)));
        ensure!(lines.is_some(), "{verdict}");
        Ok(verdict)
    };
    let whole = verdict("made.pcap")?;
    ensure!(verdict("c.pcapng")? == whole && verdict("s.pcapng")? == whole, "{whole}");
    let slim = fs::read(path("s.pcapng"))?;
    let has = |bytes: &[u8]| slim.windows(bytes.len()).any(|window| window == bytes);
    ensure!(
        !has(b"iqn.2026-11.example:") && !has(&[0x55; 16]) && !has(&[192, 0, 2, 1]),
        "names or data are left"
    );
    // Again: earlier results are replaced; anything else is not.
    run(context, dir.path(), &[&["made.pcap"][..], &all].concat())?.success()?;
    for (option, name) in [("--html", "c.pcapng"), ("--pcapng", "a.html"), ("--slim", "made.pcap")] {
        let before = fs::read(path(name))?;
        run(context, dir.path(), &["made.pcap", option, name])?.expect(if name == "made.pcap" {
            2
        } else {
            6
        })?;
        ensure!(fs::read(path(name))? == before, "{option} {name}");
    }
    Ok(())
}

/// Two captures are compared; one that goes on where the other ended is read with it.
fn two(context: &Context) -> Result<()> {
    let dir = scratch()?;
    let path = |name: &str| dir.path().join(name);
    connection("iqn.2026-11.example:a", 40).save(&path("before.pcap"))?;
    connection("iqn.2026-11.example:a", 80).save(&path("after.pcap"))?;
    let value = run(context, dir.path(), &["before.pcap", "after.pcap", "--json"])?.success()?.json()?;
    let counts = [&value["before"][0], &value["flows"][0]].map(|flow| flow["write"]["commands"].as_u64());
    ensure!(counts == [Some(40), Some(80)], "{counts:?}");
    let text = run(context, dir.path(), &["before.pcap", "after.pcap", "--html", "a.html"])?.success()?;
    ensure!(text.stdout.contains("writes before") && text.stdout.contains("after"), "{}", text.stdout);
    // The first 60 frames, then the others with a header of their own.
    let whole = fs::read(path("after.pcap"))?;
    let mut cut = 24;
    for _ in 0..60 {
        cut += 16 + u32::from_le_bytes(whole[cut + 8..cut + 12].try_into()?) as usize;
    }
    fs::write(path("1.pcap"), &whole[..cut])?;
    fs::write(path("2.pcap"), [&whole[..24], &whole[cut..]].concat())?;
    let value = run(context, dir.path(), &["1.pcap", "2.pcap", "--json"])?.success()?.json()?;
    ensure!(value["before"].is_null() && value["flows"][0]["write"]["commands"] == 80, "{value}");
    for (files, remark) in [
        (["before.pcap", "before.pcap"], "both files hold the same connection"),
        (["2.pcap", "1.pcap"], "the second file was captured before the first"),
    ] {
        let text = run(context, dir.path(), &files)?.success()?;
        let words = text.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        ensure!(words.starts_with(&format!("note {remark}")), "{}", text.stdout);
        ensure!(words.contains(": as fast.") == (files[0] == files[1]), "{}", text.stdout);
        let value = run(context, dir.path(), &[&files[..], &["--json"]].concat())?.success()?.json()?;
        ensure!(value["notes"].to_string().contains(remark), "{value}");
    }
    Ok(())
}

/// A capture of the first 60 bytes of each packet: no window scale, no iSCSI header.
fn short(context: &Context) -> Result<()> {
    let dir = scratch()?;
    connection("iqn.2026-11.example:a", 80).save(&dir.path().join("whole.pcap"))?;
    let whole = fs::read(dir.path().join("whole.pcap"))?;
    let mut cut = whole[..24].to_vec();
    let mut at = 24;
    while at < whole.len() {
        let kept = u32::from_le_bytes(whole[at + 8..at + 12].try_into()?);
        cut.extend_from_slice(&whole[at..at + 8]);
        cut.extend_from_slice(&kept.min(60).to_le_bytes());
        cut.extend_from_slice(&whole[at + 12..at + 16 + kept.min(60) as usize]);
        at += 16 + kept as usize;
    }
    fs::write(dir.path().join("short.pcap"), cut)?;
    let value = run(context, dir.path(), &["short.pcap", "--json"])?.success()?.json()?;
    let flow = &value["flows"][0];
    ensure!(flow["verdict"]["confidence"].as_f64().is_some_and(|sure| sure <= 0.6), "{flow}");
    let notes = flow["notes"].to_string() + &flow["verdict"]["notes"].to_string();
    demand!(notes.contains("cuts off all iSCSI headers"), "{flow}")
}

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    cases.check("made-by-hand", || made_by_hand(context));
    cases.check("forms-and-hostile-names", || forms(context));
    cases.check("two-captures", || two(context));
    cases.check("short-packets", || short(context));
    cases.check("mistakes", || inputs::mistakes(context));
    cases.check("standard-output", || inputs::standard_output(context));
    cases.check("results-appear-together", || inputs::together(context));
    cases.check("a-signal-ends-the-reading", || inputs::signal(context));
    cases.check("recordings", || recordings::examine(context));
    story::examine(context, cases);
    pdus::examine(context, cases)?;
    times::examine(context, cases)?;
    limits::examine(context, cases)
}
