//! Requests of an endpoint whose other end may be lost and found again: in which order they are sent, what is sent again after
//! a lost connection, and how long nothing has ended.
//!
//! Of endpoints behind iSCSI sessions (`node`) and NBD connections (`nbd`). No clock and no I/O: loop time is an argument, and
//! what carries a request is a task, known by the number that its protocol gave it. Not here: whether what was acknowledged
//! survived ([`crate::WriteCache`]), and whether to connect again.

use std::collections::VecDeque;
use std::time::Duration;

use slab::Slab;

use crate::{Completion, IoError, Kind, Mark, Request, RequestId};

/// A request under way.
#[derive(Debug)]
pub struct Work<N> {
    id: RequestId,
    /// Place in the order of submission.
    sequence: u64,
    /// What is asked for.
    pub kind: Kind,
    /// Bytes that are done, for requests that take several tasks.
    pub done: u64,
    /// When it was submitted, as far as the cache is concerned.
    pub mark: Mark,
    /// What its protocol has to remember of it.
    pub note: N,
}

/// What a task is for.
#[derive(Debug)]
pub enum Run<Q> {
    /// So many bytes of a request; a flush has none.
    Work {
        /// The request.
        key: usize,
        /// Bytes of it that are done when this ends well.
        bytes: u64,
    },
    /// Something that the endpoint itself wants to know. It is not sent again.
    Question(Q),
}

/// Connections in a row that may end no request and still count as progress.
const BARREN_MAX: u32 = 3;

/// The requests of one endpoint. A key is one request's from [`Backlog::push`] until it is finished, failed or removed.
#[derive(Debug)]
pub struct Backlog<N, Q> {
    works: Slab<Work<N>>,
    /// To be sent, in order.
    queue: VecDeque<usize>,
    /// To be sent again at a time.
    later: VecDeque<(Duration, usize)>,
    /// By the task's number.
    running: Vec<Option<Run<Q>>>,
    sequence: u64,
    /// When something was last done, or nothing was to do.
    progress: Duration,
    /// Connections since a request last ended.
    barren: u32,
    retries: u64,
}

impl<N: Default, Q> Backlog<N, Q> {
    /// Nothing to do at `now`.
    pub fn new(now: Duration) -> Self {
        Self {
            works: Slab::new(),
            queue: VecDeque::new(),
            later: VecDeque::new(),
            running: Vec::new(),
            sequence: 0,
            progress: now,
            barren: 0,
            retries: 0,
        }
    }

    /// Whether every request has ended.
    pub fn is_empty(&self) -> bool {
        self.works.is_empty()
    }

    /// Requests that have not.
    pub fn len(&self) -> usize {
        self.works.len()
    }

    /// A new request, behind all others.
    pub fn push(&mut self, request: Request, mark: Mark, now: Duration) {
        if self.works.is_empty() {
            self.progress = now;
        }
        self.sequence += 1;
        let Request { id, kind } = request;
        let work = Work { id, sequence: self.sequence, kind, done: 0, mark, note: N::default() };
        self.queue.push_back(self.works.insert(work));
    }

    /// The request that is to be sent next.
    pub fn pop(&mut self) -> Option<usize> {
        self.queue.pop_front()
    }

    /// It is to be sent next: it could not be, or there is more of it.
    pub fn again(&mut self, key: usize) {
        self.queue.push_front(key);
    }

    /// It is to be sent again at `at`.
    pub fn again_at(&mut self, key: usize, at: Duration) {
        self.later.push_back((at, key));
    }

    /// Takes up what has waited until `now`.
    pub fn on_time(&mut self, now: Duration) {
        while let Some((_, key)) = self.later.pop_front_if(|(at, _)| *at <= now) {
            self.queue.push_front(key);
        }
    }

    /// A request under way.
    pub fn get(&self, key: usize) -> &Work<N> {
        &self.works[key]
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, key: usize) -> &mut Work<N> {
        &mut self.works[key]
    }

    /// Something of it was sent as this task.
    pub fn started(&mut self, task: usize, run: Run<Q>) {
        if self.running.len() <= task {
            self.running.resize_with(task + 1, || None);
        }
        self.running[task] = Some(run);
    }

    /// What the task that has ended was for.
    pub fn ended(&mut self, task: usize) -> Option<Run<Q>> {
        self.running.get_mut(task)?.take()
    }

