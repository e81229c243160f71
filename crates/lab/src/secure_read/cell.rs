//! One measurement of one row: two processes, at times with a third, for a fraction of a second.

use super::figures::{Figures, Listening, Mark};
use super::plan::Row;
use super::shape::Over;
use super::{Bench, IscsiInitiator, IscsiTarget, SocketInitiator, SocketTarget};
use crate::LabError;
use crate::capture::{Capture, Seen};
use crate::part::bystander::Fared;
use crate::part::{Job, Order, Part};
use crate::sys::Cpu;

/// What is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    /// Rate, processor time and moments.
    Undisturbed,
    /// How a bystander fares.
    Bystander,
    /// What the socket holds while the target seals, and packets.
    Watched,
    /// Both at once, where time is short.
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

/// What one measurement says.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) figures: Figures,
    /// Used by the target.
    pub(super) target: Cpu,
    /// Sealing at the target, and what of it was hidden; seconds.
    pub(super) sealing: f64,
    pub(super) hidden: f64,
    pub(super) fared: Option<Fared>,
    /// Packets, or the initiator's calls where packets cannot be seen; in order.
    pub(super) seen: Vec<Seen>,
}

/// Longest piece of a reading whose packets are kept.
const WATCHED_MS: u64 = 60;

pub(super) fn measure(bench: &Bench, row: &Row, pass: Pass) -> Result<Sample, LabError> {
    let reading = row.reading;
    let is_watched = pass.is_watched();
    let folder = bench.folder.path().to_owned();
    let job = match row.over {
        Over::Sockets => Job::SocketTarget(SocketTarget { reading, instrumented: is_watched, folder }),
        Over::Iscsi => Job::IscsiTarget(IscsiTarget { reading, folder }),
    };
    let mut target = Part::start("the target", &job)?;
    let Listening { port } = target.answer()?;
    let folder = bench.folder.path().to_owned();
    let job = match row.over {
        Over::Sockets => {
            let trace = is_watched && !bench.can_capture;
            Job::SocketInitiator(SocketInitiator { reading, port, trace, folder })
        }
        Over::Iscsi => Job::IscsiInitiator(IscsiInitiator { reading, port, folder }),
    };
    let mut initiator = Part::start("the initiator", &job)?;
    initiator.answer::<()>()?;

    let mut bystander = None;
    if pass.has_bystander() {
        bystander = Some(Part::start("a bystander", &Job::Bystander(bench.bystander))?);
    }
    let ms = if is_watched { bench.ms.min(WATCHED_MS) } else { bench.ms };
    if let Some(bystander) = &mut bystander {
        bystander.answer::<()>()?;
        bystander.order(Order::Go { ms })?;
    }
    let capture = if is_watched && bench.can_capture { Some(Capture::start(port)?) } else { None };
    let before: Mark = target.ask(Order::Mark)?;
    let mut figures: Figures = initiator.ask(Order::Go { ms })?;
    let after: Mark = target.ask(Order::Mark)?;
    let calls = std::mem::take(&mut figures.seen);
    Ok(Sample {
        figures,
        target: after.cpu.since(before.cpu),
        sealing: after.sealing - before.sealing,
        hidden: after.hidden - before.hidden,
        fared: bystander.map(|part| part.answer()).transpose()?,
        seen: capture.map(Capture::finish).transpose()?.unwrap_or(calls),
    })
}
