//! An iSCSI initiator that sends as open-iscsi does: one command at a time, blocking calls, a socket whose send buffer
//! may be fixed before it connects. RFC 7143.

use std::io::{IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use iscsi::wire::{
    Attribute, BHS_LENGTH, Bhs, CmdSn, DataOut, DataSn, Isid, Itt, LoginRequest, LoginResponse, LoginStatus,
    Opcode, R2t, ScsiCommand, ScsiResponse, Stage, StatSn, Ttt, padded,
};
use socket2::{Domain, Protocol, Socket, Type};

const BLOCK_BYTES: u32 = 512;
const WRITE_10: u8 = 0x2a;
const NAME: &str = "iqn.2026-11.example.hikyaku:lab.writer";
/// Bytes of one Data-Out: with it a write of 4 MiB is a WRITE(10) and 15 Data-Out PDUs, as in the paper.
const SEGMENT_BYTES: u32 = 256 << 10;
/// FirstBurstLength and MaxBurstLength of the paper.
const BURST_BYTES: u32 = 4 << 20;
/// RFC 7143 section 13.12: the value that holds until a peer declares another.
const PEER_SEGMENT_BYTES: u32 = 8192;
const TIMEOUT: Duration = Duration::from_secs(60);

pub(super) struct Initiator {
    stream: TcpStream,
    lun: u64,
    cmd_sn: u32,
    exp_stat_sn: u32,
    itt: u32,
    /// Most bytes of a data segment that the target takes.
    segment_bytes: u32,
    first_burst_bytes: u32,
}

impl Initiator {
    /// Connects and logs in. `send_buffer` is what `node.conn[0].tcp.window_size` is to open-iscsi.
    pub(super) fn login(
        address: SocketAddr,
        target: &str,
        lun: u8,
        send_buffer: Option<u32>,
    ) -> Result<Self, String> {
        let mut initiator = Self {
            stream: connect(address, send_buffer).map_err(|error| error.to_string())?,
            lun: u64::from(lun) << 48,
            cmd_sn: 1,
            exp_stat_sn: 0,
            itt: 1,
            segment_bytes: PEER_SEGMENT_BYTES.min(SEGMENT_BYTES),
            first_burst_bytes: BURST_BYTES,
        };
        let keys = format!(
            "InitiatorName={NAME}\0TargetName={target}\0SessionType=Normal\0HeaderDigest=None\0DataDigest=None\0\
             InitialR2T=No\0ImmediateData=Yes\0MaxRecvDataSegmentLength={SEGMENT_BYTES}\0MaxBurstLength={BURST_BYTES}\0\
             FirstBurstLength={BURST_BYTES}\0MaxOutstandingR2T=1\0MaxConnections=1\0ErrorRecoveryLevel=0\0"
        );
        let mut text = keys.as_str();
        // The target may take several answers to all keys.
        for _ in 0..8 {
            let response = initiator.exchange_login(text)?;
            if response.status != LoginStatus::Success {
                return Err(format!("the target refuses the login: {:?}", response.status));
            }
            if response.transit && response.nsg == Stage::FullFeature {
                initiator.clear_attention()?;
                return Ok(initiator);
            }
            text = "";
        }
        Err("the target does not end the login".to_owned())
    }

    fn exchange_login(&mut self, text: &str) -> Result<LoginResponse, String> {
        let request = LoginRequest {
            transit: true,
            continues: false,
            csg: Stage::Operational,
            nsg: Stage::FullFeature,
            version_max: 0,
            version_min: 0,
            isid: Isid::random([1, 2, 3], 4),
            tsih: 0,
            itt: Itt(0),
            cid: 0,
            cmd_sn: CmdSn(self.cmd_sn),
            exp_stat_sn: StatSn(self.exp_stat_sn),
            data_segment_length: text.len() as u32,
        };
        self.send(&request.emit(), text.as_bytes())?;
        let (header, text) = self.receive()?;
        let response = LoginResponse::parse(&header).map_err(|error| error.to_string())?;
        self.exp_stat_sn = response.stat_sn.0.wrapping_add(1);
        for pair in text.split(|byte| *byte == 0) {
            let pair = String::from_utf8_lossy(pair).into_owned();
            let Some((key, value)) = pair.split_once('=') else { continue };
            match (key, value.parse::<u32>()) {
                ("MaxRecvDataSegmentLength", Ok(value)) => self.segment_bytes = value.min(SEGMENT_BYTES),
                ("FirstBurstLength", Ok(value)) => self.first_burst_bytes = value,
                ("InitialR2T", _) if value == "Yes" => self.first_burst_bytes = 0,
                _ => {}
            }
        }
        Ok(response)
    }

    /// TEST UNIT READY until the target has reported its unit attentions (SAM-5 section 5.14).
    fn clear_attention(&mut self) -> Result<(), String> {
        for _ in 0..8 {
            let command = self.command([0; 16], 0, 0, true);
            self.send(&command.emit(), &[])?;
            if self.finish(&[])? == 0 {
                return Ok(());
            }
        }
        Err("the logical unit does not become ready".to_owned())
    }

    fn command(&mut self, cdb: [u8; 16], expected: usize, immediate: usize, is_final: bool) -> ScsiCommand {
        let cmd_sn = CmdSn(self.cmd_sn);
        self.cmd_sn = self.cmd_sn.wrapping_add(1);
        ScsiCommand {
            immediate: false,
            is_final,
            read: false,
            write: expected > 0,
            attribute: Attribute::Simple,
            lun: self.lun,
            itt: Itt(self.itt),
            expected_data_transfer_length: expected as u32,
            cmd_sn,
            exp_stat_sn: StatSn(self.exp_stat_sn),
            cdb,
            total_ahs_length: 0,
            data_segment_length: immediate as u32,
        }
    }

    /// One WRITE(10) of `data` at `offset`, both multiples of 512; returns when the response is there.
    pub(super) fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), String> {
        let unsolicited = data.len().min(self.first_burst_bytes as usize);
        let immediate = unsolicited.min(self.segment_bytes as usize);
        let mut cdb = [0; 16];
        cdb[0] = WRITE_10;
        cdb[2..6].copy_from_slice(&((offset / u64::from(BLOCK_BYTES)) as u32).to_be_bytes());
        cdb[7..9].copy_from_slice(&((data.len() as u32 / BLOCK_BYTES) as u16).to_be_bytes());
        let command = self.command(cdb, data.len(), immediate, unsolicited == immediate);
        self.send(&command.emit(), &data[..immediate])?;
        self.send_data(data, immediate..unsolicited, Ttt::RESERVED)?;
        match self.finish(data)? {
            0 => Ok(()),
            status => Err(format!("the target answers a write with SCSI status {status:#x}")),
        }
    }

    /// Sends the data that the target asks for; returns the SCSI status of the command.
    fn finish(&mut self, data: &[u8]) -> Result<u8, String> {
        loop {
            let (header, _) = self.receive()?;
            match Bhs(&header).opcode() {
                Ok(Opcode::ScsiResponse) => {
                    let response = ScsiResponse::parse(&header).map_err(|error| error.to_string())?;
                    self.exp_stat_sn = response.stat_sn.0.wrapping_add(1);
                    self.itt = self.itt.wrapping_add(1) & 0x7fff_ffff;
                    return Ok(response.status);
                }
                Ok(Opcode::R2t) => {
                    let r2t = R2t::parse(&header).map_err(|error| error.to_string())?;
                    let start = data.len().min(r2t.buffer_offset as usize);
                    let end = data.len().min(start + r2t.desired_data_transfer_length as usize);
                    self.send_data(data, start..end, r2t.ttt)?;
                }
                // Pings of the target need no answer within the time of an experiment.
                Ok(Opcode::NopIn) => {}
                other => return Err(format!("the target sends {other:?} during a command")),
            }
        }
    }

    /// A sequence of Data-Out PDUs.
    fn send_data(&mut self, data: &[u8], range: std::ops::Range<usize>, ttt: Ttt) -> Result<(), String> {
        let (mut at, mut data_sn) = (range.start, 0);
        while at < range.end {
            let end = range.end.min(at + self.segment_bytes as usize);
            let header = DataOut {
                is_final: end == range.end,
                lun: self.lun,
                itt: Itt(self.itt),
                ttt,
                exp_stat_sn: StatSn(self.exp_stat_sn),
                data_sn: DataSn(data_sn),
                buffer_offset: at as u32,
                data_segment_length: (end - at) as u32,
            };
            self.send(&header.emit(), &data[at..end])?;
            (at, data_sn) = (end, data_sn + 1);
        }
        Ok(())
    }

    fn send(&mut self, header: &[u8; BHS_LENGTH], data: &[u8]) -> Result<(), String> {
        let padding = [0; 3];
        let mut parts = [
            IoSlice::new(header),
            IoSlice::new(data),
            IoSlice::new(&padding[..data.len().wrapping_neg() % 4]),
        ];
        let mut left = &mut parts[..];
        while !left.is_empty() {
            match self.stream.write_vectored(left) {
                Ok(0) => return Err("the connection is closed".to_owned()),
                Ok(count) => IoSlice::advance_slices(&mut left, count),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.to_string()),
            }
            // Empty parts at the end would be written forever.
            while left.first().is_some_and(|part| part.is_empty()) {
                left = &mut std::mem::take(&mut left)[1..];
            }
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<([u8; BHS_LENGTH], Vec<u8>), String> {
        let mut header = [0; BHS_LENGTH];
        self.stream.read_exact(&mut header).map_err(|error| error.to_string())?;
        let length = Bhs(&header).data_segment_length();
        let mut data = vec![0; padded(length) as usize];
        self.stream.read_exact(&mut data).map_err(|error| error.to_string())?;
        data.truncate(length as usize);
        Ok((header, data))
    }
}

/// A connection without Nagle's algorithm. A fixed send buffer is doubled by the kernel, as open-iscsi's is.
pub(super) fn connect(address: SocketAddr, send_buffer: Option<u32>) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if let Some(bytes) = send_buffer {
        socket.set_send_buffer_size(bytes as usize)?;
    }
    socket.set_tcp_nodelay(true)?;
    socket.connect(&address.into())?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    socket.set_write_timeout(Some(TIMEOUT))?;
    Ok(socket.into())
}
