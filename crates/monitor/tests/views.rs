//! Pages, figures and graphs of a made-up connection: their form, their points, and names that try to leave their place.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use monitor::model::{Advice, Seconds};
use monitor::series::Series;
use monitor::view::{Subject, html, svg, xpl};
use monitor::{Cause, Side};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

#[path = "../examples/page/case.rs"]
mod case;
use case::{Case, Plan};

const HOSTILE: &str = "</script><!--<img src=x onerror='a'>\"&amp;\u{202e}gpj\0\n\u{2028}";

fn page(subjects: &[Subject<'_>]) -> String {
    let mut out = Vec::new();
    html::write(&mut out, subjects, &[HOSTILE.to_owned()]).unwrap();
    String::from_utf8(out).unwrap()
}

/// Text between `from` and `to`, and what follows it.
fn between<'a>(text: &'a str, from: &str, to: &str) -> (&'a str, &'a str) {
    let at = text.find(from).unwrap_or_else(|| panic!("{from} is missing")) + from.len();
    let end = at + text[at..].find(to).unwrap_or_else(|| panic!("{to} is missing"));
    (&text[at..end], &text[end..])
}

/// Asserts that every opened element is closed in order, and that text and attributes hold no markup; content of scripts
/// and styles is skipped.
fn assert_well_formed(text: &str) {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('<') {
        assert!(!rest[..at].contains('>'), "{}", &rest[..at]);
        for entity in rest[..at].split('&').skip(1) {
            let name = entity.split(';').next().unwrap();
            assert!(["amp", "lt", "gt", "quot", "#39"].contains(&name), "{entity}");
        }
        let end = at + rest[at..].find('>').expect("a tag ends");
        let tag = &rest[at + 1..end];
        rest = &rest[end + 1..];
        let name = tag.split([' ', '\n', '/']).next().unwrap();
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name));
        } else if name == "script" || name == "style" {
            let close = format!("</{name}>");
            rest = &rest[rest.find(&close).expect("it is closed") + close.len()..];
        } else if !tag.ends_with('/') && !tag.starts_with('!') {
            open.push(name);
        }
    }
    assert_eq!(open, [""; 0]);
}

fn hostile() -> Case {
    let mut case = Case::new(Plan { writes: 2, ..Plan::default() });
    let bad = || HOSTILE.to_owned();
    case.flow.id = bad();
    case.flow.source = bad();
    case.flow.initiator = bad();
    case.flow.target = bad();
    case.flow.initiator_name = Some(bad());
    case.flow.target_name = Some(bad());
    case.flow.negotiated = vec![(bad(), bad())];
    case.verdict.sentence = bad();
    case.verdict.notes = vec![bad()];
    case.notes = vec![bad()];
    case.verdict.advice = vec![Advice { system: HOSTILE, cause: Cause::R2t, line: bad(), is_tried: false }];
    case
}

#[test]
fn a_page_is_well_formed_and_its_policy_permits_its_own_script_alone() {
    let case = Case::new(Plan { loss_every: 997, ..Plan::default() });
    let page = page(&[case.subject()]);
    assert!(page.starts_with(html::MARK));
    assert_well_formed(&page);
    let hash = |text: &str| format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text)));
    let (policy, _) = between(&page, "Content-Security-Policy\" content=\"", "\"");
    let (style, _) = between(&page, "<style>", "</style>");
    let (script, end) = between(&page, "<script>", "</script>");
    let expected = format!(
        "default-src 'none'; script-src {}; style-src {}; base-uri 'none'; form-action 'none'",
        hash(script),
        hash(style)
    );
    assert_eq!(policy, expected);
    assert!(!end["</script>".len()..].contains("<script"), "one script runs");
    assert!(script.contains("Copyright (c) 2022 Leon Sorokin"), "uPlot's licence accompanies it");
    // Handlers and styles in attributes would be refused.
    assert!(!page.contains(" style=\"") && !page.contains(" onclick="), "attributes that the policy forbids");
    let order = [
        "<h2 class=\"verdict\">",
        "class=\"share\"",
        "What to type",
        "<h3>Notes",
        "<h3>Facts",
        "<h3>Over time",
        "<h3>Commands",
    ];
    let places: Vec<_> =
        order.iter().map(|part| page.find(part).unwrap_or_else(|| panic!("{part}"))).collect();
    assert!(places.is_sorted(), "{places:?}");
}

