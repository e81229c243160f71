//! How a loop waits: it looks at its rings for at most 30 us, and then sleeps on its doorbell without a time limit.
//!
//! `docs/internals/net.md`, "Wake-up and placement", has the measurements behind the constants. In short: a sleep on
//! another core costs ten times a process switch; a `sched_yield` after each empty look costs two switches a hop; a look
//! without yielding at all costs the others' time slices, of milliseconds.
//!
//! ```text
//! loop {
//!     let turn = work();                       // takes all that is there, publishes, rings bells
//!     if waiter.after(turn) == Next::Sleep {
//!         if arm() {                           // sets `waiting` on all rings, looks once more
//!             waiter.sleep(&[bell, ...], deadline)?;
//!         }
//!         disarm();
//!         bell.silence();
//!     }
//! }
//! ```

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use inet::Time;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};

/// Longest time without work before a loop sleeps: about what a wake-up of a sleeping core costs.
pub const LOOK_US: u64 = 30;
/// Longest time without work before a loop on a shared core yields: longer than any hop of a round, so that a round in
/// its usual order never sees it.
pub const LOOK_SHARED_US: u64 = 5;
/// Loops of a round: application, `inet`, driver.
pub const LOOPS: usize = 3;
/// Descriptors that end one sleep.
pub const SOURCES_MAX: usize = 7;

/// Microseconds of CLOCK_MONOTONIC, which all processes of a machine share.
pub fn now() -> Time {
    let now = clock_gettime(ClockId::Monotonic);
    Time(now.tv_sec.cast_unsigned() * 1_000_000 + now.tv_nsec.cast_unsigned() / 1000)
}

/// Whether fewer CPUs than `loops` may run this process, so that each loop shares its core with another one.
pub fn is_core_shared(loops: usize) -> bool {
    std::thread::available_parallelism().is_ok_and(|cores| cores.get() < loops)
}

/// What a turn of a loop has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    Nothing,
    /// Work, after which the round goes on in this process or on another core.
    Worked,
    /// Work, after which the round may go on in another process on this core.
    Handed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    Look,
    /// Arm all rings; if they allow it, [`Waiter::sleep`].
    Sleep,
}

/// Decides after each turn of a loop what comes next. One per thread.
#[derive(Debug)]
pub struct Waiter {
    is_shared: bool,
    /// [`LOOK_US`]; an experiment has others.
    look_us: u64,
    /// End of the last turn that found work, or of the last sleep.
    worked_at: Time,
    yielded_at: Time,
    timer: OwnedFd,
    /// When the timer fires; `NEVER` if it is not set.
    fires_at: Time,
}

