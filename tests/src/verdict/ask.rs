//! The questions, and what is read of the answers.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Serialize;
use serde_json::Value;

use super::Limit;
use crate::Context;

const ANALYZE_LIMIT: Duration = Duration::from_secs(60);

/// From where an answer was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum View {
    /// A capture at the initiator.
    Initiator,
    /// A capture in the middle of the path.
    Between,
    /// A capture at the target.
    Target,
    /// `watch` on the data sender's host, by its samples alone.
    Watch,
}

impl View {
    pub const ALL: [Self; 4] = [Self::Initiator, Self::Between, Self::Target, Self::Watch];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Initiator => "initiator",
            Self::Between => "between",
            Self::Target => "target",
            Self::Watch => "watch",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    pub limit: Limit,
    /// A second limit that the verdict names beside it.
    pub also: Option<Limit>,
    pub candidates: Vec<Limit>,
    pub confidence: f64,
    pub share: f64,
    pub mb_per_s: Option<f64>,
    pub expected_mb_per_s: Option<f64>,
    pub next_limit: Option<Limit>,
}

impl Answer {
    /// From a member `verdict`; the measured rate may stand in it or beside it.
    fn read(flow: &Value) -> Option<Self> {
        let verdict = &flow["verdict"];
        let limit = |value: &Value| value.as_str().and_then(Limit::parse);
        let figure = |name: &str| verdict[name].as_f64().or_else(|| flow[name].as_f64());
        Some(Self {
            limit: limit(&verdict["limit"])?,
            also: limit(&verdict["also"]),
            candidates: verdict["candidates"].as_array().into_iter().flatten().filter_map(limit).collect(),
            confidence: verdict["confidence"].as_f64().unwrap_or(0.0),
            share: verdict["share"].as_f64().unwrap_or(0.0),
            mb_per_s: figure("mb_per_s"),
            expected_mb_per_s: figure("expected_mb_per_s"),
            next_limit: limit(&verdict["next_limit"]),
        })
    }

    /// Whether it names the truth, or one of several.
    pub fn names(&self, truths: &[Limit]) -> bool {
        truths.contains(&self.limit) || self.also.is_some_and(|also| truths.contains(&also))
    }
}

/// What `analyze` says of the connection in a capture; of the longest, if there are several.
pub fn analyze(context: &Context, capture: &Path) -> Result<Answer> {
    let output = context.ours(&[Path::new("analyze"), Path::new("--json"), capture], ANALYZE_LIMIT)?;
    let output = output.success()?;
    let value = output.json()?;
    let flows = value["flows"].as_array().context("no member `flows`")?;
    let bytes = |flow: &&Value| {
        ["sent_bytes", "received_bytes"].iter().filter_map(|name| flow[name].as_u64()).sum::<u64>()
    };
    let flow = flows.iter().rev().max_by_key(bytes).context("no flow in the capture")?;
    Answer::read(flow).with_context(|| format!("no verdict in {flow}"))
}

/// The last verdict among the lines of `watch --json` about a connection that had not ended.
pub fn last_of_watch(lines: &str) -> Option<Answer> {
    let values = lines.lines().rev().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    values.filter(|value| value["session"]["ended"] != true).find_map(|value| Answer::read(&value))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_answer_is_read_from_its_flow() {
        let flow = json!({
            "mb_per_s": 8.0,
            "verdict": {
                "limit": "send_buffer", "also": "congestion", "confidence": 0.9, "share": 0.8,
                "expected_mb_per_s": 23.0, "next_limit": "line_rate", "candidates": ["loss", "strange"],
            },
        });
        let answer = Answer::read(&flow).unwrap();
        let expected = Answer {
            limit: Limit::SendBuffer,
            also: Some(Limit::Congestion),
            candidates: vec![Limit::Loss],
            confidence: 0.9,
            share: 0.8,
            mb_per_s: Some(8.0),
            expected_mb_per_s: Some(23.0),
            next_limit: Some(Limit::LineRate),
        };
        assert_eq!(answer, expected);
        assert!(answer.names(&[Limit::Congestion]) && !answer.names(&[Limit::Loss]));
        assert_eq!(Answer::read(&json!({ "verdict": { "limit": "strange" } })), None);
    }

    #[test]
    fn the_last_line_with_a_verdict_counts() {
        let lines =
            "{\"verdict\":{\"limit\":\"loss\"}}\n{\"verdict\":{\"limit\":\"cpu\"}}\n{\"x\":1}\nbroken\n";
        assert_eq!(last_of_watch(lines).unwrap().limit, Limit::Cpu);
        assert_eq!(last_of_watch(""), None);
    }
}
