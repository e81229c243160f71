//! A journal of submitted actions and results that survives a crash of the run. Version 1; numbers little endian.
//!
//! ```text
//! header, 64 bytes   "hkytortu" | version u32 | flags u32 | run u64 | seed u64 | sectors u64 | block u32 | clients u32
//!                    | longest u64 | 0 u32 | crc u32
//! record, 24 bytes   kind u8 | 0 u8 x3 | client u32 | number u64 | 0 u32 | crc u32
//! ```
//!
//! The CRC-32C covers the bytes before it. Records do not contain the actions: [`Plan`] derives them from client and
//! number. The run makes a `Reserve` durable before it submits any action below its number. Records after it may be lost
//! in a crash; then such actions count as submitted without an answer. Parsing ends at the first invalid record.

use std::fmt;

use crate::Client;
use crate::history::{Cut, History, OperationId, Outcome, Rules, Value};
use crate::plan::{Ability, Action, Plan};
use crate::stamp::Stamp;

pub const HEADER_BYTES: usize = 64;
pub const RECORD_BYTES: usize = 24;
/// Client that stamps every sector before the workload starts.
pub const FILLER: Client = Client::MAX;

const MAGIC: &[u8; 8] = b"hkytortu";
const VERSION: u32 = 1;
const FLAG_DISCARD: u32 = 1;
const FLAG_WRITE_ZEROES: u32 = 2;
const FLAG_VOLATILE: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Number in every stamp; stamps of other runs are foreign.
    pub run: u64,
    pub seed: u64,
    pub clients: u32,
    pub ability: Ability,
    /// A write without FUA is volatile until a flush.
    pub volatile: bool,
}

/// One event of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// Steps of the client below this number may have been submitted.
    Reserve(Client, u64),
    Begin(Client, u64),
    Done(Client, u64),
    /// The action ended without an answer.
    Unknown(Client, u64),
    /// The power may have failed.
    Cut,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JournalError {
    /// The header is incomplete or damaged.
    NoJournal,
    Version(u32),
    /// A record that contradicts those before it.
    Senseless(Record),
}

impl fmt::Display for JournalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoJournal => write!(f, "it is not a journal of a torture run, or its header is damaged"),
            Self::Version(version) => write!(f, "it has version {version}; this program supports {VERSION}"),
            Self::Senseless(record) => write!(f, "it contradicts itself at {record:?}"),
        }
    }
}

impl Header {
    pub fn plan(&self) -> Plan {
        Plan::new(self.seed, self.ability)
    }

    /// An empty history for the run. Overlapping requests may tear sectors: SBC does not forbid it.
    pub fn history(&self, losses_reported: bool) -> History {
        History::new(self.ability.sectors, Value::Unknown, Rules { atomic_sectors: false, losses_reported })
    }

    /// The sectors of the filler's write `number`.
    pub fn chunk(&self, number: u64) -> std::ops::Range<u64> {
        let start = number * self.ability.longest;
        start..(start + self.ability.longest).min(self.ability.sectors)
    }

    pub fn chunks(&self) -> u64 {
        self.ability.sectors.div_ceil(self.ability.longest)
    }

