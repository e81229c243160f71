//! EXTENDED COPY at its connection: who is meant by the list, whether that is allowed, and the answer.
//!
//! A descriptor may name only what this I_T nexus sees. Every segment is looked at before the first is copied, so
//! that a list which cannot be carried out changes nothing.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use iscsi::machine::TaskId;
use scsi::copy::{CopyFailure, CopyFault, CopyList};
use scsi::{CopyEnd, Outcome};

use super::connection::{Connection, Context, Phase, Seen, Session};
use super::copier::{Order, Run};
use super::lun::Lun;
use super::media::Job;
use super::slots::Slots;

/// A copy that a task waits for.
#[derive(Debug)]
pub(super) struct Copying {
    list: Arc<CopyList>,
    /// The units that it writes.
    written: Vec<Arc<Lun>>,
}

impl Connection {
    /// Begins the copy of a task, or says why not.
    pub(super) fn copy(&mut self, context: &mut Context<'_>, id: TaskId, list: CopyList) {
        let session = self.session.as_ref().expect("commands come after the login");
        let nexus = session.nexus;
        let lun = self.tasks[id.index()].as_ref().expect("a task under way").lun;
        let unit = &context.luns[lun];
        let runs = match plan(context.luns, session, &list) {
            Ok(runs) if runs.is_empty() => {
                let outcome = unit.unit().copied(nexus, &list, Ok(0));
                return self.finish(context, id, &outcome);
            }
            Ok(runs) => runs,
            Err(failure) => {
                let initiator = session.initiator.as_str();
                tracing::info!(initiator, segment = failure.segment, fault = ?failure.fault, "no copy");
                let outcome = unit.unit().copied(nexus, &list, Err(failure));
                return self.finish(context, id, &outcome);
            }
        };
        let mut written: Vec<usize> = runs.iter().map(|run| run.destination).collect();
        written.sort_unstable();
        written.dedup();
        let written: Vec<Arc<Lun>> = written.iter().map(|lun| Arc::clone(&context.luns[*lun])).collect();
        for lun in &written {
            lun.note_writer(nexus, &session.initiator);
        }
        let ends = runs.iter().flat_map(|run| [run.source, run.destination]).chain([lun]);
        let mut luns: Vec<Arc<Lun>> = ends.map(|lun| Arc::clone(&context.luns[lun])).collect();
        luns.sort_unstable_by_key(|lun| lun.slot);
        luns.dedup_by_key(|lun| lun.slot);
        let (list, stop) = (Arc::new(list), Arc::new(AtomicBool::new(false)));
        let order = Order {
            shared: Arc::clone(context.shared),
            luns,
            runs,
            list: Arc::clone(&list),
            lun,
            nexus,
            connection: self.id(),
            task: id,
            stop: Arc::clone(&stop),
        };
        if !context.shared.copier.take(order) {
            let aborted = CopyFailure { segment: 0, fault: CopyFault::Aborted };
            let _ = unit.unit().copied(nexus, &list, Err(aborted));
            return self.finish(context, id, &Outcome::task_set_full());
        }
        let task = self.tasks[id.index()].as_mut().expect("a task under way");
        (task.job, task.copying) = (Some(Job::elsewhere(stop)), Some(Box::new(Copying { list, written })));
        self.busy += 1;
    }

    /// The copy of a task has ended.
    pub(super) fn on_copied(
        &mut self,
        context: &mut Context<'_>,
        id: TaskId,
        result: Result<u64, CopyFailure>,
    ) {
        let Some(Some(task)) = self.tasks.get_mut(id.index()) else { return };
        let Some(copying) = task.copying.take() else { return };
        task.job = None;
        self.busy -= 1;
        for lun in &copying.written {
            lun.note_change();
        }
        let nexus = self.session.as_ref().expect("logged in").nexus;
        let outcome = context.luns[task.lun].unit().copied(nexus, &copying.list, result);
        if self.phase != Phase::Open || !task.groups.is_empty() {
            return self.machine.abort(id);
        }
        self.finish(context, id, &outcome);
    }
}

/// What the list comes to: stretches between units of this session.
fn plan(luns: &Slots<Arc<Lun>>, session: &Session, list: &CopyList) -> Result<Vec<Run>, CopyFailure> {
    let found: Vec<Option<Seen>> = list
        .cscds
        .iter()
        .map(|cscd| session.luns.iter().find(|seen| luns[seen.lun].unit().is_named(cscd)).copied())
        .collect();
    let mut runs: Vec<Run> = Vec::new();
    for (index, segment) in list.segments.iter().enumerate() {
        let index = index as u16;
        let fail = |fault| CopyFailure { segment: index, fault };
        let end = |id: u16| {
            let cscd = list.cscds.get(usize::from(id)).filter(|cscd| !cscd.null);
            let cscd = cscd.ok_or(fail(CopyFault::NoDescriptor))?;
            let seen = found[usize::from(id)].ok_or(fail(CopyFault::NotReachable))?;
            Ok((cscd, seen, u64::from(luns[seen.lun].block_size)))
        };
        let (from, source, source_block) = end(segment.source)?;
        let (to, destination, destination_block) = end(segment.destination)?;
        let counted = if segment.destination_count { destination_block } else { source_block };
        let bytes = u64::from(segment.blocks) * counted;
        if !bytes.is_multiple_of(source_block) || !bytes.is_multiple_of(destination_block) {
            return Err(fail(CopyFault::Inexact));
        }
        let check = |seen: Seen, end, cscd, lba, block| {
            let unit = luns[seen.lun].unit();
            unit.copies((session.nexus, seen.rights), end, cscd, lba, bytes / block).map_err(fail)
        };
        check(source, CopyEnd::Source, from, segment.source_lba, source_block)?;
        check(destination, CopyEnd::Destination, to, segment.destination_lba, destination_block)?;
        if bytes == 0 {
            continue;
        }
        let (source, destination) = (source.lun, destination.lun);
        let source_offset = segment.source_lba * source_block;
        let destination_offset = segment.destination_lba * destination_block;
        match runs.last_mut() {
            Some(run)
                if (run.source, run.destination) == (source, destination)
                    && run.source_offset + run.bytes == source_offset
                    && run.destination_offset + run.bytes == destination_offset =>
            {
                run.bytes += bytes;
                run.ends.push(run.bytes);
            }
            _ => runs.push(Run {
                source,
                destination,
                source_offset,
                destination_offset,
                bytes,
                segment: index,
                ends: vec![bytes],
            }),
        }
    }
    Ok(runs)
}
