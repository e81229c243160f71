//! Fingerprints: whether storage is still the same, and whether it still has the same contents.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

/// State of storage at one moment, as text to compare and to show; the text is not parsed elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fingerprint {
    /// Identity of the storage, with its size. Writes do not change it.
    pub storage: String,
    /// Changes with every write by any program; empty where the storage gives no evidence of writes.
    pub contents: String,
}

impl Fingerprint {
    /// Fingerprint of a regular file, with both times: programs can set mtime, but every change sets ctime.
    pub fn of_file(metadata: &Metadata, size_bytes: u64) -> Self {
        let storage = format!("file {}:{}, {size_bytes} bytes", metadata.dev(), metadata.ino());
        let contents = format!(
            "{} bytes, modified {}.{:09}, changed {}.{:09}",
            metadata.len(),
            metadata.mtime(),
            metadata.mtime_nsec(),
            metadata.ctime(),
            metadata.ctime_nsec()
        );
        Self { storage, contents }
    }

    /// Whether the count of writes restarted since `earlier`, because the machine was started or the device was set up
    /// again. Different `contents` are then no evidence of a write.
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
