//! `watch` on a terminal: a list of connections and a page for each.

mod detail;
mod list;

use std::io;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Wrap};
use ratatui::{DefaultTerminal, Frame};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::Args;
use super::engine::Engine;
use super::lines;
use super::tune::Tuning;
use crate::context::Context;
use crate::error::Failure;
use crate::units;

/// Between two pictures, if no key is pressed.
const DRAW_INTERVAL: Duration = Duration::from_millis(250);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Page {
    List,
    Detail,
}

/// What the user has chosen.
#[derive(Debug)]
struct State {
    page: Page,
    /// Number of the chosen connection.
    chosen: Option<u32>,
    shows_help: bool,
    has_colour: bool,
}

impl State {
    /// Keeps the choice on a connection that exists.
    fn settle(&mut self, ids: &[u32]) {
        if !self.chosen.is_some_and(|id| ids.contains(&id)) {
            self.chosen = ids.first().copied();
            self.page = Page::List;
        }
    }

    fn step(&mut self, ids: &[u32], forward: bool) {
        let Some(at) = self.chosen.and_then(|id| ids.iter().position(|other| *other == id)) else { return };
        let next = if forward { at.saturating_add(1).min(ids.len() - 1) } else { at.saturating_sub(1) };
        self.chosen = ids.get(next).copied();
    }

    /// Returns `false` to end.
    fn on_key(&mut self, key: KeyEvent, ids: &[u32]) -> bool {
        if key.kind == KeyEventKind::Release {
            return true;
        }
        let is_interrupt = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
        if is_interrupt || key.code == KeyCode::Char('q') {
            return false;
        }
        if std::mem::take(&mut self.shows_help) {
            return true;
        }
        match key.code {
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.shows_help = true,
            KeyCode::Down | KeyCode::Right | KeyCode::Char('j') | KeyCode::Tab => self.step(ids, true),
            KeyCode::Up | KeyCode::Left | KeyCode::Char('k') | KeyCode::BackTab => self.step(ids, false),
            KeyCode::Enter if self.chosen.is_some() => {
                self.page = if self.page == Page::List { Page::Detail } else { Page::List };
            }
            KeyCode::Esc | KeyCode::Backspace => self.page = Page::List,
            _ => {}
        }
        true
    }

    fn colour(&self, colour: Color) -> Style {
        if self.has_colour { Style::new().fg(colour) } else { Style::new() }
    }
}

pub(super) fn run(
    context: &Context,
    args: &Args,
    engine: &mut Engine,
    tuning: &mut Option<Tuning>,
) -> Result<(), Failure> {
    let failed = |error: io::Error| {
        let failure = Failure::failed("use", "the terminal", error);
        failure.hint("hikyaku watch | cat prints lines")
    };
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let result = draw_until_end(context, args, engine, tuning, &mut terminal);
    ratatui::restore();
    for message in tuning.iter().flat_map(|tuning| &tuning.messages) {
        context.remark(message);
    }
    let shown = lines::summary(engine);
    result.map_err(|error| match error {
        End::Failed(failure) => failure,
        End::Terminal(error) => failed(error),
    })?;
    shown
}

enum End {
    Failed(Failure),
    Terminal(io::Error),
}

fn draw_until_end(
    context: &Context,
    args: &Args,
    engine: &mut Engine,
    tuning: &mut Option<Tuning>,
    terminal: &mut DefaultTerminal,
) -> Result<(), End> {
    let has_colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let mut state = State { page: Page::List, chosen: None, shows_help: false, has_colour };
    // Messages of tuning go to the picture, not to the terminal under it.
    let silent = Context { quiet: true, ..Context::default() };
    let mut draw_next = Instant::now();
    while !context.stop.is_requested() && args.limit.is_none_or(|limit| engine.elapsed() < limit) {
        engine.step().map_err(End::Failed)?;
        if let Some(tuning) = &mut *tuning {
            tuning.step(&silent, engine);
        }
        let ids: Vec<u32> = engine.sessions.all().iter().map(|session| session.id).collect();
        state.settle(&ids);
        if Instant::now() >= draw_next {
            terminal.draw(|frame| draw(frame, engine, &state, tuning.as_ref())).map_err(End::Terminal)?;
            draw_next = Instant::now() + DRAW_INTERVAL;
        }
        let pause = engine.pause().min(draw_next.saturating_duration_since(Instant::now()));
        if !wait(pause).map_err(End::Terminal)? {
            return Ok(());
        }
        if event::poll(Duration::ZERO).map_err(End::Terminal)? {
            match event::read().map_err(End::Terminal)? {
                Event::Key(key) if !state.on_key(key, &ids) => return Ok(()),
                Event::Key(_) | Event::Resize(..) => draw_next = Instant::now(),
                _ => {}
            }
        }
    }
    Ok(())
}

