//! The files for Prometheus and Grafana in `contrib`: promtool accepts them, each alert fires, and each expression uses names
//! and labels that a scrape has.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{Home, LIMIT, NAME, OPEN, http};
use crate::pdu::Session;
use crate::target::private_file;
use crate::{Context, Output, Running, Server, free_port, program, run, wait_until};

const TOKEN: &str = "0123456789abcdef";
/// Labels that Prometheus adds to each series.
const ADDED: [&str; 2] = ["job", "instance"];
const BEFORE_LABELS: [&str; 5] = ["by", "without", "on", "ignoring", "group_left"];
const OPERATORS: [&str; 4] = ["and", "or", "unless", "bool"];

fn promtool(context: &Context, arguments: &[&str]) -> Result<Output> {
    run(program("promtool")?.args(arguments).current_dir(&context.repository), LIMIT)
}

pub(super) fn rules(context: &Context) -> Result<()> {
    promtool(context, &["check", "rules", "contrib/alerts.yml"])?.success()?;
    promtool(context, &["test", "rules", "tests/monitoring/alerts.yml"])?.success()?;
    promtool(context, &["check", "config", "--syntax-only", "contrib/prometheus.yml"])?.success()?;
    let tests = std::fs::read_to_string(context.repository.join("tests/monitoring/alerts.yml"))?;
    for name in values(&contrib(context, "alerts.yml")?, "- alert:") {
        let line = format!("alertname: {name}\n");
        let fires = tests.split(&line).skip(1);
        let fires = fires.filter(|test| !test.lines().nth(1).unwrap_or_default().ends_with("[]"));
        ensure!(fires.count() > 0, "no test in which {name} fires");
    }
    Ok(())
}

fn contrib(context: &Context, name: &str) -> Result<String> {
    let path = context.repository.join("contrib").join(name);
    std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
}

/// The values of a key in a YAML file: the rest of its line, or the block below it.
fn values(yaml: &str, key: &str) -> Vec<String> {
    let mut lines = yaml.lines().peekable();
    let mut found = Vec::new();
    while let Some(line) = lines.next() {
        let Some(value) = line.trim_start().strip_prefix(key) else { continue };
        let mut value = value.trim().to_owned();
        if value == "|" {
            let depth = |line: &str| line.len() - line.trim_start().len();
            value.clear();
            while let Some(more) = lines.next_if(|next| depth(next) > depth(line)) {
                value = format!("{value} {}", more.trim());
            }
        }
        found.push(value);
    }
    found
}

/// A target of a panel: its expression and the form of its legend.
struct Query {
    panel: String,
    expression: String,
    legend: String,
}

fn dashboard(context: &Context) -> Result<Vec<Query>> {
    let dashboard: Value = serde_json::from_str(&contrib(context, "grafana-dashboard.json")?)?;
    let version = dashboard["schemaVersion"].as_u64();
    ensure!(version >= Some(38), "Grafana 10 has schema 38, this one {version:?}");
    let mut queries = Vec::new();
    for panel in dashboard["panels"].as_array().context("no panels")? {
        let text = |value: &Value| value.as_str().map(str::to_owned).context("no text");
        for target in panel["targets"].as_array().context("no targets")? {
            queries.push(Query {
                panel: text(&panel["title"])?,
                expression: text(&target["expr"])?,
                legend: text(&target["legendFormat"])?,
            });
        }
    }
    ensure!(queries.len() > 12, "{} queries", queries.len());
    Ok(queries)
}

fn serve(context: &Context, home: &Home) -> Result<(Server, String)> {
    private_file(home.path("token"), &format!("{TOKEN}\n"))?;
    let with = ["a.img", "--iqn", OPEN, "--metrics", "127.0.0.1:0", "--metrics-token-file", "token"];
    let server = home.serve(context, &with, 1)?;
    let line = server.logs(0, "metrics: http://")?;
    let address = line.split("http://").nth(1).and_then(|rest| rest.split('/').next());
    Ok((server, address.context("no address")?.to_owned()))
}

