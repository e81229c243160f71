//! What is measured: rows, sizes, placements.

use super::Staged;
use super::near::{Measure, Payload};
use super::waiting::Waiting;
use crate::Options;
use crate::stats::size;

/// Who carries the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stack {
    /// Kernel sockets over a veth pair.
    Kernel,
    /// Our parts in one process.
    One,
    /// `hikyaku net up`, and the application.
    Three,
}

impl Stack {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::One => "one process",
            Self::Three => "three processes",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) stack: Stack,
    pub(super) waiting: Waiting,
    pub(super) measure: Measure,
}

impl Row {
    /// What is measured, without the size.
    pub(super) fn what(&self) -> &'static str {
        match self.measure {
            Measure::Echo { .. } => "round trip",
            Measure::Out { payload: Payload::Copied, .. } => "stream to the kernel, copied into areas",
            Measure::Out { payload: Payload::InPlace, .. } => "stream to the kernel, written in place",
            Measure::In { by_area: true, .. } => "stream from the kernel, by area",
            Measure::In { by_area: false, .. } => "stream from the kernel, into place",
        }
    }

    pub(super) fn bytes(&self) -> usize {
        match self.measure {
            Measure::Echo { bytes, .. } | Measure::Out { bytes, .. } | Measure::In { bytes, .. } => bytes,
        }
    }

    pub(super) fn name(&self) -> String {
        let Self { stack, waiting, .. } = self;
        format!("{}, {}, {}, {}", self.what(), size(self.bytes() as u64), stack.name(), waiting.name())
    }
}

impl Staged {
    pub(super) fn name(&self) -> String {
        let how = match self.payload {
            Payload::InPlace => "written in place",
            Payload::Copied => "copied into the area",
        };
        format!("a send taken apart, {}, {how}", size(self.bytes as u64))
    }
}

/// The paper's sizes, and on to 64 KiB.
pub(super) const SIZES: [u32; 8] = [256, 512, 768, 1024, 1460, 4096, 16_384, 65_536];
const QUICK: [u32; 2] = [256, 1024];
const STREAM_BYTES: usize = 64 << 10;

pub(super) struct Sizes {
    pub(super) rounds: usize,
    pub(super) sizes: Vec<u32>,
    count: usize,
    stream_ms: u64,
    pub(super) sends: usize,
    pub(super) kills: usize,
}

impl Sizes {
    pub(super) fn new(options: &Options) -> Self {
        let quick = options.quick;
        Self {
            rounds: options.reps.unwrap_or(if quick { 1 } else { 5 }),
            sizes: options.values(&options.blocks, &QUICK, &SIZES),
            count: if quick { 2000 } else { 5000 },
            stream_ms: if quick { 300 } else { 700 },
            sends: if quick { 1000 } else { 4000 },
            kills: if quick { 3 } else { 25 },
        }
    }

    pub(super) fn rows(&self, options: &Options) -> Vec<Row> {
        let mut rows = Vec::new();
        let stacks = [Stack::Kernel, Stack::One, Stack::Three];
        for &bytes in &self.sizes {
            let bytes = bytes as usize;
            let measure = |count| Measure::Echo { bytes, count, payload: Payload::Copied };
            for stack in stacks {
                rows.push(Row { stack, waiting: Waiting::Spin, measure: measure(self.count) });
            }
            // A process cannot sleep while it must do the servers' turns.
            for stack in [Stack::Kernel, Stack::Three].into_iter().filter(|_| bytes == 256 || bytes == 1024) {
                rows.push(Row { stack, waiting: Waiting::Block, measure: measure(self.count / 5) });
            }
        }
        let (bytes, ms) = (STREAM_BYTES, self.stream_ms);
        for measure in [
            Measure::Out { bytes, ms, payload: Payload::Copied },
            Measure::Out { bytes, ms, payload: Payload::InPlace },
            Measure::In { bytes, ms, by_area: true },
            Measure::In { bytes, ms, by_area: false },
        ] {
            // The kernel has neither areas nor bytes written in place: one row each way.
            let both = [Stack::One, Stack::Three].map(Some);
            let kernel = matches!(
                measure,
                Measure::Out { payload: Payload::Copied, .. } | Measure::In { by_area: false, .. }
            );
            for stack in kernel.then_some(Stack::Kernel).into_iter().chain(both.into_iter().flatten()) {
                rows.push(Row { stack, waiting: Waiting::Spin, measure });
            }
        }
        rows.retain(|row| options.selects(&row.name()));
        rows
    }

    pub(super) fn stages(&self, options: &Options) -> Vec<Staged> {
        let both = [Payload::InPlace, Payload::Copied];
        let all = self.sizes.iter().flat_map(|&bytes| both.map(|payload| (bytes as usize, payload)));
        all.map(|(bytes, payload)| Staged { bytes, payload, samples: Vec::new() })
            .filter(|staged| options.selects(&staged.name()))
            .collect()
    }
}
