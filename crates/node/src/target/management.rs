//! Task management beyond one session: who must end what before the answer (RFC 7143 §11.5, SAM-5 7).
//!
//! [`reach`] is the table of what each function ends, and [`judge`] decides by it whether the session may have it carried out:
//! who ends what others do must be allowed to write there, and who does not see a unit does not reach it. What is refused ends
//! nothing. What is carried out the machine marks in its own session, and itself holds the response until those tasks have ended. What concerns other sessions goes to every thread as one [`AbortGroup`]; each task that is still with an
//! endpoint holds it, and when the last lets go the request is answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use iscsi::target::ManagementId;
use iscsi::wire::{TmFunction, TmResult};
use scsi::Rights;

use super::connection::{Connection, Context, Seen};
use super::lun::Lun;
use super::mail::{AbortGroup, Aborts, Mail, Scope};
use super::server::Shared;

/// What a function ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// One task of the session that asks, which the machine has found.
    Task,
    /// The tasks of that session at one unit.
    Tasks,
    /// The tasks of all at one unit, or the unit's state with them.
    Unit,
    /// The same at every unit of the target; TARGET COLD RESET ends its sessions too.
    Target,
    /// Nothing: the target does not do it.
    Nothing(TmResult),
}

/// The table.
const fn reach(function: TmFunction) -> Reach {
    match function {
        TmFunction::AbortTask => Reach::Task,
        TmFunction::AbortTaskSet => Reach::Tasks,
        TmFunction::ClearTaskSet | TmFunction::LogicalUnitReset => Reach::Unit,
        TmFunction::TargetWarmReset | TmFunction::TargetColdReset => Reach::Target,
        TmFunction::TaskReassign => Reach::Nothing(TmResult::ReassignmentNotSupported),
        _ => Reach::Nothing(TmResult::NotSupported),
    }
}

/// Whether a session may have a function carried out, and what that covers beyond the session. `seen` is the unit that the
/// request names, if the session sees it; `all` the session's target, if it may write every unit of that.
fn judge(
    function: TmFunction,
    seen: Option<Seen>,
    all: impl FnOnce() -> Option<usize>,
) -> Result<Option<Scope>, TmResult> {
    match (reach(function), seen) {
        (Reach::Task, _) => Ok(None),
        (Reach::Tasks | Reach::Unit, None) => Err(TmResult::LunDoesNotExist),
        (Reach::Tasks, Some(_)) => Ok(None),
        (Reach::Unit, Some(Seen { rights: Rights::ReadOnly, .. })) => Err(TmResult::AuthorizationFailed),
        (Reach::Unit, Some(Seen { rights: Rights::ReadWrite, lun, .. })) => Ok(Some(Scope::Lun(lun))),
        (Reach::Target, _) => {
            all().map(|target| Some(Scope::Target(target))).ok_or(TmResult::AuthorizationFailed)
        }
        (Reach::Nothing(result), _) => Err(result),
    }
}

impl Connection {
    pub(super) fn on_management(
        &mut self,
        context: &mut Context<'_>,
        id: ManagementId,
        function: TmFunction,
        lun: u64,
    ) {
        let Some(session) = self.session.as_ref() else { unreachable!("management comes after the login") };
        let seen = session.seen(lun);
        let state = context.shared.state();
        let all = || {
            let target = session.target?;
            let mut units = state.luns[target].iter();
            units.all(|unit| session.rights(unit.slot) == Some(Rights::ReadWrite)).then_some(target)
        };
        let scope = match judge(function, seen, all) {
            Ok(scope) => scope,
            Err(result) => {
                tracing::info!(
                    initiator = session.initiator,
                    ?function,
                    lun,
                    ?result,
                    "task management refused"
                );
                return self.machine.complete_management(id, result);
            }
        };
        tracing::info!(initiator = session.initiator, ?function, lun, "task management");
        let nexus = session.nexus;
        self.machine.carry_out(id);
        self.stop_marked();
        if mutant::is_on(mutant::Mutant::AbortEarly) {
            self.pretend_copies_ended(context);
        }
        let Some(scope) = scope else {
            return self.machine.complete_management(id, TmResult::Complete);
        };
        let key = self.requests.iter().position(Option::is_none).unwrap_or_else(|| {
            self.requests.push(None);
            self.requests.len() - 1
        });
        self.requests[key] = Some(id);
        let origin = self.id();
        let luns: Arc<[Arc<Lun>]> = match scope {
            Scope::Lun(lun) => [Arc::clone(&context.luns[lun])].into(),
            Scope::Target(target) => state.luns[target].as_slice().into(),
        };
        let group = Arc::new(AbortGroup {
            aborts: Aborts { function, scope, luns: Arc::clone(&luns), nexus, origin, request: key as u32 },
            found: AtomicBool::new(false),
            mailbox: Arc::clone(&context.shared.mailboxes[origin.worker]),
        });
        // Before the mail: what a thread begins until it reads that is ended by it, and later nothing is begun.
        luns.iter().for_each(|lun| lun.clear());
        for mailbox in &context.shared.mailboxes {
            mailbox.send(Mail::Abort { group: Arc::clone(&group) });
        }
    }

