//! The journal of a copy in the state directory, and the lock that keeps other copies off its destination.
//!
//! The journal is a `mover::FileJournal`; docs/internals/mover-journal.md describes its guarantees.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use block::{Endpoint, Fingerprint, Identity};
use mover::{Checked, FileJournal, Label, Map, Mapfile, Mismatch, Status, read_mapfile};
use sha2::{Digest, Sha256};

use crate::lock::{self, Hold};
use crate::{Ending, Failure, Host, Job, Pair, Request, Resume, again, journals, units};

/// Copies of more bytes always keep a journal.
const JOURNAL_BYTES_MIN: u64 = 1 << 30;
/// Directory of journals in the state directory.
pub(crate) const JOURNALS: &str = "copies";
/// The lock file of destinations, beside it.
const LOCK_FILE: &str = "copies.lock";
/// Time for which the lock of a killed process may remain, and the pause between attempts to lock.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(1);
const LOCK_PAUSE: Duration = Duration::from_millis(10);
const STATE_HINT: &str = "set XDG_STATE_HOME to a directory that can be written and survives restarts";
/// Environment variable for tests: milliseconds between two updates of the journal.
const CLAIM_VARIABLE: &str = "HIKYAKU_CLAIM_MS";

/// The journal of a running copy and its lock of the destination. Ends by [`Kept::finish`] or [`Kept::failed`]; a drop
/// releases the lock and leaves the journal in place.
#[derive(Debug, Default)]
pub struct Kept {
    /// `None` for a copy without a journal.
    pub journal: Option<FileJournal>,
    /// The finished part of the range: by an earlier copy, and by storage before the engine starts.
    pub map: Option<Map>,
    /// The argument of `--resume` for this journal.
    name: String,
    /// Whether the journal is of an earlier copy that this one resumes.
    pub(crate) is_resumed: bool,
    /// Journals of earlier attempts at this copy, which its end makes obsolete.
    pub(crate) obsolete: Vec<PathBuf>,
    _claim: Option<File>,
}

/// The journal of the copy to resume.
#[derive(Clone, Debug)]
pub struct Earlier {
    /// The argument of `--resume`.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) mapfile: Mapfile,
}

impl Earlier {
    fn read(name: String, path: PathBuf) -> Result<Self, Failure> {
        let object = path.display().to_string();
        let bytes =
            read_mapfile(&path).map_err(|error| Failure::failed("resume from", object.clone(), error))?;
        let mapfile = Mapfile::parse(&bytes)
            .map_err(|error| Failure::new(Ending::Refused, "resume from", object, error))?;
        Ok(Self { name, path, mapfile })
    }

    /// The copy that the journal belongs to, as a hint.
    pub(crate) fn ends(&self) -> String {
        let Label { source, destination, .. } = &self.mapfile.label;
        format!("this journal belongs to a copy from {source} to {destination}")
    }

    /// Refuses the journal of another copy; with --force it is accepted with a warning, if the range fits.
    pub(crate) fn check(&self, job: &Job<'_>, ours: &Label) -> Result<(), Failure> {
        check(job.host, job.request, &self.path, &self.mapfile.label, ours)
    }
}

/// Reads the journal that `--resume` names. Opens no endpoint. `None` if it names none.
pub fn earlier(job: &Job<'_>) -> Result<Option<Earlier>, Failure> {
    let name = match &job.request.resume {
        Resume::Found | Resume::Off => return Ok(None),
        Resume::Only => return journals::only(job).map(Some),
        Resume::Named(name) => name,
    };
    let named = PathBuf::from(name);
    let path = if name.contains('/') || named.exists() { named } else { file(&job.host.state_dir()?, name) };
    let is_there = path.exists();
    Earlier::read(name.clone(), path).map(Some).map_err(|failure| match job.host.state_dir() {
        Ok(state) if !is_there => {
            let listed = journals::hint(&state, &journals::list(&state));
            failure.hint(format!("the journal of a copy is removed when it has finished; {listed}"))
        }
        _ => failure,
    })
}

