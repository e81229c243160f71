//! `--snapshot`: the source is copied as it was at one moment, from a snapshot that is made first and removed at the end.
//!
//! A file is cloned into one without a name (O_TMPFILE), which is gone when this process is, however it ends. LVM and ZFS have names
//! for theirs; the guardian of `hooks.rs` removes them, also where this process cannot. The commands come from functions
//! without side effects, at the foot.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use block::device::{Kernel, Node};
use block::{Fingerprint, Location};
use clap::ValueEnum;

use super::hooks::Guardian;
use super::journal::quoted;
use crate::context::Context;
use crate::endpoint::{self, Named};
use crate::error::Failure;

/// How names of snapshots begin.
const PREFIX: &str = "hikyaku-";
/// How long a new device's name may take to appear, and how often that is looked at.
const NAME_PATIENCE: Duration = Duration::from_secs(5);
const NAME_PAUSE: Duration = Duration::from_millis(20);

/// `--snapshot`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Snapshotting {
    /// Copy the source as it is, and whatever is written to it meanwhile
    None,
    /// By what lies beneath the source: reflink, LVM or ZFS; nothing is copied if there is none of them
    Auto,
}

/// A moment of the source. Ends when it is dropped.
pub(super) struct Snapshot {
    kind: &'static str,
    /// The source itself, before.
    pub(super) source_was: Fingerprint,
    held: Held,
}

enum Held {
    /// What is copied is open here, and nowhere else.
    Clone(#[expect(dead_code, reason = "it is there as long as it is open")] File),
    /// Removed by this command, which the guardian runs.
    Named(Guardian, String),
}

/// Makes a snapshot of the source and lets `source` lead to it.
pub(super) fn take(context: &Context, source: &mut Named, destination: &Named) -> Result<Snapshot, Failure> {
    let text = source.text.clone();
    let failed = |cause: String| Failure::failed("make a snapshot of", text.clone(), cause);
    let Some(path) = source.path().map(Path::to_owned) else {
        return Err(failed("it is no file or device of this machine".to_owned()).hint(
            "make it where the storage is, and copy that; without --snapshot the source is copied as it is",
        ));
    };
    // Behind a snapshot it could not be told any more.
    let nodes = Node::of(&path).zip(destination.path().and_then(Node::of));
    if nodes.is_some_and(|(source, destination)| Kernel::default().is_same(source, destination)) {
        let cause = format!("it is the same storage as the source {}", source.text);
        return Err(Failure::refused("copy to", destination.text.clone(), cause));
    }
    let source_was = fingerprint(context, source)?;
    let is_device = std::fs::metadata(&path).is_ok_and(|file| file.file_type().is_block_device());
    let cloned = if is_device { Err("it is a device".to_owned()) } else { clone(&path) };
    let (kind, place, held) = match cloned {
        Ok(file) => ("reflink", format!("/proc/self/fd/{}", file.as_raw_fd()).into(), Held::Clone(file)),
        Err(why) => {
            let volume = Volume::of(&path, is_device).ok_or_else(|| {
                let files = if is_device { String::new() } else { format!("no reflink ({why}), ") };
                failed(format!("{files}no LVM volume and nothing of ZFS that this machine's tools know of"))
                    .hint("without --snapshot the source is copied as it is")
            })?;
            for leftover in volume.leftovers() {
                context.warn(&format!(
                    "a snapshot of another copy is there; if that copy is not running any more: {}",
                    shell(&volume.commands(&leftover).remove)
                ));
            }
            let commands = volume.commands(&format!("{PREFIX}{}", std::process::id()));
            let (guardian, remove) = commands.run(context).map_err(&failed)?;
            let place = volume.wait(&commands).map_err(&failed)?;
            (volume.kind(), place, Held::Named(guardian, remove))
        }
    };
    source.spec.location = Location::File(place);
    context.remark(&format!("copying from a snapshot of {text} ({kind})"));
    Ok(Snapshot { kind, source_was, held })
}

/// The source itself, whoever uses it.
fn fingerprint(context: &Context, source: &Named) -> Result<Fingerprint, Failure> {
    let options = block::OpenOptions { writable: false, request_alignment: 1, allow_in_use: true };
    let medium = source.open(context, &options)?;
    let endpoints = endpoint::attach(&mut endpoint::event_loop()?, &[(source, &medium)])?;
    Ok(endpoints[0].fingerprint())
}

/// A file without a name beside `path`, with the same blocks.
fn clone(path: &Path) -> Result<File, String> {
    let words = |error: std::io::Error| error.to_string();
    let path = path.canonicalize().map_err(words)?;
    let directory = path.parent().expect("a file is in a directory");
    let file = File::open(&path).map_err(words)?;
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600).custom_flags(libc::O_TMPFILE);
    let clone = options.open(directory).map_err(words)?;
    block::offload::clone_file(&file, &clone).map_err(words)?;
    Ok(clone)
}

