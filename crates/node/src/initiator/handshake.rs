//! The start of a sealed session: the outer login and its handshake (docs/SEAL.md, sections 2 and 3).

use std::sync::Arc;
use std::time::Duration;

use iscsi::login::outer::initiator::{Event, Exchange, Offer};
use iscsi::login::outer::{Choice, Pattern, Transcript};
use iscsi::login::{NextKey, initiator as login};
use iscsi::params::DigestPolicy;
use iscsi::wire::LoginStatus;
use seal::{Binding, Broken, Channel, Identity, PublicKey, Suite};
use zeroize::Zeroizing;

use super::options::InitiatorSealing;
use super::session::Failure;
use super::trust::Announced;
use crate::sealing::{Protection, Psk, SealPolicy};
use crate::stream::sealed_segment_max;

const TIME_MAX: Duration = Duration::from_secs(15);

const NOT_THE_TARGET: &str =
    "the seal was refused: one of the two keys, or the pre-shared key, is not what the other side expects";

pub(super) struct Handshake {
    pub(super) exchange: Exchange,
    sealing: InitiatorSealing,
    choice: Option<Choice>,
    initiator: Option<seal::Initiator>,
}

pub(super) struct Agreement {
    pub(super) channel: Channel,
    pub(super) unit: u32,
    pub(super) protection: Protection,
    pub(super) announcing: Announcing,
}

/// Verifies the announcement in the login of a sealed session.
pub(super) struct Announcing {
    binding: Binding,
    identity: Arc<Identity>,
    target: PublicKey,
}

impl Announcing {
    /// An announcement that does not verify is an error: the target made it for this connection, within the seal.
    pub(super) fn verify(&self, said: &NextKey) -> Result<Announced, Failure> {
        match said {
            NextKey::Unsaid => Ok(Announced::Nothing),
            NextKey::Kept => Ok(Announced::Kept),
            NextKey::Announced(bytes) => match self.binding.accept(&self.identity, self.target, bytes) {
                Ok(next) => Ok(Announced::Next(next)),
                Err(Broken) => {
                    Err(Failure::Lost("the announcement of the target's next key is not valid".into()))
                }
            },
        }
    }
}

impl Handshake {
    pub(super) fn begin(sealing: &InitiatorSealing, login: &login::Config, now: Duration) -> Self {
        let offer = Offer {
            initiator_name: login.initiator_name.clone(),
            isid: login.isid,
            cid: login.cid,
            session_type: login.session_type,
            target_name: login.target_name.clone(),
            plain: sealing.policy == SealPolicy::Offer,
            suites: sealing.suites.iter().map(|suite| suite.name().to_owned()).collect(),
            unit: sealing.unit,
            pattern: Pattern::IkPsk2,
        };
        let exchange = Exchange::new(offer, now + TIME_MAX);
        Self { exchange, sealing: sealing.clone(), choice: None, initiator: None }
    }

    pub(super) fn advance(&mut self) -> Result<Option<Agreement>, Failure> {
        match self.exchange.poll_event() {
            None => Ok(None),
            Some(Event::Chosen { choice, transcript }) => {
                self.start(choice, &transcript)?;
                Ok(None)
            }
            Some(Event::Answer(answer)) => self.finish(&answer).map(Some),
            Some(Event::Declined) if self.sealing.policy == SealPolicy::Offer => Err(Failure::Declined),
            Some(Event::Declined) => Err(Failure::Seal("the target does not seal, which is required".into())),
            Some(Event::Refused(LoginStatus::AuthenticationFailure)) => {
                Err(Failure::Seal(NOT_THE_TARGET.into()))
            }
            Some(Event::Refused(status)) => Err(Failure::Login(login::LoginError::Refused(status))),
            Some(Event::Redirect(redirect)) => Err(Failure::Redirect(redirect)),
        }
    }

    fn start(&mut self, choice: Choice, transcript: &Transcript) -> Result<(), Failure> {
        let mut entropy = Zeroizing::new([0; 128]);
        io::entropy(entropy.as_mut_slice())
            .map_err(|error| Failure::Lost(format!("no randomness for the handshake: {error}")))?;
        let InitiatorSealing { identity, peer_key, psk, .. } = &self.sealing;
        let psk = psk.as_ref().map(Psk::bytes);
        let suite = suite_of(&choice)?;
        let (initiator, message) =
            seal::Initiator::start(identity, *peer_key, &transcript.prologue(), psk, suite, &entropy);
        self.exchange.send_message(&message);
        (self.initiator, self.choice) = (Some(initiator), Some(choice));
        Ok(())
    }

    fn finish(&mut self, answer: &[u8]) -> Result<Agreement, Failure> {
        let (Some(initiator), Some(choice)) = (self.initiator.take(), self.choice.take()) else {
            return Err(Failure::Lost("an answer to nothing".into()));
        };
        let channel = initiator.finish(answer).map_err(|_| Failure::Unverified)?;
        let (suite, unit, peer_key) = (suite_of(&choice)?, choice.unit, self.sealing.peer_key);
        let identity = Arc::clone(&self.sealing.identity);
        let announcing = Announcing { binding: channel.binding.clone(), identity, target: peer_key };
        let protection = Protection::Sealed { suite, unit, peer_key };
        Ok(Agreement { channel, unit, protection, announcing })
    }
}

fn suite_of(choice: &Choice) -> Result<Suite, Failure> {
    Suite::from_name(&choice.suite).ok_or_else(|| Failure::Lost("a suite that was not offered".into()))
}

/// The login parameters inside a sealed session: no digests, segments short enough for one record head to describe, and
/// the question for the next key.
pub(super) fn within_seal(login: &login::Config, unit: u32) -> login::Config {
    let mut login = login.clone();
    let params = &mut login.params;
    (params.header_digest, params.data_digest) = (DigestPolicy::Off, DigestPolicy::Off);
    login.asks_next_key = true;
    let segment_max = &mut params.max_recv_data_segment_length;
    *segment_max = sealed_segment_max(unit).min(*segment_max);
    login
}
