//! Secrets: read from files and the environment, and removed from URLs before other code sees them. Never printed.

use std::fmt;
use std::path::Path;

use iscsi::chap::{Secret, SecretError};
use job::shell::quoted;
use node::initiator::shown_user;
use zeroize::Zeroizing;

use crate::context::Context;
use crate::endpoint::is_option;
use crate::error::Failure;
use crate::sys;
use crate::trust::file::{self, Keeping};

/// Maximum bytes of a secret file; a device given by mistake is not read to its end.
const FILE_BYTES_MAX: usize = 1024;

/// Makes a secret of any length. From here on this process writes no core dump.
fn secret(text: &str) -> Result<Secret, SecretError> {
    sys::forbid_core_dumps();
    Secret::new_weak(text.as_bytes())
}

/// Reads a secret file: one line, without its newline. Refused if other users can read or write the file; warns if the
/// secret is shorter than RFC 7143 §12.1.3 requires.
pub(crate) fn from_file(context: &Context, path: &Path) -> Result<Secret, Failure> {
    let object = path.display().to_string();
    let failed = |cause: &dyn fmt::Display| Failure::failed("read the secret file", object.clone(), cause);
    let text = file::read_text(path, "the secret file", Keeping::Secret, FILE_BYTES_MAX)?;
    let text = text.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            let file = quoted(&object);
            failed(&error).hint(format!(
                "(umask 077; head -c 12 /dev/urandom | base64 > {file}) makes a secret of 16 characters; it belongs to the user that serves"
            ))
        }
        _ => failed(&error),
    })?;
    let text = text.strip_suffix('\n').unwrap_or(&text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    if text.contains('\n') {
        return Err(failed(&"it has more than one line"));
    }
    if text.trim() != text {
        context.warn(&format!("{object}: the secret begins or ends with white space, which is part of it"));
    }
    if let Err(weakness @ SecretError::Short) = Secret::new(text.as_bytes()) {
        context.warn(&format!("{object}: {weakness}, the minimum of RFC 7143; some peers refuse less"));
    }
    secret(text).map_err(|error| failed(&error))
}

/// Environment variables that contain passwords.
pub(crate) const VARIABLES: [&str; 2] = ["LIBISCSI_CHAP_PASSWORD", "LIBISCSI_CHAP_TARGET_PASSWORD"];

/// The password from an environment variable, one of [`VARIABLES`], if set and not empty.
pub(crate) fn from_env(context: &Context, name: &str) -> Result<Option<Secret>, Failure> {
    let secret = context.environment.get(name).map(Password::secret).transpose();
    secret.map_err(|error| Failure::usage("use", format!("${name}"), error))
}

/// A password from a URL or the environment, kept as text until a login.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Password(Zeroizing<String>);

impl Password {
    pub(crate) fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    /// The text, to find the places where it must be overwritten.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    pub(crate) fn secret(&self) -> Result<Secret, SecretError> {
        secret(&self.0)
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(..)")
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UrlSecrets {
    /// From `user%password@`.
    pub(crate) password: Option<Password>,
    /// From `?target_password=`.
    pub(crate) target_password: Option<Password>,
}

/// How a URL of this scheme contains a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    /// `user%password@`. A `:` may be part of a CHAP name.
    Iscsi,
    /// No password is defined, so `user:password@` and `user%password@` are mistakes. An export's name may contain `@`.
    Nbd,
    /// An unsupported scheme, such as a misspelt one.
    Other,
}

/// The scheme of an endpoint's text and the rest after `://`; `None` if the text is no URL.
fn split_scheme(words: &str) -> Option<(Scheme, &str)> {
    let (name, rest) = words.split_once("://")?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || "+-._:".contains(c);
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) || !name.chars().all(is_name) {
        return None;
    }
    match name.to_ascii_lowercase().as_str() {
        "iscsi" => Some((Scheme::Iscsi, rest)),
        name if name.starts_with("nbd") => Some((Scheme::Nbd, rest)),
        // A path, as in `block::Spec`.
        name if name == "file" || name.starts_with("file:") => None,
        _ => Some((Scheme::Other, rest)),
    }
}

