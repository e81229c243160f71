//! Endings and failures of jobs and commands. A failure contains what was attempted, on which object, the cause, and a
//! hint. All commands of the program use it.

use std::fmt;

use block::{IoError, IoErrorKind, OpenError};
use serde_json::{Value, json};

use crate::SCHEMA;
use crate::printable::printable_name;

/// Begins the cause of a name lookup that failed, in `node` and `nbd`.
const LOOKING_UP: &str = "looking up ";
/// How the text of a connection ends that was accepted, and closed before the login.
const CLOSED: &str = "the target closed the connection";
const ANSWERED: &str = "see that the port is that of an iSCSI target (3260 unless it says otherwise), not of another service; a target that \
     has too many connections closes new ones, too: its log says so";
const LOOKED_UP: &str = "check the spelling of the host's name and this host's name server (`getent hosts NAME`), or write its address";
/// In the text of a sealed volume's block that is not the one of the last flush.
const IS_OLDER: &str = "an older state of";
/// For storage without the header of a sealed volume.
const NO_HEADER: &str = "where a volume was, `hikyaku volume header restore` brings a backup of its header back; header=FILE names a \
     header in a file; `hikyaku volume format` makes a NEW volume, and what was sealed there is lost";
/// For a sealed volume that its freshness file is not of.
pub const OLDER_STATE: &str = "if you restored an older copy of the storage or of the freshness file, or wrote the volume without the \
     file: open it without the option freshness=, and copy it into a new volume with a freshness file of its own; if you did not, the \
     storage's provider returned an older state";

/// Begins the cause of a freshness file that does not open, in `block`.
const OPENING_FRESHNESS: &str = "opening the freshness file";
const FRESHNESS_FILE: &str =
    "check its name; without freshness= the volume opens, and older states are not noticed";
/// For a freshness file that is not the volume's.
pub const OTHER_FRESHNESS: &str = "name the freshness file that was made for this volume; one of the time before `hikyaku volume reencrypt` \
     is of no use: open the volume without the option freshness=, and copy it into a new volume with a freshness file of its own";
/// For a sealed volume whose header has not the key of what it holds.
pub const OTHER_KEY: &str = "the header may be one of before a re-encryption, with another key: `hikyaku volume header restore --force` with a \
     newer backup; if no header was restored, the storage returns other bytes than were written";

/// How a job or a command ended; [`Ending::code`] is its exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Done,
    Failed,
    /// The command line or the configuration is wrong.
    Usage,
    /// Two things that must be equal differ.
    Mismatch,
    Authentication,
    /// The peer does not answer, or not in time.
    Unreachable,
    /// Refused, to protect data.
    Refused,
    /// Complete, except for areas of the source that cannot be read.
    Unreadable,
    /// Ended by a signal of this number.
    Interrupted(i32),
}

impl Ending {
    /// 0 to 7, or 128 plus the signal: the program's exit status, `HIKYAKU_EXIT` of `--post`, the row "Exit code" of a
    /// report and `error.code` of JSON.
    pub fn code(self) -> u8 {
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

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The kind of failure; never [`Ending::Done`].
    pub ending: Ending,
    /// A verb with its object's role: "open the destination".
    pub attempted: String,
    /// The object of the attempt: a path or a URL, without secrets.
    pub object: String,
    pub cause: String,
    /// What the user can try; empty if there is nothing beyond the cause.
    pub hint: String,
}

impl Failure {
    pub fn new(
        ending: Ending,
        attempted: impl Into<String>,
        object: impl Into<String>,
        cause: impl fmt::Display,
    ) -> Self {
        Self {
            ending,
            attempted: attempted.into(),
            object: object.into(),
            cause: cause.to_string(),
            hint: String::new(),
        }
    }

    pub fn failed(attempted: impl Into<String>, object: impl Into<String>, cause: impl fmt::Display) -> Self {
        Self::new(Ending::Failed, attempted, object, cause)
    }

    pub fn usage(attempted: impl Into<String>, object: impl Into<String>, cause: impl fmt::Display) -> Self {
        Self::new(Ending::Usage, attempted, object, cause)
    }

    pub fn refused(
        attempted: impl Into<String>,
        object: impl Into<String>,
        cause: impl fmt::Display,
    ) -> Self {
        Self::new(Ending::Refused, attempted, object, cause)
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }

