//! One measurement of one row: two processes, sometimes with a bystander, for a fraction of a second.

use super::figures::{Figures, Listening, Mark};
use super::plan::Row;
use super::shape::Over;
use super::{Bench, IscsiInitiator, IscsiTarget, SocketInitiator, SocketTarget};
use crate::LabError;
use crate::capture::{Capture, Transfer};
use crate::part::bystander::Pacing;
use crate::part::{Part, Role};
use crate::sys::Cpu;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    /// Rate, processor time and moments of blocks.
    Undisturbed,
    /// The effect on a bystander.
    Bystander,
    /// The socket's queue during sealing, and packets.
    Watched,
    /// All at once, for `quick`.
    Everything,
}

impl Pass {
    fn is_watched(self) -> bool {
        matches!(self, Self::Watched | Self::Everything)
    }

    fn has_bystander(self) -> bool {
        matches!(self, Self::Bystander | Self::Everything)
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Sample {
    pub(super) figures: Figures,
    pub(super) target: Cpu,
    /// Seconds of sealing at the target, and the hidden part of them.
    pub(super) sealing: f64,
    pub(super) hidden: f64,
    pub(super) pacing: Option<Pacing>,
    /// Packets, or the initiator's calls if packets cannot be captured; in order.
    pub(super) transfers: Vec<Transfer>,
}

/// Maximum duration of a reading with captured packets, milliseconds.
const WATCHED_MS: u64 = 60;

pub(super) fn measure(bench: &Bench, row: &Row, pass: Pass) -> Result<Sample, LabError> {
    let reading = row.reading;
    let is_watched = pass.is_watched();
    let folder = bench.folder.path().to_owned();
    let role = match row.over {
        Over::Sockets => Role::SocketTarget(SocketTarget { reading, instrumented: is_watched, folder }),
        Over::Iscsi => Role::IscsiTarget(IscsiTarget { reading, folder }),
    };
    let (mut target, Listening { port }) = Part::start("the target", &role)?;
    let folder = bench.folder.path().to_owned();
    let role = match row.over {
        Over::Sockets => {
            let trace = is_watched && !bench.can_capture;
            Role::SocketInitiator(SocketInitiator { reading, port, trace, folder })
        }
        Over::Iscsi => Role::IscsiInitiator(IscsiInitiator { reading, port, folder }),
    };
    let (mut initiator, ()) = Part::start("the initiator", &role)?;

    let ms = if is_watched { bench.ms.min(WATCHED_MS) } else { bench.ms };
    let mut bystander = None;
    if pass.has_bystander() {
        let (mut part, ()) = Part::start("a bystander", &Role::Bystander(bench.bystander))?;
        part.order(ms)?;
        bystander = Some(part);
    }
    let capture = if is_watched && bench.can_capture { Some(Capture::start(port)?) } else { None };
    let before: Mark = target.ask(0)?;
    let mut figures: Figures = initiator.ask(ms)?;
    let after: Mark = target.ask(0)?;
    let calls = std::mem::take(&mut figures.transfers);
    Ok(Sample {
        figures,
        target: after.cpu.since(before.cpu),
        sealing: after.sealing - before.sealing,
        hidden: after.hidden - before.hidden,
        pacing: bystander.map(|part| part.answer()).transpose()?,
        transfers: capture.map(Capture::finish).transpose()?.unwrap_or(calls),
    })
}
