//! What a cell consists of.

use serde::Serialize;

use super::View;

/// Rate of TCP payload of a path as a share of its bit rate: Ethernet framing and gap, IP and TCP headers.
const PAYLOAD_SHARE: f64 = 1448.0 / 1538.0;
pub(super) const MSS: f64 = 1448.0;
/// Shorter queues of the sender's device drop of what is sent at once.
const SHORT_QUEUE_KIB: u32 = 128;
/// Share of `tcp_wmem` that holds payload on its way; the rest is overhead of the kernel's buffers.
pub(super) const SEND_BUFFER_SHARE: f64 = 0.75;
/// Share of `tcp_rmem` that a receiver offers as its window.
pub(super) const WINDOW_SHARE: f64 = 0.65;

/// What a verdict can name, as in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    R2t,
    QueueDepth,
    SendBuffer,
    ReceiveWindow,
    Congestion,
    Loss,
    NagleDelayedAck,
    LocalDevice,
    Target,
    Cipher,
    Cpu,
    ThinkTime,
    LineRate,
    Unknown,
}

impl Limit {
    pub const ALL: [Self; 14] = [
        Self::R2t,
        Self::QueueDepth,
        Self::SendBuffer,
        Self::ReceiveWindow,
        Self::Congestion,
        Self::Loss,
        Self::NagleDelayedAck,
        Self::LocalDevice,
        Self::Target,
        Self::Cipher,
        Self::Cpu,
        Self::ThinkTime,
        Self::LineRate,
        Self::Unknown,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::R2t => "r2t",
            Self::QueueDepth => "queue_depth",
            Self::SendBuffer => "send_buffer",
            Self::ReceiveWindow => "receive_window",
            Self::Congestion => "congestion",
            Self::Loss => "loss",
            Self::NagleDelayedAck => "nagle_delayed_ack",
            Self::LocalDevice => "local_device",
            Self::Target => "target",
            Self::Cipher => "cipher",
            Self::Cpu => "cpu",
            Self::ThinkTime => "think_time",
            Self::LineRate => "line_rate",
            Self::Unknown => "unknown",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|limit| limit.name() == name)
    }
}

/// Segments that a congestion control keeps in flight where this share is lost (the square root law).
pub(super) fn loss_window(share: f64) -> f64 {
    1.2 / share.sqrt()
}

/// Initiator and target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Peers {
    /// A program on libiscsi, and tgt.
    LibiscsiTgt,
    /// `hikyaku bench path`, and tgt.
    OursTgt,
    /// `qemu-img bench`, and `hikyaku serve`.
    QemuOurs,
    Ours,
}

impl Peers {
    pub const ALL: [Self; 4] = [Self::LibiscsiTgt, Self::OursTgt, Self::QemuOurs, Self::Ours];

    pub const fn name(self) -> &'static str {
        match self {
            Self::LibiscsiTgt => "libiscsi-tgt",
            Self::OursTgt => "ours-tgt",
            Self::QemuOurs => "qemu-ours",
            Self::Ours => "ours-ours",
        }
    }

    pub const fn has_tgt(self) -> bool {
        matches!(self, Self::LibiscsiTgt | Self::OursTgt)
    }

    pub const fn has_our_initiator(self) -> bool {
        matches!(self, Self::OursTgt | Self::Ours)
    }
}

/// How much a target lets an initiator send without an R2T.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Burst {
    /// tgt's own settings: what is immediate, and an R2T for each 256 KiB of the rest.
    Default,
    /// `FirstBurstLength` in bytes, and `InitialR2T=No`.
    First(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Load {
    pub rtt_ms: f64,
    pub mbit: f64,
    pub block: u64,
    pub depth: u32,
    pub is_write: bool,
}

impl Load {
    /// Payload bytes per second of the path.
    pub fn line(&self) -> f64 {
        self.mbit * 1e6 / 8.0 * PAYLOAD_SHARE
    }

    pub fn rtt_s(&self) -> f64 {
        self.rtt_ms / 1e3
    }

    /// Bytes on the way at the path's rate.
    pub fn product(&self) -> f64 {
        self.line() * self.rtt_s()
    }

    /// Rate of this load on a path without any other limit, bytes per second.
    pub fn rate(&self) -> f64 {
        let (block, depth) = (self.block as f64, f64::from(self.depth));
        (depth * block / (self.rtt_s() + block / self.line())).min(self.line())
    }
}

/// What is wrong. The *data sender* is the initiator of writes and the target of reads.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Injection {
    /// Largest send buffer of the data sender, `tcp_wmem`, in bytes.
    SendBuffer(u64),
    /// Largest receive buffer of the other end, `tcp_rmem`, in bytes.
    ReceiveBuffer(u64),
    /// Upper bound of the data sender's congestion window, in segments.
    Window(u32),
    /// Share of the data sender's segments that the path loses.
    Loss(f64),
    /// The data sender's `TCP_NODELAY` has no effect.
    Nagle,
    /// Token bucket as the data sender's queueing discipline: bits per second and bytes that wait at most.
    Bucket { mbit: f64, queue_kib: u32 },
    /// Time that the target's storage takes for each request.
    Storage { ms: f64 },
    /// Rate of the target's storage in bytes per second.
    StorageRate(f64),
    /// Sealed by the slowest suite, while the target gets this share of a core.
    Sealed { share: f64 },
    /// Time that the data sender computes for each KiB before it sends the next.
    Compute { us_per_kib: f64 },
    /// Share of a core that the target gets.
    Quota { share: f64 },
    /// Time between the end of all commands and the next ones.
    Think { ms: f64 },
}

