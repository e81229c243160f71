//! Finds iSCSI connections of a network namespace, samples them, and keeps what is known of each.
//!
//! Driven by its caller: [`Sessions::refresh`] about once a second looks for connections that came, and at processes,
//! kernel sessions and queues; [`Sessions::sample`] as often as samples are wanted.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use super::diag::FIN_WAIT2;
use super::kernel::{self, KernelSession};
use super::raw::{History, Raw, Reply};
use super::{Ends, Found, NamespaceError, Outcome, Owner, Prober, Processes, Route, RouteProber};
use super::{PacketProber, Usage, Watched, in_namespace};
use crate::event::Side;
use crate::limits::WATCHED_MAX;
use crate::model::Cpu;
use crate::sample::Sample;

/// The ports of RFC 7143 section 5.2.1.2 and of the well-known service.
const ISCSI_PORTS: [u16; 2] = [3260, 860];
/// Names of processes whose connections are iSCSI on any port. The kernel cuts names after 15 bytes.
const PROGRAMS: [&str; 3] = ["hikyaku", "tgtd", "iscsid"];
/// The same in words.
pub const LOOKED_FOR: &str =
    "port 3260 or 860 at either end, or a process named hikyaku, tgtd, iscsid or qemu-*";
const SYS: &str = "/sys";
const QEMU: &str = "qemu-";
/// Searches for the owner of a socket that no process shows: those of other users never will.
const OWNER_SEARCHES_MAX: u32 = 3;
/// Searches for connections of which one looks at the processes although no socket came.
const LOOKS_EACH: u32 = 5;

/// Which connections are watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chosen {
    /// Every iSCSI session of this network namespace.
    All,
    /// Every TCP connection of a process, in its network namespace.
    Process(u32),
    /// Connections with one of these addresses at either end. Port 0 stands for each port.
    Addresses(Vec<SocketAddr>),
}

/// One end of an iSCSI connection.
#[derive(Debug)]
pub struct Session {
    /// Counts from 1 in the order of discovery.
    pub id: u32,
    pub ends: Ends,
    /// Which end is on this machine.
    pub side: Side,
    pub congestion: Option<String>,
    pub owner: Option<Owner>,
    /// The session of the kernel's initiator that this connection carries.
    pub kernel: Option<KernelSession>,
    pub route: Option<Route>,
    pub cpu: Option<Cpu>,
    /// Where the owner's busiest thread sleeps.
    pub sleeps_in: Option<String>,
    /// Samples that the kernel did not deliver.
    pub missed: u64,
    pub ended: bool,
    latest: Option<Raw>,
    history: History,
    inode: u32,
    cookie: [u32; 2],
    owner_searches: u32,
}

impl Session {
    fn new(id: u32, found: &Found, side: Side) -> Self {
        Self {
            id,
            ends: found.ends,
            side,
            congestion: found.congestion.clone(),
            owner: None,
            kernel: None,
            route: None,
            cpu: None,
            sleeps_in: None,
            latest: None,
            history: History::default(),
            missed: 0,
            ended: false,
            inode: found.inode,
            cookie: found.cookie,
            owner_searches: 0,
        }
    }

    /// The last sample.
    pub fn latest(&self) -> Option<Sample> {
        self.latest.as_ref().map(Raw::sample)
    }

    /// The kernel's number of the socket, which no other socket has or had.
    pub fn cookie(&self) -> u64 {
        u64::from(self.cookie[0]) | u64::from(self.cookie[1]) << 32
    }

    /// Whether there is a sample.
    pub fn is_sampled(&self) -> bool {
        self.latest.is_some()
    }

    /// Time from the first sample that is kept to the last.
    pub fn sampled_for(&self) -> Duration {
        let ends = self.before(u64::MAX).zip(self.latest.as_ref());
        ends.map_or(Duration::ZERO, |(first, last)| {
            Duration::from_nanos(last.at_ns().saturating_sub(first.at_ns))
        })
    }

    /// The samples that are kept, in the order of time: [`HISTORY_NS`](crate::limits::HISTORY_NS) apart, and the last one.
    pub fn samples(&self) -> Vec<Sample> {
        let mut samples = Vec::new();
        self.history.each(|raw| {
            samples.push(raw.sample());
            true
        });
        samples.extend(self.latest());
        samples
    }

