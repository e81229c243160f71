//! How a process waits, where it runs, and what a switch between two processes of one core costs in this run.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use area::Region;
use area::ring::{Mapped, Words};
use net::wait::{LOOPS, Waiter, is_core_shared};
use serde::{Deserialize, Serialize};

/// How both ends wait for bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Waiting {
    /// Looks again and again.
    Spin,
    /// The same where processes share a core: yields once after work, and otherwise every 5 us (`net::wait`).
    Round,
    /// Sleeps in the kernel at once.
    Block,
    /// Looks for 30 us and sleeps then, as the servers do.
    Look,
    /// The same where processes share a core, with the yields of `Round`.
    LookRound,
}

impl Waiting {
    pub(super) const ALL: [Self; 5] = [Self::Spin, Self::Round, Self::Block, Self::Look, Self::LookRound];

    /// Of the peer and the application where three processes of a round run, and fewer cores than ends and servers.
    pub(super) fn among_servers(self) -> Self {
        match self {
            Self::Spin if is_core_shared(LOOPS + 1) => Self::Round,
            Self::Look if is_core_shared(LOOPS + 1) => Self::LookRound,
            other => other,
        }
    }

    /// The rule of a loop that looks; `None` if it only looks, or never.
    pub(super) fn waiter(self) -> io::Result<Option<Waiter>> {
        Ok(match self {
            Self::Spin | Self::Block => None,
            Self::Round | Self::LookRound => Some(Waiter::new(true)?),
            Self::Look => Some(Waiter::new(false)?),
        })
    }

    /// A loop that has found nothing for a while may sleep.
    pub(super) fn sleeps(self) -> bool {
        matches!(self, Self::Look | Self::LookRound)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Spin | Self::Round => "spinning",
            Self::Block => "blocking at once",
            Self::Look | Self::LookRound => "blocking after 30 us",
        }
    }
}

/// Binds the calling thread to a core; to none, if that core does not exist.
pub(super) fn pin(cpu: Option<usize>) {
    let Some(cpu) = cpu else { return };
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// Microseconds of one switch from a process to another on one core by sched_yield: two processes that share a counter
/// take turns.
pub(super) fn switch_us() -> io::Result<f64> {
    const TURNS: u64 = 20_000;
    let memory = memory()?;
    let turn = Mapped::new(Arc::new(Region::shared(memory.as_fd(), area::PAGE_BYTES, true)?), 0, 8);
    let play = |side: u64| {
        pin(Some(0));
        loop {
            let now = turn.load(0, Ordering::Acquire);
            if now >= TURNS {
                return;
            }
            if now % 2 == side {
                turn.store(0, now + 1, Ordering::Release);
            } else {
                // A core that runs something else meanwhile is this run's own noise.
                std::thread::yield_now();
            }
        }
    };
    // SAFETY: the child only plays, which allocates nothing and takes no lock, and exits.
    let child = unsafe { libc::fork() };
    match child {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            play(1);
            // SAFETY: ends the child without running what belongs to the parent.
            unsafe { libc::_exit(0) }
        }
        child => {
            let begin = Instant::now();
            std::thread::scope(|scope| scope.spawn(|| play(0)).join()).map_err(|_| io::ErrorKind::Other)?;
            let us = begin.elapsed().as_secs_f64() * 1e6;
            let mut status = 0;
            // SAFETY: the child was started above; the call fills an int.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            Ok(us / TURNS as f64)
        }
    }
}

fn memory() -> io::Result<OwnedFd> {
    let memory = rustix::fs::memfd_create("hikyaku-lab", rustix::fs::MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&memory, area::PAGE_BYTES as u64)?;
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_takes_some_time_below_a_millisecond() {
        let us = switch_us().unwrap();
        assert!(us > 0.01 && us < 1000.0, "{us} us");
    }
}
