//! `inet` and `nic` as processes: what they do with the supervisor's messages, and their loops. Each has one thread, gives
//! up all rights before it sees a byte of a frame or of an application, and ends when its supervisor does.

mod inet;
mod nic;
mod pages;

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use confine::Isolation;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt::socket_peercred;
use serde::de::DeserializeOwned;
use thiserror::Error;

pub use self::inet::run as run_inet;
pub(crate) use self::inet::{COUNTERS_BYTES as INET_COUNTERS_BYTES, state_bytes};
pub use self::nic::run as run_nic;
pub(crate) use self::nic::{COUNTERS_BYTES as NIC_COUNTERS_BYTES, read as read_nic, sum as sum_nic};
pub(crate) use self::pages::{Doing, News, Pulse};

use crate::control_socket;

/// Numeric users of the two servers. Neither belongs to an account: 65520 to 65533 lie behind the ranges of people,
/// packages and systemd's dynamic users, and within what a container usually maps.
const INET_USER: u32 = 65_520;
const NIC_USER: u32 = 65_521;

/// Why a server ends.
#[derive(Debug, Error)]
pub enum Fault {
    #[error("the control socket: {0}")]
    Control(io::Error),
    #[error("a control message that does not belong here, or has other descriptors than it needs")]
    Unexpected,
    #[error("memory cannot be mapped: {0}")]
    Memory(io::Error),
    #[error("waiting: {0}")]
    Wait(io::Error),
    #[error(transparent)]
    Driver(#[from] crate::nic::Fault),
    #[error("standard input is no socket of a supervisor that lives: `hikyaku net up` starts its servers")]
    NoSupervisor,
}

/// The supervisor, as a server sees it.
struct Supervisor {
    control: OwnedFd,
    news: Option<News>,
    /// Messages received.
    received: u64,
}

impl Supervisor {
    /// Of the socket that the supervisor passes as standard input, which does not block. All else that this process has
    /// inherited is closed, but for the standard descriptors.
    fn new() -> Result<Self, Fault> {
        // SAFETY: called first in a process, which has opened nothing that it still uses.
        unsafe { libc::close_range(3, libc::c_uint::MAX, 0) };
        let control = io::stdin().as_fd().try_clone_to_owned().map_err(Fault::Control)?;
        let peer = socket_peercred(&control).map_err(|_| Fault::NoSupervisor)?;
        // Another parent: the supervisor has ended before this process could ask for the death signal.
        if rustix::process::getppid() != Some(peer.pid) {
            return Err(Fault::NoSupervisor);
        }
        Ok(Self { control, news: None, received: 0 })
    }

    /// Whether messages wait, by the shared page.
    fn has_news(&self) -> bool {
        self.news.as_ref().is_some_and(|news| news.count() != self.received)
    }

    /// The next message, if there is one.
    fn take<T: DeserializeOwned>(&mut self) -> Result<Option<(T, Vec<OwnedFd>)>, Fault> {
        match control_socket::receive(&self.control) {
            Ok(Some(message)) => {
                self.received += 1;
                Ok(Some(message))
            }
            Ok(None) => Err(Fault::NoSupervisor),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(Fault::Control(error)),
        }
    }

    /// Waits for the next message.
    fn wait<T: DeserializeOwned>(&mut self) -> Result<(T, Vec<OwnedFd>), Fault> {
        loop {
            if let Some(message) = self.take()? {
                return Ok(message);
            }
            match poll(&mut [PollFd::new(&self.control, PollFlags::IN)], None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(Fault::Wait(error.into())),
            }
        }
    }

    fn send(&self, message: &impl serde::Serialize) -> Result<(), Fault> {
        control_socket::send(self.control.as_fd(), message, &[]).map_err(Fault::Control)
    }
}

/// Gives up all rights; the parts that stay, and why.
fn isolate(user: u32, has_device: bool) -> Vec<String> {
    Isolation { user, has_device }.apply().missing
}

/// Exactly `N` descriptors.
fn exactly<const N: usize>(descriptors: Vec<OwnedFd>) -> Result<[OwnedFd; N], Fault> {
    descriptors.try_into().map_err(|_| Fault::Unexpected)
}
