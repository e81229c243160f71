//! How an injection reaches sockets, programs and the path.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use lab::wan::{ADDRESSES, INTERFACE, Namespace, Options, Settings, Tap, Wan};

use super::cell::{MSS, loss_window};
use super::{Injection, Setup};
use crate::{program, run};

const TOOL_LIMIT: Duration = Duration::from_secs(20);
/// Buffers that limit nothing: minimum, default, maximum bytes.
const AMPLE_SEND: &str = "4096 65536 67108864";
const AMPLE_RECEIVE: &str = "4096 4194304 67108864";
/// Initial congestion window in segments at most.
const FIRST_WINDOW_MAX: f64 = 2000.0;
/// The bottleneck's queue is at least this long.
const QUEUE_BYTES_MIN: f64 = 256.0 * 1024.0;
/// Least period of a processor quota, and the least quota that the kernel accepts.
const PERIOD_US_MIN: f64 = 10_000.0;
const QUOTA_US_MIN: f64 = 1000.0;

/// Side 0 is the initiator.
pub(super) fn sender(setup: &Setup) -> usize {
    usize::from(!setup.load.is_write)
}

/// The path of a setup, with the buffers of both ends, and the queueing discipline of the sender.
pub(super) fn path(setup: &Setup, tap: Option<Tap>, seed: u64) -> Result<Wan> {
    let (load, from) = (&setup.load, sender(setup));
    let mut settings = Settings::new(Duration::from_secs_f64(load.rtt_s()), Some(load.mbit * 1e6));
    settings.queue_bytes = (load.product() * setup.queue).max(QUEUE_BYTES_MIN) as u64;
    let mut options = Options { seed, tap, ..Options::new(settings) };
    options = options.ipv4("tcp_congestion_control", "cubic");
    options = options.ipv4("tcp_wmem", AMPLE_SEND).ipv4("tcp_rmem", AMPLE_RECEIVE);
    for injection in &setup.injections {
        if let Injection::Loss(share) = injection {
            options.directions[from].loss = *share;
        }
    }
    let wan = Wan::start(&options)?;
    route(wan.side(from), from, setup)?;
    for injection in &setup.injections {
        let [own, other] = [wan.side(from), wan.side(1 - from)];
        match *injection {
            Injection::SendBuffer(bytes) => {
                own.sysctl("net/ipv4/tcp_wmem", &format!("4096 65536 {bytes}"))?;
            }
            Injection::ReceiveBuffer(bytes) => {
                let least = bytes.min(131_072);
                other.sysctl("net/ipv4/tcp_rmem", &format!("4096 {least} {bytes}"))?;
            }
            // The kernel applies the bounds of a route to connections to an address of which it has kept metrics: a first
            // connection has to come before.
            Injection::Window(_) => own.sysctl("net/ipv4/tcp_no_metrics_save", "0")?,
            Injection::Loss(_) => {
                own.sysctl("net/ipv4/tcp_no_metrics_save", "0")?;
                own.sysctl("net/ipv4/tcp_no_ssthresh_metrics_save", "0")?;
            }
            Injection::Bucket { mbit, queue_kib } => bucket(own, mbit, queue_kib)?,
            _ => {}
        }
    }
    Ok(wan)
}

/// The data sender's route. Its first window fills the path: slow start, which takes a small part of a long transfer,
/// would take a large part of these short ones.
fn route(own: &Namespace, from: usize, setup: &Setup) -> Result<()> {
    let (me, peer) = (ADDRESSES[from], ADDRESSES[1 - from]);
    let mut first = (setup.load.product() / MSS).clamp(10.0, FIRST_WINDOW_MAX);
    let mut line = format!("route replace {peer}/32 dev {INTERFACE} src {me}");
    for injection in &setup.injections {
        match *injection {
            Injection::Window(segments) => {
                first = first.min(f64::from(segments));
                line += &format!(" cwnd lock {segments}");
            }
            // A window that fills the path would outlast a short run: it begins with the one that losses leave.
            Injection::Loss(share) => {
                first = first.min(loss_window(share)).max(10.0);
                line += &format!(" ssthresh lock {first:.0}");
            }
            _ => {}
        }
    }
    Ok(own.ip(&format!("{line} initcwnd {first:.0}"))?)
}

