//! The cipher of the papers of 2004, for their experiments only: 3DES-EDE-CBC (SP 800-67, SP 800-38A), then
//! HMAC-SHA-256 truncated to 16 bytes. Its 64-bit blocks make it unfit for more than a few GiB under one key.

use des::TdesEde3;
use des::cipher::{Block, BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use hmac::{Hmac, Mac};
use sha2::Sha256;

use super::{Aead, Tag};
use crate::Broken;

const CIPHER_KEY_BYTES: usize = 24;
/// Bytes of a key: that of the cipher, then that of the MAC.
pub(crate) const KEY_BYTES: usize = CIPHER_KEY_BYTES + 32;

pub(crate) struct TripleDes {
    cipher: TdesEde3,
    mac: Hmac<Sha256>,
}

impl TripleDes {
    /// `key` has [`KEY_BYTES`].
    pub(crate) fn new(key: &[u8]) -> Self {
        let (cipher, mac) = key.split_at(CIPHER_KEY_BYTES);
        Self {
            cipher: TdesEde3::new_from_slice(cipher).expect("a key of 24 bytes"),
            mac: Hmac::new_from_slice(mac).expect("a key of any length"),
        }
    }

    fn encrypt(&self, block: &mut Block<TdesEde3>) {
        self.cipher.encrypt_block(block);
    }

    /// The first chaining value: the encrypted nonce (SP 800-38A appendix C).
    fn first(&self, nonce: &[u8]) -> Block<TdesEde3> {
        let mut block = Block::<TdesEde3>::try_from(nonce).expect("a nonce of 8 bytes");
        self.encrypt(&mut block);
        block
    }

    /// A partial last block is XORed with the encryption of the last ciphertext block.
    fn last(&self, mut chain: Block<TdesEde3>, rest: &mut [u8]) {
        self.encrypt(&mut chain);
        xor(rest, &chain);
    }

    fn mac(&self, nonce: &[u8], aad: &[u8], sealed: &[u8]) -> Hmac<Sha256> {
        let mut mac = self.mac.clone();
        mac.update(nonce);
        mac.update(&(aad.len() as u64).to_be_bytes());
        mac.update(aad);
        mac.update(sealed);
        mac
    }
}

fn xor(bytes: &mut [u8], with: &[u8]) {
    for (byte, with) in bytes.iter_mut().zip(with) {
        *byte ^= with;
    }
}

impl Aead for TripleDes {
    fn seal(&self, nonce: &[u8], aad: &[u8], data: &mut [u8]) -> Tag {
        let mut chain = self.first(nonce);
        let mut blocks = data.chunks_exact_mut(8);
        for block in &mut blocks {
            xor(&mut chain, block);
            self.encrypt(&mut chain);
            block.copy_from_slice(&chain);
        }
        self.last(chain, blocks.into_remainder());
        let tag = self.mac(nonce, aad, data).finalize().into_bytes();
        *tag.first_chunk().expect("32 bytes")
    }

    fn seal_into(&self, nonce: &[u8], aad: &[u8], plain: &[u8], sealed: &mut [u8]) -> Tag {
        sealed.copy_from_slice(plain);
        self.seal(nonce, aad, sealed)
    }

    fn open(&self, nonce: &[u8], aad: &[u8], data: &mut [u8], tag: &Tag) -> Result<(), Broken> {
        self.mac(nonce, aad, data).verify_truncated_left(tag).map_err(|_| Broken)?;
        let mut chain = self.first(nonce);
        let mut blocks = data.chunks_exact_mut(8);
        for block in &mut blocks {
            let sealed = Block::<TdesEde3>::try_from(&*block).expect("8 bytes");
            let mut plain = sealed;
            self.cipher.decrypt_block(&mut plain);
            xor(&mut plain, &chain);
            block.copy_from_slice(&plain);
            chain = sealed;
        }
        self.last(chain, blocks.into_remainder());
        Ok(())
    }
}
