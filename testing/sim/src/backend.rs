//! The back end of the completion loop in a simulated world.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::RawFd;
use std::time::Duration;

use ::io::{Backend, Raw};

use crate::fd::Message;
use crate::state::{Due, Loop, LoopId, Op, Place, Waits};
use crate::world::{Context, this_thread};

/// Waits that a thread may begin after the end of its process, before it counts as never ending.
const LAST_WAITS_MAX: u32 = 10_000;

pub(crate) struct SimBackend {
    context: Context,
    id: LoopId,
    cancelled: bool,
    last_waits: u32,
}

impl SimBackend {
    pub(crate) fn new(context: Context) -> Self {
        let mut state = context.shared.lock();
        state.loop_last += 1;
        let id = state.loop_last;
        let (machine, life) = (context.machine, context.life);
        let found = Loop { thread: this_thread(), machine, life, ops: Default::default(), ready: Vec::new() };
        state.loops.insert(id, found);
        drop(state);
        Self { context, id, cancelled: false, last_waits: 0 }
    }
}

impl Backend for SimBackend {
    fn name(&self) -> &'static str {
        "simulated"
    }

    fn now(&self) -> Duration {
        self.context.now()
    }

    fn push(&mut self, key: usize, raw: Raw) -> io::Result<()> {
        let mut state = self.context.shared.lock();
        let id = (self.id, key);
        let op = match raw {
            Raw::Read { fd, into, length: 8, .. } => Op::Wake { fd, into: Place(into) },
            Raw::Accept { .. } => Op::Accept,
            Raw::Connect { .. } => Op::Connect,
            Raw::Receive { message, .. } => Op::Receive(Message::new(message)),
            Raw::Send { message, .. } => Op::Send { message: Message::new(message), done: 0 },
            other => panic!("a simulated world has no files: {other:?}"),
        };
        state.loops.get_mut(&self.id).expect("lives as long as its back end").ops.insert(key, op);
        if !state.lives(self.context.machine, self.context.life) {
            return Ok(());
        }
        match raw {
            Raw::Read { fd, .. } => {
                state.socket_last += 1;
                let word = state.socket_last;
                state.wakes.insert(word, id);
                state.watch.eventfd(fd, word)?;
            }
            Raw::Accept { fd } => state.accept(id, fd),
            Raw::Connect { fd, address, length } => {
                // SAFETY: the address lives as long as the operation, and has the given length.
                let address = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), length as usize) };
                state.connect(id, fd, internet(address));
            }
            Raw::Receive { fd, .. } => state.receive(id, fd),
            Raw::Send { fd, .. } => state.send(id, fd),
            _ => unreachable!("refused above"),
        }
        Ok(())
    }

    fn wait(&mut self, timeout: Option<Duration>, completed: &mut Vec<(usize, i32)>) -> io::Result<()> {
        let mut state = self.context.shared.lock();
        let mut alive = state.lives(self.context.machine, self.context.life);
        if alive && !self.cancelled {
            let me = this_thread();
            state.threads[me].waits = Waits::Loop(self.id);
            if !state.loops[&self.id].ready.is_empty() {
                state.wake(me);
            } else if let Some(timeout) = timeout {
                let late = state.micros(0..50);
                let wait = state.threads[me].wait;
                state.after(timeout + late, Due::Run { thread: me, wait });
            }
            state = self.context.shared.hand_over(state);
            alive = state.lives(self.context.machine, self.context.life);
        }
        let found = state.loops.get_mut(&self.id).expect("lives as long as its back end");
        completed.append(&mut found.ready);
        if alive && !self.cancelled {
            return Ok(());
        }
        completed.extend(std::mem::take(&mut found.ops).into_keys().map(|key| (key, -libc::ECANCELED)));
        state.forget(self.id);
        if alive {
            return Ok(());
        }
        self.last_waits += 1;
        assert!(self.last_waits < LAST_WAITS_MAX, "a loop that has failed is waited for repeatedly");
        Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the simulated process has ended"))
    }

    fn cancel(&mut self, _: Option<RawFd>) {
        self.cancelled = true;
    }
}

impl Drop for SimBackend {
    fn drop(&mut self) {
        let mut state = self.context.shared.lock();
        state.forget(self.id);
        state.loops.remove(&self.id);
    }
}

/// Parses a `sockaddr_in`, the only form in simulated machines.
fn internet(bytes: &[u8]) -> SocketAddr {
    assert_eq!(i32::from(u16::from_ne_bytes([bytes[0], bytes[1]])), libc::AF_INET);
    let port = u16::from_be_bytes([bytes[2], bytes[3]]);
    (Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7]), port).into()
}
