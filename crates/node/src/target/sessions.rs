//! The sessions of the whole server. A session has one connection; a login with the same initiator port reinstates it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use iscsi::wire::Isid;
use scsi::NexusId;
use seal::PublicKey;

use super::lun::FormerUnit;
use super::mail::ConnectionId;
use super::usage::{Usage, UsageStatus};

#[derive(Clone, Debug)]
pub struct SessionStatus {
    pub tsih: u16,
    pub initiator: String,
    /// TargetName; `None`: a discovery session.
    pub target: Option<String>,
    pub peer: SocketAddr,
    /// The proven key, if the session is sealed.
    pub peer_key: Option<PublicKey>,
    pub about: About,
    pub usage: UsageStatus,
}

/// What a session's login established, for reports.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// Name of the peer whose key was proven.
    pub listed_as: Option<String>,
    pub chap_user: Option<String>,
    /// `none`, `chap`, `tls` or `seal`, and the suite of the latter.
    pub protection: &'static str,
    pub suite: Option<&'static str>,
    /// Negotiated keys; MaxRecvDataSegmentLength is the target's.
    pub keys: Vec<(&'static str, String)>,
    /// Visible LUNs, and whether they are read-only for this session.
    pub luns: Vec<(u16, bool)>,
    pub since: Option<SystemTime>,
}

/// An initiator port that had a session, and the units that are flushed and owe it no report of lost state. A process
/// that serves after this one tells it I_T NEXUS LOSS instead of POWER ON: its acknowledged writes are safe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormerPort {
    pub initiator: String,
    pub peer_key: Option<PublicKey>,
    pub isid: [u8; 6],
    pub target: String,
    pub units: Vec<FormerUnit>,
}

#[derive(Debug)]
struct Entry {
    /// Its `usage` is empty: see the next field.
    status: SessionStatus,
    usage: Arc<Usage>,
    isid: Isid,
    nexus: NexusId,
    connection: ConnectionId,
    luns: Vec<usize>,
    waiters: Vec<ConnectionId>,
}

#[derive(Debug)]
pub(super) struct Claim {
    pub(super) initiator: String,
    pub(super) isid: Isid,
    /// `None`: discovery.
    pub(super) target: Option<String>,
    pub(super) peer: SocketAddr,
    pub(super) peer_key: Option<PublicKey>,
    pub(super) connection: ConnectionId,
    /// Slots of visible LUNs that are exclusive.
    pub(super) exclusive: Vec<usize>,
    pub(super) about: About,
    pub(super) usage: Arc<Usage>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// A new session with this handle and I_T nexus; `former` was the last nexus of the same ports.
    Granted { tsih: u16, nexus: NexusId, former: Option<NexusId> },
    /// RFC 7143 §6.3.5: the reinstated session must end first; then a `Retry` follows.
    Wait { old: ConnectionId },
    /// The session to be reinstated has another key, or only one of the two is sealed.
    OtherKey,
    /// Another initiator has an exclusive LUN.
    Busy { holder: String },
    /// No handle is free, or too many sessions exist.
    Full,
}

const SESSIONS_MAX: usize = 4096;
/// Bound of the ended sessions that are remembered. A port beyond it gets POWER ON when it returns: its initiator then
/// assumes that writes without a flush are lost, which is safe.
const FORMER_MAX: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Sessions {
    /// After a panic while it was locked, its entries may be inconsistent, so every later lock panics too. That happens
    /// outside of the panic handling of a single connection, and ends the server.
    inner: Mutex<Inner>,
}

/// An initiator port and target that had a session.
#[derive(Debug)]
struct Former {
    initiator: String,
    peer_key: Option<PublicKey>,
    isid: Isid,
    target: String,
    nexus: NexusId,
}

#[derive(Debug, Default)]
struct Inner {
    entries: Vec<Entry>,
    /// Oldest first.
    former: VecDeque<Former>,
    tsih_last: u16,
    nexus_last: NexusId,
}

