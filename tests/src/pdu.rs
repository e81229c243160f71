//! A minimal raw iSCSI initiator. It shares no code with the product (except the cryptography of a sealed session), so
//! that one defect cannot be in both, and it can send what no initiator should. Read RFC 7143 §11 first.
//!
//! No digests, no CHAP, one connection, one task at a time.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use socket2::{Domain, Socket, Type};

use super::Url;
use super::seal::{Sealed, Who};

/// MaxRecvDataSegmentLength of this initiator, bytes.
pub const RECEIVE_BYTES_MAX: usize = 256 << 10;
/// Maximum number of login rounds, and of retries of a command that meets a unit attention or BUSY.
const ROUNDS_MAX: usize = 8;
const BUSY_PAUSE: Duration = Duration::from_millis(50);
/// Maximum number of PDUs received for one command.
const PDUS_PER_COMMAND_MAX: usize = 100_000;
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
const ANSWER_LIMIT: Duration = Duration::from_secs(20);

pub const NOP_OUT: u8 = 0x00;
pub const SCSI_COMMAND: u8 = 0x01;
pub const TASK_MANAGEMENT: u8 = 0x02;
pub const LOGIN: u8 = 0x03;
pub const TEXT: u8 = 0x04;
pub const DATA_OUT: u8 = 0x05;
pub const LOGOUT: u8 = 0x06;
pub const SNACK: u8 = 0x10;
/// I bit of byte 0.
pub const IMMEDIATE: u8 = 0x40;

pub const NOP_IN: u8 = 0x20;
pub const SCSI_RESPONSE: u8 = 0x21;
pub const LOGIN_RESPONSE: u8 = 0x23;
pub const DATA_IN: u8 = 0x25;
const TASK_MANAGEMENT_RESPONSE: u8 = 0x22;
const LOGOUT_RESPONSE: u8 = 0x26;
pub const R2T: u8 = 0x31;
pub const ASYNC: u8 = 0x32;

#[derive(Clone, Debug)]
pub struct Pdu {
    pub bhs: [u8; 48],
    pub data: Vec<u8>,
}

impl Pdu {
    pub fn new(opcode: u8, flags: u8) -> Self {
        let mut bhs = [0; 48];
        bhs[0] = opcode;
        bhs[1] = flags;
        Self { bhs, data: Vec::new() }
    }

    pub fn set(&mut self, offset: usize, value: u32) -> &mut Self {
        self.bhs[offset..offset + 4].copy_from_slice(&value.to_be_bytes());
        self
    }

    pub fn get(&self, offset: usize) -> u32 {
        u32::from_be_bytes(self.bhs[offset..offset + 4].try_into().expect("four bytes"))
    }

    /// Opcode without the I bit.
    pub fn opcode(&self) -> u8 {
        self.bhs[0] & 0x3f
    }

    pub fn with_data(mut self, data: Vec<u8>) -> Self {
        let length = u32::try_from(data.len()).expect("short data").to_be_bytes();
        self.bhs[5..8].copy_from_slice(&length[1..]);
        self.data = data;
        self
    }

    /// Class and detail of a Login Response.
    pub fn status(&self) -> [u8; 2] {
        [self.bhs[36], self.bhs[37]]
    }

    /// Receives a PDU without digests. An additional header segment is dropped.
    pub fn receive(stream: &mut impl Read) -> Result<Self> {
        let mut bhs = [0; 48];
        stream.read_exact(&mut bhs).context("receive a header")?;
        let (additional, length) = (usize::from(bhs[4]) * 4, data_length(&bhs));
        ensure!(length <= RECEIVE_BYTES_MAX, "data segment of {length} bytes exceeds what was declared");
        let mut data = vec![0; additional + length.next_multiple_of(4)];
        stream.read_exact(&mut data).context("receive a data segment")?;
        Ok(Self { bhs, data: data[additional..additional + length].to_vec() })
    }

    /// The bytes on the wire: header as it stands, data, padding.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.bhs.to_vec();
        bytes.extend_from_slice(&self.data);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }
}

/// DataSegmentLength of a header.
pub fn data_length(bhs: &[u8]) -> usize {
    u32::from_be_bytes([0, bhs[5], bhs[6], bhs[7]]) as usize
}

