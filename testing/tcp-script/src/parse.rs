//! Reads scripts; the crate's head describes them.

use std::str::FromStr;

use crate::script::{
    Act, Bound, Call, Count, Failure, IcmpKind, IcmpText, OptText, Pattern, Script, Settings, SocketOptions,
    Special, Step, Value, Version,
};
use crate::wire::{ACK, Damage, FIN, PSH, RST, SYN, URG};

/// The scripts of a file; an error names its line.
pub(crate) fn scripts(group: &str, text: &str) -> Result<Vec<Script>, String> {
    let mut scripts: Vec<Script> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split_once('#').map_or(line, |(line, _)| line).trim();
        if line.is_empty() {
            continue;
        }
        let wrong = |what: String| format!("{group}, line {number}: {what}");
        if let Some(name) = line.strip_prefix("script ") {
            scripts.push(Script {
                name: format!("{group}/{}", name.trim()),
                clause: String::new(),
                versions: vec![Version::V4],
                engine_only: None,
                settings: Settings::default(),
                steps: Vec::new(),
            });
            continue;
        }
        let script = scripts.last_mut().ok_or_else(|| wrong("nothing before the first script".to_owned()))?;
        if !heading(script, line).map_err(wrong)? {
            let steps = steps(line, number).map_err(wrong)?;
            script.steps.extend(steps);
        }
    }
    for script in &scripts {
        if script.clause.is_empty() || script.steps.is_empty() {
            return Err(format!("{}: no clause, or no steps", script.name));
        }
    }
    Ok(scripts)
}

/// A line before the steps; false if it is a step.
fn heading(script: &mut Script, line: &str) -> Result<bool, String> {
    let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
    match word {
        "clause" => script.clause = rest.trim().to_owned(),
        "over" => {
            script.versions = rest
                .split_whitespace()
                .map(|word| match word {
                    "v4" => Ok(Version::V4),
                    "v6" => Ok(Version::V6),
                    _ => Err(format!("`{word}` is no version of IP")),
                })
                .collect::<Result<_, _>>()?;
        }
        "engine-only" => script.engine_only = Some(rest.trim().to_owned()),
        "mtu" => script.settings.mtu = number(rest.trim())?,
        "segments" => script.settings.segments = true,
        "stranger" => script.settings.is_stranger = true,
        "deaf" => (script.settings.is_stranger, script.settings.is_deaf) = (true, true),
        "connections" => script.settings.connections = number(rest.trim())?,
        "frames" => script.settings.frames = number(rest.trim())?,
        _ => return Ok(false),
    }
    Ok(true)
}

fn number<T: FromStr>(word: &str) -> Result<T, String> {
    word.parse().map_err(|_| format!("`{word}` is no number that fits"))
}

fn duration(word: &str) -> Result<u64, String> {
    let digits = word.trim_end_matches(char::is_alphabetic);
    let value: f64 = number(digits)?;
    let unit = match &word[digits.len()..] {
        "us" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        _ => return Err(format!("`{word}` has no unit of time")),
    };
    Ok((value * unit).round() as u64)
}

/// `T`, `T..T` or `..T`.
fn when(word: &str) -> Result<(u64, u64), String> {
    match word.split_once("..") {
        None => duration(word).map(|at| (at, at)),
        Some(("", to)) => Ok((0, duration(to)?)),
        Some((from, to)) => Ok((duration(from)?, duration(to)?)),
    }
}

/// Words of a line, taken one by one.
struct Words<'a> {
    rest: &'a str,
}

