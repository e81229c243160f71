//! The results of a copy: figures as JSON and as text, and failures.

use std::rc::Rc;
use std::time::Duration;

use mover::{CopyError, Limit, Phase, Report, Side, Yielded};
use serde_json::{Value, json};

use crate::cpu::CpuTime;
use crate::manifest::Written;
use crate::offload::Offloaded;
use crate::remote::ByTarget;
use crate::{Connection, EndPath, Ending, Failure, Job, SCHEMA, impact, network, refusals, units};

/// A complete copy. All of it is durable.
#[derive(Debug)]
pub struct Copied {
    pub way: Way,
    /// Whether no writer of the source during the copy is known.
    pub source_consistent: bool,
    /// Protection of the sessions, as in [`protection`](crate::protection).
    pub protection: Value,
    /// The connections to iSCSI ends, if they were sampled often enough.
    pub network: Rc<[Connection]>,
    /// The paths to remote ends.
    pub paths: Vec<EndPath>,
    /// Kind of the snapshot that was copied: `reflink`, `lvm` or `zfs`.
    pub snapshot: Option<&'static str>,
    pub manifest: Option<Written>,
}

#[derive(Debug)]
pub enum Way {
    /// Through this host's memory, except for what storage copied by itself.
    Engine(Box<Report>, CpuTime, Offloaded),
    /// From standard input or to standard output.
    Stream(Box<Report>, CpuTime),
    /// Within the target.
    Target(ByTarget),
}

impl Copied {
    /// The final object of `copy --json`.
    pub fn object(&self) -> Value {
        let mut object = match &self.way {
            Way::Engine(report, cpu, _) | Way::Stream(report, cpu) => {
                object(report, *cpu, self.source_consistent)
            }
            Way::Target(report) => report.object(self.source_consistent),
        };
        if let Way::Engine(_, _, offloaded) = &self.way {
            offloaded.add_to(&mut object);
        }
        object["protection"] = self.protection.clone();
        if let Way::Engine(..) | Way::Stream(..) = &self.way {
            object["network"] = self.network.iter().map(Connection::object).collect();
            let limit = |end: &str| Some(self.connection(end)?.found.verdict.limit.name());
            object["path"] = self.paths.iter().map(|path| path.object(limit(path.end))).collect();
        }
        if let Way::Engine(..) = &self.way {
            object["snapshot"] = self.snapshot.unwrap_or("none").into();
            object["manifest"] = self.manifest.as_ref().map(Written::object).into();
        }
        object
    }

    fn connection(&self, end: &str) -> Option<&Connection> {
        self.network.iter().find(|connection| connection.end == end)
    }

    /// For each end one line, if its network was the limit, or a buffer of this host was too small for it.
    fn network_lines(&self) -> impl Iterator<Item = String> {
        self.paths.iter().filter_map(|path| {
            let verdict = self.connection(path.end).and_then(Connection::sentence);
            let of = match path.report.sessions {
                ..=1 => String::new(),
                sessions => format!("the first of {sessions} sessions, "),
            };
            let said: Vec<_> = verdict
                .map(|verdict| format!("{of}while data moved {verdict}"))
                .into_iter()
                .chain(path.report.missing())
                .collect();
            (!said.is_empty()).then(|| format!("network of the {}: {}", path.end, said.join(" ")))
        })
    }

    pub fn lines(&self) -> Vec<String> {
        let network = self.network_lines();
        let first = match &self.way {
            Way::Engine(report, cpu, offloaded) => sentence(report, *cpu, &self.network) + offloaded.words(),
            Way::Stream(report, cpu) => sentence(report, *cpu, &self.network),
            Way::Target(report) => report.sentence(),
        };
        let manifest = self.manifest.as_ref().map(Written::sentence);
        std::iter::once(first).chain(network).chain(manifest).collect()
    }

    /// [`Ending::Done`], or [`Ending::Unreadable`] if areas of the source cannot be read; the journal is then kept.
    pub fn ending(&self) -> Ending {
        match &self.way {
            Way::Engine(report, ..) if report.unreadable_bytes > 0 => Ending::Unreadable,
            _ => Ending::Done,
        }
    }
}

/// Where the data read back differs from the data copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Bytes of the copied range.
    pub bytes: u64,
    /// Start of the first compared area with a difference, as a byte offset of the destination.
    pub offset: u64,
    /// Bytes of that area, which the engine compares at once.
    pub length: u64,
    /// Whether no writer of the source during the copy is known.
    pub source_consistent: bool,
}

impl Mismatch {
    /// The object that `copy --json` prints; the failure contains the rest.
    pub fn object(&self) -> Value {
        json!({
            "schema": SCHEMA,
            "bytes": self.bytes,
            "verified": false,
            "source_consistent": self.source_consistent,
            "difference": { "dst_offset": self.offset, "length": self.length },
        })
    }
}

