//! `device-copy`: copies from device to device below user level, the experiment of Suzuki et al. (2010).
//!
//! Their proposal: one call names source, destination, offsets and size; a mover in the kernel builds the requests
//! itself, keeps several buffers, and reads and writes concurrently. They compared it with a copy at user level, equal
//! to dd. Here the mover of this project takes the place of theirs, on devices as they are and on devices made slow,
//! compared with a model of the effect of buffers, and beside other users of the same devices.
//!
//! `plan.rs` lists the copies, `storage.rs` provides source and destination, `copier.rs` and `neighbour.rs` are the
//! processes, `cell.rs` takes one measurement, `model.rs` predicts, `report.rs` and `plots.rs` show the results.

mod cell;
mod copier;
mod model;
mod neighbour;
mod plan;
mod plots;
mod report;
mod storage;

pub(crate) use copier::{Copier, Loader};
pub(crate) use neighbour::Neighbour;

use crate::part::bystander::Pacing;
use crate::stats::{Spread, distinct};
use crate::{LabError, Observer, Options, Report};
use cell::{Beside, Sample};
use copier::{Method, Speed};
use plan::{Row, Sizes};
use storage::Storage;

const BYTES_MIN: u64 = 4 << 20;
/// Rate limit of the gentle copy, bytes per second.
const GENTLE: u64 = 100_000_000;

struct Bench {
    storage: Storage,
    sizes: Sizes,
    /// Bytes of the longest copy; neighbours use the bytes behind them.
    bytes: u64,
    beside_bytes: u64,
}

struct Measured {
    row: Row,
    samples: Vec<Sample>,
    /// Whether the row belongs to the series by number of buffers; otherwise only to those by bytes or blocks.
    is_main: bool,
}

impl Measured {
    fn spread(&self, value: impl Fn(&Sample) -> f64) -> Spread {
        Spread::of(self.samples.iter().map(value)).unwrap_or_default()
    }

    fn rate(&self) -> Spread {
        self.spread(Sample::mb_per_s)
    }
}

/// The devices' own rates at one speed: read alone, written alone, and the slower of both at once; bytes per second.
struct Ceiling {
    speed: Speed,
    block: u32,
    rates: Vec<[f64; 3]>,
}

/// Results of neighbours beside one kind of copy.
struct BesideCopy {
    name: &'static str,
    who: Beside,
    /// One neighbour reads the source, the other writes the destination.
    pacing: Vec<[Pacing; 2]>,
    /// Bytes per second copied meanwhile.
    rates: Vec<f64>,
}

impl BesideCopy {
    fn all(options: &Options) -> Vec<Self> {
        let mover = Method::Mover(None);
        [
            ("nobody copies", None),
            ("mover", Some((mover, None))),
            ("mover, --rate 100MB/s", Some((mover, Some(GENTLE)))),
            ("user level, direct", Some((Method::Direct, None))),
            ("user level, as dd", Some((Method::UserLevel, None))),
        ]
        .into_iter()
        .filter(|(name, _)| options.selects(&format!("beside: {name}")))
        .map(|(name, who)| Self { name, who, pacing: Vec::new(), rates: Vec::new() })
        .collect()
    }
}

pub(crate) fn run(options: &Options, observer: &mut dyn Observer) -> Result<Report, LabError> {
    if options.modes.is_some() {
        return Err(LabError::Usage("the appendix (--modes) belongs to secure-read".to_owned()));
    }
    let sizes = Sizes::new(options);
    // Checks the options before any work.
    plan::rows(options, sizes.bytes)?;
    let storage = match &options.devices {
        Some(paths) => Storage::given(paths)?,
        None => Storage::own(sizes.bytes)?,
    };
    let half = (storage.size()? / 2) >> 20 << 20;
    if half < BYTES_MIN {
        let text = format!("source and destination must have {} bytes each at least", 2 * BYTES_MIN);
        return Err(LabError::Usage(text));
    }
    let bytes = sizes.bytes.min(half);
    let rows = plan::rows(options, bytes)?;
    let mut beside_copies = BesideCopy::all(options);
    if rows.is_empty() && beside_copies.is_empty() {
        return Err(LabError::Usage("no row has such a name".to_owned()));
    }
    let bench = Bench { storage, beside_bytes: sizes.beside_bytes.min(half), bytes, sizes };
    let block = rows.first().map_or(plan::BLOCK, |row| row.block);
    let speeds = distinct(rows.iter().map(|row| row.speed));
    let mut ceilings: Vec<Ceiling> =
        speeds.into_iter().map(|speed| Ceiling { speed, block, rates: Vec::new() }).collect();
    let is_main = |row: &Row| row.block == block && (row.bytes == bytes || row.speed != Speed::default());
    let mut table: Vec<Measured> =
        rows.into_iter().map(|row| Measured { row, samples: Vec::new(), is_main: is_main(&row) }).collect();
    let (rounds, beside_rounds) = (bench.sizes.rounds, bench.sizes.beside_rounds);
    let all = rounds * (table.len() + ceilings.len()) + beside_rounds * beside_copies.len();
    let mut count = 0;
    let mut next = |doing: &str| {
        observer.on_progress(doing, f64::from(count) / all as f64);
        count += 1;
        if observer.is_stopped() { Err(LabError::Interrupted) } else { Ok(()) }
    };
    // Rows are interleaved, so that other load of the machine affects all of them equally. Each round begins with
    // another row, so that no row always follows the same ones: a disk's speed depends on earlier requests.
    for round in 0..rounds {
        for ceiling in &mut ceilings {
            next(&format!("what the devices can, {}", ceiling.speed.name()))?;
            ceiling.rates.push(cell::ceiling(&bench, ceiling.speed, block)?);
        }
        let turn = round * table.len() / rounds;
        let (before, from) = table.split_at_mut(turn);
        for measured in from.iter_mut().chain(before) {
            next(&measured.row.name())?;
            measured.samples.push(cell::measure(&bench, &measured.row, round == 0)?);
        }
    }
    for _ in 0..beside_rounds {
        for beside_copy in &mut beside_copies {
            next(&format!("beside: {}", beside_copy.name))?;
            let (pacing, rate) = cell::beside(&bench, beside_copy.who, block)?;
            beside_copy.pacing.push(pacing);
            beside_copy.rates.push(rate);
        }
    }
    report::report(&bench, &table, &ceilings, &beside_copies, options)
}
