//! Data in and out of a volume on a file, on a LUN and behind a LUN, by both I/O back ends; what the storage and the
//! network see of it.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rand::RngExt;

use super::desk::{BYTES, COPY, Desk, HEADER_BYTES, LIMIT, VOLUME};
use crate::family::FULL_ONLY;
use crate::family::qemu_img::{qemu_img, qemu_io};
use crate::files::{data_of, patchy_file, same_file, same_range};
use crate::tap::{Tap, Way};
use crate::{Cases, Context, Disk, Running, Target, run, wait_until};

/// Bytes of a cipher block, the unit in which plaintext would appear.
const WINDOW: usize = 16;

/// Random plaintext, to be searched for: its 16-byte blocks.
struct Plaintext {
    blocks: HashSet<[u8; WINDOW]>,
    /// Of the blocks' first bytes: most places of a text without plaintext are dismissed by one lookup.
    beginnings: Vec<u64>,
}

impl Plaintext {
    fn of(path: &Path) -> Result<Self> {
        let bytes = fs::read(path)?;
        let blocks: HashSet<_> = bytes.as_chunks::<WINDOW>().0.iter().copied().collect();
        let mut beginnings = vec![0; (1 << 24) / 64];
        for block in &blocks {
            let (word, bit) = Self::place(block);
            beginnings[word] |= bit;
        }
        Ok(Self { blocks, beginnings })
    }

    fn place(bytes: &[u8]) -> (usize, u64) {
        let number = usize::from(bytes[0]) << 16 | usize::from(bytes[1]) << 8 | usize::from(bytes[2]);
        (number / 64, 1 << (number % 64))
    }

    /// The first place of a block of the plaintext within `bytes`, at any offset.
    fn find(&self, bytes: &[u8]) -> Option<usize> {
        bytes.windows(WINDOW).position(|window| {
            let (word, bit) = Self::place(window);
            self.beginnings[word] & bit != 0 && self.blocks.contains(window)
        })
    }

    fn absent(&self, place: &str, bytes: &[u8]) -> Result<()> {
        let at = self.find(bytes);
        demand!(at.is_none(), "{place}: plaintext at byte {at:?} of {}", bytes.len())
    }
}

/// Into a volume in a file and out of it; its manifest and hash are those of the plaintext.
fn file(desk: &Desk<'_>, sector_bytes: u32) -> Result<()> {
    let plain = desk.random("plain.img", BYTES)?;
    desk.format("x.img", BYTES, &format!("--sector-size {sector_bytes}"))?;
    let there =
        desk.ours(&format!("{COPY} plain.img x.img,{VOLUME} --verify --manifest m --json"))?.json()?;
    let hash = blake3::hash(&fs::read(&plain)?).to_hex().to_string();
    ensure!(there["verified"] == true && there["blake3"] == hash, "{there}");
    desk.ours(&format!("compare x.img,{VOLUME} --manifest m"))?;
    let back = desk.ours(&format!("{COPY} x.img,{VOLUME} back.img --verify --json"))?.json()?;
    ensure!(back["verified"] == true && back["blake3"] == hash, "{back}");
    same_file(&plain, &desk.path("back.img"))?;
    Plaintext::of(&plain)?.absent("the image", &fs::read(desk.path("x.img"))?)?;
    desk.decrypt("x.img", "head")?;
    same_range(&plain, 0, &desk.path("x.img"), 0, BYTES)
}

