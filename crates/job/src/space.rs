//! The file of the destination: whether it is to be made, with which size, and whether its file system has the space.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use block::{Endpoint, NewFile};

use crate::estimate::{EXTENTS_MAX, EXTENTS_TIME_MAX};
use crate::{Address, Choice, Ending, Failure, Job, Local, units};

/// File systems that cannot share blocks between files: a copy to another file of theirs takes space.
const NEVER_SHARING: [i64; 3] = [libc::EXT4_SUPER_MAGIC, libc::TMPFS_MAGIC, libc::MSDOS_SUPER_MAGIC];

/// What stands at the path of a destination.
pub(crate) enum Standing {
    /// No local path, or something that is there.
    There,
    /// Nothing, and a file can be made.
    Absent,
}

/// What stands at the destination's path. A failure where nothing is there and no file can or may be made.
pub(crate) fn standing(destination: &dyn Address, is_explicit: bool) -> Result<Standing, Failure> {
    let Some(path) = destination.path() else { return Ok(Standing::There) };
    match std::fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        _ => return Ok(Standing::There),
    }
    let absent = |cause: String| Failure::refused("copy to", destination.text(), cause);
    if path.as_os_str().as_encoded_bytes().ends_with(b"/") {
        let cause = "it does not exist, and a name with / at its end is that of a directory";
        return Err(absent(cause.to_owned())
            .hint("name a file: the path without the / at its end, or one in a directory that exists"));
    }
    let directory = directory(path);
    if path.symlink_metadata().is_ok() {
        return Err(absent("it is a symbolic link to what does not exist".to_owned())
            .hint("check what the link leads to"));
    }
    if block::is_among_devices(path) {
        let cause = "it does not exist, and no plain file is made under /dev";
        return Err(absent(cause.to_owned()).hint("check the name of the device"));
    }
    if !directory.is_dir() {
        let failure = absent(format!("its directory {} does not exist", directory.display()));
        let ending = if is_explicit { Ending::Failed } else { Ending::Refused };
        return Err(Failure { ending, ..failure }.hint("make the directory, or check the name"));
    }
    if destination.spec().flag("ro") == Ok(true) {
        return Err(absent("it does not exist".to_owned()).hint("check the name"));
    }
    Ok(Standing::Absent)
}

fn directory(path: &Path) -> PathBuf {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new(".")).to_owned()
}

/// Bytes of a new destination: its option `size=`, or what the copied range needs.
pub(crate) fn size_of_new(job: &Job<'_>, source_bytes: u64) -> Result<u64, Failure> {
    let destination = &job.destination;
    let size = destination.spec().size("size");
    let size = size.map_err(|error| Failure::usage("understand the endpoint", destination.text(), error))?;
    Ok(size.unwrap_or_else(|| u64::try_from(needed(job, source_bytes)).unwrap_or(u64::MAX)))
}

/// Bytes that the destination must have for the range.
pub(crate) fn needed(job: &Job<'_>, source_bytes: u64) -> u128 {
    let plan = &job.request.plan;
    let bytes = plan.size.unwrap_or(source_bytes.saturating_sub(plan.src_offset));
    u128::from(plan.dst_offset) + u128::from(bytes)
}

/// The destination with the size that the range needs, if it is a file that is shorter and has the option `grow` without
/// `size=`. To open it makes the file larger.
pub(crate) fn grown(job: &Job<'_>, source_bytes: u64) -> Option<Local> {
    let destination = &job.destination;
    let path = destination.path().filter(|path| path.is_file())?;
    let is_asked = destination.spec().flag("grow") == Ok(true) && destination.spec().get("size").is_none();
    let needed = u64::try_from(needed(job, source_bytes)).ok().filter(|_| is_asked)?;
    if std::fs::metadata(path).ok()?.len() >= needed {
        return None;
    }
    let mut spec = destination.spec().clone();
    spec.options.push(("size".to_owned(), Some(needed.to_string())));
    Some(Local::named(destination.text(), spec))
}

