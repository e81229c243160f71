//! `--report`: one HTML file about a copy: its figures, its course over time, and what limited it.
//!
//! The file is self-contained: no scripts, no fonts, pictures as inline SVG. Its content comes from the request
//! ([`Requested`]), the engine's observations ([`Series`]), and the final object of `--json`.

mod picture;

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Instant, SystemTime};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::Value;

use crate::network::Network;
use crate::printable::{printable, printable_json};
use crate::{Connection, Ending, Failure, Host, Place, Readers, Series, shell, units};

/// The first bytes of every report; a file without them is never overwritten.
const MARK: &str = "<!DOCTYPE html>\n<!-- report of hikyaku copy -->\n";

/// What a copy collects for its report. Created before the copy; its stages add to it.
#[derive(Debug)]
pub struct Record {
    pub series: Series,
    /// The final object of `--json`; `None` if the copy did not complete.
    pub outcome: Option<Value>,
    pub network: Rc<[Connection]>,
    pub(crate) followed: Network,
}

impl Record {
    /// An empty record; its time starts now.
    pub fn new() -> Self {
        let series = Series::new(Instant::now());
        Self { series, outcome: None, network: [].into(), followed: Network::default() }
    }
}

impl Default for Record {
    fn default() -> Self {
        Self::new()
    }
}

/// The request as shown in a report, without secrets.
#[derive(Clone, Debug, Default)]
pub struct Requested {
    pub source: String,
    pub destination: String,
    pub src_offset: u64,
    pub dst_offset: u64,
    /// Arguments of a command line that repeats the copy, each quoted for a shell.
    pub command: Vec<String>,
}

/// A report to be written: [`Report::begin`] before the copy, [`Report::end`] after it.
#[derive(Debug)]
pub struct Report {
    path: PathBuf,
    began: SystemTime,
    started: Instant,
}

impl Report {
    /// Checks, before anything is copied, that the file can be written and is absent or an earlier report.
    pub fn begin(path: &Path) -> Result<Self, Failure> {
        file(path)?;
        Ok(Self { path: path.to_owned(), began: SystemTime::now(), started: Instant::now() })
    }

    /// Writes the report, however the copy ended, and returns the result of the copy.
    pub fn end(
        &self,
        host: &dyn Host,
        requested: &Requested,
        record: &Record,
        result: Result<Ending, Failure>,
    ) -> Result<Ending, Failure> {
        let page = self.page(requested, record, &result);
        let written = file(&self.path).and_then(|place| place.write(|out| out.write_all(page.as_bytes())));
        match (written, &result) {
            (Ok(()), _) => result,
            (Err(mut failure), Ok(_)) => {
                failure.cause += "; the result of the copy itself is as printed";
                Err(failure)
            }
            (Err(failure), Err(_)) => {
                host.warn(&failure.to_string());
                result
            }
        }
    }

