//! What makes a copy resumable: its journal in the state directory, and that nobody else writes to its destination.
//!
//! The journal itself is `mover::FileJournal`; docs/internals/mover.md says what it is worth.

use std::fs::File;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use block::{Endpoint, Identity};
use mover::{FileJournal, Label, Map, Mapfile, Mismatch, Status, read_mapfile};
use sha2::{Digest, Sha256};

use super::offload::Offloading;
use super::since::Since;
use super::snapshot::Snapshotting;
use super::{Args, Pair, Sparse};
use crate::context::Context;
use crate::endpoint::Named;
use crate::error::{Exit, Failure};
use crate::secret::without_unknown;
use crate::state::StateDir;
use crate::sys::{self, Hold};
use crate::units;

/// Copies of more bytes keep a journal unasked.
const JOURNAL_BYTES_MIN: u64 = 1 << 30;
/// How long a lock may still be a dead process's, and how often that is looked at.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);
const LOCK_PAUSE: Duration = Duration::from_millis(10);
/// Names the milliseconds between two claims, for tests.
const CLAIM_VARIABLE: &str = "HIKYAKU_CLAIM_MS";

/// What a copy keeps while it runs.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// Where it follows the copy; `None` for a short one.
    pub(super) journal: Option<FileJournal>,
    /// What an earlier copy has claimed.
    pub(super) map: Option<Map>,
    /// What to say after `--resume`.
    name: String,
    _claim: Option<File>,
}

/// An earlier copy's journal, as `--resume` names it.
pub(super) struct Earlier {
    path: PathBuf,
    mapfile: Mapfile,
}

/// Reads the journal that `--resume` names, before anything is opened.
pub(super) fn earlier(args: &Args) -> Result<Option<Earlier>, Failure> {
    let Some(name) = &args.resume else { return Ok(None) };
    let named = PathBuf::from(name);
    let path = if name.contains('/') || named.exists() {
        named
    } else {
        StateDir::locate()?.copies()?.join(format!("{name}.map"))
    };
    let object = path.display().to_string();
    let bytes = read_mapfile(&path).map_err(|error| {
        let failure = Failure::failed("resume from", object.clone(), &error);
        match error.kind() {
            ErrorKind::NotFound => failure
                .hint("the journal of a copy is removed when it has finished; `--resume` takes its name or its file"),
            _ => failure,
        }
    })?;
    let mapfile =
        Mapfile::parse(&bytes).map_err(|error| Failure::new(Exit::Refused, "resume from", object, error))?;
    Ok(Some(Earlier { path, mapfile }))
}

/// Claims the destination, checks an earlier journal against the two ends, and begins this copy's.
pub(super) fn keep(
    context: &Context,
    args: &Args,
    pair: &Pair,
    [source, destination]: [&Named; 2],
    earlier: Option<Earlier>,
) -> Result<Kept, Failure> {
    let keeps = earlier.is_some() || pair.checked.bytes > JOURNAL_BYTES_MIN;
    if !keeps {
        return Ok(Kept { _claim: claim_short(args, &*pair.destination, destination)?, ..Kept::default() });
    }
    let state = StateDir::locate()?;
    let claim = claim_or_refuse(args, &state, &pair.destination.identity(), destination)?;
    let label = label(args, pair, source, destination);
    let (path, map) = match earlier {
        Some(Earlier { path, mapfile }) => {
            check(context, args, &path, &mapfile.label, &label)?;
            (path, mapfile.map)
        }
        None => {
            let path = state.copies()?.join(format!("{}.map", label.id()));
            if path.exists() {
                context.remark("an earlier copy of the same was not finished; this one begins anew");
            }
            (path, Map::new(label.bytes))
        }
    };
    let name = args.resume.clone().unwrap_or_else(|| label.id());
    if args.resume.is_some() {
        let finished = units::bytes(map.bytes(Status::Finished));
        context.remark(&format!("{finished} of {} were copied before", units::bytes(label.bytes)));
    }
    let journal = FileJournal::begin(&path, label, &map).map_err(|error| {
        Failure::failed("keep the journal", path.display().to_string(), error)
            .hint("set XDG_STATE_HOME to a directory that can be written and survives restarts")
    })?;
    let often = std::env::var(CLAIM_VARIABLE).ok().and_then(|value| value.parse().ok());
    let journal = match often {
        Some(often) => journal.claiming_every(Duration::from_millis(often)),
        None => journal,
    };
    Ok(Kept { journal: Some(journal), map: Some(map), name, _claim: claim })
}

