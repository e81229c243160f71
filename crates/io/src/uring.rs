//! The io_uring back end. All access to the ring is in this module.

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use io_uring::register::Restriction;
use io_uring::types::CancelBuilder;
use io_uring::{IoUring, cqueue, opcode, squeue, types};

use crate::{Backend, Durability, Raw};

/// Most regions that can be registered; a pool rarely has more.
const REGIONS_MAX: u32 = 1024;

/// `IORING_RECVSEND_POLL_FIRST`: waits for data before the first attempt.
const POLL_FIRST: u16 = 1;

/// Most alarms set at once. Each is earlier than those before it, so there are about as many as drivers have kinds of
/// timers.
const ALARMS_MAX: usize = 8;
/// `user_data` of alarms; no operation has this key.
const ALARM: u64 = u64::MAX;

/// File transfers from this length on are submitted alone or in pairs. The kernel holds back a batch of three and more
/// until it has seen the last, and merges neighbours: the device starts later, and two requests complete as one.
const LONG_TRANSFER_BYTES: u32 = 256 << 10;

/// Length of the completion queue; the kernel stores further completions separately.
const COMPLETIONS: u32 = 4096;

pub(crate) struct Uring {
    ring: IoUring,
    /// Entries that did not fit the submission queue: the kernel requires that completions are taken first.
    backlog: VecDeque<squeue::Entry>,
    registers: bool,
    /// Times at which timeouts (`IORING_OP_TIMEOUT`) end a sleep, the earliest last. A time limit of each
    /// `io_uring_enter` would set and clear a kernel timer each time, 0.5 us; most alarms outlast many sleeps.
    alarms: Vec<Instant>,
    /// Duration of the alarm being set: the kernel reads it when it takes the entry.
    alarm_after: Box<types::Timespec>,
}

