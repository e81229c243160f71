//! `hikyaku copy` and its peers between two loop devices, interleaved with the ceiling.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use serde_json::json;

use super::super::Spread;
use super::super::bars::Bar;
use super::disks::{Files, Place, compare, prepare};
use super::tools::{DD_SYNC, Measure, OURS, QEMU, ceiling, measure as run, tools};
use super::{Bench, Found};
use harness::files::Loop;

pub(super) fn measure(bench: &Bench, place: Place) -> Result<Found> {
    let files = Files::new(place, bench.bytes)?;
    let loops = files.loops()?;
    let [src, dst] = loops.each_ref().map(Loop::path);
    let tools = tools(bench.all);
    let mut runs: Vec<Vec<Measure>> = vec![Vec::new(); tools.len()];
    let mut ceilings = Vec::new();
    // The first round warms up and is not counted.
    for rep in 0..=bench.reps {
        for (tool, runs) in tools.iter().zip(&mut runs) {
            prepare(src, dst, files.bytes, rep)?;
            let mut command = tool.command(bench, src, dst)?;
            let measure = run(&mut command, dst, files.bytes).with_context(|| tool.name)?;
            if rep > 0 {
                runs.push(measure);
            }
            if rep == 0 || rep == bench.reps {
                compare(src, dst, files.bytes).with_context(|| format!("{} did not copy", tool.name))?;
            }
        }
        if rep > 0 {
            ceilings.push(ceiling(src, dst, files.bytes)?);
        }
    }
    let column = |tool: usize, value: fn(&Measure) -> f64| Spread::column(&runs[tool], value);
    let most = Spread::of(&ceilings);
    let mut table = format!(
        "| {} MiB, loop devices over {} | GB/s | of ceiling | CPU s/GB | machine CPU s/GB | context switches per GB \
         |\n|---|---|---|---|---|---|\n",
        files.bytes >> 20,
        place.name()
    );
    let mut rows = Vec::new();
    for (index, tool) in tools.iter().enumerate() {
        let speed = column(index, |run| run.gb_per_s);
        let cpu = column(index, |run| run.cpu_s_per_gb);
        let machine = column(index, |run| run.machine_cpu_s_per_gb);
        let switches = column(index, |run| run.switches_per_gb);
        let (part, switches_each) = (100.0 * speed.median / most.median, switches.median);
        let [shown, cpu_shown, machine_shown] = [speed.show(2), cpu.show(3), machine.show(3)];
        let figures = format!("{part:.0} % | {cpu_shown} | {machine_shown} | {switches_each:.0}");
        writeln!(table, "| {} | {shown} | {figures} |", tool.name)?;
        rows.push(json!({
            "tool": tool.name, "gb_per_s": speed, "cpu_s_per_gb": cpu, "machine_cpu_s_per_gb": machine,
            "switches_per_gb": switches,
        }));
    }
    writeln!(table, "| ceiling: fio, both at once, between the others | {} | 100 % | | | |", most.show(2))?;
    rows.push(json!({ "tool": "ceiling", "gb_per_s": most }));
    let ratio =
        |value: fn(&Measure) -> f64, peer: usize| column(OURS, value).median / column(peer, value).median;
    let share = column(OURS, |run| run.gb_per_s).median / most.median;
    let (speed, cpu) = (|run: &Measure| run.gb_per_s, |run: &Measure| run.cpu_s_per_gb);
    let machine = ratio(|run| run.machine_cpu_s_per_gb, DD_SYNC);
    let bars = vec![
        Bar::at_least("share of the ceiling", share, 0.95),
        Bar::at_most("CPU, to qemu-img's", ratio(cpu, QEMU), 0.25),
        Bar::at_least("speed, to dd oflag=sync", ratio(speed, DD_SYNC), 5.0),
        Bar::at_most("CPU, to dd oflag=sync's", ratio(cpu, DD_SYNC), 1.0 / 25.0),
        Bar::at_most("CPU of the machine, to that with dd oflag=sync", machine, 1.0 / 6.0),
    ];
    Ok(Found { table, bars, rows: json!(rows) })
}
