//! The life of an endpoint whose peer is lost, refused, silent, late and closed.

use std::time::Duration;

use super::backlog::Backoff;
use super::endpoint::LOGOUT_WAIT;
use super::scripted::{Act, Answer, Command, Failure, Pair, STEP_BYTES, TIMEOUT, endpoint};
use super::{Next, REPEATS_MAX, TICK};
use crate::{Endpoint, IoErrorKind, Kind, OpenError, RequestId, State};

#[test]
fn requests_are_sent_in_the_next_turn_and_completed_by_events_only() {
    let mut pair = Pair::serving();
    let (first, second) = (pair.write(0, 512), pair.write(512, 512));
    assert_eq!(pair.commands(), [], "nothing in the turn of the submission");
    pair.turn();
    assert_eq!(pair.commands(), [Command::Write(0), Command::Write(512)]);
    pair.act([Act::Answer(1, Answer::Good), Act::Answer(0, Answer::Bad)]);
    assert_eq!(pair.completed(), [(second, None), (first, Some(IoErrorKind::Medium))]);
    let nothing = pair.write(0, 0);
    assert_eq!(pair.completed(), [], "not even what needs no command");
    pair.turn();
    assert_eq!(pair.completed(), [(nothing, None)]);
    let refused = pair.submit(Kind::Discard { offset: 0, length: 512 });
    assert_eq!(pair.completed(), [(refused, Some(IoErrorKind::Unsupported))], "a refusal waits for nothing");
}

#[test]
fn a_request_of_several_commands_sends_them_one_after_the_other() {
    let mut pair = Pair::serving();
    let id = pair.write(0, 10_000);
    pair.turn();
    for task in 0..3 {
        assert_eq!(pair.commands().last(), Some(&Command::Write(task as u64 * STEP_BYTES)));
        assert_eq!(pair.completed(), []);
        pair.answer(task);
    }
    assert_eq!(pair.completed(), [(id, None)]);
}

#[test]
fn the_window_and_memory_are_waited_for_in_order() {
    let mut pair = Pair::serving();
    for offset in 0..5 {
        pair.write(offset, 1);
    }
    pair.turn();
    assert_eq!(pair.commands(), [0, 1, 2].map(Command::Write));
    pair.far.borrow_mut().is_starved = true;
    pair.answer(1);
    assert_eq!(pair.commands().len(), 3);
    pair.far.borrow_mut().is_starved = false;
    pair.pass(TICK);
    pair.answer(0);
    assert_eq!(pair.commands(), [0, 1, 2, 3, 4].map(Command::Write));
}

#[test]
fn what_a_lost_link_left_unanswered_is_sent_again_in_its_first_order() {
    let mut pair = Pair::serving();
    pair.far.borrow_mut().accepts.push_back(Act::Up);
    let ids: Vec<RequestId> = (0..4).map(|offset| pair.write(offset, 1)).collect();
    pair.turn();
    pair.act([Act::Answer(1, Answer::Good)]);
    assert_eq!(pair.commands(), [0, 1, 2, 3].map(Command::Write));
    // An answer that comes together with the end of the link counts; one behind it does not.
    pair.act([Act::Answer(0, Answer::Later(TIMEOUT)), Act::Cut("cut"), Act::Answer(2, Answer::Good)]);
    let late = pair.write(9, 1);
    assert_eq!(pair.completed(), [(ids[1], None)]);
    assert_eq!((pair.remote.inspect().retries(), pair.remote.inspect().losses()), (2, 1));
    assert_eq!(pair.far.borrow().changes, ["cut, 3 unanswered, 100 ms"]);
    pair.pass(Backoff::MIN + TICK);
    let expected = [0, 2, 3].map(Command::Write);
    assert_eq!(pair.commands(), expected, "what waited for a time, too; then what is new");
    for task in 0..4 {
        pair.answer(task);
    }
    assert_eq!(pair.completed(), [ids[0], ids[2], ids[3], late].map(|id| (id, None)));
    assert!(matches!(pair.remote.state(), State::Ready));
}

