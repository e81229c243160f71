//! The peer: seals transfers as docs/SEAL.md section 5 requires, with occasional single violations, and records the
//! expected result.

use std::ops::Range;
use std::time::Duration;

use area::{Pool, Span};
use iscsi::machine::{Placement, TaskId};
use seal::{BHS_BYTES, Channel, DESCRIPTORS_MAX, Descriptor, SEGMENT_UNIT_BYTES_MAX};

use crate::Source;
use crate::record::{control, take};

/// MaxRecvDataSegmentLength of the receiver.
pub(super) const SEGMENT_MAX: usize = 70_000;
/// Bytes of a buffer behind the transfer, and their content.
pub(super) const MARGIN: usize = 5;
pub(super) const UNTOUCHED: u8 = 0xee;
const PDUS_MAX: usize = 40;
const TRANSFER_MAX: u32 = 100_000;
const SLOTS: usize = 3;
/// One in so many PDUs contains a violation.
const WRONG_ONE_IN: u8 = 24;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Accepted,
    /// The result depends on later PDUs; from here on the connection may end.
    Undetermined,
    DataRefused,
    HeaderRefused,
}

pub(super) struct Pdu {
    pub(super) header: Vec<u8>,
    pub(super) wire: Vec<u8>,
    pub(super) placement: Placement,
    pub(super) verdict: Verdict,
    pub(super) inline: Vec<u8>,
    pub(super) buffer: Option<Span>,
    pub(super) serial: usize,
    pub(super) end: usize,
    /// Units that the PDU completes.
    pub(super) whole: Vec<Range<usize>>,
    /// A unit that must be wiped if this PDU is the first refused.
    pub(super) wiped: Option<Range<usize>>,
    /// Whether every wrong descriptor of the task must be detected.
    pub(super) is_sure: bool,
    /// Whether no unit of the task stays open after the PDU, if that is determined.
    pub(super) is_whole: Option<bool>,
    /// Tasks that end after the PDU.
    pub(super) ended: Vec<TaskId>,
}

/// Byte `at` of a transfer.
pub(super) fn content(serial: usize, at: usize) -> u8 {
    (serial * 73 + at * 31 + (at >> 8) * 7 + 1) as u8
}

fn contents(serial: usize, range: Range<usize>) -> Vec<u8> {
    range.map(|at| content(serial, at)).collect()
}

struct Task {
    serial: usize,
    length: usize,
    buffer: Span,
    sealed: Vec<u8>,
    /// Descriptors of the sealed units, by index.
    units: Vec<Option<Descriptor>>,
    /// Units that must not open, by index.
    bad: Vec<bool>,
    /// The unsent part of each sequence.
    sequences: Vec<Range<usize>>,
    is_sure: bool,
    /// The receiver has been informed of the task's end, and discards further data.
    is_over: bool,
}

impl Task {
    fn new(source: &mut Source<'_>, serial: usize, unit: usize, pool: &Pool) -> Self {
        let length = (source.number() % TRANSFER_MAX + 1) as usize;
        let units = length.div_ceil(unit);
        let room = match source.byte() % 16 {
            // The transfer exceeds the buffer, at a multiple of the unit or not.
            14 => (source.number() as usize % units * unit).max(unit.min(length)),
            15 => source.number() as usize % length + 1,
            _ => length + MARGIN,
        };
        let buffer = pool.take(room).expect("memory");
        buffer.fill(0, &vec![UNTOUCHED; room]);
        let split = if source.flag() { source.number() as usize % units * unit } else { 0 };
        Self {
            serial,
            length,
            buffer,
            sealed: vec![0; length],
            units: vec![None; units],
            bad: vec![false; units],
            sequences: [0..split, split..length].into_iter().filter(|range| !range.is_empty()).collect(),
            is_sure: true,
            is_over: false,
        }
    }

    fn unit(&self, index: usize, unit: usize) -> Range<usize> {
        index * unit..(index * unit + unit).min(self.length)
    }

    fn open(&self, unit: usize) -> impl Iterator<Item = Descriptor> {
        let is_open = move |range: &&Range<usize>| !range.is_empty() && !range.start.is_multiple_of(unit);
        self.sequences.iter().filter(is_open).filter_map(move |range| self.units[range.start / unit])
    }
}

pub(super) struct Sender {
    initiator: Channel,
    /// The state of the target after it has opened everything sent.
    twin: Channel,
    /// Control records to send before the next PDU.
    control: Vec<u8>,
    unit: usize,
    tasks: [Option<Task>; SLOTS],
    serials: usize,
    pdus: Vec<Pdu>,
}

