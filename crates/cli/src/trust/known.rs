//! The known targets: public keys of targets, one target per line:
//!
//! ```text
//! host:port[,address:port...] key[,next-key] [iqn...]
//! ```
//!
//! in the user's file, which is replaced as a whole, and in the host's file, `/etc/hikyaku/known-targets`. A line
//! matches by each of its names: the host and the addresses that `key trust` found, with their port, and the target
//! names of later sealed sessions. A remark `# since DATE` below a line says when its key was trusted.

mod list;
#[cfg(test)]
mod tests;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use job::lock::{self, Hold};
use job::units;
use seal::PublicKey;

use super::file::{self, Keeping, LIST_BYTES_MAX};
use super::{HOST_DIRECTORY, config_file, for_all_to_read, make_directory};
use crate::error::{Exit, Failure};
use crate::{names, sys};

pub(crate) use list::{Forgotten, Listed};

const FILE: &str = "known-targets";
/// Replacing takes milliseconds; a process that holds the lock longer than this is stuck.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(5);
/// Begins the remark below a line that `key trust` wrote.
const SINCE: &str = "# since ";
const ADDRESSES_MAX: usize = 16;
/// Maximum number of target names per line; further names are not recorded.
const TARGETS_MAX: usize = 256;

/// A host or address with a port, in the canonical form for comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Without the zone of an IPv6 address, as zones differ between hosts. Never an unspecified address.
    Address(IpAddr, u16),
    /// In lower case, without a final dot.
    Name(String, u16),
}

impl Place {
    pub(crate) fn of(host: &str, port: u16) -> Self {
        let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
        let literal = bare.split('%').next().unwrap_or_default();
        match literal.parse::<IpAddr>() {
            Ok(address) => Self::Address(reached(address), port),
            Err(_) => Self::Name(bare.trim_end_matches('.').to_ascii_lowercase(), port),
        }
    }

    pub(crate) fn at(address: SocketAddr) -> Self {
        Self::Address(reached(address.ip()), address.port())
    }

    /// Parses `host:port`. The host is an address (IPv6 in brackets, optionally with a zone) or a name of ASCII
    /// letters, digits, `-`, `_` and `.`. Other characters are an error: no URL can contain such a host.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let port = port.parse().ok().filter(|port| *port != 0)?;
        let is_host = match host.strip_prefix('[') {
            Some(rest) => rest.strip_suffix(']').is_some_and(|address| {
                let (address, zone) = address.split_once('%').unwrap_or((address, "0"));
                address.parse::<Ipv6Addr>().is_ok() && is_name(zone)
            }),
            None => is_name(host),
        };
        is_host.then(|| Self::of(host, port))
    }
}

fn is_name(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    text.chars().all(is_plain) && text.contains(|c: char| c.is_ascii_alphanumeric())
}

/// The address that a connection reaches: for Linux an unspecified address is the loopback of its family.
fn reached(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        address => address,
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Address(address, port) => SocketAddr::new(*address, *port).fmt(f),
            Self::Name(name, port) => f.write_str(&names::portal(name, *port)),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    line: usize,
    /// The first is the argument of `key trust`, the others are its addresses.
    places: Vec<Place>,
    key: PublicKey,
    /// The next key that the holder of `key` has announced, accepted as well.
    next: Option<PublicKey>,
    targets: Vec<String>,
}

impl Entry {
    fn text(&self) -> String {
        let places: Vec<String> = self.places.iter().map(Place::to_string).collect();
        let mut text = format!("{} {}", places.join(","), self.key);
        if let Some(next) = &self.next {
            text.push_str(&format!(",{next}"));
        }
        for target in &self.targets {
            text.push(' ');
            text.push_str(target);
        }
        text
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Query<'a> {
    pub(crate) places: &'a [Place],
    pub(crate) target: Option<&'a str>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) path: PathBuf,
    pub(crate) line: usize,
    pub(crate) key: PublicKey,
    pub(crate) next: Option<PublicKey>,
    /// The matching name: `host:port`, `address:port` or a target name.
    pub(crate) by: String,
}

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {} of {}", self.line, self.path.display())
    }
}

