//! The paper's figures: bandwidth by bytes (3), by number of buffers (4), and processor time (5).

use super::copier::{Speed, Way};
use super::model::Curve;
use super::report::{by_block, by_bytes, mean_machine, size};
use super::{Measured, Row};
use crate::LabError;
use crate::plot::{Line, bars, lines};

pub(super) fn all(table: &[Measured], curves: &[Curve]) -> Result<Vec<(String, String)>, LabError> {
    let mut figures = Vec::new();
    let mut draw = |name: &str, figure: Result<String, LabError>| {
        figures.push((format!("device-copy-{name}.svg"), figure?));
        Ok::<_, LabError>(())
    };
    let rows = by_bytes(table);
    draw("bytes", places("Bandwidth by bytes copied (figure 3)", &rows, |row| row.bytes))?;
    let rows = by_block(table);
    draw("blocks", places("Bandwidth by block size", &rows, |row| row.block.into()))?;
    for curve in curves {
        let name = match curve.speed {
            Speed { delay_us: 0, limit: 0 } => "buffers".to_owned(),
            Speed { delay_us, limit: 0 } => format!("buffers-{delay_us}us"),
            Speed { delay_us, limit } => format!("buffers-{delay_us}us-{}MBps", limit / 1_000_000),
        };
        draw(&name, buffers(table, curve))?;
    }
    draw("cpu", cpu(table))?;
    Ok(figures)
}

/// A line for each who, a place for each value of `key`.
fn places(title: &str, rows: &[&Measured], key: fn(&Row) -> u64) -> Result<String, LabError> {
    let mut keys: Vec<u64> = rows.iter().map(|measured| key(&measured.row)).collect();
    keys.sort_unstable();
    keys.dedup();
    let mut names: Vec<String> = Vec::new();
    for measured in rows {
        if !names.contains(&measured.row.who()) {
            names.push(measured.row.who());
        }
    }
    let of = |name: &String, at: &u64| {
        let rate = rows.iter().find(|one| one.row.who() == *name && key(&one.row) == *at)?.rate();
        Some([rate.median, rate.least, rate.greatest])
    };
    let all: Vec<Line> = names
        .into_iter()
        .map(|name| Line { values: keys.iter().map(|at| of(&name, at)).collect(), name })
        .collect();
    let places: Vec<String> = keys.iter().map(|at| size(*at)).collect();
    lines(title, "MB/s", &places, &all)
}

/// The mover by number of buffers, the model, and those who have one buffer.
fn buffers(table: &[Measured], curve: &Curve) -> Result<String, LabError> {
    let three = |value: f64| Some([value; 3]);
    let measured = curve.points.iter().map(|point| {
        let rate = point.measured_mb_per_s;
        Some([rate.median, rate.least, rate.greatest])
    });
    let mut all = vec![
        Line { name: "mover".to_owned(), values: measured.collect() },
        Line {
            name: "model".to_owned(),
            values: curve.points.iter().map(|point| three(point.predicted_mb_per_s)).collect(),
        },
        Line {
            name: "reading and writing at once".to_owned(),
            values: curve.points.iter().map(|_| three(curve.at_once_mb_per_s)).collect(),
        },
    ];
    let is_here = |measured: &&Measured| measured.is_main && measured.row.speed == curve.speed;
    for measured in table.iter().filter(is_here) {
        if !matches!(measured.row.way, Way::Mover(_)) {
            let values = curve.points.iter().map(|_| three(measured.rate().median)).collect();
            all.push(Line { name: measured.row.who(), values });
        }
    }
    let places: Vec<String> = curve.points.iter().map(|point| point.buffers.to_string()).collect();
    lines(&format!("Bandwidth by buffers, devices {} (figure 4)", curve.device), "MB/s", &places, &all)
}

fn cpu(table: &[Measured]) -> Result<String, LabError> {
    let all: Vec<(String, Vec<f64>)> = table
        .iter()
        .filter(|measured| measured.is_main && measured.row.speed == Speed::default())
        .map(|measured| (measured.row.who(), mean_machine(measured).to_vec()))
        .collect();
    let parts = ["us", "sy", "wa", "hi", "si"];
    bars("Processor time of the whole machine for a GB (figure 5 b)", "s/GB", &parts, &all)
}
