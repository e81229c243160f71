//! Regular files and block devices.
//!
//! Two descriptors: one with O_DIRECT for aligned requests, one through the page cache for the others (the unaligned
//! tail of a file, or everything where O_DIRECT is not possible). They never share a page: see
//! [`OpenOptions::request_alignment`].

mod create;
mod endpoint;
mod mapped;
mod probe;

use std::fs::{File, Metadata, OpenOptions as FileOptions};
use std::io::Error;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use area::Pool;
use io::{Handle, Io};

use crate::{Capability, Endpoint, Identity, Medium, OpenError, OpenOptions, Spec};
pub use create::{NewFile, free_bytes, is_among_devices};
use endpoint::{FileEndpoint, Handles};
use host::lock;
use host::{Devices, Entry, Kernel, Node, Place, lasting_name};
use mapped::{Mapped, Mapping};

#[derive(Debug)]
pub struct FileMedium {
    path: PathBuf,
    buffered: File,
    direct: Option<File>,
    is_device: bool,
    identity: Identity,
    capability: Capability,
    size_is_fixed: bool,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// A flush failed: acknowledged writes may be lost, so writes and flushes fail until the file is opened again.
    flush_failed: AtomicBool,
    /// Number of ranges punched so far; an extent recorded before the last of them may be outdated.
    punched: AtomicU64,
    /// The data extent that any thread found last: a target that copies attaches a new endpoint for each command.
    data_extent: Mutex<Option<DataExtent>>,
    /// The device when it was opened; `None` for a file, or if sysfs does not show the device.
    opened: Option<Entry>,
    disks: Vec<u64>,
    /// A file before and after the probes of [`probe::facts`], which may set its times although no byte has changed.
    probed: Option<[Metadata; 2]>,
    /// Present size in bytes, if it differs from the size at opening; otherwise 0.
    resized: AtomicU64,
    /// Mapping of a writable file in memory. Not of a read-only one: an access to a hole would allocate it.
    mapping: OnceLock<Option<Arc<Mapping>>>,
}

/// A data extent. It stays data until a range is punched; on some file systems (tmpfs) the search for its end walks
/// every page. If another process punches a hole, its zeroes are read and copied: correct, only slower.
#[derive(Clone, Debug)]
struct DataExtent {
    range: Range<u64>,
    /// `Shared::punched` when the extent was found.
    punched: u64,
}

fn failed(path: &Path, verb: &str, error: &Error) -> OpenError {
    let text = format!("{verb} {}: {error}", path.display());
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR) => OpenError::Missing(text),
        Some(libc::EACCES | libc::EPERM | libc::EROFS) => OpenError::Denied(text),
        Some(libc::EBUSY) => OpenError::Refused(format!(
            "{text}: it is mounted or held by another program; unmount it or end that program first"
        )),
        _ => OpenError::Failed(text),
    }
}

/// Refuses a name that leads to neither a file nor a block device: the open of a FIFO would wait for its other end. The
/// name may lead elsewhere at the time of the open, so all further checks use the open descriptor.
fn check_named(path: &Path, writable: bool) -> Result<(), OpenError> {
    let metadata = std::fs::metadata(path).map_err(|error| match failed(path, "opening", &error) {
        OpenError::Missing(text) if writable => {
            OpenError::Missing(format!("{text}; to make a new file say {},create,size=SIZE", path.display()))
        }
        other => other,
    });
    check_kind(path, &metadata?).map(|_| ())
}

fn size_within(path: &Path, size: Option<u64>, size_bytes: u64) -> Result<u64, OpenError> {
    match size {
        Some(size) if size > size_bytes => {
            let path = path.display();
            let text = format!("{path} has {size_bytes} bytes, not {size}; say grow to make it larger");
            Err(OpenError::Usage(text))
        }
        size => Ok(size.unwrap_or(size_bytes)),
    }
}

fn identity_of(node: Node, device: u64) -> Identity {
    match Kernel::default().place(node) {
        Place { node: Node::File(device, inode), bytes } => {
            Identity::File { device, inode, offset: bytes.start }
        }
        _ => Identity::Device { device },
    }
}

