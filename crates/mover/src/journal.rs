//! A journal in a file, written by its own thread.
//!
//! The file is replaced as a whole: a new file beside it, fsync, rename, fsync of the directory. Whenever the process
//! ends, the file contains the last claim or an earlier one.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use block::Fingerprint;

use crate::checkpoint::{CHECKPOINT_EVERY, Journal};
use crate::map::Map;
use crate::mapfile::{Label, MAPFILE_BYTES_MAX, Mapfile, Origin};

/// The system calls that replace a file. The process may end between any two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Create,
    Write,
    Sync,
    Rename,
    SyncDirectory,
}

/// The state shared between the loop and the thread.
#[derive(Debug, Default)]
struct State {
    /// The newest claim not yet written; it replaces older ones.
    next: Option<Map>,
    ends: bool,
    failed: Option<String>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while locked")
    }
}

/// A mapfile that records the claims of a copy.
#[derive(Debug)]
pub struct FileJournal {
    path: PathBuf,
    shared: Arc<Shared>,
    /// Returns the mapfile of the last claim.
    thread: Option<JoinHandle<Mapfile>>,
    every: Duration,
}

impl FileJournal {
    /// Writes the map at the start of the copy in place of the existing file, and waits for that: a copy whose journal
    /// cannot be written must not start.
    pub fn begin(path: &Path, mut label: Label, origin: Origin, map: &Map) -> io::Result<Self> {
        // While the copy writes, no state of the destination is one that a resumed copy could compare.
        label.destination_was.contents.clear();
        let mut mapfile = Mapfile { label, origin: Some(origin), map: map.clone() };
        replace(path, mapfile.emit().as_bytes(), |_| Ok(()))?;
        let shared = Arc::new(Shared::default());
        let (of_thread, to) = (Arc::clone(&shared), path.to_owned());
        let write = move || {
            while let Some(map) = next(&of_thread) {
                mapfile.map = map;
                if let Err(error) = replace(&to, mapfile.emit().as_bytes(), |_| Ok(())) {
                    of_thread.state().failed = Some(format!("{}: {error}", to.display()));
                    break;
                }
            }
            mapfile
        };
        let thread = std::thread::Builder::new().name("journal".to_owned()).spawn(write)?;
        Ok(Self { path: path.to_owned(), shared, thread: Some(thread), every: CHECKPOINT_EVERY })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sets the interval between claims, in loop time.
    pub fn claiming_every(mut self, every: Duration) -> Self {
        self.every = every;
        self
    }

    /// Waits until the last claim is written; returns the error of the thread, if any.
    pub fn end(mut self) -> Result<(), String> {
        self.join();
        self.result()
    }

    /// Ends the journal of an orderly interruption: as [`FileJournal::end`], and adds what `destination`, taken after the
    /// last write, shows of writes. [`Label::check`] then refuses to resume if the file was written since. Nothing is
    /// added for other storage than a file: its evidence does not outlast a restart of the machine.
    pub fn leave(mut self, destination: &Fingerprint) -> Result<(), String> {
        let mapfile = self.join();
        self.result()?;
        let Some(mut mapfile) = mapfile.filter(|_| destination.lasts()) else { return Ok(()) };
        if mapfile.label.destination_was.storage == destination.storage {
            mapfile.label.destination_was.contents.clone_from(&destination.contents);
        }
        replace(&self.path, mapfile.emit().as_bytes(), |_| Ok(()))
            .map_err(|error| format!("{}: {error}", self.path.display()))
    }

    fn result(&self) -> Result<(), String> {
        self.shared.state().failed.take().map_or(Ok(()), Err)
    }

    /// Removes the file: the copy is complete, nothing is left to resume.
    pub fn remove(mut self) -> io::Result<()> {
        self.join();
        fs::remove_file(&self.path)
    }

    /// The mapfile of the last claim; `None` if the thread was joined before.
    fn join(&mut self) -> Option<Mapfile> {
        self.shared.state().ends = true;
        self.shared.changed.notify_one();
        self.thread.take().map(|thread| thread.join().expect("the journal's thread does not panic"))
    }
}

impl Drop for FileJournal {
    fn drop(&mut self) {
        self.join();
    }
}

impl Journal for FileJournal {
    fn claim(&mut self, map: &Map) -> Result<(), String> {
        let mut state = self.shared.state();
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        state.next = Some(map.clone());
        self.shared.changed.notify_one();
        Ok(())
    }

