//! What to type instead, for endpoints that cannot be understood or opened. The texts become hints of failures.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use job::shell::{self, quoted};
use nbd::{Place, Uri};

use crate::secret::parts_of;
use crate::sys;

/// Entries of a directory that are compared with a name that is missing there.
const NEIGHBOURS_MAX: usize = 4096;
/// Commas of a name up to which a file of that name is looked for.
const COMMAS_MAX: usize = 16;
/// Maximum length of a Unix socket's path: `sun_path` of unix(7) without the final zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// Words of other programs for options of ours.
const SYNONYMS: &[(&str, &str)] = &[
    ("readonly", "ro"),
    ("read-only", "ro"),
    ("sector-size", "block-size"),
    ("blocksize", "block-size"),
    ("logical-block", "block-size"),
    ("bs", "block-size"),
    ("new", "create"),
    ("user", "chap-user"),
    ("secret-file", "chap-secret-file"),
    ("password-file", "chap-secret-file"),
    ("bandwidth", "limit"),
    ("rate", "limit"),
    ("latency", "delay"),
];

/// Words of other programs for commands of ours.
const COMMANDS: &[(&str, &[&str])] = &[
    ("copy", &["cp", "dd", "clone", "convert", "import", "mirror"]),
    ("compare", &["cmp", "diff", "verify"]),
    ("ls", &["list", "discover", "discovery"]),
    ("info", &["show", "stat", "inspect", "identify"]),
    ("serve", &["target", "export", "share", "server"]),
];

/// The command that was meant by a word that is none, or by an endpoint in the place of a command; `rest` are the
/// arguments after it.
pub(crate) fn command(word: &str, rest: &[String]) -> Option<String> {
    let line = |command: &str, words: &[String]| {
        let words: Vec<String> =
            ["hikyaku", command].iter().map(|&word| word.to_owned()).chain(words.to_vec()).collect();
        Some(shell::line(&words))
    };
    if let Some((command, _)) = COMMANDS.iter().find(|(_, words)| words.contains(&word)) {
        return line(command, rest);
    }
    let is_url = word.contains("://");
    let words = [&[word.to_owned()], rest].concat();
    match (is_url || Path::new(word).exists(), rest.iter().any(|word| !word.starts_with('-'))) {
        (false, _) => None,
        (true, true) => line("copy", &words),
        (true, false) if is_url => line("ls", &words),
        (true, false) => line("info", &words),
    }
}

/// For an unknown option of an endpoint. `words` is the endpoint's text without secrets.
pub(crate) fn unknown_option(words: &str, option: &str, known: &[&str]) -> String {
    if let Some(words) = with_commas_doubled(words) {
        return format!("{}: a comma that belongs to a name is written twice", quoted(&words));
    }
    if matches!(option, "rw" | "w") {
        return "leave it out: an endpoint can be written unless it has ro".to_owned();
    }
    let synonym =
        SYNONYMS.iter().find(|(other, _)| other.eq_ignore_ascii_case(option)).map(|(_, name)| *name);
    if let Some(name) = synonym.filter(|name| known.contains(name)).or_else(|| nearest(option, known)) {
        return format!("did you mean {name}?");
    }
    if option.contains(['.', '/', ' ']) {
        return "if the comma belongs to the name, write it twice: a,,b.img".to_owned();
    }
    String::new()
}

/// The endpoint with the commas of its path doubled, if the path with commas is a file that exists.
fn with_commas_doubled(words: &str) -> Option<String> {
    let parts = parts_of(words);
    (2..=parts.len().min(COMMAS_MAX)).rev().find_map(|count| {
        let name = parts[..count].join(",");
        let rest: String = parts[count..].iter().map(|part| format!(",{part}")).collect();
        fs::symlink_metadata(&name).ok().map(|_| name.replace(',', ",,") + &rest)
    })
}

/// The candidate that differs by at most two edits, and by less than half of its letters.
pub(crate) fn nearest<'a>(word: &str, candidates: &[&'a str]) -> Option<&'a str> {
    let word = word.to_ascii_lowercase();
    let distance = |name: &str| strsim::damerau_levenshtein(&word, &name.to_ascii_lowercase());
    let all = candidates.iter().map(|name| (distance(name), *name));
    let (distance, name) = all.min_by_key(|(distance, _)| *distance)?;
    (distance <= 2 && 2 * distance < name.chars().count().max(2)).then_some(name)
}

