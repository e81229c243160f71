//! `crash=SPEC`: a volatile write cache, and the power that fails.
//!
//! Acknowledged writes stay in the cache, which all threads share, until a flush; durable writes (FUA) go through it. When
//! the power fails, each sector of 512 bytes becomes, independently, what the medium held or any of the versions
//! written since it was last flushed: writes are kept, dropped, reordered and torn between sectors, never inside one.
//! With `unit=4096`, units of 4096 bytes take the place of sectors, as on disks whose physical sectors are that long.
//!
//! `SPEC` is `WHEN[:seed=S][:unit=BYTES]`. WHEN is `after=N` (behind the Nth acknowledged write), `every=N` (behind each with a
//! chance of one in N), or `never`. The process then ends at once with status 137, as by SIGKILL, once the storage
//! beneath holds what survived: what begins again on that storage begins as a machine after a power cut.
//!
//! Requests must be whole sectors. The cache holds [`SECTORS_MAX`] versions; beyond, the oldest are written back.
//! [`CrashMedium::cut`] is for simulators, which live on.

mod cache;
mod endpoint;

use std::sync::{Arc, Mutex};

use io::Io;

use crate::{Endpoint, Medium, OpenError};
use cache::Cache;
use endpoint::Crash;

pub use cache::SECTORS_MAX;

/// Bytes that survive together.
const SECTOR_BYTES: usize = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Never,
    After(u64),
    Every(u64),
}

/// When the power fails, and what it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashRule {
    when: When,
    seed: u64,
    /// Sectors that are kept or lost together.
    unit: u64,
}

impl CrashRule {
    /// The power fails when [`CrashMedium::cut`] says so; `seed` decides what survives.
    pub fn never(seed: u64) -> Self {
        Self { when: When::Never, seed, unit: 1 }
    }

    /// Parses the grammar of this module's head.
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

/// Storage behind a volatile cache.
#[derive(Debug)]
pub struct CrashMedium {
    inner: Arc<dyn Medium>,
    cache: Arc<Mutex<Cache>>,
}

impl CrashMedium {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn Medium>, rule: CrashRule) -> Self {
        Self { inner, cache: Arc::new(Mutex::new(Cache::new(rule))) }
    }

    /// The power fails. What the endpoints attached before have in flight, and whatever they are still asked, is
    /// aborted; one attached afterwards sees what survived.
    pub fn cut(&self) {
        self.cache.lock().expect("no panic while locked").cut();
    }
}

impl Medium for CrashMedium {
    fn attach(&self, io: &mut Io) -> Result<Box<dyn Endpoint>, OpenError> {
        let owner = io.owner();
        let inner = self.inner.attach(io)?;
        Ok(Box::new(Crash::new(owner, inner, Arc::clone(&self.cache))))
    }

    fn name(&self) -> String {
        self.inner.name()
    }

    fn lasting_name(&self) -> Option<String> {
        self.inner.lasting_name()
    }
}

#[cfg(test)]
mod tests;
