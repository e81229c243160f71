//! What is refused, with which exit code, and that the message says what to do.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::desk::{BYTES, CHEAP, COPY, Desk, HEADER_BYTES, LIMIT, VOLUME};
use super::header::{COPIES, edit, edit_text};
use crate::files::{Loop, can_loop, same_file};
use crate::target::private_file;
use crate::{Cases, Context, Disk, Running, Target, program, run, scratch};

/// A change of the header's JSON, and the words of the refusal.
type Edit = (&'static str, fn(&mut Value), &'static [&'static str]);

/// Each would let the owner of the storage read, exchange or destroy data, or spend this machine's memory or time.
const EDITS: &[Edit] = &[
    (
        "cipher-null-in-the-segment",
        |j| j["segments"]["0"]["encryption"] = json!("cipher_null-ecb"),
        &["cipher_null"],
    ),
    (
        "cipher-null-in-a-key-slot",
        |j| j["keyslots"]["0"]["area"]["encryption"] = json!("cipher_null-ecb"),
        &["keyslot", "cipher_null"],
    ),
    (
        "cipher-cbc",
        |j| j["segments"]["0"]["encryption"] = json!("aes-cbc-essiv:sha256"),
        &["aes-cbc", "aes-xts"],
    ),
    (
        "memory-above-the-limit",
        |j| j["keyslots"]["0"]["kdf"] = argon2(4, (4 << 20) + 1, 4),
        &["keyslot 0", "memory", "--pbkdf-memory"],
    ),
    ("passes-above-the-limit", |j| j["keyslots"]["0"]["kdf"] = argon2(1_000_000, 4 << 20, 4), &["keyslot 0"]),
    ("threads-above-the-limit", |j| j["keyslots"]["0"]["kdf"] = argon2(4, 1 << 20, 100_000), &["keyslot 0"]),
    (
        "iterations-above-the-limit",
        |j| j["keyslots"]["0"]["kdf"]["iterations"] = json!(u32::MAX),
        &["keyslot 0", "iterations"],
    ),
    (
        "re-encryption-required",
        |j| j["config"]["requirements"] = json!({"mandatory": ["online-reencrypt-v2"]}),
        &["re-encryption", "cryptsetup reencrypt"],
    ),
    ("requirement-not-known", |j| j["config"]["requirements"] = json!({"mandatory": ["later"]}), &["later"]),
    ("segment-not-crypt", |j| j["segments"]["0"]["type"] = json!("linear"), &["linear"]),
    (
        "segment-with-integrity",
        |j| {
            j["segments"]["0"]["integrity"] =
                json!({"type": "hmac(sha256)", "journal_encryption": "none", "journal_integrity": "none"});
        },
        &["integrity"],
    ),
    ("segment-with-tweaks", |j| j["segments"]["0"]["iv_tweak"] = json!("1"), &["tweaks"]),
    ("segment-over-the-header", |j| j["segments"]["0"]["offset"] = json!("0"), &["header"]),
    ("sector-of-8192", |j| j["segments"]["0"]["sector_size"] = json!(8192), &["sector"]),
    ("two-segments", |j| j["segments"]["1"] = j["segments"]["0"].clone(), &["2 segments"]),
    ("key-slot-in-the-header", |j| j["keyslots"]["0"]["area"]["offset"] = json!("4096"), &["malformed"]),
    ("key-slot-in-the-data", |j| j["keyslots"]["0"]["area"]["offset"] = json!("16777216"), &["malformed"]),
    ("no-key-slots", |j| j["keyslots"] = json!({}), &[]),
    ("digest-of-another-type", |j| j["digests"]["0"]["type"] = json!("crc"), &["crc"]),
];

fn argon2(passes: u32, memory_kib: u32, lanes: u32) -> Value {
    json!({
        "type": "argon2id", "time": passes, "memory": memory_kib, "cpus": lanes,
        "salt": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
    })
}

/// A volume with a changed header is refused by all commands that would open it, before a key is derived.
fn edited(context: &Context, (_, change, words): &Edit) -> Result<()> {
    let desk = Desk::new(context)?;
    desk.random("plain.img", BYTES)?;
    desk.format("x.img", BYTES, "")?;
    edit(&desk.path("x.img"), change)?;
    let before = fs::read(desk.path("x.img"))?;
    for line in [
        format!("info x.img,{VOLUME}"),
        format!("copy plain.img x.img,{VOLUME}"),
        format!("serve x.img,{VOLUME} --listen 127.0.0.1:0"),
        format!("volume key add x.img --password-file pw --new-password-file new {CHEAP}"),
    ] {
        let output = desk.try_ours(&line)?.expect(6)?.says_all(words)?;
        ensure!(output.seconds < 5.0, "{line} took {} s", output.seconds);
    }
    demand!(fs::read(desk.path("x.img"))? == before, "a refused command wrote")
}

/// Arguments of a command, its exit code, and words of its message that say what to do.
type Row = (&'static str, &'static str, i32, &'static [&'static str]);

/// `x.img` is a volume; see [`Place`] for the other names.
const ROWS: &[Row] = &[
    (
        "wrong-passphrase",
        "info x.img,volume=luks2,password-file=wrong",
        4,
        &["no keyslot", "first line of wrong", "key-file", "volume info"],
    ),
    (
        "wrong-passphrase-of-copy",
        "copy plain.img x.img,volume=luks2,password-file=wrong",
        4,
        &["first line of wrong"],
    ),
    (
        "wrong-passphrase-of-serve",
        "serve x.img,volume=luks2,password-file=wrong --listen 127.0.0.1:0",
        4,
        &["first line of wrong"],
    ),
    (
        "wrong-passphrase-of-passwd",
        "volume passwd x.img --password-file wrong --new-password-file new",
        4,
        &["first line of wrong"],
    ),
    (
        "wrong-key-file",
        "info x.img,volume=luks2,key-file=wrong",
        4,
        &["all bytes of wrong", "newline", "password-file"],
    ),
    (
        "carriage-return",
        "info x.img,volume=luks2,password-file=return",
        4,
        &["first line of return", "carriage return", "sed -i"],
    ),
    (
        "carriage-return-of-passwd",
        "volume passwd x.img --password-file return --new-password-file new",
        4,
        &["carriage return"],
    ),
    (
        "empty-password-file",
        "info x.img,volume=luks2,password-file=nothing",
        2,
        &["it is empty", "first line"],
    ),
    ("empty-key-file-to-open", "info x.img,volume=luks2,key-file=nothing", 2, &["it is empty", "all bytes"]),
    ("no-passphrase", "info x.img,volume=luks2", 2, &["password-file=FILE"]),
    (
        "no-header",
        "info plain.img,VOLUME",
        6,
        &["no LUKS header", "volume header restore", "header=FILE", "a NEW volume", "is lost"],
    ),
    (
        "no-header-of-info",
        "volume info plain.img",
        6,
        &["no LUKS header", "volume header restore", "--header FILE", "a NEW volume", "is lost"],
    ),
    (
        "damaged-header",
        "info damaged.img,VOLUME",
        6,
        &["both copies", "volume header restore", "a NEW volume"],
    ),
    ("luks1", "info luks1.img,VOLUME", 6, &["LUKS1", "cryptsetup convert"]),
    ("re-encryption", "info reencrypting.img,VOLUME", 6, &["re-encryption", "cryptsetup reencrypt"]),
    ("empty-file", "info empty,VOLUME", 6, &[]),
    ("type-in-capitals", "info x.img,volume=LUKS2,password-file=pw", 2, &["did you mean volume=luks2?"]),
    ("type-without-a-version", "info x.img,volume=luks,password-file=pw", 2, &["did you mean volume=luks2?"]),
    (
        "volume-as-an-option-of-copy",
        "copy x.img --volume luks2 plain.img",
        2,
        &["is an option of the endpoint", ",volume=luks2,password-file=pw"],
    ),
    (
        "password-file-as-an-option-of-serve",
        "serve x.img --password-file=pw",
        2,
        &["is an option of the endpoint", ",volume=luks2,password-file=pw"],
    ),
    ("unknown-type", "info x.img,volume=plain,password-file=pw", 2, &["luks2"]),
    ("other-type", "info x.img,volume=auth,password-file=pw", 6, &["volume=luks2"]),
    ("copy-to-nothing", "copy plain.img none.img,VOLUME", 6, &["volume format", "none.img,create"]),
    (
        "create",
        "copy plain.img none.img,create,VOLUME",
        2,
        &["create makes or resizes a file", "volume format"],
    ),
    ("size", "copy plain.img x.img,size=30M,VOLUME", 2, &["volume format"]),
    ("grow", "copy plain.img x.img,grow,VOLUME", 2, &["volume format"]),
    ("copy-from-nothing", "copy none.img,VOLUME back.img", 1, &["check the name"]),
    ("too-large", "copy large.img x.img,VOLUME", 6, &["--size", "format larger"]),
    ("password-file-without-volume", "info x.img,password-file=pw", 2, &["volume=luks2 or volume=auth"]),
    ("no-terminal-of-passwd", "volume passwd x.img", 2, &["--password-file FILE or --key-file FILE"]),
    (
        "no-terminal-for-the-new-passphrase",
        "volume passwd x.img --password-file pw",
        2,
        &["--new-password-file FILE or --new-key-file FILE"],
    ),
    ("key-file-without-volume", "info x.img,key-file=pw", 2, &["volume=luks2"]),
    ("header-without-volume", "info x.img,header=head", 2, &["volume=luks2"]),
    ("both-files", "info x.img,volume=luks2,password-file=pw,key-file=pw", 2, &["exclude"]),
    ("password-file-of-all", "info x.img,volume=luks2,password-file=open", 4, &["chmod 600 open"]),
    ("key-file-of-all", "info x.img,volume=luks2,key-file=open", 4, &["chmod 600 open"]),
    ("password-file-missing", "info x.img,volume=luks2,password-file=none", 1, &["none"]),
    ("password-file-too-long", "info x.img,volume=luks2,password-file=long", 2, &["key-file=FILE"]),
    (
        "empty-passphrase",
        "volume format new.img,create --data-size 1M --type luks2 --password-file nothing",
        2,
        &["empty", "first line"],
    ),
    (
        "empty-key-file",
        "volume format new.img,create --data-size 1M --type luks2 --key-file nothing",
        2,
        &["empty"],
    ),
    (
        "empty-new-passphrase",
        "volume passwd x.img --password-file pw --new-password-file nothing",
        2,
        &["empty", "first line"],
    ),
    ("format-without-a-size", "volume format new.img,create FORMAT", 2, &["--data-size"]),
    ("format-size-without-create", "volume format plain.img --data-size 1M FORMAT", 2, &[",create"]),
    (
        "format-capacity-below-the-data",
        "volume format new.img,create --data-size 2M --capacity 1M --type auth --password-file pw",
        2,
        &["--capacity 1 MiB is less than the data, 2 MiB"],
    ),
    (
        "format-header-with-options",
        "volume format new.img,create --data-size 1M --header head2,create FORMAT",
        2,
        &["without options", "the file is made"],
    ),
    ("freshness-of-reencrypt", "volume reencrypt x.img --freshness f", 2, &["leave it out"]),
    ("read-only-storage", "volume passwd x.img,ro --password-file pw", 6, &["leave out ro"]),
    (
        "format-auth-with-sectors",
        "volume format new.img,create --data-size 1M --type auth --sector-size 1024 --password-file pw",
        2,
        &["--sector-size", "type auth"],
    ),
    (
        "format-auth-with-a-key-size",
        "volume format new.img,create --data-size 1M --type auth --key-size 256 --password-file pw",
        2,
        &["--key-size", "type auth"],
    ),
    (
        "format-luks2-with-a-cipher",
        "volume format new.img,create --data-size 1M --cipher aegis-256x4 FORMAT",
        2,
        &["--cipher", "type luks2"],
    ),
    (
        "format-auth-too-small",
        "volume format seventeen.img --type auth --password-file pw",
        6,
        &["it has 17 MiB", "at least 18 MiB"],
    ),
    ("format-nothing", "volume format none.img FORMAT", 1, &["none.img,create", "--data-size"]),
    ("format-too-small", "volume format plain.img FORMAT", 6, &["16 MiB", "--header"]),
    ("format-sector-size", "volume format large.img --sector-size 8192 FORMAT", 2, &["4096"]),
    ("format-less-than-a-sector", "volume format new.img,create --data-size 100 FORMAT", 2, &["512"]),
    (
        "format-header-too-small",
        "volume format new.img,create --data-size 1M --header plain.img FORMAT",
        6,
        &["plain.img"],
    ),
    (
        "format-header-over-a-volume",
        "volume format new.img,create --data-size 1M --header x.img FORMAT",
        6,
        &["LUKS2", "--force"],
    ),
    ("format-over-a-volume", "volume format x.img FORMAT", 6, &["LUKS2", "--force"]),
    ("copy-over-a-volume", "copy plain.img x.img", 6, &["volume=luks2", "destroys its header"]),
    (
        "copy-beneath-a-header-in-a-file",
        "copy plain.img ext4.img,VOLUME,header=head",
        6,
        &["ext4", "header=", "--force"],
    ),
    ("format-over-a-file-system", "volume format ext4.img FORMAT", 6, &["ext4", "--force"]),
    ("format-read-only", "volume format large.img,ro FORMAT", 6, &["read-only", "leave out ro"]),
    ("format-of-a-volume", "volume format x.img,VOLUME FORMAT", 2, &["leave out volume="]),
    ("format-type-missing", "volume format large.img --password-file pw", 2, &["--type"]),
    ("info-of-a-volume", "volume info x.img,VOLUME", 2, &["leave out volume="]),
    ("slot-not-there", "volume key remove x.img --slot 3", 2, &["volume info"]),
    ("last-slot", "volume key remove x.img --slot 0", 6, &["--force"]),
    ("backup-over-a-file", "volume header backup x.img plain.img", 6, &["new file"]),
    (
        "restore-of-no-backup",
        "volume header restore x.img plain.img",
        6,
        &["plain.img: it is no backup", "volume header backup"],
    ),
    ("since-a-bitmap", "copy x.img,VOLUME back --since bitmap:b --force", 2, &["--since hash"]),
    ("since-a-snapshot", "copy x.img,VOLUME back --since plain.img --force", 2, &["--since hash"]),
    ("header-missing", "info x.img,VOLUME,header=none", 1, &["opening none"]),
    ("header-without-volume-in-it", "info x.img,VOLUME,header=large.img", 6, &["no LUKS header"]),
    ("attached-as-detached", "info plain.img,VOLUME,header=x.img", 6, &[]),
    ("truncated-before-the-data", "info cut.img,VOLUME", 6, &["16777216"]),
    ("truncated-within-the-header", "info stub.img,VOLUME", 6, &[]),
];

/// The files of [`ROWS`].
struct Place<'a> {
    desk: Desk<'a>,
}

