//! A source, a destination with old data, and copies between them by the real program.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rand::RngExt;
use rand::rngs::StdRng;
use tempfile::TempDir;

use super::image;
use super::map::{self, Journal};
use crate::files::{Loop, can_loop, copy_sparse, empty_file};
use crate::nbd::{At, Nbd};
use crate::{Context, Disk, Output, Running, Target, random, run, scratch};

pub(super) const LIMIT: Duration = Duration::from_secs(60);
/// Interval of claims in milliseconds; the program's default is five seconds.
const CLAIM_MS: &str = "15";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Ext4,
    Xfs,
    Loop,
    Loop4096,
    Lun,
    Nbd,
}

impl Kind {
    pub(super) const ALL: [Self; 7] =
        [Self::File, Self::Loop, Self::Lun, Self::Nbd, Self::Ext4, Self::Xfs, Self::Loop4096];

    pub(super) fn name(self) -> String {
        format!("{self:?}").to_lowercase().replace("loop4096", "loop-4096")
    }

    pub(super) fn needs_root(self) -> bool {
        matches!(self, Self::Ext4 | Self::Xfs | Self::Loop | Self::Loop4096)
    }
}

#[derive(Debug)]
pub(in crate::family) struct Mounted {
    point: TempDir,
    image: TempDir,
}

impl Mounted {
    pub(in crate::family) fn new(make: &[&str], options: &str, bytes: u64) -> Result<Self> {
        ensure!(can_loop(), "file systems in files need root and /dev/loop-control");
        let (image, point) = (scratch()?, scratch()?);
        let path = empty_file(image.path().join("fs"), bytes)?;
        run(crate::program(make[0])?.args(&make[1..]).arg(&path), LIMIT)?.success()?;
        let mounted = Self { point, image };
        let mut mount = Command::new("mount");
        mount.args(["-o", options]).args([&path, mounted.path()]);
        run(&mut mount, LIMIT)?.success()?;
        Ok(mounted)
    }

    pub(super) fn ext4(bytes: u64) -> Result<Self> {
        Self::new(&["mkfs.ext4", "-q", "-F"], "loop", bytes)
    }

    pub(super) fn xfs(bytes: u64) -> Result<Self> {
        Self::new(&["mkfs.xfs", "-q", "-f"], "loop", bytes)
    }

    pub(super) fn image(&self) -> PathBuf {
        self.image.path().join("fs")
    }

    pub(in crate::family) fn path(&self) -> &Path {
        self.point.path()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = run(Command::new("umount").arg(self.path()), LIMIT);
    }
}

/// The resource that an end needs while in use.
#[derive(Debug)]
pub(super) enum Guard {
    File,
    Mounted { _mounted: Mounted },
    Loop { _device: Loop },
    Lun(Box<Target>),
    Nbd { _server: Nbd },
}

#[derive(Debug)]
pub(super) struct End {
    pub(super) kind: Kind,
    /// The file with the end's bytes.
    pub(super) file: PathBuf,
    pub(super) text: String,
    pub(super) guard: Guard,
}

impl End {
    /// `fill` makes the file.
    fn new(
        context: &Context,
        kind: Kind,
        dir: &Path,
        name: &str,
        fill: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<Self> {
        let mut file = dir.join(name);
        let mounted = match kind {
            Kind::Ext4 => Some(Mounted::ext4(image::BYTES + (256 << 20))?),
            Kind::Xfs => Some(Mounted::xfs(image::BYTES + (512 << 20))?),
            _ => None,
        };
        if let Some(mounted) = &mounted {
            file = mounted.path().join(name);
        }
        fill(&file)?;
        let path = file.display().to_string();
        let (text, guard) = match kind {
            Kind::File => (path, Guard::File),
            Kind::Ext4 | Kind::Xfs => (path, Guard::Mounted { _mounted: mounted.context("made above")? }),
            Kind::Loop | Kind::Loop4096 => {
                let sector = if kind == Kind::Loop { 512 } else { 4096 };
                let device = Loop::attach(&file, sector, false)?;
                (device.text(), Guard::Loop { _device: device })
            }
            Kind::Lun => {
                let target = Target::serve(context, &[Disk::file(&file)], None, &[])?;
                (target.url(0).to_string(), Guard::Lun(Box::new(target)))
            }
            Kind::Nbd => {
                let server = Nbd::qemu(At::port()?, &file, "raw", &["--discard=unmap"])?;
                (server.url("disk"), Guard::Nbd { _server: server })
            }
        };
        Ok(Self { kind, file, text, guard })
    }

    pub(super) fn serve_again(&mut self, context: &Context) -> Result<()> {
        let disk = Disk::file(&self.file);
        self.target()?.kill_and_restart(context, &[disk])
    }

    pub(super) fn serve_stranger(&mut self, context: &Context, file: &Path) -> Result<()> {
        let target = self.target()?;
        target.running.kill();
        target.forget()?;
        target.restart(context, &[Disk::file(file)])
    }

    pub(super) fn target(&mut self) -> Result<&mut Target> {
        match &mut self.guard {
            Guard::Lun(target) => Ok(target),
            other => bail!("{other:?} is not served by us"),
        }
    }
}

#[derive(Debug)]
pub(super) struct Scene {
    pub(super) source: End,
    pub(super) destination: End,
    pub(super) before: PathBuf,
    pub(super) dir: TempDir,
    pub(super) rng: StdRng,
    /// Whether the program uses the portable back end of the loop.
    pub(super) portable: bool,
    pub(super) chunk: &'static str,
}

impl Scene {
    pub(super) fn new(context: &Context, seed: u64, source: Kind, destination: Kind) -> Result<Self> {
        let dir = scratch()?;
        let mut rng = random::seeded(seed);
        let before = dir.path().join("before");
        image::make(&before, &mut rng, 8)?;
        let patches = rng.random_range(10..20);
        let mut make = |path: &Path| image::make(path, &mut rng, patches);
        let source = End::new(context, source, dir.path(), "source", &mut make)?;
        let fill = |path: &Path| copy_sparse(&before, path);
        let destination = End::new(context, destination, dir.path(), "destination", fill)?;
        let portable = rng.random_range(0..3) == 0;
        Ok(Self { source, destination, before, dir, rng, portable, chunk: "256K" })
    }

