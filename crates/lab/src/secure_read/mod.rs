//! `secure-read`: sequential reads sealed above TCP, the experiment of Kamisaka, Yamaguchi and Oguchi (2004).
//!
//! Their proposal: encrypt whole blocks at the rank of SCSI instead of packets at the rank of IP, and encrypt the next block while the
//! network is busy with the last. They measured sockets, and iSCSI from a disk that held data *already encrypted*: the ideal that
//! an overlap could reach. Here the overlap exists, and its rows stand beside that ideal.
//!
//! `shape.rs` says what a row is, `plan.rs` which there are, `cell.rs` takes one measurement of one, `socket/` and `iscsi.rs` are its sides,
//! `report.rs` and `plots.rs` show what came of it.

mod cell;
mod cipher;
mod figures;
mod headline;
mod iscsi;
mod modes;
mod overlap;
mod papers;
mod plan;
mod plots;
mod report;
mod shape;
mod socket;

use std::path::PathBuf;

use tempfile::TempDir;

pub(crate) use iscsi::{IscsiInitiator, IscsiTarget};
pub(crate) use socket::{SocketInitiator, SocketTarget};

use crate::part::bystander::{Bystander, Fared};
use crate::part::{Job, Order, Part};
use crate::{Attempted, LabError, Observer, Options, Report, sys};
use cell::{Pass, Sample};
use plan::Row;

/// What all measurements share.
struct Bench {
    bystander: Bystander,
    /// For the files of LUNs.
    folder: TempDir,
    /// How long a measurement takes, milliseconds.
    ms: u64,
    can_capture: bool,
}

/// A row and what was measured of it.
struct Measured {
    row: Row,
    /// Undisturbed.
    samples: Vec<Sample>,
    /// Beside the bystander.
    fared: Option<Fared>,
    /// With sealing and packets looked at.
    watched: Option<Sample>,
}

pub(crate) fn run(options: &Options, observer: &mut dyn Observer) -> Result<Report, LabError> {
    if let Some(program) = &options.modes {
        return modes::run(program);
    }
    let plan = plan::rows(options)?;
    let (ms, rounds) = if options.quick { (20, 1) } else { (250, 5) };
    let bench = Bench {
        bystander: Bystander::fitted(),
        folder: folder().attempted("make a temporary folder")?,
        ms,
        can_capture: sys::can_capture(),
    };
    papers::make(bench.folder.path())?;
    let alone = alone(&bench)?;
    let empty = |row| Measured { row, samples: Vec::new(), fared: None, watched: None };
    let mut table: Vec<Measured> = plan.into_iter().map(empty).collect();
    // Undisturbed rounds, interleaved: whatever else the machine does meets every row alike.
    let last: &[Pass] = if options.quick { &[Pass::Everything] } else { &[Pass::Bystander, Pass::Watched] };
    let passes: Vec<Pass> =
        std::iter::repeat_n(Pass::Undisturbed, rounds).chain(last.iter().copied()).collect();
    let (mut count, all) = (0usize, passes.len() * table.len());
    for pass in passes {
        for measured in &mut table {
            if observer.is_stopped() {
                return Err(LabError::Interrupted);
            }
            observer.tell(&measured.row.name(), count as f64 / all as f64);
            count += 1;
            let sample = cell::measure(&bench, &measured.row, pass)?;
            match pass {
                Pass::Undisturbed => measured.samples.push(sample),
                Pass::Bystander => measured.fared = sample.fared,
                Pass::Watched => measured.watched = Some(sample),
                Pass::Everything => {
                    measured.fared = sample.fared;
                    measured.watched = Some(sample);
                }
            }
        }
    }
    report::report(&table, alone, options, &bench)
}

/// In memory where that can be: no disk shall set the pace.
fn folder() -> std::io::Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("hikyaku-lab-");
    builder.tempdir_in(PathBuf::from("/dev/shm")).or_else(|_| builder.tempdir())
}

/// The bystander on a machine that does nothing else.
fn alone(bench: &Bench) -> Result<Fared, LabError> {
    let mut part = Part::start("a bystander", &Job::Bystander(bench.bystander))?;
    part.answer::<()>()?;
    part.ask(Order::Go { ms: bench.ms })
}
