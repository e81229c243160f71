//! A `luks2` volume as one thread uses it, from either side. [`Side::Volume`]: the storage has ciphertext, and its user sees
//! plaintext. [`Side::View`]: the storage has plaintext, and its user sees the volume that it would be, header included, so
//! that a host with dm-crypt opens it; nothing of it is authenticated.
//!
//! In the words for the first side: reads are decrypted where they landed, writes are encrypted into areas of this
//! endpoint, piece by piece, which are submitted as they are filled.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use area::Span;
use io::{Event, Io, Item, Owner, Token, Work};
use xts::{BadKey, TWEAK_BYTES, Xts};
use zeroize::Zeroizing;

use super::areas::{Areas, PIECE_BYTES};
use super::pace::{self, Pace};
use crate::{
    Capability, Completion, Direction, Endpoint, Fingerprint, Identity, Inspect, IoError, IoErrorKind, Kind,
    Medium, OpenError, Request, RequestId, State, memory,
};

/// What an unlocked header says of the data. The key is the only copy that outlives opening; every endpoint expands it.
pub(super) struct Unlocked {
    pub(super) key: Zeroizing<Vec<u8>>,
    /// First byte of the data in the storage.
    pub(super) data_offset: u64,
    /// Bytes of data; `None`: up to the end of the storage.
    pub(super) size_bytes: Option<u64>,
    pub(super) sector_bytes: u32,
    /// Tweak of the first 512 bytes.
    pub(super) first_tweak: u64,
    /// UUID and digest of the key: names what a copy began with, should the volume be formatted anew.
    pub(super) name: String,
}

impl Unlocked {
    fn cipher(&self) -> Result<Xts, BadKey> {
        Xts::new(&self.key, self.sector_bytes as usize)
    }
}

impl fmt::Debug for Unlocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unlocked").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What the storage beneath has.
#[derive(Clone, Debug)]
pub(super) enum Side {
    Volume,
    /// The bytes are what the user sees before the data; zeroes follow as far as its offset. They cannot be written.
    View(Arc<[u8]>),
}

#[derive(Debug)]
pub(super) struct Luks2Medium {
    inner: Arc<dyn Medium>,
    unlocked: Arc<Unlocked>,
    side: Side,
}

impl Luks2Medium {
    pub(super) fn new(inner: Arc<dyn Medium>, unlocked: Unlocked, side: Side) -> Self {
        Self { inner, unlocked: Arc::new(unlocked), side }
    }
}

impl Medium for Luks2Medium {
    fn attach(&self, io: &mut Io) -> Result<Box<dyn Endpoint>, OpenError> {
        let unlocked = Arc::clone(&self.unlocked);
        let cipher = unlocked
            .cipher()
            .map_err(|_| OpenError::Refused("the volume key cannot be one of AES-XTS".to_owned()))?;
        let inner = self.inner.attach(io)?;
        let mut areas = Areas::default();
        if !areas.reserve(io) {
            return Err(OpenError::Failed("no memory is left for the volume's ciphertext".to_owned()));
        }
        let side = self.side.clone();
        let capability = above(inner.capability(), &unlocked, &side);
        Ok(Box::new(Luks2 {
            inner,
            unlocked,
            side,
            cipher,
            ciphers: Arc::new(Ciphers { unlocked: Arc::clone(&self.unlocked), free: Mutex::default() }),
            given: HashMap::new(),
            given_last: 0,
            capability,
            areas,
            pace: Pace::new(io.owner()),
            landed: VecDeque::new(),
            writes: VecDeque::new(),
            parts: HashMap::new(),
            requests: HashMap::new(),
            reads: HashMap::new(),
            lost: None,
            next: 0,
        }))
    }

    fn name(&self) -> String {
        self.inner.name()
    }

    fn has_failed(&self) -> bool {
        self.inner.has_failed()
    }

    fn drop_read_ahead(&self) {
        self.inner.drop_read_ahead();
    }

    fn lasting_name(&self) -> Option<String> {
        Some(format!("{}, volume {}", self.inner.lasting_name()?, self.unlocked.name))
    }
}

/// Shorter pieces are not worth a thread switch.
const GIVEN_BYTES_MIN: usize = 64 << 10;

