//! Tables of what was seen of a connection.

use std::io::{self, Write};

use super::super::escape::markup;
use super::super::{Subject, words};
use crate::model::{Caps, Cpu, Evidence, Path, Protocol};

/// Name and value of each row, as plain text.
pub(super) type Rows = Vec<(String, String)>;

pub(super) fn write(out: &mut impl Write, subject: &Subject<'_>) -> io::Result<()> {
    out.write_all(b"<h3>Facts</h3>\n<div class=\"facts\">\n")?;
    for (title, rows) in tables(subject) {
        if rows.is_empty() {
            continue;
        }
        writeln!(out, "<table><caption>{title}</caption>")?;
        for (name, value) in rows {
            writeln!(out, "<tr><th scope=\"row\">{}</th><td>{}</td></tr>", markup(&name), markup(&value))?;
        }
        out.write_all(b"</table>\n")?;
    }
    out.write_all(b"</div>\n")
}

/// Tables with their titles, in the order to show.
pub(super) fn tables(subject: &Subject<'_>) -> Vec<(&'static str, Rows)> {
    let Evidence { path, caps, protocol, cpu, .. } = subject.evidence;
    vec![
        ("Connection", connection(subject)),
        ("Network", network(path)),
        ("Windows and buffers", buffers(caps)),
        ("iSCSI", protocol.as_ref().map(iscsi).unwrap_or_default()),
        ("Processor", cpu.as_ref().map(processor).unwrap_or_default()),
        ("Negotiated", subject.flow.negotiated.clone()),
    ]
}

fn row(name: &str, value: impl Into<String>) -> (String, String) {
    (name.to_owned(), value.into())
}

/// A value that an observer may not be able to see.
fn visible<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "not visible".to_owned(), text)
}

fn connection(subject: &Subject<'_>) -> Rows {
    let Subject { flow, evidence, .. } = subject;
    let mut rows =
        vec![row("From", &flow.source), row("Initiator", &flow.initiator), row("Target", &flow.target)];
    for (name, value) in [("Initiator name", &flow.initiator_name), ("Target name", &flow.target_name)] {
        if let Some(value) = value {
            rows.push(row(name, value));
        }
    }
    rows.push(row("Observed by", words::source(evidence.source)));
    rows.push(row("Data sender", words::side(evidence.sender)));
    rows.push(row("Period", words::seconds(evidence.seconds)));
    rows.push(row("Data", words::bytes(evidence.data_bytes)));
    if flow.frames > 0 {
        rows.push(row("Frames", flow.frames.to_string()));
    }
    rows
}

fn network(path: &Path) -> Rows {
    let mut rows = vec![
        row("RTT, least", visible(path.rtt_s, words::seconds)),
        row("RTT with data", visible(path.rtt_loaded_s, words::seconds)),
        row("Narrowest link", visible(path.line_bytes_per_s, words::rate)),
        row("Segment size", visible(path.mss_bytes, |bytes| format!("{bytes} B"))),
        row("Data packets", path.data_packets.to_string()),
    ];
    let share = path.retransmitted_packets as f64 / path.data_packets.max(1) as f64;
    rows.push(row("Retransmitted", format!("{} ({})", path.retransmitted_packets, words::percent(share))));
    for (name, count) in [("Retransmitted without need", path.spurious_packets), ("Timeouts", path.timeouts)]
    {
        if count > 0 {
            rows.push(row(name, count.to_string()));
        }
    }
    if let Some(drops) = path.local_drops {
        rows.push(row("Dropped by the local device", drops.to_string()));
    }
    if path.capture_lost_bytes > 0 {
        rows.push(row("Lost by the capture", words::bytes(path.capture_lost_bytes)));
    }
    rows
}

fn buffers(caps: &Caps) -> Rows {
    [
        ("In flight, most", caps.in_flight_max_bytes),
        ("In flight at stops", caps.in_flight_stopped_bytes),
        ("Receive window", caps.window_bytes),
        ("Congestion window", caps.congestion_window_bytes),
        ("Slow start threshold", caps.ssthresh_bytes),
        ("Send buffer's cap", caps.send_buffer_bytes),
    ]
    .map(|(name, value)| row(name, visible(value, words::bytes)))
    .to_vec()
}

fn iscsi(protocol: &Protocol) -> Rows {
    let Protocol { commands, block_bytes, depth, depth_max, .. } = *protocol;
    let mut rows = vec![
        row("Commands", commands.to_string()),
        row("Block", words::bytes(block_bytes)),
        row("Queue depth", format!("{depth}, most {depth_max}")),
        row("Command window, least", protocol.command_window.to_string()),
        row("Unsolicited data", words::bytes(protocol.unsolicited_bytes)),
    ];
    if protocol.r2t_bytes > 0 {
        rows.push(row(
            "R2T",
            format!(
                "{} each, {} at once, {} rounds",
                words::bytes(protocol.r2t_bytes),
                protocol.r2ts_outstanding,
                protocol.r2t_rounds
            ),
        ));
    } else {
        rows.push(row("R2T", "none"));
    }
    for (name, value) in [
        ("Ta", protocol.ta_s),
        ("Tb", protocol.tb_s),
        ("Tc", protocol.tc_s),
        ("Target's own time", protocol.target_s),
    ] {
        rows.push(row(name, words::seconds(value)));
    }
    rows
}

fn processor(cpu: &Cpu) -> Rows {
    let mut rows = vec![
        row("Busiest thread", words::percent(cpu.busiest_thread)),
        row("Ready and not running", words::percent(cpu.waiting)),
    ];
    if let Some(cipher) = cpu.cipher {
        rows.push(row("Sealing and opening", words::percent(cipher)));
    }
    rows
}
