//! What `serve` is told, by flags or by a TOML file; the file's mistakes are reported with their line.

use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use block::Spec;
use node::SealPolicy;
use serde::Deserialize;
use serde::de::IgnoredAny;
use toml::Spanned;

use crate::context::Context;
use crate::endpoint::{LUN_OPTIONS, Named};
use crate::error::Failure;
use crate::state::parse_naa;
use crate::trust::file::{self, Keeping, LIST_BYTES_MAX};
use crate::{names, trust, units};

/// Read when `serve` gets neither endpoints nor `--config`.
pub(crate) const DEFAULT_FILE: &str = "/etc/hikyaku/hikyaku.toml";
/// LUNs that the flat addressing method can name.
const LUN_MAX: u16 = 16383;

/// What to serve.
#[derive(Debug, Default)]
pub(crate) struct Config {
    /// Addresses to listen on; empty for the default.
    pub(crate) listen: Vec<SocketAddr>,
    /// What SendTargets answers instead of the address the client used.
    pub(crate) advertise: Option<String>,
    /// Longest time a drain takes.
    pub(crate) drain_timeout: Option<Duration>,
    /// Whether sessions are sealed, where it was said.
    pub(crate) seal: Option<SealPolicy>,
    /// The file of our key, if not the usual one.
    pub(crate) identity: Option<PathBuf>,
    /// The file of the peers' keys.
    pub(crate) peers: Option<PathBuf>,
    /// Users of this host who may log in over loopback without proof, by name or number; `any` for all.
    pub(crate) allow_users: Vec<String>,
    /// Directories in which LUNs lie that a reload may add.
    pub(crate) storage: Vec<PathBuf>,
    /// The file that this was read from.
    pub(crate) file: Option<PathBuf>,
    /// The targets.
    pub(crate) targets: Vec<Target>,
}

/// One target.
#[derive(Debug, Default)]
pub(crate) struct Target {
    /// Its name; `None` for this host's default.
    pub(crate) iqn: Option<String>,
    /// Its logical units, by number.
    pub(crate) luns: Vec<Lun>,
    /// Who may log in; empty for everyone.
    pub(crate) acls: Vec<Acl>,
}

/// One logical unit.
#[derive(Debug)]
pub(crate) struct Lun {
    /// Its number.
    pub(crate) lun: u16,
    /// Its storage.
    pub(crate) endpoint: Named,
    /// Its serial number, if it is not to be random.
    pub(crate) serial: Option<String>,
    /// Its NAA designator, if it is not to be random.
    pub(crate) naa: Option<u64>,
}

/// Who may log in.
#[derive(Debug)]
pub(crate) struct Acl {
    /// Initiator name; `None` for anyone who knows the secret.
    pub(crate) initiator: Option<String>,
    /// The name of the peer whose key it must prove.
    pub(crate) peer: Option<String>,
    /// CHAP account.
    pub(crate) chap: Option<Account>,
    /// What the target proves itself with.
    pub(crate) mutual: Option<Account>,
    /// LUNs seen; `None` for all.
    pub(crate) luns: Option<Vec<u16>>,
    /// No writes.
    pub(crate) read_only: bool,
    /// Its line in the file, from one; 0 of what flags say.
    pub(crate) line: usize,
}

/// A CHAP name and where its secret lies.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    /// The name.
    pub(crate) user: String,
    /// The file.
    pub(crate) secret_file: PathBuf,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawConfig {
    client: Option<RawClient>,
    #[serde(default)]
    server: RawServer,
    #[serde(default)]
    target: Vec<RawTarget>,
}