impl<'a> Words<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.rest.split_whitespace().next()
    }

    fn take(&mut self) -> Option<&'a str> {
        let word = self.peek()?;
        self.rest = &self.rest.trim_start()[word.len()..];
        Some(word)
    }

    fn expect(&mut self, what: &str) -> Result<&'a str, String> {
        self.take().ok_or_else(|| format!("{what} is missing"))
    }

    fn number<T: FromStr>(&mut self) -> Result<T, String> {
        number(self.expect("a number")?)
    }

    fn take_if(&mut self, word: &str) -> bool {
        let is_next = self.peek() == Some(word);
        if is_next {
            self.take();
        }
        is_next
    }

    /// The text between `<` and `>`, if it comes next.
    fn angle(&mut self) -> Result<Option<&'a str>, String> {
        let Some(inside) = self.rest.trim_start().strip_prefix('<') else { return Ok(None) };
        let (inside, rest) = inside.split_once('>').ok_or("a `<` without `>`")?;
        self.rest = rest;
        Ok(Some(inside))
    }

    fn end(&self) -> Result<(), String> {
        self.peek().map_or(Ok(()), |word| Err(format!("`{word}` is not understood here")))
    }
}

fn steps(line: &str, number: usize) -> Result<Vec<Step>, String> {
    let mut words = Words { rest: line };
    let mut time = None;
    if let Some(word) = words.peek().and_then(|word| word.strip_prefix('+')) {
        words.take();
        time = Some(when(word)?);
    }
    let mut flow = 'A';
    if let Some(name) = words.peek().and_then(|word| word.strip_prefix('[')?.strip_suffix(']')) {
        words.take();
        flow =
            name.chars().next().filter(char::is_ascii_uppercase).ok_or("a flow is an upper-case letter")?;
    }
    let verb = words.expect("a verb")?;
    if let "as-server" | "as-client" = verb {
        let lines = handshake(verb, &mut words)?;
        return lines
            .iter()
            .map(|text| {
                let (time, text) = text.strip_prefix('+').map_or((String::new(), text.as_str()), |rest| {
                    let (time, rest) = rest.split_once(' ').unwrap_or((rest, ""));
                    (format!("+{time} "), rest)
                });
                steps(&format!("{time}[{flow}] {text}"), number)
            })
            .collect::<Result<Vec<_>, _>>()
            .map(|steps| steps.concat());
    }
    let acts = acts(verb, &mut words)?;
    words.end()?;
    Ok(acts
        .into_iter()
        .enumerate()
        .map(|(index, act)| Step {
            line: number,
            text: line.to_owned(),
            flow,
            when: if index == 0 { time } else { None },
            act,
        })
        .collect())
}

/// The lines of a handshake in which the peer announces what the words say.
fn handshake(verb: &str, words: &mut Words<'_>) -> Result<Vec<String>, String> {
    let (mut options, mut window, mut rtt) = (Vec::new(), 65_535_u32, None);
    let mut socket = String::new();
    while let Some(word) = words.take() {
        match word {
            "mss" => options.push(format!("mss {}", words.expect("the MSS")?)),
            "sack" => options.push("sackOK".to_owned()),
            "ts" => {
                options.push(if verb == "as-server" { "TS 1000 zero" } else { "TS 1000 last" }.to_owned());
            }
            "wscale" => options.push(format!("wscale {}", words.expect("the shift")?)),
            "win" => window = words.number()?,
            "rtt" => rtt = Some(words.expect("a time")?),
            "nodelay" | "reno" => socket.extend([word, " "]),
            "rcvbuf" | "keepalive" => {
                socket.extend([word, " ", words.expect("a number")?, " "]);
            }
            _ => return Err(format!("`{word}` is not understood here")),
        }
    }
    let (options, first) = (options.join(","), window.min(65_535));
    let delay = rtt.map_or(String::new(), |rtt| format!("+{rtt} "));
    Ok(if verb == "as-server" {
        vec![
            format!("listen {socket}"),
            format!("< S 0:1 win {first} <{options}>"),
            "> S. 0:1 ack 1".to_owned(),
            format!("{delay}< . 1 ack 1 win {window}"),
            "accept".to_owned(),
        ]
    } else {
        vec![
            format!("connect {socket}"),
            "> S 0:1".to_owned(),
            format!("{delay}< S. 0:1 ack 1 win {first} <{options}>"),
            "> . 1 ack 1".to_owned(),
            "connected".to_owned(),
            format!("window {window}"),
        ]
    })
}

