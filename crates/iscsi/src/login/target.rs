//! The target's side of login.
//!
//! ```text
//! receive ──► Respond ──► receive ...
//!        ├──► Identify ──► identify(policy or refusal) ──► Respond | Complete | Refused
//!        ├──► Complete ──► accept(tsih) or refuse(status): the last response
//!        └──► Refused: send it, close the connection
//! ```
//!
//! Who may log in is not decided here: the first request names initiator and target, [`Step::Identify`] hands the
//! names out, and [`Login::identify`] brings back what is required of them. The last response waits for
//! [`Login::accept`], because an old session with the same ISID must be gone before the initiator hears of the new
//! one (§6.3.5).

use super::{
    ChapAccount, REQUESTS_BEFORE_AUTHENTICATION_MAX, REQUESTS_MAX, SEGMENT_LENGTH_MAX, SEGMENT_LENGTH_MIN,
    SecurityKeys, Taken,
};
use crate::chap::{Algorithm, Algorithms, CHALLENGE_LENGTH_MAX, Challenge, Entropy, Secret, equal};
use crate::name::{IscsiName, TargetAddress};
use crate::params::{self, Negotiated, Negotiation, NegotiationError, Params, Role, SessionType};
use crate::text::{
    self, Collector, NOT_UNDERSTOOD, REJECT, Segments, TEXT_BEFORE_AUTHENTICATION_MAX, TEXT_MAX, TextError,
    parse_binary, parse_list, parse_number,
};
use crate::wire::{CmdSn, Isid, Itt, LoginRequest, LoginResponse, LoginStatus, Stage, StatSn, VERSION};

/// What every login at a portal has in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Commands the initiator may send at once: MaxCmdSN = ExpCmdSN + this - 1.
    pub command_window: u32,
    /// Largest data segment of our login responses, 64..=8192 bytes.
    pub segment_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self { command_window: 128, segment_max: SEGMENT_LENGTH_MAX }
    }
}

/// Who wants what, by the initiator's own words: nothing is proven yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// InitiatorName.
    pub initiator_name: IscsiName,
    /// InitiatorAlias, made printable.
    pub initiator_alias: Option<String>,
    /// TargetName; always present in a normal session.
    pub target_name: Option<IscsiName>,
    /// SessionType.
    pub session_type: SessionType,
    /// Initiator part of the session identifier.
    pub isid: Isid,
    /// 0 asks for a new session; otherwise a connection is to be added to that session.
    pub tsih: u16,
    /// Connection identifier.
    pub cid: u16,
}

/// What is required of an initiator.
#[derive(Debug, Clone)]
pub enum AuthRequirement {
    /// Nothing.
    None,
    /// CHAP.
    Chap(ChapPolicy),
}

/// How CHAP is to be done.
#[derive(Debug, Clone)]
pub struct ChapPolicy {
    /// Who may log in; several entries of one user are alternatives (a secret being changed).
    pub accounts: Vec<ChapAccount>,
    /// How this target proves itself to an initiator that asks for it. Its secret must differ from every account's
    /// (§12.1.3): otherwise an initiator's question could be answered with the initiator's own answer.
    pub mutual: Option<ChapAccount>,
    /// Accepted hashes, most preferred first.
    pub algorithms: Algorithms,
}

/// The answer to [`Step::Identify`].
#[derive(Debug, Clone)]
pub struct Policy {
    /// What is required.
    pub auth: AuthRequirement,
    /// TargetPortalGroupTag of the portal.
    pub portal_group_tag: u16,
    /// TargetAlias, for people.
    pub target_alias: Option<String>,
    /// What we want; must be valid ([`Params::validate`]).
    pub params: Params,
}

/// A login refused, or sent elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Class 1, 2 or 3.
    pub status: LoginStatus,
    /// Where to go, with class 1.
    pub target_address: Option<TargetAddress>,
}

impl From<LoginStatus> for Refusal {
    fn from(status: LoginStatus) -> Self {
        Self { status, target_address: None }
    }
}

/// Most characters of a CHAP name that are kept for the log.
const CLAIMED_CHARS_MAX: usize = 255;

