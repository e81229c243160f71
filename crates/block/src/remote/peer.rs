//! The traits that a protocol implements for [`Remote`](super::Remote): [`Peer`] outlives connections, [`Link`] is one.

use std::borrow::Cow;
use std::fmt::Display;
use std::time::Duration;

use area::Span;
use io::{Event, Io, Owner};

use crate::{Capability, Direction, Extent, Identity, IoError, IoErrorKind, Kind, OpenError};

/// One connection, from its first packet to its end.
///
/// A link owns its socket and the buffers of its commands. It appends outcomes in their order. [`Peer::on_outcome`] turns
/// the last one into [`Report::Failed`]; it is appended only when neither the kernel nor the link uses a buffer, so that
/// the requests may be completed. Dropping a link shuts its socket down.
pub trait Link {
    type Outcome;

    /// Takes an event of the owner given to [`Peer::connect`]. Events of earlier links must be ignored.
    fn on_event(&mut self, io: &mut Io, event: Event, outcomes: &mut Vec<Self::Outcome>);

    /// Receives and sends as far as possible. Called after every event, until it appends no outcome.
    fn pump(&mut self, io: &mut Io, outcomes: &mut Vec<Self::Outcome>);

    /// Number of commands that may be submitted now; 0 before the link serves.
    fn window(&self) -> u32;

    /// Cuts the connection. The last outcome follows, in this call or later.
    fn cut_off(&mut self, reason: &str, outcomes: &mut Vec<Self::Outcome>);

    /// Ends the connection after the submitted commands were sent. The last outcome follows.
    fn log_out(&mut self, now: Duration);

    /// Bytes received and sent so far.
    fn transferred(&self) -> u64 {
        0
    }

    /// Whether to call [`Link::on_idle`] in the next idle turn of the loop.
    fn wants_idle(&mut self) -> bool {
        false
    }

