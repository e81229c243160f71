//! Recognises sequential readers among all reads, and says what to read ahead of each. No I/O here.
//!
//! Each of up to [`STREAMS_MAX`] streams is a sequence of reads of which every one begins where the one before ended.
//! The window of a stream, the bytes ahead of its reader, begins with the length of one read after [`STREAK_MIN`] reads.
//! It grows while the reader has to wait, and stays where data arrives in time: up to what the path is worth it doubles
//! at once, beyond that in trials. A trial doubles the window, and the reader's rate decides whether it stays: storage with
//! a latency of its own is worth more than its path, and what only makes a queue longer is worth nothing. The memory
//! bounds the window, and the bytes that the stream has read: a sequence that breaks off has wasted at most as much.

use std::ops::Range;
use std::time::Duration;

/// Sequences that are followed at a time.
pub(super) const STREAMS_MAX: usize = 16;
/// Reads in sequence, after the first, from which on a stream is read ahead.
const STREAK_MIN: u32 = 2;
/// Parts that a window is read in: with fewer the reader would wait for the rest of a large one.
const WINDOW_PARTS: u64 = 4;
/// A trial has to raise the reader's rate by this factor.
const GAIN_MIN: f64 = 1.25;
/// Periods after a trial without gain until the next one.
const PAUSE_PERIODS: u32 = 16;
/// Longest request of a read ahead.
const CHUNK_BYTES_MAX: u64 = 1 << 20;

/// How a read was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Arrived,
    /// Its bytes are being read ahead: the reader waits.
    Coming,
    Nothing,
}

/// What bounds the window and its parts at the moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) size_bytes: u64,
    /// Bytes that the path is worth; 0: unknown.
    pub(super) path_bytes: u64,
    /// Bytes of memory for all streams.
    pub(super) bytes_max: u64,
    pub(super) transfer_bytes_max: u64,
    pub(super) granularity: u64,
}

/// The present period of a stream beyond what its path is worth: the bytes of two windows, of which the second is
/// measured, since the first was begun under the window of before.
#[derive(Debug, Default)]
struct Period {
    /// `Stream::total` at its start.
    from: u64,
    /// When the measured part began, and `Stream::total` then.
    measured: Option<(Duration, u64)>,
    has_waited: bool,
    /// The rate under the window of before, if this is a trial.
    trial: Option<f64>,
    /// Periods until the next trial.
    pause: u32,
}

#[derive(Debug)]
struct Stream {
    /// End of the last read.
    next: u64,
    /// End of what is read ahead; at least `next`.
    ahead: u64,
    /// Bytes of the last read, and of the whole sequence.
    length: u64,
    total: u64,
    streak: u32,
    /// 0: not read ahead.
    window: u64,
    period: Period,
    /// Time of the last read, in reads.
    used: u64,
}

#[derive(Debug, Default)]
pub(super) struct Streams {
    streams: Vec<Stream>,
    clock: u64,
}

impl Stream {
    fn new(read: &Range<u64>, used: u64) -> Self {
        let length = read.end - read.start;
        let period = Period::default();
        Self { next: read.end, ahead: read.end, length, total: length, streak: 0, window: 0, period, used }
    }

    fn is_continued_by(&self, read: &Range<u64>) -> bool {
        read.start == self.next || (self.next..self.ahead).contains(&read.start)
    }

    fn on_read(&mut self, read: &Range<u64>, found: Found, bounds: &Bounds, now: Duration) {
        let waits = found == Found::Coming || found == Found::Nothing && read.start >= self.ahead;
        self.length = read.end - read.start;
        self.total = self.total.saturating_add(self.length);
        self.streak = self.streak.saturating_add(1);
        self.next = self.next.max(read.end);
        self.ahead = self.ahead.max(self.next);
        // A path shorter than two reads is still worth a read ahead of the present one.
        let path = bounds.path_bytes.max(self.length.saturating_mul(2));
        if self.window == 0 {
            self.window = if self.streak >= STREAK_MIN { self.length } else { 0 };
            self.period = Period { from: self.total, ..Period::default() };
        } else if self.window < path {
            self.window = if waits { self.window.saturating_mul(2).min(path) } else { self.window };
            self.period = Period { from: self.total, ..Period::default() };
        } else {
            self.try_window(waits, bounds.bytes_max.min(self.total), now);
        }
        self.window = self.window.min(bounds.bytes_max).min(self.total);
    }

