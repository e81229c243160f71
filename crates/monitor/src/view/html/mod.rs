//! `analyze --html`: one page that needs nothing else. The verdict comes first, then facts, charts and commands.
//!
//! Without JavaScript the page has text, tables and SVG figures. With it, `assets/report/` draws the same
//! charts from the points within the page, by uPlot. The page's policy permits only the page's own script and style, by
//! their hashes; nothing is loaded.

mod commands;
mod compare;
mod facts;
mod verdict;

use std::io::{self, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

use super::chart::charts;
use super::escape::{markup, script};
use super::{Subject, columns, figure, words};
use crate::limits::PAGE_FLOWS_MAX;

pub use compare::compare;

/// The first bytes of every page; a file without them is no earlier page and not to be overwritten.
pub const MARK: &str = "<!DOCTYPE html>\n<!-- report of hikyaku analyze -->\n";

const STYLE: &str =
    concat!(include_str!("../../../assets/uplot.min.css"), include_str!("../../../assets/report/page.css"),);
/// uPlot with its licence, which must accompany copies, and the page's own part.
const SCRIPT: &str = concat!(
    "/*\n",
    include_str!("../../../assets/uplot.LICENSE"),
    "\n*/\n",
    include_str!("../../../assets/uplot.min.js"),
    "\n(() => {\n\"use strict\";\n",
    include_str!("../../../assets/report/points.js"),
    include_str!("../../../assets/report/shapes.js"),
    include_str!("../../../assets/report/chart.js"),
    include_str!("../../../assets/report/page.js"),
    "})();\n",
);

/// Writes the page about the connections of one analysis, the most important first, and what keeps the analysis from being
/// whole. Beyond [`PAGE_FLOWS_MAX`] connections are only listed.
///
/// # Errors
/// Those of `out`.
pub fn write(out: &mut impl Write, subjects: &[Subject<'_>], notes: &[String]) -> io::Result<()> {
    let title = match subjects {
        [] => "No iSCSI connection was found".to_owned(),
        [first, ..] => format!("What limits {}", first.flow.source),
    };
    head(out, &title)?;
    if subjects.len() > 1 {
        write_list(out, subjects)?;
    }
    for (index, subject) in subjects.iter().take(PAGE_FLOWS_MAX).enumerate() {
        let id = format!("flow-{index}");
        section(out, &id, subject)?;
        verdict::write(out, subject)?;
        details(out, subject)?;
    }
    verdict::notes(out, "Notes on what was read", notes.iter())?;
    foot(out)
}

fn head(out: &mut impl Write, title: &str) -> io::Result<()> {
    let hash = |text: &str| STANDARD.encode(Sha256::digest(text));
    let (script, style, title) = (hash(SCRIPT), hash(STYLE), markup(title));
    write!(
        out,
        "{MARK}<html lang=\"en\"><head><meta charset=\"utf-8\"/>\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'sha256-{script}'; \
         style-src 'sha256-{style}'; base-uri 'none'; form-action 'none'\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"/>\n\
         <meta name=\"color-scheme\" content=\"light dark\"/>\n<meta name=\"referrer\" content=\"no-referrer\"/>\n\
         <title>{title}</title><style>{STYLE}</style></head>\n<body><main>\n<h1>{title}</h1>\n"
    )
}

fn foot(out: &mut impl Write) -> io::Result<()> {
    write!(
        out,
        "<footer>hikyaku {}. Charts by uPlot (MIT licence).</footer>\n</main>\n<script>{SCRIPT}</script>\n</body></html>\n",
        env!("CARGO_PKG_VERSION")
    )
}

/// All connections with their limits, each with a link to its section.
fn write_list(out: &mut impl Write, subjects: &[Subject<'_>]) -> io::Result<()> {
    out.write_all(
        b"<div class=\"scroll\"><table class=\"list\"><thead><tr><th>Connection</th><th>Limit</th>\
          <th class=\"number\">Share</th><th class=\"number\">Rate</th></tr></thead>\n",
    )?;
    for (index, Subject { flow, verdict, .. }) in subjects.iter().enumerate() {
        let name = markup(&format!("{} to {}", flow.initiator, flow.target));
        let name =
            if index < PAGE_FLOWS_MAX { format!("<a href=\"#flow-{index}\">{name}</a>") } else { name };
        writeln!(
            out,
            "<tr><td>{name}</td><td>{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td></tr>",
            words::cause(verdict.limit),
            words::percent(verdict.share),
            words::rate(verdict.bytes_per_s),
        )?;
    }
    out.write_all(b"</table></div>\n")
}

/// Begins the section of a connection; [`details`] ends it.
fn section(out: &mut impl Write, id: &str, subject: &Subject<'_>) -> io::Result<()> {
    let flow = &subject.flow;
    write!(
        out,
        "<section class=\"flow\" id=\"{id}\">\n<p class=\"ends\">{} to {}, {}</p>\n",
        markup(&flow.initiator),
        markup(&flow.target),
        words::source(subject.evidence.source),
    )
}

/// Everything about a connection but its verdict.
fn details(out: &mut impl Write, subject: &Subject<'_>) -> io::Result<()> {
    let series = subject.series;
    facts::write(out, subject)?;
    if !series.is_empty() {
        let charts = charts(subject);
        out.write_all(b"<h3>Over time</h3>\n<div class=\"charts\">\n")?;
        for chart in &charts {
            write!(
                out,
                "<figure data-chart=\"{}\"><div class=\"still\">{}</div>",
                chart.name,
                figure::draw(chart, series, "")
            )?;
            if !chart.note.is_empty() {
                write!(out, "<figcaption>{}</figcaption>", markup(&chart.note))?;
            }
            out.write_all(b"</figure>\n")?;
        }
        if series.is_thinned {
            out.write_all(
                b"<p class=\"note\">There were more points than a page holds: some stand for several, extremes were kept.</p>\n",
            )?;
        }
        out.write_all(b"</div>\n")?;
        let (about, points) = columns::encode(&charts, series.from_ns, series.to_ns);
        write!(
            out,
            "<script type=\"application/json\" class=\"about\">{}</script>\n\
             <script type=\"text/plain\" class=\"points\">{points}</script>\n",
            script(&about.to_string())
        )?;
    }
    commands::write(out, subject)?;
    out.write_all(b"</section>\n")
}
