//! The connections of a copy to its iSCSI ends: sampled while the copy runs, with each observation of the engine (five
//! times a second: two system calls for each), and judged at its end.

use block::Endpoint;
use io::Tap;
use monitor::followed::{Followed, Found, Known};
use monitor::model::Cpu;
use monitor::{Cause, Sample, Verdict, probe};
use mover::{Limit, Phase, Progress, Report};
use serde_json::{Value, json};

use crate::units;

/// Least round trip of a connection that the text of the result speaks of: below, the network is this machine or its
/// neighbour, and hardly ever the limit.
const NETWORK_US: u32 = 1000;
/// Least confidence of a verdict that it speaks of.
const CONFIDENCE: f64 = 0.6;

/// Connections that are followed.
#[derive(Debug, Default)]
pub(crate) struct Network(Vec<(&'static str, Tap, Followed)>);

impl Network {
    pub(crate) fn of(ends: &[(&'static str, &dyn Endpoint)]) -> Self {
        let tapped = ends.iter().filter_map(|(name, end)| Some((*name, end.inspect().tap()?)));
        Self(tapped.map(|(name, tap)| (name, tap, Followed::default())).collect())
    }

    /// Samples the connections while data is copied; a verification has other directions.
    pub(crate) fn observe(&mut self, now: &Progress) {
        if !matches!(now.phase, Phase::Copy | Phase::Rescue) {
            return;
        }
        for (_, tap, followed) in &mut self.0 {
            // Between two connections, and where the kernel does not tell, there is no sample.
            if let Some(sample) = tap.socket().and_then(|socket| probe::own(&*socket).ok()) {
                followed.add(Sample { outstanding: Some(tap.outstanding()), ..sample });
            }
        }
    }

    /// What was found, with what the copy knows of itself.
    pub(crate) fn judge(self, report: &Report) -> Vec<Connection> {
        let cpu = Some(Cpu { busiest_thread: report.shares.cpu, waiting: 0.0, cipher: None });
        let judged = self.0.into_iter().filter_map(|(end, _, followed)| {
            let side = if end == "source" { &report.read } else { &report.write };
            let known = Known {
                cpu,
                commands: side.ops,
                block_bytes: side.bytes.checked_div(side.ops).unwrap_or(0),
                command_s: (side.ops > 0).then(|| side.latency.p50_us as f64 / 1e6),
            };
            let mut found = followed.finish(known)?;
            if !may_limit(end, report.limited_by) {
                absolve(&mut found.verdict, report.limited_by);
            }
            Some(Connection { end, found })
        });
        judged.collect()
    }
}

/// Whether the connection to an end can be what limited the copy.
fn may_limit(end: &str, limited_by: Limit) -> bool {
    limited_by == Limit::Balanced || limited_by.name() == end
}

/// The connection waited for the copy: what it looks like meanwhile is no limit.
fn absolve(verdict: &mut Verdict, limited_by: Limit) {
    let by = match limited_by {
        Limit::Rate => "the rate that it was given".to_owned(),
        Limit::Impact => "what other programs are left of its disk".to_owned(),
        Limit::Memory => "the memory for chunks".to_owned(),
        Limit::Cpu => "this host's processor".to_owned(),
        end => format!("its {end}"),
    };
    let rate = units::rate(verdict.bytes_per_s);
    verdict.sentence = format!("{rate}; the copy was limited by {by}, not by this connection.");
    verdict.limit = if limited_by == Limit::Cpu { Cause::Cpu } else { Cause::ThinkTime };
    (verdict.also, verdict.expected_bytes_per_s, verdict.next_limit) = (None, None, None);
    verdict.candidates.clear();
    verdict.advice.clear();
    verdict.notes.clear();
}

/// What limited a copy, in words: the network of an end, where that is what the end waited for.
pub(crate) fn limit(limited_by: Limit, network: &[Connection]) -> String {
    let blamed = network.iter().find(|connection| connection.is_limit());
    match (limited_by, blamed) {
        (Limit::Source | Limit::Destination, Some(connection)) if connection.end == limited_by.name() => {
            format!("the network of the {}", connection.end)
        }
        _ => limited_by.to_string(),
    }
}

/// A connection of a copy that is complete.
#[derive(Debug)]
pub struct Connection {
    /// `source` or `destination`.
    pub end: &'static str,
    pub found: Found,
}

impl Connection {
    /// An element of `network` in the final object of `copy --json`.
    pub(crate) fn object(&self) -> Value {
        let Found { last, evidence, verdict, .. } = &self.found;
        let ms = |seconds: Option<f64>| seconds.map(|seconds| units::rounded(seconds * 1e3));
        json!({
            "end": self.end,
            "samples": self.found.samples,
            "rtt_least_ms": ms(evidence.path.rtt_s),
            "rtt_ms": ms(evidence.path.rtt_loaded_s),
            "send_buffer_bytes": last.send_buffer_bytes,
            "congestion_window_bytes": evidence.caps.congestion_window_bytes,
            "window_bytes": evidence.caps.window_bytes,
            "retransmitted_packets": evidence.path.retransmitted_packets,
            "verdict": verdict.object(),
        })
    }

    /// Whether this connection is what limited the copy, and the network more than the target.
    pub(crate) fn is_limit(&self) -> bool {
        let verdict = &self.found.verdict;
        let is_far = self.found.last.min_rtt_us.is_some_and(|us| us >= NETWORK_US);
        let is_of_network = matches!(
            verdict.limit,
            Cause::SendBuffer
                | Cause::ReceiveWindow
                | Cause::Congestion
                | Cause::Loss
                | Cause::LocalDevice
                | Cause::LineRate
        );
        is_far && is_of_network && verdict.confidence >= CONFIDENCE
    }

    /// The verdict, for the text of the result, if this connection is what limited the copy. Its rate is that of TCP while
    /// data moved; the result's counts the time for opening, flushing and the end as well.
    pub(crate) fn sentence(&self) -> Option<&str> {
        self.is_limit().then_some(&self.found.verdict.sentence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sender over 40 ms whose queue has reached its cap.
    fn found() -> Found {
        let mut followed = Followed::default();
        for index in 0..20 {
            followed.add(Sample {
                at_ns: index * 200_000_000,
                state: 1,
                mss_bytes: Some(1448),
                cwnd_segments: Some(2000),
                unacked_segments: Some(276),
                notsent_bytes: Some(0),
                rtt_us: Some(40_100),
                min_rtt_us: Some(40_000),
                bytes_acked: Some(index * 2_000_000),
                bytes_received: Some(0),
                send_queue_bytes: Some(3 << 20),
                send_buffer_bytes: Some(4 << 20),
                ..Sample::default()
            });
        }
        followed.finish(Known::default()).unwrap()
    }

    #[test]
    fn only_the_end_that_limits_is_blamed() {
        for (limited_by, expected) in [
            (Limit::Destination, "send_buffer"),
            (Limit::Balanced, "send_buffer"),
            (Limit::Source, "think_time"),
            (Limit::Rate, "think_time"),
            (Limit::Cpu, "cpu"),
        ] {
            let mut connection = Connection { end: "destination", found: found() };
            if !may_limit(connection.end, limited_by) {
                absolve(&mut connection.found.verdict, limited_by);
            }
            let object = connection.object();
            assert_eq!(object["verdict"]["limit"], expected, "{object}");
            assert_eq!(object["rtt_least_ms"], 40.0);
            assert_eq!(connection.sentence().is_some(), expected == "send_buffer", "{object}");
            let expected = match limited_by {
                Limit::Destination => "the network of the destination".to_owned(),
                other => other.to_string(),
            };
            assert_eq!(limit(limited_by, &[connection]), expected);
        }
    }

    #[test]
    fn a_neighbour_is_not_spoken_of() {
        let mut found = found();
        found.last.min_rtt_us = Some(90);
        let connection = Connection { end: "destination", found };
        assert_eq!(connection.sentence(), None);
        assert_eq!(limit(Limit::Destination, &[connection]), "destination");
    }
}
