//! AES-256-XTS of `bench ciphers` beside `openssl speed`, one core.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::super::Spread;
use super::super::bars::Bar;
use super::{Bench, Found, RUN_LIMIT};
use harness::{program, run};

const SECTORS: [(u64, f64); 2] = [(512, 1.1), (4096, 1.8)];
/// The bar without AVX-512, which aws-lc has code for and OpenSSL 3.0 has not.
const WITHOUT_AVX512: f64 = 0.95;

fn ours(bench: &Bench, bytes: u64) -> Result<f64> {
    let report = bench.context.ours(&["bench", "ciphers", "--json"], RUN_LIMIT)?.success()?.json()?;
    let rows = report["rows"].as_array().context("no rows")?;
    let is_it = |row: &&Value| row["means"] == "AES-256-XTS" && row["act"] == "seal" && row["bytes"] == bytes;
    rows.iter().find(is_it).and_then(|row| row["gb_per_s"].as_f64()).context("no AES-256-XTS")
}

/// GB/s: the last line is `aes-256-xts NUMBERk`, thousands of bytes a second.
fn openssl(bytes: u64) -> Result<f64> {
    let mut command = program("openssl")?;
    command.args(["speed", "-seconds", "1", "-bytes", &bytes.to_string(), "-evp", "aes-256-xts"]);
    let output = run(&mut command, RUN_LIMIT)?.success()?;
    let last = output.stdout.trim().lines().last().context("no figure from openssl")?;
    let figure = last.split_whitespace().last().and_then(|word| word.strip_suffix('k'));
    Ok(figure
        .and_then(|word| word.parse::<f64>().ok())
        .with_context(|| format!("figure of openssl: {last}"))?
        / 1e6)
}

pub(super) fn measure(bench: &Bench) -> Result<Found> {
    let processor = std::fs::read_to_string("/proc/cpuinfo")?;
    let has_avx512 = processor.contains("vaes") && processor.contains("avx512f");
    let mut table =
        "| AES-256-XTS, one core, GB/s | ours | OpenSSL | ratio |\n|---|---|---|---|\n".to_owned();
    let (mut rows, mut bars) = (Vec::new(), Vec::new());
    for (bytes, least) in SECTORS {
        let (mut us, mut them) = (Vec::new(), Vec::new());
        for _ in 0..bench.reps {
            us.push(ours(bench, bytes)?);
            them.push(openssl(bytes)?);
        }
        let [us, them] = [Spread::of(&us), Spread::of(&them)];
        let ratio = us.median / them.median;
        writeln!(table, "| sectors of {bytes} | {} | {} | {ratio:.2} |", us.show(2), them.show(2))?;
        let what = if bytes == 512 { "sectors of 512, to OpenSSL" } else { "sectors of 4096, to OpenSSL" };
        bars.push(Bar::at_least(what, ratio, if has_avx512 { least } else { WITHOUT_AVX512 }));
        rows.push(json!({ "bytes": bytes, "gb_per_s": us, "openssl_gb_per_s": them }));
    }
    Ok(Found { table, bars, rows: json!(rows) })
}
