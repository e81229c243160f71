//! Memory of the machines: an idle session needs at most 4 KiB of heap, and READ and WRITE allocate nothing in the
//! steady state, in neither machine.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use iscsi::initiator::{self, Direction};
use iscsi::machine::{Machine, Payload, Placement, Received};
use iscsi::params::Params;
use iscsi::target::{self, Completion};
use iscsi::wire::Attribute;
use iscsi_test::{NOW, policy};

struct Counting;

thread_local! {
    /// Number of allocations of this thread, and the bytes that it holds. Each test has its own thread.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static HELD: Cell<i64> = const { Cell::new(0) };
}

fn note(allocations: u64, bytes: i64) {
    ALLOCATIONS.set(ALLOCATIONS.get() + allocations);
    HELD.set(HELD.get() + bytes);
}

// SAFETY: every call goes to the system's allocator unchanged; the counters do not affect it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(1, layout.size() as i64);
        // SAFETY: the caller upholds the contract of `GlobalAlloc::alloc`, which is also that of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        note(0, -(layout.size() as i64));
        // SAFETY: the caller upholds the contract of `GlobalAlloc::dealloc`, which is also that of `System`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn target_events(target: &mut target::Connection) {
    while let Some(event) = target.poll_event() {
        match event {
            target::Event::Identify(_) => target.identify(Ok(policy(Params {
                max_burst_length: 65536,
                first_burst_length: 65536,
                ..Params::default()
            }))),
            target::Event::SessionReady(_) => target.accept_session(1),
            target::Event::Command(command) if command.write => {
                target.want_data_out(command.task, command.expected);
            }
            target::Event::Command(command) => {
                let data_in = command.expected;
                let done = Completion { data_in, transfer: data_in.into(), ..Completion::default() };
                target.complete(command.task, done);
            }
            target::Event::DataOut { task } => {
                target.complete(task, Completion { transfer: 300_000, ..Completion::default() });
            }
            _ => {}
        }
    }
}

/// Most heap bytes of a machine whose session is idle.
const IDLE_BYTES_MAX: i64 = 4 << 10;

fn pair() -> (target::Connection, initiator::Connection) {
    let target = target::Connection::new(target::Config::default(), [0; 32], NOW);
    let login = iscsi_test::login();
    (target, initiator::Connection::new(initiator::Config::new(login), [0; 32], NOW).unwrap())
}

/// Passes all queued PDUs between both machines; returns how many commands ended with GOOD.
fn exchange(target: &mut target::Connection, initiator: &mut initiator::Connection) -> u32 {
    let mut done = 0;
    while let Some(transmit) = initiator.poll_transmit() {
        target.on_header(&transmit.header, &[], NOW).unwrap();
        target_events(target);
        receive(target, &transmit.payload);
        target_events(target);
    }
    while let Some(transmit) = target.poll_transmit() {
        target_events(target);
        initiator.on_header(&transmit.header, &[], NOW).unwrap();
        receive(initiator, &transmit.payload);
        while let Some(event) = initiator.poll_event() {
            done += u32::from(matches!(event, initiator::Event::Complete(outcome) if outcome.status == 0));
        }
    }
    done
}

#[test]
fn an_idle_session_needs_little_memory() {
    let before = HELD.get();
    let (mut target, mut initiator) = pair();
    while initiator.window() == 0 {
        exchange(&mut target, &mut initiator);
    }
    let both = HELD.get() - before;
    drop(initiator);
    let target_only = HELD.get() - before;
    assert!(target_only <= IDLE_BYTES_MAX, "the target's side holds {target_only} bytes");
    assert!(both - target_only <= IDLE_BYTES_MAX, "the initiator's side holds {} bytes", both - target_only);
    drop(target);
    assert_eq!(HELD.get(), before);
}

#[test]
fn read_and_write_allocate_nothing() {
    let (mut target, mut initiator) = pair();
    let (mut submitted, mut done, mut before) = (0_u32, 0_u32, 0);
    while done < 9000 {
        while initiator.window() > 0 {
            let direction = if submitted.is_multiple_of(2) { Direction::In } else { Direction::Out };
            let command = initiator::Command {
                lun: 0,
                cdb: [0; 16],
                direction,
                length: 300_000,
                attribute: Attribute::Simple,
            };
            initiator.submit(command).unwrap();
            submitted += 1;
        }
        done += exchange(&mut target, &mut initiator);
        if done < 6000 {
            before = ALLOCATIONS.get();
        }
    }
    assert_eq!(ALLOCATIONS.get() - before, 0, "over {} commands", done - 6000);
}

fn receive(machine: &mut impl Machine, payload: &Payload) {
    match (machine.placement(), payload) {
        (Placement::Nothing, Payload::None) => {}
        (Placement::Inline, Payload::Bytes(bytes)) => machine.on_data(Received::Inline(bytes), NOW).unwrap(),
        (Placement::Task { length, .. }, Payload::Task { length: sent, .. }) => {
            assert_eq!(length, *sent);
            machine.on_data(Received::Placed, NOW).unwrap();
        }
        other => panic!("{other:?}"),
    }
}
