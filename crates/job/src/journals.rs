//! The journals of interrupted copies in the state directory: listed, found again, expired.

use std::fs;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use block::{Endpoint, Spec};
use io::Io;
use mover::{Label, Map, Mapfile, Mismatch, Origin, Status, read_mapfile};

use crate::journal::{self, Earlier, JOURNALS};
use crate::{Address, Failure, Host, Job, again, shell, units};

/// Journals that are not continued for longer are removed.
pub const JOURNAL_AGE_MAX: Duration = Duration::from_secs(30 * 86_400);
/// Journals that are read from the directory; a hint lists fewer.
const JOURNALS_MAX: usize = 1000;
const HINTED_MAX: usize = 8;
/// Places of the destination that are compared with the source before a copy is resumed, and bytes of each.
const PLACES: u64 = 16;
const PLACE_BYTES: u64 = 64 << 10;

/// An interrupted copy, as its journal describes it.
#[derive(Clone, Debug)]
pub struct Interrupted {
    /// The argument of `--resume`.
    pub id: String,
    pub label: Label,
    /// `None` in a journal of an earlier release.
    pub origin: Option<Origin>,
    pub map: Map,
    /// When the journal was last written.
    pub written: SystemTime,
    path: PathBuf,
}

/// Lists the journals in the state directory, the newest first. Files that are no journals are left out, and those of
/// other users: a journal contains a command line that resumes its copy.
pub fn list(state: &Path) -> Vec<Interrupted> {
    let own = rustix::process::geteuid().as_raw();
    let entries = fs::read_dir(state.join(JOURNALS)).into_iter().flatten().flatten();
    let read = |entry: fs::DirEntry| {
        let path = entry.path();
        let id = entry.file_name().to_str()?.strip_suffix(".map")?.to_owned();
        let metadata = entry.metadata().ok().filter(|metadata| metadata.uid() == own)?;
        let written = metadata.modified().ok()?;
        let Mapfile { label, origin, map } = Mapfile::parse(&read_mapfile(&path).ok()?).ok()?;
        Some(Interrupted { id, label, origin, map, written, path })
    };
    let mut found: Vec<_> = entries.filter_map(read).take(JOURNALS_MAX).collect();
    found.sort_by(|one, other| (other.written, &one.id).cmp(&(one.written, &other.id)));
    found
}

/// The age of a file; zero if the clock was set back since it was written.
fn age(written: SystemTime, now: SystemTime) -> Duration {
    now.duration_since(written).unwrap_or_default()
}

/// Removes the journals that are older than [`JOURNAL_AGE_MAX`], with a warning for each.
pub fn expire(host: &dyn Host, state: &Path) {
    for old in list(state).into_iter().filter(|journal| journal.age() > JOURNAL_AGE_MAX) {
        let removed = fs::remove_file(&old.path);
        let days = JOURNAL_AGE_MAX.as_secs() / 86_400;
        host.warn(&match removed {
            Ok(()) => format!("removed the journal {}, which was not continued for {days} days", old.words()),
            Err(error) => format!("cannot remove the old journal {}: {error}", old.path.display()),
        });
    }
}

impl Interrupted {
    /// Bytes of the range that are copied and durable.
    pub fn done_bytes(&self) -> u64 {
        self.map.bytes(Status::Finished)
    }

    pub fn age(&self) -> Duration {
        age(self.written, SystemTime::now())
    }

    /// The command line that resumes the copy from the present directory; `None` for a journal of an earlier release,
    /// which does not contain it.
    pub fn command(&self) -> Option<String> {
        let Origin { directory, command, .. } = self.origin.as_ref()?;
        let words = self.arguments();
        let here = std::env::current_dir().is_ok_and(|here| here.display().to_string() == *directory);
        let change = if here { String::new() } else { format!("cd {} && ", shell::quoted(directory)) };
        let line = words.map_or_else(|| command.clone(), |words| shell::line(&words));
        Some(format!("{change}{line} --resume {}", shell::quoted(&self.id)))
    }

    /// The command line of the copy as arguments, with the program; `None` if the journal has none.
    pub fn arguments(&self) -> Option<Vec<String>> {
        shell::split(&self.origin.as_ref()?.command).map(with_units)
    }

    /// The journal and its copy, as in a list within a sentence.
    pub fn words(&self) -> String {
        format!("{} (a copy from {} to {})", self.id, self.label.source, self.label.destination)
    }

    /// Whether the journal is of a copy between these addresses, as far as their texts show.
    fn is_between(&self, source: &dyn Address, destination: &dyn Address) -> bool {
        let is_same = |text: &str, end: &dyn Address| {
            Spec::parse(text).is_ok_and(|spec| spec.location == end.spec().location)
        };
        is_same(&self.label.source, source) && is_same(&self.label.destination, destination)
    }

    fn far(&self) -> String {
        format!("{} of {} are done", units::bytes(self.done_bytes()), units::bytes(self.label.bytes))
    }
}

