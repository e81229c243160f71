//! Copies between parts of one namespace, or of two namespaces of one controller, by the controller itself.

use std::fs::OpenOptions;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use block::offload::{Means, Offload};
use block::{IoError, IoErrorKind};
use host::{Kernel, Namespace};

use super::command::Command;
use super::copy::{BETWEEN, Copying, Part, WITHIN};
use super::identify;
use super::probe::{self, carry_out};
use crate::guard::Guard;

/// Most bytes copied by one call: about a second for a slow disk.
const PIECE_BYTES: u64 = 64 << 20;
/// Commands in flight. Each blocks a thread of its own: the ioctl is available in every kernel.
const FLIGHT: usize = 8;

#[derive(Debug)]
pub struct NvmeCopy {
    /// Node that takes the destination's commands, and the number of its namespace.
    device: OwnedFd,
    number: u32,
    /// Number of the source's namespace, if it is another.
    source: Option<u32>,
    copying: Copying,
    places: [Namespace; 2],
    destination: Guard,
}

impl NvmeCopy {
    /// Prepares a copy between two open block devices, the second held exclusively; or returns why it is impossible.
    pub fn between(source: u64, destination: u64) -> Result<Self, String> {
        let kernel = Kernel::default();
        let place = |device| {
            let name = kernel.node_path(device);
            kernel.namespace(device).ok_or_else(|| format!("{name} is no NVMe namespace that takes commands"))
        };
        let places = [place(source)?, place(destination)?];
        let descriptors = fit(&places)?;
        let [(_, from, source_copying), (device, number, copying)] =
            [inspect(&places[0], descriptors)?, inspect(&places[1], descriptors)?];
        // Base 3.2.1: otherwise the source's number may identify another namespace at another controller.
        if descriptors == BETWEEN && !places[0].has_one_controller && !source_copying.is_shared {
            let node = places[0].node.display();
            return Err(format!(
                "{node} belongs to one of several controllers: its number may mean another to the next"
            ));
        }
        if source_copying.block_size != copying.block_size {
            return Err("the blocks of the two namespaces differ in length".into());
        }
        if descriptors == BETWEEN {
            probe::allow_descriptors(&device, descriptors).map_err(|error| {
                format!("copies between namespaces cannot be enabled in its controller: {error}")
            })?;
        }
        // Flushes earlier writes through the block devices before anything is copied.
        let guard = |device| {
            let guard = Guard::take(device, false).map_err(|error| error.to_string())?;
            guard.ok_or_else(|| format!("{} cannot be opened", kernel.node_path(device)))
        };
        guard(source)?;
        let (source, copying) = ((descriptors == BETWEEN).then_some(from), copying.meet(source_copying));
        Ok(Self { device, number, source, copying, places, destination: guard(destination)? })
    }

    /// Executes the parts, several at a time. On failure: the index of the first failed part, and its error.
    fn carry_out(&self, parts: &[Part]) -> Result<(), (usize, IoError)> {
        let next = AtomicUsize::new(0);
        let first: Mutex<Option<(usize, IoError)>> = Mutex::new(None);
        let work = || {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(part) = parts.get(index) else { return };
                let (command, mut ranges) = self.copying.command(self.number, self.source, part);
                if let Err(error) = carry_out(&self.device, &command, &mut ranges) {
                    next.store(parts.len(), Ordering::Relaxed);
                    let mut first = first.lock().expect("no panic while locked");
                    // Parts before it are in flight and complete.
                    if first.as_ref().is_none_or(|(earlier, _)| index < *earlier) {
                        *first = Some((index, error));
                    }
                    return;
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..FLIGHT.min(parts.len()) {
                scope.spawn(work);
            }
        });
        first.into_inner().expect("no panic while locked").map_or(Ok(()), Err)
    }
}

