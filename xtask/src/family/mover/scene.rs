//! A source, a destination with old data on it, and copies between them by the real program.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::Value;
use tempfile::TempDir;

use super::image;
use super::map::{self, Journal};
use crate::harness::files::Loop;
use crate::harness::nbd::{At, Nbd};
use crate::harness::{Context, Disk, Output, Running, Target, run, scratch};

pub(super) const LIMIT: Duration = Duration::from_secs(60);
/// Between two claims, in milliseconds; the program's own choice is five seconds.
const CLAIM_MS: &str = "15";

/// What one end of a copy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// On tmpfs.
    File,
    Ext4,
    Xfs,
    /// A loop device.
    Loop,
    /// A loop device with blocks of 4096 bytes.
    Loop4096,
    /// A LUN of our target.
    Lun,
    /// An export of qemu-nbd.
    Nbd,
}

impl Kind {
    pub(super) const ALL: [Self; 7] =
        [Self::File, Self::Loop, Self::Lun, Self::Nbd, Self::Ext4, Self::Xfs, Self::Loop4096];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Loop => "loop",
            Self::Loop4096 => "loop-4096",
            Self::Lun => "lun",
            Self::Nbd => "nbd",
        }
    }

    pub(super) fn needs_root(self) -> bool {
        matches!(self, Self::Ext4 | Self::Xfs | Self::Loop | Self::Loop4096)
    }
}

/// A file system in a file, mounted.
#[derive(Debug)]
pub(super) struct Mounted {
    point: TempDir,
    image: TempDir,
}

impl Mounted {
    pub(super) fn new(make: &[&str], options: &str, bytes: u64) -> Result<Self> {
        let (image, point) = (scratch()?, scratch()?);
        let path = image.path().join("fs");
        std::fs::File::create(&path)?.set_len(bytes)?;
        run(crate::harness::program(make[0])?.args(&make[1..]).arg(&path), LIMIT)?.success()?;
        let mounted = Self { point, image };
        mounted.mount(options)?;
        Ok(mounted)
    }

    pub(super) fn ext4(bytes: u64) -> Result<Self> {
        Self::new(&["mkfs.ext4", "-q", "-F"], "loop", bytes)
    }

    pub(super) fn xfs(bytes: u64) -> Result<Self> {
        Self::new(&["mkfs.xfs", "-q", "-f"], "loop", bytes)
    }

    fn mount(&self, options: &str) -> Result<()> {
        run(Command::new("mount").args(["-o", options]).arg(self.image()).arg(self.path()), LIMIT)?
            .success()?;
        Ok(())
    }

    /// The file that the file system lies in.
    pub(super) fn image(&self) -> PathBuf {
        self.image.path().join("fs")
    }

    pub(super) fn path(&self) -> &Path {
        self.point.path()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = run(Command::new("umount").arg(self.path()), LIMIT);
    }
}

/// What keeps an end there.
#[derive(Debug)]
pub(super) enum Guard {
    File,
    Mounted { _mounted: Mounted },
    Loop { _device: Loop },
    Lun(Box<Target>),
    Nbd { _server: Nbd },
}

