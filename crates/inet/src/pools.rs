//! What all connections share: records of frames, of memory to send from, of segments in flight, and counters. Each user
//! is limited to a share of what is left, so that no peer and no client takes it all.

use zerocopy::FromZeros;

use crate::chain::Chain;
use crate::iface::INTERFACES_MAX;
use crate::memory::Capacity;
use crate::packet::{Flags, TcpHeader};
use crate::tcp::Piece;
use crate::tcp::recovery::Segment;
use crate::{Arrived, ConnectionId, FrameId, HEAD_BYTES, InterfaceId, List, NONE, Record, SeqNumber, Slab};

/// One in this many heads and tails of frames is the driver's always: bytes that are not read stop no ACK.
const FRAMES_DRIVER_SHARE: u32 = 16;
/// A client may hold this many times the heads and tails that are left then, a connection that many times what is left of
/// its client's part. So a connection that is not read leaves a third of the client's part to others, and one that is read
/// may fill its window: of 256 tails it may hold 120, with half-full frames 3.9 MB.
const FRAMES_TIMES_CLIENT: u32 = 3;
const FRAMES_TIMES_CONNECTION: u32 = 2;
/// Frames that a connection may hold although its client's part is used up: two, because the window opens by two segments
/// at least (RFC 9293 §3.8.6.2.2).
const FRAMES_RESERVED: u32 = 2;
/// A client may hold this many times the pieces that are left.
const PIECES_TIMES_CLIENT: u32 = 4;
/// Pieces that a connection gets although shares are used up: those of one `send`.
const RESERVED: u32 = 4;
const _: () = assert!(RESERVED as usize >= crate::SEND_PIECES_MAX);

/// Of the engine as a whole. There is one.
#[derive(Clone, Copy, Debug, FromZeros)]
#[repr(C)]
pub(crate) struct Header {
    /// Which release's records these are.
    pub(crate) layout: u32,
    pub(crate) capacity: Capacity,
    pub(crate) secret: [u8; 16],
    pub(crate) ports: [Port; INTERFACES_MAX],
    /// Frames that `poll_free` returns.
    free_frames: List,
    /// Frames held, and those of them that have a tail.
    heads: u32,
    tails: u32,
    pub(crate) free_connections: Chain,
    /// Connections that may have a segment to send.
    pub(crate) sending: Chain,
    /// Connections with acknowledged pieces to which frames at a driver refer.
    pub(crate) at_driver: Chain,
    pub(crate) half_open: Chain,
    /// Connections whose `send` was refused.
    pub(crate) want_room: Chain,
    /// In the order in which they expire.
    pub(crate) time_waits: Chain,
    pub(crate) free_time_waits: Chain,
    /// Searches for an ephemeral port (RFC 6056 §3.3.3, `next_ephemeral`).
    pub(crate) next_ephemeral: u32,
    /// [`crate::iface::Iface::changes`], as known.
    pub(crate) neighbour_changes: u32,
    /// Answers that wait: the first one, and how many.
    pub(crate) first_reply: u32,
    pub(crate) replies: u32,
    pub(crate) drops: Drops,
}

/// What was refused or given up because a share was used up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromZeros)]
#[repr(C)]
pub struct Drops {
    /// SYNs without answer: the backlog of the listener or the connections of its client are used up.
    pub syns: u64,
    /// Half-open connections that gave way to later ones.
    pub half_open: u64,
    /// Connections that their client had closed and that were reset before the peer had taken all.
    pub orphans: u64,
    /// Segments with bytes for which their connection or its client had no frame left; the peer repeats them.
    pub segments: u64,
}

/// Transmissions of an interface.
#[derive(Clone, Copy, Debug, Default, FromZeros)]
#[repr(C)]
pub(crate) struct Port {
    /// Frames returned by `poll_transmit`, and how many of them the driver has consumed.
    pub(crate) sent: u64,
    pub(crate) consumed: u64,
}

/// A frame of a driver.
#[derive(Clone, Copy, Debug, FromZeros)]
#[repr(C)]
pub(crate) struct Frame {
    next: u32,
    pub(crate) holder: Holder,
    has_tail: bool,
    pub(crate) client: u32,
    pub(crate) connection: ConnectionId,
    pub(crate) seq: SeqNumber,
    /// Payload not yet delivered, from the Ethernet header on.
    pub(crate) start: u32,
    pub(crate) length: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromZeros)]
