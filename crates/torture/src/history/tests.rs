//! Legal executions are accepted; each kind of fault is detected.

use super::model::{Lie, Model};
use super::*;
use crate::stamp::Stamp;

const RUNS: u64 = 3000;
const STEPS: u64 = 300;

fn stamp(sequence: u64) -> Stamp {
    Stamp { sequence, writer: 0 }
}

fn found(sequence: u64) -> Content {
    Content::Stamp(stamp(sequence))
}

/// One sector, one client; the sequence number of an operation is its id.
struct Scene(History, u64);

impl Scene {
    fn new() -> Self {
        Self(History::new(1, Value::Zero, Rules { atomic_sectors: true, losses_reported: false }), 1000)
    }

    fn with_losses_reported() -> Self {
        let mut scene = Self::new();
        scene.0.rules.losses_reported = true;
        scene
    }

    fn submit(&mut self, sequence: u64) -> &mut Self {
        self.0.write(sequence, 0, 0..1, Value::Stamp(stamp(sequence)), false);
        self
    }

    fn done(&mut self, sequence: u64) -> &mut Self {
        self.0.complete(sequence, Outcome::Done);
        self
    }

    fn lost(&mut self, sequence: u64) -> &mut Self {
        self.0.complete(sequence, Outcome::Unknown);
        self
    }

    fn write(&mut self, sequence: u64) -> &mut Self {
        self.submit(sequence).done(sequence)
    }

    fn durable(&mut self, sequence: u64) -> &mut Self {
        self.0.write(sequence, 0, 0..1, Value::Stamp(stamp(sequence)), true);
        self.done(sequence)
    }

    fn flush(&mut self) -> &mut Self {
        self.1 += 1;
        self.0.flush(self.1, 0);
        self.0.complete(self.1, Outcome::Done);
        self
    }

    /// A flush of `client` with this result.
    fn flush_of(&mut self, client: Client, outcome: Outcome) -> &mut Self {
        self.1 += 1;
        self.0.flush(self.1, client);
        self.0.complete(self.1, outcome);
        self
    }

    fn cut(&mut self) -> &mut Self {
        self.0.cut(Cut::Certain);
        self
    }

    fn fence(&mut self) -> &mut Self {
        self.0.fence(0);
        self
    }

    fn look(&mut self, content: Content) -> Vec<Violation> {
        self.1 += 1;
        self.0.read(self.1, 0, 0..1);
        self.0.complete_read(self.1, &[content])
    }

    fn sees(&mut self, sequence: u64) -> &mut Self {
        assert_eq!(self.look(found(sequence)), []);
        self
    }

    fn objects(&mut self, content: Content, fault: Fault) {
        let violations = self.look(content);
        assert_eq!(violations.iter().map(|v| v.fault).collect::<Vec<_>>(), [fault], "{violations:?}");
    }
}

#[test]
fn legal_executions_are_accepted() {
    for seed in 0..RUNS {
        let violations = Model::new(seed, Lie::None).run(STEPS);
        assert!(violations.is_empty(), "seed {seed}: {violations:#?}");
    }
}

#[test]
fn every_lie_is_caught() {
    for lie in [
        Lie::DropsFlushes,
        Lie::IgnoresFua,
        Lie::AcknowledgesEarly,
        Lie::Repeats,
        Lie::ReadsStale,
        Lie::Tears,
        Lie::IgnoresFences,
    ] {
        let caught = (0..RUNS / 10).filter(|seed| !Model::new(*seed, lie).run(STEPS).is_empty()).count();
        // A fault without an effect on any read is not detectable.
        assert!(caught as u64 > RUNS / 300, "{lie:?}: caught in {caught} of {} runs", RUNS / 10);
    }
}

#[test]
fn a_read_beside_a_write_returns_either_and_one_after_it_the_new() {
    Scene::new().write(1).submit(2).sees(1);
    Scene::new().write(1).submit(2).sees(2);
    Scene::new().write(1).submit(2).done(2).objects(found(1), Fault::Wrong);
    Scene::new().objects(found(1), Fault::Wrong);
}

#[test]
fn what_was_seen_as_new_does_not_go_back() {
    Scene::new().write(1).submit(2).sees(2).objects(found(1), Fault::Wrong);
    Scene::new().write(1).submit(2).lost(2).sees(1).sees(2).objects(found(1), Fault::Wrong);
    // Two overlapping writes may take effect in either order, but in one.
    Scene::new().submit(1).submit(2).done(1).done(2).sees(1).objects(found(2), Fault::Wrong);
}

#[test]
fn a_lost_write_may_come_late_until_its_client_is_fenced() {
    Scene::new().write(1).submit(2).lost(2).write(3).sees(3).sees(2);
    Scene::new().write(1).submit(2).lost(2).fence().write(3).objects(found(2), Fault::Wrong);
    Scene::new().write(1).submit(2).lost(2).fence().sees(1).objects(found(2), Fault::Wrong);
}

