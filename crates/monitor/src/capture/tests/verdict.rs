//! A capture without payload gives the verdict of the capture that it was made of.
//!
//! `SLIM=FILE` keeps what is written.
//!
//! `CAPTURES="a.pcap b.pcap" cargo test --release -p hikyaku-monitor --lib -- --ignored --nocapture slim_has_the_same`

use std::fs::File;
use std::io::{Cursor, Read};
use std::path::Path;

use crate::analysis::{Analyzer, Options, Report, Seen};
use crate::capture::Reader;
use crate::capture::slim::{Slim, Summary};
use crate::event::{Event, Kind};
use crate::flow::Table;

/// Of targets in captures that were made by hand, besides 3260.
const PORT: u16 = 33_261;

/// Analyses a capture, and writes it without payload.
fn analyze(source: impl Read + Send + 'static) -> (Report, Vec<u8>, Summary) {
    let mut reader = Reader::new(source).unwrap();
    let mut analyzer = Analyzer::new(Options { ports: vec![PORT], ..Options::default() });
    let mut slim = Slim::new(Vec::new()).unwrap();
    while let Some(packet) = reader.next().unwrap() {
        let mut events = Vec::new();
        analyzer.handle_seen(&packet, |seen| {
            if let Seen::Event(_, event) = seen {
                events.push(event.clone());
            }
        });
        slim.packet(&packet, &events).unwrap();
    }
    let (file, summary) = slim.finish().unwrap();
    (analyzer.finish("", reader.counts(), &reader.notes()), file, summary)
}

/// Everything that the table of connections sees, except what headers hold.
pub(super) fn events(source: impl Read + Send + 'static) -> Vec<String> {
    let mut reader = Reader::new(source).unwrap();
    let (mut table, mut seen) = (Table::new(&[PORT]), Vec::new());
    while let Some(packet) = reader.next().unwrap() {
        table.push(&packet, &mut |_, event| {
            // Frames without TCP are left out, and change the numbers.
            let mut event = Event { frame: 0, ..event.clone() };
            if let Kind::PduStart(start) = &mut event.kind {
                start.header[8..16].fill(0);
                start.header[32..].fill(0);
            }
            seen.push(format!("{event:?}"));
        });
    }
    seen
}

/// Writes a capture without payload, as the table of connections sees it.
pub(super) fn slimmed(source: impl Read + Send + 'static) -> (Vec<u8>, Summary) {
    let mut reader = Reader::new(source).unwrap();
    let mut slim = Slim::new(Vec::new()).unwrap();
    let mut table = Table::new(&[PORT]);
    while let Some(packet) = reader.next().unwrap() {
        let mut events = Vec::new();
        table.push(&packet, &mut |_, event| events.push(event.clone()));
        slim.packet(&packet, &events).unwrap();
    }
    slim.finish().unwrap()
}

#[test]
#[ignore = "needs captures"]
fn slim_has_the_same_events() {
    let files = crate::named_captures();
    for file in files.split_whitespace().map(Path::new) {
        let (slim, summary) = slimmed(File::open(file).unwrap());
        let bytes = slim.len();
        let (before, after) = (events(File::open(file).unwrap()), events(Cursor::new(slim)));
        let same = before.iter().zip(&after).take_while(|(before, after)| before == after).count();
        println!("{}: {summary:?}, {bytes} bytes, {same} of {} events", file.display(), before.len());
        assert_eq!(before.get(same), after.get(same));
    }
}

/// What must not change, a line for each connection.
fn lines(report: &Report) -> Vec<String> {
    let line = |flow: &crate::analysis::FlowReport| {
        let (verdict, counts) = (&flow.verdict, flow.counts);
        format!(
            "{} {:?} {:.4} {:?} {counts:?} {:?} {:?}",
            verdict.sentence,
            verdict.limit,
            verdict.share,
            verdict.next_limit,
            flow.payload_bytes,
            flow.evidence
        )
    };
    report.flows.iter().map(line).collect()
}

#[test]
#[ignore = "needs captures"]
fn slim_has_the_same_verdict() {
    let files = crate::named_captures();
    for file in files.split_whitespace().map(Path::new) {
        let (before, slimmed, summary) = analyze(File::open(file).unwrap());
        let bytes = slimmed.len();
        assert!(!slimmed.windows(4).any(|part| part == b"iqn."), "{}: a name", file.display());
        if let Ok(path) = std::env::var("SLIM") {
            std::fs::write(path, &slimmed).unwrap();
        }
        let (after, ..) = analyze(Cursor::new(slimmed));
        println!(
            "{}: {summary:?}, {bytes} of {} bytes, {:?}",
            file.display(),
            file.metadata().unwrap().len(),
            before.flows.first().map(|flow| &flow.verdict.sentence)
        );
        assert_eq!(lines(&after), lines(&before), "{}", file.display());
    }
}
