//! Fingerprints: whether storage is still the same, and whether it still has the same contents.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, UNIX_EPOCH};

use crate::moment::utc;
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
/// The last second of the year 9999. Later ones are shown as they are recorded.
const SECONDS_MAX: u64 = 253_402_300_799;

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

/// The parts of two `contents` that differ, for a person: moments in UTC, to the second or as far as they differ.
pub fn differing(theirs: &str, ours: &str) -> [String; 2] {
    let parts = |contents: &str| contents.split(", ").map(str::to_owned).collect::<Vec<_>>();
    let (theirs, ours) = (parts(theirs), parts(ours));
    if theirs.len() != ours.len() || theirs == ours {
        return [theirs, ours].map(|parts| {
            let readable: Vec<_> = parts.iter().map(|part| readable(part, part)).collect();
            readable.join(", ")
        });
    }
    let pairs: Vec<_> = theirs.iter().zip(&ours).filter(|(theirs, ours)| theirs != ours).collect();
    let of = |pairs: Vec<(&String, &String)>| {
        pairs.iter().map(|(one, other)| readable(one, other)).collect::<Vec<_>>().join(", ")
    };
    let turned = pairs.iter().map(|(theirs, ours)| (*ours, *theirs)).collect();
    [of(pairs), of(turned)]
}

/// A part of `contents`: its time, if it ends with one, in UTC, with as many decimals as tell it from that of `other`.
fn readable(part: &str, other: &str) -> String {
    let time = |part: &str| -> Option<(usize, u64, String)> {
        let start = part.rfind(' ')? + 1;
        let (seconds, nanos) = part[start..].split_once('.')?;
        let is_time = nanos.len() == 9 && nanos.bytes().all(|byte| byte.is_ascii_digit());
        let seconds = seconds.parse().ok().filter(|seconds| *seconds <= SECONDS_MAX)?;
        Some((start, seconds, nanos.to_owned())).filter(|_| is_time)
    };
    let Some((start, seconds, nanos)) = time(part) else { return part.to_owned() };
    let text = utc(UNIX_EPOCH + Duration::from_secs(seconds));
    let decimals = match time(other) {
        Some((_, same, others)) if same == seconds => {
            let length = [3, 6, 9].into_iter().find(|&length| others[..length] != nanos[..length]);
            length.map(|length| format!(".{}", &nanos[..length])).unwrap_or_default()
        }
        _ => String::new(),
    };
    format!("{}{}", &part[..start], text.replace(" UTC", &format!("{decimals} UTC")))
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
        let later = fs::metadata(&path).unwrap().modified().unwrap() + Duration::from_nanos(1);
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
        std::thread::sleep(Duration::from_millis(20));
        fs::write(&path, "other").unwrap();
        assert_ne!(Fingerprint::of_file(&fs::metadata(&path).unwrap(), 5).storage, first.storage);
    }

    #[test]
    fn differences_are_shown_as_a_person_reads_them() {
        for (theirs, ours, expected) in [
            (
                "5 bytes, modified 1700000000.000000001, changed 1700000001.5",
                "5 bytes, modified 1700000060.000000001, changed 1700000001.5",
                ["modified 2023-11-14 22:13:20 UTC", "modified 2023-11-14 22:14:20 UTC"],
            ),
            (
                "5 bytes, modified 1700000000.123400000",
                "6 bytes, modified 1700000000.123500000",
                [
                    "5 bytes, modified 2023-11-14 22:13:20.123400 UTC",
                    "6 bytes, modified 2023-11-14 22:13:20.123500 UTC",
                ],
            ),
            (
                "boot a, 8 sectors written",
                "boot a, 9 sectors written",
                ["8 sectors written", "9 sectors written"],
            ),
            ("boot a, 8", "modified 1700000000.000000001", ["boot a, 8", "modified 2023-11-14 22:13:20 UTC"]),
            // Bytes of a journal, which may be anything.
            (
                "x 253402300800.000000001",
                "\u{e9} 1.\u{e9}\u{e9}\u{e9}\u{e9}x",
                ["x 253402300800.000000001", "\u{e9} 1.\u{e9}\u{e9}\u{e9}\u{e9}x"],
            ),
        ] {
            assert_eq!(differing(theirs, ours), expected);
        }
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
