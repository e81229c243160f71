//! The initiator's tasks: a slab of slots.

use std::collections::VecDeque;

use super::Direction;
use crate::limits::{R2T_OUTSTANDING_MAX, TASK_BITS};
use crate::wire::{Attribute, CmdSn, DataSn, Itt, Ttt};

/// Most sequences of a task: every R2T and the unsolicited data.
const SEQUENCES_MAX: usize = R2T_OUTSTANDING_MAX as usize + 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Free,
    /// Submitted, not handed out.
    Queued,
    /// Handed out, without a status.
    Active,
    /// Ended; the edge has not taken the event that reports it.
    Ended,
}

/// A sequence of Data-Out to send: the answer to an R2T, or the unsolicited data.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sequence {
    /// Tag of the R2T; reserved for unsolicited data.
    pub(super) ttt: Ttt,
    pub(super) offset: u32,
    pub(super) end: u32,
    pub(super) data_sn: DataSn,
}

#[derive(Debug)]
pub(super) struct Task {
    pub(super) state: State,
    pub(super) itt: Itt,
    pub(super) cmd_sn: CmdSn,
    pub(super) lun: u64,
    pub(super) cdb: [u8; 16],
    pub(super) direction: Direction,
    pub(super) length: u32,
    pub(super) attribute: Attribute,
    /// Task management requests (bits) that end this task if they succeed.
    pub(super) marks: u8,
    /// Bytes of Data-In received.
    pub(super) received: u32,
    /// Bytes of Data-Out handed out, repetitions included.
    pub(super) sent: u32,
    /// Next expected DataSN of Data-In or R2TSN.
    pub(super) data_sn: DataSn,
    /// At most [`SEQUENCES_MAX`].
    sequences: VecDeque<Sequence>,
    pub(super) r2ts: u8,
    generation: u32,
}

impl Task {
    fn new() -> Self {
        Self {
            state: State::Free,
            itt: Itt::RESERVED,
            cmd_sn: CmdSn(0),
            lun: 0,
            cdb: [0; 16],
            direction: Direction::None,
            length: 0,
            attribute: Attribute::Simple,
            marks: 0,
            received: 0,
            sent: 0,
            data_sn: DataSn(0),
            sequences: VecDeque::new(),
            r2ts: 0,
            generation: 0,
        }
    }

    /// Appends a sequence. Panics above [`SEQUENCES_MAX`]; the caller checks MaxOutstandingR2T.
    pub(super) fn push_sequence(&mut self, sequence: Sequence) {
        assert!(self.sequences.len() < SEQUENCES_MAX, "more sequences than R2Ts may be outstanding");
        self.r2ts += u8::from(!sequence.ttt.is_reserved());
        self.sequences.push_back(sequence);
    }

    pub(super) fn has_sequences(&self) -> bool {
        !self.sequences.is_empty()
    }

    pub(super) fn sequence(&mut self) -> &mut Sequence {
        self.sequences.front_mut().expect("a sequence to send")
    }

    pub(super) fn pop_sequence(&mut self) {
        let sent = self.sequences.pop_front().expect("a sequence that was sent");
        self.r2ts -= u8::from(!sent.ttt.is_reserved());
    }

    pub(super) fn drop_sequences(&mut self) {
        self.sequences.clear();
        self.r2ts = 0;
    }
}

/// The tag of a slot in a generation. The slots of tasks and of [`super::management::SERVICE_SLOT`] and its successors
/// are below the last one, so no tag is the reserved value.
pub(super) const fn tag(slot: u32, generation: u32) -> Itt {
    Itt(generation << TASK_BITS | slot)
}

pub(super) const fn slot_of(itt: Itt) -> u32 {
    itt.0 & ((1 << TASK_BITS) - 1)
}

/// All slots of a connection. The slab grows to the number that was ever in use at once: most sessions need few.
#[derive(Debug)]
pub(super) struct Tasks {
    slots: Vec<Task>,
    slots_max: u32,
    free: Vec<u32>,
}

impl Tasks {
    pub(super) fn new(slots_max: u32) -> Self {
        Self { slots: Vec::new(), slots_max, free: Vec::new() }
    }

    /// Number of further tasks that can be allocated.
    pub(super) fn free(&self) -> u32 {
        self.slots_max - u32::try_from(self.slots.len() - self.free.len()).expect("slots are few")
    }

    pub(super) fn get(&self, slot: u32) -> &Task {
        &self.slots[slot as usize]
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> &mut Task {
        &mut self.slots[slot as usize]
    }

    /// The active task of a tag. Any value is valid input.
    pub(super) fn find(&self, itt: Itt) -> Option<u32> {
        let slot = slot_of(itt);
        let task = self.slots.get(slot as usize)?;
        (task.state == State::Active && task.itt == itt).then_some(slot)
    }

    pub(super) fn allocate(&mut self) -> Option<u32> {
        let slot = self.free.pop().or_else(|| self.grow())?;
        let task = &mut self.slots[slot as usize];
        assert_eq!(task.state, State::Free, "a slot in use among the free ones");
        task.generation = task.generation.wrapping_add(1);
        task.itt = tag(slot, task.generation);
        task.state = State::Queued;
        task.marks = 0;
        (task.received, task.sent) = (0, 0);
        task.data_sn = DataSn(0);
        task.drop_sequences();
        Some(slot)
    }

    fn grow(&mut self) -> Option<u32> {
        let slot = u32::try_from(self.slots.len()).expect("slots are few");
        if slot >= self.slots_max {
            return None;
        }
        self.slots.push(Task::new());
        Some(slot)
    }

    pub(super) fn release(&mut self, slot: u32) {
        let task = &mut self.slots[slot as usize];
        assert_eq!(task.state, State::Ended, "only an ended task frees its slot");
        task.state = State::Free;
        self.free.push(slot);
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut Task)> {
        (0..).zip(&mut self.slots)
    }
}
