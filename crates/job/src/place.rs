//! Files that a command writes for people: reports, figures, graphs. Nothing but an earlier file of the same kind is
//! overwritten, and a file is whole or not there.

use std::fs;
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::Failure;

/// A kind of file: what messages call it, and the first bytes of such a file, one of `marks`.
#[derive(Clone, Copy, Debug)]
pub struct FileKind {
    /// `report`, `figure`.
    pub noun: &'static str,
    pub marks: &'static [&'static str],
}

/// A file to be written: [`Output::begin`] before the work, [`Output::write`] after it.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
    kind: FileKind,
}

impl Output {
    /// Checks that the file can be written and is absent, empty, or an earlier one of this kind.
    ///
    /// # Errors
    /// Refused if the path holds something else; failed if it cannot be read or its directory not be written.
    pub fn begin(path: &Path, kind: FileKind) -> Result<Self, Failure> {
        let output = Self { path: path.to_owned(), kind };
        output.place()?;
        Ok(output)
    }

    /// Replaces the file by what `content` writes.
    ///
    /// # Errors
    /// As [`Output::begin`], which is checked again; and those of `content`.
    pub fn write(&self, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
        let mut file = BufWriter::new(self.place()?);
        content(&mut file).map_err(|error| self.failed(error))?;
        let file = file.into_inner().map_err(|error| self.failed(error.into_error()))?;
        file.persist(&self.path).map_err(|error| self.failed(error.error))?;
        Ok(())
    }

    /// Creates a temporary file beside the path, if the path may be overwritten.
    fn place(&self) -> Result<tempfile::NamedTempFile, Failure> {
        // A link is something else, whether or not its file exists.
        match fs::symlink_metadata(&self.path) {
            Ok(metadata) if !metadata.is_file() || !self.is_ours().map_err(|error| self.failed(error))? => {
                let noun = self.kind.noun;
                return Err(Failure::refused(self.attempt(), self.name(), "there is something else")
                    .hint(format!("another name: only an earlier {noun} is overwritten")));
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(self.failed(error)),
        }
        let directory = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let mut builder = tempfile::Builder::new();
        builder.prefix(".hikyaku-report-").permissions(fs::Permissions::from_mode(0o644));
        builder.tempfile_in(directory.unwrap_or(Path::new("."))).map_err(|error| self.failed(error))
    }

    /// Whether the file is empty or an earlier one.
    fn is_ours(&self) -> io::Result<bool> {
        let longest = self.kind.marks.iter().map(|mark| mark.len()).max().unwrap_or(0);
        let mut head = Vec::new();
        block::open_input(&self.path)?.take(longest as u64).read_to_end(&mut head)?;
        Ok(head.is_empty() || self.kind.marks.iter().any(|mark| head.starts_with(mark.as_bytes())))
    }

    fn attempt(&self) -> String {
        format!("write the {}", self.kind.noun)
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn failed(&self, error: io::Error) -> Failure {
        Failure::failed(self.attempt(), self.name(), error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Ending;

    const KIND: FileKind = FileKind { noun: "figure", marks: &["one mark", "two"] };

    #[test]
    fn only_an_earlier_file_of_the_kind_is_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        for (content, is_ours) in
            [("", true), ("one mark and more", true), ("two", true), ("one", false), ("other", false)]
        {
            fs::write(&path, content).unwrap();
            match Output::begin(&path, KIND) {
                Ok(_) => assert!(is_ours, "{content}"),
                Err(failure) => {
                    assert!(!is_ours && failure.ending == Ending::Refused, "{content}: {failure}");
                    assert!(failure.hint.contains("only an earlier figure"), "{failure:?}");
                }
            }
        }
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(directory.path().join("absent"), &path).unwrap();
        assert_eq!(Output::begin(&path, KIND).unwrap_err().ending, Ending::Refused);
    }

    #[test]
    fn a_file_is_whole_or_as_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        let output = Output::begin(&path, KIND).unwrap();
        assert!(!path.exists(), "begin writes nothing");
        output.write(|file| file.write_all(b"two, first")).unwrap();
        let broken = output.write(|file| {
            file.write_all(b"two, second")?;
            Err(io::Error::other("no more"))
        });
        assert_eq!(broken.unwrap_err().ending, Ending::Failed);
        assert_eq!(fs::read_to_string(&path).unwrap(), "two, first");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "no temporary file remains");
        fs::write(&path, "mine").unwrap();
        assert_eq!(output.write(|_| Ok(())).unwrap_err().ending, Ending::Refused);
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    }
}
