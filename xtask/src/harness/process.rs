//! Child processes with bounds: every wait has a limit, every child dies with its guard, and also when this
//! process is killed.
//!
//! Start children from the main thread only: `PR_SET_PDEATHSIG` fires when the *thread* that forked ends.

use std::ffi::{CStr, CString};
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

/// Bytes of one output stream that are kept; of a longer one the oldest half is dropped.
const STREAM_BYTES_MAX: usize = 32 << 20;
/// How long the streams of an ended child may stay open (a grandchild may hold them).
const STREAM_CLOSE_LIMIT: Duration = Duration::from_secs(2);
/// Between two looks at a child that has not ended yet.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// How one finished command went.
#[derive(Debug)]
pub(crate) struct Output {
    /// Exit code; `None` when a signal or the limit ended it.
    pub(crate) code: Option<i32>,
    /// Signal that ended it.
    pub(crate) signal: Option<i32>,
    /// The limit passed and the command was killed.
    pub(crate) timed_out: bool,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) seconds: f64,
    /// What was run, for messages.
    pub(crate) line: String,
}

impl Output {
    /// The end state in words.
    pub(crate) fn ending(&self) -> String {
        match (self.timed_out, self.code, self.signal) {
            (true, ..) => format!("killed after {:.0} s", self.seconds),
            (_, Some(code), _) => format!("exit {code}"),
            (_, None, Some(signal)) => format!("signal {signal}"),
            (_, None, None) => "no status".to_owned(),
        }
    }

    /// Demands this exit code, else an error with the command and the end of its output.
    pub(crate) fn expect(self, code: i32) -> Result<Self> {
        if self.code == Some(code) {
            return Ok(self);
        }
        bail!(
            "{}: {}, expected exit {code}\n--- stdout\n{}\n--- stderr\n{}",
            self.line,
            self.ending(),
            tail(&self.stdout, 1500),
            tail(&self.stderr, 1500)
        )
    }

    /// Demands exit 0.
    pub(crate) fn success(self) -> Result<Self> {
        self.expect(0)
    }

    /// Both streams, for searching.
    pub(crate) fn text(&self) -> String {
        format!("{}\n{}", self.stdout, self.stderr)
    }
}

/// The last `bytes_max` bytes of a text, cut at a character.
pub(crate) fn tail(text: &str, bytes_max: usize) -> &str {
    let mut start = text.len().saturating_sub(bytes_max);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    text[start..].trim_end()
}

/// A command as one would type it.
pub(crate) fn line_of(command: &Command) -> String {
    let mut line = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        line.push(' ');
        line.push_str(&argument.to_string_lossy());
    }
    line
}

/// Where a program runs: environment, processor, network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Surroundings {
    pub(crate) variables: Vec<(&'static str, String)>,
    /// The one processor it may use.
    pub(crate) core: Option<usize>,
    /// The network namespace, by the name that `ip netns` knows.
    pub(crate) network: Option<String>,
}

impl Surroundings {
    /// Ours, but for one environment variable.
    pub(crate) fn variable(name: &'static str, value: &str) -> Self {
        Self { variables: vec![(name, value.to_owned())], ..Self::default() }
    }

    /// Gives them to a command.
    pub(crate) fn apply(&self, command: &mut Command) {
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        if let Some(core) = self.core {
            // SAFETY: `pin` makes one system call and allocates nothing.
            unsafe { command.pre_exec(move || pin(core)) };
        }
        if let Some(network) = &self.network {
            let path = CString::new(format!("/run/netns/{network}")).expect("a name without NUL");
            // SAFETY: `enter` makes three system calls and allocates nothing.
            unsafe { command.pre_exec(move || enter(&path)) };
        }
    }
}

/// Takes the calling thread into a network namespace.
pub(crate) fn enter(path: &CStr) -> std::io::Result<()> {
    // SAFETY: plain system calls on a path that outlives them and on a descriptor opened here.
    unsafe {
        let namespace = libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if namespace < 0 || libc::setns(namespace, libc::CLONE_NEWNET) != 0 {
            return Err(std::io::Error::last_os_error());
        }
        libc::close(namespace);
    }
    Ok(())
}

