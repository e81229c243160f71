//! The text of Login and Text PDUs, byte by byte: names of keys that the standards define stay, values of keys that are
//! negotiated as numbers or yes and no stay, everything else becomes `x`.
//!
//! It works on a stream, because a text goes on in the next packet and, with the C bit, in the next PDU.

use iscsi::login::outer::{MESSAGE, NONCE, PATTERN, SUITE, UNIT};

/// Keys whose values stay (RFC 7143 §12 and §13), and those of SEAL/1 that name algorithms.
const KEPT: [&str; 22] = [
    "AuthMethod",
    "MaxBurstLength",
    "FirstBurstLength",
    "ImmediateData",
    "InitialR2T",
    "MaxRecvDataSegmentLength",
    "MaxOutstandingR2T",
    "HeaderDigest",
    "DataDigest",
    "ErrorRecoveryLevel",
    "DefaultTime2Wait",
    "DefaultTime2Retain",
    "MaxConnections",
    "DataPDUInOrder",
    "DataSequenceInOrder",
    "SessionType",
    "TaskReporting",
    "iSCSIProtocolLevel",
    "OFMarker",
    SUITE,
    UNIT,
    PATTERN,
];

/// Keys whose names stay.
const KNOWN: [&str; 13] = [
    "InitiatorName",
    "TargetName",
    "InitiatorAlias",
    "TargetAlias",
    "TargetAddress",
    "CHAP_A",
    "CHAP_I",
    "CHAP_C",
    "CHAP_N",
    "CHAP_R",
    "SendTargets",
    NONCE,
    MESSAGE,
];

/// Words of which values that stay consist, beside numbers: of RFC 7143 §12 and §13, RFC 7144, and SEAL/1.
const WORDS: [&str; 24] = [
    "Yes",
    "No",
    "None",
    "CRC32C",
    "CHAP",
    "KRB5",
    "SRP",
    "SPKM1",
    "SPKM2",
    "Normal",
    "Discovery",
    "RFC3720",
    "ResponseFence",
    "FastAbort",
    "Reject",
    "NotUnderstood",
    "Irrelevant",
    "Z-example.hikyaku.seal1",
    "AES-256-GCM",
    "AEGIS-256X4",
    "AEGIS-128X2",
    "ChaCha20-Poly1305",
    "IKpsk2",
    "XX",
];

/// Digits of the longest number.
const DIGITS_MAX: usize = 10;
/// Bytes of a value that stay; no negotiated value is longer.
const VALUE_BYTES_MAX: usize = 80;

const FILLER: u8 = b'x';

/// Keys are shorter than this; see the assertion below.
const KEY_BYTES: usize = 32;

#[derive(Clone, Copy, Debug)]
enum Place {
    /// So many bytes of a key, all of them the beginning of a known one.
    Key(usize),
    /// So many bytes of a value that stays, and of its last word.
    Kept(usize, usize),
    /// Until the pair ends.
    Filled,
}

#[derive(Clone, Debug)]
pub(super) struct Text {
    /// The key, or the last word of the value.
    key: [u8; KEY_BYTES],
    place: Place,
}

impl Default for Text {
    fn default() -> Self {
        Self { key: [0; KEY_BYTES], place: Place::Key(0) }
    }
}

impl Text {
    /// At an unknown place: the rest of the pair is filled.
    pub(super) fn lost(&mut self) {
        self.place = Place::Filled;
    }

    /// Replaces `bytes`, which follow those of the last call.
    pub(super) fn replace(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            *byte = self.step(*byte);
        }
    }

    fn step(&mut self, byte: u8) -> u8 {
        if byte == 0 {
            self.place = Place::Key(0);
            return 0;
        }
        match self.place {
            Place::Key(length) if byte == b'=' => {
                let is_kept = KEPT.iter().any(|key| key.as_bytes() == &self.key[..length]);
                self.place = if is_kept { Place::Kept(0, 0) } else { Place::Filled };
                byte
            }
            Place::Key(length) if self.is_known(length, byte) => {
                self.key[length] = byte;
                self.place = Place::Key(length + 1);
                byte
            }
            Place::Kept(length, _) if length < VALUE_BYTES_MAX && byte == b',' => {
                self.place = Place::Kept(length + 1, 0);
                byte
            }
            Place::Kept(length, word) if length < VALUE_BYTES_MAX && self.is_of_a_word(word, byte) => {
                self.key[word] = byte;
                self.place = Place::Kept(length + 1, word + 1);
                byte
            }
            _ => {
                self.place = Place::Filled;
                FILLER
            }
        }
    }

    /// Whether the key's first `length` bytes and `byte` begin a known key.
    fn is_known(&self, length: usize, byte: u8) -> bool {
        KEPT.iter()
            .chain(&KNOWN)
            .map(|key| key.as_bytes())
            .any(|key| key.get(length) == Some(&byte) && key.starts_with(&self.key[..length]))
    }

    /// Whether the last word's first `length` bytes and `byte` begin a word of the standards, or are a number. A
    /// name within a value is cut where it differs from all of them.
    fn is_of_a_word(&self, length: usize, byte: u8) -> bool {
        let word = &self.key[..length];
        let is_number = byte.is_ascii_digit() && word.iter().all(u8::is_ascii_digit) && length < DIGITS_MAX;
        let mut words = WORDS.iter().map(|word| word.as_bytes());
        is_number || words.any(|known| known.get(length) == Some(&byte) && known.starts_with(word))
    }
}