    /// Takes a read under a window that is at least what the path is worth. `most`: bound of the window.
    fn try_window(&mut self, waits: bool, most: u64, now: Duration) {
        let period = &mut self.period;
        period.has_waited |= waits;
        if self.total - period.from < self.window {
            return;
        }
        let (since, from) = *period.measured.get_or_insert((now, self.total));
        if self.total - from < self.window {
            return;
        }
        let passed = now.saturating_sub(since).as_secs_f64();
        let rate = (self.total - from) as f64 / passed;
        let (mut trial, mut pause) = (None, period.pause.saturating_sub(1));
        match period.trial {
            Some(before) if rate < before * GAIN_MIN => {
                self.window /= 2;
                pause = PAUSE_PERIODS;
            }
            _ if period.has_waited && pause == 0 && passed > 0.0 && self.window <= most / 2 => {
                self.window *= 2;
                trial = Some(rate);
            }
            _ => {}
        }
        self.period = Period { from: self.total, measured: None, has_waited: false, trial, pause };
    }

    fn stop(&mut self) {
        (self.window, self.streak, self.ahead) = (0, 0, self.next);
    }

    fn chunk_bytes(&self, bounds: &Bounds) -> u64 {
        let most = bounds.transfer_bytes_max.min(CHUNK_BYTES_MAX);
        let part = (self.window / WINDOW_PARTS).min(most);
        // Whole reads, so that reads of one length need one chunk each.
        match part / self.length {
            0 => self.length.min(most / bounds.granularity * bounds.granularity),
            reads => reads * self.length,
        }
    }

    fn next_chunk(&self, bounds: &Bounds) -> Option<Range<u64>> {
        let bytes = self.chunk_bytes(bounds);
        let is_wanted = bytes > 0 && self.ahead - self.next + bytes <= self.window;
        let end = self.ahead.saturating_add(bytes).min(bounds.size_bytes);
        (is_wanted && self.ahead < end).then_some(self.ahead..end)
    }
}

impl Streams {
    /// Takes a read of at least one byte. Returns its stream, and whether that number belonged to another sequence
    /// before.
    pub(super) fn on_read(
        &mut self,
        read: &Range<u64>,
        found: Found,
        bounds: &Bounds,
        now: Duration,
    ) -> (usize, bool) {
        self.clock += 1;
        if let Some(number) = self.streams.iter().position(|stream| stream.is_continued_by(read)) {
            self.streams[number].on_read(read, found, bounds, now);
            self.streams[number].used = self.clock;
            return (number, false);
        }
        let stream = Stream::new(read, self.clock);
        if self.streams.len() < STREAMS_MAX {
            self.streams.push(stream);
            return (self.streams.len() - 1, false);
        }
        // Random reads take the place of each other, not of a sequence.
        let least = |(_, stream): &(usize, &Stream)| (stream.window > 0, stream.used);
        let (number, _) = self.streams.iter().enumerate().min_by_key(least).expect("there are STREAMS_MAX");
        self.streams[number] = stream;
        (number, true)
    }

    /// The next bytes to be read ahead for a stream; [`Self::begun`] follows if their read is submitted.
    pub(super) fn next_chunk(&self, stream: usize, bounds: &Bounds) -> Option<Range<u64>> {
        self.streams[stream].next_chunk(bounds)
    }

    pub(super) fn begun(&mut self, stream: usize, chunk: &Range<u64>) {
        self.streams[stream].ahead = chunk.end;
    }

    /// End of the stream's last read: what is before it is of no more use.
    pub(super) fn position(&self, stream: usize) -> u64 {
        self.streams[stream].next
    }

