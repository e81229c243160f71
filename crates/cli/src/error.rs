//! How a command fails: what was attempted, on what, why, and what to try; and the exit code that says so.

use std::fmt;

use block::{IoError, IoErrorKind, OpenError};
use serde_json::{Value, json};

/// Exit codes, one meaning each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// All of it was done.
    Done,
    /// It failed for a reason that none of the others names.
    Failed,
    /// The command line or the configuration is wrong.
    Usage,
    /// Two things that should be equal are not.
    Mismatch,
    /// Login refused.
    Authentication,
    /// Nothing answers, or not in time.
    Unreachable,
    /// Refused to protect data.
    Refused,
    /// Done, but for areas of the source that cannot be read.
    Unreadable,
    /// Ended by a signal of this number.
    Interrupted(i32),
}

impl Exit {
    /// The number the process exits with.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Mismatch => 3,
            Self::Authentication => 4,
            Self::Unreachable => 5,
            Self::Refused => 6,
            Self::Unreadable => 7,
            Self::Interrupted(signal) => 128 + (signal & 0x7f) as u8,
        }
    }
}

/// Why a command did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// Which exit code tells it to a script.
    pub(crate) exit: Exit,
    /// The verb: "open the destination".
    pub(crate) attempted: String,
    /// What it was done to: a path or a URL, without secrets.
    pub(crate) object: String,
    /// Why it failed.
    pub(crate) cause: String,
    /// What to try; empty where there is nothing better to say than the cause.
    pub(crate) hint: String,
}

impl Failure {
    /// A failure without a hint.
    pub(crate) fn new(
        exit: Exit,
        attempted: impl Into<String>,
        object: impl Into<String>,
        cause: impl fmt::Display,
    ) -> Self {
        Self {
            exit,
            attempted: attempted.into(),
            object: object.into(),
            cause: cause.to_string(),
            hint: String::new(),
        }
    }

    /// Exit code 1.
    pub(crate) fn failed(
        attempted: impl Into<String>,
        object: impl Into<String>,
        cause: impl fmt::Display,
    ) -> Self {
        Self::new(Exit::Failed, attempted, object, cause)
    }

    /// Exit code 2.
    pub(crate) fn usage(
        attempted: impl Into<String>,
        object: impl Into<String>,
        cause: impl fmt::Display,
    ) -> Self {
        Self::new(Exit::Usage, attempted, object, cause)
    }

    /// Exit code 6.
    pub(crate) fn refused(
        attempted: impl Into<String>,
        object: impl Into<String>,
        cause: impl fmt::Display,
    ) -> Self {
        Self::new(Exit::Refused, attempted, object, cause)
    }

    /// Says what to try.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }

    /// An endpoint that could not be opened.
    pub(crate) fn open(attempted: impl Into<String>, object: impl Into<String>, error: &OpenError) -> Self {
        let (exit, hint) = match error {
            OpenError::Usage(_) => (Exit::Usage, "see `hikyaku help` for the forms an endpoint can have"),
            OpenError::Missing(_) => (Exit::Failed, "check the name"),
            OpenError::Exchanged(_) => (Exit::Failed, "see which one it is now"),
            OpenError::Refused(_) => (Exit::Refused, ""),
            OpenError::Authentication(_) => (
                Exit::Authentication,
                "check the target's name, and the CHAP name and secret (options chap-user= and chap-secret-file=, or LIBISCSI_CHAP_USERNAME \
                 and LIBISCSI_CHAP_PASSWORD) and that the target's ACL lists this initiator (option initiator=); a \
                 target of another user of this machine lets in whom its `serve --allow-user NAME` names: see its log",
            ),
            OpenError::Damaged(_) => (
                Exit::Authentication,
                "try again; if it stays so, find what alters the traffic on the way: a cable, a proxy, an attacker. It is no \
                 reason to trust another key",
            ),
            OpenError::Unprotected(_) => (
                Exit::Authentication,
                "a target that knows digests and refuses them may be reached through a host that alters the login: protect the \
                 session by a seal or TLS. On a trusted path header_digest=prefer and data_digest=prefer do without digests",
            ),
            OpenError::Certificate(_) => (
                Exit::Authentication,
                "give the certificate of its authority, or its own, with the option tls=FILE; see that the URL names the \
                 host as the certificate does, and that both clocks are right",
            ),
            OpenError::Unreachable(_) => (
                Exit::Unreachable,
                "check the address, the port and the firewall; `hikyaku ls` asks what is there",
            ),
            OpenError::Failed(_) => (Exit::Failed, ""),
        };
        let object = object.into();
        Self::new(exit, attempted, object.clone(), once(&object, error)).hint(hint)
    }

