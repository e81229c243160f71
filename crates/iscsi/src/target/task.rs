//! The target's tasks: a slab of slots, each with the state of one command.
//!
//! Exactly one side acts next on a slot. `Offered` and `Owned` tasks wait for the edge's `complete` or `abort`; in
//! every other state the machine acts and the edge only keeps the buffer.

use crate::limits::{R2T_BITS, R2T_OUTSTANDING_MAX, TASK_BITS};
use crate::machine::TaskId;
use crate::wire::{CmdSn, DataSn, Itt, Ttt};

/// State of a slot: who acts next, and on what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Free,
    /// The edge has the command and has not answered.
    Offered,
    /// The machine collects the Data-Out that the edge requested.
    Collecting,
    /// The edge has all requested data and executes the command.
    Owned,
    /// The outcome is known, but the initiator still owes data: RFC 7143 §11.4.2 delays the response until the last
    /// expected sequence has ended.
    Held,
    Sending,
    Responding,
}

/// Why the machine fails a command itself (RFC 7143 §11.4.7.2). Each is ABORTED COMMAND.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    /// Unsolicited data that was not negotiated or announced.
    UnexpectedData,
    /// Data of another length or offset than the sequence requires.
    IncorrectAmount,
    /// A data digest error, or a DataSN that reveals a lost PDU.
    Crc,
}

