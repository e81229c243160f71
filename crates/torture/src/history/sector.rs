//! The versions that one sector may hold (rules: `mod.rs`). The moment of a write's submission identifies its version.

use super::{Cut, Fault, Moment, NEVER, Rules, VERSIONS_MAX, Value};
use crate::stamp::Content;

#[derive(Clone, Copy, Debug)]
struct Version {
    value: Value,
    submitted: Moment,
    /// Moment after which it has no further effect; `NEVER` while it is in flight or its outcome is unknown.
    settled: Moment,
    /// Moment after which it is not current; `NEVER` while it may be.
    gone: Moment,
    /// The last cut after which it may be current again.
    revived: Moment,
    /// A stable version follows it: no cut can make it current again.
    buried: bool,
    /// On the medium, unless a later version is.
    stable: bool,
    /// Its write ended without an answer.
    doubtful: bool,
    /// Durability was requested for it.
    durable: bool,
}

impl Version {
    fn new(value: Value, submitted: Moment) -> Self {
        Self {
            value,
            submitted,
            settled: NEVER,
            gone: NEVER,
            revived: 0,
            buried: false,
            stable: false,
            doubtful: false,
            durable: false,
        }
    }

    /// A version that is on the medium since `at`.
    fn on_medium(value: Value, at: Moment) -> Self {
        Self { settled: at, stable: true, ..Self::new(value, at) }
    }

    /// Whether it was settled before `at` and no cut revived it since.
    fn is_older_than(&self, at: Moment) -> bool {
        self.settled.max(self.revived) < at
    }

    fn is_current(&self) -> bool {
        self.gone == NEVER
    }

    /// Whether a cut may leave it; `horizon` is the last flush.
    fn is_kept(&self, horizon: Moment) -> bool {
        !self.buried && (self.is_current() || self.gone >= horizon)
    }

    fn is_stable(&self, horizon: Moment) -> bool {
        self.stable || self.settled < horizon
    }

    fn matches(&self, content: Content) -> bool {
        match (self.value, content) {
            (Value::Unknown, _) => true,
            (Value::Zero, Content::Zero) => true,
            (Value::Stamp(stamp), Content::Stamp(found)) => stamp == found,
            _ => false,
        }
    }

    fn describe(&self, horizon: Moment) -> String {
        let value = match self.value {
            Value::Zero => "zeroes".to_owned(),
            Value::Stamp(stamp) => stamp.to_string(),
            Value::Unknown => "what was there before".to_owned(),
        };
        let when = |moment: Moment| if moment == NEVER { "-".to_owned() } else { format!("@{moment}") };
        let state = match (self.settled == NEVER, self.is_stable(horizon)) {
            (true, _) => "outcome unknown",
            (false, true) => "durable",
            (false, false) => "volatile",
        };
        let durable = if self.durable { " with FUA" } else { "" };
        format!(
            "{value}{durable}, submitted {}, settled {}, {state}",
            when(self.submitted),
            when(self.settled)
        )
    }
}

#[derive(Clone, Debug)]
pub(super) struct Sector {
    versions: Vec<Version>,
    /// Last cut applied.
    seen: Moment,
    /// Moment at which the last version discarded for lack of space ceased to be current; zero for none.
    forgotten: Moment,
    /// A discarded version may be current again.
    lenient: bool,
}

impl Sector {
    pub(super) fn new(value: Value) -> Self {
        Self { versions: vec![Version::on_medium(value, 0)], seen: 0, forgotten: 0, lenient: false }
    }

    pub(super) fn seen(&self) -> Moment {
        self.seen
    }

    pub(super) fn versions(&self) -> usize {
        self.versions.len()
    }

    /// A write is submitted: it may take effect from now on.
    pub(super) fn submit(&mut self, value: Value, at: Moment, durable: bool) {
        self.versions.push(Version { durable, ..Version::new(value, at) });
    }

    fn named(&mut self, at: Moment) -> Option<&mut Version> {
        self.versions.iter_mut().find(|version| version.submitted == at)
    }

    /// The write submitted `at` completed.
    pub(super) fn complete(&mut self, at: Moment, now: Moment, durable: bool) {
        let crossed_cut = at < self.seen;
        let Some(own) = self.named(at) else { return };
        own.settled = now;
        own.stable |= durable;
        // Acknowledged after a cut, it may have taken effect before the cut, in a cache that was lost.
        if crossed_cut && !durable {
            return;
        }
        for version in &mut self.versions {
            // It has overwritten the versions that were settled before its submission.
            if version.settled < at {
                version.gone = version.gone.min(now);
                version.buried |= durable;
            }
        }
        self.lenient = false;
        if durable {
            self.forgotten = 0;
        }
    }

    /// The completed write submitted `at` is on the medium, in spite of later cuts.
    pub(super) fn vouch(&mut self, at: Moment, now: Moment) {
        for version in &mut self.versions {
            version.stable |= version.submitted == at;
            // Versions that a cut had revived were not current after all.
            if version.settled < at {
                version.gone = version.gone.min(now);
                version.buried = true;
            }
        }
    }

