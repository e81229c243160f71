//! `watch`: what limits the iSCSI connections of this machine, while they run.

mod engine;
mod events;
mod json;
mod lines;
mod own;
mod screen;
mod tune;
mod words;

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use monitor::probe::{Chosen, LOOKED_FOR, NamespaceError, Sessions};
use node::initiator::Url;

use crate::context::Context;
use crate::error::{Exit, Failure};
use crate::{output, sys, units};
use engine::Engine;

const INTERVAL_MIN: Duration = Duration::from_millis(1);
const INTERVAL_MAX: Duration = Duration::from_secs(3600);
/// A verdict needs samples at least this often.
const SAMPLING_MAX: Duration = Duration::from_millis(10);

/// Show what limits each iSCSI connection of this machine
///
/// Of this program, of other programs (tgt, QEMU, libiscsi), and of the kernel's initiator: rates, round trip, bytes in
/// flight and unsent, the send queue and its cap, congestion and receive window, and after four seconds the limit with
/// what to type. Needs no rights: the kernel shows every user the state of TCP sockets. Changes nothing without --tune.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hikyaku watch
  hikyaku watch 192.0.2.7:3260 --for 10s
  hikyaku watch 4711 --json --interval 100ms
  hikyaku watch --record slow.rec --for 60s
  sudo hikyaku watch iscsi://host --tune

Without an argument it finds port 3260 or 860 at either end, and all connections
of processes named hikyaku, tgtd, iscsid or qemu-*; others by PID or ADDR:PORT.
On a terminal: arrows choose a connection, Enter shows it, ? explains, q ends.")]
pub(crate) struct Args {
    /// A target, a process or an address; by default every iSCSI connection
    ///
    /// A URL (iscsi://HOST:PORT/IQN) or HOST:PORT: connections with that address at either end. A process: all its TCP
    /// connections, in its network namespace, which root can enter.
    #[arg(value_name = "URL|PID|ADDR:PORT")]
    target: Option<String>,

    /// Time between two lines, and between two samples if it is below 10ms
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_interval)]
    interval: Duration,

    /// End after this time; a verdict needs at least 1s
    #[arg(long = "for", value_name = "TIME", value_parser = parse_limit)]
    limit: Option<Duration>,

    /// Whether packets are read
    ///
    /// auto: where this is permitted (CAP_NET_RAW, as root has). The PDUs in them show what iSCSI waits for; without them
    /// several limits cannot be distinguished.
    #[arg(long, value_enum, default_value = "auto")]
    packets: PacketsChoice,

    /// Whether programs in the kernel report each segment, retransmission and write
    ///
    /// auto: where this is permitted (root, or CAP_BPF and CAP_PERFMON). They show what happens between two samples.
    #[cfg(feature = "bpf")]
    #[arg(long, value_enum, default_value = "auto")]
    events: PacketsChoice,

    /// Append every sample to a file
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,

    /// Enlarge the send buffer of connections that it limits
    ///
    /// To 1.5 times what the path holds, never below what it was, until this command ends. Needs the right to trace the
    /// process that has the connection; without it, the lines to type are printed.
    #[arg(long)]
    tune: bool,

    /// With --tune: leave the buffers enlarged at the end
    #[arg(long, requires = "tune")]
    keep: bool,

    /// Print JSON, one line for each connection and interval
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum PacketsChoice {
    Auto,
    Off,
}

impl Args {
    #[cfg(feature = "bpf")]
    fn wants_events(&self) -> bool {
        self.events == PacketsChoice::Auto
    }

    #[cfg(not(feature = "bpf"))]
    fn wants_events(&self) -> bool {
        false
    }
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let interval = units::parse_duration(text)?;
    if (INTERVAL_MIN..=INTERVAL_MAX).contains(&interval) {
        Ok(interval)
    } else {
        Err("an interval has 1ms to 1h".to_owned())
    }
}

fn parse_limit(text: &str) -> Result<Duration, String> {
    let limit = units::parse_duration(text)?;
    if limit.is_zero() { Err("the time must be above 0".to_owned()) } else { Ok(limit) }
}