/// Why an initiator did not prove itself: for the target's log. On the wire all of them are status 0201.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Denial {
    /// AuthMethod without CHAP, or no security stage.
    #[error("CHAP is required, and the initiator does not offer it")]
    NotOffered,
    /// CHAP_A has no hash that the policy permits.
    #[error("no hash in common for CHAP")]
    Algorithm,
    /// CHAP_N or CHAP_R is missing or malformed.
    #[error("no response to the CHAP challenge")]
    NoResponse,
    /// There is no account of this name.
    #[error("CHAP user {0:?} has no account here")]
    UnknownUser(String),
    /// CHAP_R is not that of the account's secret.
    #[error("wrong secret of CHAP user {0:?}")]
    Secret(String),
    /// The initiator's own challenge cannot be answered.
    #[error(
        "CHAP user {0:?} asks for mutual authentication: its account has none, or both secrets are equal"
    )]
    Mutual(String),
}

/// A PDU to send. `header.data_segment_length` is the length of `text`, padding not included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// Header.
    pub header: LoginResponse,
    /// Data segment.
    pub text: Vec<u8>,
}

/// Everything agreed; only the session's handle is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Complete {
    /// Who wants what.
    pub identity: Identity,
    /// The agreed parameters.
    pub negotiated: Negotiated,
    /// The CHAP user, if CHAP was required.
    pub authenticated_as: Option<String>,
    /// The portal group.
    pub portal_group_tag: u16,
    /// The session's first CmdSN, which is the next one expected.
    pub exp_cmd_sn: CmdSn,
    /// Last CmdSN the initiator was or will be told it may use.
    pub max_cmd_sn: CmdSn,
    /// StatSN of the first response after login.
    pub stat_sn: StatSn,
}

/// What is to be done next.
#[derive(Debug)]
pub enum Step {
    /// Send this, wait for the next request.
    Respond(Response),
    /// Find out about these names, then call [`Login::identify`].
    Identify(Identity),
    /// Make the session, then call [`Login::accept`] or [`Login::refuse`].
    Complete(Box<Complete>),
    /// Send this and close the connection.
    Refused(Response),
}

#[derive(Debug)]
enum Security {
    /// AuthMethod not chosen.
    Undecided,
    /// CHAP chosen, CHAP_A expected.
    ExpectAlgorithm,
    /// Challenge sent.
    ExpectResponse { algorithm: Algorithm, challenge: Challenge },
    /// Nothing (more) required.
    Done,
}

/// Fixed by the first request, repeated by the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct First {
    isid: Isid,
    tsih: u16,
    itt: Itt,
    cid: u16,
    cmd_sn: CmdSn,
}

#[derive(Debug)]
enum Phase {
    /// The first text is arriving.
    ExpectNames,
    /// The caller is asked about the names in this text.
    Identifying { text: Vec<u8>, identity: Identity },
    /// Policy known.
    Negotiating(Box<Negotiating>),
    /// Agreed; the caller makes a session.
    Completing,
    /// The last response was returned.
    Over,
}

#[derive(Debug)]
struct Negotiating {
    identity: Identity,
    policy: Policy,
    security: Security,
    auth_method_seen: bool,
    authenticated_as: Option<String>,
    /// CHAP_N with a response, before it is verified, and after.
    claimed: Option<(String, bool)>,
    negotiation: Negotiation,
}

/// One login at a target.
#[derive(Debug)]
pub struct Login {
    config: Config,
    entropy: Entropy,
    first: Option<First>,
    stage: Stage,
    stat_sn: StatSn,
    requests: u32,
    bytes: usize,
    collector: Collector,
    outgoing: Segments,
    /// T and NSG of the request being answered.
    transit: Option<Stage>,
    /// Where the response being sent goes to with its last segment.
    grant: Option<Stage>,
    denial: Option<Denial>,
    phase: Phase,
}

impl Login {
    /// Begins. `entropy` must be fresh from the system's generator: the CHAP challenge comes from it.
    ///
    /// Panics when `config` is out of its ranges.
    #[must_use]
    pub fn new(config: Config, entropy: Entropy) -> Self {
        assert!((SEGMENT_LENGTH_MIN..=SEGMENT_LENGTH_MAX).contains(&config.segment_max));
        assert!((1..1 << 31).contains(&config.command_window));
        Self {
            config,
            entropy,
            first: None,
            stage: Stage::Security,
            stat_sn: StatSn(0),
            requests: 0,
            bytes: 0,
            collector: Collector::new(),
            outgoing: Segments::default(),
            transit: None,
            grant: None,
            denial: None,
            phase: Phase::ExpectNames,
        }
    }

