//! `--since`: which part of the source may differ from what the destination holds.

use std::ops::Range;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use block::{Endpoint, Fingerprint};
use host::SharedError;
use io::Io;
use mover::{Checked, Plan};

use crate::thin::{self, ThinError};
use crate::{Address, Ending, Failure, Job, Resume, Stop};

/// Maximum number of ranges to copy: near ranges are joined until there are no more, and the bytes between them are
/// copied too. A journal writes all ranges every few seconds.
const RANGES_MAX: usize = 1 << 16;

/// Which part of the source may differ from what the destination holds, as `--since` has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Since {
    /// By comparison with the content of the destination.
    Hash,
    /// What a dirty bitmap of the NBD source marks; its name.
    Bitmap(String),
    /// What the source does not share with this file or thin volume.
    Snapshot(PathBuf),
}

impl FromStr for Since {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("bitmap:") {
            None if text == "hash" => Ok(Self::Hash),
            None if text.is_empty() => Err("say hash, bitmap:NAME or the path of a snapshot".to_owned()),
            None => Ok(Self::Snapshot(PathBuf::from(text))),
            Some("") => Err("bitmap: wants a name, bitmap:NAME".to_owned()),
            Some(name) => Ok(Self::Bitmap(name.to_owned())),
        }
    }
}

