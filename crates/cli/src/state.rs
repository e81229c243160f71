//! Persistent state: this host's iSCSI name and the identity of each LUN.
//!
//! One versioned file in the state directory maps (target, LUN, storage) to a NAA designator and a serial number, both
//! random at first use and never derived from a path or from content. Other storage at the same place is therefore
//! another disk, earlier storage gets its identity back, and no two disks share one. The file is replaced as a whole
//! (write, fsync, rename, fsync of the directory) under a lock. The new file has one name, so that the next change
//! overwrites what a killed process has left.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use job::lock::{Hold, lock_byte};
use serde::{Deserialize, Serialize};

use crate::error::{Exit, Failure};
use crate::sys;

/// Version of the file; a greater version is from a later release. Version 1 has no field `storage`.
const VERSION: u32 = 2;
const VERSION_MIN: u32 = 1;
/// Identities kept per target and LUN; the least recently used are dropped.
const PLACE_IDENTITIES_MAX: usize = 16;
const FILE: &str = "identities.json";
const LOCK: &str = "identities.lock";
/// Byte of the lock file that is locked to rewrite the state. Live LUNs lock bytes from [`LIVE_BASE`] on.
const REWRITE_BYTE: u64 = 0;
const LIVE_BASE: u64 = 1 << 32;
/// Rewriting takes milliseconds; a process that holds the lock longer than this is stuck.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(5);

/// The identity of a LUN; stays with its target, number and storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// NAA designator of type 3, locally assigned.
    pub(crate) naa: u64,
    pub(crate) serial: String,
}

impl Identity {
    pub(crate) fn random() -> io::Result<Self> {
        let naa = 0x3 << 60 | random()? >> 4;
        Ok(Self { naa, serial: format!("{:016x}", random()?) })
    }
}

/// The exclusive or shared right to present an identity to initiators, until dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    _file: File,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    version: u32,
    host: String,
    #[serde(default)]
    luns: Vec<Entry>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    target: String,
    lun: u16,
    /// Storage of the identity; absent in version 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    storage: Option<String>,
    naa: String,
    serial: String,
}

impl Entry {
    fn of(target: &str, lun: u16, storage: &str, identity: &Identity) -> Self {
        Self {
            target: target.to_owned(),
            lun,
            storage: Some(storage.to_owned()),
            naa: format!("{:016x}", identity.naa),
            serial: identity.serial.clone(),
        }
    }

    fn identity(&self) -> io::Result<Identity> {
        Ok(Identity { naa: parse_naa(&self.naa).map_err(io::Error::other)?, serial: self.serial.clone() })
    }
}

/// A NAA designator of type 3, locally assigned (SPC-4 7.8.6.6.4).
pub(crate) fn parse_naa(text: &str) -> Result<u64, String> {
    let naa = u64::from_str_radix(text, 16).ok().filter(|naa| naa >> 60 == 3 && text.len() == 16);
    naa.ok_or_else(|| format!("the NAA '{text}' is not sixteen hex digits that begin with 3"))
}

/// The identity of a LUN, and in `before` the one of other storage that was served there last.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Given {
    pub(crate) identity: Identity,
    pub(crate) before: Option<Identity>,
}

#[derive(Clone, Debug)]
pub(crate) struct StateDir {
    path: PathBuf,
}

