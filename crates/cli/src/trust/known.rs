//! The targets whose keys we know: `host:port key`, a line each, in a file that is replaced as a whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use seal::PublicKey;

use super::config_file;
use super::file::{self, Keeping, LIST_BYTES_MAX};
use crate::error::Failure;
use crate::sys::{self, Hold};

const FILE: &str = "known-targets";
/// Replacing takes milliseconds; whoever holds the lock longer than this is stuck.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(5);

/// The file, whether it exists or not.
#[derive(Debug)]
pub(crate) struct KnownTargets {
    path: PathBuf,
}

impl KnownTargets {
    /// The one in the configuration directory. Nothing is created yet.
    pub(crate) fn locate() -> Result<Self, Failure> {
        Ok(Self { path: config_file(FILE)? })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn read(&self) -> Result<String, Failure> {
        match file::read_text(&self.path, "the known targets", Keeping::Public, LIST_BYTES_MAX)? {
            Ok(text) => Ok(text.to_string()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
            Err(error) => Err(self.failed("read the known targets", error)),
        }
    }

    fn failed(&self, attempted: &str, cause: impl std::fmt::Display) -> Failure {
        Failure::failed(attempted, self.path.display().to_string(), cause)
    }

    /// The key of a portal and the line it stands in.
    pub(crate) fn key_of(&self, portal: &str) -> Result<Option<(usize, PublicKey)>, Failure> {
        let text = self.read()?;
        find(&text, portal).map_err(|cause| self.failed("use the known targets", cause))
    }

    /// Keeps the key of a portal, in the place of the one it had.
    pub(crate) fn set(&self, portal: &str, key: &PublicKey) -> Result<(), Failure> {
        let _lock = self.lock().map_err(|error| self.failed("lock the known targets", error))?;
        let text = self.read()?;
        let old = find(&text, portal).map_err(|cause| self.failed("use the known targets", cause))?;
        let new = format!("{portal} {key}");
        let mut lines: Vec<&str> = text.lines().collect();
        match old {
            Some((line, _)) => lines[line - 1] = &new,
            None => lines.push(&new),
        }
        self.write(&(lines.join("\n") + "\n")).map_err(|error| self.failed("write the known targets", error))
    }

    /// The lock is the file's neighbour: the file itself is replaced.
    fn lock(&self) -> io::Result<File> {
        let directory = self.directory();
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let lock = options.open(self.path.with_extension("lock"))?;
        let deadline = Instant::now() + LOCK_WAIT_MAX;
        while !sys::lock_byte(&lock, 0, Hold::Exclusive)? {
            if Instant::now() >= deadline {
                return Err(io::Error::other("another process has held the lock for five seconds"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(lock)
    }

    fn directory(&self) -> &Path {
        self.path.parent().expect("a file in a directory")
    }

    /// A temporary file is for its owner only, and stays so.
    fn write(&self, text: &str) -> io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(self.directory())?;
        file.write_all(text.as_bytes())?;
        file.as_file().sync_all()?;
        file.persist(&self.path).map_err(|error| error.error)?;
        File::open(self.directory())?.sync_all()
    }
}

/// Every line must be good, not only the one that is looked for: a key that is passed over would be sealing that is not
/// required.
pub(crate) fn find(text: &str, portal: &str) -> Result<Option<(usize, PublicKey)>, String> {
    let mut found = None;
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        let mut words = line.split_whitespace();
        let Some(name) = words.next().filter(|name| !name.starts_with('#')) else { continue };
        let (Some(key), None) = (words.next(), words.next()) else {
            return Err(format!("line {number} is not of the form host:port key"));
        };
        let key = PublicKey::parse(key)
            .ok_or_else(|| format!("line {number}: '{key}' is not a public key, 44 characters of base64"))?;
        if !name.eq_ignore_ascii_case(portal) {
            continue;
        }
        if let Some((before, _)) = found {
            return Err(format!("{portal} has a key in line {before} and another in line {number}"));
        }
        found = Some((number, key));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn key(byte: u8) -> PublicKey {
        PublicKey([byte; 32])
    }

    #[test]
    fn keys_are_kept_and_replaced_and_remarks_stay() {
        let dir = tempfile::tempdir().unwrap();
        let known = KnownTargets { path: dir.path().join("deep/known-targets") };
        assert_eq!(known.key_of("h:3260").unwrap(), None);
        known.set("h:3260", &key(1)).unwrap();
        known.set("[::1]:3260", &key(2)).unwrap();
        known.set("h:3261", &key(3)).unwrap();
        assert_eq!(known.key_of("H:3260").unwrap(), Some((1, key(1))));
        assert_eq!(known.key_of("[::1]:3260").unwrap(), Some((2, key(2))));
        let text = fs::read_to_string(&known.path).unwrap();
        fs::write(&known.path, format!("# remark\n\n{text}")).unwrap();
        known.set("h:3260", &key(4)).unwrap();
        assert_eq!(known.key_of("h:3260").unwrap(), Some((3, key(4))));
        let text = fs::read_to_string(&known.path).unwrap();
        assert!(text.starts_with("# remark\n\n") && text.lines().count() == 5, "{text}");
        assert_eq!(fs::metadata(&known.path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn every_defect_is_named_with_its_line() {
        let good = key(1);
        let all = [
            ("h:1".to_owned(), "line 1 is not of the form"),
            (format!("h:1 {good} more"), "line 1 is not of the form"),
            (format!("a:1 {good}\nb:1 x"), "line 2: 'x' is not a public key"),
            (format!("h:1 {good}\nH:1 {good}"), "h:1 has a key in line 1 and another in line 2"),
        ];
        for (text, cause) in all {
            let error = find(&text, "h:1").expect_err(cause);
            assert!(error.contains(cause), "{error}");
        }
    }
}