/// Every expression of rules and dashboard names series and labels of a real scrape.
pub(super) fn expressions(context: &Context) -> Result<()> {
    let home = Home::new()?;
    let (_server, address) = serve(context, &home)?;
    let request = format!("GET /metrics HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n");
    let (_, body) = http(&address, &request)?;
    let mut series = scraped(&body)?;
    series.insert("up".to_owned(), BTreeSet::new());
    for labels in series.values_mut() {
        labels.extend(ADDED.map(str::to_owned));
    }
    let queries = dashboard(context)?;
    let alerts = contrib(context, "alerts.yml")?;
    let alerts = values(&alerts, "expr:").into_iter().map(|text| ("alerts.yml".to_owned(), text, Vec::new()));
    let panels = queries.iter().map(|query| {
        let legend = query.legend.split("{{").skip(1).filter_map(|rest| rest.split("}}").next());
        (query.panel.clone(), query.expression.clone(), legend.map(|name| name.trim().to_owned()).collect())
    });
    for (place, expression, legend) in alerts.chain(panels) {
        let used = Used::of(&expression);
        ensure!(!used.series.is_empty(), "{place}: {expression} names no series");
        for (name, labels) in &used.series {
            let known = series.get(name).with_context(|| format!("{place}: no scrape has {name}"))?;
            for label in labels.iter().chain(&used.grouping).chain(&legend) {
                ensure!(known.contains(label), "{place}: {name} has no label {label}");
            }
        }
    }
    // Their syntax, as rules: JSON is YAML.
    let rules = queries.iter().enumerate().map(|(number, query)| {
        json!({ "record": format!("a:{number}"), "expr": query.expression.replace("$__rate_interval", "1m") })
    });
    let rules = json!({ "groups": [{ "name": "dashboard", "rules": rules.collect::<Vec<_>>() }] });
    let path = home.path("dashboard.yml");
    std::fs::write(&path, rules.to_string())?;
    promtool(context, &["check", "rules", &path.display().to_string()])?.success().map(drop)
}

/// Labels by name of series, of a scrape in the OpenMetrics format.
fn scraped(body: &str) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let mut series: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in body.lines().filter(|line| !line.starts_with('#')) {
        let used = Used::of(line.rsplit_once(' ').context("no value")?.0);
        let (name, labels) = used.series.into_iter().next().with_context(|| format!("no name: {line}"))?;
        series.entry(name).or_default().extend(labels);
    }
    Ok(series)
}

/// Names in an expression of PromQL, or in a line of a scrape.
#[derive(Debug, Default, PartialEq, Eq)]
struct Used {
    /// Series and the labels that their selectors name.
    series: Vec<(String, BTreeSet<String>)>,
    /// Labels by which results are grouped.
    grouping: BTreeSet<String>,
}

impl Used {
    fn of(expression: &str) -> Self {
        let mut used = Self::default();
        let mut rest = expression;
        while let Some(first) = rest.chars().next() {
            let word = rest.find(|c: char| !is_of_name(c)).map_or(rest, |end| &rest[..end]);
            if first == '[' {
                rest = rest.split_once(']').map_or("", |(_, after)| after);
            } else if word.is_empty() {
                rest = &rest[first.len_utf8()..];
            } else {
                rest = used.word(word, rest[word.len()..].trim_start());
            }
        }
        used
    }

    /// Takes a word and its labels; returns what follows.
    fn word<'a>(&mut self, word: &str, after: &'a str) -> &'a str {
        let next = after.split(|c| !is_of_name(c)).next().unwrap_or_default();
        let is_aggregation = !BEFORE_LABELS.contains(&word) && BEFORE_LABELS.contains(&next);
        if word.starts_with(|c: char| c.is_ascii_digit()) || OPERATORS.contains(&word) || is_aggregation {
            return after;
        }
        if let Some(list) = after.strip_prefix('(') {
            if !BEFORE_LABELS.contains(&word) {
                return list;
            }
            let (labels, after) = list.split_once(')').unwrap_or((list, ""));
            self.grouping.extend(labels.split(',').map(|label| label.trim().to_owned()));
            return after;
        }
        let (labels, after) = match after.strip_prefix('{') {
            Some(selector) => labels(selector),
            None => (BTreeSet::new(), after),
        };
        self.series.push((word.to_owned(), labels));
        after
    }
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == ':' || c == '.'
}

