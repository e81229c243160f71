//! Layers: each is an endpoint that wraps an endpoint, in the order of the options.

mod crash;
mod delay;
mod fault;
mod limit;
mod log;
mod readahead;
pub mod volume;

use std::sync::Arc;
use std::time::Duration;

use crate::{Medium, OpenError, Spec};

pub use crash::{CrashMedium, CrashRule, SECTORS_MAX as CRASH_SECTORS_MAX};
pub use delay::DelayMedium;
pub use fault::{FaultMedium, FaultRule};
pub use limit::LimitMedium;
pub use log::LogMedium;
pub use readahead::ReadaheadMedium;
pub use volume::{Keys, NoKeys};

pub const OPTIONS: &[&str] = &[
    "delay",
    "limit",
    "iops",
    "fault",
    "crash",
    "log",
    "readahead",
    "volume",
    "view",
    "password-file",
    "key-file",
    "header",
    "freshness",
];

/// Wraps `medium` in the layers named in `spec`; the leftmost is nearest to the storage. A volume is unlocked here, for
/// which remote storage is contacted.
pub fn wrap(spec: &Spec, medium: Arc<dyn Medium>, keys: &dyn Keys) -> Result<Arc<dyn Medium>, OpenError> {
    let mut medium = medium;
    for (name, value) in &spec.options {
        let value = value.as_deref().unwrap_or("");
        let usage = |error: String| OpenError::Usage(format!("option {name}: {error}"));
        medium = match name.as_str() {
            "delay" => Arc::new(DelayMedium::new(medium, parse_duration(value).map_err(usage)?)),
            "limit" => Arc::new(LimitMedium::bytes(medium, crate::parse_rate(value).map_err(usage)?)),
            "iops" => match value.parse() {
                Ok(rate) if rate > 0 => Arc::new(LimitMedium::operations(medium, rate)),
                _ => return Err(usage(format!("'{value}' is not a number of operations per second"))),
            },
            "fault" => Arc::new(FaultMedium::new(medium, FaultRule::parse(value).map_err(usage)?)),
            "crash" => Arc::new(CrashMedium::new(medium, CrashRule::parse(value).map_err(usage)?)),
            "log" => Arc::new(LogMedium::new(medium)),
            "readahead" => match readahead::parse(value).map_err(usage)? {
                Some(bytes_max) => Arc::new(ReadaheadMedium::new(medium, bytes_max)),
                None => medium,
            },
            "volume" => volume::open(medium, value, spec, keys)?,
            "view" => volume::view(medium, value, spec, keys)?,
            _ => medium,
        };
    }
    Ok(medium)
}

/// Parses `2ms`, `30s`, `500us`, `1.5s`, `2m`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let bad = || format!("'{text}' is not a duration; write for example 500us, 2ms or 10s");
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(bad)?;
    let (number, unit) = text.split_at(split);
    let number: f64 = number.parse().map_err(|_| bad())?;
    let seconds = match unit {
        "us" => number / 1e6,
        "ms" => number / 1e3,
        "s" => number,
        "m" | "min" => number * 60.0,
        "h" => number * 3600.0,
        _ => return Err(bad()),
    };
    Duration::try_from_secs_f64(seconds).map_err(|_| bad())
}

/// The methods that layers do not change: each calls the wrapped endpoint.
macro_rules! forward_endpoint {
    () => {
        fn state(&self) -> $crate::State {
            self.inner.state()
        }
        fn capability(&self) -> &$crate::Capability {
            self.inner.capability()
        }
        fn in_flight(&self, direction: $crate::Direction) -> Option<u64> {
            self.inner.in_flight(direction)
        }
        fn extent(&mut self, offset: u64) -> $crate::Extent {
            self.inner.extent(offset)
        }
        fn renew(&mut self, io: &mut io::Io, bytes: u64) {
            self.inner.renew(io, bytes);
        }
        fn close(&mut self, io: &mut io::Io) {
            self.inner.close(io);
        }
        fn is_closed(&self) -> bool {
            self.inner.is_closed()
        }
        fn inspect(&self) -> &dyn $crate::Inspect {
            self.inner.inspect()
        }
    };
}

macro_rules! forward_medium {
    () => {
        fn name(&self) -> String {
            self.inner.name()
        }
        fn has_failed(&self) -> bool {
            self.inner.has_failed()
        }
        fn drop_read_ahead(&self) {
            self.inner.drop_read_ahead();
        }
        fn lasting_name(&self) -> Option<String> {
            self.inner.lasting_name()
        }
    };
}
pub(crate) use {forward_endpoint, forward_medium};

#[cfg(test)]
mod tests;
