//! Which driver serves, which one is the spare, and when the next one starts; without processes.
//!
//! The owner calls [`Succession::select`] until it returns `None`, carries out what it says, and reports what happens to
//! the processes.

use inet::Time;

/// A server that ends earlier after it began to serve died at once: its cause is likely to kill its successor, too.
const EARLY_US: u64 = 100_000;
/// Delay of the second start after deaths at once, microseconds; it doubles with each, up to the longest.
const DELAY_US: u64 = 20_000;
const DELAY_US_MAX: u64 = 2_000_000;
/// From a takeover to the start of the next spare: starting a process would compete for a core with the driver that has
/// taken over, while connections wait for it.
const TAKEOVER_US: u64 = 20_000;
/// In this time a driver that serves must have attached to `inet`.
const ATTACH_US_MAX: u64 = 250_000;
/// Deaths at once in a row, after which no other is started.
const DEATHS_MAX: u32 = 12;

/// Counts deaths at once of one kind of server.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    deaths: u32,
}

impl Backoff {
    /// A server has ended `served_us` after it began to serve. Returns how long to wait before the next start, or `None`
    /// if there is no use in another one.
    pub(super) fn on_end(&mut self, served_us: u64) -> Option<u64> {
        if served_us >= EARLY_US {
            self.deaths = 0;
            return Some(0);
        }
        self.deaths += 1;
        match self.deaths {
            1 => Some(0),
            DEATHS_MAX.. => None,
            deaths => Some((DELAY_US << (deaths - 2)).min(DELAY_US_MAX)),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spare {
    None,
    Starting,
    /// It has mapped all and has no rights any more.
    Ready,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Start a spare.
    Start,
    /// The spare is now the driver of this epoch.
    Promote(u32),
    /// No other will be started.
    GiveUp,
}

#[derive(Debug)]
pub(super) struct Succession {
    /// When the driver that serves began to.
    serving: Option<Time>,
    spare: Spare,
    epoch: u32,
    start_at: Time,
    backoff: Backoff,
    has_given_up: bool,
}

impl Succession {
    pub(super) fn new(now: Time) -> Self {
        Self {
            serving: None,
            spare: Spare::None,
            epoch: 0,
            start_at: now,
            backoff: Backoff::default(),
            has_given_up: false,
        }
    }

    /// What to do now.
    pub(super) fn select(&mut self, now: Time) -> Option<Action> {
        if self.serving.is_none() && self.spare == Spare::Ready {
            self.serving = Some(now);
            self.spare = Spare::None;
            if self.epoch > 0 {
                self.start_at = self.start_at.max(now.after(TAKEOVER_US));
            }
            self.epoch += 1;
            return Some(Action::Promote(self.epoch));
        }
        if self.has_given_up {
            return (self.serving.is_none() && self.spare == Spare::None).then_some(Action::GiveUp);
        }
        if self.spare == Spare::None && self.start_at <= now {
            self.spare = Spare::Starting;
            return Some(Action::Start);
        }
        None
    }

    /// When [`Succession::select`] has something to do though nothing happens.
    pub(super) fn deadline(&self) -> Time {
        let waits = self.spare == Spare::None && !self.has_given_up;
        if waits { self.start_at } else { Time::NEVER }
    }

    pub(super) fn on_ready(&mut self) {
        if self.spare == Spare::Starting {
            self.spare = Spare::Ready;
        }
    }

    pub(super) fn on_driver_ended(&mut self, now: Time) {
        if let Some(since) = self.serving.take() {
            self.pause(now.since(since), now);
        }
    }

    pub(super) fn on_spare_ended(&mut self, now: Time) {
        self.spare = Spare::None;
        self.pause(0, now);
    }

    /// The spare was ended by its owner: another one starts at once.
    pub(super) fn on_spare_removed(&mut self, now: Time) {
        self.spare = Spare::None;
        self.start_at = now;
    }

    fn pause(&mut self, served_us: u64, now: Time) {
        match self.backoff.on_end(served_us) {
            Some(delay_us) => self.start_at = self.start_at.max(now.after(delay_us)),
            None => self.has_given_up = true,
        }
    }

    /// Whether what `inet` says of a driver is meant for the one that serves. `epoch` is that of the last one that attached,
    /// which may be its predecessor's: either `inet` has not seen the new one yet, or the new one does not attach.
    pub(super) fn is_meant(&self, epoch: u32, now: Time) -> bool {
        self.serving.is_some_and(|since| epoch == self.epoch || now.since(since) >= ATTACH_US_MAX)
    }

    /// Drivers that took over from another one.
    pub(super) fn restarts(&self) -> u32 {
        self.epoch.saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1000;

    fn all(succession: &mut Succession, now: Time) -> Vec<Action> {
        std::iter::from_fn(|| succession.select(now)).take(10).collect()
    }

    #[test]
    fn a_spare_is_kept_and_takes_over_before_the_next_one_starts() {
        let now = Time(5_000_000);
        let mut drivers = Succession::new(now);
        assert_eq!(all(&mut drivers, now), [Action::Start]);
        assert_eq!(all(&mut drivers, now), [], "it is not ready");
        drivers.on_ready();
        assert_eq!(all(&mut drivers, now), [Action::Promote(1), Action::Start]);
        drivers.on_ready();
        assert_eq!((all(&mut drivers, now), drivers.serving.is_some()), (vec![], true));
        let later = now.after(500 * MS);
        drivers.on_driver_ended(later);
        assert_eq!(all(&mut drivers, later), [Action::Promote(2)]);
        let start = later.after(TAKEOVER_US);
        assert_eq!(drivers.deadline(), start, "the takeover comes first");
        assert_eq!(all(&mut drivers, start), [Action::Start]);
        assert_eq!((drivers.restarts(), drivers.deadline()), (1, Time::NEVER));
    }

    #[test]
    fn what_inet_says_of_a_driver_is_not_meant_for_its_successor() {
        let now = Time(0);
        let mut drivers = Succession::new(now);
        drivers.select(now);
        drivers.on_ready();
        assert!(!drivers.is_meant(0, now), "there is none");
        all(&mut drivers, now);
        assert!(drivers.is_meant(1, now.after(MS)));
        drivers.on_ready();
        drivers.on_driver_ended(now.after(500 * MS));
        all(&mut drivers, now.after(500 * MS));
        assert!(!drivers.is_meant(1, now.after(501 * MS)), "of the first one, said before it ended");
        assert!(drivers.is_meant(1, now.after(800 * MS)), "the second one does not attach");
    }

    #[test]
    fn a_driver_that_dies_before_its_spare_is_ready_is_followed_by_it() {
        let now = Time(0);
        let mut drivers = Succession::new(now);
        drivers.select(now);
        drivers.on_ready();
        assert_eq!(all(&mut drivers, now), [Action::Promote(1), Action::Start]);
        drivers.on_driver_ended(now.after(200 * MS));
        assert_eq!(all(&mut drivers, now.after(200 * MS)), []);
        drivers.on_ready();
        assert_eq!(drivers.select(now.after(201 * MS)), Some(Action::Promote(2)));
    }

    #[test]
    fn a_spare_that_dies_leaves_the_driver_alone() {
        let now = Time(0);
        let mut drivers = Succession::new(now);
        drivers.select(now);
        drivers.on_ready();
        all(&mut drivers, now);
        drivers.on_spare_ended(now.after(MS));
        assert!(drivers.serving.is_some());
        assert_eq!(all(&mut drivers, now.after(MS)), [Action::Start], "the first at once");
        drivers.on_spare_ended(now.after(2 * MS));
        assert_eq!(all(&mut drivers, now.after(2 * MS)), [], "the second after a while");
        assert_eq!(drivers.deadline(), now.after(2 * MS + DELAY_US));
        assert_eq!(all(&mut drivers, now.after(2 * MS + DELAY_US)), [Action::Start]);
    }

    #[test]
    fn drivers_that_die_at_once_are_started_less_and_less_often_and_then_no_more() {
        let mut now = Time(0);
        let mut drivers = Succession::new(now);
        let mut waits = Vec::new();
        loop {
            match drivers.select(now) {
                Some(Action::Start) => drivers.on_ready(),
                Some(Action::Promote(_)) => {
                    now = now.after(MS);
                    drivers.on_driver_ended(now);
                }
                Some(Action::GiveUp) => break,
                None => {
                    waits.push(drivers.deadline().since(now) / MS);
                    now = drivers.deadline();
                }
            }
        }
        assert_eq!(waits, [20, 40, 80, 160, 320, 640, 1280, 2000, 2000, 2000]);
        assert_eq!(drivers.select(now), Some(Action::GiveUp));
    }

    #[test]
    fn a_driver_that_served_for_a_while_ends_the_row() {
        let mut backoff = Backoff::default();
        for _ in 1..DEATHS_MAX {
            assert!(backoff.on_end(0).is_some());
        }
        assert_eq!(backoff.on_end(EARLY_US), Some(0));
        assert_eq!(backoff.on_end(0), Some(0));
        for _ in 2..DEATHS_MAX {
            assert!(backoff.on_end(EARLY_US - 1).is_some());
        }
        assert_eq!(backoff.on_end(0), None);
    }
}
