//! Opening a connection: SYN, what its options agree on, and SYN-SENT (RFC 9293 §3.10.7.3).

use zerocopy::FromZeros;

use super::connection::{Connection, Final, Step};
use super::recovery::Recovery;
use super::{R2_SYN_US, State};
use crate::iface::Route;
use crate::packet::{Flags, TcpHeader};
use crate::pools::Pools;
use crate::{Ended, SEGMENT_BYTES_MAX, SeqNumber, Time};

/// RFC 6298 §2: 1 s before there is a measurement, doubled each time, at most 60 s.
const SYN_RTO_US: u64 = 1_000_000;
const SYN_RTO_US_MAX: u64 = 60_000_000;
/// What is sent if the peer names no MSS (RFC 9293 §3.7.1), and the least that is accepted of one: less would only be an
/// amplifier of headers.
const MSS_DEFAULT_V4: u16 = 536;
const MSS_DEFAULT_V6: u16 = 1220;
const MSS_MIN: u16 = 88;
/// Of the timestamps option, padded.
const TIMESTAMPS_BYTES: u32 = 12;
/// Headers of IP and TCP without options.
const HEADERS_V4: u16 = 40;
const HEADERS_V6: u16 = 60;

/// A SYN that has not been answered.
#[derive(Clone, Copy, Debug, FromZeros)]
#[repr(C)]
pub(crate) struct Opening {
    /// When SYN is sent again.
    pub(crate) at: Time,
    since: Time,
    sent_at: Time,
    retries: u32,
    /// Send it now.
    pub(crate) is_due: bool,
    /// The peer's SYN had a window scale option, so ours has one too.
    has_shift: bool,
    /// The peer's MSS.
    mss: u16,
}

impl Opening {
    pub(crate) fn new(now: Time) -> Self {
        Self { at: Time::NEVER, since: now, is_due: true, has_shift: true, ..Self::new_zeroed() }
    }
}

/// The MSS that we announce: what our interface takes without options (RFC 9293 §3.7.1).
pub(crate) fn mss_of(route: &Route) -> u16 {
    let headers = if route.local.is_v4() { HEADERS_V4 } else { HEADERS_V6 };
    route.mtu.saturating_sub(headers).max(MSS_MIN)
}

impl Connection {
    /// SYN, with all options that we know (RFC 9293 §3.7.1, RFC 7323, RFC 2018); or SYN-ACK, with those that the peer's SYN
    /// had too.
    pub(crate) fn take_syn(&mut self, pools: &Pools<'_>, now: Time) -> TcpHeader {
        let is_answer = self.state == State::SynReceived;
        let offers = |agreed: bool| !is_answer || agreed;
        let tcp = TcpHeader {
            source: self.tuple.local,
            destination: self.tuple.remote,
            seq: self.send.una,
            ack: if is_answer { self.receive.nxt } else { SeqNumber(0) },
            flags: if is_answer { Flags::SYN | Flags::ACK } else { Flags::SYN },
            window: self.receive.advertise(pools, self.client, 0),
            mss: Some(mss_of(&self.route)),
            window_scale: offers(self.opening.has_shift).then_some(self.receive.shift),
            has_sack_permitted: offers(self.sack),
            timestamps: offers(self.timestamps).then(|| (self.timestamp(now), self.recent)),
            ..TcpHeader::default()
        };
        self.on_syn_sent(now);
        if is_answer {
            self.receive.on_ack_sent(false);
        }
        tcp
    }

    pub(crate) fn on_syn_sent(&mut self, now: Time) {
        let opening = &mut self.opening;
        opening.is_due = false;
        opening.sent_at = now;
        opening.at = now.after((SYN_RTO_US << opening.retries.min(6)).min(SYN_RTO_US_MAX));
        self.send.nxt = self.send.una + 1;
    }

    pub(crate) fn on_opening_deadline(&mut self, pools: &mut Pools<'_>, now: Time) {
        if self.opening.at > now {
            return;
        }
        if now.since(self.opening.since) >= R2_SYN_US {
            let ended = if self.has_soft_error { Ended::Unreachable } else { Ended::TimedOut };
            return self.finish(pools, ended, Final::None);
        }
        self.opening.retries += 1;
        (self.opening.is_due, self.opening.at, self.may_send) = (true, Time::NEVER, true);
    }

