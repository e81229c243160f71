//! What was measured, and the figures that follow from it. Ratios and differences are those of each round, then their
//! spread: other load of the machine then meets both sides.

use super::copies::Copies;
use super::hand::Mode;
use super::hand_over::Handed;
use super::kills::Kills;
use super::lossy::Lossy;
use super::near::{Measure, Payload};
use super::parts::Parts;
use super::plan::{Row, Sizes, Stack};
use super::waiting::Waiting;
use super::{Handing, Rows, Sample, Staged};
use crate::Options;
use crate::stats::Spread;

pub(super) struct Results {
    pub(super) rows: Vec<Rows>,
    pub(super) staged: Vec<Staged>,
    pub(super) handings: Vec<Handing>,
    pub(super) switch_us: Vec<f64>,
    /// Of a slot in a stream of slots.
    pub(super) ring_ns: Vec<f64>,
    pub(super) copies: Vec<Copies>,
    pub(super) kills: Kills,
    pub(super) lossy: Lossy,
}

impl Rows {
    pub(super) fn spread(&self, value: impl Fn(&Sample) -> f64) -> Spread {
        Spread::of(self.samples.iter().map(value)).unwrap_or_default()
    }

    pub(super) fn is_echo(&self) -> bool {
        matches!(self.row.measure, Measure::Echo { .. })
    }

    /// The row's figure: microseconds of a round trip, or GB/s.
    pub(super) fn value(&self, sample: &Sample) -> f64 {
        match self.row.measure {
            Measure::Echo { .. } => sample.measured.round_trip.p50_us,
            _ => sample.measured.streamed.gb_per_s(),
        }
    }

    /// Processor seconds per GB of all processes but, where the peer sends, the peer.
    pub(super) fn cpu_per_gb(&self, sample: &Sample) -> f64 {
        let Sample { measured, servers, .. } = sample;
        let ours = measured.cpu.user + measured.cpu.system + servers.cpu.user + servers.cpu.system;
        let peer = measured.streamed.cpu_us as f64 / 1e6;
        (ours + peer) / (measured.streamed.bytes as f64 / 1e9).max(1e-9)
    }
}

impl Staged {
    pub(super) fn part(&self, part: impl Fn(&Parts) -> f64) -> Option<Spread> {
        Spread::of(self.samples.iter().map(part))
    }
}

impl Handing {
    pub(super) fn of(&self, mode: Mode, value: impl Fn(&Handed) -> f64) -> Option<Spread> {
        let at = Mode::ALL.iter().position(|other| *other == mode)?;
        Spread::of(self.samples.iter().filter_map(|modes| modes.get(at).map(&value)))
    }
}

/// A wire between both ends; its time is computed, not measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wire {
    pub(super) name: &'static str,
    pub(super) gbit_per_s: f64,
}

pub(super) const WIRES: [Wire; 4] = [
    Wire { name: "0.1 Gbit/s", gbit_per_s: 0.1 },
    Wire { name: "1 Gbit/s", gbit_per_s: 1.0 },
    Wire { name: "10 Gbit/s", gbit_per_s: 10.0 },
    Wire { name: "unlimited", gbit_per_s: f64::INFINITY },
];

/// Ethernet, IP and TCP header with timestamps; preamble, check sequence and gap between frames.
const FRAME_BYTES: usize = 14 + 20 + 32 + 8 + 4 + 12;
const SEGMENT_BYTES: usize = 1448;

impl Wire {
    /// Of a round trip's request and its answer of one byte, microseconds.
    pub(super) fn us(self, bytes: usize) -> f64 {
        let frames = bytes.div_ceil(SEGMENT_BYTES) + 1;
        let all = bytes + 1 + frames * FRAME_BYTES;
        all as f64 * 8.0 / self.gbit_per_s / 1e3
    }
}

/// A mode that takes at most so many times as long as another counts as no slower.
pub(super) const SAME: f64 = 1.1;

/// What hops take of each send in a stream of sends of 64 KiB.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamIpc {
    /// Switches from one process to another, per send.
    pub(super) switches: Spread,
    /// Switches and three slots of rings, nanoseconds.
    pub(super) ns: Spread,
    /// The same, in switches.
    pub(super) in_switches: Spread,
}

impl Results {
    pub(super) fn new(sizes: &Sizes, options: &Options) -> Self {
        Self {
            rows: sizes.rows(options).into_iter().map(|row| Rows { row, samples: Vec::new() }).collect(),
            staged: sizes.stages(options),
            handings: sizes.handings(options),
            switch_us: Vec::new(),
            ring_ns: Vec::new(),
            copies: Vec::new(),
            kills: Kills::default(),
            lossy: Lossy::default(),
        }
    }

    pub(super) fn switch(&self) -> Spread {
        Spread::of(self.switch_us.iter().copied()).unwrap_or_default()
    }

    /// Round trips, spinning or not, with the kernel's defaults.
    pub(super) fn echo(&self, stack: Stack, waiting: Waiting, bytes: usize) -> Option<&Rows> {
        self.rows.iter().find(|rows| {
            rows.is_echo()
                && rows.row.defers
                && (rows.row.stack, rows.row.waiting, rows.row.bytes()) == (stack, waiting, bytes)
        })
    }

    /// The row's value beside that of the kernel for the same measure.
    pub(super) fn ratios(&self, rows: &Rows) -> Option<Spread> {
        self.of_the_kernel(rows, Rows::value)
    }