/// Where the authority of a URL ends; `rest` is the part after `://`.
fn authority_end(scheme: Scheme, rest: &str) -> usize {
    if scheme == Scheme::Nbd {
        return rest.find(['/', '?', ',']).unwrap_or(rest.len());
    }
    // A password may contain a slash: the authority ends before a target's name or, without one, at the first `/` or
    // `?` after the last `@`. A rest that begins with an address in brackets has no user.
    let lower = rest.to_ascii_lowercase();
    let end = ["/iqn.", "/eui.", "/naa."].iter().filter_map(|name| lower.find(name)).min();
    let user = rest.rfind('@').filter(|_| !rest.starts_with('[')).unwrap_or(0);
    end.or_else(|| rest[user..].find(['/', '?']).map(|end| user + end)).unwrap_or(rest.len())
}

/// Removes the passwords from an endpoint's text.
///
/// libiscsi's syntax: `iscsi://user%password@host/iqn/lun?target_user=..&target_password=..`. The percent sign of
/// `[fe80::1%25eth0]` comes after the `@` and stays. In other schemes, including misspelt ones, `user:password@` is
/// removed too. The caller overwrites the passwords in the command line before it forbids core dumps: the overwriting
/// goes through `/proc/self/mem`, which a process that is not dumpable cannot open.
pub(crate) fn take_url_secrets(endpoint: &str) -> (String, UrlSecrets) {
    let mut secrets = UrlSecrets::default();
    let Some((scheme, rest)) = split_scheme(endpoint) else {
        return (endpoint.to_owned(), secrets);
    };
    let head = &endpoint[..endpoint.len() - rest.len()];
    let rest = take_target_password(rest, &mut secrets);
    let (authority, path) = rest.split_at(authority_end(scheme, &rest));
    let marks: &[char] = if scheme == Scheme::Iscsi { &['%'] } else { &['%', ':'] };
    let authority = match authority.rsplit_once('@') {
        Some((user, host)) => match user.split_once(marks) {
            Some((user, password)) => {
                secrets.password = Some(Password(Zeroizing::new(password.to_owned())));
                format!("{user}@{host}")
            }
            None => authority.to_owned(),
        },
        None => authority.to_owned(),
    };
    (format!("{head}{authority}{path}"), secrets)
}

/// An endpoint's text for messages: without passwords, with `***` for parts that may be a misplaced password.
pub(crate) fn shown(words: &str) -> String {
    let known = without_unknown(&take_url_secrets(words).0);
    let Some((Scheme::Iscsi, rest)) = split_scheme(&known) else { return known };
    // Without a target's name an option may contain the `@`.
    let options = rest.match_indices(',').map(|(at, _)| at).find(|at| {
        let option = &rest[at + 1..];
        is_option(option.split(['=', ',']).next().unwrap_or_default())
    });
    let end = authority_end(Scheme::Iscsi, rest).min(options.unwrap_or(rest.len()));
    let Some((user, _)) = rest[..end].rsplit_once('@') else { return known };
    let head = &known[..known.len() - rest.len()];
    format!("{head}{}{}", shown_user(user), &rest[user.len()..])
}

/// The text without the values of unknown options (an error anyway) and of unknown URL arguments (no effect).
pub(crate) fn without_unknown(words: &str) -> String {
    let mut parts = parts_of(words).into_iter();
    let place = parts.next().unwrap_or_default();
    let place = match place.split_once('?').filter(|_| split_scheme(place).is_some()) {
        Some((place, arguments)) => {
            let shown: Vec<String> =
                arguments.split('&').map(|pair| value_if(pair, |name| ARGUMENTS.contains(&name))).collect();
            format!("{place}?{}", shown.join("&"))
        }
        None => place.to_owned(),
    };
    std::iter::once(place)
        .chain(parts.map(|option| value_if(option, is_option)))
        .collect::<Vec<_>>()
        .join(",")
}

const ARGUMENTS: [&str; 4] = ["header_digest", "data_digest", "target_user", "socket"];

/// `name=value`, with `***` for the value if the name is unknown.
fn value_if(pair: &str, is_known: impl Fn(&str) -> bool) -> String {
    match pair.split_once('=') {
        Some((name, _)) if !is_known(name) => format!("{name}=***"),
        _ => pair.to_owned(),
    }
}