/// Parts of a volume are copied to and from other places.
fn parts(context: &Context) -> Result<()> {
    let desk = Desk::new(context)?;
    let plain = desk.random("plain.img", BYTES)?;
    desk.format("x.img", BYTES, "--sector-size 512")?;
    desk.ours(&format!("copy plain.img x.img,{VOLUME}"))?;
    let mut expected = fs::read(&plain)?;
    let mut rng = context.rng("luks2/parts");
    for _ in 0..6 {
        let sectors = BYTES as usize / 512;
        let length = rng.random_range(1..=sectors / 4);
        let [from, to] = [0; 2].map(|_| rng.random_range(0..=sectors - length));
        let (from, to, length) = (512 * from, 512 * to, 512 * length);
        desk.ours(&format!(
            "copy plain.img x.img,{VOLUME} --force --src-offset {from} --dst-offset {to} --size {length}"
        ))?;
        let part = fs::read(&plain)?[from..from + length].to_vec();
        expected[to..to + length].copy_from_slice(&part);
    }
    fs::write(desk.path("expected"), expected)?;
    desk.ours(&format!("compare expected x.img,{VOLUME}"))?;
    desk.decrypt("x.img", "head")?;
    same_range(&desk.path("expected"), 0, &desk.path("x.img"), 0, BYTES)
}

/// Holes and zeroes of the source replace what the volume held, and leave no hole in it.
fn zeroes(context: &Context, sparse: &str) -> Result<()> {
    let desk = Desk::new(context)?;
    desk.random("before.img", BYTES)?;
    let plain = patchy_file(desk.path("plain.img"), BYTES, context.seed_for("luks2/zeroes"))?;
    desk.format("x.img", BYTES, "")?;
    desk.ours(&format!("copy before.img x.img,{VOLUME}"))?;
    desk.ours(&format!("copy plain.img x.img,{VOLUME} --sparse {sparse} --force --verify"))?;
    let ends: Vec<_> =
        data_of(&desk.path("x.img"))?.into_iter().filter(|(_, end)| *end > HEADER_BYTES).collect();
    let is_thick = ends.len() == 1 && ends[0].0 <= HEADER_BYTES && ends[0].1 == HEADER_BYTES + BYTES;
    ensure!(is_thick, "data of the image lies at {ends:?}");
    desk.decrypt("x.img", "head")?;
    same_range(&plain, 0, &desk.path("x.img"), 0, BYTES)
}

/// The initiator makes and fills a volume on a LUN: neither the target's file nor the network has plaintext.
fn lun(desk: &Desk<'_>) -> Result<()> {
    let plain = desk.random("plain.img", BYTES)?;
    let stored = desk.empty("x.img", HEADER_BYTES + BYTES)?;
    let target = Target::serve(desk.context, &[Disk::file(&stored)], None, &[])?;
    let tap = Tap::passive(target.url(0).port()?)?;
    let url = target.url(0).at(&tap.portal()).to_string();
    let costs = super::desk::CHEAP;
    desk.ours(&format!("volume format {url} --type luks2 --password-file pw {costs}"))?;
    desk.ours(&format!("copy plain.img {url},{VOLUME} --verify"))?;
    desk.ours(&format!("copy {url},{VOLUME} back.img"))?;
    same_file(&plain, &desk.path("back.img"))?;
    desk.ours(&format!("volume key add {url} --password-file pw --new-password-file new {costs}"))?;
    desk.ours(&format!("volume header backup {url} head.backup"))?;
    desk.try_ours(&format!("info {url},volume=luks2,password-file=wrong"))?.expect(4)?;
    let plaintext = Plaintext::of(&plain)?;
    let conversations = tap.conversations();
    let mut carried = 0;
    for conversation in &conversations {
        for way in Way::BOTH {
            carried += conversation.sent(way).len();
            plaintext.absent("the network", conversation.sent(way))?;
        }
    }
    ensure!(carried as u64 > 3 * BYTES, "the tap saw {carried} bytes");
    plaintext.absent("the target's file", &fs::read(&stored)?)?;
    target.terminate(LIMIT)?.success()?;
    desk.opens_with("x.img", &["pw", "new"])?;
    desk.decrypt("x.img", "head")?;
    same_range(&plain, 0, &stored, 0, BYTES)
}

