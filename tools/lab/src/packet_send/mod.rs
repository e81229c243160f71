//! `packet-send`: TCP/IP as separate processes that hand memory over, the experiment of Inoue, Taniguchi and Yamauchi
//! (2010).
//!
//! They built it on a microkernel of their own: an application, a protocol server and a driver pass areas by attaching
//! them to the next process; a send took 4.05 times as long as the kernel's of another system, mostly for three hops
//! between processes, and a round trip 1.25 times. Here the servers of crate `net` take their place, beside kernel
//! sockets with the same peer.
//!
//! `plan.rs` lists the rows, `place.rs` joins namespaces, `peer.rs` and `near.rs` are the two ends, over `kernel.rs` or
//! `ours.rs`; `rig.rs` runs the servers as values, `servers.rs` as a user does; `stages.rs` takes a send apart;
//! `waiting.rs` measures the switch between processes that hops are compared with; `report.rs` shows the results.

mod kernel;
mod near;
mod ours;
mod peer;
mod place;
mod plan;
mod report;
mod rig;
mod servers;
mod stages;
mod waiting;

pub(crate) use near::Near;
pub(crate) use peer::Peer;
pub(crate) use stages::Stages;

use std::time::Duration;

use crate::part::{Part, Role};
use crate::sys::Cpu;
use crate::wan::obstacle;
use crate::wan_write::find;
use crate::{Attempted, LabError, Observer, Options, Report};
use near::{Measure, Measured, Over, Payload};
use place::Place;
use plan::{Row, Sizes, Stack};
use servers::ServersUp;
use waiting::Waiting;

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
            _ => Self { application: Some(0), inet: Some(1), nic: Some(2), peer: Some(3) },
        }
    }
}

/// A row and what its rounds gave.
struct Rows {
    row: Row,
    samples: Vec<Sample>,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    measured: Measured,
    /// Processor time of the servers meanwhile.
    servers: Cpu,
}

/// One send taken apart, by size.
struct Staged {
    bytes: usize,
    payload: Payload,
    samples: Vec<stages::Parts>,
}

/// Streams through `hikyaku net up`, alternately with the driver killed in the middle and without; the longest pause of
/// the receiver in each, milliseconds.
#[derive(Default)]
struct Killed {
    with_ms: Vec<f64>,
    without_ms: Vec<f64>,
    lost: usize,
}

struct Results {
    rows: Vec<Rows>,
    staged: Vec<Staged>,
    switch_us: Vec<f64>,
    killed: Killed,
}

pub(crate) fn run(options: &Options, observer: &mut dyn Observer) -> Result<Report, LabError> {
    if options.modes.is_some() {
        return Err(LabError::Usage("the appendix (--modes) belongs to secure-read".to_owned()));
    }
    let sizes = Sizes::new(options);
    let mut results = Results {
        rows: sizes.rows(options).into_iter().map(|row| Rows { row, samples: Vec::new() }).collect(),
        staged: sizes.stages(options),
        switch_us: Vec::new(),
        killed: Killed::default(),
    };
    let kills = if options.selects(KILLS) { sizes.kills } else { 0 };
    if results.rows.is_empty() && results.staged.is_empty() && kills == 0 {
        return Err(LabError::Usage("no row has such a name".to_owned()));
    }
    if let Some(obstacle) = obstacle() {
        return Err(LabError::new("make a TAP interface", &obstacle));
    }
    let cores = Cores::of_machine();
    let place = Place::new(cores.peer)?;
    let has_three = kills > 0 || results.rows.iter().any(|rows| rows.row.stack == Stack::Three);
    let up = match find().filter(|_| has_three) {
        Some(program) => Some(ServersUp::start(&program, &place, [cores.inet, cores.nic])?),
        None if has_three => {
            return Err(LabError::new(
                "start hikyaku net up",
                &"hikyaku is not beside this program and not in PATH",
            ));
        }
        None => None,
    };
    let all = sizes.rounds * (results.rows.len() + results.staged.len()) + kills;
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
            let role = Role::PacketStages(Stages {
                namespace: place.far.path(),
                cores: [cores.application, cores.inet, cores.nic],
                bytes: staged.bytes,
                count: sizes.sends,
                payload: staged.payload,
            });
            staged.samples.push(Part::start(&staged.name(), &role)?.1);
        }
    }
    for _ in 0..kills {
        next(KILLS)?;
        let up = up.as_ref().expect("started for the kills");
        results.killed.run(up, &cores, true);
        results.killed.run(up, &cores, false);
    }
    report::report(&results, options)
}

const KILLS: &str = "kills of the driver";
const KILL_STREAM_MS: u64 = 300;

impl Killed {
    /// One stream of 64 KiB sends to the kernel; a connection that ends counts as lost.
    fn run(&mut self, up: &ServersUp, cores: &Cores, kills: bool) {
        let over = Over::Servers { socket: up.socket() };
        let measure = Measure::Out { bytes: 64 << 10, ms: KILL_STREAM_MS, payload: Payload::Copied };
        let near = Near { over, cpu: cores.application, waiting: Waiting::Spin, measure };
        let role = Role::PacketNear(near);
        let stream = std::thread::scope(|scope| {
            let stream = scope.spawn(|| Part::start::<Measured>(KILLS, &role).map(|(_, measured)| measured));
            if kills {
                std::thread::sleep(Duration::from_millis(KILL_STREAM_MS / 2));
                // Without a kill the stream counts with a shorter pause: the figure cannot look worse by it.
                let _ = up.kill_driver();
            }
            stream.join()
        });
        let pauses = if kills { &mut self.with_ms } else { &mut self.without_ms };
        match stream {
            Ok(Ok(measured)) => pauses.push(measured.streamed.pause_us as f64 / 1e3),
            _ => self.lost += 1,
        }
    }
}

fn measure(row: &Row, place: &Place, cores: &Cores, up: Option<&ServersUp>) -> Result<Sample, LabError> {
    let over = match (row.stack, up) {
        (Stack::Kernel, _) => Over::Kernel { namespace: place.near.path(), peer: Place::veth_peer() },
        (Stack::One, _) => Over::OneProcess { namespace: place.far.path() },
        (Stack::Three, Some(up)) => Over::Servers { socket: up.socket() },
        (Stack::Three, None) => unreachable!("started for such rows"),
    };
    let servers = up.filter(|_| row.stack == Stack::Three);
    let before = servers.map(ServersUp::cpu).transpose()?.unwrap_or_default();
    let role =
        Role::PacketNear(Near { over, cpu: cores.application, waiting: row.waiting, measure: row.measure });
    let (_part, measured) = Part::start(&row.name(), &role)?;
    let after = servers.map(ServersUp::cpu).transpose()?.unwrap_or_default();
    Ok(Sample { measured, servers: after.since(before) })
}
