//! Counts of the interesting cases: a simulator that never reaches them proves nothing.

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }

            pub fn list(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }
    };
}

counters! {
    connections,
    /// Connections refused, or not answered.
    refused,
    /// Connections reset at a random byte.
    resets,
    stalls,
    /// Connections dead for the initiator and alive for the target.
    half_dead,
    /// Segments of a connection that arrived after its initiator had established a new one.
    late_segments,
    /// Late segments that the target still received on an open connection.
    late_segments_heard,
    /// Logins while the target still had the initiator's old connection.
    reinstatements,
    target_cuts,
    target_kills,
    /// Power cuts and kills of an initiator.
    initiator_cuts,
    /// Targets that were drained or stopped under load.
    drains,
    /// Runs whose LUN lies on a sealed volume.
    volumes,
    /// Volumes that their last user had not closed when a target opened them.
    volumes_unclean,
    /// Volumes that a target closed when it was drained or stopped.
    volumes_closed,
    /// Sectors whose last acknowledged version was lost by a cut.
    sectors_lost,
    /// Sectors that a cut returned to a version between the durable one and the last.
    sectors_between,
    /// Requests in flight that a cut or kill left partly done.
    requests_torn,
    /// Flushes that failed because the target had lost its power, and its cache with it.
    losses_told,
    /// Requests that the initiator sent again.
    retries,
    requests,
    failures,
    sectors_checked,
    flushes,
    /// Durable writes (FUA) that succeeded.
    durable_writes,
    /// Copies that succeeded and were compared byte by byte.
    copies,
    copies_failed,
    /// Copies resumed by a journal that succeeded.
    copies_resumed,
    /// Copies by the target that succeeded and were compared.
    target_copies,
    /// Copies by the target resumed by a journal that succeeded.
    target_copies_resumed,
    /// Copies by the target that were aborted, reset or refused in progress.
    target_copies_ended,
    target_copies_lost,
    /// Power cuts and kills of a target during a copy.
    target_copies_cut,
    /// Sectors of copies that another client wrote meanwhile, at either end.
    sectors_crossed,
    /// Journals that were compared with the disk after a power cut.
    claims_checked,
}
