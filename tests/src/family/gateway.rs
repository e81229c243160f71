//! A gateway that reads ahead of its readers: `serve iscsi://...,readahead=SIZE` between initiators and another target.
//! Nothing that was written through the gateway may be read old.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rand::RngExt;
use tempfile::TempDir;

use crate::files::{empty_file, random_file};
use crate::pdu::{Session, cdb10};
use crate::{Cases, Context, Disk, Target, random, scratch};

const NAME: &str = "iqn.2026-11.example:reader";
const BLOCK_BYTES: usize = 512;
const BYTES: u64 = 4 << 20;
const BLOCKS: u32 = (BYTES / BLOCK_BYTES as u64) as u32;
/// Blocks that are written and read beside each other: few, so that most reads meet a recent write.
const SHARED_BLOCKS: u32 = 512;
const READ_BLOCKS: u16 = 8;
const CLIENTS: u32 = 3;
const BESIDE_TIME: Duration = Duration::from_secs(4);
/// Age at which what was read ahead is dropped (`AGE_MAX` in `block/layer/readahead`), and a margin.
const AGE: Duration = Duration::from_millis(1500);
/// Shorter than `AGE_MAX`.
const ALONE_LIMIT: Duration = Duration::from_millis(500);
const DRAIN_LIMIT: Duration = Duration::from_secs(20);
const COPY_LIMIT: Duration = Duration::from_secs(30);
const SYNCHRONIZE_CACHE: u8 = 0x35;
const LOGICAL_UNIT_RESET: u8 = 5;

/// A target, and the gateway to it.
struct Scene {
    _dir: TempDir,
    origin: Target,
    gateway: Target,
}

impl Scene {
    fn new(context: &Context, delay: &str) -> Result<Self> {
        Self::with(context, &format!("delay={delay}"), Some("readahead=16M"))
    }

    fn with(context: &Context, of_origin: &str, of_gateway: Option<&str>) -> Result<Self> {
        let dir = scratch()?;
        let files = [
            empty_file(dir.path().join("0.img"), BYTES)?,
            random_file(dir.path().join("1.img"), BYTES, context.seed_for("gateway"))?,
        ];
        let disks = files.map(|file| Disk::file(&file).option(of_origin));
        let origin = Target::serve(context, &disks, None, &[])?;
        let disk = |lun| Disk {
            options: of_gateway.map(str::to_owned).into_iter().collect(),
            ..Disk::endpoint(origin.url(lun).to_string())
        };
        let gateway = Target::serve(context, &[disk(0), disk(1)], None, &[])?;
        Ok(Self { _dir: dir, origin, gateway })
    }

    /// A session of its own for each number, which the gateway's threads share.
    fn session(&self, number: u32) -> Result<Session> {
        Session::login(self.gateway.url(0), NAME, [0x80, 0, 0, 0, 0, number as u8])
    }

    /// Whether a read is answered while the origin is stopped.
    fn is_answered_alone(&mut self, session: &mut Session, lba: u32) -> Result<bool> {
        self.origin.running.signal(libc::SIGSTOP)?;
        std::thread::scope(|scope| {
            let read = scope.spawn(|| session.read(0, lba, READ_BLOCKS));
            let start = Instant::now();
            while !read.is_finished() && start.elapsed() < ALONE_LIMIT {
                std::thread::sleep(Duration::from_millis(5));
            }
            let is_answered = read.is_finished();
            self.origin.running.signal(libc::SIGCONT)?;
            read.join().expect("a read does not panic")?;
            Ok(is_answered)
        })
    }

    /// Reads LUN `lun` in sequence up to block `until`, so that what follows is read ahead, and has arrived.
    fn read_up_to(&self, session: &mut Session, lun: u64, until: u32) -> Result<()> {
        for lba in (0..until).step_by(READ_BLOCKS.into()) {
            session.read(lun, lba, READ_BLOCKS)?;
        }
        std::thread::sleep(Duration::from_millis(100));
        Ok(())
    }
}

/// Number of the last write of each block that was begun, and that was acknowledged.
struct Versions {
    begun: Vec<AtomicU32>,
    acknowledged: Vec<AtomicU32>,
}

