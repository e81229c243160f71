//! The initiator's side of login.
//!
//! ```text
//! start ──► request ──► receive ──► Send(request) ──► receive ...
//!                             ├──► Complete
//!                             ├──► Redirect: log in at the given address
//!                             └──► LoginError: close the connection
//! ```
//!
//! The target is an untrusted peer: its input is bounded and checked, and with mutual CHAP the login completes only
//! after the target has authenticated.

use super::{
    ANNOUNCEMENT_BYTES_MAX, ChapAccount, NEXT_KEY, NEXT_KEY_VERSION, NextKey, REQUESTS_MAX,
    SEGMENT_LENGTH_MAX, SEGMENT_LENGTH_MIN, SecurityKeys, Taken,
};
use crate::chap::{Algorithm, Algorithms, CHALLENGE_LENGTH_MAX, Challenge, Entropy, equal};
use crate::name::{AddressError, IscsiName, TargetAddress};
use crate::params::{
    self, Negotiated, Negotiation, NegotiationError, Params, ParamsError, Role, SessionType,
};
use crate::text::{self, Collector, Segments, TEXT_MAX, TextError, parse_binary, parse_number};
use crate::wire::{CmdSn, Isid, Itt, LoginRequest, LoginResponse, LoginStatus, Stage, StatSn, VERSION};

#[derive(Debug, Clone)]
pub struct Config {
    pub initiator_name: IscsiName,
    pub initiator_alias: Option<String>,
    pub isid: Isid,
    /// 0 for a new session.
    pub tsih: u16,
    pub cid: u16,
    /// Initiator task tag of all requests of this login; not reserved.
    pub itt: Itt,
    /// InitialCmdSN: the CmdSN of the session's first command.
    pub cmd_sn: CmdSn,
    pub session_type: SessionType,
    pub target_name: Option<IscsiName>,
    /// CHAP user and secret of the initiator. With `auth` and without `mutual`, a target that requires no
    /// authentication is accepted too.
    pub auth: Option<ChapAccount>,
    /// CHAP user and secret that the target must prove; requires `auth`, with another secret (RFC 7143 §12.1.3).
    pub mutual: Option<ChapAccount>,
    /// Hashes offered, most preferred first.
    pub algorithms: Algorithms,
    pub params: Params,
    /// Without `auth`, start in the operational stage (one round trip) instead of with AuthMethod=None (two).
    pub skip_security: bool,
    /// Largest data segment of the login requests, 64..=8192 bytes.
    pub segment_max: usize,
    /// Send [`NEXT_KEY`]: within a sealed session.
    pub asks_next_key: bool,
}

impl Config {
    /// A normal session without authentication and with default parameters.
    #[must_use]
    pub fn normal(initiator_name: IscsiName, isid: Isid, target_name: IscsiName) -> Self {
        Self {
            session_type: SessionType::Normal,
            target_name: Some(target_name),
            ..Self::discovery(initiator_name, isid)
        }
    }

    /// A discovery session without authentication and with default parameters.
    #[must_use]
    pub fn discovery(initiator_name: IscsiName, isid: Isid) -> Self {
        Self {
            initiator_name,
            initiator_alias: None,
            isid,
            tsih: 0,
            cid: 0,
            itt: Itt(0),
            cmd_sn: CmdSn(1),
            session_type: SessionType::Discovery,
            target_name: None,
            auth: None,
            mutual: None,
            algorithms: Algorithms::default(),
            params: Params::default(),
            skip_security: true,
            segment_max: SEGMENT_LENGTH_MAX,
            asks_next_key: false,
        }
    }

    fn validate(&self) -> Result<(), ConfigError> {
        if self.session_type == SessionType::Normal && self.target_name.is_none() {
            return Err(ConfigError::TargetName);
        }
        if [&self.auth, &self.mutual].into_iter().flatten().any(|account| !account.is_valid()) {
            return Err(ConfigError::User);
        }
        match (&self.auth, &self.mutual) {
            (None, Some(_)) => return Err(ConfigError::MutualAlone),
            (Some(auth), Some(mutual)) if auth.secret.same_as(&mutual.secret) => {
                return Err(ConfigError::SameSecret);
            }
            _ => {}
        }
        if !(SEGMENT_LENGTH_MIN..=SEGMENT_LENGTH_MAX).contains(&self.segment_max) {
            return Err(ConfigError::SegmentMax);
        }
        self.params.validate()?;
        Ok(())
    }
}

