//! One path with its targets, and the measurement of a row over it.

use std::fs::File;
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::peers::{self, Tgt, Tuning, write_by_qemu};
use super::plan::{Buffers, RATE, Row, SEND_BUFFER, Who};
use super::target::{IQN, Target};
use super::writer::{Method, RANGE_BYTES, Ready, Sink, Writer, Wrote};
use crate::part::{Part, Role};
use crate::wan::{ADDRESSES, Options as PathOptions, Settings, Tap, Wan};
use crate::{Attempted, LabError, folder};

/// Ports of our target, and of the receiver of plain sockets.
const TARGET_PORT: u16 = 3261;
const SINK_PORT: u16 = 5001;
/// Blocks of rows with several in flight.
const DEEP_BLOCK: u32 = 1 << 20;
/// Round trips of a QEMU write with the defaults of libiscsi and tgt: one for each R2T of 256 KiB, and one more.
const QEMU_RTTS: u32 = 17;

/// A path, and the targets at its far side. Dropping it ends all of them.
pub(super) struct Place {
    // Declared before the path and therefore dropped first.
    _parts: Vec<Part>,
    _tgt: Option<Tgt>,
    pub(super) wan: Wan,
    pub(super) folder: TempDir,
    pub(super) rtt: Duration,
}

impl Place {
    /// With `is_watched` every packet leaves as a frame of its own, and a capture is written between the bottleneck and
    /// the delay: where the paper's analyser stood.
    pub(super) fn new(rtt: Duration, is_watched: bool) -> Result<Self, LabError> {
        let folder = folder()?;
        let settings = Settings { in_segments: is_watched, ..Settings::new(rtt, Some(RATE)) };
        let mut options = PathOptions::new(settings);
        if is_watched {
            options.tap = Some(Tap { place: 0.0, ..Tap::new(folder.path().join("initiator.pcap")) });
        }
        let wan = Wan::start(&options)?;
        let store = folder.path().join("store.img");
        let made = File::create(&store).and_then(|mut file| {
            let zeroes = vec![0; 1 << 20];
            (0..RANGE_BYTES >> 20).try_for_each(|_| file.write_all(&zeroes))
        });
        made.attempted(&format!("write {}", store.display()))?;
        let namespace = wan.side(1).path();
        let sink = Sink { namespace: namespace.clone(), address: address(SINK_PORT) };
        let target = Target { namespace, address: address(TARGET_PORT), store: store.clone() };
        let parts = vec![
            Part::start::<Ready>("the receiver", &Role::WanSink(sink))?.0,
            Part::start::<Ready>("the target", &Role::WanTarget(target))?.0,
        ];
        let tgt = peers::is_installed("tgtd").then(|| Tgt::start(wan.side(1), &store)).transpose()?;
        Ok(Self { _parts: parts, _tgt: tgt, wan, folder, rtt })
    }

    fn store(&self) -> PathBuf {
        self.folder.path().join("store.img")
    }

    /// Why a row cannot be measured on this machine; `None` if it can.
    pub(super) fn missing(row: &Row) -> Option<&'static str> {
        let needs: &[&str] = match row.who {
            Who::Blocking { .. } => &["tgtd"],
            Who::Qemu { .. } => &["tgtd", "qemu-img"],
            _ => &[],
        };
        needs.iter().find(|program| !peers::is_installed(program)).copied()
    }

    /// The port to which a row writes.
    pub(super) fn port(row: &Row) -> u16 {
        match row.who {
            Who::Socket => SINK_PORT,
            Who::Ours { .. } => TARGET_PORT,
            _ => peers::PORT,
        }
    }

    /// Greatest lateness of the path, milliseconds.
    pub(super) fn late_ms(&self) -> f64 {
        let late = |side: usize| self.wan.line().counters(side).late_max_ns;
        late(0).max(late(1)) as f64 / 1e6
    }

    /// Sets the buffers and the congestion control of sockets that are made from now on.
    fn prepare(&self, row: &Row) -> Result<(), LabError> {
        for side in [0, 1] {
            let namespace = self.wan.side(side);
            for (key, value) in Buffers::settings(row.buffers) {
                namespace.sysctl(&format!("net/ipv4/{key}"), value)?;
            }
            namespace.sysctl("net/ipv4/tcp_congestion_control", row.congestion)?;
        }
        Ok(())
    }

    /// Starts the process that writes; it waits for orders.
    pub(super) fn writer(&self, row: &Row, block: u32) -> Result<(Part, Ready), LabError> {
        self.prepare(row)?;
        let (method, block) = match row.who {
            Who::Socket => (Method::Socket { send_buffer: None }, block),
            Who::Blocking { fixed } => {
                let send_buffer = fixed.then_some(SEND_BUFFER);
                let target = Tuning::Paper.target();
                (Method::Blocking { target, lun: peers::LUN, send_buffer }, block)
            }
            Who::Ours { depth } => {
                let block = if depth > 1 { DEEP_BLOCK } else { block };
                (Method::Ours { target: IQN.to_owned(), lun: 0, depth }, block)
            }
            Who::Local | Who::Qemu { .. } => unreachable!("these rows have no process of ours"),
        };
        let namespace = self.wan.side(0).path();
        let writer = Writer { namespace, address: address(Self::port(row)), method, block };
        Part::start("the writer", &Role::WanWriter(writer))
    }

    /// One measurement of a row.
    pub(super) fn measure(&self, row: &Row, block: u32, ms: u64) -> Result<Wrote, LabError> {
        match row.who {
            Who::Local => self.write_locally(block, ms),
            Who::Qemu { tuning, depth } => {
                self.prepare(row)?;
                let block = if depth > 1 { DEEP_BLOCK } else { block };
                // As many as should take the time, by the rule that it waits for each R2T.
                let bytes = RATE / 8.0 * ms as f64 / 1e3;
                let seconds = f64::from(block) * 8.0 / RATE
                    + self.rtt.as_secs_f64() * f64::from(if depth > 1 { 5 } else { QEMU_RTTS })
                        / f64::from(depth);
                let writes = (ms as f64 / 1e3 / seconds).min(bytes / f64::from(block)).max(3.0) as usize;
                write_by_qemu(self.wan.side(0), tuning, block, depth, writes.max(depth as usize * 3))
            }
            _ => {
                let (mut part, _) = self.writer(row, block)?;
                // Until the congestion window has grown.
                let _: Wrote = part.ask(ms / 2)?;
                part.ask(ms)
            }
        }
    }

    fn write_locally(&self, block: u32, ms: u64) -> Result<Wrote, LabError> {
        let doing = "write to the file of the target";
        let file = File::options().write(true).open(self.store()).attempted(doing)?;
        let data = vec![0x3c; block as usize];
        let (begun, mut writes) = (Instant::now(), 0);
        while begun.elapsed() < Duration::from_millis(ms / 4) {
            file.write_all_at(&data, writes as u64 * u64::from(block) % RANGE_BYTES).attempted(doing)?;
            file.sync_data().attempted(doing)?;
            writes += 1;
        }
        Ok(Wrote { bytes: writes as u64 * u64::from(block), seconds: begun.elapsed().as_secs_f64(), writes })
    }
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::new(ADDRESSES[1].parse().expect("an address"), port)
}
