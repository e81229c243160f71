//! Requests of an endpoint whose links are lost, refused, silent, late and closed one by one.

use std::time::Duration;

use super::super::scripted::{Act, Answer, Command, Failure, Group, STEP_BYTES, TIMEOUT};
use super::super::{Links, TICK};
use crate::{Endpoint, Inspect, IoErrorKind, Kind, OpenError, State};

/// Longer than the first pause of a lost link.
const PAUSE: Duration = Duration::from_millis(250);

fn writes<const N: usize>(offsets: [u64; N]) -> Vec<Command> {
    offsets.map(Command::Write).to_vec()
}

#[test]
fn requests_go_to_the_link_with_the_fewest_bytes() {
    let mut group = Group::serving(3);
    let ids: Vec<_> = (0..6).map(|offset| group.write(offset)).collect();
    group.turn();
    for (far, offsets) in [(0, [0, 3]), (1, [1, 4]), (2, [2, 5])] {
        assert_eq!(group.commands(far), writes(offsets));
    }
    (0..2).for_each(|task| group.answer(1, task));
    assert_eq!(group.completed(), [(ids[1], None), (ids[4], None)]);
    let (first, second) = (group.write(6), group.read(7));
    group.turn();
    let expected = [writes([1, 4, 6]), vec![Command::Read(7)]].concat();
    assert_eq!(group.commands(1), expected, "the others have more outstanding");
    (2..4).for_each(|task| group.answer(1, task));
    assert_eq!(group.completed(), [(first, None), (second, None)]);
    assert_eq!(group.several.in_flight(crate::Direction::Write), None, "a peer without a path");
}

#[test]
fn a_sent_request_waits_for_its_own_link_and_an_unsent_one_moves() {
    let mut group = Group::serving(2);
    // Three on each link are in the window, and one more is not.
    let ids: Vec<_> = (0..8).map(|offset| group.write(offset)).collect();
    group.turn();
    assert_eq!(group.commands(1), writes([1, 3, 5]));
    group.act(1, [Act::Cut("cut")]);
    (0..3).for_each(|task| group.answer(0, task));
    assert_eq!(group.commands(0), writes([0, 2, 4, 6, 7]), "none of those that link 1 may have written");
    let late = group.write(9);
    group.turn();
    (3..6).for_each(|task| group.answer(0, task));
    assert_eq!(group.completed(), [ids[0], ids[2], ids[4], ids[6], ids[7], late].map(|id| (id, None)));
    group.fars[1].borrow_mut().accepts.push_back(Act::Up);
    group.pass(PAUSE);
    assert_eq!(group.commands(1), writes([1, 3, 5]), "behind the link that ends those of the lost one");
    (0..3).for_each(|task| group.answer(1, task));
    assert_eq!(group.completed(), [ids[1], ids[3], ids[5]].map(|id| (id, None)));
    assert_eq!((group.several.retries(), group.several.losses()), (3, 1));
}

#[test]
fn one_flush_by_the_first_link_covers_all() {
    let mut group = Group::serving(3);
    let _ = [0, 1, 2].map(|offset| group.write(offset));
    group.turn();
    (0..3).for_each(|far| group.answer(far, 0));
    assert!(group.cache.holds(3));
    for _ in 0..2 {
        group.submit(Kind::Flush);
    }
    group.turn();
    assert_eq!(group.commands(0), [writes([0]), vec![Command::Flush; 2]].concat());
    group.answer(0, 1);
    assert!(!group.cache.holds(3));
    assert_eq!([1, 2].map(|far| group.commands(far).len()), [1; 2]);
}

#[test]
fn a_flush_waits_for_the_first_link_and_tells_of_lost_power() {
    let mut group = Group::serving(2);
    group.fars[0].borrow_mut().accepts.push_back(Act::Up);
    group.write(0);
    group.write(1);
    group.turn();
    (0..2).for_each(|far| group.answer(far, 0));
    group.completed();
    group.act(0, [Act::Cut("cut")]);
    let flush = group.submit(Kind::Flush);
    group.turn();
    assert_eq!(group.commands(1).len(), 1, "the younger link may not know what was lost");
    group.pass(PAUSE);
    group.act(0, [Act::Forget, Act::Answer(0, Answer::Good)]);
    assert_eq!(group.completed(), [(flush, Some(IoErrorKind::CacheLost))]);
}

