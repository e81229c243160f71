//! Rotation of a target's key: announcements altered on the path, of other keys and of a stolen key; known targets and
//! keys in files that are links, damaged, of another user, or on a full file system. Whatever happens, the entry of the
//! present key stays whole.

use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use seal::{Identity, PublicKey, Suite};
use steps::is_root;

use super::super::sealed::attack::{Aim, Attack, Deed, Done};
use super::claims::{LAPTOP, isid};
use super::names::Scene;
use crate::cases::Rows;
use crate::pdu::Session;
use crate::records::{Part, Records};
use crate::seal::Who;
use crate::tap::{Middle, Tap, Way};
use crate::{Cases, Context, Output, Server, program, run};

const LIMIT: Duration = Duration::from_secs(20);
const NOBODY: u32 = 65534;
const IQN: &str = "iqn.2026-11.org.example:rotate";
const ANNOUNCES: &str = "announces its next key SHA256:";

/// Two hosts and a target; the next key of `target.key` has been made.
struct Estate<'a> {
    scene: Scene<'a>,
    next: String,
}

impl<'a> Estate<'a> {
    fn new(context: &'a Context) -> Result<Self> {
        let scene = Scene::new(context)?;
        let mut estate = Self { scene, next: String::new() };
        estate.next = estate.rotate("target.key")?;
        Ok(estate)
    }

    /// Makes the next key of a file; returns its public half.
    fn rotate(&self, file: &str) -> Result<String> {
        let made =
            self.scene.ours(&["key", "rotate", &self.scene.path(file), "--json"])?.success()?.json()?;
        Ok(made["next_public_key"].as_str().context("a next key")?.to_owned())
    }

    fn serve(&self, identity: &str, listen: &str) -> Result<Server> {
        let mut command = self.scene.command();
        command.args(["serve", "mem:1M", "--iqn", IQN, "--listen", listen]);
        command.args(["--identity", &self.scene.path(identity), "--peers", &self.scene.path("peers.toml")]);
        Server::start(&mut command, 1)
    }

    fn trust(&self, portal: &str) -> Result<()> {
        let url = format!("iscsi://{portal}");
        self.scene.ours(&["key", "trust", &url, "--key", &self.scene.target_key])?.success().map(drop)
    }

    fn info(&self, portal: &str) -> Result<Output> {
        self.scene.ours(&["info", &format!("iscsi://{portal}/{IQN}/0,timeout=1s")])
    }

    fn known(&self) -> Result<String> {
        Ok(fs::read_to_string(self.scene.known_targets())?)
    }

    /// Checks the first line of the known targets: the present key, and the next one if there is any.
    fn knows(&self, key: &str, next: Option<&str>) -> Result<()> {
        let known = self.known()?;
        let keys = next.map_or_else(|| key.to_owned(), |next| format!("{key},{next}"));
        let found = known.lines().next().and_then(|line| line.split(' ').nth(1));
        demand!(found == Some(&*keys), "not {keys} in\n{known}")
    }
}

/// What a host on the path does to the record of the announcement, on each connection.
fn altered(context: &Context, deed: impl Fn(Vec<u8>) -> Deed) -> Result<()> {
    let estate = Estate::new(context)?;
    let server = estate.serve("target.key", "127.0.0.1:0")?;
    let port = server.url.port()?;
    let recorder = Tap::passive(port)?;
    estate.trust(&recorder.portal())?;
    estate.info(&recorder.portal())?.success()?.says(ANNOUNCES)?;
    let conversations = recorder.conversations();
    let login = conversations.last().context("a session")?.sent(Way::ToInitiator);
    let pieces = Records::default().split(login);
    let of_first =
        pieces.into_iter().filter(|piece| piece.place.part != Part::Outer && piece.place.number == 0);
    let first: Vec<u8> = of_first.flat_map(|piece| piece.bytes).collect();
    ensure!(first.len() > 100, "a record of {} bytes", first.len());
    let (deed, all) = (deed(first), Arc::new(Mutex::new(Vec::new())));
    let shared = Arc::clone(&all);
    let chooser = move |_| -> Box<dyn Middle> {
        let (aim, done) = (Aim::Place { part: Part::Body, number: 0, offset: 40 }, Done::default());
        shared.lock().expect("no panic under this lock").push(done.clone());
        Box::new(Attack::new(Way::ToInitiator, aim, deed.clone(), done))
    };
    let tap = Tap::start(port, Box::new(chooser))?;
    fs::remove_file(estate.scene.known_targets())?;
    estate.trust(&tap.portal())?;
    let output = estate.info(&tap.portal())?;
    let met = all.lock().expect("no panic under this lock").iter().filter(|done| done.at().is_some()).count();
    ensure!(met > 0, "the record was not met: {output}");
    ensure!(output.code != Some(0) && !output.text().contains(ANNOUNCES), "it was believed: {output}");
    estate.knows(&estate.scene.target_key, None)
}