    /// The sample before the last `period_ns`, or the earliest that is kept; `None` before the second one.
    pub fn before(&self, period_ns: u64) -> Option<Sample> {
        let since = self.latest.as_ref()?.at_ns().saturating_sub(period_ns);
        let mut found = None;
        self.history.each(|raw| {
            let is_sought = found.is_none() || raw.at_ns() <= since;
            if is_sought {
                found = Some(raw.clone());
            }
            is_sought
        });
        found.as_ref().map(Raw::sample)
    }

    fn add(&mut self, reply: &Reply<'_>) {
        let latest = match &mut self.latest {
            None => self.latest.insert(reply.keep()),
            Some(latest) => {
                self.history.offer(latest);
                reply.keep_in(latest);
                latest
            }
        };
        if let Some(kernel) = &mut self.kernel {
            kernel::observe(kernel, Path::new(SYS));
        }
        let outstanding = self.kernel.as_ref().and_then(KernelSession::outstanding);
        latest.set_beside(outstanding, self.route.as_ref().map(|route| route.drops));
    }
}

/// The watched connections.
#[derive(Debug)]
pub struct Sessions {
    chosen: Chosen,
    prober: Prober,
    routes: Option<RouteProber>,
    processes: Processes,
    /// Processor use of the owners, each read once for all of its connections.
    usages: HashMap<u32, Usage>,
    sessions: Vec<Session>,
    /// One for each session that has not ended, in their order, and the places of those sessions.
    watched: Vec<Watched>,
    places: Vec<usize>,
    id_next: u32,
    /// Sockets that were not chosen, by cookie and inode; and how often the table was read.
    others: HashSet<([u32; 2], u32)>,
    looked: u32,
    /// Connections beyond [`WATCHED_MAX`], which are not watched.
    pub left_out: usize,
    /// Packets of the same namespace; taken by who follows them.
    packets: Option<io::Result<PacketProber>>,
}

impl Sessions {
    /// Sessions of the namespace that `chosen` lies in, none yet.
    pub fn new(chosen: Chosen) -> Result<Self, NamespaceError> {
        let open = || Ok((Prober::new()?, RouteProber::new().ok(), PacketProber::new()));
        let (prober, routes, packets) = match chosen {
            Chosen::Process(pid) => in_namespace(pid, open)?,
            _ => open()?,
        };
        Ok(Self {
            chosen,
            prober,
            routes,
            processes: Processes::default(),
            usages: HashMap::new(),
            sessions: Vec::new(),
            watched: Vec::new(),
            places: Vec::new(),
            id_next: 1,
            others: HashSet::new(),
            looked: 0,
            left_out: 0,
            packets: Some(packets),
        })
    }

    /// The packets of the namespace, once; an error if this process may not see them.
    pub fn take_packets(&mut self) -> Option<io::Result<PacketProber>> {
        self.packets.take()
    }

    pub fn all(&self) -> &[Session] {
        &self.sessions
    }

    /// Forgets connections that have ended.
    pub fn forget_ended(&mut self) {
        self.sessions.retain(|session| !session.ended);
        self.find_places();
    }

    fn find_places(&mut self) {
        let live = self.sessions.iter().enumerate().filter(|(_, session)| !session.ended);
        self.places = live.map(|(place, _)| place).collect();
    }

    /// Looks for connections that came, and at what changes slowly.
    pub fn refresh(&mut self, now_ns: u64) -> io::Result<()> {
        self.discover()?;
        self.find_owners();
        self.find_kernel_sessions();
        self.observe(now_ns);
        Ok(())
    }

