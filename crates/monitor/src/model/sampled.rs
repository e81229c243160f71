//! Evidence from samples of one socket, without a packet.
//!
//! Each interval between two samples has the cause that the kernel's state at its end shows, in this order: a loss being
//! repaired, the peer's window, the congestion window, the send buffer, the network's rate; then nothing of TCP holds
//! data back, and what iSCSI or a program waits for is not visible. `tcpi_sndbuf_limited` alone is not trusted: for
//! senders of bursts it is far too low (measured: 18 % where the buffer was the limit all the time).

use super::{Caps, Cause, Cpu, Evidence, Path, Seconds, Source};
use crate::event::Side;
use crate::sample::{CaState, Sample};

/// A window or a buffer counts as full from this part of it on.
const FULL: f64 = 0.9;
/// Of a send buffer, which counts the overhead of packets: it is refilled when a third is free.
const BUFFER_FULL: f64 = 0.6;
/// Unsent bytes below this part of those in flight: the queue is empty but for what leaves at the moment.
const UNSENT: f64 = 0.05;
/// A round trip this many times the least one, and by this much, has a queue in it.
const QUEUE_RTTS: f64 = 1.25;
const QUEUE_US: u32 = 500;
/// Share of the samples in which less is in flight than the rate takes for the least round trip, from which the path is
/// not full. It is 2 % at most where the network's rate limits, and 10 % at least where bursts make queues (measured).
const DRAINED: f64 = 0.05;
/// Fewer segments in flight fill no path, and their acknowledgement may be delayed, which looks like a queue.
const SEGMENTS_MIN: u32 = 4;
/// Drops of the sender's device, as a part of what was sent again, from which they explain it.
const DROPPED: f64 = 0.5;
/// What is possible when TCP holds nothing back.
const ABOVE_TCP: [Cause; 5] = [Cause::QueueDepth, Cause::R2t, Cause::Target, Cause::ThinkTime, Cause::Cpu];

/// Evidence from samples of the socket at `end`, in the order of time. `None` with fewer than two, or without the fields
/// of Linux 4.18 that everything rests on.
#[must_use]
pub fn sampled(end: Side, samples: &[Sample], cpu: Option<Cpu>) -> Option<Evidence> {
    let (first, last) = (samples.first()?, samples.last()?);
    let sent = grown(first.bytes_acked, last.bytes_acked)?;
    let received = grown(first.bytes_received, last.bytes_received)?;
    let is_sender = sent >= received;
    let mut books = Books {
        waits: Seconds::default(),
        alternatives: Seconds::default(),
        end,
        is_path_filled: is_path_filled(samples),
        is_device_dropping: is_device_dropping(first, last),
    };
    for pair in samples.windows(2) {
        let [before, now] = pair else { continue };
        let seconds = now.at_ns.saturating_sub(before.at_ns) as f64 / 1e9;
        if is_sender {
            books.sending(before, now, seconds);
        } else {
            books.receiving(before, now, seconds);
        }
    }
    let seconds = books.waits.total();
    (seconds > 0.0).then(|| Evidence {
        source: Source::Probe(end),
        sender: if is_sender { end } else { end.peer() },
        seconds,
        data_bytes: sent.max(received),
        waits: books.waits,
        alternatives: books.alternatives,
        path: path(samples, is_sender),
        caps: caps(samples, is_sender),
        protocol: None,
        cpu,
    })
}

/// A capture's evidence with what samples of the sender's socket add: the congestion window and the buffer settle what
/// packets leave open.
#[must_use]
pub fn combined(mut capture: Evidence, samples: &Evidence) -> Evidence {
    let (Source::Capture(vantage), Source::Probe(end)) = (capture.source, samples.source) else {
        return capture;
    };
    capture.source = Source::Both(vantage, end);
    capture.cpu = capture.cpu.or(samples.cpu);
    if samples.sender != capture.sender || end != capture.sender {
        return capture;
    }
    let (seen, window) = (capture.caps.in_flight_stopped_bytes, samples.caps.congestion_window_bytes);
    if let (Some(seen), Some(window)) = (seen, window) {
        let cause = if seen as f64 >= FULL * window as f64 { Cause::Congestion } else { Cause::SendBuffer };
        let other = if cause == Cause::Congestion { Cause::SendBuffer } else { Cause::Congestion };
        if capture.alternatives[cause] > 0.0 || capture.alternatives[other] > 0.0 {
            let moved = std::mem::take(&mut capture.waits[other]);
            capture.waits[cause] += moved;
            capture.alternatives[cause] = 0.0;
            capture.alternatives[other] = 0.0;
        }
    }
    let own = &samples.caps;
    capture.caps.congestion_window_bytes = own.congestion_window_bytes;
    capture.caps.ssthresh_bytes = own.ssthresh_bytes;
    capture.caps.send_buffer_bytes = own.send_buffer_bytes;
    capture.path.local_drops = capture.path.local_drops.or(samples.path.local_drops);
    capture
}

