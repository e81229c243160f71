//! Many concurrent sessions, a few of them busy: the memory of an idle one, the fairness among the busy ones, and the
//! longest time of a command; the memory of one session with long commands; a WRITE that is aborted while its data arrives.
//! On both back ends.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::files::random_file;
use crate::load::{Done, Load, busy};
use crate::pdu::{R2T, Session, cdb10};
use crate::process::{Surroundings, raise_descriptor_limit};
use crate::procfs::{cores, descriptors, memory, resident_bytes, resident_bytes_peak, threads};
use crate::{Cases, Context, Disk, Served, Target, Tier, random, scratch, wait_until};

const TEST_UNIT_READY: [u8; 6] = [0; 6];
const ABORT_TASK_SET: u8 = 2;
const BACK_ENDS: [&str; 2] = ["uring", "portable"];
const IMAGE_BYTES: u64 = 64 << 20;
/// Maximum resident memory of one idle session, in bytes.
const IDLE_BYTES_MAX: u64 = 128 << 10;
/// Maximum memory of a target with one session at the loads of [`DEEP`], in bytes. The mapped program is not counted:
/// it takes 8 MB of a release build, 15 MB of a debug build.
const DEEP_BYTES_MAX: u64 = 56 << 20;
const LONGEST_MAX: Duration = Duration::from_secs(1);
/// Minimum rate of the slowest active session relative to the fastest.
const FAIRNESS_MIN: f64 = 0.5;
/// Threads of the target besides its loops: the main one, the one that waits for signals, and kernel workers of
/// io_uring or the back end's own file threads, each with a bound per loop.
const THREADS_BESIDES: u64 = 2;
const THREADS_PER_LOOP_MAX: u64 = 1 + 8;
/// Delay between two commands of the otherwise idle sessions.
const WALK_PAUSE: Duration = Duration::from_millis(2);
/// Time limit for the target to detect that all sessions have ended.
const END_LIMIT: Duration = Duration::from_secs(5);
/// Descriptors of the harness besides its sessions.
const DESCRIPTORS_BESIDES: u64 = 200;

const LOADS: [Load; 4] = [
    Load { name: "read-4k", writes: false, bytes: 4 << 10, depth: 4 },
    Load { name: "write-4k", writes: true, bytes: 4 << 10, depth: 4 },
    Load { name: "read-64k", writes: false, bytes: 64 << 10, depth: 4 },
    Load { name: "write-64k", writes: true, bytes: 64 << 10, depth: 4 },
];

/// Loads of the single session of [`deep`].
const DEEP: [Load; 2] = [
    Load { name: "read-1m", writes: false, bytes: 1 << 20, depth: 32 },
    Load { name: "write-1m", writes: true, bytes: 1 << 20, depth: 32 },
];

/// One command of each idle session in turn: they are answered, their pings too, while the others are busy.
fn walk(idle: &mut [&mut Session], until: Instant) -> Result<Done> {
    let mut done = Done::default();
    let mut next = 0;
    while Instant::now() < until && !idle.is_empty() {
        let began = Instant::now();
        idle[next].read(0, 0, 8)?;
        done.add(began.elapsed());
        next = (next + 1) % idle.len();
        std::thread::sleep(WALK_PAUSE);
    }
    Ok(done)
}

struct Plan {
    sessions: usize,
    active: usize,
    /// Duration of each load.
    time: Duration,
}

/// Runs one load and returns its results.
fn run_load(
    sessions: &mut [Session],
    active: &[usize],
    load: Load,
    image: &[u8],
    plan: &Plan,
    seed: u64,
) -> Result<(Value, Vec<Done>, Done)> {
    let until = Instant::now() + plan.time;
    let (mut working, mut idle) = (Vec::new(), Vec::new());
    for (index, session) in sessions.iter_mut().enumerate() {
        if active.contains(&index) { working.push(session) } else { idle.push(session) }
    }
    let (done, walked) = std::thread::scope(|scope| {
        let workers: Vec<_> = (seed..)
            .zip(working)
            .map(|(seed, session)| {
                scope.spawn(move || busy(session, 0, load, image, until, random::seeded(seed)))
            })
            .collect();
        let walked = walk(&mut idle, until).context("a session that is idle otherwise");
        let joined = workers.into_iter().map(|worker| worker.join().expect("a worker panicked"));
        let done: Result<Vec<Done>> = joined.collect();
        anyhow::Ok((done.context(load.name)?, walked?))
    })?;
    let rate = |commands: u64| (commands as f64 / plan.time.as_secs_f64()).round();
    let commands = done.iter().map(|done| done.commands);
    let (slowest, fastest) = (commands.clone().min().unwrap_or(0), commands.clone().max().unwrap_or(0));
    let longest = done.iter().map(|done| done.longest).max().unwrap_or_default();
    let report = json!({
        "commands_per_second": rate(commands.sum()),
        "slowest_session_per_second": rate(slowest),
        "fastest_session_per_second": rate(fastest),
        "slowest_of_fastest": (slowest as f64 / fastest.max(1) as f64 * 100.0).round() / 100.0,
        "longest_ms": longest.as_millis() as u64,
        "longest_of_idle_ms": walked.longest.as_millis() as u64,
    });
    Ok((report, done, walked))
}