    pub fn emit(&self) -> [u8; HEADER_BYTES] {
        let Ability { sectors, block, longest, discard, write_zeroes } = self.ability;
        let flag = |set: bool, flag: u32| if set { flag } else { 0 };
        let flags = flag(discard, FLAG_DISCARD)
            | flag(write_zeroes, FLAG_WRITE_ZEROES)
            | flag(self.volatile, FLAG_VOLATILE);
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        [self.run, self.seed, sectors].iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        bytes.extend(u32::try_from(block).unwrap_or(u32::MAX).to_le_bytes());
        bytes.extend(self.clients.to_le_bytes());
        bytes.extend(longest.to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(crc_fast::crc32_iscsi(&bytes).to_le_bytes());
        bytes.try_into().expect("the fields are 64 bytes")
    }

    pub fn parse(bytes: &[u8]) -> Result<Self, JournalError> {
        let header = bytes.get(..HEADER_BYTES).ok_or(JournalError::NoJournal)?;
        let half = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
        let word = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes"));
        if &header[..8] != MAGIC || half(60) != crc_fast::crc32_iscsi(&header[..60]) {
            return Err(JournalError::NoJournal);
        }
        if half(8) != VERSION {
            return Err(JournalError::Version(half(8)));
        }
        let flags = half(12);
        let ability = Ability {
            sectors: word(32),
            block: half(40).into(),
            longest: word(48),
            discard: flags & FLAG_DISCARD != 0,
            write_zeroes: flags & FLAG_WRITE_ZEROES != 0,
        };
        if ability.block == 0 || ability.longest < ability.block || ability.sectors < ability.block {
            return Err(JournalError::NoJournal);
        }
        let volatile = flags & FLAG_VOLATILE != 0;
        Ok(Self { run: word(16), seed: word(24), clients: half(44), ability, volatile })
    }
}

impl Record {
    pub fn emit(self) -> [u8; RECORD_BYTES] {
        let (kind, client, number) = match self {
            Self::Reserve(client, number) => (1, client, number),
            Self::Begin(client, number) => (2, client, number),
            Self::Done(client, number) => (3, client, number),
            Self::Unknown(client, number) => (4, client, number),
            Self::Cut => (5, 0, 0),
        };
        let mut bytes = [0; RECORD_BYTES];
        bytes[0] = kind;
        bytes[4..8].copy_from_slice(&client.to_le_bytes());
        bytes[8..16].copy_from_slice(&number.to_le_bytes());
        let crc = crc_fast::crc32_iscsi(&bytes[..20]);
        bytes[20..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub fn parse(bytes: &[u8; RECORD_BYTES]) -> Option<Self> {
        let client = Client::from_le_bytes(bytes[4..8].try_into().expect("four bytes"));
        let number = u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes"));
        let crc = u32::from_le_bytes(bytes[20..].try_into().expect("four bytes"));
        if crc != crc_fast::crc32_iscsi(&bytes[..20]) {
            return None;
        }
        match bytes[0] {
            1 => Some(Self::Reserve(client, number)),
            2 => Some(Self::Begin(client, number)),
            3 => Some(Self::Done(client, number)),
            4 => Some(Self::Unknown(client, number)),
            5 => Some(Self::Cut),
            _ => None,
        }
    }
}

/// Records in `history` that an action is submitted. The caller completes reads, because only the caller has the data.
pub fn begin(history: &mut History, header: &Header, id: OperationId, client: Client, action: &Action) {
    match action {
        Action::Write { range, stamp, durable } => {
            let durable = *durable || !header.volatile;
            history.write(id, client, range.clone(), Value::Stamp(*stamp), durable);
        }
        Action::Discard(range) | Action::WriteZeroes(range) => {
            history.write(id, client, range.clone(), Value::Zero, false);
        }
        Action::Flush => history.flush(id, client),
        Action::Read(range) => history.read(id, client, range.clone()),
    }
}

/// The action of a client, or of the filler, by number.
pub fn action(header: &Header, client: Client, number: u64) -> Action {
    if client == FILLER {
        let stamp = Stamp { sequence: number, writer: FILLER };
        return Action::Write { range: header.chunk(number), stamp, durable: false };
    }
    header.plan().action(client, number)
}

/// The history of a journal, with no operation in flight. A journal does not contain losses that the medium reported.
pub fn replay(bytes: &[u8]) -> Result<(Header, History), JournalError> {
    let header = Header::parse(bytes)?;
    let mut history = header.history(false);
    let id = |client: Client, number: u64| (u64::from(client) << 32) | (number & 0xFFFF_FFFF);
    let mut open = std::collections::BTreeMap::new();
    let mut reserved = vec![(0, 0); header.clients as usize];
    for record in bytes[HEADER_BYTES..].as_chunks::<RECORD_BYTES>().0 {
        let Some(record) = Record::parse(record) else { break };
        let known = |client: Client, number: u64| match client {
            FILLER => number < header.chunks(),
            client => client < header.clients,
        };
        match record {
            Record::Reserve(client, number) if client < header.clients => {
                reserved[client as usize].0 = number;
            }
            Record::Begin(client, number)
                if known(client, number) && !open.contains_key(&id(client, number)) =>
            {
                if client != FILLER {
                    reserved[client as usize].1 = reserved[client as usize].1.max(number + 1);
                }
                open.insert(id(client, number), ());
                begin(&mut history, &header, id(client, number), client, &action(&header, client, number));
            }
            Record::Done(client, number) if open.remove(&id(client, number)).is_some() => {
                history.complete(id(client, number), Outcome::Done);
            }
            Record::Unknown(client, number) if open.remove(&id(client, number)).is_some() => {
                history.complete(id(client, number), Outcome::Unknown);
            }
            Record::Cut => history.cut(Cut::Possible),
            record => return Err(JournalError::Senseless(record)),
        }
    }
    // Steps that may have been submitted without a `Begin` in the journal.
    for (client, (reserved, begun)) in (0..).zip(reserved) {
        for number in begun..reserved {
            let action = action(&header, client, number);
            if !matches!(action, Action::Read(_)) {
                begin(&mut history, &header, id(client, number), client, &action);
                open.insert(id(client, number), ());
            }
        }
    }
    for id in open.into_keys() {
        history.complete(id, Outcome::Unknown);
    }
    Ok((header, history))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stamp::Content;

    const HEADER: Header = Header {
        run: 5,
        seed: 6,
        clients: 2,
        ability: Ability { sectors: 100, block: 1, longest: 40, discard: true, write_zeroes: false },
        volatile: true,
    };

    fn journal(records: &[Record]) -> Vec<u8> {
        let mut bytes = HEADER.emit().to_vec();
        records.iter().for_each(|record| bytes.extend(record.emit()));
        bytes
    }

    /// Reads the first sector; whether `content` is allowed.
    fn look(history: &mut History, content: Content) -> bool {
        history.read(99, 0, 0..1);
        history.complete_read(99, &[content]).is_empty()
    }

    fn filled(number: u64) -> Content {
        Content::Stamp(Stamp { sequence: number, writer: FILLER })
    }

    #[test]
    fn header_and_records_come_back() {
        assert_eq!(Header::parse(&HEADER.emit()), Ok(HEADER));
        for record in [
            Record::Reserve(1, 64),
            Record::Begin(0, 3),
            Record::Done(FILLER, 2),
            Record::Unknown(1, 9),
            Record::Cut,
        ] {
            assert_eq!(Record::parse(&record.emit()), Some(record));
            for bit in 0..RECORD_BYTES * 8 {
                let mut bytes = record.emit();
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Record::parse(&bytes), None, "{record:?}, bit {bit}");
            }
        }
        for at in 0..HEADER_BYTES {
            let mut bytes = HEADER.emit();
            bytes[at] ^= 1;
            assert!(Header::parse(&bytes).is_err(), "byte {at}");
        }
    }

    #[test]
    fn what_was_acknowledged_must_be_there() {
        let (header, mut history) =
            replay(&journal(&[Record::Begin(FILLER, 0), Record::Done(FILLER, 0)])).unwrap();
        assert_eq!(header, HEADER);
        assert!(!look(&mut history, Content::Foreign));
        let (_, mut history) = replay(&journal(&[Record::Begin(FILLER, 0)])).unwrap();
        assert!(look(&mut history, Content::Foreign), "not acknowledged");
        assert!(look(&mut history, filled(0)));
        let lost = [Record::Begin(FILLER, 0), Record::Done(FILLER, 0), Record::Cut];
        let (_, mut history) = replay(&journal(&lost)).unwrap();
        assert!(look(&mut history, Content::Foreign), "not flushed");
    }

    #[test]
    fn reserved_steps_may_have_been_made() {
        let number = (0..100)
            .find(
                |number| matches!(action(&HEADER, 1, *number), Action::Write { range, .. } if range.contains(&0)),
            )
            .expect("some action writes sector 0");
        let done = [Record::Begin(FILLER, 0), Record::Done(FILLER, 0)];
        let found = Content::Stamp(Stamp { sequence: number, writer: 1 });
        let (_, mut history) = replay(&journal(&done)).unwrap();
        assert!(!look(&mut history, found));
        let (_, mut history) =
            replay(&journal(&[&done[..], &[Record::Reserve(1, number + 1)]].concat())).unwrap();
        assert!(look(&mut history, found));
    }

    #[test]
    fn a_torn_tail_is_left_out_and_nonsense_is_refused() {
        let mut bytes = journal(&[Record::Begin(FILLER, 0), Record::Done(FILLER, 0)]);
        bytes.truncate(bytes.len() - 1);
        let (_, mut history) = replay(&bytes).unwrap();
        assert!(look(&mut history, Content::Foreign), "the acknowledgement is lost");
        for records in [
            vec![Record::Done(0, 1)],
            vec![Record::Begin(2, 0)],
            vec![Record::Begin(FILLER, 3)],
            vec![Record::Begin(0, 1), Record::Begin(0, 1)],
        ] {
            assert!(matches!(replay(&journal(&records)), Err(JournalError::Senseless(_))), "{records:?}");
        }
        assert_eq!(replay(b"short").unwrap_err(), JournalError::NoJournal);
    }
}