impl Failure {
    pub(super) fn sense(self) -> [u8; 18] {
        let (asc, ascq) = match self {
            Self::UnexpectedData => (0x0c, 0x0c),
            Self::IncorrectAmount => (0x0c, 0x0d),
            Self::Crc => (0x47, 0x05),
        };
        let mut sense = [0; 18];
        sense[0] = 0x70;
        sense[2] = 0x0b;
        sense[7] = 10;
        sense[12] = asc;
        sense[13] = ascq;
        sense
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Solicited {
    pub(super) ttt: Ttt,
    pub(super) offset: u32,
    pub(super) length: u32,
    pub(super) received: u32,
    pub(super) data_sn: DataSn,
}

#[derive(Debug)]
pub(super) struct Task {
    pub(super) state: State,
    /// Whether the edge received the command; one that the machine fails at once is never announced.
    pub(super) announced: bool,
    pub(super) aborted: bool,
    /// Task management requests (bits) whose responses wait for the end of this task.
    pub(super) waits: u8,
    pub(super) immediate: bool,
    pub(super) read: bool,
    pub(super) write: bool,
    pub(super) itt: Itt,
    pub(super) cmd_sn: CmdSn,
    pub(super) lun: u64,
    /// Expected Data Transfer Length, bytes; 0 without a direction.
    pub(super) expected: u32,
    /// Expected read length of a bidirectional command, bytes.
    pub(super) bidi_read: u32,
    pub(super) extended_cdb: Vec<u8>,

    /// The initiator still owes a Data-Out with the F bit for the unsolicited sequence.
    pub(super) unsolicited_due: bool,
    pub(super) unsolicited_sn: DataSn,
    /// End of the unsolicited data received, with the immediate data; bytes.
    pub(super) unsolicited_end: u32,
    /// Data arrived before the edge had called `want_data_out`, and was discarded.
    pub(super) discarded: bool,
    /// Bytes of Data-Out that the edge requested.
    pub(super) requested: u32,
    /// Bytes of `requested` in the buffer.
    pub(super) arrived: u32,
    /// Bytes of `requested` in the buffer without a gap before them, and those of them that the edge knows of.
    pub(super) front: u32,
    pub(super) front_reported: u32,
    /// Bytes below this offset arrived or will arrive unsolicited, or were solicited by an R2T.
    pub(super) solicited: u32,
    /// Grows to the number that was ever outstanding at once, at most [`R2T_OUTSTANDING_MAX`].
    pub(super) r2ts: Vec<Solicited>,
    /// Bit mask of the outstanding entries of `r2ts`.
    pub(super) r2t_live: u16,
    pub(super) r2t_queued: bool,
    /// R2TSN and DataSN of Data-In, which share one number space (§11.7.5).
    pub(super) data_sn: DataSn,
    pub(super) failure: Option<Failure>,

    pub(super) status: u8,
    pub(super) sense: Vec<u8>,
    pub(super) transfer: u64,
    pub(super) data_in: u32,
    pub(super) sent: u32,
    /// Bytes sent of the current Data-In sequence.
    pub(super) burst: u32,
}

const _: () = assert!(R2T_OUTSTANDING_MAX <= u16::BITS);

impl Task {
    fn new() -> Self {
        Self {
            state: State::Free,
            announced: false,
            aborted: false,
            waits: 0,
            immediate: false,
            read: false,
            write: false,
            itt: Itt::RESERVED,
            cmd_sn: CmdSn(0),
            lun: 0,
            expected: 0,
            bidi_read: 0,
            extended_cdb: Vec::new(),
            unsolicited_due: false,
            unsolicited_sn: DataSn(0),
            unsolicited_end: 0,
            discarded: false,
            requested: 0,
            arrived: 0,
            front: 0,
            front_reported: 0,
            solicited: 0,
            r2ts: Vec::new(),
            r2t_live: 0,
            r2t_queued: false,
            data_sn: DataSn(0),
            failure: None,
            status: 0,
            sense: Vec::new(),
            transfer: 0,
            data_in: 0,
            sent: 0,
            burst: 0,
        }
    }

    /// Resets all fields; keeps the heap memory.
    fn reset(&mut self) {
        let (mut sense, mut extended_cdb, mut r2ts) = (
            std::mem::take(&mut self.sense),
            std::mem::take(&mut self.extended_cdb),
            std::mem::take(&mut self.r2ts),
        );
        sense.clear();
        extended_cdb.clear();
        r2ts.clear();
        *self = Self { sense, extended_cdb, r2ts, ..Self::new() };
    }

    /// Stores an outstanding R2T at `index`, the lowest one not outstanding: see `emit_r2t_of`.
    pub(super) fn add_r2t(&mut self, index: u32, r2t: Solicited) {
        match self.r2ts.get_mut(index as usize) {
            Some(ended) => *ended = r2t,
            None => self.r2ts.push(r2t),
        }
        self.r2t_live |= 1 << index;
    }

    pub(super) fn data_in_max(&self) -> u32 {
        match (self.read, self.write) {
            (true, false) => self.expected,
            (true, true) => self.bidi_read,
            (false, _) => 0,
        }
    }

    /// Bytes of Data-Out that the initiator offers.
    pub(super) fn data_out_max(&self) -> u32 {
        if self.write { self.expected } else { 0 }
    }

    pub(super) fn collects(&self) -> bool {
        self.state == State::Collecting && self.failure.is_none() && !self.aborted
    }
}

/// All slots of a connection. The slab grows to the number that was ever in use at once: most sessions need few.
#[derive(Debug)]
pub(super) struct Tasks {
    slots: Vec<Task>,
    slots_max: u32,
    /// ITT of each slot, contiguous: the search by ITT reads 4 bytes per slot instead of a whole task.
    itts: Vec<u32>,
    free: Vec<u32>,
    /// Live tasks admitted through the command window.
    pub(super) windowed: u32,
    /// Live tasks from immediate commands.
    pub(super) immediate: u32,
}

impl Tasks {
    pub(super) fn new(slots_max: u32) -> Self {
        Self { slots: Vec::new(), slots_max, itts: Vec::new(), free: Vec::new(), windowed: 0, immediate: 0 }
    }

    pub(super) fn live(&self) -> u32 {
        self.windowed + self.immediate
    }

    pub(super) fn get(&self, slot: u32) -> &Task {
        &self.slots[slot as usize]
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> &mut Task {
        &mut self.slots[slot as usize]
    }

    /// The live task of `id`, or `None` if it has just ended. Panics if `id` is no slot.
    pub(super) fn of_edge(&mut self, id: TaskId) -> Option<&mut Task> {
        let task = &mut self.slots[id.index()];
        (task.state != State::Free).then_some(task)
    }

    pub(super) fn find(&self, itt: Itt) -> Option<u32> {
        if itt.is_reserved() {
            return None;
        }
        let slot = self.itts.iter().position(|&candidate| candidate == itt.0)?;
        Some(u32::try_from(slot).expect("slots are few"))
    }

    /// The task and R2T of a transfer tag that this target assigned. Any value of `ttt` is valid input.
    pub(super) fn find_r2t(&self, ttt: Ttt, itt: Itt) -> Option<(u32, usize)> {
        let slot = ttt.0 & ((1 << TASK_BITS) - 1);
        let index = (ttt.0 >> TASK_BITS & ((1 << R2T_BITS) - 1)) as usize;
        let task = self.slots.get(slot as usize)?;
        let live = task.state != State::Free && task.itt == itt && task.r2t_live & 1 << index != 0;
        (live && task.r2ts[index].ttt == ttt).then_some((slot, index))
    }

    pub(super) fn allocate(&mut self, itt: Itt, immediate: bool) -> Option<u32> {
        let slot = self.free.pop().or_else(|| self.grow())?;
        let task = &mut self.slots[slot as usize];
        debug_assert_eq!(task.state, State::Free);
        task.state = State::Offered;
        task.itt = itt;
        task.immediate = immediate;
        self.itts[slot as usize] = itt.0;
        if immediate {
            self.immediate += 1;
        } else {
            self.windowed += 1;
        }
        Some(slot)
    }

    fn grow(&mut self) -> Option<u32> {
        let slot = u32::try_from(self.slots.len()).expect("slots are few");
        if slot >= self.slots_max {
            return None;
        }
        self.slots.push(Task::new());
        self.itts.push(Itt::RESERVED.0);
        Some(slot)
    }

    pub(super) fn release(&mut self, slot: u32) {
        let task = &mut self.slots[slot as usize];
        assert_ne!(task.state, State::Free, "task slot released twice");
        if task.immediate {
            self.immediate -= 1;
        } else {
            self.windowed -= 1;
        }
        task.reset();
        self.itts[slot as usize] = Itt::RESERVED.0;
        self.free.push(slot);
    }

    pub(super) fn live_slots(&self) -> impl Iterator<Item = (u32, &Task)> {
        (0..).zip(&self.slots).filter(|(_, task)| task.state != State::Free)
    }
}