/// A run: who, over what, with what wrong.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Setup {
    pub peers: Peers,
    pub load: Load,
    pub burst: Burst,
    pub injections: Vec<Injection>,
    /// Bytes that wait at the path's bottleneck, as a share of the bandwidth-delay product.
    pub queue: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cell {
    pub name: String,
    pub limit: Limit,
    /// Limits that are as true: both lie within 20 % of each other by construction.
    pub also: Vec<Limit>,
    pub setup: Setup,
    /// The same without the limit; `None` if nothing was wrong.
    pub cured: Option<Setup>,
}

impl Cell {
    /// Limits that are as true as the injected one for who stands at `view`. A packet that the sender's own device
    /// dropped looks like one that the path lost, but at the sender.
    pub fn as_true(&self, view: View) -> Vec<Limit> {
        let mut also = self.also.clone();
        let sender = if self.setup.load.is_write { View::Initiator } else { View::Target };
        if self.limit == Limit::LocalDevice && view != sender && view != View::Watch {
            also.push(Limit::Loss);
        }
        also
    }
}

impl Setup {
    /// What limits a setup with nothing wrong.
    pub fn natural_limit(&self) -> Limit {
        let is_slow = self.injections.iter().any(|injection| matches!(injection, Injection::Quota { .. }));
        match self.load.rate() < self.load.line() {
            _ if is_slow => Limit::Cpu,
            true => Limit::QueueDepth,
            false => Limit::LineRate,
        }
    }

    /// The rate to be expected, bytes per second: the length of a run of programs that count requests.
    pub fn about(&self) -> f64 {
        let Load { block, depth, .. } = self.load;
        let (block, depth, rtt) = (block as f64, f64::from(depth), self.load.rtt_s());
        let mut rate = self.load.rate();
        if let (true, Burst::Default) = (self.load.is_write, self.burst) {
            let rounds = (block / 262_144.0).ceil();
            rate = rate.min(depth * block / ((1.0 + rounds) * rtt + block / self.load.line()));
        }
        for injection in &self.injections {
            let bound = match *injection {
                Injection::SendBuffer(bytes) => bytes as f64 * SEND_BUFFER_SHARE / rtt,
                Injection::ReceiveBuffer(bytes) => bytes as f64 * WINDOW_SHARE / rtt,
                Injection::Window(segments) => f64::from(segments) * MSS / rtt,
                Injection::Loss(share) => loss_window(share) * MSS / rtt,
                Injection::Nagle => depth * block / (2.0 * rtt + 0.04),
                Injection::Bucket { mbit, queue_kib } => {
                    mbit * 1e6 / 8.0 * if queue_kib < SHORT_QUEUE_KIB { 0.3 } else { 1.0 }
                }
                Injection::Storage { ms } | Injection::Think { ms } => {
                    depth * block / (rtt + ms / 1e3 + depth * block / self.load.line())
                }
                Injection::StorageRate(rate) => rate,
                Injection::Sealed { share } => share * 1e9,
                Injection::Quota { share } => share * 2e9,
                Injection::Compute { us_per_kib } => 1024.0 / us_per_kib * 1e6,
            };
            rate = rate.min(bound);
        }
        rate.max(4096.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_have_the_names_that_json_has() {
        for limit in Limit::ALL {
            assert_eq!(serde_json::to_value(limit).unwrap(), limit.name());
            assert_eq!(Limit::parse(limit.name()), Some(limit));
        }
        assert_eq!(Limit::parse("something"), None);
    }

    #[test]
    fn rates_follow_from_the_load() {
        let load = Load { rtt_ms: 50.0, mbit: 200.0, block: 4 << 20, depth: 1, is_write: true };
        let setup =
            |burst| Setup { peers: Peers::LibiscsiTgt, load, burst, injections: Vec::new(), queue: 1.0 };
        let rounds = |rounds: f64| 4_194_304.0 / (rounds * 0.05 + 4_194_304.0 / load.line());
        assert!((setup(Burst::Default).about() / rounds(17.0) - 1.0).abs() < 1e-9);
        assert!((setup(Burst::First(16 << 20)).about() / rounds(1.0) - 1.0).abs() < 1e-9);
        let deep = Load { depth: 64, ..load };
        assert_eq!(deep.rate(), deep.line());
    }
}
