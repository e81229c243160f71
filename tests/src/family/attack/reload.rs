//! Revocation of rights while the server runs, and sessions that a reload must not disturb.

use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use seal::Suite;

use super::claims::{BACKUP, Estate, IQN, LAPTOP, LIMIT, SEALED, SECRET, as_user, isid};
use crate::cases::Rows;
use crate::pdu::{Session, cdb10};
use crate::procfs;
use crate::seal::Keys;
use crate::{Cases, Context, Running, Server, Url, wait_until};

/// Time limit for the end of a session whose rights were revoked.
const ENDED: Duration = Duration::from_secs(1);
pub(super) const PLAIN: &str = "listen = [\"127.0.0.1:0\"]";
/// ASC and ASCQ of sense data in fixed format, behind the two bytes of SenseLength.
const ASC: std::ops::Range<usize> = 14..16;

/// Requests a reload; returns the line of the log about it.
fn reload(server: &mut Server) -> Result<String> {
    let from = server.running.stderr().len();
    server.running.signal(libc::SIGHUP)?;
    server.logs(from, "SIGHUP: ")
}

/// As [`reload`], and demands `words` in the line.
fn reloaded(server: &mut Server, words: &[&str]) -> Result<()> {
    let line = reload(server)?;
    demand!(words.iter().all(|word| line.contains(word)), "no {words:?} in: {line}")
}

fn ends(mut session: Session, since: Instant) -> Result<()> {
    session.stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    match session.stream.read(&mut [0; 1]) {
        Ok(0) => {}
        Ok(_) => bail!("it sends something instead of ending"),
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        Err(error) => return Err(error).context("the session lives on"),
    }
    demand!(since.elapsed() < ENDED, "the session ends only after {:?}", since.elapsed())
}

struct Sealed {
    estate: Estate,
    target: Keys,
    laptop: Keys,
    backup: Keys,
}

impl Sealed {
    fn new(context: &Context) -> Result<Self> {
        let estate = Estate::with_users(&[])?;
        let [target, laptop, backup] =
            ["target", "laptop", "backup"].map(|name| Keys::new(context, estate.dir.path(), name));
        estate.configure(SEALED, &[(0, "a.img")], "")?;
        let scene = Self { estate, target: target?, laptop: laptop?, backup: backup? };
        scene.peers(&[("laptop", &scene.laptop, ""), ("backup", &scene.backup, "")])?;
        Ok(scene)
    }

    fn peers(&self, peers: &[(&str, &Keys, &str)]) -> Result<()> {
        let peers = peers.iter().map(|(name, keys, more)| keys.peer(name, more));
        self.estate.write("peers.toml", &peers.collect::<String>())
    }

    fn login(&self, server: &Server, name: &str, keys: &Keys, number: u8) -> Result<Session> {
        let who = keys.who(&self.target, Suite::ALL[0])?;
        let mut session = Session::login_sealed(&server.url, name, isid(number), &who)?;
        session.blocks(0)?;
        Ok(session)
    }
}

/// Removing a key from the list ends its session, and no other.
fn peer_removed(context: &Context) -> Result<()> {
    let scene = Sealed::new(context)?;
    let mut server = scene.estate.serve(context)?;
    let gone = scene.login(&server, LAPTOP, &scene.laptop, 1)?;
    let mut stays = scene.login(&server, BACKUP, &scene.backup, 2)?;
    scene.peers(&[("backup", &scene.backup, "")])?;
    let since = Instant::now();
    reloaded(&mut server, &["1 peer removed", "1 session ended"])?;
    ends(gone, since)?;
    stays.write(0, 0, &[1; 512]).context("the session of the other peer")?;
    ensure!(scene.login(&server, LAPTOP, &scene.laptop, 3).is_err(), "the removed key logs in again");
    // Reduced rights also end the session: the initiator logs in again with the remaining ones.
    scene.peers(&[("backup", &scene.backup, "luns = []")])?;
    let since = Instant::now();
    reload(&mut server)?;
    ends(stays, since)
}

