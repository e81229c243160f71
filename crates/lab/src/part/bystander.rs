//! A process that has a fixed piece of work to do every millisecond. How often it comes to it, and how late it is done, is
//! what the experiment's load costs others.

use std::convert::Infallible;
use std::hint::black_box;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{Order, Talk};
use crate::LabError;
use crate::stats::{percentile, rounded};

/// Time between two pieces.
const PERIOD: Duration = Duration::from_millis(1);
/// What a piece takes on an idle machine.
const PIECE: Duration = Duration::from_micros(100);

/// A piece of work: so many additions.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Bystander {
    additions: u64,
}

/// How it fared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Fared {
    /// Pieces done, of one a millisecond.
    pub(crate) rate_share: f64,
    /// From a piece's time to its end.
    pub(crate) p50_us: f64,
    /// From a piece's time to its end.
    pub(crate) p99_us: f64,
}

fn work(additions: u64) {
    let mut sum = 0u64;
    for number in 0..additions {
        sum = black_box(sum.wrapping_add(number));
    }
}

impl Bystander {
    /// Finds out how much this machine does in [`PIECE`].
    pub(crate) fn fitted() -> Self {
        const TRY: u64 = 100_000;
        let times = (0..20).map(|_| {
            let start = Instant::now();
            work(TRY);
            start.elapsed()
        });
        let least = times.min().expect("there are twenty").max(Duration::from_nanos(1));
        Self { additions: (TRY as f64 * PIECE.as_secs_f64() / least.as_secs_f64()) as u64 }
    }

    pub(super) fn run(self, mut talk: Talk) -> Result<(), LabError> {
        work(self.additions);
        talk.say(&())?;
        while let Some(order) = talk.next()? {
            match order {
                Order::Go { ms } => talk.say(&self.go(Duration::from_millis(ms)))?,
                Order::Mark => talk.say(&())?,
            }
        }
        Ok(())
    }

    fn go(self, time: Duration) -> Fared {
        let Ok(fared) = paced(time, || {
            work(self.additions);
            Ok::<_, Infallible>(())
        });
        fared
    }
}

/// Does a piece of work every [`PERIOD`] for so long. Pieces whose time has passed meanwhile are left out: that is what a lower
/// rate is.
pub(crate) fn paced<E>(time: Duration, mut piece: impl FnMut() -> Result<(), E>) -> Result<Fared, E> {
    let start = Instant::now();
    let mut late = Vec::with_capacity(time.as_millis() as usize + 1);
    let mut at = PERIOD;
    while at <= time {
        if let Some(wait) = at.checked_sub(start.elapsed()) {
            std::thread::sleep(wait);
        }
        piece()?;
        let now = start.elapsed();
        late.push((now - at).as_nanos() as u64);
        at += PERIOD * ((now - at).as_nanos() / PERIOD.as_nanos() + 1) as u32;
    }
    let expected = (time.as_nanos() / PERIOD.as_nanos()).max(1);
    let us = |share: f64, late: &mut [u64]| rounded(percentile(late, share).unwrap_or(0) as f64 / 1e3);
    Ok(Fared {
        rate_share: rounded(late.len() as f64 / expected as f64),
        p50_us: us(0.5, &mut late),
        p99_us: us(0.99, &mut late),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_come_every_millisecond_and_those_missed_are_left_out() {
        let fared = Bystander { additions: 1 }.go(Duration::from_millis(20));
        assert!(fared.rate_share > 0.2 && fared.rate_share <= 1.0, "{fared:?}");
        // Work that takes several periods.
        let start = Instant::now();
        work(1 << 20);
        let additions = (1 << 20) * 4_000_000 / start.elapsed().as_nanos().max(1) as u64;
        let fared = Bystander { additions: additions.max(1) }.go(Duration::from_millis(40));
        assert!(fared.rate_share < 0.7, "{fared:?}");
    }
}
