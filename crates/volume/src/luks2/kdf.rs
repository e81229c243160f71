//! Key derivations of keyslots, and the bounds of what they may cost: the parameters of a header are the provider's.

use argon2::{Algorithm, Argon2, Block, Params, Version};
use rayon::iter::{IndexedParallelIterator as _, IntoParallelIterator as _, ParallelIterator as _};
use rayon::{ThreadPool, ThreadPoolBuilder};
use zeroize::Zeroize;

use super::hash::Hash;

/// Most memory that a derivation may use, whatever the machine has: the most that cryptsetup writes.
pub const KDF_MEMORY_BYTES_MAX: u64 = 4 << 30;
/// Most bytes that the passes of Argon2 may write, memory times passes: about ten minutes of one core.
pub const KDF_WRITTEN_BYTES_MAX: u64 = 1 << 40;
/// Most iterations of PBKDF2: some minutes of one core.
pub const PBKDF2_ITERATIONS_MAX: u32 = 1 << 28;
/// Most lanes of Argon2. cryptsetup writes at most 4.
pub const KDF_LANES_MAX: u32 = 64;
/// Bytes of every salt.
pub const SALT_BYTES: usize = 32;

const KIB: u64 = 1024;

/// A key derivation with its costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pbkdf {
    Pbkdf2 { hash: Hash, iterations: u32 },
    Argon2i(Argon2Costs),
    Argon2id(Argon2Costs),
}

/// The three costs of Argon2 (RFC 9106 §3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Argon2Costs {
    /// Passes over the memory.
    pub passes: u32,
    pub memory_kib: u32,
    /// Parts of the memory that threads fill beside each other.
    pub lanes: u32,
}

/// Costs outside the bounds of this crate, of Argon2 or of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CostError {
    #[error(
        "a key derivation with {bytes} bytes of memory, of which {bytes_max} may be used; where there is more, `hikyaku volume passwd --pbkdf-memory SIZE` lowers it"
    )]
    Memory { bytes: u64, bytes_max: u64 },
    #[error("a key derivation of {passes} passes over {memory_kib} KiB of memory, which takes too long")]
    Passes { passes: u32, memory_kib: u32 },
    #[error("a key derivation with {0} parallel threads, of 1 to {KDF_LANES_MAX}")]
    Lanes(u32),
    #[error("Argon2 with {memory_kib} KiB of memory for {lanes} threads, which need 8 KiB each")]
    MemoryOfLanes { memory_kib: u32, lanes: u32 },
    #[error("PBKDF2 with {0} iterations, of 1 to {PBKDF2_ITERATIONS_MAX}")]
    Iterations(u32),
}

/// This process lacks what a derivation within the bounds needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeriveError {
    #[error("the key derivation takes {0} bytes of memory, which this process does not get")]
    Memory(u64),
    #[error("the key derivation cannot start its threads")]
    Threads,
}

impl Pbkdf {
    /// Its `type` in a header.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Pbkdf2 { .. } => "pbkdf2",
            Self::Argon2i(_) => "argon2i",
            Self::Argon2id(_) => "argon2id",
        }
    }

    pub fn memory_bytes(&self) -> u64 {
        match self {
            Self::Pbkdf2 { .. } => 0,
            Self::Argon2i(costs) | Self::Argon2id(costs) => u64::from(costs.memory_kib) * KIB,
        }
    }

    /// Whether the costs are within the bounds; `memory_bytes_max` is the caller's beside [`KDF_MEMORY_BYTES_MAX`].
    pub fn check(&self, memory_bytes_max: u64) -> Result<(), CostError> {
        let costs = match self {
            Self::Pbkdf2 { iterations, .. } => {
                let allowed = (1..=PBKDF2_ITERATIONS_MAX).contains(iterations);
                return if allowed { Ok(()) } else { Err(CostError::Iterations(*iterations)) };
            }
            Self::Argon2i(costs) | Self::Argon2id(costs) => costs,
        };
        let Argon2Costs { passes, memory_kib, lanes } = *costs;
        let (bytes, bytes_max) = (self.memory_bytes(), memory_bytes_max.min(KDF_MEMORY_BYTES_MAX));
        if bytes > bytes_max {
            return Err(CostError::Memory { bytes, bytes_max });
        }
        if passes == 0 || bytes.saturating_mul(passes.into()) > KDF_WRITTEN_BYTES_MAX {
            return Err(CostError::Passes { passes, memory_kib });
        }
        if !(1..=KDF_LANES_MAX).contains(&lanes) {
            return Err(CostError::Lanes(lanes));
        }
        if memory_kib < 8 * lanes {
            return Err(CostError::MemoryOfLanes { memory_kib, lanes });
        }
        Ok(())
    }

    /// Fills `into` with a key. The costs are within the bounds of [`Self::check`]. The lanes of Argon2 run in threads
    /// that end with this call; its memory is zeroed before it is freed.
    ///
    /// # Panics
    /// If the costs are not those that [`Self::check`] allows.
    pub fn derive(
        &self,
        passphrase: &[u8],
        salt: &[u8; SALT_BYTES],
        into: &mut [u8],
    ) -> Result<(), DeriveError> {
        self.check(u64::MAX).expect("costs that were checked");
        let (algorithm, costs) = match self {
            Self::Pbkdf2 { hash, iterations } => {
                hash.pbkdf2(passphrase, salt, *iterations, into);
                return Ok(());
            }
            Self::Argon2i(costs) => (Algorithm::Argon2i, costs),
            Self::Argon2id(costs) => (Algorithm::Argon2id, costs),
        };
        let params = Params::new(costs.memory_kib, costs.passes, costs.lanes, None).expect("checked costs");
        // A pool of its own: the threads of rayon's global pool would stay, idle, until the process ends.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = cores.min(costs.lanes as usize);
        let pool = ThreadPoolBuilder::new().num_threads(threads).build();
        let pool = pool.map_err(|_| DeriveError::Threads)?;
        let mut memory = Memory::new(params.block_count(), &pool)?;
        let argon2 = Argon2::new(algorithm, Version::V0x13, params);
        pool.install(|| argon2.hash_password_into_with_memory(passphrase, salt, into, &mut memory.0))
            .expect("a salt of 32 bytes, a key of at least 4, and the memory of the costs");
        Ok(())
    }
}

/// The blocks of Argon2, zeroed when dropped.
struct Memory(Vec<Block>);

impl Memory {
    /// All threads write their part first: the kernel finds and clears the pages of a GiB in half a second of one core.
    fn new(blocks: usize, pool: &ThreadPool) -> Result<Self, DeriveError> {
        let mut memory = Vec::new();
        memory.try_reserve_exact(blocks).map_err(|_| DeriveError::Memory(blocks as u64 * KIB))?;
        pool.install(|| (0..blocks).into_par_iter().map(|_| Block::new()).collect_into_vec(&mut memory));
        Ok(Self(memory))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(Zeroize::zeroize);
    }
}
