//! Headers that both programs change in turn: key slots, backups, damaged copies, and what this program does not know.

use std::fs;
use std::os::unix::fs::FileExt;

use anyhow::{Result, ensure};

use super::desk::{BYTES, CHEAP, COPY, Desk, HEADER_BYTES, LIMIT, VOLUME};
use super::header::COPIES;
use crate::family::FULL_ONLY;
use crate::files::{same_file, same_range};
use crate::target::private_file;
use crate::{Cases, Context, program, run};

/// Options of cryptsetup's changes.
const THEIRS: &str = "--pbkdf pbkdf2 --pbkdf-force-iterations 1000";
/// Key slots of a header.
const SLOTS_MAX: usize = 32;

/// Passphrases come and go by both programs; the data stays.
fn changes(context: &Context, is_theirs: bool) -> Result<()> {
    let desk = Desk::new(context)?;
    let plain = desk.random("plain.img", BYTES)?;
    if is_theirs {
        desk.format_theirs("x.img", BYTES, "")?;
    } else {
        desk.format("x.img", BYTES, "")?;
    }
    desk.ours(&format!("{COPY} plain.img x.img,{VOLUME}"))?;
    desk.ours(&format!("volume key add x.img --password-file pw --new-key-file new {CHEAP}"))?;
    desk.opens_with("x.img", &["pw", "new"])?;
    desk.cryptsetup("luksKillSlot --key-file new x.img 0")?;
    desk.opens_with("x.img", &["new"])?;
    desk.cryptsetup(&format!("luksAddKey --key-file new {THEIRS} x.img pw"))?;
    desk.opens_with("x.img", &["pw", "new"])?;
    desk.ours("volume key remove x.img --password-file new")?;
    desk.opens_with("x.img", &["pw"])?;
    desk.cryptsetup(&format!("luksChangeKey --key-file pw {THEIRS} x.img new"))?;
    desk.opens_with("x.img", &["new"])?;
    let argon2 = "--pbkdf argon2id --pbkdf-memory 64K --iter-time 1";
    desk.ours(&format!("volume passwd x.img --key-file new --new-password-file pw {argon2}"))?;
    desk.opens_with("x.img", &["pw"])?;
    let info = desk.info("x.img")?;
    let is_alone = info["slots"].as_array().is_some_and(|slots| slots.len() == 1);
    ensure!(is_alone && info["slots"][0]["kdf"] == "argon2id", "{info}");
    desk.try_ours("volume key remove x.img --slot 7")?.expect(2)?.says("volume info")?;
    desk.try_ours("volume key remove x.img --password-file pw")?.expect(6)?.says("--force")?;
    desk.decrypt("x.img", "head")?;
    same_range(&plain, 0, &desk.path("x.img"), 0, BYTES)
}

/// A backup by either program is the same bytes, and brings back the passphrases of its time.
fn backups(context: &Context, is_detached: bool) -> Result<()> {
    let desk = Desk::new(context)?;
    let (header, options) = if is_detached { ("head", "--header head") } else { ("x.img", "") };
    desk.format("x.img", BYTES, options)?;
    desk.ours(&format!("volume header backup x.img {options} ours"))?;
    desk.cryptsetup(&format!("luksHeaderBackup --header-backup-file theirs {header}"))?;
    same_file(&desk.path("ours"), &desk.path("theirs"))?;
    let passwd = format!("volume passwd x.img {options} --password-file pw --new-password-file new {CHEAP}");
    let opens = |secret: &str| desk.opens(header, secret);
    desk.ours(&passwd)?;
    ensure!(opens("new")? && !opens("pw")?, "the passphrase was not changed");
    desk.cryptsetup(&format!("luksHeaderRestore --header-backup-file ours {header}"))?;
    ensure!(opens("pw")? && !opens("new")?, "cryptsetup restored our backup");
    desk.ours(&passwd)?;
    desk.ours(&format!("volume header restore x.img {options} theirs"))?;
    ensure!(opens("pw")? && !opens("new")?, "we restored cryptsetup's backup");
    // Where nothing of the header is left, or another volume is, only with --force.
    let file = fs::OpenOptions::new().write(true).open(desk.path(header))?;
    file.write_all_at(&vec![0; HEADER_BYTES as usize], 0)?;
    let restore = format!("volume header restore x.img {options} ours");
    desk.try_ours(&restore)?.expect(6)?.says("--force")?;
    desk.ours(&format!("{restore} --force"))?;
    ensure!(opens("pw")?, "restored over zeroes");
    desk.format("other.img", BYTES, "")?;
    desk.ours("volume header backup other.img other")?;
    let other = format!("volume header restore x.img {options} other");
    desk.try_ours(&other)?.expect(6)?.says("--force")?;
    ensure!(opens("pw")?, "a refused restore wrote");
    // A backup is made once: its file is not overwritten.
    desk.try_ours(&format!("volume header backup x.img {options} ours"))?.expect(6).map(drop)
}

