//! AES-XTS (IEEE 1619) as dm-crypt's `aes-xts-plain64` uses it: data is a sequence of units, each encrypted alone under
//! the number of its first 512 bytes.
//!
//! AES-256 (keys of 64 bytes) is aws-lc's, through its C interface: `aws-lc-rs` does not offer XTS. AES-128 (keys of 32
//! bytes), which aws-lc lacks, is RustCrypto's. All `unsafe` of volumes is in this crate: calls of aws-lc's
//! `EVP_CIPHER_CTX` functions, whose pointers `Context` owns. No I/O, clock or randomness.

use std::ptr::{self, NonNull};

use aes::Aes128;
use aes::cipher::KeyInit as _;
use aws_lc_sys as sys;
use xts_mode::Xts128;

/// A tweak counts units of this many bytes, whatever the size of a unit (dm-crypt without `iv_large_sectors`).
pub const TWEAK_BYTES: usize = 512;
/// Largest unit: the standard's limit is 2^20 blocks, dm-crypt's 4096 bytes.
pub const UNIT_BYTES_MAX: usize = 4096;

/// A key that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadKey {
    /// Not 32 or 64 bytes.
    Length,
    /// Both halves are equal, so that XTS protects less than AES-ECB (FIPS 140 IG C.I).
    EqualHalves,
}

/// Encrypts and decrypts with one key, for one thread: a unit's tweak is state of the cipher. aws-lc zeroes the expanded
/// key when it is dropped.
pub struct Xts {
    cipher: Cipher,
    unit_bytes: usize,
}

enum Cipher {
    Aes256 { seal: Context, open: Context },
    Aes128(Box<Xts128<Aes128>>),
}

/// An owned `EVP_CIPHER_CTX` with a key and a direction.
struct Context(NonNull<sys::EVP_CIPHER_CTX>);

// SAFETY: a context belongs to no thread (openssl/cipher.h); it is changed through `&mut self` only.
unsafe impl Send for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the pointer came from aws-lc, is valid, and is not used after this call. aws-lc zeroes what it frees.
        unsafe { sys::EVP_CIPHER_CTX_free(self.0.as_ptr()) };
    }
}

impl Context {
    fn new(key: &[u8; 64], is_sealing: bool) -> Self {
        // SAFETY: returns an owned context, or null.
        let context =
            NonNull::new(unsafe { sys::EVP_CIPHER_CTX_new() }).expect("memory for a cipher's context");
        let this = Self(context);
        // SAFETY: the context is valid, the cipher is static and takes 64 bytes of key; a null ENGINE is the default one,
        // and a null iv means that it is set later.
        let result = unsafe {
            let cipher = sys::EVP_aes_256_xts();
            let (engine, iv) = (ptr::null_mut(), ptr::null());
            sys::EVP_CipherInit_ex(context.as_ptr(), cipher, engine, key.as_ptr(), iv, is_sealing.into())
        };
        assert_eq!(result, 1, "a key with different halves");
        this
    }

    /// One unit of `length` bytes: from `from` to `into`, which are equal or do not overlap.
    ///
    /// # Safety
    /// `from` is readable and `into` writable for `length` bytes.
    unsafe fn unit(&mut self, tweak: u64, from: *const u8, into: *mut u8, length: usize) {
        let mut iv = [0; 16];
        iv[..8].copy_from_slice(&tweak.to_le_bytes());
        let context = self.0.as_ptr();
        let mut written = 0;
        // SAFETY: the context is valid and has its key; nulls keep cipher, engine and key, and -1 the direction; `iv` has
        // the 16 bytes of the cipher's. The caller vouches for the bytes, and XTS writes as many as it reads.
        let results = unsafe {
            let (cipher, engine, key) = (ptr::null(), ptr::null_mut(), ptr::null());
            [
                sys::EVP_CipherInit_ex(context, cipher, engine, key, iv.as_ptr(), -1),
                sys::EVP_CipherUpdate(context, into, &raw mut written, from, length as i32),
            ]
        };
        assert_eq!((results, written as usize), ([1, 1], length), "XTS of a unit");
    }
}