#[test]
fn a_cut_takes_what_was_not_flushed_and_nothing_else() {
    assert!(Scene::new().write(1).cut().look(Content::Zero).is_empty());
    Scene::new().write(1).write(2).write(3).cut().sees(2);
    Scene::new().write(1).flush().cut().objects(Content::Zero, Fault::Wrong);
    Scene::new().durable(1).cut().objects(Content::Zero, Fault::Wrong);
    Scene::new().write(1).flush().write(2).cut().sees(1);
    Scene::new().write(1).flush().write(2).cut().sees(2);
    Scene::new().write(1).flush().write(2).flush().cut().objects(found(1), Fault::Wrong);
    // A flush submitted before the completion of the write does not cover it.
    let mut scene = Scene::new();
    scene.submit(1);
    scene.0.flush(50, 0);
    scene.done(1).done(50).cut();
    assert!(scene.look(Content::Zero).is_empty());
}

#[test]
fn what_was_seen_after_a_cut_stays() {
    Scene::new().write(1).write(2).cut().sees(2).objects(found(1), Fault::Wrong);
    Scene::new().write(1).write(2).cut().sees(2).cut().objects(found(1), Fault::Wrong);
    Scene::new().write(1).write(2).cut().sees(1).write(3).cut().sees(1);
    // If the power may not have failed, the cache may remain.
    let mut scene = Scene::new();
    scene.write(1).write(2).0.cut(Cut::Possible);
    scene.sees(2).0.cut(Cut::Possible);
    scene.sees(1);
}

#[test]
fn a_flush_that_crosses_a_cut_promises_nothing() {
    let mut scene = Scene::new();
    scene.write(1);
    scene.0.flush(50, 0);
    scene.cut().done(50);
    assert!(scene.look(Content::Zero).is_empty());
}

#[test]
fn where_losses_are_told_a_flush_behind_a_cut_speaks_for_its_client() {
    for cut in [Cut::Certain, Cut::Possible] {
        let scene = || {
            let mut scene = Scene::with_losses_reported();
            scene.write(1).write(2).0.cut(cut);
            scene
        };
        scene().sees(1);
        scene().flush().objects(found(1), Fault::Wrong);
        scene().sees(1).flush().objects(found(1), Fault::Wrong);
        scene().flush().sees(2);
        // Not for writes of other clients, and not for losses already reported; another failure of a flush reports
        // none.
        scene().flush_of(1, Outcome::Done).sees(1);
        scene().flush_of(0, Outcome::CacheLost).flush().sees(1);
        scene().flush_of(1, Outcome::CacheLost).flush().objects(found(1), Fault::Wrong);
        scene().flush_of(0, Outcome::Unknown).flush().objects(found(1), Fault::Wrong);
        // The reported loss was that of the earlier cut only.
        scene().flush_of(0, Outcome::CacheLost).write(3).cut().flush().objects(found(2), Fault::Wrong);
    }
    // Without the rule a flush does not cover writes before a cut.
    Scene::new().write(1).write(2).cut().flush().sees(1);
}

#[test]
fn where_losses_are_told_a_flush_speaks_for_what_was_complete_before_it() {
    let mut scene = Scene::with_losses_reported();
    scene.write(1).submit(2).0.flush(50, 0);
    scene.done(2).cut().done(50).sees(1);
    let mut scene = Scene::with_losses_reported();
    scene.write(1).write(2).0.flush(50, 0);
    scene.cut().done(50).objects(found(1), Fault::Wrong);
}

#[test]
fn torn_foreign_and_misdirected_sectors_are_told_apart() {
    Scene::new().submit(1).objects(Content::Torn, Fault::Torn);
    Scene::new().write(1).objects(Content::Foreign, Fault::Foreign);
    Scene::new().write(1).objects(Content::Misdirected { lba: 9, stamp: stamp(1) }, Fault::Misdirected);
    let mut scene = Scene::new();
    scene.0.rules.atomic_sectors = false;
    scene.submit(1);
    assert!(scene.look(Content::Torn).is_empty(), "beside a write");
    scene.done(1).objects(Content::Torn, Fault::Torn);
}

#[test]
fn after_a_violation_the_history_goes_on_from_what_was_found() {
    let mut scene = Scene::new();
    scene.write(1).write(2).objects(found(1), Fault::Wrong);
    scene.sees(1).write(3).sees(3);
}

#[test]
fn what_is_forgotten_makes_lenient_and_a_flush_makes_strict_again() {
    let mut scene = Scene::new();
    let count = VERSIONS_MAX as u64 + 40;
    for sequence in 1..=count {
        scene.write(sequence);
    }
    assert!(scene.0.versions() <= VERSIONS_MAX);
    scene.cut().sees(3);
    let mut scene = Scene::new();
    for sequence in 1..=count {
        scene.write(sequence);
    }
    scene.flush().cut().objects(found(3), Fault::Wrong);
}