impl<'a> Place<'a> {
    fn new(context: &'a Context) -> Result<Self> {
        let desk = Desk::new(context)?;
        desk.random("plain.img", BYTES)?;
        desk.empty("large.img", HEADER_BYTES + 2 * BYTES)?;
        desk.empty("back", BYTES)?;
        desk.format("x.img", BYTES, "")?;
        fs::write(desk.path("empty"), "")?;
        private_file(desk.path("nothing"), "")?;
        private_file(desk.path("long"), &"x".repeat(600))?;
        private_file(desk.path("return"), "correct horse battery staple\r\n")?;
        desk.empty("seventeen.img", 17 << 20)?;
        let mut damaged = fs::read(desk.path("x.img"))?;
        for copy in COPIES {
            damaged[copy as usize + 100] ^= 1;
        }
        fs::write(desk.path("damaged.img"), damaged)?;
        fs::copy(desk.path("pw"), desk.path("open"))?;
        fs::set_permissions(desk.path("open"), fs::Permissions::from_mode(0o644))?;
        for (name, bytes) in [("cut.img", HEADER_BYTES), ("stub.img", 8192)] {
            fs::copy(desk.path("x.img"), desk.path(name))?;
            fs::OpenOptions::new().write(true).open(desk.path(name))?.set_len(bytes)?;
        }
        let ext4 = desk.empty("ext4.img", 32 << 20)?;
        run(program("mkfs.ext4")?.arg("-qF").arg(ext4), LIMIT)?.success()?;
        let head = "--type luks2 --password-file pw --force --header head";
        desk.ours(&format!("volume format ext4.img {head} {CHEAP}"))?;
        desk.empty("luks1.img", 20 << 20)?;
        desk.cryptsetup("luksFormat --type luks1 --key-file pw --pbkdf-force-iterations 1000 luks1.img")?;
        desk.empty("reencrypting.img", BYTES + 2 * HEADER_BYTES)?;
        desk.encrypt("reencrypting.img", None, "--init-only")?;
        Ok(Self { desk })
    }