/// `after`: the new content of the secret's file; `None` removes the user.
fn user_revoked(context: &Context, after: Option<&str>) -> Result<()> {
    let estate = Estate::with_users(&["a", "b"])?;
    let row =
        |user: &str| format!("[[target.acl]]\nchap-user = \"{user}\"\nsecret-file = \"DIR/{user}.secret\"\n");
    estate.configure(PLAIN, &[(0, "a.img")], &(row("a") + &row("b")))?;
    let mut server = estate.serve(context)?;
    // Long copies hold the sessions, because the harness's own initiator has no CHAP.
    let load = |user: &str| {
        let url = format!("{},timeout=2s", as_user(&server, user, SECRET, 0));
        let mut command = context.command_in(estate.dir.path());
        Running::start(command.args(["copy", &url, "null:1M", "--rate", "32K", "--chunk", "4K"]))
    };
    let (gone, mut stays) = (load("a")?, load("b")?);
    wait_until(LIMIT, || Ok(server.running.stderr().matches(" logged in ").count() >= 2))
        .with_context(|| format!("no sessions\n{}", server.running.stderr()))?;
    match after {
        Some(secret) => estate.write("a.secret", &format!("{secret}\n"))?,
        None => estate.configure(PLAIN, &[(0, "a.img")], &row("b"))?,
    }
    reloaded(&mut server, &["ended"])?;
    let ended = gone.finish(LIMIT)?;
    // Exit code 5: the session ended before the copy began.
    ensure!(matches!(ended.code, Some(4 | 5)), "the copy of the removed user: {ended}");
    ensure!(!stays.ended(), "the copy of the other user ended");
    context.ours(&["info", &as_user(&server, "a", SECRET, 0)], LIMIT)?.expect(4).map(drop)
}

/// An error in a file leaves the configuration unchanged, and the log names the line.
fn bad_file(context: &Context) -> Result<()> {
    let estate = Estate::with_users(&[])?;
    estate.disk("b.img", 1 << 20)?;
    estate.configure(PLAIN, &[(0, "a.img")], "")?;
    let mut server = estate.serve(context)?;
    let mut session = Session::login(&server.url, LAPTOP, isid(1))?;
    let good = std::fs::read_to_string(estate.path("hikyaku.toml"))?;
    let bad: [(&str, String, &str); 4] = [
        ("unknown-key", good.replace("[server]", "[server]\nlisten-to = 1"), "line 2"),
        ("not-toml", good.clone() + "[[target.acl]\n", "line 8"),
        (
            "missing-storage",
            good.clone() + "[[target.lun]]\nlun = 1\nendpoint = \"/nowhere/b.img\"\n",
            "/nowhere/b.img",
        ),
        ("listener", good.replace("127.0.0.1:0", "127.0.0.2:0"), "restart"),
    ];
    for (name, text, words) in &bad {
        estate.write("hikyaku.toml", text)?;
        reloaded(&mut server, &[words, "nothing is changed"]).context(*name)?;
        session.write(0, 0, &[7; 512]).with_context(|| format!("{name}: the session"))?;
        ensure!(session.scsi(0, &cdb10(0x28, 0, 1), 512, &[])?.status == 0, "{name}: a unit attention");
    }
    Session::login(&server.url, BACKUP, isid(2)).context("a login afterwards")?.logout()
}

/// A FIFO in place of a secret is an error like others: the reload ends, and the next one reads the file that is there
/// then.
fn fifo(context: &Context) -> Result<()> {
    let estate = Estate::with_users(&["a"])?;
    let row = "[[target.acl]]\nchap-user = \"a\"\nsecret-file = \"DIR/a.secret\"\n";
    estate.configure(PLAIN, &[(0, "a.img")], row)?;
    let mut server = estate.serve(context)?;
    super::host::make_fifo(&estate.path("a.secret"))?;
    reloaded(&mut server, &["nothing is changed", "FIFO"]).context("a reload that meets a FIFO")?;
    estate.write("a.secret", "another-secret-16\n")?;
    let line = reload(&mut server).context("the reload after it")?;
    demand!(!line.contains("nothing is changed"), "{line}")
}