/// What is written: bytes of the caller, or zeroes.
#[derive(Clone)]
enum Plain {
    Bytes(Span),
    Zeroes,
}

/// A write of which pieces are still to be submitted.
struct Write {
    id: RequestId,
    /// In the volume, of the next piece.
    offset: u64,
    end: u64,
    plain: Plain,
    /// Of the first byte of `plain` in the volume.
    start: u64,
    durable: bool,
}

/// A read, or a piece of one, to be decrypted in place.
struct Read {
    id: RequestId,
    offset: u64,
    into: Span,
    /// The others are counted in `reads`.
    is_piece: bool,
}

/// A piece of a write: what becomes of the bytes of `plain` from `at`, in an area for it.
struct Piece {
    part: RequestId,
    id: RequestId,
    offset: u64,
    plain: Plain,
    at: usize,
    place: Span,
    durable: bool,
}

/// What a helper thread does for this endpoint.
enum Given {
    Read(Read),
    Write(Piece),
}

/// Ciphers for helper threads: one is taken for each piece, and made if there is none.
struct Ciphers {
    unlocked: Arc<Unlocked>,
    free: Mutex<Vec<Xts>>,
}

impl Ciphers {
    fn with(&self, work: impl FnOnce(&mut Xts)) {
        let free = self.free.lock().expect("no panic while locked").pop();
        let mut cipher = free.unwrap_or_else(|| self.unlocked.cipher().expect("the key was checked"));
        work(&mut cipher);
        self.free.lock().expect("no panic while locked").push(cipher);
    }
}

/// A request to the storage beneath.
enum Part {
    Read(Read),
    Write(RequestId),
    Flush(RequestId),
}

/// A write in progress: pieces not yet completed, those not yet submitted as one, and the first error.
struct Progress {
    left: u32,
    /// A piece has completed.
    has_begun: bool,
    result: Result<(), IoError>,
    /// Of a flush that failed after a piece had completed: that piece may be lost.
    lost: Option<IoError>,
}

struct Luks2 {
    inner: Box<dyn Endpoint>,
    unlocked: Arc<Unlocked>,
    side: Side,
    cipher: Xts,
    ciphers: Arc<Ciphers>,
    /// By the key of the event that ends it.
    given: HashMap<u32, Given>,
    given_last: u32,
    capability: Capability,
    areas: Areas,
    pace: Pace,
    /// Reads that are to be decrypted.
    landed: VecDeque<Read>,
    /// In the order of their submission: the first one takes the next area.
    writes: VecDeque<Write>,
    parts: HashMap<RequestId, Part>,
    requests: HashMap<RequestId, Progress>,
    /// Reads in pieces: those that are not decrypted yet, and the result so far.
    reads: HashMap<RequestId, (u32, Result<(), IoError>)>,
    /// What a flush failed with while a write was in progress that has completed since: the next flush reports it again.
    lost: Option<IoError>,
    next: RequestId,
}

/// Whole sectors of the volume. Nothing beneath tells data from holes: zeroes are written, and a discard changes nothing.
fn above(inner: &Capability, unlocked: &Unlocked, side: &Side) -> Capability {
    let sector = unlocked.sector_bytes;
    let whole = |bytes: u64| bytes - bytes % u64::from(sector);
    let size_bytes = match side {
        Side::Volume => {
            let room = inner.size_bytes.saturating_sub(unlocked.data_offset);
            whole(unlocked.size_bytes.unwrap_or(room).min(room))
        }
        Side::View(_) => unlocked.data_offset + whole(inner.size_bytes),
    };
    Capability {
        size_bytes,
        // A LUN's blocks have 512 or 4096 bytes.
        block_size: if sector == 512 { 512 } else { 4096 },
        physical_block_size: inner.physical_block_size.max(sector),
        granularity: inner.granularity.max(sector),
        max_transfer_bytes: inner.max_transfer_bytes - inner.max_transfer_bytes % sector,
        discard: false,
        write_zeroes: false,
        ..inner.clone()
    }
}

impl Luks2 {
    fn tweak(&self, offset: u64) -> u64 {
        self.unlocked.first_tweak.wrapping_add(offset / TWEAK_BYTES as u64)
    }

