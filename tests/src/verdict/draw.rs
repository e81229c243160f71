//! Cells from a cause, a strength and a load: the matrix, and cells that are drawn.

use rand::RngExt as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;

use super::cell::{MSS, SEND_BUFFER_SHARE, WINDOW_SHARE};
use super::{Burst, Cell, Injection, Limit, Load, Peers, Setup};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// libiscsi offers no larger first burst.
const FIRST_BURST: u32 = 256 << 10;
const FIRST_BURST_MAX: u32 = (16 << 20) - 512;
/// A load is deep enough for a path if this many bandwidth-delay products are outstanding.
const AMPLE: f64 = 4.0;

/// Who can have a limit, and on what loads.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub limit: Limit,
    pub peers: &'static [Peers],
    /// Writes, reads.
    pub directions: &'static [bool],
    pub rtts_ms: &'static [f64],
}

const ALL: &[Peers] = &Peers::ALL;
const TGT: &[Peers] = &[Peers::LibiscsiTgt, Peers::OursTgt];
const BOTH: &[bool] = &[true, false];
const WRITES: &[bool] = &[true];
const READS: &[bool] = &[false];

/// Every limit that can be injected. Rates below 50 MB/s keep the processors out of it, unless they are the limit.
pub const CASES: &[Case] = &[
    Case {
        limit: Limit::R2t,
        peers: &[Peers::LibiscsiTgt, Peers::OursTgt, Peers::QemuOurs],
        directions: WRITES,
        rtts_ms: &[20.0, 50.0, 100.0],
    },
    Case { limit: Limit::QueueDepth, peers: ALL, directions: BOTH, rtts_ms: &[5.0, 20.0, 50.0] },
    Case { limit: Limit::SendBuffer, peers: ALL, directions: BOTH, rtts_ms: &[20.0, 50.0, 100.0] },
    Case { limit: Limit::ReceiveWindow, peers: ALL, directions: BOTH, rtts_ms: &[20.0, 50.0, 100.0] },
    Case { limit: Limit::Congestion, peers: ALL, directions: BOTH, rtts_ms: &[20.0, 50.0, 100.0] },
    Case { limit: Limit::Loss, peers: ALL, directions: BOTH, rtts_ms: &[10.0, 20.0, 50.0] },
    Case {
        limit: Limit::NagleDelayedAck,
        peers: &[Peers::LibiscsiTgt],
        // tgt sends the data of small reads with its header.
        directions: WRITES,
        rtts_ms: &[2.0, 5.0, 10.0],
    },
    Case { limit: Limit::LocalDevice, peers: ALL, directions: BOTH, rtts_ms: &[10.0, 20.0] },
    Case { limit: Limit::Target, peers: ALL, directions: READS, rtts_ms: &[2.0, 5.0, 20.0] },
    Case { limit: Limit::Cipher, peers: &[Peers::Ours], directions: READS, rtts_ms: &[1.0] },
    Case { limit: Limit::Cpu, peers: TGT, directions: READS, rtts_ms: &[5.0, 10.0] },
    Case { limit: Limit::Cpu, peers: &[Peers::QemuOurs], directions: WRITES, rtts_ms: &[5.0, 10.0] },
    Case {
        limit: Limit::ThinkTime,
        peers: &[Peers::LibiscsiTgt],
        directions: BOTH,
        rtts_ms: &[2.0, 5.0, 20.0],
    },
    Case { limit: Limit::LineRate, peers: ALL, directions: BOTH, rtts_ms: &[5.0, 20.0, 50.0] },
];

/// Shares of the possible rate that a limit leaves: strong, medium and weak.
const STRENGTHS: [(&str, f64); 3] = [("strong", 0.15), ("medium", 0.35), ("weak", 0.6)];

/// A load that fills a path, of blocks that need no R2T.
fn ample(rtt_ms: f64, mbit: f64, is_write: bool) -> Load {
    let block = 256 * KIB;
    let load = Load { rtt_ms, mbit, block, depth: 1, is_write };
    let depth = (AMPLE * load.product() / block as f64).ceil().clamp(16.0, 128.0) as u32;
    Load { depth, ..load }
}

