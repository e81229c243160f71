//! What became of the paper's hypotheses, in words with the numbers of the run; and the bars.

use super::hand::Mode;
use super::near::{Measure, Payload};
use super::parts::{PAPER_REATTACHMENTS, PAPER_ROUND_TRIPS_256, PAPER_SENDS, Parts};
use super::plan::Stack;
use super::results::{Results, SAME, WIRES};
use super::waiting::Waiting;
use crate::stats::{Spread, short, size};
use crate::table::Table;

const PAPER_HOPS_US: f64 = 15.15;
/// Differences within this share of a mean are none: the bar of the hops.
const CONSTANT: f64 = 0.15;

/// A line for each hypothesis that was measured.
pub(super) fn verdicts(results: &Results) -> Vec<String> {
    let all = [constant_hops, gap_by_size, where_85_percent_went, first_access, faster_wires, copying];
    all.iter().filter_map(|verdict| verdict(results)).collect()
}

/// Hops by size, microseconds.
fn ipc_by_size(results: &Results) -> Vec<(usize, f64)> {
    let is_it = |staged: &&super::Staged| (staged.stack, staged.payload) == (Stack::Three, Payload::InPlace);
    let of = |staged: &super::Staged| Some((staged.bytes, staged.part(Parts::ipc)?.median));
    results.staged.iter().filter(is_it).filter_map(of).collect()
}

/// Greatest deviation from the mean, a share of it.
fn deviation(values: &[(usize, f64)]) -> Option<f64> {
    let mean = values.iter().map(|value| value.1).sum::<f64>() / values.len() as f64;
    values.iter().map(|value| (value.1 / mean - 1.0).abs()).reduce(f64::max)
}

fn constant_hops(results: &Results) -> Option<String> {
    let hops = ipc_by_size(results);
    let (first, last) = (hops.first()?, hops.last().filter(|_| hops.len() > 1)?);
    let deviation = deviation(&hops)?;
    let verdict = if deviation <= CONSTANT { "holds" } else { "does not hold" };
    Some(format!(
        "\"Hops take the same at every size\" {verdict}: the three take {} us at {} and {} us at {}, at most {:.0} % from their mean.",
        short(first.1),
        size(first.0 as u64),
        short(last.1),
        size(last.0 as u64),
        deviation * 100.0,
    ))
}

fn gap_by_size(results: &Results) -> Option<String> {
    let gap = |bytes| Some((bytes, results.of_sends(bytes, |ours, kernel| ours.whole - kernel.whole)?));
    let mut sizes: Vec<usize> = results.staged.iter().map(|staged| staged.bytes).collect();
    sizes.dedup();
    let gaps: Vec<_> = sizes.into_iter().filter_map(gap).collect();
    let (first, last) = (gaps.first()?, gaps.last().filter(|_| gaps.len() > 1)?);
    let change = last.1.median - first.1.median;
    let verdict = if change.abs() <= CONSTANT * first.1.median.abs() {
        "is not seen"
    } else if change < 0.0 {
        "holds"
    } else {
        "does not hold"
    };
    let shown: Vec<_> =
        gaps.iter().map(|(bytes, gap)| format!("{} at {}", short(gap.median), size(*bytes as u64))).collect();
    Some(format!(
        "\"The gap to a kernel that copies shrinks with the size\" {verdict}: a send written in place takes longer than the kernel's by us: {} \
         (paper: {} at 256 B, {} at 1 KiB).",
        shown.join(", "),
        short(PAPER_SENDS[0].1[0] - PAPER_SENDS[0].1[1]),
        short(PAPER_SENDS[3].1[0] - PAPER_SENDS[3].1[1]),
    ))
}

fn where_85_percent_went(results: &Results) -> Option<String> {
    let bytes = 256;
    let ours = results.staged(Stack::Three, Payload::InPlace, bytes)?;
    let gap = results.of_sends(bytes, |ours, kernel| ours.whole - kernel.whole)?.median;
    let (ipc, whole) = (ours.part(Parts::ipc)?.median, ours.part(|parts| parts.whole)?.median);
    let [paper_ours, paper_kernel] = PAPER_SENDS[0].1;
    let share = |ipc: f64, gap: f64| {
        if gap > 0.0 {
            format!(
                "{:.0} % of the {} us by which it is longer than the kernel's",
                ipc / gap * 100.0,
                short(gap)
            )
        } else {
            format!("and the send takes {} us less than the kernel's", short(-gap))
        }
    };
    Some(format!(
        "Where the 85 % went: at 256 B the hops take {} us of a send of {} us, {} (paper: {} of {} us, {:.0} % of {} us). A hop takes {} process \
         switches; an area is re-attached 0 times a send (paper: {PAPER_REATTACHMENTS}).",
        short(ipc),
        short(whole),
        share(ipc, gap),
        short(PAPER_HOPS_US),
        short(paper_ours),
        PAPER_HOPS_US / (paper_ours - paper_kernel) * 100.0,
        short(paper_ours - paper_kernel),
        short(ipc / 3.0 / results.switch().median),
    ))
}

fn first_access(results: &Results) -> Option<String> {
    let handing = results.handings.first()?;
    let of = |mode| Some(handing.of(mode, |handed| handed.first_access_us)?.median);
    Some(format!(
        "\"First access after a hand-over explains TCP + 1.20 us and the NIC + 2.54 us\": here the first access to {} takes {} us longer than the \
         second if both processes keep it mapped, {} us after it was re-attached; inet accesses no byte of it.",
        size(handing.bytes as u64),
        short(of(Mode::Token)?),
        short(of(Mode::Reattached)?),
    ))
}

