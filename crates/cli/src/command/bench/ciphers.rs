//! `bench ciphers`: speed of sealing and opening on one core, compared with memcpy and CRC32C.

use std::hint::black_box;
use std::time::{Duration, Instant};

use iscsi::digest::Digest;
use seal::{Channel, Descriptor, Identity, Initiator, Responder, Suite};
use serde_json::{Value, json};
use xts::Xts;

use crate::context::Context;
use crate::error::{Exit, Failure};
use crate::output::{self, Table};

/// Bytes of a unit: a sector, a packet, a page, a TLS record, the default unit of SEAL/1, and larger units that
/// sessions may negotiate.
const SIZES: [usize; 7] = [512, 1460, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Sectors of volumes.
const SECTORS: [usize; 2] = [512, 4096];
/// Minimum bytes processed in rotation, for units that are smaller: about the bytes that a connection has in flight.
const WORKING_SET: usize = 256 << 10;
/// Measuring time of each figure.
const TIME: Duration = Duration::from_millis(60);

/// Seal and open in memory, by every suite of sealed sessions, on one core
///
/// Units of several sizes, sealed where they lie, sealed on the way into another buffer, and opened where they lie; all
/// under one key, as in a session. AES-256-XTS is that of luks2 volumes, a sector at a time. Beside them memcpy, and the CRC32C of
/// iSCSI's digests. Figures are GB/s of data.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hikyaku bench ciphers
  hikyaku bench ciphers --json")]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Seal,
    SealInto,
    Open,
    Copy,
    Check,
}

impl Act {
    fn name(self) -> &'static str {
        match self {
            Self::Seal => "seal",
            Self::SealInto => "copy+seal",
            Self::Open => "open",
            Self::Copy => "copy",
            Self::Check => "check",
        }
    }
}

struct Row {
    means: &'static str,
    act: Act,
    /// For each of [`SIZES`]; `None`: no size of its units.
    speeds: Vec<Option<f64>>,
}

pub(super) fn run(context: &Context, args: &Args) -> Result<Exit, Failure> {
    let _orderly = context.stop.orderly();
    let rows = measure()?;
    if args.json {
        let rows: Vec<Value> = rows.iter().flat_map(objects).collect();
        output::json(&json!({ "schema": output::SCHEMA, "rows": rows }));
    } else {
        table(&rows).print();
        output::note("GB/s of data, one core; a session with N cores to spare seals on them too");
    }
    Ok(Exit::Done)
}

fn measure() -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    for suite in Suite::ALL {
        let mut speeds = [const { Vec::new() }; 3];
        for size in SIZES {
            for (speeds, speed) in speeds.iter_mut().zip(suite_speeds(suite, size)?) {
                speeds.push(Some(speed));
            }
        }
        for (act, speeds) in [Act::Seal, Act::SealInto, Act::Open].into_iter().zip(speeds) {
            rows.push(Row { means: suite.name(), act, speeds });
        }
    }
    for (index, act) in [Act::Seal, Act::SealInto, Act::Open].into_iter().enumerate() {
        let speeds = SIZES.map(|size| SECTORS.contains(&size).then(|| xts_speeds(size)[index]));
        rows.push(Row { means: "AES-256-XTS", act, speeds: speeds.to_vec() });
    }
    let copy = SIZES.map(|size| {
        let (mut buffers, source) = (buffers(size), vec![1; size]);
        timed(size, || {
            for buffer in &mut buffers {
                buffer.copy_from_slice(black_box(&source));
            }
            buffers.len()
        })
    });
    rows.push(Row { means: "memcpy", act: Act::Copy, speeds: copy.map(Some).to_vec() });
    let check = SIZES.map(|size| {
        let buffers = buffers(size);
        timed(size, || {
            for buffer in &buffers {
                let mut digest = Digest::new();
                digest.update(black_box(buffer));
                black_box(digest.finish());
            }
            buffers.len()
        })
    });
    rows.push(Row { means: "CRC32C", act: Act::Check, speeds: check.map(Some).to_vec() });
    Ok(rows)
}

/// Buffers of `size` bytes, enough for the working set.
fn buffers(size: usize) -> Vec<Vec<u8>> {
    vec![vec![0x5a; size]; (WORKING_SET / size).max(1)]
}

/// GB/s of `work`, which returns the number of units of `size` bytes that it processed.
fn timed(size: usize, mut work: impl FnMut() -> usize) -> f64 {
    work();
    let (start, mut units) = (Instant::now(), 0);
    while start.elapsed() < TIME {
        units += work();
    }
    (units * size) as f64 / start.elapsed().as_secs_f64() / 1e9
}

