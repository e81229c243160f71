//! An endpoint of several links to one unit.

use std::sync::Arc;
use std::time::Duration;

use io::{Event, Io, Owner};

use super::growth::{Growth, LINKS_MAX, Links, Sample};
use super::{Peer, Remote, WriteCache};
use crate::{
    Capability, Completion, Direction, Endpoint, Extent, Fingerprint, Identity, Inspect, IoError,
    IoErrorKind, Kind, PathReport, Request, State,
};

/// Several [`Remote`] endpoints of one unit as one: each has its own link, buffers and command window.
///
/// Drive it like a `Remote`. The first link opens the endpoint; further ones ([`Links`]) open beside requests. One that
/// fails to open, or finds another unit, is no failure of the endpoint: it goes on with the others.
///
/// - **Pinned.** A request is submitted to the link with the fewest bytes outstanding and completes on that one. After a
///   loss `Remote` submits it again on the link that ends the commands of the lost one, so a repeated write never races
///   its first copy. Only requests of which the lost link was given no command move to another one.
/// - **Stale writes.** A write that has failed without an answer (timed out) may still be carried out. Until its link is
///   back, which ends it, all writes are submitted to that link, behind it; with two such links writes fail.
/// - **Flush.** One flush, by the first link, covers the completed writes of all: the cache is the unit's, not that of a
///   link (SBC-3 4.15). The first link is older than every write that the endpoint has not flushed, so it detects each
///   loss of power that could have taken one; a younger one might not have been there. A loss that several links report
///   may fail a second flush.
/// - **Fewer.** A link that is not wanted any more gets no request, and is closed when its last one has ended. So does a
///   further one of which the server carries out no command; those that it has answered move to the others.
///
/// Only for a submitter that waits for completions where it needs an order, as [`Endpoint::submit`] says; even the order of
/// submission, which one link keeps, is not kept.
pub struct Several<P: Peer> {
    /// At least one, at most [`LINKS_MAX`]. The first [`Growth::wanted`] get requests.
    links: Vec<Remote<P>>,
    /// Owners of links that were never opened: those of an endpoint are fixed from its start.
    spare: Vec<[Owner; 2]>,
    growth: Growth,
    /// Links that were opened and not given up; as many as are wanted, or soon will be.
    open: usize,
    /// Bytes worth having in flight on all links, by the rate of their sum: requests complete in lumps, and the sum of the
    /// links' highest rates is more than the highest of their sum. `None`: one link, or not known.
    worth: Option<u64>,
    cache: Arc<WriteCache>,
    timeout: Duration,
    is_closing: bool,
}

impl<P: Peer> Several<P> {
    /// As [`Remote::open`].
    pub fn open(io: &mut Io, peer: P, cache: Arc<WriteCache>, timeout: Duration, links: Links) -> Self {
        let first = Remote::open(io, peer, Arc::clone(&cache), timeout);
        let spare = (1..LINKS_MAX).map(|_| [io.owner(), io.owner()]).collect();
        let growth = Growth::new(links, io.now());
        Self { links: vec![first], spare, growth, open: 1, worth: None, cache, timeout, is_closing: false }
    }

    /// The links that get requests.
    fn wanted(&self) -> &[Remote<P>] {
        &self.links[..self.growth.wanted().min(self.links.len())]
    }

    fn serving(&self) -> usize {
        self.wanted().iter().filter(|link| link.is_serving()).count()
    }

    /// The link that a request is submitted to. The error: none may take it.
    fn route(&self, kind: &Kind) -> Result<usize, IoError> {
        if matches!(kind, Kind::Flush) {
            return Ok(0);
        }
        let mut stale =
            (0..self.links.len()).filter(|index| kind.is_write() && self.links[*index].is_stale());
        match (stale.next(), stale.next()) {
            (Some(index), None) => return Ok(index),
            (Some(_), Some(_)) => {
                let text = format!(
                    "earlier writes have failed on several {}s and may still be carried out",
                    P::NOUNS.link
                );
                return Err(IoError::new(IoErrorKind::Unreachable, text));
            }
            _ => {}
        }
        let serving = self.wanted().iter().enumerate().filter(|(_, link)| link.is_serving());
        let load = |(_, link): &(usize, &Remote<P>)| (link.backlog().bytes(), link.backlog().len());
        Ok(serving.min_by_key(load).map_or(0, |(index, _)| index))
    }