/// A record before its head is sealed.
struct Draft {
    pdu: Pdu,
    length: usize,
    descriptors: Vec<Descriptor>,
    body: Vec<u8>,
}

impl Draft {
    fn new(placement: Placement, body: Vec<u8>) -> Self {
        let pdu = Pdu {
            header: Vec::new(),
            wire: Vec::new(),
            placement,
            verdict: Verdict::Accepted,
            inline: Vec::new(),
            buffer: None,
            serial: 0,
            end: 0,
            whole: Vec::new(),
            wiped: None,
            is_sure: true,
            is_whole: None,
            ended: Vec::new(),
        };
        Self { pdu, length: body.len(), descriptors: Vec::new(), body }
    }
}

impl Sender {
    pub(super) fn new(initiator: Channel, twin: Channel, unit: usize) -> Self {
        let (tasks, control, pdus) = ([const { None }; SLOTS], Vec::new(), Vec::new());
        Self { initiator, twin, control, unit, tasks, serials: 0, pdus }
    }

    fn exchange(&mut self) {
        let offer = control(&mut self.initiator, Duration::ZERO);
        let _ = take(&mut self.twin, &offer, Duration::ZERO).expect("a right offer");
        self.control.extend(offer);
        let answer = control(&mut self.twin, Duration::ZERO);
        let _ = take(&mut self.initiator, &answer, Duration::ZERO).expect("a right answer");
    }

    pub(super) fn records(mut self, source: &mut Source<'_>, pool: &Pool) -> Vec<Pdu> {
        while self.pdus.len() < PDUS_MAX && !source.is_empty() {
            let slot = source.below(SLOTS);
            match source.byte() % 16 {
                0..=8 => self.segment(source, slot, pool),
                9 => self.inline(source),
                10 => self.bare(source),
                11 => self.seal_ahead(source, slot),
                12 | 13 => self.renew(),
                14 => self.end_early(slot),
                // A rekey that correct senders avoid: open units outlive their key.
                _ => {
                    self.bare(source);
                    self.exchange();
                }
            }
        }
        self.pdus
    }

    /// Seals a unit of a task, unless it is sealed already and can still be sent.
    fn seal(&mut self, slot: usize, index: usize) -> Descriptor {
        let task = self.tasks[slot].as_mut().expect("a task");
        if let Some(descriptor) =
            task.units[index].filter(|descriptor| self.initiator.sealer.carries(descriptor, Duration::ZERO))
        {
            return descriptor;
        }
        let range = task.unit(index, self.unit);
        let plain = contents(task.serial, range.clone());
        let descriptor = self.initiator.sealer.seal_into(&plain, &mut task.sealed[range]);
        *task.units[index].insert(descriptor)
    }

    fn seal_ahead(&mut self, source: &mut Source<'_>, slot: usize) {
        let Some(sequence) = self.tasks[slot].as_ref().and_then(|task| task.sequences.first().cloned())
        else {
            return;
        };
        let (first, last) = (sequence.start.div_ceil(self.unit), sequence.end.div_ceil(self.unit));
        if first < last {
            self.seal(slot, first + source.below(last - first));
        }
    }

    /// Rekeys if no open unit is of an earlier generation.
    fn renew(&mut self) {
        let generation = self.initiator.sealer.generation();
        let is_free =
            |task: &Task| task.is_over || task.open(self.unit).all(|unit| unit.generation() == generation);
        if self.tasks.iter().flatten().all(is_free) {
            self.exchange();
        }
    }

    /// Aborts a task: the sender continues, the receiver discards further data.
    fn end_early(&mut self, slot: usize) {
        if let (Some(task), Some(last)) = (&mut self.tasks[slot], self.pdus.last_mut())
            && !task.is_over
        {
            task.is_over = true;
            last.ended.push(TaskId(slot as u32));
        }
    }