    pub(super) fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    fn state(&self) -> PathBuf {
        self.home().join("state")
    }

    /// The source or the destination.
    pub(super) fn end(&mut self, is_source: bool) -> &mut End {
        if is_source { &mut self.source } else { &mut self.destination }
    }

    /// Path of the journal, which must be there.
    pub(super) fn journal_text(&self) -> Result<String> {
        Ok(self.journal()?.context("a journal")?.path.display().to_string())
    }

    pub(super) fn journal(&self) -> Result<Option<Journal>> {
        map::only(&self.state())
    }

    /// A `copy` command under strace, which `injects`; `paths`, if any, restrict it to calls on these files.
    pub(super) fn traced(
        &self,
        context: &Context,
        injects: &str,
        paths: &[&Path],
        more: &[&str],
    ) -> Result<Command> {
        let ours = context.command_in(&self.home());
        let mut command = crate::program("strace")?;
        command.envs(ours.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let (call, _) = injects.split_once(':').unwrap_or((injects, ""));
        command.args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("trace={call}"), "-e"]);
        command.arg(format!("inject={injects}"));
        for path in paths {
            command.arg("-P").arg(path);
        }
        self.arguments(command.arg(&context.hikyaku), ["", ""], more);
        Ok(command)
    }

    fn arguments(&self, command: &mut Command, options: [&str; 2], more: &[&str]) {
        if self.portable {
            command.env("HIKYAKU_IO", "portable");
        }
        command.env("HIKYAKU_CLAIM_MS", CLAIM_MS).arg("copy");
        command.arg(format!("{}{}", self.source.text, options[0]));
        command.arg(format!("{}{}", self.destination.text, options[1]));
        command.args(["--chunk", self.chunk, "--allow", "sector-size,space"]).args(more);
    }

    /// Starts `copy`; `options` are appended to the endpoints.
    pub(super) fn start(&self, context: &Context, options: [&str; 2], more: &[&str]) -> Result<Running> {
        let mut command = context.command_in(&self.home());
        self.arguments(&mut command, options, more);
        Running::start(&mut command)
    }

    pub(super) fn run(&self, context: &Context, options: [&str; 2], more: &[&str]) -> Result<Output> {
        self.start(context, options, more)?.finish(LIMIT)
    }

    /// Checks what must hold after any end of a copy: the journal is complete, ddrescuelog finds the same in it, the
    /// destination has the claimed data, and no foreign data. Returns the journal, if there is one.
    pub(super) fn is_true(&self) -> Result<Option<Journal>> {
        let journal = self.journal()?;
        let finished = journal.as_ref().map(Journal::finished).unwrap_or_default();
        image::of_both(&self.source.file, &self.before, &self.destination.file, &finished)?;
        Ok(journal)
    }

    /// Copies the rest, by the journal if there is one. In the end the destination is complete, only unfinished data
    /// was moved, and no journal is left.
    pub(super) fn finish(&self, context: &Context) -> Result<()> {
        let journal = self.is_true()?;
        let path = journal.as_ref().map(|journal| journal.path.display().to_string());
        let more = match &path {
            Some(path) => vec!["--resume", path, "--json"],
            None => vec!["--force", "--json"],
        };
        let report = self.run(context, ["", ""], &more)?.success()?.json()?;
        let claimed = journal.map_or(0, |journal| journal.bytes('+'));
        ensure!(report["resumed_bytes"] == claimed, "{claimed} bytes were claimed: {report}");
        self.is_done()
    }

    pub(super) fn is_done(&self) -> Result<()> {
        image::same(&self.source.file, &self.destination.file)?;
        demand!(map::all(&self.state())?.is_empty(), "a journal is left")
    }
}
