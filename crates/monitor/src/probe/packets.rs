//! Packets of watched connections, where this process may open a packet socket (CAP_NET_RAW).
//!
//! Whole packets are kept: PDU headers lie anywhere in frames of 64 KiB.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use socket2::{SockFilter, SockRef};

use super::sys;
use crate::capture::live;
use crate::packet::Packet;

/// Bytes of packets that the kernel holds for this socket: a tenth of a second at 2.5 Gbit/s.
const RECEIVE_BUFFER_BYTES: usize = 32 << 20;
/// Most ports of one filter: its jumps reach 255 instructions.
pub const PORTS_MAX: usize = 32;

/// A socket that sees the packets of some ports.
#[derive(Debug)]
pub struct PacketProber {
    socket: OwnedFd,
    packets: sys::Packets,
    ports: Vec<u16>,
    frames: u64,
    dropped: u64,
}

impl PacketProber {
    /// A socket of the calling thread's network namespace that sees nothing yet. Fails without CAP_NET_RAW.
    pub fn new() -> io::Result<Self> {
        // Protocol 0: nothing arrives until the filter is there.
        let socket = socket_with(AddressFamily::PACKET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        SockRef::from(&socket).attach_filter(&filter(&[]))?;
        if rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER_BYTES).is_err() {
            rustix::net::sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER_BYTES)?;
        }
        sys::bind_packets(socket.as_fd())?;
        Ok(Self { socket, packets: sys::Packets::new(), ports: Vec::new(), frames: 0, dropped: 0 })
    }

    /// Sees TCP packets with one of these ports at either end; at most [`PORTS_MAX`] of them.
    pub fn set_ports(&mut self, ports: impl IntoIterator<Item = u16>) -> io::Result<()> {
        let mut ports: Vec<u16> = ports.into_iter().collect();
        ports.sort_unstable();
        ports.dedup();
        ports.truncate(PORTS_MAX);
        if ports != self.ports {
            SockRef::from(&self.socket).attach_filter(&filter(&ports))?;
            self.ports = ports;
        }
        Ok(())
    }

    /// Passes on the TCP segments that have arrived, at most `count_max` packets.
    pub fn read(&mut self, count_max: usize, mut on: impl FnMut(&Packet<'_>)) -> io::Result<()> {
        let mut left = count_max;
        while left > 0 {
            let received = match self.packets.receive(self.socket.as_fd()) {
                Ok(0) => break,
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // An interface went down; others go on.
                Err(error) if error.raw_os_error() == Some(libc::ENETDOWN) => continue,
                Err(error) => return Err(error),
            };
            left = left.saturating_sub(received);
            for index in 0..received {
                let (bytes, arrived) = self.packets.packet(index);
                self.frames += 1;
                // Loopback shows each packet when it is sent and when it arrives.
                if arrived.is_echo {
                    continue;
                }
                if let Some(packet) =
                    live(bytes, arrived.length, arrived.at_ns, self.frames, arrived.interface)
                {
                    on(&packet);
                }
            }
        }
        Ok(())
    }

    /// Packets that came faster than they were read, since the start.
    pub fn dropped(&mut self) -> u64 {
        let fresh = sys::packets_dropped(self.socket.as_fd()).unwrap_or(0);
        self.dropped = self.dropped.saturating_add(fresh.into());
        self.dropped
    }
}

/// Where an instruction of a filter continues.
#[derive(Clone, Copy)]
enum Goal {
    Next,
    /// The part for IPv6.
    Six,
    Accept,
    Refuse,
}

