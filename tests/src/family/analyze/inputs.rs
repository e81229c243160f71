//! What is given to `analyze` by mistake, results that cannot be written, and signals.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::{LIMIT, run};
use crate::made::connection;
use crate::{Context, Running, program, scratch};

const NOBODY: u32 = 65534;
/// A signal ends a reading within this time.
const SOON: Duration = Duration::from_secs(5);
const CAPTURE: &str = "tcpdump -i any -s 700 -w slow.pcap tcp port 3260";

/// What was given, exit code, parts of the message.
const MISTAKES: &[(&str, i32, &[&str])] = &[
    ("captures", 2, &["it is a directory", "hikyaku analyze captures/b.pcapng"]),
    ("nothing", 2, &["it is a directory", CAPTURE]),
    ("iscsi://192.0.2.1/iqn.2026-11.example:a/0", 1, &["hikyaku watch iscsi://192.0.2.1", CAPTURE]),
    ("192.0.2.1:3260", 1, &["hikyaku watch 192.0.2.1:3260", CAPTURE]),
    ("empty.pcap", 1, &["the capture is empty: 0 bytes", "tcpdump -U"]),
    ("text", 1, &["this is no capture: it begins with", CAPTURE]),
    ("header.pcap", 1, &["the capture holds no frame", CAPTURE]),
    ("wireless.pcap", 1, &["unknown link types", CAPTURE]),
    ("other-port.pcap", 1, &["most data is of port 8080", "--port 8080 other-port.pcap", CAPTURE]),
    ("closed.pcap", 1, &["Permission denied", "sudo"]),
];

/// A capture with its bytes changed.
fn changed(dir: &Path, name: &str, change: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
    let mut bytes = fs::read(dir.join("made.pcap"))?;
    change(&mut bytes);
    fs::write(dir.join(name), bytes).context("writing a capture")
}

/// All frames from the tenth on, with another port than the target's: no login shows that they are iSCSI.
fn on_another_port(bytes: &mut Vec<u8>) {
    let (mut at, mut number, mut kept) = (24, 0, bytes[..24].to_vec());
    while at + 16 <= bytes.len() {
        let word = [bytes[at + 8], bytes[at + 9], bytes[at + 10], bytes[at + 11]];
        let end = at + 16 + u32::from_le_bytes(word) as usize;
        number += 1;
        if number > 10 {
            let mut frame = bytes[at..end].to_vec();
            for port in [36, 38] {
                if frame[port..port + 2] == 3260u16.to_be_bytes() {
                    frame[port..port + 2].copy_from_slice(&8080u16.to_be_bytes());
                }
            }
            // The payload is something else.
            let payload = 16 + 20 + 20;
            frame[payload..].fill(0xa5);
            kept.extend(frame);
        }
        at = end;
    }
    *bytes = kept;
}

pub(super) fn mistakes(context: &Context) -> Result<()> {
    let dir = scratch()?;
    let path = |name: &str| dir.path().join(name);
    connection("iqn.2026-11.example:a", 40).save(&path("made.pcap"))?;
    for name in ["captures", "nothing"] {
        fs::create_dir(path(name))?;
    }
    fs::copy(path("made.pcap"), path("captures/b.pcapng"))?;
    fs::write(path("captures/a.txt"), "")?;
    fs::write(path("empty.pcap"), "")?;
    fs::write(path("text"), "12:00:00.000 IP 192.0.2.1 > 192.0.2.2: tcp 48\n")?;
    changed(dir.path(), "header.pcap", |bytes| bytes.truncate(24))?;
    // IEEE 802.11.
    changed(dir.path(), "wireless.pcap", |bytes| bytes[20..24].copy_from_slice(&105u32.to_le_bytes()))?;
    changed(dir.path(), "other-port.pcap", on_another_port)?;
    changed(dir.path(), "closed.pcap", |_| ())?;
    fs::set_permissions(path("closed.pcap"), fs::Permissions::from_mode(0o0))?;
    for (file, code, parts) in MISTAKES {
        let mut command = context.command_in(dir.path());
        command.args(["analyze", file]).current_dir(dir.path());
        if *file == "closed.pcap" && steps::is_root() {
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
            command.uid(NOBODY).gid(NOBODY);
        }
        let output = crate::run(&mut command, LIMIT)?.orderly()?.expect(*code)?;
        output.says_all(parts).with_context(|| (*file).to_owned())?;
        let output = crate::run(command.arg("--json"), LIMIT)?.orderly()?.expect(*code)?;
        ensure!(output.stdout.is_empty() && output.json_error()?["attempted"].is_string(), "{output}");
    }
    run(context, dir.path(), &["made.pcap", "--port", "0"])?.expect(2)?.says("1..=65535").map(drop)
}

