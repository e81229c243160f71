//! Headers that both programs could change at once: cryptsetup's lock is waited for, and held for a change.

use std::fs::{File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::desk::{BYTES, CHEAP, COPY, Desk, HEADER_BYTES, LIMIT, VOLUME};
use crate::files::{Loop, can_loop, same_file};
use crate::{Cases, Context, Running, Server, wait_until};

/// Longer than a change takes that waits for nothing.
const HELD: Duration = Duration::from_millis(1500);

/// While another program has the lock, no byte of the header changes; then the change is made.
fn waits(desk: &Desk<'_>, name: &str, lock: &Path, is_device: bool) -> Result<()> {
    let image = || std::fs::read(desk.path("x.img")).map(|bytes| bytes[..HEADER_BYTES as usize].to_vec());
    let before = image()?;
    if is_device {
        std::fs::create_dir_all(lock.parent().context("a directory")?)?;
    }
    let held = File::options().read(true).write(true).create(is_device).truncate(false).open(lock)?;
    held.lock()?;
    let line = format!("volume passwd {name} --password-file pw --new-password-file new {CHEAP}");
    let mut change = Running::start(&mut desk.command(&line))?;
    std::thread::sleep(HELD);
    change.alive()?;
    ensure!(image()? == before, "the header was changed under the lock of another program");
    if is_device {
        // As cryptsetup does: it removes the file before it gives the lock up.
        std::fs::remove_file(lock)?;
    }
    drop(held);
    change.finish(LIMIT)?.success()?;
    ensure!(!is_device || !lock.exists(), "the lock file stayed");
    desk.opens_with("x.img", &["new"])
}

fn waits_for_a_file(context: &Context) -> Result<()> {
    let desk = Desk::new(context)?;
    desk.format("x.img", BYTES, "")?;
    waits(&desk, "x.img", &desk.path("x.img"), false)
}

fn waits_for_a_device(context: &Context) -> Result<()> {
    ensure!(can_loop(), "a block device needs root and /dev/loop-control");
    let desk = Desk::new(context)?;
    desk.format("x.img", BYTES, "")?;
    let device = Loop::attach(&desk.path("x.img"), 512, false)?;
    let number = std::fs::metadata(device.path())?.rdev();
    let name = format!("L_{}:{}", libc::major(number), libc::minor(number));
    waits(&desk, &device.text(), &PathBuf::from("/run/cryptsetup").join(name), true)
}

/// The lock is held while keys are derived and the header is written: another program meets it.
fn holds(context: &Context) -> Result<()> {
    let desk = Desk::new(context)?;
    desk.format("x.img", BYTES, "")?;
    let slow = "--pbkdf pbkdf2 --iter-time 300";
    let line = format!("volume key add x.img --password-file pw --new-password-file new {slow}");
    let mut change = Running::start(&mut desk.command(&line))?;
    let file = File::open(desk.path("x.img"))?;
    wait_until(LIMIT, || {
        ensure!(!change.ended(), "it ended, and its lock was not met");
        let tried = file.try_lock_shared();
        let is_held = matches!(tried, Err(TryLockError::WouldBlock));
        if !is_held {
            file.unlock()?;
        }
        Ok(is_held)
    })?;
    desk.cryptsetup("luksDump x.img")?;
    change.finish(LIMIT)?.success()?;
    desk.opens_with("x.img", &["pw", "new"])
}

/// The passphrases of a volume change while it is served, as `cryptsetup luksChangeKey` changes those of an open one. Its
/// header is not replaced.
fn of_a_volume_in_use(context: &Context) -> Result<()> {
    let desk = Desk::new(context)?;
    let plain = desk.random("plain.img", BYTES)?;
    desk.format("x.img", BYTES, "")?;
    desk.ours("volume header backup x.img old")?;
    let mut server =
        Server::start(&mut desk.command(&format!("serve x.img,{VOLUME} --listen 127.0.0.1:0")), 1)?;
    let url = server.url.to_string();
    desk.ours(&format!("volume key add x.img --password-file pw --new-password-file new {CHEAP}"))?;
    desk.ours(&format!("{COPY} plain.img {url} --verify"))?;
    desk.ours("volume key remove x.img --password-file pw")?;
    desk.cryptsetup("luksDump x.img")?;
    desk.try_ours("volume header restore x.img old")?.expect(6)?.says("end that program first")?;
    desk.try_ours(&format!("volume format x.img --type luks2 --force --password-file pw {CHEAP}"))?
        .expect(6)?
        .says("end that program first")?;
    let copied = desk.path("back.img");
    desk.ours(&format!("copy {url} back.img"))?;
    same_file(&plain, &copied)?;
    server.running.signal(libc::SIGTERM)?;
    server.running.finish(LIMIT)?.success()?;
    desk.opens_with("x.img", &["new"])?;
    desk.ours("compare plain.img x.img,volume=luks2,password-file=new").map(drop)
}

pub(super) fn examine(context: &Context, cases: &mut Cases) {
    cases.check("lock-of-a-file", || waits_for_a_file(context));
    cases.check("lock-of-a-device", || waits_for_a_device(context));
    cases.check("lock-is-held", || holds(context));
    cases.check("keys-of-a-volume-in-use", || of_a_volume_in_use(context));
}
