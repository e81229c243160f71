//! The interface of a connection and the drops of its queue (rtnetlink).

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use rustix::net::{RecvFlags, SendFlags};

use super::netlink::{self, DUMP, REQUEST, u32_at};
use super::sys;
use crate::limits::DUMP_BYTES_MAX;

/// Messages and attributes of include/uapi/linux/rtnetlink.h.
const NEWROUTE: u16 = 24;
const GETROUTE: u16 = 26;
const NEWQDISC: u16 = 36;
const GETQDISC: u16 = 38;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const TCA_KIND: u16 = 1;
const TCA_STATS2: u16 = 7;
const TCA_STATS_QUEUE: u16 = 3;
/// Parent of the queue that an interface's packets enter (`TC_H_ROOT`).
const ROOT: u32 = u32::MAX;
const ROUTE_BYTES: usize = 12;
const QUEUE_BYTES: usize = 20;
const PART_BYTES: usize = 32 << 10;

/// The queue that packets to an address pass through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    pub interface: u32,
    /// Name of the queueing discipline: `fq`, `tbf`, `noqueue`.
    pub queue: String,
    /// Packets dropped since the queue was made.
    pub drops: u64,
    pub backlog_bytes: u64,
}

/// Asks one network namespace for routes and queues. Needs no rights.
#[derive(Debug)]
pub struct RouteProber {
    socket: OwnedFd,
    sequence: u32,
}

impl RouteProber {
    /// A prober of the calling thread's network namespace.
    pub fn new() -> io::Result<Self> {
        Ok(Self { socket: sys::netlink(None)?, sequence: 0 })
    }

    /// The interface that packets to `remote` leave by; `None` without a route.
    pub fn interface(&mut self, remote: IpAddr) -> io::Result<Option<u32>> {
        let mut payload = vec![0; ROUTE_BYTES];
        let (family, address) = match remote {
            IpAddr::V4(v4) => (libc::AF_INET, v4.octets().to_vec()),
            IpAddr::V6(v6) => (libc::AF_INET6, v6.octets().to_vec()),
        };
        payload[0] = family as u8;
        payload[1] = (address.len() * 8) as u8;
        payload.extend(((address.len() + 4) as u16).to_ne_bytes());
        payload.extend(RTA_DST.to_ne_bytes());
        payload.extend(address);
        let mut found = None;
        self.ask(GETROUTE, REQUEST, &payload, |kind, payload| {
            if kind == NEWROUTE {
                found = interface(payload);
            }
        })?;
        Ok(found)
    }

    /// The outermost queue of an interface.
    pub fn queue(&mut self, interface: u32) -> io::Result<Option<Route>> {
        let mut found = None;
        self.ask(GETQDISC, REQUEST | DUMP, &[0; QUEUE_BYTES], |kind, payload| {
            let queue = (kind == NEWQDISC).then(|| parse(payload)).flatten();
            found = found.take().or(queue.filter(|queue| queue.interface == interface));
        })?;
        Ok(found)
    }

    /// Sends a request and passes on each answer. An error of the kernel ends without answers.
    fn ask(
        &mut self,
        kind: u16,
        flags: u16,
        payload: &[u8],
        mut on: impl FnMut(u16, &[u8]),
    ) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut request = Vec::new();
        netlink::push(&mut request, kind, flags, self.sequence, payload);
        rustix::net::send(&self.socket, &request, SendFlags::empty())?;
        let mut buffer = vec![0; PART_BYTES];
        let mut read = 0;
        while read < DUMP_BYTES_MAX {
            let (length, _) = rustix::net::recv(&self.socket, &mut buffer[..], RecvFlags::empty())?;
            read += length.max(1);
            for message in netlink::messages(&buffer[..length]) {
                if message.sequence != self.sequence {
                    continue;
                }
                if message.is_done() || message.error().is_some() {
                    return Ok(());
                }
                on(message.kind, message.payload);
                if flags & DUMP == 0 {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// `RTA_OIF` of a route.
fn interface(payload: &[u8]) -> Option<u32> {
    let mut attributes = netlink::attributes(payload.get(ROUTE_BYTES..)?);
    attributes.find(|(number, _)| *number == RTA_OIF).and_then(|(_, value)| u32_at(value, 0))
}

/// `struct tcmsg` with its attributes; `None` if it is not the outermost queue or has no counters.
pub(super) fn parse(payload: &[u8]) -> Option<Route> {
    if u32_at(payload, 12)? != ROOT {
        return None;
    }
    let mut route =
        Route { interface: u32_at(payload, 4)?, queue: String::new(), drops: 0, backlog_bytes: 0 };
    let mut counted = false;
    for (number, value) in netlink::attributes(payload.get(QUEUE_BYTES..)?) {
        match number {
            TCA_KIND => {
                let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
                route.queue = String::from_utf8_lossy(&value[..end]).into_owned();
            }
            TCA_STATS2 => {
                // `struct gnet_stats_queue`: packets, bytes, drops, requeues, overlimits.
                let queue = netlink::attributes(value).find(|(number, _)| *number == TCA_STATS_QUEUE);
                let word = |at: usize| queue.and_then(|(_, value)| u32_at(value, at)).map(u64::from);
                if let (Some(backlog), Some(drops)) = (word(4), word(8)) {
                    (route.backlog_bytes, route.drops, counted) = (backlog, drops, true);
                }
            }
            _ => {}
        }
    }
    counted.then_some(route)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(number: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = ((value.len() + 4) as u16).to_ne_bytes().to_vec();
        bytes.extend(number.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn queue(parent: u32) -> Vec<u8> {
        let stats = attribute(TCA_STATS_QUEUE, &words(&[4, 6056, 17, 0, 99]));
        let kind = attribute(TCA_KIND, b"tbf\0");
        [words(&[0, 3, 0x8001_0000, parent, 2]), kind, attribute(TCA_STATS2, &stats)].concat()
    }

    #[test]
    fn the_outermost_queue_has_its_drops() {
        let expected = Route { interface: 3, queue: "tbf".into(), drops: 17, backlog_bytes: 6056 };
        assert_eq!(parse(&queue(ROOT)), Some(expected));
        assert_eq!(parse(&queue(0x0001_0000)), None);
        let bytes = queue(ROOT);
        for length in 0..bytes.len() {
            assert_eq!(parse(&bytes[..length]), None, "{length}");
        }
    }

    #[test]
    fn loopback_has_an_interface() {
        let mut prober = RouteProber::new().unwrap();
        let interface = prober.interface("127.0.0.1".parse().unwrap()).unwrap();
        assert_eq!(interface, Some(1));
        // Its queue is `noqueue`, which counts nothing, or none.
        prober.queue(1).unwrap();
    }
}
