//! From the words of an endpoint to storage: local ones by `block`, those that take commands by `passthrough`, LUNs by
//! `node`, exports by `nbd`.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use block::{
    Endpoint, IoError, IoErrorKind, Kind, LOCAL_OPTIONS, Location, Medium, OpenError, OpenOptions, Request,
    Router, Spec, layer,
};
use io::Io;
use nbd::NbdMedium;
use node::TlsTrust;
use node::initiator::{Credentials, DigestPolicy, InitiatorSealing, IscsiMedium, Options, Url};
use passthrough::PassthroughMedium;

use crate::context::Context;
use crate::error::{Exit, Failure};
use crate::secret::{self, Password, UrlSecrets, take_url_secrets};
use crate::state::{StateDir, new_host_name};
use crate::trust::client::{self, Client};
use crate::trust::file::{self, Keeping, LIST_BYTES_MAX};
use crate::{names, units};

/// How long nothing may be completed by an NBD server, unless `timeout=` says otherwise.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Longest request of [`read`].
const READ_BYTES_MAX: usize = 128 * 1024;

/// Options of a remote LUN, beside the layers.
const INITIATOR_OPTIONS: &[&str] = &[
    "ro",
    "timeout",
    "initiator",
    "chap-user",
    "chap-secret-file",
    "mutual-chap-user",
    "mutual-chap-secret-file",
    "tls",
];

/// Options of an NBD export, beside the layers.
const NBD_OPTIONS: &[&str] = &["ro", "timeout"];

/// Options of an endpoint that is served as a LUN, beside its own.
pub(crate) const LUN_OPTIONS: &[&str] =
    &["lun", "cache", "serial", "naa", "vendor", "product", "rotational", "removable", "shared", "exclusive"];

/// Whether some endpoint has an option of this name.
pub(crate) fn is_option(name: &str) -> bool {
    let all = [INITIATOR_OPTIONS, NBD_OPTIONS, client::OPTIONS, layer::OPTIONS, LOCAL_OPTIONS, LUN_OPTIONS];
    all.iter().any(|options| options.contains(&name))
}

/// An endpoint as the user wrote it, without its secrets.
#[derive(Debug)]
pub(crate) struct Named {
    /// The words, fit to be shown.
    pub(crate) text: String,
    /// The words, taken apart.
    pub(crate) spec: Spec,
    secrets: UrlSecrets,
    /// How its session is sealed, whatever the words and the known targets say.
    sealing: Option<InitiatorSealing>,
    /// What decides it otherwise, once it has been opened.
    client: OnceLock<Arc<Client>>,
}

