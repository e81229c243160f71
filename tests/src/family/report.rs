//! The HTML report of a copy in a browser: its text and the places of its boxes at two sizes, not its pixels.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use tempfile::TempDir;

use crate::{Cases, Context, Scene, find_program, run, scratch};

const LIMIT: Duration = Duration::from_secs(60);
const SCRIPT: &str = include_str!("report.js");
/// Bytes of data and of the whole source; the rate makes the copy last long enough for several points.
const DATA: usize = 8 << 20;
const BYTES: u64 = 64 << 30;
const RATE: u64 = 16_000_000;

struct Scenery {
    dir: TempDir,
    report: PathBuf,
}

fn copied(context: &Context) -> Result<Scenery> {
    let dir = scratch()?;
    // A long name must not widen the page.
    let source = dir.path().join(format!("a-{}.img", "long_name".repeat(12)));
    fs::write(&source, vec![7; DATA])?;
    fs::File::options().write(true).open(&source)?.set_len(BYTES)?;
    let report = dir.path().join("r.html");
    let [from, to, rate, page] = [
        source.display().to_string(),
        dir.path().join("b.img").display().to_string(),
        RATE.to_string(),
        report.display().to_string(),
    ];
    let words =
        ["copy", &from, &to, "--rate", &rate, "--chunk", "256K", "--offload", "off", "--report", &page];
    context.ours(&words, LIMIT)?.success()?;
    Ok(Scenery { dir, report })
}

/// What the script finds in the report at this size.
fn measured(dir: &Path, report: &Path, [width, height]: [u32; 2], is_dark: bool) -> Result<Value> {
    let report = fs::read_to_string(report)?;
    ensure!(!report.contains("<script"), "a report has no scripts");
    let page = dir.join("measure.html");
    let text = format!(
        "<!DOCTYPE html><meta charset=\"utf-8\"><iframe id=\"frame\" style=\"border:0\" width=\"{width}\" \
         height=\"{height}\"></iframe><pre id=\"found\"></pre><script type=\"text/plain\" id=\"report\">{report}</script>\
         <script>{SCRIPT}</script>"
    );
    fs::write(&page, text)?;
    let mut command = Command::new(find_program("chromium").context("chromium is not installed")?);
    command.args([
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--dump-dom",
        "--virtual-time-budget=5000",
    ]);
    command.arg(format!("--user-data-dir={}", dir.join("chromium").display()));
    // 0: dark, 1: light.
    command.arg(format!("--blink-settings=preferredColorScheme={}", u8::from(!is_dark)));
    let output = run(command.arg(format!("file://{}", page.display())), LIMIT)?.success()?;
    let found = output.stdout.split("&lt;&lt;").nth(1).and_then(|rest| rest.split("&gt;&gt;").next());
    let found = found.with_context(|| format!("nothing was measured: {}", output.stdout.len()))?;
    let found = STANDARD.decode(found).map_err(|error| anyhow!("{error}"))?;
    Ok(serde_json::from_slice(&found)?)
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
}

fn check(found: &Value, width: u32) -> Result<()> {
    let none = |name: &str| found[name].as_array().is_some_and(Vec::is_empty);
    ensure!(
        found["width"] == width && found["scroll_width"] == found["inner_width"],
        "it is too wide: {found}"
    );
    ensure!(none("overlaps") && none("outside"), "boxes overlap or leave the page: {found}");
    // The source is 64 GiB of holes and 8 MiB of data at 16 MB/s.
    let rates = numbers(&found["rates"]);
    let most = rates.iter().copied().fold(0.0, f64::max);
    ensure!(found["unit"].as_str().is_some_and(|unit| unit.starts_with("MB/s")), "{found}");
    ensure!(rates.len() >= 3 && (10.0..60.0).contains(&most), "the axis of the rate: {found}");
    ensure!(numbers(&found["times"]).len() >= 3, "the axis of the time: {found}");
    let legend = found["legend"].to_string();
    ensure!(["copy ", "rate "].iter().all(|word| legend.contains(word)), "{found}");
    ensure!(numbers(&found["svg_heights"]) == [240.0, 12.0, 120.0], "the plots keep their heights: {found}");
    Ok(())
}

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    let scene = Scene::new(|| copied(context));
    for (name, size, is_dark, background) in [
        ("desktop", [1280, 800], false, "rgb(255, 255, 255)"),
        ("phone-dark", [390, 844], true, "rgb(22, 22, 22)"),
    ] {
        cases.check(name, || {
            let Scenery { dir, report } = scene.get()?;
            let found = measured(dir.path(), report, size, is_dark)?;
            ensure!(found["background"] == background, "{found}");
            check(&found, size[0])
        });
    }
    Ok(())
}
