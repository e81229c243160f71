//! Request management: the only module that meets other processes. It takes requests and inputs out of rings, gives them
//! to the other two modules, answers, and rings bells.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use area::ring::{Consumer, Corrupt, Producer};
use area::{Region, Ringer};
use inet::step::{Step, mark};
use inet::{Capacity, ClientId, InterfaceId, Memory, Settings, Time};

use super::counters::{Counters, Page};
use super::protocol::Protocol;
use super::socket::Sockets;
use super::{ANSWERS_MAX, CLIENT_LOOK_US, EVENTS_PER_TURN, INTERFACES_MAX, Quota, REQUESTS_PER_TURN};
use crate::layout::{self, Channel};
use crate::slot::Completion;

/// The protocol server.
///
/// Its loop calls [`Server::turn`] while that does something, waits as it likes, then [`Server::arm`]; if that allows it,
/// it sleeps on its doorbell until [`Server::deadline`]. Memory of clients and drivers comes by `add_*` between two turns.
pub struct Server<'m> {
    drivers: [Option<Driver>; INTERFACES_MAX],
    clients: Vec<Option<Client>>,
    /// The client whose requests come first in the next turn.
    first: usize,
    sockets: Sockets,
    protocol: Protocol<'m>,
    counters: Page,
    faulty: VecDeque<ClientId>,
    is_armed: bool,
    answers: Vec<Completion>,
}

struct Driver {
    inputs: Consumer,
    bell: Ringer,
}

struct Client {
    requests: Consumer,
    completions: Producer,
    bell: Ringer,
    has_pushed: bool,
    /// Its ring of completions has no room for what waits.
    is_blocked: bool,
    is_faulty: bool,
}

impl<'m> Server<'m> {
    /// `capacity` is that of the memory.
    pub fn new(
        memory: Memory<'m>,
        capacity: &Capacity,
        settings: &Settings,
        counters: Page,
        now: Time,
    ) -> Self {
        let quota = Quota::new(capacity);
        Self {
            drivers: std::array::from_fn(|_| None),
            clients: (0..quota.clients).map(|_| None).collect(),
            first: 0,
            sockets: Sockets::new(capacity, quota),
            protocol: Protocol::new(memory, capacity, settings, counters.clone(), now),
            counters,
            faulty: VecDeque::new(),
            is_armed: false,
            answers: Vec::new(),
        }
    }

    /// A driver's rings, the memory of its frames and its doorbell.
    ///
    /// # Panics
    /// If the interface is there already or has too high a number, or the memory is short.
    pub fn add_interface(
        &mut self,
        interface: InterfaceId,
        channel: Channel,
        frames: Arc<Region>,
        bell: Ringer,
    ) {
        let (_, _, inputs) = layout::driver::inet(&channel);
        self.protocol.add_interface(interface, channel, frames);
        self.drivers[usize::from(interface)] = Some(Driver { inputs, bell });
    }

    /// An application's rings and doorbell; unless it is the only client, memory to copy received bytes into.
    ///
    /// # Panics
    /// If the client is there already or has too high a number, or the memory is short.
    pub fn add_client(
        &mut self,
        client: ClientId,
        channel: &Channel,
        bell: Ringer,
        copies: Option<Arc<Region>>,
    ) {
        let (requests, completions) = layout::client::inet(channel);
        self.sockets.add_client(client, copies);
        self.clients[client as usize] = Some(Client {
            requests,
            completions,
            bell,
            has_pushed: false,
            is_blocked: false,
            is_faulty: false,
        });
    }

    /// Memory of a client, from which it may send once the driver has mapped it. `false` if it has too much.
    pub fn add_region(&mut self, client: ClientId, region: u32, generation: u32, bytes: u32) -> bool {
        self.sockets.add_region(client, region, generation, bytes)
    }

    /// Resets the client's connections and forgets it. Its number and memory may be used again once
    /// [`Server::is_drained`].
    pub fn client_gone(&mut self, client: ClientId, now: Time) {
        self.sockets.client_gone(client, &mut self.protocol, now);
        if let Some(place) = self.clients.get_mut(client as usize) {
            *place = None;
        }
    }

    /// No frame at a driver refers to memory of a client that is gone.
    pub fn is_drained(&self, client: ClientId) -> bool {
        self.protocol.is_drained(client)
    }

    /// The next client to be disconnected: it has broken its rings, and is ignored until [`Server::client_gone`].
    pub fn faulty(&mut self) -> Option<ClientId> {
        self.faulty.pop_front()
    }

    /// The epoch of a driver that has to be replaced: it has broken its rings. Said again from time to time until another one
    /// attaches.
    pub fn faulty_driver(&mut self, now: Time) -> Option<u32> {
        self.protocol.faulty_driver(now)
    }

    /// Takes all that waits in rings, up to the bounds of one turn, and answers. Returns how much was done; after 0
    /// nothing waits but what a bell or [`Server::deadline`] will say.
    pub fn turn(&mut self, now: Time) -> usize {
        if std::mem::take(&mut self.is_armed) {
            self.disarm();
        }
        let mut done = self.take_inputs(now);
        self.protocol.look_at_drivers(now);
        let count = self.clients.len();
        for place in 0..count {
            let client = (self.first + place) % count;
            done += self.take_requests(client, now);
        }
        self.first = (self.first + 1) % count;
        done += usize::from(self.protocol.on_time(now));
        done += self.protocol.transmit(now);
        for client in 0..count {
            done += self.deliver(client, now);
        }
        self.protocol.fill();
        self.finish();
        if done > 0 {
            Counters::add(&self.counters.turns, 1);
        }
        done
    }

