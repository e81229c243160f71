//! `watch` without a terminal: a line for each connection and interval, and at the end a verdict for each.

use std::time::Duration;

use monitor::probe::{Figures, Session, now_ns};

use super::Args;
use super::engine::{Engine, PERIOD, figures};
use super::json;
use super::tune::Tuning;
use super::words::{self, Limit, bytes, name, rate, time};
use crate::context::Context;
use crate::error::Failure;
use crate::{output, units};

/// Longest sleep: a signal is noticed then.
const SLEEP_MAX: Duration = Duration::from_millis(100);

pub(super) fn run(
    context: &Context,
    args: &Args,
    engine: &mut Engine,
    tuning: &mut Option<Tuning>,
) -> Result<(), Failure> {
    let interval_ns = u64::try_from(args.interval.as_nanos()).unwrap_or(u64::MAX);
    let mut line_next = engine.started_ns.saturating_add(interval_ns);
    let mut has_remarked = false;
    let left =
        |engine: &Engine| args.limit.map_or(Duration::MAX, |limit| limit.saturating_sub(engine.elapsed()));
    while !context.stop.is_requested() && !left(engine).is_zero() {
        engine.step()?;
        if let Some(tuning) = tuning {
            tuning.step(context, engine);
        }
        if engine.sessions.all().is_empty() && !std::mem::replace(&mut has_remarked, true) {
            context.remark(&super::none_yet(args));
        }
        if engine.is_due(line_next) {
            if !print(context, args, engine)? {
                return Ok(());
            }
            // Each connection's end is printed once.
            engine.forget_ended();
            line_next = line_next.saturating_add(interval_ns).max(now_ns());
        }
        std::thread::sleep(engine.pause().min(SLEEP_MAX).min(left(engine)));
    }
    // The last interval ends with the command.
    let is_due = args.limit.is_some() && line_next.saturating_sub(now_ns()) < interval_ns / 2;
    if (is_due && !print(context, args, engine)?) || args.json {
        return Ok(());
    }
    summary(engine)
}

/// Prints what there is of each connection. `false`: the reader has closed the pipe.
fn print(context: &Context, args: &Args, engine: &Engine) -> Result<bool, Failure> {
    if args.json {
        return json::print(engine);
    }
    if context.quiet {
        return Ok(true);
    }
    print_lines(engine.sessions.all().iter().flat_map(|session| lines(engine, session)))
}

fn print_lines(lines: impl IntoIterator<Item = String>) -> Result<bool, Failure> {
    for line in lines {
        if !output::try_line(&line)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The figures of a connection, or its verdict after its end: those that end are not in the summary.
fn lines(engine: &Engine, session: &Session) -> Vec<String> {
    if session.ended {
        return conclusion(engine, session);
    }
    let Some(figures) = figures(session) else { return Vec::new() };
    let limit = match words::limit(engine, session) {
        Limit::None => None,
        Limit::Awaited => Some(format!("limit after {} s", PERIOD.as_secs())),
        Limit::Known { word, percent, confidence } => {
            Some(format!("limit {word} {percent:.0} %, confidence {confidence:.2}"))
        }
    };
    let parts = [Some(name(session)), Some(fields(&figures).join("  ")), limit];
    vec![parts.into_iter().flatten().collect::<Vec<_>>().join("  ")]
}

/// The verdict of a connection with what to type, or why it has none.
fn conclusion(engine: &Engine, session: &Session) -> Vec<String> {
    let mut verdict = words::verdict(engine, session).into_iter();
    let ended = if session.ended { " ended" } else { "" };
    let first = format!("{}{ended}: {}", name(session), verdict.next().unwrap_or_default());
    let others = engine.precise.sentence(session).into_iter().chain(verdict);
    std::iter::once(first).chain(others.map(|line| format!("  {line}"))).collect()
}

fn fields(figures: &Figures) -> Vec<String> {
    let mut fields = vec![
        format!("sends {}", rate(figures.sent_bytes_per_s)),
        format!("receives {}", rate(figures.received_bytes_per_s)),
        format!("rtt {}", time(figures.rtt_us)),
        format!("in flight {}", bytes(figures.waiting_ack_bytes)),
        format!("unsent {}", bytes(figures.unsent_bytes)),
        format!("queue {} of {}", bytes(figures.queue_bytes), bytes(figures.buffer_bytes)),
        format!("cwnd {}", bytes(figures.congestion_window_bytes)),
        format!("window {}", bytes(figures.peer_window_bytes)),
    ];
    fields.extend(figures.outstanding.map(|count| units::counted(count.into(), "request") + " outstanding"));
    fields
}

/// What is found of each connection.
pub(super) fn summary(engine: &mut Engine) -> Result<(), Failure> {
    engine.conclude();
    for session in engine.sessions.all().iter().filter(|session| session.is_sampled()) {
        if !print_lines(conclusion(engine, session))? {
            break;
        }
    }
    Ok(())
}