pub fn keys(pairs: &[(&str, &str)]) -> Vec<u8> {
    pairs.iter().flat_map(|(key, value)| format!("{key}={value}\0").into_bytes()).collect()
}

/// Connects with a time limit for each operation.
pub fn connect(url: &Url, limit: Duration) -> Result<TcpStream> {
    let address = url.portal.to_socket_addrs()?.next().context("no address")?;
    let stream = TcpStream::connect_timeout(&address, CONNECT_LIMIT)
        .with_context(|| format!("connect to {address}"))?;
    bounded(stream, limit)
}

/// As [`connect`], from a given address of this machine.
pub fn connect_from(source: Ipv4Addr, url: &Url, limit: Duration) -> Result<TcpStream> {
    let address = url.portal.to_socket_addrs()?.next().context("no address")?;
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    // The port is chosen by connect, not by bind: otherwise a few thousand connections use up all ports.
    let (on, length) = (1i32, size_of::<i32>() as libc::socklen_t);
    let option = libc::IP_BIND_ADDRESS_NO_PORT;
    // SAFETY: the value outlives the call, and `length` is its size.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_IP, option, (&raw const on).cast(), length)
    };
    ensure!(result == 0, "IP_BIND_ADDRESS_NO_PORT: {}", std::io::Error::last_os_error());
    socket.bind(&SocketAddr::from((source, 0)).into())?;
    socket
        .connect_timeout(&address.into(), CONNECT_LIMIT)
        .with_context(|| format!("connect from {source} to {address}"))?;
    bounded(socket.into(), limit)
}

fn bounded(stream: TcpStream, limit: Duration) -> Result<TcpStream> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    Ok(stream)
}

/// The two requests of a login without authentication.
pub fn login_request(url: &Url, initiator: &str, isid: [u8; 6], operational: bool) -> Pdu {
    let flags = if operational { 0x80 | 1 << 2 | 3 } else { 0x80 | 1 };
    let data = if operational {
        keys(&[
            ("HeaderDigest", "None"),
            ("DataDigest", "None"),
            ("InitialR2T", "Yes"),
            ("ImmediateData", "Yes"),
            ("MaxRecvDataSegmentLength", &RECEIVE_BYTES_MAX.to_string()),
            ("MaxBurstLength", "262144"),
            ("FirstBurstLength", "65536"),
            ("MaxConnections", "1"),
            ("ErrorRecoveryLevel", "0"),
        ])
    } else {
        keys(&[
            ("InitiatorName", initiator),
            ("TargetName", &url.iqn),
            ("SessionType", "Normal"),
            ("AuthMethod", "None"),
        ])
    };
    login_pdu(flags, isid, data)
}

/// A Login Request with this text, for ITT and CmdSN 1.
pub fn login_pdu(flags: u8, isid: [u8; 6], text: Vec<u8>) -> Pdu {
    let mut pdu = Pdu::new(LOGIN | IMMEDIATE, flags).with_data(text);
    pdu.bhs[8..14].copy_from_slice(&isid);
    pdu.set(16, 1).set(24, 1);
    pdu
}

#[derive(Debug)]
pub struct Answer {
    pub status: u8,
    pub sense: Vec<u8>,
    pub data: Vec<u8>,
    /// Residual count: positive for an overflow, negative for an underflow.
    pub residual: i64,
}

impl Answer {
    /// Key, additional sense code and qualifier of sense data in fixed format; zeros without sense data.
    pub fn sense_codes(&self) -> [u8; 3] {
        // The data segment of a response is SenseLength and sense.
        let byte = |at: usize| self.sense.get(2 + at).copied().unwrap_or_default();
        [byte(2) & 0x0f, byte(12), byte(13)]
    }
}

#[derive(Debug)]
pub struct Session {
    pub stream: TcpStream,
    pub seal: Option<Sealed>,
    pub cmd_sn: u32,
    pub exp_stat_sn: u32,
    itt: u32,
    block_bytes: usize,
}

impl Session {
    /// Logs in to the URL's target; `isid` must differ between sessions of one name.
    pub fn login(url: &Url, initiator: &str, isid: [u8; 6]) -> Result<Self> {
        Self::login_over(connect(url, ANSWER_LIMIT)?, None, url, initiator, isid)
    }

