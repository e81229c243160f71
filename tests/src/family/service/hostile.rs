//! Peers that write into the log, and connections that hold or flood the server's other sockets.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{Home, LIMIT, NAME, OPEN, expect, http};
use crate::files::empty_file;
use crate::pdu::{Session, connect, keys, login_pdu};
use crate::{Context, Url};

/// What a terminal or a reader of lines would obey, in a name.
const FORGED: &str = "x\" level=\"ERROR\nWARN no session peer=1.2.3.4:5 \u{1b}[2J\u{9b}\u{202e}\r'}";
/// A byte that a test replaces by one that is no UTF-8.
const MARK: char = '\u{1}';
const METRICS_TIME: Duration = Duration::from_millis(500);
/// Connections to the metrics that send nothing; more than the server keeps open.
const SILENT: usize = 16;
/// A server that waited for a silent connection would answer after 2 s.
const SCRAPE_TIME: Duration = Duration::from_millis(1900);

/// One login request with these keys; it may be refused.
fn attempt(url: &Url, pairs: &[(&str, &str)]) -> Result<()> {
    let mut text = keys(pairs);
    for byte in text.iter_mut().filter(|byte| **byte == MARK as u8) {
        *byte = 0xff;
    }
    let mut session = Session::bare(connect(url, LIMIT)?);
    session.send(&login_pdu(0x87, [0x80, 0, 0, 0, 9, 9], text))?;
    // Refused with a status, or the connection ends.
    let _ = session.receive();
    Ok(())
}

/// Names, users and paths with control characters, quotes, direction marks and bytes that are no UTF-8 stay within their
/// fields: in the log as text and JSON, in `status`, and in the labels of metrics.
pub(super) fn log(context: &Context) -> Result<()> {
    let long = format!("iqn.{}", "\u{e9}\u{5d0}".repeat(54));
    ensure!((216..=223).contains(&long.len()), "{} bytes", long.len());
    for form in ["text", "json"] {
        let home = Home::new()?;
        let image = "a\u{1b}[31m\u{202e}\"\n.img";
        empty_file(home.path(image), 1 << 20)?;
        let with = [image, "--iqn", OPEN, "--metrics", "127.0.0.1:0", "--log", form];
        let server = home.serve(context, &with, 1)?;
        let marked = format!("iqn.{MARK}{FORGED}");
        for name in [FORGED, &format!("iqn.{FORGED}"), &marked, &"iqn.a".repeat(200)] {
            attempt(
                &server.url,
                &[("InitiatorName", name), ("TargetName", OPEN), ("SessionType", "Normal")],
            )?;
            attempt(
                &server.url,
                &[("InitiatorName", NAME), ("TargetName", name), ("SessionType", "Normal")],
            )?;
            attempt(&server.url, &[("InitiatorName", NAME), ("TargetName", OPEN), ("InitiatorAlias", name)])?;
            attempt(&server.url, &[("InitiatorName", NAME), (name, "1"), ("AuthMethod", name)])?;
        }
        let _session = Session::login(&server.url, &long, [0x80, 0, 0, 0, 0, 1])?;
        server.logs(0, "logged in")?;
        server.logs(0, "no session")?;
        lines(&server.running.stderr(), form == "json")?;
        let text = home.run(context, &["status", "--interval", "0s"])?.success()?.text();
        ensure!(!text.contains(acts), "{text:?}");
        let status = home.server(context, &server)?;
        expect(&status, "/sessions/0/initiator", long.clone())?;
        let storage = status["luns"][0]["storage"].as_str().context("no storage")?;
        ensure!(storage.contains("a\u{1b}[31m"), "{storage:?}");
        let log = server.running.stderr();
        let address =
            log.split("http://").nth(1).and_then(|rest| rest.split('/').next()).context("no address")?;
        let (_, body) = http(address, "GET /metrics HTTP/1.1\r\n\r\n")?;
        ensure!(!body.contains(acts) && body.contains("hikyaku_sessions 1"), "{body:?}");
    }
    Ok(())
}

/// Whether a character commands a terminal, or reorders the text around it.
fn acts(c: char) -> bool {
    c.is_control() && c != '\n' && c != '\t' || ('\u{202a}'..='\u{202e}').contains(&c)
}