#[test]
fn a_write_begins_anew_on_the_next_link_and_a_read_goes_on() {
    let mut pair = Pair::serving();
    pair.far.borrow_mut().accepts.push_back(Act::Up);
    pair.write(0, 8192);
    let into = pair.io.pool().take(8192).unwrap();
    pair.submit(Kind::Read { offset: 0, into });
    pair.turn();
    pair.act([Act::Answer(0, Answer::Good), Act::Answer(1, Answer::Good)]);
    assert_eq!(pair.commands()[2..], [Command::Read(STEP_BYTES), Command::Write(STEP_BYTES)]);
    pair.act([Act::Cut("cut")]);
    pair.pass(Backoff::MIN + TICK);
    assert_eq!(pair.commands(), [Command::Write(0), Command::Read(STEP_BYTES)]);
}

#[test]
fn a_command_of_the_peers_own_is_not_sent_again() {
    let mut pair = Pair::serving();
    pair.far.borrow_mut().accepts.push_back(Act::Up);
    pair.far.borrow_mut().wants_answer = true;
    pair.flush();
    pair.turn();
    assert_eq!(pair.commands(), [Command::Flush, Command::Query], "requests first");
    pair.answer(1);
    assert_eq!(pair.completed(), [], "its end ends no request");
    pair.act([Act::Cut("cut")]);
    pair.pass(Backoff::MIN + TICK);
    assert_eq!((pair.commands(), pair.remote.inspect().retries()), (vec![Command::Flush], 1));
}

#[test]
fn attempts_come_at_longer_and_longer_distances_and_turn_to_the_next_address() {
    let mut pair = Pair::open(2, [Act::Up]);
    let refused = || Act::Fail(Failure::Lost("refused"));
    pair.far.borrow_mut().accepts.extend(std::iter::repeat_with(refused).take(6));
    pair.far.borrow_mut().accepts.push_back(Act::Up);
    pair.act([Act::Cut("cut")]);
    pair.pass(Duration::from_secs(9));
    assert_eq!(pair.attempts_ms(), [0, 100, 300, 700, 1500, 3100, 5100, 7100]);
    assert_eq!(pair.addresses(), [0, 1, 0, 1, 0, 1, 0, 1]);
    assert_eq!(pair.remote.inspect().losses(), 1, "an attempt that fails loses no connection");
    // The link served: the next pause is the shortest again.
    pair.act([Act::Cut("cut")]);
    assert_eq!(pair.far.borrow().changes.last().unwrap(), "cut, 0 unanswered, 100 ms");
}

#[test]
fn a_silent_link_is_cut_and_requests_fail_when_it_lets_go_of_their_buffers() {
    let mut pair = Pair::serving();
    let ids = [pair.write(0, 1), pair.flush()];
    pair.far.borrow_mut().holds = true;
    pair.pass(TIMEOUT + TICK * 3);
    assert_eq!(pair.completed(), [], "the kernel still works on a buffer");
    assert!(pair.far.borrow().changes.is_empty());
    pair.far.borrow_mut().holds = false;
    pair.deliver();
    let text = pair.done[0].result.as_ref().unwrap_err().to_string();
    assert_eq!(text, "memory: nothing completed for 5 s (the far end does not answer); look at it");
    assert_eq!(pair.completed(), ids.map(|id| (id, Some(IoErrorKind::Unreachable))));
    assert_eq!(pair.far.borrow().changes, ["Expired"], "it is no lost connection to be logged");
    // The endpoint goes on: the next attempt, and what is asked then.
    pair.far.borrow_mut().accepts.push_back(Act::Up);
    pair.pass(Backoff::MAX + TICK);
    let next = pair.flush();
    pair.turn();
    pair.answer(0);
    assert_eq!(pair.completed(), [(next, None)]);
    pair.flush();
    pair.act([Act::Cut("cut")]);
    assert_eq!(pair.completed(), [], "a link that is lost later fails nothing");
}