#[test]
fn hostile_names_stay_text() {
    let case = hostile();
    let mut compared = Vec::new();
    let notes = [HOSTILE.to_owned()];
    html::compare(&mut compared, &case.subject(), &case.subject(), [&notes, &notes]).unwrap();
    let mut graph = Vec::new();
    xpl::write(&mut graph, &case.subject(), Side::Initiator).unwrap();
    let figures = svg::figures(&case.subject());
    let pages = [page(&[case.subject(), case.subject()]), String::from_utf8(compared).unwrap()];
    for text in pages.iter().chain(figures.iter().map(|figure| &figure.text)) {
        assert_well_formed(text);
        assert!(!text.contains(['\u{202e}', '\0', '\u{2028}']) && !text.contains("<img"));
    }
    assert!(
        pages[0].contains(
            "&lt;/script&gt;&lt;!--&lt;img src=x onerror=&#39;a&#39;&gt;&quot;&amp;amp;\\u{202e}gpj"
        )
    );
    // Notes of the verdict, of the connection and of what was read, for each of two connections.
    let notes = |page: &str| page.matches("<li>&lt;/script&gt;").count();
    assert_eq!((notes(&pages[0]), notes(&pages[1])), (5, 6));
    let graph = String::from_utf8(graph).unwrap();
    assert!(graph.lines().nth(2).unwrap().ends_with("(time sequence graph)"), "one line of title");
}

/// Reads the columns of a page as the page's script does: by chart and line, each a list of columns.
fn columns(page: &str) -> (Value, Vec<Vec<Vec<i64>>>) {
    let (about, rest) = between(page, "class=\"about\">", "</script>");
    let (points, _) = between(rest, "class=\"points\">", "</script>");
    let about: Value = serde_json::from_str(about).unwrap();
    let bytes = STANDARD.decode(points).unwrap();
    let mut bytes = bytes.iter();
    let mut next = || {
        let (mut value, mut shift) = (0u64, 0);
        loop {
            let byte = u64::from(*bytes.next().unwrap());
            value |= (byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                return (value >> 1) as i64 ^ -((value & 1) as i64);
            }
        }
    };
    let mut lines = Vec::new();
    for line in
        about["charts"].as_array().unwrap().iter().flat_map(|chart| chart["lines"].as_array().unwrap())
    {
        let width = match line["kind"].as_str().unwrap() {
            "spans" | "bands" => 3,
            "marks" => 5,
            "bars" => 6,
            _ => 2,
        };
        let count = line["points"].as_u64().unwrap();
        let mut column = || {
            let mut last = 0;
            (0..count)
                .map(|_| {
                    last += next();
                    last
                })
                .collect::<Vec<i64>>()
        };
        lines.push((0..width).map(|_| column()).collect());
    }
    assert!(bytes.next().is_none(), "every byte belongs to a column");
    (about, lines)
}

#[test]
fn a_page_holds_the_points_of_the_series() {
    let case = Case::new(Plan { writes: 3, loss_every: 500, ..Plan::default() });
    let page = page(&[case.subject()]);
    let (about, lines) = columns(&page);
    let labels: Vec<_> = about["charts"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|chart| chart["lines"].as_array().unwrap())
        .map(|line| line["label"].as_str().unwrap().to_owned())
        .collect();
    let series = &case.series;
    let stream = series.direction(Side::Initiator);
    assert_eq!(about["quantum_s"], 1e-7);
    let sent = &lines[labels.iter().position(|label| label == "sent").unwrap()];
    let mut end = 0;
    for (index, span) in stream.sent.iter().enumerate() {
        let low = end + sent[1][index];
        end = low + sent[2][index];
        let at = (span.at_ns - series.from_ns) / 100;
        assert_eq!((sent[0][index] as u64, low as u64, end as u64), (at, span.low, span.high), "{index}");
    }
    assert_eq!(sent[0].len(), stream.sent.len());
    let acked = &lines[labels.iter().position(|label| label == "acknowledged").unwrap()];
    let values: Vec<_> = stream.acknowledged.iter().map(|point| point.value as i64).collect();
    assert_eq!(acked[1], values);
    let times = &lines[labels.iter().position(|label| label == "times").unwrap()];
    let taken: Vec<_> = series.commands.iter().map(|timed| timed.ta_ns as i64).collect();
    assert_eq!(times[1], taken);
    assert!(labels.iter().any(|label| label == "retransmitted"), "{labels:?}");
}

#[test]
fn what_a_capture_does_not_show_is_said() {
    let case = Case::new(Plan { writes: 2, is_sampled: false, ..Plan::default() });
    let page = page(&[case.subject()]);
    for words in [
        "the cap of the buffer are not visible in a capture",
        "The congestion window is not visible in a capture",
        "<th scope=\"row\">Congestion window</th><td>not visible</td>",
    ] {
        assert!(page.contains(words), "{words}");
    }
    assert!(!page.contains("\"label\":\"not sent yet"), "no line without points");
}