    /// What was read ahead for a stream was not used in time, or could not be read: the stream is to prove itself again.
    pub(super) fn stop(&mut self, stream: usize) {
        self.streams[stream].stop();
    }

    pub(super) fn stop_all(&mut self) {
        self.streams.iter_mut().for_each(Stream::stop);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds {
        size_bytes: 1 << 40,
        path_bytes: u64::MAX,
        bytes_max: 8 << 20,
        transfer_bytes_max: 16 << 20,
        granularity: 512,
    };

    /// Reads `count` times `length` bytes in sequence, each time `found`; returns the chunks that begin meanwhile.
    fn read(
        streams: &mut Streams,
        count: u64,
        length: u64,
        found: Found,
        bounds: &Bounds,
    ) -> Vec<Range<u64>> {
        let mut chunks = Vec::new();
        for number in 0..count {
            let read = number * length..(number + 1) * length;
            let (stream, _) = streams.on_read(&read, found, bounds, Duration::ZERO);
            while let Some(chunk) = streams.next_chunk(stream, bounds) {
                streams.begun(stream, &chunk);
                chunks.push(chunk);
            }
        }
        chunks
    }

    #[test]
    fn the_window_begins_with_one_read_and_doubles_while_the_reader_waits() {
        let mut streams = Streams::default();
        let chunks = read(&mut streams, 2, 4096, Found::Nothing, &BOUNDS);
        assert_eq!(chunks, [], "no sequence yet");
        for (reads, window) in [(3, 1), (4, 2), (5, 4), (6, 6), (7, 7)] {
            let mut streams = Streams::default();
            read(&mut streams, reads, 4096, Found::Coming, &BOUNDS);
            assert_eq!(streams.streams[0].window, window * 4096, "{reads} reads");
        }
    }

    #[test]
    fn a_reader_that_does_not_wait_is_far_enough_behind() {
        let mut streams = Streams::default();
        read(&mut streams, 1000, 4096, Found::Arrived, &BOUNDS);
        assert_eq!(streams.streams[0].window, 4096);
    }

    #[test]
    fn the_window_is_bounded_by_the_path_and_by_the_memory() {
        for (path_bytes, bytes_max, window) in [
            (u64::MAX, 8 << 20, 8 << 20),
            (1 << 20, 8 << 20, 1 << 20),
            (0, 8 << 20, 128 << 10),
            (1 << 20, 4096, 4096),
        ] {
            let bounds = Bounds { path_bytes, bytes_max, ..BOUNDS };
            let mut streams = Streams::default();
            read(&mut streams, 1000, 64 << 10, Found::Coming, &bounds);
            assert_eq!(streams.streams[0].window, window, "{path_bytes} {bytes_max}");
            let ahead = streams.streams[0].ahead - streams.streams[0].next;
            assert!(ahead <= window, "{ahead} ahead");
        }
    }

    #[test]
    fn chunks_are_whole_reads_in_sequence_up_to_the_end() {
        for length in [512, 4096, 24 << 10, 64 << 10, 3 << 20] {
            let bounds = Bounds { size_bytes: 1000 * length + 512, ..BOUNDS };
            let mut streams = Streams::default();
            let chunks = read(&mut streams, 1000, length, Found::Coming, &bounds);
            let mut at = 3 * length;
            for chunk in &chunks {
                let bytes = chunk.end - chunk.start;
                assert_eq!(chunk.start, at);
                assert!(bytes <= CHUNK_BYTES_MAX && bytes.is_multiple_of(512), "{chunk:?}");
                let is_whole = bytes.is_multiple_of(length) || length > CHUNK_BYTES_MAX;
                assert!(is_whole || chunk.end == bounds.size_bytes, "{chunk:?} for reads of {length}");
                at = chunk.end;
            }
            assert_eq!(at, bounds.size_bytes);
        }
    }

    #[test]
    fn a_sequence_among_random_reads_is_followed() {
        let mut streams = Streams::default();
        let mut ahead = 0;
        for number in 0..1000u64 {
            let read = number * 512..(number + 1) * 512;
            let (stream, _) = streams.on_read(&read, Found::Coming, &BOUNDS, Duration::ZERO);
            while let Some(chunk) = streams.next_chunk(stream, &BOUNDS) {
                streams.begun(stream, &chunk);
                ahead = chunk.end;
            }
            // Before the stream is read ahead, random reads may take its place.
            let others = if number < 10 { 10 } else { 100 };
            for other in 0..others {
                let at = (1 << 30) + (number * 100 + other) * 4096;
                streams.on_read(&(at..at + 512), Found::Nothing, &BOUNDS, Duration::ZERO);
            }
        }
        assert!(ahead > 1000 * 512, "{ahead}");
    }

    #[test]
    fn a_stream_that_was_stopped_begins_again() {
        let mut streams = Streams::default();
        read(&mut streams, 100, 4096, Found::Coming, &BOUNDS);
        streams.stop(0);
        assert_eq!(streams.next_chunk(0, &BOUNDS), None);
        for (number, window) in [(100, 0), (101, 1)] {
            let read = number * 4096..(number + 1) * 4096;
            streams.on_read(&read, Found::Nothing, &BOUNDS, Duration::ZERO);
            assert_eq!(streams.streams[0].window, window * 4096);
        }
    }

    /// Storage that executes each request `latency` after it has begun and answers with `rate` bytes per second, and a
    /// reader with one request outstanding. Returns the reader's rate and its window at the end.
    fn run(latency: f64, rate: f64, bounds: &Bounds) -> (f64, u64) {
        let (mut streams, mut chunks, length) =
            (Streams::default(), Vec::<(Range<u64>, f64)>::new(), 64 << 10);
        let (mut now, mut free_at, mut middle) = (0.0f64, 0.0f64, 0.0);
        let reads = 8000;
        let mut arrival = |now: f64, bytes: u64| {
            free_at = free_at.max(now + latency) + bytes as f64 / rate;
            free_at
        };
        for number in 0..reads {
            if number == reads / 2 {
                middle = now;
            }
            let read = number * length..(number + 1) * length;
            let at = chunks.iter().find(|(chunk, _)| chunk.contains(&read.start)).map(|(_, at)| *at);
            let found = match at {
                Some(at) if at <= now => Found::Arrived,
                Some(_) => Found::Coming,
                None => Found::Nothing,
            };
            let at = at.unwrap_or_else(|| arrival(now, length));
            let (stream, _) = streams.on_read(&read, found, bounds, Duration::from_secs_f64(now));
            while let Some(chunk) = streams.next_chunk(stream, bounds) {
                streams.begun(stream, &chunk);
                let at = arrival(now, chunk.end - chunk.start);
                chunks.push((chunk, at));
            }
            chunks.retain(|(chunk, _)| chunk.end > read.start);
            // What the reader does between two reads takes time too.
            now = now.max(at) + 20e-6;
        }
        ((reads / 2 * length) as f64 / (now - middle), streams.streams[0].window)
    }

    #[test]
    fn beyond_the_path_the_window_grows_only_while_that_helps() {
        let (reached, window) = run(50e-3, 1e9, &Bounds { path_bytes: 0, ..BOUNDS });
        assert!(window > BOUNDS.bytes_max / 2, "{reached:e} with a window of {window}");
        for (latency, rate, path_bytes) in [
            (50e-3, 1e9, 0),
            (50e-3, 100e6, 0),
            (5e-3, 117e6, 10_000),
            (200e-6, 117e6, 50_000),
            (50e-3, 117e6, 12 << 20),
        ] {
            let (reached, window) = run(latency, rate, &Bounds { path_bytes, bytes_max: 64 << 20, ..BOUNDS });
            assert!(reached > 0.8 * rate, "{latency} s, {rate:e}: {reached:e}");
            let worth = (8.0 * rate * latency) as u64 + (1 << 20);
            assert!(window <= worth.max(path_bytes), "{latency} s, {rate:e}: a window of {window}");
        }
    }
}
