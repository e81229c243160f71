//! The run's record on disk: written before a request is submitted, synchronised in batches.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use torture::Client;
use torture::history::History;
use torture::journal::{FILLER, Header, JournalError, RECORD_BYTES, Record, replay};

use crate::error::Failure;

/// Steps of a client that are announced together, with one `fdatasync`.
const WINDOW: u64 = 64;

pub(super) struct Journal {
    path: PathBuf,
    file: File,
    buffer: Vec<u8>,
    /// First step of each client that is not announced.
    reserved: Vec<u64>,
    must_sync: bool,
}

impl Journal {
    /// A new record; never overwrites one.
    pub(super) fn create(path: &Path, header: &Header) -> Result<Self, Failure> {
        let failed = |error| Failure::failed("write the journal", path.display().to_string(), error);
        let mut file = File::create_new(path).map_err(failed)?;
        file.write_all(&header.emit()).map_err(failed)?;
        let reserved = vec![0; header.clients as usize];
        Ok(Self { path: path.to_owned(), file, buffer: Vec::new(), reserved, must_sync: true })
    }

    /// A step will be submitted behind the next [`Journal::write`].
    pub(super) fn begin(&mut self, client: Client, number: u64) {
        if client != FILLER && self.reserved[client as usize] <= number {
            self.reserved[client as usize] = number + WINDOW;
            self.note(Record::Reserve(client, number + WINDOW));
            self.must_sync = true;
        }
        self.note(Record::Begin(client, number));
    }

    /// Something happened.
    pub(super) fn note(&mut self, record: Record) {
        self.buffer.extend(record.emit());
    }

    /// Hands everything noted to the kernel, and to the disk if steps were announced.
    pub(super) fn write(&mut self) -> Result<(), Failure> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        debug_assert!(self.buffer.len().is_multiple_of(RECORD_BYTES));
        let written = self.file.write_all(&self.buffer);
        self.buffer.clear();
        let synced = if std::mem::take(&mut self.must_sync) { self.file.sync_data() } else { Ok(()) };
        written
            .and(synced)
            .map_err(|error| Failure::failed("write the journal", self.path.display().to_string(), error))
    }
}

/// Header and history of a run that has ended, one way or another.
pub(super) fn read(path: &Path) -> Result<(Header, History), Failure> {
    let object = || path.display().to_string();
    let bytes = std::fs::read(path).map_err(|error| Failure::failed("read the journal", object(), error))?;
    replay(&bytes).map_err(|error: JournalError| Failure::usage("read the journal", object(), error))
}