/// Both files, as read by [`KnownTargets::read`].
#[derive(Debug)]
pub(crate) struct KnownTargets {
    /// The file that `key trust` writes; `None` without a configuration directory.
    own: Option<PathBuf>,
    files: Vec<(PathBuf, Vec<Entry>)>,
}

impl KnownTargets {
    /// Reads the user's file and the host's; without a configuration directory only the host's.
    pub(crate) fn read() -> Result<Self, Failure> {
        Self::read_files(config_file(FILE).ok(), Path::new(HOST_DIRECTORY).join(FILE))
    }

    fn read_files(own: Option<PathBuf>, host: PathBuf) -> Result<Self, Failure> {
        let mut paths: Vec<PathBuf> = own.iter().cloned().collect();
        if !paths.contains(&host) {
            paths.push(host);
        }
        let read = |path: PathBuf| -> Result<(PathBuf, Vec<Entry>), Failure> {
            let entries = parse(&read_text(&path)?).map_err(|cause| failed(&path, "use", cause))?;
            Ok((path, entries))
        };
        Ok(Self { own, files: paths.into_iter().map(read).collect::<Result<_, _>>()? })
    }

    pub(crate) fn own(&self) -> Result<&Path, Failure> {
        match &self.own {
            Some(path) => Ok(path),
            // The error of `config_file` contains the reason.
            None => Err(config_file(FILE).err().unwrap_or_else(|| failed(Path::new(FILE), "find", "moved"))),
        }
    }

    /// The line that matches a target. All matching lines must have the same key.
    pub(crate) fn find(&self, query: Query<'_>) -> Result<Option<Found>, Failure> {
        let mut found: Option<Found> = None;
        for (path, entry, by) in self.matching(query) {
            let this =
                Found { path: path.to_owned(), line: entry.line, key: entry.key, next: entry.next, by };
            match &mut found {
                None => found = Some(this),
                Some(first) if first.key != this.key => return Err(disagreement(first, &this)),
                Some(first) => first.next = first.next.or(this.next),
            }
        }
        Ok(found)
    }

    fn matching(&self, query: Query<'_>) -> impl Iterator<Item = (&Path, &Entry, String)> {
        let all =
            self.files.iter().flat_map(|(path, entries)| entries.iter().map(move |entry| (path, entry)));
        all.filter_map(move |(path, entry)| {
            let place = query.places.iter().find(|place| entry.places.contains(place));
            let target = query.target.filter(|target| entry.targets.iter().any(|known| known == target));
            let by = place.map(Place::to_string).or_else(|| target.map(str::to_owned))?;
            Some((path.as_path(), entry, by))
        })
    }

    /// Whether a line with this key already contains the target's name.
    fn has_noted(&self, key: &PublicKey, target: &str) -> bool {
        let mut entries = self.files.iter().flat_map(|(_, entries)| entries);
        entries.any(|entry| entry.key == *key && entry.targets.iter().any(|known| known == target))
    }

    /// Stores the key of a host and its addresses, and replaces the key in lines of [`Self::own`] that contain any of
    /// them. Fails if a line of the host's file has another key, unless that file is the one to write.
    pub(crate) fn set(&self, host: &Place, addresses: &[Place], key: &PublicKey) -> Result<(), Failure> {
        let own = self.own()?;
        let mut places = vec![host.clone()];
        for address in addresses.iter().take(ADDRESSES_MAX) {
            if !places.contains(address) {
                places.push(address.clone());
            }
        }
        let elsewhere = self.matching(Query { places: &places, target: None });
        let other = elsewhere.into_iter().find(|(path, entry, _)| *path != own && entry.key != *key);
        if let Some((path, entry, by)) = other {
            let cause = format!("line {} of {} has another key for {by}", entry.line, path.display());
            return Err(Failure::new(Exit::Authentication, "trust", host.to_string(), cause).hint(
                "change that line first, as root without XDG_CONFIG_HOME: hikyaku key trust URL --key KEY",
            ));
        }
        update(own, LOCK_WAIT_MAX, |entries| {
            for entry in &mut *entries {
                if entry.places.iter().any(|place| places.contains(place)) && entry.key != *key {
                    (entry.key, entry.next) = (*key, None);
                }
            }
            match entries.iter_mut().find(|entry| entry.places[0] == *host) {
                Some(entry) => entry.places.clone_from(&places),
                None => {
                    let targets = Vec::new();
                    entries.push(Entry { line: 0, places: places.clone(), key: *key, next: None, targets });
                }
            }
        })
    }

