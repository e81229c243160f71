//! The command line: one clap definition, the source of the parser, the help, the manual and the completions.

use clap::builder::StyledStr;
use clap::{CommandFactory, Parser, Subcommand};

use crate::command::{
    analyze, bench, check, compare, completions, config, copy, ctl, demo, doctor, import, info, key, lab, ls,
    man, net, paths, serve, status, torture, volume, watch,
};

/// A static program says so: names resolve otherwise.
const VERSION: &str = if cfg!(target_feature = "crt-static") {
    concat!(env!("CARGO_PKG_VERSION"), " (static: names resolve by files and DNS only)")
} else {
    env!("CARGO_PKG_VERSION")
};

/// Commands listed under "Research" in the help.
const RESEARCH: &[&str] = &["bench", "lab", "net"];

/// Moves block data between disks: iSCSI target and initiator in user space, io_uring data mover.
#[derive(Debug, Parser)]
#[command(
    name = "hikyaku",
    version = VERSION,
    about,
    after_help = AFTER_HELP,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub(crate) struct Cli {
    /// Print only what was asked for, warnings and errors
    ///
    /// No progress, no remarks, no log of a server without warnings, and no summary of a copy or comparison that succeeds: its exit
    /// code says so.
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Serve(serve::Args),
    Copy(copy::Args),
    Compare(compare::Args),
    Ls(ls::Args),
    Info(info::Args),
    Key(key::Args),
    Volume(volume::Args),
    Status(status::Args),
    Watch(watch::Args),
    Ctl(ctl::Args),
    Check(check::Args),
    Config(config::Args),
    Import(import::Args),
    Paths(paths::Args),
    Doctor(doctor::Args),
    Analyze(analyze::Args),
    Demo(demo::Args),
    Bench(bench::Args),
    Lab(lab::Args),
    Net(net::Args),
    Torture(torture::Args),
    Completions(completions::Args),
    Man(man::Args),
}

impl Command {
    pub(crate) fn json(&self) -> bool {
        match self {
            Self::Copy(args) => args.json,
            Self::Compare(args) => args.json,
            Self::Ls(args) => args.json,
            Self::Info(args) => args.json,
            Self::Key(args) => args.json(),
            Self::Volume(args) => args.json(),
            Self::Status(args) => args.json,
            Self::Watch(args) => args.json,
            Self::Ctl(args) => args.json,
            Self::Check(args) => args.json,
            Self::Config(args) => args.json(),
            Self::Paths(args) => args.json,
            Self::Doctor(args) => args.json,
            Self::Analyze(args) => args.json,
            Self::Demo(args) => args.json,
            Self::Bench(args) => args.json(),
            Self::Lab(args) => args.is_json(),
            Self::Net(args) => args.json(),
            Self::Torture(args) => args.json,
            Self::Serve(_) | Self::Import(_) | Self::Completions(_) | Self::Man(_) => false,
        }
    }
}

const AFTER_HELP: &str = "\
Endpoints, ENDPOINT[,option=value...] (write a comma in a path twice):
  PATH, file:PATH                     regular file or block device
  iscsi://[user@]host[:port]/iqn/lun  remote LUN; see `hikyaku ls`
  nbd://host[:port]/name              export of an NBD server (qemu-nbd, nbdkit)
  nbd+unix:///name?socket=PATH        the same on this machine
  -                                   standard input or output, in copy only
  mem:SIZE, null:SIZE                 memory; discards writes and reads zeroes
  pattern:SIZE[:SEED]                 reproducible data, read-only
