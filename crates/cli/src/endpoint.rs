//! Opens endpoints from their text: files, devices and memory by `block`, generic SCSI and NVMe nodes by `passthrough`,
//! LUNs by `node`, NBD exports by `nbd`.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use block::remote::Links;
use block::{Endpoint, LOCAL_OPTIONS, Location, Medium, OpenError, OpenOptions, Spec, layer};
use io::Io;
use nbd::NbdMedium;
use node::TlsTrust;
use node::initiator::{Credentials, DigestPolicy, InitiatorSealing, IscsiMedium, Options, Url};
use passthrough::PassthroughMedium;

use crate::context::Context;
use crate::error::{Exit, Failure};
use crate::passphrase::Passphrases;
use crate::secret::{self, Password, UrlSecrets, take_url_secrets};
use crate::state::{StateDir, new_host_name};
use crate::trust::client::{self, Client};
use crate::trust::file::{self, Keeping, LIST_BYTES_MAX};
use crate::{advice, names, units};

/// Time without a completion after which an NBD server counts as lost; the option `timeout=` overrides it.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Options of a remote LUN, in addition to the layers.
const INITIATOR_OPTIONS: &[&str] = &[
    "ro",
    "timeout",
    "congestion",
    "initiator",
    "chap-user",
    "chap-secret-file",
    "mutual-chap-user",
    "mutual-chap-secret-file",
    "tls",
];

/// Options of an NBD export, in addition to the layers.
const NBD_OPTIONS: &[&str] = &["ro", "timeout"];

/// Options of an endpoint that is served as a LUN, in addition to its own.
pub(crate) const LUN_OPTIONS: &[&str] =
    &["lun", "cache", "serial", "naa", "vendor", "product", "rotational", "removable", "shared", "exclusive"];

pub(crate) fn is_option(name: &str) -> bool {
    let all = [INITIATOR_OPTIONS, NBD_OPTIONS, client::OPTIONS, layer::OPTIONS, LOCAL_OPTIONS, LUN_OPTIONS];
    all.iter().any(|options| options.contains(&name))
}

/// Options whose values are paths.
pub(crate) const FILE_OPTIONS: [&str; 9] = [
    "tls",
    "identity",
    "psk-file",
    "chap-secret-file",
    "mutual-chap-secret-file",
    "password-file",
    "key-file",
    "header",
    "freshness",
];

/// An endpoint as typed by the user, without its secrets.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    /// The text without secrets, for messages.
    pub(crate) text: String,
    pub(crate) spec: Spec,
    secrets: UrlSecrets,
    /// Sealing that overrides the options and the known targets.
    sealing: Option<InitiatorSealing>,
    /// Decides the sealing otherwise; set when the endpoint is first opened.
    client: OnceLock<Arc<Client>>,
    /// Of a LUN; one unless the command waits for completions where it needs an order.
    sessions: Links,
    /// Of a sealed volume.
    passphrases: Passphrases,
}

impl Named {
    /// Parses an endpoint. `extra` are additional options that the command handles.
    pub(crate) fn parse(context: &Context, words: &str, extra: &[&str]) -> Result<Self, Failure> {
        let (clean, mut secrets) = take_url_secrets(words);
        if secrets == UrlSecrets::default()
            && let Some(taken) = context.secrets.get(&clean)
        {
            secrets.clone_from(taken);
        }
        let text = secret::shown(&clean);
        let usage = |cause: String| Failure::usage("understand the endpoint", text.clone(), cause);
        let spec = Spec::parse(&clean).map_err(|error| usage(error.0))?;
        match &spec.location {
            Location::Url(url) if nbd::Uri::is_nbd(url) => {
                nbd::Uri::parse(url).map_err(|error| {
                    usage(error.reason.to_owned())
                        .hint("nbd://host[:port]/name, nbd+unix:///name?socket=PATH")
                })?;
            }
            Location::Url(url) if !url.starts_with("iscsi://") => {
                let scheme = url.split("://").next().unwrap_or_default();
                let cause = format!(
                    "'{scheme}' is not a scheme that this release supports; it supports iscsi, nbd and nbd+unix"
                );
                return Err(usage(cause).hint(advice::scheme(&text)));
            }
            _ => {}
        }
        let own = match &spec.location {
            Location::Url(url) if nbd::Uri::is_nbd(url) => {
                NBD_OPTIONS.iter().chain(layer::OPTIONS).chain(&[] as &[&str])
            }
            Location::Url(_) => INITIATOR_OPTIONS.iter().chain(client::OPTIONS).chain(layer::OPTIONS),
            Location::Stdio => [].iter().chain(&[] as &[&str]).chain(&[] as &[&str]),
            _ => LOCAL_OPTIONS.iter().chain(&[] as &[&str]).chain(&[] as &[&str]),
        };
        let mut known: Vec<&str> = own.chain(extra).copied().collect();
        known.dedup();
        if let Some((name, _)) = spec.options.iter().find(|(name, _)| !known.contains(&name.as_str())) {
            let cause = format!("unknown option '{name}'; known here: {}", known.join(", "));
            return Err(usage(cause).hint(advice::unknown_option(&text, name, &known)));
        }
        let (client, sessions) = (OnceLock::new(), Links::One);
        let passphrases = Passphrases::default();
        passphrases.keys(&text, &spec).map_err(usage)?;
        Ok(Self { text, spec, secrets, sealing: None, client, sessions, passphrases })
    }

