//! Header and data digests: CRC32C over a segment and its padding (RFC 7143 §13.1, vectors in Appendix A.4).
//!
//! The digest goes on the wire least significant byte first, as the vectors show.

pub const DIGEST_LENGTH: usize = 4;

#[derive(Debug, Clone)]
pub struct Digest(crc_fast::Digest);

impl Default for Digest {
    fn default() -> Self {
        Self::new()
    }
}

impl Digest {
    #[must_use]
    pub fn new() -> Self {
        Self(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi))
    }

    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Adds the zero bytes that pad the input so far to four. Only a sender calls it: a receiver adds the padding that
    /// arrived, which RFC 7143 does not require to be zero.
    pub fn pad(&mut self) {
        let padding = (4 - self.0.get_amount() % 4) % 4;
        self.0.update(&[0; 3][..usize::try_from(padding).expect("below four")]);
    }

    /// The digest in wire order. More input may follow.
    #[must_use]
    pub fn finish(&self) -> [u8; DIGEST_LENGTH] {
        wire(self.0.finalize())
    }

    #[must_use]
    pub fn matches(&self, received: [u8; DIGEST_LENGTH]) -> bool {
        self.finish() == received
    }
}

fn wire(crc: u64) -> [u8; DIGEST_LENGTH] {
    u32::try_from(crc).expect("a CRC of 32 bits").to_le_bytes()
}

/// Digest of one slice, without padding.
#[must_use]
pub fn of(bytes: &[u8]) -> [u8; DIGEST_LENGTH] {
    crc_fast::crc32_iscsi(bytes).to_le_bytes()
}

/// Header digest: the basic header segment and all AHS bytes, which are padded already.
#[must_use]
pub fn header(bhs: &[u8; 48], ahs: &[u8]) -> [u8; DIGEST_LENGTH] {
    if ahs.is_empty() {
        return of(bhs);
    }
    let mut digest = Digest::new();
    digest.update(bhs);
    digest.update(ahs);
    digest.finish()
}

/// Data digest of a segment that lies in several slices, zero padding included.
#[must_use]
pub fn data<'a>(slices: impl IntoIterator<Item = &'a [u8]>) -> [u8; DIGEST_LENGTH] {
    let mut digest = Digest::new();
    for slice in slices {
        digest.update(slice);
    }
    digest.pad();
    digest.finish()
}

#[cfg(test)]
mod tests {
    use super::{Digest, data, header, of};

    const READ10: [u8; 48] = [
        0x01, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x14, 0, 0, 0, 0, 0, 0x04, 0, 0, 0, 0, 0x14, 0,
        0, 0, 0x18, 0x28, 0, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0, 0, 0, 0, 0,
    ];

    #[test]
    fn vectors_of_appendix_a4() {
        let up: Vec<u8> = (0..32).collect();
        let down: Vec<u8> = (0..32).rev().collect();
        let vectors: [(&[u8], [u8; 4]); 5] = [
            (&[0; 32], [0xaa, 0x36, 0x91, 0x8a]),
            (&[0xff; 32], [0x43, 0xab, 0xa8, 0x62]),
            (&up, [0x4e, 0x79, 0xdd, 0x46]),
            (&down, [0x5c, 0xdb, 0x3f, 0x11]),
            (&READ10, [0x56, 0x3a, 0x96, 0xd9]),
        ];
        for (bytes, expected) in vectors {
            assert_eq!(of(bytes), expected);
            for cut in 0..=bytes.len() {
                let mut digest = Digest::new();
                digest.update(&bytes[..cut]);
                digest.update(&bytes[cut..]);
                assert!(digest.matches(expected), "cut at {cut}");
            }
        }
    }

    #[test]
    fn header_digest_covers_ahs() {
        assert_eq!(header(&READ10, &[]), of(&READ10));
        let ahs = [0, 5, 2, 0, 0, 0, 2, 0];
        let joined: Vec<u8> = READ10.iter().chain(&ahs).copied().collect();
        assert_eq!(header(&READ10, &ahs), of(&joined));
    }

    #[test]
    fn data_digest_covers_padding() {
        for length in 0_u8..9 {
            let bytes: Vec<u8> = (1..=length).collect();
            let mut padded = bytes.clone();
            padded.resize(bytes.len().next_multiple_of(4), 0);
            assert_eq!(data([&bytes[..]]), of(&padded), "{length}");
            let (a, b) = bytes.split_at(bytes.len() / 2);
            assert_eq!(data([a, b]), of(&padded), "{length}");
        }
    }

    #[test]
    fn any_flipped_bit_is_seen() {
        let mut bytes = READ10;
        for bit in 0..48 * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(of(&bytes), of(&READ10), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