/// The type of sealed volumes that is meant by a word that is none.
pub(crate) fn volume_type(word: &str) -> Option<&'static str> {
    const TYPES: [&str; 2] = ["luks2", "auth"];
    nearest(word, &TYPES).filter(|_| !TYPES.contains(&word))
}

/// For options of a sealed volume that are given as options of a command; `is_of_volume`: of one of `hikyaku volume`, which opens
/// no volume.
pub(crate) fn option_of_a_volume(argument: &str, is_of_volume: bool) -> Option<String> {
    let name = argument.strip_prefix("--")?;
    let name = name.split_once('=').map_or(name, |(name, _)| name);
    match name {
        "freshness" if is_of_volume => {
            let text = "leave it out: of the commands on volumes, format makes that file and grow changes it; after reencrypt it is of \
                        no use";
            return Some(text.to_owned());
        }
        "volume" | "view" if is_of_volume => {
            return Some("leave it out: this command works on the volume itself".to_owned());
        }
        _ => {}
    }
    ["volume", "view", "password-file", "key-file", "header", "freshness"].contains(&name).then(|| {
        format!(
            "{name} is an option of the endpoint, behind its name: sealed.img,volume=luks2,password-file=pw"
        )
    })
}

/// For a URL with a scheme that is not supported.
pub(crate) fn scheme(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    match nearest(scheme, &["iscsi", "nbd", "nbd+unix"]) {
        Some(name) => format!("{name}://{rest}"),
        None => "iscsi://host/iqn.2026-11.example:disks/0, nbd://host/name, or the path of a file or device"
            .to_owned(),
    }
}

/// The URL that was meant by text without a scheme: `host:3260`, `192.0.2.1`, `host:3260/iqn.../0`, `iscsi:host`. With
/// `is_host`, a name alone is a host too.
pub(crate) fn meant_url(text: &str, is_host: bool) -> Option<String> {
    let lower = text.to_ascii_lowercase();
    if let Some(rest) = lower.strip_prefix("iscsi:") {
        let rest = &text[text.len() - rest.len()..];
        return Some(format!("iscsi://{}", rest.trim_start_matches('/')));
    }
    let (authority, rest) = text.split_once('/').map_or((text, None), |(host, rest)| (host, Some(rest)));
    let names_target = rest.is_some_and(|rest| {
        let rest = rest.to_ascii_lowercase();
        ["iqn.", "eui.", "naa."].iter().any(|kind| rest.starts_with(kind))
    });
    let bare = authority.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(authority);
    if let Ok(address) = bare.parse::<IpAddr>() {
        let host = if address.is_ipv6() { format!("[{bare}]") } else { bare.to_owned() };
        let rest = rest.map(|rest| format!("/{rest}")).unwrap_or_default();
        return (names_target || rest.len() < 2).then(|| format!("iscsi://{host}{rest}"));
    }
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) => (host, port.parse::<u16>().ok()),
        None => (authority, None),
    };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-.[]:%".contains(c);
    let has_port = port.is_some_and(|port| port > 0) || (is_host && !authority.contains(':'));
    let is_address = !host.is_empty() && host.chars().all(is_plain);
    let ends = rest.is_none_or(str::is_empty);
    (is_address && ((has_port && ends) || (names_target && (has_port || !authority.contains(':')))))
        .then(|| format!("iscsi://{text}"))
}

/// The host of text that is a mistyped URL of a LUN, `host:disks:0`: without `/`, a name in the middle, a LUN at the end.
pub(crate) fn host_of_colons(text: &str) -> Option<&str> {
    let (host, rest) = text.split_once(':')?;
    let (name, lun) = rest.rsplit_once(':')?;
    let is_host = !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || "-.".contains(c));
    let is_name = name.contains(|c: char| c.is_ascii_alphabetic()) && !name.contains(['/', ' ']);
    (is_host && is_name && lun.parse::<u16>().is_ok()).then_some(host)
}

