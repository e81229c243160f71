//! Passphrases and key files of sealed volumes: from files that only their owner can read, or asked at the terminal.
//! Never from an argument or the environment, where other programs see them.

use std::fmt;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use block::layer::Keys;
use block::{OpenError, Spec};
use job::shell::quoted;
use zeroize::Zeroizing;

use crate::context::Context;
use crate::error::Failure;
use crate::trust::file::{self, Keeping};
use crate::{sys, terminal};

/// Bytes of a passphrase, as cryptsetup limits those that are typed.
const PASSPHRASE_BYTES_MAX: usize = 512;
/// Bytes of a key file, as cryptsetup limits it.
const KEY_FILE_BYTES_MAX: usize = 8 << 20;
/// How often a passphrase is asked for, as by cryptsetup.
const ATTEMPTS_MAX: u32 = 3;

pub(crate) type Secret = Zeroizing<Vec<u8>>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// Its first line, as typed.
    PasswordFile(PathBuf),
    /// All of its bytes.
    KeyFile(PathBuf),
    Terminal,
}

impl Source {
    pub(crate) fn new(password_file: Option<&str>, key_file: Option<&str>) -> Result<Self, String> {
        match (password_file, key_file) {
            (Some(_), Some(_)) => Err("password-file and key-file exclude one another".to_owned()),
            (Some(path), None) => Ok(Self::PasswordFile(path.into())),
            (None, Some(path)) => Ok(Self::KeyFile(path.into())),
            (None, None) => Ok(Self::Terminal),
        }
    }

    /// The passphrase of the volume `object`.
    pub(crate) fn read(&self, object: &str) -> Result<Secret, Failure> {
        match self {
            Self::PasswordFile(path) => first_line(path),
            Self::KeyFile(path) => all_bytes(path),
            Self::Terminal => ask(object, &format!("Passphrase for {object}: ")),
        }
    }

    /// A passphrase that the volume `object` is to have: it is typed twice, and is not empty.
    pub(crate) fn read_new(&self, context: &Context, object: &str) -> Result<Secret, Failure> {
        let failed = |cause: &str| Failure::usage("use the new passphrase of", object, cause);
        let secret = match self {
            Self::Terminal => ask(object, &format!("New passphrase for {object}: "))?,
            _ => self.read(object)?,
        };
        match self {
            Self::Terminal if secret.is_empty() => {
                return Err(failed("it is empty").hint("type at least one character"));
            }
            Self::Terminal if *ask(object, "Repeat the new passphrase: ")? != *secret => {
                return Err(failed("the two passphrases differ").hint("give the command again"));
            }
            Self::PasswordFile(path) if ends_in_return(&secret) => context.warn(&format!(
                "the first line of {} ends in a carriage return, which is part of the passphrase; a passphrase that is typed has none",
                path.display()
            )),
            _ => {}
        }
        Ok(secret)
    }

    /// What to try when no keyslot opened. `has_return`: the line of the file ended in a carriage return.
    pub(crate) fn advice(&self, has_return: bool) -> String {
        let slots = "`hikyaku volume info` lists the keyslots";
        match self {
            Self::PasswordFile(path) if has_return => format!(
                "the first line of {} ends in a carriage return, which counts as part of the passphrase: \
                 `sed -i 's/\\r$//' {}` removes it; {slots}",
                path.display(),
                quoted(&path.display().to_string())
            ),
            Self::PasswordFile(path) => format!(
                "the passphrase is the first line of {}, without the newline at its end; as a key-file all bytes of it count; {slots}",
                path.display()
            ),
            Self::KeyFile(path) => format!(
                "all bytes of {} count, a newline at its end too; as a password-file only its first line does; {slots}",
                path.display()
            ),
            Self::Terminal => {
                format!("see that Caps Lock is off and the keyboard has the layout of then; {slots}")
            }
        }
    }
}

/// Whether a text editor of another system ended the line.
pub(crate) fn ends_in_return(line: &[u8]) -> bool {
    line.ends_with(b"\r")
}

fn first_line(path: &Path) -> Result<Secret, Failure> {
    let failed = |cause: String| Failure::usage("read the password file", path.display().to_string(), cause);
    let bytes = read(path, "the password file", KEY_FILE_BYTES_MAX)?;
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    if line.len() > PASSPHRASE_BYTES_MAX {
        let cause = format!("its first line is longer than {PASSPHRASE_BYTES_MAX} bytes");
        return Err(failed(cause).hint("key-file=FILE takes all bytes of a file"));
    }
    if line.is_empty() {
        let cause = if bytes.is_empty() { "it is empty" } else { "its first line is empty" };
        return Err(failed(cause.to_owned()).hint("the passphrase is the first line of the file"));
    }
    Ok(Zeroizing::new(line.to_vec()))
}

fn all_bytes(path: &Path) -> Result<Secret, Failure> {
    let bytes = read(path, "the key file", KEY_FILE_BYTES_MAX)?;
    if bytes.is_empty() {
        let failure = Failure::usage("read the key file", path.display().to_string(), "it is empty");
        return Err(failure.hint("all bytes of the file are the passphrase"));
    }
    Ok(bytes)
}

fn read(path: &Path, what: &str, bytes_max: usize) -> Result<Secret, Failure> {
    file::read(path, what, Keeping::Secret, bytes_max)?
        .map_err(|error| Failure::failed(format!("read {what}"), path.display().to_string(), error))
}

