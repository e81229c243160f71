//! Memory of `serve`: one file LUN under 1 MiB requests, and the increase by idle sessions.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::run::bench_path;
use crate::bars::{Bar, verdict};
use crate::peers::Shape;
use harness::files::random_file;
use harness::pdu::Session;
use harness::procfs::{Memory, memory};
use harness::{Context, Disk, Running, Served, Target, scratch};

const LUN_BYTES: u64 = 256 << 20;
const LOADED: Shape = Shape { write: false, block: 1 << 20, depth: 32 };
const RUN_LIMIT: Duration = Duration::from_secs(60);
const SAMPLE_INTERVAL: Duration = Duration::from_millis(5);
const IDLE_SESSIONS: usize = 64;
/// Delay between the last login and the reading of the memory.
const SETTLE: Duration = Duration::from_millis(300);

/// The greatest resident memory sampled during a load, with its parts in that sample.
fn peak_under(context: &Context, served: &mut Served, write: bool, seconds: f64) -> Result<Memory> {
    let pid = served.pid();
    let mut command = bench_path(context, &served.url(0).to_string(), Shape { write, ..LOADED });
    command.args(["--seconds", &seconds.to_string()]).args(write.then_some("--verify"));
    let mut load = Running::start(&mut command)?;
    let mut peak = Memory::default();
    while !load.ended() {
        let now = memory(pid)?;
        if now.resident > peak.resident {
            peak = now;
        }
        std::thread::sleep(SAMPLE_INTERVAL);
    }
    load.finish(RUN_LIMIT)?.success()?;
    // The kernel's own maximum includes peaks between two samples.
    peak.resident_max = memory(pid)?.resident_max;
    Ok(peak)
}

/// Memory that each session adds to a fresh target after one use, while idle.
fn idle_session_bytes(context: &Context, image: &Path) -> Result<f64> {
    let mut served = Served::Ours(Target::serve(context, &[Disk::file(image)], None, &[])?);
    let mut sessions = Vec::new();
    let mut before = 0;
    for index in 0..=IDLE_SESSIONS {
        let isid = [0x80, 6, 6, 6, 0, index as u8];
        let session = Session::login(served.url(0), "iqn.2026-11.org.example:idle", isid);
        let mut session = session.with_context(|| format!("idle session {index}"))?;
        session.read(0, 0, 8)?;
        sessions.push(session);
        // The first session also allocates what all sessions share.
        if index == 0 {
            before = memory(served.pid())?.resident;
        }
    }
    std::thread::sleep(SETTLE);
    let each = memory(served.pid())?.resident.saturating_sub(before) as f64 / IDLE_SESSIONS as f64;
    for session in sessions {
        session.logout()?;
    }
    served.alive()?;
    Ok(each)
}

pub(super) fn row(context: &Context, seconds: f64) -> Result<Value> {
    let dir = scratch()?;
    let image = random_file(dir.path().join("disk.img"), LUN_BYTES, 1)?;
    let mut served = Served::Ours(Target::serve(context, &[Disk::file(&image)], None, &[])?);
    let fresh = memory(served.pid())?;
    let read = peak_under(context, &mut served, false, seconds)?;
    let write = peak_under(context, &mut served, true, seconds)?;

    served.alive()?;
    drop(served);
    let each = idle_session_bytes(context, &image)?;

    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!(
        "\n| memory of serve, MiB | resident | anonymous | file | shared | greatest |\n|---|---|---|---|---|---|"
    );
    let parts = [("fresh", fresh), ("1M reads, depth 32", read), ("1M writes, depth 32", write)];
    for (name, memory) in parts {
        let Memory { resident, anonymous, file, shared, resident_max } = memory;
        let cells =
            [resident, anonymous, file, shared, resident_max].map(|bytes| format!("{:.1}", mib(bytes)));
        println!("| {name} | {} |", cells.join(" | "));
    }
    println!("| each of {IDLE_SESSIONS} idle sessions more, KiB | {:.1} | | | | |", each / 1024.0);
    let most = read.resident_max.max(write.resident_max);
    let bars = [
        Bar::at_most("peak resident MiB", mib(most), 64.0),
        Bar::at_most("idle session KiB", each / 1024.0, 128.0),
    ];
    println!("\nmemory: {}", verdict(&bars));
    Ok(json!({
        "bytes": { "fresh": fresh, "read": read, "write": write },
        "idle_sessions": IDLE_SESSIONS,
        "idle_session_bytes": each,
        "bars": bars.each_ref().map(Bar::object),
    }))
}
