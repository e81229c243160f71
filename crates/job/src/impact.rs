//! `--impact`: the disks of this machine that both ends lie on, and the counters of their reads.

use std::collections::BTreeMap;
use std::sync::Arc;

use block::Endpoint;
use host::{Kernel, TrafficFile};
use mover::{Disk, ReadCounter, Yielded};
use serde_json::{Value, json};

use crate::units;

/// How far a copy gives way to other programs that read its disks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Impact {
    /// As far as keeps their reads fast.
    #[default]
    Auto,
    /// Only what hardly slows anybody is taken: [`mover::Impact::Least`].
    None,
    /// Not at all.
    Full,
}

impl Impact {
    /// The option's value; `None` for the default.
    pub(crate) fn word(self) -> Option<&'static str> {
        match self {
            Self::Auto => None,
            Self::None => Some("none"),
            Self::Full => Some("full"),
        }
    }

    /// For the engine. An end that lies on no disk of this machine, or on one without a counter, is not bounded.
    pub(crate) fn plan(self, ends: [&dyn Endpoint; 2]) -> mover::Impact {
        if self == Self::Full {
            return mover::Impact::Full;
        }
        let mut places: BTreeMap<u64, [bool; 2]> = BTreeMap::new();
        for (index, end) in ends.iter().enumerate() {
            for disk in end.inspect().disks() {
                places.entry(*disk).or_default()[index] = true;
            }
        }
        let kernel = Kernel::default();
        let disks = places.into_iter().filter_map(|(device, ends)| {
            let counter = Reads { name: kernel.node_path(device), file: kernel.traffic_file(device)? };
            Some(Disk { ends, counter: Arc::new(counter) })
        });
        let disks: Vec<_> = disks.collect();
        match self {
            _ if disks.is_empty() => mover::Impact::Full,
            Self::None => mover::Impact::Least,
            _ => mover::Impact::Auto(disks),
        }
    }
}

struct Reads {
    name: String,
    file: TrafficFile,
}

impl ReadCounter for Reads {
    fn name(&self) -> &str {
        &self.name
    }

    fn reads(&self) -> Option<u64> {
        let traffic = self.file.read()?;
        Some(traffic.reads.wrapping_add(traffic.read_merges))
    }
}

/// `impact` in the final object of `copy --json`.
pub(crate) fn object(yielded: &Yielded) -> Value {
    let us = |us: f64| (us > 0.0).then(|| units::rounded(us));
    json!({
        "disk": (!yielded.disk.is_empty()).then_some(&yielded.disk),
        "seconds": units::rounded(yielded.seconds),
        "reads": yielded.reads,
        "idle_us": us(yielded.idle_us),
        "beside_us": us(yielded.beside_us),
    })
}

/// What the text of the result says of it.
pub(crate) fn sentence(yielded: &Yielded) -> String {
    let time = units::duration(std::time::Duration::from_secs_f64(yielded.seconds));
    if yielded.disk.is_empty() {
        return format!("paused {time} for other programs, as --impact none demands");
    }
    let Yielded { disk, idle_us, beside_us, .. } = yielded;
    let latency = match *beside_us > 0.0 {
        true => format!(": a small read took {idle_us:.0} us without the copy, {beside_us:.0} beside it"),
        false => String::new(),
    };
    format!("gave way for {time} to other programs' reads of {disk}{latency} (--impact full does not)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_to_others_is_said() {
        let auto =
            Yielded { disk: "/dev/sda".to_owned(), seconds: 2.5, reads: 9, idle_us: 90.4, beside_us: 160.0 };
        let words = "gave way for 2.50 s to other programs' reads of /dev/sda: a small read took 90 us without the copy, 160 \
                     beside it (--impact full does not)";
        assert_eq!(sentence(&auto), words);
        assert_eq!(object(&auto)["idle_us"], 90.4);
        let least = Yielded { seconds: 2.5, ..Yielded::default() };
        assert_eq!(object(&least)["disk"], Value::Null);
        assert!(sentence(&least).starts_with("paused 2.50 s"), "{}", sentence(&least));
    }
}
