//! A wide-area path between two network namespaces, made in user space, for kernels without netem.
//!
//! Each namespace gets a TUN interface; a thread for each direction ([`Line`]) reads frames from one and writes them,
//! later, to the other. Large frames (up to 64 KiB, segmentation offload) pass whole, so that one core carries several
//! Gbit/s; loss, reordering and duplication act on segments, for which a large frame is split.
//!
//! What happens to a frame is decided by [`Direction`], which has no clock, no I/O and no random state: the fate of the
//! n-th segment depends on the seed and on n alone.
//!
//! A frame passes these places in order: the bottleneck (queue and rate), the tap, the place of loss, and the delay.
//!
//! Needs root, `/dev/net/tun` and `ip` (iproute2). Round trips below 0.2 ms are not possible; wake-ups of the threads
//! limit the precision to about 0.1 ms on an idle machine. [`Counters::late_max_ns`] tells when the machine was too
//! busy.

mod direction;
mod frame;
mod line;
mod namespace;
mod settings;
mod tap;
mod tun;

pub use direction::{Counters, Direction, Passage};
pub use line::Line;
pub use namespace::{Namespace, obstacle};
pub use settings::Settings;
pub use tap::Tap;

use std::path::Path;

use crate::LabError;

/// Name of the interface in both namespaces.
pub const INTERFACE: &str = "wan0";
/// Addresses of the two sides.
pub const ADDRESSES: [&str; 2] = ["10.77.0.1", "10.77.0.2"];

/// What [`Wan::start`] makes.
#[derive(Clone, Debug)]
pub struct Options {
    /// From side 0 to side 1, and back.
    pub directions: [Settings; 2],
    pub seed: u64,
    pub mtu: u32,
    /// Settings below `/proc/sys` of both namespaces, as `net/ipv4/tcp_wmem`, and their values.
    pub sysctls: Vec<(String, String)>,
    pub tap: Option<Tap>,
}

impl Options {
    /// The same settings in both directions, MTU 1500, no tap.
    pub fn new(both: Settings) -> Self {
        Self { directions: [both; 2], seed: 1, mtu: 1500, sysctls: Vec::new(), tap: None }
    }

    /// Adds a setting below `/proc/sys/net/ipv4`.
    #[must_use]
    pub fn ipv4(mut self, key: &str, value: &str) -> Self {
        self.sysctls.push((format!("net/ipv4/{key}"), value.to_owned()));
        self
    }
}

/// Two namespaces and the path between them. Dropping it ends the processes in the namespaces and removes them.
#[derive(Debug)]
pub struct Wan {
    // Declared before the namespaces and therefore dropped first.
    line: Line,
    sides: [Namespace; 2],
}

impl Wan {
    /// Also removes the namespaces of processes that ended without doing so.
    pub fn start(options: &Options) -> Result<Self, LabError> {
        let sides = [Namespace::new("wan-a")?, Namespace::new("wan-b")?];
        let line = Line::start([&sides[0], &sides[1]], INTERFACE, options)?;
        let wan = Self { line, sides };
        for (side, (own, other)) in [(0, 1), (1, 0)].into_iter().enumerate() {
            let namespace = &wan.sides[side];
            // Without IPv6 nothing but the experiment's traffic meets the fates that depend on a segment's number.
            if Path::new("/proc/sys/net/ipv6").exists() {
                namespace.sysctl(&format!("net/ipv6/conf/{INTERFACE}/disable_ipv6"), "1")?;
            }
            namespace.ip("link set lo up")?;
            let addresses = format!("{}/32 peer {}/32", ADDRESSES[own], ADDRESSES[other]);
            namespace.ip(&format!("addr add {addresses} dev {INTERFACE}"))?;
            namespace.ip(&format!("link set {INTERFACE} mtu {} txqueuelen 10000 up", options.mtu))?;
            // Without it a connection would begin with the congestion window of the one before.
            namespace.sysctl("net/ipv4/tcp_no_metrics_save", "1")?;
            for (key, value) in &options.sysctls {
                namespace.sysctl(key, value)?;
            }
        }
        Ok(wan)
    }

    pub fn side(&self, side: usize) -> &Namespace {
        &self.sides[side]
    }

    pub fn line(&self) -> &Line {
        &self.line
    }
}
