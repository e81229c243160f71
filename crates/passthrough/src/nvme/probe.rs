//! Reads the properties of a namespace.

use std::io::Error;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use block::{IoError, OpenError};

use super::command::{Command, HOST_BEHAVIOR_BYTES};
use super::identify::{self, IDENTIFY_BYTES};
use super::status::judge;
use crate::disk::Disk;
use crate::disk_command::{DiskCommand, Verb};
use crate::endpoint::Verdict;

/// `_IO('N', 0x40)`, `_IOWR('N', 0x41)` and `_IOWR('N', 0x43)` of 72 bytes.
const NVME_IOCTL_ID: libc::Ioctl = 0x4e40;
const NVME_IOCTL_ADMIN_CMD: libc::Ioctl = 0xc048_4e41;
const NVME_IOCTL_IO_CMD: libc::Ioctl = 0xc048_4e43;

/// Time limit for a namespace to become ready, and the pause between attempts.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(100);
/// Most repetitions of a command that failed for a transient reason.
const ATTEMPTS_MAX: u32 = 10;

pub(crate) fn probe(device: &OwnedFd) -> Result<(Disk, u32), OpenError> {
    let (namespace, controller, data) = identify(device)?;
    let disk = identify::disk(&controller, &data).map_err(OpenError::Failed)?;
    Ok((disk, namespace))
}

type Data = Box<[u8; IDENTIFY_BYTES]>;

/// The number of the namespace, and the Identify data of its controller and of the namespace.
pub(super) fn identify(device: &OwnedFd) -> Result<(u32, Data, Data), OpenError> {
    // SAFETY: a plain system call on a live descriptor.
    let number = unsafe { libc::ioctl(device.as_raw_fd(), NVME_IOCTL_ID) };
    let namespace = u32::try_from(number).map_err(|_| {
        OpenError::Failed(format!("it does not report its namespace: {}", Error::last_os_error()))
    })?;
    let read = |namespace, what| -> Result<Data, OpenError> {
        let mut data = Box::new([0; IDENTIFY_BYTES]);
        let command = Command::identify(namespace, what, IDENTIFY_BYTES as u32);
        send(device, NVME_IOCTL_ADMIN_CMD, &command, &mut *data).answered("Identify")?;
        Ok(data)
    };
    let (controller, data) = (read(0, 1)?, read(namespace, 0)?);
    Ok((namespace, controller, data))
}

/// Enables source ranges of format `descriptors` at the controller (Base 5.27.1.18, CDFE), and nothing else.
pub(super) fn allow_descriptors(device: &OwnedFd, descriptors: u32) -> Result<(), IoError> {
    let mut data = [0; HOST_BEHAVIOR_BYTES];
    send(device, NVME_IOCTL_ADMIN_CMD, &Command::host_behavior(false), &mut data).result()?;
    if data[4] & 1 << descriptors != 0 {
        return Ok(());
    }
    data[4] |= 1 << descriptors;
    send(device, NVME_IOCTL_ADMIN_CMD, &Command::host_behavior(true), &mut data).result()
}

/// The first bytes of the namespace, at most `bytes`; empty if they cannot be read.
pub(crate) fn head(device: &OwnedFd, namespace: u32, disk: &Disk, bytes: u32) -> Vec<u8> {
    let blocks = disk.head_blocks(bytes);
    let mut data = vec![0; (blocks * disk.block_size) as usize];
    let read = DiskCommand { verb: Verb::Read, lba: 0, blocks, data: None };
    let command = Command { length: data.len() as u32, ..Command::new(namespace, &read) };
    let read = send(device, NVME_IOCTL_IO_CMD, &command, &mut data);
    read.result().map(|()| data).unwrap_or_default()
}

pub(super) fn carry_out(device: &OwnedFd, command: &Command, data: &mut [u8]) -> Result<(), IoError> {
    send(device, NVME_IOCTL_IO_CMD, command, data).result()
}

/// Executes a command with `data` and waits; repeats it while the device is busy. Returns the last verdict.
fn send(device: &OwnedFd, request: libc::Ioctl, command: &Command, data: &mut [u8]) -> Verdict {
    assert!(data.len() >= command.length as usize, "room for the data");
    let until = Instant::now() + READY_TIMEOUT;
    let mut attempts = 0;
    loop {
        let mut bytes = command.emit(data.as_mut_ptr() as u64);
        // SAFETY: the ioctl reads and writes 72 bytes; the data address in them is `data`, with a length within its
        // bounds.
        let result = unsafe { libc::ioctl(device.as_raw_fd(), request, bytes.as_mut_ptr()) };
        let result =
            if result < 0 { -Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) } else { result };
        match judge(result) {
            Verdict::Again { .. } if attempts < ATTEMPTS_MAX => attempts += 1,
            Verdict::Later(_) if Instant::now() < until => {}
            verdict => return verdict,
        }
        std::thread::sleep(PAUSE);
    }
}