fn grown(before: Option<u64>, now: Option<u64>) -> Option<u64> {
    Some(now?.saturating_sub(before?))
}

fn has_grown(before: Option<u32>, now: Option<u32>) -> bool {
    before.zip(now).is_some_and(|(before, now)| now > before)
}

/// Whether packets wait in the network.
fn has_queue(sample: &Sample) -> bool {
    sample.rtt_us.zip(sample.min_rtt_us).is_some_and(|(rtt, least)| {
        f64::from(rtt) > QUEUE_RTTS * f64::from(least) && rtt > least.saturating_add(QUEUE_US)
    })
}

/// Whether the path always has packets to carry. A path that carries a rate for a least round trip T without a pause holds
/// rate * T bytes, and its queue beside them. Queues of bursts pass, and less is in flight then.
fn is_path_filled(samples: &[Sample]) -> bool {
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else { return false };
    let seconds = last.at_ns.saturating_sub(first.at_ns) as f64 / 1e9;
    let rate = grown(first.bytes_acked, last.bytes_acked).unwrap_or(0) as f64 / seconds;
    let is_drained = |sample: &&Sample| {
        let in_flight = sample.unacked_segments.zip(sample.mss_bytes);
        in_flight.zip(sample.min_rtt_us).is_some_and(|((segments, mss), rtt)| {
            segments < SEGMENTS_MIN || f64::from(segments) * f64::from(mss) < rate * f64::from(rtt) / 1e6
        })
    };
    let drained = samples.iter().filter(is_drained).count();
    drained as f64 <= DRAINED * samples.len() as f64
}

/// Whether the queue of the sender's own device dropped about as much as the connection sent again. Others may have been
/// dropped there.
fn is_device_dropping(first: &Sample, last: &Sample) -> bool {
    let drops = grown(first.device_drops, last.device_drops).unwrap_or(0);
    let again = first.total_retrans.zip(last.total_retrans);
    let again = again.map_or(0, |(before, now)| now.saturating_sub(before));
    drops > 0 && drops as f64 >= DROPPED * f64::from(again)
}

struct Books {
    waits: Seconds,
    alternatives: Seconds,
    end: Side,
    is_path_filled: bool,
    is_device_dropping: bool,
}

impl Books {
    fn add(&mut self, cause: Cause, seconds: f64, others: &[Cause]) {
        self.waits[cause] += seconds;
        for other in others {
            self.alternatives[*other] += seconds;
        }
    }