    /// A request that storage did not fulfil.
    pub(crate) fn io(attempted: impl Into<String>, object: impl Into<String>, error: &IoError) -> Self {
        let (exit, hint) = match error.kind {
            IoErrorKind::Unreachable => (Exit::Unreachable, "start it again once the peer answers"),
            IoErrorKind::Refused => (Exit::Authentication, ""),
            IoErrorKind::NoSpace => (Exit::Failed, "free space, or give the destination more"),
            IoErrorKind::FlushFailed => {
                (Exit::Failed, "what was written before may be lost: check the medium, then copy again")
            }
            IoErrorKind::Gone => {
                (Exit::Failed, "see what became of the device, and which one it is now, then copy again")
            }
            IoErrorKind::CacheLost => (Exit::Failed, "see why the target restarts, then copy again"),
            _ => (Exit::Failed, ""),
        };
        let object = object.into();
        Self::new(exit, attempted, object.clone(), once(&object, error)).hint(hint)
    }

    /// The object that `--json` prints.
    pub(crate) fn to_json(&self) -> Value {
        json!({ "error": {
            "code": self.exit.code(),
            "attempted": self.attempted,
            "object": self.object,
            "cause": self.cause,
            "hint": self.hint,
        }})
    }
}

/// The cause without the object's name, where it begins with that: the failure names it already.
fn once(object: &str, cause: &dyn fmt::Display) -> String {
    let cause = cause.to_string();
    match cause.split_once(": ") {
        Some((name, rest)) if !name.is_empty() && object.starts_with(name) => rest.to_owned(),
        _ => cause,
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}", self.attempted)?;
        if !self.object.is_empty() {
            write!(f, " {}", self.object)?;
        }
        write!(f, ": {}", self.cause)?;
        if !self.hint.is_empty() {
            write!(f, "\n  try: {}", self.hint)?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_on_what_why_and_what_to_try() {
        let failure = Failure::refused("copy to", "/dev/sdx", "it holds an xfs filesystem").hint("--force");
        assert_eq!(
            failure.to_string(),
            "cannot copy to /dev/sdx: it holds an xfs filesystem\n  try: --force"
        );
        assert_eq!(
            failure.to_json().to_string(),
            r#"{"error":{"code":6,"attempted":"copy to","object":"/dev/sdx","cause":"it holds an xfs filesystem","hint":"--force"}}"#
        );
    }

    #[test]
    fn exit_codes_are_those_of_the_contract() {
        let all = [
            (Exit::Done, 0),
            (Exit::Failed, 1),
            (Exit::Usage, 2),
            (Exit::Mismatch, 3),
            (Exit::Authentication, 4),
            (Exit::Unreachable, 5),
            (Exit::Refused, 6),
            (Exit::Unreadable, 7),
            (Exit::Interrupted(libc::SIGINT), 130),
            (Exit::Interrupted(libc::SIGTERM), 143),
        ];
        for (exit, code) in all {
            assert_eq!(exit.code(), code);
        }
    }

    #[test]
    fn the_object_is_named_once() {
        let error = OpenError::Unreachable("iscsi://h/iqn.x/0: no answer".into());
        let failure = Failure::open("open", "iscsi://h/iqn.x/0,timeout=2s", &error);
        assert_eq!(failure.cause, "no answer");
        let failure = Failure::open("open", "a.img", &OpenError::Failed("opening a.img: denied".into()));
        assert_eq!(failure.cause, "opening a.img: denied");
    }

    #[test]
    fn open_errors_map_to_exit_codes() {
        let all = [
            (OpenError::Usage("x".into()), 2),
            (OpenError::Missing("x".into()), 1),
            (OpenError::Refused("x".into()), 6),
            (OpenError::Authentication("x".into()), 4),
            (OpenError::Unprotected("x".into()), 4),
            (OpenError::Certificate("x".into()), 4),
            (OpenError::Damaged("x".into()), 4),
            (OpenError::Unreachable("x".into()), 5),
            (OpenError::Failed("x".into()), 1),
        ];
        for (error, code) in all {
            assert_eq!(Failure::open("open", "e", &error).exit.code(), code);
        }
    }
}