/// Waits for a key, a signal or the end of `pause`. `false`: the terminal is gone; the library that reads keys would read
/// its end for ever.
fn wait(pause: Duration) -> io::Result<bool> {
    let pause = Timespec::try_from(pause).map_err(io::Error::other)?;
    let terminal = io::stdout();
    let mut about = [PollFd::new(&terminal, PollFlags::IN)];
    match poll(&mut about, Some(&pause)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(!about[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL))
}

fn draw(frame: &mut Frame<'_>, engine: &Engine, state: &State, tuning: Option<&Tuning>) {
    let rows = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]);
    let [top, page] = rows.areas(frame.area());
    title(frame, top, engine, state);
    if state.shows_help {
        frame.render_widget(Paragraph::new(HELP).wrap(Wrap { trim: false }), page);
        return;
    }
    let session = engine.sessions.all().iter().find(|session| Some(session.id) == state.chosen);
    match (state.page, session) {
        (Page::Detail, Some(session)) => detail::draw(frame, page, engine, session, state),
        _ => list::draw(frame, page, engine, state, tuning),
    }
}

fn title(frame: &mut Frame<'_>, area: Rect, engine: &Engine, state: &State) {
    let count = engine.sessions.all().iter().filter(|session| !session.ended).count();
    let ended = engine.sessions.all().len() - count;
    let ended = if ended > 0 { format!(", {ended} ended") } else { String::new() };
    let text = format!("hikyaku watch  {count} open{ended}");
    let keys = match state.page {
        Page::List => ["arrows choose  Enter details  ? help  q quit", "? help  q quit", "q quit"],
        Page::Detail => ["arrows others  Enter list  ? help  q quit", "? help  q quit", "q quit"],
    };
    let room =
        |keys: &&str| usize::from(area.width).checked_sub(text.len() + keys.len()).filter(|room| *room > 0);
    let keys = keys.iter().find_map(|keys| Some((room(keys)?, keys)));
    let line = match keys {
        Some((room, keys)) => format!("{text}{}{keys}", " ".repeat(room)),
        None => text,
    };
    frame.render_widget(Line::from(line).style(Style::new().add_modifier(Modifier::REVERSED)), area);
}

/// Lines that a text takes where words are wrapped at `width` columns.
fn height(text: &str, width: u16) -> u16 {
    let width = usize::from(width).max(1);
    let lines = text.split('\n').map(|line| {
        let (mut lines, mut used) = (1, 0);
        for word in line.split(' ') {
            let word = word.chars().count();
            let with_space = if used == 0 { word } else { used + 1 + word };
            if with_space <= width {
                used = with_space;
            } else {
                // A word longer than a line begins on a new one and goes over several.
                lines += usize::from(used > 0) + word.saturating_sub(1) / width;
                used = (word.saturating_sub(1)) % width + 1;
            }
        }
        lines
    });
    u16::try_from(lines.sum::<usize>()).unwrap_or(u16::MAX)
}

