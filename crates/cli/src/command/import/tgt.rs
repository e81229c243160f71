//! targets.conf(5) of tgt: nested blocks of a keyword with its values on each line.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Account, Imported, Lun, Rule, Target};
use crate::error::Failure;
use crate::trust::file::{self, Keeping, LIST_BYTES_MAX};

/// Files that include files, at most.
const INCLUDE_DEPTH_MAX: usize = 8;
/// Files that one configuration may include.
const FILES_MAX: usize = 256;
/// `tgt-admin --dump` writes this instead of passwords.
const NO_PASSWORD: &str = "PLEASE_CORRECT_THE_PASSWORD";

pub(super) fn read(path: &Path) -> Result<Imported, Failure> {
    let mut lines = Vec::new();
    collect(path, 0, &mut 0, &mut lines)?;
    parse(&lines).map_err(|(number, cause)| {
        Failure::usage(
            "understand the configuration of tgt",
            path.display().to_string(),
            format!("line {number}: {cause}"),
        )
    })
}

/// A line with its number in its file.
type Line = (usize, String);

fn collect(path: &Path, depth: usize, files: &mut usize, lines: &mut Vec<Line>) -> Result<(), Failure> {
    let object = path.display().to_string();
    let failed = |error: &dyn std::fmt::Display| {
        Failure::usage("read the configuration of tgt", object.clone(), error)
            .hint("tgt-admin --dump | hikyaku import tgt -")
    };
    *files += 1;
    if depth > INCLUDE_DEPTH_MAX || *files > FILES_MAX {
        return Err(failed(&format!("more than {INCLUDE_DEPTH_MAX} nested or {FILES_MAX} included files")));
    }
    let text = match path.to_str() {
        Some("-") => super::lio::standard_input().map_err(|error| failed(&error))?,
        _ => file::read_text(path, "the configuration of tgt", Keeping::Public, LIST_BYTES_MAX)?
            .map_err(|error| failed(&error))?,
    };
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        match line.strip_prefix("include").filter(|rest| rest.starts_with([' ', '\t'])) {
            Some(pattern) => {
                for included in matches(Path::new(pattern.trim())).map_err(|error| failed(&error))? {
                    collect(&included, depth + 1, files, lines)?;
                }
            }
            None if line.is_empty() || line.starts_with('#') => {}
            None => lines.push((index + 1, line.to_owned())),
        }
    }
    Ok(())
}

/// The files that a pattern with at most one `*` in its last part names, sorted.
fn matches(pattern: &Path) -> std::io::Result<Vec<PathBuf>> {
    let name = pattern.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let Some((before, after)) = name.split_once('*') else { return Ok(vec![pattern.to_owned()]) };
    let entries = match fs::read_dir(pattern.parent().unwrap_or(Path::new("."))) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found: Vec<PathBuf> = entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
    found.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.len() >= before.len() + after.len() && name.starts_with(before) && name.ends_with(after)
    });
    found.sort_unstable();
    Ok(found)
}

/// A target while its block is read.
#[derive(Default)]
struct Block {
    target: Target,
    names: Vec<String>,
    accounts: Vec<Account>,
    mutual: Option<Account>,
    write_cache: Option<bool>,
    read_only: bool,
}

/// The number of a line and what is wrong with it.
type Wrong = (usize, String);

fn parse(lines: &[Line]) -> Result<Imported, Wrong> {
    let mut imported =
        Imported { listen: vec!["0.0.0.0:3260".into(), "[::]:3260".into()], ..Imported::default() };
    let mut block: Option<Block> = None;
    let mut store: Option<Lun> = None;
    for (number, line) in lines {
        let wrong = |cause: &str| {
            (*number, format!("{cause}: {}", line.split_whitespace().next().unwrap_or_default()))
        };
        let mut words = line.trim_matches(['<', '>']).split_whitespace();
        let key = words.next().unwrap_or_default();
        let values: Vec<&str> = words.collect();
        let value = values.first().copied().unwrap_or_default();
        match (line.starts_with('<'), key, &mut block, &mut store) {
            (true, "target", None, None) => {
                block = Some(Block {
                    target: Target { iqn: value.to_owned(), ..Target::default() },
                    ..Block::default()
                });
            }
            (true, "/target", Some(_), None) => {
                let block = block.take().expect("matched above");
                imported.targets.push(block.finish());
            }
            (true, "backing-store" | "direct-store", Some(block), None) => {
                store = Some(block.lun(key, value));
            }
            (true, "/backing-store" | "/direct-store", Some(block), Some(_)) => {
                block.target.luns.push(store.take().expect("matched above"));
            }
            (true, ..) => return Err(wrong("this block cannot stand here")),
            (false, key, Some(_), Some(lun)) => {
                in_store(lun, key, value).map_err(|cause| (*number, cause))?;
            }
            (false, key, Some(block), None) => block.key(key, &values),
            (false, "default-driver", None, _) if value == "iscsi" => {}
            (false, key, None, _) => imported.notes.push(format!("not carried over: {key}")),
        }
    }
    match (block, imported.targets.is_empty()) {
        (Some(block), _) => Err((lines.len(), format!("target {} has no end", block.target.iqn))),
        (None, true) => Err((lines.len(), "there is no <target>".to_owned())),
        (None, false) => Ok(imported),
    }
}

