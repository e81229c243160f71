//! An export as a peer of [`block::remote`]: its capability, its extents, and block requests as commands.
//!
//! After a lost connection the unanswered requests are sent again in their original order. NBD has no sessions: the
//! server may still carry out requests received on the old connection. For a repeated request that writes the same
//! bytes twice; if the submitter writes other data to the same blocks right after a lost connection, the order of the
//! writes is not guaranteed. Writes that the old connection acknowledged and that were not flushed may be lost with the
//! server, so the next flush fails once (`WriteCache`).

use std::fmt::Display;
use std::ops::Range;
use std::sync::Arc;

use area::Span;
use block::remote::{Addresses, Change, Effect, Link, Next, Nouns, Peer, Remote, Report, Submitted, Verdict};
use block::{Capability, Extent, Identity, IoError, IoErrorKind, Kind, OpenError};
use io::{Io, Owner};

use super::connection::{Address, Connection, Failure, GENERATION_MASK, Outcome};
use super::medium::NbdMedium;
use super::request::{self, capability, unknown_capability};
use super::status::{Knowledge, Query, Subject};
use crate::negotiation::{Config, Export, NegotiationError};
use crate::transmission::{Command, Ended, ServerError, Status, TaskId};
use crate::uri::Uri;
use crate::wire::{ESHUTDOWN, flag};

/// An export across its successive connections, driven by [`Remote`]. A connection serves requests as soon as it is
/// negotiated; the export counts as open once its first extent is also known.
pub(super) struct NbdPeer {
    uri: Uri,
    read_only: bool,
    addresses: Addresses<Address>,
    opened: bool,
    /// As negotiated by the last connection.
    export: Option<Export>,
    capability: Capability,
    knowledge: Knowledge,
    /// The block status request in flight.
    query: Option<(TaskId, Query)>,
}

/// Connects to the export of `medium`; `subject` and `range` are for [`NbdPeer::at`] and [`block::Endpoint::extent`].
pub(super) fn open(
    io: &mut Io,
    medium: &NbdMedium,
    subject: Subject,
    range: Range<u64>,
) -> Result<Remote<NbdPeer>, OpenError> {
    let peer = NbdPeer::new(medium, medium.addresses()?, Knowledge::new(subject, range));
    Ok(Remote::open(io, peer, Arc::clone(&medium.cache), medium.timeout))
}

impl NbdPeer {
    fn new(medium: &NbdMedium, addresses: Vec<Address>, knowledge: Knowledge) -> Self {
        Self {
            uri: medium.uri.clone(),
            read_only: medium.read_only,
            addresses: Addresses::new(addresses),
            opened: false,
            export: None,
            capability: unknown_capability(),
            knowledge,
            query: None,
        }
    }

    /// The extent that contains `offset`: its end and its bit. `None`: unknown; [`Peer::submit_own`] requests it.
    pub(super) fn at(&mut self, offset: u64) -> Result<Option<(u64, bool)>, &'static str> {
        if self.knowledge.is_given_up() {
            return Err("the server refuses block status");
        }
        Ok(self.knowledge.at(offset))
    }

    pub(super) fn replies(&self) -> u32 {
        self.knowledge.replies
    }

    /// The id of the metadata context of [`Knowledge`], if the export has it.
    fn context(&self) -> Option<u32> {
        self.export.as_ref()?.context(&self.knowledge.subject.context())
    }

    fn on_ready(&mut self, export: Export, reports: &mut Vec<Report<Self>>) {
        let subject = &self.knowledge.subject;
        if *subject != Subject::Allocation && export.context(&subject.context()).is_none() {
            let text = format!("{}: the export has no {}", self.uri, subject.context());
            return reports.push(Report::Refused(Next::GiveUp(OpenError::Missing(text))));
        }
        let capability = capability(&export, self.read_only);
        if self.opened && before_and_now_differ(&self.capability, &capability) {
            let text = "another export answers at this address than before: nothing was written to it";
            let error = OpenError::Exchanged(format!("{}: {text}", self.uri));
            return reports.push(Report::Refused(Next::GiveUp(error)));
        }
        if !self.opened && self.read_only {
            // A copy needs the extents at the start of its source before anything else.
            self.knowledge.query(self.knowledge.range.start);
        }
        if self.opened {
            reports.push(Report::CacheLost);
        }
        self.capability = capability;
        self.export = Some(export);
        reports.push(Report::Ready);
        self.become_open();
    }

    fn become_open(&mut self) {
        self.opened |= self.context().is_none() || self.knowledge.is_settled(self.capability.size_bytes);
    }

    fn on_answer(&mut self, query: Query, result: Result<Vec<Status>, ServerError>) {
        match result {
            Ok(status) => {
                let context = self.context().expect("only requested where there is a context");
                self.knowledge.on_answer(query, context, &status, self.capability.size_bytes);
            }
            Err(error) => {
                tracing::info!(uri = %self.uri, %error, "where the holes are is not known");
                self.knowledge.on_refused();
            }
        }
        self.become_open();
    }
}

