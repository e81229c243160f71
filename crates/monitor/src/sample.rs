//! One observation of a socket: the kernel's `tcp_info` and `SO_MEMINFO`.
//!
//! `tcp_info` is as long as the running kernel made it; a field beyond its end is `None`, never 0.

use serde::{Deserialize, Serialize};

/// Congestion control's state (`tcp_ca_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CaState {
    Open,
    Disorder,
    Cwr,
    Recovery,
    Loss,
}

/// Sender and receiver state of one socket. Counters count from the socket's start; who compares two samples takes
/// their difference.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sample {
    /// Nanoseconds of the monotonic clock (a recording: since its start).
    pub at_ns: u64,
    /// TCP state as the kernel numbers it; 1 is ESTABLISHED.
    pub state: u8,
    pub ca_state: Option<CaState>,

    pub mss_bytes: Option<u32>,
    pub cwnd_segments: Option<u32>,
    /// 2^31 - 1 until the first reduction of the congestion window.
    pub ssthresh_segments: Option<u32>,
    /// Sent and not acknowledged, in segments: the waiting-ACK part of the send queue.
    pub unacked_segments: Option<u32>,
    pub sacked_segments: Option<u32>,
    pub lost_segments: Option<u32>,
    /// Retransmitted and not acknowledged.
    pub retrans_segments: Option<u32>,
    /// Written and not sent: the unsent part of the send queue. Linux 4.6.
    pub notsent_bytes: Option<u32>,
    /// The peer's receive window. Linux 5.4.
    pub peer_window_bytes: Option<u32>,
    /// This side's receive window. Linux 6.2.
    pub receive_window_bytes: Option<u32>,
    /// Shifts of the windows in the packets of the peer and of this side.
    pub peer_window_scale: Option<u32>,
    pub receive_window_scale: Option<u32>,

    pub rtt_us: Option<u32>,
    pub rttvar_us: Option<u32>,
    pub min_rtt_us: Option<u32>,
    /// Rate of the last delivery sample; a lower bound of the path's while `app_limited`.
    pub delivery_bytes_per_s: Option<u64>,
    pub app_limited: Option<bool>,
    pub pacing_bytes_per_s: Option<u64>,
    /// BBR's estimate of the narrowest link's rate, where BBR controls the connection.
    pub bbr_bytes_per_s: Option<u64>,

    /// Time with data outstanding or unsent (`tcpi_busy_time`), and the parts of it in which the peer's window, or the
    /// send buffer, was the limit. The kernel's send-buffer figure is far too low for bursty senders.
    pub busy_us: Option<u64>,
    pub rwnd_limited_us: Option<u64>,
    pub sndbuf_limited_us: Option<u64>,

    /// Payload, with retransmissions.
    pub bytes_sent: Option<u64>,
    pub bytes_acked: Option<u64>,
    pub bytes_received: Option<u64>,
    pub bytes_retrans: Option<u64>,
    pub segs_out: Option<u32>,
    pub segs_in: Option<u32>,
    pub data_segs_out: Option<u32>,
    pub data_segs_in: Option<u32>,
    pub total_retrans: Option<u32>,
    pub dsack_dups: Option<u32>,
    pub reord_seen: Option<u32>,
    /// Packets marked as lost by ECN.
    pub delivered_ce: Option<u32>,
    /// Retransmission timeouts. Linux 6.7.
    pub total_rto: Option<u32>,

    /// Bytes of memory in the send queue, both parts, with overhead (`sk_wmem_queued`).
    pub send_queue_bytes: Option<u32>,
    /// The queue's cap (`sk_sndbuf`).
    pub send_buffer_bytes: Option<u32>,
    /// Received and not read, with overhead (`sk_rmem_alloc`), and its cap (`sk_rcvbuf`).
    pub receive_queue_bytes: Option<u32>,
    pub receive_buffer_bytes: Option<u32>,
    pub drops: Option<u32>,
    /// Packets that the queue (qdisc) of the outgoing interface has dropped, of all its connections.
    pub device_drops: Option<u64>,

    /// Only for kernel initiators and our own sockets: commands outstanding at the device.
    pub outstanding: Option<u32>,
}

impl Sample {
    /// It is of an event between two samples (feature `bpf`): what the sender's state was, without the other counters. Every
    /// kernel that tells `bytes_acked` tells `bytes_received`.
    pub fn is_of_event(&self) -> bool {
        self.bytes_acked.is_some() && self.bytes_received.is_none()
    }
}
