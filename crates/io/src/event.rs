//! Who asked for an operation, and what became of it.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use area::Span;

use crate::Handle;
use crate::socket::{Address, Incoming, Outgoing};

/// Whoever submits operations: a connection, an endpoint, a layer. Numbers come from `Io::owner`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(pub(crate) u32);

impl Owner {
    /// The loop itself.
    pub(crate) const WAKE: Self = Self(u32::MAX);

    /// A small dense number, to index tables with.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Names an operation to the one who submitted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Token {
    /// Who is told.
    pub owner: Owner,
    /// The owner's own word for it.
    pub key: u32,
}

/// What an operation hands back.
#[derive(Debug)]
pub enum Item {
    /// Nothing: a timer, a flush, an accept that failed.
    None,
    /// A connection that was accepted; closed with the event if nobody takes it.
    Socket(OwnedFd),
    /// The span that was read into or written from.
    Span(Span),
    /// The receive buffers.
    Incoming(Box<Incoming>),
    /// The send queue.
    Outgoing(Box<Outgoing>),
    /// Kept for the kernel during a connect.
    #[doc(hidden)]
    Address(Box<Address>),
    /// Marks an accept under way, whose result will be a descriptor.
    #[doc(hidden)]
    Accepting,
}

impl Item {
    /// Does something with the areas' bytes that the operation works on.
    pub(crate) fn each_span(&self, each: impl FnMut(&Span)) {
        match self {
            Self::Span(span) => std::iter::once(span).for_each(each),
            Self::Incoming(incoming) => incoming.spans().for_each(each),
            Self::Outgoing(outgoing) => outgoing.spans().for_each(each),
            Self::None | Self::Socket(_) | Self::Address(_) | Self::Accepting => {}
        }
    }
}

/// One operation is over.
#[derive(Debug)]
pub struct Event {
    /// As submitted.
    pub token: Token,
    /// Bytes or zero; or a negated errno.
    pub result: i32,
    /// What the operation held.
    pub item: Item,
}

impl Event {
    /// The result as a byte count, or the operating system's error.
    pub fn bytes(&self) -> io::Result<usize> {
        usize::try_from(self.result).map_err(|_| io::Error::from_raw_os_error(-self.result))
    }

    /// The descriptor that an accept produced.
    pub fn into_handle(self) -> io::Result<Handle> {
        self.bytes()?;
        let Item::Socket(socket) = self.item else { unreachable!("an accept returns a socket") };
        Ok(Rc::new(socket))
    }
}