fn in_store(lun: &mut Lun, key: &str, value: &str) -> Result<(), String> {
    match (key, value) {
        ("lun", number) => lun.lun = number.parse().map_err(|_| format!("'{number}' is not a LUN"))?,
        ("scsi_sn", serial) => lun.serial = Some(serial.to_owned()),
        ("write-cache", "off" | "0") => lun.endpoint.push_str(",cache=writethrough"),
        ("readonly", "1" | "yes") => lun.endpoint.push_str(",ro"),
        ("removable", "1" | "yes") => lun.endpoint.push_str(",removable"),
        ("vendor_id", text) => lun.endpoint.push_str(&format!(",vendor={}", text.replace(',', ",,"))),
        ("product_id", text) => lun.endpoint.push_str(&format!(",product={}", text.replace(',', ",,"))),
        ("block-size", size @ ("512" | "4096")) => lun.endpoint.push_str(&format!(",block-size={size}")),
        ("write-cache" | "readonly" | "removable", _) | ("allow-in-use", _) => {}
        (key, value) => lun.notes.push(format!("not carried over: {key} {value}")),
    }
    Ok(())
}

impl Block {
    /// The next LUN; tgt counts from 1, its LUN 0 is the controller.
    fn lun(&self, key: &str, path: &str) -> Lun {
        let last = self.target.luns.iter().map(|lun| lun.lun).max().unwrap_or(0);
        let mut lun = Lun { lun: last + 1, endpoint: path.replace(',', ",,"), ..Lun::default() };
        if key == "direct-store" {
            lun.notes.push(
                "direct-store: vendor, product and serial number of the disk are not passed on".to_owned(),
            );
        }
        lun
    }

    fn key(&mut self, key: &str, values: &[&str]) {
        let value = values.first().copied().unwrap_or_default();
        let account = || Account {
            user: value.to_owned(),
            secret: values.get(1).copied().unwrap_or_default().to_owned().into(),
        };
        let is_known = values.get(1).is_some_and(|secret| *secret != NO_PASSWORD);
        match key {
            "backing-store" | "direct-store" => self.target.luns.push(self.lun(key, value)),
            "incominguser" if is_known => self.accounts.push(account()),
            "outgoinguser" if is_known => self.mutual = Some(account()),
            "incominguser" | "outgoinguser" => {
                let note = format!(
                    "{key} {value}: its secret is not in the source; add a rule with chap-user and secret-file"
                );
                self.target.notes.push(note);
            }
            "initiator-name" => self.names.push(value.to_owned()),
            "initiator-address" if value == "ALL" => {}
            "write-cache" => self.write_cache = Some(!matches!(value, "off" | "0")),
            "readonly" => self.read_only = matches!(value, "1" | "yes"),
            "driver" if value == "iscsi" => {}
            "allow-in-use" | "controller_tid" => {}
            _ => self.target.notes.push(format!("not carried over: {key} {}", values.join(" "))),
        }
    }

