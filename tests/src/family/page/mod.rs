//! The page of `analyze --html` in a browser: what it shows with and without scripts, its boxes at two sizes, names that
//! try to leave their place, and how fast a million points are.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use tempfile::TempDir;

use crate::{Cases, Context, Scene, find_program, run, scratch};

mod paper;

const LIMIT: Duration = Duration::from_secs(120);
const SCRIPT: &str = include_str!("page.js");
/// A name that is markup, ends scripts and attributes, and reorders text.
const NAME: &str = "iqn.2026-11.x:</script><img src=x onerror='parent.hacked=1'>\"\u{202e}gpj";
/// Writes of the large capture: more than a million points.
const WRITES: u32 = 230;
const PAGE_BYTES_MAX: u64 = 16_000_000;
const SHOWN_MS_MAX: f64 = 2000.0;
const ZOOM_MS_MAX: f64 = 100.0;
/// Other work on the machine makes a measurement slow, never fast.
const ATTEMPTS: usize = 3;

struct Scenery {
    dir: TempDir,
    page: PathBuf,
}

fn analysed(context: &Context, writes: u32) -> Result<Scenery> {
    let dir = scratch()?;
    // A name of a file is as free as a name in a packet.
    let capture = dir.path().join("a<img src=x onerror='parent.hacked=1'>.pcap");
    let mut out = BufWriter::new(File::create(&capture)?);
    paper::write(&mut out, writes, NAME)?;
    out.flush()?;
    let page = dir.path().join("p.html");
    let words = ["analyze", &capture.display().to_string(), "--html", &page.display().to_string()];
    context.ours(&words, LIMIT)?.success()?;
    Ok(Scenery { dir, page })
}

/// How the page is opened.
#[derive(Clone, Copy)]
struct View {
    size: [u32; 2],
    is_dark: bool,
    has_scripts: bool,
}

/// What the script finds in the page.
fn measured(scenery: &Scenery, view: View) -> Result<Value> {
    let page = STANDARD.encode(fs::read(&scenery.page)?);
    let View { size: [width, height], is_dark, has_scripts } = view;
    let sandbox = if has_scripts { "allow-same-origin allow-scripts" } else { "allow-same-origin" };
    let text = format!(
        "<!DOCTYPE html><meta charset=\"utf-8\"><iframe id=\"frame\" style=\"border:0\" width=\"{width}\" \
         height=\"{height}\" sandbox=\"{sandbox}\"></iframe><pre id=\"found\"></pre>\
         <script type=\"text/plain\" id=\"page\">{page}</script><script>{SCRIPT}</script>"
    );
    let file = scenery.dir.path().join("measure.html");
    fs::write(&file, text)?;
    let mut command = Command::new(find_program("chromium").context("chromium is not installed")?);
    command.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom"]);
    command.arg(format!("--user-data-dir={}", scenery.dir.path().join("chromium").display()));
    // 0: dark, 1: light.
    command.arg(format!("--blink-settings=preferredColorScheme={}", u8::from(!is_dark)));
    let output = run(command.arg(format!("file://{}", file.display())), LIMIT)?.success()?;
    let found = output.stdout.split("&lt;&lt;").nth(1).and_then(|rest| rest.split("&gt;&gt;").next());
    let found = found.with_context(|| format!("nothing was measured: {}", output.stdout.len()))?;
    let found = STANDARD.decode(found).map_err(|error| anyhow!("{error}"))?;
    Ok(serde_json::from_slice(&found)?)
}

fn check_layout(found: &Value, width: u32) -> Result<()> {
    let none = |name: &str| found[name].as_array().is_some_and(Vec::is_empty);
    ensure!(found["width"] == width && found["scroll_width"] == found["inner_width"], "too wide: {found}");
    ensure!(none("overlaps") && none("outside"), "boxes overlap or leave the page: {found}");
    ensure!(found["verdict_is_first"] == true, "the verdict stands above all figures: {found}");
    let verdict = found["verdict"].as_str().unwrap_or_default();
    ensure!(verdict.contains("MB/s"), "{found}");
    ensure!(found["facts"].as_u64().is_some_and(|rows| rows >= 20), "{found}");
    ensure!(found["commands"] == 6, "{found}");
    Ok(())
}

