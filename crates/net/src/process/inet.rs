//! The process of the protocol server.

use std::convert::Infallible;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use area::{Doorbell, Region, Ringer};
use inet::{Lend, Memory, Record, Settings, TABLE_ALIGN, Time};
use rustix::event::PollFlags;

use super::{Doing, Fault, INET_USER, News, Pulse, Supervisor, exactly, isolate};
use crate::control::{FromInet, ToInet};
use crate::layout::{self, Channel, FRAMES_BYTES};
use crate::server::{self, Page, Server};
use crate::wait::{LOOPS, Next, Turn, Waiter, is_core_shared, now};

/// Interfaces that a supervisor starts drivers for.
const INTERFACES: u32 = 1;
/// The server's counters, then its pulse.
pub(crate) const COUNTERS_BYTES: usize = server::COUNTERS_BYTES + Pulse::BYTES;

/// Bytes of the memory of the state for so many applications.
pub(crate) fn state_bytes(clients_max: u32) -> usize {
    server::capacity(clients_max, INTERFACES).bytes().next_multiple_of(area::PAGE_BYTES)
}

/// Serves until the supervisor ends, or until something is wrong. To be called first in a process.
pub fn run() -> Result<Infallible, Fault> {
    let mut supervisor = Supervisor::new()?;
    let (message, descriptors) = supervisor.wait()?;
    let ToInet::Start { addresses, gateways, clients_max, secret } = message else {
        return Err(Fault::Unexpected);
    };
    let capacity = server::capacity(clients_max, INTERFACES);
    let (state, counters, bell) = {
        let [state, counters, bell, news] = exactly(descriptors)?;
        supervisor.news = Some(News::map(news.as_fd(), false).map_err(Fault::Memory)?);
        let state = Region::shared(state.as_fd(), state_bytes(clients_max), true).map_err(Fault::Memory)?;
        let counters = Region::shared(counters.as_fd(), COUNTERS_BYTES, true).map_err(Fault::Memory)?;
        (state, Arc::new(counters), bell)
    };
    // Looks at files of the system: before they are out of reach.
    let is_shared = is_core_shared(LOOPS);
    let waiter = Waiter::new(is_shared).map_err(Fault::Wait)?;
    let missing = isolate(INET_USER, false);
    let settings = Settings { addresses, gateways, secret };
    let memory = Memory::lend(&capacity, &mut Tables { region: &state, offset: 0 });
    let server = Server::new(memory, &capacity, &settings, Page::new(Arc::clone(&counters)), now());
    supervisor.send(&FromInet::Ready { missing })?;
    let mut inet = Inet {
        supervisor,
        server,
        waiter,
        bell: Doorbell::from_descriptor(bell),
        counters: Page::new(Arc::clone(&counters)),
        pulse: Pulse::new(counters, server::COUNTERS_BYTES),
        draining: Vec::new(),
        has_attached: false,
    };
    loop {
        let (message, descriptors) = inet.supervisor.wait()?;
        if message == ToInet::Go {
            return inet.serve();
        }
        inet.on_message(&message, descriptors)?;
    }
}

struct Inet<'m> {
    supervisor: Supervisor,
    server: Server<'m>,
    waiter: Waiter,
    bell: Doorbell,
    counters: Page,
    pulse: Pulse,
    /// Clients that are gone and not drained.
    draining: Vec<u32>,
    /// A driver has, and the supervisor knows it.
    has_attached: bool,
}

