//! A disk with a volatile cache, latencies and no order among concurrent requests.
//!
//! A request takes effect at one time and completes at a later one. A write goes to the cache; a flush, or a random
//! decision of the disk, makes it durable. A durable write (FUA) bypasses the cache. At a power cut each unit of the
//! cache keeps its durable version or any later one, independently of the others; requests in flight take effect in
//! part. A unit is a sector, or 4096 bytes: then requests are of whole units.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use block::{
    Capability, Completion, Endpoint, Fingerprint, Identity, Inspect, IoError, IoErrorKind, Kind, Medium,
    OpenError, Request,
};
use io::{Event, Io, Owner, Token};

use crate::random::Random;

pub const SECTOR: usize = torture::SECTOR_BYTES;

/// The value of a sector with several different words; no client writes it.
pub const MIXED: u64 = u64::MAX;

#[derive(Clone, Copy, Debug, Default)]
pub struct Cut {
    /// Sectors whose last version is lost.
    pub lost: u64,
    /// Lost sectors that keep a version between the durable one and the last.
    pub between: u64,
    /// Requests that took effect in part.
    pub torn: u64,
}

#[derive(Debug)]
struct Media {
    durable: Vec<u8>,
    /// Bytes that a cut keeps whole.
    unit: usize,
    /// By unit: versions since the durable one, oldest first; never empty.
    cache: BTreeMap<u64, Vec<Box<[u8]>>>,
    /// Writes in flight: first unit and contents.
    air: BTreeMap<u64, (u64, Vec<u8>)>,
    air_last: u64,
    /// Life of the current user; requests of earlier lives are ignored.
    life: u32,
    /// The user has ended and no other has begun: threads that still run get nothing.
    stopped: bool,
    /// Requests until the power fails; `None`: it does not by itself.
    left: Option<u64>,
    random: Random,
    latency_max: u64,
    /// Effects of all writes, in order: sector and value. `None` unless recording.
    effects: Option<Vec<(u64, u64)>>,
}

/// The word that fills a sector, or [`MIXED`].
fn value(sector: &[u8]) -> u64 {
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    let first = word(&sector[..8]);
    if sector.chunks_exact(8).all(|bytes| word(bytes) == first) { first } else { MIXED }
}

impl Media {
    /// Reads whole sectors.
    fn read(&self, offset: u64, into: &mut [u8]) {
        let unit = self.unit as u64;
        let mut at = offset;
        let end = offset + into.len() as u64;
        while at < end {
            let number = at / unit;
            let part = at..end.min((number + 1) * unit);
            let place = &mut into[(part.start - offset) as usize..(part.end - offset) as usize];
            match self.cache.get(&number).and_then(|versions| versions.last()) {
                Some(version) => place.copy_from_slice(&version[(at % unit) as usize..][..place.len()]),
                None => place.copy_from_slice(&self.durable[at as usize..][..place.len()]),
            }
            at = part.end;
        }
    }

    fn settle(&mut self, number: u64, version: &[u8]) {
        self.durable[number as usize * self.unit..][..self.unit].copy_from_slice(version);
    }

    /// Writes whole units, from number `first` on.
    fn write(&mut self, first: u64, bytes: &[u8], durable: bool) {
        let sectors = (self.unit / SECTOR) as u64;
        for (number, version) in (first..).zip(bytes.chunks_exact(self.unit)) {
            if let Some(effects) = &mut self.effects {
                effects.extend((number * sectors..).zip(version.chunks_exact(SECTOR).map(value)));
            }
            if durable || self.random.one_in(16) {
                self.cache.remove(&number);
                self.settle(number, version);
            } else {
                self.cache.entry(number).or_default().push(version.into());
            }
        }
    }

    fn flush(&mut self) {
        for (number, versions) in std::mem::take(&mut self.cache) {
            self.settle(number, versions.last().expect("never empty"));
        }
    }

    fn stop(&mut self, power: bool) -> Cut {
        let mut cut = Cut::default();
        self.life += 1;
        self.stopped = true;
        for (_, (first, bytes)) in std::mem::take(&mut self.air) {
            let units = bytes.len() / self.unit;
            let done: Vec<usize> = match self.random.within(0..3) {
                0 => Vec::new(),
                1 => (0..units).collect(),
                _ => (0..units).filter(|_| self.random.one_in(2)).collect(),
            };
            cut.torn += u64::from(!done.is_empty() && done.len() < units);
            for at in done {
                self.write(first + at as u64, &bytes[at * self.unit..][..self.unit], false);
            }
        }
        if power {
            let kind = self.random.within(0..4);
            let sectors = (self.unit / SECTOR) as u64;
            for (number, versions) in std::mem::take(&mut self.cache) {
                // All lost, all kept, per unit all or nothing, or per unit any version.
                let kept = match kind {
                    0 => 0,
                    1 => versions.len(),
                    2 => self.random.within(0..2) as usize * versions.len(),
                    _ => self.random.within(0..versions.len() as u64 + 1) as usize,
                };
                cut.lost += sectors * u64::from(kept < versions.len());
                cut.between += sectors * u64::from(kept > 0 && kept < versions.len());
                if kept > 0 {
                    self.settle(number, &versions[kept - 1]);
                }
            }
        }
        cut
    }
}

