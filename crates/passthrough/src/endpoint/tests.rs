//! Requests over a scripted channel.

use std::cell::RefCell;
use std::os::fd::{FromRawFd, OwnedFd};
use std::rc::Rc;

use area::PoolLimits;
use block::close_all;
use host::Limits;

use super::*;
use crate::disk::{Zeroing, example};

/// The device's reaction to a command; without one the command succeeds.
enum Deed {
    Short(u32),
    Say(Verdict),
    /// The kernel rejects the command with this errno.
    Refuse(i32),
    /// Taking a result fails with this errno.
    Break(i32),
}

#[derive(Default)]
struct Device {
    deeds: VecDeque<Deed>,
    commands: Vec<(Verb, u64, u32)>,
    bytes: Vec<u8>,
    answers: VecDeque<IoResult<(u32, Ended)>>,
    in_flight: u32,
    deepest: u32,
}

struct Scripted {
    handle: Handle,
    device: Rc<RefCell<Device>>,
}

const ROOM: u32 = 4;

impl Channel for Scripted {
    fn handle(&self) -> &Handle {
        &self.handle
    }

    fn has_room(&self) -> bool {
        self.device.borrow().in_flight < ROOM
    }

    fn start(&mut self, slot: u32, command: &DiskCommand) -> IoResult<()> {
        let device = &mut *self.device.borrow_mut();
        device.commands.push((command.verb, command.lba, command.blocks));
        let length = command.blocks * 512;
        let mut moved = length;
        let answer = match device.deeds.pop_front() {
            Some(Deed::Refuse(errno)) => return Err(std::io::Error::from_raw_os_error(errno)),
            Some(Deed::Break(errno)) => Err(std::io::Error::from_raw_os_error(errno)),
            Some(Deed::Say(verdict)) => Ok((slot, Ended { verdict, moved: 0 })),
            Some(Deed::Short(bytes)) => {
                moved = bytes;
                Ok((slot, Ended { verdict: Verdict::Done, moved }))
            }
            None => Ok((slot, Ended { verdict: Verdict::Done, moved })),
        };
        if let (Ok((_, Ended { verdict: Verdict::Done, .. })), Some(data)) = (&answer, &command.data) {
            let start = command.lba as usize * 512;
            let place = start..start + (moved as usize).min(length as usize);
            match command.verb {
                Verb::Read => data.fill(0, &device.bytes[place]),
                Verb::Write { .. } => data.read(0, &mut device.bytes[place]),
                Verb::Zero { .. } => device.bytes[start..start + length as usize].fill(0),
                Verb::Flush => {}
            }
        }
        device.in_flight += 1;
        device.deepest = device.deepest.max(device.in_flight);
        device.answers.push_back(answer);
        Ok(())
    }

    fn flush(&mut self) -> IoResult<()> {
        Ok(())
    }

    fn take(&mut self) -> IoResult<Option<(u32, Ended)>> {
        let device = &mut *self.device.borrow_mut();
        let answer = device.answers.pop_front().transpose()?;
        device.in_flight -= u32::from(answer.is_some());
        Ok(answer)
    }

    fn in_flight(&self) -> u32 {
        self.device.borrow().in_flight
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }
}

struct Bench {
    io: Io,
    endpoint: PassthroughEndpoint<Scripted>,
    device: Rc<RefCell<Device>>,
}

fn bench(disk: Disk) -> Bench {
    let io = Io::new(PoolLimits::default()).unwrap();
    // SAFETY: a new descriptor without another owner; it is always readable.
    let handle: Handle = Rc::new(unsafe { OwnedFd::from_raw_fd(libc::eventfd(1, libc::EFD_CLOEXEC)) });
    let device = Rc::new(RefCell::new(Device { bytes: vec![7; 1 << 20], ..Device::default() }));
    let channel = Scripted { handle, device: Rc::clone(&device) };
    let capability = disk.capability(&Limits::default(), ROOM, false);
    let shared = Arc::new(Shared::new(Identity::Unique, None, None, Vec::new()));
    let endpoint = PassthroughEndpoint::new(&io, channel, Arc::new(disk), capability, shared);
    Bench { io, endpoint, device }
}

