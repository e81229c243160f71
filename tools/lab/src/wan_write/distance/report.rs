//! The copies as a table, as JSON and as a figure.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::plan::{Ours, Row, Way, Who};
use super::{Cell, Copies};
use crate::LabError;
use crate::plot::lines;
use crate::stats::{Spread, distinct, rounded, short, size};
use crate::table::{Series, Table};

impl Cell {
    /// `None` for a copy that ends before its rate is steady.
    fn steady(&self) -> Option<Spread> {
        let is_small = self.row.who == Who::Ours(Ours::Small);
        Spread::of(self.took.iter().filter(|_| !is_small).filter_map(|took| took.steady_mb_per_s))
    }

    fn seconds(&self) -> Option<Spread> {
        Spread::of(self.took.iter().map(|took| took.seconds))
    }

    /// Greatest lateness of the path in any of the copies, microseconds.
    fn late_us(&self) -> f64 {
        self.took.iter().map(|took| took.late_us).fold(0.0, f64::max)
    }

    fn is_invalid(&self) -> bool {
        self.took.iter().any(|took| took.is_invalid)
    }

    fn object(&self) -> Value {
        json!({
            "row": self.row.name(),
            "rtt_ms": self.rtt.as_millis() as u64,
            "bytes": self.bytes,
            "congestion_control": self.row.congestion,
            "obtained": self.row.obtained(),
            "runs": self.took.len(),
            "steady_mb_per_s": self.steady(),
            "seconds": self.seconds(),
            "max_late_us": rounded(self.late_us()),
            "tail_drops": self.took.iter().map(|took| took.tail_drops).max(),
            "valid": !self.is_invalid(),
            "path": self.took.last().and_then(|took| took.path.clone()),
        })
    }

    /// `steady rate (seconds of the whole)`; a peer that copied less than the whole has no seconds.
    fn show(&self, whole: u64) -> String {
        let show = |spread: Spread| {
            let is_wide = spread.greatest - spread.least > 0.05 * spread.median;
            if is_wide { spread.show() } else { short(spread.median) }
        };
        let steady = self.steady().filter(|_| self.bytes >= whole || self.is_of_peers()).map(show);
        let seconds = self.seconds().filter(|_| !self.is_of_peers() || self.bytes == whole);
        let seconds = seconds.map(|seconds| format!("({} s)", show(seconds)));
        let parts: Vec<_> = [steady, seconds].into_iter().flatten().collect();
        parts.join(" ")
    }

    fn is_of_peers(&self) -> bool {
        matches!(self.row.who, Who::Peers(_))
    }
}

impl Copies {
    fn rtts(&self) -> Vec<Duration> {
        let mut rtts = distinct(self.cells.iter().map(|cell| cell.rtt));
        rtts.sort();
        rtts
    }

    fn cell(&self, row: &Row, rtt: Duration) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.row == *row && cell.rtt == rtt)
    }

    /// The plain socket beside a row; where one direction was measured it stands for both.
    fn reference(&self, cell: &Cell) -> Option<&Cell> {
        let same = self.cell(&Row::reference(cell.row.way), cell.rtt);
        same.or_else(|| self.cell(&Row::reference(Way::Write), cell.rtt))
    }
}

/// Every row at every round trip.
pub(in super::super) fn rows(copies: &Copies) -> impl Iterator<Item = Value> {
    copies.cells.iter().map(Cell::object)
}

