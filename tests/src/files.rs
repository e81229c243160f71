//! Images for tests: seeded content, comparison, loop devices, temporary directories on tmpfs if possible.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rand::{Rng, RngExt};
use steps::is_root;
use tempfile::TempDir;

use crate::random;

use super::process::run;

const BLOCK: usize = 1 << 20;

/// A temporary directory, in memory (`/dev/shm`) if that exists and is writable.
pub fn scratch() -> Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("hikyaku-test-");
    builder
        .tempdir_in("/dev/shm")
        .or_else(|_| builder.tempdir())
        .context("make a temporary directory in /dev/shm or the system's")
}

pub fn random_file(path: &Path, bytes: u64, seed: u64) -> Result<()> {
    let mut rng = random::seeded(seed);
    let mut file = File::create(path).with_context(|| format!("create {}", path.display()))?;
    let mut buffer = vec![0u8; BLOCK];
    let mut left = bytes;
    while left > 0 {
        let part = left.min(BLOCK as u64) as usize;
        rng.fill_bytes(&mut buffer[..part]);
        file.write_all(&buffer[..part]).with_context(|| format!("write {}", path.display()))?;
        left -= part as u64;
    }
    Ok(())
}

/// Makes a file that is part data, part holes, part written zeroes, by `seed`.
pub fn patchy_file(path: &Path, bytes: u64, seed: u64) -> Result<()> {
    let mut rng = random::seeded(seed);
    let file = File::create(path).with_context(|| format!("create {}", path.display()))?;
    file.set_len(bytes)?;
    let mut buffer = vec![0u8; 256 << 10];
    let mut offset = 0;
    while offset < bytes {
        let part = (rng.random_range(1..=64u64) * 4096).min(bytes - offset);
        let slice = &mut buffer[..part as usize];
        match rng.random_range(0..4) {
            0 => {} // a hole
            1 => {
                slice.fill(0);
                file.write_all_at(slice, offset)?;
            }
            _ => {
                rng.fill_bytes(slice);
                file.write_all_at(slice, offset)?;
            }
        }
        offset += part;
    }
    Ok(())
}

pub fn data_of(path: &Path) -> Result<Vec<(u64, u64)>> {
    let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
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

pub fn empty_file(path: &Path, bytes: u64) -> Result<()> {
    File::create(path)
        .and_then(|file| file.set_len(bytes))
        .with_context(|| format!("create {} of {bytes} bytes", path.display()))
}

/// Fails unless `length` bytes of `left` from `left_offset` equal those of `right` from `right_offset`.
pub fn same_range(left: &Path, left_offset: u64, right: &Path, right_offset: u64, length: u64) -> Result<()> {
    let open = |path: &Path, offset: u64| -> Result<File> {
        let mut file = File::open(path).with_context(|| format!("open {}", path.display()))?;
        file.seek(SeekFrom::Start(offset))?;
        Ok(file)
    };
    let (mut a, mut b) = (open(left, left_offset)?, open(right, right_offset)?);
    let (mut x, mut y) = (vec![0u8; BLOCK], vec![0u8; BLOCK]);
    let mut done = 0;
    while done < length {
        let part = (length - done).min(BLOCK as u64) as usize;
        a.read_exact(&mut x[..part]).with_context(|| format!("{} ends early", left.display()))?;
        b.read_exact(&mut y[..part]).with_context(|| format!("{} ends early", right.display()))?;
        if x[..part] != y[..part] {
            let at = x.iter().zip(&y).position(|(p, q)| p != q).unwrap_or(0) as u64;
            bail!(
                "bytes differ: {} at {} and {} at {}",
                left.display(),
                left_offset + done + at,
                right.display(),
                right_offset + done + at
            );
        }
        done += part as u64;
    }
    Ok(())
}

pub fn same_file(left: &Path, right: &Path) -> Result<()> {
    let (a, b) = (size_of(left)?, size_of(right)?);
    if a != b {
        bail!("sizes differ: {} has {a} bytes, {} has {b}", left.display(), right.display());
    }
    same_range(left, 0, right, 0, a)
}

pub fn size_of(path: &Path) -> Result<u64> {
    let mut file = File::open(path).with_context(|| format!("open {}", path.display()))?;
    Ok(file.seek(SeekFrom::End(0))?)
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
        let mut command = Command::new("losetup");
        command.args(["--find", "--show", "--sector-size", &sector.to_string()]);
        command.arg(if direct { "--direct-io=on" } else { "--direct-io=off" }).arg(file);
        let output = run(&mut command, Duration::from_secs(20))?.success()?;
        Ok(Self { device: PathBuf::from(output.stdout.trim()) })
    }

    /// Attaches the part of `file` from `offset` on, in bytes.
    pub fn attach_at(file: &Path, offset: u64) -> Result<Self> {
        let mut command = Command::new("losetup");
        command.args(["--find", "--show", "--offset", &offset.to_string()]).arg(file);
        let output = run(&mut command, Duration::from_secs(20))?.success()?;
        Ok(Self { device: PathBuf::from(output.stdout.trim()) })
    }

    pub fn path(&self) -> &Path {
        &self.device
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = run(Command::new("losetup").arg("--detach").arg(&self.device), Duration::from_secs(20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_noticed() {
        let dir = scratch().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        random_file(&a, 3 * BLOCK as u64 + 17, 1).unwrap();
        random_file(&b, 3 * BLOCK as u64 + 17, 1).unwrap();
        same_file(&a, &b).unwrap();
        damage(&b, 2 * BLOCK as u64 + 5).unwrap();
        let error = same_file(&a, &b).unwrap_err().to_string();
        assert!(error.contains(&format!("{}", 2 * BLOCK + 5)), "{error}");
        same_range(&a, 0, &b, 0, BLOCK as u64).unwrap();
    }

    #[test]
    fn patchy_is_reproducible() {
        let dir = scratch().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        patchy_file(&a, 1_000_003, 9).unwrap();
        patchy_file(&b, 1_000_003, 9).unwrap();
        same_file(&a, &b).unwrap();
        patchy_file(&b, 1_000_003, 10).unwrap();
        assert!(same_file(&a, &b).is_err());
    }
}