    pub fn login_sealed(url: &Url, initiator: &str, isid: [u8; 6], who: &Who) -> Result<Self> {
        let mut stream = connect(url, ANSWER_LIMIT)?;
        let sealed = Sealed::begin(&mut stream, url, initiator, isid, who)?;
        Self::login_over(stream, Some(sealed), url, initiator, isid)
    }

    /// A connection without a login, which the caller makes PDU by PDU.
    pub fn bare(stream: TcpStream) -> Self {
        Self { stream, seal: None, cmd_sn: 1, exp_stat_sn: 0, itt: 2, block_bytes: 512 }
    }

    /// Logs in over an existing connection, sealed or not.
    pub fn login_over(
        stream: TcpStream,
        seal: Option<Sealed>,
        url: &Url,
        initiator: &str,
        isid: [u8; 6],
    ) -> Result<Self> {
        let mut session = Self { seal, ..Self::bare(stream) };
        let mut operational = false;
        for _ in 0..ROUNDS_MAX {
            let mut request = login_request(url, initiator, isid, operational);
            request.set(28, session.exp_stat_sn);
            session.send(&request)?;
            let answer = session.receive()?;
            ensure!(answer.opcode() == LOGIN_RESPONSE, "opcode {:#x} answers a login", answer.opcode());
            let [class, detail] = answer.status();
            ensure!((class, detail) == (0, 0), "login refused with status {class:02x}{detail:02x}");
            session.exp_stat_sn = answer.get(24).wrapping_add(1);
            let (transit, next) = (answer.bhs[1] & 0x80 != 0, answer.bhs[1] & 3);
            if transit && next == 3 {
                return Ok(session);
            }
            operational |= transit && next == 1;
        }
        bail!("login does not end within {ROUNDS_MAX} rounds")
    }

    pub fn send(&mut self, pdu: &Pdu) -> Result<()> {
        let bytes = match &mut self.seal {
            Some(seal) => seal.seal(pdu),
            None => pdu.encode(),
        };
        self.stream.write_all(&bytes).context("send a PDU")
    }

    pub fn receive(&mut self) -> Result<Pdu> {
        if let Some(seal) = &mut self.seal {
            return seal.receive(&mut self.stream);
        }
        Pdu::receive(&mut self.stream)
    }

    pub fn next_itt(&mut self) -> u32 {
        self.itt = self.itt.wrapping_add(1) & 0x7fff_ffff;
        self.itt
    }

    /// The command PDU for a CDB, with the next CmdSN, not yet sent.
    pub fn command(&mut self, lun: u64, cdb: &[u8], bytes_in: usize, out: &[u8]) -> Pdu {
        let mut flags = 0x80 | 1;
        if bytes_in > 0 {
            flags |= 0x40;
        }
        if !out.is_empty() {
            flags |= 0x20;
        }
        let mut pdu = Pdu::new(SCSI_COMMAND, flags);
        pdu.bhs[9] = lun as u8;
        pdu.bhs[32..32 + cdb.len()].copy_from_slice(cdb);
        let itt = self.next_itt();
        pdu.set(16, itt)
            .set(20, bytes_in.max(out.len()) as u32)
            .set(24, self.cmd_sn)
            .set(28, self.exp_stat_sn);
        self.cmd_sn = self.cmd_sn.wrapping_add(1);
        pdu
    }

