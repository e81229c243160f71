//! Files that a command writes for people: reports, figures, captures. Nothing but an earlier file of the same kind is
//! overwritten, and a file is whole or as it was. Both are examined before the content is made and again before it is
//! moved to its path: a capture from a pipe may take hours.

use std::fs::{self, File, Permissions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::{Failure, shell};

/// A file to be written: its content goes to a temporary file beside it, which [`Place::complete`] moves there. Dropped
/// before, it leaves nothing.
#[derive(Debug)]
pub struct Place {
    path: PathBuf,
    noun: &'static str,
    /// How the files begin that may be overwritten.
    marks: Vec<Vec<u8>>,
    was_absent: bool,
    file: NamedTempFile,
}

/// Who may read a new file. One that replaces another has its permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readers {
    Owner,
    All,
}

impl Place {
    /// A place at `path`, if that is absent, empty, or begins with one of `marks`. Messages call the file `noun`.
    ///
    /// # Errors
    /// Refused if the path holds something else; failed if it cannot be read, or its directory not be written.
    pub fn new(path: &Path, noun: &'static str, marks: &[&[u8]], readers: Readers) -> Result<Self, Failure> {
        let before = earlier(path, noun, marks)?;
        let mode = match (&before, readers) {
            (Some(metadata), _) => metadata.permissions().mode() & 0o777,
            (None, Readers::Owner) => 0o600,
            (None, Readers::All) => 0o644,
        };
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = directory.unwrap_or(Path::new("."));
        let mut builder = tempfile::Builder::new();
        builder.prefix(".hikyaku-report-").permissions(Permissions::from_mode(mode));
        let file = builder.tempfile_in(directory).map_err(|error| {
            if error.kind() != io::ErrorKind::NotFound {
                return failed(path, noun, error);
            }
            let directory = directory.display().to_string();
            failed(path, noun, io::Error::other(format!("there is no directory {directory}")))
                .hint(format!("mkdir -p {}", shell::quoted(&directory)))
        })?;
        let marks = marks.iter().map(|mark| mark.to_vec()).collect();
        Ok(Self { path: path.to_owned(), noun, marks, was_absent: before.is_none(), file })
    }

    /// A writer of the content, for those that write it over time. Flush it before [`Place::complete`].
    ///
    /// # Errors
    /// If no further descriptor can be opened.
    pub fn writer(&self) -> Result<BufWriter<File>, Failure> {
        self.file.reopen().map(BufWriter::new).map_err(|error| self.failure(error))
    }

    /// Where the file appears.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The failure of a write of the content.
    pub fn failure(&self, error: io::Error) -> Failure {
        failed(&self.path, self.noun, error)
    }

    /// Moves the content to its path.
    ///
    /// # Errors
    /// Refused if the path holds something else since [`Place::new`]; failed if the file system refuses it.
    pub fn complete(self) -> Result<(), Failure> {
        let Self { path, noun, marks, was_absent, file } = self;
        let marks: Vec<_> = marks.iter().map(Vec::as_slice).collect();
        let moved = if was_absent {
            match file.persist_noclobber(&path) {
                Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => {
                    earlier(&path, noun, &marks)?;
                    error.file.persist(&path)
                }
                moved => moved,
            }
        } else {
            earlier(&path, noun, &marks)?;
            file.persist(&path)
        };
        moved.map(drop).map_err(|error| failed(&path, noun, error.error))
    }

    /// Writes the whole content and moves it to its path.
    ///
    /// # Errors
    /// Those of `content`, and of [`Place::complete`].
    pub fn write(self, content: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> Result<(), Failure> {
        let mut out = self.writer()?;
        content(&mut out).and_then(|()| out.flush()).map_err(|error| self.failure(error))?;
        self.complete()
    }
}

/// The file at `path` that may be overwritten; `None` if there is none.
fn earlier(path: &Path, noun: &'static str, marks: &[&[u8]]) -> Result<Option<fs::Metadata>, Failure> {
    let failed = |error| failed(path, noun, error);
    // A link is something else, whether or not its file exists.
    let what = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
        Ok(metadata) if metadata.is_dir() => "there is a directory",
        Ok(metadata) if metadata.is_symlink() => "there is a symbolic link",
        Ok(metadata) if !metadata.is_file() => "there is a device, a pipe or a socket",
        Ok(metadata) if is_ours(path, marks).map_err(failed)? => return Ok(Some(metadata)),
        Ok(_) => "there is another file",
    };
    Err(Failure::refused(format!("write the {noun}"), path.display().to_string(), what)
        .hint(format!("another name: only an earlier {noun} is overwritten")))
}

