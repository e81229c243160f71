//! The figures that CONTRACT names, and those beside them; null if not measured.

use serde_json::{Map, Value, json};

use super::hand::Mode;
use super::near::Payload;
use super::parts::Parts;
use super::plan::Stack;
use super::results::{Results, SAME};
use super::waiting::Waiting;
use crate::fields;
use crate::stats::{Spread, rounded};

pub(super) fn headline(results: &Results) -> Map<String, Value> {
    let median = |spread: Option<Spread>| spread.map(|spread| spread.median);
    let ratio = |stack, waiting, bytes| median(results.echo_ratio(stack, waiting, bytes));
    let three = |waiting, bytes| ratio(Stack::Three, waiting, bytes);
    let staged = results.staged(Stack::Three, Payload::InPlace, 256);
    let kills = &results.kills;
    let without = kills.directions.iter().flat_map(|streams| streams.without_ms.iter().copied());
    let stream = results.stream_ipc();
    fields(json!({
        "switch_us": results.switch(),
        "rtt_ratio_256": three(Waiting::Spin, 256),
        "rtt_ratio_1024": three(Waiting::Spin, 1024),
        "rtt_ratio_256_one_process": ratio(Stack::One, Waiting::Spin, 256),
        "rtt_ratio_1024_one_process": ratio(Stack::One, Waiting::Spin, 1024),
        "rtt_ratio_256_blocking": three(Waiting::Block, 256),
        "rtt_ratio_256_blocking_after_30_us": three(Waiting::Look, 256),
        "send_ratio_256": median(results.of_sends(256, |ours, kernel| ours.whole / kernel.whole)),
        "ipc_us_per_send": median(staged.and_then(|staged| staged.part(Parts::ipc))),
        "ipc_ns_amortised": stream.map(|stream| stream.ns.median),
        "ipc_switches_amortised": stream.map(|stream| stream.in_switches.median),
        "direct_return_share": results.direct_share().map(rounded),
        "copying_as_token_up_to_bytes": results.crossover(Mode::Copying, Mode::Token, SAME),
        "copying_as_reattached_up_to_bytes": results.crossover(Mode::Copying, Mode::Reattached, 1.0),
        "bytes_copied_by_inet": (!results.copies.is_empty())
            .then(|| results.copies.iter().map(|copies| copies.copied).sum::<u64>()),
        "connections_lost": kills.has_run().then(|| kills.lost()),
        "streams_with_wrong_bytes": kills.has_run().then(|| kills.wrong()),
        "gap_ms_nic": kills.pauses(),
        "gap_ms_without_kills": Spread::of(without),
        "gap_ms_inet": Spread::of(kills.inet_ms.iter().copied()),
    }))
}
