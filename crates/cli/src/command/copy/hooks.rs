//! `--pre` and `--post`: freeze and thaw. Once the first was begun the second runs, whatever becomes of the copy.
//!
//! A guardian sees to that: a shell that is a process of its own and runs both. After the first it tells us how that ended
//! and waits for a word on a pipe, the exit code of what lies between; then it runs the second. If this process dies, in
//! whatever way, the kernel closes the pipe, and the guardian goes on all the same. As nobody else runs the second command, it
//! runs exactly once; as the same shell runs both, never before the first has ended.

use std::io::{BufRead, BufReader, Error, ErrorKind, Result as IoResult, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};

use serde_json::json;

use crate::context::Context;
use crate::endpoint::Named;
use crate::error::{Exit, Failure};
use crate::output;

/// What the guardian does with the two commands, $1 and $2. Signals are ignored, by the commands too: a service that is
/// stopped has SIGTERM sent to all its processes. A thaw does not end early because nobody reads what it says. The status is told by a subshell, so that it does not matter to the guardian
/// when nobody reads it. The pipe is none of the commands' business: what they leave running does not hold it.
const GUARDIAN: &str = r#"trap '' HUP INT QUIT TERM
sh -c "$1" </dev/null >&2
(echo $?) 2>/dev/null
exec >&2
read -r HIKYAKU_EXIT || HIKYAKU_EXIT=137
export HIKYAKU_EXIT
trap '' PIPE
exec sh -c "$2" </dev/null"#;

/// `--pre` and `--post`.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Hooks {
    /// Run this by `sh -c` before anything is opened: to freeze a file system, to bring a database to rest
    ///
    /// If it fails nothing is copied. HIKYAKU_SOURCE and HIKYAKU_DESTINATION name the two ends. What it prints goes to stderr.
    /// It may take as long as it likes.
    #[arg(long, value_name = "CMD")]
    pub(super) pre: Option<String>,

    /// Run this by `sh -c` when the copy is over, well or not: to thaw what --pre froze
    ///
    /// It runs whatever happens once --pre was begun: after a refusal, an error, a signal, even if the copy is killed. HIKYAKU_EXIT is
    /// the copy's exit code, 137 if it was killed.
    #[arg(long, value_name = "CMD")]
    pub(super) post: Option<String>,
}

/// Two commands, of which the first has ended well and the second will run: by [`Guardian::end`], or when this is
/// dropped, or when this process ends.
pub(super) struct Guardian {
    shell: Child,
}

impl Guardian {
    /// Runs the first command. How it ended.
    pub(super) fn begin(
        first: &str,
        second: &str,
        environment: &[(&str, &str)],
    ) -> IoResult<(Self, ExitStatus)> {
        let mut shell = Command::new("sh");
        shell.args(["-c", GUARDIAN, "hikyaku-guardian", first, second]).envs(environment.iter().copied());
        // A group of its own: what a terminal or a shell sends to all of a job is not for it.
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

    /// Runs the second command, which sees `code`. How it ended.
    pub(super) fn end(mut self, code: u8) -> IoResult<ExitStatus> {
        let mut word = self.shell.stdin.take().expect("nobody else takes it");
        writeln!(word, "{code}")?;
        drop(word);
        self.shell.wait()
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        // Nobody is left to be told.
        let _ = self.shell.wait();
    }
}

/// `--pre` is done; `--post` is to come.
pub(super) struct Frozen<'a> {
    context: &'a Context,
    hooks: &'a Hooks,
    guardian: Option<Guardian>,
}

impl Hooks {
    /// Runs `--pre`. If it fails, or a signal came meanwhile, `--post` has run when this returns.
    pub(super) fn freeze<'a>(
        &'a self,
        context: &'a Context,
        source: &Named,
        destination: &Named,
    ) -> Result<Frozen<'a>, Failure> {
        let mut frozen = Frozen { context, hooks: self, guardian: None };
        if self.pre.is_none() && self.post.is_none() {
            return Ok(frozen);
        }
        let (pre, post) = (self.pre.as_deref().unwrap_or(""), self.post.as_deref().unwrap_or(""));
        let failed = |cause: String| Failure::failed("run the command of --pre", pre, cause);
        let _orderly = context.stop.orderly();
        if self.pre.is_some() {
            tell(context, "pre");
        }
        let environment = [("HIKYAKU_SOURCE", &*source.text), ("HIKYAKU_DESTINATION", &*destination.text)];
        let (guardian, status) =
            Guardian::begin(pre, post, &environment).map_err(|error| failed(error.to_string()))?;
        frozen.guardian = Some(guardian);
        let failure = if !status.success() {
            failed(status.to_string())
        } else if context.stop.is_asked() {
            context.stop.failure("copy to", destination.text.clone())
        } else {
            return Ok(frozen);
        };
        frozen.thaw(failure.exit, Err(failure))
    }
}

impl Frozen<'_> {
    /// Runs `--post`, which sees `exit`, and gives `result` back. If all went well but that, that is the failure.
    pub(super) fn thaw<T>(mut self, exit: Exit, result: Result<T, Failure>) -> Result<T, Failure> {
        let Some(guardian) = self.guardian.take() else { return result };
        let _orderly = self.context.stop.orderly();
        let post = self.hooks.post.as_deref();
        if post.is_some() {
            tell(self.context, "post");
        }
        let cause = match guardian.end(exit.code()) {
            Ok(status) if status.success() => return result,
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        let failure = Failure::failed("run the command of --post", post.unwrap_or_default(), cause)
            .hint("what it was to thaw may still be frozen: see to that first");
        if result.is_err() {
            self.context.warn(&failure.to_string());
            return result;
        }
        Err(failure)
    }
}

/// Says that one of them runs, as it may take long.
fn tell(context: &Context, phase: &str) {
    if context.json {
        output::note_json(&json!({ "phase": phase }));
    } else {
        context.remark(&format!("running the command of --{phase}"));
    }
}
