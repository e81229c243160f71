//! Numbers with units, and causes as people read them.

use crate::event::{Side, Vantage};
use crate::model::{Cause, Source};

/// Units of sizes: binary, as everywhere in this program; those of rates are decimal.
pub(super) const SIZES: [(&str, f64); 5] = [
    ("B", 1.0),
    ("KiB", 1024.0),
    ("MiB", 1_048_576.0),
    ("GiB", 1_073_741_824.0),
    ("TiB", 1_099_511_627_776.0),
];

/// Bytes in binary units: exact if that is short (`256 KiB`), else with one decimal.
pub(super) fn bytes(count: u64) -> String {
    let unit = SIZES.iter().rev().find(|(_, size)| count as f64 >= *size);
    match unit {
        Some((name, size)) if count.is_multiple_of(*size as u64) => {
            format!("{} {name}", count / (*size as u64))
        }
        Some((name, size)) => format!("{:.1} {name}", count as f64 / size),
        None => "0 B".to_owned(),
    }
}

pub(super) fn rate(bytes_per_s: f64) -> String {
    scaled(bytes_per_s, &["B/s", "kB/s", "MB/s", "GB/s", "TB/s", "PB/s", "EB/s"])
}

/// A time in the unit that leaves one to three digits before the point: `20.1 ms`.
pub(super) fn seconds(seconds: f64) -> String {
    if !seconds.is_finite() {
        return "unknown".to_owned();
    }
    match seconds.abs() {
        0.0 => "0".to_owned(),
        size if size < 999.5e-6 => format!("{} us", digits(seconds * 1e6)),
        size if size < 0.9995 => format!("{} ms", digits(seconds * 1e3)),
        _ => format!("{} s", digits(seconds)),
    }
}

pub(super) fn nanoseconds(ns: u64) -> String {
    seconds(ns as f64 / 1e9)
}

pub(super) fn percent(share: f64) -> String {
    match share * 100.0 {
        percent if percent > 0.0 && percent < 0.05 => "below 0.1 %".to_owned(),
        percent if percent > 0.0 && percent < 0.95 => format!("{percent:.1} %"),
        percent => format!("{percent:.0} %"),
    }
}

fn scaled(value: f64, units: &[&str]) -> String {
    if !value.is_finite() {
        return "unknown".to_owned();
    }
    let mut scaled = value;
    let mut unit = 0;
    while scaled.abs() >= 999.5 && unit + 1 < units.len() {
        scaled /= 1000.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{scaled:.0} {}", units[0])
    } else {
        format!("{} {}", digits(scaled), units[unit])
    }
}

/// Three significant digits, more before the point.
fn digits(value: f64) -> String {
    match value.abs() {
        size if size < 9.995 => format!("{value:.2}"),
        size if size < 99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

pub(super) const fn cause(cause: Cause) -> &'static str {
    match cause {
        Cause::R2t => "waiting for R2T",
        Cause::QueueDepth => "queue depth",
        Cause::SendBuffer => "send buffer",
        Cause::ReceiveWindow => "receive window",
        Cause::Congestion => "congestion window",
        Cause::Loss => "loss",
        Cause::NagleDelayedAck => "Nagle and delayed ACK",
        Cause::LocalDevice => "local network device",
        Cause::Target => "target",
        Cause::Cipher => "cipher",
        Cause::Cpu => "processor",
        Cause::ThinkTime => "think time",
        Cause::LineRate => "line rate",
        Cause::Unknown => "not explained",
    }
}

pub(super) const fn side(side: Side) -> &'static str {
    match side {
        Side::Initiator => "initiator",
        Side::Target => "target",
    }
}

