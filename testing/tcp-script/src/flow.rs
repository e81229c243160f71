//! One connection as the peer sees it: relative numbers, and what must hold for each segment of the stack whatever a
//! script expects.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::script::{Bound, OptText, Pattern, Value, Version};
use crate::stack::{Ports, peer_byte, stack_byte};
use crate::wire::{ACK, FIN, Opt, PSH, RST, SYN, Segment, URG};
use crate::{Variation, peer_ip, stack_ip};

/// Below this a stack need not follow the peer's MSS.
const MSS_MIN: usize = 88;
/// Time stamps compare for this long, microseconds at a tick of 1 ms.
const TIMESTAMPS_US: u64 = 1000 << 31;

/// What one side announced with its SYN.
#[derive(Clone, Copy, Debug, Default)]
struct Announced {
    has_syn: bool,
    mss: Option<u16>,
    scale: Option<u8>,
    sack: bool,
    timestamps: bool,
}

impl Announced {
    fn of(segment: &Segment) -> Self {
        let mut announced = Self { has_syn: true, ..Self::default() };
        for option in &segment.options {
            match option {
                Opt::Mss(mss) => announced.mss = Some(*mss),
                Opt::Scale(shift) => announced.scale = Some((*shift).min(14)),
                Opt::SackPermitted => announced.sack = true,
                Opt::Timestamps(..) => announced.timestamps = true,
                _ => {}
            }
        }
        announced
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Flow {
    version: Version,
    pub(crate) ports: Ports,
    /// The peer's initial sequence number; that of the stack when its SYN has been seen.
    iss: u32,
    pub(crate) irs: Option<u32>,
    peer: Announced,
    stack: Announced,
    /// The stack's own SYN came first: a simultaneous open.
    has_offered: bool,
    /// Base of the peer's time stamps, of the stack's, and the stack's last one.
    ts_base: u32,
    stack_ts_base: Option<u32>,
    last_ts: u32,
    ts_sent: Vec<u32>,
    ts_names: BTreeMap<String, u32>,
    /// First and last time stamp of the stack with their times.
    ts_seen: Option<(u32, u64, u32, u64)>,
    /// Bytes that the peer announces.
    pub(crate) window: u32,
    /// Ends, relative: of what the peer has sent and what it allows; of what it has acknowledged; of what the stack has
    /// acknowledged and what it allows.
    sent: i64,
    /// End of the peer's FIN.
    fin: Option<i64>,
    allowed: i64,
    acked: i64,
    /// End of what the stack has sent.
    seen: i64,
    stack_acked: i64,
    stack_allowed: i64,
}

impl Flow {
    pub(crate) fn new(index: u16, variation: &Variation) -> Self {
        Self {
            version: variation.version,
            ports: Ports { version: variation.version, local: Some(8080), peer: 40_000 + index },
            iss: variation.iss.wrapping_add(u32::from(index) << 16),
            irs: None,
            peer: Announced::default(),
            stack: Announced::default(),
            has_offered: false,
            ts_base: variation.ts_base,
            stack_ts_base: None,
            last_ts: 0,
            ts_sent: Vec::new(),
            ts_names: BTreeMap::new(),
            ts_seen: None,
            window: 65_535,
            sent: i64::from(i32::MIN),
            fin: None,
            allowed: 0,
            acked: 0,
            seen: 0,
            stack_acked: i64::from(i32::MIN),
            stack_allowed: i64::from(i32::MIN),
        }
    }

    fn stack_end(&self) -> SocketAddr {
        SocketAddr::new(stack_ip(self.version), self.ports.local.unwrap_or(0))
    }

    fn peer_end(&self) -> SocketAddr {
        SocketAddr::new(peer_ip(self.version), self.ports.peer)
    }

    pub(crate) fn is_of(&self, segment: &Segment) -> bool {
        segment.destination == self.peer_end()
            && self.ports.local.is_none_or(|port| port == segment.source.port())
    }

    fn both(&self, has: impl Fn(&Announced) -> bool) -> bool {
        has(&self.peer) && has(&self.stack)
    }

    fn shift_of_peer(&self) -> u8 {
        if self.both(|side| side.scale.is_some()) { self.peer.scale.unwrap_or(0) } else { 0 }
    }

    fn shift_of_stack(&self) -> u8 {
        if self.both(|side| side.scale.is_some()) { self.stack.scale.unwrap_or(0) } else { 0 }
    }

    fn relative(base: u32, number: u32) -> i64 {
        i64::from(number.wrapping_sub(base).cast_signed())
    }

    fn absolute(base: u32, number: i64) -> u32 {
        base.wrapping_add(number as u32)
    }

    pub(crate) fn peer_seq(&self, number: i64) -> u32 {
        Self::absolute(self.iss, number)
    }

    pub(crate) fn stack_seq(&self, number: i64) -> u32 {
        Self::absolute(self.irs.unwrap_or(0), number)
    }

    fn relative_seq(&self, segment: &Segment) -> i64 {
        Self::relative(self.irs.unwrap_or(0), segment.seq)
    }

    fn relative_ack(&self, segment: &Segment) -> i64 {
        Self::relative(self.iss, segment.ack)
    }

    /// Bytes that the stack's segment announces.
    fn window_of(&self, segment: &Segment) -> u32 {
        let shift = if segment.flags & SYN != 0 { 0 } else { self.shift_of_stack() };
        u32::from(segment.window) << shift
    }

    /// Where a segment of the stack lies, relative: its data, FIN and SYN included.
    pub(crate) fn range(&self, segment: &Segment) -> (i64, i64) {
        let from = self.relative_seq(segment);
        (from, from + i64::from(segment.length()))
    }

    pub(crate) fn ack_of(&self, segment: &Segment) -> Option<i64> {
        (segment.flags & ACK != 0).then(|| self.relative_ack(segment))
    }

    /// Acknowledgements of all that the stack has sent and the peer has not acknowledged, one for `step` bytes each.
    pub(crate) fn open_acks(&self, step: i64) -> Vec<i64> {
        let mut acks = Vec::new();
        while *acks.last().unwrap_or(&self.acked) < self.seen {
            acks.push((acks.last().unwrap_or(&self.acked) + step).min(self.seen));
        }
        acks
    }

    /// A segment of the stack that an ICMP error quotes.
    pub(crate) fn quoted(&self, seq: i64, port: Option<u16>) -> Segment {
        let mut source = self.stack_end();
        source.set_port(port.unwrap_or(source.port()));
        Segment {
            source,
            destination: self.peer_end(),
            flags: ACK,
            seq: self.stack_seq(seq),
            ack: self.peer_seq(self.sent),
            window: 1000,
            urgent: 0,
            options: Vec::new(),
            payload: Vec::new(),
        }
    }

    fn peer_value(&self, value: &Value) -> Result<u32, String> {
        Ok(match value {
            Value::Number(number) => Self::absolute(self.ts_base, *number),
            Value::Last => self.last_ts,
            Value::Zero => 0,
            Value::Name(name) => *self.ts_names.get(name).ok_or_else(|| format!("${name} is not known"))?,
            Value::Any => return Err("`*` cannot be sent".to_owned()),
        })
    }

    /// The segment that the peer sends; `elapsed_ms` is the peer's time stamp clock.
    pub(crate) fn build(&mut self, pattern: &Pattern, elapsed_ms: u64) -> Result<Segment, String> {
        if let Some(Bound::Is(window)) = pattern.window {
            self.window = window;
        }
        let is_syn = pattern.flags & SYN != 0;
        let shift = if is_syn { 0 } else { self.shift_of_peer() };
        let window = (self.window >> shift).min(65_535) as u16;
        let mut options = Vec::new();
        if let Some(texts) = &pattern.options {
            for text in texts {
                options.push(match text {
                    OptText::Mss(mss) => Opt::Mss(mss.unwrap_or(1460)),
                    OptText::Scale(shift) => Opt::Scale(shift.unwrap_or(0)),
                    OptText::SackPermitted => Opt::SackPermitted,
                    OptText::Nop => Opt::Nop,
                    OptText::Raw(bytes) => Opt::Raw(bytes.clone()),
                    OptText::Timestamps(value, echo) => {
                        Opt::Timestamps(self.peer_value(value)?, self.peer_value(echo)?)
                    }
                    OptText::Sack(blocks) => Opt::Sack(
                        blocks
                            .iter()
                            .map(|&(left, right)| (self.stack_seq(left), self.stack_seq(right)))
                            .collect(),
                    ),
                });
            }
        }
        let has_timestamps = options.iter().any(|option| matches!(option, Opt::Timestamps(..)));
        let is_bare = pattern.options.as_ref().is_some_and(Vec::is_empty);
        if self.both(|side| side.timestamps) && !has_timestamps && !is_bare && pattern.flags & RST == 0 {
            let value = Self::absolute(self.ts_base, 1000 + elapsed_ms as i64);
            options.extend([Opt::Nop, Opt::Nop, Opt::Timestamps(value, self.last_ts)]);
        }
        let controls = i64::from(is_syn) + i64::from(pattern.flags & FIN != 0);
        let bytes = pattern.to - pattern.from - controls;
        if bytes < 0 {
            return Err(format!("{}:{} has no room for SYN and FIN", pattern.from, pattern.to));
        }
        let first = pattern.from + i64::from(is_syn) - 1;
        let mut destination = self.stack_end();
        destination.set_port(pattern.port.unwrap_or(destination.port()));
        destination.set_ip(pattern.target.unwrap_or(destination.ip()));
        let mut source = self.peer_end();
        source.set_ip(pattern.source.unwrap_or(source.ip()));
        let segment = Segment {
            source,
            destination,
            flags: pattern.flags,
            seq: self.peer_seq(pattern.from),
            ack: pattern.ack.map_or(0, |ack| self.stack_seq(ack)),
            window,
            urgent: pattern.urgent.unwrap_or(0),
            options,
            payload: (0..bytes).map(|at| peer_byte((first + at) as u64)).collect(),
        };
        if is_syn && !self.peer.has_syn && pattern.damages.is_empty() {
            self.peer = Announced::of(&segment);
        }
        self.sent = self.sent.max(pattern.to);
        if pattern.flags & FIN != 0 {
            self.fin = Some(pattern.to);
        }
        if let Some((value, _)) = segment.timestamps() {
            self.ts_sent.push(value);
        }
        if let Some(ack) = pattern.ack {
            self.acked = self.acked.max(ack);
            self.allowed = self.allowed.max(ack + (i64::from(window) << shift));
        }
        Ok(segment)
    }

    /// Looks at each segment of the stack, before it is compared with a script's expectation.
    pub(crate) fn on_segment(&mut self, segment: &Segment, at: u64) -> Result<(), String> {
        if segment.flags & RST != 0 {
            return Ok(());
        }
        if segment.flags & SYN != 0 {
            self.on_syn(segment)?;
        } else if segment
            .options
            .iter()
            .any(|o| matches!(o, Opt::Mss(_) | Opt::Scale(_) | Opt::SackPermitted))
        {
            return Err("an option that belongs on SYN alone".to_owned());
        }
        if segment.flags & URG == 0 && segment.urgent != 0 {
            return Err("an urgent pointer without URG".to_owned());
        }
        self.seen = self.seen.max(self.range(segment).1);
        self.check_timestamps(segment, at)?;
        self.check_payload(segment)?;
        self.check_sack(segment)?;
        self.check_window(segment)
    }

    fn on_syn(&mut self, segment: &Segment) -> Result<(), String> {
        self.ports.local = Some(segment.source.port());
        let announced = Announced::of(segment);
        self.has_offered |= segment.flags & ACK == 0;
        if let Some(irs) = self.irs {
            if irs != segment.seq {
                return Err("a repeated SYN with another sequence number".to_owned());
            }
        } else {
            self.irs = Some(segment.seq);
            self.stack = announced;
        }
        if segment.options.iter().any(|option| matches!(option, Opt::Scale(15..))) {
            return Err("a window shift above 14 (RFC 7323 section 2.3)".to_owned());
        }
        if announced.mss.is_none() {
            return Err("a SYN without MSS (RFC 9293 SHLD-5)".to_owned());
        }
        if segment.flags & ACK != 0 && self.peer.has_syn && !self.has_offered {
            let answered = |own: bool, other: bool| own && !other;
            if answered(announced.scale.is_some(), self.peer.scale.is_some())
                || answered(announced.sack, self.peer.sack)
                || answered(announced.timestamps, self.peer.timestamps)
            {
                return Err("a SYN-ACK with an option that the SYN did not offer".to_owned());
            }
        }
        Ok(())
    }

    fn check_timestamps(&mut self, segment: &Segment, at: u64) -> Result<(), String> {
        let is_syn = segment.flags & SYN != 0;
        let Some((value, echo)) = segment.timestamps() else {
            let is_missing = !is_syn && self.both(|side| side.timestamps);
            return if is_missing {
                Err("no time stamp, though both sides offered them (RFC 7323 section 3.2)".to_owned())
            } else {
                Ok(())
            };
        };
        if !is_syn && !self.both(|side| side.timestamps) {
            return Err("a time stamp that was not negotiated".to_owned());
        }
        if is_syn && !self.peer.timestamps {
            // Of a simultaneous open: the own offer is repeated.
            return Ok(());
        }
        if segment.flags & ACK != 0 && !self.ts_sent.contains(&echo) {
            return Err("an echo of a time stamp that was never sent".to_owned());
        }
        self.stack_ts_base.get_or_insert(value);
        let is_recent = self.ts_seen.is_some_and(|(.., last_at)| at - last_at < TIMESTAMPS_US);
        if is_recent && Self::relative(self.last_ts, value) < 0 {
            return Err("a time stamp lower than the one before".to_owned());
        }
        self.last_ts = value;
        let (first, first_at, ..) = self.ts_seen.unwrap_or((value, at, value, at));
        self.ts_seen = Some((first, first_at, value, at));
        Ok(())
    }

    fn check_payload(&self, segment: &Segment) -> Result<(), String> {
        let first = self.relative_seq(segment) + i64::from(segment.flags & SYN != 0) - 1;
        for (at, &byte) in (first..).zip(&segment.payload) {
            // A keep-alive probe may carry a byte of garbage that has been acknowledged.
            if at + 1 >= self.acked.max(1) && byte != stack_byte(at as u64) {
                return Err(format!("byte {at} of the stream is wrong"));
            }
        }
        let v6 = self.version == Version::V6;
        let mss = usize::from(self.peer.mss.unwrap_or(if v6 { 1220 } else { 536 })).max(MSS_MIN);
        let bytes = segment.payload.len();
        if bytes > 0 && bytes + segment.option_bytes() > mss {
            return Err(format!("{bytes} bytes and options in a segment, the MSS is {mss} (RFC 6691)"));
        }
        let end = self.relative_seq(segment) + bytes as i64;
        let is_probe = bytes == 1 && end == self.allowed + 1;
        if bytes > 0 && self.peer.has_syn && end > self.allowed && !is_probe {
            return Err(format!("data up to {end}, the window ends at {}", self.allowed));
        }
        Ok(())
    }

    fn check_sack(&self, segment: &Segment) -> Result<(), String> {
        for option in &segment.options {
            let Opt::Sack(blocks) = option else { continue };
            if !self.both(|side| side.sack) {
                return Err("SACK that was not negotiated".to_owned());
            }
            for &(left, right) in blocks {
                let (left, right) = (Self::relative(self.iss, left), Self::relative(self.iss, right));
                if left >= right || right > self.sent {
                    return Err(format!("a SACK block {left}:{right}; only {} was sent", self.sent));
                }
            }
        }
        Ok(())
    }

    fn check_window(&mut self, segment: &Segment) -> Result<(), String> {
        let Some(ack) = self.ack_of(segment) else { return Ok(()) };
        if ack > self.sent {
            return Err(format!("an acknowledgement of {ack}, {} was sent", self.sent));
        }
        if ack < self.stack_acked {
            return Err(format!("an acknowledgement of {ack} after one of {}", self.stack_acked));
        }
        self.stack_acked = ack;
        if self.fin.is_some_and(|fin| ack >= fin) {
            // Nothing will come: the window has no meaning.
            return Ok(());
        }
        let end = ack + i64::from(self.window_of(segment));
        // What the shift rounds off may come and go (RFC 7323 section 2.4).
        if end + (1 << self.shift_of_stack()) <= self.stack_allowed {
            return Err(format!("the window shrank from {} to {end} (RFC 9293 SHLD-14)", self.stack_allowed));
        }
        self.stack_allowed = self.stack_allowed.max(end);
        Ok(())
    }

    /// What of a pattern a segment of the stack does not match.
    pub(crate) fn compare(&mut self, pattern: &Pattern, segment: &Segment) -> Result<(), String> {
        let push = if pattern.flags & PSH == 0 { PSH } else { 0 };
        let ignored = push | if pattern.is_ack_free { ACK } else { 0 };
        if segment.flags & !ignored != pattern.flags & !ignored {
            return Err("other flags".to_owned());
        }
        let expected = (pattern.from, pattern.to);
        if self.range(segment) != expected {
            return Err(format!("another range than {}:{}", expected.0, expected.1));
        }
        if let Some(ack) = pattern.ack
            && self.relative_ack(segment) != ack
        {
            return Err(format!("another acknowledgement than {ack}"));
        }
        let window = self.window_of(segment);
        if pattern.window.is_some_and(|bound| !bound.holds(window)) {
            return Err(format!("a window of {window}"));
        }
        if segment.urgent != pattern.urgent.unwrap_or(0) {
            return Err("another urgent pointer".to_owned());
        }
        if let Some(texts) = &pattern.options {
            self.compare_options(texts, pattern.is_open, segment)?;
        }
        Ok(())
    }

    fn compare_options(&mut self, texts: &[OptText], is_open: bool, segment: &Segment) -> Result<(), String> {
        let has_text = |wanted: fn(&OptText) -> bool| texts.iter().any(wanted);
        for option in &segment.options {
            let is_expected = is_open
                || match option {
                    Opt::Nop => true,
                    Opt::Mss(_) => has_text(|text| matches!(text, OptText::Mss(_))),
                    Opt::Scale(_) => has_text(|text| matches!(text, OptText::Scale(_))),
                    Opt::SackPermitted => has_text(|text| matches!(text, OptText::SackPermitted)),
                    Opt::Sack(_) => has_text(|text| matches!(text, OptText::Sack(_))),
                    // Whether they must be there is checked for each segment.
                    Opt::Timestamps(..) => {
                        segment.flags & SYN == 0 || has_text(|text| matches!(text, OptText::Timestamps(..)))
                    }
                    Opt::Raw(_) => false,
                };
            if !is_expected {
                return Err(format!("an unexpected option {option:?}"));
            }
        }
        for text in texts {
            let is_there = segment.options.iter().any(|option| match (text, option) {
                (OptText::Mss(mss), Opt::Mss(found)) => mss.is_none_or(|mss| mss == *found),
                (OptText::Scale(shift), Opt::Scale(found)) => shift.is_none_or(|shift| shift == *found),
                (OptText::SackPermitted, Opt::SackPermitted) | (OptText::Nop, Opt::Nop) => true,
                (OptText::Sack(blocks), Opt::Sack(found)) => {
                    blocks.len() == found.len()
                        && blocks.iter().zip(found).all(|(&(left, right), &(found_left, found_right))| {
                            (found_left, found_right) == (self.peer_seq(left), self.peer_seq(right))
                        })
                }
                (OptText::Timestamps(..), Opt::Timestamps(..)) => true,
                _ => false,
            });
            if !is_there {
                return Err(format!("no option {text:?}"));
            }
        }
        for text in texts {
            if let (OptText::Timestamps(value, echo), Some(found)) = (text, segment.timestamps()) {
                self.compare_timestamp(value, found.0, self.stack_ts_base.unwrap_or(0))?;
                self.compare_timestamp(echo, found.1, self.ts_base)?;
            }
        }
        Ok(())
    }

    fn compare_timestamp(&mut self, text: &Value, found: u32, base: u32) -> Result<(), String> {
        let is_right = match text {
            Value::Any => true,
            Value::Zero => found == 0,
            Value::Last => found == self.last_ts,
            Value::Number(number) => found == Self::absolute(base, *number),
            Value::Name(name) => *self.ts_names.entry(name.clone()).or_insert(found) == found,
        };
        if is_right { Ok(()) } else { Err(format!("a time stamp {} instead", Self::relative(base, found))) }
    }

    /// Ticks for each second of the stack's time stamp clock, between its first and its last one.
    pub(crate) fn clock_rate(&self) -> Option<u64> {
        let (first, first_at, last, last_at) = self.ts_seen?;
        let ticks = u64::from(last.wrapping_sub(first));
        (last_at > first_at).then(|| ticks * 1_000_000 / (last_at - first_at))
    }

    /// A segment in the words of scripts.
    pub(crate) fn describe(&self, segment: &Segment, is_of_stack: bool) -> String {
        let mut text: String = [(SYN, 'S'), (FIN, 'F'), (RST, 'R'), (PSH, 'P'), (URG, 'U'), (ACK, '.')]
            .iter()
            .filter(|(flag, _)| segment.flags & flag != 0)
            .map(|&(_, letter)| letter)
            .collect();
        let (own, other) = (self.irs.unwrap_or(0), self.iss);
        let (own, other) = if is_of_stack { (own, other) } else { (other, own) };
        let from = Self::relative(own, segment.seq);
        text += &format!(" {from}:{}", from + i64::from(segment.length()));
        if segment.flags & ACK != 0 {
            text += &format!(" ack {}", Self::relative(other, segment.ack));
        }
        let shift = match (segment.flags & SYN != 0, is_of_stack) {
            (true, _) => 0,
            (false, true) => self.shift_of_stack(),
            (false, false) => self.shift_of_peer(),
        };
        text += &format!(" win {}", u32::from(segment.window) << shift);
        let (ts, ts_other) = (self.stack_ts_base.unwrap_or(0), self.ts_base);
        let (ts, ts_other) = if is_of_stack { (ts, ts_other) } else { (ts_other, ts) };
        let options: Vec<_> = segment
            .options
            .iter()
            .filter(|option| **option != Opt::Nop)
            .map(|option| match option {
                Opt::Mss(mss) => format!("mss {mss}"),
                Opt::Scale(shift) => format!("wscale {shift}"),
                Opt::SackPermitted => "sackOK".to_owned(),
                Opt::Timestamps(value, echo) => {
                    format!("TS {} {}", Self::relative(ts, *value), Self::relative(ts_other, *echo))
                }
                Opt::Sack(blocks) => blocks.iter().fold("sack".to_owned(), |text, &(left, right)| {
                    let (left, right) = (Self::relative(other, left), Self::relative(other, right));
                    format!("{text} {left}:{right}")
                }),
                Opt::Nop => String::new(),
                Opt::Raw(bytes) => format!("hex {bytes:02x?}"),
            })
            .collect();
        if !options.is_empty() {
            text += &format!(" <{}>", options.join(","));
        }
        text
    }
}

#[cfg(test)]
mod tests;
