//! Sockets, and the establishment of links between them.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::time::Duration;

use ::io::Path;

use super::{End, Link, LinkId, Listening, Net, Role, SYN_MAX, Side, Socket, Weather, What, gone};
use crate::state::{MachineId, Op, OpId, State};

impl State {
    fn name(&mut self, machine: MachineId, life: u32, role: Role) -> io::Result<OwnedFd> {
        // The kernel may reuse a descriptor's number immediately, so pending shutdowns are processed first.
        self.notice();
        self.socket_last += 1;
        let word = self.socket_last;
        let (name, kept) = self.watch.name(word)?;
        self.sockets.insert(name.as_raw_fd(), Socket { word, _kept: kept, machine, life, role });
        Ok(name)
    }

    pub(crate) fn open_socket(&mut self, machine: MachineId, life: u32) -> io::Result<OwnedFd> {
        if !self.lives(machine, life) {
            return Err(gone("socket"));
        }
        self.name(machine, life, Role::Fresh { connecting: None })
    }

    pub(crate) fn listen(
        &mut self,
        machine: MachineId,
        life: u32,
        address: SocketAddr,
    ) -> io::Result<::io::Listener> {
        if !self.lives(machine, life) {
            return Err(gone("listen"));
        }
        if self.listeners.iter().any(|other| other.open && other.address == address) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let socket = self.name(machine, life, Role::Listener(self.listeners.len()))?;
        let (backlog, accepts) = (VecDeque::new(), VecDeque::new());
        self.listeners.push(Listening { machine, life, address, backlog, accepts, open: true });
        Ok(::io::Listener { socket, address })
    }

    /// Addresses of the peer and of this end.
    pub(crate) fn addresses(&self, fd: RawFd) -> io::Result<(SocketAddr, SocketAddr)> {
        let Some(Socket { role: Role::End(link, side), .. }) = self.sockets.get(&fd) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let found = &self.links[*link];
        let client = Ipv4Addr::new(10, 0, 1, found.ends[0].machine as u8);
        let client = SocketAddr::from((client, 10_000 + (*link % 50_000) as u16));
        Ok(if *side == 0 { (found.target, client) } else { (client, found.target) })
    }

    /// The path as it is today: the weather is the same for all links.
    pub(crate) fn path(&self, fd: RawFd) -> Option<Path> {
        let Some(Socket { role: Role::End(..), .. }) = self.sockets.get(&fd) else { return None };
        let Weather { latency, capacity, .. } = &self.weather;
        Some(Path {
            round_trip: Duration::from_micros(latency.start + latency.end),
            round_trip_least: Duration::from_micros(2 * latency.start),
            window_bytes: *capacity as u64,
            buffer_bytes: *capacity as u64,
            receive_buffer_bytes: *capacity as u64,
            receive_window_bytes: *capacity as u64,
            peer_window_bytes: *capacity as u64,
            retransmitted: 0,
            out_of_order: 0,
            unacknowledged_bytes: 0,
            unsent_bytes: 0,
            delivered_bytes: 0,
        })
    }

    pub(crate) fn connect(&mut self, op: OpId, fd: RawFd, address: SocketAddr) {
        if let Some(Socket { role: Role::Fresh { connecting }, .. }) = self.sockets.get_mut(&fd) {
            *connecting = Some(op);
        }
        let delay = self.latency();
        self.net_after(delay, Net::Syn { op, fd, address, attempt: 0 });
    }

    pub(super) fn on_syn(&mut self, op: OpId, fd: RawFd, address: SocketAddr, attempt: u32) {
        if !matches!(self.op(op), Some(Op::Connect)) {
            return;
        }
        let refused = self.now < self.weather.refused_until;
        let listener = self.listeners.iter().position(|found| found.open && found.address == address);
        let machine = self.listeners.iter().rev().find(|found| found.address == address);
        let (client, life) = {
            let found = &self.loops[&op.0];
            (found.machine, found.life)
        };
        match listener {
            Some(listener) if !refused => {
                let Listening { machine, life: server, .. } = self.listeners[listener];
                let end = |machine, life| End {
                    machine,
                    life,
                    open: true,
                    vanished: false,
                    error: 0,
                    receive: None,
                    send: None,
                };
                self.links.push(Link {
                    client: op.0,
                    target: address,
                    established: false,
                    spoken: false,
                    ends: [end(client, life), end(machine, server)],
                    directions: Default::default(),
                });
                let link = self.links.len() - 1;
                self.listeners[listener].backlog.push_back(link);
                self.pair(listener);
                let delay = self.latency();
                self.net_after(delay, Net::Connected { link, op, fd });
            }
            None if machine.is_some_and(|found| !self.machines[found.machine].on) => {
                self.counters.refused += 1;
                if attempt >= SYN_MAX {
                    return self.complete(op, -libc::ETIMEDOUT);
                }
                let delay = Duration::from_secs(1 << attempt);
                self.net_after(delay, Net::Syn { op, fd, address, attempt: attempt + 1 });
            }
            _ => {
                self.counters.refused += 1;
                self.complete_later(op, -libc::ECONNREFUSED);
            }
        }
    }

    pub(super) fn on_connected(&mut self, link: LinkId, op: OpId, fd: RawFd) {
        let connecting =
            |socket: &Socket| matches!(socket.role, Role::Fresh { connecting: Some(found) } if found == op);
        if self.op(op).is_none() || !self.sockets.get(&fd).is_some_and(connecting) {
            // The connecting operation was given up meanwhile.
            self.links[link].established = true;
            return self.close_end(link, 0);
        }
        self.sockets.get_mut(&fd).expect("just looked at").role = Role::End(link, 0);
        self.links[link].established = true;
        self.counters.connections += 1;
        self.trace("connected", &[link as u64]);
        if self.weather.doomed > 0 {
            self.weather.doomed -= 1;
            let (side, bytes) = (self.random.within(0..2) as Side, self.random.magnitude(1..4000));
            self.reset_after(link, side, bytes);
        }
        self.complete(op, 0);
    }

    pub(crate) fn accept(&mut self, op: OpId, fd: RawFd) {
        match self.sockets.get(&fd).map(|socket| &socket.role) {
            Some(Role::Listener(listener)) => {
                let listener = *listener;
                self.listeners[listener].accepts.push_back(op);
                self.pair(listener);
            }
            _ => self.complete(op, -libc::EINVAL),
        }
    }

    fn pair(&mut self, listener: usize) {
        loop {
            let Listening { machine, life, backlog, accepts, .. } = &mut self.listeners[listener];
            let (machine, life) = (*machine, *life);
            if backlog.is_empty() || accepts.is_empty() {
                return;
            }
            let (link, op) =
                (backlog.pop_front().expect("not empty"), accepts.pop_front().expect("not empty"));
            let name = self.name(machine, life, Role::End(link, 1)).expect("a descriptor");
            self.complete(op, name.into_raw_fd());
        }
    }

    pub(super) fn close_listener(&mut self, listener: usize) {
        self.listeners[listener].open = false;
        for op in std::mem::take(&mut self.listeners[listener].accepts) {
            self.complete_later(op, -libc::EINVAL);
        }
        for link in std::mem::take(&mut self.listeners[listener].backlog) {
            self.ship(link, 1, What::Reset);
            self.links[link].ends[1].open = false;
        }
    }
}
