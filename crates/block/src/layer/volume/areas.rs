//! Memory for ciphertext on its way to the storage: some of it is kept from the beginning, so that a pool that its users
//! have filled does not stop the writes that would empty it.

use std::collections::HashMap;

use area::Span;
use io::Io;

use crate::RequestId;

/// A write is encrypted in pieces of this size, which stay in the cache of a core until the kernel or a NIC takes them.
pub(super) const PIECE_BYTES: usize = 256 << 10;
/// Pieces that an endpoint keeps.
const KEPT: usize = 4;
/// Pieces of an endpoint at most: 32 MiB, what a path of 1 Gbit/s holds in a quarter of a second.
const PIECES_MAX: usize = 128;

#[derive(Debug, Default)]
pub(super) struct Areas {
    free: Vec<Span>,
    /// By request to the storage beneath.
    lent: HashMap<RequestId, Span>,
}

impl Areas {
    /// Takes the pieces that are kept, as far as the pool has them.
    pub(super) fn reserve(&mut self, io: &Io) -> bool {
        while self.free.len() + self.lent.len() < KEPT {
            match io.pool().take(PIECE_BYTES) {
                Some(area) => self.free.push(area),
                None => return false,
            }
        }
        true
    }

    /// A piece for the request `id`, until [`Self::give_back`]. `None`: one will come back.
    pub(super) fn take(&mut self, io: &Io, id: RequestId) -> Option<Span> {
        let has_room = self.lent.len() < PIECES_MAX;
        let area = self.free.pop().or_else(|| has_room.then(|| io.pool().take(PIECE_BYTES))?)?;
        self.lent.insert(id, area.clone());
        Some(area)
    }

    pub(super) fn give_back(&mut self, id: RequestId) {
        if let Some(area) = self.lent.remove(&id)
            && self.free.len() + self.lent.len() < KEPT
        {
            self.free.push(area);
        }
    }
}