    /// Submits requests to other links that a link without connection, or one that is not wanted, has not sent.
    fn move_unsent(&mut self, io: &mut Io, from: usize, done: &mut Vec<Completion>) {
        let link = &mut self.links[from];
        let keeps = link.is_serving() && from < self.growth.wanted();
        // Writes behind a stale one would come back here.
        if keeps || link.is_stale() || link.backlog().is_empty() || self.serving() == 0 {
            return;
        }
        for request in self.links[from].take_unsent() {
            self.submit(io, request, done);
        }
    }

    /// Opens and closes links, so that those wanted are there.
    fn adjust(&mut self, io: &mut Io, done: &mut Vec<Completion>) {
        if self.is_closing {
            return;
        }
        self.give_up_refused(io.now());
        for index in self.growth.wanted()..self.links.len() {
            self.move_unsent(io, index, done);
            let link = &mut self.links[index];
            if link.backlog().is_empty() && !link.is_stale() && !link.is_ending() {
                link.close(io);
            }
        }
        let wanted = self.growth.wanted();
        self.open = self.open.min(wanted);
        while self.open < wanted && self.links[0].is_serving() && self.open_next(io) {
            self.open += 1;
        }
    }

    /// The links that have ended for good count no more, nor those that are turned away.
    fn give_up_refused(&mut self, now: Duration) {
        let mut index = 1;
        while index < self.open {
            let link = &self.links[index];
            let turned_away = link.turned_away(now).map(|answer| format!("nothing but {answer}"));
            if turned_away.is_none() && !link.is_closed() {
                index += 1;
                continue;
            }
            let error = match link.state() {
                State::Failed(error) => Some(error.to_string()),
                State::Opening | State::Ready => turned_away,
            };
            if let Some(error) = error {
                tracing::info!(%error, links = self.open - 1, "no further {}", P::NOUNS.link);
            }
            self.open -= 1;
            self.links.swap(index, self.open);
            self.growth.refused(now, self.open);
        }
    }

    /// Opens one link more. False: not now.
    fn open_next(&mut self, io: &mut Io) -> bool {
        if let Some(link) = self.links.get(self.open)
            && !link.is_ending()
        {
            return true;
        }
        if self.links.get(self.open).is_some_and(|link| !link.is_closed()) {
            return false;
        }
        let is_stale = self.links.get(self.open).is_some_and(Remote::is_stale);
        let Some(peer) = self.links[0].peer().sibling().filter(|_| !is_stale) else {
            self.growth.refused(io.now(), self.open);
            return false;
        };
        if let Some(link) = self.links.get_mut(self.open) {
            link.reopen(io, peer);
        } else {
            let owners = self.spare.pop().expect("at most LINKS_MAX links");
            self.links.push(Remote::open_as(io, owners, peer, Arc::clone(&self.cache), self.timeout));
        }
        true
    }

    fn outstanding(&self) -> u64 {
        self.links.iter().map(|link| link.backlog().bytes()).sum()
    }

    fn transferred(&self) -> u64 {
        self.links.iter().map(Remote::transferred).sum()
    }

    /// Requests have ended.
    fn measure(&mut self, now: Duration) {
        let outstanding = self.outstanding();
        self.growth.on_outstanding(outstanding);
        if !self.growth.is_due(now) {
            return;
        }
        let paths: Vec<_> = self.links.iter().filter_map(|link| link.peer().path()).collect();
        let connections = || paths.iter().map(|path| path.connection);
        let losses = |path: io::Path| u64::from(path.retransmitted) + u64::from(path.out_of_order);
        let sample = Sample {
            round_trip: connections().map(|path| path.round_trip).max(),
            round_trip_least: connections().map(|path| path.round_trip_least).min(),
            losses: connections().map(losses).sum(),
            is_congested: connections().any(|path| path.is_congested()),
            is_short: paths.iter().any(|path| path.missing().next().is_some()),
            bytes: self.transferred(),
            serving: self.serving(),
        };
        self.growth.on_window(now, outstanding, sample);
        let rounds = 1 + paths.iter().map(|path| path.rounds_max).max().unwrap_or(0);
        let seconds = 2.0 * sample.round_trip.unwrap_or_default().as_secs_f64() * f64::from(rounds);
        self.worth = (self.open > 1 && seconds > 0.0).then_some((self.growth.rate() * seconds) as u64);
    }
}

