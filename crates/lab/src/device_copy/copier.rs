//! The sides of the experiment, each a process: who copies, who only reads or only writes, and how fast a device is.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use area::{Pool, PoolLimits};
use block::layer::{DelayMedium, LimitMedium};
use block::{FileMedium, Medium, Spec};
use io::Io;
use mover::{Control, Load, LoadPlan, Plan, Until};
use serde::{Deserialize, Serialize};

use crate::part::{Order, Talk};
use crate::sys::{self, Cpu};
use crate::{Attempted, LabError};

/// How far ahead of its rate a device may run; as the layer `limit=` has it.
const BURST: Duration = Duration::from_millis(10);
/// Requests in flight of one who only reads or only writes.
const LOAD_DEPTH: u32 = 16;
/// The same where requests wait beside each other.
const LOAD_DEPTH_DELAYED: u32 = 64;

/// What is added to a device, so that an overlap shows on any machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Speed {
    /// Before each request, beside each other.
    pub(super) delay_us: u64,
    /// Bytes a second, each way; 0 for none.
    pub(super) limit: u64,
}

impl Speed {
    pub(super) fn delay(self) -> Duration {
        Duration::from_micros(self.delay_us)
    }

    /// For people.
    pub(super) fn name(self) -> String {
        let delay = match self.delay_us {
            us if us.is_multiple_of(1000) => format!("{} ms", us / 1000),
            us => format!("{} ms", us as f64 / 1e3),
        };
        match (self.delay_us, self.limit) {
            (0, 0) => "as it is".to_owned(),
            (_, 0) => format!("+ {delay}"),
            (_, limit) => format!("+ {delay}, {} MB/s", limit / 1_000_000),
        }
    }

    /// Opens storage so slow.
    fn open(self, path: &Path, writable: bool) -> Result<Arc<dyn Medium>, LabError> {
        let doing = format!("open {}", path.display());
        let options = block::OpenOptions { writable, request_alignment: 4096, allow_in_use: true };
        let spec = Spec::parse("x,format=raw").attempted(&doing)?;
        let mut medium: Arc<dyn Medium> =
            Arc::new(FileMedium::open(path, &spec, &options).attempted(&doing)?);
        if self.limit > 0 {
            medium = Arc::new(LimitMedium::bytes(medium, self.limit));
        }
        if self.delay_us > 0 {
            medium = Arc::new(DelayMedium::new(medium, self.delay()));
        }
        Ok(medium)
    }
}

/// The same for a loop of calls: a device that makes each wait.
struct Slow {
    speed: Speed,
    paid_until: Instant,
}

impl Slow {
    fn wait(&mut self, bytes: usize) {
        std::thread::sleep(self.speed.delay());
        if self.speed.limit > 0 {
            let now = Instant::now();
            let start = self.paid_until.max(now.checked_sub(BURST).unwrap_or(now));
            self.paid_until = start + Duration::from_secs_f64(bytes as f64 / self.speed.limit as f64);
            std::thread::sleep(start.saturating_duration_since(now));
        }
    }
}

/// Who copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Way {
    /// The paper's user-level copy, which is what dd does: reads through the page cache, synchronous writes through the page
    /// cache, one buffer.
    UserLevel,
    /// The same loop past the page cache, and one flush at the end.
    Direct,
    /// Our mover with so many buffers; with as many as it finds good without a number.
    Mover(Option<u32>),
    /// Another program, as it is installed.
    Program(Program),
}

/// Programs that copy. They know nothing of devices made slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Program {
    /// `dd oflag=sync`: the paper's baseline itself.
    Dd,
    /// `dd iflag=direct oflag=direct`.
    DdDirect,
    /// `qemu-img convert -W -m 8`, past the page cache, by io_uring: the strongest of those that were tried.
    QemuImg,
}

