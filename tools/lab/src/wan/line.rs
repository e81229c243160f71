//! Both directions of a path, each on a thread of its own.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};

use super::direction::{Counters, Direction, Passage};
use super::frame::FRAME_BYTES_MAX;
use super::namespace::Namespace;
use super::settings::Settings;
use super::tap::Recorder;
use super::{Options, tun};
use crate::{Attempted, LabError};

/// Longest sleep of a thread, which bounds the time until it ends.
const SLEEP_NS_MAX: u64 = 100_000_000;
/// Frames accepted, and delivered, before the other is looked at.
const BATCH: usize = 16;
/// Time from an interface to the other, without delay, on an idle machine; subtracted from the delay.
const PASSAGE: Duration = Duration::from_micros(100);

/// Nanoseconds of the monotonic clock.
pub(super) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The two threads. Dropping it ends them; the interfaces vanish.
#[derive(Debug)]
pub struct Line {
    directions: [Arc<Mutex<Shared>>; 2],
    recorder: Option<Arc<Mutex<Recorder>>>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    settings: Settings,
    counters: Counters,
    resets: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Line {
    /// Makes the interface `name` in both namespaces. The caller gives it an address and sets it up.
    pub fn start(sides: [&Namespace; 2], name: &str, options: &Options) -> Result<Self, LabError> {
        let mut files = Vec::new();
        for side in sides {
            files.push(side.within(|| tun::open(name))?.attempted("make a TUN interface")?);
        }
        let recorder = match &options.tap {
            None => None,
            Some(tap) => {
                let recorder = Recorder::start(tap).attempted(&format!("write {}", tap.path.display()))?;
                Some(Arc::new(Mutex::new(recorder)))
            }
        };
        let directions = options.directions.map(|settings| {
            Arc::new(Mutex::new(Shared { settings, counters: Counters::default(), resets: false }))
        });
        let mut line = Self { directions, recorder, stop: Arc::default(), threads: Vec::new() };
        for side in 0..2 {
            let clone = |side: usize| files[side].try_clone().attempted("share a TUN interface");
            let settings = lock(&line.directions[side]).settings;
            let mut pump = Pump {
                side,
                from: clone(side)?,
                to: clone(1 - side)?,
                direction: Direction::new(compensated(settings), options.seed.wrapping_add(side as u64)),
                shared: Arc::clone(&line.directions[side]),
                recorder: line.recorder.clone(),
                buffer: vec![0; FRAME_BYTES_MAX],
            };
            let stop = Arc::clone(&line.stop);
            let run = move || {
                tun::raise_priority();
                let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
                while !stop.load(Ordering::Relaxed) {
                    pump.turn();
                }
            };
            let thread = std::thread::Builder::new().name(format!("wan {side}")).spawn(run);
            line.threads.push(thread.attempted("start a thread")?);
        }
        Ok(line)
    }

    /// Settings of the direction from `side`.
    pub fn settings(&self, side: usize) -> Settings {
        lock(&self.directions[side]).settings
    }

    /// Changes the settings of the direction from `side`, for frames that arrive from now on.
    pub fn set(&self, side: usize, settings: Settings) {
        lock(&self.directions[side]).settings = settings;
    }

    /// Changes the settings of both directions.
    pub fn change(&self, change: impl Fn(&mut Settings)) {
        for direction in &self.directions {
            change(&mut lock(direction).settings);
        }
    }

    /// Figures of the direction from `side`, at most 0.1 s old.
    pub fn counters(&self, side: usize) -> Counters {
        lock(&self.directions[side]).counters
    }

    /// Sets the counters of both directions to 0, at the latest with the next frame.
    pub fn reset_counters(&self) {
        for direction in &self.directions {
            let mut shared = lock(direction);
            (shared.resets, shared.counters) = (true, Counters::default());
        }
    }

    /// Ends the capture; returns the number of frames that are missing in it because the file was too slow.
    pub fn finish_tap(&self) -> Result<u64, LabError> {
        match &self.recorder {
            None => Ok(0),
            Some(recorder) => lock(recorder).finish().attempted("write the capture"),
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn compensated(settings: Settings) -> Settings {
    Settings { delay: settings.delay.saturating_sub(PASSAGE), ..settings }
}

/// One direction between two interfaces.
struct Pump {
    side: usize,
    from: File,
    to: File,
    direction: Direction,
    shared: Arc<Mutex<Shared>>,
    recorder: Option<Arc<Mutex<Recorder>>>,
    buffer: Vec<u8>,
}

impl Pump {
    /// Accepts waiting frames, delivers those that are due, and sleeps until the next arrival or delivery.
    fn turn(&mut self) {
        self.synchronise();
        let (took, delivered) = (self.take(), self.deliver());
        if took || delivered {
            return;
        }
        let now = now_ns();
        let wait = self.direction.poll_timeout().map_or(SLEEP_NS_MAX, |due| due.saturating_sub(now));
        let wait = wait.min(SLEEP_NS_MAX) as i64;
        let mut waits = [PollFd::new(&self.from, PollFlags::IN)];
        // An interruption is a short sleep.
        let _ = poll(&mut waits, Some(&Timespec { tv_sec: 0, tv_nsec: wait }));
    }

    /// Exchanges settings and counters with the owner of the line.
    fn synchronise(&mut self) {
        let mut shared = lock(&self.shared);
        if std::mem::take(&mut shared.resets) {
            self.direction.reset_counters();
        }
        let settings = compensated(shared.settings);
        if settings != *self.direction.settings() {
            self.direction.set(settings);
        }
        shared.counters = self.direction.counters();
    }

    /// Accepts waiting frames; false if there was none.
    fn take(&mut self) -> bool {
        for index in 0..BATCH {
            let Ok(length) = self.from.read(&mut self.buffer) else { return index > 0 };
            let frame = &self.buffer[..length];
            match &self.recorder {
                None => self.direction.handle_frame(frame, now_ns(), None),
                Some(recorder) => {
                    let side = self.side;
                    let mut observe = |passage: Passage<'_>| lock(recorder).record(side, &passage);
                    self.direction.handle_frame(frame, now_ns(), Some(&mut observe));
                }
            }
        }
        true
    }

    /// Delivers frames that are due; false if there was none.
    fn deliver(&mut self) -> bool {
        for index in 0..BATCH {
            let Some(frame) = self.direction.poll_deliver(now_ns()) else { return index > 0 };
            while let Err(error) = self.to.write(&frame) {
                if error.kind() != ErrorKind::Interrupted {
                    // An interface that is not up yet, or no memory.
                    self.direction.count_refused();
                    break;
                }
            }
        }
        true
    }
}