pub(super) fn source(source: Source) -> String {
    match source {
        Source::Capture(Vantage::At(end)) => format!("capture at the {}", side(end)),
        Source::Capture(Vantage::Between) => "capture between the two ends".to_owned(),
        Source::Capture(Vantage::Unknown) => "capture at an unknown place".to_owned(),
        Source::Both(vantage, end) => {
            format!("{}, and samples of the {}'s socket", self::source(Source::Capture(vantage)), side(end))
        }
        Source::Probe(end) => format!("samples of the {}'s socket", side(end)),
        Source::Own(end) => format!("this program's own socket, as {}", side(end)),
    }
}

/// A name for a SCSI operation code (SPC-4, SBC-3), for those that carry data.
pub(super) fn operation(code: u8) -> String {
    let name = match code {
        0x08 => "READ(6)",
        0x0a => "WRITE(6)",
        0x00 => "TEST UNIT READY",
        0x12 => "INQUIRY",
        0x1a => "MODE SENSE(6)",
        0x25 => "READ CAPACITY(10)",
        0x28 => "READ(10)",
        0x2a => "WRITE(10)",
        0x2e => "WRITE AND VERIFY(10)",
        0x42 => "UNMAP",
        0x35 => "SYNCHRONIZE CACHE(10)",
        0x41 => "WRITE SAME(10)",
        0x83 => "EXTENDED COPY",
        0x88 => "READ(16)",
        0x89 => "COMPARE AND WRITE",
        0x8a => "WRITE(16)",
        0x8e => "WRITE AND VERIFY(16)",
        0x93 => "WRITE SAME(16)",
        0x9e => "SERVICE ACTION IN(16)",
        0xa0 => "REPORT LUNS",
        0xa8 => "READ(12)",
        0xaa => "WRITE(12)",
        _ => return format!("{code:#04x}"),
    };
    name.to_owned()
}

/// Round values from 0 or above `from` up to `to`: at most `count` multiples of 1, 2 or 5 times a power of ten.
pub(super) fn ticks(from: f64, to: f64, count: usize) -> (f64, Vec<f64>) {
    let range = to - from;
    if !(range > 0.0 && range.is_finite()) {
        return (1.0, vec![from]);
    }
    let power = 10f64.powf((range / count.max(1) as f64).log10().floor());
    let fits = |step: &f64| range / step <= count as f64;
    let step = [1.0, 2.0, 5.0].map(|factor| factor * power).into_iter().find(fits).unwrap_or(10.0 * power);
    let first = (from / step).ceil();
    let values =
        (0..=count).map(|index| (first + index as f64) * step).filter(|value| *value <= to + step * 1e-9);
    (step, values.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        let sizes = [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1000 B"),
            (1_048_576, "1 MiB"),
            (999_600, "976.2 KiB"),
            (u64::MAX, "16777216.0 TiB"),
        ];
        for (count, text) in sizes {
            assert_eq!(bytes(count), text);
        }
        let times = [
            (0.0, "0"),
            (5e-7, "0.50 us"),
            (0.02, "20.0 ms"),
            (0.9996, "1.00 s"),
            (125.0, "125 s"),
            (f64::NAN, "unknown"),
            (f64::INFINITY, "unknown"),
        ];
        for (value, text) in times {
            assert_eq!(seconds(value), text);
        }
        let shares = [0.0, 0.0001, 0.001, 0.0095, 0.5, 1.0].map(percent);
        assert_eq!(shares, ["0 %", "below 0.1 %", "0.1 %", "1 %", "50 %", "100 %"]);
    }

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(ticks(0.0, 100.0, 5), (20.0, vec![0.0, 20.0, 40.0, 60.0, 80.0, 100.0]));
        assert_eq!(ticks(3.3, 7.7, 5), (1.0, vec![4.0, 5.0, 6.0, 7.0]));
        for (from, to) in [(0.0, 1e-9), (1e15, 1e15 + 1.0), (0.0, 1.8e19), (5.0, 5.0), (0.0, f64::NAN)] {
            let (_, values) = ticks(from, to, 6);
            assert!((1..=7).contains(&values.len()), "{from} {to}: {values:?}");
        }
    }
}
