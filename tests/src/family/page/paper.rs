//! A capture of writes as at a round trip of 20 ms, made without a network: 4 MiB each in bursts of 1 MiB, as if a send
//! buffer held no more. It shares no code with the program.

use std::collections::VecDeque;
use std::io::{Result, Write};

const SNAP: u32 = 1024;
const LINK_RAW: u32 = 101;
const MSS: usize = 1448;
const RTT_NS: u64 = 20_000_000;
/// Time of one packet at 1 Gbit/s.
const PACKET_NS: u64 = 12_300;
const CAP: u64 = 1 << 20;
const BLOCK: usize = 4 << 20;
const DATA_OUT: usize = 256 << 10;
const HEADER: usize = 48;
const SYN: u8 = 0x02;
const PUSH: u8 = 0x08;
const ACK: u8 = 0x10;

/// Writes the capture. `name` is the initiator's iSCSI name, as it says itself.
pub(super) fn write(out: &mut impl Write, writes: u32, name: &str) -> Result<()> {
    // Magic of nanoseconds, version 2.4.
    for word in [0xa1b2_3c4du32, 0x0004_0002, 0, 0, SNAP, LINK_RAW] {
        out.write_all(&word.to_le_bytes())?;
    }
    let mut wire =
        Wire { out, now: 1_700_000_000_000_000_000, next: [1, 1], in_flight: VecDeque::new(), acked: 1 };
    wire.login(name)?;
    for number in 0..writes {
        wire.task(number)?;
    }
    Ok(())
}

struct Wire<'a, W> {
    out: &'a mut W,
    now: u64,
    /// Next sequence number of initiator and target, unwrapped.
    next: [u64; 2],
    /// When an acknowledgement comes, and up to where.
    in_flight: VecDeque<(u64, u64)>,
    acked: u64,
}