/// Every line of a log begins as one of ours does.
fn lines(log: &str, is_json: bool) -> Result<()> {
    ensure!(!log.contains(acts), "{log:?}");
    for line in log.lines() {
        if is_json {
            let _: Value = serde_json::from_str(line).with_context(|| format!("{line:?}"))?;
        } else {
            // 2026-11-23T20:57:27.628887Z
            let is_dated = line.get(..27).is_some_and(|date| date.starts_with("20") && date.ends_with('Z'));
            ensure!(is_dated, "{line:?} in {log}");
        }
    }
    Ok(())
}

/// Floods, silence, slow and half-closed requests at the metrics and the control socket: a session reads on meanwhile, and
/// both answer afterwards.
pub(super) fn connections(context: &Context) -> Result<()> {
    let home = Home::new()?;
    let server = home.serve(context, &["a.img", "--iqn", OPEN, "--metrics", "127.0.0.1:0"], 1)?;
    let line = server.logs(0, "metrics: http://")?;
    let metrics =
        line.split("http://").nth(1).and_then(|rest| rest.split('/').next()).context("no address")?;
    let address = metrics.parse()?;
    let control = home.socket(&server);
    let floods = context.amount(200, 4000);
    let before = crate::procfs::descriptors(server.running.pid())?;
    let stop = AtomicBool::new(false);
    let (reads, longest) = std::thread::scope(|scope| -> Result<(u64, Duration)> {
        let reader = scope.spawn(|| -> Result<(u64, Duration)> {
            let mut session = Session::login(&server.url, NAME, [0x80, 0, 0, 0, 0, 1])?;
            let (mut count, mut longest) = (0, Duration::ZERO);
            while !stop.load(Ordering::Relaxed) {
                let started = Instant::now();
                session.read(0, 0, 1)?;
                longest = longest.max(started.elapsed());
                count += 1;
            }
            Ok((count, longest))
        });
        let connect = || TcpStream::connect_timeout(&address, METRICS_TIME);
        let attacks = (|| -> Result<()> {
            let long = vec![b'a'; 80 << 10];
            for request in [&b"GET /metrics HTTP/1.1\r\nA: "[..], b"GET ", b"\r\n\r\n", b"\0\0\0"] {
                let mut stream = connect()?;
                // The server closes at its bound, which may reset the connection.
                let _ = stream.write_all(request).and_then(|()| stream.write_all(&long));
                let _ = stream.shutdown(Shutdown::Write);
                let _ = stream.read(&mut [0; 64]);
            }
            for _ in 0..floods {
                // Full queues refuse some of them.
                let _ = connect().map(|mut stream| stream.write_all(b"GET /"));
                let _ = UnixStream::connect(&control).map(|mut stream| stream.write_all(b"{\"request\""));
            }
            let mut slow = UnixStream::connect(&control)?;
            let _silent = (connect()?, UnixStream::connect(&control)?);
            for _ in 0..10 {
                let _ = slow.write_all(b" ");
                std::thread::sleep(Duration::from_millis(10));
            }
            Ok(())
        })();
        stop.store(true, Ordering::Relaxed);
        let result = reader.join().expect("no panic")?;
        attacks.map(|()| result)
    })?;
    ensure!(reads > 10 && longest < Duration::from_secs(2), "{reads} reads, the longest {longest:?}");
    let answers = || Ok(home.server(context, &server).is_ok());
    crate::wait_until(LIMIT, answers)?;
    let scrapes = || Ok(http(metrics, "GET /metrics HTTP/1.1\r\n\r\n").is_ok());
    crate::wait_until(LIMIT, scrapes)?;
    let silent: Vec<_> = (0..SILENT).map(|_| TcpStream::connect(metrics)).collect::<Result<_, _>>()?;
    let started = Instant::now();
    ensure!(scrapes()?, "no answer beside silent connections");
    ensure!(started.elapsed() < SCRAPE_TIME, "{:?} beside silent connections", started.elapsed());
    drop(silent);
    let is_closed = || Ok(crate::procfs::descriptors(server.running.pid())? <= before);
    crate::wait_until(LIMIT, is_closed).context("descriptors are left")
}