/// What is looked for, while there is none.
fn none_yet(args: &Args) -> String {
    match &args.target {
        Some(_) => "no such connection yet".to_owned(),
        None => format!(
            "no iSCSI connection yet: none has {LOOKED_FOR}; for another one: hikyaku watch PID, or ADDR:PORT"
        ),
    }
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<Exit, Failure> {
    let object = args.target.as_deref().unwrap_or("the iSCSI connections of this machine");
    let chosen = args.target.as_deref().map_or(Ok(Chosen::All), chosen)?;
    let sessions = Sessions::new(chosen).map_err(|error| unreachable(object, &error))?;
    let mut engine = Engine::new(
        sessions,
        args.interval.min(SAMPLING_MAX),
        args.packets == PacketsChoice::Auto,
        args.wants_events(),
    );
    if let Some(refusal) = engine.precise.refusal() {
        context.remark(&format!("no events from the kernel ({refusal}): connections are sampled instead"));
    }
    if let Some(error) = engine.unseen() {
        context.remark(&format!(
            "packets are not read ({error}): without them waits for R2Ts, for the target and for commands cannot be distinguished; sudo hikyaku watch reads them"
        ));
    }
    if let Some(path) = &args.record {
        engine.record(path)?;
    }
    let mut tuning = args.tune.then(|| tune::Tuning::new(args.keep));
    let orderly = context.stop.orderly();
    let has_screen = !args.json && output::is_terminal();
    engine.is_tuning = args.tune;
    if has_screen || args.tune {
        engine.keep_points();
    }
    let result = if has_screen {
        screen::run(context, args, &mut engine, &mut tuning)
    } else {
        lines::run(context, args, &mut engine, &mut tuning)
    };
    drop(orderly);
    if let Some(tuning) = tuning {
        tuning.end(context);
    }
    engine.finish()?;
    result?;
    if let Some(signal) = context.stop.signal() {
        return Ok(Exit::Interrupted(signal));
    }
    if engine.has_seen_any() {
        return Ok(Exit::Done);
    }
    Err(none(args, object))
}

/// There was nothing to watch.
fn none(args: &Args, object: &str) -> Failure {
    let Some(target) = &args.target else {
        let cause = format!("there was none that has {LOOKED_FOR}");
        let failure = Failure::failed("watch", object, cause);
        return failure.hint("for another one: hikyaku watch PID, or ADDR:PORT; ss -tnp lists all of TCP");
    };
    let (cause, hint) = match target.parse::<u32>() {
        Ok(_) => ("the process has no TCP connection that this user can see", ""),
        Err(_) if target.contains("://") => (
            "there was no such connection",
            "host and port of the URL choose connections, each of which carries all LUNs of its target; ",
        ),
        Err(_) => ("there was no such connection", ""),
    };
    Failure::failed("watch", object, cause).hint(format!(
        "{hint}hikyaku watch without an argument shows every iSCSI connection; ss -tnp lists all of TCP"
    ))
}

/// What the argument chooses.
fn chosen(target: &str) -> Result<Chosen, Failure> {
    let usage = |cause: String| {
        let failure = Failure::usage("understand what to watch:", target, cause);
        failure.hint(
            "hikyaku watch, hikyaku watch PID, hikyaku watch 192.0.2.7:3260, hikyaku watch iscsi://host",
        )
    };
    if let Ok(pid) = target.parse::<u32>() {
        return Ok(Chosen::Process(pid));
    }
    let address = if target.contains("://") {
        if !target.starts_with("iscsi://") {
            return Err(usage("only iscsi:// has connections that can be watched".to_owned()));
        }
        Url::parse(target).map_err(|error| usage(error.to_string()))?.address()
    } else {
        target.to_owned()
    };
    if let Ok(ip) = address.trim_matches(['[', ']']).parse() {
        return Ok(Chosen::Addresses(vec![SocketAddr::new(ip, 0)]));
    }
    let found = address.to_socket_addrs();
    let found: Vec<SocketAddr> = found.map_err(|error| usage(error.to_string()))?.collect();
    Ok(Chosen::Addresses(found))
}

fn unreachable(object: &str, error: &NamespaceError) -> Failure {
    let failure = Failure::failed("watch", object, error);
    match error {
        NamespaceError::NoProcess(_) => failure.hint("ps -e lists the processes"),
        NamespaceError::Entering { .. } if sys::is_root() => failure.hint(
            "this root has no right over that namespace (a container, a user namespace): run it outside of the container",
        ),
        NamespaceError::Entering { pid, .. } => failure.hint(format!(
            "sudo hikyaku watch {pid}; connections of this namespace need no rights: hikyaku watch, or ADDR:PORT"
        )),
        NamespaceError::Opening(_) => failure
            .hint("it needs netlink sockets (NETLINK_SOCK_DIAG): a container or a sandbox may forbid them"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_choose() {
        let addresses = |text: &str| Chosen::Addresses(vec![text.parse().unwrap()]);
        for (target, expected) in [
            ("4711", Chosen::Process(4711)),
            ("192.0.2.7:3261", addresses("192.0.2.7:3261")),
            ("192.0.2.7", addresses("192.0.2.7:0")),
            ("[::1]:3260", addresses("[::1]:3260")),
            ("::1", addresses("[::1]:0")),
            ("iscsi://192.0.2.7", addresses("192.0.2.7:3260")),
            ("iscsi://user@[::1]:860/iqn.2026-11.example:a/0", addresses("[::1]:860")),
        ] {
            assert_eq!(chosen(target).unwrap(), expected, "{target}");
        }
        for wrong in ["nbd://host/a", "iscsi://", "host:port", "", "99999999999", "a\u{1b}[2J"] {
            assert_eq!(chosen(wrong).unwrap_err().ending, Exit::Usage, "{wrong}");
        }
    }

    #[test]
    fn intervals_have_bounds() {
        assert_eq!(parse_interval("1ms"), Ok(INTERVAL_MIN));
        assert!(
            parse_interval("500us").is_err()
                && parse_interval("0s").is_err()
                && parse_interval("2h").is_err()
        );
        assert!(parse_limit("0s").is_err() && parse_limit("0ms").is_err() && parse_limit("1ms").is_ok());
    }
}