impl Inet<'_> {
    fn serve(&mut self) -> Result<Infallible, Fault> {
        loop {
            self.pulse.turn();
            if self.supervisor.has_news() {
                while let Some((message, descriptors)) = self.supervisor.take()? {
                    self.on_message(&message, descriptors)?;
                }
            }
            let turn = self.turn();
            self.report()?;
            if self.waiter.after(turn) == Next::Look || !self.server.arm() || self.supervisor.has_news() {
                continue;
            }
            let deadline = self.server.deadline(now()).unwrap_or(Time::NEVER);
            self.pulse.set(Doing::Sleeping { receives: false });
            let slept = self.waiter.sleep(&[(self.bell.as_fd(), PollFlags::IN)], deadline);
            self.pulse.set(Doing::Turning);
            slept.map_err(Fault::Wait)?;
            self.bell.silence();
        }
    }

    /// Work is handed on with frames to the driver only: after inputs the round goes on elsewhere, if at all.
    fn turn(&mut self) -> Turn {
        let frames = self.counters.frames_out.load(Ordering::Relaxed);
        if self.server.turn(now()) == 0 {
            Turn::Nothing
        } else if self.counters.frames_out.load(Ordering::Relaxed) != frames {
            Turn::Handed
        } else {
            Turn::Worked
        }
    }

    fn report(&mut self) -> Result<(), Fault> {
        if !self.has_attached && self.counters.attached.load(Ordering::Relaxed) > 0 {
            self.has_attached = true;
            self.supervisor.send(&FromInet::Attached)?;
        }
        while let Some(client) = self.server.faulty() {
            self.supervisor.send(&FromInet::Faulty { client })?;
        }
        if let Some(epoch) = self.server.faulty_driver(now()) {
            self.supervisor.send(&FromInet::DriverFaulty { epoch })?;
        }
        let mut result = Ok(());
        let (server, supervisor) = (&self.server, &self.supervisor);
        self.draining.retain(|&client| {
            let is_drained = server.is_drained(client);
            if is_drained && result.is_ok() {
                result = supervisor.send(&FromInet::Drained { client });
            }
            !is_drained
        });
        result
    }

    fn on_message(&mut self, message: &ToInet, descriptors: Vec<OwnedFd>) -> Result<(), Fault> {
        match *message {
            ToInet::Interface { interface } => {
                let [own, nic, frames, bell] = exactly(descriptors)?;
                let (own_bytes, nic_bytes) = (layout::driver::INET_BYTES, layout::driver::NIC_BYTES);
                let channel =
                    Channel::map(own.as_fd(), own_bytes, nic.as_fd(), nic_bytes).map_err(Fault::Memory)?;
                let frames = Region::shared(frames.as_fd(), FRAMES_BYTES, false).map_err(Fault::Memory)?;
                let bell = Ringer::from_descriptor(bell);
                self.server.add_interface(interface, channel, Arc::new(frames), bell);
            }
            ToInet::Client { client } => {
                let mut descriptors = descriptors;
                let copies = (descriptors.len() > 3).then(|| descriptors.pop()).flatten();
                let [own, theirs, bell] = exactly(descriptors)?;
                let (own_bytes, their_bytes) = (layout::client::INET_BYTES, layout::client::CLIENT_BYTES);
                let channel = Channel::map(own.as_fd(), own_bytes, theirs.as_fd(), their_bytes)
                    .map_err(Fault::Memory)?;
                let copies = copies
                    .map(|copies| Region::shared(copies.as_fd(), layout::received::BYTES, true))
                    .transpose()
                    .map_err(Fault::Memory)?;
                let bell = Ringer::from_descriptor(bell);
                self.server.add_client(client, &channel, bell, copies.map(Arc::new));
            }
            ToInet::Region { client, region, generation, bytes } => {
                let answer = match self.server.add_region(client, region, generation, bytes) {
                    true => FromInet::Known { region, generation },
                    false => FromInet::Faulty { client },
                };
                self.supervisor.send(&answer)?;
            }
            ToInet::ClientGone { client } => {
                self.server.client_gone(client, now());
                self.draining.push(client);
            }
            ToInet::Start { .. } | ToInet::Go => return Err(Fault::Unexpected),
        }
        Ok(())
    }
}

/// Tables one after another in the memory of the state.
struct Tables<'m> {
    region: &'m Region,
    offset: usize,
}

impl<'m> Lend<'m> for Tables<'m> {
    fn lend<T: Record>(&mut self, records: usize) -> &'m mut [T] {
        const { assert!(align_of::<T>() <= TABLE_ALIGN) };
        let bytes = records * size_of::<T>();
        let offset = self.offset;
        assert!(offset + bytes <= self.region.len(), "a table outside of the memory");
        self.offset += bytes.next_multiple_of(TABLE_ALIGN);
        // SAFETY: the range lies inside the region, which is mapped for 'm, and each range is lent once. The memory is
        // new and therefore zero, for which a record is valid; of all processes only this one maps it. Pages are aligned
        // to more than TABLE_ALIGN, and so is each table.
        unsafe { std::slice::from_raw_parts_mut(self.region.as_ptr().add(offset).cast::<T>(), records) }
    }
}

#[cfg(test)]
mod tests {
    use inet::Capacity;

    use super::*;
    use crate::layout::HEADS;

    #[test]
    fn the_tables_fill_the_memory_of_the_state_as_computed() {
        for clients in [1, 7, 64] {
            let region = Region::new(state_bytes(clients), false).unwrap();
            let mut tables = Tables { region: &region, offset: 0 };
            let capacity = server::capacity(clients, INTERFACES);
            assert_eq!(capacity, Capacity { clients, frames: HEADS as u32, ..Capacity::default() });
            let _ = Memory::lend(&capacity, &mut tables);
            assert_eq!(tables.offset, capacity.bytes());
        }
    }
}
