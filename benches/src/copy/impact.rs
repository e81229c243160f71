//! A reader beside a copy on one disk: its latency and the copy's rate, by `--impact` and with fixed requests in flight.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::json;

use super::super::Spread;
use super::super::bars::Bar;
use super::disks::{Files, Place, compare, prepare};
use super::{Bench, Found, number};

/// Bytes of a read of the reader, and of its alignment.
const READ_BYTES: usize = 4096;
/// Distance of its reads: 2000 a second, one at a time.
const READ_EVERY: Duration = Duration::from_micros(500);
/// How long the reader runs alone.
const ALONE: Duration = Duration::from_millis(1500);
/// Bytes of a copy, of which the first tenths of a second find the reader.
const BYTES: u64 = 4 << 30;
/// Part of them for the slow settings.
const BYTES_SLOW: &str = "1G";

/// Name and options of a copy.
const SETTINGS: &[(&str, &[&str])] = &[
    ("--impact none", &["--impact", "none", "--size", BYTES_SLOW]),
    ("--impact auto", &["--impact", "auto"]),
    ("--impact full", &["--impact", "full"]),
    ("1 x 128 KiB", &["--impact", "full", "--depth", "1", "--chunk", "128K", "--size", BYTES_SLOW]),
    ("1 x 256 KiB", &["--impact", "full", "--depth", "1", "--chunk", "256K"]),
    ("1 x 512 KiB", &["--impact", "full", "--depth", "1", "--chunk", "512K"]),
    ("1 x 1 MiB", &["--impact", "full", "--depth", "1", "--chunk", "1M"]),
    ("2 x 1 MiB", &["--impact", "full", "--depth", "2", "--chunk", "1M"]),
    ("4 x 1 MiB", &["--impact", "full", "--depth", "4", "--chunk", "1M"]),
];
/// Those measured without a reader, too.
const ALONE_TOO: usize = 3;
const AUTO: usize = 1;
const FULL: usize = 2;

pub(super) fn measure(bench: &Bench) -> Result<Found> {
    let files = Files::new(Place::Disk, bench.bytes.max(BYTES))?;
    let (src, dst) = (&files.source, &files.destination);
    let copy = |options: &[&str]| -> Result<f64> {
        let ends = [src.to_str().context("a path")?, dst.to_str().context("a path")?];
        let report = bench.copy(&[&ends[..], options, &["--offload", "off", "--resume", "off"]].concat())?;
        number(&report, "/mb_per_s")
    };
    let mut idle = Vec::new();
    let mut alone = vec![Vec::new(); ALONE_TOO];
    let mut beside = vec![(Vec::new(), Vec::new()); SETTINGS.len()];
    for rep in 0..bench.reps {
        let (_, latencies) = with_reader(src, || {
            thread::sleep(ALONE);
            Ok(())
        })?;
        idle.push(latencies);
        for ((_, options), alone) in SETTINGS.iter().zip(&mut alone) {
            prepare(src, dst, files.bytes, rep)?;
            alone.push(copy(options)?);
        }
        for ((name, options), (rates, latencies)) in SETTINGS.iter().zip(&mut beside) {
            prepare(src, dst, files.bytes, rep)?;
            let (rate, found) = with_reader(src, || copy(options)).context(*name)?;
            rates.push(rate);
            latencies.push(found);
            if rep + 1 == bench.reps && !options.contains(&"--size") {
                compare(src, dst, files.bytes).with_context(|| format!("{name} did not copy"))?;
            }
        }
    }
    let us = |all: &[Latencies], quantile: f64| {
        Spread::of(&all.iter().map(|found| found.quantile(quantile)).collect::<Vec<_>>())
    };
    let (p50, p99) = (us(&idle, 0.5), us(&idle, 0.99));
    let most = Spread::of(&alone[FULL]).median;
    let mut table = format!(
        "| a reader of 4 KiB, 2000 a second, on the disk of the copy | copy alone MB/s | beside it | of --impact full \
         alone | reader's p50 us | p99 us | to idle |\n|---|---|---|---|---|---|---|\n| no copy | | | | {} | {} | |\n",
        p50.show(0),
        p99.show(0)
    );
    let mut rows = vec![json!({ "setting": "no copy", "p50_us": p50, "p99_us": p99 })];
    let mut ratios = Vec::new();
    for (index, ((name, _), (rates, latencies))) in SETTINGS.iter().zip(&beside).enumerate() {
        let (rate, middle, late) = (Spread::of(rates), us(latencies, 0.5), us(latencies, 0.99));
        let alone = alone.get(index).map(|rates| Spread::of(rates));
        let shown = alone.as_ref().map_or(String::new(), |alone| alone.show(0));
        let (part, ratio) = (100.0 * rate.median / most, late.median / p99.median);
        writeln!(
            table,
            "| {name} | {shown} | {} | {part:.0} % | {} | {} | {ratio:.1} |",
            rate.show(0),
            middle.show(0),
            late.show(0)
        )?;
        rows.push(json!({
            "setting": name, "alone_mb_per_s": alone, "mb_per_s": rate, "p50_us": middle, "p99_us": late,
        }));
        ratios.push((rate.median / most, ratio));
    }
    let bars = vec![
        Bar::at_most("reader's p99 beside --impact auto, to idle", ratios[AUTO].1, 2.0),
        Bar::at_least("rate of --impact auto beside the reader, to full alone", ratios[AUTO].0, 0.9),
        Bar::at_least(
            "rate of --impact auto without a reader, to full",
            Spread::of(&alone[AUTO]).median / most,
            0.97,
        ),
    ];
    Ok(Found { table, bars, rows: json!(rows) })
}

/// Latencies of reads in microseconds, ascending.
#[derive(Clone)]
struct Latencies(Vec<f64>);

impl Latencies {
    fn quantile(&self, quantile: f64) -> f64 {
        let last = self.0.len().saturating_sub(1);
        self.0.get((last as f64 * quantile) as usize).copied().unwrap_or(f64::NAN)
    }
}

/// Runs `during` beside a reader of `path`.
fn with_reader<T>(path: &Path, during: impl FnOnce() -> Result<T>) -> Result<(T, Latencies)> {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let reader = scope.spawn(|| read(path, &stop));
        let result = during();
        stop.store(true, Ordering::Relaxed);
        let latencies = reader.join().expect("no panic").context("read beside the copy");
        Ok((result?, latencies?))
    })
}

fn read(path: &Path, stop: &AtomicBool) -> Result<Latencies> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path)?;
    let places = file.metadata()?.len() / READ_BYTES as u64;
    let mut memory = vec![0u8; 2 * READ_BYTES];
    let aligned = memory.as_ptr().align_offset(READ_BYTES);
    let buffer = &mut memory[aligned..][..READ_BYTES];
    let (mut latencies, mut random, mut next) = (Vec::new(), 1u64, Instant::now());
    while !stop.load(Ordering::Relaxed) {
        next = (next + READ_EVERY).max(Instant::now());
        thread::sleep(next - Instant::now());
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let begun = Instant::now();
        file.read_exact_at(buffer, (random >> 16) % places * READ_BYTES as u64)?;
        latencies.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    latencies.sort_by(f64::total_cmp);
    Ok(Latencies(latencies))
}
