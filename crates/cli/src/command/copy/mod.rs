//! `copy`: parses the options, runs a job of the crate `job`, and prints its outcome.

mod args;
mod dry_run;
mod host;
mod list;
mod operate;

use block::{Location, Spec};
use job::Job;
use job::report::{Record, Report, Requested};
use job::shell::quoted;

pub(crate) use self::args::{Args, Range, Shape, parse_links};
use self::host::{End, Terminal};
pub(crate) use self::list::found as interrupted;
use self::operate::Operated;
use crate::advice;
use crate::context::Context;
use crate::error::{Exit, Failure};
use crate::secret::{parts_of, shown, take_url_secrets};

pub(crate) fn run(context: &Context, args: &Args) -> Result<Exit, Failure> {
    if args.list {
        return list::print(context);
    }
    match &args.source {
        Some(_) => copy(context, args),
        None => copy(context, &list::resumed(context, args)?),
    }
}

fn copy(context: &Context, args: &Args) -> Result<Exit, Failure> {
    let mut record = Record::new();
    let Some(path) = &args.report else { return perform(context, args, &mut record) };
    let report = Report::begin(path)?;
    let result = perform(context, args, &mut record);
    report.end(&Terminal::new(context), &requested(args), &record, result)
}

fn perform(context: &Context, args: &Args, record: &mut Record) -> Result<Exit, Failure> {
    let [source, destination] = args.ends();
    let sessions = args.shape.sessions();
    let source = End::parse(context, source, sessions)?;
    let destination = End::parse(context, destination, sessions)?;
    check_scheme(&source, "copy from", "the file")?;
    check_scheme(&destination, "copy to", "a new file")?;
    check_directory(&source, &destination)?;
    let request = args.request();
    let data_on_stdout = destination.named.spec.location == Location::Stdio;
    let host = Terminal { context, data_on_stdout };
    let mut job = Job::new(&host, &request, Box::new(source), Box::new(destination));
    if args.dry_run {
        let findings = job.inspect()?;
        return Ok(dry_run::print(context, &job, &findings));
    }
    let _operated = Operated::begin(context, args.ends().map(shown), request.plan.rate.clone());
    Ok(job.copy(record)?.ending())
}

/// Refuses an address without its scheme. As a destination it would become a file of that name.
fn check_scheme(end: &End<'_>, attempted: &str, kind: &str) -> Result<(), Failure> {
    let named = &end.named;
    let Some(path) = named.path().filter(|path| !path.exists()) else { return Ok(()) };
    let text = path.display().to_string();
    if advice::meant_url(&text, false).is_none() && advice::host_of_colons(&text).is_none() {
        return Ok(());
    }
    let hint = format!("{}; ./{text} for {kind} of this name", advice::missing(path));
    Err(Failure::usage(attempted, named.text.clone(), "it is an address without a scheme, and no file")
        .hint(hint))
}

/// Refuses a directory as the destination, with the file in it that is meant, as for cp(1).
fn check_directory(source: &End<'_>, destination: &End<'_>) -> Result<(), Failure> {
    let Some(directory) = destination.named.path().filter(|path| path.is_dir()) else { return Ok(()) };
    let name = source.named.path().and_then(|path| path.file_name()).unwrap_or("disk.img".as_ref());
    let file = directory.join(name).display().to_string();
    Err(Failure::usage("copy to", destination.named.text.clone(), "it is a directory").hint(quoted(&file)))
}

fn requested(args: &Args) -> Requested {
    let ends = args.ends();
    Requested {
        source: shown(ends[0]),
        destination: shown(ends[1]),
        src_offset: args.range.src_offset,
        dst_offset: args.range.dst_offset,
        command: command_line(ends),
    }
}

/// The arguments of this process, without secrets.
fn command_line(endpoints: [&str; 2]) -> Vec<String> {
    let words = std::env::args_os().skip(1);
    let words = words.map(|word| {
        let clean = take_url_secrets(&word.to_string_lossy()).0;
        if endpoints.contains(&clean.as_str()) { without_create(&shown(&clean)) } else { clean }
    });
    std::iter::once("hikyaku".to_owned()).chain(words).collect()
}

/// The endpoint without `create` and its `size=`, if its file exists now: `create` would refuse it.
fn without_create(words: &str) -> String {
    let exists = Spec::parse(words).is_ok_and(|spec| {
        spec.flag("create") == Ok(true) && matches!(&spec.location, Location::File(path) if path.exists())
    });
    if !exists {
        return words.to_owned();
    }
    let is_kept = |part: &&str| !["create", "size"].contains(&part.split('=').next().unwrap_or_default());
    let mut parts = parts_of(words).into_iter();
    parts.next().into_iter().chain(parts.filter(is_kept)).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    #[test]
    fn a_file_that_exists_is_not_created_by_the_repeated_command() {
        let directory = tempfile::tempdir().unwrap();
        let [path, other] = ["b,c.img", "d.img"].map(|name| directory.path().join(name));
        std::fs::write(&path, "x").unwrap();
        let words = |path: &std::path::Path| path.to_str().unwrap().replace(',', ",,");
        let of = |path: &std::path::Path, options: &str| without_create(&format!("{}{options}", words(path)));
        assert_eq!(of(&path, ",create,size=2G"), words(&path));
        assert_eq!(of(&path, ",create=yes,log,size=2G"), words(&path) + ",log");
        assert_eq!(of(&path, ",size=1M"), words(&path) + ",size=1M");
        assert_eq!(of(&other, ",create,size=2G"), words(&other) + ",create,size=2G");
    }

    #[test]
    fn a_report_is_asked_for_without_secrets() {
        let words =
            ["hikyaku", "copy", "a.img", "iscsi://me%secret@host/iqn.2026-11.x:y/0", "--dst-offset", "4K"];
        let Command::Copy(args) = Cli::parse_from(words).command else { unreachable!() };
        let requested = requested(&args);
        assert_eq!(requested.destination, "iscsi://me@host/iqn.2026-11.x:y/0");
        let ends = (requested.source.as_str(), requested.src_offset, requested.dst_offset);
        assert_eq!(ends, ("a.img", 0, 4096));
    }
}
