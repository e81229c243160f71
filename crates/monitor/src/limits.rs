//! Bounds of everything that an analysis keeps.

/// Points of pictures that a whole analysis holds: divided between its connections.
pub(crate) const SERIES_POINTS_MAX: usize = 1_000_000;
/// Bins of the rate over time of one direction.
pub(crate) const RATE_BINS_MAX: usize = 4096;

// The probe.

/// Sockets of the kernel's table that are looked at; further ones are not seen.
pub const SOCKETS_MAX: usize = 1 << 18;
/// Bytes of a dump of the kernel's table.
pub const DUMP_BYTES_MAX: usize = 1 << 27;
/// Connections that are sampled at once.
pub const WATCHED_MAX: usize = 1024;
/// Processes that a search for a socket's owner looks at.
pub const PROCESSES_MAX: usize = 1 << 16;
/// Descriptors of one process that such a search looks at.
pub const DESCRIPTORS_MAX: usize = 1 << 16;
/// Threads of one process whose processor time is read.
pub const THREADS_MAX: usize = 4096;
/// Bytes of a file in `/proc` or `/sys`.
pub const PROC_FILE_BYTES_MAX: u64 = 1 << 16;
/// Samples of a connection that are kept, [`HISTORY_NS`] apart: those of five seconds.
pub const HISTORY_MAX: usize = 128;
/// Retransmissions of a connection that are kept with their sequence numbers.
#[cfg(feature = "bpf")]
pub const RETRANSMISSIONS_KEPT_MAX: usize = 16;
/// Events of the kernel's programs that one call passes on: the caller samples sockets between calls.
#[cfg(feature = "bpf")]
pub const EVENTS_READ_MAX: usize = 1 << 16;
/// Least time between two kept samples.
pub const HISTORY_NS: u64 = 40_000_000;
/// Points of the pictures of one of this process's own connections.
pub const FOLLOWED_POINTS_MAX: usize = 16_384;

// Recordings.

/// Bytes of a recording; it ends there.
pub const RECORDING_BYTES_MAX: u64 = 4 << 30;
/// Bytes of one block of a recording.
pub const RECORD_BLOCK_BYTES_MAX: usize = 1 << 20;
/// Connections of one recording.
pub const RECORD_FLOWS_MAX: usize = 4096;
/// Samples of all connections that the analysis of a recording keeps, of some 400 bytes each.
pub const RECORD_SAMPLES_MAX: usize = 1 << 17;
/// Bytes of a name in a recording.
pub const RECORD_NAME_BYTES_MAX: usize = 512;
/// Bytes of damaged blocks that are searched before the rest of a recording is left.
pub const RECORD_DAMAGE_BYTES_MAX: u64 = 1 << 28;

// Connections.

/// Connections that are followed at once; beyond, the one that is idle longest is finished.
pub const FLOWS_MAX: usize = 1024;
/// Connections that turned out not to be iSCSI and are remembered, to pass over their packets.
pub const FLOWS_IGNORED_MAX: usize = 1 << 16;
/// Finished connections that wait to be collected; the oldest is forgotten beyond.
pub const FLOWS_FINISHED_MAX: usize = 4096;
/// Payload bytes of a connection on another port in which the first PDU must be found.
pub const CANDIDATE_BYTES_MAX: u64 = 1 << 20;
/// Bytes of one direction in which PDUs are searched, at the start of a capture and after headers were not seen.
pub const FRAMING_SEARCH_BYTES_MAX: u64 = 256 << 20;
/// Gaps of one direction; the first is given up beyond.
pub const HOLES_MAX: usize = 256;
/// Parts of headers, of at most 48 bytes each, that one direction keeps while a gap before them is open.
pub const SCRAPS_MAX: usize = 512;
/// PDUs of one direction that have started and not ended.
pub const FLOW_PDUS_OPEN_MAX: usize = 1024;
/// Segments of one direction that wait for the acknowledgement that times them.
pub const TIMED_SEGMENTS_MAX: usize = 1024;
/// Time stamps of one direction that wait for their echo.
pub const TIMED_STAMPS_MAX: usize = 16;
/// Packets of one direction with which a further one is compared to find that the capture holds it twice.
pub const FINGERPRINTS_MAX: usize = 64;
/// Negotiated keys of a connection, and bytes of one value.
pub const NEGOTIATED_KEYS_MAX: usize = 64;
pub const NEGOTIATED_VALUE_BYTES_MAX: usize = 255;
/// Bytes of one text, over all PDUs that continue it.
pub const NEGOTIATED_TEXT_BYTES_MAX: usize = 16 << 10;