impl Sessions {
    pub(super) fn claim(&self, claim: Claim) -> Admission {
        let mut inner = self.inner.lock().expect("no panic while locked");
        let same = inner.entries.iter_mut().find(|entry| {
            entry.status.initiator == claim.initiator
                && entry.isid == claim.isid
                && entry.status.target == claim.target
                && claim.target.is_some()
        });
        if let Some(old) = &same
            && old.status.peer_key != claim.peer_key
        {
            return Admission::OtherKey;
        }
        if let Some(old) = same {
            old.waiters.push(claim.connection);
            return Admission::Wait { old: old.connection };
        }
        let holder = inner.entries.iter().find(|entry| {
            let other = entry.status.initiator != claim.initiator || entry.status.peer_key != claim.peer_key;
            other && entry.luns.iter().any(|lun| claim.exclusive.contains(lun))
        });
        if let Some(holder) = holder {
            return Admission::Busy { holder: holder.status.initiator.clone() };
        }
        if inner.entries.len() >= SESSIONS_MAX {
            return Admission::Full;
        }
        let tsih = loop {
            inner.tsih_last = inner.tsih_last.wrapping_add(1).max(1);
            let candidate = inner.tsih_last;
            if inner.entries.iter().all(|entry| entry.status.tsih != candidate) {
                break candidate;
            }
        };
        let former = inner.former.iter().position(|former| {
            former.initiator == claim.initiator
                && former.peer_key == claim.peer_key
                && former.isid == claim.isid
                && Some(&former.target) == claim.target.as_ref()
        });
        let former = former.and_then(|index| inner.former.remove(index)).map(|former| former.nexus);
        inner.nexus_last += 1;
        let nexus = inner.nexus_last;
        let Claim { initiator, target, peer, peer_key, about, usage, .. } = claim;
        let status =
            SessionStatus { tsih, initiator, target, peer, peer_key, about, usage: UsageStatus::default() };
        let (isid, connection, luns) = (claim.isid, claim.connection, claim.exclusive);
        inner.entries.push(Entry { status, usage, isid, nexus, connection, luns, waiters: Vec::new() });
        Admission::Granted { tsih, nexus, former }
    }

    /// The session of `connection` and all its tasks have ended. Returns the connections that waited for that.
    pub(super) fn release(&self, connection: ConnectionId) -> Vec<ConnectionId> {
        let mut inner = self.inner.lock().expect("no panic while locked");
        let Some(index) = inner.entries.iter().position(|entry| entry.connection == connection) else {
            return Vec::new();
        };
        let Entry { status, isid, nexus, waiters, .. } = inner.entries.swap_remove(index);
        if let Some(target) = status.target {
            if inner.former.len() == FORMER_MAX {
                inner.former.pop_front();
            }
            let SessionStatus { initiator, peer_key, .. } = status;
            inner.former.push_back(Former { initiator, peer_key, isid, target, nexus });
        }
        waiters
    }

    /// A reload has changed the units of a session: those visible, and the slots of the exclusive ones.
    pub(super) fn set_luns(
        &self,
        connection: ConnectionId,
        visible: Vec<(u16, bool)>,
        exclusive: Vec<usize>,
    ) {
        let mut inner = self.inner.lock().expect("no panic while locked");
        if let Some(entry) = inner.entries.iter_mut().find(|entry| entry.connection == connection) {
            entry.luns = exclusive;
            entry.status.about.luns = visible;
        }
    }

    /// The ended sessions whose ports are remembered, oldest first: initiator, key, ISID, target and nexus.
    pub(super) fn former(&self) -> Vec<(FormerPort, NexusId)> {
        let inner = self.inner.lock().expect("no panic while locked");
        let port = |former: &Former| {
            let Former { initiator, peer_key, isid, target, nexus } = former;
            let (initiator, target) = (initiator.clone(), target.clone());
            (FormerPort { initiator, peer_key: *peer_key, isid: isid.0, target, units: Vec::new() }, *nexus)
        };
        inner.former.iter().map(port).collect()
    }

    /// Remembers a port of an earlier process. Returns the number of its nexus here.
    pub(super) fn recall(&self, port: &FormerPort) -> NexusId {
        let mut inner = self.inner.lock().expect("no panic while locked");
        inner.nexus_last += 1;
        let nexus = inner.nexus_last;
        if inner.former.len() == FORMER_MAX {
            inner.former.pop_front();
        }
        let FormerPort { initiator, peer_key, isid, target, .. } = port.clone();
        inner.former.push_back(Former { initiator, peer_key, isid: Isid(isid), target, nexus });
        nexus
    }

    pub(super) fn connection_of(&self, tsih: u16) -> Option<ConnectionId> {
        let inner = self.inner.lock().expect("no panic while locked");
        inner.entries.iter().find(|entry| entry.status.tsih == tsih).map(|entry| entry.connection)
    }

    pub(super) fn exists(&self, tsih: u16) -> bool {
        let inner = self.inner.lock().expect("no panic while locked");
        inner.entries.iter().any(|entry| entry.status.tsih == tsih)
    }

    pub(super) fn of_target(&self, target: &str) -> Vec<ConnectionId> {
        let inner = self.inner.lock().expect("no panic while locked");
        let of = inner.entries.iter().filter(|entry| entry.status.target.as_deref() == Some(target));
        of.map(|entry| entry.connection).collect()
    }