impl Versions {
    fn new() -> Self {
        let zeroes = || (0..SHARED_BLOCKS).map(|_| AtomicU32::new(0)).collect();
        Self { begun: zeroes(), acknowledged: zeroes() }
    }

    /// Writes some of the blocks that belong to `client`.
    fn write(&self, session: &mut Session, client: u32, rng: &mut impl rand::Rng) -> Result<()> {
        let share = SHARED_BLOCKS / CLIENTS;
        let lba = client * share + rng.random_range(0..share - 8);
        let blocks = lba..lba + rng.random_range(1..=8);
        let mut data = Vec::new();
        for block in blocks.clone() {
            let version = self.begun[block as usize].fetch_add(1, Ordering::SeqCst) + 1;
            data.extend(version.to_le_bytes().repeat(BLOCK_BYTES / 4));
        }
        session.write(0, lba, &data)?;
        for block in blocks {
            let version = self.begun[block as usize].load(Ordering::SeqCst);
            self.acknowledged[block as usize].store(version, Ordering::SeqCst);
        }
        Ok(())
    }

    fn read(&self, session: &mut Session, lba: u32) -> Result<()> {
        let blocks = lba..lba + u32::from(READ_BLOCKS);
        let load = |all: &[AtomicU32]| -> Vec<u32> {
            blocks.clone().map(|block| all[block as usize].load(Ordering::SeqCst)).collect()
        };
        let acknowledged = load(&self.acknowledged);
        let data = session.read(0, lba, READ_BLOCKS)?;
        let begun = load(&self.begun);
        for (index, bytes) in data.chunks(BLOCK_BYTES).enumerate() {
            let version = u32::from_le_bytes(bytes[..4].try_into()?);
            let block = lba + index as u32;
            ensure!(bytes.chunks(4).all(|word| word == version.to_le_bytes()), "block {block} is torn");
            let possible = acknowledged[index]..=begun[index];
            ensure!(
                possible.contains(&version),
                "block {block} has version {version}, not one of {possible:?}"
            );
        }
        Ok(())
    }
}

/// Clients that each write blocks of their own and read all blocks in sequence.
fn written_beside(context: &Context) -> Result<()> {
    let scene = Scene::new(context, "2ms")?;
    let (versions, is_over) = (Versions::new(), AtomicBool::new(false));
    let work = |client: u32| -> Result<u32> {
        let mut session = scene.session(client)?;
        let mut rng = random::seeded(context.seed_for(&format!("gateway/{client}")));
        let (mut lba, mut reads) = (client * 64, 0);
        while !is_over.load(Ordering::Relaxed) {
            if rng.random_range(0..8) == 0 {
                versions.write(&mut session, client, &mut rng)?;
            }
            versions.read(&mut session, lba)?;
            reads += 1;
            lba = (lba + u32::from(READ_BLOCKS)) % (SHARED_BLOCKS - u32::from(READ_BLOCKS));
            lba -= lba % u32::from(READ_BLOCKS);
        }
        Ok(reads)
    };
    let reads = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|client| scope.spawn(move || work(client))).collect();
        let start = Instant::now();
        while start.elapsed() < BESIDE_TIME && !clients.iter().any(std::thread::ScopedJoinHandle::is_finished)
        {
            std::thread::sleep(Duration::from_millis(20));
        }
        is_over.store(true, Ordering::Relaxed);
        let reads = clients.into_iter().map(|client| client.join().expect("a client does not panic"));
        reads.sum::<Result<u32>>()
    })?;
    // Without reading ahead each client has one read in 2 ms.
    ensure!(reads > 100, "{reads} reads in {BESIDE_TIME:?}");
    Ok(())
}