#[test]
fn a_silent_link_is_not_blamed_on_a_failure_before_it() {
    let mut pair = Pair::serving();
    pair.far.borrow_mut().accepts.extend([Act::Fail(Failure::Lost("refused")), Act::Up]);
    pair.act([Act::Cut("cut")]);
    pair.flush();
    pair.pass(Backoff::MIN * 3 + TICK);
    assert_eq!(pair.commands(), [Command::Flush]);
    pair.pass(TIMEOUT + TICK);
    let text = pair.done[0].result.as_ref().unwrap_err().to_string();
    assert_eq!(text, "memory: nothing completed for 5 s (the far end does not answer); look at it");
}

#[test]
fn time_counts_from_the_last_thing_that_ended() {
    let mut pair = Pair::serving();
    pair.pass(TIMEOUT * 3);
    let (first, second) = (pair.flush(), pair.write(0, 8192));
    pair.turn();
    pair.pass(TIMEOUT - TICK);
    pair.answer(0);
    pair.pass(TIMEOUT - TICK);
    // A part of a request is progress, too.
    pair.answer(1);
    pair.pass(TIMEOUT - TICK);
    assert_eq!(pair.completed(), [(first, None)]);
    pair.pass(TICK * 2);
    assert_eq!(pair.completed(), [(second, Some(IoErrorKind::Unreachable))]);
}

#[test]
fn requests_that_no_link_comes_for_fail_and_attempts_go_on() {
    let mut pair = Pair::serving();
    let refused = || Act::Fail(Failure::Lost("refused"));
    pair.far.borrow_mut().accepts.extend(std::iter::repeat_with(refused).take(8));
    pair.act([Act::Cut("cut")]);
    let id = pair.flush();
    pair.pass(TIMEOUT + TICK);
    let text = pair.done[0].result.as_ref().unwrap_err().to_string();
    assert_eq!(text, "memory: nothing completed for 5 s (refused); look at it");
    assert_eq!(pair.completed(), [(id, Some(IoErrorKind::Unreachable))]);
    pair.pass(Backoff::MAX * 2);
    assert_eq!(pair.attempts_ms()[5..], [3100, 5100, 7100, 9100], "not sooner and not later than without");
}

#[test]
fn links_that_end_no_request_keep_requests_alive_only_a_few_times() {
    let mut pair = Pair::serving();
    let id = pair.flush();
    for _ in 0..12 {
        pair.far.borrow_mut().accepts.push_back(Act::Up);
        pair.act([Act::Cut("cut")]);
        pair.pass(Backoff::MAX + TICK);
    }
    assert_eq!(pair.completed(), [(id, Some(IoErrorKind::Unreachable))]);
    assert!(pair.attempts_ms().len() > 4);
}

#[test]
fn after_a_loss_of_the_cache_the_next_flush_fails_and_no_other() {
    let mut pair = Pair::serving();
    pair.far.borrow_mut().accepts.push_back(Act::Up);
    pair.write(0, 1);
    pair.turn();
    pair.answer(0);
    pair.act([Act::Cut("cut")]);
    pair.pass(Backoff::MIN + TICK);
    pair.act([Act::Forget, Act::Forget]);
    assert_eq!(pair.far.borrow().changes[1..], ["CacheLost"], "the second time nothing was left to lose");
    pair.completed();
    let first = pair.flush();
    pair.turn();
    pair.answer(0);
    let second = pair.flush();
    pair.turn();
    pair.answer(1);
    assert_eq!(pair.completed(), [(first, Some(IoErrorKind::CacheLost)), (second, None)]);
}

#[test]
fn an_endpoint_dropped_with_writes_that_were_not_flushed_counts_them_as_lost() {
    for flushed in [true, false] {
        let Pair { clock, mut io, far, cache, remote, mut done, .. } = {
            let mut pair = Pair::serving();
            pair.write(0, 1);
            pair.turn();
            pair.answer(0);
            if flushed {
                pair.flush();
                pair.turn();
                pair.answer(1);
            }
            pair
        };
        drop(remote);
        assert_eq!(far.borrow().changes.is_empty(), flushed, "{:?}", far.borrow().changes);
        done.clear();
        far.borrow_mut().accepts.push_back(Act::Up);
        let remote = endpoint(&mut io, &clock, &far, &cache, 1);
        let mut pair = Pair { clock, io, far, cache, remote, done, last: 0 };
        pair.deliver();
        let id = pair.flush();
        pair.turn();
        pair.answer(0);
        let expected = (!flushed).then_some(IoErrorKind::CacheLost);
        assert_eq!(pair.completed(), [(id, expected)]);
        assert!(!pair.cache.lost());
    }
}