    /// Adds a target's name to the line that matched when the target proved its key. Does not wait for the lock,
    /// because sessions are open; after a failure the next login tries again. If that file is not writable, the name
    /// goes to a line of the user's file.
    pub(crate) fn note(&self, found: &Found, host: &Place, target: &str) -> Result<(), Failure> {
        if self.has_noted(&found.key, target) {
            return Ok(());
        }
        let add = |entries: &mut Vec<Entry>| {
            let proven = |entry: &Entry| entry.key == found.key;
            let noted = |entry: &Entry| proven(entry) && entry.targets.iter().any(|known| known == target);
            if entries.iter().any(noted) {
                return;
            }
            let same = entries.iter().position(|entry| proven(entry) && entry.line == found.line);
            match same.or_else(|| entries.iter().position(proven)) {
                Some(at) if entries[at].targets.len() < TARGETS_MAX => {
                    entries[at].targets.push(target.to_owned());
                }
                Some(_) => {}
                None => entries.push(Entry {
                    line: 0,
                    places: vec![host.clone()],
                    key: found.key,
                    next: None,
                    targets: vec![target.to_owned()],
                }),
            }
        };
        let first = update(&found.path, Duration::ZERO, add);
        match (&first, &self.own) {
            (Err(_), Some(own)) if *own != found.path => update(own, Duration::ZERO, add),
            _ => first,
        }
    }
}

/// A change of the keys of one target, shown by a session in which the target has proven `present`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The next key announced, or none any more.
    Next(Option<PublicKey>),
    /// The target has proven its announced next key.
    Replaced(PublicKey),
}

impl KnownTargets {
    /// Applies a change to every line of `path` with the key `present`. Does not wait for the lock, because sessions are
    /// open; after a failure the next login tries again.
    pub(crate) fn rotate(path: &Path, present: &PublicKey, change: Change) -> Result<(), Failure> {
        update(path, Duration::ZERO, |entries| {
            for entry in entries.iter_mut().filter(|entry| entry.key == *present) {
                match change {
                    Change::Next(next) => entry.next = next,
                    Change::Replaced(next) if entry.next == Some(next) => {
                        (entry.key, entry.next) = (next, None);
                    }
                    // Another process has stored another announcement meanwhile.
                    Change::Replaced(_) => {}
                }
            }
        })
    }
}

fn disagreement(first: &Found, second: &Found) -> Failure {
    let cause = format!(
        "it is known by two keys: {first} has {} for {}, {second} has {} for {}",
        first.key, first.by, second.key, second.by
    );
    Failure::new(Exit::Authentication, "trust", first.by.clone(), cause).hint(
        "remove the wrong line; of a target with a new key, type for each of its names: hikyaku key trust iscsi://HOST --key KEY",
    )
}

fn failed(path: &Path, verb: &str, cause: impl std::fmt::Display) -> Failure {
    Failure::failed(format!("{verb} the known targets"), path.display().to_string(), cause)
}

