//! Requests of a reconnecting endpoint: order, repetition after a lost connection, time since the last progress.
//!
//! No clock and no I/O: loop time is an argument. A request is sent as commands, which the protocol numbers. Not here:
//! whether acknowledged writes survived ([`super::WriteCache`]), and whether to connect again.

use std::collections::VecDeque;
use std::time::Duration;

use slab::Slab;

use super::{Effect, Mark};
use crate::{Completion, IoError, Kind, Request, RequestId};

#[derive(Debug)]
pub(super) struct Work {
    id: RequestId,
    /// Position in the order of submission.
    sequence: u64,
    pub(super) kind: Kind,
    /// Bytes that are done; a request may take several commands.
    pub(super) done: u64,
    /// A command of it was given to a connection, which may still carry it out.
    was_sent: bool,
    /// The cache's counters at submission.
    pub(super) mark: Mark,
    pub(super) step: Effect,
    /// Consecutive [`super::Verdict::Again`] of its commands.
    pub(super) repeats: u32,
}

/// Consecutive connections without an ended request that still count as progress.
const BARREN_MAX: u32 = 3;

/// The requests of one endpoint. A key names one request from [`Backlog::push`] until it is finished or failed.
///
/// A request is either in the queue, or deferred to a time, or in flight as one command. The caller of [`Backlog::pop`]
/// continues with [`Backlog::started`], [`Backlog::again`], [`Backlog::again_at`] or [`Backlog::finish`].
#[derive(Debug)]
pub(super) struct Backlog {
    works: Slab<Work>,
    /// To be sent, in this order.
    queue: VecDeque<usize>,
    /// Deferred until a time.
    later: VecDeque<(Duration, usize)>,
    /// The request that each command belongs to, by the command's number.
    running: Vec<Option<usize>>,
    sequence: u64,
    /// Time of the last progress, or of the first push into an empty backlog.
    progress: Duration,
    barren: u32,
    retries: u64,
    /// Bytes of the reads and writes that have not ended.
    bytes: u64,
}

/// Bytes that a request moves over the network.
fn bytes_of(kind: &Kind) -> u64 {
    match kind {
        Kind::Read { into: span, .. } | Kind::Write { from: span, .. } => span.len() as u64,
        Kind::Flush | Kind::Discard { .. } | Kind::WriteZeroes { .. } => 0,
    }
}

