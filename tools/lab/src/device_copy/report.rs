//! The results: tables, JSON, the headline.

use serde_json::{Map, Value, json};

use super::copier::{Method, Speed};
use super::model::{Curve, curves};
use super::plan::BUFFERS;
use super::{Bench, BesideCopy, Ceiling, Measured, Row, plots};
use crate::part::bystander::Pacing;
use crate::stats::{Spread, distinct, rounded, short, size};
use crate::table::{Series, Table};
use crate::{LabError, Options, Report, fields, heading};

/// Whether a row belongs to a figure by bytes or by block: one row of each kind of copy.
fn is_compared(measured: &&Measured) -> bool {
    let methods = [Method::UserLevel, Method::Direct, Method::Mover(Some(BUFFERS))];
    measured.row.speed == Speed::default() && methods.contains(&measured.row.method)
}

/// Rates of the rows with the same block, by bytes.
pub(super) fn by_bytes(table: &[Measured]) -> Series {
    let block = table.first().map_or(0, |measured| measured.row.block);
    let rows = table.iter().filter(is_compared).filter(|measured| measured.row.block == block);
    by_place(rows, |row| row.bytes)
}

/// Rates of the rows with the same bytes, by block.
pub(super) fn by_block(table: &[Measured]) -> Series {
    let bytes = table.iter().map(|measured| measured.row.bytes).max().unwrap_or(0);
    let rows = table.iter().filter(is_compared).filter(|measured| measured.row.bytes == bytes);
    by_place(rows, |row| row.block.into())
}

fn by_place<'a>(rows: impl Iterator<Item = &'a Measured>, key: fn(&Row) -> u64) -> Series {
    let cells: Vec<_> = rows.map(|one| (one.row.who(), key(&one.row), one.rate())).collect();
    let mut places = distinct(cells.iter().map(|cell| cell.1));
    places.sort_unstable();
    Series::new(&places, |bytes| size(*bytes), &cells)
}

/// us, sy, wa, hi and si of the machine, in seconds per 10^9 bytes. Summed over all samples, as a tick is long compared
/// with one sample.
pub(super) fn mean_machine(measured: &Measured) -> [f64; 5] {
    let gb: f64 = measured.samples.iter().map(super::Sample::gb).sum();
    let mut sums = [0.0; 5];
    for sample in &measured.samples {
        sums.iter_mut().zip(sample.machine.parts()).for_each(|(sum, part)| *sum += part);
    }
    sums.map(|sum| rounded(sum / gb.max(1e-9)))
}

impl Measured {
    /// Processor seconds of the copier, user and system, per 10^9 bytes.
    fn cpu(&self) -> [Spread; 2] {
        [
            self.spread(|sample| sample.copied.cpu.user / sample.gb()),
            self.spread(|sample| sample.copied.cpu.system / sample.gb()),
        ]
    }

    /// Busy time of the machine, without iowait.
    fn machine_busy(&self) -> f64 {
        let [user, system, _, irq, softirq] = mean_machine(self);
        user + system + irq + softirq
    }

    /// Read requests of the source and write requests of the destination per GiB.
    fn requests_per_gib(&self) -> Option<[f64; 2]> {
        let of = |end: usize| {
            let values = self.samples.iter().filter_map(|sample| {
                Some(sample.requests?[end] as f64 * (1u64 << 30) as f64 / sample.copied.bytes as f64)
            });
            Some(Spread::of(values)?.median)
        };
        Some([of(0)?, of(1)?])
    }

    fn cache_growth(&self) -> Option<f64> {
        let values = self.samples.iter().filter_map(|sample| Some(sample.cache_growth? as f64));
        Some(Spread::of(values)?.median)
    }