impl StateDir {
    /// `$XDG_STATE_HOME/hikyaku`, `/var/lib/hikyaku` for root, else `~/.local/state/hikyaku`. Creates nothing.
    pub(crate) fn locate() -> Result<Self, Failure> {
        let from = |name: &str| std::env::var_os(name).filter(|value| Path::new(value).is_absolute());
        let path = if let Some(base) = from("XDG_STATE_HOME") {
            Path::new(&base).join("hikyaku")
        } else if sys::is_root() {
            PathBuf::from("/var/lib/hikyaku")
        } else if let Some(home) = from("HOME") {
            Path::new(&home).join(".local/state/hikyaku")
        } else {
            return Err(Failure::failed(
                "find the state directory",
                "",
                "neither XDG_STATE_HOME nor HOME is set",
            )
            .hint("set XDG_STATE_HOME to a directory that survives restarts"));
        };
        Ok(Self { path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    #[cfg(test)]
    pub(crate) fn at(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    pub(crate) fn failed(&self, attempted: &str, cause: impl std::fmt::Display) -> Failure {
        Failure::failed(attempted, self.path.display().to_string(), cause)
            .hint("set XDG_STATE_HOME to a directory that can be written and survives restarts")
    }

    /// This host's default iSCSI name, random at first use and then constant.
    pub(crate) fn host_name(&self) -> Result<String, Failure> {
        self.update(|contents| Ok((contents.host.clone(), false)))
    }

    /// [`Self::host_name`] if it is stored. Writes nothing.
    pub(crate) fn stored_host_name(&self) -> Option<String> {
        self.read().ok().filter(|(_, is_new)| !is_new).map(|(contents, _)| contents.host)
    }

    /// The identity of `lun` of `target` with this storage; random at first use. If another process presents an
    /// identity of that LUN, that identity is returned for any storage; [`Self::claim`] then refuses it.
    pub(crate) fn identity(&self, target: &str, lun: u16, storage: &str) -> Result<Given, Failure> {
        self.update(|contents| {
            let is_here = |entry: &Entry| entry.target == target && entry.lun == lun;
            let places = contents.luns.iter().enumerate().filter(|(_, entry)| is_here(entry));
            let here: Vec<usize> = places.map(|(index, _)| index).collect();
            let Some(last) = here.last().copied() else {
                let identity = Identity::random()?;
                contents.luns.push(Entry::of(target, lun, storage, &identity));
                return Ok((Given { identity, before: None }, true));
            };
            let of = |index: usize| contents.luns[index].storage.as_deref();
            if of(last) == Some(storage) {
                return Ok((Given { identity: contents.luns[last].identity()?, before: None }, false));
            }
            let before = contents.luns[last].identity()?;
            if of(last).is_none() {
                contents.luns[last].storage = Some(storage.to_owned());
                return Ok((Given { identity: before, before: None }, true));
            }
            if self.try_claim(before.naa, Hold::Exclusive)?.is_none() {
                return Ok((Given { identity: before, before: None }, false));
            }
            let entry = match here.iter().find(|index| of(**index) == Some(storage)) {
                Some(index) => contents.luns.remove(*index),
                None => {
                    let entry = Entry::of(target, lun, storage, &Identity::random()?);
                    if here.len() == PLACE_IDENTITIES_MAX {
                        contents.luns.remove(here[0]);
                    }
                    entry
                }
            };
            let identity = entry.identity()?;
            contents.luns.push(entry);
            Ok((Given { identity, before: Some(before) }, true))
        })
    }

    /// Claims an identity; `None` if another process presents it, unless both declare the LUN `shared`.
    pub(crate) fn claim(&self, naa: u64, hold: Hold) -> Result<Option<Claim>, Failure> {
        self.try_claim(naa, hold).map_err(|error| self.failed("claim a LUN's identity in", error))
    }

    fn try_claim(&self, naa: u64, hold: Hold) -> io::Result<Option<Claim>> {
        let file = self.lock_file()?;
        // The lower 60 bits: the upper 4 are the constant type 3. With the base the offset stays below 2^61.
        let byte = LIVE_BASE + (naa & ((1 << 60) - 1));
        Ok(lock_byte(&file, byte, hold)?.then_some(Claim { _file: file }))
    }

    fn lock_file(&self) -> io::Result<File> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.path)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        options.open(self.path.join(LOCK))
    }

    /// Reads the state under its lock and passes it to `change`; writes it back if `change` returns `true`.
    fn update<T>(&self, change: impl FnOnce(&mut Contents) -> io::Result<(T, bool)>) -> Result<T, Failure> {
        let update = || -> io::Result<T> {
            let lock = self.lock_file()?;
            let deadline = Instant::now() + LOCK_WAIT_MAX;
            while !lock_byte(&lock, REWRITE_BYTE, Hold::Exclusive)? {
                if Instant::now() >= deadline {
                    return Err(io::Error::other("another process has held its lock for five seconds"));
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            let (mut contents, is_new) = self.read()?;
            let (result, changed) = change(&mut contents)?;
            if is_new || changed {
                self.write(&contents)?;
            }
            Ok(result)
        };
        update().map_err(|error| self.failed("use the state in", error))
    }

    fn read(&self) -> io::Result<(Contents, bool)> {
        let text = match fs::read_to_string(self.path.join(FILE)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok((Contents { version: VERSION, host: new_host_name()?, luns: Vec::new() }, true));
            }
            Err(error) => return Err(error),
        };
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let damaged = |error: serde_json::Error| io::Error::other(format!("{FILE} is damaged: {error}"));
        let Versioned { version } = serde_json::from_str(&text).map_err(damaged)?;
        if !(VERSION_MIN..=VERSION).contains(&version) {
            let text =
                format!("{FILE} has version {version}, this release supports {VERSION_MIN} to {VERSION}");
            return Err(io::Error::other(text));
        }
        let contents: Contents = serde_json::from_str(&text).map_err(damaged)?;
        Ok((Contents { version: VERSION, ..contents }, false))
    }

    /// Replaces the file; called under the lock.
    fn write(&self, contents: &Contents) -> io::Result<()> {
        let mut text = serde_json::to_vec_pretty(contents)?;
        text.push(b'\n');
        sys::replace_file(&self.path.join(FILE), &text, 0o600)
    }
}

/// A random name of this host, valid for one run if the state cannot be stored.
pub(crate) fn new_host_name() -> io::Result<String> {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    Ok(format!("iqn.2026-11.example.hikyaku:{}-{:08x}", legible(&host), random()? >> 32))
}

/// The characters of a host's name that an iSCSI name may contain.
fn legible(host: &str) -> String {
    let host = host.trim().to_ascii_lowercase();
    let host: String =
        host.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.')).take(63).collect();
    if host.is_empty() { "host".to_owned() } else { host }
}

fn random() -> io::Result<u64> {
    let mut bytes = [0u8; 8];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(format!("no randomness: {error}")))?;
    Ok(u64::from_le_bytes(bytes))
}

pub(crate) fn already_live(target: &str, lun: u16, naa: u64) -> Failure {
    Failure::new(
        Exit::Refused,
        "serve",
        format!("LUN {lun} of {target}"),
        format!("its identity (NAA {naa:016x}) is live in another process; an initiator would take both for one disk"),
    )
    .hint("give this one another --iqn or lun=, or say `shared` on both if they are the same storage")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_kept_and_differ() {
        let home = tempfile::tempdir().unwrap();
        let state = StateDir::at(&home.path().join("deep/hikyaku"));
        let of = |target, lun| state.identity(target, lun, "file 1").unwrap().identity;
        let first = of("iqn.a", 0);
        assert_eq!(first.naa >> 60, 3);
        assert_eq!(first.serial.len(), 16);
        assert_eq!(of("iqn.a", 0), first);
        assert_ne!(of("iqn.a", 1), first);
        assert_ne!(of("iqn.b", 0).naa, first.naa);
        let host = state.host_name().unwrap();
        assert!(host.starts_with("iqn.2026-11.example.hikyaku:"), "{host}");
        assert_eq!(StateDir::at(&home.path().join("deep/hikyaku")).host_name().unwrap(), host);
    }

    #[test]
    fn an_identity_belongs_to_its_storage() {
        let home = tempfile::tempdir().unwrap();
        let state = StateDir::at(home.path());
        let of = |storage: &str| state.identity("iqn.a", 0, storage).unwrap();
        let first = of("file 1").identity;
        let second = of("file 2");
        assert_ne!((second.identity.naa, &second.identity.serial), (first.naa, &first.serial));
        assert_eq!(second.before, Some(first.clone()));
        assert_eq!(of("file 2"), Given { before: None, ..second });
        let back = of("file 1");
        assert_eq!(back.identity, first, "it is the disk that it was");
        assert!(back.before.is_some());
        // While another process presents an identity of this LUN, `identity` returns it, for `claim` to refuse.
        let claim = state.claim(first.naa, Hold::Exclusive).unwrap().unwrap();
        assert_eq!(of("file 2"), Given { identity: first.clone(), before: None });
        drop(claim);
        for number in 3..50 {
            of(&format!("file {number}"));
        }
        let luns = serde_json::from_str::<Contents>(&fs::read_to_string(home.path().join(FILE)).unwrap());
        assert_eq!(luns.unwrap().luns.len(), PLACE_IDENTITIES_MAX);
        assert_eq!(of("file 49").before, None);
        assert_ne!(of("file 1").identity, first, "forgotten at last");
    }

    #[test]
    fn a_return_to_earlier_storage_forgets_no_identity() {
        let home = tempfile::tempdir().unwrap();
        let state = StateDir::at(home.path());
        let of = |target: &str, number: usize| {
            state.identity(target, 0, &format!("file {number}")).unwrap().identity
        };
        let first = of("iqn.a", 0);
        // The entry behind that of the first storage belongs to another target.
        let other = of("iqn.b", 0);
        let all: Vec<Identity> = std::iter::once(first)
            .chain((1..PLACE_IDENTITIES_MAX).map(|number| of("iqn.a", number)))
            .collect();
        for (number, identity) in all.iter().enumerate() {
            assert_eq!(of("iqn.a", number), *identity, "file {number}");
        }
        assert_eq!(of("iqn.b", 0), other);
        of("iqn.a", PLACE_IDENTITIES_MAX);
        assert_eq!(of("iqn.a", PLACE_IDENTITIES_MAX - 1), all[PLACE_IDENTITIES_MAX - 1]);
        assert_ne!(of("iqn.a", 0), all[0], "the least recently used makes room");
    }

    #[test]
    fn an_identity_of_the_first_version_goes_to_the_storage_that_is_there() {
        let home = tempfile::tempdir().unwrap();
        let state = StateDir::at(home.path());
        let text = r#"{"version":1,"host":"x","luns":[{"target":"iqn.a","lun":0,"naa":"3000000000000005","serial":"s"}]}"#;
        fs::write(home.path().join(FILE), text).unwrap();
        assert_eq!(state.host_name().unwrap(), "x");
        let kept = Identity { naa: 0x3000_0000_0000_0005, serial: "s".into() };
        let given = state.identity("iqn.a", 0, "file 1").unwrap();
        assert_eq!(given, Given { identity: kept.clone(), before: None });
        assert_eq!(state.identity("iqn.a", 0, "file 1").unwrap().identity, kept);
        assert_ne!(state.identity("iqn.a", 0, "file 2").unwrap().identity, kept);
    }

    #[test]
    fn one_identity_is_live_once_unless_shared() {
        let home = tempfile::tempdir().unwrap();
        let state = StateDir::at(home.path());
        let naa = state.identity("iqn.a", 0, "mem").unwrap().identity.naa;
        let claim = state.claim(naa, Hold::Exclusive).unwrap().unwrap();
        assert!(state.claim(naa, Hold::Exclusive).unwrap().is_none());
        assert!(state.claim(naa, Hold::Shared).unwrap().is_none());
        assert!(state.claim(0x3fff_ffff_ffff_ffff, Hold::Exclusive).unwrap().is_some());
        drop(claim);
        let one = state.claim(naa, Hold::Shared).unwrap().unwrap();
        let two = state.claim(naa, Hold::Shared).unwrap().unwrap();
        drop((one, two));
    }

    #[test]
    fn damaged_and_later_state_is_not_overwritten() {
        let home = tempfile::tempdir().unwrap();
        let state = StateDir::at(home.path());
        let all = [
            ("{", "identities.json is damaged"),
            (r#"{"version":3,"host":"x"}"#, "identities.json has version 3, this release supports 1 to 2"),
            (r#"{"version":1,"host":"x","more":1}"#, "unknown field `more`"),
            (
                r#"{"version":1,"host":"x","luns":[{"target":"iqn.a","lun":0,"naa":"5","serial":""}]}"#,
                "the NAA '5' is not sixteen hex digits",
            ),
        ];
        for (text, cause) in all {
            fs::write(home.path().join(FILE), text).unwrap();
            let failure = state.identity("iqn.a", 0, "mem").unwrap_err();
            assert!(failure.cause.contains(cause), "{failure}");
            assert_eq!(fs::read_to_string(home.path().join(FILE)).unwrap(), text);
        }
    }

    #[test]
    fn host_names_become_legible() {
        assert_eq!(legible("Node-1.Example\n"), "node-1.example");
        assert_eq!(legible("bad_näme!"), "badnme");
        assert_eq!(legible("\n"), "host");
    }
}
