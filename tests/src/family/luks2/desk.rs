//! A directory in which this program and cryptsetup work on the same volumes. cryptsetup reads and writes the data of
//! files without root and without device-mapper by its offline re-encryption.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::Value;
use tempfile::TempDir;

use crate::files::{empty_file, random_file};
use crate::process::Surroundings;
use crate::target::private_file;
use crate::{Context, Output, program, run, scratch};

pub(super) const LIMIT: Duration = Duration::from_secs(120);
/// Options of each key derivation by this program: the cheapest ones.
pub(super) const CHEAP: &str = "--pbkdf pbkdf2 --iter-time 1";
/// The same for cryptsetup.
const CHEAP_THEIRS: &str = "--pbkdf pbkdf2 --pbkdf-force-iterations 1000";
/// Options of cryptsetup's re-encryption of a file.
const OFFLINE: &str = "--force-offline-reencrypt --disable-locks";
/// Option of an endpoint that opens a volume by the passphrase in `pw`.
pub(super) const VOLUME: &str = "volume=luks2,password-file=pw";
/// A copy between a file, whose blocks have 512 bytes, and a volume with larger sectors.
pub(super) const COPY: &str = "copy --allow sector-size";
pub(super) const HEADER_BYTES: u64 = 16 << 20;
/// Bytes of the data of most volumes: no multiple of a large power of two.
pub(super) const BYTES: u64 = (2 << 20) + 5 * 4096;

/// Files of passphrases, without a newline: cryptsetup takes all bytes of a key file.
const PASSPHRASES: [(&str, &str); 3] = [
    ("pw", "correct horse battery staple"),
    ("new", "Tr0ub4dor&3"),
    ("wrong", "correct horse battery stapler"),
];

pub(super) struct Desk<'a> {
    pub(super) context: &'a Context,
    dir: TempDir,
    /// Of the program under test: its I/O back end.
    portable: bool,
}

impl<'a> Desk<'a> {
    pub(super) fn new(context: &'a Context) -> Result<Self> {
        let dir = scratch()?;
        for (name, text) in PASSPHRASES {
            private_file(dir.path().join(name), text)?;
        }
        Ok(Self { context, dir, portable: false })
    }

    pub(super) fn portable(self) -> Self {
        Self { portable: true, ..self }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Makes a file of random bytes.
    pub(super) fn random(&self, name: &str, bytes: u64) -> Result<PathBuf> {
        random_file(self.path(name), bytes, self.context.seed_for(&format!("luks2/{name}/{bytes}")))
    }

    pub(super) fn empty(&self, name: &str, bytes: u64) -> Result<PathBuf> {
        empty_file(self.path(name), bytes)
    }

    /// Of a server that runs in the same way as [`Self::command`].
    pub(super) fn surroundings(&self) -> Surroundings {
        match self.portable {
            true => Surroundings::variable("HIKYAKU_IO", "portable"),
            // Helper threads encrypt, whatever the load of the machine.
            false => Surroundings::variable("HIKYAKU_HELPERS", "2"),
        }
    }

    /// The program under test with the words of `line`, which are separated by spaces.
    pub(super) fn command(&self, line: &str) -> Command {
        let mut command = self.context.command_in(self.dir.path());
        self.surroundings().apply(&mut command);
        command.args(line.split_whitespace()).current_dir(self.dir.path());
        command
    }

    pub(super) fn try_ours(&self, line: &str) -> Result<Output> {
        run(&mut self.command(line), LIMIT)?.orderly()
    }

    pub(super) fn ours(&self, line: &str) -> Result<Output> {
        self.try_ours(line)?.success()
    }

    pub(super) fn try_cryptsetup(&self, line: &str) -> Result<Output> {
        let mut command = program("cryptsetup")?;
        command.arg("--batch-mode").args(line.split_whitespace()).current_dir(self.dir.path());
        run(&mut command, LIMIT)
    }

    pub(super) fn cryptsetup(&self, line: &str) -> Result<Output> {
        self.try_cryptsetup(line)?.success()
    }

    /// Makes the file `name` with a volume for `bytes` of data, by this program.
    pub(super) fn format(&self, name: &str, bytes: u64, options: &str) -> Result<()> {
        let costs = if options.contains("--pbkdf") { "" } else { CHEAP };
        let line = "volume format --type luks2 --password-file pw";
        self.ours(&format!("{line} {name},create --data-size {bytes} {costs} {options}")).map(drop)
    }

    /// Makes the file `name` with a volume for `bytes` of data, by cryptsetup.
    pub(super) fn format_theirs(&self, name: &str, bytes: u64, options: &str) -> Result<()> {
        self.empty(name, HEADER_BYTES + bytes)?;
        let line = "luksFormat --type luks2 --key-file pw";
        self.cryptsetup(&format!("{line} {CHEAP_THEIRS} {options} {name}")).map(drop)
    }

    /// The plaintext in `name` becomes a volume in place, by cryptsetup. With a `header` that is a file of its own;
    /// otherwise the last 32 MiB of `name` are given up for it.
    pub(super) fn encrypt(&self, name: &str, header: Option<&str>, options: &str) -> Result<()> {
        let costs = if options.contains("--pbkdf") { "" } else { CHEAP_THEIRS };
        let place = match header {
            Some(header) => format!("--header {header}"),
            None => "--reduce-device-size 32M".to_owned(),
        };
        let line = "reencrypt --encrypt --type luks2 --key-file pw";
        self.cryptsetup(&format!("{line} {OFFLINE} {costs} {place} {options} {name}")).map(drop)
    }

    /// The volume in `name` becomes its plaintext in place, by cryptsetup. The header of an attached one goes to `header`,
    /// which must not exist; that of a detached one is there.
    pub(super) fn decrypt(&self, name: &str, header: &str) -> Result<()> {
        let line = "reencrypt --decrypt --key-file pw";
        self.cryptsetup(&format!("{line} {OFFLINE} --header {header} {name}")).map(drop)
    }

    /// Whether cryptsetup finds a key slot that opens with the passphrase in `secret`.
    pub(super) fn opens(&self, name: &str, secret: &str) -> Result<bool> {
        let output = self.try_cryptsetup(&format!("open --test-passphrase --key-file {secret} {name}"))?;
        match output.code {
            Some(0) => Ok(true),
            Some(1) if output.stderr.contains("No usable keyslot") => Ok(false),
            // No permission, which is a wrong passphrase.
            _ => output.expect(2).map(|_| false),
        }
    }

    /// Fails unless both programs open `name` with exactly those of the passphrases that are named in `expected`.
    pub(super) fn opens_with(&self, name: &str, expected: &[&str]) -> Result<()> {
        for (secret, _) in PASSPHRASES {
            let is_expected = expected.contains(&secret);
            ensure!(self.opens(name, secret)? == is_expected, "cryptsetup: {name} with {secret}");
            let output = self.try_ours(&format!("info {name},volume=luks2,password-file={secret}"))?;
            output.expect(if is_expected { 0 } else { 4 })?;
        }
        Ok(())
    }

    /// What `volume info` says of `name`.
    pub(super) fn info(&self, name: &str) -> Result<Value> {
        self.ours(&format!("volume info {name} --json"))?.json()
    }
}