impl Program {
    pub(super) const ALL: [Self; 3] = [Self::Dd, Self::DdDirect, Self::QemuImg];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Dd => "dd oflag=sync",
            Self::DdDirect => "dd direct",
            Self::QemuImg => "qemu-img -W -m 8",
        }
    }

    /// Its file's name.
    fn program(self) -> &'static str {
        match self {
            Self::Dd | Self::DdDirect => "dd",
            Self::QemuImg => "qemu-img",
        }
    }

    pub(super) fn is_installed(self) -> bool {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|folder| folder.join(self.program()).is_file())
    }

    fn command(self, paths: &[PathBuf; 2], bytes: u64, block: u32) -> Command {
        let mut command = Command::new(self.program());
        let [from, to] = paths.each_ref().map(|path| path.display().to_string());
        match self {
            Self::Dd | Self::DdDirect => {
                command.args([format!("if={from}"), format!("of={to}"), format!("bs={block}")]);
                command.args([
                    format!("count={}", bytes.div_ceil(block.into())),
                    "conv=notrunc,fdatasync".into(),
                ]);
                let flags: &[&str] =
                    if self == Self::Dd { &["oflag=sync"] } else { &["iflag=direct", "oflag=direct"] };
                command.args(flags);
            }
            Self::QemuImg => {
                command.args([
                    "convert",
                    "-n",
                    "-W",
                    "-m",
                    "8",
                    "-S",
                    "0",
                    "--image-opts",
                    "--target-image-opts",
                ]);
                for path in paths {
                    let is_device = path.metadata().is_ok_and(|found| found.file_type().is_block_device());
                    let driver = if is_device { "host_device" } else { "file" };
                    command.arg(format!(
                        "driver=raw,size={bytes},file.driver={driver},file.filename={},file.aio=io_uring,\
                         file.cache.direct=on",
                        // A comma is doubled.
                        path.display().to_string().replace(',', ",,")
                    ));
                }
            }
        }
        command
    }
}

/// Copies the first bytes of one device to another.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Copier {
    pub(super) way: Way,
    pub(super) paths: [PathBuf; 2],
    pub(super) bytes: u64,
    pub(super) block: u32,
    pub(super) speed: Speed,
    /// Bytes read per second at most.
    pub(super) rate: Option<u64>,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Copied {
    /// In all.
    pub(super) bytes: u64,
    /// Until they were durable.
    pub(super) seconds: f64,
    pub(super) cpu: Cpu,
    /// Context switches.
    pub(super) switches: u64,
    /// Of one read and one write, mean; 0 where it was not looked at.
    pub(super) read_us: f64,
    pub(super) write_us: f64,
    /// Most buffers in use.
    pub(super) depth_max: u32,
}

impl Copier {
    pub(crate) fn run(self, mut talk: Talk) -> Result<(), LabError> {
        talk.say(&())?;
        while let Some(order) = talk.next()? {
            let ms = match order {
                Order::Go { ms } => ms,
                Order::Mark => 0,
            };
            talk.say(&self.again(Duration::from_millis(ms))?)?;
        }
        Ok(())
    }

    /// Copies once, and again until so much time has passed.
    fn again(&self, time: Duration) -> Result<Copied, LabError> {
        let used = || match self.way {
            Way::Program(_) => Cpu::of_children(),
            _ => Cpu::now(),
        };
        let (start, mut all) = (Instant::now(), Copied::default());
        while all.bytes == 0 || start.elapsed() < time {
            if all.bytes > 0 {
                // As before the first: nothing is read from the page cache that another copy left there.
                for path in &self.paths {
                    sys::drop_cache(&open_plain(path, false)?).attempted("empty the page cache")?;
                }
            }
            let (cpu, switches) = (used(), sys::context_switches());
            let one = match self.way {
                Way::UserLevel => self.by_calls(0, libc::O_SYNC)?,
                Way::Direct => self.by_calls(libc::O_DIRECT, libc::O_DIRECT)?,
                Way::Mover(depth) => self.by_mover(depth)?,
                Way::Program(program) => self.by_program(program)?,
            };
            let cpu = used().since(cpu);
            all = Copied {
                bytes: all.bytes + one.bytes,
                seconds: all.seconds + one.seconds,
                cpu: Cpu { user: all.cpu.user + cpu.user, system: all.cpu.system + cpu.system },
                switches: all.switches + sys::context_switches() - switches,
                ..one
            };
        }
        Ok(all)
    }

    /// Read a block, write a block.
    fn by_calls(&self, reading: i32, writing: i32) -> Result<Copied, LabError> {
        let [source, destination] = &self.paths;
        let doing = format!("copy {} to {}", source.display(), destination.display());
        let source = OpenOptions::new().read(true).custom_flags(reading).open(source).attempted(&doing)?;
        let destination = OpenOptions::new().write(true).custom_flags(writing).open(destination);
        let destination = destination.attempted(&doing)?;
        let pool = Pool::new(PoolLimits::default());
        let buffer = pool.take(self.block as usize).ok_or_else(|| LabError::new(&doing, &"no memory"))?;
        let start = Instant::now();
        let mut slow = [0; 2].map(|_| Slow { speed: self.speed, paid_until: start });
        let mut at = 0;
        while at < self.bytes {
            let length = u64::from(self.block).min(self.bytes - at) as usize;
            slow[0].wait(length);
            buffer.change(0, length, |bytes| source.read_exact_at(bytes, at)).attempted(&doing)?;
            slow[1].wait(length);
            destination.write_all_at(buffer.range(0..length), at).attempted(&doing)?;
            at += length as u64;
        }
        destination.sync_data().attempted(&doing)?;
        let seconds = start.elapsed().as_secs_f64();
        Ok(Copied { bytes: self.bytes, seconds, depth_max: 1, ..Copied::default() })
    }