/// Processor seconds (user, system) per 10^9 bytes.
pub fn cpu_s_per_gb(cpu: CpuTime, bytes: u64) -> (f64, f64) {
    let per_gb = |time: Duration| if bytes == 0 { 0.0 } else { time.as_secs_f64() / (bytes as f64 / 1e9) };
    (per_gb(cpu.user), per_gb(cpu.system))
}

/// Rate in 10^6 bytes per second; 0 if no time passed.
pub fn mb_per_s(bytes: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { bytes as f64 / 1e6 / seconds } else { 0.0 }
}

fn side(side: &Side) -> Value {
    json!({
        "ops": side.ops,
        "bytes": side.bytes,
        "busy_s": units::rounded(side.busy_seconds),
        "latency_us": {
            "mean": units::rounded(side.latency.mean_us),
            "p50": side.latency.p50_us,
            "p99": side.latency.p99_us,
            "max": side.latency.max_us,
        },
    })
}

fn passed_bytes(report: &Report) -> u64 {
    report.bytes - report.resumed_bytes - report.skipped_bytes
}

pub fn object(report: &Report, cpu: CpuTime, source_consistent: bool) -> Value {
    let (user, system) = cpu_s_per_gb(cpu, report.bytes);
    json!({
        "schema": SCHEMA,
        "remote_copy": false,
        "bytes": report.bytes,
        "data_bytes": report.data_bytes,
        "seconds": units::rounded(report.seconds),
        "mb_per_s": units::rounded(mb_per_s(passed_bytes(report), report.seconds)),
        "data_mb_per_s": units::rounded(mb_per_s(report.data_bytes, report.seconds)),
        "cpu_s_per_gb": { "user": units::rounded(user), "system": units::rounded(system) },
        "read": side(&report.read),
        "write": side(&report.write),
        "verified": report.verified,
        "blake3": report.blake3,
        "unchanged_bytes": report.skipped_bytes + report.equal_bytes,
        "compared_bytes": report.compared_bytes,
        "source_consistent": source_consistent,
        "limited_by": report.limited_by.name(),
        "shares": {
            "source": units::rounded(report.shares.source),
            "destination": units::rounded(report.shares.destination),
            "rate": units::rounded(report.shares.rate),
            "impact": units::rounded(report.shares.impact),
            "memory": units::rounded(report.shares.memory),
            "cpu": units::rounded(report.shares.cpu),
        },
        "impact": report.yielded.as_ref().map(impact::object),
        "flush_s": units::rounded(report.flush_seconds),
        "verify_s": units::rounded(report.verify_seconds),
        "zero_bytes_skipped": report.zero_bytes_skipped,
        "chunk": report.chunk,
        "chunk_bytes": report.chunk,
        "depth_max": report.depth_max,
        "retries": report.retries,
        "copied_again": report.copied_again,
        "resumed_bytes": report.resumed_bytes,
        "source_changed": report.source_changed,
        "claims": report.claims,
        "unreadable_bytes": report.unreadable_bytes,
        "unreadable_areas": report.unreadable_areas,
        "unreadable": report.unreadable.iter().map(|area| json!([area.offset, area.bytes])).collect::<Vec<_>>(),
    })
}

fn sentence(report: &Report, cpu: CpuTime, network: &[Connection]) -> String {
    let (user, system) = cpu_s_per_gb(cpu, report.bytes);
    let mut text = format!(
        "copied {} in {}, {}",
        units::data(report.data_bytes, passed_bytes(report), report.bytes),
        units::duration(Duration::from_secs_f64(report.seconds)),
        match report.data_bytes {
            0 => "nothing to move".to_owned(),
            bytes => units::rate(mb_per_s(bytes, report.seconds) * 1e6),
        },
    );
    let unchanged = units::bytes(report.skipped_bytes + report.equal_bytes);
    let moved = units::bytes(report.write.bytes);
    text += &match (report.compared_bytes + report.equal_bytes, report.skipped_bytes) {
        (0, 0) => String::new(),
        (1.., 0) => format!(": {moved} moved, {unchanged} unchanged as both ends were compared"),
        _ if report.verified => format!(": {moved} moved, {unchanged} unchanged"),
        _ => format!(": {moved} moved, {unchanged} assumed unchanged and not compared"),
    };
    if report.resumed_bytes > 0 {
        text += &format!(", {} of it before", units::bytes(report.resumed_bytes));
    }
    if report.verified {
        let seconds = Duration::from_secs_f64(report.verify_seconds);
        text += &format!(", verified in {}", units::duration(seconds));
    }
    if report.zero_bytes_skipped > 0 {
        text += &format!(", {} of zeroes not moved", units::bytes(report.zero_bytes_skipped));
    }
    if report.retries > 0 {
        text += &format!(", {}", units::retries(report.retries));
    }
    if report.copied_again {
        text += ", all of it twice because the target had lost what it held in its cache";
    }
    if let Some(blake3) = &report.blake3 {
        text += &format!(", BLAKE3 {blake3}");
    }
    if let Some(yielded) = &report.yielded {
        text += &format!(", {}", impact::sentence(yielded));
    }
    let limit = match &report.yielded {
        Some(Yielded { disk, .. }) if report.limited_by == Limit::Impact && !disk.is_empty() => {
            format!("other programs' reads of {disk}")
        }
        Some(_) if report.limited_by == Limit::Impact => "--impact none".to_owned(),
        _ => network::limit(report.limited_by, network),
    };
    text + &format!("; limited by {limit}, {:.2} CPU-s/GB", user + system)
}

