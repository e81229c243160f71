//! Commands one by one: their three times as figures and as bars.

use std::io::{self, Write};

use super::super::{Subject, words};
use crate::command::{Command, Transfer};
use crate::limits::PAGE_COMMANDS_MAX;

pub(super) fn write(out: &mut impl Write, subject: &Subject<'_>) -> io::Result<()> {
    let commands = subject.commands;
    if commands.is_empty() {
        return Ok(());
    }
    out.write_all(b"<h3>Commands</h3>\n")?;
    let total = subject.flow.commands.max(commands.len() as u64);
    let first: Vec<_> = commands.iter().take(PAGE_COMMANDS_MAX).collect();
    table(out, subject, &format!("The first {} of {total}", first.len()), &first)?;
    if commands.len() > PAGE_COMMANDS_MAX {
        let mut slowest: Vec<_> = commands.iter().collect();
        slowest.sort_by_key(|command| std::cmp::Reverse(command.latency_ns));
        slowest.truncate(PAGE_COMMANDS_MAX);
        let of = if total > commands.len() as u64 {
            format!(" of {} that were kept", commands.len())
        } else {
            String::new()
        };
        table(out, subject, &format!("The {} slowest{of}", slowest.len()), &slowest)?;
    }
    Ok(())
}

fn table(out: &mut impl Write, subject: &Subject<'_>, title: &str, commands: &[&Command]) -> io::Result<()> {
    let whole = |command: &&Command| command.latency_ns.saturating_add(command.tc_ns.unwrap_or(0));
    let longest = commands.iter().map(whole).max().unwrap_or(0).max(1);
    write!(
        out,
        "<div class=\"scroll\"><table class=\"commands\"><caption>{title}</caption><thead><tr><th class=\"number\">At</th>\
         <th class=\"wide\">Command</th><th class=\"number wide\">Data</th><th class=\"number\">Ta</th><th class=\"number\">Tb</th>\
         <th class=\"number\">Tc</th><th>Ta, Tb, Tc</th><th class=\"number more\">Target</th>\
         <th class=\"number more\">R2Ts</th><th class=\"number more\">Bursts</th><th class=\"number more\">Depth</th>\
         <th class=\"more\">Status</th></tr></thead>\n<tbody>\n"
    )?;
    for command in commands {
        row(out, command, subject.series.from_ns, longest)?;
    }
    out.write_all(b"</tbody></table></div>\n")
}

fn row(out: &mut impl Write, command: &Command, from_ns: u64, longest: u64) -> io::Result<()> {
    let at_s = command.at_ns.saturating_sub(from_ns) as f64 / 1e9;
    let to_s = at_s + command.latency_ns as f64 / 1e9;
    let status = match command.status {
        None => "not seen".to_owned(),
        Some(0) => "GOOD".to_owned(),
        Some(2) => "CHECK CONDITION".to_owned(),
        Some(code) => format!("{code:#04x}"),
    };
    let direction = match command.transfer {
        Transfer::Write => "write",
        Transfer::Read => "read",
    };
    write!(
        out,
        "<tr data-from=\"{at_s:.6}\" data-to=\"{to_s:.6}\"><td class=\"number\">{at_s:.4} s</td>\
         <td class=\"wide\" title=\"{direction}, LUN {}, ITT {:#x}, frame {}\">{}</td><td class=\"number wide\">{}</td>",
        command.lun,
        command.itt,
        command.frame,
        words::operation(command.operation),
        words::bytes(command.bytes),
    )?;
    for time in [Some(command.ta_ns), Some(command.tb_ns), command.tc_ns] {
        write!(out, "<td class=\"number\">{}</td>", time.map_or("-".to_owned(), words::nanoseconds))?;
    }
    out.write_all(
        b"<td><svg class=\"times\" viewBox=\"0 0 100 10\" preserveAspectRatio=\"none\" aria-hidden=\"true\">",
    )?;
    let mut x = 0.0;
    for (colour, time) in [("ta", command.ta_ns), ("tb", command.tb_ns), ("tc", command.tc_ns.unwrap_or(0))] {
        let width = time as f64 / longest as f64 * 100.0;
        write!(out, "<rect class=\"{colour}\" x=\"{x:.2}\" width=\"{width:.2}\" height=\"10\"/>")?;
        x += width;
    }
    writeln!(
        out,
        "</svg></td><td class=\"number more\">{}</td><td class=\"number more\">{}</td><td class=\"number more\">{}</td>\
         <td class=\"number more\">{}</td><td class=\"more\">{status}</td></tr>",
        words::nanoseconds(command.target_ns),
        command.r2t_rounds,
        command.bursts.len(),
        command.depth,
    )
}
