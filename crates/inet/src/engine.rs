//! The machine as its callers see it.

mod input;
mod output;
mod settle;

use std::net::IpAddr;

use zerocopy::FromZeros as _;

use crate::chain::Chain;
use crate::iface::{INTERFACES_MAX, Iface};
use crate::pools::{Client, Drops, Frame, Header, Holder, Pools};
use crate::tcp::{ChainKind, Connection, Listener, Secret, State, Table, TimeWait, Timers, Tuple};
use crate::{
    Address, ClientId, ConnectionId, Endpoint, Event, FrameId, InterfaceId, Link, ListenerId, Memory, NONE,
    Options, PayloadRef, Refusal, Slab, Time,
};

pub(crate) use output::Reply;

/// Most payloads of one [`Engine::send`].
pub const SEND_PIECES_MAX: usize = crate::GATHER_MAX;
/// Ephemeral ports (RFC 6335 §6).
const EPHEMERAL: std::ops::RangeInclusive<u16> = 49_152..=65_535;
/// Which form records have. [`Engine::attach`] takes no other.
const LAYOUT: u32 = 2;
/// Largest window (RFC 7323 §2.3), bytes.
const RECEIVE_BYTES_MAX: u32 = 1 << 30;

/// What does not change while records live.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Addresses of the stack, each with the length of its prefix.
    pub addresses: Vec<(IpAddr, u8)>,
    pub gateways: Vec<IpAddr>,
    /// Key of initial sequence numbers (RFC 6528), of timestamps' offsets and of ephemeral ports (RFC 6056).
    pub secret: [u8; 16],
}

/// TCP/IP over the records of a [`Memory`].
///
/// The caller gives each input to one of the `on_*` functions or requests, and then takes all of [`Engine::poll_free`],
/// of [`Engine::poll_event`] as far as a client has room, and of [`Engine::poll_transmit`] as far as the driver has
/// room. Each call is one event: between two calls the records are whole, and a copy of them continues in another engine.
#[derive(Debug)]
pub struct Engine<'m> {
    pools: Pools<'m>,
    connections: &'m mut [Connection],
    listeners: &'m mut [Listener],
    time_waits: &'m mut [TimeWait],
    replies: &'m mut [Reply],
    iface: Iface<'m>,
    // Derived from the records.
    secret: Secret,
    /// Connections by their ends, and what is in TIME-WAIT, whose numbers follow those of connections.
    table: Table,
    timers: Timers,
}

impl<'m> Engine<'m> {
    /// Formats the records.
    ///
    /// # Panics
    /// If a table is empty.
    pub fn new(memory: Memory<'m>, settings: &Settings, _now: Time) -> Self {
        let capacity = memory.capacity;
        memory.header[0] = Header::new(capacity, settings.secret, LAYOUT);
        memory.frames.fill(Frame::new_zeroed());
        memory.clients.fill(Client::default());
        memory.listeners.fill(Listener::new_zeroed());
        let (header, connections, time_waits) =
            (&mut memory.header[0], memory.connections, memory.time_waits);
        connections.fill(Connection::new_zeroed());
        time_waits.fill(TimeWait::new_zeroed());
        for index in 0..connections.len() as u32 {
            header.free_connections.push_back(connections, ChainKind::Queue, index);
        }
        for index in 0..time_waits.len() as u32 {
            header.free_time_waits.push_back(time_waits, (), index);
        }
        let ([pieces, segments], [iface]) = (memory.heads, memory.iface) else {
            panic!("a table of another length")
        };
        let addresses: Vec<_> =
            settings.addresses.iter().map(|&(address, prefix)| (0, address, prefix)).collect();
        let iface = Iface::format(iface, memory.neighbours, &addresses, &settings.gateways, settings.secret);
        let pools = Pools {
            header,
            pieces: Slab::format(pieces, memory.pieces),
            segments: Slab::format(segments, memory.segments),
            frames: memory.frames,
            clients: memory.clients,
        };
        Self::over(pools, connections, memory.listeners, time_waits, memory.replies, iface)
    }

