//! Opens files that are read completely before any storage is opened: keys, lists, manifests, journals.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Opens `path` for reading. The open never waits for another process; a read waits only if `path` names an open
/// descriptor.
///
/// A FIFO is an error: its open waits for a writer, and any process with write access to the directory can put one there. A
/// path that names an open descriptor of a process (`/dev/stdin`, or `/dev/fd/N` of a shell's `<(...)`) may be a pipe,
/// and a read waits for the pipe's writer. A link to such a path does not count as one.
pub fn open_input(path: &Path) -> io::Result<File> {
    let is_descriptor = names_descriptor(path);
    let waits = if is_descriptor { 0 } else { libc::O_NONBLOCK };
    let file =
        OpenOptions::new().read(true).custom_flags(waits | libc::O_NOCTTY | libc::O_CLOEXEC).open(path)?;
    if !is_descriptor && file.metadata()?.file_type().is_fifo() {
        return Err(io::Error::other("it is a FIFO, not a file"));
    }
    Ok(file)
}

/// Whether the path as typed is `/dev/stdin`, `/dev/fd/N`, `/proc/self/fd/N` or `/proc/PID/fd/N`.
fn names_descriptor(path: &Path) -> bool {
    let Some(text) = path.to_str() else { return false };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let parts: Vec<&str> = text.split('/').collect();
    match parts[..] {
        ["", "dev", "stdin"] => true,
        ["", "dev", "fd", descriptor] => is_number(descriptor),
        ["", "proc", process, "fd", descriptor] => {
            (matches!(process, "self" | "thread-self") || is_number(process)) && is_number(descriptor)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{PipeReader, Read, Write};
    use std::os::fd::AsRawFd;
    use std::time::Duration;

    use rustix::fs::Mode;

    use super::*;

    fn path_of(pipe: &PipeReader, directory: &str) -> String {
        format!("{directory}/{}", pipe.as_raw_fd())
    }

    #[test]
    fn a_fifo_and_a_link_to_a_pipe_are_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, Mode::RUSR | Mode::WUSR).unwrap();
        assert_eq!(open_input(&fifo).unwrap_err().to_string(), "it is a FIFO, not a file");
        let (pipe, _writer) = io::pipe().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(path_of(&pipe, "/proc/self/fd"), &link).unwrap();
        assert!(open_input(&link).is_err());
        let none = open_input(&fifo.with_file_name("none"));
        assert!(none.is_err_and(|error| error.kind() == io::ErrorKind::NotFound));
    }

    #[test]
    fn an_open_pipe_is_read_to_its_end_however_slow_its_writer_is() {
        for directory in ["/dev/fd", "/proc/self/fd"] {
            let (pipe, mut writer) = io::pipe().unwrap();
            let mut file = open_input(Path::new(&path_of(&pipe, directory))).unwrap();
            let slow = std::thread::spawn(move || {
                for word in [b"one ", b"two "] {
                    std::thread::sleep(Duration::from_millis(20));
                    writer.write_all(word).unwrap();
                }
            });
            let mut text = String::new();
            file.read_to_string(&mut text).unwrap();
            slow.join().unwrap();
            assert_eq!(text, "one two ");
        }
    }

    #[test]
    fn descriptors_are_known_by_their_paths() {
        for path in [
            "/dev/stdin",
            "/dev/fd/0",
            "/dev/fd/63",
            "/proc/self/fd/3",
            "/proc/17/fd/3",
            "/proc/thread-self/fd/3",
        ] {
            assert!(names_descriptor(Path::new(path)), "{path}");
        }
        for path in [
            "/dev/fd",
            "/dev/fd/",
            "/dev/fd/../../tmp/x",
            "/dev/fd/3/x",
            "dev/fd/3",
            "/proc/self/fd/x",
            "/proc/x/fd/3",
            "/tmp/stdin",
        ] {
            assert!(!names_descriptor(Path::new(path)), "{path}");
        }
    }
}
