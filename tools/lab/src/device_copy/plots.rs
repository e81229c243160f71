//! The paper's figures: bandwidth by bytes (3), by number of buffers (4), and processor time (5).

use super::Measured;
use super::copier::{Method, Speed};
use super::model::{Curve, Point};
use super::report::{by_block, by_bytes, mean_machine};
use crate::LabError;
use crate::plot::{bars, lines};
use crate::stats::Spread;
use crate::table::{Line, Series};

pub(super) fn all(table: &[Measured], curves: &[Curve]) -> Result<Vec<(String, String)>, LabError> {
    let mut figures = Vec::new();
    let mut draw = |name: &str, figure: Result<String, LabError>| {
        figures.push((format!("device-copy-{name}.svg"), figure?));
        Ok::<_, LabError>(())
    };
    draw("bytes", lines("Bandwidth by bytes copied (figure 3)", "MB/s", &by_bytes(table)))?;
    draw("blocks", lines("Bandwidth by block size", "MB/s", &by_block(table)))?;
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

/// The mover by number of buffers, the model, and the copiers with one buffer.
fn buffers(table: &[Measured], curve: &Curve) -> Result<String, LabError> {
    let line = |name: String, value: &dyn Fn(&Point) -> Spread| Line {
        name,
        values: curve.points.iter().map(|point| Some(value(point))).collect(),
    };
    let mut all = vec![
        line("mover".to_owned(), &|point| point.measured_mb_per_s),
        line("model".to_owned(), &|point| Spread::exact(point.predicted_mb_per_s)),
        line("reading and writing at once".to_owned(), &|_| Spread::exact(curve.at_once_mb_per_s)),
    ];
    let is_here = |measured: &&Measured| measured.is_main && measured.row.speed == curve.speed;
    for measured in table.iter().filter(is_here) {
        if !matches!(measured.row.method, Method::Mover(_)) {
            let rate = Spread::exact(measured.rate().median);
            all.push(line(measured.row.who(), &|_| rate));
        }
    }
    let places = curve.points.iter().map(|point| point.buffers.to_string()).collect();
    let title = format!("Bandwidth by buffers, devices {} (figure 4)", curve.device);
    lines(&title, "MB/s", &Series { places, lines: all })
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
