//! The two small C programs of the rig, compiled when they are needed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tempfile::TempDir;

use crate::{program, run, scratch};

const COMPILE_LIMIT: Duration = Duration::from_secs(60);
const SHIM: &str = include_str!("shim.c");
const LOAD: &str = include_str!("load.c");

#[derive(Debug)]
pub struct Programs {
    dir: TempDir,
}

impl Programs {
    /// Needs a C compiler and libiscsi-dev.
    pub fn compile() -> Result<Self> {
        let programs = Self { dir: scratch()? };
        programs.cc("shim.c", SHIM, &["-shared", "-fPIC", "-o"], &programs.shim(), "-ldl")?;
        programs.cc("load.c", LOAD, &["-o"], &programs.load(), "-liscsi")?;
        Ok(programs)
    }

    fn cc(&self, name: &str, text: &str, options: &[&str], to: &Path, library: &str) -> Result<()> {
        let source = self.dir.path().join(name);
        std::fs::write(&source, text)?;
        let mut command = program("cc")?;
        command.arg("-O2").args(options).arg(to).arg(source).arg(library);
        run(&mut command, COMPILE_LIMIT)?.success().with_context(|| format!("compile {name}"))?;
        Ok(())
    }

    /// Loaded into a peer by `LD_PRELOAD`.
    pub fn shim(&self) -> PathBuf {
        self.dir.path().join("shim.so")
    }

    pub fn load(&self) -> PathBuf {
        self.dir.path().join("load")
    }
}
