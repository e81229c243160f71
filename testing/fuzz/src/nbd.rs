//! A hostile NBD server: its greeting, option replies and request replies, in parts of any size, against both machines
//! of the client.
//!
//! Zero bytes choose a correct server; other bytes mostly choose faults.

use std::collections::BTreeMap;

use nbd::limits::{OPTION_REPLY_BYTES_MAX, STATUS_EXTENTS_MAX, TASKS_MAX};
use nbd::negotiation::{Config, Export, Negotiation, Progress};
use nbd::transmission::{Command, Data, Step, TaskId, Transmission};
use nbd::wire::{self, chunk, info, option, option_reply};

use crate::{Source, heap};

const HEAP_MAX: usize = 4 << 20;
const NAMES: [&str; 2] = ["base:allocation", "qemu:dirty-bitmap:x"];
/// Bytes of the longest read or write, so that buffers stay small.
const LENGTH_MAX: usize = 300;

/// Runs a negotiation and, if it succeeds or the bytes choose so, a session.
pub fn nbd(bytes: &[u8]) {
    let mut source = Source::new(bytes);
    heap::within(HEAP_MAX, || {
        let mode = source.byte() % 4;
        if mode == 3 {
            raw(source.rest());
            return;
        }
        let export = if mode == 0 { Some(export(&mut source)) } else { negotiated(&mut source) };
        if let Some(export) = export {
            Session::new(&export).run(source);
        }
    });
}

fn raw(bytes: &[u8]) {
    let mut machine = Negotiation::new(config());
    let _ = negotiate(&mut machine, bytes, &mut Vec::new());
    let mut source = Source::new(bytes);
    let mut session = Session::new(&export(&mut source));
    session.submit(&mut source);
    session.answer.extend(source.rest());
    let _ = session.feed(usize::MAX);
}

fn config() -> Config {
    Config { export: "disk".into(), contexts: NAMES.map(str::to_owned).to_vec() }
}

fn export(source: &mut Source<'_>) -> Export {
    let contexts = [(7, NAMES[0]), (9, NAMES[1])]
        .map(|(id, name)| nbd::negotiation::MetaContext { id, name: name.to_owned() });
    Export {
        size: 1 << 30,
        flags: u16::MAX,
        blocks: None,
        structured: !source.flag(),
        contexts: contexts.to_vec(),
    }
}

/// Sometimes changes single bytes of a message or truncates it.
fn alter(source: &mut Source<'_>, message: &mut Vec<u8>) {
    if !source.rarely(6) {
        return;
    }
    for _ in 0..=source.byte() % 3 {
        let at = source.below(message.len().max(1));
        let byte = source.byte();
        if let Some(place) = message.get_mut(at) {
            *place = byte;
        }
    }
    if source.rarely(4) {
        message.truncate(source.byte().into());
    }
}

fn negotiated(source: &mut Source<'_>) -> Option<Export> {
    let mut machine = Negotiation::new(config());
    let mut bytes = [wire::GREETING_MAGIC.to_be_bytes(), wire::OPTION_MAGIC.to_be_bytes()].concat();
    bytes.extend([0, 3]);
    alter(source, &mut bytes);
    let mut sent = Vec::new();
    for _ in 0..80 {
        match negotiate(&mut machine, &bytes, &mut sent) {
            Ok(Some((_, export))) => {
                plausible(&export);
                return Some(export);
            }
            Ok(None) => {}
            Err(_) => return None,
        }
        assert!(sent.len() < 4096, "a server makes the client send {} bytes", sent.len());
        if source.is_empty() {
            return None;
        }
        bytes = reply(source);
    }
    None
}

/// Feeds all bytes, which must end with a message. Returns the rest and the export if the phase is over.
fn negotiate(
    machine: &mut Negotiation,
    bytes: &[u8],
    sent: &mut Vec<u8>,
) -> Result<Option<(usize, Export)>, nbd::negotiation::NegotiationError> {
    let mut at = 0;
    loop {
        // At most as many bytes as an edge has room for.
        let end = bytes.len().min(at + OPTION_REPLY_BYTES_MAX + 64);
        let progress = machine.advance(&bytes[at..end]);
        sent.extend(machine.take_transmit());
        match progress? {
            Progress::Starved => return Ok(None),
            Progress::Took(count) => {
                assert!(count > 0 && count <= end - at, "took {count} of {}", end - at);
                at += count;
            }
            Progress::Ready(count, export) => {
                assert!(count <= end - at);
                return Ok(Some((at + count, export)));
            }
        }
    }
}

fn plausible(export: &Export) {
    assert!(i64::try_from(export.size).is_ok(), "{export:?}");
    assert!(export.contexts.len() <= NAMES.len(), "{export:?}");
    assert!(export.contexts.iter().all(|context| NAMES.contains(&context.name.as_str())), "{export:?}");
    if let Some(blocks) = export.blocks {
        assert!(blocks.minimum.is_power_of_two() && blocks.preferred >= blocks.minimum, "{blocks:?}");
        assert!(blocks.maximum == u32::MAX || blocks.maximum.is_multiple_of(blocks.minimum), "{blocks:?}");
    }
}