/// Binds the calling thread, and what it starts from now on, to one processor.
pub(crate) fn pin(core: usize) -> std::io::Result<()> {
    // SAFETY: the set is plain data, and the macros and the call only touch it.
    let result = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)
    };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[derive(Debug, Default)]
struct Stream {
    bytes: Vec<u8>,
    closed: bool,
}

/// What a reader thread collects of one stream.
#[derive(Clone, Debug, Default)]
struct Collector {
    shared: Arc<(Mutex<Stream>, Condvar)>,
}

impl Collector {
    fn start(mut from: impl Read + Send + 'static) -> Self {
        let collector = Self::default();
        let to = collector.clone();
        std::thread::spawn(move || {
            let mut buffer = vec![0u8; 64 << 10];
            loop {
                let count = from.read(&mut buffer).unwrap_or(0);
                let (stream, changed) = &*to.shared;
                let mut stream = stream.lock().expect("no panic under this lock");
                if count == 0 {
                    stream.closed = true;
                } else {
                    if stream.bytes.len() + count > STREAM_BYTES_MAX {
                        stream.bytes.drain(..STREAM_BYTES_MAX / 2);
                    }
                    stream.bytes.extend_from_slice(&buffer[..count]);
                }
                changed.notify_all();
                if count == 0 {
                    break;
                }
            }
        });
        collector
    }

    /// Waits until `ready` holds or the stream closes; `None` when the limit passes first.
    fn wait<T>(&self, limit: Duration, mut ready: impl FnMut(&str) -> Option<T>) -> Option<T> {
        let until = Instant::now() + limit;
        let (stream, changed) = &*self.shared;
        let mut stream = stream.lock().expect("no panic under this lock");
        loop {
            let found = ready(&String::from_utf8_lossy(&stream.bytes));
            let now = Instant::now();
            if found.is_some() || stream.closed || now >= until {
                return found;
            }
            stream = changed.wait_timeout(stream, until - now).expect("no panic under this lock").0;
        }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.shared.0.lock().expect("no panic under this lock").bytes).into_owned()
    }

    /// Everything, once the writer has closed it (or soon after, when somebody else holds it open).
    fn finish(&self) -> String {
        let until = Instant::now() + STREAM_CLOSE_LIMIT;
        let (stream, changed) = &*self.shared;
        let mut stream = stream.lock().expect("no panic under this lock");
        while !stream.closed && Instant::now() < until {
            stream = changed.wait_timeout(stream, POLL_INTERVAL * 10).expect("no panic under this lock").0;
        }
        String::from_utf8_lossy(&stream.bytes).into_owned()
    }
}

/// A running child; dropping it kills it (by its process id) and reaps it.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    stdout: Collector,
    stderr: Collector,
    line: String,
    started: Instant,
}

