//! Samples of live TCP sockets, of this process or of others, without rights: `sock_diag` with an exact request for each
//! socket, [`REQUESTS_MAX`] of them in one datagram. Around them: the owning process, the kernel's iSCSI sessions, the
//! queue of the interface.
//!
//! [`Prober`] asks the kernel; [`Sessions`] finds iSCSI connections and keeps what is known of each; [`tune`] is the only
//! part that changes anything. `bpf` (feature `bpf`) has what happens between two samples.

#[cfg(feature = "bpf")]
pub mod bpf;
mod diag;
mod figures;
mod info;
mod kernel;
mod live;
mod namespace;
mod netlink;
mod packets;
mod process;
mod raw;
mod route;
mod sessions;
mod sys;
pub mod tune;

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::SendFlags;
use rustix::time::{ClockId, clock_gettime};

use crate::limits::SOCKETS_MAX;
use crate::sample::Sample;
pub use diag::{ESTABLISHED, Ends, Found, LISTEN, Watched};
pub use figures::Figures;
pub use kernel::{KernelDisk, KernelSession};
pub use live::{Live, judge_samples};
pub use namespace::{NamespaceError, in_namespace};
use netlink::{DUMP, Port, REQUEST};
pub use packets::{PORTS_MAX, PacketProber};
pub use process::{Owner, Processes, Usage};
pub use raw::Reply;
pub use route::{Route, RouteProber};
pub use sessions::{Chosen, LOOKED_FOR, Session, Sessions};

/// Requests of one datagram: their replies fit into the socket's default receive buffer.
pub const REQUESTS_MAX: usize = sys::BATCH_MAX;
const _: () = assert!(REQUESTS_MAX <= 64, "a word has a bit for each request of a datagram");
const ENOENT: i32 = libc::ENOENT;
const ESTALE: i32 = libc::ESTALE;

/// What became of the request for one socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<R> {
    Sampled(R),
    /// The socket exists no more, or waits for nothing but the end of its time.
    Gone,
    /// The kernel did not answer, or refused: this sample is lost, the next one may come.
    Missed,
}

impl<R> Outcome<R> {
    pub fn map<T>(self, read: impl FnOnce(R) -> T) -> Outcome<T> {
        match self {
            Self::Sampled(reply) => Outcome::Sampled(read(reply)),
            Self::Gone => Outcome::Gone,
            Self::Missed => Outcome::Missed,
        }
    }
}

/// Nanoseconds of the monotonic clock: the clock of every [`Sample`].
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned().saturating_mul(1_000_000_000).saturating_add(now.tv_nsec.cast_unsigned())
}

/// Asks one network namespace's kernel for its TCP sockets. Needs no rights.
#[derive(Debug)]
pub struct Prober {
    port: Port,
    requests: Vec<u8>,
    replies: sys::Batch,
}

impl Prober {
    /// A prober of the calling thread's network namespace. Fails without `NETLINK_SOCK_DIAG` (module `inet_diag`), or
    /// where a sandbox forbids netlink.
    pub fn new() -> io::Result<Self> {
        let requests = Vec::with_capacity(REQUESTS_MAX * diag::MESSAGE_BYTES);
        Ok(Self { port: Port::new(netlink::DIAG)?, requests, replies: sys::Batch::new() })
    }

    /// The open TCP sockets of both address families, at most [`SOCKETS_MAX`]; with `listening` those that listen.
    pub fn table(&mut self, listening: bool) -> io::Result<Vec<Found>> {
        let mut all = Vec::new();
        for family in [libc::AF_INET, libc::AF_INET6] {
            let payload = diag::of_table(family, listening);
            let asked = self.port.ask(diag::BY_FAMILY, REQUEST | DUMP, &payload, |message| {
                if all.len() < SOCKETS_MAX {
                    all.extend(diag::found(message.payload));
                }
            });
            // Without IPv6 there is no table of it.
            asked.or_else(|error| if error.raw_os_error() == Some(ENOENT) { Ok(()) } else { Err(error) })?;
        }
        Ok(all)
    }