    /// When each of the files that a refused command must leave as they are was last written.
    fn written(&self) -> Result<Vec<SystemTime>> {
        let names = ["x.img", "plain.img", "large.img", "ext4.img", "back"];
        names.iter().map(|name| Ok(fs::metadata(self.desk.path(name))?.modified()?)).collect()
    }

    fn refuses(&self, (_, line, code, words): Row) -> Result<()> {
        let format = format!("--type luks2 --password-file pw {CHEAP}");
        let line = line.replace("VOLUME", VOLUME).replace("FORMAT", &format);
        let before = self.written()?;
        let output = self.desk.try_ours(&line)?.expect(code)?.says_all(words)?;
        ensure!(self.written()? == before, "{}: a refused command wrote", output.line);
        let is_new = ["none.img", "new.img"].iter().find(|name| self.desk.path(name).exists());
        ensure!(is_new.is_none(), "{}: left {is_new:?}", output.line);
        // The same as an error object.
        if !line.starts_with("serve") {
            let error = self.desk.try_ours(&format!("{line} --json"))?.expect(code)?.json_error()?;
            ensure!(error["code"] == code, "{error}");
        }
        Ok(())
    }
}

/// The header's text is no JSON, or one that parsers tire of.
fn malformed(context: &Context) -> Result<()> {
    let desk = Desk::new(context)?;
    desk.format("x.img", BYTES, "")?;
    let kept = fs::read(desk.path("x.img"))?;
    let texts: [fn(&str) -> String; 6] = [
        |_| String::new(),
        |text| text[..text.len() / 2].to_owned(),
        |_| "[".repeat(8000),
        |_| r#"{"keyslots":[],"tokens":0,"segments":"","digests":null,"config":{}}"#.to_owned(),
        |text| text.replace("\"keyslots\"", "\"keyslot\""),
        |text| text.replace("\"json_size\":\"12288\"", "\"json_size\":\"18446744073709551615\""),
    ];
    for (number, text) in texts.iter().enumerate() {
        fs::write(desk.path("x.img"), &kept)?;
        edit_text(&desk.path("x.img"), |before| Ok(text(before)))?;
        let output = desk.try_ours(&format!("info x.img,{VOLUME}"))?.expect(6);
        output.with_context(|| format!("text {number}"))?;
    }
    Ok(())
}

