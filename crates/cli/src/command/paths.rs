//! `paths`: where the program's files lie, for this user and environment.

use serde_json::json;

use crate::error::{Exit, Failure};
use crate::output::{self, Table};
use crate::places::PLACES;

/// Show where configuration, keys, state and journals lie
///
/// Root's files lie in /etc/hikyaku, /var/lib/hikyaku and /run/hikyaku; a user's in ~/.config/hikyaku,
/// ~/.local/state/hikyaku and $XDG_RUNTIME_DIR/hikyaku. $XDG_CONFIG_HOME, $XDG_STATE_HOME and $XDG_RUNTIME_DIR come
/// first for both. Creates nothing.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hikyaku paths         this user's
  sudo hikyaku paths    those of root; the packaged service has its state in
                        /var/lib/hikyaku-service
  hikyaku paths --json | jq -r '.paths[] | select(.exists) | .path'")]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(args: &Args) -> Result<Exit, Failure> {
    let mut table = Table::new(&["what", "path", "exists", "holds"]);
    let mut rows = Vec::new();
    for place in PLACES {
        let path = place.path()?;
        let exists = path.exists();
        let text = path.display().to_string();
        rows.push(json!({ "name": place.name, "path": text, "exists": exists, "holds": place.about }));
        let exists = if exists { "yes" } else { "no" };
        table.row(vec![place.name.to_owned(), text, exists.to_owned(), place.about.to_owned()]);
    }
    if args.json {
        output::json(&json!({ "schema": output::SCHEMA, "paths": rows }));
    } else {
        table.print();
    }
    Ok(Exit::Done)
}
