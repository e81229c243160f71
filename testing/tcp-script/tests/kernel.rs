//! Every script at the Linux kernel: `cargo test -p hikyaku-tcp-script --test kernel -- --ignored`, as root.

use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};
use tcp_script::{Variation, differences, kernel, scripts};

/// Scripts wait most of the time.
const THREADS: usize = 16;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(THREADS);
    let (scripts, known) = match (scripts(), differences::all()) {
        (Ok(scripts), Ok(known)) => (scripts, known),
        (Err(error), _) | (_, Err(error)) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let mut trials = Vec::new();
    for script in scripts.into_iter().filter(|script| script.engine_only.is_none()) {
        for version in script.versions.clone() {
            let (script, known) = (script.clone(), known.clone());
            let trial = Trial::test(format!("{}/{version}", script.name), move || {
                if let Some(obstacle) = kernel::obstacle() {
                    return Err(Failed::from(obstacle));
                }
                let variation = Variation { version, iss: 0xffff_f000, ts_base: 0xffff_ff00 };
                let result = kernel::run(&script, &variation);
                differences::judge(&known, "kernel", &script.name, result).map_err(Failed::from)
            });
            // Needs root.
            trials.push(trial.with_ignored_flag(true));
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}