/// Locks the destination, checks an earlier journal against both endpoints, and begins the journal of this copy.
/// Refused if another copy writes to the destination, or if the journal belongs to other storage, another range, or a
/// source that was written since.
pub fn keep(job: &Job<'_>, pair: &Pair, earlier: Option<Earlier>) -> Result<Kept, Failure> {
    let Job { host, request, .. } = job;
    let keeps = earlier.is_some() || request.journal || pair.checked.bytes > JOURNAL_BYTES_MIN;
    if !keeps {
        let claim = claim_short(job, &*pair.destination)?;
        if let Ok(state) = host.state_dir() {
            journals::overwritten(job, &state, &label(job, pair), Path::new(""));
        }
        return Ok(Kept { _claim: claim, ..Kept::default() });
    }
    let state = host.state_dir()?;
    let claim = claim_or_refuse(job, &state, &pair.destination.inspect().identity())?;
    let label = label(job, pair);
    let is_resumed = earlier.is_some();
    let (name, path, map) = match earlier {
        Some(earlier) => {
            earlier.check(job, &label)?;
            (earlier.name, earlier.path, earlier.mapfile.map)
        }
        None => {
            set_aside(job, &state, &label)?;
            (label.id(), file(&state, &label.id()), Map::new(label.bytes))
        }
    };
    // NAME.map.new is left by a process that was killed while it wrote a claim.
    let same = journals::overwritten(job, &state, &label, &path);
    let files = names(&label).map(|name| file(&state, &name)).into_iter().chain(same);
    let obsolete = files.flat_map(|file| [file.with_extension("map.new"), file]);
    let obsolete = obsolete.filter(|other| *other != path).collect();
    if is_resumed {
        let (done, all) = (units::bytes(map.bytes(Status::Finished)), units::bytes(label.bytes));
        let found = match request.resume {
            Resume::Found => format!("resuming the interrupted copy {name}; --resume off begins anew: "),
            _ => String::new(),
        };
        host.remark(&format!("{found}{done} of {all} were copied before"));
    }
    let journal = FileJournal::begin(&path, label, again::origin(job), &map).map_err(|error| {
        Failure::failed("keep the journal", path.display().to_string(), error).hint(STATE_HINT)
    })?;
    let often = std::env::var(CLAIM_VARIABLE).ok().and_then(|value| value.parse().ok());
    let journal = match often {
        Some(often) => journal.claiming_every(Duration::from_millis(often)),
        None => journal,
    };
    Ok(Kept { journal: Some(journal), map: Some(map), name, is_resumed, obsolete, _claim: claim })
}

/// Names of a copy's journals: of the running one, and of the earlier, unfinished one that it did not resume.
fn names(label: &Label) -> [String; 2] {
    [label.id(), format!("{}-earlier", label.id())]
}

/// Keeps the journal of an earlier, unfinished attempt with the most claims under its second name, and says how to
/// resume it: as long as the source does not change, its claims stay true while the new copy writes the same data.
fn set_aside(job: &Job<'_>, state: &Path, label: &Label) -> Result<(), Failure> {
    let [own, aside] = names(label);
    let [path, kept] = [&own, &aside].map(|name| file(state, name));
    let finished = |path: &PathBuf| {
        let Mapfile { label: theirs, map, .. } = Mapfile::parse(&read_mapfile(path).ok()?).ok()?;
        theirs.check(label).ok().map(|()| map.bytes(Status::Finished)).filter(|bytes| *bytes > 0)
    };
    let (bytes, before) = (finished(&path), finished(&kept));
    let Some(most) = bytes.max(before) else {
        if path.exists() {
            job.host.remark("an earlier copy of the same was not finished; this one begins anew");
        }
        return Ok(());
    };
    if bytes > before {
        fs::rename(&path, &kept).map_err(|error| failed(state, "keep journals in", error))?;
    }
    job.host.warn(&format!(
        "{} of an earlier copy are durable; to go on with it instead: {}",
        units::bytes(most),
        again::resume(job, &aside)
    ));
    Ok(())
}

/// Locks the destination of a copy without a journal, if other machines can write it or if some copy has made the lock
/// file before; not without a state directory.
pub(crate) fn claim_short(job: &Job<'_>, endpoint: &dyn Endpoint) -> Result<Option<File>, Failure> {
    let identity = endpoint.inspect().identity();
    let is_remote = match &identity {
        Identity::Unique => return Ok(None),
        Identity::Remote(name) => !name.starts_with("mem:"),
        _ => false,
    };
    let Ok(state) = job.host.state_dir() else { return Ok(None) };
    if !is_remote && !state.join(LOCK_FILE).exists() {
        return Ok(None);
    }
    match claim_or_refuse(job, &state, &identity) {
        Err(failure) if failure.ending != Ending::Refused => Ok(None),
        claimed => claimed,
    }
}

