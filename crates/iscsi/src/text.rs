//! Text: lists of `key=value`, each ended by a zero byte (RFC 7143 §6.1, §6.2).
//!
//! Any host that can open a connection can send this input. Each quantity is checked against a named constant before it
//! is stored, and bytes are checked to be text before they are interpreted.

use base64::engine::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};

/// Longest key name, bytes (§6.1).
pub const KEY_LENGTH_MAX: usize = 63;
/// Longest value of an ordinary key, bytes (§6.1).
pub const VALUE_LENGTH_MAX: usize = 255;
/// Longest value of a key that is a list or a large binary value, or of an unknown key, bytes.
pub const LONG_VALUE_LENGTH_MAX: usize = 8192;
pub const PAIRS_MAX: usize = 256;
/// Most bytes of one text, over all PDUs that continue it, before the peer has authenticated.
pub const TEXT_BEFORE_AUTHENTICATION_MAX: usize = 16 << 10;
/// Most bytes of one text over all PDUs that continue it.
pub const TEXT_MAX: usize = 64 << 10;

const _: () = assert!(KEY_LENGTH_MAX + LONG_VALUE_LENGTH_MAX + 2 <= TEXT_BEFORE_AUTHENTICATION_MAX);
const _: () = assert!(TEXT_BEFORE_AUTHENTICATION_MAX <= TEXT_MAX);

pub const NOT_UNDERSTOOD: &str = "NotUnderstood";
pub const IRRELEVANT: &str = "Irrelevant";
/// The answer to a value that is not permitted.
pub const REJECT: &str = "Reject";

/// Why bytes are not a text. The fault is the peer's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    #[error("pair without '='")]
    MissingEquals,
    /// A key is empty, too long, or contains a character that §6.1 does not allow in keys.
    #[error("malformed key name")]
    MalformedKey,
    #[error("value too long")]
    ValueTooLong,
    #[error("value is not UTF-8")]
    NotUtf8,
    #[error("too many pairs")]
    TooManyPairs,
    #[error("text too long")]
    TooLong,
    /// A PDU has the C bit and an empty data segment.
    #[error("continuation without text")]
    EmptyContinuation,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pair<'a> {
    /// The key, 1..=63 bytes of ASCII.
    pub key: &'a str,
    /// The value; any UTF-8 without zero bytes. Control characters are possible.
    pub value: &'a str,
}

/// Parses a complete text. Empty pairs (a surplus zero byte) are skipped and the last zero byte may be missing:
/// initiators exist that send either.
pub fn parse(text: &[u8]) -> Result<Vec<Pair<'_>>, TextError> {
    let (mut pairs, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        let end = memchr::memchr(0, rest).unwrap_or(rest.len());
        let bytes = &rest[..end];
        rest = &rest[rest.len().min(end + 1)..];
        if bytes.is_empty() {
            continue;
        }
        if pairs.len() == PAIRS_MAX {
            return Err(TextError::TooManyPairs);
        }
        pairs.push(parse_pair(bytes)?);
    }
    Ok(pairs)
}

fn parse_pair(bytes: &[u8]) -> Result<Pair<'_>, TextError> {
    // A key that is too long is rejected without a search for its end.
    let head = &bytes[..bytes.len().min(KEY_LENGTH_MAX + 1)];
    let Some(equals) = head.iter().position(|&byte| byte == b'=') else {
        let malformed = bytes.len() > KEY_LENGTH_MAX;
        return Err(if malformed { TextError::MalformedKey } else { TextError::MissingEquals });
    };
    let (key, value) = (&bytes[..equals], &bytes[equals + 1..]);
    // §6.1: letters, digits, dot, minus, plus, commercial at, underscore; `#` occurs in the X# keys of RFC 3721.
    let legal = |byte: &u8| byte.is_ascii_alphanumeric() || b".-+@_#".contains(byte);
    if key.is_empty() || !key.iter().all(legal) {
        return Err(TextError::MalformedKey);
    }
    let key = std::str::from_utf8(key).map_err(|_| TextError::MalformedKey)?;
    if value.len() > value_length_max(key) {
        return Err(TextError::ValueTooLong);
    }
    let value = std::str::from_utf8(value).map_err(|_| TextError::NotUtf8)?;
    Ok(Pair { key, value })
}

