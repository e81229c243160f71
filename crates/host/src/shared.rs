//! Ranges that two files of one file system share: extents that lie in the same place of the same disk.
//!
//! Two files that share a block have the same data there, whatever their history: it suffices to read the extents of
//! both after a sync while no program writes to either. An extent that the kernel does not clearly report as shared
//! counts as not shared. Read Documentation/filesystems/fiemap.rst before touching the flags.

use std::fs::File;
use std::io::{Error, Result};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use thiserror::Error as ThisError;

/// Maximum number of extents read per file; the rest of the file counts as not shared.
const EXTENTS_MAX: usize = 4 << 20;
const BATCH: usize = 1024;

#[derive(Debug, ThisError)]
pub enum SharedError {
    #[error("{0}")]
    Io(#[from] Error),
    /// The file system does not report shared extents, the files lie in two file systems, or one is being written.
    #[error("{0}")]
    Unknown(&'static str),
}

/// The ranges of `new` whose bytes may differ from the same ranges of `old`, in ascending order and not adjacent.
///
/// Works for files on xfs or btrfs of which one is a clone (reflink) of the other or in a snapshot of it. Both are
/// synced first.
pub fn unshared(new: &Path, old: &Path) -> std::result::Result<Vec<Range<u64>>, SharedError> {
    let files = [File::open(new)?, File::open(old)?];
    let before = [state(&files[0])?, state(&files[1])?];
    let systems = [FileSystem::of(&files[0])?, FileSystem::of(&files[1])?];
    if systems[0].is_none() || systems[1].is_none() {
        return Err(SharedError::Unknown("only xfs and btrfs report what two files share"));
    }
    if systems[0] != systems[1] {
        return Err(SharedError::Unknown("the two lie in different file systems, and share nothing"));
    }
    let sizes = [files[0].metadata()?.len(), files[1].metadata()?.len()];
    let size = sizes[0].min(sizes[1]);
    let extents = [extents(&files[0], size)?, extents(&files[1], size)?];
    if before != [state(&files[0])?, state(&files[1])?] {
        return Err(SharedError::Unknown("one of the two is written to at this moment"));
    }
    let mut changed = difference(&extents[0], &extents[1], size);
    // The range after the end of the old file is new.
    add(&mut changed, size..sizes[0]);
    Ok(changed)
}

/// Size and times of a file, which change with every write.
fn state(file: &File) -> Result<[i64; 5]> {
    let metadata = file.metadata()?;
    let size = metadata.len() as i64;
    Ok([metadata.mtime(), metadata.mtime_nsec(), metadata.ctime(), metadata.ctime_nsec(), size])
}

/// Identity of the address space of physical offsets, which are comparable only if it is equal.
#[derive(Debug, PartialEq, Eq)]
enum FileSystem {
    Xfs(u64),
    /// The UUID of the file system: each subvolume has a device number of its own.
    Btrfs([u8; 16]),
}

impl FileSystem {
    /// `None` if the file system does not report shared extents, or reports ambiguous offsets.
    fn of(file: &File) -> Result<Option<Self>> {
        match rustix::fs::fstatfs(file)?.f_type {
            libc::XFS_SUPER_MAGIC if !is_realtime(file)? => Ok(Some(Self::Xfs(file.metadata()?.dev()))),
            libc::BTRFS_SUPER_MAGIC => Ok(Some(Self::Btrfs(btrfs_uuid(file)?))),
            _ => Ok(None),
        }
    }
}

/// Whether the file lies in the realtime section of xfs, whose physical offsets start at zero again.
fn is_realtime(file: &File) -> Result<bool> {
    /// `_IOR('X', 31, struct fsxattr)`, linux/fs.h.
    const FS_IOC_FSGETXATTR: libc::Ioctl = 0x801c_581f;
    const FS_XFLAG_REALTIME: u32 = 1;
    // struct fsxattr: fsx_xflags and six more words.
    let mut words = [0u32; 7];
    // SAFETY: a plain system call on a live descriptor, which writes 28 bytes if it writes any.
    if unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FSGETXATTR, words.as_mut_ptr()) } != 0 {
        return Err(Error::last_os_error());
    }
    Ok(words[0] & FS_XFLAG_REALTIME != 0)
}