    pub fn scsi(&mut self, lun: u64, cdb: &[u8], bytes_in: usize, out: &[u8]) -> Result<Answer> {
        let command = self.command(lun, cdb, bytes_in, out);
        let itt = command.get(16);
        self.send(&command)?;
        let mut data = vec![0u8; bytes_in];
        for _ in 0..PDUS_PER_COMMAND_MAX {
            let pdu = self.receive()?;
            let own = pdu.get(16) == itt;
            match pdu.opcode() {
                DATA_IN if own => {
                    let offset = pdu.get(40) as usize;
                    let place = data.get_mut(offset..offset + pdu.data.len()).context("data past the end")?;
                    place.copy_from_slice(&pdu.data);
                    if pdu.bhs[1] & 1 != 0 {
                        self.exp_stat_sn = pdu.get(24).wrapping_add(1);
                        let (status, residual) = (pdu.bhs[3], residual(&pdu));
                        return Ok(Answer { status, sense: Vec::new(), data, residual });
                    }
                }
                R2T if own => {
                    self.exp_stat_sn = pdu.get(24);
                    self.send_burst(&pdu, out)?;
                }
                SCSI_RESPONSE if own => {
                    self.exp_stat_sn = pdu.get(24).wrapping_add(1);
                    ensure!(pdu.bhs[2] == 0, "response code {:#x}", pdu.bhs[2]);
                    let (status, residual) = (pdu.bhs[3], residual(&pdu));
                    return Ok(Answer { status, sense: pdu.data, data, residual });
                }
                NOP_IN | ASYNC => self.on_unasked(&pdu)?,
                other => bail!("opcode {other:#x} (ours: {own}) answers command {:#x}", cdb[0]),
            }
        }
        bail!("command {:#x} does not end", cdb[0])
    }

    /// Sends the burst that an R2T requests; `out` is the whole command's data.
    pub fn send_burst(&mut self, r2t: &Pdu, out: &[u8]) -> Result<()> {
        self.send_begin_of_burst(r2t, out, r2t.get(44) as usize)
    }

    /// The same, but only its first `bytes`.
    pub fn send_begin_of_burst(&mut self, r2t: &Pdu, out: &[u8], bytes: usize) -> Result<()> {
        let (offset, length) = (r2t.get(40) as usize, r2t.get(44) as usize);
        let burst = out.get(offset..offset + bytes).context("R2T past the end of the data")?;
        // 8 KiB: the default MaxRecvDataSegmentLength of a target that declared none (RFC 7143 §13.12).
        for (number, part) in burst.chunks(8192).enumerate() {
            let start = number * 8192;
            let last = start + part.len() == length;
            let mut pdu = Pdu::new(DATA_OUT, if last { 0x80 } else { 0 }).with_data(part.to_vec());
            pdu.bhs[8..16].copy_from_slice(&r2t.bhs[8..16]);
            pdu.set(16, r2t.get(16))
                .set(20, r2t.get(20))
                .set(28, self.exp_stat_sn)
                .set(36, number as u32)
                .set(40, (offset + start) as u32);
            self.send(&pdu)?;
        }
        Ok(())
    }

    /// Handles a PDU that is no response: answers a ping.
    pub fn on_unasked(&mut self, pdu: &Pdu) -> Result<()> {
        if pdu.opcode() == NOP_IN && pdu.get(20) != u32::MAX {
            let mut answer = Pdu::new(NOP_OUT | IMMEDIATE, 0x80);
            answer.bhs[8..16].copy_from_slice(&pdu.bhs[8..16]);
            answer.set(16, u32::MAX).set(20, pdu.get(20)).set(24, self.cmd_sn).set(28, self.exp_stat_sn);
            self.send(&answer)?;
        }
        Ok(())
    }

    /// Runs a command until it ends in GOOD; unit attentions and BUSY are retried, any other end is an error.
    pub fn good(&mut self, lun: u64, cdb: &[u8], bytes_in: usize, out: &[u8]) -> Result<Vec<u8>> {
        for _ in 0..ROUNDS_MAX {
            let answer = self.scsi(lun, cdb, bytes_in, out)?;
            match answer.status {
                0 => return Ok(answer.data),
                2 if answer.sense_codes()[0] == 6 => {}
                // SAM-5 §5.3.1: the unit accepts commands again later, here after the tasks that CLEAR TASK SET ends.
                8 => std::thread::sleep(BUSY_PAUSE),
                status => {
                    bail!("command {:#x} ends in status {status:#x}, sense {:02x?}", cdb[0], answer.sense)
                }
            }
        }
        bail!("command {:#x} meets nothing but unit attentions and BUSY", cdb[0])
    }

    /// Sends a task management function as an immediate command; returns the response code.
    pub fn manage(&mut self, function: u8, lun: u64) -> Result<u8> {
        let mut pdu = Pdu::new(TASK_MANAGEMENT | IMMEDIATE, 0x80 | function);
        pdu.bhs[9] = lun as u8;
        let itt = self.next_itt();
        pdu.set(16, itt).set(20, u32::MAX).set(24, self.cmd_sn).set(28, self.exp_stat_sn);
        self.send(&pdu)?;
        Ok(self.answer_to(itt, TASK_MANAGEMENT_RESPONSE)?.bhs[2])
    }

