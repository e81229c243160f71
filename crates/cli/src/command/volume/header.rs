//! `volume header`: keeps the header of a volume elsewhere, and returns it.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde_json::json;
use volume::luks2::{self, Backup, ReadError, Refusal, RestoreError};

use super::{OfVolume, Use, done, random};
use crate::context::Context;
use crate::error::{Exit, Failure};
use crate::output;

/// Largest backup: two copies of 4 MiB and 128 MiB of keyslots.
const BACKUP_BYTES_MAX: u64 = 136 << 20;

/// Keep the header elsewhere, or put it back
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Write the header and its keyslots to a file
    ///
    /// Its passphrases open the volume as long as it exists, those too that are removed later: keep it as you keep a key.
    #[command(after_help = "Examples:\n  hikyaku volume header backup /dev/sdx sdx.header")]
    Backup(BackupArgs),
    /// Put the header back; its passphrases are those of then
    #[command(after_help = "Examples:\n  hikyaku volume header restore /dev/sdx sdx.header")]
    Restore(RestoreArgs),
}

#[derive(Debug, clap::Args)]
struct BackupArgs {
    #[command(flatten)]
    of: OfVolume,

    /// The file to make
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct RestoreArgs {
    #[command(flatten)]
    of: OfVolume,

    /// A file that `header backup` or `cryptsetup luksHeaderBackup` made
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Overwrite the header of another volume, or what is no volume
    #[arg(long)]
    force: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(super) fn json(&self) -> bool {
        match &self.action {
            Action::Backup(args) => args.json,
            Action::Restore(args) => args.json,
        }
    }
}

pub(super) fn run(context: &Context, args: &Args) -> Result<Exit, Failure> {
    match &args.action {
        Action::Backup(args) => backup(context, args),
        Action::Restore(args) => restore(context, args),
    }
}

fn backup(context: &Context, args: &BackupArgs) -> Result<Exit, Failure> {
    let mut opened = args.of.open_in_reencryption(context, Use::Read, "back up the header of")?;
    let bytes = opened.header.backup(&mut opened.storage).map_err(|error| match error {
        ReadError::Refused(refusal) => {
            Failure::refused("back up the header of", opened.text.clone(), refusal)
        }
        ReadError::Storage(cause) => Failure::io("back up the header of", opened.text.clone(), &cause),
    })?;
    let file = args.file.display().to_string();
    write_new(&args.file, &bytes).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => {
            Failure::refused("write the header to", file.clone(), "it exists").hint("name a new file")
        }
        _ => Failure::failed("write the header to", file.clone(), error),
    })?;
    let uuid = opened.header.facts().uuid;
    if args.json {
        output::json(&json!({
            "schema": output::SCHEMA, "endpoint": opened.text, "uuid": uuid, "file": file, "bytes": bytes.len(),
        }));
    } else {
        done(context, &format!("wrote the header of {uuid} to {file}"));
    }
    Ok(Exit::Done)
}

/// Makes a file that only its owner can read: whole and durable, or not at all. A file that exists stays as it is.
fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if path.symlink_metadata().is_ok() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let directory = File::open(parent)?;
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    // Removed when dropped; made with the mode 0600.
    let mut file = tempfile::Builder::new().prefix(name).suffix(".new").tempfile_in(parent)?;
    file.as_file_mut().write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist_noclobber(path).map_err(|error| error.error)?;
    directory.sync_all()
}

fn restore(context: &Context, args: &RestoreArgs) -> Result<Exit, Failure> {
    const ATTEMPTED: &str = "restore the header of";
    let file = args.file.display().to_string();
    let failed = |error: io::Error| Failure::failed("read the header from", file.clone(), error);
    let mut bytes = Vec::new();
    let from = block::open_input(&args.file).map_err(failed)?;
    io::Read::read_to_end(&mut io::Read::take(from, BACKUP_BYTES_MAX + 1), &mut bytes).map_err(failed)?;
    let backup = Backup::parse(bytes, args.of.place()).map_err(|refusal| match refusal {
        Refusal::NotLuks => {
            Failure::refused("restore the header from", file.clone(), "it is no backup of a header")
                .hint("a file that `hikyaku volume header backup` or `cryptsetup luksHeaderBackup` made")
        }
        refusal @ Refusal::Reencryption => Failure::refused(
            "restore the header from",
            file.clone(),
            format!("of the header in this file: {refusal}"),
        )
        .hint("`cryptsetup luksHeaderRestore` restores it"),
        refusal => {
            let cause = format!("the header in this file is not accepted: {refusal}");
            Failure::refused("restore the header from", file.clone(), cause)
        }
    })?;
    let (text, mut storage) = args.of.storage(context, Use::Replace, ATTEMPTED)?;
    let _lock = args.of.lock(context, ATTEMPTED)?;
    let uuid = backup.header().facts().uuid;
    let there = luks2::read_in_reencryption(&mut storage, args.of.place());
    let present = there
        .map(|there| (there.facts().uuid, backup.header().has_keys_of(&there), there.is_in_reencryption()));
    match present {
        Ok((there, true, _)) if there == uuid => {}
        _ if args.force => {}
        Ok((there, false, true)) if there == uuid => {
            let hint =
                "complete it first: with another header the blocks that have the new key are lost (--force)";
            return Err(Failure::refused(ATTEMPTED, text, Refusal::AuthReencryption).hint(hint));
        }
        Ok((there, false, false)) if there == uuid => {
            let cause =
                "it has another key than the file's header: the volume was re-encrypted, or made anew";
            return Err(Failure::refused(ATTEMPTED, text, cause)
                .hint("--force, if the storage holds the data of then: what has the present key is lost without its header"));
        }
        Ok((there, ..)) => {
            let cause = format!("it holds the volume {there}, and the file has the header of {uuid}");
            return Err(
                Failure::refused(ATTEMPTED, text, cause).hint("--force, if its header may be overwritten")
            );
        }
        Err(ReadError::Storage(cause)) => return Err(Failure::io(ATTEMPTED, text, &cause)),
        Err(ReadError::Refused(refusal)) => {
            return Err(Failure::refused(ATTEMPTED, text, refusal)
                .hint(format!("--force, if that is where the volume {uuid} was")));
        }
    }
    backup.restore(&mut storage, &mut random).map_err(|error| match error {
        RestoreError::Storage(cause) => Failure::io(ATTEMPTED, text.clone(), &cause),
        error => Failure::refused(ATTEMPTED, text.clone(), error),
    })?;
    if args.json {
        output::json(&json!({ "schema": output::SCHEMA, "endpoint": text, "uuid": uuid }));
    } else {
        done(context, &format!("restored the header of {uuid}"));
    }
    Ok(Exit::Done)
}