/// Bits flip anywhere in the binary headers: the volume opens from the other copy, or is refused.
fn flipped(context: &Context) -> Result<()> {
    use rand::RngExt;
    let desk = Desk::new(context)?;
    desk.format("x.img", BYTES, "")?;
    let kept = fs::read(desk.path("x.img"))?;
    let mut rng = context.rng("luks2/flipped");
    for _ in 0..context.amount(8, 400) {
        let mut bytes = kept.clone();
        let both = rng.random_bool(0.5);
        for copy in COPIES.iter().take(if both { 2 } else { 1 }) {
            let at = *copy as usize + rng.random_range(0..512);
            bytes[at] ^= 1 << rng.random_range(0..8);
        }
        fs::write(desk.path("x.img"), bytes)?;
        let output = desk.try_ours(&format!("info x.img,{VOLUME}"))?;
        let expected = if both { 6 } else { 0 };
        output.expect(expected).with_context(|| format!("both copies: {both}"))?;
    }
    Ok(())
}

/// Devices and files that others use are not formatted, whatever is said.
fn in_use(context: &Context) -> Result<()> {
    ensure!(can_loop(), "mounted devices need root and /dev/loop-control");
    let desk = Desk::new(context)?;
    let image = desk.empty("disk.img", 64 << 20)?;
    run(program("mkfs.ext4")?.arg("-qF").arg(&image), LIMIT)?.success()?;
    let device = Loop::attach(&image, 512, false)?;
    let point = scratch()?;
    let mount = |name: &str, arguments: &[&Path]| -> Result<()> {
        run(program(name)?.args(arguments), LIMIT)?.success().map(drop)
    };
    let format = format!("volume format {} --type luks2 --password-file pw {CHEAP}", device.text());
    mount("mount", &[device.path(), point.path()])?;
    let refused: Result<()> = (|| {
        for force in ["", "--force"] {
            desk.try_ours(&format!("{format} {force}"))?.expect(6)?.says("mounted")?;
        }
        let file = format!("volume format disk.img --force --type luks2 --password-file pw {CHEAP}");
        desk.try_ours(&file)?.expect(6)?.says("loop device")?;
        Ok(())
    })();
    mount("umount", &[point.path()])?;
    refused?;
    desk.try_ours(&format)?.expect(6)?.says("ext4")?;
    desk.ours(&format!("{format} --force"))?;
    desk.opens_with(&device.text(), &["pw"])?;
    drop(device);
    // Behind a server.
    desk.format("x.img", BYTES, "")?;
    let mut command = desk.command(&format!("serve x.img,{VOLUME} --listen 127.0.0.1:0"));
    let mut server = Running::start(&mut command)?;
    server.wait_stdout("URL", LIMIT, |text| text.contains("iscsi://").then_some(()))?;
    let before = fs::read(desk.path("x.img"))?;
    let again = format!("volume format x.img --type luks2 --password-file pw {CHEAP}");
    for force in ["", "--force"] {
        desk.try_ours(&format!("{again} {force}"))?.expect(6)?;
    }
    demand!(fs::read(desk.path("x.img"))? == before, "it was formatted")
}

