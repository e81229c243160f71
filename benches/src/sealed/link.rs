//! Two network namespaces and a link between them: unlimited, with a rate, or with a rate and a delay. Needs root.

use std::ffi::CString;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::delay::DelayLine;
use harness::process::Surroundings;
use harness::{program, run};
use steps::is_root;

const COMMAND_LIMIT: Duration = Duration::from_secs(20);
/// Burst of the token bucket, and its queue limit.
const BURST: &str = "1mb";
const QUEUE: &str = "20ms";
/// Socket buffers for a path with delay: minimum, default, maximum bytes.
const SOCKET_BYTES: &str = "4096 131072 67108864";

pub(super) const INITIATOR: &str = "10.99.1.1";
pub(super) const TARGET: &str = "10.99.1.2";

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    /// A pair of virtual interfaces, MTU 1500, no rate limit.
    Direct,
    /// A pair of virtual interfaces behind a token bucket.
    Rate { mbit: u32 },
    /// A `DelayLine`: the round trip takes `rtt`, each direction carries `mbit`.
    Wan { mbit: u32, rtt: Duration },
}

/// A link; dropping it removes the namespaces and ends the processes in them.
#[derive(Debug)]
pub(super) struct Link {
    names: [String; 2],
    _delay: Option<DelayLine>,
}

fn ip(arguments: &str) -> Result<()> {
    let output = run(program("ip")?.args(arguments.split_whitespace()), COMMAND_LIMIT)?;
    output.success().map(|_| ())
}

impl Link {
    pub(super) fn new(kind: Kind) -> Result<Self> {
        ensure!(is_root(), "rows on a link make network namespaces, which needs root");
        let names =
            ["initiator", "target"].map(|side| format!("hikyaku-bench-{}-{side}", std::process::id()));
        for name in &names {
            ip(&format!("netns add {name}"))?;
        }
        // From here on, drop removes the namespaces if a step fails.
        let mut link = Self { names, _delay: None };
        link.join(kind).context("link between two network namespaces")?;
        Ok(link)
    }

    fn join(&mut self, kind: Kind) -> Result<()> {
        let [a, b] = &self.names;
        match kind {
            Kind::Direct | Kind::Rate { .. } => {
                ip(&format!("link add link0 netns {a} mtu 1500 type veth peer name link0 netns {b}"))?;
            }
            Kind::Wan { mbit, rtt } => {
                let [a, b] = [a, b].map(|name| CString::new(format!("/run/netns/{name}")));
                self._delay = Some(DelayLine::start(&a?, &b?, "link0", mbit, rtt / 2)?);
            }
        }
        for (name, own, other) in [(&self.names[0], INITIATOR, TARGET), (&self.names[1], TARGET, INITIATOR)] {
            ip(&format!("-n {name} link set lo up"))?;
            ip(&format!("-n {name} addr add {own}/32 peer {other}/32 dev link0"))?;
            ip(&format!("-n {name} link set link0 txqueuelen 10000 up"))?;
            if let Kind::Rate { mbit } = kind {
                let tc =
                    format!("tc qdisc add dev link0 root tbf rate {mbit}mbit burst {BURST} latency {QUEUE}");
                ip(&format!("netns exec {name} {tc}"))?;
            }
            if matches!(kind, Kind::Wan { .. }) {
                self.set(name, "tcp_rmem")?;
                self.set(name, "tcp_wmem")?;
            }
        }
        Ok(())
    }

    fn set(&self, name: &str, key: &str) -> Result<()> {
        let script = format!("echo '{SOCKET_BYTES}' >/proc/sys/net/ipv4/{key}");
        let mut command = program("sh")?;
        Surroundings::network(name).apply(&mut command);
        run(command.args(["-c", &script]), COMMAND_LIMIT)?.success().map(|_| ())
    }

    /// The namespaces of initiator and target.
    pub(super) fn sides(&self) -> [Surroundings; 2] {
        self.names.each_ref().map(|name| Surroundings::network(name))
    }

    /// Runs `ip` on the initiator's (0) or the target's (1) side.
    pub(super) fn ip(&self, side: usize, arguments: &str) -> Result<()> {
        ip(&format!("-n {} {arguments}", self.names[side]))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for name in &self.names {
            // A failure to remove a namespace cannot be handled here.
            let _ = ip(&format!("netns del {name}"));
        }
    }
}
