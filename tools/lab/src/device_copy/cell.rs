//! One measurement: a process that copies, and the counters of the machine and of the devices.

use serde::Serialize;

use super::Bench;
use super::copier::{Copied, Copier, Loader, Method, Speed};
use super::neighbour::Neighbour;
use super::plan::Row;
use crate::part::bystander::Pacing;
use crate::part::{Part, Role};
use crate::{Attempted, LabError};

/// Ticks of /proc/stat per second: the same on every Linux as programs see it.
const TICKS: f64 = 100.0;

/// Processor time of the whole machine in seconds: the five kinds of the paper.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Machine {
    pub(super) user: f64,
    pub(super) system: f64,
    /// Idle while a request to a device is pending.
    pub(super) iowait: f64,
    pub(super) irq: f64,
    pub(super) softirq: f64,
}

impl Machine {
    fn now() -> Result<Self, LabError> {
        let doing = "read /proc/stat";
        let text = std::fs::read_to_string("/proc/stat").attempted(doing)?;
        Self::parse(&text).ok_or_else(|| LabError::new(doing, &"its first line is not as in proc_stat(5)"))
    }

    fn parse(text: &str) -> Option<Self> {
        let mut fields = text.lines().next()?.strip_prefix("cpu ")?.split_ascii_whitespace();
        let mut next = || Some(fields.next()?.parse::<f64>().ok()? / TICKS);
        let (user, nice, system, _idle) = (next()?, next()?, next()?, next()?);
        Some(Self { user: user + nice, system, iowait: next()?, irq: next()?, softirq: next()? })
    }

    fn since(self, earlier: Self) -> Self {
        Self {
            user: self.user - earlier.user,
            system: self.system - earlier.system,
            // The counter may go backwards, by the kernel's documentation.
            iowait: (self.iowait - earlier.iowait).max(0.0),
            irq: self.irq - earlier.irq,
            softirq: self.softirq - earlier.softirq,
        }
    }

    pub(super) fn parts(self) -> [f64; 5] {
        [self.user, self.system, self.iowait, self.irq, self.softirq]
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sample {
    pub(super) copied: Copied,
    pub(super) machine: Machine,
    /// With devices: read requests of the source, write requests of the destination, and the growth of their page cache
    /// in bytes.
    pub(super) requests: Option<[u64; 2]>,
    pub(super) cache_growth: Option<i64>,
}

impl Sample {
    pub(super) fn mb_per_s(&self) -> f64 {
        self.copied.bytes as f64 / 1e6 / self.copied.seconds
    }

    pub(super) fn gb(&self) -> f64 {
        self.copied.bytes as f64 / 1e9
    }
}

/// Measures a row; the first time it also compares the copied data.
pub(super) fn measure(bench: &Bench, row: &Row, is_first: bool) -> Result<Sample, LabError> {
    let storage = &bench.storage;
    storage.spoil(row.bytes)?;
    storage.drop_caches()?;
    let Row { method, speed, bytes, block } = *row;
    let copier = Copier { method, paths: storage.paths.clone(), bytes, block, speed, rate: None };
    let (mut part, ()) = Part::start("the copier", &Role::Copier(copier))?;
    let before = (Machine::now()?, storage.traffic(), storage.cached_bytes());
    let copied: Copied = part.ask(bench.sizes.ms)?;
    let after = (Machine::now()?, storage.traffic(), storage.cached_bytes());
    drop(part);
    if is_first {
        storage.compare(row.bytes)?;
    }
    let requests = before
        .1
        .zip(after.1)
        .map(|(before, after)| [after[0].reads - before[0].reads, after[1].writes - before[1].writes]);
    let cache_growth =
        before.2.zip(after.2).map(|(before, after)| after.cast_signed() - before.cast_signed());
    Ok(Sample {
        copied,
        machine: after.0.since(before.0),
        requests,
        cache_growth: cache_growth.filter(|_| requests.is_some()),
    })
}

/// Bytes per second of reading the source alone, writing the destination alone, and the slower of both at once.
pub(super) fn ceiling(bench: &Bench, speed: Speed, block: u32) -> Result<[f64; 3], LabError> {
    let loader = |end: usize| {
        let path = bench.storage.paths[end].clone();
        let loader = Loader { path, write: end == 1, bytes: bench.bytes, block, speed };
        Part::start("the loader", &Role::Loader(loader)).map(|(part, ())| part)
    };
    let ms = bench.sizes.ms.max(20);
    let [read, write] = [0, 1].map(|end| loader(end)?.ask::<f64>(ms));
    let mut both = [loader(0)?, loader(1)?];
    both.iter_mut().try_for_each(|part| part.order(ms))?;
    let at_once = both[0].answer::<f64>()?.min(both[1].answer()?);
    Ok([read?, write?, at_once])
}

/// The copy beside the neighbours, with its maximum rate in bytes per second; `None` without a copy.
pub(super) type Beside = Option<(Method, Option<u64>)>;

/// Results of two neighbours, one reading the source and one writing the destination, and the bytes per second copied
/// meanwhile.
pub(super) fn beside(bench: &Bench, who: Beside, block: u32) -> Result<([Pacing; 2], f64), LabError> {
    let ms = bench.sizes.beside_ms;
    let mut copier = match who {
        Some((method, rate)) => {
            // With a rate limit, one copy lasts about as long as the neighbours run.
            let worth = rate.map_or(u64::MAX, |rate| (rate * ms / 1000) >> 20 << 20).max(1 << 20);
            let (paths, bytes) = (bench.storage.paths.clone(), bench.bytes.min(worth));
            let copier = Copier { method, paths, bytes, block, speed: Speed::default(), rate };
            let (part, ()) = Part::start("the copier", &Role::Copier(copier))?;
            Some(part)
        }
        None => None,
    };
    let neighbour = |end: usize| {
        let (path, write) = (bench.storage.paths[end].clone(), end == 1);
        let neighbour = Neighbour { path, write, offset: bench.bytes, bytes: bench.beside_bytes };
        Part::start("a neighbour", &Role::Neighbour(neighbour)).map(|(part, ())| part)
    };
    let mut neighbours = [neighbour(0)?, neighbour(1)?];
    if let Some(part) = &mut copier {
        part.order(ms)?;
    }
    neighbours.iter_mut().try_for_each(|part| part.order(ms))?;
    let pacing = [neighbours[0].answer()?, neighbours[1].answer()?];
    let copied: Option<Copied> = copier.map(|part| part.answer()).transpose()?;
    Ok((pacing, copied.map_or(0.0, |copied| copied.bytes as f64 / copied.seconds)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_is_the_machines_time() {
        let text = "cpu  100 20 300 4000 50 6 7 0 0 0\ncpu0 1 1 1 1 1 1 1 0 0 0\n";
        let machine = Machine { user: 1.2, system: 3.0, iowait: 0.5, irq: 0.06, softirq: 0.07 };
        assert_eq!(Machine::parse(text), Some(machine));
        assert_eq!(Machine::parse("cpu 1 2 3"), None);
        assert_eq!(machine.since(machine), Machine::default());
        assert!(Machine::now().unwrap().user > 0.0);
    }
}
