//! What is measured: rows, sizes, counts.

use std::path::Path;

use super::near::{Measure, Payload};
use super::waiting::Waiting;
use super::{Handing, Staged};
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
    /// The kernel frees received memory where it was allocated (`net.core.skb_defer_max`), as it does by default.
    pub(super) defers: bool,
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
            Measure::Checked { .. } => "stream with all bytes compared",
        }
    }

    pub(super) fn bytes(&self) -> usize {
        match self.measure {
            Measure::Echo { bytes, .. } | Measure::Out { bytes, .. } | Measure::In { bytes, .. } => bytes,
            Measure::Checked { .. } => 0,
        }
    }

    pub(super) fn waits(&self) -> String {
        let defers = if self.defers { "" } else { ", skb_defer_max 0" };
        format!("{}{defers}", self.waiting.name())
    }

    pub(super) fn name(&self) -> String {
        format!("{}, {}, {}, {}", self.what(), size(self.bytes() as u64), self.stack.name(), self.waits())
    }
}

impl Staged {
    pub(super) fn how(&self) -> &'static str {
        match (self.stack, self.payload) {
            (Stack::Kernel, _) => "kernel",
            (_, Payload::InPlace) => "written in place",
            (_, Payload::Copied) => "copied into the area",
        }
    }

    pub(super) fn name(&self) -> String {
        format!("a send taken apart, {}, {}", size(self.bytes as u64), self.how())
    }
}

impl Handing {
    pub(super) fn name(&self) -> String {
        match self.bytes {
            0 => "slots of a ring".to_owned(),
            bytes => format!("an area handed over, {}", size(bytes as u64)),
        }
    }
}

/// The paper's sizes, and on to 64 KiB.
pub(super) const SIZES: [u32; 8] = [256, 512, 768, 1024, 1460, 4096, 16_384, 65_536];
const QUICK: [u32; 2] = [256, 1024];
/// Of the machine: how many buffers a core leaves to the core that allocated them.
pub(super) const SKB_DEFER_MAX: &str = "/proc/sys/net/core/skb_defer_max";
const STREAM_BYTES: usize = 64 << 10;
/// Sizes of areas that are handed over, besides those of sends.
const AREAS: [u32; 2] = [256 << 10, 2 << 20];

pub(super) struct Sizes {
    pub(super) rounds: usize,
    pub(super) sizes: Vec<u32>,
    count: usize,
    stream_ms: u64,
    /// Of one send taken apart, without and with notes.
    pub(super) sends: usize,
    pub(super) hand_ms: u64,
    is_quick: bool,
    /// Of the driver in each direction; streams without; of `inet`.
    pub(super) kills: usize,
    pub(super) streams: usize,
    pub(super) inet_kills: usize,
    pub(super) loss_ms: u64,
    /// Pairs over a path that loses and reorders, in each direction.
    pub(super) pairs: usize,
    pub(super) pair_ms: u64,
}

impl Sizes {
    pub(super) fn new(options: &Options) -> Self {
        let quick = options.quick;
        Self {
            rounds: options.reps.unwrap_or(if quick { 1 } else { 5 }),
            sizes: options.values(&options.blocks, &QUICK, &SIZES),
            count: if quick { 2000 } else { 5000 },
            stream_ms: if quick { 300 } else { 700 },
            sends: if quick { 1000 } else { 2000 },
            hand_ms: if quick { 5 } else { 10 },
            is_quick: quick,
            kills: if quick { 2 } else { 25 },
            streams: if quick { 2 } else { 10 },
            inet_kills: if quick { 1 } else { 5 },
            loss_ms: if quick { 200 } else { 1000 },
            pairs: options.reps.unwrap_or(if quick { 2 } else { 10 }),
            pair_ms: if quick { 5000 } else { 30_000 },
        }
    }

    pub(super) fn rows(&self, options: &Options) -> Vec<Row> {
        let mut rows = Vec::new();
        let stacks = [Stack::Kernel, Stack::One, Stack::Three];
        for &bytes in &self.sizes {
            let bytes = bytes as usize;
            let measure = |count| Measure::Echo { bytes, count, payload: Payload::Copied };
            let row = |stack, waiting, count, defers| Row { stack, waiting, measure: measure(count), defers };
            rows.extend(stacks.map(|stack| row(stack, Waiting::Spin, self.count, true)));
            if bytes != 256 && bytes != 1024 {
                continue;
            }
            if Path::new(SKB_DEFER_MAX).exists() {
                rows.extend(stacks.map(|stack| row(stack, Waiting::Spin, self.count, false)));
            }
            for waiting in [Waiting::Block, Waiting::Look] {
                // A process cannot sleep while it must do the servers' turns.
                let stacks = [Stack::Kernel, Stack::Three];
                rows.extend(stacks.map(|stack| row(stack, waiting, self.count / 5, true)));
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
            let kernel = matches!(
                measure,
                Measure::Out { payload: Payload::Copied, .. } | Measure::In { by_area: false, .. }
            );
            for stack in kernel.then_some(Stack::Kernel).into_iter().chain([Stack::One, Stack::Three]) {
                rows.push(Row { stack, waiting: Waiting::Spin, measure, defers: true });
            }
        }
        rows.retain(|row| options.selects(&row.name()));
        rows
    }

    pub(super) fn stages(&self, options: &Options) -> Vec<Staged> {
        let kinds = [
            (Stack::Kernel, Payload::Copied),
            (Stack::Three, Payload::InPlace),
            (Stack::Three, Payload::Copied),
        ];
        let all = self.sizes.iter().flat_map(|&bytes| {
            kinds.map(|(stack, payload)| Staged {
                stack,
                bytes: bytes as usize,
                payload,
                samples: Vec::new(),
            })
        });
        all.filter(|staged| options.selects(&staged.name())).collect()
    }

    pub(super) fn handings(&self, options: &Options) -> Vec<Handing> {
        let more = if self.is_quick { &[][..] } else { &AREAS };
        let all = self
            .sizes
            .iter()
            .chain(more)
            .map(|&bytes| Handing { bytes: bytes as usize, samples: Vec::new() });
        all.filter(|handing| options.selects(&handing.name())).collect()
    }
}