impl Peer for NbdPeer {
    type Link = Connection;
    type Failure = Failure;
    type Answer = Result<(), ServerError>;

    const NOUNS: Nouns = Nouns { other_end: "server", link: "connection" };

    fn name(&self) -> &dyn Display {
        &self.uri
    }

    fn connect(&mut self, io: &mut Io, owner: Owner, incarnation: u32) -> Result<Connection, Report<Self>> {
        // A block status request of the last connection ended with it. Before the export is open, no `Change::Lost`
        // reports that.
        self.query = None;
        self.knowledge.on_lost();
        let address = self.addresses.current();
        let contexts = vec![self.knowledge.subject.context()];
        let config = Config { export: self.uri.export.clone(), contexts };
        tracing::debug!(uri = %self.uri, ?address, "connecting");
        Connection::connect(io, owner, incarnation & GENERATION_MASK, address, config).map_err(failed)
    }

    fn next_address(&mut self) -> bool {
        self.addresses.next_address()
    }

    fn address_count(&self) -> usize {
        self.addresses.all().len()
    }

    fn has_untried_address(&self) -> bool {
        self.addresses.has_untried()
    }

    fn on_outcome(
        &mut self,
        _: &mut Io,
        connection: &mut Connection,
        outcome: Outcome,
        reports: &mut Vec<Report<Self>>,
    ) {
        match outcome {
            Outcome::Ready(export) => self.on_ready(export, reports),
            // The server has not carried out the request: it is sent again to the next server, as after a lost
            // connection.
            Outcome::Ended(Ended { result: Err(error), .. }) if error.code == ESHUTDOWN => {
                let mut outcomes = Vec::new();
                connection.cut_off("the server is shutting down", &mut outcomes);
                reports.extend(outcomes.into_iter().filter_map(|outcome| match outcome {
                    Outcome::Failed(failure) => Some(failed(failure)),
                    _ => None,
                }));
            }
            Outcome::Ended(Ended { task, result }) => {
                match self.query.take_if(|(requested, _)| *requested == task) {
                    Some((_, query)) => self.on_answer(query, result),
                    None => reports.push(Report::Ended { task: task.index(), answer: result.map(drop) }),
                }
            }
            Outcome::Failed(failure) => reports.push(failed(failure)),
        }
    }

    fn on_failure(&mut self, failure: Failure) -> Next {
        let uri = &self.uri;
        Next::retry(match failure {
            Failure::Connect(error) => format!("connecting to {}: {error}", uri.place),
            Failure::Lost(text) => text,
            Failure::Negotiation(error) if self.opened || error == NegotiationError::ShuttingDown => {
                error.to_string()
            }
            Failure::Negotiation(NegotiationError::UnknownExport) => {
                let text = format!("{uri}: the server has no export '{}'", uri.export);
                return Next::GiveUp(OpenError::Missing(text));
            }
            Failure::Negotiation(error) => return Next::GiveUp(OpenError::Failed(format!("{uri}: {error}"))),
        })
    }