    /// Where the storage has the byte of data at `offset`.
    fn beneath(&self, offset: u64) -> u64 {
        match self.side {
            Side::Volume => self.unlocked.data_offset + offset,
            Side::View(_) => offset,
        }
    }

    /// An error of the storage, at the place where this endpoint has the byte.
    fn translated(&self, error: IoError) -> IoError {
        let data_offset = self.unlocked.data_offset;
        let offset = error.offset.and_then(|offset| match self.side {
            Side::Volume => offset.checked_sub(data_offset),
            Side::View(_) => offset.checked_add(data_offset),
        });
        error.at(offset)
    }

    fn number(&mut self) -> RequestId {
        self.next += 1;
        self.next
    }

    fn submit_inner(
        &mut self,
        io: &mut Io,
        id: RequestId,
        part: Part,
        kind: Kind,
        inner: &mut Vec<Completion>,
    ) {
        self.parts.insert(id, part);
        self.inner.submit(io, Request { id, kind }, inner);
    }

    fn write(&mut self, id: RequestId, range: Range<u64>, plain: Plain, durable: bool) {
        self.requests.insert(id, Progress { left: 1, has_begun: false, result: Ok(()), lost: None });
        let Range { start, end } = range;
        self.writes.push_back(Write { id, offset: start, end, plain, start, durable });
    }

    /// Handles completions of the storage beneath; decrypts what was read, and submits pieces of writes while there is
    /// memory for them.
    fn advance(&mut self, io: &mut Io, mut inner: Vec<Completion>, done: &mut Vec<Completion>) {
        loop {
            for completion in inner.drain(..) {
                self.on_completion(completion, done);
            }
            if !self.work(io, &mut inner, done) && inner.is_empty() {
                return;
            }
        }
    }

    fn on_completion(&mut self, completion: Completion, done: &mut Vec<Completion>) {
        let Completion { id: part, result } = completion;
        let result = result.map_err(|error| self.translated(error));
        self.areas.give_back(part);
        match self.parts.remove(&part) {
            Some(Part::Read(read)) if result.is_ok() => self.land(read),
            Some(Part::Read(Read { id, .. })) => done.push(Completion { id, result }),
            Some(Part::Flush(id)) => {
                if let Err(error) = &result {
                    for write in self.requests.values_mut().filter(|write| write.has_begun) {
                        write.lost = Some(error.clone());
                    }
                }
                done.push(Completion { id, result });
            }
            Some(Part::Write(id)) => self.end_piece(id, result, done),
            None => {}
        }
    }

    /// A long read is decrypted in pieces, which helpers may take.
    fn land(&mut self, read: Read) {
        let Read { id, offset, into, .. } = read;
        if into.len() <= PIECE_BYTES {
            return self.landed.push_back(Read { id, offset, into, is_piece: false });
        }
        let starts = (0..into.len()).step_by(PIECE_BYTES);
        let left = starts.len() as u32;
        self.reads.insert(id, (left, Ok(())));
        self.landed.extend(starts.map(|start| {
            let into = into.slice(start, PIECE_BYTES.min(into.len() - start));
            Read { id, offset: offset + start as u64, into, is_piece: true }
        }));
    }

    fn end_read(&mut self, read: &Read, result: Result<(), IoError>, done: &mut Vec<Completion>) {
        let id = read.id;
        if !read.is_piece {
            return done.push(Completion { id, result });
        }
        let (left, all) = self.reads.get_mut(&id).expect("a read has a piece");
        *left -= 1;
        if result.is_err() {
            *all = result;
        }
        if *left == 0 {
            let (_, result) = self.reads.remove(&id).expect("it was there");
            done.push(Completion { id, result });
        }
    }

