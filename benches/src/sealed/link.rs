//! Two network namespaces and a link between them: unlimited, with a rate, or with a rate and a delay. Needs root.

use std::time::Duration;

use anyhow::{Context as _, Result};
use lab::wan::{Line, Namespace, Options, Settings};

use harness::process::Surroundings;
use harness::run;

const COMMAND_LIMIT: Duration = Duration::from_secs(20);
const INTERFACE: &str = "link0";
/// Burst of the token bucket, and its queue limit.
const BURST: &str = "1mb";
const QUEUE: &str = "20ms";
/// Socket buffers for a path with delay: minimum, default, maximum bytes.
const SOCKET_BYTES: &str = "4096 131072 67108864";
/// Time that a frame waits for the line of a path with delay, as in a router.
const QUEUE_S: f64 = 0.05;

pub(crate) const INITIATOR: &str = "10.99.1.1";
pub(crate) const TARGET: &str = "10.99.1.2";

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    /// A pair of virtual interfaces, MTU 1500, no rate limit.
    Direct,
    /// A pair of virtual interfaces behind a token bucket.
    Rate { mbit: u32 },
    /// A path in user space: the round trip takes `rtt`, each direction carries `mbit`.
    Wan { mbit: u32, rtt: Duration },
}

/// A link; dropping it removes the namespaces and ends the processes in them.
#[derive(Debug)]
pub(crate) struct Link {
    // Declared before the namespaces and therefore dropped first.
    _line: Option<Line>,
    namespaces: [Namespace; 2],
}

impl Link {
    pub(crate) fn new(kind: Kind) -> Result<Self> {
        let namespaces = [Namespace::new("initiator")?, Namespace::new("target")?];
        let mut link = Self { _line: None, namespaces };
        link.join(kind).context("link between two network namespaces")?;
        Ok(link)
    }

    fn join(&mut self, kind: Kind) -> Result<()> {
        let [a, b] = &self.namespaces;
        match kind {
            Kind::Direct | Kind::Rate { .. } => {
                let peer = format!("peer name {INTERFACE} netns {}", b.name());
                a.ip(&format!("link add {INTERFACE} mtu 1500 type veth {peer}"))?;
            }
            Kind::Wan { mbit, rtt } => {
                let rate = f64::from(mbit) * 1e6;
                let queue_bytes = (rate / 8.0 * QUEUE_S) as u64;
                let settings = Settings { queue_bytes, ..Settings::new(rtt, Some(rate)) };
                self._line = Some(Line::start([a, b], INTERFACE, &Options::new(settings))?);
            }
        }
        for (namespace, own, other) in [(a, INITIATOR, TARGET), (b, TARGET, INITIATOR)] {
            namespace.ip("link set lo up")?;
            namespace.ip(&format!("addr add {own}/32 peer {other}/32 dev {INTERFACE}"))?;
            namespace.ip(&format!("link set {INTERFACE} txqueuelen 10000 up"))?;
            if let Kind::Rate { mbit } = kind {
                let bucket = format!(
                    "qdisc add dev {INTERFACE} root tbf rate {mbit}mbit burst {BURST} latency {QUEUE}"
                );
                let mut command = namespace.command("tc");
                run(command.args(bucket.split_whitespace()), COMMAND_LIMIT)?.success()?;
            }
            if matches!(kind, Kind::Wan { .. }) {
                namespace.sysctl("net/ipv4/tcp_rmem", SOCKET_BYTES)?;
                namespace.sysctl("net/ipv4/tcp_wmem", SOCKET_BYTES)?;
            }
        }
        Ok(())
    }

    /// The namespaces of initiator and target.
    pub(crate) fn sides(&self) -> [Surroundings; 2] {
        self.namespaces.each_ref().map(|namespace| Surroundings::network(namespace.name()))
    }

    /// Sets a value below `/proc/sys` on both sides.
    pub(crate) fn sysctl(&self, key: &str, value: &str) -> Result<()> {
        Ok(self.namespaces.iter().try_for_each(|namespace| namespace.sysctl(key, value))?)
    }

    /// Runs `ip` on the initiator's (0) or the target's (1) side.
    pub(crate) fn ip(&self, side: usize, arguments: &str) -> Result<()> {
        Ok(self.namespaces[side].ip(arguments)?)
    }
}
