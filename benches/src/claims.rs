//! Claims: comparisons of rows, and the bounds that they must meet.

use serde_json::{Value, json};

use crate::Spread;
use crate::bars::{Bar, Bound, verdict};
use crate::ends::run::Sample;

/// Comparison of the medians of two rows.
#[derive(Clone, Copy, Debug)]
pub(super) enum Compare {
    /// Ratio of throughputs.
    Speed,
    /// Difference of the mean time of one operation, microseconds.
    MoreMicroseconds,
    /// Operations per second of the row alone.
    PerSecond,
    /// Difference of CPU seconds per GB, both ends together.
    MoreCpu,
    /// Ratio of CPU seconds per GB, both ends together.
    Cpu,
}

pub(super) struct Claim {
    pub(super) row: String,
    /// Empty if the row is compared with none.
    pub(super) peer: String,
    pub(super) what: &'static str,
    pub(super) compare: Compare,
    pub(super) bound: Bound,
}

/// CPU seconds of both ends per GB.
pub(super) fn both_cpu(sample: &Sample) -> f64 {
    [sample.initiator, sample.target].map(|end| end.map_or(f64::NAN, |used| used.cpu_s_per_gb)).iter().sum()
}

impl Claim {
    pub(super) fn new(row: &str, peer: &str, what: &'static str, compare: Compare, bound: Bound) -> Self {
        Self { row: row.to_owned(), peer: peer.to_owned(), what, compare, bound }
    }

    /// The claim's figure; `names` are those of the rows, in the order of `runs`.
    fn judge(&self, names: &[&str], runs: &[Vec<Sample>]) -> Bar {
        let median = |name: &str, value: fn(&Sample) -> f64| {
            let at = names.iter().position(|known| *known == name);
            at.map_or(f64::NAN, |at| Spread::column(&runs[at], value).median)
        };
        let both = |value: fn(&Sample) -> f64| [&self.row, &self.peer].map(|name| median(name, value));
        let (ratio, more) = (|[row, peer]: [f64; 2]| row / peer, |[row, peer]: [f64; 2]| row - peer);
        let value = match self.compare {
            Compare::Speed => ratio(both(|run| run.mb_per_s)),
            Compare::MoreMicroseconds => more(both(|run| run.per_second).map(|rate| 1e6 / rate)),
            Compare::PerSecond => median(&self.row, |run| run.per_second),
            Compare::MoreCpu => more(both(both_cpu)),
            Compare::Cpu => ratio(both(both_cpu)),
        };
        Bar { what: self.what.to_owned(), value, bound: self.bound }
    }
}

/// Prints a table of the claims, each figure with `digits` of it decimal places; returns their JSON.
pub(super) fn judge(
    claims: &[Claim],
    names: &[&str],
    runs: &[Vec<Sample>],
    digits: impl Fn(f64) -> usize,
) -> Vec<Value> {
    if !claims.is_empty() {
        println!("\n| row | figure | bar | verdict |\n|---|---|---|---|");
    }
    let judge = |claim: &Claim| {
        let bar = claim.judge(names, runs);
        let (digits, verdict) = (digits(bar.value), verdict(std::slice::from_ref(&bar)));
        println!("| {} | {:.digits$} | {} | {verdict} |", claim.row, bar.value, bar.show());
        let mut object = bar.object();
        object["row"] = json!(claim.row);
        object["peer"] = json!(claim.peer);
        object
    };
    claims.iter().map(judge).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ends::run::Used;

    #[test]
    fn claims_are_judged_by_medians() {
        let sample = |mb_per_s: f64, per_second: f64, cpu_s_per_gb: f64| {
            let used = Some(Used { cpu_s_per_gb, ..Used::default() });
            Sample { mb_per_s, per_second, initiator: used, target: used, ..Sample::default() }
        };
        let runs = [
            vec![sample(30.0, 40_000.0, 0.2), sample(40.0, 50_000.0, 0.3), sample(400.0, 1.0, 0.1)],
            vec![sample(10.0, 100_000.0, 0.1); 3],
        ];
        let is_judged = |[row, peer]: [&str; 2], compare, expected: f64| {
            let claim = Claim::new(row, peer, "x", compare, Bound::AtLeast(1.0));
            let value = claim.judge(&["row", "peer"], &runs).value;
            assert!((value - expected).abs() < 1e-9, "{compare:?}: {value}");
        };
        let rows = ["row", "peer"];
        is_judged(rows, Compare::Speed, 4.0);
        is_judged(rows, Compare::MoreMicroseconds, 15.0);
        is_judged(["peer", "row"], Compare::MoreMicroseconds, -15.0);
        is_judged(rows, Compare::PerSecond, 40_000.0);
        is_judged(rows, Compare::MoreCpu, 0.2);
        is_judged(rows, Compare::Cpu, 2.0);
    }
}
