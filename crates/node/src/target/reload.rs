//! Changing the configuration of a running server.
//!
//! A reload has three steps, of which only the last changes the server: the new configuration is checked and new units
//! are opened here; every thread attaches the new units; then the state is replaced and every thread revises its
//! sessions. An error in the first two steps leaves the old state unchanged. Logins and sessions see either the old
//! state or the new one, never a mixture.

use std::fmt;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use area::PoolLimits;
use block::OpenError;
use io::Io;
use seal::PublicKey;

use super::config::{AclEntry, ChapAccount, Peer, ServeError, ServerConfig, check};
use super::lun::{Lun, capability_of};
use super::mail::{Change, Mail};
use super::shared::Shared;
use super::state::State;

/// Time for all threads to attach the new units.
const ATTACH_MAX: Duration = Duration::from_secs(60);
/// Time for a thread to revise its sessions, during which it only sends and closes.
const REVISE_MAX: Duration = Duration::from_secs(10);
/// How long a reload waits until removed units are closed on all threads; slower ones leave later.
const GONE_MAX: Duration = Duration::from_secs(5);

/// Reloads a server's configuration; used by the thread that created it, with a loop of its own.
pub struct Reloader {
    shared: Arc<Shared>,
    io: Io,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    pub peers: [usize; 3],
    /// Rows and accounts of access lists added, changed and removed; a changed one counts as removed and added.
    pub rows: [usize; 3],
    /// LUNs added, changed and removed; changed means resized.
    pub luns: [usize; 3],
    pub settings: Vec<&'static str>,
    /// Sessions that ended because their rights changed.
    pub sessions_ended: usize,
    /// Removed LUNs still have commands in flight.
    pub luns_busy: bool,
}

impl fmt::Display for Reloaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        for (noun, counts, verbs) in [
            ("peer", self.peers, ["added", "changed", "removed"]),
            ("access row", self.rows, ["added", "changed", "removed"]),
            ("LUN", self.luns, ["added", "resized", "removed"]),
        ] {
            for (count, verb) in counts.into_iter().zip(verbs).filter(|(count, _)| *count > 0) {
                parts.push(format!("{} {verb}", counted(count, noun)));
            }
        }
        parts.extend(self.settings.iter().map(|name| format!("{name} changed")));
        if parts.is_empty() {
            parts.push("nothing differs".to_owned());
        }
        write!(f, "{}: {} ended", parts.join(", "), counted(self.sessions_ended, "session"))?;
        if self.luns_busy {
            f.write_str("; commands at a removed LUN have not ended yet, it is closed when they have")?;
        }
        Ok(())
    }
}

fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

struct Units {
    luns: Vec<Vec<Arc<Lun>>>,
    added: Vec<Arc<Lun>>,
    removed: Vec<Arc<Lun>>,
    /// With the new size of their storage in bytes.
    resized: Vec<(Arc<Lun>, u64)>,
}

impl Reloader {
    pub(super) fn new(shared: Arc<Shared>) -> Result<Self, ServeError> {
        let io = Io::new(PoolLimits::default()).map_err(ServeError::Loop)?;
        Ok(Self { shared, io })
    }

    /// Replaces the configuration. An error changes nothing. Units that stay must have the same
    /// [`super::LunConfig::medium`] as before.
    pub fn reload(&mut self, mut config: ServerConfig) -> Result<Reloaded, ServeError> {
        let shared = Arc::clone(&self.shared);
        let mut slots = shared.slots.lock().expect("no panic while locked");
        let old = shared.state();
        arrange(&old.config, &mut config)?;
        check(&config)?;
        let units = self.units(&old, &config, &mut slots)?;
        let mut reloaded = differences(&old.config, &config);
        reloaded.luns = [units.added.len(), units.resized.len(), units.removed.len()];
        if let Err(error) = self.attach(&units.added) {
            let slots = units.added.iter().map(|lun| lun.slot).collect();
            self.carry_out(Change { state: None, removed: slots, resized: Vec::new() });
            return Err(error);
        }
        let Units { luns, added, removed, resized } = units;
        let state = Arc::new(State { config, luns });
        shared.replace_state(Arc::clone(&state));
        drop((old, added));
        let change = Change {
            state: Some(state),
            removed: removed.iter().map(|lun| lun.slot).collect(),
            resized: resized.iter().map(|(lun, size_bytes)| (lun.slot, *size_bytes)).collect(),
        };
        drop(removed);
        // A unit that shrinks is announced before the state changes, one that grows after it: no command exceeds the
        // storage.
        let (shrunk, grown): (Vec<_>, Vec<_>) = resized
            .into_iter()
            .partition(|(lun, size_bytes)| blocks(lun, *size_bytes) < lun.unit().config().blocks);
        let resize = |(lun, size_bytes): &(Arc<Lun>, u64)| {
            lun.note_change();
            lun.unit().resized(blocks(lun, *size_bytes));
        };
        shrunk.iter().for_each(resize);
        (reloaded.sessions_ended, reloaded.luns_busy) = self.carry_out(change);
        grown.iter().for_each(resize);
        Ok(reloaded)
    }