/// A disk; it outlives the machine that contains it.
#[derive(Clone, Debug)]
pub struct Disk {
    media: Arc<Mutex<Media>>,
    name: String,
    size_bytes: u64,
    unit: u32,
    transfer_bytes: u32,
}

impl Disk {
    /// A disk of zeroes. Requests take up to `latency_max` microseconds.
    pub fn new(name: &str, sectors: u64, random: Random, latency_max: u64) -> Self {
        Self::of_units(name, sectors * SECTOR as u64, SECTOR as u32, random, latency_max)
    }

    /// The same, of units that a cut keeps whole.
    pub fn of_units(name: &str, size_bytes: u64, unit: u32, random: Random, latency_max: u64) -> Self {
        let media = Media {
            durable: vec![0; size_bytes as usize],
            unit: unit as usize,
            cache: BTreeMap::new(),
            air: BTreeMap::new(),
            air_last: 0,
            life: 0,
            stopped: false,
            left: None,
            random,
            latency_max,
            effects: None,
        };
        Self {
            media: Arc::new(Mutex::new(media)),
            name: name.into(),
            size_bytes,
            unit,
            transfer_bytes: 1 << 20,
        }
    }

    /// The same disk, with at most so many bytes per request.
    pub fn with_transfer(self, bytes: u32) -> Self {
        Self { transfer_bytes: bytes, ..self }
    }

    fn lock(&self) -> MutexGuard<'_, Media> {
        self.media.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Ends the current user; with `power`, by a power cut of the disk.
    pub fn stop(&self, power: bool) -> Cut {
        self.lock().stop(power)
    }

    pub fn start(&self) {
        self.lock().stopped = false;
    }

    /// Lets the power fail after so many requests; the user's later ones get no answer. `None`: not any more.
    pub fn fail_after(&self, requests: Option<u64>) {
        self.lock().left = requests;
    }

    pub fn contents(&self) -> Vec<u8> {
        self.read(0, self.size_bytes as usize)
    }

    pub fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.lock().read(offset, &mut bytes);
        bytes
    }

    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The value of each sector: the word that fills it, or [`MIXED`].
    pub fn values(&self) -> Vec<u64> {
        self.contents().chunks_exact(SECTOR).map(value).collect()
    }

    pub fn record(&self) {
        self.lock().effects = Some(Vec::new());
    }

    /// Recorded effects from number `first` on: sector and value, in order.
    pub fn effects(&self, first: usize) -> Vec<(u64, u64)> {
        self.lock().effects.as_ref().map_or_else(Vec::new, |effects| effects[first..].to_vec())
    }

    pub fn fill(&self, bytes: &[u8]) {
        assert_eq!(bytes.len() as u64, self.size_bytes);
        self.put(0, bytes);
    }

    /// Makes bytes durable at once, before the disk is in use.
    pub fn put(&self, offset: u64, bytes: &[u8]) {
        self.lock().durable[offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }
}