/// The announcement of another key pair at the address of the target is not read.
fn of_another_identity(context: &Context) -> Result<()> {
    let estate = Estate::new(context)?;
    let server = estate.serve("target.key", "127.0.0.1:0")?;
    let portal = server.url.portal.clone();
    estate.trust(&portal)?;
    let before = estate.known()?;
    drop(server);
    estate.scene.ours(&["key", "new", &estate.scene.path("thief.key")])?.success()?;
    // Its next key is that of the owner, by its file; and one of its own.
    fs::copy(estate.scene.path("target.key.next"), estate.scene.path("thief.key.next"))?;
    let _thief = estate.serve("thief.key", &portal)?;
    estate.info(&portal)?.expect(4)?.says("ITS KEY IS NOT THE ONE WE KNOW")?;
    demand!(estate.known()? == before, "the list has changed")
}

/// The limit that SEAL.md section 9 states: the thief of the present key announces a key of its own, which both sides of
/// the warning show; the next login to the owner ends it.
fn of_a_stolen_key(context: &Context) -> Result<()> {
    let estate = Estate::new(context)?;
    fs::remove_file(estate.scene.path("target.key.next"))?;
    fs::copy(estate.scene.path("target.key"), estate.scene.path("thief.key"))?;
    let stolen = estate.rotate("thief.key")?;
    let thief = estate.serve("thief.key", "127.0.0.1:0")?;
    let portal = thief.url.portal.clone();
    estate.trust(&portal)?;
    let said = estate.info(&portal)?.success()?;
    ensure!(said.stderr.contains(ANNOUNCES) && said.stderr.contains("hikyaku key forget"), "{said}");
    estate.knows(&estate.scene.target_key, Some(&stolen))?;
    drop(thief);
    let owner = estate.serve("target.key", &portal)?;
    estate.info(&portal)?.success()?.says("is not accepted any more")?;
    estate.knows(&estate.scene.target_key, None)?;
    drop(owner);
    // The thief's own key alone is refused now.
    fs::rename(estate.scene.path("thief.key.next"), estate.scene.path("thief.key"))?;
    let _thief = estate.serve("thief.key", &portal)?;
    estate.info(&portal)?.expect(4).map(drop)
}

/// An initiator of a release that asks for no next key, and each version of the list at an initiator that does.
fn of_earlier_releases(context: &Context) -> Result<()> {
    let estate = Estate::new(context)?;
    let server = estate.serve("target.key", "127.0.0.1:0")?;
    let own = fs::read_to_string(estate.scene.home.path().join("config/hikyaku/identity"))?;
    let secret = own.lines().last().context("a key")?;
    let who = Who {
        identity: Identity::parse(secret).context("the identity")?,
        target: PublicKey::parse(&estate.scene.target_key).context("the target's key")?,
        suite: Suite::ALL[0],
    };
    let mut session = Session::login_sealed(&server.url, LAPTOP, isid(1), &who)?;
    session.blocks(0)?;
    session.logout()?;
    // A file with a next key, which an earlier release refuses, is as good for this one without it.
    estate.trust(&server.url.portal)?;
    estate.info(&server.url.portal)?.success()?.says(ANNOUNCES)?;
    let old = estate.known()?.replace(&format!(",{}", estate.next), "");
    fs::write(estate.scene.known_targets(), old)?;
    estate.info(&server.url.portal)?.success()?.says(ANNOUNCES)?;
    estate.knows(&estate.scene.target_key, Some(&estate.next))
}