fn value_length_max(key: &str) -> usize {
    match key {
        "InitiatorName"
        | "TargetName"
        | "InitiatorAlias"
        | "TargetAlias"
        | "TargetAddress"
        | "SessionType"
        | "TargetPortalGroupTag"
        | "CHAP_N"
        | "CHAP_I"
        | "MaxConnections"
        | "InitialR2T"
        | "ImmediateData"
        | "MaxRecvDataSegmentLength"
        | "MaxBurstLength"
        | "FirstBurstLength"
        | "DefaultTime2Wait"
        | "DefaultTime2Retain"
        | "MaxOutstandingR2T"
        | "DataPDUInOrder"
        | "DataSequenceInOrder"
        | "ErrorRecoveryLevel"
        | "iSCSIProtocolLevel" => VALUE_LENGTH_MAX,
        _ => LONG_VALUE_LENGTH_MAX,
    }
}

/// Appends one pair. Panics if key or value contains a zero byte, or the key is empty, too long or contains `=`.
pub fn emit(key: &str, value: &str, text: &mut Vec<u8>) {
    assert!((1..=KEY_LENGTH_MAX).contains(&key.len()) && !key.contains(['=', '\0']), "key {key:?}");
    assert!(!value.contains('\0'), "zero byte in the value of {key}");
    text.extend_from_slice(key.as_bytes());
    text.push(b'=');
    text.extend_from_slice(value.as_bytes());
    text.push(0);
}

/// Reassembles a text that arrives in several PDUs, all but the last with the C bit (§6.2). After the last segment the
/// collector is empty and takes the next text.
#[derive(Debug, Default)]
pub struct Collector {
    bytes: Vec<u8>,
    partial: bool,
}

impl Collector {
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: Vec::new(), partial: false }
    }

    /// Whether a text has begun and its last segment has not arrived.
    #[must_use]
    pub const fn is_partial(&self) -> bool {
        self.partial
    }

    /// Adds a segment. Returns the text with its last segment, `None` before. `bytes_max` bounds the whole text; after
    /// an error the collector is empty.
    pub fn push(
        &mut self,
        segment: &[u8],
        continues: bool,
        bytes_max: usize,
    ) -> Result<Option<Vec<u8>>, TextError> {
        let error = if self.bytes.len() + segment.len() > bytes_max {
            Some(TextError::TooLong)
        } else if continues && segment.is_empty() {
            Some(TextError::EmptyContinuation)
        } else {
            None
        };
        if let Some(error) = error {
            *self = Self::new();
            return Err(error);
        }
        self.bytes.extend_from_slice(segment);
        self.partial = continues;
        Ok((!continues).then(|| std::mem::take(&mut self.bytes)))
    }
}

/// Splits a text into the data segments of several PDUs. A pair may begin in one PDU and end in another (§6.2).
#[derive(Debug, Default)]
pub struct Segments {
    text: Vec<u8>,
    sent: usize,
}

impl Segments {
    #[must_use]
    pub const fn new(text: Vec<u8>) -> Self {
        Self { text, sent: 0 }
    }

    /// The bytes of the next PDU, at most `segment_max`, and its C bit: whether more follow. An empty text yields one
    /// empty segment, on each call. Panics if `segment_max` is zero.
    pub fn next_segment(&mut self, segment_max: usize) -> (&[u8], bool) {
        assert!(segment_max > 0, "segments of nothing");
        let start = self.sent;
        self.sent = self.text.len().min(start + segment_max);
        (&self.text[start..self.sent], self.sent < self.text.len())
    }

    #[must_use]
    pub const fn has_more(&self) -> bool {
        self.sent < self.text.len()
    }

    #[must_use]
    pub const fn remaining(&self) -> usize {
        self.text.len() - self.sent
    }
}

/// Parses a number of at most 64 bits: decimal, or hexadecimal after `0x` (§6.1).
#[must_use]
pub fn parse_number(value: &str) -> Option<u64> {
    let (digits, radix) = match value.strip_prefix("0x").or_else(|| value.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None => (value, 10),
    };
    // from_str_radix accepts a sign, which the grammar of §6.1 does not have.
    if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    u64::from_str_radix(digits, radix).ok()
}

/// Parses a numerical range `a~b` with `a <= b`, or one number as both ends (§6.1).
#[must_use]
pub fn parse_range(value: &str) -> Option<(u64, u64)> {
    let (low, high) = value.split_once('~').unwrap_or((value, value));
    let (low, high) = (parse_number(low)?, parse_number(high)?);
    (low <= high).then_some((low, high))
}

/// Parses `Yes` or `No` (§6.1).
#[must_use]
pub fn parse_boolean(value: &str) -> Option<bool> {
    match value {
        "Yes" => Some(true),
        "No" => Some(false),
        _ => None,
    }
}

#[must_use]
pub const fn boolean(value: bool) -> &'static str {
    if value { "Yes" } else { "No" }
}

