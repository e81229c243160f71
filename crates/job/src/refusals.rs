//! The checks of a copy before its first write, and the refusals that they cause.

use std::path::Path;
use std::sync::Arc;

use block::{Endpoint, Fingerprint, Identity, Location, Medium, NewFile, OpenOptions, Spec};
use host::Kernel;
use host::signature::{self, Parts};
use io::Io;
use mover::{Checked, Refusal};

use crate::address::creates;
use crate::journal::Earlier;
use crate::space::{self, Standing};
use crate::standard::{self, Output, STDIN, STDOUT};
use crate::{
    Address, Ending, Failure, Job, Local, Pair, Request, Resume, journal, journals, request_alignment, shell,
    units,
};

const ELSEWHERE: &str = "a destination on other storage, such as a new file: copy.img";

/// What is attempted where a source is missing.
pub(crate) const MISSING: &str = "copy from";

/// Opens both endpoints and makes all checks. The first refusal is the failure. `source_was`: the source before its
/// snapshot, if the copy is from one; `named`: the journal to resume, if the request names it.
pub fn prepare(
    job: &Job<'_>,
    io: &mut Io,
    source_was: Option<&Fingerprint>,
    named: Option<Earlier>,
) -> Result<Pair, Failure> {
    let mut inspection = Inspection::new(job, named);
    inspection.look_at_paths();
    inspection.first()?;
    let (source_medium, mut source) = inspection.open_source(io)?;
    inspection.look_at_new_file(&mut *source);
    inspection.first()?;
    let source_bytes = source.capability().size_bytes;
    inspection.look_at_growing(io, source_bytes)?;
    inspection.first()?;
    let created = inspection.create(source_bytes)?;
    let grown = space::grown(job, source_bytes);
    let at = grown.as_ref().map_or(&*job.destination, |grown| grown as &dyn Address);
    let (destination_medium, mut destination) = inspection.open_destination(io, at)?;
    inspection.look_at_identity(&*source, &*destination);
    let checked = inspection.check_plan(&*source, &*destination);
    inspection.first()?;
    let checked = checked.expect("a plan that fails is a refusal");
    let source_was = source_was.cloned().unwrap_or_else(|| source.inspect().fingerprint());
    inspection.look_for_earlier(io, &source_was, &checked, [&mut *source, &mut *destination])?;
    inspection.first()?;
    inspection.look_at_content(io, &mut *destination)?;
    inspection.first()?;
    Ok(Pair {
        source_was,
        source,
        destination,
        checked,
        source_consistent: inspection.source_consistent,
        earlier: inspection.earlier,
        created,
        media: [source_medium, destination_medium],
    })
}

/// [`prepare`] for a source that is a stream. The file is the one that was made for it; the `bool` is whether no writer
/// of the source is known.
pub(crate) fn prepare_destination(
    job: &Job<'_>,
    io: &mut Io,
) -> Result<(Opened, Option<NewFile>, bool), Failure> {
    let mut inspection = Inspection::new(job, None);
    inspection.look_at_paths();
    inspection.look_at_stream();
    inspection.look_at_growing(io, 0)?;
    inspection.first()?;
    let created = inspection.create(0)?;
    let (medium, mut endpoint) = inspection.open_destination(io, &*job.destination)?;
    inspection.look_at_content(io, &mut *endpoint)?;
    inspection.first()?;
    Ok(((medium, endpoint), created, inspection.source_consistent))
}

/// [`prepare`] for a destination that is a stream. The `bool` is whether no writer of the source is known.
pub(crate) fn prepare_source(job: &Job<'_>, io: &mut Io) -> Result<(Opened, Option<Output>, bool), Failure> {
    let mut inspection = Inspection::new(job, None);
    inspection.look_at_paths();
    inspection.first()?;
    let opened = inspection.open_source(io)?;
    let output = inspection.look_at_output(io)?;
    inspection.first()?;
    Ok((opened, output, inspection.source_consistent))
}

pub(crate) type Opened = (Arc<dyn Medium>, Box<dyn Endpoint>);

