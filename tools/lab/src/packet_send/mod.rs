//! `packet-send`: TCP/IP as separate processes that hand memory over, the experiment of Inoue, Taniguchi and Yamauchi
//! (2010).
//!
//! They built it on a microkernel of their own: an application, a protocol server and a driver pass areas by attaching
//! them to the next process; a send took 4.05 times as long as the kernel's of another system, mostly for three hops
//! between processes, and a round trip 1.25 times. Here the servers of crate `net` take their place, beside kernel
//! sockets with the same peer.
//!
//! - `plan.rs` lists what is measured; `place.rs` joins namespaces.
//! - Round trips and streams: `peer.rs` and `near.rs` are the two ends, over `kernel.rs` or `ours.rs`; `rig.rs` runs the
//!   servers as values, `servers.rs` as a user does.
//! - A send taken apart: `stages.rs` by `notes.rs`, `kernel_stages.rs` by `tracefs.rs`; both become `parts.rs`.
//! - Ways to hand memory over: `hand.rs`, measured by `hand_over.rs`. Copies: `copies.rs`. Kills: `kills.rs`.
//! - TCP over a path that loses: `lossy.rs`.
//! - `waiting.rs` measures the switch between processes that hops are compared with.
//! - `results.rs` derives figures; `report.rs`, `headline.rs`, `verdicts.rs` and `plots.rs` show them.

mod copies;
mod hand;
mod hand_over;
mod headline;
mod kernel;
mod kernel_stages;
mod kills;
mod lossy;
mod near;
mod notes;
mod ours;
mod parts;
mod pattern;
mod peer;
mod place;
mod plan;
mod plots;
mod report;
mod results;
mod rig;
mod servers;
mod stages;
mod tracefs;
mod verdicts;
mod waiting;

pub(crate) use hand_over::HandOver;
pub(crate) use kernel_stages::KernelStages;
pub(crate) use near::Near;
pub(crate) use peer::Peer;
pub(crate) use stages::Stages;

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use copies::Copies;
use hand_over::Handed;
use kills::Kills;
use lossy::{LOSSY, Lossy};
use near::{Measured, Over, Payload};
use parts::Parts;
use place::{Place, UP};
use plan::{Row, SKB_DEFER_MAX, Sizes, Stack};
use results::Results;
use servers::{ServersUp, Work};

use crate::part::{Part, Role};
use crate::wan::obstacle;
use crate::wan_write::find;
use crate::{Attempted, LabError, Observer, Options, Report};

/// On two cores: the application and the driver share one, `inet` and the peer the other; the measured placement of
/// docs/internals/net.md. On four and more, each has its own.
struct Cores {
    application: Option<usize>,
    inet: Option<usize>,
    nic: Option<usize>,
    peer: Option<usize>,
}

impl Cores {
    fn of_machine() -> Self {
        match std::thread::available_parallelism().map_or(1, usize::from) {
            1 => Self { application: None, inet: None, nic: None, peer: None },
            2 | 3 => Self { application: Some(0), inet: Some(1), nic: Some(0), peer: Some(1) },
            count => {
                let [application, inet, nic, peer] = apart(count, siblings).map(Some);
                Self { application, inet, nic, peer }
            }
        }
    }
}

/// Four processors of `count`, of different cores where there are enough: two processors of one core share what they
/// compute with.
fn apart(count: usize, siblings: impl Fn(usize) -> Option<String>) -> [usize; 4] {
    let mut seen = HashSet::new();
    let (mut first, mut others) = (Vec::new(), Vec::new());
    for cpu in 0..count {
        let is_first = siblings(cpu).is_none_or(|list| seen.insert(list));
        if is_first { first.push(cpu) } else { others.push(cpu) }
    }
    first.extend(others);
    [first[0], first[1], first[2], first[3]]
}

fn siblings(cpu: usize) -> Option<String> {
    std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")).ok()
}

/// A row and what its rounds gave.
struct Rows {
    row: Row,
    samples: Vec<Sample>,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    measured: Measured,
    /// Of the servers meanwhile.
    servers: Work,
    /// From the application and the servers to one another.
    switches: u64,
}

/// One send taken apart, by size and way.
struct Staged {
    /// The kernel, or three processes.
    stack: Stack,
    bytes: usize,
    payload: Payload,
    samples: Vec<Parts>,
}

