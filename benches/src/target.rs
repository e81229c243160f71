//! `hikyaku serve` compared with tgt: one initiator (`qemu-img bench`), one file in memory, both daemons running and
//! only one under load. Target CPU is that of all the daemon's threads, from /proc. After the last row a pattern is
//! written through each target, flushed, read back and compared with the file.

use anyhow::{Context as _, Result};
use serde_json::json;

use super::bars::{Bar, verdict};
use super::peers::{QemuRun, Shape, iperf, qemu_img_bench, seconds, verify};
use super::{Common, Spread, filter_rows, geometric_mean, interleaved, keep};
use harness::files::random_file;
use harness::{Context, Disk, Served, Tgt, scratch};

const IMAGE_BYTES: u64 = 512 << 20;

/// Least speed of a row by tgt's, reads then writes: what a target that polls all the time reaches, raised.
const SPEEDS: [(u64, u32, f64, f64); 6] = [
    (4 << 10, 1, 3.2, 4.5),
    (4 << 10, 32, 3.6, 2.2),
    (64 << 10, 1, 2.0, 3.0),
    (64 << 10, 32, 2.7, 4.4),
    (1 << 20, 1, 3.0, 3.8),
    (1 << 20, 32, 2.6, 4.0),
];
const SPEED_MEAN: f64 = 3.3;

/// Bounds of a row, by tgt: speed, and the target's CPU. Rows without a speed of their own are at least as fast.
fn bars(shape: Shape, ratio: f64, cpu_ratio: f64) -> [Bar; 2] {
    let Shape { write, block, depth } = shape;
    let row = SPEEDS.iter().find(|row| (row.0, row.1) == (block, depth));
    let speed = row.map_or(1.0, |&(_, _, read, written)| if write { written } else { read });
    let cpu = if block >= 64 << 10 { 0.4 } else { 0.65 };
    [Bar::at_least("ratio", ratio, speed), Bar::at_most("CPU ratio", cpu_ratio, cpu)]
}