fn bucket(own: &Namespace, mbit: f64, queue_kib: u32) -> Result<()> {
    let line =
        format!("qdisc add dev {INTERFACE} root tbf rate {mbit:.0}mbit burst 16kb limit {queue_kib}kb");
    run(own.command("tc").args(line.split_whitespace()), TOOL_LIMIT)?.success()?;
    Ok(())
}

/// Whether a first connection has to come before the one that is measured: see [`path`].
pub(super) fn needs_first_connection(setup: &Setup) -> bool {
    let has_bound = |injection: &Injection| matches!(injection, Injection::Window(_) | Injection::Loss(_));
    setup.injections.iter().any(has_bound)
}

pub(super) fn first_connection(wan: &Wan, portal: &str) -> Result<()> {
    let mut command = wan.side(0).command(program("iscsi-ls")?.get_program());
    run(command.arg(format!("iscsi://{portal}")), TOOL_LIMIT)?.success()?;
    Ok(())
}

/// Variables of the shim for one side: 0 the initiator, 1 the target.
pub(super) fn variables(setup: &Setup, side: usize, shim: &Path) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    for injection in &setup.injections {
        match *injection {
            Injection::Nagle if side == sender(setup) => found.push(("SHIM_NAGLE", "1".to_owned())),
            Injection::Compute { us_per_kib } if side == sender(setup) => {
                found.push(("SHIM_SPIN_NS_KIB", format!("{:.0}", us_per_kib * 1e3)));
            }
            Injection::Storage { ms } if side == 1 && setup.peers.has_tgt() => {
                found.push(("SHIM_STORAGE_US", format!("{:.0}", ms * 1e3)));
            }
            _ => {}
        }
    }
    if !found.is_empty() {
        found.push(("LD_PRELOAD", shim.display().to_string()));
    }
    found
}

/// Options of the endpoint that `hikyaku serve` offers.
pub(super) fn endpoint_options(setup: &Setup) -> Vec<String> {
    let option = |injection: &Injection| match *injection {
        Injection::Storage { ms } => Some(format!("delay={:.0}us", ms * 1e3)),
        Injection::StorageRate(rate) => Some(format!("limit={:.0}kB/s", rate / 1e3)),
        _ => None,
    };
    setup.injections.iter().filter_map(option).collect()
}

pub(super) fn think_us(setup: &Setup) -> u64 {
    let think = |injection: &Injection| match *injection {
        Injection::Think { ms } => Some((ms * 1e3) as u64),
        _ => None,
    };
    setup.injections.iter().find_map(think).unwrap_or(0)
}

pub(super) fn is_sealed(setup: &Setup) -> bool {
    setup.injections.iter().any(|injection| matches!(injection, Injection::Sealed { .. }))
}

/// A bound of the processor time of a process and its threads. Dropping it removes the group, if the process has ended.
#[derive(Debug)]
pub(super) struct Quota {
    path: PathBuf,
}

impl Quota {
    /// The target's, if the setup has one.
    pub(super) fn start(setup: &Setup, pid: u32) -> Result<Option<Self>> {
        let share = |injection: &Injection| match *injection {
            Injection::Quota { share } | Injection::Sealed { share } => Some(share),
            _ => None,
        };
        let Some(share) = setup.injections.iter().find_map(share) else { return Ok(None) };
        let first = Path::new("/sys/fs/cgroup/cpu");
        let is_first = first.exists();
        let root = if is_first { first } else { Path::new("/sys/fs/cgroup") };
        let path = root.join(format!("hikyaku-lab-{}", std::process::id()));
        std::fs::create_dir_all(&path).with_context(|| format!("make the group {}", path.display()))?;
        let quota = Self { path };
        let period = PERIOD_US_MIN.max(QUOTA_US_MIN / share);
        let own = period * share;
        if is_first {
            quota.write("cpu.cfs_period_us", &format!("{period:.0}"))?;
            quota.write("cpu.cfs_quota_us", &format!("{own:.0}"))?;
        } else {
            std::fs::write(root.join("cgroup.subtree_control"), "+cpu")
                .context("turn on the cpu controller")?;
            quota.write("cpu.max", &format!("{own:.0} {period:.0}"))?;
        }
        quota.write("cgroup.procs", &pid.to_string())?;
        Ok(Some(quota))
    }

    fn write(&self, name: &str, value: &str) -> Result<()> {
        let path = self.path.join(name);
        std::fs::write(&path, value).with_context(|| format!("write {value} to {}", path.display()))
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        // A process that has not ended keeps the group.
        let _ = std::fs::remove_dir(&self.path);
    }
}
