//! The processes of the experiment: copiers, and loaders that only read or only write.

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

use crate::part::{Orders, send};
use crate::sys::{self, Cpu};
use crate::{Attempted, LabError};

/// Burst of a device's rate limit; the same as of the layer `limit=`.
const BURST: Duration = Duration::from_millis(10);
const LOAD_DEPTH: u32 = 16;
/// Requests in flight of a loader on a device with delay.
const LOAD_DEPTH_DELAYED: u32 = 64;

/// Slowness added to a device, so that overlap is visible on any machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Speed {
    /// Delay of each request in microseconds; concurrent requests wait concurrently.
    pub(super) delay_us: u64,
    /// Bytes per second in each direction; 0 for no limit.
    pub(super) limit: u64,
}

impl Speed {
    pub(super) fn delay(self) -> Duration {
        Duration::from_micros(self.delay_us)
    }

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

    /// Opens storage with this slowness as layers.
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

/// The same slowness for a loop of blocking calls: each call waits.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Method {
    /// The paper's copy at user level, equal to dd: reads through the page cache, synchronous writes through the page
    /// cache, one buffer.
    UserLevel,
    /// The same loop with O_DIRECT, and one flush at the end.
    Direct,
    /// The mover with a fixed number of buffers; `None`: adaptive.
    Mover(Option<u32>),
    Program(Program),
}

/// Programs that copy. They run only on devices without added slowness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Program {
    /// `dd oflag=sync`: the baseline of the paper itself.
    Dd,
    DdDirect,
    /// `qemu-img convert -W -m 8` with O_DIRECT and io_uring: the fastest of the tested variants.
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
                let words = "convert -n -W -m 8 -S 0 --image-opts --target-image-opts";
                command.args(words.split(' '));
                for path in paths {
                    let is_device = path.metadata().is_ok_and(|found| found.file_type().is_block_device());
                    let driver = if is_device { "host_device" } else { "file" };
                    command.arg(format!(
                        "driver=raw,size={bytes},file.driver={driver},file.filename={},file.aio=io_uring,\
                         file.cache.direct=on",
                        // qemu-img escapes a comma by a second one.
                        path.display().to_string().replace(',', ",,")
                    ));
                }
            }
        }
        command
    }
}

/// A process that copies the first bytes of one device to another.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Copier {
    pub(super) method: Method,
    pub(super) paths: [PathBuf; 2],
    pub(super) bytes: u64,
    pub(super) block: u32,
    pub(super) speed: Speed,
    /// Maximum bytes read per second.
    pub(super) rate: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Copied {
    pub(super) bytes: u64,
    /// Seconds until all bytes were durable.
    pub(super) seconds: f64,
    pub(super) cpu: Cpu,
    pub(super) switches: u64,
    /// Mean of one read and one write; 0 if not measured.
    pub(super) read_us: f64,
    pub(super) write_us: f64,
    /// Maximum number of buffers in use.
    pub(super) depth_max: u32,
}

impl Copier {
    pub(crate) fn run(self, orders: Orders) -> Result<(), LabError> {
        send(&())?;
        orders.serve(|time| self.repeat(time))
    }

    /// Copies at least once, and repeats until `time` has passed.
    fn repeat(&self, time: Duration) -> Result<Copied, LabError> {
        let used = || match self.method {
            Method::Program(_) => Cpu::of_children(),
            _ => Cpu::now(),
        };
        let (start, mut all) = (Instant::now(), Copied::default());
        while all.bytes == 0 || start.elapsed() < time {
            if all.bytes > 0 {
                // The same conditions as for the first copy: the page cache holds nothing of an earlier one.
                for path in &self.paths {
                    sys::drop_cache(&open_plain(path, false)?).attempted("empty the page cache")?;
                }
            }
            let (cpu, switches) = (used(), sys::context_switches());
            let one = match self.method {
                Method::UserLevel => self.by_calls(0, libc::O_SYNC)?,
                Method::Direct => self.by_calls(libc::O_DIRECT, libc::O_DIRECT)?,
                Method::Mover(depth) => self.by_mover(depth)?,
                Method::Program(program) => self.by_program(program)?,
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

    /// Reads and writes blocks alternately.
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

    /// Starting and ending the program counts as part of the copy.
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
            rate: self.rate.into(),
            // Zeroes are moved too, as the experiment measures moving.
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

/// A process that reads or writes the first bytes of a device repeatedly with many requests in flight, to measure the
/// device's maximum rate.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Loader {
    pub(super) path: PathBuf,
    pub(super) write: bool,
    pub(super) bytes: u64,
    pub(super) block: u32,
    pub(super) speed: Speed,
}

impl Loader {
    /// Answers each order with bytes per second.
    pub(crate) fn run(self, orders: Orders) -> Result<(), LabError> {
        let doing = format!("load {}", self.path.display());
        let medium = self.speed.open(&self.path, self.write)?;
        let mut io = Io::new(PoolLimits::default()).attempted(&doing)?;
        let mut endpoint = medium.attach(&mut io).attempted(&doing)?;
        // Enough requests to hide the delay, limited by the number of blocks.
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
        send(&())?;
        orders.serve(|time| {
            let figures = load.run(Until::Time(time), &mut || false).attempted(&doing)?;
            let bytes = figures.operations as f64 * f64::from(self.block);
            Ok(bytes / figures.duration.as_secs_f64().max(1e-9))
        })
    }
}

/// Opens through the page cache, for comparing and for overwriting.
pub(super) fn open_plain(path: &Path, writable: bool) -> Result<File, LabError> {
    let doing = format!("open {}", path.display());
    OpenOptions::new().read(true).write(writable).open(path).attempted(&doing)
}
