//! `check`: what it finds in a configuration, and that it changes nothing.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use anyhow::{Context as _, Result, ensure};

use super::{LIMIT, Place};
use crate::{Cases, Context, Scene, program, run};

/// A target with one LUN; `SERVER` stands for lines of `[server]`, `LUN` for the endpoint.
const CONFIGURATION: &str = "[server]\nlisten = [\"127.0.0.1:0\"]\nSERVER\n[[target]]\niqn = \"iqn.2026-11.example:checked\"\n\n\
                             [[target.lun]]\nlun = 0\nendpoint = \"LUN\"\n";

fn write(place: &Place, server: &str, lun: &str) -> Result<()> {
    let text = CONFIGURATION.replace("SERVER", server).replace("LUN", lun);
    fs::write(place.path("c.toml"), text).context("writing the configuration")
}

/// Paths below the place with their lengths.
fn all_files(place: &Place) -> Result<Vec<(String, u64)>> {
    let mut found = Vec::new();
    let mut directories = vec![place.dir.path().to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            if metadata.is_dir() {
                directories.push(entry.path());
            } else {
                found.push((entry.path().display().to_string(), metadata.len()));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Endpoint, exit code of `check --deep`.
const UNCHANGED: &[(&str, i32)] = &[
    ("disk.img,grow,size=8M", 0),
    ("empty.img,grow,size=8M", 0),
    ("empty.img,grow,size=0", 2),
    ("disk.img,ro,grow,size=8M", 2),
    ("new.img,create,size=1M", 0),
    ("iscsi://127.0.0.1:1/iqn.2026-11.example:none/0,timeout=1s", 5),
];

fn changes_nothing(context: &Context, place: &Place) -> Result<()> {
    for (endpoint, code) in UNCHANGED {
        write(place, "", endpoint)?;
        let before = all_files(place)?;
        place.run(context, &["check", "--deep", "c.toml"])?.expect(*code)?;
        let after = all_files(place)?;
        ensure!(before == after, "{endpoint}: before {before:?}, after {after:?}");
    }
    Ok(())
}

/// Condition, content of the token's file (`None`: a FIFO), its mode, exit code, part of the message.
const TOKENS: &[(&str, Option<&str>, u32, i32, &str)] = &[
    ("good", Some("0123456789abcdef\n"), 0o600, 0, ""),
    ("empty", Some(""), 0o600, 2, "cannot use the token token: the file is empty"),
    ("two-lines", Some("a\nb\n"), 0o600, 2, "one line of visible ASCII characters"),
    ("readable-by-others", Some("0123456789abcdef\n"), 0o644, 4, "others may read it"),
    ("fifo", None, 0o600, 2, "cannot use the token token: "),
];

/// `check` refuses the token that `serve` refuses, with the same words.
fn token(context: &Context, place: &Place) -> Result<()> {
    write(place, "metrics = \"127.0.0.1:0\"\nmetrics-token-file = \"token\"", "mem:1M")?;
    let path = place.path("token");
    for (condition, content, mode, code, part) in TOKENS {
        let _ = fs::remove_file(&path);
        match content {
            Some(content) => fs::write(&path, content)?,
            None => drop(run(program("mkfifo")?.arg(&path), LIMIT)?.success()?),
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(*mode))?;
        let check = place.run(context, &["check", "c.toml"])?.expect(*code)?;
        ensure!(check.stderr.contains(part), "{condition}: {}", check.stderr);
        if *code != 0 {
            let serve = place.run(context, &["serve", "--config", "c.toml"])?.expect(*code)?;
            ensure!(serve.stderr == check.stderr, "{condition}: {}\n{}", serve.stderr, check.stderr);
        }
    }
    Ok(())
}

/// A file with mistakes of every kind, and for each, in its order, the line and part of the message.
const MANY: &str = "[server]\nlisten = [\"127.0.0.1:0\"]\ncolour = 1\n\n[[target]]\niqn = \"iqn.2026-11.example:a\"\n\n[[target.lun]]\n\
                    endpont = \"mem:1M\"\n\n[[target.acl]]\nchap-user = \"u\"\nmode = \"r\"\n\n[[target.acl]]\nchap-user = \"v\"\n\
                    secret-file = \"none\"\n\n[[target]]\n[[target.lun]]\nlun = \"0\"\nendpoint = \"none.img\"\n\n[foo]\nx = 1\n";
const MISTAKES: &[(usize, &str)] = &[
    (3, "unknown key colour"),
    (8, "the key lun is missing"),
    (9, "did you mean endpoint?"),
    (11, "chap-user and secret-file need each other"),
    (13, "'r' is not a mode"),
    (15, "cannot read the secret file none: "),
    (19, "the key iqn is missing"),
    (21, "lun: \"0\" is text in quotes"),
    (22, "cannot find the storage none.img: "),
    (24, "unknown key foo"),
];

fn all_mistakes(context: &Context, place: &Place) -> Result<()> {
    fs::write(place.path("many.toml"), MANY)?;
    let said = place.run(context, &["check", "many.toml"])?.expect(2)?.stderr;
    let errors: Vec<&str> = said.lines().filter(|line| line.starts_with("error: ")).collect();
    ensure!(errors.len() == MISTAKES.len(), "{} mistakes, not {}:\n{said}", errors.len(), MISTAKES.len());
    for (error, (line, part)) in errors.iter().zip(MISTAKES) {
        ensure!(
            error.contains(&format!("line {line}")) && error.contains(part),
            "line {line}, {part}: {error}"
        );
    }
    Ok(())
}

pub(super) fn examine(context: &Context, cases: &mut Cases) {
    let place = Scene::new(Place::new);
    cases.check("check-changes-nothing", || changes_nothing(context, place.get()?));
    cases.check("check-of-many-mistakes", || all_mistakes(context, place.get()?));
    cases.check("check-token-of-metrics", || token(context, place.get()?));
}