    /// Takes a request with its data segment (without padding).
    ///
    /// A request that comes before the last one was answered (while the caller looks names up or ends an old
    /// session), or after the end, is refused: [`identify`](Self::identify) and [`accept`](Self::accept) must not
    /// be called any more then, see [`is_over`](Self::is_over).
    pub fn receive(&mut self, request: &LoginRequest, segment: &[u8]) -> Step {
        if !matches!(self.phase, Phase::ExpectNames | Phase::Negotiating(_)) {
            return self.refused(LoginStatus::InitiatorError.into());
        }
        match self.try_receive(request, segment) {
            Ok(step) => step,
            Err(status) => self.refused(status.into()),
        }
    }

    fn try_receive(&mut self, request: &LoginRequest, segment: &[u8]) -> Result<Step, LoginStatus> {
        self.check_header(request)?;
        self.requests += 1;
        self.bytes += segment.len();
        let (requests_max, bytes_max) = if self.is_authenticated() {
            (REQUESTS_MAX, TEXT_MAX)
        } else {
            (REQUESTS_BEFORE_AUTHENTICATION_MAX, TEXT_BEFORE_AUTHENTICATION_MAX)
        };
        if self.requests > requests_max || self.bytes > bytes_max || segment.len() > SEGMENT_LENGTH_MAX {
            return Err(LoginStatus::InitiatorError);
        }
        self.transit = request.transit.then_some(request.nsg);
        if self.outgoing.has_more() {
            // §6.2: while our C bit is set, the initiator only asks for more.
            if request.continues || !segment.is_empty() {
                return Err(LoginStatus::InitiatorError);
            }
            return self.send();
        }
        match self.collector.push(segment, request.continues, bytes_max).map_err(of_text)? {
            None => Ok(Step::Respond(self.respond(None, false, Vec::new()))),
            Some(text) => self.on_text(text),
        }
    }

    fn check_header(&mut self, request: &LoginRequest) -> Result<(), LoginStatus> {
        let this = First {
            isid: request.isid,
            tsih: request.tsih,
            itt: request.itt,
            cid: request.cid,
            cmd_sn: request.cmd_sn,
        };
        let stage_expected = match self.first {
            None => {
                self.first = Some(this);
                // The number the initiator names is as good a start as any (§11.13.4 leaves it to us), and the
                // one that initiators with a fixed idea of it have.
                self.stat_sn = request.exp_stat_sn;
                if request.version_min > VERSION {
                    return Err(LoginStatus::UnsupportedVersion);
                }
                self.stage = request.csg;
                request.csg
            }
            Some(first) => {
                // CmdSN of later requests is not compared: some initiators count login requests.
                if (First { cmd_sn: first.cmd_sn, ..this }) != first {
                    return Err(LoginStatus::InitiatorError);
                }
                self.stage
            }
        };
        let forward = !request.transit || request.nsg > request.csg;
        if request.csg != stage_expected || request.csg == Stage::FullFeature || !forward {
            return Err(LoginStatus::InitiatorError);
        }
        Ok(())
    }

    /// Whether the last response was returned, a refusal or the final one.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    /// Whether what is required has been proven.
    #[must_use]
    pub fn is_authenticated(&self) -> bool {
        match &self.phase {
            Phase::Negotiating(negotiating) => matches!(negotiating.security, Security::Done),
            Phase::Completing => true,
            Phase::ExpectNames | Phase::Identifying { .. } | Phase::Over => false,
        }
    }

    fn on_text(&mut self, text: Vec<u8>) -> Result<Step, LoginStatus> {
        if let Phase::ExpectNames = self.phase {
            let first = self.first.expect("set by check_header");
            let identity = identify(&text, &first)?;
            self.phase = Phase::Identifying { text, identity: identity.clone() };
            return Ok(Step::Identify(identity));
        }
        self.negotiate(&text, false)
    }

