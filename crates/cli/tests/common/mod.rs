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

    /// With a file `a.img` of reproducible content.
    pub(crate) fn with_sample(bytes: usize) -> Self {
        let place = Self::new();
        place.sample("a.img", bytes);
        place
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
        // Servers and copies of other tests are not to be seen.
        command.env("XDG_RUNTIME_DIR", self.path("run"));
        for name in ["USERNAME", "PASSWORD", "TARGET_USERNAME", "TARGET_PASSWORD"] {
            command.env_remove(format!("LIBISCSI_CHAP_{name}"));
        }
        command.env_remove("HIKYAKU_LOG");
        command
    }

    /// Makes a script that [`Self::path_with_programs`] puts before the programs of the machine.
    pub(crate) fn program(&self, name: &str, script: &str) {
        std::fs::create_dir_all(self.path("bin")).unwrap();
        let program = self.file(&format!("bin/{name}"), script.as_bytes());
        std::fs::set_permissions(program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }

    pub(crate) fn path_with_programs(&self) -> String {
        format!("{}:{}", self.path("bin").display(), std::env::var("PATH").unwrap())
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
        Serving::start(self.command().args(words), 1)
    }

    pub(crate) fn serve_at(&self, listen: &str, arguments: &[&str]) -> Serving {
        let luns = arguments.iter().take_while(|argument| !argument.starts_with("--")).count();
        Serving::start(self.command().args(["serve", "--listen", listen]).args(arguments), luns)
    }
}

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

    #[track_caller]
    pub(crate) fn on_stderr(self, words: &str) -> Self {
        assert!(self.stderr.contains(words), "no '{words}' in: {}", self.stderr);
        self
    }

    #[track_caller]
    pub(crate) fn on_stdout(self, words: &str) -> Self {
        assert!(self.stdout.contains(words), "no '{words}' in: {}", self.stdout);
        self
    }

    /// The last line of stdout as JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        let line = self.stdout.lines().last().unwrap_or_default();
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {}\n{}", self.stdout, self.stderr))
    }

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
    /// Starts a server and waits for the URLs of its LUNs.
    pub(crate) fn start(command: &mut Command, luns: usize) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let urls = (0..luns).map(|_| lines.next().expect("a server that starts").unwrap()).collect();
        Self { child, urls }
    }

    pub(crate) fn signal(&self, signal: &str) {
        kill(signal, self.child.id());
    }

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

/// Sends a signal to a process, or to a group if the number is negative.
pub(crate) fn kill(signal: &str, pid: impl std::fmt::Display) {
    assert!(Command::new("kill").args([signal, "--", &pid.to_string()]).status().unwrap().success());
}

/// Waits until `condition` holds, at most 20 s.
#[track_caller]
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn until_written(path: &Path, bytes: u64, copy: &mut Child) {
    use std::os::unix::fs::MetadataExt;
    eventually("it writes", || {
        assert!(copy.try_wait().unwrap().is_none(), "it has ended already");
        std::fs::metadata(path).map_or(0, |found| found.blocks() * 512) >= bytes
    });
}

/// Waits for a child, at most 20 s; returns its exit code.
#[track_caller]
pub(crate) fn wait(child: &mut Child) -> i32 {
    let mut ended = None;
    eventually("it ends", || {
        ended = child.try_wait().unwrap();
        ended.is_some()
    });
    ended.unwrap().code().unwrap_or(-1)
}

/// Starts a command without output.
pub(crate) fn spawn(command: &mut Command) -> Child {
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Dirty pages of a file or device in the page cache: cachestat(2), since Linux 6.5; `None` before.
pub(crate) fn dirty_pages(file: &std::fs::File) -> Option<u64> {
    const SYS_CACHESTAT: libc::c_long = 451;
    let (range, mut answer) = ([0u64, u64::MAX], [0u64; 5]);
    // SAFETY: both structures have the size that the kernel expects and live through the call, which fills the second.
    let result = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            std::os::fd::AsRawFd::as_raw_fd(file),
            range.as_ptr(),
            answer.as_mut_ptr(),
            0,
        )
    };
    (result == 0).then_some(answer[1])
}

/// A loop device, detached on drop.
pub(crate) struct Loop(pub(crate) String);

impl Loop {
    /// `None`, with a message, where there are no loop devices.
    pub(crate) fn over(file: &Path) -> Option<Self> {
        let output = Command::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(file).output();
        let Some(output) = output.ok().filter(|output| output.status.success()) else {
            eprintln!("no loop device (root is needed): skipped");
            return None;
        };
        Some(Self(String::from_utf8(output.stdout).unwrap().trim().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let detached = Command::new("losetup").args(["--detach", &self.0]).status();
        assert!(std::thread::panicking() || detached.unwrap().success());
    }
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
