//! The records of sealed sessions: a sender, a receiver, and a relay without keys between them that alters, drops,
//! repeats and invents records. Whatever opens is what was sent, in the same order.

use std::time::Duration;

use seal::{
    BHS_BYTES, Broken, Channel, DESCRIPTOR_BYTES, DESCRIPTORS_MAX, Descriptor, HEAD_BYTES_MAX, Head,
    Identity, Initiator, Kind, PREFIX_BYTES, RENEWAL_ENTROPY_BYTES, Responder, Suite, parse_head,
};

use crate::{Source, heap};

const HEAP_MAX: usize = 4 << 20;
const STEPS_MAX: usize = 64;
const AHEAD_MAX: usize = DESCRIPTORS_MAX + 2;
const UNIT_MAX: u32 = 4096;
const PROLOGUE: &[u8] = b"what was said in the clear";

/// The first byte selects a head, a handshake or a line.
pub fn record(bytes: &[u8]) {
    heap::within(HEAP_MAX, || {
        let mut source = Source::new(bytes);
        match source.byte() % 8 {
            0 => head(source.rest()),
            1 => handshake(&mut source),
            _ => Line::new(&mut source).run(&mut source),
        }
    });
}

/// Any bytes parse as a head, or fail.
fn head(bytes: &[u8]) {
    match parse_head(bytes) {
        Ok((header, descriptors)) => {
            assert_eq!(header.len(), BHS_BYTES + usize::from(bytes[4]) * 4);
            assert!(descriptors.len() <= DESCRIPTORS_MAX && bytes.len() <= HEAD_BYTES_MAX);
            assert_eq!(header.len() + descriptors.len() * DESCRIPTOR_BYTES, bytes.len());
            assert_eq!(descriptors.len(), descriptors.count());
        }
        Err(Broken) => {
            let whole = |header: usize| bytes.len().checked_sub(header).map(|rest| (rest % 28, rest / 28));
            let fits = bytes.len() >= 48
                && whole(48 + usize::from(bytes[4]) * 4).is_some_and(|(odd, n)| odd == 0 && n <= 32);
            assert!(!fits, "a head of {} bytes was refused", bytes.len());
        }
    }
}

/// An altered message or prologue makes a handshake fail at one side.
fn handshake(source: &mut Source<'_>) {
    let (what, at, bits) = (source.below(4), usize::from(source.u16()), source.byte());
    let suite = source.pick(&Suite::ALL);
    let altered = std::cell::Cell::new(false);
    let alter = |which: usize, mut bytes: Vec<u8>| {
        if which == what && bits != 0 {
            altered.set(true);
            let at = at % bytes.len();
            if bits == u8::MAX { bytes.truncate(at) } else { bytes[at] ^= bits }
        }
        bytes
    };
    let prologue = alter(0, PROLOGUE.to_vec());
    let agreed = handshake_through(suite, &prologue, |message| alter(1, message), |answer| alter(2, answer));
    assert_eq!(agreed.is_none(), altered.get(), "part {what}, byte {at}, bits {bits:02x}");
}

/// Both channels of a connection after an undisturbed handshake.
pub(crate) fn channels(source: &mut Source<'_>) -> (Channel, Channel) {
    let suite = source.pick(&Suite::ALL);
    handshake_through(suite, PROLOGUE, |message| message, |answer| answer)
        .expect("the connection is undisturbed")
}

fn handshake_through(
    suite: Suite,
    prologue: &[u8],
    relay_message: impl FnOnce(Vec<u8>) -> Vec<u8>,
    relay_answer: impl FnOnce(Vec<u8>) -> Vec<u8>,
) -> Option<(Channel, Channel)> {
    let (ours, theirs) = (Identity::generate([1; 32]), Identity::generate([2; 32]));
    let (initiator, message) = Initiator::start(&ours, theirs.public(), PROLOGUE, None, suite, &[3; 128]);
    let responder = Responder::read(&theirs, prologue, &relay_message(message)).ok()?;
    assert_eq!(responder.initiator(), ours.public());
    let (answer, target) = responder.finish(None, suite, &[4; 128]).ok()?;
    Some((initiator.finish(&relay_answer(answer)).ok()?, target))
}

struct Unit {
    descriptor: Descriptor,
    plain: Vec<u8>,
    sealed: Vec<u8>,
}

