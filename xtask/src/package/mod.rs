//! `package`: the Debian package, a static program, the list of dependencies and their digests, below `target/package`.
//!
//! The same commit gives the same bytes in any folder: paths are remapped, times are those of the commit, lists are
//! sorted, and archives are made by one thread.

mod deb;
mod dependencies;
mod program;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use steps::{line_of, repository, target_directory};

use deb::Compression;
use program::Linkage;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Package this program, stripped, instead of building one; no static program is made
    #[arg(long, value_name = "PATH")]
    hikyaku: Option<PathBuf>,
    /// Do not compress that package: for an emulated machine, which unpacks slowly
    #[arg(long, requires = "hikyaku")]
    uncompressed: bool,
    /// Directory of the results [default: target/package]
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
}

/// Version of the first packaging of a release.
const REVISION: &str = "1";

/// Facts that all results of a run share.
pub(crate) struct Release {
    /// The program's version.
    version: String,
    /// Debian's name of this machine's architecture.
    architecture: String,
    /// Rust's name of the target.
    triple: String,
    /// Time of the commit, seconds of the epoch: `SOURCE_DATE_EPOCH`.
    time: u64,
}

impl Release {
    fn read() -> Result<Self> {
        let version =
            answer(Command::new("cargo").args(["pkgid", "-p", "hikyaku"]).current_dir(repository()))?;
        let version = version.rsplit(['#', '@']).next().context("a version")?.to_owned();
        let time = match std::env::var("SOURCE_DATE_EPOCH") {
            Ok(time) => time,
            Err(_) => {
                answer(Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(repository()))?
            }
        };
        let architecture = answer(Command::new("dpkg").arg("--print-architecture"))?;
        let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        Ok(Self { version, architecture, triple, time: time.parse().context("the commit's time")? })
    }

    fn debian_version(&self) -> String {
        format!("{}-{REVISION}", self.version)
    }
}

/// Runs a command and returns its standard output without the last newline.
fn answer(command: &mut Command) -> Result<String> {
    let line = line_of(command);
    let output = command.stderr(Stdio::inherit()).output().with_context(|| format!("start {line}"))?;
    ensure!(output.status.success(), "{line} failed");
    Ok(String::from_utf8(output.stdout)?.trim_end().to_owned())
}

pub(crate) fn run(args: &Args) -> Result<bool> {
    let release = Release::read()?;
    let output = match &args.output {
        Some(output) => std::path::absolute(output)?,
        None => target_directory()?.join("package"),
    };
    fs::create_dir_all(&output)?;
    let mut made = Vec::new();
    let dynamic = match &args.hikyaku {
        Some(program) => program.canonicalize().with_context(|| format!("find {}", program.display()))?,
        None => program::build(&release, Linkage::Dynamic)?,
    };
    let list = output.join("dependencies.tsv");
    let crates = dependencies::of_program(&release.triple)?;
    fs::write(&list, dependencies::table(&crates))?;
    made.push(list);
    let compression = if args.uncompressed { Compression::None } else { Compression::Xz };
    made.push(deb::make(&release, &dynamic, &crates, &output, compression)?);
    if args.hikyaku.is_none() {
        let alone = program::build(&release, Linkage::Static)?;
        let name = format!("hikyaku-{}-{}-static", release.version, release.triple);
        fs::copy(alone, output.join(&name))?;
        made.push(output.join(name));
    }
    let sums = digests(&output, &made)?;
    fs::write(output.join("SHA256SUMS"), &sums)?;
    print!("{sums}");
    println!("in {}", output.display());
    Ok(true)
}

/// The lines of `sha256sum` for files of one directory, sorted by name.
fn digests(directory: &Path, files: &[PathBuf]) -> Result<String> {
    let mut names: Vec<_> = files.iter().filter_map(|file| file.file_name()).collect();
    names.sort_unstable();
    Ok(answer(Command::new("sha256sum").args(names).current_dir(directory))? + "\n")
}
