//! Reads the files that decide trust: keys, secrets, lists of peers and of targets, the configuration.
//!
//! `block::open_input` opens them: it refuses a FIFO, where a blocking open would wait for a writer.
//!
//! Owner and mode are those of the open descriptor, so a file that is exchanged between check and read is checked too.
//! Parent directories are not checked: a user who can exchange a file there can only put a file of his own in its
//! place, whose owner is then refused.

use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use zeroize::Zeroizing;

use crate::error::{Exit, Failure};
use crate::sys;

/// Maximum bytes of a list or configuration: some hundred thousand lines.
pub(crate) const LIST_BYTES_MAX: usize = 16 << 20;

/// What other users may do with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keeping {
    /// They may read it: a list of public keys.
    Public,
    /// Nothing: knowledge of the content grants its rights.
    Secret,
}

/// Reads `path`, at most `bytes_max`. Only its owner may have write permission, and the owner must be this user or
/// root; a [`Keeping::Secret`] file must not be readable by other users. `what` names the file in messages: "the
/// peers". For a missing file the error's kind is [`io::ErrorKind::NotFound`]; for a dangling symbolic link it is
/// another kind, because an unreachable list differs from an absent one.
pub(crate) fn read(
    path: &Path,
    what: &str,
    keeping: Keeping,
    bytes_max: usize,
) -> Result<io::Result<Zeroizing<Vec<u8>>>, Failure> {
    if keeping == Keeping::Secret {
        sys::forbid_core_dumps();
    }
    let file = match block::open_input(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound && leads_nowhere(path) => {
            return Ok(Err(io::Error::other("a symbolic link on the way to it leads nowhere")));
        }
        Err(error) => return Ok(Err(error)),
    };
    let metadata = match file.metadata() {
        Ok(metadata) => metadata,
        Err(error) => return Ok(Err(error)),
    };
    let kind = metadata.file_type();
    if kind.is_dir() || kind.is_block_device() {
        return Ok(Err(io::Error::other("it is not a file")));
    }
    if (kind.is_file() || kind.is_fifo())
        && let Some(Flaw { cause, remedy }) =
            flaw_of(metadata.uid(), mode_of(path, metadata.mode()), keeping, sys::user())
    {
        let object = path.display().to_string();
        let hint = format!("{remedy} {object}{}", again(keeping));
        return Err(Failure::new(Exit::Authentication, format!("trust {what}"), object, cause).hint(hint));
    }
    // Allocated with the final size: a growing vector would leave bytes behind that are not wiped.
    let capacity = bytes_max.min(usize::try_from(metadata.len()).unwrap_or(bytes_max).max(1024)) + 1;
    let mut bytes = Zeroizing::new(Vec::with_capacity(capacity));
    Ok(match file.take(bytes_max as u64 + 1).read_to_end(&mut bytes) {
        Err(error) => Err(error),
        Ok(_) if bytes.len() > bytes_max => {
            Err(io::Error::other(format!("it is longer than {bytes_max} bytes")))
        }
        Ok(_) => Ok(bytes),
    })
}

/// [`read`], as text.
pub(crate) fn read_text(
    path: &Path,
    what: &str,
    keeping: Keeping,
    bytes_max: usize,
) -> Result<io::Result<Zeroizing<String>>, Failure> {
    let text = |bytes: Zeroizing<Vec<u8>>| match std::str::from_utf8(&bytes) {
        Ok(text) => Ok(Zeroizing::new(text.to_owned())),
        Err(_) => Err(io::Error::other("it is not text")),
    };
    Ok(read(path, what, keeping, bytes_max)?.and_then(text))
}

/// The permissions of a file. A credential of this service (systemd.exec(5), `LoadCredential=`) belongs to root with mode
/// 0440 and an access list that names the service's user alone; the group's bits are the mask of that list.
fn mode_of(path: &Path, mode: u32) -> u32 {
    let directory =
        std::env::var_os("CREDENTIALS_DIRECTORY").filter(|directory| Path::new(directory).is_absolute());
    mode_within(path, directory.as_deref().map(Path::new), mode & 0o777)
}

