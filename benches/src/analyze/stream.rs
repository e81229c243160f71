//! A capture of any length, made while it is read: connections of writes with immediate data whose packets take turns.
//! It shares no code with the product.

use std::io::{self, Write};

const SYN: u8 = 0x02;
const ACK: u8 = 0x10;
const PORT: u16 = 3260;
/// Ethernet, IPv4, TCP with time stamps.
const HEADERS: usize = 14 + 20 + 32;
const RECORD: usize = 16;
const BHS: usize = 48;
/// Time between two packets.
const STEP_NS: u64 = 1000;
/// The capture begins at this second.
const EPOCH_S: u64 = 1_800_000_000;
/// Bytes that are written at once.
const CHUNK: usize = 1 << 20;

/// What the packets are like.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) connections: usize,
    /// Payload of a full packet.
    pub(super) segment: usize,
    /// Data of one write.
    pub(super) data: usize,
    /// Bytes of each frame that the capture keeps.
    pub(super) snap: usize,
}

/// When a capture ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum Until {
    Packets(u64),
    Bytes(u64),
}

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) packets: u64,
    pub(super) bytes: u64,
}

/// One connection: what its ends have sent, and where it is in its present write.
#[derive(Clone, Debug)]
struct Connection {
    number: u32,
    next: [u32; 2],
    write: u32,
    /// Bytes of the command that were sent, and packets since the last acknowledgement.
    sent: usize,
    unacknowledged: u32,
}

struct Maker<W> {
    to: W,
    chunk: Vec<u8>,
    at_ns: u64,
    snap: usize,
    written: Written,
}