pub(super) fn run_table(common: &Common, context: &Context) -> Result<()> {
    let mut rows = Vec::new();
    for write in [false, true] {
        for block in [4 << 10, 64 << 10, 256 << 10, 1 << 20] {
            rows.extend([1, 32].map(|depth| Shape { write, block, depth }));
        }
    }
    let rows = filter_rows(rows, common.rows.as_deref(), |row| row.name())?;
    let dir = scratch()?;
    let image = random_file(dir.path().join("disk.img"), IMAGE_BYTES, 1)?;
    let disks = [Disk::file(&image)];
    let mut ours = context.serve(&disks, None)?;
    let mut tgt = Served::Tgt(Tgt::serve(&disks, None)?);
    let (ours_url, ours_pid) = (ours.url(0).clone(), ours.pid());
    let (tgt_url, tgt_pid) = (tgt.url(0).clone(), tgt.pid());
    let sides = [(&ours_url, ours_pid), (&tgt_url, tgt_pid)];

    let seconds = seconds(common.quick);
    let ceiling_seconds = if common.quick { 1.0 } else { 3.0 };
    let ceiling_before = iperf(ceiling_seconds, None)?;
    println!(
        "\n| op-block-depth | ours MB/s | tgt MB/s | ratio | ours target CPU s/GB | tgt target CPU s/GB | ratio | \
         ours / tgt initiator CPU s/GB | verdict |\n|---|---|---|---|---|---|---|---|---|"
    );
    let (mut table, mut speed, mut cpu, mut met) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for row in rows {
        let mut slowest = f64::INFINITY;
        for (url, pid) in sides {
            slowest = slowest.min(qemu_img_bench(url, pid, row, row.probe())?.mb_per_s);
        }
        // Both sides move the same number of bytes; the slower one takes about `seconds`.
        let count = row.count(slowest, seconds);
        let runs = interleaved(common.reps, sides.len(), |side| {
            let (url, pid) = sides[side];
            qemu_img_bench(url, pid, row, count)
        })?;
        ours.alive()?;
        tgt.alive()?;
        let columns = |value: fn(&QemuRun) -> f64| [0, 1].map(|side| Spread::column(&runs[side], value));
        let [fast_a, fast_b] = columns(|run| run.mb_per_s);
        let [cpu_a, cpu_b] = columns(|run| run.target_cpu_s_per_gb);
        let [own_a, own_b] = columns(|run| run.initiator_cpu_s_per_gb);
        let (ratio, cpu_ratio) = (fast_a.median / fast_b.median, cpu_a.median / cpu_b.median);
        let bars = bars(row, ratio, cpu_ratio);
        met += usize::from(bars.iter().all(Bar::is_met));
        speed.push(ratio);
        if cpu_ratio.is_finite() && cpu_ratio > 0.0 {
            cpu.push(cpu_ratio);
        }
        let (name, verdict) = (row.name(), verdict(&bars));
        print!("| {name} | {} | {} | {ratio:.2} |", fast_a.show(0), fast_b.show(0));
        print!(" {} | {} | {cpu_ratio:.2} |", cpu_a.show(2), cpu_b.show(2));
        println!(" {:.2} / {:.2} | {verdict} |", own_a.median, own_b.median);
        table.push(json!({
            "row": row.name(), "requests": count, "block_bytes": row.block, "depth": row.depth,
            "ours": {"mb_per_s": fast_a, "target_cpu_s_per_gb": cpu_a, "initiator_cpu_s_per_gb": own_a},
            "tgt": {"mb_per_s": fast_b, "target_cpu_s_per_gb": cpu_b, "initiator_cpu_s_per_gb": own_b},
            "ratio": ratio, "cpu_ratio": cpu_ratio, "bars": bars.each_ref().map(Bar::object), "verified": true,
        }));
    }
    // Not between the rows: one large write makes tgt's allocator keep large buffers, and its large reads twice as
    // fast.
    for (url, mark) in [(&ours_url, 0x10), (&tgt_url, 0x80)] {
        verify(url, &image, mark).context("after the last row")?;
    }
    let ceiling_after = iperf(ceiling_seconds, None)?;
    let (speed_mean, cpu_mean) = (geometric_mean(&speed), geometric_mean(&cpu));
    let mean = verdict(&[Bar::at_least("ratio", speed_mean, SPEED_MEAN)]);
    let rows = table.len();
    println!(
        "| geometric mean | | | {speed_mean:.2} | | | {cpu_mean:.2} | | {mean}; {met} of {rows} rows met |"
    );
    println!(
        "| ceiling: iperf3, one stream, before and after | {ceiling_before:.0} | {ceiling_after:.0} | | | | | | |"
    );
    println!(
        "\nmedian of {} interleaved runs [least-greatest]; same file in memory, same initiator; both verified after \
         the last row: a pattern written by qemu-io, flushed, read back and found in the file",
        common.reps
    );
    let figures = json!({
        "ceiling_mb_per_s": [ceiling_before, ceiling_after],
        "ratio_geometric_mean": speed_mean,
        "cpu_ratio_geometric_mean": cpu_mean,
        "rows": table,
    });
    keep(common, "bench-target", figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_by_row() {
        let met = |write, block, depth, ratio, cpu| {
            bars(Shape { write, block, depth }, ratio, cpu).iter().all(Bar::is_met)
        };
        assert!(
            met(false, 4096, 1, 3.2, 0.65)
                && !met(false, 4096, 1, 3.19, 0.1)
                && !met(false, 4096, 1, 9.0, 0.66)
        );
        assert!(met(true, 4096, 32, 2.2, 0.65) && !met(false, 4096, 32, 3.5, 0.65));
        assert!(met(true, 1 << 20, 1, 3.8, 0.4) && !met(true, 1 << 20, 1, 3.8, 0.41));
        assert!(met(true, 256 << 10, 1, 1.0, 0.4) && !met(true, 256 << 10, 1, 0.9, 0.4));
    }
}
