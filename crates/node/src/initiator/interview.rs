//! A way in for the fuzzer: what a disk is asked and what requests become, without a session.

use block::{Capability, Kind};
use iscsi::initiator::Direction;
use scsi::Sense;
use scsi::cdb::Cdb;

use super::command::{self, Data};
use super::facts::facts;
use super::setup::{self, Answer, Setup};

/// A disk that has answered every question.
#[derive(Debug)]
pub struct Interviewed {
    disk: setup::Disk,
    /// What it can do.
    pub capability: Capability,
}

/// Asks a disk what it is. `answer` gives SCSI status, sense data and data-in for a CDB.
pub fn interview(mut answer: impl FnMut(&Cdb) -> (u8, Vec<u8>, Vec<u8>)) -> Result<Interviewed, String> {
    let mut setup = Setup::default();
    while let Some(cdb) = setup.question() {
        let (status, sense, mut data) = answer(&cdb);
        data.truncate(setup::ANSWER_BYTES as usize);
        let answer = Answer { status, sense: Sense::parse(&sense), data: &data };
        setup.answer(&answer).map_err(|error| error.to_string())?;
    }
    let capability = command::capability(&setup.disk, false, 32)?;
    Ok(Interviewed { disk: setup.disk, capability })
}

/// What sense data means for a request that failed with it; for people.
pub fn judge(sense: &Sense) -> String {
    format!("{:?}", command::judge_sense(sense))
}

impl Interviewed {
    /// What `info` shows.
    pub fn facts(&self) -> Vec<(&'static str, String)> {
        facts(&self.disk, None)
    }

    /// The next command of a request of which `done` bytes are done: its CDB, direction, length of its data, and the
    /// bytes of the request that are done with it.
    pub fn command(&self, kind: &Kind, done: u64, zeroes: &area::Span) -> (Cdb, Direction, usize, u64) {
        let step = command::step(kind, done, &self.disk, &self.capability, zeroes);
        let length = match &step.data {
            Data::None => 0,
            Data::Span(span) => span.len(),
            Data::Bytes(bytes) => bytes.len(),
        };
        (step.cdb, step.direction, length, step.bytes)
    }
}
