//! Plays a script at a stack.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;

use crate::flow::Flow;
use crate::script::{Act, Call, Count, IcmpKind, IcmpText, Pattern, Script, Step};
use crate::stack::Stack;
use crate::wire::{self, ACK, Damage, FIN, Frame, IcmpError, PSH, RST, SYN, Segment};
use crate::{PEER_MAC, STACK_MAC, Variation, peer_ip};

/// Steps and segments that the report of a failure ends with.
const LOG_LINES: usize = 40;
/// For how long after a script's last step nothing more may come, in units of the stack's lateness.
const SILENCE: u64 = 1;

/// Why a script failed: the step, what came instead, and what went before.
#[derive(Clone, Debug)]
pub struct Failed(pub String);

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// # Errors
/// If the stack does other than the script says.
pub fn play(script: &Script, variation: &Variation, stack: &mut dyn Stack) -> Result<(), Failed> {
    let start = stack.now();
    let mut player = Player {
        stack,
        variation,
        is_deaf: script.settings.is_deaf,
        flows: BTreeMap::new(),
        pending: VecDeque::new(),
        log: Vec::new(),
        start,
        base: start,
    };
    for step in &script.steps {
        player.log(&format!("line {}: {}", step.line, step.text));
        let result = player.step(step).and_then(|()| player.stack.violation().map_or(Ok(()), Err));
        result.map_err(|why| player.failed(script, step, &why))?;
    }
    player.end().map_err(|why| match script.steps.last() {
        Some(step) => player.failed(script, step, &why),
        None => Failed(why),
    })
}

struct Player<'a> {
    stack: &'a mut dyn Stack,
    variation: &'a Variation,
    is_deaf: bool,
    flows: BTreeMap<char, Flow>,
    /// Segments that came and were not yet expected.
    pending: VecDeque<(u64, char, Segment)>,
    log: Vec<String>,
    start: u64,
    /// Time of the step before.
    base: u64,
}

