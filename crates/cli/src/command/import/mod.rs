//! `import`: writes a configuration from one of tgt or of LIO, the kernel's target.

mod lio;
mod tgt;
mod write;

use std::path::PathBuf;

use clap::Subcommand;

use crate::error::{Exit, Failure};
use crate::output;

/// Write a hikyaku.toml from the configuration of tgt or LIO
///
/// The result goes to stdout, with a comment for everything that is not carried over. CHAP secrets go to files of their own
/// and are never printed. Nothing else is changed: neither the other target's configuration nor its disks.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hikyaku import tgt > hikyaku.toml && hikyaku check hikyaku.toml
  tgt-admin --dump | hikyaku import tgt - > hikyaku.toml
  hikyaku import lio --secrets /etc/hikyaku/secrets > /etc/hikyaku/hikyaku.toml")]
pub(crate) struct Args {
    #[command(subcommand)]
    source: Source,
}

#[derive(Debug, Subcommand)]
enum Source {
    /// From targets.conf, or the output of `tgt-admin --dump`
    #[command(after_help = "Examples:\n  hikyaku import tgt /etc/tgt/targets.conf > hikyaku.toml")]
    Tgt(TgtArgs),
    /// From saveconfig.json, which targetcli writes
    #[command(
        after_help = "Examples:\n  hikyaku import lio /etc/rtslib-fb-target/saveconfig.json > hikyaku.toml"
    )]
    Lio(LioArgs),
}

#[derive(Debug, clap::Args)]
struct TgtArgs {
    /// The file; `-` for standard input
    #[arg(value_name = "FILE", default_value = "/etc/tgt/targets.conf")]
    file: PathBuf,
    #[command(flatten)]
    secrets: Secrets,
}

#[derive(Debug, clap::Args)]
struct LioArgs {
    /// The file; `-` for standard input
    #[arg(value_name = "FILE", default_value = "/etc/rtslib-fb-target/saveconfig.json")]
    file: PathBuf,
    #[command(flatten)]
    secrets: Secrets,
}

#[derive(Debug, clap::Args)]
struct Secrets {
    /// Directory for the files of CHAP secrets; made if it is missing
    #[arg(long = "secrets", value_name = "DIR", default_value = "secrets")]
    directory: PathBuf,
}

/// What is carried over, and remarks on what is not.
#[derive(Debug, Default, PartialEq, Eq)]
struct Imported {
    listen: Vec<String>,
    targets: Vec<Target>,
    notes: Vec<String>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Target {
    iqn: String,
    luns: Vec<Lun>,
    rules: Vec<Rule>,
    notes: Vec<String>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Lun {
    lun: u16,
    endpoint: String,
    serial: Option<String>,
    notes: Vec<String>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Rule {
    initiator: Option<String>,
    chap: Option<Account>,
    mutual: Option<Account>,
    /// Visible LUNs; `None` for all.
    luns: Option<Vec<u16>>,
    read_only: bool,
}

#[derive(Clone, PartialEq, Eq)]
struct Account {
    user: String,
    secret: zeroize::Zeroizing<String>,
}

impl std::fmt::Debug for Account {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Account({:?}, ***)", self.user)
    }
}

pub(crate) fn run(args: &Args) -> Result<Exit, Failure> {
    let (imported, secrets) = match &args.source {
        Source::Tgt(args) => (tgt::read(&args.file)?, &args.secrets.directory),
        Source::Lio(args) => (lio::read(&args.file)?, &args.secrets.directory),
    };
    let (text, files) = write::compose(&imported, secrets);
    for (path, secret) in &files {
        write::store(path, secret)?;
    }
    output::line(text.trim_end());
    Ok(Exit::Done)
}