    /// Tasks of this session that the machine has marked need not go further.
    fn stop_marked(&mut self) {
        for id in self.machine.tasks().collect::<Vec<_>>() {
            if self.machine.is_aborted(id)
                && let Some(Some(task)) = self.tasks.get_mut(id.index())
                && let Some(job) = &mut task.job
            {
                job.abort();
            }
        }
    }

    /// Ends the tasks here that `group` covers; those with an endpoint when they come back.
    pub(super) fn abort_for(&mut self, group: &Arc<AbortGroup>) {
        let Some(session) = &self.session else { return };
        if self.id() == group.aborts.origin {
            return;
        }
        for id in self.machine.tasks().collect::<Vec<_>>() {
            let Some(Some(task)) = self.tasks.get_mut(id.index()) else { continue };
            let covered = match group.aborts.scope {
                Scope::Lun(lun) => task.lun == lun,
                Scope::Target(target) => session.target == Some(target),
            };
            // What is done is answered: nothing of it is left to abort, and its initiator would wait in vain.
            if !covered || task.answered {
                continue;
            }
            group.found.store(true, Ordering::Relaxed);
            match &mut task.job {
                Some(job) if job.is_outstanding() => {
                    job.abort();
                    // Several requests may wait for one task.
                    task.groups.push(Arc::clone(group));
                }
                _ => self.machine.abort(id),
            }
        }
    }

    /// Nothing that a request of ours covered is left anywhere.
    pub(super) fn on_aborted(&mut self, request: u32) {
        if let Some(id) = self.requests.get_mut(request as usize).and_then(Option::take) {
            self.machine.complete_management(id, TmResult::Complete);
        }
    }
}

/// What a function does once its tasks have ended, whether or not the one who asked is still there: those whose tasks
/// vanished must hear why.
pub(super) fn conclude(shared: &Shared, aborts: &Aborts, found: bool) {
    for lun in &*aborts.luns {
        lun.note_change();
        let mut unit = lun.unit();
        if aborts.function != TmFunction::ClearTaskSet {
            unit.reset(Some(aborts.nexus));
        } else if found {
            unit.tasks_cleared_by(aborts.nexus);
        }
        drop(unit);
        lun.cleared();
    }
    if let (TmFunction::TargetColdReset, Scope::Target(target)) = (aborts.function, aborts.scope) {
        for connection in shared.sessions.of_target(&shared.state().config.targets[target].iqn) {
            if connection != aborts.origin {
                let mail = Mail::Close { connection, reason: "the target was reset" };
                shared.mailboxes[connection.worker].send(mail);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LUN: usize = 3;
    const TARGET: usize = 5;

    /// Every function for every standing: the unit may be written, only be read, or is masked; the others of the target may be
    /// written throughout in the first case alone.
    #[test]
    fn every_function_for_every_standing() {
        use TmFunction as F;
        use TmResult::{AuthorizationFailed, LunDoesNotExist, NotSupported, ReassignmentNotSupported};
        type Expected = Result<Option<Scope>, TmResult>;
        let (own, unit, target) = (Ok(None), Ok(Some(Scope::Lun(LUN))), Ok(Some(Scope::Target(TARGET))));
        let (denied, no_unit) = (Err(AuthorizationFailed), Err(LunDoesNotExist));
        let (none, never) = (Err(NotSupported), Err(ReassignmentNotSupported));
        // Function; read-write, read-only, masked.
        let rows: [(F, [Expected; 3]); 12] = [
            (F::AbortTask, [own, own, own]),
            (F::AbortTaskSet, [own, own, no_unit]),
            (F::ClearAca, [none, none, none]),
            (F::ClearTaskSet, [unit, denied, no_unit]),
            (F::LogicalUnitReset, [unit, denied, no_unit]),
            (F::TargetWarmReset, [target, denied, denied]),
            (F::TargetColdReset, [target, denied, denied]),
            (F::TaskReassign, [never, never, never]),
            (F::QueryTask, [none, none, none]),
            (F::QueryTaskSet, [none, none, none]),
            (F::ItNexusReset, [none, none, none]),
            (F::QueryAsynchronousEvent, [none, none, none]),
        ];
        assert!(
            (1..).zip(&rows).all(|(code, (function, _))| F::from_code(code) == *function),
            "all there are"
        );
        for (function, expected) in rows {
            let standings = [Some(Rights::ReadWrite), Some(Rights::ReadOnly), None];
            for (rights, expected) in standings.into_iter().zip(expected) {
                let seen = rights.map(|rights| Seen { wire: 0, lun: LUN, rights });
                let all = || (rights == Some(Rights::ReadWrite)).then_some(TARGET);
                assert_eq!(judge(function, seen, all), expected, "{function:?} {rights:?}");
            }
        }
    }
}
