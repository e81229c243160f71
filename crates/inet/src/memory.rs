//! The tables of records that an engine works on.

use zerocopy::FromZeros;

use crate::engine::Reply;
use crate::iface::{self, Neighbour};
use crate::pools::{Client, Frame, Header};
use crate::tcp::recovery::Segment;
use crate::tcp::{Connection, Listener, Piece, TimeWait};
use crate::{Node, SlabHead};

/// Answers to segments that belong to no connection, and wait to be sent.
const REPLIES: usize = 64;

/// Of the connections of a client, one in this many may be orphans: closed by the client, not yet ended.
const ORPHANS_SHARE: u32 = 4;
/// Of the connections of a client, one in this many may wait for `accept` of one listener.
const BACKLOG_SHARE: u32 = 2;
/// Orphans are reset while less than this part of a client's connections is free, rounded up: a record is free only when
/// RST has left and the client has the last event, so room is made before it is needed.
const ROOM_SHARE: u32 = 8;

/// Records of each table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromZeros)]
#[repr(C)]
pub struct Capacity {
    pub connections: u32,
    pub listeners: u32,
    /// Of all connections: ranges of memory that were sent and not released.
    pub pieces: u32,
    /// Of all connections: segments that were sent and not acknowledged.
    pub segments: u32,
    pub time_waits: u32,
    pub neighbours: u32,
    /// Frames that drivers receive into; their numbers are 0..frames.
    pub frames: u32,
    /// How many of them at a time can be longer than [`crate::HEAD_BYTES`].
    pub tails: u32,
    pub clients: u32,
}

impl Default for Capacity {
    fn default() -> Self {
        Self {
            connections: 1024,
            listeners: 64,
            pieces: 8192,
            segments: 16_384,
            time_waits: 4096,
            neighbours: 256,
            frames: 1024,
            tails: 256,
            clients: 16,
        }
    }
}

impl Capacity {
    /// Limit of connection records of one client, half-open and unaccepted ones included: an equal share of the table, so
    /// that a full share of one client leaves the records of the others free.
    pub(crate) fn connections_of_client(&self) -> u32 {
        (self.connections / self.clients.max(1)).max(1)
    }

    pub(crate) fn orphans_of_client(&self) -> u32 {
        (self.connections_of_client() / ORPHANS_SHARE).max(1)
    }

    /// Largest backlog of a listener.
    pub(crate) fn backlog_max(&self) -> u32 {
        (self.connections_of_client() / BACKLOG_SHARE).max(1)
    }

    /// Connections of a client that are kept free as long as it has orphans.
    pub(crate) fn room_of_client(&self) -> u32 {
        self.connections_of_client() / ROOM_SHARE + 1
    }

    /// Of all tables, if each begins at a multiple of [`TABLE_ALIGN`].
    pub fn bytes(&self) -> usize {
        let mut count = Count(0);
        Memory::lend(self, &mut count);
        count.0
    }
}

/// Every table may be placed at a multiple of this many bytes.
pub const TABLE_ALIGN: usize = 64;

/// What a table consists of: a `repr(C)` record without pointer, valid if all its bytes are zero.
pub trait Record: Copy + FromZeros + 'static {}

/// Memory for tables. Tables are taken in the same order each time.
pub trait Lend<'m> {
    /// A table of `records` records: whatever [`crate::Engine::new`] is to overwrite, or for [`crate::Engine::attach`] the
    /// very bytes that the former engine left.
    fn lend<T: Record>(&mut self, records: usize) -> &'m mut [T];
}

/// The tables, borrowed from memory of the caller.
#[derive(Debug)]
pub struct Memory<'m> {
    pub(crate) capacity: Capacity,
    pub(crate) header: &'m mut [Header],
    pub(crate) heads: &'m mut [SlabHead],
    pub(crate) connections: &'m mut [Connection],
    pub(crate) listeners: &'m mut [Listener],
    pub(crate) pieces: &'m mut [Node<Piece>],
    pub(crate) segments: &'m mut [Node<Segment>],
    pub(crate) time_waits: &'m mut [TimeWait],
    pub(crate) replies: &'m mut [Reply],
    pub(crate) frames: &'m mut [Frame],
    pub(crate) clients: &'m mut [Client],
    pub(crate) iface: &'m mut [iface::State],
    pub(crate) neighbours: &'m mut [Neighbour],
}