    /// The write submitted `at` ended without an answer.
    pub(super) fn doubt(&mut self, at: Moment) {
        if let Some(own) = self.named(at) {
            own.doubtful = true;
        }
    }

    /// The write submitted `at` has no effect after `now`.
    pub(super) fn fence(&mut self, at: Moment, now: Moment) {
        if let Some(own) = self.named(at) {
            own.settled = own.settled.min(now);
        }
    }

    /// A read submitted `at` and completed `now` returned `found`.
    pub(super) fn answer(
        &mut self,
        found: Content,
        at: Moment,
        now: Moment,
        horizon: Moment,
        rules: Rules,
    ) -> Result<(), Fault> {
        let possible = |version: &&Version| version.gone >= at;
        let matching: Vec<usize> = (0..self.versions.len())
            .filter(|index| possible(&&self.versions[*index]) && self.versions[*index].matches(found))
            .collect();
        // A known version takes precedence over the unknown initial content.
        let exact: Vec<usize> =
            matching.iter().copied().filter(|index| self.versions[*index].value != Value::Unknown).collect();
        let matching = if exact.is_empty() { matching } else { exact };
        if matching.is_empty() {
            return self.excuse(found, at, rules);
        }
        if let [only] = matching[..]
            && self.versions[only].doubtful
            && self.versions[only].submitted > self.seen
        {
            // The read shows that the unanswered write took effect. Before a cut it may have been repeated.
            self.versions[only].settled = self.versions[only].settled.min(now);
        }
        let stable = matching.iter().all(|index| self.versions[*index].is_stable(horizon));
        for (index, version) in self.versions.iter_mut().enumerate() {
            if !matching.contains(&index) && version.is_older_than(at) && version.is_current() {
                version.gone = now;
                version.buried |= stable;
            }
        }
        self.lenient &= self.seen > at;
        Ok(())
    }

    /// Whether `found` is allowed although it matches no version.
    fn excuse(&self, found: Content, at: Moment, rules: Rules) -> Result<(), Fault> {
        let in_flight = |version: &Version| version.settled > at;
        match found {
            Content::Torn => {
                let current = self.versions.iter().filter(|version| version.is_current()).count();
                if !rules.atomic_sectors && (current > 1 || self.versions.iter().any(in_flight)) {
                    return Ok(());
                }
                Err(Fault::Torn)
            }
            Content::Misdirected { .. } => Err(Fault::Misdirected),
            Content::Foreign => Err(Fault::Foreign),
            Content::Zero | Content::Stamp(_) if self.lenient => Ok(()),
            Content::Zero | Content::Stamp(_) => Err(Fault::Wrong),
        }
    }

    /// Continues from `found`.
    pub(super) fn accept(&mut self, found: Content, now: Moment) {
        let value = match found {
            Content::Zero => Value::Zero,
            Content::Stamp(stamp) => Value::Stamp(stamp),
            _ => Value::Unknown,
        };
        self.versions.retain(|version| version.settled == NEVER);
        self.versions.push(Version::on_medium(value, now));
        (self.lenient, self.forgotten) = (false, 0);
    }

    /// The power failed, or may have: kept versions become current; without a certain failure the current ones stay.
    pub(super) fn cut(&mut self, at: Moment, horizon: Moment, cut: Cut) {
        self.seen = at;
        if self.forgotten > horizon {
            (self.lenient, self.forgotten) = (true, at);
        }
        for version in &mut self.versions {
            let settled = version.settled != NEVER;
            version.stable = settled && (cut == Cut::Certain || version.is_stable(horizon));
            if version.is_kept(horizon) {
                (version.gone, version.revived) = (NEVER, at);
            } else {
                // It may still be the answer to a read in flight.
                version.buried = true;
            }
        }
    }

    /// Discards versions that are not current, cannot return after a cut, and cannot be the answer to a read in flight.
    pub(super) fn prune(&mut self, horizon: Moment, oldest_read: Moment) {
        if self.versions.len() == 1 {
            return;
        }
        self.versions.retain(|version| {
            version.is_current() || version.gone >= oldest_read || version.is_kept(horizon)
        });
        while self.versions.len() > VERSIONS_MAX {
            let oldest = self.versions.iter().position(|version| !version.is_current());
            let doubtful = || self.versions.iter().position(|version| version.doubtful);
            let Some(index) = oldest.or_else(doubtful) else { break };
            let version = self.versions.remove(index);
            self.lenient |= version.is_current();
            self.forgotten = self.forgotten.max(version.gone);
        }
    }

    pub(super) fn expected(&self, at: Moment, horizon: Moment) -> Vec<String> {
        self.versions
            .iter()
            .filter(|version| version.gone >= at)
            .map(|version| version.describe(horizon))
            .collect()
    }

    pub(super) fn describe(&self, horizon: Moment) -> Vec<String> {
        self.versions.iter().map(|version| version.describe(horizon)).collect()
    }
}