#[test]
fn an_endpoint_that_was_never_open_tries_each_address_once() {
    let refused = || Act::Fail(Failure::Lost("refused"));
    let pair = Pair::open(3, std::iter::repeat_with(refused).take(9));
    assert_eq!((pair.addresses(), pair.attempts_ms()), (vec![0, 1, 2], vec![0, 0, 0]));
    let State::Failed(error) = pair.remote.state() else { panic!("{:?}", pair.remote.state()) };
    assert_eq!(error, OpenError::Unreachable("memory: refused".into()));
    assert!(pair.remote.is_closed());
}

#[test]
fn an_endpoint_that_does_not_open_in_time_is_given_up() {
    let mut pair = Pair::open(3, []);
    pair.pass(TIMEOUT - TICK);
    assert!(matches!(pair.remote.state(), State::Opening));
    pair.pass(TICK * 2);
    let State::Failed(error) = pair.remote.state() else { panic!("{:?}", pair.remote.state()) };
    assert_eq!(error, OpenError::Unreachable("memory: no answer in 5 s".into()));
    assert_eq!((pair.addresses(), pair.attempts_ms()), (vec![0, 1, 2], vec![0, 1300, 2600]));
}

#[test]
fn an_address_that_does_not_become_ready_leaves_time_for_the_others() {
    let mut pair = Pair::open(2, []);
    pair.pass(TIMEOUT - TICK);
    pair.act([Act::Up]);
    assert!(matches!(pair.remote.state(), State::Ready));
    assert_eq!((pair.addresses(), pair.attempts_ms()), (vec![0, 1], vec![0, 1700]));
    // After a loss, too, and in turn as long as none is ready.
    pair.act([Act::Cut("cut")]);
    let id = pair.flush();
    pair.pass(TIMEOUT - TICK);
    assert_eq!(pair.addresses()[2..], [0, 1, 0]);
    pair.act([Act::Up]);
    pair.turn();
    pair.answer(0);
    assert_eq!(pair.completed(), [(id, None)]);
    // An only address has all of the time.
    let mut pair = Pair::open(1, []);
    pair.pass(TIMEOUT - TICK);
    pair.act([Act::Up]);
    assert!(matches!(pair.remote.state(), State::Ready));
}

/// What one address answers need not be what the others answer, unless it is about secrets, keys or the disk itself.
#[test]
fn permanent_failures_of_one_address_lead_to_the_next_unless_they_are_the_same_everywhere() {
    let text = || "refused".to_owned();
    for (error, leads_on) in [
        (OpenError::Failed(text()), true),
        (OpenError::Missing(text()), true),
        (OpenError::Unreachable(text()), true),
        (OpenError::Usage(text()), false),
        (OpenError::Exchanged(text()), false),
        (OpenError::Refused(text()), false),
        (OpenError::Authentication(text()), false),
        (OpenError::Chap(text()), false),
        (OpenError::Unverified(text()), false),
        (OpenError::Damaged(text()), false),
        (OpenError::Unprotected(text()), false),
        (OpenError::Certificate(text()), false),
    ] {
        let fail = || Act::Fail(Failure::Final(error.clone()));
        let pair = Pair::open(2, [fail(), Act::Up]);
        assert_eq!(matches!(pair.remote.state(), State::Ready), leads_on, "{error:?}");
        assert_eq!(pair.addresses().len(), 1 + usize::from(leads_on), "{error:?}");
        // After a loss: the requests wait for another address.
        let mut pair = Pair::open(2, [Act::Up, fail(), Act::Up]);
        pair.act([Act::Cut("cut")]);
        let id = pair.flush();
        pair.pass(Duration::from_secs(1));
        pair.answer(0);
        let completed = pair.completed();
        assert_eq!(completed[0].1.is_none(), leads_on, "{error:?} {completed:?}");
        assert_eq!(completed[0].0, id);
        // The only address: no other attempt.
        let pair = Pair::open(1, [fail(), Act::Up]);
        let State::Failed(failed) = pair.remote.state() else { panic!("{error:?}") };
        assert_eq!((failed, pair.addresses()), (error.clone(), vec![0]));
    }
}

