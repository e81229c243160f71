//! One of this process's own connections, from its start to its end: samples at a low rate, in bounded memory.

use crate::event::{Distances, Side, Vantage};
use crate::limits::FOLLOWED_POINTS_MAX;
use crate::model::{Cause, Cpu, Evidence, Protocol, Source, Verdict, judge, sampled};
use crate::sample::Sample;
use crate::series::{Collector, Series};
use crate::view::svg::{self, Figure};
use crate::view::{Flow, Subject};

/// Samples that are judged together.
const BLOCK: usize = 100;
/// Least samples for a verdict.
const LEAST: u64 = 5;
/// A command that takes so many round trips and waits for nothing of TCP waits for the target.
const TARGET_RTTS: f64 = 4.0;
/// Figures of a socket that samples alone fill.
const FIGURES: [&str; 3] = ["queue", "windows", "rtt"];

/// Follows the initiator's socket of one connection, or of successive ones.
#[derive(Debug)]
pub struct Followed {
    block: Vec<Sample>,
    sum: Option<Evidence>,
    series: Collector,
    samples: u64,
    first_ns: u64,
    depth_max: u32,
    last: Sample,
}

impl Default for Followed {
    fn default() -> Self {
        Self {
            block: Vec::with_capacity(BLOCK),
            sum: None,
            series: Collector::new(FOLLOWED_POINTS_MAX),
            samples: 0,
            first_ns: 0,
            depth_max: 0,
            last: Sample::default(),
        }
    }
}

/// What only the process itself knows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Known {
    pub cpu: Option<Cpu>,
    /// Commands with data, and the bytes of one.
    pub commands: u64,
    pub block_bytes: u64,
    /// Half of the commands took no longer.
    pub command_s: Option<f64>,
}

/// What the samples of a connection showed.
#[derive(Debug)]
pub struct Found {
    pub samples: u64,
    /// The last sample.
    pub last: Sample,
    pub evidence: Evidence,
    pub verdict: Verdict,
    series: Series,
}

impl Followed {
    /// Adds a sample, in the order of time. One whose counters are below those before is of the next connection.
    pub fn add(&mut self, sample: Sample) {
        if self.samples == 0 {
            self.first_ns = sample.at_ns;
        }
        self.samples += 1;
        self.depth_max = self.depth_max.max(sample.outstanding.unwrap_or(0));
        let relative = Sample { at_ns: sample.at_ns.saturating_sub(self.first_ns), ..sample.clone() };
        self.series.handle_sample(Side::Initiator, &relative);
        if sample.bytes_acked < self.last.bytes_acked || sample.bytes_received < self.last.bytes_received {
            self.settle();
            self.block.clear();
        }
        self.last = sample.clone();
        self.block.push(sample);
        if self.block.len() >= BLOCK {
            self.settle();
            self.block.drain(..BLOCK - 1);
        }
    }

    fn settle(&mut self) {
        let Some(evidence) = sampled(Side::Initiator, &self.block, None) else { return };
        match &mut self.sum {
            Some(sum) => sum.extend(&evidence),
            None => self.sum = Some(evidence),
        }
    }

    /// The verdict; `None` for too few samples, or without data.
    pub fn finish(mut self, known: Known) -> Option<Found> {
        self.settle();
        let mut evidence = self.sum.filter(|evidence| evidence.data_bytes > 0 && self.samples >= LEAST)?;
        evidence.source = Source::Own(Side::Initiator);
        evidence.cpu = known.cpu;
        let rtt = evidence.path.rtt_loaded_s.or(evidence.path.rtt_s);
        let target_s = known.command_s.map_or(0.0, |command| (command - rtt.unwrap_or(0.0)).max(0.0));
        evidence.protocol = Some(Protocol {
            commands: known.commands,
            block_bytes: known.block_bytes,
            depth: self.depth_max,
            depth_max: self.depth_max,
            target_s,
            ..Protocol::default()
        });
        // Commands are outstanding, everything is sent, and a command takes far longer than the network.
        if let (Some(command), Some(rtt)) = (known.command_s, rtt)
            && command > TARGET_RTTS * rtt
            && evidence.alternatives[Cause::Target] > 0.0
            && evidence.alternatives[Cause::SendBuffer] == 0.0
        {
            let seconds = std::mem::take(&mut evidence.waits[Cause::Unknown]);
            evidence.waits[Cause::Target] += seconds;
            for cause in [Cause::QueueDepth, Cause::R2t, Cause::Target] {
                evidence.alternatives[cause] = 0.0;
            }
        }
        let (verdict, series) = (judge(&evidence), self.series.finish());
        Some(Found { samples: self.samples, last: self.last, evidence, verdict, series })
    }
}