    fn obtained(&self) -> &'static str {
        match self.row.method {
            Method::UserLevel => {
                "pread and pwrite with O_SYNC through the page cache, one buffer, in a process of its own"
            }
            Method::Direct => {
                "pread and pwrite with O_DIRECT, one buffer, fdatasync at the end, in a process of its own"
            }
            Method::Program(_) => "the program as it is installed, its start and end included, and fdatasync",
            Method::Mover(_) => "crate mover, O_DIRECT, one flush at the end, in a process of its own",
        }
    }

    fn object(&self) -> Value {
        let [user, system] = self.cpu();
        let [us, sy, wa, hi, si] = mean_machine(self);
        let per_gb = |value: fn(&super::Sample) -> f64| self.spread(|sample| value(sample) / sample.gb());
        json!({
            "row": self.row.who(),
            "device": self.row.speed.name(),
            "delay_us": self.row.speed.delay_us,
            "limit_bytes_per_s": self.row.speed.limit,
            "block": self.row.block,
            "bytes": self.row.bytes,
            "obtained": self.obtained(),
            "runs": self.samples.len(),
            "mb_per_s": self.rate(),
            "buffers_max": self.samples.iter().map(|sample| sample.copied.depth_max).max(),
            "read_us": self.spread(|sample| sample.copied.read_us).median,
            "write_us": self.spread(|sample| sample.copied.write_us).median,
            "cpu_s_per_gb": { "user": user, "system": system },
            "machine_cpu_s_per_gb": { "us": us, "sy": sy, "wa": wa, "hi": hi, "si": si },
            "context_switches_per_gb": per_gb(|sample| sample.copied.switches as f64),
            "device_reads_per_gib": self.requests_per_gib().map(|both| both[0]),
            "device_writes_per_gib": self.requests_per_gib().map(|both| both[1]),
            "page_cache_growth_bytes": self.cache_growth(),
        })
    }
}

impl BesideCopy {
    fn pacing(&self, end: usize, value: fn(&Pacing) -> f64) -> Spread {
        Spread::of(self.pacing.iter().map(|both| value(&both[end]))).unwrap_or_default()
    }

    fn object(&self) -> Value {
        let of = |end: usize| {
            json!({
                "rate_share": self.pacing(end, |pacing| pacing.rate_share),
                "p50_us": self.pacing(end, |pacing| pacing.p50_us),
                "p99_us": self.pacing(end, |pacing| pacing.p99_us),
            })
        };
        json!({
            "beside": self.name,
            "obtained": "4 KiB with O_DIRECT every millisecond, after what is copied; all that was read or written was compared",
            "runs": self.pacing.len(),
            "reads_of_source": of(0),
            "writes_of_destination": of(1),
            "copied_mb_per_s": Spread::of(self.rates.iter().map(|rate| rate / 1e6)),
        })
    }
}