fn claim_or_refuse(job: &Job<'_>, state: &Path, identity: &Identity) -> Result<Option<File>, Failure> {
    // A lock that is not needed is not waited for.
    let wait = if job.request.allow_in_use { Duration::ZERO } else { LOCK_WAIT_MAX };
    match claim(state, identity, wait)? {
        Some(claim) => Ok(Some(claim)),
        None if *identity == Identity::Unique || job.request.allow_in_use => Ok(None),
        None => Err(Failure::refused("copy to", job.destination.text(), "another copy is writing to it")
            .hint("wait for that copy, or end it; --allow in-use if both write to different parts")),
    }
}

/// The label of a journal or a manifest.
pub(crate) fn label(job: &Job<'_>, pair: &Pair) -> Label {
    label_of(job, pair.source_was.clone(), &*pair.destination, &pair.checked)
}

pub(crate) fn label_of(
    job: &Job<'_>,
    source_was: Fingerprint,
    destination: &dyn Endpoint,
    checked: &Checked,
) -> Label {
    Label {
        source: job.source.text().to_owned(),
        destination: job.destination.text().to_owned(),
        src_offset: job.request.plan.src_offset,
        dst_offset: job.request.plan.dst_offset,
        bytes: checked.bytes,
        chunk: checked.chunk,
        source_was,
        destination_was: destination.inspect().fingerprint(),
    }
}

fn check(
    host: &dyn Host,
    request: &Request,
    path: &Path,
    theirs: &Label,
    ours: &Label,
) -> Result<(), Failure> {
    let Err(mismatch) = theirs.check(ours) else { return Ok(()) };
    // The kernel counts writes since boot: after a reboot only reading both ends shows whether the source was written.
    let unknown = ours.source_was.counts_anew_since(&theirs.source_was);
    let hint = match mismatch {
        Mismatch::Range { .. } => "",
        _ if request.force => {
            host.warn(&format!("resuming although {mismatch}"));
            return Ok(());
        }
        Mismatch::Storage { .. } => {
            "copy anew, with --resume off; a device may get other numbers when the machine starts: --force if it is the same, \
             with the same contents"
        }
        Mismatch::DestinationWritten { .. } => {
            "another destination, if what was written there is needed; --resume off to overwrite it; --force goes on, and the \
             copy has those writes in it"
        }
        Mismatch::SourceChanged { .. } if unknown && request.plan.verify => {
            host.remark("whether the source was written since is not known: --verify checks");
            return Ok(());
        }
        Mismatch::SourceChanged { .. } if unknown => {
            "--verify compares what was copied before, too; --force if nothing has written to it since"
        }
        Mismatch::SourceChanged { .. } => {
            "copy anew, with --resume off; --force goes on, and the copy mixes the source of two moments"
        }
    };
    Err(Failure::refused("resume from", path.display().to_string(), mismatch).hint(hint))
}

/// Locks a destination against other copies of this user until the file is dropped; `None`: another copy has it.
pub(crate) fn claim(state: &Path, identity: &Identity, wait: Duration) -> Result<Option<File>, Failure> {
    let file = lock_file(state)?;
    let hash = Sha256::digest(format!("{identity:?}"));
    // Offsets are signed. With 62 bits of the hash, collisions by chance are negligible.
    let byte = u64::from_le_bytes(*hash.first_chunk().expect("it is longer")) >> 2;
    let until = Instant::now() + wait;
    loop {
        match lock::lock_byte(&file, byte, Hold::Exclusive) {
            Ok(true) => return Ok(Some(file)),
            Ok(false) if Instant::now() >= until => return Ok(None),
            Ok(false) => std::thread::sleep(LOCK_PAUSE),
            Err(error) => return Err(failed(state, "lock the destination in", error)),
        }
    }
}

fn file(state: &Path, name: &str) -> PathBuf {
    state.join(JOURNALS).join(format!("{name}.map"))
}

/// The directory of journals; created if absent.
fn journals(state: &Path) -> Result<PathBuf, Failure> {
    let path = state.join(JOURNALS);
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&path);
    made.map(|()| path).map_err(|error| failed(state, "keep journals in", error))
}

/// The lock file: a copy locks one byte, chosen by the hash of its destination's identity.
fn lock_file(state: &Path) -> Result<File, Failure> {
    let path = journals(state)?.with_file_name(LOCK_FILE);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options.open(path).map_err(|error| failed(state, "lock a destination in", error))
}

