//! EXTENDED COPY at its connection: resolves the units of the list, checks the rights, and builds the response.
//!
//! A descriptor may name only units visible to this I_T nexus. Every segment is checked before the first is copied, so
//! that an invalid list changes nothing.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use iscsi::machine::TaskId;
use scsi::copy::{CopyFailure, CopyFault, CopyList};
use scsi::{CopyEnd, NexusId, Outcome};

use super::context::Context;
use super::copier::{Order, Run};
use super::lun::{Lun, Seen};
use super::mail::ConnectionId;
use super::media::StorageWork;
use super::session::Session;
use super::slots::Slots;

#[derive(Debug)]
pub(super) struct Copying {
    list: Arc<CopyList>,
    written: Vec<Arc<Lun>>,
}

impl Copying {
    /// The copy has ended. Returns the outcome of the command.
    pub(super) fn end(&self, unit: &Lun, nexus: NexusId, result: Result<u64, CopyFailure>) -> Outcome {
        for lun in &self.written {
            lun.note_change();
        }
        unit.unit().copied(nexus, &self.list, result)
    }
}

/// Starts the copy of a `task`; its result is mailed to `connection`. `Err`: impossible, or nothing to copy.
pub(super) fn begin(
    context: &Context<'_>,
    session: &Session,
    lun: usize,
    (connection, task): (ConnectionId, TaskId),
    list: CopyList,
) -> Result<(StorageWork, Copying), Outcome> {
    let nexus = session.nexus;
    let unit = &context.luns[lun];
    let runs = match plan(context.luns, session, &list) {
        Ok(runs) if runs.is_empty() => return Err(unit.unit().copied(nexus, &list, Ok(0))),
        Ok(runs) => runs,
        Err(failure) => {
            let initiator = session.initiator.as_str();
            tracing::info!(initiator, segment = failure.segment, fault = ?failure.fault, "no copy");
            return Err(unit.unit().copied(nexus, &list, Err(failure)));
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
        luns,
        runs,
        list: Arc::clone(&list),
        lun,
        nexus,
        mailbox: Arc::clone(&context.shared.mailboxes[connection.worker]),
        connection,
        task,
        stop: Arc::clone(&stop),
    };
    if !context.shared.copier.take(order) {
        let aborted = CopyFailure { segment: 0, fault: CopyFault::Aborted };
        let _ = unit.unit().copied(nexus, &list, Err(aborted));
        return Err(Outcome::task_set_full());
    }
    Ok((StorageWork::elsewhere(stop, unit.block_size), Copying { list, written }))
}

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