    /// Tasks that have not ended.
    pub fn running(&self) -> impl Iterator<Item = &Run<Q>> {
        self.running.iter().flatten()
    }

    /// The other end has done something: a part of a request, or nothing was to do.
    pub fn progressed(&mut self, now: Duration) {
        if self.barren <= BARREN_MAX {
            self.progress = now;
        }
    }

    /// There is a new connection. It counts as progress, unless more than three of them in a row have ended no request: a host that cuts
    /// every connection would keep the requests for ever. False then: the next pause is longer, too.
    pub fn connected(&mut self, now: Duration) -> bool {
        if self.works.is_empty() {
            self.barren = 0;
        }
        self.barren += 1;
        self.progressed(now);
        self.barren <= BARREN_MAX
    }

    /// How long it has not.
    pub fn waited(&self, now: Duration) -> Duration {
        now.saturating_sub(self.progress)
    }

    /// A request has ended.
    pub fn finish(
        &mut self,
        key: usize,
        result: Result<(), IoError>,
        now: Duration,
        done: &mut Vec<Completion>,
    ) {
        (self.progress, self.barren) = (now, 0);
        let work = self.works.remove(key);
        done.push(Completion { id: work.id, result });
    }

    /// The connection is gone: what was not answered is sent again before all that came later, in its first order.
    pub fn lost(&mut self) {
        let mut keys: Vec<usize> = self.queue.drain(..).collect();
        keys.extend(self.later.drain(..).map(|(_, key)| key));
        for run in self.running.drain(..).flatten() {
            if let Run::Work { key, .. } = run {
                self.retries += 1;
                keys.push(key);
            }
        }
        keys.sort_by_key(|key| self.works[*key].sequence);
        for key in &keys {
            // A durable write that waits only for its flush: the other end may have forgotten it.
            if let Work { kind: Kind::Write { .. }, done, .. } = &mut self.works[*key] {
                *done = 0;
            }
        }
        self.queue.extend(keys);
    }

    /// Ends all of them. Nobody may hold their buffers any more.
    pub fn fail(&mut self, error: &IoError, now: Duration, done: &mut Vec<Completion>) {
        self.queue.clear();
        self.later.clear();
        self.running.clear();
        (self.progress, self.barren) = (now, 0);
        let works = std::mem::take(&mut self.works).into_iter();
        done.extend(works.map(|(_, work)| Completion { id: work.id, result: Err(error.clone()) }));
    }

    /// Tasks that were sent again.
    pub fn retries(&self) -> u64 {
        self.retries
    }
}

/// How long to wait before the next attempt to connect again.
#[derive(Clone, Copy, Debug)]
pub struct Backoff(Duration);

impl Backoff {
    /// Before the first attempt.
    pub const MIN: Duration = Duration::from_millis(100);
    /// Before every later one, at most.
    pub const MAX: Duration = Duration::from_secs(2);

    /// The pause before an attempt. The next one is longer.
    pub fn pause(&mut self) -> Duration {
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

    fn backlog(kinds: Vec<Kind>) -> Backlog<u32, &'static str> {
        let mut backlog = Backlog::new(Duration::ZERO);
        for (id, kind) in kinds.into_iter().enumerate() {
            backlog.push(Request { id: id as u64, kind }, Mark::default(), NOW);
        }
        backlog
    }

    fn flushes(count: usize) -> Backlog<u32, &'static str> {
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
    fn send(backlog: &mut Backlog<u32, &'static str>, task: usize, bytes: u64) -> usize {
        let key = backlog.pop().unwrap();
        backlog.started(task, Run::Work { key, bytes });
        key
    }

    /// Takes all that waits to be sent; the number of each, and what of it is done.
    fn queued(backlog: &mut Backlog<u32, &'static str>) -> Vec<(u64, u64)> {
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
        assert!(matches!(backlog.ended(0), Some(Run::Work { key, .. }) if key == keys[1]));
        backlog.finish(keys[1], Ok(()), NOW, &mut done);
        assert!(matches!(backlog.ended(1), Some(Run::Work { key, .. }) if key == keys[3]));
        backlog.again_at(keys[3], NOW * 2);
        backlog.started(7, Run::Question("what are you?"));
        assert_eq!(backlog.running().count(), 3);
        backlog.lost();
        assert_eq!((backlog.retries(), backlog.running().count()), (2, 0), "a question is not asked again");
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
