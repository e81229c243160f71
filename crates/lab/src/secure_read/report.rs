//! What came of it: tables, JSON, the headline.

use serde_json::{Map, Value, json};

use super::cell::Sample;
use super::plan::{BLOCK_OF_PLOTS, Row};
use super::shape::{Over, Reading};
use super::{Bench, Measured, headline, overlap, plots};
use crate::capture::Gaps;
use crate::part::bystander::Fared;
use crate::stats::{Spread, rounded, short};
use crate::sys::Cpu;
use crate::table::Table;
use crate::{LabError, Options, Report, machine};

/// Version of the JSON; fields are only added.
const SCHEMA: u32 = 1;

impl Sample {
    fn bytes(&self, reading: &Reading) -> f64 {
        self.figures.blocks as f64 * f64::from(reading.block)
    }

    pub(super) fn mb_per_s(&self, reading: &Reading) -> f64 {
        self.bytes(reading) / 1e6 / self.figures.seconds
    }
}

impl Measured {
    fn spread(&self, value: impl Fn(&Sample) -> f64) -> Spread {
        Spread::of(self.samples.iter().map(value)).unwrap_or_default()
    }

    pub(super) fn rate(&self) -> Spread {
        self.spread(|sample| sample.mb_per_s(&self.row.reading))
    }

    pub(super) fn cycle_us(&self) -> Spread {
        self.spread(|sample| sample.figures.cycle_us)
    }

    /// A side's user and system time by `per`.
    fn cpu(&self, side: fn(&Sample) -> Cpu, per: impl Fn(&Sample) -> f64) -> [f64; 2] {
        let part = |part: fn(&Cpu) -> f64| self.spread(|sample| part(&side(sample)) / per(sample)).median;
        [part(|cpu| cpu.user), part(|cpu| cpu.system)]
    }

    fn side(&self, side: fn(&Sample) -> Cpu) -> Value {
        let [user_percent, system_percent] = self.cpu(side, |sample| sample.figures.seconds / 100.0);
        let [user, system] = self.per_gb(side);
        json!({
            "cpu_percent": { "user": user_percent, "system": system_percent },
            "cpu_s_per_gb": { "user": user, "system": system },
        })
    }

    /// Processor seconds of a side, user and system, for 10^9 bytes.
    pub(super) fn per_gb(&self, side: fn(&Sample) -> Cpu) -> [f64; 2] {
        self.cpu(side, |sample| sample.bytes(&self.row.reading) / 1e9)
    }

    /// Distances of packets; they mean something one at a time only.
    pub(super) fn gaps(&self) -> Gaps {
        match &self.watched {
            Some(sample) if self.row.reading.depth == 1 => Gaps::of(&sample.seen),
            _ => Gaps::default(),
        }
    }

    /// Of the time spent on sealing, what passed while the socket held unacknowledged data.
    pub(super) fn hidden_share(&self) -> Option<f64> {
        let sample = self.watched.as_ref().filter(|sample| sample.sealing > 0.0)?;
        Some(rounded(sample.hidden / sample.sealing))
    }

    /// Where a block's time goes, medians in microseconds: until its first bytes, until its last without opening, opening.
    pub(super) fn parts(&self) -> [f64; 3] {
        let median = |value: fn(&Sample) -> f64| self.spread(value).median;
        let (wait, opening) =
            (median(|sample| sample.figures.wait_us), median(|sample| sample.figures.opening_us));
        let cycle = median(|sample| sample.figures.cycle_us);
        [wait, (cycle - wait - opening).max(0.0), opening]
    }

    fn object(&self, can_capture: bool) -> Value {
        let Row { over, reading } = &self.row;
        let gaps = self.gaps();
        let by = if can_capture { "packets of the loopback" } else { "calls of the initiator" };
        let one_at_a_time = reading.depth == 1;
        json!({
            "over": over,
            "block": reading.block,
            "depth": reading.depth,
            "row": reading.protection.name(),
            "obtained": reading.protection.obtained(*over),
            "runs": self.samples.len(),
            "mb_per_s": self.rate(),
            "target": self.side(|sample| sample.target),
            "initiator": self.side(|sample| sample.figures.cpu),
            "cycle_us": self.cycle_us(),
            "cycle_p99_us": self.spread(|sample| sample.figures.cycle_p99_us).median,
            "wait_us": one_at_a_time.then(|| self.parts()[0]),
            "arrival_us": one_at_a_time.then(|| rounded(self.parts()[1])),
            "opening_us": self.parts()[2],
            "packet_gap_us": gaps.packet_us,
            "opening_gap_us": gaps.opening_us,
            "packets_per_block": gaps.packets,
            "gaps_by": by,
            "cipher_hidden_share": self.hidden_share(),
            "bystander": self.fared,
        })
    }
}

pub(super) fn report(
    table: &[Measured],
    alone: Fared,
    options: &Options,
    bench: &Bench,
) -> Result<Report, LabError> {
    let mut object = Map::new();
    object.insert("schema".to_owned(), json!(SCHEMA));
    object.insert("experiment".to_owned(), json!("secure-read"));
    object.insert("quick".to_owned(), json!(options.quick));
    object.insert("machine".to_owned(), machine());
    object.insert("bystander_alone".to_owned(), json!(alone));
    let headline = headline::Headline::of(table);
    object.extend(headline.object());
    let overlap = overlap::lines(table);
    object.insert("overlap".to_owned(), json!(overlap));
    let rows = table.iter().map(|measured| measured.object(bench.can_capture));
    object.insert("rows".to_owned(), rows.chain(peers()).collect());
    Ok(Report {
        text: text(table, alone, bench) + &overlap::text(&overlap) + &headline.text() + &peers_text(),
        json: Value::Object(object),
        figures: plots::all(table, bench)?,
    })
}

