//! Two analyses side by side: what changed.

use std::io::{self, Write};

use super::super::escape::markup;
use super::super::{Subject, words};
use super::{details, facts, foot, head, section, verdict};

/// Writes a page about the same load before and after a change: both verdicts, the facts that differ, then each
/// connection's facts, charts and commands. `notes` are those on each of the two captures.
///
/// # Errors
/// Those of `out`.
pub fn compare(
    out: &mut impl Write,
    before: &Subject<'_>,
    after: &Subject<'_>,
    notes: [&[String]; 2],
) -> io::Result<()> {
    let (old, new) = (before.verdict.bytes_per_s, after.verdict.bytes_per_s);
    let change = if old > 0.0 { format!(", {:.2} times", new / old) } else { String::new() };
    head(out, &format!("{} to {}{change}", words::rate(old), words::rate(new)))?;
    out.write_all(b"<div class=\"pair\">\n")?;
    for (name, subject) in [("Before", before), ("After", after)] {
        writeln!(out, "<div><p class=\"ends\">{name}: {}</p>", markup(&subject.flow.source))?;
        verdict::write(out, subject)?;
        out.write_all(b"</div>\n")?;
    }
    out.write_all(b"</div>\n")?;
    differences(out, before, after)?;
    for (name, id, subject) in [("Before", "before", before), ("After", "after", after)] {
        section(out, id, subject)?;
        writeln!(out, "<h2>{name}</h2>")?;
        details(out, subject)?;
    }
    for (title, notes) in ["Notes on what was read before", "Notes on what was read after"].iter().zip(notes)
    {
        verdict::notes(out, title, notes.iter())?;
    }
    foot(out)
}

/// The facts that are not the same, by table and name.
fn differences(out: &mut impl Write, before: &Subject<'_>, after: &Subject<'_>) -> io::Result<()> {
    out.write_all(
        b"<h3>What changed</h3>\n<div class=\"scroll\"><table class=\"list\"><thead><tr><th></th><th>Before</th>\
          <th>After</th></tr></thead>\n",
    )?;
    let (old, new) = (facts::tables(before), facts::tables(after));
    for ((_, old), (_, new)) in old.iter().zip(&new) {
        let value_of = |rows: &facts::Rows, name: &str| {
            rows.iter().find(|row| row.0 == name).map_or("-".to_owned(), |row| row.1.clone())
        };
        let added = new.iter().filter(|row| old.iter().all(|other| other.0 != row.0));
        for (name, _) in old.iter().chain(added) {
            let (one, other) = (value_of(old, name), value_of(new, name));
            if one != other {
                writeln!(
                    out,
                    "<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td></tr>",
                    markup(name),
                    markup(&one),
                    markup(&other)
                )?;
            }
        }
    }
    out.write_all(b"</table></div>\n")
}
