//! `--pre` and `--post`: freeze and thaw. Once the first command was started, the second runs, however the copy ends.
//!
//! The guardian is a shell in its own process that runs both commands. After the first it writes that command's exit
//! status to a pipe, reads a line from another pipe (the code of the copy's [`Ending`]), and runs the second. If this
//! process dies, the kernel closes the pipe, the read ends, and the guardian runs the second command. No other process
//! runs the second command, so it runs exactly once; one shell runs both, so the second never starts before the first
//! has ended.

use std::io::{BufRead, BufReader, Error, ErrorKind, Result as IoResult, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};

use crate::{Ending, Failure, Host};

/// Script of the guardian; $1 and $2 are the two commands. It ignores signals, and so do the commands: systemd sends
/// SIGTERM to all processes of a service that it stops. The second command ignores SIGPIPE, so a thaw does not end
/// early if its output is not read. A subshell writes the status: a closed pipe kills the subshell and not the
/// guardian. The commands write their standard output to stderr and read standard input from /dev/null, so processes
/// that they leave behind do not hold the pipes open.
const GUARDIAN: &str = r#"trap '' HUP INT QUIT TERM
sh -c "$1" </dev/null >&2
(echo $?) 2>/dev/null
exec >&2
read -r HIKYAKU_EXIT || HIKYAKU_EXIT=137
export HIKYAKU_EXIT
trap '' PIPE
exec sh -c "$2" </dev/null"#;

/// The commands of `--pre` and `--post`, for `sh -c`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hooks {
    /// Runs before anything is opened. If it fails, nothing is copied. `HIKYAKU_SOURCE` and `HIKYAKU_DESTINATION`
    /// contain the addresses.
    pub pre: Option<String>,
    /// Runs if `pre` was started, however the copy ends, even if this process is killed. `HIKYAKU_EXIT` is the code of
    /// the copy's [`Ending`], 137 if this process was killed.
    pub post: Option<String>,
}

/// The guardian's process. The first command has succeeded; the second runs on [`Guardian::end`], when this is dropped,
/// or when this process ends.
pub(crate) struct Guardian {
    shell: Child,
}

impl Guardian {
    /// Runs the first command and returns its exit status.
    pub(crate) fn begin(
        first: &str,
        second: &str,
        environment: &[(&str, &str)],
    ) -> IoResult<(Self, ExitStatus)> {
        let mut shell = Command::new("sh");
        shell.args(["-c", GUARDIAN, "hikyaku-guardian", first, second]).envs(environment.iter().copied());
        // A process group of its own: signals that a terminal or a shell sends to the whole job do not reach it.
        shell.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut guardian = Self { shell: shell.spawn()? };
        let mut line = String::new();
        BufReader::new(guardian.shell.stdout.take().expect("it is piped")).read_line(&mut line)?;
        let code: i32 = line
            .trim_end()
            .parse()
            .map_err(|_| Error::new(ErrorKind::UnexpectedEof, "the shell that runs it was killed"))?;
        Ok((guardian, std::os::unix::process::ExitStatusExt::from_raw(code << 8)))
    }

    pub(crate) fn end(mut self, code: u8) -> IoResult<ExitStatus> {
        let mut word = self.shell.stdin.take().expect("it is taken once");
        writeln!(word, "{code}")?;
        drop(word);
        self.shell.wait()
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        // The exit status of the second command has no receiver here.
        let _ = self.shell.wait();
    }
}

/// The state between `--pre` and `--post`. `--post` runs on [`Frozen::thaw`], when this is dropped, or when this
/// process ends.
pub struct Frozen<'a> {
    host: &'a dyn Host,
    hooks: &'a Hooks,
    guardian: Option<Guardian>,
}

impl Hooks {
    /// Runs `--pre`. If it fails, or a signal came meanwhile, `--post` has run when this returns the failure.
    pub fn freeze<'a>(
        &'a self,
        host: &'a dyn Host,
        source: &str,
        destination: &str,
    ) -> Result<Frozen<'a>, Failure> {
        let mut frozen = Frozen { host, hooks: self, guardian: None };
        if self.pre.is_none() && self.post.is_none() {
            return Ok(frozen);
        }
        let (pre, post) = (self.pre.as_deref().unwrap_or(""), self.post.as_deref().unwrap_or(""));
        let failed = |cause: String| Failure::failed("run the command of --pre", pre, cause);
        let _orderly = host.stop().orderly();
        if self.pre.is_some() {
            host.on_hook("pre");
        }
        let environment = [("HIKYAKU_SOURCE", source), ("HIKYAKU_DESTINATION", destination)];
        let (guardian, status) =
            Guardian::begin(pre, post, &environment).map_err(|error| failed(error.to_string()))?;
        frozen.guardian = Some(guardian);
        let failure = if !status.success() {
            failed(status.to_string())
        } else if host.stop().is_requested() {
            host.stop().failure("copy to", destination)
        } else {
            return Ok(frozen);
        };
        frozen.thaw(failure.ending, Err(failure))
    }
}

impl Frozen<'_> {
    /// Runs `--post` with the code of `ending` in `HIKYAKU_EXIT` and returns `result`. If `result` is `Ok` and `--post`
    /// fails, returns that failure; if both failed, warns of the second.
    pub fn thaw<T>(mut self, ending: Ending, result: Result<T, Failure>) -> Result<T, Failure> {
        let Some(guardian) = self.guardian.take() else { return result };
        let _orderly = self.host.stop().orderly();
        let post = self.hooks.post.as_deref();
        if post.is_some() {
            self.host.on_hook("post");
        }
        let cause = match guardian.end(ending.code()) {
            Ok(status) if status.success() => return result,
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        let failure = Failure::failed("run the command of --post", post.unwrap_or_default(), cause)
            .hint("what it was to thaw may still be frozen: see to that first");
        if result.is_err() {
            self.host.warn(&failure.to_string());
            return result;
        }
        Err(failure)
    }
}