/// A record as it was sent: its complete units follow its head. A control record has no header.
struct Record {
    header: Vec<u8>,
    wire: Vec<u8>,
    units: Vec<Unit>,
}

pub(crate) const ENTROPY: [u8; RENEWAL_ENTROPY_BYTES] = [5; RENEWAL_ENTROPY_BYTES];

pub(crate) fn control(channel: &mut Channel, now: Duration) -> Vec<u8> {
    let Channel { sealer, opener, renewal, .. } = channel;
    let mut wire = Vec::new();
    renewal.seal(sealer, opener, &ENTROPY, now, &mut wire).expect("few generations");
    wire
}

/// Opens a record; a control record takes effect.
pub(crate) fn take(channel: &mut Channel, wire: &[u8], now: Duration) -> Result<(Kind, Vec<u8>), Broken> {
    let Channel { sealer, opener, renewal, .. } = channel;
    let (prefix, rest) = wire.split_first_chunk::<PREFIX_BYTES>().ok_or(Broken)?;
    let bytes = opener.sealed_head_bytes(*prefix)?;
    let mut sealed = rest.get(..bytes).ok_or(Broken)?.to_vec();
    let Head { kind, bytes } = opener.open_head(*prefix, &mut sealed).inspect_err(|_| {
        let head = &sealed[..bytes - 16];
        assert!(head.iter().all(|&byte| byte == 0), "a head that does not open is there");
    })?;
    sealed.truncate(bytes);
    if kind != Kind::Pdu {
        renewal.open(kind, &sealed, sealer, opener, now)?;
    }
    Ok((kind, sealed))
}

/// One direction of a connection. The other direction is undisturbed: its records arrive immediately.
struct Line {
    ours: Channel,
    /// The state of `theirs` after it has opened everything sent.
    twin: Channel,
    theirs: Channel,
    is_initiator: bool,
    now: Duration,
    ahead: Vec<Unit>,
    sent: Vec<Record>,
    opened: usize,
}

impl Line {
    fn new(source: &mut Source<'_>) -> Self {
        let mut again = source.clone();
        let ((initiator, target), twins) = (channels(source), channels(&mut again));
        let is_initiator = !source.flag();
        let (ours, theirs, twin) =
            if is_initiator { (initiator, target, twins.1) } else { (target, initiator, twins.0) };
        let (ahead, sent) = (Vec::new(), Vec::new());
        Self { ours, twin, theirs, is_initiator, now: Duration::ZERO, ahead, sent, opened: 0 }
    }

    fn run(mut self, source: &mut Source<'_>) {
        for _ in 0..=source.below(STEPS_MAX) {
            match source.byte() % 8 {
                0..=2 => self.seal_unit(source),
                3..=5 => self.send(source),
                6 => self.renew(source),
                _ => self.opener_prefix(source),
            }
        }
        self.deliver(source);
    }

    fn seal_unit(&mut self, source: &mut Source<'_>) {
        if self.ahead.len() == AHEAD_MAX {
            return;
        }
        let length = source.number().clamp(1, UNIT_MAX) as usize;
        let plain = vec![source.byte(); length];
        let mut sealed = plain.clone();
        let descriptor = if source.flag() {
            self.ours.sealer.seal_in_place(&mut sealed)
        } else {
            self.ours.sealer.seal_into(&plain, &mut sealed)
        };
        let told = (descriptor.length as usize, descriptor.generation());
        assert_eq!(told, (length, self.ours.sealer.generation()));
        self.ahead.push(Unit { descriptor, plain, sealed });
    }

    /// Sends a record with some of the units sealed ahead, in any order; units that are too old are dropped.
    fn send(&mut self, source: &mut Source<'_>) {
        let (sealer, now) = (&self.ours.sealer, self.now);
        self.ahead.retain(|unit| sealer.carries(&unit.descriptor, now));
        let mut units = Vec::new();
        for _ in 0..source.below(DESCRIPTORS_MAX + 1).min(self.ahead.len()) {
            units.push(self.ahead.swap_remove(source.below(self.ahead.len())));
        }
        let words = if source.rarely(8) { source.byte() } else { 0 };
        let mut header = vec![source.byte() | 1; BHS_BYTES + usize::from(words) * 4];
        header[4] = words;
        let descriptors: Vec<_> = units.iter().map(|unit| unit.descriptor).collect();
        let mut wire = Vec::new();
        self.ours.sealer.seal_head(&header, &descriptors, &mut wire);
        self.push(Record { header, wire, units });
    }

