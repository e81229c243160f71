//! Which endpoint an event belongs to.

use io::Owner;

use crate::Endpoint;

/// A table from owner numbers to whatever a driver calls its endpoints.
#[derive(Debug, Default)]
pub struct Router<T> {
    routes: Vec<Option<T>>,
}

impl<T: Copy> Router<T> {
    /// An empty table.
    pub fn new() -> Self {
        Self { routes: Vec::new() }
    }

    /// Events of `endpoint` (and of the layers in it) go to `to`.
    pub fn add_endpoint(&mut self, endpoint: &dyn Endpoint, to: T) {
        let mut owners = Vec::new();
        endpoint.owners(&mut owners);
        for owner in owners {
            self.add(owner, to);
        }
    }

    /// Events of `owner` go to `to`.
    pub fn add(&mut self, owner: Owner, to: T) {
        if self.routes.len() <= owner.index() {
            self.routes.resize(owner.index() + 1, None);
        }
        self.routes[owner.index()] = Some(to);
    }

    /// Forgets an owner: its late events are nobody's.
    pub fn remove(&mut self, owner: Owner) {
        if let Some(route) = self.routes.get_mut(owner.index()) {
            *route = None;
        }
    }

    /// Whose event this is, `None` for a late one of someone gone.
    pub fn route(&self, owner: Owner) -> Option<T> {
        self.routes.get(owner.index()).copied().flatten()
    }
}