impl Player<'_> {
    fn log(&mut self, text: &str) {
        let elapsed = self.stack.now() - self.start;
        self.log.push(format!("{:>5}.{:06} {text}", elapsed / 1_000_000, elapsed % 1_000_000));
    }

    fn failed(&self, script: &Script, step: &Step, why: &str) -> Failed {
        let mut text = format!(
            "{} ({}, {:#x}): line {}: {}\n  {}\n  {why}\n",
            script.name, self.variation.version, self.variation.iss, step.line, step.text, script.clause
        );
        for line in &self.log[self.log.len().saturating_sub(LOG_LINES)..] {
            let _ = writeln!(text, "    {line}");
        }
        Failed(text)
    }

    fn flow(&mut self, name: char) -> &mut Flow {
        let index = u16::from(name as u8 - b'A');
        self.flows.entry(name).or_insert_with(|| Flow::new(index, self.variation))
    }

    fn step(&mut self, step: &Step) -> Result<(), String> {
        match &step.act {
            Act::Expect(pattern) => return self.expect(step, pattern),
            Act::Maybe(pattern) => return self.maybe(step, pattern),
            Act::Flight { from, to, frames } => return self.flight(step, *from, *to, *frames),
            Act::Acks { ack, frames } => return self.acks(step, *ack, *frames),
            Act::More(frames) => return self.more(step, *frames),
            Act::Probe(number) => return self.probe(step, *number),
            _ => {}
        }
        if let Some((_, wait)) = step.when {
            self.silent(self.base + wait)?;
        }
        match &step.act {
            Act::Inject(pattern) => self.inject(step.flow, pattern)?,
            Act::AckAll(pattern, bytes) => {
                let acks = self.flow(step.flow).open_acks(*bytes);
                for ack in acks {
                    self.inject(step.flow, &Pattern { ack: Some(ack), ..pattern.clone() })?;
                }
            }
            Act::Icmp(text) => self.icmp(step.flow, text),
            Act::Quiet(time) => {
                let until = self.stack.now().max(self.base) + time;
                self.silent(until)?;
            }
            Act::Ignore(time) => {
                let until = self.stack.now() + time;
                while self.segment(until)?.is_some() {}
            }
            Act::Ports { local, peer } => {
                let ports = &mut self.flow(step.flow).ports;
                (ports.local, ports.peer) = (Some(*local), *peer);
            }
            Act::Window(bytes) => self.flow(step.flow).window = *bytes,
            Act::Call(call) => self.call(step.flow, call)?,
            Act::Special(special) => self.stack.special(step.flow, special)?,
            Act::Sysctl(key, value) => self.stack.sysctl(key, value)?,
            Act::Isn { other, is_above } => self.compare_isn(step.flow, *other, *is_above)?,
            Act::ClockRate(min, max) => {
                let rate = self.flow(step.flow).clock_rate().ok_or("no time stamps to measure")?;
                if !(*min..=*max).contains(&rate) {
                    return Err(format!("the time stamp clock has {rate} ticks for each second"));
                }
            }
            Act::Expect(_)
            | Act::Maybe(_)
            | Act::Flight { .. }
            | Act::Acks { .. }
            | Act::Probe(_)
            | Act::More(_) => {}
        }
        self.base = self.stack.now();
        Ok(())
    }

    fn call(&mut self, flow: char, call: &Call) -> Result<(), String> {
        if let Call::Connect { from, .. } = call {
            let ports = &mut self.flow(flow).ports;
            ports.local = *from;
            if ports.peer >= 40_000 {
                ports.peer -= 33_000;
            }
        }
        let ports = self.flow(flow).ports;
        self.stack.call(flow, call, ports)
    }

    fn inject(&mut self, flow: char, pattern: &Pattern) -> Result<(), String> {
        let elapsed_ms = (self.stack.now() - self.start) / 1000;
        let segment = self.flow(flow).build(pattern, elapsed_ms)?;
        let text = self.flow(flow).describe(&segment, false);
        self.log(&format!("  [{flow}] < {text}"));
        let damages: &[Damage] = &pattern.damages;
        self.stack.inject(&wire::tcp(&segment, STACK_MAC, PEER_MAC, damages), pattern.coalesced);
        Ok(())
    }

    fn icmp(&mut self, flow: char, text: &IcmpText) {
        let version = self.variation.version;
        let (kind, code) = text.kind.codes(version);
        let word = if let IcmpKind::TooBig(mtu) = text.kind { mtu } else { 0 };
        let about = self.flow(flow).quoted(text.seq, text.port);
        let error = IcmpError { kind, code, word, router: peer_ip(version), about, quoted: text.quoted };
        self.stack.inject(&wire::icmp_error(&error, STACK_MAC, PEER_MAC), 0);
    }

    /// The next segment of the stack until a time; questions for link-layer addresses are answered on the way.
    fn segment(&mut self, until: u64) -> Result<Option<(u64, char, Segment)>, String> {
        if let Some(first) = self.pending.pop_front() {
            return Ok(Some(first));
        }
        loop {
            let Some((at, bytes)) = self.stack.frame(until) else { return Ok(None) };
            match wire::parse(&bytes)? {
                Frame::Tcp(segment) => {
                    let found = self.flows.iter().rev().find(|(_, flow)| flow.is_of(&segment));
                    let Some((&name, _)) = found else {
                        return Err(format!("a segment of no flow: {segment:?}"));
                    };
                    let flow = self.flow(name);
                    let verdict = flow.on_segment(&segment, at);
                    let text = format!("  [{name}] > {}", flow.describe(&segment, true));
                    self.log(&text);
                    verdict?;
                    return Ok(Some((at, name, segment)));
                }
                Frame::Resolve { target, sender, mac }
                    if target == peer_ip(self.variation.version) && !self.is_deaf =>
                {
                    self.log("  a question for the peer's address, answered");
                    self.stack.inject(&wire::resolved(target, PEER_MAC, sender, mac), 0);
                }
                Frame::Icmp { kind, code } => return Err(format!("an ICMP message {kind}/{code}")),
                Frame::Resolve { .. } | Frame::Other => {}
            }
        }
    }

    fn silent(&mut self, until: u64) -> Result<(), String> {
        match self.segment(until)? {
            None => Ok(()),
            Some((at, name, segment)) => {
                let text = self.flow(name).describe(&segment, true);
                Err(format!("a segment that was not expected, {} us after the step: {text}", at - self.base))
            }
        }
    }

    /// Between which times a step's segments must come.
    fn limits(&self, step: &Step) -> (u64, u64) {
        let slack = self.stack.slack();
        let (min, max) = step.when.unwrap_or((0, 0));
        let late = slack.late + max / slack.late_share;
        ((self.base + min).saturating_sub(slack.early), self.base + max + late)
    }

    fn expect(&mut self, step: &Step, pattern: &Pattern) -> Result<(), String> {
        let (earliest, latest) = self.limits(step);
        let Some((at, name, segment)) = self.segment(latest)? else {
            return Err("nothing came".to_owned());
        };
        self.is_in_time(step, at, earliest, latest)?;
        if name != step.flow {
            return Err(format!("a segment of flow {name}"));
        }
        self.flow(name).compare(pattern, &segment)?;
        self.base = at.max(self.base);
        Ok(())
    }

    fn is_in_time(&self, step: &Step, at: u64, earliest: u64, latest: u64) -> Result<(), String> {
        let min = step.when.map_or(0, |(min, _)| min);
        if (min > 0 && at < earliest) || at > latest {
            let elapsed = at.saturating_sub(self.base);
            return Err(format!("the segment came {elapsed} us after the step before"));
        }
        Ok(())
    }

    fn maybe(&mut self, step: &Step, pattern: &Pattern) -> Result<(), String> {
        let (_, latest) = self.limits(step);
        let Some((at, name, segment)) = self.segment(latest)? else { return Ok(()) };
        if name == step.flow && self.flow(name).compare(pattern, &segment).is_ok() {
            self.base = at.max(self.base);
        } else {
            self.pending.push_front((at, name, segment));
        }
        Ok(())
    }

    fn flight(&mut self, step: &Step, from: i64, to: i64, frames: Count) -> Result<(), String> {
        let (earliest, latest) = self.limits(step);
        let (mut next, mut count) = (from, 0);
        while next < to {
            let Some((at, name, segment)) = self.segment(latest)? else {
                return Err(format!("the flight ended at {next}"));
            };
            self.is_in_time(step, at, earliest, latest)?;
            let (first, end) = self.flow(name).range(&segment);
            if name != step.flow || first != next || segment.flags & !(PSH | FIN) != ACK || end == first {
                return Err(format!("a segment that does not continue the flight at {next}"));
            }
            (next, count) = (end, count + 1);
            self.base = at.max(self.base);
        }
        if next != to || !(frames.0..=frames.1).contains(&count) {
            return Err(format!("the flight has {count} segments and ends at {next}"));
        }
        Ok(())
    }

    fn more(&mut self, step: &Step, frames: Count) -> Result<(), String> {
        let (earliest, latest) = self.limits(step);
        let (mut next, mut count) = (None, 0);
        while let Some((at, name, segment)) = self.segment(latest)? {
            self.is_in_time(step, at, earliest, latest)?;
            let (first, end) = self.flow(name).range(&segment);
            let follows = next.is_none_or(|next| next == first) && end > first;
            if name != step.flow || segment.flags & !PSH != ACK || !follows {
                return Err("a segment that does not follow the one before".to_owned());
            }
            (next, count) = (Some(end), count + 1);
            self.base = at.max(self.base);
        }
        if !(frames.0..=frames.1).contains(&count) {
            return Err(format!("{count} segments came"));
        }
        Ok(())
    }

    fn acks(&mut self, step: &Step, ack: i64, frames: Count) -> Result<(), String> {
        let (earliest, latest) = self.limits(step);
        let (mut last, mut count) = (i64::MIN, 0);
        while last != ack {
            let Some((at, name, segment)) = self.segment(latest)? else {
                return Err(format!("{count} acknowledgements came"));
            };
            self.is_in_time(step, at, earliest, latest)?;
            if name != step.flow || segment.flags & (SYN | FIN | RST) != 0 || segment.length() > 0 {
                return Err("a segment that is no pure ACK".to_owned());
            }
            last = self.flow(name).ack_of(&segment).unwrap_or(i64::MIN);
            count += 1;
            self.base = at.max(self.base);
        }
        if !(frames.0..=frames.1).contains(&count) {
            return Err(format!("{count} acknowledgements came"));
        }
        Ok(())
    }

    fn probe(&mut self, step: &Step, number: i64) -> Result<(), String> {
        let (earliest, latest) = self.limits(step);
        let Some((at, name, segment)) = self.segment(latest)? else {
            return Err("nothing came".to_owned());
        };
        self.is_in_time(step, at, earliest, latest)?;
        let (from, end) = self.flow(name).range(&segment);
        let is_probe = (from == number - 1 && end <= number) || (from == number && end == number + 1);
        if name != step.flow || segment.flags & !PSH != ACK || !is_probe {
            return Err("a segment that is no probe".to_owned());
        }
        self.base = at.max(self.base);
        Ok(())
    }

    fn compare_isn(&mut self, flow: char, other: char, is_above: bool) -> Result<(), String> {
        let own = self.flow(flow).irs.ok_or("no SYN of the stack was seen")?;
        let other = self.flow(other).irs.ok_or("no SYN of the stack was seen on the other flow")?;
        let distance = own.wrapping_sub(other).cast_signed();
        if distance == 0 || (is_above && distance < 0) {
            return Err(format!("the initial sequence number lies {distance} from that of the other flow"));
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), String> {
        let until = self.stack.now() + SILENCE * self.stack.slack().late;
        self.silent(until)?;
        self.stack.violation().map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests;