fn ask(object: &str, prompt: &str) -> Result<Secret, Failure> {
    let failed = |cause: String| {
        Failure::usage("ask for the passphrase of", object.to_owned(), cause)
            .hint("give it with password-file=FILE or key-file=FILE")
    };
    if !std::io::stdin().is_terminal() {
        return Err(failed("standard input is no terminal".to_owned()));
    }
    sys::forbid_core_dumps();
    terminal::ask(prompt).map_err(|error| failed(error.to_string()))
}

/// Those of an endpoint. What was typed is kept, since a command may open an endpoint more than once.
#[derive(Clone, Default)]
pub(crate) struct Passphrases(Arc<Mutex<Option<Secret>>>);

impl fmt::Debug for Passphrases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Passphrases(..)")
    }
}

impl Passphrases {
    /// The keys for the endpoint `text`, from where its options say.
    pub(crate) fn keys<'a>(&'a self, text: &'a str, spec: &Spec) -> Result<EndpointKeys<'a>, String> {
        let source = Source::new(spec.get("password-file"), spec.get("key-file"))?;
        let is_set = |name: &&str| spec.get(name).is_some();
        if let Some(name) =
            ["create", "grow", "size"].into_iter().find(|name| is_set(&"volume") && is_set(name))
        {
            return Err(format!(
                "{name} makes or resizes a file, and volume= opens a volume that is in one already; `hikyaku volume format` makes a \
                 volume, `hikyaku volume grow` makes it larger"
            ));
        }
        match ["password-file", "key-file", "header", "freshness"].iter().copied().find(is_set) {
            Some(name) if !is_set(&"volume") && !is_set(&"view") => {
                Err(format!("{name} belongs to a sealed volume; volume=luks2 or volume=auth opens one"))
            }
            _ => Ok(EndpointKeys {
                kept: &self.0,
                text,
                source,
                failure: Mutex::default(),
                has_return: AtomicBool::new(false),
                flaw: Mutex::default(),
            }),
        }
    }
}

pub(crate) struct EndpointKeys<'a> {
    kept: &'a Mutex<Option<Secret>>,
    text: &'a str,
    source: Source,
    failure: Mutex<Option<Failure>>,
    /// Of the line that was read last.
    has_return: AtomicBool,
    flaw: Mutex<Option<String>>,
}

impl EndpointKeys<'_> {
    /// Why no passphrase was read, with its exit code and hint: the error of [`Keys::secret`] has only its text.
    pub(crate) fn failure(&self) -> Option<Failure> {
        self.failure.lock().expect("no panic while locked").take()
    }

    /// What to try when no keyslot opened with what was read.
    pub(crate) fn advice(&self) -> String {
        self.source.advice(self.has_return.load(Ordering::Relaxed))
    }

    /// What is wrong with a volume that opened.
    pub(crate) fn flaw(&self) -> Option<String> {
        self.flaw.lock().expect("no panic while locked").take()
    }
}

impl Keys for EndpointKeys<'_> {
    fn secret(&self, attempt: u32) -> Result<Option<Secret>, OpenError> {
        let mut kept = self.kept.lock().expect("no panic while locked");
        match &*kept {
            Some(secret) if attempt == 0 => return Ok(Some(secret.clone())),
            _ if attempt > 0 && (self.source != Source::Terminal || attempt >= ATTEMPTS_MAX) => {
                return Ok(None);
            }
            _ => {}
        }
        if attempt > 0 {
            eprintln!("no keyslot opens with this passphrase");
        }
        let secret = self.source.read(self.text).map_err(|failure| {
            let cause = failure.cause.clone();
            *self.failure.lock().expect("no panic while locked") = Some(failure);
            OpenError::Passphrase(cause)
        })?;
        self.has_return.store(ends_in_return(&secret), Ordering::Relaxed);
        if self.source == Source::Terminal {
            *kept = Some(secret.clone());
        }
        Ok(Some(secret))
    }

    fn warn(&self, flaw: &str) {
        *self.flaw.lock().expect("no panic while locked") = Some(flaw.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_password_file_is_its_first_line_and_a_key_file_all_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pw");
        // The file, then what either source makes of it: a passphrase, or the cause of a refusal.
        type Read = Result<&'static str, &'static str>;
        let all: [(&str, Read, Read); 6] = [
            ("a b", Ok("a b"), Ok("a b")),
            ("a b\n", Ok("a b"), Ok("a b\n")),
            ("a\nb\n", Ok("a"), Ok("a\nb\n")),
            ("a\r\n", Ok("a\r"), Ok("a\r\n")),
            ("", Err("it is empty"), Err("it is empty")),
            ("\na", Err("its first line is empty"), Ok("\na")),
        ];
        for (text, as_password, as_key) in all {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            for (source, expected) in
                [(Source::PasswordFile(path.clone()), as_password), (Source::KeyFile(path.clone()), as_key)]
            {
                let read = source.read("x.img").map_err(|failure| failure.cause);
                let read = read.as_ref().map(|secret| &secret[..]).map_err(String::as_str);
                assert_eq!(read, expected.map(str::as_bytes), "{text:?} by {source:?}");
            }
        }
    }

    #[test]
    fn what_to_try_fits_where_the_passphrase_came_from() {
        let file = || PathBuf::from("pw of mine");
        for (source, has_return, words) in [
            (Source::PasswordFile(file()), false, "first line of pw of mine, without the newline"),
            (Source::PasswordFile(file()), true, "`sed -i 's/\\r$//' 'pw of mine'`"),
            (Source::KeyFile(file()), false, "all bytes of pw of mine count"),
            (Source::Terminal, false, "Caps Lock"),
        ] {
            let advice = source.advice(has_return);
            assert!(advice.contains(words) && advice.contains("`hikyaku volume info`"), "{advice}");
            assert!(!advice.contains("password-file=FILE"), "{advice}");
        }
    }
}
