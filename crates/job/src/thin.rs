//! `--since SNAP` for two thin volumes: queries their pool for the blocks that they do not share.
//!
//! `dmsetup` prints the pool of a volume. `thin_delta` reads the pool's metadata from a *metadata snapshot*, of which a
//! pool has at most one. A shell reserves and releases that snapshot. The shell ignores signals and outlives this
//! process, so the snapshot is released however this process ends. `host::thin` parses the output of the programs.

use std::fs::{self, File};
use std::io::BufReader;
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use host::Kernel;
use host::thin::{DeltaError, Pool, Volume, changed, is_delta_sound};
use rustix::fs::{major, minor};

use crate::{Ending, Stop, shell};

/// Reads the delta of volumes $3 and $4 of the pool with device number $1:$2 and metadata device $5. If the pipe to
/// this process closes, `thin_delta` ends early, and the shell still releases the snapshot.
const SCRIPT: &str = r#"trap '' HUP INT QUIT TERM
dmsetup message --major "$1" --minor "$2" 0 reserve_metadata_snap >&2 || exit 100
thin_delta --metadata-snap --thin1 "$3" --thin2 "$4" "$5"
code=$?
trap '' PIPE
dmsetup message --major "$1" --minor "$2" 0 release_metadata_snap >&2 || exit 101
exit $code"#;
/// Exit codes of the shell for failures of `dmsetup`.
const NOT_RESERVED: i32 = 100;
const NOT_RELEASED: i32 = 101;

pub(crate) struct ThinError {
    pub(crate) ending: Ending,
    pub(crate) cause: String,
    /// If empty, the caller's hint applies: compare with the destination instead.
    pub(crate) hint: String,
}

fn refused(cause: impl Into<String>) -> ThinError {
    ThinError { ending: Ending::Refused, cause: cause.into(), hint: String::new() }
}

fn failed(cause: impl Into<String>, hint: impl Into<String>) -> ThinError {
    ThinError { ending: Ending::Failed, cause: cause.into(), hint: hint.into() }
}

/// Byte ranges where volume `new` may differ from volume `old`.
pub(crate) fn unshared(stop: &Stop, new: &Path, old: &Path) -> Result<Vec<Range<u64>>, ThinError> {
    let volumes = [volume(new)?, volume(old)?];
    if volumes[0].pool != volumes[1].pool {
        return Err(refused("the two are volumes of different pools, and share nothing"));
    }
    if volumes[0].id == volumes[1].id {
        return Err(refused(format!("{} is the source itself", old.display())));
    }
    // No table lists which blocks of an external origin equal blocks of the pool.
    if volumes.iter().any(|volume| volume.has_external_origin) {
        return Err(refused("one of the two has an external origin, which is outside its pool"));
    }
    let pool = volumes[0].pool;
    let table = table(pool).map_err(|error| failed(error, ""))?;
    let Pool { metadata, block_bytes } =
        Pool::parse(&table).map_err(|error| refused(format!("their pool: {error}")))?;
    is_thin_delta_there()?;
    // Data in the page cache has no block yet, so both volumes are flushed. They stay open, so that a volume cannot be
    // removed and its number reused.
    let words = |error: std::io::Error| failed(error.to_string(), "");
    let files = [File::open(new).map_err(words)?, File::open(old).map_err(words)?];
    files.iter().try_for_each(File::sync_all).map_err(words)?;

    let mut command = tool("sh");
    command.args(["-c", SCRIPT, "hikyaku-thin", &major(pool).to_string(), &minor(pool).to_string()]);
    command.args(volumes.map(|volume| volume.id.to_string())).arg(Kernel::default().node_path(metadata));
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped());
    let _orderly = stop.orderly();
    let mut shell = command.spawn().map_err(words)?;
    let answer = BufReader::new(shell.stdout.take().expect("it is piped"));
    let ranges = changed(answer, [&volumes[0], &volumes[1]], block_bytes);
    let status = shell.wait().map_err(words)?;
    let number = format!("--major {} --minor {}", major(pool), minor(pool));
    let release = format!("dmsetup message {number} 0 release_metadata_snap");
    match (status.code(), ranges) {
        (Some(NOT_RESERVED), _) => Err(failed(
            "its pool makes no snapshot of its metadata; there can be one at a time",
            format!("wait until the program that uses it has released it; if none does: {release}"),
        )),
        (Some(NOT_RELEASED), _) => {
            Err(failed("the snapshot of the pool's metadata is not released", release))
        }
        (Some(0), Ok(ranges)) => Ok(ranges),
        (Some(0), Err(error)) | (_, Err(error @ (DeltaError::Unexpected(_) | DeltaError::Other(_)))) => {
            Err(failed(format!("the output of thin_delta is invalid: {error}"), ""))
        }
        _ => Err(failed(format!("thin_delta: {status}"), "")),
    }
}

fn volume(path: &Path) -> Result<Volume, ThinError> {
    let named = |cause: String| format!("{}: {cause}", path.display());
    let metadata = fs::metadata(path).map_err(|error| ThinError {
        ending: Ending::Usage,
        cause: named(error.to_string()),
        hint: "a thin snapshot has no device before `lvchange --activate y --ignoreactivationskip VG/LV`"
            .into(),
    })?;
    if !metadata.file_type().is_block_device() {
        return Err(ThinError {
            ending: Ending::Usage,
            ..refused(named("it is no block device".to_owned()))
        });
    }
    let table = table(metadata.rdev());
    let table = table.map_err(|error| match Kernel::default().entry(metadata.rdev()) {
        Some(entry) if entry.name.starts_with("zd") => {
            refused(named("ZFS does not report which blocks of a volume differ from a snapshot's".to_owned()))
        }
        Some(entry) if !entry.name.starts_with("dm-") && error != MISSING => refused(named(
            "it is no thin volume; only for these the blocks shared with a snapshot are known".to_owned(),
        )),
        _ => failed(named(error), ""),
    })?;
    Volume::parse(&table).map_err(|error| refused(named(error.to_string())))
}

const MISSING: &str = "dmsetup is not installed; its package is dmsetup, or device-mapper";

fn table(device: u64) -> Result<String, String> {
    let numbers = [major(device), minor(device)].map(|number| number.to_string());
    let output = tool("dmsetup").args(["table", "--major", &numbers[0], "--minor", &numbers[1]]).output();
    let output = output.map_err(|_| MISSING.to_owned())?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("dmsetup table: {}", said.lines().next().unwrap_or_default()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Refuses if `thin_delta` is missing or its version is known to give wrong results.
fn is_thin_delta_there() -> Result<(), ThinError> {
    let output = tool("thin_delta").arg("--version").output().map_err(|_| {
        let packages = "thin-provisioning-tools, or device-mapper-persistent-data";
        failed("thin_delta is not installed", format!("install the package {packages}; or --since hash"))
    })?;
    let version = String::from_utf8_lossy(&output.stdout);
    if !is_delta_sound(&version) {
        let cause = format!("thin_delta {} takes blocks for the same that are not", version.trim());
        return Err(ThinError {
            hint: "install 0.7 to 0.9, or 1.0.6 or later; or --since hash".into(),
            ..refused(cause)
        });
    }
    Ok(())
}

/// A program of the system, with messages in English.
fn tool(name: &str) -> Command {
    let mut command = shell::tool(name);
    command.env("LC_ALL", "C");
    command
}