/// Standard output that cannot be written is a failure; one whose reader has enough is none.
pub(super) fn standard_output(context: &Context) -> Result<()> {
    let dir = scratch()?;
    connection("iqn.2026-11.example:a", 40).save(&dir.path().join("made.pcap"))?;
    let analyze = |arguments: &[&str]| -> Command {
        let mut command = context.command_in(dir.path());
        command.args(["analyze", "made.pcap"]).args(arguments).current_dir(dir.path());
        command.stderr(Stdio::piped());
        command
    };
    for arguments in [&[][..], &["--json"]] {
        let output = analyze(arguments).stdout(File::options().write(true).open("/dev/full")?).output()?;
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(1) && text.contains("No space left on device"), "{output:?}");
        let (reader, writer) = std::io::pipe()?;
        drop(reader);
        let output = analyze(arguments).stdout(writer).output()?;
        ensure!(output.status.code() == Some(0) && output.stderr.is_empty(), "{output:?}");
    }
    Ok(())
}

/// A result that cannot be written leaves none of the others.
pub(super) fn together(context: &Context) -> Result<()> {
    let dir = scratch()?;
    let path = |name: &str| dir.path().join(name);
    connection("iqn.2026-11.example:a", 40).save(&path("made.pcap"))?;
    for (option, obstacle) in [("--svg", "windows.svg"), ("--xpl", "b2a_tsg.xpl")] {
        let name = if option == "--svg" { format!("1-{obstacle}") } else { obstacle.to_owned() };
        fs::create_dir(path("out"))?;
        fs::write(path("out").join(&name), "of another program")?;
        run(context, dir.path(), &["made.pcap", "--html", "a.html", option, "out"])?
            .expect(6)?
            .says(&name)?;
        let left: Vec<_> =
            fs::read_dir(path("out"))?.map(|entry| Ok(entry?.file_name())).collect::<Result<_>>()?;
        ensure!(left == [name.as_str()], "{option}: {left:?}");
        ensure!(!path("a.html").exists(), "the page appeared");
        ensure!(fs::read_to_string(path("out").join(&name))? == "of another program");
        fs::remove_dir_all(path("out"))?;
    }
    Ok(())
}

/// A signal ends a reading that waits for a pipe, and what was read is analysed.
pub(super) fn signal(context: &Context) -> Result<()> {
    let dir = scratch()?;
    connection("iqn.2026-11.example:a", 40).save(&dir.path().join("made.pcap"))?;
    let bytes = fs::read(dir.path().join("made.pcap"))?;
    crate::run(program("mkfifo")?.arg(dir.path().join("pipe")), LIMIT)?.success()?;
    for (sent, is_analysed) in [(&bytes[..], true), (&bytes[..40], false), (&[][..], false)] {
        let mut command = context.command_in(dir.path());
        command.args(["analyze", "pipe", "--html", "a.html"]).current_dir(dir.path());
        let mut running = Running::start(&mut command)?;
        // Without anything to send, nobody opens the other end either.
        let mut writer = if sent.is_empty() {
            None
        } else {
            Some(File::options().write(true).open(dir.path().join("pipe"))?)
        };
        if let Some(writer) = &mut writer {
            writer.write_all(sent)?;
        }
        std::thread::sleep(Duration::from_millis(500));
        let started = Instant::now();
        running.signal(libc::SIGINT)?;
        let output = running.finish(LIMIT)?.expect(130)?;
        ensure!(started.elapsed() < SOON, "{:?}", started.elapsed());
        ensure!(output.stdout.contains("limit") == is_analysed, "{} bytes: {output:?}", sent.len());
        ensure!(dir.path().join("a.html").exists() == is_analysed, "{} bytes", sent.len());
        let _ = fs::remove_file(dir.path().join("a.html"));
        drop(writer);
    }
    Ok(())
}
