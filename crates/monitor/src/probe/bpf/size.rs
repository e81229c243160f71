//! A larger send buffer for a socket that no process holds: the iterator over TCP sockets sets it from within the kernel.
//!
//! `bpf_setsockopt` has `SO_SNDBUF` alone: neither `SO_SNDBUFFORCE`, so that `net.core.wmem_max` caps the size, nor
//! `SO_BUF_LOCK`, so that the kernel sizes the buffer itself no more.

use std::io::Read;

use aya::maps::HashMap;
use aya::programs::Iter;

use super::{BpfError, load, missing};
use crate::probe::process::text;
use crate::probe::tune::{SEND_BUFFER_BYTES_MAX, TuneError};

/// `struct tune`: six words of 32 bits.
type Answer = [u32; 6];
/// Flag of `struct tune`: also to fewer bytes.
const MAY_SHRINK: u32 = 1;

/// `sk_sndbuf` of a socket, before and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resized {
    pub before_bytes: u64,
    pub after_bytes: u64,
}

/// Sets `sk_sndbuf` of the socket with this cookie, in the calling thread's network namespace, to `wanted_bytes`: never to
/// fewer than it has, unless `may_shrink`. `None`: there is no such socket. The kernel caps it at twice
/// `net.core.wmem_max`, and sizes the buffer itself no more while the connection lasts.
pub fn resize(cookie: u64, wanted_bytes: u32, may_shrink: bool) -> Result<Option<Resized>, BpfError> {
    let (btf, mut programs) = load()?;
    let map = programs.map_mut("TUNE").ok_or_else(missing)?;
    let mut map: HashMap<_, u64, Answer> = HashMap::try_from(map).map_err(|error| BpfError::of(&error))?;
    let question = [wanted_bytes, 0, 0, 0, 0, if may_shrink { MAY_SHRINK } else { 0 }];
    map.insert(cookie, question, 0).map_err(|error| BpfError::of(&error))?;
    let program = programs.program_mut("tune").ok_or_else(missing)?;
    let program: &mut Iter = program.try_into().map_err(|error| BpfError::of(&error))?;
    program.load("tcp", &btf).map_err(|error| BpfError::of(&error))?;
    let link = program.attach().map_err(|error| BpfError::of(&error))?;
    let link = program.take_link(link).map_err(|error| BpfError::of(&error))?;
    let mut sockets = link.into_file().map_err(|error| BpfError::of(&error))?;
    // Reading runs the program for each socket. It writes nothing: the answer lies in the map.
    let mut nothing = [0; 64];
    while sockets.read(&mut nothing).map_err(|error| BpfError::of(&error))? > 0 {}
    let map = programs.map("TUNE").ok_or_else(missing)?;
    let map: HashMap<_, u64, Answer> = HashMap::try_from(map).map_err(|error| BpfError::of(&error))?;
    let [_, is_found, before, after, error, _] = map.get(&cookie, 0).map_err(|error| BpfError::of(&error))?;
    match (is_found, error.cast_signed()) {
        (0, _) => Ok(None),
        (_, 0) => Ok(Some(Resized { before_bytes: before.into(), after_bytes: after.into() })),
        (_, error) => {
            let error = std::io::Error::from_raw_os_error(error.saturating_neg());
            Err(BpfError::Refused(format!("the buffer cannot be set: {error}")))
        }
    }
}

/// A socket whose send buffer the iterator enlarged.
#[derive(Debug)]
pub struct Enlarged {
    cookie: u64,
    pub before_bytes: u64,
    pub after_bytes: u64,
}

impl Enlarged {
    /// Enlarges `sk_sndbuf` of the socket with this cookie to `wanted` bytes. `None`: it is as large already.
    pub fn enlarge(cookie: u64, wanted: u64) -> Result<Option<Self>, TuneError> {
        let most = text("/proc/sys/net/core/wmem_max").and_then(|text| text.parse::<u64>().ok());
        let allowed = most.unwrap_or(0).saturating_mul(2);
        let wanted = wanted.min(SEND_BUFFER_BYTES_MAX);
        let size = u32::try_from(wanted.min(allowed)).unwrap_or(u32::MAX);
        let Resized { before_bytes, after_bytes } = match resize(cookie, size, false) {
            Ok(Some(resized)) => resized,
            // Without rights the processes of others are not visible either.
            Ok(None) | Err(BpfError::Rights) => return Err(TuneError::NoOwner),
            Err(error) => return Err(error.into()),
        };
        match after_bytes > before_bytes {
            true => Ok(Some(Self { cookie, before_bytes, after_bytes })),
            false if wanted <= before_bytes => Ok(None),
            false => Err(TuneError::Capped { allowed, present: before_bytes }),
        }
    }

    /// Sets the size that the buffer had; returns the one that it has. The kernel does not size it again.
    pub fn restore(self) -> Result<u64, TuneError> {
        let size = u32::try_from(self.before_bytes).unwrap_or(u32::MAX);
        let resized = resize(self.cookie, size, true)?.ok_or(TuneError::NoOwner)?;
        Ok(resized.after_bytes)
    }
}