    fn page(&self, requested: &Requested, record: &Record, result: &Result<Ending, Failure>) -> String {
        let Requested { source, destination, src_offset, dst_offset, command } = requested;
        let headline = headline(source, destination, result);
        let took = units::duration(self.started.elapsed());
        let mut page = format!(
            "{MARK}<html lang=\"en\"><head><meta charset=\"utf-8\"/>\
             <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"/>\
             <meta name=\"color-scheme\" content=\"light dark\"/><title>{title}</title><style>{STYLE}{}</style></head>\n\
             <body><h1>{title}</h1>\n<p class=\"verdict\">{verdict}</p>\n",
            picture::STYLE,
            title = escaped(&headline),
            verdict = escaped(&verdict(record, result)),
        );
        let mut table = Table::new();
        table.row("From", &place(source, *src_offset));
        table.row("To", &place(destination, *dst_offset));
        table.row("When", &format!("{}, for {took}", units::utc(self.began)));
        let ending = result.as_ref().map_or_else(|failure| failure.ending, |ending| *ending);
        table.row("Exit code", &ending.code().to_string());
        if let Some(outcome) = &record.outcome {
            figures(&mut table, outcome);
        } else if let Some(last) = record.series.last() {
            let far = format!("{} of {}", units::bytes(last.bytes), units::bytes(last.total));
            table.row("When it ended", &format!("{}: {far}, {}", last.phase, units::retries(last.retries)));
        }
        page += &table.end();
        let intervals = record.series.intervals();
        if !intervals.is_empty() {
            page += &picture::draw(&intervals);
        }
        page.extend(record.network.iter().map(network));
        if let Some(outcome) = &record.outcome {
            page.extend(outcome["path"].as_array().into_iter().flatten().map(path));
        }
        if let Some(outcome) = &record.outcome {
            page += &unreadable(outcome);
        }
        let _ = write!(page, "<h2>To repeat it</h2>\n<pre>{}</pre>\n", escaped(&shell::line(command)));
        if let Err(failure) = result
            && !failure.hint.is_empty()
        {
            let _ = write!(page, "<h2>To go on</h2>\n<pre>{}</pre>\n", escaped(&failure.hint));
        }
        if let Some(outcome) = &record.outcome {
            let all = serde_json::to_string_pretty(outcome).expect("a value is JSON");
            let _ = write!(
                page,
                "<h2>All figures, as --json has them</h2>\n<pre>{}</pre>\n",
                escaped(&printable_json(&all))
            );
        }
        let _ = writeln!(page, "<p>hikyaku {}</p></body></html>", env!("CARGO_PKG_VERSION"));
        page
    }
}

fn file(path: &Path) -> Result<Place, Failure> {
    Place::new(path, "report", &[MARK.as_bytes()], Readers::All)
}

fn headline(source: &str, destination: &str, result: &Result<Ending, Failure>) -> String {
    match result {
        Ok(Ending::Unreadable) => format!("Copied {source} to {destination}, but for what cannot be read"),
        Ok(_) => format!("Copied {source} to {destination}"),
        Err(failure) => match failure.ending {
            Ending::Interrupted(_) => format!("Interrupted: the copy of {source} to {destination}"),
            Ending::Refused => format!("Refused: the copy of {source} to {destination}"),
            Ending::Mismatch => format!("Not equal: {source} and its copy {destination}"),
            _ => format!("Failed: the copy of {source} to {destination}"),
        },
    }
}

/// One sentence about what limited the copy.
fn verdict(record: &Record, result: &Result<Ending, Failure>) -> String {
    if let Err(failure) = result {
        return format!("Cannot {} {}: {}.", failure.attempted, failure.object, failure.cause);
    }
    let Some(outcome) = &record.outcome else { return "The copy reported no figures.".to_owned() };
    let share = |name: &str| {
        format!("{:.0} % of the time", number(outcome, &["shares", name]).unwrap_or(0.0) * 100.0)
    };
    let of_end = |end: &str| {
        let is_network =
            record.network.iter().any(|connection| connection.end == end && connection.is_limit());
        if is_network { format!("the network of the {end}") } else { format!("the {end}") }
    };
    let p50 = |side: &str| number(outcome, &[side, "latency_us", "p50"]).unwrap_or(0.0) / 1e3;
    match outcome["limited_by"].as_str().unwrap_or_default() {
        limit @ "source" => format!(
            "Limited by {}: {} went to waiting for reads, of which half took more than {:.2} ms.",
            of_end(limit),
            share("source"),
            p50("read")
        ),
        limit @ "destination" => format!(
            "Limited by {}: {} went to waiting for writes, of which half took more than {:.2} ms.",
            of_end(limit),
            share("destination"),
            p50("write")
        ),
        "balanced" => format!(
            "Limited by source and destination about equally: {} and {}.",
            share("source"),
            share("destination")
        ),
        "rate" => format!("Limited by the requested rate, {}.", share("rate")),
        "impact" => {
            let who = match outcome["impact"]["disk"].as_str() {
                Some(disk) => format!("other programs' reads of {disk}"),
                None => "--impact none".to_owned(),
            };
            format!("Limited by {who}, {}.", share("impact"))
        }
        "memory" => format!("Limited by the memory for chunks, {}.", share("memory")),
        "cpu" => format!("Limited by this host's processor: the copying thread was busy {}.", share("cpu")),
        "target" => "Limited by the target, which copied by itself.".to_owned(),
        other => format!("Limited by {other}."),
    }
}

