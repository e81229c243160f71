//! Images for tests: seeded content, comparison, loop devices, temporary directories on tmpfs if possible.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rand::RngExt;
use steps::is_root;
use tempfile::TempDir;

use crate::random;

use super::process::run;

const BLOCK: usize = 1 << 20;
const TOOL_LIMIT: Duration = Duration::from_secs(60);

/// A temporary directory, in memory (`/dev/shm`) if that exists and is writable.
pub fn scratch() -> Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("hikyaku-test-");
    builder
        .tempdir_in("/dev/shm")
        .or_else(|_| builder.tempdir())
        .context("make a temporary directory in /dev/shm or the system's")
}

fn create(path: &Path) -> Result<File> {
    File::create(path).with_context(|| format!("create {}", path.display()))
}

fn open(path: &Path) -> Result<File> {
    File::open(path).with_context(|| format!("open {}", path.display()))
}

/// Writes files of `bytes` in parts that alternate. In a virtual machine, reads of files in memory were up to 1.6 times as
/// fast as of others, by where the host keeps the pages; files to be compared have the same mixture.
pub fn side_by_side(paths: &[PathBuf], bytes: u64) -> Result<()> {
    let files = paths.iter().map(|path| create(path)).collect::<Result<Vec<_>>>()?;
    let part = vec![0xA5; BLOCK];
    for offset in (0..bytes).step_by(BLOCK) {
        let length = (bytes - offset).min(BLOCK as u64) as usize;
        for (file, path) in files.iter().zip(paths) {
            file.write_all_at(&part[..length], offset)
                .with_context(|| format!("write {}", path.display()))?;
        }
    }
    Ok(())
}

/// Makes a file of random bytes, by `seed`. Returns its path, as do the other functions that make files.
pub fn random_file<P: Into<PathBuf>>(path: P, bytes: u64, seed: u64) -> Result<PathBuf> {
    let path = path.into();
    let mut rng = random::seeded(seed);
    let mut file = create(&path)?;
    let mut buffer = vec![0u8; BLOCK];
    let mut left = bytes;
    while left > 0 {
        let part = left.min(BLOCK as u64) as usize;
        random::fill(&mut rng, &mut buffer[..part]);
        file.write_all(&buffer[..part]).with_context(|| format!("write {}", path.display()))?;
        left -= part as u64;
    }
    Ok(path)
}

/// Makes a file that is part data, part holes, part written zeroes, by `seed`.
pub fn patchy_file<P: Into<PathBuf>>(path: P, bytes: u64, seed: u64) -> Result<PathBuf> {
    let path = empty_file(path, bytes)?;
    let mut rng = random::seeded(seed);
    let file = OpenOptions::new().write(true).open(&path)?;
    let mut buffer = vec![0u8; 256 << 10];
    let mut offset = 0;
    while offset < bytes {
        let part = (rng.random_range(1..=64u64) * 4096).min(bytes - offset);
        let slice = &mut buffer[..part as usize];
        let kind = rng.random_range(0..4);
        match kind {
            0 | 1 => slice.fill(0),
            _ => random::fill(&mut rng, slice),
        }
        // A stretch that is not written stays a hole.
        if kind > 0 {
            file.write_all_at(slice, offset)?;
        }
        offset += part;
    }
    Ok(path)
}

pub fn data_of(path: &Path) -> Result<Vec<(u64, u64)>> {
    let file = open(path)?;
    let seek = |from: u64, what: i32| {
        // SAFETY: a plain system call on an open descriptor.
        let at = unsafe { libc::lseek(file.as_raw_fd(), from.cast_signed(), what) };
        u64::try_from(at).ok()
    };
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(start) = seek(at, libc::SEEK_DATA) {
        at = seek(start, libc::SEEK_HOLE).context("data has an end")?;
        found.push((start, at));
    }
    Ok(found)
}

pub fn empty_file(path: impl Into<PathBuf>, bytes: u64) -> Result<PathBuf> {
    let path = path.into();
    create(&path)?.set_len(bytes).with_context(|| format!("extend {} to {bytes}", path.display()))?;
    Ok(path)
}

/// Copies a file with its holes.
pub fn copy_sparse(from: &Path, to: &Path) -> Result<()> {
    run(Command::new("cp").arg("--sparse=always").args([from, to]), TOOL_LIMIT)?.success().map(drop)
}