/// The search finds what it is for: a LUN without a volume shows plaintext at both places.
fn search_finds(context: &Context) -> Result<()> {
    let desk = Desk::new(context)?;
    let plain = desk.random("plain.img", BYTES)?;
    let stored = desk.empty("x.img", BYTES)?;
    let target = Target::serve(context, &[Disk::file(&stored)], None, &[])?;
    let tap = Tap::passive(target.url(0).port()?)?;
    desk.ours(&format!("copy plain.img {}", target.url(0).at(&tap.portal())))?;
    let plaintext = Plaintext::of(&plain)?;
    let is_sent = tap.conversations().iter().any(|all| plaintext.find(all.sent(Way::ToTarget)).is_some());
    demand!(is_sent && plaintext.find(&fs::read(&stored)?).is_some(), "nothing was found")
}

/// A target that serves what a volume holds.
fn serve(desk: &Desk<'_>, name: &str, options: &[&str]) -> Result<Target> {
    let disk = Disk::file(&desk.path(name)).option("volume=luks2");
    let disk = disk.option(format!("password-file={}", desk.path("pw").display()));
    let surroundings = desk.surroundings();
    Target::serve_with(desk.context, &[disk], None, options, &surroundings)
}

/// QEMU's initiator writes and reads the LUN; cryptsetup decrypts the file.
fn served(desk: &Desk<'_>, sector_bytes: u32) -> Result<()> {
    let plain = desk.random("plain.img", BYTES)?;
    desk.format("x.img", BYTES, &format!("--sector-size {sector_bytes}"))?;
    let target = serve(desk, "x.img", &[])?;
    let url = target.url(0).to_string();
    let (plain_text, back) = (plain.display().to_string(), desk.path("back.img"));
    qemu_img(&["convert", "-n", "-f", "raw", "-O", "raw", &plain_text, &url])?;
    qemu_img(&["convert", "-f", "raw", "-O", "raw", &url, &back.display().to_string()])?;
    same_file(&plain, &back)?;
    // Smaller requests than the encrypted sectors where those have 4096 bytes; discarded blocks are written zeroes.
    let unit = u64::from(sector_bytes);
    let commands = [
        format!("write -P 7 {} {}", 3 * unit, 5 * unit),
        format!("read -P 7 {} {}", 3 * unit, 5 * unit),
        format!("write -z {} {}", 4 * unit, unit),
        format!("write -z -u {} {}", 6 * unit, unit),
        "flush".to_owned(),
        format!("read -P 0 {} {unit}", 4 * unit),
        format!("read -P 0 {} {unit}", 6 * unit),
    ];
    qemu_io(&["-f", "raw", &url], &commands)?;
    target.terminate(LIMIT)?.success()?;
    let mut expected = fs::read(&plain)?;
    let sector = |number: u64| (number * unit) as usize..((number + 1) * unit) as usize;
    for (number, value) in [(3, 7), (4, 0), (5, 7), (6, 0), (7, 7)] {
        expected[sector(number)].fill(value);
    }
    fs::write(desk.path("expected"), expected)?;
    desk.decrypt("x.img", "head")?;
    same_range(&desk.path("expected"), 0, &desk.path("x.img"), 0, BYTES)
}

