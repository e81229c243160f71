//! Memory of `serve`: one file LUN under 1 MiB requests, and the increase by idle sessions.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::bars::{Bar, Bound, verdict};
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
    let mut command = context.command();
    command.args(["bench", "path", &served.url(0).to_string(), "--json"]);
    command.args(["--block-size", &LOADED.block.to_string(), "--depth", &LOADED.depth.to_string()]);
    command.args(["--seconds", &seconds.to_string()]);
    if write {
        command.args(["--write", "--destroy", "--verify"]);
    }
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
    let image = dir.path().join("disk.img");
    random_file(&image, LUN_BYTES, 1)?;
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
        println!(
            "| {name} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} |",
            mib(memory.resident),
            mib(memory.anonymous),
            mib(memory.file),
            mib(memory.shared),
            mib(memory.resident_max)
        );
    }
    println!("| each of {IDLE_SESSIONS} idle sessions more, KiB | {:.1} | | | | |", each / 1024.0);
    let most = read.resident_max.max(write.resident_max);
    let bars = [
        Bar::new("peak resident MiB", mib(most), Bound::AtMost(64.0)),
        Bar::new("idle session KiB", each / 1024.0, Bound::AtMost(128.0)),
    ];
    println!("\nmemory: {}", verdict(&bars));
    let object = |memory: Memory| {
        json!({
            "resident": memory.resident, "anonymous": memory.anonymous, "file": memory.file,
            "shared": memory.shared, "resident_max": memory.resident_max,
        })
    };
    Ok(json!({
        "bytes": { "fresh": object(fresh), "read": object(read), "write": object(write) },
        "idle_sessions": IDLE_SESSIONS,
        "idle_session_bytes": each,
        "bars": bars.each_ref().map(Bar::object),
    }))
}
