//! `wan-write`: why remote iSCSI writes become slow with the round trip, the experiment of Higa et al. (2009).
//!
//! They found that a write of 4 MiB leaves in bursts of about 1 MiB, a round trip apart, though the windows permit more,
//! and suspected the memory of the socket. open-iscsi fixes it: SO_SNDBUF of 512 KiB, doubled by the kernel. Here an
//! initiator of this experiment does the same, over a path of `lab::wan`, beside sockets, peers and this project.
//!
//! `distance` measures whole copies by round trip. Of the paper's experiment, `plan.rs` lists the rows, `place.rs` is a path with its targets, `writer.rs`, `initiator.rs`, `target.rs` and
//! `peers.rs` are the processes, `watched.rs` observes one case (`watch.rs` the socket, `capture.rs` and `trace.rs` the packets),
//! `report.rs` and `plots.rs` show the results.

mod capture;
mod distance;
mod environment;
mod initiator;
mod peers;
mod place;
mod plan;
mod plots;
mod report;
mod target;
mod trace;
mod watch;
mod watched;
mod writer;

use std::cell::RefCell;
use std::time::Duration;

pub(crate) use distance::{Far, Near, find};
pub(crate) use target::Target;
pub(crate) use writer::{Sink, Writer, enter};

use crate::wan::obstacle;
use crate::{LabError, Observer, Options, Report};
use distance::Copies;
use place::Place;
use plan::{Row, Sizes, cell_name};
use watched::Watched;
use writer::Wrote;

/// Rates of one row at one round trip.
struct Rate {
    row: Row,
    rtt: Duration,
    block: u32,
    samples: Vec<Wrote>,
    /// Greatest lateness of the path, milliseconds.
    late_ms: f64,
}

/// Rows that are observed closely, besides the plain socket.
const WATCHED: [Row; 2] = [Row::PAPER, Row::FREED];

pub(crate) fn run(options: &Options, observer: &mut dyn Observer) -> Result<Report, LabError> {
    if options.modes.is_some() {
        return Err(LabError::Usage("the appendix (--modes) belongs to secure-read".to_owned()));
    }
    let sizes = Sizes::new(options)?;
    let mut copies = Copies::new(options);
    // A quick run has time for the copies alone, unless rows are chosen.
    let has_paper = !options.quick || !options.rows.is_empty();
    let mut rates = if has_paper { planned_rates(options, &sizes) } else { Vec::new() };
    let cases = if has_paper { planned_cases(options, &sizes) } else { Vec::new() };
    if copies.is_empty() && rates.is_empty() && cases.is_empty() {
        return Err(LabError::Usage("no row has such a name".to_owned()));
    }
    if let Some(obstacle) = obstacle() {
        return Err(LabError::new("make a path", &obstacle));
    }
    let all = copies.count() + rates.len() * sizes.rounds + cases.len();
    let observer = RefCell::new(observer);
    let is_stopped = || observer.borrow().is_stopped();
    let mut count = 0;
    let mut next = |doing: &str| {
        observer.borrow_mut().on_progress(doing, f64::from(count) / all as f64);
        count += 1;
        if is_stopped() { Err(LabError::Interrupted) } else { Ok(()) }
    };
    if !copies.is_empty() {
        copies.measure(&mut next, &is_stopped)?;
    }
    for _ in 0..sizes.rounds {
        for rtt in &sizes.rtts {
            let of_rtt: Vec<&mut Rate> = rates.iter_mut().filter(|rate| rate.rtt == *rtt).collect();
            if of_rtt.is_empty() {
                continue;
            }
            let place = Place::new(*rtt, false)?;
            for rate in of_rtt {
                next(&cell_name(&rate.row, *rtt))?;
                place.wan.line().reset_counters();
                rate.samples.push(place.measure(&rate.row, rate.block, sizes.ms)?);
                rate.late_ms = rate.late_ms.max(place.late_ms());
            }
        }
    }
    let mut watched = Vec::new();
    for (row, rtt, block) in cases {
        next(&format!("packets of {}", cell_name(&row, rtt)))?;
        watched.push(Watched::new(row, rtt, block)?);
    }
    report::report(&copies, &rates, &watched, options)
}

fn planned_rates(options: &Options, sizes: &Sizes) -> Vec<Rate> {
    let mut rates = Vec::new();
    for row in Row::all(options.quick) {
        for rtt in &sizes.rtts {
            if options.selects(&cell_name(&row, *rtt)) && Place::missing(&row).is_none() {
                let block = sizes.block();
                rates.push(Rate { row, rtt: *rtt, block, samples: Vec::new(), late_ms: 0.0 });
            }
        }
    }
    rates
}

fn planned_cases(options: &Options, sizes: &Sizes) -> Vec<(Row, Duration, u32)> {
    let mut cases = Vec::new();
    let is_chosen = |row: &Row, rtt: Duration| {
        options.selects(&format!("packets of {}", cell_name(row, rtt))) && Place::missing(row).is_none()
    };
    for row in WATCHED {
        for block in &sizes.blocks {
            let chosen = sizes.rtts.iter().filter(|rtt| is_chosen(&row, **rtt));
            cases.extend(chosen.map(|rtt| (row, *rtt, *block)));
        }
    }
    let rtt = Duration::from_millis(plan::RTT_OF_FIGURES_MS);
    if is_chosen(&Row::SOCKET, rtt) {
        cases.push((Row::SOCKET, rtt, sizes.block()));
    }
    cases
}
