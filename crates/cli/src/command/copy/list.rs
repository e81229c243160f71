//! `copy --list`, and `copy --resume` without endpoints: the journals of interrupted copies.

use std::time::Duration;

use clap::Parser;
use job::journals::{self, Interrupted};
use job::{Host, Resume, units};
use serde_json::{Value, json};

use super::args::Args;
use super::host::Terminal;
use crate::args::{Cli, Command};
use crate::context::Context;
use crate::error::{Exit, Failure};
use crate::output;

/// The interrupted copies of this user, as JSON.
pub(crate) fn found(context: &Context) -> Vec<Value> {
    let state = Terminal::new(context).state_dir();
    state.map(|state| journals::list(&state).iter().map(object).collect()).unwrap_or_default()
}

/// Prints the journals in the state directory, after the removal of expired ones.
pub(super) fn print(context: &Context) -> Result<Exit, Failure> {
    let host = Terminal::new(context);
    let state = host.state_dir()?;
    journals::expire(&host, &state);
    let found = journals::list(&state);
    if context.json {
        let copies: Vec<_> = found.iter().map(object).collect();
        output::json(&json!({ "schema": output::SCHEMA, "copies": copies }));
    } else if found.is_empty() {
        context.remark("no interrupted copies");
    } else {
        found.iter().flat_map(lines).for_each(|line| output::line(&line));
    }
    Ok(Exit::Done)
}

fn object(journal: &Interrupted) -> Value {
    json!({
        "id": journal.id,
        "source": journal.label.source,
        "destination": journal.label.destination,
        "src_offset": journal.label.src_offset,
        "dst_offset": journal.label.dst_offset,
        "bytes": journal.label.bytes,
        "done_bytes": journal.done_bytes(),
        "age_s": journal.age().as_secs(),
        "command": journal.command(),
    })
}

fn lines(journal: &Interrupted) -> [String; 2] {
    let (done, all) = (journal.done_bytes(), journal.label.bytes);
    let percent = if all == 0 { 0.0 } else { done as f64 / all as f64 * 100.0 };
    let Interrupted { id, label, .. } = journal;
    let command = journal.command();
    let command = command.unwrap_or_else(|| {
        format!("an earlier release made it: its command line with --resume {id} goes on with it")
    });
    [
        format!(
            "{id}  {} of {} ({percent:.0}%), {} ago  {} -> {}",
            units::bytes(done),
            units::bytes(all),
            age(journal.age()),
            output::printable_name(&label.source),
            output::printable_name(&label.destination)
        ),
        format!("  {command}"),
    ]
}

fn age(age: Duration) -> String {
    const DAY: u64 = 86_400;
    match age.as_secs() {
        seconds if seconds >= 2 * DAY => format!("{} days", seconds / DAY),
        seconds => units::duration(Duration::from_secs(seconds.max(1))),
    }
}

/// The arguments of the interrupted copy that `--resume` without endpoints names, from its journal in the state
/// directory. Changes to the directory in which that copy was begun.
pub(super) fn resumed(context: &Context, args: &Args) -> Result<Args, Failure> {
    let wanted = args.request().resume;
    let state = Terminal::new(context).state_dir()?;
    let all = journals::list(&state);
    let found = match &wanted {
        Resume::Named(name) => all.iter().find(|journal| journal.id == *name),
        _ => all.first().filter(|_| all.len() == 1),
    };
    let Some(found) = found else {
        let cause = match (&wanted, all.len()) {
            (Resume::Named(_), _) => "there is no journal of that name",
            (_, 0) => "no copy was interrupted",
            _ => "several copies were interrupted: name one",
        };
        let object = if let Resume::Named(name) = &wanted { name } else { "a copy" };
        return Err(Failure::usage("resume", object, cause).hint(journals::hint(&state, &all)));
    };
    let failed = |cause: String| {
        Failure::failed("resume", found.words(), cause)
            .hint("the whole command line, with --resume and the name")
    };
    let origin =
        found.origin.as_ref().ok_or_else(|| failed("an earlier release made its journal".to_owned()))?;
    let words = found.arguments().unwrap_or_default();
    let parsed = Cli::try_parse_from(&words).map(|cli| cli.command);
    let Ok(Command::Copy(mut before)) = parsed else {
        return Err(failed(format!("its command line is not understood: {}", origin.command)));
    };
    before.take_over(args, &found.id)?;
    std::env::set_current_dir(&origin.directory)
        .map_err(|error| failed(format!("its directory {}: {error}", origin.directory)))?;
    Ok(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_short() {
        for (seconds, text) in [(0, "1.00 s"), (90, "1m30s"), (7200, "2h00m"), (200_000, "2 days")] {
            assert_eq!(age(Duration::from_secs(seconds)), text);
        }
    }
}
