//! The logical units of one thread: their endpoints, and units added and removed by a reload.
//!
//! A new unit is attached ([`Units::attach`]) and reported once its endpoint is open ([`Units::report_opened`]). A
//! removed unit ([`Units::remove`]) leaves by calls of [`Units::leave`], one step per call: its last task ends, its
//! storage is flushed, then closed. Until the last step it stays in both tables.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use block::{
    Completion, Endpoint, IoError, Kind, OpenError, Request, RequestId, State, close_all, wait_ready,
};
use io::{Io, Owner, Token};

use super::config::ServeError;
use super::lun::Lun;
use super::slots::Slots;

/// Time for the storage of a removed unit to close.
const LEAVE_MAX: Duration = Duration::from_secs(3);

/// A removed unit that still occupies its slot on this thread.
struct Leaving {
    slot: usize,
    stage: Stage,
    /// Dropped when the unit has left.
    _gone: mpsc::Sender<()>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Tasks or sessions still refer to it.
    Used,
    /// A flush is in flight.
    Flushing,
    Flushed,
    /// Its storage is closing, until this time at the latest.
    Closing(Duration),
}

pub(super) struct Units {
    pub(super) luns: Slots<Arc<Lun>>,
    pub(super) endpoints: Slots<Box<dyn Endpoint>>,
    /// Units being opened, and the recipient of the result.
    opening: Vec<(usize, mpsc::Sender<Result<(), OpenError>>)>,
    leaving: Vec<Leaving>,
}

impl Units {
    /// Attaches units and waits until all of them are open.
    pub(super) fn open<'a>(io: &mut Io, all: impl Iterator<Item = &'a Arc<Lun>>) -> Result<Self, ServeError> {
        let (mut luns, mut endpoints) = (Slots::default(), Slots::default());
        for lun in all {
            let failed = |cause| ServeError::Lun { target: String::new(), lun: lun.config.lun, cause };
            endpoints.put(lun.slot, lun.config.medium.attach(io).map_err(failed)?);
            luns.put(lun.slot, Arc::clone(lun));
        }
        let mut opening: Vec<&mut dyn Endpoint> =
            endpoints.iter_mut().map(|(_, unit)| &mut **unit as _).collect();
        wait_ready(io, &mut opening).map_err(|cause| ServeError::Config(cause.to_string()))?;
        Ok(Self { luns, endpoints, opening: Vec::new(), leaving: Vec::new() })
    }

    /// Starts to open a unit; `answer` gets the result. Route the endpoint's events to the unit's slot.
    pub(super) fn attach(
        &mut self,
        io: &mut Io,
        lun: Arc<Lun>,
        answer: mpsc::Sender<Result<(), OpenError>>,
    ) -> Option<&dyn Endpoint> {
        match lun.config.medium.attach(io) {
            Ok(endpoint) => {
                let slot = lun.slot;
                self.endpoints.put(slot, endpoint);
                self.luns.put(slot, lun);
                self.opening.push((slot, answer));
                Some(&*self.endpoints[slot])
            }
            Err(error) => {
                let _ = answer.send(Err(error));
                None
            }
        }
    }

    /// A unit was removed; `gone` is dropped when it has left.
    pub(super) fn remove(&mut self, slot: usize, gone: &mpsc::Sender<()>) {
        if self.endpoints.get(slot).is_some() {
            self.opening.retain(|(opening, _)| *opening != slot);
            self.leaving.push(Leaving { slot, stage: Stage::Used, _gone: gone.clone() });
        }
    }

    pub(super) fn is_changing(&self) -> bool {
        !self.opening.is_empty() || !self.leaving.is_empty()
    }

    pub(super) fn report_opened(&mut self) {
        let endpoints = &self.endpoints;
        self.opening.retain(|(slot, answer)| {
            let opened = match endpoints[*slot].state() {
                State::Opening => return true,
                State::Ready => Ok(()),
                State::Failed(error) => Err(error),
            };
            let _ = answer.send(opened);
            false
        });
    }

    /// Makes one step for each leaving unit. `is_used`: whether a connection of this thread refers to a slot. The flush
    /// of a unit has `requests` in the upper half of its id, and must be passed to [`Self::on_flushed`] when it
    /// completes. `timer` is set when a step has a deadline. `left` receives the owner numbers of units that have left.
    /// True: a step was made.
    pub(super) fn leave(
        &mut self,
        io: &mut Io,
        done: &mut Vec<Completion>,
        is_used: impl Fn(usize) -> bool,
        requests: u64,
        timer: Token,
        left: &mut Vec<Owner>,
    ) -> bool {
        let mut has_acted = false;
        for index in (0..self.leaving.len()).rev() {
            let Leaving { slot, stage, .. } = self.leaving[index];
            let unit = &mut self.endpoints[slot];
            let next = match stage {
                Stage::Used if is_used(slot) => continue,
                Stage::Used if unit.capability().read_only || !matches!(unit.state(), State::Ready) => {
                    Stage::Flushed
                }
                Stage::Used => {
                    unit.submit(io, Request { id: name(requests, slot), kind: Kind::Flush }, done);
                    Stage::Flushing
                }
                Stage::Flushing => continue,
                Stage::Flushed => {
                    unit.close(io);
                    let until = io.now() + LEAVE_MAX;
                    io.timer(timer, until);
                    Stage::Closing(until)
                }
                Stage::Closing(until) if !unit.is_closed() && io.now() < until => continue,
                Stage::Closing(_) => {
                    unit.owners(left);
                    drop((self.endpoints.take(slot), self.luns.take(slot)));
                    self.leaving.remove(index);
                    has_acted = true;
                    continue;
                }
            };
            self.leaving[index].stage = next;
            has_acted = true;
        }
        has_acted
    }

    pub(super) fn on_flushed(&mut self, slot: usize, result: Result<(), IoError>) {
        if let Err(error) = result {
            let name = self.name_of(slot);
            tracing::error!(storage = name, %error, "flush of a unit that is no longer served failed");
        }
        let leaving = self.leaving.iter_mut().find(|leaving| leaving.slot == slot);
        leaving.into_iter().for_each(|leaving| leaving.stage = Stage::Flushed);
    }

    /// Flushes all units but `unresponsive`; `requests`: upper half of the ids. Returns how many requests.
    pub(super) fn flush(
        &mut self,
        io: &mut Io,
        done: &mut Vec<Completion>,
        unresponsive: &[usize],
        requests: u64,
    ) -> usize {
        let mut outstanding = 0;
        for (slot, endpoint) in self.endpoints.iter_mut() {
            if endpoint.capability().read_only || unresponsive.contains(&slot) {
                continue;
            }
            endpoint.submit(io, Request { id: name(requests, slot), kind: Kind::Flush }, done);
            outstanding += 1;
        }
        outstanding
    }

    /// Ends what the endpoints have with their storage: sessions, and the use of a volume, which otherwise counts as one
    /// that a crash ended.
    pub(super) fn close(&mut self, io: &mut Io) {
        let mut endpoints: Vec<&mut dyn Endpoint> =
            self.endpoints.iter_mut().map(|(_, unit)| &mut **unit as _).collect();
        close_all(io, &mut endpoints);
    }

    pub(super) fn name_of(&self, slot: usize) -> String {
        let lun = &self.luns[slot].config;
        format!("LUN {} ({})", lun.lun, lun.medium.name())
    }
}

fn name(requests: u64, slot: usize) -> RequestId {
    requests << 32 | slot as u64
}
