//! Verdicts from the packets of live connections: an analysis of the last seconds, again and again.
//!
//! [`Live::read`] packets at least a hundred times a second, and take the verdicts of a period with [`Live::judge`].
//! Each period begins in the middle of its connections: what only a login tells stays unknown, and the scales of the
//! windows come from the sockets.

use std::io;
use std::net::SocketAddr;

use super::packets::PacketProber;
use super::sessions::Session;
use crate::analysis::{Analyzer, FlowReport, Options};
use crate::event::Side;
use crate::model::{Evidence, Peers, System, Verdict, advise, combined, judge, sampled};
use crate::{capture, packet::Packet};

/// Most packets that one call reads: the caller samples sockets between calls.
const PACKETS_MAX: usize = 1 << 16;

/// Follows the packets of watched connections.
#[derive(Debug)]
pub struct Live {
    prober: PacketProber,
    analyzer: Analyzer,
    dropped_before: u64,
}

impl Live {
    pub fn new(prober: PacketProber) -> Self {
        Self { prober, analyzer: Analyzer::new(Options::default()), dropped_before: 0 }
    }

    /// Sees the packets of these connections from now on, and forgets what was seen.
    pub fn begin(&mut self, sessions: &[Session]) -> io::Result<()> {
        let live = || sessions.iter().filter(|session| !session.ended);
        let ports: Vec<u16> = live().map(|session| target_of(session).port()).collect();
        self.prober.set_ports(ports.iter().copied())?;
        self.analyzer = Analyzer::new(Options { ports, ..Options::default() });
        for session in live() {
            let (local, remote) = (canonical(session.ends.local), canonical(session.ends.remote));
            let Some(sample) = session.latest() else { continue };
            for (from, to, scale) in
                [(remote, local, sample.peer_window_scale), (local, remote, sample.receive_window_scale)]
            {
                if let Some(scale) = scale.and_then(|scale| scale.try_into().ok()) {
                    self.analyzer.set_window_scale(from, to, scale);
                }
            }
        }
        Ok(())
    }

    /// Reads the packets that have arrived.
    pub fn read(&mut self) -> io::Result<()> {
        let analyzer = &mut self.analyzer;
        self.prober.read(PACKETS_MAX, |packet: &Packet<'_>| analyzer.handle(packet))
    }

    /// The verdicts of the period since [`Live::begin`], by the places of their sessions, those that have ended included; the
    /// next period begins. A connection without data has none.
    pub fn judge(&mut self, sessions: &[Session]) -> io::Result<Vec<(usize, Verdict)>> {
        let analyzer = std::mem::replace(&mut self.analyzer, Analyzer::new(Options::default()));
        let report = analyzer.finish("packets", capture::Counts::default(), &[]);
        let dropped = self.prober.dropped();
        let lost = dropped.saturating_sub(std::mem::replace(&mut self.dropped_before, dropped));
        let mut verdicts = Vec::new();
        for flow in report.flows.iter().filter(|flow| flow.evidence.data_bytes > 0) {
            let all = sessions.iter().enumerate();
            let ends: Vec<(usize, &Session)> = all.filter(|(_, session)| is_of(flow, session)).collect();
            // Both ends may be on this machine: the sender's socket tells more.
            let sender = ends.iter().find(|(_, session)| session.side == flow.evidence.sender);
            let samples = sender.or(ends.first()).and_then(|(_, session)| of_samples(session));
            let evidence = match samples {
                Some(samples) => combined(flow.evidence.clone(), &samples),
                None => flow.evidence.clone(),
            };
            let mut verdict = judge(&evidence);
            if let Some((_, session)) = ends.first() {
                advise(&mut verdict, &evidence, &peers(session, sessions));
            }
            if lost > 0 {
                let note =
                    format!("{lost} packets came faster than they could be read; a smaller load shows more");
                verdict.notes.push(note);
            }
            verdicts.extend(ends.iter().map(|(place, _)| (*place, verdict.clone())));
        }
        self.begin(sessions)?;
        Ok(verdicts)
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn target_of(session: &Session) -> SocketAddr {
    if session.side == Side::Initiator { session.ends.remote } else { session.ends.local }
}

fn is_of(flow: &FlowReport, session: &Session) -> bool {
    let (local, remote) = (canonical(session.ends.local), canonical(session.ends.remote));
    let (initiator, target) = if session.side == Side::Initiator { (local, remote) } else { (remote, local) };
    let named = (flow.flow.initiator.parse(), flow.flow.target.parse());
    named == (Ok(initiator), Ok(target))
}

/// What the last seconds of samples show.
fn of_samples(session: &Session) -> Option<Evidence> {
    sampled(session.side, &session.samples(), session.cpu)
}

/// The verdict of samples alone: of what iSCSI waits for it can only name candidates. `all` has the other end, if it is on
/// this machine.
pub fn judge_samples(session: &Session, all: &[Session]) -> Option<Verdict> {
    let evidence = of_samples(session).filter(|evidence| evidence.data_bytes > 0)?;
    let mut verdict = judge(&evidence);
    advise(&mut verdict, &evidence, &peers(session, all));
    Some(verdict)
}

/// The programs at both ends, as far as this machine shows them.
fn peers(session: &Session, all: &[Session]) -> Peers {
    let target_name = session.kernel.as_ref().map(|kernel| &*kernel.target);
    let peers = Peers::of_login(None, target_name, None, &canonical(target_of(session)).to_string());
    let is_other =
        |other: &&Session| (other.ends.local, other.ends.remote) == (session.ends.remote, session.ends.local);
    let ends = std::iter::once(session).chain(all.iter().find(is_other));
    ends.fold(peers, |peers, end| {
        let owner = end.owner.as_ref().and_then(|owner| System::of_process(&owner.name));
        peers.with(end.side, if end.kernel.is_some() { Some(System::OpenIscsi) } else { owner })
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::super::sessions::{Chosen, Sessions};
    use super::*;

    /// Without CAP_NET_RAW there is nothing to test.
    #[test]
    fn packets_belong_to_their_session() {
        let Ok(prober) = PacketProber::new() else { return };
        // While it listens its end is the target's.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        let mut sessions = Sessions::new(Chosen::Addresses(vec![near.local_addr().unwrap()])).unwrap();
        sessions.refresh(1).unwrap();
        sessions.sample(|_, _| ()).unwrap();
        let mut live = Live::new(prober);
        live.begin(sessions.all()).unwrap();
        near.write_all(&[0; 10_000]).unwrap();
        far.read_exact(&mut [0; 10_000]).unwrap();
        live.read().unwrap();
        let analyzer = std::mem::replace(&mut live.analyzer, Analyzer::new(Options::default()));
        let report = analyzer.finish("packets", capture::Counts::default(), &[]);
        let of = |session: &Session| report.flows.iter().any(|flow| is_of(flow, session));
        assert!(sessions.all().len() == 2 && sessions.all().iter().all(of), "{:?}", report.flows.len());
        // Nothing of it is SCSI data.
        assert!(live.judge(sessions.all()).unwrap().is_empty());
    }
}