    pub(crate) fn with_sessions(self, sessions: Links) -> Self {
        Self { sessions, ..self }
    }

    pub(crate) fn path(&self) -> Option<&Path> {
        match &self.spec.location {
            Location::File(path) => Some(path),
            _ => None,
        }
    }

    /// Puts relative paths below `directory`; the text stays as it was typed.
    pub(crate) fn place(&mut self, directory: &Path) {
        if let Location::File(path) = &mut self.spec.location {
            *path = directory.join(&*path);
        }
        let options = self.spec.options.iter_mut();
        for value in options
            .filter(|(name, _)| FILE_OPTIONS.contains(&name.as_str()))
            .filter_map(|(_, value)| value.as_mut())
        {
            *value = directory.join(&*value).to_string_lossy().into_owned();
        }
    }

    /// The endpoint as text with the paths of [`Self::place`], without secrets.
    pub(crate) fn placed(&self) -> String {
        self.without(&[])
    }

    /// [`Self::placed`], without these options.
    pub(crate) fn without(&self, names: &[&str]) -> String {
        let location = match &self.spec.location {
            Location::File(path) => path.display().to_string(),
            Location::Url(url) => url.clone(),
            // These have no path.
            _ => return self.text.clone(),
        };
        let kept = self.spec.options.iter().filter(|(name, _)| !names.contains(&name.as_str()));
        let options = kept.map(|(name, value)| match value {
            Some(value) => format!("{name}={value}"),
            None => name.clone(),
        });
        let parts: Vec<String> =
            std::iter::once(location).chain(options).map(|part| part.replace(',', ",,")).collect();
        secret::shown(&parts.join(","))
    }

