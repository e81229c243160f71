//! The configuration of `serve`, from flags or a TOML file; errors in the file are reported with their line.

use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use block::Spec;
use node::SealPolicy;
use serde::Deserialize;
use serde::de::IgnoredAny;
use toml::Spanned;
use zeroize::Zeroizing;

use crate::context::Context;
use crate::endpoint::{LUN_OPTIONS, Named};
use crate::error::Failure;
use crate::explain::{self, Noted};
use crate::state::parse_naa;
use crate::trust::file::{self, Keeping, LIST_BYTES_MAX};
use crate::{names, trust, units};

/// Name of the file in the configuration directory.
pub(crate) const FILE: &str = "hikyaku.toml";
/// The host's configuration.
pub(crate) const DEFAULT_FILE: &str = "/etc/hikyaku/hikyaku.toml";
/// Highest LUN of the flat addressing method.
const LUN_MAX: u16 = 16383;

/// The configuration that is read when a command gets none: the one in the configuration directory if it exists there,
/// otherwise the host's.
pub(crate) fn default_file() -> PathBuf {
    let own = trust::config_file(FILE).ok().filter(|file| file.exists());
    own.unwrap_or_else(|| DEFAULT_FILE.into())
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Config {
    /// Addresses to listen on; empty for the default.
    pub(crate) listen: Vec<SocketAddr>,
    /// Address in SendTargets responses, instead of the one that the client used.
    pub(crate) advertise: Option<String>,
    pub(crate) drain_timeout: Option<Duration>,
    pub(crate) seal: Option<SealPolicy>,
    /// File of this host's key, if not the default.
    pub(crate) identity: Option<PathBuf>,
    pub(crate) peers: Option<PathBuf>,
    /// Address of metrics, and the file of the token that a request for them carries.
    pub(crate) metrics: Option<SocketAddr>,
    pub(crate) metrics_token_file: Option<PathBuf>,
    /// Certificate and key of TLS, PEM files.
    pub(crate) tls: Option<(PathBuf, PathBuf)>,
    /// Users of this host that may log in over loopback without proof, by name or number; `any` for all.
    pub(crate) allow_users: Vec<String>,
    /// Directories of LUNs that a reload may add.
    pub(crate) storage: Vec<PathBuf>,
    /// The file of this configuration; `None` if it comes from flags.
    pub(crate) file: Option<PathBuf>,
    pub(crate) targets: Vec<Target>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Target {
    /// iSCSI name; `None` for this host's default.
    pub(crate) iqn: Option<String>,
    pub(crate) luns: Vec<Lun>,
    /// Access rules; empty for unrestricted access.
    pub(crate) acls: Vec<Acl>,
    /// Line of the target's name in the file, from 1; 0 for the target of flags.
    pub(crate) line: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct Lun {
    /// LUN, 0 to 16383.
    pub(crate) lun: u16,
    pub(crate) endpoint: Named,
    /// Serial number; `None` for a random one.
    pub(crate) serial: Option<String>,
    /// NAA designator; `None` for a random one.
    pub(crate) naa: Option<u64>,
    /// Line of the endpoint in the file, from 1; 0 for LUNs of flags.
    pub(crate) line: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct Acl {
    /// Initiator name; `None` for any initiator that proves the secret.
    pub(crate) initiator: Option<String>,
    /// Name of the peer whose key the initiator must prove.
    pub(crate) peer: Option<String>,
    pub(crate) chap: Option<Account>,
    /// CHAP account of the target, for mutual CHAP.
    pub(crate) mutual: Option<Account>,
    /// Visible LUNs; `None` for all.
    pub(crate) luns: Option<Vec<u16>>,
    pub(crate) read_only: bool,
    /// Line of the rule in the file, from 1; 0 for rules from flags.
    pub(crate) line: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct Account {
    pub(crate) user: String,
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

/// The part of the file for initiators; the rest applies to `serve`.
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
    tls_certificate: Option<Spanned<PathBuf>>,
    tls_key: Option<Spanned<PathBuf>>,
    metrics: Option<Spanned<String>>,
    metrics_token_file: Option<PathBuf>,
    #[serde(default)]
    allow_user: Vec<String>,
    #[serde(default)]
    storage: Vec<PathBuf>,
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

/// Byte range and text of an error.
pub(crate) type Wrong = (Range<usize>, String);

pub(crate) fn wrong<T>(at: &Spanned<T>, text: impl Into<String>) -> Wrong {
    (at.span(), text.into())
}

impl RawClient {
    /// The place of `seal = "require"`: every session must be sealed or use TLS.
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

/// The line of `[client] seal = "require"` in a file; `None` if the file is missing.
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
    let raw: RawClientOnly = toml::from_str(text).map_err(|error| explain::parser(text, &error))?;
    Ok(raw.client.requires_seal()?.map(|range| position(text, range.start).0))
}

impl Config {
    /// Reads and checks a file; opens no other file. Relative paths in it are relative to its directory. An initiator's file, with `[client]` only, yields no target.
    pub(crate) fn load(context: &Context, path: &Path) -> Result<Self, Failure> {
        let text = Self::read(path)?;
        let parsed = Self::parse(context, &text).map_err(|wrong| wrong_at(path, &text, wrong))?;
        Ok(parsed.at(path))
    }

    fn read(path: &Path) -> Result<Zeroizing<String>, Failure> {
        let object = path.display().to_string();
        let text = file::read_text(path, "the configuration", Keeping::Public, LIST_BYTES_MAX)?;
        text.map_err(|error| {
            let is_missing = error.kind() == std::io::ErrorKind::NotFound;
            let failure = Failure::usage("read the configuration", object.clone(), error);
            if is_missing {
                let file = job::shell::quoted(&object);
                failure.hint(format!(
                    "hikyaku config example > {file}; `hikyaku paths` prints where it is looked for"
                ))
            } else {
                failure
            }
        })
    }

    /// As [`Config::load`], with the lines of all errors of the file, in its order, at most [`explain::PROBLEMS_MAX`]. After
    /// errors the configuration lacks what is wrong; `None` if the rest of the file cannot be understood.
    pub(crate) fn load_with_problems(
        context: &Context,
        path: &Path,
    ) -> (Option<Self>, Vec<(usize, Failure)>) {
        let text = match Self::read(path) {
            Ok(text) => text,
            Err(failure) => return (None, vec![(0, failure)]),
        };
        let (rest, problems) = explain::problems(&text, |text| Self::examine(context, text));
        let located = |wrong: Wrong| (position(&text, wrong.0.start).0, wrong_at(path, &text, wrong));
        let config = rest.map(|rest| Self::of_rest(rest).at(path));
        (config, problems.into_iter().map(located).collect())
    }

    /// The configuration with the lines of the file, without names that are placeholders.
    fn of_rest(mut rest: explain::Rest<Self>) -> Self {
        let mut targets = std::mem::take(&mut rest.parsed.targets);
        for target in &mut targets {
            target.iqn = target.iqn.take().filter(|iqn| !explain::is_placeholder(iqn));
            let lines = target.luns.iter_mut().map(|lun| &mut lun.line);
            let lines =
                lines.chain(target.acls.iter_mut().map(|acl| &mut acl.line)).chain([&mut target.line]);
            lines.for_each(|line| *line = rest.line(*line));
        }
        Self { targets, ..rest.parsed }
    }

    fn at(mut self, path: &Path) -> Self {
        if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
            self.place(directory);
        }
        self.file = Some(path.to_owned());
        self
    }

    /// Puts relative paths below `directory`.
    fn place(&mut self, directory: &Path) {
        let place = |path: &mut PathBuf| *path = directory.join(&*path);
        self.identity.iter_mut().chain(&mut self.peers).chain(&mut self.storage).for_each(place);
        if let Some((certificate, key)) = &mut self.tls {
            place(certificate);
            place(key);
        }
        self.metrics_token_file.iter_mut().for_each(place);
        for target in &mut self.targets {
            let accounts = target.acls.iter_mut().flat_map(|acl| acl.chap.iter_mut().chain(&mut acl.mutual));
            accounts.for_each(|account| place(&mut account.secret_file));
            target.luns.iter_mut().for_each(|lun| lun.endpoint.place(directory));
        }
    }

    /// The file of this configuration as the object of a message; empty for flags.
    pub(crate) fn object(&self) -> String {
        self.file.as_ref().map(|file| file.display().to_string()).unwrap_or_default()
    }

    /// A failure found later than by the parser, with its place in the file: a line and `whose` it is.
    pub(crate) fn at_line(&self, line: usize, whose: &str, failure: Failure) -> Failure {
        if line == 0 {
            return failure;
        }
        let cause = format!("{} (line {line} of {}: {whose})", failure.cause, self.object());
        Failure { cause, ..failure }
    }

    pub(crate) fn wrong_row(&self, acl: &Acl, cause: &str) -> Failure {
        let line = if acl.line > 0 { format!("line {}: ", acl.line) } else { String::new() };
        Failure::usage("use the configuration", self.object(), format!("{line}{cause}"))
    }

    /// Whether sessions are sealed. The default is `require` with peers' keys, otherwise `off`.
    pub(crate) fn seal_policy(&self) -> SealPolicy {
        let default = if self.peers.is_some() { SealPolicy::Require } else { SealPolicy::Off };
        self.seal.unwrap_or(default)
    }

    pub(crate) fn parse(context: &Context, text: &str) -> Result<Self, Wrong> {
        let (config, wrong) = Self::examine(context, text)?;
        wrong.into_iter().min_by_key(|(at, _)| at.start).map_or(Ok(config), Err)
    }

    /// The configuration without what is wrong, and the errors of its values. `Err`: the first error of the parser.
    fn examine(context: &Context, text: &str) -> Result<(Self, Vec<Wrong>), Wrong> {
        let raw: RawConfig = toml::from_str(text).map_err(|error| {
            let (at, cause) = explain::parser(text, &error);
            let cause = format!("{}{cause}", whose(text, at.start));
            (at, cause)
        })?;
        let mut noted = Noted::default();
        let is_client_too = raw.client.is_some();
        noted.good(raw.client.unwrap_or_default().requires_seal());
        let mut config = raw.server.checked(&mut noted);
        let mut portals: Option<Vec<SocketAddr>> = None;
        for target in raw.target {
            let at = target.iqn.span();
            // Every target is reachable at every listener, so all must have the same portals: otherwise a target would
            // be visible where it must not be.
            if let Some(own) = target.portals(&mut noted) {
                if portals.as_ref().is_some_and(|others| *others != own) {
                    let text = "its portals are not those of the target before it; this release serves every target at \
                                every portal, so give all of them the same, or use listen in [server]";
                    noted.add((at.clone(), text.to_owned()));
                }
                portals = Some(own);
            }
            if config
                .targets
                .iter()
                .any(|other| other.iqn.as_deref() == Some(&target.iqn.get_ref().to_ascii_lowercase()))
            {
                noted.add((at, format!("target {} is there twice", target.iqn.get_ref())));
            }
            let name = target.iqn.get_ref().clone();
            let mut own = Noted::default();
            config.targets.push(target.checked(context, text, &mut own));
            own.all().for_each(|(at, cause)| noted.add((at, format!("target {name}: {cause}"))));
        }
        for address in portals.into_iter().flatten() {
            if !config.listen.contains(&address) {
                config.listen.push(address);
            }
        }
        if config.targets.is_empty() && !is_client_too {
            noted.add((0..0, explain::NO_TARGET.to_owned()));
        }
        Ok((config, noted.all().collect()))
    }
}

impl RawServer {
    /// The configuration without targets.
    fn checked(self, noted: &mut Noted) -> Config {
        let tls_at = self.tls_certificate.as_ref().map(Spanned::span);
        let tls = match (self.tls_certificate, self.tls_key) {
            (Some(certificate), Some(key)) => Some((certificate.into_inner(), key.into_inner())),
            (None, None) => None,
            (Some(at), None) | (None, Some(at)) => {
                noted.add(wrong(&at, "tls-certificate and tls-key need each other"));
                None
            }
        };
        let mut config = Config {
            advertise: self.advertise,
            identity: self.identity,
            peers: self.peers,
            tls,
            metrics_token_file: self.metrics_token_file,
            allow_users: self.allow_user,
            storage: self.storage,
            ..Config::default()
        };
        if let Some(metrics) = self.metrics {
            let address = names::parse_metrics(metrics.get_ref()).map_err(|text| wrong(&metrics, text));
            config.metrics = noted.good(address);
        }
        for address in &self.listen {
            let parsed = names::parse_listen(address.get_ref()).map_err(|text| wrong(address, text));
            config.listen.extend(noted.good(parsed));
        }
        if let Some(timeout) = self.drain_timeout {
            let parsed = units::parse_duration(timeout.get_ref()).map_err(|text| wrong(&timeout, text));
            config.drain_timeout = noted.good(parsed);
        }
        if let Some(seal) = self.seal {
            let unknown = || format!("'{}' is not \"off\", \"offer\" or \"require\"", seal.get_ref());
            let policy = SealPolicy::from_name(seal.get_ref()).ok_or_else(|| wrong(&seal, unknown()));
            config.seal = noted.good(policy);
        }
        if let Some(at) = tls_at.filter(|_| config.tls.is_some() && config.seal_policy() != SealPolicy::Off) {
            let cause = "sessions are sealed or go through TLS, not both; with TLS leave out peers, or say seal = \"off\"";
            noted.add((at, cause.to_owned()));
        }
        config
    }
}

impl RawTarget {
    /// `None` after an error.
    fn portals(&self, noted: &mut Noted) -> Option<Vec<SocketAddr>> {
        let before = noted.count();
        let mut portals = Vec::new();
        for portal in &self.portal {
            if let Some(tpgt) = portal.tpgt.as_ref().filter(|tpgt| *tpgt.get_ref() != 1) {
                noted.add(wrong(tpgt, "this release has one portal group: tpgt is 1"));
            }
            let address = names::parse_listen(portal.address.get_ref());
            portals.extend(noted.good(address.map_err(|text| wrong(&portal.address, text))));
        }
        (noted.count() == before).then_some(portals)
    }

    fn checked(self, context: &Context, text: &str, noted: &mut Noted) -> Target {
        let iqn = names::parse_iscsi_name(self.iqn.get_ref()).map_err(|text| wrong(&self.iqn, text));
        let iqn = noted.good(iqn).unwrap_or_else(|| self.iqn.get_ref().clone());
        if self.lun.is_empty() {
            noted.add(wrong(&self.iqn, explain::NO_LUN));
        }
        let line = position(text, self.iqn.span().start).0;
        let mut target = Target { iqn: Some(iqn), line, ..Target::default() };
        let numbers: Vec<u16> = self.lun.iter().map(|lun| *lun.lun.get_ref()).collect();
        for raw in self.lun {
            let lun = *raw.lun.get_ref();
            let checked = raw.checked(context, &mut target, text);
            noted.good(checked.map_err(|(at, cause)| (at, format!("LUN {lun}: {cause}"))));
        }
        for acl in self.acl {
            let at = acl.span();
            let named = acl.get_ref().luns.iter().flat_map(Spanned::get_ref);
            if let Some(lun) = named.into_iter().find(|lun| !numbers.contains(lun)) {
                noted.add((at.clone(), format!("the acl names LUN {lun}, {}", explain::NOT_OF_TARGET)));
            }
            if let Some(acl) = acl.into_inner().checked(&at, noted) {
                target.acls.push(Acl { line: position(text, at.start).0, ..acl });
            }
        }
        target
    }
}

impl RawLun {
    fn checked(self, context: &Context, target: &mut Target, text: &str) -> Result<(), Wrong> {
        let endpoint = Named::parse(context, self.endpoint.get_ref(), LUN_OPTIONS)
            .map_err(|failure| wrong(&self.endpoint, failure.cause))?;
        if endpoint.spec.get("lun").is_some() {
            return Err(wrong(&self.endpoint, "say the number by the key lun, not by an option"));
        }
        let serial = self.serial.map(Spanned::into_inner);
        target.add(*self.lun.get_ref(), endpoint, serial).map_err(|text| wrong(&self.lun, text))?;
        if let Some(lun) = target.luns.last_mut() {
            lun.line = position(text, self.endpoint.span().start).0;
        }
        Ok(())
    }
}

impl Acl {
    /// Whether the rule is only a CHAP account: for rules without one, and for all initiators if no rule names one.
    pub(crate) fn is_account(&self) -> bool {
        self.initiator.is_none() && self.peer.is_none() && self.luns.is_none() && !self.read_only
    }
}

impl RawAcl {
    /// `None` after an error.
    fn checked(self, at: &Range<usize>, noted: &mut Noted) -> Option<Acl> {
        let before = noted.count();
        if let Some(initiator) = &self.initiator {
            noted.good(names::parse_iscsi_name(initiator.get_ref()).map_err(|text| wrong(initiator, text)));
        }
        let read_only = match self.mode.as_ref().map(|mode| (mode, mode.get_ref().as_str())) {
            None | Some((_, "rw")) => false,
            Some((_, "ro")) => true,
            Some((mode, other)) => {
                noted.add(wrong(mode, format!("'{other}' is not a mode; \"ro\" and \"rw\" are")));
                true
            }
        };
        let has_user = self.chap_user.is_some() || self.secret_file.is_some();
        let mut account =
            |user: Option<String>, secret_file: Option<PathBuf>, what: &str| match (user, secret_file) {
                (Some(user), Some(secret_file)) => Some(Account { user, secret_file }),
                (None, None) => None,
                _ => {
                    noted.add((at.clone(), format!("{what}chap-user and {what}secret-file need each other")));
                    None
                }
            };
        let chap = account(self.chap_user, self.secret_file, "");
        let mutual = account(self.mutual_chap_user, self.mutual_secret_file, "mutual-");
        if mutual.is_some() && !has_user {
            noted.add((at.clone(), "mutual CHAP needs chap-user and secret-file too".to_owned()));
        }
        let names_one = self.initiator.is_some() || self.peer.is_some();
        if !names_one && !has_user {
            noted.add((at.clone(), "an acl needs an initiator, a peer or a chap-user".to_owned()));
        }
        let acl = Acl {
            initiator: self.initiator.map(|name| name.into_inner().to_ascii_lowercase()),
            peer: self.peer,
            chap,
            mutual,
            luns: self.luns.map(Spanned::into_inner),
            read_only,
            line: 0,
        };
        (noted.count() == before).then_some(acl)
    }
}

impl Target {
    /// Adds a LUN; its number must be free.
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
        self.luns.push(Lun { lun, endpoint, serial, naa, line: 0 });
        Ok(())
    }
}

/// SPC-6 §7.7.19: a serial number is ASCII. At most 64 bytes, to fit a VPD page with a length of one byte.
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

/// Parses `cache=writeback` (the default) or `cache=writethrough`.
pub(crate) fn write_cache(spec: &Spec) -> Result<bool, String> {
    match spec.get("cache") {
        None | Some("writeback") => Ok(true),
        Some("writethrough") => Ok(false),
        Some(other) => Err(format!("cache={other}: say cache=writeback or cache=writethrough")),
    }
}

/// Parses `rotational=yes|no`; `None` leaves it to the storage.
pub(crate) fn rotational(spec: &Spec) -> Result<Option<bool>, String> {
    match spec.get("rotational") {
        None => Ok(None),
        Some("1") => Ok(Some(true)),
        Some("0") => Ok(Some(false)),
        Some(_) => spec.flag("rotational").map(Some).map_err(|error| error.0),
    }
}

/// The target and the LUN to whose tables a line belongs, by the headers and names above it; empty outside of targets. For
/// errors of the parser, which knows lines only.
fn whose(text: &str, byte: usize) -> String {
    let (mut iqn, mut lun) = (None, None);
    let above = text.lines().take(position(text, byte).0).map(str::trim);
    for line in above {
        let value =
            |key: &str| Some(line.strip_prefix(key)?.trim_start().strip_prefix('=')?.trim().to_owned());
        match line {
            "[[target.lun]]" => lun = None,
            "[[target]]" => (iqn, lun) = (None, None),
            _ if line.starts_with('[') => lun = None,
            _ => {
                iqn = value("iqn").or(iqn);
                lun = value("lun").or(lun);
            }
        }
    }
    let Some(iqn) = iqn else { return String::new() };
    let lun = lun.map(|lun| format!(", LUN {lun}")).unwrap_or_default();
    format!("target {}{lun}: ", iqn.trim_matches('"'))
}

fn wrong_at(path: &Path, text: &str, (range, cause): Wrong) -> Failure {
    let (line, column) = position(text, range.start);
    let cause = format!("line {line}, column {column}: {cause}");
    Failure::usage("use the configuration", path.display().to_string(), cause)
}

/// Line and column of a byte of the text, from 1.
pub(crate) fn position(text: &str, byte: usize) -> (usize, usize) {
    let before = text.get(..byte).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    (line, column)
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
