//! The volumes that a group makes, and their endpoints.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::RUN_LIMIT;
use harness::run;
use harness::target::private_file;

/// What lies between an endpoint and its storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Plain,
    /// In sectors of the storage's blocks, unless a size is given.
    Luks2 {
        sector: Option<u32>,
    },
    Auth {
        cipher: &'static str,
    },
}

pub(super) const LUKS2: Kind = Kind::Luks2 { sector: None };
pub(super) const GCM_SIV: Kind = Kind::Auth { cipher: "aes256-gcm-siv" };
pub(super) const AEGIS: Kind = Kind::Auth { cipher: "aegis-256x4" };

/// The passphrase of all volumes of a group, in a file.
pub(super) struct Passphrase(PathBuf);

impl Passphrase {
    pub(super) fn new(dir: &Path) -> Result<Self> {
        private_file(dir.join("pw"), "of a benchmark\n").map(Self)
    }

    /// Makes a volume anew, of a new key. The key derivation is the shortest, so that copies do not show it. `command`
    /// is this program, `more` further options.
    pub(super) fn format(
        &self,
        mut command: Command,
        storage: &str,
        kind: Kind,
        more: &[&str],
    ) -> Result<()> {
        command.args(["volume", "format", storage, "--force", "--pbkdf", "pbkdf2", "--iter-time", "1"]);
        match kind {
            Kind::Plain => return Ok(()),
            Kind::Luks2 { sector } => {
                command.args(["--type", "luks2"]);
                if let Some(bytes) = sector {
                    command.args(["--sector-size", &bytes.to_string()]);
                }
            }
            Kind::Auth { cipher } => {
                command.args(["--type", "auth", "--cipher", cipher]);
            }
        }
        run(command.args(more).arg("--password-file").arg(&self.0), RUN_LIMIT)?.success().map(drop)
    }

    /// The endpoint of a volume.
    pub(super) fn endpoint(&self, storage: &str, kind: Kind) -> String {
        let name = match kind {
            Kind::Plain => return storage.to_owned(),
            Kind::Luks2 { .. } => "luks2",
            Kind::Auth { .. } => "auth",
        };
        format!("{storage},volume={name},password-file={}", self.0.display())
    }
}
