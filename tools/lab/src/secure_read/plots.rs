//! The paper's figures: throughput by block size, where a block's time goes, and packets in time.

use super::plan::BLOCK_OF_PLOTS;
use super::report::{rates, ways};
use super::{Bench, Measured};
use crate::LabError;
use crate::plot::{Lane, TIME_MS, bars, lanes, lines};
use crate::stats::size;

/// All figures with data: file name and SVG.
pub(super) fn all(table: &[Measured], bench: &Bench) -> Result<Vec<(String, String)>, LabError> {
    let mut figures = Vec::new();
    for (over, depth) in ways(table) {
        let way = |measured: &&Measured| (measured.row.over, measured.row.reading.depth) == (over, depth);
        let rows: Vec<&Measured> = table.iter().filter(way).collect();
        let words = format!("{}, {depth} at a time", over.name());
        let stem = |what: &str| format!("secure-read-{what}-{}-{depth}.svg", over.name().to_lowercase());
        let throughput = lines(&format!("Sequential reads over {words}"), "MB/s", &rates(&rows))?;
        figures.push((stem("throughput"), throughput));
        // The following figures apply to depth 1 only.
        let rows: Vec<&Measured> =
            rows.into_iter().filter(|measured| measured.row.reading.block == BLOCK_OF_PLOTS).collect();
        if depth > 1 || rows.is_empty() {
            continue;
        }
        let words = format!("{words}, blocks of {}", size(BLOCK_OF_PLOTS));
        figures.push((stem("cycle"), cycle(&words, &rows)?));
        figures.push((stem("packets"), packets(&words, &rows, bench)?));
    }
    Ok(figures)
}

fn cycle(words: &str, rows: &[&Measured]) -> Result<String, LabError> {
    let bar = |one: &&Measured| (one.row.reading.protection.name(), one.parts().to_vec());
    let all: Vec<_> = rows.iter().map(bar).collect();
    let parts = ["until the first bytes", "until the last", "opening"];
    bars(&format!("Where a block's time goes: {words}"), "us, median", &parts, &all)
}

fn packets(words: &str, rows: &[&Measured], bench: &Bench) -> Result<String, LabError> {
    let all: Vec<Lane> = rows
        .iter()
        .map(|measured| {
            let transfers = measured.watched.as_ref().map_or(&[][..], |sample| &sample.transfers);
            // Begins at a request after the first third.
            let from = transfers.iter().enumerate().skip(transfers.len() / 3).find(|(_, one)| !one.is_data);
            let from = from.map_or(0, |(at, _)| at);
            let start = transfers.get(from).map_or(0, |one| one.at_ns);
            let marks = transfers[from..]
                .iter()
                .map(|one| ((one.at_ns.saturating_sub(start)) as f64 / 1e6, one.is_data, one.bytes));
            Lane {
                name: measured.row.reading.protection.name(),
                marks: marks.take_while(|mark| mark.0 <= TIME_MS).collect(),
            }
        })
        .collect();
    let note = if bench.can_capture {
        "packets of the loopback: data up, by log of its bytes, requests down"
    } else {
        "calls of the initiator, not packets (those need CAP_NET_RAW): data up, by log of its bytes, requests down"
    };
    lanes(&format!("Packets: {words}"), note, &all)
}