    fn discover(&mut self) -> io::Result<()> {
        let table = self.prober.table(false)?;
        // Until the program accepts a connection, its socket is no file and has no owner.
        for session in self.sessions.iter_mut().filter(|session| session.inode == 0 && !session.ended) {
            let same = table.iter().find(|found| found.cookie == session.cookie);
            session.inode = same.map_or(0, |found| found.inode);
        }
        let known: HashSet<[u32; 2]> = self.live().map(|session| session.cookie).collect();
        // A closed socket whose peer has not closed stays in the table for a minute.
        let is_open = |found: &Found| found.state != FIN_WAIT2 || found.inode != 0;
        let unknown = table.into_iter().filter(|found| is_open(found) && !known.contains(&found.cookie));
        let mut fresh: Vec<Found> = unknown.collect();
        // Whose sockets those are that were there before is asked again only now and then.
        let others: HashSet<_> = fresh.iter().map(|found| (found.cookie, found.inode)).collect();
        self.looked = self.looked.wrapping_add(1);
        if others.is_subset(&self.others) && !self.looked.is_multiple_of(LOOKS_EACH) {
            return Ok(());
        }
        let inodes = self.inodes();
        fresh.retain(|found| is_chosen(&self.chosen, found, &inodes));
        self.others = others;
        for found in &fresh {
            self.others.remove(&(found.cookie, found.inode));
        }
        if fresh.is_empty() {
            return Ok(());
        }
        let listening = self.prober.table(true)?;
        let ports: HashSet<u16> = listening.iter().map(|found| found.ends.local.port()).collect();
        self.left_out = 0;
        for found in fresh {
            if self.watched.len() >= WATCHED_MAX {
                self.left_out += 1;
                continue;
            }
            let session = Session::new(self.id_next, &found, side(&found.ends, &ports));
            self.id_next = self.id_next.saturating_add(1);
            self.sessions.push(session);
            self.watched.push(Watched::new(&found));
        }
        self.find_places();
        // A connection that has ended makes room for a new one.
        if self.sessions.len() > 2 * WATCHED_MAX {
            self.forget_ended();
        }
        Ok(())
    }

    /// Sockets of the processes that are chosen.
    fn inodes(&self) -> HashMap<u32, Program> {
        match self.chosen {
            Chosen::Process(pid) => {
                self.processes.sockets(pid).into_keys().map(|inode| (inode, Program::Iscsi)).collect()
            }
            Chosen::Addresses(_) => HashMap::new(),
            Chosen::All => {
                let program = |name: &str| match name {
                    name if PROGRAMS.contains(&name) => Some(Program::Iscsi),
                    name if name.starts_with(QEMU) => Some(Program::Qemu),
                    _ => None,
                };
                let pids = self.processes.named(|name| program(name).is_some());
                let sockets = pids.into_iter().flat_map(|pid| {
                    let kind = self.processes.name(pid).and_then(|name| program(&name));
                    let sockets = self.processes.sockets(pid).into_keys();
                    sockets.filter_map(move |inode| Some((inode, kind?)))
                });
                sockets.collect()
            }
        }
    }

    fn live(&self) -> impl Iterator<Item = &Session> {
        self.sessions.iter().filter(|session| !session.ended)
    }

    fn find_owners(&mut self) {
        let is_sought = |session: &&mut Session| {
            session.owner.is_none() && session.inode != 0 && session.owner_searches < OWNER_SEARCHES_MAX
        };
        let mut sought: Vec<&mut Session> = self.sessions.iter_mut().filter(is_sought).collect();
        if sought.is_empty() {
            return;
        }
        let owners = self.processes.owners(&sought.iter().map(|session| session.inode).collect());
        for session in &mut sought {
            session.owner_searches += 1;
            session.owner = owners.get(&session.inode).cloned();
        }
    }

    fn find_kernel_sessions(&mut self) {
        let found = kernel::sessions(Path::new(SYS));
        for session in self.sessions.iter_mut().filter(|session| session.side == Side::Initiator) {
            // Sockets of the kernel's initiator belong to iscsid, or to no process that is visible.
            let may_be = session.owner.as_ref().is_none_or(|owner| owner.name == "iscsid");
            let same = found.iter().find(|kernel| kernel.remote == session.ends.remote);
            session.kernel = same.filter(|_| may_be).cloned();
        }
    }