/// An area of some size handed over, by round and mode.
struct Handing {
    bytes: usize,
    samples: Vec<Vec<Handed>>,
}

const KILLS: &str = "kills of the servers";
const COPIES: &str = "copies of a send";
const RING: &str = "slots of a ring";
const RING_MS: u64 = 20;

pub(crate) fn run(options: &Options, observer: &mut dyn Observer) -> Result<Report, LabError> {
    if options.modes.is_some() {
        return Err(LabError::Usage("the appendix (--modes) belongs to secure-read".to_owned()));
    }
    let sizes = Sizes::new(options);
    let mut results = Results::new(&sizes, options);
    let (kills, copies) = (options.selects(KILLS), options.selects(COPIES));
    let ring = options.selects(RING);
    // Ten minutes of its own: only where it is asked for.
    let lossy = !options.rows.is_empty() && options.selects(LOSSY);
    if results.rows.is_empty()
        && results.staged.is_empty()
        && results.handings.is_empty()
        && !kills
        && !copies
        && !ring
        && !lossy
    {
        return Err(LabError::Usage("no row has such a name".to_owned()));
    }
    if let Some(obstacle) = obstacle() {
        return Err(LabError::new("make a TAP interface", &obstacle));
    }
    let cores = Cores::of_machine();
    let place = Place::new(cores.peer)?;
    let has_three =
        kills || copies || lossy || results.rows.iter().any(|rows| rows.row.stack == Stack::Three);
    let program = if has_three {
        let program = find();
        let missing =
            || LabError::new("start hikyaku net up", &"hikyaku is not beside this program and not in PATH");
        Some(program.ok_or_else(missing)?)
    } else {
        None
    };
    let up = program.as_deref().map(|program| start(program, &place, &cores)).transpose()?;
    let per_round = results.rows.len() + results.staged.len() + results.handings.len() + 1;
    let kill_steps = if kills { 2 * (sizes.kills + sizes.streams) + sizes.inet_kills } else { 0 };
    let lossy_steps = if lossy { Lossy::steps(sizes.pairs) } else { 0 };
    let all = sizes.rounds * per_round + kill_steps + usize::from(copies) + lossy_steps;
    let mut count = 0;
    let mut next = |doing: &str| {
        observer.on_progress(doing, f64::from(count) / all as f64);
        count += 1;
        if observer.is_stopped() { Err(LabError::Interrupted) } else { Ok(()) }
    };
    for _ in 0..sizes.rounds {
        results.switch_us.push(waiting::switch_us().attempted("measure a process switch")?);
        for rows in &mut results.rows {
            next(&rows.row.name())?;
            rows.samples.push(measure(&rows.row, &place, &cores, up.as_ref())?);
        }
        for staged in &mut results.staged {
            next(&staged.name())?;
            staged.samples.push(take_apart(staged, &place, &cores, sizes.sends)?);
        }
        // Two processes that share nothing but memory: a core each.
        let hand_over =
            |bytes, ms| Role::PacketHandOver(HandOver { bytes, ms, cores: [cores.application, cores.inet] });
        for handing in &mut results.handings {
            next(&handing.name())?;
            let role = hand_over(handing.bytes, sizes.hand_ms);
            handing.samples.push(Part::start(&handing.name(), &role)?.1);
        }
        next(RING)?;
        if ring {
            results.ring_ns.push(Part::start(RING, &hand_over(0, RING_MS))?.1);
        }
    }
    // The counters of `inet` end with it.
    if let (true, Some(up), Some(program)) = (copies, &up, &program) {
        next(COPIES)?;
        results.copies.push(Copies::of(
            up,
            "to and from the kernel, 256 B to 64 KiB, segmented by the kernel",
            None,
        )?);
        let (duration, cores) = (Duration::from_millis(sizes.loss_ms), [cores.inet, cores.nic]);
        results.copies.push(Copies::under_loss(program, &place.far, cores, duration)?);
    }
    if let (true, Some(up)) = (kills, &up) {
        kill(&mut results.kills, up, &sizes, &cores, &mut next)?;
    }
    if let (true, Some(program)) = (lossy, &program) {
        let duration = Duration::from_millis(sizes.pair_ms);
        results.lossy = Lossy::run(program, sizes.pairs, duration, &mut next)?;
    }
    report::report(&results, options)
}

