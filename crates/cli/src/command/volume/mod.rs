//! `volume`: makes sealed volumes, shows their headers, and changes their passphrases.

mod format;
mod grow;
mod header;
mod info;
mod keys;
mod pbkdf;
mod reencrypt;

use std::path::PathBuf;

use block::layer::volume as layer;
use block::{Blocking, IoError, Location, OpenError, OpenOptions, Spec};
use clap::Subcommand;
use host::{HeaderLock, HeaderLockError};
use volume::luks2::{self, ChangeError, Header, Place, ReadError, UnlockError, VolumeKey};

use crate::context::Context;
use crate::endpoint::Named;
use crate::error::{Exit, Failure};
use crate::output;
use crate::passphrase::{self, Secret, Source};

/// Make and open encrypted volumes on storage of others
///
/// What a sealed volume holds is encrypted by this program before it is written; the disk, LUN or file has no key. A volume of type
/// luks2 is one of LUKS2: cryptsetup opens it, and hikyaku opens cryptsetup's. Every command that takes an endpoint opens the
/// volume on it with the options volume=luks2 and password-file=FILE or key-file=FILE; without a file it asks.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hikyaku volume format /dev/sdx --type luks2
  hikyaku copy disk.img /dev/sdx,volume=luks2 --verify
  hikyaku serve /dev/sdx,volume=luks2,password-file=pw")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Format(format::Args),
    Info(info::Args),
    Grow(grow::Args),
    Passwd(keys::PasswdArgs),
    Key(keys::Args),
    Reencrypt(reencrypt::Args),
    Header(header::Args),
}

impl Args {
    pub(crate) fn json(&self) -> bool {
        match &self.action {
            Action::Format(args) => args.json,
            Action::Info(args) => args.json,
            Action::Grow(args) => args.json,
            Action::Passwd(args) => args.common.json,
            Action::Key(args) => args.json(),
            Action::Reencrypt(args) => args.json,
            Action::Header(args) => args.json(),
        }
    }
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<Exit, Failure> {
    match &args.action {
        Action::Format(args) => format::run(context, args),
        Action::Info(args) => info::run(context, args),
        Action::Grow(args) => grow::run(context, args),
        Action::Passwd(args) => keys::passwd(context, args),
        Action::Key(args) => keys::run(context, args),
        Action::Reencrypt(args) => reencrypt::run(context, args),
        Action::Header(args) => header::run(context, args),
    }
}

/// The volume that a command works on.
#[derive(Debug, clap::Args)]
pub(crate) struct OfVolume {
    /// The storage of the volume, without volume=
    #[arg(value_name = "ENDPOINT")]
    endpoint: String,

    /// The header is in this file, not on the storage
    #[arg(long, value_name = "FILE")]
    header: Option<PathBuf>,
}

/// Where a passphrase comes from; without either it is asked for.
#[derive(Debug, clap::Args)]
pub(crate) struct Passphrase {
    /// The passphrase is the first line of this file
    #[arg(long, value_name = "FILE", conflicts_with = "key_file")]
    password_file: Option<PathBuf>,

    /// All bytes of this file are the passphrase, at most 8 MiB
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
}

impl Passphrase {
    fn source(&self) -> Source {
        match (&self.password_file, &self.key_file) {
            (Some(path), _) => Source::PasswordFile(path.clone()),
            (None, Some(path)) => Source::KeyFile(path.clone()),
            (None, None) => Source::Terminal,
        }
    }
}

/// What a command does with the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Read,
    /// Changes keyslots, also of a volume in use, which does not access its header after it was unlocked.
    Change,
    Replace,
}

/// A header and the storage that it lies on.
struct Opened {
    text: String,
    storage: Blocking,
    header: Header,
}

impl OfVolume {
    fn place(&self) -> Place {
        if self.header.is_some() { Place::Detached } else { Place::Attached }
    }

    /// Opens the storage of the header, which is not read yet.
    fn storage(&self, context: &Context, used: Use, attempted: &str) -> Result<(String, Blocking), Failure> {
        let writable = used != Use::Read;
        if let Some(path) = &self.header {
            let text = path.display().to_string();
            let opened = layer::detached(path, writable);
            return match opened {
                Ok(storage) => Ok((text, storage)),
                Err(error) => Err(Failure::open(attempted, text, &error)),
            };
        }
        let named = named(context, &self.endpoint)?;
        if writable && named.spec.flag("ro") == Ok(true) {
            return Err(Failure::refused(attempted, named.text, "it is read-only").hint("leave out ro"));
        }
        let options = OpenOptions { writable, request_alignment: 4096, allow_in_use: used != Use::Replace };
        let medium = named.open_to(attempted, context, &options)?;
        let storage = Blocking::attach(&*medium).map_err(|error| named.failed(attempted, &error))?;
        Ok((named.text, storage))
    }

    fn open(&self, context: &Context, used: Use, attempted: &str) -> Result<Opened, Failure> {
        self.open_by(luks2::read, context, used, attempted)
    }

    /// As [`Self::open`], also a volume in re-encryption.
    fn open_in_reencryption(&self, context: &Context, used: Use, attempted: &str) -> Result<Opened, Failure> {
        self.open_by(luks2::read_in_reencryption, context, used, attempted)
    }