impl<W: Write> Maker<W> {
    fn packet(
        &mut self,
        connection: &mut Connection,
        from: usize,
        flags: u8,
        head: &[u8],
        zeros: usize,
    ) -> io::Result<()> {
        let payload = head.len() + zeros;
        let whole = HEADERS + payload;
        let kept = whole.min(self.snap);
        self.at_ns += STEP_NS;
        let (seconds, nanoseconds) = (self.at_ns / 1_000_000_000, self.at_ns % 1_000_000_000);
        for value in [seconds as u32, nanoseconds as u32, kept as u32, whole as u32] {
            self.chunk.extend_from_slice(&value.to_le_bytes());
        }
        let start = self.chunk.len();
        self.chunk.extend_from_slice(&headers(connection, from, flags, payload, self.at_ns));
        self.chunk.extend_from_slice(head);
        self.chunk.resize(start + kept.max(HEADERS + head.len()), 0);
        self.chunk.truncate(start + kept);
        connection.next[from] =
            connection.next[from].wrapping_add(payload as u32 + u32::from(flags & SYN != 0));
        self.written.packets += 1;
        self.written.bytes += (RECORD + kept) as u64;
        if self.chunk.len() >= CHUNK { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.write_all(&self.chunk)?;
        self.chunk.clear();
        Ok(())
    }

    /// Handshake and login.
    fn open(&mut self, connection: &mut Connection) -> io::Result<()> {
        self.packet(connection, 0, SYN, &[], 0)?;
        self.packet(connection, 1, SYN | ACK, &[], 0)?;
        self.packet(connection, 0, ACK, &[], 0)?;
        let keys = "SessionType=Normal\0InitialR2T=No\0ImmediateData=Yes\0FirstBurstLength=65536\0\
                    MaxRecvDataSegmentLength=262144\0";
        let offer = format!("InitiatorName=iqn.2026-11.example:{}\0{keys}", connection.number);
        for (from, opcode, text) in [(0, 0x43, offer.as_str()), (1, 0x23, &keys[19..])] {
            let mut pdu = header(opcode, 0x87, text.len(), &[(16, 1), (24, 1), (28, 1), (32, 32)]).to_vec();
            pdu.extend_from_slice(text.as_bytes());
            pdu.resize(pdu.len().next_multiple_of(4), 0);
            self.packet(connection, from, ACK, &pdu, 0)?;
        }
        Ok(())
    }

    /// The next packet of a connection: a part of a command, the acknowledgement of every second, or the response.
    fn step(&mut self, load: Load, connection: &mut Connection) -> io::Result<()> {
        let whole = BHS + load.data;
        if connection.unacknowledged == 2 {
            connection.unacknowledged = 0;
            return self.packet(connection, 1, ACK, &[], 0);
        }
        let write = connection.write;
        if connection.sent == whole {
            (connection.sent, connection.unacknowledged, connection.write) = (0, 0, write.wrapping_add(1));
            let sn = write.wrapping_add(2);
            let numbers = [(16, write), (24, sn), (28, sn), (32, sn.wrapping_add(31))];
            return self.packet(connection, 1, ACK, &header(0x21, 0x80, 0, &numbers), 0);
        }
        let bytes = load.segment.min(whole - connection.sent);
        connection.unacknowledged += 1;
        let is_first = connection.sent == 0;
        connection.sent += bytes;
        if !is_first {
            return self.packet(connection, 0, ACK, &[], bytes);
        }
        let sn = write.wrapping_add(1);
        let mut head =
            header(0x01, 0xa1, load.data, &[(16, write), (20, load.data as u32), (24, sn), (28, sn)]);
        // WRITE(10).
        head[32] = 0x2a;
        head[40] = (load.data / 512) as u8;
        self.packet(connection, 0, ACK, &head, bytes - BHS)
    }
}

/// A basic header segment.
fn header(opcode: u8, flags: u8, data: usize, fields: &[(usize, u32)]) -> [u8; BHS] {
    let mut bytes = [0; BHS];
    bytes[0] = opcode;
    bytes[1] = flags;
    bytes[5..8].copy_from_slice(&(data as u32).to_be_bytes()[1..]);
    for (at, value) in fields {
        bytes[*at..at + 4].copy_from_slice(&value.to_be_bytes());
    }
    bytes
}

fn headers(connection: &Connection, from: usize, flags: u8, payload: usize, at_ns: u64) -> [u8; HEADERS] {
    let mut bytes = [0; HEADERS];
    let ports = [10_000 + (connection.number % 50_000) as u16, PORT];
    bytes[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
    bytes[12..18].copy_from_slice(&[8, 0, 0x45, 0, 0, 0]);
    bytes[16..18].copy_from_slice(&((HEADERS - 14 + payload) as u16).to_be_bytes());
    bytes[20..26].copy_from_slice(&[0x40, 0, 64, 6, 0, 0]);
    bytes[26..34].copy_from_slice(&[192, 0, 2, 1 + from as u8, 192, 0, 2, 2 - from as u8]);
    bytes[34..36].copy_from_slice(&ports[from].to_be_bytes());
    bytes[36..38].copy_from_slice(&ports[1 - from].to_be_bytes());
    bytes[38..42].copy_from_slice(&connection.next[from].to_be_bytes());
    bytes[42..46].copy_from_slice(&connection.next[1 - from].to_be_bytes());
    bytes[46..50].copy_from_slice(&[0x80, flags, 0x7f, 0xff]);
    let stamp = (at_ns / 1_000_000) as u32;
    if flags & SYN == 0 {
        bytes[54..58].copy_from_slice(&[1, 1, 8, 10]);
    } else {
        // Maximum segment size and scale in place of the time stamps.
        bytes[54..66].copy_from_slice(&[2, 4, 5, 0xa8, 1, 3, 3, 7, 0, 0, 0, 0]);
        return bytes;
    }
    bytes[58..62].copy_from_slice(&stamp.to_be_bytes());
    bytes[62..66].copy_from_slice(&stamp.to_be_bytes());
    bytes
}

/// Writes a capture in pcap.
pub(super) fn write(load: Load, until: Until, to: impl Write) -> io::Result<Written> {
    let mut maker = Maker {
        to,
        chunk: Vec::with_capacity(2 * CHUNK),
        at_ns: EPOCH_S * 1_000_000_000,
        snap: load.snap,
        written: Written::default(),
    };
    for value in [0xa1b2_3c4d_u32, 0x0004_0002, 0, 0, 262_144, 1] {
        maker.chunk.extend(value.to_le_bytes());
    }
    maker.written.bytes = 24;
    let new = |number| Connection { number, next: [1000, 2000], write: 0, sent: 0, unacknowledged: 0 };
    let mut connections: Vec<_> = (0..load.connections as u32).map(new).collect();
    for connection in &mut connections {
        maker.open(connection)?;
    }
    'all: loop {
        for connection in &mut connections {
            let is_over = match until {
                Until::Packets(count) => maker.written.packets >= count,
                Until::Bytes(count) => maker.written.bytes >= count,
            };
            if is_over {
                break 'all;
            }
            maker.step(load, connection)?;
        }
    }
    maker.flush()?;
    Ok(maker.written)
}
