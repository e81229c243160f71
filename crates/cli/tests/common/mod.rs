//! Helpers for the tests of the binary.

#![allow(dead_code)]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// A directory of one test, with its own state directory.
pub(crate) struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Creates a file with reproducible content.
    pub(crate) fn sample(&self, name: &str, bytes: usize) -> PathBuf {
        let mut content = vec![0; bytes];
        block::fill_pattern(7, 0, &mut content);
        self.file(name, &content)
    }

    pub(crate) fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).unwrap();
        // Mode 0600 for any content: a secret that others can read is refused.
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        path
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hikyaku"));
        command.current_dir(self.dir.path()).stdin(Stdio::null());
        command.env("XDG_STATE_HOME", self.path("state")).env("XDG_CONFIG_HOME", self.path("config"));
        for name in ["USERNAME", "PASSWORD", "TARGET_USERNAME", "TARGET_PASSWORD"] {
            command.env_remove(format!("LIBISCSI_CHAP_{name}"));
        }
        command.env_remove("HIKYAKU_LOG");
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        Ran::from(self.command().args(arguments).output().unwrap())
    }

    /// Starts a server and waits for the URLs that it prints.
    pub(crate) fn serve(&self, arguments: &[&str]) -> Serving {
        self.serve_at("127.0.0.1:0", arguments)
    }

    /// [`Self::serve`] with all words of the command line; one LUN.
    pub(crate) fn serve_words(&self, words: &[String]) -> Serving {
        let mut command = self.command();
        let mut child = command.args(words).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let urls = vec![lines.next().expect("a server that starts").unwrap()];
        Serving { child, urls }
    }

    /// [`Self::serve`] on a given port.
    pub(crate) fn serve_at(&self, listen: &str, arguments: &[&str]) -> Serving {
        let mut child = self
            .command()
            .arg("serve")
            .args(["--listen", listen])
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let luns = arguments.iter().take_while(|argument| !argument.starts_with("--")).count();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let urls: Vec<String> =
            (0..luns).map(|_| lines.next().expect("a server that starts").unwrap()).collect();
        Serving { child, urls }
    }
}

/// Exit code and output of a run.
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Ran {
    /// Asserts the exit code; a failure shows the whole output.
    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self
    }

    /// The last line of stdout as JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        let line = self.stdout.lines().last().unwrap_or_default();
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {}\n{}", self.stdout, self.stderr))
    }

    /// The error object on stderr.
    #[track_caller]
    pub(crate) fn error(&self) -> Value {
        let line = self.stderr.lines().last().unwrap_or_default();
        let value: Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {}", self.stderr));
        value["error"].clone()
    }
}

/// A running server; killed on drop.
pub(crate) struct Serving {
    pub(crate) child: Child,
    pub(crate) urls: Vec<String>,
}

impl Serving {
    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// Waits for the end of the server; returns its exit code.
    pub(crate) fn wait(&mut self) -> i32 {
        wait(&mut self.child)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until a running copy has written so many bytes of a file.
pub(crate) fn until_written(path: &Path, bytes: u64, copy: &mut Child) {
    use std::os::unix::fs::MetadataExt;
    let deadline = Instant::now() + Duration::from_secs(20);
    while std::fs::metadata(path).map_or(0, |found| found.blocks() * 512) < bytes {
        assert!(copy.try_wait().unwrap().is_none(), "it has ended already");
        assert!(Instant::now() < deadline, "it writes nothing");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits for a child, at most 20 s; returns its exit code.
pub(crate) fn wait(child: &mut Child) -> i32 {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code().unwrap_or(-1);
        }
        assert!(Instant::now() < deadline, "it does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