/// Areas listed in text; JSON and the journal list more.
const AREAS_SHOWN: usize = 10;

pub(crate) fn unreadable(report: &Report, source: &str, command: &str) -> String {
    let areas = report.unreadable.iter().take(AREAS_SHOWN);
    let areas: Vec<_> = areas.map(|area| format!("{}+{}", area.offset, area.bytes)).collect();
    let more = if report.unreadable_areas > AREAS_SHOWN as u64 { ", ..." } else { "" };
    format!(
        "{} bytes of {source} in {} cannot be read (offset+bytes: {}{more}); the destination keeps there what it held \
         before. To try them again: {command}",
        report.unreadable_bytes,
        units::counted(report.unreadable_areas, "area"),
        areas.join(", ")
    )
}

pub(crate) fn failure(job: &Job<'_>, error: &CopyError) -> Failure {
    let (source, destination) = (job.source.text(), job.destination.text());
    match error {
        CopyError::Interrupted { phase, bytes_safe } => {
            let failure = job.host.stop().failure("finish the copy to", destination);
            interrupted(failure, job, *phase, *bytes_safe)
        }
        CopyError::Refused(refusal) => refusals::refused(refusal, source, destination),
        error => engine_failure(error, "copy", source, destination),
    }
}

/// The failure of an engine error. `verb` is the operation between the two endpoints: `copy`, `compare`.
pub fn engine_failure(error: &CopyError, verb: &str, source: &str, destination: &str) -> Failure {
    let end = |end: &mover::End| match end {
        mover::End::Source => source,
        mover::End::Destination => destination,
    };
    match error {
        CopyError::Read { end: which, offset, length, error } => {
            Failure::io(format!("read {length} bytes at offset {offset} of"), end(which), error)
        }
        CopyError::Write { offset, length, error } => {
            Failure::io(format!("write {length} bytes at offset {offset} of"), destination, error)
        }
        CopyError::Gone { end: which, error } => Failure::io(format!("go on to {verb}"), end(which), error),
        CopyError::Flush(error) => Failure::io("flush", destination, error),
        CopyError::Verify { offset, length } => {
            let cause = format!(
                "it differs from what was read from {source} in the {length} bytes at offset {offset}"
            );
            Failure::new(Ending::Mismatch, "verify", destination, cause)
                .hint("nothing else may write to it meanwhile; if nothing did, suspect the medium")
        }
        error => Failure::failed(format!("{verb} {source} to"), destination, error),
    }
}

fn interrupted(failure: Failure, job: &Job<'_>, phase: Phase, bytes_safe: u64) -> Failure {
    let mut failure = failure;
    if phase == Phase::Verify {
        failure.cause +=
            &format!("; all {bytes_safe} bytes are copied and durable, but not all were read back");
        return failure.hint("hikyaku compare reads both again");
    }
    failure.cause += &format!("; the first {bytes_safe} bytes are copied and durable");
    let plan = &job.request.plan;
    let (src, dst) = (plan.src_offset + bytes_safe, plan.dst_offset + bytes_safe);
    let size =
        plan.size.map(|size| format!(" --size {}", size.saturating_sub(bytes_safe))).unwrap_or_default();
    failure.hint(format!(
        "the same command with --force --src-offset {src} --dst-offset {dst}{size} copies the rest"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_of_nothing_are_nothing() {
        assert_eq!(cpu_s_per_gb(CpuTime::default(), 0), (0.0, 0.0));
        assert_eq!(mb_per_s(1, 0.0), 0.0);
        assert_eq!(mb_per_s(5_000_000, 0.5), 10.0);
        let cpu = CpuTime { user: Duration::from_secs(1), system: Duration::from_secs(2) };
        assert_eq!(cpu_s_per_gb(cpu, 500_000_000), (2.0, 4.0));
    }
}