fn mode_within(path: &Path, credentials: Option<&Path>, mode: u32) -> u32 {
    let is_credential = credentials.is_some_and(|directory| path.parent() == Some(directory));
    if is_credential { mode & !0o040 } else { mode }
}

/// Whether `path`, or a parent directory, is a dangling symbolic link.
fn leads_nowhere(path: &Path) -> bool {
    let nearest = path.ancestors().find(|part| part.symlink_metadata().is_ok());
    nearest.is_some_and(|part| part.metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound))
}

/// Why a file is not trusted, and the command (without the file's name) that corrects it.
#[derive(Debug, PartialEq, Eq)]
struct Flaw {
    cause: String,
    remedy: String,
}

fn again(keeping: Keeping) -> &'static str {
    match keeping {
        Keeping::Public => "; check its content first",
        Keeping::Secret => "; if others may have read it, make a new one",
    }
}

/// The rule for a file of `owner` with `mode`, read by `user`.
fn flaw_of(owner: u32, mode: u32, keeping: Keeping, user: u32) -> Option<Flaw> {
    if owner != user && owner != 0 {
        let cause = format!(
            "it belongs to user {owner}, who can change it; trusted are this user's files and root's"
        );
        return Some(Flaw { cause, remedy: format!("chown {user}") });
    }
    let secret = keeping == Keeping::Secret;
    let remedy = if secret { "chmod 600" } else { "chmod go-w" };
    let what_others_may = match () {
        () if mode & 0o022 != 0 => "write",
        () if secret && mode & 0o077 != 0 => "read",
        () => return None,
    };
    Some(Flaw { cause: format!("others may {what_others_may} it (mode {mode:03o})"), remedy: remedy.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_write_no_file_and_read_no_secret() {
        const ME: u32 = 1000;
        // owner, mode, flaw as a public file, flaw as a secret
        let all = [
            (ME, 0o600, None, None),
            (0, 0o400, None, None),
            (ME, 0o644, None, Some("read")),
            (ME, 0o640, None, Some("read")),
            (ME, 0o601, None, Some("read")),
            (ME, 0o620, Some("write"), Some("write")),
            (ME, 0o602, Some("write"), Some("write")),
            (0, 0o666, Some("write"), Some("write")),
            (1001, 0o600, Some("belongs to user 1001"), Some("belongs to user 1001")),
        ];
        for (owner, mode, public, secret) in all {
            for (keeping, expected) in [(Keeping::Public, public), (Keeping::Secret, secret)] {
                let found = flaw_of(owner, mode, keeping, ME).map(|flaw| flaw.cause);
                match (found, expected) {
                    (None, None) => {}
                    (Some(cause), Some(words)) => assert!(cause.contains(words), "{mode:o}: {cause}"),
                    (found, expected) => panic!("{owner} {mode:o} {keeping:?}: {found:?}, not {expected:?}"),
                }
            }
        }
    }

    #[test]
    fn a_credential_of_the_service_may_have_an_access_list() {
        let directory = Path::new("/run/credentials/hikyaku.service");
        let all = [
            ("/run/credentials/hikyaku.service/key", Some(directory), 0o440, 0o400),
            ("/run/credentials/hikyaku.service/key", Some(directory), 0o464, 0o424),
            ("/run/credentials/hikyaku.service/../key", Some(directory), 0o440, 0o440),
            ("/run/credentials/other.service/key", Some(directory), 0o440, 0o440),
            ("/run/credentials/hikyaku.service/key", None, 0o440, 0o440),
        ];
        for (path, credentials, mode, expected) in all {
            assert_eq!(mode_within(Path::new(path), credentials, mode), expected, "{path} {mode:o}");
        }
    }

    #[test]
    fn what_is_read_is_bounded() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [b'x'; 100]).unwrap();
        let read = |bytes_max| read(file.path(), "it", Keeping::Secret, bytes_max).unwrap();
        assert_eq!(read(100).unwrap().len(), 100);
        assert_eq!(read(99).unwrap_err().to_string(), "it is longer than 99 bytes");
    }
}