/// The checks of a job. Refusals collect in `refusals`; [`Inspection::first`] turns the first into a failure.
pub(crate) struct Inspection<'a> {
    pub(crate) job: &'a Job<'a>,
    kernel: Kernel,
    pub(crate) refusals: Vec<Failure>,
    pub(crate) source_consistent: bool,
    /// The destination is a file that is to be made.
    pub(crate) is_absent: bool,
    /// The journal of the interrupted copy that this one resumes.
    pub(crate) earlier: Option<Earlier>,
    /// Warnings are left out: the checks are made once more.
    is_rehearsal: bool,
}

impl<'a> Inspection<'a> {
    pub(crate) fn new(job: &'a Job<'a>, earlier: Option<Earlier>) -> Self {
        Self {
            job,
            kernel: Kernel::default(),
            refusals: Vec::new(),
            source_consistent: true,
            is_absent: false,
            earlier,
            is_rehearsal: false,
        }
    }

    pub(crate) fn rehearsal(job: &'a Job<'a>, earlier: Option<Earlier>) -> Self {
        Self { is_rehearsal: true, ..Self::new(job, earlier) }
    }

    fn warn(&self, text: &str) {
        if !self.is_rehearsal {
            self.job.host.warn(text);
        }
    }

    fn refuse(&mut self, cause: impl std::fmt::Display, hint: impl Into<String>) {
        self.refusals.push(Failure::refused("copy to", self.job.destination.text(), cause).hint(hint));
    }

    /// Fails with the first refusal, if there is one.
    pub(crate) fn first(&mut self) -> Result<(), Failure> {
        if self.refusals.is_empty() { Ok(()) } else { Err(self.refusals.remove(0)) }
    }

    /// Makes the checks that need neither endpoint open.
    pub(crate) fn look_at_paths(&mut self) {
        let Job { request, source, destination, .. } = self.job;
        if source.path().is_some_and(is_missing) && !source.creates() {
            let failure = Failure::failed(MISSING, source.text(), "it does not exist");
            self.refusals.push(failure.hint(source.if_missing()));
        }
        match space::standing(&**destination, self.job.creates) {
            Err(failure) => {
                let belongs = self.earlier.as_ref().map(Earlier::ends);
                self.refusals.push(match belongs {
                    Some(belongs) => failure.hint(belongs),
                    None => failure,
                });
                return;
            }
            Ok(Standing::Absent) => match &self.earlier {
                Some(earlier) => {
                    let hint = earlier.ends();
                    return self.refuse("it does not exist", hint);
                }
                None if destination.spec().get("volume").is_some() => {
                    let path = destination.path().map(|path| path.display().to_string()).unwrap_or_default();
                    let made = shell::quoted(&format!("{path},create"));
                    return self.refuse(
                        "it does not exist, and a volume is made before it is copied to",
                        format!("hikyaku volume format {made} --type luks2 --data-size SIZE"),
                    );
                }
                None => self.is_absent = true,
            },
            // The file of an interrupted copy was made by that copy.
            Ok(Standing::There)
                if self.job.creates && self.earlier.is_none() && !journals::is_any_between(self.job) =>
            {
                self.refuse_existing();
            }
            Ok(Standing::There) => {}
        }
        let written = destination.place(Path::new(STDOUT));
        if let Some(path) = written.filter(|_| !self.is_absent && !request.allow_in_use) {
            for user in self.kernel.users(path) {
                self.refuse(user, "end that use, or --allow in-use");
            }
        }
        let nodes = source.node(Path::new(STDIN)).zip(destination.node(Path::new(STDOUT)));
        if nodes.is_some_and(|(source, destination)| self.kernel.is_same(source, destination)) {
            self.refuse(format!("it is the same storage as the source {}", source.text()), ELSEWHERE);
        }
        self.look_at_writers();
    }

