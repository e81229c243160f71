//! The record of a run on disk: written before a request is submitted, synchronised in batches.

use std::fs::File;
use std::io::{Error, ErrorKind, Read as _, Write};
use std::path::{Path, PathBuf};

use torture::Client;
use torture::history::History;
use torture::journal::{FILLER, HEADER_BYTES, Header, RECORD_BYTES, Record, replay};

use crate::error::Failure;

/// Steps of a client that one `Record::Reserve` announces, with one `fdatasync`.
const WINDOW: u64 = 64;
/// Maximum length of a journal that is read, in bytes: 350 million requests.
const BYTES_MAX: u64 = 16 << 30;

pub(super) struct Journal {
    path: PathBuf,
    file: File,
    buffer: Vec<u8>,
    /// First unannounced action of each client.
    reserved: Vec<u64>,
    must_sync: bool,
}

impl Journal {
    /// Creates a record; fails if the file exists.
    pub(super) fn create(path: &Path, header: &Header) -> Result<Self, Failure> {
        let failed = |error| Failure::failed("write the journal", path.display().to_string(), error);
        let mut file = File::create_new(path).map_err(failed)?;
        file.write_all(&header.emit()).map_err(failed)?;
        let reserved = vec![0; header.clients as usize];
        Ok(Self { path: path.to_owned(), file, buffer: Vec::new(), reserved, must_sync: true })
    }

    /// Records the start of an action, which is submitted after the next [`Journal::write`].
    pub(super) fn begin(&mut self, client: Client, number: u64) {
        if client != FILLER && self.reserved[client as usize] <= number {
            self.reserved[client as usize] = number + WINDOW;
            self.note(Record::Reserve(client, number + WINDOW));
            self.must_sync = true;
        }
        self.note(Record::Begin(client, number));
    }

    pub(super) fn note(&mut self, record: Record) {
        self.buffer.extend(record.emit());
    }

    /// Writes the buffer to the file, and calls `fdatasync` if it announces actions.
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

/// Reads header and history of an ended or interrupted run; of a file that lacks the header nothing else.
pub(super) fn read(path: &Path) -> Result<(Header, History), Failure> {
    let object = || path.display().to_string();
    let failed = |error| Failure::failed("read the journal", object(), error);
    let file = block::open_input(path).map_err(failed)?;
    let mut bytes = Vec::new();
    (&file).take(HEADER_BYTES as u64).read_to_end(&mut bytes).map_err(failed)?;
    Header::parse(&bytes).map_err(|error| Failure::usage("read the journal", object(), error))?;
    file.take(BYTES_MAX).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(failed(Error::new(ErrorKind::FileTooLarge, "it is too long for a journal")));
    }
    replay(&bytes).map_err(|error| Failure::usage("read the journal", object(), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifo_and_an_endless_file_are_no_journals() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR).unwrap();
        let failure = read(&fifo).err().unwrap();
        assert!(failure.cause.contains("FIFO"), "{}", failure.cause);
        let failure = read(Path::new("/dev/zero")).err().unwrap();
        assert!(failure.cause.contains("not a journal"), "{}", failure.cause);
    }
}
