//! This host's key pair and pre-shared keys: files with one line of 44 characters, in the format of `wg genkey` and `wg
//! genpsk`; lines that begin with `#` are comments.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use node::Psk;
use seal::{Identity, PublicKey};
use zeroize::{Zeroize, Zeroizing};

use super::file::{self, Keeping};
use super::{config_file, make_directory};
use crate::error::Failure;
use crate::sys;

const FILE: &str = "identity";
/// Maximum bytes of a key file; a device given by mistake is not read to its end.
const FILE_BYTES_MAX: usize = 1024;
/// Characters of a key, private or public.
const KEY_CHARACTERS: usize = 44;
const HEADING: &str = "# hikyaku identity 1: the private half of a key pair; keep it secret\n";

pub(crate) fn default_file() -> Result<PathBuf, Failure> {
    config_file(FILE)
}

/// Creates a random key pair. From here on this process writes no core dump.
pub(crate) fn random() -> io::Result<Identity> {
    sys::forbid_core_dumps();
    let mut entropy = Zeroizing::new([0; 32]);
    getrandom::fill(&mut *entropy).map_err(|error| io::Error::other(format!("no randomness: {error}")))?;
    Ok(Identity::generate(*entropy))
}

/// Creates a key pair and stores it in `file`, which must not exist. A directory is created for the default path only.
pub(crate) fn create(file: Option<&Path>) -> Result<(PathBuf, PublicKey), Failure> {
    let path = path_of(file)?;
    if file.is_none()
        && let Some(directory) = path.parent()
    {
        let object = path.display().to_string();
        make_directory(directory).map_err(|error| Failure::failed("make a key in", object, error))?;
    }
    let key = create_at(&path)?;
    Ok((path, key))
}

fn path_of(file: Option<&Path>) -> Result<PathBuf, Failure> {
    file.map_or_else(default_file, |path| Ok(path.to_owned()))
}

/// Creates a key pair in a file that must not exist.
fn create_at(path: &Path) -> Result<PublicKey, Failure> {
    let object = path.display().to_string();
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::AlreadyExists => Failure::refused(
            "make a key in",
            object.clone(),
            "the file exists, and a key is never overwritten",
        )
        .hint(format!("hikyaku key public {object}, to see which it is; or another FILE")),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            Failure::failed("make a key in", object.clone(), error).hint("free space there; no file was made")
        }
        _ => Failure::failed("make a key in", object.clone(), error),
    };
    let identity = random().map_err(failed)?;
    let text = identity.to_text();
    let write = || -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        let mut fill = || -> io::Result<()> {
            file.write_all(HEADING.as_bytes())?;
            file.write_all(text.as_bytes())?;
            file.write_all(b"\n")?;
            file.sync_all()?;
            sync_directory(path)
        };
        // A file without a key would be in the way of the next attempt, and of the server's next reload.
        fill().inspect_err(|_| drop(std::fs::remove_file(path)))
    };
    write().map_err(failed)?;
    Ok(identity.public())
}

fn sync_directory(path: &Path) -> io::Result<()> {
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}

/// The file of the next key of the key pair in `path`: beside it, with `.next` after its name.
pub(crate) fn next_file(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".next");
    name.into()
}

/// The next key pair of the one in `file`; `None` if there is none.
pub(crate) fn load_next(file: Option<&Path>) -> Result<Option<Arc<Identity>>, Failure> {
    let path = next_file(&path_of(file)?);
    match std::fs::symlink_metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        _ => load(Some(&path)).map(Some),
    }
}

/// Both public halves of a rotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rotation {
    pub(crate) file: PathBuf,
    pub(crate) present: PublicKey,
    pub(crate) next: PublicKey,
}

/// Creates the next key pair of the one in `file`. It must have none.
pub(crate) fn begin_rotation(file: Option<&Path>) -> Result<Rotation, Failure> {
    let present = load(file)?.public();
    let file = path_of(file)?;
    let path = next_file(&file);
    if load_next(Some(&file))?.is_some() {
        let object = path.display().to_string();
        return Err(Failure::refused(
            "rotate the key",
            file.display().to_string(),
            "it has a next key already",
        )
        .hint(format!("hikyaku key rotate --finish makes it the present one; rm {object} gives it up")));
    }
    let next = create_at(&path)?;
    Ok(Rotation { file, present, next })
}

/// The rotation that [`begin_rotation`] has begun.
pub(crate) fn begun_rotation(file: Option<&Path>) -> Result<Rotation, Failure> {
    let present = load(file)?.public();
    let file = path_of(file)?;
    match load_next(Some(&file))? {
        Some(next) => Ok(Rotation { file, present, next: next.public() }),
        None => Err(Failure::refused("rotate the key", file.display().to_string(), "it has no next key")
            .hint("hikyaku key rotate makes one")),
    }
}

/// Replaces the key pair in `file` by its next one. The former private key is removed.
pub(crate) fn finish_rotation(file: &Path) -> Result<(), Failure> {
    let replace = || -> io::Result<()> {
        std::fs::rename(next_file(file), file)?;
        sync_directory(file)
    };
    replace().map_err(|error| Failure::failed("replace the key", file.display().to_string(), error))
}

/// Reads a key pair, by default from [`default_file`]. From here on this process writes no core dump.
pub(crate) fn load(file: Option<&Path>) -> Result<Arc<Identity>, Failure> {
    let path = match file {
        Some(path) => path.to_owned(),
        None => default_file()?,
    };
    let what = "the identity";
    let line = read_line(&path, what).map_err(|failure| match (failure.hint.is_empty(), file) {
        (true, None) => failure.hint("hikyaku key new, or identity=FILE (`serve`: --identity FILE)"),
        (true, Some(path)) if !path.exists() => failure.hint(format!("hikyaku key new {}", path.display())),
        _ => failure,
    })?;
    let identity = Identity::parse(&line).ok_or_else(|| not_a_key(&path, what))?;
    Ok(Arc::new(identity))
}