    fn on_change(&mut self, change: &Change<'_>) {
        match change {
            Change::Lost { reason, unanswered, pause } => {
                tracing::warn!(
                    uri = %self.uri, reason, unanswered,
                    "connection lost: connecting again in {} ms", pause.as_millis()
                );
                self.knowledge.on_lost();
            }
            Change::Expired => {
                let Knowledge { subject, range, .. } = &self.knowledge;
                self.knowledge = Knowledge::new(subject.clone(), range.clone());
            }
            Change::CacheLost => tracing::error!(
                uri = %self.uri,
                "the server may have been restarted: writes it acknowledged since the last flush may be gone; the next \
                 flush fails"
            ),
            Change::Dropped => {}
        }
    }

    fn on_tick(&mut self, io: &mut Io, _: Option<&mut Connection>) -> bool {
        self.knowledge.on_time(io.now())
    }

    fn submit_own(&mut self, io: &mut Io, connection: &mut Connection) {
        if connection.window() == 0 || self.context().is_none() {
            return;
        }
        let (size, unit) = (self.capability.size_bytes, self.capability.granularity);
        if let Some(query) = self.knowledge.next_query(size, unit, io.now()) {
            let command = Command::BlockStatus { offset: query.offset, length: query.length };
            self.query = Some((connection.submit(command, None), query));
        }
    }

    fn check(&self, kind: &Kind) -> Result<(), IoError> {
        match &self.export {
            Some(export) => request::check(&self.capability, export, kind),
            None => Err(IoError::new(IoErrorKind::Unreachable, format!("{} is closed", self.uri))),
        }
    }

    fn submit(
        &mut self,
        _: &mut Io,
        connection: &mut Connection,
        kind: &Kind,
        done: u64,
        zeroes: &Span,
    ) -> Submitted {
        let Some(export) = &self.export else { unreachable!("the connection serves") };
        let Some(step) = request::step(kind, done, export, &self.capability, zeroes) else {
            return Submitted::Nothing;
        };
        let request::Submission { command, span, bytes } = step;
        let is_flush = bytes == 0;
        assert_eq!(command == Command::Flush, is_flush, "a flush is what moves nothing");
        if kind.is_write() && !is_flush {
            self.knowledge.on_write();
        }
        let task = connection.submit(command, span);
        let is_volatile = !is_flush && request::is_volatile(kind, export);
        let is_last = request::is_over(kind, done + bytes, is_flush, export);
        Submitted::Task(task.index(), Effect { bytes, is_volatile, is_last })
    }

    fn judge(&mut self, kind: &Kind, bytes: u64, answer: Self::Answer) -> Verdict {
        if kind.is_write() && bytes > 0 {
            self.knowledge.on_written();
        }
        match answer {
            Ok(()) => Verdict::Done,
            Err(error) => Verdict::Fail(request::io_error(&error)),
        }
    }

    fn advice(&self) -> (IoErrorKind, &'static str) {
        (IoErrorKind::Unreachable, "check that the server is running and reachable")
    }

    fn is_open(&self) -> bool {
        self.opened
    }

    fn capability(&self) -> &Capability {
        &self.capability
    }

    fn extent(&mut self, offset: u64) -> Extent {
        self.knowledge.extent(offset, self.capability.size_bytes)
    }

    fn identity(&self) -> Identity {
        Identity::Remote(self.uri.to_string())
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let Some(export) = &self.export else { return Vec::new() };
        let yes = |on: bool| if on { "yes" } else { "no" }.to_owned();
        let contexts: Vec<&str> = export.contexts.iter().map(|context| context.name.as_str()).collect();
        let blocks = export.blocks.map_or("not reported".to_owned(), |blocks| {
            format!("{}, {}, {}", blocks.minimum, blocks.preferred, blocks.maximum)
        });
        vec![
            ("kind", "NBD export".to_owned()),
            ("protection", "none".to_owned()),
            ("export name", self.uri.export.clone()),
            ("block sizes (minimum, preferred, maximum)", blocks),
            ("structured replies", yes(export.structured)),
            ("metadata contexts", contexts.join(", ")),
            ("read-only", yes(export.has(flag::READ_ONLY))),
            ("FUA", yes(export.has(flag::FUA))),
            ("flush", yes(export.has(flag::FLUSH))),
            ("trim", yes(export.has(flag::TRIM))),
            ("several connections", yes(export.has(flag::MULTI_CONN))),
        ]
    }
}

fn failed(failure: Failure) -> Report<NbdPeer> {
    let lost = matches!(failure, Failure::Lost(_));
    Report::Failed { failure, lost }
}

