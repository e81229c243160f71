//! The list of connections, and the verdict of the chosen one.

use monitor::event::Side;
use monitor::probe::Session;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::widgets::{Block, Borders, Paragraph, Row, Table, TableState, Wrap};

use super::State;
use crate::command::watch::engine::{Engine, figures};
use crate::command::watch::lines::{rate, time};
use crate::command::watch::tune::Tuning;
use crate::output;

const HEADING: [&str; 7] = ["OTHER END", "HERE", "PROCESS", "SENDS", "RECEIVES", "RTT", "LIMIT"];
const WIDTHS: [Constraint; 7] = [
    Constraint::Min(18),
    Constraint::Length(4),
    Constraint::Length(13),
    Constraint::Length(9),
    Constraint::Length(9),
    Constraint::Length(7),
    Constraint::Min(14),
];
/// Lines of the part below the list.
const BELOW: u16 = 9;

pub(super) fn draw(
    frame: &mut Frame<'_>,
    area: Rect,
    engine: &Engine,
    state: &State,
    tuning: Option<&Tuning>,
) {
    let below = BELOW.min(area.height / 2);
    let [list, lower] = Layout::vertical([Constraint::Min(0), Constraint::Length(below)]).areas(area);
    let sessions = engine.sessions.all();
    if sessions.is_empty() {
        let text = "No iSCSI connection.\n\nOne that begins appears here. A connection of another network namespace (container, \
                    virtual machine's helper): hikyaku watch PID. On another port: hikyaku watch ADDR:PORT.";
        frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: false }), list);
        return;
    }
    let rows = sessions.iter().map(|session| row(engine, session, state));
    let heading = Row::new(HEADING).style(Style::new().add_modifier(Modifier::BOLD));
    let table = Table::new(rows, WIDTHS)
        .header(heading)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let chosen = sessions.iter().position(|session| Some(session.id) == state.chosen);
    let mut place = TableState::default().with_selected(chosen);
    frame.render_stateful_widget(table, list, &mut place);

    let mut text = chosen
        .and_then(|at| sessions.get(at))
        .map_or_else(String::new, |session| super::verdict(engine, session));
    for message in tuning.iter().flat_map(|tuning| &tuning.messages) {
        let lines: Vec<_> = message.split('\n').map(output::printable_name).collect();
        text = format!("{}\n{text}", lines.join("\n"));
    }
    if engine.sessions.left_out > 0 {
        text = format!("{} more connections are not watched.\n{text}", engine.sessions.left_out);
    }
    let block = Block::new().borders(Borders::TOP).title("What limits it");
    frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: false }).block(block), lower);
}

fn row<'a>(engine: &Engine, session: &Session, state: &State) -> Row<'a> {
    let figures = figures(session).unwrap_or_default();
    let verdict = engine.kept(session).and_then(|kept| kept.verdict.as_ref());
    let limit = match verdict {
        _ if session.ended => "ended".to_owned(),
        Some(verdict) => format!("{:.0}% {}", verdict.share * 100.0, verdict.limit.name()),
        None => "-".to_owned(),
    };
    let cells = [
        session.ends.remote.to_string(),
        if session.side == Side::Initiator { "init" } else { "targ" }.to_owned(),
        process(session),
        rate(figures.sent_bytes_per_s),
        rate(figures.received_bytes_per_s),
        time(figures.rtt_us),
        limit,
    ];
    let style = if session.ended { state.colour(Color::DarkGray) } else { Style::new() };
    Row::new(cells).style(style)
}

fn process(session: &Session) -> String {
    match (&session.kernel, &session.owner) {
        (Some(kernel), _) => output::printable_name(&kernel.name).into_owned(),
        (None, Some(owner)) => format!("{} {}", output::printable_name(&owner.name), owner.pid),
        (None, None) => "-".to_owned(),
    }
}
