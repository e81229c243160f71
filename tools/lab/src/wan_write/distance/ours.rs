//! `hikyaku serve` and `hikyaku copy` as a user starts them, in the namespaces of a path.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::files::open_to_all;
use super::plan::Ours;
use crate::wan::Namespace;
use crate::{Attempted, LabError};

const PROGRAM: &str = "hikyaku";
const IQN: &str = "iqn.2026-11.example.hikyaku:distance";
/// The user of [`Ours::Unprivileged`].
const NOBODY: u32 = 65534;

/// The program, beside this one or in PATH.
pub(crate) fn find() -> Option<PathBuf> {
    let beside = std::env::current_exe().ok().and_then(|program| program.parent().map(Path::to_owned));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = beside.into_iter().chain(std::env::split_paths(&path));
    places.find_map(|place| Some(place.join(PROGRAM)).filter(|program| program.is_file()))
}

/// The program with homes and keys of its users.
pub(super) struct Program {
    path: PathBuf,
    folder: TempDir,
    /// Public keys of initiator and target.
    keys: [String; 2],
}

impl Program {
    pub(super) fn new(path: PathBuf) -> Result<Self, LabError> {
        let folder = crate::folder()?;
        // The folder of temporary files is its owner's alone.
        open_to_all(folder.path())?;
        let mut program = Self { path, folder, keys: Default::default() };
        for (home, user) in [("root", None), ("nobody", Some(NOBODY))] {
            let home = program.folder.path().join(home);
            let made = std::fs::create_dir(&home).and_then(|()| chown(&home, user, user));
            made.attempted(&format!("make {}", home.display()))?;
        }
        program.keys = [program.key("initiator")?, program.key("target")?];
        let peers = format!("[[peer]]\nname = \"lab\"\npublic-key = \"{}\"\n", program.keys[0]);
        std::fs::write(program.at("peers.toml"), peers).attempted("write a list of peers")?;
        Ok(program)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Makes a key; returns its public half.
    fn key(&self, name: &str) -> Result<String, LabError> {
        let mut command = self.command(Ours::Plain);
        let output = command.args(["key", "new"]).arg(self.at(name)).output();
        let output = output.attempted("start hikyaku key new")?;
        let public = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        match output.status.success() {
            true => Ok(public),
            false => Err(LabError::new("hikyaku key new", &String::from_utf8_lossy(&output.stderr).trim())),
        }
    }

    /// A folder that the user of this row may write to.
    pub(super) fn home(&self, how: Ours) -> PathBuf {
        self.at(if how == Ours::Unprivileged { "nobody" } else { "root" })
    }

    fn command(&self, how: Ours) -> Command {
        let home = self.home(how);
        let mut command = Command::new(&self.path);
        for name in ["HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"] {
            command.env(name, &home);
        }
        match how {
            // Without supplementary groups, and so without capabilities.
            Ours::Unprivileged => drop(command.uid(NOBODY).gid(NOBODY)),
            Ours::Portable => drop(command.env("HIKYAKU_IO", "portable")),
            _ => {}
        }
        command.stdin(Stdio::null());
        command
    }

    /// A copy of the first `bytes`, whose output is JSON.
    pub(super) fn copy(&self, how: Ours, from: &str, to: &str, bytes: u64) -> Command {
        let mut command = self.command(how);
        command.args(["copy", "--quiet", "--json", "--force", "--size", &bytes.to_string(), from, to]);
        command
    }

    /// Serves a file in a namespace until the guard is dropped.
    pub(super) fn serve(
        &self,
        how: Ours,
        namespace: &Namespace,
        address: SocketAddr,
        store: &Path,
    ) -> Result<Serving, LabError> {
        let doing = "start hikyaku serve";
        let errors = self.at("stderr");
        let stderr = File::create(&errors).attempted(&format!("make {}", errors.display()))?;
        let mut command = self.command(how);
        command.arg("serve").arg(store).args(["--iqn", IQN, "--listen", &address.to_string()]);
        match how {
            Ours::Sealed => {
                command.args(["--seal", "require", "--identity"]).arg(self.at("target"));
                command.arg("--peers").arg(self.at("peers.toml"));
            }
            _ => drop(command.args(["--seal", "off"])),
        }
        command.stdout(Stdio::piped()).stderr(stderr);
        let mut child = namespace.within(|| command.spawn())?.attempted(doing)?;
        let stdout = child.stdout.take().expect("piped above");
        let mut serving = Serving { child, url: String::new() };
        // One line for its LUN, when it listens.
        BufReader::new(stdout).read_line(&mut serving.url).attempted(doing)?;
        serving.url.truncate(serving.url.trim_end().len());
        if serving.url.is_empty() {
            let complaint = std::fs::read_to_string(&errors).unwrap_or_default();
            return Err(LabError::new(doing, &complaint.trim()));
        }
        let options = match how {
            Ours::Sealed => {
                format!(",identity={},peer-key={}", self.at("initiator").display(), self.keys[1])
            }
            _ => ",seal=off".to_owned(),
        };
        serving.url += &options;
        Ok(serving)
    }
}

/// A running server. A drop ends it.
pub(super) struct Serving {
    child: Child,
    /// Of its LUN, with the options of the initiator's end.
    pub(super) url: String,
}

impl Drop for Serving {
    fn drop(&mut self) {
        // All was flushed at the end of the copy.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
