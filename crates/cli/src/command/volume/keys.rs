//! `volume passwd`, `volume key`: changes of keyslots. The volume's key stays the same, so an older header and
//! an older passphrase still open the volume.

use std::path::PathBuf;

use clap::Subcommand;
use serde_json::json;

use super::{OfVolume, Passphrase, Use, by_options, done, pbkdf, random};
use crate::context::Context;
use crate::error::{Exit, Failure};
use crate::output;
use crate::passphrase::{Secret, Source};

/// The new passphrase.
#[derive(Debug, clap::Args)]
pub(super) struct NewPassphrase {
    /// The new passphrase is the first line of this file
    #[arg(long, value_name = "FILE", conflicts_with = "new_key_file")]
    new_password_file: Option<PathBuf>,

    /// All bytes of this file are the new passphrase, at most 8 MiB
    #[arg(long, value_name = "FILE")]
    new_key_file: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(super) struct Common {
    #[command(flatten)]
    of: OfVolume,

    #[command(flatten)]
    passphrase: Passphrase,

    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// Change a passphrase
///
/// The new one is durable before the old one is removed: a power cut leaves one of them, or both. An older copy of the header still
/// opens with the old one. If others know that passphrase: `volume reencrypt` gives a volume of type auth another key; else `copy`
/// into a new volume.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  hikyaku volume passwd /dev/sdx\n  hikyaku volume passwd sealed.img --password-file old --new-password-file new"
)]
pub(super) struct PasswdArgs {
    #[command(flatten)]
    pub(super) common: Common,

    #[command(flatten)]
    new: NewPassphrase,

    #[command(flatten)]
    pbkdf: pbkdf::Args,
}

/// Add and remove passphrases
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Add(AddArgs),
    Remove(RemoveArgs),
}

/// Add a passphrase
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  hikyaku volume key add /dev/sdx\n  hikyaku volume key add sealed.img --password-file pw --new-key-file key"
)]
struct AddArgs {
    #[command(flatten)]
    common: Common,

    #[command(flatten)]
    new: NewPassphrase,

    #[command(flatten)]
    pbkdf: pbkdf::Args,
}

/// Remove a passphrase
///
/// The one that is given, or the keyslot that is named. The last one is not removed without --force.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  hikyaku volume key remove /dev/sdx\n  hikyaku volume key remove sealed.img --slot 1"
)]
struct RemoveArgs {
    #[command(flatten)]
    common: Common,

    /// The keyslot; no passphrase is needed then
    #[arg(long, value_name = "N", conflicts_with_all = ["password_file", "key_file"])]
    slot: Option<u8>,

    /// Remove the last one too: the data is lost then, unless a backup of the header exists
    #[arg(long)]
    force: bool,
}

impl Args {
    pub(super) fn json(&self) -> bool {
        match &self.action {
            Action::Add(args) => args.common.json,
            Action::Remove(args) => args.common.json,
        }
    }
}

impl NewPassphrase {
    /// Where it is, if an option says so.
    pub(super) fn source(&self) -> Option<Source> {
        let password = self.new_password_file.clone().map(Source::PasswordFile);
        password.or_else(|| self.new_key_file.clone().map(Source::KeyFile))
    }

    /// What the options name; else asked for.
    pub(super) fn read(&self, context: &Context, text: &str) -> Result<Secret, Failure> {
        let source = self.source().unwrap_or(Source::Terminal);
        source.read_new(context, text).map_err(|failure| {
            let failure = by_options(failure);
            let hint = failure.hint.replace("--password-file", "--new-password-file");
            failure.hint(hint.replace("--key-file", "--new-key-file"))
        })
    }
}

pub(super) fn passwd(context: &Context, args: &PasswdArgs) -> Result<Exit, Failure> {
    const ATTEMPTED: &str = "change the passphrase of";
    let mut opened = args.common.of.open(context, Use::Change, ATTEMPTED)?;
    let (slot, key) = opened.unlock(&args.common.passphrase.source(), ATTEMPTED)?;
    let secret = args.new.read(context, &opened.text)?;
    let pbkdf = args.pbkdf.costs()?;
    let _lock = args.common.of.lock(context, ATTEMPTED)?;
    let changed = opened.header.change_key(&mut opened.storage, slot, &key, &secret, &pbkdf, &mut random);
    opened.changed(ATTEMPTED, changed)?;
    say(context, args.common.json, &opened.text, slot, "the passphrase was changed");
    Ok(Exit::Done)
}

pub(super) fn run(context: &Context, args: &Args) -> Result<Exit, Failure> {
    match &args.action {
        Action::Add(args) => add(context, args),
        Action::Remove(args) => remove(context, args),
    }
}

fn add(context: &Context, args: &AddArgs) -> Result<Exit, Failure> {
    const ATTEMPTED: &str = "add a passphrase to";
    let mut opened = args.common.of.open(context, Use::Change, ATTEMPTED)?;
    let (_, key) = opened.unlock(&args.common.passphrase.source(), ATTEMPTED)?;
    let secret = args.new.read(context, &opened.text)?;
    let pbkdf = args.pbkdf.costs()?;
    let _lock = args.common.of.lock(context, ATTEMPTED)?;
    let added = opened.header.add_key(&mut opened.storage, &key, &secret, &pbkdf, &mut random);
    let slot = opened.changed(ATTEMPTED, added)?;
    say(context, args.common.json, &opened.text, slot, "a passphrase was added");
    Ok(Exit::Done)
}

fn remove(context: &Context, args: &RemoveArgs) -> Result<Exit, Failure> {
    const ATTEMPTED: &str = "remove a passphrase of";
    let mut opened = args.common.of.open(context, Use::Change, ATTEMPTED)?;
    let slot = match args.slot {
        Some(slot) => slot,
        None => opened.unlock(&args.common.passphrase.source(), ATTEMPTED)?.0,
    };
    let _lock = args.common.of.lock(context, ATTEMPTED)?;
    let removed = opened.header.remove_key(&mut opened.storage, slot, args.force, &mut random);
    opened.changed(ATTEMPTED, removed)?;
    say(context, args.common.json, &opened.text, slot, "the passphrase was removed");
    Ok(Exit::Done)
}

fn say(context: &Context, is_json: bool, text: &str, slot: u8, what: &str) {
    if is_json {
        output::json(&json!({ "schema": output::SCHEMA, "endpoint": text, "slot": slot }));
    } else {
        done(context, &format!("{what}: keyslot {slot}"));
    }
}
