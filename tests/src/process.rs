//! Child processes with bounds: every wait has a limit. Dropping its guard kills a child, and so does the death of this
//! process.
//!
//! Start children from the main thread only: `PR_SET_PDEATHSIG` fires when the *thread* that forked ends.

use std::ffi::{CStr, CString};
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use serde_json::Value;
use steps::line_of;

/// Bytes kept of one output stream; the oldest half of a longer one is dropped.
const STREAM_BYTES_MAX: usize = 32 << 20;
/// Bytes of one output stream that a message quotes, from its end.
const SHOWN_BYTES_MAX: usize = 4000;
/// Maximum time that the streams of an ended child may stay open (a grandchild may hold them).
const STREAM_CLOSE_LIMIT: Duration = Duration::from_secs(2);
/// Interval at which a running child is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

#[derive(Debug, Default)]
pub struct Output {
    /// Exit code; `None` if a signal or the limit ended the command.
    pub code: Option<i32>,
    pub signal: Option<i32>,
    /// The limit passed and the command was killed.
    pub timed_out: bool,
    pub stdout: String,
    pub stderr: String,
    pub seconds: f64,
    pub line: String,
}

impl Output {
    pub fn ending(&self) -> String {
        match (self.timed_out, self.code, self.signal) {
            (true, ..) => format!("killed after {:.0} s", self.seconds),
            (_, Some(code), _) => format!("exit {code}"),
            (_, None, Some(signal)) => format!("signal {signal}"),
            (_, None, None) => "no status".to_owned(),
        }
    }

    /// Fails with the command and the end of its output unless the exit code is `code`.
    pub fn expect(self, code: i32) -> Result<Self> {
        ensure!(self.code == Some(code), "{}: expected exit {code}, got {self}", self.line);
        Ok(self)
    }

    pub fn success(self) -> Result<Self> {
        self.expect(0)
    }

    /// Fails unless standard error contains `words`.
    pub fn says(self, words: &str) -> Result<Self> {
        ensure!(self.stderr.contains(words), "{}: no '{words}' in: {self}", self.line);
        Ok(self)
    }

    /// Fails unless standard error contains all of `words`.
    pub fn says_all(self, words: &[&str]) -> Result<Self> {
        words.iter().try_fold(self, |output, word| output.says(word))
    }

    /// Both streams, for searches.
    pub fn text(&self) -> String {
        let streams =
            [self.stdout.as_str(), self.stderr.as_str()].into_iter().filter(|text| !text.is_empty());
        streams.collect::<Vec<_>>().join("\n")
    }

    /// The JSON object of standard output: the whole, or its last line.
    pub fn json(&self) -> Result<Value> {
        let last = self.stdout.trim_end().rsplit('\n').next().unwrap_or_default();
        let value = serde_json::from_str(&self.stdout).or_else(|_| serde_json::from_str(last));
        let value: Value = value.with_context(|| format!("{}: no JSON:\n{}", self.line, self.stdout))?;
        ensure!(value.is_object(), "{}: not an object: {value}", self.line);
        Ok(value)
    }

    /// The member `error` of the JSON object in the last line of standard error.
    pub fn json_error(&self) -> Result<Value> {
        let line = self.stderr.lines().last().context("nothing on stderr")?;
        let object: Value = serde_json::from_str(line).with_context(|| format!("{}: {line}", self.line))?;
        Ok(object["error"].clone())
    }

    /// Fails if the command did not end within its limit, or with a panic.
    pub fn orderly(self) -> Result<Self> {
        ensure!(!self.timed_out, "{}: did not end, {self}", self.line);
        ensure!(!self.text().contains("panicked"), "{}: {self}", self.line);
        Ok(self)
    }
}

/// The message of a failed case: the first line, which summaries print alone, has the end state and the last line of
/// standard error. The ends of both streams follow.
impl std::fmt::Display for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let last = self.stderr.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no message");
        write!(f, "{}: {}{}", self.ending(), last.trim(), streams(&self.stdout, &self.stderr))
    }
}

/// The ends of those output streams that are not empty, each below a heading.
fn streams(stdout: &str, stderr: &str) -> String {
    [("stdout", stdout), ("stderr", stderr)]
        .into_iter()
        .filter(|(_, text)| !text.trim().is_empty())
        .map(|(name, text)| format!("\n--- {name}\n{}", tail(text, SHOWN_BYTES_MAX)))
        .collect()
}

/// The last `bytes_max` bytes of a text, cut at a character boundary.
pub fn tail(text: &str, bytes_max: usize) -> &str {
    let mut start = text.len().saturating_sub(bytes_max);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    text[start..].trim_end()
}

/// Environment, processor and network namespace of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surroundings {
    pub variables: Vec<(&'static str, String)>,
    /// The only processor that it may use.
    pub core: Option<usize>,
    /// The network namespace, by its name in `ip netns`.
    pub network: Option<String>,
    /// Without the right to enlarge buffers of sockets beyond the sysctls.
    pub without_net_admin: bool,
}

impl Surroundings {
    /// The environment of this process with one more variable.
    pub fn variable(name: &'static str, value: &str) -> Self {
        Self { variables: vec![(name, value.to_owned())], ..Self::default() }
    }

    /// In a network namespace.
    pub fn network(name: &str) -> Self {
        Self { network: Some(name.to_owned()), ..Self::default() }
    }

    pub fn apply(&self, command: &mut Command) {
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
        if self.without_net_admin {
            // SAFETY: it makes one system call and allocates nothing.
            unsafe { command.pre_exec(drop_net_admin) };
        }
    }
}