#[test]
fn a_further_link_that_is_refused_is_no_failure() {
    let refused = Act::Fail(Failure::Final(OpenError::Refused("one session".into())));
    let mut group =
        Group::open(Links::Fixed(4), vec![vec![Act::Up], vec![Act::Up], vec![refused], vec![Act::Up]]);
    assert!(matches!(group.several.state(), State::Ready));
    let ids: Vec<_> = (0..6).map(|offset| group.write(offset)).collect();
    group.turn();
    assert_eq!([0, 1, 3].map(|far| group.commands(far).len()), [2; 3]);
    for far in [0, 1, 3] {
        (0..2).for_each(|task| group.answer(far, task));
    }
    assert_eq!(group.completed().len(), ids.len());
    group.pass(TIMEOUT);
    assert_eq!(group.attempts(2), 1, "it is not asked again soon");
}

#[test]
fn a_further_link_of_which_no_command_is_carried_out_is_given_up() {
    let mut group = Group::serving(3);
    let mut ids: Vec<_> = (0..6).map(|offset| group.write(offset)).collect();
    group.turn();
    let mut busy = 0;
    for _ in 0..30 {
        // Link 1 keeps answering BUSY, the others do their work.
        for task in busy..group.commands(1).len() {
            group.act(1, [Act::Answer(task, Answer::Later(PAUSE))]);
        }
        busy = group.commands(1).len();
        ids.push(group.read(9));
        group.pass(Duration::from_millis(100));
        for far in [0, 2] {
            let commands = group.commands(far).len();
            (0..commands).for_each(|task| group.answer(far, task));
        }
    }
    group.pass(TIMEOUT + TICK);
    for far in [0, 2] {
        let commands = group.commands(far).len();
        (0..commands).for_each(|task| group.answer(far, task));
    }
    let mut completed = group.completed();
    completed.sort_unstable_by_key(|(id, _)| *id);
    assert_eq!(completed, ids.iter().map(|id| (*id, None)).collect::<Vec<_>>());
    assert_eq!(group.fars[1].borrow().logged_out, 1);
    assert!(!group.commands(2).is_empty() && busy > 0);
}

#[test]
fn a_link_that_opens_never_holds_no_request() {
    let mut group = Group::open(Links::Fixed(2), vec![vec![Act::Up], vec![]]);
    let ids = [0, 1, 2].map(|offset| group.write(offset));
    group.turn();
    (0..3).for_each(|task| group.answer(0, task));
    assert_eq!(group.completed(), ids.map(|id| (id, None)));
    group.pass(TIMEOUT + TICK);
    assert_eq!((group.attempts(1), group.several.losses()), (1, 0));
}

#[test]
fn after_a_timeout_writes_go_behind_the_one_that_may_still_be_carried_out() {
    let mut group = Group::serving(3);
    let ids = [0, 1, 2].map(|offset| group.write(offset));
    group.turn();
    [0, 2].into_iter().for_each(|far| group.answer(far, 0));
    assert_eq!(group.completed(), [(ids[0], None), (ids[2], None)]);
    group.pass(TIMEOUT + TICK);
    assert_eq!(group.completed(), [(ids[1], Some(IoErrorKind::Unreachable))]);
    let (write, read) = (group.write(1), group.read(1));
    group.turn();
    assert_eq!([0, 2].map(|far| group.commands(far).len()).iter().sum::<usize>(), 3, "the read alone");
    group.answer(0, 1);
    assert_eq!(group.completed(), [(read, None)]);
    group.fars[1].borrow_mut().accepts.push_back(Act::Up);
    group.pass(Duration::from_secs(3));
    assert_eq!(group.commands(1), writes([1]));
    group.answer(1, 0);
    assert_eq!(group.completed(), [(write, None)]);
    let _ = [3, 4, 5].map(|offset| group.write(offset));
    group.turn();
    assert_eq!([0, 1, 2].map(|far| group.commands(far).len()), [3, 2, 2], "all take writes again");
}