/// Claims the destination of a copy without a journal, where it can be written from elsewhere too. Such a copy leaves nothing
/// in the state directory, and may go without one.
pub(super) fn claim_short(
    args: &Args,
    endpoint: &dyn Endpoint,
    destination: &Named,
) -> Result<Option<File>, Failure> {
    let identity = endpoint.identity();
    let remote = matches!(&identity, Identity::Remote(name) if !name.starts_with("mem:"));
    match StateDir::locate() {
        Ok(state) if remote => match claim_or_refuse(args, &state, &identity, destination) {
            Err(failure) if failure.exit != Exit::Refused => Ok(None),
            claimed => claimed,
        },
        _ => Ok(None),
    }
}

fn claim_or_refuse(
    args: &Args,
    state: &StateDir,
    identity: &Identity,
    destination: &Named,
) -> Result<Option<File>, Failure> {
    match claim(state, identity)? {
        Some(claim) => Ok(Some(claim)),
        None if *identity == Identity::Unique || args.allow.contains(&super::Allow::InUse) => Ok(None),
        None => Err(Failure::refused("copy to", destination.text.clone(), "another copy is writing to it")
            .hint("wait for that copy, or end it; --allow in-use if both write to different parts")),
    }
}

pub(super) fn label(args: &Args, pair: &Pair, source: &Named, destination: &Named) -> Label {
    Label {
        source: source.text.clone(),
        destination: destination.text.clone(),
        src_offset: args.range.src_offset,
        dst_offset: args.range.dst_offset,
        bytes: pair.checked.bytes,
        chunk: pair.checked.chunk,
        source_was: pair.source_was.clone(),
        destination_was: pair.destination.fingerprint(),
    }
}

/// A journal of something else is refused; --force lets it be taken for this copy's all the same, if the range fits.
fn check(
    context: &Context,
    args: &Args,
    path: &std::path::Path,
    theirs: &Label,
    ours: &Label,
) -> Result<(), Failure> {
    let Err(mismatch) = theirs.check(ours) else { return Ok(()) };
    // After a start of the machine nobody can say whether the source was written; but reading both ends can.
    let unknown = ours.source_was.counts_anew_since(&theirs.source_was);
    let hint = match mismatch {
        Mismatch::Range { .. } => "",
        _ if args.force => {
            context.warn(&format!("resuming although {mismatch}"));
            return Ok(());
        }
        Mismatch::Storage { .. } => {
            "a device may get other numbers when the machine starts; --force if it is the same, with the same contents"
        }
        Mismatch::SourceChanged { .. } if unknown && args.verify => {
            context.remark("whether the source was written since is not known: --verify will tell");
            return Ok(());
        }
        Mismatch::SourceChanged { .. } if unknown => {
            "--verify compares what was copied before, too; --force if nobody has written to it since"
        }
        Mismatch::SourceChanged { .. } => {
            "copy anew without --resume; --force if nobody has written to it since"
        }
    };
    Err(Failure::refused("resume from", path.display().to_string(), mismatch).hint(hint))
}

/// Locks a destination against other copies of this user, until dropped; `None` if one has it.
fn claim(state: &StateDir, identity: &Identity) -> Result<Option<File>, Failure> {
    let file = state.copies_lock()?;
    let hash = Sha256::digest(format!("{identity:?}"));
    // Offsets are signed; so many bits never meet by chance.
    let byte = u64::from_le_bytes(*hash.first_chunk().expect("it is longer")) >> 2;
    let until = Instant::now() + LOCK_PATIENCE;
    loop {
        match sys::lock_byte(&file, byte, Hold::Exclusive) {
            Ok(true) => return Ok(Some(file)),
            Ok(false) if Instant::now() >= until => return Ok(None),
            Ok(false) => std::thread::sleep(LOCK_PAUSE),
            Err(error) => return Err(state.failed("lock the destination in", error)),
        }
    }
}

impl Kept {
    /// The copy is over in good order. Its journal stays if something could not be read.
    pub(super) fn finish(self, whole: bool) -> Result<(), Failure> {
        let Some(journal) = self.journal else { return Ok(()) };
        if whole {
            return journal
                .remove()
                .map_err(|error| Failure::failed("remove the journal of", "the finished copy", error));
        }
        journal.end().map_err(|error| Failure::failed("keep the journal", "", error))
    }