impl Medium for Disk {
    fn attach(&self, io: &mut Io) -> Result<Box<dyn Endpoint>, OpenError> {
        let capability = Capability {
            size_bytes: self.size_bytes,
            block_size: SECTOR as u32,
            physical_block_size: self.unit,
            granularity: self.unit,
            alignment: 1,
            max_transfer_bytes: self.transfer_bytes,
            optimal_transfer_bytes: self.transfer_bytes.min(64 << 10),
            queue_depth: 32,
            read_only: false,
            sole_writer: false,
            discard: true,
            write_zeroes: true,
            volatile_cache: true,
            rotational: false,
        };
        let (life, stopped) = {
            let media = self.lock();
            (media.life, media.stopped)
        };
        if stopped {
            return Err(OpenError::Missing(format!("{}: the process has ended", self.name)));
        }
        Ok(Box::new(DiskEndpoint {
            disk: self.clone(),
            life,
            owner: io.owner(),
            capability,
            requests: Vec::new(),
            vacant: Vec::new(),
        }))
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

struct InAir {
    request: Request,
    /// Key in `Media::air`, if the request writes.
    air: Option<u64>,
    /// The completion time of a request that has taken effect.
    done: Option<Duration>,
}

struct DiskEndpoint {
    disk: Disk,
    life: u32,
    owner: Owner,
    capability: Capability,
    requests: Vec<Option<InAir>>,
    vacant: Vec<usize>,
}

impl DiskEndpoint {
    fn perform(media: &mut Media, kind: &Kind, air: Option<u64>) {
        match kind {
            Kind::Read { offset, into } => {
                let mut bytes = vec![0; into.len()];
                media.read(*offset, &mut bytes);
                into.fill(0, &bytes);
            }
            Kind::Write { offset, from, durable } => {
                let submitted = air.and_then(|air| media.air.remove(&air));
                submitted.expect("a write is in the air until it is done");
                // A device reads a buffer at any time before the completion: if the buffer changed meanwhile, the new
                // bytes are written.
                let first = offset / media.unit as u64;
                media.write(first, from.as_slice(), *durable);
            }
            Kind::Flush => media.flush(),
            Kind::Discard { .. } | Kind::WriteZeroes { .. } => {
                let (first, bytes) = air.and_then(|air| media.air.remove(&air)).expect("as a write");
                media.write(first, &bytes, false);
            }
        }
    }
}

impl Drop for DiskEndpoint {
    /// Writes in flight of a live user take effect although the endpoint is dropped.
    fn drop(&mut self) {
        let mut media = self.disk.lock();
        if media.life == self.life {
            for air in self.requests.iter().flatten().filter_map(|request| request.air) {
                if let Some((first, bytes)) = media.air.remove(&air) {
                    media.write(first, &bytes, false);
                }
            }
        }
    }
}

impl Endpoint for DiskEndpoint {
    fn capability(&self) -> &Capability {
        &self.capability
    }

    fn submit(&mut self, io: &mut Io, request: Request, done: &mut Vec<Completion>) {
        let mut media = self.disk.lock();
        if media.life != self.life {
            return;
        }
        if let Some((offset, length)) = request.kind.range() {
            let bad = !(offset | length).is_multiple_of(u64::from(self.capability.granularity))
                || offset.checked_add(length).is_none_or(|end| end > self.capability.size_bytes);
            if bad {
                let error = IoError::new(IoErrorKind::OutOfRange, format!("{length} bytes at {offset}"));
                return done.push(Completion { id: request.id, result: Err(error) });
            }
        }
        let written = match &request.kind {
            Kind::Write { offset, from, .. } => Some((*offset, from.as_slice().to_vec())),
            Kind::Discard { offset, length } | Kind::WriteZeroes { offset, length, .. } => {
                Some((*offset, vec![0; *length as usize]))
            }
            Kind::Read { .. } | Kind::Flush => None,
        };
        let air = written.map(|(offset, bytes)| {
            media.air_last += 1;
            let key = media.air_last;
            let first = offset / media.unit as u64;
            media.air.insert(key, (first, bytes));
            key
        });
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.requests.push(None);
            self.requests.len() - 1
        });
        self.requests[slot] = Some(InAir { request, air, done: None });
        let most = media.latency_max;
        let effect = Duration::from_micros(media.random.magnitude(1..most));
        io.timer(Token { owner: self.owner, key: slot as u32 }, io.now() + effect);
    }

    fn on_event(&mut self, io: &mut Io, event: Event, done: &mut Vec<Completion>) {
        let mut media = self.disk.lock();
        if media.life != self.life {
            return;
        }
        let slot = event.token.key as usize;
        let request = self.requests[slot].as_mut().expect("its timer was set");
        if request.done.is_none() {
            if media.left == Some(0) {
                media.stop(true);
                return;
            }
            media.left = media.left.map(|left| left - 1);
            Self::perform(&mut media, &request.request.kind, request.air);
            let most = media.latency_max;
            let later = io.now() + Duration::from_micros(media.random.magnitude(1..most));
            request.done = Some(later);
            return io.timer(event.token, later);
        }
        let InAir { request, .. } = self.requests[slot].take().expect("just looked at");
        self.vacant.push(slot);
        done.push(Completion { id: request.id, result: Ok(()) });
    }

    fn owners(&self, owners: &mut Vec<Owner>) {
        owners.push(self.owner);
    }

    fn inspect(&self) -> &dyn Inspect {
        self
    }
}

impl Inspect for DiskEndpoint {
    fn identity(&self) -> Identity {
        Identity::Remote(self.disk.name.clone())
    }

    fn fingerprint(&self) -> Fingerprint {
        self.identity().fingerprint(self.capability().size_bytes)
    }
}