/// Tables on the heap: for tests, and for a stack within one process.
#[derive(Clone, Debug)]
pub struct Owned {
    capacity: Capacity,
    header: Vec<Header>,
    heads: Vec<SlabHead>,
    connections: Vec<Connection>,
    listeners: Vec<Listener>,
    pieces: Vec<Node<Piece>>,
    segments: Vec<Node<Segment>>,
    time_waits: Vec<TimeWait>,
    replies: Vec<Reply>,
    frames: Vec<Frame>,
    clients: Vec<Client>,
    iface: Vec<iface::State>,
    neighbours: Vec<Neighbour>,
}

/// Slabs that have a [`SlabHead`]: pieces and segments.
const SLABS: usize = 2;

impl<'m> Memory<'m> {
    /// Takes the tables from `lender`.
    pub fn lend(capacity: &Capacity, lender: &mut impl Lend<'m>) -> Self {
        Self {
            capacity: *capacity,
            header: lender.lend(1),
            heads: lender.lend(SLABS),
            connections: lender.lend(capacity.connections as usize),
            listeners: lender.lend(capacity.listeners as usize),
            pieces: lender.lend(capacity.pieces as usize),
            segments: lender.lend(capacity.segments as usize),
            time_waits: lender.lend(capacity.time_waits as usize),
            replies: lender.lend(REPLIES),
            frames: lender.lend(capacity.frames as usize),
            clients: lender.lend(capacity.clients as usize),
            iface: lender.lend(1),
            neighbours: lender.lend(capacity.neighbours as usize),
        }
    }
}

impl Owned {
    pub fn new(capacity: &Capacity) -> Self {
        fn table<T: Record>(records: u32) -> Vec<T> {
            vec![T::new_zeroed(); records as usize]
        }
        Self {
            capacity: *capacity,
            header: table(1),
            heads: table(SLABS as u32),
            connections: table(capacity.connections),
            listeners: table(capacity.listeners),
            pieces: table(capacity.pieces),
            segments: table(capacity.segments),
            time_waits: table(capacity.time_waits),
            replies: table(REPLIES as u32),
            frames: table(capacity.frames),
            clients: table(capacity.clients),
            iface: table(1),
            neighbours: table(capacity.neighbours),
        }
    }

    pub fn memory(&mut self) -> Memory<'_> {
        Memory {
            capacity: self.capacity,
            header: &mut self.header,
            heads: &mut self.heads,
            connections: &mut self.connections,
            listeners: &mut self.listeners,
            pieces: &mut self.pieces,
            segments: &mut self.segments,
            time_waits: &mut self.time_waits,
            replies: &mut self.replies,
            frames: &mut self.frames,
            clients: &mut self.clients,
            iface: &mut self.iface,
            neighbours: &mut self.neighbours,
        }
    }
}

/// Adds up the bytes of tables, and lends none.
struct Count(usize);

impl<'m> Lend<'m> for Count {
    fn lend<T: Record>(&mut self, records: usize) -> &'m mut [T] {
        const { assert!(align_of::<T>() <= TABLE_ALIGN) };
        self.0 += (records * size_of::<T>()).next_multiple_of(TABLE_ALIGN);
        &mut []
    }
}

impl Record for SlabHead {}
impl Record for iface::State {}
impl Record for Neighbour {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_connection_takes_at_most_1_kib_of_records_and_its_shares_at_most_3_more() {
        let capacity = Capacity::default();
        let each = |bytes: usize, records: u32| bytes * records as usize / capacity.connections as usize;
        let shares = each(size_of::<Node<Piece>>(), capacity.pieces)
            + each(size_of::<Node<Segment>>(), capacity.segments)
            + each(size_of::<TimeWait>(), capacity.time_waits);
        assert!(size_of::<Connection>() <= 1024, "{}", size_of::<Connection>());
        assert!(shares <= 3072, "{shares}");
    }
}
