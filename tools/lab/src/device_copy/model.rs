//! Predicts the time of a copy with N buffers, from measurements with one buffer and of each device alone.
//!
//! A chunk is read in `r` and written in `w`. N buffers complete N chunks in that time, limited by the devices: a chunk
//! takes `max((r + w) / N, R, W)`, where `R` and `W` are the times per chunk of a device with many requests. The knee,
//! from which more buffers have no effect, is where these are equal: `(r + w) / max(R, W)`, latency times rate per
//! chunk.

use serde::Serialize;

use super::copier::{Method, Speed};
use super::{Ceiling, Measured};
use crate::stats::{Spread, rounded};

/// Share of the best rate that the knee reaches.
const NEARLY: f64 = 0.95;

/// The figures of one number of buffers at one speed.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Point {
    pub(super) buffers: u32,
    pub(super) predicted_mb_per_s: f64,
    pub(super) measured_mb_per_s: Spread,
    pub(super) ratio: f64,
    /// Measured rate divided by the rate of reading and writing at once.
    pub(super) of_at_once: f64,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Curve {
    #[serde(skip)]
    pub(super) speed: Speed,
    pub(super) device: String,
    pub(super) block: u32,
    /// Times of one read and one write alone, and times per chunk of each device with many requests.
    pub(super) read_us: f64,
    pub(super) write_us: f64,
    pub(super) read_busy_us: f64,
    pub(super) write_busy_us: f64,
    /// Rate of reading and writing at once by two loaders: the slower of the two.
    pub(super) at_once_mb_per_s: f64,
    pub(super) knee_predicted: f64,
    /// The least number of buffers with at least [`NEARLY`] of the best rate; `None` if the most buffers were the best.
    pub(super) knee_measured: Option<u32>,
    pub(super) points: Vec<Point>,
}

/// Curves of all speeds with measurements of one buffer and of both devices alone.
pub(super) fn curves(table: &[Measured], ceilings: &[Ceiling]) -> Vec<Curve> {
    ceilings.iter().filter_map(|ceiling| curve(table, ceiling)).collect()
}

fn curve(table: &[Measured], ceiling: &Ceiling) -> Option<Curve> {
    let Ceiling { speed, block, .. } = *ceiling;
    let mut measured: Vec<(u32, &Measured)> = table
        .iter()
        .filter(|measured| measured.row.speed == speed && measured.row.block == block && measured.is_main)
        .filter_map(|measured| match measured.row.method {
            Method::Mover(Some(buffers)) => Some((buffers, measured)),
            _ => None,
        })
        .collect();
    measured.sort_by_key(|(buffers, _)| *buffers);
    let (_, one) = measured.first().filter(|(buffers, _)| *buffers == 1)?;
    let [read_us, write_us] = [
        one.spread(|sample| sample.copied.read_us).median,
        one.spread(|sample| sample.copied.write_us).median,
    ];
    let us = |rates: &Vec<[f64; 3]>, what: usize| {
        let rate = Spread::of(rates.iter().map(|rates| rates[what])).unwrap_or_default().median;
        f64::from(block) / rate * 1e6
    };
    let [read_busy_us, write_busy_us, at_once_us] = [0, 1, 2].map(|what| us(&ceiling.rates, what));
    let busy = read_busy_us.max(write_busy_us);
    let mb_per_s = |us: f64| rounded(f64::from(block) / us);
    let points: Vec<Point> = measured
        .iter()
        .map(|(buffers, measured)| {
            let predicted = mb_per_s(((read_us + write_us) / f64::from(*buffers)).max(busy));
            let rate = measured.rate();
            Point {
                buffers: *buffers,
                predicted_mb_per_s: predicted,
                measured_mb_per_s: rate,
                ratio: rounded(rate.median / predicted),
                of_at_once: rounded(rate.median / mb_per_s(at_once_us)),
            }
        })
        .collect();
    let best = points.iter().map(|point| point.measured_mb_per_s.median).fold(0.0, f64::max);
    let is_near = |point: &&Point| point.measured_mb_per_s.median >= NEARLY * best;
    let (_, fewer) = points.split_last()?;
    Some(Curve {
        speed,
        device: speed.name(),
        block,
        read_us: rounded(read_us),
        write_us: rounded(write_us),
        read_busy_us: rounded(read_busy_us),
        write_busy_us: rounded(write_busy_us),
        at_once_mb_per_s: mb_per_s(at_once_us),
        knee_predicted: rounded((read_us + write_us) / busy),
        knee_measured: fewer.iter().find(is_near).map(|point| point.buffers),
        points,
    })
}

#[cfg(test)]
mod tests {
    use super::super::cell::Sample;
    use super::super::copier::Copied;
    use super::super::plan::Row;
    use super::*;

    #[test]
    fn buffers_count_up_to_the_knee() {
        let (speed, block) = (Speed::default(), 1 << 20);
        let of = |buffers: u32, seconds: f64| {
            let copied =
                Copied { bytes: 1 << 20, seconds, read_us: 300.0, write_us: 100.0, ..Copied::default() };
            Measured {
                row: Row { speed, method: Method::Mover(Some(buffers)), block, bytes: 1 << 20 },
                samples: vec![Sample { copied, ..Sample::default() }],
                is_main: true,
            }
        };
        // A chunk takes 150 us of the source and 100 us of the destination.
        let rate = |us: f64| f64::from(block) / us * 1e6;
        let ceiling = Ceiling { speed, block, rates: vec![[rate(150.0), rate(100.0), rate(160.0)]] };
        let table = [of(1, 400e-6), of(2, 200e-6), of(3, 151e-6), of(4, 150e-6)];
        let curves = curves(&table, &[ceiling]);
        let curve = &curves[0];
        // Rates are kept with four digits.
        let is_about = |found: f64, expected: f64| (found / expected - 1.0).abs() < 1e-3;
        assert!(is_about(curve.read_busy_us, 150.0) && is_about(curve.write_busy_us, 100.0), "{curve:?}");
        assert!(is_about(curve.knee_predicted, 400.0 / 150.0) && curve.knee_measured == Some(3), "{curve:?}");
        for (point, us) in curve.points.iter().zip([400.0, 200.0, 150.0, 150.0]) {
            assert!(is_about(point.predicted_mb_per_s, f64::from(block) / us), "{curve:?}");
        }
        assert!(curve.points.iter().all(|point| (0.99..=1.01).contains(&point.ratio)), "{curve:?}");
    }
}