impl Xts {
    /// `key` has 32 bytes (AES-128) or 64 (AES-256); a unit has `unit_bytes`, a power of two from 512 to 4096.
    pub fn new(key: &[u8], unit_bytes: usize) -> Result<Self, BadKey> {
        assert!(
            unit_bytes.is_power_of_two() && (TWEAK_BYTES..=UNIT_BYTES_MAX).contains(&unit_bytes),
            "a unit of {unit_bytes} bytes"
        );
        if ![32, 64].contains(&key.len()) {
            return Err(BadKey::Length);
        }
        let (data, tweak) = key.split_at(key.len() / 2);
        if data == tweak {
            return Err(BadKey::EqualHalves);
        }
        let cipher = match key.try_into() {
            Ok(key) => Cipher::Aes256 { seal: Context::new(key, true), open: Context::new(key, false) },
            Err(_) => {
                let [data, tweak] =
                    [data, tweak].map(|half| Aes128::new_from_slice(half).expect("a half of 16 bytes"));
                Cipher::Aes128(Box::new(Xts128::new(data, tweak)))
            }
        };
        Ok(Self { cipher, unit_bytes })
    }

    pub fn unit_bytes(&self) -> usize {
        self.unit_bytes
    }

    /// Encrypts whole units from `plain` to `sealed`, which have equal lengths. `tweak` is the number of the first 512
    /// bytes.
    pub fn seal_into(&mut self, tweak: u64, plain: &[u8], sealed: &mut [u8]) {
        assert_eq!(plain.len(), sealed.len(), "a unit and its place");
        self.check(plain.len());
        if let Cipher::Aes128(_) = self.cipher {
            sealed.copy_from_slice(plain);
            return self.seal(tweak, sealed);
        }
        let Cipher::Aes256 { seal, .. } = &mut self.cipher else { unreachable!("the other was handled") };
        let units = plain.chunks_exact(self.unit_bytes).zip(sealed.chunks_exact_mut(self.unit_bytes));
        for (tweak, (plain, sealed)) in tweaks(tweak, self.unit_bytes).zip(units) {
            // SAFETY: two slices of equal length that do not overlap.
            unsafe { seal.unit(tweak, plain.as_ptr(), sealed.as_mut_ptr(), plain.len()) };
        }
    }

    /// Encrypts whole units in place.
    pub fn seal(&mut self, tweak: u64, data: &mut [u8]) {
        self.check(data.len());
        let tweaks = tweaks(tweak, self.unit_bytes);
        match &mut self.cipher {
            Cipher::Aes256 { seal, .. } => in_place(seal, tweaks, data, self.unit_bytes),
            Cipher::Aes128(cipher) => {
                for (tweak, unit) in tweaks.zip(data.chunks_exact_mut(self.unit_bytes)) {
                    cipher.encrypt_sector(unit, u128::from(tweak).to_le_bytes().into());
                }
            }
        }
    }

    /// Decrypts whole units in place.
    pub fn open(&mut self, tweak: u64, data: &mut [u8]) {
        self.check(data.len());
        let tweaks = tweaks(tweak, self.unit_bytes);
        match &mut self.cipher {
            Cipher::Aes256 { open, .. } => in_place(open, tweaks, data, self.unit_bytes),
            Cipher::Aes128(cipher) => {
                for (tweak, unit) in tweaks.zip(data.chunks_exact_mut(self.unit_bytes)) {
                    cipher.decrypt_sector(unit, u128::from(tweak).to_le_bytes().into());
                }
            }
        }
    }

    fn check(&self, length: usize) {
        assert!(length.is_multiple_of(self.unit_bytes), "{length} bytes in units of {}", self.unit_bytes);
    }
}

fn tweaks(first: u64, unit_bytes: usize) -> impl Iterator<Item = u64> {
    (0..).map(move |unit| first.wrapping_add(unit * (unit_bytes / TWEAK_BYTES) as u64))
}

fn in_place(context: &mut Context, tweaks: impl Iterator<Item = u64>, data: &mut [u8], unit_bytes: usize) {
    for (tweak, unit) in tweaks.zip(data.chunks_exact_mut(unit_bytes)) {
        let bytes = unit.as_mut_ptr();
        // SAFETY: one slice of which this thread has the only reference, read and written in place.
        unsafe { context.unit(tweak, bytes, bytes, unit.len()) };
    }
}

#[cfg(test)]
mod tests;
