//! The io_uring back end. All of this crate's dealings with the ring are here.

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use io_uring::register::Restriction;
use io_uring::types::CancelBuilder;
use io_uring::{IoUring, cqueue, opcode, squeue, types};

use crate::{Backend, Durability, Raw};

/// Regions that can be registered; a pool rarely has more.
const REGIONS_MAX: u32 = 1024;

/// `IORING_RECVSEND_POLL_FIRST`: wait for data before looking for it.
const POLL_FIRST: u16 = 1;

/// Alarms set at once. Each is earlier than those before it, so there are about as many as drivers have kinds of timers.
const ALARMS_MAX: usize = 8;
/// What completions of alarms are called; no operation has this key.
const ALARM: u64 = u64::MAX;

/// A transfer of a file from this length on is submitted alone or with one other. Of three and more it holds back all until
/// it knows the last, and joins neighbours: then the device begins late, and what were two requests ends as one.
const LONG_TRANSFER_BYTES: u32 = 256 << 10;

/// Completions the kernel can hold before it has to keep some aside.
const COMPLETIONS: u32 = 4096;

pub(crate) struct Uring {
    ring: IoUring,
    /// What found no room in the submission queue, because the kernel wants completions to be taken first.
    backlog: VecDeque<squeue::Entry>,
    /// There is a table of registered buffers.
    registers: bool,
    /// When sleeps end that are not ended by a completion, the earliest last. A time limit of each sleep would be a
    /// timer set and taken back each time, half a microsecond; most alarms outlast many sleeps.
    alarms: Vec<Instant>,
    /// How long the alarm that is being set takes: the kernel reads it when it takes the entry.
    alarm_after: Box<types::Timespec>,
}

impl Uring {
    /// A ring for one thread: completions are delivered only when that thread asks (`DEFER_TASKRUN`), which
    /// spares interrupts of the other work.
    pub(crate) fn new(entries: u32) -> io::Result<Self> {
        let ring = IoUring::<squeue::Entry, cqueue::Entry>::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            // Makes a look without waiting run deferred completions too, when there are any.
            .setup_taskrun_flag()
            .setup_submit_all()
            .setup_cqsize(COMPLETIONS)
            // Until it is restricted.
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
        // Makes this thread the ring's single issuer.
        ring.submitter().register_enable_rings()?;
        let alarm_after = Box::new(types::Timespec::new());
        Ok(Self { ring, backlog: VecDeque::new(), registers, alarms: Vec::new(), alarm_after })
    }

    /// Tells the kernel what is queued, without waiting for anything.
    fn submit(&self) -> io::Result<()> {
        match self.ring.submit() {
            Err(error) if !is_benign(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Sees to it that a sleep ends at `until`, or before. False: there is no room for another alarm.
    fn set_alarm(&mut self, until: Instant, after: Duration) -> bool {
        if self.alarms.last().is_some_and(|alarm| *alarm <= until) {
            return true;
        }
        if self.alarms.len() == ALARMS_MAX || !self.backlog.is_empty() {
            return false;
        }
        *self.alarm_after = types::Timespec::from(after);
        let entry = opcode::Timeout::new(&raw const *self.alarm_after).build().user_data(ALARM);
        // SAFETY: the time lives as long as the ring.
        let is_set = unsafe { self.ring.submission().push(&entry) }.is_ok();
        if is_set {
            self.alarms.push(until);
        }
        is_set
    }
}

/// Operations of the ring: those of [`entry`], and alarms.
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

/// `IORING_REGISTER_BUFFERS_UPDATE` and `IORING_REGISTER_SYNC_CANCEL`: what is registered once the ring is in use.
const REGISTRATIONS: [u8; 2] = [16, 24];

/// All that the ring may do. A seccomp filter does not see operations of a ring, so the ring itself refuses the others, opening
/// files and the like, even with code execution in this process (`IORING_REGISTER_RESTRICTIONS`). No flag of an entry is used.
fn restrictions() -> Vec<Restriction> {
    let operations = OPERATIONS.into_iter().map(Restriction::sqe_op);
    operations.chain(REGISTRATIONS.into_iter().map(Restriction::register_op)).collect()
}

/// Moves what is complete out. Alarms among it are not set any more.
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

/// The vector of a message that has but one: the kernel need not fetch the message then.
///
/// # Safety
/// The message and its vectors are live.
unsafe fn only_vector(message: *const libc::msghdr) -> Option<libc::iovec> {
    // SAFETY: the caller's promise.
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
        Raw::Poll { fd } => opcode::PollAdd::new(at(fd), libc::POLLIN as u32).build(),
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
        // WAITALL: the kernel itself goes on after a short send.
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
        // SAFETY: the region stays mapped until this loop is told otherwise; an operation that uses it keeps it mapped.
        // Without the right to lock so much memory (RLIMIT_MEMLOCK) it is refused.
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
        let looks = timeout == Some(Duration::ZERO);
        let until = timeout.filter(|_| !looks).map(|timeout| (Instant::now() + timeout, timeout));
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
        if looks && is_idle {
            // Nothing for the kernel to do: a look costs no system call.
            collect(&mut completion, &mut self.alarms, completed);
            return Ok(());
        }
        // With a backlog left, what is submitted now makes room for it: look again at once.
        let may_sleep = completion.is_empty() && self.backlog.is_empty();
        let want = usize::from(may_sleep && !looks);
        let limit = types::Timespec::from(timeout.unwrap_or_default());
        let args = types::SubmitArgs::new();
        let submitted = match looks || !has_alarm {
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
        if completed.is_empty() && self.alarms.len() < alarms && !looks {
            // An alarm of an earlier sleep: this one goes on.
            let left = until.map(|(until, _)| until.saturating_duration_since(Instant::now()));
            return self.wait(left, completed);
        }
        Ok(())
    }

    fn cancel(&mut self) {
        // An error says that something is not to be cancelled; it will end.
        let _ =
            self.ring.submitter().register_sync_cancel(Some(types::Timespec::new()), CancelBuilder::any());
    }
}

/// A timeout, a signal, or completions that must be taken first: not an error of the loop.
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
            // An operation that is allowed, with a flag that is not.
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
        uring.cancel();
    }
}