/// Headline figures: how near whole copies of this program come to the plain socket.
pub(in super::super) fn headline(copies: &Copies) -> Map<String, Value> {
    let (mut share, mut more) = (Map::new(), Map::new());
    for cell in copies.cells.iter().filter(|cell| matches!(cell.row.who, Who::Ours(_))) {
        let Some(reference) = copies.reference(cell) else { continue };
        let rtt = cell.rtt.as_millis().to_string();
        let add = |map: &mut Map<String, Value>, value: f64| {
            let of_row = map.entry(cell.row.name()).or_insert_with(|| json!({}));
            of_row[&rtt] = json!(rounded(value));
        };
        if let Some((own, other)) = cell.steady().zip(reference.steady()) {
            add(&mut share, own.median / other.median);
        }
        if let Some((own, other)) =
            cell.seconds().zip(reference.seconds()).filter(|_| cell.bytes == reference.bytes)
        {
            add(&mut more, own.median - other.median);
        }
    }
    let mut object = Map::new();
    object.insert("steady_of_raw_socket".to_owned(), share.into());
    object.insert("seconds_more_than_raw_socket".to_owned(), more.into());
    object
}

/// The table as README has it, and the remarks below.
pub(in super::super) fn text(copies: &Copies) -> String {
    let rtts = copies.rtts();
    if rtts.is_empty() && copies.missing.is_empty() {
        return String::new();
    }
    let places: Vec<_> = rtts.iter().map(|rtt| format!("RTT {} ms", rtt.as_millis())).collect();
    let mut table = Table::new(&format!("MB/s (whole copy) | {}", places.join(" | ")));
    for row in distinct(copies.cells.iter().map(|cell| cell.row.clone())) {
        let show = |rtt: &Duration| {
            copies.cell(&row, *rtt).map(|cell| cell.show(copies.sizes.bytes)).unwrap_or_default()
        };
        table.row(std::iter::once(row.name()).chain(rtts.iter().map(show)).collect());
    }
    let late = |rtt: &Duration| {
        let of_rtt = copies.cells.iter().filter(|cell| cell.rtt == *rtt);
        format!("{:.0}", of_rtt.map(Cell::late_us).fold(0.0, f64::max))
    };
    table.row(std::iter::once("path late at most, us".to_owned()).chain(rtts.iter().map(late)).collect());
    let whole = size(copies.sizes.bytes);
    let mut remarks = vec![format!(
        "1 Gbit/s; median of {}. MB/s while the middle of the data travels; in brackets a cold copy of {whole}, from the start of \
         its process to its exit, flush included. The kernel's buffers have their usual limits (4 MiB to send, 32 MiB to receive), \
         but for the raw socket 64 MiB.",
        copies.sizes.reps,
    )];
    if copies.cells.iter().any(Cell::is_invalid) {
        remarks.push(
            "The path lost frames by itself: this machine is too slow for it, and the figures are invalid."
                .to_owned(),
        );
    }
    if !copies.missing.is_empty() {
        remarks.push(format!(
            "Rows are missing, because these are not installed: {}.",
            copies.missing.join(", ")
        ));
    }
    format!("### Copies by round trip\n\n{}\n{}\n\n", table.render(), remarks.join("\n"))
}

/// Figure 4 with whole copies: their steady rates.
pub(in super::super) fn figures(copies: &Copies) -> Result<Vec<(String, String)>, LabError> {
    let mut figures = Vec::new();
    for way in [Way::Write, Way::Read] {
        let is_drawn = |cell: &&Cell| {
            cell.row.way == way && !matches!(cell.row.who, Who::Ours(Ours::Small | Ours::Zeroes))
        };
        let cells: Vec<_> = copies
            .cells
            .iter()
            .filter(is_drawn)
            .filter_map(|cell| {
                // No path counts what a local copy moves.
                let local = || Some(Spread::exact(cell.bytes as f64 / 1e6 / cell.seconds()?.median));
                let rate = if cell.row.who == Who::Local { local() } else { cell.steady() };
                Some((cell.row.name(), cell.rtt, rate?))
            })
            .collect();
        let series = Series::new(&copies.rtts(), |rtt| format!("{} ms", rtt.as_millis()), &cells);
        if !cells.is_empty() {
            let title = format!("Copies by round trip: {} (figure 4)", way.name());
            figures.push((format!("wan-write-4-{}.svg", way.name()), lines(&title, "MB/s", &series)?));
        }
    }
    Ok(figures)
}
