//! AES-256-GCM and ChaCha20-Poly1305 by aws-lc, which selects the instructions at run time and wipes its keys.

use aws_lc_rs::aead::{Aad, Algorithm, LessSafeKey, Nonce, UnboundKey};

use super::{Aead, Tag};
use crate::{Broken, TAG_BYTES};

pub(crate) struct AwsLc(LessSafeKey);

impl AwsLc {
    /// `key` has the key length of the algorithm.
    pub(crate) fn new(algorithm: &'static Algorithm, key: &[u8]) -> Self {
        Self(LessSafeKey::new(UnboundKey::new(algorithm, key).expect("a key of the right length")))
    }
}

fn nonce(bytes: &[u8]) -> Nonce {
    Nonce::try_assume_unique_for_key(bytes).expect("a nonce of 12 bytes")
}

impl Aead for AwsLc {
    fn seal(&self, number: &[u8], aad: &[u8], data: &mut [u8]) -> Tag {
        let tag = self.0.seal_in_place_separate_tag(nonce(number), Aad::from(aad), data);
        tag.expect("data far below the limit").as_ref().try_into().expect("a tag of 16 bytes")
    }

    fn seal_into(&self, number: &[u8], aad: &[u8], plain: &[u8], sealed: &mut [u8]) -> Tag {
        let mut tag = [0; TAG_BYTES];
        self.0
            .seal_out_of_place_scatter(nonce(number), Aad::from(aad), plain, sealed, &[], &mut tag)
            .expect("slices of one length, far below the limit");
        tag
    }

    fn open(&self, number: &[u8], aad: &[u8], data: &mut [u8], tag: &Tag) -> Result<(), Broken> {
        let opened = self.0.open_in_place_separate_tag(nonce(number), Aad::from(aad), tag, data);
        opened.map(|_| ()).map_err(|_| Broken)
    }
}
