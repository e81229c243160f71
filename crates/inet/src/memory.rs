//! The tables of records that an engine works on.

/// Records of each table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Capacity {
    pub connections: u32,
    pub listeners: u32,
    /// Of all connections: ranges of memory that were sent and not released.
    pub pieces: u32,
    /// Of all connections: segments that were sent and not acknowledged.
    pub segments: u32,
    pub time_waits: u32,
    pub neighbours: u32,
    /// Frames that drivers receive into; their numbers are 0..frames.
    pub frames: u32,
    pub clients: u32,
}

impl Default for Capacity {
    fn default() -> Self {
        Self {
            connections: 1024,
            listeners: 64,
            pieces: 8192,
            segments: 16_384,
            time_waits: 4096,
            neighbours: 256,
            frames: 1024,
            clients: 16,
        }
    }
}

/// The tables, borrowed from memory of the caller.
#[derive(Debug)]
pub struct Memory<'m> {
    _later: &'m mut [u8],
}

/// Tables on the heap: for tests, and for a stack within one process.
#[derive(Clone, Debug, Default)]
pub struct Owned {
    later: Vec<u8>,
}

impl Owned {
    pub fn new(capacity: &Capacity) -> Self {
        let _ = capacity;
        Self::default()
    }

    pub fn memory(&mut self) -> Memory<'_> {
        Memory { _later: &mut self.later }
    }
}