fn failed(state: &Path, attempted: &str, cause: std::io::Error) -> Failure {
    Failure::failed(attempted, state.display().to_string(), cause).hint(STATE_HINT)
}

impl Kept {
    /// Ends a completed copy. Removes the journals if `whole`; otherwise some areas could not be read, and they stay.
    pub fn finish(self, whole: bool) -> Result<(), Failure> {
        let Some(journal) = self.journal else { return Ok(()) };
        if whole {
            let removed = journal.remove();
            for path in &self.obsolete {
                let _ = fs::remove_file(path);
            }
            return removed
                .map_err(|error| Failure::failed("remove the journal of", "the finished copy", error));
        }
        journal.end().map_err(|error| Failure::failed("keep the journal", "", error))
    }

    /// Ends a failed copy. The journal stays and the hint becomes the command that resumes the copy; after a mismatch
    /// the journal is removed. `destination`: no request is in flight there if the copy was interrupted.
    pub fn failed(
        self,
        job: &Job<'_>,
        destination: &dyn Endpoint,
        mut failure: Failure,
    ) -> Result<Failure, Failure> {
        // Resuming a copy does not correct data found to be wrong.
        if failure.ending == Ending::Mismatch {
            self.finish(true)?;
            return Ok(failure);
        }
        let command = self.command(job);
        let interrupted = matches!(failure.ending, Ending::Interrupted(_));
        let end = |journal: FileJournal| match interrupted {
            true => journal.leave(&destination.inspect().fingerprint()),
            false => journal.end(),
        };
        if self.journal.is_some_and(|journal| end(journal).is_ok()) {
            let earlier = Some(failure.hint).filter(|hint| !hint.is_empty() && !interrupted);
            failure.hint = earlier.map_or_else(String::new, |hint| hint + "; then: ") + &command;
        }
        Ok(failure)
    }

    pub fn command(&self, job: &Job<'_>) -> String {
        again::resume(job, &self.name)
    }

    /// The file of the journal, if the copy keeps one.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        self.journal.as_ref().map(|journal| journal.path().to_owned())
    }
}

/// Removes a journal and what a killed process left of its replacement.
pub(crate) fn remove(path: &Path) -> bool {
    let _ = fs::remove_file(path.with_extension("map.new"));
    fs::remove_file(path).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Quiet;

    #[test]
    fn a_destination_is_claimed_once() {
        let home = tempfile::tempdir().unwrap();
        let state = home.path();
        let lun = |name: &str| Identity::Remote(name.to_owned());
        let one = claim(state, &lun("naa.1"), Duration::ZERO).unwrap();
        assert!(one.is_some() && claim(state, &lun("naa.1"), Duration::ZERO).unwrap().is_none());
        assert!(claim(state, &lun("naa.2"), Duration::ZERO).unwrap().is_some());
        drop(one);
        assert!(claim(state, &lun("naa.1"), Duration::ZERO).unwrap().is_some());
    }

    #[test]
    fn after_a_start_of_the_machine_reading_both_ends_is_asked_for() {
        let resume = |then: &str, now: &str, verify: bool| {
            let plan = mover::Plan { verify, ..mover::Plan::default() };
            let request = Request { resume: Resume::Named("x".to_owned()), plan, ..Request::default() };
            let label = |contents: &str| {
                let storage = "disk naa.1, 4096 bytes".to_owned();
                let was = Fingerprint { storage, contents: contents.to_owned() };
                let (source, destination) = ("/dev/a".to_owned(), "b.img".to_owned());
                let (src_offset, dst_offset, bytes, chunk) = (0, 0, 4096, 4096);
                // A journal keeps no counts of a destination.
                let destination_was = Fingerprint { contents: String::new(), ..was.clone() };
                let source_was = was;
                Label {
                    source,
                    destination,
                    src_offset,
                    dst_offset,
                    bytes,
                    chunk,
                    source_was,
                    destination_was,
                }
            };
            check(&Quiet::default(), &request, Path::new("x.map"), &label(then), &label(now))
        };
        let then = "boot 1, sequence 9, 24 sectors written, 0 discarded";
        let started = "boot 2, sequence 9, 24 sectors written, 0 discarded";
        let written = "boot 1, sequence 9, 25 sectors written, 0 discarded";
        resume(then, then, false).unwrap();
        assert!(resume(then, started, false).unwrap_err().hint.starts_with("--verify"));
        resume(then, started, true).unwrap();
        assert_eq!(resume(then, written, true).unwrap_err().ending, Ending::Refused);
    }
}