impl<P: Peer> Endpoint for Several<P> {
    fn state(&self) -> State {
        self.links[0].state()
    }

    fn capability(&self) -> &Capability {
        self.links[0].capability()
    }

    fn submit(&mut self, io: &mut Io, request: Request, done: &mut Vec<Completion>) {
        match self.route(&request.kind) {
            Ok(index) => self.links[index].submit(io, request, done),
            Err(error) => done.push(Completion { id: request.id, result: Err(error) }),
        }
    }

    fn on_event(&mut self, io: &mut Io, event: Event, done: &mut Vec<Completion>) {
        let owner = event.token.owner;
        let Some(index) = self.links.iter().position(|link| link.own().contains(&owner)) else { return };
        let before = done.len();
        self.links[index].on_event(io, event, done);
        self.move_unsent(io, index, done);
        self.adjust(io, done);
        self.growth.on_bytes(io.now(), self.transferred());
        if done.len() > before {
            self.measure(io.now());
        }
    }

    fn owners(&self, owners: &mut Vec<Owner>) {
        owners.extend(self.links.iter().flat_map(Remote::own));
        owners.extend(self.spare.as_flattened());
    }

    fn in_flight(&self, direction: Direction) -> Option<u64> {
        let links = self.wanted().iter().filter_map(|link| link.in_flight(direction));
        links.reduce(u64::saturating_add).map(|bytes| bytes.min(self.worth.unwrap_or(bytes)))
    }

    fn extent(&mut self, offset: u64) -> Extent {
        self.links[0].extent(offset)
    }

    fn renew(&mut self, io: &mut Io, bytes: u64) {
        self.links.iter_mut().for_each(|link| link.renew(io, bytes));
    }

    fn close(&mut self, io: &mut Io) {
        self.is_closing = true;
        self.links.iter_mut().for_each(|link| link.close(io));
    }

    fn is_closed(&self) -> bool {
        self.links.iter().all(Remote::is_closed)
    }

    fn inspect(&self) -> &dyn Inspect {
        self
    }
}

impl<P: Peer> Inspect for Several<P> {
    fn identity(&self) -> Identity {
        self.links[0].identity()
    }

    fn fingerprint(&self) -> Fingerprint {
        self.links[0].fingerprint()
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        self.links[0].facts()
    }

    fn retries(&self) -> u64 {
        self.links.iter().map(Remote::retries).sum()
    }

    fn losses(&self) -> u64 {
        self.links.iter().map(Remote::losses).sum()
    }

    /// The first link's.
    fn tap(&self) -> Option<io::Tap> {
        self.links[0].tap()
    }

    /// The sums of all links, and the connection of the first.
    fn path(&self) -> Option<PathReport> {
        let mut paths = self.links.iter().filter_map(Remote::path);
        let first = paths.next()?;
        let report = paths.fold(first, |sum, path| PathReport {
            bytes_per_s: sum.bytes_per_s.into_iter().chain(path.bytes_per_s).reduce(|a, b| a + b),
            in_flight_max_bytes: sum.in_flight_max_bytes + path.in_flight_max_bytes,
            window_max_commands: sum.window_max_commands + path.window_max_commands,
            rounds_max: sum.rounds_max.max(path.rounds_max),
            is_send_buffer_forced: sum.is_send_buffer_forced || path.is_send_buffer_forced,
            send_buffer_wanted: sum.send_buffer_wanted.max(path.send_buffer_wanted),
            receive_buffer_wanted: sum.receive_buffer_wanted.max(path.receive_buffer_wanted),
            ..sum
        });
        Some(PathReport { sessions: self.serving() as u32, ..report })
    }
}

#[cfg(test)]
mod tests;
