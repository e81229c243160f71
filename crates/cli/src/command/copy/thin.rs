//! `--since SNAP` of two thin volumes: their pool is asked which blocks they share.
//!
//! `dmsetup` tells which pool they are of, `thin_delta` reads the pool's metadata as they were at one moment (the pool's *metadata
//! snapshot*, of which it has room for one). A shell takes and releases that. It ignores signals and does not need us, so that the
//! snapshot is released whatever becomes of this process. What the programs say is parsed by `block::thin`.

use std::fs::{self, File};
use std::io::BufReader;
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use block::device::Kernel;
use block::thin::{DeltaError, Pool, Volume, changed, is_delta_sound};

use super::snapshot;
use crate::context::Context;
use crate::error::Exit;

/// Asks the pool of device number $1:$2 for the delta of volumes $3 and $4, which `thin_delta` finds on device $5. If nobody reads that
/// any more it ends early, and the release comes all the same.
const ASK: &str = r#"trap '' HUP INT QUIT TERM
dmsetup message --major "$1" --minor "$2" 0 reserve_metadata_snap >&2 || exit 100
thin_delta --metadata-snap --thin1 "$3" --thin2 "$4" "$5"
code=$?
trap '' PIPE
dmsetup message --major "$1" --minor "$2" 0 release_metadata_snap >&2 || exit 101
exit $code"#;
/// Exit codes of it, where it is not `thin_delta` that failed.
const NOT_RESERVED: i32 = 100;
const NOT_RELEASED: i32 = 101;

/// Why a pool does not tell.
pub(super) struct Untold {
    pub(super) exit: Exit,
    pub(super) cause: String,
    /// Empty: compare with the destination instead.
    pub(super) hint: String,
}

fn refused(cause: impl Into<String>) -> Untold {
    Untold { exit: Exit::Refused, cause: cause.into(), hint: String::new() }
}

fn failed(cause: impl Into<String>, hint: impl Into<String>) -> Untold {
    Untold { exit: Exit::Failed, cause: cause.into(), hint: hint.into() }
}

/// Where volume `new` may hold other bytes than volume `old`, in bytes.
pub(super) fn unshared(context: &Context, new: &Path, old: &Path) -> Result<Vec<Range<u64>>, Untold> {
    let volumes = [volume(new)?, volume(old)?];
    if volumes[0].pool != volumes[1].pool {
        return Err(refused("the two are volumes of different pools, and share nothing"));
    }
    if volumes[0].id == volumes[1].id {
        return Err(refused(format!("{} is the source itself", old.display())));
    }
    // Nothing says where a block of it is the same as one of the pool.
    if volumes.iter().any(|volume| volume.has_external_origin) {
        return Err(refused("one of the two has an external origin, which its pool knows nothing of"));
    }
    let pool = volumes[0].pool;
    let table = table(pool).map_err(|error| failed(error, ""))?;
    let Pool { metadata, block_bytes } =
        Pool::parse(&table).map_err(|error| refused(format!("their pool: {error}")))?;
    is_thin_delta_there()?;
    // What waits in the page cache has no block yet. Held open, so that nobody else can become this volume of the pool meanwhile.
    let words = |error: std::io::Error| failed(error.to_string(), "");
    let files = [File::open(new).map_err(words)?, File::open(old).map_err(words)?];
    files.iter().try_for_each(File::sync_all).map_err(words)?;

    let mut command = tool("sh");
    command.args(["-c", ASK, "hikyaku-thin", &libc::major(pool).to_string(), &libc::minor(pool).to_string()]);
    command.args(volumes.map(|volume| volume.id.to_string())).arg(Kernel::default().node_path(metadata));
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped());
    let _orderly = context.stop.orderly();
    let mut shell = command.spawn().map_err(words)?;
    let answer = BufReader::new(shell.stdout.take().expect("it is piped"));
    let ranges = changed(answer, [&volumes[0], &volumes[1]], block_bytes);
    let status = shell.wait().map_err(words)?;
    let number = format!("--major {} --minor {}", libc::major(pool), libc::minor(pool));
    let release = format!("dmsetup message {number} 0 release_metadata_snap");
    match (status.code(), ranges) {
        (Some(NOT_RESERVED), _) => Err(failed(
            "its pool makes no snapshot of its metadata; there can be one at a time",
            format!("wait for whoever has it; if nobody has it any more: {release}"),
        )),
        (Some(NOT_RELEASED), _) => {
            Err(failed("the snapshot of the pool's metadata is not released", release))
        }
        (Some(0), Ok(ranges)) => Ok(ranges),
        (Some(0), Err(error)) | (_, Err(error @ (DeltaError::Unexpected(_) | DeltaError::Other(_)))) => {
            Err(failed(format!("what thin_delta says is not believed: {error}"), ""))
        }
        _ => Err(failed(format!("thin_delta: {status}"), "")),
    }
}

/// What its table says of the volume at `path`.
fn volume(path: &Path) -> Result<Volume, Untold> {
    let named = |cause: String| format!("{}: {cause}", path.display());
    let metadata = fs::metadata(path).map_err(|error| Untold {
        exit: Exit::Usage,
        cause: named(error.to_string()),
        hint: "a thin snapshot has no device before `lvchange --activate y --ignoreactivationskip VG/LV`"
            .into(),
    })?;
    if !metadata.file_type().is_block_device() {
        return Err(Untold { exit: Exit::Usage, ..refused(named("it is no block device".to_owned())) });
    }
    let told = table(metadata.rdev());
    let table = told.map_err(|error| match Kernel::default().entry(metadata.rdev()) {
        Some(entry) if entry.name.starts_with("zd") => {
            refused(named("ZFS does not tell which blocks of a volume differ from a snapshot's".to_owned()))
        }
        Some(entry) if !entry.name.starts_with("dm-") && error != MISSING => refused(named(
            "it is no thin volume, which alone tells what it shares with a snapshot".to_owned(),
        )),
        _ => failed(named(error), ""),
    })?;
    Volume::parse(&table).map_err(|error| refused(named(error.to_string())))
}

const MISSING: &str = "dmsetup is not installed; its package is dmsetup, or device-mapper";

/// The table of a device, by its number.
fn table(device: u64) -> Result<String, String> {
    let (major, minor) = (libc::major(device).to_string(), libc::minor(device).to_string());
    let output = tool("dmsetup").args(["table", "--major", &major, "--minor", &minor]).output();
    let output = output.map_err(|_| MISSING.to_owned())?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("dmsetup table: {}", said.lines().next().unwrap_or_default()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// One that can be believed.
fn is_thin_delta_there() -> Result<(), Untold> {
    let output = tool("thin_delta").arg("--version").output().map_err(|_| {
        let packages = "thin-provisioning-tools, or device-mapper-persistent-data";
        failed("thin_delta is not installed", format!("install the package {packages}; or --since hash"))
    })?;
    let version = String::from_utf8_lossy(&output.stdout);
    if !is_delta_sound(&version) {
        let cause = format!("thin_delta {} takes blocks for the same that are not", version.trim());
        return Err(Untold {
            hint: "install 0.7 to 0.9, or 1.0.6 or later; or --since hash".into(),
            ..refused(cause)
        });
    }
    Ok(())
}

/// A program of the system, also where PATH leaves those out, as cron does.
fn tool(name: &str) -> Command {
    let mut command = Command::new(name);
    command.env("PATH", snapshot::path()).env("LC_ALL", "C");
    command
}