    fn every(&self) -> Duration {
        self.every
    }
}

/// The next claim to write; `None` at the end.
fn next(shared: &Shared) -> Option<Map> {
    let mut state = shared.state();
    loop {
        if let Some(map) = state.next.take() {
            return Some(map);
        }
        if state.ends {
            return None;
        }
        state = shared.changed.wait(state).expect("no panic while locked");
    }
}

/// The content of the mapfile at `path`, not parsed; at most [`MAPFILE_BYTES_MAX`] bytes.
pub fn read_mapfile(path: &Path) -> io::Result<Vec<u8>> {
    read_whole(path, MAPFILE_BYTES_MAX, "it is too long for a mapfile")
}

pub(crate) fn read_whole(path: &Path, bytes_max: u64, too_long: &'static str) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = block::open_input(path)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if read as u64 > bytes_max {
        return Err(io::Error::new(ErrorKind::FileTooLarge, too_long));
    }
    Ok(bytes)
}

/// The directory of a file, and the path of the new file that will replace it: FILE.new.
pub(crate) fn beside(path: &Path) -> io::Result<(&Path, PathBuf)> {
    let name = path.file_name().ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "it names no file"))?;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut beside = name.to_owned();
    beside.push(".new");
    Ok((directory, directory.join(beside)))
}

/// Creates FILE.new. `O_EXCL` does not follow a planted link; an existing file of that name, left by a killed process,
/// is removed first.
pub(crate) fn create_beside(beside: &Path) -> io::Result<File> {
    let create = || File::options().write(true).create_new(true).open(beside);
    match create() {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            fs::remove_file(beside)?;
            create()
        }
        created => created,
    }
}