#[test]
fn a_figure_has_the_size_of_its_picture_not_of_its_points() {
    let size = |writes| {
        let case = Case::new(Plan { writes, loss_every: 997, ..Plan::default() });
        let figures = svg::figures(&case.subject());
        for figure in &figures {
            assert!(figure.text.starts_with(svg::MARK), "{}", figure.name);
            assert_well_formed(&figure.text);
        }
        let names: Vec<_> = figures.iter().map(|figure| figure.name).collect();
        assert_eq!(names, ["sequence", "queue", "windows", "rate", "commands", "rtt", "depth", "causes"]);
        figures.iter().map(|figure| figure.text.len()).max().unwrap()
    };
    let (short, long) = (size(4), size(40));
    assert!(long < 120_000 && long < 3 * short, "{short}, then {long} bytes");
}

#[test]
fn a_graph_has_what_tcptrace_draws_and_the_pdus() {
    let case = Case::new(Plan { writes: 2, loss_every: 997, ..Plan::default() });
    let mut out = Vec::new();
    xpl::write(&mut out, &case.subject(), Side::Initiator).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(text.starts_with(xpl::MARKS[0]) && text.ends_with("\ngo\n"));
    let mut lines = text.lines().skip(7);
    let (mut colours, mut retransmitted, mut labels, mut data) = (Vec::new(), 0, Vec::new(), 0);
    while let Some(line) = lines.next() {
        let words: Vec<_> = line.split(' ').collect();
        let is_point = |from: usize| {
            words[from].split_once('.').is_some_and(|(s, us)| s.parse::<u64>().is_ok() && us.len() == 6)
                && words[from + 1].parse::<u32>().is_ok()
        };
        match words[0] {
            "line" => assert!(words.len() == 5 && is_point(1) && is_point(3), "{line}"),
            "uarrow" | "darrow" | "dtick" | "htick" | "diamond" => {
                data += usize::from(words[0] == "htick");
                assert!(words.len() == 3 && is_point(1), "{line}");
            }
            "atext" => {
                assert!(is_point(1) && lines.next() == Some("R"), "{line}");
                retransmitted += 1;
            }
            "ltext" | "rtext" => labels.push(lines.next().unwrap().to_owned()),
            "go" => break,
            colour => colours.push(colour.to_owned()),
        }
    }
    colours.dedup();
    for colour in ["yellow", "green", "white", "red", "purple", "blue", "magenta"] {
        assert!(colours.iter().any(|found| found == colour), "{colour}: {colours:?}");
    }
    assert_eq!(retransmitted, case.series.direction(Side::Initiator).repeated.len());
    assert_eq!(labels, ["command 0x1", "response 0x1", "command 0x2", "response 0x2"]);
    assert_eq!(data, 32, "16 Data-Out PDUs for each write");
}

#[test]
fn two_analyses_are_compared_by_verdict_and_facts() {
    let before = Case::new(Plan { writes: 2, ..Plan::default() });
    let mut after = Case::new(Plan { writes: 2, cap: 4 << 20, ..Plan::default() });
    after.verdict.sentence = "The line limits.".to_owned();
    let mut out = Vec::new();
    html::compare(&mut out, &before.subject(), &after.subject(), [&[], &[]]).unwrap();
    let page = String::from_utf8(out).unwrap();
    assert_well_formed(&page);
    assert_eq!(page.matches("The line limits.").count(), 1);
    assert!(page.contains("<th scope=\"row\">In flight, most</th><td>1 MiB</td><td>4 MiB</td>"));
    let (changed, _) = between(&page, "What changed", "</table>");
    assert!(!changed.contains("Segment size"), "equal facts are left out: {changed}");
}

#[test]
fn nothing_seen_and_impossible_numbers_are_a_page() {
    assert!(page(&[]).contains("No iSCSI connection was found"));
    let mut case = Case::new(Plan { writes: 1, ..Plan::default() });
    case.series = Series::default();
    case.commands.clear();
    case.verdict.waits = Seconds::default();
    case.verdict.waits[Cause::Loss] = f64::INFINITY;
    case.verdict.bytes_per_s = f64::NAN;
    case.verdict.expected_bytes_per_s = Some(f64::INFINITY);
    case.verdict.limit = Cause::Unknown;
    case.evidence.seconds = -1.0;
    case.evidence.protocol = None;
    let page = page(&[case.subject()]);
    assert_well_formed(&page);
    assert!(!page.contains("Over time") && !page.contains("<h3>Commands"));
    assert!(page.contains("what it may be"), "the limit is unknown");
    svg::figures(&case.subject());
}

#[test]
fn further_connections_are_listed() {
    let case = Case::new(Plan { writes: 1, ..Plan::default() });
    let page = page(&vec![case.subject(); 20]);
    assert_eq!((page.matches("<section").count(), page.matches("href=\"#flow-").count()), (16, 16));
    assert_eq!(page.matches("<td>192.0.2.10:40112 to 192.0.2.20:3260</td>").count(), 4);
}