    /// Looks for other programs that write to the source while it is read.
    fn look_at_writers(&mut self) {
        let Job { request, source, destination, .. } = self.job;
        let Some(path) = source.place(Path::new(STDIN)) else { return };
        let name = if source.is_stream() { "standard input" } else { source.text() };
        if path.is_file() && standard::is_written(&**source, path) {
            self.source_consistent = false;
            let cause = format!("another program writes to {name} (QEMU, or another hikyaku)");
            if destination.is_served_here() && !request.allow_in_use {
                self.refuse(
                    format!("{cause}, and may be the server of this unit"),
                    "end that program; --allow in-use if it has other storage there",
                );
            } else {
                self.warn(&format!("{cause}: the copy may mix several moments of it"));
            }
        }
        if let Some(point) = self.kernel.written_at(path) {
            self.source_consistent = false;
            self.warn(&format!(
                "{name} is mounted read-write on {}: the copy may mix several moments of it",
                point.display()
            ));
        }
    }

    pub(crate) fn open_source(&mut self, io: &mut Io) -> Result<Opened, Failure> {
        let Job { request, source, .. } = self.job;
        let request_alignment = request_alignment(request.plan.src_offset, request.plan.chunk);
        let mut options = OpenOptions { writable: false, request_alignment, allow_in_use: false };
        let medium = match source.open(&options) {
            Err(failure) if failure.ending == Ending::Refused && request.allow_in_use => {
                options.allow_in_use = true;
                let medium = source.open(&options)?;
                self.source_consistent = false;
                self.warn(&format!("{}; the copy may mix several moments of it", failure.cause));
                medium
            }
            opened => opened?,
        };
        let endpoint = crate::attach(io, &medium).map_err(|error| source.failed("use", &error))?;
        Ok((medium, endpoint))
    }

    /// Opens for writing the address `at`: the destination, or its stand-in in a dry run.
    pub(crate) fn open_destination(&self, io: &mut Io, at: &dyn Address) -> Result<Opened, Failure> {
        let Request { plan, allow_in_use, .. } = self.job.request;
        let request_alignment = request_alignment(plan.dst_offset, plan.chunk);
        let options = OpenOptions { writable: true, request_alignment, allow_in_use: *allow_in_use };
        let medium = at.open(&options)?;
        let endpoint = crate::attach(io, &medium).map_err(|error| at.failed("use", &error))?;
        Ok((medium, endpoint))
    }

    fn refuse_existing(&mut self) {
        self.refuse("it exists", "leave out create to use it");
    }

    /// Refuses a file that would be too small or has no space, before it is created or written.
    pub(crate) fn look_at_new_file(&mut self, source: &mut dyn Endpoint) {
        let source_bytes = source.capability().size_bytes;
        if self.is_absent {
            let needed = space::needed(self.job, source_bytes);
            match space::size_of_new(self.job, source_bytes) {
                Err(failure) => self.refusals.push(failure),
                Ok(size) if u128::from(size) < needed => {
                    self.refuse(
                        format!("it would have {size} bytes; {needed} are needed"),
                        format!("size={needed}"),
                    );
                }
                Ok(size) if u128::from(size) > needed && !self.is_rehearsal => {
                    let more = u64::try_from(u128::from(size) - needed).unwrap_or(u64::MAX);
                    self.job.host.remark(&format!(
                        "{} will be larger than the source by {}: {size} bytes, {needed} are copied",
                        self.job.destination.text(),
                        units::bytes(more)
                    ));
                }
                Ok(_) => {}
            }
        }
        match space::shortage(self.job, source) {
            Some(Ok(refusal)) => self.refusals.push(refusal),
            Some(Err(warning)) => self.warn(&warning),
            None => {}
        }
    }

