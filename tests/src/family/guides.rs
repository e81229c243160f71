//! The pages of `docs/guides`, typed as they are printed, with placeholders replaced by loopback addresses and temporary
//! paths. A page that says that it was not tried has no case.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use steps::is_root;
use steps::packages::{self, Purpose};

use super::FULL_ONLY;
use super::boot::bootable;
use super::mover::scene::Mounted;
use crate::files::{damage, patchy_file, same_file};
use crate::guide::Typist;
use crate::process::tail;
use crate::{Cases, Context, Disk, Output, Running, Tgt, free_port, program, run, wait_until};

const LIMIT: Duration = Duration::from_secs(60);
/// Firmware in software emulation takes seconds on an idle machine.
const BOOT_LIMIT: Duration = Duration::from_secs(120);
const BYTES: u64 = 16 << 20;
const XFS_BYTES: u64 = 320 << 20;
/// User and group `nobody` of Debian: the page uses libvirt's session mode, which is for users other than root.
const NOBODY: (u32, u32) = (65534, 65534);

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn prints(output: &Output, words: &str) -> Result<()> {
    demand!(output.text().contains(words), "no '{words}' in:\n{}", output.text())
}

/// Waits for the URL of a server that a page starts.
fn is_ready(server: &mut Running) -> Result<()> {
    server.wait_stdout("URL", LIMIT, |text| text.contains("iscsi://").then_some(()))
}

/// A page's guest prints `words` from its disk.
fn boots(guest: &mut Running, words: &str) -> Result<()> {
    let console = guest.wait_stdout("text from the LUN", BOOT_LIMIT, |console| {
        let has_ended = [words, "INT13-FAILED", "No bootable"].iter().any(|end| console.contains(end));
        has_ended.then(|| console.to_owned())
    })?;
    demand!(console.contains(words), "{}", tail(&console, 1500))
}

fn words(context: &Context, page: &str) -> String {
    format!("GUIDE-{page}-{:x}", context.seed_for(page))
}

fn qemu(context: &Context) -> Result<()> {
    let port = free_port()?;
    let mounted = Mounted::new(&["mkfs.xfs", "-q", "-f"], "loop", XFS_BYTES)?;
    let dir = mounted.path();
    let places = [
        ("HOST", "127.0.0.1".to_owned()),
        ("3260", port.to_string()),
        ("/srv/hikyaku", text(dir)),
        ("64M", BYTES.to_string()),
    ];
    let mut page = Typist::new(context, "qemu", Some(dir), &places, LIMIT)?;
    let words = words(context, "qemu");
    page.types("The target")?;
    page.types("The target")?;
    bootable(&page.path("guest.img"), &words)?;
    let convert = "qemu-img convert -O qcow2 guest.img guest.qcow2";
    run(&mut page.shell(convert), LIMIT)?.success()?;
    let mut server = page.starts("The target")?;
    is_ready(&mut server)?;
    page.types("An image to the LUN and back")?;
    same_file(&page.path("guest.img"), &page.path("vm.img"))?;
    let compare = "qemu-img compare -f raw -F qcow2 guest.img back.qcow2";
    run(&mut page.shell(compare), LIMIT)?.success()?;
    damage(&page.path("vm.img"), BYTES / 2)?;
    prints(&page.types("An image to the LUN and back")?, "verified")?;
    same_file(&page.path("guest.img"), &page.path("vm.img"))?;
    boots(&mut page.starts("A guest")?, &words)?;
    let mut guest = page.starts("A guest")?;
    boots(&mut guest, &words)?;
    page.types("Backup while the guest runs")?;
    guest.alive()?;
    same_file(&page.path("vm.img"), &page.path("backup.img"))?;
    server.alive()?;
    page.ends()
}

/// libvirtd of a page's user. As root it has a process namespace of its own, whose end is that of its machines.
fn libvirtd(page: &Typist) -> Result<Running> {
    let mut command = program("unshare")?;
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c"]);
    // bash is the namespace's init and reaps what libvirtd leaves.
    command.arg(format!("{} libvirtd; true", page.prefix.join(" "))).current_dir(page.path(""));
    command.envs(page.variables.iter().map(|(name, value)| (name, value)));
    let daemon = Running::start(&mut command)?;
    let socket = page.path("libvirt/libvirt-sock");
    let listens = wait_until(LIMIT, || Ok(socket.exists()));
    listens.with_context(|| format!("libvirtd does not listen:\n{}", daemon.stderr_tail()))?;
    Ok(daemon)
}

