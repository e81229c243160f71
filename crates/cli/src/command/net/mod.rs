//! `net`: the user-space TCP/IP servers.

mod status;
mod up;

use std::convert::Infallible;

use clap::Subcommand;
use net::process::{self, Fault};

use crate::context::Context;
use crate::error::{Exit, Failure};

/// Run TCP/IP in confined user-space processes
///
/// Two servers without any right, one with the protocols and one with the network interface, serve applications that use the library
/// `net` instead of the kernel's sockets. Either may crash: a driver is replaced while connections live.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hikyaku net up --socket /run/net.sock --nic tap:tap0 --address 10.0.0.2/24
  hikyaku net status --socket /run/net.sock")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

impl Args {
    pub(crate) fn json(&self) -> bool {
        matches!(&self.action, Action::Status(args) if args.json)
    }

    /// Handles signals itself, and has no other thread.
    pub(crate) fn is_server(&self) -> bool {
        !matches!(self.action, Action::Status(_))
    }
}

#[derive(Debug, Subcommand)]
enum Action {
    Up(up::Args),
    Status(status::Args),
    /// The process of the protocol server, started by `net up`
    #[command(hide = true)]
    Inet,
    /// The process of a driver, started by `net up`
    #[command(hide = true)]
    Nic,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<Exit, Failure> {
    match &args.action {
        Action::Up(args) => up::run(context, args),
        Action::Status(args) => status::run(args),
        Action::Inet => serve("inet", process::run_inet),
        Action::Nic => serve("nic", process::run_nic),
    }
}

/// The supervisor logs why a server ends.
fn serve(name: &str, server: fn() -> Result<Infallible, Fault>) -> Result<Exit, Failure> {
    let Err(fault) = server();
    let hint = match fault {
        Fault::NoSupervisor => "hikyaku net up --help",
        _ => "",
    };
    Err(Failure::failed("run the server", name, fault).hint(hint))
}