    /// Asks for one sample of each socket. Calls `on` once for each, with its place among `sockets`. An error is one of the
    /// netlink socket; sockets that `on` has not been called for are then unknown.
    pub fn sample(
        &mut self,
        sockets: &[Watched],
        mut on: impl FnMut(usize, Outcome<Reply<'_>>),
    ) -> io::Result<()> {
        for (start, batch) in (0..).step_by(REQUESTS_MAX).zip(sockets.chunks(REQUESTS_MAX)) {
            let first = self.port.sequence.wrapping_add(1);
            self.requests.clear();
            for (number, socket) in (0..).zip(batch) {
                let at = self.requests.len();
                self.requests.extend_from_slice(&socket.message);
                let sequence: u32 = first.wrapping_add(number);
                self.requests[at + 8..at + 12].copy_from_slice(&sequence.to_ne_bytes());
                self.port.sequence = sequence;
            }
            rustix::net::send(&self.port.socket, &self.requests, SendFlags::empty())?;
            self.collect(first, batch.len(), now_ns(), &mut |index, outcome| on(start + index, outcome))?;
        }
        Ok(())
    }

    /// The kernel has answered every request before `send` returns; what is not there was lost for want of memory.
    fn collect(
        &mut self,
        first: u32,
        count: usize,
        at_ns: u64,
        on: &mut impl FnMut(usize, Outcome<Reply<'_>>),
    ) -> io::Result<()> {
        let mut answered: u64 = 0;
        let mut left = count;
        while left > 0 {
            let received = match self.replies.receive(&self.port.socket, left) {
                Ok(0) => break,
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // Replies were lost; those that remain follow.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => continue,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            for message in (0..received).flat_map(|index| netlink::messages(self.replies.datagram(index))) {
                let index = message.sequence.wrapping_sub(first) as usize;
                if index < count && answered >> index & 1 == 0 {
                    answered |= 1 << index;
                    on(index, outcome(&message, at_ns));
                }
            }
            left = left.saturating_sub(received);
        }
        (0..count).filter(|index| answered >> index & 1 == 0).for_each(|index| on(index, Outcome::Missed));
        Ok(())
    }
}

fn outcome<'a>(message: &netlink::Message<'a>, at_ns: u64) -> Outcome<Reply<'a>> {
    match message.error() {
        Some(ENOENT | ESTALE) => Outcome::Gone,
        Some(_) => Outcome::Missed,
        None => match diag::reply(message.payload, at_ns) {
            Some(reply) if message.kind == diag::BY_FAMILY && reply.has_ended() => Outcome::Gone,
            Some(reply) if message.kind == diag::BY_FAMILY => Outcome::Sampled(reply),
            _ => Outcome::Missed,
        },
    }
}

/// A sample of one of this process's own sockets, by `getsockopt`.
pub fn own(socket: impl AsFd) -> io::Result<Sample> {
    let socket = socket.as_fd();
    let mut sample = Sample { at_ns: now_ns(), ..Sample::default() };
    let (mut info, mut memory) = ([0; info::INFO_BYTES], [0; info::MEMORY_BYTES]);
    info::fill(sys::tcp_info(socket, &mut info)?, &mut sample);
    // Older kernels lack the second option.
    if let Ok(bytes) = sys::memory(socket, &mut memory) {
        info::fill_memory(bytes, &mut sample);
    }
    Ok(sample)
}

/// Parses bytes as replies of the kernel: for the fuzz target.
#[doc(hidden)]
pub fn fuzz_replies(bytes: &[u8]) {
    for message in netlink::messages(bytes) {
        let _ = (
            outcome(&message, 1).map(|reply| reply.sample()),
            diag::found(message.payload),
            route::parse(message.payload),
        );
    }
}

