//! Commands of one thread, in flight at an NVMe namespace.

use std::collections::VecDeque;
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::rc::Rc;

use io::Handle;
use io_uring::{IoUring, cqueue, opcode, squeue, types};

use super::command::Command;
use super::status::judge;
use crate::endpoint::{Channel, Ended, Verdict};
use crate::flights::{Flight, Flights, drain};
use crate::step::Step;

/// Commands in flight at once.
pub(crate) const QUEUE_MAX: u32 = 64;
/// `_IOWR('N', 0x80)` of 72 bytes: NVME_URING_CMD_IO.
const NVME_URING_CMD_IO: u32 = 0xc048_4e80;

/// A ring for `/dev/ng0n1`.
pub(crate) struct NvmeChannel {
    ring: IoUring<squeue::Entry128, cqueue::Entry32>,
    device: Handle,
    /// Counts completions, so that the loop hears of them.
    bell: Handle,
    namespace: u32,
    flights: Flights<()>,
    ended: VecDeque<(usize, i32)>,
}

impl NvmeChannel {
    /// Over an open node.
    pub(crate) fn new(device: Handle, namespace: u32) -> Result<Self> {
        let ring = IoUring::builder().build(QUEUE_MAX)?;
        // SAFETY: a plain system call; the result is checked before it is owned.
        let bell = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if bell < 0 {
            return Err(Error::last_os_error());
        }
        // SAFETY: a fresh descriptor that nobody else owns.
        let bell: Handle = Rc::new(unsafe { OwnedFd::from_raw_fd(bell) });
        ring.submitter().register_eventfd(bell.as_raw_fd())?;
        let flights = Flights::new(QUEUE_MAX);
        Ok(Self { ring, device, bell, namespace, flights, ended: VecDeque::new() })
    }

    /// Moves what is complete out. The bell is silenced first: what comes after rings it again.
    fn collect(&mut self) {
        let mut count = 0u64;
        // SAFETY: eight bytes of a live local; an empty counter (EAGAIN) means that there is nothing new.
        unsafe { libc::read(self.bell.as_raw_fd(), (&raw mut count).cast(), 8) };
        let ended = self.ring.completion();
        self.ended.extend(ended.map(|entry| (entry.user_data() as usize, entry.result())));
    }
}

impl Channel for NvmeChannel {
    fn handle(&self) -> &Handle {
        &self.bell
    }

    fn has_room(&self) -> bool {
        self.flights.has_room()
    }

    fn start(&mut self, slot: u32, step: &Step) -> Result<()> {
        let number = self.flights.number();
        let command = Command::new(self.namespace, step);
        let span = step.data.clone().filter(|_| command.length > 0);
        let mut bytes = [0; 80];
        bytes[..72].copy_from_slice(&command.emit(span.as_ref().map_or(0, |span| span.as_ptr() as u64)));
        let entry = opcode::UringCmd80::new(types::Fd(self.device.as_raw_fd()), NVME_URING_CMD_IO)
            .cmd(bytes)
            .build()
            .user_data(number as u64);
        // SAFETY: the span is kept in `flights` until the completion is taken, or forever; so is the device.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.map_err(|_| Error::from_raw_os_error(libc::EAGAIN))?;
        self.flights.begin(number, step.verb, Flight { slot, span, with: () });
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        while !self.ring.submission().is_empty() {
            match self.ring.submit() {
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                // Completions have to be taken first; then it is tried again.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY)) => {
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn take(&mut self) -> Result<Option<(u32, Ended)>> {
        if self.ended.is_empty() {
            self.collect();
        }
        let Some((number, result)) = self.ended.pop_front() else { return Ok(None) };
        let flight = self.flights.end(number);
        let Flight { slot, span, .. } = flight.ok_or_else(|| Error::other("an answer to no command"))?;
        let verdict = judge(result);
        // NVMe knows no short transfer.
        let moved =
            if matches!(verdict, Verdict::Done) { span.map_or(0, |span| span.len() as u32) } else { 0 };
        Ok(Some((slot, Ended { verdict, moved })))
    }

    fn in_flight(&self) -> u32 {
        self.flights.count()
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        vec![("data", "straight to and from the disk".into())]
    }
}

impl Drop for NvmeChannel {
    fn drop(&mut self) {
        drain(self);
    }
}
