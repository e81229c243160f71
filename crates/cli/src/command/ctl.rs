//! `ctl`: operates running processes through their control sockets.

use std::num::NonZeroU64;
use std::path::Path;

use block::Location;
use clap::Subcommand;
use serde_json::json;

use super::status;
use crate::context::Context;
use crate::control::Request;
use crate::control::client::{self, Process};
use crate::endpoint::{LUN_OPTIONS, Named};
use crate::error::{Exit, Failure};
use crate::{output, units};

/// Operate a server or copy: reload, drain, LUNs, sessions, rate
///
/// Each process has a socket in $RUNTIME_DIRECTORY (set by systemd), $XDG_RUNTIME_DIR/hikyaku, or for root /run/hikyaku;
/// its own user and root may use it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hikyaku ctl reload                         as SIGHUP, prints what has changed
  hikyaku ctl lun add /srv/b.img,ro --lun 1  until the next reload
  hikyaku ctl lun resize                     after a file or volume has grown
  hikyaku ctl session end 3                  the initiator may log in again
  hikyaku ctl drain                          as SIGTERM
  hikyaku ctl copy 4711 rate 100MB/s         a running copy; off: no limit")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,

    /// The server, if several are running [default: the only one]
    #[arg(long, global = true, value_name = "PID")]
    pid: Option<u32>,

    /// Print JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// What `hikyaku status` prints
    Status,
    /// Read the configuration again; a mistake in it changes nothing
    Reload,
    /// End the server: no new logins, tasks in flight finished and flushed, a request to log out to each session
    Drain,
    /// Add, resize or remove a LUN of the running server
    Lun {
        #[command(subcommand)]
        action: LunAction,
    },
    /// End a session
    Session {
        #[command(subcommand)]
        action: SessionAction,
    },
    /// Change a running copy
    Copy {
        /// Its number (PID) in `hikyaku status`
        #[arg(value_name = "ID")]
        id: u32,
        #[command(subcommand)]
        action: CopyAction,
    },
}

#[derive(Debug, Subcommand)]
enum CopyAction {
    /// Read no faster than this from now on, as `--rate`; `off`: no limit
    Rate {
        /// The limit, in all phases of the copy
        #[arg(value_name = "SIZE/s|off", value_parser = parse_limit)]
        limit: Limit,
    },
}

/// `None`: no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limit(Option<NonZeroU64>);

fn parse_limit(text: &str) -> Result<Limit, String> {
    if text == "off" {
        return Ok(Limit(None));
    }
    let rate = units::parse_rate(text).map_err(|error| format!("{error}; or off"))?;
    NonZeroU64::new(rate)
        .map(|rate| Limit(Some(rate)))
        .ok_or("a rate of 0 never ends; off removes the limit".into())
}

#[derive(Debug, Subcommand)]
enum LunAction {
    /// Offer storage as a further LUN, until the next reload of the configuration
    Add {
        /// The storage, with the options of a LUN
        #[arg(value_name = "ENDPOINT")]
        endpoint: String,
        /// Its number
        #[arg(long, value_name = "N")]
        lun: Option<u16>,
        /// The target, if the server has several
        #[arg(long, value_name = "IQN")]
        target: Option<String>,
    },
    /// Take over the sizes of all LUNs' storage; initiators get a unit attention
    Resize,
    /// Stop offering a LUN: its commands end, its storage is flushed and closed
    Remove {
        /// The LUN
        #[arg(value_name = "N")]
        lun: u16,
        /// The target, if the server has several
        #[arg(long, value_name = "IQN")]
        target: Option<String>,
    },
}