/// A target's name that ends with `:LUN`, of a URL without a LUN: the URL that was meant.
pub(crate) fn lun_after_colon(url: &str) -> Option<String> {
    let (head, lun) = url.rsplit_once(':')?;
    let is_target = ["/iqn.", "/eui.", "/naa."].iter().any(|kind| head.to_ascii_lowercase().contains(kind));
    // The last / precedes the name: a URL with a LUN has another one after it.
    let has_no_lun = head.strip_prefix("iscsi://")?.matches('/').count() == 1;
    (is_target && has_no_lun && lun.parse::<u16>().is_ok()).then(|| format!("{head}/{lun}"))
}

/// For a path at which there is nothing.
pub(crate) fn missing(path: &Path) -> String {
    let text = path.display().to_string();
    if let Some(url) = meant_url(&text, false) {
        let portal = url["iscsi://".len()..].split('/').next().unwrap_or_default();
        return if url.contains("/iqn.") || url.contains("/eui.") || url.contains("/naa.") {
            url
        } else {
            format!("iscsi://{portal}/IQN/LUN; `hikyaku ls iscsi://{portal}` lists them")
        };
    }
    if let Some(host) = host_of_colons(&text) {
        return format!(
            "iscsi://{host}/IQN/LUN, with / between them; `hikyaku ls iscsi://{host}` lists them"
        );
    }
    let name = text.trim_end_matches('/');
    if name != text && Path::new(name).is_file() {
        return format!("{}, without the / at its end", quoted(name));
    }
    if path.starts_with("/dev") {
        return "`lsblk` lists the disks of this machine".to_owned();
    }
    let parent = parent_of(path);
    if !parent.is_dir() {
        return format!(
            "make the directory first, or check its name: {}",
            quoted(&parent.display().to_string())
        );
    }
    match neighbour(path, &parent) {
        Some(name) => format!("did you mean {}?", quoted(&name)),
        None => "check the name".to_owned(),
    }
}

fn parent_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// The path of the file in `parent` whose name is most like that of `path`.
fn neighbour(path: &Path, parent: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let entries = fs::read_dir(parent).ok()?.take(NEIGHBOURS_MAX).flatten();
    let names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    let found = nearest(name, &names.iter().map(String::as_str).collect::<Vec<_>>())?;
    // Of short names with one extension, such as a.img and b.img, none is meant for the other.
    let stem = path.file_stem()?.to_str()?.chars().count();
    if 2 * strsim::damerau_levenshtein(name, found) >= stem {
        return None;
    }
    Some(path.with_file_name(found).display().to_string())
}

/// For a file or device that this user may not open.
pub(crate) fn denied(path: &Path, writable: bool) -> String {
    let to_read = if writable { format!("; to read it only: {},ro", path.display()) } else { String::new() };
    let Ok(metadata) = fs::metadata(path) else {
        return "run it with sudo: a directory on the way to it is closed to this user".to_owned();
    };
    let group = sys::group_name(metadata.gid());
    match (metadata.file_type().is_block_device(), group) {
        (true, Some(group)) if metadata.mode() & 0o060 != 0 && group != "root" => format!(
            "run it with sudo, or join the group of the device and log in again: sudo usermod -aG {group} $USER{to_read}"
        ),
        (true, _) => format!("run it with sudo{to_read}"),
        (false, _) => format!(
            "run it with sudo, or let this user in: sudo setfacl -m u:$USER:{} {}{to_read}",
            if writable { "rw" } else { "r" },
            quoted(&path.display().to_string())
        ),
    }
}

