//! The initiator ports of a server that has ended, kept by the service manager for the next process.
//!
//! They lie in a memory file whose descriptor the manager stores. The server creates it at its start, because the sandbox
//! permits no new files, and writes it at the very end, when all storage is flushed. The next process takes it out of the
//! store and empties it before it serves: if that one is killed, its successor must not find these ports, even if the manager
//! has not received the removal.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;

use node::target::{FormerPort, FormerUnit};
use rustix::fs::{MemfdFlags, memfd_create};
use seal::PublicKey;
use serde::{Deserialize, Serialize};

const VERSION: u32 = 1;
/// Bound of the file: 4096 ports with some units each.
const BYTES_MAX: u64 = 64 << 20;

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    version: u32,
    ports: Vec<Port>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Port {
    initiator: String,
    key: Option<String>,
    isid: [u8; 6],
    target: String,
    units: Vec<Unit>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Unit {
    naa: u64,
    serial: String,
    blocks: u64,
    block_size: u32,
    read_only: bool,
    write_cache: bool,
}

/// An empty file for [`write()`].
pub(super) fn create() -> io::Result<OwnedFd> {
    Ok(memfd_create("hikyaku-ports", MemfdFlags::CLOEXEC)?)
}

pub(super) fn write(file: OwnedFd, ports: &[FormerPort]) -> io::Result<OwnedFd> {
    let ports = ports.iter().map(|port| Port {
        initiator: port.initiator.clone(),
        key: port.peer_key.map(|key| key.to_string()),
        isid: port.isid,
        target: port.target.clone(),
        units: port.units.iter().map(of_unit).collect(),
    });
    let mut file = File::from(file);
    let contents = Contents { version: VERSION, ports: ports.collect() };
    file.write_all(&serde_json::to_vec(&contents)?)?;
    Ok(file.into())
}

/// Reads and empties the file: every descriptor of it is of the same memory.
pub(super) fn take(file: OwnedFd) -> io::Result<Vec<FormerPort>> {
    let mut file = File::from(file);
    // A memory file has no name. A file that has one was stored under this name by mistake, and is not emptied.
    if file.metadata()?.nlink() > 0 {
        return Err(io::Error::other("it is no memory file"));
    }
    // The descriptor shares its position with that of the process that wrote it.
    file.rewind()?;
    let mut bytes = Vec::new();
    (&file).take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    file.set_len(0)?;
    if bytes.is_empty() {
        return Err(io::Error::other("another process has taken them"));
    }
    if bytes.len() as u64 > BYTES_MAX {
        return Err(io::Error::other("it is too long"));
    }
    parse(&bytes)
}

pub(crate) fn parse(bytes: &[u8]) -> io::Result<Vec<FormerPort>> {
    let Contents { version, ports } = serde_json::from_slice(bytes)?;
    if version != VERSION {
        return Err(io::Error::other(format!("it has version {version}")));
    }
    ports.into_iter().map(port).collect()
}

fn port(port: Port) -> io::Result<FormerPort> {
    let key = |text: &String| PublicKey::parse(text).ok_or_else(|| io::Error::other("a key is malformed"));
    Ok(FormerPort {
        initiator: port.initiator,
        peer_key: port.key.as_ref().map(key).transpose()?,
        isid: port.isid,
        target: port.target,
        units: port.units.into_iter().map(unit).collect(),
    })
}

fn of_unit(unit: &FormerUnit) -> Unit {
    let FormerUnit { naa, serial, blocks, block_size, read_only, write_cache } = unit.clone();
    Unit { naa, serial, blocks, block_size, read_only, write_cache }
}

fn unit(unit: Unit) -> FormerUnit {
    let Unit { naa, serial, blocks, block_size, read_only, write_cache } = unit;
    FormerUnit { naa, serial, blocks, block_size, read_only, write_cache }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports() -> Vec<FormerPort> {
        let unit = FormerUnit {
            naa: 0x3000_0000_0000_0001,
            serial: "s".into(),
            blocks: 2048,
            block_size: 512,
            read_only: false,
            write_cache: true,
        };
        let port = |peer_key| FormerPort {
            initiator: "iqn.2026-11.example:i".into(),
            peer_key,
            isid: [0x80, 1, 2, 3, 4, 5],
            target: "iqn.2026-11.example:t".into(),
            units: vec![unit.clone()],
        };
        vec![port(None), port(Some(PublicKey([7; 32])))]
    }

    #[test]
    fn ports_pass_through_the_file_once() {
        let file = write(create().unwrap(), &ports()).unwrap();
        assert_eq!(
            take(file.try_clone().unwrap()).unwrap(),
            ports(),
            "from its beginning, wherever it stands"
        );
        assert!(take(file).unwrap_err().to_string().contains("another process has taken them"));
    }

    #[test]
    fn a_file_with_a_name_is_not_emptied() {
        let mut named = tempfile::NamedTempFile::new().unwrap();
        named.write_all(b"precious").unwrap();
        let error = take(named.reopen().unwrap().into()).unwrap_err();
        assert!(error.to_string().contains("no memory file"), "{error}");
        assert_eq!(std::fs::read(named.path()).unwrap(), b"precious");
    }

    #[test]
    fn other_contents_are_refused() {
        let good =
            String::from_utf8(serde_json::to_vec(&Contents { version: 1, ports: Vec::new() }).unwrap());
        let good = good.unwrap();
        for text in [
            String::new(),
            "{}".to_owned(),
            good.replace('1', "2"),
            good.replace("[]", "[{}]"),
            format!("{good}x"),
            good.replace('}', ",\"more\":1}"),
        ] {
            let mut file = File::from(create().unwrap());
            file.write_all(text.as_bytes()).unwrap();
            assert!(take(file.into()).is_err(), "{text}");
        }
    }
}
