//! Tables in Markdown.

use crate::stats::{Spread, distinct};

/// Spreads by name and place: the lines of a figure, and the rows of a table.
#[derive(Debug)]
pub(crate) struct Series {
    pub(crate) places: Vec<String>,
    pub(crate) lines: Vec<Line>,
}

/// One line of a [`Series`], with a value for each place.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) values: Vec<Option<Spread>>,
}

impl Series {
    /// Lines in the order of the names in `cells`, which are names, places and spreads.
    pub(crate) fn new<P: PartialEq>(
        places: &[P],
        show: impl Fn(&P) -> String,
        cells: &[(String, P, Spread)],
    ) -> Self {
        let line = |name: String| {
            let value = |place: &P| {
                let cell = cells.iter().find(|(known, at, _)| *known == name && at == place);
                cell.map(|(_, _, spread)| *spread)
            };
            Line { values: places.iter().map(value).collect(), name }
        };
        let names = distinct(cells.iter().map(|(name, _, _)| name.clone()));
        Self { places: places.iter().map(show).collect(), lines: names.into_iter().map(line).collect() }
    }

    /// A row for each line, under the heading `corner`.
    pub(crate) fn table(&self, corner: &str) -> String {
        let mut table = Table::new(&format!("{corner} | {}", self.places.join(" | ")));
        for line in &self.lines {
            let cells = line.values.iter().map(|value| value.map(|value| value.show()).unwrap_or_default());
            table.row(std::iter::once(line.name.clone()).chain(cells).collect());
        }
        table.render()
    }
}

#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// The cells of the heading are separated as in Markdown: ` | `.
    pub(crate) fn new(heading: &str) -> Self {
        Self { rows: vec![heading.split(" | ").map(str::to_owned).collect()] }
    }

    /// Adds a row with one cell per column.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.rows[0].len(), "a cell for each column");
        self.rows.push(cells);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.len() == 1
    }

    /// The Markdown text with aligned columns, readable in a terminal too.
    pub(crate) fn render(&self) -> String {
        let columns = self.rows[0].len();
        let widths: Vec<usize> = (0..columns)
            .map(|column| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
            .collect();
        let line = |row: &Vec<String>| {
            let cells: Vec<String> =
                row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width + 2)).collect();
        let mut text = line(&self.rows[0]) + &format!("|{}|\n", rule.join("|"));
        text.extend(self.rows[1..].iter().map(line));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new("row | MB/s");
        table.row(vec!["plain".into(), "7".into()]);
        assert_eq!(table.render(), "| row   | MB/s |\n|-------|------|\n| plain | 7    |\n");
    }
}
