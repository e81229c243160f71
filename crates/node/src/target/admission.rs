//! The login of one connection: the identity of the initiator, what it has proven, and its session.
//!
//! Call order: [`Login::on_sealed`] if the outer login has proven a key, [`Login::identify`] for the first request,
//! [`Login::on_agreed`] when the machine has negotiated everything else, then [`Login::claim`], repeated after each
//! `Mail::Retry` until it returns a result. From then on a [`Session`] exists until [`Login::end`]; a reload revises it
//! ([`Login::revise`]). This module sends nothing: the connection passes the returned values to the machine.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use iscsi::login::NextKey;
use iscsi::login::target::{AuthRequirement, Denial, Identity, Policy, Refusal};
use iscsi::machine::TargetRecord;
use iscsi::name::IscsiName;
use iscsi::params::DigestPolicy;
use iscsi::target::{Scope, SessionReady};
use iscsi::wire::{Isid, LoginStatus};
use scsi::NexusId;

use super::config::{LocalUsers, NextIdentity, Peer, ServerConfig, TargetConfig};
use super::context::Context;
use super::local_user;
use super::login::{self, Claims, Denied, Grant};
use super::lun::{Lun, Seen};
use super::mail::{ConnectionId, Mail};
use super::refusals::Refused;
use super::session::Session;
use super::sessions::{About, Admission, Claim};
use super::shared::Shared;
use super::slots::Slots;
use super::state::State;
use super::usage::Usage;
use crate::sealing::Protection;
use crate::stream::{Counters, sealed_segment_max};

/// The user of this host that owns the peer's socket, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LocalUser {
    /// The peer is on another host, or authenticates by other means.
    Irrelevant,
    /// Every user is admitted, so the user was not determined.
    Any,
    Is(u32),
}

struct Pending {
    initiator: String,
    isid: Isid,
    tsih: u16,
    target: Option<String>,
    user: Option<String>,
    keys: Vec<(&'static str, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Revised {
    Same,
    /// The session has other units; unit attentions report that.
    Units,
    /// The session ends: the initiator has to log in again.
    Ends,
}

/// The login of one connection, and its session. For the call order see the head of this module.
pub(super) struct Login {
    id: ConnectionId,
    pub(super) peer: SocketAddr,
    local: SocketAddr,
    /// The peer whose key the initiator has proven; `None` if not sealed.
    proven: Option<Peer>,
    user: LocalUser,
    protection: Protection,
    /// The answer to the question for the next key, made for this connection.
    next_key: NextKey,
    /// The key that `next_key` announces.
    announced: Option<Arc<NextIdentity>>,
    /// The configuration at the start of the login; dropped once the session exists.
    basis: Option<Arc<State>>,
    pending: Option<Pending>,
    pub(super) session: Option<Session>,
    /// What the login claims, for the log if it is refused.
    claimed: Refused,
    pub(super) refusal: Option<Refused>,
}

impl Login {
    pub(super) fn new(id: ConnectionId, (peer, local): (SocketAddr, SocketAddr)) -> Self {
        Self {
            id,
            peer,
            local,
            proven: None,
            user: LocalUser::Irrelevant,
            protection: Protection::None,
            next_key: NextKey::Unsaid,
            announced: None,
            basis: None,
            pending: None,
            session: None,
            claimed: Refused::default(),
            refusal: None,
        }
    }

    pub(super) fn initiator(&self) -> &str {
        self.session.as_ref().map_or("(no session)", |session| &session.initiator)
    }

    fn listed_as(&self) -> Option<&str> {
        self.proven.as_ref().map(|peer| peer.name.as_str())
    }

    /// The outer login has proven the key of `peer`; from here on the connection is sealed.
    pub(super) fn on_sealed(
        &mut self,
        peer: &Peer,
        protection: Protection,
        (next_key, announced): (NextKey, Option<Arc<NextIdentity>>),
    ) {
        self.proven = Some(peer.clone());
        self.protection = protection;
        (self.next_key, self.announced) = (next_key, announced);
    }

    pub(super) fn identify(&mut self, context: &Context<'_>, identity: &Identity) -> Result<Policy, Refusal> {
        let state = context.shared.state();
        let config = &state.config;
        self.claimed.initiator = Some(identity.initiator_name.to_string());
        self.claimed.target_name = identity.target_name.as_ref().map(ToString::to_string);
        self.basis = Some(Arc::clone(&state));
        if context.draining {
            return Err(LoginStatus::ServiceUnavailable.into());
        }
        let mut policy = self.protected(config, login::policy(config, identity, self.proven.as_ref())?);
        policy.next_key = std::mem::take(&mut self.next_key);
        match self.admit_user(context.shared, config, &policy) {
            Ok(user) => self.user = user,
            Err(why) => {
                if let AuthRequirement::Chap(chap) = &mut policy.auth {
                    // Optional for the users that are admitted without it.
                    chap.required = true;
                    return Ok(policy);
                }
                self.refuse(why);
                return Err(LoginStatus::AuthenticationFailure.into());
            }
        }
        Ok(policy)
    }

