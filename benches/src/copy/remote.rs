//! EXTENDED COPY inside one target, compared with `hikyaku copy` of the same files on the same machine.

use anyhow::Result;
use serde_json::json;

use super::super::Spread;
use super::super::bars::Bar;
use super::disks::{Files, Place, compare, prepare};
use super::{Bench, Found, number};
use harness::{Disk, Target};

pub(super) fn measure(bench: &Bench, place: Place) -> Result<Found> {
    let files = Files::new(place, bench.bytes)?;
    let (src, dst) = (files.source.as_path(), files.destination.as_path());
    let target =
        Target::serve(&bench.context, &[Disk::file(src), Disk::file(dst)], None, &["--seal", "off"])?;
    let urls = [0, 1].map(|lun| target.url(lun).to_string());
    let paths = [src, dst].map(|path| path.display().to_string());
    // The target holds locks on the files.
    let local = [&paths[0], &paths[1], "--allow", "in-use", "--offload", "off"];
    let remote = [&urls[0], &urls[1], "--remote-copy", "require"];
    let mut speeds = [Vec::new(), Vec::new()];
    let mut session_bytes = 0.0f64;
    // The first round warms up and is not counted.
    for rep in 0..=bench.reps {
        for (index, arguments) in [&local[..], &remote[..]].into_iter().enumerate() {
            prepare(src, dst, files.bytes, rep)?;
            let report = bench.copy(arguments)?;
            if index == 1 {
                let moved = |way: &str| number(&report, &format!("/session_bytes/{way}"));
                session_bytes = session_bytes.max(moved("received")? + moved("sent")?);
            }
            if rep > 0 {
                speeds[index].push(number(&report, "/mb_per_s")? / 1e3);
            }
            if rep == bench.reps {
                compare(src, dst, files.bytes)?;
            }
        }
    }
    let [local, remote] = speeds.each_ref().map(|runs| Spread::of(runs));
    let table = format!(
        "| {} MiB between files on {} | GB/s | bytes through the host |\n|---|---|---|\n| hikyaku copy, on the machine of the \
         files | {} | |\n| EXTENDED COPY in our target | {} | {session_bytes:.0} |\n",
        files.bytes >> 20,
        place.name(),
        local.show(2),
        remote.show(2)
    );
    let part = session_bytes / files.bytes as f64;
    let bars = vec![
        Bar::at_least("EXTENDED COPY, to the local copy", remote.median / local.median, 0.9),
        Bar::at_most("part of the payload that passes through the host", part, 0.001),
    ];
    let rows = json!([
        { "row": "local", "gb_per_s": local },
        { "row": "remote", "gb_per_s": remote, "session_bytes_max": session_bytes },
    ]);
    Ok(Found { table, bars, rows })
}