fn acts(verb: &str, words: &mut Words<'_>) -> Result<Vec<Act>, String> {
    let call = |call| Ok(vec![Act::Call(call)]);
    let special = |special| Ok(vec![Act::Special(special)]);
    match verb {
        "<" if words.take_if("icmp") => icmp(words).map(|text| vec![Act::Icmp(text)]),
        "<" => injections(words),
        ">" if words.take_if("flight") => {
            let (from, to) = range(words.expect("a range")?)?;
            Ok(vec![Act::Flight { from, to, frames: count(words)? }])
        }
        ">" if words.take_if("more") => Ok(vec![Act::More(number_or_range(words)?)]),
        ">" if words.take_if("acks") => Ok(vec![Act::Acks { ack: words.number()?, frames: count(words)? }]),
        ">" if words.take_if("probe") => Ok(vec![Act::Probe(words.number()?)]),
        ">" => pattern(words).map(|pattern| vec![Act::Expect(pattern)]),
        "maybe" => pattern(words).map(|pattern| vec![Act::Maybe(pattern)]),
        "quiet" => Ok(vec![Act::Quiet(duration(words.expect("a time")?)?)]),
        "ignore" => Ok(vec![Act::Ignore(duration(words.expect("a time")?)?)]),
        "ports" => Ok(vec![Act::Ports { local: words.number()?, peer: words.number()? }]),
        "window" => Ok(vec![Act::Window(words.number()?)]),
        "sysctl" => {
            let (key, value) = words.expect("a setting")?.split_once('=').ok_or("a setting without value")?;
            Ok(vec![Act::Sysctl(key.to_owned(), value.replace(',', " "))])
        }
        "isn" => {
            let is_above = match words.expect("a relation")? {
                "above" => true,
                "differs" => false,
                other => return Err(format!("`{other}` is no relation")),
            };
            let other = words.expect("a flow")?.chars().next().unwrap_or('A');
            Ok(vec![Act::Isn { other, is_above }])
        }
        "clock-rate" => Ok(vec![Act::ClockRate(words.number()?, words.number()?)]),
        "listen" => {
            let mut backlog = 16;
            if words.take_if("backlog") {
                backlog = words.number()?;
            }
            call(Call::Listen { backlog, options: socket_options(words)? })
        }
        "unlisten" => call(Call::CloseListener),
        "connect" => {
            let mut from = None;
            if words.take_if("from") {
                from = Some(words.number()?);
            }
            call(Call::Connect { from, options: socket_options(words)? })
        }
        "accept" if words.take_if("nothing") => call(Call::AcceptNothing),
        "accept" => call(Call::Accept),
        "connected" => call(Call::Connected),
        "send" if words.take_if("refused") => call(Call::SendRefused(words.number()?)),
        "send" => call(Call::Send(words.number()?)),
        "recv" => match words.expect("what is received")? {
            "nothing" => call(Call::ReceiveNothing),
            "eof" => call(Call::EndOfStream),
            bytes => call(Call::Receive(number(bytes)?)),
        },
        "error" => call(Call::Failed(failure(words)?)),
        "ended" => call(Call::Ended(failure(words)?)),
        "shutdown" => call(Call::Shutdown),
        "close" => call(Call::Close),
        "abort" => call(Call::Abort),
        "option" => call(Call::Options(socket_options(words)?)),
        "driver" => match words.expect("what the driver does")? {
            "hold" => special(Special::DriverHold),
            "emitted" => special(Special::Emitted(number_or_range(words)?)),
            "restart" => special(Special::DriverRestart),
            "consume" if words.peek().is_some() => special(Special::DriverConsume(Some(words.number()?))),
            "consume" => special(Special::DriverConsume(None)),
            other => Err(format!("`{other}` is nothing that a driver does")),
        },
        "released" => special(Special::Released(words.number()?)),
        "submitted" => special(Special::Submitted(words.number()?)),
        "client-gone" => special(Special::ClientGone),
        "drained" => special(Special::Drained(words.expect("yes or no")? == "yes")),
        _ => Err(format!("`{verb}` is no step")),
    }
}

