//! Volumes of type `auth` by the built program: copies on both back ends, power cuts on storage that tears blocks and on
//! storage that does not, changes by the provider, cryptsetup's view of the header.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};
use rand::RngExt as _;
use tempfile::TempDir;

use crate::files::random_file;
use crate::pdu::{Session, cdb10};
use crate::{Cases, Context, Output, Running, Server, program, run, scratch};

const LIMIT: Duration = Duration::from_secs(120);
const BYTES: u64 = 24 << 20;
const CIPHERS: [&str; 2] = ["aes256-gcm-siv", "aegis-256x4"];
/// What the storage keeps whole when power fails, in bytes.
const UNITS: [u64; 2] = [512, 4096];
const BLOCK: u64 = 4096;
/// Where the segment begins, behind the header.
const SEGMENT: u64 = 16 << 20;
/// Power cuts of each volume in a sample and in a full run.
const CUTS: usize = 10;
const CUTS_FULL: usize = 2500;

struct Place {
    dir: TempDir,
    cipher: &'static str,
    unit: u64,
    with_freshness: bool,
}

impl Place {
    fn new(context: &Context, cipher: &'static str, unit: u64) -> Result<Self> {
        Self::of(context, (cipher, unit), false)
    }

    fn of(context: &Context, (cipher, unit): (&'static str, u64), with_freshness: bool) -> Result<Self> {
        let dir = scratch()?;
        let place = Self { dir, cipher, unit, with_freshness };
        let mut file = OpenOptions::new();
        std::io::Write::write_all(
            &mut file.write(true).create_new(true).mode(0o600).open(place.pw())?,
            b"of a test\n",
        )?;
        place.format(context, "sealed.img")?;
        Ok(place)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn pw(&self) -> PathBuf {
        self.path("pw")
    }

    fn format(&self, context: &Context, name: &str) -> Result<()> {
        let place = format!("{},create,physical-block={}", self.path(name).display(), self.unit);
        let size = BYTES.to_string();
        let pw = self.pw().display().to_string();
        let words =
            ["volume", "format", &place, "--type", "auth", "--cipher", self.cipher, "--data-size", &size];
        let costs = ["--pbkdf", "pbkdf2", "--iter-time", "1", "--password-file", &pw];
        let fresh = self.path("fresh").display().to_string();
        let freshness: &[&str] = if self.with_freshness { &["--freshness", &fresh] } else { &[] };
        context.ours(&[&words[..], &costs, freshness].concat(), LIMIT)?.success().map(drop)
    }

    /// The endpoint of the volume, with these layers beneath it.
    fn sealed(&self, name: &str, beneath: &str) -> String {
        let (path, pw) = (self.path(name), self.pw());
        let fresh = self.path("fresh");
        let fresh =
            if self.with_freshness { format!(",freshness={}", fresh.display()) } else { String::new() };
        format!("{}{beneath},volume=auth,password-file={}{fresh}", path.display(), pw.display())
    }

    fn compare(&self, context: &Context, plain: &Path, sealed: &str) -> Result<Output> {
        context.ours(&["compare", &plain.display().to_string(), sealed], LIMIT)
    }
}

fn copies(context: &Context, cipher: &'static str, unit: u64) -> Result<()> {
    let place = Place::new(context, cipher, unit)?;
    let sealed = place.sealed("sealed.img", "");
    for (seed, backend, helpers) in [(1, "uring", "2"), (2, "portable", "1"), (3, "uring", "0")] {
        let plain = random_file(place.path(&format!("plain-{seed}")), BYTES, seed)?;
        let mut copy = context.command();
        copy.env("HIKYAKU_IO", backend).env("HIKYAKU_HELPERS", helpers);
        copy.args(["copy", &plain.display().to_string(), &sealed, "--verify", "--force"]);
        run(&mut copy, LIMIT)?.success()?;
        place.compare(context, &plain, &sealed)?.success()?;
    }
    // Through a server, whose initiator sees a plain LUN.
    let mut serve = context.command();
    serve.args(["serve", &sealed, "--listen", "127.0.0.1:0"]);
    let mut server = Server::start(&mut serve, 1)?;
    let plain = random_file(place.path("plain-4"), BYTES, 4)?;
    let words = ["copy", &plain.display().to_string(), &server.url.to_string(), "--verify", "--force"];
    context.ours(&words, LIMIT)?.success()?;
    server.running.signal(libc::SIGTERM)?;
    server.running.finish(LIMIT)?.success()?;
    ensure!(is_closed(&place.path("sealed.img"))?, "the server left the volume open");
    place.compare(context, &plain, &sealed)?.success()?;
    Ok(())
}

/// Whether the last to write the volume has closed it, by the superblock that counts.
fn is_closed(image: &Path) -> Result<bool> {
    let file = File::open(image)?;
    let mut copies = [[0; 512]; 2];
    for (at, copy) in (0..).zip(&mut copies) {
        file.read_exact_at(copy, SEGMENT + at * BLOCK)?;
    }
    let sequence = |copy: &&[u8; 512]| u64::from_le_bytes(copy[8..16].try_into().expect("8 bytes"));
    Ok(copies.iter().max_by_key(sequence).expect("two copies")[48] & 1 == 1)
}

/// The power fails in the middle of overlapping writes, discards and flushes; nothing that was flushed is lost.
fn cuts(context: &Context, cipher: &'static str, unit: u64, with_freshness: bool) -> Result<()> {
    let place = Place::of(context, (cipher, unit), with_freshness)?;
    let mut random = context.rng(&format!("auth/cuts/{cipher}/{unit}"));
    let journal = place.path("journal").display().to_string();
    let cuts = if with_freshness { CUTS / 2 } else { CUTS };
    for _ in 0..context.amount(cuts, CUTS_FULL) {
        let (after, seed) = (random.random_range(20..900), random.random::<u32>());
        let beneath = format!(",crash=after={after}:seed={seed}:unit={unit}");
        let what = format!("{cipher}, unit {unit}, after {after}, seed {seed}");
        let words = [
            "torture",
            &place.sealed("sealed.img", &beneath),
            "--destroy",
            "--size",
            "4M",
            "--operations",
            "20000",
            "--seed",
            &seed.to_string(),
            "--journal",
            &journal,
            "--cuts",
        ];
        let cut = context.ours(&words, LIMIT)?;
        ensure!(cut.code == Some(137), "{what}: the power did not fail: {}", cut.text());
        // The power may fail before the journal is begun.
        if Path::new(&journal).exists() {
            let words = ["torture", &place.sealed("sealed.img", ""), "--check", &journal, "--cuts"];
            let judged = context.ours(&words, LIMIT)?;
            ensure!(judged.code == Some(0), "{what}: {}", judged.text());
            std::fs::remove_file(&journal)?;
        }
    }
    Ok(())
}

fn flip(file: &File, at: u64) -> Result<()> {
    let mut byte = [0];
    file.read_exact_at(&mut byte, at)?;
    Ok(file.write_all_at(&[byte[0] ^ 0x10], at)?)
}

/// One bit anywhere, blocks exchanged, and data of another volume: an error that names the block, never other bytes.
fn changes_by_the_provider(context: &Context, cipher: &'static str, unit: u64) -> Result<()> {
    let place = Place::new(context, cipher, unit)?;
    place.format(context, "other.img")?;
    let plain = random_file(place.path("plain"), BYTES, 9)?;
    for name in ["sealed.img", "other.img"] {
        let sealed = place.sealed(name, "");
        context.ours(&["copy", &plain.display().to_string(), &sealed, "--force"], LIMIT)?.success()?;
    }
    let sealed = place.sealed("sealed.img", "");
    let image = std::fs::read(place.path("sealed.img"))?;
    let other = std::fs::read(place.path("other.img"))?;
    // Data ends the file.
    let data = image.len() as u64 - BYTES;
    let file = OpenOptions::new().read(true).write(true).open(place.path("sealed.img"))?;
    let restore = |from: u64, bytes: u64| -> Result<()> {
        Ok(file.write_all_at(&image[from as usize..(from + bytes) as usize], from)?)
    };
    let mut random = context.rng("auth/changes");
    for _ in 0..context.amount(6, 200) {
        let block = random.random_range(0..BYTES / BLOCK);
        let at = data + block * BLOCK + random.random_range(0..BLOCK);
        flip(&file, at)?;
        let said = format!("the block at byte {} does not verify", block * BLOCK);
        place.compare(context, &plain, &sealed)?.expect(1)?.says(&said)?;
        restore(data + block * BLOCK, BLOCK)?;
    }
    let (one, two) = (data + 10 * BLOCK, data + 11 * BLOCK);
    file.write_all_at(&image[two as usize..(two + BLOCK) as usize], one)?;
    place.compare(context, &plain, &sealed)?.expect(1)?.says("the block at byte 40960 does not verify")?;
    restore(one, BLOCK)?;
    // The same block of another volume, with its context and all else.
    let start = SEGMENT;
    file.write_all_at(&other[start as usize..], start)?;
    let refused = place.compare(context, &plain, &sealed)?;
    ensure!(matches!(refused.code, Some(1 | 6)), "another volume's blocks: {}", refused.text());
    restore(start, image.len() as u64 - start)?;
    // Contexts erased: a block that was written never becomes zeroes.
    file.write_all_at(&vec![0; (data - start - 64 * 1024) as usize], start + 12 * 1024)?;
    let refused = place.compare(context, &plain, &sealed)?;
    ensure!(matches!(refused.code, Some(1 | 6)), "contexts erased: {}", refused.text());
    restore(start, image.len() as u64 - start)?;
    place.compare(context, &plain, &sealed)?.success()?;
    Ok(())
}

/// INFORMATION of sense data, as SenseLength and sense lie in a response: in descriptor format of the first descriptor. `None`
/// without VALID.
fn information(data: &[u8]) -> Option<u64> {
    let sense = data.get(2..)?;
    match sense.first()? {
        0xf0 => Some(u32::from_be_bytes(sense.get(3..7)?.try_into().ok()?).into()),
        0x72 if sense.get(8..11)? == [0, 10, 0x80] => {
            Some(u64::from_be_bytes(sense.get(12..20)?.try_into().ok()?))
        }
        _ => None,
    }
}

/// Served as a LUN, a block that does not verify is a medium error, whose INFORMATION is the first LBA of the command that
/// lies in it (SBC-3 4.18.1).
fn a_failed_check_names_its_lba(context: &Context, block_bytes: u64) -> Result<()> {
    let place = Place::new(context, CIPHERS[0], 4096)?;
    let plain = random_file(place.path("plain"), BYTES, 14)?;
    let beneath = format!(",block-size={block_bytes}");
    let sealed = place.sealed("sealed.img", &beneath);
    let words = ["copy", &plain.display().to_string(), &sealed, "--force", "--allow", "sector-size"];
    context.ours(&words, LIMIT)?.success()?;
    let file = OpenOptions::new().read(true).write(true).open(place.path("sealed.img"))?;
    let data = file.metadata()?.len() - BYTES;
    let bad = [9, 13];
    for block in bad {
        flip(&file, data + block * BLOCK + 77)?;
    }
    let mut serve = context.command();
    serve.args(["serve", &sealed, "--listen", "127.0.0.1:0"]);
    let server = Server::start(&mut serve, 1)?;
    let url = server.url.clone();
    let mut session = Session::login(&url, "iqn.2026-11.org.example:tester", [0x80, 0, 0, 0, 0, 1])?;
    session.blocks(0)?;
    let per_block = (BLOCK / block_bytes) as u32;
    let first = 9 * per_block;
    let many = 16 * per_block as u16;
    let last = first + per_block - 1;
    let block = vec![1; block_bytes as usize];
    let read = |lba, blocks: u16| (cdb10(0x28, lba, blocks), usize::from(blocks) * block.len(), &[][..]);
    let mut commands = vec![
        ("read of many", read(0, many), [0x11, 0], first),
        ("read of the last", read(last, 1), [0x11, 0], last),
        ("read behind it", read(last + 1, many), [0x11, 0], 13 * per_block),
    ];
    if block_bytes < BLOCK {
        commands.push(("write of a part", (cdb10(0x2a, first + 2, 1), 0, &block), [0x0c, 0], first + 2));
    }
    for format in ["fixed", "descriptor"] {
        if format == "descriptor" {
            // MODE SELECT(6) of the Control page: D_SENSE.
            let page = session.good(0, &[0x1a, 0x08, 0x0a, 0, 16, 0], 16, &[])?;
            let mut list = [&[0; 4][..], &page[4..16]].concat();
            list[6] |= 0x04;
            session.good(0, &[0x15, 0x10, 0, 0, 16, 0], 0, &list)?;
        }
        for (what, (cdb, bytes_in, out), [asc, ascq], lba) in &commands {
            let answer = session.scsi(0, cdb, *bytes_in, out)?;
            let sense = answer.sense.get(2..).unwrap_or_default();
            let is_it = match format {
                "fixed" => answer.sense_codes() == [3, *asc, *ascq],
                _ => sense.starts_with(&[0x72, 3, *asc, *ascq]),
            };
            ensure!(answer.status == 2 && is_it, "{what}: status {}, {sense:02x?}", answer.status);
            let found = information(&answer.sense);
            ensure!(found == Some((*lba).into()), "{what}: INFORMATION {found:?}, not {lba}: {sense:02x?}");
        }
    }
    session.logout()?;
    // Our initiator names it, and so does one that serves the LUN on.
    let said = format!("at LBA {first}");
    place.compare(context, &plain, &url.to_string())?.expect(1)?.says(&said)?;
    let mut serve = context.command();
    serve.args(["serve", &url.to_string(), "--listen", "127.0.0.1:0"]);
    let gateway = Server::start(&mut serve, 1)?;
    place.compare(context, &plain, &gateway.url.to_string())?.expect(1)?.says(&said)?;
    Ok(())
}

/// The storage becomes larger, then the volume; what it held stays, and what is new reads as zeroes.
fn grows(context: &Context) -> Result<()> {
    let place = Place::of(context, (CIPHERS[0], 4096), true)?;
    let (pw, fresh) = (place.pw().display().to_string(), place.path("fresh"));
    let image = place.path("sealed.img");
    for path in [&image, &fresh] {
        std::fs::remove_file(path)?;
    }
    let (made, fresh) = (format!("{},create", image.display()), fresh.display().to_string());
    let words = ["--data-size", "8M", "--capacity", "24M", "--type", "auth", "--password-file", &pw];
    let costs = ["--pbkdf", "pbkdf2", "--iter-time", "1", "--freshness", &fresh];
    context.ours(&[&["volume", "format", &made], &words[..], &costs].concat(), LIMIT)?.success()?;
    let grow = |more: &[&str]| {
        let path = image.display().to_string();
        let words = ["volume", "grow", &path, "--password-file", &pw, "--freshness", &fresh];
        context.ours(&[&words[..], more].concat(), LIMIT)
    };
    let sealed = place.sealed("sealed.img", "");
    let plain = random_file(place.path("plain"), 8 << 20, 31)?;
    context.ours(&["copy", &plain.display().to_string(), &sealed, "--force"], LIMIT)?.success()?;
    let said = grow(&[])?.success()?.stdout;
    ensure!(said.contains("8 MiB, as before"), "{said}");
    grow(&["--size", "12M"])?.expect(6)?.says("the storage has room for")?;
    let file = OpenOptions::new().read(true).write(true).open(&image)?;
    file.set_len(file.metadata()?.len() + (64 << 20))?;
    let small = std::fs::read(&image)?;
    grow(&["--size", "25M"])?.expect(6)?.says("it was made to grow to 24 MiB at most")?;
    grow(&["--size", "4M"])?.expect(2)?;
    grow(&["--size", "12M"])?.success()?;
    let grown = grow(&[])?.success()?.says("made for")?;
    ensure!(grown.stdout.contains("24 MiB; it had 12 MiB"), "{}", grown.text());
    let again = grow(&["--json"])?.success()?.json()?;
    ensure!(again["is_at_capacity"] == true && again["capacity_bytes"] == 24 << 20, "{again}");
    let info = ["volume", "info", &image.display().to_string(), "--json"];
    let info = context.ours(&info, LIMIT)?.success()?.json()?;
    ensure!(info["size_bytes"] == 24 << 20 && info["capacity_bytes"] == 24 << 20, "{info}");
    let mut expected = std::fs::read(&plain)?;
    expected.resize(24 << 20, 0);
    let expected_file = place.path("expected");
    std::fs::write(&expected_file, &expected)?;
    place.compare(context, &expected_file, &sealed)?.success()?;
    let plain = random_file(place.path("larger"), 24 << 20, 32)?;
    context
        .ours(&["copy", &plain.display().to_string(), &sealed, "--force", "--verify"], LIMIT)?
        .success()?;
    std::fs::write(&image, small)?;
    place.compare(context, &plain, &sealed)?.expect(6)?.says("an older state of the volume")?;
    Ok(())
}

/// The provider returns the volume of an earlier session, or parts of it; then the file is not the volume's.
fn older_states(context: &Context, cipher: &'static str, unit: u64) -> Result<()> {
    let place = Place::of(context, (cipher, unit), true)?;
    let (sealed, image, fresh) =
        (place.sealed("sealed.img", ""), place.path("sealed.img"), place.path("fresh"));
    let mut states = Vec::new();
    let mut plain = PathBuf::new();
    for (seed, backend) in [(21, "uring"), (22, "portable")] {
        plain = random_file(place.path(&format!("plain-{seed}")), BYTES, seed)?;
        let mut copy = context.command();
        copy.env("HIKYAKU_IO", backend);
        copy.args(["copy", &plain.display().to_string(), &sealed, "--verify", "--force"]);
        run(&mut copy, LIMIT)?.success()?;
        states.push((std::fs::read(&image)?, std::fs::read(&fresh)?));
    }
    let [(old, old_fresh), (now, now_fresh)] = &states[..] else { unreachable!("two states") };
    let compare = || place.compare(context, &plain, &sealed);
    compare()?.success()?;
    std::fs::write(&image, old)?;
    let new_volume = "open it without the option freshness=, and copy it into a new volume";
    compare()?.expect(6)?.says("an older state of the volume")?.says(new_volume)?;
    // Behind superblock and map: contexts and data.
    let (map, data) = (SEGMENT as usize + 8192, now.len() - BYTES as usize);
    std::fs::write(&image, [&now[..map + 4096], &old[map + 4096..]].concat())?;
    compare()?.expect(1)?.says("an older state of the block at byte 0")?.says(new_volume)?;
    std::fs::write(&image, [&now[..data], &old[data..]].concat())?;
    compare()?.expect(1)?.says("the block at byte 0 does not verify")?;
    std::fs::write(&image, now)?;
    compare()?.success()?;
    for (file, said) in [(&old_fresh[..], "an older copy"), (&now_fresh[..9000], "shorter")] {
        std::fs::write(&fresh, file)?;
        compare()?.expect(6)?.says(said)?;
    }
    std::fs::remove_file(&fresh)?;
    compare()?.expect(1)?.says("opening the freshness file")?.says("check its name")?;
    std::fs::write(&fresh, now_fresh)?;
    compare()?.success()?;
    // Written without the file.
    let without = sealed.split(",freshness=").next().expect("a first part");
    context.ours(&["copy", &plain.display().to_string(), without, "--force"], LIMIT)?.success()?;
    compare()?.expect(6)?.says("written without this freshness file")?.says(new_volume)?;
    let luks2 = sealed.replace("volume=auth", "volume=luks2");
    context.ours(&["info", &luks2], LIMIT)?.expect(2)?.says("freshness")?;
    Ok(())
}

/// Re-encryption that is killed, and whose power fails, at points that the seed chooses: each time the volume goes on, opens only
/// when it is complete, and has every byte.
fn reencryption_is_cut(context: &Context, cipher: &'static str, unit: u64) -> Result<()> {
    let place = Place::new(context, cipher, unit)?;
    let mut random = context.rng(&format!("auth/reencryption/{cipher}/{unit}"));
    let (image, pw) = (place.path("sealed.img"), place.pw().display().to_string());
    let sealed = place.sealed("sealed.img", "");
    let plain = random_file(place.path("plain"), BYTES, 41)?;
    context.ours(&["copy", &plain.display().to_string(), &sealed, "--force"], LIMIT)?.success()?;
    let reencrypt = |beneath: &str| {
        let mut command = context.command();
        command.args(["volume", "reencrypt", &format!("{}{beneath}", image.display())]);
        command.args(["--password-file", &pw, "--pbkdf", "pbkdf2", "--iter-time", "1"]);
        command
    };
    let (mut cuts, mut completed) = (0, 0);
    for round in 0..context.amount(8, 400) {
        let what = if round % 2 == 0 {
            let mut running = Running::start(&mut reencrypt(""))?;
            let after = Duration::from_millis(random.random_range(1..500));
            std::thread::sleep(after);
            running.kill();
            format!("round {round}, killed after {after:?}")
        } else {
            let (after, seed) = (random.random_range(1..90), random.random::<u32>());
            let output =
                run(&mut reencrypt(&format!(",crash=after={after}:seed={seed}:unit={unit}")), LIMIT)?;
            let what = format!("round {round}, after {after}, seed {seed}");
            ensure!(matches!(output.code, Some(0 | 137)), "{what}: {}", output.text());
            what
        };
        let info = ["volume", "info", &image.display().to_string(), "--json"];
        let is_under_way = context.ours(&info, LIMIT)?.success()?.json()?["in_reencryption"] == true;
        if is_under_way {
            cuts += 1;
            let refused = place.compare(context, &plain, &sealed)?.expect(6)?;
            refused.says("`hikyaku volume reencrypt` completes it")?;
            // Some of the cuts are followed by another one.
            if random.random_range(0..3) == 0 {
                continue;
            }
            run(&mut reencrypt(""), LIMIT)?.success()?;
        }
        completed += 1;
        let compared = place.compare(context, &plain, &sealed)?;
        ensure!(compared.code == Some(0), "{what}: {}", compared.text());
    }
    ensure!(cuts > 0 && completed > 0, "{cuts} cuts, {completed} volumes compared");
    Ok(())
}

/// What is refused before and during a re-encryption, and a block that does not verify.
fn reencryption_refuses(context: &Context) -> Result<()> {
    let place = Place::new(context, CIPHERS[1], 512)?;
    let (image, pw) = (place.path("sealed.img").display().to_string(), place.pw().display().to_string());
    let other = place.path("other");
    crate::target::private_file(other.clone(), "another one")?;
    let other = other.display().to_string();
    let costs = ["--pbkdf", "pbkdf2", "--iter-time", "1"];
    let volume = |words: &[&str]| context.ours(&[&["volume"], words].concat(), LIMIT);
    let reencrypt = |image: &str, pw: &str, more: &[&str]| {
        volume(&[&["reencrypt", image, "--password-file", pw], &costs[..], more].concat())
    };
    let luks2 = place.path("luks2.img").display().to_string();
    let made = format!("{luks2},create");
    let words = ["format", &made, "--type", "luks2", "--data-size", "1M", "--password-file", &pw];
    volume(&[&words[..], &costs].concat())?.success()?;
    reencrypt(&luks2, &pw, &[])?.expect(6)?.says("`cryptsetup reencrypt`")?;
    reencrypt(&image, &other, &[])?.expect(4)?;
    let sealed = place.sealed("sealed.img", "");
    let plain = random_file(place.path("plain"), BYTES, 42)?;
    context.ours(&["copy", &plain.display().to_string(), &sealed, "--force"], LIMIT)?.success()?;
    let add = ["key", "add", &image, "--password-file", &pw, "--new-password-file", &other];
    volume(&[&add[..], &costs].concat())?.success()?;
    let backup = place.path("backup").display().to_string();
    volume(&["header", "backup", &image, &backup])?.success()?;
    reencrypt(&image, &pw, &[])?
        .expect(6)?
        .says("keyslot 1 has another passphrase")?
        .says("--remove-keyslots")?;
    place.compare(context, &plain, &sealed)?.success()?;
    // The second block is another one: the volume stays as it is.
    let file = OpenOptions::new().read(true).write(true).open(&image)?;
    let data = file.metadata()?.len() - BYTES;
    flip(&file, data + BLOCK)?;
    let before = std::fs::read(&image)?;
    let bad = reencrypt(&image, &pw, &["--remove-keyslots"])?.expect(1)?;
    bad.says("the block at byte 4096 does not verify")?.says("the volume is as before")?;
    ensure!(std::fs::read(&image)? == before, "a re-encryption that does not begin wrote");
    flip(&file, data + BLOCK)?;
    // Two behind the first part: nothing around them moves until they are returned, or given up.
    for block in [1000, 1003] {
        flip(&file, data + block * BLOCK)?;
    }
    let bad = reencrypt(&image, &pw, &["--remove-keyslots"])?.expect(1)?;
    bad.says("2 blocks do not verify in the part examined, at bytes 4096000, 4108288")?
        .says("until it is complete the volume does not open")?
        .says("--force")?;
    place.compare(context, &plain, &sealed)?.expect(6)?.says("`hikyaku volume reencrypt`")?;
    for words in [
        &add[..],
        &["passwd", &image, "--password-file", &pw, "--new-password-file", &other],
        &["key", "remove", &image, "--slot", "1"],
        &["grow", &image, "--password-file", &pw],
        &["header", "restore", &image, &backup],
    ] {
        volume(words)?.expect(6)?.says("in re-encryption")?;
    }
    reencrypt(&image, &other, &[])?.expect(4)?.says("the passphrase opens the old key only")?;
    let said = volume(&["info", &image])?.success()?.stdout;
    ensure!(said.contains("7 % done") && said.matches("will be removed").count() == 2, "{said}");
    let given_up = std::fs::read(&image)?;
    reencrypt(&image, &pw, &["--force"])?
        .expect(7)?
        .says("8 KiB did not verify and were given up: they are errors until they are written again")?
        .says("given up: bytes 4096000 to 4100095")?
        .says("given up: bytes 4108288 to 4112383")?;
    place.compare(context, &plain, &sealed)?.expect(1)?.says("the block at byte 4096000 does not verify")?;
    std::fs::write(&image, &given_up)?;
    for block in [1000, 1003] {
        flip(&file, data + block * BLOCK)?;
    }
    // The header is lost and comes back with both keys; its restoration over itself needs no force.
    let both = place.path("both").display().to_string();
    volume(&["header", "backup", &image, &both])?.success()?;
    volume(&["header", "restore", &image, &both])?.success()?;
    file.write_all_at(&vec![0; SEGMENT as usize], 0)?;
    volume(&["header", "restore", &image, &both])?.expect(6)?;
    volume(&["header", "restore", &image, &both, "--force"])?.success()?;
    let said = reencrypt(&image, &pw, &[])?.success()?.stdout;
    ensure!(said.contains("24 MiB re-encrypted") && said.contains("removed: keyslot 1"), "{said}");
    place.compare(context, &plain, &sealed)?.success()?;
    let removed = sealed.replace(&pw, &other);
    context.ours(&["info", &removed], LIMIT)?.expect(4)?;
    // The old header is no use for what is there now.
    volume(&["header", "restore", &image, &backup])?.expect(6)?.says("it has another key")?;
    place.compare(context, &plain, &sealed)?.success()?;
    volume(&["header", "restore", &image, &backup, "--force"])?.success()?;
    place
        .compare(context, &plain, &sealed)?
        .expect(6)?
        .says("does not verify")?
        .says("before a re-encryption")?;
    // A header with both keys is complete again by the same command.
    volume(&["header", "restore", &image, &both])?.success()?;
    reencrypt(&image, &pw, &["--remove-keyslots"])?.success()?;
    place.compare(context, &plain, &sealed)?.success()?;
    Ok(())
}

/// The new key gets a passphrase of its own: an interrupted re-encryption goes on with both passphrases only, and the state from
/// before it does not open with the new one.
fn reencryption_takes_another_passphrase(context: &Context) -> Result<()> {
    let place = Place::new(context, CIPHERS[0], 512)?;
    let (image, sealed) = (place.path("sealed.img"), place.sealed("sealed.img", ""));
    let plain = random_file(place.path("plain"), BYTES, 43)?;
    context.ours(&["copy", &plain.display().to_string(), &sealed, "--force"], LIMIT)?.success()?;
    let before = std::fs::read(&image)?;
    let pw = place.pw().display().to_string();
    let [next, third] = ["next", "third"].map(|name| place.path(name));
    crate::target::private_file(next.clone(), "another one")?;
    crate::target::private_file(third.clone(), "a third one")?;
    let reencrypt = |beneath: &str, new: &[&Path]| {
        let endpoint = format!("{}{beneath}", image.display());
        let mut command = context.command();
        command.args(["volume", "reencrypt", &endpoint, "--password-file", &pw]);
        new.iter().for_each(|new| {
            command.arg("--new-password-file").arg(new);
        });
        run(&mut command, LIMIT)
    };
    let cut = reencrypt(",crash=after=40:seed=1:unit=512", &[&next])?;
    ensure!(cut.code == Some(137), "the power did not fail: {}", cut.text());
    reencrypt("", &[])?.expect(4)?.says("the passphrase opens the old key only")?;
    reencrypt("", &[&third])?.expect(4)?.says("the new passphrase does not open the new key")?;
    reencrypt("", &[&next])?.success()?;
    let by_next = sealed.replace(&pw, &next.display().to_string());
    place.compare(context, &plain, &by_next)?.success()?;
    context.ours(&["info", &sealed], LIMIT)?.expect(4)?;
    std::fs::write(&image, before)?;
    context.ours(&["info", &by_next], LIMIT)?.expect(4)?;
    Ok(())
}

fn cryptsetup_sees_the_header(context: &Context) -> Result<()> {
    let place = Place::new(context, CIPHERS[0], 4096)?;
    let secret = place.path("secret");
    std::fs::write(&secret, "of a test")?;
    let cryptsetup = |words: &[&str]| -> Result<Output> {
        let mut command = program("cryptsetup")?;
        command.args(["--disable-locks", "-q"]).args(words).arg(place.path("sealed.img"));
        run(command.arg("--key-file").arg(&secret), LIMIT)
    };
    let dump = cryptsetup(&["luksDump"])?.success()?.stdout;
    ensure!(dump.contains("0: hikyaku-auth\n") && dump.contains("hikyaku-auth-v1"), "{dump}");
    cryptsetup(&["open", "--test-passphrase"])?.success()?;
    let refused = cryptsetup(&["luksAddKey", "--new-keyfile", &secret.display().to_string()])?;
    ensure!(refused.code != Some(0), "cryptsetup changed it: {}", refused.text());
    let luks2 = place.sealed("sealed.img", "").replace("volume=auth", "volume=luks2");
    context.ours(&["info", &luks2], LIMIT)?.expect(6)?.says("volume=auth")?;
    Ok(())
}

/// Storage in plaintext, served as LUKS2: whoever opens that volume reads and writes the plaintext.
fn a_view_is_the_volume_of_its_storage(context: &Context) -> Result<()> {
    let place = Place::new(context, CIPHERS[0], 4096)?;
    let (header, pw) = (place.path("header"), place.pw().display().to_string());
    let made = format!("{},create", header.display());
    let words = ["volume", "format", &made, "--type", "luks2", "--data-size", "1M", "--sector-size", "4096"];
    let costs = ["--pbkdf", "pbkdf2", "--iter-time", "1", "--password-file", &pw];
    context.ours(&[&words[..], &costs].concat(), LIMIT)?.success()?;
    let plain = random_file(place.path("plain"), BYTES, 11)?;
    let source = random_file(place.path("source"), BYTES, 12)?;
    let view = format!(
        "{},block-size=4096,view=luks2,header={},password-file={pw}",
        plain.display(),
        header.display()
    );
    let mut serve = context.command();
    serve.args(["serve", &view, "--listen", "127.0.0.1:0"]);
    let mut server = Server::start(&mut serve, 1)?;
    let volume = format!("{},volume=luks2,password-file={pw}", server.url);
    place.compare(context, &plain, &volume)?.success()?;
    let words =
        ["copy", &source.display().to_string(), &volume, "--verify", "--force", "--allow", "sector-size"];
    context.ours(&words, LIMIT)?.success()?;
    // The header is not the initiator's to write.
    let over = ["copy", "pattern:1M", &server.url.to_string(), "--force", "--allow", "sector-size"];
    context.ours(&over, LIMIT)?.expect(1)?;
    server.running.signal(libc::SIGTERM)?;
    server.running.finish(LIMIT)?.success()?;
    ensure!(std::fs::read(&plain)? == std::fs::read(&source)?, "the storage has other bytes than the volume");
    Ok(())
}

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    for cipher in CIPHERS {
        for unit in UNITS {
            cases.check_some(("copies", 2), &format!("copies-{cipher}-{unit}"), || {
                copies(context, cipher, unit)
            });
            cases.check(&format!("cuts-{cipher}-{unit}"), || cuts(context, cipher, unit, false));
            cases.check_some(("changes", 1), &format!("changes-{cipher}-{unit}"), || {
                changes_by_the_provider(context, cipher, unit)
            });
        }
    }
    for block_bytes in [512, 4096] {
        let name = format!("a-failed-check-names-its-lba-{block_bytes}");
        cases.check(&name, || a_failed_check_names_its_lba(context, block_bytes));
    }
    for (cipher, unit) in CIPHERS.into_iter().zip(UNITS) {
        cases.check(&format!("cuts-freshness-{cipher}-{unit}"), || cuts(context, cipher, unit, true));
        cases.check(&format!("older-states-{cipher}-{unit}"), || older_states(context, cipher, unit));
    }
    for (cipher, unit) in CIPHERS.into_iter().zip(UNITS) {
        let name = format!("reencryption-is-cut-{cipher}-{unit}");
        cases.check(&name, || reencryption_is_cut(context, cipher, unit));
    }
    cases.check("reencryption-refuses", || reencryption_refuses(context));
    cases.check("reencryption-takes-another-passphrase", || reencryption_takes_another_passphrase(context));
    cases.check("grows", || grows(context));
    cases.check("cryptsetup-sees-the-header", || cryptsetup_sees_the_header(context));
    cases.check("a-view-is-the-volume-of-its-storage", || a_view_is_the_volume_of_its_storage(context));
    Ok(())
}
