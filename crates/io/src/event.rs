//! Identification and results of operations.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use area::{Access, Span};
use socket2::SockAddr;

use crate::Handle;
use crate::socket::{Incoming, Outgoing};

/// The submitter of operations: a connection, an endpoint or a layer. `Io::owner` assigns the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(pub(crate) u32);

impl Owner {
    /// Owner of the loop's own wake-up reads.
    pub(crate) const WAKE: Self = Self(u32::MAX);

    /// The number, small and dense, as an index into tables.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Token {
    pub owner: Owner,
    pub key: u32,
}

#[derive(Debug)]
pub enum Item {
    /// None: a timer, a flush, an accept that failed.
    None,
    /// The accepted connection; closed if dropped with the event.
    Socket(OwnedFd),
    Span(Span),
    Incoming(Box<Incoming>),
    Outgoing(Box<Outgoing>),
    /// A queue whose socket is full.
    #[doc(hidden)]
    Full(Box<Outgoing>),
    /// Of [`Io::compute`](crate::Io::compute).
    Work {
        from: Option<Span>,
        into: Span,
    },
    /// Kept alive for the kernel during a connect.
    #[doc(hidden)]
    Address(Box<SockAddr>),
    /// Marks an accept in flight, whose result will be a descriptor.
    #[doc(hidden)]
    Accepting,
}

impl Item {
    pub(crate) fn each_span(&self, mut each: impl FnMut(&Span)) {
        match self {
            Self::Span(span) => std::iter::once(span).for_each(each),
            Self::Incoming(incoming) => incoming.spans().for_each(each),
            Self::Outgoing(outgoing) | Self::Full(outgoing) => outgoing.spans().for_each(each),
            Self::Work { .. } => self.each_access(|span, _| each(span)),
            Self::None | Self::Socket(_) | Self::Address(_) | Self::Accepting => {}
        }
    }

    /// The spans of work, with what it does to each.
    pub(crate) fn each_access(&self, mut each: impl FnMut(&Span, Access)) {
        if let Self::Work { from, into } = self {
            from.iter().for_each(|from| each(from, Access::Read));
            each(into, Access::Write);
        }
    }
}

#[derive(Debug)]
pub struct Event {
    pub token: Token,
    /// Bytes or zero; on failure a negated errno.
    pub result: i32,
    pub item: Item,
}

impl Event {
    pub fn bytes(&self) -> io::Result<usize> {
        usize::try_from(self.result).map_err(|_| io::Error::from_raw_os_error(-self.result))
    }

    /// The descriptor of a successful accept. Panics for other operations.
    pub fn into_handle(self) -> io::Result<Handle> {
        self.bytes()?;
        let Item::Socket(socket) = self.item else { unreachable!("an accept returns a socket") };
        Ok(Rc::new(socket))
    }
}
