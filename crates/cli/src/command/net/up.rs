//! `net up`: the supervisor.

use std::net::IpAddr;
use std::path::PathBuf;

use net::nic::random_mac;
use net::supervisor::config::{
    ADDRESSES_MAX, Config, GATEWAYS_MAX, Nic, parse_address, parse_clients, parse_mac, show_mac,
};
use net::supervisor::{self, Fault};

use crate::context::Context;
use crate::error::{Exit, Failure};
use crate::{output, sys};

/// Start the servers for one network interface, and applications
///
/// Prints a line for each address when applications can join. Ends with SIGTERM or SIGINT; connections are then reset.
///
/// As root the servers become users without an account, in an empty network namespace. Without root they are confined less, which the
/// log says, and the interface must be a TAP of this user or a wire.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Interfaces:
  tap:NAME     a TAP interface, made unless it is there; the host, or a bridge
               of the host, is at its other end
  packet:NAME  an interface of the host: the stack is one more station there
  wire:PATH    the stack whose `net up` has the same PATH; with
               ,delay=50ms,rate=1Gbit,loss=1%,reorder=1%,duplicate=1%,seed=N
               for what it sends

An application is let in if it may open the socket, which belongs to this user
with mode 0600. With --clients 1 an application reads frames where the driver
has received them; one that was let in once can read those of its successors.
With more each gets a copy of its own.

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

    /// Gateway, of either protocol
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
    if !sys::is_root() {
        tracing::warn!("not root: the servers run as this user, confined as far as this machine allows");
    }
    if matches!(args.nic, Nic::Wire(..)) {
        context.remark(&format!("waiting for the other end of {nic}"));
    }
    let mut announce = || {
        for (address, length) in &config.addresses {
            output::announce(&format!("{address}/{length} on {nic}, mac {}", show_mac(mac)));
        }
    };
    match supervisor::run(&config, &mut announce) {
        Ok(()) => Ok(Exit::Done),
        Err(fault) => Err(explain(fault, &nic, &args.socket.display().to_string())),
    }
}

fn explain(fault: Fault, nic: &str, socket: &str) -> Failure {
    let again = "the log above has the reasons of the servers";
    match fault {
        Fault::Socket(error) => Failure::failed("listen for applications at", socket, error)
            .hint("choose a path in a directory that this user may write"),
        Fault::SocketInUse => Failure::refused("listen for applications at", socket, Fault::SocketInUse)
            .hint("end the other `hikyaku net up`, or choose another --socket"),
        Fault::Nic(error) => {
            let hint = match error.kind() {
                std::io::ErrorKind::PermissionDenied => {
                    "it needs CAP_NET_ADMIN: run it with sudo, or let root make a TAP for this user: ip tuntap add NAME mode tap \
                     vnet_hdr user USER"
                }
                std::io::ErrorKind::ResourceBusy => "end the other process, or choose another name",
                _ => "ip link shows the interfaces",
            };
            Failure::failed("open the network interface", nic, error).hint(hint)
        }
        Fault::Driver(_) | Fault::Inet(_) => {
            Failure::failed("keep servers running on", nic, fault).hint(again)
        }
        Fault::Start(_) | Fault::Wait(_) => Failure::failed("start the servers on", nic, fault).hint(again),
    }
}