/// On a LUN with blocks of 4096 bytes a volume has no smaller sectors, and one that has does not open.
fn sectors_of_the_storage(context: &Context) -> Result<()> {
    let desk = Desk::new(context)?;
    let plain = desk.random("plain.img", BYTES)?;
    let stored = desk.empty("x.img", HEADER_BYTES + BYTES)?;
    let disk = Disk { block_size: Some(4096), ..Disk::file(&stored) };
    let target = Target::serve(context, &[disk], None, &[])?;
    let url = target.url(0);
    let format = format!("volume format {url} --type luks2 --password-file pw {CHEAP}");
    desk.try_ours(&format!("{format} --sector-size 512"))?.expect(6)?.says("--sector-size")?;
    desk.ours(&format)?;
    ensure!(desk.info(&url.to_string())?["sector_bytes"] == 4096, "{}", desk.info(&url.to_string())?);
    desk.ours(&format!("{COPY} plain.img {url},{VOLUME}"))?;
    target.terminate(LIMIT)?.success()?;
    desk.ours(&format!("{COPY} x.img,{VOLUME} back.img"))?;
    same_file(&plain, &desk.path("back.img"))?;
    desk.ours(&format!(
        "volume format x.img --sector-size 512 --type luks2 --password-file pw {CHEAP} --force"
    ))?;
    let disk = Disk { block_size: Some(4096), ..Disk::file(&stored) };
    let target = Target::serve(context, &[disk], None, &[])?;
    desk.try_ours(&format!("info {},{VOLUME}", target.url(0)))?.expect(6)?.says("4096").map(drop)
}

