//! `status`: what the processes of this machine do. Rates and percentiles come from two readings of their counters.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::copy;
use crate::context::Context;
use crate::control::Request;
use crate::control::client::{self, Process};
use crate::error::{Exit, Failure};
use crate::output::{self, Table};
use crate::units;

pub(super) const INTERVAL_DEFAULT: Duration = Duration::from_secs(1);
const CLASSES: [&str; 3] = ["read", "write", "other"];

/// Show running servers with their LUNs and sessions, and copies
///
/// With rates and service times, which are those of an interval of one second that the command waits for.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hikyaku status
  hikyaku status --interval 10s --json

P50 and P99 are service times at the target: from a command's header to its
response in the send queue. RETRIES counts commands answered with BUSY or TASK
SET FULL, which an initiator sends again.")]
pub(crate) struct Args {
    /// Interval of the rates; 0s: counters only
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::parse_duration)]
    interval: Duration,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<Exit, Failure> {
    print(context, args.json, None, args.interval)
}

pub(super) fn print(
    context: &Context,
    json: bool,
    pid: Option<u32>,
    interval: Duration,
) -> Result<Exit, Failure> {
    let found = client::find();
    let chosen = found.processes.iter().filter(|process| pid.is_none_or(|pid| process.pid == pid));
    let mut all = read(chosen);
    if !interval.is_zero() && !all.is_empty() {
        let started = Instant::now();
        std::thread::sleep(interval);
        let before: Vec<Value> = all.iter().map(|(_, status)| status.clone()).collect();
        let seconds = started.elapsed().as_secs_f64();
        let chosen: Vec<Process> = all.into_iter().map(|(process, _)| process).collect();
        all = read(chosen.iter());
        for (_, status) in &mut all {
            if let Some(before) = before.iter().find(|before| before["pid"] == status["pid"]) {
                add_rates(before, status, seconds);
            }
        }
    }
    let statuses: Vec<Value> = all.into_iter().map(|(_, status)| status).collect();
    let copies = if pid.is_none() { resumable(context, &statuses) } else { Vec::new() };
    if json {
        let object = json!({
            "schema": output::SCHEMA,
            "processes": statuses,
            "processes_of_others": found.denied,
            "resumable_copies": copies,
        });
        output::json(&object);
        return Ok(Exit::Done);
    }
    for status in &statuses {
        show(status);
    }
    for copy in &copies {
        let text = |name: &str| text(&copy[name]);
        output::line(&format!("interrupted copy  {} -> {}", text("source"), text("destination")));
        output::line(&format!("  {}", text("command")));
    }
    if statuses.is_empty() && copies.is_empty() {
        output::line("no server or copy of this user is running");
    }
    if found.denied > 0 {
        context.remark(&format!("{} of other users; sudo hikyaku status shows them", found.denied));
    }
    Ok(Exit::Done)
}

/// The status of each process, asked at once: one that does not answer delays no other. Those without an answer are left out.
fn read<'a>(processes: impl Iterator<Item = &'a Process>) -> Vec<(Process, Value)> {
    let ask = |process: &'a Process| Some((process.clone(), process.ask(&Request::Status {}).ok()?));
    std::thread::scope(|scope| {
        let asked: Vec<_> = processes.map(|process| scope.spawn(move || ask(process))).collect();
        asked.into_iter().filter_map(|thread| thread.join().ok()?).collect()
    })
}

/// The interrupted copies, without those that are running: they have a journal too.
fn resumable(context: &Context, running: &[Value]) -> Vec<Value> {
    let same = |copy: &Value, running: &Value| {
        ["source", "destination"].iter().all(|end| copy[*end] == running[*end])
    };
    let mut copies = copy::interrupted(context);
    copies.retain(|copy| !running.iter().any(|running| same(copy, running)));
    copies
}

/// Adds rates and percentiles of the time between two readings to each session and LUN of the later one.
fn add_rates(before: &Value, after: &mut Value, seconds: f64) {
    for (list, fields) in
        [("sessions", &["tsih", "since_unix_s"][..]), ("luns", &["target", "lun", "storage"])]
    {
        let key = |one: &Value| fields.iter().map(|field| one[*field].to_string()).collect::<Vec<_>>();
        let earlier: HashMap<Vec<String>, &Value> =
            before[list].as_array().into_iter().flatten().map(|one| (key(one), one)).collect();
        for one in after[list].as_array_mut().into_iter().flatten() {
            // A session that began meanwhile counts from zero.
            let rates = rates(earlier.get(&key(one)).copied().unwrap_or(&Value::Null), one, seconds);
            let fields = rates.as_object().cloned().unwrap_or_default();
            one.as_object_mut().expect("an object").extend(fields);
        }
    }
}