fn reply(source: &mut Source<'_>) -> Vec<u8> {
    let (kind_of, kind, payload): (u32, u32, Vec<u8>) = match source.byte() % 12 {
        0 | 1 => (option::STRUCTURED_REPLY, option_reply::ACK, Vec::new()),
        2 => {
            let id = source.u32().to_be_bytes();
            let name = source.pick(&NAMES).as_bytes();
            (option::SET_META_CONTEXT, option_reply::META_CONTEXT, [&id, name].concat())
        }
        3 | 4 => (option::SET_META_CONTEXT, option_reply::ACK, Vec::new()),
        5 | 6 => {
            let size = source.pick(&[1 << 30, 0, 1, i64::MAX as u64, u64::MAX, 1 << 63]);
            let payload =
                [&info::EXPORT.to_be_bytes()[..], &size.to_be_bytes(), &source.array::<2>()].concat();
            (option::GO, option_reply::INFO, payload)
        }
        7 => {
            let mut payload = info::BLOCK_SIZE.to_be_bytes().to_vec();
            for _ in 0..3 {
                payload.extend(source.number().to_be_bytes());
            }
            (option::GO, option_reply::INFO, payload)
        }
        8 | 9 => (option::GO, option_reply::ACK, Vec::new()),
        10 => {
            let count = source.below(64);
            let of = source.pick(&[option::STRUCTURED_REPLY, option::SET_META_CONTEXT, option::GO]);
            (of, option_reply::IS_ERROR | u32::from(source.byte() % 12), source.take(count).to_vec())
        }
        _ => {
            let count = source.below(64);
            (source.byte().into(), source.number(), source.take(count).to_vec())
        }
    };
    let length = if source.rarely(16) { source.number() } else { payload.len() as u32 };
    let mut bytes = wire::OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
    for number in [kind_of, kind, length] {
        bytes.extend(number.to_be_bytes());
    }
    bytes.extend(payload);
    alter(source, &mut bytes);
    bytes
}

struct Pending {
    command: Command,
    cookie: u64,
    /// Received bytes of a read.
    filled: Vec<bool>,
}

struct Session {
    machine: Transmission,
    contexts: Vec<u32>,
    structured: bool,
    pending: BTreeMap<usize, (TaskId, Pending)>,
    /// Bytes of the server that the machine has not consumed.
    answer: Vec<u8>,
}

impl Session {
    fn new(export: &Export) -> Self {
        Self {
            machine: Transmission::new(export),
            contexts: export.contexts.iter().map(|context| context.id).collect(),
            structured: export.structured,
            pending: BTreeMap::new(),
            answer: Vec::new(),
        }
    }

    fn run(&mut self, mut source: Source<'_>) {
        while !source.is_empty() {
            if self.pending.is_empty() || source.byte().is_multiple_of(3) && self.machine.window() > 0 {
                self.submit(&mut source);
                continue;
            }
            let mut reply = self.session_reply(&mut source);
            alter(&mut source, &mut reply);
            self.answer.extend(reply);
            let part_bytes = source.pick(&[usize::MAX, 1, 17]);
            if self.feed(part_bytes).is_err() {
                return;
            }
        }
    }

    fn submit(&mut self, source: &mut Source<'_>) {
        let (kind, offset) = (source.byte(), u64::from(source.u16()));
        let length = 1 + source.below(LENGTH_MAX) as u32;
        let command = match kind % 8 {
            0..=2 => Command::Read { offset, length },
            3 => Command::Write { offset, length, fua: source.flag() },
            4 => Command::Flush,
            5 => Command::Trim { offset, length },
            6 => Command::WriteZeroes { offset, length, no_hole: source.flag() },
            _ => Command::BlockStatus { offset, length },
        };
        let task = self.machine.submit(command);
        let sent = self.machine.poll_transmit().expect("it is to be sent");
        assert!(sent.task.is_some_and(|(of, _)| of == task));
        let cookie = wire::u64_at(&sent.header, 8);
        let bytes = if matches!(command, Command::Read { .. }) { length as usize } else { 0 };
        let pending = Pending { command, cookie, filled: vec![false; bytes] };
        assert!(self.pending.insert(task.index(), (task, pending)).is_none(), "a slot is used twice");
        assert!(self.pending.len() <= TASKS_MAX);
    }