/// Why a login cannot start. The fault is the configuration's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("a normal session needs a target name")]
    TargetName,
    #[error("CHAP user name must have 1 to 255 bytes")]
    User,
    #[error("mutual CHAP needs CHAP credentials of our own")]
    MutualAlone,
    /// Both directions have the same secret (RFC 7143 §12.1.3 forbids it).
    #[error("the CHAP secrets of both directions must differ")]
    SameSecret,
    #[error("login segments must have 64 to 8192 bytes")]
    SegmentMax,
    #[error(transparent)]
    Params(#[from] ParamsError),
}

/// A PDU to send. `header.data_segment_length` is the length of `text`, padding not included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub header: LoginRequest,
    pub text: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Complete {
    pub negotiated: Negotiated,
    /// TSIH that the target assigned. Not 0 in a normal session.
    pub tsih: u16,
    /// TargetPortalGroupTag, if the target sent it.
    pub portal_group_tag: Option<u16>,
    /// TargetAlias, with control characters replaced.
    pub target_alias: Option<String>,
    /// Hash of the CHAP exchange, if the target required CHAP.
    pub authenticated_by: Option<Algorithm>,
    pub next_key: NextKey,
    pub cmd_sn: CmdSn,
    pub exp_cmd_sn: CmdSn,
    pub max_cmd_sn: CmdSn,
    pub exp_stat_sn: StatSn,
}

/// The target redirects to another address (status class 1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redirect {
    /// The new address. The caller bounds the number of redirections.
    pub address: TargetAddress,
    /// Whether the target moved permanently (status 0102).
    pub permanent: bool,
}

