//! Images that are mostly hole: creation, and comparison without reading the holes.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use rand::RngExt;
use rand::rngs::StdRng;

use crate::files::data_of;
use crate::random;

/// A little more than the size from which a copy keeps a journal by default (1 GiB).
pub(super) const BYTES: u64 = (1 << 30) + (16 << 20);
/// Unit that a power cut keeps or loses as a whole, and the smallest block.
const SECTOR: usize = 512;

/// Makes an image of [`BYTES`] with `patches` stretches of data, which include the first and the last byte. Some are
/// zero except for their last byte.
pub(super) fn make(path: &Path, rng: &mut StdRng, patches: usize) -> Result<()> {
    let file = File::create(path).with_context(|| format!("create {}", path.display()))?;
    file.set_len(BYTES)?;
    for patch in 0..patches {
        let length = (1 + rng.random_range(0..512u64)) << 12;
        let start = match patch {
            0 => 0,
            1 => BYTES - length,
            _ => rng.random_range(0..(BYTES - length) >> 12) << 12,
        };
        let mut bytes = vec![0; length as usize];
        if rng.random_range(0..8) > 0 {
            random::fill(rng, &mut bytes);
        }
        bytes[0] |= 1;
        *bytes.last_mut().expect("it has bytes") |= 1;
        file.write_all_at(&bytes, start)?;
    }
    Ok(())
}

/// Number of pieces of `length` bytes, a multiple of 4096, that are not zero: a copy writes at least these.
pub(super) fn pieces(path: &Path, length: u64) -> Result<u64> {
    const PAGE: usize = 4096;
    let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
    let mut pieces = BTreeSet::new();
    for (start, end) in data_of(path)? {
        let mut bytes = vec![0; (end - start) as usize];
        file.read_exact_at(&mut bytes, start)?;
        let pages = (start..).step_by(PAGE).zip(bytes.chunks(PAGE));
        let written = pages.filter(|(_, page)| page.iter().any(|byte| *byte != 0));
        pieces.extend(written.map(|(at, _)| at / length));
    }
    Ok(pieces.len() as u64)
}

/// Stretches that are data in at least one of these files, joined.
fn data_of_any(paths: &[&Path]) -> Result<Vec<(u64, u64)>> {
    let mut all = Vec::new();
    for path in paths {
        all.extend(data_of(path)?);
    }
    all.sort_unstable();
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for (start, end) in all {
        match joined.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => joined.push((start, end)),
        }
    }
    Ok(joined)
}

/// Calls `look` for the sectors that are data in at least one of the files, all of the same size, with each file's
/// bytes.
fn sectors(paths: &[&Path], mut look: impl FnMut(u64, &[&[u8]]) -> Result<()>) -> Result<()> {
    const PART: u64 = 1 << 20;
    let files = paths.iter().map(File::open).collect::<Result<Vec<_>, _>>()?;
    let sizes = files.iter().map(|file| Ok(file.metadata()?.len())).collect::<Result<Vec<_>>>()?;
    ensure!(sizes.windows(2).all(|two| two[0] == two[1]), "{paths:?} have the sizes {sizes:?}");
    for (start, end) in data_of_any(paths)? {
        let mut at = start;
        while at < end {
            let length = (end - at).min(PART) as usize;
            let mut parts = Vec::new();
            for file in &files {
                let mut part = vec![0; length];
                file.read_exact_at(&mut part, at)?;
                parts.push(part);
            }
            for from in (0..length).step_by(SECTOR) {
                let to = (from + SECTOR).min(length);
                let all: Vec<&[u8]> = parts.iter().map(|part| &part[from..to]).collect();
                look(at + from as u64, &all)?;
            }
            at += length as u64;
        }
    }
    Ok(())
}

pub(super) fn same(left: &Path, right: &Path) -> Result<()> {
    sectors(&[left, right], |at, parts| {
        demand!(parts[0] == parts[1], "{} and {} differ at {at}", left.display(), right.display())
    })
}

/// Checks an unfinished destination: the source's bytes in `finished`, and elsewhere, sector by sector, the source's
/// bytes or those of `before`.
pub(super) fn of_both(
    source: &Path,
    before: &Path,
    destination: &Path,
    finished: &[(u64, u64)],
) -> Result<()> {
    sectors(&[source, before, destination], |at, parts| {
        if parts[2] == parts[0] {
            return Ok(());
        }
        if finished.iter().any(|(start, end)| (*start..*end).contains(&at)) {
            bail!("the map says that {at} is copied, but the destination does not hold the source there");
        }
        demand!(parts[2] == parts[1], "the destination holds at {at} neither the source's bytes nor its own")
    })
}

/// As [`same`], except in `but`, where the destination equals `before`.
pub(super) fn same_but(source: &Path, before: &Path, destination: &Path, but: &[(u64, u64)]) -> Result<()> {
    sectors(&[source, before, destination], |at, parts| {
        let kept = but.iter().any(|(start, length)| (*start..start + length).contains(&at));
        let (expected, whose) = if kept { (parts[1], "its own") } else { (parts[0], "the source's") };
        demand!(parts[2] == expected, "the destination does not hold {whose} bytes at {at}")
    })
}

#[cfg(test)]
mod tests {
    use crate::random;

    use super::*;

    #[test]
    fn what_differs_is_seen_and_holes_are_not_read() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let [one, two, before] = ["one", "two", "before"].map(|name| dir.path().join(name));
        make(&one, &mut random::seeded(1), 5).unwrap();
        make(&before, &mut random::seeded(2), 5).unwrap();
        std::fs::copy(&one, &two).unwrap();
        assert!(data_of(&one).unwrap().iter().map(|(start, end)| end - start).sum::<u64>() < 16 << 20);
        same(&one, &two).unwrap();
        assert_eq!(pieces(&one, BYTES / 2).unwrap(), 2, "the first byte and the last are data");
        let place = BYTES / 2 + 5;
        crate::files::damage(&two, place).unwrap();
        let sector = place / 512 * 512;
        assert!(same(&one, &two).unwrap_err().to_string().ends_with(&format!("at {sector}")));
        of_both(&one, &before, &two, &[]).unwrap_err();
        same_but(&one, &before, &before, &[(0, BYTES)]).unwrap();
        same_but(&one, &before, &before, &[(512, BYTES)]).unwrap_err();
        of_both(&one, &before, &before, &[]).unwrap();
        of_both(&one, &before, &before, &[(0, BYTES)]).unwrap_err();
    }
}
