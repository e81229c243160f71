//! hikyaku: moves block data between disks.
//!
//! This crate is the command line: arguments, refusals, progress, exit codes. The copy engine is in `mover`, iSCSI in
//! `node`. Begin with `args.rs`, then `command/`.

mod advice;
mod args;
mod command;
mod config;
mod context;
mod control;
mod endpoint;
mod explain;
#[doc(hidden)]
pub mod fuzz;
mod logging;
mod manual;
mod names;
mod output;
mod passphrase;
mod places;
mod progress;
mod secret;
mod state;
mod sys;
mod terminal;
mod trust;

/// Commands fail as jobs do; the code of an ending is the exit status.
mod error {
    pub(crate) use job::{Ending as Exit, Failure};
}

use std::collections::HashMap;
use std::ffi::OsString;
use std::process::ExitCode;

use clap::FromArgMatches;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use args::{Cli, Command};
use context::Context;
use error::{Exit, Failure};
use job::{protection, units};
use secret::{Password, UrlSecrets, take_url_secrets};
use sys::Shown;

pub fn main() -> ExitCode {
    // Before anything that may take time: until here every user can read a URL's password in /proc/PID/cmdline.
    let (arguments, secrets) = hide_secrets(std::env::args_os().collect());
    let environment = hide_variables();
    if !(secrets.is_empty() && environment.is_empty()) {
        sys::forbid_core_dumps();
    }
    let matches = match args::command().try_get_matches_from(&arguments) {
        Ok(matches) => matches,
        Err(mut error) => {
            advise(&mut error, &arguments);
            return usage(&error, &arguments);
        }
    };
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => return usage(&error, &arguments),
    };
    let json = cli.command.json();
    let words = arguments.iter().skip(1).map(|word| secret::shown(&word.to_string_lossy())).collect();
    let context =
        Context { json, quiet: cli.quiet, arguments: words, secrets, environment, ..Context::default() };
    // A server handles signals itself.
    let is_server = match &cli.command {
        Command::Serve(_) => true,
        Command::Net(args) => args.is_server(),
        _ => false,
    };
    let level = if is_server && !cli.quiet { "info" } else { "warn" };
    let form = match &cli.command {
        Command::Serve(args) => args.log,
        _ if json => Some(logging::Form::Json),
        _ => Some(logging::Form::Text),
    };
    logging::start(level, form);
    if !context.secrets.is_empty() {
        context.warn("a password in a URL is seen by others while the command starts; use chap-secret-file= or LIBISCSI_CHAP_PASSWORD");
    }
    // Watching ends when it is interrupted: there is nothing to finish.
    let prints = !json && !context.quiet && !matches!(cli.command, Command::Watch(_));
    if !is_server && let Err(error) = context::listen(&context, prints) {
        context.warn(&format!("signals cannot be caught ({error}): an interruption will not be orderly"));
    }
    match command::run(&context, cli.command) {
        Ok(exit) => ExitCode::from(exit.code()),
        Err(failure) => {
            report(&failure, json);
            ExitCode::from(failure.ending.code())
        }
    }
}

fn report(failure: &Failure, json: bool) {
    if json {
        output::note_json(&failure.to_json());
    } else {
        output::note(&format!("error: {failure}"));
    }
}

/// Removes passwords from the arguments and overwrites them in the memory that `/proc/PID/cmdline` shows.
fn hide_secrets(arguments: Vec<OsString>) -> (Vec<OsString>, HashMap<String, UrlSecrets>) {
    let mut secrets = HashMap::new();
    let clean = arguments
        .into_iter()
        .map(|argument| {
            let Some(text) = argument.to_str() else { return argument };
            let (clean, taken) = take_url_secrets(text);
            if taken == UrlSecrets::default() {
                return argument;
            }
            for secret in [&taken.password, &taken.target_password].into_iter().flatten() {
                if let Err(error) = sys::scrub(Shown::Arguments, secret.text()) {
                    output::note(&format!(
                        "warning: the password stays visible in the process list: {error}"
                    ));
                }
            }
            secrets.insert(clean.clone(), taken);
            clean.into()
        })
        .collect();
    (clean, secrets)
}