/// An image of blocks of 512 bytes that fills no larger block, in volumes with larger sectors, which show blocks of 4096 bytes:
/// refused with the option that permits it, and until its end is filled up; then there is room for it, in the volume and over a LUN.
fn other_blocks(context: &Context) -> Result<()> {
    const IMAGE: u64 = BYTES + 5 * 512;
    let desk = Desk::new(context)?;
    let odd = desk.random("odd.img", IMAGE)?;
    let plain = desk.path("plain.img");
    fs::copy(&odd, &plain)?;
    fs::OpenOptions::new().write(true).open(&plain)?.set_len(IMAGE.next_multiple_of(4096))?;
    for sector_bytes in [1024, 2048, 4096] {
        let name = format!("{sector_bytes}.img");
        desk.format(&name, IMAGE, &format!("--sector-size {sector_bytes}"))?;
        let copy = format!("copy plain.img {name},{VOLUME}");
        desk.try_ours(&copy)?.expect(6)?.says("--allow sector-size")?;
        desk.try_ours(&format!("copy odd.img {name},{VOLUME} --allow sector-size"))?
            .expect(2)?
            .says(&format!("granularity, {sector_bytes} bytes"))?;
        desk.ours(&format!("{copy} --verify --allow sector-size"))?;
        desk.ours(&format!("compare plain.img {name},{VOLUME}"))?;
        let target = serve(&desk, &name, &[])?;
        let url = target.url(0).to_string();
        desk.try_ours(&format!("copy plain.img {url} --force"))?.expect(6)?.says("--allow sector-size")?;
        desk.ours(&format!("copy plain.img {url} --force --verify --allow sector-size"))?;
        desk.ours(&format!("copy {url} back.img --force --allow sector-size"))?;
        target.terminate(LIMIT)?.success()?;
        same_file(&plain, &desk.path("back.img"))?;
        desk.decrypt(&name, "head")?;
        same_range(&plain, 0, &desk.path(&name), 0, IMAGE).with_context(|| name.clone())?;
        fs::remove_file(desk.path("head"))?;
    }
    Ok(())
}

/// Two initiators at once, which a server with two threads serves on both.
fn two_sessions(context: &Context) -> Result<()> {
    const HALF: u64 = 32 << 20;
    let desk = Desk::new(context)?;
    desk.random("plain.img", 2 * HALF)?;
    desk.format("x.img", 2 * HALF, "")?;
    let target = serve(&desk, "x.img", &[])?;
    let url = target.url(0).to_string();
    for line in ["copy plain.img URL --force --allow in-use", "compare plain.img URL"] {
        let lines = [0, HALF].map(|offset| {
            let line = line.replace("URL", &url);
            format!("{line} --src-offset {offset} --dst-offset {offset} --size {HALF}")
        });
        let started: Vec<_> = lines.iter().map(|line| Running::start(&mut desk.command(line))).collect();
        for running in started {
            running?.finish(LIMIT)?.success()?;
        }
    }
    target.terminate(LIMIT)?.success()?;
    desk.ours(&format!("compare plain.img x.img,{VOLUME}")).map(drop)
}

/// A long copy is killed and resumed. Into a volume that was formatted anew in between nothing is resumed.
fn resumed(context: &Context, anew: bool) -> Result<()> {
    /// Longer than the copies that keep no journal, mostly a hole.
    const LONG: u64 = 1100 << 20;
    const DATA: u64 = 96 << 20;
    let desk = Desk::new(context)?;
    let plain = desk.random("plain.img", DATA)?;
    fs::OpenOptions::new().write(true).open(&plain)?.set_len(LONG)?;
    desk.format("x.img", LONG, "")?;
    let line = format!("copy plain.img x.img,{VOLUME}");
    let mut command = desk.command(&format!("{line} --rate 40MB/s"));
    let mut copy = Running::start(command.env("HIKYAKU_CLAIM_MS", "50"))?;
    let written = || Ok(fs::metadata(desk.path("x.img"))?.blocks() * 512 > (24 << 20) + 1);
    wait_until(Duration::from_secs(20), written).context("the copy begins")?;
    std::thread::sleep(Duration::from_millis(300));
    copy.alive()?;
    copy.signal(libc::SIGKILL)?;
    copy.finish(LIMIT)?;
    let listed = desk.ours("copy --list --json")?.json()?;
    ensure!(listed["copies"].as_array().is_some_and(|copies| copies.len() == 1), "{listed}");
    if anew {
        let costs = super::desk::CHEAP;
        desk.ours(&format!("volume format x.img --type luks2 --password-file pw --force {costs}"))?;
        desk.try_ours(&format!("{line} --resume"))?.expect(6)?;
    }
    let output = desk.ours(&line)?;
    let report = desk.ours(&format!("compare plain.img x.img,{VOLUME}"));
    ensure!(output.text().contains("resum") != anew, "anew: {anew}, and it said: {}", output.text());
    report.map(drop)
}

