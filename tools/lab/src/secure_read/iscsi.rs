//! Blocks over iSCSI: the target of this project over a file in memory, and its initiator, in two processes.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use area::{PoolLimits, Span};
use block::{
    Completion, Endpoint, Kind, Location, Medium, OpenOptions, Request, Router, Spec, close_all, wait_ready,
};
use io::{Event, Io};
use node::initiator::{InitiatorSealing, IscsiMedium, Options, Url};
use node::target::{Access, LocalUsers, LunConfig, Peer, Server, ServerConfig, TargetConfig};
use node::{SealPolicy, TlsIdentity, TlsTrust};
use seal::{Descriptor, TAG_BYTES};
use serde::{Deserialize, Serialize};

use super::cipher::{Cipher, Opening, Sealing};
use super::credentials;
use super::figures::{Figures, Listening, Mark, Moments, Notes};
use super::shape::{How, Protection, Reading};
use crate::part::{Orders, send};
use crate::sys::Cpu;
use crate::{Attempted, LabError};

const IQN: &str = "iqn.2026-11.example.hikyaku:lab";
const INITIATOR: &str = "iqn.2026-11.example.hikyaku:lab.reader";
/// File beside the file of a LUN that is stored sealed.
const DESCRIPTORS: &str = "descriptors.json";
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
const BLOCKS_MIN: u64 = 16;
const WARM_UP: Duration = Duration::from_millis(20);

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct IscsiTarget {
    pub(crate) reading: Reading,
    /// Directory for the file of the LUN; the process that starts the part removes it.
    pub(crate) folder: PathBuf,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct IscsiInitiator {
    pub(crate) reading: Reading,
    pub(crate) port: u16,
    pub(crate) folder: PathBuf,
}

impl IscsiTarget {
    /// Sets whether the target seals ahead.
    pub(crate) fn environment(&self) -> Vec<(&'static str, &'static str)> {
        let is_late = matches!(self.reading.protection, Protection::Sealed { how: How::Late, .. });
        vec![("HIKYAKU_SEAL_AHEAD", if is_late { "0" } else { "1" })]
    }

    pub(crate) fn run(self, orders: Orders) -> Result<(), LabError> {
        let path = self.folder.join("lun.img");
        let mut contents = self.reading.contents();
        if let Protection::Sealed { cipher, unit, how: How::Stored } = self.reading.protection {
            let descriptors = seal_all(cipher, unit, &self.reading, &mut contents)?;
            let path = self.folder.join(DESCRIPTORS);
            std::fs::write(&path, descriptors).attempted(&format!("write {}", path.display()))?;
        }
        let contents = contents.repeat(laps(&self.reading));
        let medium = if let Protection::Volume(volume) = self.reading.protection {
            volume.store(&self.reading, &path, &contents)?
        } else {
            std::fs::write(&path, contents).attempted(&format!("write {}", path.display()))?;
            open(&path)?
        };
        let server = Server::start(self.config(medium)?).attempted("start a target")?;
        send(&Listening { port: server.addresses()[0].port() })?;
        orders.serve(|_| Ok(Mark { cpu: Cpu::now(), ..Mark::default() }))?;
        server.handle().drain();
        server.wait().attempted("end the target")
    }

    fn config(&self, medium: Arc<dyn Medium>) -> Result<ServerConfig, LabError> {
        let lun = LunConfig { read_only: true, ..LunConfig::new(0, medium, "lab", 0x3000_0000_0000_2004) };
        Ok(ServerConfig {
            listen: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 0))],
            advertise: None,
            targets: vec![TargetConfig { iqn: IQN.to_owned(), luns: vec![lun], access: Access::default() }],
            drain_timeout: DRAIN_TIMEOUT,
            threads: None,
            sealing: self.sealing(),
            local_users: LocalUsers::Any,
            tls: self.tls()?,
        })
    }

    fn sealing(&self) -> Option<node::target::Sealing> {
        let (suites, _) = suite(&self.reading)?;
        let peer = Peer {
            name: "lab".to_owned(),
            public_key: credentials::initiator().public(),
            initiator: None,
            luns: None,
            psk: None,
        };
        Some(node::target::Sealing {
            next: None,
            policy: SealPolicy::Require,
            identity: credentials::target(),
            peers: vec![peer],
            suites,
        })
    }

    fn tls(&self) -> Result<Option<TlsIdentity>, LabError> {
        if self.reading.protection != Protection::Tls {
            return Ok(None);
        }
        let (certificate, key) = (credentials::certificate(&self.folder), credentials::key(&self.folder));
        TlsIdentity::load(&certificate, &key).attempted("use a certificate").map(Some)
    }
}