impl Waiter {
    /// `is_shared`: another process of the round may run on this core ([`is_core_shared`]).
    pub fn new(is_shared: bool) -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let now = now();
        Ok(Self {
            is_shared,
            look_us: LOOK_US,
            worked_at: now,
            yielded_at: now,
            timer,
            fires_at: Time::NEVER,
        })
    }

    /// Sleeps after each turn, without a look.
    #[cfg(feature = "lab")]
    pub fn sleep_at_once(&mut self) {
        self.look_us = 0;
    }

    /// Yields where the round goes on in another process of this core: once after work was handed on, so that a round in
    /// its usual order has one switch for each change of process; and otherwise every [`LOOK_SHARED_US`].
    pub fn after(&mut self, turn: Turn) -> Next {
        let now = now();
        if self.look_us == 0 {
            return Next::Sleep;
        }
        if turn != Turn::Nothing {
            self.worked_at = now;
        } else if now.since(self.worked_at) >= self.look_us {
            return Next::Sleep;
        }
        let is_due = turn == Turn::Handed || now.since(self.yielded_at.max(self.worked_at)) >= LOOK_SHARED_US;
        if self.is_shared && is_due {
            rustix::thread::sched_yield();
            self.yielded_at = self::now();
        } else if turn == Turn::Nothing {
            std::hint::spin_loop();
        }
        Next::Look
    }

    /// Sleeps until one of `sources` is readable or has ended, or until `deadline`. Returns early after a signal, or
    /// for an earlier deadline of a former sleep.
    ///
    /// The timer is set only for a deadline earlier than the one it has: a timer set and cleared for each sleep costs
    /// more than the sleep's system call, and deadlines of TCP almost always move back before they expire.
    ///
    /// # Panics
    /// If there are more than [`SOURCES_MAX`] sources.
    pub fn sleep(&mut self, sources: &[(BorrowedFd<'_>, PollFlags)], deadline: Time) -> io::Result<()> {
        assert!(sources.len() <= SOURCES_MAX, "{} descriptors to wait for", sources.len());
        self.set(deadline)?;
        let timer = self.timer.as_fd();
        let mut polled: [_; SOURCES_MAX + 1] =
            std::array::from_fn(|_| PollFd::from_borrowed_fd(timer, PollFlags::IN));
        for (polled, &(source, interest)) in polled.iter_mut().zip(sources) {
            *polled = PollFd::from_borrowed_fd(source, interest);
        }
        let has_fired = match poll(&mut polled[..=sources.len()], None) {
            Ok(_) => !polled[sources.len()].revents().is_empty(),
            Err(rustix::io::Errno::INTR) => false,
            Err(error) => return Err(error.into()),
        };
        if has_fired {
            // Takes back the expiry. EAGAIN cannot happen, and would be harmless.
            let _ = rustix::io::read(&self.timer, &mut [0; 8]);
            self.fires_at = Time::NEVER;
        }
        self.worked_at = now();
        Ok(())
    }

    fn set(&mut self, deadline: Time) -> io::Result<()> {
        if deadline >= self.fires_at {
            return Ok(());
        }
        // A time of zero would clear the timer instead of firing it at once.
        let at = Time(deadline.0.max(1));
        let value = Timespec {
            tv_sec: (at.0 / 1_000_000).cast_signed(),
            tv_nsec: (at.0 % 1_000_000 * 1000).cast_signed(),
        };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &once)?;
        self.fires_at = at;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use area::Doorbell;

    use super::*;

    #[test]
    fn a_loop_without_work_looks_for_a_while_and_then_sleeps() {
        for is_shared in [false, true] {
            let mut waiter = Waiter::new(is_shared).unwrap();
            let start = now();
            assert_eq!(waiter.after(Turn::Worked), Next::Look);
            while waiter.after(Turn::Nothing) == Next::Look {}
            assert!(now().since(start) >= LOOK_US, "shared: {is_shared}");
            assert_eq!(waiter.after(Turn::Handed), Next::Look, "work is a new start");
        }
    }

    #[test]
    fn a_sleep_ends_by_the_bell_though_its_deadline_is_far() {
        let (bell, ringer) = Doorbell::new().unwrap();
        let mut waiter = Waiter::new(false).unwrap();
        ringer.ring();
        waiter.sleep(&[(bell.as_fd(), PollFlags::IN)], Time::NEVER).unwrap();
        waiter.sleep(&[(bell.as_fd(), PollFlags::IN)], now().after(3_600_000_000)).unwrap();
        bell.silence();
        let (ring, start) = (Duration::from_millis(20), now());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(ring);
                ringer.ring();
            });
            waiter.sleep(&[(bell.as_fd(), PollFlags::IN)], Time::NEVER).unwrap();
        });
        assert!(now().since(start) >= 20_000);
    }

    #[test]
    fn a_timer_is_set_for_an_earlier_deadline_only_and_fires_once() {
        let mut waiter = Waiter::new(false).unwrap();
        let start = now();
        let first = start.after(20_000);
        waiter.set(first).unwrap();
        waiter.set(start.after(3_600_000_000)).unwrap();
        assert_eq!(waiter.fires_at, first, "a later deadline leaves the timer");
        waiter.set(start.after(10_000)).unwrap();
        waiter.sleep(&[], start.after(3_600_000_000)).unwrap();
        let woken = now().since(start);
        assert!((10_000..20_000_000).contains(&woken), "{woken} us");
        assert_eq!(waiter.fires_at, Time::NEVER);
        waiter.sleep(&[], now().after(1000)).unwrap();
        waiter.sleep(&[], Time::ZERO).unwrap();
    }
}