Options of an endpoint:
  any             ro, delay=2ms, limit=100MB/s, iops=N, fault=SPEC, crash=SPEC,
                  log, readahead=SIZE|off
  file or device  size=, create (with size=), grow, format=raw,
                  block-size=512|4096, physical-block=4096
  remote LUN      initiator=IQN, timeout=30s, congestion=NAME of TCP,
                  chap-user=, chap-secret-file=,
                  mutual-chap-user=, mutual-chap-secret-file=,
                  seal=off|offer|require [require if the target's key is known],
                  identity=FILE, peer-key=KEY, psk-file=FILE, suite=NAME,
                  tls=CERTIFICATES
  NBD export      timeout=30s
  sealed volume   volume=luks2, password-file=FILE (its first line),
                  key-file=FILE (all of it) [asked at the terminal],
                  header=FILE (where it is not on the storage);
                  volume=auth: freshness=FILE refuses older states
  plain disk      view=luks2,header=FILE (others see a sealed volume)
Sizes: K M G T are binary, kB MB GB TB decimal.

Exit codes:
  0 done, 1 failed, 2 usage, 3 difference, 4 authentication or seal refused,
  5 unreachable or timed out, 6 refused to protect data, 7 done except for areas
  of the source that cannot be read, 129/130/143 interrupted (by SIGHUP, SIGINT,
  SIGTERM)

Environment:
  LIBISCSI_CHAP_USERNAME, LIBISCSI_CHAP_PASSWORD    CHAP
  LIBISCSI_CHAP_TARGET_USERNAME, LIBISCSI_CHAP_TARGET_PASSWORD
                             mutual CHAP
  HIKYAKU_LOG=debug          logs on stderr
  HIKYAKU_IO=uring|portable  io_uring [default where it works], or epoll and
                             threads
  XDG_CONFIG_HOME, XDG_STATE_HOME, XDG_RUNTIME_DIR
                             where files lie: see hikyaku paths

Examples:
  hikyaku demo                                          try it on loopback
  hikyaku serve disk.img                                offer a file as a disk
  hikyaku copy disk.img iscsi://host/iqn.../0 --verify  copy and read back
  hikyaku ls iscsi://host                               what that host offers?";

const COPY_EXAMPLES: &str = "\
Examples:
  hikyaku copy disk.img /dev/sdx --verify
  hikyaku copy disk.img /dev/sdx --dry-run
  hikyaku copy disk.img iscsi://host/iqn.2026-11.example:disks/0
  hikyaku copy disk.img /dev/sdx --since hash --force
  zstdcat disk.img.zst | hikyaku copy - /dev/sdx --verify";

/// Options of `copy` that `copy -h` leaves to `copy --help`.
const COPY_RARE: &[&str] = &[
    "src_offset",
    "dst_offset",
    "manifest",
    "sparse",
    "remote_copy",
    "offload",
    "impact",
    "depth",
    "chunk",
    "connections",
    "pre",
    "post",
    "report",
    "snapshot",
];

/// The command tree, with a help page that lists everyday commands first.
pub(crate) fn command() -> clap::Command {
    let command = Cli::command().mut_subcommands(|sub| {
        if sub.get_name() != "copy" {
            return sub;
        }
        let all = sub.get_after_help().cloned().unwrap_or_default();
        sub.after_help(COPY_EXAMPLES).after_long_help(all).mut_args(|argument| {
            let is_rare = COPY_RARE.contains(&argument.get_id().as_str());
            argument.hide_short_help(is_rare)
        })
    });
    let template = help_template(&command);
    command.help_template(template)
}

fn help_template(command: &clap::Command) -> StyledStr {
    let width = command.get_subcommands().map(|sub| sub.get_name().len()).max().unwrap_or(0);
    let list = |research: bool| {
        let chosen = command.get_subcommands().filter(|sub| RESEARCH.contains(&sub.get_name()) == research);
        let lines = chosen.map(|sub| {
            let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
            format!("  {:<width$}  {about}\n", sub.get_name())
        });
        lines.collect::<String>()
    };
    StyledStr::from(format!(
        "{{about}}\n\n{{usage-heading}} {{usage}}\n\nCommands:\n{}\nResearch:\n{}\nOptions:\n{{options}}{{after-help}}\n",
        list(false),
        list(true)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn help_lists_everyday_commands_first() {
        let help = command().render_help().to_string();
        let everyday = help.find("\nCommands:\n").unwrap();
        let research = help.find("\nResearch:\n").unwrap();
        let options = help.find("\nOptions:\n").unwrap();
        assert!(everyday < research && research < options, "{help}");
        for name in ["serve", "copy", "compare", "ls", "info", "key", "check", "demo", "completions", "man"] {
            assert!(help[everyday..research].contains(&format!("\n  {name} ")), "{name}\n{help}");
        }
        for name in ["bench", "lab", "net"] {
            assert!(help[research..options].contains(&format!("\n  {name} ")), "{name}\n{help}");
        }
    }

    /// The columns of a terminal that help is written for.
    const COLUMNS: usize = 80;

    #[test]
    fn help_fits_a_terminal_of_80_columns() {
        fn walk(command: &mut clap::Command, wide: &mut Vec<String>) {
            let helps = [command.render_help(), command.render_long_help()].map(|help| help.to_string());
            // As written: lines in columns would be wrapped within a column.
            let after = [command.get_after_help(), command.get_after_long_help()];
            let after: Vec<String> = after.into_iter().flatten().map(ToString::to_string).collect();
            let lines = helps.iter().chain(&after).flat_map(|text| text.lines());
            let too_wide = lines.filter(|line| line.chars().count() > COLUMNS);
            wide.extend(too_wide.map(|line| format!("{}: {line}", command.get_name())));
            command.get_subcommands_mut().for_each(|sub| walk(sub, wide));
        }
        let mut command = command().term_width(COLUMNS);
        command.build();
        let mut wide = Vec::new();
        walk(&mut command, &mut wide);
        assert!(wide.is_empty(), "{}", wide.join("\n"));
    }

    #[test]
    fn copy_h_is_one_page() {
        let mut command = command().term_width(COLUMNS);
        command.build();
        let copy = command.find_subcommand_mut("copy").unwrap();
        for name in COPY_RARE {
            assert!(copy.get_arguments().any(|argument| argument.get_id() == name), "{name}");
        }
        let help = copy.render_help().to_string();
        assert!(help.lines().count() <= 40, "{} lines\n{help}", help.lines().count());
        for option in ["--verify", "--resume", "--since", "--force", "--dry-run", "--json"] {
            assert!(help.contains(option), "{option}\n{help}");
        }
        let long = copy.render_long_help().to_string();
        assert!(long.contains("--offload") && long.contains("--chunk"), "{long}");
    }

    #[test]
    fn help_lists_every_exit_code() {
        let (_, codes) = AFTER_HELP.split_once("Exit codes:\n").unwrap();
        let codes = codes.split("\n\n").next().unwrap().replace("\n ", "");
        let listed: Vec<_> = codes.split(',').filter_map(|code| code.split_whitespace().next()).collect();
        assert_eq!(listed, ["0", "1", "2", "3", "4", "5", "6", "7", "129/130/143", "SIGINT", "SIGTERM)"]);
    }

    #[test]
    fn every_command_and_argument_explains_itself() {
        fn walk(command: &clap::Command) {
            assert!(command.get_about().is_some(), "{}", command.get_name());
            for argument in command.get_arguments() {
                assert!(argument.get_help().is_some(), "{} {}", command.get_name(), argument.get_id());
            }
            command.get_subcommands().for_each(walk);
        }
        walk(&command());
    }
}
