//! The transport of a connection's bytes, below PDUs and their protection.

use area::Span;
use block::Reader;
use io::{Event, Handle, Incoming, Io, Item, Outgoing, Path, Token};
use rustix::net::{self, SendFlags, Shutdown};

/// The destinations of a receive, in this order; at least one is present.
pub(crate) type Places = (Option<Span>, Option<Span>);

/// A connected byte stream, driven by a [`super::Stream`]: at most one receive and one send are in flight, each of
/// which ends by an event of the loop with its token. Until then the transport holds the spans that it was given.
pub(crate) trait Transport {
    /// Starts to receive. The event's result is the number of bytes, 0 if the peer has closed its direction.
    fn receive(&mut self, io: &mut Io, token: Token, places: Places);

    /// Processes the event of a receive. The spans belong to the caller again.
    fn on_received(&mut self, event: Event) -> std::io::Result<usize>;

    /// Starts to send the content of `outgoing`, which must not be empty.
    fn send(&mut self, io: &mut Io, token: Token, outgoing: Box<Outgoing>);

    /// Processes the event of a send: returns the queue of bytes not sent, and the number of bytes sent.
    fn on_sent(&mut self, event: Event) -> (Box<Outgoing>, std::io::Result<usize>);

    /// Closes both directions; operations in flight end soon. Tries once to send `last` before. Repeatable.
    fn close(&mut self, last: &[u8]);

    /// Who reads payload as it is sent. Called once.
    fn reader(&self) -> Reader;

    /// `None` where there is no network.
    fn path(&self) -> Option<Path> {
        None
    }

    /// Lets the send buffer hold `bytes`; see [`io::force_send_buffer`].
    fn force_send_buffer(&mut self, bytes: u64) -> std::io::Result<()> {
        let _ = bytes;
        Ok(())
    }

    /// Sends by BBR from now on; see [`io::prefer_bbr`]. False: the congestion control stays.
    fn prefer_bbr(&mut self) -> bool {
        false
    }
}

pub(crate) struct Socket {
    handle: Handle,
    /// The list of places; `None` while a receive in flight owns it.
    incoming: Option<Box<Incoming>>,
}

impl Socket {
    /// `handle` is connected. `is_chosen`: the user has named its congestion control.
    pub(crate) fn new(handle: Handle, is_chosen: bool) -> Self {
        io::settle(&handle, is_chosen);
        Self { handle, incoming: Some(Box::default()) }
    }
}

impl Transport for Socket {
    fn receive(&mut self, io: &mut Io, token: Token, (place, room): Places) {
        let mut incoming = self.incoming.take().expect("one receive at a time");
        incoming.clear();
        place.into_iter().chain(room).for_each(|span| incoming.push(span));
        io.receive(token, &self.handle, incoming);
    }

    fn on_received(&mut self, event: Event) -> std::io::Result<usize> {
        let count = event.bytes();
        let Item::Incoming(incoming) = event.item else { unreachable!("a receive returns its spans") };
        self.incoming = Some(incoming);
        count
    }

    fn send(&mut self, io: &mut Io, token: Token, outgoing: Box<Outgoing>) {
        io.send(token, &self.handle, outgoing);
    }

    fn on_sent(&mut self, event: Event) -> (Box<Outgoing>, std::io::Result<usize>) {
        let count = event.bytes();
        let Item::Outgoing(mut outgoing) = event.item else { unreachable!("a send returns its queue") };
        if let Ok(count) = count {
            outgoing.advance(count);
        }
        (outgoing, count)
    }

    fn close(&mut self, last: &[u8]) {
        if !last.is_empty() {
            let _ = net::send(&self.handle, last, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
        let _ = net::shutdown(&self.handle, Shutdown::Both);
    }

    fn reader(&self) -> Reader {
        if io::send_by_reference(&self.handle) { Reader::Peer } else { Reader::Kernel }
    }

    fn path(&self) -> Option<Path> {
        io::path(&self.handle)
    }

    fn force_send_buffer(&mut self, bytes: u64) -> std::io::Result<()> {
        io::force_send_buffer(&self.handle, bytes)
    }

    fn prefer_bbr(&mut self) -> bool {
        io::prefer_bbr(&self.handle)
    }
}