/// Replaces the file at `path` by `bytes`. `before` is called before each call; its error ends the replacement.
pub(crate) fn replace(
    path: &Path,
    bytes: &[u8],
    mut before: impl FnMut(Call) -> io::Result<()>,
) -> io::Result<()> {
    let (directory, beside) = beside(path)?;
    before(Call::Create)?;
    let mut file = create_beside(&beside)?;
    before(Call::Write)?;
    file.write_all(bytes)?;
    before(Call::Sync)?;
    file.sync_all()?;
    before(Call::Rename)?;
    fs::rename(&beside, path)?;
    before(Call::SyncDirectory)?;
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::Status;
    use crate::mapfile::Mismatch;

    fn label() -> Label {
        Label { bytes: 1 << 20, chunk: 4096, ..Label::default() }
    }

    fn read(path: &Path) -> Map {
        Mapfile::parse(&read_mapfile(path).unwrap()).unwrap().map
    }

    fn finished(bytes: u64) -> Map {
        let mut map = Map::new(1 << 20);
        map.set(0, bytes, Status::Finished);
        map
    }

    #[test]
    fn the_last_claim_is_what_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.map");
        let mut journal = FileJournal::begin(&path, label(), Origin::default(), &Map::new(1 << 20)).unwrap();
        assert_eq!(read(&path), Map::new(1 << 20));
        for bytes in (0..=1 << 20).step_by(4096) {
            journal.claim(&finished(bytes)).unwrap();
        }
        journal.end().unwrap();
        assert_eq!(read(&path), finished(1 << 20));
        let journal = FileJournal::begin(&path, label(), Origin::default(), &finished(4096)).unwrap();
        assert_eq!(read(&path), finished(4096));
        journal.remove().unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    /// truncate -s 0; truncate -s SIZE: the same file with the same size, and none of the data.
    #[test]
    fn a_destination_written_since_an_orderly_interruption_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let (path, file) = (directory.path().join("x.map"), directory.path().join("disk.img"));
        fs::write(&file, [7; 4096]).unwrap();
        let now = || Fingerprint::of_file(&fs::metadata(&file).unwrap(), 4096);
        let label = || Label { destination_was: now(), ..label() };
        let check = || Mapfile::parse(&read_mapfile(&path).unwrap()).unwrap().label.check(&label());
        let write = |bytes| {
            std::thread::sleep(Duration::from_millis(10));
            File::create(&file).unwrap().set_len(bytes).unwrap();
        };
        let mut journal = FileJournal::begin(&path, label(), Origin::default(), &Map::new(1 << 20)).unwrap();
        write(4096);
        assert_eq!(check(), Ok(()), "while the copy runs, and after a crash");
        journal.claim(&finished(4096)).unwrap();
        journal.leave(&now()).unwrap();
        assert_eq!((check(), read(&path)), (Ok(()), finished(4096)));
        write(4096);
        let mismatch = check().unwrap_err();
        assert!(matches!(mismatch, Mismatch::DestinationWritten { .. }), "{mismatch:?}");
        // A resumed copy writes again.
        drop(FileJournal::begin(&path, label(), Origin::default(), &finished(4096)).unwrap());
        write(4096);
        assert_eq!(check(), Ok(()));
        // The counts of a device begin again with the machine: they are not kept.
        let device = Fingerprint { storage: "disk naa.5, 4096 bytes".into(), contents: "boot a, 1".into() };
        let label = Label { destination_was: device.clone(), ..label() };
        FileJournal::begin(&path, label.clone(), Origin::default(), &finished(4096))
            .unwrap()
            .leave(&device)
            .unwrap();
        let later = Fingerprint { contents: "boot b, 0".into(), ..device };
        let theirs = Mapfile::parse(&read_mapfile(&path).unwrap()).unwrap().label;
        assert_eq!(theirs.check(&Label { destination_was: later, ..label }), Ok(()));
    }

    #[test]
    fn whatever_step_is_the_last_the_file_is_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.map");
        let text = |bytes| Mapfile { label: label(), origin: None, map: finished(bytes) }.emit().into_bytes();
        let calls = [Call::Create, Call::Write, Call::Sync, Call::Rename, Call::SyncDirectory];
        for (round, last) in calls.into_iter().enumerate() {
            let (old, new) = (8192 * round as u64, 8192 * round as u64 + 4096);
            replace(&path, &text(old), |_| Ok(())).unwrap();
            let mut seen = Vec::new();
            let killed = replace(&path, &text(new), |call| {
                seen.push(call);
                if call == last { Err(io::Error::other("killed")) } else { Ok(()) }
            });
            assert!(killed.is_err());
            assert_eq!(seen, calls[..=round]);
            let renamed = last == Call::SyncDirectory;
            assert_eq!(read(&path), finished(if renamed { new } else { old }), "{last:?}");
        }
    }

    #[test]
    fn a_directory_that_goes_away_is_told_at_the_next_claim() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.map");
        let mut journal = FileJournal::begin(&path, label(), Origin::default(), &Map::new(1 << 20)).unwrap();
        drop(directory);
        assert!(FileJournal::begin(&path, label(), Origin::default(), &Map::new(1 << 20)).is_err());
        journal.claim(&finished(4096)).unwrap();
        assert!(journal.end().unwrap_err().contains("x.map"));
    }

    #[test]
    fn a_file_that_is_too_long_is_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.map");
        File::create(&path).unwrap().set_len(MAPFILE_BYTES_MAX + 1).unwrap();
        assert_eq!(read_mapfile(&path).unwrap_err().kind(), ErrorKind::FileTooLarge);
    }
}