    pub fn open(attempted: impl Into<String>, object: impl Into<String>, error: &OpenError) -> Self {
        let (attempted, object) = (attempted.into(), object.into());
        let (ending, hint) = match error {
            // Each of these texts says what to write instead.
            OpenError::Usage(_) => (Ending::Usage, ""),
            // The text says which command lists what is there.
            OpenError::Missing(_) if object.contains("://") => (Ending::Failed, ""),
            OpenError::Missing(_) => (Ending::Failed, "check the name"),
            OpenError::Denied(_) => {
                (Ending::Failed, "run it with sudo, or as the owner of the file or device")
            }
            OpenError::Format { path, format } => {
                let path = path.display();
                let hint = format!(
                    "qemu-img convert -f {format} -O raw {path} OUT, or {path},format=raw to use the bytes of the image itself"
                );
                return Self::refused(attempted, object.clone(), once(&object, error)).hint(hint);
            }
            OpenError::Exchanged(_) => (Ending::Failed, "see which one it is now"),
            OpenError::Refused(_) => (Ending::Refused, ""),
            OpenError::Authentication(_) => (
                Ending::Authentication,
                "check the target's name, and the CHAP name and secret (options chap-user= and chap-secret-file=, or LIBISCSI_CHAP_USERNAME \
                 and LIBISCSI_CHAP_PASSWORD) and that the target's ACL lists this initiator (option initiator=); a \
                 target of another user of this machine lets in whom its `serve --allow-user NAME` names: see its log",
            ),
            OpenError::Chap(_) => (
                Ending::Authentication,
                "compare the CHAP name and secret (chap-user= and chap-secret-file=, or LIBISCSI_CHAP_USERNAME and \
                 LIBISCSI_CHAP_PASSWORD; the target's own: mutual-chap-user= and mutual-chap-secret-file=) with the account at the \
                 target, and initiator= with the name that the account is bound to; the target's log says which differs",
            ),
            OpenError::Unverified(_) => (
                Ending::Authentication,
                "compare psk-file= here with psk-file in the entry of this host's key at the target: both or neither, with the same \
                 line. If they are the same, find what alters the traffic on the way: a cable, a proxy, an attacker. It is no reason \
                 to trust another key",
            ),
            OpenError::Damaged(_) => (
                Ending::Authentication,
                "try again; if it stays so, find what alters the traffic on the way: a cable, a proxy, an attacker. It is no \
                 reason to trust another key",
            ),
            OpenError::Unprotected(_) => (
                Ending::Authentication,
                "a target that supports digests and refuses them may be reached through a host that alters the login: protect the \
                 session by a seal or TLS. On a trusted path header_digest=prefer and data_digest=prefer do without digests",
            ),
            OpenError::NoHeader(_) => (Ending::Refused, NO_HEADER),
            OpenError::OlderState(_) => (Ending::Refused, OLDER_STATE),
            OpenError::OtherFreshness(_) => (Ending::Refused, OTHER_FRESHNESS),
            OpenError::OtherKey(_) => (Ending::Refused, OTHER_KEY),
            OpenError::Passphrase(_) => (
                Ending::Authentication,
                "give the passphrase's file with password-file=FILE (its first line) or key-file=FILE (all its bytes), or run it at a \
                 terminal to be asked",
            ),
            OpenError::Certificate(_) => (
                Ending::Authentication,
                "give the certificate of its authority, or its own, with the option tls=FILE; see that the URL names the \
                 host as the certificate does, and that both clocks are right",
            ),
            OpenError::Unreachable(_) if object.starts_with("nbd+unix:") => {
                (Ending::Unreachable, "see that a server runs and listens at that socket")
            }
            OpenError::Unreachable(text) if text.contains(LOOKING_UP) => (Ending::Unreachable, LOOKED_UP),
            OpenError::Unreachable(text) if text.ends_with(CLOSED) => (Ending::Unreachable, ANSWERED),
            OpenError::Unreachable(_) if object.starts_with("nbd:") || attempted.starts_with("list") => {
                (Ending::Unreachable, "check the address, the port and the firewall")
            }
            OpenError::Unreachable(_) => (
                Ending::Unreachable,
                "check the address, the port and the firewall; `hikyaku ls` lists what is there",
            ),
            OpenError::Failed(text) if text.starts_with(OPENING_FRESHNESS) => {
                (Ending::Failed, FRESHNESS_FILE)
            }
            OpenError::Failed(_) => (Ending::Failed, ""),
        };
        Self::new(ending, attempted, object.clone(), once(&object, error)).hint(hint)
    }

    pub fn io(attempted: impl Into<String>, object: impl Into<String>, error: &IoError) -> Self {
        let (ending, hint) = match error.kind {
            IoErrorKind::Unreachable => (
                Ending::Unreachable,
                "give the same command once the peer answers; the option timeout=2m waits longer for it",
            ),
            IoErrorKind::Refused => (Ending::Authentication, ""),
            IoErrorKind::NoSpace => (Ending::Failed, "free space, or give the destination more"),
            IoErrorKind::FlushFailed => {
                (Ending::Failed, "what was written before may be lost: check the medium, then copy again")
            }
            IoErrorKind::Gone => (Ending::Failed, "check the device and its current name, then copy again"),
            IoErrorKind::Medium if error.to_string().contains(IS_OLDER) => (Ending::Failed, OLDER_STATE),
            IoErrorKind::CacheLost => (Ending::Failed, "see why the target restarts, then copy again"),
            _ => (Ending::Failed, ""),
        };
        let object = object.into();
        Self::new(ending, attempted, object.clone(), once(&object, error)).hint(hint)
    }