    /// The units of the new configuration, unchanged and new; new ones are opened once for their capability.
    fn units(
        &mut self,
        old: &State,
        config: &ServerConfig,
        slots: &mut Vec<Weak<Lun>>,
    ) -> Result<Units, ServeError> {
        let mut units =
            Units { luns: Vec::new(), added: Vec::new(), removed: Vec::new(), resized: Vec::new() };
        for (target, before) in config.targets.iter().zip(&old.luns) {
            let mut luns = Vec::new();
            for lun in &target.luns {
                if let Some(kept) = before.iter().find(|kept| kept.config.is_same(lun)) {
                    let size_bytes = kept.config.medium.current_size().unwrap_or_default();
                    let blocks = blocks(kept, size_bytes);
                    if blocks > 0 && blocks != kept.unit().config().blocks {
                        units.resized.push((Arc::clone(kept), size_bytes));
                    }
                    luns.push(Arc::clone(kept));
                    continue;
                }
                let failed = |cause| ServeError::Lun { target: target.iqn.clone(), lun: lun.lun, cause };
                let capability = capability_of(&mut self.io, lun.medium.as_ref()).map_err(failed)?;
                let free = slots.iter().position(|slot| slot.strong_count() == 0);
                let slot = free.unwrap_or(slots.len());
                let lun = Arc::new(Lun::new(target, lun, &capability, slot, self.shared.mailboxes.len())?);
                match slots.get_mut(slot) {
                    Some(place) => *place = Arc::downgrade(&lun),
                    None => slots.push(Arc::downgrade(&lun)),
                }
                units.added.push(Arc::clone(&lun));
                luns.push(lun);
            }
            let gone = before.iter().filter(|lun| !luns.iter().any(|kept| Arc::ptr_eq(kept, lun)));
            units.removed.extend(gone.cloned());
            units.luns.push(luns);
        }
        Ok(units)
    }

