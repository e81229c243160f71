//! One run of ours: `hikyaku bench path` against a `hikyaku serve`, and what both used meanwhile.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::bench::peers::Shape;
use crate::harness::files::random_file;
use crate::harness::process::Surroundings;
use crate::harness::{Context, Disk, Served, Target, Url, run, scratch};

const RUN_LIMIT: Duration = Duration::from_secs(120);
/// Size of each LUN.
pub(in crate::bench) const LUN_BYTES: u64 = 256 << 20;
/// Seed of what the LUN for reading holds.
const PATTERN: &str = "3";

/// Which LUN a row is measured on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bench) enum Storage {
    /// A file in memory; flushed, and verified in every run.
    File,
    /// `mem:`: a ceiling.
    Memory,
}

/// A target of ours with one LUN for each purpose, in its surroundings.
#[derive(Debug)]
pub(in crate::bench) struct Ours {
    served: Served,
    surroundings: Surroundings,
    /// The files of the LUNs that reads and writes go to.
    pub(in crate::bench) read_image: std::path::PathBuf,
    pub(in crate::bench) write_image: std::path::PathBuf,
    _dir: tempfile::TempDir,
}

/// What one end used, for each operation or 10^9 bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::bench) struct Used {
    pub(in crate::bench) cpu_s_per_gb: f64,
    pub(in crate::bench) cpu_us: f64,
    pub(in crate::bench) switches: f64,
    pub(in crate::bench) switches_involuntary: f64,
}

/// One run.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::bench) struct Sample {
    pub(in crate::bench) mb_per_s: f64,
    pub(in crate::bench) per_second: f64,
    pub(in crate::bench) p50_us: f64,
    pub(in crate::bench) p99_us: f64,
    pub(in crate::bench) initiator: Option<Used>,
    pub(in crate::bench) target: Option<Used>,
    /// Part of the time that the initiator spent looking before it slept.
    pub(in crate::bench) spin_share: f64,
    pub(in crate::bench) verified: bool,
}

impl Ours {
    pub(in crate::bench) fn start(context: &Context, surroundings: Surroundings) -> Result<Self> {
        let dir = scratch()?;
        let (read_image, write_image) = (dir.path().join("read.img"), dir.path().join("write.img"));
        for path in [&read_image, &write_image] {
            // Written, not sparse: no run shall pay for the allocation.
            random_file(path, LUN_BYTES, 1)?;
        }
        let disks = [
            Disk::file(&read_image),
            Disk::file(&write_image),
            Disk::endpoint(format!("mem:{LUN_BYTES}")),
            Disk::endpoint(format!("mem:{LUN_BYTES}")),
        ];
        let target = Target::serve_with(context, &disks, None, &[], &surroundings)?;
        let ours = Self { served: Served::Ours(target), surroundings, read_image, write_image, _dir: dir };
        let pattern = format!("pattern:{LUN_BYTES}:{PATTERN}");
        for lun in [0, 2] {
            let url = ours.served.url(lun).to_string();
            context.ours(&["copy", "--force", "--quiet", &pattern, &url], RUN_LIMIT)?.success()?;
        }
        // The pages of memory that are written to are taken now.
        let url = ours.served.url(3).to_string();
        context.ours(&["copy", "--force", "--quiet", &pattern, &url], RUN_LIMIT)?.success()?;
        Ok(ours)
    }

    pub(in crate::bench) fn pid(&mut self) -> u32 {
        self.served.pid()
    }

    pub(in crate::bench) fn url(&self, storage: Storage, write: bool) -> &Url {
        self.served.url(match (storage, write) {
            (Storage::File, false) => 0,
            (Storage::File, true) => 1,
            (Storage::Memory, false) => 2,
            (Storage::Memory, true) => 3,
        })
    }

    /// The command line of a run, without its length.
    pub(in crate::bench) fn command(
        &mut self,
        context: &Context,
        storage: Storage,
        shape: Shape,
    ) -> std::process::Command {
        let mut command = context.command();
        self.surroundings.apply(&mut command);
        command.args(["bench", "path", &self.url(storage, shape.write).to_string(), "--json"]);
        command.args(["--block-size", &shape.block.to_string(), "--depth", &shape.depth.to_string()]);
        if shape.write {
            command.args(["--write", "--destroy"]);
        }
        command
    }

    /// One timed run.
    pub(in crate::bench) fn measure(
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
        let result = run(&mut command, RUN_LIMIT).and_then(crate::harness::Output::success);
        let output = self.served.blame(result)?;
        let value: Value = serde_json::from_str(&output.stdout).context("output of bench path")?;
        let sample = Sample::of(&value["rows"][0]).with_context(|| output.stdout.clone())?;
        ensure!(sample.verified == (storage == Storage::File), "not verified: {}", output.stdout);
        Ok(sample)
    }
}

impl Sample {
    /// From a row of `bench path --json`.
    pub(in crate::bench) fn of(row: &Value) -> Option<Self> {
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
