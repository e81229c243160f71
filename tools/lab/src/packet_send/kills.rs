//! Servers killed under load: the driver in the middle of streams in both directions, and `inet`.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use net::socket::Stack;
use serde_json::{Value, json};

use super::near::{Measure, Measured, Near, Over};
use super::ours::connect;
use super::peer::Task;
use super::place::UP;
use super::servers::ServersUp;
use super::waiting::Waiting;
use crate::LabError;
use crate::part::{Part, Role};
use crate::stats::Spread;

const STREAM_MS: u64 = 300;
const JOIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Streams of one direction.
#[derive(Default)]
pub(super) struct Streams {
    /// Longest pause of the receiver in each, milliseconds: the driver was killed, or not.
    pub(super) with_ms: Vec<f64>,
    pub(super) without_ms: Vec<f64>,
    /// Connections that ended, and streams that arrived with wrong bytes.
    pub(super) lost: usize,
    pub(super) wrong: usize,
}

#[derive(Default)]
pub(super) struct Kills {
    /// To the kernel, from it.
    pub(super) directions: [Streams; 2],
    /// From the kill of `inet` until a client that joined again and connected had its first byte.
    pub(super) inet_ms: Vec<f64>,
}

/// A stream in a process of its own.
fn stream(up: &ServersUp, cpu: Option<usize>, waiting: Waiting, is_out: bool) -> Result<Measured, LabError> {
    let near = Near {
        over: Over::Servers { socket: up.socket(), peer: UP.peer() },
        cpu,
        waiting,
        measure: Measure::Checked { is_out, ms: STREAM_MS },
    };
    Part::start::<Measured>("a stream", &Role::PacketNear(near)).map(|(_, measured)| measured)
}

impl Streams {
    /// A connection that ends counts as lost.
    pub(super) fn run(
        &mut self,
        up: &ServersUp,
        cpu: Option<usize>,
        is_out: bool,
        kills: bool,
    ) -> Result<(), LabError> {
        up.bind()?;
        let measured = std::thread::scope(|scope| {
            let streams = scope.spawn(|| stream(up, cpu, Waiting::Spin, is_out));
            if kills {
                std::thread::sleep(Duration::from_millis(STREAM_MS / 2));
                up.kill("nic")?;
            }
            streams.join().unwrap_or_else(|_| Err(LabError::new("stream", &"a panic")))
        })?;
        if measured.is_lost {
            self.lost += 1;
            return Ok(());
        }
        self.wrong += usize::from(measured.streamed.wrong > 0);
        let pauses = if kills { &mut self.with_ms } else { &mut self.without_ms };
        pauses.push(measured.streamed.pause_us as f64 / 1e3);
        Ok(())
    }

    fn object(&self, direction: &str) -> Value {
        json!({
            "row": format!("driver killed in a stream {direction}"),
            "runs": self.with_ms.len() + self.lost,
            "pause_ms": Spread::of(self.with_ms.iter().copied()),
            "pause_ms_without_kills": Spread::of(self.without_ms.iter().copied()),
            "runs_without_kills": self.without_ms.len(),
            "connections_lost": self.lost,
            "streams_with_wrong_bytes": self.wrong,
        })
    }
}

impl Kills {
    pub(super) fn run_inet(&mut self, up: &ServersUp, cpu: Option<usize>) -> Result<(), LabError> {
        up.bind()?;
        let doing = "join again after inet was killed";
        let gap = std::thread::scope(|scope| {
            // It ends with its connection, of which the peer learns nothing: it sleeps.
            let load = scope.spawn(|| stream(up, cpu, Waiting::Block, true));
            std::thread::sleep(Duration::from_millis(STREAM_MS / 2));
            up.kill("inet")?;
            let begin = Instant::now();
            let gap = loop {
                match first_byte(up) {
                    Ok(()) => break begin.elapsed(),
                    Err(error) if begin.elapsed() > JOIN_TIMEOUT => return Err(LabError::new(doing, &error)),
                    Err(_) => std::thread::sleep(Duration::from_micros(200)),
                }
            };
            let _ = load.join();
            Ok(gap)
        })?;
        self.inet_ms.push(gap.as_secs_f64() * 1e3);
        Ok(())
    }

    /// Whether a driver was killed.
    pub(super) fn has_run(&self) -> bool {
        self.directions.iter().any(|streams| streams.lost > 0 || !streams.with_ms.is_empty())
    }

    pub(super) fn wrong(&self) -> usize {
        self.directions.iter().map(|streams| streams.wrong).sum()
    }

    pub(super) fn lost(&self) -> usize {
        self.directions.iter().map(|streams| streams.lost).sum()
    }

    /// Of both directions.
    pub(super) fn pauses(&self) -> Option<Spread> {
        Spread::of(self.directions.iter().flat_map(|streams| streams.with_ms.iter().copied()))
    }

    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for (streams, direction) in self.directions.iter().zip(DIRECTIONS) {
            let spreads = [&streams.with_ms, &streams.without_ms].map(|ms| Spread::of(ms.iter().copied()));
            let [Some(with), Some(without)] = spreads else { continue };
            text += &format!(
                "\nThe driver was killed in {} streams {direction}: longest pause of the receiver {} ms (in {} streams without kills {} ms), \
                 connections lost {}, streams with wrong bytes {}.\n",
                streams.with_ms.len() + streams.lost,
                with.show(),
                streams.without_ms.len(),
                without.show(),
                streams.lost,
                streams.wrong,
            );
        }
        if let Some(gap) = Spread::of(self.inet_ms.iter().copied()) {
            text += &format!(
                "\ninet was killed under load {} times: {} ms until a client that joined again and connected had its first byte. Its connections \
                 are lost, and are not among those above.\n",
                self.inet_ms.len(),
                gap.show(),
            );
        }
        text
    }

    pub(super) fn objects(&self) -> Vec<Value> {
        let of = |(streams, direction): (&Streams, &str)| streams.object(direction);
        let mut all: Vec<_> = self
            .directions
            .iter()
            .zip(DIRECTIONS)
            .filter(|(streams, _)| !streams.with_ms.is_empty())
            .map(of)
            .collect();
        if let Some(gap) = Spread::of(self.inet_ms.iter().copied()) {
            all.push(json!({ "row": "inet killed under load", "runs": self.inet_ms.len(), "gap_ms": gap }));
        }
        all
    }
}

const DIRECTIONS: [&str; 2] = ["to the kernel", "from the kernel"];

/// Joins the servers, connects, and receives an answer of one byte.
fn first_byte(up: &ServersUp) -> std::io::Result<()> {
    let stream = connect(&Stack::connect(up.socket())?, UP.peer())?;
    stream.set_read_timeout(Some(JOIN_TIMEOUT))?;
    let task = Task::Echo { bytes: 1, count: 1 };
    (&stream).write_all(&task.encode(Waiting::Spin.among_servers()))?;
    (&stream).write_all(b"x")?;
    (&stream).read_exact(&mut [0])
}