    /// The parameters for the connection's protection. Sealed: no digests, and segments that one record head can
    /// describe. Not protected and beyond this host: CRC32C is chosen from every list that offers it, because the TCP
    /// checksum misses errors that nothing else would detect. An initiator that offers only None gets None.
    fn protected(&self, config: &ServerConfig, mut policy: Policy) -> Policy {
        let params = &mut policy.params;
        if let Protection::Sealed { unit, .. } = self.protection {
            (params.header_digest, params.data_digest) = (DigestPolicy::Off, DigestPolicy::Off);
            let segment_max = &mut params.max_recv_data_segment_length;
            *segment_max = sealed_segment_max(unit).min(*segment_max);
        } else if config.tls.is_none() && !self.is_local() {
            (params.header_digest, params.data_digest) = (DigestPolicy::Prefer, DigestPolicy::Prefer);
        }
        policy
    }

    /// Whether both ends are certainly on this host: one of them has a loopback address. The peer's may be another one,
    /// since an initiator chooses the address that it binds its socket to.
    fn is_local(&self) -> bool {
        [self.peer, self.local].iter().any(|end| end.ip().to_canonical().is_loopback())
    }

    /// Checks the local user, where no other proof is required. `Err`: the reason, and the setting that admits the
    /// user.
    fn admit_user(
        &self,
        shared: &Shared,
        config: &ServerConfig,
        policy: &Policy,
    ) -> Result<LocalUser, String> {
        let requires_chap = matches!(&policy.auth, AuthRequirement::Chap(chap) if chap.required);
        let is_proven = self.proven.is_some() || requires_chap;
        if is_proven || !self.is_local() {
            return Ok(LocalUser::Irrelevant);
        }
        if config.local_users == LocalUsers::Any {
            return Ok(LocalUser::Any);
        }
        let instead = "or protect the target by CHAP or by keys of peers";
        match shared.local_users.of(self.peer, self.local) {
            Ok(uid) if config.local_users.admit(uid) => Ok(LocalUser::Is(uid)),
            Ok(uid) => {
                let name = local_user::name_of(uid).unwrap_or_else(|| uid.to_string());
                Err(format!(
                    "user {name} (uid {uid}) of this host may not use this server: say --allow-user {name}, {instead}"
                ))
            }
            Err(unknown) => {
                Err(format!("an unknown user of this host: {unknown}; say --allow-user any, {instead}"))
            }
        }
    }

    pub(super) fn on_refused(&mut self, status: LoginStatus, denial: Option<Denial>) {
        let why = match &denial {
            Some(Denial::UnknownUser(user)) if self.is_of_another_initiator(user) => {
                format!("CHAP user {user:?} has an account here, but not for this initiator or key")
            }
            Some(denial) => denial.to_string(),
            None => login::meaning(status),
        };
        if let Some(Denial::UnknownUser(user) | Denial::Secret(user) | Denial::Mutual(user)) = denial {
            self.claimed.chap_user = Some(user);
        }
        let config = self.basis.as_ref().map(|basis| &basis.config);
        match self
            .claimed
            .target_name
            .as_deref()
            .filter(|name| config.is_some_and(|config| !config.has(name)))
        {
            Some(name) => self.refuse(format!("{name}, which is no target here: {why}")),
            None => self.refuse(why),
        }
    }

    fn is_of_another_initiator(&self, user: &str) -> bool {
        let targets = self.basis.iter().flat_map(|basis| &basis.config.targets);
        let is_it = |target: &&TargetConfig| Some(&target.iqn) == self.claimed.target_name.as_ref();
        targets.filter(is_it).any(|target| login::has_account(target, user))
    }

    /// Sets the reason for the log, unless a more specific one is set.
    pub(super) fn refuse(&mut self, reason: impl Into<String>) {
        if self.refusal.is_none() {
            let listed_as = self.listed_as().map(str::to_owned);
            self.refusal = Some(Refused { reason: reason.into(), listed_as, ..self.claimed.clone() });
        }
    }

    pub(super) fn on_agreed(&mut self, ready: SessionReady) {
        self.pending = Some(Pending {
            initiator: ready.identity.initiator_name.to_string(),
            isid: ready.identity.isid,
            tsih: ready.identity.tsih,
            target: ready.identity.target_name.as_ref().map(ToString::to_string),
            user: ready.authenticated_as,
            keys: ready.negotiated.pairs(),
        });
    }

