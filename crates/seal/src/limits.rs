//! How much one generation may carry (docs/SEAL.md section 6).

use std::time::Duration;

/// The last generation; after it the connection is made again.
pub(crate) const GENERATION_MAX: u16 = u16::MAX;

/// The limits of one generation. There is one set of them; tests use smaller ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The initiator offers an exchange after so many records of a direction.
    pub(crate) records_due: u64,
    /// The initiator offers an exchange after so many bytes of a direction's units.
    pub(crate) unit_bytes_due: u64,
    /// The initiator offers an exchange after this time.
    pub(crate) age_due: Duration,
    /// The sender ends the connection at so many records.
    pub(crate) records_late: u64,
    /// The sender ends the connection at so many bytes of units.
    pub(crate) unit_bytes_late: u64,
    /// No generation has more records.
    pub(crate) records_max: u64,
    /// No generation has more bytes of units.
    pub(crate) unit_bytes_max: u64,
    /// The sender begins a unit of the generation before so long after its step at most.
    pub(crate) ahead_max: Duration,
    /// The receiver keeps keys of the generation before so long after the answer.
    pub(crate) keep_max: Duration,
}

impl Limits {
    /// What section 6 says.
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
    // A unit has a byte at least, so the 48 bits of its number cannot run out first.
    assert!(limits.unit_bytes_max < 1 << 48);
};
