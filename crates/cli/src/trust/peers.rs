//! The peers that a target admits, by their public keys: a TOML file; errors are reported with their line.

use std::ops::Range;
use std::path::{Path, PathBuf};

use node::target::Peer;
use seal::PublicKey;
use serde::Deserialize;
use toml::Spanned;

use super::file::{self, Keeping, LIST_BYTES_MAX};
use super::identity;
use crate::config::{Wrong, position, wrong};
use crate::context::Context;
use crate::error::Failure;
use crate::explain;
use crate::names;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPeers {
    #[serde(default)]
    peer: Vec<Spanned<RawPeer>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawPeer {
    name: Spanned<String>,
    public_key: Spanned<String>,
    initiator: Option<Spanned<String>>,
    luns: Option<Vec<u16>>,
    psk_file: Option<PathBuf>,
}

/// A peer and the file of its pre-shared key, which is not read yet.
#[derive(Debug)]
struct Listed {
    peer: Peer,
    psk_file: Option<PathBuf>,
}

pub(crate) fn load(context: &Context, path: &Path) -> Result<Vec<Peer>, Failure> {
    let object = path.display().to_string();
    let text = file::read_text(path, "the peers", Keeping::Public, LIST_BYTES_MAX)?.map_err(|error| {
        let is_missing = error.kind() == std::io::ErrorKind::NotFound;
        let failure = Failure::usage("read the peers", object.clone(), error);
        if is_missing { failure.hint(how_to_list(&object)) } else { failure }
    })?;
    let listed = parse(&text).map_err(|(range, cause)| {
        let (line, column) = position(&text, range.start);
        Failure::usage("use the peers", object.clone(), format!("line {line}, column {column}: {cause}"))
    })?;
    if listed.is_empty() {
        context.warn(&format!("{object} names no [[peer]]: no initiator can log in sealed"));
    }
    let with_psk = |Listed { peer, psk_file }| -> Result<Peer, Failure> {
        let psk = psk_file.map(|file| identity::load_psk(&beside(path, &file))).transpose()?;
        Ok(Peer { psk, ..peer })
    };
    listed.into_iter().map(with_psk).collect()
}

/// The command that makes a peers file with one peer.
fn how_to_list(object: &str) -> String {
    format!(
        "on the initiator's host: hikyaku key public; then here: printf '[[peer]]\\nname = \"laptop\"\\npublic-key = \"%s\"\\n' \
         KEY >> {}",
        job::shell::quoted(object)
    )
}

/// A path in the file `path`: relative paths are relative to its directory.
fn beside(path: &Path, file: &Path) -> PathBuf {
    path.parent().unwrap_or(Path::new("")).join(file)
}

/// The files of pre-shared keys in a peers file; empty if it cannot be read.
pub(crate) fn psk_files(path: &Path) -> Vec<PathBuf> {
    let text = file::read_text(path, "the peers", Keeping::Public, LIST_BYTES_MAX);
    let text = text.ok().and_then(Result::ok).unwrap_or_default();
    let files = parse(&text).unwrap_or_default().into_iter().filter_map(|listed| listed.psk_file);
    files.map(|file| beside(path, &file)).collect()
}

/// The names in a peers file, or the place of an error.
pub(crate) fn names(text: &str) -> Result<Vec<String>, Wrong> {
    parse(text).map(|listed| listed.into_iter().map(|listed| listed.peer.name).collect())
}

fn parse(text: &str) -> Result<Vec<Listed>, Wrong> {
    let raw: RawPeers = toml::from_str(text).map_err(|error| explain::parser(text, &error))?;
    let mut listed: Vec<Listed> = Vec::with_capacity(raw.peer.len());
    for peer in raw.peer {
        let RawPeer { name, public_key, initiator, luns, psk_file } = peer.into_inner();
        let at: Range<usize> = public_key.span();
        let key = PublicKey::parse(public_key.get_ref()).ok_or_else(|| {
            (at.clone(), format!("'{}' is not a public key, 44 characters of base64", public_key.get_ref()))
        })?;
        if name.get_ref().is_empty() {
            return Err(wrong(&name, "a peer needs a name"));
        }
        if listed.iter().any(|other| other.peer.name == *name.get_ref()) {
            return Err(wrong(&name, format!("peer '{}' is there twice", name.get_ref())));
        }
        if let Some(other) = listed.iter().find(|other| other.peer.public_key == key) {
            return Err((at, format!("peer '{}' has this key already", other.peer.name)));
        }
        let initiator =
            initiator.map(|name| names::parse_iscsi_name(name.get_ref()).map_err(|text| wrong(&name, text)));
        let peer = Peer {
            name: name.into_inner(),
            public_key: key,
            initiator: initiator.transpose()?,
            luns,
            psk: None,
        };
        listed.push(Listed { peer, psk_file });
    }
    Ok(listed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"# who may log in
[[peer]]
name = "laptop"
public-key = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="
initiator = "IQN.2026-11.example:Laptop"
luns = [0, 2]
psk-file = "/etc/hikyaku/laptop.psk"

[[peer]]
name = "backup"
public-key = "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI="
"#;

    #[test]
    fn everything_is_read() {
        let listed = parse(GOOD).unwrap();
        let [laptop, backup] = &listed[..] else { panic!("two peers") };
        assert_eq!(laptop.peer.name, "laptop");
        assert_eq!(laptop.peer.public_key, PublicKey([1; 32]));
        assert_eq!(laptop.peer.initiator.as_deref(), Some("iqn.2026-11.example:laptop"));
        assert_eq!(laptop.peer.luns, Some(vec![0, 2]));
        assert_eq!(laptop.psk_file.as_deref(), Some(Path::new("/etc/hikyaku/laptop.psk")));
        assert_eq!((backup.peer.public_key, &backup.peer.initiator), (PublicKey([2; 32]), &None));
        assert!(parse("").unwrap().is_empty());
    }

    /// (defect, replaced part of the valid text, replacement, line, part of the message)
    const DEFECTS: &[(&str, &str, &str, usize, &str)] = &[
        ("unknown_key", "luns =", "lun =", 6, "unknown key lun; did you mean luns?"),
        ("unknown_table", "[[peer]]", "[[peers]]", 2, "unknown key peers; did you mean peer?"),
        (
            "key_missing",
            "public-key = \"AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=\"\n",
            "",
            9,
            "the key public-key is missing: write for example public-key = ",
        ),
        ("key_short", "AgICAgIC", "AgIC", 11, "not a public key"),
        (
            "key_twice",
            "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=",
            "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=",
            11,
            "'laptop' has this key",
        ),
        ("name_twice", "\"backup\"", "\"laptop\"", 10, "peer 'laptop' is there twice"),
        ("name_empty", "\"backup\"", "\"\"", 10, "needs a name"),
        ("initiator_wrong", "IQN.2026-11.example:Laptop", "laptop", 5, "iSCSI name begins with"),
        (
            "luns_wrong",
            "[0, 2]",
            "0",
            6,
            "luns: 0 is a number, and a list in brackets is needed; write for example luns = [0, 1]",
        ),
        ("not_toml", "[0, 2]", "[0, ", 7, ""),
    ];

    #[test]
    fn every_defect_is_named_with_its_line() {
        for (defect, part, instead, line, message) in DEFECTS {
            assert!(GOOD.contains(part), "{defect}");
            let (range, cause) = names(&GOOD.replacen(part, instead, 1)).expect_err(defect);
            assert_eq!(position(&GOOD.replacen(part, instead, 1), range.start).0, *line, "{defect}: {cause}");
            assert!(cause.contains(message), "{defect}: {cause}");
        }
    }
}