fn log_in(served: &Served, count: usize) -> Result<Vec<Session>> {
    (0..count)
        .map(|index| {
            let isid = [0x80, 9, 9, 9, (index >> 8) as u8, index as u8];
            let mut session = Session::login(served.url(0), "iqn.2026-11.org.example:many", isid)
                .with_context(|| format!("session {index}"))?;
            // Takes the unit attention of a new nexus.
            session.blocks(0)?;
            Ok(session)
        })
        .collect()
}

/// A file of known content, served over one back end.
struct Scene {
    _dir: TempDir,
    seed: u64,
    image: Vec<u8>,
    served: Served,
}

impl Scene {
    fn new(context: &Context, io: &str) -> Result<Self> {
        let dir = scratch()?;
        let seed = context.seed_for(&format!("sessions/{io}"));
        let stored = random_file(dir.path().join("stored.img"), IMAGE_BYTES, seed)?;
        let image = std::fs::read(&stored)?;
        let surroundings = Surroundings::variable("HIKYAKU_IO", io);
        let target = Target::serve_with(context, &[Disk::file(&stored)], None, &[], &surroundings)?;
        Ok(Self { _dir: dir, seed, image, served: Served::Ours(target) })
    }
}

/// One session with many long commands outstanding.
fn deep(context: &Context, io: &str, time: Duration) -> Result<u64> {
    let Scene { _dir, seed, image, mut served } = Scene::new(context, io)?;
    let pid = served.pid();
    let result = log_in(&served, 1).and_then(|mut sessions| {
        for load in DEEP {
            let rng = random::seeded(seed);
            let done = busy(&mut sessions[0], 0, load, &image, Instant::now() + time, rng)?;
            ensure!(done.commands >= load.depth as u64, "{}: only {} commands", load.name, done.commands);
        }
        memory(pid)
    });
    let used = served.blame(result)?;
    let own = used.resident_max.saturating_sub(used.file);
    println!("  {io}: {own} bytes, and {} of the program", used.file);
    ensure!(own <= DEEP_BYTES_MAX, "{own} bytes for one session, at most {DEEP_BYTES_MAX} are allowed");
    Ok(used.resident_max)
}