fn start(program: &Path, place: &Place, cores: &Cores) -> Result<ServersUp, LabError> {
    let (nic, address) = (format!("tap:{}", UP.name), format!("{}/24", UP.ours));
    let mut up = ServersUp::start(
        program,
        &place.far,
        &["--nic", &nic, "--address", &address],
        [cores.inet, cores.nic],
    )?;
    up.wait()?;
    Ok(up)
}

fn kill(
    kills: &mut Kills,
    up: &ServersUp,
    sizes: &Sizes,
    cores: &Cores,
    next: &mut dyn FnMut(&str) -> Result<(), LabError>,
) -> Result<(), LabError> {
    for turn in 0..sizes.kills.max(sizes.streams) {
        for (streams, is_out) in kills.directions.iter_mut().zip([true, false]) {
            for (is_due, kills) in [(turn < sizes.kills, true), (turn < sizes.streams, false)] {
                if is_due {
                    next(KILLS)?;
                    streams.run(up, cores.application, is_out, kills)?;
                }
            }
        }
    }
    for _ in 0..sizes.inet_kills {
        next(KILLS)?;
        kills.run_inet(up, cores.application)?;
    }
    Ok(())
}

fn take_apart(staged: &Staged, place: &Place, cores: &Cores, count: usize) -> Result<Parts, LabError> {
    let Staged { stack, bytes, payload, .. } = *staged;
    let role = match stack {
        Stack::Kernel => Role::PacketKernelStages(KernelStages {
            namespace: place.near.path(),
            peer: Place::veth_peer(),
            cpu: cores.application,
            bytes,
            count,
        }),
        _ => Role::PacketStages(Stages {
            namespace: place.far.path(),
            cores: [cores.application, cores.inet, cores.nic],
            bytes,
            count,
            payload,
        }),
    };
    Ok(Part::start(&staged.name(), &role)?.1)
}

fn measure(row: &Row, place: &Place, cores: &Cores, up: Option<&ServersUp>) -> Result<Sample, LabError> {
    let over = match (row.stack, up) {
        (Stack::Kernel, _) => Over::Kernel { namespace: place.near.path(), peer: Place::veth_peer() },
        (Stack::One, _) => Over::OneProcess { namespace: place.far.path() },
        (Stack::Three, Some(up)) => Over::Servers { socket: up.socket(), peer: UP.peer() },
        (Stack::Three, None) => unreachable!("started for such rows"),
    };
    let _without = (!row.defers).then(WithoutDeferral::new).transpose()?;
    let servers = up.filter(|_| row.stack == Stack::Three);
    let before = servers.map(ServersUp::work).transpose()?.unwrap_or_default();
    let role =
        Role::PacketNear(Near { over, cpu: cores.application, waiting: row.waiting, measure: row.measure });
    let (_part, measured) = Part::start::<Measured>(&row.name(), &role)?;
    let after = servers.map(ServersUp::work).transpose()?.unwrap_or_default();
    let servers = after.since(before);
    // A core that inet shares with the peer alone: the switches there are none between processes of one stack.
    let is_apart = cores.inet.is_some() && cores.inet != cores.application && cores.inet != cores.nic;
    let [inet, nic] = servers.switches;
    let switches = measured.switches + nic + if is_apart { 0 } else { inet };
    Ok(Sample { measured, servers, switches })
}

/// Until it is dropped, no core of the machine leaves received memory to the core that allocated it.
struct WithoutDeferral {
    former: String,
}

impl WithoutDeferral {
    fn new() -> Result<Self, LabError> {
        let doing = "set net.core.skb_defer_max";
        let former = std::fs::read_to_string(SKB_DEFER_MAX).attempted(doing)?;
        std::fs::write(SKB_DEFER_MAX, "0").attempted(doing)?;
        Ok(Self { former })
    }
}

impl Drop for WithoutDeferral {
    fn drop(&mut self) {
        // It was written a moment ago.
        let _ = std::fs::write(SKB_DEFER_MAX, &self.former);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_has_a_core_where_there_are_enough() {
        let pairs = |cpu: usize| Some(format!("{}-{}", cpu & !1, cpu | 1));
        assert_eq!(apart(8, pairs), [0, 2, 4, 6]);
        assert_eq!(apart(4, pairs), [0, 2, 1, 3]);
        assert_eq!(apart(4, |_| None), [0, 1, 2, 3]);
    }
}