#[test]
fn of_several_failures_the_first_answer_is_reported() {
    let missing = OpenError::Missing("no such unit".into());
    let fail = |error: &OpenError| Act::Fail(Failure::Final(error.clone()));
    let refused = || Act::Fail(Failure::Lost("refused"));
    let wrong = OpenError::Authentication("wrong".into());
    for (accepts, expected) in [
        (vec![refused(), fail(&missing), refused()], &missing),
        (vec![fail(&missing), fail(&OpenError::Failed("other".into())), refused()], &missing),
        (vec![fail(&missing), fail(&wrong)], &wrong),
    ] {
        let pair = Pair::open(3, accepts.clone());
        let State::Failed(error) = pair.remote.state() else { panic!("{:?}", pair.remote.state()) };
        assert_eq!((&error, pair.addresses().len()), (expected, accepts.len()));
    }
}

#[test]
fn attempts_to_open_go_on_for_as_long_as_the_peer_wants() {
    let busy = || Act::Fail(Failure::Busy);
    let mut pair = Pair::open(1, std::iter::repeat_with(busy).take(9));
    pair.pass(Duration::from_secs(1));
    assert_eq!(pair.attempts_ms(), [0, 100, 200, 300]);
    assert!(matches!(pair.remote.state(), State::Failed(OpenError::Unreachable(_))));
    let mut pair = Pair::open(1, [busy(), busy(), Act::Up]);
    pair.pass(Duration::from_secs(1));
    assert!(matches!(pair.remote.state(), State::Ready));
}

#[test]
fn attempts_to_open_turn_to_the_next_address_too() {
    let busy = || Act::Fail(Failure::Busy);
    let mut pair = Pair::open(2, std::iter::repeat_with(busy).take(9));
    pair.pass(Duration::from_secs(1));
    assert_eq!(pair.attempts_ms(), [0, 0, 100, 200, 300]);
    assert_eq!(pair.addresses(), [0, 1, 0, 1, 0]);
}

#[test]
fn a_redirection_is_followed_at_once() {
    let pair = Pair::open(2, [Act::Fail(Failure::Redirect), Act::Up]);
    assert_eq!((pair.addresses(), pair.attempts_ms()), (vec![0, 77], vec![0, 0]));
    assert!(matches!(pair.remote.state(), State::Ready));
}

#[test]
fn outcomes_of_a_link_that_has_ended_are_not_taken_for_the_next_ones() {
    let mut pair = Pair::open(2, []);
    pair.act([Act::Fail(Failure::Redirect), Act::Up]);
    assert_eq!(pair.addresses(), [0, 77]);
    assert!(matches!(pair.remote.state(), State::Opening));
}

#[test]
fn a_link_that_is_of_no_use_is_dropped_and_another_one_made_later() {
    let mut pair = Pair::serving();
    let refuse = Act::Refuse(Next::retry("not ready"));
    pair.far.borrow_mut().accepts.extend([refuse, Act::Up]);
    pair.act([Act::Cut("cut")]);
    let id = pair.flush();
    pair.pass(Backoff::MIN + TICK);
    assert_eq!(pair.far.borrow().changes, ["cut, 0 unanswered, 100 ms", "not ready, 1 unanswered, 200 ms"]);
    pair.act([Act::Cut("cut")]);
    assert_eq!(pair.remote.inspect().losses(), 1, "there is no link to be lost");
    pair.pass(Backoff::MIN * 2);
    pair.answer(0);
    assert_eq!(pair.completed(), [(id, None)]);
}