impl<W: Write> Wire<'_, W> {
    /// One segment of `from` (0: initiator): `bytes` of payload, of which `head` is captured.
    fn packet(&mut self, from: usize, flags: u8, options: &[u8], head: &[u8], bytes: usize) -> Result<()> {
        let length = 40 + options.len();
        let captured = length + head.len();
        let [seconds, nanoseconds] = [self.now / 1_000_000_000, self.now % 1_000_000_000];
        for word in [seconds as u32, nanoseconds as u32, captured as u32, (length + bytes) as u32] {
            self.out.write_all(&word.to_le_bytes())?;
        }
        let (ends, ports) = ([[192, 0, 2, 10], [192, 0, 2, 20]], [40112u16, 3260]);
        let to = 1 - from;
        let mut header = vec![0x45, 0];
        header.extend(((length + bytes) as u16).to_be_bytes());
        header.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
        header.extend(ends[from]);
        header.extend(ends[to]);
        header.extend(ports[from].to_be_bytes());
        header.extend(ports[to].to_be_bytes());
        let seq = self.next[from] - u64::from(flags & SYN > 0);
        let ack = if from == 0 { self.next[1] } else { self.acked };
        header.extend((seq as u32).to_be_bytes());
        header.extend((if flags & ACK > 0 { ack as u32 } else { 0 }).to_be_bytes());
        header.extend([((20 + options.len()) as u8 / 4) << 4, flags]);
        // Scaled by 128: 4 MiB.
        header.extend(32768u16.to_be_bytes());
        header.extend([0, 0, 0, 0]);
        self.out.write_all(&header)?;
        self.out.write_all(options)?;
        self.out.write_all(head)
    }

    fn login(&mut self, name: &str) -> Result<()> {
        let options = [2, 4, 5, 0xb4, 1, 3, 3, 7];
        self.packet(0, SYN, &options, &[], 0)?;
        self.now += RTT_NS;
        self.packet(1, SYN | ACK, &options, &[], 0)?;
        self.packet(0, ACK, &[], &[], 0)?;
        let text = format!("InitiatorName={name}\0SessionType=Normal\0TargetName=iqn.2026-11.x:disk\0");
        self.pdu(0, &login(0x43, text.len()), text.as_bytes())?;
        self.acked = self.next[0];
        self.now += RTT_NS;
        let text = "InitialR2T=No\0ImmediateData=Yes\0FirstBurstLength=4194304\0MaxBurstLength=4194304\0";
        self.pdu(1, &login(0x23, text.len()), text.as_bytes())
    }

    /// A PDU in one packet.
    fn pdu(&mut self, from: usize, header: &[u8], data: &[u8]) -> Result<()> {
        let mut bytes = [header, data].concat();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        self.packet(from, ACK | PUSH, &[], &bytes, bytes.len())?;
        self.next[from] += bytes.len() as u64;
        Ok(())
    }

    fn acknowledge(&mut self, until: u64) -> Result<()> {
        while let Some((at, end)) = self.in_flight.pop_front_if(|(at, _)| *at <= until) {
            self.now = self.now.max(at);
            self.acked = end;
            if self.in_flight.len().is_multiple_of(2) {
                self.packet(1, ACK, &[], &[], 0)?;
            }
        }
        Ok(())
    }

    /// Sends a segment as soon as the buffer has room.
    fn data(&mut self, head: &[u8], bytes: usize) -> Result<()> {
        while self.next[0] - self.acked + bytes as u64 > CAP {
            let Some((at, _)) = self.in_flight.front() else { break };
            let at = *at;
            self.acknowledge(at)?;
        }
        self.packet(0, ACK, &[], head, bytes)?;
        self.next[0] += bytes as u64;
        self.in_flight.push_back((self.now + RTT_NS, self.next[0]));
        self.now += PACKET_NS;
        self.acknowledge(self.now)
    }

    fn task(&mut self, number: u32) -> Result<()> {
        let mut command = [0; HEADER];
        // WRITE(10) with unsolicited data to follow.
        command[..2].copy_from_slice(&[0x01, 0x21]);
        command[16..20].copy_from_slice(&number.to_be_bytes());
        command[20..24].copy_from_slice(&(BLOCK as u32).to_be_bytes());
        command[24..28].copy_from_slice(&number.to_be_bytes());
        command[32] = 0x2a;
        command[39..41].copy_from_slice(&((BLOCK / 512) as u16).to_be_bytes());
        self.data(&command, HEADER)?;
        for offset in (0..BLOCK).step_by(DATA_OUT) {
            let mut header = [0; HEADER];
            header[..2].copy_from_slice(&[0x05, if offset + DATA_OUT == BLOCK { 0x80 } else { 0 }]);
            header[5..8].copy_from_slice(&(DATA_OUT as u32).to_be_bytes()[1..]);
            header[16..20].copy_from_slice(&number.to_be_bytes());
            header[20..24].fill(0xff);
            header[36..40].copy_from_slice(&((offset / DATA_OUT) as u32).to_be_bytes());
            header[40..44].copy_from_slice(&(offset as u32).to_be_bytes());
            let mut left = HEADER + DATA_OUT;
            while left > 0 {
                let bytes = left.min(MSS);
                let head: &[u8] = if left == HEADER + DATA_OUT { &header } else { &[] };
                self.data(head, bytes)?;
                left -= bytes;
            }
        }
        self.acknowledge(u64::MAX)?;
        self.now += 2_000_000;
        let mut response = [0; HEADER];
        response[..2].copy_from_slice(&[0x21, 0x80]);
        response[16..20].copy_from_slice(&number.to_be_bytes());
        response[24..28].copy_from_slice(&(number + 1).to_be_bytes());
        response[28..32].copy_from_slice(&(number + 1).to_be_bytes());
        response[32..36].copy_from_slice(&(number + 64).to_be_bytes());
        self.pdu(1, &response, &[])?;
        self.now += 500_000;
        Ok(())
    }
}

/// A login request or response from the operational to the full feature phase, or its answer.
fn login(code: u8, bytes: usize) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..2].copy_from_slice(&[code, 0x87]);
    header[5..8].copy_from_slice(&(bytes as u32).to_be_bytes()[1..]);
    // MaxCmdSN of a response.
    header[35] = 64;
    header
}