fn libvirt(context: &Context) -> Result<()> {
    packages::ensure(Purpose::Libvirt)?;
    ensure!(is_root(), "libvirtd in a process namespace needs root");
    let holder = crate::scratch()?;
    let dir = holder.path();
    let places = [
        ("HOST", "127.0.0.1".to_owned()),
        ("3260", free_port()?.to_string()),
        ("CONSOLE", text(&dir.join("console"))),
        ("SOCKET", text(&dir.join("backup.sock"))),
        ("SCRATCH", text(&dir.join("scratch.qcow2"))),
    ];
    let mut page = Typist::new(context, "libvirt", Some(dir), &places, LIMIT)?;
    let words = words(context, "libvirt");
    bootable(&page.path("vm.img"), &words)?;
    for path in [dir, &page.path("vm.img")] {
        chown(path, Some(NOBODY.0), Some(NOBODY.1))?;
    }
    let (user, group) = (NOBODY.0.to_string(), NOBODY.1.to_string());
    page.prefix = ["setpriv", "--reuid", &user, "--regid", &group, "--clear-groups"].map(String::from).into();
    page.variables.push(("LIBVIRT_DEFAULT_URI", "qemu:///session".to_owned()));

    page.types("The target")?;
    let mut server = page.starts("The target")?;
    is_ready(&mut server)?;
    let daemon = libvirtd(&page)?;
    page.types("The secret")?;
    page.types("The machine").with_context(|| format!("the target's log\n{}", server.stderr_tail()))?;
    let console = || fs::read_to_string(page.path("console")).unwrap_or_default();
    let booted = wait_until(BOOT_LIMIT, || Ok(console().contains(&words)));
    booted.with_context(|| format!("{:?}\n--- libvirtd\n{}", console(), daemon.stderr_tail()))?;
    page.types("Backup while it runs")?;
    same_file(&page.path("vm.img"), &page.path("backup.img"))?;
    page.types("The end")?;
    server.alive()?;
    page.ends()
}

/// The value of a key in a unit file.
fn value(unit: &Path, key: &str) -> Result<String> {
    let text = fs::read_to_string(unit)?;
    let found = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    found.map(str::to_owned).with_context(|| format!("no {key}= in {}", unit.display()))
}

fn backup(context: &Context) -> Result<()> {
    let mounted = Mounted::new(&["mkfs.xfs", "-q", "-f"], "loop", XFS_BYTES)?;
    let dir = mounted.path();
    let places = [
        ("/srv/hikyaku", text(&dir.join("srv"))),
        ("/backup", text(&dir.join("backup"))),
        ("/etc/systemd/system", text(&dir.join("units"))),
        ("/usr/bin/hikyaku", text(&context.hikyaku)),
    ];
    let mut page = Typist::new(context, "backup", Some(dir), &places, LIMIT)?;
    for name in ["srv", "backup", "units"] {
        fs::create_dir(page.path(name))?;
    }
    let image = patchy_file(page.path("srv/vm.img"), BYTES, context.seed_for("guides/backup"))?;
    let saved = page.path("backup/vm.img");
    let verified = page.types("Service and timer")?;
    ensure!(!verified.text().contains("hikyaku-backup.service:"), "{}", verified.text());
    ensure!(verified.stdout.contains("02:00:00"), "no next time: {}", verified.stdout);
    page.types("Service and timer")?;
    page.skips("Service and timer", "systemctl start hikyaku-backup")?;
    let service = page.path("units/hikyaku-backup.service");
    let start = value(&service, "ExecStart")?;
    let night = || run(&mut page.shell(&start), LIMIT)?.success();
    prints(&night()?, "snapshot")?;
    same_file(&image, &saved)?;
    // A day later little has changed, and little is written.
    damage(&image, BYTES / 3)?;
    prints(&night()?, "4 KiB moved")?;
    same_file(&image, &saved)?;
    for name in ["vm.manifest", "vm.html"] {
        ensure!(page.path("backup").join(name).is_file(), "no {name}");
    }
    // What the unit does not repeat are the codes of the manual that an administrator has to look at.
    ensure!(value(&service, "RestartPreventExitStatus")? == "2 3 4 6 7", "other codes in the unit");
    // An error of code 1 may repeat: the starts of one night are counted, and those of the next night count anew.
    let limit = ["StartLimitIntervalSec", "StartLimitBurst"].map(|key| value(&service, key));
    ensure!(matches!(&limit, [Ok(time), Ok(starts)] if time == "12h" && starts == "4"), "{limit:?}");
    // A source that has grown is copied as a whole.
    fs::File::options().write(true).open(&image)?.set_len(BYTES + (1 << 20))?;
    night()?;
    same_file(&image, &saved)?;
    page.types("Older backups")?;
    page.types("Restore")?;
    same_file(&image, &page.path("srv/restored.img"))?;
    prints(&page.types("A year later")?, "as it was")?;
    damage(&saved, BYTES / 2)?;
    let manifest = page.path("backup/vm.manifest");
    let compare = format!("hikyaku compare {} --manifest {}", text(&saved), text(&manifest));
    run(&mut page.shell(&compare), LIMIT)?.expect(3)?;
    page.ends()
}

