//! Sealing and opening for both experiments, by the crate of sealed sessions.
//!
//! The keys are fixed, so that two processes share them without a handshake, and stored units are sent repeatedly: no
//! data here is secret.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use std::net::TcpStream;

use seal::{Broken, Channel, Descriptor, Identity, Initiator, Opener, Responder, Sealer, Suite};
use serde::{Deserialize, Serialize};

use crate::sys::unacknowledged;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Cipher {
    Aes256Gcm,
    Aegis256X4,
    Aegis128X2,
    ChaCha20Poly1305,
    /// The papers' cipher: 3DES in CBC mode with an HMAC.
    TripleDes,
    /// AES-256-GCM slowed down to [`DELAYED_BYTES_PER_S`] by sleeping: a model of an offloaded cipher, which leaves the
    /// processor free.
    Delayed,
}

/// Rate of [`Cipher::Delayed`] for sealing and for opening.
pub(super) const DELAYED_BYTES_PER_S: f64 = 100e6;
/// Maximum oversleep; this last part is waited for by polling.
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

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::TripleDes => "3DES-CBC-HMAC",
            Self::Delayed => "100 MB/s by the clock",
            other => other.suite().name(),
        }
    }

    /// Waits until the work on `bytes` that began at `start` has taken its time at [`DELAYED_BYTES_PER_S`].
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

fn channel(cipher: Cipher, label: u8) -> Result<[Channel; 2], Broken> {
    let (target, initiator) = (Identity::generate([label; 32]), Identity::generate([label + 100; 32]));
    let (ours, message) =
        Initiator::start(&initiator, target.public(), &[label], None, cipher.suite(), &[label + 1; 128]);
    let responder = Responder::read(&target, &[label], &message)?;
    let (answer, channel) = responder.finish(None, cipher.suite(), &[label + 2; 128])?;
    Ok([channel, ours.finish(&answer)?])
}

/// Labels of the two channels: heads use a counter as nonce and units do not, and another thread may seal them.
const HEADS: u8 = 1;
const UNITS: u8 = 2;

pub(super) struct Sealing {
    pub(super) heads: Sealer,
    pub(super) units: Units,
}

impl Sealing {
    pub(super) fn new(cipher: Cipher, meter: Arc<Meter>) -> Result<Self, Broken> {
        let [heads, _] = channel(cipher, HEADS)?;
        let [units, _] = channel(cipher, UNITS)?;
        Ok(Self { heads: heads.sealer, units: Units { cipher, sealer: units.sealer, meter } })
    }
}

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

    /// Opens a unit in place; returns the time it took.
    pub(super) fn open(&mut self, descriptor: &Descriptor, unit: &mut [u8]) -> Result<Duration, Broken> {
        let start = Instant::now();
        self.units.open_unit(descriptor, unit)?;
        self.cipher.pace(start, unit.len());
        Ok(start.elapsed())
    }
}

/// Measures the time of sealing, and the part of it during which sent data was unacknowledged.
#[derive(Debug, Default)]
pub(super) struct Meter {
    /// The connection; `None` disables the measurement.
    socket: Option<TcpStream>,
    sealing_ns: AtomicU64,
    hidden_ns: AtomicU64,
}

/// A sealing under measurement: its start, and whether data was unacknowledged then.
type Begun = Option<(Instant, bool)>;

impl Meter {
    pub(super) fn new(socket: Option<TcpStream>) -> Self {
        Self { socket, ..Self::default() }
    }

    pub(super) fn seconds(&self) -> (f64, f64) {
        let seconds = |time: &AtomicU64| time.load(Ordering::Relaxed) as f64 / 1e9;
        (seconds(&self.sealing_ns), seconds(&self.hidden_ns))
    }

    fn is_waiting(socket: &TcpStream) -> bool {
        // An ended connection has nothing unacknowledged.
        unacknowledged(socket).unwrap_or(0) > 0
    }

    fn begin(&self) -> Begun {
        let waits = Self::is_waiting(self.socket.as_ref()?);
        Some((Instant::now(), waits))
    }

    /// Ends a measurement: the time counts in full if data was unacknowledged at both ends, half if at one.
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
