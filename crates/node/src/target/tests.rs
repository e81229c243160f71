//! A target connection without a server, with one unit in memory: for tests with their own transport.

use std::net::SocketAddr;
use std::sync::Arc;

use block::{Completion, MemoryMedium};
use io::{Event, Io, Owner};

use super::config::{LunConfig, ServerConfig};
use super::connection::Connection;
use super::context::Context;
use super::lun::{Lun, capability_of};
use super::mail::ConnectionId;
use super::shared::Shared;
use super::state::State;
use super::tasks::Tasks;
use super::units::Units;
use crate::TlsIdentity;
use crate::stream::{Operation, SEND_BYTES_MAX, Stream, Transport};

/// One connection of a target, and the state of its thread.
pub(crate) struct TargetEnd {
    connection: Connection,
    shared: Arc<Shared>,
    units: Units,
    done: Vec<Completion>,
}

impl TargetEnd {
    /// Serves `bytes` of memory as LUN 0 of the single target of `config`, over a connection with these two addresses.
    pub(crate) fn new(
        io: &mut Io,
        mut config: ServerConfig,
        bytes: u64,
        transport: Box<dyn Transport>,
        owner: Owner,
        addresses: (SocketAddr, SocketAddr),
    ) -> Self {
        let medium = Arc::new(MemoryMedium::new(bytes, false).unwrap());
        let lun = LunConfig::new(0, medium, "serial-0", 0x3000_0000_0000_0000);
        let capability = capability_of(io, lun.medium.as_ref()).unwrap();
        let unit = Arc::new(Lun::new(&config.targets[0], &lun, &capability, 0, 1).unwrap());
        config.targets[0].luns.push(lun);
        let units = Units::open(io, [&unit].into_iter()).unwrap();
        let tls = config.tls.as_ref().map(TlsIdentity::end).transpose().unwrap();
        let shared = Arc::new(Shared::new(State { config, luns: vec![vec![unit]] }, Vec::new(), 1));
        let stream = Stream::new(io, transport, owner, 0, tls).unwrap();
        let id = ConnectionId { worker: 0, slot: 0, generation: 0 };
        let connection = Connection::new(io, &shared, stream, owner, id, addresses, None).unwrap();
        let mut end = Self { connection, shared, units, done: Vec::new() };
        end.act(io, |_, _| {});
        end
    }

    pub(crate) fn on_event(&mut self, io: &mut Io, event: Event) {
        let (operation, _) = Operation::of(event.token.key);
        self.act(io, |connection, context| connection.on_event(context, operation, event));
    }

    /// Like a worker: calls the connection, and pumps it until no completion of its storage is left.
    fn act(&mut self, io: &mut Io, act: impl FnOnce(&mut Connection, &mut Context<'_>)) {
        let Self { connection, shared, units, done } = self;
        let mut context = Context {
            io,
            shared,
            luns: &units.luns,
            units: &mut units.endpoints,
            done,
            draining: false,
            send_bytes: SEND_BYTES_MAX,
        };
        act(connection, &mut context);
        connection.pump(&mut context);
        while let Some(completion) = context.done.pop() {
            connection.with_tasks(&mut context, |tasks, context| {
                tasks.on_completion(context, completion.id as u32, completion.result);
            });
            connection.pump(&mut context);
        }
        if connection.wants_prefetch() {
            connection.with_tasks(&mut context, Tasks::prefetch);
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.connection.is_over()
    }

    pub(crate) fn refusal(&self) -> Option<&str> {
        self.connection.login.refusal.as_ref().map(|refusal| refusal.reason.as_str())
    }
}