/// SIGTERM ends the server while a reload waits for a target that does not answer.
fn terminated(context: &Context) -> Result<()> {
    let estate = Estate::with_users(&[])?;
    estate.configure(PLAIN, &[(0, "a.img")], "")?;
    let mut server = estate.serve(context)?;
    let silent = std::net::TcpListener::bind(("127.0.0.1", 0))?;
    let url = format!("iscsi://{}/{}/0,timeout=60s", silent.local_addr()?, IQN);
    estate.configure(PLAIN, &[(0, "a.img"), (1, &url)], "")?;
    server.running.signal(libc::SIGHUP)?;
    // The login has begun.
    let (mut login, _) = silent.accept()?;
    login.set_read_timeout(Some(LIMIT))?;
    login.read_exact(&mut [0; 48])?;
    server.running.signal(libc::SIGTERM)?;
    server.running.finish(Duration::from_secs(5))?.expect(0)?;
    Ok(())
}

fn luns(session: &mut Session) -> Result<Vec<u8>> {
    let mut cdb = [0u8; 12];
    cdb[0] = 0xa0;
    cdb[8..10].copy_from_slice(&256u16.to_be_bytes());
    let data = session.good(0, &cdb, 256, &[])?;
    let length = u32::from_be_bytes(data[..4].try_into()?) as usize;
    Ok(data[8..8 + length].chunks(8).map(|lun| lun[1]).collect())
}

fn attention(session: &mut Session, lun: u64) -> Result<[u8; 2]> {
    let answer = session.scsi(lun, &[0; 6], 0, &[])?;
    ensure!(answer.status == 2, "TEST UNIT READY ends in status {}", answer.status);
    let sense = answer.sense.get(ASC).ok_or_else(|| anyhow!("sense {:02x?}", answer.sense))?;
    Ok([sense[0], sense[1]])
}

/// Units that are added, removed and enlarged are reported by unit attentions.
fn units(context: &Context) -> Result<()> {
    let estate = Estate::with_users(&[])?;
    estate.disk("b.img", 2 << 20)?;
    estate.configure(PLAIN, &[(0, "a.img")], "")?;
    let mut server = estate.serve(context)?;
    let mut session = Session::login(&server.url, LAPTOP, isid(1))?;
    session.blocks(0)?;
    estate.configure(PLAIN, &[(0, "a.img"), (1, "b.img")], "")?;
    reloaded(&mut server, &["1 LUN added"])?;
    ensure!(attention(&mut session, 0)? == [0x3f, 0x0e], "no REPORTED LUNS DATA HAS CHANGED");
    ensure!(luns(&mut session)? == [0, 1]);
    ensure!(session.blocks(1)? == 4096);
    session.write(1, 0, &[0x11; 512])?;
    // The unit grows.
    std::fs::OpenOptions::new().write(true).open(estate.path("b.img"))?.set_len(4 << 20)?;
    reloaded(&mut server, &["1 LUN resized"])?;
    ensure!(attention(&mut session, 1)? == [0x2a, 0x09], "no CAPACITY DATA HAS CHANGED");
    ensure!(session.blocks(1)? == 8192);
    session.write(1, 8191, &[0x22; 512])?;
    ensure!(session.read(1, 8191, 1)? == [0x22; 512] && session.read(1, 0, 1)? == [0x11; 512]);
    // The unit is removed, and its file is released.
    estate.configure(PLAIN, &[(0, "a.img")], "")?;
    reloaded(&mut server, &["1 LUN removed"])?;
    ensure!(attention(&mut session, 0)? == [0x3f, 0x0e]);
    ensure!(luns(&mut session)? == [0]);
    ensure!(session.read(1, 0, 1).is_err(), "the removed unit answers");
    session.read(0, 0, 1)?;
    let held = std::fs::read_dir(format!("/proc/{}/fd", server.running.pid()))?
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter(|path| *path == estate.path("b.img"))
        .count();
    ensure!(held == 0, "{held} descriptors of the removed unit are open");
    // Another server can now lock the file.
    let other = [Path::new("copy"), Path::new("pattern:64K"), &estate.path("b.img"), Path::new("--force")];
    context.ours(&other, LIMIT)?.success().map(drop)
}

/// A server configured by options reads its peers and secrets again.
fn by_flags(context: &Context) -> Result<()> {
    let scene = Sealed::new(context)?;
    let mut command = context.command_in(scene.estate.dir.path());
    let path = |name: &str| scene.estate.path(name).display().to_string();
    command.args(["serve", &path("a.img"), "--iqn", IQN, "--listen", "127.0.0.1:0"]);
    command.args(["--identity", &path("target.key"), "--peers", &path("peers.toml")]);
    let mut server = Server::start(&mut command, 1)?;
    let gone = scene.login(&server, LAPTOP, &scene.laptop, 1)?;
    scene.peers(&[("backup", &scene.backup, "")])?;
    let since = Instant::now();
    reload(&mut server)?;
    ends(gone, since)
}

