//! An operation in flight.

use std::ops::Range;

use super::Moment;
use crate::Client;

#[derive(Clone, Debug)]
pub(super) struct Operation {
    pub(super) client: Client,
    /// Moment of submission; also identifies its versions.
    pub(super) at: Moment,
    pub(super) what: What,
}

#[derive(Clone, Debug)]
pub(super) enum What {
    Read { range: Range<u64> },
    Write { range: Range<u64>, durable: bool },
    Flush,
}
