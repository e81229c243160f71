//! The rows of the experiment, its round trips and blocks.

use std::time::Duration;

use super::peers::Tuning;
use crate::stats::size;
use crate::{LabError, Options};

/// Round trips of the paper, milliseconds.
const RTTS_MS: [u64; 7] = [0, 2, 5, 10, 20, 50, 80];
const RTTS_QUICK_MS: [u64; 2] = [2, 20];
const BLOCKS: [u32; 2] = [2 << 20, 4 << 20];
const BLOCKS_QUICK: [u32; 1] = [4 << 20];
/// A WRITE(10) addresses no more than 65535 sectors.
const BLOCK_BYTES_MAX: u32 = 16 << 20;
/// Rate of the path in bit/s: the paper's Gigabit Ethernet.
pub(super) const RATE: f64 = 1e9;
/// Round trip of the paper's figures over time, milliseconds.
pub(super) const RTT_OF_FIGURES_MS: u64 = 20;
/// What open-iscsi sets as SO_SNDBUF (`node.conn[0].tcp.window_size`); the kernel doubles it.
pub(super) const SEND_BUFFER: u32 = 524_288;

/// Limits of the kernel's buffers in both namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Buffers {
    /// As a kernel with 4 GiB of memory or more has them: up to 4 MiB to send, 32 MiB to receive.
    Stock,
    /// Up to 64 MiB each.
    Ample,
}

impl Buffers {
    /// tcp_wmem and tcp_rmem.
    pub(super) fn settings(self) -> [(&'static str, &'static str); 2] {
        match self {
            Self::Stock => [("tcp_wmem", "4096 16384 4194304"), ("tcp_rmem", "4096 131072 33554432")],
            Self::Ample => [("tcp_wmem", "4096 16384 67108864"), ("tcp_rmem", "4096 131072 67108864")],
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    /// The file of the target, without a network.
    Local,
    Socket,
    /// One write at a time by blocking calls, to tgt with the paper's burst lengths; `fixed`: with open-iscsi's
    /// SO_SNDBUF.
    Blocking {
        fixed: bool,
    },
    Qemu {
        tuning: Tuning,
        depth: u32,
    },
    Ours {
        depth: u32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) who: Who,
    pub(super) buffers: Buffers,
    pub(super) congestion: &'static str,
}

const DEPTH: u32 = 16;

impl Row {
    const fn new(who: Who, buffers: Buffers) -> Self {
        Self { who, buffers, congestion: "cubic" }
    }

    /// The paper's case.
    pub(super) const PAPER: Self = Self::new(Who::Blocking { fixed: true }, Buffers::Stock);
    pub(super) const SOCKET: Self = Self::new(Who::Socket, Buffers::Stock);
    /// The paper's case after the setting that its successor would make.
    pub(super) const FREED: Self = Self::new(Who::Blocking { fixed: false }, Buffers::Ample);

    /// The lines of figure 4.
    pub(super) fn all(is_quick: bool) -> Vec<Self> {
        let (stock, ample) = (Buffers::Stock, Buffers::Ample);
        let mut rows = vec![
            Self::new(Who::Local, stock),
            Self::SOCKET,
            Self::new(Who::Socket, ample),
            Self::PAPER,
            Self::new(Who::Blocking { fixed: false }, stock),
            Self::FREED,
            Self::new(Who::Qemu { tuning: Tuning::Default, depth: 1 }, stock),
            Self::new(Who::Qemu { tuning: Tuning::Tuned, depth: DEPTH }, ample),
            Self::new(Who::Ours { depth: 1 }, stock),
            Self::new(Who::Ours { depth: DEPTH }, ample),
        ];
        if !is_quick {
            for congestion in ["reno", "bbr"] {
                rows.push(Self { congestion, ..Self::PAPER });
                rows.push(Self { congestion, ..Self::new(Who::Socket, ample) });
            }
        }
        rows
    }

    pub(super) fn name(&self) -> String {
        let who = match self.who {
            Who::Local => return "local file in memory".to_owned(),
            Who::Socket => "socket".to_owned(),
            Who::Blocking { fixed: true } => "as open-iscsi, SO_SNDBUF 512 KiB".to_owned(),
            Who::Blocking { fixed: false } => "as open-iscsi, window_size 0".to_owned(),
            Who::Qemu { tuning: Tuning::Default, .. } => "QEMU to tgt, defaults".to_owned(),
            Who::Qemu { depth, .. } => format!("QEMU to tgt, tuned, {depth} in flight"),
            Who::Ours { depth: 1 } => "hikyaku to hikyaku".to_owned(),
            Who::Ours { depth } => format!("hikyaku to hikyaku, {depth} in flight"),
        };
        let buffers = if self.buffers == Buffers::Ample { ", buffers to 64 MiB" } else { "" };
        let congestion = if self.congestion == "cubic" { "" } else { self.congestion };
        let separator = if congestion.is_empty() { "" } else { ", " };
        format!("{who}{buffers}{separator}{congestion}")
    }

    /// The name in the legend of a figure, where there is little room.
    pub(super) fn label(&self) -> String {
        self.name()
            .replace("as open-iscsi, ", "")
            .replace(", buffers to 64 MiB", ", 64 MiB")
            .replace(" in flight", "")
    }

    /// How a row was obtained.
    pub(super) fn obtained(&self) -> &'static str {
        match self.who {
            Who::Local => "pwrite and fdatasync of the file in memory that targets export; no network",
            Who::Socket => {
                "blocking writes to a plain socket; bytes that the receiver acknowledged, after a warm-up of as long"
            }
            Who::Blocking { fixed: true } => {
                "an initiator of this experiment with blocking calls and SO_SNDBUF as open-iscsi sets it, to tgt with \
                 FirstBurstLength = MaxBurstLength = 4 MiB"
            }
            Who::Blocking { fixed: false } => {
                "the same initiator without SO_SNDBUF, which is node.conn[0].tcp.window_size = 0, to the same target"
            }
            Who::Qemu { .. } => {
                "qemu-img bench with libiscsi to tgt, both as installed; its login is not counted"
            }
            Who::Ours { .. } => "crate node as target and initiator, each in a process of its own",
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Sizes {
    pub(super) rtts: Vec<Duration>,
    pub(super) blocks: Vec<u32>,
    /// Duration of a measurement, milliseconds.
    pub(super) ms: u64,
    pub(super) rounds: usize,
}

impl Sizes {
    pub(super) fn new(options: &Options) -> Result<Self, LabError> {
        let blocks = options.values(&options.blocks, &BLOCKS_QUICK, &BLOCKS);
        if let Some(wrong) = blocks.iter().find(|block| **block > BLOCK_BYTES_MAX || **block % 512 != 0) {
            let text = format!("blocks are multiples of 512 up to 16 MiB, not {}", size(*wrong));
            return Err(LabError::Usage(text));
        }
        let rtts: &[u64] = if options.quick { &RTTS_QUICK_MS } else { &RTTS_MS };
        let (ms, rounds) = if options.quick { (400, 1) } else { (1500, 3) };
        let rtts = rtts.iter().map(|ms| Duration::from_millis(*ms)).collect();
        Ok(Self { rtts, blocks, ms, rounds })
    }

    /// The block of figures over time and of rates: the largest.
    pub(super) fn block(&self) -> u32 {
        self.blocks.iter().copied().max().unwrap_or(BLOCKS[1])
    }
}

/// The name that `--row` selects: row and round trip.
pub(super) fn cell_name(row: &Row, rtt: Duration) -> String {
    format!("{}, RTT {} ms", row.name(), rtt.as_millis())
}
