//! What a driver has mapped: the tables that the supervisor's messages change. A spare driver keeps it ready.

use std::io;
use std::os::fd::BorrowedFd;

use area::ring::Producer;
use area::{Region, Ringer};
use inet::step::{Step, mark};

use crate::layout::{self, Channel, FRAMES_BYTES};
use crate::slot::{Returned, Span};

/// Regions of all applications together; their numbers are below.
pub const REGIONS_MAX: usize = 256;
/// Applications; their numbers are below.
pub const CLIENTS_MAX: usize = 64;

#[derive(Debug)]
struct Mapping {
    client: u32,
    generation: u32,
    bytes: u32,
    /// Read-only. Not populated: that would give pages to holes of a memfd, and a fault maps 16 pages that exist.
    memory: Region,
}

#[derive(Debug)]
struct Client {
    channel: Channel,
    /// Of the driver at work; a spare does not touch the ring, which is its predecessor's.
    returns: Option<Producer>,
    bell: Ringer,
}

/// Memory that a driver maps, by who writes it: `inet` and the driver, the driver alone (frames), applications.
#[derive(Debug)]
pub struct Maps {
    pub(super) channel: Channel,
    pub(super) frames: Region,
    /// Of `inet`.
    pub(super) bell: Ringer,
    regions: Vec<Option<Mapping>>,
    clients: Vec<Option<Client>>,
    is_at_work: bool,
}

impl Maps {
    /// `frames` is open for writing and [`FRAMES_BYTES`] long; `bell` is that of `inet`.
    pub fn new(channel: Channel, frames: BorrowedFd<'_>, bell: Ringer) -> io::Result<Self> {
        let frames = Region::shared(frames, FRAMES_BYTES, true)?;
        Ok(Self {
            channel,
            frames,
            bell,
            regions: std::iter::repeat_with(|| None).take(REGIONS_MAX).collect(),
            clients: std::iter::repeat_with(|| None).take(CLIENTS_MAX).collect(),
            is_at_work: false,
        })
    }

    /// An application, in place of one that had its number. `channel` is [`layout::direct`]'s, `bell` its doorbell.
    pub fn add_client(&mut self, client: u32, channel: Channel, bell: Ringer) -> io::Result<()> {
        let place = self.clients.get_mut(client as usize).ok_or(io::ErrorKind::InvalidInput)?;
        let returns = self.is_at_work.then(|| layout::direct::nic(&channel));
        *place = Some(Client { returns, channel, bell });
        Ok(())
    }

    /// The application is gone, and `inet` has no frame at the driver that refers to its memory.
    pub fn remove_client(&mut self, client: u32) {
        if let Some(place) = self.clients.get_mut(client as usize) {
            *place = None;
        }
        for place in &mut self.regions {
            place.take_if(|mapping| mapping.client == client);
        }
    }

    /// Maps memory of an application, in place of what had its number. The supervisor has checked its seals.
    pub fn add_region(
        &mut self,
        client: u32,
        region: u32,
        generation: u32,
        memory: BorrowedFd<'_>,
        bytes: u32,
    ) -> io::Result<()> {
        let place = self.regions.get_mut(region as usize).ok_or(io::ErrorKind::InvalidInput)?;
        let memory = Region::shared(memory, bytes as usize, false)?;
        *place = Some(Mapping { client, generation, bytes, memory });
        Ok(())
    }

    /// The memory in which a span lies, if it is one of ours, of that generation, and the span is inside.
    pub(super) fn find(&self, span: &Span) -> Option<&Region> {
        let mapping = self.regions.get(span.region as usize)?.as_ref()?;
        let end = span.offset.checked_add(span.length)?;
        (mapping.generation == span.generation && end <= mapping.bytes).then_some(&mapping.memory)
    }

    /// The former driver has ended: its rings are this one's.
    pub(super) fn begin(&mut self) {
        self.is_at_work = true;
        for client in self.clients.iter_mut().flatten() {
            client.returns = Some(layout::direct::nic(&client.channel));
        }
    }

    /// Direct return. Returns whether the application had room for it; otherwise it learns of the bytes by a later
    /// return of the connection, or by their release.
    ///
    /// A bell is rung only if the application has armed this ring itself, and not the one of `inet` alone: the socket
    /// library never does, for the release wakes it anyway, so a return costs no system call. One that sleeps until its
    /// bytes are submitted (an experiment does) arms it.
    pub(super) fn return_directly(&mut self, client: u32, returned: Returned) -> bool {
        let Some(Some(client)) = self.clients.get_mut(client as usize) else { return false };
        let Some(returns) = &mut client.returns else { return false };
        // An application that breaks its ring loses returns; `inet` and the supervisor see to the rest.
        if !returns.room().is_ok_and(|room| room > 0) {
            return false;
        }
        returns.push(&returned.into());
        mark(Step::Returned);
        if returns.publish() {
            client.bell.ring();
        }
        true
    }
}
