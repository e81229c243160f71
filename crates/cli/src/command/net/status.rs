//! `net status`: asks the supervisor.

use std::io::{self, ErrorKind};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use net::control::{FromClient, ToClient};
use net::control_socket::{receive, send};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use serde_json::Value;

use crate::error::{Exit, Failure};
use crate::output::{self, Table};
use crate::units;

/// Time for an answer: the supervisor waits for nothing.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Show the servers of a socket: processes, what they use, copies, drops, rings
#[derive(Debug, clap::Args)]
#[command(after_help = "\
CPU is the time that the process has used, PRIVATE the memory that no other
process has, which `net up` sees if it is root. DIRECT is the share of sends
whose memory the driver returned to the application itself, without the protocol
server.

Examples:
  hikyaku net status --socket /run/net.sock
  hikyaku net status --socket /run/net.sock --json | jq .servers")]
pub(super) struct Args {
    /// Socket of `net up`
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,

    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) fn run(args: &Args) -> Result<Exit, Failure> {
    let status = ask(&args.socket).map_err(|error| explain(&error, &args.socket))?;
    if args.json {
        output::json(&status);
    } else {
        show(&status);
    }
    Ok(Exit::Done)
}

fn ask(path: &Path) -> io::Result<Value> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    send(&socket, &FromClient::Status, &[])?;
    let limit = Timespec { tv_sec: ANSWER_MAX.as_secs().cast_signed(), tv_nsec: 0 };
    if poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&limit))? == 0 {
        return Err(ErrorKind::TimedOut.into());
    }
    match receive(&socket)? {
        Some((ToClient::Status(status), _)) => Ok(status),
        Some(_) => Err(io::Error::new(ErrorKind::InvalidData, "the answer is no status")),
        None => Err(io::Error::new(ErrorKind::InvalidData, "it has closed the connection without an answer")),
    }
}

fn explain(error: &io::Error, path: &Path) -> Failure {
    let attempted = "ask the TCP/IP servers at";
    let file = path.symlink_metadata().ok().map(|file| file.file_type());
    let object = path.display().to_string();
    if file.is_some_and(|file| !file.is_socket() && !file.is_symlink()) {
        return Failure::failed(attempted, object, "it is not a socket")
            .hint("give the path that `net up` was given: --socket PATH");
    }
    let (ending, cause, hint) = match error.kind() {
        ErrorKind::NotFound => (Exit::Unreachable, "there is no such socket".to_owned(), START),
        ErrorKind::ConnectionRefused => {
            (Exit::Unreachable, "no process listens there: `net up` has ended".to_owned(), START)
        }
        ErrorKind::TimedOut | ErrorKind::WouldBlock => {
            (Exit::Unreachable, "no answer within 5 s".to_owned(), "see the log of `net up`")
        }
        ErrorKind::PermissionDenied => {
            (Exit::Failed, error.to_string(), "run it with sudo, or as the user of `net up`")
        }
        _ => (Exit::Failed, error.to_string(), "see that it is the socket of `net up`, of the same release"),
    };
    Failure::new(ending, attempted, object, cause).hint(hint)
}

const START: &str = "start them with `hikyaku net up --socket PATH ...`, or correct the path";

fn show(status: &Value) {
    let addresses: Vec<&str> = array(&status["addresses"]).filter_map(Value::as_str).collect();
    let state = match text(&status["state"]).as_str() {
        "waiting_for_wire" => "waiting for the other end of the wire".to_owned(),
        "wire_ended" => "down: the other end of the wire has ended".to_owned(),
        "interface_down" => "down: the interface is set down".to_owned(),
        "no_driver" => "down: no driver".to_owned(),
        state => state.to_owned(),
    };
    let head = [
        format!("net {}", number(&status["pid"])),
        text(&status["nic"]),
        state,
        format!("mac {}", text(&status["mac"])),
        addresses.join(" "),
    ];
    output::line(&output::fields(&head, output::columns()));
    let mut servers = Table::new(&["server", "pid", "up", "restarts", "cpu", "private"]);
    for server in array(&status["servers"]) {
        servers.row(vec![
            text(&server["server"]),
            number(&server["pid"]),
            up_for(&server["up_s"]),
            number(&server["restarts"]),
            server["cpu_s"].as_f64().map_or("-".to_owned(), |cpu_s| format!("{cpu_s:.2} s")),
            bytes(&server["private_bytes"]),
        ]);
    }
    servers.print();
    let mut applications = Table::new(&["client", "pid", "regions", "memory"]);
    for application in array(&status["applications"]) {
        let [client, pid, regions] = ["client", "pid", "regions"].map(|name| number(&application[name]));
        applications.row(vec![client, pid, regions, bytes(&application["region_bytes"])]);
    }
    applications.print();
    if !status["inet"].is_null() {
        totals(status);
    }
    let mut rings = Table::new(&["ring", "client", "waiting", "slots", "total"]);
    for ring in array(&status["rings"]) {
        let counts = ["client", "waiting", "slots", "total"].map(|name| number(&ring[name]));
        rings.row([text(&ring["ring"])].into_iter().chain(counts).collect());
    }
    rings.print();
}

fn totals(status: &Value) {
    let direct = status["returned_directly_share"].as_f64();
    let direct = direct.map_or("-".to_owned(), |share| format!("{:.1} %", share * 100.0));
    let drops: u64 = status["drops"]
        .as_object()
        .into_iter()
        .flat_map(|drops| drops.values().filter_map(Value::as_u64))
        .sum();
    let mut totals =
        Table::new(&["frames in", "frames out", "sent", "received", "copied", "direct", "drops"]);
    totals.row(vec![
        number(&status["inet"]["frames_in"]),
        number(&status["inet"]["frames_out"]),
        bytes(&status["inet"]["bytes_out"]),
        bytes(&status["inet"]["bytes_in"]),
        bytes(&status["copied_bytes"]),
        direct,
        drops.to_string(),
    ]);
    totals.print();
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn up_for(value: &Value) -> String {
    let duration = value.as_f64().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.map_or("-".to_owned(), units::duration)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or("-").to_owned()
}

fn number(value: &Value) -> String {
    value.as_u64().map_or("-".to_owned(), |number| number.to_string())
}

fn bytes(value: &Value) -> String {
    value.as_u64().map_or("-".to_owned(), units::bytes)
}
