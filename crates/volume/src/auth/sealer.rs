//! Encryption of blocks, outside the volume's lock.

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, LessSafeKey, Nonce, UnboundKey};

use super::keys::{Key, TAG_BYTES};
use super::{BLOCK_BYTES, Candidates, Cipher, Context, Generation};

/// A block does not verify with its context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the block does not verify")]
pub struct Broken;

/// Seals and opens blocks under the key of a volume. One for each thread, or shared: it has no state beside the key.
pub struct Sealer {
    cipher: Cipher,
    aead: Aead,
}

enum Aead {
    Aes256GcmSiv(LessSafeKey),
    Aegis256X4(Key),
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sealer").field("cipher", &self.cipher).finish_non_exhaustive()
    }
}

impl Sealer {
    pub(super) fn new(cipher: Cipher, key: &Key) -> Self {
        let aead = match cipher {
            Cipher::Aes256GcmSiv => {
                let key = UnboundKey::new(&AES_256_GCM_SIV, &**key).expect("a key of 32 bytes");
                Aead::Aes256GcmSiv(LessSafeKey::new(key))
            }
            Cipher::Aegis256X4 => Aead::Aegis256X4(key.clone()),
        };
        Self { cipher, aead }
    }

    pub fn cipher(&self) -> Cipher {
        self.cipher
    }

    /// Encrypts `plain`, which other processes may change meanwhile, into `sealed`, both of [`BLOCK_BYTES`]. `nonce` is
    /// fresh randomness of [`Cipher::nonce_bytes`].
    ///
    /// `plain` is copied first: AES-256-GCM-SIV reads its input twice, and a state of AEGIS that is kept between calls costs
    /// more than the copy.
    pub fn seal(
        &self,
        block: u64,
        generation: Generation,
        nonce: &[u8],
        plain: &[u8],
        sealed: &mut [u8],
    ) -> Context {
        assert!(plain.len() == BLOCK_BYTES && sealed.len() == BLOCK_BYTES, "a block and its place");
        let mut context = Context::begin(generation, nonce);
        let additional = additional(block, generation);
        sealed.copy_from_slice(plain);
        context.tag = match &self.aead {
            Aead::Aes256GcmSiv(key) => {
                let nonce = Nonce::try_assume_unique_for_key(nonce).expect("a nonce of 12 bytes");
                let tag = key.seal_in_place_separate_tag(nonce, Aad::from(additional), sealed);
                tag.expect("a block is below the limit").as_ref().try_into().expect("a tag of 16 bytes")
            }
            Aead::Aegis256X4(key) => aegis(key, &context).encrypt_in_place(sealed, &additional),
        };
        context
    }

    /// Verifies and decrypts `data`, a block, in place. Zeroes `data` if it does not verify.
    pub fn open(&self, block: u64, context: &Context, data: &mut [u8]) -> Result<(), Broken> {
        assert_eq!(data.len(), BLOCK_BYTES, "a block");
        let additional = additional(block, context.generation);
        let opened = match &self.aead {
            Aead::Aes256GcmSiv(key) => {
                let nonce =
                    Nonce::try_assume_unique_for_key(&context.nonce[..12]).expect("a nonce of 12 bytes");
                let opened = key.open_in_place_separate_tag(nonce, Aad::from(additional), &context.tag, data);
                opened.map(|_| ()).map_err(|_| Broken)
            }
            Aead::Aegis256X4(key) => {
                aegis(key, context).decrypt_in_place(data, &context.tag, &additional).map_err(|_| Broken)
            }
        };
        if opened.is_err() {
            data.fill(0);
        }
        opened
    }

    /// As [`Self::open`] with the first candidate that verifies; returns its index.
    pub fn open_any(&self, block: u64, candidates: &Candidates, data: &mut [u8]) -> Result<u8, Broken> {
        let Some(other) = &candidates.other else {
            return self.open(block, &candidates.first, data).map(|()| 0);
        };
        let sealed: [u8; BLOCK_BYTES] = (&*data).try_into().expect("a block");
        if self.open(block, &candidates.first, data).is_ok() {
            return Ok(0);
        }
        data.copy_from_slice(&sealed);
        self.open(block, other, data).map(|()| 1)
    }
}

fn aegis(key: &Key, context: &Context) -> aegis::aegis256x4::Aegis256X4<TAG_BYTES> {
    let mut nonce = [0; 32];
    nonce[..28].copy_from_slice(&context.nonce);
    nonce[28..].copy_from_slice(&context.generation.bits().to_le_bytes());
    aegis::aegis256x4::Aegis256X4::new(key, &nonce)
}

fn additional(block: u64, generation: Generation) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&block.to_le_bytes());
    bytes[8..].copy_from_slice(&generation.bits().to_le_bytes());
    bytes
}
