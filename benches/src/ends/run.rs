//! One run of `hikyaku bench path` against a `hikyaku serve`, and the resources that both used.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::RUN_LIMIT;
use crate::peers::Shape;
use harness::files::side_by_side;
use harness::process::Surroundings;
use harness::{Context, Disk, Output, Served, Target, Url, run, scratch};

pub(crate) const LUN_BYTES: u64 = 256 << 20;
const IMAGES: [&str; 2] = ["read.img", "write.img"];
/// Seed of the pattern of the LUN for reading.
pub(crate) const PATTERN: &str = "3";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Storage {
    /// A file in memory; flushed and verified in every run.
    File,
    /// `mem:`: a ceiling.
    Memory,
}

#[derive(Debug)]
pub(crate) struct Ours {
    served: Served,
    surroundings: Surroundings,
    /// Backing files of the LUNs that reads and writes go to.
    pub(crate) read_image: PathBuf,
    pub(crate) write_image: PathBuf,
    _dir: tempfile::TempDir,
}

/// Resources of one end, for each operation or 10^9 bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Used {
    pub(crate) cpu_s_per_gb: f64,
    pub(crate) cpu_us: f64,
    pub(crate) switches: f64,
    pub(crate) switches_involuntary: f64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sample {
    pub(crate) mb_per_s: f64,
    pub(crate) per_second: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) initiator: Option<Used>,
    pub(crate) target: Option<Used>,
    /// Fraction of the time that the initiator polled before sleeping.
    pub(crate) spin_share: f64,
    pub(crate) verified: bool,
}

impl Ours {
    pub(crate) fn start(context: &Context, surroundings: Surroundings) -> Result<Self> {
        let mut all = Self::start_all(context, &[surroundings])?;
        Ok(all.remove(0))
    }

    /// One target with each of these surroundings.
    pub(crate) fn start_all(context: &Context, surroundings: &[Surroundings]) -> Result<Vec<Self>> {
        let dirs = surroundings.iter().map(|_| scratch()).collect::<Result<Vec<_>>>()?;
        for name in IMAGES {
            let images: Vec<_> = dirs.iter().map(|dir| dir.path().join(name)).collect();
            // Written, not sparse, so that no run includes the allocation.
            side_by_side(&images, LUN_BYTES)?;
        }
        let each = dirs.into_iter().zip(surroundings);
        each.map(|(dir, surroundings)| Self::serve(context, surroundings.clone(), dir)).collect()
    }

    fn serve(context: &Context, surroundings: Surroundings, dir: tempfile::TempDir) -> Result<Self> {
        let [read_image, write_image] = IMAGES.map(|name| dir.path().join(name));
        let memory = Disk::endpoint(format!("mem:{LUN_BYTES}"));
        let disks = [Disk::file(&read_image), Disk::file(&write_image), memory.clone(), memory];
        let target = Target::serve_with(context, &disks, None, &[], &surroundings)?;
        let ours = Self { served: Served::Ours(target), surroundings, read_image, write_image, _dir: dir };
        let pattern = format!("pattern:{LUN_BYTES}:{PATTERN}");
        // The last of these allocates the pages of the memory LUN for writing.
        for lun in [0, 2, 3] {
            let url = ours.served.url(lun).to_string();
            context.ours(&["copy", "--force", "--quiet", &pattern, &url], RUN_LIMIT)?.success()?;
        }
        Ok(ours)
    }

    pub(crate) fn pid(&mut self) -> u32 {
        self.served.pid()
    }

    pub(crate) fn url(&self, storage: Storage, write: bool) -> &Url {
        let first = if storage == Storage::File { 0 } else { 2 };
        self.served.url(first + usize::from(write))
    }

    /// The command line of a run, without its length.
    pub(crate) fn command(&self, context: &Context, storage: Storage, shape: Shape) -> Command {
        let mut command = bench_path(context, &self.url(storage, shape.write).to_string(), shape);
        self.surroundings.apply(&mut command);
        command
    }

    pub(crate) fn measure(
        &mut self,
        context: &Context,
        storage: Storage,
        shape: Shape,
        seconds: f64,
    ) -> Result<Sample> {
        let pid = self.pid().to_string();
        let mut command = self.command(context, storage, shape);
        command.args(["--seconds", &seconds.to_string(), "--target-pid", &pid]);
        if storage == Storage::File {
            command.arg("--verify");
            if !shape.write {
                command.args(["--pattern", PATTERN]);
            }
        }
        let result = run(&mut command, RUN_LIMIT).and_then(Output::success);
        let output = self.served.blame(result)?;
        let sample = Sample::read(&output)?;
        ensure!(sample.verified == (storage == Storage::File), "not verified: {}", output.stdout);
        Ok(sample)
    }
}

/// `bench path` on an endpoint, without its length.
pub(crate) fn bench_path(context: &Context, endpoint: &str, shape: Shape) -> Command {
    let mut command = context.command();
    command.args(["bench", "path", endpoint, "--json"]);
    command.args(["--block-size", &shape.block.to_string(), "--depth", &shape.depth.to_string()]);
    if shape.write {
        command.args(["--write", "--destroy"]);
    }
    command
}

impl Sample {
    /// The first row of the output of `bench path --json`.
    pub(crate) fn read(output: &Output) -> Result<Self> {
        Self::of(&output.json()?["rows"][0]).with_context(|| output.stdout.clone())
    }

    fn of(row: &Value) -> Option<Self> {
        let used = |end: &Value| -> Option<Used> {
            let involuntary = end["involuntary_switches_per_operation"].as_f64()?;
            Some(Used {
                cpu_s_per_gb: end["cpu_s_per_gb"].as_f64()?,
                cpu_us: end["cpu_us_per_operation"].as_f64()?,
                switches: end["voluntary_switches_per_operation"].as_f64()? + involuntary,
                switches_involuntary: involuntary,
            })
        };
        Some(Self {
            mb_per_s: row["mb_per_s"].as_f64()?,
            per_second: row["operations_per_s"].as_f64()?,
            p50_us: row["latency_us"]["p50"].as_f64()?,
            p99_us: row["latency_us"]["p99"].as_f64()?,
            initiator: used(&row["initiator"]),
            target: used(&row["target"]),
            spin_share: row["initiator_spin"]["seconds"].as_f64()? / row["seconds"].as_f64()?,
            verified: row["verified"].as_bool()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_read() {
        let used = r#"{"cpu_s_per_gb":0.5,"cpu_us_per_operation":2,"voluntary_switches_per_operation":1.5,
            "involuntary_switches_per_operation":0.25}"#;
        let text = format!(
            r#"{{"mb_per_s":10,"operations_per_s":5,"latency_us":{{"p50":7,"p99":9}},"initiator":{used},
            "target":null,"initiator_spin":{{"seconds":0.25}},"seconds":0.5,"verified":true}}"#
        );
        let sample = Sample::of(&serde_json::from_str(&text).unwrap()).unwrap();
        assert_eq!((sample.mb_per_s, sample.per_second, sample.p50_us), (10.0, 5.0, 7.0));
        assert!(sample.verified && sample.target.is_none());
        assert_eq!((sample.initiator.unwrap().switches, sample.spin_share), (1.75, 0.5));
        assert!(Sample::of(&serde_json::json!({})).is_none());
    }
}
