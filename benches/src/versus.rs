//! Two builds of this program, an old one and the present one, interleaved in one run over the rows of the other
//! benchmarks. A third side, the old build again, is the control: its difference to the first side is the noise of the
//! run.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::json;

use super::ends::run::{Ours, Sample, Storage};
use super::peers::{Shape, qemu_img_bench, seconds};
use super::sealed::rig::{Protection, Rig};
use super::{Common, RUN_LIMIT, Spread, filter_rows, interleaved, keep};
use harness::files::random_file;
use harness::process::Surroundings;
use harness::{Against, Context, Tier, scratch};

const COPY_BYTES: u64 = 1 << 30;

/// The builds, in the order of the columns.
const SIDES: [&str; 3] = ["old", "new", "old again"];

#[derive(Clone, Copy, Debug)]
enum Way {
    Target(Shape),
    /// `hikyaku` at both ends, unprotected.
    Ends(Storage, Shape),
    /// `hikyaku` at both ends, protected.
    Sealed(Protection, Shape),
    Copy,
}

impl Way {
    fn name(self) -> String {
        match self {
            Self::Target(shape) => format!("target-{}", shape.name()),
            Self::Ends(Storage::File, shape) => format!("ends-file-{}", shape.name()),
            Self::Ends(Storage::Memory, shape) => format!("ends-mem-{}", shape.name()),
            Self::Sealed(protection, shape) => format!("sealed-{}-{}", protection.name(), shape.name()),
            Self::Copy => "copy-files-in-memory".to_owned(),
        }
    }
}

fn rows() -> Vec<Way> {
    let mut rows = Vec::new();
    for write in [false, true] {
        for (block, depth) in [(4 << 10, 1), (4 << 10, 32), (64 << 10, 32), (1 << 20, 32)] {
            rows.push(Way::Target(Shape::new(write, block, depth)));
        }
        for (storage, block, depth) in [
            (Storage::Memory, 4 << 10, 1),
            (Storage::File, 4 << 10, 32),
            (Storage::Memory, 1 << 20, 32),
            (Storage::File, 1 << 20, 32),
        ] {
            rows.push(Way::Ends(storage, Shape::new(write, block, depth)));
        }
        for protection in [Protection::Digests, Protection::GCM, Protection::AEGIS_256] {
            for (block, depth) in [(4 << 10, 1), (256 << 10, 16), (1 << 20, 16)] {
                rows.push(Way::Sealed(protection, Shape::new(write, block, depth)));
            }
        }
    }
    rows.push(Way::Copy);
    rows
}

struct Side<'a> {
    context: &'a Context,
    ours: Ours,
    rig: Rig<'a>,
}

/// MB/s, and CPU seconds for 10^9 bytes of this program's processes.
#[derive(Clone, Copy, Debug)]
struct Figures {
    mb_per_s: f64,
    cpu_s_per_gb: f64,
}

impl Figures {
    fn of(sample: &Sample) -> Self {
        let ends = [sample.initiator, sample.target].into_iter().flatten();
        Self { mb_per_s: sample.mb_per_s, cpu_s_per_gb: ends.map(|end| end.cpu_s_per_gb).sum() }
    }
}

impl<'a> Side<'a> {
    fn start(context: &'a Context) -> Result<Self> {
        let surroundings = Surroundings::default();
        let protections = [Protection::Digests, Protection::GCM, Protection::AEGIS_256];
        let rig = Rig::start(context, &protections, &surroundings, &surroundings)?;
        Ok(Self { context, ours: Ours::start(context, surroundings)?, rig })
    }

    fn measure(&mut self, way: Way, count: u64, seconds: f64, files: &[String; 2]) -> Result<Figures> {
        Ok(match way {
            Way::Target(shape) => {
                let (url, pid) = (self.ours.url(Storage::File, shape.write).clone(), self.ours.pid());
                let run = qemu_img_bench(&url, pid, shape, count)?;
                Figures { mb_per_s: run.mb_per_s, cpu_s_per_gb: run.target_cpu_s_per_gb }
            }
            Way::Ends(storage, shape) => {
                Figures::of(&self.ours.measure(self.context, storage, shape, seconds)?)
            }
            Way::Sealed(protection, shape) => {
                Figures::of(&self.rig.measure(protection, shape, seconds, None)?)
            }
            Way::Copy => {
                let [source, destination] = files;
                let arguments = ["copy", source, destination, "--force", "--offload", "off", "--json"];
                let value = self.context.ours(&arguments, RUN_LIMIT)?.success()?.json()?;
                let cpu = |side: &str| value["cpu_s_per_gb"][side].as_f64().context("no CPU time");
                Figures {
                    mb_per_s: value["mb_per_s"].as_f64().context("no speed")?,
                    cpu_s_per_gb: cpu("user")? + cpu("system")?,
                }
            }
        })
    }
}

type Figure = fn(&Figures) -> f64;