/// GB/s of sealing in place, sealing into another buffer, and opening in place.
fn suite_speeds(suite: Suite, size: usize) -> Result<[f64; 3], Failure> {
    let (mut ours, mut theirs) = channels(suite)?;
    let mut buffers = buffers(size);
    let mut descriptors: Vec<Descriptor> = Vec::with_capacity(buffers.len());
    let (mut sealing, mut opening, mut units) = (Duration::ZERO, Duration::ZERO, 0);
    // The first round is a warm-up and is not counted.
    for round in 0.. {
        let start = Instant::now();
        descriptors.clear();
        for buffer in &mut buffers {
            descriptors.push(ours.sealer.seal_in_place(buffer));
        }
        let sealed = Instant::now();
        for (buffer, descriptor) in buffers.iter_mut().zip(&descriptors) {
            let opened = theirs.opener.open_unit(descriptor, buffer);
            opened.map_err(|error| Failure::failed("open what was sealed by", suite.name(), error))?;
        }
        if round > 0 {
            sealing += sealed - start;
            opening += sealed.elapsed();
            units += buffers.len();
            if sealing > TIME && opening > TIME {
                break;
            }
        }
    }
    let speed = |time: Duration| (units * size) as f64 / time.as_secs_f64() / 1e9;
    let mut out = vec![0; size];
    let into = timed(size, || {
        for buffer in &buffers {
            black_box(ours.sealer.seal_into(black_box(buffer), &mut out));
        }
        buffers.len()
    });
    Ok([speed(sealing), into, speed(opening)])
}

/// GB/s as [`suite_speeds`], of sectors of a luks2 volume.
fn xts_speeds(sector_bytes: usize) -> [f64; 3] {
    let key: Vec<u8> = (0..64).collect();
    let mut xts = Xts::new(&key, sector_bytes).expect("a key with different halves");
    let mut buffer = vec![0x5a; WORKING_SET];
    let mut out = vec![0; WORKING_SET];
    let units = WORKING_SET / sector_bytes;
    let seal = timed(sector_bytes, || {
        xts.seal(0, black_box(&mut buffer));
        units
    });
    let into = timed(sector_bytes, || {
        xts.seal_into(0, black_box(&buffer), &mut out);
        units
    });
    let open = timed(sector_bytes, || {
        xts.open(0, black_box(&mut buffer));
        units
    });
    [seal, into, open]
}

fn channels(suite: Suite) -> Result<(Channel, Channel), Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::failed("shake hands with", "itself", error);
    let mut entropy = [0; 320];
    getrandom::fill(&mut entropy).map_err(|error| failed(&error))?;
    let (keys, rest) = entropy.split_at(64);
    let identity = |bytes: &[u8]| Identity::generate(bytes.try_into().expect("32 bytes"));
    let (initiator, target) = (identity(&keys[..32]), identity(&keys[32..]));
    let fresh = |bytes: &[u8]| -> [u8; 128] { bytes.try_into().expect("128 bytes") };
    let (state, message) =
        Initiator::start(&initiator, target.public(), b"", None, suite, &fresh(&rest[..128]));
    let responder = Responder::read(&target, b"", &message).map_err(|error| failed(&error))?;
    let (answer, theirs) =
        responder.finish(None, suite, &fresh(&rest[128..])).map_err(|error| failed(&error))?;
    let ours = state.finish(&answer).map_err(|error| failed(&error))?;
    Ok((ours, theirs))
}

fn objects(row: &Row) -> impl Iterator<Item = Value> {
    SIZES.iter().zip(&row.speeds).filter_map(|(size, speed)| {
        let speed = (*speed)?;
        Some(json!({ "means": row.means, "act": row.act.name(), "bytes": size, "gb_per_s": speed }))
    })
}

fn table(rows: &[Row]) -> Table {
    let mut table =
        Table::new(&["means", "act", "512 B", "1460 B", "4 KiB", "16 KiB", "64 KiB", "256 KiB", "1 MiB"]);
    for row in rows {
        let mut cells = vec![row.means.to_owned(), row.act.name().to_owned()];
        cells.extend(
            row.speeds.iter().map(|speed| speed.map_or_else(String::new, |speed| format!("{speed:.2}"))),
        );
        table.row(cells);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_opens_again_and_is_counted() {
        for suite in Suite::ALL {
            let speeds = suite_speeds(suite, 4096).unwrap();
            assert!(speeds.iter().all(|speed| speed.is_finite() && *speed > 0.0), "{speeds:?}");
        }
    }
}
