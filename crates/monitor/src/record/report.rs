//! A recording from its samples to verdicts, in the same form as a capture's.

use std::cmp::Reverse;
use std::io::Read;
use std::ops::Range;

use super::{Ended, Flow, Item, RecordError, read};
use crate::analysis::{FlowReport, Report};
use crate::capture;
use crate::command::{Counts, Summary};
use crate::event::{Distances, Side, Vantage};
use crate::limits::{FLOWS_REPORTED_MAX, RECORD_SAMPLES_MAX, SERIES_POINTS_MAX};
use crate::model::{Cpu, Evidence, Peers, Source, System, advise, judge, sampled};
use crate::sample::Sample;
use crate::series::{Bins, Collector, Point, Series};
use crate::view;

/// `watch` samples every 10 ms or more often: a longer pause is the time between two of its runs, or a stopped machine.
const PAUSE_NS: u64 = 2_000_000_000;

/// Most parts of the time between two samples over which its bytes are spread in the picture of the rate.
const SPREAD_MAX: u64 = 64;

/// Analyses a recording; `source` is its name. With `has_pictures`, the reports have points for pictures.
///
/// # Errors
/// Those of [`read`]. A recording without a connection gives a report without one.
pub fn analyze(input: impl Read, source: &str, has_pictures: bool) -> Result<Report, RecordError> {
    let mut ends = Ends { all: Vec::new(), held: 0, samples_max: RECORD_SAMPLES_MAX };
    let ended = read(input, |number, flow, item| ends.add(number, flow, item))?;
    Ok(report(ends.all, &ended, source, has_pictures))
}

fn report(mut ends: Vec<End>, ended: &Ended, source: &str, has_pictures: bool) -> Report {
    ends.iter_mut().for_each(End::settle);
    let sampled = ends.len();
    let mut judged: Vec<_> =
        ends.into_iter().filter_map(|end| end.evidence().map(|evidence| (end, evidence))).collect();
    let mut notes = Vec::new();
    if ended.damaged_bytes > 0 {
        notes.push(format!("{} bytes of the recording are damaged and left out", ended.damaged_bytes));
    }
    if judged.len() < sampled {
        notes
            .push(format!("{} connections carried no data while they were recorded", sampled - judged.len()));
    }
    judged.sort_by_key(|(_, evidence)| Reverse(evidence.data_bytes));
    let at_sender: Vec<_> = judged.iter().filter(|(_, evidence)| is_at_sender(evidence)).collect();
    // Both ends may be on the recording machine: the sender's socket shows what limits.
    let has_better: Vec<_> = judged
        .iter()
        .map(|(end, evidence)| {
            !is_at_sender(evidence) && at_sender.iter().any(|(other, _)| other.ends() == end.ends())
        })
        .collect();
    let mut has_better = has_better.into_iter();
    judged.retain(|_| !has_better.next().unwrap_or(false));
    if judged.len() > FLOWS_REPORTED_MAX {
        let more = judged.len() - FLOWS_REPORTED_MAX;
        notes.push(format!("{more} connections with less data are not reported"));
        judged.truncate(FLOWS_REPORTED_MAX);
    }
    let points = if has_pictures { SERIES_POINTS_MAX / judged.len().max(1) } else { 0 };
    let ended_ns = judged.iter().filter_map(|(end, _)| end.part.last()).map(|sample| sample.at_ns).max();
    let flows = (1..).zip(judged).map(|(id, (end, evidence))| end.report(id, evidence, source, points));
    Report {
        flows: flows.collect(),
        frames: capture::Counts::default(),
        ended_ns: ended_ns.unwrap_or(0),
        notes,
    }
}

fn is_at_sender(evidence: &Evidence) -> bool {
    evidence.source == Source::Probe(evidence.sender)
}

/// Sockets by the numbers that [`read`] gives them.
struct Ends {
    all: Vec<End>,
    /// Samples that are held, or were when they were counted last.
    held: usize,
    samples_max: usize,
}

impl Ends {
    fn add(&mut self, number: usize, flow: &Flow, item: Item) {
        while self.all.len() <= number {
            self.all.push(End::new(flow.clone()));
        }
        let end = &mut self.all[number];
        // The process and the target may have become known since.
        end.flow.clone_from(flow);
        match item {
            // Verdicts are of samples at equal distances, with all counters.
            Item::Sample(sample) if sample.is_of_event() => return,
            Item::Sample(sample) => end.sample(sample),
            Item::Cpu(cpu) => end.cpu.add(&cpu),
            // `watch` records samples alone.
            Item::Event(_) => return,
        }
        self.held += 1;
        if self.held > self.samples_max {
            if let Some(longest) = self.all.iter_mut().max_by_key(|end| end.held()) {
                longest.halve();
            }
            self.held = self.all.iter().map(End::held).sum();
        }
    }
}

