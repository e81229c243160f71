//! Changes of a running server: reloads by SIGHUP, and requests at the control socket.
//!
//! One thread carries out all changes, one after the other ([`obey`]); signals and requests reach it as an [`Order`].

use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, SystemTime};

use node::target::{Confine, Reloader, ServeError, ServerHandle};
use seal::PublicKey;
use serde_json::{Value, json};

use super::access::check_exposure;
use super::{Args, LUN_OPTIONS, Live, build, failure, gather, status, widened};
use crate::config::{Config, Target};
use crate::context::Context;
use crate::control::listen::ControlSocket;
use crate::control::{self, Request};
use crate::endpoint::Named;
use crate::error::Failure;
use crate::output;
use crate::trust::fingerprint;

/// Time for a change to be carried out: [`Reloader`] bounds opening the storage, and the sessions' revision.
const CHANGE_MAX: Duration = Duration::from_secs(140);

/// The result of a change, in one line.
type Answer = SyncSender<Result<String, Failure>>;

#[derive(Debug)]
pub(super) enum Order {
    /// Without a recipient of the result after SIGHUP: the log has it.
    Reload(Option<Answer>),
    AddLun {
        target: Option<String>,
        lun: u16,
        endpoint: String,
        answer: Answer,
    },
    RemoveLun {
        target: Option<String>,
        lun: u16,
        answer: Answer,
    },
    ResizeLuns(Answer),
}

/// Opens the control socket. `None` if it cannot be created, which is logged: the server does not depend on it.
pub(super) fn socket() -> Option<ControlSocket> {
    let Some(directory) = control::directory() else {
        tracing::info!("no control socket: neither RUNTIME_DIRECTORY nor XDG_RUNTIME_DIR is set");
        return None;
    };
    match ControlSocket::open(&directory, "serve") {
        Ok(socket) => Some(socket),
        Err(error) => {
            tracing::warn!("no control socket in {}: {error}", directory.display());
            None
        }
    }
}

/// Answers requests at the control socket.
pub(super) struct Operator<'a> {
    handle: &'a ServerHandle,
    orders: SyncSender<Order>,
    /// The file of the configuration.
    file: Option<PathBuf>,
    since: SystemTime,
}

impl<'a> Operator<'a> {
    pub(super) fn new(handle: &'a ServerHandle, orders: SyncSender<Order>, file: Option<PathBuf>) -> Self {
        Self { handle, orders, file, since: SystemTime::now() }
    }

    pub(super) fn answer(&self, request: Request) -> Result<Value, Failure> {
        match request {
            Request::Status {} => Ok(status::json(&self.handle.status(), self.file.as_deref(), self.since)),
            Request::Drain {} => {
                tracing::info!("draining: requested at the control socket");
                self.handle.drain();
                Ok(json!({ "done": "draining" }))
            }
            Request::EndSession { tsih } => match self.handle.end_session(tsih) {
                true => Ok(json!({ "done": format!("session {tsih} ended") })),
                false => Err(Failure::usage("end the session", tsih.to_string(), "there is no such session")
                    .hint("hikyaku status lists the sessions")),
            },
            Request::Reload {} => self.order("reload", |answer| Order::Reload(Some(answer))),
            Request::AddLun { target, lun, endpoint } => {
                self.order("add the LUN", |answer| Order::AddLun { target, lun, endpoint, answer })
            }
            Request::ResizeLuns {} => self.order("resize the LUNs", Order::ResizeLuns),
            Request::RemoveLun { target, lun } => {
                self.order("remove the LUN", |answer| Order::RemoveLun { target, lun, answer })
            }
            Request::SetRate { .. } => {
                Err(Failure::usage("change the rate", "", "a server has no rate limit; a copy has one"))
            }
        }
    }

    fn order(&self, attempted: &str, order: impl FnOnce(Answer) -> Order) -> Result<Value, Failure> {
        let (answer, answers) = mpsc::sync_channel(1);
        let failed = |cause: &str| Failure::failed(attempted, "", cause);
        self.orders.send(order(answer)).map_err(|_| failed("the server ends"))?;
        match answers.recv_timeout(CHANGE_MAX) {
            Ok(result) => Ok(json!({ "done": result? })),
            Err(RecvTimeoutError::Timeout) => {
                Err(failed("the change takes longer than expected; the log will have its result"))
            }
            Err(RecvTimeoutError::Disconnected) => Err(failed("the server ends")),
        }
    }
}

/// Carries out orders until all their senders are dropped. Sends the result of its set-up to `ready` once.
pub(super) fn obey(
    context: &Context,
    args: &Args,
    mut live: Live,
    handle: &ServerHandle,
    confine: Option<&Confine>,
    ready: &mpsc::Sender<Result<(), ServeError>>,
    orders: &Receiver<Order>,
) {
    let mut reloader = match handle.reloader() {
        Ok(reloader) => reloader,
        Err(error) => return drop(ready.send(Err(error))),
    };
    // Confines this thread after its loop is created.
    if let Some(confine) = confine {
        confine();
    }
    if let Some(key) = next_key(&live) {
        tracing::info!("the next key {} is announced in each sealed login", fingerprint(&key));
    }
    let _ = ready.send(Ok(()));
    while let Ok(order) = orders.recv() {
        let (label, config, answer) = match order {
            Order::Reload(answer) => {
                let label = if answer.is_some() { "reload" } else { "SIGHUP" };
                (label.to_owned(), gather(context, args), answer)
            }
            Order::AddLun { target, lun, endpoint, answer } => {
                let config = with_lun(context, &live.config, target.as_deref(), lun, &endpoint);
                (by_request("added to", lun, target), config, Some(answer))
            }
            Order::ResizeLuns(answer) => {
                ("sizes read by request".to_owned(), Ok(live.config.clone()), Some(answer))
            }
            Order::RemoveLun { target, lun, answer } => {
                let config = without_lun(&live.config, target.as_deref(), lun);
                (by_request("removed from", lun, target), config, Some(answer))
            }
        };
        let mut result = config.and_then(|config| apply(context, config, &mut live, &mut reloader));
        match &mut result {
            Ok(reloaded) => tracing::info!("{label}: {reloaded}"),
            Err(error) => {
                if confine.is_some() && error.cause.contains("Permission denied") {
                    error.hint = "the sandbox opens new files only beside those of the LUNs, in [server] storage, and beside \
                         the configuration, as these were at the start"
                        .to_owned();
                }
                let text = error.to_string().replace("\n  try:", "; try:");
                let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
                tracing::error!("{label}: nothing is changed: {text}");
            }
        }
        if let Some(answer) = answer {
            // The recipient may have timed out.
            let _ = answer.try_send(result);
        }
    }
}

