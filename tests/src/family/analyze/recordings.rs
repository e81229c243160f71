//! Recordings of `watch --record`: the verdict of samples in every form, compared with another file, and what a recording
//! cannot give.

use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::{LIMIT, run};
use crate::made::connection;
use crate::schema::Schema;
use crate::{Context, Running, Server, scratch};

/// A copy of a minute.
const BYTES: u64 = 1 << 30;
const RATE: &str = "16MB/s";

/// Records a copy of our own for two seconds as `copy.rec`.
fn record(context: &Context, dir: &Path) -> Result<()> {
    let mut command = context.command_in(dir);
    command.args(["serve", &format!("mem:{BYTES}"), "--listen", "127.0.0.1:0"]).current_dir(dir);
    let server = Server::start(&mut command, 1)?;
    let mut command = context.command_in(dir);
    let (source, url) = (format!("pattern:{BYTES}"), server.url.to_string());
    command.args(["copy", &source, &url, "--rate", RATE, "--force", "--quiet"]);
    let _copy = Running::start(command.current_dir(dir))?;
    std::thread::sleep(Duration::from_secs(1));
    let mut command = context.command_in(dir);
    let portal = &server.url.portal;
    command.args(["watch", portal, "--record", "copy.rec", "--for", "2s", "--packets", "off", "--quiet"]);
    crate::run(command.current_dir(dir), LIMIT)?.success().map(drop)
}

pub(super) fn examine(context: &Context) -> Result<()> {
    let dir = scratch()?;
    let analyze = |arguments: &[&str]| run(context, dir.path(), arguments);
    record(context, dir.path())?;
    let value = analyze(&["copy.rec", "--json"])?.success()?.json()?;
    Schema::load("analyze")?.check(&value)?;
    let flows = value["flows"].as_array().map_or(&[][..], Vec::as_slice);
    ensure!(flows.len() == 1, "both ends are one connection: {value}");
    let flow = &flows[0];
    let rate = flow["verdict"]["mb_per_s"].as_f64().unwrap_or(0.0);
    ensure!((8.0..32.0).contains(&rate) && flow["sampled"] == true, "{rate} MB/s of {RATE}: {flow}");
    ensure!(flow["vantage"] == "initiator" && flow["writes"].as_array().is_some_and(Vec::is_empty), "{flow}");
    let text = analyze(&["copy.rec", "--html", "a.html", "--svg", "svg"])?.success()?;
    ensure!(text.stdout.contains("sampled") && text.stdout.contains("no packets"), "{}", text.stdout);
    let page = fs::read_to_string(dir.path().join("a.html"))?;
    ensure!(page.contains("<li>sampled: ") && page.contains("data-chart=\"rate\""), "the page lacks a part");
    ensure!(fs::metadata(dir.path().join("svg/1-queue.svg"))?.len() > 100);
    // As standard input.
    let mut command = context.command_in(dir.path());
    command.args(["analyze", "-", "--json"]).stdin(File::open(dir.path().join("copy.rec"))?);
    let same = command.stderr(Stdio::null()).output()?;
    ensure!(same.status.success() && !same.stdout.is_empty(), "{same:?}");
    connection("iqn.2026-11.example:a", 40).save(&dir.path().join("made.pcap"))?;
    for files in [["copy.rec", "copy.rec"], ["made.pcap", "copy.rec"], ["copy.rec", "made.pcap"]] {
        let text = analyze(&files)?.success()?;
        ensure!(text.stdout.contains("before") && text.stdout.contains("after"), "{}", text.stdout);
    }
    for (option, name) in [("--pcapng", "c.pcapng"), ("--slim", "s.pcapng"), ("--xpl", "xpl")] {
        let refused = analyze(&["copy.rec", option, name])?.expect(2)?;
        refused.says_all(&["samples of a socket and no packets", option, "tcpdump"])?;
        ensure!(!dir.path().join(name).is_file(), "{name} was written");
    }
    analyze(&["copy.rec", "made.pcap", "copy.rec"])?.expect(2)?.says("a recording is read alone")?;
    // Damage costs a part.
    let mut bytes = fs::read(dir.path().join("copy.rec"))?;
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x55;
    fs::write(dir.path().join("damaged.rec"), &bytes)?;
    let text = analyze(&["damaged.rec"])?.success()?.stdout;
    demand!(text.contains("of the recording are damaged"), "{text}")
}
