//! Capture of the loopback interface by AF_PACKET: the TCP payload of one port, as any process with `CAP_NET_RAW` sees
//! it.

use std::io::{Error, ErrorKind};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context as _, Result};

/// Receive buffer of the socket; when it is full the kernel drops packets and counts them.
const SOCKET_BYTES: i32 = 64 << 20;
const KEPT_BYTES_MAX: usize = 256 << 20;
const PACKET_BYTES_MAX: usize = 128 << 10;
/// Poll timeout in milliseconds, after which the thread checks whether to end.
const POLL_MS: i64 = 20;

/// A running capture; [`Capture::finish`] ends it.
#[derive(Debug)]
pub struct Capture {
    over: Arc<AtomicBool>,
    thread: JoinHandle<Result<Captured>>,
}

#[derive(Debug, Default)]
pub struct Captured {
    /// Payload from the port, then payload to the port; each in the order of the packets.
    pub sent: [Vec<u8>; 2],
    /// Packets dropped by the kernel because the buffer was full.
    pub dropped: u32,
}

fn check(result: libc::c_int) -> Result<libc::c_int, Error> {
    if result < 0 { Err(Error::last_os_error()) } else { Ok(result) }
}

fn set<T>(socket: &OwnedFd, level: i32, name: i32, value: &T) -> Result<(), Error> {
    // SAFETY: the value outlives the call, and its size is given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as u32,
        )
    };
    check(result).map(drop)
}

/// Accepts TCP from or to `port` on its way in. On loopback each packet also goes out, and that copy is ignored. The
/// packet begins with its IPv4 header.
fn filter(port: u16) -> [libc::sock_filter; 11] {
    const PACKET_TYPE: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE).cast_unsigned();
    const OUTGOING: u32 = libc::PACKET_OUTGOING as u32;
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let (byte, word) =
        (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, libc::BPF_LD | libc::BPF_W | libc::BPF_ABS);
    let behind_header = libc::BPF_LD | libc::BPF_H | libc::BPF_IND;
    [
        step(word, 0, 0, PACKET_TYPE),
        step(equal, 8, 0, OUTGOING),
        step(byte, 0, 0, 9),
        step(equal, 0, 6, libc::IPPROTO_TCP.cast_unsigned()),
        step(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, 0, 0, 0),
        step(behind_header, 0, 0, 0),
        step(equal, 2, 0, port.into()),
        step(behind_header, 0, 0, 2),
        step(equal, 0, 1, port.into()),
        step(libc::BPF_RET, 0, 0, u32::MAX),
        step(libc::BPF_RET, 0, 0, 0),
    ]
}

fn open(port: u16) -> Result<OwnedFd> {
    let protocol = (libc::ETH_P_IP as u16).to_be();
    // SAFETY: plain values; a returned descriptor has no other owner.
    let socket = unsafe {
        let fd = libc::socket(libc::AF_PACKET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        OwnedFd::from_raw_fd(check(fd).context("open a packet socket")?)
    };
    // SAFETY: the name ends with a zero byte.
    let index = unsafe { libc::if_nametoindex(c"lo".as_ptr()) };
    // SAFETY: plain data, for which all zeroes is a valid value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol;
    address.sll_ifindex = index.cast_signed();
    set(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &SOCKET_BYTES).context("enlarge its buffer")?;
    let mut steps = filter(port);
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // The filter is attached before the socket is bound, so that no other packet enters the buffer.
    set(&socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program).context("filter by port")?;
    let patience = libc::timeval { tv_sec: 0, tv_usec: POLL_MS * 1000 };
    set(&socket, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &patience)?;
    // SAFETY: the address outlives the call, and its size is given.
    let result = unsafe {
        let length = size_of::<libc::sockaddr_ll>() as u32;
        libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length)
    };
    check(result).context("bind it to lo")?;
    Ok(socket)
}

/// The payload of an IPv4 TCP packet and its direction: 0 from `port`, 1 to it.
fn payload(packet: &[u8], port: u16) -> Option<(usize, &[u8])> {
    let header = usize::from(packet.first()? & 15) * 4;
    let total = usize::from(u16::from_be_bytes(packet.get(2..4)?.try_into().ok()?));
    if packet[0] >> 4 != 4 || *packet.get(9)? != 6 {
        return None;
    }
    // The total length may be 0 in a segment that the kernel has not split yet.
    let packet = if total == 0 { packet } else { packet.get(..total)? };
    let tcp = packet.get(header..)?;
    let number = |at: usize| Some(u16::from_be_bytes(tcp.get(at..at + 2)?.try_into().ok()?));
    let way = [number(0)?, number(2)?].iter().position(|&found| found == port)?;
    Some((way, tcp.get(usize::from(tcp.get(12)? >> 4) * 4..)?))
}

impl Capture {
    /// Starts the capture; needs `CAP_NET_RAW`.
    pub fn start(port: u16) -> Result<Self> {
        let socket = open(port)?;
        let over = Arc::<AtomicBool>::default();
        let ends = Arc::clone(&over);
        let thread = std::thread::spawn(move || receive(&socket, port, &ends));
        Ok(Self { over, thread })
    }

    /// Ends the capture when no packet arrives any more.
    pub fn finish(self) -> Result<Captured> {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow::anyhow!("the capture panicked"))?
    }
}

fn receive(socket: &OwnedFd, port: u16, over: &AtomicBool) -> Result<Captured> {
    let mut captured = Captured::default();
    let mut buffer = vec![0u8; PACKET_BYTES_MAX];
    loop {
        // SAFETY: the buffer outlives the call, and its size is given.
        let count = unsafe { libc::recv(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        let Ok(count) = usize::try_from(count) else {
            let error = Error::last_os_error();
            match error.kind() {
                ErrorKind::WouldBlock if over.load(Ordering::Relaxed) => break,
                ErrorKind::WouldBlock | ErrorKind::Interrupted => continue,
                _ => return Err(error).context("capture packets"),
            }
        };
        if let Some((way, bytes)) = payload(&buffer[..count], port) {
            let kept = &mut captured.sent[way];
            let room = KEPT_BYTES_MAX.saturating_sub(kept.len());
            kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
        }
    }
    let mut statistics = [0u32; 2];
    let mut length = size_of_val(&statistics) as u32;
    // SAFETY: two numbers, packets and drops, and the size of both.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
            statistics.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    check(result).context("count dropped packets")?;
    captured.dropped = statistics[1];
    Ok(captured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_is_found_behind_both_headers() {
        let mut packet = vec![0u8; 20 + 32];
        packet[0] = 0x45;
        packet[9] = 6;
        packet[20..24].copy_from_slice(&[0x0c, 0xbc, 0x12, 0x34]);
        packet[32] = 8 << 4;
        packet.extend(b"data");
        let length = packet.len() as u16;
        packet[2..4].copy_from_slice(&length.to_be_bytes());
        packet.extend(b"trailer");
        assert_eq!(payload(&packet, 0x0cbc), Some((0, &b"data"[..])));
        assert_eq!(payload(&packet, 0x1234), Some((1, &b"data"[..])));
        assert_eq!(payload(&packet, 1), None);
        for length in 0..packet.len() {
            payload(&packet[..length], 0x0cbc);
        }
    }
}
