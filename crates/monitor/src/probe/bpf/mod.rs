//! What happens at watched sockets, one event each, by programs in the kernel (feature `bpf`): segments that arrive,
//! retransmissions, states of congestion control, writes. bpf/tcp.bpf.c is the programs' source, tcp.bpf.o beside it what is
//! loaded; `cargo xtask bpf` compiles it.
//!
//! [`Events::watch`] names the sockets by their cookies: the programs pass over all others. [`Events::read`] at least a
//! hundred times a second: the ring holds [`RING_BYTES`], and what finds no room is counted for its socket.
//!
//! Needs the rights to load programs and to read the kernel's memory (root; CAP_BPF and CAP_PERFMON), and a kernel that has
//! its own types (CONFIG_DEBUG_INFO_BTF), Linux 5.11. Never fentry or kprobes: some kernels refuse or lack them.

mod counted;
mod record;
mod size;

use std::collections::HashSet;
use std::error::Error;
use std::io;

use aya::maps::{HashMap, MapData, RingBuf};
use aya::programs::BtfTracePoint;
use aya::{Btf, Ebpf, EbpfLoader, VerifierLogLevel};

use crate::limits::{EVENTS_READ_MAX, WATCHED_MAX};
pub use counted::{Counted, Range, Ranges, Retransmission};
pub use record::{Event, Record};
pub use size::{Enlarged, Resized, resize};

/// Bytes of the ring: `RING_BYTES` of bpf/tcp.bpf.c.
pub const RING_BYTES: usize = 4 << 20;
/// The compiled programs.
const OBJECT: &[u8] = aya::include_bytes_aligned!("../../../bpf/tcp.bpf.o");
/// The programs, named like their tracepoints.
const NEEDED: [&str; 3] = ["tcp_probe", "tcp_retransmit_skb", "tcp_cong_state_set"];
/// The tracepoint of writes: Linux 6.16.
const WRITES: &str = "tcp_sendmsg_locked";

/// Why there are no events.
#[derive(Debug, thiserror::Error)]
pub enum BpfError {
    #[error("this kernel does not show its types in /sys/kernel/btf/vmlinux: {0}")]
    Types(String),
    #[error("it needs CAP_BPF and CAP_PERFMON, as root has")]
    Rights,
    #[error("the kernel does not load the programs: {0}")]
    Refused(String),
}

impl BpfError {
    fn of(error: &(dyn Error + 'static)) -> Self {
        let mut causes = chain(error).filter_map(|error| error.downcast_ref::<io::Error>());
        if causes.any(|error| error.kind() == io::ErrorKind::PermissionDenied) {
            return Self::Rights;
        }
        let words: Vec<String> =
            chain(error).filter_map(|error| Some(error.to_string().lines().next()?.to_owned())).collect();
        Self::Refused(words.join(": "))
    }
}

fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| (*error).source())
}

/// State of a watched socket within the kernel: `struct watched`, three words of which the first counts dropped records.
type State = [u64; 3];

/// Programs in the kernel until this is dropped.
pub struct Events {
    ring: RingBuf<MapData>,
    watched: HashMap<MapData, u64, State>,
    cookies: HashSet<u64>,
    /// Records that no room was found for, of sockets that are watched no more.
    dropped_before: u64,
    /// The kernel tells of writes (Linux 6.16).
    pub has_writes: bool,
    /// Holds the programs and their links.
    _programs: Ebpf,
}

impl Events {
    /// Loads and attaches the programs; no socket is watched yet.
    pub fn new() -> Result<Self, BpfError> {
        let (btf, mut programs) = load()?;
        let refused = |error: &(dyn Error + 'static)| BpfError::of(error);
        let ring = programs.take_map("RING").ok_or_else(missing)?;
        let ring = RingBuf::try_from(ring).map_err(|error| refused(&error))?;
        let watched = programs.take_map("WATCHED").ok_or_else(missing)?;
        let watched = HashMap::try_from(watched).map_err(|error| refused(&error))?;
        for name in NEEDED {
            attach(&mut programs, name, &btf)?;
        }
        let has_writes = attach(&mut programs, WRITES, &btf).is_ok();
        Ok(Self {
            ring,
            watched,
            cookies: HashSet::new(),
            dropped_before: 0,
            has_writes,
            _programs: programs,
        })
    }

    /// Watches exactly these sockets from now on, at most [`WATCHED_MAX`].
    pub fn watch(&mut self, cookies: impl IntoIterator<Item = u64>) -> Result<(), BpfError> {
        let wanted: HashSet<u64> = cookies.into_iter().take(WATCHED_MAX).collect();
        for cookie in self.cookies.difference(&wanted) {
            self.dropped_before = self.dropped_before.saturating_add(self.dropped_of(*cookie));
            // A socket that is not there is not watched either.
            let _ = self.watched.remove(cookie);
        }
        for cookie in wanted.difference(&self.cookies) {
            self.watched.insert(cookie, [0; 3], 0).map_err(|error| BpfError::of(&error))?;
        }
        self.cookies = wanted;
        Ok(())
    }

    /// Passes on what has happened since the last call, at most [`EVENTS_READ_MAX`] events.
    pub fn read(&mut self, mut on: impl FnMut(&Record)) {
        for _ in 0..EVENTS_READ_MAX {
            let Some(item) = self.ring.next() else { break };
            if let Some(record) = Record::parse(&item) {
                on(&record);
            }
        }
    }

    /// Events of a watched socket that found no room in the ring.
    pub fn dropped_of(&self, cookie: u64) -> u64 {
        self.watched.get(&cookie, 0).map_or(0, |state| state[0])
    }

    /// Events of all sockets that found no room, since the start.
    pub fn dropped(&self) -> u64 {
        let present = self.cookies.iter().map(|cookie| self.dropped_of(*cookie));
        present.fold(self.dropped_before, u64::saturating_add)
    }
}

fn missing() -> BpfError {
    BpfError::Refused("the object lacks a part".to_owned())
}

/// The types of the kernel, and the object with its maps.
fn load() -> Result<(Btf, Ebpf), BpfError> {
    let btf = Btf::from_sys_fs().map_err(|error| BpfError::Types(error.to_string()))?;
    let loaded = EbpfLoader::new().verifier_log_level(VerifierLogLevel::DISABLE).btf(Some(&btf)).load(OBJECT);
    let programs = loaded.map_err(|error| BpfError::of(&error))?;
    Ok((btf, programs))
}

fn attach(programs: &mut Ebpf, name: &str, btf: &Btf) -> Result<(), BpfError> {
    let refused = |error: &(dyn Error + 'static)| BpfError::of(error);
    let program = programs.program_mut(name).ok_or_else(missing)?;
    let program: &mut BtfTracePoint = program.try_into().map_err(|error| refused(&error))?;
    program.load(name, btf).map_err(|error| refused(&error))?;
    program.attach().map_err(|error| refused(&error))?;
    Ok(())
}