fn faster_wires(results: &Results) -> Option<String> {
    let bytes = 256;
    let shares: Option<Vec<_>> = WIRES.iter().map(|&wire| results.ipc_share(bytes, wire)).collect();
    let shares = shares?;
    let verdict = if shares.windows(2).all(|pair| pair[0].median <= pair[1].median)
        && shares[3].median > shares[0].median
    {
        "holds"
    } else {
        "does not hold"
    };
    let shown: Vec<_> = WIRES
        .iter()
        .zip(&shares)
        .map(|(wire, share)| {
            let ratio = results.wire_ratio(bytes, *wire).unwrap_or_default().median;
            format!("{:.0} % at {} ({} of the kernel's)", share.median * 100.0, wire.name, short(ratio))
        })
        .collect();
    let [paper_ours, paper_kernel] = PAPER_ROUND_TRIPS_256;
    Some(format!(
        "\"A faster NIC makes hops weigh more\" {verdict}: what processes add to a round trip of 256 B is {}; times of wires are computed \
         (paper: {} of the other system's at 0.1 Gbit/s).",
        shown.join(", "),
        short(paper_ours / paper_kernel),
    ))
}

fn copying(results: &Results) -> Option<String> {
    let handing = results.handings.last()?;
    let turn = |mode| Some(handing.of(mode, |handed| handed.turn_us)?.median);
    let at = |bytes: Option<usize>, none: &str| bytes.map_or(none.to_owned(), |bytes| size(bytes as u64));
    Some(format!(
        "Copying, as MINIX does, costs no more than a token up to {} (10 % more count as none), and no more than re-attaching up to {}; at {} a token takes {} us, copying {}, \
         re-attaching {}, write-protecting {}.",
        at(results.crossover(Mode::Copying, Mode::Token, SAME), "no size"),
        at(results.crossover(Mode::Copying, Mode::Reattached, 1.0), "no size"),
        size(handing.bytes as u64),
        short(turn(Mode::Token)?),
        short(turn(Mode::Copying)?),
        short(turn(Mode::Reattached)?),
        short(turn(Mode::WriteProtected)?),
    ))
}

enum Bar {
    Most(f64),
    Least(f64),
}

/// What must be reached, beside what was measured.
pub(super) fn bars(results: &Results) -> Table {
    let mut table = Table::new("must reach | bar | measured | met");
    let mut add = |what: &str, bar: Bar, measured: Option<Spread>| {
        let Some(measured) = measured else { return };
        let (shown, is_met) = match bar {
            Bar::Most(most) => (format!("at most {most}"), measured.median <= most),
            Bar::Least(least) => (format!("at least {least}"), measured.median >= least),
        };
        let met = if is_met { "met" } else { "missed" };
        table.row(vec![what.to_owned(), shown, measured.show(), met.to_owned()]);
    };
    for bytes in [256, 1024] {
        let echo = |stack, waiting| results.echo_ratio(stack, waiting, bytes);
        let name = size(bytes as u64);
        let round_trip = format!("round trip of {name}, of the kernel's");
        add(&format!("{round_trip}: one process"), Bar::Most(0.95), echo(Stack::One, Waiting::Spin));
        add(&format!("{round_trip}: three"), Bar::Most(2.0), echo(Stack::Three, Waiting::Spin));
        for waiting in [Waiting::Block, Waiting::Look] {
            add(
                &format!("{round_trip}: three, {}", waiting.name()),
                Bar::Most(1.5),
                echo(Stack::Three, waiting),
            );
        }
        let send = results.of_sends(bytes, |ours, kernel| ours.whole / kernel.whole);
        add(&format!("whole send of {name}, of the kernel's"), Bar::Most(3.0), send);
    }
    let staged = results.staged(Stack::Three, Payload::InPlace, 256);
    let switches = staged.and_then(|staged| {
        let pairs = staged.samples.iter().zip(&results.switch_us);
        Spread::of(pairs.map(|(parts, switch)| parts.ipc() / switch))
    });
    add("hops of a send of 256 B, in process switches", Bar::Most(4.0), switches);
    let hops = ipc_by_size(results);
    let deviation = (hops.len() > 1).then(|| deviation(&hops)).flatten();
    add("hops by size, from their mean", Bar::Most(CONSTANT), deviation.map(Spread::exact));
    let stream = results.stream_ipc();
    add(
        "hops of a send in a stream, in process switches",
        Bar::Most(0.5),
        stream.map(|stream| stream.in_switches),
    );
    let share = results.direct_share().map(Spread::exact);
    add("sends that the driver returned directly", Bar::Least(0.9), share);
    let streams = |bars: &dyn Fn(&Measure) -> Option<f64>| {
        let three = results.rows.iter().filter(|rows| rows.row.stack == Stack::Three);
        three.filter_map(|rows| Some((rows, bars(&rows.row.measure)?))).collect::<Vec<_>>()
    };
    for (rows, bar) in streams(&|measure| match measure {
        Measure::Out { .. } => Some(1.2),
        Measure::In { by_area, .. } => Some(if *by_area { 0.55 } else { 0.5 }),
        _ => None,
    }) {
        add(&format!("{}, of the kernel's", rows.row.what()), Bar::Least(bar), results.ratios(rows));
    }
    for (rows, bar) in
        streams(&|measure| matches!(measure, Measure::Out { .. } | Measure::In { .. }).then_some(1.2))
    {
        let what = format!("CPU per GB, {}, of the kernel's", rows.row.what());
        add(&what, Bar::Most(bar), results.cpu_ratios(rows));
    }
    let kills = &results.kills;
    add("longest pause after a kill of the driver, ms", Bar::Most(10.0), kills.pauses());
    if kills.pauses().is_some() {
        add(
            "connections lost by kills of the driver",
            Bar::Most(0.0),
            Some(Spread::exact(kills.lost() as f64)),
        );
    }
    table
}
