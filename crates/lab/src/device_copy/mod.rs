//! `device-copy`: from one device to another below the user, the experiment of Suzuki et al. (2010).
//!
//! Their proposal: one call names source, destination, offsets and size; a mover below the user builds the requests itself, keeps
//! several buffers, and reads and writes at once. They compared it with a copy at user level, which is what dd does. Here our
//! mover stands in the place of theirs, on devices as they are and on devices made slow, beside a model of what its buffers
//! should bring, and beside other users of the same devices.
//!
//! `plan.rs` says which copies there are, `storage.rs` from where to where, `copier.rs` and `neighbour.rs` are the sides, `cell.rs` takes one
//! measurement, `model.rs` predicts, `report.rs` and `plots.rs` show what came of it.

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

use crate::part::bystander::Fared;
use crate::stats::Spread;
use crate::{LabError, Observer, Options, Report};
use cell::{Beside, Sample};
use copier::{Speed, Way};
use plan::{Row, Sizes};
use storage::Storage;

/// Least bytes that a copy is worth measuring with.
const BYTES_MIN: u64 = 4 << 20;
/// How fast a copy may be that shall not disturb, bytes per second.
const GENTLE: u64 = 100_000_000;

/// What all measurements share.
struct Bench {
    storage: Storage,
    sizes: Sizes,
    /// Bytes of the longest copy; neighbours use what comes after them.
    bytes: u64,
    beside_bytes: u64,
}

/// A row and what was measured of it.
struct Measured {
    row: Row,
    samples: Vec<Sample>,
    /// One of those by number of buffers, not by bytes or blocks alone.
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

/// What the devices alone do at a speed: read, written, and the slower of both at once; bytes per second.
struct Ceiling {
    speed: Speed,
    block: u32,
    rates: Vec<[f64; 3]>,
}

/// How neighbours fared beside somebody.
struct Company {
    name: &'static str,
    who: Beside,
    /// Who reads the source and who writes the destination.
    fared: Vec<[Fared; 2]>,
    /// Bytes per second copied meanwhile.
    rates: Vec<f64>,
}

impl Company {
    /// Everybody beside whom neighbours are watched.
    fn all(options: &Options) -> Vec<Self> {
        let mover = Way::Mover(None);
        [
            ("nobody copies", None),
            ("mover", Some((mover, None))),
            ("mover, --rate 100MB/s", Some((mover, Some(GENTLE)))),
            ("user level, direct", Some((Way::Direct, None))),
            ("user level, as dd", Some((Way::UserLevel, None))),
        ]
        .into_iter()
        .filter(|(name, _)| {
            let name = format!("beside: {name}");
            options.rows.is_empty() || options.rows.iter().any(|part| name.contains(part.as_str()))
        })
        .map(|(name, who)| Self { name, who, fared: Vec::new(), rates: Vec::new() })
        .collect()
    }
}

pub(crate) fn run(options: &Options, observer: &mut dyn Observer) -> Result<Report, LabError> {
    if options.modes.is_some() {
        return Err(LabError::Usage("the appendix (--modes) belongs to secure-read".to_owned()));
    }
    let sizes = Sizes::new(options);
    // Wrong words before any work.
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
    let mut companies = Company::all(options);
    if rows.is_empty() && companies.is_empty() {
        return Err(LabError::Usage("no row has such a name".to_owned()));
    }
    let bench = Bench { storage, beside_bytes: sizes.beside_bytes.min(half), bytes, sizes };
    let block = rows.first().map_or(plan::BLOCK, |row| row.block);
    let mut ceilings: Vec<Ceiling> = Vec::new();
    for row in &rows {
        if !ceilings.iter().any(|ceiling| ceiling.speed == row.speed) {
            ceilings.push(Ceiling { speed: row.speed, block, rates: Vec::new() });
        }
    }
    let is_main = |row: &Row| row.block == block && (row.bytes == bytes || row.speed != Speed::default());
    let mut table: Vec<Measured> =
        rows.into_iter().map(|row| Measured { row, samples: Vec::new(), is_main: is_main(&row) }).collect();
    let (rounds, beside_rounds) = (bench.sizes.rounds, bench.sizes.beside_rounds);
    let all = rounds * (table.len() + ceilings.len()) + beside_rounds * companies.len();
    let mut count = 0;
    let mut next = |doing: &str| {
        observer.tell(doing, f64::from(count) / all as f64);
        count += 1;
        if observer.is_stopped() { Err(LabError::Interrupted) } else { Ok(()) }
    };
    // Interleaved: whatever else the machine does meets every row alike. Each round begins elsewhere, so that no row always follows
    // the same ones: a disk remembers what was asked of it a while ago.
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
        for company in &mut companies {
            next(&format!("beside: {}", company.name))?;
            let (fared, rate) = cell::beside(&bench, company.who, block)?;
            company.fared.push(fared);
            company.rates.push(rate);
        }
    }
    report::report(&bench, &table, &ceilings, &companies, options)
}