    /// Receives the response to a request that is no SCSI command.
    fn answer_to(&mut self, itt: u32, opcode: u8) -> Result<Pdu> {
        for _ in 0..ROUNDS_MAX {
            let answer = self.receive()?;
            match answer.opcode() {
                found if found == opcode && answer.get(16) == itt => {
                    self.exp_stat_sn = answer.get(24).wrapping_add(1);
                    return Ok(answer);
                }
                NOP_IN | ASYNC => self.on_unasked(&answer)?,
                other => bail!("opcode {other:#x} instead of {opcode:#x}"),
            }
        }
        bail!("no answer of opcode {opcode:#x}")
    }

    pub fn read(&mut self, lun: u64, lba: u32, blocks: u16) -> Result<Vec<u8>> {
        self.good(lun, &cdb10(0x28, lba, blocks), usize::from(blocks) * self.block_bytes, &[])
    }

    pub fn write(&mut self, lun: u64, lba: u32, data: &[u8]) -> Result<()> {
        let blocks = u16::try_from(data.len() / self.block_bytes)?;
        self.good(lun, &cdb10(0x2a, lba, blocks), 0, data).map(|_| ())
    }

    /// READ CAPACITY(10): the number of blocks.
    pub fn blocks(&mut self, lun: u64) -> Result<u32> {
        let data = self.good(lun, &cdb10(0x25, 0, 0), 8, &[])?;
        self.block_bytes = u32::from_be_bytes(data[4..8].try_into()?) as usize;
        Ok(u32::from_be_bytes(data[..4].try_into()?).wrapping_add(1))
    }

    pub fn logout(mut self) -> Result<()> {
        let mut pdu = Pdu::new(LOGOUT | IMMEDIATE, 0x80);
        let itt = self.next_itt();
        pdu.set(16, itt).set(24, self.cmd_sn).set(28, self.exp_stat_sn);
        self.send(&pdu)?;
        let answer = self.answer_to(itt, LOGOUT_RESPONSE)?;
        demand!(answer.bhs[2] == 0, "logout refused with {}", answer.bhs[2])
    }
}

/// The residual of a response or of the last Data-In (RFC 7143 §11.4.5).
fn residual(pdu: &Pdu) -> i64 {
    let count = i64::from(pdu.get(44));
    match pdu.bhs[1] & 0x06 {
        0x04 => count,
        0x02 => -count,
        _ => 0,
    }
}

pub fn cdb10(opcode: u8, lba: u32, blocks: u16) -> [u8; 10] {
    let (l, n) = (lba.to_be_bytes(), blocks.to_be_bytes());
    [opcode, 0, l[0], l[1], l[2], l[3], 0, n[0], n[1], 0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_segment_is_padded_and_counted() {
        let pdu = Pdu::new(TEXT, 0x80).with_data(vec![7; 5]);
        let bytes = pdu.encode();
        assert_eq!((bytes.len(), &bytes[5..8], &bytes[53..]), (56, &[0, 0, 5][..], &[0, 0, 0][..]));
    }

    #[test]
    fn a_busy_unit_is_asked_again() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut session = Session::bare(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        let unit = std::thread::spawn(move || {
            let mut unit = Session::bare(listener.accept().unwrap().0);
            for status in [8, 0, 0x18] {
                let command = unit.receive().unwrap();
                let mut answer = Pdu::new(SCSI_RESPONSE, 0x80);
                answer.bhs[3] = status;
                answer.set(16, command.get(16));
                unit.send(&answer).unwrap();
            }
        });
        session.good(0, &[0; 6], 0, &[]).unwrap();
        assert!(session.good(0, &[0; 6], 0, &[]).is_err(), "a reservation conflict");
        unit.join().unwrap();
    }

    #[test]
    fn cdb10_is_big_endian() {
        assert_eq!(cdb10(0x28, 0x0102_0304, 0x0506), [0x28, 0, 1, 2, 3, 4, 0, 5, 6, 0]);
    }
}
