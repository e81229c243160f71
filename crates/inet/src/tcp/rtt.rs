//! Round trip times of one path, and the retransmission timeout (RFC 6298).

/// Estimates of one path, in microseconds.
#[derive(Clone, Copy, Debug, Default, zerocopy::FromZeros)]
#[repr(C)]
pub(crate) struct Rtt {
    srtt_us: u32,
}
