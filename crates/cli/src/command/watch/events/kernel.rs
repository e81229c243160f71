//! Reads the events and counts them for each connection.

use std::collections::HashMap;

use monitor::Sample;
use monitor::probe::Session;
use monitor::probe::bpf::{Counted, Event, Events, Range};
use serde_json::{Value, json};

use crate::units;

pub(in super::super) struct Precise {
    events: Option<Events>,
    refusal: Option<String>,
    /// By the cookies of the sockets.
    counted: HashMap<u64, Counted>,
}

impl Precise {
    /// Loads the programs if `wanted`.
    pub(in super::super) fn new(wanted: bool) -> Self {
        let (events, refusal) = match wanted.then(Events::new) {
            None => (None, None),
            Some(Ok(events)) => (Some(events), None),
            Some(Err(error)) => (None, Some(error.to_string())),
        };
        Self { events, refusal, counted: HashMap::new() }
    }

    /// Why there are no events, if they were wanted.
    pub(in super::super) fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    /// Once a second: watches these connections, and no others.
    pub(in super::super) fn watch(&mut self, sessions: &[Session]) {
        let Some(events) = &mut self.events else { return };
        let live = || sessions.iter().filter(|session| !session.ended).map(Session::cookie);
        if let Err(error) = events.watch(live()) {
            (self.events, self.refusal) = (None, Some(error.to_string()));
        }
        let kept = |cookie: &u64| sessions.iter().any(|session| session.cookie() == *cookie);
        self.counted.retain(|cookie, _| kept(cookie));
        live().for_each(|cookie| self.counted.entry(cookie).or_default().end_second());
    }

    /// Counts what has happened. Calls `on` with the state of the socket at each segment that arrived.
    pub(in super::super) fn read(&mut self, sessions: &[Session], mut on: impl FnMut(&Session, &Sample)) {
        let Some(events) = &mut self.events else { return };
        // Most events in a row are of one connection.
        let mut last: Option<&Session> = None;
        events.read(|record| {
            let is_its = |session: &&Session| session.cookie() == record.cookie;
            let Some(session) = last.filter(is_its).or_else(|| sessions.iter().find(is_its)) else { return };
            last = Some(session);
            if let Some(counted) = self.counted.get_mut(&record.cookie) {
                counted.add(record);
            }
            if let Event::Segment(sample) = &record.event {
                on(session, sample);
            }
        });
    }

    fn of(&self, session: &Session) -> Option<(&Events, &Counted)> {
        self.events.as_ref().zip(self.counted.get(&session.cookie()))
    }

    /// The field `events` of docs/schema/watch.json.
    pub(in super::super) fn json(&self, session: &Session) -> Value {
        let Some((events, counted)) = self.of(session) else { return Value::Null };
        let ranges = counted.ranges();
        let latest = counted
            .latest
            .iter()
            .map(|latest| json!({ "at_ns": latest.at_ns, "seq": latest.seq, "bytes": latest.bytes }));
        let written = |value: u64| events.has_writes.then_some(value);
        json!({
            "segments": counted.segments,
            "retransmissions": counted.retransmissions,
            "retransmitted_segments": counted.retransmitted_segments,
            "retransmitted_bytes": counted.retransmitted_bytes,
            "recoveries": counted.recoveries,
            "timeouts": counted.timeouts,
            "writes": written(counted.writes),
            "written_bytes": written(counted.written_bytes),
            "dropped": events.dropped_of(session.cookie()),
            "last_second": {
                "cwnd_segments": range(ranges.cwnd_segments),
                "rtt_us": range(ranges.rtt_us),
                "write_bytes": range(ranges.written_bytes),
            },
            "latest_retransmissions": latest.collect::<Vec<_>>(),
        })
    }

    /// What happened, for the end of the command.
    pub(in super::super) fn sentence(&self, session: &Session) -> Option<String> {
        let (events, counted) = self.of(session)?;
        let mut parts = vec![units::counted(counted.segments, "segment") + " received"];
        let last =
            counted.latest.back().map_or_else(String::new, |last| format!(", the last at {}", last.seq));
        let repeated = units::counted(counted.retransmissions, "retransmission");
        parts.push(format!("{repeated} ({}{last})", units::bytes(counted.retransmitted_bytes)));
        parts.push(units::counted(counted.timeouts, "time-out"));
        if let (true, Some(mean)) = (events.has_writes, counted.written_bytes.checked_div(counted.writes)) {
            let writes = units::counted(counted.writes, "write");
            parts.push(format!("{writes} of {} on average", units::bytes(mean)));
        }
        let dropped = events.dropped_of(session.cookie());
        if dropped > 0 {
            parts.push(format!("{} came faster than they were read", units::counted(dropped, "event")));
        }
        Some(format!("since the start: {}", parts.join(", ")))
    }
}

fn range<T: serde::Serialize>(range: Option<Range<T>>) -> Value {
    range.map_or(Value::Null, |range| json!({ "least": range.least, "most": range.most }))
}