/// One socket of the recording.
struct End {
    flow: Flow,
    /// Samples without a pause between them, the latest, and the longest of earlier ones.
    part: Vec<Sample>,
    longest: Vec<Sample>,
    /// Parts with a pause between them.
    parts: u64,
    is_thinned: bool,
    cpu: Processor,
}

/// Means of what was recorded of the processor.
#[derive(Default)]
struct Processor {
    count: u64,
    busiest_thread: f64,
    waiting: f64,
    cipher: Option<f64>,
}

impl Processor {
    fn add(&mut self, cpu: &Cpu) {
        self.count += 1;
        self.busiest_thread += cpu.busiest_thread;
        self.waiting += cpu.waiting;
        if let Some(cipher) = cpu.cipher {
            *self.cipher.get_or_insert(0.0) += cipher;
        }
    }

    fn mean(&self) -> Option<Cpu> {
        let count = self.count as f64;
        (self.count > 0).then(|| Cpu {
            busiest_thread: self.busiest_thread / count,
            waiting: self.waiting / count,
            cipher: self.cipher.map(|sum| sum / count),
        })
    }
}

/// Adds bytes that moved at an unknown moment of this time: evenly.
fn spread(rate: &mut Bins, time: Range<u64>, bytes: u64) {
    let length = time.end.saturating_sub(time.start);
    let steps = (length / rate.width_ns.max(Bins::WIDTH_MIN_NS)).clamp(1, SPREAD_MAX);
    for step in 1..=steps {
        let share = bytes / steps + u64::from(step <= bytes % steps);
        rate.add(time.start + length / steps * step, share);
    }
}

fn period_ns(samples: &[Sample]) -> u64 {
    samples.first().zip(samples.last()).map_or(0, |(first, last)| last.at_ns.saturating_sub(first.at_ns))
}

fn data(sample: &Sample) -> (Option<u64>, Option<u64>) {
    (sample.bytes_acked, sample.bytes_received)
}

impl End {
    fn new(flow: Flow) -> Self {
        let (part, longest) = (Vec::new(), Vec::new());
        Self { flow, part, longest, parts: 1, is_thinned: false, cpu: Processor::default() }
    }

    fn held(&self) -> usize {
        self.part.len() + self.longest.len()
    }

    fn sample(&mut self, sample: Sample) {
        if let Some(last) = self.part.last() {
            let is_earlier = sample.at_ns < last.at_ns;
            // Another connection between the same addresses counts from 0.
            let is_other =
                sample.bytes_acked < last.bytes_acked || sample.bytes_received < last.bytes_received;
            if is_earlier || is_other || sample.at_ns - last.at_ns > PAUSE_NS {
                self.parts += 1;
                let part = std::mem::take(&mut self.part);
                if period_ns(&part) > period_ns(&self.longest) {
                    self.longest = part;
                }
            }
        }
        self.part.push(sample);
    }

    /// Leaves every second sample out: counters tell what was between.
    fn halve(&mut self) {
        self.is_thinned = true;
        for samples in [&mut self.part, &mut self.longest] {
            let mut number = 0;
            samples.retain(|_| {
                number += 1;
                number % 2 == 1
            });
        }
    }

    /// Keeps the longest part, from the first byte to the last.
    fn settle(&mut self) {
        if period_ns(&self.longest) > period_ns(&self.part) {
            std::mem::swap(&mut self.part, &mut self.longest);
        }
        self.longest = Vec::new();
        let part = &mut self.part;
        if let Some(last) = part.windows(2).rposition(|pair| data(&pair[0]) != data(&pair[1])) {
            part.truncate(last + 2);
        }
        if let Some(first) = part.windows(2).position(|pair| data(&pair[0]) != data(&pair[1])) {
            part.drain(..first);
        }
    }

    fn evidence(&self) -> Option<Evidence> {
        let evidence = sampled(self.flow.side, &self.part, self.cpu.mean())?;
        (evidence.data_bytes > 0).then_some(evidence)
    }

    /// Initiator and target as text.
    fn ends(&self) -> [String; 2] {
        let canonical =
            |end: std::net::SocketAddr| std::net::SocketAddr::new(end.ip().to_canonical(), end.port());
        let ends = [canonical(self.flow.local), canonical(self.flow.remote)].map(|end| end.to_string());
        let [local, remote] = ends;
        if self.flow.side == Side::Initiator { [local, remote] } else { [remote, local] }
    }