impl Named {
    /// Takes an endpoint's words apart. `extra` are options that the command gives a meaning to.
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
                return Err(usage(format!(
                    "'{scheme}' is not a scheme that this release knows; it knows iscsi, nbd and nbd+unix"
                )));
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
        spec.only(&known).map_err(|error| usage(error.0))?;
        Ok(Self { text, spec, secrets, sealing: None, client: OnceLock::new() })
    }

    /// The path, where it is a file or a device of this machine.
    pub(crate) fn path(&self) -> Option<&Path> {
        match &self.spec.location {
            Location::File(path) => Some(path),
            _ => None,
        }
    }

    /// The URL, where it is a LUN.
    pub(crate) fn url(&self) -> Option<Url> {
        match &self.spec.location {
            Location::Url(url) => Url::parse(url).ok(),
            _ => None,
        }
    }

    /// Seals its sessions with keys that lie in no file.
    pub(crate) fn seal(&mut self, sealing: InitiatorSealing) {
        self.sealing = Some(sealing);
    }

    /// Gives an option a value, as if the user had.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.spec.options.push((name.to_owned(), Some(value.to_owned())));
    }

    /// Opens it. A remote one is not asked before it is attached.
    pub(crate) fn open(&self, context: &Context, options: &OpenOptions) -> Result<Arc<dyn Medium>, Failure> {
        let attempted = if options.writable { "open for writing" } else { "open" };
        let failed = |error: OpenError| Failure::open(attempted, self.text.clone(), &error);
        match &self.spec.location {
            Location::Url(url) => {
                let read_only =
                    !options.writable || self.spec.flag("ro").map_err(|error| failed(error.into()))?;
                let medium: Arc<dyn Medium> = if let Some(medium) = self.nbd(read_only)? {
                    Arc::new(medium)
                } else {
                    let (url, login) = self.initiator(context, url, attempted)?;
                    Arc::new(IscsiMedium::new(url, login, read_only).map_err(failed)?)
                };
                layer::wrap(&self.spec, medium).map_err(failed)
            }
            Location::File(path) if PassthroughMedium::takes(path) => {
                let medium = PassthroughMedium::open(path, &self.spec, options).map_err(failed)?;
                layer::wrap(&self.spec, Arc::new(medium)).map_err(failed)
            }
            _ => block::open(&self.spec, options).map_err(failed),
        }
    }

    /// The export, where it is one of an NBD server, without layers. Nobody is asked yet.
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

    /// Whether it is an export of an NBD server.
    pub(crate) fn is_nbd(&self) -> bool {
        matches!(&self.spec.location, Location::Url(url) if nbd::Uri::is_nbd(url))
    }

    /// `timeout=`. As libiscsi and open-iscsi have it, a bare number is seconds.
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

    /// How to log in: from the options, the URL and the environment, in that order.
    pub(crate) fn initiator_options(&self, context: &Context, url: &Url) -> Result<Options, Failure> {
        let usage = |cause: String| Failure::usage("understand the endpoint", self.text.clone(), cause);
        let mut options = Options::new(self.initiator_name(context)?);
        if let Some(timeout) = self.timeout()? {
            options.timeout = timeout;
        }
        let mut target_user = None;
        for (name, value) in &url.arguments {
            match (name.as_str(), DigestPolicy::from_name(value)) {
                ("header_digest", Some(wanted)) => options.header_digest = wanted,
                ("data_digest", Some(wanted)) => options.data_digest = wanted,
                ("header_digest" | "data_digest", None) => {
                    return Err(usage(format!("{name}={value}: say crc32c, prefer or none")));
                }
                ("target_user", _) => target_user = Some(value.clone()),
                // libiscsi passes over what it does not know, and so do URLs written for it.
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

    /// What decides how its sessions are sealed; one for all of them.
    fn client(&self, context: &Context, url: &Url) -> Result<Arc<Client>, Failure> {
        if let Some(client) = self.client.get() {
            return Ok(Arc::clone(client));
        }
        let client = Client::new(context, &self.spec, url, self.spec.get("tls").is_some())?;
        Ok(Arc::clone(self.client.get_or_init(|| Arc::new(client))))
    }

    /// The options for a target that the portal has named: what is known of that name decides too.
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

    /// An attempt at it that failed; a refusal is explained as far as its portal lets itself be asked.
    pub(crate) fn failed(&self, attempted: &str, error: &OpenError) -> Failure {
        let failure = Failure::open(attempted, self.text.clone(), error);
        match self.client.get() {
            // What was damaged on the way says nothing about keys.
            _ if matches!(error, OpenError::Damaged(_)) => failure,
            Some(client) => client.explain(failure),
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
                // It may be a name and a secret, typed as other URLs have them.
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

    /// The name it logs in under.
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

/// This thread's way into several media, all of them ready.
pub(crate) fn attach(
    io: &mut Io,
    media: &[(&Named, &Arc<dyn Medium>)],
) -> Result<Vec<Box<dyn Endpoint>>, Failure> {
    let mut endpoints = Vec::with_capacity(media.len());
    for (named, medium) in media {
        let failed = |error: OpenError| named.failed("use", &error);
        let mut endpoint = medium.attach(io).map_err(failed)?;
        // One after the other, so that an error tells whose it is.
        block::wait_ready(io, &mut [&mut *endpoint]).map_err(failed)?;
        endpoints.push(endpoint);
    }
    Ok(endpoints)
}

/// Reads `length` bytes at `offset`, one request after the other. Both must suit the endpoint's granularity.
pub(crate) fn read(
    io: &mut Io,
    endpoint: &mut dyn Endpoint,
    offset: u64,
    length: usize,
) -> Result<Vec<u8>, IoError> {
    let mut router = Router::new();
    router.add_endpoint(endpoint, ());
    let mut bytes = Vec::with_capacity(length);
    let piece_max = READ_BYTES_MAX.min(endpoint.capability().max_transfer_bytes as usize);
    let failed = |error: &std::io::Error| IoError::new(IoErrorKind::Other, error.to_string());
    while bytes.len() < length {
        let piece = piece_max.min(length - bytes.len());
        let span = io.pool().take(piece).ok_or_else(|| failed(&std::io::ErrorKind::OutOfMemory.into()))?;
        let kind = Kind::Read { offset: offset + bytes.len() as u64, into: span.slice(0, piece) };
        let (mut events, mut done) = (Vec::new(), Vec::new());
        endpoint.submit(io, Request { id: 0, kind }, &mut done);
        while done.is_empty() {
            io.turn_for(|owner| router.route(owner).is_some(), None, &mut events)
                .map_err(|error| failed(&error))?;
            for event in events.drain(..) {
                endpoint.on_event(io, event, &mut done);
            }
        }
        done.remove(0).result?;
        let start = bytes.len();
        bytes.resize(start + piece, 0);
        span.read(0, &mut bytes[start..]);
    }
    Ok(bytes)
}

/// The completion loop of this thread.
pub(crate) fn event_loop() -> Result<Io, Failure> {
    Io::new(area::PoolLimits::default())
        .map_err(|error| Failure::new(Exit::Failed, "start the completion loop", "", error))
}