#[derive(Debug)]
pub enum Step {
    Send(Request),
    Complete(Box<Complete>),
    /// Close this connection and log in at the new address.
    Redirect(Redirect),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoginError {
    /// The target did not accept the proof, or requires one that the initiator has no credentials for.
    #[error("authentication failed{}", .algorithm.map_or(String::new(), |a| format!(" (CHAP with {a})")))]
    Authentication {
        /// The hash that the target chose, if it chose one. After [`Algorithm::Sha256`] a second login without it may
        /// succeed: tgt uses that number for SHA-1.
        algorithm: Option<Algorithm>,
    },
    /// The initiator may not use this target (0202).
    #[error("not authorised to use the target")]
    Authorization,
    /// The target does not exist at this address, or was removed (0203, 0204).
    #[error("target not found")]
    TargetNotFound,
    /// Mutual CHAP: the target did not authenticate.
    #[error("the target did not authenticate itself: {0}")]
    TargetNotAuthenticated(&'static str),
    #[error("login refused by the target: {0:?}")]
    Refused(LoginStatus),
    /// A redirection without an address, or with a malformed one.
    #[error("redirected to a malformed address")]
    BadRedirect(#[source] Option<AddressError>),
    #[error("malformed login text: {0}")]
    Text(#[from] TextError),
    #[error("negotiation: {0}")]
    Negotiation(#[from] NegotiationError),
    #[error("protocol error in login: {0}")]
    Protocol(&'static str),
}

#[derive(Debug)]
enum Security {
    /// AuthMethod is sent; the target's choice is expected.
    ExpectMethod,
    /// CHAP_A is sent; the target's challenge is expected.
    ExpectChallenge,
    /// CHAP_R is sent; the target's acceptance, or with mutual CHAP its response, is expected.
    ExpectVerdict { response: Vec<u8>, challenge: Option<Challenge> },
    /// Neither side owes a proof.
    Done,
}

/// One login of an initiator: [`start`](Self::start) returns the first request; the caller passes each response to
/// [`receive`](Self::receive) and acts on the returned [`Step`]. Between calls the machine holds the incomplete text of
/// either side and the state of the negotiation. After any result but [`Step::Send`] the login is over.
#[derive(Debug)]
pub struct Login {
    config: Config,
    entropy: Entropy,
    stage: Stage,
    security: Security,
    algorithm: Option<Algorithm>,
    negotiation: Negotiation,
    collector: Collector,
    outgoing: Segments,
    /// NSG to request with the last segment.
    desired: Option<Stage>,
    /// NSG of the outstanding request, if it had T.
    requested: Option<Stage>,
    exp_stat_sn: StatSn,
    responses: u32,
    bytes: usize,
    portal_group_tag: Option<u16>,
    target_alias: Option<String>,
    next_key: NextKey,
    /// [`NEXT_KEY`] is sent and not answered.
    awaits_next_key: bool,
    over: bool,
}

impl Login {
    /// Prepares a login. `entropy` is fresh from the system's generator: mutual CHAP derives its challenge from it.
    pub fn new(config: Config, entropy: Entropy) -> Result<Self, ConfigError> {
        config.validate()?;
        let secure = config.auth.is_some() || !config.skip_security;
        Ok(Self {
            negotiation: Negotiation::new(Role::Initiator, config.session_type, config.params.clone()),
            config,
            entropy,
            stage: if secure { Stage::Security } else { Stage::Operational },
            security: if secure { Security::ExpectMethod } else { Security::Done },
            algorithm: None,
            collector: Collector::new(),
            outgoing: Segments::default(),
            desired: None,
            requested: None,
            exp_stat_sn: StatSn(0),
            responses: 0,
            bytes: 0,
            portal_group_tag: None,
            target_alias: None,
            next_key: NextKey::Unsaid,
            awaits_next_key: false,
            over: false,
        })
    }

    /// The first request. Panics on a second call.
    #[must_use]
    pub fn start(&mut self) -> Request {
        assert!(
            self.requested.is_none() && self.responses == 0 && !self.outgoing.has_more(),
            "login started twice"
        );
        let mut text = Vec::new();
        text::emit("InitiatorName", self.config.initiator_name.as_str(), &mut text);
        if let Some(alias) = &self.config.initiator_alias {
            text::emit("InitiatorAlias", &text::printable(alias), &mut text);
        }
        text::emit("SessionType", self.config.session_type.as_str(), &mut text);
        if let Some(target) = &self.config.target_name {
            text::emit("TargetName", target.as_str(), &mut text);
        }
        if self.stage == Stage::Security {
            let methods = match (&self.config.auth, &self.config.mutual) {
                (None, _) => "None",
                (Some(_), None) => "CHAP,None",
                (Some(_), Some(_)) => "CHAP",
            };
            text::emit("AuthMethod", methods, &mut text);
            self.desired = self.config.auth.is_none().then_some(Stage::Operational);
        } else {
            self.offer(&mut text);
            self.desired = Some(Stage::FullFeature);
        }
        self.outgoing = Segments::new(text);
        self.send()
    }

    /// Appends the keys that begin the operational stage.
    fn offer(&mut self, text: &mut Vec<u8>) {
        self.negotiation.offer(text);
        if self.config.asks_next_key {
            text::emit(NEXT_KEY, NEXT_KEY_VERSION, text);
            self.awaits_next_key = true;
        }
    }

    /// Takes the target's answer to [`NEXT_KEY`], of which there is one.
    fn on_next_key(&mut self, value: &str) -> Result<(), LoginError> {
        if !std::mem::take(&mut self.awaits_next_key) {
            return Err(LoginError::Protocol("an announcement of a key that was not asked for"));
        }
        self.next_key = match value {
            "None" => NextKey::Kept,
            text::NOT_UNDERSTOOD | text::REJECT | text::IRRELEVANT => NextKey::Unsaid,
            value => NextKey::Announced(
                parse_binary(value, ANNOUNCEMENT_BYTES_MAX)
                    .ok_or(LoginError::Protocol("malformed announcement of a key"))?,
            ),
        };
        Ok(())
    }

    /// The next segment of the outgoing text, with the T bit on the last.
    fn send(&mut self) -> Request {
        let segment_max = self.config.segment_max.min(self.negotiation.send_limit());
        let (segment, continues) = self.outgoing.next_segment(segment_max);
        let text = segment.to_vec();
        self.requested = if continues { None } else { self.desired };
        self.request(continues, text)
    }

    fn request(&self, continues: bool, text: Vec<u8>) -> Request {
        let config = &self.config;
        let header = LoginRequest {
            transit: self.requested.is_some(),
            continues,
            csg: self.stage,
            nsg: self.requested.unwrap_or(self.stage),
            version_max: VERSION,
            version_min: VERSION,
            isid: config.isid,
            tsih: config.tsih,
            itt: config.itt,
            cid: config.cid,
            cmd_sn: config.cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
            data_segment_length: u32::try_from(text.len()).expect("at most a segment"),
        };
        Request { header, text }
    }

    /// Takes a response with its data segment (without padding).
    pub fn receive(&mut self, response: &LoginResponse, segment: &[u8]) -> Result<Step, LoginError> {
        if self.over {
            return Err(LoginError::Protocol("response after the end"));
        }
        let step = self.try_receive(response, segment);
        self.over = !matches!(step, Ok(Step::Send(_)));
        step
    }

    fn try_receive(&mut self, response: &LoginResponse, segment: &[u8]) -> Result<Step, LoginError> {
        self.responses += 1;
        self.bytes += segment.len();
        if self.responses > REQUESTS_MAX || self.bytes > TEXT_MAX {
            return Err(LoginError::Protocol("login without end"));
        }
        if response.itt != self.config.itt {
            return Err(LoginError::Protocol("response with another task's tag"));
        }
        if response.status != LoginStatus::Success {
            return self.on_refusal(response.status, segment);
        }
        if response.version_active != VERSION {
            return Err(LoginError::Protocol("version not supported"));
        }
        if response.csg != self.stage {
            return Err(LoginError::Protocol("response of another stage"));
        }
        if response.transit {
            match self.requested {
                Some(requested) if response.nsg > self.stage && response.nsg <= requested => {}
                _ => return Err(LoginError::Protocol("stage transition that was not requested")),
            }
        }
        self.exp_stat_sn = response.stat_sn.next();

        let whole = self.collector.push(segment, response.continues, TEXT_MAX)?;
        let mut answers = Vec::new();
        let mut keys_text = Vec::new();
        if let Some(whole) = whole {
            self.on_pairs(&whole, &mut answers)?;
            keys_text = whole;
        }
        if self.outgoing.has_more() {
            // The target acknowledged one segment of an unfinished text; it may not answer or transit before the last
            // segment.
            if response.transit || !answers.is_empty() {
                return Err(LoginError::Protocol("answer to an unfinished request"));
            }
            return Ok(Step::Send(self.send()));
        }
        if self.collector.is_partial() {
            // §6.2: an empty request requests the rest of the text.
            self.requested = None;
            return Ok(Step::Send(self.request(false, Vec::new())));
        }
        if self.stage == Stage::Security {
            self.on_security(&keys_text, response.transit, &mut answers)?;
        }
        if response.transit {
            self.stage = response.nsg;
            if self.stage == Stage::FullFeature {
                return self.complete(response);
            }
            self.offer(&mut answers);
        }
        if self.stage == Stage::Operational {
            self.desired = Some(Stage::FullFeature);
        }
        self.outgoing = Segments::new(answers);
        Ok(Step::Send(self.send()))
    }

    fn complete(&self, response: &LoginResponse) -> Result<Step, LoginError> {
        // Some targets keep no session for discovery and answer TSIH 0.
        if response.tsih == 0 && self.config.session_type == SessionType::Normal {
            return Err(LoginError::Protocol("session without a handle"));
        }
        Ok(Step::Complete(Box::new(Complete {
            negotiated: self.negotiation.clone().finish()?,
            tsih: response.tsih,
            portal_group_tag: self.portal_group_tag,
            target_alias: self.target_alias.clone(),
            authenticated_by: self.algorithm,
            next_key: self.next_key.clone(),
            cmd_sn: self.config.cmd_sn,
            exp_cmd_sn: response.exp_cmd_sn,
            max_cmd_sn: response.max_cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
        })))
    }

    fn on_refusal(&self, status: LoginStatus, segment: &[u8]) -> Result<Step, LoginError> {
        match status {
            _ if status.class() == 1 => redirect(status, segment).map(Step::Redirect),
            LoginStatus::AuthenticationFailure => {
                Err(LoginError::Authentication { algorithm: self.algorithm })
            }
            // tgt answers a CHAP response of unexpected length with "initiator error".
            LoginStatus::InitiatorError if matches!(self.security, Security::ExpectVerdict { .. }) => {
                Err(LoginError::Authentication { algorithm: self.algorithm })
            }
            LoginStatus::AuthorizationFailure => Err(LoginError::Authorization),
            LoginStatus::NotFound | LoginStatus::TargetRemoved => Err(LoginError::TargetNotFound),
            other => Err(LoginError::Refused(other)),
        }
    }

    fn on_pairs(&mut self, whole: &[u8], answers: &mut Vec<u8>) -> Result<(), LoginError> {
        let mut pairs = text::parse(whole)?;
        pairs.sort_by_key(|pair| params::order(pair.key));
        let mut keys = SecurityKeys::default();
        for pair in pairs {
            match keys.take(&pair) {
                Taken::Yes if self.stage == Stage::Security => continue,
                Taken::Yes => return Err(LoginError::Protocol("security key outside its stage")),
                Taken::Duplicate => return Err(LoginError::Protocol("security key twice")),
                Taken::NotSecurity => {}
            }
            match pair.key {
                "TargetPortalGroupTag" => {
                    let tag = parse_number(pair.value).and_then(|tag| u16::try_from(tag).ok());
                    self.portal_group_tag =
                        Some(tag.ok_or(LoginError::Protocol("malformed TargetPortalGroupTag"))?);
                }
                "TargetAlias" => self.target_alias = Some(text::printable(pair.value)),
                "InitiatorName" | "SessionType" | "TargetName" if pair.value == text::NOT_UNDERSTOOD => {
                    return Err(NegotiationError::NotUnderstood(pair.key.to_owned()).into());
                }
                // Keys without negotiation; some targets answer or repeat them.
                "InitiatorName" | "InitiatorAlias" | "SessionType" | "TargetName" | "TargetAddress" => {}
                NEXT_KEY => self.on_next_key(pair.value)?,
                _ => self.negotiation.on_pair(pair.key, pair.value, answers)?,
            }
        }
        Ok(())
    }

    /// The security stage: handles the target's security keys and appends the initiator's.
    fn on_security(&mut self, whole: &[u8], transit: bool, answers: &mut Vec<u8>) -> Result<(), LoginError> {
        let mut keys = SecurityKeys::default();
        for pair in text::parse(whole)? {
            let _ = keys.take(&pair);
        }
        match &self.security {
            Security::ExpectMethod => match (keys.auth_method, &self.config.auth) {
                (Some("CHAP"), Some(_)) if !transit => {
                    text::emit("CHAP_A", &self.config.algorithms.offer(), answers);
                    self.security = Security::ExpectChallenge;
                }
                // A transition without AuthMethod means None.
                (Some("None"), _) | (None, _)
                    if self.config.mutual.is_none() && (transit || keys.auth_method.is_some()) =>
                {
                    self.security = Security::Done;
                    self.desired = Some(Stage::Operational);
                }
                (None, _) if !transit => {}
                (Some("None") | None, _) => {
                    return Err(LoginError::TargetNotAuthenticated("it does without authentication"));
                }
                (Some(_), _) => return Err(LoginError::Authentication { algorithm: None }),
            },
            Security::ExpectChallenge => {
                if transit {
                    return Err(LoginError::Protocol("transition in the middle of CHAP"));
                }
                if !keys.is_empty() {
                    self.on_challenge(&keys, answers)?;
                }
            }
            Security::ExpectVerdict { response, challenge } => {
                if let (Some(mutual), Some(challenge)) = (&self.config.mutual, challenge) {
                    let algorithm = self.algorithm.expect("chosen with the challenge");
                    verify(algorithm, mutual, challenge, response, &keys)?;
                }
                self.security = Security::Done;
                self.desired = Some(Stage::Operational);
            }
            Security::Done => {
                if !keys.is_empty() {
                    return Err(LoginError::Protocol("security key after authentication"));
                }
            }
        }
        Ok(())
    }

    fn on_challenge(&mut self, keys: &SecurityKeys<'_>, answers: &mut Vec<u8>) -> Result<(), LoginError> {
        let (Some(algorithm), Some(identifier), Some(theirs)) =
            (keys.algorithm, keys.identifier, keys.challenge)
        else {
            // CHAP_A=Reject: no hash in common.
            return Err(LoginError::Authentication { algorithm: None });
        };
        let algorithm = parse_number(algorithm)
            .and_then(Algorithm::from_code)
            .filter(|&algorithm| self.config.algorithms.contains(algorithm))
            .ok_or(LoginError::Protocol("CHAP with a hash that was not offered"))?;
        let identifier = parse_number(identifier)
            .and_then(|identifier| u8::try_from(identifier).ok())
            .ok_or(LoginError::Protocol("malformed CHAP_I"))?;
        let theirs =
            parse_binary(theirs, CHALLENGE_LENGTH_MAX).ok_or(LoginError::Protocol("malformed CHAP_C"))?;
        let auth = self.config.auth.as_ref().expect("CHAP was offered");
        let response = algorithm.respond(identifier, &auth.secret, &theirs);
        text::emit("CHAP_N", &auth.user, answers);
        text::emit("CHAP_R", &text::binary(&response), answers);
        let challenge =
            self.config.mutual.is_some().then(|| Challenge::derive(algorithm, &self.entropy, "initiator"));
        if let Some(ours) = &challenge {
            if ours.bytes == theirs {
                return Err(LoginError::TargetNotAuthenticated("it sent our own challenge"));
            }
            text::emit("CHAP_I", &ours.identifier.to_string(), answers);
            text::emit("CHAP_C", &text::binary(&ours.bytes), answers);
        }
        self.algorithm = Some(algorithm);
        self.security = Security::ExpectVerdict { response, challenge };
        self.desired = Some(Stage::Operational);
        Ok(())
    }
}

/// Parses the redirection of a response with status class 1.
pub(super) fn redirect(status: LoginStatus, segment: &[u8]) -> Result<Redirect, LoginError> {
    let pairs = text::parse(segment)?;
    let address = pairs.iter().find(|pair| pair.key == "TargetAddress");
    let address = address.ok_or(LoginError::BadRedirect(None))?;
    let address =
        TargetAddress::parse(address.value).map_err(|error| LoginError::BadRedirect(Some(error)))?;
    Ok(Redirect { address, permanent: status == LoginStatus::TargetMovedPermanently })
}

fn verify(
    algorithm: Algorithm,
    mutual: &ChapAccount,
    challenge: &Challenge,
    our_response: &[u8],
    keys: &SecurityKeys<'_>,
) -> Result<(), LoginError> {
    let (Some(name), Some(response)) = (keys.name, keys.response) else {
        return Err(LoginError::TargetNotAuthenticated("no CHAP response"));
    };
    let response = parse_binary(response, CHALLENGE_LENGTH_MAX)
        .ok_or(LoginError::TargetNotAuthenticated("malformed CHAP response"))?;
    if equal(&response, our_response) {
        return Err(LoginError::TargetNotAuthenticated("it reflected our own response"));
    }
    let expected = algorithm.respond(challenge.identifier, &mutual.secret, &challenge.bytes);
    let right = equal(&expected, &response);
    if name != mutual.user {
        return Err(LoginError::TargetNotAuthenticated("unexpected user name"));
    }
    if right { Ok(()) } else { Err(LoginError::TargetNotAuthenticated("wrong CHAP response")) }
}