    /// Every name may use every account, as in tgt: a rule with nothing but an account is valid for all names.
    fn finish(mut self) -> Target {
        for lun in &mut self.target.luns {
            if self.write_cache == Some(false) && !lun.endpoint.contains(",cache=") {
                lun.endpoint.push_str(",cache=writethrough");
            }
            if self.read_only && !lun.endpoint.ends_with(",ro") {
                lun.endpoint.push_str(",ro");
            }
        }
        let names = self.names.into_iter().map(|name| Rule { initiator: Some(name), ..Rule::default() });
        self.target.rules.extend(names);
        if self.accounts.is_empty() && self.mutual.is_some() {
            self.target.notes.push("not carried over: outgoinguser without incominguser".to_owned());
        }
        for account in self.accounts {
            self.target.rules.push(Rule {
                chap: Some(account),
                mutual: self.mutual.clone(),
                ..Rule::default()
            });
        }
        if self.target.rules.is_empty() {
            self.target
                .notes
                .push("open to everyone who can reach it: serve refuses that beyond loopback".to_owned());
        }
        self.target
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Imported, Wrong> {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("targets.conf");
        fs::write(&path, text).unwrap();
        let mut lines = Vec::new();
        collect(&path, 0, &mut 0, &mut lines).unwrap();
        parse(&lines)
    }

    #[test]
    fn blocks_accounts_and_stores_are_carried_over() {
        let imported = parsed(
            "default-driver iscsi\nincomingdiscoveryuser d secret\n<target iqn.2026-11.example:a>\n\tbacking-store /srv/a,b.img\n\
             <backing-store /dev/vg/b>\n lun 7\n write-cache off\n readonly 1\n scsi_sn X1\n params thin\n</backing-store>\n\
             direct-store /dev/sdc\n incominguser u one-secret\n incominguser v two-secret\n outgoinguser t back-secret\n\
             initiator-name iqn.2026-11.example:i\n initiator-address 10.0.0.1\n MaxConnections 4\n</target>\n",
        )
        .unwrap();
        assert_eq!(imported.notes, ["not carried over: incomingdiscoveryuser"]);
        let [target] = &imported.targets[..] else { panic!("one target") };
        let luns: Vec<(u16, &str)> = target.luns.iter().map(|lun| (lun.lun, lun.endpoint.as_str())).collect();
        assert_eq!(luns, [(1, "/srv/a,,b.img"), (7, "/dev/vg/b,cache=writethrough,ro"), (8, "/dev/sdc")]);
        assert_eq!(target.luns[1].serial.as_deref(), Some("X1"));
        assert_eq!(target.luns[1].notes, ["not carried over: params thin"]);
        assert_eq!(
            target.notes,
            ["not carried over: initiator-address 10.0.0.1", "not carried over: MaxConnections 4"]
        );
        let [name, u, v] = &target.rules[..] else { panic!("{:?}", target.rules) };
        assert_eq!(name.initiator.as_deref(), Some("iqn.2026-11.example:i"));
        let users = [u, v].map(|rule| (rule.chap.as_ref().unwrap().user.as_str(), rule.mutual.is_some()));
        assert_eq!(users, [("u", true), ("v", true)]);
    }

    #[test]
    fn a_dump_without_passwords_says_so() {
        let text = format!("<target iqn.x:a>\nbacking-store /a\nincominguser u {NO_PASSWORD}\n</target>");
        let imported = parsed(&text).unwrap();
        let notes = &imported.targets[0].notes;
        assert!(
            imported.targets[0].rules.is_empty() && notes[0].contains("secret is not in the source"),
            "{notes:?}"
        );
    }

    #[test]
    fn defects_are_named_with_their_line() {
        for (text, number, cause) in [
            ("", 0, "no <target>"),
            ("<target a>\nbacking-store /a\n", 2, "has no end"),
            ("<target a>\n<target b>\n", 2, "cannot stand here"),
            ("</target>\n", 1, "cannot stand here"),
            ("<target a>\n<backing-store /a>\nlun x\n", 3, "not a LUN"),
        ] {
            let (found, message) = parsed(text).unwrap_err();
            assert_eq!(found, number, "{text}");
            assert!(message.contains(cause), "{message}");
        }
    }

    #[test]
    fn included_files_are_read_in_order_and_bounded() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        fs::write(path("b.conf"), "<target iqn.x:b>\nbacking-store /b\n</target>").unwrap();
        fs::write(path("a.conf"), "<target iqn.x:a>\nbacking-store /a\n</target>").unwrap();
        fs::write(
            path("main"),
            format!("include {}/*.conf\ninclude /no/such/*.conf\n", place.path().display()),
        )
        .unwrap();
        let imported = read(&path("main")).unwrap();
        let names: Vec<&str> = imported.targets.iter().map(|target| target.iqn.as_str()).collect();
        assert_eq!(names, ["iqn.x:a", "iqn.x:b"]);
        fs::write(path("loop"), format!("include {}\n", path("loop").display())).unwrap();
        assert!(read(&path("loop")).unwrap_err().cause.contains("nested"));
    }
}