    fn attach(&self, added: &[Arc<Lun>]) -> Result<(), ServeError> {
        let until = Instant::now() + ATTACH_MAX;
        for lun in added {
            let (answer, answers) = mpsc::channel();
            self.shared.send_all(|| Mail::Attach { lun: Arc::clone(lun), answer: answer.clone() });
            drop(answer);
            let failed = |cause| ServeError::Lun { target: String::new(), lun: lun.config.lun, cause };
            for _ in &self.shared.mailboxes {
                let left = until.saturating_duration_since(Instant::now());
                let opened = answers.recv_timeout(left).unwrap_or_else(|error| {
                    let why = match error {
                        RecvTimeoutError::Timeout => "its storage does not answer",
                        RecvTimeoutError::Disconnected => "the server ends",
                    };
                    Err(OpenError::Failed(why.to_owned()))
                });
                opened.map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Applies a change on every thread. Returns the sessions ended, and whether removed units are in use.
    fn carry_out(&self, change: Change) -> (usize, bool) {
        let change = Arc::new(change);
        let ((answer, answers), (gone, all_gone)) = (mpsc::channel(), mpsc::channel());
        self.shared.send_all(|| Mail::Reload {
            change: Arc::clone(&change),
            answer: answer.clone(),
            gone: gone.clone(),
        });
        drop((answer, gone, change));
        let until = Instant::now() + REVISE_MAX;
        let mut ended = 0;
        while let Ok(count) = answers.recv_timeout(until.saturating_duration_since(Instant::now())) {
            ended += count;
        }
        let busy = matches!(all_gone.recv_timeout(GONE_MAX), Err(RecvTimeoutError::Timeout));
        (ended, busy)
    }
}

impl fmt::Debug for Reloader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reloader").finish_non_exhaustive()
    }
}

fn blocks(lun: &Lun, size_bytes: u64) -> u64 {
    size_bytes / u64::from(lun.block_size)
}

/// Refuses changes that require a restart, keeps fixed settings, sorts the targets in their old order.
fn arrange(old: &ServerConfig, new: &mut ServerConfig) -> Result<(), ServeError> {
    let restart = |what: &str| Err(ServeError::Restart(what.to_owned()));
    if old.listen != new.listen {
        return restart("another address to listen on");
    }
    if old.threads != new.threads {
        return restart("another number of threads");
    }
    match (&old.sealing, &new.sealing) {
        (None, None) => {}
        (Some(one), Some(other)) if one.identity.public() != other.identity.public() => {
            return restart("another identity");
        }
        (Some(one), Some(other)) if one.policy == other.policy => {}
        _ => return restart("another policy of sealing"),
    }
    let place = |iqn: &str| old.targets.iter().position(|target| target.iqn == iqn);
    if old.targets.len() != new.targets.len() || new.targets.iter().any(|target| place(&target.iqn).is_none())
    {
        return restart("a target that is added, removed or renamed");
    }
    new.targets.sort_by_key(|target| place(&target.iqn));
    if old.tls.is_some() != new.tls.is_some() {
        return restart("TLS that is switched on or off");
    }
    if let (Some(one), Some(other)) = (&old.sealing, &mut new.sealing)
        && next_key(old) == other.next.as_ref().map(|next| next.key())
    {
        other.next.clone_from(&one.next);
    }
    Ok(())
}

/// The differences of two configurations, except LUNs.
fn differences(old: &ServerConfig, new: &ServerConfig) -> Reloaded {
    let peers = |config: &ServerConfig| -> Vec<Peer> {
        config.sealing.iter().flat_map(|sealing| sealing.peers.clone()).collect()
    };
    let (before, after) = (peers(old), peers(new));
    let key = |one: &Peer, other: &Peer| one.public_key == other.public_key;
    let removed = without(&before, &after, key);
    let (added, same) = (without(&after, &before, key), without(&after, &before, Peer::is_same));
    let mut reloaded = Reloaded { peers: [added, same - added, removed], ..Reloaded::default() };
    for (one, other) in old.targets.iter().zip(&new.targets) {
        let (one, other) = (&one.access, &other.access);
        reloaded.rows[0] += without(&other.initiators, &one.initiators, AclEntry::is_same)
            + without(&other.chap, &one.chap, ChapAccount::is_same);
        reloaded.rows[2] += without(&one.initiators, &other.initiators, AclEntry::is_same)
            + without(&one.chap, &other.chap, ChapAccount::is_same);
    }
    let settings = [
        ("allow-user", old.local_users != new.local_users),
        ("TLS certificate", !same_certificate(old, new)),
        ("advertise", old.advertise != new.advertise),
        ("next key", next_key(old) != next_key(new)),
        ("drain-timeout", old.drain_timeout != new.drain_timeout),
    ];
    reloaded.settings = settings.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect();
    reloaded
}

fn next_key(config: &ServerConfig) -> Option<PublicKey> {
    config.sealing.as_ref()?.next.as_ref().map(|next| next.key())
}

fn same_certificate(old: &ServerConfig, new: &ServerConfig) -> bool {
    old.tls.as_ref().zip(new.tls.as_ref()).is_none_or(|(one, other)| one.is_same(other))
}

fn without<T>(all: &[T], others: &[T], equal: impl Fn(&T, &T) -> bool) -> usize {
    all.iter().filter(|one| !others.iter().any(|other| equal(one, other))).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reload_is_told_in_one_line() {
        let none = Reloaded::default();
        assert_eq!(none.to_string(), "nothing differs: 0 sessions ended");
        let all = Reloaded {
            peers: [2, 0, 1],
            luns: [1, 1, 0],
            settings: vec!["allow-user"],
            sessions_ended: 1,
            ..none
        };
        let text =
            "2 peers added, 1 peer removed, 1 LUN added, 1 LUN resized, allow-user changed: 1 session ended";
        assert_eq!(all.to_string(), text);
    }
}
