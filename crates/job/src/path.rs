//! `path` in JSON: the path to a remote end, as its driver and the kernel know it.

use block::{Endpoint, PathReport};
use io::SocketBuffer;
use serde_json::{Value, json};

use crate::units;

/// The path to one end. Taken before the endpoint is closed.
#[derive(Clone, Debug)]
pub struct EndPath {
    /// `source` or `destination`.
    pub end: &'static str,
    pub report: PathReport,
    /// What the session has negotiated; `None` where the protocol has no such key.
    pub first_burst_bytes: Option<u64>,
    pub max_burst_bytes: Option<u64>,
    pub outstanding_r2t_max: Option<u64>,
}

impl EndPath {
    /// `None` where there is no network.
    pub fn of(end: &'static str, endpoint: &dyn Endpoint) -> Option<Self> {
        let report = endpoint.inspect().path()?;
        let facts = endpoint.inspect().facts();
        let key = |name: &str| facts.iter().find(|(known, _)| *known == name)?.1.parse().ok();
        Some(Self {
            end,
            report,
            first_burst_bytes: key("FirstBurstLength"),
            max_burst_bytes: key("MaxBurstLength"),
            outstanding_r2t_max: key("MaxOutstandingR2T"),
        })
    }

    /// Whether the receive buffer is beyond what the system grows it to.
    pub fn is_receive_buffer_forced(&self) -> bool {
        let most = SocketBuffer::Receive.bytes_max();
        most.is_some_and(|most| self.report.connection.receive_buffer_bytes > most)
    }

    /// `limit`: what limited the connection, as the verdict of its samples names it.
    pub fn object(&self, limit: Option<&str>) -> Value {
        let Self { report, .. } = self;
        let path = &report.connection;
        let ms = |time: std::time::Duration| units::rounded(time.as_secs_f64() * 1e3);
        json!({
            "end": self.end,
            "sessions": report.sessions,
            "rtt_least_ms": ms(path.round_trip_least),
            "rtt_ms": ms(path.round_trip),
            "mb_per_s": report.bytes_per_s.map(|rate| units::rounded(rate / 1e6)),
            "in_flight_max_bytes": report.in_flight_max_bytes,
            "window_max_commands": report.window_max_commands,
            "first_burst_bytes": self.first_burst_bytes,
            "max_burst_bytes": self.max_burst_bytes,
            "outstanding_r2t_max": self.outstanding_r2t_max,
            "r2t_rounds_max": report.rounds_max,
            "send_buffer_bytes": path.buffer_bytes,
            "send_buffer_forced": report.is_send_buffer_forced,
            "receive_buffer_bytes": path.receive_buffer_bytes,
            "receive_buffer_forced": self.is_receive_buffer_forced(),
            "congestion_control": report.congestion_control,
            "retransmitted_packets": path.retransmitted,
            "out_of_order_packets": path.out_of_order,
            "limit": limit,
            "missing": report.missing().collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn units_and_what_is_unknown() {
        let path = EndPath {
            end: "destination",
            report: PathReport {
                sessions: 1,
                connection: io::Path {
                    round_trip: Duration::from_micros(41_500),
                    round_trip_least: Duration::from_millis(40),
                    ..io::Path::default()
                },
                bytes_per_s: Some(117e6),
                receive_buffer_wanted: Some(64 << 20),
                ..PathReport::default()
            },
            first_burst_bytes: Some(262_144),
            max_burst_bytes: None,
            outstanding_r2t_max: None,
        };
        let object = path.object(Some("line_rate"));
        assert_eq!((&object["rtt_ms"], &object["rtt_least_ms"]), (&json!(41.5), &json!(40.0)));
        assert_eq!((&object["mb_per_s"], &object["limit"]), (&json!(117.0), &json!("line_rate")));
        assert_eq!(object["first_burst_bytes"], 262_144);
        assert!(object["max_burst_bytes"].is_null() && path.object(None)["limit"].is_null());
        let missing = object["missing"][0].as_str().unwrap();
        assert!(missing.ends_with("sysctl -w net.ipv4.tcp_rmem='4096 131072 67108864'"), "{missing}");
    }
}
