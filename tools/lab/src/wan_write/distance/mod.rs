//! Whole copies by round trip: by `hikyaku copy` and `hikyaku serve`, over a plain socket, and by QEMU's initiator
//! (libiscsi) and tgt. Each copy is a cold process, measured from its start to its exit; the path counts the bytes that it
//! delivers meanwhile, and this gives the rate when it is steady.
//!
//! Begin with `plan.rs` (rows and sizes) and `place.rs` (one measurement).

mod files;
mod meter;
mod ours;
mod place;
mod plan;
mod raw;
mod report;

use std::time::Duration;

pub(crate) use raw::{Far, Near};
pub(super) use report::{figures, headline, rows, text};

use super::peers::is_installed;
use crate::{LabError, Options};
use files::Files;
use meter::Took;
use ours::Program;
pub(crate) use ours::find;
use place::Place;
use plan::{Ours, Row, Sizes, Who, cell_name};

/// A row at a round trip, and what its copies took.
pub(super) struct Cell {
    row: Row,
    rtt: Duration,
    bytes: u64,
    took: Vec<Took>,
}

/// The copies to measure, and those that this machine cannot make.
pub(super) struct Copies {
    sizes: Sizes,
    cells: Vec<Cell>,
    /// Programs that are missing, each once.
    missing: Vec<&'static str>,
}

impl Copies {
    pub(super) fn new(options: &Options) -> Self {
        let sizes = Sizes::new(options);
        let mut copies = Self { cells: Vec::new(), missing: Vec::new(), sizes };
        for row in Row::all(options.quick) {
            let rtts = copies.sizes.rtts.clone();
            let chosen: Vec<_> =
                rtts.into_iter().filter(|rtt| options.selects(&cell_name(&row, *rtt))).collect();
            match missing(&row) {
                Some(program) if !chosen.is_empty() && !copies.missing.contains(&program) => {
                    copies.missing.push(program);
                }
                Some(_) => {}
                None => copies.cells.extend(chosen.into_iter().map(|rtt| {
                    let bytes = copies.sizes.bytes(&row, rtt);
                    Cell { row: row.clone(), rtt, bytes, took: Vec::new() }
                })),
            }
        }
        copies
    }

    pub(super) fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// Number of measurements.
    pub(super) fn count(&self) -> usize {
        self.cells.len() * self.sizes.reps
    }

    /// Measures all rows of a round trip over one path, `reps` times. `next` is called before each measurement and
    /// returns an error to end it; `is_stopped` ends one that runs.
    pub(super) fn measure(
        &mut self,
        mut next: impl FnMut(&str) -> Result<(), LabError>,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<(), LabError> {
        let has = |who: fn(&Who) -> bool| self.cells.iter().any(|cell| who(&cell.row.who));
        let program = find().filter(|_| has(|who| matches!(who, Who::Ours(_) | Who::Local)));
        let program = program.map(Program::new).transpose()?;
        let has_peers = has(|who| matches!(who, Who::Peers(_)));
        let files = Files::new(self.sizes.bytes, has(|who| *who == Who::Ours(Ours::Zeroes)))?;
        for _ in 0..self.sizes.reps {
            for rtt in &self.sizes.rtts {
                let of_rtt: Vec<_> = self.cells.iter_mut().filter(|cell| cell.rtt == *rtt).collect();
                if of_rtt.is_empty() {
                    continue;
                }
                let place = Place::new(*rtt, &files, program.as_ref(), has_peers)?;
                for cell in of_rtt {
                    next(&cell_name(&cell.row, *rtt))?;
                    cell.took.push(place.measure(&cell.row, cell.bytes, is_stopped)?);
                }
            }
        }
        Ok(())
    }
}

/// The program without which a row cannot be measured.
fn missing(row: &Row) -> Option<&'static str> {
    let needs: &[&'static str] = match row.who {
        Who::Peers(_) => &["tgtd", "qemu-img"],
        Who::Local | Who::Ours(_) if find().is_none() => return Some("hikyaku"),
        _ => &[],
    };
    needs.iter().find(|program| !is_installed(program)).copied()
}