/// One end.
#[derive(Debug)]
pub(super) struct End {
    pub(super) kind: Kind,
    /// Holds its bytes.
    pub(super) file: PathBuf,
    /// What the program calls it.
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
        options: &[&str],
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
                (device.path().display().to_string(), Guard::Loop { _device: device })
            }
            Kind::Lun => {
                let disk = options.iter().fold(Disk::file(&file), |disk, option| disk.option(*option));
                let target = Target::serve(context, &[disk], None, &[])?;
                (target.url(0).to_string(), Guard::Lun(Box::new(target)))
            }
            Kind::Nbd => {
                let server = Nbd::qemu(At::port()?, &file, "raw", &["--discard=unmap"])?;
                (server.url("disk"), Guard::Nbd { _server: server })
            }
        };
        Ok(Self { kind, file, text, guard })
    }

    /// Serves it again after its target's death, at the same place.
    pub(super) fn serve_again(&mut self, context: &Context) -> Result<()> {
        let disk = Disk::file(&self.file);
        let target = self.target()?;
        target.kill();
        target.restart(context, &[disk])
    }

    /// Serves another disk in its place.
    pub(super) fn serve_stranger(&mut self, context: &Context, file: &Path) -> Result<()> {
        let target = self.target()?;
        target.kill();
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

/// See the module.
#[derive(Debug)]
pub(super) struct Scene {
    pub(super) source: End,
    pub(super) destination: End,
    /// What the destination held before.
    pub(super) before: PathBuf,
    pub(super) dir: TempDir,
    pub(super) rng: StdRng,
    /// Which back end of the loop copies.
    pub(super) portable: bool,
    pub(super) chunk: &'static str,
}

impl Scene {
    pub(super) fn new(context: &Context, seed: u64, source: Kind, destination: Kind) -> Result<Self> {
        Self::with_options(context, seed, source, destination, &[])
    }

    /// The same, and the target serves the destination with these options.
    pub(super) fn with_options(
        context: &Context,
        seed: u64,
        source: Kind,
        destination: Kind,
        options: &[&str],
    ) -> Result<Self> {
        let dir = scratch()?;
        let mut rng = StdRng::seed_from_u64(seed);
        let before = dir.path().join("before");
        image::make(&before, &mut rng, 8)?;
        let patches = rng.random_range(10..20);
        let mut make = |path: &Path| image::make(path, &mut rng, patches);
        let source = End::new(context, source, dir.path(), "source", &[], &mut make)?;
        let fill = |path: &Path| {
            run(Command::new("cp").arg("--sparse=always").arg(&before).arg(path), LIMIT)?.success()?;
            Ok(())
        };
        let destination = End::new(context, destination, dir.path(), "destination", options, fill)?;
        let portable = rng.random_range(0..3) == 0;
        Ok(Self { source, destination, before, dir, rng, portable, chunk: "256K" })
    }

    pub(super) fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    fn state(&self) -> PathBuf {
        self.home().join("state")
    }

    pub(super) fn journal(&self) -> Result<Option<Journal>> {
        map::only(&self.state())
    }

    /// A command that copies, with the options of one end behind its name.
    pub(super) fn command(&self, context: &Context, options: [&str; 2], more: &[&str]) -> Command {
        let mut command = context.command_in(&self.home());
        self.arguments(&mut command, options, more);
        command
    }

    /// The same under strace, which `injects`; `paths`, if any, are all that it looks at.
    pub(super) fn traced(
        &self,
        context: &Context,
        injects: &str,
        paths: &[&Path],
        options: [&str; 2],
        more: &[&str],
    ) -> Result<Command> {
        let ours = context.command_in(&self.home());
        let mut command = crate::harness::program("strace")?;
        command.envs(ours.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let (call, _) = injects.split_once(':').unwrap_or((injects, ""));
        command.args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("trace={call}"), "-e"]);
        command.arg(format!("inject={injects}"));
        for path in paths {
            command.arg("-P").arg(path);
        }
        command.arg(&context.hikyaku);
        self.arguments(&mut command, options, more);
        Ok(command)
    }

    fn arguments(&self, command: &mut Command, options: [&str; 2], more: &[&str]) {
        if self.portable {
            command.env("HIKYAKU_IO", "portable");
        }
        command.env("HIKYAKU_CLAIM_MS", CLAIM_MS).arg("copy");
        command.arg(format!("{}{}", self.source.text, options[0]));
        command.arg(format!("{}{}", self.destination.text, options[1]));
        command.args(["--chunk", self.chunk, "--allow", "sector-size"]).args(more);
    }

    pub(super) fn start(&self, context: &Context, options: [&str; 2], more: &[&str]) -> Result<Running> {
        Running::start(&mut self.command(context, options, more))
    }

    pub(super) fn run(&self, context: &Context, options: [&str; 2], more: &[&str]) -> Result<Output> {
        self.start(context, options, more)?.finish(LIMIT)
    }

    /// What must hold whatever has ended a copy: the journal is whole, ddrescuelog reads the same in it, the destination holds
    /// what it claims, and nothing foreign. Gives the journal, if there is one.
    pub(super) fn is_true(&self) -> Result<Option<Journal>> {
        let journal = self.journal()?;
        let finished = journal.as_ref().map(Journal::finished).unwrap_or_default();
        image::of_both(&self.source.file, &self.before, &self.destination.file, &finished)?;
        Ok(journal)
    }

    /// Copies what is left, by the journal if there is one: all of it is there at the end, only what was not finished was
    /// moved, and no journal stays.
    pub(super) fn finish(&self, context: &Context) -> Result<()> {
        let journal = self.is_true()?;
        let path = journal.as_ref().map(|journal| journal.path.display().to_string());
        let more = match &path {
            Some(path) => vec!["--resume", path, "--json"],
            None => vec!["--force", "--json"],
        };
        let output = self.run(context, ["", ""], &more)?.success()?;
        let report = report(&output)?;
        let claimed = journal.map_or(0, |journal| journal.bytes('+'));
        ensure!(report["resumed_bytes"] == claimed, "{claimed} bytes were claimed: {report}");
        self.is_done()
    }

    /// The destination holds the source, and nothing is left to resume.
    pub(super) fn is_done(&self) -> Result<()> {
        image::same(&self.source.file, &self.destination.file)?;
        ensure!(map::all(&self.state())?.is_empty(), "a journal is left");
        Ok(())
    }
}

/// What `copy --json` says at its end.
pub(super) fn report(output: &Output) -> Result<Value> {
    let last = output.stdout.lines().last().context("no report")?;
    serde_json::from_str(last).with_context(|| last.to_owned())
}