/// Whether the file is empty or begins with one of `marks`.
fn is_ours(path: &Path, marks: &[&[u8]]) -> io::Result<bool> {
    let longest = marks.iter().map(|mark| mark.len()).max().unwrap_or(0);
    let mut head = Vec::new();
    block::open_input(path)?.take(longest as u64).read_to_end(&mut head)?;
    Ok(head.is_empty() || marks.iter().any(|mark| head.starts_with(mark)))
}

fn failed(path: &Path, noun: &str, error: io::Error) -> Failure {
    Failure::failed(format!("write the {noun}"), path.display().to_string(), error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_missing_is_named() {
        let error = Place::new(Path::new("/nodir/x.html"), "page", &[], Readers::All).unwrap_err();
        assert!(error.to_string().contains("there is no directory /nodir"), "{error}");
    }
    use crate::Ending;

    fn place(path: &Path) -> Result<Place, Failure> {
        Place::new(path, "figure", &[b"one mark", b"two"], Readers::All)
    }

    #[test]
    fn only_an_earlier_file_of_the_kind_is_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        for (content, is_ours) in
            [("", true), ("one mark and more", true), ("two", true), ("one", false), ("other", false)]
        {
            fs::write(&path, content).unwrap();
            match place(&path) {
                Ok(_) => assert!(is_ours, "{content}"),
                Err(failure) => {
                    assert!(!is_ours && failure.ending == Ending::Refused, "{content}: {failure}");
                    assert!(failure.hint.contains("only an earlier figure"), "{failure:?}");
                }
            }
        }
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(directory.path().join("absent"), &path).unwrap();
        assert_eq!(place(&path).unwrap_err().ending, Ending::Refused);
    }

    #[test]
    fn a_file_that_appears_meanwhile_is_not_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        for (before, meanwhile, is_ours) in
            [(None, "other", false), (None, "two", true), (Some("two"), "other", false)]
        {
            before.map_or(Ok(()), |content| fs::write(&path, content)).unwrap();
            let place = place(&path).unwrap();
            fs::write(&path, meanwhile).unwrap();
            let written = place.write(|file| file.write_all(b"two, new"));
            assert_eq!(written.is_ok(), is_ours, "{before:?} {meanwhile}");
            let expected = if is_ours { "two, new" } else { meanwhile };
            assert_eq!(fs::read_to_string(&path).unwrap(), expected);
            fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn a_replaced_file_keeps_its_permissions() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        for (readers, expected) in [(Readers::Owner, 0o600), (Readers::All, 0o644)] {
            let place = Place::new(&path, "figure", &[b"two"], readers).unwrap();
            place.write(|file| file.write_all(b"two")).unwrap();
            assert_eq!(mode(), expected);
            fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
            let place = Place::new(&path, "figure", &[b"two"], readers).unwrap();
            place.write(|file| file.write_all(b"two")).unwrap();
            assert_eq!(mode(), 0o640);
            fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn a_file_is_whole_or_as_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        assert!(place(&path).is_ok() && !path.exists(), "a place that is dropped leaves nothing");
        place(&path).unwrap().write(|file| file.write_all(b"two, first")).unwrap();
        let broken = place(&path).unwrap().write(|file| {
            file.write_all(b"two, second")?;
            Err(io::Error::other("no more"))
        });
        assert_eq!(broken.unwrap_err().ending, Ending::Failed);
        assert_eq!(fs::read_to_string(&path).unwrap(), "two, first");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "no temporary file remains");
    }
}