#[repr(u8)]
pub(crate) enum Holder {
    Driver = 0,
    /// In the list of free frames.
    Free,
    /// The interfaces' code, which answers from it.
    Iface,
    /// A connection's queues.
    Connection,
    /// A client, until it releases the frame.
    Client,
}

#[derive(Clone, Copy, Debug, Default, FromZeros)]
#[repr(C)]
pub(crate) struct Client {
    /// Connections with events.
    pub(crate) reports: Chain,
    /// Connections that the client has closed and that have not ended, the oldest first.
    pub(crate) orphans: Chain,
    /// Records of connections, those that are not accepted yet included.
    pub(crate) connections: u32,
    /// Events of its listeners.
    pub(crate) incoming: u32,
    pub(crate) pieces: u32,
    heads: u32,
    tails: u32,
    /// For each interface, how many frames had been sent when the last one that refers to memory of the client had.
    pub(crate) sent: [u64; INTERFACES_MAX],
}

impl Record for Header {}
impl Record for Frame {}
impl Record for Client {}

#[derive(Debug)]
pub(crate) struct Pools<'m> {
    pub(crate) header: &'m mut Header,
    pub(crate) pieces: Slab<'m, Piece>,
    pub(crate) segments: Slab<'m, Segment>,
    pub(crate) frames: &'m mut [Frame],
    pub(crate) clients: &'m mut [Client],
}

/// How many more of `left` things somebody with `own` may take if he may hold `times` what is left then.
fn share(own: u32, left: u32, times: u32) -> u32 {
    (times * left).saturating_sub(own) / (times + 1)
}

impl Header {
    pub(crate) fn new(capacity: Capacity, secret: [u8; 16], layout: u32) -> Self {
        Self { layout, capacity, secret, free_frames: List::default(), ..Self::new_zeroed() }
    }

    /// The driver has consumed the frame that was the `position`th of its interface.
    pub(crate) fn is_consumed(&self, interface: InterfaceId, position: u64) -> bool {
        self.ports[usize::from(interface)].consumed >= position
    }
}

impl Frame {
    pub(crate) fn end(&self) -> SeqNumber {
        self.seq + self.length
    }
}

/// Payload of a segment that arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Text {
    pub(crate) frame: FrameId,
    /// Of the whole frame, bytes.
    pub(crate) frame_bytes: u32,
    pub(crate) seq: SeqNumber,
    pub(crate) start: u32,
    pub(crate) length: u32,
}

/// To whom a frame is charged, and how many heads and tails it holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner {
    pub(crate) connection: ConnectionId,
    pub(crate) client: u32,
}

/// Heads and tails of frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromZeros)]
#[repr(C)]
pub(crate) struct Pinned {
    pub(crate) heads: u32,
    pub(crate) tails: u32,
}

impl Text {
    /// Of a segment in a frame: SYN takes the number before the first byte.
    pub(crate) fn of(tcp: &TcpHeader, arrived: &Arrived<'_>) -> Self {
        Self {
            frame: arrived.frame,
            frame_bytes: arrived.length,
            seq: tcp.seq + u32::from(tcp.flags.has(Flags::SYN)),
            start: tcp.payload_start,
            length: tcp.payload_bytes,
        }
    }
}