fn failure(words: &mut Words<'_>) -> Result<Failure, String> {
    Ok(match words.expect("a reason")? {
        "closed" => Failure::Closed,
        "reset" => Failure::Reset,
        "refused" => Failure::Refused,
        "timed-out" => Failure::TimedOut,
        "unreachable" => Failure::Unreachable,
        "aborted" => Failure::Aborted,
        other => return Err(format!("`{other}` is no reason")),
    })
}

fn socket_options(words: &mut Words<'_>) -> Result<SocketOptions, String> {
    let mut options = SocketOptions::default();
    while let Some(word) = words.take() {
        match word {
            "nodelay" => options.no_delay = true,
            "reno" => options.is_reno = true,
            "keepalive" => options.keep_alive_s = words.number()?,
            "rcvbuf" => options.receive_bytes = words.number()?,
            _ => return Err(format!("`{word}` is no option of a socket")),
        }
    }
    Ok(options)
}

/// `A:B`, or `A` for an empty range.
fn range(word: &str) -> Result<(i64, i64), String> {
    match word.split_once(':') {
        None => number(word).map(|at| (at, at)),
        Some((from, to)) => Ok((number(from)?, number(to)?)),
    }
}

fn count(words: &mut Words<'_>) -> Result<Count, String> {
    if !words.take_if("frames") {
        return Ok(Count::ANY);
    }
    number_or_range(words)
}

fn number_or_range(words: &mut Words<'_>) -> Result<Count, String> {
    let word = words.expect("a number")?;
    match word.split_once("..") {
        None => number(word).map(|frames| Count(frames, frames)),
        Some((from, to)) => Ok(Count(number(from)?, number(to)?)),
    }
}

fn flags(word: &str) -> Result<u8, String> {
    word.chars().try_fold(0, |flags, letter| {
        Ok(flags
            | match letter {
                'S' => SYN,
                'F' => FIN,
                'R' => RST,
                'P' => PSH,
                'U' => URG,
                '.' => ACK,
                // No flag at all.
                '-' => 0,
                _ => return Err(format!("`{word}` are no flags")),
            })
    })
}

fn pattern(words: &mut Words<'_>) -> Result<Pattern, String> {
    let letters = words.expect("flags")?;
    let is_ack_free = letters.ends_with('?');
    let flags = flags(letters.trim_end_matches('?'))?;
    let mut pattern = Pattern { flags, is_ack_free, ..Pattern::default() };
    (pattern.from, pattern.to) = range(words.expect("a sequence number")?)?;
    details(&mut pattern, words)?;
    Ok(pattern)
}

fn details(pattern: &mut Pattern, words: &mut Words<'_>) -> Result<(), String> {
    loop {
        if let Some(inside) = words.angle()? {
            options(pattern, inside)?;
            continue;
        }
        let Some(word) = words.peek() else { return Ok(()) };
        if word == "each" {
            return Ok(());
        }
        words.take();
        match word {
            "ack" => pattern.ack = Some(words.number()?),
            "win" => {
                let word = words.expect("a window")?;
                pattern.window = Some(if let Some(bound) = word.strip_prefix(">=") {
                    Bound::AtLeast(number(bound)?)
                } else if let Some(bound) = word.strip_prefix("<=") {
                    Bound::AtMost(number(bound)?)
                } else {
                    Bound::Is(number(word)?)
                });
            }
            "urg" => pattern.urgent = Some(words.number()?),
            "port" => pattern.port = Some(words.number()?),
            "source" => pattern.source = Some(words.number()?),
            "target" => pattern.target = Some(words.number()?),
            "coalesced" => pattern.coalesced = words.number()?,
            "!checksum" => pattern.damages.push(Damage::Checksum),
            "!header-checksum" => pattern.damages.push(Damage::HeaderChecksum),
            "!offset" => pattern.damages.push(Damage::DataOffset(words.number()?)),
            "!shorter" => pattern.damages.push(Damage::Shorter(words.number()?)),
            "!cut" => pattern.damages.push(Damage::Cut(words.number()?)),
            "!pad" => pattern.damages.push(Damage::Padded(words.number()?)),
            "!reserved" => pattern.damages.push(Damage::Reserved),
            "!fragment" => pattern.damages.push(Damage::Fragment),
            _ => return Err(format!("`{word}` is not understood here")),
        }
    }
}