#[test]
fn what_will_not_pass_closes_an_endpoint_and_fails_its_requests() {
    let gone = || OpenError::Exchanged("another one".into());
    for (act, kind) in [
        (Act::Fail(Failure::Final(gone())), IoErrorKind::Gone),
        (Act::Refuse(Next::GiveUp(gone())), IoErrorKind::Gone),
        (Act::Refuse(Next::GiveUp(OpenError::Certificate("expired".into()))), IoErrorKind::Refused),
        (Act::Refuse(Next::GiveUp(OpenError::Missing("no such unit".into()))), IoErrorKind::Unreachable),
    ] {
        let mut pair = Pair::serving();
        let id = pair.flush();
        pair.act([Act::Cut("cut")]);
        pair.far.borrow_mut().accepts.push_back(act);
        pair.pass(Backoff::MIN + TICK);
        assert_eq!(pair.completed(), [(id, Some(kind))]);
        assert!(pair.remote.is_closed() && matches!(pair.remote.state(), State::Ready));
        let late = pair.flush();
        assert_eq!(pair.done[0].result.as_ref().unwrap_err().to_string(), "memory is closed");
        assert_eq!(pair.completed(), [(late, Some(IoErrorKind::Unreachable))]);
        pair.pass(TIMEOUT);
        assert_eq!(pair.attempts_ms().len(), 2, "there is no further attempt");
    }
}

#[test]
fn a_link_that_serves_is_closed_in_order() {
    let mut pair = Pair::serving();
    let (first, second) = (pair.flush(), pair.flush());
    pair.turn();
    pair.remote.close(&mut pair.io);
    pair.remote.close(&mut pair.io);
    assert!(pair.far.borrow().logged_out == 1 && !pair.remote.is_closed());
    pair.answer(0);
    assert_eq!(pair.completed(), [(first, None)], "what is under way may end");
    pair.act([Act::Cut("logged out")]);
    assert_eq!(pair.completed(), [(second, Some(IoErrorKind::Aborted))], "what has not is not sent again");
    assert!(pair.remote.is_closed());
    pair.pass(TIMEOUT);
    assert_eq!(pair.attempts_ms().len(), 1);
}

#[test]
fn a_link_is_renewed_if_that_is_worth_it_and_nothing_is_in_the_way() {
    for answered in [true, false] {
        let mut pair = Pair::serving();
        pair.far.borrow_mut().accepts.extend([Act::Up]);
        pair.remote.renew(&mut pair.io, STEP_BYTES);
        assert_eq!(pair.far.borrow().logged_out, 0, "few bytes");
        let write = pair.write(0, 512);
        pair.turn();
        pair.remote.renew(&mut pair.io, 1 << 20);
        pair.answer(0);
        pair.remote.renew(&mut pair.io, 1 << 20);
        assert_eq!(pair.far.borrow().logged_out, 0, "a request in flight, and one that was not flushed");
        let flush = pair.flush();
        pair.turn();
        pair.answer(1);
        pair.remote.renew(&mut pair.io, 1 << 20);
        let next = pair.flush();
        pair.turn();
        assert_eq!((pair.far.borrow().logged_out, pair.commands().len()), (1, 2), "logged out: it waits");
        if answered {
            pair.act([Act::Cut("logged out")]);
        }
        pair.pass(2 * LOGOUT_WAIT);
        assert_eq!(pair.commands(), [Command::Flush], "on the next link");
        pair.answer(0);
        assert_eq!(pair.completed(), [(write, None), (flush, None), (next, None)]);
        assert_eq!((pair.attempts_ms().len(), pair.remote.inspect().losses()), (2, 0));
        assert!(pair.far.borrow().changes.is_empty());
    }
}

