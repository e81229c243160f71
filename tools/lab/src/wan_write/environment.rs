//! The environment of the measurement, as Table 1 of the paper has it.

use std::process::Command;

use serde_json::{Map, Value};

use super::plan::RATE;

fn first_line(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().next().map(str::to_owned).filter(|line| !line.is_empty())
}

fn file(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn field(path: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once([':', '='])?.1.trim().trim_matches('"').to_owned())
}

/// Names and values in the order of the paper's table.
pub(super) fn table() -> Vec<(&'static str, String)> {
    let none = || "not installed".to_owned();
    let system = field("/etc/os-release", "PRETTY_NAME").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let processor = field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".to_owned());
    vec![
        ("OS", format!("{system}, Linux {}", file("/proc/sys/kernel/osrelease"))),
        ("CPU", format!("{processor}, {cores} cores, which both sides and the path share")),
        ("Main memory", field("/proc/meminfo", "MemTotal").unwrap_or_default()),
        ("NIC", format!("TUN with segmentation offload, {:.0} Mbit/s by the path", RATE / 1e6)),
        ("Disk", "a file in memory".to_owned()),
        ("Initiators", {
            let qemu = first_line("qemu-img", &["--version"]).unwrap_or_else(none);
            format!("this experiment's (as open-iscsi); hikyaku {}; {qemu}", env!("CARGO_PKG_VERSION"))
        }),
        ("Targets", {
            let tgt = first_line("tgtd", &["--version"]).unwrap_or_else(none);
            format!("tgt {tgt}; hikyaku {}", env!("CARGO_PKG_VERSION"))
        }),
        ("Network analyzer", "tap of the path between bottleneck and delay, one packet a frame".to_owned()),
        ("Network simulator", "lab::wan".to_owned()),
        ("Kernel monitor", "sock_diag every millisecond: sampled".to_owned()),
        ("net.core.wmem_max", file("/proc/sys/net/core/wmem_max")),
        ("Congestion control", "cubic unless the row names another".to_owned()),
    ]
}

pub(super) fn json() -> Value {
    let fields: Map<String, Value> =
        table().into_iter().map(|(name, value)| (name.to_owned(), Value::String(value))).collect();
    Value::Object(fields)
}
