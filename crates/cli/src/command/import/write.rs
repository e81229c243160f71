//! Writes what was imported as a hikyaku.toml, and the secrets as files.

use std::fmt::Write as _;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::{Account, Imported, Lun, Rule, Target};
use crate::error::Failure;
use crate::{output, sys};

/// Files of secrets by path.
type Files<'a> = Vec<(PathBuf, &'a Account)>;

/// The text of the configuration, and the files that it names.
pub(super) fn compose<'a>(imported: &'a Imported, secrets: &Path) -> (String, Files<'a>) {
    let mut files = Files::new();
    let mut text =
        String::from("# Imported; hikyaku.toml(5) explains the keys. Examine with: hikyaku check FILE\n");
    text.push_str("# NAA designators are not carried over: names in /dev/disk/by-id of initiators change.\n");
    comment(&mut text, &imported.notes);
    if !imported.listen.is_empty() {
        let listen: Vec<String> = imported.listen.iter().map(|address| quote(address)).collect();
        write!(text, "\n[server]\nlisten = [{}]\n", listen.join(", ")).expect("a string");
    }
    for target in &imported.targets {
        compose_target(&mut text, target, secrets, &mut files);
    }
    (text, files)
}

fn compose_target<'a>(text: &mut String, target: &'a Target, secrets: &Path, files: &mut Files<'a>) {
    text.push('\n');
    comment(text, &target.notes);
    writeln!(text, "[[target]]\niqn = {}", quote(&target.iqn)).expect("a string");
    for Lun { lun, endpoint, serial, notes } in &target.luns {
        text.push('\n');
        comment(text, notes);
        write!(text, "[[target.lun]]\nlun = {lun}\nendpoint = {}\n", quote(endpoint)).expect("a string");
        if let Some(serial) = serial {
            writeln!(text, "serial = {}", quote(serial)).expect("a string");
        }
    }
    for Rule { initiator, chap, mutual, luns, read_only } in &target.rules {
        text.push_str("\n[[target.acl]]\n");
        let mut line = |key: &str, value: String| writeln!(text, "{key} = {value}").expect("a string");
        if let Some(initiator) = initiator {
            line("initiator", quote(initiator));
        }
        for (prefix, account) in [("", chap), ("mutual-", mutual)] {
            let Some(account) = account else { continue };
            line(&format!("{prefix}chap-user"), quote(&account.user));
            let file = file_of(account, secrets, files);
            line(&format!("{prefix}secret-file"), quote(&file.display().to_string()));
        }
        if let Some(luns) = luns {
            line("luns", format!("{luns:?}"));
        }
        if *read_only {
            line("mode", quote("ro"));
        }
    }
}

/// A TOML string: each JSON string is one. Characters that a terminal would act on are escaped.
fn quote(text: &str) -> String {
    output::printable_json(&serde_json::Value::from(text).to_string()).into_owned()
}

/// Comment lines. Names in the notes are the other target's and may contain anything.
fn comment(text: &mut String, notes: &[String]) {
    for note in notes {
        let line: String = note.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        writeln!(text, "# {}", output::printable(&line)).expect("a string");
    }
}

/// The file of an account's secret, named after its user; another secret of the same user gets a number.
fn file_of<'a>(account: &'a Account, directory: &Path, files: &mut Files<'a>) -> PathBuf {
    if let Some((path, _)) = files.iter().find(|(_, known)| *known == account) {
        return path.clone();
    }
    let is_good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let name: String = account.user.chars().map(|c| if is_good(c) { c } else { '_' }).take(64).collect();
    let name = if name.is_empty() { "secret".to_owned() } else { name };
    let numbered = (2..).map(|number| format!("{name}-{number}"));
    let mut paths = std::iter::once(name.clone()).chain(numbered).map(|name| directory.join(name));
    let is_free = |path: &PathBuf| files.iter().all(|(known, _)| known != path);
    let path = paths.find(is_free).expect("endless");
    files.push((path.clone(), account));
    path
}

/// Creates a file of a secret that only this user can read. One that exists is left as it is, if it holds the same.
pub(super) fn store(path: &Path, account: &Account) -> Result<(), Failure> {
    sys::forbid_core_dumps();
    let object = path.display().to_string();
    let line = zeroize::Zeroizing::new(format!("{}\n", *account.secret));
    if std::fs::read(path).is_ok_and(|present| present == line.as_bytes()) {
        return Ok(());
    }
    let write = || -> io::Result<()> {
        if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
            DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(line.as_bytes())
    };
    write().map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => {
            Failure::refused("store a secret in", object, "the file exists and holds something else")
                .hint("--secrets with another directory")
        }
        _ => Failure::failed("store a secret in", object, error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::context::Context;

    fn account(user: &str, secret: &str) -> Account {
        Account { user: user.into(), secret: secret.to_owned().into() }
    }

    #[test]
    fn the_text_is_a_configuration_without_secrets_whatever_the_names() {
        let rule = |user: &str, secret: &str| Rule { chap: Some(account(user, secret)), ..Rule::default() };
        let lun = Lun {
            endpoint: "/srv/\"a,,b\u{9b}2J\u{202e}\".img".into(),
            notes: vec!["x\n[server]\n\u{1b}y".into()],
            ..Lun::default()
        };
        let target = Target {
            iqn: "iqn.2026-11.example:a".into(),
            luns: vec![lun],
            rules: vec![
                rule("u", "secret one"),
                rule("../u", "secret two"),
                rule("u", "secret three"),
                rule("u", "secret one"),
            ],
            notes: Vec::new(),
        };
        let imported =
            Imported { listen: vec!["127.0.0.1:3260".into()], targets: vec![target], notes: Vec::new() };
        let (text, files) = compose(&imported, Path::new("secrets"));
        assert!(!text.contains("secret one") && !text.contains(['\u{1b}', '\u{9b}', '\u{202e}']), "{text}");
        let config = Config::parse(&Context::default(), &text).unwrap();
        let lun = &config.targets[0].luns[0];
        assert_eq!(lun.endpoint.path(), Some(Path::new("/srv/\"a,b\u{9b}2J\u{202e}\".img")));
        let names: Vec<String> = files.iter().map(|(path, _)| path.display().to_string()).collect();
        assert_eq!(names, ["secrets/u", "secrets/___u", "secrets/u-2"]);
    }

    #[test]
    fn a_secret_is_ours_alone_and_never_overwritten() {
        use std::os::unix::fs::PermissionsExt;
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("secrets/u");
        store(&path, &account("u", "one")).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        store(&path, &account("u", "one")).unwrap();
        let failure = store(&path, &account("u", "two")).unwrap_err();
        assert!(failure.cause.contains("exists") && !failure.to_string().contains("two"), "{failure}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\n");
    }
}