impl Backlog {
    pub(super) fn new(now: Duration) -> Self {
        Self {
            works: Slab::new(),
            queue: VecDeque::new(),
            later: VecDeque::new(),
            running: Vec::new(),
            sequence: 0,
            progress: now,
            barren: 0,
            retries: 0,
            bytes: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.works.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.works.len()
    }

    pub(super) fn push(&mut self, request: Request, mark: Mark, now: Duration) {
        if self.works.is_empty() {
            self.progress = now;
        }
        self.sequence += 1;
        let Request { id, kind } = request;
        self.bytes += bytes_of(&kind);
        let (sequence, step) = (self.sequence, Effect::default());
        let work = Work { id, sequence, kind, done: 0, was_sent: false, mark, step, repeats: 0 };
        self.queue.push_back(self.works.insert(work));
    }

    pub(super) fn pop(&mut self) -> Option<usize> {
        self.queue.pop_front()
    }

    /// Puts a request first in the queue: it was not sent, or another command of it follows.
    pub(super) fn again(&mut self, key: usize) {
        self.queue.push_front(key);
    }

    /// Defers a request whose command was answered, and not carried out.
    pub(super) fn again_at(&mut self, key: usize, at: Duration) {
        self.works[key].was_sent = false;
        self.later.push_back((at, key));
    }

    /// Puts deferred requests whose time has come first in the queue.
    pub(super) fn on_time(&mut self, now: Duration) {
        while let Some((_, key)) = self.later.pop_front_if(|(at, _)| *at <= now) {
            self.queue.push_front(key);
        }
    }

    pub(super) fn get(&self, key: usize) -> &Work {
        &self.works[key]
    }

    pub(super) fn get_mut(&mut self, key: usize) -> &mut Work {
        &mut self.works[key]
    }

    pub(super) fn started(&mut self, task: usize, key: usize, step: Effect) {
        if self.running.len() <= task {
            self.running.resize(task + 1, None);
        }
        self.running[task] = Some(key);
        let work = &mut self.works[key];
        (work.step, work.was_sent) = (step, true);
    }

    pub(super) fn ended(&mut self, task: usize) -> Option<usize> {
        self.running.get_mut(task)?.take()
    }

    pub(super) fn progressed(&mut self, now: Duration) {
        if self.barren <= BARREN_MAX {
            self.progress = now;
        }
    }

    /// Records a new connection. It counts as progress (true) unless more than [`BARREN_MAX`] consecutive ones have ended
    /// no request: with a host that cuts every connection, requests would otherwise never time out.
    pub(super) fn connected(&mut self, now: Duration) -> bool {
        if self.works.is_empty() {
            self.barren = 0;
        }
        self.barren += 1;
        self.progressed(now);
        self.barren <= BARREN_MAX
    }

    pub(super) fn waited(&self, now: Duration) -> Duration {
        now.saturating_sub(self.progress)
    }

    /// Ends a request that is in no queue.
    pub(super) fn finish(
        &mut self,
        key: usize,
        result: Result<(), IoError>,
        now: Duration,
        done: &mut Vec<Completion>,
    ) {
        (self.progress, self.barren) = (now, 0);
        let work = self.works.remove(key);
        self.bytes -= bytes_of(&work.kind);
        done.push(Completion { id: work.id, result });
    }

    /// Takes back the requests of which no connection may carry out a command, in the order of submission. Flushes stay.
    pub(super) fn take_unsent(&mut self) -> Vec<Request> {
        let works = &self.works;
        let stays = |key: &usize| works[*key].was_sent || matches!(works[*key].kind, Kind::Flush);
        let waiting = self.queue.iter().chain(self.later.iter().map(|(_, key)| key));
        let mut unsent: Vec<usize> = waiting.copied().filter(|key| !stays(key)).collect();
        unsent.sort_by_key(|key| works[*key].sequence);
        self.queue.retain(stays);
        self.later.retain(|(_, key)| stays(key));
        let taken = unsent.into_iter().map(|key| self.works.remove(key));
        let requests: Vec<_> = taken.map(|work| Request { id: work.id, kind: work.kind }).collect();
        self.bytes -= requests.iter().map(|request| bytes_of(&request.kind)).sum::<u64>();
        requests
    }

    /// Whether a connection was given a command of a write that has not ended.
    pub(super) fn has_sent_writes(&self) -> bool {
        self.works.iter().any(|(_, work)| work.was_sent && work.kind.is_write())
    }

    /// Bytes of the reads and writes that have not ended.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// After a lost connection: all unanswered requests are queued again, in the order of submission.
    pub(super) fn lost(&mut self) {
        let mut keys: Vec<usize> = self.queue.drain(..).collect();
        keys.extend(self.later.drain(..).map(|(_, key)| key));
        let queued = keys.len();
        keys.extend(self.running.drain(..).flatten());
        self.retries += (keys.len() - queued) as u64;
        keys.sort_by_key(|key| self.works[*key].sequence);
        for key in &keys {
            // The server may have lost the data of a durable write whose flush was pending: it is written again.
            if let Work { kind: Kind::Write { .. }, done, .. } = &mut self.works[*key] {
                *done = 0;
            }
        }
        self.queue.extend(keys);
    }

    /// Fails every request. No connection may use a buffer of one any more.
    pub(super) fn fail(&mut self, error: &IoError, now: Duration, done: &mut Vec<Completion>) {
        self.queue.clear();
        self.later.clear();
        self.running.clear();
        (self.progress, self.barren, self.bytes) = (now, 0, 0);
        let works = std::mem::take(&mut self.works).into_iter();
        done.extend(works.map(|(_, work)| Completion { id: work.id, result: Err(error.clone()) }));
    }

    /// Number of commands lost with their connection.
    pub(super) fn retries(&self) -> u64 {
        self.retries
    }
}

/// The pauses between attempts to connect: each twice as long as the one before, up to [`Backoff::MAX`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Backoff(Duration);

impl Backoff {
    pub(super) const MIN: Duration = Duration::from_millis(100);
    pub(super) const MAX: Duration = Duration::from_secs(2);

    pub(super) fn pause(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(Self::MAX);
        pause
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self(Self::MIN)
    }
}

#[cfg(test)]
mod tests {
    use area::{Pool, PoolLimits};

    use super::*;
    use crate::IoErrorKind;

    const NOW: Duration = Duration::from_secs(7);

    fn backlog(kinds: Vec<Kind>) -> Backlog {
        let mut backlog = Backlog::new(Duration::ZERO);
        for (id, kind) in kinds.into_iter().enumerate() {
            backlog.push(Request { id: id as u64, kind }, Mark::default(), NOW);
        }
        backlog
    }

    fn flushes(count: usize) -> Backlog {
        backlog((0..count).map(|_| Kind::Flush).collect())
    }

