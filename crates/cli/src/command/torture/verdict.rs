//! The result of a torture run.

use serde_json::{Value, json};
use torture::SECTOR_BYTES;
use torture::history::{Fault, Violation};
use torture::journal::Header;

use crate::context::Context;
use crate::error::Exit;
use crate::{output, units};

/// Violations printed in full.
pub(super) const VIOLATIONS_SHOWN_MAX: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) reads: u64,
    pub(super) writes: u64,
    pub(super) durable: u64,
    pub(super) discards: u64,
    pub(super) flushes: u64,
    /// Requests that ended without an answer.
    pub(super) unanswered: u64,
    pub(super) losses: u64,
    /// Flushes that failed because the storage may have lost power.
    pub(super) warnings: u64,
    /// Attachments after an endpoint gave up.
    pub(super) reattached: u64,
    pub(super) retries: u64,
    /// Sectors checked by reads, including the final check.
    pub(super) judged: u64,
    /// Sectors of the final check.
    pub(super) sectors: u64,
    pub(super) violations: u64,
    /// The first violations, each with the bytes read from the sector.
    pub(super) first: Vec<(Violation, Vec<u8>)>,
    pub(super) seconds: f64,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn word(fault: Fault) -> &'static str {
    match fault {
        Fault::Wrong => "wrong",
        Fault::Torn => "torn",
        Fault::Misdirected => "misdirected",
        Fault::Foreign => "foreign",
    }
}

pub(super) fn print(context: &Context, header: &Header, tally: &Tally, protection: &Value) -> Exit {
    let kept = tally.violations == 0;
    if context.json {
        let first = tally.first.iter().map(|(violation, bytes)| {
            json!({
                "sector": violation.lba,
                "offset": violation.lba * SECTOR_BYTES as u64,
                "fault": word(violation.fault),
                "found": violation.found.to_string(),
                "expected": violation.expected,
                "bytes": hex(bytes),
            })
        });
        output::json(&json!({
            "schema": output::SCHEMA,
            "kept": kept,
            "seed": header.seed,
            "seconds": units::rounded(tally.seconds),
            "clients": header.clients,
            "operations": {
                "read": tally.reads,
                "write": tally.writes,
                "durable": tally.durable,
                "discard": tally.discards,
                "flush": tally.flushes,
                "unanswered": tally.unanswered,
            },
            "connections_lost": tally.losses,
            "cache_lost_warnings": tally.warnings,
            "reattached": tally.reattached,
            "retries": tally.retries,
            "sectors": tally.sectors,
            "sectors_judged": tally.judged,
            "violations": tally.violations,
            "protection": protection,
            "first": first.collect::<Vec<_>>(),
        }));
    } else if kept {
        output::line(&format!(
            "kept: {} sectors judged, {} lost, in {} reads, {} writes, {} discards and {} flushes over {} lost connections",
            tally.judged,
            tally.violations,
            tally.reads,
            tally.writes,
            tally.discards,
            tally.flushes,
            tally.losses,
        ));
    } else {
        output::line(&format!(
            "lost: {} of {} sectors judged do not hold what they must (seed {})",
            tally.violations, tally.judged, header.seed
        ));
        for (violation, bytes) in &tally.first {
            let offset = violation.lba * SECTOR_BYTES as u64;
            output::line(&format!("sector {}, offset {offset}: {}", violation.lba, word(violation.fault)));
            output::line(&format!("  found    {}", violation.found));
            violation.expected.iter().for_each(|expected| output::line(&format!("  expected {expected}")));
            output::line(&format!("  bytes    {}...", hex(&bytes[..16])));
        }
    }
    if kept { Exit::Done } else { Exit::Mismatch }
}
