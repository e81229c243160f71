//! The target's side of login.
//!
//! ```text
//! receive ──► Respond ──► receive ...
//!        ├──► Identify ──► identify(policy or refusal) ──► Respond | Complete | Refused
//!        ├──► Complete ──► accept(tsih) or refuse(status): the last response
//!        └──► Refused: send it, close the connection
//! ```
//!
//! The machine does not decide who may log in: the first request names initiator and target, [`Step::Identify`] returns
//! these names, and [`Login::identify`] takes the policy for them. The last response waits for [`Login::accept`]: the
//! tasks of an older session with the same ISID must have ended before the login of the new one is answered (§6.3.5).

mod negotiating;

use negotiating::{Negotiating, Security};

use super::{
    ChapAccount, NextKey, REQUESTS_BEFORE_AUTHENTICATION_MAX, REQUESTS_MAX, SEGMENT_LENGTH_MAX,
    SEGMENT_LENGTH_MIN,
};
use crate::chap::{Algorithms, Entropy};
use crate::name::{IscsiName, TargetAddress};
use crate::params::{Negotiated, Negotiation, NegotiationError, Params, Role, SessionType};
use crate::text::{self, Collector, Segments, TEXT_BEFORE_AUTHENTICATION_MAX, TEXT_MAX, TextError};
use crate::wire::{CmdSn, Isid, Itt, LoginRequest, LoginResponse, LoginStatus, Stage, StatSn, VERSION};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Size of the command window: MaxCmdSN = ExpCmdSN + `command_window` - 1.
    pub command_window: u32,
    /// Largest data segment of the login responses, 64..=8192 bytes.
    pub segment_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self { command_window: 128, segment_max: SEGMENT_LENGTH_MAX }
    }
}

/// The names and numbers of the first request: claimed by the initiator, not verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub initiator_name: IscsiName,
    /// InitiatorAlias, with control characters replaced.
    pub initiator_alias: Option<String>,
    /// TargetName; always present in a normal session.
    pub target_name: Option<IscsiName>,
    pub session_type: SessionType,
    pub isid: Isid,
    /// 0 requests a new session; otherwise the connection is to join the session of this TSIH.
    pub tsih: u16,
    pub cid: u16,
}

#[derive(Debug, Clone)]
pub enum AuthRequirement {
    None,
    Chap(ChapPolicy),
}

#[derive(Debug, Clone)]
pub struct ChapPolicy {
    /// Users who may log in; several entries of one user are alternatives, for the time in which a secret changes.
    pub accounts: Vec<Account>,
    /// Accepted hashes, most preferred first.
    pub algorithms: Algorithms,
    /// If false, an initiator that prefers AuthMethod=None, or skips the security stage, is admitted without proof; one
    /// that chooses CHAP must pass it.
    pub required: bool,
}

#[derive(Debug, Clone)]
pub struct Account {
    pub initiator: ChapAccount,
    /// User and secret with which the target answers this initiator's challenge. The secret must differ from every
    /// initiator's (§12.1.3): with equal secrets, an initiator could return the target's own response as its proof.
    pub mutual: Option<ChapAccount>,
}

#[derive(Debug, Clone)]
pub struct Policy {
    pub auth: AuthRequirement,
    pub portal_group_tag: u16,
    pub target_alias: Option<String>,
    /// Parameters to negotiate; must be valid ([`Params::validate`]).
    pub params: Params,
    /// The answer to [`NEXT_KEY`](super::NEXT_KEY); with [`NextKey::Unsaid`] the key is not understood.
    pub next_key: NextKey,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub status: LoginStatus,
    /// New address of the target, with class 1.
    pub target_address: Option<TargetAddress>,
}

impl From<LoginStatus> for Refusal {
    fn from(status: LoginStatus) -> Self {
        Self { status, target_address: None }
    }
}

