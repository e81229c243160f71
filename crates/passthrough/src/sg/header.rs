//! `struct sg_io_hdr` of `include/scsi/sg.h`.

use std::ffi::{c_int, c_void};
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, OwnedFd};

/// Most bytes of sense data that the kernel returns for a command.
pub(super) const SENSE_BYTES: usize = 96;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(super) enum Direction {
    None = -1,
    ToDevice = -2,
    FromDevice = -3,
}

/// DMA to and from the memory of this process, if `/sys/module/sg/parameters/allow_dio` permits it; else a copy.
pub(super) const FLAG_DIRECT_IO: u32 = 1;
/// Queues the command behind waiting ones, as a block device does.
const FLAG_AT_TAIL: u32 = 0x10;

const SG_IO: libc::Ioctl = 0x2285;
const SG_GET_VERSION_NUM: libc::Ioctl = 0x2282;

/// `struct sg_io_hdr`: a command when it is written, with its result when it is read.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Header {
    interface_id: c_int,
    direction: c_int,
    cdb_length: u8,
    sense_length_max: u8,
    vectors: u16,
    data_length: u32,
    data: *mut c_void,
    cdb: *const u8,
    sense: *mut u8,
    timeout_ms: u32,
    pub(super) flags: u32,
    pub(super) pack_id: c_int,
    user: *mut c_void,
    pub(super) status: u8,
    masked_status: u8,
    message_status: u8,
    pub(super) sense_length: u8,
    pub(super) host_status: u16,
    pub(super) driver_status: u16,
    pub(super) residual: c_int,
    duration_ms: u32,
    info: u32,
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Header>() == 88);

impl Header {
    pub(super) fn empty() -> Self {
        Self {
            interface_id: c_int::from(b'S'),
            direction: Direction::None as c_int,
            cdb_length: 0,
            sense_length_max: 0,
            vectors: 0,
            data_length: 0,
            data: std::ptr::null_mut(),
            cdb: std::ptr::null(),
            sense: std::ptr::null_mut(),
            timeout_ms: 0,
            flags: FLAG_AT_TAIL,
            pack_id: 0,
            user: std::ptr::null_mut(),
            status: 0,
            masked_status: 0,
            message_status: 0,
            sense_length: 0,
            host_status: 0,
            driver_status: 0,
            residual: 0,
            duration_ms: 0,
            info: 0,
        }
    }

    /// A command. The memory of `data` and `sense` must live until the result; the CDB until it was accepted.
    pub(super) fn new(
        cdb: &[u8],
        direction: Direction,
        data: (*mut u8, u32),
        sense: *mut [u8; SENSE_BYTES],
        timeout_ms: u32,
    ) -> Self {
        Self {
            direction: if data.1 == 0 { Direction::None } else { direction } as c_int,
            cdb_length: cdb.len() as u8,
            sense_length_max: SENSE_BYTES as u8,
            data_length: data.1,
            data: data.0.cast(),
            cdb: cdb.as_ptr(),
            sense: sense.cast(),
            timeout_ms,
            ..Self::empty()
        }
    }

    /// Executes the command and waits.
    ///
    /// # Safety
    /// The pointers of [`Header::new`] are valid for their lengths.
    pub(super) unsafe fn run(&mut self, device: &OwnedFd) -> Result<()> {
        // SAFETY: the kernel accesses this header and the memory of its pointers, which the caller guarantees.
        let result = unsafe { libc::ioctl(device.as_raw_fd(), SG_IO, std::ptr::from_mut(self)) };
        if result < 0 { Err(Error::last_os_error()) } else { Ok(()) }
    }

    /// Starts the command; [`Header::take`] returns its result.
    ///
    /// # Safety
    /// The pointers of [`Header::new`] are valid for their lengths, data and sense until the result is taken.
    pub(super) unsafe fn start(&self, device: &OwnedFd) -> Result<()> {
        let length = size_of::<Self>();
        // SAFETY: `self` is `length` bytes long; the caller guarantees the memory of its pointers.
        let count = unsafe { libc::write(device.as_raw_fd(), std::ptr::from_ref(self).cast(), length) };
        if count < 0 { Err(Error::last_os_error()) } else { Ok(()) }
    }

    /// The header of a completed command; `None`: none is available.
    pub(super) fn take(device: &OwnedFd) -> Result<Option<Self>> {
        let mut header = Self::empty();
        let length = size_of::<Self>();
        // SAFETY: `header` has room for a header; the kernel otherwise writes only to the memory of the header given to
        // `start`.
        let count = unsafe { libc::read(device.as_raw_fd(), (&raw mut header).cast(), length) };
        match (count, Error::last_os_error()) {
            (0.., _) => Ok(Some(header)),
            (_, error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => Ok(None),
            (_, error) => Err(error),
        }
    }
}

pub(super) fn is_sg(device: &OwnedFd) -> bool {
    const VERSION_3: c_int = 30000;
    let mut version: c_int = 0;
    // SAFETY: a plain system call on a live descriptor, which writes at most one integer.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), SG_GET_VERSION_NUM, &raw mut version) };
    result == 0 && version >= VERSION_3
}
