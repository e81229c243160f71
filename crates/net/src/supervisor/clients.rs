//! The applications: their numbers, the numbers of their memory, and what each may have; without sockets.

use thiserror::Error;

use crate::nic::REGIONS_MAX;
use crate::server;

/// Memory of one application that servers know, bytes.
pub(super) const BYTES_MAX: u64 = 1 << 30;

/// Why an application does not get what it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(super) enum Refusal {
    #[error("full: {0} of {0} applications are here (net up --clients N)")]
    Full(u32),
    #[error("the frames of an application that has left still wait at the network interface")]
    Draining,
    #[error("memory of 0 bytes, or of no whole number of pages")]
    Size,
    #[error("more than {0} pieces of memory")]
    Regions(usize),
    #[error("more than {BYTES_MAX} bytes of memory")]
    Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Free,
    Used,
    /// Its application is gone; frames of it may still wait at the driver.
    Draining,
}

/// A number of memory, for all applications together: drivers know memory by it.
#[derive(Clone, Copy, Debug, Default)]
struct Region {
    /// Counts the uses of the number.
    generation: u32,
    held: Option<Held>,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    client: u32,
    bytes: u32,
    /// Servers whose answer is not here yet.
    waits_for_inet: bool,
    waits_for_driver: bool,
}

/// A server that answers when it knows a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Server {
    Inet,
    Driver,
}

#[derive(Debug)]
pub(super) struct Clients {
    places: Vec<Place>,
    regions: Vec<Region>,
    /// Of one application.
    regions_max: usize,
}

/// Pieces of memory of one application.
fn regions_max(clients_max: u32) -> usize {
    (REGIONS_MAX / clients_max as usize).min(server::REGIONS_MAX)
}

/// Open files of a supervisor with the most applications and memory: two of each memory that is shared with an application
/// (5), its bell, its socket, and what it sends from.
pub(super) fn descriptors(clients_max: u32) -> u64 {
    /// Standard streams, the socket, the device; memory and bells of the interface; of three servers and one that is ending
    /// the process, socket, pages and log; connections that are no applications.
    const OTHERS: u64 = 96;
    const OF_APPLICATION: u64 = 2 * 5 + 2 + 1;
    OTHERS + u64::from(clients_max) * (OF_APPLICATION + regions_max(clients_max) as u64)
}

impl Clients {
    pub(super) fn new(clients_max: u32) -> Self {
        let regions_max = regions_max(clients_max);
        Self {
            places: vec![Place::Free; clients_max as usize],
            regions: vec![Region::default(); REGIONS_MAX],
            regions_max,
        }
    }

    /// The number of a new application.
    pub(super) fn join(&mut self) -> Result<u32, Refusal> {
        let number = self.place()?;
        self.places[number] = Place::Used;
        Ok(number as u32)
    }

    /// Where a new application would be.
    pub(super) fn place(&self) -> Result<usize, Refusal> {
        let free = self.places.iter().position(|place| *place == Place::Free);
        free.ok_or_else(|| match self.is_draining() {
            true => Refusal::Draining,
            false => Refusal::Full(self.places.len() as u32),
        })
    }

    /// Its memory goes when it is drained.
    pub(super) fn leave(&mut self, client: u32) {
        self.places[client as usize] = Place::Draining;
    }

    /// False if no such application has left: a server is not trusted.
    pub(super) fn on_drained(&mut self, client: u32) -> bool {
        let Some(place @ Place::Draining) = self.places.get_mut(client as usize) else { return false };
        *place = Place::Free;
        for region in &mut self.regions {
            region.held.take_if(|held| held.client == client);
        }
        true
    }

    /// Number and generation of memory of an application, which has been checked.
    pub(super) fn add_region(
        &mut self,
        client: u32,
        bytes: u32,
        has_driver: bool,
    ) -> Result<(u32, u32), Refusal> {
        if bytes == 0 || !(bytes as usize).is_multiple_of(area::PAGE_BYTES) {
            return Err(Refusal::Size);
        }
        let own = self.regions.iter().filter_map(|region| region.held).filter(|held| held.client == client);
        let (count, sum) = own.fold((0, 0), |(count, sum), held| (count + 1, sum + u64::from(held.bytes)));
        if count >= self.regions_max {
            return Err(Refusal::Regions(self.regions_max));
        }
        if sum + u64::from(bytes) > BYTES_MAX {
            return Err(Refusal::Bytes);
        }
        // There is one: the shares of all applications together are no more than there are numbers.
        let free = self.regions.iter_mut().enumerate().find(|(_, region)| region.held.is_none());
        let (number, region) = free.ok_or(Refusal::Regions(self.regions_max))?;
        region.generation = region.generation.wrapping_add(1);
        region.held = Some(Held { client, bytes, waits_for_inet: true, waits_for_driver: has_driver });
        Ok((number as u32, region.generation))
    }