/// Lines that make the disk of an image available: `qemu-nbd` at a socket beside the image, then the same command with
/// its URL, then the end of `qemu-nbd`. `arguments` are those of this process, without secrets; `words` is the endpoint among them.
pub(crate) fn image(path: &Path, format: &str, writable: bool, words: &str, arguments: &[String]) -> String {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut socket = format!("{}.sock", whole.display());
    if socket.len() > SOCKET_PATH_BYTES_MAX {
        "image.sock".clone_into(&mut socket);
    }
    let read_only = if writable { "" } else { " -r" };
    let file = quoted(&path.display().to_string());
    let pid = quoted(&format!("{}.pid", socket.trim_end_matches(".sock")));
    let serve =
        format!("qemu-nbd --fork -t{read_only} -f {format} -k {} --pid-file {pid} {file}", quoted(&socket));
    let options: String = parts_of(words)[1..].iter().map(|option| format!(",{option}")).collect();
    let uri = Uri { place: Place::Unix(PathBuf::from(&socket)), export: String::new() };
    let url = uri.to_string().replace(',', ",,") + &options;
    let is_there = arguments.iter().any(|argument| argument == words);
    let again: Vec<String> = arguments
        .iter()
        .map(|argument| if argument == words { url.clone() } else { argument.clone() })
        .collect();
    let then = if is_there { format!("hikyaku {}", shell::line(&again)) } else { quoted(&url) };
    format!(
        "{serve}\n       {then}\n       kill $(cat {pid})\n   or: {file},format=raw for the bytes of the image itself"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_a_scheme_is_told_from_a_path() {
        let all = [
            ("127.0.0.1", Some("iscsi://127.0.0.1")),
            ("127.0.0.1:3260", Some("iscsi://127.0.0.1:3260")),
            ("127.0.0.1/", Some("iscsi://127.0.0.1/")),
            ("[::1]:3260", Some("iscsi://[::1]:3260")),
            ("::1", Some("iscsi://[::1]")),
            ("host:3260", Some("iscsi://host:3260")),
            ("host:3260/iqn.2026-11.x:y/0", Some("iscsi://host:3260/iqn.2026-11.x:y/0")),
            ("host/iqn.2026-11.x:y/0", Some("iscsi://host/iqn.2026-11.x:y/0")),
            ("192.0.2.1/iqn.2026-11.x:y", Some("iscsi://192.0.2.1/iqn.2026-11.x:y")),
            ("iscsi:host", Some("iscsi://host")),
            ("iscsi:/host/iqn.2026-11.x:y/0", Some("iscsi://host/iqn.2026-11.x:y/0")),
            ("ISCSI:host", Some("iscsi://host")),
            ("host", None),
            ("disk.img", None),
            ("dir/disk.img", None),
            ("/dev/sda", None),
            ("disk:1.img", None),
            ("host:0", None),
            ("192.0.2.1/disk.img", None),
            ("a b:3260", None),
        ];
        for (text, url) in all {
            assert_eq!(meant_url(text, false).as_deref(), url, "{text}");
        }
        assert_eq!(meant_url("host", true).as_deref(), Some("iscsi://host"));
        assert_eq!(meant_url("/dev/sda", true), None);
    }

    #[test]
    fn colons_in_the_place_of_slashes() {
        for (text, host) in [
            ("host:disks:0", Some("host")),
            ("192.0.2.1:iqn.2026-11.example:disks:0", Some("192.0.2.1")),
            ("host:3260", None),
            ("host:3260:0", None),
            ("12:30:00", None),
            ("dir/a:b:0", None),
            ("a b:c:0", None),
            ("vm:disk:0.img", None),
        ] {
            assert_eq!(host_of_colons(text), host, "{text}");
        }
        for (url, meant) in [
            ("iscsi://h:3261/iqn.2026-11.x:disks:0", Some("iscsi://h:3261/iqn.2026-11.x:disks/0")),
            ("iscsi://h/iqn.2026-11.x:disks", None),
            ("iscsi://h/iqn.2026-11.x:disks:0/1", None),
            ("iscsi://h:3260", None),
        ] {
            assert_eq!(lun_after_colon(url).as_deref(), meant, "{url}");
        }
    }

    #[test]
    fn a_command_is_suggested_for_other_programs_words_and_for_endpoints() {
        for (words, expected) in [
            (&["cp", "a.img", "b.img"][..], Some("hikyaku copy a.img b.img")),
            (&["discover", "iscsi://host"], Some("hikyaku ls iscsi://host")),
            (&["iscsi://host"], Some("hikyaku ls iscsi://host")),
            (&["/dev/null", "--json"], Some("hikyaku info /dev/null --json")),
            (&["/dev/null", "my disk.img"], Some("hikyaku copy /dev/null 'my disk.img'")),
            (&["/none/none.img"], None),
            (&["frobnicate"], None),
        ] {
            let rest: Vec<String> = words[1..].iter().map(|&word| word.to_owned()).collect();
            assert_eq!(command(words[0], &rest).as_deref(), expected, "{words:?}");
        }
    }

    #[test]
    fn options_are_suggested_by_likeness_and_by_other_programs_words() {
        let known = ["ro", "size", "create", "block-size", "delay"];
        for (option, hint) in [
            ("RO", "did you mean ro?"),
            ("readonly", "did you mean ro?"),
            ("craete", "did you mean create?"),
            ("blocksize", "did you mean block-size?"),
            ("siez", "did you mean size?"),
            ("rw", "leave it out: an endpoint can be written unless it has ro"),
            ("b.img", "if the comma belongs to the name, write it twice: a,,b.img"),
            ("xy", ""),
            ("frobnicate", ""),
            // Known elsewhere, not here.
            ("user", ""),
        ] {
            assert_eq!(unknown_option(&format!("none,{option}"), option, &known), hint, "{option}");
        }
    }

    #[test]
    fn what_belongs_to_a_sealed_volume_is_suggested() {
        for (word, meant) in [
            ("LUKS2", Some("luks2")),
            ("luks", Some("luks2")),
            ("Auth", Some("auth")),
            ("luks2", None),
            ("auth", None),
            ("plain", None),
        ] {
            assert_eq!(volume_type(word), meant, "{word}");
        }
        for (argument, is_of_a_volume) in [
            ("--volume", true),
            ("--password-file=pw", true),
            ("--header", true),
            ("--verify", false),
            ("volume", false),
        ] {
            assert_eq!(option_of_a_volume(argument, false).is_some(), is_of_a_volume, "{argument}");
        }
        for argument in ["--freshness", "--freshness=f", "--volume"] {
            let advice = option_of_a_volume(argument, true).unwrap();
            assert!(advice.starts_with("leave it out") && !advice.contains("endpoint"), "{advice}");
        }
    }

    #[test]
    fn a_files_commas_are_doubled_and_its_options_stay() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a,b,ro.img");
        fs::write(&path, "").unwrap();
        let text = path.display().to_string();
        let doubled = text.replace(',', ",,");
        assert_eq!(with_commas_doubled(&text), Some(doubled.clone()));
        assert_eq!(with_commas_doubled(&format!("{text},ro,size=1M")), Some(format!("{doubled},ro,size=1M")));
        assert_eq!(with_commas_doubled(&dir.path().join("a,b").display().to_string()), None);
    }

    #[test]
    fn what_is_missing_is_explained() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("disk.img"), "").unwrap();
        let at = |name: &str| missing(&dir.path().join(name));
        assert_eq!(at("dsik.img"), format!("did you mean {}/disk.img?", dir.path().display()));
        assert_eq!(at("other.raw"), "check the name");
        fs::write(dir.path().join("a.img"), "").unwrap();
        assert_eq!(at("b.img"), "check the name");
        assert!(at("none/disk.img").starts_with("make the directory first"), "{}", at("none/disk.img"));
        assert!(at("disk.img/").ends_with("without the / at its end"), "{}", at("disk.img/"));
        assert_eq!(missing(Path::new("/dev/sdnone")), "`lsblk` lists the disks of this machine");
        assert_eq!(
            missing(Path::new("192.0.2.1:3260")),
            "iscsi://192.0.2.1:3260/IQN/LUN; `hikyaku ls iscsi://192.0.2.1:3260` lists them"
        );
    }

    #[test]
    fn the_hint_for_an_image_is_the_same_command_with_its_url() {
        let arguments = ["copy", "/a b/x.qcow2,ro", "out.img"].map(str::to_owned);
        let hint = image(Path::new("/a b/x.qcow2"), "qcow2", false, "/a b/x.qcow2,ro", &arguments);
        let mut lines = hint.lines().map(str::trim);
        assert_eq!(
            lines.next(),
            Some(
                "qemu-nbd --fork -t -r -f qcow2 -k '/a b/x.qcow2.sock' --pid-file '/a b/x.qcow2.pid' '/a b/x.qcow2'"
            )
        );
        assert_eq!(lines.next(), Some("hikyaku copy 'nbd+unix:///?socket=/a%20b/x.qcow2.sock,ro' out.img"));
        let deep = format!("/{}/x.vmdk", "d".repeat(200));
        let hint = image(Path::new(&deep), "vmdk", true, &deep, &[]);
        assert!(
            hint.starts_with("qemu-nbd --fork -t -f vmdk -k image.sock --pid-file image.pid /ddd"),
            "{hint}"
        );
        assert!(hint.contains("\n       'nbd+unix:///?socket=image.sock'\n"), "{hint}");
    }
}