impl Found {
    /// Pictures of the send queue, the windows and the round trip over time, as far as there is something to show.
    pub fn figures(&self) -> Vec<Figure> {
        let flow = Flow {
            id: String::new(),
            source: String::new(),
            initiator: String::new(),
            target: String::new(),
            initiator_name: None,
            target_name: None,
            vantage: Vantage::At(Side::Initiator),
            distances: Distances::default(),
            negotiated: Vec::new(),
            commands: 0,
            frames: 0,
        };
        // The pictures are of this end, whoever sends the data.
        let evidence = Evidence { sender: Side::Initiator, ..self.evidence.clone() };
        let subject = Subject {
            flow,
            verdict: &self.verdict,
            evidence: &evidence,
            series: &self.series,
            commands: &[],
            notes: &[],
        };
        svg::figures(&subject).into_iter().filter(|figure| FIGURES.contains(&figure.name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sample of a sender whose queue has reached its cap, 200 ms after the one before.
    fn full(index: u64) -> Sample {
        Sample {
            at_ns: 1_000_000_000 + index * 200_000_000,
            state: 1,
            mss_bytes: Some(1448),
            cwnd_segments: Some(2000),
            unacked_segments: Some(276),
            notsent_bytes: Some(0),
            rtt_us: Some(50_500),
            min_rtt_us: Some(50_000),
            total_retrans: Some(0),
            data_segs_out: Some(index as u32),
            bytes_acked: Some(index * 1_600_000),
            bytes_received: Some(0),
            send_queue_bytes: Some(3 << 20),
            send_buffer_bytes: Some(4 << 20),
            outstanding: Some(8),
            ..Sample::default()
        }
    }

    fn followed(samples: impl Iterator<Item = Sample>) -> Followed {
        let mut followed = Followed::default();
        samples.for_each(|sample| followed.add(sample));
        followed
    }

    #[test]
    fn a_long_copy_is_judged_as_a_whole() {
        for count in [6, 99, 100, 101, 1234] {
            let found = followed((0..count).map(full)).finish(Known::default()).unwrap();
            let evidence = &found.evidence;
            assert_eq!((found.verdict.limit, found.samples), (Cause::SendBuffer, count), "{count}");
            assert!((evidence.seconds - 0.2 * (count - 1) as f64).abs() < 1e-6, "{}", evidence.seconds);
            assert!((evidence.waits.total() - evidence.seconds).abs() < 1e-6);
            assert_eq!(evidence.data_bytes, (count - 1) * 1_600_000);
            assert_eq!(evidence.path.data_packets, count - 1);
            assert!((found.verdict.bytes_per_s - 8e6).abs() < 1.0);
            let names: Vec<_> = found.figures().iter().map(|figure| figure.name).collect();
            assert_eq!(names, FIGURES);
        }
        assert!(followed((0..4).map(full)).finish(Known::default()).is_none());
    }

    #[test]
    fn a_connection_that_was_lost_is_followed_by_the_next() {
        let found = followed(
            (0..50)
                .map(full)
                .chain((0..50).map(|index| Sample { at_ns: full(50 + index).at_ns, ..full(index) })),
        );
        let evidence = found.finish(Known::default()).unwrap().evidence;
        assert_eq!(evidence.data_bytes, 2 * 49 * 1_600_000);
    }

    #[test]
    fn a_slow_command_is_the_targets() {
        let idle = |index| Sample { unacked_segments: Some(0), send_queue_bytes: Some(0), ..full(index) };
        let limit = |command_s| {
            let known = Known { command_s, ..Known::default() };
            followed((0..50).map(idle)).finish(known).unwrap().verdict.limit
        };
        assert_eq!(limit(Some(0.4)), Cause::Target);
        assert_eq!((limit(Some(0.06)), limit(None)), (Cause::Unknown, Cause::Unknown));
    }
}