impl FileMedium {
    /// Opens `path`. Options, described in CONTRACT: `ro`, `create` with `size`, `grow`, `format=raw`, `block-size`,
    /// `physical-block`.
    pub fn open(path: &Path, spec: &Spec, options: &OpenOptions) -> Result<Self, OpenError> {
        let writable = options.writable && !spec.flag("ro")?;
        let size = spec.size("size")?;
        if spec.flag("create")? {
            create(path, size, options.writable)?;
        }
        check_named(path, writable)?;
        let open = |flags: i32| {
            FileOptions::new().read(true).write(writable).custom_flags(flags | libc::O_CLOEXEC).open(path)
        };
        // The kernel ignores O_EXCL for a regular file.
        let exclusive = if writable { libc::O_EXCL } else { 0 };
        let is_busy = |error: &Error| error.raw_os_error() == Some(libc::EBUSY);
        let buffered = match open(exclusive) {
            Err(error) if options.allow_in_use && is_busy(&error) => open(0),
            opened => opened,
        };
        let buffered = buffered.map_err(|error| failed(path, "opening", &error))?;
        let metadata = buffered.metadata().map_err(|error| failed(path, "inspecting", &error))?;
        let is_device = check_kind(path, &metadata)?;
        if !is_device {
            lock_file(path, &buffered, writable, options.allow_in_use)?;
        }
        if spec.get("format") != Some("raw") {
            probe::refuse_other_formats(path, &buffered)?;
        }
        if let Some(size) = size.filter(|size| !is_device && *size > metadata.len())
            && spec.flag("grow")?
        {
            buffered.set_len(size).map_err(|error| failed(path, "growing", &error))?;
        }
        let opened = if is_device { Devices::shared().open(metadata.rdev()) } else { None };
        let before = buffered.metadata();
        let facts =
            probe::facts(&buffered, opened.as_ref()).map_err(|error| failed(path, "inspecting", &error))?;
        let probed = before.ok().zip(buffered.metadata().ok()).map(|(before, after)| [before, after]);
        let limits = facts.limits;
        let size_bytes = size_within(path, size, facts.size_bytes)?;
        let block_size = spec.block_size("block-size")?.unwrap_or(limits.logical_block_size);
        let physical = spec.block_size("physical-block")?.unwrap_or(limits.physical_block_size);
        let direct = match facts.direct_alignment {
            Some(alignment) if alignment <= options.request_alignment => open(libc::O_DIRECT).ok(),
            _ => None,
        };
        let exchanged = |what: &str| {
            let text = format!("{what} while it was opened; look which one it is now");
            OpenError::Failed(format!("{}: {text}", path.display()))
        };
        let is_other = |other: &File| !other.metadata().is_ok_and(|other| is_same(&metadata, &other));
        if direct.as_ref().is_some_and(is_other) {
            return Err(exchanged("its name was given to another file"));
        }
        let capability = Capability {
            size_bytes,
            block_size,
            physical_block_size: physical.max(block_size),
            granularity: if is_device { limits.logical_block_size } else { 1 },
            alignment: facts.direct_alignment.unwrap_or(1),
            max_transfer_bytes: Pool::AREA_BYTES_MAX as u32,
            optimal_transfer_bytes: limits.optimal_transfer_bytes(Pool::large_page_bytes()),
            queue_depth: limits.queue_depth,
            read_only: !writable,
            // By the locks of a writer, or by O_EXCL.
            sole_writer: writable && !options.allow_in_use,
            discard: writable && facts.discard,
            write_zeroes: writable && facts.write_zeroes,
            volatile_cache: true,
            rotational: limits.rotational,
        };
        let node = Node::of_metadata(&metadata);
        let identity = identity_of(node, metadata.rdev());
        if let Some(entry) = &opened
            && std::iter::once(&buffered).chain(&direct).any(|file| !probe::is_still(entry, file))
        {
            return Err(exchanged("another disk took over its name"));
        }
        let disks = Kernel::default().disks(node, path).into_iter().collect();
        let shared = Arc::new(Shared { opened, disks, probed, ..Shared::default() });
        Ok(Self {
            path: path.to_owned(),
            buffered,
            direct,
            is_device,
            identity,
            capability,
            size_is_fixed: size.is_some(),
            shared,
        })
    }
}

/// Locks a regular file. With `allow_in_use` a lock that another program has is done without.
fn lock_file(path: &Path, file: &File, writable: bool, allow_in_use: bool) -> Result<(), OpenError> {
    if !allow_in_use {
        take_lock(path, file, writable)?;
    } else if writable {
        // Beside another writer it still shows to third programs.
        let _ = lock::lock(file.as_fd(), true);
    }
    Ok(())
}

impl Shared {
    /// The metadata `now` of a file; those before the probes if only the probes have changed them.
    fn unprobed<'a>(&'a self, now: &'a Metadata) -> &'a Metadata {
        let key = |of: &Metadata| (of.len(), of.mtime(), of.mtime_nsec(), of.ctime(), of.ctime_nsec());
        match &self.probed {
            Some([before, after]) if key(after) == key(now) => before,
            _ => now,
        }
    }

    /// Present size in bytes; `opened`: the size when the file was opened.
    fn size_bytes(&self, opened: u64) -> u64 {
        match self.resized.load(Ordering::Acquire) {
            0 => opened,
            size_bytes => size_bytes,
        }
    }
}