impl std::fmt::Display for Since {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Hash => f.write_str("hash"),
            Self::Bitmap(name) => write!(f, "bitmap:{name}"),
            Self::Snapshot(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Where the source differs from an earlier state, from a snapshot or a bitmap.
#[derive(Debug)]
pub struct Changes {
    /// Ranges that may differ, in bytes, for [`mover::Plan::only`].
    pub only: Vec<Range<u64>>,
    /// Fingerprint of the source before the changes were read.
    was: Fingerprint,
}

impl Changes {
    pub fn bytes(&self) -> u64 {
        self.only.iter().map(|range| range.end - range.start).sum()
    }

    /// Whether the source was written since its changes were read.
    pub fn are_stale(&self, source: &dyn Endpoint) -> bool {
        source.inspect().fingerprint() != self.was
    }
}

/// Refuses a destination that would be created: a new file has no state that a snapshot or a bitmap refers to.
pub fn check(job: &Job<'_>) -> Result<(), Failure> {
    let trusts = job.request.since.as_ref().is_some_and(|since| *since != Since::Hash);
    let is_new = job.creates || job.destination.path().is_some_and(|path| !path.exists());
    if !trusts || !is_new || matches!(job.request.resume, Resume::Only | Resume::Named(_)) {
        return Ok(());
    }
    let cause = "a file that is made now holds nothing of the source yet";
    Err(Failure::usage("copy only what has changed to", job.destination.text(), cause)
        .hint("leave --since away"))
}

/// Remarks that `--snapshot auto` leaves no snapshot for a later `--since`; one made afterwards has uncopied writes.
pub(crate) fn remark(job: &Job<'_>) {
    if let Some(Since::Snapshot(_)) = job.request.since {
        job.host.remark(
            "what is copied is removed with its snapshot, and no later --since can begin there; for that, make a \
             snapshot that stays and copy it",
        );
    }
}

/// The changes for a resumed copy: its journal has them.
pub(crate) fn recorded(job: &Job<'_>) -> Option<Changes> {
    if job.request.since.as_ref().is_some_and(|since| *since != Since::Hash) {
        job.host.remark("the list of changes is in the journal; --since is not evaluated again");
    }
    None
}

/// Queries the changes of the source. `None`: known only by comparison.
pub fn changes(
    job: &Job<'_>,
    io: &mut Io,
    endpoint: &dyn Endpoint,
    checked: &Checked,
) -> Result<Option<Changes>, Failure> {
    let Job { host, request, source, .. } = job;
    let Some(since) = request.since.as_ref().filter(|since| **since != Since::Hash) else { return Ok(None) };
    if source.spec().get("volume").is_some() {
        let cause = "the source is a sealed volume, and a snapshot or bitmap knows changes of its ciphertext";
        return Err(Failure::usage("copy only what has changed in", source.text(), cause).hint(
            "--since hash compares with what the destination holds; or copy the ciphertext, without volume=",
        ));
    }
    let was = endpoint.inspect().fingerprint();
    let all = match since {
        Since::Bitmap(name) => {
            let start = request.plan.src_offset;
            bitmap(io, &**source, name, start..start + checked.bytes)?
        }
        Since::Snapshot(path) => snapshot(host.stop(), &**source, path)?,
        Since::Hash => unreachable!("it was sorted out"),
    };
    // The query of a pool may take minutes; a signal may have come meanwhile.
    if host.stop().is_requested() {
        return Err(host.stop().failure("determine what has changed in", source.text()));
    }
    Ok(Some(Changes { only: planned(&all, &request.plan, checked.bytes), was }))
}

/// The parts of `changed`, ranges of the source, that a plan for `bytes` bytes copies, relative to its start.
fn planned(changed: &[Range<u64>], plan: &Plan, bytes: u64) -> Vec<Range<u64>> {
    let mut only = within(changed, plan.src_offset, bytes);
    coarsen(&mut only, RANGES_MAX);
    only
}

fn bitmap(
    io: &mut Io,
    source: &dyn Address,
    name: &str,
    range: Range<u64>,
) -> Result<Vec<Range<u64>>, Failure> {
    let attempted = format!("read the bitmap {name} of");
    match source.nbd()? {
        None => Err(Failure::usage(attempted, source.text(), "only an NBD export has bitmaps")
            .hint("serve the image with qemu-nbd --bitmap, or --since hash")),
        Some(medium) => nbd::dirty(io, &medium, name, range)
            .map_err(|error| Failure::open(attempted, source.text(), &error)),
    }
}

fn snapshot(stop: &Stop, source: &dyn Address, earlier: &Path) -> Result<Vec<Range<u64>>, Failure> {
    let attempted = format!("determine what has changed since {} in", earlier.display());
    let hint = "--since hash compares with what the destination holds, whatever lies beneath";
    let failed = |ending, cause: String| Failure::new(ending, attempted.clone(), source.text(), cause);
    let kind = |path: &Path| std::fs::metadata(path).map(|metadata| metadata.file_type());
    match source.path().map(|path| (path, kind(path))) {
        Some((path, Ok(found))) if found.is_file() => {
            match kind(earlier) {
                Ok(found) if found.is_file() => {}
                Ok(_) => return Err(failed(Ending::Usage, "the snapshot is no file".to_owned()).hint(hint)),
                Err(error) => {
                    let cause = format!("{}: {error}", earlier.display());
                    return Err(failed(Ending::Usage, cause)
                        .hint("the path of the source in a snapshot, or of a clone of it"));
                }
            }
            host::unshared(path, earlier).map_err(|error| match error {
                SharedError::Unknown(_) => failed(Ending::Refused, error.to_string()).hint(hint),
                SharedError::Io(_) => failed(Ending::Failed, error.to_string()).hint(hint),
            })
        }
        Some((path, Ok(found))) if found.is_block_device() => {
            thin::unshared(stop, path, earlier).map_err(|ThinError { ending, cause, hint: own }| {
                failed(ending, cause).hint(if own.is_empty() { hint.to_owned() } else { own })
            })
        }
        _ => {
            let cause = "only a file or a thin volume has a snapshot that is a path";
            Err(failed(Ending::Usage, cause.to_owned()).hint(hint))
        }
    }
}

/// The parts of `ranges` within `bytes` bytes from `offset`, relative to `offset`.
fn within(ranges: &[Range<u64>], offset: u64, bytes: u64) -> Vec<Range<u64>> {
    let clip = |at: u64| at.saturating_sub(offset).min(bytes);
    ranges.iter().map(|range| clip(range.start)..clip(range.end)).filter(|range| !range.is_empty()).collect()
}

/// Joins ranges with gaps of at most 4 KiB, 8 KiB, and so on, until at most `most` remain.
fn coarsen(ranges: &mut Vec<Range<u64>>, most: usize) {
    let mut gap = 4096;
    while ranges.len() > most {
        ranges.dedup_by(|next, last| {
            let near = next.start - last.end <= gap;
            if near {
                last.end = next.end;
            }
            near
        });
        gap *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Since, String> {
        text.parse()
    }

    #[test]
    fn three_kinds_of_words() {
        assert_eq!(parse("hash"), Ok(Since::Hash));
        assert_eq!(parse("bitmap:b0"), Ok(Since::Bitmap("b0".to_owned())));
        assert_eq!(parse("./hash"), Ok(Since::Snapshot("./hash".into())));
        for wrong in ["", "bitmap:"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        for words in ["hash", "bitmap:b0", "/snap/disk.img"] {
            assert_eq!(parse(words).unwrap().to_string(), words);
        }
    }

    #[test]
    fn changes_are_counted_from_the_range() {
        let all = [0..10, 20..30, 50..60, 90..100];
        assert_eq!(within(&all, 5, 50), [0..5, 15..25, 45..50]);
        assert_eq!(within(&all, 100, 50), []);
        assert_eq!(within(&all, 0, u64::MAX), all);
    }

    #[test]
    fn changes_are_those_of_the_source_wherever_they_are_copied_to() {
        let plan = Plan { src_offset: 5, dst_offset: 25, ..Plan::default() };
        assert_eq!(planned(&[0..10, 20..30], &plan, 50), [0..5, 15..25]);
    }

    #[test]
    fn too_many_changes_become_fewer_and_none_is_lost() {
        let mut ranges: Vec<_> = (0..1000u64)
            .map(|number| (number * number * 5000, number * number * 5000 + 10))
            .map(|(start, end)| start..end)
            .collect();
        let before = ranges.clone();
        coarsen(&mut ranges, 1000);
        assert_eq!(ranges, before);
        coarsen(&mut ranges, 100);
        assert!(ranges.len() <= 100 && ranges.is_sorted_by(|a, b| a.end < b.start));
        assert!(
            before.iter().all(|one| ranges.iter().any(|all| all.start <= one.start && one.end <= all.end))
        );
    }
}
