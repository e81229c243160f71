//! `target/mail.rs` under loom: all interleavings of a few threads, with the weakest memory order that the code
//! permits. This test compiles the file again, with loom's types in place of the standard library's; the waker counts
//! like an eventfd.
//!
//! Of the crate `area` only rings are shared (its own `tests/loom.rs`): a pool and the counts of its spans stay on one thread
//! (`Rc`, `RefCell`), which the compiler enforces.

#![allow(dead_code, unreachable_pub, missing_docs)]

#[path = "../src/target/mail.rs"]
mod mail;

mod lun {
    /// Stub of a unit; no message here carries one.
    #[derive(Debug)]
    pub(super) struct Lun;
}

mod state {
    /// Stub of a configuration; no message here carries one.
    #[derive(Debug)]
    pub(super) struct State;
}

mod sync {
    pub(super) use loom::sync::atomic::{AtomicBool, Ordering};
    pub(super) use loom::sync::{Arc, Mutex, MutexGuard, Notify};

    /// Model of `io::Waker`: a wake before the loop sleeps makes its next sleep end immediately.
    #[derive(Clone, Debug)]
    pub(super) struct Waker(pub(super) Arc<Notify>);

    impl Waker {
        pub(super) fn wake(&self) {
            self.0.notify();
        }
    }
}

use iscsi::wire::TmFunction;
use loom::model::Builder;
use loom::thread;
use mail::{AbortGroup, Aborts, ConnectionId, Mail, Mailbox, Scope};
use sync::{Arc, AtomicBool, Notify, Ordering, Waker};

/// Explores all interleavings with at most `preemptions_max` preemptions.
fn explore(preemptions_max: usize, scene: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions_max);
    builder.check(scene);
}

fn aborts() -> Aborts {
    let origin = ConnectionId { worker: 0, slot: 0, generation: 0 };
    let luns = Arc::from_std(std::sync::Arc::from([]));
    Aborts {
        function: TmFunction::LogicalUnitReset,
        scope: Scope::Lun(0),
        luns,
        nexus: 1,
        origin,
        request: 7,
    }
}

fn group(mailbox: &Arc<Mailbox>) -> Arc<AbortGroup> {
    let found = AtomicBool::new(false);
    Arc::new(AbortGroup { aborts: aborts(), found, mailbox: Arc::clone(mailbox) })
}

/// The answers in a mailbox: for each, whether tasks were found.
fn answers(mailbox: &Mailbox) -> Vec<bool> {
    let found = |mail| match mail {
        Mail::Aborted { aborts, found } if aborts.request == 7 => found,
        other => panic!("not an answer: {other:?}"),
    };
    mailbox.take().into_iter().map(found).collect()
}

/// A lost wake shows as a deadlock, which loom reports: the loop sleeps while a message is in its mailbox.
#[test]
fn no_message_waits_for_a_loop_that_sleeps() {
    explore(3, || {
        let (mailbox, notify) = (Arc::new(Mailbox::new()), Arc::new(Notify::new()));
        let senders: Vec<_> = (0..2)
            .map(|_| {
                let mailbox = Arc::clone(&mailbox);
                thread::spawn(move || mailbox.send(Mail::Drain))
            })
            .collect();
        mailbox.connect(Waker(Arc::clone(&notify)));
        let mut taken = 0;
        while taken < senders.len() {
            notify.wait();
            taken += mailbox.take().len();
        }
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        assert!(mailbox.take().is_empty(), "each message is taken once");
    });
}

/// The last holder of an abort, whichever thread that is, sends the answer, which includes what every holder found.
#[test]
fn the_last_holder_of_an_abort_answers_once_with_what_all_found() {
    explore(3, || {
        let mailbox = Arc::new(Mailbox::new());
        let first = group(&mailbox);
        let holders: Vec<_> = [false, true]
            .map(|finds| {
                let group = Arc::clone(&first);
                thread::spawn(move || {
                    if finds {
                        group.found.store(true, Ordering::Relaxed);
                    }
                    drop(group);
                })
            })
            .into();
        drop(first);
        holders.into_iter().for_each(|holder| holder.join().unwrap());
        assert_eq!(answers(&mailbox), [true]);
    });
}

/// A loop ends in parallel to an abort: its message is dropped, taken or refused, and the abort is answered in each
/// case.
#[test]
fn an_abort_sent_to_a_loop_that_ends_is_answered_once() {
    explore(3, || {
        let (origin, other) = (Arc::new(Mailbox::new()), Arc::new(Mailbox::new()));
        let (sends, ends) = (Arc::clone(&other), Arc::clone(&other));
        let group = group(&origin);
        let sender = thread::spawn(move || sends.send(Mail::Abort { group }));
        let ender = thread::spawn(move || {
            drop(ends.take());
            ends.close();
        });
        sender.join().unwrap();
        ender.join().unwrap();
        assert_eq!(answers(&origin), [false]);
    });
}

/// The origin ends while its own abort is in transit: no deadlock, and no message is left.
#[test]
fn an_abort_whose_origin_ends_holds_no_lock() {
    explore(3, || {
        let origin = Arc::new(Mailbox::new());
        let (sends, ends) = (Arc::clone(&origin), Arc::clone(&origin));
        let group = group(&origin);
        let sender = thread::spawn(move || sends.send(Mail::Abort { group }));
        let ender = thread::spawn(move || ends.close());
        sender.join().unwrap();
        ender.join().unwrap();
        assert!(origin.take().is_empty(), "closed");
    });
}
