//! Protocol management: the engine, and what it asks of drivers. It meets neither applications nor sockets; what it
//! knows of a connection's owner is a [`Name`], which it passes back with the connection's events.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use area::Region;
use area::ring::{Corrupt, Producer};
use inet::step::{Step, mark};
use inet::{
    Address, Arrived, Capacity, ClientId, ConnectionId, Endpoint, Engine, Event, FrameId, HEADER_BYTES,
    InterfaceId, Link, ListenerId, Memory, Options, PayloadRef, Refusal, Settings, Source, Time, VNET_BYTES,
};

use super::INTERFACES_MAX;
use super::counters::{Counters, Page};
use super::frames::{Fault, Frames, IN_HEAD};
use crate::layout::{self, Channel, FRAMES_BYTES, HEADS, driver};
use crate::slot::{self, Input, NO_CLIENT, NO_TAIL, REGION_FRAMES, Span, input};

/// Smallest MTU of an interface, bytes (RFC 791 §3.2).
pub(crate) const MTU_MIN: u16 = 576;
/// While a driver holds slots, its counters are read this often: it rings no bell when it has consumed one.
const DRIVER_LOOK_US: u64 = 1000;
/// Distance of two reports that a driver has broken its rings, while none attaches with other ones.
const REPORT_US: u64 = 500_000;

/// What an application calls a connection or listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) client: ClientId,
    pub(super) socket: u32,
    pub(super) generation: u32,
}

/// Two ranges of bytes, offset and length: a frame's part in its head, and in its tail.
pub(super) type Ranges = [[u32; 2]; 2];

pub(super) struct Protocol<'m> {
    engine: Engine<'m>,
    interfaces: [Option<Interface>; INTERFACES_MAX],
    /// Owners by index of the connection and of the listener.
    connections: Vec<Name>,
    listeners: Vec<Name>,
    /// Interface whose header slots the engine writes into in place: the one that sent last.
    sends: usize,
    counters: Page,
}

struct Interface {
    channel: Channel,
    transmit: Producer,
    fill: Producer,
    received: Arc<Region>,
    frames: Frames,
    /// Of the driver that is attached; `None` before the first one.
    epoch: Option<u32>,
    /// Position of the transmit ring when this server began.
    start: u64,
    /// Slots consumed, as the engine knows.
    consumed: u64,
    /// Slots were pushed and are not visible yet.
    has_pushed: bool,
    /// The driver has written a counter that cannot be; until the next one attaches.
    is_corrupt: bool,
    /// When that was last reported.
    reported_at: Option<Time>,
}

impl<'m> Protocol<'m> {
    pub(super) fn new(
        memory: Memory<'m>,
        capacity: &Capacity,
        settings: &Settings,
        counters: Page,
        now: Time,
    ) -> Self {
        Self {
            engine: Engine::new(memory, settings, now),
            interfaces: std::array::from_fn(|_| None),
            connections: vec![Name::default(); capacity.connections as usize],
            listeners: vec![Name::default(); capacity.listeners as usize],
            sends: 0,
            counters,
        }
    }

    /// # Panics
    /// If the interface is there already, or its memory of frames is short.
    pub(super) fn add_interface(&mut self, interface: InterfaceId, channel: Channel, received: Arc<Region>) {
        assert!(received.len() >= FRAMES_BYTES, "memory for fewer frames");
        let place = &mut self.interfaces[usize::from(interface)];
        assert!(place.is_none(), "an interface twice");
        let (transmit, fill, _) = driver::inet(&channel);
        let start = transmit.position();
        *place = Some(Interface {
            channel,
            fill,
            received,
            frames: Frames::new(),
            epoch: None,
            start,
            consumed: start,
            has_pushed: false,
            is_corrupt: false,
            reported_at: None,
            transmit,
        });
        self.sends = usize::from(interface);
    }

    // What drivers say; request management passes it on.

