//! The file of `freshness=FILE`: reads, writes and syncs of it on a thread's loop.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use area::Span;
use io::{Durability, Event, Handle, Io, Owner, Token};
use rustix::fs::FlockOperation;
use volume::auth::{Operation, OperationId, Outcome};

use super::super::areas::Areas;
use crate::{IoError, OpenError, RequestId};

/// The file, of all threads.
#[derive(Debug)]
pub(in crate::layer::volume) struct LedgerFile {
    path: PathBuf,
    file: File,
    pub(in crate::layer::volume) bytes: u64,
}

impl LedgerFile {
    pub(in crate::layer::volume) fn open(path: &Path, is_read_only: bool) -> Result<Self, OpenError> {
        let failed =
            |error| OpenError::Failed(format!("opening the freshness file {}: {error}", path.display()));
        let file = open_freshness(path, !is_read_only).map_err(failed)?;
        // A writer locks the file exclusively: the states that two processes recorded would make each other's look older.
        let lock = if is_read_only {
            FlockOperation::NonBlockingLockShared
        } else {
            FlockOperation::NonBlockingLockExclusive
        };
        let locked = host::lock::of_the_living(|| match rustix::fs::flock(&file, lock) {
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
            locked => Ok(locked.map(|()| true)?),
        });
        if !locked.map_err(failed)? {
            let name = path.display();
            let text = format!("another process uses the freshness file {name}; end it first");
            return Err(OpenError::Refused(text));
        }
        let bytes = file.metadata().map_err(failed)?.len();
        Ok(Self { path: path.to_owned(), file, bytes })
    }
}

/// Opens a freshness file. A FIFO is refused: it would wait for a program at its other end.
pub fn open_freshness(path: &Path, is_written: bool) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(is_written).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::other("it is no regular file"));
    }
    Ok(file)
}

/// The file, as one thread sees it.
pub(super) struct LedgerIo {
    file: Handle,
    path: PathBuf,
    /// By the key of the token.
    in_flight: HashMap<u32, InFlight>,
    next: u32,
}

struct InFlight {
    id: OperationId,
    /// Number under which memory was taken.
    memory: RequestId,
    kind: Kind,
    offset: u64,
    done: usize,
}

enum Kind {
    Read(Span),
    Write(Span),
    Sync,
}

/// Keys from this one on are of operations on the file.
pub(super) const FIRST_KEY: u32 = 16;

impl LedgerIo {
    pub(super) fn new(file: &LedgerFile) -> Result<Self, OpenError> {
        let LedgerFile { path, file, .. } = file;
        let failed = |error| {
            OpenError::Failed(format!("a descriptor of the freshness file {}: {error}", path.display()))
        };
        let file: OwnedFd = file.try_clone().map_err(failed)?.into();
        Ok(Self { file: Rc::new(file), path: path.clone(), in_flight: HashMap::new(), next: FIRST_KEY })
    }

    /// Begins an operation on the file, in memory taken under the number `memory`; false if there is none.
    pub(super) fn begin(
        &mut self,
        io: &mut Io,
        owner: Owner,
        (id, memory): (OperationId, RequestId),
        operation: &Operation,
        areas: &mut Areas,
    ) -> bool {
        let (kind, offset) = match operation {
            Operation::ReadLedger { offset, length } => {
                let Some(area) = areas.take(io, memory) else { return false };
                (Kind::Read(area.slice(0, *length)), *offset)
            }
            Operation::WriteLedger { offset, bytes } => {
                let Some(area) = areas.take(io, memory) else { return false };
                area.fill(0, bytes);
                (Kind::Write(area.slice(0, bytes.len())), *offset)
            }
            _ => (Kind::Sync, 0),
        };
        self.submit(io, owner, InFlight { id, memory, kind, offset, done: 0 });
        true
    }

    fn submit(&mut self, io: &mut Io, owner: Owner, operation: InFlight) {
        let key = self.next;
        self.next = self.next.wrapping_add(1).max(FIRST_KEY);
        let token = Token { owner, key };
        let InFlight { kind, offset, done, .. } = &operation;
        let rest = |span: &Span| span.slice(*done, span.len() - done);
        let at = offset + *done as u64;
        match kind {
            Kind::Read(into) => io.read(token, &self.file, at, rest(into)),
            Kind::Write(from) => io.write(token, &self.file, at, rest(from), Durability::Volatile),
            Kind::Sync => io.sync(token, &self.file),
        }
        self.in_flight.insert(key, operation);
    }

    /// An operation ended, or goes on where fewer bytes were moved than it has. Yields its outcome, and the number of the memory
    /// that it no longer needs.
    pub(super) fn on_event(
        &mut self,
        io: &mut Io,
        event: &Event,
    ) -> Option<(OperationId, Outcome<IoError>, RequestId)> {
        let mut operation = self.in_flight.remove(&event.token.key)?;
        let moved = match event.bytes() {
            Ok(moved) => moved,
            Err(error) => {
                let InFlight { id, memory, .. } = operation;
                let text = format!("the freshness file {}: {error}", self.path.display());
                let error = IoError { text, ..IoError::from(error) };
                return Some((id, Outcome::Failed(error), memory));
            }
        };
        operation.done += moved;
        let InFlight { id, memory, done, .. } = operation;
        let outcome = match &operation.kind {
            Kind::Sync => Outcome::Done,
            Kind::Write(from) if done == from.len() => Outcome::Done,
            // The end of the file: what is beyond reads as zero.
            Kind::Read(into) if moved == 0 || done == into.len() => {
                into.zero(done, into.len() - done);
                Outcome::Read(into.as_slice().to_vec())
            }
            Kind::Read(_) | Kind::Write(_) => {
                self.submit(io, event.token.owner, operation);
                return None;
            }
        };
        Some((id, outcome, memory))
    }

    pub(super) fn operations(&self) -> impl Iterator<Item = OperationId> {
        self.in_flight.values().map(|operation| operation.id)
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    /// A killed process keeps its lock until the kernel has ended its io_uring.
    #[test]
    fn a_lock_that_ends_soon_is_waited_for() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let held = LedgerFile::open(file.path(), false).unwrap();
        assert!(LedgerFile::open(file.path(), false).is_err());
        let other = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(100));
            drop(held);
        });
        LedgerFile::open(file.path(), false).unwrap();
        other.join().unwrap();
    }

    #[test]
    fn a_freshness_file_is_a_regular_one() {
        let directory = tempfile::tempdir().unwrap();
        let fifo = directory.path().join("fifo");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        for path in [&fifo, directory.path()] {
            let error = open_freshness(path, false).unwrap_err();
            assert!(error.to_string().contains("regular"), "{error}");
        }
        let file = directory.path().join("file");
        std::fs::write(&file, b"a").unwrap();
        assert!(open_freshness(&file, true).is_ok());
    }
}
