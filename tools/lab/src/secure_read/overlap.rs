//! The paper's question as one table: the rate with sealing ahead compared with data that was stored sealed.

use serde::Serialize;

use super::shape::{How, Over, Protection, UNIT_BYTES};
use super::{Measured, Row};
use crate::stats::{Spread, rounded, short, size};
use crate::table::Table;

/// One cipher and block size, depth 1.
#[derive(Debug, Serialize)]
pub(super) struct Line {
    over: Over,
    cipher: &'static str,
    block: u32,
    ideal_mb_per_s: Spread,
    ahead_mb_per_s: Spread,
    no_overlap_mb_per_s: Option<Spread>,
    ahead_of_ideal: f64,
    /// Cores that both sides together would use if the row "ahead" reached the rate of the ideal, whose target does not
    /// seal. A machine without more cores than that cannot reach it.
    cores_at_ideal: f64,
}

pub(super) fn lines(table: &[Measured]) -> Vec<Line> {
    table.iter().filter_map(|measured| line(measured, table)).collect()
}

/// The line of a row of the ideal.
fn line(ideal: &Measured, table: &[Measured]) -> Option<Line> {
    let Row { over, reading } = ideal.row;
    let Protection::Sealed { cipher, how: How::Stored, .. } = reading.protection else { return None };
    let find = |how| {
        let protection = Protection::Sealed { cipher, unit: UNIT_BYTES, how };
        table.iter().find(|measured| {
            let Row { over: other, reading: found } = measured.row;
            (other, found.block, found.depth, found.protection)
                == (over, reading.block, reading.depth, protection)
        })
    };
    let ahead = find(How::Ahead)?;
    let [ideal_rate, ahead_rate] = [ideal.rate(), ahead.rate()];
    let s_per_gb: f64 = [ahead.per_gb(|sample| sample.target), ahead.per_gb(|sample| sample.figures.cpu)]
        .iter()
        .flatten()
        .sum();
    Some(Line {
        over,
        cipher: cipher.name(),
        block: reading.block,
        ideal_mb_per_s: ideal_rate,
        ahead_mb_per_s: ahead_rate,
        no_overlap_mb_per_s: find(How::Late).map(Measured::rate),
        ahead_of_ideal: rounded(ahead_rate.median / ideal_rate.median),
        cores_at_ideal: rounded(s_per_gb * ideal_rate.median / 1e3),
    })
}

pub(super) fn text(lines: &[Line]) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let mut table = Table::new(
        "over | cipher | block | ideal MB/s | sealed ahead | no overlap | ahead of ideal | cores it takes",
    );
    for line in lines {
        table.row(vec![
            line.over.name().to_owned(),
            line.cipher.to_owned(),
            size(line.block),
            line.ideal_mb_per_s.show(),
            line.ahead_mb_per_s.show(),
            line.no_overlap_mb_per_s.map(|rate| rate.show()).unwrap_or_default(),
            format!("{:.0} %", line.ahead_of_ideal * 100.0),
            short(line.cores_at_ideal),
        ]);
    }
    format!("### Sealing ahead beside data that was stored sealed, one at a time\n\n{}\n", table.render())
}

#[cfg(test)]
mod tests {
    use super::super::cell::Sample;
    use super::super::cipher::Cipher;
    use super::super::figures::Figures;
    use super::super::shape::Reading;
    use super::*;
    use crate::sys::Cpu;

    /// A measurement of blocks of 1 MB in one second, with the processor time of each side.
    fn measured(how: How, blocks: u64, target: f64, initiator: f64) -> Measured {
        let protection = Protection::Sealed { cipher: Cipher::TripleDes, unit: UNIT_BYTES, how };
        let cpu = |user| Cpu { user, system: 0.0 };
        let figures = Figures { blocks, seconds: 1.0, cpu: cpu(initiator), ..Figures::default() };
        let sample = Sample { figures, target: cpu(target), ..Sample::default() };
        let reading = Reading { block: 1_000_000, depth: 1, protection };
        Measured {
            row: Row { over: Over::Sockets, reading },
            samples: vec![sample],
            pacing: None,
            watched: None,
        }
    }

    #[test]
    fn sealing_ahead_stands_beside_its_ideal() {
        let ideal = measured(How::Stored, 1000, 0.1, 0.9);
        let ahead = measured(How::Ahead, 800, 0.8, 0.8);
        assert!(lines(&[measured(How::Ahead, 1, 1.0, 1.0)]).is_empty(), "no ideal");
        let lines = lines(&[ideal, measured(How::Late, 500, 0.9, 0.9), ahead]);
        let [line] = &lines[..] else { panic!("{lines:?}") };
        // 1.6 s for 0.8 GB are 2 s/GB, and the ideal moves 1 GB per second.
        assert_eq!((line.ahead_of_ideal, line.cores_at_ideal), (0.8, 2.0));
        assert_eq!(line.no_overlap_mb_per_s.unwrap().median, 500.0);
        assert!(text(&lines).contains("| 80 % "), "{}", text(&lines));
    }
}