    /// Refuses to make a file for a stream of unknown length.
    pub(crate) fn look_at_stream(&mut self) {
        let Job { request, source, destination, .. } = self.job;
        if !self.is_absent || !source.is_stream() {
            return;
        }
        let size = destination.spec().size("size");
        match (size, request.plan.size) {
            (Ok(None), None) => {
                let hint = format!("{},create,size=SIZE", destination.text());
                self.refuse("it does not exist, and a stream does not tell its length", hint);
            }
            (Ok(Some(size)), Some(bytes)) => {
                let needed = u128::from(request.plan.dst_offset) + u128::from(bytes);
                if u128::from(size) < needed {
                    self.refuse(
                        format!("it would have {size} bytes; {needed} are needed"),
                        format!("size={needed}"),
                    );
                }
            }
            _ => {}
        }
    }

    /// Makes the file of the destination, if it is absent.
    fn create(&self, source_bytes: u64) -> Result<Option<NewFile>, Failure> {
        if !self.is_absent {
            return Ok(None);
        }
        let size = space::size_of_new(self.job, source_bytes)?;
        space::create(&*self.job.destination, size).map(Some)
    }

    /// Looks for an interrupted copy of the same, unless the request names one or begins anew.
    pub(crate) fn look_for_earlier(
        &mut self,
        io: &mut Io,
        source_was: &Fingerprint,
        checked: &Checked,
        [source, destination]: [&mut dyn Endpoint; 2],
    ) -> Result<(), Failure> {
        let job = self.job;
        if job.request.resume == Resume::Found && !self.is_absent {
            let label = journal::label_of(job, source_was.clone(), destination, checked);
            match journals::find(job, io, &label, [source, destination]) {
                Ok(earlier) => self.earlier = earlier,
                Err(refusal) => self.refusals.push(refusal),
            }
        }
        if job.creates && !self.is_absent && self.earlier.is_none() && self.refusals.is_empty() {
            self.refuse_existing();
        }
        Ok(())
    }

    /// Opens standard output once more, if it is a file or a device: refused where the same destination is by its name.
    pub(crate) fn look_at_output(&mut self, io: &mut Io) -> Result<Option<Output>, Failure> {
        let Job { request, destination, .. } = self.job;
        if !destination.is_stream() || destination.place(Path::new(STDOUT)).is_none() {
            return Ok(None);
        }
        let mut output = Output::open(io, request)?;
        if output.overwrites && !request.force {
            match &mut output.opened {
                Ok((_, endpoint)) => self.look_at_content(io, &mut **endpoint)?,
                Err(cause) => self.refuse(
                    format!("what it holds cannot be read: {cause}"),
                    "--force if that may be overwritten",
                ),
            }
        }
        Ok(Some(output))
    }

    pub(crate) fn look_at_identity(&mut self, source: &dyn Endpoint, destination: &dyn Endpoint) {
        let same = source.inspect().identity() != Identity::Unique
            && source.inspect().identity() == destination.inspect().identity();
        // Paths of this machine were compared before, together with the devices beneath them.
        if same && !self.refusals.iter().any(|refusal| refusal.cause.contains("same storage")) {
            self.refuse(
                format!("it is the same storage as the source {}", self.job.source.text()),
                ELSEWHERE,
            );
        }
    }

    pub(crate) fn check_plan(
        &mut self,
        source: &dyn Endpoint,
        destination: &dyn Endpoint,
    ) -> Option<Checked> {
        let Job { request, source: from, destination: to, .. } = self.job;
        match mover::plan_check(source.capability(), destination.capability(), &request.plan()) {
            Ok(checked) => Some(checked),
            Err(refusal) => {
                let failure = refused(&refusal, from.text(), to.text());
                self.refusals.push(match refusal {
                    Refusal::DestinationTooSmall { .. } if to.spec().get("volume").is_some() => {
                        failure.hint("--size to copy less; or format larger storage, and copy to that volume")
                    }
                    Refusal::DestinationTooSmall { .. } if to.path().is_some_and(Path::is_file) => {
                        let hint = larger(to.words());
                        failure.hint(hint)
                    }
                    _ => failure,
                });
                None
            }
        }
    }

