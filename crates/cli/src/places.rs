//! Where files lie: one rule for root and for users.
//!
//! Configuration is in `$XDG_CONFIG_HOME/hikyaku`, state in `$XDG_STATE_HOME/hikyaku`, sockets in
//! `$XDG_RUNTIME_DIR/hikyaku`. Without the variables root uses `/etc`, `/var/lib` and `/run`, a user `~/.config`,
//! `~/.local/state` and `/run`. The systemd unit of the package sets the variables: configuration and sockets as for root, state
//! in `/var/lib/hikyaku-service`.

use std::path::{Path, PathBuf};

use crate::config::{self, DEFAULT_FILE};
use crate::control;
use crate::error::Failure;
use crate::state::StateDir;
use crate::trust;

/// The directory of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Base {
    /// `/etc/hikyaku`, for every user.
    Host,
    Configuration,
    State,
    Runtime,
}

/// A file or directory that the program reads or keeps.
#[derive(Debug)]
pub(crate) struct Place {
    /// The name in the output of `paths`; never changed.
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    base: Base,
    /// The name in the base; empty for the base itself.
    file: &'static str,
}

const fn place(name: &'static str, base: Base, file: &'static str, about: &'static str) -> Place {
    Place { name, about, base, file }
}

pub(crate) const PLACES: &[Place] = &[
    place(
        "configuration",
        Base::Configuration,
        config::FILE,
        "targets of serve, and whether sessions must be sealed",
    ),
    place("host-configuration", Base::Host, config::FILE, "the same for every user of this host"),
    place(
        "identity",
        Base::Configuration,
        "identity",
        "this host's key for sealed sessions, made by key new",
    ),
    place("known-targets", Base::Configuration, "known-targets", "keys of targets that this user trusts"),
    place("host-known-targets", Base::Host, "known-targets", "keys of targets that all users trust"),
    place("state", Base::State, "", "the directory of all state"),
    place(
        "identities",
        Base::State,
        "identities.json",
        "this host's iSCSI name, serial numbers and NAA of LUNs",
    ),
    place("journals", Base::State, "copies", "journals of copies, to resume them"),
    place("runtime", Base::Runtime, "", "control sockets of running servers and copies"),
];

impl Place {
    /// The path for this user and environment.
    pub(crate) fn path(&self) -> Result<PathBuf, Failure> {
        let path = match self.base {
            Base::Host => Path::new(trust::HOST_DIRECTORY).join(self.file),
            Base::Configuration => trust::config_file(self.file)?,
            Base::State => StateDir::locate()?.path().join(self.file),
            Base::Runtime => control::directory().unwrap_or_else(|| "/run/hikyaku".into()),
        };
        // A join with an empty name ends in a slash.
        Ok(path.components().collect())
    }

    /// The paths for a manual page: root's, and a user's if it is another.
    pub(crate) fn text(&self) -> String {
        let (root, user) = match self.base {
            Base::Host => return format!("{}/{}", trust::HOST_DIRECTORY, self.file),
            Base::Configuration => (trust::HOST_DIRECTORY, "~/.config/hikyaku"),
            Base::State => ("/var/lib/hikyaku", "~/.local/state/hikyaku"),
            Base::Runtime => ("/run/hikyaku", "$XDG_RUNTIME_DIR/hikyaku"),
        };
        let join = |base: &str| Path::new(base).join(self.file).display().to_string();
        format!("{}, {}", join(root).trim_end_matches('/'), join(user).trim_end_matches('/'))
    }
}

const _: () = assert!(DEFAULT_FILE.len() == trust::HOST_DIRECTORY.len() + 1 + config::FILE.len());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_texts_have_no_empty_part() {
        for (at, place) in PLACES.iter().enumerate() {
            assert!(PLACES[..at].iter().all(|other| other.name != place.name), "{}", place.name);
            assert!(!place.text().contains("//") && !place.text().ends_with('/'), "{}", place.text());
        }
        let text = |name: &str| PLACES.iter().find(|place| place.name == name).unwrap().text();
        assert_eq!(text("configuration"), "/etc/hikyaku/hikyaku.toml, ~/.config/hikyaku/hikyaku.toml");
        assert_eq!(text("host-configuration"), DEFAULT_FILE);
        assert_eq!(text("state"), "/var/lib/hikyaku, ~/.local/state/hikyaku");
    }
}