fn figures(table: &mut Table, outcome: &Value) {
    let text = |name: &str| outcome[name].as_str();
    let value = |name: &str| outcome[name].as_f64().filter(|value| *value != 0.0);
    let size = |name: &str| outcome[name].as_u64().filter(|bytes| *bytes > 0).map(units::bytes);
    let seconds = |name: &str| value(name).map(|seconds| format!("{seconds:.3} s"));
    let bytes = outcome["bytes"].as_u64().unwrap_or(0);
    table.row("Bytes", &format!("{bytes} ({})", units::bytes(bytes)));
    if let Some(data) = outcome["data_bytes"].as_u64().filter(|data| *data < bytes) {
        table.row("Of them moved", &format!("{data} ({}), holes apart", units::bytes(data)));
    }
    if let (Some(seconds), Some(rate)) = (value("seconds"), value("data_mb_per_s")) {
        table.row("Rate", &format!("{rate:.1} MB/s over {seconds:.3} s"));
    }
    for (name, side) in [("Reads", "read"), ("Writes", "write")] {
        let figure = |name: &str| number(outcome, &[side, "latency_us", name]).map(|us| us / 1e3);
        if let (Some(ops), Some(p50), Some(p99), Some(max)) =
            (outcome[side]["ops"].as_u64(), figure("p50"), figure("p99"), figure("max"))
        {
            table.row(
                name,
                &format!(
                    "{ops}; latency: half within {p50:.2} ms, 99 % within {p99:.2} ms, longest {max:.2} ms"
                ),
            );
        }
    }
    if let (Some(user), Some(system)) =
        (number(outcome, &["cpu_s_per_gb", "user"]), number(outcome, &["cpu_s_per_gb", "system"]))
    {
        table.row(
            "Processor time",
            &format!("{:.3} s/GB ({user:.3} user, {system:.3} system)", user + system),
        );
    }
    let rows = [
        ("Zeroes not moved", size("zero_bytes_skipped")),
        ("Copied before", size("resumed_bytes")),
        ("Chunk", size("chunk")),
        ("Most chunks in flight", value("depth_max").map(|depth| depth.to_string())),
        ("Flush", seconds("flush_s")),
        ("Read back and compared", seconds("verify_s").filter(|_| outcome["verified"] == true)),
        ("Requests repeated", value("retries").map(|count| count.to_string())),
        ("BLAKE3", text("blake3").map(str::to_owned)),
    ];
    for (name, value) in rows {
        if let Some(value) = value {
            table.row(name, &value);
        }
    }
    let remarks = [
        ("source_consistent", false, "The source was in use: the copy may mix several moments of it."),
        ("copied_again", true, "The destination lost its cache: what was not durable was copied twice."),
        ("verified", false, "Not read back."),
    ];
    for (name, when, remark) in remarks {
        if outcome[name] == when {
            table.row("Note", remark);
        }
    }
}

/// The section about a connection: its verdict, what to type, and its pictures, each an image of its own, whose styles
/// stay with it.
fn network(connection: &Connection) -> String {
    let verdict = &connection.found.verdict;
    let mut html = format!(
        "<h2>Network of the {}</h2>\n<p>{}</p>\n",
        connection.end,
        escaped(&format!("TCP, while data moved: {}", verdict.sentence))
    );
    let mut table = Table::new();
    for advice in &verdict.advice {
        let untried = if advice.is_tried { "" } else { " (not tried by this project)" };
        table.row(advice.system, &format!("{}{untried}", advice.line));
    }
    for note in &verdict.notes {
        table.row("Note", note);
    }
    table.row("Samples", &connection.found.samples.to_string());
    html += &table.end();
    for figure in connection.found.figures() {
        let image = BASE64_STANDARD.encode(figure.text);
        let _ = writeln!(
            html,
            "<img class=\"network\" alt=\"{} over time\" src=\"data:image/svg+xml;base64,{image}\"/>",
            escaped(figure.name)
        );
    }
    html
}