    fn report(self, id: u64, evidence: Evidence, source: &str, points_max: usize) -> FlowReport {
        let [initiator, target] = self.ends();
        let name = Some(self.flow.target.clone()).filter(|name| !name.is_empty());
        // Only sessions of the kernel's initiator have a name here.
        let owner = System::of_process(&self.flow.process);
        let system = if name.is_some() { Some(System::OpenIscsi) } else { owner };
        let peers = Peers::of_login(None, name.as_deref(), None, &target).with(self.flow.side, system);
        let mut verdict = judge(&evidence);
        advise(&mut verdict, &evidence, &peers);
        let flow = view::Flow {
            id: id.to_string(),
            source: source.to_owned(),
            initiator,
            target,
            initiator_name: None,
            target_name: name,
            vantage: Vantage::At(self.flow.side),
            distances: Distances::default(),
            negotiated: Vec::new(),
            commands: 0,
            frames: 0,
        };
        let grown = |of: fn(&Sample) -> Option<u64>| {
            let ends = self.part.first().zip(self.part.last());
            ends.and_then(|(first, last)| Some(of(last)?.saturating_sub(of(first)?))).unwrap_or(0)
        };
        let (sent, received) = (grown(|sample| sample.bytes_acked), grown(|sample| sample.bytes_received));
        let series = if points_max > 0 { self.series(points_max) } else { Series::default() };
        FlowReport {
            flow,
            verdict,
            seconds: period_ns(&self.part) as f64 / 1e9,
            evidence,
            series,
            commands: Vec::new(),
            summary: Summary::default(),
            counts: Counts::default(),
            payload_bytes: if self.flow.side == Side::Initiator {
                [sent, received]
            } else {
                [received, sent]
            },
            notes: self.notes(),
        }
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = vec![format!(
            "sampled: {} samples of the {}'s socket{}, no packets",
            self.part.len(),
            if self.flow.side == Side::Initiator { "initiator" } else { "target" },
            if self.flow.process.is_empty() { String::new() } else { format!(" ({})", self.flow.process) },
        )];
        if self.parts > 1 {
            notes.push(format!(
                "the recording has {} parts of this connection: the longest is judged",
                self.parts
            ));
        }
        if self.is_thinned {
            notes.push("the recording is long: a part of the samples is left out".to_owned());
        }
        notes
    }

    fn series(&self, points_max: usize) -> Series {
        let mut collector = Collector::new(points_max);
        self.part.iter().for_each(|sample| collector.handle_sample(self.flow.side, sample));
        let mut series = collector.finish();
        for pair in self.part.windows(2) {
            let [before, now] = pair else { continue };
            let grown = |of: fn(&Sample) -> Option<u64>| {
                Some(of(now)?.saturating_sub(of(before)?)).filter(|bytes| *bytes > 0)
            };
            let ways = [
                (self.flow.side, grown(|sample| sample.bytes_acked)),
                (self.flow.side.peer(), grown(|sample| sample.bytes_received)),
            ];
            for (from, bytes) in ways {
                if let Some(bytes) = bytes {
                    spread(&mut series.directions[from as usize].rate, before.at_ns..now.at_ns, bytes);
                }
            }
        }
        for sample in &self.part {
            let Some(value) = sample.outstanding.map(u64::from) else { continue };
            if series.outstanding.last().is_none_or(|last| last.value != value) {
                series.outstanding.push(Point { at_ns: sample.at_ns, value });
            }
        }
        series
    }
}

#[cfg(test)]
mod tests {
    use super::super::Writer;
    use super::*;

    const MSS: u32 = 1448;

    fn flow(port: u16, side: Side) -> Flow {
        let (near, far) = (([10, 0, 0, 1], port).into(), ([10, 0, 0, 2], 3260).into());
        let (local, remote) = if side == Side::Initiator { (near, far) } else { (far, near) };
        let (congestion, process, target) = ("cubic".into(), "a\u{1b}[2J".into(), String::new());
        Flow { local, remote, side, congestion, process, target }
    }

    /// Sample `number` of an end that sends 1 MB in 10 ms and whose buffer is full.
    fn sample(number: u64, at_ns: u64) -> Sample {
        Sample {
            at_ns,
            state: 1,
            mss_bytes: Some(MSS),
            cwnd_segments: Some(4000),
            unacked_segments: Some(700),
            notsent_bytes: Some(0),
            peer_window_bytes: Some(8 << 20),
            rtt_us: Some(20_000),
            min_rtt_us: Some(20_000),
            bytes_acked: Some(number * 1_000_000),
            bytes_received: Some(number * 48),
            send_queue_bytes: Some(1_300_000),
            send_buffer_bytes: Some(1_400_000),
            ..Sample::default()
        }
    }