    fn push(&mut self, record: Record) {
        let _ = take(&mut self.twin, &record.wire, self.now).expect("the connection is undisturbed");
        self.sent.push(record);
    }

    /// Exchanges fresh keys: both directions move to the next generation.
    fn renew(&mut self, source: &mut Source<'_>) {
        self.now += Duration::from_secs(u64::from(source.byte()) * 60);
        if !self.is_initiator {
            let offer = control(&mut self.twin, self.now);
            let _ = take(&mut self.ours, &offer, self.now).expect("the connection is undisturbed");
        }
        let wire = control(&mut self.ours, self.now);
        self.push(Record { header: Vec::new(), wire, units: Vec::new() });
        if self.is_initiator {
            let answer = control(&mut self.twin, self.now);
            let _ = take(&mut self.ours, &answer, self.now).expect("the connection is undisturbed");
        }
        let Channel { sealer, opener, renewal, .. } = &self.ours;
        assert!(!renewal.is_due(sealer, opener, self.now));
    }

    /// A random prefix is rejected, or yields a length within the bounds.
    fn opener_prefix(&self, source: &mut Source<'_>) {
        if let Ok(bytes) = self.theirs.opener.sealed_head_bytes(source.array()) {
            assert!((BHS_BYTES + 16..=HEAD_BYTES_MAX + 16).contains(&bytes));
        }
    }

    /// Passes all records through the relay. Unaltered ones open; the first that does not open ends the connection.
    fn deliver(mut self, source: &mut Source<'_>) {
        while self.opened < self.sent.len() {
            let choice = source.byte();
            let mut which = self.opened;
            match choice {
                // Another record in its place: dropped, repeated or moved.
                192..=207 => which = source.below(self.sent.len()),
                208..=215 => {
                    return assert!(self.open_head(source.some(200)).is_none(), "an invented record opens");
                }
                _ => {}
            }
            // The initiator must have sent its offer before the answer arrives.
            if !self.is_initiator
                && self.sent[self.opened].header.is_empty()
                && self.theirs.renewal.is_ready()
            {
                control(&mut self.theirs, self.now);
            }
            let mut wire = self.sent[which].wire.clone();
            match choice {
                160..=191 => {
                    let at = source.below(wire.len());
                    wire[at] ^= 1 << source.below(8);
                }
                216..=223 => wire.truncate(source.below(wire.len())),
                _ => {}
            }
            let intact = which == self.opened && wire == self.sent[which].wire;
            let Some(head) = self.open_head(&wire) else {
                return assert!(!intact, "record {which} does not open");
            };
            assert!(intact, "record {which} opens in the place of {}", self.opened);
            let record = &self.sent[which];
            if record.header.is_empty() {
                if self.is_initiator {
                    control(&mut self.theirs, self.now);
                }
                self.opened += 1;
                continue;
            }
            let (header, descriptors) = parse_head(&head).expect("it was opened");
            assert_eq!(header, record.header);
            assert!(descriptors.clone().eq(record.units.iter().map(|unit| unit.descriptor)));
            for (unit, descriptor) in record.units.iter().zip(descriptors) {
                let mut bytes = unit.sealed.clone();
                match choice {
                    224..=231 => bytes[source.below(unit.sealed.len())] ^= 1 << source.below(8),
                    232..=239 => bytes.truncate(source.below(unit.sealed.len())),
                    // The bytes of another unit, or the plaintext.
                    240..=247 => {
                        let other = source.below(record.units.len());
                        bytes.clone_from(&record.units[other].sealed);
                    }
                    248..=251 => bytes.clone_from(&unit.plain),
                    _ => {}
                }
                let intact = bytes == unit.sealed;
                match self.theirs.opener.open_unit(&descriptor, &mut bytes) {
                    Ok(()) => assert!(intact && bytes == unit.plain, "a unit that was not sealed opens"),
                    Err(Broken) => {
                        let cleared = !intact && bytes.iter().all(|&byte| byte == 0);
                        assert!(cleared, "plaintext of a unit that does not open");
                        return;
                    }
                }
            }
            self.opened += 1;
        }
    }

    /// Opens a head as an edge does: with the number of bytes that the prefix announces.
    fn open_head(&mut self, wire: &[u8]) -> Option<Vec<u8>> {
        take(&mut self.theirs, wire, self.now).ok().map(|(_, head)| head)
    }
}
