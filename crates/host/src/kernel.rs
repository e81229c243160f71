//! Reads /sys and /proc: files with one value, directories of names.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

/// Maximum length of a value; sysfs limits each to one page.
const VALUE_BYTES_MAX: u64 = 4096;
const NAMES_MAX: usize = 1 << 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Node {
    Device(u64),
    /// File, by the device number of its file system and its inode.
    File(u64, u64),
}

impl Node {
    /// The node at `path`, links followed; for a generic device, the disk that it controls.
    pub fn of(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        let generic = Kernel::default().generic_at(path).and_then(|generic| generic.block);
        Some(generic.map_or_else(|| Self::of_metadata(&metadata), Self::Device))
    }

    pub fn of_metadata(metadata: &fs::Metadata) -> Self {
        match metadata.file_type().is_block_device() {
            true => Self::Device(metadata.rdev()),
            false => Self::File(metadata.dev(), metadata.ino()),
        }
    }
}

/// A device number in the kernel's format: `8:1`.
pub fn number_text(device: u64) -> String {
    format!("{}:{}", libc::major(device), libc::minor(device))
}

pub(crate) fn parse_number(text: &str) -> Option<u64> {
    let (major, minor) = text.trim().split_once(':')?;
    Some(libc::makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// The roots of sysfs and procfs. Tests use directories of their own.
#[derive(Clone, Debug)]
pub struct Kernel {
    pub(super) sys: PathBuf,
    pub(super) proc: PathBuf,
}

impl Default for Kernel {
    fn default() -> Self {
        Self { sys: "/sys".into(), proc: "/proc".into() }
    }
}

impl Kernel {
    /// The sysfs directory of a device. That of a partition is inside its disk's.
    pub(super) fn directory(&self, device: u64) -> Option<PathBuf> {
        let links = self.sys.join("dev/block");
        let mut dir = links.clone();
        // The links lead to no other link: one system call, where `canonicalize` takes one a component.
        for component in fs::read_link(links.join(number_text(device))).ok()?.components() {
            match component {
                Component::ParentDir => drop(dir.pop()),
                Component::Normal(name) => dir.push(name),
                Component::RootDir => dir = PathBuf::from("/"),
                _ => {}
            }
        }
        dir.is_dir().then_some(dir)
    }

    pub(super) fn partitions(&self, device: u64) -> Vec<u64> {
        let Some(dir) = self.directory(device) else { return Vec::new() };
        // A partition has the name of its disk and a number.
        let disk = dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        names(&dir)
            .into_iter()
            .filter(|name| name.starts_with(&disk))
            .map(|name| dir.join(name))
            .filter(|dir| dir.join("partition").exists())
            .filter_map(|dir| number_in(&dir))
            .collect()
    }

    /// The path under /dev by the kernel's name; the device number if sysfs does not show the device.
    pub fn node_path(&self, device: u64) -> String {
        match self.directory(device).as_deref().and_then(node_name) {
            Some(name) => format!("/dev/{name}"),
            None => number_text(device),
        }
    }
}

pub(super) fn node_name(dir: &Path) -> Option<String> {
    Some(dir.file_name()?.to_string_lossy().replace('!', "/"))
}

/// The device number in the file `dev` of a device's directory.
pub(super) fn number_in(dir: &Path) -> Option<u64> {
    parse_number(&text(&dir.join("dev"))?)
}

pub(super) fn text(path: &Path) -> Option<String> {
    Some(String::from_utf8_lossy(&bytes(path)?).trim().to_owned())
}

pub(super) fn value<T: FromStr>(path: &Path) -> Option<T> {
    text(path)?.parse().ok()
}

/// A path, which may contain any byte except a newline at the end.
pub(super) fn path_in(path: &Path) -> Option<PathBuf> {
    let mut bytes = bytes(path)?;
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    (!bytes.is_empty()).then(|| OsString::from_vec(bytes).into())
}

fn bytes(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(VALUE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Names in a directory, sorted; empty if the directory cannot be read.
pub(super) fn names(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    let mut names: Vec<String> = entries.flatten().take(NAMES_MAX).map(name).collect();
    names.sort();
    names
}
