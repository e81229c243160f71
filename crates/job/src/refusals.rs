//! The checks of a copy before its first write, and the refusals that they cause.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use block::{Endpoint, Identity, Location, Medium, OpenOptions, Spec};
use host::Kernel;
use host::signature::{self, Ends};
use io::Io;
use mover::{Checked, Refusal};

use crate::address::creates;
use crate::{Address, Ending, Failure, Job, Pair, Request, request_alignment};

/// Opens both endpoints and makes all checks. The first refusal is the failure.
pub fn prepare(job: &Job<'_>, io: &mut Io) -> Result<Pair, Failure> {
    let mut inspection = Inspection::new(job);
    inspection.look_at_paths();
    inspection.first()?;
    let (source_medium, source) = inspection.open_source(io)?;
    inspection.look_at_new_file(source.capability().size_bytes);
    inspection.first()?;
    let (destination_medium, mut destination) = inspection.open_destination(io, &*job.destination)?;
    inspection.look_at_identity(&*source, &*destination);
    let checked = inspection.check_plan(&*source, &*destination);
    inspection.first()?;
    inspection.look_at_content(io, &mut *destination)?;
    inspection.first()?;
    Ok(Pair {
        source_was: source.inspect().fingerprint(),
        source,
        destination,
        checked: checked.expect("a plan that fails is a refusal"),
        source_consistent: inspection.source_consistent,
        media: [source_medium, destination_medium],
    })
}

/// [`prepare`] for a source that is a stream.
pub(crate) fn prepare_destination(job: &Job<'_>, io: &mut Io) -> Result<Opened, Failure> {
    let mut inspection = Inspection::new(job);
    inspection.look_at_paths();
    inspection.first()?;
    if job.request.plan.size.is_some() {
        inspection.look_at_new_file(0);
        inspection.first()?;
    }
    let (medium, mut endpoint) = inspection.open_destination(io, &*job.destination)?;
    inspection.look_at_content(io, &mut *endpoint)?;
    inspection.first()?;
    Ok((medium, endpoint))
}

/// [`prepare`] for a destination that is a stream. The `bool` is whether no writer of the source is known.
pub(crate) fn prepare_source(job: &Job<'_>, io: &mut Io) -> Result<(Opened, bool), Failure> {
    let mut inspection = Inspection::new(job);
    inspection.look_at_paths();
    inspection.first()?;
    let opened = inspection.open_source(io)?;
    Ok((opened, inspection.source_consistent))
}

pub(crate) type Opened = (Arc<dyn Medium>, Box<dyn Endpoint>);

/// The checks of a job. Refusals collect in `refusals`; [`Inspection::first`] turns the first into a failure.
pub(crate) struct Inspection<'a> {
    job: &'a Job<'a>,
    kernel: Kernel,
    pub(crate) refusals: Vec<Failure>,
    pub(crate) source_consistent: bool,
}

impl<'a> Inspection<'a> {
    pub(crate) fn new(job: &'a Job<'a>) -> Self {
        Self { job, kernel: Kernel::default(), refusals: Vec::new(), source_consistent: true }
    }

    fn refuse(&mut self, cause: impl std::fmt::Display, hint: impl Into<String>) {
        self.refusals.push(Failure::refused("copy to", self.job.destination.text(), cause).hint(hint));
    }

    /// Fails with the first refusal, if there is one.
    fn first(&mut self) -> Result<(), Failure> {
        if self.refusals.is_empty() { Ok(()) } else { Err(self.refusals.remove(0)) }
    }