/// Sleeps until a moment of the monotonic clock.
pub fn sleep_until(at_ns: u64) {
    std::thread::sleep(Duration::from_nanos(at_ns.saturating_sub(now_ns())));
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    pub(super) fn pair(address: &str) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(address).unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    fn ends(stream: &TcpStream) -> Ends {
        Ends { local: stream.local_addr().unwrap(), remote: stream.peer_addr().unwrap() }
    }

    /// The outcome of each socket, which must come once.
    fn outcomes(prober: &mut Prober, sockets: &[Watched]) -> Vec<Outcome<Sample>> {
        let mut found = vec![None; sockets.len()];
        let on = |index: usize, outcome: Outcome<Reply<'_>>| {
            assert!(found[index].replace(outcome.map(|reply| reply.sample())).is_none());
        };
        prober.sample(sockets, on).unwrap();
        found.into_iter().map(Option::unwrap).collect()
    }

    #[test]
    fn sockets_of_both_families_are_found_and_sampled() {
        let mut prober = Prober::new().unwrap();
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let (mut near, _far) = pair(address);
            near.write_all(&[7; 1000]).unwrap();
            let table = prober.table(false).unwrap();
            let found = table.iter().find(|found| found.ends == ends(&near)).unwrap();
            assert_eq!(found.state, ESTABLISHED);
            assert!(found.congestion.is_some() && found.inode > 0);
            let outcomes = outcomes(&mut prober, &[Watched::new(found)]);
            let Outcome::Sampled(sample) = &outcomes[0] else { panic!("{outcomes:?}") };
            assert_eq!(sample.bytes_sent, Some(1000));
            assert!(sample.send_buffer_bytes.is_some_and(|bytes| bytes > 0) && sample.rtt_us.is_some());
            let own = own(&near).unwrap();
            let same = |sample: &Sample| (sample.bytes_sent, sample.send_buffer_bytes, sample.mss_bytes);
            assert_eq!(same(&own), same(sample));
        }
    }

    #[test]
    fn many_sockets_are_sampled_in_order_and_closed_ones_are_gone() {
        let mut prober = Prober::new().unwrap();
        let mut pairs: Vec<_> = (0..120).map(|_| pair("127.0.0.1:0")).collect();
        let table = prober.table(false).unwrap();
        let watched: Vec<Watched> = pairs
            .iter_mut()
            .enumerate()
            .map(|(number, (near, _))| {
                near.write_all(&vec![1; number + 1]).unwrap();
                Watched::new(table.iter().find(|found| found.ends == ends(near)).unwrap())
            })
            .collect();
        let all = outcomes(&mut prober, &watched);
        let sent = |outcome: &Outcome<Sample>| match outcome {
            Outcome::Sampled(sample) => sample.bytes_sent,
            _ => None,
        };
        let expected: Vec<_> = (1..=120).map(Some).collect();
        assert_eq!(all.iter().map(sent).collect::<Vec<_>>(), expected);
        // A reset leaves no socket behind.
        let (near, far) = pairs.remove(60);
        socket2::SockRef::from(&near).set_linger(Some(Duration::ZERO)).unwrap();
        drop((near, far));
        let all = outcomes(&mut prober, &watched);
        assert_eq!(all[60], Outcome::Gone);
        assert!(sent(&all[59]).is_some() && sent(&all[61]).is_some());
    }

    #[test]
    fn replies_of_every_kind() {
        let message = |kind, payload: &[u8]| {
            let mut bytes = Vec::new();
            netlink::push(&mut bytes, kind, 0, 1, payload);
            let message = netlink::messages(&bytes).next().unwrap();
            outcome(&message, 5).map(|reply| reply.sample())
        };
        let error = |number: i32| (-number).to_ne_bytes();
        assert_eq!(message(2, &error(libc::ENOENT)), Outcome::Gone);
        assert_eq!(message(2, &error(libc::ESTALE)), Outcome::Gone);
        assert_eq!(message(2, &error(libc::EINVAL)), Outcome::Missed);
        assert_eq!(message(2, &i32::MIN.to_ne_bytes()), Outcome::Missed);
        assert_eq!(message(20, &[0; 71]), Outcome::Missed);
        assert!(matches!(message(20, &[0; 72]), Outcome::Sampled(_)));
        assert_eq!(message(21, &[0; 72]), Outcome::Missed);
        // A closed socket has no figures; one whose peer may still send has.
        let in_state = |state: u8, more: &[u8]| {
            let mut bytes = vec![0; 72];
            bytes[1] = state;
            bytes.extend_from_slice(more);
            message(20, &bytes)
        };
        let info = [12, 0, 2, 0, 5, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(in_state(diag::TIME_WAIT, &[]), Outcome::Gone);
        assert_eq!(in_state(diag::FIN_WAIT2, &[]), Outcome::Gone);
        assert!(matches!(in_state(diag::FIN_WAIT2, &info), Outcome::Sampled(_)));
    }
}