#[test]
fn the_answer_to_a_logout_is_not_awaited_for_long() {
    let mut pair = Pair::serving();
    let id = pair.flush();
    pair.turn();
    pair.remote.close(&mut pair.io);
    pair.pass(2 * LOGOUT_WAIT);
    assert!(!pair.remote.is_closed(), "a request has not ended");
    pair.answer(0);
    assert_eq!(pair.completed(), [(id, None)]);
    pair.pass(TICK);
    assert!(pair.remote.is_closed());
    let mut pair = Pair::serving();
    pair.turn();
    pair.remote.close(&mut pair.io);
    pair.pass(LOGOUT_WAIT / 2);
    assert!(pair.far.borrow().logged_out == 1 && !pair.remote.is_closed());
    pair.pass(LOGOUT_WAIT);
    assert!(pair.remote.is_closed());
}

#[test]
fn a_link_that_does_not_serve_is_closed_at_once() {
    let mut pair = Pair::open(1, []);
    pair.remote.close(&mut pair.io);
    assert!(pair.remote.is_closed());
    let mut pair = Pair::serving();
    pair.act([Act::Cut("cut")]);
    let id = pair.flush();
    pair.remote.close(&mut pair.io);
    assert!(!pair.remote.is_closed(), "a request has not ended");
    pair.turn();
    assert_eq!(pair.completed(), [(id, Some(IoErrorKind::Aborted))]);
    assert!(pair.remote.is_closed());
    pair.pass(TIMEOUT);
    assert_eq!(pair.attempts_ms().len(), 1);
}

#[test]
fn a_command_that_is_sent_back_is_repeated_a_bounded_number_of_times() {
    let mut pair = Pair::serving();
    let id = pair.flush();
    pair.turn();
    for task in 0..=REPEATS_MAX as usize {
        assert_eq!(pair.completed(), []);
        pair.act([Act::Answer(task, Answer::Again)]);
    }
    let text = pair.done[0].result.as_ref().unwrap_err().to_string();
    assert_eq!(text, "the far end refuses it again and again: not now");
    assert_eq!(pair.completed(), [(id, Some(IoErrorKind::Other))]);
    assert_eq!((pair.commands().len() as u32, pair.remote.inspect().retries()), (REPEATS_MAX + 1, 0));
}

#[test]
fn what_was_sent_back_is_counted_anew_after_every_command_that_ends_well() {
    let mut pair = Pair::serving();
    let id = pair.write(0, 8192);
    pair.turn();
    for task in 0..=2 * REPEATS_MAX as usize {
        let is_half = task == REPEATS_MAX as usize;
        pair.act([Act::Answer(task, if is_half { Answer::Good } else { Answer::Again })]);
    }
    assert_eq!(pair.completed(), []);
    pair.answer(2 * REPEATS_MAX as usize + 1);
    assert_eq!(pair.completed(), [(id, None)]);
}

#[test]
fn a_command_for_which_it_is_too_early_is_repeated_after_a_pause() {
    let mut pair = Pair::serving();
    let id = pair.flush();
    pair.turn();
    pair.act([Act::Answer(0, Answer::Later(TICK * 2))]);
    pair.pass(TICK);
    assert_eq!(pair.commands().len(), 1);
    pair.pass(TICK * 2);
    pair.answer(1);
    assert_eq!(pair.completed(), [(id, None)]);
}

/// A target that answers BUSY for ever answers: the message says so.
#[test]
fn a_request_that_is_always_too_early_fails_with_what_was_answered() {
    for (answers, expected) in
        [(true, "the far end keeps answering BUSY"), (false, "the far end does not answer")]
    {
        let mut pair = Pair::serving();
        pair.flush();
        pair.turn();
        if answers {
            pair.act([Act::Answer(0, Answer::Later(TICK))]);
        }
        pair.pass(TIMEOUT + TICK * 2);
        let failures = pair.failures();
        assert!(matches!(&failures[..], [text] if text.contains(expected)), "{failures:?}");
    }
}

#[test]
fn a_link_works_ahead_when_the_loop_has_nothing_else_to_do() {
    let mut pair = Pair::serving();
    pair.far.borrow_mut().wants_idle = true;
    pair.flush();
    pair.turn();
    assert_eq!((pair.commands().len(), pair.far.borrow().idled), (1, 0), "requests first");
    pair.turn();
    pair.turn();
    assert_eq!(pair.far.borrow().idled, 1, "as long as it wants to");
}