impl Bench {
    fn run(&mut self, kinds: Vec<Kind>) -> Vec<Result<(), IoError>> {
        let (mut done, mut events) = (Vec::new(), Vec::new());
        let count = kinds.len();
        for (id, kind) in kinds.into_iter().enumerate() {
            self.endpoint.submit(&mut self.io, Request { id: id as u64, kind }, &mut done);
        }
        while done.len() < count {
            self.io.turn(&mut events).unwrap();
            events.drain(..).for_each(|event| self.endpoint.on_event(&mut self.io, event, &mut done));
        }
        assert_eq!(done.len(), count, "each ends once");
        done.sort_by_key(|completion| completion.id);
        done.into_iter().map(|completion| completion.result).collect()
    }

    fn one(&mut self, kind: Kind) -> Option<IoErrorKind> {
        self.run(vec![kind]).remove(0).err().map(|error| error.kind)
    }

    fn read(&self, offset: u64, length: usize) -> (Span, Kind) {
        let into = self.io.pool().take(length).unwrap();
        into.zero(0, length);
        (into.clone(), Kind::Read { offset, into })
    }

    fn write(&self, offset: u64, length: usize, durable: bool) -> Kind {
        let from = self.io.pool().take(length).unwrap();
        from.fill(0, &vec![9; length]);
        Kind::Write { offset, from, durable }
    }

    fn does(&self, deeds: Vec<Deed>) {
        self.device.borrow_mut().deeds = deeds.into();
    }

    fn commands(&self) -> Vec<(Verb, u64, u32)> {
        std::mem::take(&mut self.device.borrow_mut().commands)
    }
}

fn again(kind: IoErrorKind, lost: bool) -> Deed {
    Deed::Say(Verdict::Again { error: IoError::new(kind, "scripted"), lost })
}

fn fails(kind: IoErrorKind) -> Deed {
    Deed::Say(Verdict::Fail(IoError::new(kind, "scripted")))
}

#[test]
fn one_request_is_one_command_and_no_more_are_in_flight_than_there_is_room_for() {
    let mut bench = bench(example());
    let kinds = (0..32).map(|index| bench.write(index * 4096, 4096, false)).collect();
    assert!(bench.run(kinds).iter().all(Result::is_ok));
    assert_eq!(bench.commands().len(), 32);
    assert_eq!(bench.device.borrow().deepest, ROOM);
    let (into, kind) = bench.read(4096, 31 * 4096);
    assert_eq!(bench.one(kind), None);
    assert!(into.as_slice().iter().all(|byte| *byte == 9));
    assert_eq!(bench.commands(), [(Verb::Read, 8, 31 * 8)]);
    close_all(&mut bench.io, &mut [&mut bench.endpoint]);
}

#[test]
fn a_short_transfer_is_gone_on_with_where_it_ended() {
    let mut bench = bench(example());
    bench.device.borrow_mut().bytes[1024..].fill(5);
    bench.does(vec![Deed::Short(1024 + 100)]);
    let (into, kind) = bench.read(0, 4096);
    assert_eq!(bench.one(kind), None);
    let expected = [(Verb::Read, 0, 8), (Verb::Read, 2, 6)];
    assert_eq!(bench.commands(), expected, "a part of a block does not count");
    assert!(into.as_slice()[..1024].iter().all(|byte| *byte == 7));
    assert!(into.as_slice()[1024..].iter().all(|byte| *byte == 5));
    bench.does((0..100).map(|_| Deed::Short(0)).collect());
    let (_, kind) = bench.read(0, 4096);
    assert_eq!(bench.one(kind), Some(IoErrorKind::Medium), "GOOD and nothing moved");
}

#[test]
fn what_may_pass_is_tried_again_and_not_for_ever() {
    let mut bench = bench(example());
    bench.does((1..ATTEMPTS_MAX).map(|_| again(IoErrorKind::Medium, false)).collect());
    let (_, kind) = bench.read(0, 512);
    assert_eq!(bench.one(kind), None);
    bench.does((0..100).map(|_| again(IoErrorKind::Medium, false)).collect());
    bench.commands();
    let (_, kind) = bench.read(0, 512);
    assert_eq!(bench.one(kind), Some(IoErrorKind::Medium));
    assert_eq!(bench.commands().len(), ATTEMPTS_MAX as usize);
    bench.does(vec![Deed::Say(Verdict::Later(IoError::new(IoErrorKind::Unreachable, "busy")))]);
    let (_, kind) = bench.read(0, 512);
    assert_eq!(bench.one(kind), None, "busy for a moment");
}