impl Snapshot {
    /// As `copy --json` has it.
    pub(super) fn name(&self) -> &'static str {
        self.kind
    }

    /// Removes it and gives `result` back. If all went well but that, that is the failure.
    pub(super) fn remove<T>(self, context: &Context, result: Result<T, Failure>) -> Result<T, Failure> {
        let Held::Named(guardian, remove) = self.held else { return result };
        let _orderly = context.stop.orderly();
        let cause = match guardian.end(0) {
            Ok(status) if status.success() => return result,
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        let failure = Failure::failed("remove the snapshot", "", cause).hint(remove);
        if result.is_err() {
            context.warn(&failure.to_string());
            return result;
        }
        Err(failure)
    }
}

/// What keeps the source and can make snapshots of it.
#[derive(Debug, PartialEq, Eq)]
enum Volume {
    Lvm {
        group: String,
        volume: String,
        thin: bool,
    },
    /// A volume of ZFS, which is a device.
    Zvol {
        dataset: String,
    },
    /// A file in a file system of ZFS.
    Zfs {
        dataset: String,
        mountpoint: PathBuf,
        path: PathBuf,
    },
}

/// Command lines, word by word.
#[derive(Debug, PartialEq, Eq)]
struct Commands {
    make: Vec<Vec<String>>,
    remove: Vec<String>,
    /// Where the snapshot lies; of LVM, what to ask for that.
    place: String,
}

impl Volume {
    fn of(path: &Path, is_device: bool) -> Option<Self> {
        let path = if path.starts_with("/dev/zvol") { path.to_owned() } else { path.canonicalize().ok()? };
        let name = path.to_str()?;
        if !is_device {
            let told = ask(&["zfs", "list", "-H", "-o", "name,mountpoint", name])?;
            let (dataset, mountpoint) = told.trim().split_once('\t')?;
            let path = path.strip_prefix(mountpoint).ok()?.to_owned();
            return Some(Self::Zfs { dataset: dataset.to_owned(), mountpoint: mountpoint.into(), path });
        }
        if let Some(dataset) = name.strip_prefix("/dev/zvol/") {
            return Some(Self::Zvol { dataset: dataset.to_owned() });
        }
        let told = ask(&["lvs", "--noheadings", "--separator", ":", "-o", "vg_name,lv_name,pool_lv", name])?;
        let mut fields = told.trim().split(':');
        let (group, volume) = (fields.next()?.to_owned(), fields.next()?.to_owned());
        Some(Self::Lvm { group, volume, thin: fields.next().is_some_and(|pool| !pool.is_empty()) })
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Lvm { .. } => "lvm",
            Self::Zvol { .. } | Self::Zfs { .. } => "zfs",
        }
    }

    /// Names of snapshots that a copy made of it, or beside it, and did not remove so far.
    fn leftovers(&self) -> Vec<String> {
        let told = match self {
            Self::Lvm { group, .. } => ask(&["lvs", "--noheadings", "-o", "lv_name", group]),
            Self::Zvol { dataset } | Self::Zfs { dataset, .. } => {
                ask(&["zfs", "list", "-H", "-t", "snapshot", "-o", "name", dataset])
            }
        };
        let names = told.unwrap_or_default();
        let names = names.lines().map(|line| line.trim().rsplit('@').next().unwrap_or_default());
        names.filter(|name| name.starts_with(PREFIX)).map(str::to_owned).collect()
    }

    /// What makes a snapshot of this name, and what removes it.
    fn commands(&self, name: &str) -> Commands {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        match self {
            Self::Lvm { group, volume, thin } => {
                let (origin, snapshot) = (format!("{group}/{volume}"), format!("{group}/{name}"));
                let mut make = words(&["lvcreate", "--snapshot", "--permission", "r", "--name", name]);
                // Of a thin volume it takes space as it goes. Of another it is given all that is free, which LVM limits to what it can
                // need at most: one that runs full is lost.
                let kind = if *thin { ["--setactivationskip", "n"] } else { ["--extents", "100%FREE"] };
                make.extend(words(&kind));
                make.push(origin);
                Commands {
                    make: vec![make],
                    remove: words(&["lvremove", "--force", &snapshot]),
                    place: snapshot,
                }
            }
            Self::Zvol { dataset } => {
                let (parent, _) = dataset.rsplit_once('/').unwrap_or((dataset, ""));
                let (snapshot, clone) = (format!("{dataset}@{name}"), format!("{parent}/{name}"));
                // A snapshot has no device unless its owner wants that for all of them; its clone has one.
                Commands {
                    make: vec![
                        words(&["zfs", "snapshot", &snapshot]),
                        words(&["zfs", "clone", "-o", "readonly=on", &snapshot, &clone]),
                    ],
                    remove: words(&["zfs", "destroy", "-R", &snapshot]),
                    place: format!("/dev/zvol/{clone}"),
                }
            }
            Self::Zfs { dataset, mountpoint, path } => {
                let snapshot = format!("{dataset}@{name}");
                let place = mountpoint.join(".zfs/snapshot").join(name).join(path);
                Commands {
                    make: vec![words(&["zfs", "snapshot", &snapshot])],
                    remove: words(&["zfs", "destroy", &snapshot]),
                    place: place.to_string_lossy().into_owned(),
                }
            }
        }
    }

    /// Where the snapshot is, once it is there.
    fn wait(&self, commands: &Commands) -> Result<PathBuf, String> {
        let place = match self {
            Self::Lvm { .. } => ask(&["lvs", "--noheadings", "-o", "lv_path", &commands.place]),
            _ => Some(commands.place.clone()),
        };
        let place = PathBuf::from(place.unwrap_or_default().trim());
        let until = Instant::now() + NAME_PATIENCE;
        while !place.exists() {
            if Instant::now() >= until {
                return Err(format!("it was made, but its name {} does not appear", place.display()));
            }
            std::thread::sleep(NAME_PAUSE);
        }
        Ok(place)
    }
}

