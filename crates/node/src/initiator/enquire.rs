//! Obtains the public key of a portal (docs/SEAL.md, section 3). Blocking; for the command line.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use block::OpenError;
use iscsi::login::outer::Pattern;
use iscsi::login::outer::initiator::{Event, Exchange, Offer};
use iscsi::machine::{Fatal, Machine, Payload, Received};
use iscsi::name::IscsiName;
use iscsi::params::SessionType;
use iscsi::wire::{Bhs, LoginStatus};
use seal::{Broken, Enquirer, PublicKey, Suite};
use zeroize::Zeroizing;

use super::options::{random_isid, resolve};
use super::refusal::{BUSY_PAUSE, BUSY_TIME_MAX};
use super::url::Url;
use crate::sealing::ENQUIRY_NAME;

#[derive(Debug)]
enum Failure {
    Io(io::Error),
    Protocol(Fatal),
    Broken(Broken),
    Declined,
    Refused(LoginStatus),
    Moved(String),
}

impl Failure {
    /// Whether damage in transit may be the reason. An end of the connection is [`Failure::Io`].
    fn may_be_damage(&self) -> bool {
        match self {
            Self::Io(error) => matches!(
                error.kind(),
                io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
            ),
            Self::Refused(status) => *status == LoginStatus::InitiatorError,
            Self::Protocol(_) | Self::Broken(_) | Self::Declined => true,
            Self::Moved(_) => false,
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Fatal> for Failure {
    fn from(fatal: Fatal) -> Self {
        Self::Protocol(fatal)
    }
}

/// The key that the portal of `url` proves to hold. The enquiry discloses nothing about this host. It proves possession
/// of the key only: whether the key belongs to the portal, the user has to compare. `timeout` bounds the whole enquiry.
pub fn enquire(url: &Url, timeout: Duration) -> Result<PublicKey, OpenError> {
    enquire_at(&resolve(url)?, url, timeout)
}

fn enquire_at(addresses: &[SocketAddr], url: &Url, timeout: Duration) -> Result<PublicKey, OpenError> {
    let start = Instant::now();
    let until = start + BUSY_TIME_MAX.min(timeout);
    let (mut last, mut tried_again) = (None, false);
    for (address, ordinal) in addresses.iter().zip(1u32..) {
        // An address that does not answer leaves their parts of the time to the others.
        let deadline = start + timeout * ordinal / addresses.len() as u32;
        loop {
            match request_key(*address, deadline) {
                Ok(key) => return Ok(key),
                Err(Failure::Refused(LoginStatus::ServiceUnavailable)) if Instant::now() < until => {
                    std::thread::sleep(BUSY_PAUSE);
                }
                Err(failure) if failure.may_be_damage() && !tried_again => tried_again = true,
                Err(Failure::Io(error)) => {
                    last = Some(error);
                    break;
                }
                Err(failure) => return Err(explain(url, &failure)),
            }
        }
    }
    let error = last.expect("resolve gives at least one address");
    Err(OpenError::Unreachable(format!("asking {} for its key: {error}", url.address())))
}

fn explain(url: &Url, failure: &Failure) -> OpenError {
    let address = url.address();
    match failure {
        Failure::Io(error) => OpenError::Unreachable(format!("asking {address} for its key: {error}")),
        Failure::Declined => OpenError::Failed(format!("{address} does not seal its sessions")),
        Failure::Refused(status) => OpenError::Failed(format!("{address} does not send its key: {status:?}")),
        Failure::Moved(to) => {
            OpenError::Failed(format!("{address} does not send its key and redirects to {to}"))
        }
        Failure::Protocol(fatal) => {
            OpenError::Failed(format!("{address} answers what no sealed portal would: {fatal}"))
        }
        Failure::Broken(broken) => OpenError::Failed(format!("{address} does not prove its key: {broken}")),
    }
}

fn request_key(address: SocketAddr, deadline: Instant) -> Result<PublicKey, Failure> {
    let mut line = Line { stream: TcpStream::connect_timeout(&address, left(deadline)?)?, deadline };
    let offer = Offer {
        initiator_name: IscsiName::parse(ENQUIRY_NAME).expect("a name"),
        isid: random_isid(),
        cid: 0,
        session_type: SessionType::Discovery,
        target_name: None,
        plain: false,
        suites: Suite::ALL.iter().map(|suite| suite.name().to_owned()).collect(),
        unit: seal::UNIT_BYTES,
        pattern: Pattern::Xx,
    };
    // The machine's clock is not advanced: every read and write here ends at the deadline.
    let mut exchange = Exchange::new(offer, Duration::MAX);
    let mut enquirer = None;
    loop {
        while let Some(transmit) = exchange.poll_transmit() {
            let mut bytes = transmit.header.to_vec();
            if let Payload::Bytes(text) = transmit.payload {
                bytes.extend(text);
            }
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            line.stream.write_all(&bytes)?;
        }
        line.receive(&mut exchange)?;
        match exchange.poll_event() {
            None => {}
            Some(Event::Chosen { transcript, .. }) => {
                let mut entropy = Zeroizing::new([0; 128]);
                ::io::entropy(entropy.as_mut_slice()).expect("the system has randomness");
                let (waiting, message) = Enquirer::start(&transcript.prologue(), &entropy);
                exchange.send_message(&message);
                enquirer = Some(waiting);
            }
            Some(Event::Answer(answer)) => {
                let enquirer = enquirer.expect("an answer comes after our message");
                return enquirer.finish(&answer).map_err(Failure::Broken);
            }
            Some(Event::Declined) => return Err(Failure::Declined),
            Some(Event::Refused(status)) => return Err(Failure::Refused(status)),
            Some(Event::Redirect(to)) => return Err(Failure::Moved(to.address.to_string())),
        }
    }
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// A connection on which every read and write ends at the deadline.
struct Line {
    stream: TcpStream,
    deadline: Instant,
}

impl Line {
    fn receive(&mut self, exchange: &mut Exchange) -> Result<(), Failure> {
        let mut header = [0; 48];
        self.fill(&mut header)?;
        let (ahs_bytes, data_bytes) = (Bhs(&header).total_ahs_length(), Bhs(&header).data_segment_length());
        let mut ahs = vec![0; ahs_bytes];
        self.fill(&mut ahs)?;
        exchange.on_header(&header, &ahs, Duration::ZERO)?;
        if data_bytes > 0 {
            // The machine has checked the bound of this length.
            let mut segment = vec![0; (data_bytes as usize).next_multiple_of(4)];
            self.fill(&mut segment)?;
            exchange.on_data(Received::Inline(&segment[..data_bytes as usize]), Duration::ZERO)?;
        }
        Ok(())
    }

    fn fill(&mut self, mut into: &mut [u8]) -> io::Result<()> {
        while !into.is_empty() {
            self.stream.set_read_timeout(Some(left(self.deadline)?))?;
            match self.stream.read(into) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => into = &mut into[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn an_address_that_does_not_answer_leaves_time_for_the_next() {
        let [first, second] = [0; 2].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
        let addresses = [&first, &second].map(|listener| listener.local_addr().unwrap());
        let url = Url::parse(&format!("iscsi://{}", addresses[0])).unwrap();
        let error = enquire_at(&addresses, &url, Duration::from_millis(200)).unwrap_err();
        assert!(matches!(error, OpenError::Unreachable(_)), "{error:?}");
        second.set_nonblocking(true).unwrap();
        second.accept().expect("it was asked");
    }
}