/// The elements of a list, in the order of the sender's preference.
pub fn parse_list(value: &str) -> impl Iterator<Item = &str> {
    value.split(',')
}

/// Parses `0x` and hexadecimal digits, or `0b` and base64 (§6.1). `None`: malformed, empty, or above `bytes_max`.
#[must_use]
pub fn parse_binary(value: &str, bytes_max: usize) -> Option<Vec<u8>> {
    let prefix = value.get(..2)?;
    let digits = &value.as_bytes()[2..];
    let bytes = match prefix {
        "0x" | "0X" if digits.len().div_ceil(2) <= bytes_max => parse_hex(digits)?,
        "0b" | "0B" if digits.len() / 4 * 3 <= bytes_max + 2 => parse_base64(digits)?,
        _ => return None,
    };
    (1..=bytes_max).contains(&bytes.len()).then_some(bytes)
}

fn parse_hex(digits: &[u8]) -> Option<Vec<u8>> {
    let nibble = |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
    // With an odd number of digits the leading zero is omitted.
    let (head, pairs) = digits.split_at(digits.len() % 2);
    let mut bytes = Vec::with_capacity(digits.len().div_ceil(2));
    if let [digit] = *head {
        bytes.push(nibble(digit)?);
    }
    for pair in pairs.chunks_exact(2) {
        bytes.push(nibble(pair[0])? << 4 | nibble(pair[1])?);
    }
    Some(bytes)
}

/// RFC 4648 base64. Padding may be absent but not wrong; surplus bits must be zero, otherwise two texts would encode
/// the same bytes.
fn parse_base64(digits: &[u8]) -> Option<Vec<u8>> {
    let engine = if digits.ends_with(b"=") { STANDARD } else { STANDARD_NO_PAD };
    engine.decode(digits).ok()
}

/// The hexadecimal form of a binary value, which every implementation reads.
#[must_use]
pub fn binary(bytes: &[u8]) -> String {
    use std::fmt::Write as _;

    let mut text = String::with_capacity(2 + bytes.len() * 2);
    text.push_str("0x");
    for byte in bytes {
        write!(text, "{byte:02x}").expect("writing to a string");
    }
    text
}

/// The base64 form of a binary value, with padding: shorter than hexadecimal, for long values; some implementations do
/// not read it.
#[must_use]
pub fn base64(bytes: &[u8]) -> String {
    let mut text = String::from("0b");
    STANDARD.encode_string(bytes, &mut text);
    text
}

