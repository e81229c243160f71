//! Parses sizes and rates: `K M G T` are binary units, `kB MB GB TB` decimal ones.

const UNITS: &[(&str, u64)] = &[
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("t", 1 << 40),
    ("b", 1),
    ("", 1),
];

/// Parses `64M`, `1.5GB`, `4096`, `2TiB` into bytes. The error text gives the accepted forms.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let unit = unit.trim().to_ascii_lowercase();
    let bad = || match bits(number, &unit) {
        Some(bytes) => format!("'{text}' counts bits; in bytes it is {bytes}"),
        None => format!("'{text}' is not a size; write for example 4096, 64M (binary) or 64MB (decimal)"),
    };
    let factor = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor).ok_or_else(bad)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole: u64 = whole.parse().map_err(|_| bad())?;
    let mut bytes = whole.checked_mul(factor).ok_or_else(bad)?;
    if !fraction.is_empty() {
        if fraction.len() > 9 || factor == 1 {
            return Err(bad());
        }
        let digits: u64 = fraction.parse().map_err(|_| bad())?;
        let part = u128::from(factor) * u128::from(digits) / 10u128.pow(fraction.len() as u32);
        bytes = bytes.checked_add(part as u64).ok_or_else(bad)?;
    }
    Ok(bytes)
}

/// The bytes of a number of bits, such as `1Gbit`; `None`: it is no such number.
fn bits(number: &str, unit: &str) -> Option<String> {
    let unit = unit.strip_suffix("ps").unwrap_or(unit);
    let prefix = ["bits", "bit"].iter().find_map(|name| unit.strip_suffix(name))?;
    let prefix = ["k", "m", "g", "t"].into_iter().find(|known| *known == prefix)?;
    let bytes = parse_size(&format!("{number}{prefix}b")).ok()? / 8;
    let (factor, name) = if bytes < 1_000_000 { (1_000, "kB") } else { (1_000_000, "MB") };
    Some(format!("{}{name}", bytes as f64 / f64::from(factor)))
}

/// A lower rate needs its unit: other programs take a bare number as KiB/s or as MB/s, and 10 bytes per second are
/// hardly ever meant.
const BARE_RATE_MIN: u64 = 1_000_000;

/// Parses a rate in bytes per second: `100MB/s`, `64M`, `500B/s`.
pub fn parse_rate(text: &str) -> Result<u64, String> {
    let size = text.trim().strip_suffix("/s").unwrap_or(text).trim();
    let bytes = parse_size(size)?;
    if bytes == 0 {
        return Err("a rate of zero would never finish".into());
    }
    if bytes < BARE_RATE_MIN && size.ends_with(|last: char| last.is_ascii_digit()) {
        return Err(format!(
            "'{text}' has no unit; write {size}MB/s, {size}kB/s or, if so little is meant, {size}B/s"
        ));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_bits_is_answered_with_its_bytes() {
        for (text, bytes) in
            [("1Gbit", "125MB"), ("1.5 Mbps", ""), ("100Mbit", "12.5MB"), ("64 kbits", "8kB"), ("8bit", "")]
        {
            let error = parse_size(text).unwrap_err();
            let expected = format!("'{text}' counts bits; in bytes it is {bytes}");
            assert_eq!(error == expected, !bytes.is_empty(), "{error}");
        }
        assert!(parse_rate("1Gbit/s").unwrap_err().ends_with("in bytes it is 125MB"));
    }

    #[test]
    fn sizes_are_binary_or_decimal_by_their_unit() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64K", 65536),
            ("64kB", 64000),
            ("1M", 1 << 20),
            ("1MB", 1_000_000),
            ("1.5G", 3 << 29),
            ("2TiB", 2 << 40),
            ("10b", 10),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "M", "1X", "-1", "1.5", "99999999999T", "1..2M", "1 2M", "0x10"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
        assert_eq!(parse_rate("100MB/s"), Ok(100_000_000));
        for (text, rate) in
            [("10B/s", 10), ("10 B/s", 10), ("1kB", 1000), ("1000000", 1_000_000), ("1000000/s", 1_000_000)]
        {
            assert_eq!(parse_rate(text), Ok(rate), "{text}");
        }
        for text in ["0", "0B/s", "10", "10/s", "999999"] {
            assert!(parse_rate(text).is_err(), "{text}");
        }
        assert!(parse_rate("10").unwrap_err().contains("10MB/s"));
    }
}
