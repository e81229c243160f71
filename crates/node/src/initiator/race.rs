//! Connects to the first address of a host that accepts, in the manner of RFC 8305: the next address is tried when the one
//! before has failed, or after [`ATTEMPT_DELAY`].

use std::net::{Shutdown, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use io::{Handle, Io, Token};
use socket2::SockRef;

/// RFC 8305 section 5, "Connection Attempt Delay".
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Connects to one of `addresses` before `until` (loop time), and removes from them those that were found unreachable and
/// the one it returns. `congestion` is as for [`io::socket`]. Attempts that are still under way when another one succeeds are cut. `addresses` is not empty.
pub(super) fn connect(
    io: &mut Io,
    addresses: &mut Vec<SocketAddr>,
    congestion: Option<&str>,
    until: Duration,
) -> Result<(SocketAddr, Handle), std::io::Error> {
    let owner = io.owner();
    let mut waiting = std::mem::take(addresses).into_iter();
    // By the key of their operation: the address and the socket while it connects.
    let mut attempts: Vec<Option<(SocketAddr, Handle)>> = Vec::new();
    let (mut next_at, mut last) = (io.now(), None);
    let mut events = Vec::new();
    let won = loop {
        let pending = attempts.iter().flatten().count();
        if pending == 0 || io.now() >= next_at {
            if let Some(address) = waiting.next() {
                next_at = io.now() + ATTEMPT_DELAY;
                match io::socket(address, congestion) {
                    Ok(socket) => {
                        let socket: Handle = Rc::new(socket);
                        io.connect(Token { owner, key: attempts.len() as u32 }, &socket, address);
                        attempts.push(Some((address, socket)));
                    }
                    Err(error) => last = Some(error),
                }
                continue;
            }
            if pending == 0 {
                break None;
            }
            next_at = until;
        }
        if io.now() >= until {
            last = Some(std::io::ErrorKind::TimedOut.into());
            break None;
        }
        if let Err(error) = io.turn_for(|other| other == owner, Some(next_at.min(until)), &mut events) {
            last = Some(error);
            break None;
        }
        let mut won = None;
        for event in events.drain(..) {
            let attempt = attempts[event.token.key as usize].take();
            match event.bytes() {
                Ok(_) if won.is_none() => won = attempt,
                // A second one of the same turn; it is closed.
                Ok(_) => addresses.extend(attempt.map(|(address, _)| address)),
                Err(error) => last = Some(error),
            }
        }
        if won.is_some() {
            break won;
        }
    };
    for (address, socket) in attempts.into_iter().flatten() {
        let _ = SockRef::from(&*socket).shutdown(Shutdown::Both);
        addresses.push(address);
    }
    addresses.extend(waiting);
    won.ok_or_else(|| last.unwrap_or_else(|| std::io::ErrorKind::TimedOut.into()))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::time::Instant;

    use super::*;

    fn io() -> Io {
        Io::new(area::PoolLimits { bytes_max: 1 << 20 }).unwrap()
    }

    /// A listener whose backlog is full: a connection to it stays without an answer.
    fn silent() -> (TcpListener, Vec<std::net::TcpStream>) {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
        socket.listen(0).unwrap();
        let listener: TcpListener = socket.into();
        let address = listener.local_addr().unwrap();
        let full = |_| std::net::TcpStream::connect_timeout(&address, Duration::from_millis(20)).ok();
        let held = (0..4).map_while(full).collect();
        (listener, held)
    }

    #[test]
    fn a_silent_address_delays_the_next_by_a_quarter_second() {
        let (silent, _held) = silent();
        let good = TcpListener::bind("127.0.0.1:0").unwrap();
        let [first, second] = [&silent, &good].map(|listener| listener.local_addr().unwrap());
        let (mut io, mut left, started) = (io(), vec![first, second], Instant::now());
        let until = io.now() + Duration::from_secs(5);
        let (address, _socket) = connect(&mut io, &mut left, None, until).unwrap();
        assert_eq!((address, left), (second, vec![first]));
        let took = started.elapsed();
        assert!(took >= ATTEMPT_DELAY && took < Duration::from_secs(2), "{took:?}");
    }

    #[test]
    fn a_refusal_leads_to_the_next_address_at_once_and_the_time_is_bounded() {
        let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let good = TcpListener::bind("127.0.0.1:0").unwrap();
        let second = good.local_addr().unwrap();
        let (mut io, mut left, started) = (io(), vec![gone, second], Instant::now());
        let until = io.now() + Duration::from_secs(5);
        assert_eq!(connect(&mut io, &mut left, None, until).unwrap().0, second);
        assert!(started.elapsed() < ATTEMPT_DELAY && left.is_empty(), "{left:?}");
        let (silent, _held) = silent();
        let mut left = vec![silent.local_addr().unwrap()];
        let until = io.now() + Duration::from_millis(50);
        let error = connect(&mut io, &mut left, None, until).unwrap_err();
        assert_eq!((error.kind(), left.len()), (std::io::ErrorKind::TimedOut, 1));
    }
}
