//! What tells, later, whether storage is still the same and still holds the same.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

use crate::Identity;

/// What storage was like at one moment. Words to be compared and shown, not to be understood.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fingerprint {
    /// Which storage it is, its size included. Whoever writes to it does not change this.
    pub storage: String,
    /// Changes with every write to it, by anyone; empty where nothing tells.
    pub contents: String,
}

impl Fingerprint {
    /// All that can be said of storage that shows nothing but who it is and how large.
    pub fn of_identity(identity: &Identity, size_bytes: u64) -> Self {
        let storage = match identity {
            Identity::File { device, inode } => format!("file {device}:{inode}, {size_bytes} bytes"),
            Identity::Device { device } => format!("device {device}, {size_bytes} bytes"),
            Identity::Remote(name) => format!("{name}, {size_bytes} bytes"),
            Identity::Unique => format!("{size_bytes} bytes"),
        };
        Self { storage, contents: String::new() }
    }

    /// Of a regular file. Both times count: the first can be set by anyone, the second only by a change.
    pub(crate) fn of_file(metadata: &Metadata, size_bytes: u64) -> Self {
        let identity = Identity::File { device: metadata.dev(), inode: metadata.ino() };
        let contents = format!(
            "{} bytes, modified {}.{:09}, changed {}.{:09}",
            metadata.len(),
            metadata.mtime(),
            metadata.mtime_nsec(),
            metadata.ctime(),
            metadata.ctime_nsec()
        );
        Self { contents, ..Self::of_identity(&identity, size_bytes) }
    }

    /// Whether what counts the writes began anew since `earlier`: the machine was started, or the device set up again. Other
    /// contents then say nothing of writes.
    pub fn counts_anew_since(&self, earlier: &Self) -> bool {
        let epoch = |fingerprint: &Self| {
            let mut words = fingerprint.contents.strip_prefix("boot ")?.splitn(3, ", ");
            Some((words.next()?.to_owned(), words.next()?.to_owned()))
        };
        epoch(self).zip(epoch(earlier)).is_some_and(|(now, then)| now != then)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn a_file_is_told_from_another_and_from_what_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        let of = |path: &Path| Fingerprint::of_file(&fs::metadata(path).unwrap(), 5);
        fs::write(&path, "first").unwrap();
        let first = of(&path);
        assert_eq!(of(&path), first);
        let later = fs::metadata(&path).unwrap().modified().unwrap() + std::time::Duration::from_nanos(1);
        fs::File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
        let second = of(&path);
        assert_eq!(second.storage, first.storage);
        assert_ne!(second.contents, first.contents);
        fs::write(directory.path().join("b"), "first").unwrap();
        assert_ne!(of(&directory.path().join("b")).storage, first.storage);
    }
}
