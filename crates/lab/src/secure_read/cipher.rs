//! Sealing and opening of both experiments, by the crate that seals our sessions.
//!
//! The keys are fixed, so that two processes have them without a word, and units that are stored sealed are sent again and again: nothing
//! that travels here is secret.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use std::net::TcpStream;

use seal::{Broken, Channel, Descriptor, Identity, Initiator, Opener, Responder, Sealer, Suite};
use serde::{Deserialize, Serialize};

use crate::sys::unacknowledged;

/// What seals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Cipher {
    Aes256Gcm,
    Aegis256X4,
    Aegis128X2,
    ChaCha20Poly1305,
    /// What the papers had: 3DES in CBC mode with an HMAC.
    TripleDes,
    /// AES-256-GCM that takes as long as [`DELAYED_BYTES_PER_S`] says, by the clock: a cipher elsewhere, or a slow one
    /// that leaves the processor to others.
    Delayed,
}

/// The pace of [`Cipher::Delayed`], both for sealing and opening.
pub(super) const DELAYED_BYTES_PER_S: f64 = 100e6;
/// Sleeping takes this much longer than asked for, at most; the rest is waited for awake.
const SLEEP_SLACK: Duration = Duration::from_micros(60);

impl Cipher {
    pub(super) const ALL: [Self; 6] = [
        Self::Aes256Gcm,
        Self::Aegis256X4,
        Self::Aegis128X2,
        Self::ChaCha20Poly1305,
        Self::TripleDes,
        Self::Delayed,
    ];

    pub(super) fn suite(self) -> Suite {
        match self {
            Self::Aes256Gcm | Self::Delayed => Suite::Aes256Gcm,
            Self::Aegis256X4 => Suite::Aegis256X4,
            Self::Aegis128X2 => Suite::Aegis128X2,
            Self::ChaCha20Poly1305 => Suite::ChaCha20Poly1305,
            Self::TripleDes => Suite::TripleDes,
        }
    }

    /// As rows are named.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::TripleDes => "3DES-CBC-HMAC",
            Self::Delayed => "100 MB/s by the clock",
            other => other.suite().name(),
        }
    }

    /// Waits until work on `bytes` that began at `start` has taken as long as it should.
    fn pace(self, start: Instant, bytes: usize) {
        if self != Self::Delayed {
            return;
        }
        let until = start + Duration::from_secs_f64(bytes as f64 / DELAYED_BYTES_PER_S);
        let left = until.saturating_duration_since(Instant::now());
        if left > SLEEP_SLACK {
            std::thread::sleep(left - SLEEP_SLACK);
        }
        while Instant::now() < until {
            std::hint::spin_loop();
        }
    }
}

/// Both ends of a channel: the target's and the initiator's.
fn channel(cipher: Cipher, label: u8) -> Result<[Channel; 2], Broken> {
    let (target, initiator) = (Identity::generate([label; 32]), Identity::generate([label + 100; 32]));
    let (ours, message) =
        Initiator::start(&initiator, target.public(), &[label], None, cipher.suite(), &[label + 1; 128]);
    let responder = Responder::read(&target, &[label], &message)?;
    let (answer, channel) = responder.finish(None, cipher.suite(), &[label + 2; 128])?;
    Ok([channel, ours.finish(&answer)?])
}

/// Labels of the two channels: heads are sealed under a counter where units are not, perhaps by another thread.
const HEADS: u8 = 1;
const UNITS: u8 = 2;

/// The target's side.
pub(super) struct Sealing {
    /// For heads of records.
    pub(super) heads: Sealer,
    /// For units.
    pub(super) units: Units,
}

impl Sealing {
    pub(super) fn new(cipher: Cipher, meter: Arc<Meter>) -> Result<Self, Broken> {
        let [heads, _] = channel(cipher, HEADS)?;
        let [units, _] = channel(cipher, UNITS)?;
        Ok(Self { heads: heads.sealer, units: Units { cipher, sealer: units.sealer, meter } })
    }
}

/// Seals units.
pub(super) struct Units {
    cipher: Cipher,
    sealer: Sealer,
    meter: Arc<Meter>,
}

