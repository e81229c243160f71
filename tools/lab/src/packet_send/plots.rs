//! The paper's figures 7 to 9, the share of hops on wires, and the ways to hand memory over.

use super::hand::Mode;
use super::near::Payload;
use super::parts::{COUNT, DEVICE, HOPS, PREPARE, Parts, ROWS};
use super::plan::Stack;
use super::results::{Results, WIRES};
use super::waiting::Waiting;
use super::{Handing, Staged};
use crate::LabError;
use crate::plot::{bars, lines};
use crate::stats::{Spread, size};
use crate::table::{Line, Series};

/// File name and SVG of all figures that have data.
pub(super) fn all(results: &Results) -> Result<Vec<(String, String)>, LabError> {
    let mut figures = Vec::new();
    let mut draw = |name: &str, title: &str, y: &str, series: &Series| {
        if series.lines.iter().any(|line| line.values.iter().any(Option::is_some)) {
            figures.push((format!("packet-send-{name}.svg"), lines(title, y, series)?));
        }
        Ok::<_, LabError>(())
    };
    draw("hops", "Hops of a send, written in place (figure 7)", "us", &hops(results))?;
    draw(
        "round-trip",
        "Round trips with an answer of one byte (figure 9)",
        "us, p50",
        &round_trips(results),
    )?;
    let title = "What processes add to a round trip: share of it, by wire (the wire's time is computed)";
    draw("wires", title, "%", &wires(results))?;
    draw("hand-over", "An area handed over, and back", "us", &modes(results, |handed| handed.turn_us))?;
    let title = "First access after a hand-over, of all bytes";
    draw("first-access", title, "us", &modes(results, |handed| handed.first_access_us))?;
    if let Some(figure) = without_hops(results)? {
        figures.push(("packet-send-without-hops.svg".to_owned(), figure));
    }
    Ok(figures)
}

fn sizes(all: &[usize]) -> Vec<String> {
    all.iter().map(|&bytes| size(bytes as u64)).collect()
}

pub(super) fn hops(results: &Results) -> Series {
    let is_it = |staged: &&Staged| (staged.stack, staged.payload) == (Stack::Three, Payload::InPlace);
    let all: Vec<_> = results.staged.iter().filter(is_it).collect();
    let line = |name: &str, part: &dyn Fn(&Parts) -> f64| Line {
        name: name.to_owned(),
        values: all.iter().map(|staged| staged.part(part)).collect(),
    };
    let mut found: Vec<_> = HOPS
        .iter()
        .map(|&hop| {
            line(HOP_NAMES[HOPS.iter().position(|other| *other == hop).unwrap_or(0)], &|parts| parts.row(hop))
        })
        .collect();
    found.push(line("all three", &Parts::ipc));
    Series { places: sizes(&all.iter().map(|staged| staged.bytes).collect::<Vec<_>>()), lines: found }
}

const HOP_NAMES: [&str; 3] = ["application to inet", "inet to driver", "driver to application"];

fn round_trips(results: &Results) -> Series {
    let stacks = [Stack::Kernel, Stack::One, Stack::Three];
    let places: Vec<usize> = results
        .rows
        .iter()
        .filter(|rows| rows.is_echo() && rows.row.waiting == Waiting::Spin && rows.row.defers)
        .filter(|rows| rows.row.stack == Stack::Kernel)
        .map(|rows| rows.row.bytes())
        .collect();
    let line = |stack: Stack| {
        let value = |&bytes: &usize| {
            let rows = results.echo(stack, Waiting::Spin, bytes)?;
            Some(rows.spread(|sample| rows.value(sample)))
        };
        Line { name: stack.name().to_owned(), values: places.iter().map(value).collect() }
    };
    Series { lines: stacks.map(line).into(), places: sizes(&places) }
}

/// Sizes whose share is shown by wire.
const WIRE_SIZES: [usize; 4] = [256, 1024, 4096, 65_536];

pub(super) fn wires(results: &Results) -> Series {
    let percent = |share: Spread| Spread {
        median: share.median * 100.0,
        least: share.least * 100.0,
        greatest: share.greatest * 100.0,
    };
    let line = |bytes: usize| Line {
        name: size(bytes as u64),
        values: WIRES.iter().map(|&wire| results.ipc_share(bytes, wire).map(percent)).collect(),
    };
    let lines = WIRE_SIZES.map(line).into_iter().filter(|line| line.values[0].is_some()).collect();
    Series { places: WIRES.iter().map(|wire| wire.name.to_owned()).collect(), lines }
}

pub(super) fn modes(results: &Results, value: fn(&super::Handed) -> f64) -> Series {
    let line = |mode: Mode| Line {
        name: mode.to_string(),
        values: results.handings.iter().map(|handing| handing.of(mode, value)).collect(),
    };
    let places: Vec<_> = results.handings.iter().map(|handing: &Handing| handing.bytes).collect();
    Series { places: sizes(&places), lines: Mode::ALL.map(line).into() }
}

/// Figure 8: a bar for each send, without the hops. Of our device's part, the first access to bytes that another process
/// wrote stands apart.
fn without_hops(results: &Results) -> Result<Option<String>, LabError> {
    let first_access = |bytes: usize| {
        let handing = results.handings.iter().find(|handing| handing.bytes == bytes)?;
        Some(handing.of(Mode::Token, |handed| handed.first_access_us)?.median)
    };
    let kept: Vec<usize> = (0..COUNT).filter(|row| !HOPS.contains(row)).collect();
    let mut names: Vec<&str> = kept.iter().map(|&row| ROWS[row].name).collect();
    names.push("first access after a hand-over");
    let mut all = Vec::new();
    for staged in &results.staged {
        if staged.payload == Payload::Copied && staged.stack == Stack::Three {
            continue;
        }
        let value = |row: usize| staged.part(|parts| parts.row(row)).map(|spread| spread.median);
        let mut values: Vec<f64> = kept.iter().map(|&row| value(row).unwrap_or(0.0)).collect();
        if value(PREPARE).is_none() {
            continue;
        }
        let first = first_access(staged.bytes).filter(|_| staged.stack == Stack::Three).unwrap_or(0.0);
        if let Some(device) = kept.iter().position(|&row| row == DEVICE) {
            let first = first.min(values[device]);
            values[device] -= first;
            values.push(first);
        }
        all.push((format!("{}, {}", size(staged.bytes as u64), staged.stack.name()), values));
    }
    if all.is_empty() {
        return Ok(None);
    }
    bars("A send without its hops (figure 8)", "us, medians", &names, &all).map(Some)
}