/// What concerns an initiator of the same file: the rest of it is `serve`'s.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawClientOnly {
    #[serde(default)]
    client: RawClient,
    #[serde(rename = "server")]
    _server: Option<IgnoredAny>,
    #[serde(rename = "target")]
    _target: Option<IgnoredAny>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawClient {
    seal: Option<Spanned<String>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawServer {
    #[serde(default)]
    listen: Vec<Spanned<String>>,
    advertise: Option<String>,
    drain_timeout: Option<Spanned<String>>,
    seal: Option<Spanned<String>>,
    identity: Option<PathBuf>,
    peers: Option<PathBuf>,
    #[serde(default)]
    allow_user: Vec<String>,
    #[serde(default)]
    storage: Vec<Spanned<PathBuf>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTarget {
    iqn: Spanned<String>,
    #[serde(default)]
    lun: Vec<RawLun>,
    #[serde(default)]
    portal: Vec<RawPortal>,
    #[serde(default)]
    acl: Vec<Spanned<RawAcl>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLun {
    lun: Spanned<u16>,
    endpoint: Spanned<String>,
    serial: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPortal {
    address: Spanned<String>,
    tpgt: Option<Spanned<u16>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawAcl {
    initiator: Option<Spanned<String>>,
    peer: Option<String>,
    chap_user: Option<String>,
    secret_file: Option<PathBuf>,
    mutual_chap_user: Option<String>,
    mutual_secret_file: Option<PathBuf>,
    luns: Option<Spanned<Vec<u16>>>,
    mode: Option<Spanned<String>>,
}

/// Something wrong at a place of the text.
pub(crate) type Wrong = (Range<usize>, String);

/// Something wrong with a value.
pub(crate) fn wrong<T>(at: &Spanned<T>, text: impl Into<String>) -> Wrong {
    (at.span(), text.into())
}

impl RawClient {
    /// Where it says that every session must be sealed, or go through TLS.
    fn requires_seal(&self) -> Result<Option<Range<usize>>, Wrong> {
        let Some(seal) = &self.seal else { return Ok(None) };
        match seal.get_ref().as_str() {
            "require" => Ok(Some(seal.span())),
            other => {
                Err(wrong(seal, format!("'{other}' is not \"require\", the one value of seal in [client]")))
            }
        }
    }
}

/// The line of a file in which `[client] seal = "require"` stands. A file that is missing says nothing.
pub(crate) fn client_seal(path: &Path) -> Result<Option<usize>, Failure> {
    let object = path.display().to_string();
    let text = match file::read_text(path, "the configuration", Keeping::Public, LIST_BYTES_MAX)? {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        result => result.map_err(|error| {
            Failure::usage("read the configuration", object.clone(), error).hint(trust::for_all_to_read(path))
        })?,
    };
    client_seal_of(&text).map_err(|(range, cause)| {
        let (line, column) = position(&text, range.start);
        Failure::usage("use the configuration", object, format!("line {line}, column {column}: {cause}"))
    })
}

fn client_seal_of(text: &str) -> Result<Option<usize>, Wrong> {
    let raw: RawClientOnly = toml::from_str(text)
        .map_err(|error| (error.span().unwrap_or_default(), error.message().to_owned()))?;
    Ok(raw.client.requires_seal()?.map(|range| position(text, range.start).0))
}

impl Config {
    /// Reads and checks a file. Nothing is opened but the file itself. It has no target if it is an initiator's: `[client]`
    /// without `[[target]]`.
    pub(crate) fn load(context: &Context, path: &Path) -> Result<Self, Failure> {
        let object = path.display().to_string();
        let text = file::read_text(path, "the configuration", Keeping::Public, LIST_BYTES_MAX)?
            .map_err(|error| Failure::usage("read the configuration", object.clone(), error))?;
        let parsed = Self::parse(context, &text).map_err(|(range, cause)| {
            let (line, column) = position(&text, range.start);
            Failure::usage("use the configuration", object, format!("line {line}, column {column}: {cause}"))
        })?;
        Ok(Self { file: Some(path.to_owned()), ..parsed })
    }

    /// A row that cannot be carried out.
    pub(crate) fn wrong_row(&self, acl: &Acl, cause: &str) -> Failure {
        let object = self.file.as_ref().map(|file| file.display().to_string()).unwrap_or_default();
        let line = if acl.line > 0 { format!("line {}: ", acl.line) } else { String::new() };
        Failure::usage("use the configuration", object, format!("{line}{cause}"))
    }

    /// Whether sessions are sealed. With keys of peers they must be, unless something else was said.
    pub(crate) fn seal_policy(&self) -> SealPolicy {
        let default = if self.peers.is_some() { SealPolicy::Require } else { SealPolicy::Off };
        self.seal.unwrap_or(default)
    }

    pub(crate) fn parse(context: &Context, text: &str) -> Result<Self, Wrong> {
        let raw: RawConfig = toml::from_str(text)
            .map_err(|error| (error.span().unwrap_or_default(), error.message().to_owned()))?;
        let is_client_too = raw.client.is_some();
        raw.client.unwrap_or_default().requires_seal()?;
        let RawServer { listen, advertise, drain_timeout, seal, identity, peers, allow_user, storage } =
            raw.server;
        let mut config = Self { advertise, identity, peers, allow_users: allow_user, ..Self::default() };
        for directory in storage {
            if !directory.get_ref().is_absolute() {
                return Err(wrong(&directory, "storage is a list of directories, each with its whole path"));
            }
            config.storage.push(directory.into_inner());
        }
        for address in &listen {
            config.listen.push(names::parse_listen(address.get_ref()).map_err(|text| wrong(address, text))?);
        }
        if let Some(timeout) = drain_timeout {
            let parsed = units::parse_duration(timeout.get_ref()).map_err(|text| wrong(&timeout, text))?;
            config.drain_timeout = Some(parsed);
        }
        if let Some(seal) = seal {
            let unknown = || format!("'{}' is not \"off\", \"offer\" or \"require\"", seal.get_ref());
            let policy = SealPolicy::from_name(seal.get_ref()).ok_or_else(|| wrong(&seal, unknown()))?;
            config.seal = Some(policy);
        }
        let mut portals: Option<Vec<SocketAddr>> = None;
        for target in raw.target {
            let at = target.iqn.span();
            let own = target.portals()?;
            // Every target is reachable at every listener: a target is not shown where it was not meant to be.
            if portals.as_ref().is_some_and(|others| *others != own) {
                let text = "its portals are not those of the target before it; this release serves every target at \
                            every portal, so give all of them the same, or use listen in [server]";
                return Err((at, text.to_owned()));
            }
            portals = Some(own);
            if config
                .targets
                .iter()
                .any(|other| other.iqn.as_deref() == Some(&target.iqn.get_ref().to_ascii_lowercase()))
            {
                return Err((at, format!("target {} is there twice", target.iqn.get_ref())));
            }
            config.targets.push(target.checked(context, text)?);
        }
        for address in portals.into_iter().flatten() {
            if !config.listen.contains(&address) {
                config.listen.push(address);
            }
        }
        if config.targets.is_empty() && !is_client_too {
            return Err((0..0, "there is no [[target]]".to_owned()));
        }
        Ok(config)
    }
}

impl RawTarget {
    fn portals(&self) -> Result<Vec<SocketAddr>, Wrong> {
        let portals = self.portal.iter().map(|portal| {
            if let Some(tpgt) = portal.tpgt.as_ref().filter(|tpgt| *tpgt.get_ref() != 1) {
                return Err(wrong(tpgt, "this release has one portal group: tpgt is 1"));
            }
            names::parse_listen(portal.address.get_ref()).map_err(|text| wrong(&portal.address, text))
        });
        portals.collect()
    }

    fn checked(self, context: &Context, text: &str) -> Result<Target, Wrong> {
        let iqn = names::parse_iscsi_name(self.iqn.get_ref()).map_err(|text| wrong(&self.iqn, text))?;
        if self.lun.is_empty() {
            return Err(wrong(&self.iqn, format!("target {} has no [[target.lun]]", self.iqn.get_ref())));
        }
        let mut target = Target { iqn: Some(iqn), ..Target::default() };
        for raw in self.lun {
            let lun = *raw.lun.get_ref();
            let endpoint = Named::parse(context, raw.endpoint.get_ref(), LUN_OPTIONS)
                .map_err(|failure| wrong(&raw.endpoint, failure.cause))?;
            if endpoint.spec.get("lun").is_some() {
                return Err(wrong(&raw.endpoint, "say the number by the key lun, not by an option"));
            }
            target
                .add(lun, endpoint, raw.serial.map(Spanned::into_inner))
                .map_err(|text| wrong(&raw.lun, text))?;
        }
        for acl in self.acl {
            let at = acl.span();
            let mut acl = acl.into_inner().checked(at.clone())?;
            acl.line = position(text, at.start).0;
            let unknown = |lun: &&u16| !target.luns.iter().any(|known| known.lun == **lun);
            if let Some(lun) = acl.luns.iter().flatten().find(unknown) {
                return Err((at, format!("the acl names LUN {lun}, which the target does not have")));
            }
            target.acls.push(acl);
        }
        Ok(target)
    }
}

impl Acl {
    /// It only names a user: an account for rows without one, and for every initiator where no row names one.
    pub(crate) fn is_account(&self) -> bool {
        self.initiator.is_none() && self.peer.is_none() && self.luns.is_none() && !self.read_only
    }
}

impl RawAcl {
    fn checked(self, at: Range<usize>) -> Result<Acl, Wrong> {
        if let Some(initiator) = &self.initiator {
            names::parse_iscsi_name(initiator.get_ref()).map_err(|text| wrong(initiator, text))?;
        }
        let account =
            |user: Option<String>, secret_file: Option<PathBuf>, what: &str| match (user, secret_file) {
                (Some(user), Some(secret_file)) => Ok(Some(Account { user, secret_file })),
                (None, None) => Ok(None),
                _ => Err((at.clone(), format!("{what}chap-user and {what}secret-file need each other"))),
            };
        let chap = account(self.chap_user, self.secret_file, "")?;
        let mutual = account(self.mutual_chap_user, self.mutual_secret_file, "mutual-")?;
        if mutual.is_some() && chap.is_none() {
            return Err((at, "mutual CHAP needs chap-user and secret-file too".to_owned()));
        }
        let names_one = self.initiator.is_some() || self.peer.is_some();
        if !names_one && chap.is_none() {
            return Err((at, "an acl needs an initiator, a peer or a chap-user".to_owned()));
        }
        let read_only = match &self.mode {
            None => false,
            Some(mode) => match mode.get_ref().as_str() {
                "rw" => false,
                "ro" => true,
                other => return Err(wrong(mode, format!("'{other}' is not a mode; \"ro\" and \"rw\" are"))),
            },
        };
        Ok(Acl {
            initiator: self.initiator.map(|name| name.into_inner().to_ascii_lowercase()),
            peer: self.peer,
            chap,
            mutual,
            luns: self.luns.map(Spanned::into_inner),
            read_only,
            line: 0,
        })
    }
}

impl Target {
    /// Adds a LUN. Its number must be free.
    pub(crate) fn add(&mut self, lun: u16, endpoint: Named, serial: Option<String>) -> Result<(), String> {
        if lun > LUN_MAX {
            return Err(format!("LUN {lun} is beyond {LUN_MAX}"));
        }
        if self.luns.iter().any(|other| other.lun == lun) {
            return Err(format!("LUN {lun} is there twice"));
        }
        check_lun_options(&endpoint.spec)?;
        let naa = endpoint.spec.get("naa").map(parse_naa).transpose()?;
        let serial = serial.or_else(|| endpoint.spec.get("serial").map(str::to_owned));
        if let Some(serial) = &serial {
            check_serial(serial)?;
        }
        self.luns.push(Lun { lun, endpoint, serial, naa });
        Ok(())
    }
}

/// SPC-6 §7.7.19: a serial number is ASCII, and ours fits a page of one byte's length with room to spare.
fn check_serial(serial: &str) -> Result<(), String> {
    let good = !serial.is_empty() && serial.len() <= 64 && serial.bytes().all(|byte| byte.is_ascii_graphic());
    if good {
        Ok(())
    } else {
        Err(format!("'{serial}' is not a serial number: 1 to 64 visible ASCII characters"))
    }
}

fn check_lun_options(spec: &Spec) -> Result<(), String> {
    for name in ["removable", "shared", "exclusive", "ro"] {
        spec.flag(name).map_err(|error| error.0)?;
    }
    rotational(spec)?;
    write_cache(spec)?;
    if spec.flag("shared") == Ok(true) && spec.flag("exclusive") == Ok(true) {
        return Err("shared and exclusive contradict each other".to_owned());
    }
    for (name, bytes_max) in [("vendor", 8), ("product", 16)] {
        if let Some(text) = spec.get(name)
            && (text.len() > bytes_max || !text.bytes().all(|byte| matches!(byte, 0x20..=0x7e)))
        {
            return Err(format!("{name}='{text}': at most {bytes_max} ASCII characters (SPC-6 §6.7.2)"));
        }
    }
    Ok(())
}

/// `cache=writeback` (the default) or `cache=writethrough`.
pub(crate) fn write_cache(spec: &Spec) -> Result<bool, String> {
    match spec.get("cache") {
        None | Some("writeback") => Ok(true),
        Some("writethrough") => Ok(false),
        Some(other) => Err(format!("cache={other}: say cache=writeback or cache=writethrough")),
    }
}

/// `rotational=yes|no`; as the storage says where it is missing.
pub(crate) fn rotational(spec: &Spec) -> Result<Option<bool>, String> {
    match spec.get("rotational") {
        None => Ok(None),
        Some("1") => Ok(Some(true)),
        Some("0") => Ok(Some(false)),
        Some(_) => spec.flag("rotational").map(Some).map_err(|error| error.0),
    }
}

/// Line and column, from one, of a byte of the text.
pub(crate) fn position(text: &str, byte: usize) -> (usize, usize) {
    let before = text.get(..byte).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    (line, column)
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