/// Peers that live outside this program: where they are installed, `cargo xtask bench sealed` measures them.
const PEERS: [(&str, &str); 2] = [
    ("WireGuard, user space (wireguard-go)", "wireguard-go"),
    ("ESP, user space (strongSwan)", "charon-cmd"),
];

fn peer(program: &str) -> &'static str {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = std::env::split_paths(&path)
        .chain(["/usr/sbin", "/usr/libexec/ipsec", "/usr/lib/ipsec"].map(Into::into))
        .any(|folder| folder.join(program).is_file());
    if is_there { "not measured here: cargo xtask bench sealed" } else { "not installed" }
}

fn peers() -> impl Iterator<Item = Value> {
    PEERS.iter().map(
        |(name, program)| json!({ "over": Over::Iscsi, "row": name, "runs": 0, "obtained": peer(program) }),
    )
}

fn peers_text() -> String {
    PEERS.iter().map(|(name, program)| format!("{name}: {}.\n", peer(program))).collect()
}

pub(super) fn size(bytes: u32) -> String {
    match bytes {
        bytes if bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        bytes if bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        bytes => format!("{bytes} B"),
    }
}

/// Every way to read that `table` has, in order: over what and how deep.
pub(super) fn ways(table: &[Measured]) -> Vec<(Over, u32)> {
    let mut ways: Vec<(Over, u32)> = Vec::new();
    for Measured { row, .. } in table {
        let way = (row.over, row.reading.depth);
        if !ways.contains(&way) {
            ways.push(way);
        }
    }
    ways
}

fn text(table: &[Measured], alone: Fared, bench: &Bench) -> String {
    let mut text = String::new();
    for (over, depth) in ways(table) {
        let rows: Vec<&Measured> = table
            .iter()
            .filter(|measured| (measured.row.over, measured.row.reading.depth) == (over, depth))
            .collect();
        text += &format!("### {}, {depth} at a time: MB/s by block size\n\n", over.name());
        text += &rates(&rows);
        let mut shown: Vec<u32> = rows.iter().map(|measured| measured.row.reading.block).collect();
        shown.dedup();
        shown.retain(|block| shown_in_detail(*block, &rows));
        for block in shown {
            text += &format!("\n{}, {depth} at a time, blocks of {}:\n\n", over.name(), size(block));
            let rows: Vec<&Measured> =
                rows.iter().copied().filter(|measured| measured.row.reading.block == block).collect();
            text += &details(&rows);
        }
        text.push('\n');
    }
    text += &format!(
        "The bystander alone: {:.0} % of its pieces, p99 {} us. Gaps by {}.\n",
        alone.rate_share * 100.0,
        short(alone.p99_us),
        if bench.can_capture {
            "packets of the loopback"
        } else {
            "calls of the initiator (packets need CAP_NET_RAW)"
        },
    );
    text
}

/// The size of the paper's plots and 1 MiB; whatever there is if neither is.
fn shown_in_detail(block: u32, rows: &[&Measured]) -> bool {
    let liked = |block: u32| [BLOCK_OF_PLOTS, 1 << 20].contains(&block);
    liked(block) || !rows.iter().any(|measured| liked(measured.row.reading.block))
}

/// A line for each row's name, a column for each block size.
fn rates(rows: &[&Measured]) -> String {
    let (mut blocks, mut names) = (Vec::new(), Vec::new());
    for Measured { row, .. } in rows {
        if !blocks.contains(&row.reading.block) {
            blocks.push(row.reading.block);
        }
        if !names.contains(&row.reading.protection.name()) {
            names.push(row.reading.protection.name());
        }
    }
    let heading: Vec<String> =
        std::iter::once("row".to_owned()).chain(blocks.iter().map(|block| size(*block))).collect();
    let heading: Vec<&str> = heading.iter().map(String::as_str).collect();
    let mut table = Table::new(&heading);
    for name in names {
        let cell = |block: &u32| {
            let is_it = |measured: &&&Measured| {
                measured.row.reading.block == *block && measured.row.reading.protection.name() == name
            };
            rows.iter().find(is_it).map_or(String::new(), |measured| measured.rate().show())
        };
        table.row(std::iter::once(name.clone()).chain(blocks.iter().map(cell)).collect());
    }
    table.render()
}

fn details(rows: &[&Measured]) -> String {
    let mut table = Table::new(&[
        "row",
        "MB/s",
        "target CPU s/GB user + system",
        "initiator",
        "cycle us",
        "packet gap us",
        "opening gap us",
        "hidden",
        "bystander",
    ]);
    for measured in rows {
        let cpu = |side: fn(&Sample) -> Cpu| {
            let [user, system] = measured.per_gb(side);
            format!("{} + {}", short(user), short(system))
        };
        let gaps = measured.gaps();
        let number = |value: Option<f64>| value.map(short).unwrap_or_default();
        table.row(vec![
            measured.row.reading.protection.name(),
            measured.rate().show(),
            cpu(|sample| sample.target),
            cpu(|sample| sample.figures.cpu),
            short(measured.cycle_us().median),
            number(gaps.packet_us),
            number(gaps.opening_us),
            measured.hidden_share().map(|share| format!("{:.0} %", share * 100.0)).unwrap_or_default(),
            measured.fared.map_or(String::new(), |fared| {
                format!("{:.0} %, p99 {} us", fared.rate_share * 100.0, short(fared.p99_us))
            }),
        ]);
    }
    table.render()
}