    /// Answers [`Step::Identify`].
    ///
    /// Panics without an [`Step::Identify`] before, or when `policy.params` is invalid.
    pub fn identify(&mut self, answer: Result<Policy, Refusal>) -> Step {
        let Phase::Identifying { text, identity } = std::mem::replace(&mut self.phase, Phase::ExpectNames)
        else {
            panic!("nobody asked to identify");
        };
        let policy = match answer {
            Ok(policy) => policy,
            Err(refusal) => return self.refused(refusal),
        };
        let required = matches!(policy.auth, AuthRequirement::Chap(_));
        if required && self.stage != Stage::Security {
            // The initiator skipped the stage in which it would have to prove itself.
            self.denial = Some(Denial::NotOffered);
            return self.refused(LoginStatus::AuthenticationFailure.into());
        }
        let negotiation = Negotiation::new(Role::Target, identity.session_type, policy.params.clone());
        self.phase = Phase::Negotiating(Box::new(Negotiating {
            identity,
            policy,
            security: if required { Security::Undecided } else { Security::Done },
            auth_method_seen: false,
            authenticated_as: None,
            claimed: None,
            negotiation,
        }));
        match self.negotiate(&text, true) {
            Ok(step) => step,
            Err(status) => self.refused(status.into()),
        }
    }

    /// Takes one whole text and begins the response to it.
    fn negotiate(&mut self, text: &[u8], is_first: bool) -> Result<Step, LoginStatus> {
        let Phase::Negotiating(negotiating) = &mut self.phase else {
            unreachable!("negotiate is called with a policy");
        };
        let mut answers = Vec::new();
        if is_first && negotiating.identity.session_type == SessionType::Normal {
            // §13.9: in the first response to a request that names the target.
            let tag = negotiating.policy.portal_group_tag.to_string();
            text::emit("TargetPortalGroupTag", &tag, &mut answers);
            if let Some(alias) = &negotiating.policy.target_alias {
                text::emit("TargetAlias", &text::printable(alias), &mut answers);
            }
        }
        negotiating.on_pairs(self.stage, self.transit, text, is_first, &self.entropy, &mut answers)?;

        let may_leave = matches!(negotiating.security, Security::Done);
        let mut grant = self.transit.filter(|_| may_leave);
        if self.stage == Stage::Operational || grant == Some(Stage::FullFeature) {
            negotiating.negotiation.offer(&mut answers);
        }
        // A response with T must not ask anything (§6.3.3).
        let rejected = negotiating.negotiation.take_rejected();
        if grant == Some(Stage::FullFeature) && (rejected || negotiating.negotiation.is_awaiting()) {
            grant = None;
        }
        self.grant = grant;
        self.outgoing = Segments::new(answers);
        self.send()
    }

    /// Sends the next segment of the response, and with the last one changes the stage if the initiator asks for that
    /// in the request being answered.
    fn send(&mut self) -> Result<Step, LoginStatus> {
        let segment_max = self.segment_max();
        if self.outgoing.remaining() > segment_max {
            let (segment, continues) = self.outgoing.next_segment(segment_max);
            let segment = segment.to_vec();
            assert!(continues);
            return Ok(Step::Respond(self.respond(None, true, segment)));
        }
        let grant = self.grant.take().filter(|&stage| self.transit == Some(stage));
        if grant != Some(Stage::FullFeature) {
            let (segment, _) = self.outgoing.next_segment(segment_max);
            let segment = segment.to_vec();
            let response = self.respond(grant, false, segment);
            self.stage = grant.unwrap_or(self.stage);
            return Ok(Step::Respond(response));
        }
        let Phase::Negotiating(negotiating) = &self.phase else {
            unreachable!("there is something to send only with a policy");
        };
        let negotiated = negotiating.negotiation.clone().finish().map_err(|error| of_negotiation(&error))?;
        let first = self.first.expect("a request was received");
        let complete = Complete {
            identity: negotiating.identity.clone(),
            negotiated,
            authenticated_as: negotiating.authenticated_as.clone(),
            portal_group_tag: negotiating.policy.portal_group_tag,
            exp_cmd_sn: first.cmd_sn,
            max_cmd_sn: first.cmd_sn.plus(self.config.command_window - 1),
            stat_sn: self.stat_sn.next(),
        };
        self.phase = Phase::Completing;
        Ok(Step::Complete(Box::new(complete)))
    }

    /// Our limit, and the initiator's if it declared a smaller one already.
    fn segment_max(&self) -> usize {
        let Phase::Negotiating(negotiating) = &self.phase else { return self.config.segment_max };
        self.config.segment_max.min(negotiating.negotiation.send_limit())
    }