    /// Makes the checks that need neither endpoint open.
    pub(crate) fn look_at_paths(&mut self) {
        let Job { host, request, source, destination } = self.job;
        if let Some(path) = destination.path()
            && !destination.creates()
        {
            match std::fs::metadata(path) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    self.refuse(
                        "it does not exist",
                        format!("to make a new file: {},create,size=SIZE", destination.text()),
                    );
                    return;
                }
                _ => {}
            }
            if !request.allow_in_use {
                for user in self.kernel.users(path) {
                    self.refuse(user, "end that use, or --allow in-use");
                }
            }
        }
        // A stream may be redirected to a file or a device, too.
        let nodes = source.node(Path::new("/dev/stdin")).zip(destination.node(Path::new("/dev/stdout")));
        if nodes.is_some_and(|(source, destination)| self.kernel.is_same(source, destination)) {
            self.refuse(format!("it is the same storage as the source {}", source.text()), "");
        }
        let is_written = |path| block::open_input(path).and_then(|file| host::lock::is_written(file.as_fd()));
        if source.path().is_some_and(|path| path.is_file() && is_written(path).unwrap_or(false)) {
            self.source_consistent = false;
            let cause = format!("another program writes to {} (QEMU, or another hikyaku)", source.text());
            if destination.is_served_here() && !request.allow_in_use {
                self.refuse(
                    format!("{cause}, and may be the server of this unit"),
                    "end that program; --allow in-use if it has other storage there",
                );
            } else {
                host.warn(&format!("{cause}: the copy may mix several moments of it"));
            }
        }
        if let Some(point) = source.path().and_then(|path| self.kernel.written_at(path)) {
            self.source_consistent = false;
            host.warn(&format!(
                "{} is mounted read-write on {}: the copy may mix several moments of it",
                source.text(),
                point.display()
            ));
        }
    }

    pub(crate) fn open_source(&mut self, io: &mut Io) -> Result<Opened, Failure> {
        let Job { host, request, source, .. } = self.job;
        let request_alignment = request_alignment(request.plan.src_offset, request.plan.chunk);
        let mut options = OpenOptions { writable: false, request_alignment, allow_in_use: false };
        let medium = match source.open(&options) {
            Err(failure) if failure.ending == Ending::Refused && request.allow_in_use => {
                options.allow_in_use = true;
                let medium = source.open(&options)?;
                self.source_consistent = false;
                host.warn(&format!("{}; the copy may mix several moments of it", failure.cause));
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

    /// Refuses a new file that would be too small, before it is created.
    pub(crate) fn look_at_new_file(&mut self, source_bytes: u64) {
        let Job { request: Request { plan, .. }, destination, .. } = self.job;
        let Ok(Some(size)) = destination.spec().size("size") else { return };
        let bytes = plan.size.unwrap_or(source_bytes.saturating_sub(plan.src_offset));
        let needed = u128::from(plan.dst_offset) + u128::from(bytes);
        if destination.creates() && u128::from(size) < needed {
            self.refuse(format!("it would have {size} bytes; {needed} are needed"), format!("size={needed}"));
        }
    }

    pub(crate) fn look_at_identity(&mut self, source: &dyn Endpoint, destination: &dyn Endpoint) {
        let same = source.inspect().identity() != Identity::Unique
            && source.inspect().identity() == destination.inspect().identity();
        // Paths of this machine were compared before, together with the devices beneath them.
        if same && !self.refusals.iter().any(|refusal| refusal.cause.contains("same storage")) {
            self.refuse(format!("it is the same storage as the source {}", self.job.source.text()), "");
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
                self.refusals.push(refused(&refusal, from.text(), to.text()));
                None
            }
        }
    }

    pub(crate) fn look_at_content(
        &mut self,
        io: &mut Io,
        destination: &mut dyn Endpoint,
    ) -> Result<(), Failure> {
        // Content of the destination of a resumed copy comes from that copy.
        if self.job.request.force || self.job.request.resume.is_some() {
            return Ok(());
        }
        let found = probe(io, destination)
            .map_err(|error| Failure::io("look at what is on", self.job.destination.text(), &error))?;
        if !found.is_empty() {
            self.refuse(format!("it holds: {}", found.join(", ")), "--force if that may be overwritten");
        }
        Ok(())
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
    let head_bytes = size_bytes.min(signature::HEAD_BYTES as u64);
    // Reads the last bytes from a page boundary, as devices and LUNs require aligned requests.
    let tail_start = size_bytes.saturating_sub(signature::TAIL_BYTES as u64) & !4095;
    let head = crate::read(io, endpoint, 0, head_bytes as usize)?;
    let tail = crate::read(io, endpoint, tail_start, (size_bytes - tail_start) as usize)?;
    Ok(signature::probe(&Ends { head: &head, tail: &tail, size_bytes }))
}

/// The failure for a plan that the engine refuses. `source` and `destination` are texts of the endpoints.
pub(crate) fn refused(refusal: &Refusal, source: &str, destination: &str) -> Failure {
    let to = |ending: Ending| Failure::new(ending, "copy to", destination, refusal);
    match refusal {
        Refusal::Same | Refusal::ReadOnly => to(Ending::Refused),
        Refusal::DestinationTooSmall { .. } => {
            to(Ending::Refused).hint("a larger destination, or --size to copy less")
        }
        Refusal::BlockSize { .. } => to(Ending::Refused)
            .hint("file systems and partition tables depend on the block size; --allow sector-size if that is meant"),
        Refusal::SourceTooSmall { .. } => {
            Failure::new(Ending::Usage, "copy from", source, refusal).hint("--src-offset and --size")
        }
        Refusal::NotReady(_) => to(Ending::Failed),
        _ => to(Ending::Usage),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Local, Quiet};

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
                prepare(job, &mut crate::event_loop().unwrap()).map(drop).map_err(|failure| failure.cause)
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
                let mut inspection = Inspection::new(job);
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
