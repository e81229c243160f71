//! Sizes, rates and durations: parsed from arguments, formatted as text.
//!
//! Text has binary units for sizes (`256 MiB`) and decimal units for rates (`412 MB/s`), as JSON does. Text is rounded;
//! JSON contains the exact values.

use std::time::Duration;

pub use host::utc;

/// Parses `--drain-timeout` and other durations: `500us`, `20ms`, `10s`, `5m`, `1h`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    block::layer::parse_duration(text)
}

/// Parses `--size`, `--chunk` and offsets, in bytes.
pub fn parse_size(text: &str) -> Result<u64, String> {
    block::parse_size(text)
}

/// Parses `--rate`, in bytes per second.
pub fn parse_rate(text: &str) -> Result<u64, String> {
    block::parse_rate(text)
}

/// Bytes as text: exact if that is short (`256 MiB`, `512 B`), else with one decimal.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut unit = 0;
    let mut scale = 1024u64;
    while unit + 1 < UNITS.len() && count / scale >= 1024 {
        scale *= 1024;
        unit += 1;
    }
    if count.is_multiple_of(scale) {
        format!("{} {}", count / scale, UNITS[unit])
    } else {
        format!("{:.1} {}", count as f64 / scale as f64, UNITS[unit])
    }
}

/// Bytes of data within a whole, `300 MiB data of 10 GiB`, or only the whole if all of `passed` was data.
pub fn data(data: u64, passed: u64, whole: u64) -> String {
    if data < passed { format!("{} data of {}", bytes(data), bytes(whole)) } else { bytes(whole) }
}

/// A count with its noun: `1 area`, `2 areas`.
pub fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

pub fn retries(count: u64) -> String {
    format!("{count} {}", if count == 1 { "retry" } else { "retries" })
}

pub fn rate(bytes_per_second: f64) -> String {
    if bytes_per_second >= 1e9 {
        format!("{:.2} GB/s", bytes_per_second / 1e9)
    } else if bytes_per_second >= 1e8 {
        format!("{:.0} MB/s", bytes_per_second / 1e6)
    } else if bytes_per_second >= 1e6 {
        format!("{:.1} MB/s", bytes_per_second / 1e6)
    } else if bytes_per_second >= 1e3 || bytes_per_second == 0.0 {
        format!("{:.1} kB/s", bytes_per_second / 1e3)
    } else if bytes_per_second >= 1.0 {
        format!("{bytes_per_second:.0} B/s")
    } else {
        format!("{bytes_per_second:.1} B/s")
    }
}

/// A duration as text: `0.43 s`, `12.3 s`, `4m05s`, `2h03m`.
pub fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    if seconds < 1e-3 {
        format!("{:.0} us", seconds * 1e6)
    } else if seconds < 0.1 {
        format!("{:.1} ms", seconds * 1e3)
    } else if seconds < 10.0 {
        format!("{seconds:.2} s")
    } else if seconds < 60.0 {
        format!("{seconds:.1} s")
    } else if seconds < 3600.0 {
        let whole = seconds.round() as u64;
        format!("{}m{:02}s", whole / 60, whole % 60)
    } else {
        let minutes = (seconds / 60.0).round() as u64;
        format!("{}h{:02}m", minutes / 60, minutes % 60)
    }
}

/// A number rounded to three decimals: precise enough for rates and seconds, and short in JSON.
pub fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_exact_where_short() {
        let all = [
            (0, "0 B"),
            (512, "512 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (256 << 20, "256 MiB"),
            (1 << 30, "1 GiB"),
            (5_000_000_000, "4.7 GiB"),
            (u64::MAX, "16384.0 PiB"),
        ];
        for (count, text) in all {
            assert_eq!(bytes(count), text);
        }
    }

    #[test]
    fn rates_and_durations_read_well() {
        assert_eq!(rate(412_300_000.0), "412 MB/s");
        assert_eq!(rate(1_234_000_000.0), "1.23 GB/s");
        assert_eq!(rate(12_340_000.0), "12.3 MB/s");
        assert_eq!(rate(1_000.0), "1.0 kB/s");
        assert_eq!([0.0, 0.5, 10.0, 999.0].map(rate), ["0.0 kB/s", "0.5 B/s", "10 B/s", "999 B/s"]);
        assert_eq!(duration(Duration::from_micros(12)), "12 us");
        assert_eq!(duration(Duration::from_millis(430)), "0.43 s");
        assert_eq!(duration(Duration::from_secs(245)), "4m05s");
        assert_eq!(duration(Duration::from_secs(7380)), "2h03m");
    }
}
