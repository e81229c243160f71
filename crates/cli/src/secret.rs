//! Secrets: held, never shown. Read from a file or the environment, and taken out of URLs before anything
//! else sees them.

use std::fmt;
use std::path::Path;

use iscsi::chap::{Secret, SecretError};
use zeroize::Zeroizing;

use crate::context::Context;
use crate::error::Failure;
use crate::sys;
use crate::trust::file::{self, Keeping};

/// Nothing sensible is longer; a device given by mistake is not read to its end.
const FILE_BYTES_MAX: usize = 1024;

/// Takes text as a secret, however short. From now on this process leaves no core dump.
fn secret(text: &str) -> Result<Secret, SecretError> {
    sys::forbid_core_dumps();
    Secret::new_weak(text.as_bytes())
}

/// Reads a secret file: one line, the newline at its end is not part of it. Refused if others may read or write it; a
/// warning if the secret is shorter than RFC 7143 §12.1.3 asks for.
pub(crate) fn from_file(context: &Context, path: &Path) -> Result<Secret, Failure> {
    let object = path.display().to_string();
    let failed = |cause: &dyn fmt::Display| Failure::failed("read the secret file", object.clone(), cause);
    let text = file::read_text(path, "the secret file", Keeping::Secret, FILE_BYTES_MAX)?;
    let text = text.map_err(|error| failed(&error))?;
    let text = text.strip_suffix('\n').unwrap_or(&text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    if text.contains('\n') {
        return Err(failed(&"it has more than one line"));
    }
    if let Err(weakness @ SecretError::Short) = Secret::new(text.as_bytes()) {
        context.warn(&format!("{object}: {weakness}, as RFC 7143 asks for; some peers refuse less"));
    }
    secret(text).map_err(|error| failed(&error))
}

/// The environment variables that hold passwords.
pub(crate) const VARIABLES: [&str; 2] = ["LIBISCSI_CHAP_PASSWORD", "LIBISCSI_CHAP_TARGET_PASSWORD"];

/// The password that came in an environment variable, one of [`VARIABLES`], if it was set and not empty.
pub(crate) fn from_env(context: &Context, name: &str) -> Result<Option<Secret>, Failure> {
    let secret = context.environment.get(name).map(Password::secret).transpose();
    secret.map_err(|error| Failure::usage("use", format!("${name}"), error))
}

/// A password taken out of a URL or the environment; text until a login needs it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Password(Zeroizing<String>);

impl Password {
    /// Keeps the text of an environment variable.
    pub(crate) fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    /// The text, to find it where it must be overwritten.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    /// For a login.
    pub(crate) fn secret(&self) -> Result<Secret, SecretError> {
        secret(&self.0)
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(..)")
    }
}

/// A URL's passwords, taken out of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UrlSecrets {
    /// `user%password@`.
    pub(crate) password: Option<Password>,
    /// `?target_password=`.
    pub(crate) target_password: Option<Password>,
}

/// Takes the passwords out of an endpoint's words; what comes back may be shown.
///
/// libiscsi's syntax: `iscsi://user%password@host/iqn/lun?target_user=..&target_password=..`. The percent sign
/// of `[fe80::1%25eth0]` comes after the `@` and stays. The caller overwrites them in the command line, and only
/// then forbids core dumps: the one needs what the other closes.
pub(crate) fn take_url_secrets(endpoint: &str) -> (String, UrlSecrets) {
    let mut secrets = UrlSecrets::default();
    let Some(rest) = endpoint.strip_prefix("iscsi://") else {
        return (endpoint.to_owned(), secrets);
    };
    let rest = take_target_password(rest, &mut secrets);
    // A password may contain a slash: the authority ends where a target's name begins, or if there is none, after the
    // last `@`, which an address in brackets has none before.
    let end = ["/iqn.", "/eui.", "/naa."].iter().filter_map(|name| rest.find(name)).min();
    let user = rest.rfind('@').filter(|_| !rest.starts_with('[')).unwrap_or(0);
    let end = end.or_else(|| rest[user..].find(['/', '?']).map(|end| user + end)).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let authority = match authority.rsplit_once('@') {
        Some((user, host)) => match user.split_once('%') {
            Some((user, password)) => {
                secrets.password = Some(Password(Zeroizing::new(password.to_owned())));
                format!("{user}@{host}")
            }
            None => authority.to_owned(),
        },
        None => authority.to_owned(),
    };
    (format!("iscsi://{authority}{path}"), secrets)
}

/// Wherever it stands: what is wrong may be written out of place.
fn take_target_password(rest: &str, secrets: &mut UrlSecrets) -> String {
    let mut path = rest.to_owned();
    while let Some(at) = path.find("target_password=") {
        let value = at + "target_password=".len();
        let end = path[value..].find(['&', ',']).map_or(path.len(), |end| value + end);
        secrets.target_password = Some(Password(Zeroizing::new(path[value..end].to_owned())));
        // Whichever separator precedes it goes too, unless another argument follows a `?`.
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
            // Not addresses of a target, and still shown by whoever says so.
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
        ];
        for (endpoint, clean, password, target) in all {
            let expected = (clean.to_owned(), password.map(str::to_owned), target.map(str::to_owned));
            assert_eq!(taken(endpoint), expected, "{endpoint}");
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
