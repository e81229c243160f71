//! Task management beyond one session: which tasks must end before the response (RFC 7143 §11.5, SAM-5 7).
//!
//! [`reach`] is the table of what each function ends, and [`judge`] decides by it whether the session may use the
//! function: ending the tasks of other sessions requires write access to the unit, and a unit that is not visible
//! cannot be addressed. A refused function ends nothing. For a permitted function the machine marks the tasks of its
//! own session, and holds the response until they have ended. For other sessions one [`AbortGroup`] is mailed to every
//! thread; each task with a request at an endpoint holds a reference, and dropping the last one answers the request.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use iscsi::target::{self as machine, ManagementId};
use iscsi::wire::{TmFunction, TmResult};
use scsi::Rights;

use super::context::TaskContext;
use super::lun::{Lun, Seen};
use super::mail::{AbortGroup, Aborts, ConnectionId, Mail, Scope};
use super::shared::Shared;
use super::tasks::Tasks;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// One task of the requesting session, which the machine has found.
    Task,
    /// The tasks of the requesting session at one unit.
    Tasks,
    /// The tasks of all sessions at one unit, possibly with the state of the unit.
    Unit,
    /// As `Unit`, for every unit of the target; TARGET COLD RESET also ends its sessions.
    Target,
    /// None: the function is not supported.
    Nothing(TmResult),
}

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

/// Whether a session may use a function, and what that covers beyond the session. `seen`: the unit that the request
/// names, if visible to the session; `all`: the session's target, if the session may write to every unit of it.
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

/// A session's task management requests that wait for other threads; [`Aborts`] names one by its index.
#[derive(Default)]
pub(super) struct Management {
    requests: Vec<Option<ManagementId>>,
}

impl Management {
    pub(super) fn on_request(
        &mut self,
        context: &mut TaskContext<'_, '_>,
        tasks: &mut Tasks,
        origin: ConnectionId,
        (id, function, lun): (ManagementId, TmFunction, u64),
    ) {
        let session = context.session;
        let state = context.thread.shared.state();
        let all = || {
            let target = session.target?;
            let mut units = state.luns[target].iter();
            units.all(|unit| session.rights(unit.slot) == Some(Rights::ReadWrite)).then_some(target)
        };
        let scope = match judge(function, session.seen(lun), all) {
            Ok(scope) => scope,
            Err(result) => {
                tracing::info!(
                    initiator = session.initiator,
                    ?function,
                    lun,
                    ?result,
                    "task management refused"
                );
                return context.machine.complete_management(id, result);
            }
        };
        tracing::info!(initiator = session.initiator, ?function, lun, "task management");
        context.machine.carry_out(id);
        tasks.stop_marked(context.machine);
        let Some(scope) = scope else {
            return context.machine.complete_management(id, TmResult::Complete);
        };
        let key = self.requests.iter().position(Option::is_none).unwrap_or_else(|| {
            self.requests.push(None);
            self.requests.len() - 1
        });
        self.requests[key] = Some(id);
        let (shared, nexus) = (context.thread.shared, session.nexus);
        let luns: Arc<[Arc<Lun>]> = match scope {
            Scope::Lun(lun) => [Arc::clone(&context.thread.luns[lun])].into(),
            Scope::Target(target) => state.luns[target].as_slice().into(),
        };
        let group = Arc::new(AbortGroup {
            aborts: Aborts { function, scope, luns: Arc::clone(&luns), nexus, origin, request: key as u32 },
            found: AtomicBool::new(false),
            mailbox: Arc::clone(&shared.mailboxes[origin.worker]),
        });
        // Before the mail: a command that a thread starts before it reads the mail is ended by it, and later no command
        // starts.
        luns.iter().for_each(|lun| lun.clear());
        for mailbox in &shared.mailboxes {
            mailbox.send(Mail::Abort { group: Arc::clone(&group) });
        }
    }

    pub(super) fn on_aborted(&mut self, machine: &mut machine::Connection, request: u32) {
        if let Some(id) = self.requests.get_mut(request as usize).and_then(Option::take) {
            machine.complete_management(id, TmResult::Complete);
        }
    }
}

/// Applies the effects of a function once its tasks have ended, whether or not the requesting session still lives: unit
/// attentions must report the abort to the other initiators.
pub(super) fn conclude(shared: &Shared, aborts: &Aborts, found: bool) {
    for lun in &*aborts.luns {
        lun.note_change();
        lun.config.medium.drop_read_ahead();
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

    /// Every function for every kind of access: the unit is writable, read-only or masked; the other units of the
    /// target are all writable in the first case only.
    #[test]
    fn every_function_for_every_standing() {
        use TmFunction as F;
        use TmResult::{AuthorizationFailed, LunDoesNotExist, NotSupported, ReassignmentNotSupported};
        type Expected = Result<Option<Scope>, TmResult>;
        let (own, unit, target) = (Ok(None), Ok(Some(Scope::Lun(LUN))), Ok(Some(Scope::Target(TARGET))));
        let (denied, no_unit) = (Err(AuthorizationFailed), Err(LunDoesNotExist));
        let (none, never) = (Err(NotSupported), Err(ReassignmentNotSupported));
        // Function; expectation for read-write, read-only, masked.
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
        let same = (1..).zip(&rows).all(|(code, (function, _))| F::from_code(code) == *function);
        assert!(same, "all there are");
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
