//! The addresses of one host, tried in a cycle.

#[derive(Clone, Debug)]
pub struct Addresses<A> {
    list: Vec<A>,
    /// Number of addresses tried before the present one.
    at: usize,
}

impl<A> Addresses<A> {
    /// Panics if `list` is empty.
    pub fn new(list: Vec<A>) -> Self {
        assert!(!list.is_empty(), "an endpoint has an address");
        Self { list, at: 0 }
    }

    pub fn all(&self) -> &[A] {
        &self.list
    }

    pub fn has_untried(&self) -> bool {
        self.at + 1 < self.list.len()
    }

    pub fn current(&self) -> &A {
        &self.list[self.at % self.list.len()]
    }

    /// Moves to the next address; false if it was tried before.
    pub fn next_address(&mut self) -> bool {
        self.at += 1;
        self.at < self.list.len()
    }
}