#[derive(Debug)]
struct Held {
    descriptors: usize,
    threads: Vec<String>,
    resident: u64,
}

fn held(pid: u32) -> Result<Held> {
    Ok(Held {
        descriptors: procfs::descriptors(pid)?,
        threads: procfs::threads(pid)?,
        resident: procfs::resident_bytes(pid)?,
    })
}

const GROWTH_MAX: u64 = 8 << 20;
const SESSIONS: u8 = 4;

fn load(server_url: &Url, number: u8, stop: &AtomicBool, commands: &AtomicUsize) -> Result<()> {
    let mut session = Session::login(server_url, &format!("{LAPTOP}-{number}"), isid(number))?;
    session.blocks(0)?;
    let first = u32::from(number) * 256;
    let mut round = 0u32;
    while !stop.load(Ordering::Relaxed) {
        let lba = first + round % 32 * 8;
        let fill = [(round as u8).wrapping_mul(31) ^ number; 4096];
        session.write(0, lba, &fill)?;
        ensure!(session.read(0, lba, 8)? == fill, "wrong data at {lba} in round {round}");
        commands.fetch_add(2, Ordering::Relaxed);
        round += 1;
    }
    session.logout()
}

/// Reloads that add and remove a unit and a user while sessions write and compare.
fn under_load(context: &Context) -> Result<()> {
    let reloads = context.amount(40, 10_000);
    let estate = Estate::new()?;
    estate.disk("a.img", 8 << 20)?;
    estate.disk("b.img", 1 << 20)?;
    let server_keys = ["", "\nallow-user = [\"daemon\"]"].map(|more| format!("{PLAIN}{more}"));
    estate.configure(&server_keys[0], &[(0, "a.img")], "")?;
    let mut server = estate.serve(context)?;
    let (stop, commands) = (AtomicBool::new(false), AtomicUsize::new(0));
    let url = server.url.clone();
    let pid = server.running.pid();
    let (before, after) = std::thread::scope(|scope| -> Result<(Held, Held)> {
        let (stop, commands, url) = (&stop, &commands, &url);
        let loads: Vec<_> =
            (0..SESSIONS).map(|number| scope.spawn(move || load(url, number, stop, commands))).collect();
        let mut before = None;
        let reloaded = (0..reloads).try_for_each(|round| {
            let more = [(0, "a.img"), (1, "b.img")];
            let luns = if round % 2 == 0 { &more[..] } else { &more[..1] };
            estate.configure(&server_keys[round % 2], luns, "")?;
            let line = reload(&mut server)?;
            ensure!(!line.contains("nothing is changed"), "{line}");
            if round == reloads / 10 / 2 * 2 + 1 {
                before = Some(held(pid)?);
            }
            Ok(())
        });
        stop.store(true, Ordering::Relaxed);
        for load in loads {
            load.join().map_err(|_| anyhow!("a panic"))?.context("a session under reloads")?;
        }
        reloaded?;
        Ok((before.context("too few reloads")?, held(pid)?))
    })?;
    ensure!(commands.load(Ordering::Relaxed) > 0, "no load");
    ensure!(after.descriptors <= before.descriptors, "descriptors: {before:?}, then {after:?}");
    ensure!(after.threads.len() <= before.threads.len(), "threads: {before:?}, then {after:?}");
    demand!(after.resident <= before.resident + GROWTH_MAX, "memory: {before:?}, then {after:?}")
}

pub(super) fn examine(context: &Context, cases: &mut Cases) {
    let rows: Rows<'_> = &[
        ("reload-peer-removed", peer_removed),
        ("reload-user-removed", |context| user_revoked(context, None)),
        ("reload-secret-changed", |context| user_revoked(context, Some("another-secret-16"))),
        ("reload-bad-file", bad_file),
        ("reload-fifo", fifo),
        ("reload-ended-by-sigterm", terminated),
        ("reload-units", units),
        ("reload-by-flags", by_flags),
        ("reload-under-load", under_load),
    ];
    cases.check_each(context, rows);
}
