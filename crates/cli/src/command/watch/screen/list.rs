//! The list of connections, and the verdict of the chosen one.

use monitor::event::Side;
use monitor::model::SURE;
use monitor::probe::{Figures, LOOKED_FOR, Session};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::widgets::{Block, Borders, Paragraph, Row, Table, TableState, Wrap};

use super::{State, fitted, height};
use crate::command::watch::engine::{Engine, PERIOD, figures};
use crate::command::watch::tune::Tuning;
use crate::command::watch::words::{self, Limit, rate, time};
use crate::output;

const HEADING: [&str; 6] = ["OTHER END", "HERE", "PROCESS", "RATE", "RTT", "LIMIT"];
/// 80 columns with the spaces between them. The other end has an IPv4 address with its port, the limit its longest word.
const WIDTHS: [Constraint; 6] = [
    Constraint::Fill(21),
    Constraint::Length(4),
    Constraint::Fill(15),
    Constraint::Length(11),
    Constraint::Length(7),
    Constraint::Length(17),
];
/// On a narrower terminal a connection has two lines.
const WIDE: u16 = 80;
/// Below this width the limit has a line of its own.
const NARROW: u16 = 40;

pub(super) fn draw(
    frame: &mut Frame<'_>,
    area: Rect,
    engine: &Engine,
    state: &State,
    tuning: Option<&Tuning>,
) {
    let sessions = engine.sessions.all();
    if sessions.is_empty() {
        let text = format!(
            "No iSCSI connection.\n\nOne that begins appears here, if it has {LOOKED_FOR}. Another one: hikyaku watch \
             ADDR:PORT, or hikyaku watch PID, also of another network namespace (container, virtual machine's helper)."
        );
        frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: false }), area);
        return;
    }
    let lines = if area.width >= WIDE { 1 } else { 2 };
    let chosen = sessions.iter().position(|session| Some(session.id) == state.chosen);
    let text = below(engine, chosen.and_then(|at| sessions.get(at)), tuning);
    // The list keeps what it needs, at least half.
    let list = (sessions.len() as u16).saturating_mul(lines).saturating_add(u16::from(lines == 1));
    let most = area.height.saturating_sub(list.min(area.height / 2));
    let text = fitted(&text, area.width, most.saturating_sub(1));
    let below = height(&text, area.width).saturating_add(1).min(most);
    let [list, lower] = Layout::vertical([Constraint::Min(0), Constraint::Length(below)]).areas(area);
    let table = if lines == 1 {
        let rows = sessions.iter().map(|session| row(session, engine, state));
        let heading = Row::new(HEADING).style(Style::new().add_modifier(Modifier::BOLD));
        Table::new(rows, WIDTHS).header(heading)
    } else {
        let rows = sessions.iter().map(|session| narrow(session, engine, state, area.width));
        Table::new(rows, [Constraint::Min(0)])
    };
    let table = table.row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut place = TableState::default().with_selected(chosen);
    frame.render_stateful_widget(table, list, &mut place);
    let block = Block::new().borders(Borders::TOP).title("What limits it");
    frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: false }).block(block), lower);
}

/// The verdict of a connection, and what else is to be said.
fn below(engine: &Engine, session: Option<&Session>, tuning: Option<&Tuning>) -> String {
    let mut lines = Vec::new();
    if engine.sessions.left_out > 0 {
        lines.push(format!("{} more connections are not watched.", engine.sessions.left_out));
    }
    for message in tuning.iter().flat_map(|tuning| &tuning.messages) {
        lines.extend(message.split('\n').map(|line| output::printable_name(line).into_owned()));
    }
    if let Some(session) = session {
        lines.extend(words::verdict(engine, session));
    }
    lines.join("\n")
}

/// The limit with its share where there is room.
fn limit(session: &Session, engine: &Engine, room: usize) -> String {
    match words::limit(engine, session) {
        _ if session.ended => "ended".to_owned(),
        Limit::None => "-".to_owned(),
        Limit::Awaited => format!("after {} s", PERIOD.as_secs()),
        Limit::Known { word, percent, confidence } => {
            let doubt = if confidence < SURE { "?" } else { "" };
            let forms = [format!("{word} {percent:.0}%{doubt}"), format!("{word}{doubt}")];
            forms.into_iter().find(|form| form.len() <= room).unwrap_or_else(|| word.to_owned())
        }
    }
}

fn here(session: &Session) -> &'static str {
    if session.side == Side::Initiator { "init" } else { "targ" }
}

/// The larger rate with its direction.
fn larger(figures: &Figures) -> String {
    let (sent, received) = (figures.sent_bytes_per_s, figures.received_bytes_per_s);
    if sent.unwrap_or(0.0) >= received.unwrap_or(0.0) {
        format!("> {}", rate(sent))
    } else {
        format!("< {}", rate(received))
    }
}

fn style(session: &Session, state: &State) -> Style {
    if session.ended { state.colour(Color::DarkGray) } else { Style::new() }
}

fn row<'a>(session: &Session, engine: &Engine, state: &State) -> Row<'a> {
    let figures = figures(session).unwrap_or_default();
    let cells = [
        session.ends.remote.to_string(),
        here(session).to_owned(),
        process(session),
        larger(&figures),
        time(figures.rtt_us),
        limit(session, engine, 17),
    ];
    Row::new(cells).style(style(session, state))
}

/// Who on the first line; what and the limit on the second.
fn narrow<'a>(session: &Session, engine: &Engine, state: &State, width: u16) -> Row<'a> {
    let figures = figures(session).unwrap_or_default();
    let first = format!("{} {} {}", process(session), here(session), session.ends.remote);
    let second = if width >= NARROW {
        let figures = format!("  {:<11} {:<7} ", larger(&figures), time(figures.rtt_us));
        let room = usize::from(width).saturating_sub(figures.len());
        figures + &limit(session, engine, room)
    } else {
        format!("  {}", limit(session, engine, usize::from(width).saturating_sub(2)))
    };
    Row::new([format!("{first}\n{second}")]).height(2).style(style(session, state))
}

/// The number comes first: where there is no room the name is cut.
fn process(session: &Session) -> String {
    match (&session.kernel, &session.owner) {
        (Some(kernel), _) => output::printable_name(&kernel.name).into_owned(),
        (None, Some(owner)) => format!("{} {}", owner.pid, output::printable_name(&owner.name)),
        (None, None) => "-".to_owned(),
    }
}
