//! `--dry-run`: estimates how long a copy takes, without writing.
//!
//! The estimate counts the source's holes and reads [`PLACES`] places of its data for [`PLACE_TIME`] each, with the
//! copy engine and a null destination. The result is a lower bound: the write rate of the destination is unknown until
//! it is written.

use std::time::{Duration, Instant};

use block::{Endpoint, Medium, NullMedium};
use io::Io;
use mover::{Checked, Control, CopyError, Plan, RateLimit};
use serde_json::{Value, json};

use crate::units;

/// Number of sampled places and the time for each. Sampling ends [`TIME_MAX`] after its start, requests included.
const PLACES: u64 = 4;
const PLACE_TIME: Duration = Duration::from_millis(200);
const TIME_MAX: Duration = Duration::from_secs(1);
/// Bounds of the extents query to the source.
pub(crate) const EXTENTS_MAX: usize = 100_000;
pub(crate) const EXTENTS_TIME_MAX: Duration = Duration::from_millis(500);
/// Sampled places begin at multiples of this, in bytes.
const UNIT: u64 = 1 << 20;

#[derive(Debug, Default)]
pub struct Estimate {
    /// Bytes to read, and bytes that the source reports as holes.
    data_bytes: u64,
    hole_bytes: u64,
    /// The extents query ended at a bound: holes behind that point count as data.
    is_partial: bool,
    sampled_bytes: u64,
    /// Bytes per second at the slowest and at the fastest place.
    rates: Option<[f64; 2]>,
    rate_limit: Option<u64>,
    verify: bool,
    /// The error of the last place that could not be read.
    unreadable: Option<String>,
}

/// Queries the extents of the source and reads samples of it. `checked` is the copy to estimate.
pub(crate) fn estimate(io: &mut Io, source: &mut dyn Endpoint, plan: &Plan, checked: &Checked) -> Estimate {
    let mut estimate = Estimate { rate_limit: plan.rate.get(), verify: plan.verify, ..Estimate::default() };
    let range = [plan.src_offset, plan.src_offset + checked.bytes];
    let data = estimate.look(source, range, plan.sparse);
    let began = Instant::now();
    for place in 0..PLACES {
        if began.elapsed() >= TIME_MAX || estimate.data_bytes == 0 {
            break;
        }
        // Finds the extent with the data byte that `before` data bytes precede, and reads from there to the end of the
        // extent.
        let mut before = estimate.data_bytes / PLACES * place;
        let Some([start, end]) = data.iter().copied().find(|[start, end]| {
            let is_here = before < end - start;
            before = if is_here { before } else { before - (end - start) };
            is_here
        }) else {
            break;
        };
        let start = ((start + before) / UNIT * UNIT).max(start);
        let size = (end - start).min(estimate.data_bytes.div_ceil(PLACES).next_multiple_of(UNIT));
        let part = Plan { src_offset: start, size: Some(size), ..plan.clone() };
        match read(io, source, &part) {
            Ok((bytes, seconds)) => {
                estimate.sampled_bytes += bytes;
                let rate = bytes as f64 / seconds.max(1e-6);
                let [least, most] = estimate.rates.unwrap_or([rate; 2]);
                estimate.rates = Some([least.min(rate), most.max(rate)]);
            }
            Err(error) => estimate.unreadable = Some(error),
        }
    }
    estimate
}

/// Reads the range of `part` for at most [`PLACE_TIME`]. Returns the bytes read and the seconds it took.
fn read(io: &mut Io, source: &mut dyn Endpoint, part: &Plan) -> Result<(u64, f64), String> {
    let medium = NullMedium::new(source.capability().size_bytes, false);
    let mut nothing = medium.attach(io).map_err(|error| error.to_string())?;
    let plan = Plan {
        dst_offset: 0,
        verify: false,
        rate: RateLimit::default(),
        sparse: false,
        allow_block_size: true,
        ..part.clone()
    };
    let began = Instant::now();
    let mut observer = |now: &mover::Progress| {
        let is_enough = now.bytes > 0 && began.elapsed() >= PLACE_TIME;
        if is_enough || began.elapsed() >= TIME_MAX { Control::Stop } else { Control::Continue }
    };
    match mover::copy(io, source, &mut *nothing, &plan, &mut observer) {
        Ok(report) => Ok((report.bytes, report.seconds)),
        // The engine has waited for the requests in flight.
        Err(CopyError::Interrupted { bytes_safe, .. }) => Ok((bytes_safe, began.elapsed().as_secs_f64())),
        Err(error) => Err(error.to_string()),
    }
}

impl Estimate {
    /// Data extents in a range of the source, as the source reports them.
    fn look(&mut self, source: &mut dyn Endpoint, [start, end]: [u64; 2], sparse: bool) -> Vec<[u64; 2]> {
        let (mut at, mut count, began) = (start, 0, Instant::now());
        let mut data: Vec<[u64; 2]> = Vec::new();
        while at < end {
            self.is_partial = count >= EXTENTS_MAX || began.elapsed() >= EXTENTS_TIME_MAX;
            let extent = source.extent(at);
            let is_data = extent.data || !sparse || self.is_partial;
            let stop = if self.is_partial || !sparse { end } else { extent.end.clamp(at + 1, end) };
            match data.last_mut() {
                Some(last) if is_data && last[1] == at => last[1] = stop,
                _ if is_data => data.push([at, stop]),
                _ => self.hole_bytes += stop - at,
            }
            (at, count) = (stop, count + 1);
        }
        self.data_bytes = data.iter().map(|[start, end]| end - start).sum();
        data
    }

