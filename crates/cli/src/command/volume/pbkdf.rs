//! What a passphrase costs those who guess it: as much as this machine does in the time that its owner waits.

use std::time::{Duration, Instant};

use block::layer::volume::limits;
use clap::ValueEnum;
use volume::luks2::{Argon2Costs, Hash, KDF_MEMORY_BYTES_MAX, Pbkdf, SALT_BYTES};

use crate::error::Failure;
use crate::units;

/// Most memory unless asked for more, as cryptsetup's.
const MEMORY_BYTES_DEFAULT: u64 = 1 << 30;
/// Memory of the measurement, whose rate larger ones come near.
const TRIAL_KIB: u32 = 32 << 10;
/// The least that RFC 9106 and cryptsetup ask for.
const PASSES_MIN: u64 = 4;
const MEMORY_KIB_MIN: u64 = 32;
const LANES_MAX: usize = 4;
const PBKDF2_TRIAL: u32 = 20_000;
const PBKDF2_MIN: u64 = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    Argon2id,
    Argon2i,
    Pbkdf2,
}

// Flattened into commands whose group is called Args, too.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    /// How the passphrase becomes a key [default: argon2id]
    #[arg(long, value_name = "KDF", value_enum)]
    pbkdf: Option<Kind>,

    /// Memory of each derivation, now and at each later opening [default: at most 1G, half of this machine's]
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    pbkdf_memory: Option<u64>,

    /// How long a derivation takes on this machine, in milliseconds [default: 2000]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    iter_time: Option<u64>,
}

const ITER_TIME_MS_DEFAULT: u64 = 2000;

impl Args {
    /// Costs by measurement: first the memory grows to its bound, then the passes.
    pub(crate) fn costs(&self) -> Result<Pbkdf, Failure> {
        self.measured(Kind::Argon2id)
    }

    /// Those of `present`, unless an option says otherwise: then its kind, unless an option names one.
    pub(crate) fn costs_like(&self, present: &Pbkdf) -> Result<Pbkdf, Failure> {
        if self.pbkdf.is_none() && self.pbkdf_memory.is_none() && self.iter_time.is_none() {
            return Ok(*present);
        }
        self.measured(match present {
            Pbkdf::Pbkdf2 { .. } => Kind::Pbkdf2,
            Pbkdf::Argon2i(_) => Kind::Argon2i,
            Pbkdf::Argon2id(_) => Kind::Argon2id,
        })
    }

    fn measured(&self, kind: Kind) -> Result<Pbkdf, Failure> {
        let limit = limits().memory_bytes_max;
        let usage =
            |cause: String| Failure::usage("choose the costs of the passphrase", "--pbkdf-memory", cause);
        let memory_max = self.pbkdf_memory.unwrap_or_else(|| MEMORY_BYTES_DEFAULT.min(limit / 2));
        if memory_max > KDF_MEMORY_BYTES_MAX.min(limit) {
            let cause = format!(
                "{} are more than this machine lets a process have, or than 4 GiB",
                units::bytes(memory_max)
            );
            return Err(usage(cause));
        }
        if memory_max / 1024 < MEMORY_KIB_MIN {
            return Err(usage(format!("at least {MEMORY_KIB_MIN}K")));
        }
        let aim = Duration::from_millis(self.iter_time.unwrap_or(ITER_TIME_MS_DEFAULT));
        Ok(match self.pbkdf.unwrap_or(kind) {
            Kind::Pbkdf2 => {
                let trial = Pbkdf::Pbkdf2 { hash: Hash::Sha256, iterations: PBKDF2_TRIAL };
                let rate = f64::from(PBKDF2_TRIAL) / took(&trial).as_secs_f64();
                let iterations = (rate * aim.as_secs_f64()) as u64;
                let iterations =
                    iterations.clamp(PBKDF2_MIN, u64::from(volume::luks2::PBKDF2_ITERATIONS_MAX));
                Pbkdf::Pbkdf2 { hash: Hash::Sha256, iterations: iterations as u32 }
            }
            Kind::Argon2i => Pbkdf::Argon2i(argon2(Pbkdf::Argon2i, aim, memory_max)),
            Kind::Argon2id => Pbkdf::Argon2id(argon2(Pbkdf::Argon2id, aim, memory_max)),
        })
    }
}

fn argon2(of: fn(Argon2Costs) -> Pbkdf, aim: Duration, memory_bytes_max: u64) -> Argon2Costs {
    let lanes = std::thread::available_parallelism().map_or(1, usize::from).min(LANES_MAX) as u32;
    let memory_max = memory_bytes_max / 1024;
    let memory_kib = TRIAL_KIB.min(memory_max as u32);
    let trial = Argon2Costs { passes: PASSES_MIN as u32, memory_kib, lanes };
    // KiB that are filled in a second, whatever the number of passes.
    let rate = f64::from(memory_kib) * PASSES_MIN as f64 / took(&of(trial)).as_secs_f64();
    let filled = (rate * aim.as_secs_f64()) as u64;
    let memory = (filled / PASSES_MIN).clamp(MEMORY_KIB_MIN, memory_max);
    let passes = (filled / memory).clamp(PASSES_MIN, u64::from(u32::MAX));
    Argon2Costs { passes: passes as u32, memory_kib: memory as u32, lanes }
}

fn took(pbkdf: &Pbkdf) -> Duration {
    let start = Instant::now();
    let mut key = [0; 64];
    // A derivation that has no memory here fails when the volume's key is derived, and says so then.
    let _ = pbkdf.derive(b"measured", &[0; SALT_BYTES], &mut key);
    start.elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_stay_as_they_are_unless_an_option_says_otherwise() {
        let present = Pbkdf::Argon2i(Argon2Costs { passes: 5, memory_kib: 64, lanes: 1 });
        let none = Args { pbkdf: None, pbkdf_memory: None, iter_time: None };
        assert_eq!(none.costs_like(&present).unwrap(), present);
        // The least memory, which is all that a measurement can give here; its passes are the machine's.
        let time = Args { iter_time: Some(1), pbkdf_memory: Some(MEMORY_KIB_MIN << 10), ..none };
        let costs = time.costs_like(&present).unwrap();
        assert!(
            matches!(costs, Pbkdf::Argon2i(costs) if costs.memory_kib == MEMORY_KIB_MIN as u32),
            "{costs:?}"
        );
        let kind = Args { pbkdf: Some(Kind::Pbkdf2), iter_time: Some(1), pbkdf_memory: None };
        assert!(matches!(kind.costs_like(&present).unwrap(), Pbkdf::Pbkdf2 { .. }));
    }
}
