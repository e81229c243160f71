use std::fs;

use serde_json::json;

use super::*;
use crate::Interval;

/// Asserts that every opened element is closed in order, every ampersand begins an entity, and no `<` occurs in a
/// value.
fn assert_well_formed(page: &str) {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = page.strip_prefix(MARK).expect("it begins like a report");
    while let Some(at) = rest.find('<') {
        entities(&rest[..at]);
        assert!(!rest[..at].contains('>'), "{}", &rest[..at]);
        let end = at + rest[at..].find('>').expect("a tag ends");
        let tag = &rest[at + 1..end];
        assert!(!tag.contains('<') && tag.matches('"').count().is_multiple_of(2), "<{tag}>");
        entities(tag);
        let name = tag.trim_start_matches('/').split([' ', '/', '\n']).next().unwrap();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name));
        } else if !tag.ends_with('/') {
            open.push(name);
        }
        rest = &rest[end + 1..];
    }
    assert!(open.is_empty() && rest.trim().is_empty(), "{open:?} {rest}");
}

fn entities(text: &str) {
    for after in text.split('&').skip(1) {
        let name = after.split(';').next().unwrap();
        assert!(after.contains(';') && ["amp", "lt", "gt", "quot", "#160"].contains(&name), "&{after}");
    }
}

fn sample(phase: &'static str, limited_by: &'static str) -> crate::Sample {
    crate::Sample { phase, limited_by, bytes: 5, total: 10, depth: 8, ..Default::default() }
}

#[test]
fn a_picture_shows_each_phase_and_limit_that_occurs() {
    let part = |from: f64, to: f64, sample| Interval { from, to, rate: 1e8, sample };
    let parts = [
        part(0.0, 1.0, sample("copy", "source")),
        part(1.0, 1.5, sample("flush", "destination")),
        part(1.5, 2.0, sample("verify", "cpu")),
    ];
    let html = picture::draw(&parts);
    assert_well_formed(&format!("{MARK}<b>{html}</b>"));
    for word in
        ["copy", "flush", "verify", "source", "destination", "cpu", "MB/s", "seconds", "chunks in flight"]
    {
        assert!(html.contains(word), "{word}");
    }
    for word in ["rescue", "balanced", "memory"] {
        assert!(!html.contains(word), "{word}");
    }
    // A copy of zero seconds is drawn too.
    assert_well_formed(&format!("{MARK}<b>{}</b>", picture::draw(&[part(0.0, 0.0, sample("copy", "cpu"))])));
}

#[test]
fn what_was_told_is_escaped() {
    assert_eq!(escaped("x\u{202e}gpj.exe"), "x\\u{202e}gpj.exe");
    assert_eq!(escaped("a<b>&\"\u{1b}[0m\n"), "a&lt;b&gt;&amp;&quot;\\u{1b}[0m\n");
}

#[test]
fn the_verdict_is_of_the_limit() {
    let outcome = json!({
        "limited_by": "destination", "shares": { "destination": 0.8 }, "write": { "latency_us": { "p50": 1500 } },
    });
    let record = Record { outcome: Some(outcome), ..Record::new() };
    let verdict = verdict(&record, &Ok(Ending::Done));
    assert!(
        verdict.starts_with("Limited by the destination: 80 % of the time") && verdict.contains("1.50 ms"),
        "{verdict}"
    );
    let failure = Failure::failed("flush", "b.img", "it broke");
    assert_eq!(super::verdict(&record, &Err(failure)), "Cannot flush b.img: it broke.");
}

#[test]
fn nothing_else_is_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("r.html");
    assert!(Report::begin(&path).is_ok() && !path.exists());
    fs::write(&path, "").unwrap();
    assert!(Report::begin(&path).is_ok());
    fs::write(&path, format!("{MARK}<html>")).unwrap();
    assert!(Report::begin(&path).is_ok());
    fs::write(&path, "a disk").unwrap();
    assert_eq!(Report::begin(&path).unwrap_err().ending, Ending::Refused);
    assert_eq!(Report::begin(directory.path()).unwrap_err().ending, Ending::Refused);
    assert_eq!(Report::begin(&directory.path().join("no/r.html")).unwrap_err().ending, Ending::Failed);
    assert_eq!(fs::read(&path).unwrap(), b"a disk");
}

fn page(requested: &Requested, record: &Record, result: &Result<Ending, Failure>) -> String {
    let directory = tempfile::tempdir().unwrap();
    let report = Report::begin(&directory.path().join("r.html")).unwrap();
    let page = report.page(requested, record, result);
    assert_well_formed(&page);
    page
}

#[test]
fn a_page_is_well_formed_whatever_it_tells() {
    let outcome = json!({
        "bytes": 1 << 30, "seconds": 2.5, "mb_per_s": 858.0, "data_bytes": 1 << 29, "data_mb_per_s": 429.5, "limited_by": "source", "blake3": "<00>", "verified": true,
        "read": { "ops": 9, "latency_us": { "p50": 1, "p99": 2, "max": 3 } }, "zero_bytes_skipped": 4096,
        "cpu_s_per_gb": { "user": 0.1, "system": 0.2 }, "verify_s": 1.0,
        "path": [{
            "end": "destination", "rtt_ms": 41.5, "rtt_least_ms": 40.0, "in_flight_max_bytes": 8 << 20, "send_buffer_forced": true,
            "send_buffer_bytes": 4 << 20, "receive_buffer_bytes": 1 << 20, "congestion_control": "<cubic>", "missing": ["sysctl -w x"],
        }],
        "unreadable_bytes": 512, "unreadable_areas": 1, "unreadable": [[1024, 512]],
    });
    let record = Record { outcome: Some(outcome), ..Record::new() };
    let requested = Requested {
        source: "a & <b>.img,ro".to_owned(),
        destination: "iscsi://me@host/iqn.2026-11.x:y/0".to_owned(),
        dst_offset: 4096,
        ..Requested::default()
    };
    let done = page(&requested, &record, &Ok(Ending::Unreadable));
    for word in [
        "a &amp; &lt;b&gt;.img",
        "429.5 MB/s",
        "536870912 (512 MiB), holes apart",
        "width=device-width",
        "prefers-color-scheme:dark",
        "@media print",
        "&lt;00&gt;",
        "0.300 s/GB",
        "<th>1024</th><td>512</td>",
        "from byte 4096",
        "Path to the destination",
        "41.50 ms, the least 40.00 ms",
        "send 4 MiB (beyond tcp_wmem), receive 1 MiB",
        "&lt;cubic&gt;",
        "sysctl -w x",
    ] {
        assert!(done.contains(word), "{word}: {done}");
    }
    assert!(!done.contains("secret"), "{done}");
    let failure = Failure::new(Ending::Interrupted(2), "finish the copy to", "b", "SIGINT")
        .hint("hikyaku copy --resume \"x\"");
    let failed = page(&requested, &Record::new(), &Err(failure));
    for word in ["Interrupted: the copy of", "<td>130</td>", "To go on", "--resume &quot;x&quot;"] {
        assert!(failed.contains(word), "{word}: {failed}");
    }
}