    pub(super) fn on_input(&mut self, interface: InterfaceId, input: &Input, now: Time) {
        let dropped = match input.code {
            input::FRAME => self.on_frame(interface, input, now).err().map(|fault| match fault {
                Fault::Head => &self.counters.dropped_head,
                Fault::Tail => &self.counters.dropped_tail,
                Fault::Length => &self.counters.dropped_length,
            }),
            input::ATTACH if input.mtu >= MTU_MIN => {
                self.on_attached(interface, input, now);
                None
            }
            _ => Some(&self.counters.dropped_code),
        };
        if let Some(counter) = dropped {
            Counters::add(counter, 1);
        }
    }

    fn on_attached(&mut self, interface: InterfaceId, input: &Input, now: Time) {
        let Some(port) = &mut self.interfaces[usize::from(interface)] else { return };
        port.epoch = Some(input.epoch);
        (port.is_corrupt, port.reported_at) = (false, None);
        port.frames.on_attached();
        self.look_at_driver(interface, now);
        let link = Link { mac: input.mac, mtu: input.mtu, segments: input.segments != 0 };
        self.engine.on_attached(interface, link, now);
        Counters::add(&self.counters.attached, 1);
    }

    fn on_frame(&mut self, interface: InterfaceId, input: &Input, now: Time) -> Result<(), Fault> {
        let Some(port) = &mut self.interfaces[usize::from(interface)] else { return Err(Fault::Head) };
        let head = port.frames.on_input(input)?;
        let mut header = [0; HEADER_BYTES];
        let bytes = (input.length.min(IN_HEAD) as usize).min(HEADER_BYTES);
        copy(&port.received, layout::head_offset(head) + VNET_BYTES, &mut header[..bytes]);
        let arrived = Arrived {
            interface,
            frame: frame_id(interface, head),
            header: &header[..bytes],
            length: input.length,
            is_checked: input.is_checked != 0,
            segment_bytes: u16::try_from(input.segment_bytes).unwrap_or(0),
        };
        self.engine.on_frame(&arrived, now);
        Counters::add(&self.counters.frames_in, 1);
        Ok(())
    }

    /// Reads how far the drivers are with the frames to send.
    pub(super) fn look_at_drivers(&mut self, now: Time) {
        for interface in 0..INTERFACES_MAX {
            self.look_at_driver(interface as InterfaceId, now);
        }
    }

    fn look_at_driver(&mut self, interface: InterfaceId, now: Time) {
        let Some(port) = &mut self.interfaces[usize::from(interface)] else { return };
        match port.transmit.consumed() {
            Ok(consumed) if consumed > port.consumed => {
                port.consumed = consumed;
                self.engine.on_transmitted(interface, consumed - port.start, now);
            }
            // A counter that goes back says nothing new; a driver that started again may repeat a frame.
            Ok(_) => {}
            Err(_) => self.on_corrupt(interface),
        }
    }

    /// A counter of the driver cannot be.
    pub(super) fn on_corrupt(&mut self, interface: InterfaceId) {
        Counters::add(&self.counters.dropped_corrupt, 1);
        if let Some(port) = &mut self.interfaces[usize::from(interface)] {
            port.is_corrupt = true;
        }
    }

    /// The epoch of a driver that has to be replaced, because it has broken its rings; 0 before the first one attached.
    pub(super) fn faulty_driver(&mut self, now: Time) -> Option<u32> {
        let port =
            self.interfaces.iter_mut().flatten().find(|port| {
                port.is_corrupt && port.reported_at.is_none_or(|at| now.since(at) >= REPORT_US)
            })?;
        port.reported_at = Some(now);
        Some(port.epoch.unwrap_or(0))
    }

    // Time.

    /// Whether a timer was due.
    pub(super) fn on_time(&mut self, now: Time) -> bool {
        let is_due = self.engine.poll_timeout().is_some_and(|at| at <= now);
        if is_due {
            self.engine.on_timer(now);
        }
        is_due
    }