    /// Seconds of reading at the fastest and at the slowest measured rate; `--rate` bounds both.
    fn reading(&self) -> Option<[f64; 2]> {
        if self.data_bytes == 0 {
            return Some([0.0; 2]);
        }
        let least = self.rate_limit.map_or(0.0, |rate| self.data_bytes as f64 / rate as f64);
        let [slow, fast] = self.rates.filter(|rates| rates[0] > 0.0)?;
        Some([fast, slow].map(|rate| (self.data_bytes as f64 / rate).max(least)))
    }

    fn unknown(&self) -> Vec<String> {
        let mut unknown = vec!["how fast the destination writes".to_owned()];
        if self.verify {
            unknown.push("how fast it is read back".to_owned());
        }
        unknown.push("how much of the data is zeroes".to_owned());
        if self.is_partial {
            unknown.push("holes beyond the first queries".to_owned());
        }
        unknown.extend(self.unreadable.iter().map(|error| format!("what cannot be read ({error})")));
        unknown
    }

    pub fn object(&self) -> Value {
        let rounded = |pair: [f64; 2]| pair.map(units::rounded);
        let reading = self.reading();
        json!({
            "data_bytes": self.data_bytes,
            "hole_bytes": self.hole_bytes,
            "sampled_bytes": self.sampled_bytes,
            "read_mb_per_s": self.rates.map(|rates| rounded(rates.map(|rate| rate / 1e6))),
            "seconds_reading": reading.map(rounded),
            "seconds_at_least": reading.map(|[fast, _]| units::rounded(fast)),
            "unknown": self.unknown(),
        })
    }

    pub fn sentences(&self) -> String {
        let mut text = format!("{} of data", units::bytes(self.data_bytes));
        if self.hole_bytes > 0 {
            text += &format!(", {} of holes", units::bytes(self.hole_bytes));
        }
        let duration =
            |seconds: f64| units::duration(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX));
        match (self.reading(), self.rates) {
            (Some([fast, slow]), Some([low, high])) => {
                text += &format!(
                    "; at least {}: reading alone takes {} to {} ({} to {}, by {} read at a few places)",
                    duration(fast),
                    duration(fast),
                    duration(slow),
                    units::rate(low),
                    units::rate(high),
                    units::bytes(self.sampled_bytes),
                );
            }
            (Some(_), None) => {}
            (None, _) => text += "; how long that takes is not known: nothing could be read in a second",
        }
        text + &format!("; not known: {}", self.unknown().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimate_of(words: &str, plan: &Plan) -> Estimate {
        let mut io = crate::event_loop().unwrap();
        let options = block::OpenOptions { writable: false, request_alignment: 4096, allow_in_use: false };
        let medium = block::open(&block::Spec::parse(words).unwrap(), &options).unwrap();
        let mut source = medium.attach(&mut io).unwrap();
        let bytes = plan.size.unwrap_or(source.capability().size_bytes - plan.src_offset);
        let checked = Checked { bytes, chunk: 1 << 20, depth: 8, unit: 4096, block: 512 };
        estimate(&mut io, &mut *source, plan, &checked)
    }

    #[test]
    fn a_source_cannot_be_faster_than_it_is() {
        // 64 MiB at 10 MB/s take 6.7 s. The assertion is only a lower bound, as the machine may be busy.
        let of_limit = estimate_of("pattern:64M,limit=10MB/s", &Plan::default());
        let [fast, slow] = of_limit.reading().unwrap();
        assert!(fast > 3.0 && slow >= fast, "{of_limit:?}");
        assert!(of_limit.sampled_bytes > 0 && of_limit.sampled_bytes < 64 << 20, "{of_limit:?}");
        let of_rate = estimate_of("pattern:1M", &Plan { rate: Some(1 << 18).into(), ..Plan::default() });
        assert!(of_rate.reading().unwrap()[0] >= 4.0, "{of_rate:?}");
    }

    #[test]
    fn holes_are_not_read() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 30).unwrap();
        let words = file.path().to_str().unwrap();
        let hole = estimate_of(words, &Plan::default());
        assert!((hole.data_bytes, hole.hole_bytes) == (0, 1 << 30) && hole.sampled_bytes == 0, "{hole:?}");
        assert_eq!(hole.object()["seconds_at_least"], 0.0);
        use std::os::unix::fs::FileExt;
        file.as_file().write_all_at(&vec![7; 4 << 20], 512 << 20).unwrap();
        let some = estimate_of(words, &Plan::default());
        assert!(some.data_bytes >= 4 << 20 && some.data_bytes < 8 << 20, "{some:?}");
        assert!(some.sampled_bytes > 0 && some.sampled_bytes <= PLACES * some.data_bytes, "{some:?}");
        let all = estimate_of(words, &Plan { sparse: false, size: Some(16 << 20), ..Plan::default() });
        assert_eq!((all.data_bytes, all.hole_bytes), (16 << 20, 0));
    }

    #[test]
    fn what_cannot_be_read_is_said() {
        let broken = estimate_of("pattern:4M,fault=read-error", &Plan::default());
        let unknown = broken.unknown().join(" ");
        assert!(broken.reading().is_none() && unknown.contains("what cannot be read"), "{broken:?}");
        assert!(broken.sentences().contains("nothing could be read"), "{}", broken.sentences());
    }
}
