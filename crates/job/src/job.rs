//! A requested copy: the stages before its endpoints are opened and after they are closed.

use std::rc::Rc;

use crate::findings::{self, Findings};
use crate::prepared::{Paired, Prepared};
use crate::report::Record;
use crate::snapshot::{self, Snapshot};
use crate::stream::Piped;
use crate::{Address, Copied, Ending, Failure, Host, Request, journal, journals, manifest, refusals, since};

pub struct Job<'a> {
    pub host: &'a dyn Host,
    pub request: &'a Request,
    pub source: Box<dyn Address + 'a>,
    pub destination: Box<dyn Address + 'a>,
    /// The destination has the option `create`: it must not exist. Its specification no longer has the option, because
    /// the checks of this crate create the file.
    pub(crate) creates: bool,
}

impl<'a> Job<'a> {
    /// A copy from `source` to `destination`. A destination without a `format` option is opened as raw, whatever it
    /// contains; the refusals check its content before.
    pub fn new(
        host: &'a dyn Host,
        request: &'a Request,
        source: Box<dyn Address + 'a>,
        mut destination: Box<dyn Address + 'a>,
    ) -> Self {
        if destination.path().is_some() && destination.spec().get("format").is_none() {
            destination.spec_mut().options.push(("format".to_owned(), Some("raw".to_owned())));
        }
        let creates = destination.creates();
        if creates {
            destination.spec_mut().options.retain(|(name, _)| name != "create");
        }
        Self { host, request, source, destination, creates }
    }

    /// Lists what the copy would do and all refusals. Writes nothing and runs no hook.
    pub fn inspect(&mut self) -> Result<Findings, Failure> {
        self.check()?;
        let earlier = journal::earlier(self)?;
        if self.source.is_stream() || self.destination.is_stream() {
            return findings::find_for_stream(self, earlier);
        }
        findings::find(self, &mut crate::event_loop()?, earlier)
    }

    /// Copies: hooks, snapshot, [`Job::prepare`] and [`Prepared::run`]. When this returns, the snapshot is removed and
    /// `--post` has run, however the copy ended. Data for a report is added to `record`.
    pub fn copy(mut self, record: &mut Record) -> Result<Copied, Failure> {
        self.check()?;
        let Self { host, request, .. } = self;
        if request.hooks.pre.is_some() {
            // A refusal must not cost a freeze. What `--pre` changes is checked after it.
            let earlier = journal::earlier(&self)?;
            findings::rehearse(&self, earlier)?;
        }
        let frozen = request.hooks.freeze(host, self.source.text(), self.destination.text())?;
        if !request.snapshot {
            let result = self.prepare(None).and_then(|prepared| prepared.run(record));
            let ending = result.as_ref().map_or_else(|failure| failure.ending, Copied::ending);
            return frozen.thaw(ending, result);
        }
        since::remark(&self);
        let snapshot = snapshot::take(host, &mut *self.source, &*self.destination);
        let ending = snapshot.as_ref().map_or_else(|failure| failure.ending, |_| Ending::Done);
        let snapshot = frozen.thaw(ending, snapshot)?;
        let result = self.prepare(Some(&snapshot)).and_then(|prepared| prepared.run(record));
        snapshot.remove(host, result)
    }

    /// Checks of options before anything is opened or run; [`Job::copy`] and [`Job::inspect`] begin with it.
    pub fn check(&self) -> Result<(), Failure> {
        since::check(self)?;
        manifest::check(self)
    }

