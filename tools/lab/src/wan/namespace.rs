//! Network namespaces with names, as `ip netns` makes them.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::{Attempted, LabError};

const FOLDER: &str = "/run/netns";
/// Every name is this, a word, the process that made it and a number.
const PREFIX: &str = "hikyaku-";
const ALLOWED: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";
const CONGESTION_CONTROL: &str = "net/ipv4/tcp_congestion_control";

/// Why no path can be made on this machine; `None` if nothing is known that prevents it.
pub fn obstacle() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("network namespaces and TUN interfaces need root".to_owned());
    }
    if !Path::new("/dev/net/tun").exists() {
        return Some("there is no /dev/net/tun".to_owned());
    }
    let found = Command::new("ip").arg("-V").output().is_ok_and(|output| output.status.success());
    (!found).then(|| "the program ip (iproute2) is not installed".to_owned())
}

/// A network namespace. Dropping it kills the processes in it and removes it.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Makes a namespace whose name contains `word`. Removes those of processes that no longer run.
    pub fn new(word: &str) -> Result<Self, LabError> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        if let Some(obstacle) = obstacle() {
            return Err(LabError::new("make a network namespace", &obstacle));
        }
        remove_leftovers();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{word}-{}-{number}", std::process::id());
        ip(&format!("netns add {name}"))?;
        Ok(Self { name })
    }

    /// The name in `ip netns`.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn path(&self) -> PathBuf {
        Path::new(FOLDER).join(&self.name)
    }

    /// Runs `ip` in the namespace.
    pub fn ip(&self, arguments: &str) -> Result<(), LabError> {
        ip(&format!("-n {} {arguments}", self.name))
    }

    /// A command that runs `program` in the namespace. Its process is that of the program.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// Runs `work` on a thread of its own in the namespace. Sockets that it makes stay there.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        let entered = || {
            let attempted = format!("enter the network namespace {}", self.name);
            let file = File::open(self.path()).attempted(&attempted)?;
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                .attempted(&attempted)?;
            Ok(work())
        };
        std::thread::scope(|scope| scope.spawn(entered).join()).unwrap_or_else(|panic| {
            std::panic::resume_unwind(panic);
        })
    }

    /// Sets a value below `/proc/sys`, as `net/ipv4/tcp_wmem`. A congestion control that namespaces may not use is
    /// first allowed for the whole machine, and stays allowed.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<(), LabError> {
        if key == CONGESTION_CONTROL {
            allow(value)?;
        }
        let path = Path::new("/proc/sys").join(key);
        self.within(|| std::fs::write(&path, value).attempted(&format!("set {key} to '{value}'")))?
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        remove(&self.name);
    }
}

fn allow(congestion_control: &str) -> Result<(), LabError> {
    let attempted = format!("allow the congestion control {congestion_control}");
    let allowed = std::fs::read_to_string(ALLOWED).attempted(&attempted)?;
    if allowed.split_whitespace().any(|name| name == congestion_control) {
        return Ok(());
    }
    std::fs::write(ALLOWED, format!("{} {congestion_control}", allowed.trim())).attempted(&attempted)
}

fn ip(arguments: &str) -> Result<(), LabError> {
    let attempted = || format!("ip {arguments}");
    let output = Command::new("ip").args(arguments.split_whitespace()).output();
    let output = output.attempted(&attempted())?;
    if output.status.success() {
        return Ok(());
    }
    Err(LabError::new(attempted(), &String::from_utf8_lossy(&output.stderr).trim()))
}

/// Kills the processes in a namespace and removes it, as far as possible.
fn remove(name: &str) {
    let listed = Command::new("ip").args(["netns", "pids", name]).output();
    let pids = listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    for pid in pids.split_whitespace().filter_map(|pid| rustix::process::Pid::from_raw(pid.parse().ok()?)) {
        // It may have ended meanwhile.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
    let _ = ip(&format!("netns del {name}"));
}

/// Removes the namespaces of processes that ended without doing so.
fn remove_leftovers() {
    let Ok(folder) = std::fs::read_dir(FOLDER) else { return };
    for name in folder.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
        if maker(&name).is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            remove(&name);
        }
    }
}

/// The process that made the namespace of this name.
fn maker(name: &str) -> Option<u32> {
    let mut parts = name.strip_prefix(PREFIX)?.rsplit('-');
    let _number: u32 = parts.next()?.parse().ok()?;
    parts.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_their_maker() {
        for (name, expected) in [
            ("hikyaku-wan-a-123-0", Some(123)),
            ("hikyaku-target-7-12", Some(7)),
            ("hikyaku-wan-a-123", None),
            ("other-wan-a-123-0", None),
            ("hikyaku-", None),
        ] {
            assert_eq!(maker(name), expected, "{name}");
        }
    }
}
