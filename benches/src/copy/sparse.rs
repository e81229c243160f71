//! A large image that is mostly hole, compared with the same amount of data without holes. Both destinations are new
//! files.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};
use serde_json::json;

use super::super::Spread;
use super::super::bars::Bar;
use super::disks::Place;
use super::{Bench, Found};
use harness::files::{data_of, random_file, same_file, same_range};

const IMAGE_BYTES: u64 = 64 << 30;
/// Number of extents of [`EXTENT_BYTES`] that are data: 1 GiB.
const EXTENTS: u64 = 1024;
const EXTENT_BYTES: u64 = 1 << 20;

/// Divides the image into [`EXTENTS`] equal parts and writes one extent at a random place in each.
fn sparse_file(path: &Path) -> Result<()> {
    let mut rng = StdRng::seed_from_u64(3);
    let file = File::create(path)?;
    file.set_len(IMAGE_BYTES)?;
    let mut bytes = vec![0; EXTENT_BYTES as usize];
    let part = IMAGE_BYTES / EXTENTS;
    for index in 0..EXTENTS {
        rng.fill_bytes(&mut bytes);
        let room = (part - EXTENT_BYTES) / 4096;
        file.write_all_at(&bytes, index * part + rng.random_range(0..room) * 4096)?;
    }
    file.sync_all().context("flush the sparse image")
}

/// Fails unless both files are equal. Compares only where either file has data, because the rest is hole in both.
fn compare(left: &Path, right: &Path) -> Result<()> {
    for path in [left, right] {
        let mut data = 0;
        for (start, end) in data_of(path)? {
            same_range(left, start, right, start, end - start)?;
            data += end - start;
        }
        ensure!(data >= EXTENTS * EXTENT_BYTES, "{} has {data} bytes of data", path.display());
    }
    Ok(())
}

fn allocated(path: &Path) -> Result<f64> {
    Ok(fs::metadata(path)?.blocks() as f64 * 512.0)
}

pub(super) fn measure(bench: &Bench, place: Place) -> Result<Found> {
    let folder = place.folder()?;
    let at = |name: &str| folder.path().join(name);
    let (sparse, dense, copy) = (at("sparse"), at("dense"), at("copy"));
    sparse_file(&sparse)?;
    random_file(&dense, EXTENTS * EXTENT_BYTES, 4)?;
    let mut seconds = [Vec::new(), Vec::new()];
    let mut more = Vec::new();
    // The first round warms up and is not counted.
    for rep in 0..=bench.reps {
        for (index, source) in [&sparse, &dense].into_iter().enumerate() {
            File::open(source)?.sync_all()?;
            let new = format!("{},create,size={}", copy.display(), fs::metadata(source)?.len());
            let began = Instant::now();
            bench.copy(&[&source.display().to_string(), &new])?;
            let took = began.elapsed().as_secs_f64();
            if index == 0 {
                more.push((allocated(&copy)? / allocated(source)? - 1.0).abs());
            }
            if rep == bench.reps {
                if index == 0 { compare(source, &copy)? } else { same_file(source, &copy)? }
            }
            if rep > 0 {
                seconds[index].push(took);
            }
            fs::remove_file(&copy)?;
        }
    }
    let [sparse_s, dense_s] = seconds.each_ref().map(|runs| Spread::of(runs));
    let difference = more.iter().copied().fold(0.0, f64::max);
    let table = format!(
        "| files on {}, whole command | s |\n|---|---|\n| 64 GiB of which 1 GiB is data, in {EXTENTS} places | {} |\n\
         | 1 GiB without holes | {} |\n",
        place.name(),
        sparse_s.show(3),
        dense_s.show(3)
    );
    let ratio = sparse_s.median / dense_s.median;
    let what = "allocated size of the sparse copy, difference to the source's, worst run";
    let bars = vec![
        Bar::at_most("time of the sparse image, to the dense one's", ratio, 1.2),
        Bar::at_most(what, difference, 0.01),
    ];
    let rows = json!([
        { "row": "sparse", "seconds": sparse_s, "allocated_difference": more }, { "row": "dense", "seconds": dense_s },
    ]);
    Ok(Found { table, bars, rows })
}