/// `A:B each N` is one segment for each N bytes; `ack A..B/N` is one for each N bytes acknowledged.
fn injections(words: &mut Words<'_>) -> Result<Vec<Act>, String> {
    let text = words.rest;
    if let Some((before, step)) = text.split_once(" ack all/") {
        let text = format!("{before} ack 0");
        let mut inner = Words { rest: &text };
        let pattern = pattern(&mut inner)?;
        inner.end()?;
        words.rest = "";
        let step: i64 = number(step.trim())?;
        return if step > 0 { Ok(vec![Act::AckAll(pattern, step)]) } else { Err("no bytes".to_owned()) };
    }
    let series = text.split_once(" ack ").and_then(|(before, after)| {
        let (word, rest) = after.split_once(' ').unwrap_or((after, ""));
        word.contains("..").then_some((before, word, rest))
    });
    if let Some((before, word, rest)) = series {
        let (from, to) = word.split_once("..").unwrap_or_default();
        let (to, step) = to.split_once('/').ok_or("a series of ACKs without `/`")?;
        let (first, last, step): (i64, i64, i64) = (number(from)?, number(to)?, number(step)?);
        if step <= 0 || last < first {
            return Err("a series of ACKs that does not rise".to_owned());
        }
        let text = format!("{before} ack {first} {rest}");
        let mut inner = Words { rest: &text };
        let pattern = pattern(&mut inner)?;
        inner.end()?;
        words.rest = "";
        let acks = (0..=(last - first + step - 1) / step).map(|index| (first + index * step).min(last));
        return Ok(acks.map(|ack| Act::Inject(Pattern { ack: Some(ack), ..pattern.clone() })).collect());
    }
    let first = pattern(words)?;
    if first.flags & ACK != 0 && first.ack.is_none() {
        return Err("an ACK without number".to_owned());
    }
    if !words.take_if("each") {
        return Ok(vec![Act::Inject(first)]);
    }
    let step: i64 = words.number()?;
    if step <= 0 || first.to <= first.from {
        return Err("segments without bytes".to_owned());
    }
    Ok((0..(first.to - first.from + step - 1) / step)
        .map(|index| {
            let from = first.from + index * step;
            Act::Inject(Pattern { from, to: (from + step).min(first.to), ..first.clone() })
        })
        .collect())
}

fn options(pattern: &mut Pattern, inside: &str) -> Result<(), String> {
    let mut list = Vec::new();
    for text in inside.split(',').map(str::trim).filter(|text| !text.is_empty()) {
        let mut words = Words { rest: text };
        let any = |word: &str| (word == "*").then_some(());
        list.push(match words.expect("an option")? {
            "..." => {
                pattern.is_open = true;
                continue;
            }
            "mss" => {
                let word = words.expect("the MSS")?;
                OptText::Mss(if any(word).is_some() { None } else { Some(number(word)?) })
            }
            "wscale" => {
                let word = words.expect("the shift")?;
                OptText::Scale(if any(word).is_some() { None } else { Some(number(word)?) })
            }
            "sackOK" => OptText::SackPermitted,
            "nop" => OptText::Nop,
            "sack" => {
                let mut blocks = Vec::new();
                while let Some(word) = words.take() {
                    blocks.push(range(word)?);
                }
                OptText::Sack(blocks)
            }
            "TS" => {
                OptText::Timestamps(value(words.expect("a time stamp")?)?, value(words.expect("an echo")?)?)
            }
            "hex" => {
                let word = words.expect("bytes")?;
                let bytes = (0..word.len() / 2).map(|at| u8::from_str_radix(&word[2 * at..2 * at + 2], 16));
                OptText::Raw(bytes.collect::<Result<_, _>>().map_err(|_| format!("`{word}` is not hex"))?)
            }
            other => return Err(format!("`{other}` is no option")),
        });
        words.end()?;
    }
    pattern.options = Some(list);
    Ok(())
}

