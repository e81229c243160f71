//! Points in the order of time, thinned by bins.

use crate::command::Transfer;

/// A value at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Point {
    pub at_ns: u64,
    pub value: u64,
}

/// Bytes of the stream from `low` to `high`, which passed at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    pub at_ns: u64,
    pub low: u64,
    pub high: u64,
    /// Segments that it stands for; more than 1 only if the track was halved.
    pub segments: u32,
}

/// A command's times, for the picture of all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timed {
    pub at_ns: u64,
    pub transfer: Transfer,
    pub bytes: u64,
    pub ta_ns: u64,
    pub tb_ns: u64,
    pub tc_ns: u64,
    /// From the command to the response's end.
    pub latency_ns: u64,
    pub depth: u32,
    pub r2t_rounds: u32,
}

impl Timed {
    /// Ta, Tb, the rest of the latency (before a write's first data packet, after a read's last), and Tc.
    pub(crate) fn parts_ns(&self) -> [u64; 4] {
        let rest = self.latency_ns.saturating_sub(self.ta_ns).saturating_sub(self.tb_ns);
        [self.ta_ns, self.tb_ns, rest, self.tc_ns]
    }
}

/// What a [`Track`] holds.
pub(super) trait Entry: Copy {
    fn at_ns(&self) -> u64;

    /// Adds an entry of the bin whose entries are `entries[from..]`, so that their extremes remain.
    fn merge(self, entries: &mut Vec<Self>, from: usize);
}

/// Leaves the least and the greatest of at most three entries, in the order of time.
fn merge_extremes<E: Entry>(entry: E, entries: &mut Vec<E>, from: usize, value: impl Fn(&E) -> u64) {
    let &[first, second] = &entries[from..] else {
        entries.push(entry);
        return;
    };
    let (least, most) = if value(&first) <= value(&second) { (first, second) } else { (second, first) };
    let pair = if value(&entry) > value(&most) {
        [least, entry]
    } else if value(&entry) < value(&least) {
        [most, entry]
    } else {
        return;
    };
    entries.truncate(from);
    entries.extend(pair);
}

impl Entry for Point {
    fn at_ns(&self) -> u64 {
        self.at_ns
    }

    fn merge(self, entries: &mut Vec<Self>, from: usize) {
        merge_extremes(self, entries, from, |point| point.value);
    }
}

impl Entry for Timed {
    fn at_ns(&self) -> u64 {
        self.at_ns
    }

    fn merge(self, entries: &mut Vec<Self>, from: usize) {
        merge_extremes(self, entries, from, |timed| timed.latency_ns);
    }
}

impl Entry for Span {
    fn at_ns(&self) -> u64 {
        self.at_ns
    }

    fn merge(self, entries: &mut Vec<Self>, from: usize) {
        let Some(span) = entries.get_mut(from) else {
            entries.push(self);
            return;
        };
        span.low = span.low.min(self.low);
        span.high = span.high.max(self.high);
        span.segments = span.segments.saturating_add(self.segments);
    }
}

/// Entries in the order of arrival. Until the first [`Track::halve`] it holds all.
#[derive(Clone, Debug)]
pub(super) struct Track<E> {
    entries: Vec<E>,
    /// Width of a bin; 0 while all entries are held.
    bin_ns: u64,
    is_thinned: bool,
    /// First entry of the last bin.
    open: usize,
}

impl<E> Default for Track<E> {
    fn default() -> Self {
        Self { entries: Vec::new(), bin_ns: 0, is_thinned: false, open: 0 }
    }
}

impl<E: Entry> Track<E> {
    /// A track that keeps only the extremes of each `bin_ns` from the start.
    pub(super) fn with_bins(bin_ns: u64) -> Self {
        Self { bin_ns, ..Self::default() }
    }

    pub(super) fn last(&self) -> Option<&E> {
        self.entries.last()
    }

    pub(super) fn push(&mut self, entry: E) {
        let bin = entry.at_ns().checked_div(self.bin_ns);
        let open = self.entries.get(self.open).and_then(|first| first.at_ns().checked_div(self.bin_ns));
        if bin.is_none() || bin != open {
            self.open = self.entries.len();
            self.entries.push(entry);
        } else {
            entry.merge(&mut self.entries, self.open);
        }
    }

    /// The entries, sorted by time: packets of a capture may be stamped out of order.
    pub(super) fn take(&mut self) -> Vec<E> {
        let mut entries = std::mem::take(&mut self.entries);
        entries.sort_by_key(Entry::at_ns);
        entries
    }
}

/// A list that a [`super::Collector`] can shorten.
pub(super) trait Thin {
    fn len(&self) -> usize;

    /// Whether it was halved.
    fn is_thinned(&self) -> bool;

    /// Leaves at most half of the entries, and at least the extremes.
    fn halve(&mut self);
}

impl<E: Entry> Thin for Track<E> {
    fn len(&self) -> usize {
        self.entries.len()
    }

    fn is_thinned(&self) -> bool {
        self.is_thinned
    }

    fn halve(&mut self) {
        self.is_thinned = true;
        // Bins merge neighbours: entries that are stamped to and fro would never be.
        self.entries.sort_by_key(Entry::at_ns);
        let most = self.entries.len() / 2;
        self.bin_ns = wider(self.bin_ns, self.entries.iter().map(Entry::at_ns), self.entries.len());
        loop {
            let entries = std::mem::take(&mut self.entries);
            self.open = 0;
            for entry in entries {
                self.push(entry);
            }
            if self.entries.len() <= most.max(2) || self.bin_ns == u64::MAX {
                return;
            }
            self.bin_ns = self.bin_ns.saturating_mul(2);
        }
    }
}

/// The least width of bins that may halve `count` entries at these times: traffic comes in bursts, so that far fewer bins
/// have entries than the period holds.
pub(super) fn wider(bin_ns: u64, times: impl Iterator<Item = u64>, count: usize) -> u64 {
    let (first, last) = times.fold((u64::MAX, 0), |(first, last), at| (first.min(at), last.max(at)));
    let bins = (count as u64).saturating_mul(4).max(1);
    (last.saturating_sub(first) / bins).max(bin_ns.saturating_mul(2)).max(1)
}

/// Sums by bins of equal width from `from_ns`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bins {
    pub from_ns: u64,
    /// A power of two times [`Bins::WIDTH_MIN_NS`].
    pub width_ns: u64,
    pub sums: Vec<u64>,
}

impl Bins {
    pub const WIDTH_MIN_NS: u64 = 1_000_000;

    /// Adds to the bin of a moment. Earlier moments than the first count in the first bin.
    pub(crate) fn add(&mut self, at_ns: u64, value: u64) {
        if self.sums.is_empty() {
            *self = Self { from_ns: at_ns, width_ns: Self::WIDTH_MIN_NS, sums: Vec::new() };
        }
        let since = at_ns.saturating_sub(self.from_ns);
        while since / self.width_ns >= crate::limits::RATE_BINS_MAX as u64 {
            self.width_ns = self.width_ns.saturating_mul(2);
            self.sums = self
                .sums
                .chunks(2)
                .map(|pair| pair.iter().fold(0u64, |sum, part| sum.saturating_add(*part)))
                .collect();
        }
        let index = (since / self.width_ns) as usize;
        if index >= self.sums.len() {
            self.sums.resize(index + 1, 0);
        }
        self.sums[index] = self.sums[index].saturating_add(value);
    }
}
