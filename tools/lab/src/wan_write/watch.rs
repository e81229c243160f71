//! Samples of the writer's socket, and where its thread sleeps, every millisecond: what the paper's recompiled kernel
//! recorded at each event. Needs no rights beyond those of the experiment, but a change shorter than the interval is not
//! seen.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use monitor::Sample;
use monitor::probe::{Outcome, Prober, Reply, Watched, now_ns};

use super::writer::enter;
use crate::{Attempted, LabError};

const INTERVAL: Duration = Duration::from_millis(1);
const SAMPLES_MAX: usize = 1 << 17;
/// What the kernel shows of a thread that runs, or whose place it hides.
const AWAKE: &str = "0";
/// Beginnings of the names of functions in which a thread waits for a processor only.
const PREEMPTED: [&str; 4] = ["exit_to_user_mode", "irqentry_exit", "preempt_schedule", "do_syscall"];
/// Beginnings of the names of functions in which every kind of waiting ends.
const GENERAL: [&str; 4] = ["wait_woken", "schedule", "__schedule", "io_schedule"];

#[derive(Clone, Debug)]
pub(super) struct Observed {
    /// Times are nanoseconds since the Unix epoch, as those of the capture.
    pub(super) sample: Sample,
    /// Function of the kernel in which the writing thread sleeps; `None` while it runs.
    pub(super) sleeps_in: Option<String>,
}

/// A running observation; [`Watch::finish`] ends it.
pub(super) struct Watch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Vec<Observed>, LabError>>,
}

impl Watch {
    /// Observes the socket to `port` in a network namespace, and the main thread of process `pid`.
    pub(super) fn start(namespace: PathBuf, port: u16, pid: u32) -> Result<Self, LabError> {
        let stop = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&stop);
        let run = move || {
            enter(&namespace)?;
            observe(port, pid, &theirs)
        };
        let thread = std::thread::Builder::new().name("watch".to_owned()).spawn(run);
        Ok(Self { stop, thread: thread.attempted("start a thread")? })
    }

    pub(super) fn finish(self) -> Result<Vec<Observed>, LabError> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

fn observe(port: u16, pid: u32, stop: &AtomicBool) -> Result<Vec<Observed>, LabError> {
    let doing = "sample the socket of the writer";
    let mut prober = Prober::new().attempted(doing)?;
    let found = prober.table(false).attempted(doing)?;
    let socket = found.iter().find(|found| found.ends.remote.port() == port);
    let watched = [Watched::new(socket.ok_or_else(|| LabError::new(doing, &"it has none"))?)];
    let epoch_ns = epoch_ns();
    let (begun, mut due) = (Instant::now(), Duration::ZERO);
    let mut observed = Vec::new();
    while !stop.load(Ordering::Relaxed) && observed.len() < SAMPLES_MAX {
        let mut sampled = None;
        let see = |_, outcome: Outcome<Reply<'_>>| {
            if let Outcome::Sampled(reply) = outcome {
                sampled = Some(reply.sample());
            }
        };
        prober.sample(&watched, see).attempted(doing)?;
        if let Some(sample) = sampled {
            let sample = Sample { at_ns: epoch_ns + sample.at_ns, ..sample };
            observed.push(Observed { sample, sleeps_in: sleeps_in(pid) });
        }
        due += INTERVAL;
        match due.checked_sub(begun.elapsed()) {
            Some(wait) => std::thread::sleep(wait),
            None => due = begun.elapsed(),
        }
    }
    Ok(observed)
}

/// Nanoseconds since the Unix epoch at the origin of the monotonic clock.
fn epoch_ns() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| now.as_nanos() as u64).saturating_sub(now_ns())
}

/// The kernel's stack of a thread names more than its place of waiting, but only root may read it.
fn sleeps_in(pid: u32) -> Option<String> {
    let task = format!("/proc/{pid}/task/{pid}");
    if let Ok(stack) = std::fs::read_to_string(format!("{task}/stack")) {
        return waiting_for(&stack);
    }
    let place = std::fs::read_to_string(format!("{task}/wchan")).ok()?;
    (!place.is_empty() && place != AWAKE).then_some(place)
}

/// The innermost function of a stack that is not one of waiting in general. Lines are `[<0>] name+0x1/0x2`.
fn waiting_for(stack: &str) -> Option<String> {
    let names = stack.lines().filter_map(|line| line.split_whitespace().nth(1)?.split('+').next());
    let begins = |name: &str, beginnings: &[&str]| beginnings.iter().any(|begin| name.starts_with(begin));
    let is_special = |name: &&str| !begins(name, &GENERAL);
    if names.clone().next().is_some_and(|first| begins(first, &PREEMPTED)) {
        return None;
    }
    names.clone().find(is_special).or(names.clone().next()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_waiting_is_named_without_the_waiting() {
        let stack = "[<0>] wait_woken+0x4f/0x60\n[<0>] sk_stream_wait_memory+0x1e5/0x360\n[<0>] tcp_sendmsg+0x2/0x3\n";
        assert_eq!(waiting_for(stack).as_deref(), Some("sk_stream_wait_memory"));
        assert_eq!(waiting_for("[<0>] wait_woken+0x4f/0x60\n").as_deref(), Some("wait_woken"));
        assert_eq!(waiting_for(""), None);
        assert_eq!(waiting_for("[<0>] exit_to_user_mode_loop+0x4f/0x60\n"), None);
    }
}