    /// The last response of a successful login. `tsih` names the session and is not 0.
    ///
    /// Panics without a [`Step::Complete`] before, or when `tsih` is 0.
    #[must_use]
    pub fn accept(&mut self, tsih: u16) -> Response {
        assert!(matches!(self.phase, Phase::Completing), "nothing to accept");
        assert!(tsih != 0, "TSIH 0 is reserved");
        self.phase = Phase::Over;
        let (segment, continues) = self.outgoing.next_segment(SEGMENT_LENGTH_MAX);
        let segment = segment.to_vec();
        assert!(!continues);
        let mut response = self.respond(Some(Stage::FullFeature), false, segment);
        response.header.tsih = tsih;
        response
    }

    /// The last response of a login that failed for reasons outside: after [`Step::Complete`] or at any other time.
    /// The connection is to be closed after it.
    #[must_use]
    pub fn refuse(&mut self, status: LoginStatus) -> Response {
        match self.refused(status.into()) {
            Step::Refused(response) => response,
            _ => unreachable!("refused() refuses"),
        }
    }

    /// Why the initiator did not prove itself, if that is why the login was refused.
    #[must_use]
    pub const fn denial(&self) -> Option<&Denial> {
        self.denial.as_ref()
    }

    fn refused(&mut self, refusal: Refusal) -> Step {
        assert!(refusal.status.class() != 0, "refused with success");
        if let (Phase::Negotiating(negotiating), LoginStatus::AuthenticationFailure) =
            (&self.phase, refusal.status)
        {
            self.denial = negotiating.denial();
        }
        self.phase = Phase::Over;
        let mut segment = Vec::new();
        if let Some(address) = refusal.target_address {
            text::emit("TargetAddress", &address.to_string(), &mut segment);
        }
        let mut response = self.respond(None, false, segment);
        response.header.status = refusal.status;
        Step::Refused(response)
    }

    fn respond(&mut self, grant: Option<Stage>, continues: bool, text: Vec<u8>) -> Response {
        let first = self.first.unwrap_or(First {
            isid: Isid([0; 6]),
            tsih: 0,
            itt: Itt(0),
            cid: 0,
            cmd_sn: CmdSn(0),
        });
        let header = LoginResponse {
            transit: grant.is_some(),
            continues,
            csg: self.stage,
            nsg: grant.unwrap_or(self.stage),
            version_max: VERSION,
            version_active: VERSION,
            isid: first.isid,
            tsih: first.tsih,
            itt: first.itt,
            stat_sn: self.stat_sn.take(),
            exp_cmd_sn: first.cmd_sn,
            max_cmd_sn: first.cmd_sn.plus(self.config.command_window - 1),
            status: LoginStatus::Success,
            data_segment_length: u32::try_from(text.len()).expect("at most a segment"),
        };
        Response { header, text }
    }
}

fn of_text(_: TextError) -> LoginStatus {
    LoginStatus::InitiatorError
}

fn of_negotiation(_: &NegotiationError) -> LoginStatus {
    LoginStatus::InitiatorError
}

/// Reads the names out of the first text.
fn identify(text: &[u8], first: &First) -> Result<Identity, LoginStatus> {
    let pairs = text::parse(text).map_err(of_text)?;
    let find = |key: &str| {
        let mut found = pairs.iter().filter(|pair| pair.key == key).map(|pair| pair.value);
        match (found.next(), found.next()) {
            (_, Some(_)) => Err(LoginStatus::InitiatorError),
            (value, None) => Ok(value),
        }
    };
    let initiator_name = find("InitiatorName")?.ok_or(LoginStatus::MissingParameter)?;
    let initiator_name = IscsiName::parse(initiator_name).map_err(|_| LoginStatus::InitiatorError)?;
    let session_type = match find("SessionType")? {
        None | Some("Normal") => SessionType::Normal,
        Some("Discovery") => SessionType::Discovery,
        Some(_) => return Err(LoginStatus::SessionTypeNotSupported),
    };
    let target_name = match find("TargetName")? {
        // A name that is none names no target of ours.
        Some(name) => Some(IscsiName::parse(name).map_err(|_| LoginStatus::NotFound)?),
        None if session_type == SessionType::Normal => return Err(LoginStatus::MissingParameter),
        None => None,
    };
    Ok(Identity {
        initiator_name,
        initiator_alias: find("InitiatorAlias")?.map(text::printable),
        target_name,
        session_type,
        isid: first.isid,
        tsih: first.tsih,
        cid: first.cid,
    })
}