/// An export has no identifier to compare: at least its size must not change, since a caller may depend on it.
fn before_and_now_differ(before: &Capability, now: &Capability) -> bool {
    (before.size_bytes, before.granularity) != (now.size_bytes, now.granularity)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::time::Duration;

    use area::PoolLimits;
    use block::remote::TICK;
    use block::{Endpoint, State};

    use super::*;
    use crate::negotiation::MetaContext;
    use crate::wire::{GREETING_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, option, option_reply};

    const SIZE: u64 = 1 << 20;

    #[test]
    fn a_lost_first_block_status_is_requested_at_the_next_address() {
        let mut io = Io::new(PoolLimits::default()).unwrap();
        let owner = io.owner();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let uri = Uri::parse(&format!("nbd://{address}/disk")).unwrap();
        let medium = NbdMedium::new(uri, Duration::from_secs(60), true);
        let knowledge = Knowledge::new(Subject::Allocation, 0..u64::MAX);
        let mut peer = NbdPeer::new(&medium, vec![Address::Tcp(address); 2], knowledge);
        let context = MetaContext { id: 1, name: Subject::Allocation.context() };
        let export = Export { size: SIZE, flags: 1, blocks: None, structured: true, contexts: vec![context] };
        let mut queries = Vec::new();
        for incarnation in [1, 2] {
            assert!(peer.connect(&mut io, owner, incarnation).is_ok());
            let mut reports = Vec::new();
            peer.on_ready(export.clone(), &mut reports);
            assert!(matches!(reports[..], [Report::Ready]) && !peer.is_open());
            queries.push(peer.knowledge.next_query(SIZE, 1, io.now()).expect("a request on each connection"));
            assert_eq!(peer.next_address(), incarnation == 1);
        }
        peer.on_answer(queries[1], Ok(vec![Status { context: 1, extents: vec![(SIZE as u32, 0)] }]));
        assert!(peer.is_open());
    }

    /// A server that stays silent, breaks the protocol, or does not have the export.
    #[test]
    fn a_server_that_does_not_negotiate_leads_to_the_next_one() {
        let greeting = [&GREETING_MAGIC.to_be_bytes()[..], &OPTION_MAGIC.to_be_bytes(), &[0, 3]].concat();
        let refusal = |option: u32, kind: u32| {
            let words = [option, kind, 0].map(u32::to_be_bytes).concat();
            [&OPTION_REPLY_MAGIC.to_be_bytes()[..], &words].concat()
        };
        let refused = [
            refusal(option::STRUCTURED_REPLY, option_reply::ERR_UNSUP),
            refusal(option::GO, option_reply::ERR_UNKNOWN),
        ]
        .concat();
        for said in [vec![], b"SSH-2.0-OpenSSH_9.9\r\n".to_vec(), [greeting, refused].concat()] {
            let [first, second] = [0; 2].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
            let addresses = [&first, &second].map(|listener| listener.local_addr().unwrap());
            std::thread::spawn(move || {
                let (mut stream, _) = first.accept().unwrap();
                stream.write_all(&said).unwrap();
                stream.read_to_end(&mut Vec::new())
            });
            let mut io = Io::new(PoolLimits::default()).unwrap();
            let uri = Uri::parse(&format!("nbd://{}/disk", addresses[0])).unwrap();
            // A third of it, rounded up to a tick, passes before a silent server is left.
            let medium = NbdMedium::new(uri, TICK * 9, true);
            let knowledge = Knowledge::new(Subject::Allocation, 0..u64::MAX);
            let peer = NbdPeer::new(&medium, addresses.map(Address::Tcp).to_vec(), knowledge);
            let mut remote = Remote::open(&mut io, peer, Arc::default(), medium.timeout);
            second.set_nonblocking(true).unwrap();
            let mut events = Vec::new();
            while second.accept().is_err() {
                assert!(matches!(remote.state(), State::Opening), "{:?}", remote.state());
                let until = io.now() + TICK / 4;
                io.turn_until(Some(until), &mut events).unwrap();
                events.drain(..).for_each(|event| remote.on_event(&mut io, event, &mut Vec::new()));
            }
        }
    }
}