    pub(crate) fn seal(&mut self, sealing: InitiatorSealing) {
        self.sealing = Some(sealing);
    }

    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.spec.options.push((name.to_owned(), Some(value.to_owned())));
    }

    /// Opens the endpoint. Remote storage is contacted only when the medium is attached.
    pub(crate) fn open(&self, context: &Context, options: &OpenOptions) -> Result<Arc<dyn Medium>, Failure> {
        let attempted = if options.writable { "open for writing" } else { "open" };
        self.open_to(attempted, context, options)
    }

    /// [`Self::open`], with the attempt as failures name it.
    pub(crate) fn open_to(
        &self,
        attempted: &str,
        context: &Context,
        options: &OpenOptions,
    ) -> Result<Arc<dyn Medium>, Failure> {
        let keys = self.passphrases.keys(&self.text, &self.spec);
        let keys =
            &keys.map_err(|cause| Failure::usage("understand the endpoint", self.text.clone(), cause))?;
        let failed = |error: OpenError| {
            if let Some(failure) = keys.failure() {
                return failure;
            }
            let failure = self.failed(attempted, &error);
            let hint = match (&error, self.path()) {
                (OpenError::Missing(_), Some(path))
                    if self.spec.get("header").is_none() || !path.exists() =>
                {
                    advice::missing(path)
                }
                (OpenError::Usage(_), path) => {
                    let meant = self.spec.get("volume").and_then(advice::volume_type);
                    let url = path.is_none().then(|| secret::parts_of(&self.text)[0]);
                    match (meant, url.and_then(advice::lun_after_colon)) {
                        (Some(kind), _) => format!("did you mean volume={kind}?"),
                        (None, Some(url)) => format!("{url}, if the end of that name was to be the LUN"),
                        (None, None) => return failure,
                    }
                }
                (OpenError::Passphrase(_), _) => keys.advice(),
                (OpenError::Denied(_), Some(path)) => advice::denied(path, options.writable),
                (OpenError::Format { path, format }, _) => {
                    advice::image(path, format, options.writable, &self.text, &context.arguments)
                }
                _ => return failure,
            };
            failure.hint(hint)
        };
        let opened = match &self.spec.location {
            Location::Url(url) => {
                let read_only =
                    !options.writable || self.spec.flag("ro").map_err(|error| failed(error.into()))?;
                let medium: Arc<dyn Medium> = if let Some(medium) = self.nbd(read_only)? {
                    Arc::new(medium)
                } else {
                    let (url, login) = self.initiator(context, url, attempted)?;
                    Arc::new(IscsiMedium::new(url, login, read_only).map_err(failed)?)
                };
                layer::wrap(&self.spec, medium, keys).map_err(failed)
            }
            Location::File(path) if PassthroughMedium::takes(path) => {
                let medium = PassthroughMedium::open(path, &self.spec, options).map_err(failed)?;
                layer::wrap(&self.spec, Arc::new(medium), keys).map_err(failed)
            }
            _ => block::open_with(&self.spec, options, keys).map_err(failed),
        };
        if let Some(flaw) = keys.flaw().map(|flaw| format!("{}: {flaw}", self.text))
            && context.once.is_first(&flaw)
        {
            context.warn(&flaw);
        }
        opened
    }

    /// The NBD export without layers; `None` if the endpoint is not an NBD URL. The server is not contacted.
    pub(crate) fn nbd(&self, read_only: bool) -> Result<Option<NbdMedium>, Failure> {
        let Location::Url(url) = &self.spec.location else { return Ok(None) };
        if !nbd::Uri::is_nbd(url) {
            return Ok(None);
        }
        let usage = |cause| Failure::usage("understand the endpoint", self.text.clone(), cause);
        let uri = nbd::Uri::parse(url).map_err(|error| usage(error.to_string()))?;
        if !url.starts_with("nbd+unix:")
            && let Some(place) = client::required()?
        {
            let cause = format!(
                "{place} requires every session to be sealed or to go through TLS, and NBD does neither"
            );
            return Err(Failure::new(Exit::Authentication, "open", self.text.clone(), cause));
        }
        Ok(Some(NbdMedium::new(uri, self.timeout()?.unwrap_or(TIMEOUT), read_only)))
    }

    pub(crate) fn is_iscsi(&self) -> bool {
        matches!(self.spec.location, Location::Url(_)) && !self.is_nbd()
    }

    pub(crate) fn is_nbd(&self) -> bool {
        matches!(&self.spec.location, Location::Url(url) if nbd::Uri::is_nbd(url))
    }

    /// Parses `timeout=`. A bare number is seconds, as in libiscsi and open-iscsi.
    fn timeout(&self) -> Result<Option<Duration>, Failure> {
        let parse = |text: &str| {
            let seconds = text.parse().map(Duration::from_secs);
            seconds.or_else(|_| units::parse_duration(text))
        };
        let timeout = self.spec.get("timeout").map(parse).transpose();
        timeout.map_err(|cause| Failure::usage("understand the endpoint", self.text.clone(), cause))
    }

    fn initiator(&self, context: &Context, url: &str, attempted: &str) -> Result<(Url, Options), Failure> {
        let url = Url::parse(url).map_err(|error| Failure::usage(attempted, self.text.clone(), error))?;
        let options = self.initiator_options(context, &url)?;
        Ok((url, options))
    }

    /// Login options: from the endpoint's options, the URL and the environment, in this priority.
    pub(crate) fn initiator_options(&self, context: &Context, url: &Url) -> Result<Options, Failure> {
        let usage = |cause: String| Failure::usage("understand the endpoint", self.text.clone(), cause);
        let mut options = Options { sessions: self.sessions, ..Options::new(self.initiator_name(context)?) };
        if let Some(timeout) = self.timeout()? {
            options.timeout = timeout;
        }
        if let Some(name) = self.spec.get("congestion") {
            // All names of the kernel are in lower case.
            let name = name.to_ascii_lowercase();
            io::check_congestion_control(&name).map_err(|error| usage(error.to_string()))?;
            options.congestion = Some(name);
        }
        let mut target_user = None;
        for (name, value) in &url.arguments {
            match (name.as_str(), DigestPolicy::from_name(value)) {
                ("header_digest", Some(policy)) => options.header_digest = policy,
                ("data_digest", Some(policy)) => options.data_digest = policy,
                ("header_digest" | "data_digest", None) => {
                    return Err(usage(format!("{name}={value}: say crc32c, prefer or none")));
                }
                ("target_user", _) => target_user = Some(value.clone()),
                // libiscsi ignores unknown arguments, so URLs written for it may contain some.
                _ => context
                    .warn(&format!("{}: the argument {name} is not known and changes nothing", self.text)),
            }
        }
        options.chap =
            self.credentials(context, "chap", url.user.clone(), &self.secrets.password, "LIBISCSI_CHAP")?;
        if let Some(file) = self.spec.get("tls") {
            let path = Path::new(file);
            let hint = "tls=FILE: certificates in PEM form, of the target or its authority";
            let pem = file::read(path, "the certificates", Keeping::Public, LIST_BYTES_MAX)?
                .map_err(|error| usage(format!("tls={file}: {error}")).hint(hint))?;
            let trust = TlsTrust::with_certificates(path, &pem);
            options.tls = Some(trust.map_err(|error| usage(format!("tls={error}")).hint(hint))?);
        }
        options.mutual = self.credentials(
            context,
            "mutual-chap",
            target_user,
            &self.secrets.target_password,
            "LIBISCSI_CHAP_TARGET",
        )?;
        if options.mutual.is_some() && options.chap.is_none() {
            return Err(usage(
                "mutual CHAP needs one-way CHAP too: chap-user= and chap-secret-file=".to_owned(),
            ));
        }
        match &self.sealing {
            Some(sealing) => options.sealing = Some(sealing.clone()),
            None => options.trust = Some(self.client(context, url)?),
        }
        Ok(options)
    }

    /// The [`Client`] that decides the sealing; one for all sessions of the endpoint.
    fn client(&self, context: &Context, url: &Url) -> Result<Arc<Client>, Failure> {
        if let Some(client) = self.client.get() {
            return Ok(Arc::clone(client));
        }
        let client = Client::new(context, &self.spec, url, self.spec.get("tls").is_some())?;
        Ok(Arc::clone(self.client.get_or_init(|| Arc::new(client))))
    }

    /// Login options for a target that discovery returned. A line of the known targets may match that name too.
    pub(crate) fn options_for(
        &self,
        context: &Context,
        url: &Url,
        options: &Options,
    ) -> Result<(Options, Option<Arc<Client>>), Failure> {
        if options.sealing.is_some() {
            return Ok((options.clone(), None));
        }
        let client = Arc::new(Client::new(context, &self.spec, url, self.spec.get("tls").is_some())?);
        Ok((Options { trust: Some(Arc::clone(&client) as _), ..options.clone() }, Some(client)))
    }

    /// The failure of an attempt. A refused login is explained with the result of a query to the portal.
    pub(crate) fn failed(&self, attempted: &str, error: &OpenError) -> Failure {
        let failure = Failure::open(attempted, self.text.clone(), error);
        match self.client.get() {
            Some(client) => client.explain(failure, error),
            None => failure,
        }
    }

    fn credentials(
        &self,
        context: &Context,
        option: &str,
        url_user: Option<String>,
        url_password: &Option<Password>,
        variable: &str,
    ) -> Result<Option<Credentials>, Failure> {
        let usage = |cause: String| Failure::usage("understand the endpoint", self.text.clone(), cause);
        let variable_user =
            std::env::var(format!("{variable}_USERNAME")).ok().filter(|user| !user.is_empty());
        let user = self.spec.get(&format!("{option}-user")).map(str::to_owned).or(url_user);
        let secret = match self.spec.get(&format!("{option}-secret-file")) {
            Some(path) => Some(secret::from_file(context, Path::new(path))?),
            None => {
                let of_url = url_password.as_ref().map(Password::secret).transpose();
                of_url.map_err(|error| usage(error.to_string()))?
            }
        };
        let secret = match secret {
            Some(secret) => Some(secret),
            None => secret::from_env(context, &format!("{variable}_PASSWORD"))?,
        };
        match (user.or(variable_user), secret) {
            (Some(user), Some(secret)) => Ok(Some(Credentials { user, secret })),
            (None, None) => Ok(None),
            (Some(user), None) => {
                // The text before `@` may be a name and a secret, as in other kinds of URL.
                Err(usage(format!(
                    "there is no secret for the name before @ or of {option}-user=: give {option}-secret-file=FILE{}",
                    if user.contains(':') { " (a secret does not stand behind ':' in the URL)" } else { "" }
                )))
            }
            (None, Some(_)) => {
                Err(usage(format!("there is a secret without a name: give {option}-user=NAME")))
            }
        }
    }

    pub(crate) fn initiator_name(&self, context: &Context) -> Result<String, Failure> {
        if let Some(name) = self.spec.get("initiator") {
            return names::parse_iscsi_name(name)
                .map_err(|cause| Failure::usage("understand the endpoint", self.text.clone(), cause));
        }
        StateDir::locate().and_then(|state| state.host_name()).or_else(|failure| {
            context.warn(&format!("logging in under a name for this run only: {}", failure.cause));
            new_host_name().map_err(|error| Failure::failed("make up an initiator name", "", error))
        })
    }
}

/// Attaches several media to the loop; all endpoints are ready.
pub(crate) fn attach(
    io: &mut Io,
    media: &[(&Named, &Arc<dyn Medium>)],
) -> Result<Vec<Box<dyn Endpoint>>, Failure> {
    // One after the other, so that an error belongs to one medium.
    let attach = |(named, medium): &(&Named, &Arc<dyn Medium>)| {
        job::attach(io, medium).map_err(|error| named.failed("use", &error))
    };
    media.iter().map(attach).collect()
}
