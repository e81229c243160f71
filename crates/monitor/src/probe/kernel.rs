//! The kernel's own iSCSI sessions (open-iscsi), as `/sys` shows them to every user.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use super::process::text;
use crate::limits::WATCHED_MAX;

/// Disks of one session that are read.
const DISKS_MAX: usize = 256;

/// A disk of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelDisk {
    /// `sdX`.
    pub name: String,
    pub queue_depth: Option<u32>,
    /// Requests outstanding now: reads and writes.
    pub inflight: Option<u32>,
    /// Bytes since the disk appeared.
    pub read_bytes: Option<u64>,
    pub written_bytes: Option<u64>,
}

/// A session with the connection that carries it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelSession {
    /// `sessionN`.
    pub name: String,
    /// The target's name: chosen by the peer, to be escaped where it is shown.
    pub target: String,
    /// Address of the target's end.
    pub remote: SocketAddr,
    pub disks: Vec<KernelDisk>,
}

impl KernelSession {
    /// Commands outstanding at all disks.
    pub fn outstanding(&self) -> Option<u32> {
        let known = self.disks.iter().map(|disk| disk.inflight);
        known.sum::<Option<u32>>().filter(|_| !self.disks.is_empty())
    }
}

/// Reads the requests outstanding now at the disks of a session.
pub(super) fn observe(session: &mut KernelSession, sys: &Path) {
    for disk in &mut session.disks {
        disk.inflight = inflight(&sys.join("block").join(&disk.name));
    }
}

/// Reads and writes outstanding at a block device.
fn inflight(dir: &Path) -> Option<u32> {
    let counts = numbers(dir.join("inflight"));
    u32::try_from(counts.first()?.saturating_add(*counts.get(1)?)).ok()
}

/// The numbers of a file, up to the first word that is none.
fn numbers(path: PathBuf) -> Vec<u64> {
    let text = text(path).unwrap_or_default();
    text.split_ascii_whitespace().map_while(|word| word.parse().ok()).collect()
}

/// Names of a directory's entries, sorted.
fn names(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// The sessions below `sys` (`/sys`), in the order of their names.
pub(super) fn sessions(sys: &Path) -> Vec<KernelSession> {
    let class = sys.join("class/iscsi_connection");
    let connections = names(&class).into_iter().take(WATCHED_MAX);
    connections.filter_map(|connection| session(sys, &class, &connection)).collect()
}

/// The session of `connectionS:C`.
fn session(sys: &Path, class: &Path, connection: &str) -> Option<KernelSession> {
    let number = connection.strip_prefix("connection")?.split(':').next()?;
    let name = format!("session{number}");
    let dir = class.join(connection);
    let either = |first: &str, second: &str| {
        let known = |name: &&str| text(dir.join(name)).filter(|text| !text.is_empty() && text != "(null)");
        known(&first).or_else(|| known(&second))
    };
    let address = either("address", "persistent_address")?;
    let address: IpAddr = address.trim_matches(['[', ']']).parse().ok()?;
    let port = either("port", "persistent_port")?.parse().ok()?;
    let session = sys.join("class/iscsi_session").join(&name);
    let target = text(session.join("targetname")).unwrap_or_default();
    let disks = disks(sys, &session.join("device"));
    Some(KernelSession { name, target, remote: SocketAddr::new(address, port), disks })
}

/// `targetH:B:T/H:B:T:L/block/NAME` below the session's device.
fn disks(sys: &Path, device: &Path) -> Vec<KernelDisk> {
    let below = |dir: PathBuf, prefix: &str| -> Vec<PathBuf> {
        names(&dir).into_iter().filter(|name| name.starts_with(prefix)).map(|name| dir.join(name)).collect()
    };
    let targets = below(device.to_owned(), "target");
    let units =
        targets.into_iter().flat_map(|target| below(target, "")).filter(|unit| unit.join("block").is_dir());
    let disk = |unit: PathBuf| {
        let depth = text(unit.join("queue_depth")).and_then(|depth| depth.parse().ok());
        let found = names(&unit.join("block")).into_iter();
        found.map(move |name| disk(sys, name, depth)).collect::<Vec<_>>()
    };
    units.flat_map(disk).take(DISKS_MAX).collect()
}

fn disk(sys: &Path, name: String, queue_depth: Option<u32>) -> KernelDisk {
    let dir = sys.join("block").join(&name);
    let stat = numbers(dir.join("stat"));
    // Documentation/block/stat.rst: sectors are of 512 bytes, whatever the disk's blocks are.
    let bytes = |field: usize| stat.get(field).map(|sectors| sectors.saturating_mul(512));
    KernelDisk { queue_depth, inflight: inflight(&dir), read_bytes: bytes(2), written_bytes: bytes(6), name }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{content}\n")).unwrap();
        }
        root
    }

    #[test]
    fn a_session_has_its_address_and_its_disks() {
        let unit = "class/iscsi_session/session3/device/target4:0:0/4:0:0:1";
        let root = tree(&[
            ("class/iscsi_connection/connection3:0/address", "192.0.2.7"),
            ("class/iscsi_connection/connection3:0/port", "3260"),
            ("class/iscsi_connection/connection3:0/persistent_address", "10.0.0.1"),
            ("class/iscsi_session/session3/targetname", "iqn.2026-11.example:disks"),
            (&format!("{unit}/queue_depth"), "32"),
            (&format!("{unit}/block/sdb/size"), "1"),
            ("class/iscsi_session/session3/device/target4:0:0/power/control", "auto"),
            ("block/sdb/inflight", "       3       29"),
            ("block/sdb/stat", "   1 0 8 1  2 0 4096 9 5 1 1"),
            ("class/iscsi_connection/connection4:0/address", "fe80::1"),
            ("class/iscsi_connection/connection4:0/persistent_port", "860"),
            ("class/iscsi_connection/connection5:0/address", "(null)"),
            ("class/iscsi_connection/nonsense/address", "10.0.0.1"),
        ]);
        let found = sessions(root.path());
        let disk = KernelDisk {
            name: "sdb".into(),
            queue_depth: Some(32),
            inflight: Some(32),
            read_bytes: Some(4096),
            written_bytes: Some(4096 * 512),
        };
        assert_eq!(found[0].remote, "192.0.2.7:3260".parse().unwrap());
        assert_eq!((&*found[0].target, &found[0].disks), ("iqn.2026-11.example:disks", &vec![disk]));
        assert_eq!((found[0].outstanding(), found[1].outstanding()), (Some(32), None));
        assert_eq!((found.len(), found[1].remote), (2, "[fe80::1]:860".parse().unwrap()));
        let mut first = found[0].clone();
        fs::write(root.path().join("block/sdb/inflight"), "0 1\n").unwrap();
        observe(&mut first, root.path());
        assert_eq!(first.outstanding(), Some(1));
    }

    #[test]
    fn a_machine_without_open_iscsi_has_none() {
        assert!(sessions(Path::new("/nonexistent")).is_empty());
    }
}