    /// Works ahead in an idle turn of the loop.
    fn on_idle(&mut self, io: &mut Io) {
        let _ = io;
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Nouns {
    /// For example `server`.
    pub other_end: &'static str,
    /// For example `connection`.
    pub link: &'static str,
}

/// A protocol, and its knowledge of the unit at the other end of its links.
///
/// [`Remote`](super::Remote) calls it, from one thread, in this order: [`connect`](Peer::connect), then for each
/// outcome of the link [`on_outcome`](Peer::on_outcome). After the report [`Report::Ready`],
/// [`submit`](Peer::submit) turns requests into commands, and [`judge`](Peer::judge) is called for each
/// [`Report::Ended`]. After [`Report::Failed`] the link is dropped, [`on_failure`](Peer::on_failure) decides what
/// follows, and the next link begins with `connect`.
///
/// Between calls the peer holds neither requests nor their buffers: `Remote` holds the requests, the link the buffers.
pub trait Peer: Sized {
    type Link: Link;
    /// Why a link ended or could not be established.
    type Failure;
    type Answer;

    const NOUNS: Nouns;

    /// The name given by the user, without secrets. Error texts begin with it.
    fn name(&self) -> &dyn Display;

    /// Starts a link to the present address, with operations of `owner`. `incarnation` differs for each link, so that
    /// events of earlier ones are recognized. An error is handled like a report of the link.
    fn connect(&mut self, io: &mut Io, owner: Owner, incarnation: u32) -> Result<Self::Link, Report<Self>>;

    /// Selects the next address for `connect`; false if it was tried before. Called once for each [`Next::Retry`], and
    /// for each [`Next::GiveUp`] that another address may not share.
    fn next_address(&mut self) -> bool;

    /// Number of addresses that `next_address` selects in turn.
    fn address_count(&self) -> usize;

    /// Whether `next_address` would return true.
    fn has_untried_address(&self) -> bool;

    /// Translates an outcome of the link into reports. The peer may submit commands of its own to the link.
    fn on_outcome(
        &mut self,
        io: &mut Io,
        link: &mut Self::Link,
        outcome: <Self::Link as Link>::Outcome,
        reports: &mut Vec<Report<Self>>,
    );

    /// Decides what follows a failure; the link is already dropped. Not called for an end that `Remote` requested: after
    /// [`Endpoint::close`](crate::Endpoint::close), or when requests have timed out.
    fn on_failure(&mut self, failure: Self::Failure) -> Next;

    fn on_change(&mut self, change: &Change<'_>);

    /// Called every [`TICK`](super::TICK) while a request or link is outstanding; true keeps the timer without either.
    fn on_tick(&mut self, io: &mut Io, link: Option<&mut Self::Link>) -> bool {
        let _ = (io, link);
        false
    }

    /// Submits the peer's own commands. Called while the link serves, after the commands of requests.
    fn submit_own(&mut self, io: &mut Io, link: &mut Self::Link) {
        let _ = (io, link);
    }

    /// Checks a request locally against conditions that the unit would reject.
    fn check(&self, kind: &Kind) -> Result<(), IoError>;

    /// Submits the next command of a request of which `done` bytes are done. The link's window is open, and the request
    /// has passed [`Peer::check`]. `zeroes` is a buffer of [`ZERO_BYTES`](super::ZERO_BYTES) zeroes.
    fn submit(
        &mut self,
        io: &mut Io,
        link: &mut Self::Link,
        kind: &Kind,
        done: u64,
        zeroes: &Span,
    ) -> Submitted;

    /// Translates the answer to a command that moved `bytes` bytes of a request.
    fn judge(&mut self, kind: &Kind, bytes: u64, answer: Self::Answer) -> Verdict;

    /// Error kind of requests that time out, and advice for the user.
    fn advice(&self) -> (IoErrorKind, &'static str);

    /// What the other end answers instead of becoming ready, while the unit is not open.
    fn not_ready(&self) -> Option<String> {
        None
    }

    /// Whether the unit was ready once. From then on a lost connection fails requests, but not the endpoint.
    fn is_open(&self) -> bool;

    /// Valid from [`Report::Ready`] on.
    fn capability(&self) -> &Capability;

    /// As [`Endpoint::in_flight`](crate::Endpoint::in_flight).
    fn in_flight(&self, direction: Direction) -> Option<u64> {
        let _ = direction;
        None
    }

    /// Whether a new link is worth its round trips, as in [`Endpoint::renew`](crate::Endpoint::renew).
    fn is_renewal_worth(&self, bytes: u64) -> bool {
        let _ = bytes;
        false
    }

    /// A peer for a further link to the same unit, beside that of this one, which is open. It opens only if it finds the
    /// same unit. `None`: this protocol, or this server, has one link for a unit.
    fn sibling(&self) -> Option<Self> {
        None
    }

    /// The extent that contains `offset`; data where it is unknown.
    fn extent(&mut self, offset: u64) -> Extent {
        let _ = offset;
        Extent { end: self.capability().size_bytes, data: true }
    }

    fn identity(&self) -> Identity;

    fn facts(&self) -> Vec<(&'static str, String)>;

    /// The present link's connection, to be observed.
    fn tap(&self) -> Option<io::Tap> {
        None
    }

    /// As [`Inspect::path`](crate::Inspect::path).
    fn path(&self) -> Option<crate::PathReport> {
        None
    }
}

/// The meaning of a link's outcome for the endpoint.
pub enum Report<P: Peer> {
    /// The link accepts requests.
    Ready,
    /// A command of a request has ended. Commands that were not submitted by [`Peer::submit`] are ignored.
    Ended {
        /// The number in [`Submitted::Task`].
        task: usize,
        answer: P::Answer,
    },
    /// The server may have lost acknowledged writes that were not flushed. Reported only by a peer that was open before
    /// the outcome: an endpoint's first link proves nothing about the writes of other endpoints.
    CacheLost,
    /// The link has ended and uses no buffer.
    Failed {
        failure: P::Failure,
        /// The end counts in [`Inspect::losses`](crate::Inspect::losses).
        lost: bool,
    },
    /// The link is unusable, although it has not ended. It is dropped; no request was submitted to it.
    Refused(Next),
}

/// What follows a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Connect immediately: the peer has changed its parameters. The peer bounds the number of such attempts.
    AtOnce,
    /// A possibly temporary failure. An endpoint that was open connects again after a pause, without bound; one that was
    /// not tries each address once, then fails with the first [`Next::GiveUp`], or as unreachable.
    Retry {
        /// For the log and for error texts.
        reason: String,
        /// Time after the creation of an endpoint until which it connects again although it was never open; zero for
        /// most failures.
        opening_max: Duration,
    },
    /// A permanent failure. The endpoint is closed and its requests fail; after an error in the protocol, or where the
    /// unit is missing, the other addresses are tried before.
    GiveUp(OpenError),
}

impl Next {
    /// [`Next::Retry`] that does not keep an endpoint opening.
    pub fn retry(reason: impl Into<String>) -> Self {
        Self::Retry { reason: reason.into(), opening_max: Duration::ZERO }
    }
}

/// The effect of a command on its request, if it succeeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effect {
    /// Bytes of the request that are then done; 0 for a flush.
    pub bytes: u64,
    /// The server's cache holds data that is durable only after a flush.
    pub is_volatile: bool,
    /// The request is then done.
    pub is_last: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submitted {
    /// The command's number (small, dense, unique until the command ends), and its effect.
    Task(usize, Effect),
    /// The request is done without a command.
    Nothing,
    /// No memory, or no room in the link. The request stays first in the queue.
    NotNow,
}

/// The meaning of a command's answer for its request.
#[derive(Debug)]
pub enum Verdict {
    Done,
    /// Submit it again immediately, for this reason; at most [`REPEATS_MAX`](super::REPEATS_MAX) consecutive times.
    Again(String),
    /// Submit it again after this time, without bound; with what the other end answered, for the message of a request that
    /// times out.
    Later(Duration, Cow<'static, str>),
    Fail(IoError),
}

/// A change of an endpoint's state, for [`Peer::on_change`].
#[derive(Debug)]
pub enum Change<'a> {
    /// The link was lost. Unanswered requests will be submitted to the next one; the address selected by
    /// [`Peer::next_address`] is tried after the pause.
    Lost { reason: &'a str, unanswered: usize, pause: Duration },
    /// The requests have timed out and failed; the link is dropped.
    Expired,
    /// Acknowledged writes may be lost; the next flush fails.
    CacheLost,
    /// As `CacheLost`, for an endpoint that is dropped before a flush.
    Dropped,
}
