//! Task management beyond one session: who must end what before the answer (RFC 7143 §11.5, SAM-5 7).
//!
//! The machine has already marked the tasks of its own session, and itself holds the response until they have
//! ended. What concerns other sessions goes to every thread as one [`AbortGroup`]; each task that is still with an
//! endpoint holds it, and when the last lets go the request is answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use iscsi::target::ManagementId;
use iscsi::wire::{TmFunction, TmResult};

use super::connection::{Connection, Context};
use super::mail::{AbortGroup, Aborts, Mail, Scope};
use super::server::Shared;

impl Connection {
    pub(super) fn on_management(
        &mut self,
        context: &mut Context<'_>,
        id: ManagementId,
        function: TmFunction,
        lun: u64,
    ) {
        self.stop_marked();
        if mutant::is_on(mutant::Mutant::AbortEarly) {
            self.pretend_copies_ended(context);
        }
        let Some(session) = self.session.as_ref() else { unreachable!("management comes after the login") };
        let unit = session.lun(lun);
        let target = session.target;
        tracing::info!(initiator = session.initiator, ?function, lun, "task management");
        let scope = match (function, unit, target) {
            (TmFunction::AbortTask | TmFunction::AbortTaskSet, ..) => {
                return self.machine.complete_management(id, TmResult::Complete);
            }
            (TmFunction::ClearTaskSet | TmFunction::LogicalUnitReset, Some(unit), _) => Scope::Lun(unit),
            (TmFunction::ClearTaskSet | TmFunction::LogicalUnitReset, None, _) => {
                return self.machine.complete_management(id, TmResult::LunDoesNotExist);
            }
            (TmFunction::TargetWarmReset | TmFunction::TargetColdReset, _, Some(target)) => {
                Scope::Target(target)
            }
            (TmFunction::TaskReassign, ..) => {
                return self.machine.complete_management(id, TmResult::ReassignmentNotSupported);
            }
            _ => return self.machine.complete_management(id, TmResult::NotSupported),
        };
        let key = self.requests.iter().position(Option::is_none).unwrap_or_else(|| {
            self.requests.push(None);
            self.requests.len() - 1
        });
        self.requests[key] = Some(id);
        let (nexus, origin) = (session.nexus, self.id());
        let group = Arc::new(AbortGroup {
            aborts: Aborts { function, scope, nexus, origin, request: key as u32 },
            found: AtomicBool::new(false),
            mailbox: Arc::clone(&context.shared.mailboxes[origin.worker]),
        });
        // Before the mail: what a thread begins until it reads that is ended by it, and later nothing is begun.
        units(context.shared, &scope).iter().for_each(|lun| context.shared.luns[*lun].clear());
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

/// The LUNs of a scope, by their indices.
fn units<'a>(shared: &'a Shared, scope: &'a Scope) -> &'a [usize] {
    match scope {
        Scope::Lun(lun) => std::slice::from_ref(lun),
        Scope::Target(target) => &shared.target_luns[*target],
    }
}

/// What a function does once its tasks have ended, whether or not the one who asked is still there: those whose tasks
/// vanished must hear why.
pub(super) fn conclude(shared: &Shared, aborts: &Aborts, found: bool) {
    for lun in units(shared, &aborts.scope) {
        shared.luns[*lun].note_change();
        let mut unit = shared.luns[*lun].unit();
        if aborts.function != TmFunction::ClearTaskSet {
            unit.reset(Some(aborts.nexus));
        } else if found {
            unit.tasks_cleared_by(aborts.nexus);
        }
        drop(unit);
        shared.luns[*lun].cleared();
    }
    if let (TmFunction::TargetColdReset, Scope::Target(target)) = (aborts.function, aborts.scope) {
        for connection in shared.sessions.of_target(&shared.config.targets[target].iqn) {
            if connection != aborts.origin {
                let mail = Mail::Close { connection, reason: "the target was reset" };
                shared.mailboxes[connection.worker].send(mail);
            }
        }
    }
}
