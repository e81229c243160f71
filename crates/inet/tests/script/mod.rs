//! [`inet::Engine`] as the stack under test: this side is its driver, which completes checksums and divides segments as
//! a device does, and its application.

#![expect(
    clippy::redundant_closure_for_method_calls,
    reason = "a method's path is that of one lifetime, the engines of a host are of any"
)]

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use inet::{
    Algorithm, Arrived, Capacity, ConnectionId, Ended, Endpoint, Engine, Event, FrameId, HEADER_BYTES, Link,
    ListenerId, Options, Owned, PayloadRef, Settings, Source, Submitted, Time, Transmit, VNET_BYTES,
};
use tcp_script::script::{self, Call, Failure, SocketOptions, Special};
use tcp_script::stack::{Ports, Slack, Stack, peer_byte, stack_byte};
use tcp_script::wire::{self, FIN, Frame, PSH, Segment};
use tcp_script::{PEER_MAC, PREFIX_V4, PREFIX_V6, STACK_MAC, Version, peer_ip, stack_ip};

const CLIENT: u32 = 0;
/// Timers have a resolution, and the engine may round.
const SLACK: Slack = Slack { early: 0, late: 2_000, late_share: 100 };
const START: Time = Time(7_000_000);
/// Calls of the engine that follow one input, at most.
const STEPS_MAX: usize = 10_000;
const GENERATION: u32 = 1;

fn capacity(settings: script::Settings) -> Capacity {
    let or = |wanted: u32, default: u32| if wanted == 0 { default } else { wanted };
    Capacity {
        connections: or(settings.connections, 16),
        listeners: 4,
        pieces: 256,
        segments: 1024,
        time_waits: 16,
        neighbours: 8,
        frames: or(settings.frames, 256),
        tails: 64,
        clients: 2,
    }
}

/// Calls `play` with an engine, whose records stay where they are or are copied before each event.
pub(crate) fn with_engine<R>(
    settings: script::Settings,
    is_moved: bool,
    play: impl FnOnce(&mut dyn Stack) -> R,
) -> R {
    let capacity = capacity(settings);
    let mut owned = Owned::new(&capacity);
    let addresses = vec![(stack_ip(Version::V4), PREFIX_V4), (stack_ip(Version::V6), PREFIX_V6)];
    let secret = [7; 16];
    let made = Settings { addresses, gateways: vec![peer_ip(Version::V4), peer_ip(Version::V6)], secret };
    let link = Link { mac: STACK_MAC, mtu: settings.mtu, segments: settings.segments };
    let host = if is_moved {
        let _ = Engine::new(owned.memory(), &made, START);
        Host::Moved(owned)
    } else {
        let kept = Host::Kept(Engine::new(owned.memory(), &made, START));
        return attached(kept, capacity.frames, link, settings.is_stranger, play);
    };
    attached(host, capacity.frames, link, settings.is_stranger, play)
}

fn attached<R>(
    host: Host<'_>,
    frames: u32,
    link: Link,
    is_stranger: bool,
    play: impl FnOnce(&mut dyn Stack) -> R,
) -> R {
    let mut peer = Surroundings {
        host,
        link,
        now: START,
        free: (0..frames).collect(),
        held: BTreeMap::new(),
        is_driver_held: false,
        at_driver: VecDeque::new(),
        emitted: 0,
        asked: 0,
        consumed: 0,
        wire: VecDeque::new(),
        listener: None,
        flows: BTreeMap::new(),
        connections: BTreeMap::new(),
        violation: None,
    };
    peer.event(|engine, now| engine.on_attached(0, link, now));
    if !is_stranger {
        // A host that sends first asks first, and so is known.
        for version in [Version::V4, Version::V6] {
            peer.inject(&wire::question(stack_ip(version), peer_ip(version), PEER_MAC), 0);
        }
    }
    play(&mut peer)
}

enum Host<'m> {
    Kept(Engine<'m>),
    Moved(Owned),
}