    /// A server knows a region. Returns the application if it can be told the number now.
    pub(super) fn on_known(&mut self, server: Server, number: u32, generation: u32) -> Option<u32> {
        let region = self.regions.get_mut(number as usize)?;
        let held = region.held.as_mut().filter(|_| region.generation == generation)?;
        let waits = match server {
            Server::Inet => &mut held.waits_for_inet,
            Server::Driver => &mut held.waits_for_driver,
        };
        let is_news = std::mem::replace(waits, false);
        (is_news && !held.waits_for_inet && !held.waits_for_driver).then_some(held.client)
    }

    /// The driver is gone. Its successor maps what was sent to it before it works, so nothing waits for its answer;
    /// returns the regions that can be told now.
    pub(super) fn on_driver_ended(&mut self) -> Vec<(u32, u32, u32)> {
        let mut known = Vec::new();
        for number in 0..self.regions.len() as u32 {
            let generation = self.regions[number as usize].generation;
            if let Some(client) = self.on_known(Server::Driver, number, generation) {
                known.push((client, number, generation));
            }
        }
        known
    }

    pub(super) fn is_draining(&self) -> bool {
        self.places.contains(&Place::Draining)
    }

    /// Pieces of memory of an application, and their bytes.
    pub(super) fn memory_of(&self, client: u32) -> (usize, u64) {
        let own = self.regions.iter().filter_map(|region| region.held).filter(|held| held.client == client);
        own.fold((0, 0), |(count, sum), held| (count + 1, sum + u64::from(held.bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u32 = area::PAGE_BYTES as u32;

    #[test]
    fn a_place_is_free_again_once_its_application_is_drained() {
        let mut clients = Clients::new(1);
        assert_eq!(clients.join(), Ok(0));
        assert_eq!(clients.join(), Err(Refusal::Full(1)));
        assert!(!clients.on_drained(0), "it is here");
        clients.leave(0);
        assert_eq!((clients.join(), clients.is_draining()), (Err(Refusal::Draining), true));
        assert!(!clients.on_drained(1), "there is none");
        assert!(clients.on_drained(0) && !clients.on_drained(0));
        assert_eq!(clients.join(), Ok(0));
    }

    #[test]
    fn a_region_is_told_when_both_servers_know_it() {
        let mut clients = Clients::new(2);
        clients.join().unwrap();
        let (number, generation) = clients.add_region(0, PAGE, true).unwrap();
        assert_eq!(clients.on_known(Server::Inet, number, generation + 1), None, "another generation");
        assert_eq!(clients.on_known(Server::Inet, 9999, generation), None, "no such number");
        assert_eq!(clients.on_known(Server::Inet, number, generation), None);
        assert_eq!(clients.on_known(Server::Driver, number, generation), Some(0));
        assert_eq!(clients.on_known(Server::Driver, number, generation), None, "once");
        let (second, generation) = clients.add_region(0, PAGE, false).unwrap();
        assert_ne!(second, number);
        assert_eq!(clients.on_known(Server::Inet, second, generation), Some(0), "no driver at present");
    }

    #[test]
    fn a_driver_that_ended_keeps_nobody_waiting() {
        let mut clients = Clients::new(1);
        clients.join().unwrap();
        let (one, of_one) = clients.add_region(0, PAGE, true).unwrap();
        let (two, of_two) = clients.add_region(0, PAGE, true).unwrap();
        clients.on_known(Server::Inet, one, of_one);
        assert_eq!(clients.on_driver_ended(), [(0, one, of_one)]);
        assert_eq!(clients.on_driver_ended(), []);
        assert_eq!(clients.on_known(Server::Inet, two, of_two), Some(0));
    }

    #[test]
    fn what_one_application_has_is_bounded_and_takes_nothing_from_others() {
        let mut clients = Clients::new(16);
        clients.join().unwrap();
        clients.join().unwrap();
        for wrong in [0, 1, PAGE - 1, PAGE + 1, u32::MAX] {
            assert_eq!(clients.add_region(0, wrong, true), Err(Refusal::Size));
        }
        for _ in 0..16 {
            clients.add_region(0, PAGE, true).unwrap();
        }
        assert_eq!(clients.add_region(0, PAGE, true), Err(Refusal::Regions(16)));
        assert!(clients.add_region(1, 1 << 30, true).is_ok());
        assert_eq!(clients.add_region(1, PAGE, true), Err(Refusal::Bytes));
        assert_eq!(clients.memory_of(0), (16, 16 * u64::from(PAGE)));
    }

    #[test]
    fn the_number_of_memory_that_is_gone_comes_back_with_another_generation() {
        let mut clients = Clients::new(1);
        clients.join().unwrap();
        let (number, generation) = clients.add_region(0, PAGE, true).unwrap();
        clients.leave(0);
        assert!(clients.on_drained(0));
        assert_eq!(clients.on_known(Server::Inet, number, generation), None);
        clients.join().unwrap();
        assert_eq!(clients.add_region(0, PAGE, true), Ok((number, generation + 1)));
    }
}