/// The figures that answer the paper's question; null if not measured.
fn headline(table: &[Measured], curves: &[Curve], beside_copies: &[BesideCopy]) -> Map<String, Value> {
    let find = |method: Method| {
        let is_it =
            |one: &&Measured| one.is_main && one.row.speed == Speed::default() && one.row.method == method;
        table.iter().find(is_it)
    };
    let (dd, direct) = (find(Method::UserLevel), find(Method::Direct));
    let ours = find(Method::Mover(Some(BUFFERS)));
    let ratio = |value: &dyn Fn(&Measured) -> f64, other: Option<&Measured>| {
        ours.zip(other)
            .map(|(ours, other)| rounded(value(ours) / value(other)))
            .filter(|ratio| ratio.is_finite())
    };
    let rate = |one: &Measured| one.rate().median;
    let cpu = |one: &Measured| one.cpu().iter().map(|part| part.median).sum();
    let as_it_is = curves.iter().find(|curve| curve.speed == Speed::default());
    let best = as_it_is
        .map(|curve| curve.points.iter().map(|point| point.measured_mb_per_s.median).fold(0.0, f64::max));
    let of_ceiling = as_it_is.zip(best).map(|(curve, best)| rounded(best / curve.at_once_mb_per_s));
    let knees: Vec<Value> = curves
        .iter()
        .map(|curve| json!({ "device": curve.device, "predicted": curve.knee_predicted, "measured": curve.knee_measured }))
        .collect();
    // From the slowest device, whose rate does not depend on the machine.
    let slow = curves.iter().max_by_key(|curve| (curve.speed.delay_us, curve.speed.limit == 0));
    let slow = slow.filter(|curve| curve.speed.delay_us > 0);
    let by_buffers: Map<String, Value> = slow
        .iter()
        .flat_map(|curve| {
            let one = curve.points[0].measured_mb_per_s.median;
            curve.points.iter().map(move |point| {
                (point.buffers.to_string(), json!(rounded(point.measured_mb_per_s.median / one)))
            })
        })
        .collect();
    let off =
        curves.iter().flat_map(|curve| &curve.points).map(|point| (point.ratio - 1.0).abs()).reduce(f64::max);
    let p99 = |name: &str, end: usize| {
        let of = |name: &str| beside_copies.iter().find(|beside_copy| beside_copy.name == name);
        let alone = of("nobody copies")?.pacing(end, |pacing| pacing.p99_us).median;
        Some(rounded(of(name)?.pacing(end, |pacing| pacing.p99_us).median / alone))
            .filter(|ratio| ratio.is_finite())
    };
    let beside = |name: &str| json!({ "reads": p99(name, 0), "writes": p99(name, 1) });
    let requests = ours.and_then(Measured::requests_per_gib).map(|both| both.map(rounded));
    fields(json!({
        "bandwidth_of_user_level": ratio(&rate, dd),
        "bandwidth_of_direct": ratio(&rate, direct),
        "cpu_of_user_level": ratio(&cpu, dd),
        "machine_cpu_of_user_level": ratio(&Measured::machine_busy, dd),
        "best_of_reading_and_writing_at_once": of_ceiling,
        "bandwidth_by_buffers_of_one": by_buffers,
        "knee": knees,
        "model_off_at_most": off.map(rounded),
        "device_reads_per_gib": requests.map(|both| both[0]),
        "device_writes_per_gib": requests.map(|both| both[1]),
        "page_cache_growth_bytes": ours.and_then(Measured::cache_growth),
        "p99_beside_mover_of_alone": beside("mover"),
        "p99_beside_rate_of_alone": beside("mover, --rate 100MB/s"),
    }))
}

pub(super) fn report(
    bench: &Bench,
    table: &[Measured],
    ceilings: &[Ceiling],
    beside_copies: &[BesideCopy],
    options: &Options,
) -> Result<Report, LabError> {
    let curves = curves(table, ceilings);
    let headline = headline(table, &curves, beside_copies);
    let mut object = heading("device-copy", options);
    object.insert("storage".to_owned(), json!(bench.storage.what));
    object.extend(headline.clone());
    object.insert("model".to_owned(), json!(curves));
    object.insert("beside".to_owned(), beside_copies.iter().map(BesideCopy::object).collect());
    object.insert("rows".to_owned(), table.iter().map(Measured::object).collect());
    let mut text = format!("Storage: {}.\n\n", bench.storage.what);
    text += &text_by_buffers(table);
    text += &text_of_model(&curves);
    text += &text_by_place("bytes copied, as it is (figure 3)", &by_bytes(table));
    text += &text_by_place("block size, as it is", &by_block(table));
    text += &text_of_cost(table);
    text += &text_beside(beside_copies);
    for (name, value) in &headline {
        text += &format!("{name}: {value}\n");
    }
    Ok(Report { text, json: Value::Object(object), figures: plots::all(table, &curves)? })
}

fn text_by_buffers(table: &[Measured]) -> String {
    let rows = || table.iter().filter(|measured| measured.is_main);
    let Some(first) = rows().next() else { return String::new() };
    let cells: Vec<_> = rows().map(|one| (one.row.who(), one.row.speed, one.rate())).collect();
    let series = Series::new(&distinct(cells.iter().map(|cell| cell.1)), |speed| speed.name(), &cells);
    let block = size(first.row.block);
    format!("### By number of buffers of {block} (figure 4), by device\n\n{}\n", series.table("MB/s"))
}

