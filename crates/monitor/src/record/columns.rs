//! A sample as a row of numbers, and the difference of two rows.

use super::bytes::{Cursor, put_number, unzigzag, zigzag};
use crate::sample::{CaState, Sample};

/// A field's value as a number.
trait Figure: Sized {
    fn number(self) -> u64;
    fn of(number: u64) -> Option<Self>;
}

impl Figure for u32 {
    fn number(self) -> u64 {
        self.into()
    }

    fn of(number: u64) -> Option<Self> {
        number.try_into().ok()
    }
}

impl Figure for u64 {
    fn number(self) -> u64 {
        self
    }

    fn of(number: u64) -> Option<Self> {
        Some(number)
    }
}

impl Figure for bool {
    fn number(self) -> u64 {
        self.into()
    }

    fn of(number: u64) -> Option<Self> {
        Some(number != 0)
    }
}

impl Figure for CaState {
    fn number(self) -> u64 {
        self as u64
    }

    fn of(number: u64) -> Option<Self> {
        let all = [Self::Open, Self::Disorder, Self::Cwr, Self::Recovery, Self::Loss];
        all.get(usize::try_from(number).ok()?).copied()
    }
}

macro_rules! columns {
    ($($name:ident)*) => {
        const NAMES: &[&str] = &[$(stringify!($name)),*];

        fn row_of(sample: &Sample) -> [Option<u64>; COUNT] {
            // Without `..`: a field that is added to the sample must be added here, at the end.
            let Sample { at_ns, state, $($name),* } = sample;
            [Some(*at_ns), Some(u64::from(*state)), $($name.map(Figure::number)),*]
        }

        fn sample_of(row: &[Option<u64>; COUNT]) -> Sample {
            let [at_ns, state, $($name),*] = *row;
            Sample {
                at_ns: at_ns.unwrap_or(0),
                state: state.and_then(|state| state.try_into().ok()).unwrap_or(0),
                $($name: $name.and_then(Figure::of)),*
            }
        }
    };
}

// The order is part of the format: new fields come last.
columns! {
    ca_state mss_bytes cwnd_segments ssthresh_segments unacked_segments sacked_segments lost_segments retrans_segments
    notsent_bytes peer_window_bytes receive_window_bytes rtt_us rttvar_us min_rtt_us delivery_bytes_per_s app_limited
    pacing_bytes_per_s bbr_bytes_per_s busy_us rwnd_limited_us sndbuf_limited_us bytes_sent bytes_acked bytes_received
    bytes_retrans segs_out segs_in data_segs_out data_segs_in total_retrans dsack_dups reord_seen delivered_ce total_rto
    send_queue_bytes send_buffer_bytes receive_queue_bytes receive_buffer_bytes drops device_drops outstanding
    peer_window_scale receive_window_scale
}

/// Columns of a row: time, state, and the fields.
const COUNT: usize = 2 + NAMES.len();
const _: () = assert!(COUNT <= 64, "the masks of columns have 64 bits");

/// The row before; all columns unknown at the beginning of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row([Option<u64>; COUNT]);

impl Default for Row {
    fn default() -> Self {
        Self([None; COUNT])
    }
}

impl Row {
    /// Writes what differs from the row before, and becomes this row.
    pub(super) fn put(&mut self, sample: &Sample, into: &mut Vec<u8>) {
        let row = row_of(sample);
        let (mut toggled, mut changed) = (0, 0);
        for (index, (new, old)) in row.iter().zip(&self.0).enumerate() {
            toggled |= u64::from(new.is_some() != old.is_some()) << index;
            changed |= u64::from(new.is_some() && new.unwrap_or(0) != old.unwrap_or(0)) << index;
        }
        put_number(into, toggled);
        put_number(into, changed);
        for (index, (new, old)) in row.iter().zip(&self.0).enumerate() {
            if changed >> index & 1 == 1 {
                let difference = new.unwrap_or(0).wrapping_sub(old.unwrap_or(0));
                put_number(into, zigzag(difference.cast_signed()));
            }
        }
        self.0 = row;
    }

    /// Reads the next row. Columns of later versions, at higher bits, are left out.
    pub(super) fn take(&mut self, cursor: &mut Cursor<'_>) -> Option<Sample> {
        let (toggled, changed) = (cursor.number()?, cursor.number()?);
        for (index, column) in self.0.iter_mut().enumerate() {
            let is_known = column.is_some() != (toggled >> index & 1 == 1);
            let difference = if changed >> index & 1 == 1 { unzigzag(cursor.number()?) } else { 0 };
            let value = column.unwrap_or(0).wrapping_add(difference.cast_unsigned());
            *column = is_known.then_some(value);
        }
        Some(sample_of(&self.0))
    }
}
