//! How often the interesting cases happened: a simulator that never meets them proves nothing.

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// What happened in a run, or in all of a batch.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Adds another run's.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }

            /// Names and numbers.
            pub fn list(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }
    };
}

counters! {
    /// Connections that came up.
    connections,
    /// Connections refused, or not answered.
    refused,
    /// Connections reset at a random byte.
    resets,
    /// Directions that stood still for a while.
    stalls,
    /// Connections dead for the initiator and alive for the target.
    half_dead,
    /// Segments of a connection that arrived after its initiator had made a new one.
    late_segments,
    /// Of those, the ones that the target still listened to.
    late_segments_heard,
    /// Logins while the target still had the initiator's old connection.
    reinstatements,
    /// Power cuts of the target.
    target_cuts,
    /// Target processes killed.
    target_kills,
    /// Power cuts and kills of an initiator.
    initiator_cuts,
    /// Targets that were drained or stopped under load.
    drains,
    /// Sectors whose last acknowledged version a cut took.
    sectors_lost,
    /// Sectors that went back to a version other than the last durable one.
    sectors_between,
    /// Requests in the air that a cut or kill left half done.
    requests_torn,
    /// Flushes that failed because the target had lost its power, and its cache with it.
    losses_told,
    /// Requests that the initiator sent again.
    retries,
    /// Requests the workloads made.
    requests,
    /// Requests that failed.
    failures,
    /// Sectors that were read and checked.
    sectors_checked,
    /// Flushes that succeeded.
    flushes,
    /// Durable writes (FUA) that succeeded.
    durable_writes,
    /// Copies that succeeded and were compared byte by byte.
    copies,
    /// Copies that ended with an error.
    copies_failed,
    /// Copies that went on by a journal and succeeded.
    copies_resumed,
    /// Copies by the target that succeeded and were compared.
    target_copies,
    /// Of those, the ones that went on by a journal.
    target_copies_resumed,
    /// Copies by the target that were aborted, reset or refused under way.
    target_copies_ended,
    /// Copies by the target whose connection was lost.
    target_copies_lost,
    /// Power cuts and kills of a target that copied.
    target_copies_cut,
    /// Sectors of copies that somebody else wrote meanwhile, at either end.
    sectors_crossed,
    /// Journals that were compared with the disk after a power cut.
    claims_checked,
}