/// One copy of the header is lost: the other opens the volume, and the next change repairs the lost one.
fn damaged(context: &Context, copy: usize) -> Result<()> {
    let desk = Desk::new(context)?;
    desk.random("plain.img", BYTES)?;
    desk.format("x.img", BYTES, "")?;
    desk.ours(&format!("{COPY} plain.img x.img,{VOLUME}"))?;
    let file = fs::OpenOptions::new().read(true).write(true).open(desk.path("x.img"))?;
    let read = |copy: usize| -> Result<Vec<u8>> {
        let mut bytes = vec![0; 4096];
        file.read_exact_at(&mut bytes, COPIES[copy])?;
        Ok(bytes)
    };
    file.write_all_at(&[0; 4096], COPIES[copy])?;
    let said = ["secondary_only", "primary_only"][copy];
    ensure!(desk.info("x.img")?["copies"] == said, "{}", desk.info("x.img")?);
    for line in [format!("compare plain.img x.img,{VOLUME}"), "volume info x.img".to_owned()] {
        let said = ["the primary copy of the volume's header is damaged", "the secondary copy"][copy];
        let stderr = desk.ours(&line)?.stderr;
        ensure!(stderr.matches(said).count() == 1 && stderr.contains("volume passwd"), "{line}: {stderr}");
    }
    ensure!(read(copy)? == [0; 4096], "a reader wrote");
    desk.ours(&format!("volume passwd x.img --password-file pw --new-password-file new {CHEAP}"))?;
    ensure!(desk.info("x.img")?["copies"] == "both", "not repaired: {}", desk.info("x.img")?);
    file.write_all_at(&[0; 4096], COPIES[1 - copy])?;
    ensure!(desk.opens("x.img", "new")?, "the repaired copy does not open");
    // Now cryptsetup repairs, and this program reads.
    file.write_all_at(&[0; 4096], COPIES[1 - copy])?;
    desk.cryptsetup("repair x.img")?;
    ensure!(desk.info("x.img")?["copies"] == "both", "cryptsetup repair: {}", desk.info("x.img")?);
    desk.ours("compare plain.img x.img,volume=luks2,password-file=new").map(drop)
}

