//! In steady state, READ and WRITE over real sockets make a small, bounded number of allocations, plain and sealed, at
//! both ends.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use block::{Completion, Endpoint, Kind, Request};
use io::Io;
use node::SealPolicy;
use node::initiator::{InitiatorSealing, Options};
use node::target::{Access, Peer, Sealing, ServerConfig};
use seal::{Identity, Suite};
use support::host::{Host, options};
use support::{Guard, TIME_LIMIT, config, lun, medium};

struct Counting;

/// Allocations of all threads.
static ALL: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Allocations of this thread.
    static OWN: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed to the system's allocator unchanged; the counters do not affect it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALL.fetch_add(1, Ordering::Relaxed);
        OWN.set(OWN.get() + 1);
        // SAFETY: the caller upholds the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `GlobalAlloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Commands until no collection grows any more, and commands that are counted.
const WARM: u64 = 300;
const COUNTED: u64 = 1000;
const DISK_BYTES: u64 = 16 << 20;
/// Bound of the allocations per command at one end: a few lists with the length that a command needs.
const EACH_MAX: f64 = 3.5;
/// Bound of the further allocations per additional sealed segment: its area and the reference count of that.
const SEGMENT_MAX: f64 = 2.0;
const SEALED_SEGMENT_BYTES: u64 = 128 << 10;
/// Bound for a READ that the target reads ahead.
const AHEAD_MAX: f64 = 12.0;

#[derive(Clone, Copy, Debug)]
enum Work {
    /// Every other block from the end to the start: not a sequence, so it is not read ahead.
    Read,
    Write,
    /// Sequential.
    ReadOn,
}

fn perform(io: &mut Io, endpoint: &mut dyn Endpoint, commands: u64, kind: impl Fn(u64) -> Kind) {
    let (mut done, mut events): (Vec<Completion>, _) = (Vec::with_capacity(8), Vec::with_capacity(64));
    let start = Instant::now();
    for id in 0..commands {
        endpoint.submit(io, Request { id, kind: kind(id) }, &mut done);
        while done.is_empty() {
            assert!(start.elapsed() < 4 * TIME_LIMIT, "{id} of {commands} have ended");
            io.turn_until(Some(io.now() + Duration::from_millis(100)), &mut events).unwrap();
            for event in events.drain(..) {
                endpoint.on_event(io, event, &mut done);
            }
        }
        assert!(done.drain(..).all(|completion| completion.id == id && completion.result.is_ok()));
    }
}

/// Average allocations per command at the initiator and at the target.
fn cost(io: &mut Io, endpoint: &mut dyn Endpoint, work: Work, length: u64) -> [f64; 2] {
    let span = io.pool().take(length as usize).unwrap();
    let kind = |id| {
        let places = DISK_BYTES / length;
        let on = id % places;
        let back = places - 1 - 2 * id % places;
        match work {
            Work::Read => Kind::Read { offset: back * length, into: span.clone() },
            Work::Write => Kind::Write { offset: back * length, from: span.clone(), durable: false },
            Work::ReadOn => Kind::Read { offset: on * length, into: span.clone() },
        }
    };
    perform(io, endpoint, WARM, kind);
    let before = (OWN.get(), ALL.load(Ordering::Relaxed));
    perform(io, endpoint, COUNTED, kind);
    let (own, all) = (OWN.get() - before.0, ALL.load(Ordering::Relaxed) - before.1);
    [own, all - own].map(|count| count as f64 / COUNTED as f64)
}

#[test]
fn a_command_allocates_a_few_times_at_most_sealed_or_not() {
    let [ours, theirs] = [1, 2].map(|byte| Arc::new(Identity::generate([byte; 32])));
    let mut wrong = Vec::new();
    for suite in [None, Some(Suite::Aes256Gcm), Some(Suite::Aegis256X4)] {
        let server = config(vec![lun(0, medium(&format!("mem:{DISK_BYTES}")))], Access::default());
        let peer = Peer {
            name: "tester".into(),
            public_key: theirs.public(),
            initiator: None,
            luns: None,
            psk: None,
        };
        let sealing = suite.map(|suite| Sealing {
            next: None,
            policy: SealPolicy::Require,
            identity: Arc::clone(&ours),
            peers: vec![peer],
            suites: vec![suite],
        });
        let guard = Guard::start_with(ServerConfig { sealing, ..server });
        let sealing =
            suite.map(|_| InitiatorSealing::new(SealPolicy::Require, Arc::clone(&theirs), ours.public()));
        let options = Options { timeout: TIME_LIMIT, sealing, ..options() };
        let mut host = Host::open(guard.address(), 0, options).unwrap();
        for length in [4 << 10, 256_u64 << 10] {
            let further = if suite.is_some() { length.div_ceil(SEALED_SEGMENT_BYTES) - 1 } else { 0 };
            let each_max = EACH_MAX + SEGMENT_MAX * further as f64;
            for (work, target_max) in
                [(Work::Read, each_max), (Work::Write, each_max), (Work::ReadOn, AHEAD_MAX)]
            {
                let [initiator, target] = cost(&mut host.io, &mut *host.endpoint, work, length);
                println!("{suite:?} {work:?} {length}: {initiator} at the initiator, {target} at the target");
                if initiator > each_max || target > target_max {
                    wrong.push((suite, work, length, initiator, target));
                }
            }
        }
        host.close();
    }
    assert!(wrong.is_empty(), "allocations a command at the initiator and at the target: {wrong:?}");
}