impl Negotiating {
    fn on_pairs(
        &mut self,
        stage: Stage,
        transit: Option<Stage>,
        text: &[u8],
        is_first: bool,
        entropy: &Entropy,
        answers: &mut Vec<u8>,
    ) -> Result<(), LoginStatus> {
        let mut pairs = text::parse(text).map_err(of_text)?;
        pairs.sort_by_key(|pair| params::order(pair.key));
        let mut keys = SecurityKeys::default();
        for pair in &pairs {
            match keys.take(pair) {
                Taken::Yes => continue,
                Taken::Duplicate => return Err(LoginStatus::InitiatorError),
                Taken::NotSecurity => {}
            }
            match pair.key {
                "InitiatorName" | "TargetName" | "SessionType" | "InitiatorAlias" => {
                    if !is_first {
                        return Err(LoginStatus::InitiatorError);
                    }
                }
                // Keys of ours that every initiator knows (§13).
                "TargetAddress" | "TargetAlias" | "TargetPortalGroupTag" if pair.value == NOT_UNDERSTOOD => {
                    return Err(LoginStatus::InitiatorError);
                }
                // For the full feature phase, or for the other direction.
                "SendTargets" | "TargetAddress" | "TargetAlias" | "TargetPortalGroupTag" => {
                    text::emit(pair.key, REJECT, answers);
                }
                _ => self
                    .negotiation
                    .on_pair(pair.key, pair.value, answers)
                    .map_err(|error| of_negotiation(&error))?,
            }
        }
        if stage == Stage::Security {
            self.on_security(&keys, transit.is_some(), entropy, answers)
        } else if keys.is_empty() {
            Ok(())
        } else {
            Err(LoginStatus::InitiatorError)
        }
    }

    fn on_security(
        &mut self,
        keys: &SecurityKeys<'_>,
        transit: bool,
        entropy: &Entropy,
        answers: &mut Vec<u8>,
    ) -> Result<(), LoginStatus> {
        if keys.auth_method.is_some() && std::mem::replace(&mut self.auth_method_seen, true) {
            return Err(LoginStatus::InitiatorError);
        }
        let AuthRequirement::Chap(policy) = &self.policy.auth else {
            if let Some(methods) = keys.auth_method {
                if !parse_list(methods).any(|method| method == "None") {
                    return Err(LoginStatus::AuthenticationFailure);
                }
                text::emit("AuthMethod", "None", answers);
            }
            return if keys.has_chap() { Err(LoginStatus::InitiatorError) } else { Ok(()) };
        };
        if matches!(self.security, Security::Undecided) {
            match keys.auth_method {
                Some(methods) if parse_list(methods).any(|method| method == "CHAP") => {
                    text::emit("AuthMethod", "CHAP", answers);
                    self.security = Security::ExpectAlgorithm;
                    // CHAP_A in the same text is answered at once.
                    if keys.algorithm.is_none() {
                        return if keys.has_chap() { Err(LoginStatus::InitiatorError) } else { Ok(()) };
                    }
                }
                None if !transit && !keys.has_chap() => return Ok(()),
                _ => return Err(LoginStatus::AuthenticationFailure),
            }
        }
        match &self.security {
            Security::ExpectAlgorithm => {
                if keys.name.is_some() || keys.response.is_some() || keys.challenge.is_some() {
                    return Err(LoginStatus::InitiatorError);
                }
                let Some(offered) = keys.algorithm else {
                    return if transit { Err(LoginStatus::AuthenticationFailure) } else { Ok(()) };
                };
                let algorithm =
                    policy.algorithms.choose(offered).ok_or(LoginStatus::AuthenticationFailure)?;
                let challenge = Challenge::derive(algorithm, entropy, "target");
                text::emit("CHAP_A", &(algorithm as u8).to_string(), answers);
                text::emit("CHAP_I", &challenge.identifier.to_string(), answers);
                text::emit("CHAP_C", &text::binary(&challenge.bytes), answers);
                self.security = Security::ExpectResponse { algorithm, challenge };
                Ok(())
            }
            Security::ExpectResponse { algorithm, challenge } => {
                let (Some(name), Some(response)) = (keys.name, keys.response) else {
                    return if transit || keys.has_chap() {
                        Err(LoginStatus::AuthenticationFailure)
                    } else {
                        Ok(())
                    };
                };
                if keys.algorithm.is_some() {
                    return Err(LoginStatus::InitiatorError);
                }
                // A name is as long as the login's text at most; a part is enough for the log.
                self.claimed = Some((name.chars().take(CLAIMED_CHARS_MAX).collect(), false));
                policy.verify(*algorithm, challenge, name, response)?;
                self.claimed.iter_mut().for_each(|(_, verified)| *verified = true);
                policy.prove(*algorithm, challenge, keys, answers)?;
                self.authenticated_as = Some(name.to_owned());
                self.security = Security::Done;
                Ok(())
            }
            Security::Done if keys.is_empty() => Ok(()),
            Security::Done => Err(LoginStatus::InitiatorError),
            Security::Undecided => unreachable!("decided above"),
        }
    }
}