impl Uring {
    /// Creates a ring for one thread; completions are delivered only on its request (`DEFER_TASKRUN`): no interrupts.
    pub(crate) fn new(entries: u32) -> io::Result<Self> {
        let ring = IoUring::<squeue::Entry, cqueue::Entry>::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            // Lets a zero-timeout wait detect and run deferred completions.
            .setup_taskrun_flag()
            .setup_submit_all()
            .setup_cqsize(COMPLETIONS)
            // Disabled until `register_restrictions`.
            .setup_r_disabled()
            .build(entries)?;
        if !ring.params().is_feature_ext_arg() || !ring.params().is_feature_nodrop() {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the kernel's io_uring is older than 6.1",
            ));
        }
        let registers = ring.submitter().register_buffers_sparse(REGIONS_MAX).is_ok();
        ring.submitter().register_restrictions(&mut restrictions())?;
        // Makes this thread the single issuer of the ring.
        ring.submitter().register_enable_rings()?;
        let alarm_after = Box::new(types::Timespec::new());
        Ok(Self { ring, backlog: VecDeque::new(), registers, alarms: Vec::new(), alarm_after })
    }

    /// Names of features beyond those that [`Self::new`] requires, and whether the kernel has them.
    pub(crate) fn features(&self) -> Vec<(&'static str, bool)> {
        let params = self.ring.params();
        vec![
            ("registered-buffers", self.registers),
            ("resource-tags", params.is_feature_resource_tagging()),
            ("native-workers", params.is_feature_native_workers()),
            ("min-timeout", params.is_feature_min_timeout()),
        ]
    }

    fn submit(&self) -> io::Result<()> {
        match self.ring.submit() {
            Err(error) if !is_benign(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Ensures that a sleep ends at `until` or before. False: no further alarm can be set.
    fn set_alarm(&mut self, until: Instant, after: Duration) -> bool {
        if self.alarms.last().is_some_and(|alarm| *alarm <= until) {
            return true;
        }
        if self.alarms.len() == ALARMS_MAX || !self.backlog.is_empty() {
            return false;
        }
        *self.alarm_after = types::Timespec::from(after);
        let entry = opcode::Timeout::new(&raw const *self.alarm_after).build().user_data(ALARM);
        // SAFETY: `alarm_after` lives as long as the ring.
        let is_set = unsafe { self.ring.submission().push(&entry) }.is_ok();
        if is_set {
            self.alarms.push(until);
        }
        is_set
    }
}

/// The operations allowed in the ring: those of [`entry`], and alarms.
const OPERATIONS: [u8; 13] = [
    opcode::Read::CODE,
    opcode::ReadFixed::CODE,
    opcode::Write::CODE,
    opcode::WriteFixed::CODE,
    opcode::Fsync::CODE,
    opcode::Fallocate::CODE,
    opcode::PollAdd::CODE,
    opcode::Accept::CODE,
    opcode::Connect::CODE,
    opcode::Recv::CODE,
    opcode::RecvMsg::CODE,
    opcode::SendMsg::CODE,
    opcode::Timeout::CODE,
];

/// `IORING_REGISTER_BUFFERS_UPDATE` and `IORING_REGISTER_SYNC_CANCEL`: the registrations used after set-up.
const REGISTRATIONS: [u8; 2] = [16, 24];

/// The operations that the ring permits. A seccomp filter does not see ring operations; therefore the ring itself
/// rejects all others, such as opening files, even after code execution in this process
/// (`IORING_REGISTER_RESTRICTIONS`). No entry flag is permitted, since none is used.
fn restrictions() -> Vec<Restriction> {
    let operations = OPERATIONS.into_iter().map(Restriction::sqe_op);
    operations.chain(REGISTRATIONS.into_iter().map(Restriction::register_op)).collect()
}

/// Moves completions out of the queue and removes the alarms among them.
fn collect(
    completion: &mut cqueue::CompletionQueue<'_>,
    alarms: &mut Vec<Instant>,
    completed: &mut Vec<(usize, i32)>,
) {
    for entry in completion {
        if entry.user_data() == ALARM {
            alarms.pop();
        } else {
            completed.push((entry.user_data() as usize, entry.result()));
        }
    }
}

/// The vector of a message with exactly one: the kernel then need not read the message.
///
/// # Safety
/// The message and its vectors are live.
unsafe fn only_vector(message: *const libc::msghdr) -> Option<libc::iovec> {
    // SAFETY: the caller guarantees that the message and its vectors are live.
    unsafe { ((*message).msg_iovlen == 1).then(|| *(*message).msg_iov) }
}

fn is_long_transfer(raw: &Raw) -> bool {
    matches!(raw, Raw::Read { length, .. } | Raw::Write { length, .. } if *length >= LONG_TRANSFER_BYTES)
}

fn entry(raw: Raw) -> squeue::Entry {
    let at = types::Fd;
    match raw {
        Raw::Read { fd, into, length, offset, region: None } => {
            opcode::Read::new(at(fd), into, length).offset(offset).build()
        }
        Raw::Read { fd, into, length, offset, region: Some(region) } => {
            opcode::ReadFixed::new(at(fd), into, length, region).offset(offset).build()
        }
        Raw::Write { fd, from, length, offset, region, durability } => {
            let flags = match durability {
                Durability::Volatile => 0,
                Durability::Durable => libc::RWF_DSYNC,
            };
            match region {
                None => opcode::Write::new(at(fd), from, length).offset(offset).rw_flags(flags).build(),
                Some(region) => opcode::WriteFixed::new(at(fd), from, length, region)
                    .offset(offset)
                    .rw_flags(flags)
                    .build(),
            }
        }
        Raw::Sync { fd } => opcode::Fsync::new(at(fd)).flags(types::FsyncFlags::DATASYNC).build(),
        Raw::Allocate { fd, how, offset, length } => {
            opcode::Fallocate::new(at(fd), length).offset(offset).mode(how.mode()).build()
        }
        Raw::Poll { fd, events } => opcode::PollAdd::new(at(fd), events as u32).build(),
        Raw::Accept { fd } => opcode::Accept::new(at(fd), std::ptr::null_mut(), std::ptr::null_mut())
            .flags(libc::SOCK_CLOEXEC)
            .build(),
        Raw::Connect { fd, address, length } => opcode::Connect::new(at(fd), address, length).build(),
        Raw::Receive { fd, message, is_empty } => {
            let how = if is_empty { POLL_FIRST } else { 0 };
            // SAFETY: a live message with live vectors (contract of `Raw`).
            match unsafe { only_vector(message) } {
                Some(place) => {
                    opcode::Recv::new(at(fd), place.iov_base.cast(), place.iov_len as u32).ioprio(how).build()
                }
                None => opcode::RecvMsg::new(at(fd), message).ioprio(how).build(),
            }
        }
        // WAITALL: the kernel continues after a short send.
        Raw::Send { fd, message } => opcode::SendMsg::new(at(fd), message)
            .flags((libc::MSG_NOSIGNAL | libc::MSG_WAITALL) as u32)
            .build(),
    }
}

impl Backend for Uring {
    fn name(&self) -> &'static str {
        "io_uring"
    }

    fn spins(&self) -> bool {
        true
    }

    fn register(&mut self, index: u16, region: Option<(*mut u8, usize)>) -> bool {
        let (base, length) = region.unwrap_or((std::ptr::null_mut(), 0));
        let buffer = libc::iovec { iov_base: base.cast(), iov_len: length };
        // SAFETY: the region stays mapped until this loop unregisters it; an operation that uses it keeps it mapped.
        // Above the limit of locked memory (RLIMIT_MEMLOCK) the call fails.
        self.registers
            && u32::from(index) < REGIONS_MAX
            && unsafe { self.ring.submitter().register_buffers_update(u32::from(index), &[buffer], None) }
                .is_ok()
    }

    fn send_now(&mut self, fd: RawFd, message: *const libc::msghdr) -> Option<usize> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: a message whose vectors and buffers live (contract of `Raw::Send`); the calls keep none of them.
        let count = unsafe {
            match only_vector(message) {
                Some(bytes) => libc::send(fd, bytes.iov_base, bytes.iov_len, flags),
                None => libc::sendmsg(fd, message, flags),
            }
        };
        usize::try_from(count).ok()
    }

    fn push(&mut self, key: usize, raw: Raw) -> io::Result<()> {
        let entry = entry(raw).user_data(key as u64);
        let is_long = is_long_transfer(&raw);
        let queued = self.ring.submission().len();
        if self.backlog.is_empty() && (self.ring.submission().is_full() || is_long && queued >= 2) {
            self.submit()?;
        }
        // SAFETY: the pointers in `raw` stay valid until the completion is delivered (contract of `Raw`).
        if !self.backlog.is_empty() || unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.backlog.push_back(entry);
        } else if is_long && queued == 1 {
            self.submit()?;
        }
        Ok(())
    }

    fn wait(&mut self, timeout: Option<Duration>, completed: &mut Vec<(usize, i32)>) -> io::Result<()> {
        let is_poll = timeout == Some(Duration::ZERO);
        let until = timeout.filter(|_| !is_poll).map(|timeout| (Instant::now() + timeout, timeout));
        let has_alarm = until.is_none_or(|(until, after)| self.set_alarm(until, after));
        let (submitter, mut submission, mut completion) = self.ring.split();
        while let Some(entry) = self.backlog.front() {
            // SAFETY: as in `push`.
            if unsafe { submission.push(entry) }.is_err() {
                break;
            }
            self.backlog.pop_front();
        }
        submission.sync();
        completion.sync();
        let is_idle = submission.is_empty() && !submission.taskrun() && !submission.cq_overflow();
        if is_poll && is_idle {
            // Nothing to submit or run: the poll needs no system call.
            collect(&mut completion, &mut self.alarms, completed);
            return Ok(());
        }
        // With a backlog left, this submission makes room for it: the next wait follows without a sleep.
        let may_sleep = completion.is_empty() && self.backlog.is_empty();
        let want = usize::from(may_sleep && !is_poll);
        let limit = types::Timespec::from(timeout.unwrap_or_default());
        let args = types::SubmitArgs::new();
        let submitted = match is_poll || !has_alarm {
            true => submitter.submit_with_args(want, &args.timespec(&limit)),
            false => submitter.submit_with_args(want, &args),
        };
        match submitted {
            Ok(_) => {}
            Err(error) if is_benign(&error) => {}
            Err(error) => return Err(error),
        }
        completion.sync();
        let alarms = self.alarms.len();
        collect(&mut completion, &mut self.alarms, completed);
        drop((submission, completion));
        if completed.is_empty() && self.alarms.len() < alarms && !is_poll {
            // An alarm of an earlier sleep fired: this sleep continues.
            let left = until.map(|(until, _)| until.saturating_duration_since(Instant::now()));
            return self.wait(left, completed);
        }
        Ok(())
    }

    fn cancel(&mut self, only: Option<RawFd>) {
        let which = match only {
            Some(fd) => CancelBuilder::fd(types::Fd(fd)).all(),
            None => CancelBuilder::any(),
        };
        // An error means that some operation cannot be cancelled; it will end by itself.
        let _ = self.ring.submitter().register_sync_cancel(Some(types::Timespec::new()), which);
    }
}