    /// Continues where the engine stopped whose records these are.
    ///
    /// # Panics
    /// If the records are those of another layout or capacity.
    pub fn attach(memory: Memory<'m>, _now: Time) -> Self {
        let Memory {
            capacity,
            header: [header],
            heads: [pieces, segments],
            connections,
            listeners,
            pieces: piece_nodes,
            segments: segment_nodes,
            time_waits,
            replies,
            frames,
            clients,
            iface: [iface],
            neighbours,
        } = memory
        else {
            panic!("a table of another length")
        };
        assert!(header.layout == LAYOUT && header.capacity == capacity, "records of another engine");
        let pools = Pools {
            header,
            pieces: Slab::attach(pieces, piece_nodes),
            segments: Slab::attach(segments, segment_nodes),
            frames,
            clients,
        };
        let iface = Iface::attach(iface, neighbours);
        let mut engine = Self::over(pools, connections, listeners, time_waits, replies, iface);
        engine.derive();
        engine
    }

    fn over(
        pools: Pools<'m>,
        connections: &'m mut [Connection],
        listeners: &'m mut [Listener],
        time_waits: &'m mut [TimeWait],
        replies: &'m mut [Reply],
        iface: Iface<'m>,
    ) -> Self {
        Self {
            secret: Secret::new(pools.header.secret),
            table: Table::new(connections.len() + time_waits.len()),
            timers: Timers::new(connections.len()),
            pools,
            connections,
            listeners,
            time_waits,
            replies,
            iface,
        }
    }

    // Drivers.

    /// A driver has started (`ifattach`), perhaps again: what was not acknowledged is sent again at once, without
    /// touching congestion window or RTO.
    ///
    /// Frames that its predecessor was given and had not consumed still count as waiting, because the successor goes
    /// on with them. A caller that drops them says so before, by [`Engine::on_transmitted`].
    pub fn on_attached(&mut self, interface: InterfaceId, link: Link, now: Time) {
        if usize::from(interface) >= INTERFACES_MAX {
            return;
        }
        self.iface.on_attached(interface, link);
        for index in 0..self.connections.len() as u32 {
            let connection = &mut self.connections[index as usize];
            if connection.state != State::Free && connection.route.interface == interface {
                connection.on_driver_restarted(&mut self.pools, link, now);
                self.settle(index);
            }
        }
        self.after_iface();
    }

    /// The driver has consumed the first `frames` frames that `poll_transmit` returned for the interface since the
    /// engine was made: nothing below refers to memory of applications any more. A smaller number than before, or a
    /// larger one than were returned, says nothing.
    pub fn on_transmitted(&mut self, interface: InterfaceId, frames: u64, _now: Time) {
        let Some(port) = self.pools.header.ports.get_mut(usize::from(interface)) else { return };
        if frames <= port.consumed || frames > port.sent {
            return;
        }
        port.consumed = frames;
        self.iface.on_transmitted(interface, frames);
        let mut next = self.pools.header.at_driver.first();
        while let Some(index) = next {
            next = Chain::after(self.connections, ChainKind::AtDriver, index);
            self.settle(index);
        }
    }

    /// The next frame that the engine needs no more, delivered and released ones included.
    pub fn poll_free(&mut self) -> Option<FrameId> {
        while let Some(frame) = self.iface.poll_free() {
            self.pools.free(frame);
        }
        self.pools.pop_free()
    }

    /// The engine, or a client, has the frame: `poll_free` has not returned it since it arrived.
    pub fn holds(&self, frame: FrameId) -> bool {
        self.pools.frames.get(frame as usize).is_some_and(|frame| frame.holder != Holder::Driver)
    }

    // Time.

    /// When `on_timer` must be called; `None` while nothing waits.
    pub fn poll_timeout(&self) -> Option<Time> {
        let connections = self.timers.next().map_or(Time::NEVER, |(at, _)| at);
        let time_waits = self.pools.header.time_waits.first();
        let time_waits = time_waits.map_or(Time::NEVER, |index| self.time_waits[index as usize].expires);
        let first = connections.min(time_waits).min(self.iface.poll_timeout());
        (first != Time::NEVER).then_some(first)
    }

    pub fn on_timer(&mut self, now: Time) {
        // Each connection once: one whose next deadline has passed too has its turn in the next call.
        for _ in 0..self.connections.len() {
            let Some((_, index)) = self.timers.next().filter(|&(at, _)| at <= now) else { break };
            self.connections[index as usize].on_deadline(&mut self.pools, now);
            self.settle(index);
        }
        while let Some(first) = self.pools.header.time_waits.first()
            && self.time_waits[first as usize].expires <= now
        {
            self.delete_time_wait(first);
        }
        if self.iface.poll_timeout() <= now {
            self.iface.on_timer(now);
            self.after_iface();
        }
    }