    /// Passes a piece to a helper thread, if there is more than one to do; false if none was.
    fn give(&mut self, io: &mut Io) -> bool {
        let has_more = self.landed.len() + self.writes.len() > 1
            || self.writes.front().is_some_and(|write| write.end - write.offset > PIECE_BYTES as u64);
        if !has_more && self.given.is_empty() || !io.has_helper() {
            return false;
        }
        let (ciphers, view) = (Arc::clone(&self.ciphers), matches!(self.side, Side::View(_)));
        let key = pace::FIRST_KEY + self.given_last % (u32::MAX - pace::FIRST_KEY);
        let token = Token { owner: self.pace.owner(), key };
        if let Some(read) = self.landed.front() {
            if read.into.len() < GIVEN_BYTES_MIN {
                return false;
            }
            let read = self.landed.pop_front().expect("just looked at");
            let (tweak, into) = (self.tweak(read.offset), read.into.clone());
            let work: Work = Box::new(move |_, bytes| {
                ciphers
                    .with(|cipher| if view { cipher.seal(tweak, bytes) } else { cipher.open(tweak, bytes) });
            });
            io.compute(token, None, into, work);
            self.given.insert(key, Given::Read(read));
        } else {
            let is_fit = |write: &Write| match &write.plain {
                Plain::Bytes(span) => {
                    span.steady().is_some() && write.end - write.offset >= GIVEN_BYTES_MIN as u64
                }
                Plain::Zeroes => false,
            };
            if view || !self.writes.front().is_some_and(is_fit) {
                return false;
            }
            let Some(piece) = self.cut(io) else { return false };
            let Plain::Bytes(span) = &piece.plain else { unreachable!("looked at") };
            let from = span.slice(piece.at, piece.place.len());
            let tweak = self.tweak(piece.offset);
            let work: Work =
                Box::new(move |plain, bytes| ciphers.with(|cipher| cipher.seal_into(tweak, plain, bytes)));
            io.compute(token, Some(from), piece.place.clone(), work);
            self.given.insert(key, Given::Write(piece));
        }
        self.given_last = self.given_last.wrapping_add(1);
        true
    }

    /// A helper has done its work.
    fn on_given(
        &mut self,
        io: &mut Io,
        event: Event,
        inner: &mut Vec<Completion>,
        done: &mut Vec<Completion>,
    ) {
        let Some(given) = self.given.remove(&event.token.key) else { return };
        let result = event.bytes().map(drop).map_err(IoError::from);
        drop(event);
        match given {
            Given::Read(read) => self.end_read(&read, result, done),
            Given::Write(piece) => self.submit_sealed(io, piece, result, inner),
        }
    }

    /// Decrypts a read, or encrypts a piece of a write; false if neither can be done now.
    fn work(&mut self, io: &mut Io, inner: &mut Vec<Completion>, done: &mut Vec<Completion>) -> bool {
        if self.landed.is_empty() && self.writes.is_empty() {
            return false;
        }
        if self.give(io) {
            return true;
        }
        if !self.pace.may_work(io) {
            return false;
        }
        if let Some(read) = self.landed.pop_front() {
            let (tweak, into) = (self.tweak(read.offset), &read.into);
            into.change(0, into.len(), |bytes| match self.side {
                Side::Volume => self.cipher.open(tweak, bytes),
                Side::View(_) => self.cipher.seal(tweak, bytes),
            });
            self.pace.worked(into.len());
            self.end_read(&read, Ok(()), done);
            return true;
        }
        self.submit_piece(io, inner)
    }

    /// One piece of a write has ended, or none will be submitted any more.
    fn end_piece(&mut self, id: RequestId, result: Result<(), IoError>, done: &mut Vec<Completion>) {
        let progress = self.requests.get_mut(&id).expect("a write has a piece");
        progress.left -= 1;
        progress.has_begun = true;
        if let Err(error) = result {
            progress.result = Err(match std::mem::replace(&mut progress.result, Ok(())) {
                Ok(()) => error,
                Err(first) => first.or_lower(error),
            });
        }
        if progress.left == 0 {
            let Progress { result, lost, .. } = self.requests.remove(&id).expect("it was there");
            self.lost = lost.or(self.lost.take());
            done.push(Completion { id, result });
        }
    }

    /// Encrypts and submits the next piece of the first write; false if there is no memory for it.
    fn submit_piece(&mut self, io: &mut Io, inner: &mut Vec<Completion>) -> bool {
        let Some(piece) = self.cut(io) else { return false };
        let tweak = self.tweak(piece.offset);
        let sealed = fill(&mut self.cipher, &self.side, tweak, &piece);
        self.pace.worked(piece.place.len());
        if sealed.is_err() {
            // A source that cannot be read ends the write: what was not submitted is not.
            self.abandon(piece.id);
        }
        self.submit_sealed(io, piece, sealed, inner);
        true
    }