    /// The socket sends the data.
    fn sending(&mut self, before: &Sample, now: &Sample, seconds: f64) {
        let mss = u64::from(now.mss_bytes.unwrap_or(1448).max(1));
        let (Some(unacked), Some(window)) = (now.unacked_segments, now.cwnd_segments) else {
            return self.add(Cause::Unknown, seconds, &ABOVE_TCP);
        };
        let in_flight = u64::from(unacked) * mss;
        let unsent = u64::from(now.notsent_bytes.unwrap_or(0));
        let is_lossy = has_grown(before.total_retrans, now.total_retrans);
        let is_repairing = matches!(now.ca_state, Some(CaState::Recovery | CaState::Loss));
        let is_peer_full = now
            .peer_window_bytes
            .is_some_and(|bytes| unsent > 0 && (in_flight + mss) as f64 >= FULL * f64::from(bytes));
        let is_window_full = unsent > mss && f64::from(unacked) >= FULL * f64::from(window);
        if is_repairing || is_lossy && !has_queue(now) {
            self.lost(seconds, &[]);
        } else if is_peer_full || self.is_peer_limited(before, now) {
            self.add(Cause::ReceiveWindow, seconds, &[]);
        } else if self.is_path_filled && has_queue(now) && in_flight > 0 {
            self.add(Cause::LineRate, seconds, &[]);
        } else if is_window_full {
            self.window_full(now, seconds);
        } else if is_buffer_full(now, in_flight, unsent) {
            self.add(Cause::SendBuffer, seconds, &[]);
        } else if unsent > mss {
            // Data waits and no window is full: pacing, or the device below.
            const BELOW: [Cause; 2] = [Cause::LocalDevice, Cause::Congestion];
            match self.is_path_filled {
                true => self.add(Cause::LineRate, seconds, &BELOW),
                false => self.add(Cause::Unknown, seconds, &[&BELOW[..], &ABOVE_TCP].concat()),
            }
        } else {
            self.nothing_to_send(now, seconds);
        }
    }

    /// The kernel's own account of the peer's window.
    fn is_peer_limited(&self, before: &Sample, now: &Sample) -> bool {
        let busy = grown(before.busy_us, now.busy_us).unwrap_or(0);
        let limited = grown(before.rwnd_limited_us, now.rwnd_limited_us).unwrap_or(0);
        busy > 0 && limited * 2 > busy
    }

    /// Retransmissions, or the window that they left.
    fn lost(&mut self, seconds: f64, others: &[Cause]) {
        match self.is_device_dropping {
            true => self.add(Cause::LocalDevice, seconds, &[Cause::Loss]),
            false => self.add(Cause::Loss, seconds, others),
        }
    }

    fn window_full(&mut self, now: &Sample, seconds: f64) {
        let is_reduced = now.ssthresh_segments.is_some_and(|segments| segments < 0x7fff_ffff);
        let has_lost = now.total_retrans.is_some_and(|count| count > 0);
        match (is_reduced, has_lost) {
            (_, true) => self.lost(seconds, &[Cause::Congestion]),
            // Reduced without a loss: by drops below TCP, or a slow start that ended early.
            (true, false) if now.ca_state == Some(CaState::Cwr) => self.add(Cause::LocalDevice, seconds, &[]),
            (true, false) => self.add(Cause::Congestion, seconds, &[Cause::LocalDevice]),
            (false, false) => self.add(Cause::Congestion, seconds, &[]),
        }
    }

    /// TCP has sent all that it was given.
    fn nothing_to_send(&mut self, now: &Sample, seconds: f64) {
        match (now.outstanding, self.end) {
            (Some(0), Side::Initiator) => self.add(Cause::ThinkTime, seconds, &[Cause::Cpu]),
            (Some(_), Side::Initiator) => {
                self.add(Cause::Unknown, seconds, &[Cause::QueueDepth, Cause::R2t, Cause::Target]);
            }
            _ => self.add(Cause::Unknown, seconds, &ABOVE_TCP),
        }
    }

    /// The socket receives the data: of the sender nothing is visible but the rate.
    fn receiving(&mut self, before: &Sample, now: &Sample, seconds: f64) {
        let queue = now.receive_queue_bytes.zip(now.receive_buffer_bytes);
        let reader = if self.end == Side::Initiator { Cause::Cpu } else { Cause::Target };
        if queue.is_some_and(|(queued, buffer)| queued > buffer / 2) {
            return self.add(reader, seconds, &[]);
        }
        let bytes = grown(before.bytes_received, now.bytes_received).unwrap_or(0) as f64;
        let rtt = f64::from(now.min_rtt_us.or(now.rtt_us).unwrap_or(0)) / 1e6;
        let in_flight = if seconds > 0.0 { bytes / seconds * rtt } else { 0.0 };
        if now.receive_window_bytes.is_some_and(|window| in_flight >= FULL * f64::from(window)) {
            return self.add(Cause::ReceiveWindow, seconds, &[]);
        }
        if now.outstanding == Some(0) {
            return self.add(Cause::ThinkTime, seconds, &[Cause::Cpu]);
        }
        const BEYOND: [Cause; 7] = [
            Cause::QueueDepth,
            Cause::Target,
            Cause::SendBuffer,
            Cause::Congestion,
            Cause::Loss,
            Cause::LineRate,
            Cause::ThinkTime,
        ];
        self.add(Cause::Unknown, seconds, &BEYOND);
    }
}

