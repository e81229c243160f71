//! After each change of a connection: its lists, its timer, its place in the table, and its end.

use super::Engine;
use zerocopy::FromZeros as _;

use crate::chain::Chain;
use crate::iface::Route;
use crate::tcp::{ChainKind, Connection, Final, State, TimeWait, Tuple};
use crate::{ClientId, Ended, NONE, Options, SeqNumber, Time};

/// What the table finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Connection(u32),
    TimeWait(u32),
}

impl Engine<'_> {
    /// Puts everything in order that depends on a connection's record.
    pub(super) fn settle(&mut self, index: u32) {
        let connection = &mut self.connections[index as usize];
        if connection.state == State::Free {
            return;
        }
        let is_over = connection.state == State::Over;
        if is_over && connection.is_in_table {
            self.unlink(index);
        }
        let connection = &mut self.connections[index as usize];
        let client = connection.client;
        let waits = connection.send.reclaim(&mut self.pools, client, is_over);
        let has_freed = std::mem::take(&mut connection.send.has_freed);
        let at = connection.deadline();
        let may_send = std::mem::take(&mut connection.may_send);
        let (is_done, reports) = (connection.is_done(), connection.is_clients() && connection.has_event());
        let (was_waiting, was_reported) =
            (connection.is_in(ChainKind::AtDriver), connection.is_in(ChainKind::Reports));
        let (is_orphan, was_orphan) =
            (connection.is_closed && !is_over, connection.is_in(ChainKind::Orphans));
        let header = &mut *self.pools.header;
        if may_send {
            header.sending.push_back(self.connections, ChainKind::Sending, index);
        }
        if waits != was_waiting {
            match waits {
                true => header.at_driver.push_back(self.connections, ChainKind::AtDriver, index),
                false => header.at_driver.remove(self.connections, ChainKind::AtDriver, index),
            }
        }
        if reports != was_reported {
            let chain = &mut self.pools.clients[client as usize].reports;
            match reports {
                true => chain.push_back(self.connections, ChainKind::Reports, index),
                false => chain.remove(self.connections, ChainKind::Reports, index),
            }
        }
        if is_orphan != was_orphan {
            let chain = &mut self.pools.clients[client as usize].orphans;
            match is_orphan {
                true => chain.push_back(self.connections, ChainKind::Orphans, index),
                false => chain.remove(self.connections, ChainKind::Orphans, index),
            }
        }
        self.timers.set(index, at);
        if is_done {
            self.free(index);
        }
        if has_freed && self.pools.header.want_room.length > 0 {
            self.offer_room();
        }
    }

    /// A connection that is over can no longer be found, nor accepted.
    fn unlink(&mut self, index: u32) {
        let header = &mut *self.pools.header;
        let connection = &mut self.connections[index as usize];
        connection.is_in_table = false;
        let (tuple, listener) = (connection.tuple, connection.listener);
        let leaves = connection.leaves_time_wait.then(|| connection.time_wait());
        self.table.remove(self.secret.table(&tuple), index);
        if connection.is_in(ChainKind::HalfOpen) {
            header.half_open.remove(self.connections, ChainKind::HalfOpen, index);
            self.listeners[listener as usize].half_open -= 1;
        } else if listener != NONE {
            let listener = &mut self.listeners[listener as usize];
            listener.queue.remove(self.connections, ChainKind::Queue, index);
            if listener.incoming > listener.queue.length {
                listener.incoming -= 1;
                self.pools.clients[listener.client as usize].incoming -= 1;
            }
            // Its id was never returned to a client, so no event of it is due.
            self.connections[index as usize].abandon(&mut self.pools);
        }
        self.pools.header.want_room.remove(self.connections, ChainKind::WantRoom, index);
        if let Some(time_wait) = leaves {
            self.insert_time_wait(time_wait);
        }
    }

    /// Makes a record free for the next connection.
    fn free(&mut self, index: u32) {
        let header = &mut *self.pools.header;
        let connection = &self.connections[index as usize];
        let (client, generation) = (connection.client, connection.generation);
        let record = &mut self.pools.clients[client as usize];
        record.connections -= 1;
        record.reports.remove(self.connections, ChainKind::Reports, index);
        header.sending.remove(self.connections, ChainKind::Sending, index);
        header.at_driver.remove(self.connections, ChainKind::AtDriver, index);
        let connection = &mut self.connections[index as usize];
        *connection = Connection::new_zeroed();
        connection.generation = generation.wrapping_add(1);
        header.free_connections.push_back(self.connections, ChainKind::Queue, index);
        self.timers.set(index, Time::NEVER);
    }

    /// Whether a client may have one more connection. If its share is nearly used up its oldest orphan is reset; if it is
    /// used up the oldest of its half-open connections gives way.
    pub(super) fn make_room(&mut self, client: ClientId) -> bool {
        let capacity = self.pools.header.capacity;
        let (share, used) =
            (capacity.connections_of_client(), self.pools.clients[client as usize].connections);
        if used + capacity.room_of_client() > share {
            self.reset_orphan(client);
        }
        if used >= share && !self.drop_half_open(|connection| connection.client == client) {
            return false;
        }
        self.pools.header.free_connections.length > 0
    }

    /// Ends the connection of a client that waits longest since its client has closed it, if there is one: RST.
    pub fn reset_orphan(&mut self, client: ClientId) {
        let Some(orphan) = self.pools.clients.get(client as usize).and_then(|it| it.orphans.first()) else {
            return;
        };
        self.pools.header.drops.orphans += 1;
        self.connections[orphan as usize].abort(&mut self.pools);
        self.settle(orphan);
    }

    /// Forgets the oldest half-open connection of those that fit: a flood of SYN displaces itself.
    pub(super) fn drop_half_open(&mut self, fits: impl Fn(&Connection) -> bool) -> bool {
        let mut next = self.pools.header.half_open.first();
        while let Some(index) = next {
            next = Chain::after(self.connections, ChainKind::HalfOpen, index);
            let connection = &mut self.connections[index as usize];
            if fits(connection) {
                self.pools.header.drops.half_open += 1;
                connection.finish(&mut self.pools, Ended::Aborted, Final::None);
                self.settle(index);
                return true;
            }
        }
        false
    }

    /// A new connection, in no state yet. `iss_min`: its first sequence number lies behind that of its predecessor.
    pub(super) fn allocate(
        &mut self,
        client: ClientId,
        tuple: Tuple,
        route: Route,
        options: Options,
        iss_min: Option<SeqNumber>,
        now: Time,
    ) -> Option<u32> {
        let header = &mut *self.pools.header;
        let index = header.free_connections.pop_front(self.connections, ChainKind::Queue)?;
        let iss = self.secret.initial_sequence(&tuple, now);
        let iss = iss_min.map_or(iss, |least| iss.max(least));
        let offset = self.secret.timestamp_offset(&tuple);
        let connection = &mut self.connections[index as usize];
        *connection = Connection::new(connection.generation, client, tuple, options, iss, now);
        connection.route = route;
        connection.timestamp_offset = offset;
        connection.is_in_table = true;
        self.pools.clients[client as usize].connections += 1;
        self.table.insert(self.secret.table(&tuple), index);
        Some(index)
    }

    pub(super) fn find(&self, tuple: &Tuple) -> Option<Found> {
        let count = self.connections.len() as u32;
        let found = self.table.find(self.secret.table(tuple), |number| match number.checked_sub(count) {
            None => self.connections[number as usize].tuple == *tuple,
            Some(time_wait) => self.time_waits[time_wait as usize].tuple == *tuple,
        })?;
        Some(found.checked_sub(count).map_or(Found::Connection(found), Found::TimeWait))
    }

    // TIME-WAIT.

    /// If all records are used, the one that would expire first goes.
    fn insert_time_wait(&mut self, time_wait: TimeWait) {
        let header = &mut *self.pools.header;
        if header.free_time_waits.length == 0
            && let Some(first) = header.time_waits.first()
        {
            self.delete_time_wait(first);
        }
        let header = &mut *self.pools.header;
        let Some(index) = header.free_time_waits.pop_front(self.time_waits, ()) else { return };
        self.table.insert(self.secret.table(&time_wait.tuple), self.connections.len() as u32 + index);
        self.time_waits[index as usize] = time_wait;
        header.time_waits.push_back(self.time_waits, (), index);
    }

    pub(super) fn restart_time_wait(&mut self, index: u32, expires: Time) {
        self.time_waits[index as usize].expires = expires;
        let header = &mut *self.pools.header;
        header.time_waits.remove(self.time_waits, (), index);
        header.time_waits.push_back(self.time_waits, (), index);
    }

    pub(super) fn delete_time_wait(&mut self, index: u32) {
        let header = &mut *self.pools.header;
        let tuple = self.time_waits[index as usize].tuple;
        self.table.remove(self.secret.table(&tuple), self.connections.len() as u32 + index);
        header.time_waits.remove(self.time_waits, (), index);
        header.free_time_waits.push_back(self.time_waits, (), index);
    }

    /// Pieces became free: connections whose `send` was refused may try again.
    fn offer_room(&mut self) {
        let mut next = self.pools.header.want_room.first();
        while let Some(index) = next {
            next = Chain::after(self.connections, ChainKind::WantRoom, index);
            let connection = &mut self.connections[index as usize];
            if !connection.send.has_room(&self.pools, connection.client) {
                continue;
            }
            connection.has_room = true;
            let client = connection.client;
            self.pools.header.want_room.remove(self.connections, ChainKind::WantRoom, index);
            let reports = &mut self.pools.clients[client as usize].reports;
            reports.push_back(self.connections, ChainKind::Reports, index);
        }
    }

    /// Builds the table and the queue of timers from the records.
    pub(super) fn derive(&mut self) {
        for (index, connection) in (0..).zip(self.connections.iter()) {
            if connection.is_in_table {
                self.table.insert(self.secret.table(&connection.tuple), index);
            }
            if connection.state != State::Free {
                self.timers.set(index, connection.deadline());
            }
        }
        let mut next = self.pools.header.time_waits.first();
        while let Some(index) = next {
            next = Chain::after(self.time_waits, (), index);
            let hash = self.secret.table(&self.time_waits[index as usize].tuple);
            self.table.insert(hash, self.connections.len() as u32 + index);
        }
    }
}