/// A flush, a reset and time end what was read ahead; until then a write past the gateway may be unseen.
fn written_elsewhere(context: &Context) -> Result<()> {
    type End = fn(&mut Session) -> Result<()>;
    let ends: [(&str, End); 4] = [
        ("SYNCHRONIZE CACHE", |session| session.good(0, &cdb10(SYNCHRONIZE_CACHE, 0, 0), 0, &[]).map(drop)),
        ("LOGICAL UNIT RESET", |session| {
            let response = session.manage(LOGICAL_UNIT_RESET, 0)?;
            ensure!(response == 0, "response {response}");
            Ok(())
        }),
        ("time", |_| {
            std::thread::sleep(AGE);
            Ok(())
        }),
        ("READ with FUA", |_| Ok(())),
    ];
    let scene = Scene::new(context, "2ms")?;
    for (number, (name, end)) in (1u32..).zip(ends) {
        let mut session = scene.session(number)?;
        let lba = number * 1024;
        scene.read_up_to(&mut session, 0, lba)?;
        let new = vec![number as u8; BLOCK_BYTES * usize::from(READ_BLOCKS)];
        let mut other = Session::login(scene.origin.url(0), NAME, [0x80, 0, 0, 0, 1, number as u8])?;
        other.write(0, lba, &new)?;
        end(&mut session)?;
        let mut read = cdb10(0x28, lba, READ_BLOCKS);
        read[1] |= if name == "READ with FUA" { 0x08 } else { 0 };
        let found = session.good(0, &read, new.len(), &[])?;
        ensure!(found == new, "{name} did not end what was read ahead of block {lba}");
    }
    Ok(())
}

/// EXTENDED COPY within the gateway writes through another thread.
fn copied_within(context: &Context) -> Result<()> {
    let scene = Scene::new(context, "1ms")?;
    let mut session = scene.session(1)?;
    let lba = BLOCKS / 2;
    scene.read_up_to(&mut session, 0, lba)?;
    let [to, from] = [0, 1].map(|lun| scene.gateway.url(lun).to_string());
    let copy = ["copy", &from, &to, "--remote-copy", "require", "--force", "--allow", "in-use"];
    // The copying thread ends its session with writes that were not flushed, which the flush of `copy` reports.
    context.ours(&copy, COPY_LIMIT)?.expect(1)?.says("the flush failed")?;
    for lba in (lba..BLOCKS).step_by(READ_BLOCKS.into()) {
        let [copied, source] = [0, 1].map(|lun| session.read(lun, lba, READ_BLOCKS));
        ensure!(copied? == source?, "block {lba} is read as it was before the copy");
    }
    Ok(())
}

/// A gateway that ends while it reads ahead ends in order.
fn ended(context: &Context) -> Result<()> {
    let scene = Scene::new(context, "300ms")?;
    let mut session = scene.session(1)?;
    for lba in (0..6 * u32::from(READ_BLOCKS)).step_by(READ_BLOCKS.into()) {
        session.read(0, lba, READ_BLOCKS)?;
    }
    session.logout()?;
    let output = scene.gateway.terminate(DRAIN_LIMIT)?.success()?;
    let complaint = output.stderr.lines().find(|line| line.contains(" ERROR ") || line.contains("panicked"));
    ensure!(complaint.is_none(), "{complaint:?}");
    Ok(())
}

/// Without the option only what nobody else can write is read ahead: an `exclusive` LUN of a target that says so.
fn unasked(context: &Context) -> Result<()> {
    for (of_origin, of_gateway, expected) in [
        ("exclusive", None, true),
        ("exclusive", Some("readahead=off"), false),
        ("exclusive", Some("exclusive"), true),
        ("shared", None, false),
        ("shared", Some("exclusive"), false),
        ("shared", Some("readahead=1M"), true),
    ] {
        let mut scene = Scene::with(context, of_origin, of_gateway)?;
        let mut session = scene.session(1)?;
        let lba = 1024;
        scene.read_up_to(&mut session, 0, lba)?;
        let is_ahead = scene.is_answered_alone(&mut session, lba)?;
        ensure!(is_ahead == expected, "origin {of_origin}, gateway {of_gateway:?}: {is_ahead}");
    }
    Ok(())
}

/// Runs the case that shows wrong data; returns its message. For the family `mutants`.
pub(super) fn verdict(context: &Context) -> Result<Option<String>> {
    let found = written_beside(context).err().map(|error| format!("{error:#}"));
    Ok(found.and_then(|text| text.lines().next().map(str::to_owned)))
}

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    cases.check("written-beside", || written_beside(context).context("clients beside each other"));
    cases.check("written-elsewhere", || written_elsewhere(context));
    cases.check("copied-within", || copied_within(context));
    cases.check("ended", || ended(context));
    cases.check("unasked", || unasked(context));
    Ok(())
}
