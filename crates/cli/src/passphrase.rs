//! Passphrases and key files of sealed volumes: from files that only their owner can read, or asked at the terminal.
//! Never from an argument or the environment, where other programs see them.

use std::fmt;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use block::layer::Keys;
use block::{OpenError, Spec};
use zeroize::Zeroizing;

use crate::error::Failure;
use crate::sys;
use crate::trust::file::{self, Keeping};

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

    /// `asked`: what the terminal shows. `is_new`: it is asked for twice.
    pub(crate) fn read(&self, asked: &str, is_new: bool) -> Result<Secret, Failure> {
        match self {
            Self::PasswordFile(path) => {
                let bytes = read(path, "the password file", KEY_FILE_BYTES_MAX)?;
                let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
                if line.len() > PASSPHRASE_BYTES_MAX {
                    let cause = format!("its first line is longer than {PASSPHRASE_BYTES_MAX} bytes");
                    return Err(Failure::usage("read the password file", path.display().to_string(), cause)
                        .hint("key-file=FILE takes all bytes of a file"));
                }
                Ok(Zeroizing::new(line.to_vec()))
            }
            Self::KeyFile(path) => read(path, "the key file", KEY_FILE_BYTES_MAX),
            Self::Terminal => ask(asked, is_new),
        }
    }

    /// [`Self::read`] for a passphrase that a volume is to have from now on: it is typed twice, and is not empty.
    pub(crate) fn read_new(&self, object: &str, asked: &str) -> Result<Secret, Failure> {
        let secret = self.read(asked, true)?;
        if !secret.is_empty() {
            return Ok(secret);
        }
        let failure = Failure::usage("use the new passphrase of", object, "it is empty");
        Err(match self {
            Self::PasswordFile(path) => {
                failure.hint(format!("the passphrase is the first line of {}", path.display()))
            }
            Self::KeyFile(path) => failure.hint(format!("all bytes of {} are the key", path.display())),
            Self::Terminal => failure.hint("type at least one character"),
        })
    }
}

fn read(path: &Path, what: &str, bytes_max: usize) -> Result<Secret, Failure> {
    file::read(path, what, Keeping::Secret, bytes_max)?
        .map_err(|error| Failure::failed(format!("read {what}"), path.display().to_string(), error))
}

fn ask(asked: &str, is_new: bool) -> Result<Secret, Failure> {
    let failed = |cause: String| {
        Failure::usage("ask for the passphrase of", asked.to_owned(), cause)
            .hint("give it with password-file=FILE or key-file=FILE")
    };
    if !std::io::stdin().is_terminal() {
        return Err(failed("standard input is no terminal".to_owned()));
    }
    sys::forbid_core_dumps();
    let typed = |prompt: String| -> Result<Secret, Failure> {
        let text = rpassword::prompt_password(prompt).map_err(|error| failed(error.to_string()))?;
        Ok(Zeroizing::new(text.into_bytes()))
    };
    let secret = typed(format!("Passphrase for {asked}: "))?;
    if is_new && *typed("The same again: ".to_owned())? != *secret {
        return Err(failed("the two passphrases differ".to_owned()));
    }
    Ok(secret)
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
                "{name} makes or resizes storage, not a volume; hikyaku volume format makes one"
            ));
        }
        match ["password-file", "key-file", "header", "freshness"].iter().copied().find(is_set) {
            Some(name) if !is_set(&"volume") && !is_set(&"view") => {
                Err(format!("{name} belongs to a sealed volume; volume=luks2 opens one"))
            }
            _ => Ok(EndpointKeys { kept: &self.0, text, source, failure: Mutex::default() }),
        }
    }
}

pub(crate) struct EndpointKeys<'a> {
    kept: &'a Mutex<Option<Secret>>,
    text: &'a str,
    source: Source,
    failure: Mutex<Option<Failure>>,
}

impl EndpointKeys<'_> {
    /// Why no passphrase was read, with its exit code and hint: the error of [`Keys::secret`] has only its text.
    pub(crate) fn failure(&self) -> Option<Failure> {
        self.failure.lock().expect("no panic while locked").take()
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
            eprintln!("no key slot opens with that passphrase");
        }
        let secret = self.source.read(self.text, false).map_err(|failure| {
            let cause = failure.cause.clone();
            *self.failure.lock().expect("no panic while locked") = Some(failure);
            OpenError::Passphrase(cause)
        })?;
        if self.source == Source::Terminal {
            *kept = Some(secret.clone());
        }
        Ok(Some(secret))
    }
}