    #[test]
    fn connections_that_end_no_request_count_as_progress_only_a_few_times() {
        let mut backlog = flushes(2);
        let at = |seconds: u32| NOW + Duration::from_secs(1) * seconds;
        for seconds in 1..=BARREN_MAX {
            assert!(backlog.connected(at(seconds)));
        }
        let last = at(BARREN_MAX);
        for seconds in 10..20 {
            assert!(!backlog.connected(at(seconds)));
            backlog.progressed(at(seconds));
            assert_eq!(backlog.waited(at(seconds)), at(seconds) - last);
        }
        let mut done = Vec::new();
        let key = backlog.pop().unwrap();
        backlog.finish(key, Ok(()), at(20), &mut done);
        assert!(backlog.connected(at(21)) && backlog.waited(at(21)).is_zero());
    }

    /// Sends the next one as `task`.
    fn send(backlog: &mut Backlog, task: usize, bytes: u64) -> usize {
        let key = backlog.pop().unwrap();
        backlog.started(task, key, Effect { bytes, ..Effect::default() });
        key
    }

    fn running(backlog: &Backlog) -> usize {
        backlog.running.iter().flatten().count()
    }

    /// Takes all that waits to be sent; the number of each, and what of it is done.
    fn queued(backlog: &mut Backlog) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        while let Some(key) = backlog.pop() {
            let work = backlog.get(key);
            found.push((work.id, work.done));
        }
        found
    }

    #[test]
    fn what_was_not_answered_is_sent_again_in_its_first_order() {
        let mut backlog = flushes(6);
        // Tasks get other numbers than requests; the fourth was sent, refused for now, and waits; the second has ended.
        let keys: Vec<usize> = [5, 0, 3, 1].map(|task| send(&mut backlog, task, 0)).to_vec();
        let mut done = Vec::new();
        assert_eq!(backlog.ended(0), Some(keys[1]));
        backlog.finish(keys[1], Ok(()), NOW, &mut done);
        assert_eq!(backlog.ended(1), Some(keys[3]));
        backlog.again_at(keys[3], NOW * 2);
        assert_eq!(running(&backlog), 2);
        backlog.lost();
        assert_eq!((backlog.retries(), running(&backlog)), (2, 0));
        assert!(backlog.ended(5).is_none(), "what the old connection says no longer counts");
        assert_eq!(queued(&mut backlog), [0, 2, 3, 4, 5].map(|id| (id, 0)));
        assert_eq!(done.iter().map(|completion| completion.id).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn a_write_begins_anew_after_a_loss_and_a_read_goes_on() {
        let pool = Pool::new(PoolLimits::default());
        let span = pool.take(8192).unwrap();
        let write = Kind::Write { offset: 0, from: span.clone(), durable: true };
        let mut backlog = backlog(vec![write, Kind::Read { offset: 0, into: span }]);
        for task in [0, 1] {
            let key = send(&mut backlog, task, 4096);
            backlog.get_mut(key).done += 4096;
        }
        backlog.lost();
        assert_eq!(queued(&mut backlog), [(0, 0), (1, 4096)]);
    }

    #[test]
    fn what_waits_for_a_time_goes_first_when_it_has_come() {
        let mut backlog = flushes(3);
        let key = backlog.pop().unwrap();
        backlog.again_at(key, NOW + Duration::from_millis(50));
        backlog.on_time(NOW);
        assert_eq!(backlog.pop().map(|key| backlog.get(key).id), Some(1));
        backlog.on_time(NOW + Duration::from_millis(50));
        assert_eq!(queued(&mut backlog), [(0, 0), (2, 0)]);
    }

    #[test]
    fn nothing_is_left_after_a_failure_and_time_counts_from_the_first_request() {
        let mut backlog = flushes(2);
        assert_eq!(backlog.waited(NOW * 2), NOW, "idle before does not count");
        send(&mut backlog, 0, 0);
        let mut done = Vec::new();
        backlog.fail(&IoError::new(IoErrorKind::Unreachable, "gone"), NOW * 2, &mut done);
        assert!(backlog.is_empty() && backlog.pop().is_none());
        assert!(backlog.ended(0).is_none());
        assert!(done.iter().all(|completion| completion.result.is_err()) && done.len() == 2);
        assert_eq!(backlog.waited(NOW * 3), NOW);
    }

    #[test]
    fn attempts_come_at_longer_and_longer_distances() {
        let mut backoff = Backoff::default();
        let pauses: Vec<u128> = (0..7).map(|_| backoff.pause().as_millis()).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 2000, 2000]);
    }
}
