//! A model of a send buffer's whole life, searched through all its states: written, submitted, sent, sent again,
//! acknowledged, still at the driver, released, written again; where the application, `inet` and the driver may die
//! between any two steps, frames are lost, and an application breaks its word about its memory.
//!
//! The model is the design of `docs/internals/net.md` ("Life of a send buffer", "A turn of inet", "A driver that died")
//! as small steps, each of them one store that other processes can see. It says nothing about the code. Searched for in
//! every state:
//! - a frame leaves with other bytes than those that were submitted for it, or with another application's;
//! - bytes that were submitted once are sent twice;
//! - a direct return reaches an application that has sent nothing;
//! - a buffer that can never come back, whatever happens from then on.
//!
//! A model in which nothing can go wrong would show nothing: each rule is taken away in turn, and then the search must
//! find the harm.
//!
//! Not modelled: more than one buffer and connection, pieces of a buffer, the order of memory accesses (`tests/loom.rs`
//! of `area`), values that are read twice.

use std::collections::{HashMap, VecDeque};

/// Times that the application sends from its buffer.
const TICKETS: u8 = 3;
/// Slots of the transmit ring.
const SLOTS: usize = 2;
/// Of each process in one run.
const DEATHS_MAX: u8 = 2;

/// What is not as designed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Defect {
    None,
    /// Released when acknowledged, though a slot at the driver refers to the buffer.
    ReleaseAtAck,
    /// A piece remembers the position of the first slot that refers to it, not of the last.
    FirstPosition,
    /// The application writes again after the direct return.
    ReturnIsRelease,
    /// The driver consumes a slot before it has written the frame.
    ConsumeBeforeWrite,
    /// The driver takes a region by its number only.
    GenerationUnchecked,
    /// At a new driver, `inet` takes all slots as returned, though the ring still holds them.
    RingForgotten,
    /// A new `inet` does not know where the slots are that refer to a piece.
    PositionsForgotten,
    /// A new `inet` waits for a slot that its predecessor has recorded and not published.
    UnpublishedAwaited,
    /// A new `inet` accepts a request again that its predecessor has recorded and not consumed.
    RequestRepeated,
    /// A new `inet` does not say again what has been released.
    ReleaseUnrepeated,
    /// The application takes each `RELEASED` as its buffer's, whatever its ticket.
    TicketUnchecked,
    /// The number of a dead application is given to the next one while its frames wait at the driver.
    NumberReused,
    /// A new driver continues from a counter that its predecessor has set back.
    CounterBelieved,
}

const WRONG_BYTES: &str = "a frame leaves with bytes that were written after it was submitted";
const FOREIGN_BYTES: &str = "a frame leaves with bytes of another application";
const SENT_TWICE: &str = "bytes submitted once are sent twice";
const STRANGE_RETURN: &str = "a direct return reaches an application that has sent nothing";
const LOST_BUFFER: &str = "a buffer can never come back";