#[test]
fn with_two_writes_that_may_still_be_carried_out_further_ones_fail() {
    let mut group = Group::serving(3);
    let _ = [0, 1, 2].map(|offset| group.write(offset));
    group.turn();
    group.answer(0, 0);
    group.pass(TIMEOUT + TICK);
    group.completed();
    let (write, read) = (group.write(7), group.read(7));
    assert_eq!(group.completed(), [(write, Some(IoErrorKind::Unreachable))]);
    group.turn();
    group.answer(0, 1);
    assert_eq!(group.completed(), [(read, None)]);
}

#[test]
fn what_waits_behind_a_stale_write_times_out() {
    let mut group = Group::serving(2);
    let _ = [0, 1].map(|offset| group.write(offset));
    group.turn();
    group.answer(0, 0);
    group.pass(TIMEOUT + TICK);
    group.completed();
    let write = group.write(1);
    group.pass(TIMEOUT + TICK);
    assert_eq!(group.completed(), [(write, Some(IoErrorKind::Unreachable))]);
}

#[test]
fn the_end_is_that_of_all_links() {
    let mut group = Group::serving(2);
    let mut owners = Vec::new();
    group.several.owners(&mut owners);
    assert_eq!(owners.len(), 2 * super::LINKS_MAX, "those of further links, too");
    group.several.close(&mut group.io);
    assert_eq!([0, 1].map(|far| group.fars[far].borrow().logged_out), [1; 2]);
    group.act(0, [Act::Cut("logged out")]);
    assert!(!group.several.is_closed());
    group.act(1, [Act::Cut("logged out")]);
    assert!(group.several.is_closed());
}

/// A path on which one link carries 4 MB in a round trip.
fn far_path() -> io::Path {
    let round_trip = Duration::from_millis(100);
    io::Path { round_trip, round_trip_least: round_trip, ..io::Path::default() }
}

#[test]
fn bytes_in_flight_are_those_of_the_sum_of_all_links() {
    let mut group = Group::serving(2);
    for far in &group.fars {
        let mut far = far.borrow_mut();
        (far.path, far.worth) = (Some(far_path()), Some(60_000_000));
    }
    let in_flight = |group: &Group| group.several.in_flight(crate::Direction::Read);
    assert_eq!(in_flight(&group), Some(120_000_000), "until a window has ended");
    for task in 0..2 {
        group.pass(Duration::from_secs(1));
        group.read(0);
        group.turn();
        group.answer(0, task);
    }
    assert_eq!(in_flight(&group), Some(25_000_000), "1 Gbit/s, until the rate is known");
}

#[test]
fn links_come_where_requests_wait_and_go_where_they_bring_nothing() {
    let mut group = Group::open(Links::Auto, vec![vec![Act::Up]; 8]);
    for far in &group.fars {
        far.borrow_mut().path = Some(far_path());
    }
    let (mut most, mut answered) = (0, [0; 8]);
    // The other end answers one command in 10 ms, whichever link it came over.
    for round in 0..400 {
        group.pass(Duration::from_millis(10));
        for offset in 0..60 - group.several.outstanding() / STEP_BYTES {
            group.write(offset);
        }
        group.turn();
        let waiting = (0..8).filter(|far| group.commands(*far).len() > answered[*far]);
        let far = waiting.min_by_key(|far| (round + far) % 8).unwrap();
        group.answer(far, answered[far]);
        answered[far] += 1;
        most = most.max(group.several.serving());
    }
    assert_eq!(most, 8, "400 KB/s in a link: a trial of all");
    assert_eq!(group.several.serving(), 1);
    let ended: u32 = group.fars[1..].iter().map(|far| far.borrow().logged_out).sum();
    assert_eq!(ended, 7);
    assert_eq!(group.several.losses(), 0);
}