/// Removes passwords from the environment, so that child processes do not get them.
fn hide_variables() -> HashMap<&'static str, Password> {
    let take = |name| sys::take_variable(name).map(|text| (name, Password::new(text)));
    secret::VARIABLES.into_iter().filter_map(take).collect()
}

/// Replaces clap's suggestions for an unknown command where the word says more than its spelling.
fn advise(error: &mut clap::Error, arguments: &[OsString]) {
    if let (ErrorKind::UnknownArgument, Some(ContextValue::String(argument))) =
        (error.kind(), error.get(ContextKind::InvalidArg))
        && let Some(advice) =
            advice::option_of_a_volume(argument, arguments.iter().any(|word| word.as_os_str() == "volume"))
    {
        error.remove(ContextKind::SuggestedArg);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![advice.into()]));
        return;
    }
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else {
        if let Some(example) = example(error.kind(), arguments) {
            let tip = ContextValue::StyledStrs(vec![format!("for example: {example}").into()]);
            error.insert(ContextKind::Suggested, tip);
        }
        return;
    };
    let rest = arguments.iter().skip_while(|argument| *argument != word.as_str()).skip(1);
    let rest: Vec<String> = rest.map(|argument| secret::shown(&argument.to_string_lossy())).collect();
    let Some(command) = advice::command(word, &rest) else { return };
    error.remove(ContextKind::SuggestedSubcommand);
    let tip = ContextValue::StyledStrs(vec![format!("type: {command}").into()]);
    error.insert(ContextKind::Suggested, tip);
}

/// The first example of the help of the command that lacks an argument.
fn example(kind: ErrorKind, arguments: &[OsString]) -> Option<String> {
    if kind != ErrorKind::MissingRequiredArgument {
        return None;
    }
    let mut command = &args::command();
    for word in arguments.iter().skip(1).filter_map(|argument| argument.to_str()) {
        command = command.find_subcommand(word).unwrap_or(command);
    }
    let help = command.get_after_help()?.to_string();
    let (_, examples) = help.split_once("Examples:\n")?;
    let line = examples.lines().next()?.trim();
    // Two spaces begin a comment.
    Some(line.split("  ").next().unwrap_or(line).to_owned())
}

/// Prints help and version on stdout; explains a wrong command line on stderr, as JSON with `--json`.
fn usage(error: &clap::Error, arguments: &[OsString]) -> ExitCode {
    let is_answer = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    if is_answer || !arguments.iter().any(|argument| argument == "--json") {
        let text = error.to_string();
        if is_answer || output::printable(&text) == text {
            // A failure of printing cannot be reported.
            let _ = error.print();
        } else {
            output::note(text.trim_end());
        }
        return ExitCode::from(if is_answer { 0 } else { Exit::Usage.code() });
    }
    let text = error.to_string();
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let lines =
        lines.take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"));
    let (tips, cause): (Vec<&str>, Vec<&str>) = lines.partition(|line| line.starts_with("tip: "));
    let cause = cause.join(" ");
    let cause = cause.strip_prefix("error: ").unwrap_or(&cause);
    let command = arguments.get(1).map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    // "to pass '--x' as a value, use '-- --x'" is seldom meant.
    let hint = match tips.iter().find(|tip| !tip.starts_with("tip: to pass ")) {
        Some(tip) => tip.trim_start_matches("tip: ").to_owned(),
        None if error.kind() == ErrorKind::InvalidSubcommand => "hikyaku --help".to_owned(),
        None => format!("hikyaku {command} --help"),
    };
    report(&Failure::usage("understand the command line of", command, cause).hint(hint), true);
    ExitCode::from(Exit::Usage.code())
}
