//! A terminal with a command line in it, by tmux.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::{program, run, wait_until};

const LIMIT: Duration = Duration::from_secs(60);

/// 80 columns and 24 lines.
pub(crate) struct Terminal {
    socket: String,
}

impl Terminal {
    /// Runs `line` by a shell in the directory `home`. `socket` is the name of tmux's server, of this terminal alone.
    pub(crate) fn start(socket: String, home: &Path, line: &str) -> Result<Self> {
        let terminal = Self { socket };
        let mut command = terminal.tmux(&["new-session", "-d", "-x", "80", "-y", "24", line])?;
        command.env("HOME", home).env("XDG_RUNTIME_DIR", home).current_dir(home);
        run(&mut command, LIMIT)?.success()?;
        Ok(terminal)
    }

    pub(crate) fn tmux(&self, arguments: &[&str]) -> Result<Command> {
        let mut command = program("tmux")?;
        command.args(["-L", &self.socket, "-f", "/dev/null"]).args(arguments);
        Ok(command)
    }

    pub(crate) fn screen(&self) -> Result<String> {
        Ok(run(&mut self.tmux(&["capture-pane", "-p"])?, LIMIT)?.success()?.stdout)
    }

    pub(crate) fn press(&self, key: &str) -> Result<()> {
        run(&mut self.tmux(&["send-keys", key])?, LIMIT)?.success().map(drop)
    }

    /// Waits until all words are on the screen.
    pub(crate) fn shows(&self, words: &[&str]) -> Result<String> {
        let mut screen = String::new();
        let shown = wait_until(Duration::from_secs(15), || {
            screen = self.screen()?;
            Ok(words.iter().all(|word| screen.contains(word)))
        });
        shown.with_context(|| format!("{words:?} in\n{screen}"))?;
        Ok(screen)
    }

    /// The process that the shell waits for.
    pub(crate) fn process(&self) -> Result<i32> {
        let pane = run(&mut self.tmux(&["list-panes", "-F", "#{pane_pid}"])?, LIMIT)?.success()?.stdout;
        let pane = pane.trim();
        let children = std::fs::read_to_string(format!("/proc/{pane}/task/{pane}/children"))?;
        let pid = children.split_whitespace().next().context("the shell runs nothing")?;
        Ok(pid.parse()?)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The server of this socket alone.
        if let Ok(mut command) = self.tmux(&["kill-server"]) {
            let _ = run(&mut command, LIMIT);
        }
    }
}