/// `saveconfig.json` of LIO with one target; its image is `image`.
fn saveconfig(image: &Path) -> String {
    serde_json::json!({
        "storage_objects": [{ "plugin": "fileio", "name": "disk", "dev": text(image), "size": BYTES,
            "write_back": true, "wwn": "b7f0d9a2-1111-4444-8888-0123456789ab" }],
        "targets": [{ "fabric": "iscsi", "wwn": "iqn.2026-11.example:lio", "tpgs": [{ "tag": 1, "enable": true,
            "attributes": { "authentication": 1 }, "portals": [{ "ip_address": "192.0.2.7", "port": 3260 }],
            "luns": [{ "index": 0, "storage_object": "/backstores/fileio/disk" }],
            "node_acls": [{ "node_wwn": "iqn.2026-11.example:app", "chap_userid": "app",
                "chap_password": "sixteen-byte-lio", "mapped_luns": [{ "index": 0, "tpg_lun": 0 }] }] }] }]
    })
    .to_string()
}

/// Vendor, product, serial number and designator, by which an initiator recognises a disk, as `info` prints them.
fn identity(info: &Output) -> Result<[String; 4]> {
    let lines = || info.stdout.lines().filter_map(|line| line.split_once(' '));
    let mut found = [const { String::new() }; 4];
    for (name, place) in ["vendor", "product", "serial", "designator"].into_iter().zip(&mut found) {
        let line = lines().find(|(key, _)| *key == name);
        line.with_context(|| format!("no {name} in:\n{}", info.stdout))?.1.trim().clone_into(place);
    }
    Ok(found)
}

fn migration(context: &Context) -> Result<()> {
    let holder = crate::scratch()?;
    let dir = holder.path();
    let image = patchy_file(dir.join("old.img"), BYTES, context.seed_for("guides/migration"))?;
    let old = Tgt::serve(&[Disk::file(&image)], None)?;
    let url = old.url(0).clone();
    let port = free_port()?;
    let [_, _, serial, designator] = identity(&context.ours(&["info", &url.to_string()], LIMIT)?.success()?)?;
    let naa = designator.strip_prefix("naa.").context("tgt's designator")?.to_owned();
    let places = [
        ("OLD", url.portal.clone()),
        ("IQN", url.iqn.clone()),
        ("LUN", url.lun.to_string()),
        ("NAA", naa),
        ("SERIAL", serial),
        ("HOST", "127.0.0.1".to_owned()),
        ("3260", port.to_string()),
        ("/etc/tgt", text(&dir.join("tgt"))),
        ("/etc/rtslib-fb-target", text(&dir.join("lio"))),
        ("/etc/hikyaku", text(&dir.join("etc"))),
        ("/srv/hikyaku", text(&dir.join("srv"))),
    ];
    let mut page = Typist::new(context, "migrate-tgt-lio", Some(dir), &places, LIMIT)?;
    for name in ["tgt", "lio", "etc", "srv"] {
        fs::create_dir(page.path(name))?;
    }
    // Served without an account, as tgt does here; beyond loopback hikyaku would refuse that.
    let targets = format!(
        "<target {}>\n  backing-store {}\n  initiator-address 192.0.2.0/24\n</target>\n",
        url.iqn,
        text(&image)
    );
    fs::write(page.path("tgt/targets.conf"), targets)?;
    fs::write(page.path("lio/saveconfig.json"), saveconfig(&image))?;
    page.types("The configuration")?;
    let configuration = page.path("etc/hikyaku.toml");
    let from_tgt = fs::read_to_string(&configuration)?;
    ensure!(from_tgt.contains("not carried over: initiator-address"), "{from_tgt}");
    page.types("The configuration")?;
    let from_lio = fs::read_to_string(&configuration)?;
    ensure!(from_lio.contains("serial = \"b7f0d9a2"), "{from_lio}");
    let secret = fs::metadata(page.path("etc/secrets/app"))?.permissions().mode() & 0o777;
    ensure!(
        secret == 0o600 && !from_lio.contains("sixteen-byte"),
        "mode {secret:o} of the secret\n{from_lio}"
    );
    fs::write(&configuration, from_tgt)?;
    page.types("The configuration")?;
    let seen = page.types("The disk's identity")?;
    let before = identity(&seen)?;

    page.types("Cut-over to another host")?;
    same_file(&image, &page.path("srv/disk.img"))?;
    damage(&image, BYTES / 2)?;
    prints(&page.types("Cut-over to another host")?, "verified")?;
    drop(old);
    page.types("Cut-over to another host")?;
    let mut server = page.starts("Cut-over to another host")?;
    is_ready(&mut server)?;
    let url = url.at(&format!("127.0.0.1:{port}"));
    run(&mut page.shell(&format!("hikyaku compare {} {url}", text(&image))), LIMIT)?.success()?;
    let after = identity(&run(&mut page.shell(&format!("hikyaku info {url}")), LIMIT)?.success()?)?;
    ensure!(before == after, "the disk was {before:?} and is {after:?}");
    server.alive()?;
    page.ends()
}