    /// Takes the next piece off the first write, and memory for it; `None` if there is none.
    fn cut(&mut self, io: &mut Io) -> Option<Piece> {
        let piece_bytes = self.piece_bytes();
        let write = self.writes.front_mut()?;
        let part = self.next + 1;
        let area = self.areas.take(io, part)?;
        self.next = part;
        let Write { id, offset, durable, .. } = *write;
        let length = (write.end - offset).min(piece_bytes) as usize;
        let (plain, at) = (write.plain.clone(), (offset - write.start) as usize);
        write.offset += length as u64;
        if write.offset == write.end {
            self.writes.pop_front();
        } else {
            self.requests.get_mut(&id).expect("a write that is not over").left += 1;
        }
        Some(Piece { part, id, offset, plain, at, place: area.slice(0, length), durable })
    }

    /// No further piece of the write is submitted.
    fn abandon(&mut self, id: RequestId) {
        let before = self.writes.len();
        self.writes.retain(|write| write.id != id);
        if self.writes.len() < before {
            // The piece that was to follow.
            self.requests.get_mut(&id).expect("a write that is not over").left -= 1;
        }
    }

    fn submit_sealed(
        &mut self,
        io: &mut Io,
        piece: Piece,
        sealed: Result<(), IoError>,
        inner: &mut Vec<Completion>,
    ) {
        let Piece { part, id, offset, place, durable, .. } = piece;
        match sealed {
            Ok(()) => {
                let kind = Kind::Write { offset: self.beneath(offset), from: place, durable };
                self.submit_inner(io, part, Part::Write(id), kind, inner);
            }
            Err(error) => {
                self.parts.insert(part, Part::Write(id));
                inner.push(Completion { id: part, result: Err(error) });
            }
        }
    }

    fn piece_bytes(&self) -> u64 {
        PIECE_BYTES.min(self.capability.max_transfer_bytes as usize) as u64
    }
}

/// Encrypts a piece of a write into its place; of a view, decrypts it.
fn fill(cipher: &mut Xts, side: &Side, tweak: u64, piece: &Piece) -> Result<(), IoError> {
    let Piece { plain, at, place, .. } = piece;
    let at = *at;
    place.change(0, place.len(), |bytes| {
        match (plain, side) {
            (Plain::Zeroes, _) => bytes.fill(0),
            (Plain::Bytes(span), Side::Volume) if let Some(steady) = span.steady() => {
                cipher.seal_into(tweak, &steady[at..at + bytes.len()], bytes);
                return Ok(());
            }
            // Stored bytes change under a reader: each is read once.
            (Plain::Bytes(span), _) => span.fetch(at, bytes)?,
        }
        match side {
            Side::Volume => cipher.seal(tweak, bytes),
            Side::View(_) => cipher.open(tweak, bytes),
        }
        Ok(())
    })
}

/// Copies what lies in `range`, before the data of a view.
fn show(header: &[u8], range: &Range<u64>, into: &Span) {
    let length = (range.end - range.start) as usize;
    let shown = header.get(range.start as usize..).unwrap_or_default();
    let shown = &shown[..length.min(shown.len())];
    into.fill(0, shown);
    into.zero(shown.len(), length - shown.len());
}

impl Endpoint for Luks2 {
    fn state(&self) -> State {
        self.inner.state()
    }

    fn capability(&self) -> &Capability {
        &self.capability
    }