    /// Claims the session of the negotiated login; called again when a session that it reinstates has ended. Returns
    /// the TSIH, or the status of the refusal; `None`: the reinstated session has to end first, or no login is pending.
    pub(super) fn claim(&mut self, context: &Context<'_>) -> Option<Result<u16, LoginStatus>> {
        let pending = self.pending.take()?;
        if pending.tsih != 0 {
            // A second connection of the session, or a reinstatement of its connection: sessions here have one
            // connection.
            return Some(Err(if context.shared.sessions.exists(pending.tsih) {
                LoginStatus::TooManyConnections
            } else {
                LoginStatus::SessionDoesNotExist
            }));
        }
        let state = context.shared.state();
        let Ok(grant) = self.granted(&state, &pending) else {
            self.claimed.chap_user.clone_from(&pending.user);
            self.refuse("no row of the target's access list fits");
            return Some(Err(LoginStatus::AuthorizationFailure));
        };
        let peer = self.proven.as_ref();
        let target = pending.target.as_deref().and_then(|name| state.target(name));
        let luns =
            target.map(|index| state.visible_luns(index, grant.row.as_ref(), peer)).unwrap_or_default();
        let exclusive = luns.iter().map(|seen| seen.lun);
        let usage = Arc::<Usage>::default();
        let claim = Claim {
            initiator: pending.initiator.clone(),
            isid: pending.isid,
            target: pending.target.clone(),
            peer: self.peer,
            peer_key: peer.map(|peer| peer.public_key),
            connection: self.id,
            exclusive: exclusive.filter(|lun| context.luns[*lun].config.exclusive).collect(),
            about: self.about(&state.config, &pending, &luns),
            usage: Arc::clone(&usage),
        };
        Some(Err(match context.shared.sessions.claim(claim) {
            Admission::Granted { tsih, nexus, former } => {
                let Pending { initiator, user, target: target_name, .. } = pending;
                let inventory = luns.iter().map(|seen| seen.wire).collect();
                let session = Session { nexus, target, initiator, user, grant, luns, inventory, usage };
                self.begin(context, &state.config, session, target_name.as_deref(), (tsih, former));
                return Some(Ok(tsih));
            }
            Admission::Wait { old } => {
                tracing::info!(peer = %self.peer, initiator = pending.initiator, "session reinstatement");
                self.pending = Some(pending);
                let reason = "replaced by a new session of the same initiator port";
                context.shared.mailboxes[old.worker].send(Mail::Close { connection: old, reason });
                return None;
            }
            Admission::Busy { holder } => {
                self.refuse(format!("a LUN is exclusive, and {holder} is in session with it"));
                LoginStatus::AuthorizationFailure
            }
            Admission::OtherKey => {
                self.refuse("its name is in session with another key");
                LoginStatus::AuthorizationFailure
            }
            Admission::Full => {
                self.refuse("the server has as many sessions as it can");
                LoginStatus::ServiceUnavailable
            }
        }))
    }

    /// What the configuration grants the login. The initiator was authenticated under the configuration at the start of
    /// the login: if that was replaced since, both must grant the same.
    fn granted(&self, state: &Arc<State>, pending: &Pending) -> Result<Grant, Denied> {
        let peer = self.proven.as_ref();
        let claims = Claims { initiator: &pending.initiator, peer, user: pending.user.as_deref() };
        let grant = |state: &State| login::grant(&state.config, pending.target.as_deref(), claims);
        let granted = grant(state)?;
        if let Some(basis) = self.basis.as_ref().filter(|basis| !Arc::ptr_eq(basis, state))
            && !granted.is_same(&grant(basis)?)
        {
            return Err(Denied);
        }
        if self.is_granted(&state.config) { Ok(granted) } else { Err(Denied) }
    }

    /// Starts the session: attaches its nexus to the units; the nexus has the ports of `former`.
    fn begin(
        &mut self,
        context: &Context<'_>,
        config: &ServerConfig,
        session: Session,
        target_name: Option<&str>,
        (tsih, former): (u16, Option<NexusId>),
    ) {
        for seen in &session.luns {
            context.luns[seen.lun].unit().attach(session.nexus, former);
        }
        tracing::info!(
            peer = %self.peer, initiator = session.initiator,
            target_name = target_name.unwrap_or("(discovery)"), tsih,
            listed_as = self.listed_as(), chap_user = session.user,
            protection = self.protection_kind(config, session.user.as_deref()),
            luns = login::listed(&session.luns), "logged in"
        );
        self.session = Some(session);
        self.basis = None;
        if let Some(announced) = self.announced.take() {
            announced.on_login();
        }
    }

