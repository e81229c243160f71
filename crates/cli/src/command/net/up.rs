//! `net up`: the supervisor.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use net::nic::{random_mac, wire};
use net::socket_file;
use net::supervisor::config::{
    ADDRESSES_MAX, Config, GATEWAYS_MAX, Nic, parse_address, parse_clients, parse_mac, show_mac,
};
use net::supervisor::{self, Event, Fault};

use crate::context::Context;
use crate::error::{Exit, Failure};
use crate::{output, sys};

/// Start the servers for one network interface, and applications
///
/// Prints a line for each address when applications can join. SIGTERM and SIGINT end it with exit status 0; connections are then
/// reset.
///
/// As root the servers become users without an account, in an empty network namespace. Without root they are confined less, which the
/// log says, and the interface must be a TAP of this user or a wire.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Interfaces:
  tap:NAME     a TAP interface, made unless it is there; the host, or a bridge
               of the host, is at its other end
  packet:NAME  an interface of the host: the stack is one more station on its
               network. The host itself cannot reach the stack over NAME; for
               that, use a TAP interface, or one end of a veth pair
  wire:PATH    the stack whose `net up` has the same PATH; with
               ,delay=50ms,rate=1Gbit,loss=1%,reorder=1%,duplicate=1%,seed=N
               for what it sends. If one of the two ends, another can take its
               place

An application is let in if it may open the socket, which belongs to this user
with mode 0600. With --clients 1 an application reads frames where the driver
has received them; one that was let in once can read those of its successors.
With more each gets a copy of its own.

Exit status: 0 after SIGTERM or SIGINT, 1 if the interface is deleted or the
servers end again and again, 2 usage, 6 if --socket or wire: names a file that
is no socket.

Examples:
  hikyaku net up --socket /run/net.sock --nic tap:tap0 --address 10.0.0.2/24
  ip addr add 10.0.0.1/24 dev tap0              the host's end of it
  http --socket /run/net.sock --listen 10.0.0.2:80 disk.img")]
pub(super) struct Args {
    /// Socket that applications join at
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,

    /// Network interface: tap:NAME, packet:NAME or wire:PATH
    #[arg(long, value_name = "NIC")]
    nic: Nic,

    /// Addresses of the stack, with the length of the prefix
    #[arg(long, value_name = "A/LEN", required = true, num_args = 1.., value_parser = parse_address)]
    address: Vec<(IpAddr, u8)>,

    /// Default gateway, in a network of --address; one of each protocol
    #[arg(long, value_name = "G")]
    gateway: Vec<IpAddr>,

    /// MAC address [a random one]
    #[arg(long, value_name = "M", value_parser = parse_mac)]
    mac: Option<[u8; 6]>,

    /// Applications at a time
    #[arg(long, value_name = "N", default_value = "1", value_parser = parse_clients)]
    clients: u32,
}

pub(super) fn run(context: &Context, args: &Args) -> Result<Exit, Failure> {
    let nic = args.nic.to_string();
    for (list, most, what) in
        [(args.address.len(), ADDRESSES_MAX, "addresses"), (args.gateway.len(), GATEWAYS_MAX, "gateways")]
    {
        if list > most {
            return Err(Failure::usage(
                "start a stack on",
                nic,
                format!("{list} {what}; it has at most {most}"),
            ));
        }
    }
    let mac = match args.mac {
        Some(mac) => mac,
        None => random_mac().map_err(|error| Failure::failed("choose a MAC address for", &nic, error))?,
    };
    let config = Config {
        socket: args.socket.clone(),
        nic: args.nic.clone(),
        addresses: args.address.clone(),
        gateways: args.gateway.clone(),
        mac,
        clients_max: args.clients,
    };
    config.check().map_err(|why| Failure::usage("start a stack on", &nic, why))?;
    if !sys::is_root() {
        tracing::warn!("not root: the servers run as this user, confined as far as this machine allows");
    }
    let mut announce = |event| match event {
        Event::WaitingForWire => context.remark(&format!("waiting for the other end of {nic}")),
        Event::Up => {
            for (address, length) in &config.addresses {
                output::announce(&format!("{address}/{length} on {nic}, mac {}", show_mac(mac)));
            }
        }
    };
    match supervisor::run(&config, &mut announce) {
        Ok(()) => Ok(Exit::Done),
        Err(fault) => Err(explain(fault, &args.nic, &args.socket)),
    }
}

fn explain(fault: Fault, nic: &Nic, socket: &Path) -> Failure {
    let again = "the log above has the reasons of the servers";
    match fault {
        Fault::Socket(fault) => explain_path(fault, "listen for applications at", socket, "--socket "),
        Fault::Wire(wire::Fault::Socket(fault)) => {
            explain_path(fault, "join the wire", path_of(nic), "--nic wire:")
        }
        Fault::Wire(fault) => Failure::failed("join the wire", path_of(nic).display().to_string(), fault)
            .hint("end one of them, or choose another path: --nic wire:PATH"),
        Fault::Nic(error) => {
            let hint = match error.kind() {
                ErrorKind::PermissionDenied => {
                    "it needs CAP_NET_ADMIN: run it with sudo, or let root make a TAP for this user: ip tuntap add NAME mode tap \
                     vnet_hdr user USER"
                }
                ErrorKind::ResourceBusy => "end that process, or choose another name",
                ErrorKind::NotFound if matches!(nic, Nic::Tap(_)) => {
                    "modprobe tun; in a container, give it the device /dev/net/tun"
                }
                _ => "`ip link` shows the interfaces",
            };
            Failure::failed("open the network interface", nic.to_string(), error).hint(hint)
        }
        Fault::Gone => Failure::failed("go on with", nic.to_string(), &fault).hint(match nic {
            Nic::Tap(_) => "start `hikyaku net up` again: it makes the interface again",
            Nic::Packet(_) | Nic::Wire(..) => "make it again, and start `hikyaku net up` again",
        }),
        Fault::Driver(_) | Fault::Inet(_) => {
            Failure::failed("keep servers running on", nic.to_string(), fault).hint(again)
        }
        Fault::Start(_) | Fault::Wait(_) | Fault::Limit { .. } => {
            Failure::failed("start the servers on", nic.to_string(), fault).hint(again)
        }
    }
}

fn path_of(nic: &Nic) -> &Path {
    match nic {
        Nic::Tap(name) | Nic::Packet(name) => Path::new(name),
        Nic::Wire(path, _) => path,
    }
}

fn explain_path(fault: socket_file::Fault, attempted: &str, path: &Path, option: &str) -> Failure {
    use socket_file::Fault as At;
    let hint = match &fault {
        At::NoSocket("a directory") => format!("add the name of a socket: {option}{}/NAME", path.display()),
        At::NoSocket(_) => {
            format!("choose another path: {option}PATH, or remove the file if it is not needed")
        }
        At::InUse => format!(
            "end the other process, such as another `hikyaku net up`, or choose another path: {option}PATH"
        ),
        At::Directory { directory, error } if error.kind() == ErrorKind::NotFound => {
            format!("mkdir -p {}", directory.display())
        }
        At::TooLong(_) | At::Nameless => format!("choose another path: {option}PATH"),
        At::Directory { .. } | At::System(_) => {
            "choose a path in a directory that this user may write".to_owned()
        }
    };
    let ending = match fault {
        At::NoSocket(_) => Exit::Refused,
        At::TooLong(_) | At::Nameless => Exit::Usage,
        At::Directory { .. } | At::InUse | At::System(_) => Exit::Failed,
    };
    Failure::new(ending, attempted, path.display().to_string(), fault).hint(hint)
}
