//! Mounted file systems and swap areas: /proc/self/mountinfo and /proc/swaps.

use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::kernel::{Kernel, parse_number};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    pub(super) device: u64,
    pub(super) point: PathBuf,
    /// The file system's type, for example `ext4`.
    pub(super) kind: String,
    /// The mounted device's path, or a word that the file system chose.
    pub(super) source: PathBuf,
    /// Whether the file system is writable, even if this mount is read-only: another mount of it may be writable.
    pub(super) writable: bool,
}

impl Kernel {
    /// The mounts in /proc/self/mountinfo. Format, by proc_pid_mountinfo(5): id, parent, major:minor, root, mount
    /// point, options, ... - type, source, options of the file system.
    pub(super) fn mounts(&self) -> Vec<Mount> {
        let text = fs::read(self.proc.join("self/mountinfo")).unwrap_or_default();
        text.split(|byte| *byte == b'\n').filter_map(parse_mount).collect()
    }

    /// The mount that holds `path`, which must be free of links.
    pub(super) fn mount_of(&self, path: &Path) -> Option<Mount> {
        // Of several mounts on one point, the last covers the others; `max_by_key` returns the last.
        self.mounts()
            .into_iter()
            .filter(|mount| path.starts_with(&mount.point))
            .max_by_key(|mount| mount.point.as_os_str().len())
    }

    /// The type of a mounted file system by the device number of its files, for example `ext4`. `None` for those that
    /// have a number of their own for each subvolume (btrfs).
    pub fn file_system(&self, device: u64) -> Option<String> {
        self.mounts().into_iter().find(|mount| mount.device == device).map(|mount| mount.kind)
    }

    pub(super) fn swaps(&self) -> Vec<PathBuf> {
        let text = fs::read(self.proc.join("swaps")).unwrap_or_default();
        let lines = text.split(|byte| *byte == b'\n').skip(1);
        lines
            .filter_map(|line| line.split(u8::is_ascii_whitespace).next())
            .filter(|path| !path.is_empty())
            .map(unescape)
            .collect()
    }
}

pub(super) fn parse_mount(line: &[u8]) -> Option<Mount> {
    let split = line.windows(3).position(|part| part == b" - ")?;
    let (mount, system) = (&line[..split], &line[split + 3..]);
    let mut fields = mount.split(|byte| *byte == b' ').skip(2);
    let device = parse_number(std::str::from_utf8(fields.next()?).ok()?)?;
    let point = unescape(fields.nth(1)?);
    let mut system = system.split(|byte| *byte == b' ');
    let kind = String::from_utf8_lossy(system.next()?).into_owned();
    let source = unescape(system.next()?);
    let writable = system.next()?.split(|byte| *byte == b',').any(|option| option == b"rw");
    Some(Mount { device, point, kind, source, writable })
}

/// Decodes `\040` and the other octal escapes of mountinfo and swaps.
pub(super) fn unescape(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        let octal = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if *first == b'\\' => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    std::ffi::OsString::from_vec(bytes).into()
}
