//! Answers beside the truth.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;
use serde_json::{Value, json};

use super::{Answer, Cell, Limit, Setup, View};

/// Answers at this confidence and above must not be wrong.
pub const CONFIDENT: f64 = 0.8;
/// Greatest error of a predicted rate, and of a measured one.
const GAIN_ERROR_MAX: f64 = 0.15;
/// Part of the line's rate from which losses limit no more.
const FILLED: f64 = 0.8;
const RATE_ERROR_MAX: f64 = 0.10;

/// One answer and what is true.
#[derive(Clone, Debug, Serialize)]
pub struct Judged {
    pub cell: String,
    pub view: View,
    pub truth: Limit,
    /// Further limits that are as true.
    pub also: Vec<Limit>,
    pub answer: Answer,
    pub measured_mb_per_s: f64,
    /// Rate without the limit.
    pub cured_mb_per_s: Option<f64>,
    /// What limits without it.
    pub next: Option<Limit>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    Right,
    Wrong,
    Unknown,
}

impl Judged {
    pub fn new(cell: &Cell, view: View, answer: Answer, mb_per_s: f64, cured_mb_per_s: Option<f64>) -> Self {
        let mut also = cell.as_true(view);
        // This program goes on with BBR, which fills the line in spite of losses.
        if cell.limit == Limit::Loss && mb_per_s * 1e6 >= FILLED * cell.setup.load.line() {
            also.push(Limit::LineRate);
        }
        Self {
            cell: cell.name.clone(),
            view,
            truth: cell.limit,
            also,
            answer,
            measured_mb_per_s: mb_per_s,
            cured_mb_per_s,
            next: cell.cured.as_ref().map(Setup::natural_limit),
        }
    }

    pub fn mark(&self) -> Mark {
        let truths: Vec<_> = std::iter::once(self.truth).chain(self.also.iter().copied()).collect();
        match self.answer.limit {
            Limit::Unknown => Mark::Unknown,
            _ if self.answer.names(&truths) => Mark::Right,
            _ => Mark::Wrong,
        }
    }

    pub fn is_confidently_wrong(&self) -> bool {
        self.mark() == Mark::Wrong && self.answer.confidence >= CONFIDENT
    }

    /// Whether the predicted rate without the limit is the rate that was measured without it; `None` if there is
    /// nothing to compare.
    fn foresaw_gain(&self) -> Option<bool> {
        let is_removable = self.answer.limit != Limit::LineRate;
        let cured = self.cured_mb_per_s.filter(|_| self.mark() == Mark::Right && is_removable)?;
        Some(self.answer.expected_mb_per_s.is_some_and(|expected| is_near(expected, cured, GAIN_ERROR_MAX)))
    }

    fn foresaw_next(&self) -> Option<bool> {
        let next = self.next.filter(|_| self.mark() == Mark::Right)?;
        Some(self.answer.next_limit == Some(next))
    }

    fn measured_alike(&self) -> Option<bool> {
        self.answer.mb_per_s.map(|rate| is_near(rate, self.measured_mb_per_s, RATE_ERROR_MAX))
    }
}

fn is_near(value: f64, truth: f64, error_max: f64) -> bool {
    (value - truth).abs() <= error_max * truth
}

/// Shares of all answers of one view.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Score {
    pub answers: usize,
    pub right: f64,
    pub wrong: f64,
    pub unknown: f64,
    pub confidently_wrong: usize,
    /// Of those that are right and can be compared.
    pub gain_foreseen: Option<f64>,
    pub next_foreseen: Option<f64>,
    pub rate_alike: Option<f64>,
}

fn share(found: impl Iterator<Item = Option<bool>>) -> Option<f64> {
    let found: Vec<bool> = found.flatten().collect();
    let good = found.iter().filter(|good| **good).count();
    (!found.is_empty()).then(|| good as f64 / found.len() as f64)
}