    /// The same of processor time per GB.
    pub(super) fn cpu_ratios(&self, rows: &Rows) -> Option<Spread> {
        self.of_the_kernel(rows, Rows::cpu_per_gb)
    }

    fn of_the_kernel(&self, rows: &Rows, value: fn(&Rows, &Sample) -> f64) -> Option<Spread> {
        let is_same = |other: &Row| {
            other.stack == Stack::Kernel
                && (other.waiting, other.bytes(), other.defers)
                    == (rows.row.waiting, rows.row.bytes(), rows.row.defers)
                && std::mem::discriminant(&other.measure) == std::mem::discriminant(&rows.row.measure)
        };
        let kernel = self.rows.iter().find(|other| is_same(&other.row))?;
        let pairs = rows.samples.iter().zip(&kernel.samples);
        Spread::of(pairs.map(|(ours, theirs)| value(rows, ours) / value(kernel, theirs)))
    }

    pub(super) fn echo_ratio(&self, stack: Stack, waiting: Waiting, bytes: usize) -> Option<Spread> {
        self.ratios(self.echo(stack, waiting, bytes)?)
    }

    pub(super) fn staged(&self, stack: Stack, payload: Payload, bytes: usize) -> Option<&Staged> {
        self.staged
            .iter()
            .find(|staged| (staged.stack, staged.payload, staged.bytes) == (stack, payload, bytes))
    }

    /// Of our sends, written in place, and the kernel's.
    pub(super) fn of_sends(&self, bytes: usize, value: impl Fn(&Parts, &Parts) -> f64) -> Option<Spread> {
        let ours = self.staged(Stack::Three, Payload::InPlace, bytes)?;
        let kernel = self.staged(Stack::Kernel, Payload::Copied, bytes)?;
        Spread::of(ours.samples.iter().zip(&kernel.samples).map(|(ours, kernel)| value(ours, kernel)))
    }

    /// What processes add to a round trip, as a share of it, over a wire.
    pub(super) fn ipc_share(&self, bytes: usize, wire: Wire) -> Option<Spread> {
        let three = self.echo(Stack::Three, Waiting::Spin, bytes)?;
        let one = self.echo(Stack::One, Waiting::Spin, bytes)?;
        let share = |(three, one): (&Sample, &Sample)| {
            let [three, one] = [three, one].map(|sample| sample.measured.round_trip.p50_us);
            (three - one).max(0.0) / (three + wire.us(bytes))
        };
        Spread::of(three.samples.iter().zip(&one.samples).map(share))
    }

    /// Round trips of three processes by those of the kernel, over a wire.
    pub(super) fn wire_ratio(&self, bytes: usize, wire: Wire) -> Option<Spread> {
        let three = self.echo(Stack::Three, Waiting::Spin, bytes)?;
        let kernel = self.echo(Stack::Kernel, Waiting::Spin, bytes)?;
        let ratio = |(three, kernel): (&Sample, &Sample)| {
            let [three, kernel] =
                [three, kernel].map(|sample| sample.measured.round_trip.p50_us + wire.us(bytes));
            three / kernel
        };
        Spread::of(three.samples.iter().zip(&kernel.samples).map(ratio))
    }

    pub(super) fn stream_ipc(&self) -> Option<StreamIpc> {
        let rows = self.rows.iter().find(|rows| {
            rows.row.stack == Stack::Three
                && matches!(rows.row.measure, Measure::Out { payload: Payload::InPlace, .. })
        })?;
        let ring_ns = Spread::of(self.ring_ns.iter().copied())?.median;
        let per_send = |sample: &Sample| {
            let sends = sample.measured.streamed.bytes as f64 / rows.row.bytes() as f64;
            sample.switches as f64 / sends.max(1.0)
        };
        // Request, frame, direct return.
        let ns = |(sample, switch_us): (&Sample, &f64)| per_send(sample) * switch_us * 1e3 + 3.0 * ring_ns;
        let pairs = || rows.samples.iter().zip(&self.switch_us);
        Some(StreamIpc {
            switches: rows.spread(per_send),
            ns: Spread::of(pairs().map(ns))?,
            in_switches: Spread::of(pairs().map(|pair| ns(pair) / (pair.1 * 1e3)))?,
        })
    }

    /// The largest size at which `one` is at most `factor` times as slow as `other`, by medians.
    pub(super) fn crossover(&self, one: Mode, other: Mode, factor: f64) -> Option<usize> {
        let turn = |handing: &Handing, mode| Some(handing.of(mode, |handed| handed.turn_us)?.median);
        let is_so = |handing: &&Handing| {
            turn(handing, one).zip(turn(handing, other)).is_some_and(|(one, other)| one <= factor * other)
        };
        self.handings.iter().filter(is_so).map(|handing| handing.bytes).max()
    }

    /// The least share of sends that the driver returned directly.
    pub(super) fn direct_share(&self) -> Option<f64> {
        self.copies.iter().filter_map(|copies| copies.direct_share).reduce(f64::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wire_carries_headers_and_answer_too() {
        let [slow, .., none] = WIRES;
        // 256 + 90 and 1 + 90 bytes.
        assert!((slow.us(256) - 437.0 * 0.08).abs() < 1e-9, "{}", slow.us(256));
        assert_eq!(none.us(65_536), 0.0);
    }
}
