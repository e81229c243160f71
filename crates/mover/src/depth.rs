//! How many chunks may be in flight.

/// The policy. There is one: a fixed number. An adaptive one answers the same question from the latencies and
/// rates it is shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Depth {
    chunks: usize,
}

impl Depth {
    pub(crate) fn fixed(chunks: u32) -> Self {
        Self { chunks: chunks as usize }
    }

    /// Chunks that may be in flight now.
    pub(crate) fn limit(self) -> usize {
        self.chunks
    }
}