    fn open_by(
        &self,
        read: fn(&mut Blocking, Place) -> Result<Header, ReadError<IoError>>,
        context: &Context,
        used: Use,
        attempted: &str,
    ) -> Result<Opened, Failure> {
        let (text, mut storage) = self.storage(context, used, attempted)?;
        let header = read(&mut storage, self.place()).map_err(|error| {
            by_options(Failure::open(attempted, text.clone(), &layer::read_error(error, self.place())))
        })?;
        // A change repairs it.
        if used == Use::Read
            && let Some(flaw) = layer::flaw(header.facts().copies)
        {
            context.warn(&format!("{text}: {flaw}"));
        }
        Ok(Opened { text, storage, header })
    }
}

impl OfVolume {
    /// cryptsetup's lock of the header, which is taken after passphrases were asked for. `None`: the storage is remote, or the
    /// lock cannot be used; then a change by another program is only noticed, by the header's sequence number.
    fn lock(&self, context: &Context, attempted: &str) -> Result<Option<HeaderLock>, Failure> {
        let path = match (&self.header, Spec::parse(&self.endpoint)) {
            (Some(path), _) => path.clone(),
            (None, Ok(Spec { location: Location::File(path), .. })) => path,
            _ => return Ok(None),
        };
        let text = path.display().to_string();
        match HeaderLock::take(&path) {
            Ok(lock) => Ok(lock),
            Err(HeaderLockError::Held) => {
                let cause = "another program holds the lock of its header";
                Err(Failure::refused(attempted, text, cause)
                    .hint("try again when cryptsetup, or the other hikyaku, has ended"))
            }
            Err(HeaderLockError::Io(error)) => {
                context.warn(&format!(
                    "cryptsetup's lock of {text} cannot be taken ({error}): do not change the header with cryptsetup at the same time"
                ));
                Ok(None)
            }
        }
    }
}

impl Opened {
    /// The key, by the passphrase from `source`, and the slot that it opened.
    fn unlock(&mut self, source: &Source, attempted: &str) -> Result<(u8, VolumeKey), Failure> {
        let secret = secret(source, &self.text)?;
        self.unlock_by(&secret, source, attempted)
    }

    /// As [`Self::unlock`], by this passphrase from `source`.
    fn unlock_by(
        &mut self,
        secret: &Secret,
        source: &Source,
        attempted: &str,
    ) -> Result<(u8, VolumeKey), Failure> {
        let unlocked = self.header.unlock(&mut self.storage, secret, None, &layer::limits());
        let unlocked = unlocked.map_err(|error| {
            self.locked(error, attempted, || source.advice(passphrase::ends_in_return(secret)))
        })?;
        Ok((unlocked.slot, unlocked.key))
    }

    /// The failure of an unlocking; `advice` is for a wrong passphrase.
    fn locked(
        &self,
        error: UnlockError<IoError>,
        attempted: &str,
        advice: impl FnOnce() -> String,
    ) -> Failure {
        let error = layer::unlock_error(error);
        let failure = Failure::open(attempted, self.text.clone(), &error);
        match error {
            OpenError::Passphrase(_) => failure.hint(advice()),
            _ => failure,
        }
    }

    fn changed<T>(&self, attempted: &str, result: Result<T, ChangeError<IoError>>) -> Result<T, Failure> {
        result.map_err(|error| match &error {
            ChangeError::Storage(cause) => Failure::io(attempted, self.text.clone(), cause),
            ChangeError::Changed => Failure::failed(attempted, self.text.clone(), &error)
                .hint("look at it with `hikyaku volume info`, and try again"),
            ChangeError::LastSlot(_) => Failure::refused(attempted, self.text.clone(), &error)
                .hint("--force, if the data may be lost: without a keyslot or a backup of the header the volume does not open"),
            ChangeError::NoSuchSlot(_) => Failure::usage(attempted, self.text.clone(), error.to_string())
                .hint("`hikyaku volume info` lists the keyslots"),
            _ => Failure::failed(attempted, self.text.clone(), &error),
        })
    }
}

/// The passphrase of the volume `object`.
fn secret(source: &Source, object: &str) -> Result<Secret, Failure> {
    source.read(object).map_err(by_options)
}

/// A failure whose hint names options of an endpoint: as these commands have them.
fn by_options(failure: Failure) -> Failure {
    ["header", "password-file", "key-file"].iter().fold(failure, |failure, name| {
        let hint = failure.hint.replace(&format!("{name}=FILE"), &format!("--{name} FILE"));
        failure.hint(hint)
    })
}

/// The storage beneath a volume: these commands work on the header itself.
fn named(context: &Context, words: &str) -> Result<Named, Failure> {
    let named = Named::parse(context, words, &[])?;
    if named.spec.get("volume").is_some() {
        let cause = "volume= opens what the volume holds, and this command works on the volume itself";
        return Err(Failure::usage("understand the endpoint", named.text, cause).hint("leave out volume="));
    }
    Ok(named)
}

/// Prints what a command has done.
fn done(context: &Context, text: &str) {
    if !context.quiet {
        output::line(text);
    }
}

/// Random bytes of the kernel.
fn random(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the kernel's random numbers");
}