fn btrfs_uuid(file: &File) -> Result<[u8; 16]> {
    /// `_IOR(0x94, 31, struct btrfs_ioctl_fs_info_args)`, linux/btrfs.h.
    const BTRFS_IOC_FS_INFO: libc::Ioctl = 0x8400_941f;
    // Two words of eight bytes, then the UUID; 1024 bytes in total.
    let mut words = [0u64; 128];
    // SAFETY: a plain system call on a live descriptor, which writes 1024 bytes if it writes any.
    if unsafe { libc::ioctl(file.as_raw_fd(), BTRFS_IOC_FS_INFO, words.as_mut_ptr()) } != 0 {
        return Err(Error::last_os_error());
    }
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&words[2].to_ne_bytes());
    uuid[8..].copy_from_slice(&words[3].to_ne_bytes());
    Ok(uuid)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Stored at this physical offset, and shared with another file.
    Shared(u64),
    /// Reads as zeroes: not allocated, or allocated and never written.
    Zero,
    Unknown,
}

/// A range of a file. A gap between two extents is a hole.
#[derive(Clone, Copy, Debug)]
struct Extent {
    start: u64,
    end: u64,
    place: Place,
}

/// `struct fiemap_extent`, linux/fiemap.h.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    reserved_more: [u32; 3],
}

/// `struct fiemap`, with space for `BATCH` extents.
#[repr(C)]
struct Fiemap {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [RawExtent; BATCH],
}

const LAST: u32 = 0x1;
const UNWRITTEN: u32 = 0x800;
const MERGED: u32 = 0x1000;
const SHARED: u32 = 0x2000;

impl RawExtent {
    fn place(&self) -> Place {
        // With any other flag (delayed, encoded, inline, not aligned) the physical offset is not valid.
        match self.flags & !(LAST | MERGED) {
            SHARED => Place::Shared(self.physical),
            flags if flags & !SHARED == UNWRITTEN => Place::Zero,
            _ => Place::Unknown,
        }
    }
}

/// Syncs the file, and returns the extents of its first `size` bytes.
fn extents(file: &File, size: u64) -> Result<Vec<Extent>> {
    /// `_IOWR('f', 11, struct fiemap)`, linux/fs.h.
    const FS_IOC_FIEMAP: libc::Ioctl = 0xc020_660b;
    const FIEMAP_FLAG_SYNC: u32 = 1;
    file.sync_all()?;
    let none =
        RawExtent { logical: 0, physical: 0, length: 0, reserved: [0; 2], flags: 0, reserved_more: [0; 3] };
    let mut answer = Box::new(Fiemap {
        start: 0,
        length: 0,
        flags: FIEMAP_FLAG_SYNC,
        mapped: 0,
        count: BATCH as u32,
        reserved: 0,
        extents: [none; BATCH],
    });
    let (mut known, mut at) = (Vec::new(), 0);
    while at < size {
        (answer.start, answer.length, answer.mapped) = (at, size - at, 0);
        let into: *mut Fiemap = &raw mut *answer;
        // SAFETY: a plain system call on a live descriptor, which writes the head of the structure and at most `count`
        // extents, for which the structure has space.
        if unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP, into) } != 0 {
            return Err(Error::last_os_error());
        }
        let before = at;
        let mut is_last = answer.mapped == 0;
        for raw in &answer.extents[..(answer.mapped as usize).min(BATCH)] {
            at = raw.logical.saturating_add(raw.length);
            known.push(Extent { start: raw.logical, end: at, place: raw.place() });
            is_last |= raw.flags & LAST != 0;
        }
        if is_last {
            break;
        }
        if at <= before || known.len() >= EXTENTS_MAX {
            known.push(Extent { start: at, end: size, place: Place::Unknown });
            break;
        }
    }
    Ok(known)
}

struct Walk<'a> {
    extents: &'a [Extent],
}

impl Walk<'_> {
    /// The state at offset `at`, and the end of the range with this state.
    fn at(&mut self, at: u64) -> (Place, u64) {
        while self.extents.first().is_some_and(|extent| extent.end <= at) {
            self.extents = &self.extents[1..];
        }
        let Some(extent) = self.extents.first() else { return (Place::Zero, u64::MAX) };
        if at < extent.start {
            return (Place::Zero, extent.start);
        }
        let place = match extent.place {
            Place::Shared(physical) => Place::Shared(physical + (at - extent.start)),
            other => other,
        };
        (place, extent.end)
    }
}