    pub(super) fn deadline(&self, now: Time) -> Option<Time> {
        let is_overdue = |port: &Interface| port.epoch.is_some() && port.frames.is_overdue();
        let waits = self.waiting() > 0
            || self.interfaces.iter().flatten().any(|port| is_overdue(port) || port.is_corrupt);
        let look = waits.then(|| now.after(DRIVER_LOOK_US));
        [self.engine.poll_timeout(), look].into_iter().flatten().min()
    }

    fn waiting(&self) -> u64 {
        self.interfaces.iter().flatten().map(|port| port.transmit.position() - port.consumed).sum()
    }

    // What drivers are asked.

    /// Fills the transmit rings, whose slots are not visible yet. Returns the number of frames.
    pub(super) fn transmit(&mut self, now: Time) -> usize {
        let mut frames = 0;
        while let Some(transmit) = self.transmit_one(now) {
            frames += 1;
            Counters::add(&self.counters.frames_out, 1);
            if transmit.client != NO_CLIENT {
                Counters::add(&self.counters.direct_returns, 1);
            }
            let bytes: u64 = transmit
                .spans
                .iter()
                .filter(|span| span.region != REGION_FRAMES)
                .map(|span| u64::from(span.length))
                .sum();
            Counters::add(&self.counters.bytes_out, bytes);
        }
        frames
    }

    fn transmit_one(&mut self, now: Time) -> Option<slot::Transmit> {
        for port in self.interfaces.iter_mut().flatten() {
            if port.transmit.room().unwrap_or(0) == 0 {
                return None;
            }
        }
        let lent = self.interfaces[self.sends].as_mut()?;
        let header = lent.next_header();
        let transmit = self.engine.poll_transmit(header, now)?;
        mark(Step::TcpDone);
        let to = usize::from(transmit.interface);
        if to != self.sends {
            let written = *header;
            *self.interfaces[to].as_mut()?.next_header() = written;
            self.sends = to;
        }
        let port = self.interfaces[to].as_mut()?;
        let mut slot = slot::Transmit {
            client: NO_CLIENT,
            header_bytes: transmit.header_bytes,
            segment_bytes: transmit.segment_bytes,
            checksum_start: transmit.checksum_start,
            checksum_offset: transmit.checksum_offset,
            ..slot::Transmit::default()
        };
        if let Some(submitted) = transmit.submitted {
            let name = self.connections[submitted.connection.index as usize];
            (slot.client, slot.ticket) = (name.client, submitted.ticket);
            (slot.socket, slot.generation) = (name.socket, name.generation);
        }
        for (span, source) in slot.spans.iter_mut().zip(transmit.sources.iter().flatten()) {
            *span = match *source {
                Source::Client(payload) => payload.into(),
                Source::Frame { frame, start, length } => {
                    Span { region: REGION_FRAMES, generation: frame % HEADS as u32, offset: start, length }
                }
            };
        }
        port.transmit.push(&slot.into());
        port.has_pushed = true;
        Some(slot)
    }

    /// Returns the engine's free frames to the drivers.
    pub(super) fn fill(&mut self) {
        while let Some(frame) = self.engine.poll_free() {
            let (interface, head) = (frame as usize / HEADS, frame % HEADS as u32);
            if let Some(port) = &mut self.interfaces[interface] {
                port.frames.free(head);
            }
        }
        for interface in 0..INTERFACES_MAX {
            if self.fill_one(interface).is_err() {
                self.on_corrupt(interface as InterfaceId);
            }
        }
    }

    fn fill_one(&mut self, interface: usize) -> Result<(), Corrupt> {
        let Some(port) = &mut self.interfaces[interface] else { return Ok(()) };
        let Some(epoch) = port.epoch.filter(|_| port.frames.wants_fill()) else { return Ok(()) };
        while port.fill.room()? > 0
            && let Some(fill) = port.frames.fill(epoch)
        {
            port.fill.push(&fill.into());
            port.has_pushed = true;
        }
        Ok(())
    }

