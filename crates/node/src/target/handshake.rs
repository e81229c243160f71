//! The beginning of a connection where sealing is configured: the outer login and its handshake (docs/SEAL.md, sections 2
//! and 3). It ends in an ordinary login, in records, or in a refusal.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use iscsi::login::outer::target::{Event, Exchange, First, Offered};
use iscsi::login::outer::{Choice, Pattern, Transcript};
use iscsi::machine::{Fatal, Machine};
use iscsi::wire::LoginStatus;
use seal::{Broken, Channel, PublicKey, Responder, Suite};
use zeroize::Zeroizing;

use super::allowance::Allowance;
use super::config::{Sealing, ServerConfig};
use super::login::{self, Way};

/// Time the outer login may take.
const TIME_MAX: Duration = Duration::from_secs(15);

/// The allowance of handshakes that all threads share.
#[derive(Debug, Default)]
pub(super) struct Handshakes(Mutex<Allowance>);

impl Handshakes {
    fn admit(&self, peer: IpAddr, now: Duration) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).admit(peer, now)
    }
}

/// What a connection goes on with.
pub(super) enum Next {
    /// More of the same.
    Wait,
    /// An ordinary login, which begins with this PDU.
    Ordinary(First),
    /// Once what is queued is sent, the connection ends.
    End(String),
}

/// What both sides have agreed on.
pub(super) struct Agreement {
    pub(super) channel: Channel,
    pub(super) suite: Suite,
    pub(super) unit: u32,
    /// Who it is, if the first record opens.
    pub(super) peer_key: PublicKey,
}

/// Why a message is not answered.
enum Refused {
    Broken,
    /// Whose key this is has made a right message, and is not among the peers.
    Stranger(PublicKey),
}

impl From<Broken> for Refused {
    fn from(Broken: Broken) -> Self {
        Self::Broken
    }
}

/// An outer login.
pub(super) struct Handshake {
    pub(super) exchange: Exchange,
    choice: Option<Choice>,
    agreement: Option<Agreement>,
}

impl Handshake {
    /// For a connection accepted just now, if anything is to be sealed.
    pub(super) fn begin(config: &ServerConfig, now: Duration) -> Option<Self> {
        let way = login::way(config, true);
        (way == Way::Sealed).then(|| Self {
            exchange: Exchange::new(now + TIME_MAX),
            choice: None,
            agreement: None,
        })
    }

    /// Acts on what has come from `peer`.
    pub(super) fn advance(
        &mut self,
        config: &ServerConfig,
        handshakes: &Handshakes,
        peer: IpAddr,
        now: Duration,
    ) -> Next {
        let Some(event) = self.exchange.poll_event() else { return Next::Wait };
        let sealing = config.sealing.as_ref().expect("there is no handshake without");
        match event {
            Event::Ordinary => match login::way(config, false) {
                Way::Refused(status) => self.refuse(status, "it does not seal, which is required"),
                Way::Plain | Way::Sealed => Next::Ordinary(self.exchange.decline()),
            },
            Event::Offered(offered) => self.on_offer(sealing, &offered),
            // An offer costs nothing, so that nobody can use up with offers what others need.
            Event::Message { .. } if !handshakes.admit(peer, now) => {
                self.refuse(LoginStatus::ServiceUnavailable, "too many handshakes at once")
            }
            Event::Message { message, transcript } => {
                let answer = match self.choice.as_ref().map(|choice| choice.pattern) {
                    Some(Pattern::Xx) => enquiry(sealing, &message, &transcript).map_err(Refused::from),
                    _ => self.answer(config, sealing, &message, &transcript),
                };
                match answer {
                    Ok(answer) => {
                        self.exchange.answer(&answer);
                        match self.agreement {
                            Some(_) => Next::Wait,
                            None => Next::End("an enquiry about our key".into()),
                        }
                    }
                    // To the peer they are one.
                    Err(Refused::Broken) => {
                        self.refuse(LoginStatus::AuthenticationFailure, "its handshake does not verify")
                    }
                    Err(Refused::Stranger(key)) => {
                        let why = format!("its key {key} is not among the peers");
                        self.refuse(LoginStatus::AuthenticationFailure, &why)
                    }
                }
            }
        }
    }

    fn refuse(&mut self, status: LoginStatus, why: &str) -> Next {
        self.exchange.refuse(status);
        Next::End(why.to_owned())
    }

    fn on_offer(&mut self, sealing: &Sealing, offered: &Offered) -> Next {
        let mut known = offered.suites.iter().filter_map(|name| Suite::from_name(name));
        let Some(suite) = known.find(|suite| sealing.suites.contains(suite)) else {
            // Not 0201: to an initiator that would mean a target that does not seal, with which it may go on in the clear.
            return self.refuse(LoginStatus::InitiatorError, "it offers no suite of ours");
        };
        self.choice = Some(self.exchange.choose(suite.name(), seal::UNIT_BYTES));
        Next::Wait
    }

    fn answer(
        &mut self,
        config: &ServerConfig,
        sealing: &Sealing,
        message: &[u8],
        transcript: &Transcript,
    ) -> Result<Vec<u8>, Refused> {
        let choice = self.choice.as_ref().ok_or(Broken)?;
        let suite = Suite::from_name(&choice.suite).ok_or(Broken)?;
        let responder = Responder::read(&sealing.identity, &transcript.prologue(), message)?;
        let peer_key = responder.initiator();
        let peer = config.peer(&peer_key).ok_or(Refused::Stranger(peer_key))?;
        let psk = peer.psk.as_ref().map(crate::sealing::Psk::bytes);
        let (answer, channel) = responder.finish(psk, suite, &*entropy()?)?;
        self.agreement = Some(Agreement { channel, suite, unit: choice.unit, peer_key });
        Ok(answer)
    }

    /// What was agreed on. To be taken when all that the exchange had to send has been gathered.
    pub(super) fn take_agreement(&mut self) -> Option<Agreement> {
        self.agreement.take()
    }

    pub(super) fn on_timeout(&mut self, now: Duration) -> Result<(), Fatal> {
        self.exchange.on_timeout(now)
    }

    pub(super) fn poll_timeout(&self) -> Option<Duration> {
        self.exchange.poll_timeout()
    }
}

fn enquiry(sealing: &Sealing, message: &[u8], transcript: &Transcript) -> Result<Vec<u8>, Broken> {
    seal::answer_enquiry(&sealing.identity, &transcript.prologue(), message, &*entropy()?)
}

/// Randomness of one handshake; wiped when dropped. It lies on the heap, so that a move leaves no copy.
fn entropy() -> Result<Box<Zeroizing<[u8; 128]>>, Broken> {
    let mut entropy = Box::new(Zeroizing::new([0; 128]));
    io::entropy(entropy.as_mut_slice()).map_err(|_| Broken)?;
    Ok(entropy)
}