    /// Looks at what a file holds that the copy enlarges, before it does: marks lie at the end, too, and a refused copy
    /// leaves the file as it is.
    pub(crate) fn look_at_growing(&mut self, io: &mut Io, source_bytes: u64) -> Result<(), Failure> {
        let destination = &self.job.destination;
        let is_empty = || {
            destination.path().is_some_and(|path| std::fs::metadata(path).is_ok_and(|file| file.len() == 0))
        };
        if self.is_absent || space::larger(self.job, source_bytes)?.is_none() || is_empty() {
            return Ok(());
        }
        let mut spec = destination.spec().clone();
        spec.options.retain(|(name, _)| !["grow", "size"].contains(&name.as_str()));
        let (_medium, mut file) = self.open_destination(io, &Local::named(destination.text(), spec))?;
        let looked = self.look_at_content(io, &mut *file);
        crate::close(io, [file]);
        looked
    }

    pub(crate) fn look_at_content(
        &mut self,
        io: &mut Io,
        destination: &mut dyn Endpoint,
    ) -> Result<(), Failure> {
        // Content of the destination of a resumed copy comes from that copy.
        if self.job.request.force || self.is_absent || self.earlier.is_some() {
            return Ok(());
        }
        let found = probe(io, destination)
            .map_err(|error| Failure::io("look at what is on", self.job.destination.text(), &error))?;
        if !found.is_empty() {
            let hint = overwriting(&found, self.job.destination.text());
            self.refuse(format!("it holds: {}", found.join(", ")), hint);
        }
        self.look_at_storage(io)
    }

    /// Looks at what the storage of a volume holds whose header is in a file: the file says nothing of the storage.
    fn look_at_storage(&mut self, io: &mut Io) -> Result<(), Failure> {
        let destination = &self.job.destination;
        let is_detached = ["volume", "header"].iter().all(|name| destination.spec().get(name).is_some());
        if !is_detached {
            return Ok(());
        }
        let mut spec = destination.spec().clone();
        spec.options.retain(|(name, _)| !OF_VOLUMES.contains(&name.as_str()));
        let storage = Local::named(destination.text(), spec);
        let options = OpenOptions { writable: false, request_alignment: 4096, allow_in_use: true };
        let medium = storage.open(&options)?;
        let mut endpoint = crate::attach(io, &medium).map_err(|error| storage.failed("use", &error))?;
        let found = probe(io, &mut *endpoint);
        crate::close(io, [endpoint]);
        let found = found.map_err(|error| Failure::io("look at what is on", destination.text(), &error))?;
        if !found.is_empty() {
            let cause = format!("its storage, which header= says nothing of, holds: {}", found.join(", "));
            self.refuse(cause, "--force if that may be overwritten");
        }
        Ok(())
    }
}

/// Options that make a volume of storage.
const OF_VOLUMES: [&str; 5] = ["volume", "header", "password-file", "key-file", "freshness"];

/// How to go on where the destination `text` has known content.
fn overwriting(found: &[&str], text: &str) -> String {
    if found.contains(&"LUKS2 volume") {
        format!(
            "{text},volume=luks2 (or volume=auth) to copy into the volume; --force destroys its header, and with it all that it holds"
        )
    } else {
        "--force if that may be overwritten".to_owned()
    }
}

/// For commands without an override: fails if the endpoint `text` has known content that would be overwritten.
pub fn spoil(io: &mut Io, text: &str, endpoint: &mut dyn Endpoint) -> Result<(), Failure> {
    let found = probe(io, endpoint).map_err(|error| Failure::io("look at what is on", text, &error))?;
    if !found.is_empty() {
        let cause = format!("it holds: {}", found.join(", "));
        return Err(Failure::refused("overwrite", text, cause)
            .hint("wipe it first, if that may be lost: wipefs -a, or copy null: over it with --force"));
    }
    Ok(())
}

/// For commands without an override: fails if a file or device is in use. Does not open it.
pub fn spoil_path(text: &str, spec: &Spec) -> Result<(), Failure> {
    let Location::File(path) = &spec.location else { return Ok(()) };
    match Kernel::default().users(path).into_iter().next() {
        Some(user) if !creates(spec) => Err(Failure::refused("overwrite", text, user).hint("end that use")),
        _ => Ok(()),
    }
}