const _: () = {
    let mut index = 0;
    while index < KEPT.len() {
        assert!(KEPT[index].len() <= KEY_BYTES);
        index += 1;
    }
    let mut index = 0;
    while index < WORDS.len() {
        assert!(WORDS[index].len() <= KEY_BYTES);
        index += 1;
    }
    let mut index = 0;
    while index < KNOWN.len() {
        assert!(KNOWN[index].len() <= KEY_BYTES);
        index += 1;
    }
};

#[cfg(test)]
mod tests {
    use super::*;

    fn replaced(text: &[u8], chunk: usize) -> String {
        let (mut state, mut bytes) = (Text::default(), text.to_vec());
        bytes.chunks_mut(chunk).for_each(|chunk| state.replace(chunk));
        bytes.escape_ascii().to_string()
    }

    #[test]
    fn names_and_secrets_are_replaced_and_numbers_stay() {
        let cases: [(&[u8], &str); 11] = [
            (b"InitiatorName=iqn.2026-01.org:host\0", "InitiatorName=xxxxxxxxxxxxxxxxxxxx\\x00"),
            (
                b"MaxBurstLength=262144\0InitialR2T=Yes\0HeaderDigest=CRC32C,None\0",
                "MaxBurstLength=262144\\x00InitialR2T=Yes\\x00HeaderDigest=CRC32C,None\\x00",
            ),
            (
                b"CHAP_A=5\0CHAP_N=joe\0CHAP_R=0xabcdef\0SessionType=Normal\0",
                "CHAP_A=x\\x00CHAP_N=xxx\\x00CHAP_R=xxxxxxxx\\x00SessionType=Normal\\x00",
            ),
            // Of a key that no standard defines, the bytes after its common beginning with a standard key are replaced.
            (b"X-com.vendor.secret=abc\0", "X-xxxxxxxxxxxxxxxxxxxxx\\x00"),
            (b"secret\0Max=1\0", "xxxxxx\\x00Max=x\\x00"),
            // A value that is none of a number or word.
            (b"MaxBurstLength=10.1.2.3:80 name\0\0\0", "MaxBurstLength=10xxxxxxxxxxxxxx\\x00\\x00\\x00"),
            // What is planted in a key that stays.
            (b"AuthMethod=CHAP,AcmeCorpSecret,None\0", "AuthMethod=CHAP,Axxxxxxxxxxxxxxxxxx\\x00"),
            (b"MaxBurstLength=0x6162636465\0", "MaxBurstLength=0xxxxxxxxxxx\\x00"),
            (
                b"X-example.hikyaku.suite=AES-256-GCM,AEGIS-256X4\0",
                "X-example.hikyaku.suite=AES-256-GCM,AEGIS-256X4\\x00",
            ),
            (b"=\0==\0", "=\\x00=x\\x00"),
            (b"\xff\x01text", "xxxxxx"),
        ];
        for (text, expected) in cases {
            for chunk in [1, 3, text.len()] {
                assert_eq!(replaced(text, chunk), expected);
            }
        }
        let long = [b"MaxBurstLength=".to_vec(), vec![b'1'; 2 * DIGITS_MAX]].concat();
        let expected = format!("MaxBurstLength={}{}", "1".repeat(DIGITS_MAX), "x".repeat(DIGITS_MAX));
        assert_eq!(replaced(&long, 7), expected);
    }

    #[test]
    fn after_a_gap_the_pair_is_filled() {
        let (mut state, mut bytes) = (Text::default(), *b"th=262144\0InitialR2T=No");
        state.lost();
        state.replace(&mut bytes);
        assert_eq!(bytes.escape_ascii().to_string(), "xxxxxxxxx\\x00InitialR2T=No");
    }
}