/// A cell where `limit` leaves about `share` of the rate without it.
pub fn make(limit: Limit, share: f64, peers: Peers, rtt_ms: f64, mbit: f64, is_write: bool) -> Cell {
    let deep = ample(rtt_ms, mbit, is_write);
    let burst = Burst::First(if peers.has_our_initiator() { FIRST_BURST_MAX } else { FIRST_BURST });
    let healthy = Setup { peers, load: deep, burst, injections: Vec::new(), queue: 1.0 };
    let wrong = |injection| Setup { injections: vec![injection], ..healthy.clone() };
    let with = |load, injection: Option<Injection>| Setup {
        load,
        injections: injection.into_iter().collect(),
        ..healthy.clone()
    };
    let product = deep.product();
    let mut also = Vec::new();
    let (setup, cured) = match limit {
        Limit::R2t => {
            let load = Load { block: 4 * MIB, depth: 1, ..deep };
            let setup = Setup { load, burst: Burst::Default, ..healthy.clone() };
            // An initiator that offers a first burst as long as the command; libiscsi does not.
            let able = if peers.has_tgt() { Peers::OursTgt } else { Peers::Ours };
            (
                setup,
                Some(Setup { peers: able, load, burst: Burst::First(FIRST_BURST_MAX), ..healthy.clone() }),
            )
        }
        Limit::QueueDepth => {
            let load = alone(deep, share);
            // The queue of the path takes whole commands, so that nothing is lost.
            let whole = |load| Setup { queue: 4.0, ..with(load, None) };
            (whole(load), Some(whole(Load { depth: deepened(load), ..load })))
        }
        Limit::SendBuffer => {
            let bytes = (share * product / SEND_BUFFER_SHARE).max(65_536.0) as u64;
            (wrong(Injection::SendBuffer(bytes)), Some(healthy.clone()))
        }
        Limit::ReceiveWindow => {
            let bytes = (share * product / WINDOW_SHARE).max(65_536.0) as u64;
            (wrong(Injection::ReceiveBuffer(bytes)), Some(healthy.clone()))
        }
        Limit::Congestion => {
            let segments = (share * product / MSS).max(4.0) as u32;
            (wrong(Injection::Window(segments)), Some(healthy.clone()))
        }
        Limit::Loss => {
            let loss = (1.2 * MSS / (share * product)).powi(2).clamp(1e-4, 0.02);
            (wrong(Injection::Loss(loss)), Some(healthy.clone()))
        }
        Limit::NagleDelayedAck => {
            // The header leaves alone; the data, less than a segment, waits for its acknowledgement.
            let load = Load { block: KIB, depth: 1, ..deep };
            (with(load, Some(Injection::Nagle)), Some(with(load, None)))
        }
        Limit::LocalDevice => {
            // The fault is the short queue: without it the device's own rate limits.
            let bucket = |queue_kib| Injection::Bucket { mbit: mbit * 0.75, queue_kib };
            let long_kib = (AMPLE * product / 1024.0) as u32;
            (wrong(bucket((16.0 + 80.0 * share) as u32)), Some(wrong(bucket(long_kib))))
        }
        Limit::Target | Limit::ThinkTime => {
            let load = Load { block: 64 * KIB, depth: 1, ..deep };
            let alone_s = load.block as f64 / load.rate();
            // Longer than a round trip by far: a shorter one cannot be told from the path's own.
            let ms = (alone_s * (1.0 / share - 1.0)).max(2.0 * load.rtt_s()) * 1e3;
            let injection =
                if limit == Limit::Target { Injection::Storage { ms } } else { Injection::Think { ms } };
            // At depth 1 a deeper queue would help as well.
            also.push(Limit::QueueDepth);
            (with(load, Some(injection)), Some(with(load, None)))
        }
        Limit::Cipher => {
            let load = Load { mbit: 8000.0, block: MIB, depth: 16, ..deep };
            let share = 0.05 + share / 10.0;
            also.push(Limit::Cpu);
            (
                with(load, Some(Injection::Sealed { share })),
                Some(with(load, Some(Injection::Quota { share }))),
            )
        }
        Limit::Cpu => {
            let us_per_kib = 1024.0 / (share * deep.line()) * 1e6;
            (wrong(Injection::Compute { us_per_kib }), Some(healthy.clone()))
        }
        Limit::LineRate | Limit::Unknown => (Setup { queue: 0.5 + 1.5 * share, ..healthy.clone() }, None),
    };
    let kind = if is_write { "write" } else { "read" };
    let percent = (share * 100.0).round();
    let name = format!("{}-{}-{kind}-{rtt_ms:.0}ms-{percent:.0}", limit.name(), peers.name());
    Cell { name, limit, also, setup, cured }
}