/// The line of the log about one LUN. Without a name the server has one target.
fn by_request(change: &str, lun: u16, target: Option<String>) -> String {
    let target = target.unwrap_or_else(|| "the target".to_owned());
    format!("LUN {lun} {change} {} by request", output::printable(&target))
}

/// Applies a changed configuration. An error changes nothing.
fn apply(
    context: &Context,
    config: Config,
    live: &mut Live,
    reloader: &mut Reloader,
) -> Result<String, Failure> {
    check_exposure(context, &config)?;
    // Checked before anything is opened: this process itself holds the lock of a renamed target's storage.
    let is_known = |target: &Target| live.target(target.iqn.as_deref()).is_some();
    if config.targets.len() != live.server.targets.len() || !config.targets.iter().all(is_known) {
        let restart = ServeError::Restart("a target that is added, removed or renamed".to_owned());
        return Err(failure(&restart));
    }
    let next = build(context, config, Some(live))?;
    let more = widened::rights(&live.config, &next.config);
    let reloaded = reloader.reload(next.server.clone()).map_err(|error| failure(&error))?;
    if !more.is_empty() {
        tracing::warn!(
            "the configuration gives more rights than before: {}; if that is not meant, the file may have been read half-written: \
             write another file and rename it (`hikyaku check new.toml && mv new.toml hikyaku.toml`), then reload",
            more.join(", ")
        );
    }
    let announced = announced(live, &next);
    let given = if more.is_empty() {
        String::new()
    } else {
        format!("; more rights than before: {}", more.join(", "))
    };
    *live = next;
    Ok(format!("{reloaded}{announced}{given}"))
}

fn next_key(live: &Live) -> Option<PublicKey> {
    live.server.sealing.as_ref()?.next.as_ref().map(|next| next.key())
}

/// What a change of the next key means for initiators; empty if it is the same as before.
fn announced(before: &Live, after: &Live) -> String {
    match (next_key(before), next_key(after)) {
        (one, other) if one == other => String::new(),
        (_, Some(key)) => format!(
            "; the next key {} is announced in each sealed login from now on; when all initiators have logged in: \
             hikyaku key rotate --finish",
            fingerprint(&key)
        ),
        (Some(key), None) => format!(
            "; the next key {} is not announced any more, and initiators that log in stop accepting it",
            fingerprint(&key)
        ),
        (None, None) => String::new(),
    }
}

fn with_lun(
    context: &Context,
    config: &Config,
    target: Option<&str>,
    lun: u16,
    endpoint: &str,
) -> Result<Config, Failure> {
    let mut config = config.clone();
    let endpoint = Named::parse(context, endpoint, LUN_OPTIONS)?;
    if endpoint.spec.get("lun").is_some() {
        return Err(Failure::usage("add the LUN", endpoint.text, "its number is given twice, by lun= too"));
    }
    let text = endpoint.text.clone();
    let target = target_of(&mut config, target)?;
    target.add(lun, endpoint, None).map_err(|cause| Failure::usage("add the LUN", text, cause))?;
    Ok(config)
}

fn without_lun(config: &Config, target: Option<&str>, lun: u16) -> Result<Config, Failure> {
    let mut config = config.clone();
    let target = target_of(&mut config, target)?;
    let wrong = |cause| Failure::usage("remove the LUN", lun.to_string(), cause);
    if !target.luns.iter().any(|known| known.lun == lun) {
        return Err(wrong("the target has no such LUN").hint("hikyaku status lists the LUNs"));
    }
    if target.luns.len() == 1 {
        return Err(wrong("it is the target's last LUN").hint("hikyaku ctl drain ends the server"));
    }
    let named = |acl: &crate::config::Acl| acl.luns.as_ref().is_some_and(|luns| luns.contains(&lun));
    if target.acls.iter().any(named) {
        return Err(wrong("a row of the access list names it").hint("change the configuration and reload"));
    }
    target.luns.retain(|known| known.lun != lun);
    Ok(config)
}

/// The target of this name; the only one if no name is given.
fn target_of<'a>(config: &'a mut Config, name: Option<&str>) -> Result<&'a mut Target, Failure> {
    let count = config.targets.len();
    let is_it = |target: &&mut Target| match name {
        Some(name) => count == 1 && target.iqn.is_none() || target.iqn.as_deref() == Some(name),
        None => count == 1,
    };
    let names: Vec<&str> = config.targets.iter().filter_map(|target| target.iqn.as_deref()).collect();
    let hint = format!("--target {}", names.join(", or --target "));
    let missing = match name {
        Some(name) => Failure::usage("find the target", name, "this server does not have it"),
        None => Failure::usage("find the target", "", format!("this server has {count}")),
    };
    let missing = if names.is_empty() { missing } else { missing.hint(hint) };
    config.targets.iter_mut().find(is_it).ok_or(missing)
}