fn rates(before: &Value, after: &Value, seconds: f64) -> Value {
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let grown = |group: &str, class: &str| {
        let count = number(&after[group][class]).saturating_sub(number(&before[group][class]));
        units::rounded(count as f64 / seconds)
    };
    let iops: f64 = CLASSES.iter().map(|class| grown("commands", class)).sum();
    let times = grown_times(&before["times_us"], &after["times_us"]);
    json!({
        "interval_s": units::rounded(seconds),
        "read_bytes_per_s": grown("bytes", "read"),
        "write_bytes_per_s": grown("bytes", "write"),
        "iops": iops,
        "p50_us": percentile(&times, 0.50),
        "p99_us": percentile(&times, 0.99),
    })
}

/// The growth of the counts of all classes, by upper bound in microseconds, ascending.
fn grown_times(before: &Value, after: &Value) -> Vec<(u64, u64)> {
    let counts = |times: &Value| -> HashMap<u64, u64> {
        let mut all = HashMap::new();
        for step in CLASSES.iter().flat_map(|class| times[*class].as_array().into_iter().flatten()) {
            if let (Some(bound), Some(count)) = (step[0].as_u64(), step[1].as_u64()) {
                *all.entry(bound).or_insert(0) += count;
            }
        }
        all
    };
    let before = counts(before);
    let grown = counts(after)
        .into_iter()
        .map(|(bound, count)| (bound, count.saturating_sub(before.get(&bound).copied().unwrap_or_default())));
    let mut grown: Vec<(u64, u64)> = grown.filter(|(_, count)| *count > 0).collect();
    grown.sort_unstable();
    grown
}

/// The upper bound below which this share of the commands ended; `None` without commands.
fn percentile(times: &[(u64, u64)], share: f64) -> Option<u64> {
    let all: u64 = times.iter().map(|(_, count)| count).sum();
    let rank = ((all as f64 * share).ceil() as u64).max(1);
    let mut passed = 0;
    let reached = |(_, count): &&(u64, u64)| {
        passed += count;
        passed >= rank
    };
    times.iter().find(reached).map(|(bound, _)| *bound)
}

fn show(status: &Value) {
    let listen: Vec<String> = status["listen"].as_array().into_iter().flatten().map(text).collect();
    if status["command"] == "copy" {
        let ends = format!("{} -> {}", text(&status["source"]), text(&status["destination"]));
        let said = if status["text"].is_string() { text(&status["text"]) } else { "beginning".to_owned() };
        let fields = [format!("copy {}", number(&status["pid"])), ends, said];
        output::line(&output::fields(&fields, output::columns()));
        return;
    }
    let configuration = status["configuration"].as_str();
    let mut fields = vec![
        format!("{} {}", text(&status["command"]), number(&status["pid"])),
        format!("up {}", since(&status["since_unix_s"])),
        listen.join(" "),
        configuration.map_or("(no configuration file)".into(), output::printable_name).into_owned(),
    ];
    fields.extend((status["draining"] == true).then(|| "draining".to_owned()));
    output::line(&output::fields(&fields, output::columns()));
    if let Some(next) = status["next_key"]["fingerprint"].as_str() {
        output::line(&format!(
            "next key {next} announced for {}; {} since then",
            since(&status["next_key"]["since_unix_s"]),
            units::counted(status["next_key"]["sealed_logins"].as_u64().unwrap_or_default(), "sealed login"),
        ));
    }
    let mut luns = Table::new(&[
        "target", "lun", "storage", "size", "mode", "state", "read", "write", "iops", "p50", "p99",
    ]);
    for lun in status["luns"].as_array().into_iter().flatten() {
        let size = lun["size_bytes"].as_u64().map_or("-".to_owned(), units::bytes);
        let named = [text(&lun["target"]), number(&lun["lun"]), text(&lun["storage"]), size];
        let state = [mode(lun["read_only"] == true), text(&lun["state"])];
        luns.row(named.into_iter().chain(state).chain(measured(lun)).collect());
    }
    luns.print();
    let mut sessions = Table::new(&[
        "session",
        "initiator",
        "peer",
        "user",
        "protection",
        "luns",
        "read",
        "write",
        "iops",
        "p50",
        "p99",
        "retries",
        "since",
        "target",
    ]);
    for session in status["sessions"].as_array().into_iter().flatten() {
        sessions.row(session_cells(session));
    }
    sessions.print();
    if let Some(refused @ 1..) = status["connections_refused"].as_u64() {
        output::line(&format!(
            "{} ended without a login since the start; the log has the reasons",
            units::counted(refused, "connection")
        ));
    }
}

