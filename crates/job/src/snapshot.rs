//! `--snapshot`: copies the source's state of one moment, from a snapshot made before the copy and removed after it.
//!
//! A file is cloned into an unnamed file (O_TMPFILE), which the kernel removes when this process ends. Snapshots of LVM
//! and ZFS have names; the guardian of `hooks.rs` removes them, even if this process is killed. `Volume::commands`
//! composes the command lines without side effects.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use block::{Fingerprint, Location};
use host::{Kernel, Node};

use crate::hooks::Guardian;
use crate::shell::{self, path, tool};
use crate::{Address, Failure, Host};

const PREFIX: &str = "hikyaku-";
/// Time for a new device's name to appear, and the pause between checks for it.
const NAME_WAIT_MAX: Duration = Duration::from_secs(5);
const NAME_PAUSE: Duration = Duration::from_millis(20);

/// A snapshot of the source. Dropping it removes the snapshot.
pub struct Snapshot {
    kind: &'static str,
    /// Fingerprint of the source before the snapshot.
    pub(crate) source_was: Fingerprint,
    held: Held,
}

enum Held {
    /// The cloned file. This descriptor is the only reference to it.
    Clone(#[expect(dead_code, reason = "it is there as long as it is open")] File),
    /// A named snapshot: the guardian that removes it, and the command that it runs for that.
    Named(Guardian, String),
}

/// Creates a snapshot of the source and sets the location of `source` to it.
pub fn take(
    host: &dyn Host,
    source: &mut dyn Address,
    destination: &dyn Address,
) -> Result<Snapshot, Failure> {
    let text = source.text().to_owned();
    let failed = |cause: String| Failure::failed("make a snapshot of", text.clone(), cause);
    let Some(path) = source.path().map(Path::to_owned) else {
        return Err(failed("it is no file or device of this machine".to_owned()).hint(
            "make it where the storage is, and copy that; without --snapshot the source is copied as it is",
        ));
    };
    // Compared here because the snapshot and its source are different storage.
    let nodes = Node::of(&path).zip(destination.path().and_then(Node::of));
    if nodes.is_some_and(|(source, destination)| Kernel::default().is_same(source, destination)) {
        let cause = format!("it is the same storage as the source {}", source.text());
        return Err(Failure::refused("copy to", destination.text(), cause));
    }
    let source_was = fingerprint(source)?;
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
                host.warn(&format!(
                    "a snapshot of another copy is there; if that copy is not running any more: {}",
                    shell::line(&volume.commands(&leftover).remove)
                ));
            }
            let commands = volume.commands(&format!("{PREFIX}{}", std::process::id()));
            let (guardian, remove) = commands.run(host).map_err(&failed)?;
            let place = volume.wait(&commands).map_err(&failed)?;
            (volume.kind(), place, Held::Named(guardian, remove))
        }
    };
    source.spec_mut().location = Location::File(place);
    host.remark(&format!("copying from a snapshot of {text} ({kind})"));
    Ok(Snapshot { kind, source_was, held })
}

/// Fingerprint of the source itself, which may be in use.
fn fingerprint(source: &dyn Address) -> Result<Fingerprint, Failure> {
    let options = block::OpenOptions { writable: false, request_alignment: 1, allow_in_use: true };
    let medium = source.open(&options)?;
    let endpoint = crate::attach(&mut crate::event_loop()?, &medium);
    Ok(endpoint.map_err(|error| source.failed("use", &error))?.inspect().fingerprint())
}

/// An unnamed file in the directory of `path` that shares the blocks of `path`.
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
    /// Kind of the snapshot: `reflink`, `lvm` or `zfs`.
    pub fn name(&self) -> &'static str {
        self.kind
    }

    /// Removes the snapshot and returns `result`. If `result` is `Ok` and the removal fails, returns that failure; if
    /// both failed, warns of the second.
    pub fn remove<T>(self, host: &dyn Host, result: Result<T, Failure>) -> Result<T, Failure> {
        let Held::Named(guardian, remove) = self.held else { return result };
        let _orderly = host.stop().orderly();
        let cause = match guardian.end(0) {
            Ok(status) if status.success() => return result,
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        let failure = Failure::failed("remove the snapshot", "", cause).hint(remove);
        if result.is_err() {
            host.warn(&failure.to_string());
            return result;
        }
        Err(failure)
    }
}

/// The volume of the source, which can create snapshots.
#[derive(Debug, PartialEq, Eq)]
enum Volume {
    Lvm {
        group: String,
        volume: String,
        thin: bool,
    },
    /// A ZFS volume, which is a block device.
    Zvol {
        dataset: String,
    },
    /// A file in a ZFS file system.
    Zfs {
        dataset: String,
        mountpoint: PathBuf,
        path: PathBuf,
    },
}

#[derive(Debug, PartialEq, Eq)]
struct Commands {
    make: Vec<Vec<String>>,
    remove: Vec<String>,
    /// Path of the snapshot; for LVM, the argument of `lvs` that prints the path.
    place: String,
}

