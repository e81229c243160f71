//! The NVMe commands of one thread in flight.

use std::collections::VecDeque;
use std::io::{Error, Result};
use std::os::fd::AsRawFd;
use std::rc::Rc;

use io::Handle;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::event::EventfdFlags;

use super::command::Command;
use super::status::judge;
use crate::disk_command::DiskCommand;
use crate::endpoint::{Channel, Ended, Verdict};
use crate::flights::{Flight, Flights, drain};

pub(crate) const QUEUE_MAX: u32 = 64;
/// `_IOWR('N', 0x80)` of 72 bytes: NVME_URING_CMD_IO.
const NVME_URING_CMD_IO: u32 = 0xc048_4e80;

/// A ring for `/dev/ng0n1`.
pub(crate) struct NvmeChannel {
    ring: IoUring<squeue::Entry128, cqueue::Entry32>,
    device: Handle,
    /// Eventfd that counts completions, for the loop to poll.
    eventfd: Handle,
    namespace: u32,
    flights: Flights<()>,
    ended: VecDeque<(usize, i32)>,
}

impl NvmeChannel {
    pub(crate) fn new(device: Handle, namespace: u32) -> Result<Self> {
        let ring = IoUring::builder().build(QUEUE_MAX)?;
        let eventfd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        ring.submitter().register_eventfd(eventfd.as_raw_fd())?;
        let (eventfd, flights) = (Rc::new(eventfd), Flights::new(QUEUE_MAX));
        Ok(Self { ring, device, eventfd, namespace, flights, ended: VecDeque::new() })
    }

    /// Takes all completions. The eventfd is read first, so that later completions signal it again.
    fn collect(&mut self) {
        // An empty counter (EAGAIN) means that there are no new completions.
        let _ = rustix::io::read(&self.eventfd, &mut [0; 8]);
        let ended = self.ring.completion();
        self.ended.extend(ended.map(|entry| (entry.user_data() as usize, entry.result())));
    }
}

impl Channel for NvmeChannel {
    fn handle(&self) -> &Handle {
        &self.eventfd
    }

    fn has_room(&self) -> bool {
        self.flights.has_room()
    }

    fn start(&mut self, slot: u32, disk_command: &DiskCommand) -> Result<()> {
        let number = self.flights.number();
        let command = Command::new(self.namespace, disk_command);
        let span = disk_command.data.clone().filter(|_| command.length > 0);
        let mut bytes = [0; 80];
        bytes[..72].copy_from_slice(&command.emit(span.as_ref().map_or(0, |span| span.as_ptr() as u64)));
        let entry = opcode::UringCmd80::new(types::Fd(self.device.as_raw_fd()), NVME_URING_CMD_IO)
            .cmd(bytes)
            .build()
            .user_data(number as u64);
        // SAFETY: `flights` keeps the span until the completion is taken, or leaks it; `self` keeps the device.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.map_err(|_| Error::from_raw_os_error(libc::EAGAIN))?;
        self.flights.begin(number, disk_command.verb, Flight { slot, span, with: () });
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        while !self.ring.submission().is_empty() {
            match self.ring.submit() {
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                // Completions must be taken first; the next flush submits again.
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
        // NVMe has no short transfers.
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
