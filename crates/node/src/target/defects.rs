//! How a defective target gives requests to its storage: see the crate `mutant`. Nothing of this is in ordinary builds.

use area::Span;
use block::{Kind, Request};
use iscsi::machine::TaskId;
use mutant::Mutant;
use scsi::copy::{CopyFailure, CopyFault};
use scsi::{LogicalUnit, NexusId, cdb};

use super::connection::{Connection, Context};

/// A task that does not exist: nobody waits for its completion.
const NOBODY: TaskId = TaskId(u32::MAX);

impl Connection {
    /// Submits the one request that a task's job has next, in a wrong way. Gives it back if no defect concerns it.
    pub(super) fn submit_wrongly(
        &mut self,
        context: &mut Context<'_>,
        id: TaskId,
        lun: usize,
        kind: Kind,
    ) -> Option<Kind> {
        let writes = matches!(kind, Kind::Write { .. });
        if mutant::is_on(Mutant::MisorderWrites) {
            match mutant::exchange::<(usize, Kind)>(None) {
                Some(held) if writes && overlap(&held, &(lun, kind.clone())) => {
                    self.ask(context, id, (lun, kind));
                    self.ask(context, NOBODY, held);
                }
                Some(held) => {
                    self.ask(context, NOBODY, held);
                    self.ask(context, id, (lun, kind));
                }
                None if writes => {
                    mutant::exchange(Some((lun, kind)));
                    self.pretend(context, id);
                }
                None => return Some(kind),
            }
            return None;
        }
        let early = if writes { Mutant::AckEarly } else { Mutant::ReadEarly };
        if matches!(kind, Kind::Flush) || !mutant::is_on(early) {
            return Some(kind);
        }
        self.ask(context, NOBODY, (lun, kind));
        self.pretend(context, id);
        None
    }

    /// The buffer of a task that is answered, and whose data may still have to be sent.
    pub(super) fn buffer_in_use(&self, bytes: usize) -> Option<Span> {
        let answered = self.tasks.iter().flatten().filter(|task| task.answered);
        answered.filter_map(|task| task.buffer.as_ref()).find(|buffer| buffer.len() == bytes).cloned()
    }

    fn ask(&self, context: &mut Context<'_>, task: TaskId, (lun, kind): (usize, Kind)) {
        let request = Request { id: self.request_id(task), kind };
        context.units[lun].submit(context.io, request, context.done);
    }

    /// As if the copies that are aborted had ended.
    pub(super) fn pretend_copies_ended(&mut self, context: &mut Context<'_>) {
        for id in self.machine.tasks().collect::<Vec<_>>() {
            if self.machine.is_aborted(id) {
                self.on_copied(context, id, Err(CopyFailure { segment: 0, fault: CopyFault::Aborted }));
            }
        }
    }

    /// As if the storage had answered.
    fn pretend(&mut self, context: &mut Context<'_>, id: TaskId) {
        self.on_completion(context, id.0, Ok(()));
    }
}

/// Says to a new nexus that it was here before.
pub(super) fn claim_kept(unit: &mut LogicalUnit, nexus: NexusId) {
    if mutant::is_on(Mutant::ClaimKept) {
        let _ = unit.command(nexus, scsi::Rights::ReadWrite, cdb::test_unit_ready().as_bytes(), &[]);
        unit.attach(nexus, Some(nexus));
    }
}

fn overlap((lun, one): &(usize, Kind), (other_lun, other): &(usize, Kind)) -> bool {
    let meet = |(a, m): (u64, u64), (b, n): (u64, u64)| a < b + n && b < a + m;
    lun == other_lun && one.range().zip(other.range()).is_some_and(|(one, other)| meet(one, other))
}
