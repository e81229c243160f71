//! The results: tables, JSON, the headline.

use serde_json::{Value, json};

use super::cell::Sample;
use super::plan::{BLOCK_OF_PLOTS, Row};
use super::shape::{Over, Reading};
use super::{Bench, Measured, headline, overlap, plots};
use crate::capture::Gaps;
use crate::part::bystander::Pacing;
use crate::stats::{Spread, distinct, rounded, short, size};
use crate::sys::Cpu;
use crate::table::{Series, Table};
use crate::{LabError, Options, Report, heading};

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

    /// User and system time of a side, divided by `per`.
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

    /// Processor seconds of a side, user and system, per 10^9 bytes.
    pub(super) fn per_gb(&self, side: fn(&Sample) -> Cpu) -> [f64; 2] {
        self.cpu(side, |sample| sample.bytes(&self.row.reading) / 1e9)
    }

    /// Times between packets; empty except at depth 1.
    pub(super) fn gaps(&self) -> Gaps {
        match &self.watched {
            Some(sample) if self.row.reading.depth == 1 => Gaps::of(&sample.transfers),
            _ => Gaps::default(),
        }
    }

    /// Share of the sealing time during which the socket had unacknowledged data.
    pub(super) fn hidden_share(&self) -> Option<f64> {
        let sample = self.watched.as_ref().filter(|sample| sample.sealing > 0.0)?;
        Some(rounded(sample.hidden / sample.sealing))
    }

    /// Parts of a block's time, medians in microseconds: until the first bytes, until the last without opening,
    /// opening.
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
            "bystander": self.pacing,
        })
    }
}

pub(super) fn report(
    table: &[Measured],
    alone: Pacing,
    options: &Options,
    bench: &Bench,
) -> Result<Report, LabError> {
    let mut object = heading("secure-read", options);
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

/// External peers: `cargo xtask bench sealed` measures those that are installed.
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

/// All combinations of transport and depth in `table`, in order.
pub(super) fn ways(table: &[Measured]) -> Vec<(Over, u32)> {
    distinct(table.iter().map(|Measured { row, .. }| (row.over, row.reading.depth)))
}

fn text(table: &[Measured], alone: Pacing, bench: &Bench) -> String {
    let mut text = String::new();
    for (over, depth) in ways(table) {
        let rows: Vec<&Measured> = table
            .iter()
            .filter(|measured| (measured.row.over, measured.row.reading.depth) == (over, depth))
            .collect();
        text += &format!("### {}, {depth} at a time: MB/s by block size\n\n", over.name());
        text += &rates(&rows).table("row");
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

/// Whether the tables of details show a block size: that of the paper's plots and 1 MiB, or all if neither was
/// measured.
fn shown_in_detail(block: u32, rows: &[&Measured]) -> bool {
    let is_detailed = |block: u32| [BLOCK_OF_PLOTS, 1 << 20].contains(&block);
    is_detailed(block) || !rows.iter().any(|measured| is_detailed(measured.row.reading.block))
}

/// Rates by row name and block size.
pub(super) fn rates(rows: &[&Measured]) -> Series {
    let cell = |measured: &&Measured| {
        let Reading { block, protection, .. } = measured.row.reading;
        (protection.name(), block, measured.rate())
    };
    let cells: Vec<_> = rows.iter().map(cell).collect();
    Series::new(&distinct(cells.iter().map(|cell| cell.1)), |block| size(*block), &cells)
}

fn details(rows: &[&Measured]) -> String {
    let mut table = Table::new(
        "row | MB/s | target CPU s/GB user + system | initiator | cycle us | packet gap us | \
         opening gap us | hidden | bystander",
    );
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
            measured.pacing.map_or(String::new(), |pacing| {
                format!("{:.0} %, p99 {} us", pacing.rate_share * 100.0, short(pacing.p99_us))
            }),
        ]);
    }
    table.render()
}