/// The file of a LUN that is served as it is.
fn open(path: &Path) -> Result<Arc<dyn Medium>, LabError> {
    let doing = format!("open {}", path.display());
    let spec = Spec { location: Location::File(path.to_owned()), options: Vec::new() };
    let options = OpenOptions { writable: false, request_alignment: 512, allow_in_use: false };
    block::open(&spec, &options).attempted(&doing)
}

/// Copies of the stored data in the file of the LUN: the target predicts the next read from sequential READs.
fn laps(reading: &Reading) -> usize {
    BLOCKS_MIN.div_ceil(reading.blocks()) as usize
}

/// Seals the stored data; returns the descriptors of its units in order, as JSON.
fn seal_all(cipher: Cipher, unit: u32, reading: &Reading, contents: &mut [u8]) -> Result<String, LabError> {
    let doing = "seal what will be stored";
    let mut sealing = Sealing::new(cipher, Arc::default()).attempted(doing)?;
    let mut descriptors = Vec::new();
    for block in contents.chunks_mut(reading.block as usize) {
        for unit in block.chunks_mut(unit as usize) {
            let plain = unit.to_vec();
            let Descriptor { seal_id, length, tag } = sealing.units.seal_into(&plain, unit);
            descriptors.push((seal_id, length, tag));
        }
    }
    serde_json::to_string(&descriptors).attempted(doing)
}

/// The descriptors that [`seal_all`] wrote to this directory.
fn stored_descriptors(folder: &Path) -> Result<Vec<Descriptor>, String> {
    let text = std::fs::read_to_string(folder.join(DESCRIPTORS)).map_err(|error| error.to_string())?;
    let all: Vec<(u64, u32, [u8; TAG_BYTES])> =
        serde_json::from_str(&text).map_err(|error| error.to_string())?;
    Ok(all.into_iter().map(|(seal_id, length, tag)| Descriptor { seal_id, length, tag }).collect())
}

/// Suite and unit of sealed sessions; `None` if the session does not seal.
fn suite(reading: &Reading) -> Option<(Vec<seal::Suite>, u32)> {
    match reading.protection {
        Protection::Sealed { how: How::Stored, .. }
        | Protection::Plain
        | Protection::Tls
        | Protection::Volume(_) => None,
        Protection::Sealed { cipher, unit, .. } => Some((vec![cipher.suite()], unit)),
    }
}

impl IscsiInitiator {
    pub(crate) fn run(self, orders: Orders) -> Result<(), LabError> {
        let doing = format!("read blocks of {} bytes over iSCSI", self.reading.block);
        let mut io = Io::new(PoolLimits::default()).attempted(&doing)?;
        let url = format!("iscsi://127.0.0.1:{}/{IQN}/0", self.port);
        let url = Url::parse(&url).attempted(&doing)?;
        let medium = IscsiMedium::new(url, self.options()?, true).attempted(&doing)?;
        let mut medium: Arc<dyn Medium> = Arc::new(medium);
        if let Protection::Volume(volume) = self.reading.protection {
            medium = volume.open(medium).attempted(&doing)?;
        }
        let mut endpoint = medium.attach(&mut io).attempted(&doing)?;
        wait_ready(&mut io, &mut [&mut *endpoint]).attempted(&doing)?;
        let opening = self.opening().attempted(&doing)?;
        let mut reader = Reader::new(self.reading, opening, &mut io, &mut *endpoint).attempted(&doing)?;
        reader.check().attempted(&doing)?;
        reader.read(WARM_UP).attempted(&doing)?;
        send(&())?;
        orders.serve(|time| reader.read(time).attempted(&doing))?;
        close_all(&mut io, &mut [&mut *endpoint]);
        Ok(())
    }

    fn options(&self) -> Result<Options, LabError> {
        let mut options = Options::new(INITIATOR);
        if let Some((suites, unit)) = suite(&self.reading) {
            let (ours, theirs) = (credentials::initiator(), credentials::target().public());
            let sealing = InitiatorSealing::new(SealPolicy::Require, ours, theirs);
            options.sealing = Some(InitiatorSealing { suites, unit, ..sealing });
        }
        if self.reading.protection == Protection::Tls {
            let path = credentials::certificate(&self.folder);
            options.tls = Some(TlsTrust::load(&path).attempted("trust a certificate")?);
        }
        Ok(options)
    }

    fn opening(&self) -> Result<Option<(Opening, Vec<Descriptor>, u32)>, String> {
        let Protection::Sealed { cipher, unit, how: How::Stored } = self.reading.protection else {
            return Ok(None);
        };
        let opening = Opening::new(cipher).map_err(|error| error.to_string())?;
        Ok(Some((opening, stored_descriptors(&self.folder)?, unit)))
    }
}

struct Slot {
    span: Span,
    index: u64,
    requested: Duration,
    /// Requests of the block that are not answered.
    left: u32,
}

