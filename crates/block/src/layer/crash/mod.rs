//! `crash=SPEC`: a volatile write cache with power cuts.
//!
//! Acknowledged writes stay in the cache, which all threads share, until a flush; durable writes (FUA) are written
//! through it. After a power cut, each sector of 512 bytes independently holds the state of the medium or any version
//! written since its last flush: writes are kept, dropped, reordered and torn between sectors, never inside one. With
//! `unit=4096` this applies to units of 4096 bytes, as on disks with physical sectors of that size.
//!
//! `SPEC` is `WHEN[:seed=S][:unit=BYTES]`. WHEN is `after=N` (after the Nth acknowledged write), `every=N` (after each
//! with probability 1/N), or `never`. The process writes the surviving versions to the storage beneath, then ends with
//! status 137, as by SIGKILL: a process that starts on that storage finds the state after a power cut.
//!
//! Requests must be whole sectors. The cache holds [`SECTORS_MAX`] versions; beyond that, the oldest are written back.
//! [`CrashMedium::cut`] is for simulators, whose process goes on.

mod cache;
mod endpoint;

use std::sync::{Arc, Mutex};

use io::Io;

use super::forward_medium;
use crate::{Endpoint, Medium, OpenError};
use cache::Cache;
use endpoint::Crash;

pub use cache::SECTORS_MAX;

/// Smallest unit that survives a power cut completely or not at all, in bytes.
const SECTOR_BYTES: usize = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Never,
    After(u64),
    Every(u64),
}

/// Time of the power cut, and the seed and unit of the losses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashRule {
    when: When,
    seed: u64,
    /// Number of sectors that are kept or lost together.
    unit: u64,
}

impl CrashRule {
    /// The power fails only by [`CrashMedium::cut`]; `seed` decides which versions survive.
    pub fn never(seed: u64) -> Self {
        Self { when: When::Never, seed, unit: 1 }
    }

    pub fn parse(text: &str) -> Result<Self, String> {
        let mut words = text.split(':');
        let number = |value: &str| value.parse().map_err(|_| format!("'{value}' is not a whole number"));
        let when = match words.next().unwrap_or_default().split_once('=') {
            Some(("after", value)) => When::After(number(value)?),
            Some(("every", value)) => When::Every(number(value)?),
            None if text == "never" || text.starts_with("never:") => When::Never,
            _ => {
                return Err(format!(
                    "'{text}' is not after=N, every=N or never, with :seed=S and :unit=BYTES behind it"
                ));
            }
        };
        if matches!(when, When::After(0) | When::Every(0)) {
            return Err("the power fails behind a write: the first is number 1".into());
        }
        let mut rule = Self { when, seed: 0, unit: 1 };
        for word in words {
            match word.split_once('=') {
                Some(("seed", value)) => rule.seed = number(value)?,
                Some(("unit", "512")) => rule.unit = 1,
                Some(("unit", "4096")) => rule.unit = 8,
                Some(("unit", _)) => return Err("a unit has 512 or 4096 bytes".into()),
                _ => return Err(format!("'{word}' is not known here; known: seed=S, unit=BYTES")),
            }
        }
        Ok(rule)
    }
}

#[derive(Debug)]
pub struct CrashMedium {
    inner: Arc<dyn Medium>,
    cache: Arc<Mutex<Cache>>,
}

impl CrashMedium {
    pub fn new(inner: Arc<dyn Medium>, rule: CrashRule) -> Self {
        Self { inner, cache: Arc::new(Mutex::new(Cache::new(rule))) }
    }

    /// Cuts the power. Requests of the endpoints attached before, in flight or submitted later, are aborted; an
    /// endpoint attached afterwards reads the surviving versions.
    pub fn cut(&self) {
        self.cache.lock().expect("no panic while locked").cut();
    }
}

impl Medium for CrashMedium {
    forward_medium!();

    fn attach(&self, io: &mut Io) -> Result<Box<dyn Endpoint>, OpenError> {
        let owner = io.owner();
        let inner = self.inner.attach(io)?;
        Ok(Box::new(Crash::new(owner, inner, Arc::clone(&self.cache))))
    }
}

#[cfg(test)]
mod tests;