/// Empty if there is only one place.
fn text_by_place(what: &str, series: &Series) -> String {
    if series.places.len() < 2 {
        return String::new();
    }
    format!("### By {what}\n\n{}\n", series.table("MB/s"))
}

fn text_of_model(curves: &[Curve]) -> String {
    if curves.is_empty() {
        return String::new();
    }
    let mut table = Table::new("device | buffers | model MB/s | measured | of model | of at once");
    let mut knees = String::new();
    for curve in curves {
        for point in &curve.points {
            table.row(vec![
                curve.device.clone(),
                point.buffers.to_string(),
                short(point.predicted_mb_per_s),
                point.measured_mb_per_s.show(),
                format!("{:.0} %", point.ratio * 100.0),
                format!("{:.0} %", point.of_at_once * 100.0),
            ]);
        }
        knees += &format!(
            "{}: one chunk is read in {} us and written in {} us, and takes {} and {} us of a busy device: the knee should be at {} \
             buffers, and is {}. Reading and writing at once by others: {} MB/s.\n",
            curve.device,
            short(curve.read_us),
            short(curve.write_us),
            short(curve.read_busy_us),
            short(curve.write_busy_us),
            short(curve.knee_predicted),
            curve.knee_measured.map_or("beyond what was measured".to_owned(), |knee| format!("at {knee}")),
            short(curve.at_once_mb_per_s),
        );
    }
    format!(
        "### The model: a chunk takes max((read + write) / buffers, busy)\n\n{}\n{knees}\n",
        table.render()
    )
}

fn text_of_cost(table: &[Measured]) -> String {
    let mut costs = Table::new(
        "for a GB | process CPU s user + system | machine us | sy | wa | hi | si | context switches | \
         device reads, writes (GiB) | page cache growth",
    );
    let rows: Vec<&Measured> =
        table.iter().filter(|one| one.is_main && one.row.speed == Speed::default()).collect();
    if rows.is_empty() {
        return String::new();
    }
    for measured in rows {
        let [user, system] = measured.cpu();
        let mut row = vec![measured.row.who(), format!("{} + {}", short(user.median), short(system.median))];
        row.extend(mean_machine(measured).map(short));
        row.push(short(measured.spread(|sample| sample.copied.switches as f64 / sample.gb()).median));
        let requests = measured.requests_per_gib();
        row.push(requests.map(|[reads, writes]| format!("{reads:.0}, {writes:.0}")).unwrap_or_default());
        row.push(measured.cache_growth().map(|bytes| format!("{bytes:.0} B")).unwrap_or_default());
        costs.row(row);
    }
    format!("### What it takes, devices as they are (figure 5)\n\n{}\n", costs.render())
}

fn text_beside(beside_copies: &[BesideCopy]) -> String {
    if beside_copies.is_empty() {
        return String::new();
    }
    let mut table = Table::new(
        "beside | reads of the source: p50 us | p99 us | writes of the destination: p50 us | p99 us | copied MB/s",
    );
    for beside_copy in beside_copies {
        let us = |end: usize, value: fn(&Pacing) -> f64| beside_copy.pacing(end, value).show();
        table.row(vec![
            beside_copy.name.to_owned(),
            us(0, |pacing| pacing.p50_us),
            us(0, |pacing| pacing.p99_us),
            us(1, |pacing| pacing.p50_us),
            us(1, |pacing| pacing.p99_us),
            Spread::of(beside_copy.rates.iter().map(|rate| rate / 1e6)).unwrap_or_default().show(),
        ]);
    }
    format!("### Other users of both devices, 4 KiB every millisecond\n\n{}\n", table.render())
}
