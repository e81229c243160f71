//! `copy --dry-run`: prints what a copy would do and every refusal.

use job::{Estimate, Findings, Job, Since, units};
use serde_json::{Value, json};

use crate::context::Context;
use crate::error::Exit;
use crate::output;

/// Prints the findings. Returns the exit code of the first refusal.
pub(super) fn print(context: &Context, job: &Job<'_>, findings: &Findings) -> Exit {
    if context.json {
        output::json(&object(job, findings));
    } else {
        lines(job, findings).iter().for_each(|line| output::line(line));
    }
    findings.refusals.first().map_or(Exit::Done, |refusal| refusal.ending)
}

fn object(job: &Job<'_>, findings: &Findings) -> Value {
    let Findings { plan, checked, estimate, .. } = findings;
    let refused: Vec<_> =
        findings.refusals.iter().map(|refusal| refusal.to_json()["error"].clone()).collect();
    json!({
        "schema": output::SCHEMA,
        "dry_run": true,
        "source": job.source.text(),
        "destination": job.destination.text(),
        "src_offset": plan.src_offset,
        "dst_offset": plan.dst_offset,
        "bytes": checked.map(|checked| checked.bytes),
        "chunk": checked.map(|checked| checked.chunk),
        "chunk_bytes": checked.map(|checked| checked.chunk),
        "depth": checked.map(|checked| checked.depth),
        "verify": plan.verify,
        "sparse": plan.sparse,
        "rate_bytes_per_s": plan.rate.get(),
        "resumes": findings.resumes,
        "changed_bytes": findings.changed_bytes,
        "source_consistent": findings.source_consistent,
        "refused": refused,
        "estimate": estimate.as_ref().map(Estimate::object),
    })
}

fn lines(job: &Job<'_>, findings: &Findings) -> Vec<String> {
    let Findings { plan, checked, estimate, .. } = findings;
    let mut lines = vec![format!(
        "would copy {} (from byte {}) to {} (from byte {})",
        job.source.text(),
        plan.src_offset,
        job.destination.text(),
        plan.dst_offset
    )];
    if let Some(checked) = checked {
        let chunks = checked.bytes.div_ceil(checked.chunk.into());
        lines.push(format!(
            "  {} ({} bytes), {} of {} in flight{}{}",
            units::bytes(checked.bytes),
            checked.bytes,
            units::counted(u64::from(checked.depth).min(chunks).max(1), "chunk"),
            units::bytes(checked.chunk.into()),
            if plan.verify { ", read back" } else { "" },
            plan.rate.get().map(|rate| format!(", at most {}", units::rate(rate as f64))).unwrap_or_default(),
        ));
    }
    if let Some(id) = &findings.resumes {
        lines.push(format!("  going on with the interrupted copy {id}"));
    }
    if let Some(estimate) = estimate {
        lines.push(format!("  {}", estimate.sentences()));
    }
    match (&job.request.since, findings.changed_bytes) {
        (Some(since), Some(bytes)) => {
            lines.push(format!("  of it {} have changed since {since}", units::bytes(bytes)));
        }
        (Some(Since::Hash), None) => {
            lines.push("  how much differs is known when both ends have been read".to_owned());
        }
        _ => {}
    }
    lines.extend(findings.refusals.iter().map(|refusal| format!("  refused: {refusal}")));
    lines
}