/// As many lines of a text as `rows` rows of the screen show whole; the last row says how many are missing and where they
/// are.
fn fitted(text: &str, width: u16, rows: u16) -> String {
    if height(text, width) <= rows {
        return text.to_owned();
    }
    let lines: Vec<&str> = text.split('\n').collect();
    let rest = |shown: usize| {
        let hidden = units::counted((lines.len() - shown) as u64, "more line");
        format!("{hidden}: q prints all; or hikyaku watch --json")
    };
    let fits = |shown: &usize| {
        let whole = [&lines[..*shown], &[&*rest(*shown)]].concat().join("\n");
        height(&whole, width) <= rows
    };
    let shown = (1..lines.len()).rev().find(fits).unwrap_or(0);
    [&lines[..shown], &[&*rest(shown)]].concat().join("\n")
}

/// Lines of at most 76 columns; a narrower terminal wraps them.
const HELP: &str = "\
A connection has a line: the other end, which end is here (init, targ), the
process, what it sends (>) or receives (<), its round trip, and its limit.

send queue   what the program has written: waiting for acknowledgements (sent)
             and unsent. Its memory is capped by the send buffer.
cwnd         congestion window: what TCP lets be in flight on this path
window       receive window: what the other end lets be in flight

The limit is the cause that held back data for most of the time. Without the
packets some causes look alike: then the candidates are named. A capture shows
more: hikyaku analyze. A ? after the limit: confidence below 0.8.

arrows, j, k  another connection        Enter  details, and back to the list
Esc           the list                  ?      this page
q, Ctrl-C     end";

#[cfg(test)]
mod tests {
    use super::*;

    fn key(code: KeyCode) -> KeyEvent {
        KeyEvent::new(code, KeyModifiers::NONE)
    }

    #[test]
    fn wrapped_text_has_its_height() {
        for (text, width, lines) in [
            ("", 10, 1),
            ("one two", 7, 1),
            ("one two", 6, 2),
            ("one two three\nfour", 7, 3),
            ("abcdefghij", 4, 3),
            ("a abcdefgh b", 4, 4),
        ] {
            assert_eq!(height(text, width), lines, "{text} at {width}");
        }
    }

    #[test]
    fn what_a_screen_does_not_show_is_counted() {
        assert!(height(HELP, 80) <= 23, "the help has {} rows", height(HELP, 80));
        let text = "first\nsecond\nthird\nfourth";
        assert_eq!(fitted(text, 80, 4), text);
        for (rows, shown, hidden) in [(3, "first\nsecond\n", 2), (2, "first\n", 3), (1, "", 4), (0, "", 4)] {
            let fitted = fitted(text, 80, rows);
            assert_eq!(fitted, format!("{shown}{hidden} more lines: q prints all; or hikyaku watch --json"));
            assert!(height(&fitted, 80) <= rows.max(1));
        }
        // A wrapped line counts with all of its rows.
        assert_eq!(fitted(&format!("{}\nb\nc", "a ".repeat(100)), 80, 4).matches('\n').count(), 1);
    }

    #[test]
    fn keys_move_and_end() {
        let ids = [3, 5, 9];
        let mut state = State { page: Page::List, chosen: None, shows_help: false, has_colour: false };
        assert!(state.on_key(key(KeyCode::Enter), &[]) && state.page == Page::List);
        state.settle(&ids);
        for (code, chosen) in
            [(KeyCode::Up, 3), (KeyCode::Down, 5), (KeyCode::Down, 9), (KeyCode::Down, 9), (KeyCode::Up, 5)]
        {
            assert!(state.on_key(key(code), &ids));
            assert_eq!(state.chosen, Some(chosen));
        }
        state.on_key(key(KeyCode::Enter), &ids);
        assert_eq!(state.page, Page::Detail);
        state.on_key(key(KeyCode::Char('?')), &ids);
        assert!(state.shows_help);
        state.on_key(key(KeyCode::Esc), &ids);
        assert!(!state.shows_help && state.page == Page::Detail, "any key leaves the help only");
        // The chosen connection has ended.
        state.settle(&[3, 9]);
        assert_eq!((state.chosen, state.page), (Some(3), Page::List));
        state.settle(&[]);
        assert_eq!(state.chosen, None);
        assert!(!state.on_key(key(KeyCode::Char('q')), &ids));
        assert!(!state.on_key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL), &ids));
    }
}