    /// The copy has failed: ends it, and says which command takes it up again.
    pub(super) fn failed(self, args: &Args, mut failure: Failure) -> Result<Failure, Failure> {
        // What was found to be wrong does not become right by being resumed.
        if failure.exit == Exit::Mismatch {
            self.finish(true)?;
            return Ok(failure);
        }
        let command = self.command(args);
        if self.journal.is_some_and(|journal| journal.end().is_ok()) {
            let interrupted = matches!(failure.exit, Exit::Interrupted(_));
            let earlier = Some(failure.hint).filter(|hint| !hint.is_empty() && !interrupted);
            failure.hint = earlier.map_or_else(String::new, |hint| hint + "; then: ") + &command;
        }
        Ok(failure)
    }

    /// The command that takes the copy up again.
    pub(super) fn command(&self, args: &Args) -> String {
        let mut words = vec!["hikyaku".to_owned(), "copy".to_owned()];
        words.extend([&args.source, &args.destination].map(|end| quoted(&without_unknown(end))));
        let mut option = |name: &str, value: String| words.push(format!("{name} {value}"));
        let range = &args.range;
        for (name, value) in [("--src-offset", range.src_offset), ("--dst-offset", range.dst_offset)] {
            if value > 0 {
                option(name, value.to_string());
            }
        }
        if let Some(size) = range.size {
            option("--size", size.to_string());
        }
        if let Some(rate) = args.rate {
            option("--rate", rate.to_string());
        }
        if args.sparse == Sparse::Off {
            option("--sparse", "off".to_owned());
        }
        match args.offload {
            Offloading::Auto => {}
            Offloading::Off => option("--offload", "off".to_owned()),
            Offloading::Require => option("--offload", "require".to_owned()),
        }
        if args.verify {
            words.push("--verify".to_owned());
        }
        if let Some(path) = &args.manifest {
            words.push(format!("--manifest {}", quoted(&path.display().to_string())));
        }
        if args.snapshot == Snapshotting::Auto {
            words.push("--snapshot auto".to_owned());
        }
        if let Some(choice) = args.remote_copy.word() {
            words.push(format!("--remote-copy {choice}"));
        }
        for (name, command) in [("--pre", &args.hooks.pre), ("--post", &args.hooks.post)] {
            if let Some(command) = command {
                words.push(format!("{name} {}", quoted(command)));
            }
        }
        // What the others found stands in the journal.
        if args.since == Some(Since::Hash) {
            words.push("--since hash".to_owned());
        }
        words.push(format!("--resume {}", quoted(&self.name)));
        words.join(" ")
    }
}

/// A word as a shell takes it.
pub(super) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=@%+[]".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(quoted("iscsi://h:3260/iqn.x:y/0"), "iscsi://h:3260/iqn.x:y/0");
        assert_eq!(quoted("my disk's.img"), r"'my disk'\''s.img'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn a_destination_is_claimed_once() {
        let home = tempfile::tempdir().unwrap();
        let state = StateDir::at(home.path());
        let lun = |name: &str| Identity::Remote(name.to_owned());
        let one = claim(&state, &lun("naa.1")).unwrap();
        assert!(one.is_some() && claim(&state, &lun("naa.1")).unwrap().is_none());
        assert!(claim(&state, &lun("naa.2")).unwrap().is_some());
        drop(one);
        assert!(claim(&state, &lun("naa.1")).unwrap().is_some());
    }

    #[test]
    fn after_a_start_of_the_machine_reading_both_ends_is_asked_for() {
        use clap::Parser;
        let context = Context { quiet: true, ..Context::default() };
        let resume = |then: &str, now: &str, more: &[&str]| {
            let words = ["hikyaku", "copy", "/dev/a", "b.img", "--resume", "x"].iter().chain(more);
            let crate::args::Command::Copy(args) = crate::args::Cli::parse_from(words).command else {
                panic!()
            };
            let label = |contents: &str| {
                let storage = "disk naa.1, 4096 bytes".to_owned();
                let was = block::Fingerprint { storage, contents: contents.to_owned() };
                let (source, destination) = ("/dev/a".to_owned(), "b.img".to_owned());
                let (src_offset, dst_offset, bytes, chunk) = (0, 0, 4096, 4096);
                let (source_was, destination_was) = (was.clone(), was);
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
            check(&context, &args, std::path::Path::new("x.map"), &label(then), &label(now))
        };
        let then = "boot 1, sequence 9, 24 sectors written, 0 discarded";
        let started = "boot 2, sequence 9, 24 sectors written, 0 discarded";
        let written = "boot 1, sequence 9, 25 sectors written, 0 discarded";
        resume(then, then, &[]).unwrap();
        assert!(resume(then, started, &[]).unwrap_err().hint.starts_with("--verify"));
        resume(then, started, &["--verify"]).unwrap();
        assert_eq!(resume(then, written, &["--verify"]).unwrap_err().exit, Exit::Refused);
    }
}
