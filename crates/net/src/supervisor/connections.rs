//! Sockets of applications, and of those who ask for the status. None of them is trusted, and none can make the
//! supervisor wait.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use inet::Time;
use rustix::net::{SocketFlags, accept_with, sockopt::socket_peercred};
use serde::Serialize;

use crate::control::{FromClient, ToClient, VERSION};
use crate::control_socket;

/// Connections that are no applications: those that ask, are refused, or say nothing.
const OTHERS_MAX: usize = 16;
/// A connection that has not said who it is by then is closed.
const SILENCE_US_MAX: u64 = 2_000_000;
/// How long a connection waits for frames of an application that has left: their driver may wait for its device.
const DRAIN_US_MAX: u64 = 2_000_000;
/// After an error of accept(2), such as too many descriptors.
const PAUSE_US: u64 = 100_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    New(Time),
    /// Until the servers are up, or until then for the place of an application that has left.
    Waiting(Time),
    Client(u32),
}

#[derive(Debug)]
pub(super) struct Connection {
    /// Of no other connection before.
    pub(super) number: u64,
    pub(super) socket: OwnedFd,
    /// "process 7 of user 0".
    pub(super) peer: String,
    pub(super) pid: i32,
    state: State,
    /// It did not read an answer in time: it is closed.
    is_stuck: bool,
}

pub(super) enum Received {
    Nothing,
    Message(FromClient, Vec<OwnedFd>),
    Ended,
    /// What was sent is no message of ours, and why.
    Strange(io::Error),
}

impl Connection {
    pub(super) fn receive(&self) -> Received {
        match control_socket::receive(&self.socket) {
            Ok(Some((message, descriptors))) => Received::Message(message, descriptors),
            Ok(None) => Received::Ended,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Received::Nothing,
            Err(error) => Received::Strange(error),
        }
    }

    pub(super) fn send(&mut self, message: &impl Serialize, descriptors: &[BorrowedFd<'_>]) {
        self.is_stuck |= control_socket::send(&self.socket, message, descriptors).is_err();
    }

    pub(super) fn refuse(&mut self, why: &str) {
        self.send(&ToClient::Refused { why: why.to_owned() }, &[]);
    }

    /// Whether it may say Hello with this version; if not, it is told why.
    pub(super) fn is_new_of(&mut self, version: u32) -> bool {
        let is_new = matches!(self.state, State::New(_));
        if !is_new {
            self.refuse("Hello comes once");
        } else if version != VERSION {
            self.refuse(&format!(
                "the servers speak version {VERSION} of the control messages, the application version {version}"
            ));
        }
        is_new && version == VERSION
    }

    pub(super) fn set_waiting(&mut self) {
        self.state = State::Waiting(Time::NEVER);
    }

    /// Whether it is to wait longer for the place of an application that has left.
    pub(super) fn waits_for_place(&mut self, now: Time) -> bool {
        let State::Waiting(until) = &mut self.state else { return false };
        *until = now.after(DRAIN_US_MAX).min(*until);
        *until > now
    }

    pub(super) fn set_client(&mut self, client: u32) {
        self.state = State::Client(client);
    }

    pub(super) fn client(&self) -> Option<u32> {
        match self.state {
            State::Client(client) => Some(client),
            State::New(_) | State::Waiting(_) => None,
        }
    }
}

#[derive(Debug)]
pub(super) struct Connections {
    all: Vec<Connection>,
    next: u64,
    most: usize,
    /// No connection is accepted before.
    paused_until: Option<Time>,
}

impl Connections {
    pub(super) fn new(clients_max: u32) -> Self {
        Self { all: Vec::new(), next: 0, most: clients_max as usize + OTHERS_MAX, paused_until: None }
    }

    pub(super) fn has_room(&self) -> bool {
        self.all.len() < self.most && self.paused_until.is_none()
    }