/// A timeout, a signal, or completions that must be taken first: no error of the loop.
fn is_benign(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_refuses_what_no_driver_asks_of_it() {
        let Ok(mut uring) = Uring::new(8) else { return };
        let at = types::Fd(libc::AT_FDCWD);
        let forbidden = [
            opcode::OpenAt::new(at, c"/dev/null".as_ptr()).build(),
            opcode::Socket::new(libc::AF_INET, libc::SOCK_STREAM, 0).build(),
            opcode::UnlinkAt::new(at, c"/nonexistent/x".as_ptr()).build(),
            opcode::Nop::new().build(),
            // A permitted operation with a flag that is not permitted.
            opcode::PollAdd::new(types::Fd(0), libc::POLLIN as u32).build().flags(squeue::Flags::ASYNC),
        ];
        for entry in forbidden {
            // SAFETY: the paths are static.
            unsafe { uring.ring.submission().push(&entry) }.unwrap();
            uring.ring.submit_and_wait(1).unwrap();
            let completion = uring.ring.completion().next().unwrap();
            assert_eq!(completion.result(), -libc::EACCES);
        }
        let files = uring.ring.submitter().register_files(&[0]);
        assert_eq!(files.unwrap_err().raw_os_error(), Some(libc::EACCES));
    }

    #[test]
    fn registrations_have_the_numbers_of_the_kernel() {
        // linux/io_uring.h: enum io_uring_register_op.
        assert_eq!(REGISTRATIONS, [16, 24]);
        let Ok(mut uring) = Uring::new(8) else { return };
        if uring.registers {
            assert!(uring.register(0, None));
        }
        uring.cancel(None);
    }
}
