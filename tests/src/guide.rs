//! Pages of `docs/guides` as scripts: the indented blocks of a page in their order, with its placeholders replaced, typed
//! into bash. A page is exhausted by its case, so that a block that no case types is a failure.

use std::collections::VecDeque;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use crate::{Context, Output, Running, run, scratch};

const INDENT: &str = "    ";

/// An indented block, and the heading above it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    pub section: String,
    pub text: String,
}

/// The indented blocks of a page. Empty lines within a block belong to it.
pub fn blocks(page: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let (mut section, mut is_open, mut empty) = (String::new(), false, 0);
    for line in page.lines() {
        if let Some(typed) = line.strip_prefix(INDENT) {
            if !is_open {
                blocks.push(Block { section: section.clone(), text: String::new() });
            }
            let text = &mut blocks.last_mut().expect("pushed when it was opened").text;
            text.extend(std::iter::repeat_n('\n', if is_open { empty } else { 0 }));
            text.push_str(typed);
            text.push('\n');
            (is_open, empty) = (true, 0);
        } else if line.trim().is_empty() {
            empty += 1;
        } else {
            (is_open, empty) = (false, 0);
            if let Some(heading) = line.strip_prefix("## ") {
                heading.clone_into(&mut section);
            }
        }
    }
    blocks
}

/// Replaces every placeholder, longer ones first. A placeholder that does not occur in any block is an error: the page
/// has changed.
pub fn replaced(blocks: Vec<Block>, places: &[(&str, String)]) -> Result<Vec<Block>> {
    let mut places: Vec<_> = places.iter().collect();
    places.sort_by_key(|(place, _)| std::cmp::Reverse(place.len()));
    for (place, _) in &places {
        ensure!(blocks.iter().any(|block| block.text.contains(place)), "{place} occurs in no block");
    }
    Ok(blocks
        .into_iter()
        .map(|Block { section, text }| Block { section, text: replace(&text, &places) })
        .collect())
}

