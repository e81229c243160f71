//! `analyze --svg`: one figure for each chart of a connection, and the time by cause.

use super::chart::charts;
use super::figure::{self, PALETTE, STYLE, WIDTH};
use super::{Subject, words};
use crate::model::Seconds;

/// The first bytes of every figure; a file without them is no earlier figure and not to be overwritten.
pub const MARK: &str = "<!-- figure of hikyaku analyze -->\n";

/// One file.
#[derive(Debug)]
pub struct Figure {
    /// `sequence`, `queue`, `windows`, `rate`, `commands`, `rtt`, `depth` or `causes`: a part of its file's name.
    pub name: &'static str,
    pub text: String,
}

/// All figures of a connection that have something to show.
pub fn figures(subject: &Subject<'_>) -> Vec<Figure> {
    let style = format!("<style>{PALETTE}{STYLE}</style>");
    let mut all: Vec<Figure> = charts(subject)
        .iter()
        .filter(|_| !subject.series.is_empty())
        .map(|chart| Figure {
            name: chart.name,
            text: MARK.to_owned() + &figure::draw(chart, subject.series, &style),
        })
        .collect();
    if subject.verdict.waits.total() > 0.0 {
        let text = MARK.to_owned() + &causes(&subject.verdict.waits, &style);
        all.push(Figure { name: "causes", text });
    }
    all
}

/// A horizontal bar for each cause, the longest first.
fn causes(waits: &Seconds, style: &str) -> String {
    const ROW: f64 = 26.0;
    const LEFT: f64 = 200.0;
    const TOP: f64 = 40.0;
    let ranked = waits.ranked();
    let total = waits.total();
    let height = TOP + ROW * ranked.len() as f64 + 10.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"figure\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-label=\"Time by cause\">{style}<text class=\"title\" x=\"12\" y=\"22\">Time by cause</text>\n",
    );
    for (index, (cause, time)) in ranked.iter().enumerate() {
        let (y, share) = (TOP + ROW * index as f64, time / total);
        let width = share * (WIDTH - LEFT - 130.0);
        svg += &format!(
            "<text class=\"end\" x=\"{}\" y=\"{:.1}\">{}</text>\
             <rect x=\"{LEFT}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"18\" fill=\"var(--sent)\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\">{}, {}</text>\n",
            LEFT - 8.0,
            y + 13.0,
            words::cause(*cause),
            LEFT + width + 6.0,
            y + 13.0,
            words::percent(share),
            words::seconds(*time)
        );
    }
    svg += "</svg>\n";
    svg
}