impl Commands {
    /// Makes the snapshot; the guardian removes it, by the command given back, when it is ended.
    fn run(&self, context: &Context) -> Result<(Guardian, String), String> {
        let make: Vec<_> = self.make.iter().map(|words| shell(words) + " >/dev/null").collect();
        let remove = shell(&self.remove);
        // Where it could not be made, what there is of it goes without a word. A kernel that is still closing the device of a
        // process that was killed has a second for it.
        let removal = format!(
            "if [ $HIKYAKU_EXIT = 1 ]; then {remove} >/dev/null 2>&1; exit 0; fi\n\
             {remove} >/dev/null 2>&1 || {{ sleep 1; {remove} >/dev/null; }}"
        );
        let _orderly = context.stop.orderly();
        let (guardian, status) = Guardian::begin(&make.join(" && "), &removal, &[("PATH", &path())])
            .map_err(|error| error.to_string())?;
        if status.success() {
            return Ok((guardian, remove));
        }
        let cause = format!("{}: {status}", shell(&self.make[0]));
        // It has nothing to say.
        let _ = guardian.end(1);
        Err(cause)
    }
}

/// A command line for `sh -c`.
fn shell(words: &[String]) -> String {
    words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

/// Where programs are looked for: also where those of the system are, which PATH leaves out under cron.
pub(super) fn path() -> String {
    let path = std::env::var("PATH").unwrap_or_else(|_| "/usr/bin:/bin".to_owned());
    path + ":/usr/sbin:/sbin"
}

/// What a command prints; `None` if it is not there or fails.
fn ask(words: &[&str]) -> Option<String> {
    let mut command = Command::new(words[0]);
    command.env("PATH", path());
    let output = command.args(&words[1..]).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(volume: &Volume) -> (Vec<String>, String, String) {
        let commands = volume.commands("hikyaku-1");
        let make = commands.make.iter().map(|words| shell(words)).collect();
        (make, shell(&commands.remove), commands.place)
    }

    #[test]
    fn lvm_snapshots() {
        let volume = |thin| Volume::Lvm { group: "vg".into(), volume: "data".into(), thin };
        let (make, remove, place) = lines(&volume(false));
        let words = "lvcreate --snapshot --permission r --name hikyaku-1 --extents 100%FREE vg/data";
        assert_eq!(make.join("; ").replace('\'', ""), words);
        assert_eq!((remove.as_str(), place.as_str()), ("lvremove --force vg/hikyaku-1", "vg/hikyaku-1"));
        let (make, ..) = lines(&volume(true));
        let words = "lvcreate --snapshot --permission r --name hikyaku-1 --setactivationskip n vg/data";
        assert_eq!(make, [words]);
    }

    #[test]
    fn zfs_snapshots() {
        let (make, remove, place) = lines(&Volume::Zvol { dataset: "tank/vm/disk".into() });
        let clone = "zfs clone -o readonly=on tank/vm/disk@hikyaku-1 tank/vm/hikyaku-1";
        assert_eq!(make, ["zfs snapshot tank/vm/disk@hikyaku-1", clone]);
        assert_eq!(remove, "zfs destroy -R tank/vm/disk@hikyaku-1");
        assert_eq!(place, "/dev/zvol/tank/vm/hikyaku-1");
        let (dataset, mountpoint) = ("tank/my files".into(), "/srv/my files".into());
        let (make, remove, place) = lines(&Volume::Zfs { dataset, mountpoint, path: "vm/a.img".into() });
        assert_eq!(make, ["zfs snapshot 'tank/my files@hikyaku-1'"]);
        assert_eq!(remove, "zfs destroy 'tank/my files@hikyaku-1'");
        assert_eq!(place, "/srv/my files/.zfs/snapshot/hikyaku-1/vm/a.img");
    }
}