fn many(context: &Context, io: &str, plan: &Plan) -> Result<Map<String, Value>> {
    raise_descriptor_limit(plan.sessions as u64 + DESCRIPTORS_BESIDES)?;
    let Scene { _dir, seed, image, mut served } = Scene::new(context, io)?;
    let pid = served.pid();
    // The first session makes the target map the memory that it always needs.
    let first = log_in(&served, 1).and_then(|first| first.into_iter().try_for_each(Session::logout));
    served.blame(first)?;
    let (before, open) = (resident_bytes(pid)?, descriptors(pid)?);
    let mut facts = Map::new();
    let result = (|| {
        let began = Instant::now();
        let mut sessions = log_in(&served, plan.sessions)?;
        let rate = plan.sessions as f64 / began.elapsed().as_secs_f64();
        facts.insert("logins_per_second".into(), json!(rate.round()));
        let idle_bytes = resident_bytes(pid)?.saturating_sub(before) / plan.sessions as u64;
        facts.insert("idle_session_bytes".into(), json!(idle_bytes));
        ensure!(
            idle_bytes <= IDLE_BYTES_MAX,
            "an idle session costs {idle_bytes} bytes of resident memory, at most {IDLE_BYTES_MAX} are allowed"
        );
        // Spread over all sessions and therefore over the target's threads: a new session goes to the thread with the
        // fewest, busy or not.
        let active: Vec<usize> = (0..plan.active).map(|index| index * plan.sessions / plan.active).collect();
        for load in LOADS {
            let (report, done, walked) = run_load(&mut sessions, &active, load, &image, plan, seed)?;
            println!("  {io} {}: {report}", load.name);
            let fair = report["slowest_of_fastest"].as_f64().unwrap_or(0.0);
            facts.insert(load.name.into(), report);
            ensure!(done.iter().all(|done| done.commands > 0), "{}: a session did nothing", load.name);
            if context.tier == Tier::Full {
                let longest = done.iter().map(|done| done.longest).max().unwrap_or_default();
                let longest = longest.max(walked.longest);
                ensure!(longest <= LONGEST_MAX, "{}: a command took {longest:?}", load.name);
                ensure!(fair >= FAIRNESS_MIN, "{}: the slowest session had {fair} of the fastest", load.name);
            }
        }
        facts.insert("resident_bytes_peak".into(), json!(resident_bytes_peak(pid)?));
        let (count, max) =
            (threads(pid)?.len() as u64, THREADS_BESIDES + cores() as u64 * THREADS_PER_LOOP_MAX);
        facts.insert("threads".into(), json!(count));
        ensure!(count <= max, "the target has {count} threads, at most {max} are expected");
        for session in sessions {
            session.logout()?;
        }
        wait_until(END_LIMIT, || Ok(descriptors(pid)? <= open)).with_context(|| {
            format!("{:?} descriptors after the last session, {open} before the first", descriptors(pid))
        })
    })();
    served.blame(result)?;
    Ok(facts)
}

/// A WRITE to memory begins with its first data, and ends with its abort: nothing of it is written after the answer.
fn a_write_begins_with_its_first_data_and_ends_with_its_abort(context: &Context, io: &str) -> Result<()> {
    const BLOCKS: u16 = 2048;
    let surroundings = Surroundings::variable("HIKYAKU_IO", io);
    let disks = [Disk::endpoint("mem:16M")];
    let served = Served::Ours(Target::serve_with(context, &disks, None, &[], &surroundings)?);
    let mut sessions = log_in(&served, 2)?;
    let [writer, reader] = &mut sessions[..] else { unreachable!("two sessions") };
    let old = vec![0x11; usize::from(BLOCKS) * 512];
    writer.write(0, 0, &old)?;
    let new = vec![0x22; old.len()];
    let command = writer.command(0, &cdb10(0x2a, 0, BLOCKS), 0, &new);
    writer.send(&command)?;
    let r2t = writer.receive()?;
    ensure!(r2t.opcode() == R2T, "opcode {:#x} instead of an R2T", r2t.opcode());
    // A burst without its last PDU.
    let length = r2t.get(44) as usize - 8192;
    writer.send_begin_of_burst(&r2t, &new, length)?;
    wait_until(END_LIMIT, || Ok(reader.read(0, 0, 8)? == new[..4096]))
        .context("the first data in the storage")?;
    let answer = writer.manage(ABORT_TASK_SET, 0)?;
    ensure!(answer == 0, "ABORT TASK SET: response {answer}");
    let left = reader.read(0, 0, BLOCKS)?;
    writer.good(0, &TEST_UNIT_READY, 0, &[])?;
    ensure!(reader.read(0, 0, BLOCKS)? == left, "written after the answer");
    let written = left.iter().take_while(|byte| **byte == 0x22).count();
    demand!(left[written..] == old[written..] && written <= length, "{written} bytes of {length} sent")
}

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    let plan = Plan {
        sessions: context.amount(200, 1000),
        active: context.amount(16, 64),
        time: Duration::from_millis(context.amount(800, 4000) as u64),
    };
    for io in BACK_ENDS {
        let (mut facts, mut peak) = (Map::new(), 0);
        cases.check(&format!("{io}-one-session-deep"), || {
            peak = deep(context, io, plan.time)?;
            Ok(())
        });
        cases.check(&format!("{io}-many-sessions-some-busy"), || {
            facts = many(context, io, &plan)?;
            Ok(())
        });
        cases.check(&format!("{io}-a-write-begins-early-and-an-abort-ends-it"), || {
            a_write_begins_with_its_first_data_and_ends_with_its_abort(context, io)
        });
        facts.insert("one_session_1m_32_resident_bytes_peak".into(), json!(peak));
        cases.fact(io, Value::Object(facts));
    }
    Ok(())
}
