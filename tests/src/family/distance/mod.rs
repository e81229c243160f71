//! Copies over a path with a round trip, both directions, every byte compared: at 0, 50 and 200 ms; how many round trips pass
//! before the first data; and while the path or the target changes. Nothing here depends on the speed of the machine:
//! rates are measured by `hikyaku lab wan-write`.

mod faults;
mod place;
mod rounds;

use std::time::Duration;

use anyhow::{Result, ensure};
use lab::wan::{Tap, obstacle};

use crate::schema::Schema;
use crate::{Cases, Context};
use place::{Place, Protection, Way};
use rounds::{Rounds, connections, read};

/// Enough that a connection leaves its slow start at every round trip.
const BYTES: u64 = 48 << 20;
/// Of a copy whose first packets are counted.
const COUNTED_BYTES: u64 = 4 << 20;
const RTTS_MS: [u64; 3] = [0, 50, 200];
const RTT_COUNTED: Duration = Duration::from_millis(50);
/// Round trips between the SYN and the first data, at most.
const ROUNDS: [(Protection, u32); 3] =
    [(Protection::Plain, 5), (Protection::Chap, 8), (Protection::Sealed, 7)];
/// Bytes that an initiator sends in one flight of its login and its set-up stay below this; a first flight of data does not.
const DATA_BYTES_MIN: u64 = 8 << 10;
/// Bytes of each packet in the capture: its headers.
const SNAP_BYTES: usize = 128;

/// A whole copy; what it says of itself is in order.
fn copies(context: &Context, rtt: Duration, way: Way) -> Result<()> {
    let place = Place::new(context, rtt, BYTES, Protection::Plain, None)?;
    let object = place.copy(context, way)?.json()?;
    place.compare(way)?;
    Schema::load("copy")?.check(&object)?;
    ensure!(object["bytes"] == BYTES && object["retries"].as_u64().unwrap_or(0) == 0, "{object}");
    // Data cannot arrive before its connection, its login and its command have.
    let seconds = object["seconds"].as_f64().unwrap_or(0.0);
    ensure!(seconds > rtt.as_secs_f64() && object["mb_per_s"].as_f64() > Some(0.0), "{object}");
    for connection in object["network"].as_array().into_iter().flatten() {
        ensure!(connection["end"] == way.remote_end(), "{object}");
        let least = connection["rtt_least_ms"].as_f64().unwrap_or(0.0);
        // The timers of the emulated path are not exact.
        ensure!(least >= 0.9 * rtt.as_secs_f64() * 1e3, "a round trip of {least} ms: {object}");
    }
    Ok(())
}

/// The first data of a write follows the SYN after few round trips: counted in a capture beside the initiator, by what each
/// packet answers.
fn first_data(context: &Context, protection: Protection, rounds_max: u32) -> Result<()> {
    let tap = |path| Tap { place: 0.0, snap_bytes: SNAP_BYTES, ..Tap::new(path) };
    let place = Place::new(context, RTT_COUNTED, COUNTED_BYTES, protection, Some(&tap))?;
    place.copy(context, Way::Write)?;
    place.compare(Way::Write)?;
    let Rounds(flights) = read(&place.finish_tap()?, place::PORT)?;
    let first = flights.iter().position(|bytes| *bytes >= DATA_BYTES_MIN);
    ensure!(
        first.is_some_and(|first| first >= 2 && first <= rounds_max as usize),
        "bytes of the initiator by round trips after its SYN, data at most after {rounds_max}: {flights:?}"
    );
    Ok(())
}

/// After a write over a distance what was written is read back on a new connection, whose slow start nothing has ended; a
/// neighbour is read back on the old one.
fn verified(context: &Context, rtt: Duration, expected: usize) -> Result<()> {
    let tap = |path| Tap { place: 0.0, snap_bytes: SNAP_BYTES, ..Tap::new(path) };
    let place = Place::new(context, rtt, BYTES, Protection::Plain, Some(&tap))?;
    let object = place.copy_verified(context, Way::Write)?.json()?;
    place.compare(Way::Write)?;
    ensure!(object["verified"] == true && object["retries"] == 0, "{object}");
    let connections = connections(&place.finish_tap()?, place::PORT)?;
    ensure!(connections == expected, "{connections} connections, expected {expected}");
    Ok(())
}

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    if let Some(obstacle) = obstacle() {
        cases.check("no-path", || Ok(()));
        cases.note(format!("no path with a round trip: {obstacle}"));
        return Ok(());
    }
    for ms in RTTS_MS {
        for way in [Way::Write, Way::Read] {
            let name = format!("{}-at-{ms}-ms", way.name());
            cases.check(&name, || copies(context, Duration::from_millis(ms), way));
        }
    }
    for (protection, rounds_max) in ROUNDS {
        let name = format!("first-data-{}", protection.name());
        cases.check(&name, || first_data(context, protection, rounds_max));
    }
    for (ms, expected) in [(0, 1), (50, 2)] {
        let name = format!("verified-at-{ms}-ms");
        cases.check(&name, || verified(context, Duration::from_millis(ms), expected));
    }
    faults::examine(context, cases);
    Ok(())
}
