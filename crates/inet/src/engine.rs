//! The machine as its callers see it.

use std::net::IpAddr;

use crate::{
    Arrived, ClientId, ConnectionId, Endpoint, Event, FrameId, HEADER_BYTES, InterfaceId, Link, ListenerId,
    Memory, Options, PayloadRef, Refusal, Time, Transmit,
};

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
    memory: Memory<'m>,
}

impl<'m> Engine<'m> {
    /// Formats the records.
    pub fn new(memory: Memory<'m>, settings: &Settings, now: Time) -> Self {
        let _ = (settings, now);
        Self { memory }
    }

    /// Continues where the engine stopped whose records these are.
    pub fn attach(memory: Memory<'m>, now: Time) -> Self {
        let _ = now;
        Self { memory }
    }

    // Drivers.

    /// A driver has started (`ifattach`), perhaps again: then frames handed to its predecessor count as consumed, and
    /// what was not acknowledged is sent again at once, without touching congestion window or RTO.
    pub fn on_attached(&mut self, interface: InterfaceId, link: Link, now: Time) {
        let _ = (interface, link, now);
        todo!()
    }

    /// The driver has consumed the first `frames` frames that `poll_transmit` returned for the interface since the
    /// engine was made: nothing below refers to memory of applications any more.
    pub fn on_transmitted(&mut self, interface: InterfaceId, frames: u64, now: Time) {
        let _ = (interface, frames, now);
        todo!()
    }

    /// A frame was received (`ethinput`). It belongs to the engine until `poll_free` returns it.
    pub fn on_frame(&mut self, arrived: &Arrived<'_>, now: Time) {
        let _ = (arrived, now);
        todo!()
    }

    /// The next frame that the engine needs no more, delivered and released ones included.
    pub fn poll_free(&mut self) -> Option<FrameId> {
        todo!()
    }

    /// The next frame to send, whose header is written into `header` behind `VNET_BYTES`. The caller has room for it at
    /// the driver of every interface.
    pub fn poll_transmit(&mut self, header: &mut [u8; HEADER_BYTES], now: Time) -> Option<Transmit> {
        let _ = (header, now);
        todo!()
    }

    // Time.

    /// When `on_timer` must be called; `None` while nothing waits.
    pub fn poll_timeout(&self) -> Option<Time> {
        todo!()
    }

    pub fn on_timer(&mut self, now: Time) {
        let _ = now;
        todo!()
    }

    // Applications.

    /// The next event of a client's listeners and connections.
    pub fn poll_event(&mut self, client: ClientId) -> Option<Event> {
        let _ = client;
        todo!()
    }

    /// `local.address` may be unspecified: `0.0.0.0` takes IPv4, `::` IPv6 only. Port 0 takes an ephemeral one.
    pub fn listen(
        &mut self,
        client: ClientId,
        local: Endpoint,
        backlog: u16,
        options: Options,
    ) -> Result<ListenerId, Refusal> {
        let _ = (client, local, backlog, options);
        todo!()
    }

    pub fn listening_at(&self, listener: ListenerId) -> Option<Endpoint> {
        let _ = listener;
        todo!()
    }

    /// The next established connection of a listener, which now belongs to the client.
    pub fn accept(&mut self, listener: ListenerId) -> Option<ConnectionId> {
        let _ = listener;
        todo!()
    }

    /// Connections that were not accepted are reset.
    pub fn close_listener(&mut self, listener: ListenerId, now: Time) {
        let _ = (listener, now);
        todo!()
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
        let _ = (client, local, remote, options, now);
        todo!()
    }

    /// Local and remote end.
    pub fn ends(&self, connection: ConnectionId) -> Option<(Endpoint, Endpoint)> {
        let _ = connection;
        todo!()
    }

    pub fn set_options(&mut self, connection: ConnectionId, options: Options) -> Result<(), Refusal> {
        let _ = (connection, options);
        todo!()
    }

    /// Sends the pieces in order. They belong to the engine until `Released` names this ticket or a later one, or
    /// the connection has ended and its last `Released` has been returned. Tickets of a connection increase.
    ///
    /// `Full` changes nothing; `Room` follows when a repetition can succeed.
    pub fn send(
        &mut self,
        connection: ConnectionId,
        ticket: u64,
        pieces: &[PayloadRef],
        now: Time,
    ) -> Result<(), Refusal> {
        let _ = (connection, ticket, pieces, now);
        todo!()
    }

    /// A frame whose bytes were all delivered to the client comes back (`recv`), which opens the window.
    pub fn release(&mut self, client: ClientId, frame: FrameId, now: Time) -> Result<(), Refusal> {
        let _ = (client, frame, now);
        todo!()
    }

    /// FIN behind what was sent.
    pub fn shutdown(&mut self, connection: ConnectionId, now: Time) -> Result<(), Refusal> {
        let _ = (connection, now);
        todo!()
    }

    /// The client does not want the connection any more: FIN behind what was sent; bytes that arrive are answered by RST
    /// (RFC 9293 §3.6.1). Released events still come; `Ended` is the last one.
    pub fn close(&mut self, connection: ConnectionId, now: Time) -> Result<(), Refusal> {
        let _ = (connection, now);
        todo!()
    }

    /// RST now.
    pub fn abort(&mut self, connection: ConnectionId, now: Time) -> Result<(), Refusal> {
        let _ = (connection, now);
        todo!()
    }

    /// Resets all connections of a client and closes its listeners; its frames are free. Whether its memory is still
    /// referred to, [`Engine::is_drained`] answers.
    pub fn on_client_gone(&mut self, client: ClientId, now: Time) {
        let _ = (client, now);
        todo!()
    }

    /// No frame that waits at a driver refers to memory of the client.
    pub fn is_drained(&self, client: ClientId) -> bool {
        let _ = client;
        todo!()
    }
}