    fn observe(&mut self, now_ns: u64) {
        let mut queues: HashMap<u32, Option<Route>> = HashMap::new();
        let owners: HashSet<u32> =
            self.live().filter_map(|session| session.owner.as_ref()).map(|owner| owner.pid).collect();
        self.usages.retain(|pid, _| owners.contains(pid));
        let used: HashMap<u32, _> = owners
            .into_iter()
            .map(|pid| (pid, self.usages.entry(pid).or_default().update(pid, now_ns)))
            .collect();
        for session in self.sessions.iter_mut().filter(|session| !session.ended) {
            let used = session.owner.as_ref().and_then(|owner| used.get(&owner.pid)?.clone());
            (session.cpu, session.sleeps_in) = used.map_or((None, None), |(cpu, place)| (Some(cpu), place));
            let Some(routes) = &mut self.routes else { continue };
            let known = session.route.as_ref().map(|route| route.interface);
            let interface = known.or_else(|| routes.interface(session.ends.remote.ip()).ok().flatten());
            if let Some(interface) = interface {
                let queue = queues.entry(interface);
                session.route = queue.or_insert_with(|| routes.queue(interface).ok().flatten()).clone();
            }
        }
    }

    /// Takes one sample of each connection. Calls `on` for each, with the session as it is after and the sample's time.
    pub fn sample(&mut self, mut on: impl FnMut(&Session, u64)) -> io::Result<()> {
        let (sessions, places) = (&mut self.sessions, &self.places);
        let mut ended = false;
        let result = self.prober.sample(&self.watched, |index, outcome| {
            let Some(session) = places.get(index).and_then(|place| sessions.get_mut(*place)) else { return };
            match outcome {
                Outcome::Sampled(reply) => {
                    session.add(&reply);
                    on(session, reply.at_ns);
                }
                Outcome::Missed => session.missed = session.missed.saturating_add(1),
                Outcome::Gone => {
                    session.ended = true;
                    ended = true;
                }
            }
        });
        if ended {
            let mut places = self.places.iter();
            let sessions = &self.sessions;
            self.watched.retain(|_| places.next().is_none_or(|place| !sessions[*place].ended));
            self.find_places();
        }
        result
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    Iscsi,
    Qemu,
}

fn is_chosen(chosen: &Chosen, found: &Found, inodes: &HashMap<u32, Program>) -> bool {
    let Ends { local, remote } = found.ends;
    let program = inodes.get(&found.inode).filter(|_| found.inode != 0);
    match chosen {
        Chosen::Process(_) => program.is_some(),
        Chosen::Addresses(addresses) => addresses.iter().any(|address| {
            let matches = |end: SocketAddr| {
                end.ip().to_canonical() == address.ip().to_canonical()
                    && (address.port() == 0 || address.port() == end.port())
            };
            matches(local) || matches(remote)
        }),
        Chosen::All => {
            let by_port = [local, remote].iter().any(|end| ISCSI_PORTS.contains(&end.port()));
            by_port || program.is_some()
        }
    }
}

/// The end at this machine: the target's if a socket listens at its port.
fn side(ends: &Ends, listening: &HashSet<u16>) -> Side {
    let is_iscsi = |end: SocketAddr| ISCSI_PORTS.contains(&end.port());
    match (is_iscsi(ends.local), is_iscsi(ends.remote)) {
        (true, false) => Side::Target,
        (false, true) => Side::Initiator,
        _ if listening.contains(&ends.local.port()) => Side::Target,
        _ => Side::Initiator,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::super::tests::pair;
    use super::*;

    fn found(local: &str, remote: &str, inode: u32) -> Found {
        let ends = Ends { local: local.parse().unwrap(), remote: remote.parse().unwrap() };
        let (state, uid, cookie, interface, congestion) = (1, 0, [1, 2], 0, None);
        Found { ends, state, inode, uid, cookie, interface, congestion }
    }

    #[test]
    fn connections_are_chosen() {
        let addresses = |text: &str| Chosen::Addresses(vec![text.parse().unwrap()]);
        let mapped = found("[::ffff:10.0.0.1]:40000", "[::ffff:10.0.0.2]:3261", 9);
        for (chosen, found, expected) in [
            (Chosen::All, found("10.0.0.1:40000", "10.0.0.2:3260", 9), true),
            (Chosen::All, found("10.0.0.1:860", "10.0.0.2:40000", 9), true),
            (Chosen::All, found("10.0.0.1:22", "10.0.0.2:40000", 9), false),
            (Chosen::All, found("10.0.0.1:22", "10.0.0.2:40000", 100), true),
            (Chosen::All, found("10.0.0.1:22", "10.0.0.2:40000", 0), false),
            (Chosen::Process(1), found("10.0.0.1:22", "10.0.0.2:40000", 100), true),
            (Chosen::Process(1), found("10.0.0.1:22", "10.0.0.2:3260", 9), false),
            (addresses("10.0.0.2:3261"), mapped.clone(), true),
            (addresses("10.0.0.2:0"), mapped.clone(), true),
            (addresses("10.0.0.2:3260"), mapped, false),
        ] {
            let inodes = HashMap::from([(100, Program::Iscsi), (0, Program::Iscsi)]);
            assert_eq!(is_chosen(&chosen, &found, &inodes), expected, "{chosen:?} {found:?}");
        }
    }

    #[test]
    fn what_is_looked_for_is_said() {
        let names = ISCSI_PORTS.map(|port| port.to_string());
        let names = names.iter().map(String::as_str).chain(PROGRAMS).chain([QEMU]);
        names.for_each(|name| assert!(LOOKED_FOR.contains(name), "{name}"));
    }

    #[test]
    fn the_side_is_that_of_the_listener() {
        let listening = HashSet::from([3260, 7000]);
        for (local, remote, expected) in [
            ("10.0.0.1:40000", "10.0.0.2:3260", Side::Initiator),
            ("10.0.0.1:3260", "10.0.0.2:40000", Side::Target),
            ("10.0.0.1:7000", "10.0.0.2:40000", Side::Target),
            ("10.0.0.1:40000", "10.0.0.1:7000", Side::Initiator),
        ] {
            assert_eq!(side(&found(local, remote, 1).ends, &listening), expected);
        }
    }

    #[test]
    fn a_connection_that_is_accepted_later_gets_its_owner() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut sessions = Sessions::new(Chosen::Addresses(vec![near.local_addr().unwrap()])).unwrap();
        let owner = |sessions: &Sessions| {
            let far = near.peer_addr().unwrap();
            let ours = |session: &&Session| {
                session.ends.local == far && session.ends.remote == near.local_addr().unwrap()
            };
            sessions.all().iter().find(ours).unwrap().owner.as_ref().map(|owner| owner.pid)
        };
        sessions.refresh(1).unwrap();
        assert_eq!(owner(&sessions), None);
        let _far = listener.accept().unwrap();
        sessions.refresh(2).unwrap();
        assert_eq!(owner(&sessions), Some(std::process::id()));
    }

    #[test]
    fn ones_own_connections_are_followed_to_their_end() {
        let (mut near, far) = pair("127.0.0.1:0");
        let mut sessions = Sessions::new(Chosen::Addresses(vec![near.local_addr().unwrap()])).unwrap();
        sessions.refresh(1).unwrap();
        // The port may also be one of a connection of another test to a third one.
        let (near_end, far_end) = (near.local_addr().unwrap(), near.peer_addr().unwrap());
        let is_ours =
            |ends: &Ends| [ends.local, ends.remote].iter().all(|end| [near_end, far_end].contains(end));
        let ours = sessions.all().iter().filter(|session| is_ours(&session.ends));
        assert_eq!(ours.count(), 2, "both ends are on this machine");
        near.write_all(&[0; 5000]).unwrap();
        let mut seen = Vec::new();
        let mut see = |session: &Session, _| {
            if is_ours(&session.ends) {
                seen.push((session.id, session.latest().unwrap().bytes_sent.unwrap()));
            }
        };
        sessions.sample(&mut see).unwrap();
        seen.sort_unstable_by_key(|(_, sent)| *sent);
        assert_eq!(seen.iter().map(|(_, sent)| *sent).collect::<Vec<_>>(), [0, 5000]);
        let mine = sessions.all().iter().find(|session| session.ends.local == near.local_addr().unwrap());
        let mine = mine.unwrap();
        assert_eq!((mine.side, mine.owner.as_ref().unwrap().pid), (Side::Initiator, std::process::id()));
        socket2::SockRef::from(&near).set_linger(Some(Duration::ZERO)).unwrap();
        drop((near, far));
        sessions.sample(|_, _| ()).unwrap();
        assert!(sessions.all().iter().filter(|session| is_ours(&session.ends)).all(|session| session.ended));
        sessions.forget_ended();
        assert!(!sessions.all().iter().any(|session| is_ours(&session.ends)));
        assert_eq!(sessions.watched.len(), sessions.all().len());
    }
}