/// A running reading. No other endpoint uses the loop.
struct Reader<'a> {
    reading: Reading,
    /// For data that is stored sealed: the opener, the descriptors, and the bytes of a unit.
    opening: Option<(Opening, Vec<Descriptor>, u32)>,
    io: &'a mut Io,
    endpoint: &'a mut dyn Endpoint,
    router: Router<()>,
    slots: Vec<Slot>,
    events: Vec<Event>,
    done: Vec<Completion>,
    next: u64,
    since: Instant,
}

impl<'a> Reader<'a> {
    fn new(
        reading: Reading,
        opening: Option<(Opening, Vec<Descriptor>, u32)>,
        io: &'a mut Io,
        endpoint: &'a mut dyn Endpoint,
    ) -> Result<Self, String> {
        let slot = |_| {
            let span = io.pool().take(reading.block as usize).ok_or("there is no memory")?;
            Ok::<_, String>(Slot { span, index: 0, requested: Duration::ZERO, left: 0 })
        };
        let slots = (0..reading.depth).map(slot).collect::<Result<_, _>>()?;
        let mut router = Router::new();
        router.add_endpoint(endpoint, ());
        let since = Instant::now();
        let (events, done) = (Vec::new(), Vec::new());
        Ok(Self { reading, opening, io, endpoint, router, slots, events, done, next: 0, since })
    }

    fn submit(&mut self, slot: usize) {
        let at = &mut self.slots[slot];
        (at.index, at.requested) = (self.next, self.since.elapsed());
        self.next += 1;
        let lap = at.index / self.reading.blocks() % laps(&self.reading) as u64;
        let offset = lap * self.reading.range_bytes() + self.reading.offset(at.index);
        // A LUN takes a block in one request, an authenticated volume takes 1 MiB.
        let longest = self.endpoint.capability().max_transfer_bytes as usize;
        for start in (0..at.span.len()).step_by(longest) {
            let into = at.span.slice(start, longest.min(at.span.len() - start));
            at.left += 1;
            let kind = Kind::Read { offset: offset + start as u64, into };
            self.endpoint.submit(self.io, Request { id: slot as u64, kind }, &mut self.done);
        }
    }

    /// Waits for the next block and opens it; returns its slot and its moments.
    fn receive(&mut self) -> Result<(usize, Moments), String> {
        let id = loop {
            while self.done.is_empty() {
                let router = &self.router;
                let turned = self.io.turn_for(|owner| router.route(owner).is_some(), None, &mut self.events);
                turned.map_err(|error| error.to_string())?;
                for event in self.events.drain(..) {
                    self.endpoint.on_event(self.io, event, &mut self.done);
                }
            }
            // In the order of completion.
            let Completion { id, result } = self.done.remove(0);
            result.map_err(|error| error.to_string())?;
            let at = &mut self.slots[id as usize];
            at.left -= 1;
            if at.left == 0 {
                break id;
            }
        };
        let last = self.since.elapsed();
        let requested = self.slots[id as usize].requested;
        let opening = self.open(id as usize)?;
        let ready = self.since.elapsed();
        Ok((id as usize, Moments { requested, first: last, last, ready, opening }))
    }

    /// Opens a block that was stored sealed, in place; returns the time it took.
    fn open(&mut self, slot: usize) -> Result<Duration, String> {
        let Some((opening, descriptors, unit)) = &mut self.opening else { return Ok(Duration::ZERO) };
        let Slot { span, index, .. } = &self.slots[slot];
        let per_block = self.reading.block.div_ceil(*unit) as usize;
        let first = (index % self.reading.blocks()) as usize * per_block;
        let (mut at, mut time) = (0, Duration::ZERO);
        for descriptor in &descriptors[first..first + per_block] {
            let length = descriptor.length as usize;
            time += span
                .change(at, length, |bytes| opening.open(descriptor, bytes))
                .map_err(|error| error.to_string())?;
            at += length;
        }
        Ok(time)
    }

    fn check(&mut self) -> Result<(), String> {
        self.submit(0);
        let (slot, _) = self.receive()?;
        let mut bytes = vec![0; self.reading.block as usize];
        self.slots[slot].span.read(0, &mut bytes);
        if self.reading.is_block(0, &bytes) {
            Ok(())
        } else {
            Err("block 0 is not what is stored".to_owned())
        }
    }

    fn read(&mut self, time: Duration) -> Result<Figures, String> {
        let (start, cpu) = (Instant::now(), Cpu::now());
        let until = self.since.elapsed() + time;
        let mut notes = Notes::new(self.reading.block);
        let mut requested = self.slots.len();
        (0..requested).for_each(|slot| self.submit(slot));
        while requested > 0 {
            let (slot, moments) = self.receive()?;
            if moments.ready < until || notes.is_short() {
                self.submit(slot);
            } else {
                requested -= 1;
            }
            notes.block(moments);
        }
        Ok(notes.figures(start, Cpu::now().since(cpu), Vec::new()))
    }
}
