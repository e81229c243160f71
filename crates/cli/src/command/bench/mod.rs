//! `bench`: measurements of this machine and of a link.

mod ciphers;
mod copy;
mod forecast;
mod path;
mod usage;

use clap::Subcommand;

use crate::context::Context;
use crate::error::{Exit, Failure};

/// Measure your own machine and link
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hikyaku bench ciphers
  hikyaku bench path iscsi://host/iqn.2026-11.example:disks/0    reads only")]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

impl Args {
    pub(crate) fn json(&self) -> bool {
        match &self.what {
            What::Ciphers(args) => args.json,
            What::Copy(args) => args.json,
            What::Path(args) => args.json,
        }
    }
}

/// What can be measured.
#[derive(Debug, Subcommand)]
enum What {
    Ciphers(ciphers::Args),
    Copy(copy::Args),
    Path(path::Args),
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<Exit, Failure> {
    match &args.what {
        What::Ciphers(args) => ciphers::run(context, args),
        What::Copy(args) => copy::run(context, args),
        What::Path(args) => path::run(context, args),
    }
}