/// The next program of root gets no CAP_NET_ADMIN.
fn drop_net_admin() -> std::io::Result<()> {
    const CAP_NET_ADMIN: libc::c_ulong = 12;
    // SAFETY: a plain system call.
    match unsafe { libc::prctl(libc::PR_CAPBSET_DROP, CAP_NET_ADMIN, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Moves the calling thread into a network namespace.
fn enter(path: &CStr) -> std::io::Result<()> {
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

/// Runs `work` on a thread inside a network namespace, so that no other thread has to leave it.
pub fn within<T: Send>(path: &CStr, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let work = || enter(path).with_context(|| format!("enter {path:?}")).and_then(|()| work());
    std::thread::scope(|scope| scope.spawn(work).join().map_err(|_| anyhow!("it panicked"))?)
}

/// Binds the calling thread, and threads and processes that it starts later, to one processor.
pub fn pin(core: usize) -> std::io::Result<()> {
    // SAFETY: the set is plain data that outlives the call.
    let result = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)
    };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// Raises this process's limit on open descriptors.
pub fn raise_descriptor_limit(wanted: u64) -> Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: plain system calls with a live structure.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        limit.rlim_cur = limit.rlim_max.min(wanted.max(limit.rlim_cur));
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
    }
    demand!(limit.rlim_cur >= wanted, "the limit on open descriptors (ulimit -Hn) is below {wanted}")
}

#[derive(Debug, Default)]
struct Stream {
    bytes: Vec<u8>,
    closed: bool,
}

/// Output that a reader thread has collected from one stream.
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

    /// Waits until `ready` returns a value or the stream closes; `None` when the limit passes first.
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

    /// The whole output, after the writer has closed the stream, or after [`STREAM_CLOSE_LIMIT`] if another process
    /// holds it open.
    fn finish(&self) -> String {
        self.wait(STREAM_CLOSE_LIMIT, |_| None::<()>);
        self.text()
    }
}

/// A running child; dropping it kills it (by its process id) and reaps it.
#[derive(Debug)]
pub struct Running {
    child: Child,
    stdout: Collector,
    stderr: Collector,
    line: String,
    started: Instant,
}

impl Running {
    /// Starts a command with its output collected and an empty input.
    pub fn start(command: &mut Command) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // The user's own credentials or state must never affect a test.
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

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until `ready` finds a value in the standard output; an error quotes the output.
    pub fn wait_stdout<T>(
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
            "{}: no {what} within {:.0} s ({state}){}",
            self.line,
            limit.as_secs_f64(),
            streams(&self.stdout.text(), &self.stderr.text())
        )
    }

    pub fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    pub fn ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    pub fn alive(&mut self) -> Result<()> {
        demand!(!self.ended(), "{}: has ended by itself\n--- its log\n{}", self.line, self.stderr_tail())
    }

    pub fn stderr(&self) -> String {
        self.stderr.text()
    }

    pub fn stderr_tail(&self) -> String {
        tail(&self.stderr.text(), 2000).to_owned()
    }

    pub fn stdout_text(&self) -> String {
        self.stdout.text()
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub fn signal(&mut self, signal: i32) -> Result<()> {
        if self.ended() {
            bail!("{}: already ended; cannot send signal {signal}\n{}", self.line, self.stderr_tail());
        }
        // SAFETY: a plain system call; the child is not reaped yet, so the id is still its own.
        let result = unsafe { libc::kill(self.pid().cast_signed(), signal) };
        demand!(result == 0, "signal {signal} to {}: {}", self.line, std::io::Error::last_os_error())
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

    /// Waits for the child's end; after the limit the child is killed, and the output records that.
    pub fn finish(mut self, limit: Duration) -> Result<Output> {
        let status = self.wait_status(limit)?;
        let timed_out = status.is_none();
        if timed_out {
            self.kill();
        }
        let seconds = self.seconds();
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

pub fn run(command: &mut Command, limit: Duration) -> Result<Output> {
    Running::start(command)?.finish(limit)
}

/// Polls until `ready` is true, or fails after the limit.
pub fn wait_until(limit: Duration, mut ready: impl FnMut() -> Result<bool>) -> Result<()> {
    let until = Instant::now() + limit;
    while !ready()? {
        ensure!(Instant::now() < until, "not within {limit:?}");
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_and_code_are_collected() {
        let script = "echo out; echo err >&2; exit 3";
        let output = run(Command::new("sh").args(["-c", script]), Duration::from_secs(10)).unwrap();
        let ended = (output.code, output.stdout.as_str(), output.stderr.as_str());
        assert_eq!(ended, (Some(3), "out\n", "err\n"));
        let message = format!("{:#}", output.success().unwrap_err());
        let told = message.ends_with(": expected exit 0, got exit 3: err\n--- stdout\nout\n--- stderr\nerr");
        assert!(told, "{message}");
    }

    #[test]
    fn the_first_line_of_a_failure_has_the_reason_even_without_stdout() {
        let script = "echo early >&2; echo reason >&2; echo >&2; exit 2";
        let output = run(Command::new("sh").args(["-c", script]), Duration::from_secs(10)).unwrap();
        assert_eq!(output.to_string(), "exit 2: reason\n--- stderr\nearly\nreason");
    }

    #[test]
    fn limit_kills() {
        let output = run(Command::new("sleep").arg("60"), Duration::from_millis(100)).unwrap();
        assert!(output.timed_out && output.code.is_none());
    }

    #[test]
    fn drop_kills() {
        let running = Running::start(Command::new("sleep").arg("60")).unwrap();
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