/// A load so shallow that the path is idle most of the time.
fn alone(deep: Load, share: f64) -> Load {
    let bytes = share / (1.0 - share) * deep.product();
    let block = [4, 16, 64, 256, 1024, 4096].map(|kib| kib * KIB).into_iter();
    let within = block.filter(|block| !deep.is_write || *block <= u64::from(FIRST_BURST));
    let block = within.min_by_key(|block| (*block as f64 - bytes).abs() as u64).unwrap_or(64 * KIB);
    let depth = share * (deep.product() / block as f64 + 1.0);
    Load { block, depth: depth.round().clamp(1.0, 32.0) as u32, ..deep }
}

fn deepened(load: Load) -> u32 {
    let depth = AMPLE * load.product().max(load.block as f64) / load.block as f64;
    depth.ceil().clamp(f64::from(load.depth) * 2.0, 128.0) as u32
}

/// Bit rate at which the possible rate is about the same at every RTT, within what two busy cores carry.
fn line_for(limit: Limit, rtt_ms: f64) -> f64 {
    match limit {
        Limit::Loss => 400.0,
        _ if rtt_ms >= 50.0 => 200.0,
        _ => 300.0,
    }
}

/// Every limit in three strengths with every pair of peers, directions and round-trip times taking turns.
pub fn matrix() -> Vec<Cell> {
    let mut cells = Vec::new();
    for case in CASES {
        for (index, &peers) in case.peers.iter().enumerate() {
            for (step, &(_, share)) in STRENGTHS.iter().enumerate() {
                let turn = index + step;
                let rtt_ms = case.rtts_ms[turn % case.rtts_ms.len()];
                let is_write = case.directions[turn % case.directions.len()];
                cells.push(make(case.limit, share, peers, rtt_ms, line_for(case.limit, rtt_ms), is_write));
            }
        }
    }
    cells
}

/// A cell whose cause, strength, round-trip time, rate, peers and direction are drawn.
pub fn draw(rng: &mut StdRng) -> Cell {
    let case = CASES.choose(rng).expect("there are cases");
    let peers = *case.peers.choose(rng).expect("there are peers");
    let is_write = *case.directions.choose(rng).expect("there are directions");
    let (least, most) = (case.rtts_ms[0], case.rtts_ms[case.rtts_ms.len() - 1] * 1.3);
    let rtt_ms = (least.ln() + rng.random::<f64>() * (most / least).ln()).exp();
    let share = 0.12 + 0.5 * rng.random::<f64>();
    let mbit = line_for(case.limit, rtt_ms) * (0.6 + 0.6 * rng.random::<f64>());
    make(case.limit, share, peers, rtt_ms, mbit, is_write)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_matrix_has_every_limit_in_three_strengths_once_each() {
        let cells = matrix();
        let names: BTreeSet<_> = cells.iter().map(|cell| &cell.name).collect();
        assert_eq!(names.len(), cells.len());
        for limit in Limit::ALL.into_iter().filter(|limit| *limit != Limit::Unknown) {
            assert!(cells.iter().filter(|cell| cell.limit == limit).count() >= 3, "{}", limit.name());
        }
    }

    #[test]
    fn what_is_injected_is_the_least_rate_by_far() {
        for cell in matrix().into_iter().filter(|cell| cell.limit != Limit::Cipher) {
            let Some(cured) = &cell.cured else { continue };
            let (now, then) = (cell.setup.about(), cured.about());
            assert!(then > 1.2 * now, "{}: {now} and, without it, {then}", cell.name);
        }
    }

    #[test]
    fn equal_seeds_draw_equal_cells() {
        let names = |seed| {
            let mut rng = crate::random::seeded(seed);
            (0..20).map(|_| draw(&mut rng).name).collect::<Vec<_>>()
        };
        assert_eq!(names(7), names(7));
        assert_ne!(names(7), names(8));
    }
}
