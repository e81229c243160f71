//! `--since`: which part of the source may differ from what the destination holds.

use std::ops::Range;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use block::{Endpoint, Fingerprint, SharedError};
use io::Io;
use mover::Checked;

use super::Args;
use super::thin::{self, Untold};
use crate::context::Context;
use crate::endpoint::Named;
use crate::error::{Exit, Failure};

/// Stretches that are copied at most: beyond that, what lies between near ones is copied too. A journal writes them all
/// every few seconds.
const STRETCHES_MAX: usize = 1 << 16;

/// `--since`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Since {
    /// What the destination holds, byte by byte.
    Hash,
    /// What a dirty bitmap of the NBD source marks.
    Bitmap(String),
    /// What the source does not share with this file, or thin volume.
    Snapshot(PathBuf),
}

pub(super) fn parse(text: &str) -> Result<Since, String> {
    match text.strip_prefix("bitmap:") {
        None if text == "hash" => Ok(Since::Hash),
        None if text.is_empty() => Err("say hash, bitmap:NAME or the path of a snapshot".to_owned()),
        None => Ok(Since::Snapshot(PathBuf::from(text))),
        Some("") => Err("bitmap: wants a name, bitmap:NAME".to_owned()),
        Some(name) => Ok(Since::Bitmap(name.to_owned())),
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

/// What a snapshot or a bitmap says.
#[derive(Debug)]
pub(super) struct Changes {
    /// Where the source may differ, for [`mover::Plan::only`].
    pub(super) only: Vec<Range<u64>>,
    /// The source before it was asked.
    was: Fingerprint,
}

impl Changes {
    /// Bytes that may differ.
    pub(super) fn bytes(&self) -> u64 {
        self.only.iter().map(|range| range.end - range.start).sum()
    }

    /// Whether the source was written since it was asked.
    pub(super) fn are_stale(&self, source: &dyn Endpoint) -> bool {
        source.fingerprint() != self.was
    }
}

/// A destination that is only made now is refused before it is made: it cannot be what a snapshot or a bitmap speaks of.
pub(super) fn check(args: &Args, destination: &Named) -> Result<(), Failure> {
    let trusts = args.since.as_ref().is_some_and(|since| *since != Since::Hash);
    if !trusts || args.resume.is_some() || !destination.creates() {
        return Ok(());
    }
    let cause = "a file that is made now holds nothing of the source yet";
    Err(Failure::usage("copy only what has changed to", destination.text.clone(), cause)
        .hint("leave --since away"))
}

/// With `--snapshot auto` nothing is left that the next copy could be told of; one made afterwards holds more than was copied.
pub(super) fn remark(context: &Context, args: &Args) {
    if let Some(Since::Snapshot(_)) = args.since {
        context.remark(
            "what is copied is removed with its snapshot, and no later --since can begin there; for that, make a \
             snapshot that stays and copy it",
        );
    }
}

/// Asks the source what has changed. `None`: nobody knows yet, or the journal of the copy that is resumed does.
pub(super) fn changes(
    context: &Context,
    args: &Args,
    io: &mut Io,
    source: &Named,
    endpoint: &dyn Endpoint,
    checked: &Checked,
) -> Result<Option<Changes>, Failure> {
    let Some(since) = args.since.as_ref().filter(|since| **since != Since::Hash) else { return Ok(None) };
    if args.resume.is_some() {
        context.remark("what has changed stands in the journal; --since is not asked again");
        return Ok(None);
    }
    let was = endpoint.fingerprint();
    let all = match since {
        Since::Bitmap(name) => bitmap(io, source, name)?,
        Since::Snapshot(path) => snapshot(context, source, path)?,
        Since::Hash => unreachable!("it was sorted out"),
    };
    // A pool may take minutes to answer.
    if context.stop.is_asked() {
        return Err(context.stop.failure("tell what has changed in", source.text.clone()));
    }
    let mut only = within(&all, args.range.src_offset, checked.bytes);
    coarsen(&mut only, STRETCHES_MAX);
    Ok(Some(Changes { only, was }))
}

fn bitmap(io: &mut Io, source: &Named, name: &str) -> Result<Vec<Range<u64>>, Failure> {
    let attempted = format!("read the bitmap {name} of");
    match source.nbd(true)? {
        None => Err(Failure::usage(attempted, source.text.clone(), "only an NBD export has bitmaps")
            .hint("serve the image with qemu-nbd --bitmap, or --since hash")),
        Some(medium) => nbd::dirty(io, &medium, name)
            .map_err(|error| Failure::open(attempted, source.text.clone(), &error)),
    }
}

fn snapshot(context: &Context, source: &Named, earlier: &Path) -> Result<Vec<Range<u64>>, Failure> {
    let attempted = format!("tell what has changed since {} in", earlier.display());
    let hint = "--since hash compares with what the destination holds, whatever lies beneath";
    let failed = |exit, cause: String| Failure::new(exit, attempted.clone(), source.text.clone(), cause);
    let kind = |path: &Path| std::fs::metadata(path).map(|metadata| metadata.file_type());
    match source.path().map(|path| (path, kind(path))) {
        Some((path, Ok(found))) if found.is_file() => {
            match kind(earlier) {
                Ok(found) if found.is_file() => {}
                Ok(_) => return Err(failed(Exit::Usage, "the snapshot is no file".to_owned()).hint(hint)),
                Err(error) => {
                    let cause = format!("{}: {error}", earlier.display());
                    return Err(failed(Exit::Usage, cause)
                        .hint("the path of the source in a snapshot, or of a clone of it"));
                }
            }
            block::unshared(path, earlier).map_err(|error| match error {
                SharedError::Unknown(_) => failed(Exit::Refused, error.to_string()).hint(hint),
                SharedError::Io(_) => failed(Exit::Failed, error.to_string()).hint(hint),
            })
        }
        Some((path, Ok(found))) if found.is_block_device() => {
            thin::unshared(context, path, earlier).map_err(|Untold { exit, cause, hint: own }| {
                failed(exit, cause).hint(if own.is_empty() { hint.to_owned() } else { own })
            })
        }
        _ => {
            let cause = "only a file or a thin volume has a snapshot that is a path";
            Err(failed(Exit::Usage, cause.to_owned()).hint(hint))
        }
    }
}

/// What of `ranges` lies in `bytes` bytes from `offset` on, counted from there.
fn within(ranges: &[Range<u64>], offset: u64, bytes: u64) -> Vec<Range<u64>> {
    let clip = |at: u64| at.saturating_sub(offset).min(bytes);
    ranges.iter().map(|range| clip(range.start)..clip(range.end)).filter(|range| !range.is_empty()).collect()
}

/// Joins the nearest until they are few enough.
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