    fn about(&self, config: &ServerConfig, pending: &Pending, luns: &[Seen]) -> About {
        About {
            listed_as: self.listed_as().map(str::to_owned),
            chap_user: pending.user.clone(),
            protection: self.protection_kind(config, pending.user.as_deref()),
            suite: match self.protection {
                Protection::Sealed { suite, .. } => Some(suite.name()),
                _ => None,
            },
            keys: pending.keys.clone(),
            luns: login::visible_luns(luns),
            since: Some(SystemTime::now()),
        }
    }

    fn protection_kind(&self, config: &ServerConfig, user: Option<&str>) -> &'static str {
        match self.protection {
            Protection::None if config.tls.is_some() => "tls",
            Protection::None if user.is_some() => "chap",
            _ => self.protection.kind(),
        }
    }

    pub(super) fn targets(&self, shared: &Shared, scope: &Scope) -> Vec<TargetRecord> {
        let session = self.session.as_ref().expect("text comes after the login");
        let state = shared.state();
        let config = &state.config;
        let address = login::portal_address(config, self.local);
        let own = session.target.map(|index| config.targets[index].iqn.as_str());
        let claims = Claims {
            initiator: &session.initiator,
            peer: self.proven.as_ref(),
            user: session.user.as_deref(),
        };
        login::visible(config, claims)
            .filter(|target| match scope {
                Scope::All => own.is_none() || own == Some(target.iqn.as_str()),
                Scope::This => own == Some(target.iqn.as_str()),
                Scope::Named(name) => target.iqn == name.as_str(),
            })
            .filter_map(|target| {
                let name = IscsiName::parse(&target.iqn).ok()?;
                Some(TargetRecord { name, addresses: address.iter().cloned().collect() })
            })
            .collect()
    }

    fn is_granted(&self, config: &ServerConfig) -> bool {
        let peer = self.proven.as_ref();
        let is_listed =
            peer.is_none_or(|peer| config.peer(&peer.public_key).is_some_and(|listed| listed.is_same(peer)));
        let is_admitted = match self.user {
            LocalUser::Irrelevant => true,
            LocalUser::Any => config.local_users == LocalUsers::Any,
            LocalUser::Is(uid) => config.local_users.admit(uid),
        };
        is_listed
            && is_admitted
            && self.session.as_ref().is_none_or(|session| {
                let target = session.target.map(|index| config.targets[index].iqn.as_str());
                let claims = Claims { initiator: &session.initiator, peer, user: session.user.as_deref() };
                login::grant(config, target, claims).is_ok_and(|grant| grant.is_same(&session.grant))
            })
    }

    /// Applies a changed configuration. A session whose rights have changed ends, and its initiator has to log in
    /// again. Other sessions continue; unit attentions report added and removed units.
    pub(super) fn revise(&mut self, context: &Context<'_>, state: &State) -> Revised {
        if self.is_granted(&state.config)
            && let Some(revised) = self.revise_luns(context, state)
        {
            return revised;
        }
        if let Some(session) = &self.session {
            tracing::info!(
                peer = %self.peer, initiator = session.initiator, listed_as = self.listed_as(),
                chap_user = session.user, "session ends: its key, its user or its rights were changed by the reload"
            );
        }
        Revised::Ends
    }

    fn revise_luns(&mut self, context: &Context<'_>, state: &State) -> Option<Revised> {
        let Some(session) = &mut self.session else { return Some(Revised::Same) };
        let Some(target) = session.target else { return Some(Revised::Same) };
        let luns = state.visible_luns(target, session.grant.row.as_ref(), self.proven.as_ref());
        if luns == session.luns {
            return Some(Revised::Same);
        }
        let nexus = session.nexus;
        for seen in &luns {
            let unit = &context.luns[seen.lun];
            if session.luns.contains(seen) {
                unit.unit().luns_changed(nexus);
            } else if unit.config.exclusive {
                return None;
            } else {
                unit.unit().attach(nexus, None);
            }
        }
        for seen in session.luns.iter().filter(|seen| !luns.contains(seen)) {
            context.luns[seen.lun].detach(nexus);
        }
        let exclusive = luns.iter().map(|seen| seen.lun).filter(|lun| context.luns[*lun].config.exclusive);
        context.shared.sessions.set_luns(self.id, login::visible_luns(&luns), exclusive.collect());
        session.inventory = luns.iter().map(|seen| seen.wire).collect();
        session.luns = luns;
        Some(Revised::Units)
    }

    /// The connection is over: detaches the nexus from its units.
    pub(super) fn end(&self, luns: &Slots<Arc<Lun>>, counters: Counters) {
        let Some(session) = &self.session else { return };
        for seen in &session.luns {
            luns[seen.lun].detach(session.nexus);
        }
        tracing::info!(
            peer = %self.peer, initiator = session.initiator, listed_as = self.listed_as(),
            received = counters.received, sent = counters.sent, copied = counters.copied,
            "session ended"
        );
    }
}
