//! `bpf`: compiles the kernel's programs of `watch` (crates/monitor/bpf) into the object that is kept beside them.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use steps::{find_program, must, repository};

/// The compiler that made the kept object: other versions make others from the same source.
const CLANG: &str = "14.0.6";
const SOURCE: &str = "tcp.bpf.c";
const OBJECT: &str = "tcp.bpf.o";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Change nothing: compile, and compare with the kept object if this is the compiler that made it
    #[arg(long)]
    pub(crate) check: bool,
}

/// Compiles into `object`; the names of directories do not get into it.
fn compile(directory: &Path, object: &Path) -> Result<()> {
    let flags = ["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-fdebug-compilation-dir=."];
    let mut clang = Command::new("clang");
    clang.current_dir(directory).args(flags).args(["-Wall", "-Wextra", "-Werror", "-c", SOURCE, "-o"]);
    must(clang.arg(object))?;
    // DWARF goes; BTF, by which the loader finds the fields of the running kernel, stays.
    must(Command::new("llvm-strip").arg("-g").arg(object))
}

fn version() -> Result<String> {
    let output = Command::new("clang").arg("--version").output().context("start clang")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.split("clang version ").nth(1).and_then(|rest| rest.split_ascii_whitespace().next());
    Ok(version.context("clang does not tell its version")?.to_owned())
}

pub(crate) fn run(args: &Args) -> Result<bool> {
    if find_program("clang").is_none() || find_program("llvm-strip").is_none() {
        ensure!(args.check, "clang and llvm-strip are not installed; as root: apt-get install clang llvm");
        println!("not checked: clang and llvm are not installed");
        return Ok(true);
    }
    let directory = repository().join("crates/monitor/bpf");
    let kept = directory.join(OBJECT);
    let version = version()?;
    if !args.check {
        ensure!(
            version == CLANG,
            "the kept object is of clang {CLANG}, this is {version}; change CLANG in xtask/src/bpf.rs to go on with it"
        );
        compile(&directory, &kept)?;
        println!("{} compiled", kept.display());
        return Ok(true);
    }
    let fresh = steps::target_directory()?.join(OBJECT);
    compile(&directory, &fresh)?;
    if version != CLANG {
        println!("it compiles with clang {version}; not compared: the kept object is of clang {CLANG}");
    } else if std::fs::read(&fresh)? == std::fs::read(&kept)? {
        println!("the kept object is that of its source");
    } else {
        bail!("{} is not what its source compiles to: cargo xtask bpf", kept.display());
    }
    Ok(true)
}