const DEFECTS: [(Defect, &str); 13] = [
    (Defect::ReleaseAtAck, WRONG_BYTES),
    (Defect::FirstPosition, WRONG_BYTES),
    (Defect::ReturnIsRelease, WRONG_BYTES),
    (Defect::ConsumeBeforeWrite, WRONG_BYTES),
    (Defect::GenerationUnchecked, FOREIGN_BYTES),
    (Defect::RingForgotten, WRONG_BYTES),
    (Defect::PositionsForgotten, WRONG_BYTES),
    (Defect::UnpublishedAwaited, LOST_BUFFER),
    (Defect::RequestRepeated, SENT_TWICE),
    (Defect::ReleaseUnrepeated, LOST_BUFFER),
    (Defect::TicketUnchecked, WRONG_BYTES),
    (Defect::NumberReused, STRANGE_RETURN),
    (Defect::CounterBelieved, WRONG_BYTES),
];

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    application: Application,
    /// Requests published and not consumed; their tickets are the last submitted ones.
    requests: u8,
    /// `RELEASED` from `inet` to the application: sends up to this one, not included.
    completions: VecDeque<u8>,
    inet: Inet,
    /// The transmit ring: slots published and not consumed, by ticket.
    ring: VecDeque<u8>,
    /// The slot consumed last, which a counter that is set back names again.
    consumed: Option<u8>,
    driver: Driver,
    /// Sends that the peer has received.
    received: u8,
    /// The region's number means another application's memory at the driver, with the next generation.
    is_region_reused: bool,
    /// The application's number means another one at the driver.
    is_number_reused: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Application {
    is_alive: bool,
    /// Sends submitted; the bytes in the buffer are those of the last one.
    submitted: u8,
    is_lent: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Inet {
    is_alive: bool,
    deaths: u8,
    /// Requests accepted. This and the next two are records, which outlive the process.
    accepted: u8,
    released: u8,
    piece: Option<Piece>,
    /// Dies with the process.
    turn: Turn,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Piece {
    ticket: u8,
    is_acknowledged: bool,
    /// Slots that the driver must consume until none refers to the piece: the position of the last such slot, less the
    /// consumer's counter.
    at_driver: u8,
}

/// What is recorded and has to be published, and then consumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Turn {
    Idle,
    Transmit { ticket: u8, is_new: bool },
    Consume,
    Release,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Driver {
    is_alive: bool,
    deaths: u8,
    step: Step,
}

/// Of the slot at the head of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Idle,
    Taken { ticket: u8 },
    Written { ticket: u8 },
    Returned,
}

impl State {
    fn start() -> Self {
        Self {
            application: Application { is_alive: true, submitted: 0, is_lent: false },
            requests: 0,
            completions: VecDeque::new(),
            inet: Inet { is_alive: true, deaths: 0, accepted: 0, released: 0, piece: None, turn: Turn::Idle },
            ring: VecDeque::new(),
            consumed: None,
            driver: Driver { is_alive: true, deaths: 0, step: Step::Idle },
            received: 0,
            is_region_reused: false,
            is_number_reused: false,
        }
    }

    /// Whether the buffer is where it should end: at its application, or, if that is dead, where no process reads it.
    fn is_settled(&self) -> bool {
        match self.application.is_alive {
            true => !self.application.is_lent,
            false => self.ring.is_empty() && self.inet.piece.is_none(),
        }
    }

    fn consume_slot(&mut self) {
        self.consumed = self.ring.pop_front();
        if let Some(piece) = &mut self.inet.piece {
            piece.at_driver = piece.at_driver.saturating_sub(1);
        }
    }
}

/// What may follow a state: the step's name, and the next state or the harm that is done.
type Steps = Vec<(&'static str, Result<State, &'static str>)>;

fn steps(state: &State, defect: Defect) -> Steps {
    let mut steps = Steps::new();
    application_steps(state, defect, &mut steps);
    inet_steps(state, defect, &mut steps);
    driver_steps(state, defect, &mut steps);
    deaths(state, defect, &mut steps);
    steps
}

/// Whether a step is one that no process may wait for.
fn is_fault(name: &str) -> bool {
    name.ends_with(" dies") || name.ends_with(" is gone")
}

/// Adds the state after `change`.
fn then(state: &State, steps: &mut Steps, name: &'static str, change: impl FnOnce(&mut State)) {
    let mut next = state.clone();
    change(&mut next);
    steps.push((name, Ok(next)));
}

fn application_steps(state: &State, defect: Defect, steps: &mut Steps) {
    let application = &state.application;
    if !application.is_alive {
        return;
    }
    if !application.is_lent && application.submitted < TICKETS {
        then(state, steps, "application writes and submits", |next| {
            next.application.submitted += 1;
            next.application.is_lent = true;
            next.requests += 1;
        });
    }
    if let Some(&released) = state.completions.front() {
        then(state, steps, "application takes RELEASED", |next| {
            next.completions.pop_front();
            if released >= application.submitted || defect == Defect::TicketUnchecked {
                next.application.is_lent = false;
            }
        });
    }
    if application.is_lent && !state.is_region_reused {
        // No message says so at present. With one the supervisor would have to believe it, and the number would go to the next
        // application that registers memory.
        then(state, steps, "application says that its region is gone", |next| next.is_region_reused = true);
    }
}

fn inet_steps(state: &State, defect: Defect, steps: &mut Steps) {
    let inet = &state.inet;
    if !inet.is_alive {
        return;
    }
    match inet.turn {
        Turn::Idle => {}
        Turn::Transmit { ticket, is_new } => {
            return then(state, steps, "inet publishes a frame", |next| {
                next.ring.push_back(ticket);
                next.inet.turn = if is_new { Turn::Consume } else { Turn::Idle };
            });
        }
        Turn::Consume => {
            return then(state, steps, "inet consumes the request", |next| {
                next.requests -= 1;
                next.inet.turn = Turn::Idle;
            });
        }
        Turn::Release => {
            return then(state, steps, "inet publishes RELEASED", |next| {
                next.completions.push_back(inet.released);
                next.inet.turn = Turn::Idle;
            });
        }
    }
    if !state.application.is_alive {
        if inet.piece.is_some() {
            then(state, steps, "inet resets the connection", |next| next.inet.piece = None);
        }
        return;
    }
    let has_room = state.ring.len() < SLOTS;
    let position = state.ring.len() as u8 + 1;
    if state.requests > 0 {
        let ticket = state.application.submitted - state.requests;
        if ticket < inet.accepted && defect == Defect::RequestRepeated {
            steps.push(("inet accepts the request again", Err(SENT_TWICE)));
        } else if ticket < inet.accepted {
            then(state, steps, "inet drops a request that it knows", |next| next.requests -= 1);
        } else if has_room {
            then(state, steps, "inet records the request", |next| {
                next.inet.accepted = ticket + 1;
                next.inet.piece = Some(Piece { ticket, is_acknowledged: false, at_driver: position });
                next.inet.turn = Turn::Transmit { ticket, is_new: true };
            });
        }
    }
    let Some(piece) = &inet.piece else { return };
    if !piece.is_acknowledged && has_room {
        // After a timeout, or at once when a new driver attaches.
        then(state, steps, "inet records a repetition", |next| {
            if let Some(piece) = &mut next.inet.piece
                && (defect != Defect::FirstPosition || piece.at_driver == 0)
            {
                piece.at_driver = position;
            }
            next.inet.turn = Turn::Transmit { ticket: piece.ticket, is_new: false };
        });
    }
    if !piece.is_acknowledged && state.received > piece.ticket {
        let acknowledged = Piece { is_acknowledged: true, ..piece.clone() };
        then(state, steps, "an ACK arrives", |next| next.inet.piece = Some(acknowledged));
    }
    if piece.is_acknowledged && (piece.at_driver == 0 || defect == Defect::ReleaseAtAck) {
        then(state, steps, "inet records the release", |next| {
            next.inet.released = piece.ticket + 1;
            next.inet.piece = None;
            next.inet.turn = Turn::Release;
        });
    }
}

fn driver_steps(state: &State, defect: Defect, steps: &mut Steps) {
    if !state.driver.is_alive {
        return;
    }
    let consumes_early = defect == Defect::ConsumeBeforeWrite;
    let done = if consumes_early { Step::Idle } else { Step::Returned };
    match state.driver.step {
        Step::Idle => {
            if let Some(&ticket) = state.ring.front() {
                then(state, steps, "driver takes a slot", |next| {
                    next.driver.step = Step::Taken { ticket };
                    if consumes_early {
                        next.consume_slot();
                    }
                });
            }
        }
        Step::Taken { .. } if state.is_region_reused && defect == Defect::GenerationUnchecked => {
            steps.push(("driver writes the frame", Err(FOREIGN_BYTES)));
        }
        Step::Taken { .. } if state.is_region_reused => {
            then(state, steps, "driver drops the frame", |next| next.driver.step = done);
        }
        Step::Taken { ticket } if ticket + 1 != state.application.submitted => {
            steps.push(("driver writes the frame", Err(WRONG_BYTES)));
        }
        Step::Taken { ticket } => {
            let written = Step::Written { ticket };
            then(state, steps, "driver writes the frame, which is lost", |next| next.driver.step = written);
            then(state, steps, "driver writes the frame, which arrives", |next| {
                next.driver.step = written;
                next.received = next.received.max(ticket + 1);
            });
        }
        Step::Written { .. } if state.is_number_reused => {
            steps.push(("driver returns directly", Err(STRANGE_RETURN)));
        }
        Step::Written { ticket } => then(state, steps, "driver returns directly", |next| {
            next.driver.step = done;
            if defect == Defect::ReturnIsRelease && ticket + 1 == next.application.submitted {
                next.application.is_lent = false;
            }
        }),
        Step::Returned => then(state, steps, "driver consumes the slot", |next| {
            next.consume_slot();
            next.driver.step = Step::Idle;
        }),
    }
}

fn deaths(state: &State, defect: Defect, steps: &mut Steps) {
    if state.application.is_alive {
        then(state, steps, "application dies", |next| next.application.is_alive = false);
    }
    // `inet` says `Drained` when it has dropped the connection and the driver has consumed all slots.
    let inet = &state.inet;
    let is_drained =
        inet.is_alive && inet.piece.is_none() && inet.turn == Turn::Idle && state.ring.is_empty();
    if !state.application.is_alive
        && !state.is_number_reused
        && (is_drained || defect == Defect::NumberReused)
    {
        then(state, steps, "the application's number is reused", |next| next.is_number_reused = true);
    }
    if !inet.is_alive {
        then(state, steps, "inet is started again", |next| {
            next.inet.is_alive = true;
            let published = next.ring.len() as u8;
            if let Some(piece) = &mut next.inet.piece {
                piece.at_driver = match defect {
                    Defect::PositionsForgotten => 0,
                    Defect::UnpublishedAwaited => piece.at_driver,
                    // Slots that were not published are gone.
                    _ => piece.at_driver.min(published),
                };
            }
            if next.inet.released > 0 && defect != Defect::ReleaseUnrepeated {
                next.inet.turn = Turn::Release;
            }
        });
    } else if inet.deaths < DEATHS_MAX {
        then(state, steps, "inet dies", |next| {
            next.inet.is_alive = false;
            next.inet.deaths += 1;
            next.inet.turn = Turn::Idle;
        });
    }
    if !state.driver.is_alive {
        then(state, steps, "driver is started again", |next| {
            next.driver.is_alive = true;
            if let (Defect::RingForgotten, Some(piece)) = (defect, &mut next.inet.piece) {
                piece.at_driver = 0;
            }
            if let (Defect::CounterBelieved, Some(ticket)) = (defect, next.consumed) {
                next.driver.step = Step::Taken { ticket };
            }
        });
    } else if state.driver.deaths < DEATHS_MAX {
        then(state, steps, "driver dies", |next| {
            next.driver.is_alive = false;
            next.driver.deaths += 1;
            next.driver.step = Step::Idle;
        });
    }
}

/// A harm, and the steps that lead to it.
struct Harm {
    what: &'static str,
    trace: Vec<&'static str>,
}

/// All states that have been reached, numbered in the order of their discovery.
struct Reached {
    states: Vec<State>,
    /// From which one each was reached first, and by which step.
    first: Vec<(usize, &'static str)>,
    /// From which ones each can be reached without anything going wrong.
    before: Vec<Vec<usize>>,
}

impl Reached {
    fn trace(&self, mut state: usize) -> Vec<&'static str> {
        let mut trace = Vec::new();
        while state != 0 {
            trace.push(self.first[state].1);
            state = self.first[state].0;
        }
        trace.reverse();
        trace
    }

    /// Breadth first, so that no trace to a harm is shorter than the one found. Stops at `wanted`, or at any harm.
    fn explore(defect: Defect, wanted: Option<&str>) -> Result<Self, Harm> {
        let mut reached =
            Self { states: vec![State::start()], first: vec![(0, "")], before: vec![Vec::new()] };
        let mut known = HashMap::from([(State::start(), 0)]);
        let mut at = 0;
        while at < reached.states.len() {
            for (name, next) in steps(&reached.states[at].clone(), defect) {
                let next = match next {
                    Ok(next) => next,
                    Err(what) if wanted.is_none_or(|wanted| wanted == what) => {
                        let mut trace = reached.trace(at);
                        trace.push(name);
                        return Err(Harm { what, trace });
                    }
                    Err(_) => continue,
                };
                let number = *known.entry(next).or_insert_with_key(|next| {
                    reached.states.push(next.clone());
                    reached.first.push((at, name));
                    reached.before.push(Vec::new());
                    reached.states.len() - 1
                });
                if !is_fault(name) {
                    reached.before[number].push(at);
                }
            }
            at += 1;
        }
        Ok(reached)
    }

    /// The first state from which none that is `good` can be reached.
    fn stuck(&self, good: impl Fn(&State) -> bool) -> Option<usize> {
        let mut is_safe: Vec<bool> = self.states.iter().map(good).collect();
        let mut safe: Vec<usize> = (0..is_safe.len()).filter(|&state| is_safe[state]).collect();
        while let Some(state) = safe.pop() {
            for &before in &self.before[state] {
                if !std::mem::replace(&mut is_safe[before], true) {
                    safe.push(before);
                }
            }
        }
        is_safe.iter().position(|is_safe| !is_safe)
    }
}

/// Returns the number of states.
fn search(defect: Defect, wanted: Option<&str>) -> Result<usize, Harm> {
    let reached = Reached::explore(defect, wanted)?;
    // An application that lies about its region loses the buffer by that.
    match reached.stuck(|state| state.is_settled() || state.is_region_reused) {
        Some(state) => Err(Harm { what: LOST_BUFFER, trace: reached.trace(state) }),
        None => Ok(reached.states.len()),
    }
}

#[test]
fn a_buffer_is_never_sent_with_other_bytes_and_always_comes_back() {
    match search(Defect::None, None) {
        Ok(states) => {
            eprintln!("{states} states");
            assert!(states > 10_000, "{states} states: steps are missing");
        }
        Err(Harm { what, trace }) => panic!("{what}: {trace:#?}"),
    }
}

#[test]
fn each_rule_is_needed() {
    for (defect, expected) in DEFECTS {
        match search(defect, Some(expected)) {
            Ok(states) => panic!("{defect:?}: no harm in {states} states"),
            Err(Harm { what, trace }) => {
                assert_eq!(what, expected, "{defect:?}: {trace:#?}");
                eprintln!("{defect:?}: {what}, after {} steps", trace.len());
            }
        }
    }
}