/// The arguments with the unit of `--rate`, which earlier releases wrote as a bare number of bytes per second.
fn with_units(mut words: Vec<String>) -> Vec<String> {
    for at in 1..words.len() {
        if words[at - 1] == "--rate" && words[at].bytes().all(|byte| byte.is_ascii_digit()) {
            words[at] += "B/s";
        }
    }
    words
}

/// The first journals within a sentence, with what `--resume` takes.
pub fn hint(state: &Path, journals: &[Interrupted]) -> String {
    let lines: Vec<_> = journals.iter().take(HINTED_MAX).map(Interrupted::words).collect();
    let lines = if lines.is_empty() { "none".to_owned() } else { lines.join(", ") };
    format!(
        "--resume takes the name or the file of a journal; in {}: {lines}",
        state.join(JOURNALS).display()
    )
}

/// Whether some journal is of a copy between the addresses of `job`.
pub(crate) fn is_any_between(job: &Job<'_>) -> bool {
    let Ok(state) = job.host.state_dir() else { return false };
    list(&state).iter().any(|journal| journal.is_between(&*job.source, &*job.destination))
}

/// The only journal of a copy between the addresses of `job`.
pub(crate) fn only(job: &Job<'_>) -> Result<Earlier, Failure> {
    let state = job.host.state_dir()?;
    let all = list(&state);
    let matching = |journal: &&Interrupted| journal.is_between(&*job.source, &*job.destination);
    let mut found: Vec<Interrupted> = all.iter().filter(matching).cloned().collect();
    let cause = match found.len() {
        1 => return Ok(found.remove(0).into()),
        0 => "no interrupted copy between the two is known",
        _ => "several interrupted copies are between the two",
    };
    let listed = if found.is_empty() { &all } else { &found };
    Err(Failure::usage("resume", "a copy", cause).hint(hint(&state, listed)))
}

impl From<Interrupted> for Earlier {
    fn from(Interrupted { id, label, origin, map, path, .. }: Interrupted) -> Self {
        Self { name: id, path, mapfile: Mapfile { label, origin, map } }
    }
}

/// Finds the journal of an interrupted copy of the same range between the same storage. Refused if there is one that
/// cannot be resumed without a decision: the source or the destination was written since, or `--since` differs.
pub(crate) fn find(
    job: &Job<'_>,
    io: &mut Io,
    label: &Label,
    [source, destination]: [&mut dyn Endpoint; 2],
) -> Result<Option<Earlier>, Failure> {
    let Ok(state) = job.host.state_dir() else { return Ok(None) };
    let is_same = |journal: &Interrupted| {
        let theirs = &journal.label;
        let storage =
            |label: &Label| [label.source_was.storage.clone(), label.destination_was.storage.clone()];
        let range = |label: &Label| [label.src_offset, label.dst_offset, label.bytes];
        storage(theirs) == storage(label) && range(theirs) == range(label) && journal.done_bytes() > 0
    };
    let Some(found) = list(&state).into_iter().filter(is_same).max_by_key(Interrupted::done_bytes) else {
        return Ok(None);
    };
    let resume = found.command().unwrap_or_else(|| again::resume(job, &found.id));
    let anew = again::anew(job);
    let refused = |cause: &str, hint: String| {
        let cause = format!("an earlier copy of the same was interrupted ({}), and {cause}", found.far());
        Err(Failure::refused("copy to", job.destination.text(), cause).hint(hint))
    };
    let part = again::part(job.request);
    match &found.origin {
        None => {
            let cause = "an earlier release began it, which did not record its options";
            return refused(cause, format!("to begin anew: {anew}; to go on with it all the same: {resume}"));
        }
        Some(origin) if origin.part != part => {
            let cause = format!("it was to copy another part ({}, here {part})", origin.part);
            return refused(&cause, format!("to go on with that copy: {resume}; to begin anew: {anew}"));
        }
        Some(_) => {}
    }
    if let Err(mismatch) = found.label.check(label) {
        let is_unknown = label.source_was.counts_anew_since(&found.label.source_was);
        if !(is_unknown && job.request.plan.verify) {
            return refused(&mismatch.to_string(), ways_on(job, &mismatch, is_unknown, &resume));
        }
    }
    if let Some(at) = difference(io, [source, destination], &found) {
        let cause = format!("the destination does not hold at offset {at} what that copy wrote");
        let hint = format!(
            "to begin anew: {anew}; to go on with it all the same, with what the destination holds there: {resume}"
        );
        return refused(&cause, hint);
    }
    Ok(Some(found.into()))
}