    pub(super) fn status(&self) -> Vec<SessionStatus> {
        let inner = self.inner.lock().expect("no panic while locked");
        let status = |entry: &Entry| SessionStatus { usage: entry.usage.status(), ..entry.status.clone() };
        inner.entries.iter().map(status).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(initiator: &str, isid: u8, slot: usize) -> Claim {
        Claim {
            initiator: initiator.into(),
            isid: Isid([isid; 6]),
            target: Some("iqn.t".into()),
            peer: "127.0.0.1:1".parse().unwrap(),
            peer_key: None,
            connection: ConnectionId { worker: 0, slot, generation: 0 },
            exclusive: Vec::new(),
            about: About::default(),
            usage: Arc::default(),
        }
    }

    #[test]
    fn one_name_one_session_rfc7143_6_3_5() {
        let sessions = Sessions::default();
        let Admission::Granted { tsih, .. } = sessions.claim(claim("a", 1, 0)) else { panic!() };
        assert!(matches!(sessions.claim(claim("a", 2, 1)), Admission::Granted { .. }), "another ISID");
        let new = claim("a", 1, 2);
        let (old, waiter) = (ConnectionId { worker: 0, slot: 0, generation: 0 }, new.connection);
        assert_eq!(sessions.claim(new), Admission::Wait { old });
        assert!(sessions.exists(tsih));
        assert_eq!(sessions.release(old), [waiter]);
        assert!(!sessions.exists(tsih));
        assert!(matches!(sessions.claim(claim("a", 1, 2)), Admission::Granted { .. }));
    }

    #[test]
    fn ports_that_were_here_before_are_known_again_within_bounds() {
        let sessions = Sessions::default();
        let connection = |slot| ConnectionId { worker: 0, slot, generation: 0 };
        let former = |claim| match sessions.claim(claim) {
            Admission::Granted { nexus, former, .. } => (nexus, former),
            other => panic!("{other:?}"),
        };
        let (first, none) = former(claim("a", 1, 0));
        assert_eq!(none, None);
        sessions.release(connection(0));
        assert_eq!(former(claim("a", 2, 0)).1, None, "another ISID");
        assert_eq!(former(claim("b", 1, 1)).1, None, "another initiator");
        let elsewhere = Claim { target: Some("iqn.u".into()), ..claim("a", 1, 2) };
        assert_eq!(former(elsewhere).1, None, "another target");
        let (second, again) = former(claim("a", 1, 3));
        assert_eq!(again, Some(first));
        sessions.release(connection(3));
        for _ in 1..FORMER_MAX {
            former(claim("c", 1, 4));
            sessions.release(connection(4));
        }
        assert_eq!(former(claim("a", 1, 3)).1, Some(second), "one name counts once");
        sessions.release(connection(3));
        for number in 0..FORMER_MAX {
            former(claim(&format!("d{number}"), 1, 4));
            sessions.release(connection(4));
        }
        assert_eq!(former(claim("a", 1, 3)).1, None, "the oldest is forgotten");
    }

    #[test]
    fn a_session_is_replaced_by_its_own_key_only_seal1_7() {
        let key = |byte| Some(PublicKey([byte; 32]));
        let of = |peer_key, slot| Claim { peer_key, ..claim("a", 1, slot) };
        for (held, taker) in [(key(1), key(2)), (key(1), None), (None, key(1))] {
            let sessions = Sessions::default();
            assert!(matches!(sessions.claim(of(held, 0)), Admission::Granted { .. }));
            assert_eq!(sessions.claim(of(taker, 1)), Admission::OtherKey, "{held:?} {taker:?}");
            let old = ConnectionId { worker: 0, slot: 0, generation: 0 };
            assert!(sessions.release(old).is_empty(), "the other one does not wait");
            let Admission::Granted { former, .. } = sessions.claim(of(taker, 1)) else { panic!() };
            assert_eq!(former, None, "nor is it who was here before");
        }
        let sessions = Sessions::default();
        assert!(matches!(sessions.claim(of(key(1), 0)), Admission::Granted { .. }));
        assert!(matches!(sessions.claim(of(key(1), 1)), Admission::Wait { .. }));
    }

    #[test]
    fn sessions_are_bounded() {
        let sessions = Sessions::default();
        let numbered = |number: usize| {
            let [.., high, low] = number.to_be_bytes();
            Claim { isid: Isid([0, 0, 0, 0, high, low]), ..claim("a", 0, number) }
        };
        for number in 0..SESSIONS_MAX {
            assert!(matches!(sessions.claim(numbered(number)), Admission::Granted { .. }), "{number}");
        }
        assert_eq!(sessions.claim(numbered(SESSIONS_MAX)), Admission::Full);
        sessions.release(numbered(7).connection);
        assert!(matches!(sessions.claim(numbered(SESSIONS_MAX)), Admission::Granted { .. }));
    }

    #[test]
    fn an_exclusive_lun_has_one_initiator() {
        let sessions = Sessions::default();
        let with = |name, slot| Claim { exclusive: vec![3], ..claim(name, slot as u8, slot) };
        assert!(matches!(sessions.claim(with("a", 1)), Admission::Granted { .. }));
        assert!(matches!(sessions.claim(with("a", 2)), Admission::Granted { .. }), "its second path");
        assert_eq!(sessions.claim(with("b", 3)), Admission::Busy { holder: "a".into() });
        let keyed = Claim { peer_key: Some(PublicKey([1; 32])), ..with("a", 4) };
        assert_eq!(sessions.claim(keyed), Admission::Busy { holder: "a".into() }, "a name is no proof");
    }
}
