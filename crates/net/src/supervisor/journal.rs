//! Lines of the log that applications cause: what they wrote is made plain, and each kind is limited in rate.

use inet::Time;

/// Lines of one kind within a second.
const LINES_MAX: u64 = 10;
const SECOND_US: u64 = 1_000_000;
/// Of a text that another process has written.
const CHARACTERS_MAX: usize = 200;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Joined,
    Left,
    Refused,
    Memory,
    Faulty,
    Strange,
}

const NAMES: [&str; 6] = [
    "applications that joined",
    "applications that left",
    "applications that were refused",
    "refusals of memory",
    "applications that broke their rings",
    "processes that sent no message of ours",
];

#[derive(Debug)]
pub(super) struct Journal {
    since: Time,
    /// Lines of each kind since then, those that were not logged included.
    lines: [u64; NAMES.len()],
}

impl Journal {
    pub(super) fn new(now: Time) -> Self {
        Self { since: now, lines: [0; NAMES.len()] }
    }

    /// Whether a line may be logged.
    pub(super) fn admits(&mut self, kind: Kind, now: Time) -> bool {
        if self.lines == [0; NAMES.len()] {
            self.since = now;
        }
        let lines = &mut self.lines[kind as usize];
        *lines += 1;
        *lines <= LINES_MAX
    }

    /// At the end of a second: of which kinds how many lines were not logged.
    pub(super) fn settle(&mut self, now: Time) -> Vec<(&'static str, u64)> {
        if self.deadline() > now {
            return Vec::new();
        }
        let lines = std::mem::take(&mut self.lines);
        let more = NAMES.into_iter().zip(lines.map(|lines| lines.saturating_sub(LINES_MAX)));
        more.filter(|(_, more)| *more > 0).collect()
    }

    /// When [`Journal::settle`] has something to do.
    pub(super) fn deadline(&self) -> Time {
        if self.lines == [0; NAMES.len()] { Time::NEVER } else { self.since.after(SECOND_US) }
    }
}

/// A text of another process as part of a line: no control characters, not too long.
pub(super) fn plain(text: &str) -> String {
    let mut plain = String::new();
    for character in text.chars().take(CHARACTERS_MAX) {
        // Unicode has more line ends than control characters.
        match character.is_control() || matches!(character, '\u{2028}' | '\u{2029}') {
            true => plain.extend(character.escape_default()),
            false => plain.push(character),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_beyond_the_rate_are_counted_by_kind() {
        let start = Time(7);
        let mut journal = Journal::new(start);
        assert_eq!(journal.deadline(), Time::NEVER, "nothing wakes an idle supervisor");
        let later = start.after(5 * SECOND_US);
        let logged = (0..25).filter(|_| journal.admits(Kind::Strange, later)).count();
        assert_eq!(logged as u64, LINES_MAX);
        assert!(journal.admits(Kind::Joined, later), "another kind");
        assert_eq!(journal.settle(later.after(SECOND_US - 1)), []);
        assert_eq!(journal.settle(later.after(SECOND_US)), [(NAMES[Kind::Strange as usize], 15)]);
        assert_eq!(journal.deadline(), Time::NEVER);
        assert!(journal.admits(Kind::Strange, later.after(SECOND_US)));
        assert_eq!(journal.settle(later.after(2 * SECOND_US)), []);
    }

    #[test]
    fn what_others_wrote_is_one_line_without_commands_to_a_terminal() {
        let cases = [
            ("unknown variant `\n2026 ERROR forged`", "unknown variant `\\n2026 ERROR forged`"),
            ("\u{1b}[2J\u{7}\r\u{85}\u{2028}", "\\u{1b}[2J\\u{7}\\r\\u{85}\\u{2028}"),
            ("größer \"7\"", "größer \"7\""),
        ];
        for (text, expected) in cases {
            assert_eq!(plain(text), expected);
        }
        assert_eq!(plain(&"x".repeat(1000)).len(), CHARACTERS_MAX);
    }
}
