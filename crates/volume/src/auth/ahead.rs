//! Pages of contexts to be read before a sequential reader or writer asks for them: a read beneath waits behind the data
//! that is being written, so that a request that begins to read its page then would wait for a whole batch.

use std::ops::Range;

use super::AHEAD_PAGES_MAX;

/// Sequences that are followed at once.
const STREAMS: usize = 8;
/// A request whose pages begin this near to the end of a sequence belongs to it: requests of one sequence arrive a little
/// out of order.
const NEAR_PAGES: u64 = 32;

struct Stream {
    /// The last page of its requests, and one more.
    end: u64,
    /// Pages up to here were asked for.
    asked: u64,
    /// Pages ahead; grows with the length of the sequence.
    window: u64,
    last_use: u64,
}

#[derive(Default)]
pub(super) struct Ahead {
    streams: Vec<Stream>,
    uses: u64,
}

impl Ahead {
    /// A request needs `pages`. The pages to read ahead of it; some may be known already.
    pub(super) fn follow(&mut self, pages: Range<u64>) -> Range<u64> {
        self.uses += 1;
        let near = |stream: &&mut Stream| stream.end.abs_diff(pages.start) <= NEAR_PAGES;
        let Some(stream) = self.streams.iter_mut().find(near) else {
            self.begin(pages.end);
            return 0..0;
        };
        stream.last_use = self.uses;
        let progress = pages.end.saturating_sub(stream.end);
        stream.end += progress;
        stream.window = (stream.window + progress).min(AHEAD_PAGES_MAX);
        let from = stream.asked.max(stream.end);
        let until = stream.end + stream.window;
        if progress == 0 || from > stream.end + stream.window / 2 {
            return 0..0;
        }
        stream.asked = until;
        from..until
    }

    fn begin(&mut self, end: u64) {
        let stream = Stream { end, asked: end, window: 0, last_use: self.uses };
        if self.streams.len() < STREAMS {
            return self.streams.push(stream);
        }
        let oldest = self.streams.iter_mut().min_by_key(|stream| stream.last_use);
        *oldest.expect("there are streams") = stream;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_asks_for_each_page_once_and_in_time() {
        let mut ahead = Ahead::default();
        let mut asked = 0;
        for page in 0..2000 {
            let pages = ahead.follow(page..page + 1);
            if !pages.is_empty() {
                assert!(pages.start >= asked && pages.start > page, "{pages:?} after {asked} at {page}");
                asked = pages.end;
            }
            assert!(asked <= page + 1 + AHEAD_PAGES_MAX);
            if page > 2 * AHEAD_PAGES_MAX {
                assert!(asked >= page + AHEAD_PAGES_MAX / 2, "{asked} at {page}");
            }
        }
    }

    #[test]
    fn requests_out_of_order_belong_to_the_sequence() {
        let mut ahead = Ahead::default();
        let mut total = 0;
        for number in 0..100_u64 {
            let page = 6 * (number ^ 1);
            let pages = ahead.follow(page..page + 7);
            total += pages.end - pages.start;
        }
        assert!(total > 500, "{total}");
    }

    #[test]
    fn random_requests_and_repeated_ones_ask_for_nothing() {
        let mut ahead = Ahead::default();
        for number in 0..10_000_u64 {
            let page = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24;
            assert!(ahead.follow(page..page + 1).is_empty());
        }
        let mut total = 0;
        for number in 0..10_000_u64 {
            let pages = ahead.follow(500 + number * 7 % 20..521);
            total += pages.end - pages.start;
        }
        assert!(total <= 20, "{total}");
    }
}