impl Score {
    pub fn of<'a>(all: impl Iterator<Item = &'a Judged>) -> Self {
        let all: Vec<_> = all.collect();
        let part = |mark| share(all.iter().map(|judged| Some(judged.mark() == mark))).unwrap_or(0.0);
        Self {
            answers: all.len(),
            right: part(Mark::Right),
            wrong: part(Mark::Wrong),
            unknown: part(Mark::Unknown),
            confidently_wrong: all.iter().filter(|judged| judged.is_confidently_wrong()).count(),
            gain_foreseen: share(all.iter().map(|judged| judged.foresaw_gain())),
            next_foreseen: share(all.iter().map(|judged| judged.foresaw_next())),
            rate_alike: share(all.iter().map(|judged| judged.measured_alike())),
        }
    }

    /// A row for each view, and one for all.
    pub fn table(all: &[Judged]) -> String {
        let mut text = format!(
            "{:10} {:>8} {:>6} {:>6} {:>8} {:>12} {:>6} {:>6} {:>6}\n",
            "VIEW", "ANSWERS", "RIGHT", "WRONG", "UNKNOWN", "SURE, WRONG", "GAIN", "NEXT", "RATE"
        );
        for (name, score) in Self::by_view(all) {
            let part =
                |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{:.0} %", value * 100.0));
            let _ = writeln!(
                text,
                "{name:10} {:>8} {:>6} {:>6} {:>8} {:>12} {:>6} {:>6} {:>6}",
                score.answers,
                part(Some(score.right)),
                part(Some(score.wrong)),
                part(Some(score.unknown)),
                score.confidently_wrong,
                part(score.gain_foreseen),
                part(score.next_foreseen),
                part(score.rate_alike),
            );
        }
        text
    }

    pub fn by_view(all: &[Judged]) -> Vec<(&'static str, Self)> {
        let mut rows: Vec<_> = View::ALL
            .into_iter()
            .map(|view| (view.name(), Self::of(all.iter().filter(|judged| judged.view == view))))
            .filter(|(_, score)| score.answers > 0)
            .collect();
        rows.push(("all", Self::of(all.iter())));
        rows
    }
}

/// Number of answers by truth and limit named.
pub fn confusion(all: &[Judged]) -> BTreeMap<Limit, BTreeMap<Limit, usize>> {
    let mut table: BTreeMap<Limit, BTreeMap<Limit, usize>> = BTreeMap::new();
    for judged in all {
        // A limit that is as true counts as the one injected.
        let named = if judged.mark() == Mark::Right { judged.truth } else { judged.answer.limit };
        *table.entry(judged.truth).or_default().entry(named).or_default() += 1;
    }
    table
}

/// [`confusion`] with a row for each truth.
pub fn show_confusion(all: &[Judged]) -> String {
    let mut text = String::from("TRUTH              NAMED\n");
    for (truth, named) in confusion(all) {
        let mut named: Vec<_> = named.into_iter().collect();
        named.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let named: Vec<_> = named.iter().map(|(limit, count)| format!("{} {count}", limit.name())).collect();
        let _ = writeln!(text, "{:18} {}", truth.name(), named.join(", "));
    }
    text
}

/// Everything, for a record.
pub fn record(all: &[Judged]) -> Value {
    let scores: BTreeMap<_, _> = Score::by_view(all).into_iter().collect();
    json!({ "scores": scores, "confusion": confusion(all), "answers": all })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(truth: Limit, limit: Limit, confidence: f64) -> Judged {
        let answer = Answer {
            limit,
            also: None,
            candidates: Vec::new(),
            confidence,
            share: 0.9,
            mb_per_s: Some(10.5),
            expected_mb_per_s: Some(20.0),
            next_limit: Some(Limit::LineRate),
        };
        Judged {
            cell: "cell".to_owned(),
            view: View::Initiator,
            truth,
            also: vec![Limit::QueueDepth],
            answer,
            measured_mb_per_s: 10.0,
            cured_mb_per_s: Some(23.0),
            next: Some(Limit::LineRate),
        }
    }

    #[test]
    fn answers_are_right_wrong_or_unknown() {
        let all = [
            judged(Limit::Loss, Limit::Loss, 0.9),
            judged(Limit::Target, Limit::QueueDepth, 0.9),
            judged(Limit::Loss, Limit::Congestion, 0.8),
            judged(Limit::Loss, Limit::Unknown, 0.9),
        ];
        let score = Score::of(all.iter());
        assert_eq!((score.right, score.wrong, score.unknown, score.confidently_wrong), (0.5, 0.25, 0.25, 1));
        // 20 is within 15 % of 23, 10.5 within 10 % of 10.
        let all = (score.gain_foreseen, score.next_foreseen, score.rate_alike);
        assert_eq!(all, (Some(1.0), Some(1.0), Some(1.0)));
    }

    #[test]
    fn the_matrix_counts_what_was_named() {
        let all = [
            judged(Limit::Loss, Limit::Congestion, 0.1),
            judged(Limit::Loss, Limit::Loss, 0.1),
            judged(Limit::Loss, Limit::QueueDepth, 0.1),
        ];
        assert_eq!(
            show_confusion(&all),
            "TRUTH              NAMED\nloss               loss 2, congestion 1\n"
        );
    }
}