    fn recording(write: impl FnOnce(&mut Writer<Vec<u8>>)) -> Report {
        let mut writer = Writer::new(Vec::new(), 0);
        write(&mut writer);
        writer.flush().unwrap();
        analyze(&writer.into_inner()[..], "a.rec", true).unwrap()
    }

    #[test]
    fn samples_end_in_a_verdict_like_that_of_a_capture() {
        let report = recording(|writer| {
            for number in 0..300 {
                // Nothing moves before and after the load.
                let count = number.clamp(50, 250);
                let at = number * 10_000_000;
                writer.sample(1, &flow(40_000, Side::Initiator), &sample(count, at)).unwrap();
                // The receiver on the same machine.
                let other = Sample {
                    bytes_acked: Some(count * 48),
                    bytes_received: Some(count * 1_000_000),
                    ..sample(0, at)
                };
                writer.sample(2, &flow(40_000, Side::Target), &other).unwrap();
            }
        });
        let [flow] = &report.flows[..] else { panic!("{:?}", report.flows.len()) };
        assert_eq!(
            (flow.flow.initiator.as_str(), flow.flow.target.as_str()),
            ("10.0.0.1:40000", "10.0.0.2:3260")
        );
        assert_eq!(flow.verdict.limit, crate::Cause::SendBuffer);
        assert!((flow.verdict.bytes_per_s / 1e8 - 1.0).abs() < 0.01, "{}", flow.verdict.bytes_per_s);
        assert_eq!(flow.payload_bytes, [200_000_000, 9600]);
        assert!((flow.seconds - 2.0).abs() < 0.02 && flow.notes[0].starts_with("sampled: 201 samples"));
        // 1 MB in 10 ms, in bins of 1 ms.
        let rate = &flow.series.direction(Side::Initiator).rate;
        let middle = &rate.sums[10..1000];
        assert!(!flow.series.is_empty() && rate.width_ns == Bins::WIDTH_MIN_NS);
        assert!(middle.iter().all(|sum| *sum == 100_000), "{:?}", &middle[..20]);
        assert_eq!(rate.sums.iter().sum::<u64>(), 200_000_000);
    }

    #[test]
    fn events_between_samples_change_no_verdict() {
        let write = |has_events: bool| {
            recording(|writer| {
                for number in 0..200 {
                    let at = number * 10_000_000;
                    writer.sample(1, &flow(40_000, Side::Initiator), &sample(number, at)).unwrap();
                    // Some are newer than the next sample.
                    for offset in [1_000_000, 9_000_000, 10_100_000].into_iter().filter(|_| has_events) {
                        let bytes_received = None;
                        let event = Sample { bytes_received, ..sample(number + 1, at + offset) };
                        writer.sample(1, &flow(40_000, Side::Initiator), &event).unwrap();
                    }
                }
            })
        };
        let [with, without] = [true, false].map(write);
        let [with, without] = [&with, &without].map(|report| {
            let [flow] = &report.flows[..] else { panic!("{}", report.flows.len()) };
            (flow.verdict.sentence.clone(), flow.notes.clone(), flow.payload_bytes, flow.seconds)
        });
        assert_eq!(with, without);
    }

    #[test]
    fn a_pause_and_another_connection_between_the_same_addresses_are_not_the_load() {
        let report = recording(|writer| {
            let mut write = |number, at| {
                writer.sample(1, &flow(40_000, Side::Initiator), &sample(number, at)).unwrap();
            };
            (0..50).for_each(|number| write(number, number * 10_000_000));
            (0..200).for_each(|number| write(9000 + number, 60_000_000_000 + number * 10_000_000));
            (0..100).for_each(|number| write(number, 62_000_000_000 + number * 10_000_000));
        });
        let flow = &report.flows[0];
        assert!((flow.seconds - 1.99).abs() < 0.01, "{}", flow.seconds);
        assert_eq!(flow.payload_bytes[0], 199_000_000);
        assert!(flow.notes[1].contains("3 parts"), "{:?}", flow.notes);
    }

    #[test]
    fn samples_are_bounded_and_the_rate_remains() {
        let mut ends = Ends { all: Vec::new(), held: 0, samples_max: 100 };
        for number in 0..5000 {
            let sample = sample(number, number * 10_000_000);
            ends.add(0, &flow(40_000, Side::Initiator), Item::Sample(sample));
        }
        assert!(ends.all[0].held() <= 100);
        let ended = Ended { started_unix_ns: None, damaged_bytes: 7 };
        let report = report(ends.all, &ended, "a.rec", false);
        let verdict = &report.flows[0].verdict;
        assert!((verdict.bytes_per_s / 1e8 - 1.0).abs() < 0.01, "{}", verdict.bytes_per_s);
        assert!(report.flows[0].notes[1].contains("left out") && report.notes[0].starts_with("7 bytes"));
    }
}