    pub fn to_json(&self) -> Value {
        json!({ "schema": SCHEMA, "error": {
            "code": self.ending.code(),
            "attempted": self.attempted,
            "object": self.object,
            "cause": self.cause,
            "hint": self.hint,
        }})
    }
}

/// The cause without the object's name, if the cause begins with it: the failure's text already contains the name.
fn once(object: &str, cause: &dyn fmt::Display) -> String {
    let cause = cause.to_string();
    let location = object.split(',').next().unwrap_or_default();
    if let Some(rest) = cause.strip_prefix(location).and_then(|rest| rest.strip_prefix(' '))
        && !location.is_empty()
    {
        return format!("it {rest}");
    }
    let Some((name, rest)) = cause.split_once(": ") else {
        return cause;
    };
    let name = name.strip_prefix("opening ").unwrap_or(name);
    if !name.is_empty() && object.starts_with(name) { rest.to_owned() } else { cause }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}", self.attempted)?;
        if !self.object.is_empty() {
            write!(f, " {}", printable_name(&self.object))?;
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
        let expected = "cannot copy to /dev/sdx: it holds an xfs filesystem\n  try: --force";
        assert_eq!(failure.to_string(), expected);
        let expected = r#"{"schema":1,"error":{"code":6,"attempted":"copy to","object":"/dev/sdx","cause":"it holds an xfs filesystem","hint":"--force"}}"#;
        assert_eq!(failure.to_json().to_string(), expected);
    }

    #[test]
    fn exit_codes_are_those_of_the_contract() {
        let all = [
            (Ending::Done, 0),
            (Ending::Failed, 1),
            (Ending::Usage, 2),
            (Ending::Mismatch, 3),
            (Ending::Authentication, 4),
            (Ending::Unreachable, 5),
            (Ending::Refused, 6),
            (Ending::Unreadable, 7),
            (Ending::Interrupted(libc::SIGINT), 130),
            (Ending::Interrupted(libc::SIGTERM), 143),
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
        assert_eq!(failure.cause, "denied");
        let failure = Failure::open("open", "a.img,ro", &OpenError::Usage("a.img is a directory".into()));
        assert_eq!(failure.cause, "it is a directory");
        let failure = Failure::open("open", "a", &OpenError::Usage("a.img is a directory".into()));
        assert_eq!(failure.cause, "a.img is a directory");
        let failure = Failure::open("open", "a.img", &OpenError::Failed("growing a.img: denied".into()));
        assert_eq!(failure.cause, "growing a.img: denied");
    }

    #[test]
    fn ls_is_suggested_where_it_can_help() {
        let hint =
            |attempted, object| Failure::open(attempted, object, &OpenError::Unreachable("x".into())).hint;
        assert!(hint("open", "iscsi://h/iqn.x/0").contains("hikyaku ls"));
        for (attempted, object) in
            [("list", "iscsi://h"), ("open", "nbd://h/x"), ("list the targets of", "iscsi://h")]
        {
            assert_eq!(hint(attempted, object), "check the address, the port and the firewall", "{object}");
        }
        assert!(hint("open", "nbd+unix:///?socket=/s").contains("socket"));
        let error = OpenError::Unreachable("looking up h: Name or service not known".into());
        let closed = OpenError::Unreachable("iscsi://h/iqn.x/0: the target closed the connection".into());
        assert_eq!(Failure::open("list", "iscsi://h", &closed).hint, ANSWERED);
        for object in ["iscsi://h/iqn.x/0", "nbd://h/x"] {
            let hint = Failure::open("list", object, &error).hint;
            assert!(hint.contains("getent hosts") && !hint.contains("firewall"), "{hint}");
        }
    }

    #[test]
    fn open_errors_map_to_exit_codes() {
        let all = [
            (OpenError::Usage("x".into()), 2),
            (OpenError::Missing("x".into()), 1),
            (OpenError::Denied("x".into()), 1),
            (OpenError::Format { path: "x".into(), format: "qcow2" }, 6),
            (OpenError::Refused("x".into()), 6),
            (OpenError::NoHeader("x".into()), 6),
            (OpenError::OlderState("x".into()), 6),
            (OpenError::OtherFreshness("x".into()), 6),
            (OpenError::OtherKey("x".into()), 6),
            (OpenError::Passphrase("x".into()), 4),
            (OpenError::Authentication("x".into()), 4),
            (OpenError::Unprotected("x".into()), 4),
            (OpenError::Certificate("x".into()), 4),
            (OpenError::Chap("x".into()), 4),
            (OpenError::Unverified("x".into()), 4),
            (OpenError::Damaged("x".into()), 4),
            (OpenError::Unreachable("x".into()), 5),
            (OpenError::Failed("x".into()), 1),
        ];
        for (error, code) in all {
            assert_eq!(Failure::open("open", "e", &error).ending.code(), code);
        }
    }
}