/// The format of source ranges for this pair; fails if source and destination overlap.
fn fit([source, destination]: &[Namespace; 2]) -> Result<u32, String> {
    if source.number == destination.number {
        let end = |place: &Namespace| place.start_bytes.saturating_add(place.size_bytes);
        let overlap = source.start_bytes < end(destination) && destination.start_bytes < end(source);
        return if overlap { Err("the two overlap".into()) } else { Ok(WITHIN) };
    }
    if source.parent != destination.parent {
        return Err("the two are not namespaces of one controller".into());
    }
    Ok(BETWEEN)
}

fn inspect(place: &Namespace, descriptors: u32) -> Result<(OwnedFd, u32, Copying), String> {
    let at = |why: &dyn std::fmt::Display| format!("{}: {why}", place.node.display());
    let device = open(place).map_err(|error| at(&error))?;
    let (number, controller, namespace) = probe::identify(&device).map_err(|error| at(&error))?;
    let copying = identify::copying(&controller, &namespace, descriptors).map_err(|why| at(&why))?;
    Ok((device, number, copying))
}

/// Opens the node, if it is still the same one.
fn open(place: &Namespace) -> std::io::Result<OwnedFd> {
    let flags = libc::O_NONBLOCK | libc::O_CLOEXEC;
    let device = OpenOptions::new().read(true).write(true).custom_flags(flags).open(&place.node)?;
    let metadata = device.metadata()?;
    if metadata.file_type().is_char_device() && metadata.rdev() == place.number {
        Ok(device.into())
    } else {
        Err(std::io::Error::other("it is not the namespace's node"))
    }
}

impl Offload for NvmeCopy {
    fn means(&self) -> Means {
        Means::NvmeCopy
    }

    fn block_bytes(&self) -> u64 {
        self.copying.block_size.into()
    }

    fn copy(&mut self, src_offset: u64, dst_offset: u64, length: u64) -> Result<u64, IoError> {
        let block = self.block_bytes();
        let length = length.min(PIECE_BYTES);
        let [source, destination] = &self.places;
        let lba = |place: &Namespace, offset: u64| {
            // Commands ignore partitions: the kernel does not protect the blocks outside of one.
            let fits = offset.checked_add(length).is_some_and(|end| end <= place.size_bytes);
            let at = place.start_bytes.checked_add(offset).filter(|at| fits && at.is_multiple_of(block))?;
            Some(at / block)
        };
        let (Some(from), Some(to), blocks @ 1..) =
            (lba(source, src_offset), lba(destination, dst_offset), length / block)
        else {
            let text = format!("only whole blocks of {block} bytes are copied by the controller");
            return Err(IoError::new(IoErrorKind::Unsupported, text));
        };
        let parts = self.copying.parts(from, to, blocks);
        match self.carry_out(&parts) {
            Ok(()) => Ok(blocks * block),
            Err((0, error)) => Err(error),
            Err((index, _)) => Ok((parts[index].from - from) * block),
        }
    }

    fn flush(&self) -> Result<(), IoError> {
        let flushed = carry_out(&self.device, &Command::flush(self.number), &mut []);
        self.destination.forget();
        flushed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_one_controllers_namespaces_that_do_not_overlap() {
        let place = |number, start_bytes, size_bytes| Namespace {
            node: "/dev/ng0n1".into(),
            number,
            parent: "/sys/devices/nvme0".into(),
            has_one_controller: true,
            start_bytes,
            size_bytes,
        };
        let why = |source, destination| fit(&[source, destination]).unwrap_err();
        assert_eq!(fit(&[place(1, 0, 100), place(1, 100, 100)]), Ok(WITHIN));
        assert_eq!(fit(&[place(1, 100, 100), place(1, 0, 100)]), Ok(WITHIN));
        assert!(why(place(1, 0, 101), place(1, 100, 100)).contains("overlap"));
        assert!(why(place(1, 0, u64::MAX), place(1, u64::MAX - 1, 2)).contains("overlap"));
        let other = place(2, 0, 100);
        assert_eq!(fit(&[place(1, 0, 100), other.clone()]), Ok(BETWEEN));
        let elsewhere = Namespace { parent: "/sys/devices/nvme1".into(), ..other };
        assert!(why(place(1, 0, 100), elsewhere).contains("one controller"));
    }
}