fn read_text(path: &Path) -> Result<String, Failure> {
    match file::read_text(path, "the known targets", Keeping::Public, LIST_BYTES_MAX)? {
        Ok(text) => Ok(text.to_string()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && path.starts_with(HOST_DIRECTORY) => {
            Err(failed(path, "read", error).hint(for_all_to_read(path)))
        }
        Err(error) => Err(failed(path, "read", error)),
    }
}

/// Changes the entries of a file under its lock; comments and other lines keep their text. Follows a link.
fn update(path: &Path, wait: Duration, change: impl FnOnce(&mut Vec<Entry>)) -> Result<(), Failure> {
    let is_of_host = path.parent() == Some(Path::new(HOST_DIRECTORY));
    let target = fs::read_link(path).ok().map(|_| fs::canonicalize(path)).transpose();
    let target = target.map_err(|error| failed(path, "follow the link of", error))?;
    let path = target.as_deref().unwrap_or(path);
    let _lock = lock(path, wait).map_err(|error| failed(path, "lock", error))?;
    let text = read_text(path)?;
    let before = parse(&text).map_err(|cause| failed(path, "use", cause))?;
    let mut after = before.clone();
    change(&mut after);
    if after == before {
        return Ok(());
    }
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let since = format!("{SINCE}{}", units::utc(SystemTime::now()));
    // From the last line on: the numbers of those before it stay valid.
    for old in before.iter().rev() {
        let at = old.line - 1;
        let has_since = lines.get(old.line).is_some_and(|line| line.starts_with(SINCE));
        let remark = old.line..old.line + usize::from(has_since);
        match after.iter().find(|entry| entry.line == old.line) {
            Some(entry) if entry == old => {}
            Some(entry) => {
                if entry.key != old.key {
                    lines.splice(remark, [since.clone()]);
                }
                lines[at] = entry.text();
            }
            None => drop(lines.drain(at..remark.end)),
        }
    }
    for entry in after.iter().filter(|entry| entry.line == 0) {
        lines.extend([entry.text(), since.clone()]);
    }
    // The host's file is readable by all.
    let mode = if is_of_host { 0o644 } else { 0o600 };
    sys::replace_file(path, (lines.join("\n") + "\n").as_bytes(), mode).map_err(|error| match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            failed(path, "write", error).hint("free space there; the file is as it was")
        }
        _ => failed(path, "write", error),
    })
}

/// Locks a separate file beside `path`, because `path` itself is replaced.
fn lock(path: &Path, wait: Duration) -> io::Result<File> {
    let directory = path.parent().expect("a file in a directory");
    make_directory(directory)?;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let lock = options.open(path.with_extension("lock"))?;
    let deadline = Instant::now() + wait;
    while !lock::lock_byte(&lock, 0, Hold::Exclusive)? {
        if Instant::now() >= deadline {
            return Err(io::Error::other("another process holds the lock"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(lock)
}

/// Parses all lines; any error fails the file: a key that is skipped would mean sealing that is not required.
fn parse(text: &str) -> Result<Vec<Entry>, String> {
    let mut entries = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        let mut words = line.split_whitespace();
        let Some(first) = words.next().filter(|first| !first.starts_with('#')) else { continue };
        let form =
            || format!("line {number} is not of the form host:port[,address:port] key[,next-key] [iqn...]");
        let places: Option<Vec<Place>> = first.split(',').map(Place::parse).collect();
        let (Some(places), Some(key)) = (places, words.next()) else { return Err(form()) };
        let public = |key: &str| {
            PublicKey::parse(key)
                .ok_or_else(|| format!("line {number}: '{key}' is not a public key, 44 characters of base64"))
        };
        let (key, next) = match key.split_once(',') {
            Some((key, next)) => (public(key)?, Some(public(next)?)),
            None => (public(key)?, None),
        };
        let targets: Result<Vec<String>, String> = words.map(names::parse_iscsi_name).collect();
        let targets = targets.map_err(|cause| format!("line {number}: {cause}"))?;
        if places.len() > 1 + ADDRESSES_MAX || targets.len() > TARGETS_MAX {
            return Err(format!(
                "line {number} has more than {ADDRESSES_MAX} addresses or {TARGETS_MAX} target names"
            ));
        }
        entries.push(Entry { line: number, places, key, next, targets });
    }
    Ok(entries)
}

/// For the fuzzer: whether the formatted entries of a text parse to the same; `None` if it does not parse.
pub(crate) fn reads_back(text: &str) -> Option<bool> {
    let entries = parse(text).ok()?;
    let lines: Vec<String> = entries.iter().map(Entry::text).collect();
    let again = parse(&lines.join("\n")).ok()?;
    let bare = |entries: &[Entry]| -> Vec<Entry> {
        entries.iter().cloned().map(|entry| Entry { line: 0, ..entry }).collect()
    };
    Some(bare(&again) == bare(&entries))
}