/// The page's volume and the one that cryptsetup decrypts hold the same disk.
fn volumes(context: &Context) -> Result<()> {
    let holder = crate::scratch()?;
    let dir = holder.path();
    // The costs of the passphrases are two seconds on this machine by default.
    let [format, passwd, add] =
        ["format", "passwd", "key add"].map(|command| format!("volume {command} $LUN"));
    let cheap = |command: &str| format!("{command} --iter-time 1 --pbkdf-memory 32M");
    let places = [
        (&*format, cheap(&format)),
        (&*passwd, cheap(&passwd)),
        (&*add, cheap(&add)),
        ("--type auth", cheap("--type auth")),
        ("volume reencrypt", cheap("volume reencrypt")),
        ("--data-size 1M", cheap("--data-size 1M")),
        ("64M", BYTES.to_string()),
        ("80M", (BYTES + (16 << 20)).to_string()),
        ("HOST", "127.0.0.1".to_owned()),
        ("3260", free_port()?.to_string()),
        ("127.0.0.1:3261", "127.0.0.1:0".to_owned()),
        ("/srv/hikyaku", text(dir)),
    ];
    let mut page = Typist::new(context, "volumes", Some(dir), &places, LIMIT)?;
    let disk = patchy_file(page.path("disk.img"), BYTES, context.seed_for("guides/volumes"))?;
    page.types("The storage")?;
    let mut storage = page.starts("The storage")?;
    is_ready(&mut storage)?;
    prints(&page.types("The volume")?, "argon2id")?;
    prints(&page.types("In and out")?, "verified")?;
    same_file(&disk, &page.path("restored.img"))?;
    let mut server = page.starts("In and out")?;
    is_ready(&mut server)?;
    drop(server);
    let passphrases = page.types("Passphrases")?;
    prints(&passphrases, "the passphrase was changed")?;
    prints(&passphrases, "the passphrase was removed")?;
    storage.alive()?;
    drop(storage);
    prints(&page.types("Volumes that notice changes")?, "verified")?;
    same_file(&disk, &page.path("restored-auth.img"))?;
    prints(&page.types("Volumes that notice changes")?, "32 MiB; it had 16 MiB")?;
    prints(&page.types("Another key")?, "the volume has a new key")?;
    page.types("Plaintext storage shown as a volume")?;
    let mut view = page.starts("Plaintext storage shown as a volume")?;
    is_ready(&mut view)?;
    page.types("Plaintext storage shown as a volume")?;
    view.alive()?;
    drop(view);
    prints(&page.types("Without this program")?, "aes-xts-plain64")?;
    page.types("Without this program")?;
    same_file(&disk, &page.path("copy.img"))?;
    page.ends()
}

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    cases.check("backup", || backup(context));
    cases.check("migrate-tgt-lio", || migration(context));
    cases.check("qemu", || qemu(context));
    cases.check("volumes", || volumes(context));
    cases.check_some(FULL_ONLY, "libvirt", || libvirt(context));
    Ok(())
}