/// One figure of one side divided by that of the first side, run by run.
fn ratios(runs: &[Vec<Figures>], side: usize, figure: Figure) -> Spread {
    let of = |side: usize| runs[side].iter().map(figure);
    Spread::of(&of(side).zip(of(0)).map(|(a, b)| a / b).collect::<Vec<_>>())
}

/// Compares the median with all runs of the control and with 1: noise, slower, or more CPU.
fn verdict(speed: [&Spread; 2], cpu: [&Spread; 2]) -> &'static str {
    let ([speed, control], [cpu, cpu_control]) = (speed, cpu);
    match (speed.median < control.min.min(1.0), cpu.median > cpu_control.max.max(1.0)) {
        (false, false) => "within noise",
        (true, false) => "SLOWER",
        (false, true) => "MORE CPU",
        (true, true) => "SLOWER, MORE CPU",
    }
}

pub(super) fn run_table(common: &Common, old: &Path, new: &Context) -> Result<()> {
    let old = old.canonicalize().with_context(|| format!("find {}", old.display()))?;
    let old = || Context::new(old.clone(), 1, Tier::Full, Against::Ours);
    let (first, control) = (old()?, old()?);
    let rows = filter_rows(rows(), common.rows.as_deref(), |row| row.name())?;
    let mut sides =
        [&first, new, &control].map(Side::start).into_iter().collect::<Result<Vec<_>>>().context("start")?;
    let dir = scratch()?;
    let files = ["source", "destination"].map(|name| dir.path().join(name).display().to_string());
    for file in &files {
        random_file(Path::new(file), COPY_BYTES, 1)?;
    }
    let seconds = seconds(common.quick);
    println!(
        "\n| row | old MB/s | new MB/s | new / old | control | old CPU s/GB | new / old | control | verdict \
         |\n|---|---|---|---|---|---|---|---|---|"
    );
    let mut table = Vec::new();
    for way in rows {
        let count = match way {
            Way::Target(shape) => {
                let probe = sides[0].measure(way, shape.probe(), seconds, &files)?;
                shape.count(probe.mb_per_s, seconds)
            }
            _ => 0,
        };
        let runs = interleaved(common.reps, SIDES.len(), |side| {
            let figures = sides[side].measure(way, count, seconds, &files);
            figures.with_context(|| format!("{} of {}", way.name(), SIDES[side]))
        })?;
        let column = |side: usize, figure: Figure| Spread::column(&runs[side], figure);
        let (speed, cpu): (Figure, Figure) = (|run| run.mb_per_s, |run| run.cpu_s_per_gb);
        let [speeds, speeds_control] = [1, 2].map(|side| ratios(&runs, side, speed));
        let [cpus, cpus_control] = [1, 2].map(|side| ratios(&runs, side, cpu));
        let verdict = verdict([&speeds, &speeds_control], [&cpus, &cpus_control]);
        let (old, new, old_cpu) =
            (column(0, speed).show(0), column(1, speed).show(0), column(0, cpu).show(3));
        let [ratio, control, cpu_ratio, cpu_control] =
            [&speeds, &speeds_control, &cpus, &cpus_control].map(|spread| spread.show(2));
        let cells = [way.name(), old, new, ratio, control, old_cpu, cpu_ratio, cpu_control];
        println!("| {} | {verdict} |", cells.join(" | "));
        table.push(json!({
            "row": way.name(), "verdict": verdict,
            "mb_per_s": {"old": column(0, speed), "new": column(1, speed), "old_again": column(2, speed)},
            "cpu_s_per_gb": {"old": column(0, cpu), "new": column(1, cpu), "old_again": column(2, cpu)},
            "speed_ratio": speeds, "speed_ratio_control": speeds_control,
            "cpu_ratio": cpus, "cpu_ratio_control": cpus_control,
        }));
    }
    println!(
        "\nmedian of {} interleaved runs [least-greatest]; ratios are run by run; the control is the old build against itself",
        common.reps
    );
    keep(common, "bench-versus", json!({ "rows": table }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::all_differ;

    #[test]
    fn only_what_is_outside_the_controls_runs_is_a_loss() {
        let noise = Spread::of(&[0.95, 1.0, 1.05]);
        let verdict_of =
            |speed: f64, cpu: f64| verdict([&Spread::of(&[speed]), &noise], [&Spread::of(&[cpu]), &noise]);
        assert_eq!(verdict_of(0.96, 1.04), "within noise");
        assert_eq!(verdict_of(1.5, 0.5), "within noise");
        assert_eq!(verdict_of(0.94, 1.0), "SLOWER");
        assert_eq!(verdict_of(0.94, 1.06), "SLOWER, MORE CPU");
        assert_eq!(verdict_of(1.0, 1.06), "MORE CPU");
    }

    #[test]
    fn rows_have_names_of_their_own() {
        assert!(all_differ(rows().into_iter().map(Way::name)));
    }
}