    /// Opens both endpoints, checks them for reasons to refuse the copy, queries the changes, and begins the journal.
    /// To be called after [`Job::check`]. `snapshot` is the result of [`snapshot::take`], which has changed the
    /// source's location.
    pub fn prepare<'b>(&'b mut self, snapshot: Option<&Snapshot>) -> Result<Prepared<'b>, Failure>
    where
        'a: 'b,
    {
        if self.source.is_stream() || self.destination.is_stream() {
            return Piped::prepare(self).map(Prepared::from);
        }
        let mut io = crate::event_loop()?;
        if let Ok(state) = self.host.state_dir() {
            journals::expire(self.host, &state);
        }
        let earlier = journal::earlier(self)?;
        // A copy that resumes this one opens the source itself: the snapshot will be removed.
        let source_was = snapshot.map(|snapshot| &snapshot.source_was);
        let mut pair = refusals::prepare(self, &mut io, source_was, earlier)?;
        let earlier = pair.earlier.take();
        let changes = match earlier {
            Some(_) => since::recorded(self),
            None => since::changes(self, &mut io, &*pair.source, &pair.checked)?,
        };
        let kept = journal::keep(self, &pair, earlier)?;
        let snapshot = snapshot.map(Snapshot::name);
        Ok(Paired { job: self, io, pair, changes, kept, snapshot }.into())
    }

    pub(crate) fn finished(&self, copied: &Copied, record: &mut Record) {
        record.outcome = Some(copied.object());
        record.network = Rc::clone(&copied.network);
        self.host.on_copied(copied);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::{Local, Quiet, Resume};

    fn job<'a>(host: &'a Quiet, request: &'a Request, from: &str, to: &str) -> Job<'a> {
        let [source, destination] = [from, to].map(|words| {
            let words = host.state_dir.join(words);
            Box::new(Local::parse(words.to_str().unwrap()).unwrap())
        });
        Job::new(host, request, source, destination)
    }

    /// A host whose state directory contains `a.img`, a source of 4 MiB.
    fn host(directory: &Path) -> Quiet {
        let bytes: Vec<u8> = (0..4 << 20).map(|at: u32| (at / 7) as u8).collect();
        fs::write(directory.join("a.img"), bytes).unwrap();
        Quiet { state_dir: directory.to_owned(), ..Quiet::default() }
    }

    #[test]
    fn a_request_becomes_a_list_of_refusals() {
        let directory = tempfile::tempdir().unwrap();
        let (host, request) = (host(directory.path()), Request::default());
        let refused = |request: &Request, to: &str| -> Vec<(Ending, String)> {
            let findings = job(&host, request, "a.img", to).inspect().unwrap();
            findings.refusals.into_iter().map(|refusal| (refusal.ending, refusal.cause)).collect()
        };
        let one = |cause: &str| vec![(Ending::Refused, cause.to_owned())];
        assert_eq!(refused(&request, "b.img"), []);
        let causes = refused(&request, "b.img,create,size=1M");
        assert_eq!(causes[..1], one("it would have 1048576 bytes; 4194304 are needed"));
        assert_eq!(refused(&request, "b.img,create,size=4M"), []);
        let same =
            format!("it is the same storage as the source {}", directory.path().join("a.img").display());
        assert_eq!(refused(&request, "a.img"), one(&same));
        fs::write(directory.path().join("c.img"), swap()).unwrap();
        assert_eq!(refused(&request, "c.img").len(), 1);
        assert_eq!(refused(&Request { force: true, ..Request::default() }, "c.img"), []);
        assert!(!directory.path().join("b.img").exists(), "nothing is made");
    }

    /// 4 MiB with the signature of a swap area.
    fn swap() -> Vec<u8> {
        let mut bytes = vec![0; 4 << 20];
        bytes[4086..4096].copy_from_slice(b"SWAPSPACE2");
        bytes[1024] = 1;
        bytes
    }

    /// The lock that a copy with a journal holds is tested by one without.
    #[test]
    fn a_short_copy_is_refused_while_another_copy_has_the_lock() {
        let directory = tempfile::tempdir().unwrap();
        let host = host(directory.path());
        let copy =
            |request: &Request| job(&host, request, "a.img", "b.img").copy(&mut Record::new()).map(drop);
        let request = Request::default();
        copy(&request).unwrap();
        assert!(!directory.path().join("copies.lock").exists(), "a short copy makes no lock file");
        let held = claim_of(&host, "b.img");
        let failure = copy(&request).unwrap_err();
        assert_eq!(failure.cause, "another copy is writing to it");
        copy(&Request { allow_in_use: true, ..Request::default() }).unwrap();
        drop(held);
        copy(&request).unwrap();
    }

    /// The lock of a destination, taken as by a copy with a journal.
    fn claim_of(host: &Quiet, name: &str) -> fs::File {
        let request = Request::default();
        let job = job(host, &request, "a.img", name);
        let options = block::OpenOptions { writable: false, request_alignment: 4096, allow_in_use: true };
        let mut io = crate::event_loop().unwrap();
        let endpoint = crate::attach(&mut io, &job.destination.open(&options).unwrap()).unwrap();
        let identity = endpoint.inspect().identity();
        journal::claim(&host.state_dir, &identity, std::time::Duration::ZERO).unwrap().unwrap()
    }

    #[test]
    fn what_interrupted_a_copy_leaves_a_journal_to_go_on_from() {
        let directory = tempfile::tempdir().unwrap();
        let first = host(directory.path());
        let request = Request { journal: true, ..Request::default() };
        // Slow enough to be stopped: the engine polls the flag a few times a second.
        let plan = mover::Plan { rate: Some(2 << 20).into(), ..request.plan.clone() };
        let slow = Request { plan, offload: crate::Choice::Off, ..request.clone() };
        first.stop.request(libc::SIGTERM);
        let failure =
            job(&first, &slow, "a.img", "b.img,create,size=4M").copy(&mut Record::new()).unwrap_err();
        assert_eq!(failure.ending, Ending::Interrupted(libc::SIGTERM));
        let name = failure.hint.rsplit(' ').next().unwrap();
        let hint = &failure.hint;
        assert!(hint.contains("--rate 2097152B/s --offload off --resume ") && name.len() == 16, "{hint}");
        let second = Quiet { state_dir: first.state_dir.clone(), ..Quiet::default() };
        let again = Request { resume: Resume::Named(name.to_owned()), ..request };
        let copied = job(&second, &again, "a.img", "b.img,create,size=4M").copy(&mut Record::new()).unwrap();
        assert_eq!(copied.ending(), Ending::Done);
        let [a, b] = ["a.img", "b.img"].map(|name| fs::read(directory.path().join(name)).unwrap());
        assert!(a == b);
        assert_eq!(fs::read_dir(directory.path().join("copies")).unwrap().count(), 0);
    }
}