/// Names of packets and files are text, and nothing else.
fn check_names(found: &Value) -> Result<()> {
    let names = found["names"].to_string();
    for part in ["</script><img src=x onerror='parent.hacked=1'>", "\\\\u{202e}gpj", "a<img src=x"] {
        ensure!(names.contains(part), "{part}: {names}");
    }
    ensure!(found["images"] == 0 && found["hacked"] == false, "{found}");
    let policy = found["policy"].as_str().unwrap_or_default();
    ensure!(
        policy.starts_with("default-src 'none'; script-src 'sha256-") && !policy.contains("unsafe"),
        "{policy}"
    );
    ensure!(found["scripts"] == 3 && found["remote"] == 0, "{found}");
    Ok(())
}

fn check_charts(found: &Value) -> Result<()> {
    let charts = found["charts"].as_array().context("no charts")?;
    let names: Vec<_> = charts.iter().filter_map(|chart| chart["name"].as_str()).collect();
    ensure!(names == ["sequence", "queue", "windows", "rate", "commands", "rtt", "depth"], "{names:?}");
    ensure!(
        charts.iter().all(|chart| chart["coloured"].as_u64().is_some_and(|pixels| pixels > 100)),
        "{found}"
    );
    let labels = found["labels"].to_string();
    ensure!(
        ["sent", "acknowledged", "receive window", "command", "Data-Out", "response"]
            .iter()
            .all(|name| labels.contains(name)),
        "{labels}"
    );
    // The stream has 6 writes of 4.19 MB.
    ensure!(found["highest"].as_f64().is_some_and(|bytes| (25e6..27e6).contains(&bytes)), "{found}");
    ensure!(found["zoomed"] == "0.1000 s to 0.2000 s", "{found}");
    Ok(())
}

fn check_speed(scenery: &Scenery) -> Result<()> {
    let bytes = fs::metadata(&scenery.page)?.len();
    let mut tries = Vec::new();
    for _ in 0..ATTEMPTS {
        let found = measured(scenery, View { size: [1280, 800], is_dark: false, has_scripts: true })?;
        let number = |name: &str| found[name].as_f64().unwrap_or(f64::INFINITY);
        ensure!(number("points") >= 1e6, "only {} points", found["points"]);
        ensure!(bytes <= PAGE_BYTES_MAX, "the page has {bytes} bytes");
        let (shown, zoom) = (number("shown_ms"), number("zoom_ms_p95"));
        println!(
            "{} points in {bytes} bytes, shown in {shown:.0} ms, zoom p95 {zoom:.1} ms",
            found["points"]
        );
        if shown <= SHOWN_MS_MAX && zoom <= ZOOM_MS_MAX {
            return Ok(());
        }
        tries.push((shown, zoom));
    }
    Err(anyhow!("shown and zoom p95 in ms: {tries:?}"))
}

/// Only an earlier page is replaced.
fn check_place(context: &Context, scenery: &Scenery) -> Result<()> {
    let capture = Path::new("a<img src=x onerror='parent.hacked=1'>.pcap");
    let capture = scenery.dir.path().join(capture).display().to_string();
    let analyze =
        |page: &Path| context.ours(&["analyze", &capture, "--html", &page.display().to_string()], LIMIT);
    analyze(&scenery.page)?.success()?;
    let other = scenery.dir.path().join("mine.html");
    fs::write(&other, "<!DOCTYPE html>\nmine")?;
    let refused = analyze(&other)?;
    ensure!(refused.code == Some(6), "{refused:?}");
    ensure!(fs::read_to_string(&other)?.ends_with("mine"), "it was overwritten");
    Ok(())
}

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    let scene = Scene::new(|| analysed(context, 6));
    for (name, size, is_dark, background) in [
        ("desktop", [1280, 800], false, "rgb(255, 255, 255)"),
        ("phone-dark", [390, 844], true, "rgb(21, 24, 28)"),
    ] {
        cases.check(name, || {
            let found = measured(scene.get()?, View { size, is_dark, has_scripts: true })?;
            ensure!(found["background"] == background, "{found}");
            check_layout(&found, size[0])?;
            check_names(&found)?;
            check_charts(&found)
        });
    }
    cases.check("without-scripts", || {
        let found = measured(scene.get()?, View { size: [390, 844], is_dark: false, has_scripts: false })?;
        check_layout(&found, 390)?;
        check_names(&found)?;
        ensure!(found["stills"] == 7 && found["charts"].as_array().is_some_and(Vec::is_empty), "{found}");
        Ok(())
    });
    cases.check("only-an-earlier-page-is-replaced", || check_place(context, scene.get()?));
    cases.check("a-million-points", || check_speed(&analysed(context, WRITES)?));
    Ok(())
}