/// A classic BPF program over a packet that begins with its IP header: all of a TCP packet with one of the ports, nothing
/// of others. IPv6 extension headers are not passed over.
fn filter(ports: &[u16]) -> Vec<SockFilter> {
    use Goal::{Accept, Next, Refuse, Six};
    /// `BPF_LD` of a byte or half a word at an offset, and of half a word behind the index; `BPF_LDX` of a header's length.
    const BYTE: u16 = 0x30;
    const HALF: u16 = 0x28;
    const HALF_BEHIND: u16 = 0x48;
    const HEADER_LENGTH: u16 = 0xb1;
    const AND: u16 = 0x54;
    const EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let tcp = libc::IPPROTO_TCP as u32;
    let compare = |load: u16, at: u32, last: Goal| {
        let ports = ports.iter().map(|port| (EQUAL, Accept, Next, u32::from(*port)));
        let loaded = std::iter::once((load, Next, Next, at)).chain(ports).collect::<Vec<_>>();
        // Without a match the last comparison decides; without ports nothing matches.
        loaded.into_iter().chain([(EQUAL, last, last, 0)]).collect::<Vec<_>>()
    };
    let version = [(BYTE, Next, Next, 0), (AND, Next, Next, 0xf0), (EQUAL, Next, Six, 0x40)];
    let four = [(BYTE, Next, Next, 9), (EQUAL, Next, Refuse, tcp), (HEADER_LENGTH, Next, Next, 0)];
    let four_ports = [compare(HALF_BEHIND, 0, Next), compare(HALF_BEHIND, 2, Refuse)].concat();
    let six_at = version.len() + four.len() + four_ports.len();
    let six = [
        (BYTE, Next, Next, 0),
        (AND, Next, Next, 0xf0),
        (EQUAL, Next, Refuse, 0x60),
        (BYTE, Next, Next, 6),
        (EQUAL, Next, Refuse, tcp),
    ];
    let six_ports = [compare(HALF, 40, Next), compare(HALF, 42, Refuse)].concat();
    let steps: Vec<_> =
        [&version[..], &four[..], &four_ports[..], &six[..], &six_ports[..]].concat().into_iter().collect();
    let end = steps.len();
    let mut program: Vec<SockFilter> = Vec::with_capacity(end + 2);
    for (at, (code, yes, no, value)) in steps.into_iter().enumerate() {
        let distance = |goal: Goal| {
            let to = match goal {
                Next => at + 1,
                Six => six_at,
                Accept => end,
                Refuse => end + 1,
            };
            // At most PORTS_MAX ports keep every distance within a byte: a test builds the longest program.
            (to - at - 1) as u8
        };
        program.push(SockFilter::new(code, distance(yes), distance(no), value));
    }
    program.push(SockFilter::new(RETURN, 0, 0, u32::MAX));
    program.push(SockFilter::new(RETURN, 0, 0, 0));
    program
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    use super::*;

    /// Longest program: no distance of a jump is cut.
    #[test]
    fn the_longest_filter_is_accepted() {
        let ports: Vec<u16> = (0..PORTS_MAX as u16).collect();
        assert!(filter(&ports).len() < 256);
        assert!(filter(&[]).len() > 2);
    }

    /// Bytes of payload that arrive at a port, by packets; `None` without CAP_NET_RAW.
    fn seen(address: &str) -> Option<(u64, u64)> {
        let mut prober = match PacketProber::new() {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return None,
            result => result.unwrap(),
        };
        let (listener, other) = (TcpListener::bind(address).unwrap(), TcpListener::bind(address).unwrap());
        let port = listener.local_addr().unwrap().port();
        prober.set_ports([1, port, 2]).unwrap();
        let mut bytes = 0;
        for listener in [&listener, &other] {
            let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut far, _) = listener.accept().unwrap();
            near.write_all(&[7; 300_000]).unwrap();
            drop(near);
            far.read_to_end(&mut Vec::new()).unwrap();
        }
        let mut others = 0;
        let started = Instant::now();
        while bytes < 300_000 && started.elapsed() < Duration::from_secs(5) {
            prober
                .read(1000, |packet| {
                    let is_ours = packet.source.port() == port || packet.destination.port() == port;
                    others += u64::from(!is_ours);
                    bytes += packet.payload.len() as u64;
                    assert_eq!(packet.payload_bytes as usize, packet.payload.len());
                    assert!(packet.at_ns > 1_000_000_000_000_000_000, "{}", packet.at_ns);
                })
                .unwrap();
        }
        assert_eq!(prober.dropped(), 0);
        Some((bytes, others))
    }

    #[test]
    fn packets_of_the_ports_are_seen_once_and_no_others() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            // A probe of TCP on a busy machine sends bytes again: one clean exchange of three decides.
            let found: Vec<_> = (0..3).map(|_| seen(address)).collect();
            assert!(found.iter().any(|one| matches!(one, None | Some((300_000, 0)))), "{address}: {found:?}");
            assert!(found.iter().flatten().all(|(_, others)| *others == 0), "{address}: {found:?}");
        }
    }
}
