//! How much one generation may carry (docs/SEAL.md section 6).

use std::time::Duration;

/// The last generation; after it the connection is made again.
pub(crate) const GENERATION_MAX: u16 = u16::MAX;

/// The limits of one generation. There is one set of them; tests use smaller ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The sender goes on after so many records.
    pub(crate) records_due: u64,
    /// The sender goes on after so many bytes of units.
    pub(crate) unit_bytes_due: u64,
    /// The sender goes on after this time.
    pub(crate) age_due: Duration,
    /// The sender must have gone on at so many records.
    pub(crate) records_late: u64,
    /// The sender must have gone on at so many bytes of units.
    pub(crate) unit_bytes_late: u64,
    /// No generation has more records.
    pub(crate) records_max: u64,
    /// No generation has more bytes of units.
    pub(crate) unit_bytes_max: u64,
}

impl Limits {
    /// What section 6 says. The sender asks between records, while units are sealed ahead: it keeps 1 GiB of units and
    /// 65536 records below the line that it must not reach.
    pub(crate) const SPECIFIED: Self = Self {
        records_due: (1 << 32) - (1 << 16),
        unit_bytes_due: (1 << 38) - (1 << 30),
        age_due: Duration::from_secs(3600),
        records_late: 1 << 32,
        unit_bytes_late: 1 << 38,
        records_max: 1 << 33,
        unit_bytes_max: 1 << 39,
    };
}

const _: () = {
    let limits = Limits::SPECIFIED;
    assert!(limits.records_due < limits.records_late && limits.records_late < limits.records_max);
    assert!(limits.unit_bytes_due < limits.unit_bytes_late && limits.unit_bytes_late < limits.unit_bytes_max);
    // A unit has a byte at least, so the 48 bits of its number cannot run out first.
    assert!(limits.unit_bytes_max < 1 << 48);
};
