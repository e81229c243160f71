//! A capture made by hand: one iSCSI connection, packet by packet. It shares no code with the product.

use std::fs;
use std::path::Path;

use anyhow::Result;

/// LINKTYPE_RAW: frames begin with the IP header.
const RAW: u32 = 101;
const PORTS: [u16; 2] = [50_000, 3260];
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;
/// The capture begins at this second.
const EPOCH_S: u64 = 1_800_000_000;

/// The frames of one connection from 192.0.2.1, the initiator, to 192.0.2.2.
#[derive(Debug)]
pub struct Made {
    frames: Vec<u8>,
    next: [u32; 2],
}

impl Default for Made {
    /// A handshake at the initiator with a round trip of 10 ms.
    fn default() -> Self {
        let mut made = Self { frames: Vec::new(), next: [1000, 2000] };
        let head = [0xa1b2_3c4d, 0x0004_0002, 0, 0, 262_144, RAW];
        made.frames.extend(head.into_iter().flat_map(u32::to_le_bytes));
        made.packet(0, 0, SYN, &[]);
        made.next[0] += 1;
        made.packet(10_000, 1, SYN | ACK, &[]);
        made.next[1] += 1;
        made.packet(10_000, 0, ACK, &[]);
        made
    }
}

impl Made {
    fn packet(&mut self, at_us: u64, from: usize, flags: u8, payload: &[u8]) {
        let mut tcp = Vec::new();
        tcp.extend(PORTS[from].to_be_bytes());
        tcp.extend(PORTS[1 - from].to_be_bytes());
        tcp.extend(self.next[from].to_be_bytes());
        tcp.extend(self.next[1 - from].to_be_bytes());
        let options: &[u8] = if flags & SYN != 0 { &[2, 4, 5, 180, 1, 3, 3, 7] } else { &[] };
        tcp.extend([(5 + options.len() as u8 / 4) << 4, flags, 0x7f, 0xff, 0, 0, 0, 0]);
        tcp.extend(options);
        tcp.extend(payload);
        let mut ip = vec![0x45, 0];
        ip.extend((20 + tcp.len() as u16).to_be_bytes());
        ip.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
        ip.extend([192, 0, 2, 1 + from as u8, 192, 0, 2, 2 - from as u8]);
        let length = (ip.len() + tcp.len()) as u32;
        let seconds = (EPOCH_S + at_us / 1_000_000) as u32;
        let nanoseconds = (at_us % 1_000_000 * 1000) as u32;
        self.frames.extend([seconds, nanoseconds, length, length].into_iter().flat_map(u32::to_le_bytes));
        self.frames.extend(ip);
        self.frames.extend(tcp);
    }

    /// Bytes of the initiator (0) or the target (1), in segments of 1460.
    pub fn sends(&mut self, at_us: u64, from: usize, bytes: &[u8]) {
        for payload in bytes.chunks(1460) {
            self.packet(at_us, from, ACK, payload);
            self.next[from] = self.next[from].wrapping_add(payload.len() as u32);
        }
    }

    /// An acknowledgement without payload.
    pub fn acknowledges(&mut self, at_us: u64, from: usize) {
        self.packet(at_us, from, ACK, &[]);
    }

    pub fn save(&self, path: &Path) -> Result<()> {
        Ok(fs::write(path, &self.frames)?)
    }
}

/// A PDU with its data, padded.
fn pdu(opcode: u8, flags: u8, fields: &[(usize, u32)], data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 48];
    bytes[0] = opcode;
    bytes[1] = flags;
    bytes[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
    for (at, value) in fields {
        bytes[*at..at + 4].copy_from_slice(&value.to_be_bytes());
    }
    bytes.extend(data);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// A login by this name, and `writes` WRITE(10) of 4 KiB with immediate data, each answered 12 ms later. With `writes` 0 the
/// login alone.
pub fn connection(name: &str, writes: u32) -> Made {
    let mut made = Made::default();
    let text = |pairs: &[(&str, &str)]| {
        pairs.iter().map(|(key, value)| format!("{key}={value}\0")).collect::<String>()
    };
    let offer = text(&[
        ("InitiatorName", name),
        ("TargetName", "iqn.2026-11.example:made"),
        ("SessionType", "Normal"),
        ("InitialR2T", "No"),
        ("ImmediateData", "Yes"),
        ("FirstBurstLength", "65536"),
        ("MaxRecvDataSegmentLength", "262144"),
    ]);
    let answer = text(&[("InitialR2T", "No"), ("ImmediateData", "Yes"), ("FirstBurstLength", "16384")]);
    // Operational negotiation to the full feature phase.
    made.sends(20_000, 0, &pdu(0x43, 0x87, &[(16, 1), (24, 1)], offer.as_bytes()));
    made.sends(30_000, 1, &pdu(0x23, 0x87, &[(16, 1), (24, 1), (28, 1), (32, 32)], answer.as_bytes()));
    for write in 0..writes {
        let (at, sn) = (40_000 + u64::from(write) * 13_000, 1 + write);
        let mut command = pdu(0x01, 0xa1, &[(16, 100 + write), (20, 4096), (24, sn), (28, 2)], &[0x55; 4096]);
        command[32] = 0x2a;
        command[40] = 8;
        made.sends(at, 0, &command);
        let numbers = [(16, 100 + write), (24, 1 + sn), (28, sn + 1), (32, sn + 32)];
        made.sends(at + 12_000, 1, &pdu(0x21, 0x80, &numbers, &[]));
    }
    made.acknowledges(50_000 + u64::from(writes) * 13_000, 0);
    made
}