/// Why authentication failed: for the target's log. On the wire each of them is status 0201.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Denial {
    /// AuthMethod lacks CHAP, or the initiator skipped the security stage.
    #[error("CHAP is required, and the initiator does not offer it")]
    NotOffered,
    /// The initiator requests the end of the security stage without CHAP_A.
    #[error("the initiator proposes no hash for CHAP")]
    NoAlgorithm,
    #[error("no hash in common for CHAP")]
    Algorithm,
    /// CHAP_N or CHAP_R is missing or malformed.
    #[error("no response to the CHAP challenge")]
    NoResponse,
    #[error("CHAP user {0:?} has no account here")]
    UnknownUser(String),
    #[error("wrong secret of CHAP user {0:?}")]
    Secret(String),
    /// The initiator's challenge cannot be answered.
    #[error(
        "CHAP user {0:?} requests mutual authentication: its account has none, or both secrets are equal"
    )]
    Mutual(String),
}

/// A PDU to send. `header.data_segment_length` is the length of `text`, padding not included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    pub header: LoginResponse,
    pub text: Vec<u8>,
}

/// The result of a successful login, complete except for the TSIH.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Complete {
    pub identity: Identity,
    pub negotiated: Negotiated,
    pub authenticated_as: Option<String>,
    pub portal_group_tag: u16,
    /// CmdSN of the session's first command, the next one expected.
    pub exp_cmd_sn: CmdSn,
    /// Last CmdSN of the window that the login responses announce.
    pub max_cmd_sn: CmdSn,
    /// StatSN of the first response after login.
    pub stat_sn: StatSn,
}

#[derive(Debug)]
pub enum Step {
    /// Send the response, then wait for the next request.
    Respond(Response),
    /// Look up the policy for these names, then call [`Login::identify`].
    Identify(Identity),
    /// Create the session, then call [`Login::accept`] or [`Login::refuse`].
    Complete(Box<Complete>),
    /// Send the response and close the connection.
    Refused(Response),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct First {
    isid: Isid,
    tsih: u16,
    itt: Itt,
    cid: u16,
    cmd_sn: CmdSn,
}

#[derive(Debug)]
enum State {
    ExpectNames,
    Identifying {
        text: Vec<u8>,
        identity: Identity,
    },
    /// The policy is known; keys are negotiated.
    Negotiating(Box<Negotiating>),
    Completing,
    /// The last response was returned.
    Over,
}

/// One login at a target: the caller passes each Login Request to [`receive`](Self::receive) and acts on the returned
/// [`Step`]; after [`Step::Identify`] and [`Step::Complete`] it calls the method named there before the next `receive`.
/// Between calls the machine holds the incomplete text of either side and the state of the negotiation.
/// [`is_over`](Self::is_over) is true after its last response.
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
    /// T and NSG of the request that the current response answers.
    transit: Option<Stage>,
    /// Stage to which the last segment of the current response transits.
    grant: Option<Stage>,
    denial: Option<Denial>,
    state: State,
}