impl FileMedium {
    /// Opens the same file (even if its name is gone) with an open file description of its own.
    fn reopen(&self) -> Result<File, Error> {
        let path = format!("/proc/self/fd/{}", self.buffered.as_raw_fd());
        FileOptions::new().read(true).write(!self.capability.read_only).open(path)
    }

    pub(crate) fn regular_file(&self) -> Option<&File> {
        (!self.is_device).then_some(&self.buffered)
    }
}

/// True for a block device; an error for anything else than a block device or a regular file.
fn check_kind(path: &Path, metadata: &Metadata) -> Result<bool, OpenError> {
    let is_device = metadata.file_type().is_block_device();
    if !is_device && !metadata.is_file() {
        let kind = metadata.file_type();
        let what = match () {
            () if kind.is_dir() => "is a directory; name a file in it",
            () if kind.is_char_device() => {
                "is a character device; mem:SIZE, null:SIZE and pattern:SIZE are memory, nothing and made-up data"
            }
            () if kind.is_socket() => "is a socket; an NBD server behind it is nbd+unix:///NAME?socket=PATH",
            () => "is a FIFO; only `copy` reads a pipe, from its standard input: -",
        };
        return Err(OpenError::Usage(format!(
            "{} {what} (neither a regular file nor a block device)",
            path.display()
        )));
    }
    Ok(is_device)
}

/// Whether two descriptors belong to one file, or to one device under any name.
fn is_same(one: &Metadata, other: &Metadata) -> bool {
    match one.file_type().is_block_device() {
        true => other.file_type().is_block_device() && one.rdev() == other.rdev(),
        false => (one.dev(), one.ino()) == (other.dev(), other.ino()),
    }
}

/// [`NewFile::create`] for the option `create` with its `size`.
fn create(path: &Path, size: Option<u64>, writable: bool) -> Result<(), OpenError> {
    if !writable {
        let text = format!("{}: create makes an empty file, and this one is only read", path.display());
        return Err(OpenError::Usage(text));
    }
    let size = size.ok_or_else(|| {
        OpenError::Usage(format!("{}: create needs a size: {0},create,size=SIZE", path.display()))
    })?;
    NewFile::create(path, size).map(NewFile::keep)
}

fn take_lock(path: &Path, file: &File, writable: bool) -> Result<(), OpenError> {
    match lock::of_the_living(|| lock::lock(file.as_fd(), writable)) {
        Ok(true) => Ok(()),
        Ok(false) => Err(OpenError::Refused(format!(
            "{} is locked by another program (QEMU, or another hikyaku); end that program first",
            path.display()
        ))),
        Err(error) => Err(failed(path, "locking", &error)),
    }
}

impl Medium for FileMedium {
    fn attach(&self, io: &mut Io) -> Result<Box<dyn Endpoint>, OpenError> {
        let again = |file: &File| -> Result<Handle, OpenError> {
            let file = file.try_clone().map_err(|error| failed(&self.path, "opening", &error))?;
            Ok(Rc::new(file.into()))
        };
        let in_memory = !self.is_device && probe::is_in_memory(&self.buffered);
        let size_bytes = self.capability.size_bytes;
        let mapping = self.shared.mapping.get_or_init(|| {
            let is_mappable = in_memory && !self.capability.read_only && size_bytes > 0;
            is_mappable.then(|| Mapping::new(&self.buffered, size_bytes).ok().map(Arc::new)).flatten()
        });
        let buffered = again(&self.buffered)?;
        let mapped = mapping
            .as_ref()
            .map(|mapping| Mapped::new(Arc::clone(mapping), Rc::clone(&buffered), size_bytes));
        let handles = Handles {
            buffered,
            direct: self.direct.as_ref().map(again).transpose()?,
            sync: self.reopen().map(|file| Rc::new(file.into())).or_else(|_| again(&self.buffered))?,
            in_memory,
            mapped,
        };
        Ok(Box::new(FileEndpoint::new(
            io,
            handles,
            self.is_device,
            self.identity.clone(),
            Capability { size_bytes: self.shared.size_bytes(size_bytes), ..self.capability.clone() },
            Arc::clone(&self.shared),
        )))
    }

    fn has_failed(&self) -> bool {
        self.shared.flush_failed.load(Ordering::Acquire)
    }

    fn current_size(&self) -> Option<u64> {
        if self.size_is_fixed { None } else { probe::size(&self.buffered, self.is_device).ok() }
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn as_file(&self) -> Option<&FileMedium> {
        Some(self)
    }

    fn as_disk(&self) -> Option<u64> {
        self.is_device.then(|| Some(self.buffered.metadata().ok()?.rdev()))?
    }

    fn lasting_name(&self) -> Option<String> {
        match self.as_disk() {
            Some(device) => Kernel::default().lasting_name(device),
            None => self.buffered.metadata().ok().map(|metadata| lasting_name(&metadata)),
        }
    }
}

#[cfg(test)]
mod tests;