    fn take_inputs(&mut self, now: Time) -> usize {
        let mut done = 0;
        for (interface, driver) in self.drivers.iter_mut().enumerate() {
            let Some(driver) = driver else { continue };
            // As many as were there: a driver as fast as this loop would keep it from all else.
            let Ok(ready) = driver.inputs.ready() else {
                self.protocol.on_corrupt(interface as InterfaceId);
                continue;
            };
            for _ in 0..ready {
                match driver.inputs.take() {
                    Ok(Some(slot)) => self.protocol.on_input(interface as InterfaceId, &slot.into(), now),
                    Ok(None) | Err(Corrupt) => break,
                }
                done += 1;
            }
        }
        done
    }

    fn take_requests(&mut self, number: usize, now: Time) -> usize {
        let Some(client) = self.clients[number].as_mut().filter(|client| !client.is_faulty) else { return 0 };
        client.is_blocked = false;
        let mut done = 0;
        while done < REQUESTS_PER_TURN {
            let taken = match client.has_room(ANSWERS_MAX) {
                Ok(true) => client.requests.take(),
                Ok(false) => {
                    client.is_blocked = true;
                    break;
                }
                Err(Corrupt) => Err(Corrupt),
            };
            match taken {
                Ok(Some(slot)) => {
                    mark(Step::RequestTaken);
                    done += 1;
                    let id = number as ClientId;
                    let is_refused =
                        self.sockets.on_request(id, &slot.into(), &mut self.protocol, now, &mut self.answers);
                    Counters::add(&self.counters.requests_refused, u64::from(is_refused));
                    for answer in self.answers.drain(..) {
                        client.push(answer, &self.counters);
                    }
                }
                Ok(None) => break,
                Err(Corrupt) => {
                    client.is_faulty = true;
                    self.faulty.push_back(number as ClientId);
                    Counters::add(&self.counters.clients_faulty, 1);
                    break;
                }
            }
        }
        Counters::add(&self.counters.requests, done as u64);
        done
    }

    /// Delivers events as far as the client has room, less what answers may need.
    fn deliver(&mut self, number: usize, now: Time) -> usize {
        let Some(client) = self.clients[number].as_mut().filter(|client| !client.is_faulty) else { return 0 };
        let mut done = 0;
        while done < EVENTS_PER_TURN {
            // A broken counter is found by the next `take_requests`.
            if !client.has_room(1 + ANSWERS_MAX).unwrap_or(false) {
                client.is_blocked = true;
                break;
            }
            let Some(event) = self.sockets.poll_event(number as ClientId, &mut self.protocol, now) else {
                break;
            };
            client.push(event, &self.counters);
            done += 1;
        }
        done
    }

    /// Publishes, then consumes what was read: a server that dies in between repeats its inputs, which is harmless.
    /// Bells come last.
    fn finish(&mut self) {
        let sleeping = self.protocol.publish();
        for client in self.clients.iter_mut().flatten() {
            let sleeps = std::mem::take(&mut client.has_pushed) && client.completions.publish();
            client.requests.consume();
            if sleeps {
                client.bell.ring();
            }
        }
        for (driver, sleeps) in self.drivers.iter_mut().zip(sleeping) {
            let Some(driver) = driver else { continue };
            driver.inputs.consume();
            if sleeps {
                driver.bell.ring();
            }
        }
        self.counters.sockets.store(self.sockets.count() as u64, Ordering::Relaxed);
    }

    /// When [`Server::turn`] must be called though no bell rings.
    pub fn deadline(&self, now: Time) -> Option<Time> {
        let is_blocked = self.clients.iter().flatten().any(|client| client.is_blocked);
        let look = is_blocked.then(|| now.after(CLIENT_LOOK_US));
        [self.protocol.deadline(now), look].into_iter().flatten().min()
    }

    /// Announces on all rings that this process is about to sleep, and looks once more. Returns whether it may; the next
    /// turn withdraws the announcement.
    pub fn arm(&mut self) -> bool {
        self.is_armed = true;
        let mut may_sleep = true;
        for driver in self.drivers.iter_mut().flatten() {
            // A broken ring is dropped at the next turn, which must not come at once again and again.
            may_sleep &= driver.inputs.arm().unwrap_or(true);
        }
        // The requests of a client without room for answers wait for the deadline.
        let clients = self.clients.iter_mut().flatten();
        for client in clients.filter(|client| !client.is_blocked && !client.is_faulty) {
            may_sleep &= client.requests.arm().unwrap_or(false);
        }
        if !may_sleep {
            self.is_armed = false;
            self.disarm();
        }
        may_sleep
    }

    fn disarm(&mut self) {
        for driver in self.drivers.iter_mut().flatten() {
            driver.inputs.disarm();
        }
        for client in self.clients.iter_mut().flatten() {
            client.requests.disarm();
        }
    }
}

impl Client {
    fn has_room(&mut self, completions: u64) -> Result<bool, Corrupt> {
        if self.completions.room()? >= completions {
            return Ok(true);
        }
        // `room` looks at the client's counter only if the ring is full.
        self.completions.consumed()?;
        Ok(self.completions.room()? >= completions)
    }

    fn push(&mut self, completion: Completion, counters: &Counters) {
        self.completions.push(&completion.into());
        self.has_pushed = true;
        Counters::add(&counters.completions, 1);
    }
}