/// Fails unless `length` bytes of `left` from `left_offset` equal those of `right` from `right_offset`.
pub fn same_range(left: &Path, left_offset: u64, right: &Path, right_offset: u64, length: u64) -> Result<()> {
    let (a, b) = (open(left)?, open(right)?);
    let (mut x, mut y) = (vec![0u8; BLOCK], vec![0u8; BLOCK]);
    let mut done = 0;
    while done < length {
        let part = (length - done).min(BLOCK as u64) as usize;
        for (file, path, bytes, offset) in
            [(&a, left, &mut x, left_offset), (&b, right, &mut y, right_offset)]
        {
            let read = file.read_exact_at(&mut bytes[..part], offset + done);
            read.with_context(|| format!("{} ends early", path.display()))?;
        }
        if x[..part] != y[..part] {
            let at = done + x.iter().zip(&y).position(|(p, q)| p != q).unwrap_or(0) as u64;
            let (left_at, right_at) = (left_offset + at, right_offset + at);
            bail!("bytes differ: {} at {left_at} and {} at {right_at}", left.display(), right.display());
        }
        done += part as u64;
    }
    Ok(())
}

pub fn same_file(left: &Path, right: &Path) -> Result<()> {
    let (a, b) = (size_of(left)?, size_of(right)?);
    ensure!(a == b, "sizes differ: {} has {a} bytes, {} has {b}", left.display(), right.display());
    same_range(left, 0, right, 0, a)
}

pub fn size_of(path: &Path) -> Result<u64> {
    Ok(open(path)?.seek(SeekFrom::End(0))?)
}

/// Overwrites a few bytes in place, to prove that a comparison detects it.
pub fn damage(path: &Path, offset: u64) -> Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let mut byte = [0u8];
    file.read_exact_at(&mut byte, offset)?;
    file.write_all_at(&[!byte[0]], offset)?;
    Ok(())
}

pub fn can_loop() -> bool {
    is_root() && Path::new("/dev/loop-control").exists()
}

/// A loop device over a file; detached when dropped.
#[derive(Debug)]
pub struct Loop {
    device: PathBuf,
}

impl Loop {
    /// Attaches `file`; `sector` is the logical block size. `direct` bypasses the file's page cache.
    pub fn attach(file: &Path, sector: u32, direct: bool) -> Result<Self> {
        let direct = if direct { "--direct-io=on" } else { "--direct-io=off" };
        Self::with(file, &["--sector-size", &sector.to_string(), direct])
    }

    /// Attaches the part of `file` from `offset` on, in bytes.
    pub fn attach_at(file: &Path, offset: u64) -> Result<Self> {
        Self::with(file, &["--offset", &offset.to_string()])
    }

    fn with(file: &Path, options: &[&str]) -> Result<Self> {
        let mut command = Command::new("losetup");
        command.args(["--find", "--show"]).args(options).arg(file);
        Ok(Self { device: run(&mut command, TOOL_LIMIT)?.success()?.stdout.trim().into() })
    }

    /// The device's path as text.
    pub fn text(&self) -> String {
        self.device.display().to_string()
    }

    pub fn path(&self) -> &Path {
        &self.device
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = run(Command::new("losetup").arg("--detach").arg(&self.device), TOOL_LIMIT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_noticed() {
        let dir = scratch().unwrap();
        let [a, b] =
            ["a", "b"].map(|name| random_file(dir.path().join(name), 3 * BLOCK as u64 + 17, 1).unwrap());
        same_file(&a, &b).unwrap();
        damage(&b, 2 * BLOCK as u64 + 5).unwrap();
        let error = same_file(&a, &b).unwrap_err().to_string();
        assert!(error.contains(&format!("{}", 2 * BLOCK + 5)), "{error}");
        same_range(&a, 0, &b, 0, BLOCK as u64).unwrap();
    }

    #[test]
    fn patchy_is_reproducible() {
        let dir = scratch().unwrap();
        let [a, b] = ["a", "b"].map(|name| patchy_file(dir.path().join(name), 1_000_003, 9).unwrap());
        same_file(&a, &b).unwrap();
        patchy_file(&b, 1_000_003, 10).unwrap();
        assert!(same_file(&a, &b).is_err());
    }
}
