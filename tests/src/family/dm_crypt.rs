//! dm-crypt and cryptsetup of the stock Linux kernel, in the emulated machine (`tests/kernel-lab/dm-crypt.sh`): volumes that
//! one side writes and the other reads, over LUNs of the server. Part of the family `kernel`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use super::guest::{Said, judge_some};
use super::kernel::{build_guest, guest, script};
use crate::files::{empty_file, random_file};
use crate::target::private_file;
use crate::{Cases, Context, Disk, Scene, Target, program, run, scratch};

/// A boot, and some ten MiB through emulated ciphers.
const GUEST_LIMIT: Duration = Duration::from_secs(240);
const LIMIT: Duration = Duration::from_secs(60);
const BYTES: u64 = 16 << 20;
const HEADER_BYTES: u64 = 16 << 20;
/// Of the cases of both machines, a sample has one.
const GROUP: (&str, usize) = ("dm-crypt", 1);
const SECTORS: [u32; 2] = [512, 4096];

/// The names that the script judges.
const NAMES: &str = "login opens-our-volume writes-ext4 reads-ext4 closes writes-through-the-host opens-their-ciphertext \
    reads-their-ext4 reads-every-byte closes-their-ciphertext opens-the-view reads-the-view closes-the-view";

/// A machine that has ended, and what it left.
struct Ended {
    dir: TempDir,
    said: Said,
}

impl Ended {
    fn new(context: &Context, sector: u32) -> Result<Self> {
        build_guest(context)?;
        let dir = scratch()?;
        let path = |name: &str| dir.path().join(name);
        let pw = private_file(path("pw"), "of a test")?.display().to_string();
        let ours = |words: &[&str]| context.ours(words, LIMIT)?.success();
        let sector_text = sector.to_string();
        let format = |endpoint: &str, more: &[&str]| {
            let words = ["volume", "format", endpoint, "--type", "luks2", "--sector-size", &sector_text];
            let costs = ["--password-file", &pw, "--pbkdf", "pbkdf2", "--iter-time", "1"];
            ours(&[&words[..], &costs, more].concat())
        };
        let stored = empty_file(path("stored.img"), HEADER_BYTES + BYTES)?;
        let theirs = format!("{},create", path("theirs.img").display());
        format(&theirs, &["--data-size", &BYTES.to_string()])?;
        let header = path("header");
        format(&format!("{},create", header.display()), &["--data-size", "1M"])?;
        let plain = ext4(&dir, context)?;
        let theirs = Disk::file(&path("theirs.img"));
        let password = format!("password-file={pw}");
        let mut view = Disk { read_only: true, ..Disk::file(&plain) };
        if sector == 4096 {
            view.block_size = Some(sector);
        }
        let disks = [
            Disk::file(&stored),
            theirs.clone().option("volume=luks2").option(&password),
            Disk { read_only: true, ..theirs },
            view.option("view=luks2").option(format!("header={}", header.display())).option(&password),
        ];
        let mut target = Target::serve(context, &disks, None, &[])?;
        // Over the network, as its user would.
        format(&target.url(0).to_string(), &[])?;
        let mut command = guest(context);
        command.args(["run", &script(context, "dm-crypt.sh"), &format!("SECTOR={sector}")]);
        let url = target.url(0);
        command.args([format!("PORT={}", url.port()?), format!("IQN={}", url.iqn)]);
        let said = Said::read(&run(&mut command, GUEST_LIMIT)?);
        target.running.alive().with_context(|| target.log())?;
        Ok(Self { dir, said })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

/// A file with an ext4, made without mounting it: files of many sizes and their sums.
fn ext4(dir: &TempDir, context: &Context) -> Result<PathBuf> {
    let tree = dir.path().join("tree");
    fs::create_dir(&tree)?;
    for (index, bytes) in [1, 511, 4096, 70_000, 1 << 20, 3_000_001].into_iter().enumerate() {
        let name = (index + 1).to_string();
        random_file(tree.join(&name), bytes, context.seed_for(&format!("kernel/dm-crypt/{name}")))?;
    }
    let sums = run(Command::new("sh").args(["-c", "md5sum [0-9] > SUMS"]).current_dir(&tree), LIMIT)?;
    sums.success()?;
    let image = empty_file(dir.path().join("plain.img"), BYTES)?;
    let made = program("mkfs.ext4")?.args(["-qF", "-b", "4096", "-d"]).args([&tree, &image]).output()?;
    ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    Ok(image)
}

/// Every byte that dm-crypt wrote, by `volume=luks2`; and the file system in it, read without the kernel.
fn is_read_by_us(context: &Context, ended: &Ended) -> Result<()> {
    let text = |name: &str| ended.path(name).display().to_string();
    let volume = format!("{},volume=luks2,password-file={}", text("stored.img"), text("pw"));
    context.ours(&["copy", &volume, &text("read.img"), "--allow", "sector-size"], LIMIT)?.success()?;
    let sum = run(Command::new("md5sum").arg(ended.path("read.img")), LIMIT)?.success()?.stdout;
    let whole = ended.said.value("WHOLE ").context("the guest printed no WHOLE")?;
    ensure!(sum.starts_with(whole), "read {sum}, where dm-crypt has {whole}");
    run(program("e2fsck")?.arg("-fn").arg(ended.path("read.img")), LIMIT)?.success()?;
    let files = ended.path("files");
    fs::create_dir(&files)?;
    let dump = format!("rdump / {}", files.display());
    run(program("debugfs")?.args(["-R", &dump]).arg(ended.path("read.img")), LIMIT)?.success()?;
    has_its_sums(&files)
}

fn has_its_sums(files: &Path) -> Result<()> {
    let sums = run(Command::new("md5sum").args(["-c", "SUMS"]).current_dir(files), LIMIT)?.success()?;
    let count = sums.stdout.lines().filter(|line| line.ends_with(": OK")).count();
    demand!(count == 7, "{count} files, not 7:\n{}", sums.stdout)
}

pub(super) fn examine(context: &Context, cases: &mut Cases) {
    for sector in SECTORS {
        let ended = Scene::new(|| Ended::new(context, sector));
        let prefix = format!("dm-crypt-{sector}");
        judge_some(cases, GROUP, &prefix, NAMES, || ended.get().map(|ended| &ended.said));
        cases.check_some(GROUP, &format!("{prefix}/is-read-by-us"), || is_read_by_us(context, ended.get()?));
    }
}