impl Pools<'_> {
    // Frames.

    /// What a connection that holds `own` may take.
    pub(crate) fn frames_left(&self, own: Pinned, client: u32) -> Pinned {
        let Capacity { frames, tails, .. } = self.header.capacity;
        let client = &self.clients[client as usize];
        let left = |all: u32, used: u32, own: u32, clients| {
            let left = all.saturating_sub(all / FRAMES_DRIVER_SHARE).saturating_sub(used);
            let of_client = share(clients, left, FRAMES_TIMES_CLIENT);
            let reserved = FRAMES_RESERVED.saturating_sub(own).min(left);
            share(own, of_client, FRAMES_TIMES_CONNECTION).max(reserved)
        };
        Pinned {
            heads: left(frames, self.header.heads, own.heads, client.heads),
            tails: left(tails, self.header.tails, own.tails, client.tails),
        }
    }

    /// Keeps the frame for a connection and charges it.
    pub(crate) fn keep(&mut self, text: &Text, owner: Owner, own: &mut Pinned) {
        let has_tail = text.frame_bytes > HEAD_BYTES;
        let Text { frame, seq, start, length, .. } = *text;
        self.frames[frame as usize] = Frame {
            next: NONE,
            holder: Holder::Connection,
            has_tail,
            client: owner.client,
            connection: owner.connection,
            seq,
            start,
            length,
        };
        let client = &mut self.clients[owner.client as usize];
        for pinned in [&mut own.heads, &mut client.heads, &mut self.header.heads] {
            *pinned += 1;
        }
        for pinned in [&mut own.tails, &mut client.tails, &mut self.header.tails] {
            *pinned += u32::from(has_tail);
        }
    }

    /// Frees a frame of a connection or client. `own` is the connection's, if it still lives.
    pub(crate) fn free_kept(&mut self, frame: FrameId, own: Option<&mut Pinned>) {
        let Frame { has_tail, client, .. } = self.frames[frame as usize];
        let client = &mut self.clients[client as usize];
        let mut no_one = Pinned { heads: 1, tails: 1 };
        let own = own.unwrap_or(&mut no_one);
        for pinned in [&mut own.heads, &mut client.heads, &mut self.header.heads] {
            *pinned -= 1;
        }
        for pinned in [&mut own.tails, &mut client.tails, &mut self.header.tails] {
            *pinned -= u32::from(has_tail);
        }
        self.free(frame);
    }

    /// Frees a frame that counts toward no connection's or client's quota.
    pub(crate) fn free(&mut self, frame: FrameId) {
        self.frames[frame as usize].holder = Holder::Free;
        let mut free = self.header.free_frames;
        self.push(&mut free, frame);
        self.header.free_frames = free;
    }

    pub(crate) fn pop_free(&mut self) -> Option<FrameId> {
        let mut free = self.header.free_frames;
        let frame = self.pop(&mut free)?;
        self.header.free_frames = free;
        self.frames[frame as usize].holder = Holder::Driver;
        Some(frame)
    }

    pub(crate) fn push(&mut self, queue: &mut List, frame: FrameId) {
        self.frames[frame as usize].next = NONE;
        match queue.last {
            NONE => queue.first = frame,
            last => self.frames[last as usize].next = frame,
        }
        queue.last = frame;
        queue.length += 1;
    }

    pub(crate) fn pop(&mut self, queue: &mut List) -> Option<FrameId> {
        self.remove_after(queue, None)
    }

    /// The frame behind `before`, or the first one.
    pub(crate) fn after(&self, queue: &List, before: Option<FrameId>) -> Option<FrameId> {
        let frame = before.map_or(queue.first, |before| self.frames[before as usize].next);
        (frame != NONE).then_some(frame)
    }

    pub(crate) fn insert_after(&mut self, queue: &mut List, before: Option<FrameId>, frame: FrameId) {
        let next = match before {
            Some(before) => std::mem::replace(&mut self.frames[before as usize].next, frame),
            None => std::mem::replace(&mut queue.first, frame),
        };
        self.frames[frame as usize].next = next;
        if next == NONE {
            queue.last = frame;
        }
        queue.length += 1;
    }

    pub(crate) fn remove_after(&mut self, queue: &mut List, before: Option<FrameId>) -> Option<FrameId> {
        let frame = self.after(queue, before)?;
        let next = self.frames[frame as usize].next;
        match before {
            Some(before) => self.frames[before as usize].next = next,
            None => queue.first = next,
        }
        if next == NONE {
            queue.last = before.unwrap_or(NONE);
        }
        queue.length -= 1;
        Some(frame)
    }

    // Pieces.

    /// Whether a connection of the client that holds `own` pieces may take `count` more.
    pub(crate) fn may_queue(&self, client: u32, own: u32, count: u32) -> bool {
        let room = self.pieces.room();
        let reserve = (RESERVED * self.header.capacity.connections).min(self.pieces.capacity() / 2);
        let left = room.saturating_sub(reserve);
        let clients = self.clients[client as usize].pieces;
        room >= count
            && (own + count <= RESERVED
                || left >= count && share(clients, left, PIECES_TIMES_CLIENT) >= count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_leaves_something_for_others() {
        // Alone: 2/3 and 3/4 of all.
        assert_eq!((share(0, 900, 2), share(0, 800, 3)), (600, 600));
        // A second one gets 2/3 of what the first one left.
        assert_eq!(share(0, 300, 2), 200);
        assert_eq!((share(600, 300, 2), share(700, 300, 2)), (0, 0));
    }
}