    /// Its start and its end are part of what it takes.
    fn by_program(&self, program: Program) -> Result<Copied, LabError> {
        let doing = format!("copy with {}", program.program());
        let destination = open_plain(&self.paths[1], true)?;
        let start = Instant::now();
        let mut command = program.command(&self.paths, self.bytes, self.block);
        let output = command.stdin(Stdio::null()).output().attempted(&doing)?;
        if !output.status.success() {
            return Err(LabError::new(doing, &String::from_utf8_lossy(&output.stderr)));
        }
        destination.sync_data().attempted(&doing)?;
        Ok(Copied { bytes: self.bytes, seconds: start.elapsed().as_secs_f64(), ..Copied::default() })
    }

    fn by_mover(&self, depth: Option<u32>) -> Result<Copied, LabError> {
        let doing = "copy with the mover";
        let [source, destination] = &self.paths;
        let media = [self.speed.open(source, false)?, self.speed.open(destination, true)?];
        let mut io = Io::new(PoolLimits::default()).attempted(doing)?;
        let (mut from, mut to) =
            (media[0].attach(&mut io).attempted(doing)?, media[1].attach(&mut io).attempted(doing)?);
        let plan = Plan {
            size: Some(self.bytes),
            chunk: Some(self.block),
            depth,
            rate: self.rate,
            // What is measured is moving: zeroes too.
            sparse: false,
            ..Plan::default()
        };
        let report = mover::copy(&mut io, &mut *from, &mut *to, &plan, &mut |_| Control::Continue);
        let report = report.attempted(doing)?;
        Ok(Copied {
            bytes: report.bytes,
            seconds: report.seconds,
            read_us: report.read.latency.mean_us,
            write_us: report.write.latency.mean_us,
            depth_max: report.depth_max,
            ..Copied::default()
        })
    }
}

/// Reads the first bytes of a device again and again, or writes them, many at a time: what the device can.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Loader {
    pub(super) path: PathBuf,
    pub(super) write: bool,
    pub(super) bytes: u64,
    pub(super) block: u32,
    pub(super) speed: Speed,
}

impl Loader {
    /// Answers with bytes per second.
    pub(crate) fn run(self, mut talk: Talk) -> Result<(), LabError> {
        let doing = format!("load {}", self.path.display());
        let medium = self.speed.open(&self.path, self.write)?;
        let mut io = Io::new(PoolLimits::default()).attempted(&doing)?;
        let mut endpoint = medium.attach(&mut io).attempted(&doing)?;
        // As many as hide the delay, as far as there are blocks.
        let delayed = self.speed.delay_us > 0;
        let most = (self.bytes / u64::from(self.block)).max(1) as u32;
        let plan = LoadPlan {
            block_bytes: self.block,
            depth: if delayed { LOAD_DEPTH_DELAYED } else { LOAD_DEPTH }.min(most),
            range_bytes: self.bytes,
            write: self.write,
            random: None,
            verify: None,
        };
        let mut load = Load::new(&mut io, &mut *endpoint, plan).attempted(&doing)?;
        talk.say(&())?;
        while let Some(order) = talk.next()? {
            let until = match order {
                Order::Go { ms } => Until::Time(Duration::from_millis(ms)),
                Order::Mark => Until::Operations(1),
            };
            let figures = load.run(until, &mut || false).attempted(&doing)?;
            let bytes = figures.operations as f64 * f64::from(self.block);
            talk.say(&(bytes / figures.duration.as_secs_f64().max(1e-9)))?;
        }
        Ok(())
    }
}

/// Opens for looking at it and for spoiling it, past nothing.
pub(super) fn open_plain(path: &Path, writable: bool) -> Result<File, LabError> {
    let doing = format!("open {}", path.display());
    OpenOptions::new().read(true).write(writable).open(path).attempted(&doing)
}