/// The labels of a selector, and what follows it.
fn labels(selector: &str) -> (BTreeSet<String>, &str) {
    let (mut labels, mut name, mut quoted, mut escaped) = (BTreeSet::new(), String::new(), false, false);
    for (at, c) in selector.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = quoted,
            '"' => quoted = !quoted,
            _ if quoted => {}
            '}' => return (labels, &selector[at + 1..]),
            c if is_of_name(c) => name.push(c),
            _ if name.is_empty() => {}
            _ => drop(labels.insert(std::mem::take(&mut name))),
        }
    }
    (labels, "")
}

/// A Prometheus with the example configuration scrapes a server and answers every query of the dashboard with data.
pub(super) fn prometheus(context: &Context) -> Result<()> {
    let home = Home::new()?;
    let (server, address) = serve(context, &home)?;
    let mut session = Session::login(&server.url, NAME, [0x80, 0, 0, 0, 0, 1])?;
    let example = contrib(context, "prometheus.yml")?;
    let example = example.replace("scrape_interval: 15s", "scrape_interval: 1s");
    let example = example.replace("192.0.2.10:9260", &address);
    std::fs::write(home.path("prometheus.yml"), example.replace("hikyaku.token", "token"))?;
    std::fs::write(home.path("alerts.yml"), contrib(context, "alerts.yml")?)?;
    let at = format!("127.0.0.1:{}", free_port()?);
    let mut command = program("prometheus")?;
    command.args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"]);
    command.arg(format!("--web.listen-address={at}")).current_dir(home.dir.path());
    let mut prometheus = Running::start(&mut command)?;
    let ask = |query: &str| -> Result<Value> {
        let query: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let (_, body) = http(&at, &format!("GET /api/v1/query?query={query} HTTP/1.0\r\n\r\n"))?;
        let answer: Value = serde_json::from_str(&body)?;
        ensure!(answer["status"] == "success", "{answer}");
        Ok(answer["data"]["result"].clone())
    };
    let is_up = || {
        prometheus.alive()?;
        Ok(ask("up{job=\"hikyaku\"}").is_ok_and(|up| up[0]["value"][1] == "1"))
    };
    wait_until(LIMIT, is_up).with_context(|| prometheus.stderr())?;
    let queries = dashboard(context)?;
    // A rate needs commands between two scrapes.
    wait_until(LIMIT, || {
        session.read(0, 0, 1)?;
        let rate = ask("sum(rate(hikyaku_commands_total{class=\"read\"}[1m])) > 0")?;
        Ok(rate.as_array().is_some_and(|found| !found.is_empty()))
    })?;
    for query in queries {
        let expression = query.expression.replace("$__rate_interval", "1m");
        let expression =
            ["$instance", "$target", "$lun"].iter().fold(expression, |text, name| text.replace(name, ".*"));
        let found = ask(&expression).with_context(|| query.panel.clone())?;
        ensure!(
            found.as_array().is_some_and(|found| !found.is_empty()),
            "{}: {expression}: {found}",
            query.panel
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_expressions() {
        let used = Used::of(
            r#"sum by (a, le) (rate(x_total{b=~"$c|}",d!="e\"f"}[$__rate_interval])) / y > 0.5 and up"#,
        );
        let labels = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let series = [("x_total", labels(&["b", "d"])), ("y", labels(&[])), ("up", labels(&[]))];
        assert_eq!(used.series, series.map(|(name, labels)| (name.to_owned(), labels)));
        assert_eq!(used.grouping, labels(&["a", "le"]));
    }

    #[test]
    fn values_in_yaml() {
        let yaml = "  expr: a > 1\n  for: 1m\n  expr: |\n    b\n      / c\n  for: 2m\n";
        assert_eq!(values(yaml, "expr:"), ["a > 1", " b / c"]);
    }
}