/// The list is a link, dangles, ends within a line, or belongs to another user.
fn odd_lists(context: &Context) -> Result<()> {
    let estate = Estate::new(context)?;
    let server = estate.serve("target.key", "127.0.0.1:0")?;
    let portal = server.url.portal.clone();
    estate.trust(&portal)?;
    let known = estate.scene.known_targets();
    let before = estate.known()?;
    let elsewhere = estate.scene.home.path().join("elsewhere");
    fs::rename(&known, &elsewhere)?;
    symlink(&elsewhere, &known)?;
    estate.info(&portal)?.success()?.says(ANNOUNCES)?;
    ensure!(fs::symlink_metadata(&known)?.is_symlink(), "the link was replaced");
    estate.knows(&estate.scene.target_key, Some(&estate.next))?;
    fs::remove_file(&elsewhere)?;
    estate.info(&portal)?.expect(1)?.says("leads nowhere")?;
    ensure!(!elsewhere.exists(), "the file was made anew");
    fs::remove_file(&known)?;
    // As a crash of a program that writes in place leaves it.
    for length in [before.len() / 4, before.find(' ').context("a line")? + 20] {
        let half = &before[..length];
        fs::write(&known, half)?;
        estate.info(&portal)?.expect(1)?.says("line 1")?;
        ensure!(estate.known()? == half, "the damaged list was changed");
    }
    fs::write(&known, &before)?;
    if is_root() {
        chown(&known, Some(NOBODY), Some(NOBODY))?;
        let refused = estate.info(&portal)?;
        ensure!(refused.code != Some(0), "a list of another user was believed: {refused}");
        ensure!(refused.stderr.contains("known-targets"), "{refused}");
        chown(&known, Some(0), Some(0))?;
    }
    estate.info(&portal)?.success()?.says(ANNOUNCES)?;
    estate.knows(&estate.scene.target_key, Some(&estate.next))
}

/// A small file system, full but for what lies in it.
struct Full {
    point: PathBuf,
}

impl Full {
    fn mount(point: PathBuf) -> Result<Self> {
        let mut mount = program("mount")?;
        mount.args(["-t", "tmpfs", "-o", "size=64k,mode=0700", "tmpfs"]).arg(&point);
        run(&mut mount, LIMIT)?.success()?;
        Ok(Self { point })
    }

    fn fill(&self) -> Result<()> {
        let file = self.point.join("filler");
        for bytes in [64 << 10, 4096, 1] {
            let mut to = fs::OpenOptions::new().create(true).append(true).open(&file)?;
            while std::io::Write::write_all(&mut to, &vec![0; bytes]).is_ok() {}
        }
        Ok(())
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        if let Ok(mut umount) = program("umount") {
            let _ = run(umount.arg(&self.point), LIMIT);
        }
    }
}

fn contents(directory: &Path) -> Result<Vec<(PathBuf, Vec<u8>)>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        all.push((path.clone(), fs::read(&path)?));
    }
    all.sort();
    Ok(all)
}

/// Keys and known targets on a full file system: each command says so, and no file is lost, changed or left half.
fn full(context: &Context) -> Result<()> {
    let estate = Estate::new(context)?;
    let server = estate.serve("target.key", "127.0.0.1:0")?;
    let portal = server.url.portal.clone();
    let directory = estate.scene.home.path().join("config/hikyaku");
    let files = contents(&directory)?;
    let full = Full::mount(directory.clone())?;
    for (path, bytes) in &files {
        fs::write(path, bytes)?;
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    }
    estate.trust(&portal)?;
    let lone = directory.join("new.key").display().to_string();
    full.fill()?;
    let before = contents(&directory)?;
    let no_space = "No space left on device";
    let url = format!("iscsi://{portal}");
    let commands: [&[&str]; 4] = [
        &["key", "new", &lone],
        &["key", "rotate"],
        &["key", "trust", &url.replace("127.0.0.1", "localhost"), "--key", &estate.scene.target_key],
        &["key", "forget", &url],
    ];
    for arguments in commands {
        estate.scene.ours(arguments)?.expect(1)?.says(no_space)?.says("try: free space there")?;
        ensure!(contents(&directory)? == before, "{arguments:?} changes the files");
    }
    estate.info(&portal)?.success()?.says_all(&[ANNOUNCES, "This holds until the command ends", no_space])?;
    ensure!(contents(&directory)? == before, "the login changes the files");
    fs::remove_file(directory.join("filler"))?;
    estate.info(&portal)?.success()?.says(ANNOUNCES)?;
    estate.knows(&estate.scene.target_key, Some(&estate.next))
}

pub(super) fn examine(context: &Context, cases: &mut Cases) {
    let rows: Rows<'_> = &[
        ("rotate-announcement-flipped", |context| altered(context, |_| Deed::Flip(1))),
        ("rotate-announcement-replayed", |context| altered(context, Deed::Replace)),
        ("rotate-announcement-withheld", |context| altered(context, |_| Deed::Drop)),
        ("rotate-announcement-of-another-identity", of_another_identity),
        ("rotate-announcement-of-a-stolen-key", of_a_stolen_key),
        ("rotate-initiator-of-an-earlier-release", of_earlier_releases),
        ("rotate-list-odd", odd_lists),
    ];
    cases.check_each(context, rows);
    if is_root() {
        cases.check("rotate-full-file-system", || full(context));
    } else {
        cases.note("not root, no file system can be mounted: the case rotate-full-file-system is left out");
    }
}