/// Names of known content of an endpoint: file systems, partition tables, volumes.
pub fn probe(io: &mut Io, endpoint: &mut dyn Endpoint) -> Result<Vec<&'static str>, block::IoError> {
    let size_bytes = endpoint.capability().size_bytes;
    let places = signature::places(size_bytes, endpoint.capability().granularity);
    let read = crate::read_parts(io, endpoint, &places)?;
    let parts: Vec<_> = places.iter().zip(&read).map(|((start, _), bytes)| (*start, &bytes[..])).collect();
    Ok(signature::probe(&Parts { parts: &parts, size_bytes }))
}

/// The hint for a file that is too small. `words`: the file and its options.
fn larger(words: &str) -> String {
    let is_kept = |part: &&str| !part.starts_with("size=") && !["grow", "create"].contains(part);
    // A doubled comma belongs to the path; NUL occurs in no argument of a process.
    let parts = words.replace(",,", "\0");
    let kept: Vec<&str> = parts.split(',').filter(is_kept).collect();
    let grows = kept.join(",").replace('\0', ",,") + ",grow";
    format!("{}, which makes the file larger; or --size to copy less", shell::quoted(&grows))
}

fn is_missing(path: &Path) -> bool {
    std::fs::metadata(path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

/// The failure for a plan that the engine refuses. `source` and `destination` are texts of the endpoints.
pub(crate) fn refused(refusal: &Refusal, source: &str, destination: &str) -> Failure {
    let to = |ending: Ending| Failure::new(ending, "copy to", destination, refusal);
    match refusal {
        Refusal::Same => to(Ending::Refused).hint(ELSEWHERE),
        Refusal::ReadOnly => to(Ending::Refused).hint(match destination.split(',').skip(1).any(|option| option == "ro") {
            true => "leave out ro after the destination",
            false => "let this host write to it: for a target of ours, a rule without mode = \"ro\" and a LUN without ro",
        }),
        Refusal::DestinationTooSmall { .. } => {
            to(Ending::Refused).hint("a larger destination, or --size to copy less")
        }
        Refusal::BlockSize { .. } => to(Ending::Refused)
            .hint("file systems and partition tables depend on the block size; --allow sector-size if that is meant"),
        Refusal::SourceTooSmall { .. } => {
            let hint = match refusal {
                Refusal::SourceTooSmall { offset, size, .. } if offset < size => {
                    format!("--size {} or less; without --size all from --src-offset is copied", size - offset)
                }
                _ => "a smaller --src-offset".to_owned(),
            };
            Failure::new(Ending::Usage, "copy from", source, refusal).hint(hint)
        }
        Refusal::NotReady(_) => to(Ending::Failed),
        _ => to(Ending::Usage),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Quiet;

    /// Two files of 1 MiB, and a second name of the first.
    fn files() -> (tempfile::TempDir, [String; 3]) {
        let directory = tempfile::tempdir().unwrap();
        let paths = ["one", "other", "link"].map(|name| directory.path().join(name));
        for path in &paths[..2] {
            std::fs::write(path, vec![1; 1 << 20]).unwrap();
        }
        std::fs::hard_link(&paths[0], &paths[2]).unwrap();
        (directory, paths.map(|path| path.to_str().unwrap().to_owned()))
    }

    fn with_job<T>(source: &str, destination: &str, act: impl FnOnce(&Job<'_>) -> T) -> T {
        let (host, request) = (Quiet::default(), Request::default());
        let address = |words| Box::new(Local::parse(words).unwrap());
        act(&Job::new(&host, &request, address(source), address(destination)))
    }

    #[test]
    fn the_same_storage_under_another_name_is_refused() {
        let (_directory, [one, other, link]) = files();
        let prepared = |destination: &str| {
            with_job(&one, destination, |job| {
                prepare(job, &mut crate::event_loop().unwrap(), None, None)
                    .map(drop)
                    .map_err(|failure| failure.cause)
            })
        };
        assert_eq!(prepared(&other), Ok(()));
        for same in [&one, &link] {
            let cause = prepared(same).unwrap_err();
            assert!(cause.contains("the same storage as the source"), "{cause}");
        }
    }

    #[test]
    fn endpoints_of_the_same_storage_are_refused_whatever_their_addresses() {
        let (_directory, [one, other, link]) = files();
        let refused = |source: &str, destination: &str| {
            with_job(source, destination, |job| {
                let mut io = crate::event_loop().unwrap();
                let mut inspection = Inspection::new(job, None);
                let ends = [&job.source, &job.destination].map(|address| {
                    let options =
                        OpenOptions { writable: false, request_alignment: 4096, allow_in_use: true };
                    crate::attach(&mut io, &address.open(&options).unwrap()).unwrap()
                });
                inspection.look_at_identity(&*ends[0], &*ends[1]);
                inspection.refusals.len()
            })
        };
        assert_eq!([refused(&one, &one), refused(&one, &link), refused(&one, &other)], [1, 1, 0]);
        assert_eq!(refused("null:1M", "null:1M"), 0, "storage of which each endpoint has its own");
    }

    #[test]
    fn a_file_that_is_too_small_grows_if_its_option_says_so() {
        let (_directory, [one, other, _]) = files();
        std::fs::write(&other, "x").unwrap();
        let prepared = |destination: &str| {
            with_job(&one, destination, |job| {
                let prepared = prepare(job, &mut crate::event_loop().unwrap(), None, None);
                prepared.map(drop).map_err(|failure| failure.hint)
            })
        };
        let hint = prepared(&other).unwrap_err();
        assert!(hint.starts_with(&shell::quoted(&format!("{other},grow"))), "{hint}");
        assert_eq!(std::fs::metadata(&other).unwrap().len(), 1, "a refused copy does not grow it");
        assert_eq!(prepared(&format!("{other},grow")), Ok(()));
        assert_eq!(std::fs::metadata(&other).unwrap().len(), 1 << 20);
        assert_eq!(std::fs::read(&other).unwrap()[0], b'x');
        for (words, expected) in [
            ("a.img,size=1M,ro", "a.img,ro,grow"),
            ("a,,b.img,grow,size=1G", "a,,b.img,grow"),
            ("a b", "a b,grow"),
        ] {
            assert!(larger(words).starts_with(&shell::quoted(expected)), "{}", larger(words));
        }
    }

    #[test]
    fn what_the_former_end_of_a_file_holds_is_refused_when_it_grows() {
        let (_directory, [one, other, _]) = files();
        let mut raid = vec![0; 512 << 10];
        let at = raid.len() - 8192;
        raid[at..at + 4].copy_from_slice(&[0xfc, 0x4e, 0x2b, 0xa9]);
        std::fs::write(&other, &raid).unwrap();
        // Also when it is typed again.
        for _ in 0..2 {
            let cause = with_job(&one, &format!("{other},grow"), |job| {
                let prepared = prepare(job, &mut crate::event_loop().unwrap(), None, None);
                prepared.map(drop).unwrap_err().cause
            });
            assert_eq!(cause, "it holds: md RAID member");
            assert_eq!(std::fs::metadata(&other).unwrap().len(), raid.len() as u64);
        }
    }

    #[test]
    fn refusals_map_to_exit_codes() {
        let all = [
            (Refusal::Same, 6),
            (Refusal::ReadOnly, 6),
            (Refusal::DestinationTooSmall { offset: 0, bytes: 2, size: 1 }, 6),
            (Refusal::BlockSize { source_bytes: 512, destination_bytes: 4096 }, 6),
            (Refusal::SourceTooSmall { offset: 0, bytes: 2, size: 1 }, 2),
            (Refusal::Rate, 2),
            (Refusal::Depth { depth: 0 }, 2),
        ];
        for (refusal, code) in all {
            assert_eq!(refused(&refusal, "a", "b").ending.code(), code, "{refusal}");
        }
    }
}
