//! A manifest in a file chosen by the user: replaced as a whole; other files are never overwritten.

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use super::{HEAD, MANIFEST_BYTES_MAX, Manifest};
use crate::journal::{Call, beside, create_beside, read_whole, replace};

/// The content of the manifest at `path`, not parsed; at most [`MANIFEST_BYTES_MAX`] bytes.
pub fn read_manifest(path: &Path) -> io::Result<Vec<u8>> {
    read_whole(path, MANIFEST_BYTES_MAX, "it is too long for a manifest")
}

/// Whether [`write_manifest`] could write here: the directory is writable, and no file other than a manifest would be
/// overwritten (`AlreadyExists`), neither `path` nor `path` with `.new` appended.
pub fn check_manifest_place(path: &Path) -> io::Result<()> {
    let (_, beside) = beside(path)?;
    is_free(path)?;
    is_free(&beside)?;
    create_beside(&beside)?;
    fs::remove_file(&beside)
}

/// Replaces an earlier manifest: at any time the file is the old or the new one, and after success the new one is
/// durable.
pub fn write_manifest(path: &Path, manifest: &Manifest) -> io::Result<()> {
    write(path, manifest, |_| Ok(()))
}

fn write(path: &Path, manifest: &Manifest, before: impl FnMut(Call) -> io::Result<()>) -> io::Result<()> {
    check_manifest_place(path)?;
    replace(path, manifest.emit().as_bytes(), before)
}

/// An error unless `path` does not exist or begins like a manifest.
fn is_free(path: &Path) -> io::Result<()> {
    let taken = || io::Error::new(ErrorKind::AlreadyExists, format!("{} is something else", path.display()));
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(metadata) if !metadata.is_file() => return Err(taken()),
        Ok(_) => {}
    }
    let mut head = Vec::new();
    block::open_input(path)?.take(HEAD.len() as u64).read_to_end(&mut head)?;
    // Accepts a truncated head too.
    if HEAD.as_bytes().starts_with(&head) { Ok(()) } else { Err(taken()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapfile::Label;
    use crate::sums::{Content, EXTENT_BYTES_MIN, Sum, Sums};

    fn manifest(value: u8) -> Manifest {
        let sum = Sum { offset: 0, bytes: 4096, content: Content::Data([value; 32]) };
        let sums = Sums::new(4096, EXTENT_BYTES_MIN, vec![sum]).unwrap();
        Manifest { label: Label { bytes: 4096, ..Label::default() }, sums }
    }

    fn read(path: &Path) -> Manifest {
        Manifest::parse(&read_manifest(path).unwrap()).unwrap()
    }

    #[test]
    fn whatever_step_is_the_last_the_file_is_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.manifest");
        let calls = [Call::Create, Call::Write, Call::Sync, Call::Rename, Call::SyncDirectory];
        for (round, last) in calls.into_iter().enumerate() {
            let (old, new) = (manifest(2 * round as u8), manifest(2 * round as u8 + 1));
            write_manifest(&path, &old).unwrap();
            let killed =
                write(
                    &path,
                    &new,
                    |call| {
                        if call == last { Err(io::Error::other("killed")) } else { Ok(()) }
                    },
                );
            assert!(killed.is_err());
            assert_eq!(read(&path), if last == Call::SyncDirectory { new } else { old }, "{last:?}");
        }
        write_manifest(&path, &manifest(9)).unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn nothing_but_a_manifest_is_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::write(path("a"), "a letter").unwrap();
        fs::write(path("b.new"), "another").unwrap();
        std::os::unix::fs::symlink(path("elsewhere"), path("c")).unwrap();
        fs::create_dir(path("d")).unwrap();
        for name in ["a", "b", "c", "d"] {
            let error = write_manifest(&path(name), &manifest(1)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{name}: {error}");
        }
        assert_eq!(fs::read(path("a")).unwrap(), b"a letter");
        assert_eq!(fs::read(path("b.new")).unwrap(), b"another");
        assert_eq!(check_manifest_place(&path("x/y")).unwrap_err().kind(), ErrorKind::NotFound);
        check_manifest_place(&path("e")).unwrap();
        assert!(!path("e").exists() && !path("e.new").exists());
    }
}