    // Applications.

    /// The next event of a client's listeners and connections.
    pub fn poll_event(&mut self, client: ClientId) -> Option<Event> {
        let record = self.pools.clients.get(client as usize)?;
        if record.incoming > 0 {
            return self.next_incoming(client);
        }
        loop {
            let index = self.pools.clients[client as usize].reports.first()?;
            let connection = &mut self.connections[index as usize];
            let event = connection.next_event(&mut self.pools, index);
            if event.is_none() || !connection.has_event() {
                let reports = &mut self.pools.clients[client as usize].reports;
                reports.remove(self.connections, ChainKind::Reports, index);
                self.settle(index);
            }
            if event.is_some() {
                return event;
            }
        }
    }

    fn next_incoming(&mut self, client: ClientId) -> Option<Event> {
        let mut listeners = (0..).zip(self.listeners.iter_mut());
        let (index, listener) = listeners.find(|(_, it)| it.client == client && it.incoming > 0)?;
        listener.incoming -= 1;
        self.pools.clients[client as usize].incoming -= 1;
        Some(Event::Incoming { listener: ListenerId { index, generation: listener.generation } })
    }

    /// `local.address` may be unspecified: `0.0.0.0` takes IPv4, `::` IPv6 only. Port 0 takes an ephemeral one. A backlog
    /// above half of the client's connections is that half.
    pub fn listen(
        &mut self,
        client: ClientId,
        local: Endpoint,
        backlog: u16,
        options: Options,
    ) -> Result<ListenerId, Refusal> {
        if client as usize >= self.pools.clients.len() {
            return Err(Refusal::Invalid);
        }
        if !local.address.is_unspecified() && !self.iface.is_local(local.address) {
            return Err(Refusal::NotOurs);
        }
        let local = if local.port == 0 { self.free_listening(local)? } else { local };
        if self.listeners.iter().any(|listener| listener.conflicts(local)) {
            return Err(Refusal::InUse);
        }
        let free = self.listeners.iter().position(|listener| !listener.is_open).ok_or(Refusal::Full)?;
        let generation = self.listeners[free].generation;
        self.listeners[free] = Listener {
            generation,
            client,
            local,
            backlog: u32::from(backlog).clamp(1, self.pools.header.capacity.backlog_max()),
            is_open: true,
            options: bounded(options),
            ..Listener::new_zeroed()
        };
        Ok(ListenerId { index: free as u32, generation })
    }

    /// The local end with a port at which nothing listens.
    fn free_listening(&mut self, local: Endpoint) -> Result<Endpoint, Refusal> {
        let tuple = Tuple { local, remote: Endpoint::default() };
        self.ephemeral(&tuple, |engine, tuple| {
            engine
                .listeners
                .iter()
                .any(|listener| listener.is_open && listener.local.port == tuple.local.port)
        })
        .map(|tuple| tuple.local)
    }

    /// RFC 6056 §3.3.3: a start that depends on the ends and is secret, and a counter of all searches.
    fn ephemeral(
        &mut self,
        tuple: &Tuple,
        is_taken: impl Fn(&Self, &Tuple) -> bool,
    ) -> Result<Tuple, Refusal> {
        let count = u32::from(EPHEMERAL.end() - EPHEMERAL.start()) + 1;
        let offset = self.secret.port_offset(tuple);
        for _ in 0..count {
            let next = self.pools.header.next_ephemeral;
            self.pools.header.next_ephemeral = next.wrapping_add(1);
            let port = EPHEMERAL.start() + (offset.wrapping_add(next) % count) as u16;
            let tuple = Tuple { local: Endpoint { port, ..tuple.local }, ..*tuple };
            if !is_taken(self, &tuple) {
                return Ok(tuple);
            }
        }
        Err(Refusal::InUse)
    }

    pub fn listening_at(&self, listener: ListenerId) -> Option<Endpoint> {
        let record = self.listeners.get(listener.index as usize)?;
        (record.is_open && record.generation == listener.generation).then_some(record.local)
    }

    /// The next established connection of a listener, which now belongs to the client.
    pub fn accept(&mut self, listener: ListenerId) -> Option<ConnectionId> {
        self.listening_at(listener)?;
        let record = &mut self.listeners[listener.index as usize];
        let index = record.queue.pop_front(self.connections, ChainKind::Queue)?;
        self.connections[index as usize].listener = NONE;
        self.settle(index);
        Some(self.connections[index as usize].id(index))
    }

