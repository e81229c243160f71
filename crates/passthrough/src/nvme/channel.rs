//! Commands of one thread, in flight at an NVMe namespace.

use std::collections::VecDeque;
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use area::{Access, Span};
use io::Handle;
use io_uring::{IoUring, cqueue, opcode, squeue, types};

use super::command::Command;
use super::status::judge;
use crate::endpoint::{Channel, Ended, Verdict};
use crate::step::{Step, Verb};

/// Commands in flight at once.
pub(crate) const QUEUE_MAX: u32 = 64;
/// `_IOWR('N', 0x80)` of 72 bytes: NVME_URING_CMD_IO.
const NVME_URING_CMD_IO: u32 = 0xc048_4e80;
/// How long the end of a channel waits for its commands.
const DROP_PATIENCE: Duration = Duration::from_secs(2);
const DROP_PAUSE: Duration = Duration::from_millis(5);

/// What a command in flight uses.
struct Flight {
    slot: u32,
    /// Of a read and a write.
    span: Option<Span>,
}

/// A ring for `/dev/ng0n1`.
pub(crate) struct NvmeChannel {
    ring: IoUring<squeue::Entry128, cqueue::Entry32>,
    device: Handle,
    /// Counts completions, so that the loop hears of them.
    bell: Handle,
    namespace: u32,
    flights: Vec<Option<Flight>>,
    in_flight: u32,
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
        let flights = (0..QUEUE_MAX).map(|_| None).collect();
        Ok(Self { ring, device, bell, namespace, flights, in_flight: 0, ended: VecDeque::new() })
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
        self.in_flight < QUEUE_MAX
    }

    fn start(&mut self, slot: u32, step: &Step) -> Result<()> {
        let place = self.flights.iter().position(Option::is_none).expect("asked for room before");
        let command = Command::new(self.namespace, step);
        let span = step.data.clone().filter(|_| command.length > 0);
        let mut bytes = [0; 80];
        bytes[..72].copy_from_slice(&command.emit(span.as_ref().map_or(0, |span| span.as_ptr() as u64)));
        let entry = opcode::UringCmd80::new(types::Fd(self.device.as_raw_fd()), NVME_URING_CMD_IO)
            .cmd(bytes)
            .build()
            .user_data(place as u64);
        // SAFETY: the span is kept in `flights` until the completion is taken, or forever; so is the device.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.map_err(|_| Error::from_raw_os_error(libc::EAGAIN))?;
        if let Some(span) = &span {
            span.begin_flight(if step.verb == Verb::Read { Access::Write } else { Access::Read });
        }
        self.flights[place] = Some(Flight { slot, span });
        self.in_flight += 1;
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
        let Some((place, result)) = self.ended.pop_front() else { return Ok(None) };
        let flight = self.flights.get_mut(place).and_then(Option::take);
        let Flight { slot, span } = flight.ok_or_else(|| Error::other("an answer to no command"))?;
        self.in_flight -= 1;
        if let Some(span) = &span {
            span.end_flight();
        }
        let verdict = judge(result);
        // NVMe knows no short transfer.
        let moved =
            if matches!(verdict, Verdict::Done) { span.map_or(0, |span| span.len() as u32) } else { 0 };
        Ok(Some((slot, Ended { verdict, moved })))
    }

    fn in_flight(&self) -> u32 {
        self.in_flight
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        vec![("data", "straight to and from the disk".into())]
    }
}

impl Drop for NvmeChannel {
    /// Waits for what is in flight. What does not end is leaked: the device may write there at any time.
    fn drop(&mut self) {
        let until = Instant::now() + DROP_PATIENCE;
        while self.in_flight > 0 && Instant::now() < until {
            match self.take() {
                Ok(Some(_)) => {}
                Ok(None) => std::thread::sleep(DROP_PAUSE),
                Err(_) => break,
            }
        }
        self.flights.drain(..).for_each(std::mem::forget);
    }
}
