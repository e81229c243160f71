//! The paper's figures 7 to 9, the share of hops on wires, and the ways to hand memory over.

use super::hand::Mode;
use super::near::Payload;
use super::parts::{
    CREATION, DEVICE, ETHERNET, HOPS, INET, IP, NIC, PREPARE, PREPARE_NIC, PREPARE_RETURN, PROGRAM, Parts,
    TCP,
};
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
    draw("hand-over", "An area handed over twice, and back", "us", &modes(results, |handed| handed.turn_us))?;
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
    let hops = HOPS.iter().zip(HOP_NAMES);
    let mut found: Vec<_> = hops.map(|(&hop, name)| line(name, &|parts| parts.row(hop))).collect();
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

/// Bars of figure 8: their parts, each some rows of Table 3.
const PARTS: [(&str, &[usize]); 7] = [
    ("preparing requests and return, server processing", &[PREPARE, INET, PREPARE_NIC, NIC, PREPARE_RETURN]),
    ("packet creation (kernel: with TCP and IP)", &[CREATION]),
    ("TCP layer", &[TCP]),
    ("IP layer", &[IP]),
    ("Ethernet layer", &[ETHERNET]),
    ("I/O to the NIC", &[DEVICE]),
    ("return to the application's program", &[PROGRAM]),
];
const DEVICE_PART: usize = 5;

/// Figure 8: a bar for each send, without the hops. Of our device's part, the first access to bytes that another process
/// wrote stands apart.
fn without_hops(results: &Results) -> Result<Option<String>, LabError> {
    let first_access = |bytes: usize| {
        let handing = results.handings.iter().find(|handing| handing.bytes == bytes)?;
        Some(handing.of(Mode::Token, |handed| handed.first_access_us)?.median)
    };
    let bar = |staged: &Staged| {
        let mut values = Vec::new();
        for (_, rows) in PARTS {
            let part = |parts: &Parts| rows.iter().map(|&row| parts.row(row)).sum();
            values.push(staged.part(part)?.median);
        }
        let is_ours = staged.stack == Stack::Three;
        let first = first_access(staged.bytes).filter(|_| is_ours).unwrap_or(0.0).min(values[DEVICE_PART]);
        values[DEVICE_PART] -= first;
        values.push(first);
        Some((format!("{}, {}", size(staged.bytes as u64), staged.stack.name()), values))
    };
    let is_shown = |staged: &&Staged| staged.stack == Stack::Kernel || staged.payload == Payload::InPlace;
    let all: Vec<_> = results.staged.iter().filter(is_shown).filter_map(bar).collect();
    if all.is_empty() {
        return Ok(None);
    }
    let names: Vec<&str> =
        PARTS.iter().map(|(name, _)| *name).chain(["first access after a hand-over"]).collect();
    bars("A send without its hops (figure 8)", "us, medians", &names, &all).map(Some)
}
