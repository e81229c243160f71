//! Entry points for the fuzzer: set-up of a disk and translation of requests, without a session.

use block::{Capability, Kind};
use iscsi::initiator::Direction;
use scsi::Sense;
use scsi::cdb::Cdb;

use super::command::{self, Data};
use super::facts::facts;
use super::setup::{self, Answer, Setup};

#[derive(Debug)]
pub struct Probed {
    disk: setup::Disk,
    pub capability: Capability,
}

/// Runs the set-up of a disk. `answer` returns SCSI status, sense data and data-in for a CDB.
pub fn probe(mut answer: impl FnMut(&Cdb) -> (u8, Vec<u8>, Vec<u8>)) -> Result<Probed, String> {
    let mut setup = Setup::default();
    while let Some((query, cdb)) = setup.next() {
        let (status, sense, mut data) = answer(&cdb);
        data.truncate(setup::ANSWER_BYTES as usize);
        let answer = Answer { status, sense: Sense::parse(&sense), data: &data };
        setup.answer(query, &answer).map_err(|error| error.to_string())?;
    }
    let capability = command::capability(&setup.disk, false, 32)?;
    Ok(Probed { disk: setup.disk, capability })
}

/// The verdict for a request that failed with this sense data, as text.
pub fn judge(sense: &Sense) -> String {
    format!("{:?}", command::judge_sense(sense))
}

impl Probed {
    pub fn facts(&self) -> Vec<(&'static str, String)> {
        facts(&self.disk, None)
    }

    /// The next command of a request after `done` of its bytes are complete: CDB, direction, length of its data, and
    /// the bytes of the request that it completes.
    pub fn command(&self, kind: &Kind, done: u64, zeroes: &area::Span) -> (Cdb, Direction, usize, u64) {
        let command = command::next(kind, done, &self.disk, &self.capability, zeroes);
        let length = match &command.data {
            Data::None => 0,
            Data::Span(span) => span.len(),
            Data::Bytes(bytes) => bytes.len(),
        };
        (command.cdb, command.direction, length, command.bytes)
    }
}
