//! The part of a target's login that follows the policy: keys of the operational stage, and the security stage with
//! CHAP (RFC 7143 §12.1).

use super::{Account, AuthRequirement, ChapPolicy, Denial, Identity, Policy, of_negotiation, of_text};
use crate::chap::{Algorithm, CHALLENGE_LENGTH_MAX, Challenge, Entropy, Secret, equal};
use crate::login::{NEXT_KEY, NEXT_KEY_VERSION, NextKey, SecurityKeys, Taken};
use crate::params::{self, Negotiation};
use crate::text::{self, NOT_UNDERSTOOD, REJECT, parse_binary, parse_list, parse_number};
use crate::wire::{LoginStatus, Stage};

/// Most characters of a CHAP name that are kept for the log.
const CLAIMED_CHARS_MAX: usize = 255;

#[derive(Debug)]
pub(super) enum Security {
    /// AuthMethod is not chosen yet.
    Undecided,
    /// AuthMethod is CHAP; CHAP_A is expected.
    ExpectAlgorithm,
    /// The challenge is sent; CHAP_N and CHAP_R are expected.
    ExpectResponse { algorithm: Algorithm, challenge: Challenge },
    /// The required proof is complete, or none is required.
    Done,
}

#[derive(Debug)]
pub(super) struct Negotiating {
    pub(super) identity: Identity,
    pub(super) policy: Policy,
    pub(super) security: Security,
    pub(super) auth_method_seen: bool,
    /// CHAP_A was received after AuthMethod was chosen.
    pub(super) algorithm_seen: bool,
    pub(super) authenticated_as: Option<String>,
    /// CHAP_N of a response, and whether that response has been verified.
    pub(super) claimed: Option<(String, bool)>,
    /// The initiator has sent [`NEXT_KEY`].
    pub(super) next_key_seen: bool,
    pub(super) negotiation: Negotiation,
}

impl Negotiating {
    pub(super) fn on_pairs(
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
                // Keys of a target that every initiator must understand (§13).
                "TargetAddress" | "TargetAlias" | "TargetPortalGroupTag" if pair.value == NOT_UNDERSTOOD => {
                    return Err(LoginStatus::InitiatorError);
                }
                // Keys of the full feature phase, or of the other direction.
                "SendTargets" | "TargetAddress" | "TargetAlias" | "TargetPortalGroupTag" => {
                    text::emit(pair.key, REJECT, answers);
                }
                NEXT_KEY if self.policy.next_key != NextKey::Unsaid => {
                    self.on_next_key(pair.value, answers)?;
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

    /// Answers [`NEXT_KEY`], once in a login.
    fn on_next_key(&mut self, versions: &str, answers: &mut Vec<u8>) -> Result<(), LoginStatus> {
        if std::mem::replace(&mut self.next_key_seen, true) {
            return Err(LoginStatus::InitiatorError);
        }
        match &self.policy.next_key {
            NextKey::Announced(announcement) if parse_list(versions).any(|one| one == NEXT_KEY_VERSION) => {
                text::emit(NEXT_KEY, &text::base64(announcement), answers);
            }
            _ => text::emit(NEXT_KEY, "None", answers),
        }
        Ok(())
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
            self.security = choose_method(policy, keys, transit, answers)?;
            match self.security {
                // CHAP_A in the same text is answered in the same response.
                Security::ExpectAlgorithm if keys.algorithm.is_some() => {}
                _ if keys.has_chap() => return Err(LoginStatus::InitiatorError),
                _ => return Ok(()),
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
                self.algorithm_seen = true;
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
                // A name may be as long as the text of a login; the log keeps its first characters.
                self.claimed = Some((name.chars().take(CLAIMED_CHARS_MAX).collect(), false));
                policy.verify(*algorithm, challenge, name, response)?;
                self.claimed.iter_mut().for_each(|(_, verified)| *verified = true);
                policy.prove(*algorithm, challenge, (name, keys), answers)?;
                self.authenticated_as = Some(name.to_owned());
                self.security = Security::Done;
                Ok(())
            }
            Security::Done if keys.is_empty() => Ok(()),
            Security::Done => Err(LoginStatus::InitiatorError),
            Security::Undecided => unreachable!("decided above"),
        }
    }

    pub(super) fn denial(&self) -> Option<Denial> {
        let AuthRequirement::Chap(policy) = &self.policy.auth else { return None };
        Some(match (&self.security, &self.claimed) {
            (Security::Undecided, _) => Denial::NotOffered,
            (Security::ExpectAlgorithm, _) if self.algorithm_seen => Denial::Algorithm,
            (Security::ExpectAlgorithm, _) => Denial::NoAlgorithm,
            (_, None) => Denial::NoResponse,
            (_, Some((user, true))) => Denial::Mutual(user.clone()),
            (_, Some((user, false))) if policy.of(user).next().is_some() => Denial::Secret(user.clone()),
            (_, Some((user, false))) => Denial::UnknownUser(user.clone()),
        })
    }
}

/// The state after the initiator's AuthMethod list, or its absence, is answered.
fn choose_method(
    policy: &ChapPolicy,
    keys: &SecurityKeys<'_>,
    transit: bool,
    answers: &mut Vec<u8>,
) -> Result<Security, LoginStatus> {
    let accepted = |method: &&str| *method == "CHAP" || !policy.required && *method == "None";
    match keys.auth_method.and_then(|methods| parse_list(methods).find(accepted)) {
        Some("None") => {
            text::emit("AuthMethod", "None", answers);
            Ok(Security::Done)
        }
        Some(_) => {
            text::emit("AuthMethod", "CHAP", answers);
            Ok(Security::ExpectAlgorithm)
        }
        None if keys.auth_method.is_some() || keys.has_chap() => Err(LoginStatus::AuthenticationFailure),
        None if !transit => Ok(Security::Undecided),
        None if policy.required => Err(LoginStatus::AuthenticationFailure),
        None => Ok(Security::Done),
    }
}

impl ChapPolicy {
    fn of(&self, user: &str) -> impl Iterator<Item = &Account> {
        self.accounts.iter().filter(move |account| account.initiator.user == user)
    }

    /// Verifies the initiator's response. An unknown user takes the same time as a wrong secret and returns the same
    /// status.
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
        for account in self.of(name) {
            known = true;
            let expected =
                algorithm.respond(challenge.identifier, &account.initiator.secret, &challenge.bytes);
            right |= equal(&expected, &response);
        }
        if !known {
            let expected = algorithm.respond(challenge.identifier, &decoy, &challenge.bytes);
            std::hint::black_box(equal(&expected, &response));
        }
        if right { Ok(()) } else { Err(LoginStatus::AuthenticationFailure) }
    }

    fn prove(
        &self,
        algorithm: Algorithm,
        ours: &Challenge,
        (name, keys): (&str, &SecurityKeys<'_>),
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
        let mutual = self.of(name).find_map(|account| account.mutual.as_ref());
        let mutual = mutual.ok_or(LoginStatus::AuthenticationFailure)?;
        // §12.1.3: if the initiator returned the target's own challenge, the target would compute the response to it;
        // with equal secrets in both directions that response would authenticate the initiator.
        let reflected = challenge == ours.bytes;
        let shared = self.accounts.iter().any(|account| account.initiator.secret.same_as(&mutual.secret));
        if reflected || shared {
            return Err(LoginStatus::AuthenticationFailure);
        }
        let response = algorithm.respond(identifier, &mutual.secret, &challenge);
        text::emit("CHAP_N", &mutual.user, answers);
        text::emit("CHAP_R", &text::binary(&response), answers);
        Ok(())
    }
}