/// A control group for the memory of processes, of either version; removed when dropped.
struct Group(PathBuf);

impl Group {
    /// `None` if this machine lets nobody make one.
    fn new(bytes: u64) -> Result<Option<Self>> {
        for (root, file) in
            [("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")]
        {
            let group = Self(Path::new(root).join(format!("hikyaku-test-{}", std::process::id())));
            // A directory that has no such file has no memory controller.
            let limit = group.0.join(file);
            if fs::create_dir(&group.0).is_ok()
                && limit.exists()
                && fs::write(limit, bytes.to_string()).is_ok()
            {
                return Ok(Some(group));
            }
        }
        Ok(None)
    }

    /// `command`, in the group.
    fn within(&self, command: &Command) -> Result<Command> {
        let mut shell = program("sh")?;
        let script = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", self.0.display());
        shell.args(["-c", &script, "sh"]).arg(command.get_program()).args(command.get_args());
        shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        shell.current_dir(command.get_current_dir().unwrap_or(Path::new("/")));
        Ok(shell)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// In a container of 128 MiB the default costs of a new passphrase fit, and a volume that needs more is refused instead of
/// the process being killed. False if no control group can be made here.
fn little_memory(context: &Context) -> Result<bool> {
    const MEMORY: u64 = 128 << 20;
    let Some(group) = Group::new(MEMORY)? else { return Ok(false) };
    let desk = Desk::new(context)?;
    desk.random("plain.img", BYTES)?;
    let within = |line: &str| run(&mut group.within(&desk.command(line))?, LIMIT)?.orderly();
    within(&format!(
        "volume format small.img,create --data-size {BYTES} --type luks2 --password-file pw --iter-time 200"
    ))?
    .success()?;
    let info = desk.info("small.img")?;
    let memory = info["slots"][0]["memory_bytes"].as_u64().context("its memory")?;
    ensure!((16 << 20..=MEMORY / 2).contains(&memory), "{memory} bytes for a derivation in {MEMORY}");
    within(&format!("copy plain.img small.img,{VOLUME} --verify"))?.success()?;
    let costs = "--pbkdf argon2id --pbkdf-memory 256M --iter-time 5000";
    desk.format("large.img", BYTES, costs)?;
    within(&format!("info large.img,{VOLUME}"))?.expect(6)?.says_all(&["keyslot 0", "--pbkdf-memory"])?;
    Ok(true)
}

pub(super) fn examine(context: &Context, cases: &mut Cases) {
    let place = crate::Scene::new(|| Place::new(context));
    for row in ROWS {
        cases.check(&format!("refused-{}", row.0), || place.get()?.refuses(*row));
    }
    for edit in EDITS {
        cases.check_some(("edits", 3), &format!("header-{}", edit.0), || edited(context, edit));
    }
    cases.check("header-malformed", || malformed(context));
    cases.check("header-flipped", || flipped(context));
    let mut has_group = None;
    cases.check("little-memory", || {
        has_group = Some(little_memory(context)?);
        Ok(())
    });
    if has_group == Some(false) {
        cases.note("no control group with a memory limit can be made here: little-memory was not judged");
    }
    cases.check("format-in-use", || in_use(context));
    cases.check("sectors-of-the-storage", || sectors_of_the_storage(context));
}
