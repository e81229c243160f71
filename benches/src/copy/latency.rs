//! Number of buffers against latency: 2 ms more at each end; and slower devices, for which the useful number of buffers
//! is latency x rate / chunk.

use std::fmt::Write as _;

use anyhow::Result;
use serde_json::json;

use super::super::Spread;
use super::super::bars::Bar;
use super::disks::{Files, Place, compare, prepare};
use super::{Bench, Found, number};
use harness::files::Loop;

const DELAY_MS: u64 = 2;
const CHUNK: u64 = 512 << 10;
const BYTES: u64 = 128 << 20;
/// Number of buffers, and the minimum speed relative to one buffer.
const GAINS: [(&str, u64, f64); 3] =
    [("2 buffers, to one", 2, 1.9), ("4 buffers, to one", 4, 3.7), ("8 buffers, to one", 8, 7.0)];
/// Rates of devices in MB/s, with the numbers of buffers measured; for the last rate, more than 8 buffers bring
/// nothing.
const RATES_MB: [u64; 3] = [250, 500, 1000];
const DEPTHS: [u64; 5] = [1, 2, 4, 8, 16];

pub(super) fn measure(bench: &Bench) -> Result<Found> {
    let files = Files::new(Place::Memory, BYTES)?;
    let loops = files.loops()?;
    let [src, dst] = loops.each_ref().map(Loop::path);
    let copy = |rate_mb: Option<u64>, depth: u64, rep: usize| -> Result<f64> {
        prepare(src, dst, BYTES, rep)?;
        let limit = rate_mb.map(|rate| format!(",limit={rate}MB/s")).unwrap_or_default();
        let [from, to] = [src, dst].map(|path| format!("{},delay={DELAY_MS}ms{limit}", path.display()));
        let (depth, chunk) = (depth.to_string(), CHUNK.to_string());
        let report = bench.copy(&[&from, &to, "--depth", &depth, "--chunk", &chunk])?;
        compare(src, dst, BYTES)?;
        number(&report, "/mb_per_s")
    };
    let rates = || std::iter::once(None).chain(RATES_MB.map(Some));
    let cells: Vec<(Option<u64>, u64)> = rates().flat_map(|rate| DEPTHS.map(|depth| (rate, depth))).collect();
    let mut runs = vec![Vec::new(); cells.len()];
    for rep in 0..bench.reps {
        for ((rate, depth), runs) in cells.iter().zip(&mut runs) {
            runs.push(copy(*rate, *depth, rep)?);
        }
    }
    let spread = |rate: Option<u64>, depth: u64| {
        let at = cells.iter().position(|cell| *cell == (rate, depth)).expect("measured");
        Spread::of(&runs[at])
    };
    let one = spread(None, 1).median;
    // Seconds that one chunk takes alone, both ends together.
    let latency = CHUNK as f64 / 1e6 / one;
    let mut table = format!(
        "| each end {DELAY_MS} ms further away, chunks of {} KiB, MB/s with so many buffers |{}\n|---|{}\n",
        CHUNK >> 10,
        DEPTHS.map(|depth| format!(" {depth} |")).concat(),
        "---|".repeat(DEPTHS.len())
    );
    let mut bars: Vec<Bar> = GAINS
        .iter()
        .map(|(what, depth, bound)| Bar::at_least(*what, spread(None, *depth).median / one, *bound))
        .collect();
    let mut least = f64::INFINITY;
    for rate in rates() {
        let name = rate.map_or("no slower".to_owned(), |rate| {
            format!("{rate} MB/s: knee at {:.1}", latency * rate as f64 * 1e6 / CHUNK as f64)
        });
        write!(table, "| {name} |")?;
        for depth in DEPTHS {
            let measured = spread(rate, depth).median;
            write!(table, " {measured:.0} |")?;
            if let Some(rate) = rate {
                least = least.min(measured / f64::min(rate as f64, depth as f64 * one));
            }
        }
        table.push('\n');
    }
    let what = "slower devices: least part of what buffers x chunk / latency and the rate allow";
    bars.push(Bar::at_least(what, least, 0.9));
    let rows = cells.iter().zip(&runs).map(
        |((rate, depth), runs)| json!({ "rate_mb": rate, "depth": depth, "mb_per_s": Spread::of(runs) }),
    );
    Ok(Found { table, bars, rows: rows.collect() })
}