    fn session_reply(&self, source: &mut Source<'_>) -> Vec<u8> {
        let which = source.below(self.pending.len());
        let (_, pending) = self.pending.values().nth(which).expect("there is one");
        let cookie =
            if source.rarely(30) { pending.cookie ^ 1 << (source.byte() % 64) } else { pending.cookie };
        let (offset, length) = match pending.command {
            Command::Read { offset, length } | Command::BlockStatus { offset, length } => (offset, length),
            _ => (0, 0),
        };
        let is_read = matches!(pending.command, Command::Read { .. });
        if !self.structured || length == 0 && source.flag() {
            let code = if source.rarely(5) { source.byte() } else { 0 };
            let mut reply = wire::SIMPLE_REPLY_MAGIC.to_be_bytes().to_vec();
            reply.extend(u32::from(code).to_be_bytes());
            reply.extend(cookie.to_be_bytes());
            let data = if is_read && code == 0 { length as usize } else { 0 };
            reply.extend(vec![0xA5; data]);
            return reply;
        }
        let done = !source.rarely(3);
        let part = if source.rarely(3) { 1 + source.below(length.max(1) as usize) as u32 } else { length };
        let from =
            if source.rarely(3) { offset + source.below(length.max(1) as usize) as u64 } else { offset };
        let (kind, payload) = match (source.byte() % 8, pending.command) {
            (6, _) => {
                let words = source.below(20);
                let announced = if source.rarely(8) { source.u16() } else { words as u16 };
                let head = [&[0, 0, 0, source.byte()][..], &announced.to_be_bytes()].concat();
                (chunk::IS_ERROR + u16::from(source.byte() % 3), [head, source.take(words).to_vec()].concat())
            }
            (7, _) => (source.u16(), source.take(12).to_vec()),
            (5, Command::Read { .. }) => {
                (chunk::OFFSET_HOLE, [&from.to_be_bytes()[..], &part.to_be_bytes()].concat())
            }
            (_, Command::Read { .. }) => {
                (chunk::OFFSET_DATA, [&from.to_be_bytes()[..], &vec![0x5A; part as usize]].concat())
            }
            (_, Command::BlockStatus { .. }) => {
                let context = self.contexts.get(source.below(2)).copied().unwrap_or(1);
                let mut payload = context.to_be_bytes().to_vec();
                for _ in 0..=source.byte() % 4 {
                    let bytes = if source.rarely(4) { source.number() } else { part };
                    payload
                        .extend([bytes.to_be_bytes(), u32::from(source.byte() % 8).to_be_bytes()].concat());
                }
                (chunk::BLOCK_STATUS, payload)
            }
            _ => (chunk::NONE, Vec::new()),
        };
        let flags = if done || kind == chunk::NONE { chunk::DONE } else { 0 };
        let mut reply = wire::STRUCTURED_REPLY_MAGIC.to_be_bytes().to_vec();
        reply.extend([flags.to_be_bytes(), kind.to_be_bytes()].concat());
        reply.extend(cookie.to_be_bytes());
        reply.extend((payload.len() as u32).to_be_bytes());
        reply.extend(payload);
        reply
    }

    fn feed(&mut self, part_bytes: usize) -> Result<(), nbd::transmission::Violation> {
        let answer = std::mem::take(&mut self.answer);
        let (mut at, mut seen) = (0, part_bytes.min(answer.len()));
        loop {
            let step = self.machine.advance(&answer[at..seen])?;
            match step {
                Step::Starved if seen == answer.len() => break,
                Step::Starved => seen = seen.saturating_add(part_bytes).min(answer.len()),
                Step::Took(count) => {
                    assert!(count > 0 && count <= seen - at);
                    at += count;
                }
                Step::Hole { took, hole } => {
                    assert!(took <= seen - at);
                    self.place(hole);
                    at += took;
                }
                Step::Data(data) => {
                    assert_eq!(self.machine.data(), Some(data));
                    let count = (data.length as usize).min(answer.len() - at);
                    if count == 0 {
                        break;
                    }
                    self.place(Data { length: count as u32, ..data });
                    self.machine.on_data(count)?;
                    at += count;
                    seen = seen.max(at);
                }
            }
            self.take_ended();
        }
        self.take_ended();
        self.answer = answer[at..].to_vec();
        Ok(())
    }

    /// Asserts that data and holes belong to a read, lie in its buffer, and arrive once.
    fn place(&mut self, data: Data) {
        assert!(data.length > 0, "{data:?}");
        let (task, pending) = self.pending.get_mut(&data.task.index()).expect("it is under way");
        assert_eq!(*task, data.task);
        let range = data.offset as usize..(data.offset as usize + data.length as usize);
        assert!(range.end <= pending.filled.len(), "{data:?} of {:?}", pending.command);
        for filled in &mut pending.filled[range] {
            assert!(!*filled, "{data:?} comes twice");
            *filled = true;
        }
    }

    fn take_ended(&mut self) {
        while let Some(ended) = self.machine.poll_ended() {
            let (task, pending) = self.pending.remove(&ended.task.index()).expect("a task ends once");
            if let Ok(status) = &ended.result {
                assert!(pending.filled.iter().all(|filled| *filled), "a read is done, but a part never came");
                assert!(status.is_empty() || matches!(pending.command, Command::BlockStatus { .. }));
                for one in status {
                    assert!(self.contexts.contains(&one.context), "{one:?}");
                    assert!(!one.extents.is_empty() && one.extents.len() <= STATUS_EXTENTS_MAX);
                }
            }
            self.machine.release(task);
        }
    }
}
