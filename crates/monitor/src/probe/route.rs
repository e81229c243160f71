//! The interface of a connection and the drops of its queue (rtnetlink).

use std::io;
use std::net::IpAddr;

use super::netlink::{self, DUMP, Port, REQUEST, u32_at};

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
    port: Port,
}

impl RouteProber {
    /// A prober of the calling thread's network namespace.
    pub fn new() -> io::Result<Self> {
        Ok(Self { port: Port::new(netlink::ROUTES)? })
    }

    /// The interface that packets to `remote` leave by; `None` without an interface. Fails without a route.
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
        self.port.ask(GETROUTE, REQUEST, &payload, |message| {
            if message.kind == NEWROUTE {
                found = interface(message.payload);
            }
        })?;
        Ok(found)
    }

    /// The outermost queue of an interface.
    pub fn queue(&mut self, interface: u32) -> io::Result<Option<Route>> {
        let mut found = None;
        self.port.ask(GETQDISC, REQUEST | DUMP, &[0; QUEUE_BYTES], |message| {
            let queue = (message.kind == NEWQDISC).then(|| parse(message.payload)).flatten();
            found = found.take().or(queue.filter(|queue| queue.interface == interface));
        })?;
        Ok(found)
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
            TCA_KIND => route.queue = netlink::named(value),
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