/// The size to which the copy enlarges the file of the destination, by `grow` with or without `size=`; `None`: it does not.
pub(crate) fn larger(job: &Job<'_>, source_bytes: u64) -> Result<Option<u64>, Failure> {
    let destination = &*job.destination;
    let usage = |error| Failure::usage("understand the endpoint", destination.text(), error);
    let size = destination.spec().size("size").map_err(usage)?;
    let is_shorter = |path: &Path| std::fs::metadata(path).is_ok_and(|file| Some(file.len()) < size);
    if destination.spec().flag("grow").map_err(usage)? && destination.path().is_some_and(is_shorter) {
        return Ok(size);
    }
    Ok(grown(job, source_bytes).and_then(|grown| grown.spec().size("size").ok().flatten()))
}

/// Makes the file of the destination.
pub(crate) fn create(destination: &dyn Address, size: u64) -> Result<NewFile, Failure> {
    let path = destination.path().expect("only a path can be absent");
    NewFile::create(path, size).map_err(|error| destination.failed("make the file", &error))
}

/// The shortage of space for a copy to a file of this machine, as a refusal where it is certain and as a warning where the
/// source may hold zeroes that take none. `None`: it fits, as far as is known.
pub(crate) fn shortage(job: &Job<'_>, source: &mut dyn Endpoint) -> Option<Result<Failure, String>> {
    let (request, destination) = (job.request, &job.destination);
    let path = destination.path().filter(|_| !request.allow_space)?;
    let there = std::fs::metadata(path).ok();
    if there.as_ref().is_some_and(|there| !there.is_file()) || shares_blocks(job, path) {
        return None;
    }
    let free = block::free_bytes(path).ok()?;
    let allocated = there.map_or(0, |there| there.blocks() * 512);
    let size = source.capability().size_bytes;
    let start = request.plan.src_offset.min(size);
    let bytes = request.plan.size.unwrap_or(u64::MAX).min(size - start);
    let data = known_data(source, [start, start + bytes], request.plan.sparse);
    if data <= free.saturating_add(allocated) {
        return None;
    }
    let has = format!("{} has {} free", directory(path).display(), units::bytes(free));
    let cause = match allocated {
        0 => {
            format!("its file system is too small: {has}, and the source has {} of data", units::bytes(data))
        }
        _ => format!(
            "its file system is too small: {has}, the file has {}, and the source has {} of data",
            units::bytes(allocated),
            units::bytes(data)
        ),
    };
    let is_certain = !request.plan.sparse || job.source.path().is_some_and(Path::is_file);
    if !is_certain {
        return Some(Err(format!("{}: {cause}, or less if some of it is zeroes", destination.text())));
    }
    let hint = "free space; --allow space if the file system compresses, or much of the data is zeroes";
    Some(Ok(Failure::refused("copy to", destination.text(), cause).hint(hint)))
}

/// Whether the copy may share the blocks of its source (reflink) instead of taking space.
fn shares_blocks(job: &Job<'_>, path: &Path) -> bool {
    let of = |path: &Path| std::fs::metadata(path).map(|there| there.dev()).ok();
    let Some(source) = job.source.path().filter(|_| job.request.offload != Choice::Off) else { return false };
    let directory = directory(path);
    let kind = rustix::fs::statfs(&directory).map(|found| found.f_type);
    let never =
        kind.is_ok_and(|kind| NEVER_SHARING.iter().any(|magic| i128::from(*magic) == i128::from(kind)));
    !never && of(source).is_some() && of(source) == of(&directory)
}

/// Bytes of a range of the source that it reports as data, as far as the bounds of the query reach.
fn known_data(source: &mut dyn Endpoint, [start, end]: [u64; 2], sparse: bool) -> u64 {
    if !sparse {
        return end - start;
    }
    let (mut at, mut data, began) = (start, 0, Instant::now());
    for _ in 0..EXTENTS_MAX {
        if at >= end || began.elapsed() >= EXTENTS_TIME_MAX {
            break;
        }
        let extent = source.extent(at);
        let stop = extent.end.clamp(at + 1, end);
        data += if extent.data { stop - at } else { 0 };
        at = stop;
    }
    data
}