/// The program could not write more: nothing is unsent, the queue's memory is near its cap, and no window is near.
fn is_buffer_full(now: &Sample, in_flight: u64, unsent: u64) -> bool {
    let (Some(queued), Some(cap)) = (now.send_queue_bytes, now.send_buffer_bytes) else { return false };
    let has_room =
        now.cwnd_segments.zip(now.unacked_segments).is_some_and(|(window, unacked)| window > unacked);
    let is_sent = unsent as f64 <= UNSENT * in_flight as f64;
    has_room && is_sent && in_flight > 0 && f64::from(queued) >= BUFFER_FULL * f64::from(cap)
}

fn median(values: impl Iterator<Item = u64>) -> Option<u64> {
    let mut values: Vec<_> = values.collect();
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}

fn path(samples: &[Sample], is_sender: bool) -> Path {
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else { return Path::default() };
    let seconds = |us: u32| f64::from(us) / 1e6;
    // A delivery rate is the path's while a queue stands in it; others are lower bounds.
    let is_filled = is_sender && is_path_filled(samples);
    let rates =
        samples.iter().filter(|sample| is_filled && has_queue(sample) && sample.app_limited != Some(true));
    let packets = |before: Option<u32>, now: Option<u32>| {
        u64::from(before.zip(now).map_or(0, |(before, now)| now.saturating_sub(before)))
    };
    let reductions = samples.windows(2).filter(|pair| {
        let entered = pair[1].ca_state == Some(CaState::Cwr) && pair[0].ca_state != Some(CaState::Cwr);
        entered && !has_grown(pair[0].delivered_ce, pair[1].delivered_ce)
    });
    Path {
        rtt_s: samples.iter().filter_map(|sample| sample.min_rtt_us).min().map(seconds),
        rtt_loaded_s: median(samples.iter().filter_map(|sample| sample.rtt_us).map(u64::from))
            .map(|us| us as f64 / 1e6),
        mss_bytes: last.mss_bytes,
        line_bytes_per_s: median(rates.filter_map(|sample| sample.delivery_bytes_per_s))
            .map(|rate| rate as f64),
        burst_bytes_per_s: None,
        data_packets: packets(first.data_segs_out, last.data_segs_out),
        retransmitted_packets: packets(first.total_retrans, last.total_retrans),
        spurious_packets: packets(first.dsack_dups, last.dsack_dups),
        timeouts: packets(first.total_rto, last.total_rto),
        local_drops: is_sender.then(|| reductions.count() as u64),
        capture_lost_bytes: 0,
    }
}

fn caps(samples: &[Sample], is_sender: bool) -> Caps {
    let segments = |count: fn(&Sample) -> Option<u32>| {
        let bytes = samples
            .iter()
            .filter_map(|sample| Some(u64::from(count(sample)?) * u64::from(sample.mss_bytes?)));
        bytes.collect::<Vec<_>>()
    };
    let in_flight = segments(|sample| sample.unacked_segments);
    let window =
        |sample: &Sample| if is_sender { sample.peer_window_bytes } else { sample.receive_window_bytes };
    let buffer = median(samples.iter().filter_map(|sample| sample.send_buffer_bytes).map(u64::from));
    Caps {
        in_flight_max_bytes: in_flight.iter().max().copied().filter(|_| is_sender),
        in_flight_stopped_bytes: median(in_flight.iter().copied().filter(|bytes| *bytes > 0))
            .filter(|_| is_sender),
        window_bytes: median(samples.iter().filter_map(window).map(u64::from)),
        congestion_window_bytes: median(segments(|sample| sample.cwnd_segments).into_iter())
            .filter(|_| is_sender),
        ssthresh_bytes: median(
            segments(|sample| sample.ssthresh_segments.filter(|count| *count < 0x7fff_ffff)).into_iter(),
        ),
        send_buffer_bytes: buffer.filter(|_| is_sender),
    }
}
