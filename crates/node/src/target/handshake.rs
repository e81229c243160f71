//! The start of a connection where sealing is configured: the outer login and its handshake (docs/SEAL.md, sections 2
//! and 3). It ends in an ordinary login, in records, or in a refusal.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use iscsi::login::NextKey;
use iscsi::login::outer::target::{Event, Exchange, First, Offered};
use iscsi::login::outer::{Choice, NONCE_BYTES, Pattern};
use iscsi::wire::LoginStatus;
use seal::{Broken, Channel, FirstFlight, Proven, PublicKey, Suite};
use zeroize::Zeroizing;

use super::allowance::{ANSWERS, Allowance, ENQUIRIES, OPENINGS, address};
use super::config::{NextIdentity, Sealing, ServerConfig};
use super::login::{self, Way};

/// The reason in the log for a connection that requested the public key, which is no refusal.
pub(super) const ENQUIRY: &str = "an enquiry about our key";
const TIME_MAX: Duration = Duration::from_secs(15);

/// Shared by all threads: the rate limits of handshakes (docs/internals/trust.md).
#[derive(Debug)]
pub(super) struct Handshakes(Mutex<Allowances>);

#[derive(Debug)]
struct Allowances {
    enquiries: Allowance<IpAddr>,
    openings: Allowance<IpAddr>,
    /// Charged to keys of the list of peers only.
    answers: Allowance<PublicKey>,
}

impl Default for Handshakes {
    fn default() -> Self {
        Self(Mutex::new(Allowances {
            enquiries: Allowance::new(ENQUIRIES),
            openings: Allowance::new(OPENINGS),
            answers: Allowance::new(ANSWERS),
        }))
    }
}

impl Handshakes {
    fn all(&self) -> MutexGuard<'_, Allowances> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn admit_enquiry(&self, peer: IpAddr, now: Duration) -> Result<(), Refused> {
        let admitted = self.all().enquiries.admit(address(peer), now);
        admitted.then_some(()).ok_or(Refused::Busy)
    }

    fn admit_opening(&self, peer: IpAddr, now: Duration) -> Result<(), Refused> {
        let admitted = self.all().openings.admit(address(peer), now);
        admitted.then_some(()).ok_or(Refused::Busy)
    }

    /// A message admitted as an opening from `peer` was made with a listed key: charges the key instead of the address.
    fn admit_answer(&self, peer: IpAddr, key: PublicKey, now: Duration) -> Result<(), Refused> {
        let mut all = self.all();
        if !all.answers.admit(key, now) {
            return Err(Refused::Busy);
        }
        all.openings.give_back(address(peer));
        Ok(())
    }
}

pub(super) enum Next {
    Wait,
    /// Start an ordinary login with this PDU.
    Ordinary(First),
    /// End the connection once the queue is sent, for this reason.
    End(String),
}

pub(super) struct Agreement {
    pub(super) channel: Channel,
    pub(super) suite: Suite,
    pub(super) unit: u32,
    /// The initiator's key; authenticated once the first record opens.
    pub(super) peer_key: PublicKey,
    pub(super) next_key: NextKey,
    /// The key that `next_key` announces.
    pub(super) announced: Option<Arc<NextIdentity>>,
}

enum Refused {
    /// A repeated message, or one made without the target's key; the check costs one hash.
    Foreign,
    Broken,
    Stranger(PublicKey),
    Busy,
}

impl Refused {
    /// The login status: the same for every defect of a message, to reveal nothing.
    fn status(&self) -> LoginStatus {
        match self {
            Self::Foreign | Self::Broken | Self::Stranger(_) => LoginStatus::AuthenticationFailure,
            Self::Busy => LoginStatus::ServiceUnavailable,
        }
    }

    fn reason(&self) -> String {
        match self {
            Self::Foreign => "its handshake was not made for this connection and our key".into(),
            Self::Broken => "its handshake does not verify".into(),
            Self::Stranger(key) => format!("its key {key} is not among the peers"),
            Self::Busy => "too many handshakes at once".into(),
        }
    }
}

impl From<Broken> for Refused {
    fn from(Broken: Broken) -> Self {
        Self::Broken
    }
}