fn value(word: &str) -> Result<Value, String> {
    Ok(match word {
        "*" => Value::Any,
        "last" => Value::Last,
        "zero" => Value::Zero,
        _ => match word.strip_prefix('$') {
            Some(name) => Value::Name(name.to_owned()),
            None => Value::Number(number(word)?),
        },
    })
}

fn icmp(words: &mut Words<'_>) -> Result<IcmpText, String> {
    let kind = match words.expect("a kind of ICMP error")? {
        "network" => IcmpKind::Network,
        "host" => IcmpKind::Host,
        "protocol" => IcmpKind::Protocol,
        "port" => IcmpKind::Port,
        "prohibited" => IcmpKind::Prohibited,
        "too-big" => IcmpKind::TooBig(words.number()?),
        "time-exceeded" => IcmpKind::TimeExceeded,
        "quench" => IcmpKind::Quench,
        other => return Err(format!("`{other}` is no kind of ICMP error")),
    };
    let mut text = IcmpText { kind, seq: 0, quoted: 20, port: None };
    while let Some(word) = words.take() {
        match word {
            "seq" => text.seq = words.number()?,
            "quoted" => text.quoted = words.number()?,
            "port" => text.port = Some(words.number()?),
            _ => return Err(format!("`{word}` is not understood here")),
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(line: &str) -> Result<Vec<Step>, String> {
        scripts("group", &format!("script x\nclause y\n{line}\n")).map(|mut scripts| scripts.remove(0).steps)
    }

    #[test]
    fn lines_mean_what_the_head_of_the_crate_says() {
        let steps = one("+50ms [B] < . 1:2501 ack 7 win 1000 each 1000 # three segments").unwrap();
        let ranges: Vec<_> = steps
            .iter()
            .map(|step| match &step.act {
                Act::Inject(pattern) => (step.flow, step.when, pattern.from, pattern.to),
                _ => panic!("an injection"),
            })
            .collect();
        let first = Some((50_000, 50_000));
        assert_eq!(ranges, [('B', first, 1, 1001), ('B', None, 1001, 2001), ('B', None, 2001, 2501)]);
        assert_eq!(one("< . 1 ack 1000..3500/1000").unwrap().len(), 4);
        assert_eq!(one("as-client mss 1000 ts wscale 7 win 100000 rtt 50ms").unwrap().len(), 6);
        let steps = one("+1s..3s > S. 0:1 ack 1 win >=4000 <mss 1460,sack 1:2 3:4,TS $a last,...>").unwrap();
        let Act::Expect(pattern) = &steps[0].act else { panic!("an expectation") };
        assert_eq!((steps[0].when, pattern.is_open), (Some((1_000_000, 3_000_000)), true));
        assert_eq!(pattern.options.as_ref().map(Vec::len), Some(3));
    }

    #[test]
    fn lines_that_are_wrong_are_refused() {
        for line in [
            "< . 1:2",
            "< X 1:2",
            "> . 1:2 ack",
            "+5 > . 1",
            "quiet 5",
            "< . 1 ack 5..1/1",
            "< . 1 ack 1..5",
            "> . 1 <mss>",
            "> . 1 <mss 1",
            "[a] accept",
            "accept twice",
            "recv",
            "error strange",
            "driver sleeps",
            "as-server mss",
            "frobnicate",
            "over v5",
            "isn below A",
            "< icmp strange",
        ] {
            assert!(one(line).is_err(), "{line}");
        }
        assert!(scripts("group", "script x\naccept\n").is_err(), "no clause");
        assert!(scripts("group", "accept\n").is_err(), "no script");
    }
}
