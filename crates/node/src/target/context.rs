//! The context of one call on a connection and its commands.

use std::sync::Arc;

use block::{Completion, Endpoint};
use io::Io;
use iscsi::target as machine;

use super::lun::Lun;
use super::session::Session;
use super::shared::Shared;
use super::slots::Slots;
use crate::stream::Stream;

/// What a connection borrows from its thread.
pub(super) struct Context<'a> {
    pub(super) io: &'a mut Io,
    pub(super) shared: &'a Arc<Shared>,
    /// The units of this thread and its endpoints for them, by slot.
    pub(super) luns: &'a Slots<Arc<Lun>>,
    pub(super) units: &'a mut Slots<Box<dyn Endpoint>>,
    /// Requests that completed inside `submit`.
    pub(super) done: &'a mut Vec<Completion>,
    pub(super) draining: bool,
    /// Payload bytes that one connection may send in this turn.
    pub(super) send_bytes: usize,
}

/// What the commands of a session borrow from the thread and from their connection.
pub(super) struct TaskContext<'a, 'thread> {
    pub(super) thread: &'a mut Context<'thread>,
    pub(super) machine: &'a mut machine::Connection,
    pub(super) stream: &'a mut Stream,
    pub(super) session: &'a Session,
    /// The connection still sends responses. If false, a command whose storage work has ended is aborted.
    pub(super) answers: bool,
}