// Captures.
/// First size of the buffer through which a capture is read, bytes.
pub const CAPTURE_BUFFER_BYTES: usize = 1 << 20;
/// Largest record of a capture that is read, bytes; the buffer grows to it. Frames before segmentation by the network
/// card have up to 512 KiB (BIG TCP).
pub const CAPTURE_RECORD_BYTES_MAX: usize = 4 << 20;
/// Most interfaces of one section of a pcapng file.
pub const CAPTURE_INTERFACES_MAX: usize = 4096;
/// Most interfaces of one section that is written; a new section begins then.
pub const WRITTEN_INTERFACES_MAX: usize = 1024;
/// Most comments of one packet that is written, and bytes of one.
pub const COMMENTS_PER_FRAME_MAX: usize = 32;
pub const COMMENT_BYTES_MAX: usize = 512;
/// PDUs whose start is remembered for the comment at their end.
pub const COMMENTED_PDUS_MAX: usize = 1 << 16;
/// Connections that a capture without payload is written of at once; packets of others are left out.
pub const SLIM_FLOWS_MAX: usize = 16_384;
/// Packets, and bytes of their payload, that wait until their connection or their PDUs are known.
pub const SLIM_QUEUE_PACKETS_MAX: usize = 1 << 16;
pub const SLIM_QUEUE_BYTES_MAX: usize = 16 << 20;
/// PDUs that are remembered while packets with parts of them wait.
pub const SLIM_PDUS_MAX: usize = 1 << 16;
/// Addresses, logical units and session identifiers that get numbers of their own.
pub const SLIM_NAMES_MAX: usize = 1 << 16;
/// Most VLAN tags before the network header.
pub const VLAN_TAGS_MAX: usize = 4;
/// Most extension headers between the IPv6 header and TCP.
pub const EXTENSION_HEADERS_MAX: usize = 16;

const _: () = assert!(CAPTURE_BUFFER_BYTES <= CAPTURE_RECORD_BYTES_MAX);

// Commands.

/// Most PDUs of one direction that have started and not ended: those of one large frame, and more.
pub const PDUS_STARTED_MAX: usize = 4096;
/// Most packets of one direction whose bytes wait for the start of their PDU to be known.
pub const PIECES_WAITING_MAX: usize = 4096;
/// Most commands of a connection without a response; the oldest is given up beyond.
pub const COMMANDS_OPEN_MAX: usize = 4096;
/// Most ended commands of a connection that wait for the next command to start.
pub const COMMANDS_ENDED_MAX: usize = 4096;
/// Most bursts that are kept of one command; later ones are added to the last.
pub const BURSTS_MAX: usize = 64;
/// Most acknowledgements and PDUs on their way to one end that are remembered.
pub const ARRIVALS_MAX: usize = 4096;
/// Most acknowledgements that are remembered to find when the target had all data of a command.
pub const ACKS_REMEMBERED_MAX: usize = 1024;
/// Most task management requests without a response.
pub const TASK_REQUESTS_MAX: usize = 64;
/// Most parts of a distribution that have counts, of 68 bytes each: 16 doublings without a gap.
pub const SPREAD_PAGES_MAX: usize = 128;
/// Most different sizes or depths that a median is exact for.
pub const TALLY_VALUES_MAX: usize = 256;

// Pages.

/// Connections that a page shows with charts; the others are listed.
pub const PAGE_FLOWS_MAX: usize = 16;
/// Rows of each table of commands in a page.
pub(crate) const PAGE_COMMANDS_MAX: usize = 20;

// Analyses.

/// Bytes that the commands and packets on their way take, of all connections of an analysis; and packets and events after
/// which that is looked at: one frame can hold a thousand commands, and a command takes some 500 bytes.
pub const HELD_BYTES_MAX: usize = 64 << 20;
pub const HELD_CHECK_EVENTS: u32 = 1 << 16;
/// Events, of some 100 bytes, that wait until the connections handle them; and those of one frame. Fewer are slower where
/// a thousand connections take turns.
pub const EVENTS_QUEUED_MAX: usize = 1 << 15;
/// Most connections of an analysis whose commands and points are kept in detail.
pub const DETAILED_FLOWS_MAX: usize = 32;
// The model.

/// Most packets of one end that are on their way to the other end's clock.
pub const PEER_EVENTS_MAX: usize = 1 << 16;
/// Most packets of one direction that wait for the acknowledgement that measures their round trip.
pub const SENDS_REMEMBERED_MAX: usize = 1 << 14;
/// Most connections that an analysis reports, those with most data.
pub const FLOWS_REPORTED_MAX: usize = 1024;