pub(super) struct Handshake {
    pub(super) exchange: Exchange,
    choice: Option<Choice>,
    /// Must be taken when all PDUs of the exchange have been gathered.
    pub(super) agreement: Option<Agreement>,
}

impl Handshake {
    /// For a new connection; `None` if nothing is to be sealed.
    pub(super) fn begin(config: &ServerConfig, now: Duration) -> Option<Self> {
        let way = login::way(config, true);
        (way == Way::Sealed).then(|| Self {
            exchange: Exchange::new(now + TIME_MAX),
            choice: None,
            agreement: None,
        })
    }

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
            Event::Message { message, transcript } => {
                let prologue = transcript.prologue();
                let answer = match self.choice.as_ref().map(|choice| choice.pattern) {
                    Some(Pattern::Xx) => enquiry(sealing, handshakes, (peer, now), &message, &prologue),
                    _ => self.answer(config, sealing, handshakes, (peer, now), &message, &prologue),
                };
                match answer {
                    Ok(answer) => {
                        self.exchange.answer(&answer);
                        match self.agreement {
                            Some(_) => Next::Wait,
                            None => Next::End(ENQUIRY.into()),
                        }
                    }
                    Err(refused) => self.refuse(refused.status(), &refused.reason()),
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
            // Not 0201: for an initiator that would mean a target that does not seal, with which it may continue
            // unsealed.
            return self.refuse(LoginStatus::InitiatorError, "it offers no suite that this server accepts");
        };
        let mut nonce = [0; NONCE_BYTES];
        if io::entropy(&mut nonce).is_err() {
            return self.refuse(LoginStatus::TargetError, "no randomness for the handshake");
        }
        self.choice = Some(self.exchange.choose(suite.name(), seal::UNIT_BYTES, &nonce));
        Next::Wait
    }

    /// The steps of docs/SEAL.md section 3, cheapest first.
    fn answer(
        &mut self,
        config: &ServerConfig,
        sealing: &Sealing,
        handshakes: &Handshakes,
        (address, now): (IpAddr, Duration),
        message: &[u8],
        prologue: &[u8],
    ) -> Result<Vec<u8>, Refused> {
        let choice = self.choice.as_ref().ok_or(Broken)?;
        let suite = Suite::from_name(&choice.suite).ok_or(Broken)?;
        let flight = FirstFlight::check(&sealing.identity, prologue, message);
        let flight = flight.map_err(|Broken| Refused::Foreign)?;
        handshakes.admit_opening(address, now)?;
        let claim = flight.open()?;
        let peer_key = claim.initiator();
        let peer = config.peer(&peer_key).ok_or(Refused::Stranger(peer_key))?;
        let responder = claim.prove()?;
        handshakes.admit_answer(address, peer_key, now)?;
        let psk = peer.psk.as_ref().map(crate::sealing::Psk::bytes);
        let (answer, channel) = responder.finish(psk, suite, &*entropy()?)?;
        let next_key = match &sealing.next {
            None => NextKey::Kept,
            Some(next) => {
                let proven = Proven { initiator: peer_key, target: sealing.identity.public() };
                NextKey::Announced(channel.binding.announce(&next.identity, &proven).to_vec())
            }
        };
        self.agreement = Some(Agreement {
            channel,
            suite,
            unit: choice.unit,
            peer_key,
            next_key,
            announced: sealing.next.clone(),
        });
        Ok(answer)
    }
}

fn enquiry(
    sealing: &Sealing,
    handshakes: &Handshakes,
    (address, now): (IpAddr, Duration),
    message: &[u8],
    prologue: &[u8],
) -> Result<Vec<u8>, Refused> {
    handshakes.admit_enquiry(address, now)?;
    Ok(seal::answer_enquiry(&sealing.identity, prologue, message, &*entropy()?)?)
}

/// Randomness of one handshake; zeroized on drop. On the heap, so that a move leaves no copy.
fn entropy() -> Result<Box<Zeroizing<[u8; 128]>>, Broken> {
    let mut entropy = Box::new(Zeroizing::new([0; 128]));
    io::entropy(entropy.as_mut_slice()).map_err(|_| Broken)?;
    Ok(entropy)
}