    /// The peer's SYN: its sequence number, and what its options agree on with ours.
    pub(crate) fn on_peers_syn(&mut self, tcp: &TcpHeader, now: Time) {
        let default = if self.tuple.local.address.is_v4() { MSS_DEFAULT_V4 } else { MSS_DEFAULT_V6 };
        self.opening.mss = tcp.mss.unwrap_or(default).max(MSS_MIN);
        // RFC 7323 §2.2: both sides scale, or none does.
        self.opening.has_shift = tcp.window_scale.is_some();
        match tcp.window_scale {
            Some(shift) => self.send.shift = shift.min(14),
            None => (self.send.shift, self.receive.shift) = (0, 0),
        }
        self.sack = tcp.has_sack_permitted;
        self.timestamps = tcp.timestamps.is_some();
        if let Some((value, _)) = tcp.timestamps {
            (self.recent, self.recent_at) = (value, now);
        }
        self.set_mss();
        self.receive.on_syn(tcp.seq, self.send.mss.min(u32::from(mss_of(&self.route))));
        self.send.set_window(tcp.seq, self.send.una, u32::from(tcp.window));
    }

    /// Eff.snd.MSS (RFC 9293 §3.7.1): what the peer takes and the path carries, less our options.
    pub(crate) fn set_mss(&mut self) {
        let options = if self.timestamps { TIMESTAMPS_BYTES } else { 0 };
        let most = self.opening.mss.min(mss_of(&self.route)).max(MSS_MIN);
        self.send.mss = (u32::from(most) - options).min(SEGMENT_BYTES_MAX);
    }

    /// SYN-SENT. `Step::Open`: our SYN was acknowledged.
    pub(crate) fn on_segment_in_syn_sent(
        &mut self,
        pools: &mut Pools<'_>,
        tcp: &TcpHeader,
        now: Time,
    ) -> Step {
        // First: ACK.
        let has_ack = tcp.flags.has(Flags::ACK);
        let is_ours = has_ack && tcp.ack.is_after(self.send.una) && !tcp.ack.is_after(self.send.nxt);
        if has_ack && !is_ours {
            return if tcp.flags.has(Flags::RST) { Step::Dropped } else { Step::Refused };
        }
        // Second: RST counts only with an ACK of our SYN.
        if tcp.flags.has(Flags::RST) {
            if is_ours {
                self.finish(pools, Ended::Refused, Final::None);
            }
            return Step::Dropped;
        }
        // Fourth: SYN.
        if !tcp.flags.has(Flags::SYN) {
            return Step::Dropped;
        }
        if let Some((_, echo)) = tcp.timestamps
            && has_ack
            && echo != 0
            && SeqNumber(echo).is_before(SeqNumber(self.timestamp(self.opening.since)))
        {
            // RFC 7323 §3.2 with §5.4: an answer to a SYN that we did not send is an old one.
            return Step::Dropped;
        }
        self.on_peers_syn(tcp, now);
        if is_ours {
            return Step::Open;
        }
        // Both opened at once.
        self.state = State::SynReceived;
        (self.opening.is_due, self.may_send) = (true, true);
        Step::Dropped
    }

    /// Our SYN was acknowledged: ESTABLISHED.
    pub(crate) fn open(&mut self, tcp: &TcpHeader, now: Time) {
        let was_syn_sent = self.state == State::SynSent;
        self.send.una = tcp.ack;
        // The window of a SYN is not scaled (RFC 7323 §2.2).
        let shift = if tcp.flags.has(Flags::SYN) { 0 } else { self.send.shift };
        self.send.set_window(tcp.seq, tcp.ack, u32::from(tcp.window) << shift);
        self.recovery = Recovery::new(self.send.una, self.send.mss, self.options.algorithm, now);
        self.recovery.set_sack(self.sack);
        let rtt_us = (self.opening.retries == 0).then(|| now.since(self.opening.sent_at));
        self.recovery.on_handshake(rtt_us, now);
        self.state = if self.send.has_fin { State::FinWait1 } else { State::Established };
        self.opening.at = Time::NEVER;
        self.opening.is_due = false;
        self.receive.ack_now |= was_syn_sent;
        self.may_send = true;
        self.on_open(now);
    }
}