#[test]
fn a_command_that_the_kernel_finds_too_long_is_halved() {
    let mut bench = bench(example());
    let too_long = Deed::Say(Verdict::TooLong(IoError::new(IoErrorKind::Other, "scripted")));
    bench.does(vec![Deed::Refuse(libc::EINVAL), too_long]);
    let (_, kind) = bench.read(0, 64 << 10);
    assert_eq!(bench.one(kind), None);
    let lengths: Vec<u32> = bench.commands().iter().map(|(_, _, blocks)| *blocks).collect();
    assert_eq!(lengths, [128, 64, 32, 32, 32, 32], "and it stays so");
    bench.does((0..100).map(|_| Deed::Refuse(libc::EINVAL)).collect());
    let (_, kind) = bench.read(0, 64 << 10);
    assert_eq!(bench.one(kind), Some(IoErrorKind::Other), "it was not the length");
}

#[test]
fn a_failed_flush_is_final() {
    let mut bench = bench(example());
    bench.does(vec![fails(IoErrorKind::Medium)]);
    assert_eq!(bench.one(Kind::Flush), Some(IoErrorKind::FlushFailed));
    assert_eq!(bench.one(Kind::Flush), Some(IoErrorKind::FlushFailed));
    let write = bench.write(0, 512, false);
    assert_eq!(bench.one(write), Some(IoErrorKind::FlushFailed));
    let (_, kind) = bench.read(0, 512);
    assert_eq!(bench.one(kind), None, "reading goes on");
}

#[test]
fn the_flush_of_a_durable_write_is_one_too() {
    let mut bench = bench(Disk { fua: false, ..example() });
    bench.does(vec![Deed::Short(512), fails(IoErrorKind::Medium)]);
    let write = bench.write(0, 512, true);
    assert_eq!(bench.one(write), Some(IoErrorKind::FlushFailed));
    assert_eq!(bench.one(Kind::Flush), Some(IoErrorKind::FlushFailed));
}

#[test]
fn a_disk_without_a_cache_need_not_know_how_to_flush() {
    for (write_cache, expected) in [(false, None), (true, Some(IoErrorKind::FlushFailed))] {
        let mut bench = bench(Disk { write_cache, ..example() });
        bench.does(vec![fails(IoErrorKind::Unsupported)]);
        assert_eq!(bench.one(Kind::Flush), expected);
    }
}

#[test]
fn a_power_on_is_told_by_one_flush_if_something_was_volatile() {
    let mut bench = bench(example());
    bench.does(vec![again(IoErrorKind::Other, true)]);
    let (_, kind) = bench.read(0, 512);
    assert_eq!(bench.one(kind), None);
    assert_eq!(bench.one(Kind::Flush), None, "nothing was to be lost");
    let write = bench.write(0, 512, false);
    assert_eq!(bench.one(write), None);
    bench.does(vec![again(IoErrorKind::Other, true)]);
    assert_eq!(bench.one(Kind::Flush), Some(IoErrorKind::CacheLost));
    assert_eq!(bench.one(Kind::Flush), None, "told once");
    let zero = Kind::WriteZeroes { offset: 0, length: 4096, may_unmap: true };
    assert_eq!(bench.one(zero), None);
    bench.does(vec![again(IoErrorKind::Other, true)]);
    assert_eq!(bench.one(Kind::Flush), Some(IoErrorKind::CacheLost), "zeroes are volatile as well");
}

#[test]
fn zeroes_by_name_reach_the_disk() {
    let mut bench = bench(Disk { zeroing: Some(Zeroing { blocks_max: 8, keeps: true }), ..example() });
    assert_eq!(bench.one(Kind::Discard { offset: 512, length: 8192 }), None);
    assert_eq!(bench.commands().len(), 2);
    let device = bench.device.borrow();
    assert_eq!((device.bytes[511], device.bytes[8704]), (7, 7));
    assert!(device.bytes[512..8704].iter().all(|byte| *byte == 0));
}

#[test]
fn a_device_that_answers_no_more_fails_all_there_is_and_all_that_comes() {
    let mut bench = bench(example());
    bench.does(vec![Deed::Break(libc::ENODEV)]);
    let kinds = (0..8).map(|index| bench.write(index * 512, 512, false)).collect();
    let results = bench.run(kinds);
    assert!(results.iter().all(|result| result.as_ref().is_err_and(|error| error.kind == IoErrorKind::Gone)));
    let (_, kind) = bench.read(0, 512);
    assert_eq!(bench.one(kind), Some(IoErrorKind::Gone));
}
