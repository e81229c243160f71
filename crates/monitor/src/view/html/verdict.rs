//! The verdict: its sentence, the time by cause, the gain, what to type.

use std::io::{self, Write};

use super::super::escape::markup;
use super::super::{Subject, words};
use crate::model::{Advice, Cause, Seconds, Verdict};

pub(super) fn write(out: &mut impl Write, subject: &Subject<'_>) -> io::Result<()> {
    let verdict = subject.verdict;
    writeln!(out, "<h2 class=\"verdict\">{}</h2>", markup(&verdict.sentence))?;
    figures(out, verdict)?;
    bar(out, &verdict.waits)?;
    if !verdict.advice.is_empty() {
        out.write_all(b"<h3>What to type</h3>\n<ul class=\"advice\">\n")?;
        verdict.advice.iter().try_for_each(|advice| line(out, advice))?;
        out.write_all(b"</ul>\n")?;
    }
    notes(out, "Notes", verdict.notes.iter().chain(subject.notes))
}

/// Notes with a title; nothing without any.
pub(super) fn notes<'a>(
    out: &mut impl Write,
    title: &str,
    notes: impl Iterator<Item = &'a String>,
) -> io::Result<()> {
    let mut notes = notes.peekable();
    if notes.peek().is_none() {
        return Ok(());
    }
    writeln!(out, "<h3>{title}</h3>\n<ul>")?;
    for note in notes {
        writeln!(out, "<li>{}</li>", markup(note))?;
    }
    out.write_all(b"</ul>\n")
}

/// The figures of the verdict, each with its name.
fn figures(out: &mut impl Write, verdict: &Verdict) -> io::Result<()> {
    let mut items = vec![("measured", words::rate(verdict.bytes_per_s), String::new())];
    if let Some(expected) = verdict.expected_bytes_per_s {
        let gain = if verdict.bytes_per_s > 0.0 {
            format!("{:.1} times", expected / verdict.bytes_per_s)
        } else {
            String::new()
        };
        items.push(("without this limit", words::rate(expected), gain));
    }
    if verdict.limit == Cause::Unknown {
        let names: Vec<_> = verdict.candidates.iter().map(|cause| words::cause(*cause)).collect();
        let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        items.push(("what it may be", names, String::new()));
    } else {
        items.push((
            "limit",
            words::cause(verdict.limit).to_owned(),
            words::percent(verdict.share) + " of the time",
        ));
    }
    if let Some(also) = verdict.also {
        items.push(("and", words::cause(also).to_owned(), String::new()));
    }
    if let Some(next) = verdict.next_limit {
        items.push(("next limit", words::cause(next).to_owned(), String::new()));
    }
    items.push(("confidence", format!("{:.2}", verdict.confidence), "share that was seen".to_owned()));
    out.write_all(b"<dl class=\"figures\">\n")?;
    for (name, value, remark) in items {
        let remark = if remark.is_empty() { remark } else { format!(" <small>{remark}</small>") };
        writeln!(out, "<div><dt>{name}</dt><dd>{value}{remark}</dd></div>")?;
    }
    out.write_all(b"</dl>\n")
}

/// The period as one bar by cause, with a list of the shares.
fn bar(out: &mut impl Write, waits: &Seconds) -> io::Result<()> {
    let total = waits.total();
    if !(total > 0.0 && total.is_finite()) {
        return Ok(());
    }
    out.write_all(
        b"<svg class=\"share\" viewBox=\"0 0 1000 20\" preserveAspectRatio=\"none\" role=\"img\" \
          aria-label=\"Time by cause, as listed below\">\n",
    )?;
    let mut x = 0.0;
    for (cause, time) in waits.ranked() {
        let width = time / total * 1000.0;
        writeln!(
            out,
            "<rect class=\"{}\" x=\"{x:.2}\" width=\"{width:.2}\" y=\"0\" height=\"20\"/>",
            cause.name()
        )?;
        x += width;
    }
    out.write_all(b"</svg>\n<ul class=\"shares\">\n")?;
    for (cause, time) in waits.ranked() {
        writeln!(
            out,
            "<li><svg class=\"key\" viewBox=\"0 0 10 10\" aria-hidden=\"true\"><rect class=\"{}\" width=\"10\" \
             height=\"10\"/></svg>{} <b>{}</b> <small>{}</small></li>",
            cause.name(),
            words::cause(cause),
            words::percent(time / total),
            words::seconds(time),
        )?;
    }
    out.write_all(b"</ul>\n")
}

fn line(out: &mut impl Write, advice: &Advice) -> io::Result<()> {
    let untried = if advice.is_tried { "" } else { " <small>not tried by this project</small>" };
    writeln!(
        out,
        "<li><span class=\"system\">{}{untried}</span><pre>{}</pre></li>",
        markup(advice.system),
        markup(&advice.line)
    )
}