/// Tokens, slots for other keys and priorities are cryptsetup's; they stay and count as there.
fn foreign_objects(context: &Context) -> Result<()> {
    let desk = Desk::new(context)?;
    desk.format("x.img", BYTES, "")?;
    fs::write(desk.path("token"), r#"{"type":"example","keyslots":["0"],"text":"\u00fcber","number":"7"}"#)?;
    desk.cryptsetup("token import --json-file token x.img")?;
    desk.cryptsetup(&format!("luksAddKey --unbound --key-size 256 --key-file pw {THEIRS} x.img wrong"))?;
    let export = "token export --token-id 0 x.img";
    let before = desk.cryptsetup(export)?.stdout;
    desk.opens_with("x.img", &["pw"])?;
    desk.ours(&format!("volume key add x.img --password-file pw --new-password-file new {CHEAP}"))?;
    ensure!(desk.cryptsetup(export)?.stdout == before, "the token was changed");
    desk.opens_with("x.img", &["pw", "new"])?;
    desk.cryptsetup("config --priority ignore --key-slot 0 x.img")?;
    desk.opens_with("x.img", &["new"])?;
    let info = desk.info("x.img")?;
    ensure!(info["tokens"][0]["type"] == "example", "{info}");
    ensure!(info["slots"][0]["is_ignored"] == true && info["slots"][1]["opens_the_data"] == false, "{info}");
    Ok(())
}

/// A password file is what is typed: up to the first newline. A key file is all of its bytes.
fn typed(context: &Context) -> Result<()> {
    let desk = Desk::new(context)?;
    private_file(desk.path("line"), "typed words\nand a note below\n")?;
    desk.ours(&format!(
        "volume format x.img,create --data-size 1M --type luks2 --password-file line {CHEAP} --label vault"
    ))?;
    let mut typed = program("sh")?;
    let typed = typed.args(["-c", "cryptsetup open --test-passphrase x.img < line"]);
    run(typed.current_dir(desk.path("")), LIMIT)?.success()?;
    ensure!(!desk.opens("x.img", "line")?, "cryptsetup took the whole file");
    desk.ours("info x.img,volume=luks2,password-file=line")?;
    desk.try_ours("info x.img,volume=luks2,key-file=line")?.expect(4)?;
    // The bytes of a key file are none of a text's.
    fs::write(desk.path("key"), context.seed_for("luks2/key").to_be_bytes().repeat(100))?;
    fs::set_permissions(desk.path("key"), std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    desk.ours(&format!("volume key add x.img --password-file line --new-key-file key {CHEAP}"))?;
    // A line that ends as those of another system: part of the passphrase, as cryptsetup takes it.
    private_file(desk.path("return"), "typed words\r\n")?;
    let add = format!("volume key add x.img --password-file line --new-password-file return {CHEAP}");
    desk.ours(&add)?.says("warning: the first line of return ends in a carriage return")?;
    desk.ours("info x.img,volume=luks2,password-file=return")?;
    ensure!(desk.opens("x.img", "key")?, "cryptsetup and the key file");
    desk.ours("info x.img,volume=luks2,key-file=key")?;
    let dump = desk.cryptsetup("luksDump x.img")?.stdout;
    demand!(dump.contains("vault"), "no label in:\n{dump}")
}

/// As many key slots as a header has.
fn all_slots(context: &Context) -> Result<()> {
    let desk = Desk::new(context)?;
    desk.format("x.img", BYTES, "")?;
    let add = format!("volume key add x.img --password-file pw --new-password-file new {CHEAP}");
    for _ in 1..SLOTS_MAX {
        desk.ours(&add)?;
    }
    desk.try_ours(&add)?.expect(1)?;
    let full = desk.try_cryptsetup(&format!("luksAddKey --key-file pw {THEIRS} x.img new"))?;
    ensure!(full.code != Some(0), "cryptsetup found room for one more");
    desk.ours("volume key remove x.img --slot 31")?;
    desk.cryptsetup(&format!("luksAddKey --key-file pw {THEIRS} x.img wrong"))?;
    desk.opens_with("x.img", &["pw", "new", "wrong"])
}

/// A backup that does not fit leaves no file, and one that exists stays as it is.
fn backup_without_room(context: &Context) -> Result<()> {
    let desk = Desk::new(context)?;
    desk.format("x.img", BYTES, "")?;
    let names = || -> Result<Vec<_>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(desk.path(""))? {
            names.push(entry?.file_name());
        }
        names.sort();
        Ok(names)
    };
    let before = names()?;
    let backup = desk.command("volume header backup x.img head");
    let mut shell = program("sh")?;
    // A limit for files takes the place of a full file system: 1000 blocks of 512 bytes.
    shell.args(["-c", "trap '' XFSZ && ulimit -f 1000 && exec \"$@\"", "sh"]);
    shell.arg(backup.get_program()).args(backup.get_args()).current_dir(desk.path(""));
    run(&mut shell, LIMIT)?.orderly()?.expect(1)?.says("cannot write the header to head: File too large")?;
    ensure!(names()? == before, "left: {:?}", names()?);
    desk.ours("volume header backup x.img head")?;
    let made = fs::metadata(desk.path("head"))?;
    let mode = std::os::unix::fs::PermissionsExt::mode(&made.permissions()) & 0o777;
    ensure!(mode == 0o600 && made.len() == HEADER_BYTES, "mode {mode:o}, {} bytes", made.len());
    desk.format("y.img", BYTES, "")?;
    desk.try_ours("volume header backup y.img head")?.expect(6)?.says("it exists")?;
    same_range(&desk.path("x.img"), 0, &desk.path("head"), 0, HEADER_BYTES)
}

pub(super) fn examine(context: &Context, cases: &mut Cases) {
    cases.check("keys-of-our-volume", || changes(context, false));
    cases.check_some(("keys", 1), "keys-of-their-volume", || changes(context, true));
    cases.check("backup-attached", || backups(context, false));
    cases.check_some(FULL_ONLY, "backup-detached", || backups(context, true));
    cases.check("backup-without-room", || backup_without_room(context));
    cases.check("header-primary-lost", || damaged(context, 0));
    cases.check_some(FULL_ONLY, "header-secondary-lost", || damaged(context, 1));
    cases.check("foreign-objects-stay", || foreign_objects(context));
    cases.check("passphrase-as-typed", || typed(context));
    cases.check_some(FULL_ONLY, "all-key-slots", || all_slots(context));
}
