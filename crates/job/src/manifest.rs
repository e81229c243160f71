//! `--manifest`: writes the hashes of the verified extents to a file; `cli/command/compare/manifest.rs` reads it.

use std::io::{Error, ErrorKind};
use std::path::Path;

use mover::{Manifest, Sums, check_manifest_place, write_manifest};
use serde_json::{Value, json};

use crate::{Failure, Job, Pair, journal, units};

/// Checks, before anything is read, that the manifest can be written and overwrites neither end.
pub fn check(job: &Job<'_>) -> Result<(), Failure> {
    let Some(path) = &job.request.manifest else { return Ok(()) };
    if [&job.source, &job.destination].iter().any(|end| end.path() == Some(path)) {
        let cause = "it is the source or the destination";
        return Err(
            Failure::usage("write the manifest", path.display().to_string(), cause).hint("another name")
        );
    }
    check_manifest_place(path).map_err(|error| failed(path, &error))
}

fn failed(path: &Path, error: &Error) -> Failure {
    let name = path.display().to_string();
    match error.kind() {
        ErrorKind::AlreadyExists => Failure::refused("write the manifest", name, error)
            .hint("another name: only an earlier manifest is overwritten"),
        _ => Failure::failed("write the manifest", name, error),
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    pub file: String,
    pub extents: u64,
    /// Bytes per extent, except the last.
    pub extent_bytes: u64,
    /// Bytes without a hash, around areas that could not be read.
    pub unknown_bytes: u64,
}

/// Writes the manifest if requested. To be called when the copy is complete and verified.
pub fn write(job: &Job<'_>, pair: &Pair, sums: Option<Sums>) -> Result<Option<Written>, Failure> {
    let (Some(path), Some(sums)) = (&job.request.manifest, sums) else { return Ok(None) };
    let written = Written {
        file: path.display().to_string(),
        extents: sums.extents(),
        extent_bytes: sums.extent(),
        unknown_bytes: sums.unknown_bytes(),
    };
    let manifest = Manifest { label: journal::label(job, pair), sums };
    write_manifest(path, &manifest).map_err(|error| {
        let mut failure = failed(path, &error);
        failure.cause += "; the copy is finished and was verified";
        failure.hint(
            "the same command with --since hash --force reads both ends again and writes only the manifest",
        )
    })?;
    Ok(Some(written))
}

impl Written {
    pub fn object(&self) -> Value {
        json!({
            "file": self.file,
            "extents": self.extents,
            "extent_bytes": self.extent_bytes,
            "unknown_bytes": self.unknown_bytes,
        })
    }

    pub fn sentence(&self) -> String {
        let Self { file, extents, .. } = self;
        let mut text = format!("manifest {file}: {extents} extents of {}", units::bytes(self.extent_bytes));
        if self.unknown_bytes > 0 {
            let unknown = units::bytes(self.unknown_bytes);
            text += &format!("; {unknown} are not known, around what could not be read");
        }
        text
    }
}