    /// Connections that were not accepted are reset.
    pub fn close_listener(&mut self, listener: ListenerId, _now: Time) {
        if self.listening_at(listener).is_none() {
            return;
        }
        for index in 0..self.connections.len() as u32 {
            let connection = &mut self.connections[index as usize];
            if connection.state != State::Free && connection.listener == listener.index {
                connection.abandon(&mut self.pools);
                self.settle(index);
            }
        }
        let record = &mut self.listeners[listener.index as usize];
        self.pools.clients[record.client as usize].incoming -= record.incoming;
        *record = Listener { generation: record.generation.wrapping_add(1), ..Listener::new_zeroed() };
    }

    /// `local` without address or port: the engine chooses them. `Connected` or `Ended` follows.
    pub fn connect(
        &mut self,
        client: ClientId,
        local: Endpoint,
        remote: Endpoint,
        options: Options,
        now: Time,
    ) -> Result<ConnectionId, Refusal> {
        if client as usize >= self.pools.clients.len() || remote.port == 0 {
            return Err(Refusal::Invalid);
        }
        let wanted = (!local.address.is_unspecified()).then_some(local.address);
        if wanted.is_some_and(|wanted| !self.iface.is_local(wanted)) {
            return Err(Refusal::NotOurs);
        }
        let route = self.iface.route(remote.address, wanted)?;
        let mut tuple = Tuple { local: Endpoint { address: route.local, port: local.port }, remote };
        if local.port == 0 {
            tuple = self.ephemeral(&tuple, |engine, tuple| {
                engine.find(tuple).is_some()
                    || engine.listeners.iter().any(|it| it.is_open && it.local.port == tuple.local.port)
            })?;
        } else if self.find(&tuple).is_some() {
            return Err(Refusal::InUse);
        }
        if !self.make_room(client) {
            return Err(Refusal::Full);
        }
        let index = self.allocate(client, tuple, route, bounded(options), None, now).ok_or(Refusal::Full)?;
        self.connections[index as usize].state = State::SynSent;
        self.connections[index as usize].may_send = true;
        self.settle(index);
        Ok(self.connections[index as usize].id(index))
    }

    /// The index of a connection that its client has not seen the end of.
    fn index(&self, connection: ConnectionId) -> Result<u32, Refusal> {
        let record = self.connections.get(connection.index as usize).ok_or(Refusal::Unknown)?;
        let is_it = record.state != State::Free
            && record.generation == connection.generation
            && record.listener == NONE
            && !record.is_abandoned;
        if is_it { Ok(connection.index) } else { Err(Refusal::Unknown) }
    }

    /// Local and remote end.
    pub fn ends(&self, connection: ConnectionId) -> Option<(Endpoint, Endpoint)> {
        let record = &self.connections[self.index(connection).ok()? as usize];
        Some((record.tuple.local, record.tuple.remote))
    }

    pub fn set_options(&mut self, connection: ConnectionId, options: Options) -> Result<(), Refusal> {
        let index = self.index(connection)?;
        self.connections[index as usize].set_options(bounded(options));
        self.settle(index);
        Ok(())
    }

    /// Sends the pieces in order, at most [`SEND_PIECES_MAX`]. They belong to the engine until `Released` names this
    /// ticket or a later one, or the connection has ended and its last `Released` has been returned. Tickets of a
    /// connection increase.
    ///
    /// `Full` changes nothing; `Room` follows when a repetition can succeed.
    pub fn send(
        &mut self,
        connection: ConnectionId,
        ticket: u64,
        pieces: &[PayloadRef],
        _now: Time,
    ) -> Result<(), Refusal> {
        let index = self.index(connection)?;
        let record = &mut self.connections[index as usize];
        // RFC 9293 §3.10.2.
        if record.state == State::Over {
            return Err(Refusal::NotConnected);
        }
        if record.send.has_fin {
            return Err(Refusal::Closed);
        }
        if pieces.len() > SEND_PIECES_MAX {
            return Err(Refusal::Invalid);
        }
        let result = record.send.push(&mut self.pools, record.client, ticket, pieces);
        match result {
            Ok(()) => {
                record.may_send = true;
                self.settle(index);
            }
            Err(Refusal::Full) => {
                self.pools.header.want_room.push_back(self.connections, ChainKind::WantRoom, index);
            }
            Err(_) => {}
        }
        result
    }