impl Negotiating {
    /// Why the initiator has not proven itself.
    fn denial(&self) -> Option<Denial> {
        let AuthRequirement::Chap(policy) = &self.policy.auth else { return None };
        Some(match (&self.security, &self.claimed) {
            (Security::Undecided, _) => Denial::NotOffered,
            (Security::ExpectAlgorithm, _) => Denial::Algorithm,
            (_, None) => Denial::NoResponse,
            (_, Some((user, true))) => Denial::Mutual(user.clone()),
            (_, Some((user, false))) if policy.accounts.iter().any(|account| account.user == *user) => {
                Denial::Secret(user.clone())
            }
            (_, Some((user, false))) => Denial::UnknownUser(user.clone()),
        })
    }
}

impl ChapPolicy {
    /// Verifies the initiator's response. An unknown user costs as much time as a wrong secret, and gets the same
    /// answer.
    fn verify(
        &self,
        algorithm: Algorithm,
        challenge: &Challenge,
        name: &str,
        response: &str,
    ) -> Result<(), LoginStatus> {
        let response =
            parse_binary(response, CHALLENGE_LENGTH_MAX).ok_or(LoginStatus::AuthenticationFailure)?;
        let decoy = Secret::new_weak(&[0; 16]).expect("16 bytes");
        let mut right = false;
        let mut known = false;
        for account in self.accounts.iter().filter(|account| account.user == name) {
            known = true;
            let expected = algorithm.respond(challenge.identifier, &account.secret, &challenge.bytes);
            right |= equal(&expected, &response);
        }
        if !known {
            let expected = algorithm.respond(challenge.identifier, &decoy, &challenge.bytes);
            std::hint::black_box(equal(&expected, &response));
        }
        if right { Ok(()) } else { Err(LoginStatus::AuthenticationFailure) }
    }

    /// Answers the initiator's own challenge, if it sent one.
    fn prove(
        &self,
        algorithm: Algorithm,
        ours: &Challenge,
        keys: &SecurityKeys<'_>,
        answers: &mut Vec<u8>,
    ) -> Result<(), LoginStatus> {
        let (identifier, challenge) = match (keys.identifier, keys.challenge) {
            (None, None) => return Ok(()),
            (Some(identifier), Some(challenge)) => (identifier, challenge),
            _ => return Err(LoginStatus::InitiatorError),
        };
        let identifier = parse_number(identifier)
            .and_then(|identifier| u8::try_from(identifier).ok())
            .ok_or(LoginStatus::InitiatorError)?;
        let challenge = parse_binary(challenge, CHALLENGE_LENGTH_MAX).ok_or(LoginStatus::InitiatorError)?;
        let mutual = self.mutual.as_ref().ok_or(LoginStatus::AuthenticationFailure)?;
        // §12.1.3: our own challenge sent back would make us answer it for the initiator, and equal secrets in both
        // directions would make that answer right.
        let reflected = challenge == ours.bytes;
        let shared = self.accounts.iter().any(|account| account.secret.same_as(&mutual.secret));
        if reflected || shared {
            return Err(LoginStatus::AuthenticationFailure);
        }
        let response = algorithm.respond(identifier, &mutual.secret, &challenge);
        text::emit("CHAP_N", &mutual.user, answers);
        text::emit("CHAP_R", &text::binary(&response), answers);
        Ok(())
    }
}