impl Units {
    /// Copies and seals a unit in one pass.
    pub(super) fn seal_into(&mut self, plain: &[u8], sealed: &mut [u8]) -> Descriptor {
        let begun = self.meter.begin();
        let start = Instant::now();
        let descriptor = self.sealer.seal_into(plain, sealed);
        self.cipher.pace(start, plain.len());
        self.meter.end(begun);
        descriptor
    }
}

/// The initiator's side.
pub(super) struct Opening {
    cipher: Cipher,
    pub(super) heads: Opener,
    units: Opener,
}

impl Opening {
    pub(super) fn new(cipher: Cipher) -> Result<Self, Broken> {
        let [_, heads] = channel(cipher, HEADS)?;
        let [_, units] = channel(cipher, UNITS)?;
        Ok(Self { cipher, heads: heads.opener, units: units.opener })
    }

    /// Opens a unit where it lies; the time that took.
    pub(super) fn open(&mut self, descriptor: &Descriptor, unit: &mut [u8]) -> Result<Duration, Broken> {
        let start = Instant::now();
        self.units.open_unit(descriptor, unit)?;
        self.cipher.pace(start, unit.len());
        Ok(start.elapsed())
    }
}

/// How long was sealed, and how much of that while the peer had not acknowledged all that was sent.
#[derive(Debug, Default)]
pub(super) struct Meter {
    /// The connection; nothing is measured without it.
    socket: Option<TcpStream>,
    sealing_ns: AtomicU64,
    hidden_ns: AtomicU64,
}

/// A sealing that is measured: when it began, and whether something was unacknowledged then.
type Begun = Option<(Instant, bool)>;

impl Meter {
    pub(super) fn new(socket: Option<TcpStream>) -> Self {
        Self { socket, ..Self::default() }
    }

    /// Sealing and its hidden part so far, seconds.
    pub(super) fn seconds(&self) -> (f64, f64) {
        let seconds = |time: &AtomicU64| time.load(Ordering::Relaxed) as f64 / 1e9;
        (seconds(&self.sealing_ns), seconds(&self.hidden_ns))
    }

    fn is_waiting(socket: &TcpStream) -> bool {
        // A connection that has ended waits for nothing.
        unacknowledged(socket).unwrap_or(0) > 0
    }

    fn begin(&self) -> Begun {
        let waits = Self::is_waiting(self.socket.as_ref()?);
        Some((Instant::now(), waits))
    }

    /// What was waiting at both ends counts whole, at one of them half.
    fn end(&self, begun: Begun) {
        let (Some(socket), Some((start, waited))) = (&self.socket, begun) else { return };
        let time = start.elapsed().as_nanos() as u64;
        let ends = u64::from(waited) + u64::from(Self::is_waiting(socket));
        self.sealing_ns.fetch_add(time, Ordering::Relaxed);
        self.hidden_ns.fetch_add(time * ends / 2, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_side_seals_the_other_opens() {
        for cipher in Cipher::ALL {
            let mut sealing = Sealing::new(cipher, Arc::default()).unwrap();
            let mut opening = Opening::new(cipher).unwrap();
            let plain = vec![7; 4096];
            let mut unit = vec![0; 4096];
            let descriptor = sealing.units.seal_into(&plain, &mut unit);
            assert!(unit != plain, "{cipher:?}");
            let mut again = unit.clone();
            opening.open(&descriptor, &mut unit).unwrap();
            assert!(unit == plain, "{cipher:?}");
            again[100] ^= 1;
            assert!(opening.open(&descriptor, &mut again).is_err(), "{cipher:?}");
        }
    }

    #[test]
    fn the_delayed_cipher_keeps_its_pace() {
        let mut sealing = Sealing::new(Cipher::Delayed, Arc::default()).unwrap();
        let (plain, mut sealed) = (vec![7; 1 << 16], vec![0; 1 << 16]);
        let start = Instant::now();
        sealing.units.seal_into(&plain, &mut sealed);
        let expected = f64::from(1u32 << 16) / DELAYED_BYTES_PER_S;
        assert!(start.elapsed().as_secs_f64() >= expected);
    }
}