    pub(super) fn accept(&mut self, listener: BorrowedFd<'_>, now: Time) {
        match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => {
                let peer = socket_peercred(&socket);
                let pid = peer.as_ref().map_or(0, |peer| peer.pid.as_raw_nonzero().get());
                let peer = match peer {
                    Ok(peer) => format!("process {pid} of user {}", peer.uid.as_raw()),
                    Err(_) => "a process".to_owned(),
                };
                self.next += 1;
                let state = State::New(now.after(SILENCE_US_MAX));
                self.all.push(Connection { number: self.next, socket, peer, pid, state, is_stuck: false });
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => {}
            Err(error) => {
                tracing::warn!("no connection can be accepted: {error}");
                self.paused_until = Some(now.after(PAUSE_US));
            }
        }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Connection> {
        self.all.iter()
    }

    pub(super) fn get(&mut self, number: u64) -> Option<&mut Connection> {
        self.all.iter_mut().find(|connection| connection.number == number)
    }

    pub(super) fn remove(&mut self, number: u64) {
        self.all.retain(|connection| connection.number != number);
    }

    /// Connections that have said Hello and wait for the servers or for a place.
    pub(super) fn waiting(&self) -> Vec<u64> {
        let waiting = self.all.iter().filter(|connection| matches!(connection.state, State::Waiting(_)));
        waiting.map(|connection| connection.number).collect()
    }

    pub(super) fn clients(&self) -> Vec<u32> {
        self.all.iter().filter_map(Connection::client).collect()
    }

    fn of_client(&mut self, client: u32) -> Option<&mut Connection> {
        self.all.iter_mut().find(|connection| connection.client() == Some(client))
    }

    pub(super) fn tell_region(&mut self, client: u32, region: u32, generation: u32) {
        if let Some(connection) = self.of_client(client) {
            connection.send(&ToClient::Region { region, generation }, &[]);
        }
    }

    pub(super) fn refuse(&mut self, client: u32, why: &str) {
        if let Some(connection) = self.of_client(client) {
            connection.refuse(why);
        }
    }

    /// False if there is no such application.
    pub(super) fn remove_client(&mut self, client: u32) -> bool {
        let before = self.all.len();
        self.all.retain(|connection| connection.client() != Some(client));
        self.all.len() < before
    }

    /// Connections that do not read their answers.
    pub(super) fn stuck(&self) -> Vec<u64> {
        self.all.iter().filter(|connection| connection.is_stuck).map(|connection| connection.number).collect()
    }

    /// Closes the sockets of all applications, which is how they learn that their servers are gone. Returns their number.
    /// Those that waited for the place of one wait for the next servers.
    pub(super) fn drop_clients(&mut self) -> usize {
        for connection in &mut self.all {
            if let State::Waiting(until) = &mut connection.state {
                *until = Time::NEVER;
            }
        }
        let before = self.all.len();
        self.all.retain(|connection| connection.client().is_none());
        before - self.all.len()
    }

    pub(super) fn clear(&mut self) {
        self.all.clear();
    }

    /// Closes connections that have not said who they are.
    pub(super) fn drop_silent(&mut self, now: Time) {
        self.all.retain(|connection| match connection.state {
            State::New(until) => until > now,
            State::Waiting(_) | State::Client(_) => true,
        });
        self.paused_until.take_if(|until| *until <= now);
    }

    pub(super) fn deadline(&self) -> Time {
        let impatient = self.all.iter().filter_map(|connection| match connection.state {
            State::New(until) | State::Waiting(until) => Some(until),
            State::Client(_) => None,
        });
        impatient.chain(self.paused_until).min().unwrap_or(Time::NEVER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One connection that has said Hello, and its other end.
    fn waiting() -> (Connections, std::os::unix::net::UnixStream) {
        let (socket, other) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut connections = Connections::new(1);
        connections.all.push(Connection {
            number: 1,
            socket: socket.into(),
            peer: String::new(),
            pid: 0,
            state: State::Waiting(Time::NEVER),
            is_stuck: false,
        });
        (connections, other)
    }

    #[test]
    fn a_place_is_waited_for_two_seconds_and_no_longer() {
        let (mut connections, _other) = waiting();
        let start = Time::default().after(7);
        let end = start.after(DRAIN_US_MAX);
        assert_eq!(connections.deadline(), Time::NEVER, "servers are waited for as long as it takes");
        assert!(connections.get(1).unwrap().waits_for_place(start));
        assert!(connections.get(1).unwrap().waits_for_place(start.after(1)));
        assert_eq!(connections.deadline(), end, "a second look makes it no longer");
        assert!(!connections.get(1).unwrap().waits_for_place(end));
    }

    #[test]
    fn one_that_waits_for_a_place_waits_for_the_next_servers_if_its_servers_end() {
        let (mut connections, _other) = waiting();
        connections.get(1).unwrap().waits_for_place(Time::default());
        assert_eq!(connections.drop_clients(), 0);
        assert_eq!((connections.waiting(), connections.deadline()), (vec![1], Time::NEVER));
    }
}