/// The section about the path to an end.
fn path(object: &Value) -> String {
    let mut table = Table::new();
    let ms = |name: &str| number(object, &[name]).unwrap_or(0.0);
    let bytes = |name: &str| units::bytes(object[name].as_u64().unwrap_or(0));
    table.row("Round trip", &format!("{:.2} ms, the least {:.2} ms", ms("rtt_ms"), ms("rtt_least_ms")));
    table.row("Most in flight", &bytes("in_flight_max_bytes"));
    let forced = if object["send_buffer_forced"] == true { " (beyond tcp_wmem)" } else { "" };
    table.row(
        "Socket buffers",
        &format!("send {}{forced}, receive {}", bytes("send_buffer_bytes"), bytes("receive_buffer_bytes")),
    );
    if let Some(name) = object["congestion_control"].as_str() {
        table.row("Congestion control", name);
    }
    for missing in object["missing"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        table.row("Missing", missing);
    }
    let end = object["end"].as_str().unwrap_or_default();
    format!("<h2>Path to the {}</h2>\n{}", escaped(end), table.end())
}

/// The section about areas that could not be read; empty without such areas.
fn unreadable(outcome: &Value) -> String {
    let Some(areas) = outcome["unreadable"].as_array().filter(|areas| !areas.is_empty()) else {
        return String::new();
    };
    let count = outcome["unreadable_areas"].as_u64().unwrap_or(0);
    let mut table = Table::new();
    table.row("Offset", "Bytes");
    for area in areas {
        table.row(&area[0].to_string(), &area[1].to_string());
    }
    let bytes = outcome["unreadable_bytes"].as_u64().unwrap_or(0);
    let more =
        if count > areas.len() as u64 { format!("; the first {}", areas.len()) } else { String::new() };
    format!("<h2>Unreadable: {bytes} bytes in {}{more}</h2>\n{}", units::counted(count, "area"), table.end())
}

fn number(value: &Value, path: &[&str]) -> Option<f64> {
    path.iter().fold(value, |value, name| &value[name]).as_f64()
}

fn place(words: &str, offset: u64) -> String {
    if offset > 0 { format!("{words}, from byte {offset}") } else { words.to_owned() }
}

/// Escapes text for HTML content and quoted attributes. Control characters are invalid in HTML, and direction marks
/// reorder it: both are escaped as on a terminal.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in printable(text).chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            c => out.push(c),
        }
    }
    out
}

struct Table(String);

impl Table {
    fn new() -> Self {
        Self("<table>\n".to_owned())
    }

    fn row(&mut self, name: &str, value: &str) {
        let _ = writeln!(self.0, "<tr><th>{}</th><td>{}</td></tr>", escaped(name), escaped(value));
    }

    fn end(self) -> String {
        self.0 + "</table>\n"
    }
}

const STYLE: &str = ".network{display:block;width:100%}body{font:15px/1.5 sans-serif;max-width:1040px;margin:2em auto;padding:0 1em;color:#111;background:#fff}\
h1{font-size:1.4em;overflow-wrap:anywhere}h2{font-size:1.1em;margin-top:1.6em}.verdict{font-size:1.1em}\
table{border-collapse:collapse}th{text-align:left;font-weight:normal;color:#555;padding:.1em 1.5em .1em 0;vertical-align:top}\
td{overflow-wrap:anywhere}pre{background:#f3f3f3;padding:.7em;white-space:pre-wrap;overflow-wrap:anywhere}\
td{padding:0}@media(max-width:480px){body{margin:1em auto}th,td{display:block;padding-right:0}td{margin-bottom:.4em}}\
@media print{body{max-width:none;margin:0}h2{break-after:avoid}tr{break-inside:avoid}}\
@media screen and (prefers-color-scheme:dark){body{color:#e6e6e6;background:#161616}th{color:#aaa}pre{background:#262626}}";

#[cfg(test)]
mod tests;
