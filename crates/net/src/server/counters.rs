//! What `net status` shows of `inet`: a page of counters that the server alone writes, relaxed, and the supervisor reads.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use area::Region;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Of one server since its memory was made; gauges where the comment says "now".
        #[derive(Debug)]
        #[repr(C)]
        pub struct Counters {
            $($(#[$doc])* pub $name: AtomicU64,)*
        }

        impl Counters {
            /// Names and values, in the order of the page.
            pub fn read(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.load(Ordering::Relaxed)),)*]
            }
        }
    };
}

counters! {
    /// Turns in which something was done: moves if and only if the server works, so a standstill while input waits is a hang.
    turns,
    requests,
    completions,
    /// Requests answered with EINVAL or EBADF.
    requests_refused,
    frames_in,
    frames_out,
    /// Payload of applications in frames out, repetitions included, bytes.
    bytes_out,
    /// Payload delivered to applications, bytes.
    bytes_in,
    /// Payload copied into memory of one application because there are several, bytes.
    bytes_copied,
    /// Frames that ask the driver for a direct return.
    direct_returns,
    /// Starts of drivers (`ifattach`).
    attached,
    /// Clients whose rings were broken.
    clients_faulty,
    /// Inputs dropped: a counter of the driver's rings was impossible.
    dropped_corrupt,
    /// Inputs dropped: a code or a link that does not exist.
    dropped_code,
    /// Inputs dropped: a head that the driver did not own.
    dropped_head,
    /// Inputs dropped: a tail that the driver did not own.
    dropped_tail,
    /// Inputs dropped: a length that head and tail cannot hold.
    dropped_length,
    /// SYNs without answer: the backlog of the listener or the connections of its client are used up.
    syns_dropped,
    /// Half-open connections that gave way to later ones.
    half_open_dropped,
    /// Connections that their application had closed and that were reset before the peer had taken all.
    orphans_reset,
    /// Segments for which their connection or its client had no frame left.
    segments_dropped,
    /// Now: slots of all transmit rings that drivers have not consumed.
    transmit_waiting,
    /// Now: heads that neither drivers nor the list of free ones hold.
    frames_held,
    /// Now: sockets of all clients.
    sockets,
}

impl Counters {
    pub(super) fn add(counter: &AtomicU64, value: u64) {
        // The server is the only writer.
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(value), Ordering::Relaxed);
    }
}

/// The counters in a region of their own.
#[derive(Clone, Debug)]
pub struct Page(Arc<Region>);

/// Of the memory of the counters.
pub const COUNTERS_BYTES: usize = area::PAGE_BYTES;

const _: () = assert!(size_of::<Counters>() <= COUNTERS_BYTES);

impl Page {
    /// # Panics
    /// If the region is shorter than [`COUNTERS_BYTES`].
    pub fn new(region: Arc<Region>) -> Self {
        assert!(region.len() >= COUNTERS_BYTES, "no room for the counters");
        Self(region)
    }
}

impl Deref for Page {
    type Target = Counters;

    fn deref(&self) -> &Counters {
        // SAFETY: the region is page aligned, long enough (checked in `new`) and mapped while `self` lives; any content
        // is a valid `Counters`, all of whose fields are atomic. Readers map it read-only and only load.
        unsafe { &*self.0.as_ptr().cast::<Counters>() }
    }
}