/// One pass, so that no replacement is searched for placeholders.
fn replace(text: &str, places: &[&(&str, String)]) -> String {
    let (mut done, mut rest) = (String::new(), text);
    while let Some(first) = rest.chars().next() {
        if let Some((place, value)) = places.iter().find(|(place, _)| rest.starts_with(place)) {
            done.push_str(value);
            rest = &rest[place.len()..];
        } else {
            done.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    done
}

/// A shell in a directory of its own, and what is left to type of a page.
#[derive(Debug)]
pub struct Typist {
    left: VecDeque<Block>,
    dir: PathBuf,
    /// The program and its arguments that run the shell as another user.
    pub prefix: Vec<String>,
    pub variables: Vec<(&'static str, String)>,
    limit: Duration,
    _scratch: Option<TempDir>,
}

impl Typist {
    /// A page without `.md`. The shell works in a temporary directory, or in `dir`.
    pub fn new(
        context: &Context,
        page: &str,
        dir: Option<&Path>,
        places: &[(&str, String)],
        limit: Duration,
    ) -> Result<Self> {
        let path = context.repository.join(format!("docs/guides/{page}.md"));
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let left = replaced(blocks(&text), places).with_context(|| path.display().to_string())?.into();
        let holder = if dir.is_none() { Some(scratch()?) } else { None };
        let dir = dir.or(holder.as_ref().map(TempDir::path)).context("one of the two")?.to_owned();
        let bin = dir.join("bin");
        fs::create_dir_all(&bin)?;
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755))?;
        symlink(&context.hikyaku, bin.join("hikyaku"))?;
        let variables = vec![
            ("HOME", dir.display().to_string()),
            ("XDG_STATE_HOME", dir.join("state").display().to_string()),
            ("XDG_CONFIG_HOME", dir.join("config").display().to_string()),
            ("XDG_CACHE_HOME", dir.join("cache").display().to_string()),
            ("XDG_RUNTIME_DIR", dir.display().to_string()),
        ];
        Ok(Self { left, dir, prefix: Vec::new(), variables, limit, _scratch: holder })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn next(&mut self, section: &str) -> Result<Block> {
        let block = self.left.pop_front().with_context(|| format!("no block is left for '{section}'"))?;
        ensure!(block.section == section, "the next block is of '{}', not of '{section}'", block.section);
        Ok(block)
    }

    /// A shell with `script`, as the page's user.
    pub fn shell(&self, script: &str) -> Command {
        let mut command = match self.prefix.split_first() {
            None => Command::new("bash"),
            Some((program, arguments)) => {
                let mut command = Command::new(program);
                command.args(arguments).arg("bash");
                command
            }
        };
        let path = std::env::var("PATH").unwrap_or_default();
        let system = "/usr/sbin:/usr/bin:/sbin:/bin";
        command.args(["-euo", "pipefail", "-c", script]).current_dir(&self.dir);
        command.env("PATH", format!("{}:{system}:{path}", self.dir.join("bin").display()));
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Types the next block, which belongs to `section`, and waits for its end.
    pub fn types(&mut self, section: &str) -> Result<Output> {
        let block = self.next(section)?;
        run(&mut self.shell(&block.text), self.limit)?
            .success()
            .with_context(|| format!("in '{section}':\n{}", block.text))
    }

    /// Types the next block, a single command that does not end, in a terminal of its own.
    pub fn starts(&mut self, section: &str) -> Result<Running> {
        let block = self.next(section)?;
        Running::start(&mut self.shell(&format!("exec {}", block.text)))
    }

    /// Leaves out the next block, which needs what the machine of the tests has not: the caller has checked `words` in it.
    pub fn skips(&mut self, section: &str, words: &str) -> Result<()> {
        let block = self.next(section)?;
        demand!(block.text.contains(words), "no '{words}' in the block that is left out:\n{}", block.text)
    }

    /// Fails if a block was not typed.
    pub fn ends(self) -> Result<()> {
        demand!(self.left.is_empty(), "blocks that were not typed: {:?}", self.left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str =
        "# A\n\n    one HOST\n\n      two\n\ntext\n\n## B\n- item\n    three HOST:1\n    four\n";

    #[test]
    fn blocks_keep_their_order_their_headings_and_inner_empty_lines() {
        let found = blocks(PAGE);
        let found: Vec<_> = found.iter().map(|block| (block.section.as_str(), block.text.as_str())).collect();
        assert_eq!(found, [("", "one HOST\n\n  two\n"), ("B", "three HOST:1\nfour\n")]);
    }

    #[test]
    fn longer_placeholders_win_and_values_are_not_searched() {
        let places = [("HOST", "HOST:1".to_owned()), ("HOST:1", "x".to_owned())];
        let found = replaced(blocks(PAGE), &places).unwrap();
        assert_eq!([&found[0].text[..], &found[1].text], ["one HOST:1\n\n  two\n", "three x\nfour\n"]);
    }

    #[test]
    fn a_placeholder_that_the_page_lost_is_an_error() {
        let error = replaced(blocks(PAGE), &[("PORT", String::new())]).unwrap_err().to_string();
        assert!(error.contains("PORT"), "{error}");
    }

    #[test]
    fn a_block_of_another_section_or_left_over_is_an_error() {
        let left = blocks(PAGE).into();
        let (dir, prefix, variables) = (PathBuf::from("/"), Vec::new(), Vec::new());
        let limit = Duration::from_secs(5);
        let mut typist = Typist { left, dir, prefix, variables, limit, _scratch: None };
        assert!(typist.skips("", "one").is_ok());
        assert!(typist.types("A").is_err());
        let typist = Typist { left: blocks(PAGE).into(), ..typist };
        assert!(typist.ends().is_err());
    }

    /// Links between guides, and to other documents, name files.
    #[test]
    fn links_of_the_guides_lead_to_files() {
        let dir = steps::repository().join("docs/guides");
        let mut links = 0;
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let text = fs::read_to_string(&path).unwrap();
            for part in text.split("](").skip(1) {
                let link = part.split([')', '#']).next().unwrap();
                let is_other = link.is_empty() || link.starts_with("http");
                assert!(is_other || dir.join(link).is_file(), "{}: {link}", path.display());
                links += 1;
            }
        }
        assert!(links > 10, "{links}");
    }
}
