//! Congestion window of one path: NewReno (RFC 5681) and CUBIC (RFC 9438), with HyStart++ (RFC 9406).

/// Congestion control of one connection, in bytes.
#[derive(Clone, Copy, Debug, Default, zerocopy::FromZeros)]
#[repr(C)]
pub(crate) struct Congestion {
    cwnd: u32,
}