/// Nothing that opens the volume is in arguments, logs, JSON or a core.
fn secrets(context: &Context) -> Result<()> {
    let desk = Desk::new(context)?;
    let plain = desk.random("plain.img", BYTES)?;
    let costs = super::desk::CHEAP;
    let mut said = String::new();
    let volume_key = {
        desk.format("x.img", BYTES, "")?;
        desk.cryptsetup("luksDump --dump-volume-key --key-file pw --volume-key-file mk x.img")?;
        fs::read(desk.path("mk"))?
    };
    let lines = [
        format!("volume key add x.img --password-file pw --new-password-file new {costs} --json"),
        format!("copy plain.img x.img,log,{VOLUME},log --json"),
        format!("info x.img,{VOLUME} --json"),
        "info x.img,volume=luks2,password-file=wrong --json".to_owned(),
        format!("volume passwd x.img --password-file new --new-password-file new {costs}"),
        format!("torture x.img,{VOLUME} --destroy --operations 100 --json"),
    ];
    for line in &lines {
        said += &run(desk.command(line).env("HIKYAKU_LOG", "trace"), LIMIT)?.text();
    }
    ensure!(said.contains("verb"), "the log is missing:\n{said}");
    let target = serve(&desk, "x.img", &[])?;
    for name in ["cmdline", "environ"] {
        said += &String::from_utf8_lossy(&fs::read(format!("/proc/{}/{name}", target.pid()))?);
    }
    let limits = fs::read_to_string(format!("/proc/{}/limits", target.pid()))?;
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).context("no limit")?;
    ensure!(core.split_whitespace().filter(|word| *word == "0").count() == 2, "{core}");
    let hex: String = volume_key.iter().map(|byte| format!("{byte:02x}")).collect();
    let list = volume_key[..8].iter().map(u8::to_string).collect::<Vec<_>>().join(", ");
    let forms = ["correct horse battery staple", "Tr0ub4dor", &hex[..32], &hex[64..96], &list];
    let shown = forms.iter().find(|form| said.to_lowercase().contains(&form.to_lowercase()));
    ensure!(shown.is_none(), "shown: {shown:?}");
    Plaintext::of(&plain)?.absent("the log", said.as_bytes())
}

pub(super) fn examine(context: &Context, cases: &mut Cases) {
    cases.check("file-in-and-out", || file(&Desk::new(context)?, 4096));
    cases.check("file-in-and-out-portable", || file(&Desk::new(context)?.portable(), 512));
    cases.check("parts-at-other-places", || parts(context));
    cases.check("holes-become-zeroes", || zeroes(context, "auto"));
    cases.check_some(FULL_ONLY, "zeroes-are-written", || zeroes(context, "off"));
    cases.check("lun-shows-no-plaintext", || lun(&Desk::new(context)?));
    cases.check_some(FULL_ONLY, "lun-shows-no-plaintext-portable", || lun(&Desk::new(context)?.portable()));
    cases.check("search-finds-plaintext", || search_finds(context));
    cases.check("served-to-qemu", || served(&Desk::new(context)?, 512));
    cases.check_some(FULL_ONLY, "served-to-qemu-4096", || served(&Desk::new(context)?, 4096));
    cases.check_some(FULL_ONLY, "served-to-qemu-portable", || served(&Desk::new(context)?.portable(), 512));
    cases.check_some(super::SLOW, "image-of-other-blocks", || other_blocks(context));
    cases.check("two-sessions", || two_sessions(context));
    cases.check("killed-and-resumed", || resumed(context, false));
    cases.check_some(FULL_ONLY, "formatted-anew-is-not-resumed", || resumed(context, true));
    cases.check("secrets-are-not-shown", || secrets(context));
}
