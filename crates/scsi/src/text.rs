//! Text fields of SCSI data: left-aligned ASCII, padded with spaces (SPC-4 4.3.1).

/// Writes `text` into `field`, padded with spaces and truncated to its length. Anything but printable ASCII becomes
/// `?`, so that a configured string cannot break the peer's parser.
pub(crate) fn emit(field: &mut [u8], text: &str) {
    field.fill(b' ');
    for (to, from) in field.iter_mut().zip(text.bytes()) {
        *to = if (0x20..0x7f).contains(&from) { from } else { b'?' };
    }
}

/// Parses a text field of a peer: control characters and non-ASCII bytes become `?`, padding is removed.
pub(crate) fn parse(field: &[u8]) -> String {
    let end = field.iter().rposition(|byte| !matches!(byte, 0 | b' ')).map_or(0, |last| last + 1);
    let start = field[..end].iter().position(|byte| *byte != b' ').unwrap_or(end);
    field[start..end]
        .iter()
        .map(|byte| if (0x20..0x7f).contains(byte) { char::from(*byte) } else { '?' })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pads_cuts_and_cleans() {
        let mut field = [0; 4];
        emit(&mut field, "a\n");
        assert_eq!(&field, b"a?  ");
        emit(&mut field, "abcdef");
        assert_eq!(&field, b"abcd");
    }

    #[test]
    fn hostile_text_comes_out_printable() {
        assert_eq!(parse(b"  ok\x1b[2J\xff \0\0"), "ok?[2J?");
        assert_eq!(parse(b"    "), "");
        assert_eq!(parse(b""), "");
    }
}
