//! A bare TCP round trip: two processes on one processor exchange as many bytes as an iSCSI command and its response
//! have, with blocking system calls. This is the minimum cost of any request over a socket.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::run::Sample;
use crate::peers::Shape;
use harness::Running;
use harness::process::{Surroundings, pin};

/// Bytes of a basic header segment.
const HEADER_BYTES: usize = 48;
const READY_LIMIT: Duration = Duration::from_secs(10);
const ANSWER_LIMIT: Duration = Duration::from_secs(20);
const WARM_UP_ROUNDS: usize = 200;

/// The argument that makes this program run [`pong`].
pub(crate) const NAME: &str = "pong";

/// The far end: prints its port, accepts one connection and answers on it until it closes.
pub(crate) fn pong(request: usize, reply: usize) -> Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    println!("{}", listener.local_addr()?.port());
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    let (mut taken, given) = (vec![0; request], vec![1; reply]);
    while stream.read_exact(&mut taken).is_ok() {
        stream.write_all(&given)?;
    }
    Ok(())
}

/// Round trips with the bytes of a request of `shape`, both ends on processor `core`.
pub(super) fn round_trips(shape: Shape, core: usize, seconds: f64) -> Result<Sample> {
    let block = shape.block as usize;
    let (request, reply) =
        if shape.write { (HEADER_BYTES + block, HEADER_BYTES) } else { (HEADER_BYTES, HEADER_BYTES + block) };
    let mut command = Command::new(std::env::current_exe()?);
    command.args([NAME, &request.to_string(), &reply.to_string()]);
    Surroundings { core: Some(core), ..Surroundings::default() }.apply(&mut command);
    let mut far = Running::start(&mut command)?;
    let port: u16 = far.wait_stdout("port", READY_LIMIT, |text| text.strip_suffix('\n')?.parse().ok())?;
    // The near end has its own thread, so that only this thread is bound to the processor.
    let near = std::thread::spawn(move || ping(port, request, reply, core, seconds));
    let trips = near.join().map_err(|_| anyhow::anyhow!("the near end panicked"))??;
    Ok(Sample { mb_per_s: shape.block as f64 * trips.per_second / 1e6, ..trips })
}

fn ping(port: u16, request: usize, reply: usize, core: usize, seconds: f64) -> Result<Sample> {
    pin(core).context("bind to a processor")?;
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    let (given, mut taken) = (vec![2; request], vec![0; reply]);
    let mut once = || -> Result<()> {
        stream.write_all(&given)?;
        Ok(stream.read_exact(&mut taken)?)
    };
    for _ in 0..WARM_UP_ROUNDS {
        once()?;
    }
    let started = Instant::now();
    let (mut all, mut last) = (Vec::new(), started);
    while (last - started).as_secs_f64() < seconds {
        once()?;
        let now = Instant::now();
        all.push((now - last).as_secs_f64() * 1e6);
        last = now;
    }
    let mean_us = (last - started).as_secs_f64() * 1e6 / all.len() as f64;
    all.sort_by(f64::total_cmp);
    let percentile = |percent: usize| all[(all.len() * percent / 100).min(all.len() - 1)];
    let (p50_us, p99_us) = (percentile(50), percentile(99));
    Ok(Sample { per_second: 1e6 / mean_us, p50_us, p99_us, ..Sample::default() })
}