impl Host<'_> {
    fn with<R>(&mut self, now: Time, event: impl FnOnce(&mut Engine<'_>) -> R) -> R {
        match self {
            Self::Kept(engine) => event(engine),
            Self::Moved(owned) => {
                let mut copy = owned.clone();
                let result = event(&mut Engine::attach(copy.memory(), now));
                *owned = copy;
                result
            }
        }
    }
}

#[derive(Default)]
struct Connection {
    /// Region of what it sends: the letter of its flow.
    region: u32,
    sent: u64,
    /// Last ticket, and where the bytes of those that were not released end.
    ticket: u64,
    ends: BTreeMap<u64, u64>,
    released: u64,
    submitted: u64,
    /// Deliveries not yet received by the script: frame, next byte, bytes left.
    delivered: VecDeque<(FrameId, u32, u32)>,
    delivered_end: u64,
    received: u64,
    is_connected: bool,
    is_peer_closed: bool,
    ended: Option<Ended>,
}

struct Waiting {
    frame: Vec<u8>,
    transmit: Transmit,
}

struct Surroundings<'m> {
    host: Host<'m>,
    link: Link,
    now: Time,
    free: Vec<FrameId>,
    held: BTreeMap<FrameId, Vec<u8>>,
    is_driver_held: bool,
    at_driver: VecDeque<Waiting>,
    emitted: u64,
    /// `emitted` when a script last asked.
    asked: u64,
    consumed: u64,
    wire: VecDeque<(u64, Vec<u8>)>,
    listener: Option<ListenerId>,
    flows: BTreeMap<char, ConnectionId>,
    connections: BTreeMap<(u32, u32), Connection>,
    violation: Option<String>,
}

fn key(id: ConnectionId) -> (u32, u32) {
    (id.index, id.generation)
}