/// Replaces control characters by U+FFFD, so that free text of a peer (an alias) is safe in logs and on terminals.
#[must_use]
pub fn printable(value: &str) -> String {
    value.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pairs_parse() {
        let text = b"InitiatorName=iqn.2026-01.a:b\0X-com.x=a=b\0\0Empty=\0Last=1";
        let pairs: Vec<_> = parse(text).unwrap().iter().map(|p| (p.key, p.value)).collect();
        let expected =
            [("InitiatorName", "iqn.2026-01.a:b"), ("X-com.x", "a=b"), ("Empty", ""), ("Last", "1")];
        assert_eq!(pairs, expected);
        assert_eq!(parse(b"").unwrap(), []);
        assert_eq!(parse(b"\0\0\0\0").unwrap(), []);
    }

    #[test]
    fn text_malformed() {
        let long_key = [&[b'K'; 64][..], b"=1\0"].concat();
        let key_without_end = [b'K'; 5000];
        let long_name = [&b"InitiatorName="[..], &[b'a'; 256], b"\0"].concat();
        let long_list = [&b"AuthMethod="[..], &[b'a'; 8193], b"\0"].concat();
        let pairs = b"A=1\0".repeat(PAIRS_MAX + 1);
        for (name, text, error) in [
            ("no_equals", &b"Key\0"[..], TextError::MissingEquals),
            ("key_empty", b"=1\0", TextError::MalformedKey),
            ("key_space", b"a b=1\0", TextError::MalformedKey),
            ("key_control", b"a\n=1\0", TextError::MalformedKey),
            ("key_not_ascii", b"\xc3\xa9=1\0", TextError::MalformedKey),
            ("key_64_bytes", &long_key, TextError::MalformedKey),
            ("key_without_end", &key_without_end, TextError::MalformedKey),
            ("name_256_bytes", &long_name, TextError::ValueTooLong),
            ("list_8193_bytes", &long_list, TextError::ValueTooLong),
            ("value_not_utf8", b"A=\xff\0", TextError::NotUtf8),
            ("pairs_one_too_many", &pairs, TextError::TooManyPairs),
        ] {
            assert_eq!(parse(text), Err(error), "{name}");
        }
        assert_eq!(parse(&pairs[4..]).unwrap().len(), PAIRS_MAX);
        assert!(parse(&[&[b'K'; 63][..], b"=1\0"].concat()).is_ok());
    }

    #[test]
    fn numbers() {
        for (text, number) in [
            ("0", Some(0)),
            ("262144", Some(262_144)),
            ("0x40000", Some(262_144)),
            ("0XfF", Some(255)),
            ("0007", Some(7)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("", None),
            ("0x", None),
            ("-1", None),
            ("+1", None),
            ("0x+1", None),
            ("1 ", None),
            ("a", None),
            ("1.0", None),
        ] {
            assert_eq!(parse_number(text), number, "{text:?}");
        }
        assert_eq!(parse_range("8~0x10"), Some((8, 16)));
        assert_eq!(parse_range("5"), Some((5, 5)));
        assert_eq!(parse_range("9~8"), None);
        assert_eq!(parse_range("1~2~3"), None);
    }

    #[test]
    fn binary_values() {
        for (text, bytes) in [
            ("0x0102ff", Some(&[1, 2, 255][..])),
            ("0X102FF", Some(&[1, 2, 255])),
            ("0bAQL/", Some(&[1, 2, 255])),
            ("0bAQI=", Some(&[1, 2])),
            ("0bAQI", Some(&[1, 2])),
            ("0BAQ==", Some(&[1])),
            ("0bAQ=", None),
            ("0bAR==", None),
            ("0bA", None),
            ("0b", None),
            ("0b====", None),
            ("0bA Q=", None),
            ("0x", None),
            ("0xg0", None),
            ("0", None),
            ("12", None),
            ("", None),
            ("é", None),
            ("0x01020304050607080910", None),
            ("0bAQIDBAUGBwgJCg==", None),
        ] {
            assert_eq!(parse_binary(text, 8).as_deref(), bytes, "{text:?}");
        }
        assert_eq!(base64(&[1, 2, 255]), "0bAQL/");
        assert_eq!(base64(&[1, 2]), "0bAQI=");
        assert_eq!(base64(&[1]), "0bAQ==");
        assert_eq!(parse_binary("0x0102030405060708", 8).unwrap().len(), 8);
        assert_eq!(parse_binary("0bAQIDBAUGBwg=", 8).unwrap(), [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn collector_bounds_the_whole() {
        let mut collector = Collector::new();
        assert_eq!(collector.push(b"Key=a", true, 16), Ok(None));
        assert!(collector.is_partial());
        assert_eq!(collector.push(b"b\0", false, 16), Ok(Some(b"Key=ab\0".to_vec())));
        assert!(!collector.is_partial());
        assert_eq!(collector.push(b"", false, 16), Ok(Some(Vec::new())));

        assert_eq!(collector.push(&[b'a'; 16], true, 16), Ok(None));
        assert_eq!(collector.push(b"b", false, 16), Err(TextError::TooLong));
        assert!(!collector.is_partial());
        assert_eq!(collector.push(b"", true, 16), Err(TextError::EmptyContinuation));
    }

    proptest! {
        #[test]
        fn any_text(text in prop::collection::vec(any::<u8>(), 0..2048)) {
            if let Ok(pairs) = parse(&text) {
                prop_assert!(pairs.len() <= PAIRS_MAX);
                let mut emitted = Vec::new();
                for pair in &pairs {
                    emit(pair.key, pair.value, &mut emitted);
                }
                prop_assert_eq!(parse(&emitted).unwrap(), pairs);
            }
        }

        #[test]
        fn any_value(value in ".{0,64}") {
            let _ = (parse_number(&value), parse_range(&value));
            if let Some(bytes) = parse_binary(&value, 16) {
                prop_assert!((1..=16).contains(&bytes.len()));
            }
        }

        #[test]
        fn binary_values_return(bytes in prop::collection::vec(any::<u8>(), 1..64)) {
            prop_assert_eq!(parse_binary(&base64(&bytes), 64), Some(bytes.clone()));
            prop_assert_eq!(parse_binary(&binary(&bytes), 64), Some(bytes));
        }

        #[test]
        fn cut_and_collected(text in prop::collection::vec(any::<u8>(), 0..300), segment_max in 1_usize..50) {
            let mut segments = Segments::new(text.clone());
            let mut collector = Collector::new();
            loop {
                let (segment, continues) = segments.next_segment(segment_max);
                prop_assert!(segment.len() <= segment_max);
                if let Some(whole) = collector.push(segment, continues, 300).unwrap() {
                    prop_assert_eq!(whole, text);
                    break;
                }
            }
        }
    }
}
