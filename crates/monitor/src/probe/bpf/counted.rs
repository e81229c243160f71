//! What the events of one socket add up to.

use std::collections::VecDeque;

use super::{Event, Record};
use crate::limits::RETRANSMISSIONS_KEPT_MAX;
use crate::sample::CaState;

/// Least and greatest of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range<T> {
    pub least: T,
    pub most: T,
}

/// Ranges over some time; `None` where nothing was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ranges {
    pub cwnd_segments: Option<Range<u32>>,
    /// The smoothed round trip.
    pub rtt_us: Option<Range<u32>>,
    pub written_bytes: Option<Range<u64>>,
}

/// One retransmission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retransmission {
    /// Nanoseconds of the monotonic clock.
    pub at_ns: u64,
    /// On the wire.
    pub seq: u32,
    pub bytes: u32,
}

/// Counts since the socket is watched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Segments that arrived; merged ones (GRO) count once.
    pub segments: u64,
    pub retransmissions: u64,
    /// As `tcpi_total_retrans` counts.
    pub retransmitted_segments: u64,
    pub retransmitted_bytes: u64,
    /// Times that congestion control began to repair a loss, and that it began after a time-out.
    pub recoveries: u64,
    pub timeouts: u64,
    pub writes: u64,
    pub written_bytes: u64,
    /// The newest at the end; at most [`RETRANSMISSIONS_KEPT_MAX`].
    pub latest: VecDeque<Retransmission>,
    since: Ranges,
    before: Ranges,
}

fn widen<T: Copy + Ord>(range: &mut Option<Range<T>>, value: Option<T>) {
    let Some(value) = value else { return };
    let Range { least, most } = range.unwrap_or(Range { least: value, most: value });
    *range = Some(Range { least: least.min(value), most: most.max(value) });
}

impl Counted {
    /// Counts an event of this socket.
    pub fn add(&mut self, record: &Record) {
        match &record.event {
            Event::Segment(sample) => {
                self.segments = self.segments.saturating_add(1);
                widen(&mut self.since.cwnd_segments, sample.cwnd_segments);
                widen(&mut self.since.rtt_us, sample.rtt_us);
            }
            Event::Retransmitted { seq, bytes, segments, .. } => {
                self.retransmissions = self.retransmissions.saturating_add(1);
                self.retransmitted_segments = self.retransmitted_segments.saturating_add((*segments).into());
                self.retransmitted_bytes = self.retransmitted_bytes.saturating_add((*bytes).into());
                if self.latest.len() == RETRANSMISSIONS_KEPT_MAX {
                    self.latest.pop_front();
                }
                self.latest.push_back(Retransmission { at_ns: record.at_ns, seq: *seq, bytes: *bytes });
            }
            Event::State { after, cwnd_segments, .. } => {
                let counter = match after {
                    CaState::Recovery => Some(&mut self.recoveries),
                    CaState::Loss => Some(&mut self.timeouts),
                    CaState::Open | CaState::Disorder | CaState::Cwr => None,
                };
                counter.into_iter().for_each(|count| *count = count.saturating_add(1));
                widen(&mut self.since.cwnd_segments, Some(*cwnd_segments));
            }
            Event::Written { bytes, .. } => {
                self.writes = self.writes.saturating_add(1);
                self.written_bytes = self.written_bytes.saturating_add(*bytes);
                widen(&mut self.since.written_bytes, Some(*bytes));
            }
        }
    }

    /// A second has ended: [`Self::ranges`] is of it from now on.
    pub fn end_second(&mut self) {
        self.before = std::mem::take(&mut self.since);
    }

    /// Ranges over the second that ended last.
    pub fn ranges(&self) -> &Ranges {
        &self.before
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sample;

    #[test]
    fn events_add_up() {
        let mut counted = Counted::default();
        let mut add = |at_ns, event| counted.add(&Record { cookie: 1, at_ns, event });
        for cwnd in [10, 7, 30] {
            let sample = Sample { cwnd_segments: Some(cwnd), ..Sample::default() };
            add(1, Event::Segment(sample));
        }
        for number in 0..20 {
            let (seq, bytes) = (number, 2896);
            add(2, Event::Retransmitted { seq, bytes, segments: 2, total_retrans: 2 * number + 2 });
        }
        for after in [CaState::Disorder, CaState::Recovery, CaState::Loss, CaState::Loss] {
            let before = CaState::Open;
            add(3, Event::State { before, after, cwnd_segments: 5, ssthresh_segments: 5 });
        }
        for bytes in [48, 65_536] {
            add(4, Event::Written { seq: 0, bytes, notsent_bytes: 0 });
        }
        assert_eq!((counted.segments, counted.recoveries, counted.timeouts), (3, 1, 2));
        let sums = (counted.retransmissions, counted.retransmitted_segments, counted.retransmitted_bytes);
        assert_eq!(sums, (20, 40, 20 * 2896));
        assert_eq!((counted.writes, counted.written_bytes), (2, 65_584));
        assert_eq!(counted.latest.len(), RETRANSMISSIONS_KEPT_MAX);
        assert_eq!(counted.latest.back().map(|latest| latest.seq), Some(19));
        assert_eq!(counted.ranges(), &Ranges::default());
        counted.end_second();
        let cwnd_segments = Some(Range { least: 5, most: 30 });
        let written_bytes = Some(Range { least: 48, most: 65_536 });
        assert_eq!(counted.ranges(), &Ranges { cwnd_segments, rtt_us: None, written_bytes });
        counted.end_second();
        assert_eq!(counted.ranges(), &Ranges::default());
    }
}
