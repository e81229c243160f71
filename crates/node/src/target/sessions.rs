//! The sessions of the whole server. A session is one connection; two with one name replace each other.

use std::net::SocketAddr;
use std::sync::Mutex;

use iscsi::wire::Isid;
use scsi::NexusId;

use super::mail::ConnectionId;

/// What is known of a live session.
#[derive(Clone, Debug)]
pub struct SessionStatus {
    /// Target Session Identifying Handle.
    pub tsih: u16,
    /// InitiatorName.
    pub initiator: String,
    /// Target name, `None` for a discovery session.
    pub target: Option<String>,
    /// Where it comes from.
    pub peer: SocketAddr,
}

#[derive(Debug)]
struct Entry {
    status: SessionStatus,
    isid: Isid,
    connection: ConnectionId,
    luns: Vec<usize>,
    waiters: Vec<ConnectionId>,
}

/// What a login asks for.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) initiator: String,
    pub(super) isid: Isid,
    /// `None` for discovery.
    pub(super) target: Option<String>,
    pub(super) peer: SocketAddr,
    pub(super) connection: ConnectionId,
    /// LUNs that only one initiator may use.
    pub(super) exclusive: Vec<usize>,
}

/// What becomes of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// A session with this handle, and this I_T nexus.
    Granted { tsih: u16, nexus: NexusId },
    /// RFC 7143 §6.3.5: the session it replaces must end first; a `Retry` will come.
    Wait { old: ConnectionId },
    /// Another initiator has an exclusive LUN.
    Busy { holder: String },
    /// No handle or no room left.
    Full,
}

/// Sessions at once, discovery included.
const SESSIONS_MAX: usize = 4096;

/// All sessions.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    entries: Vec<Entry>,
    tsih_last: u16,
    nexus_last: NexusId,
}

impl Sessions {
    /// Asks for a session.
    pub(super) fn claim(&self, claim: Claim) -> Admission {
        let mut inner = self.inner.lock().expect("no panic while locked");
        let same = inner.entries.iter_mut().find(|entry| {
            entry.status.initiator == claim.initiator
                && entry.isid == claim.isid
                && entry.status.target == claim.target
                && claim.target.is_some()
        });
        if let Some(old) = same {
            old.waiters.push(claim.connection);
            return Admission::Wait { old: old.connection };
        }
        let holder = inner.entries.iter().find(|entry| {
            entry.status.initiator != claim.initiator
                && entry.luns.iter().any(|lun| claim.exclusive.contains(lun))
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
        inner.nexus_last += 1;
        let nexus = inner.nexus_last;
        let status =
            SessionStatus { tsih, initiator: claim.initiator, target: claim.target, peer: claim.peer };
        let (isid, connection, luns) = (claim.isid, claim.connection, claim.exclusive);
        inner.entries.push(Entry { status, isid, connection, luns, waiters: Vec::new() });
        Admission::Granted { tsih, nexus }
    }

    /// The session of `connection` has ended, its tasks included. Returns who waited for that.
    pub(super) fn release(&self, connection: ConnectionId) -> Vec<ConnectionId> {
        let mut inner = self.inner.lock().expect("no panic while locked");
        let Some(index) = inner.entries.iter().position(|entry| entry.connection == connection) else {
            return Vec::new();
        };
        inner.entries.swap_remove(index).waiters
    }

    /// Whether a session with this handle lives.
    pub(super) fn exists(&self, tsih: u16) -> bool {
        let inner = self.inner.lock().expect("no panic while locked");
        inner.entries.iter().any(|entry| entry.status.tsih == tsih)
    }

    /// Connections of normal sessions with a target.
    pub(super) fn of_target(&self, target: &str) -> Vec<ConnectionId> {
        let inner = self.inner.lock().expect("no panic while locked");
        let of = inner.entries.iter().filter(|entry| entry.status.target.as_deref() == Some(target));
        of.map(|entry| entry.connection).collect()
    }

    /// All of them, for people.
    pub(super) fn status(&self) -> Vec<SessionStatus> {
        let inner = self.inner.lock().expect("no panic while locked");
        inner.entries.iter().map(|entry| entry.status.clone()).collect()
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
            connection: ConnectionId { worker: 0, slot, generation: 0 },
            exclusive: Vec::new(),
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
    fn an_exclusive_lun_has_one_initiator() {
        let sessions = Sessions::default();
        let with = |name, slot| Claim { exclusive: vec![3], ..claim(name, slot as u8, slot) };
        assert!(matches!(sessions.claim(with("a", 1)), Admission::Granted { .. }));
        assert!(matches!(sessions.claim(with("a", 2)), Admission::Granted { .. }), "its second path");
        assert_eq!(sessions.claim(with("b", 3)), Admission::Busy { holder: "a".into() });
    }
}
