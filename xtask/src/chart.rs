//! `cargo xtask chart`: docs/peers.svg, the README's chart of the program and its peers, from docs/evidence.
//!
//! The colours are CSS classes that follow the viewer's light or dark scheme. A unit test compares the file with the
//! evidence.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde_json::Value;
use steps::repository;

const WIDTH: u32 = 760;
const ROW: u32 = 22;
/// Left edge of the bars, and the length of the longest bar.
const LEFT: u32 = 230;
const LENGTH: f64 = 430.0;

const STYLE: &str = "\
text{font:13px sans-serif;fill:#1f2328}.title{font-weight:bold}.note{fill:#656d76}\
.ours{fill:#1f6feb}.peer{fill:#afb8c1}\
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.note{fill:#8d96a0}.ours{fill:#4493f8}.peer{fill:#6e7681}}";

struct Panel {
    title: &'static str,
    /// Name, GB/s, and whether the bar is this program's.
    bars: Vec<(String, f64, bool)>,
}

fn evidence(name: &str) -> Result<Value> {
    let path = repository().join(format!("docs/evidence/{name}.json"));
    let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("parse {}", path.display()))
}

fn find<'a>(list: &'a Value, key: &str, value: &str) -> Result<&'a Value> {
    let found = list.as_array().and_then(|list| list.iter().find(|item| item[key] == value));
    found.with_context(|| format!("no {key} {value} in the evidence"))
}

fn median(value: &Value, unit: f64) -> Result<f64> {
    Ok(value["median"].as_f64().context("a median")? / unit)
}

fn target() -> Result<Panel> {
    let evidence = evidence("bench-target")?;
    let mut bars = Vec::new();
    for (row, name) in [
        ("read-4K-qd32", "read 4 KiB, 32 at once"),
        ("read-64K-qd32", "read 64 KiB, 32 at once"),
        ("write-64K-qd32", "write 64 KiB, 32 at once"),
    ] {
        let row = find(&evidence["rows"], "row", row)?;
        bars.push((name.to_owned(), median(&row["ours"]["mb_per_s"], 1e3)?, true));
        bars.push(("tgt".to_owned(), median(&row["tgt"]["mb_per_s"], 1e3)?, false));
    }
    Ok(Panel { title: "iSCSI target under qemu-img bench, GB/s", bars })
}

fn copy() -> Result<Panel> {
    let evidence = evidence("bench-copy")?;
    let rows = &find(&evidence["groups"], "group", "pair-memory")?["rows"];
    let bar = |tool: &str| -> Result<_> {
        let gb_per_s = median(&find(rows, "tool", tool)?["gb_per_s"], 1.0)?;
        Ok((tool.to_owned(), gb_per_s, tool.starts_with("hikyaku")))
    };
    let tools = ["hikyaku copy", "qemu-img convert -W -m 8", "dd bs=1M direct", "dd bs=512k oflag=sync"];
    Ok(Panel {
        title: "copy between two local disks, GB/s",
        bars: tools.map(bar).into_iter().collect::<Result<_>>()?,
    })
}

fn sealed() -> Result<Panel> {
    let evidence = evidence("bench-sealed")?;
    let rows = &find(&evidence["groups"], "group", "peers")?["rows"];
    let mut bars = Vec::new();
    for (row, name) in [
        ("gcm", "sealed, AES-256-GCM"),
        ("plain", "the same, not encrypted"),
        ("stunnel", "iSCSI through stunnel"),
        ("wireguard-go", "iSCSI through wireguard-go"),
    ] {
        let ours = row == "gcm";
        bars.push((name.to_owned(), median(&find(rows, "row", row)?["mb_per_s"], 1e3)?, ours));
    }
    Ok(Panel { title: "encrypted reads of a remote LUN, GB/s", bars })
}

fn draw(panels: &[Panel]) -> String {
    let rows: usize = panels.iter().map(|panel| panel.bars.len() + 2).sum();
    let height = ROW * (rows as u32 + 1);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\
         <title>hikyaku beside its peers</title>\n<style>{STYLE}</style>\n"
    );
    let mut y = ROW;
    for panel in panels {
        let _ = writeln!(svg, "<text class=\"title\" x=\"8\" y=\"{y}\">{}</text>", panel.title);
        y += ROW;
        let most = panel.bars.iter().map(|bar| bar.1).fold(0.0, f64::max);
        for (name, value, is_ours) in &panel.bars {
            let length = (value / most * LENGTH).max(2.0);
            let class = if *is_ours { "ours" } else { "peer" };
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{y}\" text-anchor=\"end\">{name}</text>\
                 <rect class=\"{class}\" x=\"{LEFT}\" y=\"{}\" width=\"{length:.0}\" height=\"14\"/>\
                 <text x=\"{:.0}\" y=\"{y}\">{value:.2}</text>",
                LEFT - 8,
                y - 11,
                f64::from(LEFT) + length + 6.0
            );
            y += ROW;
        }
        y += ROW;
    }
    let note = "medians, two cores of a virtual machine; every row and its spread: docs/FIGURES.md";
    let _ = write!(svg, "<text class=\"note\" x=\"8\" y=\"{}\">{note}</text>\n</svg>\n", y - ROW / 2);
    svg
}

fn path() -> PathBuf {
    repository().join("docs/peers.svg")
}

fn chart() -> Result<String> {
    Ok(draw(&[target()?, copy()?, sealed()?]))
}

pub(crate) fn run() -> Result<bool> {
    std::fs::write(path(), chart()?).context("write docs/peers.svg")?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_picture_shows_what_the_evidence_says() {
        let text = std::fs::read_to_string(path()).unwrap();
        assert!(text == chart().unwrap(), "run cargo xtask chart");
    }
}
