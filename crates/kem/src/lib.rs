//! ML-KEM-768 (FIPS 203) by aws-lc, with its randomness as an argument: `aws-lc-rs` draws its own, so a handshake could
//! neither be replayed from test vectors nor run in the simulator.
//!
//! All `unsafe` of the sealed protocol is in this crate: calls of aws-lc's `EVP_PKEY` functions, whose pointers `Key`
//! and `Context` own and free on drop. aws-lc zeroes the memory that it frees. The crate has no I/O, clock or
//! randomness.

use std::fmt;
use std::ptr::{self, NonNull};

use aws_lc_sys as sys;
use zeroize::Zeroizing;

/// Bytes of the seed of a key pair: d, then z.
pub const SEED_BYTES: usize = 64;
/// Bytes of an encapsulation key.
pub const EK_BYTES: usize = 1184;
/// Bytes of a ciphertext.
pub const CT_BYTES: usize = 1088;
/// Bytes of a shared secret, and of the randomness of one encapsulation.
pub const SHARED_BYTES: usize = 32;

/// A shared secret; zeroed when dropped.
pub type Shared = Zeroizing<[u8; SHARED_BYTES]>;

/// An owned `EVP_PKEY`.
struct Key(NonNull<sys::EVP_PKEY>);

/// An owned `EVP_PKEY_CTX`, which holds its own reference to its key.
struct Context(NonNull<sys::EVP_PKEY_CTX>);

impl Drop for Key {
    fn drop(&mut self) {
        // SAFETY: the pointer came from aws-lc, is valid, and is not used after this call.
        unsafe { sys::EVP_PKEY_free(self.0.as_ptr()) };
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: as for `Key`.
        unsafe { sys::EVP_PKEY_CTX_free(self.0.as_ptr()) };
    }
}

impl Context {
    fn of(key: &Key) -> Self {
        // SAFETY: `key` is a valid EVP_PKEY; the context takes a reference of its own. A null ENGINE is the default one.
        let context = unsafe { sys::EVP_PKEY_CTX_new(key.0.as_ptr(), ptr::null_mut()) };
        Self(NonNull::new(context).expect("memory for a key's context"))
    }
}

/// A key pair. aws-lc zeroes the memory of the private key when the pair is dropped.
pub struct KeyPair(Key);

// SAFETY: the reference count of an `EVP_PKEY` is atomic, and no call used here modifies its contents after creation
// (openssl/evp.h: it "may be used concurrently on multiple threads" by functions that do not modify it).
unsafe impl Send for KeyPair {}
// SAFETY: as above; `&KeyPair` gives access only to functions that do not modify the key.
unsafe impl Sync for KeyPair {}

impl KeyPair {
    /// ML-KEM.KeyGen_internal(d, z).
    pub fn from_seed(seed: &[u8; SEED_BYTES]) -> Self {
        // SAFETY: the only pointer argument is a null ENGINE, the default one.
        let context = unsafe { sys::EVP_PKEY_CTX_new_id(sys::EVP_PKEY_KEM, ptr::null_mut()) };
        let context = Context(NonNull::new(context).expect("memory for a key's context"));
        let mut key = ptr::null_mut();
        let mut seed_bytes = SEED_BYTES;
        // SAFETY: `context` is valid. `seed` has the 64 bytes of `seed_bytes`, which aws-lc compares with the required
        // length. A null `key` makes the last call allocate one, which this function owns if that call succeeds.
        let made = unsafe {
            sys::EVP_PKEY_CTX_kem_set_params(context.0.as_ptr(), sys::NID_MLKEM768) == 1
                && sys::EVP_PKEY_keygen_init(context.0.as_ptr()) == 1
                && sys::EVP_PKEY_keygen_deterministic(
                    context.0.as_ptr(),
                    &raw mut key,
                    seed.as_ptr(),
                    &raw mut seed_bytes,
                ) == 1
        };
        assert!(made, "aws-lc makes a key pair of ML-KEM-768 from any seed");
        Self(Key(NonNull::new(key).expect("a call that succeeded")))
    }

    pub fn encapsulation_key(&self) -> [u8; EK_BYTES] {
        let mut bytes = [0; EK_BYTES];
        let mut length = EK_BYTES;
        // SAFETY: the key is valid and `bytes` has room for `length` bytes; aws-lc fails if it needs more.
        let got = unsafe {
            sys::EVP_PKEY_get_raw_public_key(self.0.0.as_ptr(), bytes.as_mut_ptr(), &raw mut length)
        };
        assert!(got == 1 && length == EK_BYTES, "an encapsulation key of {length} bytes");
        bytes
    }

    /// ML-KEM.Decaps: an altered ciphertext yields another secret, not an error.
    pub fn decapsulate(&self, ct: &[u8; CT_BYTES]) -> Shared {
        let context = Context::of(&self.0);
        let mut shared = Shared::default();
        let mut length = SHARED_BYTES;
        // SAFETY: `context` is valid; `shared` has room for `length` bytes and `ct` has the length given.
        let done = unsafe {
            sys::EVP_PKEY_decapsulate(
                context.0.as_ptr(),
                shared.as_mut_ptr(),
                &raw mut length,
                ct.as_ptr(),
                CT_BYTES,
            )
        };
        assert!(done == 1 && length == SHARED_BYTES, "a ciphertext of the right length gives a secret");
        shared
    }
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyPair").finish_non_exhaustive()
    }
}

/// ML-KEM.Encaps_internal(ek, m): the ciphertext and the shared secret. `None` if `ek` is not an encapsulation key (FIPS 203
/// section 7.2).
pub fn encapsulate(ek: &[u8; EK_BYTES], m: &[u8; SHARED_BYTES]) -> Option<([u8; CT_BYTES], Shared)> {
    // SAFETY: `ek` has the length given; aws-lc copies it.
    let key = unsafe { sys::EVP_PKEY_kem_new_raw_public_key(sys::NID_MLKEM768, ek.as_ptr(), EK_BYTES) };
    let context = Context::of(&Key(NonNull::new(key)?));
    let (mut ct, mut shared) = ([0; CT_BYTES], Shared::default());
    let (mut ct_bytes, mut shared_bytes, mut m_bytes) = (CT_BYTES, SHARED_BYTES, SHARED_BYTES);
    // SAFETY: `context` is valid; each pointer is passed with the length of its buffer, which aws-lc compares with the
    // required length.
    let done = unsafe {
        sys::EVP_PKEY_encapsulate_deterministic(
            context.0.as_ptr(),
            ct.as_mut_ptr(),
            &raw mut ct_bytes,
            shared.as_mut_ptr(),
            &raw mut shared_bytes,
            m.as_ptr(),
            &raw mut m_bytes,
        )
    };
    if done != 1 {
        // The reason is in an error queue of the thread, where a later unrelated call would find it.
        // SAFETY: a call without arguments.
        unsafe { sys::ERR_clear_error() };
        return None;
    }
    assert!(ct_bytes == CT_BYTES && shared_bytes == SHARED_BYTES, "lengths of ML-KEM-768");
    Some((ct, shared))
}

#[cfg(test)]
mod tests;
