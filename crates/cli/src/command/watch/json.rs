//! `watch --json`: one object for each connection and interval (docs/schema/watch.json).

use std::time::{SystemTime, UNIX_EPOCH};

use monitor::event::Side;
use monitor::probe::{Figures, Session};
use monitor::{Sample, Verdict};
use serde_json::{Value, json};

use super::engine::{Engine, figures};
use super::own::Own;
use crate::error::Failure;
use crate::output;
use crate::units::rounded;

/// `false`: the reader has closed the pipe.
pub(super) fn print(engine: &Engine) -> Result<bool, Failure> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    for session in engine.sessions.all() {
        let Some(sample) = session.latest() else { continue };
        let kept = engine.kept(session);
        let verdict = kept.and_then(|kept| Some(judged(kept.verdict.as_ref()?, kept.own)));
        let is_read = output::try_json(&json!({
            "schema": output::SCHEMA,
            "time_unix_s": now,
            "session": about(session),
            "sample": sampled(&sample),
            "rates": rates(&figures(session).unwrap_or_default()),
            "cpu": session.cpu.map(|cpu| json!({
                "busiest_thread": rounded(cpu.busiest_thread),
                "waiting": rounded(cpu.waiting),
                "sleeps_in": session.sleeps_in,
            })),
            "events": engine.precise.json(session),
            "verdict": verdict,
        }))?;
        if !is_read {
            return Ok(false);
        }
    }
    Ok(true)
}

fn about(session: &Session) -> Value {
    let disk = |disk: &monitor::probe::KernelDisk| json!({ "name": disk.name, "queue_depth": disk.queue_depth, "inflight": disk.inflight });
    json!({
        "id": session.id,
        "side": if session.side == Side::Initiator { "initiator" } else { "target" },
        "local": session.ends.local.to_string(),
        "remote": session.ends.remote.to_string(),
        "ended": session.ended,
        "congestion_control": session.congestion,
        "process": session.owner.as_ref().map(|owner| json!({ "pid": owner.pid, "name": owner.name })),
        "kernel_session": session.kernel.as_ref().map(|kernel| json!({
            "name": kernel.name,
            "target": kernel.target,
            "disks": kernel.disks.iter().map(disk).collect::<Vec<_>>(),
        })),
        "queueing": session.route.as_ref().map(|route| json!({
            "name": route.queue,
            "drops": route.drops,
            "backlog_bytes": route.backlog_bytes,
        })),
        "samples_missed": session.missed,
    })
}

/// The fields of a sample as they are named, with the parts of the send queue in bytes.
fn sampled(sample: &Sample) -> Value {
    let mut value = serde_json::to_value(sample).unwrap_or_default();
    let figures = Figures::of(sample, sample);
    if let Some(object) = value.as_object_mut() {
        object.insert("waiting_ack_bytes".to_owned(), json!(figures.waiting_ack_bytes));
        object.insert("congestion_window_bytes".to_owned(), json!(figures.congestion_window_bytes));
    }
    value
}

fn rates(figures: &Figures) -> Value {
    json!({
        "seconds": rounded(figures.seconds),
        "sent_bytes_per_s": figures.sent_bytes_per_s.map(rounded),
        "received_bytes_per_s": figures.received_bytes_per_s.map(rounded),
        "retransmitted_bytes_per_s": figures.retransmitted_bytes_per_s.map(rounded),
    })
}

fn judged(verdict: &Verdict, own: Option<Own>) -> Value {
    let mut object = verdict.object();
    object["own_rate_mb_per_s"] = own.map(|own| rounded(own.bytes_per_s / 1e6)).into();
    object
}
