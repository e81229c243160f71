//! What opening costs: unlocking beside cryptsetup, the memory of a copy, and 1 TiB made and formatted.

use std::os::unix::fs::MetadataExt as _;
use std::time::Instant;

use anyhow::{Context as _, Result};
use serde_json::json;

use super::super::Spread;
use super::super::bars::Bar;
use super::{Bench, Found, RUN_LIMIT};
use harness::files::random_file;
use harness::{Server, program, run, scratch};

const TIB: u64 = 1 << 40;
const MIB: f64 = (1 << 20) as f64;

pub(super) fn measure(bench: &Bench) -> Result<Found> {
    let dir = scratch()?;
    let path = |name: &str| dir.path().join(name).display().to_string();
    std::fs::write(path("pw"), "of a benchmark\n")?;
    std::fs::write(path("secret"), "of a benchmark")?;
    run(program("chmod")?.args(["600", &path("pw"), &path("secret")]), RUN_LIMIT)?.success()?;
    let (pw, sealed, plain) = (path("pw"), path("sealed"), path("plain"));
    random_file(&plain, 64 << 20, 1)?;
    let make = |name: &str, size: u64, extra: &[&str]| {
        let (place, size) = (format!("{},create", path(name)), size.to_string());
        let words =
            ["volume", "format", &place, "--data-size", &size, "--type", "luks2", "--password-file", &pw];
        bench.context.ours(&[&words[..], extra].concat(), RUN_LIMIT)?.success().map(drop)
    };
    make("sealed", 64 << 20, &[])?;
    let opened = format!("{sealed},volume=luks2,password-file={pw}");
    let (mut ours, mut theirs, mut formats, mut memory) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for rep in 0..bench.reps {
        let start = Instant::now();
        bench.context.ours(&["info", &opened], RUN_LIMIT)?.success()?;
        ours.push(start.elapsed().as_secs_f64());
        let start = Instant::now();
        let mut command = program("cryptsetup")?;
        command.args([
            "open",
            "--test-passphrase",
            "--disable-locks",
            "--key-file",
            &path("secret"),
            &sealed,
        ]);
        run(&mut command, RUN_LIMIT)?.success()?;
        theirs.push(start.elapsed().as_secs_f64());
        let name = format!("large-{rep}");
        let start = Instant::now();
        make(&name, TIB, &["--pbkdf", "pbkdf2", "--iter-time", "1"])?;
        formats.push(start.elapsed().as_secs_f64());
        let allocated = std::fs::metadata(path(&name))?.blocks() * 512;
        std::fs::remove_file(path(&name))?;
        let copied = format!("{},size=64M", path("copy"));
        std::fs::File::create(path("copy"))?.set_len(64 << 20)?;
        let [plain, sealed] = [&*copied, &*opened].map(|to| resident(bench, &plain, to));
        memory.push((allocated as f64 / MIB, (sealed? - plain?) / MIB));
    }
    let [ours, theirs, formats] = [&ours, &theirs, &formats].map(|column| Spread::of(column));
    let allocated = Spread::column(&memory, |row| row.0);
    let resident = Spread::column(&memory, |row| row.1);
    let table = format!(
        "| | |\n|---|---|\n| unlocking with argon2id, s | {} |\n| cryptsetup, s | {} |\n| 1 TiB formatted without the key \
         derivation, s | {} |\n| of it allocated, MiB | {} |\n| resident memory of a server after a copy, MiB more than without a volume | {} |\n",
        ours.show(2),
        theirs.show(2),
        formats.show(2),
        allocated.show(0),
        resident.show(0),
    );
    let bars = vec![
        Bar::at_most("unlocking, to cryptsetup's time", ours.median / theirs.median, 1.5),
        Bar::at_most("1 TiB formatted, s", formats.median, 5.0),
        Bar::at_most("of it allocated, MiB", allocated.max, 32.0),
        Bar::at_most("resident memory, MiB more", resident.median, 96.0),
    ];
    let rows = json!({
        "unlock_s": ours, "cryptsetup_s": theirs, "format_s": formats, "allocated_mib": allocated, "resident_mib": resident,
    });
    Ok(Found { table, bars, rows })
}

/// Resident memory of a server of `endpoint` that has taken all of `source`, bytes: the derivation's was given back.
fn resident(bench: &Bench, source: &str, endpoint: &str) -> Result<f64> {
    let mut command = bench.context.command();
    command.args(["serve", endpoint, "--listen", "127.0.0.1:0"]);
    let server = Server::start(&mut command, 1)?;
    let url = server.url.to_string();
    bench.context.ours(&["copy", "--force", "--quiet", source, &url], RUN_LIMIT)?.success()?;
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.running.pid()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kib: f64 = line.split_whitespace().next().and_then(|word| word.parse().ok()).context("VmRSS")?;
    Ok(kib * 1024.0)
}