    /// A frame whose bytes were all delivered to the client comes back (`recv`), which opens the window.
    pub fn release(&mut self, client: ClientId, frame: FrameId, now: Time) -> Result<(), Refusal> {
        let record = self.pools.frames.get(frame as usize).ok_or(Refusal::Unknown)?;
        if record.holder != Holder::Client || record.client != client {
            return Err(Refusal::Unknown);
        }
        let Frame { connection: ConnectionId { index, generation }, length, .. } = *record;
        let connection = &mut self.connections[index as usize];
        if connection.state == State::Free || connection.generation != generation {
            self.pools.free_kept(frame, None);
            return Ok(());
        }
        self.pools.free_kept(frame, Some(&mut connection.receive.pinned));
        connection.on_released(&self.pools, length, now);
        self.settle(index);
        Ok(())
    }

    /// FIN behind what was sent.
    pub fn shutdown(&mut self, connection: ConnectionId, _now: Time) -> Result<(), Refusal> {
        let index = self.index(connection)?;
        let record = &mut self.connections[index as usize];
        match record.state {
            State::SynSent | State::Over => return Err(Refusal::NotConnected),
            _ => record.send_fin(),
        }
        self.settle(index);
        Ok(())
    }

    /// The client does not want the connection any more: FIN behind what was sent; bytes that arrive are answered by RST
    /// (RFC 9293 §3.6.1), as are bytes that arrived and were not delivered (RFC 2525 §2.17). Released events still come;
    /// `Ended` is the last one. A client may have a bounded number of such connections: beyond it the oldest is reset.
    pub fn close(&mut self, connection: ConnectionId, now: Time) -> Result<(), Refusal> {
        let index = self.index(connection)?;
        let connection = &mut self.connections[index as usize];
        connection.close(&mut self.pools, now);
        let client = connection.client;
        self.settle(index);
        while self.pools.clients[client as usize].orphans.length
            > self.pools.header.capacity.orphans_of_client()
        {
            self.reset_orphan(client);
        }
        Ok(())
    }

    /// RST now.
    pub fn abort(&mut self, connection: ConnectionId, _now: Time) -> Result<(), Refusal> {
        let index = self.index(connection)?;
        self.connections[index as usize].abort(&mut self.pools);
        self.settle(index);
        Ok(())
    }

    /// Resets all connections of a client and closes its listeners; its frames are free. Whether its memory is still
    /// referred to, [`Engine::is_drained`] answers.
    pub fn on_client_gone(&mut self, client: ClientId, now: Time) {
        for index in 0..self.listeners.len() as u32 {
            let listener = &self.listeners[index as usize];
            if listener.is_open && listener.client == client {
                let generation = listener.generation;
                self.close_listener(ListenerId { index, generation }, now);
            }
        }
        for frame in 0..self.pools.frames.len() as u32 {
            let Frame { holder, client: its, connection, .. } = self.pools.frames[frame as usize];
            if holder == Holder::Client && its == client {
                let connection = self
                    .connections
                    .get_mut(connection.index as usize)
                    .filter(|it| it.state != State::Free && it.generation == connection.generation);
                self.pools.free_kept(frame, connection.map(|it| &mut it.receive.pinned));
            }
        }
        for index in 0..self.connections.len() as u32 {
            let connection = &mut self.connections[index as usize];
            if connection.state != State::Free && connection.client == client {
                connection.abandon(&mut self.pools);
                self.settle(index);
            }
        }
    }

    /// No frame that waits at a driver refers to memory of the client.
    pub fn is_drained(&self, client: ClientId) -> bool {
        let Some(client) = self.pools.clients.get(client as usize) else { return true };
        client.sent.iter().zip(&self.pools.header.ports).all(|(&sent, port)| port.consumed >= sent)
    }

    /// Since the records were formatted.
    pub fn drops(&self) -> Drops {
        self.pools.header.drops
    }

    /// Whether an address is one of ours.
    pub fn is_local(&self, address: Address) -> bool {
        self.iface.is_local(address)
    }
}

/// Options within what the protocol can express.
fn bounded(options: Options) -> Options {
    Options { receive_bytes_max: options.receive_bytes_max.clamp(1, RECEIVE_BYTES_MAX), ..options }
}