    /// Makes all slots visible. Returns the interfaces whose drivers sleep.
    pub(super) fn publish(&mut self) -> [bool; INTERFACES_MAX] {
        let sleep = self.interfaces.each_mut().map(|port| {
            let Some(port) = port else { return false };
            if !std::mem::take(&mut port.has_pushed) {
                return false;
            }
            mark(Step::FramePublished);
            // Not `||`: both rings are published.
            port.transmit.publish() | port.fill.publish()
        });
        let drops = self.engine.drops();
        for (counter, value) in [
            (&self.counters.syns_dropped, drops.syns),
            (&self.counters.half_open_dropped, drops.half_open),
            (&self.counters.orphans_reset, drops.orphans),
            (&self.counters.segments_dropped, drops.segments),
        ] {
            counter.store(value, Ordering::Relaxed);
        }
        self.counters.transmit_waiting.store(self.waiting(), Ordering::Relaxed);
        let held: usize = self.interfaces.iter().flatten().map(|port| port.frames.held()).sum();
        self.counters.frames_held.store(held as u64, Ordering::Relaxed);
        sleep
    }

    // Connections; socket management calls these to open, close and use them.

    pub(super) fn listen(
        &mut self,
        name: Name,
        local: Endpoint,
        backlog: u16,
        options: Options,
    ) -> Result<(ListenerId, Endpoint), Refusal> {
        let listener = self.engine.listen(name.client, local, backlog, options)?;
        self.listeners[listener.index as usize] = name;
        Ok((listener, self.engine.listening_at(listener).unwrap_or(local)))
    }

    pub(super) fn connect(
        &mut self,
        name: Name,
        local: Endpoint,
        remote: Endpoint,
        options: Options,
        now: Time,
    ) -> Result<ConnectionId, Refusal> {
        let connection = self.engine.connect(name.client, local, remote, options, now)?;
        self.connections[connection.index as usize] = name;
        Ok(connection)
    }

    pub(super) fn accept(&mut self, listener: ListenerId) -> Option<ConnectionId> {
        self.engine.accept(listener)
    }

    pub(super) fn reset_orphan(&mut self, client: ClientId) {
        self.engine.reset_orphan(client);
    }

    /// Of a connection that was accepted.
    pub(super) fn name(&mut self, connection: ConnectionId, name: Name) {
        self.connections[connection.index as usize] = name;
    }

    pub(super) fn ends(&self, connection: ConnectionId) -> (Endpoint, Endpoint) {
        self.engine.ends(connection).unwrap_or((UNKNOWN, UNKNOWN))
    }

    pub(super) fn close_listener(&mut self, listener: ListenerId, now: Time) {
        self.engine.close_listener(listener, now);
    }

    pub(super) fn set_options(&mut self, connection: ConnectionId, options: Options) -> Result<(), Refusal> {
        self.engine.set_options(connection, options)
    }

    pub(super) fn send(
        &mut self,
        connection: ConnectionId,
        ticket: u64,
        pieces: &[PayloadRef],
        now: Time,
    ) -> Result<(), Refusal> {
        self.engine.send(connection, ticket, pieces, now)
    }

    pub(super) fn release(&mut self, client: ClientId, frame: FrameId, now: Time) -> Result<(), Refusal> {
        self.engine.release(client, frame, now)
    }

    pub(super) fn shutdown(&mut self, connection: ConnectionId, now: Time) -> Result<(), Refusal> {
        self.engine.shutdown(connection, now)
    }

    pub(super) fn close(&mut self, connection: ConnectionId, now: Time) -> Result<(), Refusal> {
        self.engine.close(connection, now)
    }

    pub(super) fn abort(&mut self, connection: ConnectionId, now: Time) -> Result<(), Refusal> {
        self.engine.abort(connection, now)
    }

    pub(super) fn client_gone(&mut self, client: ClientId, now: Time) {
        self.engine.on_client_gone(client, now);
    }

