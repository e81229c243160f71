//! Routes each event of the loop to an endpoint.

use io::Owner;

use crate::Endpoint;

/// A table from owner numbers to a driver's own names of its endpoints.
#[derive(Debug, Default)]
pub struct Router<T> {
    routes: Vec<Option<T>>,
}

impl<T: Copy> Router<T> {
    pub fn new() -> Self {
        Self { routes: Vec::new() }
    }

    pub fn add_endpoint(&mut self, endpoint: &dyn Endpoint, to: T) {
        let mut owners = Vec::new();
        endpoint.owners(&mut owners);
        for owner in owners {
            self.add(owner, to);
        }
    }

    pub fn add(&mut self, owner: Owner, to: T) {
        if self.routes.len() <= owner.index() {
            self.routes.resize(owner.index() + 1, None);
        }
        self.routes[owner.index()] = Some(to);
    }

    /// Removes an owner: `route` returns `None` for its late events.
    pub fn remove(&mut self, owner: Owner) {
        if let Some(route) = self.routes.get_mut(owner.index()) {
            *route = None;
        }
    }

    /// The endpoint of `owner`; `None` if it was removed or never added.
    pub fn route(&self, owner: Owner) -> Option<T> {
        self.routes.get(owner.index()).copied().flatten()
    }
}
