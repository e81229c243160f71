//! `secure-read`: sequential reads sealed above TCP, the experiment of Kamisaka, Yamaguchi and Oguchi (2004).
//!
//! Their proposal: encrypt whole blocks at the level of SCSI instead of packets at the level of IP, and encrypt the
//! next block while the network is busy with the last. They measured sockets, and iSCSI from a disk with data that was
//! *already encrypted*: the ideal of an overlap. Here the overlap exists, and its rows are compared with that ideal.
//!
//! `shape.rs` defines a row, `plan.rs` lists the rows, `cell.rs` takes one measurement of a row, `socket/` and
//! `iscsi.rs` are its sides, `volumes.rs` has the storage of rows with volumes, `report.rs` and `plots.rs` show the results.

mod cell;
mod cipher;
mod credentials;
mod figures;
mod headline;
mod iscsi;
mod modes;
mod overlap;
mod plan;
mod plots;
mod report;
mod shape;
mod socket;
mod volumes;

use tempfile::TempDir;

pub(crate) use iscsi::{IscsiInitiator, IscsiTarget};
pub(crate) use socket::{SocketInitiator, SocketTarget};

use crate::part::bystander::{Bystander, Pacing};
use crate::part::{Part, Role};
use crate::{LabError, Observer, Options, Report, folder, sys};
use cell::{Pass, Sample};
use plan::Row;

struct Bench {
    bystander: Bystander,
    folder: TempDir,
    ms: u64,
    can_capture: bool,
}

struct Measured {
    row: Row,
    /// Without other load.
    samples: Vec<Sample>,
    pacing: Option<Pacing>,
    /// With observation of sealing and packets.
    watched: Option<Sample>,
}

pub(crate) fn run(options: &Options, observer: &mut dyn Observer) -> Result<Report, LabError> {
    if let Some(program) = &options.modes {
        return modes::run(program);
    }
    let plan = plan::rows(options)?;
    let (ms, rounds) = if options.quick { (20, 1) } else { (250, 5) };
    let bench =
        Bench { bystander: Bystander::fitted(), folder: folder()?, ms, can_capture: sys::can_capture() };
    credentials::make(bench.folder.path())?;
    let alone = alone(&bench)?;
    let empty = |row| Measured { row, samples: Vec::new(), pacing: None, watched: None };
    let mut table: Vec<Measured> = plan.into_iter().map(empty).collect();
    // Undisturbed rounds, interleaved, so that other load of the machine affects all rows equally.
    let last: &[Pass] = if options.quick { &[Pass::Everything] } else { &[Pass::Bystander, Pass::Watched] };
    let passes: Vec<Pass> =
        std::iter::repeat_n(Pass::Undisturbed, rounds).chain(last.iter().copied()).collect();
    let (mut count, all) = (0usize, passes.len() * table.len());
    for pass in passes {
        for measured in &mut table {
            if observer.is_stopped() {
                return Err(LabError::Interrupted);
            }
            observer.on_progress(&measured.row.name(), count as f64 / all as f64);
            count += 1;
            let sample = cell::measure(&bench, &measured.row, pass)?;
            match pass {
                Pass::Undisturbed => measured.samples.push(sample),
                Pass::Bystander => measured.pacing = sample.pacing,
                Pass::Watched => measured.watched = Some(sample),
                Pass::Everything => {
                    measured.pacing = sample.pacing;
                    measured.watched = Some(sample);
                }
            }
        }
    }
    report::report(&table, alone, options, &bench)
}

/// The bystander on an otherwise idle machine.
fn alone(bench: &Bench) -> Result<Pacing, LabError> {
    let (mut part, ()) = Part::start("a bystander", &Role::Bystander(bench.bystander))?;
    part.ask(bench.ms)
}