/// The comma-separated parts. Two commas in a row belong to a part and are kept as two.
pub(crate) fn parts_of(words: &str) -> Vec<&str> {
    let (mut parts, mut from, mut at) = (Vec::new(), 0, 0);
    while let Some(comma) = words[at..].find(',').map(|comma| at + comma) {
        if words[comma + 1..].starts_with(',') {
            at = comma + 2;
        } else {
            parts.push(&words[from..comma]);
            (from, at) = (comma + 1, comma + 1);
        }
    }
    parts.push(&words[from..]);
    parts
}

/// Removes `target_password=` at any position, because a wrong URL may contain it out of place.
fn take_target_password(rest: &str, secrets: &mut UrlSecrets) -> String {
    let mut path = rest.to_owned();
    while let Some(at) = path.find("target_password=") {
        let value = at + "target_password=".len();
        let end = path[value..].find(['&', ',']).map_or(path.len(), |end| value + end);
        secrets.target_password = Some(Password(Zeroizing::new(path[value..end].to_owned())));
        // Removes the preceding separator too, except a `?` that another argument follows.
        let (from, to) = match (path.as_bytes().get(at.wrapping_sub(1)), path.as_bytes().get(end)) {
            (Some(b'?'), Some(b'&')) => (at, end + 1),
            (Some(b'?' | b'&'), _) => (at - 1, end),
            _ => (at, end),
        };
        path.replace_range(from..to, "");
    }
    path
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn taken(endpoint: &str) -> (String, Option<String>, Option<String>) {
        let (clean, secrets) = take_url_secrets(endpoint);
        let text = |password: Option<Password>| password.map(|password| password.text().to_owned());
        (clean, text(secrets.password), text(secrets.target_password))
    }

    #[test]
    fn passwords_leave_the_url() {
        let all = [
            ("iscsi://h/iqn.x:a/0", "iscsi://h/iqn.x:a/0", None, None),
            ("iscsi://u@h/iqn.x:a/0", "iscsi://u@h/iqn.x:a/0", None, None),
            ("iscsi://u%pw@h:1/iqn.x:a/0,ro", "iscsi://u@h:1/iqn.x:a/0,ro", Some("pw"), None),
            ("iscsi://u%p/w@x@h/iqn.x:a/0", "iscsi://u@h/iqn.x:a/0", Some("p/w@x"), None),
            ("iscsi://[fe80::1%25eth0]/iqn.x:a/0", "iscsi://[fe80::1%25eth0]/iqn.x:a/0", None, None),
            (
                "iscsi://u%pw@[fe80::1%25eth0]:1/iqn.x/0",
                "iscsi://u@[fe80::1%25eth0]:1/iqn.x/0",
                Some("pw"),
                None,
            ),
            ("iscsi://u%pw@h", "iscsi://u@h", Some("pw"), None),
            (
                "iscsi://u%pw@h/iqn.x/0?target_user=t&target_password=s3",
                "iscsi://u@h/iqn.x/0?target_user=t",
                Some("pw"),
                Some("s3"),
            ),
            (
                "iscsi://h/iqn.x/0?target_password=s3&header_digest=crc32c,ro",
                "iscsi://h/iqn.x/0?header_digest=crc32c,ro",
                None,
                Some("s3"),
            ),
            ("iscsi://h/iqn.x/0?target_password=s3", "iscsi://h/iqn.x/0", None, Some("s3")),
            // Not addresses of a target, but messages contain them.
            ("iscsi://u%p/w@h", "iscsi://u@h", Some("p/w"), None),
            ("iscsi://u%p?w@h/x", "iscsi://u@h/x", Some("p?w"), None),
            ("iscsi://h?target_password=s3/iqn.x", "iscsi://h", None, Some("s3/iqn.x")),
            ("iscsi://u%p?target_password=s3,x@h", "iscsi://u@h", Some("p,x"), Some("s3")),
            (
                "iscsi://[fe80::1%25eth0]?target_user=a@b",
                "iscsi://[fe80::1%25eth0]?target_user=a@b",
                None,
                None,
            ),
            ("/tmp/a%b@c", "/tmp/a%b@c", None, None),
            ("file:a://b%c@d", "file:a://b%c@d", None, None),
            // Unsupported schemes, and passwords in schemes without a password syntax.
            ("ISCSI://me%pw@h/IQN.x/0", "ISCSI://me@h/IQN.x/0", Some("pw"), None),
            ("iscis://me%p/w@h/iqn.x/0", "iscis://me@h/iqn.x/0", Some("p/w"), None),
            ("iscis://me:p%w@h/iqn.x/0", "iscis://me@h/iqn.x/0", Some("p%w"), None),
            ("log:iscsi://me%pw@h/iqn.x/0", "log:iscsi://me@h/iqn.x/0", Some("pw"), None),
            ("nbd://me:pw@h:1/x", "nbd://me@h:1/x", Some("pw"), None),
            ("NBDS://me:pw@h", "NBDS://me@h", Some("pw"), None),
            ("nbd://h:1/pool@snap", "nbd://h:1/pool@snap", None, None),
            ("nbd://h:1,fault=eio@4M", "nbd://h:1,fault=eio@4M", None, None),
            ("nbd+unix:///x?socket=/a:b@c", "nbd+unix:///x?socket=/a:b@c", None, None),
            // In a CHAP name.
            ("iscsi://iqn.x:me@h", "iscsi://iqn.x:me@h", None, None),
        ];
        for (endpoint, clean, password, target) in all {
            let expected = (clean.to_owned(), password.map(str::to_owned), target.map(str::to_owned));
            assert_eq!(taken(endpoint), expected, "{endpoint}");
        }
    }

    #[test]
    fn what_may_be_a_password_is_not_shown() {
        let all = [
            ("iscsi://me:pw@h/iqn.x:a/0", "iscsi://me:***@h/iqn.x:a/0"),
            ("iscsi://me:p,w@h/iqn.x:a/0", "iscsi://me:***@h/iqn.x:a/0"),
            ("iscsi://me:a%pw@h:1", "iscsi://me:***@h:1"),
            ("ISCSI://me:pw@h/x", "ISCSI://me:***@h/x"),
            ("iscsi://iqn.2026-11.x:me@h/iqn.x:a/0", "iscsi://iqn.2026-11.x:me@h/iqn.x:a/0"),
            ("iscsi://h:1,chap-user=me@corp", "iscsi://h:1,chap-user=me@corp"),
            ("iscsi://h/iqn.x:a/0,chap-secret=pw,ro", "iscsi://h/iqn.x:a/0,chap-secret=***,ro"),
            ("iscsi://h/iqn.x:a/0,chap-secret=p,,w", "iscsi://h/iqn.x:a/0,chap-secret=***"),
            (
                "iscsi://h/iqn.x:a/0?foo=pw&header_digest=none&Target_Password=pw",
                "iscsi://h/iqn.x:a/0?foo=***&header_digest=none&Target_Password=***",
            ),
            ("nbd://h/x?password=pw,timeout=5s", "nbd://h/x?password=***,timeout=5s"),
            ("nbd+unix:///x?socket=/run/s", "nbd+unix:///x?socket=/run/s"),
            ("a,,b=c?d=e,size=1M,x", "a,,b=c?d=e,size=1M,x"),
            ("disk.img,passwrd=pw", "disk.img,passwrd=***"),
        ];
        for (words, expected) in all {
            assert_eq!(shown(words), expected, "{words}");
            assert_eq!(shown(expected), expected);
        }
    }

    #[test]
    fn a_password_is_not_shown() {
        let (_, secrets) = take_url_secrets("iscsi://u%hunter2@h/iqn.x/0");
        assert!(!format!("{secrets:?}").contains("hunter2"));
    }

    #[test]
    fn secret_file_is_one_line() {
        let context = Context { quiet: true, ..Context::default() };
        let file = |bytes: &[u8]| {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(bytes).unwrap();
            from_file(&context, file.path())
        };
        let good = Secret::new(b"twelve bytes").unwrap();
        for bytes in [&b"twelve bytes"[..], b"twelve bytes\n", b"twelve bytes\r\n"] {
            assert!(file(bytes).unwrap().same_as(&good));
        }
        let cause = |bytes: &[u8]| file(bytes).unwrap_err().cause;
        assert_eq!(cause(b""), "CHAP secret is empty");
        assert_eq!(cause(b"\n"), "CHAP secret is empty");
        assert_eq!(cause(b"a\nb\n"), "it has more than one line");
        assert_eq!(cause(&[0xff, 0xfe]), "it is not text");
        assert_eq!(cause(&[b'a'; 2000]), "it is longer than 1024 bytes");
        assert!(from_file(&context, Path::new("/nonexistent/secret")).is_err());
        assert_eq!(from_file(&context, Path::new("/")).unwrap_err().cause, "it is not a file");
    }
}