impl Login {
    /// Starts a login. `entropy` must be fresh from the system's generator: the CHAP challenge is derived from it.
    /// Panics if `config` is out of its ranges.
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
            state: State::ExpectNames,
        }
    }

    /// Takes a request with its data segment (without padding).
    ///
    /// A request that arrives before the previous one was answered (while the caller looks up a policy or ends an older
    /// session), or after the last response, is refused. Then [`is_over`](Self::is_over) is true, and
    /// [`identify`](Self::identify) and [`accept`](Self::accept) must not be called.
    pub fn receive(&mut self, request: &LoginRequest, segment: &[u8]) -> Step {
        if !matches!(self.state, State::ExpectNames | State::Negotiating(_)) {
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
            // §6.2: while the target's C bit is set, the initiator sends only empty requests.
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
                // §11.13.4 leaves the first StatSN to the target. The ExpStatSN of the first request also suits
                // initiators that expect a fixed number.
                self.stat_sn = request.exp_stat_sn;
                if request.version_min > VERSION {
                    return Err(LoginStatus::UnsupportedVersion);
                }
                self.stage = request.csg;
                request.csg
            }
            Some(first) => {
                // CmdSN of later requests is not compared: some initiators increment it for each login request.
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
        matches!(self.state, State::Over)
    }

    #[must_use]
    pub fn is_authenticated(&self) -> bool {
        match &self.state {
            State::Negotiating(negotiating) => matches!(negotiating.security, Security::Done),
            State::Completing => true,
            State::ExpectNames | State::Identifying { .. } | State::Over => false,
        }
    }

    fn on_text(&mut self, text: Vec<u8>) -> Result<Step, LoginStatus> {
        if let State::ExpectNames = self.state {
            let first = self.first.expect("set by check_header");
            let identity = identify(&text, &first)?;
            self.state = State::Identifying { text, identity: identity.clone() };
            return Ok(Step::Identify(identity));
        }
        self.negotiate(&text, false)
    }

    /// Takes the caller's answer to [`Step::Identify`]. Panics unless a [`Step::Identify`] is unanswered, and if
    /// `policy.params` is invalid.
    pub fn identify(&mut self, answer: Result<Policy, Refusal>) -> Step {
        let State::Identifying { text, identity } = std::mem::replace(&mut self.state, State::ExpectNames)
        else {
            panic!("no Identify is unanswered");
        };
        let policy = match answer {
            Ok(policy) => policy,
            Err(refusal) => return self.refused(refusal),
        };
        let skipped = self.stage != Stage::Security;
        let may_prove = match &policy.auth {
            AuthRequirement::Chap(chap) if chap.required && skipped => {
                self.denial = Some(Denial::NotOffered);
                return self.refused(LoginStatus::AuthenticationFailure.into());
            }
            AuthRequirement::Chap(_) => !skipped,
            AuthRequirement::None => false,
        };
        let negotiation = Negotiation::new(Role::Target, identity.session_type, policy.params.clone());
        self.state = State::Negotiating(Box::new(Negotiating {
            identity,
            policy,
            security: if may_prove { Security::Undecided } else { Security::Done },
            auth_method_seen: false,
            algorithm_seen: false,
            next_key_seen: false,
            authenticated_as: None,
            claimed: None,
            negotiation,
        }));
        match self.negotiate(&text, true) {
            Ok(step) => step,
            Err(status) => self.refused(status.into()),
        }
    }

    /// Takes one complete text and starts the response to it.
    fn negotiate(&mut self, text: &[u8], is_first: bool) -> Result<Step, LoginStatus> {
        let State::Negotiating(negotiating) = &mut self.state else {
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
        // A response with T must not contain an offer (§6.3.3).
        let rejected = negotiating.negotiation.take_rejected();
        if grant == Some(Stage::FullFeature) && (rejected || negotiating.negotiation.is_awaiting()) {
            grant = None;
        }
        self.grant = grant;
        self.outgoing = Segments::new(answers);
        self.send()
    }

    /// Returns the next segment of the response; the last segment changes the stage if the request being answered asks
    /// for the change with T.
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
        let State::Negotiating(negotiating) = &self.state else {
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
        self.state = State::Completing;
        Ok(Step::Complete(Box::new(complete)))
    }

    /// The configured limit, or the initiator's declared one if smaller; bytes.
    fn segment_max(&self) -> usize {
        let State::Negotiating(negotiating) = &self.state else { return self.config.segment_max };
        self.config.segment_max.min(negotiating.negotiation.send_limit())
    }

    /// The last response of a successful login. `tsih` identifies the session and is not 0. Panics unless a
    /// [`Step::Complete`] is unanswered, and if `tsih` is 0.
    #[must_use]
    pub fn accept(&mut self, tsih: u16) -> Response {
        assert!(matches!(self.state, State::Completing), "nothing to accept");
        assert!(tsih != 0, "TSIH 0 is reserved");
        self.state = State::Over;
        let (segment, continues) = self.outgoing.next_segment(SEGMENT_LENGTH_MAX);
        let segment = segment.to_vec();
        assert!(!continues);
        let mut response = self.respond(Some(Stage::FullFeature), false, segment);
        response.header.tsih = tsih;
        response
    }

    /// The last response of a login that fails for a reason outside the protocol; callable in any phase. The caller
    /// then closes the connection.
    #[must_use]
    pub fn refuse(&mut self, status: LoginStatus) -> Response {
        match self.refused(status.into()) {
            Step::Refused(response) => response,
            _ => unreachable!("refused() refuses"),
        }
    }

    #[must_use]
    pub const fn denial(&self) -> Option<&Denial> {
        self.denial.as_ref()
    }

    fn refused(&mut self, refusal: Refusal) -> Step {
        assert!(refusal.status.class() != 0, "refused with success");
        if let (State::Negotiating(negotiating), LoginStatus::AuthenticationFailure) =
            (&self.state, refusal.status)
        {
            self.denial = negotiating.denial();
        }
        self.state = State::Over;
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
        // A malformed name cannot be the name of a target here.
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