impl Volume {
    fn of(path: &Path, is_device: bool) -> Option<Self> {
        let path = if path.starts_with("/dev/zvol") { path.to_owned() } else { path.canonicalize().ok()? };
        let name = path.to_str()?;
        if !is_device {
            let output = output_of(&["zfs", "list", "-H", "-o", "name,mountpoint", name])?;
            let (dataset, mountpoint) = output.trim().split_once('\t')?;
            let path = path.strip_prefix(mountpoint).ok()?.to_owned();
            return Some(Self::Zfs { dataset: dataset.to_owned(), mountpoint: mountpoint.into(), path });
        }
        if let Some(dataset) = name.strip_prefix("/dev/zvol/") {
            return Some(Self::Zvol { dataset: dataset.to_owned() });
        }
        let output =
            output_of(&["lvs", "--noheadings", "--separator", ":", "-o", "vg_name,lv_name,pool_lv", name])?;
        let mut fields = output.trim().split(':');
        let (group, volume) = (fields.next()?.to_owned(), fields.next()?.to_owned());
        Some(Self::Lvm { group, volume, thin: fields.next().is_some_and(|pool| !pool.is_empty()) })
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Lvm { .. } => "lvm",
            Self::Zvol { .. } | Self::Zfs { .. } => "zfs",
        }
    }

    /// Names of snapshots left by other copies, of this volume or (LVM) of its group.
    fn leftovers(&self) -> Vec<String> {
        let output = match self {
            Self::Lvm { group, .. } => output_of(&["lvs", "--noheadings", "-o", "lv_name", group]),
            Self::Zvol { dataset } | Self::Zfs { dataset, .. } => {
                output_of(&["zfs", "list", "-H", "-t", "snapshot", "-o", "name", dataset])
            }
        };
        let names = output.unwrap_or_default();
        let names = names.lines().map(|line| line.trim().rsplit('@').next().unwrap_or_default());
        names.filter(|name| name.starts_with(PREFIX)).map(str::to_owned).collect()
    }

    fn commands(&self, name: &str) -> Commands {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        match self {
            Self::Lvm { group, volume, thin } => {
                let (origin, snapshot) = (format!("{group}/{volume}"), format!("{group}/{name}"));
                let mut make = words(&["lvcreate", "--snapshot", "--permission", "r", "--name", name]);
                // A thin snapshot allocates space as needed. Any other snapshot gets all free extents, which LVM limits
                // to its maximum need: a snapshot that runs full is lost.
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
                // A snapshot has no device unless the property `snapdev` is set; a clone has one.
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

    /// Waits until the snapshot's path exists, and returns it.
    fn wait(&self, commands: &Commands) -> Result<PathBuf, String> {
        let place = match self {
            Self::Lvm { .. } => output_of(&["lvs", "--noheadings", "-o", "lv_path", &commands.place]),
            _ => Some(commands.place.clone()),
        };
        let place = PathBuf::from(place.unwrap_or_default().trim());
        let until = Instant::now() + NAME_WAIT_MAX;
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
    /// Creates the snapshot. Returns the guardian that removes it when ended, and the command for that.
    fn run(&self, host: &dyn Host) -> Result<(Guardian, String), String> {
        let make: Vec<_> = self.make.iter().map(|words| shell::script(words) + " >/dev/null").collect();
        let remove = shell::script(&self.remove);
        // If the creation fails, whatever exists of the snapshot is removed without messages. Otherwise a failed
        // removal is retried after 1 s: the kernel may still be closing the device of a killed process.
        let removal = format!(
            "if [ $HIKYAKU_EXIT = 1 ]; then {remove} >/dev/null 2>&1; exit 0; fi\n\
             {remove} >/dev/null 2>&1 || {{ sleep 1; {remove} >/dev/null; }}"
        );
        let _orderly = host.stop().orderly();
        let (guardian, status) = Guardian::begin(&make.join(" && "), &removal, &[("PATH", &path())])
            .map_err(|error| error.to_string())?;
        if status.success() {
            return Ok((guardian, remove));
        }
        let cause = format!("{}: {status}", shell::line(&self.make[0]));
        // The removal after a failed creation always exits with 0.
        let _ = guardian.end(1);
        Err(cause)
    }
}

/// The output of a command; `None` if the command is missing or fails.
fn output_of(words: &[&str]) -> Option<String> {
    let output = tool(words[0]).args(&words[1..]).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(volume: &Volume) -> (Vec<String>, String, String) {
        let commands = volume.commands("hikyaku-1");
        let make = commands.make.iter().map(|words| shell::script(words)).collect();
        (make, shell::script(&commands.remove), commands.place)
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
        let clone = "zfs clone -o 'readonly=on' tank/vm/disk@hikyaku-1 tank/vm/hikyaku-1";
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
