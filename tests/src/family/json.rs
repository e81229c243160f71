//! `--json`: what each command prints matches its schema in `docs/schema`, on standard output and line by line on
//! standard error.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tempfile::TempDir;

use crate::files::random_file;
use crate::made::connection;
use crate::schema::Schema;
use crate::target::private_file;
use crate::{Cases, Context, Output, Scene, Server, program, run, scratch};

const LIMIT: Duration = Duration::from_secs(60);
const BYTES: u64 = 1 << 20;
const KEY: &str = "6IB3dX4mJQMqxHKb7bLYL4ZlvVQcsGGDHmPmUJBjgnM=";
const KNOWN: &str = "host:3260,10.0.0.1:3260 KEY iqn.2026-11.example:disks\n# since 2026-11-23 17:00:00 UTC\nother:3260 KEY\n";
const PEERS: &str = "[[peer]]\nname = \"laptop\"\npublic-key = \"KEY\"\nluns = [0, 2]\n";
const CONFIG: &str = "[server]\n[[target]]\niqn = \"iqn.2026-11.example:disks\"\n[[target.lun]]\nlun = 0\nendpoint = \"a.img\"\n\
                      [[target.portal]]\naddress = \"127.0.0.1:0\"\n";

/// Name, schema, arguments, exit code. `LUN` and `OTHER` stand for two LUNs of one target, `PORTAL` for its address.
type Row<'a> = (&'a str, &'a str, &'a [&'a str], i32);

const ROWS: &[Row<'_>] = &[
    ("copy", "copy", &["copy", "a.img", "b.img", "--verify", "--manifest", "m"], 0),
    ("copy-to-a-lun", "copy", &["copy", "a.img", "LUN", "--chunk", "64K"], 0),
    (
        "copy-within-a-target",
        "copy",
        &["copy", "LUN", "OTHER", "--remote-copy", "require", "--force", "--verify"],
        0,
    ),
    ("copy-dry-run", "copy", &["copy", "a.img", "b.img", "--dry-run", "--rate", "1M"], 0),
    ("copy-dry-run-refused", "copy", &["copy", "a.img", "small.img", "--dry-run"], 6),
    ("compare-equal", "compare", &["compare", "a.img", "same.img"], 0),
    (
        "compare-different",
        "compare",
        &["compare", "a.img", "OTHER,ro", "--size", "4K", "--src-offset", "4K"],
        3,
    ),
    ("compare-manifest-equal", "compare", &["compare", "same.img", "--manifest", "m"], 0),
    ("compare-manifest-different", "compare", &["compare", "pattern:1M", "--manifest", "m"], 3),
    ("ls", "ls", &["ls", "PORTAL"], 0),
    ("info-file", "info", &["info", "odd.img"], 0),
    ("info-memory", "info", &["info", "mem:1M"], 0),
    ("info-lun", "info", &["info", "LUN"], 0),
    ("analyze", "analyze", &["analyze", "made.pcap"], 0),
    ("analyze-two", "analyze", &["analyze", "made.pcap", "more.pcap"], 0),
    ("analyze-without-commands", "analyze", &["analyze", "empty.pcap"], 0),
    ("info-image", "info", &["info", "x.qcow2"], 0),
    ("key-new", "key-new", &["key", "new", "new.key"], 0),
    ("key-public", "key-new", &["key", "public", "old.key"], 0),
    ("key-list", "key-list", &["key", "list", "--peers", "peers.toml"], 0),
    ("check", "check", &["check", "good.toml"], 0),
    ("torture", "torture", &["torture", "mem:1M", "--destroy", "--operations", "100"], 0),
    (
        "bench-path",
        "bench-path",
        &["bench", "path", "null:1M", "--block-size", "4K", "--depth", "2", "--operations", "50"],
        0,
    ),
    (
        "bench-path-of-a-lun",
        "bench-path",
        &["bench", "path", "LUN", "--block-size", "4K", "--operations", "50", "--size", "1M"],
        0,
    ),
    (
        "bench-path-writes",
        "bench-path",
        &[
            "bench",
            "path",
            "OTHER",
            "--write",
            "--destroy",
            "--block-size",
            "4K",
            "--seconds",
            "0.1",
            "--size",
            "1M",
        ],
        0,
    ),
    ("bench-copy", "bench-copy", &["bench", "copy", "--size", "1M"], 0),
    ("paths", "paths", &["paths"], 0),
    ("doctor", "doctor", &["doctor"], 0),
    ("copy-list", "copy-list", &["copy", "--list"], 0),
    ("status", "status", &["status", "--interval", "10ms"], 0),
    ("ctl-status", "status", &["ctl", "status"], 0),
    ("ctl-reload", "ctl", &["ctl", "reload"], 0),
];

/// Failures of every kind: arguments and exit code.
const ERRORS: &[(&str, &[&str], i32)] = &[
    ("failed", &["info", "none.img"], 1),
    ("no-capture", &["analyze", "a.img"], 1),
    ("usage", &["info", "a.img,frobnicate"], 2),
    ("command-line", &["info", "a.img", "--frobnicate"], 2),
    ("command-line-of-nothing", &["copy"], 2),
    ("authentication", &["key", "public", "open.key"], 4),
    ("unreachable", &["ls", "iscsi://127.0.0.1:1,timeout=1s"], 5),
    ("refused", &["copy", "a.img", "small.img"], 6),
];

struct Place {
    dir: TempDir,
    server: Server,
}

impl Place {
    fn new(context: &Context) -> Result<Self> {
        let dir = scratch()?;
        let path = |name: &str| dir.path().join(name);
        random_file(path("a.img"), BYTES, context.seed_for("json"))?;
        fs::copy(path("a.img"), path("same.img"))?;
        for (name, bytes) in [("b.img", BYTES), ("lun.img", BYTES), ("small.img", 4096), ("odd.img", 5000)] {
            fs::write(path(name), vec![0; bytes as usize])?;
        }
        fs::write(
            path("x.qcow2"),
            [&b"QFI\xfb\0\0\0\x03"[..], &[0; 16], &BYTES.to_be_bytes(), &[0; 512]].concat(),
        )?;
        for (name, writes) in [("made.pcap", 40), ("more.pcap", 80), ("empty.pcap", 0)] {
            connection("iqn.2026-11.example:initiator", writes).save(&path(name))?;
        }
        fs::write(path("open.key"), KEY)?;
        private_file(path("old.key"), KEY)?;
        fs::write(path("good.toml"), CONFIG)?;
        fs::write(path("peers.toml"), PEERS.replace("KEY", KEY))?;
        fs::create_dir_all(path("config/hikyaku"))?;
        private_file(path("config/hikyaku/known-targets"), &KNOWN.replace("KEY", KEY))?;
        let mut command = context.command_in(dir.path());
        command.args(["serve", "lun.img", "mem:1M", "--listen", "127.0.0.1:0"]).current_dir(dir.path());
        let server = Server::start(&mut command, 2)?;
        Ok(Self { dir, server })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn run(&self, context: &Context, arguments: &[&str]) -> Result<Output> {
        let lun = self.server.url.to_string();
        let other = lun.strip_suffix('0').context("LUN 0")?.to_owned() + "1";
        let portal = format!("iscsi://{}", self.server.url.portal);
        let word =
            |word: &&str| word.replace("LUN", &lun).replace("OTHER", &other).replace("PORTAL", &portal);
        let mut command = context.command_in(self.dir.path());
        command.args(arguments.iter().map(word)).arg("--json").current_dir(self.dir.path());
        run(&mut command, LIMIT)?.orderly()
    }
}

/// Checks each line of standard error: progress, a warning, or an error. Returns whether the last is an error.
fn check_lines(text: &str) -> Result<bool> {
    let (progress, error) = (Schema::load("progress")?, Schema::load("error")?);
    let mut is_error = false;
    for line in text.lines() {
        let value: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
        is_error = value["error"].is_object();
        let is_log = value["timestamp"].is_string();
        if !is_log {
            (if is_error { &error } else { &progress }).check(&value)?;
        }
    }
    Ok(is_error)
}

fn row(context: &Context, place: &Place, (_, schema, arguments, code): Row<'_>) -> Result<()> {
    let output = place.run(context, arguments)?.expect(code)?;
    Schema::load(schema)?.check(&output.json()?).with_context(|| output.line.clone())?;
    check_lines(&output.stderr).map(drop)
}

/// Trust is asked of a server that seals; it is listed, and forgotten.
fn trust(context: &Context, place: &Place) -> Result<()> {
    let home = place.path("sealing");
    let mut command = context.command_in(&home);
    run(command.args(["key", "new"]), LIMIT)?.success()?;
    let mut command = context.command_in(&home);
    command.args(["serve", "mem:1M", "--listen", "127.0.0.1:0", "--peers"]).arg(place.path("peers.toml"));
    let server = Server::start(&mut command, 1)?;
    let url = format!("iscsi://{}", server.url.portal);
    for (command, schema, more) in
        [("trust", "key-trust", &["--yes"][..]), ("trust", "key-trust", &[]), ("forget", "key-forget", &[])]
    {
        let output = place.run(context, &[&["key", command, &url], more].concat())?.success()?;
        let value = output.json()?;
        Schema::load(schema)?.check(&value).with_context(|| output.line.clone())?;
        if command == "forget" {
            let forgotten = &value["forgotten"][0];
            let is_today = forgotten["since"].as_str().is_some_and(|since| since.ends_with(" UTC"));
            ensure!(forgotten["name"] == server.url.portal.as_str() && is_today, "{value}");
        }
    }
    place.run(context, &["key", "forget", &url])?.expect(1).map(drop)
}

/// A rotation from its beginning to its end, which no server has announced.
fn rotate(context: &Context, place: &Place) -> Result<()> {
    private_file(place.path("rotated.key"), KEY)?;
    let mut keys = Vec::new();
    for more in [&[][..], &["--finish", "--force"]] {
        let output = place.run(context, &[&["key", "rotate", "rotated.key"], more].concat())?.success()?;
        let value = output.json()?;
        Schema::load("key-rotate")?.check(&value).with_context(|| output.line.clone())?;
        ensure!(value["finished"] == !more.is_empty(), "{value}");
        check_lines(&output.stderr)?;
        keys.push([value["public_key"].clone(), value["next_public_key"].clone()]);
    }
    demand!(keys[0] == keys[1] && keys[0][0] != keys[0][1], "{keys:?}")
}

/// A target's name forgets one line; the other line with the same key is still known.
fn forget(context: &Context, place: &Place) -> Result<()> {
    let known = place.path("config/hikyaku/known-targets");
    let before = fs::read(&known)?;
    let output = place.run(context, &["key", "forget", "iqn.2026-11.example:disks"])?.success()?;
    let left = fs::read_to_string(&known)?;
    fs::write(&known, before)?;
    let value = output.json()?;
    Schema::load("key-forget")?.check(&value)?;
    let names = (&value["forgotten"][0]["name"], &value["still_known"][0]["name"]);
    ensure!(names == (&"host:3260".into(), &"other:3260".into()), "{value}");
    demand!(left == format!("other:3260 {KEY}\n"), "{left}")
}

/// A volume from its making to the removal of a passphrase.
fn volume(context: &Context, place: &Place) -> Result<()> {
    private_file(place.path("pw"), "passphrase")?;
    const CHEAP: [&str; 4] = ["--pbkdf", "pbkdf2", "--iter-time", "1"];
    let make =
        ["format", "sealed.img,create", "--data-size", "1M", "--type", "luks2", "--password-file", "pw"];
    let key = ["sealed.img", "--password-file", "pw", "--new-password-file", "pw"];
    let of_auth =
        ["format", "auth.img,create", "--data-size", "1M", "--type", "auth", "--password-file", "pw"];
    let argon2 = ["--pbkdf", "argon2id", "--pbkdf-memory", "64K", "--iter-time", "1"];
    for (schema, arguments) in [
        ("volume-format", [&make[..], &CHEAP].concat()),
        ("volume-key", [&["passwd"], &key[..], &CHEAP].concat()),
        ("volume-key", [&["key", "add"], &key[..], &argon2].concat()),
        ("volume-info", vec!["info", "sealed.img"]),
        ("volume-grow", vec!["grow", "sealed.img"]),
        ("volume-header", vec!["header", "backup", "sealed.img", "header"]),
        ("volume-key", vec!["key", "remove", "sealed.img", "--slot", "0"]),
        ("volume-header", vec!["header", "restore", "sealed.img", "header"]),
        ("volume-format", [&of_auth[..], &CHEAP].concat()),
        ("volume-reencrypt", [&["reencrypt", "auth.img", "--password-file", "pw"], &CHEAP[..]].concat()),
        ("volume-info", vec!["info", "auth.img"]),
    ] {
        let arguments = [&["volume"], &arguments[..]].concat();
        row(context, place, ("volume", schema, &arguments, 0))?;
    }
    Ok(())
}

/// The data goes to standard output, so the result is the last line of standard error.
fn stream(context: &Context, place: &Place) -> Result<()> {
    let script = format!("exec \"$@\" > '{}'", place.path("streamed").display());
    let mut shell = program("sh")?;
    shell.args(["-c", &script, "sh"]).arg(&context.hikyaku).args(["copy", "a.img", "-", "--json"]);
    shell
        .current_dir(place.dir.path())
        .env("XDG_STATE_HOME", place.path("state"))
        .env("XDG_RUNTIME_DIR", place.path(""));
    let output = run(&mut shell, LIMIT)?.success()?;
    let (lines, last) = output.stderr.trim_end().rsplit_once('\n').unwrap_or(("", output.stderr.trim_end()));
    check_lines(lines)?;
    Schema::load("copy")?.check(&serde_json::from_str(last)?)
}

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    let place = Scene::new(|| Place::new(context));
    // In the order of the rows: later ones use the manifest of the first.
    let manifest = |place: &Place| -> Result<()> {
        if !place.path("m").exists() {
            place.run(context, &["copy", "a.img", "b.img", "--verify", "--manifest", "m"])?.success()?;
        }
        Ok(())
    };
    for case in ROWS {
        cases.check(case.0, || {
            manifest(place.get()?)?;
            row(context, place.get()?, *case)
        });
    }
    cases.check("copy-to-standard-output", || stream(context, place.get()?));
    cases.check("key-trust-and-forget", || trust(context, place.get()?));
    cases.check("volume", || volume(context, place.get()?));
    cases.check("key-rotate", || rotate(context, place.get()?));
    cases.check("key-forget-by-a-targets-name", || forget(context, place.get()?));
    for (name, arguments, code) in ERRORS {
        cases.check(&format!("error-{name}"), || {
            let output = place.get()?.run(context, arguments)?.expect(*code)?;
            demand!(check_lines(&output.stderr)?, "no error in {}", output.stderr)
        });
    }
    cases.check("demo", || row(context, place.get()?, ("demo", "demo", &["demo", "a.img"], 0)));
    const WAN: [&str; 4] = ["demo", "a.img", "--wan", "5ms,0.1%"];
    cases.check("demo-wan", || row(context, place.get()?, ("demo-wan", "demo", &WAN, 0)));
    let ciphers: Row<'_> = ("bench-ciphers", "bench-ciphers", &["bench", "ciphers"], 0);
    cases.check_some(super::FULL_ONLY, ciphers.0, || row(context, place.get()?, ciphers));
    Ok(())
}