    fn submit(&mut self, io: &mut Io, request: Request, done: &mut Vec<Completion>) {
        let Request { id, kind } = request;
        let sector = u64::from(self.capability.granularity);
        let is_whole = kind.range().is_none_or(|(offset, length)| (offset | length).is_multiple_of(sector));
        let checked = match memory::check(&self.capability, &kind) {
            Ok(()) if !is_whole => {
                let text = format!("the volume takes whole sectors of {sector} bytes");
                Err(IoError::new(IoErrorKind::Other, text))
            }
            checked => checked,
        };
        // Before the data of a view lies its header.
        let before = match &self.side {
            Side::Volume => 0,
            Side::View(_) => self.unlocked.data_offset,
        };
        let checked = checked.and_then(|()| match kind.range() {
            Some((offset, _)) if kind.is_write() && offset < before => {
                Err(IoError::new(IoErrorKind::ReadOnly, "the header of a view cannot be written"))
            }
            _ => Ok(()),
        });
        if checked.is_err() || kind.range().is_some_and(|(_, length)| length == 0) {
            return done.push(Completion { id, result: checked });
        }
        let mut inner = Vec::new();
        match kind {
            Kind::Read { offset, mut into } => {
                if let Side::View(header) = &self.side
                    && offset < before
                {
                    let shown = offset..before.min(offset + into.len() as u64);
                    show(header, &shown, &into);
                    let length = (shown.end - shown.start) as usize;
                    into = into.slice(length, into.len() - length);
                }
                if into.is_empty() {
                    return done.push(Completion { id, result: Ok(()) });
                }
                let (part, offset) = (self.number(), offset.max(before) - before);
                let kind = Kind::Read { offset: self.beneath(offset), into: into.clone() };
                self.submit_inner(
                    io,
                    part,
                    Part::Read(Read { id, offset, into, is_piece: false }),
                    kind,
                    &mut inner,
                );
            }
            Kind::Write { offset, from, durable } => {
                let (offset, length) = (offset - before, from.len() as u64);
                self.write(id, offset..offset + length, Plain::Bytes(from), durable);
            }
            Kind::WriteZeroes { offset, length, .. } => {
                let offset = offset - before;
                self.write(id, offset..offset + length, Plain::Zeroes, false);
            }
            Kind::Flush => {
                if let Some(error) = self.lost.take() {
                    return done.push(Completion { id, result: Err(error) });
                }
                let part = self.number();
                self.submit_inner(io, part, Part::Flush(id), Kind::Flush, &mut inner);
            }
            Kind::Discard { .. } => done.push(Completion { id, result: Ok(()) }),
        }
        self.advance(io, inner, done);
    }

    fn on_event(&mut self, io: &mut Io, event: Event, done: &mut Vec<Completion>) {
        let mut inner = Vec::new();
        let is_own = event.token.owner == self.pace.owner();
        if is_own && matches!(event.item, Item::Work { .. }) {
            self.on_given(io, event, &mut inner, done);
        } else if !self.pace.is_turn(&event) {
            self.inner.on_event(io, event, &mut inner);
            self.capability = above(self.inner.capability(), &self.unlocked, &self.side);
        }
        self.advance(io, inner, done);
    }

    fn owners(&self, owners: &mut Vec<Owner>) {
        owners.push(self.pace.owner());
        self.inner.owners(owners);
    }

    fn in_flight(&self, direction: Direction) -> Option<u64> {
        self.inner.in_flight(direction)
    }

    fn renew(&mut self, io: &mut Io, bytes: u64) {
        self.inner.renew(io, bytes);
    }

    fn close(&mut self, io: &mut Io) {
        self.inner.close(io);
    }

    fn is_closed(&self) -> bool {
        self.inner.is_closed()
    }

    fn inspect(&self) -> &dyn Inspect {
        self
    }
}

impl Inspect for Luks2 {
    fn beneath(&self) -> Option<&dyn Inspect> {
        Some(self.inner.inspect())
    }

    fn identity(&self) -> Identity {
        self.inner.inspect().identity()
    }

    /// Of the storage, and of the volume on it: a copy is not resumed into a volume that was formatted anew.
    fn fingerprint(&self) -> Fingerprint {
        let Fingerprint { storage, contents } = self.inner.inspect().fingerprint();
        Fingerprint { storage: format!("{storage}, volume {}", self.unlocked.name), contents }
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let mut facts = self.inner.inspect().facts();
        let kind = if let Side::View(_) = self.side { "view as luks2" } else { "luks2" };
        facts.push(("volume", format!("{kind} {}", self.unlocked.name)));
        let bits = self.unlocked.key.len() * 8;
        facts.push((
            "volume cipher",
            format!("aes-xts-plain64, key of {bits} bits, sectors of {} bytes", self.unlocked.sector_bytes),
        ));
        facts
    }
}
