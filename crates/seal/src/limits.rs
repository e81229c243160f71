//! Limits of one generation (docs/SEAL.md section 6).

use std::time::Duration;

/// The last generation; it has no exchange, so the peers must reconnect.
pub(crate) const GENERATION_MAX: u16 = u16::MAX;

/// The limits of one generation. The protocol has one set; tests use smaller ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Records of a direction after which the initiator offers an exchange.
    pub(crate) records_due: u64,
    /// Bytes of a direction's units after which the initiator offers an exchange.
    pub(crate) unit_bytes_due: u64,
    /// Age of a generation after which the initiator offers an exchange.
    pub(crate) age_due: Duration,
    /// Records at which the sender ends the connection.
    pub(crate) records_late: u64,
    /// Bytes of units at which the sender ends the connection.
    pub(crate) unit_bytes_late: u64,
    pub(crate) records_max: u64,
    pub(crate) unit_bytes_max: u64,
    /// Time after a sender's step within which a unit of the previous generation may still begin.
    pub(crate) ahead_max: Duration,
    /// Time after the answer for which the receiver keeps keys of the previous generation.
    pub(crate) keep_max: Duration,
}

impl Limits {
    /// The values of section 6.
    pub(crate) const SPECIFIED: Self = Self {
        records_due: 1 << 32,
        unit_bytes_due: 1 << 36,
        age_due: Duration::from_secs(3600),
        records_late: 1 << 33,
        unit_bytes_late: 1 << 38,
        records_max: 1 << 34,
        unit_bytes_max: 1 << 39,
        ahead_max: Duration::from_secs(30),
        keep_max: Duration::from_secs(60),
    };
}

const _: () = {
    let limits = Limits::SPECIFIED;
    assert!(limits.records_due < limits.records_late && limits.records_late < limits.records_max);
    assert!(limits.unit_bytes_due < limits.unit_bytes_late && limits.unit_bytes_late < limits.unit_bytes_max);
    assert!(limits.ahead_max.as_secs() < limits.keep_max.as_secs());
    // A unit has at least one byte, so the 48 bits of its number outlast the bytes.
    assert!(limits.unit_bytes_max < 1 << 48);
};
