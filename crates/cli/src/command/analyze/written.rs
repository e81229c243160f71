//! Files that `analyze` writes. One that exists is replaced only if `analyze` wrote it; all appear when all are complete.

use std::fs;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use job::{Place, Readers, Stop};
use monitor::analysis::{Report, Seen};
use monitor::capture::{Comments, Frame, pcapng, slim};
use monitor::event::{Event, Side};
use monitor::packet::Packet;
use monitor::view::{Subject, html, svg, xpl};

use super::Args;
use crate::context::Context;
use crate::error::Failure;
use crate::units;

/// Connections of which figures and graphs are written.
const PICTURED_MAX: usize = 16;

/// How every pcapng file of this program begins.
fn pcapng_mark() -> Vec<u8> {
    pcapng::Writer::new(Vec::new()).and_then(pcapng::Writer::finish).unwrap_or_default()
}

/// The results replace nothing that is read, and not each other.
fn check_names(args: &Args) -> Result<(), Failure> {
    let mut seen = Vec::new();
    for input in &args.files {
        seen.extend(fs::metadata(input).ok().map(|metadata| (metadata.dev(), metadata.ino())));
    }
    let mut names: Vec<PathBuf> = Vec::new();
    for path in [&args.html, &args.pcapng, &args.slim].into_iter().flatten() {
        let refused = |cause| Failure::usage("write the results", path.display().to_string(), cause);
        if path.as_os_str() == "-" {
            return Err(refused("standard output has the verdict").hint("the name of a file"));
        }
        let identity = fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()));
        if identity.is_some_and(|identity| seen.contains(&identity)) {
            return Err(refused("it is one of the captures that are read").hint("another name"));
        }
        // A directory that is not there is an error of its own.
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = fs::canonicalize(directory.unwrap_or(Path::new("."))).unwrap_or_default();
        let name = directory.join(path.file_name().unwrap_or_default());
        if names.contains(&name) {
            return Err(refused("two results have this name").hint("a name for each"));
        }
        names.push(name);
    }
    Ok(())
}

/// The results that the arguments name.
pub(super) struct Outputs {
    html: Option<Place>,
    svg: Option<PathBuf>,
    xpl: Option<PathBuf>,
    commented: Option<(Place, pcapng::Writer<BufWriter<fs::File>>, Comments)>,
    slim: Option<(Place, slim::Slim<BufWriter<fs::File>>, Vec<Event>)>,
}

impl Outputs {
    /// Makes sure that everything can be written, before anything is read.
    pub(super) fn new(args: &Args) -> Result<Self, Failure> {
        check_names(args)?;
        let page = |path: &PathBuf| Place::new(path, "page", &[html::MARK.as_bytes()], Readers::All);
        let mark = pcapng_mark();
        // With payload and names; the one without is sent to others by its user.
        let capture = |path: &PathBuf| Place::new(path, "capture", &[&mark], Readers::Owner);
        let commented = args.pcapng.as_ref().map(capture).transpose()?.map(|place| {
            let writer = pcapng::Writer::new(place.writer()?).map_err(|error| place.failure(error))?;
            Ok((place, writer, Comments::default()))
        });
        let slim = args.slim.as_ref().map(capture).transpose()?.map(|place| {
            let writer = slim::Slim::new(place.writer()?).map_err(|error| place.failure(error))?;
            Ok((place, writer, Vec::new()))
        });
        for directory in [&args.svg, &args.xpl].into_iter().flatten() {
            fs::create_dir_all(directory).map_err(|error| {
                Failure::failed("make the directory", directory.display().to_string(), error)
            })?;
        }
        Ok(Self {
            html: args.html.as_ref().map(page).transpose()?,
            svg: args.svg.clone(),
            xpl: args.xpl.clone(),
            commented: commented.transpose()?,
            slim: slim.transpose()?,
        })
    }

    pub(super) fn has_pictures(&self) -> bool {
        self.html.is_some() || self.svg.is_some() || self.xpl.is_some()
    }

    /// Whether frames are written while they are read.
    pub(super) fn sees(&self) -> bool {
        self.commented.is_some() || self.slim.is_some()
    }

    /// What the analysis saw in the frame that is given next.
    pub(super) fn see(&mut self, seen: Seen<'_>) {
        match seen {
            Seen::Event(flow, event) => {
                if let Some((_, _, comments)) = &mut self.commented {
                    comments.event(flow, event);
                }
                if let Some((_, _, events)) = &mut self.slim {
                    events.push(event.clone());
                }
            }
            Seen::Command(command) => {
                if let Some((_, _, comments)) = &mut self.commented {
                    comments.command(command);
                }
            }
        }
    }

    pub(super) fn frame(&mut self, frame: &Frame<'_>, packet: Option<&Packet<'_>>) -> Result<(), Failure> {
        if let Some((place, writer, comments)) = &mut self.commented {
            writer.write(frame, &comments.take()).map_err(|error| place.failure(error))?;
        }
        if let Some((place, writer, events)) = &mut self.slim {
            if let Some(packet) = packet {
                writer.packet(packet, events).map_err(|error| place.failure(error))?;
            }
            events.clear();
        }
        Ok(())
    }

