//! What is behind the drivers: the network interface, or the wire to another stack.

use std::os::fd::{AsFd, BorrowedFd};

use super::Fault;
use super::config::Nic;
use crate::nic::{Opened, packet, tap, wire};

#[derive(Debug)]
pub(super) struct Link<'a> {
    nic: &'a Nic,
    /// Of a wire.
    end: Option<wire::End>,
    /// What drivers are given; `None` until the other end of a wire comes for the first time.
    opened: Option<Opened>,
    /// The other end of the wire is there.
    is_joined: bool,
}

/// The MTU of the device now; that at its opening if the kernel does not say.
pub(super) fn mtu(nic: &Nic, opened: &Opened) -> u16 {
    let now = match nic {
        Nic::Tap(name) | Nic::Packet(name) => tap::mtu(name).ok(),
        Nic::Wire(..) => None,
    };
    // `inet` attaches no interface with a smaller one: then the kernel refuses frames that are longer.
    now.unwrap_or(opened.mtu).max(crate::server::MTU_MIN)
}

/// What has become of a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Nothing,
    /// There is a new device, for new drivers.
    Joined,
    /// The other end has ended.
    Lost,
}

impl<'a> Link<'a> {
    pub(super) fn open(nic: &'a Nic, mac: [u8; 6]) -> Result<Self, Fault> {
        let (end, opened) = match nic {
            Nic::Tap(name) => (None, Some(tap::open(name).map_err(Fault::Nic)?)),
            Nic::Packet(name) => (None, Some(packet::open(name, mac).map_err(Fault::Nic)?)),
            Nic::Wire(path, _) => {
                let mut end = wire::End::new(path);
                let opened = end.join()?;
                (Some(end), opened)
            }
        };
        Ok(Self { nic, end, is_joined: opened.is_some(), opened })
    }

    pub(super) fn opened(&self) -> Option<&Opened> {
        self.opened.as_ref()
    }

    pub(super) fn mtu(&self) -> u16 {
        self.opened.as_ref().map_or(wire::MTU, |opened| mtu(self.nic, opened))
    }

    /// The other end of a wire is there; so is every interface.
    pub(super) fn is_joined(&self) -> bool {
        self.is_joined
    }

    /// The interface was deleted. Asked for, because a packet socket does not report it: its last event is that the
    /// interface is down.
    pub(super) fn is_gone(&self) -> bool {
        let Some(opened) = &self.opened else { return false };
        match self.nic {
            Nic::Tap(_) => tap::is_gone(opened.descriptor.as_fd()),
            Nic::Packet(_) => !packet::is_bound(opened.descriptor.as_fd()),
            Nic::Wire(..) => false,
        }
    }

    /// The interface is there, and set down.
    pub(super) fn is_down(&self) -> bool {
        match self.nic {
            Nic::Tap(name) | Nic::Packet(name) => tap::is_down(name),
            Nic::Wire(..) => false,
        }
    }

    /// Readable when a stack comes to the wire: [`Link::accept`].
    pub(super) fn listener(&self) -> Option<BorrowedFd<'_>> {
        self.end.as_ref().and_then(wire::End::listener)
    }

    /// Hangs up when the other end of the wire has ended: [`Link::on_hang_up`].
    pub(super) fn wire(&self) -> Option<BorrowedFd<'_>> {
        let opened = self.opened.as_ref().filter(|_| self.end.is_some() && self.is_joined)?;
        Some(opened.descriptor.as_fd())
    }

    pub(super) fn accept(&mut self) -> Change {
        let accepted = self.end.as_ref().and_then(|end| end.accept(self.is_joined));
        self.set(accepted)
    }

    pub(super) fn on_hang_up(&mut self) -> Result<Change, Fault> {
        self.is_joined = false;
        let Some(end) = &mut self.end else { return Ok(Change::Nothing) };
        let joined = end.join()?;
        Ok(match self.set(joined) {
            Change::Nothing => Change::Lost,
            change => change,
        })
    }

    fn set(&mut self, opened: Option<Opened>) -> Change {
        let Some(opened) = opened else { return Change::Nothing };
        self.opened = Some(opened);
        self.is_joined = true;
        Change::Joined
    }
}
