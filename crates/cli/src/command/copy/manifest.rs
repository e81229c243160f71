//! `--manifest`: what was verified, extent by extent, in a file. What reads it is `compare/manifest.rs`.

use std::io::{Error, ErrorKind};
use std::path::Path;

use mover::{Manifest, Sums, check_manifest_place, write_manifest};
use serde_json::{Value, json};

use super::{Args, Pair, journal};
use crate::endpoint::Named;
use crate::error::Failure;
use crate::units;

/// Sees to it, before anything is read, that the file can be written and that nothing is lost by it.
pub(super) fn check(args: &Args, ends: [&Named; 2]) -> Result<(), Failure> {
    let Some(path) = &args.manifest else { return Ok(()) };
    if ends.iter().any(|named| named.path() == Some(path)) {
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

/// What there is to tell of a manifest that was written.
pub(super) struct Written {
    file: String,
    extents: u64,
    extent_bytes: u64,
    unknown_bytes: u64,
}

/// Writes it if it was asked for. The copy is finished and verified.
pub(super) fn write(
    args: &Args,
    pair: &Pair,
    [source, destination]: [&Named; 2],
    sums: Option<Sums>,
) -> Result<Option<Written>, Failure> {
    let (Some(path), Some(sums)) = (&args.manifest, sums) else { return Ok(None) };
    let written = Written {
        file: path.display().to_string(),
        extents: sums.extents(),
        extent_bytes: sums.extent(),
        unknown_bytes: sums.unknown_bytes(),
    };
    let manifest = Manifest { label: journal::label(args, pair, source, destination), sums };
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
    /// Of the object that ends `copy --json`.
    pub(super) fn object(&self) -> Value {
        json!({
            "file": self.file,
            "extents": self.extents,
            "extent_bytes": self.extent_bytes,
            "unknown_bytes": self.unknown_bytes,
        })
    }

    /// The same for people.
    pub(super) fn sentence(&self) -> String {
        let Self { file, extents, .. } = self;
        let mut text = format!("manifest {file}: {extents} extents of {}", units::bytes(self.extent_bytes));
        if self.unknown_bytes > 0 {
            let unknown = units::bytes(self.unknown_bytes);
            text += &format!("; {unknown} are not known, around what could not be read");
        }
        text
    }
}