#[derive(Debug, Subcommand)]
enum SessionAction {
    /// Close the connection of a session; its initiator may log in again
    End {
        /// Its number (TSIH) in `hikyaku status`
        #[arg(value_name = "TSIH")]
        tsih: u16,
    },
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<Exit, Failure> {
    if let Action::Lun { action: LunAction::Add { endpoint, lun: None, target } } = &args.action {
        return Err(unnumbered(&the_server(args.pid)?, endpoint, target.as_deref())?);
    }
    let request = match &args.action {
        Action::Status => return status::print(context, args.json, args.pid, status::INTERVAL_DEFAULT),
        Action::Reload => Request::Reload {},
        Action::Lun { action: LunAction::Resize } => Request::ResizeLuns {},
        Action::Drain => Request::Drain {},
        Action::Lun { action: LunAction::Add { endpoint, lun, target } } => {
            let lun = lun.expect("one without a number is refused above");
            Request::AddLun { target: target.clone(), lun, endpoint: whole(context, endpoint)? }
        }
        Action::Lun { action: LunAction::Remove { lun, target } } => {
            Request::RemoveLun { target: target.clone(), lun: *lun }
        }
        Action::Session { action: SessionAction::End { tsih } } => Request::EndSession { tsih: *tsih },
        Action::Copy { action: CopyAction::Rate { limit: Limit(bytes_per_s) }, .. } => {
            Request::SetRate { bytes_per_s: *bytes_per_s }
        }
    };
    let process = match &args.action {
        Action::Copy { id, .. } => the_copy(*id)?,
        _ => the_server(args.pid)?,
    };
    let answer = process.ask(&request)?;
    let done = answer["done"].as_str().unwrap_or_default();
    if args.json {
        output::json(&json!({ "schema": output::SCHEMA, "pid": process.pid, "done": done }));
    } else {
        output::line(done);
    }
    Ok(Exit::Done)
}

/// The failure of `lun add` without a number: proposes the lowest free one of the target.
fn unnumbered(server: &Process, endpoint: &str, target: Option<&str>) -> Result<Failure, Failure> {
    let status = server.ask(&Request::Status {})?;
    let luns = status["luns"].as_array().into_iter().flatten();
    let of_target = luns.filter(|lun| target.is_none_or(|target| lun["target"] == target));
    let used: Vec<u64> = of_target.filter_map(|lun| lun["lun"].as_u64()).collect();
    let free = (0..).find(|number| !used.contains(number)).unwrap_or_default();
    let words = crate::secret::shown(endpoint);
    let again = format!("hikyaku ctl lun add {} --lun {free}", job::shell::quoted(&words));
    let of = target.map(|target| format!(" --target {target}")).unwrap_or_default();
    Ok(Failure::usage("add the LUN", words, "its number is missing").hint(format!("{again}{of}")))
}

/// The server of this PID, or the only one.
fn the_server(pid: Option<u32>) -> Result<Process, Failure> {
    let found = client::find();
    let mut servers: Vec<Process> = found
        .processes
        .into_iter()
        .filter(|process| process.command == "serve")
        // Another user's is operated only if it is named.
        .filter(|process| pid.map_or(process.is_own, |pid| process.pid == pid))
        .collect();
    let failed = |cause: String| Failure::usage("find the server", "", cause);
    match servers.len() {
        1 => Ok(servers.remove(0)),
        0 if found.denied > 0 => Err(failed("the running ones belong to other users".to_owned())
            .hint("run it as the server's user, or with sudo")),
        0 if pid.is_some() => {
            Err(failed("no server of this user has that PID".to_owned()).hint("hikyaku status lists them"))
        }
        0 => Err(failed("no server of this user is running".to_owned()).hint("hikyaku status")),
        _ => {
            let pids: Vec<_> = servers.iter().map(|process| process.pid.to_string()).collect();
            Err(failed(format!("{} are running", servers.len()))
                .hint(format!("--pid {}", pids.join(" or --pid "))))
        }
    }
}

/// The running copy of this PID. The failure lists those that are running.
fn the_copy(id: u32) -> Result<Process, Failure> {
    let found = client::find();
    let copies = found.processes.into_iter().filter(|process| process.command == "copy");
    let (mut chosen, others): (Vec<_>, Vec<_>) = copies.partition(|process| process.pid == id);
    if let Some(process) = chosen.pop() {
        return Ok(process);
    }
    let running: Vec<_> = others.iter().filter_map(described).collect();
    let hint = match running.len() {
        0 if found.denied > 0 => {
            format!("{} of other users; sudo hikyaku status shows them", found.denied)
        }
        0 => "no copy of this user is running; an interrupted one takes its rate from --rate when resumed"
            .to_owned(),
        _ => format!("running: {}", running.join("; ")),
    };
    Err(Failure::usage("find the copy", id.to_string(), "no copy of this user has this ID").hint(hint))
}

/// `4711 a.img -> b.img`; `None` if the copy has ended meanwhile.
fn described(copy: &Process) -> Option<String> {
    let status = copy.ask(&Request::Status {}).ok()?;
    let end = |name: &str| status[name].as_str().unwrap_or("-").to_owned();
    Some(format!("{} {} -> {}", copy.pid, end("source"), end("destination")))
}

/// The endpoint with its whole path: the server has another working directory.
fn whole(context: &Context, endpoint: &str) -> Result<String, Failure> {
    let named = Named::parse(context, endpoint, LUN_OPTIONS)?;
    let Location::File(path) = &named.spec.location else { return Ok(endpoint.to_owned()) };
    if path.is_absolute() {
        return Ok(endpoint.to_owned());
    }
    let here =
        std::env::current_dir().map_err(|error| Failure::failed("find the working directory", "", error))?;
    let bare = endpoint.strip_prefix("file:").unwrap_or(endpoint);
    Ok(format!("{}/{bare}", doubled(&here)))
}

/// A path with its commas as an endpoint writes them.
fn doubled(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_rates_or_off() {
        let limit = |text| parse_limit(text).map(|Limit(rate)| rate.map(NonZeroU64::get));
        assert_eq!(limit("100MB/s"), Ok(Some(100_000_000)));
        assert_eq!(limit("1M/s"), Ok(Some(1 << 20)));
        assert_eq!(limit("off"), Ok(None));
        for text in ["", "0", "0MB/s", "fast", "-1", "OFF"] {
            assert!(limit(text).is_err(), "{text}");
        }
    }
}