pub(crate) fn load_psk(path: &Path) -> Result<Psk, Failure> {
    let what = "the pre-shared key";
    let line = read_line(path, what)?;
    let mut key = PublicKey::parse(&line).ok_or_else(|| not_a_key(path, what))?;
    let psk = Psk::new(Zeroizing::new(key.0));
    key.0.zeroize();
    Ok(psk)
}

/// False only if the file can be read and has no line of the length of a key. Its content is not used otherwise.
fn may_hold_key(path: &Path) -> bool {
    let mut bytes = Zeroizing::new(Vec::with_capacity(FILE_BYTES_MAX + 1));
    let is_file = path.metadata().is_ok_and(|metadata| metadata.is_file());
    let read =
        block::open_input(path).and_then(|file| file.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes));
    if !is_file || read.is_err() {
        return true;
    }
    let is_key = |line: &[u8]| {
        let line = line.trim_ascii();
        let is_base64 = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=".contains(byte);
        line.len() == KEY_CHARACTERS && line.ends_with(b"=") && line.iter().all(is_base64)
    };
    bytes.split(|byte| *byte == b'\n').any(is_key)
}

fn not_a_key(path: &Path, what: &str) -> Failure {
    let cause = "it does not hold a key, 44 characters of base64";
    Failure::failed(format!("read {what}"), path.display().to_string(), cause)
        .hint("a file made by `hikyaku key new`, `wg genkey` or `wg genpsk`")
}

/// Reads the single line of a file that only this user can read.
fn read_line(path: &Path, what: &str) -> Result<Zeroizing<String>, Failure> {
    let object = path.display().to_string();
    let failed =
        |cause: &dyn std::fmt::Display| Failure::failed(format!("read {what}"), object.clone(), cause);
    let text = file::read_text(path, what, Keeping::Secret, FILE_BYTES_MAX).map_err(|failure| {
        // Advice on the mode of a file that holds no key would only mislead.
        if may_hold_key(path) { failure } else { not_a_key(path, what) }
    })?;
    let text = text.map_err(|error| failed(&error))?;
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    match (lines.next(), lines.next()) {
        (Some(line), None) => Ok(Zeroizing::new(line.to_owned())),
        (None, _) => Err(failed(&"it holds no key")),
        (Some(_), Some(_)) => Err(failed(&"it has more than one line that is not a remark")),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::error::Exit;

    fn file(name: &str, text: &str, mode: u32) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        (dir, path)
    }

    fn failure_of(path: &Path) -> Failure {
        load(Some(path)).err().unwrap()
    }

    #[test]
    fn a_new_key_is_ours_alone_and_never_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("k");
        let (_, public) = create(Some(&path)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(load(Some(&path)).ok().unwrap().public(), public);
        let before = fs::read(&path).unwrap();
        assert_eq!(create(Some(&path)).unwrap_err().ending, Exit::Refused);
        assert_eq!(fs::read(&path).unwrap(), before);
    }

    #[test]
    fn a_key_that_others_can_read_is_refused_with_the_remedy() {
        for mode in [0o640, 0o604, 0o620, 0o666] {
            let (_dir, path) = file("k", "6IB3dX4mJQMqxHKb7bLYL4ZlvVQcsGGDHmPmUJBjgnM=\n", mode);
            let failure = failure_of(&path);
            assert_eq!(failure.ending, Exit::Authentication);
            assert!(failure.hint.starts_with(&format!("chmod 600 {}", path.display())), "{failure}");
        }
    }

    #[test]
    fn a_file_without_a_key_gets_no_advice_on_its_mode() {
        for text in ["root:x:0:0:root:/root:/bin/sh\n", "", "6IB3dX4mJQMqxHKb7bLYL4ZlvVQcsGGDHmPmUJBjgnM\n"] {
            let (_dir, path) = file("passwd", text, 0o644);
            let failure = failure_of(&path);
            assert_eq!(failure.cause, "it does not hold a key, 44 characters of base64");
            assert!(!failure.hint.contains("chmod"), "{failure}");
        }
    }

    #[test]
    fn what_is_not_a_key_is_not_shown() {
        let all = [
            ("", "it holds no key"),
            ("# remark\n", "it holds no key"),
            ("a\nb\n", "it has more than one line that is not a remark"),
        ];
        for (text, cause) in all {
            let (_dir, path) = file("k", text, 0o600);
            assert_eq!(failure_of(&path).cause, cause);
        }
        let (_dir, path) = file("k", &"x".repeat(2000), 0o600);
        assert_eq!(failure_of(&path).cause, "it is longer than 1024 bytes");
    }

    #[test]
    fn keys_of_the_wireguard_tools_are_read_and_others_refused_unseen() {
        let (_dir, path) = file("k", "6IB3dX4mJQMqxHKb7bLYL4ZlvVQcsGGDHmPmUJBjgnM=\n", 0o600);
        assert!(load(Some(&path)).is_ok());
        assert!(load_psk(&path).is_ok());
        let (_dir, path) = file("k", "# remark\nnot-a-secret-of-ours\n", 0o600);
        for failure in [failure_of(&path), load_psk(&path).unwrap_err()] {
            assert_eq!(failure.cause, "it does not hold a key, 44 characters of base64");
        }
    }

    #[test]
    fn a_missing_key_is_made_by_the_command_of_the_hint() {
        let failure = failure_of(Path::new("/nonexistent/k"));
        assert_eq!(failure.hint, "hikyaku key new /nonexistent/k");
    }
}