/// The ranges within the first `size` bytes that two files do not share. Overlapping or unordered extents are not
/// trusted: then the whole range counts as not shared.
fn difference(new: &[Extent], old: &[Extent], size: u64) -> Vec<Range<u64>> {
    let is_ordered = |extents: &[Extent]| extents.windows(2).all(|two| two[0].end <= two[1].start);
    if !is_ordered(new) || !is_ordered(old) {
        return Vec::from_iter((size > 0).then_some(0..size));
    }
    let (mut walks, mut at, mut changed) = ([Walk { extents: new }, Walk { extents: old }], 0, Vec::new());
    while at < size {
        let [(new, new_end), (old, old_end)] = walks.each_mut().map(|walk| walk.at(at));
        let end = new_end.min(old_end).min(size);
        if new != old || new == Place::Unknown {
            add(&mut changed, at..end);
        }
        at = end;
    }
    changed
}

/// Appends a range; merges it with the last one if they are adjacent.
pub(crate) fn add(ranges: &mut Vec<Range<u64>>, range: Range<u64>) {
    match ranges.last_mut() {
        _ if range.is_empty() => {}
        Some(last) if last.end == range.start => last.end = range.end,
        _ => ranges.push(range),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: u64 = 4096;

    fn extent(start: u64, end: u64, place: Place) -> Extent {
        Extent { start: start * K, end: end * K, place }
    }

    #[test]
    fn only_the_same_place_is_the_same() {
        let old = [
            extent(0, 4, Place::Shared(100 * K)),
            extent(4, 6, Place::Shared(50 * K)),
            extent(8, 10, Place::Zero),
            extent(12, 14, Place::Unknown),
        ];
        let same = |new: &[Extent]| difference(new, &old, 20 * K);
        assert_eq!(same(&old), vec![12 * K..14 * K; 1], "what is unknown is never the same");
        let new = [
            // Split in two, the second half moved.
            extent(0, 2, Place::Shared(100 * K)),
            extent(2, 4, Place::Shared(103 * K)),
            extent(4, 5, Place::Shared(50 * K)),
            // A punched range; then a hole that was written.
            extent(6, 7, Place::Shared(7 * K)),
            extent(12, 14, Place::Zero),
            extent(19, 40, Place::Unknown),
        ];
        assert_eq!(same(&new), [2 * K..4 * K, 5 * K..7 * K, 12 * K..14 * K, 19 * K..20 * K]);
        assert_eq!(same(&[]), [0..6 * K, 12 * K..14 * K], "an unwritten extent is a hole");
    }

    #[test]
    fn extents_out_of_order_are_believed_nothing() {
        let odd = [extent(0, 4, Place::Shared(0)), extent(3, 5, Place::Shared(3 * K))];
        assert_eq!(difference(&odd, &odd, 10 * K), vec![0..10 * K; 1]);
        assert_eq!(difference(&odd, &odd, 0), []);
    }

    #[test]
    fn flags_that_make_an_address_none() {
        let raw = |flags| RawExtent {
            logical: 0,
            physical: 9 * K,
            length: K,
            reserved: [0; 2],
            flags,
            reserved_more: [0; 3],
        };
        for flags in [SHARED, SHARED | LAST, SHARED | LAST | MERGED] {
            assert_eq!(raw(flags).place(), Place::Shared(9 * K), "{flags:#x}");
        }
        for flags in [UNWRITTEN, UNWRITTEN | SHARED | LAST] {
            assert_eq!(raw(flags).place(), Place::Zero, "{flags:#x}");
        }
        // Not shared at all; then unknown, delayed, encoded, encrypted, not aligned, inline, packed, and a flag of the
        // future.
        assert_eq!(raw(LAST).place(), Place::Unknown);
        for flag in [0x2, 0x4, 0x8, 0x80, 0x100, 0x200, 0x400, 0x4000] {
            assert_eq!(raw(flag | SHARED).place(), Place::Unknown, "{flag:#x}");
            assert_eq!(raw(flag | UNWRITTEN).place(), Place::Unknown, "{flag:#x}");
        }
    }

    #[test]
    fn a_file_system_that_does_not_tell_is_no_answer() {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let [new, old] = ["new", "old"].map(|name| directory.path().join(name));
        std::fs::write(&new, [1; 5000]).unwrap();
        std::fs::write(&old, [1; 5000]).unwrap();
        assert!(matches!(unshared(&new, &old), Err(SharedError::Unknown(_))));
        assert!(matches!(unshared(&new, &directory.path().join("none")), Err(SharedError::Io(_))));
    }
}
