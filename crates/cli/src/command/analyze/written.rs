//! Files that `analyze` writes. One that exists is replaced only if `analyze` wrote it; it appears when it is complete.

use std::fs;
use std::io::{BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use job::{Place, Readers};
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

    /// Writes what needs the whole analysis, and completes all files. With `before`, the page compares both.
    pub(super) fn finish(
        self,
        context: &Context,
        before: Option<&Report>,
        report: &Report,
    ) -> Result<(), Failure> {
        if let Some((place, writer, _)) = self.commented {
            writer.finish().map_err(|error| place.failure(error))?;
            place.complete()?;
        }
        if let Some((place, writer, _)) = self.slim {
            let (_, summary) = writer.finish().map_err(|error| place.failure(error))?;
            if summary.incomplete > 0 {
                let packets = units::counted(summary.incomplete, "packet");
                context.warn(&format!("{packets} of the capture without payload lack headers of PDUs"));
            }
            place.complete()?;
        }
        let subjects: Vec<_> = report.flows.iter().map(|flow| flow.subject()).collect();
        if let Some(place) = self.html {
            let before = before.and_then(|report| report.flows.first()).map(|flow| flow.subject());
            place.write(|out| match (before, subjects.first()) {
                (Some(before), Some(after)) => html::compare(out, &before, after),
                _ => html::write(out, &subjects),
            })?;
        }
        for (number, subject) in subjects.iter().take(PICTURED_MAX).enumerate() {
            if let Some(directory) = &self.svg {
                figures(directory, number, subject)?;
            }
            if let Some(directory) = &self.xpl {
                graphs(directory, number, subject)?;
            }
        }
        Ok(())
    }
}

fn figures(directory: &Path, number: usize, subject: &Subject<'_>) -> Result<(), Failure> {
    for figure in svg::figures(subject) {
        let path = directory.join(format!("{}-{}.svg", number + 1, figure.name));
        let place = Place::new(&path, "figure", &[svg::MARK.as_bytes()], Readers::All)?;
        place.write(|out| out.write_all(figure.text.as_bytes()))?;
    }
    Ok(())
}

fn graphs(directory: &Path, number: usize, subject: &Subject<'_>) -> Result<(), Failure> {
    let marks = xpl::MARKS.map(str::as_bytes);
    for from in [Side::Initiator, Side::Target] {
        let place = Place::new(&directory.join(xpl::name(number, from)), "graph", &marks, Readers::All)?;
        place.write(|out| xpl::write(out, subject, from))?;
    }
    Ok(())
}