    pub(super) fn is_drained(&self, client: ClientId) -> bool {
        self.engine.is_drained(client)
    }

    /// The next event of a client, and what the client calls the connection or listener.
    pub(super) fn poll_event(&mut self, client: ClientId) -> Option<(Name, Event)> {
        let event = self.engine.poll_event(client)?;
        let name = match event {
            Event::Incoming { listener } => self.listeners[listener.index as usize],
            Event::Connected { connection }
            | Event::Received { connection, .. }
            | Event::PeerClosed { connection }
            | Event::Released { connection, .. }
            | Event::Room { connection }
            | Event::Ended { connection, .. } => self.connections[connection.index as usize],
        };
        Some((name, event))
    }

    pub(super) fn count_received(&self, bytes: u32, is_copied: bool) {
        Counters::add(&self.counters.bytes_in, bytes.into());
        Counters::add(&self.counters.bytes_copied, if is_copied { bytes.into() } else { 0 });
    }

    /// Where bytes `start..start + length` of a frame lie in the memory of frames; that of one interface follows that of
    /// another in an application's view.
    pub(super) fn ranges(&self, frame: FrameId, start: u32, length: u32) -> Ranges {
        let (interface, head) = (frame as usize / HEADS, frame % HEADS as u32);
        let tail = self.interfaces[interface].as_ref().map_or(NO_TAIL, |port| port.frames.tail_of(head));
        let base = (interface * FRAMES_BYTES) as u32;
        let in_head = length.min(IN_HEAD.saturating_sub(start));
        let mut ranges = [[base + (layout::head_offset(head) + VNET_BYTES) as u32 + start, in_head], [0, 0]];
        if in_head < length && tail != NO_TAIL {
            let skipped = (start + in_head) - IN_HEAD;
            ranges[1] = [base + layout::tail_offset(tail) as u32 + skipped, length - in_head];
        }
        ranges
    }

    /// Copies ranges of a frame, one behind the other. `into` has room for them.
    pub(super) fn copy(&self, frame: FrameId, ranges: &Ranges, into: *mut u8) {
        let interface = frame as usize / HEADS;
        let Some(port) = &self.interfaces[interface] else { return };
        let mut at = into;
        for [offset, length] in
            ranges.iter().filter(|[_, length]| *length > 0).map(|range| range.map(|word| word as usize))
        {
            let offset = offset - interface * FRAMES_BYTES;
            assert!(offset + length <= port.received.len(), "ranges outside of the frames");
            // SAFETY: the source was checked; the caller has room for all ranges at `into`, in other memory. A driver
            // that breaks its rules may write the source meanwhile: no reference to it exists, and the bytes are only
            // copied.
            unsafe {
                std::ptr::copy_nonoverlapping(port.received.as_ptr().add(offset), at, length);
                at = at.add(length);
            }
        }
    }
}

const UNKNOWN: Endpoint = Endpoint { address: Address::UNSPECIFIED, port: 0 };

impl Interface {
    /// Where the header of the next frame is written. The transmit ring has room.
    fn next_header(&mut self) -> &mut [u8; HEADER_BYTES] {
        let header = driver::header(&self.channel, self.transmit.position(), true);
        // SAFETY: HEADER_BYTES in memory that this process alone writes and that lives with the channel; `&mut self`
        // excludes a second reference. The driver reads a header only while its slot is published and not consumed,
        // which the next position is not.
        unsafe { &mut *header.cast() }
    }
}

fn frame_id(interface: InterfaceId, head: u32) -> FrameId {
    u32::from(interface) * HEADS as u32 + head
}

/// Copies bytes out of memory that a driver may write meanwhile.
fn copy(from: &Region, offset: usize, into: &mut [u8]) {
    assert!(offset <= from.len() && into.len() <= from.len() - offset, "a header outside of the frames");
    // SAFETY: checked above; no reference to the source exists, and what is decided is decided on the copy.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr().add(offset), into.as_mut_ptr(), into.len()) };
}