/// A name or another text of one line; `-` where the process, which may be of another release, gives none.
fn text(value: &Value) -> String {
    value.as_str().map_or("-".into(), output::printable_name).into_owned()
}

/// A number; `-` where the process gives none.
fn number(value: &Value) -> String {
    value.as_u64().map_or("-".to_owned(), |number| number.to_string())
}

fn session_cells(session: &Value) -> Vec<String> {
    let user = [&session["key_name"], &session["chap_user"]].into_iter().find_map(Value::as_str);
    let named = [
        number(&session["tsih"]),
        text(&session["initiator"]),
        text(&session["peer"]),
        user.unwrap_or("-").to_owned(),
        protection(&session["protection"]),
        luns_of(session),
    ];
    let retries = number(&session["retries_requested"]);
    let last = [retries, since(&session["since_unix_s"]), text(&session["target"])];
    named.into_iter().chain(measured(session)).chain(last).collect()
}

fn mode(read_only: bool) -> String {
    if read_only { "ro" } else { "rw" }.to_owned()
}

fn protection(protection: &Value) -> String {
    let kind = protection["kind"].as_str().unwrap_or("-");
    match protection["suite"].as_str() {
        Some(suite) => format!("{kind} {suite}"),
        None => kind.to_owned(),
    }
}

fn luns_of(session: &Value) -> String {
    if session["target"].is_null() {
        return "(discovery)".to_owned();
    }
    let one =
        |lun: &Value| format!("{}{}", number(&lun["lun"]), if lun["read_only"] == true { ",ro" } else { "" });
    session["luns"].as_array().into_iter().flatten().map(one).collect::<Vec<_>>().join(" ")
}

/// Read and write rate, IOPS and percentiles; `-` without an interval.
fn measured(one: &Value) -> [String; 5] {
    let rate = |name: &str| one[name].as_f64().map_or("-".to_owned(), units::rate);
    let time = |name: &str| {
        one[name].as_u64().map_or("-".to_owned(), |us| units::duration(Duration::from_micros(us)))
    };
    let iops = one["iops"].as_f64().map_or("-".to_owned(), |iops| format!("{iops:.0}"));
    [rate("read_bytes_per_s"), rate("write_bytes_per_s"), iops, time("p50_us"), time("p99_us")]
}

/// The time since a moment in seconds since 1970.
fn since(moment: &Value) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    moment
        .as_u64()
        .map_or("-".to_owned(), |then| units::duration(Duration::from_secs(now.saturating_sub(then))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(reads: u64, bytes: u64, times: &Value) -> Value {
        json!({
            "commands": { "read": reads, "write": 0, "other": 0 },
            "bytes": { "read": bytes, "write": 0, "other": 0 },
            "times_us": { "read": times, "write": [], "other": [[7, 1]] },
        })
    }

    #[test]
    fn rates_are_those_of_the_interval() {
        let before = usage(100, 4096, &json!([[10, 90], [500, 10]]));
        let after = usage(300, 4096 + 1_000_000, &json!([[10, 189], [100, 99], [500, 12]]));
        let rates = rates(&before, &after, 2.0);
        assert_eq!(rates["read_bytes_per_s"], 500_000.0);
        assert_eq!((rates["iops"].as_f64(), &rates["write_bytes_per_s"]), (Some(100.0), &json!(0.0)));
        assert_eq!((&rates["p50_us"], &rates["p99_us"]), (&json!(100), &json!(100)));
    }

    #[test]
    fn percentiles_of_few_commands() {
        assert_eq!(percentile(&[], 0.5), None);
        assert_eq!(percentile(&[(10, 1)], 0.99), Some(10));
        let times = [(10, 98), (20, 1), (30, 1)];
        assert_eq!([0.5, 0.98, 0.99, 1.0].map(|share| percentile(&times, share)), [10, 10, 20, 30].map(Some));
    }

    #[test]
    fn a_session_that_began_meanwhile_counts_from_zero() {
        let mut after = json!({ "sessions": [usage(10, 40_960, &json!([[10, 10]]))], "luns": [] });
        add_rates(&json!({ "sessions": [] }), &mut after, 1.0);
        assert_eq!(after["sessions"][0]["iops"], 11.0 - 1.0);
    }

    #[test]
    fn what_a_process_does_not_say_is_a_dash() {
        assert_eq!(session_cells(&json!({})).join(" "), "- - - - - (discovery) - - - - - - - -");
        assert_eq!(luns_of(&json!({ "target": "iqn.x", "luns": [{}] })), "-");
        assert_eq!(text(&json!("a\nb\u{1b}")), "a\\u{a}b\\u{1b}");
    }
}
