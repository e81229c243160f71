//! Fingerprints: whether storage is still the same, and whether it still has the same contents.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

use crate::names::born;

/// State of storage at one moment, as text to compare and to show; the text is not parsed elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fingerprint {
    /// Identity of the storage, with its size. Writes do not change it.
    pub storage: String,
    /// Changes with every write by any program; empty where the storage gives no evidence of writes. `; ` separates the
    /// evidence of a device from that of the file or device beneath it.
    pub contents: String,
}

/// First word of the evidence of a device, whose counts of writes begin at each start of the machine.
pub(crate) const BOOT: &str = "boot ";
/// First word of the evidence of the file behind a loop device.
pub(crate) const FILE: &str = "file ";

impl Fingerprint {
    /// Fingerprint of a regular file, with both times: programs can set mtime, but every change sets ctime.
    pub fn of_file(metadata: &Metadata, size_bytes: u64) -> Self {
        let (device, inode) = (metadata.dev(), metadata.ino());
        let storage = format!("file {device}:{inode}{}, {size_bytes} bytes", born(metadata));
        let contents = format!("{} bytes, {}", metadata.len(), times(metadata));
        Self { storage, contents }
    }

    /// Whether equal `contents` are evidence even after a restart of the machine: those of a file are.
    pub fn lasts(&self) -> bool {
        self.storage.starts_with(FILE) && !self.contents.is_empty()
    }

    /// Whether the count of writes restarted since `earlier`, because the machine was started or the device was set up
    /// again. Different `contents` are then no evidence of a write, unless the file beneath was modified.
    pub fn counts_anew_since(&self, earlier: &Self) -> bool {
        let epoch = |fingerprint: &Self| {
            let mut words = fingerprint.contents.strip_prefix(BOOT)?.splitn(3, ", ");
            Some((words.next()?.to_owned(), words.next()?.to_owned()))
        };
        let files = |fingerprint: &Self| -> Vec<String> {
            let parts = fingerprint.contents.split("; ");
            parts.filter(|part| part.starts_with(FILE)).map(str::to_owned).collect()
        };
        epoch(self).zip(epoch(earlier)).is_some_and(|(now, then)| now != then)
            && files(self) == files(earlier)
    }
}

/// mtime and ctime of a file.
pub(crate) fn times(metadata: &Metadata) -> String {
    format!(
        "modified {}.{:09}, changed {}.{:09}",
        metadata.mtime(),
        metadata.mtime_nsec(),
        metadata.ctime(),
        metadata.ctime_nsec()
    )
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

    /// ext4 and xfs give the inode number of a removed file to the next new one; the birth time differs.
    #[test]
    fn a_new_file_with_the_inode_of_a_removed_one_is_another() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        fs::write(&path, "first").unwrap();
        let metadata = fs::metadata(&path).unwrap();
        let first = Fingerprint::of_file(&metadata, 5);
        assert!(
            first.storage.contains(&born(&metadata)) && born(&metadata).starts_with(", born "),
            "{first:?}"
        );
        assert!(first.lasts());
        fs::remove_file(&path).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        fs::write(&path, "other").unwrap();
        assert_ne!(Fingerprint::of_file(&fs::metadata(&path).unwrap(), 5).storage, first.storage);
    }

    #[test]
    fn counts_that_begin_again_are_no_evidence_unless_the_file_beneath_was_modified() {
        let of = |contents: &str| Fingerprint { storage: "loop".into(), contents: contents.into() };
        let then = of("boot a, sequence 1, 8 sectors written, 0 discarded; file modified 1.5, changed 1.5");
        for (now, anew) in [
            ("boot a, sequence 1, 9 sectors written, 0 discarded; file modified 1.5, changed 1.5", false),
            ("boot a, sequence 2, 0 sectors written, 0 discarded; file modified 1.5, changed 1.5", true),
            ("boot b, sequence 1, 0 sectors written, 0 discarded; file modified 1.5, changed 1.5", true),
            ("boot b, sequence 1, 0 sectors written, 0 discarded; file modified 1.6, changed 1.6", false),
            ("boot b, sequence 1, 0 sectors written, 0 discarded", false),
        ] {
            assert_eq!(of(now).counts_anew_since(&then), anew, "{now}");
            assert!(!of(now).lasts());
        }
    }
}