    fn segment(&mut self, source: &mut Source<'_>, slot: usize, pool: &Pool) {
        let unit = self.unit;
        if self.tasks[slot].is_none() {
            self.serials += 1;
            self.tasks[slot] = Some(Task::new(source, self.serials, unit, pool));
        }
        let task = self.tasks[slot].as_mut().expect("just made");
        let which = source.below(task.sequences.len());
        let sequence = &mut task.sequences[which];
        let most = sequence.len().min(SEGMENT_MAX).min(DESCRIPTORS_MAX * unit);
        let length = if source.flag() { most } else { (source.number() as usize).clamp(1, most) };
        let (offset, stop) = (sequence.start, sequence.start + length);
        sequence.start = stop;
        task.sequences.retain(|sequence| !sequence.is_empty());
        let (is_over, room) = (task.is_over, task.buffer.len());
        let begun: Vec<usize> = (offset.div_ceil(unit)..stop.div_ceil(unit)).collect();
        let descriptors = begun.iter().map(|index| self.seal(slot, *index)).collect();
        let task = self.tasks[slot].as_mut().expect("as before");
        let placement = if is_over || offset >= room {
            Placement::Discard
        } else {
            let length = (stop.min(room) - offset) as u32;
            Placement::Task { task: TaskId(slot as u32), offset: offset as u32, length }
        };
        let mut draft = Draft::new(placement, task.sealed[offset..stop].to_vec());
        draft.descriptors = descriptors;
        if source.rarely(WRONG_ONE_IN) {
            self.spoil_segment(source, slot, &mut draft, offset, &begun);
        }
        let task = self.tasks[slot].as_mut().expect("as before");
        if placement != Placement::Discard {
            judge(task, &mut draft, unit, self.initiator.sealer.generation(), offset..stop);
        }
        if task.sequences.is_empty() {
            let task = self.tasks[slot].take().expect("as before");
            draft.pdu.ended.extend((!task.is_over).then_some(TaskId(slot as u32)));
        }
        self.push(source, draft);
    }

    fn spoil_segment(
        &mut self,
        source: &mut Source<'_>,
        slot: usize,
        draft: &mut Draft,
        offset: usize,
        begun: &[usize],
    ) {
        let (unit, sealer) = (self.unit, &mut self.initiator.sealer);
        let task = self.tasks[slot].as_mut().expect("a task");
        let stop = offset + draft.body.len();
        let Draft { pdu, descriptors, body, .. } = draft;
        let at = source.below(descriptors.len().max(1));
        match (source.below(6), &mut pdu.placement) {
            (0, _) => {
                let wrong = source.below(body.len());
                body[wrong] ^= 1 << source.below(8);
                task.bad[(offset + wrong) / unit] = true;
            }
            (1, _) if !begun.is_empty() => {
                descriptors[at].tag[source.below(16)] ^= 1 << source.below(8);
                task.bad[begun[at]] = true;
            }
            (2, _) if !begun.is_empty() => {
                descriptors[at].seal_id ^= 1 << source.below(48);
                task.bad[begun[at]] = true;
            }
            // The receiver does not check discarded data for the violations below.
            (_, Placement::Discard) => {}
            (3, _) => spoil_number(source, draft),
            (4, Placement::Task { offset: placed, length, .. }) => {
                // Data at an offset inside a unit that does not continue there.
                let moved = offset + 1;
                if !moved.is_multiple_of(unit) && moved + *length as usize <= task.buffer.len() {
                    *placed += 1;
                    pdu.verdict = Verdict::DataRefused;
                }
            }
            (_, _) if !begun.is_empty() => {
                let (start, length) = (begun[at] * unit, source.number() as usize);
                if length == descriptors[at].length as usize {
                    return;
                }
                descriptors[at].length = length as u32;
                let is_refused = length == 0 || length > unit || start + length < stop;
                pdu.verdict = if is_refused { Verdict::DataRefused } else { Verdict::Undetermined };
                task.is_sure = false;
                // Sealed with the length that the descriptor announces.
                if source.flag() && (1..=unit.min(task.length - start)).contains(&length) {
                    let plain = contents(task.serial, start..start + length);
                    descriptors[at] = sealer.seal_into(&plain, &mut task.sealed[start..start + length]);
                    body.copy_from_slice(&task.sealed[offset..stop]);
                }
            }
            _ => {}
        }
    }

    /// Text, sense or ping: one unit.
    fn inline(&mut self, source: &mut Source<'_>) {
        let most = SEGMENT_MAX.min(DESCRIPTORS_MAX * self.unit);
        let length = (source.number() as usize).clamp(1, most);
        self.serials += 1;
        let plain = contents(self.serials, 0..length);
        let mut draft = Draft::new(Placement::Inline, plain.clone());
        draft.descriptors.push(self.initiator.sealer.seal_in_place(&mut draft.body));
        draft.pdu.inline = plain;
        if length > SEGMENT_UNIT_BYTES_MAX {
            draft.pdu.verdict = Verdict::DataRefused;
        }
        if source.rarely(WRONG_ONE_IN) {
            let [unit] = &mut draft.descriptors[..] else { unreachable!("one unit") };
            match source.below(4) {
                0 => draft.body[source.below(length)] ^= 1 << source.below(8),
                1 => unit.tag[source.below(16)] ^= 1 << source.below(8),
                2 => unit.length ^= 1 << source.below(32),
                _ => spoil_number(source, &mut draft),
            }
            draft.pdu.verdict = Verdict::DataRefused;
        }
        self.push(source, draft);
    }