impl Surroundings<'_> {
    fn event<R>(&mut self, event: impl FnOnce(&mut Engine<'_>, Time) -> R) -> R {
        let now = self.now;
        let result = self.host.with(now, |engine| event(engine, now));
        self.settle();
        result
    }

    fn violate(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    /// Takes all that the engine has to say, in the order of a turn of the server: frames to send, events, free frames.
    fn settle(&mut self) {
        for _ in 0..STEPS_MAX {
            if !(self.take_transmit() || self.take_event() || self.take_free()) {
                return;
            }
        }
        self.violate("the engine does not come to rest".to_owned());
    }

    fn take_transmit(&mut self) -> bool {
        let (now, mut header) = (self.now, [0; HEADER_BYTES]);
        let Some(transmit) = self.host.with(now, |engine| engine.poll_transmit(&mut header, now)) else {
            return false;
        };
        self.emitted += 1;
        match self.assemble(&header, &transmit) {
            Ok(frame) => self.at_driver.push_back(Waiting { frame, transmit }),
            Err(wrong) => self.violate(wrong),
        }
        if !self.is_driver_held {
            self.consume(u64::MAX);
        }
        true
    }

    fn take_event(&mut self) -> bool {
        let event = self.host.with(self.now, |engine| engine.poll_event(CLIENT));
        event.map(|event| self.on_event(event)).is_some()
    }

    fn take_free(&mut self) -> bool {
        let Some(frame) = self.host.with(self.now, |engine| engine.poll_free()) else { return false };
        if self.held.remove(&frame).is_none() {
            self.violate(format!("frame {frame} comes back, but was not there"));
        }
        self.free.push(frame);
        true
    }

    fn bytes(&self, source: &Source) -> Result<Vec<u8>, String> {
        match source {
            Source::Client(PayloadRef { offset, length, .. }) => {
                Ok((u64::from(*offset)..u64::from(offset + length)).map(stack_byte).collect())
            }
            Source::Frame { frame, start, length } => {
                let (start, end) = (*start as usize, (start + length) as usize);
                let bytes = self.held.get(frame).and_then(|frame| frame.get(start..end));
                bytes.map(<[u8]>::to_vec).ok_or_else(|| format!("bytes outside of frame {frame}"))
            }
        }
    }

    /// The frame as the device sends it, with its checksum completed.
    fn assemble(&self, header: &[u8; HEADER_BYTES], transmit: &Transmit) -> Result<Vec<u8>, String> {
        let end = VNET_BYTES + usize::from(transmit.header_bytes);
        let mut frame = header.get(VNET_BYTES..end).ok_or("a header that is too long")?.to_vec();
        for source in transmit.sources.iter().flatten() {
            frame.extend(self.bytes(source)?);
        }
        if transmit.checksum_start != 0 {
            let start = usize::from(transmit.checksum_start);
            let at = start + usize::from(transmit.checksum_offset);
            let is_v4 = frame.get(12..14) == Some(&[8, 0]);
            let (addresses, protocol) = if is_v4 { (26..34, 23) } else { (22..54, 20) };
            let field = frame.get(at..at + 2).ok_or("a checksum outside of the frame")?.to_vec();
            let length = ((frame.len() - start) as u32).to_be_bytes();
            let addresses = frame.get(addresses).ok_or("a frame without IP header")?;
            let partial = wire::sum(&[addresses, &length, &[0, frame[protocol]]]);
            if field != partial.to_be_bytes() {
                return Err(format!("a pseudo-header sum of {field:02x?}, not {partial:#06x}"));
            }
            let checksum = !wire::sum(&[&frame[start..]]);
            frame[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
        }
        let limit = 14 + usize::from(self.link.mtu);
        let bytes = match (usize::from(transmit.segment_bytes), self.link.segments) {
            (0, _) => frame.len(),
            (_, false) => return Err("segments to be divided, by a device that does not".to_owned()),
            (segment, true) => usize::from(transmit.header_bytes) + segment,
        };
        if bytes > limit { Err(format!("a frame of {bytes} bytes")) } else { Ok(frame) }
    }

    /// The driver consumes frames that wait.
    fn consume(&mut self, frames: u64) {
        for _ in 0..frames {
            let Some(Waiting { frame, transmit }) = self.at_driver.pop_front() else { break };
            for source in transmit.sources.iter().flatten() {
                if let Source::Client(payload) = source {
                    let released = self.connections.values().find(|it| it.region == payload.region);
                    if released.is_some_and(|it| u64::from(payload.offset) < it.released) {
                        self.violate(format!("{payload:?} was released before the driver consumed it"));
                    }
                }
            }
            if let Some(Submitted { connection, ticket, .. }) = transmit.submitted
                && let Some(it) = self.connections.get_mut(&key(connection))
            {
                it.submitted = it.ends.range(..=ticket).next_back().map_or(it.submitted, |(_, &end)| end);
            }
            match divide(&frame, transmit.segment_bytes) {
                Ok(frames) => self.wire.extend(frames.into_iter().map(|frame| (self.now.0, frame))),
                Err(wrong) => self.violate(wrong),
            }
        }
        let consumed = self.emitted - self.at_driver.len() as u64;
        if consumed > self.consumed {
            self.consumed = consumed;
            let now = self.now;
            self.host.with(now, |engine| engine.on_transmitted(0, consumed, now));
        }
    }

    fn on_event(&mut self, event: Event) {
        let (Event::Connected { connection }
        | Event::Received { connection, .. }
        | Event::PeerClosed { connection }
        | Event::Released { connection, .. }
        | Event::Room { connection }
        | Event::Ended { connection, .. }) = event
        else {
            return;
        };
        let it = self.connections.entry(key(connection)).or_default();
        if it.ended.is_some() && !matches!(event, Event::Released { .. }) {
            self.violate(format!("{event:?} after the end"));
            return;
        }
        match event {
            Event::Connected { .. } => it.is_connected = true,
            Event::Received { frame, start, length, offset, .. } => {
                let is_right = length > 0 && offset == it.delivered_end && !it.is_peer_closed;
                it.delivered.push_back((frame, start, length));
                it.delivered_end += u64::from(length);
                let bytes = self.held.get(&frame).and_then(|frame| {
                    frame.get(start as usize..(start + length) as usize).map(<[u8]>::to_vec)
                });
                if !is_right
                    || bytes.is_none_or(|bytes| !(offset..).map(peer_byte).zip(bytes).all(|(a, b)| a == b))
                {
                    self.violate(format!("a delivery of other bytes: {event:?}"));
                }
            }
            Event::PeerClosed { .. } => it.is_peer_closed = true,
            Event::Released { ticket, .. } => {
                let before = it.released;
                while let Some((&first, &end)) = it.ends.first_key_value()
                    && first <= ticket
                {
                    it.released = end;
                    it.ends.remove(&first);
                }
                if it.released == before {
                    self.violate(format!("{event:?} releases nothing"));
                }
            }
            Event::Ended { why, .. } => it.ended = Some(why),
            Event::Room { .. } | Event::Incoming { .. } => {}
        }
    }

    fn id(&self, flow: char) -> Result<ConnectionId, String> {
        self.flows.get(&flow).copied().ok_or_else(|| "no such connection".to_owned())
    }

    fn of(&mut self, flow: char) -> Result<&mut Connection, String> {
        let id = self.id(flow)?;
        Ok(self.connections.entry(key(id)).or_default())
    }

    fn keep(&mut self, flow: char, id: ConnectionId) {
        self.flows.insert(flow, id);
        self.connections.entry(key(id)).or_default().region = u32::from(flow);
    }

    fn receive(&mut self, flow: char, bytes: usize) -> Result<(), String> {
        let it = self.of(flow)?;
        let mut left = bytes as u32;
        let mut returned = Vec::new();
        while left > 0 {
            let Some((frame, start, length)) = it.delivered.pop_front() else {
                return Err(format!("{left} bytes are missing"));
            };
            let taken = length.min(left);
            left -= taken;
            it.received += u64::from(taken);
            if taken < length {
                it.delivered.push_front((frame, start + taken, length - taken));
            } else if !it.delivered.iter().any(|&(other, ..)| other == frame) {
                returned.push(frame);
            }
        }
        for frame in returned {
            self.event(|engine, now| engine.release(CLIENT, frame, now))
                .map_err(|refusal| format!("frame {frame} is not taken back: {refusal:?}"))?;
        }
        Ok(())
    }

    fn send(&mut self, flow: char, bytes: usize) -> Result<(), String> {
        let (id, it) = (self.id(flow)?, self.of(flow)?);
        let ticket = it.ticket + 1;
        let piece = PayloadRef {
            region: it.region,
            generation: GENERATION,
            offset: it.sent as u32,
            length: bytes as u32,
        };
        // Frames that carry the bytes may leave before the call returns.
        it.ends.insert(ticket, it.sent + bytes as u64);
        let result = self.event(|engine, now| engine.send(id, ticket, &[piece], now));
        let it = self.of(flow)?;
        if let Err(refusal) = result {
            it.ends.remove(&ticket);
            return Err(format!("{refusal:?}"));
        }
        it.ticket = ticket;
        it.sent += bytes as u64;
        Ok(())
    }
}

fn options(options: SocketOptions) -> Options {
    let default = Options::default();
    Options {
        no_delay: options.no_delay,
        algorithm: if options.is_reno { Algorithm::NewReno } else { Algorithm::Cubic },
        keep_alive_s: options.keep_alive_s,
        receive_bytes_max: if options.receive_bytes > 0 {
            options.receive_bytes
        } else {
            default.receive_bytes_max
        },
    }
}

fn endpoint(address: IpAddr, port: u16) -> Endpoint {
    Endpoint { address: address.into(), port }
}

fn unspecified(version: Version) -> IpAddr {
    if version == Version::V4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

fn failure(ended: Ended) -> Failure {
    match ended {
        Ended::Closed => Failure::Closed,
        Ended::Reset => Failure::Reset,
        Ended::Refused => Failure::Refused,
        Ended::TimedOut => Failure::TimedOut,
        Ended::Unreachable => Failure::Unreachable,
        Ended::Aborted => Failure::Aborted,
    }
}

/// What a device that segments makes of a frame.
fn divide(frame: &[u8], segment_bytes: u16) -> Result<Vec<Vec<u8>>, String> {
    if segment_bytes == 0 {
        return Ok(vec![frame.to_vec()]);
    }
    let Frame::Tcp(whole) = wire::parse(frame)? else {
        return Err("a frame to be divided that is no TCP segment".to_owned());
    };
    let pieces = whole.payload.chunks(segment_bytes.into()).collect::<Vec<_>>();
    let mut seq = whole.seq;
    let mut frames = Vec::new();
    for (index, piece) in pieces.iter().enumerate() {
        let last_only = if index + 1 < pieces.len() { FIN | PSH } else { 0 };
        let segment =
            Segment { seq, flags: whole.flags & !last_only, payload: piece.to_vec(), ..whole.clone() };
        seq = seq.wrapping_add(piece.len() as u32);
        frames.push(wire::tcp(&segment, PEER_MAC, STACK_MAC, &[]));
    }
    Ok(frames)
}

impl Stack for Surroundings<'_> {
    fn slack(&self) -> Slack {
        SLACK
    }

    fn now(&self) -> u64 {
        self.now.0
    }

    fn inject(&mut self, frame: &[u8], segment_bytes: u16) {
        // No memory to receive into: the frame is lost.
        let Some(id) = self.free.pop() else { return };
        self.held.insert(id, frame.to_vec());
        let is_checked = wire::is_checked(frame);
        let header = &frame[..frame.len().min(HEADER_BYTES)];
        let length = frame.len() as u32;
        let arrived = Arrived { interface: 0, frame: id, header, length, is_checked, segment_bytes };
        self.event(|engine, now| engine.on_frame(&arrived, now));
    }

    fn frame(&mut self, until: u64) -> Option<(u64, Vec<u8>)> {
        let mut idle = 0;
        loop {
            if let Some(frame) = self.wire.pop_front() {
                return Some(frame);
            }
            let now = self.now;
            let timeout = self.host.with(now, |engine| engine.poll_timeout());
            let Some(timeout) = timeout.filter(|timeout| timeout.0 <= until) else {
                self.now = self.now.max(Time(until));
                return None;
            };
            idle = if timeout > self.now { 0 } else { idle + 1 };
            if idle > STEPS_MAX {
                self.violate("timers that never end".to_owned());
                self.now = Time(until);
                return None;
            }
            self.now = self.now.max(timeout);
            self.event(|engine, now| engine.on_timer(now));
        }
    }

    fn call(&mut self, flow: char, call: &Call, ports: Ports) -> Result<(), String> {
        let refused = |refusal| format!("{refusal:?}");
        match call {
            Call::Listen { backlog, options: wanted } => {
                let local = endpoint(unspecified(ports.version), ports.local.unwrap_or(0));
                let made = self.event(|engine, _| engine.listen(CLIENT, local, *backlog, options(*wanted)));
                self.listener = Some(made.map_err(refused)?);
            }
            Call::CloseListener => {
                let listener = self.listener.take().ok_or("nothing listens")?;
                self.event(|engine, now| engine.close_listener(listener, now));
            }
            Call::Connect { from, options: wanted } => {
                let local = endpoint(unspecified(ports.version), from.unwrap_or(0));
                let remote = endpoint(peer_ip(ports.version), ports.peer);
                let made =
                    self.event(|engine, now| engine.connect(CLIENT, local, remote, options(*wanted), now));
                self.keep(flow, made.map_err(refused)?);
            }
            Call::Accept => {
                let listener = self.listener.ok_or("nothing listens")?;
                let id = self.event(|engine, _| engine.accept(listener)).ok_or("nothing to accept")?;
                self.keep(flow, id);
                self.of(flow)?.is_connected = true;
            }
            Call::AcceptNothing => {
                let listener = self.listener.ok_or("nothing listens")?;
                if self.event(|engine, _| engine.accept(listener)).is_some() {
                    return Err("a connection was accepted".to_owned());
                }
            }
            Call::Connected => {
                if !self.of(flow)?.is_connected {
                    return Err("the connection is not open".to_owned());
                }
            }
            Call::Send(bytes) => self.send(flow, *bytes)?,
            Call::SendRefused(bytes) => {
                if self.send(flow, *bytes).is_ok() {
                    return Err("the bytes were taken".to_owned());
                }
            }
            Call::Receive(bytes) => self.receive(flow, *bytes)?,
            Call::ReceiveNothing => {
                let it = self.of(flow)?;
                if !it.delivered.is_empty() || it.is_peer_closed || it.ended.is_some() {
                    return Err("there is something to receive".to_owned());
                }
            }
            Call::EndOfStream => {
                let it = self.of(flow)?;
                if !it.is_peer_closed || !it.delivered.is_empty() {
                    return Err("the stream has not ended".to_owned());
                }
            }
            Call::Failed(expected) | Call::Ended(expected) => {
                let ended = self.of(flow)?.ended;
                if ended.map(failure) != Some(*expected) {
                    return Err(format!("the end of the connection: {ended:?}"));
                }
            }
            Call::Shutdown => {
                let id = self.id(flow)?;
                self.event(|engine, now| engine.shutdown(id, now)).map_err(refused)?;
            }
            Call::Close => {
                let id = self.id(flow)?;
                self.event(|engine, now| engine.close(id, now)).map_err(refused)?;
            }
            Call::Abort => {
                let id = self.id(flow)?;
                self.event(|engine, now| engine.abort(id, now)).map_err(refused)?;
            }
            Call::Options(wanted) => {
                let id = self.id(flow)?;
                self.event(|engine, _| engine.set_options(id, options(*wanted))).map_err(refused)?;
            }
        }
        Ok(())
    }

    fn special(&mut self, flow: char, special: &Special) -> Result<(), String> {
        match special {
            Special::DriverHold => self.is_driver_held = true,
            Special::DriverConsume(frames) => {
                self.is_driver_held = frames.is_some();
                self.consume(frames.unwrap_or(u64::MAX));
                self.settle();
            }
            Special::Emitted(count) => {
                let frames = (self.emitted - self.asked) as usize;
                self.asked = self.emitted;
                if !(count.0..=count.1).contains(&frames) {
                    return Err(format!("{frames} frames"));
                }
            }
            Special::DriverRestart => {
                self.at_driver.clear();
                self.consumed = self.emitted;
                self.is_driver_held = false;
                let link = self.link;
                self.event(|engine, now| engine.on_attached(0, link, now));
            }
            Special::Released(bytes) => {
                let released = self.of(flow)?.released;
                if released != *bytes {
                    return Err(format!("{released} bytes were released"));
                }
            }
            Special::Submitted(bytes) => {
                let submitted = self.of(flow)?.submitted;
                if submitted != *bytes {
                    return Err(format!("{submitted} bytes were submitted"));
                }
            }
            Special::ClientGone => self.event(|engine, now| engine.on_client_gone(CLIENT, now)),
            Special::Drained(expected) => {
                let now = self.now;
                if self.host.with(now, |engine| engine.is_drained(CLIENT)) != *expected {
                    return Err("it is the other way round".to_owned());
                }
            }
        }
        Ok(())
    }

    fn violation(&mut self) -> Option<String> {
        self.violation.take()
    }

    fn sysctl(&mut self, _: &str, _: &str) -> Result<(), String> {
        Ok(())
    }
}