/// What can be done about a journal of a source or a destination that was written since: first what copies the source as
/// it is, at last what mixes two states.
fn ways_on(job: &Job<'_>, mismatch: &Mismatch, is_unknown: bool, resume: &str) -> String {
    let anew = again::anew(job);
    match mismatch {
        Mismatch::SourceChanged { .. } if is_unknown => {
            format!("to go on and compare what was copied before: {resume} --verify; to begin anew: {anew}")
        }
        Mismatch::SourceChanged { .. } => {
            let more = match job.request.since {
                None => "; with --since hash it writes only what differs",
                Some(_) => "",
            };
            format!(
                "to copy what it holds now: {anew}{more}; --snapshot auto, where the source can have one, makes later changes \
                 harmless. To go on, for a copy that mixes the source of two moments: {resume} --force"
            )
        }
        _ => format!(
            "another destination, if what was written there is needed; to overwrite it: {anew}. To go on with a copy that \
             has those writes in it: {resume} --force"
        ),
    }
}

/// Compares a few places that the journal lists as finished. Returns the first offset of the destination with a
/// difference. Places that cannot be read are left out: the copy itself reports them.
fn difference(
    io: &mut Io,
    [source, destination]: [&mut dyn Endpoint; 2],
    found: &Interrupted,
) -> Option<u64> {
    let Interrupted { label, map, .. } = found;
    let unit = u64::from(source.capability().granularity.max(destination.capability().granularity).max(4096));
    let step = (found.done_bytes() / PLACES).max(unit);
    let mut next = 0;
    let mut passed = 0;
    for entry in map.entries().filter(|entry| entry.status == Status::Finished) {
        while next < passed + entry.bytes() {
            let at = entry.start + (next - passed);
            next += step;
            let extent = source.extent(label.src_offset + at);
            // Behind a hole, the data next to it within this entry.
            let at = if extent.data { at } else { extent.end.saturating_sub(label.src_offset) };
            let at = at.next_multiple_of(unit);
            let length = PLACE_BYTES.min(entry.end.saturating_sub(at)) / unit * unit;
            if length == 0 {
                continue;
            }
            let (from, to) = (label.src_offset + at, label.dst_offset + at);
            let ours = crate::read(io, source, from, length as usize);
            let theirs = crate::read(io, destination, to, length as usize);
            if let (Ok(ours), Ok(theirs)) = (ours, theirs)
                && ours != theirs
            {
                let first = ours.iter().zip(&theirs).position(|(one, other)| one != other).unwrap_or(0);
                return Some(to + first as u64);
            }
        }
        passed += entry.bytes();
    }
    None
}

/// Journals that a new copy with `label` makes wrong because it overwrites what they list as finished. Removes them with
/// a warning, and returns those of the same copy, which its end makes obsolete.
pub(crate) fn overwritten(job: &Job<'_>, state: &Path, label: &Label, own: &Path) -> Vec<PathBuf> {
    let mut same = Vec::new();
    for journal in touched(state, &label.destination_was.storage, &written(label)) {
        if journal.path == own {
            continue;
        }
        if journal.label.check(label).is_ok() {
            same.push(journal.path);
        } else {
            remove(job, &journal);
        }
    }
    same
}

/// Removes, with a warning, the journals that a copy without one makes wrong: it writes `range` of `storage`.
pub(crate) fn invalidate(job: &Job<'_>, state: &Path, storage: &str, range: Range<u64>) {
    touched(state, storage, &range).iter().for_each(|journal| remove(job, journal));
}

/// The journals of copies to some byte of `range`.
fn touched(state: &Path, storage: &str, range: &Range<u64>) -> Vec<Interrupted> {
    let is_touched = |journal: &Interrupted| {
        let theirs = written(&journal.label);
        journal.label.destination_was.storage == storage
            && theirs.start < range.end
            && range.start < theirs.end
    };
    list(state).into_iter().filter(is_touched).collect()
}

fn written(label: &Label) -> Range<u64> {
    label.dst_offset..label.dst_offset.saturating_add(label.bytes)
}

fn remove(job: &Job<'_>, journal: &Interrupted) {
    if journal::remove(&journal.path) && journal.done_bytes() > 0 {
        let words = journal.words();
        job.host
            .warn(&format!("this copy overwrites what an earlier one wrote: removed its journal {words}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_rate_of_an_earlier_release_is_one_of_bytes() {
        for (earlier, now) in
            [("--rate 65536", "--rate 65536B/s"), ("--rate 9B/s 7", "--rate 9B/s 7"), ("--rate", "--rate")]
        {
            let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(with_units(words(earlier)), words(now));
        }
    }

    #[test]
    fn a_clock_that_is_set_does_not_expire_journals() {
        const DAY: Duration = Duration::from_secs(86_400);
        let written = SystemTime::now();
        for (now, is_old) in [
            (written - 365 * DAY, false),
            (written - DAY, false),
            (written, false),
            (written + DAY, false),
            (written + JOURNAL_AGE_MAX, false),
            (written + JOURNAL_AGE_MAX + DAY, true),
        ] {
            assert_eq!(age(written, now) > JOURNAL_AGE_MAX, is_old, "{now:?}");
        }
    }
}
