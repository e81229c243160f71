//! The lines of the known targets, for `key list` and `key forget`.

use std::path::{Path, PathBuf};

use seal::PublicKey;

use super::{Entry, KnownTargets, LOCK_WAIT_MAX, Place, SINCE, read_text, update};
use crate::error::Failure;

/// One line of one of the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) path: PathBuf,
    pub(crate) line: usize,
    /// The argument of `key trust`: `host:port`.
    pub(crate) name: String,
    pub(crate) addresses: Vec<String>,
    pub(crate) targets: Vec<String>,
    pub(crate) key: PublicKey,
    /// Announced by the holder of the key.
    pub(crate) next: Option<PublicKey>,
    /// Absent from lines of older releases and from lines written by hand.
    pub(crate) since: Option<String>,
}

/// What `key forget` is to forget.
#[derive(Clone, Debug)]
pub(crate) enum Forgotten {
    /// A host or an address with its port.
    Place(Place),
    /// A target's name, in lower case.
    Target(String),
}

impl Forgotten {
    fn names(&self, entry: &Entry) -> bool {
        match self {
            Self::Place(place) => entry.places.contains(place),
            Self::Target(target) => entry.targets.contains(target),
        }
    }
}

impl KnownTargets {
    /// All lines, the user's before the host's.
    pub(crate) fn list(&self) -> Result<Vec<Listed>, Failure> {
        let mut all = Vec::new();
        for (path, entries) in &self.files {
            let text = read_text(path)?;
            let lines: Vec<&str> = text.lines().collect();
            all.extend(entries.iter().map(|entry| listed(path, entry, &lines)));
        }
        Ok(all)
    }

    /// Removes each line of [`Self::own`] that has the name; returns the lines. Lines of the host's file stay.
    pub(crate) fn forget(&self, what: &Forgotten) -> Result<Vec<Listed>, Failure> {
        let own = self.own()?;
        let is_removed = |listed: &Listed| {
            let entries = self.files.iter().find(|(path, _)| *path == listed.path);
            let mut entries = entries.into_iter().flat_map(|(_, entries)| entries);
            listed.path == own && entries.any(|entry| entry.line == listed.line && what.names(entry))
        };
        let removed: Vec<Listed> = self.list()?.into_iter().filter(is_removed).collect();
        if !removed.is_empty() {
            update(own, LOCK_WAIT_MAX, |entries| entries.retain(|entry| !what.names(entry)))?;
        }
        Ok(removed)
    }

    /// The lines that still lead to one of `removed`: by its key, by one of its addresses or by a target's name.
    pub(crate) fn still_known(&self, removed: &[Listed]) -> Result<Vec<Listed>, Failure> {
        let leads = |one: &Listed, other: &Listed| {
            one.key == other.key
                || one.name == other.name
                || one.addresses.iter().any(|address| other.addresses.contains(address))
                || one.targets.iter().any(|target| other.targets.contains(target))
        };
        let mut all = self.list()?;
        all.retain(|listed| removed.iter().any(|gone| leads(gone, listed)));
        Ok(all)
    }
}

fn listed(path: &Path, entry: &Entry, lines: &[&str]) -> Listed {
    let mut places = entry.places.iter().map(Place::to_string);
    Listed {
        path: path.to_owned(),
        line: entry.line,
        name: places.next().unwrap_or_default(),
        addresses: places.collect(),
        targets: entry.targets.clone(),
        key: entry.key,
        next: entry.next,
        since: lines.get(entry.line).and_then(|line| line.strip_prefix(SINCE)).map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn key(byte: u8) -> PublicKey {
        PublicKey([byte; 32])
    }

    fn place(text: &str) -> Place {
        Place::parse(text).unwrap()
    }

    struct Home(tempfile::TempDir);

    impl Home {
        fn new(own: &str, host: &str) -> Self {
            let home = Self(tempfile::tempdir().unwrap());
            fs::write(home.own(), own).unwrap();
            fs::write(home.host(), host).unwrap();
            home
        }

        fn own(&self) -> PathBuf {
            self.0.path().join("own")
        }

        fn host(&self) -> PathBuf {
            self.0.path().join("host")
        }

        fn read(&self) -> KnownTargets {
            KnownTargets::read_files(Some(self.own()), self.host()).unwrap()
        }

        fn forget(&self, what: &Forgotten) -> Vec<usize> {
            self.read().forget(what).unwrap().iter().map(|listed| listed.line).collect()
        }
    }

    #[test]
    fn the_date_of_a_key_stands_below_its_line_and_follows_it() {
        let home = Home::new(&format!("# mine\na:1 {}\n# since yesterday\nb:1 {}\n", key(1), key(2)), "");
        let since = || -> Vec<Option<String>> {
            home.read().list().unwrap().into_iter().map(|listed| listed.since).collect()
        };
        assert_eq!(since(), [Some("yesterday".to_owned()), None]);
        // An address more is no new key.
        home.read().set(&place("a:1"), &[place("10.0.0.1:1")], &key(1)).unwrap();
        assert_eq!(since(), [Some("yesterday".to_owned()), None]);
        home.read().set(&place("a:1"), &[], &key(3)).unwrap();
        home.read().set(&place("b:1"), &[], &key(4)).unwrap();
        home.read().set(&place("c:1"), &[], &key(5)).unwrap();
        let now = since();
        assert!(now.iter().flatten().filter(|since| since.starts_with("20")).count() == 3, "{now:?}");
        let text = fs::read_to_string(home.own()).unwrap();
        assert_eq!(text.lines().count(), 7, "{text}");
        assert!(!text.contains("yesterday") && text.starts_with("# mine\na:1 "), "{text}");
    }

    #[test]
    fn every_line_with_the_name_is_forgotten_and_others_stay() {
        let (one, two) = (key(1), key(2));
        let own = format!(
            "# mine\na:1,10.0.0.1:1 {one} iqn.2026-11.example:x\n# since then\nb:1,10.0.0.1:1 {one}\nc:1 {two}\n"
        );
        let host = format!("a:1 {one}\n");
        let all: [(Forgotten, &[usize], &str, &[usize]); 4] = [
            (
                Forgotten::Place(place("A:1")),
                &[2],
                &format!("# mine\nb:1,10.0.0.1:1 {one}\nc:1 {two}\n"),
                &[2, 1],
            ),
            (Forgotten::Place(place("10.0.0.1:1")), &[2, 4], &format!("# mine\nc:1 {two}\n"), &[1]),
            (
                Forgotten::Target("iqn.2026-11.example:x".to_owned()),
                &[2],
                &format!("# mine\nb:1,10.0.0.1:1 {one}\nc:1 {two}\n"),
                &[2, 1],
            ),
            (Forgotten::Place(place("a:2")), &[], &own, &[]),
        ];
        for (what, lines, text, still) in all {
            let home = Home::new(&own, &host);
            let removed = home.read().forget(&what).unwrap();
            assert_eq!(removed.iter().map(|listed| listed.line).collect::<Vec<_>>(), lines, "{what:?}");
            assert_eq!(fs::read_to_string(home.own()).unwrap(), text, "{what:?}");
            assert_eq!(fs::read_to_string(home.host()).unwrap(), host);
            let known = home.read().still_known(&removed).unwrap();
            assert_eq!(known.iter().map(|listed| listed.line).collect::<Vec<_>>(), still, "{what:?}");
            assert!(home.forget(&what).is_empty(), "{what:?}: it is forgotten once");
        }
    }
}