impl Running {
    /// Starts a command with its output collected and nothing on its input.
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A user's own credentials or state must never decide a test.
        for name in ["USERNAME", "PASSWORD", "TARGET_USERNAME", "TARGET_PASSWORD"] {
            let name = format!("LIBISCSI_CHAP_{name}");
            if !command.get_envs().any(|(key, _)| key == name.as_str()) {
                command.env_remove(name);
            }
        }
        let parent = std::process::id();
        // SAFETY: only async-signal-safe calls (prctl, getppid, _exit) between fork and exec.
        unsafe {
            command.pre_exec(move || {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                if libc::getppid().cast_unsigned() != parent {
                    libc::_exit(127);
                }
                Ok(())
            });
        }
        let line = line_of(command);
        let mut child = command.spawn().with_context(|| format!("start {line}"))?;
        let stdout = Collector::start(child.stdout.take().expect("piped above"));
        let stderr = Collector::start(child.stderr.take().expect("piped above"));
        Ok(Self { child, stdout, stderr, line, started: Instant::now() })
    }

    /// Process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for something in the standard output so far; an error names what came instead.
    pub(crate) fn wait_stdout<T>(
        &mut self,
        what: &str,
        limit: Duration,
        ready: impl FnMut(&str) -> Option<T>,
    ) -> Result<T> {
        if let Some(found) = self.stdout.wait(limit, ready) {
            return Ok(found);
        }
        let state = if self.ended() { "it has ended" } else { "it still runs" };
        bail!(
            "{}: no {what} within {:.0} s ({state})\n--- stdout\n{}\n--- stderr\n{}",
            self.line,
            limit.as_secs_f64(),
            tail(&self.stdout.text(), 1500),
            tail(&self.stderr.text(), 1500)
        )
    }

    /// Since its start.
    pub(crate) fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Whether it has ended by itself.
    pub(crate) fn ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    /// What it wrote to standard error so far.
    pub(crate) fn stderr(&self) -> String {
        self.stderr.text()
    }

    /// The end of what it wrote to standard error.
    pub(crate) fn stderr_tail(&self) -> String {
        tail(&self.stderr.text(), 2000).to_owned()
    }

    /// Everything on its standard output so far.
    pub(crate) fn stdout_text(&self) -> String {
        self.stdout.text()
    }

    /// Kills it and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Sends a signal to it.
    pub(crate) fn signal(&mut self, signal: i32) -> Result<()> {
        if self.ended() {
            bail!("{}: already ended; cannot send signal {signal}\n{}", self.line, self.stderr_tail());
        }
        // SAFETY: a plain system call; the child is not reaped yet, so the id is still its own.
        let result = unsafe { libc::kill(self.pid().cast_signed(), signal) };
        if result != 0 {
            bail!("signal {signal} to {}: {}", self.line, std::io::Error::last_os_error());
        }
        Ok(())
    }

    fn wait_status(&mut self, limit: Duration) -> Result<Option<ExitStatus>> {
        let until = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait().with_context(|| format!("wait for {}", self.line))? {
                return Ok(Some(status));
            }
            if Instant::now() >= until {
                return Ok(None);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Waits for its end; past the limit it is killed and the output says so.
    pub(crate) fn finish(mut self, limit: Duration) -> Result<Output> {
        let status = self.wait_status(limit)?;
        let timed_out = status.is_none();
        if timed_out {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        let seconds = self.started.elapsed().as_secs_f64();
        Ok(Output {
            code: status.and_then(|status| status.code()),
            signal: status.and_then(|status| status.signal()),
            timed_out,
            stdout: self.stdout.finish(),
            stderr: self.stderr.finish(),
            seconds,
            line: std::mem::take(&mut self.line),
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended() {
            self.kill();
        }
    }
}

/// Runs a command to its end, at most `limit`.
pub(crate) fn run(command: &mut Command, limit: Duration) -> Result<Output> {
    Running::start(command)?.finish(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_and_code_are_collected() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo out; echo err >&2; exit 3"]);
        let output = run(&mut command, Duration::from_secs(10)).unwrap();
        assert_eq!(
            (output.code, output.stdout.as_str(), output.stderr.as_str()),
            (Some(3), "out\n", "err\n")
        );
        assert!(output.success().is_err());
    }

    #[test]
    fn limit_kills() {
        let mut command = Command::new("sleep");
        command.arg("60");
        let output = run(&mut command, Duration::from_millis(100)).unwrap();
        assert!(output.timed_out && output.code.is_none());
    }

    #[test]
    fn drop_kills() {
        let mut command = Command::new("sleep");
        command.arg("60");
        let running = Running::start(&mut command).unwrap();
        let pid = running.pid();
        drop(running);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn tail_cuts_at_characters() {
        assert_eq!(tail("aé", 2), "é");
        assert_eq!(tail("aé", 1), "");
    }
}