    fn bare(&mut self, source: &mut Source<'_>) {
        let mut draft = Draft::new(Placement::Nothing, Vec::new());
        if source.rarely(WRONG_ONE_IN) {
            let mut unit = [7; 100];
            draft.descriptors.push(self.initiator.sealer.seal_in_place(&mut unit));
            draft.pdu.verdict = Verdict::HeaderRefused;
        }
        self.push(source, draft);
    }

    /// Seals the head and appends the record, sometimes altered in transit.
    fn push(&mut self, source: &mut Source<'_>, draft: Draft) {
        let Draft { mut pdu, mut length, descriptors, body } = draft;
        let wrong = if source.rarely(WRONG_ONE_IN) { source.below(4) } else { usize::MAX };
        if wrong == 0 {
            length = SEGMENT_MAX.min(DESCRIPTORS_MAX * self.unit) + 1 + source.number() as usize % 1000;
        }
        let words = if source.rarely(8) { source.byte() } else { 0 };
        pdu.header = vec![self.pdus.len() as u8; BHS_BYTES + usize::from(words) * 4];
        pdu.header[4] = words;
        pdu.header[5..8].copy_from_slice(&(length as u32).to_be_bytes()[1..]);
        if wrong == 1 {
            // An earlier record was lost.
            let mut lost = Vec::new();
            self.initiator.sealer.seal_head(&[0; BHS_BYTES], &[], &mut lost);
            let _ = take(&mut self.twin, &lost, Duration::ZERO).expect("as it was sealed");
        }
        self.initiator.sealer.seal_head(&pdu.header, &descriptors, &mut pdu.wire);
        let _ = take(&mut self.twin, &pdu.wire, Duration::ZERO).expect("as it was sealed");
        match wrong {
            2 => {
                let at = source.below(pdu.wire.len());
                pdu.wire[at] ^= 1 << source.below(8);
            }
            3 => pdu.wire = self.pdus.last().map_or_else(|| vec![0; 100], |last| last.wire.clone()),
            _ => {}
        }
        if wrong < 4 {
            (pdu.verdict, pdu.wiped) = (Verdict::HeaderRefused, None);
        }
        pdu.wire.extend(body);
        pdu.wire.splice(..0, self.control.drain(..));
        self.pdus.push(pdu);
    }
}

/// Adds or removes a descriptor.
fn spoil_number(source: &mut Source<'_>, draft: &mut Draft) {
    let Draft { pdu, descriptors, .. } = draft;
    let Some(last) = descriptors.last().copied() else { return };
    if source.flag() && descriptors.len() < DESCRIPTORS_MAX {
        descriptors.push(last);
    } else {
        descriptors.remove(source.below(descriptors.len()));
    }
    pdu.verdict = Verdict::DataRefused;
}

/// Sets the expected result of a segment that covers `range` of a task's data.
fn judge(task: &Task, draft: &mut Draft, unit: usize, generation: u16, range: Range<usize>) {
    let (pdu, room) = (&mut draft.pdu, task.buffer.len());
    (pdu.serial, pdu.end, pdu.is_sure) = (task.serial, task.length, task.is_sure);
    pdu.buffer = Some(task.buffer.clone());
    let was_accepted = pdu.verdict == Verdict::Accepted;
    for index in range.start / unit..range.end.div_ceil(unit) {
        let whole = task.unit(index, unit);
        if whole.start < room && whole.end > room {
            // The unit crosses the end of the buffer and can never be verified. If it began in an earlier PDU, the
            // refusal came there.
            pdu.verdict = Verdict::DataRefused;
            pdu.wiped = None;
            return;
        }
        if whole.end > range.end || whole.end > room {
            continue;
        }
        let age = task.units[index].map_or(0, |descriptor| generation - descriptor.generation());
        if (task.bad[index] || age > 1) && pdu.wiped.is_none() {
            pdu.verdict = Verdict::DataRefused;
            pdu.wiped = Some(whole.clone()).filter(|_| was_accepted && task.is_sure);
        }
        pdu.whole.push(whole);
    }
    // Units behind the buffer never complete.
    if room >= task.length {
        pdu.is_whole = Some(task.open(unit).next().is_none());
    }
}
