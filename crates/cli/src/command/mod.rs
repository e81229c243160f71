//! One module per command: its arguments and its function.

pub(crate) mod analyze;
pub(crate) mod bench;
pub(crate) mod check;
pub(crate) mod compare;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod copy;
pub(crate) mod ctl;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod import;
pub(crate) mod info;
pub(crate) mod key;
pub(crate) mod lab;
pub(crate) mod ls;
pub(crate) mod man;
pub(crate) mod net;
pub(crate) mod paths;
pub(crate) mod serve;
pub(crate) mod status;
pub(crate) mod torture;
pub(crate) mod volume;
pub(crate) mod watch;

use crate::args::Command;
use crate::context::Context;
use crate::error::{Exit, Failure};

pub(crate) fn run(context: &Context, command: Command) -> Result<Exit, Failure> {
    match command {
        Command::Serve(args) => serve::run(context, &args),
        Command::Copy(args) => copy::run(context, &args),
        Command::Compare(args) => compare::run(context, &args),
        Command::Ls(args) => ls::run(context, &args),
        Command::Info(args) => info::run(context, &args),
        Command::Key(args) => key::run(context, &args),
        Command::Volume(args) => volume::run(context, &args),
        Command::Status(args) => status::run(context, &args),
        Command::Ctl(args) => ctl::run(context, &args),
        Command::Check(args) => check::run(context, &args),
        Command::Config(args) => config::run(context, &args),
        Command::Import(args) => import::run(&args),
        Command::Paths(args) => paths::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Analyze(args) => analyze::run(context, &args),
        Command::Demo(args) => demo::run(context, &args),
        Command::Bench(args) => bench::run(context, &args),
        Command::Lab(args) => lab::run(context, &args),
        Command::Net(args) => net::run(context, &args),
        Command::Torture(args) => torture::run(context, &args),
        Command::Watch(args) => watch::run(context, &args),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
    }
}