    /// Writes what needs the whole analysis, then moves all files to their paths. With `before`, the page compares both. A
    /// signal that comes meanwhile ends the writing, and none of the files appears.
    pub(super) fn finish(
        self,
        context: &Context,
        before: Option<&Report>,
        report: &Report,
    ) -> Result<(), Failure> {
        let mut whole =
            Whole { places: Vec::new(), stop: &context.stop, is_ending: context.stop.is_requested() };
        if let Some((place, writer, _)) = self.commented {
            writer.finish().map_err(|error| place.failure(error))?;
            whole.places.push(place);
        }
        if let Some((place, writer, _)) = self.slim {
            let (_, summary) = writer.finish().map_err(|error| place.failure(error))?;
            if summary.incomplete > 0 {
                let packets = units::counted(summary.incomplete, "packet");
                context.warn(&format!("{packets} of the capture without payload lack headers of PDUs"));
            }
            whole.places.push(place);
        }
        let subjects: Vec<_> = report.flows.iter().map(|flow| flow.subject()).collect();
        if let Some(place) = self.html {
            let before_subject = before.and_then(|report| report.flows.first()).map(|flow| flow.subject());
            whole.add(place, |out| match (before_subject, subjects.first()) {
                (Some(one), Some(after)) => {
                    let notes = before.map_or(&[][..], |report| &report.notes);
                    html::compare(out, &one, after, [notes, &report.notes])
                }
                _ => html::write(out, &subjects, &report.notes),
            })?;
        }
        for (number, subject) in subjects.iter().take(PICTURED_MAX).enumerate() {
            if let Some(directory) = &self.svg {
                figures(&mut whole, directory, number, subject)?;
            }
            if let Some(directory) = &self.xpl {
                graphs(&mut whole, directory, number, subject)?;
            }
        }
        whole.complete()
    }
}

/// Results whose content is written and that wait to be moved to their paths.
struct Whole<'a> {
    places: Vec<Place>,
    stop: &'a Stop,
    /// A signal ended the reading: what was read is written.
    is_ending: bool,
}

impl Whole<'_> {
    fn is_stopped(&self) -> bool {
        !self.is_ending && self.stop.is_requested()
    }

    fn stopped(&self) -> Result<(), Failure> {
        if self.is_stopped() { Err(self.stop.failure("write", "the results")) } else { Ok(()) }
    }

    fn add(
        &mut self,
        place: Place,
        content: impl FnOnce(&mut Stoppable<'_>) -> io::Result<()>,
    ) -> Result<(), Failure> {
        self.stopped()?;
        let mut out = place.writer()?;
        let mut stoppable = Stoppable { out: &mut out, whole: self };
        let written = content(&mut stoppable).and_then(|()| out.flush());
        self.stopped()?;
        written.map_err(|error| place.failure(error))?;
        self.places.push(place);
        Ok(())
    }

    fn complete(self) -> Result<(), Failure> {
        self.stopped()?;
        let mut complete = Vec::new();
        for place in self.places {
            let name = place.path().display().to_string();
            if let Err(failure) = place.complete() {
                if complete.is_empty() {
                    return Err(failure);
                }
                let hint = [&failure.hint, "these are written:", &complete.join(" ")].map(str::to_owned);
                return Err(failure.clone().hint(hint.join(" ").trim().to_owned()));
            }
            complete.push(name);
        }
        Ok(())
    }
}

/// Ends the writing at a signal.
struct Stoppable<'a> {
    out: &'a mut BufWriter<fs::File>,
    whole: &'a Whole<'a>,
}

impl Write for Stoppable<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.whole.is_stopped() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn figures(
    whole: &mut Whole<'_>,
    directory: &Path,
    number: usize,
    subject: &Subject<'_>,
) -> Result<(), Failure> {
    for figure in svg::figures(subject) {
        let path = directory.join(format!("{}-{}.svg", number + 1, figure.name));
        let place = Place::new(&path, "figure", &[svg::MARK.as_bytes()], Readers::All)?;
        whole.add(place, |out| out.write_all(figure.text.as_bytes()))?;
    }
    Ok(())
}

fn graphs(
    whole: &mut Whole<'_>,
    directory: &Path,
    number: usize,
    subject: &Subject<'_>,
) -> Result<(), Failure> {
    let marks = xpl::MARKS.map(str::as_bytes);
    for from in [Side::Initiator, Side::Target] {
        let place = Place::new(&directory.join(xpl::name(number, from)), "graph", &marks, Readers::All)?;
        whole.add(place, |out| xpl::write(out, subject, from))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use job::Ending;

    /// A signal while results are written ends the writing, and no result appears; one that ended the reading does not.
    #[test]
    fn a_signal_leaves_no_result() {
        let directory = tempfile::tempdir().unwrap();
        for is_ending in [false, true] {
            let stop = Stop::default();
            let _orderly = stop.orderly();
            let mut whole = Whole { places: Vec::new(), stop: &stop, is_ending };
            let path = |name: &str| directory.path().join(name);
            let place = |name: &str| Place::new(&path(name), "figure", &[b"a"], Readers::All).unwrap();
            whole.add(place("first"), |out| out.write_all(b"a")).unwrap();
            let second = place("second");
            let written = whole.add(second, |out| {
                stop.request(libc::SIGINT);
                (0..10).try_for_each(|_| out.write_all(b"a"))
            });
            let completed = written.and_then(|()| whole.complete());
            assert_eq!(completed.is_ok(), is_ending);
            if let Err(failure) = completed {
                assert_eq!(failure.ending, Ending::Interrupted(libc::SIGINT));
                assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
            }
        }
    }
}
